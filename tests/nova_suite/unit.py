# SPDX-License-Identifier: Apache-2.0
"""Put the plugin's scheduler in the place of Nova's in Nova's own unit tests.

They have no database, no feed and thus no proof: what they show is that the
plugin's classes behave as Nova's where they take Nova's own path.
"""

from __future__ import annotations

import importlib
from typing import Any

import fixtures
from oslo_config import cfg

from nova_nodb_scheduler.nova_adapter import assembly

#: Modules of the plugin with a class that replaces Nova's of the same name.
_REPLACED = {
    "nova.scheduler.manager": ("nova_nodb_scheduler.nova_adapter.manager", "SchedulerManager"),
    "nova.scheduler.host_manager": (
        "nova_nodb_scheduler.nova_adapter.reads.host_manager",
        "HostManager",
    ),
}


def install() -> None:
    """Replace the classes for good: before the tests' modules are imported."""
    ours = {
        module: getattr(importlib.import_module(source), name)
        for module, (source, name) in _REPLACED.items()
    }
    for module, cls in ours.items():
        setattr(importlib.import_module(module), cls.__name__, cls)


class NoDatabaseFixture(fixtures.Fixture):
    """A plugin that is configured and never started."""

    def _setUp(self) -> None:
        conf: Any = cfg.CONF
        conf.set_override("scheduler_driver", "nodb_scheduler")
        assembly.install(assembly.Plugin(conf))
        self.addCleanup(assembly.install, None)
