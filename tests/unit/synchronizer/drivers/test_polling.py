# SPDX-License-Identifier: Apache-2.0
"""Looks at a polled feed are counted by a made clock: few while idle, enough while busy."""

import itertools

import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers import memcached, sqlalchemy
from nova_nodb_scheduler.synchronizer.drivers.support import polling

IDLE_SECONDS, BUSY_SECONDS = 0.1, 0.02
LOOK_SECONDS = 0.001


class Feed:
    """News at known times, a clock that only waits and looks move on, and one reader.

    :param work_seconds: what the reader does with news
    """

    def __init__(self, news_at, *, work_seconds=0.002, intervals=None):
        self.now = 0.0
        self.looks = []
        self.delays = []
        self.poll = polling.Poll(
            intervals or polling.Intervals(IDLE_SECONDS, BUSY_SECONDS),
            clock=lambda: self.now,
            sleep=self.pass_time,
        )
        self._news = sorted(news_at)
        self._work_seconds = work_seconds

    def pass_time(self, seconds):
        assert seconds > 0
        self.now += seconds

    def look(self):
        self.looks.append(self.now)
        found = bool(self._news) and self._news[0] <= self.now
        self.now += LOOK_SECONDS
        return found

    def follow(self, until, timeout_seconds=0.5):
        while self.now < until:
            if self.poll.wait(self.look, timeout_seconds):
                self.now += self._work_seconds
                while self._news and self._news[0] <= self.now:
                    self.delays.append((self._news[0], self.now - self._news.pop(0)))

    def looks_per_second(self, since, until):
        return sum(since <= at < until for at in self.looks) / (until - since)

    def longest_delay(self, since=0.0):
        return max(delay for at, delay in self.delays if at >= since)


def every(seconds, since, until):
    return [since + number * seconds for number in range(int((until - since) / seconds))]


class LooksTest(testtools.TestCase):
    def test_a_silent_feed_costs_one_look_an_idle_interval(self):
        feed = Feed([])
        feed.follow(30.0)
        self.assertAlmostEqual(1 / IDLE_SECONDS, feed.looks_per_second(1.0, 30.0), delta=1)

    def test_the_beats_of_an_idle_cloud_do_not_make_it_busy(self):
        feed = Feed(every(0.3, 0.0, 30.0))
        feed.follow(30.0)
        # One more for the change itself.
        self.assertLess(feed.looks_per_second(1.0, 30.0), 1 / IDLE_SECONDS + 2)

    def test_a_busy_feed_is_looked_at_once_a_busy_interval_and_not_more_often(self):
        feed = Feed(every(1 / 260, 0.0, 10.0))
        feed.follow(10.0)
        self.assertAlmostEqual(1 / BUSY_SECONDS, feed.looks_per_second(2.0, 10.0), delta=2)

    def test_in_between_there_are_two_looks_for_each_change(self):
        feed = Feed(every(0.1, 0.0, 20.0))
        feed.follow(20.0)
        self.assertAlmostEqual(20, feed.looks_per_second(2.0, 20.0), delta=4)

    def test_changes_of_a_busy_feed_are_seen_within_the_busy_interval(self):
        feed = Feed(every(1 / 160, 5.0, 15.0))
        feed.follow(15.0)
        work = 2 * LOOK_SECONDS + 0.002
        self.assertLess(feed.longest_delay(), IDLE_SECONDS + work)
        self.assertLess(feed.longest_delay(since=6.0), BUSY_SECONDS + work)

    def test_a_gap_in_a_busy_feed_does_not_cost_the_next_change_its_short_delay(self):
        feed = Feed(every(0.01, 0.0, 10.0) + every(0.01, 11.0, 12.0))
        feed.follow(12.0)
        self.assertLess(feed.longest_delay(since=2.0), IDLE_SECONDS / 2)

    def test_pauses_grow_step_by_step_once_nothing_comes(self):
        feed = Feed(every(0.01, 0.0, 5.0))
        feed.follow(20.0, timeout_seconds=60.0)
        # The last pause is what the time-out left of it.
        pauses = [
            after - before
            for before, after in itertools.pairwise(feed.looks)
            if before > 5.1 and after - before > 0.01
        ][:-1]
        self.assertLess(pauses[0], 0.025)
        self.assertAlmostEqual(IDLE_SECONDS, pauses[-1], delta=0.002)
        steps = [after - before for before, after in itertools.pairwise(pauses)]
        self.assertLess(max(steps), 0.01)
        self.assertLess(feed.looks_per_second(12.0, 20.0), 1 / IDLE_SECONDS + 1)

    def test_what_a_reader_does_between_looks_is_part_of_the_pause(self):
        feed = Feed(every(0.005, 0.0, 10.0), work_seconds=0.015)
        feed.follow(10.0)
        self.assertAlmostEqual(1 / BUSY_SECONDS, feed.looks_per_second(2.0, 10.0), delta=2)


