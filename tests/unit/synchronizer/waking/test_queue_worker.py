# SPDX-License-Identifier: Apache-2.0
"""One request that goes wrong stops nobody, and what happened is not lost by it."""

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.pending import pending_ledger, pending_rules
from nova_nodb_scheduler.synchronizer.waking import pending_fit
from tests.unit.synchronizer.waking import made_worker

FITS = pending_fit.ServersFit(("uuid-0",))


class WorkerTest(made_worker.WorkerCase):
    def test_whoever_fits_is_granted(self):
        self.park("a")
        self.plans.answers["digest"] = FITS
        self.round()
        self.assertEqual([("a", 2)], self.told)

    def test_whom_memory_tells_nothing_of_is_tried_for_days_without_stopping_others(self):
        self.park("a", queue="untold")
        self.plans.answers["untold"] = pending_fit.NotTold("its payload cannot be read")
        self.round()
        for attempt in range(2, 1100):
            self.ledger.take("a", attempt, f"conductor-{attempt}")
            holding = pending_rules.Holding("a", attempt, f"conductor-{attempt}")
            self.ledger.park(holding, "no room", 0.0)
            self.round(61.0)
        self.assertEqual(("a", 1100), self.told[-1])
        self.park("b")
        self.plans.answers["digest"] = FITS
        self.round()
        self.assertIn(("b", 2), self.told)

    def break_record(self, key):
        name = pending_ledger.record_key(key)
        record = self.client.read([name])[name]
        [result] = self.client.write([records.Write(name, record.revision, b"?")])
        self.assertTrue(result.won)

    def test_a_record_that_became_unreadable_stops_nobody(self):
        self.park("a")
        self.now += 1.0
        self.park("b")
        self.feed()
        self.break_record("a")
        self.plans.answers["digest"] = FITS
        self.round()
        self.round()
        self.assertEqual([("b", 2)], self.told)

    def test_nor_does_one_whose_time_is_over(self):
        self.park("a", deadline_at=self.now + 10.0)
        self.park("b", queue="other")
        self.feed()
        self.break_record("a")
        self.plans.answers["other"] = FITS
        self.round(20.0)
        self.round()
        self.assertEqual([("b", 2)], self.told)
