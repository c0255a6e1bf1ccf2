# SPDX-License-Identifier: Apache-2.0
"""Heartbeats that reach no database are seen by every reader, and lost by no fault."""

from __future__ import annotations

import datetime as dt
import threading
from typing import Any
from unittest import mock

from nova import exception as nova_exception
from nova import objects, servicegroup
from nova.conductor import manager as nova_conductor
from nova.db.main import api as main_db
from nova.objects import base as nova_base
from oslo_utils import fixture as time_fixture
from oslo_utils import timeutils

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.liveness import (
    heartbeat_modes,
    heartbeat_reader,
    heartbeat_writer,
    service_heartbeats,
)
from nova_nodb_scheduler.nova_adapter.reporting import scope_transfer
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.drivers.memory import faults
from nova_nodb_scheduler.synchronizer.migration import migration_fence
from tests.functional.nova_adapter import cloud

_DOWN_SECONDS = 61


def now() -> dt.datetime:
    """Return the time of the processes' clocks."""
    return timeutils.utcnow().replace(tzinfo=dt.UTC)


class HeartbeatCase(cloud.CloudCase):
    """One conductor of cell1 in this process, and whoever reads."""

    MODE = "store"

    def setUp(self) -> None:
        super().setUp()
        self.override("service_heartbeats", self.MODE, "nodb_scheduler")
        self.override("heartbeat_flush_interval_seconds", 0.05, "nodb_scheduler")
        self.clock = self.useFixture(time_fixture.TimeFixture())
        # The back end's own clock, which goes with the processes' unless a test sets it.
        self.backend_ahead_seconds = 0.0
        self.hub._clock = lambda: timeutils.utcnow_ts(microsecond=True) + self.backend_ahead_seconds
        self.reporter = self.report(cloud.CELL1, cloud.CELL1)
        self.storage = self.conduct()
        self.read_anew()
        objects.Service.enable_min_version_cache()
        self.addCleanup(setattr, objects.Service, "_SERVICE_VERSION_CACHING", False)
        self.addCleanup(objects.Service.clear_min_version_cache)
        self.up = servicegroup.API().service_is_up

    def useFixture(self, fixture: Any) -> Any:
        fixture.setUp()
        self.addCleanup(fixture.cleanUp)
        return fixture

    def conduct(self) -> service_heartbeats.HeartbeatStorage:
        """Make this process a conductor that stores."""
        storage = self.plugin.heartbeat_storage()
        self.addCleanup(storage.writer.stop)
        service_heartbeats.install_storage(storage)
        self.addCleanup(service_heartbeats.install_storage, None)
        self.step(storage)
        return storage

    def step(self, storage: service_heartbeats.HeartbeatStorage) -> None:
        """Let a conductor look at the mode as often as it may take to come to its own."""
        for _ in range(3):
            storage.keeper.keep(self.synchronizer, "own")

    def read_anew(self) -> heartbeat_reader.HeartbeatReader:
        """Begin to read as a process that has just started."""
        self.addCleanup(service_heartbeats.install_reader, None)
        service_heartbeats.install_reader(
            lambda: heartbeat_reader.HeartbeatReader(
                self.plugin.make_synchronizer,
                heartbeat_modes.HeartbeatMode(self.plugin.options.service_heartbeats),
                heartbeat_reader.ReaderOptions(
                    down_seconds=_DOWN_SECONDS, pause_seconds=0, idle_seconds=0
                ),
                clock=lambda: timeutils.utcnow_ts(microsecond=True),
                utcnow=now,
            )
        )
        made = service_heartbeats.reader()
        assert made is not None
        return made

    def cut_off(self, synchronizer: Any) -> None:
        """Cut one client off from the back end, and nobody else."""
        synchronizer.inner.faults.go_down()

    def reader_synchronizer(self) -> Any:
        made = service_heartbeats.reader()
        assert made is not None
        return made._opened()

    def living(self, host: str = "h1") -> Any:
        """Create a compute service whose record is known, as nova-compute holds it."""
        service = self.service(cloud.CELL1, host)
        self.reporter.flush()
        self.beat(service)
        return service

    def beat(self, service: Any, after_seconds: float = 10.0) -> None:
        """Send a heartbeat as nova-compute does: by RPC to the conductor."""
        self.clock.advance_time_seconds(after_seconds)
        self.keep_trusted()
        service.report_count += 1
        sent = nova_base.NovaObject.obj_from_primitive(
            service.obj_to_primitive(), context=service._context
        )
        updates, _ = nova_conductor.ConductorManager.object_action(
            self,
            sent._context,
            sent,
            "save",
            (),
            {},  # type: ignore[arg-type]
        )
        for name, value in updates.items():
            if name != "obj_what_changed":
                setattr(service, name, service.fields[name].from_primitive(service, name, value))
        service.obj_reset_changes()
        self.assertEqual(set(), updates["obj_what_changed"])

    def _object_dispatch(self, target: Any, method: str, args: Any, kwargs: Any) -> Any:
        return getattr(target, method)(*args, **kwargs)

    def keep_trusted(self) -> None:
        """What a conductor's beats do every three seconds."""
        try:
            self.storage.keeper.keep(self.synchronizer, "own")
        except Exception:
            return

    def found(self, service: Any) -> Any:
        return objects.Service.get_by_uuid(self.context(cloud.CELL1), service.uuid)

    def row(self, service: Any) -> Any:
        return main_db.service_get(self.context(cloud.CELL1), service.id)

    def liveness(self, service: Any) -> Any:
        return self.states(known_namespaces.SERVICE_LIVENESS)[service.uuid]


