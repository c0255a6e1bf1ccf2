# SPDX-License-Identifier: Apache-2.0
"""One request that goes wrong stops nobody, and what happened is not lost by it."""

import contextlib

import numpy as np

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending, records
from nova_nodb_scheduler.scheduling.frame import host_facts
from nova_nodb_scheduler.synchronizer.pending import pending_ledger, pending_rules
from nova_nodb_scheduler.synchronizer.waking import pending_fit, queue_worker, waiting_events
from tests.unit.scheduling import toys
from tests.unit.synchronizer.pending import made_requests
from tests.unit.synchronizer.waking import made_worker

FITS = pending_fit.ServersFit(("uuid-0",))


class WorkerTest(made_worker.WorkerCase):
    def test_whoever_fits_is_granted(self):
        self.park("a")
        self.plans.answers["digest"] = FITS
        self.round()
        self.assertEqual([("a", 2)], self.told)

    def test_whom_memory_tells_nothing_of_is_tried_for_days_without_stopping_others(self):
        self.park("a", queue="untold")
        self.plans.answers["untold"] = pending_fit.NotTold("its payload cannot be read")
        self.round()
        for attempt in range(2, 1100):
            self.ledger.take("a", attempt, f"conductor-{attempt}")
            holding = pending_rules.Holding("a", attempt, f"conductor-{attempt}")
            self.ledger.park(holding, "no room", 0.0)
            self.round(61.0)
        self.assertEqual(("a", 1100), self.told[-1])
        self.park("b")
        self.plans.answers["digest"] = FITS
        self.round()
        self.assertIn(("b", 2), self.told)

    def break_record(self, key):
        name = pending_ledger.record_key(key)
        record = self.client.read([name])[name]
        [result] = self.client.write([records.Write(name, record.revision, b"?")])
        self.assertTrue(result.won)

    def test_a_record_that_became_unreadable_stops_nobody(self):
        self.park("a")
        self.now += 1.0
        self.park("b")
        self.feed()
        self.break_record("a")
        self.plans.answers["digest"] = FITS
        self.round()
        self.round()
        self.assertEqual([("b", 2)], self.told)

    def test_nor_does_one_whose_time_is_over(self):
        self.park("a", deadline_at=self.now + 10.0)
        self.park("b", queue="other")
        self.feed()
        self.break_record("a")
        self.plans.answers["other"] = FITS
        self.round(20.0)
        self.round()
        self.assertEqual([("b", 2)], self.told)


