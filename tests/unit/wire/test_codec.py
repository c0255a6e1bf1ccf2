# SPDX-License-Identifier: Apache-2.0
"""States survive the way into bytes and back; anything else is refused by name."""

import datetime as dt
import enum
import math
import uuid
import zlib
from typing import Any

import orjson
import testtools
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces
from nova_nodb_scheduler.wire import codec, decoded_sizes
from tests import counted_calls

V1 = namespaces.SchemaVersion(1, 0)

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
STATES = st.dictionaries(st.text(), JSON_VALUES, max_size=8)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    LOW = "low"


def zipped(text: bytes) -> bytes:
    return b"\x02" + zlib.compress(text, 1)


class TestRoundTrip(testtools.TestCase):
    @settings(deadline=None)
    @given(STATES, st.integers(0, 10**9 - 1), st.integers(0, 10**9 - 1))
    def test_what_was_encoded_is_decoded(self, state, major, minor):
        schema = namespaces.SchemaVersion(major, minor)

        decoded = codec.decode(codec.encode(state, schema))

        self.assertEqual(state, decoded.state)
        self.assertEqual(schema, decoded.schema)

    def test_types_of_numbers_are_kept(self):
        state = codec.decode(codec.encode({"i": 1, "f": 1.0, "b": True}, V1)).state

        self.assertEqual([int, float, bool], [type(state[name]) for name in "ifb"])

    def test_up_to_2048_bytes_of_json_stay_plain_and_one_more_is_compressed(self):
        frame = len(codec.encode({"a": ""}, V1)) - 1

        plain = codec.encode({"a": "x" * (2048 - frame)}, V1)
        compressed = codec.encode({"a": "x" * (2049 - frame)}, V1)

        self.assertEqual((1, 2049), (plain[0], len(plain)))
        self.assertEqual(2, compressed[0])
        self.assertLess(len(compressed), 200)
        self.assertEqual({"a": "x" * (2049 - frame)}, codec.decode(compressed).state)

    def test_the_calls_for_a_state_do_not_grow_with_its_values(self):
        self._calls(10)
        self.assertEqual(self._calls(10), self._calls(200))

    def _calls(self, values: int) -> int:
        state = {"a": {f"b{each}": [each, 1.5][each % 2] for each in range(values)}}
        return counted_calls.count(codec.encode_text, state, V1)

    def test_the_state_alone_is_given_to_a_store(self):
        self.assertEqual({"a": [1, 2]}, codec.decode_state(codec.encode({"a": (1, 2)}, V1)))


class TestRefusedStates(testtools.TestCase):
    def assertRefused(self, state, field, reason):
        error = self.assertRaises(
            errors.InvalidRecord, codec.encode, state, V1, record="compute_nodes/n1"
        )
        self.assertEqual("compute_nodes/n1", error.record)
        self.assertEqual(field, error.field)
        self.assertIn(reason, error.reason)

    def test_values_that_json_lacks_are_refused_by_field(self):
        for value, reason in (
            (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "datetime"),
            (uuid.UUID(int=1), "UUID"),
            (Colour.RED, "Colour"),
            (b"bytes", "bytes"),
            ({1, 2}, "set"),
            (object(), "object"),
            (math.nan, "nan"),
            (-math.inf, "-inf"),
            ("\ud800", "surrogate"),
        ):
            self.assertRefused({"row": {"a": 1, "x": value}}, "row.x", reason)

    def test_an_enumeration_that_equals_what_it_is_written_as_is_refused(self):
        for value in (Level.LOW, Word.LOW):
            self.assertEqual(orjson.loads(orjson.dumps(value)), value)
            self.assertRefused({"row": {"x": value}}, "row.x", type(value).__name__)

    def test_as_deep_as_is_read_may_be_written_and_no_deeper(self):
        for levels in (decoded_sizes.MAX_DEPTH, decoded_sizes.MAX_DEPTH + 1):
            state: dict[str, Any] = {}
            for _ in range(levels - 1):
                state = {"a": state}
            if levels == decoded_sizes.MAX_DEPTH:
                self.assertEqual(state, codec.decode(codec.encode(state, V1)).state)
            else:
                self.assertRaises(errors.InvalidRecord, codec.encode, state, V1)

    def test_what_json_has_no_form_for_is_written_as_what_it_is_taken_for(self):
        self.assertEqual([1, [2]], codec.decode(codec.encode({"a": (1, (2,))}, V1)).state["a"])

    def test_integers_beyond_64_bits_are_refused_by_field(self):
        for value in (2**64, -(2**63) - 1, 10**40):
            self.assertRefused({"row": {"list": [0, value]}}, "row.list.1", "64 bits")

    def test_names_that_are_not_text_are_refused(self):
        self.assertRefused({"row": {1: 2}}, "row.1", "must be text")
        self.assertRefused({"row": {"\udfff": 2}}, "row.'\\udfff'", "must be text")

    def test_a_state_that_holds_itself_is_refused(self):
        state = {}
        state["me"] = state

        self.assertRefused(state, "me.me.me.me.me.me.me.me", "nested deeper")

    def test_a_state_that_is_no_object_is_refused(self):
        self.assertRaises(errors.InvalidRecord, codec.encode, [1], V1)


