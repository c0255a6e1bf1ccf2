# SPDX-License-Identifier: Apache-2.0
"""Storms over drivers of servers lose the messages that they say they lose."""

from __future__ import annotations

import random

import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers import memory
from tests.unit.synchronizer.claims import lossy, placing_storm

KEY = records.RecordKey("claims", "a")


class LossyTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.wire = lossy.Wire()
        hub = memory.MemoryHub()
        self.client = lossy.LossyClient(memory.MemorySynchronizer(None, hub), self.wire)
        self.client.open()

    def write(self, key=KEY):
        [result] = self.client.write([records.Write(key, 0, b"x")])
        return result.verdict

    def test_a_lost_reply_leaves_the_record_and_a_lost_request_does_not(self):
        self.client.lose(memory.Fault.REPLY_LOST, 0)
        self.assertIs(records.Verdict.UNKNOWN, self.write())
        self.assertIn(KEY, self.client.read([KEY]))

        other = records.RecordKey("claims", "b")
        self.client.lose(memory.Fault.REQUEST_LOST, 0)
        self.assertIs(records.Verdict.UNKNOWN, self.write(other))
        self.assertEqual({}, self.client.read([other]))

    def test_a_late_request_arrives_once(self):
        self.client.lose(memory.Fault.LATE, 0)
        self.assertIs(records.Verdict.UNKNOWN, self.write())
        self.assertEqual({}, self.client.read([KEY]))
        for _ in range(2):
            self.client.deliver_late()
            self.assertEqual(1, self.client.read([KEY])[KEY].revision)

    def test_it_is_the_write_that_was_drawn_and_no_other(self):
        self.client.lose(memory.Fault.UNAVAILABLE, 1)
        self.assertIs(records.Verdict.WON, self.write())
        self.assertRaises(errors.BackendUnavailable, self.write)
        self.assertIs(records.Verdict.LOST, self.write())
        self.assertEqual({memory.Fault.UNAVAILABLE: 1}, self.wire.lost)

    def test_storms_order_it(self):
        class Lowest(random.Random):
            """Draws what is to happen."""

            def random(self):
                return 0.0

        hub = memory.MemoryHub()
        storm = placing_storm.shared_storm(lambda: memory.MemorySynchronizer(None, hub), 0)
        self.client = storm.connect()
        storm.prepare(self.client, Lowest(0))
        for number in range(placing_storm.WRITES):
            try:
                self.write(records.RecordKey("claims", str(number)))
            except errors.BackendUnavailable:
                continue
        self.assertEqual(1, storm.lost.total())
