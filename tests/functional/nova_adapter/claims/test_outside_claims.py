# SPDX-License-Identifier: Apache-2.0
"""Claims for what conductors allocate by themselves, with Nova's functions and a real Placement."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any
from unittest import mock

from keystoneauth1 import exceptions as keystone
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.scheduler import utils as scheduler_utils
from oslo_db import exception as db_exception

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import namespaces as namespaces_model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.claims import outside_claims, unjudged_claims
from nova_nodb_scheduler.nova_adapter.placement.allocations import verification
from nova_nodb_scheduler.nova_adapter.placement.mirror import placement_reader, tree_publisher
from nova_nodb_scheduler.scheduling.namespaces import claim_facts, known_namespaces
from nova_nodb_scheduler.synchronizer.claims import claim_rules, ledger_claimer
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.records import publisher as publisher_module
from nova_nodb_scheduler.wire import codec
from tests.functional.nova_adapter import cloud, placement_cloud
from tests.functional.nova_adapter.conversion import test_numa_pci_claims
from tests.unit.scheduling import hosts as rows

PLAIN = scheduler_utils.claim_resources
ON_DESTINATION = scheduler_utils.claim_resources_on_destination

#: What Nova's object of a node needs besides.
_READABLE = {"mapped": 1, "service_id": None, "disk_allocation_ratio": 1.0}


class _NotMigrated(memory.MemorySynchronizer):
    """A back end whose schema is the former release's."""

    def open(self) -> None:
        raise errors.SchemaMismatch("sql at db:3306", "expand_0002", "expand_0003")


