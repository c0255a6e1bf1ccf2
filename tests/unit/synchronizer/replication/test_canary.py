# SPDX-License-Identifier: Apache-2.0
"""The canary proves a moment of the feed, whatever happens to its own write."""

import testtools
from testtools import matchers

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.replication import canary, replicator_contract
from nova_nodb_scheduler.wire import codec
from tests.unit.synchronizer.replication import replicas

KEY = records.RecordKey(known_namespaces.SCHEDULERS.name, "one")


class TestCanary(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.world = replicas.World()
        self.replica = self.world.replica(
            beat=lambda: {"plugin_version": "9", "fallbacks": {"cold cell": 3}}
        )

    def _beat(self):
        record = self.world.writer.read([KEY]).get(KEY)
        return None if record is None or record.deleted else codec.decode(record.payload).state

    def test_the_beat_tells_the_replicators_figures_and_the_adapters(self):
        self.replica.catch_up()
        beat = self._beat()
        self.assertThat(
            beat,
            matchers.ContainsDict(
                {
                    "plugin_version": matchers.Equals("9"),
                    "fallbacks": matchers.Equals({"cold cell": 3}),
                    "sequence": matchers.Equals(1),
                    "epoch": matchers.Equals(self.world.hub.head().epoch),
                    "sent_monotonic_seconds": matchers.Equals(1000.0),
                }
            ),
        )
        self.assertThat(
            set(beat),
            matchers.MatchesAll(
                *(matchers.Contains(name) for name in ("host", "pid", "started_at", "nonce"))
            ),
        )

    def test_who_reads_a_large_snapshot_says_now_and_then_that_it_lives(self):
        for number in range(5):
            self.world.put(f"p{number}", number)
        while self.replica.status.snapshots == 0:
            self.assertIsNone(self._beat())
            self.replica.replicator.step()
            self.world.clock.pass_seconds(3.0)

        self.assertEqual(1, self._beat()["sequence"])
        # It proves nothing.
        self.assertIsNone(self.replica.status.proof_age_seconds)
        self.replica.catch_up()
        self.assertIsNotNone(self.replica.status.proof_age_seconds)

    def test_one_is_sent_per_interval_and_none_between(self):
        self.replica.catch_up()
        sequences = []
        for _ in range(10):
            self.world.clock.pass_seconds(0.5)
            self.replica.catch_up()
            sequences.append(self._beat()["sequence"])
        self.assertEqual([1, 1, 1, 2, 2, 2, 2, 3, 3, 3], sequences)

    def test_proof_is_the_moment_it_was_sent_and_lag_its_flight(self):
        self.replica.driver.faults.freeze()
        self.replica.replicator.step()
        self.replica.replicator.step()
        self.assertIsNone(self.replica.status.proof_age_seconds)
        self.world.clock.pass_seconds(3)
        self.assertEqual(3, self.replica.status.lag_seconds)  # at least that
        self.replica.driver.faults.thaw()
        self.replica.replicator.step()
        self.assertEqual(3, self.replica.status.proof_age_seconds)
        self.assertEqual(3, self.replica.status.lag_seconds)
        self.assertTrue(self.replica.replicator.alive(3))
        self.assertFalse(self.replica.replicator.alive(2.9))

    def test_a_lagging_feed_is_not_a_dead_one(self):
        replica = self.world.replica("two", batch_limit=1)
        for _ in range(2):
            replica.replicator.step()
        for number in range(50):
            self.world.put("busy", number)
            self.world.put(f"k{number}", number)
        for _ in range(40):
            self.world.clock.pass_seconds(1)
            self.assertIs(replicator_contract.StepOutcome.MORE, replica.replicator.step())
        # Far beyond the bound; unproved, but no reason to read everything again.
        self.assertFalse(replica.replicator.alive(10))
        replica.catch_up()
        self.assertEqual({}, replica.status.resyncs)
        self.assertTrue(replica.replicator.alive(1))

    def test_a_reply_that_was_lost_after_the_write_does_not_make_a_second_beat(self):
        self.replica.driver.faults.fail_next(memory.Fault.REPLY_LOST)
        self.replica.catch_up()
        self.assertTrue(self.replica.replicator.alive(1))
        self.assertEqual(1, self.world.writer.read([KEY])[KEY].revision)

    def test_a_request_that_was_lost_is_sent_again(self):
        self.replica.driver.faults.fail_next(memory.Fault.REQUEST_LOST)
        self.replica.catch_up()
        self.assertTrue(self.replica.replicator.alive(1))

    def test_writes_that_never_arrive_do_not_make_the_feed_dead(self):
        self.replica.driver.faults.fail_next(memory.Fault.REQUEST_LOST, count=30)
        for _ in range(20):
            self.replica.catch_up()
            self.world.clock.pass_seconds(2)
        self.assertEqual({}, self.replica.status.resyncs)
        self.replica.catch_up()
        self.assertTrue(self.replica.replicator.alive(1))

    def test_an_earlier_state_of_the_beat_proves_nothing(self):
        self.world.put_bytes(KEY.key, b"left by a crash", KEY.namespace)
        earlier = self.world.writer.read([KEY])[KEY]
        clock = self.world.clock
        sent = canary.Canary(
            self.world.writer,
            known_namespaces.SCHEDULERS,
            "one",
            interval_seconds=2,
            bound_seconds=10,
            clock=clock,
            heartbeat=dict,
        )
        sent.send_if_due()
        clock.pass_seconds(1)
        self.assertIsNone(sent.observe([earlier]))
        self.assertIsNone(sent.proved_at)
        self.assertEqual(1, sent.observe([self.world.writer.read([KEY])[KEY]]))
        self.assertEqual(1000, sent.proved_at)

    def test_a_beat_left_by_a_crash_is_taken_over(self):
        self.world.put_bytes(KEY.key, b"whatever", KEY.namespace)
        self.replica.catch_up()
        self.assertEqual(1, self._beat()["sequence"])
        self.assertTrue(self.replica.replicator.alive(1))

    def test_a_beat_that_was_deleted_is_written_again(self):
        self.replica.catch_up()
        standing = self.world.writer.read([KEY])[KEY]
        self.world.writer.write([records.Write(KEY, standing.revision, deleted=True)])
        self.world.clock.pass_seconds(2)
        self.replica.catch_up()
        self.assertEqual(2, self._beat()["sequence"])
        self.assertTrue(self.replica.replicator.alive(1))

    def test_a_second_process_with_the_same_identity_does_not_hide_a_dead_feed(self):
        twin = self.world.replica("one")
        self.replica.catch_up()
        self.replica.driver.faults.freeze()
        for _ in range(8):
            self.world.clock.pass_seconds(2)
            twin.catch_up()
            self.replica.replicator.step()
        self.assertTrue(twin.replicator.alive(2))
        self.assertFalse(self.replica.replicator.alive(10))
        self.assertEqual(1, self.replica.status.resyncs[replicator_contract.SILENCE])
