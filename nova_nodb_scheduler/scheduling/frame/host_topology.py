# SPDX-License-Identifier: Apache-2.0
"""NUMA cells and PCI pools of compute nodes: read from the JSON of their rows, and as columns.

Only what decides whether something is left; Nova's objects of the same texts
take ten times as long. What is not as Nova 31 to 34 write it is left to these.

Rows are read when a request comes that asks, those alone whose node reported
something since: reports cost nothing, and other requests nothing either. A row
that was not read yet, or that only Nova's code can read, is refused nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson

from nova_nodb_scheduler.scheduling.frame import frame_columns

#: The path of a host's attribute that holds the texts of its NUMA topology and of
#: its PCI pools.
TEXTS = ("topology_texts",)

_MOST = 2**31 - 1


class Cell(NamedTuple):
    """One NUMA cell of a host.

    :param cpus: how many CPUs are shared, ``cpus_used`` how many of them are asked for
    :param pcpus: how many CPUs may be pinned, ``pcpus_free`` how many still can be
    :param isolated: how many servers' CPUs find a whole core each
    :param paired: how many find room on cores where at least two threads are free
    :param pages: (KiB, MiB free, MiB in all) of each page size, ascending
    """

    id: int
    memory_mb: int
    memory_used_mb: int
    cpus: int
    cpus_used: int
    pcpus: int
    pcpus_free: int
    isolated: int
    paired: int
    pages: tuple[tuple[int, int, int], ...]


class Topology(NamedTuple):
    """A host's NUMA cells.

    :param has_threads: some core has more than one
    """

    cells: tuple[Cell, ...]
    has_threads: bool


class Pool(NamedTuple):
    """PCI devices that are alike, as far as requests mostly ask.

    :param properties: (name, value) of :data:`MATCHED`; a value of :data:`UNTOLD`
        may match anything
    """

    properties: tuple[Any, ...]
    numa_node: int | None


#: What hosts have that report no topology, or nothing yet.
NO_TOPOLOGY = Topology((), False)

#: Properties of pools that are compared with what is asked for.
MATCHED = (
    "vendor_id",
    "product_id",
    "dev_type",
    "physical_network",
    "remote_managed",
    "live_migratable",
)

#: A value that only Nova's own code compares.
UNTOLD = object()


def topology(text: str | None) -> Topology | None:
    """Return a NUMA topology in numbers; None where only Nova's own code can read it."""
    if not text:
        return NO_TOPOLOGY
    try:
        whole = orjson.loads(text)
        if whole["nova_object.name"] != "NUMATopology":
            return None
        cells = [each["nova_object.data"] for each in whole["nova_object.data"]["cells"]]
        siblings = [[set(core) for core in cell["siblings"]] for cell in cells]
        found = Topology(
            tuple(map(_cell, cells, siblings)),
            any(len(core) > 1 for cores in siblings for core in cores),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return found if len({cell.id for cell in found.cells}) == len(found.cells) else None


def _cell(data: Mapping[str, Any], cores: Sequence[set[int]]) -> Cell:
    """Return a cell's numbers.

    :raises ValueError: they are not as Nova writes them
    """
    cpus, pcpus, pinned = (_numbers(data[name]) for name in ("cpuset", "pcpuset", "pinned_cpus"))
    _numbers(set().union(*cores))
    free = pcpus - pinned
    threads = max(map(len, cores)) or 1
    # How many cores have so many free threads, or more, by that number.
    at_least = [0] * (threads + 1)
    for core in cores:
        at_least[len(core & free)] += 1
    for count in range(threads - 1, -1, -1):
        at_least[count] += at_least[count + 1]
    # Nova isolates on cores whose siblings are free only where nobody shares them.
    may_isolate = threads == 1 or cpus == pcpus
    pages = sorted(_pages(each["nova_object.data"]) for each in data["mempages"])
    if len({size for size, _free, _total in pages}) < len(pages):
        raise ValueError("two kinds of pages have one size")
    found = Cell(
        id=data["id"],
        memory_mb=data["memory"],
        memory_used_mb=data["memory_usage"],
        cpus=len(cpus),
        cpus_used=data["cpu_usage"],
        pcpus=len(pcpus),
        pcpus_free=len(free),
        isolated=at_least[threads] if may_isolate else 0,
        paired=max((n * at_least[n] for n in range(2, threads + 1)), default=0),
        pages=tuple(pages),
    )
    _check(*found[:-1])
    return found


def _numbers(values: Collection[int]) -> set[int]:
    found = set(values)
    if not set(map(type, values)) <= {int}:
        raise ValueError("CPUs are no whole numbers")
    return found


def _pages(data: Mapping[str, Any]) -> tuple[int, int, int]:
    size, total = data["size_kb"], data["total"]
    free = total - data["used"] - data.get("reserved", 0)
    _check(size, total, free)
    if size <= 0:
        raise ValueError("pages have no size")
    # Servers are sized in MiB: what is left of one holds none.
    return size, min(free * size // 1024, _MOST), min(total * size // 1024, _MOST)


def _check(*numbers: Any) -> None:
    """Refuse what does not fit the columns.

    :raises ValueError: something is no whole number, or is too great
    """
    for number in numbers:
        if type(number) is not int or not -_MOST <= number <= _MOST:
            raise ValueError("a number is none, or is too great")


# -- PCI pools -----------------------------------------------------------------


def parse_pools(text: str) -> list[Mapping[str, Any]]:
    """Return the pools in a text of pci_stats as Nova would find them.

    :raises KeyError: a pool lacks what each has
    :raises TypeError, ValueError: they are no pools
    """
    try:
        pools = orjson.loads(text)
    except (TypeError, ValueError):
        return []  # as Nova: pools that are not JSON are none
    if not pools:
        return []
    if "nova_object.namespace" in pools:
        data = pools["nova_object.data"]
        return [pool["nova_object.data"] for pool in data["objects"]]
    found = [pools] if isinstance(pools, dict) else pools
    for name in ("vendor_id", "product_id"):
        if any(name not in pool for pool in found):
            raise KeyError(name)
    return list(found)


def pools(text: str | None) -> dict[Pool, int] | None:
    """Return how many devices there are of each kind; None where only Nova can tell."""
    if not text:
        return {}
    counts: dict[Pool, int] = {}
    try:
        for data in parse_pools(text):
            tags = data.get("tags", data)
            count, numa_node = data["count"], data.get("numa_node")
            _check(count, 0 if numa_node is None else numa_node)
            if tags is not data and not tags.keys().isdisjoint(data.keys()):
                return None  # a tag stands for the pool's own
            own = (data["vendor_id"], data["product_id"], *map(tags.get, MATCHED[2:]))
            kind = Pool(tuple(map(_told, own)), numa_node)
            counts[kind] = counts.get(kind, 0) + count
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return counts


def _told(value: Any) -> Any:
    return value if value is None or type(value) is str else UNTOLD


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
_NUMBERS = Cell._fields[:-1]


class CellColumns:
    """NUMA cells, one column of each row for each cell.

    :ivar known: shape (rows,), whether the rest of a row counts
    :ivar count: shape (rows,), how many cells there are
    :ivar has_threads: shape (rows,)
    :ivar numbers: by field of :class:`Cell`, shape (rows, cells)
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

    def put(self, row: int, found: Topology | None) -> None:
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
        self.known = frame_columns.grown(self.known, rows)
        self.count = frame_columns.grown(self.count, rows)
        self.has_threads = frame_columns.grown(self.has_threads, rows)
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
        self.kinds: list[Pool] = []
        self.codes = _wide(rows, 1)
        self.counts = _wide(rows, 1)
        self._code_of: dict[Pool, int] = {}

    def put(self, row: int, found: dict[Pool, int] | None) -> None:
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

    def sums(self, rows: Rows, matches: Callable[[Pool], bool]) -> IntArray:
        """Return how many devices of matching kinds some rows have, shape (k,)."""
        wanted = np.fromiter(map(matches, self.kinds), np.bool_, len(self.kinds))
        if not wanted.any():
            return np.zeros(len(self.known[rows]), np.int32)
        found: IntArray = np.where(wanted[self.codes[rows]], self.counts[rows], 0).sum(axis=1)
        return found

    def grow(self, rows: int) -> None:
        self.known = frame_columns.grown(self.known, rows)
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

    def forget(self, rows: Sequence[int]) -> None:
        """Say that rows' nodes reported, or that other nodes have the rows."""
        self._is_stale[rows] = True

    def grow(self, rows: int) -> None:
        self.cells.grow(rows)
        self.pools.grow(rows)
        self._is_stale = frame_columns.grown(self._is_stale, rows, True)
        self._hashes += [None] * (rows - len(self._hashes))

    def refresh(self, alive: BoolArray, read: Read) -> list[int]:
        """Read some of the rows that were forgotten; return those that changed by it."""
        stale = np.flatnonzero(self._is_stale & alive)
        changed = []
        for row in stale[:_ROWS_AT_ONCE].tolist():
            self._is_stale[row] = False
            texts = read(row)
            hashes = _hashed(texts[0]), _hashed(texts[1])
            before = self._hashes[row]
            if before is not None and before == hashes:
                continue
            self._hashes[row] = hashes
            if before is None or before[0] != hashes[0]:
                self.cells.put(row, topology(texts[0]))
            if before is None or before[1] != hashes[1]:
                self.pools.put(row, pools(texts[1]))
            changed.append(row)
        for row in stale[_ROWS_AT_ONCE:].tolist():
            # What was read before may refuse a host that has room by now.
            if self._hashes[row] is not None:
                self._hashes[row] = None
                self.cells.known[row] = self.pools.known[row] = False
                changed.append(row)
        return changed


def _hashed(text: object) -> int:
    """Return Python's own hash, with a secret of the process; of what is no text, of its form."""
    return hash(text if text is None or type(text) is str else repr(text))


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
