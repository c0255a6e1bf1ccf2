# SPDX-License-Identifier: Apache-2.0
"""Compute nodes in Nova's order, a page at a time, with what belongs to each.

The order is that of Nova's API: cell by cell, and by id within a cell (here cells by
uuid). Nothing is kept from page to page: a page costs some passes over columns of all
rows (0.1 ms each for 10,000 hosts), and only what is in it is sorted and decoded.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import host_relations
from nova_nodb_scheduler.rpc import record_queries
from nova_nodb_scheduler.store import column_layout, store_snapshot

_NAME = "hypervisor_hostname"


@attrs.frozen(order=True)
class HostMarker:
    """Where a compute node stands in the order of all; it may be there no more."""

    cell: str
    number: int
    key: str

    def __str__(self) -> str:
        return f"{self.cell}/{self.number}/{self.key}"

    @classmethod
    def parse(cls, text: str) -> HostMarker | None:
        """Read what :meth:`__str__` wrote; None where it is something else."""
        match = re.fullmatch(r"([^/]*)/(-?[0-9]{1,19})/(.+)", text, re.ASCII | re.DOTALL)
        if match is None or not column_layout.LEAST <= int(match[2]) <= column_layout.GREATEST:
            return None
        return cls(match[1], int(match[2]), match[3])


@attrs.frozen
class HostQuery:
    """Which compute nodes are wanted; all of it must hold.

    :param keys: uuids; None for any
    :param ids: of 64 bits, those of the cells' tables; None for any
    :param conditions: see :mod:`.record_queries`
    :param service: uuid of their host's compute service
    :param search: part of the hypervisor's host name; see :func:`like`
    """

    keys: Collection[str] | None = None
    ids: Collection[int] | None = None
    conditions: Sequence[Any] = ()
    service: str | None = None
    search: str | None = None


@attrs.frozen
class FoundHost:
    """A compute node and what belongs to it.

    :param related: records by namespace, those of :attr:`counts` excepted
    :param counts: numbers of records by namespace
    """

    place: HostMarker
    record: record_queries.DecodedRecord
    host: str
    node: str
    related: Mapping[str, Sequence[record_queries.DecodedRecord]]
    counts: Mapping[str, int]

    def text_bytes(self) -> int:
        """Return how much JSON it is."""
        records = itertools.chain((self.record,), *self.related.values())
        return sum(each.text_bytes() for each in records)


@attrs.frozen
class FoundHosts:
    """Some compute nodes in order.

    :param next_marker: behind which the next page begins; None on the last one
    """

    hosts: tuple[FoundHost, ...]
    next_marker: HostMarker | None


def like(pattern: str) -> Callable[[str], object]:
    """Return what tells whether a text contains a pattern, as SQL's ``LIKE '%pattern%'``.

    ``%`` stands for anything, ``_`` for one character, both for themselves behind a
    backslash. Case is ignored, as MariaDB and SQLite do.

    Each part is taken where it is met first and never looked for again: time grows
    with the text's length, however many wildcards there are.
    """
    parts, part = [], ""
    characters = iter(pattern)
    for character in characters:
        if character == "%":
            parts.append(part)
            part = ""
        elif character == "_":
            part += "."
        else:
            escaped = next(characters, "\\") if character == "\\" else character
            part += re.escape(escaped)
    parts.append(part)
    expression = "".join(f"(?>.*?{each})" for each in parts if each)
    return re.compile(expression, re.IGNORECASE | re.DOTALL).match


def page_of(
    snapshot: store_snapshot.Snapshot,
    tables: host_relations.HostTables,
    query: HostQuery,
    related: Sequence[str],
    limit: int,
    marker: str | None,
    most_bytes: int = sys.maxsize,
) -> FoundHosts:
    """Return the first compute nodes behind a marker.

    :param related: namespaces of ``tables.relations``
    :param marker: a :class:`HostMarker` as text, which stands for itself, or the uuid
        of a compute node, which must be there
    :param most_bytes: JSON of all states; a page of more ends earlier, behind one host at least
    :raises InvalidPredicate: see :func:`.record_queries.mask`
    :raises MarkerNotFound: there is no such compute node
    """
    view = snapshot.namespace(tables.nodes)
    found = _matching(snapshot, tables, view, query)
    after = None if marker is None else _place_of(view, marker)
    # One more than wanted tells whether there is a next page.
    places = _first(view, found, after, limit + 1)
    reader = _RelatedRecords(snapshot, tables, related)
    hosts = record_queries.fitting(
        (_found(view, place, reader) for place in places[:limit]), FoundHost.text_bytes, most_bytes
    )
    return FoundHosts(hosts, hosts[-1].place if len(places) > len(hosts) else None)


def _matching(
    snapshot: store_snapshot.Snapshot,
    tables: host_relations.HostTables,
    view: store_snapshot.NamespaceView,
    query: HostQuery,
) -> record_queries.Mask:
    conditions = list(query.conditions)
    if query.service is not None:
        of_service = _of_service(snapshot.namespace(tables.services), tables, query.service)
        if of_service is None:
            return np.zeros(len(view), np.bool_)
        conditions += of_service
    found = record_queries.mask(view, conditions)
    if query.keys is not None:
        wanted = frozenset(query.keys)
        found &= np.fromiter((key in wanted for key in view.row_keys()), np.bool_, len(view))
    if query.ids is not None:
        found &= np.isin(view.column("id"), np.array(list(query.ids), np.int64))
    if query.search is not None:
        codes = view.column(_NAME)
        vocabulary = view.vocabulary(_NAME)
        matches = like(query.search)
        fits = np.zeros(len(vocabulary), np.bool_)
        for code in np.flatnonzero(np.bincount(codes[found])).tolist():
            fits[code] = matches(vocabulary.text(code)) is not None
        found &= fits[codes]
    return found


def _of_service(
    services: store_snapshot.NamespaceView, tables: host_relations.HostTables, service: str
) -> list[list[str]] | None:
    """Return conditions on a service's compute nodes; None where it has none."""
    relation = tables.relation(tables.services)
    found = services.texts(service, "cell", "host")
    if found is None or relation is None or not _fulfils(services, service, relation, None):
        return None
    return [["cell", "==", found[0]], ["host", "==", found[1]]]


