# SPDX-License-Identifier: Apache-2.0
"""Who is tried when room grows, and what becomes of requests in time."""

from __future__ import annotations

import attrs
import numpy as np
import testtools

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.waiting import (
    backlog,
    queue_settings,
    request_book,
    wait_queues,
    walks,
)
from nova_nodb_scheduler.scheduling.waiting.order import waiting_lines
from tests import counted_calls
from tests.unit.scheduling.waiting import samples
from tests.unit.scheduling.waiting.samples import (
    granted,
    growth,
    queues,
    request,
    served,
    tried,
)

STRICT = {"discipline": queue_settings.Discipline.STRICT}
Stage = waiting_lines.Stage


class WakeTest(testtools.TestCase):
    def test_who_asked_first_goes_first(self):
        waiting = queues(request("b", asked_at=2.0), request("a", asked_at=1.0))

        self.assertEqual(["a", "b"], served(waiting.wake(growth(h=2), 9.0)))

    def test_room_for_one_is_granted_once(self):
        waiting = queues(request("b", asked_at=2.0), request("a", asked_at=1.0))

        self.assertEqual(["a"], served(waiting.wake(growth(h=1), 9.0)))
        self.assertEqual([], served(waiting.wake(growth(h=1), 9.0)))

    def test_who_fitted_before_is_not_helped_by_more(self):
        waiting = queues(request("small", 1), request("large", 4))

        self.assertEqual(["large"], tried(waiting.wake(growth(before=2, h=5), 9.0)))

    def test_who_needs_more_than_there_is_is_not_woken(self):
        waiting = queues(request("large", 4))

        self.assertEqual([], tried(waiting.wake(growth(h=3, i=3), 9.0)))

    def test_a_resource_class_that_the_hosts_do_not_have_is_nowhere(self):
        waiting = queues(request("a", needs={"VCPU": 1, "CUSTOM_RARE": 1}))

        self.assertEqual([], tried(waiting.wake(growth(h=9), 9.0)))

    def test_who_needs_more_than_numbers_can_say_fits_nowhere(self):
        waiting = queues(request("a", needs={"VCPU": 10**30}), request("b"))

        self.assertEqual(["b"], tried(waiting.wake(growth(h=9), 9.0)))

    def test_the_candidate_says_which_of_the_hosts_have_room(self):
        waiting = queues(request("a", 3))
        walk = waiting.wake(growth(h=1, i=3, j=4), 9.0)

        self.assertEqual(("i", "j"), walk.next().hosts)

    def test_who_goes_while_it_is_tried_keeps_nobody_from_being_asked(self):
        waiting = queues(*(request(f"r{n}", queue=f"q{n}", asked_at=float(n)) for n in range(3)))
        walk = waiting.wake(growth(h=9), 9.0)

        self.assertEqual("r0", walk.next().request.key)
        waiting.drop("r0", 9.0)
        walk.refused()
        self.assertEqual(["r1", "r2"], tried(walk))

    def test_who_comes_in_front_meanwhile_does_not_keep_its_project_from_its_turn(self):
        waiting = queues(
            request("a", queue="qa", project_id="pa", asked_at=2.0),
            request("b", queue="qb", project_id="pb", asked_at=3.0),
            request("c", queue="qc", project_id="pc", asked_at=4.0),
        )
        walk = waiting.wake(growth(h=3), 9.0)

        self.assertEqual("a", walk.next().request.key)
        waiting.put(request("old", 9, project_id="pb", asked_at=1.0), 9.0)
        walk.refused()
        self.assertEqual(["b", "c"], tried(walk))

    def test_what_is_refused_is_refused_for_all_with_equal_chances(self):
        waiting = queues(*(request(f"r{n}", asked_at=float(n)) for n in range(9)))

        self.assertEqual(["r0"], tried(waiting.wake(growth(h=9), 9.0)))

    def test_a_promoted_one_goes_before_every_class(self):
        waiting = queues(request("a", priority_class="high"), request("b", rank=1, asked_at=5.0))

        self.assertEqual(["b", "a"], served(waiting.wake(growth(h=2), 9.0)))

    def test_who_has_waited_long_counts_as_the_next_class(self):
        old = request("a", priority_class="low", asked_at=0.0)
        new = request("b", asked_at=3000.0)
        waiting = queues(old, new, now=3000.0, aging_seconds=100.0)

        self.assertEqual("b", next(waiting.ordered(3000.0)).key)
        self.assertEqual(5000.0, waiting.next_due_at())
        waiting.advance(5000.0)
        self.assertEqual(["a", "b"], served(waiting.wake(growth(h=2), 5000.0)))

    def test_behind_one_that_has_aged_come_those_of_its_line_that_have_not(self):
        """They stand in a shape that was not there when the walk began."""
        classes = (queue_settings.PriorityClass("low", 0), queue_settings.PriorityClass("high", 1))
        waiting = queues(
            request("old", priority_class="low", asked_at=0.0),
            request("new", priority_class="low", asked_at=150.0),
            now=160.0,
            classes=classes,
            default_class="low",
            aging_seconds=100.0,
        )

        self.assertEqual(["old", "new"], served(waiting.wake(growth(h=2), 160.0)))
        more = queues(
            request("old", priority_class="low", asked_at=0.0),
            request("new", priority_class="low", asked_at=150.0),
            now=160.0,
            classes=classes,
            default_class="low",
            aging_seconds=100.0,
        )
        walk = more.wake(growth(h=2), 160.0)
        walk.next()
        walk.lost()
        self.assertEqual("new", walk.next().request.key)

    def test_an_unknown_class_counts_as_the_least(self):
        waiting = queues(request("a", priority_class="?"), request("b", asked_at=5.0))

        self.assertEqual(["b", "a"], served(waiting.wake(growth(h=2), 9.0)))

    def test_the_project_with_the_smaller_share_goes_first(self):
        waiting = queues(request("a", project_id="rich"), request("b", project_id="poor"))
        waiting.set_capacity({"VCPU": 100}, 0.0)
        waiting.set_usage("rich", {"VCPU": 50}, 0.0)
        waiting.set_usage("poor", {"VCPU": 49}, 0.0)

        self.assertEqual(["b", "a"], served(waiting.wake(growth(h=2), 9.0)))

    def test_without_shares_age_alone_decides(self):
        waiting = queues(
            request("a", project_id="rich", asked_at=0.0),
            request("b", project_id="poor", asked_at=1.0),
            order=queue_settings.Order.FIFO,
        )
        waiting.set_capacity({"VCPU": 100}, 0.0)
        waiting.set_usage("rich", {"VCPU": 50}, 0.0)

        self.assertEqual(["a", "b"], served(waiting.wake(growth(h=2), 9.0)))

    def test_an_answer_for_a_record_that_changed_meanwhile_is_not_for_it(self):
        waiting = queues(request("a"))
        walk = waiting.wake(growth(h=1), 9.0)
        walk.next()
        waiting.put(request("a", rank=1), 9.0)
        walk.lost()

        self.assertEqual(Stage.READY, waiting.stage("a"))

    def test_a_candidate_must_be_answered_once(self):
        walk = queues(request("a")).wake(growth(h=1), 9.0)
        walk.next()

        self.assertRaises(RuntimeError, walk.next)
        walk.refused()
        self.assertRaises(RuntimeError, walk.refused)


