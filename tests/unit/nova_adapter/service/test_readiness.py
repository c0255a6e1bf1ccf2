# SPDX-License-Identifier: Apache-2.0
"""The gate of a worker's requests, and the server that waits behind it."""

from __future__ import annotations

import threading
import time
import unittest
from collections.abc import Callable
from typing import Any

import nova.rpc

from nova_nodb_scheduler.nova_adapter.service import start_gate

_SECONDS = 10.0
_NOTHING = start_gate.StartProgress(0.43, ("nothing is proved",))
_ALL = start_gate.StartProgress(1.0, ())


class GateTest(unittest.TestCase):
    def setUp(self) -> None:
        self.now = 100.0
        self.answer: start_gate.StartProgress | Exception = _NOTHING
        self.asked = 0
        self.stopped = threading.Event()

    def judge(self) -> start_gate.StartProgress:
        self.asked += 1
        self.now += 1.0
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def gate(self, bound_seconds: float) -> start_gate.RequestGate:
        return start_gate.RequestGate(self.judge, bound_seconds, clock=lambda: self.now)

    def test_it_opens_when_all_is_proved(self) -> None:
        self.answer = _ALL
        self.assertIs(start_gate.GateOutcome.PROVED, self.gate(45.0).wait(self.stopped))

    def test_it_opens_when_the_bound_has_passed_and_names_what_is_unproved(self) -> None:
        with self.assertLogs(start_gate.__name__, "ERROR") as logged:
            self.assertIs(start_gate.GateOutcome.UNPROVED, self.gate(3.0).wait(self.stopped))
        self.assertEqual(3, self.asked)
        [line] = logged.output
        self.assertIn("nothing is proved", line)

    def test_the_bound_counts_from_when_the_worker_began(self) -> None:
        gate = self.gate(3.0)
        self.now += 100.0
        gate.begin()
        gate.wait(self.stopped)
        self.assertEqual(3, self.asked)

    def test_a_bound_of_nothing_opens_at_once_and_complains_of_nothing(self) -> None:
        with self.assertNoLogs(start_gate.__name__, "WARNING"):
            self.assertIs(start_gate.GateOutcome.UNPROVED, self.gate(0.0).wait(self.stopped))
        self.assertEqual(1, self.asked)

    def test_a_judgement_that_fails_is_a_fault_that_is_told_once_until_the_bound(self) -> None:
        self.answer = RuntimeError("a mistake")
        with self.assertLogs(start_gate.__name__, "ERROR") as logged:
            self.assertIs(start_gate.GateOutcome.UNPROVED, self.gate(4.0).wait(self.stopped))
        self.assertEqual(2, len(logged.output))
        self.assertIn("fault of the plugin", logged.output[1])

    def test_it_tells_how_far_it_is_only_while_somebody_waits(self) -> None:
        gate = self.gate(1e9)
        self.assertIsNone(gate.progress)
        waiting = threading.Thread(target=gate.wait, args=(self.stopped,))
        waiting.start()
        until(lambda: gate.progress is _NOTHING)
        self.assertEqual("starting, 43%", str(gate.progress))
        self.stopped.set()
        waiting.join(_SECONDS)
        self.assertIsNone(gate.progress)

    def test_it_never_says_100_before_all_is_proved(self) -> None:
        self.assertEqual(99, start_gate.StartProgress(1.0, ("a rest",)).percent)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("it did not come")
        time.sleep(0.01)


class Driver:
    """Its listeners take messages as soon as they are made."""


class Transport:
    _driver = Driver()


class Server:
    """An RPC server that notes what is asked of it, and may fail to start."""

    transport = Transport()
    listener = None

    def __init__(self, done: list[str], failures: list[Exception]) -> None:
        self._done = done
        self._failures = failures

    def start(self, override_pool_size: int | None = None) -> None:
        if self._failures:
            self._done.append("failed")
            raise self._failures.pop()
        self._done.append("started")

    def stop(self) -> None:
        self._done.append("stopped")

    def wait(self) -> None:
        self._done.append("waited")


class Manager:
    """An endpoint with an intake, as the scheduler's manager is one."""

    def __init__(self, intake: start_gate.RequestIntake) -> None:
        self.nodb_intake = intake


class Tracking:
    """As Nova 34 wraps its endpoints; Nova 31 gives them as they are."""

    def __init__(self, endpoint: Any) -> None:
        self._endpoint = endpoint

    def __getattr__(self, name: str) -> Any:
        return getattr(self._endpoint, name)


class IntakeTest(unittest.TestCase):
    def setUp(self) -> None:
        self.done: list[str] = []
        self.failures: list[Exception] = []
        self.proved = threading.Event()
        gate = start_gate.RequestGate(lambda: _ALL if self.proved.is_set() else _NOTHING, 1e9)
        self.intake = start_gate.RequestIntake(gate)
        own = nova.rpc.get_server
        self.addCleanup(setattr, nova.rpc, "get_server", own)
        nova.rpc.get_server = lambda *args: Server(self.done, self.failures)
        start_gate.install()
        start_gate.install()

    def test_nova_gets_a_gated_server_for_the_manager_alone_whether_it_wraps_it_or_not(
        self,
    ) -> None:
        manager, other = Manager(self.intake), object()
        for endpoints in ([manager, other], [Tracking(manager), other]):
            server = nova.rpc.get_server("target", endpoints, "serializer")
            self.assertIsInstance(server, start_gate.GatedServer)
        self.assertIsInstance(nova.rpc.get_server("target", [other], "serializer"), Server)

    def started(self) -> Any:
        server = nova.rpc.get_server("target", [Manager(self.intake)])
        server.start()
        return server

    def test_it_starts_when_the_gate_opens_and_not_before(self) -> None:
        self.started()
        self.assertEqual([], self.done)
        self.proved.set()
        until(lambda: self.done == ["started"])

    def test_stopped_before_the_gate_opens_it_never_starts(self) -> None:
        server = self.started()
        server.stop()
        self.proved.set()
        server.wait()
        self.assertEqual([], self.done)

    def test_stopped_after_it_began_it_ends_as_novas_does(self) -> None:
        self.proved.set()
        server = self.started()
        until(lambda: self.done == ["started"])
        # Nova has not stopped it: there is nothing to wait for.
        self.assertTrue(self.intake.drain(_SECONDS))
        server.stop()
        self.assertTrue(self.intake.drain(_SECONDS))
        self.assertEqual(["started", "stopped", "waited"], self.done)

    def test_a_server_that_cannot_start_is_made_again_and_started_later(self) -> None:
        self.failures.append(OSError("the broker is gone"))
        self.proved.set()
        with self.assertLogs(start_gate.__name__, "ERROR"):
            self.started()
            until(lambda: self.done == ["failed", "started"])
