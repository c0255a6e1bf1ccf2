# SPDX-License-Identifier: Apache-2.0
"""Outcomes as a table for people, as JSON, and as reStructuredText for the documents."""

import json
from collections.abc import Iterable, Mapping, Sequence

import attrs
from rich import table as rich_table

from tests.faults import trial as trial_module

_HEADINGS = (
    "fault",
    "servers ACTIVE",
    "not proved after",
    "read from databases meanwhile",
    "in memory again after",
    "compare",
    "run on",
)
_EARLIER = "earlier"
"""Of a row that did not say when."""


def table(outcomes: Iterable[trial_module.Outcome]) -> rich_table.Table:
    """For a terminal."""
    made = rich_table.Table("", *_HEADINGS, "outcome", title="Faults on a real control plane")
    for outcome in outcomes:
        verdict = "[green]as promised[/green]" if outcome.passed else "[red]NOT[/red]"
        made.add_row(str(outcome.number), *_cells(outcome), verdict)
    return made


def to_json(outcomes: Iterable[trial_module.Outcome]) -> str:
    rows = [{**attrs.asdict(outcome), "passed": outcome.passed} for outcome in outcomes]
    return json.dumps(rows, indent=1)


def from_json(text: str) -> list[trial_module.Outcome]:
    """Outcomes of an earlier run."""
    names = {field.name for field in attrs.fields(trial_module.Outcome)}
    return [
        trial_module.Outcome(**{name: value for name, value in row.items() if name in names})
        for row in json.loads(text)
    ]


def to_rst(outcomes: Iterable[trial_module.Outcome], former: str, order: Sequence[str]) -> str:
    """A list-table, to be included by a document.

    :param former: the table as it was; its rows of faults that did not run now stay
    :param order: all faults, as they are listed
    """
    rows = _rows(former) | {outcome.fault: _cells(outcome) for outcome in outcomes}
    lines = [
        ".. Written by tools/faults.sh --file.",
        "",
        ".. list-table::",
        "   :header-rows: 1",
        "   :widths: 28 10 10 24 10 8 10",
        "",
        *_row(_HEADINGS),
    ]
    for fault in order:
        if fault in rows:
            lines += _row(rows[fault])
    return "\n".join([*lines, ""])


def _rows(table: str) -> dict[str, tuple[str, ...]]:
    """The rows of a table written by :func:`to_rst`, by their faults."""
    found: list[list[str]] = []
    for line in table.splitlines():
        if line.startswith("   * - "):
            found.append([])
        if found:
            found[-1].append(line[7:])
    padding = [_EARLIER] * len(_HEADINGS)
    return {row[0]: tuple([*row, *padding][: len(_HEADINGS)]) for row in found[1:]}


def _row(cells: Sequence[str]) -> list[str]:
    first, *rest = cells
    return [f"   * - {first}", *(f"     - {cell}" for cell in rest)]


def _cells(outcome: trial_module.Outcome) -> tuple[str, ...]:
    return (
        outcome.fault,
        f"{outcome.active} of {outcome.asked}",
        _seconds(outcome.noticed_seconds, "never"),
        _fallbacks(outcome.fallbacks),
        _seconds(outcome.recovery_seconds, "n/a"),
        "clean" if outcome.compare_clean else "differs",
        outcome.run_on or _EARLIER,
    )


def _fallbacks(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{reason}: {count}" for reason, count in counts.items()) or "none"


def _seconds(value: float | None, otherwise: str) -> str:
    return otherwise if value is None else f"{value:.0f} s"
