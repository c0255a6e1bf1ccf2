# SPDX-License-Identifier: Apache-2.0
"""A memcached of its own, clients of it, and writers that stop at a step."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable

from pymemcache.client import base as pymemcache

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers import memcached
from nova_nodb_scheduler.testing import servers
from nova_nodb_scheduler.testing.conformance import base

FENCE_AFTER_SECONDS = 0.2
TIMEOUT_SECONDS = 2.0


class PausedWriter(threading.Thread):
    """Writes once, and stands still at a step until it is let go."""

    def __init__(
        self,
        make: Callable[[Callable[[memcached.Step], None]], memcached.MemcachedSynchronizer],
        step: memcached.Step,
        write: records.Write,
    ) -> None:
        super().__init__(name=f"paused at {step.name}", daemon=True)
        self._step = step
        self._write = write
        self._synchronizer = make(self._observe)
        self.reached = threading.Event()
        self.released = threading.Event()
        #: None where the back end was unavailable: nothing was written.
        self._result: records.WriteResult | None = None
        self.start()

    def run(self) -> None:
        with contextlib.suppress(errors.BackendUnavailable):
            [self._result] = self._synchronizer.write([self._write])
        self.reached.set()

    def let_go(self) -> records.WriteResult | None:
        self.released.set()
        self.join(base.PATIENCE_SECONDS)
        return self._result

    def verdict(self) -> records.Verdict | None:
        """Let it go, and return how it ended."""
        result = self.let_go()
        return result.verdict if result else None

    def _observe(self, step: memcached.Step) -> None:
        if step is self._step and not self.reached.is_set():
            self.reached.set()
            self.released.wait(base.PATIENCE_SECONDS)


class MemcachedCase(base.Case):
    options: tuple[str, ...] = ("-m", "64", "-M")
    driver_class = memcached.MemcachedSynchronizer

    def setUp(self) -> None:
        super().setUp()
        self.memcached = self.enterContext(servers.Memcached(*self.options))
        self.server = self.memcached.server

    def make_synchronizer(self) -> memcached.MemcachedSynchronizer:
        return self.make()

    def make(
        self,
        observer: Callable[[memcached.Step], None] = lambda step: None,
        address: str = "",
        log_ttl_seconds: int = 3600,
    ) -> memcached.MemcachedSynchronizer:
        """Return a new client; open, unless it is for the conformance suite."""
        return self.driver_class(
            memcached.MemcachedOptions(
                servers=(address or self.memcached.address,),
                timeout_seconds=TIMEOUT_SECONDS,
                fence_after_seconds=FENCE_AFTER_SECONDS,
                poll_interval_seconds=0.02,
                log_ttl_seconds=log_ttl_seconds,
            ),
            observer,
        )

    def opened(
        self,
        observer: Callable[[memcached.Step], None] = lambda step: None,
        address: str = "",
        log_ttl_seconds: int = 3600,
    ) -> memcached.MemcachedSynchronizer:
        synchronizer = self.make(observer, address, log_ttl_seconds)
        synchronizer.open()
        self.addCleanup(synchronizer.close)
        return synchronizer

    def raw(self) -> pymemcache.Client:
        """Return a client that knows nothing of the driver's protocol."""
        client = pymemcache.Client(self.memcached.address)
        self.addCleanup(client.close)
        return client

    def write_and_die(self, step: memcached.Step, write: records.Write) -> None:
        """Let another process write, and be killed when it comes to a step."""

        def observe(reached: memcached.Step) -> None:
            if reached is step:
                os.kill(os.getpid(), signal.SIGKILL)

        def work() -> None:
            synchronizer = self.make(observe)
            synchronizer.open()
            synchronizer.write([write])

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
