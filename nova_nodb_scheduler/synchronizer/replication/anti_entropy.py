# SPDX-License-Identifier: Apache-2.0
"""Compare the store with the back end, slowly, and repair what differs.

The feed brings every change, by contract. This is for the day it did not: an
eviction, a lost log entry, a restored backup, a fault of ours. A sweep reads
everything page by page and compares revisions. A page is older than the moment
it is looked at, so what differs is only a suspicion: the record is read again
(linearizable), and counts only if its version is not younger than the cursor,
for up to there the feed owed it. Of one that was deleted and collected nobody knows
the version; the feed owed it unless it lost count of changes behind the cursor.
"""

from __future__ import annotations

import enum
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.store import host_state_store, store_snapshot
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.replication import ingest

LOG = logging.getLogger(__name__)

#: How many keys of the store are looked up, or read again, in one piece of work.
_KEYS_PER_PIECE = 500


class Divergence(enum.Enum):
    """How store and back end differ."""

    #: The back end has it, the store does not.
    MISSED = "missed"
    #: The store has an older revision.
    STALE = "stale"
    #: The store has what the back end no longer has.
    EXTRA = "extra"
    #: The store has a newer revision, or another state of the same one: the
    #: back end went back to an older past without telling (a restored backup).
    DIVERGED = "diverged"


#: Of an interval: until a sweep is tried again that was interrupted and is urgent.
_SOON = 0.1


