# SPDX-License-Identifier: Apache-2.0
"""Sweeps repair what no reporter said, beside live writes, by one conductor at a time."""

from __future__ import annotations

import threading
from typing import Any

from nova.db.main import api as main_db

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.reporting import (
    cell_sweeper,
    change_reporter,
    scope_transfer,
    scopes,
    sweep_duty,
)
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.drivers.memory import faults
from tests.functional.nova_adapter import cloud


class SweepCase(cloud.CloudCase):
    def setUp(self) -> None:
        super().setUp()
        self.skew_seconds = 0.0
        clock = self.hub._clock
        self.hub._clock = lambda: clock() + self.skew_seconds

    def raw(self, cell: str, model: Any, uuid: str, values: dict[str, Any]) -> None:
        """Change a row behind everybody's back."""
        context = self.context(cell)
        with main_db.get_context_manager(context).writer.using(context) as session:
            session.query(model).filter_by(uuid=uuid).update(values)

    def compared(self, scope: str) -> dict[str, bool]:
        found = scope_transfer.compare_scope(self.synchronizer, self.plugin.scopes, scope)
        return {namespace: comparison.clean for namespace, comparison in found.items()}

    def down(self, *which: str) -> None:
        context_for = self.plugin.scopes.context_for

        def context(scope: str) -> Any:
            if scope in which:
                raise RuntimeError("no route to host")
            return context_for(scope)

        self.plugin.scopes.context_for = context  # type: ignore[method-assign]
        self.addCleanup(setattr, self.plugin.scopes, "context_for", context_for)

    def up(self) -> None:
        del self.plugin.scopes.context_for  # type: ignore[attr-defined]


class RefusedNamesTest(SweepCase):
    def test_a_row_that_no_record_may_be_named_by_stops_no_sweep_and_is_told(self) -> None:
        self.override("sweep_page_rows", 2, "nodb_scheduler")
        good = [self.compute_node(cloud.CELL1, f"h{n}") for n in range(3)]
        self.compute_node(cloud.CELL1, "bad", uuid="\x1b[2J")
        good.append(self.compute_node(cloud.CELL1, "behind"))
        self.sweep()
        self.assertEqual(
            {node.uuid for node in good}, self.states(known_namespaces.COMPUTE_NODES).keys()
        )
        found = scope_transfer.compare_scope(self.synchronizer, self.plugin.scopes, cloud.CELL1)
        nodes = found[known_namespaces.COMPUTE_NODES.name]
        self.assertTrue(nodes.clean)
        self.assertEqual(
            (4, 1, ("\\x1b[2J",)), (nodes.compared, nodes.refused_count, nodes.refused)
        )

    def test_a_later_sweep_says_that_it_is_gone(self) -> None:
        bad = self.compute_node(cloud.CELL1, "bad", uuid="a\nb")
        self.sweep()
        bad.destroy()
        self.sweep()
        self.assertEqual(0, self.states(known_namespaces.CELLS)[cloud.CELL1]["unnamed"])


