# SPDX-License-Identifier: Apache-2.0
"""Allocations that no claim was judged for, looked at once they are written.

With Nova's own functions and a real Placement; where transactions race, over MariaDB.
"""

from __future__ import annotations

import collections
import functools
import os
import random
import uuid
from collections.abc import Callable
from concurrent import futures
from typing import Any

import prometheus_client
from keystoneauth1 import exceptions as keystone
from nova import exception, objects
from nova.scheduler import utils as scheduler_utils

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import namespaces as namespaces_model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.claims import outside_claims, unjudged_claims
from nova_nodb_scheduler.nova_adapter.decisions import request_allocations
from nova_nodb_scheduler.nova_adapter.placement.allocations import (
    allocation_writer,
    verification,
    write_turns,
)
from nova_nodb_scheduler.nova_adapter.placement.mirror import chosen_trees
from nova_nodb_scheduler.observe import claim_metrics
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts, placing
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.claims import ledger_claimer
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.testing import single_claims
from nova_nodb_scheduler.wire import codec
from tests.functional.nova_adapter import cloud, placement_cloud, placement_mariadb
from tests.functional.nova_adapter.claims import test_outside_claims
from tests.unit.scheduling import hosts as rows


def spec(context: Any) -> Any:
    flavor = objects.Flavor(
        vcpus=1, memory_mb=64, root_gb=1, ephemeral_gb=0, swap=0, extra_specs={}, name="f"
    )
    return objects.RequestSpec(context, flavor=flavor, project_id="project", user_id="user")


def asked(node: str, vcpus: int = 1, **others: int) -> dict[str, Any]:
    return {
        "allocations": {
            node: {"resources": {"VCPU": vcpus}},
            **{name: {"resources": {"DISK_GB": amount}} for name, amount in others.items()},
        }
    }


class RacesCase(placement_mariadb.MariaDBPlacementCase):
    """Schedulers that allocate by Nova's own function, each with a client of its own."""

    def setUp(self) -> None:
        super().setUp()
        # Nova's objects, and a configuration.
        cloud.databases()
        self.hub = memory.MemoryHub()
        self.synchronizer = memory.MemorySynchronizer(None, self.hub)
        self.synchronizer.open()
        self.addCleanup(setattr, scheduler_utils, "claim_resources", test_outside_claims.PLAIN)
        self.addCleanup(
            setattr,
            scheduler_utils,
            "claim_resources_on_destination",
            test_outside_claims.ON_DESTINATION,
        )

    def go(
        self, own: outside_claims.OutsideClaimer | None, consumer: str, node: str, vcpus: int = 1
    ) -> bool:
        client = self.client()
        with outside_claims.using(own):
            return bool(
                scheduler_utils.claim_resources(
                    self.context, client, spec(self.context), consumer, asked(node, vcpus), "1.36"
                )
            )

    def call(
        self, own: outside_claims.OutsideClaimer | None, node: str, vcpus: int = 1
    ) -> Callable[[], bool]:
        return lambda: self.go(own, str(uuid.uuid4()), node, vcpus)

    def unjudged(self, *, notes: bool = False) -> unjudged_claims.UnjudgedClaims:
        client = self.client()
        return unjudged_claims.UnjudgedClaims(
            verification.AllocationVerifier(lambda: client), self.notes() if notes else None
        )

    def notes(self) -> unjudged_claims.ClaimNotes:
        own = memory.MemorySynchronizer(None, self.hub)
        own.open()
        batches = ledger_claimer.ClaimBatches(
            own, "unjudged", lambda: str(uuid.uuid4()), 60.0, lambda host: True
        )
        return unjudged_claims.ClaimNotes(own, batches, 5.0)

    def write(
        self,
        consumer: str,
        node: str,
        *,
        verifies: bool,
        turns: write_turns.WriteTurns | None = None,
    ) -> placing.AllocationOutcome:
        """Write as a scheduler that decided from memory, under its claim."""
        client = self.client()
        turns = turns or write_turns.WriteTurns()
        placement = request_allocations.AllocationAccess(
            lambda: client,
            allocation_writer.AllocationWriter(client, turns=turns),
            lambda hosts: None,
            verification.AllocationVerifier(lambda: client),
            "always" if verifies else "never",
            lambda chosen: {},
            _JustCompared(),
            turns=turns,
        )
        written = request_allocations.RequestAllocations(
            placement,
            self.context,
            spec(self.context),
            host_state_store.HostStateStore((), codec.decode_state).snapshot,
        )
        chosen = chosen_hosts.Choice(0, node, "", "h1", "h1", 0.0, (asked(node),))
        wanted = chosen_hosts.WantedClaim(consumer, chosen, {"VCPU": 1})
        return written.write([wanted], allocation_writer.time.monotonic() + 30.0)[consumer]

    def standing(self, node: str) -> dict[str, model.HeldClaim]:
        return dict(single_claims.stranger(self.synchronizer).read(node).claims)

    def known_node(self, vcpus: int) -> str:
        """Make a provider, and have the back end hold its node."""
        node = self.node_alone(vcpus)
        state = rows.provider(inventories={"VCPU": rows.inventory(vcpus)}, allocations={})
        self.publish(known_namespaces.PROVIDERS, node, state)
        return node

    def node_alone(self, vcpus: int) -> str:
        """The same, where the back end is not told yet of what the provider gives."""
        node = self.provider(VCPU=vcpus)
        self.publish(known_namespaces.COMPUTE_NODES, node, rows.node(node, "h1"))
        return node

    def publish(self, namespace: namespaces_model.Namespace, key: str, state: Any) -> None:
        name = records.RecordKey(namespace.name, key)
        write = records.Write(name, 0, codec.encode(state, namespace.schema))
        self.assertTrue(self.synchronizer.write([write])[0].won)


