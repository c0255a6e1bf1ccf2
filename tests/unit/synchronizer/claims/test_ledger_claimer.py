# SPDX-License-Identifier: Apache-2.0
"""Claims as whoever decides takes, confirms and gives them back.

Which server group policies a claimer holds hosts to, and which it only notes.
"""

from __future__ import annotations

import threading

import attrs
import testtools

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records, requests
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts
from nova_nodb_scheduler.synchronizer.claims import claim_rules, group_rules, ledger_claimer
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.testing import single_claims as ledgers
from nova_nodb_scheduler.wire import codec
from tests.unit.synchronizer.claims import claiming_schedulers

APART = requests.Request(
    requests.Flavor(vcpus=1),
    queries=(),
    group=requests.Group("g1", "anti-affinity", frozenset(["anti-affinity"])),
)
TOGETHER = attrs.evolve(APART, group=requests.Group("g2", "affinity", frozenset(["affinity"])))


class ClaimerCase(testtools.TestCase):
    """Two schedulers over one back end; hosts h1 and h2 have two VCPUs each."""

    def setUp(self) -> None:
        super().setUp()
        self.clock = claiming_schedulers.Clock()
        self.hub = memory.MemoryHub(clock=self.clock)
        self.shown: dict[str, dict[str, int]] = {}
        self.claimable = {"h1", "h2"}
        self.one, self.other = self.scheduler("one"), self.scheduler("other")

    def scheduler(self, name: str, **options: object) -> claiming_schedulers.Scheduler:
        client = memory.MemorySynchronizer(None, self.hub)
        client.open()
        return claiming_schedulers.Scheduler(
            client,
            name,
            {"h1": 2, "h2": 2},
            self.shown,
            clock=self.clock,
            sleep=self.clock.sleep,
            claimable=self.claimable.__contains__,
            **options,
        )

    def take(
        self,
        scheduler: claiming_schedulers.Scheduler,
        *wanted: chosen_hosts.WantedClaim,
        request: requests.Request = claiming_schedulers.REQUEST,
        within: float = 60.0,
    ) -> list[chosen_hosts.TakenClaim | chosen_hosts.RefusedClaim]:
        return scheduler.claimer.take(request, list(wanted), self.clock() + within)

    def taken(
        self, answer: chosen_hosts.TakenClaim | chosen_hosts.RefusedClaim
    ) -> chosen_hosts.TakenClaim:
        self.assertIsInstance(answer, chosen_hosts.TakenClaim)
        assert isinstance(answer, chosen_hosts.TakenClaim)
        return answer

    def refused(
        self,
        answer: chosen_hosts.TakenClaim | chosen_hosts.RefusedClaim,
        failure: chosen_hosts.ClaimRefusal,
    ) -> chosen_hosts.RefusedClaim:
        self.assertIsInstance(answer, chosen_hosts.RefusedClaim)
        assert isinstance(answer, chosen_hosts.RefusedClaim)
        self.assertIs(failure, answer.failure, answer.detail)
        return answer

    def held(self, host: str) -> dict[str, model.HeldClaim]:
        ledger = ledgers.stranger(self.one.client)
        return dict(ledger.read(host).claims)

    def members(self, group: str) -> set[tuple[str, str]]:
        record = self.one.client.read([group_rules.group_key(group)])
        [found] = record.values()
        state = codec.decode(found.payload).state
        return {(consumer, host) for consumer, hosts in state["members"].items() for host in hosts}

    def count(self, scheduler: claiming_schedulers.Scheduler) -> list[str]:
        """Return a list that names each call to the back end from now on."""
        calls: list[str] = []
        for name in ("read", "write"):
            own = getattr(scheduler.client, name)

            def called(*args: object, _name: str = name, _own=own, **more: object) -> object:
                calls.append(_name)
                return _own(*args, **more)

            setattr(scheduler.client, name, called)
        return calls