class SweepTest(SweepCase):
    def test_missing_stale_and_extra_records_are_repaired_and_the_rest_is_left(self) -> None:
        self.override("sweep_page_rows", 2, "nodb_scheduler")
        kept = [self.compute_node(cloud.CELL1, f"h{n}") for n in range(5)]
        elsewhere = self.compute_node(cloud.CELL2, "other")
        placed = self.instance(cloud.CELL1, "h0")
        self.sweep()
        before = {key: r.revision for key, r in self.read_all().items()}
        late = self.compute_node(cloud.CELL1, "late")
        self.raw(cloud.CELL1, main_db.models.ComputeNode, kept[1].uuid, {"vcpus_used": 9})
        self.raw(cloud.CELL1, main_db.models.ComputeNode, kept[2].uuid, {"deleted": 1})
        self.raw(cloud.CELL1, main_db.models.Instance, placed.uuid, {"host": None})
        self.assertFalse(self.compared(cloud.CELL1)["compute_nodes"])
        swept = self.plugin.sweeper(self.synchronizer).sweep(
            cloud.CELL1, threading.Event(), by="test"
        )
        self.assertEqual(3, swept.repaired["compute_nodes"])
        self.assertEqual(1, swept.repaired["instances"])
        self.assertEqual({True}, set(self.compared(cloud.CELL1).values()))
        found = self.states(known_namespaces.COMPUTE_NODES)
        self.assertEqual(9, found[kept[1].uuid]["row"]["vcpus_used"])
        self.assertNotIn(kept[2].uuid, found)
        self.assertIn(late.uuid, found)
        self.assertIn(elsewhere.uuid, found)
        # What was right was not written again.
        after = {key: r.revision for key, r in self.read_all().items()}
        for node in (kept[0], kept[3], kept[4], elsewhere):
            key = records.RecordKey("compute_nodes", node.uuid)
            self.assertEqual(before[key], after[key])

    def read_all(self) -> dict[records.RecordKey, records.Record]:
        pages = self.synchronizer.snapshot().pages
        return {record.key: record for page in pages for record in page}

    def test_a_live_write_during_the_walk_is_not_undone(self) -> None:
        self.override("sweep_page_rows", 1, "nodb_scheduler")
        made = self.report()
        nodes = [self.compute_node(cloud.CELL1, f"h{n}") for n in range(3)]
        made.flush()

        def meanwhile(page: cell_sweeper.SweepProgress) -> None:
            if page.table == "compute_nodes" and page.rows == 2:
                nodes[0].vcpus_used = 7
                nodes[0].save()
                nodes[1].destroy()
                self.compute_node(cloud.CELL1, "new")
                made.flush()

        self.plugin.sweeper(self.synchronizer).sweep(
            cloud.CELL1, threading.Event(), meanwhile, by="test"
        )
        rows = self.states(known_namespaces.COMPUTE_NODES)
        self.assertEqual({"h0", "h2", "new"}, {state["row"]["host"] for state in rows.values()})
        self.assertEqual(7, rows[nodes[0].uuid]["row"]["vcpus_used"])

    def test_a_sweep_that_could_not_finish_counts_for_nothing(self) -> None:
        self.compute_node(cloud.CELL1, "h1")
        stop = threading.Event()
        stop.set()
        with self.assertRaises(cell_sweeper.SweepStopped):
            self.plugin.sweeper(self.synchronizer).sweep(cloud.CELL1, stop, by="test")
        self.synchronizer.inner.faults.fail_next(faults.Fault.UNAVAILABLE)
        with self.assertRaises(errors.BackendUnavailable):
            self.sweep(cloud.CELL1)
        self.assertEqual({}, self.states(known_namespaces.CELLS))

    def test_a_damaged_record_is_written_anew(self) -> None:
        node = self.compute_node(cloud.CELL1, "h1")
        self.sweep(cloud.CELL1)
        self.damage(known_namespaces.COMPUTE_NODES, node.uuid)
        self.sweep(cloud.CELL1)
        self.assertIn(node.uuid, self.states(known_namespaces.COMPUTE_NODES))

    def damage(self, namespace: Any, key: str) -> None:
        name = records.RecordKey(namespace.name, key)
        held = self.synchronizer.read([name]).get(name)
        revision = held.revision if held is not None else 0
        self.synchronizer.write([records.Write(name, revision, b"?")])

    def test_a_damaged_record_goes_only_when_no_cell_has_its_row(self) -> None:
        there = self.compute_node(cloud.CELL2, "there")
        gone = records.RecordKey("compute_nodes", "33333333-3333-4333-8333-333333333333")
        damaged = {gone, records.RecordKey("compute_nodes", there.uuid)}
        for key in damaged:
            self.synchronizer.write([records.Write(key, 0, b"damaged")])
        self.sweep(cloud.CELL1)
        found = self.synchronizer.read(damaged)
        self.assertEqual(
            {key: key == gone for key in damaged}, {k: r.deleted for k, r in found.items()}
        )
        self.sweep(cloud.CELL2)
        self.assertIn(there.uuid, self.states(known_namespaces.COMPUTE_NODES))


