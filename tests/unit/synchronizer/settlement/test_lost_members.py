# SPDX-License-Identifier: Apache-2.0
"""A strict group's policy holds though the back end forgets who is on the way to a host.

Workers with a store, a feed and two ways to take a place: by a view of the store, as who
decides from memory, and by none, as Nova's own path. Their threads are the test's.
"""

from __future__ import annotations

import unittest
from collections.abc import Collection
from typing import Any
from unittest import mock

import hypothesis
from hypothesis import strategies as st

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import group_claims, records, requests
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.claims import (
    claim_views,
    group_places,
    group_rules,
    ledger_claimer,
)
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.records import record_editor
from nova_nodb_scheduler.synchronizer.replication import replicator, replicator_contract
from nova_nodb_scheduler.synchronizer.settlement import lost_members, settlement_worker
from nova_nodb_scheduler.wire import codec
from tests.unit.scheduling import claims, hosts

LEASE_SECONDS = 10.0
HOSTS = ("h1", "h2", "h3")
APART, TOGETHER = (
    requests.Request(
        requests.Flavor(vcpus=1),
        queries=(),
        group=requests.Group(policy, policy, frozenset([policy])),
    )
    for policy in ("anti-affinity", "affinity")
)
BOTH = (APART, TOGETHER)


def node_of(host: str) -> str:
    return f"n-{host}"


class OwnViews:
    """As Nova's own path sees hosts: nothing of them, and the back end as it is."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def view(self, request: requests.Request) -> ledger_claimer.ClaimView:
        worker = self._worker
        return ledger_claimer.ClaimView(
            worker.client.head(), lambda claim, record: True, place_of=worker.lost.place_of
        )

    def members(self, group: requests.Group) -> group_rules.Known:
        return {}


class Worker:
    """One scheduler worker.

    :param remembers: whether it keeps what is lost
    """

    def __init__(self, world: World, name: str, *, remembers: bool = True) -> None:
        self.world, self.name = world, name
        self.client = memory.MemorySynchronizer(shared_hub=world.hub)
        self.client.open()
        self.store = host_state_store.HostStateStore(known_namespaces.BUILT_IN, codec.decode_state)
        self.replicator = replicator.Replicator(
            self.client,
            self.store,
            known_namespaces.BUILT_IN,
            identity=name,
            clock=world.clock,
            options=replicator_contract.ReplicatorOptions(canary_interval_seconds=1.0),
        )
        self.cache = record_editor.RecordCache()
        self.lost = lost_members.LostMembers(
            self.client, self.store, self.replicator, self.cache, world.clock
        )
        self.replicator.tell_former(self.lost.outlive)
        views = claim_views.StoreViews(
            self.store, self.replicator, lambda snapshot, request: lambda claim, record: True
        )
        memory_of = self.lost if remembers else group_places.MemberMemory()
        self.batches = ledger_claimer.ClaimBatches(
            self.client,
            name,
            world.make_id,
            LEASE_SECONDS,
            lambda host: True,
            now_seconds=world.clock,
            pause=lambda count: None,
            cache=self.cache,
            shown=views.shown,
            memory=memory_of,
        )
        clock = {"clock": world.clock, "sleep": world.sleep}
        self.from_memory = ledger_claimer.LedgerClaimer(self.batches, views, **clock)
        self.own_path = ledger_claimer.LedgerClaimer(self.batches, OwnViews(self), **clock)

    def follow(self) -> None:
        for _ in range(1000):
            outcome = self.replicator.step()
            if outcome is replicator_contract.StepOutcome.IDLE:
                return
            if outcome is replicator_contract.StepOutcome.BACKING_OFF:
                self.world.clock.now += 1.0
        raise AssertionError(f"{self.name} is still busy")

    def take(
        self, consumer: str, host: str, request: requests.Request, by: Any = None
    ) -> chosen_hosts.TakenClaim | chosen_hosts.RefusedClaim:
        chosen = chosen_hosts.Choice(0, node_of(host), hosts.CELL, host, host, 0.0, ())
        wanted = chosen_hosts.WantedClaim(consumer, chosen, {"VCPU": 1})
        claimer = by or self.from_memory
        [answer] = claimer.take(request, [wanted], self.world.clock() + 5.0)
        return answer

    def place(self, consumer: str, host: str, request: requests.Request) -> bool:
        """Take a place and confirm it, as a request that is answered; False if it is refused."""
        answer = self.take(consumer, host, request)
        if not isinstance(answer, chosen_hosts.TakenClaim):
            return False
        self.world.allocations[consumer] = node_of(host)
        return self.from_memory.confirm([answer])[0]

    def may(self, consumer: str, host: str, request: requests.Request, by: Any = None) -> bool:
        """Say whether a member may go to a host; it does not."""
        claimer = by or self.from_memory
        answer = self.take(consumer, host, request, by)
        if not isinstance(answer, chosen_hosts.TakenClaim):
            return False
        claimer.release([answer])
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class World:
    """A back end, and what conductors publish."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.hub = memory.MemoryHub(clock=self.clock)
        self.client = memory.MemorySynchronizer(shared_hub=self.hub)
        self.client.open()
        self._ids = iter(range(10**9))
        #: Nodes by consumer, as Placement has them.
        self.allocations: dict[str, str] = {}
        self.publish_nodes()

    def make_id(self) -> str:
        return str(next(self._ids))

    def sleep(self, seconds: float) -> None:
        self.clock.now += seconds

    def put(self, namespace: Any, key: str, state: Any) -> None:
        name = records.RecordKey(namespace.name, key)
        found = self.client.read([name]).get(name)
        revision = 0 if found is None else found.revision
        if state is None:
            write = records.Write(name, revision, deleted=True)
        else:
            write = records.Write(name, revision, codec.encode(state, namespace.schema))
        [result] = self.client.write([write])
        assert result.won, result

    def publish_nodes(self) -> None:
        for host in HOSTS:
            state = hosts.node(node_of(host), host)
            self.put(known_namespaces.COMPUTE_NODES, node_of(host), state)

    def publish(self, consumer: str, host: str | None, **row: Any) -> None:
        state = claims.instance(consumer, host, f"node-{host}", **row)
        self.put(known_namespaces.INSTANCES, f"{consumer}@{hosts.CELL}", state)

    def lose(self) -> None:
        """Have the back end forget all; nothing is published again."""
        self.hub.begin_epoch()

    def group(self, request: requests.Request) -> group_claims.GroupRecord:
        assert request.group is not None
        key = group_rules.group_key(request.group.uuid)
        found = self.client.read([key]).get(key)
        if found is None or found.deleted:
            return group_claims.GroupRecord(key.key)
        state = codec.decode_state(found.payload)
        return group_claims.GroupRecord.from_state(key.key, state, found.version)

    def places(self, request: requests.Request) -> set[group_claims.Place]:
        return set(self.group(request).members)