class TimeOutTest(testtools.TestCase):
    def test_a_wait_ends_in_time_and_has_looked_once_at_least(self):
        feed = Feed([])
        for _ in range(20):
            began, looked = feed.now, len(feed.looks)
            self.assertFalse(feed.poll.wait(feed.look, 0.003))
            self.assertLessEqual(feed.now - began, 0.003 + LOOK_SECONDS + 1e-9)
            self.assertGreater(len(feed.looks), looked)

    def test_what_is_there_already_is_found_without_a_pause_after_a_quiet_time(self):
        feed = Feed([0.0])
        self.assertTrue(feed.poll.wait(feed.look, 1.0))
        self.assertEqual(LOOK_SECONDS, feed.now)


class IntervalsTest(testtools.TestCase):
    def test_unset_the_busy_interval_is_never_the_longer_one(self):
        self.assertEqual(
            polling.Intervals(0.1, polling.BUSY_SECONDS), polling.Intervals.of("g", 0.1, None)
        )
        self.assertEqual(polling.Intervals(0.01, 0.01), polling.Intervals.of("g", 0.01, None))

    def test_both_drivers_refuse_a_busy_interval_above_the_idle_one(self):
        wrong = {"poll_interval_seconds": 0.1, "busy_poll_interval_seconds": 0.2}
        text = r"\[{}\] busy_poll_interval_seconds.*0\.2.*at most poll_interval_seconds"
        with testtools.ExpectedException(errors.ConfigurationError, text.format("nodb_sqlalchemy")):
            sqlalchemy.SQLAlchemySynchronizer(sqlalchemy.SQLOptions("sqlite:////x", **wrong))
        with testtools.ExpectedException(errors.ConfigurationError, text.format("nodb_memcached")):
            memcached.MemcachedSynchronizer(memcached.MemcachedOptions(**wrong))


class TestNewsAllTheTime(testtools.TestCase):
    """Who tells what fetches bring is sent to fetch without a look, while they bring some."""

    def setUp(self):
        super().setUp()
        self.feed = Feed(every(0.005, 0.0, 2.0))

    def follow(self, until):
        """Follow as a driver does that tells; return how many fetches brought nothing."""
        empty = 0
        while self.feed.now < until:
            if self.feed.poll.wait(self.feed.look, 0.5):
                before = len(self.feed.delays)
                self.feed.now += 0.002
                while self.feed._news and self.feed._news[0] <= self.feed.now:
                    self.feed.delays.append(
                        (self.feed._news[0], self.feed.now - self.feed._news.pop(0))
                    )
                found = len(self.feed.delays) > before
                empty += not found
                self.feed.poll.fetched(found)
        return empty

    def test_there_are_no_looks_while_each_fetch_brings_some(self):
        self.assertEqual(0, self.follow(2.0))
        self.assertEqual(0, self.feed.looks_per_second(1.0, 2.0))
        self.assertLess(self.feed.longest_delay(1.0), BUSY_SECONDS + 0.005)

    def test_one_fetch_brings_nothing_when_they_end(self):
        self.follow(2.0)
        self.assertEqual(1, self.follow(60.0))
        self.assertAlmostEqual(1 / IDLE_SECONDS, self.feed.looks_per_second(40.0, 60.0), delta=1)

    def test_who_does_not_tell_looks_each_time(self):
        self.feed.follow(2.0)
        self.assertGreater(self.feed.looks_per_second(1.0, 2.0), 20)
