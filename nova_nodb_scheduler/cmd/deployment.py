# SPDX-License-Identifier: Apache-2.0
"""Gathers what the back end and the schedulers say of a deployment, and judges it."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.wire import codec, objects

#: Asks a worker of a host (None: of any host) for its status.
Ask = Callable[[str | None], objects.SchedulerStatus]

_READ = (
    namespaces.SCHEDULERS.name,
    namespaces.REPORTERS.name,
    namespaces.CELLS.name,
    namespaces.MIRRORS.name,
)

#: Key of the mirror of Placement in namespace ``mirrors``.
PLACEMENT_MIRROR = "placement"

#: A feed in any other state serves nothing that is proved.
FOLLOWING = "following"


@attrs.frozen
class Backend:
    """What the back end holds of the plugin's own processes.

    :param error: why it could not be read; everything else is empty then
    :param unreadable: records that this release cannot decode
    """

    driver: str
    error: str | None = None
    epoch: str = ""
    now_seconds: float = 0.0
    statistics: Mapping[str, int | float | str] = attrs.field(factory=dict)
    schedulers: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    reporters: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    cells: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    mirrors: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    unreadable: tuple[str, ...] = ()

    def age_seconds(self, beat: Mapping[str, Any]) -> float:
        """Return how long ago a process said that it lives."""
        return max(0.0, self.now_seconds - float(beat.get("beat_at", 0.0)))

    def as_dict(self) -> dict[str, Any]:
        """Return what concerns the back end itself, for JSON."""
        return {
            "driver": self.driver,
            "reachable": self.error is None,
            "error": self.error,
            **self.statistics,
            "unreadable": list(self.unreadable),
        }


def read_backend(synchronizer: contract.Synchronizer) -> Backend:
    """Read the back end; that it is down is a result, not an error."""
    try:
        synchronizer.open()
        found: dict[str, dict[str, Mapping[str, Any]]] = {name: {} for name in _READ}
        unreadable = []
        head = synchronizer.head()
        for page in synchronizer.snapshot(_READ).pages:
            for record in page:
                try:
                    found[record.key.namespace][record.key.key] = _state(record)
                except errors.UndecodableRecord:
                    unreadable.append(str(record.key))
        return Backend(
            synchronizer.name,
            None,
            head.epoch,
            synchronizer.now_seconds(),
            synchronizer.statistics(),
            found[namespaces.SCHEDULERS.name],
            found[namespaces.REPORTERS.name],
            found[namespaces.CELLS.name],
            found[namespaces.MIRRORS.name],
            tuple(unreadable),
        )
    except (errors.NodbError, contract.SnapshotInterrupted) as error:
        return Backend(synchronizer.name, str(error) or type(error).__name__)
    finally:
        synchronizer.close()


def _state(record: records.Record) -> Mapping[str, Any]:
    return codec.decode(record.payload).state


@attrs.frozen
class Answers:
    """What schedulers answered over RPC.

    :param by_worker: by host and process id
    :param silent: why a host did not answer
    """

    by_worker: Mapping[tuple[str, int], objects.SchedulerStatus]
    silent: Mapping[str, str]


def ask_schedulers(
    workers: Mapping[str, Collection[int]], ask: Ask, expected: tuple[type[Exception], ...]
) -> Answers:
    """Ask the workers of some hosts at once.

    The workers of a host share a queue: which of them answers is up to the
    bus, so a host is asked up to twice for each of its workers.

    :param workers: process ids by host
    :param expected: what an unanswered call raises
    """
    found: dict[tuple[str, int], objects.SchedulerStatus] = {}
    silent: dict[str, str] = {}

    def one_host(host: str, pids: Collection[int]) -> None:
        missing = set(pids)
        for _ in range(2 * len(missing)):
            try:
                status = ask(host)
            except expected as error:
                silent[host] = f"{type(error).__name__}: {error}"
                return
            found[host, status.pid] = status
            missing.discard(status.pid)
            if not missing:
                return

    if workers:
        with concurrent.futures.ThreadPoolExecutor(min(len(workers), 16), "nodb-ask") as pool:
            for asked in [pool.submit(one_host, host, pids) for host, pids in workers.items()]:
                asked.result()
    return Answers(found, silent)


@attrs.frozen
class Deployment:
    """The whole as it is shown. Mappings hold plain values, for tables and JSON alike."""

    backend: Backend
    schedulers: tuple[Mapping[str, Any], ...]
    reporters: tuple[Mapping[str, Any], ...]
    cells: tuple[Mapping[str, Any], ...]
    mirror: Mapping[str, Any]
    claims: Mapping[str, Any]
    problems: tuple[str, ...]

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
    backend: Backend, ask: Ask, expected: tuple[type[Exception], ...], bound_seconds: float
) -> Deployment:
    """Put together what the back end says and what schedulers answer.

    :param bound_seconds: silence after which a process is not taken to live
    """
    alive: dict[str, set[int]] = {}
    for beat in backend.schedulers.values():
        if backend.age_seconds(beat) <= bound_seconds:
            alive.setdefault(str(beat.get("host")), set()).add(int(beat.get("pid", 0)))
    answers = ask_schedulers(alive, ask, expected)
    if backend.error is not None:
        answers = _ask_anyone(ask, expected)
    schedulers = [
        _scheduler(worker, beat, backend.age_seconds(beat), bound_seconds, answers)
        for worker, beat in sorted(backend.schedulers.items())
        # A process whose host runs another one now has been replaced.
        if backend.age_seconds(beat) <= bound_seconds or str(beat.get("host")) not in alive
    ]
    listed = {(each["host"], each["pid"]) for each in schedulers}
    schedulers += [
        _scheduler(status.worker, {"host": host, "pid": pid}, None, bound_seconds, answers)
        for (host, pid), status in answers.by_worker.items()
        if (host, pid) not in listed
    ]
    reporters = [
        _reporter(name, beat, backend.age_seconds(beat), bound_seconds)
        for name, beat in sorted(backend.reporters.items())
    ]
    cells = _cells(backend, list(answers.by_worker.values()), reporters)
    return Deployment(
        backend,
        tuple(schedulers),
        tuple(reporters),
        tuple(cells),
        _mirror(backend),
        _claims(backend, bound_seconds),
        tuple(_problems(backend, schedulers, reporters, cells)),
    )


def _ask_anyone(ask: Ask, expected: tuple[type[Exception], ...]) -> Answers:
    try:
        status = ask(None)
    except expected as error:
        return Answers({}, {"any": f"{type(error).__name__}: {error}"})
    return Answers({(status.host, status.pid): status}, {})


def _scheduler(
    worker: str,
    beat: Mapping[str, Any],
    age_seconds: float | None,
    bound_seconds: float,
    answers: Answers,
) -> dict[str, Any]:
    """Merge a worker's beat with its answer, which is newer."""
    host, pid = str(beat.get("host")), int(beat.get("pid", 0))
    entry: dict[str, Any] = {
        "worker": worker,
        "host": host,
        "pid": pid,
        "alive": age_seconds is None or age_seconds <= bound_seconds,
        "age_seconds": age_seconds,
        "plugin_version": beat.get("plugin"),
        "nova_version": beat.get("nova"),
        "state": beat.get("state"),
        "epoch": beat.get("epoch"),
        "hosts": beat.get("hosts"),
        "fallbacks": beat.get("fallbacks"),
        "outcomes": beat.get("outcomes"),
        "candidates": beat.get("candidates"),
        "claims": beat.get("claims"),
        "left_out": beat.get("left_out"),
        "schedule_seconds_p50": beat.get("schedule_seconds_p50"),
        "schedule_seconds_p99": beat.get("schedule_seconds_p99"),
        "feed_lag_seconds": beat.get("lag_seconds"),
        "quarantined": beat.get("quarantined"),
        "answered": False,
        "error": answers.silent.get(host),
        "detail": None,
    }
    status = answers.by_worker.get((host, pid))
    if status is not None:
        entry |= {
            "plugin_version": status.plugin_version,
            "nova_version": status.nova_version,
            "state": status.feed.state,
            "epoch": status.feed.epoch,
            "hosts": status.records.get(namespaces.COMPUTE_NODES.name, 0),
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


def _reporter(
    name: str, beat: Mapping[str, Any], age_seconds: float, bound_seconds: float
) -> dict[str, Any]:
    return {
        "id": name,
        "role": beat.get("binary"),
        "host": beat.get("host"),
        "pid": beat.get("pid"),
        "cell": beat.get("cell"),
        "guards": list(beat.get("guards", ())),
        "alive": age_seconds <= bound_seconds,
        "age_seconds": age_seconds,
        "queued": beat.get("queued"),
        "behind_seconds": max(map(float, beat.get("behind_seconds", {}).values()), default=0.0),
        "published": beat.get("published"),
        "failed_flushes": beat.get("failed_flushes"),
        "plugin_version": beat.get("plugin"),
        "nova_version": beat.get("nova"),
    }


def _mirror(backend: Backend) -> dict[str, Any]:
    """Say how old the mirror of Placement is; empty where none was kept in this epoch."""
    swept = backend.mirrors.get(PLACEMENT_MIRROR)
    if swept is None or swept.get("epoch") != backend.epoch:
        return {}
    return {
        "age_seconds": max(0.0, backend.now_seconds - float(swept["swept_from"])),
        **{name: swept.get(name) for name in ("providers", "broken", "differing", "keeper")},
        **{name: swept.get(name) for name in ("requests", "seconds")},
    }


def _claims(backend: Backend, bound_seconds: float) -> dict[str, Any]:
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
    backend: Backend,
    statuses: Collection[objects.SchedulerStatus],
    reporters: Collection[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """List the cells that were swept or that a scheduler knows."""
    seen: dict[str, list[tuple[str, Any]]] = {}
    for status in statuses:
        for scope in status.scopes:
            seen.setdefault(scope.scope, []).append((status.worker, scope))
    found = []
    for name in sorted({*backend.cells, *seen}):
        sweep = backend.cells.get(name, {})
        views = seen.get(name, [])
        fallbacks: dict[str, int] = {}
        for _, scope in views:
            for reason, count in scope.fallbacks.items():
                fallbacks[reason] = fallbacks.get(reason, 0) + count
        until = sweep.get("swept_until")
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
                "proved": all(scope.proved for _, scope in views) if views else None,
                "reasons": {worker: scope.reason for worker, scope in views if not scope.proved},
                "fallbacks": fallbacks,
            }
        )
    return found