class LostMembersCase(unittest.TestCase):
    def setUp(self) -> None:
        self.world = World()
        self.one, self.other = (Worker(self.world, name) for name in ("one", "other"))
        self.all_follow()

    def all_follow(self) -> None:
        for each in (self.one, self.other):
            each.follow()

    def both_on_their_way(self) -> None:
        """A member of each group is on its way to h1, as everybody knows."""
        for request in BOTH:
            self.assertTrue(self.one.place(f"first of {request.group.uuid}", "h1", request))
        self.all_follow()

    def assert_kept(self, worker: Worker, by: Any = None) -> None:
        """A third goes where the policies of both groups want it, and nowhere else."""
        self.assertFalse(worker.may("x", "h1", APART, by))
        self.assertTrue(worker.may("x", "h2", APART, by))
        self.assertFalse(worker.may("y", "h2", TOGETHER, by))
        self.assertTrue(worker.may("y", "h1", TOGETHER, by))


class JudgedTest(LostMembersCase):
    def test_without_a_memory_of_them_lost_members_keep_nobody_away(self):
        """What this is here for: the same moment, and nobody remembers."""
        self.both_on_their_way()
        forgetful = Worker(self.world, "forgetful", remembers=False)
        forgetful.follow()
        self.world.lose()
        forgetful.follow()
        self.assertTrue(forgetful.may("x", "h1", APART))
        self.assertTrue(forgetful.may("y", "h2", TOGETHER, forgetful.own_path))

    def test_novas_own_path_counts_them_before_its_worker_knows_of_the_loss(self):
        self.both_on_their_way()
        self.world.lose()
        for worker in (self.one, self.other):
            self.assert_kept(worker, worker.own_path)

    def test_who_decides_from_memory_is_refused_until_it_knows_and_counts_them_then(self):
        self.both_on_their_way()
        self.world.lose()
        self.assertFalse(self.other.may("x", "h2", APART))
        self.all_follow()
        for worker in (self.one, self.other):
            self.assert_kept(worker)
            self.assert_kept(worker, worker.own_path)

    def test_they_count_while_the_store_is_built_anew(self):
        self.both_on_their_way()
        self.world.lose()
        for number in range(3000):
            self.world.publish(f"c{number}", "h3")
        for _ in range(4):
            self.one.replicator.step()
            self.assert_kept(self.one, self.one.own_path)
        self.assertIsNone(self.one.replicator.followed())
        self.one.lost.turn()
        self.all_follow()
        self.assert_kept(self.one)

    def test_a_second_loss_while_the_store_is_built_loses_none(self):
        self.both_on_their_way()
        for _ in range(3):
            self.world.lose()
            for number in range(3000):
                self.world.publish(f"c{number}", "h3")
            for _ in range(3):
                self.one.replicator.step()
        self.assert_kept(self.one, self.one.own_path)
        self.all_follow()
        self.assert_kept(self.one)

    def test_one_that_was_noted_again_outlives_the_next_loss_too(self):
        self.both_on_their_way()
        for _ in range(4):
            self.world.lose()
            self.one.follow()
            self.one.lost.turn()
            self.one.follow()
            self.one.lost.turn()
            self.assertEqual(0, len(self.one.lost))
        self.assert_kept(self.one)

    def test_what_leads_to_a_place_is_written_with_it(self):
        self.both_on_their_way()
        self.world.lose()
        self.one.follow()
        self.assertTrue(self.one.place("x", "h2", APART))
        self.assertEqual({("first of anti-affinity", "h1"), ("x", "h2")}, self.world.places(APART))

    def test_what_this_process_confirmed_last_counts_though_no_feed_brought_it(self):
        for request in BOTH:
            self.assertTrue(self.one.place(f"first of {request.group.uuid}", "h1", request))
        self.world.lose()
        self.assert_kept(self.one, self.one.own_path)
        self.one.follow()
        self.assert_kept(self.one)

    def test_what_is_confirmed_while_it_is_learned_that_all_is_lost_counts(self):
        answer = self.one.take("first", "h1", APART)
        own = self.one.client.write

        def write(writes: Any) -> Any:
            done = own(writes)
            if any(each.key == group_rules.group_key("anti-affinity") for each in writes):
                self.one.client.write = own
                self.world.lose()
                self.one.follow()
            return done

        self.one.client.write = write
        self.one.batches.confirm([answer.grant])
        # Its claim on the host is gone: so is its place, which nobody notes again.
        self.one.lost.turn()
        self.assertEqual(set(), self.world.places(APART))
        self.assertTrue(self.one.may("x", "h1", APART))

    def test_a_pending_one_is_gone_with_its_claim_and_keeps_nobody_away(self):
        taken = [self.one.take(f"first of {each.group.uuid}", "h1", each) for each in BOTH]
        self.all_follow()
        self.world.lose()
        self.all_follow()
        self.assertEqual([False, False], self.one.from_memory.confirm(taken))
        for worker in (self.one, self.other):
            self.assertTrue(worker.may("x", "h1", APART))
            self.assertTrue(worker.may("y", "h2", TOGETHER))

    def test_one_that_was_given_back_is_not_remembered(self):
        answer = self.one.take("first", "h1", APART)
        self.one.from_memory.confirm([answer])
        self.one.from_memory.release([answer])
        self.world.lose()
        self.one.follow()
        self.assertEqual(0, len(self.one.lost))

    def test_a_member_that_was_noted_by_its_node_is_known_by_its_host(self):
        key = group_rules.group_key("anti-affinity")
        member = group_claims.Member(model.ClaimState.CONFIRMED, "i", "conductor")
        record = group_claims.GroupRecord(key.key).with_member(("first", node_of("h1")), member)
        self.world.put(known_namespaces.GROUP_CLAIMS, key.key, record.to_state())
        self.all_follow()
        self.world.lose()
        self.one.follow()
        # The back end has no node any more.
        self.assertFalse(self.one.may("x", "h1", APART, self.one.own_path))

    def test_nothing_is_looked_at_while_nothing_is_lost(self):
        self.both_on_their_way()
        with mock.patch.object(
            self.one.store, "snapshot", autospec=True, side_effect=AssertionError
        ):
            epoch = self.one.client.head().epoch
            self.assertEqual({}, self.one.lost.of("anti-affinity", epoch))


