# SPDX-License-Identifier: Apache-2.0
"""A nova-scheduler of this process, as Nova's own service class starts and ends it.

Requests come over the bus as Nova's conductor sends them, to a worker that has
nothing proved yet, or to one that is told to end.
"""

from __future__ import annotations

import concurrent.futures
import importlib
import importlib.util
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any
from unittest import mock

import nova.rpc
from keystoneauth1 import exceptions as keystone
from nova import exception, service
from nova.scheduler import rpcapi

from nova_nodb_scheduler.nova_adapter import manager, rpc_server
from nova_nodb_scheduler.nova_adapter.service import worker_status
from tests.functional.nova_adapter.decisions import test_memory_decisions

MANAGER = f"{manager.__name__}.{manager.SchedulerManager.__name__}"
#: Long enough for a worker that takes a request to have taken it.
_A_WHILE_SECONDS = 1.0


class StartGateCase(test_memory_decisions.MemoryDecisionsCase):
    """A service that is started by the test, while the back end does not answer."""

    start_timeout_seconds = 60.0

    def begin(self) -> None:
        self.override("start_timeout_seconds", self.start_timeout_seconds, "nodb_scheduler")
        own = nova.rpc.get_server
        self.addCleanup(setattr, nova.rpc, "get_server", own)
        transport, nova.rpc.TRANSPORT = nova.rpc.TRANSPORT, None
        self.addCleanup(setattr, nova.rpc, "TRANSPORT", transport)
        # A bus of its own: nobody else's servers listen there.
        nova.rpc.TRANSPORT = nova.rpc.create_transport("fake://")
        self.pool = concurrent.futures.ThreadPoolExecutor(8)
        self.addCleanup(self.pool.shutdown, wait=False)
        self.hub.faults.go_down()
        self.scheduler = service.Service.create(
            host="scheduler-1", binary="nova-scheduler", topic=rpcapi.RPC_TOPIC, manager=MANAGER
        )
        self.addCleanup(self.stop)
        self.scheduler.start()

    def stop(self) -> None:
        self.hub.faults.come_up()
        self.end_service()
        self.scheduler.manager.cleanup_host()

    def end_service(self) -> None:
        """End it as SIGTERM does; this process lives on, with threads for Nova's reads."""
        self.scheduler.stop()
        # Nova has this from 34 on; there is no process after a shutdown, elsewhere.
        factory = importlib.util.find_spec("nova.thread_pool_factory")
        if factory is not None:
            importlib.import_module("nova.thread_pool_factory").FACTORY._shutdown = False

    @property
    def worker(self) -> Any:
        return self.scheduler.manager.nodb

    def send(self) -> concurrent.futures.Future[Any]:
        """Ask for one server as Nova's conductor does."""
        server = str(uuid.uuid4())
        spec = self.spec([server])
        return self.pool.submit(
            lambda: rpcapi.SchedulerAPI().select_destinations(
                self.admin, spec, [server], return_objects=True, return_alternates=True
            )
        )

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + test_memory_decisions.WAIT_SECONDS
        while time.monotonic() < deadline:
            if not self.hub.faults.down:
                self.beat()
            found = condition()
            if found:
                return found
            time.sleep(0.05)
        progress = self.worker.starting()
        raise AssertionError(f"{what} did not come: {progress} {progress and progress.missing}")

    def answer(self, sent: concurrent.futures.Future[Any]) -> Any:
        self.wait_for(sent.done, "the answer")
        return sent.result()


