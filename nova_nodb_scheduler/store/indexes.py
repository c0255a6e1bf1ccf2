# SPDX-License-Identifier: Apache-2.0
"""Secondary indexes as persistent maps from values to the records that have them.

Most values of most indexes have one record (a host has one node), which is
kept bare; some have a few, kept as a tuple; many are a persistent map of their
own, so that one more record copies a path of the map and not the whole set.

Where columns hold the texts of an index, values are codes of a column and
records are rows; elsewhere values are texts and records are keys.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, TypeAlias, TypeVar

import immutables

#: More records than these stand in a map.
_FEW = 16

#: Texts at the paths of an index.
Texts = tuple[str, ...]

Value = TypeVar("Value", bound=Hashable)
#: A key or a row.
Record = TypeVar("Record", str, int)
Postings: TypeAlias = Record | tuple[Record, ...] | immutables.Map[Record, None]
Entries: TypeAlias = immutables.Map[Value, Postings[Record]]
EntriesMutation: TypeAlias = immutables.MapMutation[Value, Postings[Record]]


def add(entries: EntriesMutation[Value, Record], value: Value, record: Record) -> None:
    """Enter a record below a value."""
    postings = entries.get(value)
    if postings is None:
        entries[value] = record
    elif isinstance(postings, immutables.Map):
        entries[value] = postings.set(record, None)
    else:
        few: Any = postings if isinstance(postings, tuple) else (postings,)
        more: tuple[Record, ...] = (*few, record)
        entries[value] = more if len(more) <= _FEW else immutables.Map(dict.fromkeys(more))


def discard(entries: EntriesMutation[Value, Record], value: Value, record: Record) -> None:
    """Take back what :func:`add` entered with the same arguments."""
    postings = entries[value]
    if isinstance(postings, tuple):
        rest = tuple(each for each in postings if each != record)
        entries[value] = rest[0] if len(rest) == 1 else rest
    elif isinstance(postings, immutables.Map):
        left = postings.delete(record)
        entries[value] = tuple(left) if len(left) <= _FEW // 2 else left
    else:
        del entries[value]


def lookup(entries: Entries[Value, Record], value: Value) -> tuple[Record, ...]:
    """Return the records below a value, in no order."""
    postings = entries.get(value)
    if postings is None:
        return ()
    return tuple(postings) if isinstance(postings, (tuple, immutables.Map)) else (postings,)
