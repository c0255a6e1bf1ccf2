# SPDX-License-Identifier: Apache-2.0
"""The benchmark of waiting measures what it says: on few hosts it is a test."""

import itertools

import testtools

from tools.bench.waiting import choosers, parked_requests, wake_ups


class WakeUpsTest(testtools.TestCase):
    def test_freed_room_is_granted_and_the_queue_grows_by_what_came_beyond(self):
        found = wake_ups.measure(50, 300, events=40)

        self.assertEqual((50, 300, 40), (found["hosts"], found["parked"], found["events"]))
        # Some freed rooms are too small for all, or take two.
        self.assertTrue(20 <= found["granted"] <= 120, found["granted"])
        self.assertGreater(found["left_parked"], 300)
        self.assertEqual(0, found["over_capacity"])
        for name in ("wake_up_ms", "newcomer_ms", "gate_ms", "usage_ms", "whole_event_ms"):
            self.assertGreaterEqual(found[name]["cpu_99"], found[name]["cpu_50"])

    def test_parked_requests_are_the_same_for_a_seed_and_different_from_one_another(self):
        some = list(itertools.islice(parked_requests.stream(1), 50))
        self.assertEqual(some, list(itertools.islice(parked_requests.stream(1), 50)))
        keys = {parked_requests.record(each, n, {}).key for n, each in enumerate(some)}
        self.assertEqual(50, len(keys))


class ChoosersTest(testtools.TestCase):
    def measure(self, name, schedulers=4):
        (setting,) = [each for each in choosers.SETTINGS if each.name == name]
        return choosers.measure(setting, schedulers, hosts=20)

    def test_the_best_is_wanted_by_all_and_drawn_ones_by_few(self):
        best, drawn = self.measure("best, pack"), self.measure("random")
        self.assertGreater(best["conflict_share"], 0.6)
        self.assertLess(drawn["conflict_share"], 0.3)

    def test_packing_leaves_halves_of_hosts_and_spreading_none(self):
        self.assertEqual(0, self.measure("best, spread")["half_host_slots"])
        packed = self.measure("best, pack")
        self.assertTrue(0 < packed["half_host_slots"] <= packed["most_half_host_slots"] + 1)
