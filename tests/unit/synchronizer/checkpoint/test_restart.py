# SPDX-License-Identifier: Apache-2.0
"""A scheduler that begins with a checkpoint believes what one that slept since would."""

import os
import pathlib
import shutil
import threading

import fixtures
import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.checkpoint import checkpoint_contract, checkpoint_file
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.replication import replicator_contract
from tests.unit.synchronizer.checkpoint import restarts

RefusalReason = checkpoint_contract.CheckpointRefusalReason
WriteOutcome = checkpoint_contract.WriteOutcome


class Case(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path, "checkpoint")
        self.now = 1000.0
        self.hub = memory.MemoryHub(clock=lambda: self.now)
        self.backend = self.client()
        self.backend.open()
        self.log = self.useFixture(fixtures.FakeLogger())

    def client(self):
        return memory.MemorySynchronizer(shared_hub=self.hub)

    def scheduler(self, **more):
        made = restarts.scheduler(
            self.client(), str(self.directory), clock=lambda: self.now, **more
        )
        self.addCleanup(made.end)
        return made

    def put(self, key, free, zone="a", namespace=restarts.POOLS, **more):
        restarts.put(self.backend, namespace, key, {"free": free, "zone": zone, **more})

    def delete(self, key, namespace=restarts.POOLS):
        restarts.put(self.backend, namespace, key, None)

    def saved(self, **more):
        """Return the free amounts that a checkpoint holds now, written by a process that ended."""
        first = self.scheduler(**more)
        first.catch_up()
        self.assertIs(WriteOutcome.WRITTEN, first.save())
        first.end()
        return first

    def restarted(self, **more):
        made = self.scheduler(identity="two", **more)
        made.catch_up()
        return made

    def free(self, scheduler):
        return {key: state["free"] for key, state in scheduler.states().items()}

    def refused(self, reason, **more):
        """Restart, and find that all was read from the back end for a reason."""
        made = self.restarted(**more)
        self.assertEqual([reason.value], made.meter.starts)
        self.assertEqual(1, self.log.output.count(f"all is read from memory: {reason.value}"))
        self.assertTrue(made.replicator.alive(1))
        return made


