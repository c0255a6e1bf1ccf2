# SPDX-License-Identifier: Apache-2.0
"""Nova's RequestSpec as the core's request, and the core's choices as Nova's Selections."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs
import nova.conf
from nova import objects
from nova.objects import base
from nova.pci import stats as pci_stats
from nova.scheduler import utils as scheduler_utils
from nova.scheduler.filters import utils as filter_utils
from oslo_serialization import jsonutils

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.nova_adapter.conversion import numa_pci_claims
from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts as choice_module

#: A hint that Nova's conductor sets, no user: which kind of move it is.
_CHECK_TYPE = "_nova_check_type"

#: Of the attributes in which a versioned object keeps its fields.
_PREFIX = base.get_attrname("")


def request(
    spec: Any,
    queries: tuple[requests.CandidateQuery, ...] | None,
    enabled_cells: Collection[str],
) -> requests.Request:
    """Return a RequestSpec as a Request.

    :param queries: what Placement would be asked; None for a rebuild
    :param enabled_cells: uuids of the cells that take new servers
    """
    flavor = _flavor(_get(spec, "flavor"))
    image = _get(spec, "image")
    wanted = destination(spec)
    hints = _hints(_get(spec, "scheduler_hints"))
    pci_requests = _get(spec, "pci_requests")
    topology = _get(spec, "numa_topology")
    is_dedicated = "dedicated" in _hardware(spec, "cpu_policy")
    return requests.Request(
        flavor=flavor,
        project_id=_get(spec, "project_id") or "",
        user_id=_get(spec, "user_id") or "",
        instance_uuid=_get(spec, "instance_uuid"),
        image=_image(image) if image is not None else None,
        availability_zone=_get(spec, "availability_zone"),
        hints=hints,
        group=group(_get(spec, "instance_group")),
        destination=wanted,
        ignore_hosts=tuple(_get(spec, "ignore_hosts") or ()),
        force_hosts=tuple(_get(spec, "force_hosts") or ()),
        force_nodes=tuple(_get(spec, "force_nodes") or ()),
        cells=cells(wanted, enabled_cells),
        queries=queries,
        check_type=bool(hints.get(_CHECK_TYPE)),
        is_rebuild=bool(scheduler_utils.request_is_rebuild(spec)),
        # Otherwise NUMATopologyFilter refuses no host: see its host_passes.
        needs_numa=topology is not None or is_dedicated,
        needs_pci=bool(pci_requests and pci_requests.requests),
        numa_cells=_numa_cells(topology),
        isolates_emulator=bool(topology and topology.emulator_threads_isolated),
        requires_threads=is_dedicated and "require" in _hardware(spec, "cpu_thread_policy"),
        devices=_devices(pci_requests),
        fitted=numa_pci_claims.of_request(spec),
    )


def _get(spec: Any, name: str) -> Any:
    """Return a field of a versioned object, None where it was never set."""
    # Where the object keeps it: to ask it first whether it is set takes four times as long.
    return getattr(spec, _PREFIX + name, None)


def _flavor(flavor: Any) -> requests.Flavor:
    if flavor is None:
        return requests.Flavor()
    return requests.Flavor(
        name=_get(flavor, "name") or "",
        vcpus=_get(flavor, "vcpus") or 0,
        memory_mb=_get(flavor, "memory_mb") or 0,
        root_gb=_get(flavor, "root_gb") or 0,
        ephemeral_gb=_get(flavor, "ephemeral_gb") or 0,
        swap_mb=_get(flavor, "swap") or 0,
        extra_specs=_get(flavor, "extra_specs") or {},
    )


_KNOWN_PROPERTIES = frozenset(objects.ImageMetaProps.fields)


def _image(image: Any) -> requests.Image:
    properties = _get(image, "properties")
    return requests.Image(
        uuid=_get(image, "id"),
        properties=_properties(properties) if properties is not None else {},
        known_properties=_KNOWN_PROPERTIES,
    )


#: Fields of image properties, and where an object keeps those that are set.
_PROPERTY_ATTRIBUTES = tuple(
    (name, base.get_attrname(name)) for name in objects.ImageMetaProps.fields
)


def _properties(properties: Any) -> Mapping[str, Any]:
    # There are some 130, of which a request sets a few: asking the object for
    # each is a tenth of a request's time.
    held = vars(properties)
    return {name: held[attribute] for name, attribute in _PROPERTY_ATTRIBUTES if attribute in held}


def destination(spec: Any) -> requests.Destination | None:
    """Return where a RequestSpec is to go; None where it does not say."""
    found = _get(spec, "requested_destination")
    if not found:
        return None
    cell = _get(found, "cell")
    return requests.Destination(
        host=_get(found, "host"),
        node=_get(found, "node"),
        cell=str(cell.uuid) if cell is not None else None,
        allow_cross_cell_move=bool(_get(found, "allow_cross_cell_move")),
    )


def cells(wanted: requests.Destination | None, enabled_cells: Collection[str]) -> frozenset[str]:
    """Return the cells that a request may go to, as Nova's host manager picks them.

    :param enabled_cells: uuids of the cells that take new servers
    """
    if wanted is not None and wanted.cell and not wanted.allow_cross_cell_move:
        return frozenset([wanted.cell])
    return frozenset(enabled_cells)


def _hints(hints: Any) -> Mapping[str, tuple[str, ...]]:
    return {
        name: tuple(values) if isinstance(values, (list, tuple)) else (values,)
        for name, values in (hints or {}).items()
    }


def group_uuid(spec: Any) -> str | None:
    """Return the uuid of a RequestSpec's server group; None if it is in none."""
    found = spec.instance_group if "instance_group" in spec else None
    if not found:
        return None
    return str(found.uuid) if "uuid" in found else ""


