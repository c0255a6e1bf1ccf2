# SPDX-License-Identifier: Apache-2.0
"""What is left in hosts' NUMA cells and PCI pools, as columns, for the requests that ask.

Rows are read when such a request comes, those alone whose node reported
something since: reports cost nothing, and other requests nothing either. A row
that was not read yet, or that only Nova's code can read, is refused nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling import columns, topology_facts

#: Row -> the texts of its node's NUMA topology and PCI pools.
Read: TypeAlias = Callable[[int], tuple[str | None, str | None]]

IntArray: TypeAlias = npt.NDArray[np.int32]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Rows: TypeAlias = slice | npt.NDArray[np.intp]

#: Rows read for one request, about 0.1 ms each: a worker that starts has all to
#: read, and others wait meanwhile.
_ROWS_AT_ONCE = 1024

# Hosts have 1 to 16 cells, 2 sizes of pages, and some kinds of devices. What
# goes beyond these is left to Nova's code: a column is as wide as its widest host.
_MOST_CELLS = 16
_MOST_PAGE_SIZES = 8
_MOST_POOLS = 32
_MOST_KINDS = 4096

#: In place of what is free where a cell has no pages of a size.
NO_PAGES = -1

#: Fields of a cell that are columns of their own.
_NUMBERS = topology_facts.Cell._fields[:-1]


class CellColumns:
    """NUMA cells, one column of each row for each cell.

    :ivar known: shape (rows,), whether the rest of a row counts
    :ivar count: shape (rows,), how many cells there are
    :ivar has_threads: shape (rows,)
    :ivar numbers: by field of :class:`.topology_facts.Cell`, shape (rows, cells)
    :ivar free_mb: by page size in KiB, shape (rows, cells); NO_PAGES where
        there are none
    :ivar least_kb: shape (rows, cells), the smallest page size; 0 where there are no pages
    :ivar least_free_mb: of pages of that size; and ``least_total_mb``
    """

    def __init__(self, rows: int) -> None:
        self.known = np.zeros(rows, np.bool_)
        self.count = np.zeros(rows, np.int32)
        self.has_threads = np.zeros(rows, np.bool_)
        self.numbers = {name: _wide(rows, 1) for name in _NUMBERS}
        self.free_mb: dict[int, IntArray] = {}
        self.least_kb, self.least_free_mb, self.least_total_mb = (_wide(rows, 1) for _ in range(3))

    def put(self, row: int, found: topology_facts.Topology | None) -> None:
        """Set a row; None leaves it to Nova's code."""
        self.known[row] = False
        if found is None or len(found.cells) > _MOST_CELLS:
            return
        sizes = {size for cell in found.cells for size, _free, _total in cell.pages}
        for size in sizes - self.free_mb.keys():
            if len(self.free_mb) == _MOST_PAGE_SIZES:
                return
            self.free_mb[size] = np.full_like(self.least_kb, NO_PAGES)
        if len(found.cells) > self.least_kb.shape[1]:
            self._widen(len(found.cells))
        self.count[row] = len(found.cells)
        self.has_threads[row] = found.has_threads
        for free in self.free_mb.values():
            free[row] = NO_PAGES
        for place, cell in enumerate(found.cells):
            for name in _NUMBERS:
                self.numbers[name][row, place] = getattr(cell, name)
            least = cell.pages[0] if cell.pages else (0, 0, 0)
            self.least_kb[row, place] = least[0]
            self.least_free_mb[row, place], self.least_total_mb[row, place] = least[1:]
            for size, free_mb, _total in cell.pages:
                self.free_mb[size][row, place] = max(free_mb, 0)
        self.known[row] = True

    def _widen(self, cells: int) -> None:
        for name, own in self.numbers.items():
            self.numbers[name] = _widened(own, cells, 0)
        for size, own in self.free_mb.items():
            self.free_mb[size] = _widened(own, cells, NO_PAGES)
        self.least_kb = _widened(self.least_kb, cells, 0)
        self.least_free_mb = _widened(self.least_free_mb, cells, 0)
        self.least_total_mb = _widened(self.least_total_mb, cells, 0)

    def grow(self, rows: int) -> None:
        self.known = columns.grown(self.known, rows)
        self.count = columns.grown(self.count, rows)
        self.has_threads = columns.grown(self.has_threads, rows)
        self.numbers = {name: _longer(own, rows, 0) for name, own in self.numbers.items()}
        self.free_mb = {size: _longer(own, rows, NO_PAGES) for size, own in self.free_mb.items()}
        self.least_kb = _longer(self.least_kb, rows, 0)
        self.least_free_mb = _longer(self.least_free_mb, rows, 0)
        self.least_total_mb = _longer(self.least_total_mb, rows, 0)


