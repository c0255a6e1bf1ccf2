# SPDX-License-Identifier: Apache-2.0
"""Puts together what the back end and schedulers say of a deployment, and what is wrong in it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler.cmd.overview import (
    journaling,
    node_modes,
    process_reports,
    replaced_workers,
)
from nova_nodb_scheduler.model import backend_time
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces, reporter_facts
from nova_nodb_scheduler.wire import objects

#: A feed in any other state serves nothing that is proved.
FOLLOWING = "following"
#: How the state of a worker begins that takes no request before all is proved.
STARTING = "starting, "


def find_problems(
    backend: process_reports.Backend,
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
    found += heartbeats_that_differ(cells, reporters)
    found += journaling.that_wait(cells)
    found += node_modes.that_differ(
        node_modes.recorded(backend.node_cells),
        [str(each["cell"]) for each in cells],
        (*schedulers, *reporters),
    )
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


#: Mode of a cell whose conductors recorded none, and of a configuration that says none.
_ROWS_ALONE = "database"


def heartbeats_that_differ(
    cells: Collection[Mapping[str, Any]], reporters: Collection[Mapping[str, Any]]
) -> list[str]:
    """Say which processes are configured otherwise than where a cell's heartbeats stand."""
    modes = {str(each["cell"]): str(each["heartbeats"]) for each in cells}
    found = []
    for each in reporters:
        own, name = each["service_heartbeats"], f"The {each['role']} on {_name(each)}"
        if not each["alive"]:
            continue
        concerned = sorted(modes) if each["cell"] == "*" else [str(each["cell"])]
        for cell in concerned:
            mode = modes.get(cell, _ROWS_ALONE)
            if own is None and mode != _ROWS_ALONE:
                found.append(
                    f"{name} runs a release of the plugin that reads no heartbeats from the back "
                    f"end, where those of cell {cell} stand: upgrade and restart it."
                )
            elif cell in each["guards"] and (own or _ROWS_ALONE) != mode:
                found.append(
                    f"{name} is configured for service_heartbeats = {own}, and cell {cell} is in "
                    f"mode {mode}: if it stays so, the log of the conductor says for whom it waits."
                )
            elif own == _ROWS_ALONE and mode == "store":
                found.append(
                    f"{name} is configured for service_heartbeats = {own}, and those of cell "
                    f"{cell} are stored: set it to store there."
                )
    return found


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


#: Behind the end of a lease: for its own scheduler to end it, and for another to take that over.
_SETTLED_WITHIN_SECONDS = 60.0


def _claims_not_settled(claims: Mapping[str, Any], lease_seconds: float) -> list[str]:
    """Say that nobody ends claims of schedulers that died: their room stays taken.

    A thread that hangs says for ever that it settles, so what it is to end is looked at.
    """
    if not claims:
        return []
    oldest_seconds = float(claims.get("oldest_pending_seconds", 0.0))
    if oldest_seconds > lease_seconds + _SETTLED_WITHIN_SECONDS:
        return [
            (
                f"A pending claim is {oldest_seconds:.0f} s old: nobody settles claims, and their "
                "room stays taken. Look at the logs of schedulers."
            )
        ]
    if claims["settles"] is None:
        return ["No scheduler settles claims that others leave. Their logs say why."]
    return []


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
    if each["keeps_queue"] and not each["queue"]:
        found.append(
            f"{name} wakes no request that waits for room: hosts are not proved to it, or its "
            "thread ended. Its log says which."
        )
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


#: Key of the mirror of Placement in namespace ``mirrors``.
PLACEMENT_MIRROR = "placement"


@attrs.frozen
class Deployment:
    """The whole as it is shown. Mappings hold plain values, for tables and JSON alike."""

    backend: process_reports.Backend
    schedulers: tuple[Mapping[str, Any], ...]
    reporters: tuple[Mapping[str, Any], ...]
    cells: tuple[Mapping[str, Any], ...]
    mirror: Mapping[str, Any]
    claims: Mapping[str, Any]
    problems: tuple[str, ...]

    @property
    def compute_nodes(self) -> str | None:
        """Whose word counts for compute nodes, where it is not Nova's table's everywhere."""
        modes = node_modes.recorded(self.backend.node_cells)
        return node_modes.line(modes, (*self.schedulers, *self.reporters))

    @property
    def error(self) -> str | None:
        """Why the back end could not be read; None if it was."""
        return self.backend.error

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "backend": self.backend.as_dict(),
            "schedulers": list(self.schedulers),
            "reporters": list(self.reporters),
            "cells": list(self.cells),
            "mirror": dict(self.mirror),
            "claims": dict(self.claims),
            "problems": list(self.problems),
            "healthy": not self.problems,
        }


