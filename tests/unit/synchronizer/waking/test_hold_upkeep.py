# SPDX-License-Identifier: Apache-2.0
"""Who fits on no host, however empty, keeps no host from those behind."""

import numpy as np

from nova_nodb_scheduler.synchronizer.waking import hold_upkeep, pending_fit
from tests.unit.synchronizer.waking import made_worker


def shortage(*uuids):
    free, whole = np.zeros((len(uuids), 1), np.int64), np.full((len(uuids), 1), 16)
    return pending_fit.RoomShortage(uuids, ("VCPU",), free, whole, len(uuids))


class HoldTest(made_worker.WorkerCase):
    SETTINGS = {"hold_after_seconds": 60.0}

    def setUp(self):
        super().setUp()
        for number in range(6):
            self.now += 1.0
            self.park(f"r{number}", queue=f"q{number}")
        self.plans.shortages = {f"q{number}": shortage() for number in range(5)}
        self.plans.shortages["q1"] = pending_fit.NotTold("its payload cannot be read")
        self.plans.shortages["q5"] = shortage("uuid-1")
        self.now += 60.0

    def held(self):
        return {key for key in (f"r{number}" for number in range(6)) if self.ledger.read(key).hold}

    def look(self, times):
        for _ in range(times):
            self.round(2.0)

    def test_the_first_that_would_fit_somewhere_has_a_host_held(self):
        self.look(3)
        self.assertEqual({"r5"}, self.held())

    def test_it_is_so_where_those_before_are_another_schedulers(self):
        upkeep = hold_upkeep.HoldUpkeep(
            self.followed, self.plans, self.ledger, 600.0, lambda digest: digest == "q5"
        )
        self.feed()
        self.followed.follow(self.now)
        for _ in range(3):
            self.now += 2.0
            upkeep.run(self.now)
        self.assertEqual({"r5"}, self.held())

    def test_who_fits_on_a_larger_host_that_came_goes_before_again(self):
        del self.plans.shortages["q5"]
        self.look(3)
        self.plans.shortages["q0"] = shortage("uuid-2")
        self.look(40)
        self.assertEqual({"r0"}, self.held())
