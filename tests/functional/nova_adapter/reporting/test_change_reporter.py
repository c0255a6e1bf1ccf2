# SPDX-License-Identifier: Apache-2.0
"""The reporter: batches, order of writers, faults of either side, forks, the end."""

from __future__ import annotations

import datetime
import functools
import os
import threading
import time
from collections import Counter
from typing import Any
from unittest import mock

import attrs
import hypothesis
from hypothesis import strategies as st
from nova import objects
from nova.db.main import api as main_db
from oslo_utils import timeutils

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.conf import nodb
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.reporting import change_reporter, dirty_records, nova_tables
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.memory import faults
from nova_nodb_scheduler.synchronizer.drivers.memory.driver import MemorySynchronizer
from nova_nodb_scheduler.synchronizer.records import publisher
from nova_nodb_scheduler.testing import patience
from tests import counted_calls
from tests.functional.nova_adapter import cloud

_LONG = datetime.timedelta(minutes=5)


class _Counting(MemorySynchronizer):
    """A memory client that counts its requests and can be made to stand still."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.requests: Counter[str] = Counter()
        self.moving = threading.Event()
        self.moving.set()
        self.delay_seconds = 0.0

    def _enter(self, operation: str) -> faults.Fault | None:
        self.requests[operation] += 1
        self.moving.wait(30)
        time.sleep(self.delay_seconds)
        return super()._enter(operation)


class ReporterCase(cloud.CloudCase):
    def setUp(self) -> None:
        super().setUp()
        self.clients: list[_Counting] = []
        self.plugin.make_synchronizer = self._make  # type: ignore[method-assign]

    def _make(self) -> contract.Synchronizer:
        self.clients.append(_Counting(shared_hub=self.hub))
        return self.clients[-1]

    @property
    def client(self) -> _Counting:
        """The reporter's own client."""
        return self.clients[-1]

    def heartbeats(self) -> dict[str, Any]:
        return dict(self.states(known_namespaces.REPORTERS))

    def running(
        self, cell: str = change_reporter.EVERY_CELL, *guards: str
    ) -> change_reporter.ChangeReporter:
        made = self.plugin.reporter("conductor", lambda: cell, lambda: guards)
        change_reporter.install(made, self.plugin.scopes)
        self.addCleanup(change_reporter.install, None, None)
        self.addCleanup(made.stop)
        return made

    def until(self, holds: Any, seconds: float = 20.0) -> None:
        patience.wait_until(holds, seconds, "what the reporter was to do", 0.01)


