# SPDX-License-Identifier: Apache-2.0
"""Requests on a real RabbitMQ, while workers start, are killed, and end."""

from __future__ import annotations

import concurrent.futures
import multiprocessing.process
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import unittest
import uuid
from collections.abc import Mapping
from typing import Any

import nova.rpc
import oslo_messaging

from tests import forking
from tests.functional.nova_adapter import cloud, gated_worker, rabbitmq

_CONTEXT = forking.context(
    "nova.cmd.scheduler",
    "nova_nodb_scheduler.nova_adapter.service.start_gate",
    "oslo_messaging._drivers.impl_rabbit",
    gated_worker.__name__,
)
_SECONDS = 60.0
#: Long enough for a worker that takes a request to have taken it.
_A_WHILE_SECONDS = 1.5


class Worker:
    """A process of :mod:`gated_worker`.

    :param environment: with which it is started from nothing; without any it is forked
    """

    def __init__(self, environment: Mapping[str, str], *arguments: str) -> None:
        read, written = _CONTEXT.Pipe(duplex=False)
        self._process: subprocess.Popen[bytes] | multiprocessing.process.BaseProcess
        if environment:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", gated_worker.__name__, *arguments],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment},
                stdout=written.fileno(),
                stderr=subprocess.DEVNULL,
            )
        else:
            self._process = _CONTEXT.Process(target=gated_worker.run, args=(written, *arguments))
            self._process.start()
        # What it says ends with the process.
        written.close()
        self._said = os.fdopen(os.dup(read.fileno()))
        read.close()
        self.words: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.expect("started")

    def _read(self) -> None:
        for line in self._said:
            self.words.put(line.strip())

    def expect(self, word: str) -> None:
        found = self.words.get(timeout=_SECONDS)
        if found != word:
            raise AssertionError(f"the worker said {found!r}, not {word!r}")

    def prove(self) -> None:
        self.end(signal.SIGUSR1)

    def end(self, how: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, how)

    def wait(self) -> int | None:
        """Wait until it has ended; return its exit status."""
        if isinstance(self._process, subprocess.Popen):
            return self._process.wait(_SECONDS)
        self._process.join(_SECONDS)
        return self._process.exitcode

    def close(self) -> None:
        self._process.kill()
        self.wait()
        # The end of the process is the end of what it says.
        self._reader.join(_SECONDS)
        self._said.close()


class RequestIntakeTest(unittest.TestCase):
    """A broker for all tests; each has a queue of its own.

    Workers have the mode of threads that is this Nova's own, where nothing else is said.
    """

    environment: Mapping[str, str] = {}
    bus: rabbitmq.RabbitMQ

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.bus = rabbitmq.RabbitMQ()
        cls.bus.setUp()
        cls.addClassCleanup(cls.bus.cleanUp)

    def setUp(self) -> None:
        super().setUp()
        cloud.databases()
        transport = nova.rpc.create_transport(self.bus.url)
        self.addCleanup(transport.cleanup)
        # The broker knows nothing of it yet.
        self.topic = f"scheduler-{uuid.uuid4()}"
        target = oslo_messaging.Target(topic=self.topic, exchange="nova")
        self.client = oslo_messaging.get_rpc_client(transport, target)
        self.pool = concurrent.futures.ThreadPoolExecutor(16)
        self.addCleanup(self.pool.shutdown)

    def worker(self, name: str, bound_seconds: float = 600.0, *, proved: bool = False) -> Worker:
        made = Worker(self.environment, self.bus.url, self.topic, name, str(bound_seconds))
        self.addCleanup(made.close)
        if proved:
            made.prove()
        return made

    def send(self, seconds: float = 0.0) -> concurrent.futures.Future[Any]:
        client = self.client.prepare(timeout=_SECONDS)
        return self.pool.submit(client.call, {}, "work", seconds=seconds)

    def test_a_request_waits_in_the_queue_of_a_fresh_broker_until_all_is_proved(self) -> None:
        first = self.worker("first")
        sent = self.send()
        time.sleep(_A_WHILE_SECONDS)
        self.assertFalse(sent.done())
        first.prove()
        self.assertEqual("first", sent.result(_SECONDS))

    def test_a_request_outlives_the_unproved_worker_that_might_have_taken_it(self) -> None:
        first = self.worker("first")
        sent = [self.send() for _ in range(5)]
        time.sleep(_A_WHILE_SECONDS)
        first.end(signal.SIGKILL)
        self.worker("second", proved=True)
        self.assertEqual(["second"] * 5, [each.result(_SECONDS) for each in sent])

    def test_another_worker_takes_what_an_unproved_one_leaves(self) -> None:
        self.worker("first")
        self.worker("second", proved=True)
        sent = [self.send() for _ in range(20)]
        self.assertEqual({"second"}, {each.result(_SECONDS) for each in sent})

    def test_requests_are_taken_when_the_bound_has_passed(self) -> None:
        sent = []
        began = time.monotonic()
        self.worker("first", 3.0)
        sent.append(self.send())
        self.assertEqual("first", sent[0].result(_SECONDS))
        self.assertGreater(time.monotonic() - began, 3.0)

    def test_a_cast_to_all_finds_its_exchange_while_the_only_worker_waits(self) -> None:
        fanout = self.client.prepare(fanout=True)
        first = self.worker("first", proved=True)
        self.assertEqual("first", self.send().result(_SECONDS))
        first.expect("begun")
        fanout.cast({}, "tell")
        first.expect("told")
        first.end(signal.SIGTERM)
        first.expect("stopped")
        first.expect("ended")
        first.wait()
        second = self.worker("second")
        fanout.cast({}, "tell")
        second.prove()
        second.expect("told")

    def test_what_was_taken_is_answered_and_no_more_is_taken_after_sigterm(self) -> None:
        first = self.worker("first", proved=True)
        under_way = [self.send(4.0) for _ in range(4)]
        for _ in under_way:
            first.expect("begun")
        first.end(signal.SIGTERM)
        first.expect("stopped")
        late = [self.send() for _ in range(4)]
        self.assertEqual(["first"] * 4, [each.result(_SECONDS) for each in under_way])
        first.expect("ended")
        first.wait()
        self.assertFalse(any(each.done() for each in late))
        self.worker("second", proved=True)
        self.assertEqual(["second"] * 4, [each.result(_SECONDS) for each in late])

    def test_a_worker_that_is_told_to_end_while_it_waits_leaves_all_to_others(self) -> None:
        first = self.worker("first")
        sent = self.send()
        first.end(signal.SIGTERM)
        first.expect("stopped")
        first.expect("ended")
        self.assertEqual(0, first.wait())
        self.worker("second", proved=True)
        self.assertEqual("second", sent.result(_SECONDS))

    # -- as Nova runs its services before release 34, from nothing -----------------------

    _EVENTLET: Mapping[str, str] = {"OS_NOVA_DISABLE_EVENTLET_PATCHING": "false"}

    def test_with_eventlet_a_request_outlives_the_unproved_worker_that_might_have_taken_it(
        self,
    ) -> None:
        self.environment = self._EVENTLET
        self.test_a_request_outlives_the_unproved_worker_that_might_have_taken_it()

    def test_with_eventlet_what_was_taken_is_answered_and_no_more_is_taken_after_sigterm(
        self,
    ) -> None:
        self.environment = self._EVENTLET
        self.test_what_was_taken_is_answered_and_no_more_is_taken_after_sigterm()
