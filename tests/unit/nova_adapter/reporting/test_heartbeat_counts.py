# SPDX-License-Identifier: Apache-2.0
"""No count that a compute service says puts its cell on Nova's own path at will."""

import unittest
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from nova_nodb_scheduler.nova_adapter.liveness import heartbeat_writer
from nova_nodb_scheduler.nova_adapter.reporting import dirty_records, row_publisher
from nova_nodb_scheduler.scheduling.namespaces import report_counts
from nova_nodb_scheduler.synchronizer.records import publisher

FORGED = 2**31 - 1
START = 1_700_000_000.0


class Service:
    """A service's record, a reporter's queue, and a clock."""

    def __init__(self, count: int = 100) -> None:
        self.now = START
        self.implausible = row_publisher.ImplausibleCounts()
        self.waiting = dirty_records.DirtyRecords(1000, lambda: 0.0)
        self.state = dict(self.swept(count, None))

    def swept(self, count: int, current: Any) -> Any:
        row = {"cell": "c", "report_count": count, "last_seen_up": None}
        return row_publisher.swept_liveness(
            row,
            current,
            heard_at=self.now,
            implausible=lambda known, count: self.implausible.note("s", known, count),
        )

    def sweep(self, count: int) -> None:
        found = self.swept(count, self.state)
        if isinstance(found, dict):
            self.state = found

    def beat(self, count: int, after_seconds: float = 10.0) -> None:
        self.now += after_seconds
        self.waiting.beat("c", "s", count, None, self.now)

    def flush(self) -> None:
        heartbeats = self.waiting.take_heartbeats()
        if heartbeats:
            found = row_publisher.merge_heartbeats(heartbeats, self.implausible)(self.state)
            assert isinstance(found, dict)
            self.state = found

    @property
    def unreported(self) -> int:
        return int(self.state["unreported"])