def _place_of(view: store_snapshot.NamespaceView, marker: str) -> HostMarker:
    place = HostMarker.parse(marker)
    if place is not None:
        return place
    if marker not in view:
        raise errors.MarkerNotFound(marker)
    return _place(view, view.row_keys().index(marker))


def _place(view: store_snapshot.NamespaceView, row: int) -> HostMarker:
    cell = view.vocabulary("cell").text(view.column("cell").item(row))
    return HostMarker(cell, view.column("id").item(row), view.row_keys()[row])


def _first(
    view: store_snapshot.NamespaceView,
    found: record_queries.Mask,
    after: HostMarker | None,
    most: int,
) -> list[HostMarker]:
    """Return the first places of some rows, in order."""
    places: list[HostMarker] = []
    found_rows = np.flatnonzero(found)
    codes, vocabulary = view.column("cell")[found_rows], view.vocabulary("cell")
    present = np.flatnonzero(np.bincount(codes)).tolist()
    for cell, code in sorted((vocabulary.text(code), code) for code in present):
        if after is not None and cell < after.cell:
            continue
        rows = found_rows[codes == code]
        if after is not None and cell == after.cell:
            rows = _behind(view, rows, after)
        rows = _lowest(rows, view.column("id")[rows], most - len(places))
        places += sorted(_place(view, row) for row in rows.tolist())
        if len(places) >= most:
            return places[:most]
    return places


def _behind(
    view: store_snapshot.NamespaceView, rows: npt.NDArray[np.intp], after: HostMarker
) -> npt.NDArray[np.intp]:
    """Return which rows of a place's cell stand behind it."""
    numbers = view.column("id")[rows]
    # In Nova's tables an id is one node's; a damaged record may have any.
    same = [row for row in rows[numbers == after.number].tolist() if _place(view, row) > after]
    return np.concatenate([rows[numbers > after.number], np.array(same, np.intp)])


def _lowest(
    rows: npt.NDArray[np.intp], numbers: npt.NDArray[np.int64], most: int
) -> npt.NDArray[np.intp]:
    """Return the rows with the lowest numbers, unsorted; more where the last are equal."""
    if len(rows) <= most:
        return rows
    greatest = np.partition(numbers, most - 1)[most - 1]
    lowest: npt.NDArray[np.intp] = rows[numbers <= greatest]
    return lowest


def _found(
    view: store_snapshot.NamespaceView, place: HostMarker, reader: _RelatedRecords
) -> FoundHost:
    record = view.get(place.key)
    texts = view.texts(place.key, "host", _NAME)
    # Of a row of this very view.
    assert record is not None
    assert texts is not None
    host, node = texts
    related, counts = reader.read(place, host, node)
    return FoundHost(place, record_queries.DecodedRecord.of(record), host, node, related, counts)


class _RelatedRecords:
    """Reads what belongs to compute nodes, from one snapshot."""

    def __init__(
        self,
        snapshot: store_snapshot.Snapshot,
        tables: host_relations.HostTables,
        wanted: Sequence[str],
    ) -> None:
        self._snapshot = snapshot
        self._tables = tables
        self._relations = [each for each in tables.relations if each.namespace in wanted]

    def read(
        self, place: HostMarker, host: str, node: str
    ) -> tuple[dict[str, Sequence[record_queries.DecodedRecord]], dict[str, int]]:
        """Return a node's records by namespace, and the numbers of those that are counted."""
        related: dict[str, Sequence[record_queries.DecodedRecord]] = {}
        counts: dict[str, int] = {}
        for relation in self._relations:
            keys = self._keys(relation, place, host, node)
            if relation.counted:
                counts[relation.namespace] = len(keys)
                continue
            view = self._snapshot.namespace(relation.namespace)
            records = (view.get(key) for key in keys)
            related[relation.namespace] = [
                record_queries.DecodedRecord.of(each) for each in records if each is not None
            ]
        return related, counts

    def _keys(
        self, relation: host_relations.HostRelation, place: HostMarker, host: str, node: str
    ) -> Sequence[str]:
        if relation.keys_of:
            other = self._tables.relation(relation.keys_of)
            assert other is not None  # of a declaration that tests look at
            relation = other
        elif not relation.index:
            return (place.key,)
        view = self._snapshot.namespace(relation.namespace)
        return [
            key
            for key in view.lookup(relation.index, place.cell, host)
            if _fulfils(view, key, relation, node)
        ]


def _fulfils(
    view: store_snapshot.NamespaceView,
    key: str,
    relation: host_relations.HostRelation,
    node: str | None,
) -> bool:
    for column, text in relation.conditions:
        if view.texts(key, column) != (text,):
            return False
    return not relation.node_column or view.texts(key, relation.node_column) == (node,)