class BatchTest(ReporterCase):
    def test_a_batch_of_rows_is_one_read_one_select_a_table_one_write(self) -> None:
        made = self.report()
        nodes = [self.compute_node(cloud.CELL1, f"h{n}") for n in range(20)]
        made.flush()
        for node in nodes:
            node.vcpus_used += 1
            node.save()
            node.vcpus_used += 1
            node.save()
        self.client.requests.clear()
        with cloud.Statements() as statements:
            made.flush()
        self.assertEqual(1, len(statements.of("compute_nodes")), statements.seen)
        self.assertEqual({"read": 1, "write": 1}, dict(self.client.requests))
        rows = self.states(known_namespaces.COMPUTE_NODES)
        self.assertEqual({3}, {state["row"]["vcpus_used"] for state in rows.values()})

    def test_a_hundred_heartbeats_cost_the_requests_of_one(self) -> None:
        made = self.report()
        services = [self.service(cloud.CELL1, f"h{n}") for n in range(100)]
        made.flush()
        costs = []
        for several in (services[:1], services):
            for service in several:
                self.heartbeat(service)
            self.client.requests.clear()
            with cloud.Statements() as statements:
                made.flush()
            costs.append((dict(self.client.requests), len(statements.seen)))
        self.assertEqual(costs[0], costs[1])
        self.assertEqual(({"read": 1, "write": 1}, 0), costs[1])

    def test_a_host_that_was_down_is_known_to_be_up_without_waiting_for_others(self) -> None:
        self.override("heartbeat_flush_interval_seconds", 10.0, nodb.GROUP)
        made = self.report()
        service = self.service(cloud.CELL1, "h1")
        self.heartbeat(service)
        made._clock = lambda: 1000.0
        made.flush()

        def counted() -> int:
            made._turn()
            return int(self.states(known_namespaces.SERVICE_LIVENESS)[service.uuid]["report_count"])

        self.heartbeat(service)
        self.assertEqual(1, counted())
        for silent_seconds, known in ((30, 1), (90, 4)):
            # As nova-compute's own copy has it.
            service.last_seen_up -= datetime.timedelta(seconds=silent_seconds)
            service.obj_reset_changes(["last_seen_up"])
            self.heartbeat(service)
            self.assertEqual(known, counted())

    def test_a_cell_that_is_down_does_not_hold_up_another(self) -> None:
        made = self.report()
        one, two = self.compute_node(cloud.CELL1, "h1"), self.compute_node(cloud.CELL2, "h2")
        made.flush()
        context_for = self.plugin.scopes.context_for
        down = True

        def context(scope: str) -> Any:
            if down and scope == cloud.CELL2:
                raise RuntimeError("no route to host")
            return context_for(scope)

        self.plugin.scopes.context_for = context  # type: ignore[method-assign]
        for node in (one, two):
            node.vcpus_used = 5
            node.save()
        made._turn()
        rows = self.states(known_namespaces.COMPUTE_NODES)
        self.assertEqual(5, rows[one.uuid]["row"]["vcpus_used"])
        self.assertEqual(1, rows[two.uuid]["row"]["vcpus_used"])
        # The beat says so, of that cell alone; a later row does not wait for it.
        (beat,) = self.heartbeats().values()
        self.assertEqual({cloud.CELL2}, beat["behind_seconds"].keys())
        one.vcpus_used = 6
        one.save()
        started = time.monotonic()
        made._turn()
        self.assertLess(time.monotonic() - started, 0.9)
        self.assertEqual(
            6, self.states(known_namespaces.COMPUTE_NODES)[one.uuid]["row"]["vcpus_used"]
        )
        down = False
        made.flush()
        self.assertEqual(
            5, self.states(known_namespaces.COMPUTE_NODES)[two.uuid]["row"]["vcpus_used"]
        )
        self.assertEqual(0, made.status().queued)

    def test_what_the_back_end_refuses_stays_dirty_and_is_said(self) -> None:
        made = self.report()
        node = self.compute_node(cloud.CELL1, "h1")
        made.flush()
        node.stats = {"large": "x" * 5_000_000}
        node.save()
        small = self.client.capabilities
        type(self.client).capabilities = property(  # type: ignore[assignment]
            lambda _self: contract.Capabilities(
                durable=False, shared=False, feed=small.feed, max_payload_bytes=1000
            )
        )
        self.addCleanup(delattr, _Counting, "capabilities")
        made._turn()
        (beat,) = self.heartbeats().values()
        self.assertIn(cloud.CELL1, beat["behind_seconds"])
        self.assertEqual(1, beat["refused"])


