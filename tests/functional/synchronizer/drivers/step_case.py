# SPDX-License-Identifier: Apache-2.0
"""Clients of any engine that stop or die at a step of their driver's protocol."""

from __future__ import annotations

import contextlib
import enum
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.testing.conformance import contract_case

_Client = TypeVar("_Client", bound=contract.Synchronizer)


class PausedWriter(threading.Thread):
    """Writes once, and stands still at a step until it is let go.

    :param client: open, and nobody else's
    """

    def __init__(self, client: contract.Synchronizer, step: enum.Enum, write: records.Write):
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
        self.join(contract_case.PATIENCE_SECONDS)
        return self.result

    def verdict(self) -> records.Verdict | None:
        """Let it go, and return how it ended."""
        result = self.let_go()
        return result.verdict if result else None

    def _stand_still(self) -> None:
        self.reached.set()
        self.released.wait(contract_case.PATIENCE_SECONDS)


class StepCase(contract_case.Case, Generic[_Client]):
    """Base of the engines' cases, which say how a client is made."""

    def make(self, **changes: Any) -> _Client:
        """Return a new client, not open; its settings may be changed."""
        raise NotImplementedError

    def make_synchronizer(self) -> _Client:
        return self.make()

    def opened(self, **changes: Any) -> _Client:
        synchronizer = self.make(**changes)
        synchronizer.open()
        self.addCleanup(synchronizer.close)
        return synchronizer

    def die(self, step: enum.Enum, job: Callable[[_Client], object]) -> None:
        """Let another process do a job, and be killed when it comes to a step."""

        def work() -> None:
            synchronizer = self.make()
            synchronizer.on_step = at(step, lambda: os.kill(os.getpid(), signal.SIGKILL))
            synchronizer.open()
            job(synchronizer)

        process = multiprocessing.get_context("fork").Process(target=work, daemon=True)
        process.start()
        process.join(contract_case.PATIENCE_SECONDS)
        self.assertEqual(-signal.SIGKILL, process.exitcode)

    def assert_gives_up(self, call: Callable[[], object], within_seconds: float) -> None:
        """Call what meets a server that stands still: it says so, and in time.

        A busy machine holds up a call now and then, but not three running.
        """
        took = []
        for _ in range(3):
            began = time.monotonic()
            with self.assertRaises(errors.BackendUnavailable):
                call()
            took.append(time.monotonic() - began)
            if took[-1] < within_seconds:
                return
        self.fail(f"{took} s, each beyond {within_seconds:g} s")

    def assert_reader_is_right(self, reader: contract_case.FeedReader) -> None:
        """Let a reader catch up by the feed alone, and compare it."""
        resyncs = reader.resyncs
        reader.catch_up()
        self.assertEqual(resyncs, reader.resyncs)
        expected = contract_case.everything(self.client())
        self.assertEqual(contract_case.states(expected), contract_case.states(reader.held))


class SlowClients(StepCase[Any]):
    """Base of tests of writers that die or stand still: one that does not, and a reader."""

    def setUp(self) -> None:
        super().setUp()
        self.writer = self.client()
        self.reader = contract_case.FeedReader(self.client())

    def patient_client(self) -> contract.Synchronizer:
        """Return the open client that stands still; with a longer time-out where it counts."""
        return self.opened()

    def pause(self, step: enum.Enum, write: records.Write) -> PausedWriter:
        """Return a writer that stands still at a step."""
        paused = PausedWriter(self.patient_client(), step, write)
        self.addCleanup(paused.let_go)
        self.assertTrue(paused.reached.wait(contract_case.PATIENCE_SECONDS))
        return paused

    def rewrite(self, key: records.RecordKey) -> records.Record:
        """Write a record whatever stands there; it must win."""
        standing = self.writer.read([key]).get(key)
        revision = standing.revision if standing and not standing.deleted else 0
        return self.win(self.writer, records.Write(key, revision, b"rewritten"))


def at(step: enum.Enum, action: Callable[[], object]) -> Callable[[str], None]:
    """Return an observer that acts when a client first comes to a step."""
    pending = [action]

    def observe(reached: str) -> None:
        if reached == step.value and pending:
            pending.pop()()

    return observe
