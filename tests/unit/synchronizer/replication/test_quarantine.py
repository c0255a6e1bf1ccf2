# SPDX-License-Identifier: Apache-2.0
"""What cannot be read is kept aside by key and never stops the feed."""

import testtools
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.synchronizer.replication import ingest
from nova_nodb_scheduler.wire import codec
from tests.unit.synchronizer.replication import replicas

V2 = namespaces.SchemaVersion(2, 0)


def record(key, revision, namespace="pools"):
    return records.Record(records.RecordKey(namespace, key), revision, revision * 10, b"xyz")


class TestQuarantine(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.quarantine = ingest.Quarantine(limit=3)

    def test_a_record_is_kept_with_its_reason_and_version_but_without_its_bytes(self):
        self.assertTrue(self.quarantine.admit(record("a", 2), "it is bad"))
        [entry] = self.quarantine.entries()
        self.assertEqual(
            ingest.Quarantined(records.RecordKey("pools", "a"), 2, 20, "it is bad", 3), entry
        )

    def test_the_same_or_an_older_revision_is_not_counted_again(self):
        self.quarantine.admit(record("a", 2), "bad")
        self.assertFalse(self.quarantine.admit(record("a", 2), "bad"))
        self.assertFalse(self.quarantine.admit(record("a", 1), "bad"))
        self.assertTrue(self.quarantine.admit(record("a", 3), "worse"))
        self.assertEqual(2, self.quarantine.admitted)
        self.assertEqual(1, len(self.quarantine))

    def test_only_a_newer_revision_releases(self):
        self.quarantine.admit(record("a", 2), "bad")
        key = records.RecordKey("pools", "a")
        self.assertFalse(self.quarantine.release(key, 2))
        self.assertEqual({"a"}, self.quarantine.keys("pools"))
        self.assertTrue(self.quarantine.release(key, 3))
        self.assertEqual(set(), self.quarantine.keys("pools"))
        self.assertFalse(self.quarantine.release(key, 4))

    def test_keys_are_those_of_their_namespace_at_any_time(self):
        self.assertEqual(set(), self.quarantine.keys("pools"))
        self.quarantine.admit(record("a", 1), "bad")
        self.quarantine.admit(record("b", 1, "others"), "bad")
        self.assertEqual({"a"}, self.quarantine.keys("pools"))
        self.quarantine.admit(record("c", 1), "bad")
        self.assertEqual({"a", "c"}, self.quarantine.keys("pools"))
        self.assertEqual({"b"}, self.quarantine.keys("others"))

    def test_what_was_in_it_at_a_moment_stays_what_it_was(self):
        for key in ("a", "b", "c", "one too many"):
            self.quarantine.admit(record(key, 1), "bad")

        found = self.quarantine.at_this_moment()
        self.quarantine.release(records.RecordKey("pools", "a"), 2)
        self.quarantine.clear()

        self.assertEqual({"a", "b", "c"}, found.keys("pools"))
        self.assertEqual(set(), found.keys("others"))
        self.assertTrue(found.overflowed("pools"))
        self.assertFalse(found.overflowed("others"))

    def test_beyond_the_limit_a_namespace_is_known_to_overflow(self):
        for number in range(3):
            self.quarantine.admit(record(f"k{number}", 1), "bad")
        self.assertFalse(self.quarantine.overflowed("pools"))
        self.quarantine.admit(record("k3", 1), "bad")
        self.assertTrue(self.quarantine.overflowed("pools"))
        self.assertFalse(self.quarantine.overflowed("others"))
        self.assertEqual(3, len(self.quarantine))
        self.assertEqual({"pools": 4}, self.quarantine.count_by_namespace())
        self.quarantine.admit(record("k1", 2), "a key that is in may become newer")
        self.assertEqual(3, len(self.quarantine))
        self.quarantine.clear()
        self.assertFalse(self.quarantine.overflowed("pools"))


class TestUnreadableRecordsInTheFeed(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.world = replicas.World()
        self.replica = self.world.replica()
        self.quarantine = self.replica.replicator.quarantine

    def _reason(self, key, namespace="pools"):
        return self.quarantine.get(records.RecordKey(namespace, key)).reason

    def test_garbage_is_kept_aside_and_what_follows_is_applied(self):
        self.replica.catch_up()
        self.world.put_bytes("bad", b"\x00garbage")
        self.world.put("good", 1)
        self.replica.catch_up()
        self.assertEqual({"good": 1}, self.replica.pools())
        self.assertEqual({"bad"}, self.quarantine.keys("pools"))
        self.assertEqual(1, self.replica.status.quarantined)
        self.assertEqual({}, self.replica.status.resyncs)
        self.assertTrue(self.replica.replicator.alive(1))

    def test_garbage_in_the_snapshot_is_kept_aside(self):
        self.world.put_bytes("bad", b"")
        self.world.put("good", 1)
        self.replica.catch_up()
        self.assertEqual({"good": 1}, self.replica.pools())
        self.assertEqual({"bad"}, self.quarantine.keys("pools"))

    def test_another_major_version_is_not_read_and_a_newer_minor_one_is(self):
        state = {"free": 4, "unheard_of": [1]}
        self.world.put_bytes("major", codec.encode(state, V2))
        self.world.put_bytes("minor", codec.encode(state, namespaces.SchemaVersion(1, 9)))
        self.replica.catch_up()
        self.assertEqual({"minor": 4}, self.replica.pools())
        self.assertIn("2.0", self._reason("major"))
        stored = self.replica.store.snapshot().namespace("pools").get("minor")
        self.assertEqual(state, stored.state)

    def test_a_value_its_column_cannot_hold_is_kept_aside(self):
        self.world.put_bytes("bad", codec.encode({"free": "many"}, replicas.V1))
        self.replica.catch_up()
        self.assertIn("free", self._reason("bad"))

    def test_a_namespace_nobody_declared_is_kept_aside_until_it_is_deleted(self):
        self.world.put_bytes("x", codec.encode({}, replicas.V1), "unheard_of")
        self.replica.catch_up()
        self.assertIn("unheard_of", self._reason("x", "unheard_of"))
        key = records.RecordKey("unheard_of", "x")
        self.world.writer.write([records.Write(key, 1, deleted=True)])
        self.replica.catch_up()
        self.assertEqual(0, len(self.quarantine))

    def test_an_older_good_state_is_marked_until_a_readable_newer_one_comes(self):
        self.world.put("a", 1)
        self.replica.catch_up()
        self.world.put_bytes("a", b"\x00")
        self.replica.catch_up()
        self.assertEqual({"a": 1}, self.replica.pools())
        self.assertEqual({"a"}, self.quarantine.keys("pools"))
        self.world.put("a", 2)
        self.replica.catch_up()
        self.assertEqual({"a": 2}, self.replica.pools())
        self.assertEqual(set(), self.quarantine.keys("pools"))

    def test_a_deletion_ends_the_quarantine_of_its_key(self):
        self.world.put_bytes("a", b"\x00")
        self.replica.catch_up()
        self.world.delete("a")
        self.replica.catch_up()
        self.assertEqual(0, len(self.quarantine))

    def test_a_resync_looks_at_everything_again(self):
        self.world.put_bytes("still", b"\x00")
        self.world.put_bytes("gone", b"\x00")
        self.replica.catch_up()
        self.world.hub.begin_epoch()
        self.world.put_bytes("still", b"\x00")
        self.replica.catch_up()
        self.assertEqual({"still"}, self.quarantine.keys("pools"))

    def test_garbage_older_than_what_the_store_holds_changes_nothing(self):
        good = self.world.put("a", 1)
        self.replica.catch_up()
        [taken] = ingest.Ingester(self.replica.store, replicas.DECLARED, self.quarantine).take(
            [records.Record(good.key, good.revision, good.version, b"\x00")]
        )
        self.assertEqual(ingest.Ingested((), ()), taken)
        self.assertEqual(0, len(self.quarantine))

    def test_no_bytes_whatever_stop_the_feed(self):
        @settings(max_examples=300, deadline=None)
        @given(
            st.lists(
                st.binary(max_size=40)
                | st.binary(max_size=40).map(lambda b: b"\x01" + b)
                | st.sampled_from(
                    [
                        b'\x01{"s":"1.0","d":{"free":1e999}}',
                        b'\x01{"s":"1.0","d":{"free":99999999999999999999}}',
                        b'\x01{"s":"1.0","d":{"free":[1]}}',
                        b'\x01{"s":"1.0","d":{"free":{"x":null}}}',
                        b'\x01{"s":"1.0","d":{"free":1.5}}',
                    ]
                ),
                max_size=5,
            )
        )
        def check(payloads):
            world = replicas.World()
            replica = world.replica()
            for number, payload in enumerate(payloads):
                world.put_bytes(f"bad{number}", payload)
            replica.replicator.step()
            world.put("good", 7)
            for number, payload in enumerate(payloads):
                world.put_bytes(f"late{number}", payload)
            replica.catch_up()
            self.assertEqual(7, replica.pools().get("good"))
            kept = replica.replicator.quarantine.keys("pools")
            read = set(replica.pools())
            self.assertEqual(
                {f"{kind}{number}" for number in range(len(payloads)) for kind in ("bad", "late")},
                kept | (read - {"good"}),
            )
            self.assertEqual(set(), kept & read)

        check()
