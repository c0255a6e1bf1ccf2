# SPDX-License-Identifier: Apache-2.0
"""select_destinations with claims, beside other schedulers, with a real Placement."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Collection
from typing import Any
from unittest import mock

import attrs
from nova import context as nova_context
from nova import exception, objects

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records, requests
from nova_nodb_scheduler.nova_adapter.claims import outside_claims, unjudged_claims
from nova_nodb_scheduler.nova_adapter.decisions import request_allocations, request_decider
from nova_nodb_scheduler.nova_adapter.placement.allocations import placement_replies
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts
from nova_nodb_scheduler.synchronizer.claims import claim_views, ledger_claimer
from nova_nodb_scheduler.synchronizer.settlement import claim_proof, settlement_worker
from nova_nodb_scheduler.testing import patience, single_claims
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.decisions import test_memory_decisions

GROUP = str(uuid.uuid4())
WAIT_SECONDS = 30.0
MIRROR_BEHIND = request_decider.MemoryCannotDecide("mirror behind")


class ClaimedDecisionsCase(test_memory_decisions.MemoryDecisionsCase):
    def held(self, host: str) -> dict[str, model.HeldClaim]:
        ledger = single_claims.stranger(self.runtime.synchronizer)
        return dict(ledger.read(self.nodes[host].uuid).claims)

    #: How long a stranger's claim may be pending.
    LEASE_SECONDS = 60.0

    def stranger(self) -> ledger_claimer.LedgerClaimer:
        """Return another scheduler's claimer, with this one's view of hosts."""
        own = self.runtime.decisions.parts.ways.claimer
        batches = ledger_claimer.ClaimBatches(
            self.runtime.synchronizer,
            "stranger",
            lambda: str(uuid.uuid4()),
            self.LEASE_SECONDS,
            lambda host: True,
        )
        return ledger_claimer.LedgerClaimer(batches, own._views)

    def claim(
        self, host: str, vcpus: int, group: requests.Group | None = None
    ) -> chosen_hosts.TakenClaim:
        """Claim as another scheduler."""
        node = self.nodes[host].uuid
        wanted = chosen_hosts.WantedClaim(
            str(uuid.uuid4()),
            chosen_hosts.Choice(0, node, "", host, host, 0.0, ()),
            {"VCPU": vcpus, "MEMORY_MB": 1, "DISK_GB": 1},
            model.NodeShare(vcpus=vcpus, memory_mb=1, instances=1, io_operations=1),
        )
        request = requests.Request(requests.Flavor(vcpus=vcpus), queries=(), group=group)
        [taken] = self.stranger().take(request, [wanted], time.monotonic() + 30)
        assert isinstance(taken, chosen_hosts.TakenClaim), taken
        return taken

    def allocate_for_rival(self, node: str, vcpus: int) -> str:
        """Allocate without a claim; return the consumer."""
        owner = {"project_id": "rival", "user_id": "rival", "consumer_generation": None}
        allocation = {node: {"resources": {"VCPU": vcpus}}}
        rival = str(uuid.uuid4())
        self.ask("put", f"/allocations/{rival}", {**owner, "allocations": allocation})
        return rival

    def refusals(self, server: str) -> list[str]:
        return [
            f"{each.host}: {each.reason}"
            for decision in self.runtime.log.about(server)
            for each in decision.refused
        ]

    def wait_for_mirror(self, servers: list[str], gone: Collection[str] = ()) -> None:
        """Wait until it shows what was just written: before that a proof proves nothing."""
        patience.wait_until(
            lambda: self.mirrored().issuperset(servers) and not self.mirrored() & {*gone},
            30.0,
            lambda: (servers, gone, self.mirrored()),
            0.05,
        )

    def mirrored(self) -> set[str]:
        """Return which servers the mirror shows with allocations, once it looked anew."""
        self.runtime.decisions.mirror_keeper.look_at([node.uuid for node in self.nodes.values()])
        providers = self.runtime.store.snapshot().namespace(known_namespaces.PROVIDERS.name)
        found = map(providers.get, providers.keys())
        return {server for each in found for server in each.state["allocations"]}

    def settle_later(self) -> None:
        duty = self.runtime.decisions.claim_duty
        duty.settler.pace(
            settlement_worker.SettlementOptions(ask_after_seconds=600.0, hasten_seconds=600.0)
        )
        # What it finds as it begins is asked for at once.
        patience.wait_until(lambda: duty.settler.begun, WAIT_SECONDS, "the settler's first turn")


class ClaimedDecisionsTest(ClaimedDecisionsCase):
    def test_the_host_of_each_server_is_claimed_and_confirmed(self):
        uuids, chosen = self.select(servers=2)
        for server, [selection, *_] in zip(uuids, chosen, strict=True):
            held = self.held(selection.service_host)[server]
            self.assertIs(model.ClaimState.CONFIRMED, held.state)
            self.assertEqual({"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}, dict(held.resources))
            self.assertEqual(
                model.NodeShare(vcpus=1, memory_mb=512, disk_gb=1, instances=1, io_operations=1),
                held.node,
            )
        self.assertEqual({"post allocations": 1}, dict(self.calls))
        figures = self.runtime.claim_metrics.figures()
        self.assertEqual((2, 2), (figures["taken"], figures["confirmed"]))

    def test_a_scheduler_tells_others_that_it_claims(self):
        told = self.runtime.store.snapshot().namespace(known_namespaces.SCHEDULERS.name)
        [own] = told.keys()
        self.assertIs(True, told.get(own).state["claiming"])

    def test_a_claim_that_the_feed_brought_fills_its_host(self):
        self.claim("h1", 4)
        for _ in range(2):
            self.assertEqual("h2", self.select()[1][0][0].service_host)
        with self.assertRaises(exception.NoValidHost):
            self.select()

    def test_room_of_a_server_that_was_deleted_a_moment_ago_is_given_before_it_is_refused(self):
        # Its claim stands: who settles claims has not come to it.
        self.settle_later()
        uuids, _chosen = self.select(servers=6)
        self.wait_for_mirror(uuids)
        self.client.delete(f"/allocations/{uuids[0]}")
        held = {server for host in ("h1", "h2") for server in self.held(host)}
        self.assertEqual({*uuids}, held)
        [again], _chosen = self.select()
        held = {server for host in ("h1", "h2") for server in self.held(host)}
        self.assertEqual({*uuids[1:], again}, held)
        with self.assertRaises(exception.NoValidHost):
            self.select()

    def test_a_claim_left_where_placement_has_no_room_either_is_not_asked_for(self):
        self.settle_later()
        uuids, chosen = self.select(servers=6)
        node = self.nodes[chosen[0][0].service_host].uuid
        self.client.delete(f"/allocations/{uuids[0]}")
        rival = self.allocate_for_rival(node, 1)
        self.wait_for_mirror([*uuids[1:], rival], gone=uuids[:1])
        self.calls.clear()
        with self.assertRaises(exception.NoValidHost):
            self.select()
        self.assertEqual({}, dict(self.calls))
        self.assertEqual({"memory": 2}, self.runtime.candidates())

    def test_claims_that_another_request_ended_meanwhile_refuse_nobody(self):
        self.settle_later()
        uuids, _chosen = self.select(servers=6)
        self.wait_for_mirror(uuids)
        # The mirror does not know of it: that is why it is decided once more.
        self.client.delete(f"/allocations/{uuids[0]}")
        proof = self.runtime.decisions.claim_duty.proof
        prove, ended = proof.prove, []

        def proved(*args: Any, **kwargs: Any) -> Any:
            self.end_claims(prove, ended)
            return prove(*args, **kwargs)

        with mock.patch.object(proof, "prove", proved):
            self.select()
        self.assertTrue(ended)
        self.assertEqual({"memory": 2}, self.runtime.candidates())

    def end_claims(self, prove: Any, ended: list[int]) -> None:
        """End what nothing stands behind, as another that is refused, and let the feed bring it."""
        prove()
        version = self.runtime.synchronizer.head().version
        self.assertTrue(self.runtime.replicator.wait_until(version, WAIT_SECONDS))
        ended.append(version)

    def test_a_refusal_is_proved_although_other_hosts_change_all_the_time(self):
        self.select(servers=4, force_hosts=["h1"])
        decisions = self.runtime.decisions
        prove, looks = decisions.placement_mirror.prove_current, []

        def proved(*args: Any, **kwargs: Any) -> Any:
            # Another scheduler's, which the mirror has not seen.
            rival = self.allocate_for_rival(self.nodes["h2"].uuid, 1)
            self.client.delete(f"/allocations/{rival}")
            looks.append(rival)
            return prove(*args, **kwargs)

        with (
            mock.patch.object(decisions.decider, "_deadline_seconds", 3.0),
            mock.patch.object(decisions.placement_mirror, "prove_current", proved),
            self.assertRaises(exception.NoValidHost),
        ):
            self.select(force_hosts=["h1"])
        self.assertEqual({"memory": 2}, self.runtime.candidates())
        self.assertEqual(1, len(looks))

    def test_room_for_several_that_was_freed_unseen_is_found(self):
        self.settle_later()
        uuids, _chosen = self.select(servers=3, force_hosts=["h1"])
        self.wait_for_mirror(uuids)
        self.client.delete(f"/allocations/{uuids[0]}")
        _uuids, chosen = self.select(servers=2, force_hosts=["h1"])
        self.assertEqual(["h1", "h1"], [each[0].service_host for each in chosen])

    def test_a_place_in_a_group_that_nothing_stands_behind_keeps_nobody_away(self):
        self.settle_later()
        group = objects.InstanceGroup(
            uuid=GROUP, policy="anti-affinity", policies=["anti-affinity"], members=[], hosts=[]
        )
        group._rules = {}
        uuids, chosen = self.select(servers=2, instance_group=group)
        self.wait_for_mirror(uuids)
        self.client.delete(f"/allocations/{uuids[0]}")
        left = chosen[0][0].service_host
        group = objects.InstanceGroup(
            uuid=GROUP,
            policy="anti-affinity",
            policies=["anti-affinity"],
            members=[uuids[1]],
            hosts=[chosen[1][0].service_host],
        )
        group._rules = {}
        self.assertEqual(left, self.select(instance_group=group)[1][0][0].service_host)

    def test_room_that_a_claim_keeps_is_asked_of_placement_where_nobody_answers_for_the_claim(self):
        self.settle_later()
        uuids, _chosen = self.select(servers=6)
        self.wait_for_mirror(uuids)
        self.client.delete(f"/allocations/{uuids[0]}")
        proof = self.runtime.decisions.claim_duty.proof
        with mock.patch.object(proof, "_ask", lambda consumer: None):
            self.select()
        self.assertEqual({"memory": 1, "mirror not proved": 1}, self.runtime.candidates())
        # Nor was it put aside as one that had been answered for.
        self.assertEqual({}, proof._asked_at)

    def test_claims_beyond_those_that_are_asked_for_prove_nothing(self):
        self.settle_later()
        uuids, _chosen = self.select(servers=6)
        self.wait_for_mirror(uuids)
        for server in uuids[:3]:
            self.client.delete(f"/allocations/{server}")
        with mock.patch.object(claim_proof, "_MOST_ASKED", 0):
            self.select()
        self.assertEqual({"memory": 1, "mirror not proved": 1}, self.runtime.candidates())

    def test_servers_that_are_being_built_keep_their_claims_whoever_is_refused(self):
        self.settle_later()
        uuids, _chosen = self.select(servers=6)
        for _ in range(2):
            with self.assertRaises(exception.NoValidHost):
                self.select()
        held = {server for host in ("h1", "h2") for server in self.held(host)}
        self.assertEqual({*uuids}, held)

    def test_a_claim_met_at_the_write_sends_the_server_to_the_next_host(self):
        parts = self.runtime.decisions.parts
        own = parts.ways.claimer.take
        met: list[str] = []

        def slower(request: Any, wanted: Any, deadline: float) -> Any:
            if not met:
                met.append(wanted[0].chosen.host)
                self.claim(met[0], {"h1": 4, "h2": 2}[met[0]])
            return own(request, wanted, deadline)

        with mock.patch.object(parts.ways.claimer, "take", slower):
            uuids, chosen = self.select()
        self.assertNotEqual(met[0], chosen[0][0].service_host)
        self.assertEqual([f"{met[0]}: claim refused: full"], self.refusals(uuids[0]))
        # Placement was not even asked for the first one.
        self.assertEqual({"post allocations": 1}, dict(self.calls))

    def test_a_refused_allocation_gives_the_claim_back(self):
        writer = self.runtime.decisions._writer
        own, asked = writer.write, []

        def first_is_full(servers: Any, *args: Any, **kwargs: Any) -> Any:
            asked.append(next(iter(servers[0].request["allocations"])))
            if len(asked) == 1:
                return {
                    servers[0].consumer: placement_replies.ProviderFull(
                        asked[0], "VCPU", True, "no room"
                    )
                }
            return own(servers, *args, **kwargs)

        with mock.patch.object(writer, "write", first_is_full):
            uuids, _chosen = self.select()
        name_of = {node.uuid: host for host, node in self.nodes.items()}
        self.assertNotIn(uuids[0], self.held(name_of[asked[0]]))
        self.assertIn(uuids[0], self.held(name_of[asked[1]]))

    def test_a_claim_lost_in_sleep_takes_the_allocation_back(self):
        parts = self.runtime.decisions.parts
        own = parts.ways.claimer.confirm
        slept: list[chosen_hosts.TakenClaim] = []

        def sleepy(taken: Any) -> list[bool]:
            if not slept:
                slept.extend(taken)
                # What others do with a claim whose lease has ended.
                ledger = single_claims.stranger(self.runtime.synchronizer)
                for each in taken:
                    ledger.release(each.grant.granted)
            return own(taken)

        with mock.patch.object(parts.ways.claimer, "confirm", sleepy):
            uuids, chosen = self.select()
        first, second = slept[0].wanted.chosen.host, chosen[0][0].service_host
        self.assertNotEqual(first, second)
        self.assertEqual((0, 1), (self.used(first).get("VCPU", 0), self.used(second)["VCPU"]))
        self.assertEqual({}, self.held(first))
        self.assertEqual({uuids[0]}, set(self.held(second)))

    def test_without_a_back_end_to_claim_on_nova_decides_alone(self):
        with mock.patch.object(claim_views.StoreViews, "view", lambda *_args: None):
            self.select()
        self.assertEqual({"claims unavailable": 1}, self.runtime.candidates())
        self.assertEqual(0, len(self.runtime.decisions.reservations))

    def test_members_of_a_group_that_others_place_are_kept_apart(self):
        apart = requests.Group(GROUP, "anti-affinity", frozenset(["anti-affinity"]))
        group = objects.InstanceGroup(
            uuid=GROUP, policy="anti-affinity", policies=["anti-affinity"], members=[], hosts=[]
        )
        group._rules = {}
        self.claim("h1", 1, apart)
        _uuids, chosen = self.select(instance_group=group)
        self.assertEqual("h2", chosen[0][0].service_host)
        with self.assertRaises(exception.NoValidHost):
            self.select(instance_group=group)

    def test_members_of_a_group_that_others_place_draw_the_next_ones_to_them(self):
        together = requests.Group(GROUP, "affinity", frozenset(["affinity"]))
        self.claim("h2", 1, together)
        group = objects.InstanceGroup(
            uuid=GROUP, policy="affinity", policies=["affinity"], members=[], hosts=[]
        )
        self.assertEqual("h2", self.select(instance_group=group)[1][0][0].service_host)
        with self.assertRaises(exception.NoValidHost):
            self.select(instance_group=group)

    def test_a_server_that_is_resized_on_its_host_is_no_further_instance(self):
        server = str(uuid.uuid4())
        decider = self.runtime.decisions.decider
        cell = next(cell for cell, name, _, _ in self.HOSTS if name == "h1")
        decider.parts = attrs.evolve(decider.parts, places=lambda uuid: [(cell, "h1")])
        self.beat()
        batcher = decider.parts.placement.writer._batcher
        maker = request_allocations.RequestAllocations
        own, coming = maker._as_nova_does, []

        def as_nova_does(*args):
            coming.append(batcher._coming)
            return own(*args)

        with mock.patch.object(maker, "_as_nova_does", as_nova_does):
            self.manager.select_destinations(
                self.admin,
                spec_obj=self.spec([server], ignore_hosts=["h2"]),
                instance_uuids=[server],
                return_objects=True,
                return_alternates=False,
            )
        self.assertEqual(0, self.held("h1")[server].node.instances)
        # Other requests do not wait for it at their call to Placement.
        self.assertEqual([0], coming)

    def rebuild(self) -> str:
        """Have a server of h1, which others have filled, rebuilt; return the host."""
        taken = self.claim("h1", 4)
        hints = {"_nova_check_type": ["rebuild"]}
        server, chosen = self.select(scheduler_hints=hints, force_hosts=["h1"])
        self.assertEqual({taken.wanted.consumer}, set(self.held("h1")))
        self.assertEqual({}, self.held("h2"))
        self.assertEqual({}, self.runtime.claim_metrics.figures())
        self.assertEqual([], self.refusals(server[0]))
        # Nor does it allocate.
        self.assertEqual({}, dict(self.calls))
        return str(chosen[0][0].service_host)

    def test_a_rebuild_claims_nothing(self):
        self.assertEqual("h1", self.rebuild())
        self.assertEqual({"memory": 1}, self.runtime.candidates())

    def test_nor_does_a_rebuild_that_novas_own_code_decides(self):
        engine = self.runtime.decisions.engine
        with mock.patch.object(engine, "plan", autospec=True, side_effect=ZeroDivisionError):
            self.assertEqual("h1", self.rebuild())
        self.assertEqual({"fault of the plugin": 1}, self.runtime.candidates())

    def test_a_request_that_memory_cannot_answer_is_claimed_as_well(self):
        """Two groups of resources: Placement's candidates, and Nova's own choice."""
        for node in self.nodes.values():
            self.inventories(node.uuid, VCPU=4, MEMORY_MB=16384, DISK_GB=100, VGPU=4)
        uuids, chosen = self.select(extra_specs={"resources1:VGPU": "1"})
        self.assertEqual({"more than one group": 1}, self.runtime.candidates())
        held = self.held(chosen[0][0].service_host)[uuids[0]]
        self.assertIs(model.ClaimState.CONFIRMED, held.state)
        self.assertEqual(1, held.resources["VGPU"])

    def test_and_passes_over_what_other_schedulers_claimed(self):
        for node in self.nodes.values():
            self.inventories(node.uuid, VCPU=4, MEMORY_MB=16384, DISK_GB=100, VGPU=4)
        self.claim("h1", 4)
        for _ in range(2):
            chosen = self.select(extra_specs={"resources1:VGPU": "1"})[1]
            self.assertEqual("h2", chosen[0][0].service_host)

    def test_and_looks_again_where_its_view_is_behind(self):
        for node in self.nodes.values():
            self.inventories(node.uuid, VCPU=4, MEMORY_MB=16384, DISK_GB=100, VGPU=4)
        parts = self.runtime.decisions.parts
        own, looks = parts.ways.claimer.take, []

        def settled_meanwhile(request: Any, wanted: Any, deadline: float) -> Any:
            looks.append(wanted[0].chosen.host)
            if len(looks) < 3:
                return [chosen_hosts.RefusedClaim(wanted[0], chosen_hosts.ClaimRefusal.BEHIND)]
            return own(request, wanted, deadline)

        with mock.patch.object(parts.ways.claimer, "take", settled_meanwhile):
            chosen = self.select(extra_specs={"resources1:VGPU": "1"})[1]
        self.assertEqual({chosen[0][0].service_host}, set(looks))


class FullHostsTest(ClaimedDecisionsCase):
    """All hosts are claimed, and others claim and give back while that is to be proved."""

    def writes(self) -> int:
        return self.calls["put allocations"] + self.calls["post allocations"]

    def test_a_request_that_ran_out_of_time_writes_nothing_beside_the_claims_of_others(self):
        self.claim("h1", 4)
        self.claim("h2", 2)
        decider = self.runtime.decisions.decider

        def changed(*_: Any) -> request_decider.FullHosts:
            time.sleep(decider._deadline_seconds)
            return request_decider.FullHosts.CHANGED

        with (
            mock.patch.object(decider, "_deadline_seconds", 0.5),
            mock.patch.object(decider, "_proved_full", changed),
            self.assertRaises(exception.NoValidHost),
        ):
            self.select()
        self.assertEqual(0, self.writes())
        self.assertEqual({"mirror behind": 1}, self.runtime.candidates())

    def test_it_takes_what_is_left_under_a_claim_that_is_judged(self):
        self.claim("h1", 4)
        self.claim("h2", 1)
        decider = self.runtime.decisions.decider
        with mock.patch.object(decider, "schedule", autospec=True, side_effect=MIRROR_BEHIND):
            [server], chosen = self.select()
        self.assertEqual("h2", chosen[0][0].service_host)
        self.assertEqual(1, self.writes())
        self.assertIs(model.ClaimState.CONFIRMED, self.held("h2")[server].state)

    def occupied(self) -> str:
        """Have somebody who claims nothing take all of a host, and the mirror know it."""
        rival = self.allocate_for_rival(self.nodes["h1"].uuid, 4)
        self.wait_for_mirror([rival])
        return rival

    def move(self, host: str = "h1", disk_gb: int = 1) -> outside_claims.OutsideMove:
        node = self.nodes[host].uuid
        resources = {"VCPU": 1, "MEMORY_MB": 1, "DISK_GB": disk_gb}
        request = requests.Request(requests.Flavor(vcpus=1), queries=())
        return outside_claims.OutsideMove(str(uuid.uuid4()), node, resources, request)

    def test_a_host_is_full_only_once_a_proof_met_no_change(self):
        decisions = self.runtime.decisions
        rivals = [self.occupied()]
        own = decisions._proves

        def proves(*args: Any) -> request_decider.FullHosts:
            self.client.delete(f"/allocations/{rivals[-1]}")
            found: request_decider.FullHosts = own(*args)
            if len(rivals) < 3:
                rivals.append(self.occupied())
            return found

        with mock.patch.object(decisions, "_proves", proves):
            claims = decisions.fallback_claims(self.runtime.unjudged.claims(None))
        allocate = mock.Mock(return_value=True)
        self.assertTrue(claims.claimed(self.move(), allocate, self.fail))
        allocate.assert_called_once_with()

    def test_a_host_that_gives_other_amounts_is_proved_for_these(self):
        """With shared storage beside it, say: Placement names who has room for the very amounts."""
        self.settle_later()
        uuids, chosen = self.select(servers=6)
        self.wait_for_mirror(uuids)
        hosts = [each[0].service_host for each in chosen]
        gone = uuids[hosts.index("h2")]
        self.client.delete(f"/allocations/{gone}")
        self.wait_for_mirror([], gone=[gone])
        claims = self.runtime.decisions.fallback_claims(self.runtime.unjudged.claims(None))
        allocate = mock.Mock(return_value=True)
        self.assertFalse(claims.claimed(self.move("h1", disk_gb=100), self.fail, self.fail))
        self.assertTrue(claims.claimed(self.move("h2"), allocate, self.fail))
        allocate.assert_called_once_with()

    def test_where_a_host_s_provider_is_not_known_it_gives_way_to_claims_of_others(self):
        """Any claim would be granted; and who claimed in memory need not look behind its write."""
        taken = self.claim("h1", 4)
        self.runtime.decisions._mirror.stop()
        self.lose_provider("h1")
        move = self.move()
        move = attrs.evolve(move, amounts={move.host: move.resources})
        claims = self.runtime.decisions.fallback_claims(self.runtime.unjudged.claims(None))
        spec = self.spec([move.consumer])
        request = {"allocations": {move.host: {"resources": dict(move.resources)}}}
        context = nova_context.get_admin_context()

        def allocate() -> bool | None:
            return outside_claims.stock_claim_resources(
                context, self.client, spec, move.consumer, request, "1.36"
            )

        self.assertFalse(claims.claimed(move, allocate, self.fail))
        self.assertEqual({taken.wanted.consumer}, set(self.held("h1")))
        self.assertEqual({}, self.ask("get", f"/allocations/{move.consumer}")["allocations"])

    def lose_provider(self, host: str) -> None:
        """Have the back end, and this scheduler, know of a node alone."""
        client = self.runtime.synchronizer
        key = records.RecordKey(known_namespaces.PROVIDERS.name, self.nodes[host].uuid)
        lost = records.Write(key, client.read([key])[key].revision, deleted=True)
        self.assertTrue(client.write([lost])[0].won)
        providers = known_namespaces.PROVIDERS.name
        patience.wait_until(
            lambda: key.key not in self.runtime.store.snapshot().namespace(providers),
            WAIT_SECONDS,
            lambda: "still known",
            0.02,
        )


class ClaimedDevicesTest(ClaimedDecisionsCase):
    """One host with four PCI devices, which Nova's own filter looks at."""

    HOSTS = (
        (
            cloud.CELL1,
            "h1",
            8,
            {
                "pci_device_pools": objects.PciDevicePoolList(
                    objects=[
                        objects.PciDevicePool(
                            vendor_id="8086", product_id="1520", numa_node=None, count=4, tags={}
                        )
                    ]
                )
            },
        ),
    )

    def setUp(self):
        filters = ["ComputeFilter", "PciPassthroughFilter"]
        self.override("enabled_filters", filters, "filter_scheduler")
        super().setUp()
        self.inventories(self.nodes["h1"].uuid, VCPU=8, MEMORY_MB=16384, DISK_GB=100, VGPU=8)
        self.settle_later()

    def select_devices(self, count: int, servers: list[str] | None = None, **fields: Any) -> Any:
        """Select for a server with some devices; for a known one, a move."""
        wanted = objects.InstancePCIRequests(
            requests=[
                objects.InstancePCIRequest(
                    count=count,
                    spec=[{"vendor_id": "8086", "product_id": "1520"}],
                    request_id=str(uuid.uuid4()),
                    alias_name="a",
                    numa_policy="legacy",
                )
            ]
        )
        if servers is None:
            return self.select(pci_requests=wanted, **fields)
        self.beat()
        return self.manager.select_destinations(
            self.admin,
            spec_obj=self.spec(servers, pci_requests=wanted, **fields),
            instance_uuids=servers,
            return_objects=True,
            return_alternates=False,
        )

    def give_to_migration(self, server: str) -> None:
        """A conductor begins a move: what the server had is its migration's."""
        node = self.nodes["h1"].uuid
        self.ask(
            "post",
            "/allocations",
            {
                server: {**self._owner(server), "allocations": {}},
                str(uuid.uuid4()): {
                    **self._owner(),
                    "allocations": {node: {"resources": {"VCPU": 1}}},
                },
            },
        )

    def _owner(self, server: str | None = None) -> dict[str, Any]:
        project = test_memory_decisions.PROJECT
        generation = None
        if server is not None:
            generation = self.ask("get", f"/allocations/{server}")["consumer_generation"]
        return {"project_id": project, "user_id": project, "consumer_generation": generation}

    def test_devices_of_a_server_that_was_deleted_a_moment_ago_are_given_before_a_refusal(self):
        [first], _chosen = self.select_devices(3)
        self.wait_for_mirror([first])
        self.client.delete(f"/allocations/{first}")
        [second], _chosen = self.select_devices(3)
        self.assertEqual({second}, {*self.held("h1")})
        self.assertEqual({"memory": 2}, self.runtime.candidates())
        with self.assertRaises(exception.NoValidHost):
            self.select_devices(3)

    def test_so_they_are_where_novas_own_code_chooses(self):
        two_groups = {"resources1:VGPU": "1"}
        [first], _chosen = self.select_devices(3, extra_specs=two_groups)
        self.wait_for_mirror([first])
        self.client.delete(f"/allocations/{first}")
        self.wait_for_mirror([], gone=[first])
        [second], _chosen = self.select_devices(3, extra_specs=two_groups)
        self.assertEqual({second}, {*self.held("h1")})
        self.assertEqual({"more than one group": 2}, self.runtime.candidates())
        with self.assertRaises(exception.NoValidHost):
            self.select_devices(3, extra_specs=two_groups)

    def test_nobody_is_refused_for_claims_that_ended_and_that_the_feed_does_not_bring(self):
        two_groups = {"resources1:VGPU": "1"}
        [first], _chosen = self.select_devices(3, extra_specs=two_groups)
        self.wait_for_mirror([first])
        self.client.delete(f"/allocations/{first}")
        self.wait_for_mirror([], gone=[first])
        stalls, goes_on = threading.Event(), threading.Event()
        self.addCleanup(goes_on.set)
        synchronizer, duty = self.runtime.synchronizer, self.runtime.decisions.claim_duty
        fetch, prove = synchronizer.fetch, duty.proof.prove

        def fetched(*args: Any) -> Any:
            if stalls.is_set():
                goes_on.wait(WAIT_SECONDS)
            return fetch(*args)

        def proved(*args: Any, **kwargs: Any) -> claim_proof.ProvedClaims:
            stalls.set()
            found: claim_proof.ProvedClaims = prove(*args, **kwargs)
            return found

        with (
            mock.patch.object(synchronizer, "fetch", fetched),
            mock.patch.object(duty.proof, "prove", proved),
        ):
            [second], _chosen = self.select_devices(3, extra_specs=two_groups)
            goes_on.set()
        self.assertEqual({second}, {*self.held("h1")})
        self.assertEqual({"more than one group": 1, "feed behind": 1}, self.runtime.candidates())

    def test_a_refusal_without_those_claims_is_said_on_proved_state_too(self):
        two_groups = {"resources1:VGPU": "1"}
        [first], _chosen = self.select_devices(3, extra_specs=two_groups)
        self.wait_for_mirror([first])
        self.client.delete(f"/allocations/{first}")
        self.wait_for_mirror([], gone=[first])
        # The feed stops while the request is decided once more.
        with mock.patch.object(
            self.runtime.views, "still_proved", autospec=True, side_effect=[True, False]
        ):
            with self.assertRaises(exception.NoValidHost):
                self.select_devices(5, extra_specs=two_groups)
        self.assertEqual(
            {"more than one group": 1, "not proved any more": 1}, self.runtime.candidates()
        )

    def test_a_server_that_moves_again_is_not_refused_the_devices_of_its_former_move(self):
        [server], _chosen = self.select_devices(3)
        for _ in range(2):
            self.wait_for_mirror([server])
            self.give_to_migration(server)
            self.select_devices(2, [server])
            self.assertEqual({server}, {*self.held("h1")})

    def test_so_it_is_where_novas_own_code_chooses(self):
        two_groups = {"resources1:VGPU": "1"}
        [server], _chosen = self.select_devices(3, extra_specs=two_groups)
        for _ in range(2):
            self.wait_for_mirror([server])
            self.give_to_migration(server)
            self.select_devices(2, [server], extra_specs=two_groups)
            self.assertEqual({server}, {*self.held("h1")})

    def test_a_move_is_decided_where_the_claims_of_the_former_one_cannot_be_asked_for(self):
        [server], _chosen = self.select_devices(1)
        self.wait_for_mirror([server])
        self.give_to_migration(server)
        proof = self.runtime.decisions.claim_duty.proof
        with mock.patch.object(proof, "prove_of", autospec=True, side_effect=ZeroDivisionError):
            self.select_devices(1, [server])
        self.assertEqual({"memory": 2}, self.runtime.candidates())