class StrictTest(testtools.TestCase):
    def test_nobody_of_a_class_goes_before_its_first(self):
        waiting = queues(request("large", 4), request("small", 1, asked_at=1.0), **STRICT)

        self.assertEqual([], tried(waiting.wake(growth(h=3), 9.0)))
        self.assertEqual(["large", "small"], served(waiting.wake(growth(h=5), 9.0)))

    def test_the_firsts_are_looked_at_again_only_after_something_changed(self):
        waiting = queues(request("a", 4), request("b", asked_at=1.0), **STRICT)

        self.assertEqual([], tried(waiting.wake_fresh(9.0)))
        waiting.drop("a", 9.0)
        self.assertEqual(["b"], tried(waiting.wake_fresh(9.0)))
        self.assertEqual([], tried(waiting.wake_fresh(9.0)))

    def test_another_class_does(self):
        waiting = queues(request("large", 4, priority_class="high"), request("small", 1), **STRICT)

        self.assertEqual(["small"], served(waiting.wake(growth(h=3), 9.0)))

    def test_the_first_keeps_its_place_while_it_rests(self):
        waiting = queues(
            request("a", not_before=20.0), request("b", asked_at=1.0, project_id="q"), **STRICT
        )

        self.assertEqual([], tried(waiting.wake(growth(h=3), 9.0)))
        waiting.advance(20.0)
        self.assertEqual(["a", "b"], served(waiting.wake_fresh(20.0)))

    def test_in_best_effort_others_go_meanwhile(self):
        waiting = queues(request("a", not_before=20.0), request("b", asked_at=1.0))

        self.assertEqual(["b"], served(waiting.wake(growth(h=3), 9.0)))