class RacingSchedulersTest(RacesCase):
    def test_eight_schedulers_on_novas_own_path_fill_four_slots_and_no_more(self) -> None:
        stock, ours = [], []
        for _ in range(3):
            for granted, make in ((stock, lambda: None), (ours, self.unjudged)):
                node = self.provider(VCPU=4)
                calls = [self.call(make(), node) for _ in range(8)]
                answered = sum(self.together(calls))
                self.assertEqual(answered, len(self.consumers(node)))
                granted.append(answered)
        # What this is about: Placement by itself grants too much.
        self.assertGreater(max(stock), 4, stock)
        self.assertLessEqual(max(ours), 4, f"stock: {stock}")
        # Those that give way to one another try again, at random and so often only:
        # on a busy machine a slot may stay free, which is no over-commit.
        self.assertGreaterEqual(min(ours), 1, f"{ours}; stock: {stock}")
        self.assertGreaterEqual(sum(ours), 8, f"{ours}; stock: {stock}")

    def test_a_few_large_ones_leave_none_out_that_fits(self) -> None:
        node = self.provider(VCPU=8)
        calls = [self.call(self.unjudged(), node, vcpus=4) for _ in range(4)]
        self.assertEqual(2, sum(self.together(calls)))
        self.assertEqual({"VCPU": 8}, self.usages(node))


