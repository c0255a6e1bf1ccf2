# SPDX-License-Identifier: Apache-2.0
"""A back end's clock between its answers: never ahead of it, and not running back."""

import time
import unittest
from unittest import mock

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers.support import clocks


class ClockCase(unittest.TestCase):
    def setUp(self):
        super().setUp()
        self.monotonic = 1000.0
        self.enterContext(mock.patch.object(time, "monotonic", lambda: self.monotonic))
        #: What the back end's clock shows, and how long an answer takes.
        self.ahead, self.delay = 5000.0, 0.0
        self.asked = 0

    def server_seconds(self):
        return self.monotonic + self.ahead


class OffsetClockTest(ClockCase):
    """Over a server that tells whole seconds."""

    def setUp(self):
        super().setUp()
        self.clock = clocks.BackendClock(self.ask, "a server", slack_seconds=0.5)

    def ask(self):
        self.asked += 1
        sent_at = self.monotonic
        seconds = float(int(self.server_seconds()))
        self.monotonic += self.delay
        self.clock.note(seconds, seconds + 1.0, sent_at, self.monotonic)

    def test_it_comes_close_to_the_server_from_below_and_never_runs_back(self):
        last = 0.0
        for number in range(200):
            self.monotonic += 0.37
            self.delay = 0.3 if number % 3 else 0.0
            now = self.clock.now_seconds()
            self.assertLessEqual(now, self.server_seconds())
            self.assertGreaterEqual(now, last)
            last = now
        self.assertGreater(last, self.server_seconds() - 0.1)

    def test_it_asks_no_more_than_once_a_second(self):
        for _ in range(100):
            self.monotonic += 0.1
            self.clock.now_seconds()
        self.assertLessEqual(self.asked, 11)

    def test_an_answer_that_was_long_on_its_way_sets_nothing_back(self):
        before = self.clock.now_seconds()
        self.monotonic += 2.0
        self.delay = 30.0
        self.assertGreaterEqual(self.clock.now_seconds(), before + 32.0)

    def test_a_server_whose_clock_was_set_back_is_followed(self):
        self.clock.now_seconds()
        self.ahead -= 3600.0
        self.monotonic += 2.0
        self.assertLessEqual(self.clock.now_seconds(), self.server_seconds())

    def test_an_answer_that_tells_no_time_leaves_none(self):
        self.clock.now_seconds()
        silent = clocks.BackendClock(lambda: None, "a server", 0.5)
        with self.assertRaises(errors.BackendUnavailable) as caught:
            silent.now_seconds()
        self.assertIn("a server", str(caught.exception))


class WriteTimestampClockTest(ClockCase):
    def setUp(self):
        super().setUp()
        self.clock = clocks.WriteTimestampClock(self.write, "a directory", 0.01)

    def write(self):
        self.asked += 1
        return self.server_seconds()

    def test_it_is_the_time_of_the_stamps_and_costs_a_write_a_second(self):
        for _ in range(50):
            self.monotonic += 0.1
            self.assertAlmostEqual(self.server_seconds(), self.clock.now_seconds(), 6)
        self.assertLessEqual(self.asked, 6)