class PoolColumns:
    """PCI pools: of each row the kinds of devices it has, and how many of each are free.

    :ivar known: shape (rows,), whether the rest of a row counts
    :ivar kinds: all kinds that some host ever had
    :ivar codes: shape (rows, pools), which kind; of no use where ``counts`` is 0
    :ivar counts: shape (rows, pools)
    """

    def __init__(self, rows: int) -> None:
        self.known = np.zeros(rows, np.bool_)
        self.kinds: list[topology_facts.Pool] = []
        self.codes = _wide(rows, 1)
        self.counts = _wide(rows, 1)
        self._code_of: dict[topology_facts.Pool, int] = {}

    def put(self, row: int, found: dict[topology_facts.Pool, int] | None) -> None:
        """Set a row; None leaves it to Nova's code."""
        self.known[row] = False
        if found is None or len(found) > _MOST_POOLS:
            return
        new = found.keys() - self._code_of.keys()
        if len(self.kinds) + len(new) > _MOST_KINDS:
            return
        for kind in new:
            self._code_of[kind] = len(self.kinds)
            self.kinds.append(kind)
        if len(found) > self.codes.shape[1]:
            self.codes = _widened(self.codes, len(found), 0)
            self.counts = _widened(self.counts, len(found), 0)
        self.counts[row] = 0
        for place, (kind, count) in enumerate(found.items()):
            self.codes[row, place] = self._code_of[kind]
            self.counts[row, place] = count
        self.known[row] = True

    def sums(self, rows: Rows, matches: Callable[[topology_facts.Pool], bool]) -> IntArray:
        """Return how many devices of matching kinds some rows have, shape (k,)."""
        wanted = np.fromiter(map(matches, self.kinds), np.bool_, len(self.kinds))
        if not wanted.any():
            return np.zeros(len(self.known[rows]), np.int32)
        found: IntArray = np.where(wanted[self.codes[rows]], self.counts[rows], 0).sum(axis=1)
        return found

    def grow(self, rows: int) -> None:
        self.known = columns.grown(self.known, rows)
        self.codes = _longer(self.codes, rows, 0)
        self.counts = _longer(self.counts, rows, 0)


class TopologyColumns:
    """Both of all rows, and which of them have to be read again.

    :ivar cells: see :class:`CellColumns`; ``pools`` see :class:`PoolColumns`
    """

    def __init__(self, rows: int) -> None:
        self.cells = CellColumns(rows)
        self.pools = PoolColumns(rows)
        self._is_stale = np.ones(rows, np.bool_)
        #: Of the texts that were read, so that only a text that changed is parsed.
        self._hashes: list[tuple[int, int] | None] = [None] * rows

    def forget(self, row: int) -> None:
        """Say that a row's node reported, or that another node has the row."""
        self._is_stale[row] = True

    def forget_all(self, rows: Any) -> None:
        """The same of many rows."""
        self._is_stale[rows] = True

    def grow(self, rows: int) -> None:
        self.cells.grow(rows)
        self.pools.grow(rows)
        self._is_stale = columns.grown(self._is_stale, rows, True)
        self._hashes += [None] * (rows - len(self._hashes))

    def refresh(self, alive: BoolArray, read: Read) -> list[int]:
        """Read some of the rows that were forgotten; return those that changed by it."""
        stale = np.flatnonzero(self._is_stale & alive)
        changed = []
        for row in stale[:_ROWS_AT_ONCE].tolist():
            self._is_stale[row] = False
            texts = read(row)
            # Of texts in memory Python's own hash, with a secret of the process.
            hashes = hash(texts[0]), hash(texts[1])
            before = self._hashes[row]
            if before is not None and before == hashes:
                continue
            self._hashes[row] = hashes
            if before is None or before[0] != hashes[0]:
                self.cells.put(row, topology_facts.topology(texts[0]))
            if before is None or before[1] != hashes[1]:
                self.pools.put(row, topology_facts.pools(texts[1]))
            changed.append(row)
        for row in stale[_ROWS_AT_ONCE:].tolist():
            # What was read before may refuse a host that has room by now.
            if self._hashes[row] is not None:
                self._hashes[row] = None
                self.cells.known[row] = self.pools.known[row] = False
                changed.append(row)
        return changed


def _wide(rows: int, width: int) -> IntArray:
    return np.zeros((rows, width), np.int32)


def _widened(array: IntArray, width: int, fill: int) -> IntArray:
    wider = np.full((len(array), width), fill, np.int32)
    wider[:, : array.shape[1]] = array
    return wider


def _longer(array: IntArray, rows: int, fill: int) -> IntArray:
    longer = np.full((rows, array.shape[1]), fill, np.int32)
    longer[: len(array)] = array
    return longer
