# SPDX-License-Identifier: Apache-2.0
"""What this process does with the heartbeats of compute services; held for Nova's objects.

Nova's objects are classes of a registry and cannot be handed anything: this module
holds the reader of this process, and a conductor's writer.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

import attrs
from oslo_utils import timeutils

from nova_nodb_scheduler.nova_adapter.liveness import (
    heartbeat_modes,
    heartbeat_reader,
    heartbeat_writer,
)

LOG = logging.getLogger(__name__)

#: All that a save may change to be a heartbeat and nothing else.
_STORED_FIELDS = frozenset({"report_count", "version"})


@attrs.frozen
class HeartbeatStorage:
    """A conductor's way to store heartbeats instead of writing them to the database."""

    keeper: heartbeat_modes.ModeKeeper
    writer: heartbeat_writer.HeartbeatWriter


_reader: heartbeat_reader.HeartbeatReader | None = None
_make_reader: Callable[[], heartbeat_reader.HeartbeatReader] | None = None
_storage: HeartbeatStorage | None = None
_pid = os.getpid()


def install_reader(make: Callable[[], heartbeat_reader.HeartbeatReader] | None) -> None:
    """Lay heartbeats over the services that this process reads; None for rows alone.

    :param make: makes a reader, of this process and of children it may fork; no I/O
    """
    global _reader, _make_reader, _pid
    if _reader is not None and _pid == os.getpid():
        _reader.close()
    _make_reader, _pid = make, os.getpid()
    _reader = make() if make is not None else None


def install_storage(storage: HeartbeatStorage | None) -> None:
    """Store heartbeats where the cell's mode says so; None writes all to the database."""
    global _storage
    _storage = storage


def _after_fork() -> None:
    """Give a child a reader of its own; no I/O."""
    global _reader, _storage, _pid
    _pid, _storage = os.getpid(), None
    _reader = _make_reader() if _make_reader is not None else None


os.register_at_fork(after_in_child=_after_fork)


def reader() -> heartbeat_reader.HeartbeatReader | None:
    """Return this process's reader; servers that fork in C run no hooks of Python."""
    if _pid != os.getpid():
        _after_fork()
    return _reader


def figures() -> dict[str, float]:
    """Return what this process does with heartbeats, by the names of its metrics."""
    found = {"heartbeats_stored": 0.0, "heartbeats_not_stored": 0.0}
    storage, own = _storage, reader()
    if storage is not None:
        counted = storage.writer.figures()
        found["heartbeats_stored"] = float(counted.stored)
        found["heartbeats_not_stored"] = float(counted.not_stored)
    seen = own.figures() if own is not None else heartbeat_reader.ReaderFigures(0.0, 0)
    found["heartbeats_blind_seconds"] = seen.blind_seconds
    found["services_told_blindly"] = float(seen.blindly_told)
    return found


def facts(mode: heartbeat_modes.HeartbeatMode) -> dict[str, Any]:
    """Return what this process says of it in each of its beats.

    :param mode: as it is configured
    """
    counted = {name: figure for name, figure in figures().items() if figure}
    more = {"heartbeats": counted} if counted else {}
    return {"service_heartbeats": mode.value, **more}


class _GatheredServices(threading.local):
    """The services that this thread leaves as their rows have them; None where it does not."""

    services: list[Any] | None = None


_gathered = _GatheredServices()


@contextlib.contextmanager
def gathered() -> Iterator[list[Any]]:
    """Leave the services that this thread reads meanwhile as their rows have them, and list them.

    For who tells many of them their heartbeats at once, or none.
    """
    outer, own = _gathered.services, list[Any]()
    _gathered.services = own
    try:
        yield own
    finally:
        _gathered.services = outer


def gather(service: Any) -> bool:
    """Note a service where this thread gathers them; False where it does not."""
    if _gathered.services is None:
        return False
    _gathered.services.append(service)
    return True


def lay_over(cell: Callable[[], str | None], services: Collection[Any]) -> None:
    """Give services that were read from their rows their latest heartbeats; see the reader's.

    :param cell: tells whose database the rows are in, None where that is not known; asked
        only if it matters
    """
    own = reader()
    if own is not None:
        own.lay_over(cell, services)


def is_heartbeat(service: Any, changed: Collection[str]) -> bool:
    """Tell whether a save is a heartbeat and nothing else, in a process that may store it."""
    if _storage is None or _pid != os.getpid():
        return False
    needed = ("uuid", "id", "binary", "version", "report_count")
    return (
        "report_count" in changed
        and _STORED_FIELDS.issuperset(changed)
        and all(service.obj_attr_is_set(name) for name in needed)
        and service.binary == "nova-compute"
    )


def store(cell: str | None, service: Any, changed: Collection[str]) -> bool:
    """Store a heartbeat (:func:`is_heartbeat`); True if nothing is left to do.

    The service is told what Nova's own save would have told it of its heartbeat. False
    leaves it as it was, to be written to the database.

    :param changed: the fields that the save is for
    """
    storage = _storage
    if storage is None or cell is None or not storage.keeper.may_store(cell):
        return False
    # Stock asks this of every save, and answers from memory.
    service._check_minimum_version()
    now = timeutils.utcnow()
    heartbeat = heartbeat_writer.ServiceHeartbeat(
        service=str(service.uuid),
        cell=cell,
        report_count=int(service.report_count),
        version=int(service.version) if "version" in changed else None,
        last_seen_up=now.isoformat(),
        heard_at=timeutils.utcnow_ts(microsecond=True),
    )
    try:
        if not storage.writer.store(heartbeat):
            return False
    except Exception:
        # Such as a thread that cannot start: Nova's own save is always left.
        LOG.exception("A heartbeat could not be stored.")
        return False
    service.last_seen_up = now
    service.updated_at = now
    service.obj_reset_changes()
    return True