class StoredHeartbeatTest(HeartbeatCase):
    def test_a_heartbeat_sends_no_statement(self) -> None:
        service = self.living()
        row = dict(self.row(service))
        with self.statements() as statements:
            for _ in range(3):
                self.beat(service)
        self.assertEqual([], statements.seen)
        self.assertEqual(row, dict(self.row(service)))
        state = self.liveness(service)
        self.assertEqual(
            (4, 4, 0), (state["report_count"], state["unwritten"], state["unreported"])
        )

    def test_stock_sends_two(self) -> None:
        service_heartbeats.install_storage(None)
        service = self.living()
        with self.statements() as statements:
            self.beat(service)
        self.assertEqual(2, len(statements.of("services")))

    def test_nova_compute_is_told_what_stock_tells_it(self) -> None:
        service = self.living()
        self.beat(service)
        self.assertEqual(2, service.report_count)
        for told in (service.last_seen_up, service.updated_at):
            self.assertLess(abs(told - now()), dt.timedelta(seconds=1))

    def test_nova_compute_reads_the_row_whatever_was_published_of_it(self) -> None:
        service = self.living()
        # As nova-api does, whose reporter does not get through to the back end.
        found = self.found(service)
        found.disabled = True
        found.save()
        published = self.states(known_namespaces.SERVICES)[service.uuid]["row"]
        told = objects.Service.get_by_compute_host(self.context(cloud.CELL1), service.host)
        self.assertEqual((False, True), (bool(published["disabled"]), told.disabled))

    def test_every_reader_finds_it(self) -> None:
        service = self.living()
        for _ in range(10):
            self.beat(service)
        context, uuid = self.context(cloud.CELL1), service.uuid
        readers = {
            "id": lambda: objects.Service.get_by_id(context, service.id),
            "uuid": lambda: objects.Service.get_by_uuid(context, uuid),
            "host and topic": lambda: objects.Service.get_by_host_and_topic(
                context, "h1", "compute"
            ),
            "host and binary": lambda: objects.Service.get_by_host_and_binary(
                context, "h1", "nova-compute"
            ),
            "compute host": lambda: objects.Service.get_by_compute_host(context, "h1"),
            "args": lambda: objects.Service.get_by_args(context, "h1", "nova-compute"),
            "all": lambda: objects.ServiceList.get_all(context)[0],
            "topic": lambda: objects.ServiceList.get_by_topic(context, "compute")[0],
            "binary": lambda: objects.ServiceList.get_by_binary(context, "nova-compute")[0],
            "host": lambda: objects.ServiceList.get_by_host(context, "h1")[0],
        }
        for name, read in readers.items():
            with self.subTest(name):
                found = read()
                self.assertTrue(self.up(found))
                self.assertEqual(11, found.report_count)
                for told in (found.last_seen_up, found.updated_at):
                    self.assertLess(abs(told - now()), dt.timedelta(seconds=1))
                self.assertEqual(set(), found.obj_what_changed())
        self.clock.advance_time_seconds(_DOWN_SECONDS)
        for name, read in readers.items():
            with self.subTest(name):
                self.assertFalse(self.up(read()))

    def test_the_services_of_servers_hosts_are_told_in_one_read(self) -> None:
        for number in range(3):
            service = self.living(f"h{number}")
            for _ in range(10):
                self.beat(service)
            self.instance(cloud.CELL1, f"h{number}", vm_state="active")
        context = self.context(cloud.CELL1)
        self.found(service)
        made = self.reader_synchronizer()
        reads: list[int] = []
        inner = made.inner.read
        made.inner.read = lambda keys: (reads.append(len(keys)), inner(keys))[1]
        found = objects.InstanceList.get_by_filters(context, {}, expected_attrs=["services"])
        self.assertEqual((3, [5]), (len(found), reads))
        self.assertEqual({11}, {each.services[0].report_count for each in found})
        [latest] = [each for each in found if each.host == "h2"]
        self.assertTrue(self.up(latest.services[0]))
        # And those that are asked for later, one by one.
        single = objects.Instance.get_by_uuid(context, latest.uuid)
        self.assertEqual(11, single.services[0].report_count)
        # Without services nothing is read.
        del reads[:]
        objects.InstanceList.get_by_filters(context, {})
        self.assertEqual([], reads)

    def test_a_damaged_record_makes_nobody_dead(self) -> None:
        service = self.living()
        for _ in range(10):
            self.beat(service)
        self.assertTrue(self.up(self.found(service)))
        key = records.RecordKey(known_namespaces.SERVICE_LIVENESS.name, service.uuid)
        standing = self.synchronizer.read([key])[key]
        [result] = self.synchronizer.write([records.Write(key, standing.revision, b"?")])
        self.assertTrue(result.won)
        self.clock.advance_time_seconds(3_600)
        self.assertTrue(self.up(self.found(service)))

    def test_a_list_of_services_is_one_read_of_the_back_end(self) -> None:
        for number in range(5):
            self.beat(self.living(f"h{number}"))
        self.assertTrue(self.up(objects.ServiceList.get_all(self.context(cloud.CELL1))[4]))
        made = self.reader_synchronizer()
        reads: list[int] = []
        inner = made.inner.read
        made.inner.read = lambda keys: (reads.append(len(keys)), inner(keys))[1]
        found = objects.ServiceList.get_all(self.context(cloud.CELL1))
        self.assertEqual((5, [7]), (len(found), reads))

    def test_what_is_no_heartbeat_alone_reaches_the_row(self) -> None:
        service = self.living()
        for _ in range(3):
            self.beat(service)
        service.report_count += 1
        service.disabled = True
        service.save()
        row = self.row(service)
        self.assertEqual((True, 5), (bool(row.disabled), row.report_count))
        found = self.found(service)
        found.forced_down = True
        found.save()
        self.assertTrue(self.row(service).forced_down)
        self.assertFalse(self.up(self.found(service)))
        # And what an API tells of a service that it changed is the service's state.
        self.beat(service)
        found = self.found(service)
        found.forced_down = False
        found.save()
        self.assertTrue(self.up(found))

    def test_another_version_reaches_the_row(self) -> None:
        service = self.living()
        main_db.service_update(self.context(cloud.CELL1), service.id, {"version": 1})
        self.sweep(cloud.CELL1)
        service.version = objects.service.SERVICE_VERSION
        self.beat(service)
        self.assertEqual(objects.service.SERVICE_VERSION, self.row(service).version)
        self.reporter.flush()
        self.sweep(cloud.CELL1)
        # The same one is no change.
        service.version = objects.service.SERVICE_VERSION
        with self.statements() as statements:
            self.beat(service)
        self.assertEqual([], statements.seen)

    def test_a_deleted_service_is_not_found(self) -> None:
        service = self.living()
        self.found(service).destroy()
        self.reporter.flush()
        with self.assertRaises(nova_exception.ServiceNotFound):
            self.beat(service)

    def test_other_services_and_other_cells_write_rows(self) -> None:
        scheduler = self.service(cloud.CELL1, "h1", "nova-scheduler")
        elsewhere = self.service(cloud.CELL2, "h2")
        self.reporter.flush()
        for service in (scheduler, elsewhere):
            self.heartbeat(service)
            with self.statements() as statements:
                self.heartbeat(service)
            self.assertEqual(2, len(statements.of("services")))

    def test_a_service_that_starts_again_goes_on_counting(self) -> None:
        service = self.living()
        for _ in range(100):
            self.beat(service)
        again = objects.Service.get_by_host_and_binary(
            self.context(cloud.CELL1), "h1", "nova-compute"
        )
        self.assertEqual(101, again.report_count)
        with self.statements() as statements:
            self.beat(again)
        self.assertEqual([], statements.seen)
        self.assertEqual(0, self.liveness(service)["unreported"])

    def test_a_sweep_leaves_alone_what_its_row_lags_behind(self) -> None:
        service = self.living()
        for _ in range(100):
            self.beat(service)
        before = self.liveness(service)
        # Silent for so long that a lower count would be another numbering.
        self.clock.advance_time_seconds(3_600)
        self.sweep(cloud.CELL1)
        self.assertEqual(before, self.liveness(service))
        found = scope_transfer.compare_scope(self.synchronizer, self.plugin.scopes, cloud.CELL1)
        self.assertTrue(found["service_liveness"].clean)

    def test_many_at_once_share_their_writes(self) -> None:
        services = [self.living(f"h{number}") for number in range(12)]
        writes = []
        made = self.storage.writer._synchronizer
        inner = made.inner.write  # type: ignore[attr-defined]
        made.inner.write = lambda batch: (writes.append(len(batch)), inner(batch))[1]  # type: ignore[attr-defined]
        self.keep_trusted()
        for service in services:
            service.report_count += 1
        threads = [threading.Thread(target=service.save) for service in services]
        with self.statements() as statements:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual([], statements.seen)
        self.assertEqual(12, sum(writes))
        self.assertLessEqual(len(writes), 4)


