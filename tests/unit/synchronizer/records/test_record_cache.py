# SPDX-License-Identifier: Apache-2.0
"""What is remembered of records: of the present epoch, and the newest."""

import testtools

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.claims import claim_rules, ledger_claimer
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.records import record_editor

KEY = records.RecordKey("n", "k")


def record(revision):
    return records.Record(KEY, revision, revision, b"x")


class LatestRecordsTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.cache = record_editor.RecordCache()
        self.cache.see("one", [record(70)])

    def known(self):
        return self.cache.known([KEY]).get(KEY)

    def test_the_newest_of_an_epoch_is_kept(self):
        self.cache.note(record(69), "one")
        self.assertEqual(record(70), self.known())
        self.cache.note(record(71), "one")
        self.assertEqual(record(71), self.known())

    def test_a_record_of_a_former_epoch_is_not_taken_into_the_new_one(self):
        before = self.cache.epoch
        self.cache.see("two", [record(3)])

        self.cache.note(record(71), before)

        self.assertEqual(record(3), self.known())
        self.cache.see("two", [record(4)])
        self.assertEqual(record(4), self.known())

    def test_a_record_of_an_epoch_that_was_not_seen_yet_is_not_taken(self):
        self.cache.note(record(3), "two")

        self.assertEqual(record(70), self.known())


class EditsAcrossEpochsTest(testtools.TestCase):
    def test_a_claim_that_a_new_epoch_overtakes_is_not_remembered_in_it(self):
        cache = record_editor.RecordCache()
        client = Overtaken(memory.MemoryHub(), cache)
        client.open()
        self.addCleanup(client.close)
        batches = ledger_claimer.ClaimBatches(
            client, "writer", lambda: "id", 60.0, lambda host: True, cache=cache
        )
        view = ledger_claimer.ClaimView(client.head(), lambda claim, held: True)

        batches.take([model.Claim("x", "n1", {"VCPU": 1})], view)

        self.assertEqual({}, cache.known([claim_rules.host_key("n1")]))


class Overtaken(memory.MemorySynchronizer):
    """Another thread sees a new epoch between a write and its answer."""

    def __init__(self, hub, cache):
        super().__init__(None, hub)
        self._cache = cache

    def write(self, writes):
        results = super().write(writes)
        self._cache.see("new", ())
        return results