class NotedTest(LostMembersCase):
    def turns(self, *workers: Worker) -> None:
        for each in workers or (self.one, self.other):
            each.follow()
            each.lost.turn()
            each.follow()
            each.lost.turn()

    def test_a_worker_that_begins_then_knows_them_and_a_conductor_without_a_store(self):
        self.both_on_their_way()
        self.world.lose()
        self.turns(self.one)
        new = Worker(self.world, "new")
        new.follow()
        self.assert_kept(new)
        self.assert_kept(new, new.own_path)

    def test_several_note_each_once_and_as_it_was(self):
        self.both_on_their_way()
        before = {each.group.uuid: self.world.group(each) for each in BOTH}
        self.world.lose()
        self.turns(self.one)
        versions = {each.group.uuid: self.world.group(each).version for each in BOTH}
        self.turns()
        for request in BOTH:
            now = self.world.group(request)
            self.assertEqual(versions[request.group.uuid], now.version)
            ids = {place: each.claim_id for place, each in now.members.items()}
            then = before[request.group.uuid].members
            self.assertEqual({place: each.claim_id for place, each in then.items()}, ids)
            # Of this epoch: versions of the former one say nothing here.
            for each in now.members.values():
                self.assertEqual(now.version, each.confirmed_by)

    def test_what_is_noted_is_remembered_until_the_store_has_it_and_no_longer(self):
        self.both_on_their_way()
        self.world.lose()
        self.one.follow()
        self.assertEqual(2, len(self.one.lost))
        self.one.lost.turn()
        self.assertEqual(2, len(self.one.lost))
        self.one.follow()
        self.one.lost.turn()
        self.assertEqual(0, len(self.one.lost))
        self.assert_kept(self.one)

    def test_nothing_is_asked_of_the_back_end_where_nothing_is_lost(self):
        self.both_on_their_way()
        with mock.patch.object(self.one.client, "read", autospec=True, side_effect=AssertionError):
            self.one.lost.turn()

    def test_a_store_that_is_half_built_is_no_reason_to_forget_any(self):
        self.both_on_their_way()
        self.world.lose()
        for number in range(3000):
            self.world.publish(f"c{number}", "h3")
        self.one.replicator.step()
        self.one.replicator.step()
        self.one.lost.turn()
        self.assertEqual(set(), self.world.places(APART))
        self.assertEqual(2, len(self.one.lost))

    def test_a_worker_that_slept_notes_nothing_of_servers_that_rest_elsewhere_or_failed(self):
        self.both_on_their_way()
        self.assertTrue(self.one.place("failed", "h2", APART))
        self.all_follow()
        self.world.lose()
        self.world.clock.now += 3600.0
        self.world.publish_nodes()
        self.world.publish("first of anti-affinity", "h3", vm_state="active")
        self.world.publish("first of affinity", "h3", vm_state="active", task_state="migrating")
        self.world.publish("failed", None, vm_state="error")
        self.turns(self.other)
        self.assertEqual(set(), self.world.places(APART))
        self.assertEqual({("first of affinity", "h1")}, self.world.places(TOGETHER))

    def test_who_is_away_notes_it_later_and_gives_it_up_after_a_while(self):
        self.both_on_their_way()
        self.one.lost.outlive(self.one.store.snapshot())
        self.world.lose()
        self.world.hub.faults.go_down()
        self.one.replicator.step()
        self.one.lost.turn()
        self.assertEqual(2, len(self.one.lost))
        self.world.clock.now += lost_members.KEPT_SECONDS + 1.0
        with self.assertLogs(lost_members.LOG, "WARNING"):
            self.one.lost.turn()
        self.assertEqual(0, len(self.one.lost))

    def test_of_what_it_has_no_room_for_a_process_remembers_its_own_first(self):
        for number in range(4):
            request = requests.Request(
                requests.Flavor(vcpus=1),
                queries=(),
                group=requests.Group(f"g{number}", "affinity", frozenset(["affinity"])),
            )
            worker = self.one if number % 2 else self.other
            self.assertTrue(worker.place(f"m{number}", "h1", request))
        self.all_follow()
        self.world.lose()
        with mock.patch.object(lost_members, "MOST_MEMBERS", 2):
            self.one.follow()
        self.assertEqual({"g1", "g3"}, set(self.one.lost._lost))

    def test_a_record_of_a_newer_release_keeps_no_other_from_being_noted(self):
        self.both_on_their_way()
        self.world.lose()
        schema = type(known_namespaces.GROUP_CLAIMS.schema)(2, 0)
        key = group_rules.group_key("affinity")
        self.world.client.write([records.Write(key, 0, codec.encode({}, schema))])
        self.turns(self.one)
        self.assertEqual({("first of anti-affinity", "h1")}, self.world.places(APART))