class MixedRaceTest(RacesCase):
    """One's transaction has read what is used when another writes, and sees no more of it."""

    def test_without_verification_the_transaction_that_was_held_over_commits(self) -> None:
        node = self.provider(VCPU=1)
        consumer = str(uuid.uuid4())
        with self.transaction_held(consumer) as held:
            late = self.started(lambda: self.go(None, consumer, node))
            self.assertTrue(held.arrived.wait(placement_mariadb.WAIT_SECONDS))
            self.assertTrue(self.go(None, str(uuid.uuid4()), node))
            held.go_on.set()
            self.assertTrue(late.result(placement_mariadb.WAIT_SECONDS))
        self.assertEqual({"VCPU": 2}, self.usages(node))

    def test_who_notes_a_server_second_gives_way_to_a_claim_that_is_not_written_yet(self) -> None:
        node, first, second = self.known_node(1), str(uuid.uuid4()), str(uuid.uuid4())
        with self.transaction_held(first) as held:
            judged = self.started(lambda: self.go(self.conductor(), first, node))
            self.assertTrue(held.arrived.wait(placement_mariadb.WAIT_SECONDS))
            # Placement shows nothing of the first one, and would take the second.
            self.assertFalse(self.go(self.unjudged(notes=True), second, node))
            self.assertEqual({first}, set(self.standing(node)))
            held.go_on.set()
            self.assertTrue(judged.result(placement_mariadb.WAIT_SECONDS))
        self.assertEqual({first}, set(self.consumers(node)))

    def test_a_claim_is_judged_beside_a_server_that_was_noted_before(self) -> None:
        node, first, second = self.known_node(1), str(uuid.uuid4()), str(uuid.uuid4())
        with self.transaction_held(first) as held:
            noted = self.started(lambda: self.go(self.unjudged(notes=True), first, node))
            self.assertTrue(held.arrived.wait(placement_mariadb.WAIT_SECONDS))
            # Should this scheduler die now, its note tells who writes there, and for whom.
            standing = self.standing(node)
            self.assertEqual(
                {first: ("unjudged", model.ClaimState.PENDING)},
                {name: (each.writer, each.state) for name, each in standing.items()},
            )
            self.assertFalse(self.go(self.conductor(), second, node))
            held.go_on.set()
            self.assertTrue(noted.result(placement_mariadb.WAIT_SECONDS))
        self.assertEqual({first}, set(self.consumers(node)))
        self.assertIs(model.ClaimState.CONFIRMED, self.standing(node)[first].state)

    def test_a_note_stands_while_its_write_may_still_be_on_its_way(self) -> None:
        node, consumer = self.known_node(1), str(uuid.uuid4())

        def lose() -> bool:
            raise keystone.ConnectTimeout

        request = outside_claims.requests.Request(outside_claims.requests.Flavor(vcpus=1))
        move = outside_claims.OutsideMove(consumer, node, {"VCPU": 1}, request)
        own = self.unjudged(notes=True)
        self.assertRaises(keystone.ConnectTimeout, own.claimed, move, lose, self.fail)
        self.assertEqual("unjudged", self.standing(node)[consumer].writer)
        self.assertFalse(self.go(self.conductor(), str(uuid.uuid4()), node))

    def test_where_one_cannot_reach_the_back_end_the_other_looks_at_a_tight_host(self) -> None:
        node, unnoted, late = self.known_node(1), str(uuid.uuid4()), str(uuid.uuid4())
        with self.transaction_held(late) as held:
            in_memory = self.started(lambda: self.write(late, node, verifies=True))
            self.assertTrue(held.arrived.wait(placement_mariadb.WAIT_SECONDS))
            self.assertTrue(self.go(self.unjudged(), unnoted, node))
            held.go_on.set()
            outcome = in_memory.result(placement_mariadb.WAIT_SECONDS)
        self.assertIs(placing.AllocationResult.NEXT_HOST, outcome.result)
        self.assertEqual({unnoted}, set(self.consumers(node)))

    def test_without_that_look_it_is_over_committed(self) -> None:
        node, unnoted, late = self.known_node(1), str(uuid.uuid4()), str(uuid.uuid4())
        with self.transaction_held(late) as held:
            in_memory = self.started(lambda: self.write(late, node, verifies=False))
            self.assertTrue(held.arrived.wait(placement_mariadb.WAIT_SECONDS))
            self.assertTrue(self.go(self.unjudged(), unnoted, node))
            held.go_on.set()
            self.assertIs(
                placing.AllocationResult.WRITTEN,
                in_memory.result(placement_mariadb.WAIT_SECONDS).result,
            )
        self.assertEqual({"VCPU": 2}, self.usages(node))

    def test_the_larger_one_looks_twice_where_only_it_can_see_that_the_host_is_tight(self) -> None:
        node, large, small = self.known_node(8), str(uuid.uuid4()), str(uuid.uuid4())
        with self.transaction_held(small) as held:
            in_memory = self.started(lambda: self.write(small, node, verifies=False))
            self.assertTrue(held.arrived.wait(placement_mariadb.WAIT_SECONDS))
            client = self.client()

            def release() -> None:
                # It goes on while the first looks, as transactions do.
                held.go_on.set()
                in_memory.result(placement_mariadb.WAIT_SECONDS)

            verifier = verification.AllocationVerifier(
                lambda: client, sleep=lambda seconds: release()
            )
            own = unjudged_claims.UnjudgedClaims(verifier)
            self.assertFalse(self.go(own, large, node, 8))
        self.assertEqual({small}, set(self.consumers(node)))

    def conductor(self) -> outside_claims.OutsideClaims:
        client = memory.MemorySynchronizer(None, self.hub)
        return outside_claims.OutsideClaims(client, "conductor", 60.0, 5.0)


class LostProviderTest(RacesCase):
    """What lost its data was told of a node again, and not yet of what its provider gives.

    A claim there is granted, whatever stands on the host.
    """

    def conductor(self) -> outside_claims.OutsideClaims:
        client = self.client()
        return outside_claims.OutsideClaims(
            memory.MemorySynchronizer(None, self.hub),
            "conductor",
            60.0,
            5.0,
            unjudged=lambda batches: unjudged_claims.UnjudgedClaims(
                verification.AllocationVerifier(lambda: client)
            ),
        )

    def test_of_two_conductors_that_send_servers_there_no_more_stay_than_fit(self) -> None:
        node, consumer = self.node_alone(1), str(uuid.uuid4())
        with self.transaction_held(consumer) as held:
            late = self.started(lambda: self.go(self.conductor(), consumer, node))
            self.assertTrue(held.arrived.wait(placement_mariadb.WAIT_SECONDS))
            first = self.go(self.conductor(), str(uuid.uuid4()), node)
            held.go_on.set()
            answered = [first, late.result(placement_mariadb.WAIT_SECONDS)]
        self.assertEqual(answered.count(True), self.usages(node).get("VCPU", 0))
        self.assertLessEqual(answered.count(True), 1)

    def test_many_conductors_fill_a_host_and_no_more(self) -> None:
        node = self.node_alone(4)
        answered = sum(self.together([self.call(self.conductor(), node) for _ in range(8)]))
        self.assertEqual(answered, len(self.consumers(node)))
        self.assertLessEqual(answered, 4)
        self.assertGreaterEqual(answered, 1)


