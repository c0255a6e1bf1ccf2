# SPDX-License-Identifier: Apache-2.0
"""A replicator keeps its store equal to the back end, and says when it cannot."""

import itertools
import threading
import time

import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.replication import replicator_contract
from nova_nodb_scheduler.testing import patience
from tests.unit.synchronizer.replication import replicas

State = replicator_contract.State
StepOutcome = replicator_contract.StepOutcome
#: Longest time to wait for what a thread must do.
PATIENCE_SECONDS = 60.0


class TestFollowing(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.world = replicas.World()

    def test_snapshot_then_changes_then_tombstones_reach_the_store(self):
        self.world.put("a", 1)
        self.world.put("b", 2)
        replica = self.world.replica()
        replica.catch_up()
        self.assertEqual({"a": 1, "b": 2}, replica.pools())
        self.world.put("a", 10)
        self.world.put("c", 3)
        self.world.delete("b")
        replica.catch_up()
        self.assertEqual({"a": 10, "c": 3}, replica.pools())
        self.assertIs(State.FOLLOWING, replica.status.state)
        self.assertEqual(self.world.hub.head().version, replica.status.cursor_version)
        self.assertEqual(self.world.hub.head().epoch, replica.status.epoch)

    def test_what_is_written_while_the_snapshot_is_read_is_not_missed(self):
        for number in range(2500):
            self.world.put(f"k{number:04}", number)
        replica = self.world.replica()
        self.assertIs(StepOutcome.SNAPSHOT, replica.replicator.step())
        # The first page of 1,000 is in the store; the others are to come.
        self.assertEqual(1000, len(replica.pools()))
        self.assertIs(State.SNAPSHOT, replica.status.state)
        self.world.put("k0000", -1)
        self.world.put("k2400", -2)
        self.world.put("new", -3)
        self.world.delete("k0001")
        self.world.delete("k2401")
        replica.catch_up()
        expected = {f"k{number:04}": number for number in range(2500)}
        expected |= {"k0000": -1, "k2400": -2, "new": -3}
        del expected["k0001"], expected["k2401"]
        self.assertEqual(expected, replica.pools())

    def test_a_backlog_is_applied_in_batches_of_the_limit(self):
        replica = self.world.replica(batch_limit=10)
        replica.catch_up()
        for number in range(25):
            self.world.put(f"k{number}", number)
        outcomes = [replica.replicator.step() for _ in range(4)]
        self.assertEqual(
            [StepOutcome.MORE, StepOutcome.MORE, StepOutcome.CHANGES, StepOutcome.IDLE], outcomes
        )
        self.assertEqual(25, len(replica.pools()))

    def test_two_followers_end_equal(self):
        one, two = self.world.replica("one"), self.world.replica("two", batch_limit=3)
        for number in range(50):
            self.world.put(f"k{number % 7}", number)
            if number % 5 == 0:
                self.world.delete(f"k{number % 7}")
            one.replicator.step()
            if number % 3 == 0:
                two.replicator.step()
        for _ in range(2):  # each brings the other's beat
            one.catch_up()
            two.catch_up()
        self.assertEqual(one.pools(), two.pools())
        for name in one.store.snapshot().namespaces():
            mine, its = (each.store.snapshot().namespace(name) for each in (one, two))
            self.assertEqual(
                {key: mine.get(key).revision for key in mine.row_keys()},
                {key: its.get(key).revision for key in its.row_keys()},
            )
        self.assertEqual({"one", "two"}, set(two.store.snapshot().namespace("schedulers").keys()))

    def test_a_restarted_replicator_begins_with_a_snapshot_and_the_same_beat(self):
        first = self.world.replica("one")
        first.catch_up()
        self.world.put("a", 1)
        second = self.world.replica("one")
        second.catch_up()
        self.assertEqual({"a": 1}, second.pools())
        self.assertTrue(second.replicator.alive(1))
        self.assertEqual({"one"}, set(second.store.snapshot().namespace("schedulers").keys()))

    def test_the_namespace_of_the_canary_must_be_declared(self):
        world = self.world
        with testtools.ExpectedException(ValueError, ".*schedulers.*"):
            replica = world.replica()
            type(replica.replicator)(
                replica.driver, replica.store, [replicas.POOLS], identity="one"
            )


class TestListeners(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.world = replicas.World()
        self.replica = self.world.replica()
        self.told = []
        self.replica.replicator.subscribe(
            lambda changes: self.told.extend(
                (change.record.key.key, change.state and change.state["free"])
                for change in changes
                if change.record.key.namespace == "pools"
            ),
            on_reset=lambda: self.told.append("reset"),
        )

    def test_a_listener_is_told_of_snapshot_changes_and_tombstones(self):
        self.world.put("a", 1)
        self.replica.catch_up()
        self.world.put("a", 2)
        self.world.delete("a")
        self.world.put("b", 3)
        self.replica.catch_up()
        self.assertEqual(["reset", ("a", 1), ("a", None), ("b", 3)], self.told)

    def test_after_a_resync_every_live_record_is_told_again(self):
        self.world.put("a", 1)
        self.replica.catch_up()
        self.world.hub.faults.freeze()
        self._let_the_feed_die()
        self.world.hub.faults.thaw()
        self.replica.catch_up()
        self.assertEqual(["reset", ("a", 1), "reset", ("a", 1)], self.told)

    def _let_the_feed_die(self):
        self.world.clock.pass_seconds(3)
        self.replica.replicator.step()
        self.world.clock.pass_seconds(11)
        self.assertIs(StepOutcome.RESYNC, self.replica.replicator.step())

    def test_a_listener_that_raises_costs_a_resync_after_which_it_is_told_again(self):
        self.replica.catch_up()
        broken = threading.Event()
        broken.set()

        def listener(changes):
            if broken.is_set():
                raise ZeroDivisionError

        self.replica.replicator.subscribe(listener)
        self.world.put("a", 1)
        self.assertRaises(ZeroDivisionError, self.replica.replicator.step)
        self.assertFalse(self.replica.replicator.alive(1000))
        broken.clear()
        self.replica.catch_up()
        self.assertEqual({replicator_contract.FAILURE: 1}, self.replica.status.resyncs)
        self.assertEqual(["reset", ("a", 1), "reset", ("a", 1)], self.told)


class TestResync(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.world = replicas.World(history_entries=20)
        self.world.put("kept", 1)
        self.world.put("gone", 2)
        self.replica = self.world.replica(anti_entropy_page_seconds=0)
        self.replica.catch_up()

    def _resynced_by(self, reason):
        self.assertFalse(self.replica.replicator.alive(1e9))
        self.assertEqual({reason: 1}, self.replica.status.resyncs)
        self.replica.catch_up()
        self.assertTrue(self.replica.replicator.alive(1))
        self.assertEqual({reason: 1}, self.replica.status.resyncs)

    def test_a_new_epoch_empties_the_store_although_revisions_begin_anew(self):
        for number in range(5):
            self.world.put("kept", number)
        self.replica.catch_up()
        old_epoch = self.replica.status.epoch
        self.world.hub.begin_epoch()
        self.world.put("kept", 7)  # at revision 1, where the store knows 6
        self.assertIs(StepOutcome.RESYNC, self.replica.replicator.step())
        self._resynced_by("epoch changed")
        self.assertEqual({"kept": 7}, self.replica.pools())
        self.assertNotEqual(old_epoch, self.replica.status.epoch)

    def test_what_the_store_held_is_told_once_before_a_new_epoch_empties_it(self):
        told = []

        def tell(former):
            told.append(former.namespace("pools").state("kept"))
            raise ValueError("made for a test")

        self.replica.replicator.tell_former(tell)
        self.world.put("kept", 7)
        self.replica.catch_up()
        self.world.hub.faults.go_down()
        self.replica.replicator.step()
        self.world.hub.faults.come_up()
        self.world.clock.pass_seconds(1)
        self.replica.catch_up()
        self.assertEqual([], told)
        state = self.replica.store.snapshot().namespace("pools").state("kept")
        self.world.hub.begin_epoch()
        self.assertIs(StepOutcome.RESYNC, self.replica.replicator.step())
        self._resynced_by("epoch changed")
        self.assertEqual([state], told)
        self.assertEqual({}, self.replica.pools())

    def test_a_store_that_was_filled_in_part_is_told_to_nobody(self):
        told = []
        self.replica.replicator.tell_former(
            lambda former: told.append(len(former.namespace("pools")))
        )
        self.world.hub.begin_epoch()
        for number in range(1500):
            self.world.put(f"k{number:04}", number)
        self.replica.replicator.step()
        self.replica.replicator.step()
        before = list(told)
        self.assertEqual(1000, len(self.replica.pools()))
        self.world.hub.begin_epoch()
        self.replica.catch_up()
        self.assertEqual(before, told)
        self.world.put("a", 1)
        self.replica.catch_up()
        self.world.hub.begin_epoch()
        self.replica.catch_up()
        self.assertEqual([*before, 1], told)

    def test_a_truncated_history_drops_what_was_deleted_meanwhile(self):
        self.world.delete("gone")
        for number in range(30):
            self.world.put("kept", number)
        self.assertIs(StepOutcome.RESYNC, self.replica.replicator.step())
        self._resynced_by("history truncated")
        self.assertEqual({"kept": 29}, self.replica.pools())

    def test_a_restored_backup_wins_over_the_newer_revisions_in_the_store(self):
        backup = self.world.hub.backup()
        self.world.put("kept", 50)
        self.world.put("later", 51)
        self.world.delete("gone")
        self.replica.catch_up()
        self.world.hub.restore(backup)
        self.assertIs(StepOutcome.RESYNC, self.replica.replicator.step())
        self._resynced_by("head behind cursor")
        self.assertEqual({"kept": 1, "gone": 2}, self.replica.pools())

    def test_a_silent_feed_is_noticed_within_its_bound_and_given_up(self):
        self.world.hub.faults.freeze()
        self.world.put("kept", 9)
        self.world.clock.pass_seconds(2.5)
        self.assertIs(StepOutcome.IDLE, self.replica.replicator.step())  # sends the canary
        self.world.clock.pass_seconds(10)
        self.assertIs(StepOutcome.IDLE, self.replica.replicator.step())
        self.assertFalse(self.replica.replicator.alive(10))
        self.world.clock.pass_seconds(0.5)
        self.assertIs(StepOutcome.RESYNC, self.replica.replicator.step())
        self.assertIs(State.DEAD, self.replica.status.state)
        self.assertIn("silent", self.replica.status.detail)
        self.world.hub.faults.thaw()
        self._resynced_by(replicator_contract.SILENCE)
        self.assertEqual({"kept": 9, "gone": 2}, self.replica.pools())

    def test_a_silent_feed_is_closed_and_opened_again(self):
        class Counting(replicas.memory.MemorySynchronizer):
            opened = closed = 0

            def open(self):
                self.opened += 1
                super().open()

            def close(self):
                self.closed += 1
                super().close()

        replica = self.world.replica("two", driver=Counting(shared_hub=self.world.hub))
        replica.catch_up()
        self.assertEqual((1, 0), (replica.driver.opened, replica.driver.closed))
        self.world.hub.faults.freeze()
        for seconds in (2, 11, 0):
            self.world.clock.pass_seconds(seconds)
            replica.replicator.step()
        self.assertEqual((2, 1), (replica.driver.opened, replica.driver.closed))

    def test_a_feed_that_stays_silent_is_never_alive_however_often_it_is_read_again(self):
        self.world.hub.faults.freeze()
        for number in range(60):
            self.world.clock.pass_seconds(1)
            self.world.put("kept", number)
            for _ in range(3):
                self.replica.replicator.step()
            if number > 12:
                self.assertFalse(self.replica.replicator.alive(10))
        self.assertThat(
            self.replica.status.resyncs[replicator_contract.SILENCE],
            testtools.matchers.GreaterThan(3),
        )
        # Each snapshot brought the state of its moment all the same.
        self.assertThat(self.replica.pools()["kept"], testtools.matchers.GreaterThan(40))

    def test_an_epoch_that_changes_while_the_snapshot_is_read_begins_it_again(self):
        replica = self.world.replica("two")
        replica.replicator.step()
        self.world.hub.begin_epoch()
        self.world.put("new", 5)
        self.assertIs(StepOutcome.RESYNC, replica.replicator.step())
        replica.catch_up()
        self.assertEqual({"new": 5}, replica.pools())
        self.assertEqual({replicator_contract.SNAPSHOT_INTERRUPTED: 1}, replica.status.resyncs)

    def test_the_first_snapshot_is_no_resync(self):
        self.assertEqual({}, self.replica.status.resyncs)
        self.assertEqual(1, self.replica.status.snapshots)


class TestDisconnected(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.world = replicas.World()
        self.world.put("a", 1)

    def test_a_back_end_that_is_down_at_the_start_is_found_when_it_comes_up(self):
        replica = self.world.replica()
        self.world.hub.faults.go_down()
        self.assertIs(StepOutcome.DISCONNECTED, replica.replicator.step())
        self.assertIs(State.DISCONNECTED, replica.status.state)
        self.assertIn("it is down", replica.status.detail)
        self.assertFalse(replica.replicator.alive(1000))
        self.world.hub.faults.come_up()
        self.world.clock.pass_seconds(0.6)
        replica.catch_up()
        self.assertEqual({"a": 1}, replica.pools())
        self.assertEqual("", replica.status.detail)

    def test_the_feed_is_continued_where_it_was_without_a_snapshot(self):
        replica = self.world.replica()
        replica.catch_up()
        self.world.hub.faults.go_down()
        self.assertIs(StepOutcome.DISCONNECTED, replica.replicator.step())
        self.world.hub.faults.come_up()
        self.world.put("a", 2)
        self.world.clock.pass_seconds(1)
        replica.catch_up()
        self.assertEqual({"a": 2}, replica.pools())
        self.assertEqual(1, replica.status.snapshots)
        self.assertEqual({}, replica.status.resyncs)

    def test_a_driver_that_another_closed_is_opened_again_and_the_feed_continued(self):
        replica = self.world.replica()
        replica.catch_up()
        replica.driver.close()
        self.assertIs(StepOutcome.DISCONNECTED, replica.replicator.step())
        self.world.put("a", 2)
        self.world.clock.pass_seconds(1)
        replica.catch_up()
        self.assertEqual({"a": 2}, replica.pools())
        self.assertEqual(1, replica.status.snapshots)

    def test_what_was_proved_ages_while_the_back_end_is_away(self):
        replica = self.world.replica()
        replica.catch_up()
        self.world.hub.faults.go_down()
        replica.replicator.step()
        self.world.clock.pass_seconds(5)
        self.assertTrue(replica.replicator.alive(6))
        self.assertFalse(replica.replicator.alive(4))
        self.assertEqual(5, replica.status.proof_age_seconds)

    def test_attempts_become_rarer_up_to_a_bound(self):
        replica = self.world.replica(reconnect_min_seconds=1, reconnect_max_seconds=8)
        self.world.hub.faults.go_down()
        attempts_at = []
        for _ in range(600):
            if replica.replicator.step() is StepOutcome.DISCONNECTED:
                attempts_at.append(self.world.clock.now)
            self.world.clock.pass_seconds(0.1)
        pauses = [round(b - a) for a, b in itertools.pairwise(attempts_at)]
        self.assertEqual([1, 2, 4, 8, 8, 8, 8, 8, 8], pauses)

    def test_after_a_success_the_pauses_begin_anew(self):
        replica = self.world.replica(reconnect_min_seconds=1, reconnect_max_seconds=8)
        for _ in range(3):
            self.world.hub.faults.fail_next(replicas.memory.Fault.UNAVAILABLE, operation="snapshot")
            self.world.clock.pass_seconds(10)
            self.assertIs(StepOutcome.DISCONNECTED, replica.replicator.step())
        self.world.clock.pass_seconds(10)
        replica.catch_up()
        self.world.hub.faults.go_down()
        self.assertIs(StepOutcome.DISCONNECTED, replica.replicator.step())
        self.world.clock.pass_seconds(1)
        self.assertIs(StepOutcome.DISCONNECTED, replica.replicator.step())

    def test_a_snapshot_cut_in_the_middle_begins_again_and_drops_what_went(self):
        for number in range(1500):
            self.world.put(f"k{number:04}", number)
        replica = self.world.replica()
        replica.replicator.step()
        self.assertEqual(1000, len(replica.pools()))
        self.world.hub.faults.fail_next(replicas.memory.Fault.UNAVAILABLE, operation="snapshot")
        self.assertIs(StepOutcome.DISCONNECTED, replica.replicator.step())
        self.world.delete("a")
        self.world.delete("k0000")
        self.world.clock.pass_seconds(1)
        replica.catch_up()
        self.assertEqual({f"k{n:04}": n for n in range(1, 1500)}, replica.pools())

    def test_a_schema_that_is_not_migrated_is_waited_for(self):
        class Unmigrated(replicas.memory.MemorySynchronizer):
            migrated = False

            def open(self):
                if not self.migrated:
                    raise errors.SchemaMismatch("memory", "none", "1")
                super().open()

        replica = self.world.replica(driver=Unmigrated(shared_hub=self.world.hub))
        self.assertIs(StepOutcome.DISCONNECTED, replica.replicator.step())
        self.assertIn("db sync", replica.status.detail)
        replica.driver.migrated = True
        self.world.clock.pass_seconds(1)
        replica.catch_up()
        self.assertEqual({"a": 1}, replica.pools())


class TestCollection(testtools.TestCase):
    def test_old_tombstones_leave_back_end_and_store_and_the_feed_goes_on(self):
        world = replicas.World()
        replica = world.replica(collect_interval_seconds=60, collect_keep_seconds=600)
        replica.catch_up()
        world.put("a", 1)
        world.delete("a")
        world.put("b", 2)
        replica.catch_up()
        self.assertEqual(1, replica.store.tombstone_count)
        for _ in range(12):
            world.clock.pass_seconds(60)
            replica.catch_up()
        self.assertEqual(0, world.hub.statistics()["tombstones"])
        self.assertEqual(0, replica.store.tombstone_count)
        self.assertEqual({"b": 2}, replica.pools())
        self.assertEqual({}, replica.status.resyncs)
        world.put("a", 3)
        replica.catch_up()
        self.assertEqual({"a": 3, "b": 2}, replica.pools())

    def test_the_beat_of_a_dead_process_is_removed_and_that_of_a_living_one_is_not(self):
        world = replicas.World()
        options = {"collect_interval_seconds": 60, "silent_heartbeat_seconds": 300}
        living, dead = world.replica("living", **options), world.replica("dead", **options)
        dead.catch_up()
        living.catch_up()
        buried = []
        living.replicator.subscribe(
            lambda changes: buried.extend(
                change.record.key.key for change in changes if change.record.deleted
            )
        )
        for _ in range(5):
            world.clock.pass_seconds(60)
            living.catch_up()
        self.assertEqual({"living", "dead"}, self._beats(living))
        world.clock.pass_seconds(60)
        living.catch_up()
        living.catch_up()
        self.assertEqual({"living"}, self._beats(living))
        self.assertEqual(["dead"], buried)
        # It was only paused: its next beat stands again.
        dead.catch_up()
        living.catch_up()
        self.assertEqual({"living", "dead"}, self._beats(living))
        self.assertTrue(dead.replicator.alive(1))

    def _beats(self, replica):
        return set(replica.store.snapshot().namespace("schedulers").row_keys())


class TestGeneration(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.world = replicas.World()
        for number in range(1500):
            self.world.put(f"k{number:04}", number)
        self.replica = self.world.replica()
        self.replica.catch_up()

    def test_it_stays_while_the_feed_is_followed(self):
        before = self.replica.replicator.generation
        self.world.put("a", 1)
        self.world.hub.faults.go_down()
        self.replica.replicator.step()
        self.world.hub.faults.come_up()
        self.world.clock.pass_seconds(1)
        self.replica.catch_up()
        self.assertEqual(before, self.replica.replicator.generation)

    def test_a_half_built_store_cannot_be_taken_for_the_proved_one(self):
        self.world.hub.begin_epoch()
        for number in range(1500):
            self.world.put(f"k{number:04}", number)
        generations = [self.replica.replicator.generation]
        self.assertIs(StepOutcome.RESYNC, self.replica.replicator.step())
        self.replica.replicator.step()
        generations.append(self.replica.replicator.generation)
        half = self.replica.store.snapshot().namespace("pools")
        self.assertEqual(1000, len(half))
        self.replica.catch_up()
        generations.append(self.replica.replicator.generation)
        self.assertTrue(self.replica.replicator.alive(1))
        self.assertEqual(3, len(set(generations)), generations)

    def test_a_rebuild_that_is_cut_and_begun_again_changes_it(self):
        self.world.hub.begin_epoch()
        for number in range(1500):
            self.world.put(f"k{number:04}", number)
        self.replica.replicator.step()
        self.replica.replicator.step()
        before = self.replica.replicator.generation
        self.world.hub.begin_epoch()
        self.world.put("a", 1)
        self.assertIs(StepOutcome.RESYNC, self.replica.replicator.step())
        self.replica.replicator.step()
        self.assertIs(State.SNAPSHOT, self.replica.status.state)
        self.assertNotEqual(before, self.replica.replicator.generation)


class TestThread(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.world = replicas.World()
        self.replica = self.world.replica(
            clock=time.monotonic,
            wait_seconds=0.05,
            canary_interval_seconds=0.05,
            silence_seconds=0.5,
            reconnect_min_seconds=0.01,
            reconnect_max_seconds=0.05,
        )
        self.addCleanup(self.replica.replicator.stop)

    def _eventually(self, condition, what):
        patience.wait_until(
            condition, PATIENCE_SECONDS, lambda: f"{what}; {self.replica.status}", 0.005
        )

    def test_the_thread_follows_and_wait_until_sees_it(self):
        self.replica.replicator.start()
        record = self.world.put("a", 1)
        self.assertTrue(self.replica.replicator.wait_until(record.version, PATIENCE_SECONDS))
        self.assertEqual({"a": 1}, self.replica.pools())
        self._eventually(lambda: self.replica.replicator.alive(1), "alive")
        self.assertTrue(self.replica.status.thread_alive)

    def test_wait_until_gives_up_after_its_time_out(self):
        self.replica.replicator.start()
        began = time.monotonic()
        self.assertFalse(self.replica.replicator.wait_until(10_000, 0.1))
        self.assertThat(time.monotonic() - began, testtools.matchers.LessThan(5))

    def test_stop_ends_the_thread_and_takes_the_beat_away(self):
        self.replica.replicator.start()
        self._eventually(lambda: self.replica.replicator.alive(1), "alive")
        names = {thread.name for thread in threading.enumerate()}
        self.assertIn("nodb-replicator-one", names)
        self.assertTrue(self.replica.replicator.stop())
        self.assertNotIn("nodb-replicator-one", {t.name for t in threading.enumerate()})
        key = records.RecordKey("schedulers", "one")
        self.assertTrue(self.world.writer.read([key])[key].deleted)
        self.assertTrue(self.replica.replicator.stop())

    def test_it_can_be_started_again_but_not_twice_at_once(self):
        self.replica.replicator.start()
        self.assertRaises(RuntimeError, self.replica.replicator.start)
        self.replica.replicator.stop()
        self.replica.replicator.start()
        record = self.world.put("a", 1)
        self.assertTrue(self.replica.replicator.wait_until(record.version, PATIENCE_SECONDS))

    def test_an_outage_is_survived(self):
        self.replica.replicator.start()
        self._eventually(lambda: self.replica.replicator.alive(1), "alive")
        self.world.hub.faults.go_down()
        self._eventually(lambda: self.replica.status.state is State.DISCONNECTED, "down")
        self.world.hub.faults.come_up()
        record = self.world.put("a", 1)
        self.assertTrue(self.replica.replicator.wait_until(record.version, PATIENCE_SECONDS))
        self._eventually(lambda: self.replica.status.state is State.FOLLOWING, "following")

    def test_a_feed_that_falls_silent_is_dead_within_its_bound_and_comes_back(self):
        self.replica.replicator.start()
        self._eventually(lambda: self.replica.replicator.alive(1), "alive")
        self.world.hub.faults.freeze()
        self._eventually(
            lambda: self.replica.status.resyncs.get(replicator_contract.SILENCE), "silence noticed"
        )
        self.world.hub.faults.thaw()
        record = self.world.put("a", 1)
        self.assertTrue(self.replica.replicator.wait_until(record.version, PATIENCE_SECONDS))

    def test_an_unexpected_error_is_logged_and_counted_and_the_thread_goes_on(self):
        failing = threading.Event()
        failing.set()

        def listener(changes):
            if failing.is_set():
                raise ZeroDivisionError("a fault of ours")

        self.replica.replicator.subscribe(listener)
        with self.assertLogs("nova_nodb_scheduler.synchronizer", "ERROR") as logs:
            self.replica.replicator.start()
            self.world.put("a", 1)
            self._eventually(lambda: self.replica.status.failures > 1, "failed")
            self._eventually(
                lambda: "a fault of ours" in self.replica.status.detail, "the status says why"
            )
        self.assertIn("ZeroDivisionError", logs.output[0])
        failing.clear()
        self._eventually(lambda: self.replica.replicator.alive(1), "alive again")
        self.assertEqual({"a": 1}, self.replica.pools())
        self.assertTrue(self.replica.status.thread_alive)

    def test_a_thread_that_dies_is_seen_in_status_and_log(self):
        self.replica.replicator.start()
        self._eventually(lambda: self.replica.replicator.alive(1), "alive")

        def leave(changes):
            raise SystemExit

        self.replica.replicator.subscribe(leave)
        with self.assertLogs("nova_nodb_scheduler.synchronizer", "CRITICAL"):
            self.world.put("a", 1)
            self._eventually(lambda: self.replica.status.thread_alive is False, "thread gone")
        self.assertIs(State.DEAD, self.replica.status.state)
        self.assertFalse(self.replica.replicator.alive(1000))
