# SPDX-License-Identifier: Apache-2.0
"""What the plugin's processes say of themselves: on the back end, read once, and asked over RPC."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd.framework import bounded
from nova_nodb_scheduler.cmd.overview import beats
from nova_nodb_scheduler.model import backend_time, records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.wire import codec, objects

_READ = (
    known_namespaces.SCHEDULERS.name,
    known_namespaces.REPORTERS.name,
    known_namespaces.CELLS.name,
    known_namespaces.MIRRORS.name,
    known_namespaces.HEARTBEAT_MODES.name,
    known_namespaces.NODE_CELLS.name,
)


@attrs.frozen
class Backend:
    """The records of schedulers, reporters, cells and mirrors, by their keys, and cells' modes.

    :param error: why it could not be read; everything else is empty then
    :param unreadable: records that this release cannot decode, and beats that are odd, with
        what is odd in them
    :param unread_beats: those of them that are beats, by their records' names; empty states
        where nothing in them can be read
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
    heartbeat_modes: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    node_cells: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    unread_beats: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)

    def age_seconds(self, beat: Mapping[str, Any]) -> float:
        """Return how long ago a process said that it lives.

        What it said in the future is as far away as what it said in the past: its
        clock, or the back end's, was set.
        """
        age = self.now_seconds - float(beat.get("beat_at", 0.0))
        return max(0.0, age) if age >= -backend_time.MARGIN_SECONDS else -age

    def unread_within(self, bound_seconds: float) -> list[str]:
        """Name the beats that cannot be read and whose processes may live.

        :param bound_seconds: silence after which one that tells its time does not
        """
        return [
            name
            for name, beat in sorted(self.unread_beats.items())
            if not beats.has_time(beat) or self.age_seconds(beat) <= bound_seconds
        ]

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
    """Read the back end; that it is down, or not there yet, is a result."""
    try:
        synchronizer.open_existing()
        found: dict[str, dict[str, Mapping[str, Any]]] = {name: {} for name in _READ}
        unreadable = []
        unread_beats: dict[str, Mapping[str, Any]] = {}
        head = synchronizer.head()
        for page in synchronizer.snapshot(_READ).pages:
            for record in page:
                namespace, name = record.key.namespace, records.printable_name(str(record.key))
                state, odd = _read(record)
                if odd is None:
                    found[namespace][record.key.key] = state
                    continue
                unreadable.append(f"{name}{odd}")
                if beats.is_beat(namespace):
                    unread_beats[name] = state
        return Backend(
            synchronizer.name,
            None,
            head.epoch,
            synchronizer.now_seconds(),
            synchronizer.statistics(),
            found[known_namespaces.SCHEDULERS.name],
            found[known_namespaces.REPORTERS.name],
            found[known_namespaces.CELLS.name],
            found[known_namespaces.MIRRORS.name],
            tuple(unreadable),
            found[known_namespaces.HEARTBEAT_MODES.name],
            found[known_namespaces.NODE_CELLS.name],
            unread_beats,
        )
    except (errors.NodbError, contract.SnapshotInterrupted) as error:
        return Backend(synchronizer.name, str(error) or type(error).__name__)
    finally:
        synchronizer.close()


def read_backend_within(
    make: Callable[[], contract.Synchronizer], deadline: bounded.Deadline
) -> Backend:
    """Read the back end in bounded time; that it is silent is a result, too.

    :param make: makes the driver
    """
    synchronizer = make()
    bound_seconds = deadline.within(bounded.BACKEND_SECONDS)
    try:
        return bounded.ask(bound_seconds, lambda: read_backend(synchronizer))
    except errors.NoAnswerInTime as error:
        return Backend(synchronizer.name, str(error))


def _read(record: records.Record) -> tuple[Mapping[str, Any], str | None]:
    """Return a record's state and, where it cannot be read, what is said of it behind its name."""
    try:
        state = _state(record)
    except errors.UndecodableRecord:
        return {}, ""
    odd = beats.oddity(record.key.namespace, state)
    return state, None if odd is None else f" ({odd})"


def _state(record: records.Record) -> Mapping[str, Any]:
    return codec.decode(record.payload).state


#: Asks a worker of a host (None: of any host) for its status.
Ask = Callable[[str | None], objects.SchedulerStatus]


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
    lock = threading.Lock()

    def one_host(host: str, pids: Collection[int]) -> None:
        missing = set(pids)
        for _ in range(2 * len(missing)):
            try:
                status = ask(host)
            except expected as error:
                with lock:
                    silent[host] = _said(error)
                return
            with lock:
                found[host, status.pid] = status
            missing.discard(status.pid)
            if not missing:
                return

    asked = {
        host: bounded.BoundedQuestion(functools.partial(one_host, host, pids))
        for host, pids in workers.items()
    }
    deadline = bounded.Deadline()
    for host, question in asked.items():
        try:
            question.answer(deadline.within(bounded.LOOK_SECONDS))
        except errors.NoAnswerInTime as error:
            with lock:
                silent[host] = _said(error)
    with lock:
        # Who is late may still write.
        return Answers(dict(found), dict(silent))


def ask_anyone(ask: Ask, expected: tuple[type[Exception], ...]) -> Answers:
    """Ask whoever takes the question, where nobody knows who runs; as :func:`ask_schedulers`."""
    try:
        status = ask(None)
    except expected as error:
        return Answers({}, {"any": _said(error)})
    return Answers({(status.host, status.pid): status}, {})


def _said(error: Exception) -> str:
    if isinstance(error, errors.NodbError):
        return str(error)
    return f"{type(error).__name__}: {error}"