class TestRestart(Case):
    def test_a_restart_decodes_nothing_and_holds_the_same(self):
        for number in range(3000):
            self.put(f"k{number:04}", number, zone=f"z{number % 7}", on=number % 2 == 0)
        first = self.saved()
        before = first.store.snapshot().namespace("pools")
        made = self.scheduler(identity="two")
        while not isinstance(made.replicator.followed(), records.Cursor):
            made.replicator.step()
        self.assertEqual([], made.decoded)
        after = made.store.snapshot().namespace("pools")
        self.assertEqual(set(before.keys()), set(after.keys()))
        for key in before.row_keys():
            self.assertEqual(before.get(key), after.get(key))
            self.assertEqual(before.get(key).payload, after.get(key).payload)
            self.assertEqual(before.state(key), after.state(key))
        self.assertEqual(before.lookup("zone", "z3"), after.lookup("zone", "z3"))
        for name in ("free", "on"):
            self.assertEqual(
                dict(zip(before.row_keys(), before.column(name).tolist(), strict=True)),
                dict(zip(after.row_keys(), after.column(name).tolist(), strict=True)),
            )
        self.assertEqual([checkpoint_contract.RESTORED], made.meter.starts)
        self.assertIn("the local checkpoint", self.log.output)

    def test_what_was_written_and_removed_since_comes_by_the_feed(self):
        for key in ("kept", "changed", "gone", "back"):
            self.put(key, 1)
        self.saved()
        self.put("changed", 2)
        self.put("new", 3)
        self.delete("gone")
        self.delete("back")
        self.put("back", 4)
        made = self.restarted()
        self.assertEqual({"kept": 1, "changed": 2, "new": 3, "back": 4}, self.free(made))
        self.assertEqual([checkpoint_contract.RESTORED], made.meter.starts)

    def test_sets_of_texts_and_digests_without_a_form_are_decoded_again(self):
        members = {"name": "g", "members": ["x", "y"]}
        restarts.put(self.backend, restarts.GROUPS, "g", members)
        claims = known_namespaces.CLAIM_RECORDS
        held = {
            "c": {
                "id": "i",
                "owner": "o",
                "state": "pending",
                "resources": {"VCPU": 1},
                "lease_until": 5.0,
            }
        }
        restarts.put(self.backend, claims, "empty", {"claims": {}})
        restarts.put(self.backend, claims, "held", {"claims": held})
        first = self.saved()
        made = self.restarted()
        group = made.store.snapshot().namespace("groups")
        self.assertEqual(members, group.state("g"))
        self.assertEqual(("g",), group.lookup("name", "g"))
        for key in ("empty", "held"):
            self.assertEqual(
                str(first.store.snapshot().namespace("claims").digest(key)),
                str(made.store.snapshot().namespace("claims").digest(key)),
            )
        self.assertIsNone(made.store.snapshot().namespace("claims").digest("empty"))

    def test_nothing_is_proved_before_the_feed_was_followed(self):
        self.put("a", 1)
        self.saved()
        made = self.scheduler(identity="two")
        while made.replicator.followed() is None:
            self.assertFalse(made.replicator.alive(1e9))
            made.replicator.step()
        self.assertFalse(made.replicator.alive(1e9))
        made.catch_up()
        self.assertTrue(made.replicator.alive(1))

    def test_a_connection_that_is_lost_before_the_sweep_ended_does_not_put_it_off(self):
        self.put("a", 1)
        self.saved()
        made = self.scheduler(identity="two")
        while made.replicator.followed() is None:
            made.replicator.step()
        self.assertEqual(0, made.replicator.status().sweeps)
        self.hub.faults.go_down()
        self.assertIs(replicator_contract.StepOutcome.DISCONNECTED, made.replicator.step())
        self.hub.faults.come_up()
        # Behind the pause before it tries again, and long before a sweep's interval.
        self.now += 30.0
        made.catch_up()
        # Soon, and not at once: it may be the sweep that the back end does not bear.
        for _ in range(80):
            self.assertEqual(0, made.replicator.status().sweeps)
            self.now += 1.0
            made.catch_up()
            if made.replicator.status().sweeps:
                break
        self.assertEqual(1, made.replicator.status().sweeps)

    def test_a_whole_sweep_begins_at_once_behind_a_restored_start(self):
        self.put("a", 1)
        self.saved()
        made = self.restarted()
        for _ in range(10):
            self.now += 1.0
            made.catch_up()
        self.assertEqual(1, made.replicator.status().sweeps)

    def test_a_back_end_that_is_away_is_waited_for_and_the_checkpoint_used_then(self):
        self.put("a", 1)
        self.saved()
        self.hub.faults.go_down()
        made = self.scheduler(identity="two")
        self.assertIs(replicator_contract.StepOutcome.DISCONNECTED, made.replicator.step())
        self.hub.faults.come_up()
        self.now += 60.0
        made.catch_up()
        self.assertEqual([checkpoint_contract.RESTORED], made.meter.starts)
        self.assertEqual({"a": 1}, self.free(made))

    def test_without_a_directory_nothing_is_there_and_all_is_read(self):
        self.put("a", 1)
        made = self.refused(RefusalReason.ABSENT)
        self.assertEqual({"a": 1}, self.free(made))

    def test_a_listener_that_wants_the_records_gets_them_from_the_back_end(self):
        self.put("a", 1)
        self.saved()
        made = self.scheduler(identity="two")
        told = []
        made.replicator.subscribe(lambda changes: told.extend(change.key.key for change in changes))
        made.catch_up()
        self.assertIn("a", told)
        self.assertEqual([RefusalReason.NOT_TOLD.value], made.meter.starts)