class GangTest(testtools.TestCase):
    def test_more_room_for_one_more_server_may_help(self):
        waiting = queues(request("gang", 2, servers=3))

        self.assertEqual([], tried(waiting.wake(growth(before=2, h=3), 9.0)))
        self.assertEqual(["gang"], tried(waiting.wake(growth(before=2, h=4), 9.0)))

    def test_more_room_than_all_of_them_take_does_not(self):
        waiting = queues(request("gang", 2, servers=3))

        self.assertEqual([], tried(waiting.wake(growth(before=6, h=9), 9.0)))

    def test_each_server_is_charged_on_its_host(self):
        waiting = queues(request("gang", 2, servers=3))
        walk = waiting.wake(growth(h=4, i=2), 9.0)
        walk.next()
        walk.granted(["h", "h", "i"], 99.0)

        amounts = {"VCPU": 2, "MEMORY_MB": 2}
        twice = {"VCPU": 4, "MEMORY_MB": 4}
        self.assertEqual({"h": twice, "i": amounts}, waiting.charged())


class ChargeTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.record = request("a")
        self.waiting = queues(self.record, request("b", asked_at=1.0))
        walk = self.waiting.wake(growth(h=1), 9.0)
        walk.next()
        walk.granted(["h"], 39.0)
        tried(walk)

    def test_room_is_charged_until_the_server_shows(self):
        self.assertEqual([], tried(self.waiting.wake(growth(h=1), 9.0)))
        self.waiting.show("a", 9.0)

        self.assertEqual({}, self.waiting.charged())
        self.assertEqual((), self.waiting.take_released())

    def test_a_record_of_the_grant_does_not_charge_again_what_was_shown(self):
        self.waiting.show("a", 9.0)
        self.waiting.put(granted(self.record, 39.0, "h"), 9.0)

        self.assertEqual({}, self.waiting.charged())

    def test_room_of_a_grant_that_came_to_nothing_is_told(self):
        again = attrs.evolve(self.record, grant=pending.Grant(2, "c", 0.0), refusals=2)
        self.waiting.put(again, 9.0)

        self.assertEqual(("h",), self.waiting.take_released())
        self.assertEqual((), self.waiting.take_released())
        self.assertEqual(["a"], served(self.waiting.wake(growth(h=1), 9.0)))

    def test_old_news_does_not_undo_a_grant(self):
        self.waiting.put(attrs.evolve(self.record, rank=5), 9.0)

        self.assertEqual(Stage.IN_FLIGHT, self.waiting.stage("a"))
        self.assertEqual({"h"}, set(self.waiting.charged()))

    def test_a_grant_that_never_shows_was_not_written(self):
        self.assertEqual((), self.waiting.advance(38.0))
        self.assertEqual((), self.waiting.advance(39.0))

        self.assertEqual(Stage.READY, self.waiting.stage("a"))
        self.assertEqual(("h",), self.waiting.take_released())
        self.assertEqual(2, self.waiting.wake(growth(h=1), 39.0).next().attempt)

    def test_grants_of_other_schedulers_are_charged_on_their_host(self):
        self.waiting.put(granted(request("other"), 39.0, "i"), 9.0)

        self.assertIn("i", self.waiting.charged())
        self.waiting.drop("other", 9.0)
        self.assertEqual(("i",), self.waiting.take_released())

    def test_a_grant_counts_in_the_project_s_share(self):
        self.waiting.set_capacity({"VCPU": 10}, 9.0)
        self.assertEqual(0.1, self.waiting.share("project"))
        self.waiting.show("a", 9.0)
        self.waiting.set_usage("project", {"VCPU": 1}, 9.0)

        self.assertEqual(0.1, self.waiting.share("project"))


