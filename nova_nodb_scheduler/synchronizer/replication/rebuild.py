# SPDX-License-Identifier: Apache-2.0
"""Read everything a back end holds into a store, a page at a time.

The cursor is taken before the first page (by the driver), the pages are read
while others write, and what no page held is dropped at the end: it was deleted
before its page was read. What is written behind the cursor the feed brings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.store import collector, host_state_store
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.replication import ingest

#: Records packed before readers get a turn: some 5 ms.
_PACKED_AT_A_TIME = 256


@attrs.define
class _SnapshotReading:
    """A snapshot that is being read.

    :param seen: keys by namespace; None where the store began empty, so that
        nothing can be left over
    """

    cursor: records.Cursor
    taken: Iterator[ingest.Ingested]
    seen: dict[str, set[str]] | None


class Rebuild:
    """One snapshot after the other; used by the replicator's thread alone."""

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        store: host_state_store.HostStateStore,
        declared: Sequence[namespaces.Namespace],
        ingester: ingest.Ingester,
        quarantine: ingest.Quarantine,
    ) -> None:
        self._synchronizer = synchronizer
        self._store = store
        self._declared = tuple(namespace.name for namespace in declared)
        self._ingester = ingester
        self._quarantine = quarantine
        self._reading: _SnapshotReading | None = None
        self._store_is_suspect = False
        #: Epoch of what the store holds; empty before the first snapshot.
        self.epoch = ""
        #: Snapshots that reached their end.
        self.count = 0
        #: Odd while the store is being rebuilt; see Replicator.generation.
        self.generation = 0

    @property
    def in_progress(self) -> bool:
        return self._reading is not None

    def distrust_store(self) -> None:
        """Let the next snapshot begin with an empty store, in the same epoch too.

        For the store may hold writes that the back end lost: later writes
        would carry revisions that the store takes for known.
        """
        self._store_is_suspect = True

    def abandon(self) -> None:
        """Drop the snapshot that is being read, if any; its pages stay in the store."""
        if self._reading is not None:
            collector.loaded()
        self._reading = None

    def begin(self) -> None:
        """Take the cursor, and empty the store unless it can be compared.

        :raises BackendUnavailable: nothing was changed
        """
        snapshot = self._synchronizer.snapshot()
        self.generation = (self.generation + 1) | 1
        self._quarantine.clear()
        seen = None
        if snapshot.cursor.epoch != self.epoch or self._store_is_suspect:
            # Revisions begin anew with an epoch.
            self._store.begin_epoch()
            self.epoch = snapshot.cursor.epoch
            self._store_is_suspect = False
        else:
            seen = {name: set[str]() for name in self._declared}
        self._reading = _SnapshotReading(snapshot.cursor, self._take(snapshot.pages, seen), seen)

    def read_page(self) -> ingest.Ingested | records.Cursor:
        """Bring one page into the store, or a part of one that is large.

        :returns: what came of it; or, behind the last page, the cursor from
            which the feed is to be followed
        :raises BackendUnavailable: to be abandoned by the caller
        :raises SnapshotInterrupted: the same
        """
        reading = self._reading
        if reading is None:
            raise RuntimeError("no snapshot was begun")
        with collector.at_rest(loading=True):
            taken = next(reading.taken, None)
        if taken is None:
            return self._end(reading)
        # At once: memory that a whole snapshot took would not be given back.
        while self._store.pack(_PACKED_AT_A_TIME):
            pass
        return taken

    def _take(
        self, pages: Iterator[Sequence[records.Record]], seen: dict[str, set[str]] | None
    ) -> Iterator[ingest.Ingested]:
        for page in pages:
            if seen is not None:
                for record in page:
                    if record.key.namespace in seen:
                        seen[record.key.namespace].add(record.key.key)
            yield from self._ingester.take(page)

    def _end(self, reading: _SnapshotReading) -> records.Cursor:
        collector.loaded()
        for name, keys in (reading.seen or {}).items():
            # Nothing is remembered of what is dropped: should a page have
            # missed a live record, a sweep brings it back as it was.
            self._store.retain(name, keys, reading.cursor.version)
        self._reading = None
        self.count += 1
        self.generation += 1
        return reading.cursor