class UnclaimedDecisionsTest(test_memory_decisions.MemoryDecisionsCase):
    """Claims are switched off, and some are left of before."""

    def use(self, fixture: Any) -> None:
        # Before the scheduler is made, and after its options are there.
        self.override("claims", "off", "nodb_scheduler")
        super().use(fixture)

    def written(self) -> list[str]:
        """Return the keys of all records of claims that ever were."""
        names = [known_namespaces.CLAIM_RECORDS.name, known_namespaces.GROUP_CLAIMS.name]
        pages = self.runtime.synchronizer.snapshot(names).pages
        return [str(record.key) for page in pages for record in page]

    def test_servers_are_placed_and_nothing_is_claimed(self):
        uuids, chosen = self.select(servers=2)
        self.assertEqual({"post allocations": 1}, dict(self.calls))
        for server, [selection, *_] in zip(uuids, chosen, strict=True):
            node = self.nodes[selection.service_host].uuid
            held = self.ask("get", f"/allocations/{server}")["allocations"]
            self.assertEqual([node], list(held))
        for _ in range(4):
            self.select()
        # Six servers in four and two VCPUs: what is placed takes room at once.
        with self.assertRaises(exception.NoValidHost):
            self.select()
        self.assertEqual((4, 2), (self.used("h1")["VCPU"], self.used("h2")["VCPU"]))
        self.assertEqual({"memory": 6}, self.runtime.candidates())
        self.assertEqual([], self.written())
        self.assertIs(False, self.runtime._beat()["claiming"])

    def test_members_of_a_group_are_placed_and_nothing_is_claimed(self):
        group = objects.InstanceGroup(
            uuid=GROUP, policy="anti-affinity", policies=["anti-affinity"], members=[], hosts=[]
        )
        group._rules = {}
        _uuids, chosen = self.select(servers=2, instance_group=group)
        self.assertEqual({"h1", "h2"}, {each[0].service_host for each in chosen})
        self.assertEqual([], self.written())

    def test_novas_own_choice_claims_nothing_either(self):
        for node in self.nodes.values():
            self.inventories(node.uuid, VCPU=4, MEMORY_MB=16384, DISK_GB=100, VGPU=4)
        self.select(extra_specs={"resources1:VGPU": "1"})
        self.assertEqual({"more than one group": 1}, self.runtime.candidates())
        self.assertEqual([], self.written())

    def test_nor_do_conductors(self):
        # They look at what they wrote.
        outside = self.plugin.outside_claims()
        self.assertIsInstance(outside, unjudged_claims.UnjudgedClaims)
        self.override("verify_allocations", "never", "nodb_scheduler")
        self.assertIsNone(self.plugin.outside_claims())

    def test_claims_of_before_end(self):
        node = self.nodes["h1"].uuid
        synchronizer = self.runtime.synchronizer
        ledger = single_claims.stranger(synchronizer, 0.1)
        claim = model.Claim(str(uuid.uuid4()), node, {"VCPU": 4})
        answer = ledger.claim(claim, lambda record: True, synchronizer.head())
        self.assertIsInstance(answer, model.Granted)
        self.assertEqual([f"claims/{node}"], self.written())
        deadline = time.monotonic() + 60.0
        while ledger.read(node).claims and time.monotonic() < deadline:
            self.beat()
            time.sleep(0.1)
        self.assertEqual({}, ledger.read(node).claims)
