# SPDX-License-Identifier: Apache-2.0
"""What is said of cells whose compute nodes are in tables, in records, or between them."""

import attrs
import testtools
from oslo_upgradecheck import upgradecheck

from nova_nodb_scheduler.cmd.overview import node_cells
from nova_nodb_scheduler.cmd.upgrade_check import judgements
from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes
from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import node_transfer, table_retirement

Mode, Place = cell_modes.NodeMode, table_retirement.TablePlace
Code = upgradecheck.Code

MIRROR = node_transfer.CellState(
    mode=Mode.MIRROR,
    place=Place.THERE,
    live=3,
    deleted=1,
    table_rows=4,
    key=table_retirement.NOVAS_KEY,
    next_id=None,
    unreadable=(),
)
RETIRED = attrs.evolve(
    MIRROR, mode=Mode.RETIRED, place=Place.AWAY, table_rows=0, key=None, next_id=9
)


def cell(state, configured=None, name="c1", **more):
    return node_cells.NodeCell(name, configured or (state.mode if state else None), state, **more)


class NodeCellsTest(testtools.TestCase):
    def judged(self, *found):
        return judgements.result(judgements.judge_compute_nodes(found))

    def test_where_table_and_mode_agree_there_is_no_problem(self):
        store = attrs.evolve(MIRROR, mode=Mode.STORE, next_id=9)
        for state in (MIRROR, RETIRED, store):
            self.assertEqual([], node_cells.problems([cell(state)]))
            self.assertEqual(Code.SUCCESS, self.judged(cell(state)).code)

    def test_a_nova_upgrade_with_the_table_away_is_told_what_to_do_first(self):
        self.assertIn("prepare-upgrade", self.judged(cell(RETIRED)).details)
        self.assertNotIn("prepare-upgrade", self.judged(cell(MIRROR)).details)

    def test_cells_in_another_mode_than_the_configured_one_share_a_sentence(self):
        result = self.judged(cell(RETIRED, Mode.STORE), cell(RETIRED, Mode.STORE, "c2"))
        self.assertEqual(Code.FAILURE, result.code)
        self.assertIn(
            "cells c1, c2 are in mode retired, and this configuration says store", result.details
        )
        self.assertIn("'nova-nodb-manage compute-nodes retire --keep-table'", result.details)

    def test_each_place_of_the_table_that_is_none_is_named(self):
        for state, said in (
            (attrs.evolve(MIRROR, place=Place.BOTH, table_rows=None), "two tables"),
            (attrs.evolve(RETIRED, place=Place.MISSING, table_rows=None), "no table"),
            (attrs.evolve(MIRROR, place=Place.AWAY, table_rows=0, key=None), "lost its records"),
            (attrs.evolve(MIRROR, table_rows=0, key=None), "lost its records"),
            (attrs.evolve(RETIRED, place=Place.THERE), "upgrade of Nova"),
            (attrs.evolve(RETIRED, place=Place.THERE, table_rows=4), "has not ended"),
            (attrs.evolve(RETIRED, table_rows=4), "has not ended"),
            (attrs.evolve(MIRROR, mode=Mode.STORE, place=Place.AWAY, key=None), "has not ended"),
        ):
            result = self.judged(cell(state))
            self.assertEqual(Code.FAILURE, result.code)
            self.assertIn(said, result.details)

    def test_what_harms_nobody_now_is_a_warning(self):
        for found, said in (
            (cell(attrs.evolve(MIRROR, key=None)), "no foreign key"),
            (cell(RETIRED, orphans=("Devices name nodes",)), "In cell c1: Devices"),
            (cell(None, Mode.MIRROR, error="gone"), "is not known: gone"),
        ):
            result = self.judged(found)
            self.assertEqual(Code.WARNING, result.code)
            self.assertIn(said, result.details)

    def test_migrations_that_have_not_run_are_told_with_the_way_to_run_them(self):
        result = self.judged(cell(RETIRED, awaits_migrations=True))
        self.assertEqual(Code.WARNING, result.code)
        self.assertIn("have not run on cell c1", result.details)
        self.assertIn("prepare-upgrade', 'nova-manage db sync', and", result.details)
        prepared = attrs.evolve(RETIRED, place=Place.THERE)
        for awaits in (True, False):
            result = self.judged(cell(prepared, awaits_migrations=awaits))
            self.assertEqual(Code.FAILURE, result.code)
            self.assertEqual(awaits, "run 'nova-manage db sync', then take" in result.details)

    def test_rows_behind_records_that_none_of_them_holds_are_a_failure(self):
        store = attrs.evolve(MIRROR, mode=Mode.STORE, next_id=9)
        for rows, unreadable, code in (
            (4, (), Code.SUCCESS),
            # Its record is written first, and forgotten last.
            (3, (), Code.SUCCESS),
            (5, ("u@c1",), Code.FAILURE),
            (5, (), Code.FAILURE),
        ):
            result = self.judged(cell(attrs.evolve(store, table_rows=rows, unreadable=unreadable)))
            self.assertEqual(code, result.code)
            self.assertEqual(
                rows == 5 and not unreadable, "rows that no record holds" in result.details
            )
        # Where the table counts there are no records to hold them.
        self.assertEqual([], node_cells.problems([cell(attrs.evolve(MIRROR, table_rows=9))]))

    def test_records_that_cannot_be_read_are_a_failure(self):
        result = self.judged(cell(attrs.evolve(RETIRED, unreadable=("u@c1",))))
        self.assertEqual(Code.FAILURE, result.code)
        self.assertIn("u@c1", result.details)
