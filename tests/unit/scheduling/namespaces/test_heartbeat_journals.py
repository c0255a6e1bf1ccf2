# SPDX-License-Identifier: Apache-2.0
"""A slot of a journal comes back as it was, or is refused with a reason."""

import base64
import tracemalloc
import unittest
import uuid

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.scheduling.namespaces import heartbeat_journals, known_namespaces
from nova_nodb_scheduler.wire import codec

NAMESPACE = known_namespaces.HEARTBEAT_JOURNALS
NEWEST = 17_900_000_000
IDS = st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1))
COUNTS = st.one_of(
    st.integers(0, 5),
    st.integers(heartbeat_journals.LEAST_COUNT, heartbeat_journals.GREATEST_COUNT),
)
TICKS = st.integers(NEWEST - heartbeat_journals.MOST_AGE_TICKS, NEWEST)
BEATS = st.lists(st.tuples(IDS, COUNTS, TICKS), min_size=1, max_size=40)


def slot(*beats, cell="c", flush=7):
    """Return a slot of (id, count, tick)."""
    return heartbeat_journals.slot_of(cell, flush, *zip(*beats, strict=True))


def beats_of(found):
    return list(zip(found.ids.tolist(), found.counts.tolist(), found.ticks.tolist(), strict=True))


def packed(ids, counts, ages):
    """Return a slot's numbers, whatever they are."""
    planes = [
        np.array(numbers, kind).view("u1").reshape(len(numbers), -1).T.tobytes()
        for numbers, kind in ((counts, "<i4"), (ages, "<u2"))
    ]
    return base64.b64encode(np.array(ids, "<u8").tobytes() + b"".join(planes)).decode()


class ServiceIdTest(unittest.TestCase):
    def test_a_service_is_named_by_the_last_eight_bytes_of_its_uuid(self):
        key = uuid.uuid4()
        self.assertEqual(
            int.from_bytes(key.bytes[8:], "big"), heartbeat_journals.service_id(str(key))
        )

    def test_what_is_no_uuid_in_novas_form_has_no_name(self):
        key = str(uuid.uuid4())
        for other in ("", "compute-1", key.upper() + "A", f"{{{key}}}", key + "\n", key[:-1] + "é"):
            self.assertIsNone(heartbeat_journals.service_id(other), other)


class RoundTest(unittest.TestCase):
    @given(BEATS, st.integers(0, 2**53))
    @example([(2, 1, NEWEST), (1, 3, NEWEST - 1), (2, 1, NEWEST - 2), (1, 2, NEWEST)], 0)
    def test_heartbeats_come_back_sorted_and_of_those_alike_the_latest(self, beats, flush):
        made = slot(*beats, flush=flush)
        payload = codec.encode(heartbeat_journals.state_of(made), NAMESPACE.schema)
        found = heartbeat_journals.read("r.0", codec.decode(payload).state)
        latest = {}
        for of, count, tick in beats:
            latest[of, count] = max(tick, latest.get((of, count), 0))
        self.assertEqual(
            [(of, count, tick) for (of, count), tick in sorted(latest.items())], beats_of(found)
        )
        self.assertEqual(("c", flush), (found.cell, found.flush))

    def test_arrays_of_a_slot_cannot_be_written_to(self):
        made = slot((1, 2, NEWEST))
        for found in (made, heartbeat_journals.read("r.0", heartbeat_journals.state_of(made))):
            with self.assertRaises(ValueError):
                found.counts[0] = 3

    def test_a_time_is_told_to_the_tenth_and_never_as_later(self):
        for seconds in (1_790_000_000.0, 1_790_000_000.04, 1_790_000_000.99, 0.0):
            told = heartbeat_journals.tick_of(seconds) / heartbeat_journals.TICKS_PER_SECOND
            self.assertLessEqual(told, seconds)
            self.assertLess(seconds - told, 0.1 + 1e-6)

    def test_a_full_slot_is_smaller_than_any_back_end_takes(self):
        rng = np.random.default_rng(1)
        most = heartbeat_journals.MOST_HEARTBEATS
        made = heartbeat_journals.slot_of(
            "c" * 36,
            2**53,
            rng.integers(0, 2**64, most, np.uint64, endpoint=False),
            rng.integers(-(2**31), 2**31, most),
            NEWEST - rng.integers(0, 2**16, most),
        )
        state = heartbeat_journals.state_of(made)
        self.assertLess(len(codec.encode(state, NAMESPACE.schema)), 160_000)

    def test_what_no_slot_can_hold_is_not_made(self):
        cases = {
            "must be 1": [],
            "more than 64": [(1, count, NEWEST) for count in range(65)],
            "32 bits": [(1, 2**31, NEWEST)],
            "64 bits": [(1, 2**63, NEWEST)],
            "time is none": [(1, 1, -1)],
            "apart": [(1, 1, NEWEST), (2, 1, NEWEST - heartbeat_journals.MOST_AGE_TICKS - 1)],
        }
        for reason, beats in cases.items():
            with self.subTest(reason), self.assertRaisesRegex(ValueError, reason):
                columns = zip(*beats, strict=True) if beats else ([], [], [])
                heartbeat_journals.slot_of("c", 1, *columns)
        most = heartbeat_journals.MOST_HEARTBEATS + 1
        with self.assertRaisesRegex(ValueError, "must be 1"):
            heartbeat_journals.slot_of("c", 1, range(most), [1] * most, [NEWEST] * most)
        for cell, flush in (("", 1), ("c", -1), ("c", 2**53 + 1)):
            with self.assertRaises(ValueError):
                heartbeat_journals.slot_of(cell, flush, [1], [1], [NEWEST])


