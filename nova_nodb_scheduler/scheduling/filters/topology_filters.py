# SPDX-License-Identifier: Apache-2.0
"""Filters on NUMA cells and PCI devices: columns say who may have room, Nova's code who has.

Columns refuse the hosts that have not got what is asked for in any case, so
that Nova's code is asked about few. These are necessary conditions: whoever is
refused here, Nova's code refuses, too
(``nova.virt.hardware.numa_fit_instance_to_host`` and ``nova.pci.stats``);
whoever is not, that code is asked about. Claims that no report counts only take
more away, so they need not be looked at.

Nova writes into the cells it tries to fit: a page size that was found in one of
a host's cells is asked of the others, and who fitted under one number passes for
another. Hence a size by name may be any size that one of the host's cells has for
it, and of several cells only how many find one that fits some of them.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling.frame import host_frame, host_topology
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
Rows = host_topology.Rows

_SHARED = (None, "shared", "mixed")
_PINNED = ("dedicated", "mixed")

#: Policies of PCI devices by which they must be near the server's cells.
_REQUIRED, _LEGACY = "required", "legacy"

_PHYSICAL_FUNCTION = "type-pf"
_VDPA = "vdpa"
#: As oslo_utils.strutils.bool_from_string.
_TRUE = frozenset(("1", "t", "true", "on", "y", "yes"))


def may_have_cells(
    request: requests.Request,
    known: host_topology.TopologyColumns,
    rows: Rows,
    cpu_ratios: FloatArray,
    ram_ratios: FloatArray,
) -> BoolArray:
    """Return False for rows whose NUMA cells do not fit a server's for certain.

    :param cpu_ratios: of the same rows, like ``ram_ratios``: what limits shared cells
    """
    cells = known.cells
    refused = np.zeros(len(cells.known[rows]), np.bool_)
    if request.requires_threads:
        # A host without a topology passes.
        refused |= (cells.count[rows] > 0) & ~cells.has_threads[rows]
    if request.numa_cells:
        fits = _fitting(request, cells, rows, cpu_ratios, ram_ratios)
        refused |= fits.sum(axis=1) < len(request.numa_cells)
        refused |= _lacks_near_devices(request, known, rows, fits)
    return ~refused | ~cells.known[rows]


def may_have_devices(
    request: requests.Request, pools: host_topology.PoolColumns, rows: Rows
) -> BoolArray:
    """Return False for rows that lack devices for certain, in whatever cells."""
    refused = np.zeros(len(pools.known[rows]), np.bool_)
    for (specs, _policy), count in _alike(request.devices).items():
        refused |= pools.sums(rows, _WantedDevice(specs).matches) < count
    return ~refused | ~pools.known[rows]


# -- cells ---------------------------------------------------------------------


def _fitting(
    request: requests.Request,
    cells: host_topology.CellColumns,
    rows: Rows,
    cpu_ratios: FloatArray,
    ram_ratios: FloatArray,
) -> BoolArray:
    """Return which cells may fit one of the server's, shape (k, cells)."""
    is_there = np.arange(cells.least_kb.shape[1]) < cells.count[rows][:, None]
    # Among several, whose turn is first is not known: none is asked for one CPU more.
    reserved = int(request.isolates_emulator and len(request.numa_cells) == 1)
    some = np.zeros(is_there.shape, np.bool_)
    for wanted in set(request.numa_cells):
        fits = is_there & _has_memory(wanted, cells, rows)
        if wanted.policy in _PINNED:
            fits &= _has_pinned_cpus(wanted, reserved, cells, rows)
        if wanted.policy in _SHARED:
            cpus = cells.numbers["cpus"][rows]
            used = cells.numbers["cpus_used"][rows].astype(np.int64)
            fits &= wanted.shared_cpus <= cpus
            fits &= used + wanted.shared_cpus <= cpus * cpu_ratios[:, None]
            memory_mb = cells.numbers["memory_mb"][rows]
            used = cells.numbers["memory_used_mb"][rows].astype(np.int64)
            fits &= used + wanted.memory_mb <= memory_mb * ram_ratios[:, None]
        some |= fits
    return some


def _has_memory(
    wanted: requests.NumaCell, cells: host_topology.CellColumns, rows: Rows
) -> BoolArray:
    fits: BoolArray
    if wanted.page_size_kb is not None:
        fits = np.zeros(cells.least_kb[rows].shape, np.bool_)
        for size, free_mb in cells.free_mb.items():
            if wanted.memory_mb * 1024 % size == 0:
                has_room = free_mb[rows] >= max(wanted.memory_mb, 0)
                fits |= has_room & _is_meant(wanted.page_size_kb, size, cells, rows)
        return fits
    numbers = cells.numbers
    is_pinned = wanted.policy in _PINNED
    least_kb = cells.least_kb[rows]
    pages_mb = (cells.least_free_mb if is_pinned else cells.least_total_mb)[rows]
    whole_mb = numbers["memory_mb"][rows].astype(np.int64)
    if is_pinned:
        whole_mb -= numbers["memory_used_mb"][rows]
    has_pages = least_kb > 0
    divides = wanted.memory_mb * 1024 % np.where(has_pages, least_kb, 1) == 0
    fits = np.where(
        has_pages, (wanted.memory_mb <= pages_mb) & divides, wanted.memory_mb <= whole_mb
    )
    return fits


