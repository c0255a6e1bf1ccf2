# SPDX-License-Identifier: Apache-2.0
"""Which processes are told to differ from what cells record of their compute nodes."""

from __future__ import annotations

from typing import Any

import testtools

from nova_nodb_scheduler.cmd.overview import cell_names, node_modes

_CELL = "c1"


def process(cell: str | None, mode: str | None, **more: Any) -> dict[str, Any]:
    return {
        "role": "conductor",
        "host": "one",
        "pid": 7,
        "cell": cell,
        "alive": True,
        "compute_nodes": mode,
        "compute_node_statements": {},
        **more,
    }


class ProcessesThatDifferTest(testtools.TestCase):
    def told(self, *processes: dict[str, Any]) -> list[str]:
        return node_modes.that_differ(
            {_CELL: "retired"}, [_CELL, cell_names.CELL0, "api"], processes
        )

    def test_a_super_conductor_serves_no_cell_that_has_compute_nodes(self) -> None:
        self.assertEqual([], self.told(process(cell_names.CELL0, "retired")))

    def test_a_conductor_of_another_mode_is_named_with_its_cell(self) -> None:
        [told] = self.told(process(_CELL, None))
        self.assertIn("conductor on one (process 7)", told)
        self.assertIn("compute_nodes = mirror, and cell c1 is in mode retired", told)

    def test_who_writes_all_cells_is_held_against_each(self) -> None:
        self.assertEqual([], self.told(process("*", "retired"), process(None, "retired")))
        self.assertEqual(1, len(self.told(process("*", "store"))))

    def test_who_is_gone_is_not_told_of(self) -> None:
        self.assertEqual([], self.told(process(_CELL, "store", alive=False)))

    def test_a_super_conductor_that_met_statements_is_named(self) -> None:
        met = process(cell_names.CELL0, "retired", compute_node_statements={"SELECT": 2})
        [told] = self.told(met)
        self.assertIn("SELECT: 2", told)
