# SPDX-License-Identifier: Apache-2.0
"""An etcd, clients of it, and clients that stop or die at a step."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers import etcd
from nova_nodb_scheduler.testing import etcd_server
from nova_nodb_scheduler.testing.conformance import base

Step = etcd.Step

TIMEOUT_SECONDS = 2.0


class PausedClient(threading.Thread):
    """Writes once, and stands still at a step until it is let go."""

    def __init__(self, client: etcd.EtcdSynchronizer, step: Step, write: records.Write) -> None:
        super().__init__(name=f"paused at {step.name}", daemon=True)
        self._write = write
        self._client = client
        self.reached = threading.Event()
        self.released = threading.Event()
        #: None where the back end was unavailable: nothing was written.
        self.result: records.WriteResult | None = None
        client.on_step = at(step, self._stand_still)
        self.start()

    def run(self) -> None:
        with contextlib.suppress(errors.BackendUnavailable):
            [self.result] = self._client.write([self._write])
        self.reached.set()

    def let_go(self) -> records.WriteResult | None:
        self.released.set()
        self.join(base.PATIENCE_SECONDS)
        return self.result

    def _stand_still(self) -> None:
        self.reached.set()
        self.released.wait(base.PATIENCE_SECONDS)


class EtcdCase(base.Case):
    #: Whether the test stops, pauses or compacts the server.
    private = False
    #: Of the server's command line; these make it a private one.
    options: tuple[str, ...] = ()

    def setUp(self) -> None:
        super().setUp()
        self.etcd = self.enterContext(etcd_server.Etcd(*self.options, private=self.private))
        self.server = self.etcd.server

    def make_synchronizer(self) -> etcd.EtcdSynchronizer:
        return self.make()

    def make(self, **changes: Any) -> etcd.EtcdSynchronizer:
        """Return a new client, not open."""
        settings = {
            "endpoints": (self.etcd.url,),
            "key_prefix": self.etcd.key_prefix,
            "timeout_seconds": TIMEOUT_SECONDS,
            **changes,
        }
        return etcd.EtcdSynchronizer(etcd.EtcdOptions(**settings))

    def opened(self, **changes: Any) -> etcd.EtcdSynchronizer:
        synchronizer = self.make(**changes)
        synchronizer.open()
        self.addCleanup(synchronizer.close)
        return synchronizer

    def through(self, address: str, **changes: Any) -> etcd.EtcdSynchronizer:
        """Return an open client of another address."""
        return self.opened(endpoints=(f"http://{address}",), **changes)

    def die(self, step: Step, job: Callable[[etcd.EtcdSynchronizer], object]) -> None:
        """Let another process do a job, and be killed when it comes to a step."""

        def work() -> None:
            synchronizer = self.make()
            synchronizer.open()
            synchronizer.on_step = at(step, lambda: os.kill(os.getpid(), signal.SIGKILL))
            job(synchronizer)

        process = multiprocessing.get_context("fork").Process(target=work, daemon=True)
        process.start()
        process.join(base.PATIENCE_SECONDS)
        self.assertEqual(-signal.SIGKILL, process.exitcode)

    def assert_reader_is_right(self, reader: base.Reader) -> None:
        """Let a reader catch up by the feed alone, and compare it."""
        resyncs = reader.resyncs
        reader.catch_up()
        self.assertEqual(resyncs, reader.resyncs)
        expected = base.everything(self.client())
        self.assertEqual(base.states(expected), base.states(reader.held))

    def assert_resync(
        self, reason: records.ResyncReason, answer: records.Changes | records.ResyncNeeded
    ) -> None:
        self.assertIsInstance(answer, records.ResyncNeeded)
        assert isinstance(answer, records.ResyncNeeded)
        self.assertIs(reason, answer.reason)


def at(step: Step, action: Callable[[], object]) -> Callable[[str], None]:
    """Return an observer that acts when a client first comes to a step."""
    pending = [action]

    def observe(reached: str) -> None:
        if reached == step.value and pending:
            pending.pop()()

    return observe