def gather(
    backend: process_reports.Backend,
    ask: process_reports.Ask | None,
    expected: tuple[type[Exception], ...],
    bound_seconds: float,
    mirror_bound_seconds: float,
    claim_lease_seconds: float = math.inf,
) -> Deployment:
    """Put together what the back end says and what schedulers answer.

    :param ask: None where nobody is to be asked: what schedulers would answer is not known then
    :param bound_seconds: silence after which a process is not taken to live
    :param mirror_bound_seconds: age beyond which the mirror of Placement is not used
    :param claim_lease_seconds: how long a claim may be pending; not judged without it
    """
    alive: dict[str, set[int]] = {}
    living = set()
    for worker, beat in backend.schedulers.items():
        if backend.age_seconds(beat) <= bound_seconds:
            living.add(worker)
            alive.setdefault(str(beat.get("host")), set()).add(int(beat.get("pid", 0)))
    replaced = replaced_workers.replaced(backend.schedulers, living)
    answers = process_reports.Answers({}, {})
    if ask is not None and backend.error is not None:
        answers = process_reports.ask_anyone(ask, expected)
    elif ask is not None:
        answers = process_reports.ask_schedulers(alive, ask, expected)
    schedulers = [
        _scheduler(
            worker,
            beat,
            backend.age_seconds(beat),
            bound_seconds,
            answers if ask is not None else None,
        )
        for worker, beat in sorted(backend.schedulers.items())
        if worker not in replaced
    ]
    listed = {(each["host"], each["pid"]) for each in schedulers}
    schedulers += [
        _scheduler(status.worker, {"host": host, "pid": pid}, None, bound_seconds, answers)
        for (host, pid), status in answers.by_worker.items()
        if (host, pid) not in listed
    ]
    reporters = [
        _reporter(name, beat, backend, bound_seconds)
        for name, beat in sorted(backend.reporters.items())
    ]
    unread = backend.unread_within(bound_seconds)
    cells = _cells(backend, list(answers.by_worker.values()), schedulers, reporters, unread)
    mirror, claims = _mirror(backend), _claims(backend, bound_seconds)
    found = find_problems(backend, schedulers, reporters, cells, mirror, mirror_bound_seconds)
    found += _claims_not_settled(claims, claim_lease_seconds)
    return Deployment(
        backend,
        tuple(schedulers),
        tuple(reporters),
        tuple(cells),
        mirror,
        claims,
        tuple(found),
    )


#: What is shown of a worker's beat as it stands there.
_OF_A_SCHEDULER = (
    *("state", "epoch", "hosts", "fallbacks", "outcomes", "candidates", "claims", "claiming"),
    *("left_out", "schedule_seconds_p50", "schedule_seconds_p99", "quarantined", "settling"),
    *("memory_bytes", "machine_bytes", "clock_offset_seconds", "beat_at"),
    *("compute_nodes", "compute_node_statements", "checkpoint", "reads_journals"),
    *("queue", "keeps_queue", "unproved"),
)


def _scheduler(
    worker: str,
    beat: Mapping[str, Any],
    age_seconds: float | None,
    bound_seconds: float,
    answers: process_reports.Answers | None,
) -> dict[str, Any]:
    """Merge a worker's beat with its answer, which is newer.

    :param answers: None where nobody was asked
    """
    host, pid = str(beat.get("host")), int(beat.get("pid", 0))
    entry: dict[str, Any] = {
        "worker": worker,
        "host": host,
        "pid": pid,
        "alive": age_seconds is None or age_seconds <= bound_seconds,
        "age_seconds": age_seconds,
        "plugin_version": beat.get("plugin"),
        "nova_version": beat.get("nova"),
        "feed_lag_seconds": beat.get("lag_seconds"),
        **{name: beat.get(name) for name in _OF_A_SCHEDULER},
        "answered": None,
        "error": None,
        "detail": None,
    }
    if answers is None:
        return entry
    entry |= {"answered": False, "error": answers.silent.get(host)}
    status = answers.by_worker.get((host, pid))
    if status is not None:
        entry |= {
            "plugin_version": status.plugin_version,
            "nova_version": status.nova_version,
            "state": status.feed.state,
            "epoch": status.feed.epoch,
            "hosts": status.records.get(known_namespaces.COMPUTE_NODES.name, 0),
            "fallbacks": status.fallbacks,
            "outcomes": status.outcomes,
            "schedule_seconds_p50": status.schedule_seconds_p50,
            "schedule_seconds_p99": status.schedule_seconds_p99,
            "feed_lag_seconds": status.feed.lag_seconds,
            "quarantined": sum(status.quarantined.values()),
            "answered": True,
            "error": None,
            "detail": objects.plain(status),
        }
    elif entry["error"] is None and entry["alive"]:
        entry["error"] = "another worker of the host answered each time"
    return entry


