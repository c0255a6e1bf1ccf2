# SPDX-License-Identifier: Apache-2.0
"""Secondary indexes as persistent maps from values to keys.

Most values of most indexes have one record (a host has one node), which is
kept as the bare key; some have a few, kept as a tuple; many are a persistent
map of their own, so that one more key copies a path of the map and not the
whole set.
"""

from __future__ import annotations

import immutables

from nova_nodb_scheduler.store import layout

#: More keys than these stand in a map.
_FEW = 16

Values = tuple[str, ...]
Postings = str | tuple[str, ...] | immutables.Map[str, None]
Entries = immutables.Map[Values, Postings]
EntriesMutation = immutables.MapMutation[Values, Postings]


def add(entries: EntriesMutation, values: layout.IndexValues, key: str) -> None:
    """Enter a key below its values; None enters it nowhere."""
    if values is None:
        return
    postings = entries.get(values)
    if postings is None:
        entries[values] = key
    elif isinstance(postings, str):
        entries[values] = (postings, key)
    elif isinstance(postings, tuple):
        more = (*postings, key)
        entries[values] = more if len(more) <= _FEW else immutables.Map(dict.fromkeys(more))
    else:
        entries[values] = postings.set(key, None)


def discard(entries: EntriesMutation, values: layout.IndexValues, key: str) -> None:
    """Take back what :func:`add` entered with the same arguments."""
    if values is None:
        return
    postings = entries[values]
    if isinstance(postings, str):
        del entries[values]
    elif isinstance(postings, tuple):
        rest = tuple(each for each in postings if each != key)
        entries[values] = rest[0] if len(rest) == 1 else rest
    else:
        left = postings.delete(key)
        entries[values] = tuple(left) if len(left) <= _FEW // 2 else left


def lookup(entries: Entries, values: Values) -> tuple[str, ...]:
    """Return the keys below these values, sorted."""
    postings = entries.get(values)
    if postings is None:
        return ()
    return (postings,) if isinstance(postings, str) else tuple(sorted(postings))
