# SPDX-License-Identifier: Apache-2.0
"""Secondary indexes as persistent maps from values to keys.

Most values of most indexes have one record (a host has one node), which is
kept as the bare key; several are a persistent map of their own, so that one
more key among 100,000 (all services of a cell) copies a path of the map and
not the whole set.
"""

from __future__ import annotations

import immutables

from nova_nodb_scheduler.store import layout

Values = tuple[str, ...]
Postings = str | immutables.Map[str, None]
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
        entries[values] = immutables.Map({postings: None, key: None})
    else:
        entries[values] = postings.set(key, None)


def discard(entries: EntriesMutation, values: layout.IndexValues, key: str) -> None:
    """Take back what :func:`add` entered with the same arguments."""
    if values is None:
        return
    postings = entries[values]
    if isinstance(postings, str):
        del entries[values]
        return
    rest = postings.delete(key)
    entries[values] = next(iter(rest)) if len(rest) == 1 else rest


def lookup(entries: Entries, values: Values) -> tuple[str, ...]:
    """Return the keys below these values, sorted."""
    postings = entries.get(values)
    if postings is None:
        return ()
    return (postings,) if isinstance(postings, str) else tuple(sorted(postings))
