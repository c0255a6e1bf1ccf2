# SPDX-License-Identifier: Apache-2.0
"""Rounds as JSON, as a table for a terminal, and as the one that the documents include."""

import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence

import attrs
import numpy as np
from rich import table as rich_table

from tests.waiting import trial

_COLUMNS = (
    "rounds",
    "asked",
    "slots",
    "stood first",
    "waited",
    "in ERROR",
    "builds failed at a compute",
    "given up there, and sent again",
    "lost",
    "twice",
    "out of order",
    "over capacity",
    "room used after p50, longest",
    "stood after p50, longest",
    "user's call p50, longest",
)


def to_json(rounds: Iterable[trial.Round]) -> str:
    return json.dumps([attrs.asdict(each) for each in rounds], indent=1) + "\n"


def from_json(text: str) -> list[trial.Round]:
    """Read what :func:`to_json` wrote."""
    found = []
    for values in json.loads(text):
        lists = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        found.append(trial.Round(**lists))
    return found


def row(rounds: Sequence[trial.Round]) -> list[str]:
    """Return the cells of a series."""
    counts = [
        sum(each.asked for each in rounds),
        sum(each.slots for each in rounds),
        sum(each.active_first for each in rounds),
        sum(each.waiting for each in rounds),
        *(
            sum(len(getattr(each, name)) for each in rounds)
            for name in ("failed", "failed_builds", "sent_again", "lost", "twice", "out_of_order")
        ),
        max((each.over for each in rounds), default=0),
    ]
    waits = [
        _quantiles([s for each in rounds for s in getattr(each, name)])
        for name in ("placed_seconds", "active_seconds", "call_seconds")
    ]
    return [str(len(rounds)), *map(str, counts), *waits]


def table(series: Mapping[str, Sequence[trial.Round]]) -> rich_table.Table:
    """Return a table, a row a series."""
    found = rich_table.Table("series", *_COLUMNS)
    for name, rounds in series.items():
        found.add_row(name, *row(rounds))
    return found


def to_rst(results: pathlib.Path) -> str:
    """Return the documents' table of all series that are filed."""
    lines = [
        ".. Written by tools/waiting.sh --file.",
        "",
        ".. list-table::",
        "   :header-rows: 1",
        "",
    ]
    rows = [["series", *_COLUMNS]]
    for path in sorted(results.glob("waiting-*.json")):
        rows.append([path.stem.removeprefix("waiting-"), *row(from_json(path.read_text()))])
    for cells in rows:
        lines += [f"   {'*' if not i else ' '} - {cell}" for i, cell in enumerate(cells)]
    return "\n".join(lines) + "\n"


def _quantiles(seconds: Sequence[float]) -> str:
    if not seconds:
        return "not measured"
    return ", ".join(
        f"{each:.1f} s" if each >= 1 else f"{each:.2f} s"
        for each in (float(np.median(seconds)), max(seconds))
    )
