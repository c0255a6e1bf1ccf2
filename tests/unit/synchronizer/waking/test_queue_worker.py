# SPDX-License-Identifier: Apache-2.0
"""One request that goes wrong stops nobody, and what happened is not lost by it."""

from nova_nodb_scheduler.synchronizer.pending import pending_rules
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
