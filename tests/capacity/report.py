# SPDX-License-Identifier: Apache-2.0
"""The races' figures for the documents: one line for each kind of control plane and race."""

import json
import pathlib
from collections.abc import Iterable

_COLUMNS = (
    "control plane",
    "race",
    "runs",
    "ACTIVE",
    "no valid host",
    "other ends",
    "builds on the failing host",
    "builds beyond the first",
    "late checks failed",
    "servers beyond room",
    "VCPU over-allocated",
)
_FIGURES = (
    "active",
    "refused",
    "other",
    "failed_builds",
    "reschedules",
    "late_checks_failed",
    "crowded",
    "over_allocated",
)
_RACES = {"slots": "40 for 24 slots", "group": "12 apart on 6 hosts"}
_FAILING = {"slots": "16 for 20 slots", "group": "5 apart on 5 hosts"}
"""Hosts where builds fail are not counted."""


def to_rst(results: pathlib.Path) -> str:
    """Return a table of all results below a directory, least and most of each figure."""
    rows = [_row(path) for path in sorted(results.glob("capacity-*.json"))]
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for cells in (_COLUMNS, *(row for of_file in rows for row in of_file)):
        lines += [f"   {'* -' if not n else '  -'} {cell}" for n, cell in enumerate(cells)]
    return "\n".join(lines) + "\n"


def _row(path: pathlib.Path) -> list[tuple[str, ...]]:
    runs = json.loads(path.read_text())
    _, kind, *failing, schedulers = path.stem.split("-")
    name = f"{'stock' if kind == 'stock' else 'the plugin'}, {schedulers} schedulers"
    if failing:
        name += ", builds on one more host fail"
    found = []
    for race, what in (_FAILING if failing else _RACES).items():
        own = [run for run in runs if run["race"] == race]
        if own:
            figures = [_range(run[name] for run in own) for name in _FIGURES]
            found.append((name, what, str(len(own)), *figures))
    return found


def _range(values: Iterable[int]) -> str:
    known = sorted(values)
    return str(known[0]) if known[0] == known[-1] else f"{known[0]} to {known[-1]}"