class PlaceTest(ReporterCase):
    """Where records answer for compute nodes, who writes a place goes on when it is heard of."""

    def waiting(self, bound_seconds: float) -> change_reporter.ChangeReporter:
        made = self.running(cloud.CELL1)
        made._options = attrs.evolve(
            made._options, place_bound_seconds=bound_seconds, flush_interval_seconds=3.0
        )
        return made

    def placed(self, instance: Any, host: str) -> float:
        """Save another host of an instance; return how long that took."""
        instance.host = host
        begun = time.monotonic()
        instance.save()
        return time.monotonic() - begun

    def known(self, instance: Any) -> Any:
        states = self.states(known_namespaces.INSTANCES)
        return states[nova_tables.cell_key(instance.uuid, cloud.CELL1)]["row"]["host"]

    def test_a_place_is_known_when_its_save_returns(self) -> None:
        self.waiting(20.0)
        instance = self.instance(cloud.CELL1, "h1")
        for host in ("h2", "h3"):
            took = self.placed(instance, host)
            self.assertEqual(host, self.known(instance))
            # It does not wait until others have gathered.
            self.assertLess(took, 3.0)

    def test_what_says_no_place_waits_for_nobody(self) -> None:
        made = self.waiting(20.0)
        instance = self.instance(cloud.CELL1, "h1")
        self.client.moving.clear()
        self.addCleanup(self.client.moving.set)
        instance.vm_state = "active"
        begun = time.monotonic()
        instance.save()
        self.assertLess(time.monotonic() - begun, 10.0)
        self.assertEqual(0, made.status().late_places)

    def test_who_is_made_before_a_host_is_chosen_waits_for_nobody(self) -> None:
        made = self.waiting(20.0)
        self.client.moving.clear()
        self.addCleanup(self.client.moving.set)
        begun = time.monotonic()
        for _ in range(5):
            self.instance(cloud.CELL1, None)
        self.assertLess(time.monotonic() - begun, 10.0)
        self.assertEqual(0, made.status().late_places)

    def test_many_at_once_share_a_flush(self) -> None:
        made = self.waiting(20.0)
        instances = [self.instance(cloud.CELL1, "h1") for _ in range(16)]
        made.flush()
        self.client.requests.clear()
        keys = [nova_tables.cell_key(instance.uuid, cloud.CELL1) for instance in instances]
        known: list[bool] = []

        def place(key: str) -> None:
            made.mark(cloud.CELL1, known_namespaces.INSTANCES.name, [key])
            known.append(made.wait_published(known_namespaces.INSTANCES.name, [key]))

        threads = [threading.Thread(target=place, args=(key,)) for key in keys]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([True] * 16, known)
        self.assertLess(self.client.requests["read"], 16)

    def test_a_back_end_that_stands_still_holds_up_one_save_and_that_for_the_bound(self) -> None:
        made = self.waiting(0.3)
        instance = self.instance(cloud.CELL1, "h1")
        self.client.moving.clear()
        self.addCleanup(self.client.moving.set)
        first = self.placed(instance, "h2")
        self.assertLess(0.25, first)
        begun = time.monotonic()
        for number in range(20):
            self.placed(instance, f"h{3 + number}")
        # One that waited for each would take six seconds.
        self.assertLess(time.monotonic() - begun, 3.0)
        self.assertEqual(1, made.status().late_places)
        self.client.moving.set()
        self.until(lambda: self.known(instance) == "h22")
        self.until(lambda: not made._is_slow)
        self.placed(instance, "h1")
        self.assertEqual(("h1", 1), (self.known(instance), made.status().late_places))

    def test_nobody_waits_for_a_back_end_that_is_away(self) -> None:
        made = self.waiting(20.0)
        instance = self.instance(cloud.CELL1, "h1")
        self.client.faults.go_down()
        self.placed(instance, "h2")
        begun = time.monotonic()
        self.placed(instance, "h3")
        self.assertLess(time.monotonic() - begun, 10.0)
        self.client.faults.come_up()
        self.until(lambda: made.status().last_error is None)
        self.placed(instance, "h4")
        self.assertEqual("h4", self.known(instance))

    def test_a_server_that_is_deleted_and_a_migration_are_places(self) -> None:
        self.waiting(20.0)
        instance = self.instance(cloud.CELL1, "h1")
        migration = objects.Migration(
            self.context(cloud.CELL1),
            uuid="7d0f4a4e-4b0e-4a5a-9d6e-0a4b1f6f2c11",
            instance_uuid=instance.uuid,
            source_compute="h1",
            source_node="node-h1",
            dest_compute="h2",
            status="migrating",
            migration_type="migration",
        )
        migration.create()
        self.assertEqual(1, len(self.states(known_namespaces.MIGRATIONS)))
        instance.destroy()
        self.assertEqual({}, self.states(known_namespaces.INSTANCES))
        # It goes with its server: left behind, it would keep the server's claims.
        self.assertEqual({}, self.states(known_namespaces.MIGRATIONS))

    def test_a_back_end_that_is_always_slow_holds_up_no_save_after_the_first(self) -> None:
        made = self.waiting(0.3)
        instance = self.instance(cloud.CELL1, "h1")
        made.flush()
        made._is_slow = False
        self.client.delay_seconds = 0.25
        for number in range(6):
            self.placed(instance, f"h{2 + number}")
            # Each flush reads and writes, and so takes longer than the bound.
            self.until(lambda: made.status().queued == 0 and not made._flush_lock.locked())
        self.assertEqual(1, made.status().late_places)
        self.client.delay_seconds = 0.0
        self.placed(instance, "h8")
        self.until(lambda: not made._is_slow)
        self.placed(instance, "h9")
        self.assertEqual("h9", self.known(instance))

    def test_a_record_that_cannot_be_published_holds_up_nobody_elses_wait(self) -> None:
        made = self.waiting(20.0)
        instance, other = (self.instance(cloud.CELL1, "h1") for _ in range(2))
        made.flush()
        context_for = self.plugin.scopes.context_for

        def down(scope: str) -> Any:
            raise RuntimeError(f"no route to {scope}")

        self.plugin.scopes.context_for = down  # type: ignore[method-assign]
        self.placed(instance, "h2")
        self.plugin.scopes.context_for = context_for  # type: ignore[method-assign]
        self.assertEqual((1, False), (made.status().late_places, made._is_slow))
        self.placed(other, "h3")
        self.assertEqual("h3", self.known(other))

    def test_who_writes_the_same_behind_one_who_waits_does_not_hold_them_up(self) -> None:
        dirty = dirty_records.DirtyRecords(10, time.monotonic)
        keys = [records.RecordKey(known_namespaces.INSTANCES.name, "one")]
        known: list[bool] = []
        dirty.mark(cloud.CELL1, keys)
        waiter = threading.Thread(target=lambda: known.append(dirty.wait_published(keys, 20.0)))
        waiter.start()
        self.until(lambda: dirty._given_back._waiters)  # type: ignore[attr-defined]
        begun = time.monotonic()
        batch = dirty.take(10)
        dirty.mark(cloud.CELL1, keys)
        dirty.done(batch)
        waiter.join()
        self.assertEqual([True], known)
        self.assertLess(time.monotonic() - begun, 10.0)
        # The later write is yet to be published.
        self.assertFalse(dirty.wait_published(keys, 0.01))

    def test_within_a_transaction_it_is_not_read_before_the_end(self) -> None:
        made = self.waiting(20.0)
        instance = self.instance(cloud.CELL1, "h1")
        made.flush()

        @main_db.pick_context_manager_writer  # type: ignore[untyped-decorator]
        def save(context: Any) -> float:
            took = self.placed(instance, "h2")
            self.assertEqual("h1", self.known(instance))
            return took

        self.assertLess(save(instance._context), 10.0)
        self.until(lambda: self.known(instance) == "h2")


