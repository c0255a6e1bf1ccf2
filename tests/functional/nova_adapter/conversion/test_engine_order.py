# SPDX-License-Identifier: Apache-2.0
"""Nova's own scheduler manager chooses the hosts, alternates and scores that the engine does.

Filters and weighers are small ones, the same on both sides: what is compared
is all around them, from the hosts a request names to the last alternate.
"""

from __future__ import annotations

import collections
import os
from typing import Any
from unittest import mock

import hypothesis
import testtools
from hypothesis import strategies as st
from nova import context as nova_context
from nova import objects
from nova.scheduler import filters as nova_filters
from nova.scheduler import host_manager
from nova.scheduler import manager as nova_manager
from nova.scheduler import utils as scheduler_utils
from nova.scheduler import weights as nova_weights
from oslo_utils.fixture import uuidsentinel

from nova_nodb_scheduler.model import requests
from tests.unit.scheduling import plain, toys
from tests.unit.scheduling.pipeline import test_engine_property

EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "100"))

objects.register_all()

METADATA = {"a": {"zone": "x"}, "b": {"zone": "y", "ram": "-2.5"}, "c": {"ram": "3"}}
CLOUDS = st.lists(test_engine_property.hosts, min_size=1, max_size=12)


def seen_by_toys(state: Any) -> dict[str, Any]:
    return {
        "free_ram_mb": state.free_ram_mb,
        "num_io_ops": state.num_io_ops,
        "failed_builds": state.failed_builds,
        "instances": set(state.instances),
        **state.rest,
    }


def novas_filter(own: Any) -> Any:
    class Filter(nova_filters.BaseHostFilter):
        run_filter_once_per_request = own.once_per_request
        RUN_ON_REBUILD = own.on_rebuild

        def host_passes(self, state: Any, spec: Any) -> bool:
            return bool(own.one(spec.toy, seen_by_toys(state)))

    return Filter()


def novas_weigher(own: Any) -> Any:
    class Weigher(nova_weights.BaseHostWeigher):
        minval, maxval = own.minval, own.maxval

        def weight_multiplier(self, state: Any) -> float:
            return float(own.one(state.toy_request, seen_by_toys(state))[1])

        def _weigh_object(self, state: Any, spec: Any) -> float:
            state.toy_request = spec.toy
            return float(own.one(spec.toy, seen_by_toys(state))[0])

    return Weigher()


class Manager(nova_manager.SchedulerManager):  # type: ignore[misc]
    """Nova's, on given host states, with toy filters and weighers."""

    def __init__(self, states: list[Any]) -> None:
        self.states = states
        self.scores: list[list[tuple[float, str]]] = []
        self.host_manager = host_manager.HostManager.__new__(host_manager.HostManager)
        self.host_manager.filter_handler = nova_filters.HostFilterHandler()
        self.host_manager.enabled_filters = [novas_filter(own) for own in toys.FILTERS]
        self.host_manager.weight_handler = nova_weights.HostWeightHandler()
        self.host_manager.weighers = [novas_weigher(own) for own in toys.WEIGHERS]
        weigh = self.host_manager.get_weighed_hosts

        def get_weighed_hosts(hosts: Any, spec: Any) -> Any:
            weighed = weigh(hosts, spec)
            self.scores.append([(each.weight, each.obj.rest["uuid"]) for each in weighed])
            return weighed

        self.host_manager.get_weighed_hosts = get_weighed_hosts

    def _get_all_host_states(self, context: Any, spec: Any, summaries: Any) -> Any:
        return iter(self.states)


def state_of(host: dict[str, Any]) -> Any:
    state = host_manager.HostState(host["host"], host["node"], host["cell"])
    state.uuid = host["uuid"] if host["updated"] else None
    state.free_ram_mb = host["free_ram_mb"]
    state.num_io_ops = host["num_io_ops"]
    state.failed_builds = host["failed_builds"]
    state.instances = dict.fromkeys(host["instances"])
    state.rest = {name: host[name] for name in ("uuid", "up", "disabled", "zones", "ram")}
    return state


def spec_of(request: requests.Request) -> Any:
    hints = {}
    if request.is_rebuild:
        hints["_nova_check_type"] = ["rebuild"]
    elif request.check_type:
        hints["_nova_check_type"] = ["True"]
    spec = objects.RequestSpec(
        flavor=objects.Flavor(
            vcpus=request.flavor.vcpus,
            memory_mb=request.flavor.memory_mb,
            root_gb=0,
            ephemeral_gb=0,
            swap=0,
        ),
        ignore_hosts=list(request.ignore_hosts),
        force_hosts=list(request.force_hosts),
        force_nodes=list(request.force_nodes),
        scheduler_hints=hints,
        instance_group=None,
        requested_resources=[],
        pci_requests=None,
        numa_topology=None,
        num_instances=1,
    )
    if request.group is not None:
        spec.instance_group = objects.InstanceGroup(
            hosts=[], members=list(request.group.members), policy="anti-affinity"
        )
    if request.destination is not None:
        spec.requested_destination = objects.Destination(
            host=request.destination.host, node=request.destination.node
        )
    else:
        spec.requested_destination = None
    object.__setattr__(spec, "toy", request)
    return spec


