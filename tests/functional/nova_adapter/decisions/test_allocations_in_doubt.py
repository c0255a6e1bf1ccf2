# SPDX-License-Identifier: Apache-2.0
"""What a request says of allocations whose answers were lost, against a real Placement."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import requests
from keystoneauth1 import exceptions as keystone
from nova import context as nova_context
from nova import exception

from nova_nodb_scheduler.nova_adapter.decisions import request_allocations
from nova_nodb_scheduler.nova_adapter.placement.allocations import (
    allocation_writer,
    verification,
)
from nova_nodb_scheduler.nova_adapter.placement.mirror import chosen_trees, placement_reader
from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts, placing
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.wire import codec
from tests.functional.nova_adapter import cloud, placement_cloud
from tests.functional.nova_adapter.placement import test_verified_allocations

LONG = 30.0
#: How long a request's end is tried.
ENDING = 10.0


class _Compared(chosen_trees.ChosenTrees):
    """Trees that were all compared a moment ago, until somebody has them compared anew."""

    def __init__(self) -> None:
        self.anew: Callable[[], frozenset[str]] = frozenset

    def behind(self, *_: Any, anew: bool = False) -> frozenset[str]:
        return self.anew() if anew else frozenset()


class InDoubtCase(placement_cloud.PlacementCase):
    """One request, on a made clock."""

    def setUp(self) -> None:
        super().setUp()
        # Nova's objects, and a configuration.
        cloud.databases()
        self.client = placement_cloud.Client(self.placement.endpoint)
        self.now = 0.0
        self.trees = _Compared()
        writer = allocation_writer.AllocationWriter(
            self.client, clock=lambda: self.now, sleep=self.sleep, rng=random.Random(1)
        )
        self.context = nova_context.RequestContext("user", "project", is_admin=True)
        self.own = request_allocations.RequestAllocations(
            request_allocations.AllocationAccess(
                lambda: self.client,
                writer,
                lambda hosts: None,
                verification.AllocationVerifier(lambda: self.client, sleep=self.sleep),
                "never",
                lambda chosen: {},
                self.trees,
            ),
            self.context,
            test_verified_allocations.spec(self.context),
            host_state_store.HostStateStore((), codec.decode_state).snapshot,
        )
        self.host = self.provider(VCPU=2)
        self.server = str(uuid.uuid4())

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wanted(
        self, host: str, server: str | None = None, *, moves: bool = False
    ) -> chosen_hosts.WantedClaim:
        asked = test_verified_allocations.asked(host)
        chosen = chosen_hosts.Choice(0, host, "", "h1", "h1", 0.0, (asked,))
        return chosen_hosts.WantedClaim(server or self.server, chosen, {"VCPU": 1}, moves=moves)

    def write(self, *wanted: chosen_hosts.WantedClaim) -> Mapping[str, placing.AllocationResult]:
        found = self.own.write(wanted, self.now + LONG)
        return {name: outcome.result for name, outcome in found.items()}

    def unanswered(self, name: str) -> None:
        """Have no call of a kind get there any more."""
        lost = placement_cloud.lost_before(keystone.ConnectFailure)
        self.client.faults[name] = [lost] * 10_000

    def answered(self) -> None:
        for faults in self.client.faults.values():
            faults.clear()


class NewServersTest(InDoubtCase):
    def test_a_write_that_nobody_finds_may_come_whatever_ends_the_request(self) -> None:
        late: list[Callable[[], Any]] = []

        def keep(call: Callable[[], Any]) -> Any:
            late.append(call)
            raise keystone.ConnectTimeout

        self.client.faults["post"] = [keep] * 10_000
        wanted = self.wanted(self.host)
        self.assertEqual({self.server: placing.AllocationResult.GIVEN_UP}, self.write(wanted))
        self.answered()
        # Nothing is there, so the request may go elsewhere.
        self.own.end_left(self.now + LONG)
        self.assertTrue(self.own.is_in_doubt(wanted))
        late[0]()
        self.assertEqual({"VCPU": 1}, self.usages(self.host))

    def test_a_refusal_is_no_doubt(self) -> None:
        for room, result in (
            (1, placing.AllocationResult.WRITTEN),
            (0, placing.AllocationResult.NEXT_HOST),
        ):
            wanted = self.wanted(self.provider(VCPU=1 + room), str(uuid.uuid4()))
            if not room:
                rival = placement_cloud.server(wanted.chosen.uuid)
                self.assertEqual(204, self.put(rival).status_code)
            self.assertEqual({wanted.consumer: result}, self.write(wanted))
            self.assertFalse(self.own.is_in_doubt(wanted))
            self.own.remove([wanted], self.now + LONG)
            self.assertFalse(self.own.is_in_doubt(wanted))

    def test_what_was_sent_twice_may_come_once_more_when_it_was_taken_back(self) -> None:
        self.client.faults["post"] = [placement_cloud.BEFORE[0]]
        wanted = self.wanted(self.host)
        self.assertEqual({self.server: placing.AllocationResult.WRITTEN}, self.write(wanted))
        self.own.remove([wanted], self.now + LONG)
        self.assertEqual({}, self.usages(self.host))
        self.assertTrue(self.own.is_in_doubt(wanted))

    def late(self) -> None:
        """Have a server's first write come later, behind a second one that is taken back."""
        late: list[Callable[[], Any]] = []

        def keep(call: Callable[[], Any]) -> Any:
            late.append(call)
            raise keystone.ConnectTimeout

        self.client.faults["post"] = [keep]
        wanted = self.wanted(self.host)
        self.assertEqual({self.server: placing.AllocationResult.WRITTEN}, self.write(wanted))
        self.own.remove([wanted], self.now + LONG)
        self.assertEqual({}, self.held(self.server))
        self.comes = late[0]

    def test_what_comes_before_the_next_host_is_written_is_not_added_to(self) -> None:
        self.late()
        self.comes()
        other = self.provider(VCPU=2)
        self.assertEqual(
            {self.server: placing.AllocationResult.WRITTEN}, self.write(self.wanted(other))
        )
        self.assertEqual({other: {"VCPU": 1}}, self.held(self.server))
        self.assertEqual({}, self.usages(self.host))

    def test_what_comes_behind_the_next_host_is_refused(self) -> None:
        self.late()
        other = self.provider(VCPU=2)
        self.write(self.wanted(other))
        self.assertEqual(409, self.comes().status_code)
        self.assertEqual({other: {"VCPU": 1}}, self.held(self.server))

    def test_what_cannot_be_taken_back_before_the_next_host_ends_the_request(self) -> None:
        self.late()
        self.comes()
        other = self.wanted(self.provider(VCPU=2))

        # The write for the next host is answered, and nothing else.
        def once(call: Callable[[], Any]) -> Any:
            self.unanswered("post")
            return call()

        self.client.faults["post"] = [once]
        self.assertEqual({self.server: placing.AllocationResult.GIVEN_UP}, self.write(other))
        self.assertEqual({self.host: {"VCPU": 1}}, self.held(self.server))
        self.answered()
        self.own.end_left(self.now + LONG)
        self.assertEqual({}, self.held(self.server))

    def test_what_another_gave_the_server_meanwhile_stays(self) -> None:
        self.late()
        third, other = self.provider(VCPU=1), self.provider(VCPU=2)
        self.assertEqual(204, self.put(placement_cloud.server(third, self.server)).status_code)
        self.write(self.wanted(other))
        self.assertIn(third, self.held(self.server))

    def test_what_cannot_be_taken_back_is_in_doubt_until_it_is(self) -> None:
        wanted = self.wanted(self.host)
        self.write(wanted)
        self.unanswered("post")
        self.own.remove([wanted], self.now + ENDING)
        self.assertTrue(self.own.is_in_doubt(wanted))
        self.assertRaises(exception.AllocationUpdateFailed, self.own.end_left, self.now + ENDING)
        self.assertTrue(self.own.is_in_doubt(wanted))
        self.answered()
        self.own.end_left(self.now + LONG)
        self.assertFalse(self.own.is_in_doubt(wanted))
        self.assertEqual({}, self.usages(self.host))

    def test_what_another_answered_with_while_this_one_slept_is_not_taken_back(self) -> None:
        """Whatever deadline the end of the request has: it is the write that it counts from."""
        for moves in (False, True):
            wanted = self.wanted(self.host, str(uuid.uuid4()), moves=moves)
            if moves:
                self.client.faults["put"] = [placement_cloud.AFTER[0]]
                self.write(wanted)
            else:
                self.write(wanted)
                self.unanswered("post")
                self.own.remove([wanted], self.now + ENDING)
                self.answered()
            self.now += 61.0
            self.assertRaises(exception.AllocationUpdateFailed, self.own.end_left, self.now + LONG)
            self.assertEqual({self.host: {"VCPU": 1}}, self.held(wanted.consumer))
            self.own._left.clear()

    def test_what_stays_of_a_write_that_breaks_off_is_in_doubt(self) -> None:
        """Of two servers one is refused; that its host cannot be compared ends the request."""
        small = self.provider(MEMORY_MB=1)
        kept, refused = self.wanted(self.host), self.wanted(small, str(uuid.uuid4()))

        def breaks() -> frozenset[str]:
            self.unanswered("post")
            raise placement_reader.PlacementUnanswered("/", "it is away")

        self.trees.anew = breaks
        self.assertRaises(placement_reader.PlacementUnanswered, self.write, kept, refused)
        self.assertEqual([True, False], [self.own.is_in_doubt(each) for each in (kept, refused)])
        self.answered()
        self.own.end_left(self.now + LONG)
        self.assertEqual({}, self.usages(self.host))

    def test_what_a_killed_thread_may_have_written_is_in_doubt(self) -> None:
        class Killed(BaseException):
            pass

        self.client.faults["post"] = [placement_cloud.lost_after(Killed)]
        wanted = self.wanted(self.host)
        self.assertRaises(Killed, self.write, wanted)
        self.assertTrue(self.own.is_in_doubt(wanted))
        self.assertEqual({}, self.usages(self.host))


