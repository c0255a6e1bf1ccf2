# SPDX-License-Identifier: Apache-2.0
"""Which compute node stands on which row, and what it is called."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator

import attrs

from nova_nodb_scheduler.store import vocabulary as shared_numbers


@attrs.frozen(weakref_slot=False)
class HostPlace:
    """The names of one compute node: all that a frame keeps of it beside columns."""

    uuid: str
    cell: str
    host: str
    node: str


class HostPlaces:
    """Rows by uuid and by the host's name; a row keeps its number while its node lives."""

    def __init__(self) -> None:
        self._places: list[HostPlace | None] = []
        self._row_of: dict[str, int] = {}
        #: By the host's name in small letters: a row, or several.
        self._rows_of_name: dict[str, int | tuple[int, ...]] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._row_of)

    # -- reading ----------------------------------------------------------------

    def row_of(self, uuid: str) -> int | None:
        """Return the row of a compute node, or None."""
        return self._row_of.get(uuid)

    def rows(self) -> Iterator[tuple[str, int]]:
        """Iterate over the uuids and rows of all nodes."""
        return iter(self._row_of.items())

    def place(self, row: int) -> HostPlace:
        """Return the names of a row's host.

        :raises KeyError: no host has that row
        """
        found = self._places[row]
        if found is None:
            raise KeyError(row)
        return found

    def of(self, rows: Iterable[int]) -> list[HostPlace | None]:
        """Return the names of the hosts of some rows; None where there is none."""
        return [self._places[row] for row in rows]

    def rows_of_name(self, host: str) -> tuple[int, ...]:
        """Return the rows of hosts of a name in all cells, whatever its case."""
        rows = self._rows_of_name.get(host.lower(), ())
        return rows if isinstance(rows, tuple) else (rows,)

    def rows_of_host(self, cell: str, host: str) -> Collection[int]:
        """Return the rows of the nodes of one host; several with ironic."""
        return [
            row
            for row in self.rows_of_name(host)
            if (self.place(row).host, self.place(row).cell) == (host, cell)
        ]

    def rows_of_nodes(self, nodes: Container[str]) -> set[int]:
        """Return the rows of nodes with one of some names; looks at all of them."""
        return {row for row in self._row_of.values() if self.place(row).node in nodes}

    # -- writing ----------------------------------------------------------------

    @property
    def free(self) -> int:
        """How many rows have no host."""
        return len(self._free)

    def take(self) -> int:
        """Return a free row, which is to be entered next.

        :raises IndexError: there is none
        """
        return self._free.pop()

    def enter(self, row: int, place: HostPlace) -> bool:
        """Set a row's names; say whether they changed."""
        former = self._places[row]
        if former == place:
            return False
        if former is None:
            self._row_of[place.uuid] = row
        else:
            self._forget_name(row, former)
        self._places[row] = place
        name = _folded(place.host)
        rows = self._rows_of_name.get(name)
        if rows is None:
            self._rows_of_name[name] = row
        else:
            self._rows_of_name[name] = (*(rows if isinstance(rows, tuple) else (rows,)), row)
        return True

    def forget(self, uuid: str) -> int | None:
        """Free a node's row; return it, or None where there is no such node."""
        row = self._row_of.pop(uuid, None)
        if row is not None:
            self._forget_name(row, self.place(row))
            self._places[row] = None
            self._free.append(row)
        return row

    def grow(self, rows: int) -> None:
        """Have so many rows; the lowest of the new ones are taken first."""
        before = len(self._places)
        self._places.extend([None] * (rows - before))
        self._free.extend(map(shared_numbers.shared_number, range(rows - 1, before - 1, -1)))

    def _forget_name(self, row: int, place: HostPlace) -> None:
        name = _folded(place.host)
        rows = tuple(each for each in self.rows_of_name(name) if each != row)
        if rows:
            self._rows_of_name[name] = rows
        else:
            del self._rows_of_name[name]


def _folded(name: str) -> str:
    """Return a name in small letters, the very text where it has no other."""
    folded = name.lower()
    return name if folded == name else folded