class HostileTest(unittest.TestCase):
    def setUp(self):
        self.state = heartbeat_journals.state_of(slot((1, 5, NEWEST), (2, 6, NEWEST - 3)))

    def refused(self, **changed):
        state = {**self.state, **changed}
        state = {name: value for name, value in state.items() if value is not ...}
        with self.assertRaises(errors.InvalidRecord) as caught:
            heartbeat_journals.read("r.0", state)
        self.assertIn("heartbeat_journals/r.0", str(caught.exception))
        return str(caught.exception)

    def test_what_a_release_to_come_adds_is_left_aside(self):
        found = heartbeat_journals.read("r.0", {**self.state, "more": [1]})
        self.assertEqual([(1, 5, NEWEST), (2, 6, NEWEST - 3)], beats_of(found))

    def test_fields_that_are_missing_or_of_another_type_are_refused(self):
        for name in self.state:
            for value in (..., None, True, 1.5, [], {}, -1, "", float("nan"), 2**70):
                with self.subTest(name, value=value):
                    self.refused(**{name: value})

    def test_numbers_that_are_cut_short_anywhere_are_refused(self):
        numbers = self.state["numbers"]
        for end in range(len(numbers)):
            self.refused(numbers=numbers[:end])
        whole = base64.b64decode(numbers)
        for end in range(len(whole)):
            if end != 14:  # so many bytes are another heartbeat's
                self.refused(numbers=base64.b64encode(whole[:end]).decode())

    def test_heartbeats_in_another_order_are_refused(self):
        for ids, counts in (([2, 1], [1, 1]), ([1, 1], [2, 1]), ([1, 1], [1, 1])):
            self.assertIn("order", self.refused(numbers=packed(ids, counts, [0, 0])))

    def test_absurd_counts_of_heartbeats_are_refused_before_they_are_unpacked(self):
        text = "A" * 7_000_000
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        self.assertIn("characters", self.refused(numbers=text))
        self.assertLess(tracemalloc.get_traced_memory()[1], 1_000_000)
        one_too_many = np.arange(heartbeat_journals.MOST_HEARTBEATS + 1)
        self.refused(numbers=packed(one_too_many, one_too_many, one_too_many * 0))
        of_one = np.arange(heartbeat_journals.MOST_OF_ONE + 1)
        self.assertIn("more than 64", self.refused(numbers=packed(of_one * 0, of_one, of_one * 0)))

    def test_times_before_there_was_time_are_refused(self):
        self.assertIn("time", self.refused(newest=2))
        self.assertIn("newest", self.refused(numbers=packed([1], [1], [1])))

    def test_a_slot_of_another_major_version_is_not_read(self):
        schema = type(NAMESPACE.schema)(NAMESPACE.schema.major + 1, 0)
        decoded = codec.decode(codec.encode(self.state, schema))
        with self.assertRaises(errors.UndecodableRecord):
            codec.check_readable(decoded.schema, NAMESPACE)

    @settings(max_examples=300)
    @given(st.data())
    def test_any_bytes_are_a_slot_that_could_be_written_or_are_refused(self, data):
        size = data.draw(st.integers(0, 6)) * 14 + data.draw(st.sampled_from([0, 0, 0, 1, 13]))
        numbers = data.draw(st.binary(min_size=size, max_size=size))
        state = {
            "cell": data.draw(st.sampled_from(["c", "", None, 3])),
            "flush": data.draw(st.sampled_from([0, 1, -1, 2**53, 2**53 + 1, "1"])),
            "newest": data.draw(st.sampled_from([0, 40_000, NEWEST, 10**12, 10**12 + 1, 1e3])),
            "numbers": base64.b64encode(numbers).decode(),
        }
        try:
            found = heartbeat_journals.read("r.0", state)
        except errors.InvalidRecord:
            return
        again = heartbeat_journals.slot_of(
            found.cell, found.flush, found.ids, found.counts, found.ticks
        )
        self.assertEqual(state, heartbeat_journals.state_of(again))

    @given(st.binary(max_size=40), st.integers(0, 200), st.integers(0, 200))
    def test_damaged_payloads_are_refused_with_the_projects_errors(self, junk, start, length):
        payload = codec.encode(self.state, NAMESPACE.schema)
        damaged = payload[:start] + junk + payload[start + length :]
        try:
            decoded = codec.decode(damaged)
            codec.check_readable(decoded.schema, NAMESPACE)
            heartbeat_journals.read("r.0", decoded.state)
        except (errors.UndecodableRecord, errors.InvalidRecord):
            pass
