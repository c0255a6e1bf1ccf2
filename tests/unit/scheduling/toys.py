# SPDX-License-Identifier: Apache-2.0
"""Small filters and weighers, hosts for them, and Nova's algorithm in plain Python.

The plain scheduler walks hosts one by one as Nova 34's manager, filters and
weights do, and knows nothing of rows, masks, signatures or blocks.
"""

import numpy as np

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling.frame import host_facts
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract

CELL = "cell-1"


class RamFilter(plugin_contract.Filter):
    """Enough memory for the flavor."""

    def key(self, request, frame):
        return request.flavor.memory_mb

    def mask(self, request, frame, rows):
        return frame.free_ram_mb[rows] >= request.flavor.memory_mb

    @staticmethod
    def one(request, host):
        return host["free_ram_mb"] >= request.flavor.memory_mb


class UpFilter(plugin_contract.Filter):
    """The service is up and enabled."""

    once_per_request = True

    def key(self, request, frame):
        return "up"

    def mask(self, request, frame, rows):
        return frame.up[rows] & ~frame.disabled[rows]

    @staticmethod
    def one(request, host):
        return host["up"] and not host["disabled"]


class ZoneFilter(plugin_contract.Filter):
    """The aggregates of the host name the zone asked for."""

    on_rebuild = True

    def key(self, request, frame):
        return request.availability_zone

    def mask(self, request, frame, rows):
        zone = request.availability_zone

        def has(uuids):
            return any(frame.aggregates[each].metadata.get("zone") == zone for each in uuids)

        return frame.aggregate_sets.where(rows, has)

    @staticmethod
    def one(request, host):
        zone = request.availability_zone
        return zone is None or zone in host["zones"]


class SpreadFilter(plugin_contract.Filter):
    """No member of the group on the host."""

    def key(self, request, frame):
        if request.group is None:
            return None
        return plugin_contract.as_key(
            request.group.members, frame.instance_counts(request.group.members)
        )

    def mask(self, request, frame, rows):
        counts = frame.instance_counts(request.group.members)
        taken = np.array(sorted(counts), np.intp)
        rows = np.arange(frame.rows)[rows] if isinstance(rows, slice) else rows
        return ~np.isin(rows, taken)

    @staticmethod
    def one(request, host):
        return request.group is None or not host["instances"] & request.group.members


class RamWeigher(plugin_contract.Weigher):
    """Free memory, with a multiplier that aggregates override."""

    def key(self, request, frame):
        return "ram"

    def raw(self, request, frame, rows):
        return frame.free_ram_mb[rows].astype(np.float64)

    def multiplier(self, request, frame, rows):
        def of(uuids):
            own = [frame.aggregates[each].metadata.get("ram") for each in uuids]
            return min((float(each) for each in own if each), default=1.5)

        return frame.aggregate_sets.map(rows, of)

    @staticmethod
    def one(request, host):
        return host["free_ram_mb"], min(host["ram"], default=1.5)


class IoWeigher(plugin_contract.Weigher):
    """Few operations; those above a ceiling count alike."""

    maxval = 6

    def key(self, request, frame):
        return "io"

    def raw(self, request, frame, rows):
        return frame.num_io_ops[rows].astype(np.float64)

    def multiplier(self, request, frame, rows):
        return -0.7

    @staticmethod
    def one(request, host):
        return min(host["num_io_ops"], 6), -0.7


class FailuresWeigher(plugin_contract.Weigher):
    """Failures below a floor count alike; some hosts give no number."""

    minval = 1.0

    def key(self, request, frame):
        return None if request.is_rebuild else "failures"

    def raw(self, request, frame, rows):
        return frame.failed_builds[rows] * 1.25

    def multiplier(self, request, frame, rows):
        return -3

    @staticmethod
    def one(request, host):
        if request.is_rebuild:
            return 0, 0.0
        return max(host["failed_builds"] * 1.25, 1.0), -3


FILTERS = (UpFilter, RamFilter, ZoneFilter, SpreadFilter)
WEIGHERS = (RamWeigher, IoWeigher, FailuresWeigher)


def facts(number, *, provider=None, **known):
    values = {
        "free_ram_mb": 4096,
        "has_service": True,
        "last_seen_seconds": 1000.0,
        "provider": provider
        or host_facts.ProviderFacts(
            1, {"VCPU": host_facts.Inventory(16), "MEMORY_MB": host_facts.Inventory(65536)}
        ),
        **known,
    }
    return host_facts.HostFacts(
        **{
            "uuid": f"uuid-{number}",
            "cell": CELL,
            "host": f"Host-{number}",
            "node": f"node-{number}",
            **values,
        }
    )


def request(*, memory_mb=512, vcpus=1, **known):
    values = {
        "cells": frozenset({CELL}),
        "queries": (query(VCPU=vcpus, MEMORY_MB=memory_mb),),
        **known,
    }
    return requests.Request(flavor=requests.Flavor(vcpus=vcpus, memory_mb=memory_mb), **values)


def query(*, required=(), forbidden=(), member_of=(), in_tree=None, **resources):
    return requests.CandidateQuery(
        resources=resources,
        required_traits=frozenset(required),
        forbidden_traits=frozenset(forbidden),
        member_of=tuple(map(frozenset, member_of)),
        in_tree=in_tree,
    )
