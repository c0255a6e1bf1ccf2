# SPDX-License-Identifier: Apache-2.0
"""select_destinations decided from memory, with a real Placement in this process.

Nova's code above the choice, reporters, feed, mirror and claims are the real
ones. What goes to Placement is counted.
"""

from __future__ import annotations

import collections
import uuid
from typing import Any
from unittest import mock

import fixtures
from nova import exception, objects
from nova.scheduler.client import report
from nova.tests.functional import fixtures as nova_fixtures
from placement import db_api as placement_db

from nova_nodb_scheduler.nova_adapter import manager
from nova_nodb_scheduler.nova_adapter.reads import database_reads
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.testing import patience
from tests.functional.nova_adapter import cloud, mirror_cloud
from tests.functional.nova_adapter.placement import prepared_placement

PROJECT = str(uuid.uuid4())
WAIT_SECONDS = 20.0


class MemoryDecisionsCase(cloud.CloudCase):
    """A scheduler manager over some hosts, and all that it stands on."""

    #: Cell, name, VCPUs, and what else the compute node says.
    HOSTS: tuple[tuple[str, str, int, dict[str, Any]], ...] = (
        (cloud.CELL1, "h1", 4, {}),
        (cloud.CELL2, "h2", 2, {}),
    )
    BEAT_SECONDS = 0.2
    #: Strangers' claims in these tests stand for hosts that are full.
    CLAIM_WAIT_SECONDS = 0.0

    def setUp(self) -> None:
        super().setUp()
        self.override("track_instance_changes", False, "filter_scheduler")
        self.override("beat_interval_seconds", self.BEAT_SECONDS, "nodb_scheduler")
        self.override("claim_wait_seconds", self.CLAIM_WAIT_SECONDS, "nodb_scheduler")
        self.use(prepared_placement.PreparedPlacement())
        self.client = self.placement_client()
        self.use(fixtures.MonkeyPatch("nova.scheduler.client.report.PLACEMENTCLIENT", None))
        self.use(
            fixtures.MonkeyPatch(
                "nova.scheduler.client.report.report_client_singleton", lambda: self.client
            )
        )
        for module, name, own, _ours in database_reads._REPLACED:
            self.addCleanup(setattr, module, name, own)
        self.reporter = self.report("*", *cloud.CELLS)
        self.beat()
        self.nodes: dict[str, Any] = {}
        self.services: dict[str, Any] = {}
        for cell, host, vcpus, more in self.HOSTS:
            node, service = self.host(cell, host, cpu_allocation_ratio=1.0, vcpus=vcpus, **more)
            self.nodes[host] = node
            self.services[host] = service
            self.provider(node.uuid, VCPU=vcpus, MEMORY_MB=16384, DISK_GB=100)
        self.reporter.flush()
        self.sweep()
        self.begin()
        self.calls: collections.Counter[str] = collections.Counter()
        for name in ("get", "put", "post", "delete"):
            self.count(name)

    def placement_client(self) -> report.SchedulerReportClient:
        """Start Placement in this process, and return what speaks to it."""
        self.use(nova_fixtures.PlacementFixture())
        return report.SchedulerReportClient(adapter=mirror_cloud.NoAdapter())

    def begin(self) -> None:
        """Start the scheduler and wait until it decides from memory."""
        self.manager = manager.SchedulerManager(host="scheduler-1")
        self.runtime = self.manager.nodb
        self.runtime._make_server = None
        self.runtime.start()
        self.addCleanup(self.runtime.stop)
        self.settle()

    def use(self, fixture: Any) -> None:
        fixture.setUp()
        self.addCleanup(fixture.cleanUp)

    def count(self, name: str) -> None:
        """Count the report client's calls of one kind, but the mirror keeper's own."""
        own = getattr(self.client, name)

        def counted(url: str, *args: Any, **kwargs: Any) -> Any:
            if not url.startswith("/resource_providers"):
                self.calls[f"{name} {url.split('?')[0].split('/')[1]}"] += 1
            return own(url, *args, **kwargs)

        patcher = mock.patch.object(self.client, name, counted)
        patcher.start()
        self.addCleanup(patcher.stop)

    def beat(self) -> None:
        self.reporter._last_beat = float("-inf")
        self.reporter._turn()

    def provider(self, key: str, **totals: int) -> None:
        # Nova 34 looks only at roots that nova-compute marked as its own.
        prepared_placement.make_provider(key, totals, "OWNER_NOVA")

    def inventories(self, key: str, **totals: int) -> None:
        generation = self.ask("get", f"/resource_providers/{key}")["generation"]
        self.ask(
            "put",
            f"/resource_providers/{key}/inventories",
            {
                "resource_provider_generation": generation,
                "inventories": {name: {"total": total} for name, total in totals.items()},
            },
        )

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        arguments = {} if method == "get" else {"data": body}
        done = getattr(self.client, method)(path, **arguments, version="1.36")
        self.assertLess(done.status_code, 300, done.text)
        return done.json() if done.content else None

    def follow(self) -> None:
        """Wait until the scheduler has all that was written, and proves what it can."""
        head = self.synchronizer.head().version
        self.assertTrue(self.runtime.replicator.wait_until(head, WAIT_SECONDS))
        self.settle()

    def settle(self) -> None:
        """Wait until cells and mirror are proved."""
        patience.wait_until(lambda: not self.unproved(), WAIT_SECONDS, self.unproved, 0.05)

    def unproved(self) -> Any:
        """Return what of cells and mirror is not proved; empty if all is."""
        self.beat()
        view = self.runtime.views.open()
        mirror = self.runtime.decisions.placement_mirror
        return [each for each in (view.proof.missing, mirror.refusal()) if each]

    def spec(self, uuids: list[str], vcpus: int = 1, **fields: Any) -> Any:
        """Return a request as Nova's conductor sends it."""
        spec = objects.RequestSpec(
            flavor=objects.Flavor(
                vcpus=vcpus,
                memory_mb=512,
                root_gb=1,
                ephemeral_gb=0,
                swap=0,
                id=1,
                flavorid="f",
                name="f",
                rxtx_factor=1.0,
                vcpu_weight=0,
                disabled=False,
                is_public=True,
                extra_specs=fields.pop("extra_specs", {}),
            ),
            image=objects.ImageMeta(properties=objects.ImageMetaProps()),
            project_id=PROJECT,
            user_id=PROJECT,
            num_instances=len(uuids),
            instance_uuid=uuids[0],
            availability_zone=None,
            ignore_hosts=None,
            force_hosts=None,
            force_nodes=None,
            requested_destination=None,
            retry=None,
            limits=objects.SchedulerLimits(),
            instance_group=None,
            scheduler_hints={},
            numa_topology=None,
            pci_requests=objects.InstancePCIRequests(requests=[]),
            security_groups=objects.SecurityGroupList(objects=[]),
            network_metadata=objects.NetworkMetadata(physnets=set(), tunneled=False),
            requested_resources=[],
            request_level_params=objects.RequestLevelParams(),
            requested_networks=objects.NetworkRequestList(objects=[]),
            is_bfv=False,
        )
        for name, value in fields.items():
            setattr(spec, name, value)
        return spec

    def select(self, servers: int = 1, vcpus: int = 1, **fields: Any) -> Any:
        uuids = [str(uuid.uuid4()) for _ in range(servers)]
        spec = self.spec(uuids, vcpus, **fields)
        self.beat()
        self.calls.clear()
        try:
            chosen = self.manager.select_destinations(
                self.admin,
                spec_obj=spec,
                instance_uuids=uuids,
                return_objects=True,
                return_alternates=True,
            )
        except manager.messaging.ExpectedException as wrapped:
            raise wrapped.exc_info[1] from None
        return uuids, chosen

    def used(self, host: str) -> dict[str, int]:
        found: dict[str, int] = self.ask(
            "get", f"/resource_providers/{self.nodes[host].uuid}/usages"
        )["usages"]
        return found


