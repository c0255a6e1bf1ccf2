# SPDX-License-Identifier: Apache-2.0
"""A sweep finds what the feed failed to bring, repairs it, and cries no wolf."""

import attrs
import testtools

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.replication import replicator_contract
from nova_nodb_scheduler.wire import codec
from tests.unit.synchronizer.replication import replicas

CLEAN = {"missed": 0, "stale": 0, "extra": 0, "diverged": 0}


class ForgetfulFeed(memory.MemorySynchronizer):
    """A driver with a fault: its feed passes over the keys it is told to."""

    def __init__(self, hub):
        super().__init__(shared_hub=hub)
        self.passed_over = set()

    def fetch(self, cursor, limit=1000):
        changes = super().fetch(cursor, limit)
        if isinstance(changes, records.ResyncNeeded):
            return changes
        kept = tuple(each for each in changes.records if each.key.key not in self.passed_over)
        return records.Changes(kept, changes.cursor, changes.more)


class TestAntiEntropy(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.world = replicas.World()
        self.replica = self.world.replica(
            driver=ForgetfulFeed(self.world.hub),
            anti_entropy_interval_seconds=100,
            anti_entropy_page_seconds=0.5,
        )
        self.told = []
        self.replica.replicator.subscribe(
            lambda changes: self.told.extend(change.record.key.key for change in changes)
        )
        for number in range(5):
            self.world.put(f"k{number}", number)
        self.replica.catch_up()

    def _sweep(self):
        """Let time pass until one more sweep has ended."""
        swept = self.replica.status.sweeps
        self.world.clock.pass_seconds(100)
        for _ in range(1000):
            self.replica.replicator.step()
            if self.replica.status.sweeps > swept:
                return
            self.world.clock.pass_seconds(0.5)
        self.fail("no sweep ended")

    def _expect(self, **found):
        self.assertEqual(CLEAN | found, dict(self.replica.status.anti_entropy))

    def test_a_sweep_of_equals_finds_nothing(self):
        self._sweep()
        self._sweep()
        self._expect()

    def test_a_record_removed_from_the_store_behind_its_back_is_brought_again(self):
        self.replica.store.retain("pools", {"k0", "k1", "k2", "k4"}, 1000)
        self.assertNotIn("k3", self.replica.pools())
        del self.told[:]
        self._sweep()
        self.assertEqual(3, self.replica.pools()["k3"])
        self._expect(missed=1)
        self.assertIn("k3", self.told)
        self.assertEqual({}, self.replica.status.resyncs)

    def test_changes_the_feed_passed_over_are_found_and_mended(self):
        self.replica.driver.passed_over = {"k1", "k2", "new"}
        self.world.put("k1", 11)
        self.world.delete("k2")
        self.world.put("new", 12)
        self.replica.catch_up()
        self.assertEqual((1, 2), (self.replica.pools()["k1"], self.replica.pools()["k2"]))
        self._sweep()
        self.assertEqual({"k0": 0, "k1": 11, "k3": 3, "k4": 4, "new": 12}, self.replica.pools())
        self._expect(missed=1, stale=1, extra=1)
        self._sweep()
        self._expect(missed=1, stale=1, extra=1)

    def test_a_deletion_whose_tombstone_was_collected_is_found_too(self):
        self.replica.driver.passed_over = {"k2"}
        deleted = self.world.delete("k2")
        self.replica.catch_up()
        self.world.clock.pass_seconds(10)
        self.world.hub.collect(keep_seconds=1)
        self.assertEqual({}, dict(self.world.writer.read([deleted.key])))
        self._sweep()
        self.assertNotIn("k2", self.replica.pools())
        self._expect(extra=1)
        # It may come back: its revision is beyond the one made up here.
        self.replica.driver.passed_over = set()
        self.world.put("k2", 22)
        self.replica.catch_up()
        self.assertEqual(22, self.replica.pools()["k2"])

    def test_a_deletion_collected_while_the_reader_stood_still_is_no_finding(self):
        driver = self.replica.driver
        snapshot, read = driver.snapshot, driver.read

        def pages():
            found = list(snapshot().pages)
            self.world.put("new", 5)
            yield from found

        def read_late(keys):
            # It stood still since its last fetch, which brought what the pages lack.
            driver.read = read
            self.world.delete("new")
            self.world.clock.pass_seconds(10)
            self.world.hub.collect(keep_seconds=1)
            return read(keys)

        def snapshot_once(namespaces=None):
            driver.snapshot, driver.read = snapshot, read_late
            return attrs.evolve(snapshot(namespaces), pages=pages())

        driver.snapshot = snapshot_once
        self._sweep()
        self._expect()
        self.assertNotIn("new", self.replica.pools())
        self.assertEqual(1, sum(self.replica.status.resyncs.values()))

    def test_writes_during_a_sweep_are_no_findings(self):
        for number in range(2500):
            self.world.put(f"m{number:04}", number)
        self.replica.catch_up()
        self.world.clock.pass_seconds(100)
        turn = 0
        while self.replica.status.sweeps == 0:
            turn += 1
            self.world.put(f"m{turn * 37 % 2500:04}", -turn)
            if turn % 3 == 0:
                self.world.delete(f"m{(turn * 37 + 1) % 2500:04}")
            self.world.put(f"new{turn}", turn)
            self.world.clock.pass_seconds(0.5)
            self.replica.replicator.step()
            # Written between the fetch and the next look at a page.
            self.world.put(f"m{turn * 41 % 2500:04}", -turn)
        self._expect()
        self.assertGreater(turn, 5)

    def test_the_sweep_is_paced(self):
        for number in range(2500):
            self.world.put(f"m{number:04}", number)
        self.replica.catch_up()
        calls = []
        original = self.world.hub.read
        self.world.hub.read = lambda *args: calls.append(1) or original(*args)
        self.world.clock.pass_seconds(100)
        for _ in range(10):
            self.replica.replicator.step()
        self.assertEqual(1, len(calls))
        self.world.clock.pass_seconds(0.5)
        for _ in range(10):
            self.replica.replicator.step()
        self.assertEqual(2, len(calls))

    def test_a_backup_restored_and_overtaken_unnoticed_is_read_again_from_nothing(self):
        backup = self.world.hub.backup()
        for free in (100, 101, 102):
            self.world.put("k0", free)
        self.replica.catch_up()
        self.world.hub.restore(backup)
        # The back end writes past the cursor before anybody asks: no feed can tell.
        for number in range(20):
            self.world.put("other", number)
        self.replica.catch_up()
        self.assertEqual(102, self.replica.pools()["k0"])
        self.world.clock.pass_seconds(100)
        for _ in range(50):
            self.replica.replicator.step()
            self.world.clock.pass_seconds(0.5)
        self.assertEqual(
            {"k0": 0, "k1": 1, "k2": 2, "k3": 3, "k4": 4, "other": 19}, self.replica.pools()
        )
        self.assertEqual({replicator_contract.DIVERGED: 1}, self.replica.status.resyncs)
        # The store would otherwise refuse the revisions that were used once before.
        self.world.put("k0", 5)
        self.replica.catch_up()
        self.assertEqual(5, self.replica.pools()["k0"])

    def _sweep_until_resync(self):
        self.world.clock.pass_seconds(100)
        for _ in range(50):
            self.replica.replicator.step()
            self.world.clock.pass_seconds(0.5)
        self.assertEqual({replicator_contract.DIVERGED: 1}, self.replica.status.resyncs)

    def test_two_states_under_one_revision_are_noticed(self):
        backup = self.world.hub.backup()
        self.world.put("k0", 100)
        self.world.put("k1", 100)
        self.replica.catch_up()
        self.world.hub.restore(backup)
        for free in (7, 8):
            self.world.put("k0", free)
            self.world.delete("k0")
        self.world.put("k1", 9)  # the second revision again, with another state
        self.replica.catch_up()
        self.assertEqual(100, self.replica.pools()["k1"])
        self._sweep_until_resync()
        self.assertEqual({"k1": 9, "k2": 2, "k3": 3, "k4": 4}, self.replica.pools())

    def test_a_revision_ahead_of_the_back_ends_is_noticed_though_the_states_are_equal(self):
        backup = self.world.hub.backup()
        for _ in range(3):
            self.world.put("k0", 0)
        self.replica.catch_up()
        self.world.hub.restore(backup)
        for number in range(10):
            self.world.put("other", number)
        self.replica.catch_up()
        self._sweep_until_resync()
        self.assertEqual(1, self.replica.store.snapshot().namespace("pools").get("k0").revision)

    def test_a_deletion_the_back_end_forgot_is_noticed(self):
        backup = self.world.hub.backup()
        self.world.delete("k0")
        self.replica.catch_up()
        self.world.hub.restore(backup)
        for number in range(10):
            self.world.put("other", number)
        self.replica.catch_up()
        self.assertNotIn("k0", self.replica.pools())
        self._sweep_until_resync()
        self.assertEqual(0, self.replica.pools()["k0"])

    def test_a_suspect_that_changes_before_its_second_look_is_left_to_the_feed(self):
        self.replica.driver.passed_over = {"k1"}
        self.world.put("k1", 11)
        self.replica.catch_up()
        original = self.replica.driver.read

        def overtaken(keys):
            self.world.put("k1", 12)
            return original(keys)

        self.replica.driver.read = overtaken
        self.world.clock.pass_seconds(100)
        self.replica.replicator.step()
        self._expect()
        self.assertEqual(1, self.replica.pools()["k1"])

    def test_equal_records_and_those_younger_than_the_cursor_are_not_read_twice(self):
        looked_up = []
        original_read, original_snapshot = self.replica.driver.read, self.replica.driver.snapshot

        def snapshot_behind_a_write(namespaces=None):
            self.world.put("k1", 11)
            self.world.put("new", 12)
            return original_snapshot(namespaces)

        self.replica.driver.snapshot = snapshot_behind_a_write
        self.replica.driver.read = lambda keys: looked_up.extend(keys) or original_read(keys)
        self._sweep()
        self.assertEqual([], looked_up)

    def test_a_flushed_back_end_is_not_taken_for_deletions(self):
        self.world.clock.pass_seconds(100)
        original = self.replica.driver.snapshot

        def flushed_after_the_cursor(namespaces=None):
            pages = original(namespaces)
            self.world.hub.begin_epoch()
            return pages

        self.replica.driver.snapshot = flushed_after_the_cursor
        self.assertIs(replicator_contract.StepOutcome.RESYNC, self.replica.replicator.step())
        self._expect()
        self.assertEqual(5, len(self.replica.pools()))
        self.assertEqual({replicator_contract.SNAPSHOT_INTERRUPTED: 1}, self.replica.status.resyncs)

    def test_a_flush_between_a_page_and_its_second_look_is_not_taken_for_deletions(self):
        self.replica.driver.passed_over = {"k1"}
        self.world.put("k1", 11)
        self.replica.catch_up()
        original = self.replica.driver.read

        def flushed_before(keys):
            self.world.hub.begin_epoch()
            return original(keys)

        self.replica.driver.read = flushed_before
        self.world.clock.pass_seconds(100)
        self.assertIs(replicator_contract.StepOutcome.RESYNC, self.replica.replicator.step())
        self._expect()
        self.assertEqual(5, len(self.replica.pools()))

    def test_a_sweep_cut_by_an_outage_begins_again_later(self):
        self.world.clock.pass_seconds(100)
        self.replica.driver.faults.fail_next(memory.Fault.UNAVAILABLE, operation="snapshot")
        self.assertIs(replicator_contract.StepOutcome.DISCONNECTED, self.replica.replicator.step())
        self.world.clock.pass_seconds(1)
        self.replica.catch_up()
        self._sweep()
        self._expect()

    def test_an_unreadable_record_is_no_finding_once_it_is_in_quarantine(self):
        self.world.put_bytes("k1", b"\x00garbage")
        self.replica.catch_up()
        self._sweep()
        self._expect()
        self.assertEqual({"k1"}, self.replica.replicator.quarantine.keys("pools"))

    def test_an_unreadable_record_the_feed_passed_over_ends_in_quarantine(self):
        self.replica.driver.passed_over = {"k1"}
        self.world.put_bytes("k1", b"\x00garbage")
        self.replica.catch_up()
        self._sweep()
        self.assertEqual({"k1"}, self.replica.replicator.quarantine.keys("pools"))
        self._expect(stale=1)
        self._sweep()
        self._expect(stale=1)

    def test_a_state_of_a_newer_minor_version_is_compared_like_any_other(self):
        newer = replicas.namespaces.SchemaVersion(1, 7)
        self.world.put_bytes("k1", codec.encode({"free": 5, "later": True}, newer))
        self.replica.catch_up()
        self._sweep()
        self._expect()