class ForgedCountTest(unittest.TestCase):
    def setUp(self) -> None:
        self.service = Service()

    def true_beats(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            self.service.beat(number)
            self.service.flush()

    def assert_next_missed_one_is_counted(self, count: int) -> None:
        """See that a heartbeat behind this count that goes elsewhere is noticed."""
        before = self.service.unreported
        self.service.now += 10
        self.service.beat(count + 2)
        self.service.flush()
        self.assertEqual(before + 1, self.service.unreported)

    def test_the_highest_count_of_all_is_ignored_and_named_once(self) -> None:
        with self.assertLogs(row_publisher.LOG, "WARNING") as logged:
            for _ in range(5):
                self.service.beat(FORGED, 1.0)
                self.service.flush()
        self.assertEqual((0, 100), (self.service.unreported, self.service.state["report_count"]))
        self.assertEqual((1, 5), (len(logged.output), self.service.implausible.count))

    def test_what_is_ignored_behind_a_count_below_zero_counts_nothing(self) -> None:
        self.service.beat(-(2**31), report_counts.SILENT_SECONDS + 1)
        self.service.flush()
        self.assertEqual(-(2**31), self.service.state["report_count"])
        self.service.beat(FORGED, 1.0)
        self.service.flush()
        self.assertEqual(
            (0, -(2**31)), (self.service.unreported, self.service.state["report_count"])
        )

    def test_the_true_reporter_is_heard_behind_a_forged_count(self) -> None:
        self.service.beat(FORGED)
        self.service.flush()
        self.true_beats(101, 3)
        self.assertEqual((0, 103), (self.service.unreported, self.service.state["report_count"]))
        self.assert_next_missed_one_is_counted(103)

    def test_a_forged_count_takes_no_true_one_of_its_batch_along(self) -> None:
        for forged in (FORGED, 5_000, 10**9, 300):
            self.service.beat(forged, 0.1)
        self.service.beat(101)
        for forged in (FORGED - 1, 7_000, 400):
            self.service.beat(forged, 0.1)
        self.service.flush()
        self.assertEqual((0, 101), (self.service.unreported, self.service.state["report_count"]))
        self.assert_next_missed_one_is_counted(101)

    def test_a_sweep_that_meets_it_in_the_table_ignores_it_too(self) -> None:
        self.service.sweep(FORGED)
        self.assertEqual((0, 100), (self.service.unreported, self.service.state["report_count"]))

    def test_a_forger_who_goes_on_does_not_hold_the_service(self) -> None:
        for number in range(101, 400):
            self.service.beat(FORGED + number, 5.0)
            self.service.beat(number, 5.0)
            self.service.flush()
        self.assertEqual((0, 399), (self.service.unreported, self.service.state["report_count"]))

    def test_a_service_that_began_again_from_a_forged_row_is_heard_after_a_while(self) -> None:
        forged = 10**9
        self.true_beats(forged, 40)
        self.assertEqual(0, self.service.unreported)
        self.assertEqual(forged + 39, self.service.state["report_count"])
        self.assert_next_missed_one_is_counted(forged + 39)

    def test_a_service_that_counts_from_the_beginning_again_is_heard_after_a_while(self) -> None:
        self.true_beats(1, 40)
        self.assertEqual((0, 40), (self.service.unreported, self.service.state["report_count"]))
        self.assert_next_missed_one_is_counted(40)

    def test_a_record_that_began_with_a_forged_row_is_put_right_by_the_service(self) -> None:
        self.service = Service(FORGED)
        self.true_beats(101, 40)
        self.assertEqual((0, 140), (self.service.unreported, self.service.state["report_count"]))
        self.assert_next_missed_one_is_counted(140)

    def test_what_went_through_others_for_an_hour_is_still_counted(self) -> None:
        self.service.now += 3_600
        self.service.sweep(100 + 360)
        self.assertEqual(360, self.service.unreported)

    def test_counts_of_the_fastest_service_are_taken_with_clocks_a_minute_apart(self) -> None:
        self.service.now += 600
        self.service.sweep(100 + 600)
        self.service.now -= 59
        self.service.beat(701, 1.0)
        self.service.flush()
        self.assertEqual((600, 701), (self.service.unreported, self.service.state["report_count"]))

    def test_a_reporter_that_was_cut_off_for_an_hour_makes_its_own_good(self) -> None:
        other = dirty_records.DirtyRecords(1000, lambda: 0.0)
        for number in range(101, 461):
            self.service.now += 10
            if number % 2:
                other.beat("c", "s", number, None, self.service.now)
            else:
                self.service.beat(number, 0.0)
                self.service.flush()
        self.assertEqual(180, self.service.unreported)
        [late] = other.take_heartbeats()
        found = row_publisher.merge_heartbeats([late], self.service.implausible)(self.service.state)
        assert isinstance(found, dict)
        self.assertEqual((0, 460), (found["unreported"], found["report_count"]))
        self.assertEqual(0, self.service.implausible.count)

    def test_a_record_of_a_release_that_noted_no_time_is_gone_on_with(self) -> None:
        del self.service.state["counted_at"]
        self.service.now += 3_600
        self.service.sweep(460)
        self.assertEqual(360, self.service.unreported)

    def of_a_former_release(self, count: int) -> None:
        """A conductor of a release that notes no time brings a count."""
        state = self.service.state
        seen = int(state["seen"]) + 1
        base = min(int(state["base"]), count - seen)
        unreported = count - base - seen
        self.service.state = {
            **state,
            "report_count": count,
            "base": base,
            "seen": seen,
            "unreported": unreported,
        }

    def test_a_heartbeat_that_waited_beside_a_former_releases_conductor_is_no_new_numbering(
        self,
    ) -> None:
        self.true_beats(101, 10)
        for number in range(111, 160):
            self.service.now += 10
            self.of_a_former_release(number)
        self.service.beat(160)
        self.service.now += 10
        self.of_a_former_release(161)
        self.service.flush()
        self.true_beats(162, 1)
        self.assertEqual((0, 162), (self.service.unreported, self.service.state["report_count"]))

    def test_a_row_that_a_sweep_read_before_a_former_releases_heartbeat_is_no_new_numbering(
        self,
    ) -> None:
        for number in range(101, 160):
            self.service.now += 10
            self.of_a_former_release(number)
        self.service.sweep(158)
        self.true_beats(160, 1)
        self.assertEqual((0, 160), (self.service.unreported, self.service.state["report_count"]))

    @example(
        # Found so: what is ignored raised a count below zero to zero.
        [*[("true", 0, 0.0, False)] * 28, ("forged", 0, 21.0, False), ("forged", -2102, 0.0, False)]
    )
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["true", "forged"]),
                st.integers(-(2**31), 2**62),
                st.floats(0.0, 30.0),
                st.booleans(),
            ),
            max_size=60,
        )
    )
    def test_whatever_is_forged_no_more_is_unreported_than_could_be(self, steps: Any) -> None:
        service = Service()
        true_count = 100
        for kind, forged, pause, flushes in steps:
            if kind == "true":
                true_count += 1
                service.beat(true_count)
            else:
                service.beat(forged, pause)
            if flushes:
                service.flush()
        service.flush()
        # By what a service could have come to since the beginning, and the margin of
        # each heartbeat: nobody reaches what 2**31 - 1 did.
        heartbeats = len(steps)
        elapsed = service.now - START
        most = heartbeats * report_counts.MARGIN_SECONDS + elapsed
        self.assertLessEqual(0, service.unreported)
        self.assertLessEqual(service.unreported, most)


