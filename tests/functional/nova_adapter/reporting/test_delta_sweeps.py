# SPDX-License-Identifier: Apache-2.0
"""After a nova-api worker died, what it wrote last is found without a walk of all rows."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

from nova import objects
from nova.db.main import api as main_db
from nova.db.main import models
from oslo_utils import timeutils

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.reporting import change_reporter, scopes, state_proof
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.drivers.memory import faults
from nova_nodb_scheduler.synchronizer.replication import ingest
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.reporting import test_sweeps

BOUND_SECONDS = 15.0


class DeltaSweepTest(test_sweeps.SweepCase):
    """A cell of some hosts that were quiet for an hour; a conductor's duty, turned by hand."""

    def setUp(self) -> None:
        super().setUp()
        self.ahead_seconds = 0.0
        utcnow = timeutils.utcnow
        patcher = mock.patch.object(
            timeutils,
            "utcnow",
            lambda *args, **kwargs: (
                utcnow(*args, **kwargs)
                + dt.timedelta(seconds=self.skew_seconds + self.ahead_seconds)
            ),
        )
        patcher.start()
        self.addCleanup(patcher.stop)
        # None but those that have a reason.
        self.override("sweep_interval_seconds", 1e6, "nodb_scheduler")
        self.override("cell_uuid", cloud.CELL1, "nodb_scheduler")
        self.plugin = type(self.plugin)(cloud.CONF)
        self.duty = self.plugin.sweep_duty()
        self.duty._synchronizer.open()
        clock = self.duty._clock
        self.duty._clock = lambda: clock() + self.skew_seconds
        self.hosts = {f"h{n}": self.host(cloud.CELL1, f"h{n}") for n in range(6)}
        self.instances = [self.instance(cloud.CELL1, host) for host in self.hosts]
        self.migration = self.migrate("h0")
        self.aggregate = objects.Aggregate(self.admin, name="a", metadata={"ssd": "true"})
        self.aggregate.create()
        self.aggregate.add_host("h0")
        self.age()
        self.conductor()
        self.duty.turn()
        self.whole = self.whole_sweeps()
        # The API reported all that until now.
        self.wait(30.0)
        self.beat_of_api()

    def age(self) -> None:
        """Have everything that is there be written an hour ago."""
        then = timeutils.utcnow() - dt.timedelta(hours=1)
        for model in (models.ComputeNode, models.Instance, models.Migration):
            with main_db.get_context_manager(self.cell).writer.using(self.cell) as session:
                session.query(model).update({"created_at": then, "updated_at": then})

    @property
    def cell(self) -> Any:
        return self.context(cloud.CELL1)

    def migrate(self, source: str) -> Any:
        made = objects.Migration(
            self.cell,
            instance_uuid=self.instances[0].uuid,
            source_compute=source,
            source_node=f"node-{source}",
            status="accepted",
            migration_type="evacuation",
        )
        made.create()
        return made

    def reports(self, name: str, **state: Any) -> None:
        whole = {
            "guards": [],
            "binary": "api",
            "since": 0.0,
            "beat_at": self.synchronizer.now_seconds(),
            "behind_seconds": {},
            **state,
        }
        key = records.RecordKey(known_namespaces.REPORTERS.name, name)
        publisher = self.plugin.publisher(self.synchronizer, known_namespaces.NODB)
        publisher.publish({key: lambda current: whole})

    def conductor(self) -> None:
        self.reports("conductor", cell=cloud.CELL1, guards=[cloud.CELL1], binary="conductor")

    def beat_of_api(self, **state: Any) -> None:
        self.reports("api", cell=change_reporter.EVERY_CELL, **state)

    def wait(self, seconds: float, clock_seconds: float = 0.0) -> None:
        """Let time pass; the conductor lives, the API worker may not.

        :param clock_seconds: how far the API's clock is ahead of the back end's
        """
        self.skew_seconds += seconds
        self.ahead_seconds = clock_seconds
        self.conductor()

    def passes(self, seconds: float) -> None:
        self.wait(seconds)
        self.duty.turn()

    def whole_sweeps(self) -> dict[str, float]:
        return {key: s["swept_from"] for key, s in self.states(known_namespaces.CELLS).items()}

    def missing(self) -> dict[str, state_proof.UnprovedReason]:
        """Return which scopes a scheduler does not serve from memory now."""
        judge = state_proof.StateJudge(
            feed_alive=lambda bound: True,
            epoch=lambda: self.synchronizer.head().epoch,
            quarantine=ingest.Quarantine(100),
            backend_now_seconds=self.synchronizer.now_seconds,
            options=state_proof.ProofOptions(10.0, BOUND_SECONDS, 3.0),
        )
        judged = judge.judge(self.store().snapshot(), [cloud.CELL1, scopes.API])
        return dict(judged.missing)

    def assert_repaired(self) -> None:
        for scope in (cloud.CELL1, scopes.API):
            self.assertEqual({True}, set(self.compared(scope).values()), scope)

    def assert_found(self, *writes: Callable[[], object]) -> None:
        """Write unreported, and find it by nothing but the sweep of a delta."""
        self.assertIsNone(change_reporter._reporter)
        for write in writes:
            write()
        different = {
            name
            for scope in (cloud.CELL1, scopes.API)
            for name, clean in self.compared(scope).items()
            if not clean
        }
        self.assertTrue(different)
        self.passes(BOUND_SECONDS + 1)
        self.assert_repaired()
        self.assertEqual(self.whole, self.whole_sweeps())

    def test_a_service_that_was_disabled_or_forced_down_is_found(self) -> None:
        def disable() -> None:
            service = self.hosts["h1"][1]
            service.disabled, service.disabled_reason = True, "maintenance"
            service.save()

        def force_down() -> None:
            service = self.hosts["h2"][1]
            service.forced_down = True
            service.save()
            # A heartbeat hides when that was.
            self.heartbeat(service)

        self.assert_found(disable, force_down)
        found = self.states(known_namespaces.SERVICES)
        self.assertTrue(found[self.hosts["h1"][1].uuid]["row"]["disabled"])
        self.assertTrue(found[self.hosts["h2"][1].uuid]["row"]["forced_down"])

    def test_a_service_that_was_enabled_is_found(self) -> None:
        service = self.hosts["h1"][1]
        service.disabled = True
        service.save()
        self.sweep(cloud.CELL1)
        self.whole = self.whole_sweeps()

        def enable() -> None:
            service.disabled = False
            service.save()

        self.wait(5.0)
        self.beat_of_api()
        self.assert_found(enable)

    def test_a_service_that_was_deleted_is_found_with_its_node_and_its_mapping(self) -> None:
        node, service = self.hosts["h3"]
        mapping = objects.HostMapping.get_by_host(self.admin, "h3")
        self.assert_found(service.destroy, mapping.destroy)
        self.assertNotIn(node.uuid, self.states(known_namespaces.COMPUTE_NODES))
        self.assertNotIn(service.uuid, self.states(known_namespaces.SERVICES))
        self.assertNotIn(service.uuid, self.states(known_namespaces.SERVICE_LIVENESS))

    def test_an_instance_that_was_deleted_locally_is_found(self) -> None:
        self.assert_found(self.instances[2].destroy)

    def test_a_changed_instance_and_migrations_are_found(self) -> None:
        def save() -> None:
            self.instances[3].task_state = "deleting"
            self.instances[3].save()

        def end() -> None:
            self.migration.status = "error"
            self.migration.save()

        self.assert_found(save, end, lambda: self.migrate("h4"))

    def test_aggregates_that_changed_came_and_went_are_found(self) -> None:
        gone = objects.Aggregate(self.admin, name="gone", metadata={})
        gone.create()
        self.sweep(scopes.API)
        self.whole = self.whole_sweeps()
        self.wait(5.0)
        self.beat_of_api()
        self.assert_found(
            lambda: self.aggregate.add_host("h4"),
            lambda: self.aggregate.delete_host("h0"),
            lambda: self.aggregate.update_metadata({"ssd": None, "gpu": "true"}),
            gone.destroy,
            objects.Aggregate(self.admin, name="new", metadata={}).create,
        )

    def test_cells_leave_memory_until_the_delta_was_read_and_not_again(self) -> None:
        self.assertEqual({}, self.missing())
        self.wait(BOUND_SECONDS + 1)
        silent = state_proof.UnprovedReason.SILENT_REPORTER
        self.assertEqual({cloud.CELL1: silent, scopes.API: silent}, self.missing())
        self.duty.turn()
        self.assertEqual({}, self.missing())
        # For as long as it may be alive and cut off, and beyond.
        for _ in range(70):
            self.passes(8.0)
            self.assertEqual({}, self.missing())
        self.assertEqual(self.whole, self.whole_sweeps())

    def test_a_move_that_a_conductor_of_another_cell_began_and_did_not_report_is_found(
        self,
    ) -> None:
        self.reports(
            "super",
            cell=cloud.CELL0,
            guards=[cloud.CELL0],
            binary="conductor",
            writes_every_cell=True,
        )
        self.migrate("h4")
        # It is killed here; who reported before lives.
        self.wait(BOUND_SECONDS + 1)
        self.beat_of_api()
        self.assertEqual(
            state_proof.UnprovedReason.SILENT_REPORTER, self.missing().get(cloud.CELL1)
        )
        self.duty.turn()
        self.assert_repaired()
        self.assertEqual({}, self.missing())

    def test_nothing_but_the_delta_is_read(self) -> None:
        self.instances[2].destroy()
        self.wait(BOUND_SECONDS + 1)
        with self.statements() as statements:
            self.duty.turn()
        for table in ("compute_nodes", "instances", "migrations"):
            for statement in statements.of(table):
                self.assertRegex(statement, r"updated_at >= |uuid IN |instance_uuid IN ")
        # Of six instances one was looked at: its keys, its row.
        rows = [s for s in statements.of("instances") if "updated_at >=" not in s]
        self.assertEqual(1, len(rows), rows)
        self.assertEqual([], [s for s in statements.of("compute_nodes") if " IN " in s])

    def test_a_process_that_lives_cut_off_is_looked_after_for_ten_minutes(self) -> None:
        self.passes(BOUND_SECONDS + 1)
        for _ in range(3):
            self.instances.pop().destroy()
            self.passes(61.0)
            self.assert_repaired()
        self.assertEqual(self.whole, self.whole_sweeps())
        self.passes(600.0)
        self.assertNotIn("api", self.states(known_namespaces.REPORTERS))

    def test_what_was_queued_at_the_last_beat_is_found_however_old(self) -> None:
        self.instances[2].destroy()
        then = timeutils.utcnow() - dt.timedelta(seconds=290)
        self.raw(cloud.CELL1, models.Instance, self.instances[2].uuid, {"deleted_at": then})
        self.beat_of_api(behind_seconds={cloud.CELL1: 300.0})
        self.passes(BOUND_SECONDS + 1)
        self.assert_repaired()

    def test_a_clock_that_is_a_minute_behind_hides_nothing(self) -> None:
        self.wait(0.0, clock_seconds=-60.0)
        self.assert_found(self.instances[2].destroy)

    def test_a_clock_that_its_beats_say_is_hours_behind_hides_nothing(self) -> None:
        self.beat_of_api(clock_offset_seconds=-7200.0)
        self.wait(0.0, clock_seconds=-7200.0)
        self.assert_found(self.instances[2].destroy)
        # Nor what it writes while it is cut off.
        self.wait(50.0, clock_seconds=-7200.0)
        self.instances[3].destroy()
        self.passes(11.0)
        self.assert_repaired()

    def test_one_that_forgot_names_and_died_is_swept_whole_once(self) -> None:
        self.beat_of_api(behind_seconds={cloud.CELL1: change_reporter.LOST_SECONDS})
        self.passes(BOUND_SECONDS + 1)
        once = self.whole_sweeps()
        self.assertNotEqual(self.whole[cloud.CELL1], once[cloud.CELL1])
        for _ in range(5):
            self.passes(12.0)
        self.assertEqual(once, self.whole_sweeps())
        self.assertEqual({}, self.missing())

    def test_a_cell_whose_database_was_down_all_the_while_is_not_taken_for_proved(self) -> None:
        self.instances[2].destroy()
        self.down(cloud.CELL1)
        for seconds in (BOUND_SECONDS + 1, 300.0, 300.0):
            self.wait(seconds)
            with self.assertRaises(RuntimeError):
                self.duty.turn()
        self.assertIn("api", self.states(known_namespaces.REPORTERS))
        self.assertIn(cloud.CELL1, self.missing())
        self.up()
        self.passes(12.0)
        self.assert_repaired()
        self.assertEqual({}, self.missing())

    def test_a_delta_tells_of_a_row_that_no_record_may_be_named_by(self) -> None:
        change_reporter.install(None, None)
        self.compute_node(cloud.CELL1, "bad", uuid="a\nb")
        self.duty._sweeper.sweep_since(cloud.CELL1, 0.0, threading.Event(), by="test")
        self.assertEqual(1, self.states(known_namespaces.CELLS)[cloud.CELL1]["unnamed"])

    def test_a_delta_that_could_not_finish_proves_nothing(self) -> None:
        self.instances[2].destroy()
        self.wait(BOUND_SECONDS + 1)
        before = self.states(known_namespaces.CELLS)
        stop = threading.Event()
        stop.set()
        with self.assertRaises(test_sweeps.cell_sweeper.SweepStopped):
            self.duty._sweeper.sweep_since(cloud.CELL1, 0.0, stop, by="test")
        self.duty._synchronizer.inner.faults.fail_next(faults.Fault.UNAVAILABLE)
        with self.assertRaises(errors.BackendUnavailable):
            self.duty._sweeper.sweep_since(cloud.CELL1, 0.0, threading.Event(), by="test")
        self.assertEqual(before, self.states(known_namespaces.CELLS))

    def test_a_delta_that_ends_in_another_epoch_says_nothing(self) -> None:
        own = self.duty._sweeper._say
        self.duty._sweeper._say = lambda *args: (self.synchronizer.reset(), own(*args))
        self.duty._sweeper.sweep_since(cloud.CELL1, 0.0, threading.Event(), by="test")
        self.assertEqual({}, self.states(known_namespaces.CELLS))
