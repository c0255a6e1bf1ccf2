# SPDX-License-Identifier: Apache-2.0
"""Nova's choice of hosts in plain Python, host by host, from scratch each time.

Follows nova/scheduler/manager.py, host_manager.py, filters.py and weights.py
of Nova 34, with Placement's candidates before it.
"""

import attrs
import numpy as np

from nova_nodb_scheduler.scheduling.pipeline import plugin_contract
from tests.unit.scheduling import toys


def offers(query, host):
    provider = host["provider"]
    if query.in_tree not in (None, host["uuid"]):
        return False
    for name, amount in query.resources.items():
        own = provider.inventories.get(name)
        if own is None:
            return False
        if provider.used.get(name, 0) + amount > (own.total - own.reserved) * own.allocation_ratio:
            return False
        if not own.min_unit <= amount <= own.max_unit or amount % own.step_size:
            return False
    return (
        query.required_traits <= provider.traits
        and not query.forbidden_traits & provider.traits
        and all(each & provider.aggregates for each in query.member_of)
        and not query.forbidden_aggregates & provider.aggregates
    )


def known(request, hosts):
    """Return the hosts that the scheduler makes host states of, with their candidates."""
    found = []
    for host in hosts:
        if not host["has_service"] or host["cell"] not in request.cells:
            continue
        if request.queries is not None:
            candidates = [each for each in request.queries if offers(each, host)]
            if not candidates:
                continue
            host["candidates"] = candidates if host["updated"] else []
        found.append(host)
    return found


def filtered(request, hosts, index=0, filters=toys.FILTERS):
    destination = request.destination
    if destination is not None and destination.host is not None:
        hosts = [
            host
            for host in hosts
            if host["host"] == destination.host
            and (not destination.node or host["node"] == destination.node)
        ]
    ignored = {name.lower() for name in request.ignore_hosts}
    hosts = [host for host in hosts if host["host"].lower() not in ignored]
    if request.force_hosts:
        forced = {name.lower() for name in request.force_hosts}
        hosts = [host for host in hosts if host["host"].lower() in forced]
    if request.force_nodes:
        hosts = [host for host in hosts if host["node"] in request.force_nodes]
    if (request.force_hosts or request.force_nodes) and not request.check_type:
        return hosts
    for own in filters:
        if index and own.once_per_request:
            continue
        if request.is_rebuild and not own.on_rebuild:
            continue
        hosts = [host for host in hosts if own.one(request, host)]
    return hosts


def normalized(weights, minval, maxval):
    maxval = float(max(weights) if maxval is None else maxval)
    minval = float(min(weights) if minval is None else minval)
    if minval == maxval:
        return [0] * len(weights)
    return [(each - minval) / (maxval - minval) for each in weights]


def weighed(request, hosts, weighers=toys.WEIGHERS):
    """Return (score, host), best first."""
    totals = [0.0] * len(hosts)
    if len(hosts) > 1:
        for own in weighers:
            pairs = [own.one(request, host) for host in hosts]
            scaled = normalized([raw for raw, _ in pairs], own.minval, own.maxval)
            for place, (weight, (_, multiplier)) in enumerate(zip(scaled, pairs, strict=True)):
                totals[place] += multiplier * weight
    order = sorted(range(len(hosts)), key=lambda place: -totals[place])
    return [(totals[place], hosts[place]) for place in order]


def consume(request, host, instance_uuid):
    flavor = request.flavor
    host["free_ram_mb"] -= flavor.memory_mb
    host["num_io_ops"] += 1
    host["instances"].add(instance_uuid)
    used = dict(host["provider"].used)
    for name, amount in host["candidates"][0].resources.items():
        used[name] = used.get(name, 0) + amount
    host["provider"] = attrs.evolve(host["provider"], used=used)


class Objects:
    """The steps of the toys, one host after the other, as an engine's host objects."""

    def __init__(self, request, hosts, lock):
        self._request = request
        self._hosts = {host["uuid"]: host for host in hosts}
        self._lock = lock

    def _free(self):
        assert not self._lock._is_owned(), "the engine's lock is held while objects work"

    def filter(self, name, uuids, index):
        self._free()
        own = getattr(toys, name)
        if self._request.is_rebuild and not own.on_rebuild:
            return uuids
        return [uuid for uuid in uuids if own.one(self._request, self._hosts[uuid])]

    def is_apart(self, name, *, is_chosen):
        return True

    def weigh(self, name, uuids):
        self._free()
        own = getattr(toys, name)
        pairs = [own.one(self._request, self._hosts[uuid]) for uuid in uuids]
        return plugin_contract.WeighedOnObjects(
            np.array([raw for raw, _ in pairs], np.float64),
            np.array([multiplier for _, multiplier in pairs], np.float64),
            own.minval,
            own.maxval,
        )

    def allocation_requests(self, uuid):
        self._free()
        return [
            {
                "allocations": {uuid: {"resources": dict(query.resources)}},
                "mappings": {"": [uuid]},
            }
            for query in self._hosts[uuid]["candidates"]
        ]

    def consume(self, uuid, instance_uuid):
        self._free()
        consume(self._request, self._hosts[uuid], instance_uuid)
