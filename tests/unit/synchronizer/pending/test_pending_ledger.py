# SPDX-License-Identifier: Apache-2.0
"""A request has one holder at a time, and each server is sent once."""

import threading
import unittest

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending, records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.pending import pending_ledger, pending_rules
from nova_nodb_scheduler.wire import codec
from tests.unit.synchronizer.pending import made_requests

State = pending.PendingState


class LedgerCase(unittest.TestCase):
    def setUp(self):
        super().setUp()
        self.now = 1000.0
        self.hub = memory.MemoryHub(clock=lambda: self.now)
        self.client, self.ledger = self.made()

    def made(self):
        client = memory.MemorySynchronizer(shared_hub=self.hub)
        client.open()
        self.addCleanup(client.close)
        ledger = pending_ledger.PendingLedger(
            client, made_requests.LEASE_SECONDS, pause=lambda _: None
        )
        return client, ledger

    def create(self, **of):
        request = made_requests.newcomer(now_seconds=self.now, **of)
        created = self.ledger.create(request, "secret")
        self.assertEqual(request, created)
        return pending_rules.holding_of(request)

    def parked(self, **of):
        holding = self.create(**of)
        self.ledger.park(holding, "no room", 0.0)
        return holding

    def granted(self, **of):
        holding = self.parked(**of)
        granted = self.ledger.grant(holding.key, 1, "scheduler")
        self.assertIs(State.GRANTED, granted.state)
        return granted

    def taken(self, **of):
        granted = self.granted(**of)
        taken = self.ledger.take(granted.key, granted.grant.attempt, "two")
        self.assertIs(State.SCHEDULING, taken.state)
        return pending_rules.holding_of(taken)

    def building(self, **of):
        holding = self.create(**of)
        self.ledger.begin(holding)
        return holding

    def assert_superseded(self, step):
        self.assertIsInstance(step, pending_rules.Superseded)


