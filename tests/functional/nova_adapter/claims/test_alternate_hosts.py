# SPDX-License-Identifier: Apache-2.0
"""Alternates that conductors go on to, judged by a real Placement as they are used."""

from __future__ import annotations

import copy
import json
import threading
import uuid
from typing import Any
from unittest import mock

import nova.conductor.manager
from keystoneauth1 import exceptions as keystone
from nova import context as nova_context
from nova import exception, objects
from nova.conductor.tasks import migrate
from nova.scheduler import request_filter
from nova.scheduler import utils as scheduler_utils
from oslo_db import exception as db_exception

from nova_nodb_scheduler.nova_adapter.claims import alternate_hosts, outside_claims
from nova_nodb_scheduler.nova_adapter.placement.mirror import write_hints
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.decisions import test_memory_decisions

DISABLED = "COMPUTE_STATUS_DISABLED"
MAINTAINED = "CUSTOM_MAINTAINED"
LICENSED = "CUSTOM_LICENSED"
PROJECT = test_memory_decisions.PROJECT
#: Of Nova's, by name.
AGGREGATES = {
    "zone": {"availability_zone": "z"},
    "tenant": {"filter_tenant_id": PROJECT},
    "isolated": {f"trait:{LICENSED}": "required"},
}
_PLAIN = {
    name: getattr(scheduler_utils, name)
    for name in ("claim_resources", "claim_resources_on_destination")
}


