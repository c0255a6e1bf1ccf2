# SPDX-License-Identifier: Apache-2.0
"""Outcomes as a table for people, as JSON, and as reStructuredText for the documents."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import attrs
from rich import table as rich_table

from tests.engine_faults import fault

_STEP_LAYERS = ("driver", "claims")
_PAST = {"kill": "killed", "freeze": "frozen", "nap": "frozen for a second"}


def table(outcomes: Iterable[fault.Outcome]) -> rich_table.Table:
    """For a terminal."""
    made = rich_table.Table(
        *("engine", "fault", "outcome", "recovery s", "bound s", "settled s", "grants", "notes"),
        title="Faults of engines and schedulers",
    )
    for each in outcomes:
        verdict = "[green]as promised[/green]" if each.passed else f"[red]{each.detail[:200]}[/red]"
        notes = ", ".join(f"{name}: {value}" for name, value in each.notes.items())
        made.add_row(
            each.engine,
            each.fault,
            verdict,
            _seconds(each.recovery_seconds),
            f"{each.bound_seconds:g}",
            _seconds(each.settled_seconds),
            str(each.granted),
            notes,
        )
    return made


def to_json(outcomes: Iterable[fault.Outcome]) -> str:
    return json.dumps([attrs.asdict(each) for each in outcomes], indent=1) + "\n"


def from_json(text: str) -> list[fault.Outcome]:
    """Return the outcomes of an earlier run."""
    return [fault.Outcome(**row) for row in json.loads(text)]


def to_rst(outcomes: Sequence[fault.Outcome]) -> str:
    """A list-table, to be included by a document; steps are counted in one row each."""
    lines = [
        ".. Written by python -m tests.engine_faults --file.",
        "",
        ".. list-table::",
        "   :header-rows: 1",
        "   :widths: 20 44 16 10 10",
        "",
        *_row(("engine", "fault", "as promised", "recovery s", "bound s")),
    ]
    for engine in dict.fromkeys(each.engine for each in outcomes):
        of_engine = [each for each in outcomes if each.engine == engine]
        for action, past in _PAST.items():
            for layer in _STEP_LAYERS:
                prefix = f"{action} at {layer}: "
                found = [each for each in of_engine if each.fault.startswith(prefix)]
                if found:
                    of = "the driver" if layer == "driver" else "the claims"
                    what = f"a scheduler {past} at each of {len(found)} steps of {of}"
                    lines += _row((engine, what, *_figures(found)))
        for each in of_engine:
            if not each.fault.startswith(tuple(f"{action} at " for action in _PAST)):
                lines += _row((engine, each.fault, *_figures([each])))
    return "\n".join([*lines, ""])


def _figures(found: Sequence[fault.Outcome]) -> tuple[str, str, str]:
    passed = sum(each.passed for each in found)
    known = [each.recovery_seconds for each in found if each.recovery_seconds is not None]
    return (
        f"{passed} of {len(found)}",
        _seconds(max(known, default=None)),
        f"{found[0].bound_seconds:g}",
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _row(cells: Iterable[str]) -> list[str]:
    first, *rest = cells
    return [f"   * - {first}", *(f"     - {cell}" for cell in rest)]