class DutyTest(SweepCase):
    """The conductors' duty, turned by hand; the back end's clock is made to pass."""

    def setUp(self) -> None:
        super().setUp()
        self.override("cell_uuid", cloud.CELL1, "nodb_scheduler")
        self.plugin = type(self.plugin)(cloud.CONF)
        self.asked = self.duty()

    def duty(self) -> sweep_duty.SweepDuty:
        made = self.plugin.sweep_duty()
        made._synchronizer.open()
        clock = made._clock
        made._clock = lambda: clock() + self.skew_seconds
        return made

    def sweeps(self) -> dict[str, float]:
        return {key: s["swept_from"] for key, s in self.states(known_namespaces.CELLS).items()}

    def turned(self, duty: sweep_duty.SweepDuty, after_seconds: float) -> set[str]:
        """Let time pass and take a turn; return the scopes it swept."""
        before = self.sweeps()
        self.skew_seconds += after_seconds
        duty.turn()
        return {key for key, at in self.sweeps().items() if before.get(key) != at}

    def beat(self, name: str, **changed: Any) -> None:
        state = {
            "cell": cloud.CELL1,
            "guards": [cloud.CELL1],
            "binary": "conductor",
            "since": 0.0,
            "beat_at": self.synchronizer.now_seconds(),
            "behind_seconds": {},
            **changed,
        }
        key = records.RecordKey(known_namespaces.REPORTERS.name, name)
        publisher = self.plugin.publisher(self.synchronizer, known_namespaces.NODB)
        publisher.publish({key: lambda current: state})

    def test_one_of_two_conductors_sweeps_until_it_dies(self) -> None:
        other = self.duty()
        mine = {cloud.CELL1, scopes.API}
        self.assertLessEqual(mine, self.turned(self.asked, 0))
        self.assertEqual(set(), self.turned(other, 0))
        self.assertEqual(set(), self.turned(other, 1))
        # The first one is gone, its leases run out; time has come to sweep.
        self.assertLessEqual(mine, self.turned(other, 700))

    def test_nothing_is_swept_without_a_reason(self) -> None:
        self.turned(self.asked, 0)
        for _ in range(3):
            self.assertEqual(set(), self.turned(self.asked, 20))

    def test_a_new_epoch_is_a_reason(self) -> None:
        self.turned(self.asked, 0)
        self.synchronizer.reset()
        self.assertIn(cloud.CELL1, self.turned(self.asked, 0))

    def test_names_that_were_lost_here_or_by_another_process_are_a_reason(self) -> None:
        self.turned(self.asked, 0)
        self.asked.ask([cloud.CELL1])
        self.assertEqual({cloud.CELL1}, self.turned(self.asked, 20))
        self.beat(
            "api",
            cell=change_reporter.EVERY_CELL,
            guards=[],
            behind_seconds={scopes.API: change_reporter.LOST_SECONDS},
        )
        self.assertEqual({scopes.API}, self.turned(self.asked, 12))

    def test_heartbeats_that_nobody_reported_are_a_reason_once(self) -> None:
        made = self.report(cloud.CELL1)
        service = self.service(cloud.CELL1, "h1")
        self.heartbeat(service)
        made.flush()
        self.turned(self.asked, 0)
        reporter_of = cloud.change_reporter
        reporter_of.install(None, None)
        self.heartbeat(service)
        self.heartbeat(service)
        reporter_of.install(made, self.plugin.scopes)
        self.heartbeat(service)
        made.flush()
        self.assertEqual({cloud.CELL1}, self.turned(self.asked, 20))
        self.assertEqual(set(), self.turned(self.asked, 20))

    def test_a_dead_reporter_is_forgotten_after_its_cells_were_swept(self) -> None:
        self.turned(self.asked, 0)
        self.skew_seconds += 30
        self.beat("dead")
        self.assertEqual(set(), self.turned(self.asked, 5))
        self.assertIn("dead", self.states(known_namespaces.REPORTERS))
        self.assertEqual({cloud.CELL1}, self.turned(self.asked, 300))
        self.assertNotIn("dead", self.states(known_namespaces.REPORTERS))

    def test_one_that_wrote_every_cell_is_kept_for_longer(self) -> None:
        self.turned(self.asked, 0)
        self.skew_seconds += 30
        self.beat("dead", cell=change_reporter.EVERY_CELL)
        self.turned(self.asked, 300)
        self.assertIn("dead", self.states(known_namespaces.REPORTERS))
        self.turned(self.asked, self.asked._options.retire_seconds)
        self.assertNotIn("dead", self.states(known_namespaces.REPORTERS))

    def test_a_conductor_that_wrote_every_cell_is_one_without_a_cell_once_its_own_was_swept(
        self,
    ) -> None:
        self.turned(self.asked, 0)
        self.skew_seconds += 30
        self.beat("dead", writes_every_cell=True, behind_seconds={cloud.CELL2: 2.0})
        self.turned(self.asked, 300)
        left = self.states(known_namespaces.REPORTERS)["dead"]
        self.assertEqual((change_reporter.EVERY_CELL, []), (left["cell"], left["guards"]))
        self.assertEqual({cloud.CELL2: 2.0}, left["behind_seconds"])
        self.turned(self.asked, self.asked._options.retire_seconds)
        self.assertNotIn("dead", self.states(known_namespaces.REPORTERS))

    def test_a_cell_that_is_down_does_not_keep_the_api_tables_from_being_swept(self) -> None:
        self.down(cloud.CELL1)
        with self.assertRaises(RuntimeError):
            self.asked.turn()
        self.assertIn(scopes.API, self.sweeps())
        self.assertNotIn(cloud.CELL1, self.sweeps())

    def test_damaged_records_of_reporters_and_cells_do_not_end_the_duty(self) -> None:
        self.turned(self.asked, 0)
        self.beat("who")
        for key in (
            records.RecordKey(known_namespaces.REPORTERS.name, "who"),
            records.RecordKey(known_namespaces.CELLS.name, cloud.CELL1),
        ):
            revision = self.synchronizer.read([key])[key].revision
            self.synchronizer.write([records.Write(key, revision, b"?")])
        self.skew_seconds += 20
        self.asked.turn()
        self.assertIn(cloud.CELL1, self.sweeps_readable())

    def sweeps_readable(self) -> set[str]:
        return set(scope_transfer.imported(self.synchronizer))