class FaultTest(HeartbeatCase):
    def test_a_reader_that_alone_is_cut_off_takes_nobody_for_dead(self) -> None:
        living, dead = self.living("h1"), self.living("h2")
        self.clock.advance_time_seconds(_DOWN_SECONDS)
        self.beat(living)
        self.assertEqual([True, False], [self.up(self.found(each)) for each in (living, dead)])
        reader = service_heartbeats.reader()
        assert reader is not None
        self.cut_off(self.reader_synchronizer())
        with self.assertLogs(heartbeat_reader.LOG, "WARNING") as logged:
            for _ in range(30):
                self.beat(living)
                self.assertEqual(
                    [True, False], [self.up(self.found(each)) for each in (living, dead)]
                )
        self.assertEqual(1, len(logged.output))
        self.assertGreater(reader.figures().blind_seconds, 280)
        self.assertGreater(reader.figures().blindly_told, 0)
        self.reader_synchronizer().inner.faults.come_up()
        self.clock.advance_time_seconds(_DOWN_SECONDS)
        # It sees again, and that nobody was heard of since.
        self.assertEqual([False, False], [self.up(self.found(each)) for each in (living, dead)])
        self.assertEqual(0, reader.figures().blind_seconds)

    def test_a_reader_that_starts_blind_takes_nobody_for_dead(self) -> None:
        service = self.living()
        for _ in range(20):
            self.beat(service)
        self.read_anew()
        self.hub.faults.go_down()
        self.assertTrue(self.up(self.found(service)))

    def test_the_back_end_is_down_and_rows_are_written(self) -> None:
        living, dead = self.living("h1"), self.living("h2")
        for _ in range(20):
            self.beat(living)
        self.assertEqual([True, False], [self.up(self.found(each)) for each in (living, dead)])
        self.hub.faults.go_down()
        with self.assertLogs(heartbeat_writer.LOG, "WARNING"):
            for _ in range(10):
                self.beat(living)
                self.assertEqual(
                    [True, False], [self.up(self.found(each)) for each in (living, dead)]
                )
        self.assertEqual(31, self.row(living).report_count)
        self.hub.faults.come_up()
        self.assertEqual([True, False], [self.up(self.found(each)) for each in (living, dead)])
        self.storage.writer._not_before = float("-inf")
        self.beat(living)
        with self.statements() as statements:
            self.beat(living)
        self.assertEqual([], statements.seen)
        self.reporter.flush()
        state = self.liveness(living)
        self.assertEqual((33, 0), (state["report_count"], state["unreported"]))
        self.assertTrue(self.up(self.found(living)))

    def test_a_conductor_killed_behind_its_publication_loses_nothing(self) -> None:
        service = self.living()
        # What a conductor does until it dies: nova-compute is never answered.
        service.report_count += 1
        self.clock.advance_time_seconds(10)
        self.keep_trusted()
        self.assertTrue(self.storage.writer.store(self.heard(service)))
        self.assertEqual(2, self.found(service).report_count)
        self.storage.writer.stop()
        self.storage = self.conduct()
        self.beat(service)
        self.assertEqual((3, 0), (self.found(service).report_count, self.unreported(service)))
        # Or before it: that heartbeat is one that no reporter saw, as in stock.
        service.report_count += 1
        self.beat(service)
        self.assertEqual((5, 1), (self.found(service).report_count, self.unreported(service)))

    def heard(self, service: Any) -> heartbeat_writer.ServiceHeartbeat:
        return heartbeat_writer.ServiceHeartbeat(
            service.uuid,
            cloud.CELL1,
            service.report_count,
            service.version,
            timeutils.utcnow().isoformat(),
            timeutils.utcnow_ts(microsecond=True),
        )

    def unreported(self, service: Any) -> int:
        return int(self.liveness(service)["unreported"])

    def test_of_a_lost_answer_the_heartbeat_is_told_by_a_read(self) -> None:
        for fault in (faults.Fault.REPLY_LOST, faults.Fault.REQUEST_LOST):
            with self.subTest(fault.value):
                service = self.living(fault.value)
                made: Any = self.storage.writer._synchronizer
                made.inner.faults.fail_next(fault)
                with self.statements() as statements:
                    self.beat(service)
                self.assertEqual([], statements.seen)
                state = self.liveness(service)
                self.assertEqual((2, 0), (state["report_count"], state["unreported"]))

    def test_two_conductors_hear_a_service_in_turns_and_their_clocks_differ(self) -> None:
        service = self.living()
        first, second = self.storage, self.plugin.heartbeat_storage()
        self.addCleanup(second.writer.stop)
        self.step(second)
        for number in range(12):
            self.clock.advance_time_seconds(10)
            # One conductor's clock is ten minutes ahead; time goes on alike.
            ahead = 600.0 if number % 2 else 0.0
            storage = second if number % 2 else first
            self.step(storage)
            service_heartbeats.install_storage(storage)
            service.report_count += 1
            self.clock.advance_time_seconds(ahead)
            self.backend_ahead_seconds -= ahead
            service.save()
            self.clock.advance_time_seconds(-ahead)
            self.backend_ahead_seconds += ahead
            self.assertTrue(self.up(self.found(service)))
        self.clock.advance_time_seconds(_DOWN_SECONDS)
        self.assertFalse(self.up(self.found(service)))

    def test_a_readers_own_clock_may_be_wrong(self) -> None:
        service = self.living()
        self.beat(service)
        self.backend_ahead_seconds = -7_200.0
        self.beat(service)
        self.assertTrue(self.up(self.found(service)))
        self.backend_ahead_seconds = 7_200.0
        self.beat(service)
        self.assertTrue(self.up(self.found(service)))

    def test_an_emptied_back_end_calls_nobody_dead(self) -> None:
        service = self.living()
        for _ in range(20):
            self.beat(service)
        self.assertTrue(self.up(self.found(service)))
        self.synchronizer.reset()
        self.assertTrue(self.up(self.found(service)))
        self.read_anew()
        self.assertTrue(self.up(self.found(service)))
        # Its next heartbeat finds no record and is written; a sweep makes one.
        self.step(self.storage)
        self.assertTrue(self.up(self.found(service)))
        self.beat(service)
        self.assertEqual(22, self.row(service).report_count)
        self.assertTrue(self.up(self.found(service)))
        self.sweep(cloud.CELL1)
        self.step(self.storage)
        self.beat(service)
        with self.statements() as statements:
            self.beat(service)
        self.assertEqual([], statements.seen)
        self.assertTrue(self.up(self.found(service)))

    def test_records_that_were_moved_elsewhere_are_not_believed(self) -> None:
        service = self.living()
        self.beat(service)
        self.assertTrue(self.up(self.found(service)))
        inner = self.reader_synchronizer().inner
        migration_fence.set_mark(inner, migration_fence.FencePlace.MOVED, "m", "etcd")
        self.clock.advance_time_seconds(3_600)
        self.assertTrue(self.up(self.found(service)))

    def test_a_service_started_while_its_count_was_unknown_is_seen(self) -> None:
        service = self.living()
        for _ in range(200):
            self.beat(service)
        # Its conductor is cut off and knows nothing: it begins at its row's count.
        self.hub.faults.go_down()
        self.read_anew()
        service = self.found(service)
        self.assertEqual(0, service.report_count)
        self.beat(service)
        self.hub.faults.come_up()
        self.assertTrue(self.up(self.found(service)))
        self.storage.writer._not_before = float("-inf")
        for _ in range(60):
            self.beat(service)
            self.assertTrue(self.up(self.found(service)))
        # It has come to a numbering of its own, and is stored again.
        with self.statements() as statements:
            self.beat(service)
        self.assertEqual([], statements.seen)

    def test_one_hostile_record_harms_no_other_service(self) -> None:
        hostile, service = self.living("h0"), self.living()
        for _ in range(20):
            self.beat(service)
        key = records.RecordKey(known_namespaces.SERVICE_LIVENESS.name, hostile.uuid)
        sane = dict(self.liveness(hostile))
        for name, value in (("seen_at", -1e300), ("last_seen_up", "0001-01-01T00:00:00+23:59")):
            state = {**sane, "seen_at": None, name: value}
            self.plugin.publisher(self.synchronizer, known_namespaces.NOVA).publish(
                {key: lambda current, state=state: state}
            )
            with self.subTest(name):
                self.beat(service)
                found = objects.ServiceList.get_all(self.context(cloud.CELL1))
                self.assertTrue({x.host: self.up(x) for x in found}["h1"])
                self.assertEqual(0.0, service_heartbeats.figures()["heartbeats_blind_seconds"])

    def test_a_record_without_its_count_harms_no_other_service(self) -> None:
        hostile, service = self.living("h0"), self.living()
        key = records.RecordKey(known_namespaces.SERVICE_LIVENESS.name, hostile.uuid)
        for name, value in (("report_count", "many"), ("base", None), ("counted_at", [])):
            broken = {**self.liveness(service), name: value}
            self.plugin.publisher(self.synchronizer, known_namespaces.NOVA).publish(
                {key: lambda current, broken=broken: broken}
            )
            with self.subTest(name):
                self.beat(hostile)
                self.assertEqual(hostile.report_count, self.row(hostile).report_count)
                self.step(self.storage)
                with self.statements() as statements:
                    self.beat(service)
                self.assertEqual([], statements.seen)

    def test_records_of_yesterday_call_nobody_dead(self) -> None:
        service = self.living()
        for _ in range(20):
            self.beat(service)
        key = records.RecordKey(known_namespaces.SERVICE_LIVENESS.name, service.uuid)
        yesterday = dict(self.liveness(service))
        for _ in range(100):
            self.beat(service)
        self.assertTrue(self.up(self.found(service)))
        self.plugin.publisher(self.synchronizer, known_namespaces.NOVA).publish(
            {key: lambda current: yesterday}
        )
        self.assertTrue(self.up(self.found(service)))
        self.clock.advance_time_seconds(_DOWN_SECONDS)
        self.found(service)
        self.clock.advance_time_seconds(_DOWN_SECONDS)
        self.assertFalse(self.up(self.found(service)))

    def test_a_sweep_of_an_emptied_back_end_calls_nobody_dead(self) -> None:
        service = self.living()
        for _ in range(20):
            self.beat(service)
        self.assertTrue(self.up(self.found(service)))
        self.synchronizer.reset()
        self.sweep(cloud.CELL1)
        # The record was made of a row that is old, and the next heartbeat is still to come.
        self.assertTrue(self.up(self.found(service)))
        self.step(self.storage)
        self.assertTrue(self.up(self.found(service)))
        self.read_anew()
        self.assertTrue(self.up(self.found(service)))
        self.clock.advance_time_seconds(2 * _DOWN_SECONDS)
        self.assertFalse(self.up(self.found(service)))

    def test_a_service_started_a_little_behind_its_count_is_seen(self) -> None:
        service = self.living()
        for _ in range(30):
            self.beat(service)
        self.hub.faults.go_down()
        self.read_anew()
        service = self.found(service)
        self.beat(service)
        self.hub.faults.come_up()
        self.storage.writer._not_before = float("-inf")
        for number in range(40):
            self.beat(service)
            self.assertTrue(self.up(self.found(service)), number)

    def test_a_heartbeat_that_cannot_be_handed_over_is_written(self) -> None:
        service = self.living()
        failing = mock.patch.object(
            self.storage.writer, "store", autospec=True, side_effect=RuntimeError("thread")
        )
        with failing:
            self.beat(service)
        self.assertEqual(service.report_count, self.row(service).report_count)