class OutsideClaimsTest(placement_cloud.PlacementCase):
    """Conductors over one back end; two nodes with room for one more server each."""

    def setUp(self) -> None:
        super().setUp()
        # Nova's server groups are read from there.
        cloud.clear(cloud.databases()["api"])
        self.hub = memory.MemoryHub()
        self.client = memory.MemorySynchronizer(None, self.hub)
        self.client.open()
        self.context = nova_context.RequestContext("user", "project", is_admin=True)
        self.one, self.two = self._node("h1"), self._node("h2")
        self._publish(known_namespaces.CELLS, rows.CELL, {})
        self.outside = self._conductor("conductor")
        outside_claims.install(self.outside)
        self.addCleanup(setattr, scheduler_utils, "claim_resources", PLAIN)
        self.addCleanup(setattr, scheduler_utils, "claim_resources_on_destination", ON_DESTINATION)
        self.addCleanup(outside_claims.uninstall, self.outside)

    def _conductor(self, name: str) -> outside_claims.OutsideClaims:
        client = memory.MemorySynchronizer(None, self.hub)
        return outside_claims.OutsideClaims(client, name, 60.0, 1.0)

    def _node(self, host: str, vcpus: int = 1, **row: Any) -> str:
        node = self.provider(VCPU=vcpus)
        self._publish(known_namespaces.COMPUTE_NODES, node, rows.node(node, host, **row))
        state = rows.provider(inventories={"VCPU": rows.inventory(vcpus)}, allocations={})
        self._publish(known_namespaces.PROVIDERS, node, state)
        return node

    def _publish(self, namespace: namespaces_model.Namespace, key: str, state: Any) -> None:
        name = records.RecordKey(namespace.name, key)
        found = self.client.read([name]).get(name)
        payload = codec.encode(state, namespace.schema)
        write = records.Write(name, found.revision if found else 0, payload)
        self.assertTrue(self.client.write([write])[0].won)

    def _held(self, node: str) -> dict[str, model.HeldClaim]:
        key = claim_rules.host_key(node)
        record = self.client.read([key]).get(key)
        if record is None:
            return {}
        state = codec.decode(record.payload).state
        return dict(model.ClaimRecord.from_state(node, state, record.version).claims)

    def _spec(self, **fields: Any) -> Any:
        flavor = objects.Flavor(
            vcpus=1, memory_mb=64, root_gb=1, ephemeral_gb=0, swap=0, extra_specs={}, name="f"
        )
        return objects.RequestSpec(
            self.context, flavor=flavor, project_id="project", user_id="user", **fields
        )

    def _go(self, consumer: str, node: str, **fields: Any) -> bool:
        request = {"allocations": {node: {"resources": {"VCPU": 1}}}}
        return bool(
            scheduler_utils.claim_resources(
                self.context, self.admin, self._spec(**fields), consumer, request, "1.36"
            )
        )

    def test_an_alternate_is_claimed_and_confirmed(self) -> None:
        consumer = str(uuid.uuid4())
        self.assertTrue(self._go(consumer, self.one))
        self.assertEqual({consumer: {"VCPU": 1}}, self.consumers(self.one))
        held = self._held(self.one)[consumer]
        self.assertIs(model.ClaimState.CONFIRMED, held.state)
        self.assertEqual((1, 64, 1, 1), (held.node.vcpus, held.node.memory_mb, 1, 1))

    def test_what_is_taken_back_goes_with_what_shared_providers_gave(self) -> None:
        consumer, shared = str(uuid.uuid4()), self.provider(DISK_GB=10)
        amounts = {self.one: {"VCPU": 1}, shared: {"DISK_GB": 1}}
        request = {"allocations": {name: {"resources": part} for name, part in amounts.items()}}
        with (
            self.assertRaises(RuntimeError),
            outside_claims.answered_together(self.outside),
        ):
            self.assertTrue(
                scheduler_utils.claim_resources(
                    self.context, self.admin, self._spec(), consumer, request, "1.36"
                )
            )
            self.assertEqual({consumer: {"DISK_GB": 1}}, self.consumers(shared))
            raise RuntimeError("made for a test")
        self.assertEqual(({}, {}), (self.consumers(self.one), self.consumers(shared)))

    def test_what_stood_is_not_taken_back_once_another_may_have_placed_it_anew(self) -> None:
        consumer, now = str(uuid.uuid4()), [0.0]
        unjudged = mock.create_autospec(unjudged_claims.UnjudgedClaims, instance=True)
        with (
            self.assertRaises(RuntimeError),
            outside_claims.answered_together(self.outside, unjudged, lambda: now[0]),
        ):
            self.assertTrue(self._go(consumer, self.one))
            # Placement hangs. The conductor has the server placed by another meanwhile.
            now[0] += 61.0
            self.admin.delete(f"/allocations/{consumer}")
            with outside_claims.using(self._conductor("other")):
                self.assertTrue(self._go(consumer, self.one))
            raise RuntimeError("made for a test")
        self.assertEqual({consumer: {"VCPU": 1}}, self.consumers(self.one))
        [remembered] = unjudged.may_be_left.call_args_list
        self.assertEqual(consumer, remembered.args[0].consumer)

    def test_a_thread_that_is_killed_as_it_notes_a_member_late_leaves_nothing(self) -> None:
        class Killed(BaseException):
            pass

        notes = mock.create_autospec(unjudged_claims.ClaimNotes, instance=True)
        notes.note.side_effect = [None, Killed]
        verifier = verification.AllocationVerifier(lambda: self.admin)
        own = unjudged_claims.UnjudgedClaims(verifier, notes)
        group = objects.InstanceGroup(
            uuid=str(uuid.uuid4()), policy="anti-affinity", members=[], hosts=[]
        )
        group._rules = {}
        consumer = str(uuid.uuid4())
        with outside_claims.answered_together(own, own), self.assertRaises(Killed):
            self._go(consumer, self.one, instance_group=group)
        self.assertEqual(2, notes.note.call_count)
        self.assertEqual({}, self.consumers(self.one))

    def test_what_an_evacuated_server_has_beside_it_is_not_taken_back(self) -> None:
        consumer, shared = str(uuid.uuid4()), self.provider(DISK_GB=10)

        def claim(node: str) -> None:
            amounts = {node: {"VCPU": 1}, shared: {"DISK_GB": 1}}
            request = {"allocations": {name: {"resources": part} for name, part in amounts.items()}}
            self.assertTrue(
                scheduler_utils.claim_resources(
                    self.context, self.admin, self._spec(), consumer, request, "1.36"
                )
            )

        claim(self.one)
        with (
            self.assertRaises(RuntimeError),
            outside_claims.answered_together(self.outside),
        ):
            claim(self.two)
            raise RuntimeError("made for a test")
        self.assertEqual(
            ({consumer: {"VCPU": 1}}, {}, {consumer: {"DISK_GB": 1}}),
            tuple(map(self.consumers, (self.one, self.two, shared))),
        )

    def test_room_that_another_has_claimed_is_not_given_again(self) -> None:
        # Placement would: what the other claimed is not written there yet.
        first = str(uuid.uuid4())
        seen: list[bool] = []

        def allocate() -> bool:
            seen.append(self._go(str(uuid.uuid4()), self.one))
            return True

        request = outside_claims.requests.Request(outside_claims.requests.Flavor(vcpus=1))
        move = outside_claims.OutsideMove(first, self.one, {"VCPU": 1}, request)
        self.assertTrue(self._conductor("other").claimed(move, allocate, self.fail))
        self.assertEqual([False], seen)
        self.assertEqual({first}, set(self._held(self.one)))
        self.assertEqual({}, self.consumers(self.one))

    def test_a_claim_that_placement_refuses_is_given_back(self) -> None:
        # The mirror is behind: it does not show who has the room.
        self.put(placement_cloud.server(self.one, VCPU=1))
        self.assertFalse(self._go(str(uuid.uuid4()), self.one))
        self.assertEqual({}, self._held(self.one))

    def test_an_error_of_novas_own_leaves_no_claim(self) -> None:
        def fail() -> bool:
            raise nova_exception.AllocationUpdateFailed(consumer_uuid="c", error="no")

        request = outside_claims.requests.Request(outside_claims.requests.Flavor(vcpus=1))
        move = outside_claims.OutsideMove("c", self.one, {"VCPU": 1}, request)
        self.assertRaises(
            nova_exception.AllocationUpdateFailed, self.outside.claimed, move, fail, self.fail
        )
        self.assertEqual({}, self._held(self.one))

    def test_a_claim_stands_while_its_write_may_still_be_on_its_way(self) -> None:
        def lose() -> bool:
            raise keystone.ConnectTimeout

        request = outside_claims.requests.Request(outside_claims.requests.Flavor(vcpus=1))
        move = outside_claims.OutsideMove("c", self.one, {"VCPU": 1}, request)
        self.assertRaises(keystone.ConnectTimeout, self.outside.claimed, move, lose, self.fail)
        held = self._held(self.one)["c"]
        self.assertEqual(("conductor", model.ClaimState.PENDING), (held.writer, held.state))
        # Nobody is promised the room before that claim's lease has ended.
        self.assertFalse(self._go(str(uuid.uuid4()), self.one))

    def test_a_claim_stands_though_nova_takes_a_lost_answer_for_a_refusal(self) -> None:
        for verifies in (False, True):
            node, consumer = self._node(f"h{3 + verifies}"), str(uuid.uuid4())
            if verifies:
                outside_claims.install(self._verifying())
            self.admin.faults["put"] = [placement_cloud.lost_before(keystone.ConnectFailure)]
            self.assertFalse(self._go(consumer, node))
            self.assertIs(model.ClaimState.PENDING, self._held(node)[consumer].state)
            self.assertFalse(self._go(str(uuid.uuid4()), node))
            # The server goes to the next host all the same.
            self.assertTrue(self._go(consumer, self._node(f"next{verifies}")))

    def test_so_does_that_of_a_server_that_is_forced_to_its_host(self) -> None:
        for verifies in (False, True):
            node, instance = self._node(f"h{3 + verifies}"), self._instance()
            source = self.provider(VCPU=4)
            self.put(placement_cloud.server(source, instance.uuid, VCPU=1))
            if verifies:
                outside_claims.install(self._verifying())
            self.admin.faults["put"] = [placement_cloud.lost_before(keystone.ConnectFailure)]
            self.assertRaises(
                nova_exception.NoValidHost,
                scheduler_utils.claim_resources_on_destination,
                self.context,
                self.admin,
                instance,
                objects.ComputeNode(uuid=source, host="source"),
                objects.ComputeNode(uuid=node, host="h3"),
            )
            self.assertIs(model.ClaimState.PENDING, self._held(node)[instance.uuid].state)
            self.assertFalse(self._go(str(uuid.uuid4()), node))

    def test_so_does_what_is_noted_where_no_claim_can_be_judged(self) -> None:
        batches = ledger_claimer.ClaimBatches(
            self.client, "noted", lambda: str(uuid.uuid4()), 60.0, lambda host: True
        )
        verifier = verification.AllocationVerifier(lambda: self.admin, sleep=lambda seconds: None)
        notes = unjudged_claims.ClaimNotes(self.client, batches, 1.0)
        lost = placement_cloud.lost_before(keystone.ConnectFailure)
        with outside_claims.using(unjudged_claims.UnjudgedClaims(verifier, notes)):
            unheard, unread = str(uuid.uuid4()), str(uuid.uuid4())
            self.admin.faults["put"] = [lost]
            self.assertFalse(self._go(unheard, self.one))
            self.admin.faults["put"], self.admin.faults["get"] = [lost], [None, *[lost] * 100]
            node = self._node("h3")
            self.assertRaises(nova_exception.AllocationUpdateFailed, self._go, unread, node)
        for consumer, where in ((unheard, self.one), (unread, node)):
            self.assertIs(model.ClaimState.PENDING, self._held(where)[consumer].state)

    def test_a_claim_ends_with_what_came_though_its_answer_was_lost(self) -> None:
        outside_claims.install(self._verifying())
        self.admin.faults["put"] = [placement_cloud.lost_after(keystone.ConnectFailure)]
        self.assertFalse(self._go(str(uuid.uuid4()), self.one))
        self.assertEqual(({}, {}), (self._held(self.one), self.consumers(self.one)))

    def test_a_claim_stands_while_nobody_knows_what_was_written(self) -> None:
        outside_claims.install(self._verifying())
        consumer = str(uuid.uuid4())
        lost = placement_cloud.lost_before(keystone.ConnectFailure)
        self.admin.faults["put"] = [lost]
        # What Nova reads before its write is answered, nothing behind it is.
        self.admin.faults["get"] = [None, *[lost] * 100]
        self.assertRaises(nova_exception.AllocationUpdateFailed, self._go, consumer, self.one)
        self.assertIs(model.ClaimState.PENDING, self._held(self.one)[consumer].state)

    def _verifying(self) -> outside_claims.OutsideClaims:
        """Return a conductor that looks at what Nova takes for a refusal."""
        verifier = verification.AllocationVerifier(lambda: self.admin, sleep=lambda seconds: None)
        return outside_claims.OutsideClaims(
            memory.MemorySynchronizer(None, self.hub),
            "verifying",
            60.0,
            1.0,
            unjudged=lambda batches: unjudged_claims.UnjudgedClaims(verifier),
        )

    def test_a_claim_that_ended_before_its_confirm_takes_the_allocation_back(self) -> None:
        consumer = str(uuid.uuid4())

        def allocate() -> bool:
            # While this conductor slept, its lease ended and another dropped the claim.
            self._publish(known_namespaces.CLAIM_RECORDS, self.one, {"claims": {}})
            return PLAIN(self.context, self.admin, self._spec(), consumer, request, "1.36")

        request = {"allocations": {self.one: {"resources": {"VCPU": 1}}}}
        asked = outside_claims.requests.Request(outside_claims.requests.Flavor(vcpus=1))
        move = outside_claims.OutsideMove(consumer, self.one, {"VCPU": 1}, asked)
        back = outside_claims.taking_back(self.context, self.admin, consumer, self.one)
        self.assertFalse(self.outside.claimed(move, allocate, back))
        self.assertEqual({}, self.consumers(self.one))

    def test_a_conductor_that_slept_takes_nothing_back(self) -> None:
        """The server was placed anew meanwhile, with just the same on the same host."""
        consumer, now = str(uuid.uuid4()), [0.0]
        amounts = {self.one: {"VCPU": 1}}
        request = {"allocations": {self.one: {"resources": {"VCPU": 1}}}}
        for given in (amounts, None):
            back = outside_claims.taking_back(
                self.context, self.admin, consumer, self.one, given, lambda: now[0]
            )
            PLAIN(self.context, self.admin, self._spec(), consumer, request, "1.36")
            now[0] += 61.0
            back()
            self.assertEqual({consumer: {"VCPU": 1}}, self.consumers(self.one))

    def test_what_another_wrote_between_the_look_and_the_removal_stays(self) -> None:
        consumer = str(uuid.uuid4())
        amounts = {self.one: {"VCPU": 1}}
        request = {"allocations": {self.one: {"resources": {"VCPU": 1}}}}
        PLAIN(self.context, self.admin, self._spec(), consumer, request, "1.36")
        own, client = self.admin.get_allocs_for_consumer, self.admin

        def sleeps(*asked: Any) -> Any:
            found = own(*asked)
            # It is placed anew by a write over what stands.
            written = {**found, "allocations": {self.one: {"resources": {"VCPU": 1}}}}
            client.put(f"/allocations/{consumer}", written, version="1.28")
            return found

        for given in (amounts, None):
            back = outside_claims.taking_back(self.context, client, consumer, self.one, given)
            with mock.patch.object(client, "get_allocs_for_consumer", sleeps):
                back()
            self.assertEqual({consumer: {"VCPU": 1}}, self.consumers(self.one))

    def test_a_placement_that_takes_nothing_back_ends_no_move(self) -> None:
        class Silent:
            def get_allocs_for_consumer(self, *_: Any) -> Any:
                raise keystone.ConnectTimeout

        back = outside_claims.taking_back(self.context, Silent(), "c", self.one)
        request = outside_claims.requests.Request(outside_claims.requests.Flavor(vcpus=1))
        move = outside_claims.OutsideMove("c", self.one, {"VCPU": 1}, request)

        def allocate() -> bool:
            self._publish(known_namespaces.CLAIM_RECORDS, self.one, {"claims": {}})
            return True

        # The conductor goes on to the next alternate.
        self.assertFalse(self.outside.claimed(move, allocate, back))

    def test_a_groups_policy_rules_an_alternate_out(self) -> None:
        member, other = str(uuid.uuid4()), str(uuid.uuid4())
        self._publish(
            known_namespaces.INSTANCES,
            f"{member}@{rows.CELL}",
            {"cell": rows.CELL, "row": {"uuid": member, "host": "h1", "node": "h1"}},
        )
        group = objects.InstanceGroup(
            uuid=str(uuid.uuid4()), policy="anti-affinity", members=[member, other], hosts=[]
        )
        self.assertFalse(self._go(other, self.one, instance_group=group))
        self.assertEqual({}, self.consumers(self.one))
        self.assertTrue(self._go(other, self.two, instance_group=group))

    def test_a_member_that_was_built_since_the_request_rules_an_alternate_out(self) -> None:
        """Its place in the group's record is settled, and the request does not name it."""
        member, other, third = (str(uuid.uuid4()) for _ in range(3))
        self._stand(member, "h1")
        for policy, refused, alternate in (
            ("anti-affinity", self.one, self.two),
            ("affinity", self.two, self.one),
        ):
            now = self._group(policy, member, other, third)
            asked = objects.InstanceGroup(
                uuid=now.uuid, policy=policy, members=[other], hosts=[], rules={}
            )
            with mock.patch.object(
                objects.InstanceGroup, "get_by_uuid", wraps=objects.InstanceGroup.get_by_uuid
            ) as read:
                self.assertFalse(self._go(other, refused, instance_group=asked), policy)
                self.assertEqual(1, read.call_count)
                self.assertTrue(self._go(other, alternate, instance_group=asked), policy)
                self.assertEqual(2, read.call_count)
            self.assertEqual({}, self.consumers(refused))
            self.admin.delete(f"/allocations/{other}")
            self.outside = self._conductor("next")
            outside_claims.install(self.outside)

    def test_no_group_is_read_for_a_policy_that_rules_nothing_out(self) -> None:
        soft = self._group("soft-anti-affinity")
        with mock.patch.object(objects.InstanceGroup, "get_by_uuid", autospec=True) as read:
            self.assertTrue(self._go(str(uuid.uuid4()), self.one, instance_group=soft))
            self.assertTrue(self._go(str(uuid.uuid4()), self.two))
        read.assert_not_called()

    def test_where_the_group_cannot_be_read_the_request_s_members_are_judged_by(self) -> None:
        member, other = str(uuid.uuid4()), str(uuid.uuid4())
        self._stand(member, "h1")
        group = self._group("anti-affinity", member, other)
        with mock.patch.object(
            objects.InstanceGroup, "get_by_uuid", autospec=True, side_effect=db_exception.DBError
        ):
            self.assertFalse(self._go(other, self.one, instance_group=group))
            self.assertTrue(self._go(other, self.two, instance_group=group))

    def _in_cell(self, host: str, node: str) -> objects.Instance:
        """Have a host in its cell's database, and a server there; nothing of it is published."""
        values = {**cloud.node_values(host), "uuid": node, "host_ip": "192.0.2.1"}
        more = {"supported_hv_specs": [], "metrics": "[]", "numa_topology": None}
        objects.ComputeNode(self.context, **values, **more).create()
        server = self._instance()
        server.host, server.node, server.compute_id = host, f"node-{host}", 1
        server.create()
        return server

    def test_without_the_back_end_members_that_were_built_since_rule_an_alternate_out(self) -> None:
        cloud.clear(cloud.databases()[cloud.CELL1])
        member, other = self._in_cell("h1", self.one).uuid, str(uuid.uuid4())
        self._in_cell("h2", self.two)
        self.hub.faults.go_down()
        for policy, refused, alternate in (
            ("anti-affinity", self.one, self.two),
            ("affinity", self.two, self.one),
        ):
            now = self._group(policy, member, other)
            asked = objects.InstanceGroup(
                uuid=now.uuid, policy=policy, members=[other], hosts=[], rules={}
            )
            self.assertFalse(self._go(other, refused, instance_group=asked), policy)
            self.assertEqual({}, self.consumers(refused))
            self.assertTrue(self._go(other, alternate, instance_group=asked), policy)
            self.admin.delete(f"/allocations/{other}")

    def test_so_does_one_that_is_on_its_way_there(self) -> None:
        cloud.clear(cloud.databases()[cloud.CELL1])
        member, other = self._in_cell("h1", self.one), str(uuid.uuid4())
        self._in_cell("h2", self.two)
        places = {"source_compute": "h1", "source_node": "node-h1"}
        places |= {"dest_compute": "h2", "dest_node": "node-h2", "dest_compute_id": 2}
        objects.Migration(
            self.context,
            instance_uuid=member.uuid,
            status="migrating",
            migration_type="live-migration",
            **places,
        ).create()
        self.hub.faults.go_down()
        group = self._group("anti-affinity", member.uuid, other)
        for node in (self.one, self.two):
            self.assertFalse(self._go(other, node, instance_group=group))

    def test_where_the_cell_cannot_be_read_either_it_is_left_to_nova_compute(self) -> None:
        other = str(uuid.uuid4())
        group = self._group("anti-affinity", str(uuid.uuid4()), other)
        self.hub.faults.go_down()
        with (
            mock.patch.object(
                objects.ComputeNode, "get_by_uuid", autospec=True, side_effect=db_exception.DBError
            ),
            self.assertLogs("nova_nodb_scheduler", "WARNING") as logged,
        ):
            self.assertTrue(self._go(other, self.one, instance_group=group))
        self.assertIn("nova-compute", "".join(logged.output))

    def _stand(self, server: str, host: str) -> None:
        """A server is on a host, as its cell's conductor published it."""
        self._publish(
            known_namespaces.INSTANCES,
            f"{server}@{rows.CELL}",
            {"cell": rows.CELL, "row": {"uuid": server, "host": host, "node": host}},
        )

    def test_a_forced_destination_is_claimed_and_refused_when_it_is_full(self) -> None:
        instance = self._instance()
        self.put(placement_cloud.server(self.one, instance.uuid, VCPU=1))
        source = objects.ComputeNode(uuid=self.one, host="h1")
        destination = objects.ComputeNode(uuid=self.two, host="h2")
        scheduler_utils.claim_resources_on_destination(
            self.context, self.admin, instance, source, destination
        )
        self.assertEqual({self.one, self.two}, set(self.held(instance.uuid)))
        self.assertIn(instance.uuid, self._held(self.two))
        late = self._instance()
        third = self.provider(VCPU=1)
        self.put(placement_cloud.server(third, late.uuid, VCPU=1))
        self.assertRaises(
            nova_exception.NoValidHost,
            scheduler_utils.claim_resources_on_destination,
            self.context,
            self.admin,
            late,
            objects.ComputeNode(uuid=third, host="h3"),
            destination,
        )
        self.assertEqual({third}, set(self.held(late.uuid)))

    def test_a_device_is_not_given_to_a_second_server_that_is_forced_to_its_host(self) -> None:
        # The node's report shows it free: the first server is not there yet.
        node = self._node("h3", 4, **_READABLE, pci_stats=test_numa_pci_claims.pools(1))
        first, second = (
            self._instance(pci_requests=test_numa_pci_claims.spec(devices=1).pci_requests)
            for _ in range(2)
        )
        self._force(first, node)
        held = self._held(node)[first.uuid].node.fitted
        self.assertEqual(1, held[claim_facts.DEVICES])
        error = self.assertRaises(nova_exception.NoValidHost, self._force, second, node)
        self.assertIn("not enough capacity", str(error))
        self.assertEqual({first.uuid}, set(self._held(node)))
        self.assertEqual({first.uuid}, set(self.consumers(node)))

    def test_what_a_node_has_not_got_by_itself_is_for_its_compute_service_to_tell(self) -> None:
        # Nova's own conductor looks at none of it: the move ends with nova-compute's word.
        bare = self._node("h3", 4, **_READABLE)
        small = self._node(
            "h4", 8, **_READABLE, numa_topology=test_numa_pci_claims.topology(1, 1024)
        )
        device = self._instance(pci_requests=test_numa_pci_claims.spec(devices=1).pci_requests)
        pinned = self._instance(extra_specs={"hw:cpu_policy": "dedicated"}, vcpus=64)
        for instance, node in ((device, bare), (pinned, small)):
            self._force(instance, node)
            self.assertEqual({instance.uuid}, set(self._held(node)))
            self.assertEqual({instance.uuid}, set(self.consumers(node)))

    def test_a_provider_that_has_room_by_now_is_read_before_a_server_is_refused(self) -> None:
        for go in (self._force_to, self._go):
            # The mirror has what the node had before nova-compute changed it.
            node = self._node("h3", 1)
            stays = rows.provider(
                inventories={"VCPU": rows.inventory(1)}, allocations={"gone": {"VCPU": 1}}
            )
            self._publish(known_namespaces.PROVIDERS, node, stays)
            self.assertFalse(go(str(uuid.uuid4()), node))
            with outside_claims.using(self._reading()):
                consumer = str(uuid.uuid4())
                self.assertTrue(go(consumer, node))
                self.assertEqual({consumer}, set(self._held(node)))
                # Now it is full, and Placement says so as well.
                self.assertFalse(go(str(uuid.uuid4()), node))
            self.assertEqual({consumer}, set(self.consumers(node)))

    def test_a_provider_that_the_back_end_lost_is_read_before_a_claim_on_its_node(self) -> None:
        # Told of a node and not of its provider, all claims there would be granted.
        node = self.provider(VCPU=1)
        self._publish(known_namespaces.COMPUTE_NODES, node, rows.node(node, "h3"))
        first, seen = str(uuid.uuid4()), list[bool]()

        def allocate() -> bool:
            # Nothing of the first one is written yet, and Placement would take the second.
            with outside_claims.using(self._reading()):
                seen.append(self._go(str(uuid.uuid4()), node))
            return True

        request = outside_claims.requests.Request(outside_claims.requests.Flavor(vcpus=1))
        move = outside_claims.OutsideMove(first, node, {"VCPU": 1}, request)
        self.assertTrue(self._conductor("other").claimed(move, allocate, self.fail))
        self.assertEqual([False], seen)
        self.assertEqual({first}, set(self._held(node)))
        self.assertEqual({}, self.consumers(node))

    def test_a_former_move_of_another_size_to_the_same_host_refuses_no_later_one(self) -> None:
        node = self._node("h3", 4)
        consumer = str(uuid.uuid4())
        request = outside_claims.requests.Request(outside_claims.requests.Flavor(vcpus=2))
        move = outside_claims.OutsideMove(consumer, node, {"VCPU": 2}, request)
        self.assertTrue(self.outside.claimed(move, lambda: True, self.fail))
        # It went back: nothing is allocated, and nobody has settled its claim yet.
        with outside_claims.using(self._reading()):
            self.assertTrue(self._go(consumer, node))
        self.assertEqual({"VCPU": 1}, dict(self._held(node)[consumer].resources))

    def test_without_placements_word_it_is_refused_by_what_is_known(self) -> None:
        node = self._node("h3", 1)
        full = rows.provider(
            inventories={"VCPU": rows.inventory(1)}, allocations={"gone": {"VCPU": 1}}
        )
        self._publish(known_namespaces.PROVIDERS, node, full)

        def refuse(path: str) -> Any:
            raise keystone.ConnectFailure(path)

        with outside_claims.using(self._reading(refuse)):
            self.assertFalse(self._go(str(uuid.uuid4()), node))

    def _reading(self, get: Any = None) -> outside_claims.OutsideClaims:
        """Return a conductor's claims as a deployment's, which read providers again."""
        client = memory.MemorySynchronizer(None, self.hub)
        declared = {each.name: each for each in known_namespaces.BUILT_IN}
        publisher = publisher_module.Publisher(client, declared, known_namespaces.PLACEMENT)
        own = get or (lambda path: self.admin.get(path, version=placement_reader.MICROVERSION))
        again = tree_publisher.ProviderReread(client, publisher, own)
        return outside_claims.OutsideClaims(client, "reads", 60.0, 1.0, read_again=again.read)

    def _force_to(self, consumer: str, node: str) -> bool:
        instance = self._instance()
        instance.uuid = consumer
        try:
            self._force(instance, node)
        except nova_exception.NoValidHost:
            return False
        return True

    def test_a_device_that_a_forced_server_takes_is_not_given_to_an_alternate(self) -> None:
        node = self._node("h3", 4, **_READABLE, pci_stats=test_numa_pci_claims.pools(1))
        wanted = test_numa_pci_claims.spec(devices=1).pci_requests
        self._force(self._instance(pci_requests=wanted), node)
        self.assertFalse(self._go(str(uuid.uuid4()), node, pci_requests=wanted))

    def test_pinned_cpus_of_forced_servers_are_counted_as_their_claims_on_the_host_are(
        self,
    ) -> None:
        node = self._node(
            "h3", 8, **_READABLE, numa_topology=test_numa_pci_claims.topology(1, 1024)
        )
        specs = {"hw:cpu_policy": "dedicated"}
        for _ in range(2):
            self._force(self._instance(extra_specs=specs), node)
        self.assertRaises(
            nova_exception.NoValidHost, self._force, self._instance(extra_specs=specs), node
        )
        self.assertEqual(2, len(self.consumers(node)))

    def test_shared_cells_are_not_limited_for_a_server_that_is_forced(self) -> None:
        # nova-compute gets no limits either where no filter set them.
        outside = outside_claims.OutsideClaims(
            memory.MemorySynchronizer(None, self.hub), "c2", 60.0, 1.0, test_numa_pci_claims.BOTH
        )
        node = self._node(
            "h3", 8, **_READABLE, numa_topology=test_numa_pci_claims.topology(1, 1024)
        )
        specs = {"hw:numa_nodes": "1"}
        wanted = [self._instance(extra_specs=specs, vcpus=2, memory_mb=512) for _ in range(5)]
        with outside_claims.using(outside):
            for instance in wanted:
                self._force(instance, node)
        self.assertEqual({each.uuid for each in wanted}, set(self._held(node)))

    def test_where_a_server_is_forced_to_others_know_of_its_groups_member(self) -> None:
        node = self._node("h3", 4)
        forced, other = self._instance(), self._instance()
        group = self._group("anti-affinity", forced.uuid, other.uuid)
        self._force(forced, node)
        self.assertFalse(self._go(other.uuid, node, instance_group=group))
        self.assertEqual({forced.uuid}, set(self._held(node)))

    def test_no_groups_policy_rules_out_where_a_server_is_forced_to(self) -> None:
        node = self._node("h3", 4)
        forced, other = self._instance(), self._instance()
        group = self._group("anti-affinity", forced.uuid, other.uuid)
        self.assertTrue(self._go(other.uuid, node, instance_group=group))
        self._force(forced, node)
        self.assertEqual({forced.uuid, other.uuid}, set(self._held(node)))

    def test_a_server_whose_group_cannot_be_read_is_claimed_for_without_it(self) -> None:
        node, instance = self._node("h3"), self._instance()
        with mock.patch.object(
            objects.InstanceGroup,
            "get_by_instance_uuid",
            autospec=True,
            side_effect=db_exception.DBError,
        ):
            self._force(instance, node)
        self.assertEqual({instance.uuid}, set(self._held(node)))

    def _group(self, policy: str, *members: str) -> Any:
        group = objects.InstanceGroup(
            self.context,
            uuid=str(uuid.uuid4()),
            name="group",
            user_id="user",
            project_id="project",
            policy=policy,
            members=list(members),
        )
        group.create()
        return group

    def test_a_server_whose_wants_cannot_be_read_is_claimed_for_without_them(self) -> None:
        node = self._node("h3", **_READABLE, pci_stats=test_numa_pci_claims.pools(1))
        instance = self._instance()
        instance.flavor.extra_specs = {"hw:numa_nodes": "no number"}
        self._force(instance, node)
        self.assertEqual({}, self._held(node)[instance.uuid].node.fitted)

    def _force(self, instance: Any, node: str) -> None:
        """Send a server to a node as a forced evacuation does."""
        source = self.provider(VCPU=4)
        self.put(placement_cloud.server(source, instance.uuid, VCPU=1))
        scheduler_utils.claim_resources_on_destination(
            self.context,
            self.admin,
            instance,
            objects.ComputeNode(uuid=source, host="source"),
            objects.ComputeNode(uuid=node, host="h3"),
        )

    def test_without_an_answer_of_the_back_end_novas_own_goes_ahead(self) -> None:
        consumer = str(uuid.uuid4())
        self.hub.faults.go_down()
        self.assertTrue(self._go(consumer, self.one))
        self.hub.faults.come_up()
        self.assertEqual({consumer: {"VCPU": 1}}, self.consumers(self.one))

    def test_before_db_sync_novas_own_goes_ahead_and_the_command_is_named(self) -> None:
        unready = _NotMigrated(None, self.hub)
        batches = ledger_claimer.ClaimBatches(unready, "c", str, 60.0, claimable=lambda host: True)
        notes = unjudged_claims.ClaimNotes(unready, batches, 1.0)
        verifier = verification.AllocationVerifier(lambda: self.admin)
        outside_claims.uninstall(self.outside)
        self.outside = outside_claims.OutsideClaims(
            unready,
            "conductor",
            60.0,
            1.0,
            unjudged=lambda own: unjudged_claims.UnjudgedClaims(verifier, notes),
        )
        outside_claims.install(self.outside)
        self.addCleanup(outside_claims.uninstall, self.outside)
        consumer = str(uuid.uuid4())
        with self.assertLogs("nova_nodb_scheduler", "WARNING") as logged:
            self.assertTrue(self._go(consumer, self.one))
        self.assertEqual({consumer: {"VCPU": 1}}, self.consumers(self.one))
        self.assertIn("run 'nova-nodb-manage db sync'", "".join(logged.output))
        # No tracebacks, and the next request does not ask again for notes.
        self.assertFalse([each for each in logged.records if each.exc_info])
        self.assertIsNone(notes.note(None))

    def test_a_record_that_cannot_be_read_leaves_it_to_nova(self) -> None:
        key = claim_rules.host_key(self.one)
        newer = codec.encode({}, namespaces_model.SchemaVersion(9, 0))
        self.assertTrue(self.client.write([records.Write(key, 0, newer)])[0].won)
        consumer = str(uuid.uuid4())
        self.assertTrue(self._go(consumer, self.one))
        self.assertEqual({consumer: {"VCPU": 1}}, self.consumers(self.one))

    def test_devices_that_a_request_wants_are_held_by_its_claim(self) -> None:
        wanted = objects.InstancePCIRequests(
            requests=[
                objects.InstancePCIRequest(
                    request_id=str(uuid.uuid4()), count=2, alias_name="a", spec=[{}]
                )
            ]
        )
        node = self._node("h3", **_READABLE, pci_stats=test_numa_pci_claims.pools(2))
        consumer = str(uuid.uuid4())
        self.assertTrue(self._go(consumer, node, pci_requests=wanted))
        held = self._held(node)[consumer].node.fitted
        self.assertEqual(2, held[claim_facts.DEVICES])
        self.assertIn("pci_requests", held)

    def test_a_server_that_is_resized_on_its_host_is_no_further_instance(self) -> None:
        # The conductor sends it back to its own host, as another could not take it.
        resized, other = str(uuid.uuid4()), str(uuid.uuid4())
        for server, host in ((resized, "h1"), (other, "h2")):
            self._publish(
                known_namespaces.INSTANCES,
                f"{server}@{rows.CELL}",
                {"cell": rows.CELL, "row": {"uuid": server, "host": host, "node": host}},
            )
        self.assertTrue(self._go(resized, self.one))
        self.assertEqual(0, self._held(self.one)[resized].node.instances)
        self.assertTrue(claim_facts.stays(self._held(self.one)[resized].node))
        node = self._node("h3")
        self.assertTrue(self._go(other, node))
        self.assertEqual(1, self._held(node)[other].node.instances)

    def test_a_device_that_another_has_claimed_is_not_given_again(self) -> None:
        # The node's report shows it free: the other's server is not built yet.
        node = self._node("h3", 4, **_READABLE, pci_stats=test_numa_pci_claims.pools(1))
        wanted = test_numa_pci_claims.spec(devices=1).pci_requests
        first, second = str(uuid.uuid4()), str(uuid.uuid4())
        self.assertTrue(self._go(first, node, pci_requests=wanted))
        self.assertFalse(self._go(second, node, pci_requests=wanted))
        self.assertEqual({first}, set(self._held(node)))
        self.assertEqual({first}, set(self.consumers(node)))
        self.assertTrue(self._go(second, node))

    def test_pinned_cpus_that_others_have_claimed_are_not_given_again(self) -> None:
        node = self._node(
            "h3", 4, **_READABLE, numa_topology=test_numa_pci_claims.topology(1, 1024)
        )
        wanted = test_numa_pci_claims.spec(1, pinned=True).numa_topology
        answers = [
            self._go(str(uuid.uuid4()), node, numa_topology=wanted.obj_clone()) for _ in range(3)
        ]
        self.assertEqual([True, True, False], answers)
        self.assertEqual(2, len(self.consumers(node)))

    def test_the_node_is_claimed_where_another_provider_gives_as_many_classes(self) -> None:
        port = str(uuid.uuid4())
        network = {"NET_BW_EGR_KILOBIT_PER_SEC": 1, "NET_BW_IGR_KILOBIT_PER_SEC": 1, "CUSTOM_A": 1}
        allocations = {
            port: {"resources": network},
            self.one: {"resources": {"VCPU": 1, "MEMORY_MB": 64}},
        }
        seen: list[outside_claims.OutsideMove] = []

        class Seen:
            def claimed(self, move: outside_claims.OutsideMove, *_: Any) -> bool:
                seen.append(move)
                return True

        with outside_claims.using(Seen()):
            scheduler_utils.claim_resources(
                self.context, self.admin, self._spec(), "c", {"allocations": allocations}, "1.36"
            )
        self.assertEqual(
            [(self.one, {"VCPU": 1, "MEMORY_MB": 64})], [(m.host, m.resources) for m in seen]
        )

    def test_a_rebuild_claims_nothing(self) -> None:
        # Others have the room: the server has its own, and Nova allocates nothing either.
        first, rebuilt = str(uuid.uuid4()), str(uuid.uuid4())
        self.assertTrue(self._go(first, self.one))
        hints = {"_nova_check_type": ["rebuild"]}
        self.assertTrue(self._go(rebuilt, self.one, scheduler_hints=hints))
        self.assertEqual({first}, set(self._held(self.one)))
        self.assertEqual({first}, set(self.consumers(self.one)))

    def test_what_is_settled_while_a_conductor_reads_does_not_refuse_the_host(self) -> None:
        consumer, client, seen = str(uuid.uuid4()), self.outside._synchronizer, []
        own = client.head

        def head() -> records.Cursor:
            read_at = own()
            if not seen:
                # After it others publish, and settle a claim by what they published.
                self._publish(known_namespaces.PROVIDERS, self.two, rows.provider())
                seen.append(own())
                settled = {"epoch": seen[0].epoch, "version": seen[0].version}
                state = {"claims": {}, "settled": settled}
                self._publish(known_namespaces.CLAIM_RECORDS, self.one, state)
            return read_at

        with mock.patch.object(client, "head", head):
            self.assertTrue(self._go(consumer, self.one))
        self.assertEqual({consumer}, set(self._held(self.one)))

    def test_a_scheduler_calls_novas_own_function(self) -> None:
        consumer = str(uuid.uuid4())
        request = {"allocations": {self.one: {"resources": {"VCPU": 1}}}}
        self.assertTrue(
            outside_claims.stock_claim_resources(
                self.context, self.admin, self._spec(), consumer, request, "1.36"
            )
        )
        self.assertEqual({}, self._held(self.one))

    def _instance(
        self,
        pci_requests: Any = None,
        extra_specs: Mapping[str, str] | None = None,
        vcpus: int = 1,
        memory_mb: int = 64,
    ) -> Any:
        flavor = objects.Flavor(
            vcpus=vcpus,
            memory_mb=memory_mb,
            root_gb=1,
            ephemeral_gb=0,
            extra_specs=dict(extra_specs or {}),
        )
        return objects.Instance(
            self.context,
            uuid=str(uuid.uuid4()),
            project_id="project",
            user_id="user",
            flavor=flavor,
            system_metadata={},
            image_ref="",
            pci_requests=pci_requests or objects.InstancePCIRequests(requests=[]),
        )
