# SPDX-License-Identifier: Apache-2.0
"""Bring records into the store, and those that cannot be read into quarantine, by key.

A record that this release cannot decode must neither stop the feed nor leave
an older state of the same key to be taken for the current one. Who places
servers asks :meth:`Quarantine.keys` and goes another way for what these
records belong to.
"""

from __future__ import annotations

import itertools
import logging
import operator
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, record_columns, records
from nova_nodb_scheduler.store import host_state_store, record_chunks
from nova_nodb_scheduler.wire import codec, decoded_sizes

LOG = logging.getLogger(__name__)

#: So many records are decoded together as the store takes over at a time.
_MOST_TOGETHER = host_state_store.CHANGES_PER_TURN


@attrs.frozen
class Quarantined:
    """A record that was kept aside.

    :param version: its place in the feed
    :param size_bytes: size of its payload, which itself is not kept
    """

    key: records.RecordKey
    revision: int
    version: int
    reason: str
    size_bytes: int


@attrs.frozen
class UnreadableRecords:
    """What was in quarantine at one moment; see the methods of :class:`Quarantine`."""

    _keys: Mapping[str, frozenset[str]]
    _overflown: frozenset[str]

    @property
    def is_empty(self) -> bool:
        """Whether all records could be read, of whatever namespace."""
        return not self._keys and not self._overflown

    def keys(self, namespace: str) -> frozenset[str]:
        return self._keys.get(namespace, frozenset())

    def overflowed(self, namespace: str) -> bool:
        return namespace in self._overflown


_ALL_READABLE = UnreadableRecords({}, frozenset())


def all_readable() -> UnreadableRecords:
    """Return that every record could be read: of a store without a quarantine."""
    return _ALL_READABLE