class StepTest(HeartbeatCase):
    MODE = "both"

    def test_both_writes_rows_and_publishes(self) -> None:
        service = self.living()
        with self.statements() as statements:
            self.beat(service)
        self.assertEqual(2, len(statements.of("services")))
        self.reporter.flush()
        self.assertEqual(2, self.liveness(service)["report_count"])
        self.assertTrue(self.up(self.found(service)))

    def test_a_blind_reader_reads_rows(self) -> None:
        living, dead = self.living("h1"), self.living("h2")
        self.clock.advance_time_seconds(_DOWN_SECONDS)
        self.beat(living)
        self.assertTrue(self.up(self.found(living)))
        self.hub.faults.go_down()
        self.clock.advance_time_seconds(_DOWN_SECONDS)
        self.beat(living)
        self.assertEqual([True, False], [self.up(self.found(each)) for each in (living, dead)])

    def test_the_whole_way_there_and_back_calls_nobody_dead(self) -> None:
        service = self.living()

        def some_beats() -> None:
            for _ in range(12):
                self.beat(service)
                for reader in readers:
                    service_heartbeats._reader = reader
                    self.assertTrue(self.up(self.found(service)), reader._configured)

        readers = []
        for mode in ("database", "both", "store"):
            self.override("service_heartbeats", mode, "nodb_scheduler")
            readers.append(self.read_anew())
        for mode in ("database", "both", "store", "both", "database"):
            self.override("service_heartbeats", mode, "nodb_scheduler")
            self.storage.writer.stop()
            self.storage = self.conduct()
            with self.subTest(mode):
                some_beats()
                self.keep_trusted()
                recorded = self.storage.keeper.recorded
                self.assertEqual(mode, recorded.value if recorded else "database")


