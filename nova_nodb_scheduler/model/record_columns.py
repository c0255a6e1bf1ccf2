# SPDX-License-Identifier: Apache-2.0
"""Many live records of one namespace as columns, for whoever reads millions of them.

An object for each record, and one for what was decoded of it, are dropped at once, and were a
good part of what a first start cost. Both pages read as those objects, which are made whenever
somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import attrs

from nova_nodb_scheduler.model import records


@attrs.frozen(eq=False)
class RecordColumns(Sequence[records.Record]):
    """Live records, none twice; what is said of each stands in one place of all sequences."""

    namespace: str
    keys: Sequence[str]
    revisions: Sequence[int]
    versions: Sequence[int]
    payloads: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, at: int) -> records.Record: ...

    @overload
    def __getitem__(self, at: slice) -> RecordColumns: ...

    def __getitem__(self, at: int | slice) -> records.Record | RecordColumns:
        if isinstance(at, slice):
            return RecordColumns(
                self.namespace,
                self.keys[at],
                self.revisions[at],
                self.versions[at],
                self.payloads[at],
            )
        key = records.RecordKey(self.namespace, self.keys[at])
        return records.Record(key, self.revisions[at], self.versions[at], self.payloads[at])

    def __iter__(self) -> Iterator[records.Record]:
        name, told = self.namespace, (self.keys, self.revisions, self.versions, self.payloads)
        for key, revision, version, payload in zip(*told, strict=True):
            yield records.Record(records.RecordKey(name, key), revision, version, payload)


@attrs.frozen(eq=False)
class ChangeColumns(Sequence[records.Change]):
    """Records on their way into a store, already decoded; see :class:`.records.Change`."""

    page: RecordColumns
    states: Sequence[Mapping[str, Any]]
    texts: Sequence[bytes | None]

    def __len__(self) -> int:
        return len(self.page)

    @overload
    def __getitem__(self, at: int) -> records.Change: ...

    @overload
    def __getitem__(self, at: slice) -> ChangeColumns: ...

    def __getitem__(self, at: int | slice) -> records.Change | ChangeColumns:
        if isinstance(at, slice):
            return ChangeColumns(self.page[at], self.states[at], self.texts[at])
        return records.Change(self.page[at], self.states[at], self.texts[at])

    def __iter__(self) -> Iterator[records.Change]:
        return map(records.Change, self.page, self.states, self.texts)