class Quarantine:
    """Bounded; any method from any thread; none blocks for longer than a dictionary takes.

    :param limit: how many records are kept by key. Beyond it a namespace is
        only known to hold more of them (:meth:`overflowed`), until the next
        snapshot.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._entries: dict[records.RecordKey, Quarantined] = {}
        self._overflow: Counter[str] = Counter()
        #: What is in it; None once that changed.
        self._moment: UnreadableRecords | None = None
        self._admitted = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def admitted(self) -> int:
        """How many records were ever kept aside, newer ones of one key included."""
        return self._admitted

    def admit(self, record: records.Record, reason: str) -> bool:
        """Keep a record aside.

        :returns: False where this revision, or a newer one, is here already
        """
        key = record.key
        with self._lock:
            known = self._entries.get(key)
            if known is not None and known.revision >= record.revision:
                return False
            self._admitted += 1
            if known is None and len(self._entries) >= self._limit:
                # Of namespaces nobody declared there may be any number.
                self._overflow[key.namespace] += 1
                self._moment = None
                return True
            self._entries[key] = Quarantined(
                key, record.revision, record.version, reason, len(record.payload)
            )
            self._moment = None
        # Whoever writes these writes many: one line for the first of a key.
        if known is None:
            LOG.warning(
                "Record %(key)s at version %(version)d is kept aside: %(reason)s",
                {"key": key, "version": record.version, "reason": reason},
            )
        return True

    def release(self, key: records.RecordKey, revision: int) -> bool:
        """Let a key go, because a newer, readable revision of it came."""
        if not self._entries or key not in self._entries:
            return False
        with self._lock:
            known = self._entries.get(key)
            if known is None or known.revision >= revision:
                return False
            del self._entries[key]
            self._moment = None
            return True

    def clear(self) -> None:
        """Forget everything: what is still unreadable comes again with the snapshot."""
        with self._lock:
            self._entries.clear()
            self._overflow.clear()
            self._moment = None

    def get(self, key: records.RecordKey) -> Quarantined | None:
        return self._entries.get(key)

    def keys(self, namespace: str) -> frozenset[str]:
        """Return the keys of a namespace whose current state is unknown.

        Not all of them where :meth:`overflowed` is True.
        """
        return self.at_this_moment().keys(namespace)

    def overflowed(self, namespace: str) -> bool:
        """Return whether a namespace holds more unreadable records than are kept by key."""
        return namespace in self._overflow

    def at_this_moment(self) -> UnreadableRecords:
        """Return what is in it now, for who takes a snapshot of the store afterwards.

        A record that is let go between the two is in the snapshot. Asked the other way
        round, it may be in neither.
        """
        with self._lock:
            # Asked for by each request, and seldom another.
            if self._moment is None:
                keys: dict[str, set[str]] = {}
                for key in self._entries:
                    keys.setdefault(key.namespace, set()).add(key.key)
                found = {name: frozenset(each) for name, each in keys.items()}
                self._moment = UnreadableRecords(found, frozenset(self._overflow))
            return self._moment

    def entries(self) -> tuple[Quarantined, ...]:
        """Return what is kept aside, in order of key, for people to read."""
        with self._lock:
            return tuple(self._entries[key] for key in sorted(self._entries))

    def count_by_namespace(self) -> Mapping[str, int]:
        """Return how many records of each namespace are unreadable, overflow included."""
        with self._lock:
            counts = Counter(key.namespace for key in self._entries)
            return dict(counts + self._overflow)


#: What an unreadable record makes its readers raise.
_NOT_TAKEN = (errors.NodbError, TypeError, ValueError)


@attrs.frozen
class Ingested:
    """What came of a batch of records that was brought into the store, or of a part of one.

    :param readable: every record that could be read, in their order
    :param applied: those of them that were news to the store
    """

    readable: Sequence[records.Change]
    applied: Sequence[records.Change]


@attrs.define
class _Held:
    """What came of parts of a batch that their reader was not given yet."""

    parts: list[Ingested] = attrs.field(factory=list)
    weight: int = 0

    @property
    def is_light(self) -> bool:
        """Whether more may be decoded beside it."""
        return self.weight <= decoded_sizes.present().batch_bytes

    def add(self, part: Ingested, weight: int) -> None:
        """Hold one more, of objects of some bytes."""
        self.parts.append(part)
        self.weight += weight

    def let_go(self) -> Ingested:
        """Return it, and hold nothing."""
        parts, self.parts, self.weight = self.parts, [], 0
        if len(parts) == 1:
            return parts[0]
        return Ingested(
            tuple(itertools.chain.from_iterable(each.readable for each in parts)),
            tuple(itertools.chain.from_iterable(each.applied for each in parts)),
        )


def _names_and_payloads(part: Sequence[records.Record]) -> tuple[set[str], Sequence[bytes]]:
    """Return the namespaces of live records, and their payloads; no names where one is not."""
    if isinstance(part, record_columns.RecordColumns):
        return {part.namespace}, part.payloads
    if any(map(operator.attrgetter("deleted"), part)):
        return set(), ()
    return {record.key.namespace for record in part}, [record.payload for record in part]


def _even_parts(batch: Sequence[records.Record]) -> Iterator[Sequence[records.Record]]:
    count = -(-len(batch) // _MOST_TOGETHER)
    edges = [len(batch) * at // count for at in range(count + 1)]
    return (batch[begin:end] for begin, end in itertools.pairwise(edges))


class Ingester:
    """The one way of records into a store; used by one thread at a time.

    :param declared: the namespaces the store was made with, and those that are not followed
    :param decode: payload to schema version and state
    """

    def __init__(
        self,
        store: host_state_store.HostStateStore,
        declared: Sequence[namespaces.Namespace],
        quarantine: Quarantine,
        decode: Callable[[bytes], codec.Decoded] = codec.decode,
    ) -> None:
        self._store = store
        self._declared: Mapping[str, namespaces.Namespace] = {
            namespace.name: namespace for namespace in declared
        }
        self._quarantine = quarantine
        self._decode = decode
        #: Another way to decode a record is one for each of them.
        self._decodes_pages = decode is codec.decode

    def take(self, batch: Sequence[records.Record]) -> Iterator[Ingested]:
        """Apply records, each if it is newer than what the store holds.

        A second identical call applies nothing. Nearly always all comes at
        once; of large records no more is decoded at a time than the bounds of
        the process allow (:mod:`nova_nodb_scheduler.wire.decoded_sizes`), and the
        caller lets go of each part before it asks for the next.
        """
        if len(batch) < record_chunks.ENOUGH_TOGETHER:
            yield from self._take_each(batch)
            return
        held = _Held()
        # Alike in size: what is left of a page would be too few to be taken together.
        for part in _even_parts(batch):
            is_taken = self._take_alike(part, held)
            is_page = isinstance(part, record_columns.RecordColumns)
            if held.parts and (is_page or not is_taken or not held.is_light):
                yield held.let_go()
            if not is_taken:
                yield from self._take_each(part)
        if held.parts:
            yield held.let_go()

    def _take_alike(self, part: Sequence[records.Record], held: _Held) -> bool:
        """Apply live records of one namespace that are decoded all at once.

        :param held: is given what came of it
        :returns: False where they are to be read one by one; nothing was done then
        """
        page = self._read_alike(part)
        if page is None:
            return False
        changes: Sequence[records.Change]
        if isinstance(part, record_columns.RecordColumns):
            changes = record_columns.ChangeColumns(part, page.states, page.texts)
        else:
            changes = tuple(map(records.Change, part, page.states, page.texts))
        held.add(self._apply(changes, ()), page.weight)
        return True

    def _take_each(self, batch: Iterable[records.Record]) -> Iterator[Ingested]:
        most_bytes = decoded_sizes.present().batch_bytes
        sound: list[records.Change] = []
        unreadable: list[tuple[records.Record, Exception]] = []
        weight = 0
        for record in batch:
            try:
                change = self._read(record)
            except _NOT_TAKEN as error:
                unreadable.append((record, error))
                continue
            if change is None:
                self._quarantine.release(record.key, record.revision)
                continue
            sound.append(change)
            weight += decoded_sizes.weigh(change.text) if change.text is not None else 0
            if weight > most_bytes:
                yield self._apply(tuple(sound), unreadable)
                del change
                sound, unreadable, weight = [], [], 0
        yield self._apply(tuple(sound), unreadable)

    def _apply(
        self,
        sound: Sequence[records.Change],
        unreadable: Sequence[tuple[records.Record, Exception]],
    ) -> Ingested:
        readable: list[records.Change] = []
        applied: list[records.Change] = []
        # Before the others are applied: a sound one of the same key that is
        # newer lets it go again, and one that is older does not.
        for record, reason in unreadable:
            self._set_aside(record, reason)
        outcomes = self._store.apply_page(sound)
        if not len(self._quarantine) and outcomes.count(True) == len(outcomes):
            return Ingested(sound, sound)  # as nearly always in a first load
        for change, outcome in zip(sound, outcomes, strict=True):
            if isinstance(outcome, _NOT_TAKEN):
                # Whatever a state holds that its columns cannot take, one
                # writer's mistake must not stop the feed of all others.
                self._set_aside(change.record, outcome)
            elif isinstance(outcome, Exception):
                raise outcome
            else:
                self._quarantine.release(change.key, change.record.revision)
                readable.append(change)
                if outcome:
                    applied.append(change)
        return Ingested(tuple(readable), tuple(applied))

    def _read_alike(self, part: Sequence[records.Record]) -> codec.DecodedPage | None:
        """Decode live records of one namespace all at once.

        :returns: None where they are to be read one by one
        """
        names, payloads = _names_and_payloads(part)
        namespace = self._declared.get(names.pop()) if len(names) == 1 else None
        if namespace is None or not namespace.followed or not self._decodes_pages:
            return None
        page = codec.decode_page(payloads)
        if page is None or page.schema.major != namespace.schema.major:
            return None
        return page

    def _read(self, record: records.Record) -> records.Change | None:
        """Decode a record; None for one that no store takes.

        Such is any of a namespace that is not followed, and a tombstone of one that nobody
        declared.
        """
        namespace = self._declared.get(record.key.namespace)
        if namespace is not None and not namespace.followed:
            return None
        if record.deleted:
            return None if namespace is None else records.Change(record, None)
        if namespace is None:
            raise errors.UnknownNamespace(record.key.namespace, ", ".join(sorted(self._declared)))
        decoded = self._decode(record.payload)
        codec.check_readable(decoded.schema, namespace)
        return records.Change(record, decoded.state, decoded.text)

    def _set_aside(self, record: records.Record, error: Exception) -> None:
        """Quarantine a record unless the store has a newer one of its key already."""
        if record.key.namespace in self._declared:
            view = self._store.snapshot().namespace(record.key.namespace)
            stored = view.get(record.key.key)
            if stored is not None and stored.revision >= record.revision:
                return
        self._quarantine.admit(record, str(error))
