# SPDX-License-Identifier: Apache-2.0
"""A line does to any driver what a network does to a server, and tells who won a write."""

import multiprocessing

import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims, records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.simulator.schedulers import backend_line
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.drivers.memory import hub
from nova_nodb_scheduler.wire import codec

KEY = records.RecordKey(known_namespaces.CLAIM_RECORDS.name, "host")
PENDING, CONFIRMED = claims.ClaimState.PENDING, claims.ClaimState.CONFIRMED
SEEN = {"mine": PENDING, "other": PENDING}


def record(revision, states, settled=None):
    held = {
        consumer: claims.HeldClaim({}, state, f"id of {consumer}", "writer")
        for consumer, state in states.items()
    }
    state = claims.ClaimRecord("host", held, settled).to_state()
    return records.Record(
        KEY, revision, revision, codec.encode(state, known_namespaces.CLAIM_RECORDS.schema)
    )


class CauseTest(testtools.TestCase):
    def cause(self, standing):
        witness = backend_line.SeenClaims()
        witness.see([record(3, SEEN), None])
        return witness.cause(records.Write(KEY, 3, b""), standing)

    def test_a_claim_of_another_consumer(self):
        self.assertIs(backend_line.Cause.TAKEN, self.cause(record(4, {**SEEN, "third": PENDING})))

    def test_a_confirm(self):
        self.assertIs(
            backend_line.Cause.CONFIRMED, self.cause(record(4, {**SEEN, "other": CONFIRMED}))
        )

    def test_a_settlement(self):
        standing = record(4, {"mine": PENDING}, records.Cursor("e", 9))
        self.assertIs(backend_line.Cause.SETTLED, self.cause(standing))

    def test_a_release(self):
        self.assertIs(backend_line.Cause.RELEASED, self.cause(record(4, {"mine": PENDING})))
        self.assertIs(backend_line.Cause.RELEASED, self.cause(None))

    def test_the_first_claim_of_all(self):
        witness = backend_line.SeenClaims()
        lost = records.Write(KEY, 0, b"")
        self.assertIs(backend_line.Cause.TAKEN, witness.cause(lost, record(1, {"a": PENDING})))

    def test_what_never_passed_by_cannot_be_told(self):
        witness = backend_line.SeenClaims()
        lost = records.Write(KEY, 3, b"")
        self.assertIs(backend_line.Cause.OTHER, witness.cause(lost, record(4, SEEN)))


def write(namespace="claims", revision=0):
    return records.Write(records.RecordKey(namespace, "a"), revision, b"x")


class Cutting(memory.MemorySynchronizer):
    """A driver whose line is cut while a write is away."""

    line = None

    def write(self, writes):
        results = super().write(writes)
        if self.line is not None:
            self.line.set(backend_line.LineFault.CUT)
        return results


class BackendLineTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.line = backend_line.BackendLine(multiprocessing.get_context("spawn"))
        self.inner = Cutting(shared_hub=hub.MemoryHub())
        self.slept = []
        self.lined = backend_line.LinedSynchronizer(
            self.inner, self.line, timeout_seconds=7.0, sleep=self.slept.append
        )
        self.lined.open()

    def test_a_whole_line_changes_nothing(self):
        self.assertTrue(self.lined.write([write()])[0].won)
        self.assertEqual(b"x", self.lined.read([write().key])[write().key].payload)
        self.assertEqual(([], 0), (self.slept, self.lined.failed_calls))

    def test_every_call_over_a_cut_line_ends_with_its_time_out(self):
        self.line.set(backend_line.LineFault.CUT)

        for call in (
            self.lined.head,
            self.lined.now_seconds,
            lambda: self.lined.write([write()]),
            lambda: self.lined.read([write().key]),
        ):
            self.assertRaises(errors.BackendUnavailable, call)
        self.assertEqual([7.0] * 4, self.slept)
        self.line.set()
        self.assertEqual({}, dict(self.lined.read([write().key])))

    def test_a_refused_call_fails_at_once(self):
        self.line.set(backend_line.LineFault.REFUSED)

        self.assertRaises(errors.BackendUnavailable, self.lined.head)
        self.assertEqual(([], 1), (self.slept, self.lined.failed_calls))

    def test_a_snapshot_breaks_between_its_pages(self):
        self.lined.write([write()])
        pages = self.lined.snapshot().pages
        self.line.set(backend_line.LineFault.REFUSED)

        self.assertRaises(errors.BackendUnavailable, list, pages)

    def test_a_write_that_is_away_when_the_line_is_cut_is_done_and_nobody_is_told(self):
        self.inner.line = self.line

        self.assertEqual(
            [records.Verdict.UNKNOWN], [each.verdict for each in self.lined.write([write()])]
        )
        self.line.set()
        self.assertEqual(b"x", self.lined.read([write().key])[write().key].payload)

    def test_each_call_is_slowed_down(self):
        self.line.set(delay_seconds=0.25)
        self.lined.head()
        self.lined.read([write().key])

        self.assertEqual([0.25, 0.25], self.slept)

    def test_lost_claims_are_counted_and_other_lost_writes_are_not(self):
        self.lined.write([write(), write("services")])
        self.lined.write([write(), write("services")])

        self.assertEqual(1, self.lined.writes_lost.total())
