# SPDX-License-Identifier: Apache-2.0
"""What a journal costs depends on flushes, and not on how many services they tell of."""

import unittest

from tools.bench.heartbeats import flush_costs

CONDUCTORS, ROUNDS = 2, 2


class FlushCostsTest(unittest.TestCase):
    def costs(self, services, *, journals):
        made = flush_costs.made_services(services)
        return flush_costs.run(made, CONDUCTORS, ROUNDS, journals=journals)

    def test_a_flush_of_a_journal_is_one_record_and_as_many_statements_for_any_services(self):
        few, many = (self.costs(services, journals=True) for services in (20, 400))
        self.assertEqual(CONDUCTORS * ROUNDS, few.records)
        self.assertEqual(CONDUCTORS * ROUNDS, many.records)
        self.assertEqual(few.statements, many.statements)

    def test_it_writes_a_tenth_of_the_bytes_that_records_take(self):
        as_records = self.costs(400, journals=False)
        self.assertEqual(400 * ROUNDS, as_records.records)
        in_journals = self.costs(400, journals=True)
        self.assertLess(in_journals.payload_bytes * 10, as_records.payload_bytes)