def _is_meant(asked: int, size: int, cells: host_topology.CellColumns, rows: Rows) -> BoolArray:
    """Return whether a page size may be the one that is asked for, shape (k, 1) or (1, 1)."""
    if asked == requests.SMALL_PAGES:
        is_meant = cells.least_kb[rows] == size
    elif asked == requests.LARGE_PAGES:
        is_meant = cells.free_mb[size][rows] != host_topology.NO_PAGES
        is_meant &= cells.least_kb[rows] != size
    else:
        is_meant = np.full((1, 1), asked in (requests.ANY_PAGES, size))
    found: BoolArray = np.any(is_meant, axis=1, keepdims=True)
    return found


def _has_pinned_cpus(
    wanted: requests.NumaCell, reserved: int, cells: host_topology.CellColumns, rows: Rows
) -> BoolArray:
    numbers = cells.numbers
    fits: BoolArray = numbers["pcpus_free"][rows] >= wanted.pinned_cpus + reserved
    if wanted.thread_policy == "isolate":
        fits &= numbers["isolated"][rows] >= wanted.pinned_cpus
    elif wanted.thread_policy == "require":
        fits &= numbers["paired"][rows] >= wanted.pinned_cpus
    return fits


# -- devices -------------------------------------------------------------------


class _WantedDevice:
    """What Nova's _filter_pools leaves of a host's pools, wherever in the host they are."""

    def __init__(self, specs: requests.DeviceSpecs) -> None:
        self._specs = [dict(spec) for spec in specs]
        types = {_lower(spec.get("dev_type")) for spec in self._specs}
        self._refused_types = {_PHYSICAL_FUNCTION, _VDPA} - types
        self._is_managed = any(_lower(spec.get("remote_managed")) in _TRUE for spec in self._specs)

    def matches(self, pool: host_topology.Pool) -> bool:
        """Tell whether the devices of a pool may be meant."""
        own = dict(zip(host_topology.MATCHED, pool.properties, strict=True))
        if _lower(own["dev_type"]) in self._refused_types:
            return False
        if not self._is_managed and _lower(own["remote_managed"]) in _TRUE:
            return False
        return any(
            all(_may_equal(own[name], spec[name]) for name in own.keys() & spec.keys())
            for spec in self._specs
        )

    def at(self, numa_node: int | None) -> Callable[[host_topology.Pool], bool]:
        """Return what tells the same of devices at one NUMA node; None is no node."""
        return lambda pool: pool.numa_node == numa_node and self.matches(pool)


def _lower(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


def _may_equal(own: object, asked: object) -> bool:
    if own is host_topology.UNTOLD or not (asked is None or isinstance(asked, str)):
        return True
    return _lower(own) == _lower(asked)


def _alike(
    devices: Sequence[requests.DeviceRequest], policies: bool = False
) -> dict[tuple[requests.DeviceSpecs, str | None], int]:
    """Return how many devices are wanted of those that may come from the same pools.

    :param policies: those of another NUMA policy count apart
    """
    counts: collections.Counter[tuple[requests.DeviceSpecs, str | None]] = collections.Counter()
    for each in devices:
        key = (each.specs, (each.numa_policy or _LEGACY) if policies else None)
        # What Placement gave is taken as it says, not as it is counted here.
        counts[key] = max(counts[key], each.count) if each.is_placed else counts[key] + each.count
    return dict(counts)


def _lacks_near_devices(
    request: requests.Request,
    known: host_topology.TopologyColumns,
    rows: Rows,
    fits: BoolArray,
) -> BoolArray:
    """Return which rows lack devices as near to the cells that may be chosen as they must be.

    :param fits: which cells may be chosen, shape (k, cells)
    """
    pools = known.pools
    lacks = np.zeros(len(fits), np.bool_)
    ids = known.cells.numbers["id"][rows]
    nodes = {kind.numa_node for kind in pools.kinds if kind.numa_node is not None}
    for (specs, policy), count in _alike(request.devices, policies=True).items():
        if policy not in (_REQUIRED, _LEGACY):
            continue
        wanted = _WantedDevice(specs)
        near = np.zeros(fits.shape, np.int64)
        for node in nodes:
            near += np.where(fits & (ids == node), pools.sums(rows, wanted.at(node))[:, None], 0)
        # One cell has them all near, or those that are chosen together.
        found = near.max(axis=1) if len(request.numa_cells) == 1 else near.sum(axis=1)
        if policy == _LEGACY:
            found += pools.sums(rows, wanted.at(None))
        lacks |= found < count
    return lacks & pools.known[rows]


class NUMATopologyFilter(plugin_contract.Filter):
    """Hosts whose NUMA cells and CPU threads fit the server's."""

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        # Without an image Nova raises.
        if request.needs_numa or request.image is None:
            return plugin_contract.OnHostObjects.NEEDED
        return None

    def screen(self, request: requests.Request, frame: host_frame.HostFrame) -> Hashable | None:
        if request.image is None or not (request.numa_cells or request.requires_threads):
            return None
        frame.read_topologies()
        return (
            request.numa_cells,
            request.isolates_emulator,
            request.requires_threads,
            request.devices,
        )

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray:
        return may_have_cells(
            request,
            frame.topologies,
            rows,
            frame.cpu_allocation_ratio[rows],
            frame.ram_allocation_ratio[rows],
        )


class PciPassthroughFilter(plugin_contract.Filter):
    """Hosts that have the PCI devices asked for."""

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        return plugin_contract.OnHostObjects.NEEDED if request.needs_pci else None

    def screen(self, request: requests.Request, frame: host_frame.HostFrame) -> Hashable | None:
        if not request.devices:
            return None
        frame.read_topologies()
        return request.devices

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray:
        return may_have_devices(request, frame.topologies.pools, rows)
