# SPDX-License-Identifier: Apache-2.0
"""Pages of columns read as the records, and the changes, that they stand for."""

import testtools

from nova_nodb_scheduler.model import record_columns, records

RECORDS = [
    records.Record(records.RecordKey("pools", f"k{number}"), number + 1, number + 7, b"%d" % number)
    for number in range(5)
]
PAGE = record_columns.RecordColumns(
    "pools",
    [each.key.key for each in RECORDS],
    [each.revision for each in RECORDS],
    [each.version for each in RECORDS],
    [each.payload for each in RECORDS],
)


class RecordColumnsTest(testtools.TestCase):
    def test_a_page_reads_as_its_records(self):
        self.assertEqual(5, len(PAGE))
        self.assertEqual(RECORDS, list(PAGE))
        self.assertEqual(RECORDS, [PAGE[at] for at in range(5)])
        self.assertEqual(RECORDS[-1], PAGE[-1])
        self.assertRaises(IndexError, PAGE.__getitem__, 5)
        self.assertIn(RECORDS[3], PAGE)

    def test_a_part_of_a_page_is_a_page(self):
        self.assertIsInstance(PAGE[1:3], record_columns.RecordColumns)
        self.assertEqual(RECORDS[1:3], list(PAGE[1:3]))
        self.assertEqual([], list(PAGE[5:]))

    def test_changes_are_records_with_what_was_decoded_of_them(self):
        states, texts = [{"n": at} for at in range(5)], [b"t%d" % at for at in range(5)]
        changes = list(map(records.Change, RECORDS, states, texts))
        page = record_columns.ChangeColumns(PAGE, states, texts)
        self.assertEqual(changes, list(page))
        self.assertEqual(changes[2], page[2])
        self.assertEqual(changes[2].text, page[2].text)
        self.assertEqual(changes[3:], list(page[3:]))
        self.assertEqual(5, len(page))