class StoredHeartbeatTest(unittest.TestCase):
    """What a record becomes by heartbeats that stand in no row."""

    def setUp(self) -> None:
        self.state = dict(Service(100).state)

    def stored(self, count: int, heard_at: float, seen_at: float = 50.0) -> Any:
        beat = heartbeat_writer.ServiceHeartbeat(
            "s", "c", count, None, f"2026-01-01T00:00:{count % 60:02}", heard_at
        )
        found = row_publisher.merge_stored_heartbeats([beat], seen_at)(self.state)
        if isinstance(found, dict):
            self.state = found
        return found

    def test_each_is_the_latest_behind_it(self) -> None:
        for count in (101, 102):
            self.assertIsInstance(self.stored(count, START + count), dict)
        self.assertEqual(
            (102, 102, 0, 50.0),
            tuple(self.state[n] for n in ("report_count", "unwritten", "unreported", "seen_at")),
        )

    def test_one_that_does_not_follow_or_comes_late_is_left_to_its_row(self) -> None:
        self.stored(102, START + 20)
        before = dict(self.state)
        for count, heard_at in ((FORGED, START + 21), (101, START + 21), (90, START + 79)):
            self.assertIs(publisher.UNCHANGED, self.stored(count, heard_at))
        self.assertEqual(before, self.state)

    def test_the_same_once_more_is_counted_once(self) -> None:
        for seen_at in (50.0, 40.0):
            self.stored(101, START + 10, seen_at)
        self.assertEqual((1, 50.0), (self.state["seen"], self.state["seen_at"]))

    def test_a_service_that_began_again_is_heard_a_minute_later(self) -> None:
        self.stored(140, START + 10)
        self.assertIs(publisher.UNCHANGED, self.stored(101, START + 60))
        self.stored(102, START + 71)
        self.assertEqual(
            (102, 102, 39),
            tuple(self.state[n] for n in ("report_count", "unwritten", "unreported")),
        )

    def test_a_record_that_is_gone_stays_gone(self) -> None:
        beat = heartbeat_writer.ServiceHeartbeat("s", "c", 1, None, "", START)
        compute = row_publisher.merge_stored_heartbeats([beat], 1.0)
        self.assertIs(publisher.UNCHANGED, compute(None))

    def test_a_row_that_lags_changes_nothing_and_one_that_is_ahead_does(self) -> None:
        service = Service(100)
        self.state = service.state
        self.stored(101, START + 10)
        service.state, service.now = self.state, START + 10_000
        for row_count in (0, 100, 101):
            self.assertIs(publisher.UNCHANGED, service.swept(row_count, service.state))
        self.assertEqual(110, service.swept(110, service.state)["report_count"])

    def test_written_ones_take_no_stored_ones_time_along(self) -> None:
        service = Service(100)
        self.state = service.state
        self.stored(101, START + 10)
        service.state = self.state
        service.beat(102)
        service.flush()
        self.assertNotIn("seen_at", service.state)
        service.beat(1, 400.0)
        service.flush()
        self.assertEqual(1, service.state["report_count"])
        self.assertNotIn("unwritten", service.state)

    def test_a_clock_that_is_ahead_keeps_nobody_alive(self) -> None:
        waiting = dirty_records.DirtyRecords(1000, lambda: 0.0)
        state: Any = self.state
        for count, said in ((101, "2026-01-01T01:00:00"), (102, "2026-01-01T00:10:00")):
            waiting.beat("c", "s", count, said, START + count)
            state = row_publisher.merge_heartbeats(
                waiting.take_heartbeats(), row_publisher.ImplausibleCounts()
            )(state)
        self.assertEqual("2026-01-01T00:10:00", state["last_seen_up"])