class AntiEntropy:
    """One sweep after the other, a piece at a time; used by the replicator's thread alone.

    :param on_repaired: called with the changes a repair applied
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        store: host_state_store.HostStateStore,
        declared: Sequence[namespaces.Namespace],
        ingester: ingest.Ingester,
        quarantine: ingest.Quarantine,
        *,
        interval_seconds: float,
        page_seconds: float,
        clock: Callable[[], float],
        on_repaired: Callable[[Sequence[records.Change]], None],
    ) -> None:
        self._synchronizer = synchronizer
        self._store = store
        self._declared = frozenset(namespace.name for namespace in declared)
        self._ingester = ingester
        self._quarantine = quarantine
        self._interval_seconds = interval_seconds
        self._page_seconds = page_seconds
        self._clock = clock
        self._on_repaired = on_repaired
        self._sweep: Iterator[None] | None = None
        self._cursor = records.Cursor("", 0)
        self._next_at: float | None = None
        #: Whether a sweep that was to begin at once did not end yet.
        self._owed = False
        self._found: Counter[Divergence] = Counter()
        #: Sweeps that reached their end.
        self.sweeps = 0

    @property
    def found(self) -> Mapping[str, int]:
        """What all sweeps found, by kind."""
        return {finding.value: self._found[finding] for finding in Divergence}

    def restart(self, *, at_once: bool = False) -> None:
        """Drop the sweep; the next begins an interval from now, or at once."""
        self._sweep = None
        self._owed = at_once
        self._next_at = self._clock() + (0.0 if at_once else self._interval_seconds)

    def interrupt(self) -> None:
        """Drop the sweep; one that was to begin at once begins soon, others as they would.

        Not at once: a sweep may be what the back end did not bear.
        """
        owed = self._owed
        self.restart()
        if owed:
            self._owed = True
            self._next_at = self._clock() + self._interval_seconds * _SOON

    def due_in_seconds(self) -> float:
        """Return how long until the next piece of work."""
        return 0.0 if self._next_at is None else max(0.0, self._next_at - self._clock())

    def step(self, cursor: records.Cursor) -> Counter[Divergence]:
        """Do one piece of work, if it is time for one.

        :param cursor: up to where the store has applied the feed
        :returns: what this piece found. DIVERGED is not repaired: the caller
            must begin with an empty store.
        :raises BackendUnavailable: the sweep is dropped by the caller
        :raises SnapshotInterrupted: the same
        """
        if self.due_in_seconds() > 0:
            return Counter()
        before = self._found.copy()
        self._cursor = cursor
        if self._sweep is None:
            self._sweep = self._pieces()
        if next(self._sweep, self) is self:
            self.sweeps += 1
            self.restart()
        else:
            self._next_at = self._clock() + self._page_seconds
        return self._found - before

    def _pieces(self) -> Iterator[None]:
        """Sweep once; each item is a bounded piece of work done."""
        seen: dict[str, set[str]] = {name: set() for name in self._declared}
        for page in self._synchronizer.snapshot().pages:
            view = self._store.snapshot()
            suspects = []
            for record in page:
                if record.key.namespace in seen:
                    seen[record.key.namespace].add(record.key.key)
                    if not self._agrees(view, record):
                        suspects.append(record.key)
            self._settle(suspects)
            yield
        for name, in_back_end in seen.items():
            # The view is immutable, so that its keys may be walked over many pieces.
            held = iter(self._store.snapshot().namespace(name).keys())
            while piece := list(itertools.islice(held, _KEYS_PER_PIECE)):
                self._settle(
                    [records.RecordKey(name, key) for key in piece if key not in in_back_end]
                )
                yield

    def _agrees(self, view: store_snapshot.Snapshot, record: records.Record) -> bool:
        if record.version > self._cursor.version:
            return True  # the feed has yet to bring it
        stored = view.namespace(record.key.namespace).get(record.key.key)
        return (
            stored is not None
            and stored.revision == record.revision
            and stored.holds(record.payload)
        )

    def _settle(self, suspects: Sequence[records.RecordKey]) -> None:
        """Read again what seemed to differ; count and repair what does."""
        if not suspects:
            return
        current = self._synchronizer.read(suspects)
        # A flushed cache reads as if all were deleted: that is for the feed to
        # tell, and for a snapshot to mend.
        if self._synchronizer.head().epoch != self._cursor.epoch:
            raise contract.SnapshotInterrupted
        view = self._store.snapshot()
        collected = any(
            key not in current and view.namespace(key.namespace).get(key.key) is not None
            for key in suspects
        )
        if collected and isinstance(
            self._synchronizer.fetch(self._cursor, 1), records.ResyncNeeded
        ):
            # A deletion that was collected tells no version: the feed, which is behind, did not
            # owe all of those, and says itself that it owes a snapshot.
            raise contract.SnapshotInterrupted
        repairs: list[records.Record] = []
        for key in suspects:
            stored = view.namespace(key.namespace).get(key.key)
            record = current.get(key)
            finding = self._judge(key, stored, record)
            if finding is None:
                continue
            self._found[finding] += 1
            if finding is not Divergence.DIVERGED:
                repairs.append(record if record is not None else _tombstone_of(key, stored))
        self._repair(repairs)

    def _judge(
        self,
        key: records.RecordKey,
        stored: store_snapshot.StoredRecord | None,
        current: records.Record | None,
    ) -> Divergence | None:
        if current is not None:
            if current.version > self._cursor.version:
                return None
            aside = self._quarantine.get(key)
            if aside is not None and aside.revision >= current.revision:
                return None
            if stored is not None and stored.revision > current.revision:
                return Divergence.DIVERGED
        if current is None or current.deleted:
            return None if stored is None else Divergence.EXTRA
        if stored is None:
            return Divergence.MISSED
        if stored.revision < current.revision:
            return Divergence.STALE
        return None if stored.holds(current.payload) else Divergence.DIVERGED

    def _repair(self, repairs: Sequence[records.Record]) -> None:
        if not repairs:
            return
        for taken in self._ingester.take(repairs):
            # The store remembers a newer tombstone than the live record that
            # stands in the back end: the back end went back.
            self._found[Divergence.DIVERGED] += len(taken.readable) - len(taken.applied)
            self._on_repaired(taken.applied)
            del taken  # not held while the next part is decoded


def _tombstone_of(
    key: records.RecordKey, stored: store_snapshot.StoredRecord | None
) -> records.Record:
    """Make up the tombstone that was collected: a deletion takes one revision at least."""
    if stored is None:
        raise ValueError(f"{key} is neither in the store nor in the back end")
    return records.Record(key, stored.revision + 1, stored.version, b"", deleted=True)
