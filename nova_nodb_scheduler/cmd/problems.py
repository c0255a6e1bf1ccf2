# SPDX-License-Identifier: Apache-2.0
"""Says what is not as it should be in a deployment."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from nova_nodb_scheduler.cmd import backend_records

#: A feed in any other state serves nothing that is proved.
FOLLOWING = "following"
#: How the state of a worker begins that takes no request before all is proved.
STARTING = "starting, "


def find(
    backend: backend_records.Backend,
    schedulers: Collection[Mapping[str, Any]],
    reporters: Collection[Mapping[str, Any]],
    cells: Collection[Mapping[str, Any]],
    mirror: Mapping[str, Any],
    mirror_bound_seconds: float,
) -> list[str]:
    """Say in sentences what is not as it should be.

    :param mirror: of Placement; empty where none was compared in this epoch
    :param mirror_bound_seconds: age beyond which schedulers do not use it
    """
    found = []
    if backend.error is not None:
        found.append(f"The back end cannot be read: {backend.error}")
    found += [f"Record {name} cannot be read." for name in backend.unreadable]
    if not any(each["alive"] for each in schedulers):
        found.append("No scheduler with the plugin runs.")
    found += [problem for each in schedulers for problem in _of_scheduler(each)]
    found += claims_that_differ(schedulers, reporters)
    found += _claims_not_judged(schedulers, mirror, mirror_bound_seconds)
    for each in reporters:
        if not each["alive"]:
            found.append(f"Reporter {each['id']} is silent for {each['age_seconds']:.0f} s.")
    for each in cells:
        for worker, reason in each["reasons"].items():
            found.append(f"Cell {each['cell']} is not proved for {worker}: {reason}.")
    return found


def claims_that_differ(
    schedulers: Collection[Mapping[str, Any]], reporters: Collection[Mapping[str, Any]]
) -> list[str]:
    """Say who claims hosts beside others that do not; empty where all agree.

    Schedulers, and the conductors that move servers on by themselves.
    """
    names: dict[bool, list[str]] = {True: [], False: []}
    for each in (*schedulers, *reporters):
        # Of a worker that answers and has sent no beat yet nothing is known.
        if each["alive"] and each["claiming"] is not None:
            names[bool(each["claiming"])].append(_name(each))
    if not (names[True] and names[False]):
        return []
    claiming, others = (", ".join(names[kind]) for kind in (True, False))
    return [
        (
            f"Of schedulers and conductors {claiming} claim hosts and {others} do not: together "
            "they may over-commit hosts. Give all of them the same [nodb_scheduler] claims and "
            "candidates, and restart those that differ."
        )
    ]


def _claims_not_judged(
    schedulers: Collection[Mapping[str, Any]], mirror: Mapping[str, Any], bound_seconds: float
) -> list[str]:
    """Say that schedulers would claim, and lack what a claim is judged by."""
    if not any(each["alive"] and each["claiming"] for each in schedulers):
        return []
    if mirror and float(mirror["age_seconds"]) <= bound_seconds:
        return []
    when = f"for {mirror['age_seconds']:.0f} s" if mirror else "since the back end is in use"
    return [
        (
            f"The mirror of Placement was not compared {when}: schedulers ask Placement itself, "
            "and claim no hosts. If it lasts, see in their logs whether Placement answers."
        )
    ]


def _name(each: Mapping[str, Any]) -> str:
    return f"{each['host']} (process {each['pid']})"


def _of_scheduler(each: Mapping[str, Any]) -> list[str]:
    """Say what is not as it should be with one scheduler."""
    name = f"Scheduler {_name(each)}"
    if not each["alive"]:
        return [f"{name} is silent for {each['age_seconds']:.0f} s."]
    found = []
    if each["answered"] is False:
        found.append(f"{name} does not answer: {each['error']}")
    if str(each["state"]).startswith(STARTING):
        found.append(f"{name} takes no request yet: {each['state']}{_waits_for(each)}.")
    elif each["state"] != FOLLOWING:
        found.append(f"{name}: its feed is {each['state']}.")
    if each["quarantined"]:
        found.append(f"{name} cannot read {each['quarantined']} records.")
    if each["left_out"]:
        found.append(
            f"{name} leaves {each['left_out']} hosts out whose records it does not understand."
        )
    return found


def _waits_for(each: Mapping[str, Any]) -> str:
    """Say what is not proved yet, where the worker answers."""
    detail = ((each.get("detail") or {}).get("feed") or {}).get("detail")
    return f" (waits for {detail})" if detail else ""
