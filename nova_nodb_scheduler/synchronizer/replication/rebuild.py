# SPDX-License-Identifier: Apache-2.0
"""Read everything a back end holds, or a checkpoint does, into a store, a page at a time.

The cursor is taken before the first page (by the driver), the pages are read
while others write, and what no page held is dropped at the end: it was deleted
before its page was read. What is written behind the cursor the feed brings.

A checkpoint is what a snapshot was, with the feed up to its cursor applied: the store is
emptied, filled with it, and the feed followed from there, as by a reader that slept. Whether
the feed can still go on from there the back end tells, before anything is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, record_columns, records
from nova_nodb_scheduler.store import (
    collector,
    host_state_store,
    store_snapshot,
    stored_pages,
)
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.checkpoint import (
    checkpoint_contract,
    checkpoint_format,
    local_checkpoint,
    witnesses,
)
from nova_nodb_scheduler.synchronizer.replication import ingest

#: Records packed before readers get a turn: some 5 ms.
_PACKED_AT_A_TIME = 256


#: Of rows that were restored: they are in the store, and nothing was decoded.
_NOTHING_TO_TELL = ingest.Ingested((), ())

_WHY = checkpoint_contract.CheckpointRefusalReason
_REASONS = {
    records.ResyncReason.EPOCH_CHANGED: _WHY.OTHER_EPOCH,
    records.ResyncReason.HEAD_BEHIND_CURSOR: _WHY.HEAD_BEHIND_CURSOR,
    records.ResyncReason.HISTORY_TRUNCATED: _WHY.HISTORY_TRUNCATED,
}


class CheckpointUnfit(Exception):
    """Pages of a checkpoint are not what they were: the store is to be built from a snapshot.

    :param reason: for people
    """


def _forget(former: store_snapshot.Snapshot) -> None:
    """Nobody needs what the store held."""


def _note_keys(page: Sequence[records.Record], seen: dict[str, set[str]]) -> None:
    """Enter the keys of a page's records where their namespace stands."""
    if isinstance(page, record_columns.RecordColumns):
        if page.namespace in seen:
            seen[page.namespace].update(page.keys)
        return
    for record in page:
        if record.key.namespace in seen:
            seen[record.key.namespace].add(record.key.key)