#: What is shown of a reporter's beat as it stands there; those of older releases lack some.
_OF_A_REPORTER = (
    *("host", "pid", "cell", "queued", "published", "failed_flushes", "refused", "claiming"),
    *("clock_offset_seconds", "since", "service_heartbeats", "heartbeats"),
    *("compute_nodes", "compute_node_statements"),
    *("heartbeat_journals", "journals", "journal"),
)


def _reporter(
    name: str, beat: Mapping[str, Any], backend: process_reports.Backend, bound_seconds: float
) -> dict[str, Any]:
    age_seconds = backend.age_seconds(beat)
    since = beat.get("since")
    return {
        "id": name,
        "role": beat.get("binary"),
        "guards": list(beat.get("guards", ())),
        "alive": age_seconds <= bound_seconds,
        "age_seconds": age_seconds,
        "behind_seconds": max(
            map(float, reporter_facts.lateness({"behind_seconds": {}, **beat}).values()),
            default=0.0,
        ),
        "since_seconds": None if since is None else max(0.0, backend.now_seconds - float(since)),
        "plugin_version": beat.get("plugin"),
        "nova_version": beat.get("nova"),
        **{name: beat.get(name) for name in _OF_A_REPORTER},
    }


def _mirror(backend: process_reports.Backend) -> dict[str, Any]:
    """Say how old the mirror of Placement is; empty where none was kept in this epoch."""
    swept = backend.mirrors.get(PLACEMENT_MIRROR)
    if swept is None or swept.get("epoch") != backend.epoch:
        return {}
    if not backend_time.is_believed(float(swept["swept_from"]), backend.now_seconds):
        return {}
    return {
        "age_seconds": max(0.0, backend.now_seconds - float(swept["swept_from"])),
        **{name: swept.get(name) for name in ("providers", "broken", "differing", "keeper")},
        **{name: swept.get(name) for name in ("requests", "seconds")},
    }


def _claims(backend: process_reports.Backend, bound_seconds: float) -> dict[str, Any]:
    """Say what is claimed and who settles; empty where no scheduler claims."""
    found: dict[str, Any] = {}
    for worker, beat in sorted(backend.schedulers.items()):
        figures = beat.get("settling")
        if not figures or backend.age_seconds(beat) > bound_seconds:
            continue
        if not found or figures.get("settles"):
            found = {**figures, "settles": worker if figures.get("settles") else None}
    return found


def _cells(
    backend: process_reports.Backend,
    statuses: Collection[objects.SchedulerStatus],
    schedulers: Collection[Mapping[str, Any]],
    reporters: Collection[Mapping[str, Any]],
    unread: Collection[str],
) -> list[dict[str, Any]]:
    """List the cells that were swept or that a scheduler knows.

    :param unread: see :func:`journaling.of_cell`
    """
    seen: dict[str, list[tuple[str, Any]]] = {}
    for status in statuses:
        for scope in status.scopes:
            seen.setdefault(scope.scope, []).append((status.worker, scope))
    # Of who did not answer, or was not asked, the beat tells.
    beats = {
        str(each["worker"]): each["unproved"]
        for each in schedulers
        if each["alive"] and not each["answered"] and each["unproved"] is not None
    }
    found = []
    modes = node_modes.recorded(backend.node_cells)
    for name in sorted({*backend.cells, *seen, *(cell for why in beats.values() for cell in why)}):
        sweep = backend.cells.get(name, {})
        views = seen.get(name, [])
        fallbacks: dict[str, int] = {}
        for _, scope in views:
            for reason, count in scope.fallbacks.items():
                fallbacks[reason] = fallbacks.get(reason, 0) + count
        reasons = {worker: str(why[name]) for worker, why in beats.items() if name in why}
        reasons |= {worker: scope.reason for worker, scope in views if not scope.proved}
        until = sweep.get("swept_until")
        heartbeats = str(backend.heartbeat_modes.get(name, {}).get("mode", _ROWS_ALONE))
        found.append(
            {
                "cell": name,
                "hosts": max((scope.hosts for _, scope in views), default=None),
                "imported": bool(sweep) and sweep.get("epoch") == backend.epoch,
                "swept_age_seconds": None if until is None else backend.now_seconds - until,
                "rows": sweep.get("rows"),
                "reporters": sum(
                    each["alive"] and each["cell"] in (name, "*") for each in reporters
                ),
                "proved": not reasons if views or beats else None,
                "reasons": reasons,
                "fallbacks": fallbacks,
                "heartbeats": heartbeats,
                "journals": journaling.of_cell(name, heartbeats, schedulers, reporters, unread),
                "compute_nodes": modes.get(name, node_modes.MIRROR),
            }
        )
    return found
