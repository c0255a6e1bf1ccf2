# SPDX-License-Identifier: Apache-2.0
"""Rows survive what must not happen on the way: two at work, services, lost back ends, odd rows."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

import sqlalchemy as sa
from nova.db.main import api as main_db
from oslo_db import exception as db_exception
from sqlalchemy import event

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes, node_rows, row_records
from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import (
    node_transfer,
    row_file,
    table_retirement,
    transfer_refusals,
)
from nova_nodb_scheduler.synchronizer.records import record_editor
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes import (
    cell_databases,
    conductors,
    nova_table,
    transfer_case,
)
from tests.functional.nova_adapter.compute_nodes.cell_databases import deleted, row
from tests.functional.nova_adapter.compute_nodes.transfer_case import (
    MIRROR,
    RETIRED,
    THERE,
    Killed,
)

_MANY = 450


def once_behind(title: str, do: Callable[[], None]) -> Callable[..., None]:
    """Return what does something behind the first step whose title begins so."""
    left = [do]

    def told(step: node_transfer.TransferStep, _outcome: Any) -> None:
        if left and step.title.startswith(title):
            left.pop()()

    return told


def die() -> None:
    raise Killed


class Disturbance(transfer_case.TransferCase):
    """What holds for each kind of database."""

    def begin(self) -> None:
        super().begin()
        self.ours = conductors.conductor(self.synchronizer, mode=RETIRED)

    def file(self) -> pathlib.Path:
        return max(self.directory.iterdir())

    def lost(self, file: pathlib.Path) -> Iterable[node_rows.Row]:
        return row_file.read(file)

    def assert_back(self, rows: list[dict[str, Any]]) -> None:
        self.assertEqual(rows, self.rows())
        state = self.state()
        self.assertEqual((MIRROR, THERE), (state.mode, state.place))
        self.assertEqual(table_retirement.NOVAS_KEY, state.key)

    def assert_archived_once(self) -> None:
        """Have Nova's own archiving take the deleted rows that are in the table."""
        main_db.archive_deleted_rows(self.context, max_rows=100)
        self.assertEqual({0}, {each["deleted"] for each in self.rows()})
        with nova_table.engine().begin() as connection:
            query = sa.text("SELECT id FROM shadow_compute_nodes ORDER BY id")
            self.assertEqual([3, 5], list(connection.execute(query).scalars()))

    # -- a back end that lost its records ------------------------------------------------

    def test_rows_out_of_a_file_come_whole_wherever_that_is_killed(self) -> None:
        for number in range(3):
            with self.subTest(number):
                self.begin()
                self.populate()
                before = self.rows()
                self.there().go()
                file = self.file()
                self.ours.synchronizer.reset()
                left = self.back(lost=self.lost(file)).left()
                with self.assertRaises(Killed):
                    self.back(lost=self.lost(file)).go(once_behind(left[number], die))
                self.back(lost=self.lost(file)).go()
                self.assert_back(before)

    def test_a_file_half_of_which_is_there_is_gone_on_with(self) -> None:
        nova_table.fill([row(number) for number in range(1, _MANY + 1)])
        before = self.rows()
        self.there().go()
        file = self.file()
        self.ours.synchronizer.reset()
        self.table.fill([*row_file.read(file)][: _MANY // 2])
        self.back(lost=self.lost(file)).go()
        self.assert_back(before)

    def test_a_back_end_lost_before_the_table_was_emptied_leaves_a_way_back(self) -> None:
        self.populate()
        before = self.rows()
        with self.assertRaises(Killed):
            self.there().go(once_behind("rename", die))
        self.ours.synchronizer.reset()
        with self.assertRaisesRegex(transfer_refusals.TransferRefused, "compute-nodes export"):
            self.back().go()
        file, _rows = self.transfer.export(self.context, cloud.CELL1, self.directory)
        self.back(lost=self.lost(file)).go()
        self.assert_back(before)

    def test_rows_that_a_file_lacks_or_has_older_are_named_and_kept(self) -> None:
        self.populate()
        self.there().go()
        file = self.file()
        self.ours.synchronizer.reset()
        self.table.bring_back()
        young = row(1, vcpus=77, updated_at=nova_table.MOMENT.replace(year=2027))
        nova_table.fill([young, row(50)])
        before = self.dump()
        with self.assertRaisesRegex(
            transfer_refusals.TransferRefused, "id 1: n1 on h1; id 50: n50 on h50"
        ):
            self.back(lost=self.lost(file)).go()
        self.assertEqual(before, self.dump())

    def test_rows_of_a_file_that_were_archived_since_can_be_archived_again(self) -> None:
        self.populate()
        before = self.rows()
        self.there().go()
        file = self.file()
        assert self.ours.archive is not None
        self.assertEqual(1, self.ours.archive.archive(self.context, None, None))
        self.ours.synchronizer.reset()
        self.back(lost=self.lost(file)).go()
        self.assert_back(before)
        self.assert_archived_once()

    def test_records_of_a_newer_release_are_named_before_the_way_there(self) -> None:
        self.populate()
        before = self.dump()
        key = records.RecordKey(row_records.NODE_ROWS.name, f"odd@{cloud.CELL1}")
        self.ours.synchronizer.write([records.Write(key, 0, b"\x09")])
        [refusal] = self.there().refusals
        self.assertEqual((f"odd@{cloud.CELL1}",), refusal.rows)
        with self.assertRaises(transfer_refusals.TransferRefused):
            self.there().go()
        self.assertEqual((before, MIRROR), (self.dump(), self.state().mode))

    def test_a_mode_of_a_newer_release_is_not_taken_for_any_other(self) -> None:
        self.populate()
        before = self.dump()
        editor = record_editor.RecordEditor(self.ours.synchronizer, [row_records.NODE_CELLS])
        newer = record_editor.Proposal(None, {"mode": "borrowed", "next_id": 9})
        editor.edit(row_records.cell_key(cloud.CELL1), lambda _state, _version: newer)
        for call in (self.there, self.back, self.state):
            with self.assertRaisesRegex(errors.UndecodableRecord, "'borrowed'.*newer release"):
                call()
        self.assertEqual(before, self.dump())

    # -- others at work --------------------------------------------------------------------

    def test_rows_that_a_stock_service_wrote_are_not_deleted_on_the_way_back(self) -> None:
        self.populate()
        self.there().go()
        self.transfer.prepared(self.context, cloud.CELL1).go()
        nova_table.fill([row(50)])
        with self.assertRaisesRegex(transfer_refusals.TransferRefused, "id 50: n50 on h50"):
            self.back().go()
        self.assertEqual([50], [each["id"] for each in self.rows()])
        self.assertIs(RETIRED, self.state().mode)

    def test_one_that_goes_back_takes_over_from_one_that_is_on_its_way_there(self) -> None:
        for title in ("make records", "drop", "rename", "export", "empty"):
            with self.subTest(there=title):
                self.begin()
                self.populate()
                before = self.rows()
                others = self.back

                def go_back(others: Callable[[], node_transfer.Way] = others) -> None:
                    others().go()

                with self.assertRaisesRegex(cell_modes.TurnTaken, "begun since"):
                    self.there().go(once_behind(title, go_back))
                self.assert_back(before)

    def test_one_that_goes_there_takes_over_from_one_that_is_on_its_way_back(self) -> None:
        for title in ("have the table hold", "rename", "have its ids", "add"):
            with self.subTest(back=title):
                self.begin()
                self.populate()
                before = self.rows()
                with self.assertRaises(Killed):
                    self.there().go(once_behind("export", die))
                # Each step of the way back that is left is one that was not done.
                with self.assertRaisesRegex(cell_modes.TurnTaken, "begun since"):
                    self.back().go(once_behind(title, lambda: self.there().go()))
                self.assertEqual(before, self.recorded())
                self.assertEqual((RETIRED, True), (self.state().mode, self.state().is_settled))

    def test_who_waited_for_a_lock_while_another_went_back_empties_nothing(self) -> None:
        self.populate()
        before = self.rows()
        there = self.there()
        emptied = self.table

        def fill_meanwhile() -> None:
            # As far as the other way comes while this one has rows deleted, uncommitted.
            self.transfer.back(self.context, cloud.CELL1).begin()

        with self.assertRaises(Killed):
            there.go(once_behind("export", die))
        fill_meanwhile()
        with self.assertRaisesRegex(cell_modes.TurnTaken, "begun since"):
            emptied.empty(there.require_turn)
        self.assertEqual(before, self.rows())

    def test_a_way_back_that_was_looked_at_before_another_ended_is_not_gone(self) -> None:
        self.populate()
        self.there().go()
        late = self.back()
        self.back().go()
        main_db.compute_node_update(self.context, 1, {"vcpus": 99})
        before = self.rows()
        with self.assertRaisesRegex(cell_modes.TurnTaken, "begun since"):
            late.go()
        self.assert_back(before)

    def test_what_purges_the_table_that_is_filled_keeps_it_from_counting(self) -> None:
        nova_table.fill([row(1), row(2)])
        before = self.rows()
        self.there().go()
        with self.assertRaisesRegex(transfer_refusals.TransferRefused, "purges"):
            self.back().go(once_behind("have the table hold", self.table.empty))
        self.assertEqual((before, RETIRED), (self.recorded(), self.state().mode))
        self.back().go()
        self.assert_back(before)

    def test_what_a_service_records_while_the_table_is_filled_is_not_lost(self) -> None:
        self.populate()
        self.there().go()

        def write() -> None:
            self.ours.writer.compute_node_update(self.context, 1, {"vcpus": 99})
            self.ours.writer.compute_node_delete(self.context, 2)

        with self.assertRaisesRegex(transfer_refusals.TransferRefused, "id 1: n1 on h1; id 2"):
            self.back().go(once_behind("have the table hold", write))
        recorded = self.recorded()
        self.assertIs(RETIRED, self.state().mode)
        self.back().go()
        self.assert_back(recorded)

    def test_what_a_service_wrote_to_the_table_behind_the_import_is_named_and_kept(self) -> None:
        # Of MariaDB's whole seconds the write is a later one.
        nova_table.fill([row(1, created_at=nova_table.MOMENT)])

        def write() -> None:
            main_db.compute_node_update(self.context, 1, {"vcpus": 99})

        with self.assertRaisesRegex(transfer_refusals.TransferRefused, "id 1: n1 on h1"):
            self.there().go(once_behind("make records", write))
        self.assertEqual([99], [each["vcpus"] for each in self.rows() if each["id"] == 1])

    def test_rows_that_are_read_while_they_go_there_are_all_given(self) -> None:
        nova_table.fill([row(number) for number in range(1, _MANY + 1)])
        before = self.rows()
        pool = nova_table.engine().pool
        left = [lambda: self.there().go()]

        def go(*_connection: Any) -> None:
            if left:
                left.pop()()

        sa.event.listen(pool, "checkin", go)
        self.addCleanup(sa.event.remove, pool, "checkin", go)
        given = [*self.transfer.counting(self.context, cloud.CELL1)]
        self.assertIs(RETIRED, self.state().mode)
        self.assertEqual(before, [node_rows.to_state(each) for each in given])

    def test_an_archiving_that_was_killed_keeps_nobody_from_archiving_what_came_back(self) -> None:
        self.populate()
        before = self.rows()
        self.there().go()
        archive = self.ours.archive
        assert archive is not None
        write = self.synchronizer.write

        def die_before(_writes: Any) -> Any:
            self.synchronizer.write = write  # type: ignore[method-assign]
            raise Killed

        self.synchronizer.write = die_before  # type: ignore[method-assign]
        with self.assertRaises(Killed):
            archive.archive(self.context, None, None)
        self.back().go()
        self.assert_back(before)
        self.assert_archived_once()

    # -- rows that are odd --------------------------------------------------------------------

    def test_a_row_that_is_neither_live_nor_deleted_is_named_first(self) -> None:
        nova_table.fill([row(1), row(2, deleted=None)])
        before = self.dump()
        with self.assertRaisesRegex(transfer_refusals.TransferRefused, "id 2: n2 on h2"):
            self.there().go()
        self.assertEqual((before, MIRROR), (self.dump(), self.state().mode))

    def test_a_row_whose_id_is_below_one_is_named_first(self) -> None:
        nova_table.fill([row(-4), row(1), deleted(-7)])
        before = self.dump()
        with self.assertRaisesRegex(
            transfer_refusals.TransferRefused, "id -7: n-7 on h-7; id -4: n-4 on h-4"
        ):
            self.there().go()
        self.assertEqual((before, MIRROR), (self.dump(), self.state().mode))

    def test_odd_rows_come_back_as_they_were(self) -> None:
        letters = "grün-Ω-日本"
        nova_table.fill(
            [
                row(3, hypervisor_hostname=letters, host=letters, mapped=None),
                row(7, mapped=-1, cpu_info="x" * 1_000_000, host_ip="2001:db8::1"),
                row(8, uuid="8", host="H8", hypervisor_hostname=None, stats=""),
                row(9, updated_at=nova_table.MOMENT, cpu_allocation_ratio=1.3333334),
                row(10, cpu_info="", hypervisor_type="", hypervisor_hostname=""),
                *(deleted(number, uuid=None, host=None) for number in (500, 70_000)),
                deleted(2_000_000_000, uuid="big", created_at=None),
                row(70_001, deleted=3, deleted_at=None),
            ]
        )
        self.device(1, 500)
        before, raw = self.rows(), nova_table.by_id(nova_table.rows())
        self.there().go()
        self.assertEqual(before, self.recorded())
        self.back().go()
        self.assert_back(before)
        self.assertEqual(raw, nova_table.by_id(nova_table.rows()))

    def test_two_files_of_one_moment_are_two(self) -> None:
        self.populate()
        files = {
            self.transfer.export(self.context, cloud.CELL1, self.directory)[0] for _each in "ab"
        }
        self.assertEqual(2, len(files))


class OnSQLiteTest(Disturbance, cell_databases.OnSQLite):
    """Nothing of its own."""


class _WithSequence(Disturbance):
    """Of databases that know which ids they gave."""

    def test_an_id_of_a_row_that_was_purged_is_given_to_no_other(self) -> None:
        nova_table.fill([row(1)])
        self.table.continue_ids(2)
        values = {name: value for name, value in row(9).items() if name != "id"}
        purged = 0
        for _each in range(30):
            made = main_db.compute_node_create(self.context, values)
            purged = made.id
            with nova_table.engine().begin() as connection:
                connection.execute(sa.text(f"DELETE FROM compute_nodes WHERE id = {purged}"))
        self.there().go()
        new = self.ours.writer.compute_node_create(nova_table.context(), values)
        self.assertGreater(new.id, purged)
        self.back().go()
        other = {name: value for name, value in row(10).items() if name != "id"}
        self.assertGreater(main_db.compute_node_create(self.context, other).id, new.id)


class OnMariaDBTest(_WithSequence, cell_databases.OnMariaDB):
    """Nothing of its own."""


class OnPostgreSQLTest(_WithSequence, cell_databases.OnPostgreSQL):
    """Nothing of its own."""


class KilledServerTest(transfer_case.TransferCase, cell_databases.OnMariaDB):
    """The server of the cell's database is killed in the midst of what changes its schema."""

    IS_PRIVATE = True
    #: Statements that change the table's place, its key or its rows.
    CHANGES = ("ALTER TABLE", "RENAME TABLE", "DELETE FROM", "INSERT INTO")

    def setUp(self) -> None:
        super().setUp()
        self.killed: set[tuple[str, str]] = set()
        for moment in ("before", "after"):
            listener = functools.partial(self.kill_once, moment)
            event.listen(sa.Engine, f"{moment}_cursor_execute", listener)
            self.addCleanup(event.remove, sa.Engine, f"{moment}_cursor_execute", listener)

    def kill_once(self, moment: str, _connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        """Kill it before it is sent such a statement, and another time before it commits it."""
        change = next((each for each in self.CHANGES if text.lstrip().startswith(each)), None)
        if self.is_armed and change and (moment, change) not in self.killed:
            self.killed.add((moment, change))
            self.server.kill()

    is_armed = False

    def gone(self, way: Callable[[], node_transfer.Way]) -> int:
        """Call the same command again and again; return how often the server died under it."""
        for died in range(10):
            self.is_armed = True
            try:
                way().go()
                return died
            except (db_exception.DBError, sa.exc.SQLAlchemyError):
                self.server.start()
            finally:
                self.is_armed = False
        raise AssertionError("it never came to its end")

    def test_the_same_call_goes_on_there_and_back(self) -> None:
        self.populate()
        before = self.rows()
        self.assertGreaterEqual(self.gone(self.there), 4)
        self.assertEqual(RETIRED, self.state().mode)
        self.killed.clear()
        self.assertGreaterEqual(self.gone(self.back), 4)
        self.assertEqual((MIRROR, THERE), (self.state().mode, self.state().place))
        self.assertEqual(before, self.rows())
        self.assertEqual(table_retirement.NOVAS_KEY, self.state().key)


# Of no database by itself.
del Disturbance, _WithSequence
