# SPDX-License-Identifier: Apache-2.0
"""Measures requests for NUMA cells and PCI devices: the plugin, and Nova's own code.

Both in one process over the same hosts, without Placement, databases or messages. Nova is given
the hosts that Placement would offer, with rows that were read already, and runs no filter but the
two; the plugin runs all that Nova enables by default. Between two requests some hosts report.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import random
import time
import types
from collections.abc import Collection, Sequence
from typing import Any

import nova.conf
import numpy as np
from nova import objects
from nova.scheduler import filters, host_manager, weights
from nova.scheduler.filters import numa_topology_filter, pci_passthrough_filter

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.nova_adapter.conversion import nova_rows, request_conversion
from nova_nodb_scheduler.nova_adapter.decisions import host_objects
from nova_nodb_scheduler.nova_adapter.reads import host_manager as host_manager_module
from nova_nodb_scheduler.scheduling.frame import host_frame
from nova_nodb_scheduler.scheduling.pipeline import candidates
from tools.bench import figures
from tools.bench.clouds import core_hosts, fit_hosts

#: How full the made hosts are.
FULL = (0.6, 0.95)

_DECISIONS = 20
_REPORTS_BETWEEN = 8


def measure(hosts: int) -> list[dict[str, Any]]:
    """Measure one size in a process of its own; a result for each kind at each fullness."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measure, hosts).result()


def _measure(count: int) -> list[dict[str, Any]]:
    objects.register_all()
    return [
        result
        for full in FULL
        for result in _Trial(fit_hosts.Hosts(count, full)).run(count, full, fit_hosts.KINDS)
    ]


class _Trial:
    """Requests over one set of hosts."""

    def __init__(self, hosts: fit_hosts.Hosts) -> None:
        nova.conf.CONF([], project="nova", default_config_files=[])
        self._hosts = hosts
        self._uuids = list(hosts.names)
        self._chance = random.Random(7)
        self._filters = [
            numa_topology_filter.NUMATopologyFilter(),
            pci_passthrough_filter.PciPassthroughFilter(),
        ]
        self._filter_handler = filters.HostFilterHandler()
        self._weight_handler = weights.HostWeightHandler()
        self._weighers = [each() for each in weights.all_weighers()]
        self._asked = 0
        self._engine = core_hosts.make_engine(
            host_frame.HostFrame(attribute=hosts.attribute),
            [type(each).__name__ for each in self._filters],
        )
        for uuid in self._uuids:
            self._engine.put(hosts.facts(uuid))
        self._engine.tick(86400.0)

    def run(self, count: int, full: float, kinds: Sequence[fit_hosts.Kind]) -> list[dict[str, Any]]:
        """Measure each kind of request."""
        return [
            {"hosts": count, "full": full, "kind": kind.name, **self._run(kind)} for kind in kinds
        ]

    def _run(self, kind: fit_hosts.Kind) -> dict[str, Any]:
        walls, cpus, asked = [], [], []
        for _ in range(_DECISIONS + 1):
            for uuid in self._chance.sample(self._uuids, min(_REPORTS_BETWEEN, len(self._uuids))):
                self._engine.put(self._hosts.change(uuid))
            self._asked = 0
            wall, cpu = time.perf_counter(), time.process_time()
            choices = self._plan(kind)
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
            asked.append(self._asked)
        stock_cpu, offered, weighed = self._stock(kind)
        top = {each.obj.uuid for each in weighed if each.weight == weighed[0].weight}
        return {
            "offered": offered,
            "passed": len(weighed),
            "asked": float(np.median(asked[1:])),
            "first_wall": walls[0],
            "wall_p50": figures.percentile(walls[1:], 50),
            "wall_p99": figures.percentile(walls[1:], 99),
            "cpu_p50": figures.percentile(cpus[1:], 50),
            "stock_cpu": stock_cpu,
            "is_novas": bool(choices) == bool(top) and (not top or choices[0].uuid in top),
        }

    def _plan(self, kind: fit_hosts.Kind) -> Any:
        spec = fit_hosts.spec(kind)
        request = self._request(spec)
        found = host_objects.NovaHostObjects(
            types.SimpleNamespace(enabled_filters=self._filters, weighers=self._weighers),
            spec,
            self._states,
            lambda uuid: self._engine.allocation_requests(request, uuid),
        )
        return self._engine.plan(request, found).best(1)

    def _request(self, spec: Any) -> Any:
        cells = spec.numa_topology.cells if spec.numa_topology else ()
        pinned = sum(len(cell.pcpuset) for cell in cells)
        shared = spec.flavor.vcpus - pinned
        resources = {"VCPU": shared, "PCPU": pinned, "MEMORY_MB": spec.flavor.memory_mb}
        query = requests.CandidateQuery(
            resources={name: amount for name, amount in resources.items() if amount}
        )
        return request_conversion.request(spec, (query,), [core_hosts.CELL])

    def _states(self, uuids: Collection[str]) -> dict[str, Any]:
        """Make host states as the plugin's host manager does."""
        self._asked += len(uuids)
        found = {}
        for uuid in uuids:
            record: Any = types.SimpleNamespace(key=uuid, state=self._hosts.state(uuid))
            node, text = nova_rows.compute_node(None, record)
            node.nodb_numa_topology = text
            found[uuid] = self._updated(host_manager_module.HostState, node)
        return found

    def _stock(self, kind: fit_hosts.Kind) -> tuple[float, int, list[Any]]:
        """Return the CPU seconds of Nova's own code, how many hosts it was given, and what is left.

        As Nova's manager does it: host states of all that Placement offers, filters, weighers.
        """
        spec = fit_hosts.spec(kind)
        request = self._request(spec)
        offered = candidates.Candidates(request.queries)
        frame = self._engine.frame
        mask = offered.mask(frame, slice(None)) & frame.alive
        nodes = []
        for row in np.flatnonzero(mask).tolist():
            uuid = frame.place(row).uuid
            record: Any = types.SimpleNamespace(key=uuid, state=self._hosts.state(uuid))
            node, text = nova_rows.compute_node(None, record)
            node.numa_topology = text
            nodes.append((node, list(offered.allocation_requests(frame, row))))
        began = time.process_time()
        states = []
        for node, allocation_requests in nodes:
            state = self._updated(host_manager.HostState, node)
            state.allocation_candidates = allocation_requests
            states.append(state)
        passed = self._filter_handler.get_filtered_objects(self._filters, states, spec)
        weighed = self._weight_handler.get_weighed_objects(self._weighers, passed or [], spec)
        return time.process_time() - began, len(nodes), list(weighed)

    @staticmethod
    def _updated(kind: type[Any], node: Any) -> Any:
        state = kind(node.host, node.hypervisor_hostname, core_hosts.CELL)
        state.update(compute=node, service={}, aggregates=[], inst_dict={})
        return state
