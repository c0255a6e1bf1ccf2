# SPDX-License-Identifier: Apache-2.0
"""One request that goes wrong stops nobody, and what happened is not lost by it."""

import contextlib

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.frame import host_facts
from nova_nodb_scheduler.synchronizer.pending import pending_ledger, pending_rules
from nova_nodb_scheduler.synchronizer.waking import pending_fit
from tests.unit.scheduling import toys
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


class LostEventsTest(made_worker.WorkerCase):
    """More queues wait than one sweep looks at: 64, once a second."""

    QUEUES = 300

    def setUp(self):
        super().setUp()
        for number in range(self.QUEUES):
            self.park(f"r{number:03}", queue=f"q{number:03}", needs={"VCPU": 24})
        self.round()
        self.round()

    def fail_once(self, error):
        """Fail the first time that somebody is looked at."""
        failures = [error]

        def answer(request):
            return failures.pop() if failures else pending_fit.NoRoom()

        self.plans.answers = {f"q{number:03}": answer for number in range(self.QUEUES)}

    def looked_at(self):
        """Who is looked at in a round in which nobody is swept."""
        self.plans.asked.clear()
        self.round(0.1)
        return set(self.plans.asked)

    def test_a_host_that_grew_is_looked_at_again_where_that_broke_off(self):
        for error in (
            pending_fit.HostsUnproved("states not proved"),
            errors.BackendUnavailable("memory", "no answer"),
        ):
            self.engine.put(toys.facts(0))
            self.round()
            self.assertEqual(set(), self.looked_at())
            inventories = {"VCPU": host_facts.Inventory(32)}
            self.engine.put(toys.facts(0, provider=host_facts.ProviderFacts(1, inventories)))
            self.fail_once(error)
            with contextlib.suppress(errors.BackendUnavailable):
                self.round(0.1)
            self.assertLessEqual(63, len(self.looked_at()), error)
            self.assertEqual(set(), self.looked_at(), error)
