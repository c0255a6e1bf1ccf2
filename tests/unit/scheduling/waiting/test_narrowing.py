# SPDX-License-Identifier: Apache-2.0
"""What no longer fits once a grant took its room costs a walk next to nothing."""

import testtools

from nova_nodb_scheduler.scheduling.waiting import queue_settings, wait_queues, walks
from tests.unit.scheduling.waiting import samples


class NarrowingTest(testtools.TestCase):
    def queues(self, *requests, **limits):
        made = wait_queues.WaitQueues(queue_settings.QueueSettings(), limits=walks.Limits(**limits))
        for each in requests:
            made.put(each, 0.0)
        while (walk := made.wake_fresh(0.0)).next() is not None:
            walk.refused()
            samples.tried(walk)
        return made

    def test_the_last_that_fits_is_reached_behind_many_that_fit_no_longer(self):
        first = samples.request("first", 95, asked_at=0.0)
        between = [samples.request(f"r{n}", n, asked_at=float(n)) for n in range(10, 90)]
        last = samples.request("last", 5, asked_at=100.0)
        waiting = self.queues(first, *between, last, most_passed=3)

        walk = waiting.wake(samples.growth(h=100), 200.0)
        self.assertEqual(["first", "last"], samples.served(walk))
        self.assertFalse(walk.is_cut_short)

    def test_a_walk_ends_where_nobody_fits_into_what_is_left(self):
        many = [samples.request(f"r{n:02}", 50 + n, asked_at=float(n)) for n in range(40)]
        waiting = self.queues(*many, most_passed=3)

        walk = waiting.wake(samples.growth(h=100), 200.0)
        self.assertEqual(["r00"], samples.served(walk))
        self.assertFalse(walk.is_cut_short)

    def test_lines_that_stand_too_far_in_front_are_no_reason_to_end(self):
        many = [samples.request(f"r{n:03}", project_id=f"p{n}") for n in range(400)]
        waiting = self.queues(*many, samples.request("least", asked_at=9.0), most_passed=3)
        waiting.set_capacity({"VCPU": 1000}, 9.0)
        for each in many:
            waiting.set_usage(each.project_id, {"VCPU": 10}, 9.0)

        walk = waiting.wake(samples.growth(h=1), 200.0)
        self.assertEqual(["least"], samples.served(walk))
        self.assertFalse(walk.is_cut_short)

    def test_other_hosts_that_grew_still_count(self):
        large = [samples.request(f"l{n}", 60, asked_at=float(n)) for n in range(3)]
        waiting = self.queues(*large, samples.request("s", 40, asked_at=9.0), most_passed=3)

        walk = waiting.wake(samples.growth(h=100, i=60, j=60), 200.0)
        self.assertEqual(["l0", "l1", "l2", "s"], sorted(samples.served(walk)))

    def test_a_walk_past_many_whose_like_was_refused_has_an_end_and_a_sweep_goes_on(self):
        refused = [
            samples.request(f"r{n:02}", queue="here", project_id=f"p{n}", asked_at=float(n))
            for n in range(40)
        ]
        other = samples.request("other", queue="there", project_id="other", asked_at=50.0)
        waiting = self.queues(*refused, other, most_looked_at=20)

        walk = waiting.wake(samples.growth(h=100), 200.0)
        self.assertEqual(["r00"], samples.tried(walk))
        self.assertTrue(walk.is_cut_short)
        self.assertEqual({"r00", "other"}, set(samples.tried(waiting.sweep(200.0))))
