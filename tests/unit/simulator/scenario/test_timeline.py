# SPDX-License-Identifier: Apache-2.0
"""Timelines of faults are read from lines, and refused with the column."""

import pathlib

import fixtures
import testtools

from nova_nodb_scheduler.simulator.scenario import timeline, workload

BOUNDS = timeline.FaultBounds(racks=5, schedulers=2)


def parse(*lines):
    return timeline.parse([("--fault", line) for line in lines], BOUNDS)


class TimelineTest(testtools.TestCase):
    def test_lines_are_read_in_the_order_of_their_times(self):
        kinds = timeline.FaultKind
        self.assertEqual(
            (
                timeline.PlannedFault(1.5, kinds.SCHEDULER_KILLED, 1.0),
                timeline.PlannedFault(20.0, kinds.BACKEND_SLOW, 0.2, 10.0),
                timeline.PlannedFault(30.0, kinds.RACK_LOST, 4.0, 120.0),
            ),
            parse(
                "30 rack-lost 4 for 120", "  1.5 scheduler-killed 1", "20 backend-slow 0.2 for 10"
            ),
        )

    def test_it_is_over_when_the_last_fault_is(self):
        self.assertEqual(0.0, timeline.end_seconds(()))
        faults = parse("5 backend-cut for 30", "20 scheduler-killed 0")
        self.assertEqual(35.0, timeline.end_seconds(faults))

    def test_the_first_error_is_shown_where_it_stands(self):
        for line, column, words in (
            ("soon rack-lost 1", 1, "'soon' is no number"),
            ("-1 rack-lost 1", 1, "out of bounds"),
            ("3", 2, "what goes wrong"),
            ("3 rack-gone 1", 3, "'rack-gone' is none of rack-lost"),
            ("3 rack-lost", 12, "rack is missing"),
            ("3 rack-lost 5", 13, "they are 0 to 4"),
            ("3 rack-lost 1.5", 13, "whole number"),
            ("3 scheduler-killed 2", 20, "they are 0 to 1"),
            ("3 scheduler-paused 1", 21, "'for SECONDS' is missing"),
            ("3 backend-cut during 4", 15, "'during' where"),
            ("3 backend-cut for 0", 19, "out of bounds"),
            ("3 backend-cut for 4 more", 21, "'more' is too much"),
            ("3 schedulers-killed-every 0 for 9", 27, "some time between"),
        ):
            error = self.assertRaises(workload.InvalidFile, parse, line)
            self.assertEqual(f"--fault:{column}", error.place, line)
            self.assertIn(words, error.reason)

    def test_a_file_has_comments_and_lines_with_numbers(self):
        path = pathlib.Path(self.useFixture(fixtures.TempDir()).path) / "t"
        path.write_text("# nothing\n\n3 rack-lost 1 # all of it\n4 rack-lost 99\n")

        lines = timeline.read(path)
        self.assertEqual([f"{path}:3", f"{path}:4"], [place for place, _ in lines])
        error = self.assertRaises(workload.InvalidFile, timeline.parse, lines, BOUNDS)
        self.assertEqual(f"{path}:4:13", error.place)
