# SPDX-License-Identifier: Apache-2.0
"""The writer's side of one namespace: which changes are taken over, and how.

Not thread-safe; :class:`~nova_nodb_scheduler.store.host_state_store.HostStateStore`
holds a lock around every call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.store import (
    contents,
    conversions,
    index_reader,
    keeping,
    layout,
    namespace_view,
    rows,
)

Decoder = Callable[[keeping.Packing, keeping.Kept], Mapping[str, Any]]

#: What became of a change: whether it was newer, or why it cannot be taken.
Outcome = bool | Exception
#: Greatest revision and version.
_GREATEST = 2**62


class Table:
    """All records of one namespace.

    :param texts: shared with other tables of the same store and epoch
    """

    def __init__(
        self,
        namespace: namespaces.Namespace,
        decode: Decoder,
        make_packing: Callable[[], keeping.Packing],
        texts: contents.Vocabularies,
    ) -> None:
        self._make_packing = make_packing
        self._layout = layout.Layout(namespace)
        self._namespace = namespace
        self._decode = decode
        self._epoch = 0
        #: Grows with every change a snapshot can see, across epochs too.
        self._version = 0
        self._copied_before = 0
        self._view: namespace_view.NamespaceView | None = None
        self._steady_mark = object()
        self._kin: tuple[rows.SameKey, ...] = ()
        self._begin(texts)

    def _begin(self, texts: contents.Vocabularies) -> None:
        self._contents = contents.Contents(self._layout, self._make_packing(), texts)
        #: key -> (revision, version) of records that are gone
        self._tombstones: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._contents.rows)

    def key(self, key: str) -> str | None:
        """Return the text that is kept of a key; None where there is no such record."""
        return self._contents.rows.key(key)

    def share_keys(self, kin: Iterable[Table]) -> None:
        """Keep one text of a key that other tables hold as well."""
        self._kin = tuple(each.key for each in kin if each is not self)

    @property
    def bytes_copied(self) -> int:
        """Bytes copied since the start so that snapshots stay as they were."""
        return self._copied_before + self._contents.rows.bytes_copied

    @property
    def tombstone_count(self) -> int:
        return len(self._tombstones)

    def apply(self, changes: Sequence[records.Change]) -> list[Outcome]:
        """Take over those changes that are newer than what is known of their records.

        :param changes: of different records
        :returns: for each what became of it; an InvalidRecord, or what else its
            state made the namespace's digest raise, changed nothing
        """
        outcomes: list[Outcome] = [False] * len(changes)
        known, tombstones = self._contents.rows, self._tombstones
        row_of = known.by_key()
        taken: list[int] = []
        for at, change in enumerate(changes):
            record = change.record
            try:
                revision = _checked(record, "revision", record.revision)
                version = _checked(record, "version", record.version)
            except errors.InvalidRecord as error:
                outcomes[at] = error
                continue
            key = record.key.key
            row = row_of.get(key)
            if row is not None:
                if revision <= known.revision(row):
                    continue
            elif tombstones and revision <= tombstones.get(key, (0, 0))[0]:
                continue
            if record.deleted:
                if row is not None:
                    self._remove(key, row)
                tombstones[key] = (revision, version)
                outcomes[at] = True
            elif isinstance(change.state, Mapping):
                taken.append(at)
            else:
                outcomes[at] = errors.InvalidRecord(
                    str(record.key), "(state)", "it is not an object"
                )
        if taken:
            self._take(changes, taken, outcomes)
        return outcomes

    def _take(
        self, changes: Sequence[records.Change], taken: Sequence[int], outcomes: list[Outcome]
    ) -> None:
        """Take live records over all at once, or each by itself where one is refused."""
        here = [changes[at] for at in taken]
        keys = [change.record.key.key for change in here]
        states: list[Mapping[str, Any]] = [change.state or {} for change in here]
        make_digest = self._namespace.digest
        try:
            page = self._layout.page(keys, states)
            digests = None if make_digest is None else self._digests(make_digest, keys, states)
        except (errors.NodbError, TypeError, ValueError) as error:
            if len(taken) == 1:
                outcomes[taken[0]] = error
                return
            for at in taken:
                self._take(changes, (at,), outcomes)
            return
        self._contents.put(here, keys, page, digests, self._kin)
        self._changed()
        if self._tombstones:
            for key in keys:
                self._tombstones.pop(key, None)
        for at in taken:
            outcomes[at] = True

    def retain(self, keys: Collection[str], version: int) -> list[str]:
        """Drop rows whose key is not among these and whose version is not above.

        Returns the keys dropped.

        Nothing is remembered of them: if one was dropped because a snapshot
        read missed it, a sweep can bring it back as it was.
        """
        keys = keys if isinstance(keys, (set, frozenset, Mapping)) else frozenset(keys)
        doomed = list(self._contents.without(keys, version))
        for key, row in doomed:
            self._remove(key, row)
        return [key for key, _row in doomed]

    def pack(self, most_records: int) -> int:
        """Pack chunks until so many records were looked at; return how many were."""
        return self._contents.payloads.pack(most_records, self._contents.rows.chunk)

    def forget_tombstones(self, below_version: int) -> int:
        """Forget removed records whose last change is older than that."""
        kept = {key: seen for key, seen in self._tombstones.items() if seen[1] >= below_version}
        forgotten = len(self._tombstones) - len(kept)
        self._tombstones = kept
        return forgotten

    def clear(self, texts: contents.Vocabularies) -> None:
        """Begin a new epoch with nothing; snapshots keep what they hold."""
        self._epoch += 1
        self._changed()
        self._copied_before = self.bytes_copied
        self._begin(texts)

    def view(self) -> namespace_view.NamespaceView:
        """Return what there is now, for good; the same object until a change."""
        if self._view is None:
            held = self._contents
            if held.stirred:
                held.stirred, self._steady_mark = False, object()
            row_of, row_chunks = held.rows.freeze()
            vocabularies = {position: words.view() for position, words in held.vocabularies.items()}
            self._view = namespace_view.NamespaceView(
                self._layout,
                version=self._version,
                epoch=self._epoch,
                steady_mark=self._steady_mark,
                rows=row_of,
                row_chunks=row_chunks,
                indexes=index_reader.IndexReader(
                    self._layout,
                    row_of,
                    row_chunks,
                    held.indexes.led(),
                    held.indexes.texts(),
                    vocabularies,
                ),
                vocabularies=vocabularies,
                decode=self._decode,
                packing=held.payloads.packing,
            )
        return self._view

    def _digests(
        self,
        make_digest: namespaces.Digest,
        keys: Sequence[str],
        states: Sequence[Mapping[str, Any]],
    ) -> list[Any]:
        made = list(map(make_digest, keys, states))
        form = self._namespace.digest_form
        return made if form is None else list(map(form.keep, keys, states, made))

    def _remove(self, key: str, row: int) -> None:
        self._contents.remove(key, row)
        self._changed()

    def _changed(self) -> None:
        self._version += 1
        self._view = None


def _checked(record: records.Record, field: str, value: object) -> int:
    if type(value) is int and 0 < value <= _GREATEST:
        return value  # nearly always
    try:
        number = conversions.to_int64(value)
    except ValueError as error:
        raise errors.InvalidRecord(str(record.key), f"({field})", str(error)) from error
    if number < (field == "revision"):
        raise errors.InvalidRecord(str(record.key), f"({field})", f"{number} is too small")
    return number
