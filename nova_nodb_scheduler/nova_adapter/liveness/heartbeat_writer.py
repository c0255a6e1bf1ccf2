# SPDX-License-Identifier: Apache-2.0
"""Writes heartbeats to the back end before they are answered, those of many services together.

Who is answered must be seen: a heartbeat that waits in a queue while nova-compute
goes on is lost with its conductor. So each waits for its batch, as transactions
do for a group commit: a batch is two or three statements on the back end, whatever
the number of services.

What does not stand in the back end for certain, within the bound, is **not
stored**, and the caller writes the row as ever. So a back end that is down loses
no heartbeat, and one that is slow delays none for long: behind a failure nobody
asks for a while.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import publisher as publisher_module
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)


@attrs.frozen
class ServiceHeartbeat:
    """A heartbeat as a conductor heard it.

    :param version: of the service, where the save says one; it is stored only if its row
        says the same already
    :param last_seen_up: ISO 8601 text in UTC, by the conductor's clock
    :param heard_at: the same in seconds since the epoch
    """

    service: str
    cell: str
    report_count: int
    version: int | None
    last_seen_up: str
    heard_at: float


@attrs.frozen
class WriterOptions:
    """Timing and bounds of a writer.

    :param window_seconds: how long a batch gathers
    :param write_seconds: longest that a heartbeat waits beyond it, each in a thread
        that its conductor needs for other calls
    :param pause_seconds: behind a failure nobody asks for so long
    :param max_batch: a batch of so many gathers no longer
    """

    window_seconds: float
    write_seconds: float = 3.0
    pause_seconds: float = 5.0
    max_batch: int = 16

    @property
    def wait_seconds(self) -> float:
        """Longest that a heartbeat waits in all."""
        return self.window_seconds + self.write_seconds


@attrs.frozen
class WriterFigures:
    """How many heartbeats were stored, and how many were left to the database."""

    stored: int
    not_stored: int


#: Given the heartbeats of one service, by their counts, and the back end's time.
Merge = Callable[[Sequence[ServiceHeartbeat], float], publisher_module.Compute]


@attrs.define(eq=False)
class _WaitingHeartbeat:
    """A heartbeat, and the thread that waits for it."""

    heartbeat: ServiceHeartbeat
    done: threading.Event = attrs.field(factory=threading.Event)
    is_stored: bool = False


#: How long a version that was read of a service's record is taken for its row's.
_VERSION_SECONDS = 300.0
#: Services whose versions are remembered.
_MOST_VERSIONS = 100_000


@attrs.define(eq=False)
class _ServiceVersions:
    """Versions of services as their records have them; used by one thread."""

    _synchronizer: contract.Synchronizer
    _clock: Callable[[], float]
    _known: dict[str, tuple[int, float]] = attrs.field(init=False, factory=dict)

    def agreeing(self, heartbeats: Collection[ServiceHeartbeat]) -> list[ServiceHeartbeat]:
        """Return the heartbeats whose version is their service's.

        :raises BackendUnavailable: not known
        """
        unknown = {each.service for each in heartbeats if not self._agrees(each)}
        if unknown:
            self._read(unknown)
        return [each for each in heartbeats if self._agrees(each)]

    def _agrees(self, heartbeat: ServiceHeartbeat) -> bool:
        if heartbeat.version is None:
            return True
        version, until = self._known.get(heartbeat.service, (None, 0.0))
        return version == heartbeat.version and self._clock() < until

    def _read(self, services: Collection[str]) -> None:
        if len(self._known) > _MOST_VERSIONS:
            self._known.clear()
        namespace = known_namespaces.SERVICES.name
        keys = [records.RecordKey(namespace, service) for service in sorted(services)]
        until = self._clock() + _VERSION_SECONDS
        found = self._synchronizer.read([key for key in keys if key.fault is None])
        for key in keys:
            version = _version_of(found.get(key))
            if version is None:
                self._known.pop(key.key, None)
            else:
                self._known[key.key] = (version, until)


def _version_of(record: records.Record | None) -> int | None:
    if record is None or record.deleted:
        return None
    try:
        return int(codec.decode(record.payload).state["row"]["version"])
    except (errors.UndecodableRecord, KeyError, TypeError, ValueError, OverflowError):
        return None


class HeartbeatWriter:
    """Stores heartbeats in batches, in a thread of its own that starts with the first.

    :param synchronizer: not opened, and nobody else's
    :param publisher: writes through the same synchronizer
    :param on_failure: told in the writer's thread that the back end does not answer
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        publisher: publisher_module.Publisher,
        merge: Merge,
        options: WriterOptions,
        on_failure: Callable[[], None] = lambda: None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._synchronizer = synchronizer
        self._publisher = publisher
        self._merge = merge
        self._options = options
        self._on_failure = on_failure
        self._clock = clock
        self._versions = _ServiceVersions(synchronizer, clock)
        self._lock = threading.Lock()
        self._waiting: list[_WaitingHeartbeat] = []
        self._some = threading.Event()
        self._enough = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._not_before = float("-inf")
        self._busy_since = float("inf")
        self._opened = self._failing = False
        self._stored = self._not_stored = 0

    def figures(self) -> WriterFigures:
        """Return what was done so far."""
        with self._lock:
            return WriterFigures(self._stored, self._not_stored)

    def store(self, heartbeat: ServiceHeartbeat) -> bool:
        """Write a heartbeat to the back end; True once it stands there. Any thread.

        Blocks for a batch's window and its write, and no longer than
        ``wait_seconds``. False says nothing: it may stand there all the same.
        """
        waiting = _WaitingHeartbeat(heartbeat)
        if not self._enqueue(waiting):
            with self._lock:
                self._not_stored += 1
            return False
        if not waiting.done.wait(self._options.wait_seconds):
            self._fail(errors.BackendUnavailable(self._synchronizer.name, "no answer in time"))
        with self._lock:
            # One that is answered with a row may still be written: no harm.
            if waiting.is_stored:
                self._stored += 1
            else:
                self._not_stored += 1
            return waiting.is_stored

    def _enqueue(self, waiting: _WaitingHeartbeat) -> bool:
        with self._lock:
            now = self._clock()
            has_thread = self._thread is not None and self._thread.is_alive()
            if not has_thread:
                self._busy_since = float("inf")
            is_stuck = now - self._busy_since > self._options.write_seconds / 3
            if self._stop.is_set() or is_stuck or now < self._not_before:
                return False
            if not has_thread:
                thread = threading.Thread(target=self._run, name="nodb-heartbeats", daemon=True)
                thread.start()
                self._thread = thread
            self._waiting.append(waiting)
            self._some.set()
            if len(self._waiting) >= self._options.max_batch:
                self._enough.set()
        return True

    def stop(self) -> None:
        """Answer what waits and leave; idempotent. Later heartbeats are not stored."""
        with self._lock:
            self._stop.set()
            thread, self._thread = self._thread, None
        self._some.set()
        self._enough.set()
        if thread is not None:
            thread.join(self._options.wait_seconds)
        self._answer(self._take(), frozenset())

    # -- the writer's thread --------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            self._some.wait()
            self._enough.wait(self._options.window_seconds)
            batch = self._take()
            if batch:
                with self._lock:
                    self._busy_since = self._clock()
                stored = self._written(batch)
                with self._lock:
                    self._busy_since = float("inf")
                self._answer(batch, stored)
        self._synchronizer.close()

    def _take(self) -> list[_WaitingHeartbeat]:
        with self._lock:
            batch, self._waiting = self._waiting, []
            if not self._stop.is_set():
                self._some.clear()
                self._enough.clear()
        return batch

    def _answer(
        self, batch: Collection[_WaitingHeartbeat], stored: Collection[ServiceHeartbeat]
    ) -> None:
        for waiting in batch:
            with self._lock:
                waiting.is_stored = waiting.heartbeat in stored
            waiting.done.set()

    def _written(self, batch: Collection[_WaitingHeartbeat]) -> frozenset[ServiceHeartbeat]:
        """Return the heartbeats that stand in the back end."""
        try:
            stored = self._write([waiting.heartbeat for waiting in batch])
        except errors.NodbError as error:
            self._fail(error)
        except Exception as error:
            LOG.exception("Heartbeats could not be stored.")
            self._fail(error)
        else:
            with self._lock:
                failed, self._failing = self._failing, False
            if failed:
                LOG.info("Heartbeats are stored again.")
            return stored
        return frozenset()

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self._not_before = self._clock() + self._options.pause_seconds
            said, self._failing = self._failing, True
        self._on_failure()
        if not said:
            LOG.warning(
                "Heartbeats cannot be stored and are written to the database until it works "
                "again: %(error)s",
                {"error": error},
            )

    def _write(self, heartbeats: Collection[ServiceHeartbeat]) -> frozenset[ServiceHeartbeat]:
        if not self._opened:
            self._synchronizer.open()
            self._opened = True
        of_service: dict[str, list[ServiceHeartbeat]] = collections.defaultdict(list)
        for heartbeat in self._versions.agreeing(heartbeats):
            of_service[heartbeat.service].append(heartbeat)
        if not of_service:
            return frozenset()
        seen_at = self._synchronizer.now_seconds()
        computed: dict[records.RecordKey, publisher_module.Computed] = {}

        def update(
            key: records.RecordKey, merged: publisher_module.Compute
        ) -> publisher_module.Compute:
            def noted(current: publisher_module.State | None) -> publisher_module.Computed:
                computed[key] = merged(current)
                return computed[key]

            return noted

        updates = {}
        for service, own in of_service.items():
            key = records.RecordKey(known_namespaces.SERVICE_LIVENESS.name, service)
            own.sort(key=lambda each: each.report_count)
            updates[key] = update(key, self._merge(own, seen_at))
        report = self._publisher.publish(updates)
        not_written = report.failed | report.rejected.keys()
        return frozenset(
            heartbeat
            for key in updates
            if key not in not_written
            for heartbeat in of_service[key.key]
            if _stands(computed.get(key), heartbeat)
        )


def _stands(computed: publisher_module.Computed | None, heartbeat: ServiceHeartbeat) -> bool:
    """Tell whether a heartbeat is what a record was made to hold."""
    if computed is None or isinstance(computed, publisher_module.PublishOutcome):
        return False
    counts = {computed.get("unwritten"), computed.get("report_count")}
    return counts == {heartbeat.report_count}