class DatabaseTest(HeartbeatCase):
    MODE = "database"

    def test_nothing_changes(self) -> None:
        service = self.living()
        with self.statements() as statements:
            self.beat(service)
        self.assertEqual(2, len(statements.of("services")))
        reader = service_heartbeats.reader()
        assert reader is not None
        self.assertTrue(self.up(self.found(service)))
        # Of living services the back end is not even opened.
        self.assertIsNone(reader._synchronizer)
        self.clock.advance_time_seconds(_DOWN_SECONDS)
        self.assertFalse(self.up(self.found(service)))
        self.hub.faults.go_down()
        self.assertFalse(self.up(self.found(service)))

    def test_no_record_of_a_mode_is_written(self) -> None:
        self.living()
        self.assertEqual({}, self.states(known_namespaces.HEARTBEAT_MODES))

    def test_beside_conductors_that_store_it_looks_up_who_seems_dead(self) -> None:
        service = self.living()
        key = heartbeat_modes.mode_key(cloud.CELL1)
        state = {"mode": "store", "since": 0.0}
        publisher = self.plugin.publisher(self.synchronizer, known_namespaces.NODB)
        publisher.publish({key: lambda current: state})
        self.override("service_heartbeats", "store", "nodb_scheduler")
        self.storage.writer.stop()
        self.storage = self.conduct()
        for _ in range(10):
            self.beat(service)
        with self.assertLogs(heartbeat_reader.LOG, "WARNING") as logged:
            for _ in range(3):
                self.assertTrue(self.up(self.found(service)))
        self.assertEqual(1, len(logged.output))
        self.clock.advance_time_seconds(_DOWN_SECONDS)
        self.assertFalse(self.up(self.found(service)))