def _uuid(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


class AlternatesCase(test_memory_decisions.MemoryDecisionsCase):
    """A scheduler and a conductor of one deployment; ``h1`` is chosen, ``h2`` the alternate."""

    HOSTS = ((cloud.CELL1, "h1", 8, {}), (cloud.CELL1, "h2", 8, {}))

    def setUp(self) -> None:
        self.override("max_attempts", 3, "scheduler")
        super().setUp()
        for name in ("claim_resources", "claim_resources_on_destination"):
            self.addCleanup(setattr, scheduler_utils, name, _PLAIN[name])
        #: Looks of the test's own thread, which the conductor runs in; the mirror is another's.
        self.looks: list[str] = []
        self.is_silent = False
        own, conductor = self.client.get, threading.current_thread()

        def get(url: str, *args: Any, **kwargs: Any) -> Any:
            part = url.rsplit("/", 1)[1]
            if part in ("traits", "aggregates") and threading.current_thread() is conductor:
                self.looks.append(part)
                if self.is_silent:
                    raise keystone.ConnectFailure(url)
            return own(url, *args, **kwargs)

        patcher = mock.patch.object(self.client, "get", get)
        patcher.start()
        self.addCleanup(patcher.stop)
        self.conduct()

    def begin(self) -> None:
        for name in (LICENSED, MAINTAINED):
            self.ask("put", f"/traits/{name}")
        for name, metadata in AGGREGATES.items():
            made = objects.Aggregate(self.admin, name=name, uuid=_uuid(name), metadata=metadata)
            made.create()
        for host in self.nodes:
            self.traits(host, LICENSED)
            self.put(host, "aggregates", _uuid("zone"), _uuid("tenant"))
        self.reporter.flush()
        self.sweep()
        super().begin()

    def conduct(self) -> None:
        """Have a conductor claim in this process as its configuration says."""
        own = self.plugin.checked_alternates(self.plugin.outside_claims())
        assert own is not None
        self.addCleanup(own.stop)
        outside_claims.install(own)
        self.addCleanup(outside_claims.uninstall, own)

    def chosen(self, **fields: Any) -> tuple[str, Any, Any]:
        """Decide a request; return the server, its request as Nova keeps it, and the alternate."""
        server = str(uuid.uuid4())
        spec = self.spec([server], **fields)
        self.beat()
        [[first, *others]] = self.manager.select_destinations(
            self.admin,
            # The scheduler has a copy of its own.
            spec_obj=copy.deepcopy(spec),
            instance_uuids=[server],
            return_objects=True,
            return_alternates=True,
        )
        [alternate] = others
        self.other = alternate.service_host
        self.assertNotEqual(first.service_host, self.other)
        # The build failed there, and nova-compute freed what it had.
        self.client.delete(f"/allocations/{server}")
        self.looks.clear()
        return server, spec, alternate

    def rebuilt(self, server: str, spec: Any, *alternates: Any) -> bool:
        """Have Nova's conductor go on with a build as a compute node asks for; is it sent on?"""
        tasks = nova.conductor.manager.ComputeTaskManager()
        instance = mock.Mock(uuid=server)
        # Behind the claim the instance is looked for, and gone.
        instance.refresh.side_effect = exception.InstanceNotFound(instance_id=server)
        failed = mock.patch.object(tasks, "_cleanup_when_reschedule_fails", autospec=True)
        build = alternate_hosts.remembering(tasks.build_instances)
        with failed as tell:
            build(
                nova_context.RequestContext("user", PROJECT),
                instances=[instance],
                image={},
                filter_properties={"instance_type": spec.flavor},
                admin_password=None,
                injected_files=None,
                requested_networks=None,
                security_groups=None,
                block_device_mapping=[],
                request_spec=spec,
                host_lists=[list(alternates)],
            )
        if tell.called:
            self.assertIsInstance(tell.call_args.args[2], exception.MaxRetriesExceeded)
        return not tell.called

    def moved(self, server: str, spec: Any, *alternates: Any) -> str | None:
        """Have Nova's conductor go on with a move; return the host it is sent to."""
        context = nova_context.RequestContext("user", PROJECT)
        task = migrate.MigrationTask(
            context,
            mock.Mock(uuid=server),
            spec.flavor,
            spec,
            True,
            None,
            None,
            self.client,
            list(alternates),
            None,
        )
        try:
            return str(task._reschedule().service_host)
        except exception.MaxRetriesExceeded:
            return None

    def at(self, server: str) -> list[str]:
        """Return the hosts that Placement has a server on."""
        held = self.ask("get", f"/allocations/{server}")["allocations"]
        return [name for name, node in self.nodes.items() if node.uuid in held]

    def put(self, host: str, part: str, *names: str) -> None:
        """Set a provider's traits or aggregates, as somebody whom nobody hears."""
        url = f"/resource_providers/{self.nodes[host].uuid}"
        generation = self.ask("get", url)["generation"]
        body = {"resource_provider_generation": generation, part: list(names)}
        with mock.patch.object(write_hints, "_observer", None):
            self.ask("put", f"{url}/{part}", body)

    def traits(self, host: str, *names: str) -> None:
        self.put(host, "traits", "OWNER_NOVA", *names)


class AlternatesTest(AlternatesCase):
    def refused(self, *request: Any) -> None:
        """Neither a build nor a move goes on to the alternate."""
        server = request[0]
        self.assertFalse(self.rebuilt(*request))
        self.assertIsNone(self.moved(*request))
        self.assertEqual([], self.at(server))

    def accepted(self, *request: Any) -> None:
        """Both do."""
        server = request[0]
        self.assertTrue(self.rebuilt(*request))
        self.assertEqual([self.other], self.at(server))
        self.client.delete(f"/allocations/{server}")
        self.assertEqual(self.other, self.moved(*request))
        self.assertEqual([self.other], self.at(server))

    def test_a_host_that_was_taken_out_of_service_is_used_no_more(self) -> None:
        request = self.chosen()
        self.assertEqual({"memory": 1}, self.runtime.candidates())
        self.traits(self.other, LICENSED, DISABLED)
        self.refused(*request)
        self.assertEqual(["traits"] * 2, self.looks)

    def test_one_that_meets_the_request_costs_one_look(self) -> None:
        self.accepted(*self.chosen())
        self.assertEqual(["traits"] * 2, self.looks)

    def test_a_request_that_uses_no_alternate_costs_none(self) -> None:
        _servers, [[_first, *others]] = self.select()
        self.assertEqual(1, len(others))
        self.assertEqual({"post allocations": 1}, dict(self.calls))
        self.assertEqual([], self.looks)

    def test_a_trait_that_a_flavor_forbids_rules_it_out(self) -> None:
        request = self.chosen(extra_specs={f"trait:{MAINTAINED}": "forbidden"})
        self.traits(self.other, LICENSED, MAINTAINED)
        self.refused(*request)

    def test_what_a_conductor_of_a_newer_release_asks_of_hosts_rules_nothing_out(self) -> None:
        def requires_what_no_host_says_yet(context: Any, spec: Any) -> bool:
            spec.root_required.add("CUSTOM_NEWER")
            return True

        chosen = self.chosen()
        newer = [*request_filter.ALL_REQUEST_FILTERS, requires_what_no_host_says_yet]
        with mock.patch.object(request_filter, "ALL_REQUEST_FILTERS", newer):
            self.assertTrue(self.rebuilt(*chosen))

    def test_so_does_one_that_a_flavor_requires_and_that_went(self) -> None:
        request = self.chosen(extra_specs={f"trait:{LICENSED}": "required"})
        self.traits(self.other)
        self.refused(*request)

    def test_and_one_that_an_image_requires(self) -> None:
        request = self.chosen(image=_image())
        self.accepted(*request)
        self.client.delete(f"/allocations/{request[0]}")
        self.traits(self.other)
        self.refused(*request)

    def test_a_trait_that_nobody_asks_about_rules_nothing_out(self) -> None:
        request = self.chosen()
        self.traits(self.other, MAINTAINED)
        self.accepted(*request)

    def test_a_host_that_left_the_zone_is_used_no_more(self) -> None:
        request = self.chosen(availability_zone="z")
        self.accepted(*request)
        self.assertEqual(["traits", "aggregates"] * 2, self.looks)
        self.client.delete(f"/allocations/{request[0]}")
        self.put(self.other, "aggregates", _uuid("tenant"))
        self.refused(*request)

    def test_nor_one_that_left_the_tenants_aggregate(self) -> None:
        self.override("limit_tenants_to_placement_aggregate", True, "scheduler")
        request = self.chosen()
        self.put(self.other, "aggregates", _uuid("zone"))
        self.refused(*request)

    def test_nor_one_that_others_were_isolated_to(self) -> None:
        self.override("enable_isolated_aggregate_filtering", True, "scheduler")
        request = self.chosen()
        self.put(self.other, "aggregates", _uuid("isolated"))
        self.refused(*request)

    def test_what_an_image_requires_is_known_where_hosts_are_isolated(self) -> None:
        # The request that Nova claims for a build with has lost it.
        self.override("enable_isolated_aggregate_filtering", True, "scheduler")
        request = self.chosen(image=_image())
        self.put(self.other, "aggregates", _uuid("isolated"))
        self.accepted(*request)

    def test_nothing_is_isolated_where_not_all_of_a_request_is_known(self) -> None:
        self.override("enable_isolated_aggregate_filtering", True, "scheduler")
        server, spec, alternate = self.chosen()
        self.put(self.other, "aggregates", _uuid("isolated"))
        request = json.loads(alternate.allocation_request)
        request["mappings"]["-port"] = request["mappings"][""]
        alternate.allocation_request = json.dumps(request)
        self.accepted(server, spec, alternate)

    def test_where_placement_tells_nothing_novas_claim_decides(self) -> None:
        request = self.chosen()
        self.traits(self.other, DISABLED)
        self.is_silent = True
        self.accepted(*request)

    def test_where_aggregates_cannot_be_read_traits_are_judged(self) -> None:
        request = self.chosen(availability_zone="z")
        self.put(self.other, "aggregates")
        # As for a conductor of a cell.
        unread = mock.patch.object(
            objects.AggregateList,
            "get_by_metadata",
            side_effect=db_exception.CantStartEngineError,
            autospec=True,
        )
        with unread:
            self.accepted(*request)
            self.client.delete(f"/allocations/{request[0]}")
            self.traits(self.other, DISABLED)
            self.refused(*request)

    def test_the_next_one_is_tried(self) -> None:
        server, spec, alternate = self.chosen()
        out = copy.deepcopy(alternate)
        [first] = [name for name in self.nodes if name != self.other]
        out.service_host = first
        out.allocation_request = alternate.allocation_request.replace(
            self.nodes[self.other].uuid, self.nodes[first].uuid
        )
        self.traits(first, DISABLED)
        self.assertEqual(self.other, self.moved(server, spec, out, alternate))
        self.assertEqual(["traits"] * 2, self.looks)

    def test_a_build_without_a_request_is_not_judged(self) -> None:
        server, spec, alternate = self.chosen()
        self.traits(self.other, DISABLED)
        spec.instance_uuid = str(uuid.uuid4())
        self.assertTrue(self.rebuilt(server, spec, alternate))

    def test_it_is_judged_where_nobody_claims_nor_verifies(self) -> None:
        self.override("claims", "off", "nodb_scheduler")
        self.override("verify_allocations", "never", "nodb_scheduler")
        self.assertIsNone(self.plugin.outside_claims())
        self.conduct()
        request = self.chosen()
        self.accepted(*request)
        self.client.delete(f"/allocations/{request[0]}")
        self.traits(self.other, DISABLED)
        self.refused(*request)

    def test_it_is_as_in_nova_where_placement_names_the_alternates(self) -> None:
        self.override("candidates", "placement", "nodb_scheduler")
        self.assertIsNone(self.plugin.checked_alternates(None))


class AllocationsTest(AlternatesCase):
    """Of more than one provider, or of another than a plain node's."""

    def goes(self, spec: Any, given: dict[str, dict[str, int]], **mappings: list[str]) -> bool:
        named = {suffix.replace("unsuffixed", ""): each for suffix, each in mappings.items()}
        request = {
            "allocations": {name: {"resources": part} for name, part in given.items()},
            "mappings": named,
        }
        return bool(
            scheduler_utils.claim_resources(
                self.admin, self.client, spec, str(uuid.uuid4()), request, "1.36"
            )
        )

    def device(self, host: str, *traits: str) -> str:
        name, url = str(uuid.uuid4()), "/resource_providers"
        parent = self.nodes[host].uuid
        self.ask("post", url, {"name": name, "uuid": name, "parent_provider_uuid": parent})
        self.inventories(name, VGPU=4)
        body = {"resource_provider_generation": 1, "traits": list(traits)}
        self.ask("put", f"{url}/{name}/traits", body)
        return name

    def test_each_group_is_judged_by_its_own_providers(self) -> None:
        node, device = self.nodes["h1"].uuid, self.device("h1", MAINTAINED)
        given = {node: {"VCPU": 1}, device: {"VGPU": 1}}
        for specs, goes, looks in (
            ({"trait1:CUSTOM_MAINTAINED": "required"}, True, 2),
            ({"trait1:CUSTOM_MAINTAINED": "forbidden"}, False, 2),
            ({"trait1:CUSTOM_LICENSED": "required"}, False, 2),
            ({"trait:CUSTOM_MAINTAINED": "forbidden"}, True, 1),
            ({"trait:CUSTOM_LICENSED": "required"}, True, 1),
        ):
            self.looks.clear()
            spec = self.spec(["s"], extra_specs={"resources1:VGPU": "1", **specs})
            self.assertEqual(
                goes, self.goes(spec, given, unsuffixed=[node], **{"1": [device]}), specs
            )
            self.assertEqual(["traits"] * looks, self.looks)

    def test_providers_of_one_group_are_judged_together(self) -> None:
        node, device = self.nodes["h1"].uuid, self.device("h1", MAINTAINED)
        given, both = {node: {"VCPU": 1}, device: {"VGPU": 1}}, [node, device]
        wanted = {"trait:CUSTOM_MAINTAINED": "required", "trait:CUSTOM_LICENSED": "required"}
        spec = self.spec(["s"], extra_specs={"resources:VGPU": "1", **wanted})
        self.assertTrue(self.goes(spec, given, unsuffixed=both))
        spec = self.spec(["s"], extra_specs={"trait:CUSTOM_MAINTAINED": "forbidden"})
        self.assertFalse(self.goes(spec, given, unsuffixed=both))

    def test_a_bare_metal_node_is_judged_and_a_device_alone_is_not(self) -> None:
        node = self.nodes["h1"].uuid
        self.ask("put", "/resource_classes/CUSTOM_METAL")
        self.inventories(node, CUSTOM_METAL=1)
        self.traits("h1", DISABLED)
        spec = self.spec(["s"])
        self.assertFalse(self.goes(spec, {node: {"CUSTOM_METAL": 1}}, unsuffixed=[node]))
        device = self.device("h1", DISABLED)
        self.assertTrue(self.goes(spec, {device: {"VGPU": 1}}, unsuffixed=[device]))

    def test_what_is_asked_of_pinned_cpus_is_not_of_shared_ones_that_stand_for_them(self) -> None:
        node = self.nodes["h1"].uuid
        self.inventories(node, VCPU=8, PCPU=8)
        specs = {"hw:cpu_policy": "dedicated", "hw:cpu_thread_policy": "require"}
        spec = self.spec(["s"], extra_specs=specs)
        self.assertFalse(self.goes(spec, {node: {"PCPU": 1}}, unsuffixed=[node]))
        self.assertTrue(self.goes(spec, {node: {"VCPU": 1}}, unsuffixed=[node]))

    def test_a_request_is_left_as_it_was(self) -> None:
        node = self.nodes["h1"].uuid
        spec = self.spec(["s"], availability_zone="z")
        before = spec.obj_to_primitive()
        self.assertTrue(self.goes(spec, {node: {"VCPU": 1}}, unsuffixed=[node]))
        self.assertEqual(before, spec.obj_to_primitive())


def _image() -> Any:
    return objects.ImageMeta(properties=objects.ImageMetaProps(traits_required=[LICENSED]))