@attrs.define
class _SnapshotReading:
    """A snapshot, or a checkpoint, that is being read.

    :param seen: keys by namespace; None where the store began empty, so that
        nothing can be left over
    :param checkpoint: None of a snapshot
    """

    cursor: records.Cursor
    taken: Iterator[ingest.Ingested]
    seen: dict[str, set[str]] | None
    checkpoint: local_checkpoint.OpenedCheckpoint | None = None


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
        #: Given what the store held whenever a snapshot begins with an empty one; no I/O.
        #: A store that was never filled to its end is told to nobody: part of it misleads.
        self.tell_former: Callable[[store_snapshot.Snapshot], None] = _forget
        self._was_whole = False
        #: Epoch of what the store holds; empty before the first snapshot.
        self.epoch = ""
        #: Snapshots that reached their end.
        self.count = 0
        #: Odd while the store is being rebuilt; see Replicator.generation.
        self.generation = 0

    @property
    def in_progress(self) -> bool:
        return self._reading is not None

    @property
    def from_checkpoint(self) -> bool:
        """Whether it is a checkpoint that is being read."""
        return self._reading is not None and self._reading.checkpoint is not None

    def distrust_store(self) -> None:
        """Let the next snapshot begin with an empty store, in the same epoch too.

        For the store may hold writes that the back end lost: later writes
        would carry revisions that the store takes for known.
        """
        self._store_is_suspect = True

    def abandon(self) -> None:
        """Drop the snapshot that is being read, if any; its pages stay in the store."""
        reading = self._reading
        if reading is not None:
            collector.loaded()
            if reading.checkpoint is not None:
                reading.checkpoint.close()
                # What it holds of one is not compared with anything.
                self._store_is_suspect = True
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
            if self._was_whole:
                self.tell_former(self._store.snapshot())
            self._was_whole = False
            # Revisions begin anew with an epoch.
            self._store.begin_epoch()
            self.epoch = snapshot.cursor.epoch
            self._store_is_suspect = False
        else:
            seen = {name: set[str]() for name in self._declared}
        self._reading = _SnapshotReading(snapshot.cursor, self._take(snapshot.pages, seen), seen)

    def begin_with(
        self, opened: local_checkpoint.OpenedCheckpoint
    ) -> checkpoint_contract.CheckpointRefusal | None:
        """Empty the store and begin to fill it with a checkpoint, if the feed goes on from it.

        :returns: why it does not; nothing was changed then
        :raises BackendUnavailable: nothing was changed
        """
        cursor = opened.header.cursor
        refused = self._refused(opened)
        if refused is not None:
            return refused
        self.generation = (self.generation + 1) | 1
        self._quarantine.clear()
        self._was_whole = False
        self._store.begin_epoch()
        self.epoch = cursor.epoch
        self._store_is_suspect = False
        self._reading = _SnapshotReading(cursor, self._restored(opened), None, opened)
        return None

    def _refused(
        self, opened: local_checkpoint.OpenedCheckpoint
    ) -> checkpoint_contract.CheckpointRefusal | None:
        cursor = opened.header.cursor
        head = self._synchronizer.head()
        if head.epoch != cursor.epoch:
            return checkpoint_contract.CheckpointRefusal(
                _WHY.OTHER_EPOCH,
                f"{cursor.epoch}, and the back end is in {head.epoch}",
            )
        changes = self._synchronizer.fetch(cursor, 1)
        if isinstance(changes, records.ResyncNeeded):
            reason = _REASONS.get(changes.reason, _WHY.HISTORY_TRUNCATED)
            return checkpoint_contract.CheckpointRefusal(reason, changes.detail)
        fault = witnesses.contradiction(self._synchronizer, cursor, opened.header.witnesses)
        if fault is None:
            return None
        return checkpoint_contract.CheckpointRefusal(_WHY.LOST_WRITES, fault)

    def _restored(self, opened: local_checkpoint.OpenedCheckpoint) -> Iterator[ingest.Ingested]:
        aside = self._quarantine.admitted
        try:
            for page in opened.pages():
                if isinstance(page, list):
                    yield from self._ingester.take(page)
                else:
                    self._store.restore(*page)
                    yield _NOTHING_TO_TELL
                if self._quarantine.admitted != aside:
                    # None is written while records are kept aside.
                    raise checkpoint_format.Damaged("a record of it cannot be read")
            self._store.check_restored()
        except (checkpoint_format.Damaged, OSError, *stored_pages.UNFIT) as error:
            if isinstance(error, errors.NOT_USABLE):
                raise
            raise CheckpointUnfit(f"{type(error).__name__}: {error}") from error

    def read_page(self) -> ingest.Ingested | records.Cursor:
        """Bring one page into the store, or a part of one that is large.

        :returns: what came of it; or, behind the last page, the cursor from
            which the feed is to be followed
        :raises BackendUnavailable: to be abandoned by the caller
        :raises SnapshotInterrupted: the same
        :raises CheckpointUnfit: the same
        """
        reading = self._reading
        if reading is None:
            raise RuntimeError("no snapshot was begun")
        with collector.at_rest(loading=True):
            taken = next(reading.taken, None)
        if taken is None:
            return self._end(reading)
        # At once: memory that a whole snapshot took would not be given back.
        while reading.checkpoint is None and self._store.pack(_PACKED_AT_A_TIME):
            pass
        return taken

    def _take(
        self, pages: Iterator[Sequence[records.Record]], seen: dict[str, set[str]] | None
    ) -> Iterator[ingest.Ingested]:
        for page in pages:
            if seen is not None:
                _note_keys(page, seen)
            yield from self._ingester.take(page)

    def _end(self, reading: _SnapshotReading) -> records.Cursor:
        with collector.at_rest(loading=True):
            for name, keys in (reading.seen or {}).items():
                # Nothing is remembered of what is dropped: should a page have
                # missed a live record, a sweep brings it back as it was.
                self._store.retain(name, keys, reading.cursor.version)
            # Rows of all pages gather until somebody looks, and to enter them makes an object
            # for each: a piece of the load, too, which the first reader would do with the
            # collector on, index by index.
            self._store.snapshot()
        collector.loaded()
        if reading.checkpoint is not None:
            reading.checkpoint.close()
        self._reading = None
        self._was_whole = True
        self.count += 1
        self.generation += 1
        return reading.cursor