class PlaceOptionsTest(cloud.CloudCase):
    def test_only_where_records_answer_a_save_waits(self) -> None:
        for mode, bound in (("mirror", 0.0), ("store", 0.7), ("retired", 0.7)):
            self.override("compute_nodes", mode, nodb.GROUP)
            self.override("place_bound_seconds", 0.7, nodb.GROUP)
            self.assertEqual(bound, self.plugin._place_bound_seconds(), mode)


class RefusedNamesTest(ReporterCase):
    """A compute node chooses its row's uuid, and with it the name of its record."""

    def test_a_bad_name_among_good_ones_keeps_none_of_them_waiting(self) -> None:
        made = self.report(cloud.CELL1, cloud.CELL1)
        bad = self.compute_node(cloud.CELL1, "bad", uuid="a\nb")
        good = [self.compute_node(cloud.CELL1, f"h{n}") for n in range(20)]
        with self.assertLogs(publisher.LOG, "WARNING") as logged:
            made._turn()
        self.assertEqual(
            {node.uuid for node in good}, self.states(known_namespaces.COMPUTE_NODES).keys()
        )
        self.assertEqual((0, 0), (made.status().queued, made.status().failed_flushes))
        self.assertEqual(1, len(logged.output))
        self.assertIn("a\\nb", logged.output[0])
        bad.vcpus_used = 3
        bad.save()
        made._turn()
        self.assertEqual(0, made.status().queued)

    def test_its_cell_is_not_behind_and_is_said_to_lack_it_until_a_sweep_says_so(self) -> None:
        made = self.report(cloud.CELL1, cloud.CELL1)
        self.compute_node(cloud.CELL1, "bad", uuid="a\nb")
        made._turn()
        (beat,) = self.heartbeats().values()
        self.assertEqual({}, beat["behind_seconds"])
        self.assertEqual((1, [cloud.CELL1]), (beat["refused"], beat["unnamed"]))
        self.sweep(cloud.CELL1)
        made._last_beat = float("-inf")
        made._turn()
        (beat,) = self.heartbeats().values()
        self.assertEqual([], beat["unnamed"])
        swept = self.states(known_namespaces.CELLS)[cloud.CELL1]
        self.assertEqual(
            (1, ["compute_nodes/a\\nb"], []),
            (swept["unnamed"], swept["unnamed_examples"], swept["unpublishable"]),
        )

    def test_it_is_said_though_the_back_end_goes_away_behind_the_batch(self) -> None:
        made = self.report(cloud.CELL1, cloud.CELL1)
        made._turn()
        self.compute_node(cloud.CELL1, "bad", uuid="a\nb")
        with made._flush_lock:
            made._flush_records()
        self.client.faults.go_down()
        with self.assertRaises(errors.BackendUnavailable):
            made._turn()
        self.client.faults.come_up()
        made._turn()
        (beat,) = self.heartbeats().values()
        self.assertEqual([cloud.CELL1], beat["unnamed"])