class MovesTest(InDoubtCase):
    def setUp(self) -> None:
        super().setUp()
        self.source = self.provider(VCPU=1)

    def on_source(self) -> None:
        self.assertEqual(
            204, self.put(placement_cloud.server(self.source, self.server)).status_code
        )

    def test_a_move_without_an_answer_is_not_written_to_a_second_host(self) -> None:
        """Nova takes that for a refusal, and would add the next host to what came all the same."""
        self.on_source()
        for faults in (placement_cloud.AFTER, placement_cloud.BEFORE):
            self.client.faults["put"] = [faults[0]]
            wanted = self.wanted(self.host, moves=True)
            self.assertEqual({self.server: placing.AllocationResult.GIVEN_UP}, self.write(wanted))
            self.assertTrue(self.own.is_in_doubt(wanted))
            self.own.end_left(self.now + LONG)
            self.assertEqual({self.source: {"VCPU": 1}}, self.held(self.server))

    def test_a_move_that_a_gateway_answered_for_is_in_doubt(self) -> None:
        self.on_source()
        self.client.faults["put"] = [placement_cloud.AFTER[2]]
        wanted = self.wanted(self.host, moves=True)
        # What Nova's client makes of a body that is no JSON.
        self.assertRaises(requests.exceptions.JSONDecodeError, self.write, wanted)
        self.assertTrue(self.own.is_in_doubt(wanted))
        self.own.end_left(self.now + LONG)
        self.assertEqual({self.source: {"VCPU": 1}}, self.held(self.server))

    def test_a_move_whose_former_allocation_is_its_migrations_ends_with_nothing(self) -> None:
        """Nova calls it a failure to remove what is not there."""
        self.client.faults["put"] = [placement_cloud.BEFORE[0]]
        wanted = self.wanted(self.host, moves=True)
        self.assertEqual({self.server: placing.AllocationResult.GIVEN_UP}, self.write(wanted))
        self.own.end_left(self.now + LONG)
        self.assertEqual({}, self.held(self.server))

    def test_the_end_of_a_move_waits_for_a_placement_that_starts(self) -> None:
        self.on_source()
        self.client.faults["put"] = [placement_cloud.AFTER[0]]
        self.write(self.wanted(self.host, moves=True))
        self.client.faults["get"] = [placement_cloud.BEFORE[0]] * 5
        self.own.end_left(self.now + LONG)
        self.assertEqual({self.source: {"VCPU": 1}}, self.held(self.server))

    def test_a_move_that_placement_refuses_is_no_doubt(self) -> None:
        self.on_source()
        small = self.provider(MEMORY_MB=1)
        wanted = self.wanted(small, moves=True)
        self.assertEqual({self.server: placing.AllocationResult.NEXT_HOST}, self.write(wanted))
        self.assertFalse(self.own.is_in_doubt(wanted))