class PlacedTest(made_worker.WorkerCase):
    """What was sent is looked for until its servers are seen on hosts."""

    def setUp(self):
        super().setUp()
        self.plans.answers["digest"] = FITS
        self.park("a", servers=("a", "b"))
        self.round()
        self.place("a")
        self.round()

    def count(self, kind):
        return self.events.count(waiting_events.EventKind(kind))

    def test_it_ends_once_all_its_servers_are_seen_on_hosts(self):
        self.places["a"] = (("c", "host1"),)
        self.places["b"] = (("c", ""),)
        self.round()
        self.assertIs(pending.PendingState.BUILDING, self.state("a"))
        self.places["b"] = (("c", "host2"),)
        self.round()
        self.assertEqual((None, None), (self.state("a"), self.ledger.read_payload("a")))
        self.round(made_worker.LOOK_SECONDS)
        self.assertEqual([("a", 2)], self.told)

    def test_who_waits_learns_of_it_as_it_is_sent_and_once(self):
        self.assertEqual((1, ["dispatched"]), (self.count("placed"), self.meter.endings))
        for server in ("a", "b"):
            self.places[server] = (("c", "host1"),)
        self.round()
        self.round()
        self.assertEqual((1, ["dispatched"]), (self.count("placed"), self.meter.endings))

    def test_it_waits_for_nobody_and_takes_nothing_twice(self):
        with self.followed.lock:
            queues = self.followed.queues
            self.assertEqual(0, queues.backlog.total().servers)
        self.round(made_worker.LOOK_SECONDS)
        self.round()
        with self.followed.lock:
            self.assertEqual(0, queues.backlog.total().servers)
            self.assertEqual({}, dict(queues.charged()))

    def test_a_conductor_looks_for_what_is_not_seen_even_behind_its_deadline(self):
        self.now += 1e6
        self.round()
        self.round()
        self.assertEqual([("a", 2), ("a", 3)], self.told)
        granted = self.ledger.read("a").grant
        self.assertIs(pending.Purpose.PLACE, granted.purpose)
        self.assertIs(pending.PendingState.BUILDING, granted.after)

    def test_what_was_given_up_and_is_sent_again_is_told_again(self):
        self.round(made_worker.LOOK_SECONDS)
        taken = self.ledger.take("a", 3, "two")
        holding = pending_rules.holding_of(taken)
        self.ledger.give_up(holding, "b")
        self.round()
        self.ledger.begin(holding, kept=("b",))
        self.ledger.sent(holding, "b")
        self.ledger.place(holding, made_worker.LOOK_SECONDS)
        self.round()
        self.assertEqual(2, self.count("placed"))

    def give_up(self):
        """Have a conductor find that a host gave one of its servers up; return its holding."""
        attempt = self.ledger.read("a").grant.attempt
        holding = pending_rules.holding_of(self.ledger.take("a", attempt, f"giver-{attempt}"))
        self.ledger.give_up(holding, "b")
        return holding

    def purposes_behind(self):
        """Return what it is granted for shortly before its trying ends, and behind that."""
        deadline_at = self.ledger.read("a").deadline_at
        self.plans.answers.clear()
        self.now = deadline_at + pending.MOST_TRYING_SECONDS - 60
        found = []
        for _ in range(2):
            self.round()
            standing = self.ledger.read("a")
            is_waiting = standing.state is pending.PendingState.WAITING
            found.append(None if is_waiting else standing.grant.purpose)
            self.now += 60
        return found

    def test_what_was_given_up_waits_for_half_an_hour_behind_its_deadline(self):
        self.round(made_worker.LOOK_SECONDS)
        holding = self.give_up()
        self.ledger.park(holding, "no room", 0.0)
        self.assertEqual([None, pending.Purpose.EXPIRE], self.purposes_behind())

    def test_so_it_does_where_its_conductor_died(self):
        self.round(made_worker.LOOK_SECONDS)
        self.give_up()
        place, expire = pending.Purpose.PLACE, pending.Purpose.EXPIRE
        self.assertEqual([place, expire], self.purposes_behind())

    def test_what_may_have_been_sent_is_looked_for_behind_its_deadline_and_never_expires(self):
        self.park("d", servers=("d",), deadline_at=self.now + 50)
        self.round()
        taken = self.ledger.take("d", 2, "one")
        holding = pending_rules.holding_of(taken)
        self.ledger.begin(holding)
        self.ledger.sent(holding, "d")
        self.now += 60
        self.round()
        granted = self.ledger.read("d")
        self.assertEqual((3, pending.Purpose.PLACE), (granted.grant.attempt, granted.grant.purpose))
        self.ledger.finish(pending_rules.holding_of(self.ledger.take("d", 3, "two")))
        self.round()
        self.assertEqual((0, 2), (self.count("expired"), self.count("placed")))

    def test_what_an_older_scheduler_let_expire_is_not_told_as_such_once_it_is_placed(self):
        self.events.clear()
        self.now += made_worker.LOOK_SECONDS
        self.ledger.grant("a", 2, "older", pending.Purpose.EXPIRE)
        holding = self.give_up()
        self.round()
        self.ledger.begin(holding, kept=("b",))
        self.ledger.sent(holding, "b")
        self.ledger.place(holding, made_worker.LOOK_SECONDS)
        self.round()
        self.assertEqual((0, 1), (self.count("expired"), self.count("placed")))

    def test_it_left_the_queue_once_however_often_it_is_sent_again(self):
        self.round(made_worker.LOOK_SECONDS)
        holding = self.give_up()
        self.round()
        self.ledger.begin(holding, kept=("b",))
        self.ledger.sent(holding, "b")
        self.ledger.place(holding, made_worker.LOOK_SECONDS)
        self.round()
        self.assertEqual(["dispatched"], self.meter.endings)
        self.round(made_worker.LOOK_SECONDS)
        self.ledger.finish(self.give_up())
        self.round()
        self.assertEqual(["dispatched"], self.meter.endings)

    def test_rounds_are_as_far_apart_as_while_nobody_waits(self):
        idle, busy = queue_worker._IDLE_PAUSE_SECONDS, queue_worker._LEAST_PAUSE_SECONDS
        self.assertEqual(idle, self.worker._rest_seconds())
        self.round(made_worker.LOOK_SECONDS)
        self.round()
        self.assertEqual(busy, self.worker._rest_seconds())
        self.place("a")
        self.round()
        self.assertEqual(idle, self.worker._rest_seconds())
        self.park("c")
        self.round()
        self.assertEqual(busy, self.worker._rest_seconds())
        self.ledger.arrive(["a"])
        self.place("c")
        self.round()
        self.assertEqual(idle, self.worker._rest_seconds())

    def charged(self):
        with self.followed.lock:
            return dict(self.followed.queues.charged())

    def test_a_scheduler_that_begins_takes_no_room_off_for_it(self):
        self.worker = self.make_worker()
        self.round()
        self.assertEqual({}, self.charged())

    def test_one_whose_hosts_were_found_by_a_later_attempt_takes_its_room_once(self):
        self.park("c")
        self.round()
        taken = self.ledger.take("c", 2, "one")
        self.ledger.begin(pending_rules.holding_of(taken))
        self.round()
        self.now += made_requests.LEASE_SECONDS
        # All of the next attempt comes by the feed at once.
        self.ledger.grant("c", 2, "another", host="uuid-1")
        self.place("c")
        self.round()
        self.round()
        self.assertEqual({}, self.charged())

    def test_what_waits_of_it_once_it_was_given_up_counts_alone(self):
        self.round(made_worker.LOOK_SECONDS)
        holding = pending_rules.holding_of(self.ledger.take("a", 3, "two"))
        self.ledger.give_up(holding, "b")
        self.plans.answers.clear()
        self.ledger.park(holding, "no room", 0.0)
        self.round()
        with self.followed.lock:
            self.assertEqual(1, self.followed.queues.backlog.total().servers)

    def test_what_is_granted_of_it_once_it_was_given_up_is_charged_alone(self):
        self.round(made_worker.LOOK_SECONDS)
        holding = pending_rules.holding_of(self.ledger.take("a", 3, "two"))
        self.ledger.give_up(holding, "b")
        self.ledger.park(holding, "no room", 0.0)
        self.round()
        self.assertEqual(("a", 4), self.told[-1])
        with self.followed.lock:
            charge = self.followed.queues._book.charges.get("a")
        self.assertEqual(1, charge.servers)

    def test_a_scheduler_that_begins_looks_for_it_and_tells_nobody(self):
        self.events.clear()
        self.worker = self.make_worker()
        for server in ("a", "b"):
            self.places[server] = (("c", "host1"),)
        self.round()
        self.assertEqual((0, None), (self.count("placed"), self.state("a")))