class _JustCompared(chosen_trees.ChosenTrees):
    """Trees that were all compared a moment ago."""

    def __init__(self) -> None:
        pass

    def behind(self, *_: Any) -> frozenset[str]:
        return frozenset()


class SchedulerDied(Exception):
    """Between the write of an allocation and the look at it."""


class DyingSchedulerTest(RacesCase):
    """A scheduler writes to a host from two threads, and is killed before one has looked.

    The one has a claim that was judged; the other's could not be. One's transaction has read
    what is used when the other writes.
    """

    #: How long whoever does not wait for the other has to be granted. Less than a turn.
    GRANTED_SECONDS = 2.0

    def judged_by_memory(self, turns: write_turns.WriteTurns, consumer: str, node: str) -> None:
        self.write(consumer, node, verifies=False, turns=turns)

    def judged_on_novas_own_path(
        self, turns: write_turns.WriteTurns, consumer: str, node: str
    ) -> None:
        own, move = self.own_path(turns, consumer, node)
        own.verified(move, self.claiming(consumer, node))()

    def unjudged_and_killed(self, turns: write_turns.WriteTurns, consumer: str, node: str) -> None:
        own, move = self.own_path(turns, consumer, node)
        claim = self.claiming(consumer, node)

        def claim_and_die() -> bool | None:
            claim()
            raise SchedulerDied

        self.assertRaises(SchedulerDied, own.claimed, move, claim_and_die, self.fail)

    def own_path(
        self, turns: write_turns.WriteTurns, consumer: str, node: str
    ) -> tuple[unjudged_claims.UnjudgedClaims, outside_claims.OutsideMove]:
        client = self.client()
        request = outside_claims.requests.Request(outside_claims.requests.Flavor(vcpus=1))
        amounts = {"VCPU": 1}
        move = outside_claims.OutsideMove(consumer, node, amounts, request, amounts={node: amounts})
        verifier = verification.AllocationVerifier(lambda: client, turns=turns)
        return unjudged_claims.UnjudgedClaims(verifier), move

    def claiming(self, consumer: str, node: str) -> Callable[[], bool | None]:
        client = self.client()
        return lambda: outside_claims.stock_claim_resources(
            self.context, client, spec(self.context), consumer, asked(node), "1.36"
        )

    def left(
        self,
        first: Callable[[write_turns.WriteTurns, str, str], None],
        second: Callable[[write_turns.WriteTurns, str, str], None],
        *,
        of_one_process: bool = True,
    ) -> int:
        """Return how much is allocated of a host with one slot, if the first is held meanwhile."""
        turns = write_turns.WriteTurns()
        others = turns if of_one_process else write_turns.WriteTurns()
        node, consumer = self.provider(VCPU=1), str(uuid.uuid4())
        with self.transaction_held(consumer) as held:
            one = self.started(lambda: first(turns, consumer, node))
            self.assertTrue(held.arrived.wait(placement_mariadb.WAIT_SECONDS))
            other = self.started(lambda: second(others, str(uuid.uuid4()), node))
            futures.wait([other], self.GRANTED_SECONDS)
            held.go_on.set()
            for each in (one, other):
                each.result(placement_mariadb.WAIT_SECONDS)
        return self.usages(node).get("VCPU", 0)

    def test_what_it_leaves_fits_beside_a_claim_that_was_judged(self) -> None:
        for judged in (self.judged_by_memory, self.judged_on_novas_own_path):
            with self.subTest(judged=judged.__name__, first="the one that is killed"):
                self.assertEqual(1, self.left(self.unjudged_and_killed, judged))
            with self.subTest(judged=judged.__name__, first="the judged one"):
                self.assertEqual(1, self.left(judged, self.unjudged_and_killed))

    def test_what_it_leaves_of_two_that_were_not_judged_fits(self) -> None:
        self.assertEqual(1, self.left(self.unjudged_and_killed, self.unjudged_and_killed))

    def test_many_threads_at_once_leave_no_more_than_there_is(self) -> None:
        left = []
        for _ in range(3):
            node, turns = self.provider(VCPU=4), write_turns.WriteTurns()
            calls = [
                functools.partial(kind, turns, str(uuid.uuid4()), node)
                for kind in (self.judged_by_memory, *[self.unjudged_and_killed] * 7)
            ]
            self.together(calls)
            left.append(self.usages(node)["VCPU"])
        self.assertEqual([4] * 3, left)

    def test_claims_that_were_judged_in_memory_do_not_wait_for_one_another(self) -> None:
        """Here they do not exclude one another: Placement grants both, so both were under way."""
        self.assertEqual(2, self.left(self.judged_by_memory, self.judged_by_memory))

    def test_on_novas_own_path_no_claim_stands_on_a_host_that_holds_too_much(self) -> None:
        """Not even of two processes: each looks, whatever its claim was judged by."""
        both = self.judged_on_novas_own_path, self.judged_on_novas_own_path
        self.assertLessEqual(self.left(*both, of_one_process=False), 1)

    def test_of_two_processes_it_may_be_too_much_until_it_is_ended(self) -> None:
        """What is not mended, and what the others would find without turns."""
        left = self.left(self.unjudged_and_killed, self.judged_by_memory, of_one_process=False)
        self.assertEqual(2, left)


