# SPDX-License-Identifier: Apache-2.0
"""A compute node's NUMA topology and PCI pools in numbers, read from the JSON of its row.

Only what decides whether something is left; Nova's objects of the same texts
take ten times as long. What is not as Nova 31 to 34 write it is left to these.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

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