class StartGateTest(StartGateCase):
    def test_a_request_sent_before_all_is_proved_waits_and_is_answered_from_memory(self) -> None:
        sent = self.send()
        time.sleep(_A_WHILE_SECONDS)
        self.assertFalse(sent.done())
        self.assertEqual({}, self.worker.outcomes())

        self.hub.faults.come_up()
        [selections] = self.answer(sent)

        self.assertIn(selections[0].nodename, {"node-h1", "node-h2"})
        self.assertEqual({"memory": 1}, self.worker.candidates())
        self.assertEqual({}, self.worker.fallbacks())
        self.assertIsNone(self.worker.starting())

    def test_requests_wait_for_the_mirror_although_all_states_are_proved(self) -> None:
        own = self.client.get

        def silent(url: str, *args: Any, **kwargs: Any) -> Any:
            if url.startswith("/resource_providers"):
                raise keystone.ConnectFailure("Placement does not answer")
            return own(url, *args, **kwargs)

        with mock.patch.object(self.client, "get", silent):
            self.hub.faults.come_up()
            sent = self.send()
            missing = self.wait_for(self.waits_for_mirror_alone, "proof of all but the mirror")
            self.assertIn("never swept", missing)
            self.assertFalse(sent.done())
        self.answer(sent)
        self.assertEqual({"memory": 1}, self.worker.candidates())

    def waits_for_mirror_alone(self) -> str | None:
        missing = self.worker.starting().missing
        return missing[0] if len(missing) == 1 and "mirror" in missing[0] else None

    def test_status_says_how_far_it_is_and_what_it_waits_for(self) -> None:
        self.wait_for(lambda: self.worker.starting() is not None, "the wait")
        status = worker_status.build(self.worker)
        self.assertEqual("starting, 0%", status.feed.state)
        self.assertIn("host states and claims: disconnected", status.feed.detail)

        self.hub.faults.come_up()
        self.wait_for(lambda: self.worker.starting() is None, "the proof")
        self.assertEqual("following", worker_status.build(self.worker).feed.state)

    def test_the_plugins_own_rpc_answers_while_requests_wait(self) -> None:
        # The fake bus of a client of its own is another one.
        with mock.patch.object(nova.rpc, "create_transport", lambda url: nova.rpc.TRANSPORT):
            client = rpc_server.make_client(self.plugin, 5.0)
        status = client.get_status(self.admin, server="here")
        self.assertEqual("starting, 0%", status.feed.state)

    def test_the_service_is_up_while_requests_wait(self) -> None:
        reported = self.scheduler.service_ref.report_count
        driver = self.scheduler.servicegroup_api._driver
        driver._report_state(self.scheduler)
        self.assertEqual(reported + 1, self.scheduler.service_ref.report_count)
        self.assertIsNotNone(self.worker.starting())

    def test_a_service_that_is_told_to_end_while_it_waits_takes_nothing(self) -> None:
        sent = self.send()
        time.sleep(_A_WHILE_SECONDS)
        began = time.monotonic()
        self.end_service()
        self.assertLess(time.monotonic() - began, 10.0)
        self.hub.faults.come_up()
        time.sleep(_A_WHILE_SECONDS)
        self.assertFalse(sent.done())
        self.assertEqual({}, self.worker.outcomes())

        # The one that is started after it takes it.
        self.scheduler.start()
        self.answer(sent)
        self.assertEqual({"memory": 1}, self.worker.candidates())

    def test_a_proof_that_is_lost_later_does_not_end_the_taking_of_requests(self) -> None:
        self.hub.faults.come_up()
        self.answer(self.send())
        self.hub.faults.go_down()
        self.wait_for(
            lambda: self.worker.replicator.status().state.value == "disconnected", "the fault"
        )
        self.assertIsNone(self.worker.starting())
        self.answer(self.send())
        self.assertEqual(2, self.worker.outcomes()["selected"])

    def test_a_worker_started_again_in_its_process_waits_again(self) -> None:
        self.hub.faults.come_up()
        self.answer(self.send())
        self.end_service()
        self.hub.faults.go_down()
        self.scheduler.start()
        sent = self.send()
        time.sleep(_A_WHILE_SECONDS)
        self.assertFalse(sent.done())
        self.hub.faults.come_up()
        self.answer(sent)
        self.assertEqual({"memory": 1}, self.worker.candidates())

    def test_what_was_taken_is_answered_from_memory_before_the_worker_ends(self) -> None:
        self.hub.faults.come_up()
        self.answer(self.send())
        held, go = threading.Semaphore(0), threading.Event()
        self.addCleanup(go.set)
        own = manager.SchedulerManager._select

        def slow(*args: Any, **kwargs: Any) -> Any:
            held.release()
            go.wait(test_memory_decisions.WAIT_SECONDS)
            return own(*args, **kwargs)

        with mock.patch.object(manager.SchedulerManager, "_select", slow):
            under_way = [self.send() for _ in range(2)]
            for _ in under_way:
                self.assertTrue(held.acquire(timeout=10.0))
            ending = self.pool.submit(self.end_service)
            self.wait_for(self.scheduler.manager.nodb_intake._server._stopped.is_set, "the end")
            late = self.send()
            time.sleep(_A_WHILE_SECONDS)
            self.assertFalse(self.worker.stopped)
            go.set()
            for each in under_way:
                self.answer(each)
        self.wait_for(ending.done, "the end")
        self.assertEqual({"memory": 3}, self.worker.candidates())
        self.assertFalse(late.done())
        # It waits for the next one, and no longer than that: its thread is a real one.
        self.scheduler.start()
        self.answer(late)


class BoundTest(StartGateCase):
    start_timeout_seconds = 1.0

    def test_when_the_bound_has_passed_novas_own_path_answers_loudly(self) -> None:
        with self.assertLogs(
            "nova_nodb_scheduler.nova_adapter.service.start_gate", "ERROR"
        ) as logged:
            sent = self.send()
            self.answer(sent)
        [line] = logged.output
        self.assertIn("host states and claims: disconnected", line)
        self.assertEqual({"states not proved": 1}, self.worker.candidates())


class NoWaitTest(StartGateCase):
    start_timeout_seconds = 0.0

    def test_a_bound_of_nothing_takes_requests_at_once(self) -> None:
        self.answer(self.send())
        self.assertEqual({"states not proved": 1}, self.worker.candidates())


class HostStatesOnlyTest(StartGateCase):
    """A scheduler of which only the host states come from memory."""

    def begin(self) -> None:
        self.override("candidates", "placement", "nodb_scheduler")
        super().begin()

    def test_requests_wait_for_host_states_and_for_no_mirror(self) -> None:
        sent = self.send()
        time.sleep(_A_WHILE_SECONDS)
        self.assertFalse(sent.done())
        self.hub.faults.come_up()
        self.answer(sent)
        self.assertIsNone(self.worker.decisions)
        self.assertEqual({}, self.worker.fallbacks())


class EmptyCloudTest(StartGateCase):
    HOSTS = ()

    def test_a_cloud_that_is_proved_to_be_empty_is_proved(self) -> None:
        self.hub.faults.come_up()
        with self.assertRaises(exception.NoValidHost):
            try:
                self.answer(self.send())
            except nova.rpc.messaging.RemoteError as error:
                raise exception.NoValidHost(reason=str(error)) from None
        self.assertIsNone(self.worker.starting())