class TakingTest(ClaimerCase):
    def test_servers_are_claimed_each_by_itself(self):
        answers = self.take(
            self.one,
            claiming_schedulers.wanted("a", "h1", 2),
            claiming_schedulers.wanted("b", "h1", 1),
            claiming_schedulers.wanted("c", "h2", 1),
        )
        self.taken(answers[0])
        self.refused(answers[1], chosen_hosts.ClaimRefusal.NEXT_HOST)
        self.taken(answers[2])
        self.assertEqual({"a"}, set(self.held("h1")))

    def test_what_another_scheduler_claimed_is_counted(self):
        self.taken(*self.take(self.other, claiming_schedulers.wanted("a", "h1", 2)))
        refused = self.refused(
            *self.take(self.one, claiming_schedulers.wanted("b", "h1")),
            chosen_hosts.ClaimRefusal.NEXT_HOST,
        )
        self.assertEqual("full", refused.detail)

    def test_what_is_shown_and_claimed_is_counted_once(self):
        self.taken(*self.take(self.other, claiming_schedulers.wanted("a", "h1")))
        self.shown["h1"] = {"a": 1}
        self.taken(*self.take(self.one, claiming_schedulers.wanted("b", "h1")))

    def test_a_host_that_this_epoch_has_not_published_is_passed_over(self):
        self.claimable.discard("h1")
        answers = self.take(
            self.one, claiming_schedulers.wanted("a", "h1"), claiming_schedulers.wanted("b", "h2")
        )
        refused = self.refused(answers[0], chosen_hosts.ClaimRefusal.NEXT_HOST)
        self.assertEqual("not yet published in this epoch", refused.detail)
        self.taken(answers[1])

    def test_a_view_of_a_former_epoch_grants_nothing(self):
        self.one.views.epoch = self.one.client.head().epoch
        self.hub.begin_epoch()
        self.refused(
            *self.take(self.one, claiming_schedulers.wanted("a", "h1")),
            chosen_hosts.ClaimRefusal.BEHIND,
        )
        self.assertEqual({}, self.held("h1"))

    def tell_epochs(self, scheduler: claiming_schedulers.Scheduler) -> list[str]:
        """Have a driver's writes tell their epoch; return a list that names each head()."""
        write, head = scheduler.client.write, scheduler.client.head
        asked: list[str] = []

        def telling(writes):
            epoch = self.hub.head().epoch
            return [attrs.evolve(each, epoch=epoch) for each in write(writes)]

        def counted() -> records.Cursor:
            asked.append("head")
            return head()

        scheduler.client.write, scheduler.client.head = telling, counted
        return asked

    def test_an_epoch_that_the_write_tells_is_not_asked_for(self):
        asked = self.tell_epochs(self.one)
        self.taken(*self.take(self.one, claiming_schedulers.wanted("a", "h1")))
        # The view's own.
        self.assertEqual(["head"], asked)

    def test_a_claim_written_in_another_epoch_than_its_view_is_given_back(self):
        self.tell_epochs(self.one)
        self.one.views.epoch = self.one.client.head().epoch
        self.hub.begin_epoch()
        self.refused(
            *self.take(self.one, claiming_schedulers.wanted("a", "h1")),
            chosen_hosts.ClaimRefusal.BEHIND,
        )
        self.assertEqual({}, self.held("h1"))

    def test_a_view_behind_a_settlement_has_to_catch_up(self):
        claim = self.taken(*self.take(self.other, claiming_schedulers.wanted("a", "h1")))
        self.assertEqual([True], self.other.claimer.confirm([claim]))
        ledger = ledgers.stranger(self.one.client)
        head = self.one.client.head()
        shown = records.Cursor(head.epoch, head.version + 10)
        self.assertEqual(("a",), ledger.settle("h1", ["a"], shown))
        self.refused(
            *self.take(self.one, claiming_schedulers.wanted("b", "h1")),
            chosen_hosts.ClaimRefusal.BEHIND,
        )

    def test_without_a_feed_nothing_can_be_claimed(self):
        self.one.views.followed = False
        self.refused(
            *self.take(self.one, claiming_schedulers.wanted("a", "h1")),
            chosen_hosts.ClaimRefusal.UNAVAILABLE,
        )

    def test_without_a_back_end_nothing_can_be_claimed(self):
        self.one.client.faults.fail_next(memory.Fault.UNAVAILABLE, 5, "write")
        self.refused(
            *self.take(self.one, claiming_schedulers.wanted("a", "h1")),
            chosen_hosts.ClaimRefusal.UNAVAILABLE,
        )
        self.assertEqual({}, self.held("h1"))

    def test_a_record_of_a_newer_release_keeps_its_host_out(self):
        schema = attrs.evolve(known_namespaces.CLAIM_RECORDS.schema, major=99)
        write = records.Write(claim_rules.host_key("h1"), 0, codec.encode({}, schema))
        self.one.client.write([write])
        answers = self.take(
            self.one, claiming_schedulers.wanted("a", "h1"), claiming_schedulers.wanted("b", "h2")
        )
        self.refused(answers[0], chosen_hosts.ClaimRefusal.NEXT_HOST)
        self.taken(answers[1])

    def malformed(self, key, state):
        namespaces = known_namespaces.CLAIM_RECORDS, known_namespaces.GROUP_CLAIMS
        [schema] = [each.schema for each in namespaces if each.name == key.namespace]
        self.one.client.write([records.Write(key, 0, codec.encode(state, schema))])

    def test_a_record_that_is_none_of_claims_keeps_its_host_out(self):
        malformed = {"h1": {"claims": {"c": {"state": "of old"}}}, "h2": {"claims": ["c"]}}
        for host, state in malformed.items():
            self.malformed(claim_rules.host_key(host), state)
            [answer] = self.take(self.one, claiming_schedulers.wanted("a", host))
            self.refused(answer, chosen_hosts.ClaimRefusal.NEXT_HOST)

    def test_a_group_whose_record_is_none_of_members_is_joined_by_nobody(self):
        member = {"state": "confirmed", "claim_id": "i", "writer": "w"}
        malformed = (
            {"members": {"c": {"h1": {**member, "state": "of old"}}}},
            {"members": {"c": {"h1": {"state": "confirmed"}}}},
            {"members": {"c": {"h1": {**member, "deadline_seconds": "soon"}}}},
            {"members": {"c": {"h1": {**member, "confirmed_by": "now"}}}},
            {"members": {"c": "h1"}},
            {"members": ["c"]},
            {"settled": {"epoch": "e"}},
        )
        for number, state in enumerate(malformed):
            group = requests.Group(f"m{number}", "anti-affinity", frozenset(["anti-affinity"]))
            self.malformed(group_rules.group_key(group.uuid), state)
            [answer] = self.take(
                self.one,
                claiming_schedulers.wanted(f"a{number}", "h2"),
                request=attrs.evolve(APART, group=group),
            )
            self.refused(answer, chosen_hosts.ClaimRefusal.NEXT_HOST)
        self.assertEqual({}, self.held("h2"))

    def test_a_place_in_a_group_whose_record_broke_cannot_be_given_back_and_raises_nothing(self):
        [answer] = self.take(self.one, claiming_schedulers.wanted("a", "h1"), request=APART)
        taken = self.taken(answer)
        key = group_rules.group_key("g1")
        [found] = self.one.client.read([key]).values()
        payload = codec.encode({"members": {"a": "h1"}}, known_namespaces.GROUP_CLAIMS.schema)
        self.one.client.write([records.Write(key, found.revision, payload)])
        self.one.claimer.release([taken])
        self.assertEqual({}, self.held("h1"))

    def test_exactly_the_capacity_is_granted_to_racing_schedulers(self):
        schedulers = [self.scheduler(f"s{n}") for n in range(6)]
        granted: list[str] = []

        def claim(scheduler: claiming_schedulers.Scheduler, name: str) -> None:
            wanted = [claiming_schedulers.wanted(f"{name}-{host}", host) for host in ("h1", "h2")]
            for answer in scheduler.claimer.take(
                claiming_schedulers.REQUEST, wanted, claiming_schedulers.DEADLINE
            ):
                if isinstance(answer, chosen_hosts.TakenClaim):
                    granted.append(answer.wanted.chosen.uuid)

        threads = [
            threading.Thread(target=claim, args=(each, f"c{n}"))
            for n, each in enumerate(schedulers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(["h1", "h1", "h2", "h2"], sorted(granted))


class DoubtTest(ClaimerCase):
    def test_a_lost_reply_is_settled_before_the_answer(self):
        self.one.client.faults.fail_next(memory.Fault.REPLY_LOST)
        self.taken(*self.take(self.one, claiming_schedulers.wanted("a", "h1")))
        self.assertEqual({"a"}, set(self.held("h1")))

    def test_a_lost_request_is_sent_again(self):
        self.one.client.faults.fail_next(memory.Fault.REQUEST_LOST)
        self.taken(*self.take(self.one, claiming_schedulers.wanted("a", "h1")))
        self.assertEqual({"a"}, set(self.held("h1")))

    def test_a_reader_that_fails_afterwards_is_asked_again(self):
        self.one.client.faults.fail_next(memory.Fault.REPLY_LOST)
        own, reads = self.one.client.read, []

        def read(keys):
            reads.append(keys)
            if len(reads) == 1:
                self.one.client.faults.fail_next(memory.Fault.UNAVAILABLE, 1, "read")
            return own(keys)

        self.one.client.read = read
        self.taken(*self.take(self.one, claiming_schedulers.wanted("a", "h1")))
        self.assertGreater(len(reads), 1)
        self.assertEqual({"a"}, set(self.held("h1")))

    def test_a_claim_still_in_doubt_at_the_deadline_is_no_claim(self):
        self.one.client.faults.fail_next(memory.Fault.REPLY_LOST)
        self.one.client.faults.fail_next(memory.Fault.UNAVAILABLE, 10_000, "read")
        self.refused(
            *self.take(self.one, claiming_schedulers.wanted("a", "h1"), within=1.0),
            chosen_hosts.ClaimRefusal.UNAVAILABLE,
        )
        # It may stand: its lease ends it.
        self.clock.now += claiming_schedulers.LEASE_SECONDS + 1
        self.taken(*self.take(self.other, claiming_schedulers.wanted("b", "h1", 2)))


class CostTest(ClaimerCase):
    def test_a_claim_costs_one_write_and_its_confirm_another(self):
        first = self.taken(*self.take(self.one, claiming_schedulers.wanted("a", "h1")))
        self.assertEqual([True], self.one.claimer.confirm([first]))
        calls = self.count(self.one)
        second = self.taken(*self.take(self.one, claiming_schedulers.wanted("b", "h1")))
        self.assertEqual(["write"], calls)
        self.assertEqual([True], self.one.claimer.confirm([second]))
        self.assertEqual(["write", "write"], calls)

    def test_many_servers_cost_what_one_costs(self):
        calls = self.count(self.one)
        wanted = [claiming_schedulers.wanted(f"c{n}", f"h{n % 2 + 1}") for n in range(4)]
        taken = [self.taken(each) for each in self.take(self.one, *wanted)]
        self.assertEqual([True] * 4, self.one.claimer.confirm(taken))
        self.one.claimer.release(taken)
        self.assertEqual(["write", "write", "write"], calls)

    def test_a_host_that_the_store_has_no_claims_of_is_claimed_unread(self):
        calls = self.count(self.one)
        self.taken(*self.take(self.one, claiming_schedulers.wanted("a", "h1")))
        self.assertEqual(["write"], calls)
        # Of what others claimed it is told where it loses.
        calls = self.count(self.other)
        self.taken(*self.take(self.other, claiming_schedulers.wanted("b", "h1")))
        self.assertEqual((["write", "write"], 1), (calls, self.other.lost))
        self.assertEqual({"a", "b"}, set(self.held("h1")))

    def test_records_that_the_store_has_are_not_read_a_groups_neither(self):
        first = self.taken(
            *self.take(self.one, claiming_schedulers.wanted("a", "h1"), request=APART)
        )
        self.assertEqual([True], self.one.claimer.confirm([first]))
        keys = [claim_rules.host_key("h2"), group_rules.group_key("g1"), claim_rules.host_key("h1")]
        self.taken(*self.take(self.one, claiming_schedulers.wanted("c", "h2")))
        self.other.views.stored = self.one.client.read(keys)
        calls = self.count(self.other)
        self.taken(*self.take(self.other, claiming_schedulers.wanted("b", "h2"), request=APART))
        self.assertEqual(["write", "write"], calls)
        self.assertEqual(0, self.other.lost)

    def test_who_loses_needs_no_second_read(self):
        self.taken(*self.take(self.one, claiming_schedulers.wanted("a", "h1")))
        self.taken(*self.take(self.other, claiming_schedulers.wanted("b", "h1")))
        calls = self.count(self.one)
        self.taken(*self.take(self.one, claiming_schedulers.wanted("c", "h2")))
        self.refused(
            *self.take(self.one, claiming_schedulers.wanted("d", "h1")),
            chosen_hosts.ClaimRefusal.NEXT_HOST,
        )
        # What it remembered had room, and lost; what stands there has none.
        self.assertEqual(["write", "write"], calls)
        self.assertEqual(1, self.one.lost)

    def test_a_confirm_goes_by_what_the_feed_brought_meanwhile(self):
        for request, host in ((claiming_schedulers.REQUEST, "h1"), (APART, "h2")):
            first = self.taken(
                *self.take(self.one, claiming_schedulers.wanted("a", host), request=request)
            )
            # While the allocation is written.
            self.taken(
                *self.take(self.other, claiming_schedulers.wanted("b", "h1"), request=request)
            )
            keys = [
                claim_rules.host_key("h1"),
                claim_rules.host_key("h2"),
                group_rules.group_key("g1"),
            ]
            self.one.views.stored = self.one.client.read(keys)
            calls = self.count(self.one)
            self.assertEqual([True], self.one.claimer.confirm([first]))
            self.assertNotIn("read", calls)
            self.assertEqual(0, self.one.lost)

    def test_a_refusal_by_what_is_remembered_is_looked_at_again(self):
        first = self.taken(*self.take(self.one, claiming_schedulers.wanted("a", "h1", 2)))
        stranger = ledgers.stranger(self.other.client)
        stranger.release(first.grant.granted)
        self.taken(*self.take(self.one, claiming_schedulers.wanted("b", "h1", 2)))


class EndingTest(ClaimerCase):
    def test_a_released_claim_leaves_its_room(self):
        claim = self.taken(*self.take(self.one, claiming_schedulers.wanted("a", "h1", 2)))
        self.one.claimer.release([claim])
        self.assertEqual({}, self.held("h1"))
        self.taken(*self.take(self.other, claiming_schedulers.wanted("b", "h1", 2)))

    def test_a_confirmed_claim_can_be_given_back_too(self):
        claim = self.taken(*self.take(self.one, claiming_schedulers.wanted("a", "h1", 2)))
        self.assertEqual([True], self.one.claimer.confirm([claim]))
        self.one.claimer.release([claim])
        self.assertEqual({}, self.held("h1"))

    def test_a_release_survives_a_back_end_that_is_away(self):
        claim = self.taken(*self.take(self.one, claiming_schedulers.wanted("a", "h1", 2)))
        self.one.client.faults.fail_next(memory.Fault.UNAVAILABLE)
        self.one.claimer.release([claim])
        self.assertEqual({"a"}, set(self.held("h1")))

    def test_a_claim_that_others_dropped_is_not_confirmed(self):
        slept = self.taken(*self.take(self.one, claiming_schedulers.wanted("a", "h1", 2)))
        self.clock.now += claiming_schedulers.LEASE_SECONDS + 1
        self.taken(*self.take(self.other, claiming_schedulers.wanted("b", "h1", 2)))
        self.assertEqual([False], self.one.claimer.confirm([slept]))
        self.assertEqual({"b"}, set(self.held("h1")))

    def test_past_its_lease_it_is_confirmed_where_nobody_dropped_it(self):
        slept = self.taken(*self.take(self.one, claiming_schedulers.wanted("a", "h1", 2)))
        self.clock.now += claiming_schedulers.LEASE_SECONDS + 1
        self.assertEqual([True], self.one.claimer.confirm([slept]))
        self.refused(
            *self.take(self.other, claiming_schedulers.wanted("b", "h1")),
            chosen_hosts.ClaimRefusal.NEXT_HOST,
        )

    def test_a_confirm_is_tried_until_the_back_end_is_back(self):
        claim = self.taken(*self.take(self.one, claiming_schedulers.wanted("a", "h1")))
        self.one.client.faults.fail_next(memory.Fault.UNAVAILABLE, 3, "write")
        self.assertEqual([True], self.one.claimer.confirm([claim]))
        self.assertIs(model.ClaimState.CONFIRMED, self.held("h1")["a"].state)

    def test_a_confirm_that_nobody_can_tell_of_is_none(self):
        claim = self.taken(*self.take(self.one, claiming_schedulers.wanted("a", "h1")))
        self.one.client.faults.fail_next(memory.Fault.UNAVAILABLE, 10_000, "write")
        self.assertEqual([False], self.one.claimer.confirm([claim]))


class GroupsTest(ClaimerCase):
    def test_two_schedulers_keep_a_group_apart(self):
        first = self.taken(
            *self.take(self.one, claiming_schedulers.wanted("a", "h1"), request=APART)
        )
        refused = self.refused(
            *self.take(self.other, claiming_schedulers.wanted("b", "h1"), request=APART),
            chosen_hosts.ClaimRefusal.GROUP,
        )
        self.assertEqual(frozenset(["h1"]), refused.group_hosts)
        self.assertEqual({"a"}, set(self.held("h1")))
        self.taken(*self.take(self.other, claiming_schedulers.wanted("b", "h2"), request=APART))
        self.assertEqual([True], self.one.claimer.confirm([first]))
        self.assertEqual({("a", "h1"), ("b", "h2")}, self.members("g1"))

    def test_members_of_a_former_epoch_are_not_remembered(self):
        self.taken(*self.take(self.one, claiming_schedulers.wanted("a", "h1"), request=APART))
        self.hub.begin_epoch()
        self.taken(*self.take(self.one, claiming_schedulers.wanted("b", "h1"), request=APART))
        self.assertEqual(0, self.one.lost)

    def test_of_one_request_too(self):
        answers = self.take(
            self.one,
            claiming_schedulers.wanted("a", "h1"),
            claiming_schedulers.wanted("b", "h1"),
            request=APART,
        )
        self.taken(answers[0])
        self.refused(answers[1], chosen_hosts.ClaimRefusal.GROUP)

    def test_the_first_member_decides_where_a_group_is(self):
        self.taken(*self.take(self.one, claiming_schedulers.wanted("a", "h1"), request=TOGETHER))
        refused = self.refused(
            *self.take(self.other, claiming_schedulers.wanted("b", "h2"), request=TOGETHER),
            chosen_hosts.ClaimRefusal.GROUP,
        )
        self.assertEqual(frozenset(["h1"]), refused.group_hosts)

    def test_members_that_stand_there_count(self):
        self.one.views.known = {"old": {"h1"}}
        self.refused(
            *self.take(self.one, claiming_schedulers.wanted("a", "h1"), request=APART),
            chosen_hosts.ClaimRefusal.GROUP,
        )

    def test_a_host_without_room_gives_the_place_back(self):
        self.shown["h1"] = {"old": 2}
        self.refused(
            *self.take(self.one, claiming_schedulers.wanted("a", "h1"), request=APART),
            chosen_hosts.ClaimRefusal.NEXT_HOST,
        )
        self.assertEqual(set(), self.members("g1"))

    def test_a_forced_host_is_not_ruled_out_but_noted(self):
        self.one.views.known = {"old": {"h1"}}
        forced = attrs.evolve(APART, force_hosts=("h1",))
        self.taken(*self.take(self.one, claiming_schedulers.wanted("a", "h1"), request=forced))
        self.assertEqual({("a", "h1")}, self.members("g1"))

    def test_a_member_whose_place_was_dropped_is_not_confirmed(self):
        slept = self.taken(
            *self.take(self.one, claiming_schedulers.wanted("a", "h1"), request=APART)
        )
        self.clock.now += claiming_schedulers.LEASE_SECONDS + 1
        self.taken(*self.take(self.other, claiming_schedulers.wanted("b", "h1"), request=APART))
        self.assertEqual([False], self.one.claimer.confirm([slept]))
        self.assertEqual({("b", "h1")}, self.members("g1"))
        self.assertEqual({"b"}, set(self.held("h1")))

    def test_release_takes_the_place_back(self):
        claim = self.taken(
            *self.take(self.one, claiming_schedulers.wanted("a", "h1"), request=APART)
        )
        self.one.claimer.release([claim])
        self.assertEqual(set(), self.members("g1"))
        self.assertEqual({}, self.held("h1"))


class PolicyTest(ClaimerCase):
    def test_a_soft_policy_rules_no_host_out_and_claims_no_place(self):
        for policy, hosts in (("soft-anti-affinity", "h1 h1"), ("soft-affinity", "h1 h2")):
            group = requests.Group(f"g {policy}", policy, frozenset([policy]))
            soft = attrs.evolve(APART, group=group)
            for number, host in enumerate(hosts.split()):
                wanted = claiming_schedulers.wanted(f"{policy} {number}", host, 0)
                self.taken(*self.take(self.one, wanted, request=soft))
            self.assertEqual({}, self.one.client.read([group_rules.group_key(group.uuid)]))

    def test_a_policy_whose_filter_is_not_enabled_is_noted_for_those_who_enable_it(self):
        self.one.claimer = ledger_claimer.LedgerClaimer(
            self.one.batches,
            self.one.views,
            strict=frozenset(),
            clock=self.clock,
            sleep=self.clock.sleep,
        )
        for name in ("a", "b"):
            wanted = claiming_schedulers.wanted(name, "h1")
            self.taken(*self.take(self.one, wanted, request=APART))
        self.assertEqual({("a", "h1"), ("b", "h1")}, self.members("g1"))
        wanted = claiming_schedulers.wanted("c", "h1", 0)
        told = self.take(self.other, wanted, request=APART)
        self.assertEqual({"h1"}, self.refused(*told, chosen_hosts.ClaimRefusal.GROUP).group_hosts)

    def test_a_forced_host_that_is_filtered_all_the_same_is_held_to_the_policy(self):
        first = self.take(self.one, claiming_schedulers.wanted("a", "h1"), request=APART)
        self.taken(*first)
        forced = attrs.evolve(APART, force_hosts=("h1",), check_type=True)
        told = self.take(self.one, claiming_schedulers.wanted("b", "h1"), request=forced)
        self.refused(*told, chosen_hosts.ClaimRefusal.GROUP)