class EndedTest(LostMembersCase):
    """Noted again it ends like any place."""

    def setUp(self) -> None:
        super().setUp()
        self.settler = settlement_worker.Settler(
            self.one.client,
            self.one.store,
            self.one.replicator.followed,
            self.ask,
            self.world.clock,
            settlement_worker.SettlementOptions(),
            self.world.clock,
        )

    def ask(self, consumer: str) -> Any:
        node = self.world.allocations.get(consumer)
        return {node: {"VCPU": 1}} if node else {}

    def pass_seconds(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.world.clock.now += 1.0
            self.one.follow()
            self.one.lost.turn()
            self.settler.turn()

    def test_a_member_that_was_deleted_meanwhile_keeps_others_away_for_a_minute_at_the_most(self):
        self.both_on_their_way()
        self.world.lose()
        self.world.allocations.clear()
        self.pass_seconds(50)
        self.assertEqual({("first of anti-affinity", "h1")}, self.world.places(APART))
        self.pass_seconds(25)
        for request in BOTH:
            self.assertEqual(set(), self.world.places(request))
        self.assertTrue(self.one.may("x", "h1", APART))

    def test_a_member_that_is_built_for_an_hour_counts_until_its_host_shows_it(self):
        self.both_on_their_way()
        self.world.lose()
        self.pass_seconds(3600)
        self.assert_kept(self.one, self.one.own_path)
        for request in BOTH:
            self.world.publish(f"first of {request.group.uuid}", "h1", vm_state="active")
        self.pass_seconds(60)
        # Who was held up with an old list of members knows them by the record alone.
        self.assert_kept(self.one, self.one.own_path)
        self.pass_seconds(60)
        for request in BOTH:
            self.assertEqual(set(), self.world.places(request))

    def test_one_that_its_host_shows_before_it_is_noted_ends_all_the_same(self):
        self.both_on_their_way()
        self.world.lose()
        self.world.publish_nodes()
        for request in BOTH:
            self.world.publish(f"first of {request.group.uuid}", "h1", vm_state="active")
        self.pass_seconds(60)
        self.assert_kept(self.one, self.one.own_path)
        self.pass_seconds(60)
        for request in BOTH:
            self.assertEqual(set(), self.world.places(request))


#: What one server of a group does next: asked of a worker, it takes a place or does not.
_MOVES = st.lists(
    st.one_of(
        st.tuples(
            st.just("place"),
            st.integers(0, 1),
            st.sampled_from(HOSTS),
            st.booleans(),
            st.booleans(),
        ),
        st.tuples(st.just("lose")),
        st.tuples(st.just("follow"), st.integers(0, 1)),
        st.tuples(st.just("step"), st.integers(0, 1)),
        st.tuples(st.just("turn"), st.integers(0, 1)),
        st.tuples(st.just("reach"), st.integers(0, 20)),
    ),
    max_size=30,
)


class PolicyPropertyTest(unittest.TestCase):
    """Two workers, losses at any moment, members that reach their hosts or do not.

    Before each loss both have what was confirmed: what the feed brings late is its delay's.
    """

    @hypothesis.settings(max_examples=150, deadline=None)
    @hypothesis.given(_MOVES)
    def test_no_order_of_events_breaks_a_policy(self, moves: Collection[tuple[Any, ...]]) -> None:
        world = World()
        workers = [Worker(world, name) for name in ("one", "other")]
        for each in workers:
            each.follow()
        placed: dict[tuple[str, str], str] = {}
        for number, (what, *how) in enumerate(moves):
            if what == "lose":
                for each in workers:
                    each.follow()
                world.lose()
                world.publish_nodes()
            elif what == "follow":
                workers[how[0]].follow()
            elif what == "step":
                workers[how[0]].replicator.step()
            elif what == "turn":
                workers[how[0]].lost.turn()
            elif what == "reach":
                server = sorted(placed)[how[0] % len(placed)] if placed else None
                if server is not None:
                    world.publish(server[1], placed[server], vm_state="active")
            else:
                worker, host, apart, own = workers[how[0]], how[1], how[2], how[3]
                request = APART if apart else TOGETHER
                claimer = worker.own_path if own else worker.from_memory
                answer = worker.take(f"m{number}", host, request, claimer)
                if isinstance(answer, chosen_hosts.TakenClaim) and claimer.confirm([answer])[0]:
                    placed[request.group.uuid, f"m{number}"] = host
            together = [host for (group, _), host in placed.items() if group == "affinity"]
            apart_hosts = [host for (group, _), host in placed.items() if group != "affinity"]
            self.assertLessEqual(len(set(together)), 1, moves)
            self.assertEqual(len(set(apart_hosts)), len(apart_hosts), moves)
