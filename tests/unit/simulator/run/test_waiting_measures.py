# SPDX-License-Identifier: Apache-2.0
"""Whoever goes before one that should have gone first is counted, and nobody else."""

import testtools

from nova_nodb_scheduler.simulator.run import waiting_measures
from nova_nodb_scheduler.simulator.scenario import workload

SMALL, LARGE = workload.MadeFlavor("s", 1, 1024, 1), workload.MadeFlavor("l", 8, 8192, 1)


class OrderTest(testtools.TestCase):
    def measures(self, aging_seconds=0.0):
        return waiting_measures.WaitingMeasures({"low": 0, "high": 100}, aging_seconds, 2.0)

    def come(self, found, number, at, *, parks_at=None, **fields):
        """Have a request come, and wait from then on where it is said since when."""
        asked = {"flavor": SMALL, "priority_class": "low", "project_id": "p", **fields}
        found.came(workload.Arrival(number=number, at_seconds=at, **asked), at)
        if parks_at is not None:
            found.parked(number, parks_at, parks_at)

    def place(self, found, number, at):
        found.granted(number, at)
        found.answered(number, has_room=True)
        found.ended_as(number, "placed", at + 0.1)

    def test_the_older_of_a_project_goes_first(self):
        found = self.measures()
        self.come(found, 0, 0.0, parks_at=0.0)
        self.come(found, 1, 1.0, parks_at=1.0)

        self.place(found, 1, 10.0)
        self.assertEqual(1, found.overtaken)
        self.place(found, 0, 11.0)
        self.assertEqual(1, found.overtaken)

    def test_a_greater_class_goes_first_whatever_its_project_and_age(self):
        found = self.measures()
        self.come(found, 0, 0.0, parks_at=0.0)
        self.come(found, 1, 5.0, parks_at=5.0, priority_class="high", project_id="q")

        self.place(found, 0, 10.0)
        self.assertEqual(1, found.overtaken)

    def test_shares_may_put_the_younger_of_another_project_first(self):
        found = self.measures()
        self.come(found, 0, 0.0, parks_at=0.0)
        self.come(found, 1, 1.0, parks_at=1.0, project_id="q")

        self.place(found, 1, 10.0)
        self.assertEqual(0, found.overtaken)

    def test_others_that_need_something_else_may_go_before(self):
        found = self.measures()
        self.come(found, 0, 0.0, parks_at=0.0, flavor=LARGE)
        self.come(found, 1, 0.0, parks_at=0.0, servers=2)
        self.come(found, 2, 1.0, parks_at=1.0)

        self.place(found, 2, 10.0)
        self.assertEqual(0, found.overtaken)

    def test_who_came_to_wait_a_moment_ago_may_be_unknown_to_a_scheduler(self):
        found = self.measures()
        self.come(found, 0, 0.0, parks_at=9.0)
        self.come(found, 1, 1.0, parks_at=1.0)

        self.place(found, 1, 10.0)
        self.assertEqual(0, found.overtaken)

    def test_a_newcomer_that_passes_one_that_waits_is_counted(self):
        found = self.measures()
        self.come(found, 0, 0.0, parks_at=0.0)
        self.come(found, 1, 10.0)
        found.answered(1, has_room=True)
        found.ended_as(1, "placed", 10.1)

        self.assertEqual(1, found.overtaken)

    def test_who_has_waited_long_counts_as_a_greater_class(self):
        for waited, overtaken in ((900.0, 0), (1100.0, 1)):
            found = self.measures(aging_seconds=10.0)
            self.come(found, 0, 0.0, parks_at=0.0)
            self.come(found, 1, waited - 50, parks_at=waited - 50, project_id="q")
            self.place(found, 1, waited)
            self.assertEqual(overtaken, found.overtaken)

    def test_attempts_that_were_granted_in_vain_are_counted_and_others_are_not(self):
        found = self.measures()
        self.come(found, 0, 0.0)
        found.answered(0, has_room=False)
        self.assertEqual(0, found.failed_grants)
        found.parked(0, 1.0, 2.0)
        found.granted(0, 5.0)
        found.answered(0, has_room=False)

        self.assertEqual((1, 1, 0), (found.failed_grants, found.grants, found.waiting))

    def test_waiting_is_counted_and_an_end_is_told_once(self):
        found = self.measures()
        for number in range(3):
            self.come(found, number, 0.0, parks_at=0.0)
        self.assertEqual((3, 3), (found.waiting, found.most_waiting))
        found.ended_as(0, "expired", 9.0)
        found.ended_as(0, "placed", 10.0)

        self.assertEqual((2, 3, 1), (found.waiting, found.most_waiting, found.ended))
        self.assertEqual("expired", found.stories[0].ending)
        self.assertEqual(9.0, found.stories[0].waited_seconds)