class MemoryDecisionsTest(MemoryDecisionsCase):
    def test_a_plain_request_costs_one_call_to_placement(self):
        with self.statements() as statements:
            uuids, chosen = self.select()
        self.assertEqual({"post allocations": 1}, dict(self.calls))
        self.assertEqual([], statements.seen)
        self.assertEqual({"memory": 1}, self.runtime.candidates())
        self.assertEqual({}, self.runtime.fallbacks())
        selection = chosen[0][0]
        self.assertIn(selection.service_host, self.nodes)
        self.assertEqual(self.nodes[selection.service_host].uuid, selection.compute_node_uuid)
        self.assertEqual(1, self.used(selection.service_host)["VCPU"])
        allocations = self.ask("get", f"/allocations/{uuids[0]}")
        self.assertEqual(PROJECT, allocations["project_id"])

    def test_what_novas_own_way_reads_of_its_databases_is_noticed(self):
        with self.statements() as statements:
            self.runtime.decisions._mirror.mirror._bound_seconds = -1.0
            self.runtime.judge._feed_alive = lambda bound: False
            self.select()
        self.assertTrue(statements.of("compute_nodes"))
        self.assertTrue(statements.of("services"))
        self.assertEqual([], statements.of("allocations"))

    def test_servers_of_one_request_are_allocated_in_one_call(self):
        _uuids, chosen = self.select(servers=5)
        self.assertEqual({"post allocations": 1}, dict(self.calls))
        by_host = collections.Counter(each[0].service_host for each in chosen)
        self.assertEqual(5, sum(by_host.values()))
        for host, servers in by_host.items():
            self.assertEqual(servers, self.used(host)["VCPU"])

    def test_what_was_chosen_is_seen_by_the_next_request_at_once(self):
        for _ in range(6):
            self.select()
        self.assertEqual((4, 2), (self.used("h1")["VCPU"], self.used("h2")["VCPU"]))
        with self.assertRaises(exception.NoValidHost):
            self.select()
        # Proved by one listing, which the keeper's own are counted with; and where no
        # record shows a server yet, its claim is asked for.
        self.assertLessEqual(self.calls.keys(), {"get allocations"})
        self.assertLessEqual(self.calls["get allocations"], 6)

    def test_more_servers_than_there_is_room_for_leave_nothing_behind(self):
        with self.assertRaises(exception.NoValidHost):
            self.select(servers=7)
        self.assertEqual(0, self.used("h1")["VCPU"] + self.used("h2")["VCPU"])
        self.select(servers=6)

    def test_a_host_that_somebody_else_filled_is_passed_over(self):
        """The mirror does not know yet: Placement refuses, the next host is taken."""
        first = self.select()[1][0][0].service_host
        other = "h2" if first == "h1" else "h1"
        stranger = str(uuid.uuid4())
        free = {"h1": 4, "h2": 2}[first] - 1
        own = report.SchedulerReportClient.put
        own(
            self.client,
            f"/allocations/{stranger}",
            {
                "allocations": {self.nodes[first].uuid: {"resources": {"VCPU": free}}},
                "project_id": PROJECT,
                "user_id": PROJECT,
                "consumer_generation": None,
            },
            version="1.36",
        )
        for _ in range(2):
            self.assertEqual(other, self.select()[1][0][0].service_host)
        self.assertEqual({"memory": 3}, self.runtime.candidates())

    def test_a_refusal_is_worded_as_novas_own(self):
        """It names no hosts where Placement has no candidate: what users see in the fault."""
        words = []
        for fields in ({"vcpus": 5}, {"ignore_hosts": ["h1", "h2"]}):
            with self.assertRaises(exception.NoValidHost) as refused:
                self.select(**fields)
            words.append(str(refused.exception))
        self.assertEqual(
            [
                "No valid host was found. ",
                "No valid host was found. There are not enough hosts available.",
            ],
            words,
        )

    def test_room_that_was_freed_unseen_is_found_before_no_valid_host(self):
        self.select(servers=6)
        with self.assertRaises(exception.NoValidHost):
            self.select()
        self.inventories(self.nodes["h2"].uuid, VCPU=3, MEMORY_MB=16384, DISK_GB=100)
        self.assertEqual("h2", self.select()[1][0][0].service_host)

    def test_nobody_waits_for_a_request_that_proves_that_there_is_no_room(self):
        decisions = self.runtime.decisions
        decider, batcher = decisions.decider, decisions._writer._batcher
        coming: list[tuple[str, int]] = []
        chosen, proved = decisions.engine.plan, decider._proved_full

        def plan(*args, **kwargs):
            coming.append(("chosen", batcher._coming))
            return chosen(*args, **kwargs)

        def proved_full(*args):
            coming.append(("proved", batcher._coming))
            return proved(*args)

        self.select(servers=6)
        with (
            mock.patch.object(decisions.engine, "plan", plan),
            mock.patch.object(decider, "_proved_full", proved_full),
            self.assertRaises(exception.NoValidHost),
        ):
            self.select()
        self.assertEqual({("chosen", 1), ("proved", 0)}, set(coming))

    def test_a_request_with_two_groups_is_asked_of_placement(self):
        with self.assertRaises(exception.NoValidHost):
            self.select(extra_specs={"resources1:CUSTOM_FPGA": "1"})
        self.assertEqual(1, self.calls["get allocation_candidates"])
        self.assertEqual({"more than one group": 1}, self.runtime.candidates())

    def break_provider(self, key: str) -> None:
        """Have Placement tell of a provider what does not fit the model, and the mirror know it."""
        self.inventories(key, VCPU=4, MEMORY_MB=16384, DISK_GB=100, PCPU=7)
        with placement_db.get_placement_engine().begin() as connection:
            own = f"(SELECT id FROM resource_providers WHERE uuid = '{key}')"
            connection.exec_driver_sql(
                f"UPDATE inventories SET total = -1 WHERE resource_provider_id = {own} "
                "AND total = 7"
            )
            connection.exec_driver_sql(
                f"UPDATE resource_providers SET generation = generation + 1 WHERE uuid = '{key}'"
            )
        self.runtime.decisions.mirror_keeper.look_at([key])
        patience.wait_until(
            lambda: self.mirrored(key).get("broken"), WAIT_SECONDS, lambda: self.mirrored(key), 0.05
        )

    def mirrored(self, key: str) -> Any:
        record = self.runtime.store.snapshot().namespace(known_namespaces.PROVIDERS.name).get(key)
        return record.state

    def test_a_broken_provider_is_passed_over_until_nobody_else_has_room(self):
        self.break_provider(self.nodes["h1"].uuid)

        hosts = [self.select()[1][0][0].service_host for _ in range(2)]
        self.assertEqual(["h2", "h2"], hosts)
        self.assertEqual({"memory": 2}, self.runtime.candidates())

        _uuids, chosen = self.select()
        self.assertEqual("h1", chosen[0][0].service_host)
        self.assertEqual(1, self.calls["get allocation_candidates"])
        self.assertEqual({"memory": 2, "broken provider": 1}, self.runtime.candidates())

    def test_a_fault_of_the_engine_sends_the_request_to_placement(self):
        with mock.patch.object(
            self.runtime.decisions.engine, "plan", autospec=True, side_effect=ZeroDivisionError
        ):
            _uuids, chosen = self.select()
        self.assertIn(chosen[0][0].service_host, self.nodes)
        self.assertEqual({"fault of the plugin": 1}, self.runtime.candidates())
        self.assertEqual(1, self.calls["get allocation_candidates"])

    def test_an_old_mirror_is_not_used(self):
        self.runtime.decisions._mirror.mirror._bound_seconds = -1.0
        self.select()
        self.assertEqual({"mirror too old": 1}, self.runtime.candidates())
        self.assertEqual(1, self.calls["get allocation_candidates"])