def _problems(
    backend: Backend,
    schedulers: Collection[Mapping[str, Any]],
    reporters: Collection[Mapping[str, Any]],
    cells: Collection[Mapping[str, Any]],
) -> list[str]:
    """Say in sentences what is not as it should be."""
    found = []
    if backend.error is not None:
        found.append(f"The back end cannot be read: {backend.error}")
    found += [f"Record {name} cannot be read." for name in backend.unreadable]
    if not any(each["alive"] for each in schedulers):
        found.append("No scheduler with the plugin runs.")
    found += [problem for each in schedulers for problem in _problems_of(each)]
    for each in reporters:
        if not each["alive"]:
            found.append(f"Reporter {each['id']} is silent for {each['age_seconds']:.0f} s.")
    for each in cells:
        for worker, reason in each["reasons"].items():
            found.append(f"Cell {each['cell']} is not proved for {worker}: {reason}.")
    return found


def _problems_of(each: Mapping[str, Any]) -> list[str]:
    """Say what is not as it should be with one scheduler."""
    name = f"Scheduler {each['host']} (process {each['pid']})"
    if not each["alive"]:
        return [f"{name} is silent for {each['age_seconds']:.0f} s."]
    found = []
    if not each["answered"]:
        found.append(f"{name} does not answer: {each['error']}")
    if each["state"] != FOLLOWING:
        found.append(f"{name}: its feed is {each['state']}.")
    if each["quarantined"]:
        found.append(f"{name} cannot read {each['quarantined']} records.")
    if each["left_out"]:
        found.append(
            f"{name} leaves {each['left_out']} hosts out whose records it does not understand."
        )
    return found