class FaultTest(ReporterCase):
    def test_novas_writes_neither_fail_nor_wait_while_the_back_end_stands_still(self) -> None:
        nodes = [self.compute_node(cloud.CELL1, f"h{n}") for n in range(10)]

        def save(turns: int) -> None:
            for turn in range(turns):
                for node in nodes:
                    node.vcpus_used = turn
                    node.save()

        def called() -> int:
            """Return how many calls 20 saves take where no connection is made anew."""
            return min(counted_calls.count(save, 2) for _ in range(5))

        def waited() -> float:
            """Return for how long it was not at work in 200 saves."""
            worked, begun = time.thread_time(), time.monotonic()
            save(20)
            return time.monotonic() - begun - (time.thread_time() - worked)

        stock_called, stock_waited = called(), waited()
        made = self.running()
        self.client.moving.clear()
        self.addCleanup(self.client.moving.set)
        # The reporter's thread stands in a request for all of it: a save costs 29 calls more.
        self.assertLess(called() - stock_called, 20 * 40)
        self.assertLess(waited(), stock_waited * 3 + 2)
        self.assertEqual(10, made.status().queued)
        self.client.moving.set()
        self.until(lambda: made.status().queued == 0)
        rows = self.states(known_namespaces.COMPUTE_NODES)
        self.assertEqual({19}, {state["row"]["vcpus_used"] for state in rows.values()})

    def test_a_back_end_that_is_down_loses_nothing(self) -> None:
        made = self.running(cloud.CELL1, cloud.CELL1)
        self.client.faults.go_down()
        node, service = self.compute_node(cloud.CELL1, "h1"), self.service(cloud.CELL1, "h1")
        self.heartbeat(service)
        self.until(lambda: made.status().failed_flushes > 1)
        self.assertIn("is down", made.status().last_error or "")
        self.client.faults.come_up()
        made.flush()
        self.assertIn(node.uuid, self.states(known_namespaces.COMPUTE_NODES))
        state = self.states(known_namespaces.SERVICE_LIVENESS)[service.uuid]
        self.assertEqual((1, 0), (state["report_count"], state["unreported"]))

    def test_writes_of_unknown_outcome_are_settled(self) -> None:
        made = self.report()
        node = self.compute_node(cloud.CELL1, "h1")
        made.flush()
        for fault in (faults.Fault.REPLY_LOST, faults.Fault.REQUEST_LOST, faults.Fault.LATE):
            node.vcpus_used += 1
            node.save()
            self.client.faults.fail_next(fault)
            made.flush()
            self.hub.deliver_late()
            row = self.states(known_namespaces.COMPUTE_NODES)[node.uuid]["row"]
            self.assertEqual(node.vcpus_used, row["vcpus_used"], fault)

    def test_memory_is_bounded_and_a_loss_is_said_until_a_sweep_made_it_good(self) -> None:
        self.override("max_dirty_records", 100, "nodb_scheduler")
        asked: list[str] = []
        made = self.report(cloud.CELL1, cloud.CELL1)
        made.on_lost = asked.extend
        made._turn()
        self.client.faults.go_down()
        for number in range(101):
            made.mark(cloud.CELL1, known_namespaces.COMPUTE_NODES.name, [f"u{number}"])
        self.assertEqual(0, made.status().queued)
        self.client.faults.come_up()
        made._turn()
        self.assertEqual([cloud.CELL1], asked)
        (beat,) = self.heartbeats().values()
        self.assertEqual(change_reporter.LOST_SECONDS, beat["behind_seconds"][cloud.CELL1])
        # Said in every beat, not once: the rows are still unknown.
        made._last_beat = float("-inf")
        made._turn()
        (beat,) = self.heartbeats().values()
        self.assertIn(cloud.CELL1, beat["behind_seconds"])
        self.sweep(cloud.CELL1)
        made._last_beat = float("-inf")
        made._turn()
        (beat,) = self.heartbeats().values()
        self.assertEqual({}, beat["behind_seconds"])

    def test_a_reporter_that_lost_names_leaves_its_beat_behind(self) -> None:
        self.override("max_dirty_records", 100, "nodb_scheduler")
        made = self.running(cloud.CELL1)
        for number in range(101):
            made.mark(cloud.CELL1, known_namespaces.COMPUTE_NODES.name, [f"u{number}"])
        made.mark(cloud.CELL1, known_namespaces.COMPUTE_NODES.name, ["u"])
        self.until(self.heartbeats)
        made.stop()
        (beat,) = self.heartbeats().values()
        self.assertIn(cloud.CELL1, beat["behind_seconds"])


