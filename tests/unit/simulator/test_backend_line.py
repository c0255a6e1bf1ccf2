# SPDX-License-Identifier: Apache-2.0
"""A line that is cut or slow does to any driver what a network does to a server."""

import multiprocessing

import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.simulator import backend_line
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.drivers.memory import hub


def write(namespace="claims", revision=0):
    return records.Write(records.RecordKey(namespace, "a"), revision, b"x")


class Cutting(memory.MemorySynchronizer):
    """A driver whose line is cut while a write is away."""

    line = None

    def write(self, writes, *, atomic=False):
        results = super().write(writes, atomic=atomic)
        if self.line is not None:
            self.line.set(backend_line.Fault.CUT)
        return results


class BackendLineTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.line = backend_line.Line(multiprocessing.get_context("spawn"))
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
        self.line.set(backend_line.Fault.CUT)

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
        self.line.set(backend_line.Fault.REFUSED)

        self.assertRaises(errors.BackendUnavailable, self.lined.head)
        self.assertEqual(([], 1), (self.slept, self.lined.failed_calls))

    def test_a_snapshot_breaks_between_its_pages(self):
        self.lined.write([write()])
        pages = self.lined.snapshot().pages
        self.line.set(backend_line.Fault.REFUSED)

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