class VerifierTest(placement_cloud.PlacementCase):
    """One writer; what others do to it is done between its calls."""

    def setUp(self) -> None:
        super().setUp()
        self.client = placement_cloud.Client(self.placement.endpoint)
        self.meter = claim_metrics.ClaimMetrics(prometheus_client.CollectorRegistry())
        self.slept: list[float] = []
        #: Done at each pause, one after the other.
        self.meanwhile: list[Callable[[], Any]] = []
        self.verifier = verification.AllocationVerifier(
            lambda: self.client, meter=self.meter, sleep=self.pause, rng=random.Random(1)
        )
        self.node = self.provider(VCPU=2)
        self.consumer = str(uuid.uuid4())

    def pause(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.meanwhile:
            self.meanwhile.pop(0)()

    def wanted(self, **changes: Any) -> verification.VerifiedAllocation:
        return verification.VerifiedAllocation(self.consumer, {self.node: {"VCPU": 1}}, **changes)

    def put_own(self) -> bool:
        one = placement_cloud.server(self.node, self.consumer)
        return bool(self.put(one).status_code == 204)

    def rival(self, vcpus: int = 2) -> str:
        """Have another server granted, whatever room there is."""
        one = placement_cloud.server(self.node, VCPU=vcpus)
        with placement_mariadb.granting_anything():
            self.assertEqual(204, self.put(one).status_code)
        return one.consumer

    def leave(self, consumer: str) -> None:
        found = self.admin.get(f"/allocations/{consumer}", version="1.28").json()
        empty = placement_cloud.placement_replies.NewServer(
            consumer, {"allocations": {}}, "project", "user"
        )
        done = self.put(empty, found["consumer_generation"])
        self.assertEqual(204, done.status_code, done.text)

    def figures(self) -> dict[str, int]:
        return self.meter.figures()

    def test_what_fits_is_one_request_where_the_capacity_was_just_read(self) -> None:
        wanted = self.wanted(capacities={self.node: {"VCPU": 100}}, is_alone=True)
        self.assertTrue(self.verifier.allocated(wanted, self.put_own))
        self.assertEqual({"get": 1}, dict(self.client.calls))
        self.assertEqual([], self.slept)
        self.assertEqual({"allocations: stands": 1}, self.figures())

    def test_what_fits_is_two_requests_otherwise(self) -> None:
        self.assertTrue(self.verifier.allocated(self.wanted(), self.put_own))
        self.assertEqual({"get": 2}, dict(self.client.calls))

    def test_what_is_too_much_goes_back_and_leaves_no_record(self) -> None:
        def put_and_race() -> bool:
            granted = self.put_own()
            if granted:
                self.rival()
            return granted

        self.assertFalse(self.verifier.allocated(self.wanted(), put_and_race))
        self.assertEqual({"VCPU": 2}, self.usages(self.node))
        self.assertEqual({}, self.held(self.consumer))
        # A new consumer again: Nova writes it on the next host as such.
        elsewhere = placement_cloud.server(self.provider(VCPU=1), self.consumer)
        self.assertEqual(204, self.put(elsewhere).status_code)
        self.assertEqual({"allocations: withdrawn": 1}, self.figures())

    def test_who_waits_while_the_other_withdraws_keeps_what_it_wrote(self) -> None:
        self.assertTrue(self.put_own())
        other = self.rival()
        self.meanwhile = [lambda: self.leave(other)]
        self.assertTrue(self.verifier.stands(self.wanted()))
        self.assertEqual({self.consumer}, set(self.consumers(self.node)))

    def test_who_withdrew_in_vain_writes_again(self) -> None:
        writes: list[bool] = []
        other: list[str] = []

        def put_and_race() -> bool:
            writes.append(self.put_own())
            if len(writes) == 1:
                other.append(self.rival())
            return writes[-1]

        # The other one withdraws as well, after us.
        self.meanwhile = [lambda: None, lambda: self.leave(other[0])]
        self.assertTrue(self.verifier.allocated(self.wanted(), put_and_race))
        self.assertEqual([True, True], writes)
        self.assertEqual({self.consumer}, set(self.consumers(self.node)))

    def test_room_that_grew_since_the_offer_is_looked_for(self) -> None:
        wanted = self.wanted(capacities={self.node: {"VCPU": 0}})
        self.assertTrue(self.verifier.allocated(wanted, self.put_own))

    def test_what_somebody_changed_meanwhile_is_left_alone(self) -> None:
        self.assertTrue(self.put_own())
        self.rival()

        def change() -> None:
            one = placement_cloud.server(self.node, self.consumer, VCPU=2)
            with placement_mariadb.granting_anything():
                self.assertEqual(204, self.put(one, 1).status_code)

        change()
        self.assertIs(verification.Withdrawal.NOT_OURS, self.verifier.withdraw(self.wanted()))
        self.assertEqual({self.node: {"VCPU": 2}}, self.held(self.consumer))

    def test_what_somebody_changes_while_it_is_withdrawn_is_left_alone(self) -> None:
        self.assertTrue(self.put_own())
        own = self.client.put
        changed: list[bool] = []

        def put(*args: Any, **kwargs: Any) -> Any:
            if not changed:
                changed.append(True)
                one = placement_cloud.server(self.node, self.consumer, VCPU=2)
                self.assertEqual(204, self.put(one, 1).status_code)
            return own(*args, **kwargs)

        self.client.put = put
        self.assertIs(verification.Withdrawal.NOT_OURS, self.verifier.withdraw(self.wanted()))
        self.assertEqual({self.node: {"VCPU": 2}}, self.held(self.consumer))

    def test_who_slept_takes_nothing_back_though_it_is_just_what_he_wrote(self) -> None:
        """Another scheduler, asked for the same server anew, found it and answered with it."""
        now = [100.0]
        verifier = verification.AllocationVerifier(
            lambda: self.client, clock=lambda: now[0], sleep=lambda seconds: None
        )
        for slept, withdrawn in ((44.0, verification.Withdrawal.GONE), (46.0, None)):
            wanted = self.wanted()
            self.assertTrue(verifier.granted(wanted, self.put_own))
            now[0] += slept
            if withdrawn is not None:
                self.assertIs(withdrawn, verifier.withdraw(wanted))
                continue
            with self.assertRaises(exception.AllocationUpdateFailed) as caught:
                verifier.take_back(wanted)
            self.assertTrue(verification.may_be_left(caught.exception))
            self.assertEqual({self.node: {"VCPU": 1}}, self.held(self.consumer))

    def test_what_a_server_has_elsewhere_stays(self) -> None:
        source = self.provider(VCPU=1)
        both = {
            "allocations": {
                source: {"resources": {"VCPU": 1}},
                self.node: {"resources": {"VCPU": 1}},
            }
        }
        moved = placement_cloud.placement_replies.NewServer(self.consumer, both, "project", "user")
        self.assertEqual(204, self.put(moved).status_code)
        self.assertIs(verification.Withdrawal.OTHERS_LEFT, self.verifier.withdraw(self.wanted()))
        self.assertEqual({source: {"VCPU": 1}}, self.held(self.consumer))

    def test_shared_storage_is_looked_at_beside_the_node(self) -> None:
        pool = self.provider(DISK_GB=10)
        amounts = {self.node: {"VCPU": 1}, pool: {"DISK_GB": 8}}

        def put() -> bool:
            parts = {name: {"resources": part} for name, part in amounts.items()}
            one = placement_cloud.placement_replies.NewServer(
                self.consumer, {"allocations": parts}, "project", "user"
            )
            with placement_mariadb.granting_anything():
                return bool(self.put(one).status_code == 204)

        wanted = verification.VerifiedAllocation(self.consumer, amounts)
        self.assertTrue(self.verifier.allocated(wanted, put))
        self.consumer = str(uuid.uuid4())
        wanted = verification.VerifiedAllocation(self.consumer, amounts)
        self.assertFalse(self.verifier.allocated(wanted, put))
        self.assertEqual({"VCPU": 1}, self.usages(self.node))
        self.assertEqual({"DISK_GB": 8}, self.usages(pool))

    def test_on_a_provider_whose_capacity_is_no_number_nothing_stands(self) -> None:
        """Nothing is greater than that, so everything would fit."""

        def no_number(call: Callable[[], Any]) -> Any:
            answer = call()
            answer._content = answer.content.replace(
                b'"allocation_ratio": 1.0', b'"allocation_ratio": NaN'
            )
            self.assertIn(b"NaN", answer.content)
            return answer

        self.assertTrue(self.put_own())
        self.client.faults["get"] = [None, no_number] * 2
        self.assertFalse(self.verifier.stands(self.wanted()))

    def test_an_answer_that_is_lost_is_asked_for_again(self) -> None:
        self.client.faults["get"] = [*placement_cloud.BEFORE]
        self.assertTrue(self.verifier.allocated(self.wanted(), self.put_own))

    def test_what_nobody_can_verify_is_not_answered(self) -> None:
        # Placement's answers come again by the time it is withdrawn.
        self.client.faults["get"] = [placement_cloud.lost_before(keystone.ConnectFailure)] * 5
        self.assertFalse(self.verifier.allocated(self.wanted(repeats=False), self.put_own))
        self.assertEqual({}, self.usages(self.node))

    def test_a_withdrawal_whose_answer_is_lost_answers_nobody_with_the_host(self) -> None:
        for lost in placement_cloud.AFTER:
            self.consumer = str(uuid.uuid4())
            self.client.faults["put"] = [lost]
            other: list[str] = []

            def put_and_race(other: list[str] = other) -> bool:
                granted = self.put_own()
                if granted:
                    other.append(self.rival())
                return granted

            self.assertFalse(self.verifier.allocated(self.wanted(repeats=False), put_and_race))
            self.assertEqual({}, self.held(self.consumer))
            self.leave(other[0])

    def test_a_withdrawal_whose_answer_is_lost_in_memorys_path_is_one(self) -> None:
        self.assertTrue(self.put_own())
        self.client.faults["put"] = [placement_cloud.lost_after(keystone.ConnectFailure)]
        self.assertIs(verification.Withdrawal.GONE, self.verifier.withdraw(self.wanted()))

    def test_what_cannot_be_withdrawn_is_not_followed_by_another_host(self) -> None:
        """Nova would write the next host beside it, and nothing would end the first."""
        self.client.faults["get"] = [placement_cloud.lost_before(keystone.ConnectFailure)] * 100
        with self.assertRaises(exception.AllocationUpdateFailed):
            self.verifier.allocated(self.wanted(), self.put_own)

    def test_a_write_whose_answer_nova_took_for_a_refusal_goes_back(self) -> None:
        def put_and_lose() -> bool:
            # As Nova's client says it where a connection broke.
            return not self.put_own()

        self.assertFalse(self.verifier.allocated(self.wanted(), put_and_lose))
        self.assertEqual({}, self.held(self.consumer))

    def test_a_refusal_costs_one_request_and_changes_nothing(self) -> None:
        self.assertFalse(self.verifier.allocated(self.wanted(), lambda: False))
        self.assertEqual({"get": 1}, dict(self.client.calls))
        self.assertEqual({}, self.figures())

    def test_storage_that_a_server_shares_with_its_source_stays_when_a_host_goes_back(self) -> None:
        """An evacuation writes its host beside what the server has, its shared disk unchanged."""
        source, pool = self.provider(VCPU=1), self.provider(DISK_GB=10)
        before = {source: {"VCPU": 1}, pool: {"DISK_GB": 8}}
        self.assertEqual(204, self.put(self.of(before)).status_code)

        def move() -> bool:
            one = self.of({**before, self.node: {"VCPU": 1}})
            done = self.put(one, 1).status_code == 204
            self.rival()
            return done

        amounts = {self.node: {"VCPU": 1}, pool: {"DISK_GB": 8}}
        wanted = verification.VerifiedAllocation(self.consumer, amounts, repeats=False)
        wanted = self.verifier.without_former(wanted)
        self.assertFalse(self.verifier.allocated(wanted, move))
        self.assertEqual(before, self.held(self.consumer))

    def of(self, amounts: dict[str, dict[str, int]]) -> Any:
        parts = {name: {"resources": part} for name, part in amounts.items()}
        return placement_cloud.placement_replies.NewServer(
            self.consumer, {"allocations": parts}, "project", "user"
        )

    def test_a_killed_thread_leaves_nothing_that_it_had_not_verified(self) -> None:
        class Killed(BaseException):
            pass

        def kill(call: Any) -> Any:
            raise Killed

        self.client.faults["get"] = [kill]
        self.assertRaises(Killed, self.verifier.allocated, self.wanted(), self.put_own)
        self.assertEqual({}, self.usages(self.node))

    def test_a_meter_that_raises_changes_nothing(self) -> None:
        class Raising:
            def allocation_verified(self, result: str) -> None:
                raise ZeroDivisionError

        verifier = verification.AllocationVerifier(lambda: self.client, meter=Raising())
        self.assertTrue(verifier.allocated(self.wanted(), self.put_own))

    def test_of_any_rivals_those_who_stay_fit(self) -> None:
        """Writers that look and withdraw in any order: what stays never exceeds what there is.

        Set NODB_PROPERTY_EXAMPLES for more rounds than CI runs.
        """
        for seed in range(max(10, int(os.environ.get("NODB_PROPERTY_EXAMPLES", "0")) // 20)):
            rng = random.Random(seed)
            with self.subTest(seed=seed):
                node = self.provider(VCPU=(capacity := rng.randint(1, 6)))
                stayed = collections.Counter[str]()
                waiting = [(str(uuid.uuid4()), rng.randint(1, 3)) for _ in range(6)]
                for consumer, vcpus in waiting:
                    with placement_mariadb.granting_anything():
                        self.put(placement_cloud.server(node, consumer, VCPU=vcpus))
                rng.shuffle(waiting)
                for consumer, vcpus in waiting:
                    wanted = verification.VerifiedAllocation(consumer, {node: {"VCPU": vcpus}})
                    if self.verifier.stands(wanted):
                        stayed[consumer] = vcpus
                    elif rng.random() < 0.7:
                        self.verifier.withdraw(wanted)
                self.assertLessEqual(stayed.total(), capacity)


class BackEndDownTest(RacesCase):
    def test_a_conductor_whose_back_end_is_down_verifies(self) -> None:
        node, consumer = self.known_node(1), str(uuid.uuid4())
        client = self.client()
        outside = outside_claims.OutsideClaims(
            memory.MemorySynchronizer(None, self.hub),
            "conductor",
            60.0,
            1.0,
            unjudged=lambda batches: unjudged_claims.UnjudgedClaims(
                verification.AllocationVerifier(lambda: client, sleep=lambda seconds: None),
            ),
        )
        self.hub.faults.go_down()
        self.addCleanup(self.hub.faults.come_up)
        with placement_mariadb.granting_anything():
            self.assertTrue(self.go(outside, str(uuid.uuid4()), node))
            self.assertFalse(self.go(outside, consumer, node))
        self.assertEqual({"VCPU": 1}, self.usages(node))

    def test_a_back_end_that_does_not_answer_is_asked_once_in_a_while(self) -> None:
        now = [0.0]
        own = memory.MemorySynchronizer(None, self.hub)
        own.open()
        asked_for: list[int] = []
        head = own.head

        def counted() -> None:
            asked_for.append(1)
            head()

        own.open = counted  # type: ignore[method-assign]
        batches = ledger_claimer.ClaimBatches(
            own, "unjudged", lambda: str(uuid.uuid4()), 60.0, lambda host: True
        )
        notes = unjudged_claims.ClaimNotes(own, batches, 1.0, clock=lambda: now[0])
        request = outside_claims.requests.Request(outside_claims.requests.Flavor(vcpus=1))
        move = outside_claims.OutsideMove(
            str(uuid.uuid4()), self.known_node(1), {"VCPU": 1}, request
        )
        self.hub.faults.go_down()
        for _ in range(3):
            self.assertIsNone(notes.note(move))
        self.assertEqual(1, len(asked_for))
        self.hub.faults.come_up()
        self.assertIsNone(notes.note(move))
        now[0] = 6.0
        self.assertIsNotNone(notes.note(move))

    def test_a_back_end_that_answers_late_delays_not_each_server_where_nobody_judges(self) -> None:
        now = [0.0]
        own = memory.MemorySynchronizer(None, self.hub)
        own.open()
        for name in ("head", "now_seconds", "read", "write"):
            call = getattr(own, name)

            def late(*args: Any, call: Any = call) -> Any:
                now[0] += 2.0
                return call(*args)

            setattr(own, name, late)
        batches = ledger_claimer.ClaimBatches(
            own, "unjudged", lambda: str(uuid.uuid4()), 60.0, lambda host: True
        )
        request = outside_claims.requests.Request(outside_claims.requests.Flavor(vcpus=1))
        node = self.known_node(16)

        def noted(notes: unjudged_claims.ClaimNotes) -> int:
            moves = [
                outside_claims.OutsideMove(str(uuid.uuid4()), node, {"VCPU": 1}, request)
                for _ in range(5)
            ]
            return sum(notes.note(move) is not None for move in moves)

        def notes(*, judged: bool) -> unjudged_claims.ClaimNotes:
            return unjudged_claims.ClaimNotes(
                own, batches, 1.0, are_judged=lambda: judged, clock=lambda: now[0]
            )

        self.assertEqual(1, noted(notes(judged=False)))
        # What others count is noted, however long it takes.
        self.assertEqual(5, noted(notes(judged=True)))
