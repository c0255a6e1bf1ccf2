# SPDX-License-Identifier: Apache-2.0
"""What was packed comes back byte for byte, and smaller where records are alike."""

import os
import struct
import zlib

import testtools
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler.model import namespaces
from nova_nodb_scheduler.wire import codec, payload_packing

V1 = namespaces.SchemaVersion(1, 0)


def record(number, size):
    return {"number": number, "flags": [f"flag-{n}" for n in range(size)]}


class TestPacking(testtools.TestCase):
    @settings(deadline=None)
    @given(st.lists(st.tuples(st.integers(), st.sampled_from([0, 20, 60, 400])), max_size=12))
    def test_any_payload_comes_back_as_it_was(self, drawn):
        packer = payload_packing.DictionaryPacking()
        payloads = [codec.encode(record(number % 2**60, size), V1) for number, size in drawn]
        kept = [packer.pack(payload) for payload in payloads]

        self.assertEqual(payloads, [packer.unpack(each) for each in kept])
        self.assertEqual(
            [codec.decode(payload) for payload in payloads],
            [codec.decode(packer.readable(each)) for each in kept],
        )
        self.assertEqual(kept, [packer.pack(each) for each in kept])

    def test_records_that_are_alike_take_a_quarter(self):
        packer = payload_packing.DictionaryPacking()
        packer.pack(codec.encode(record(1, 400), V1))
        payload = codec.encode(record(2, 400), V1)

        self.assertEqual(codec.ZLIB, payload[0])
        self.assertLess(len(packer.pack(payload)) * 4, len(payload))

    def test_what_another_zlib_compressed_comes_back_with_the_same_text(self):
        packer = payload_packing.DictionaryPacking()
        text = codec.encode(record(1, 60), V1)[1:]
        theirs = bytes((codec.ZLIB,)) + zlib.compress(text, 9)
        packer.pack(theirs)
        kept = packer.pack(theirs)

        self.assertEqual(codec.decode(theirs), codec.decode(packer.unpack(kept)))
        self.assertTrue(packer.holds(kept, theirs))

    @settings(deadline=None)
    @given(*[st.tuples(st.integers(0, 3), st.sampled_from([0, 20, 60, 400]))] * 2)
    def test_two_payloads_are_held_alike_where_their_texts_are_equal(self, one, other):
        packer = payload_packing.DictionaryPacking()
        mine, its = (codec.encode(record(*each), V1) for each in (one, other))
        for kept in (mine, packer.pack(mine), packer.pack(mine, codec.decode(mine).text)):
            self.assertEqual(mine == its, packer.holds(kept, its))
            self.assertFalse(packer.holds(kept, b""))
            self.assertFalse(packer.holds(kept, bytes((codec.ZLIB,)) + b"damaged"))

    @settings(deadline=None)
    @given(
        st.lists(
            st.tuples(st.integers(), st.sampled_from([0, 1, 20, 60, 400]), st.booleans()),
            max_size=40,
        )
    )
    def test_many_packed_together_come_back_each_by_itself(self, drawn):
        packer = payload_packing.DictionaryPacking()
        payloads = [codec.encode(record(number % 2**60, size), V1) for number, size, _ in drawn]
        texts = [codec.decode(payload).text for payload in payloads]
        # Of formats that this release does not know.
        payloads = [
            b"\x07" + payload[1:] if foreign and number % 5 == 0 else payload
            for payload, (number, _, foreign) in zip(payloads, drawn, strict=True)
        ]
        kept = packer.pack_many(payloads, texts)

        self.assertEqual(payloads, [packer.unpack(each) for each in kept])
        for payload, each in zip(payloads, kept, strict=True):
            self.assertTrue(packer.holds(each, payload))
            self.assertFalse(packer.holds(each, codec.encode({"another": 1}, V1)))
            if payload[0] != 7:
                self.assertEqual(codec.decode(payload), codec.decode(packer.readable(each)))

    def test_small_records_together_take_a_fifth_of_what_they_take_apart(self):
        payloads = [codec.encode(record(number, 10), V1) for number in range(64)]
        texts = [codec.decode(payload).text for payload in payloads]
        kept = payload_packing.DictionaryPacking().pack_many(payloads, texts)
        bundles = {id(bundle): bundle for bundle, _place in kept}

        self.assertEqual(4, len(bundles))
        size = sum(len(each.packed) for each in bundles.values())
        self.assertLess(size * 5, sum(map(len, payloads)))

    def test_where_texts_end_takes_four_bytes_of_each_and_no_object(self):
        packer = payload_packing.DictionaryPacking()
        states = [record(n, 40) for n in range(16)]
        texts = [codec.encode_text(state, V1) for state in states]
        ((bundle, _place), *_others) = packer.pack_many(
            [codec.payload_of(text) for text in texts], texts
        )
        self.assertIs(bytes, type(bundle.ends))
        self.assertEqual(4 * len(bundle), len(bundle.ends))
        ends = [bundle.span(place) for place in range(len(bundle))]
        self.assertEqual([len(text) for text in texts], [end - begin for begin, end in ends])

    def test_what_is_small_or_foreign_stays_as_it_is(self):
        packer = payload_packing.DictionaryPacking()
        for payload in (
            b"",
            codec.encode({"a": 1}, V1),
            b"\x07" + os.urandom(500),
        ):
            self.assertEqual(payload, packer.pack(payload))
            self.assertEqual(payload, packer.unpack(payload))
            self.assertEqual(payload, packer.readable(payload))


class TestLoading(testtools.TestCase):
    """Bundles that no process dumped."""

    def test_a_bundle_whose_first_text_ends_where_it_begins_is_none(self):
        packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
        bomb = packer.compress(bytes(64 << 20)) + packer.flush()
        for ends in ((0,), (0, 5)):
            head = struct.pack(f"<BH{len(ends)}I", 1, len(ends), *ends)
            dumped = head + bytes([codec.PLAIN] * len(ends)) + bomb
            self.assertRaises(ValueError, payload_packing.DictionaryPacking.load, dumped)

    def test_a_bundle_is_unpacked_no_further_than_to_its_end(self):
        packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
        bomb = packer.compress(bytes(64 << 20)) + packer.flush()
        dumped = struct.pack("<BHI", 1, 1, 5) + bytes([codec.PLAIN]) + bomb
        packing = payload_packing.DictionaryPacking()
        kept = (packing.load(dumped), 0)
        self.assertEqual(bytes([codec.PLAIN]) + bytes(5), packing.readable(kept))