class LifeTest(ReporterCase):
    def test_the_end_of_a_process_publishes_what_is_left_and_takes_the_beat_away(self) -> None:
        made = self.running(cloud.CELL1, cloud.CELL1)
        made.ensure_started()
        self.until(self.heartbeats)
        node = self.compute_node(cloud.CELL1, "h1")
        made.stop()
        made.stop()
        self.assertIn(node.uuid, self.states(known_namespaces.COMPUTE_NODES))
        self.assertEqual({}, self.heartbeats())
        self.assertFalse(made.status().running)

    def leaving(self, meanwhile: Any) -> change_reporter.ChangeReporter:
        """Return a reporter that has something happen as soon as its beat is taken away."""
        made = self.running(cloud.CELL1, cloud.CELL1)
        made.ensure_started()
        self.until(self.heartbeats)
        own, left = made._beat_publisher.publish, []

        def publish(updates: Any) -> Any:
            done = own(updates)
            if made._stop.is_set() and not left:
                left.append(meanwhile())
            return done

        patcher = mock.patch.object(made._beat_publisher, "publish", publish)
        patcher.start()
        self.addCleanup(patcher.stop)
        return made

    def test_what_is_written_as_the_beat_is_taken_away_is_published_yet(self) -> None:
        made = self.leaving(lambda: self.compute_node(cloud.CELL1, "h1"))
        made.stop()
        self.assertEqual(1, len(self.states(known_namespaces.COMPUTE_NODES)))
        self.assertEqual({}, self.heartbeats())

    def test_what_is_written_behind_the_thread_s_end_is_published_yet(self) -> None:
        made = self.running(cloud.CELL1, cloud.CELL1)
        company = mock.Mock()
        company.stop = lambda: self.compute_node(cloud.CELL1, "h1")
        made.make_company = lambda: company
        made.ensure_started()
        self.until(self.heartbeats)
        made.stop()
        self.assertEqual(1, len(self.states(known_namespaces.COMPUTE_NODES)))
        self.assertEqual({}, self.heartbeats())
        self.assertFalse(made.status().running)

    def test_what_cannot_be_published_behind_the_last_beat_has_it_said_again(self) -> None:
        def write_and_fail() -> None:
            self.compute_node(cloud.CELL1, "h1")
            patcher = mock.patch.object(
                made._rows, "publish", autospec=True, side_effect=OSError("database")
            )
            patcher.start()
            self.addCleanup(patcher.stop)

        made = self.leaving(write_and_fail)
        made.stop()
        self.assertEqual({}, self.states(known_namespaces.COMPUTE_NODES))
        (beat,) = self.heartbeats().values()
        self.assertIn(cloud.CELL1, beat["behind_seconds"])

    def test_the_end_is_bounded_when_the_back_end_stands_still(self) -> None:
        self.override("exit_flush_seconds", 0.2, "nodb_scheduler")
        made = self.running()
        self.compute_node(cloud.CELL1, "h1")
        self.client.moving.clear()
        self.addCleanup(self.client.moving.set)
        started = time.monotonic()
        made.stop()
        self.assertLess(time.monotonic() - started, 5.0)

    def test_a_child_reports_under_its_own_name_by_its_own_connection(self) -> None:
        def make() -> change_reporter.ChangeReporter:
            return self.plugin.reporter("api", lambda: change_reporter.EVERY_CELL)

        parent = make()
        change_reporter.install(parent, self.plugin.scopes, make)
        self.addCleanup(change_reporter.install, None, None)
        self.addCleanup(parent.stop)
        self.compute_node(cloud.CELL1, "h1")
        self.until(lambda: parent.status().queued == 0)
        # The worst moment to fork: every lock of the parent's reporter is held; taken in its
        # own order, for its thread may be about to beat.
        read, write = os.pipe()
        with parent._start_lock, parent._flush_lock, parent._dirty._lock:
            pid = os.fork()
            if pid == 0:
                code = b"failed"
                try:
                    node = self.compute_node(cloud.CELL1, "h2")
                    child = change_reporter._reporter
                    assert child is not None and child is not parent
                    self.until(lambda: child.status().queued == 0 and child.identity)
                    assert node.uuid in self.states(known_namespaces.COMPUTE_NODES)
                    assert parent.identity is not None
                    assert child.identity.reporter_id != parent.identity.reporter_id
                    assert child.identity.pid == os.getpid()
                    assert child._synchronizer is not parent._synchronizer
                    code = b"reported"
                finally:
                    os.write(write, code)
                    os._exit(0)
        os.close(write)
        self.assertEqual(b"reported", os.read(read, 100))
        os.waitpid(pid, 0)
        os.close(read)

    def test_a_process_for_one_command_sends_no_beats_and_does_not_spin(self) -> None:
        made = self.plugin.reporter("manage", lambda: change_reporter.EVERY_CELL, heartbeats=False)
        turns = []
        turn = made._turn
        made._turn = lambda: (turns.append(1), turn())  # type: ignore
        made.ensure_started()
        time.sleep(0.5)
        made.stop()
        self.assertLess(len(turns), 4)
        self.assertEqual({}, self.heartbeats())


