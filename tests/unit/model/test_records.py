# SPDX-License-Identifier: Apache-2.0
"""Which names records may have."""

import sys
import unittest

from hypothesis import given
from hypothesis import strategies as st

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers.support import record_names

#: Any text that Python can hold: lone surrogates, NUL and unassigned ones, too.
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=300)


class RuleTest(unittest.TestCase):
    def test_names_of_nodes_and_cells_are_taken(self):
        for key in ("host", "höst", "主机", "a b", "host ", "0f7@2c1", "k" * 255, "\u00a0", "🖥"):
            self.assertIsNone(records.RecordKey("compute_nodes", key).fault, ascii(key))

    def test_each_fault_is_said(self):
        for key, fault in (
            ("", "its key is empty"),
            ("k" * 256, "its key has 256 characters, at most 255 are taken"),
            ("a\nb", "its key holds a control character, U+000A"),
            ("a\x00", "its key holds a control character, U+0000"),
            ("\x9f", "its key holds a control character, U+009F"),
            ("\udcff", "its key holds a lone surrogate, U+DCFF"),
        ):
            self.assertEqual(fault, records.RecordKey("n", key).fault)
        self.assertEqual("its namespace is empty", records.RecordKey("", "a").fault)

    def test_a_name_is_shown_in_one_line_of_bounded_length(self):
        shown = str(records.RecordKey("n", "a\nERROR forged line\r\x1b[2J" + "x" * 10_000))
        self.assertTrue(shown.isprintable())
        self.assertLess(len(shown), 400)
        self.assertTrue(shown.startswith("n/a\\nERROR forged line\\r\\x1b[2J"))

    @given(ANY_TEXT, ANY_TEXT)
    def test_what_is_taken_every_layout_can_hold_and_the_rest_is_shown(self, namespace, key):
        name = records.RecordKey(namespace, key)
        self.assertTrue(str(name).isprintable())
        str(name).encode()
        if name.fault is None:
            self.assertEqual(name, record_names.decode(record_names.encode(name)))
            self.assertLessEqual(len(key.encode()), 4 * records.KEY_CHARACTERS)
        else:
            self.assertTrue(name.fault.isprintable())
            self.assertRaises(ValueError, record_names.encode, name)


class KeyTest(unittest.TestCase):
    def test_keys_are_ordered_by_namespace_and_then_by_key(self) -> None:
        keys = [records.RecordKey(*parts) for parts in (("b", "a"), ("a", "b"), ("a", "a"))]
        self.assertEqual([keys[2], keys[1], keys[0]], sorted(keys))

    def test_a_key_is_looked_up_without_a_call(self) -> None:
        known = {records.RecordKey("claims", "host"): 1}
        key = records.RecordKey("claims", "host")
        called: list[str] = []
        sys.setprofile(lambda frame, event, _: called.append(event) if "call" in event else None)
        found = known[key]
        sys.setprofile(None)
        self.assertEqual((1, ["c_call"]), (found, called))  # that of setprofile itself

    def test_a_key_is_told_from_its_parts_where_it_is_written_down(self) -> None:
        key = records.RecordKey("claims", "host")
        self.assertEqual("claims/host", f"{key}")
        self.assertEqual("claims/host", str(key))
        self.assertRaises(AttributeError, setattr, key, "key", "other")


class FirstFaultTest(unittest.TestCase):
    def test_a_page_of_names_is_judged_as_each_of_them(self) -> None:
        sound = [f"k{number}" for number in range(5)]
        self.assertIsNone(records.first_name_fault("pools", sound))
        self.assertIsNone(records.first_name_fault("pools", []))
        # Not printable, and taken all the same.
        self.assertIsNone(records.first_name_fault("pools", [*sound, "a\u200bb"]))
        for key in ("", "x" * 256, "a\x00b", "a\nb", "\ud800"):
            fault = records.first_name_fault("pools", [*sound, key])
            self.assertEqual(records.name_fault("pools", key), fault)
            self.assertIsNotNone(fault)
        self.assertIsNotNone(records.first_name_fault("a\x00b", sound))
        self.assertIsNotNone(records.first_name_fault("", sound))
