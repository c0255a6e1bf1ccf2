# SPDX-License-Identifier: Apache-2.0
"""Which conductors of a cell write heartbeats to journals, and for whom a cell waits to do so.

By what processes say in their beats, which is what conductors themselves go by.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from nova_nodb_scheduler.scheduling.namespaces import reporter_facts

#: Mode of heartbeats in which nobody writes rows.
_STORE = "store"


def of_cell(
    cell: str,
    mode: str,
    schedulers: Collection[Mapping[str, Any]],
    reporters: Collection[Mapping[str, Any]],
    unread: Collection[str] = (),
) -> dict[str, Any] | None:
    """Say of a cell who journals; None where no conductor of it is configured for it.

    :param mode: where its heartbeats stand, as it is recorded
    :param unread: records of beats that nobody can read: of whichever cell they are
    """
    conductors = [each for each in reporters if each["alive"] and cell in each["guards"]]
    configured = [each for each in conductors if each["heartbeat_journals"] is True]
    if not configured:
        return None
    return {
        "conductors": len(conductors),
        "configured": len(configured),
        "writing": sum(map(reporter_facts.journals, conductors)),
        "waits_for": sorted((*_against(mode, schedulers, conductors), *map(_record, unread))),
    }


def _against(
    mode: str,
    schedulers: Collection[Mapping[str, Any]],
    conductors: Collection[Mapping[str, Any]],
) -> Iterator[str]:
    """Name who keeps a cell from journals."""
    if mode == _STORE:
        yield "the mode of its heartbeats, which is store"
    for each in conductors:
        if each["heartbeat_journals"] is not True:
            yield f"the {each['role']} on {each['host']} (process {each['pid']})"
    for each in schedulers:
        # Of a worker that answers and has sent no beat yet nothing is known, to conductors either.
        if each["alive"] and each["beat_at"] is not None and each["reads_journals"] is not True:
            yield f"the scheduler on {each['host']} (process {each['pid']})"


def _record(name: str) -> str:
    return f"who wrote record {name}, which cannot be read"


def that_wait(cells: Collection[Mapping[str, Any]]) -> list[str]:
    """Say which cells are kept from journals that some of their conductors are configured for."""
    return [
        f"{told['configured']} of {told['conductors']} conductors of cell {each['cell']} are "
        "configured for heartbeat_journals, and heartbeats go to records as long as these live: "
        f"{', '.join(told['waits_for'])}. Configure conductors alike, and run a release that reads "
        "journals on schedulers."
        for each in cells
        if (told := each["journals"]) is not None and told["waits_for"]
    ]


def lines(cells: Collection[Mapping[str, Any]]) -> dict[str, str]:
    """Return what an operator is told of each cell whose conductors are configured for journals."""
    return {
        str(each["cell"]): (
            f"{told['writing']} of {told['conductors']} conductors write heartbeats to journals, "
            f"{told['configured']} are configured for it"
        )
        for each in cells
        if (told := each["journals"]) is not None
    }
