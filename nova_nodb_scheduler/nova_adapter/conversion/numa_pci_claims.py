# SPDX-License-Identifier: Apache-2.0
"""NUMA cells and PCI devices in claims: written by name, consumed and fitted by Nova's code.

A claim holds what its request asks for, not what it would get: which cells and
devices a server gets, nova-compute decides. Consuming others' claims one after
the other, as Nova's scheduler consumes the servers of one request, tells
whether there is room for one more.

The order is that in which they were granted, which is their record's. Each was
granted beside those before it, so that in this order each finds its cells. In
another one the earlier ones may take them: a claim that then fits nowhere would
take nothing off the host, and others would get what it was granted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import attrs
from nova import exception as nova_exception
from nova import objects
from nova.objects import base
from nova.pci import stats as pci_stats
from nova.virt import hardware

from nova_nodb_scheduler.nova_adapter.conversion import nova_rows
from nova_nodb_scheduler.scheduling.namespaces import claim_facts, known_namespaces
from nova_nodb_scheduler.store import store_snapshot as snapshot_module

_NUMA = "numa_topology"
_PCI = "pci_requests"
#: The networks that a server's cells must be near.
_NETWORKS = "network_metadata"

_TOPOLOGY_ATTRIBUTE, _REQUESTS_ATTRIBUTE, _NETWORKS_ATTRIBUTE = map(
    base.get_attrname, (_NUMA, _PCI, _NETWORKS)
)

_NUMA_FILTER = "NUMATopologyFilter"

#: Providers by group of resources, as Placement's allocation requests name them.
MAPPING = "provider_mapping"


def of_request(spec: Any) -> dict[str, Any]:
    """Return what a request wants fitted, as JSON; empty where it wants nothing.

    :param spec: a RequestSpec that no host was consumed for yet
    """
    # None where it was never set; see request_conversion.
    found = _wanted(
        getattr(spec, _TOPOLOGY_ATTRIBUTE, None), getattr(spec, _REQUESTS_ATTRIBUTE, None)
    )
    if found:
        found[MAPPING] = spec.get_request_group_mapping()
    if _NUMA in found:
        # Nova asks cells alone for it, and only of a server that is built: it keeps it nowhere.
        networks = getattr(spec, _NETWORKS_ATTRIBUTE, None)
        if networks is not None:
            found[_NETWORKS] = _written(networks)
    return found


def of_server(instance: Any) -> dict[str, Any]:
    """Return what nova-compute will fit where a server is moved as it is, as :func:`of_request`.

    From flavor and image, as its claim for a move takes it: the topology that
    the instance holds is the one it got on its present host.

    :param instance: an Instance; what of it is not loaded is read from its cell
    :raises NovaException: it cannot be read, or its flavor and image contradict each other
    """
    found = _wanted(
        hardware.numa_get_constraints(instance.flavor, instance.image_meta),
        instance.pci_requests,
    )
    if found:
        # Placement gives nothing of other providers to a host that is forced.
        found[MAPPING] = {}
    return found


def _wanted(topology: Any, requests: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if topology is not None:
        found[_NUMA] = _written(topology)
    if requests is not None and requests.requests:
        found[_PCI] = _written(requests)
        found[claim_facts.DEVICES] = sum(int(each.count) for each in requests.requests)
    return found


def _written(made: Any) -> Any:
    """Return an object of Nova as it is read again: whoever claims the same claims the equal."""
    return _read_again(made.obj_to_primitive())


def _read_again(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _read_again(each) for name, each in value.items()}
    if isinstance(value, tuple):
        # A set, in whatever order this process has it.
        return sorted(map(_read_again, value))
    return list(map(_read_again, value)) if isinstance(value, list) else value


class ConsumedHost(Protocol):
    """What of a HostState is consumed from."""

    numa_topology: Any
    pci_stats: Any
    cpu_allocation_ratio: float
    ram_allocation_ratio: float


@attrs.define
class NodeState:
    """A host as its compute node reported it."""

    numa_topology: Any
    pci_stats: Any
    cpu_allocation_ratio: float
    ram_allocation_ratio: float


@attrs.frozen
class _WantedDevices:
    topology: Any
    requests: list[Any]
    mapping: Any
    networks: Any

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> _WantedDevices:
        """Revive what a claim holds; objects that nobody else holds, for Nova changes them."""
        topology, requests, networks = (
            base.NovaObject.obj_from_primitive(state[name]) if name in state else None
            for name in (_NUMA, _PCI, _NETWORKS)
        )
        return cls(
            topology,
            list(requests.requests) if requests is not None else [],
            state.get(MAPPING),
            networks,
        )


#: What Nova's code raises of devices that are not there, and of cells that its filter passed
#: but that lack what it looks for, such as sizes of pages. Its own consume_from_request logs
#: all that, and the request goes on.
_NOT_CONSUMED = (nova_exception.NovaException, AttributeError, IndexError)


def consume(host: ConsumedHost, claimed: Mapping[str, Any]) -> bool:
    """Take a claim's NUMA cells and PCI devices off a host.

    :returns: False where the host has not got them; what of it fits is taken
    """
    wanted = _WantedDevices.of(claimed)
    fits = True
    cells = wanted.topology.cells if wanted.topology is not None else None
    if host.numa_topology and wanted.topology:
        fits, cells = False, None
        with contextlib.suppress(*_NOT_CONSUMED):
            fit = _fit(host, wanted)
            if fit is None:
                # No filter asked how far cells are shared where it was forced to the host, and
                # nova-compute does not. Nova writes into what it tried to fit.
                fit = _fit(host, _WantedDevices.of(claimed), shared=True)
            if fit is not None:
                cells = fit.cells
                host.numa_topology = hardware.numa_usage_from_instance_numa(host.numa_topology, fit)
                fits = True
    for request in wanted.requests if host.pci_stats else ():
        try:
            host.pci_stats.apply_requests([request], wanted.mapping, cells)
        except _NOT_CONSUMED:
            fits = False
    return fits


def supports(host: ConsumedHost, claimed: Mapping[str, Any], filters: Collection[str]) -> bool:
    """Say whether a host has what a claim wants, as the enabled filters would.

    :param filters: names of the enabled filters
    """
    wanted = _WantedDevices.of(claimed)
    if wanted.topology is not None and _NUMA_FILTER in filters:
        if not host.numa_topology or _fit(host, wanted) is None:
            return False
    if wanted.requests and "PciPassthroughFilter" in filters:
        if not host.pci_stats:
            return False
        return bool(host.pci_stats.support_requests(wanted.requests, wanted.mapping))
    return True


def would_be_taken(
    host: ConsumedHost, claimed: Mapping[str, Any], filters: Collection[str]
) -> bool:
    """Say whether nova-compute would take a claim on a host that filters passed before.

    It refuses devices and pinned CPUs that are not there whichever filters are
    enabled; how far cells are shared it looks at where the filter told it to.

    :param filters: names of the enabled filters, as far as they are known
    """
    wanted = _WantedDevices.of(claimed)
    if wanted.topology is not None and host.numa_topology:
        if _fit(host, wanted, shared=_NUMA_FILTER not in filters) is None:
            return False
    if not wanted.requests:
        return True
    return bool(host.pci_stats.support_requests(wanted.requests, wanted.mapping))


def _fit(host: ConsumedHost, wanted: _WantedDevices, *, shared: bool = False) -> Any:
    """Return a topology as Nova fits it in; None where it does not.

    :param shared: cells are, by however many
    """
    limits = objects.NUMATopologyLimits(
        cpu_allocation_ratio=host.cpu_allocation_ratio,
        ram_allocation_ratio=host.ram_allocation_ratio,
    )
    if wanted.networks is not None:
        limits.network_metadata = wanted.networks
    return hardware.numa_fit_instance_to_host(
        host.numa_topology,
        wanted.topology,
        limits=None if shared else limits,
        pci_requests=wanted.requests or None,
        pci_stats=host.pci_stats,
        provider_mapping=wanted.mapping,
    )


class NumaPciFitting:
    """Says whether claims fit as one snapshot has the nodes; any thread, no I/O.

    Fulfils :data:`nova_nodb_scheduler.scheduling.reservations.claim_fit.Fitted`.

    :param judge: :func:`supports`, or :func:`would_be_taken`
    :param leaves_nodes: what a node has not got by itself is left to its compute
        service: only what others claim there is judged
    """

    def __init__(
        self,
        snapshot: snapshot_module.Snapshot,
        filters: Collection[str],
        context: Any,
        judge: Callable[[ConsumedHost, Mapping[str, Any], Collection[str]], bool] = supports,
        *,
        leaves_nodes: bool = False,
    ) -> None:
        self._nodes = snapshot.namespace(known_namespaces.COMPUTE_NODES.name)
        self._filters = filters
        self._context = context
        self._judge = judge
        self._leaves_nodes = leaves_nodes

    def fits(
        self, uuid: str, wanted: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]
    ) -> bool:
        """Say whether what a claim wants is left beside what others claim.

        A node that this Nova cannot read has room for nothing.

        :param others: in the order in which they were granted
        """
        record = self._nodes.get(uuid)
        if record is None:
            return False
        try:
            node, text = nova_rows.compute_node(self._context, record)
        except nova_rows.UNUSABLE:
            return False
        state = _state_of(node, text)
        for claimed in others.values():
            consume(state, claimed)
        if self._judge(state, wanted, self._filters):
            return True
        return self._leaves_nodes and not self._judge(_state_of(node, text), wanted, self._filters)


def _state_of(node: Any, text: str | None) -> NodeState:
    topology = nova_rows.numa_topology(text)
    return NodeState(
        topology,
        pci_stats.PciDeviceStats(topology, stats=node.pci_device_pools),
        node.cpu_allocation_ratio,
        node.ram_allocation_ratio,
    )
