# SPDX-License-Identifier: Apache-2.0
"""A cell is trusted only since a sweep that one of its reporters was there for."""

import itertools

import testtools

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.reporting import state_proof
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.replication import ingest
from nova_nodb_scheduler.wire import codec

EPOCH = "epoch"
CELL = "11111111-1111-1111-1111-111111111111"
NOW = 1000.0


class TestProofOfABeginning(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.store = host_state_store.HostStateStore(known_namespaces.BUILT_IN, codec.decode_state)
        self.versions = itertools.count(1)
        options = state_proof.ProofOptions(
            feed_bound_seconds=10.0, reporter_bound_seconds=15.0, unreported_grace_seconds=3.0
        )
        self.judge = state_proof.StateJudge(
            lambda bound: True, lambda: EPOCH, ingest.Quarantine(10), lambda: NOW, options
        )

    def hold(self, namespace, key, state):
        version = next(self.versions)
        record = records.Record(
            records.RecordKey(namespace.name, key),
            version,
            version,
            codec.encode(state, namespace.schema),
        )
        self.store.apply(records.Change(record, state))

    def swept(self, at):
        state = {"cell": CELL, "epoch": EPOCH, "swept_from": at, "unreported": 0}
        self.hold(known_namespaces.CELLS, CELL, state)

    def beat(self, name, since, beat_at=NOW):
        state = {
            "cell": CELL,
            "guards": [CELL],
            "binary": "conductor",
            "since": since,
            "beat_at": beat_at,
            "behind_seconds": {},
        }
        self.hold(known_namespaces.REPORTERS, name, state)

    def reason(self):
        return self.judge.judge(self.store.snapshot(), [CELL]).missing.get(CELL)

    def test_a_reporter_that_began_after_the_last_sweep_proves_nothing(self):
        self.swept(at=900.0)
        self.beat("a", since=950.0)

        self.assertEqual(state_proof.UnprovedReason.UNSWEPT, self.reason())

    def test_a_sweep_since_its_beginning_proves_the_cell(self):
        self.swept(at=960.0)
        self.beat("a", since=950.0)

        self.assertIsNone(self.reason())

    def test_one_reporter_that_was_there_covers_another_that_began_later(self):
        self.swept(at=900.0)
        self.beat("a", since=800.0)
        self.beat("b", since=950.0)

        self.assertIsNone(self.reason())

    def test_a_silent_reporter_is_told_before_the_sweep_that_is_missing(self):
        self.swept(at=900.0)
        self.beat("a", since=950.0, beat_at=NOW - 16.0)

        self.assertEqual(state_proof.UnprovedReason.SILENT_REPORTER, self.reason())
