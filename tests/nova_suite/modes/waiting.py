# SPDX-License-Identifier: Apache-2.0
"""Run Nova's tests with the driver that lets requests wait: ``NOVA_SUITE_DRIVER=nodb_queue``.

Nova's tests give no word that lets a server wait, so all must answer as with the other driver. The
task managers of conductors, the API and the scheduler are the driver's own.

With ``NOVA_SUITE_WAIT=SECONDS`` every server may wait for so long: those that find room answer as
ever, by way of the queue; where a test expects that there is none, its server waits.
"""

from __future__ import annotations

import base64
import os
from typing import Any

import fixtures
import nova.conductor.manager

from nova_nodb_scheduler.nova_adapter import assembly
from nova_nodb_scheduler.nova_adapter.waiting import waiting_api, waiting_task_manager
from tests.nova_suite import test_nova

QUEUE = assembly.QUEUE

_MANAGERS = {
    "nodb_scheduler": "nova_nodb_scheduler.nova_adapter.manager.SchedulerManager",
    QUEUE: "nova_nodb_scheduler.nova_adapter.queue_manager.QueueSchedulerManager",
}
_KEY = base64.urlsafe_b64encode(bytes(range(32))).decode()


def driver() -> str:
    """Return the value of ``scheduler_driver``."""
    return os.environ.get(test_nova.DRIVER_VARIABLE) or "nodb_scheduler"


def manager() -> str:
    """Return the name of the scheduler manager's class."""
    return _MANAGERS[driver()]


def configure(conf: Any) -> None:
    """Set what the driver needs."""
    conf.set_override("scheduler_driver", driver())
    if driver() == QUEUE:
        conf.set_override("key", [_KEY], "nodb_queue")
        seconds = os.environ.get(test_nova.WAIT_VARIABLE)
        if seconds:
            conf.set_override("default_wait_seconds", int(seconds), "nodb_queue")


class WaitingFixture(fixtures.Fixture):
    """Conductors and the API of one test that could let requests wait."""

    def __init__(self, plugin: assembly.Plugin) -> None:
        super().__init__()
        self._plugin = plugin

    def _setUp(self) -> None:
        waiting = self._plugin.waiting_conductor()
        api = self._plugin.waiting_api()
        if waiting is None or api is None:
            return
        owner = nova.conductor.manager.ConductorManager
        construct = owner.__init__

        def constructed(made: Any, *args: Any, **kwargs: Any) -> None:
            construct(made, *args, **kwargs)
            waiting_task_manager.install(made, waiting)

        self.useFixture(
            fixtures.MonkeyPatch(f"{owner.__module__}.{owner.__qualname__}.__init__", constructed)
        )
        self.addCleanup(waiting_api.install(api))
        self.addCleanup(api.stop)
        waiting.start()
        self.addCleanup(waiting.stop)
