# SPDX-License-Identifier: Apache-2.0
"""Bring records into the store, and those that cannot be read into quarantine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer import quarantine
from nova_nodb_scheduler.wire import bounds, codec

#: What an unreadable record makes its readers raise.
_NOT_TAKEN = (errors.NodbError, TypeError, ValueError)


@attrs.frozen
class Taken:
    """What came of a batch, or of a part of it.

    :param readable: every record that could be read, in their order
    :param applied: those of them that were news to the store
    """

    readable: tuple[records.Change, ...]
    applied: tuple[records.Change, ...]


class Intake:
    """The one way of records into a store; used by one thread at a time.

    :param declared: the namespaces the store was made with
    :param decode: payload to schema version and state
    """

    def __init__(
        self,
        store: host_state_store.HostStateStore,
        declared: Sequence[namespaces.Namespace],
        quarantine: quarantine.Quarantine,
        decode: Callable[[bytes], codec.Decoded] = codec.decode,
    ) -> None:
        self._store = store
        self._declared: Mapping[str, namespaces.Namespace] = {
            namespace.name: namespace for namespace in declared
        }
        self._quarantine = quarantine
        self._decode = decode

    def take(self, batch: Iterable[records.Record]) -> Iterator[Taken]:
        """Apply records, each if it is newer than what the store holds.

        A second identical call applies nothing. Nearly always all comes at
        once; of large records no more is decoded at a time than the bounds of
        the process allow (:mod:`nova_nodb_scheduler.wire.bounds`), and the
        caller lets go of each part before it asks for the next.
        """
        most_bytes = bounds.present().batch_bytes
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
            weight += bounds.weigh(change.text) if change.text is not None else 0
            if weight > most_bytes:
                yield self._apply(sound, unreadable)
                del change
                sound, unreadable, weight = [], [], 0
        yield self._apply(sound, unreadable)

    def _apply(
        self,
        sound: Sequence[records.Change],
        unreadable: Sequence[tuple[records.Record, Exception]],
    ) -> Taken:
        readable: list[records.Change] = []
        applied: list[records.Change] = []
        # Before the others are applied: a sound one of the same key that is
        # newer lets it go again, and one that is older does not.
        for record, reason in unreadable:
            self._set_aside(record, reason)
        for change, outcome in zip(sound, self._store.apply_page(sound), strict=True):
            if isinstance(outcome, _NOT_TAKEN):
                # Whatever a state holds that its columns cannot take, one
                # writer's mistake must not stop the feed of all others.
                self._set_aside(change.record, outcome)
            elif isinstance(outcome, Exception):
                raise outcome
            else:
                self._quarantine.release(change.record.key, change.record.revision)
                readable.append(change)
                if outcome:
                    applied.append(change)
        return Taken(tuple(readable), tuple(applied))

    def _read(self, record: records.Record) -> records.Change | None:
        """Decode a record; None for a tombstone of a namespace nobody declared."""
        namespace = self._declared.get(record.key.namespace)
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
