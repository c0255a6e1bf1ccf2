# SPDX-License-Identifier: Apache-2.0
"""The rows of one cell's compute nodes in memory, found as SQL finds them.

Holds live and deleted rows. Not for several threads at once: whoever keeps one holds
a lock around what it does with it.
"""

from __future__ import annotations

import bisect
import collections
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from nova_nodb_scheduler.nova_adapter.compute_nodes import node_rows, text_comparison

#: Columns by which rows are found without looking at all of them.
_INDEXED = ("uuid", "host", "hypervisor_hostname")

#: (id, record key): rows are given in this order.
_Place = tuple[int, str]

_NOTHING = object()


class RowIndex:
    """Rows by record key, ordered by id.

    :param comparison: of the cell's database
    """

    def __init__(self, comparison: text_comparison.TextComparison) -> None:
        self.comparison = comparison
        self._rows: dict[str, node_rows.Row] = {}
        self._places: list[_Place] = []
        self._by_value: dict[str, dict[Any, set[_Place]]] = {
            name: collections.defaultdict(set) for name in _INDEXED
        }

        #: By what LIKE compares of the node's name: a search looks at each name once.
        self._by_node: dict[str, set[_Place]] = collections.defaultdict(set)

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, key: str, row: node_rows.Row) -> None:
        """Take in a row in place of the one of the same record."""
        self.drop(key)
        self._rows[key] = row
        place = (row["id"], key)
        bisect.insort(self._places, place)
        for name, by_value in self._by_value.items():
            by_value[self._form(row[name])].add(place)
        if row["hypervisor_hostname"] is not None:
            self._by_node[self.comparison.like_form(row["hypervisor_hostname"])].add(place)

    def drop(self, key: str) -> None:
        """Forget a record's row; no-op where there is none."""
        row = self._rows.pop(key, None)
        if row is None:
            return
        place = (row["id"], key)
        del self._places[bisect.bisect_left(self._places, place)]
        for name, by_value in self._by_value.items():
            form = self._form(row[name])
            by_value[form].discard(place)
            if not by_value[form]:
                del by_value[form]
        if row["hypervisor_hostname"] is not None:
            form = self.comparison.like_form(row["hypervisor_hostname"])
            self._by_node[form].discard(place)
            if not self._by_node[form]:
                del self._by_node[form]

    def get(self, key: str) -> node_rows.Row | None:
        """Return a record's row."""
        return self._rows.get(key)

    def keys(self) -> list[str]:
        """Return the records' keys, in the order of their rows' ids."""
        return [key for _number, key in self._places]

    def select(
        self,
        deleted: bool | None,
        *conditions: Callable[[node_rows.Row], bool],
        equal: Mapping[str, Any] | None = None,
        above: int | None = None,
    ) -> Iterator[tuple[str, node_rows.Row]]:
        """Give records' keys and rows in the order of ids.

        :param deleted: False for live rows alone, True for deleted ones, None for both
        :param equal: values that columns must have; None asks for NULL, as SQLAlchemy
            makes ``IS NULL`` of it
        :param above: ids up to it are left out
        """
        wanted = {name: self._wanted(name, value) for name, value in (equal or {}).items()}
        if _NOTHING in wanted.values():
            return
        for _number, key in self._candidates(wanted, above):
            row = self._rows[key]
            if deleted is not None and node_rows.is_live(row) == deleted:
                continue
            if all(self._form(row[name]) == value for name, value in wanted.items()) and all(
                holds(row) for holds in conditions
            ):
                yield key, row

    def search(
        self, deleted: bool | None, matches: Callable[[str], bool]
    ) -> Iterator[tuple[str, node_rows.Row]]:
        """Give records' keys and rows of nodes whose names match, in the order of ids.

        :param deleted: as :meth:`select`
        :param matches: told what LIKE compares of a name
        """
        found = (places for form, places in self._by_node.items() if matches(form))
        for _number, key in sorted(place for places in found for place in places):
            row = self._rows[key]
            if deleted is None or node_rows.is_live(row) != deleted:
                yield key, row

    def _candidates(self, wanted: Mapping[str, Any], above: int | None) -> Iterable[_Place]:
        if "id" in wanted:
            number = wanted["id"]
            if number is None:
                return []
            first = bisect.bisect_left(self._places, (number, ""))
            return self._places[first : bisect.bisect_left(self._places, (number + 1, ""))]
        places = list(self._places)
        found = [self._by_value[name].get(wanted[name], ()) for name in _INDEXED if name in wanted]
        if found:
            fewest: Collection[_Place] = min(found, key=len)
            places = sorted(fewest)
        return places if above is None else places[bisect.bisect_left(places, (above + 1, "")) :]

    def _form(self, value: Any) -> Any:
        return self.comparison.equal_form(value) if isinstance(value, str) else value

    def _wanted(self, name: str, value: Any) -> Any:
        """Return what a column is compared with; :data:`_NOTHING` where no row can match."""
        if value is None:
            return None
        if name in ("id", "service_id"):
            try:
                return int(value)
            except (TypeError, ValueError):
                return _NOTHING
        return self._form(str(value))