def deep(levels):
    return b'\x01{"s":"1.0","d":' + b'{"d":' * levels + b"1" + b"}" * levels + b"}"


SMALL, LONG = (codec.encode({"a": "x" * size}, V1) for size in (3, 3000))
#: One that is sound and short, and what is not, or not of its kind.
PAYLOADS = [
    SMALL,
    LONG,
    b"",
    b"\x07{}",
    b"\x01{",
    b"\x01[]",
    b"\x01[1,2]",
    b'\x01{"s":"1.0"}',
    b'\x01{"s":"1.0","d":[]}',
    b'\x01{"s":1.0,"d":{}}',
    b'\x01{"s":[],"d":{}}',
    b'\x01{"d":{}}',
    b'\x01{"s":"1","d":{}}',
    b"\x02no zlib",
    LONG[:-5],
    LONG + b"x",
    deep(70),
    zipped(deep(70)[1:]),
    zipped(b'{"s":"1.0","d":{}}' + b" " * (1 << 20)),
    codec.encode({"a": "x" * 20_000}, V1),
    codec.encode({}, namespaces.SchemaVersion(1, 1)),
]


class TestMalformedPayloads(testtools.TestCase):
    @settings(deadline=None)
    @given(st.binary(max_size=200))
    @example(b"")
    @example(b"\x01")
    @example(b"\x02")
    @example(b"\x03{}")
    def test_arbitrary_bytes_decode_or_are_called_undecodable(self, payload):
        try:
            codec.decode(payload)
        except errors.UndecodableRecord:
            pass

    @settings(deadline=None)
    @given(st.sampled_from([b"\x01", b"\x02"]), JSON_VALUES)
    def test_arbitrary_json_decodes_or_is_called_undecodable(self, tag, value):
        text = orjson.dumps(value)
        try:
            codec.decode(b"\x01" + text if tag == b"\x01" else zipped(text))
        except errors.UndecodableRecord:
            pass

    @settings(deadline=None)
    @given(STATES, st.data())
    def test_a_damaged_payload_decodes_or_is_called_undecodable(self, state, data):
        payload = bytearray(codec.encode({**state, "long": "x" * 3000}, V1))
        place = data.draw(st.integers(0, len(payload) - 1))
        payload[place] = data.draw(st.integers(0, 255))
        try:
            codec.decode(bytes(payload[: data.draw(st.integers(0, len(payload)))]))
        except errors.UndecodableRecord:
            pass

    def test_each_fault_is_named(self):
        whole = codec.encode({"a": "x" * 3000}, V1)
        for payload, reason in (
            (b"", "empty"),
            (b"\x07{}", "0x07"),
            (b"\x01{", "not JSON"),
            (b"\x01[]", "not an object"),
            (b'\x01{"s":"1.0"}', "'d'"),
            (b'\x01{"s":"1.0","d":[]}', "'d'"),
            (b'\x01{"s":1.0,"d":{}}', "'s'"),
            (b'\x01{"s":"1","d":{}}', "'s'"),
            (b'\x01{"s":"1.-1","d":{}}', "'s'"),
            ('\x01{"s":"1.\u0661","d":{}}'.encode(), "'s'"),
            (b"\x02" + b"no zlib", "decompressed"),
            (whole[:-5], "cut short"),
            (whole + b"x", "follow"),
            (b"\x01" + b'{"s":' + b"[" * 5000, "not JSON"),
        ):
            error = self.assertRaises(errors.UndecodableRecord, codec.decode, payload)
            self.assertIn(reason, str(error))

    @settings(deadline=None)
    @given(st.lists(st.sampled_from(PAYLOADS), max_size=6))
    def test_a_page_is_decoded_as_each_of_its_payloads_or_not_at_all(self, payloads):
        page = codec.decode_page(payloads)
        if page is not None:
            each = list(map(codec.decode, payloads))
            self.assertEqual([one.state for one in each], page.states)
            self.assertEqual([one.text for one in each], page.texts)
            self.assertEqual({page.schema}, {one.schema for one in each})

    def test_a_page_of_sound_payloads_is_decoded(self):
        self.assertEqual(3, len(codec.decode_page([SMALL, SMALL, SMALL]).states))

    def test_one_payload_that_is_not_to_be_decoded_keeps_a_page_from_it(self):
        for odd in PAYLOADS[1:]:
            self.assertIsNone(codec.decode_page([SMALL, odd, SMALL]), odd[:80])

    def test_texts_that_would_be_others_if_they_were_joined_are_told_apart(self):
        two, half, rest = (
            b'\x01{"s":"1.0","d":{}},{"s":"1.0","d":{}}',
            b'\x01{"s":"1.0","d":{"x":"',
            b'\x01"}}',
        )
        self.assertIsNone(codec.decode_page([two, half, rest]))

    def test_a_page_that_would_take_too_much_memory_at_once_is_not_decoded(self):
        payload = b'\x01{"s":"1.0","d":{"a":"%s"}}' % (b"x" * 16_000)
        self.assertIsNotNone(codec.decode_page([payload] * 40))
        self.assertIsNone(codec.decode_page([payload] * 256))

    def test_a_bomb_is_refused_before_it_fills_the_memory(self):
        compressor = zlib.compressobj(9)
        zeros = b" " * (1 << 20)
        bomb = b"\x02" + b"".join(compressor.compress(zeros) for _ in range(80))
        bomb += compressor.flush()
        self.assertLess(len(bomb), 1 << 20)

        error = self.assertRaises(errors.UndecodableRecord, codec.decode, bomb)

        self.assertIn("unpacks to more than", str(error))


class TestSchemas(testtools.TestCase):
    NAMESPACE = namespaces.Namespace("pools", "cinder", namespaces.SchemaVersion(2, 3))

    def test_older_and_newer_minor_versions_are_read(self):
        for minor in (0, 3, 9):
            codec.check_readable(namespaces.SchemaVersion(2, minor), self.NAMESPACE)

    def test_another_major_version_is_refused_naming_both(self):
        for major in (1, 3):
            error = self.assertRaises(
                errors.UndecodableRecord,
                codec.check_readable,
                namespaces.SchemaVersion(major, 7),
                self.NAMESPACE,
            )
            self.assertIn(f"{major}.7", str(error))
            self.assertIn("2.3", str(error))
            self.assertIn("pools", str(error))

    def test_unknown_fields_of_a_newer_minor_are_kept(self):
        decoded = codec.decode(b'\x01{"s":"2.9","new":1,"d":{"a":1,"unheard_of":{"x":[2]}}}')

        codec.check_readable(decoded.schema, self.NAMESPACE)
        self.assertEqual({"a": 1, "unheard_of": {"x": [2]}}, decoded.state)
