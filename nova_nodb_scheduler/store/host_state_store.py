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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces as model
from nova_nodb_scheduler.model import record_columns, records
from nova_nodb_scheduler.store import (
    namespace_table,
    record_chunks,
    store_snapshot,
    stored_pages,
)

#: More keys than this between two calls: reading everything costs no more.
MOST_KEYS = 65_536


class Subscription:
    """The keys that changed in some namespaces; made by the store.

    A snapshot tells what there is, and comparing two costs a pass over every chunk
    that differs. A subscriber that keeps something derived of each record asks here
    instead which keys to look at again.

    The store's writer notes, any one thread drains. Memory is bounded by
    ``most_keys``.
    """

    def __init__(self, namespaces: Collection[str], most_keys: int = MOST_KEYS) -> None:
        self._most_keys = most_keys
        self._lock = threading.Lock()
        self._touched: dict[str, set[str]] = {name: set() for name in namespaces}
        #: How many more keys fit, counted down per change and not per key: a
        #: key that changes often costs a new count, see :meth:`_overfull`.
        self._left = most_keys
        self._everything = True

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces that are watched."""
        return tuple(self._touched)

    def drain(self) -> Mapping[str, Collection[str]] | None:
        """Return the keys touched since the last call, by namespace, and forget them.

        What is touched may be new, changed, gone, or all as it was. A snapshot
        taken afterwards shows each key as it was noted, or newer.

        :returns: None where everything has to be read: at the first call, in a
            new epoch, and where more keys changed than are remembered
        """
        with self._lock:
            touched = {name: keys for name, keys in self._touched.items() if keys}
            self._touched.update((name, set()) for name in touched)
            everything, self._everything = self._everything, False
            self._left = self._most_keys
        return None if everything else touched

    def note(self, namespace: str, keys: Collection[str]) -> None:
        """Remember keys. Called by the store for each change, with its lock."""
        with self._lock:
            if self._everything:
                return
            self._touched[namespace].update(keys)
            self._left -= len(keys)
            if self._left <= 0:
                self._overfull()

    def note_all(self) -> None:
        """Say that nothing is as it was."""
        with self._lock:
            self._give_up()

    def _overfull(self) -> None:
        self._left = self._most_keys - sum(map(len, self._touched.values()))
        # A quarter is left free, or the count would be taken for every change.
        if self._left < self._most_keys // 4:
            self._give_up()

    def _give_up(self) -> None:
        self._everything = True
        for keys in self._touched.values():
            keys.clear()


#: How many changes are applied before readers get a turn: some 5 ms.
CHANGES_PER_TURN = 256


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
        packing: Callable[[], record_chunks.PayloadPacking] = record_chunks.AsTheyAre,
    ) -> None:
        @functools.lru_cache(maxsize=decoded_states)
        def cached_decode(
            packed_by: record_chunks.PayloadPacking, kept: record_chunks.Kept
        ) -> Mapping[str, Any]:
            return decode(packed_by.readable(kept))

        decode_kept: namespace_table.Decoder = cached_decode  # type: ignore[assignment]
        self._tables: dict[str, namespace_table.NamespaceTable] = {}
        texts: namespace_table.Vocabularies = {}
        for namespace in namespaces:
            if namespace.name in self._tables:
                raise errors.ConfigurationError(
                    "namespaces", namespace.name, "declared twice; give each its own name"
                )
            self._tables[namespace.name] = namespace_table.NamespaceTable(
                namespace, decode_kept, packing, texts
            )
        for each in self._tables.values():
            each.share_keys(self._tables.values())
        self._declared = tuple(namespaces)
        self._lock = threading.Lock()
        self._latest = store_snapshot.Snapshot(0, {})
        #: Namespaces that may have changed since the latest snapshot.
        self._touched = set(self._tables)
        self._subscriptions: dict[str, tuple[Subscription, ...]] = {}

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
        (outcome,) = self.apply_page((change,))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def apply_page(self, changes: Iterable[records.Change]) -> list[namespace_table.Outcome]:
        """Take changes over in their order, as :meth:`apply` does each of them.

        What many changes have in common is done once; of columns nothing is made for each,
        where all of them are new. Not one transaction:
        readers get a turn every few milliseconds, and a snapshot may be taken
        in between, as the feed gives no boundaries either.

        :returns: for each True, False, or the error that :meth:`apply` raises
        """
        outcomes: list[namespace_table.Outcome] = []
        rested_at = 0
        for turn in _turns(changes):
            outcomes += self._apply_turn(turn)
            if len(outcomes) - rested_at >= CHANGES_PER_TURN:
                # A released lock alone does not let a waiting thread run.
                time.sleep(0)
                rested_at = len(outcomes)
        return outcomes

    def subscribe(self, namespaces: Collection[str], most_keys: int = MOST_KEYS) -> Subscription:
        """Return what will tell which keys of some namespaces changed.

        It lives as long as the store.

        :param most_keys: beyond so many it only says that everything may have
        :raises UnknownNamespace: one is not declared
        """
        made = Subscription(namespaces, most_keys)
        with self._lock:
            for name in made.namespaces:
                self._table(name)
            for name in made.namespaces:
                self._subscriptions[name] = (*self._subscriptions.get(name, ()), made)
        return made

    def _apply_turn(self, changes: Sequence[records.Change]) -> list[namespace_table.Outcome]:
        """Apply changes of different records."""
        if isinstance(changes, record_columns.ChangeColumns):
            names = {changes.page.namespace}
        else:
            names = {change.key.namespace for change in changes}
        if len(names) == 1:
            with self._lock:
                return self._apply_to(names.pop(), changes)
        places: dict[str, list[int]] = {}
        for at, change in enumerate(changes):
            places.setdefault(change.key.namespace, []).append(at)
        outcomes: list[namespace_table.Outcome] = [False] * len(changes)
        with self._lock:
            for name, here in places.items():
                made = self._apply_to(name, [changes[at] for at in here])
                for at, outcome in zip(here, made, strict=True):
                    outcomes[at] = outcome
        return outcomes

    def _apply_to(
        self, name: str, changes: Sequence[records.Change]
    ) -> list[namespace_table.Outcome]:
        try:
            table = self._table(name)
        except errors.UnknownNamespace as error:
            return [error] * len(changes)
        self._touched.add(name)
        subscribed = self._subscriptions.get(name, ())
        try:
            outcomes = table.apply(changes)
        except BaseException:
            # Some may have been taken over, and are news to the store no second time.
            for each in subscribed:
                each.note_all()
            raise
        if subscribed:
            newer = _newer(changes, outcomes)
            for each in subscribed:
                each.note(name, newer)
        return outcomes

    def restore(self, namespace: str, page: stored_pages.StoredPage) -> None:
        """Take over rows that another process's store held, none of whose keys is here.

        The store is not to be believed before :meth:`check_restored` was called behind the
        last page.

        :raises UnknownNamespace: it is not declared
        :raises stored_pages.UNFIT: the page cannot be believed; nothing was changed
        """
        with self._lock:
            table = self._table(namespace)
            self._touched.add(namespace)
            table.restore(page)
            for each in self._subscriptions.get(namespace, ()):
                each.note(namespace, page.keys)
        # As in :meth:`apply_page`.
        time.sleep(0)

    def check_restored(self) -> None:
        """Refuse all that was restored, where pages that were fit brought a key twice.

        :raises ValueError: they did; a new epoch is to begin
        """
        with self._lock:
            for each in self._tables.values():
                each.check_restored()

    def retain(self, namespace: str, keys: Collection[str], version: int) -> int:
        """Drop what a snapshot of the back end no longer held; return how many.

        :param keys: keys the snapshot held
        :param version: the snapshot's cursor; records written since are kept
        :raises UnknownNamespace: it is not declared
        """
        with self._lock:
            table = self._table(namespace)
            self._touched.add(namespace)
            dropped = table.retain(keys, version)
            for each in self._subscriptions.get(namespace, ()):
                each.note(namespace, dropped)
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
        texts: namespace_table.Vocabularies = {}
        with self._lock:
            self._touched.update(self._tables)
            for each in self._tables.values():
                each.clear(texts)
            for subscriptions in self._subscriptions.values():
                for subscribed in subscriptions:
                    subscribed.note_all()

    def snapshot(self) -> store_snapshot.Snapshot:
        """Return the present state for good; the same object until something changes.

        Waits for the lock, which the writer holds for some milliseconds at most
        (:meth:`retain` and :meth:`forget_tombstones`: one pass over the keys).
        """
        with self._lock:
            if self._touched:
                changed = {name: self._tables[name].view() for name in self._touched}
                self._latest = self._latest.followed_by(changed)
                self._touched.clear()
            return self._latest

    def _table(self, name: str) -> namespace_table.NamespaceTable:
        found = self._tables.get(name)
        if found is None:
            raise errors.UnknownNamespace(name, ", ".join(sorted(self._tables)))
        return found


def _newer(
    changes: Sequence[records.Change], outcomes: Sequence[namespace_table.Outcome]
) -> list[str]:
    """Return the keys of changes that were taken over."""
    if isinstance(changes, record_columns.ChangeColumns):
        keys: Iterable[str] = changes.page.keys
    else:
        keys = (change.key.key for change in changes)
    return [key for key, outcome in zip(keys, outcomes, strict=True) if outcome is True]


def _turns(changes: Iterable[records.Change]) -> Iterator[Sequence[records.Change]]:
    """Divide changes into sequences of different records, none longer than a turn."""
    if isinstance(changes, record_columns.ChangeColumns):
        if len(set(changes.page.keys)) == len(changes) <= CHANGES_PER_TURN:
            yield changes
            return
    changes = list(changes)
    for first in range(0, len(changes), CHANGES_PER_TURN):
        turn = changes[first : first + CHANGES_PER_TURN]
        if len({change.record.key for change in turn}) == len(turn):
            yield turn  # nearly always
        else:
            yield from _divided(turn)


def _divided(changes: Iterable[records.Change]) -> Iterator[list[records.Change]]:
    """Divide changes, some of which are of one record."""
    turn: list[records.Change] = []
    keys: set[records.RecordKey] = set()
    for change in changes:
        key = change.record.key
        if key in keys:
            yield turn
            turn, keys = [], set()
        turn.append(change)
        keys.add(key)
    if turn:
        yield turn