class TimeTest(testtools.TestCase):
    def test_after_a_pause_it_is_tried_again(self):
        waiting = queues(request("a", not_before=20.0))
        self.assertEqual(20.0, waiting.next_due_at())
        self.assertEqual([], tried(waiting.wake(growth(h=9), 19.0)))

        self.assertEqual((), waiting.advance(20.0))
        self.assertEqual(["a"], tried(waiting.wake_fresh(20.0)))
        self.assertEqual([], tried(waiting.wake_fresh(20.0)))

    def test_at_its_deadline_it_is_due_and_tried_no_more(self):
        waiting = queues(request("a", deadline_at=20.0))
        self.assertEqual([], tried(waiting.wake(growth(h=9), 20.0)))

        [due] = waiting.advance(20.0)
        self.assertEqual(request_book.DueReason.DEADLINE, due.reason)
        self.assertEqual(pending.Purpose.EXPIRE, due.purpose)
        self.assertEqual(2, due.attempt)
        self.assertEqual([], tried(waiting.sweep(20.0)))

    def test_what_is_due_comes_again_until_somebody_grants_it(self):
        waiting = queues(request("a", deadline_at=20.0), lease_seconds=30.0)
        waiting.advance(20.0)
        self.assertEqual((), waiting.advance(49.0))
        [due] = waiting.advance(50.0)
        waiting.regranted(due, 80.0, 50.0)

        self.assertEqual(80.0, waiting.next_due_at())
        self.assertEqual({}, waiting.charged())

    def test_who_had_it_in_hand_and_is_silent_loses_it(self):
        waiting = queues(granted(request("a"), 20.0, "h"))
        self.assertEqual((), waiting.advance(19.0))

        [due] = waiting.advance(20.0)
        self.assertEqual(request_book.DueReason.LEASE_ENDED, due.reason)
        self.assertEqual(pending.Purpose.PLACE, due.purpose)
        self.assertEqual(3, due.attempt)
        self.assertEqual(("h",), waiting.take_released())

    def test_a_lease_that_is_renewed_does_not_end(self):
        record = granted(request("a"), 20.0)
        waiting = queues(record)
        grant = attrs.evolve(record.grant, until_seconds=40.0)
        waiting.put(attrs.evolve(record, grant=grant), 10.0)

        self.assertEqual((), waiting.advance(39.0))
        self.assertEqual(1, len(waiting.advance(40.0)))

    def test_who_is_lost_comes_back_with_its_record_or_after_a_while(self):
        waiting = queues(request("a"), lease_seconds=30.0)
        walk = waiting.wake(growth(h=1), 9.0)
        walk.next()
        walk.lost()
        self.assertEqual([], tried(waiting.wake(growth(h=1), 10.0)))

        waiting.advance(39.0)
        self.assertEqual(["a"], tried(waiting.wake(growth(h=1), 39.0)))


