# SPDX-License-Identifier: Apache-2.0
"""Whose word counts for compute nodes: what cells record, what processes are configured for."""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from nova_nodb_scheduler.cmd.overview import cell_names

#: Of a cell of which nothing is recorded, and of a process of a release that knows no other.
MIRROR = "mirror"

#: Scopes that have no compute nodes.
_WITHOUT = frozenset(("api", cell_names.CELL0))


def recorded(states: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the modes that are recorded, by cell.

    :param states: of the records of cells
    """
    return {cell: str(state["mode"]) for cell, state in states.items() if "mode" in state}


def that_differ(
    modes: Mapping[str, str], cells: Collection[str], processes: Collection[Mapping[str, Any]]
) -> list[str]:
    """Say which living processes are configured for another mode than a cell is in.

    :param modes: as they are recorded
    :param cells: that are known
    """
    known = {cell: modes.get(cell, MIRROR) for cell in {*cells, *modes} - _WITHOUT}
    return [problem for each in processes if each["alive"] for problem in _of_process(known, each)]


def _of_process(modes: Mapping[str, str], process: Mapping[str, Any]) -> Iterator[str]:
    own = process["compute_nodes"] or MIRROR
    name = f"The {process.get('role') or 'scheduler'} on {process['host']}"
    name += f" (process {process['pid']})"
    cell = process.get("cell")
    concerned: Mapping[str, str] = modes
    if cell not in (None, "*"):
        concerned = {} if cell in _WITHOUT else {str(cell): modes.get(str(cell), MIRROR)}
    differing = sorted(each for each, mode in concerned.items() if mode != own)
    if differing:
        others = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
        yield (
            f"{name} is configured for compute_nodes = {own}, and cell {differing[0]}{others} is "
            f"in mode {concerned[differing[0]]}: give all services the mode that is recorded, "
            "and restart it."
        )
    statements = process["compute_node_statements"]
    if statements:
        told = ", ".join(f"{verb}: {count}" for verb, count in sorted(statements.items()))
        yield (
            f"{name} has met SQL statements that name compute_nodes although records answer for "
            f"it ({told}); its log says who sent them."
        )


def line(modes: Mapping[str, str], processes: Collection[Mapping[str, Any]]) -> str | None:
    """Return what an operator is told in one line; None where Nova's table counts everywhere."""
    living = [each for each in processes if each["alive"]]
    configured = collections.Counter(each["compute_nodes"] or MIRROR for each in living)
    if set(modes.values()) | configured.keys() <= {MIRROR}:
        return None
    statements = sum(sum((each["compute_node_statements"] or {}).values()) for each in living)
    return (
        f"Compute nodes: {_counted(collections.Counter(modes.values()), 'cell')} by the back "
        f"end, {_counted(configured, 'process', 'processes')} by configuration; statements that "
        f"named the table all the same: {statements}."
    )


def _counted(counts: Mapping[str, int], noun: str, plural: str | None = None) -> str:
    told = [
        f"{mode} of {count} {noun if count == 1 else plural or noun + 's'}"
        for mode, count in sorted(counts.items())
    ]
    return ", ".join(told) or f"no {noun}"
