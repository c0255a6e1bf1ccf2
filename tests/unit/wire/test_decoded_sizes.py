# SPDX-License-Identifier: Apache-2.0
"""A few bytes on a back end take no gigabytes in who reads them."""

import tracemalloc
import zlib

import orjson
import testtools
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.replication import ingest
from nova_nodb_scheduler.wire import codec, decoded_sizes, payload_packing

V1 = namespaces.SchemaVersion(1, 0)
POOLS = namespaces.Namespace("pools", "cinder", V1)

#: Members of lists and objects, by what they become for a byte of text.
UNITS = (
    b"[]",
    b"{}",
    b'{"":{}}',
    b'{"":[]}',
    b'{"a":0}',
    b"[[]]",
    b"[0]",
    b"0",
    b"300",
    b"0.5",
    b'"ab"',
    '"\U0001f6001"'.encode(),
    b'{"a":0,"b":0,"c":0,"d":0,"e":0,"f":0}',
)


def payload_of(text: bytes) -> bytes:
    return b"\x02" + zlib.compress(b'{"s":"1.0","d":' + text + b"}", 9)


def list_of(unit: bytes, size_bytes: int) -> bytes:
    count = max(1, size_bytes // (len(unit) + 1))
    return b'{"a":[' + b",".join([unit] * count) + b"]}"


def retained_and_peak(parse, text: bytes) -> tuple[int, int]:
    tracemalloc.start()
    try:
        found = parse(text)
        retained, peak = tracemalloc.get_traced_memory()
        del found
    finally:
        tracemalloc.stop()
    return retained, peak


class BoundedCase(testtools.TestCase):
    def bound(self, text_mib: int) -> decoded_sizes.DecodingBounds:
        self.addCleanup(decoded_sizes.set_for_process, decoded_sizes.present())
        chosen = decoded_sizes.DecodingBounds(text_mib * decoded_sizes.MIB)
        decoded_sizes.set_for_process(chosen)
        return chosen


class RecordTest(BoundedCase):
    def test_8_kb_that_would_take_200_mib_are_refused_and_take_a_twentieth(self):
        payload = payload_of(list_of(b"{}", 8_000_000))
        self.assertLess(len(payload), 10_000)

        def parse(_text):
            return self.assertRaises(errors.UndecodableRecord, codec.decode, payload)

        _, peak = retained_and_peak(parse, b"")
        self.assertLess(peak, 40 * decoded_sizes.MIB)

    def test_a_text_longer_than_the_bound_is_inflated_no_further(self):
        chosen = self.bound(1)
        payload = b"\x02" + zlib.compress(b" " * (64 * decoded_sizes.MIB), 9)
        found = []

        def parse(_text):
            found.append(self.assertRaises(errors.UndecodableRecord, codec.decode, payload))

        _, peak = retained_and_peak(parse, b"")
        self.assertIn("max_record_mib", str(found[0]))
        self.assertLess(peak, 4 * chosen.text_bytes)

    def test_no_unit_is_heavier_than_it_is_weighed(self):
        for unit in UNITS:
            for size_bytes in (1_000, 10_000, 60_000):
                text = list_of(unit, size_bytes)
                retained, peak = retained_and_peak(orjson.loads, text)
                # The text itself is in the weight, and stands outside of what was traced.
                self.assertLessEqual(retained + len(text), decoded_sizes.weigh(text) + 2048, unit)
                self.assertLessEqual(peak, decoded_sizes.weigh(text) + 13 * len(text) + 4096, unit)

    @settings(max_examples=12, deadline=None)
    @given(st.lists(st.sampled_from(UNITS), min_size=1, max_size=6), st.integers(1, 6))
    def test_no_mixture_is_heavier_than_it_is_weighed(self, units, depth):
        text = b",".join(units * 400)
        for _ in range(depth):
            text = b"[" + text + b"]"
        retained, _ = retained_and_peak(orjson.loads, text)
        self.assertLessEqual(retained + len(text), decoded_sizes.weigh(text) + 2048)

    def test_json_within_text_counts_as_well_for_who_decodes_it_in_turn(self):
        inner = "[" + ",".join(["[]"] * 1_000_000) + "]"
        payload = payload_of(orjson.dumps({"stats": inner}))
        error = self.assertRaises(errors.UndecodableRecord, codec.decode, payload)
        self.assertIn("when decoded", str(error))

    def test_an_aggregate_of_a_hundred_thousand_hosts_is_taken(self):
        state = {"row": {"hosts": [f"compute-{number:06}.rack-17.dc" for number in range(100_000)]}}
        self.assertEqual(state, codec.decode(codec.encode(state, V1)).state)

    def test_what_could_not_be_read_is_not_written(self):
        self.bound(1)
        for state in ({"a": "x" * decoded_sizes.MIB}, {"a": [[]] * 40_000}):
            error = self.assertRaises(errors.InvalidRecord, codec.encode, state, V1, record="n/k")
            self.assertIn("max_record_mib", str(error))

    def test_depth_is_bounded_for_readers_as_for_writers(self):
        for depth in (1, 63, 64, 65, 200, 1000):
            state = {"a": 1}
            for _ in range(depth - 1):
                state = {"a": state}
            text = b'{"a":' * (depth - 1) + b'{"a":1}' + b"}" * (depth - 1)
            if depth <= decoded_sizes.MAX_DEPTH:
                self.assertEqual(state, codec.decode(payload_of(text)).state)
                codec.encode(state, V1)
            else:
                self.assertRaises(errors.UndecodableRecord, codec.decode, payload_of(text))
                self.assertRaises(errors.InvalidRecord, codec.encode, state, V1)

    def test_many_openings_side_by_side_are_not_deep(self):
        state = {"a": [[{}]] * 500}
        self.assertEqual(state, codec.decode(codec.encode(state, V1)).state)

    def test_a_bomb_is_compared_with_what_is_kept_without_unpacking_it(self):
        self.bound(1)
        kept = payload_packing.DictionaryPacking()
        packed = kept.pack(codec.encode({"a": "x" * 5000}, V1))
        bomb = b"\x02" + zlib.compress(b" " * (64 * decoded_sizes.MIB), 9)
        self.assertFalse(kept.holds(packed, bomb))


class BatchTest(BoundedCase):
    """A page of many large records is decoded a part at a time."""

    def page(self, count: int, text: bytes) -> list[records.Record]:
        payload = payload_of(text)
        return [
            records.Record(records.RecordKey("pools", f"k{n}"), n + 1, n + 1, payload)
            for n in range(count)
        ]

    def intake(self) -> ingest.Ingester:
        store = host_state_store.HostStateStore([POOLS], codec.decode_state)
        self.quarantine = ingest.Quarantine(100)
        return ingest.Ingester(store, [POOLS], self.quarantine)

    def test_no_more_is_held_than_the_bound_whatever_the_page(self):
        chosen = self.bound(1)
        # Each just below the bound of one record; together they would take 120 MiB.
        page = self.page(60, list_of(b'{"":{}}', 65_000))
        taking = self.intake()
        applied = []

        def take(_text):
            for taken in taking.take(page):
                applied.append(len(taken.applied))
                del taken

        _, peak = retained_and_peak(take, b"")
        self.assertEqual(60, sum(applied))
        self.assertLess(1, len(applied))
        self.assertLess(peak, chosen.batch_bytes + chosen.memory_bytes + 13 * chosen.text_bytes)
        self.assertLess(peak, 16 * decoded_sizes.MIB)

    def test_a_page_of_ordinary_records_comes_whole(self):
        text = list_of(b'"flag-17"', 4_000)
        taken = list(self.intake().take(self.page(200, text)))
        self.assertEqual([200], [len(each.applied) for each in taken])
        # As many as are decoded at once, and no small rest.
        taken = list(self.intake().take(self.page(300, text)))
        self.assertEqual([150, 150], [len(each.applied) for each in taken])

    def test_one_record_too_large_is_kept_aside_and_the_others_are_applied(self):
        page = self.page(3, b'{"a":1}')
        bomb = records.Record(
            records.RecordKey("pools", "bomb"), 9, 9, payload_of(list_of(b"[]", 8_000_000))
        )
        taken = list(self.intake().take([page[0], bomb, *page[1:]]))
        self.assertEqual(3, sum(len(each.applied) for each in taken))
        [aside] = self.quarantine.entries()
        self.assertEqual("bomb", aside.key.key)
        self.assertIn("max_record_mib", aside.reason)
