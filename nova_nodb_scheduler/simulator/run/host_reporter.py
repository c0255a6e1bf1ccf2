# SPDX-License-Identifier: Apache-2.0
"""Publishes what the made hosts say, as the plugin's reporters and its mirror do.

Records are marked dirty, and read when they are published: of two changes that
come close together the last is told once. So many a second are published and
no more, whatever happens to the hosts; what waits makes the reporter's beat
old, so that nobody takes its silence for the hosts'. Heartbeats go to their
services' records, or as pages to a journal, as a conductor's do.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import heartbeat_journals, known_namespaces
from nova_nodb_scheduler.simulator.run import fleet
from nova_nodb_scheduler.simulator.scenario import made_hosts
from nova_nodb_scheduler.store import declarations
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import heartbeat_ring, publisher
from nova_nodb_scheduler.wire import codec

_BATCH_RECORDS = 250
_BEAT_KEY = records.RecordKey(known_namespaces.REPORTERS.name, "simulated-conductor")

#: What is published first: a node's record after those of the servers it
#: counts, and all that says what room there is before heartbeats.
_ORDER = (fleet.INSTANCES, fleet.PROVIDERS, fleet.NODES, fleet.LIVENESS)

#: Between two pages of heartbeats, simulated seconds: the default of
#: ``heartbeat_flush_interval_seconds``.
_PAGE_SECONDS = 1.0

State = Callable[[records.RecordKey], "made_hosts.State | None"]


@attrs.define
class Figures:
    """What a reporter did.

    :param published: (monotonic seconds, version, records) of the last batches
    :param journaled: heartbeats that went to the journal, as pages
    """

    updates: int = 0
    journaled: int = 0
    failures: int = 0
    most_waiting: int = 0
    peak_per_second: int = 0
    published: list[tuple[float, int, int]] = attrs.field(factory=list)


def ring_options(
    beats_per_second: float, service_down_seconds: float
) -> heartbeat_ring.RingOptions:
    """Return the bounds of a journal that has room for these heartbeats however long a run is.

    The plugin refuses settings by which a ring would be full before its first slot may be
    overwritten; here it gets as many slots as it takes, twice over for what waited meanwhile.
    """
    keep_seconds = heartbeat_journals.RING_TIMES * service_down_seconds
    slots = math.ceil(beats_per_second * _PAGE_SECONDS / heartbeat_journals.MOST_HEARTBEATS)
    own = heartbeat_ring.RingOptions(keep_seconds)
    enough = 2 * slots * math.ceil(keep_seconds / _PAGE_SECONDS)
    return attrs.evolve(own, max_slots=max(own.max_slots, enough))


class HostReporter:
    """One reporter of all hosts. ``mark`` from any thread, ``flush`` from one.

    :param state: what a record should hold
    :param now_seconds: simulated
    :param updates_per_second: most records published in a simulated second; pages of
        heartbeats are none of them
    :param journal: where heartbeats go; None for their services' records
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        state: State,
        lock: threading.RLock,
        now_seconds: Callable[[], float],
        *,
        updates_per_second: float,
        beat_seconds: float,
        journal: heartbeat_ring.HeartbeatRing | None = None,
    ) -> None:
        self._synchronizer = synchronizer
        self._state = state
        self._lock = lock
        self._now_seconds = now_seconds
        self._rate = updates_per_second
        self._beat_seconds = beat_seconds
        declared = {
            each.name: each for each in declarations.load_namespaces(known_namespaces.BUILT_IN)
        }
        self._declared = declared
        self._publishers = {
            owner: publisher.Publisher(synchronizer, declared, owner)
            for owner in (known_namespaces.NOVA, known_namespaces.PLACEMENT, known_namespaces.NODB)
        }
        #: By namespace, in the order of publishing: when each record was marked
        #: first since it was published.
        self._dirty: dict[str, dict[records.RecordKey, float]] = {name: {} for name in _ORDER}
        self._journal = journal
        self._heard: list[heartbeat_ring.JournalEntry] = []
        #: When the oldest heartbeat was heard that the journal took and has not written.
        self._unwritten_since: float | None = None
        self._page_at = 0.0
        self._beat_at: float | None = None
        self._allowed = 0.0
        self._allowed_at = 0.0
        #: True while the reporter is away (a fault of the timeline).
        self.lost = False
        self.figures = Figures()
        self._second = (0, 0)

    def mark(self, key: records.RecordKey) -> None:
        """Note that a record changed."""
        with self._lock:
            self._dirty[key.namespace].setdefault(key, self._now_seconds())
            self.figures.most_waiting = max(self.figures.most_waiting, self.waiting)

    def hear(self, service: str, report_count: int, seconds: float) -> None:
        """Note a service's heartbeat.

        :param service: key of its record
        :param seconds: simulated
        """
        if self._journal is None:
            self.mark(records.RecordKey(fleet.LIVENESS, service))
            return
        heard_at = made_hosts.BEGINNING_SECONDS + seconds
        with self._lock:
            self._heard.append(heartbeat_ring.JournalEntry(service, report_count, heard_at))

    @property
    def waiting(self) -> int:
        """Records that are to be published."""
        return sum(len(marked) for marked in self._dirty.values())

    @property
    def dropped_heartbeats(self) -> int:
        """Heartbeats that waited for so long that the journal has no room for them."""
        return 0 if self._journal is None else self._journal.dropped

    @property
    def is_room_waiting(self) -> bool:
        """Whether something is to be published that tells of more than a heartbeat."""
        return any(marked for name, marked in self._dirty.items() if name != fleet.LIVENESS)

    @property
    def published(self) -> list[tuple[float, int, int]]:
        """See :class:`Figures`."""
        return self.figures.published

    def populate(
        self,
        everything: Iterable[tuple[records.RecordKey, made_hosts.State]],
        told: Callable[[int], None] = lambda _count: None,
    ) -> int:
        """Write all records into an empty back end; return how many.

        :raises BackendUnavailable: some may have been written
        :raises ConfigurationError: the back end is not empty
        """
        batch: list[records.Write] = []
        count = 0
        for key, state in everything:
            schema = self._declared[key.namespace].schema
            batch.append(records.Write(key, 0, codec.encode(state, schema, record=str(key))))
            if len(batch) == _BATCH_RECORDS:
                count += self._create(batch)
                told(count)
                batch.clear()
        count += self._create(batch)
        self._beat(self._now_seconds())
        told(count)
        return count

    def _create(self, batch: list[records.Write]) -> int:
        if batch and not all(result.won for result in self._synchronizer.write(batch)):
            raise errors.ConfigurationError(
                "--synchronizer",
                self._synchronizer.name,
                "its back end holds records already; a run needs one of its own: give it an empty "
                "database or key prefix, or pass --reset to drop everything there.",
            )
        return len(batch)

    # -- publishing -------------------------------------------------------------------

    def flush(self, *, everything: bool = False) -> int:
        """Publish what is waiting, as far as the rate allows; return how many records.

        A back end that is away leaves them waiting.

        :param everything: whatever the rate
        """
        if self.lost:
            return 0
        now = self._now_seconds()
        self._allowed = min(
            self._allowed + (now - self._allowed_at) * self._rate, max(self._rate, _BATCH_RECORDS)
        )
        self._allowed_at = now
        done = 0
        try:
            self._write_page_if_due(now)
            while batch := self._next(everything=everything):
                done += self._publish(batch)
                # More may come for as long as this goes on.
                self._beat_if_due()
            self._beat_if_due()
        except errors.NodbError:
            self.figures.failures += 1
        return done

    def _next(self, *, everything: bool) -> list[records.RecordKey]:
        with self._lock:
            room = _BATCH_RECORDS if everything else int(min(self._allowed, _BATCH_RECORDS))
            oldest_first = itertools.chain.from_iterable(self._dirty.values())
            return list(itertools.islice(oldest_first, max(room, 0)))

    def _publish(self, keys: list[records.RecordKey]) -> int:
        with self._lock:
            states = {key: self._state(key) for key in keys}
            marked = {key: self._dirty[key.namespace].pop(key) for key in keys}
        try:
            # What a node counts is told before the node: its record is the later one.
            for owner, some in _parts(keys):
                updates = {key: _always(states[key]) for key in some}
                report = self._publishers[owner].publish(updates)
                self._note(len(some), report.version)
        except BaseException:
            with self._lock:
                for key, since in marked.items():
                    since = min(since, self._dirty[key.namespace].get(key, since))
                    self._dirty[key.namespace][key] = since
            raise
        self._allowed -= len(keys)
        return len(keys)

    def _write_page_if_due(self, now: float) -> None:
        journal = self._journal
        if journal is None or now - self._page_at < _PAGE_SECONDS:
            return
        with self._lock:
            self._unwritten_since = self._heard_since()
            heard, self._heard = self._heard, []
        self._page_at = now
        journal.add(heard)
        pages = journal.written
        found = journal.flush()
        if not found.waiting:
            self._unwritten_since = None
        self.figures.journaled += found.written
        if found.version:
            self._note(journal.written - pages, found.version)

    def _heard_since(self) -> float | None:
        """Return when the oldest heartbeat was heard that no page tells of yet, simulated."""
        if self._unwritten_since is not None or not self._heard:
            return self._unwritten_since
        return self._heard[0].heard_at - made_hosts.BEGINNING_SECONDS

    def _beat_if_due(self) -> None:
        now = self._now_seconds()
        if self._beat_at is None or now - self._beat_at >= self._beat_seconds:
            self._beat(now)

    def _beat(self, now: float) -> None:
        with self._lock:
            oldest = [next(iter(marked.values()), now) for marked in self._dirty.values()]
            heard_since = self._heard_since()
            told_up_to = min(*oldest, now if heard_since is None else heard_since)
        state = made_hosts.reporter(told_up_to, os.getpid())
        self._publishers[known_namespaces.NODB].publish({_BEAT_KEY: _always(state)})
        self._beat_at = now

    def _note(self, count: int, version: int) -> None:
        at = time.monotonic()
        self.figures.updates += count
        self.figures.published.append((at, version, count))
        second, so_far = self._second
        so_far = so_far + count if second == int(at) else count
        self._second = (int(at), so_far)
        self.figures.peak_per_second = max(self.figures.peak_per_second, so_far)


def _parts(
    keys: list[records.RecordKey],
) -> list[tuple[str, list[records.RecordKey]]]:
    """Return keys by owner, in the order they are to be written."""
    first = [key for key in keys if key.namespace == fleet.INSTANCES]
    mirrored = [key for key in keys if key.namespace == fleet.PROVIDERS]
    rest = [key for key in keys if key.namespace in (fleet.NODES, fleet.LIVENESS)]
    parts = [
        (known_namespaces.NOVA, first),
        (known_namespaces.PLACEMENT, mirrored),
        (known_namespaces.NOVA, rest),
    ]
    return [part for part in parts if part[1]]


def _always(state: Mapping[str, object] | None) -> publisher.Compute:
    return lambda _current: publisher.DELETE if state is None else state


class ReporterThread:
    """Flushes a reporter at a steady pace, beside the world."""

    def __init__(self, reporter: HostReporter, pause_seconds: float = 0.05) -> None:
        self._reporter = reporter
        self._pause_seconds = pause_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(30.0)

    def _run(self) -> None:
        while not self._stop.wait(self._pause_seconds):
            self._reporter.flush()