class StepsTest(LedgerCase):
    def test_a_request_goes_from_hand_to_hand_until_its_servers_are_sent(self):
        first = self.create()
        parked = self.ledger.park(first, "no room", 5.0)
        self.assertEqual(
            (State.WAITING, "no room", 1005.0, 1000.0, 1),
            (parked.state, parked.reason, parked.not_before, parked.parked_at, parked.refusals),
        )
        self.now += 5
        granted = self.ledger.grant("a", 1, "scheduler", host="node")
        self.assertEqual(pending.Grant(2, "scheduler", 1035.0, host="node"), granted.grant)
        self.now += 5
        taken = self.ledger.take("a", 2, "two")
        self.assertEqual(pending.Grant(2, "two", 1040.0, host="node"), taken.grant)
        second = pending_rules.holding_of(taken)
        self.assertIs(State.BUILDING, self.ledger.begin(second).state)
        self.assertEqual(("a",), self.ledger.sent(second, "a").sent)
        self.assertEqual(("a", "b"), self.ledger.sent(second, "b").sent)
        self.assertTrue(self.ledger.finish(second))
        self.assertIsNone(self.ledger.read("a"))
        self.assertIsNone(self.ledger.read_payload("a"))

    def test_the_payload_comes_back_as_it_was_given(self):
        self.create()
        self.assertEqual("secret", self.ledger.read_payload("a"))

    def test_the_time_of_the_first_parking_stays(self):
        holding = self.taken()
        self.now += 60
        self.assertEqual(1000.0, self.ledger.park(holding, "still none", 0.0).parked_at)

    def test_a_former_attempt_comes_to_nothing(self):
        former = self.parked()
        self.ledger.grant("a", 1, "scheduler")
        self.ledger.take("a", 2, "two")
        self.assert_superseded(self.ledger.park(former, "late", 0.0))
        self.assert_superseded(self.ledger.begin(former))
        self.assert_superseded(self.ledger.sent(former, "a"))
        self.assertEqual(False, self.ledger.finish(former))
        self.assertEqual({former}, set(self.ledger.renew([former])))
        self.assertEqual("secret", self.ledger.read_payload("a"))

    def let_go(self):
        holding = self.building()
        for server in ("a", "b"):
            self.ledger.sent(holding, server)
        self.ledger.place(holding, 100.0)
        return holding

    def looked_for(self):
        self.let_go()
        self.now += 100
        self.ledger.grant("a", 1, "scheduler")
        return pending_rules.holding_of(self.ledger.take("a", 2, "two"))

    def test_what_is_placed_is_in_nobodys_hand_until_it_is_looked_for(self):
        holding = self.let_go()
        self.now += 99
        self.assert_superseded(self.ledger.grant("a", 1, "scheduler"))
        self.assertEqual({holding}, set(self.ledger.renew([holding])))
        self.assertEqual(1100.0, self.ledger.read("a").grant.until_seconds)
        self.now += 1
        self.assertIs(State.BUILDING, self.ledger.grant("a", 1, "scheduler").grant.after)

    def test_who_lets_go_once_more_behind_a_lost_answer_changes_nothing(self):
        holding = self.let_go()
        standing = self.ledger.read("a")
        self.now += 1
        self.assertEqual(standing, self.ledger.place(holding, 100.0))

    def test_what_was_not_sent_is_left_out_of_what_is_placed(self):
        holding = self.building()
        self.ledger.sent(holding, "b")
        placed = self.ledger.place(holding, 100.0)
        self.assertEqual((("b",), ("b",)), (placed.servers, placed.sent))

    def test_what_is_seen_on_hosts_ends_and_nothing_else_does(self):
        self.ledger.create(made_requests.newcomer("c", ("c",), now_seconds=self.now), "secret")
        self.let_go()
        self.ledger.arrive(["a", "c", "gone"])
        self.assertEqual((None, None), (self.ledger.read("a"), self.ledger.read_payload("a")))
        self.assertIs(State.SCHEDULING, self.ledger.read("c").state)

    def test_what_is_looked_for_is_not_ended_by_who_sees_it(self):
        self.looked_for()
        self.ledger.arrive(["a"])
        self.assertEqual("secret", self.ledger.read_payload("a"))

    def test_who_is_broken_off_as_it_ends_requests_is_followed_by_another(self):
        for writes in range(3):
            with self.subTest(writes=writes):
                self.let_go()
                write, done = self.client.write, []

                def dying(all_writes, write=write, done=done, most=writes):
                    if len(done) == most:
                        raise errors.BackendUnavailable("memory", "made")
                    done.append(all_writes)
                    return write(all_writes)

                self.client.write = dying
                self.assertRaises(errors.BackendUnavailable, self.ledger.arrive, ["a"])
                del self.client.write
                self.now += 100
                granted = self.ledger.grant("a", 1, "scheduler")
                taken = self.ledger.take("a", granted.grant.attempt, "two")
                self.assertTrue(self.ledger.finish(pending_rules.holding_of(taken)))
                self.assertIsNone(self.ledger.read_payload("a"))

    def test_what_was_broken_off_as_it_ended_is_ended_by_who_sees_it_again(self):
        self.let_go()
        write = self.client.write
        tries = iter([write])

        def dying(writes):
            return next(tries, self.break_off)(writes)

        self.client.write = dying
        self.assertRaises(errors.BackendUnavailable, self.ledger.arrive, ["a"])
        del self.client.write
        self.ledger.arrive(["a"])
        self.assertEqual((None, None), (self.ledger.read("a"), self.ledger.read_payload("a")))

    def break_off(self, _writes):
        raise errors.BackendUnavailable("memory", "made")

    def test_what_was_given_up_is_sent_again_and_once(self):
        holding = self.looked_for()
        given_up = self.ledger.give_up(holding, "b")
        self.assertEqual(
            (("a",), ("b",), ("b",), 0.0),
            (given_up.sent, given_up.unsent, given_up.mapped, given_up.placed_at),
        )
        self.assertEqual(given_up, self.ledger.give_up(holding, "b"))
        self.ledger.begin(holding, kept=("b",))
        self.assert_superseded(self.ledger.give_up(holding, "a"))
        self.ledger.sent(holding, "b")
        self.assert_superseded(self.ledger.sent(holding, "b"))

    def test_what_was_sent_for_certain_stays_so_as_another_is_given_up(self):
        holding = self.looked_for()
        self.assertEqual(("a",), self.ledger.give_up(holding, "b").sent_for_certain)
        self.ledger.begin(holding, kept=("b",))
        self.ledger.sent(holding, "b")
        standing = self.ledger.read("a")
        self.assertEqual((("a", "b"), ("a",)), (standing.sent, standing.sent_for_certain))
        self.assertEqual(("a", "b"), self.ledger.place(holding, 100.0).sent_for_certain)
        self.assertEqual((), self.ledger.read("a").certain)

    def test_who_cannot_tell_of_one_knows_of_the_others(self):
        holding = self.building()
        for server in ("a", "b"):
            self.ledger.sent(holding, server)
        self.assertEqual((), self.ledger.read("a").sent_for_certain)
        self.assertEqual(("b",), self.ledger.rest(holding, 100.0, ["a"]).sent_for_certain)
        self.assertEqual(1100.0, self.ledger.read("a").grant.until_seconds)

    def test_what_an_older_release_sends_again_is_not_certain(self):
        holding = self.looked_for()
        state = self.ledger.give_up(holding, "b").to_state()
        self.assertNotIn("a", state["mapped"])
        # It knows of no such field, gives up the other one, and dies as it sends that again.
        state |= {"sent": ["a"], "mapped": ["b", "a"]}
        self.assertEqual((), pending.of_state("a", state).sent_for_certain)

    def test_what_an_older_release_sent_stays_uncertain_as_another_is_sent_on(self):
        standing = pending.of_state("a", self.ledger.give_up(self.looked_for(), "b").to_state())
        holding = pending_rules.holding_of(standing)
        # An older release gave up both that were certain, and died as it sent the first again.
        left = attrs.evolve(
            standing,
            servers=("a", "b", "c"),
            sent=("b", "a"),
            mapped=("a", "c"),
            certain=("a", "c"),
        )
        self.assertEqual((), left.sent_for_certain)
        begun = pending_rules.begun(left, holding, kept=("c",))
        self.assertEqual((("c",), ()), (begun.mapped, begun.sent_for_certain))

    def test_who_was_overtaken_gives_nothing_up_and_lets_go_of_nothing(self):
        former = self.looked_for()
        self.now += made_requests.LEASE_SECONDS
        self.ledger.grant("a", 2, "scheduler")
        self.assert_superseded(self.ledger.give_up(former, "b"))
        self.assert_superseded(self.ledger.place(former, 100.0))

    def test_two_schedulers_grant_it_once(self):
        self.parked()
        self.assertEqual(2, self.ledger.grant("a", 1, "scheduler").grant.attempt)
        self.assert_superseded(self.ledger.grant("a", 1, "another"))

    def test_one_of_two_conductors_takes_it_also_where_a_cast_comes_twice(self):
        self.granted()
        self.assertEqual("one", self.ledger.take("a", 2, "one").grant.owner)
        self.assert_superseded(self.ledger.take("a", 2, "two"))
        self.assert_superseded(self.ledger.take("a", 1, "two"))

    def test_only_one_of_many_racing_threads_sends_a_server(self):
        holding = self.building()
        answers = []
        ledgers = [self.made()[1] for _ in range(8)]
        threads = [
            threading.Thread(target=lambda own=own: answers.append(own.sent(holding, "a")))
            for own in ledgers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        sent = [each for each in answers if isinstance(each, pending.PendingRequest)]
        self.assertEqual((8, 1), (len(answers), len(sent)))

    def test_a_server_of_another_request_is_not_sent(self):
        self.assert_superseded(self.ledger.sent(self.building(), "c"))

    def test_who_has_it_in_hand_says_what_is_mapped_and_an_attempt_that_makes_it_anew_unsays_it(
        self,
    ):
        holding = self.building()
        self.assertEqual(("b",), self.ledger.mapped(holding, "b").mapped)
        self.assertEqual(("b", "a"), self.ledger.mapped(holding, "a").mapped)
        # Once more, as behind an answer that was lost.
        self.assertEqual(("b", "a"), self.ledger.mapped(holding, "b").mapped)
        self.now += made_requests.LEASE_SECONDS
        self.ledger.grant("a", 1, "scheduler")
        taken = self.ledger.take("a", 2, "two")
        self.assertEqual(("b", "a"), taken.mapped)
        second = pending_rules.holding_of(taken)
        self.assertEqual(("a",), self.ledger.begin(second, kept=("a",)).mapped)
        self.assertEqual(("a",), self.ledger.read("a").mapped)
        self.assert_superseded(self.ledger.mapped(holding, "b"))

    def test_what_is_mapped_is_not_forgotten_while_it_waits(self):
        holding = self.building()
        self.ledger.mapped(holding, "a")
        self.now += made_requests.LEASE_SECONDS
        self.ledger.grant("a", 1, "scheduler")
        second = pending_rules.holding_of(self.ledger.take("a", 2, "two"))
        self.assertEqual(("a",), self.ledger.park(second, "no room", 0.0).mapped)

    def test_nothing_is_called_mapped_before_the_beginning_nor_of_another_request(self):
        self.assert_superseded(self.ledger.mapped(self.create(), "a"))
        self.assert_superseded(self.ledger.mapped(self.building(key="c", servers=("c",)), "a"))

    def test_an_unsaid_word_leaves_nothing_in_the_record(self):
        holding = self.building()
        self.ledger.mapped(holding, "a")
        self.now += made_requests.LEASE_SECONDS
        self.ledger.grant("a", 1, "scheduler")
        self.ledger.begin(pending_rules.holding_of(self.ledger.take("a", 2, "two")))
        self.assertEqual((), self.ledger.read("a").mapped)

    def test_nothing_is_sent_before_the_beginning(self):
        self.assert_superseded(self.ledger.sent(self.create(), "a"))

    def test_a_request_that_stands_is_not_taken_again_by_another(self):
        self.create()
        again = made_requests.newcomer(owner="two")
        step = self.made()[1].create(again, "other secret")
        self.assertEqual("one", step.standing.grant.owner)
        self.assertEqual("secret", self.ledger.read_payload("a"))

    def test_what_is_held_ends_with_the_hosts_being_chosen(self):
        holding = self.parked()
        self.ledger.set_hold("a", "node", 60.0)
        self.ledger.grant("a", 1, "scheduler")
        taken = self.ledger.take("a", 2, "two")
        self.assertEqual(pending.Hold("node", 1060.0), taken.hold)
        begun = self.ledger.begin(attrs.evolve(holding, attempt=2, owner="two"))
        self.assertIsNone(begun.hold)
        self.assertIsNone(self.ledger.read("a").hold)


class LeaseTest(LedgerCase):
    def test_a_lease_that_runs_is_nobody_elses(self):
        self.create()
        self.now += made_requests.LEASE_SECONDS - 0.1
        self.assert_superseded(self.ledger.grant("a", 1, "scheduler"))

    def test_a_lease_that_ended_says_in_which_state_the_holder_was(self):
        for state, made in (
            (State.SCHEDULING, self.create),
            (State.BUILDING, self.building),
        ):
            key = state.value
            made(key=key, servers=(key,))
            self.now += made_requests.LEASE_SECONDS
            granted = self.ledger.grant(key, 1, "scheduler")
            self.assertEqual((2, state), (granted.grant.attempt, granted.grant.after))

    def test_a_grant_that_nobody_took_leaves_what_is_to_be_cleared(self):
        self.building()
        self.now += made_requests.LEASE_SECONDS
        self.ledger.grant("a", 1, "scheduler")
        self.now += made_requests.LEASE_SECONDS
        granted = self.ledger.grant("a", 2, "scheduler")
        self.assertEqual((3, State.BUILDING), (granted.grant.attempt, granted.grant.after))

    def test_a_holder_that_lives_keeps_it(self):
        holdings = [self.create(), self.building(key="c", servers=("c",))]
        for _ in range(5):
            self.now += made_requests.LEASE_SECONDS / 2
            self.assertEqual({}, self.ledger.renew(holdings))
        for holding in holdings:
            self.assert_superseded(self.ledger.grant(holding.key, 1, "scheduler"))

    def test_leases_are_renewed_in_two_calls_however_many_there_are(self):
        holdings = [self.create(key=f"k{n}", servers=(f"k{n}",)) for n in range(20)]
        self.now += 1
        before = self.hub.head().version
        calls = []
        read, write = self.client.read, self.client.write
        self.client.read = lambda keys: calls.append("read") or read(keys)
        self.client.write = lambda writes: calls.append("write") or write(writes)
        self.ledger.renew(holdings)
        self.assertEqual(["read", "write"], calls)
        self.assertEqual(20, self.hub.head().version - before)

    def test_a_renewal_tells_what_was_lost_and_keeps_the_rest(self):
        lost, kept = self.parked(), self.create(key="c", servers=("c",))
        self.ledger.grant("a", 1, "scheduler")
        self.assertEqual({lost}, set(self.ledger.renew([lost, kept])))
        self.now += 20
        self.ledger.renew([kept])
        self.assertEqual(1050.0, self.ledger.read("c").grant.until_seconds)

    def test_who_sleeps_in_a_former_attempt_does_not_keep_the_present_one_from_living(self):
        former = self.parked()
        self.ledger.grant("a", 1, "scheduler")
        present = pending_rules.holding_of(self.ledger.take("a", 2, "two"))
        for holdings in ([former, present], [present, former]):
            self.now += 20
            self.assertEqual({former}, set(self.ledger.renew(holdings)))
            self.assertEqual(self.now + 30, self.ledger.read("a").grant.until_seconds)

    def test_a_record_that_cannot_be_read_keeps_no_other_lease_from_being_renewed(self):
        broken, kept = self.create(), self.create(key="c", servers=("c",))
        key = pending_ledger.record_key("a")
        revision = self.client.read([key])[key].revision
        self.client.write([records.Write(key, revision, b"rubbish")])
        self.now += 20
        self.assertEqual({}, self.ledger.renew([broken, kept]))
        self.assertEqual(1050.0, self.ledger.read("c").grant.until_seconds)


class PeopleTest(LedgerCase):
    def test_a_server_deleted_by_its_user_is_not_sent(self):
        holding = self.create()
        self.assertEqual(("b",), self.ledger.drop_server("a", "a").servers)
        self.ledger.begin(holding)
        self.assert_superseded(self.ledger.sent(holding, "a"))
        self.assertEqual(("b",), self.ledger.sent(holding, "b").sent)

    def test_once_hosts_are_chosen_nobody_else_takes_a_server_out(self):
        holding = self.building()
        self.assert_superseded(self.ledger.drop_server("a", "a"))
        self.assertEqual(("a",), self.ledger.sent(holding, "a").sent)
        self.assert_superseded(self.ledger.drop_server("a", "a"))

    def test_who_takes_over_from_one_that_ended_finds_a_deleted_server_itself(self):
        self.building()
        self.now += 60
        granted = self.ledger.grant("a", 1, "scheduler")
        self.assertIs(pending.PendingState.BUILDING, granted.grant.after)
        self.assert_superseded(self.ledger.drop_server("a", "a"))
        self.ledger.take("a", 2, "other")
        self.assert_superseded(self.ledger.drop_server("a", "a"))
        self.assertEqual(("a", "b"), self.ledger.read("a").servers)

    def test_the_last_server_takes_a_request_that_waits_with_it(self):
        self.parked()
        self.ledger.drop_server("a", "a")
        self.assertEqual(("b",), self.ledger.read("a").servers)
        self.ledger.drop_server("a", "b")
        self.assertIsNone(self.ledger.read("a"))
        self.assertIsNone(self.ledger.read_payload("a"))

    def test_a_request_in_hand_stays_with_its_holder_when_nobody_is_left(self):
        holding = self.create()
        for server in ("a", "b"):
            self.ledger.drop_server("a", server)
        self.assertEqual((), self.ledger.read("a").servers)
        self.assertTrue(self.ledger.finish(holding))

    def test_a_promotion_changes_nothing_else(self):
        self.parked()
        before = self.ledger.read("a")
        self.ledger.promote("a", 7)
        self.assertEqual(attrs.evolve(before, rank=7), self.ledger.read("a"))

    def test_one_host_is_held_for_a_request(self):
        self.parked()
        self.ledger.set_hold("a", "node", 60.0)
        self.assert_superseded(self.ledger.set_hold("a", "other", 60.0))
        self.now += 30
        self.assertEqual(1090.0, self.ledger.set_hold("a", "node", 60.0).hold.until_seconds)
        self.ledger.clear_hold("a", "other")
        self.assertEqual("node", self.ledger.read("a").hold.host)
        self.now += 60
        self.assertEqual("other", self.ledger.set_hold("a", "other", 60.0).hold.host)
        self.ledger.clear_hold("a", "other")
        self.assertIsNone(self.ledger.read("a").hold)

    def test_an_operator_ends_what_waits_by_a_grant_of_that_purpose(self):
        self.parked()
        granted = self.ledger.grant("a", 1, "operator", pending.Purpose.CANCEL)
        self.assertIs(pending.Purpose.CANCEL, granted.grant.purpose)
        self.assert_superseded(self.ledger.grant("a", 1, "operator"))


class FaultsTest(LedgerCase):
    def test_a_lost_reply_or_request_is_settled_by_reading(self):
        def steps():
            key = str(self.hub.head().version)
            request = made_requests.newcomer(key, (key,), now_seconds=self.now)
            holding = pending_rules.holding_of(request)
            taken = attrs.evolve(holding, attempt=2, owner="two")
            yield lambda: self.ledger.create(request, "secret")
            yield lambda: self.ledger.park(holding, "no room", 0.0)
            yield lambda: self.ledger.grant(key, 1, "scheduler")
            yield lambda: self.ledger.take(key, 2, "two")
            yield lambda: self.ledger.begin(taken)
            yield lambda: self.ledger.sent(taken, key)

        for fault in (memory.Fault.REPLY_LOST, memory.Fault.REQUEST_LOST):
            for number, step in enumerate(steps()):
                if number:
                    self.client.faults.fail_next(fault)
                self.assertIsInstance(step(), pending.PendingRequest)

    def test_a_payload_in_doubt_is_followed_by_no_record(self):
        self.client.faults.fail_next(memory.Fault.LATE)
        self.assertRaises(
            errors.BackendUnavailable, self.ledger.create, made_requests.newcomer(), "secret"
        )
        self.hub.deliver_late()
        self.assertIsNone(self.ledger.read("a"))

    def test_a_payload_whose_reply_was_lost_is_found(self):
        self.client.faults.fail_next(memory.Fault.REPLY_LOST)
        self.create()

    def test_a_payload_without_a_record_is_swept_later(self):
        self.client.faults.fail_next(memory.Fault.LATE)
        self.assertRaises(
            errors.BackendUnavailable, self.ledger.create, made_requests.newcomer(), "secret"
        )
        self.hub.deliver_late()
        self.create(key="c", servers=("c",))
        self.now += 3600
        self.assertEqual(0, self.ledger.sweep_payloads(3601.0))
        self.assertEqual(1, self.ledger.sweep_payloads(3599.0))
        self.assertIsNone(self.ledger.read_payload("a"))
        self.assertEqual("secret", self.ledger.read_payload("c"))

    def in_doubt(self):
        """Return a request whose creation is under way, while the back end is away."""
        request = made_requests.newcomer(now_seconds=self.now)
        write = self.client.write

        def write_record(writes):
            self.client.write = write
            self.client.faults.fail_next(memory.Fault.LATE)
            self.client.faults.fail_next(memory.Fault.UNAVAILABLE, operation="read")
            return write(writes)

        def write_payload(writes):
            self.client.write = write_record
            return write(writes)

        self.client.write = write_payload
        self.assertEqual(
            pending_ledger.MaybeCreated(request), self.ledger.create(request, "secret")
        )
        return request

    def test_a_creation_in_doubt_is_made_good_by_the_next_step(self):
        for step, state in (("begin", State.BUILDING), ("park", State.WAITING)):
            self.hub.begin_epoch()
            request = self.in_doubt()
            holding = pending_rules.holding_of(request)
            more = ("no room", 0.0) if step == "park" else ()
            getattr(self.ledger, step)(holding, *more, if_absent=request)
            self.assertIs(state, self.ledger.read("a").state)
            self.hub.deliver_late()
            self.assertIs(state, self.ledger.read("a").state)

    def test_a_creation_in_doubt_that_came_late_is_taken_on(self):
        request = self.in_doubt()
        self.hub.deliver_late()
        begun = self.ledger.begin(pending_rules.holding_of(request), if_absent=request)
        self.assertIs(State.BUILDING, begun.state)

    def test_a_creation_in_doubt_is_not_made_good_once_another_has_ended_it(self):
        request = self.in_doubt()
        self.hub.deliver_late()
        self.now += made_requests.LEASE_SECONDS
        self.ledger.grant("a", 1, "scheduler")
        self.ledger.finish(pending_rules.holding_of(self.ledger.take("a", 2, "two")))
        step = self.ledger.begin(pending_rules.holding_of(request), if_absent=request)
        self.assertEqual(pending_rules.Superseded(None), step)

    def test_a_server_in_doubt_may_be_sent_by_who_knows_that_it_was_not(self):
        holding = self.building()
        self.client.faults.fail_next(memory.Fault.LATE)
        self.client.faults.fail_next(memory.Fault.UNAVAILABLE)
        self.assertRaises(errors.BackendUnavailable, self.ledger.sent, holding, "a")
        self.hub.deliver_late()
        self.assert_superseded(self.ledger.sent(holding, "a"))
        self.assertEqual(("a",), self.ledger.sent(holding, "a", again=True).sent)

    def test_a_back_end_that_is_away_is_not_an_answer(self):
        holding = self.create()
        self.client.faults.go_down()
        for call in (
            lambda: self.ledger.read("a"),
            lambda: self.ledger.create(made_requests.newcomer("x", ("x",)), "secret"),
            lambda: self.ledger.park(holding, "", 0.0),
            lambda: self.ledger.begin(holding),
            lambda: self.ledger.sent(holding, "a"),
            lambda: self.ledger.finish(holding),
            lambda: self.ledger.renew([holding]),
            lambda: self.ledger.grant("a", 1, "scheduler"),
        ):
            self.assertRaises(errors.BackendUnavailable, call)


class RecordsTest(LedgerCase):
    def test_fields_of_a_newer_release_are_kept(self):
        holding = self.create()
        key = pending_ledger.record_key("a")
        record = self.client.read([key])[key]
        state = codec.decode(record.payload).state
        payload = codec.encode({**state, "newer": 1}, known_namespaces.PENDING.schema)
        self.client.write([records.Write(key, record.revision, payload)])
        self.now += 1
        self.ledger.renew([holding])
        self.ledger.park(holding, "no room", 0.0)
        self.assertEqual(1, codec.decode(self.client.read([key])[key].payload).state["newer"])

    def test_a_record_that_is_none_of_a_request_is_refused_and_stays(self):
        key = pending_ledger.record_key("a")
        payload = codec.encode({"servers": 7}, known_namespaces.PENDING.schema)
        self.client.write([records.Write(key, 0, payload)])
        for call in (
            lambda: self.ledger.read("a"),
            lambda: self.ledger.grant("a", 1, "scheduler"),
            lambda: self.ledger.drop_server("a", "a"),
        ):
            self.assertRaises(errors.UndecodableRecord, call)
        self.assertEqual(payload, self.client.read([key])[key].payload)