class EngineOrderTest(testtools.TestCase):
    def test_the_managers_choices_are_the_engines(self) -> None:
        #: By how many servers found a host; and where some had alternates.
        self.compared: collections.Counter[int] = collections.Counter()
        self.with_alternates = 0
        self.compare()
        self.assertLess(EXAMPLES // 4, self.compared.total(), self.compared)
        several = sum(self.compared[placed] for placed in (2, 3, 4))
        self.assertTrue(self.compared[0] and self.compared[1] and several, self.compared)
        self.assertTrue(self.with_alternates)

    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=(hypothesis.Phase.generate,),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(CLOUDS, test_engine_property.wanted, st.integers(1, 4))
    def compare(self, cloud: list[dict[str, Any]], asked: dict[str, Any], servers: int) -> None:
        asked = {**asked, "check_type": asked["check_type"] or asked["is_rebuild"]}
        request = test_engine_property.made_request(**asked)
        if request.is_rebuild:
            servers = 1
            # Nova would choose a node that never reported, and fail with a
            # ValueError: a Selection must have its uuid.
            cloud = [{**host, "updated": True} for host in cloud]
        machine = test_engine_property.Histories()
        for name, metadata in METADATA.items():
            machine.metadata[name] = metadata
        machine.instances["cell-1", "Host-0"] = {"i0"}
        machine.each_engine(lambda each: each.set_aggregates(machine.aggregates()))
        for number, host in enumerate(cloud):
            machine.put(number, {**host, "free_ram_mb": host["free_ram_mb"] * 16 + number})
        walked = plain.known(request, machine.walked())
        consumers = [getattr(uuidsentinel, f"server_{number}") for number in range(servers)]
        manager = Manager([state_of(host) for host in walked])
        chosen = self.novas(manager, request, walked, consumers)
        plan = machine.engine.plan(request, servers=servers)
        ours: list[list[str]] | None = []
        taken = []
        for number, consumer in enumerate(consumers):
            found = plan.best(100)
            scores = [score for score, _ in manager.scores[number]] if found else []
            # Among equals Nova's order is another.
            hypothesis.assume(len(set(scores)) == len(scores))
            novas = {uuid: score for score, uuid in manager.scores[number]} if found else {}
            self.assertEqual([novas[each.uuid] for each in found], [each.score for each in found])
            if not found:
                ours = None
                break
            taken.append(found[0])
            plan.take(found[0], consumer)
        if ours is not None:
            others = plan.alternates(taken, 2)
            if len(manager.scores) > servers:
                scores = [score for score, _ in manager.scores[servers]]
                hypothesis.assume(len(set(scores)) == len(scores))
            for first, rest in zip(taken, others, strict=True):
                ours.append([first.uuid, *(each.uuid for each in rest)])
        self.assertEqual(chosen, ours)
        self.compared[0 if ours is None else len(ours)] += 1
        self.with_alternates += any(len(each) > 1 for each in ours or ())

    def novas(
        self,
        manager: Manager,
        request: requests.Request,
        walked: list[dict[str, Any]],
        consumers: list[str],
    ) -> list[list[str]] | None:
        """Return each server's host and alternates by uuid; None for NoValidHost."""
        by_uuid = {host["uuid"]: host for host in walked}
        uuid_of = {(host["host"], host["node"]): host["uuid"] for host in walked}
        offered = None
        if not request.is_rebuild:
            offered = collections.defaultdict(list)
            for host in walked:
                for query in host["candidates"]:
                    offered[host["uuid"]].append(
                        {"allocations": {host["uuid"]: dict(query.resources)}, "mappings": {}}
                    )

        def claim(
            context: Any, client: Any, spec: Any, consumer: str, allocations: Any, **known: Any
        ) -> bool:
            (uuid,) = allocations["allocations"]
            host = by_uuid[uuid]
            if not plain.offers(host["candidates"][0], host):
                return False
            plain.consume(request, host, consumer)
            return True

        with (
            mock.patch.object(scheduler_utils, "claim_resources", claim),
            mock.patch.object(Manager, "placement_client", None),
            mock.patch.object(Manager, "_cleanup_allocations", lambda *args: None),
            mock.patch.object(
                objects.Selection, "from_host_state", lambda state, *args, **known: state
            ),
        ):
            try:
                found = manager._schedule(
                    nova_context.RequestContext(is_admin=True),
                    spec_of(request),
                    consumers,
                    offered,
                    {},
                    "1.36",
                    return_alternates=True,
                )
            except Exception as error:
                if type(error).__name__ != "NoValidHost":
                    raise
                return None
        return [[uuid_of[state.host, state.nodename] for state in each] for each in found]