class LostEventsTest(made_worker.WorkerCase):
    """More queues wait than one sweep looks at: 64, once a second."""

    QUEUES = 300

    def setUp(self):
        super().setUp()
        for number in range(self.QUEUES):
            self.park(f"r{number:03}", queue=f"q{number:03}", needs={"VCPU": 24})
        self.round()
        self.round()

    def fail_once(self, error):
        """Fail the first time that somebody is looked at."""
        failures = [error]

        def answer(request):
            return failures.pop() if failures else pending_fit.NoRoom()

        self.plans.answers = {f"q{number:03}": answer for number in range(self.QUEUES)}

    def looked_at(self):
        """Who is looked at in a round in which nobody is swept."""
        self.plans.asked.clear()
        self.round(0.1)
        return set(self.plans.asked)

    def test_a_host_that_grew_is_looked_at_again_where_that_broke_off(self):
        for error in (
            pending_fit.HostsUnproved("states not proved"),
            errors.BackendUnavailable("memory", "no answer"),
        ):
            self.engine.put(toys.facts(0))
            self.round()
            self.assertEqual(set(), self.looked_at())
            inventories = {"VCPU": host_facts.Inventory(32)}
            self.engine.put(toys.facts(0, provider=host_facts.ProviderFacts(1, inventories)))
            self.fail_once(error)
            with contextlib.suppress(errors.BackendUnavailable):
                self.round(0.1)
            self.assertLessEqual(63, len(self.looked_at()), error)
            self.assertEqual(set(), self.looked_at(), error)