class SweepTest(testtools.TestCase):
    def test_whom_a_walk_that_was_cut_short_did_not_reach_the_sweep_finds(self):
        limits = walks.Limits(most_tried=3)
        waiting = wait_queues.WaitQueues(queue_settings.QueueSettings(), limits=limits)
        for number in range(9):
            waiting.put(request(f"r{number}", queue=f"q{number}", asked_at=float(number)), 0.0)
        walk = waiting.wake(growth(h=9), 1.0)
        self.assertEqual(["r0", "r1", "r2"], tried(walk))
        self.assertTrue(walk.is_cut_short)

        found = [tried(waiting.sweep(1.0)) for _ in range(3)]
        self.assertEqual(
            {f"r{number}" for number in range(9)}, {key for keys in found for key in keys}
        )

    def test_a_queue_that_is_empty_is_swept_no_more(self):
        waiting = queues(request("a"))
        waiting.drop("a", 0.0)

        self.assertEqual([], tried(waiting.sweep(0.0)))
        self.assertEqual(0, len(waiting))


class NewcomerTest(testtools.TestCase):
    def newcomer(self, **fields):
        record = request("new", asked_at=50.0, parked_at=0.0, **fields)
        return attrs.evolve(record, state=pending.PendingState.SCHEDULING)

    def test_it_is_behind_those_with_equal_chances(self):
        waiting = queues(request("a"), request("b"), request("other", 2))

        self.assertEqual(2, waiting.behind(self.newcomer(), 50.0))

    def test_it_is_behind_those_of_another_project_that_ask_for_the_same(self):
        waiting = queues(
            request("a", project_id="q", queue="queue-q"), request("b", queue="other-q")
        )
        newcomer = self.newcomer(queue="queue-p")

        self.assertEqual(1, waiting.behind(newcomer, 50.0))
        self.assertEqual(0, waiting.behind(newcomer, 50.0, of_others=False))
        waiting.drop("a", 50.0)
        self.assertEqual(0, waiting.behind(newcomer, 50.0))

    def test_it_goes_before_those_of_a_project_that_has_more(self):
        waiting = queues(request("a", project_id="q", queue="queue-q"))
        waiting.set_capacity({"VCPU": 10}, 0.0)
        waiting.set_usage("q", {"VCPU": 5}, 0.0)

        self.assertEqual(0, waiting.behind(self.newcomer(queue="queue-p"), 50.0))

    def test_it_may_be_tried_where_nobody_like_it_waits(self):
        self.assertEqual(0, queues(request("a", 2)).behind(self.newcomer(), 50.0))

    def test_it_may_be_tried_where_it_goes_before_all(self):
        waiting = queues(request("a", priority_class="low"))

        self.assertEqual(0, waiting.behind(self.newcomer(), 50.0))

    def test_who_rests_or_is_on_its_way_goes_before_it_too(self):
        waiting = queues(request("a", not_before=99.0), granted(request("b"), 99.0))

        self.assertEqual(2, waiting.behind(self.newcomer(), 50.0))

    def test_who_rests_goes_before_it_once_that_one_counts_as_its_class(self):
        waiting = queues(
            request("a", priority_class="low", not_before=99.0), aging_seconds=1.0, now=0.0
        )
        waiting.advance(49.0)
        self.assertEqual(0, waiting.behind(self.newcomer(), 49.0))

        waiting.advance(50.0)
        self.assertEqual(1, waiting.behind(self.newcomer(), 50.0))

    def test_who_rests_and_whose_project_has_less_by_now_goes_before_it(self):
        waiting = queues(request("a", project_id="q", queue="queue-q", not_before=99.0))
        waiting.set_capacity({"VCPU": 10}, 0.0)
        waiting.set_usage("project", {"VCPU": 4}, 0.0)
        waiting.set_usage("q", {"VCPU": 5}, 0.0)
        newcomer = self.newcomer(queue="queue-p")
        self.assertEqual(0, waiting.behind(newcomer, 50.0))

        waiting.set_usage("q", {"VCPU": 3}, 50.0)
        self.assertEqual(1, waiting.behind(newcomer, 50.0))

    def test_its_own_record_is_not_before_itself(self):
        waiting = queues(self.newcomer())

        self.assertEqual(0, waiting.behind(self.newcomer(), 50.0))

    def test_in_strict_order_it_is_behind_its_class(self):
        waiting = queues(request("a", 7), **STRICT)

        self.assertEqual(1, waiting.behind(self.newcomer(), 50.0))
        self.assertEqual(0, waiting.behind(self.newcomer(priority_class="high"), 50.0))

    def test_a_full_queue_says_what_is_full(self):
        waiting = queues(
            request("a", servers=3), request("b", project_id="q"), max_pending_per_project=4
        )
        self.assertIsNone(waiting.full("project", 1))
        self.assertEqual(backlog.QueueFull("project", 3, 4), waiting.full("project", 2))
        small = queues(request("a", servers=3), max_pending=3)
        self.assertEqual(backlog.QueueFull("", 3, 3), small.full("q", 1))

    def test_what_left_makes_place(self):
        waiting = queues(request("a", servers=3), max_pending=3)
        waiting.drop("a", 0.0)

        self.assertIsNone(waiting.full("q", 3))
        self.assertEqual(backlog.NOTHING, waiting.backlog.total())