def group(found: Any) -> requests.Group | None:
    """Return an InstanceGroup as a Group; None for none."""
    if not found:
        return None
    policy = _get(found, "policy")
    policies = _get(found, "policies")
    if policies is None:
        policies = [policy] if policy else []
    # Not a field, but what Nova makes of one; only with a policy of today's form.
    rules = (found.rules or {}) if policy else {}
    return requests.Group(
        uuid=_get(found, "uuid"),
        policy=policy,
        policies=frozenset(policies),
        members=frozenset(_get(found, "members") or ()),
        hosts=frozenset(_get(found, "hosts") or ()),
        max_server_per_host=int(rules.get("max_server_per_host", 1)),
    )


def candidate_query(wanted: Any, group: Any) -> requests.CandidateQuery:
    """Return what Nova's ResourceRequest asks for by one of its groups, and of the root besides.

    Its fields are read instead of the query string that Nova makes of them, in every
    supported release alike; tests hold the two against one another.
    """
    return requests.CandidateQuery(
        resources=dict(group.resources),
        required_traits=frozenset(group.required_traits),
        forbidden_traits=frozenset(group.forbidden_traits),
        root_required=frozenset(wanted._root_required),
        root_forbidden=frozenset(wanted._root_forbidden),
        member_of=tuple(map(frozenset, sorted(map(sorted, group.aggregates)))),
        forbidden_aggregates=frozenset(group.forbidden_aggregates),
        in_tree=group.in_tree or None,
    )


def candidate_queries(wanted: Any) -> dict[str, requests.CandidateQuery]:
    """Return what Nova's ResourceRequest asks for, by suffix: empty for the group without."""
    return {
        suffix or "": candidate_query(wanted, group) for suffix, group in wanted._rg_by_id.items()
    }


def _hardware(spec: Any, name: str) -> tuple[Any, Any]:
    """Return what flavor and image say of the server's hardware; None where one says nothing."""
    flavor, image = _get(spec, "flavor"), _get(spec, "image")
    extra_specs = (_get(flavor, "extra_specs") or {}) if flavor is not None else {}
    properties = _get(image, "properties") if image is not None else None
    in_image = _get(properties, f"hw_{name}") if properties is not None else None
    return extra_specs.get(f"hw:{name}"), in_image