class ClockSetBackTest(made_worker.WorkerCase):
    """The back end's clock goes back by an hour: another server took over, or it was set."""

    def setUp(self):
        super().setUp()
        self.park("a")
        self.round()
        self.round()

    def set_back(self):
        self.now -= 3600.0

    def test_requests_are_swept_all_the_same(self):
        self.set_back()
        self.plans.asked.clear()
        self.round()
        self.assertIn("a", self.plans.asked)

    def test_one_that_was_left_to_another_scheduler_is_taken_over(self):
        self.owners.own = False
        self.plans.answers["digest"] = FITS
        self.round()
        self.assertEqual([], self.told)
        self.set_back()
        for _ in range(8):
            self.round()
        self.assertEqual([("a", 2)], self.told)

    def test_one_whose_servers_are_seen_ends(self):
        self.plans.answers["digest"] = FITS
        self.round()
        self.place("a")
        self.round()
        self.set_back()
        self.places["a"] = (("c", "host1"),)
        self.round()
        self.assertIsNone(self.state("a"))

    def test_a_pause_ends_all_the_same(self):
        self.park("b", queue="other")
        self.ledger.grant("b", 1, "scheduler")
        holding = pending_rules.holding_of(self.ledger.take("b", 2, "conductor"))
        self.ledger.park(holding, "no room", 60.0)
        self.round()
        self.set_back()
        self.plans.answers["other"] = FITS
        self.round()
        self.assertEqual(("b", 3), self.told[-1])

    def test_a_host_is_held_all_the_same(self):
        self.plans.shortages["digest"] = pending_fit.RoomShortage(
            ("uuid-0",), ("VCPU",), np.array([[0]]), np.array([[16]]), 1
        )
        # Found before to have none, for a while.
        self.round(121.0)
        self.assertEqual("uuid-0", self.ledger.read("a").hold.host)
        self.ledger.clear_hold("a", "uuid-0")
        self.set_back()
        self.park("b", asked_at=self.now - 100.0, parked_at=self.now - 100.0, queue="digest")
        self.round(61.0)
        self.assertEqual("uuid-0", self.ledger.read("b").hold.host)


class BrokenOffTest(made_worker.WorkerCase):
    """What the feed brought is not lost where taking it over breaks off."""

    def test_all_of_it_comes_with_the_next_look(self):
        self.round()
        for key in ("a", "b", "c"):
            self.park(key)
        queues = self.followed.queues
        put, failures = queues.put, [MemoryError()]

        def breaking(request, now):
            if request.key == "b" and failures:
                raise failures.pop()
            put(request, now)

        queues.put = breaking
        self.assertRaises(MemoryError, self.round)
        self.round()
        with self.followed.lock:
            self.assertEqual(3, len(self.followed.queues))