class TransferTest(SweepCase):
    def test_a_cell_that_is_down_is_left_out_stays_cold_and_is_imported_later(self) -> None:
        self.host(cloud.CELL1, "h1")
        self.host(cloud.CELL2, "h2")
        walker = self.plugin.sweeper(self.synchronizer)

        def run() -> dict[str, scope_transfer.TransferResult]:
            done = scope_transfer.imported(self.synchronizer)
            return {
                scope: scope_transfer.import_scope(
                    walker,
                    self.plugin.scopes,
                    scope,
                    threading.Event(),
                    lambda total: None,
                    lambda page: None,
                )
                for scope in (*cloud.CELLS, scopes.API)
                if scope not in done
            }

        self.down(cloud.CELL2)
        first = run()
        self.assertEqual({cloud.CELL2}, {s for s, result in first.items() if result.failed})
        self.assertNotIn(cloud.CELL2, scope_transfer.imported(self.synchronizer))
        self.assertEqual(["h1"], self.hosts())
        self.up()
        second = run()
        self.assertEqual({cloud.CELL2}, second.keys())
        self.assertEqual(["h1", "h2"], self.hosts())
        for scope in (*cloud.CELLS, scopes.API):
            self.assertEqual({True}, set(self.compared(scope).values()), scope)

    def hosts(self) -> list[str]:
        found = self.states(known_namespaces.COMPUTE_NODES).values()
        return sorted(state["row"]["host"] for state in found)

    def test_an_operator_who_interrupts_an_import_is_obeyed(self) -> None:
        self.host(cloud.CELL1, "h1")
        stop = threading.Event()
        stop.set()
        with self.assertRaises(cell_sweeper.SweepStopped):
            scope_transfer.import_scope(
                self.plugin.sweeper(self.synchronizer),
                self.plugin.scopes,
                cloud.CELL1,
                stop,
                lambda total: None,
                lambda page: None,
            )

    def test_compare_names_what_is_missed_stale_and_extra(self) -> None:
        nodes = [self.compute_node(cloud.CELL1, f"h{n}") for n in range(3)]
        self.sweep()
        self.raw(cloud.CELL1, main_db.models.ComputeNode, nodes[0].uuid, {"vcpus": 99})
        self.raw(cloud.CELL1, main_db.models.ComputeNode, nodes[1].uuid, {"deleted": 5})
        self.compute_node(cloud.CELL1, "new")
        found = scope_transfer.compare_scope(self.synchronizer, self.plugin.scopes, cloud.CELL1)
        nodes_found = found[known_namespaces.COMPUTE_NODES.name]
        self.assertFalse(nodes_found.clean)
        self.assertEqual(
            (1, 1, 1),
            (nodes_found.missed_count, nodes_found.stale_count, nodes_found.extra_count),
        )
        self.assertEqual({"row.vcpus": 1, "row.updated_at": 1}, dict(nodes_found.stale_by_field))

    def test_compare_goes_on_over_a_damaged_record(self) -> None:
        node = self.compute_node(cloud.CELL1, "h1")
        self.sweep()
        key = records.RecordKey("compute_nodes", node.uuid)
        revision = self.synchronizer.read([key])[key].revision
        self.synchronizer.write([records.Write(key, revision, b"?")])
        found = scope_transfer.compare_scope(self.synchronizer, self.plugin.scopes, cloud.CELL1)
        self.assertFalse(found["compute_nodes"].clean)