def _numa_cells(topology: Any) -> tuple[requests.NumaCell, ...]:
    found = []
    for cell in topology.cells if topology is not None else ():
        shared, pinned, memory = (_get(cell, name) for name in ("cpuset", "pcpuset", "memory"))
        if shared is None or pinned is None or memory is None:
            return ()  # of another release
        found.append(
            requests.NumaCell(
                shared_cpus=len(shared),
                pinned_cpus=len(pinned),
                memory_mb=memory,
                page_size_kb=_get(cell, "pagesize") or None,
                policy=_get(cell, "cpu_policy"),
                thread_policy=_get(cell, "cpu_thread_policy"),
            )
        )
    return tuple(found)


#: Properties of a wanted device that Placement matches, and Nova's filters do not.
_PLACED_PROPERTIES = frozenset(pci_stats.PciDeviceStats.ignored_spec_tags)


def _devices(pci_requests: Any) -> tuple[requests.DeviceRequest, ...]:
    return tuple(
        requests.DeviceRequest(
            count=each.count,
            specs=tuple(
                frozenset(
                    (name, value) for name, value in spec.items() if name not in _PLACED_PROPERTIES
                )
                for spec in each.spec
            ),
            numa_policy=_get(each, "numa_policy"),
            is_placed=any(spec.get("rp_uuids") for spec in each.spec),
        )
        for each in (pci_requests.requests if pci_requests else ())
    )


@attrs.frozen
class _ChosenHost:
    """What Nova's Selection.from_host_state reads of a HostState."""

    host: str
    nodename: str
    uuid: str
    cell_uuid: str
    limits: Mapping[str, Any]
    aggregates: list[Any]


def selection(
    choice: choice_module.Choice,
    allocation_request: Mapping[str, Any] | None,
    version: str | None,
    limits: Mapping[str, Any],
    aggregates_of: Callable[[str], list[Any]],
) -> Any:
    """Return a choice as Nova's Selection.

    :param allocation_request: what was, or for an alternate may be, allocated
    :param version: microversion the allocation request is made for
    :param aggregates_of: Nova's aggregates of a host by its name
    """
    chosen = _ChosenHost(
        host=choice.host,
        nodename=choice.node,
        uuid=choice.uuid,
        cell_uuid=choice.cell,
        limits=dict(limits),
        aggregates=aggregates_of(choice.host),
    )
    if limits:
        return objects.Selection.from_host_state(
            chosen, allocation_request=allocation_request, allocation_request_version=version
        )
    zones = filter_utils.aggregate_metadata_get_by_host(chosen, key=_ZONE).get(_ZONE)
    pattern, its_limits = _pattern(objects.Selection)
    return _filled(
        pattern,
        compute_node_uuid=choice.uuid,
        service_host=choice.host,
        nodename=choice.node,
        cell_uuid=choice.cell,
        limits=_filled(its_limits),
        allocation_request=_encode(allocation_request),
        allocation_request_version=version,
        availability_zone=(
            next(iter(zones)) if zones else nova.conf.CONF.default_availability_zone
        ),
    )


_ZONE = "availability_zone"

#: As jsonutils.dumps, which makes an encoder each time.
_encode = json.JSONEncoder(default=jsonutils.to_primitive).encode


@functools.lru_cache(maxsize=1)
def _pattern(kind: type[Any]) -> tuple[Any, Any]:
    """Return a Selection as Nova makes it of a host without limits, and its limits.

    To set each field of each choice and of its limits anew, as Nova does, takes
    a twentieth of a request's time in memory.
    """
    nobody = _ChosenHost("", "", _NO_UUID, _NO_UUID, {}, [])
    made = kind.from_host_state(nobody)
    return made, made.limits


_NO_UUID = "00000000-0000-0000-0000-000000000000"


def _filled(pattern: Any, **values: Any) -> Any:
    """Return an object of its own like a pattern, but for some fields' values.

    :param values: as the fields hold them
    """
    made = object.__new__(type(pattern))
    held = vars(made)
    held.update(vars(pattern))
    made._changed_fields = set(pattern._changed_fields)
    for name, value in values.items():
        held[_PREFIX + name] = value
    return made
