# SPDX-License-Identifier: Apache-2.0
"""Cuts the answer to a query into pages, in order of key."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler.rpc import predicates
from nova_nodb_scheduler.store import namespace_view, stored_record


@attrs.frozen
class Page:
    """Some records in order of key.

    :param next_marker: where the next page begins; None on the last one
    """

    records: tuple[stored_record.StoredRecord, ...]
    next_marker: str | None


def cut(
    view: namespace_view.NamespaceView,
    keys: Sequence[str] | None,
    predicate: Sequence[Any],
    limit: int,
    marker: str | None,
) -> Page:
    """Return the first records behind a marker.

    The marker is a key: a record that comes or goes between two pages shifts
    nothing, and no server needs to remember who asked.

    :param keys: only these, as far as they exist; None for all
    :raises InvalidPredicate: see :func:`predicates.mask`
    """
    found = _select(view, keys, predicate)
    if marker is not None:
        found = (key for key in found if key > marker)
    # One more than wanted tells whether there is a next page.
    chosen = heapq.nsmallest(limit + 1, found)
    more = len(chosen) > limit
    chosen = chosen[:limit]
    stored = (view.get(key) for key in chosen)
    return Page(
        tuple(record for record in stored if record is not None),
        chosen[-1] if more and chosen else None,
    )


def _select(
    view: namespace_view.NamespaceView, keys: Sequence[str] | None, predicate: Sequence[Any]
) -> Iterable[str]:
    found: Iterable[str] = view.keys()
    if predicate:
        rows = view.row_keys()
        matching = predicates.mask(view, predicate).nonzero()[0]
        found = (rows[row] for row in matching)
    elif keys is not None:
        return {key for key in keys if key in view}
    if keys is None:
        return found
    wanted = set(keys)
    return (key for key in found if key in wanted)
