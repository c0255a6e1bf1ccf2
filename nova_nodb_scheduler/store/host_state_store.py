# SPDX-License-Identifier: Apache-2.0
"""Every host's state in memory, by namespace: changes in, snapshots out.

One thread, the replicator, writes; snapshots are taken from any thread. One
lock guards both, and none is needed to read a snapshot. What a snapshot costs
is paid by the writer afterwards: it copies each chunk of rows before its first
change, so the bytes copied grow with what changed and not with what is held.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.store import keeping, snapshot, subscription, table

#: How many changes are applied before readers get a turn: some 10 ms.
_CHANGES_PER_TURN = 256


class HostStateStore:
    """The records of all declared namespaces.

    :param namespaces: declarations, see :mod:`.declarations`
    :param decode: payload -> state; raises UndecodableRecord
    :param decoded_states: how many decoded states are kept for readers that
        ask again. One takes about four times its JSON text. They are found by
        payload, so a changed record, or a new epoch, never meets an old state.
    :param packing: makes what packs one namespace's payloads, see :meth:`pack`
    """

    def __init__(
        self,
        namespaces: Sequence[model.Namespace],
        decode: Callable[[bytes], Mapping[str, Any]],
        *,
        decoded_states: int = 1024,
        packing: Callable[[], keeping.Packing] = keeping.AsTheyAre,
    ) -> None:
        @functools.lru_cache(maxsize=decoded_states)
        def cached_decode(packed_by: keeping.Packing, kept: bytes) -> Mapping[str, Any]:
            return decode(packed_by.readable(kept))

        decode_kept: table.Decoder = cached_decode  # type: ignore[assignment]
        self._tables: dict[str, table.Table] = {}
        for namespace in namespaces:
            if namespace.name in self._tables:
                raise errors.ConfigurationError(
                    "namespaces", namespace.name, "declared twice; give each its own name"
                )
            self._tables[namespace.name] = table.Table(namespace, decode_kept, packing)
        self._declared = tuple(namespaces)
        self._lock = threading.Lock()
        self._latest: snapshot.Snapshot | None = None
        self._snapshot_count = 0
        self._subscriptions: dict[str, tuple[subscription.Subscription, ...]] = {}

    def namespaces(self) -> tuple[model.Namespace, ...]:
        """Return the declarations, as given."""
        return self._declared

    @property
    def bytes_copied(self) -> int:
        """Bytes of rows copied since the start so that snapshots stay as they were."""
        return sum(each.bytes_copied for each in self._tables.values())

    @property
    def tombstone_count(self) -> int:
        """Removed records whose revision is still remembered."""
        return sum(each.tombstone_count for each in self._tables.values())

    def apply(self, change: records.Change) -> bool:
        """Take a change over, unless its revision is not newer than the known one.

        A tombstone removes its record, and its revision stays known until
        :meth:`forget_tombstones`: an older change that comes late brings
        nothing back. A second identical call does nothing.

        :returns: True if it was newer
        :raises UnknownNamespace: its namespace is not declared
        :raises InvalidRecord: a field does not fit its column; the store is
            as it was, the caller quarantines the record
        """
        with self._lock:
            return self._apply(change)

    def subscribe(
        self, namespaces: Collection[str], most_keys: int = subscription.MOST_KEYS
    ) -> subscription.Subscription:
        """Return what will tell which keys of some namespaces changed.

        It lives as long as the store.

        :param most_keys: beyond so many it only says that everything may have
        :raises UnknownNamespace: one is not declared
        """
        made = subscription.Subscription(namespaces, most_keys)
        with self._lock:
            for name in made.namespaces:
                self._table(name)
            for name in made.namespaces:
                self._subscriptions[name] = (*self._subscriptions.get(name, ()), made)
        return made

    def apply_many(
        self,
        changes: Iterable[records.Change],
        *,
        refused: Callable[[records.Change, errors.NodbError], None] | None = None,
    ) -> int:
        """Apply changes in their order; return how many were newer.

        Not one transaction: a snapshot may be taken in between, as the feed
        gives no boundaries either.

        :param refused: called, without the lock, for each change that
            :meth:`apply` raises for; the others are applied. Without it the
            first such error is raised, the changes before it stay applied,
            and the call may be repeated without the offender.
        """
        newer = 0
        failures: list[tuple[records.Change, errors.NodbError]] = []
        turn: list[records.Change] = []
        for change in changes:
            turn.append(change)
            if len(turn) == _CHANGES_PER_TURN:
                newer += self._apply_turn(turn, failures, collect=refused is not None)
                turn.clear()
                # A released lock alone does not let a waiting thread run.
                time.sleep(0)
        newer += self._apply_turn(turn, failures, collect=refused is not None)
        if refused is not None:
            for change, error in failures:
                refused(change, error)
        return newer

    def _apply_turn(
        self,
        changes: list[records.Change],
        failures: list[tuple[records.Change, errors.NodbError]],
        *,
        collect: bool,
    ) -> int:
        newer = 0
        with self._lock:
            for change in changes:
                try:
                    newer += self._apply(change)
                except (errors.InvalidRecord, errors.UnknownNamespace) as error:
                    if not collect:
                        raise
                    failures.append((change, error))
        return newer

    def retain(self, namespace: str, keys: Collection[str], version: int) -> int:
        """Drop what a snapshot of the back end no longer held; return how many.

        :param keys: keys the snapshot held
        :param version: the snapshot's cursor; records written since are kept
        :raises UnknownNamespace: it is not declared
        """
        with self._lock:
            dropped = self._table(namespace).retain(keys, version)
            for each in self._subscriptions.get(namespace, ()):
                for key in dropped:
                    each.note(namespace, key)
            return len(dropped)

    def forget_tombstones(self, below_version: int) -> int:
        """Forget tombstones older than a version; return how many.

        Safe below the back end's floor: no feed delivers changes from there.
        """
        with self._lock:
            return sum(each.forget_tombstones(below_version) for each in self._tables.values())

    def pack(self, most_records: int) -> bool:
        """Pack payloads that came since the last call; readers see no difference.

        Called by the thread that applies changes, when nothing waits for it.

        :param most_records: looked at, some 20 us each, with the lock held;
            a chunk of rows is not divided
        :returns: True if there is more to pack
        """
        with self._lock:
            left = most_records
            for each in self._tables.values():
                left -= each.pack(left)
                if left <= 0:
                    return True
        return False

    def begin_epoch(self) -> None:
        """Drop everything, remembered tombstones included: revisions begin anew."""
        with self._lock:
            for each in self._tables.values():
                each.clear()
            for subscriptions in self._subscriptions.values():
                for subscribed in subscriptions:
                    subscribed.note_all()

    def snapshot(self) -> snapshot.Snapshot:
        """Return the present state for good; the same object until something changes.

        Waits for the lock, which the writer holds for some milliseconds at most
        (:meth:`retain` and :meth:`forget_tombstones`: one pass over the keys).
        """
        with self._lock:
            views = {name: each.view() for name, each in self._tables.items()}
            latest = self._latest
            if latest is None or any(latest.namespace(name) is not views[name] for name in views):
                self._snapshot_count += 1
                self._latest = latest = snapshot.Snapshot(self._snapshot_count, views)
            return latest

    def _apply(self, change: records.Change) -> bool:
        key = change.record.key
        newer = self._table(key.namespace).apply(change)
        if newer:
            for each in self._subscriptions.get(key.namespace, ()):
                each.note(key.namespace, key.key)
        return newer

    def _table(self, name: str) -> table.Table:
        found = self._tables.get(name)
        if found is None:
            raise errors.UnknownNamespace(name, ", ".join(sorted(self._tables)))
        return found