class CostTest(testtools.TestCase):
    """Counted, not timed: calls of functions, Python's and built-in ones."""

    def calls(self, parked: int, act) -> int:
        waiting = wait_queues.WaitQueues(queue_settings.QueueSettings())
        waiting.set_capacity({"VCPU": 1000}, 0.0)
        for number in range(parked):
            waiting.put(
                request(
                    f"{number:09}",
                    1 + number % 4,
                    asked_at=float(number),
                    project_id=f"p{number % 5}",
                ),
                0.0,
            )
        tried(waiting.wake_fresh(0.0))
        return counted_calls.count(act, waiting)

    def assert_flat(self, act) -> None:
        few, many = self.calls(100, act), self.calls(10_000, act)
        self.assertTrue(many <= 1.5 * few, (few, many))

    def test_an_event_costs_the_same_whatever_waits(self):
        self.assert_flat(lambda waiting: served(waiting.wake(growth(h=5), 1.0)))

    def test_an_event_that_helps_nobody_costs_the_same_whatever_waits(self):
        self.assert_flat(lambda waiting: tried(waiting.wake(growth(h=0), 1.0)))

    def test_a_record_costs_the_same_whatever_waits(self):
        self.assert_flat(lambda waiting: waiting.put(request("new"), 1.0))
        self.assert_flat(lambda waiting: waiting.drop("000000007", 1.0))

    def test_time_and_the_sweep_cost_the_same_whatever_waits(self):
        self.assert_flat(lambda waiting: (waiting.next_due_at(), waiting.advance(1.0)))
        self.assert_flat(lambda waiting: tried(waiting.sweep(1.0)))

    def test_many_hosts_in_one_growth_cost_no_call_each(self):
        def event(hosts: int):
            names = {f"h{number}": 0 for number in range(hosts)}
            grown = growth(**names)
            assert isinstance(grown.after, np.ndarray)
            return lambda waiting: tried(waiting.wake(grown, 1.0))

        few, many = self.calls(100, event(10)), self.calls(100, event(1000))
        self.assertTrue(many <= 1.5 * few, (few, many))


class ListTest(testtools.TestCase):
    def test_the_list_is_in_order_with_those_that_rest(self):
        waiting = queues(
            request("c", asked_at=3.0),
            request("b", asked_at=2.0, not_before=99.0),
            granted(request("x"), 99.0),
            request("a", priority_class="high", asked_at=9.0),
        )

        self.assertEqual(["a", "b", "c"], [each.key for each in waiting.ordered(0.0)])

    def test_a_record_is_kept_as_it_came(self):
        record = request("a", servers=2, reason="no room", user_id="somebody")

        self.assertEqual(record, queues(record).get("a"))
        self.assertIsNone(queues(record).get("b"))

    def test_requests_share_what_is_equal(self):
        one = samples.request("a", needs={"VCPU": 7}, flavor=str(b"xy", "ascii"))
        other = samples.request("b", needs={"VCPU": 7}, flavor=str(b"xy", "ascii"))
        waiting = queues(one, other)

        self.assertIs(waiting.get("a").needs, waiting.get("b").needs)
        self.assertIs(waiting.get("a").flavor, waiting.get("b").flavor)