class TestPast(Case):
    """The back end is not where it was."""

    def test_another_epoch_is_not_believed_though_versions_overlap(self):
        for number in range(5):
            self.put("a", number)
        self.saved()
        self.hub.begin_epoch()
        for number in range(10, 30):
            self.put("b", number)
        made = self.refused(RefusalReason.OTHER_EPOCH)
        self.assertEqual({"b": 29}, self.free(made))

    def test_a_head_behind_the_cursor_is_not_believed_and_the_file_goes(self):
        self.put("a", 1)
        backup = self.hub.backup()
        self.put("a", 2)
        self.put("lost", 3)
        self.saved()
        self.hub.restore(backup)
        made = self.refused(RefusalReason.HEAD_BEHIND_CURSOR)
        self.assertEqual({"a": 1}, self.free(made))
        self.assertFalse((self.directory / checkpoint_file.NAME).exists())

    def test_a_restored_past_that_was_written_on_is_found_by_what_was_written_last(self):
        self.put("a", 1)
        backup = self.hub.backup()
        self.put("lost", 3)
        self.saved()
        self.hub.restore(backup)
        for number in range(20):
            self.put("b", number)
        made = self.refused(RefusalReason.LOST_WRITES)
        self.assertEqual({"a": 1, "b": 19}, self.free(made))
        self.assertFalse((self.directory / checkpoint_file.NAME).exists())

    def test_writes_that_were_lost_from_a_batch_that_was_being_taken_are_found(self):
        first = self.scheduler()
        first.catch_up()
        saved = []

        def save_once(_changes):
            # The store holds the batch, and the cursor stands before it.
            if not saved:
                saved.append(first.save())

        first.replicator.subscribe(save_once)
        self.put("a", 1)
        backup = self.hub.backup()
        self.put("lost", 3)
        first.replicator.step()
        self.assertEqual([WriteOutcome.WRITTEN], saved)
        first.end()
        self.hub.restore(backup)
        for number in range(20):
            self.put("b", number)
        made = self.refused(RefusalReason.LOST_WRITES)
        self.assertEqual({"a": 1, "b": 19}, self.free(made))

    def test_a_restored_past_with_other_states_at_the_same_revisions_is_found(self):
        self.put("a", 1)
        backup = self.hub.backup()
        self.put("a", 2)
        first = self.saved()
        # Its beat went with the backup, too.
        self.hub.restore(backup)
        self.put("a", 7)
        restarts.put(
            self.backend,
            known_namespaces.SCHEDULERS,
            "one",
            dict(first.states(known_namespaces.SCHEDULERS)["one"]),
        )
        for number in range(20):
            self.put("b", number)
        made = self.refused(RefusalReason.LOST_WRITES)
        self.assertEqual(7, self.free(made)["a"])

    def test_a_collected_past_is_not_believed(self):
        self.put("a", 1)
        self.put("gone", 1)
        self.saved()
        self.delete("gone")
        self.now += 100.0
        self.hub.collect(0.0)
        made = self.refused(RefusalReason.HISTORY_TRUNCATED)
        self.assertEqual({"a": 1}, self.free(made))

    def test_a_scheduler_that_finds_an_older_past_removes_the_checkpoint(self):
        self.put("a", 1)
        backup = self.hub.backup()
        self.put("a", 2)
        first = self.scheduler()
        first.catch_up()
        first.save()
        self.hub.restore(backup)
        first.replicator.step()
        self.assertFalse((self.directory / checkpoint_file.NAME).exists())

    def test_a_writer_that_was_about_to_rename_does_not_bring_a_given_up_past_back(self):
        self.put("a", 1)
        backup = self.hub.backup()
        self.put("a", 2)

        def go_back(step):
            if step == checkpoint_file.SYNCED:
                self.hub.restore(backup)
                first.replicator.step()

        first = self.scheduler(on_step=go_back)
        first.catch_up()
        self.assertIs(WriteOutcome.NOT_READY, first.save())
        self.assertEqual([f"{checkpoint_file.NAME}.lock"], sorted(os.listdir(self.directory)))

    def test_a_snapshot_of_a_store_that_is_being_rebuilt_is_not_written(self):
        self.put("a", 1)
        first = self.scheduler()
        self.assertIs(WriteOutcome.NOT_READY, first.save())
        first.catch_up()
        self.assertIs(WriteOutcome.WRITTEN, first.save())

    def test_records_that_are_kept_aside_keep_a_checkpoint_from_being_written(self):
        self.put("a", 1)
        first = self.scheduler()
        first.catch_up()
        name = records.RecordKey("pools", "a")
        [standing] = self.backend.read([name]).values()
        self.backend.write([records.Write(name, standing.revision, b"\x07nonsense")])
        first.catch_up()
        self.assertIs(WriteOutcome.NOT_READY, first.save())
        self.put("a", 2)
        first.catch_up()
        self.assertIs(WriteOutcome.WRITTEN, first.save())

    def test_an_unreadable_record_that_came_since_is_kept_aside(self):
        self.put("a", 1)
        self.saved()
        name = records.RecordKey("pools", "a")
        [standing] = self.backend.read([name]).values()
        self.backend.write([records.Write(name, standing.revision, b"\x07nonsense")])
        made = self.restarted()
        self.assertEqual({"a"}, made.replicator.quarantine.keys("pools"))

    def test_another_driver_or_other_namespaces_are_another_code(self):
        self.put("a", 1)
        self.saved()
        made = self.refused(
            RefusalReason.OTHER_CODE,
            declared=restarts.DECLARED[:-2] + (known_namespaces.SCHEDULERS,),
        )
        self.assertEqual({"a": 1}, self.free(made))

    def test_a_fault_in_the_middle_of_a_start_is_no_second_try(self):
        self.put("a", 1)
        self.saved()
        made = self.scheduler(identity="two")

        def fail(*args):
            raise RuntimeError("a fault of ours")

        made.store.restore = fail
        self.assertRaises(RuntimeError, self._step_until_raised, made)
        made.catch_up()
        self.assertEqual({"a": 1}, self.free(made))
        self.assertEqual([RefusalReason.INTERRUPTED.value], made.meter.starts)

    def _step_until_raised(self, made):
        for _ in range(5):
            made.replicator.step()