class OrderOfWritersTest(ReporterCase):
    """Two conductors handle one host's saves, and publish in any order."""

    @hypothesis.settings(
        max_examples=40,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(
        steps=st.lists(
            st.tuples(
                st.sampled_from(["save", "delete", "undelete", "flush", "flush across"]),
                st.integers(0, 1),
            ),
            min_size=3,
            max_size=14,
        )
    )
    def test_no_interleaving_leaves_an_older_row(self, steps: list[tuple[str, int]]) -> None:
        context = self.context(cloud.CELL1)
        self.hub.begin_epoch()
        with main_db.get_context_manager(context).writer.using(context) as session:
            session.query(main_db.models.ComputeNode).delete()
        change_reporter.install(None, None)
        node = self.compute_node(cloud.CELL1, "h1")
        pair = [self.plugin.reporter("conductor", lambda: cloud.CELL1) for _ in range(2)]
        for each in pair:
            self.quiet(each)
        pair[0].mark(cloud.CELL1, known_namespaces.COMPUTE_NODES.name, [node.uuid])
        number = 0

        def write(values: dict[str, Any]) -> None:
            with main_db.get_context_manager(context).writer.using(context) as session:
                session.query(main_db.models.ComputeNode).update(values)

        def act(step: str, who: int) -> None:
            nonlocal number
            if step == "save":
                number += 1
                write({"vcpus_used": number})
            elif step == "delete":
                write({"deleted": node.id})
            elif step == "undelete":
                write({"deleted": 0})
            pair[who].mark(cloud.CELL1, known_namespaces.COMPUTE_NODES.name, [node.uuid])

        for step, who in steps:
            if step == "flush":
                pair[who].flush()
            elif step == "flush across":
                # The other one changes the row and publishes it, whole, between
                # this one's reading of the row and its write.
                save = functools.partial(act, "save", 1 - who)
                _Across(pair[who], pair[1 - who], save).flush()
            else:
                act(step, who)
        for each in pair:
            each.flush()
        rows = nova_tables.read_compute_nodes(context, cloud.CELL1, [node.uuid])
        hypothesis.event("deleted in the end" if not rows else "there in the end")
        held = self.states(known_namespaces.COMPUTE_NODES)
        self.assertEqual(
            {uuid: state["row"]["vcpus_used"] for uuid, state in rows.items()},
            {uuid: state["row"]["vcpus_used"] for uuid, state in held.items()},
        )

    def test_a_deletion_between_reading_and_creating_stays_a_deletion(self) -> None:
        pair = [self.plugin.reporter("conductor", lambda: cloud.CELL1) for _ in range(2)]
        for each in pair:
            self.quiet(each)
        change_reporter.install(pair[0], self.plugin.scopes)
        self.addCleanup(change_reporter.install, None, None)
        node = self.compute_node(cloud.CELL1, "h1")

        def delete() -> None:
            change_reporter.install(pair[1], self.plugin.scopes)
            node.destroy()

        _Across(pair[0], pair[1], delete).flush()
        self.assertEqual({}, self.states(known_namespaces.COMPUTE_NODES))


class _Across:
    """Lets another reporter act and publish between one's read and its write."""

    def __init__(
        self, one: change_reporter.ChangeReporter, other: change_reporter.ChangeReporter, act: Any
    ) -> None:
        self._one, self._other, self._act = one, other, act
        self._client = one._synchronizer

    def flush(self) -> None:
        write = self._client.write
        acted = False

        def writing(*args: Any, **kwargs: Any) -> Any:
            nonlocal acted
            if not acted:
                acted = True
                self._act()
                self._other.flush()
            return write(*args, **kwargs)

        self._client.write = writing  # type: ignore[method-assign]
        try:
            self._one.flush()
        finally:
            del self._client.write  # type: ignore[attr-defined]


class UnreportedTest(ReporterCase):
    """The arithmetic of heartbeats that nobody saw."""

    def setUp(self) -> None:
        super().setUp()
        self.pair = [self.plugin.reporter("conductor", lambda: cloud.CELL1) for _ in range(2)]
        for each in self.pair:
            self.quiet(each)
        self.use(0)
        self.made = self.service(cloud.CELL1, "h1")
        self.pair[0].flush()

    def use(self, who: int | None) -> None:
        change_reporter.install(None if who is None else self.pair[who], self.plugin.scopes)
        self.addCleanup(change_reporter.install, None, None)

    def beat(self, who: int | None) -> None:
        self.use(who)
        self.heartbeat(self.made)

    def unreported(self) -> int:
        return int(self.states(known_namespaces.SERVICE_LIVENESS)[self.made.uuid]["unreported"])

    def test_batches_that_cross_are_nothing_missing_in_the_end(self) -> None:
        self.beat(0)
        self.beat(1)
        self.pair[1].flush()
        self.assertEqual(1, self.unreported())
        self.pair[0].flush()
        self.assertEqual(0, self.unreported())

    def test_each_heartbeat_through_a_stock_conductor_is_counted(self) -> None:
        self.beat(None)
        self.beat(None)
        self.beat(0)
        self.pair[0].flush()
        self.assertEqual(2, self.unreported())

    def test_a_sweep_counts_them_too_when_nobody_reports_any(self) -> None:
        for _ in range(3):
            self.beat(None)
        self.sweep(cloud.CELL1)
        self.assertEqual(3, self.unreported())
        # Found by this walk, so not excused by it: others may have been missed
        # in what it had walked before.
        self.sweep(cloud.CELL1)
        self.assertEqual(0, self.unreported())

    def beat_long_ago(self, times: int) -> None:
        """Beat through a stock conductor."""
        past = timeutils.utcnow() - _LONG
        with mock.patch.object(timeutils, "utcnow", autospec=True, return_value=past):
            for _ in range(times):
                self.beat(None)

    def test_a_sweep_that_does_not_reach_its_end_excuses_nothing(self) -> None:
        def broken(*_args: Any) -> Any:
            raise RuntimeError("no such page")

        self.beat_long_ago(1)
        names = [each.namespace for each in nova_tables.CELL_TABLES]
        self.assertLess(
            names.index(known_namespaces.SERVICE_LIVENESS.name),
            names.index(known_namespaces.INSTANCES.name),
        )
        cut = tuple(
            attrs.evolve(each, select=broken)
            if each.namespace == known_namespaces.INSTANCES.name
            else each
            for each in nova_tables.CELL_TABLES
        )
        with mock.patch.object(nova_tables, "CELL_TABLES", cut):
            self.assertRaises(RuntimeError, self.sweep, cloud.CELL1)
        self.assertEqual(1, self.unreported())
        self.sweep(cloud.CELL1)
        self.assertEqual(0, self.unreported())

    def made_good(self, heartbeats: int) -> None:
        self.beat_long_ago(heartbeats)
        self.sweep(cloud.CELL1)
        self.assertEqual(0, self.unreported())
        self.beat(0)
        self.pair[0].flush()
        self.assert_next_is_counted()

    def assert_next_is_counted(self) -> None:
        """See that none is unreported, and that the next one through a stock conductor is."""
        self.assertEqual(0, self.unreported())
        self.beat(None)
        self.beat(0)
        self.pair[0].flush()
        self.assertEqual(1, self.unreported())

    def test_a_sweep_makes_good_what_was_heard_long_before_it(self) -> None:
        self.made_good(1)

    def test_a_sweep_makes_good_several_heartbeats_too(self) -> None:
        self.made_good(3)

    def test_a_sweep_beside_a_heartbeat_in_a_queue_counts_nothing(self) -> None:
        self.beat(0)
        self.sweep(cloud.CELL1)
        self.pair[0].flush()
        self.assertEqual(0, self.unreported())

    def test_a_batch_merged_twice_does_not_hide_later_ones(self) -> None:
        self.beat(0)
        # The reply is lost and another conductor writes in between.
        self.clients[-2].faults.fail_next(faults.Fault.REPLY_LOST)
        write = self.clients[-2].write

        def writing(*args: Any, **kwargs: Any) -> Any:
            results = write(*args, **kwargs)
            self.clients[-2].write = write  # type: ignore[method-assign]
            self.beat(1)
            self.pair[1].flush()
            return results

        self.clients[-2].write = writing  # type: ignore[method-assign]
        self.pair[0].flush()
        self.assert_next_is_counted()

    def test_a_forged_count_makes_none_unreported_and_the_service_is_heard_behind_it(self) -> None:
        forger = objects.Service.get_by_uuid(self.context(cloud.CELL1), self.made.uuid)
        forger.report_count = 2**31 - 1
        forger.save()
        self.pair[0].flush()
        self.assertEqual(0, self.unreported())
        self.beat(0)
        self.pair[0].flush()
        self.assert_next_is_counted()

    def test_a_sweep_that_meets_a_forged_count_makes_none_unreported(self) -> None:
        forger = objects.Service.get_by_uuid(self.context(cloud.CELL1), self.made.uuid)
        self.use(None)
        forger.report_count = 2**31 - 1
        forger.save()
        self.sweep(cloud.CELL1)
        self.assertEqual(0, self.unreported())

    def test_a_row_published_after_its_first_heartbeat_hides_none(self) -> None:
        self.use(0)
        other = self.service(cloud.CELL1, "h2")
        self.heartbeat(other)
        # The row is published with its count before the heartbeat is merged.
        with self.pair[0]._flush_lock:
            self.pair[0]._open()
            self.pair[0]._flush_records()
        self.pair[0].flush()
        self.use(None)
        self.heartbeat(other)
        self.use(0)
        self.heartbeat(other)
        self.pair[0].flush()
        state = self.states(known_namespaces.SERVICE_LIVENESS)[other.uuid]
        self.assertEqual(1, state["unreported"])