class TestWriters(Case):
    def test_one_worker_writes_and_another_takes_over_when_it_ends(self):
        self.put("a", 1)
        one, two = self.scheduler(), self.scheduler(identity="two")
        one.catch_up()
        two.catch_up()
        self.assertIs(WriteOutcome.WRITTEN, one.save())
        self.assertIs(WriteOutcome.ANOTHER_WRITES, two.save())
        self.assertGreater(two.checkpoint.status.size_bytes, 0)
        one.end()
        self.assertIs(WriteOutcome.WRITTEN, two.save())

    def test_one_that_does_not_follow_its_feed_leaves_the_writing_to_another(self):
        self.put("a", 1)
        one, two = self.scheduler(), self.scheduler(identity="two")
        one.catch_up()
        one.save()
        two.catch_up()
        one.replicator._resync("silence")
        self.assertIs(WriteOutcome.NOT_READY, one.save())
        self.assertIs(WriteOutcome.WRITTEN, two.save())

    def test_a_worker_of_other_sources_neither_reads_nor_writes_one(self):
        self.put("a", 1)
        self.saved()
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova_nodb_scheduler.synchronizer.checkpoint.code_identity._LOADED_AT_SECONDS", 0.0
            )
        )
        made = self.refused(RefusalReason.OTHER_CODE)
        self.assertIs(WriteOutcome.FAILED, made.save())
        self.assertIn("restart the service", made.checkpoint.status.detail)

    def test_a_writer_that_is_killed_at_any_step_leaves_a_whole_file(self):
        class Killed(BaseException):
            pass

        for step in checkpoint_file.STEPS:
            self.put("a", 1)
            self.saved()
            self.put("a", 2)

            def kill(now, step=step):
                if now == step:
                    raise Killed

            first = self.scheduler(on_step=kill)
            first.catch_up()
            self.assertRaises(Killed, first.save)
            first.end()
            made = self.restarted()
            self.assertEqual({"a": 2}, self.free(made), step)
            self.assertEqual([checkpoint_contract.RESTORED], made.meter.starts, step)
            made.end()

    def test_a_directory_that_was_removed_or_replaced_is_made_and_used_anew(self):
        self.put("a", 1)
        first = self.scheduler()
        first.catch_up()
        first.save()
        shutil.rmtree(self.directory)
        self.assertIs(WriteOutcome.WRITTEN, first.save())
        self.directory.rename(self.directory.with_name("elsewhere"))
        self.directory.mkdir(mode=0o700)
        self.assertIs(WriteOutcome.WRITTEN, first.save())
        self.assertTrue((self.directory / checkpoint_file.NAME).exists())

    def test_two_writers_at_once_leave_a_whole_file_though_somebody_removed_the_lock(self):
        self.put("a", 1)

        def meanwhile(step):
            if step == checkpoint_file.WRITTEN:
                (self.directory / f"{checkpoint_file.NAME}.lock").unlink()
                self.assertIs(WriteOutcome.WRITTEN, two.save())

        one, two = self.scheduler(on_step=meanwhile), self.scheduler(identity="two")
        one.catch_up()
        two.catch_up()
        self.assertIs(WriteOutcome.FAILED, one.save())
        one.end()
        two.end()
        self.assertEqual([checkpoint_contract.RESTORED], self.restarted().meter.starts)

    def test_a_full_disk_leaves_the_former_file_and_the_feed_goes_on(self):
        self.put("a", 1)
        self.saved()
        first = self.scheduler(least_free_bytes=1 << 60)
        first.catch_up()
        self.assertIs(WriteOutcome.FAILED, first.save())
        self.assertEqual(
            [checkpoint_file.NAME, f"{checkpoint_file.NAME}.lock"],
            sorted(os.listdir(self.directory)),
        )
        self.put("a", 2)
        first.catch_up()
        self.assertEqual({"a": 2}, self.free(first))
        first.end()
        self.assertEqual({"a": 2}, self.free(self.restarted()))

    def test_one_that_grows_too_large_is_not_written_nor_read(self):
        for number in range(300):
            self.put(f"k{number}", number, text="x" * 400)
        self.saved()
        first = self.scheduler(max_bytes=2000)
        first.catch_up()
        self.assertIs(WriteOutcome.TOO_LARGE, first.save())
        self.assertEqual([RefusalReason.TOO_LARGE.value], first.meter.starts)

    def test_a_stop_ends_a_checkpoint_that_is_being_written(self):
        self.put("a", 1)
        first = self.scheduler()
        first.catch_up()
        stopped = threading.Event()
        stopped.set()
        self.assertIs(WriteOutcome.NOT_READY, first.writer.attempt(stopped))
        self.assertEqual([f"{checkpoint_file.NAME}.lock"], sorted(os.listdir(self.directory)))

    def test_the_first_is_written_soon_and_the_next_an_interval_later(self):
        self.put("a", 1)
        first = self.scheduler(interval_seconds=300.0)
        first.catch_up()
        self.assertEqual(5.0, first.writer.due_in_seconds())
        first.save()
        self.assertEqual(300.0, first.writer.due_in_seconds())
        first.end()
        again = self.restarted(interval_seconds=300.0)
        self.assertEqual(300.0, again.writer.due_in_seconds())

    def test_the_thread_writes_by_itself_and_ends(self):
        self.put("a", 1)
        first = restarts.scheduler(self.client(), str(self.directory))
        self.addCleanup(first.end)
        first.catch_up()
        ticks = iter(range(10, 10_000, 10))
        writer = type(first.writer)(
            first.checkpoint, first.replicator.feed_moment, lambda: float(next(ticks))
        )
        written = threading.Event()
        first.meter.checkpoint_write = lambda outcome: written.set()
        writer.start()
        self.assertTrue(written.wait(60.0))
        self.assertTrue(writer.stop(60.0))
        self.assertTrue((self.directory / checkpoint_file.NAME).exists())

    def test_the_status_tells_time_size_outcome_and_how_it_began(self):
        self.put("a", 1)
        first = self.scheduler()
        first.catch_up()
        first.save()
        told = first.checkpoint.status
        self.assertEqual(restarts.WALL_SECONDS, told.made_at_seconds)
        self.assertEqual(os.stat(self.directory / checkpoint_file.NAME).st_size, told.size_bytes)
        self.assertEqual(("written", "", "absent"), (told.outcome, told.detail, told.start))
        first.end()
        self.assertEqual("restored", self.restarted().checkpoint.status.start)

    def test_a_back_end_that_goes_away_in_the_middle_costs_the_start_nothing_but_time(self):
        for number in range(5000):
            self.put(f"k{number}", number)
        self.saved()
        made = self.scheduler(
            identity="two",
            replication=replicator_contract.ReplicatorOptions(canary_interval_seconds=0.5),
        )
        made.replicator.step()
        self.now += 1.0
        self.hub.faults.go_down()
        self.assertIs(replicator_contract.StepOutcome.DISCONNECTED, made.replicator.step())
        self.hub.faults.come_up()
        self.now += 60.0
        made.catch_up()
        self.assertEqual(5000, len(self.free(made)))
        self.assertEqual([checkpoint_contract.RESTORED], made.meter.starts)
        self.assertNotIsInstance(made.checkpoint.open(), errors.NodbError)
