# SPDX-License-Identifier: Apache-2.0
"""One holder at a time, by the back end's clock."""

import threading
import unittest

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.records import leases


class LeaseCase(unittest.TestCase):
    def setUp(self):
        super().setUp()
        self.now = 1000.0
        self.hub = memory.MemoryHub(clock=lambda: self.now)

    def keeper(self, holder):
        client = memory.MemorySynchronizer(shared_hub=self.hub)
        client.open()
        self.addCleanup(client.close)
        keeper = leases.LeaseKeeper(client, "sweep", holder, 30.0, pause=lambda _: None)
        return client, keeper


class TestLease(LeaseCase):
    def test_a_second_holder_is_told_who_holds_it_and_until_when(self):
        _, one = self.keeper("one")
        _, two = self.keeper("two")
        held = one.acquire()
        self.assertEqual(leases.Lease("sweep", "one", 1030.0, held.token), held)
        self.assertEqual(leases.NotHeld(held), two.acquire())
        self.assertEqual(held, two.holder())

    def test_only_one_of_many_racing_threads_gets_it(self):
        keepers = [self.keeper(f"holder-{n}")[1] for n in range(8)]
        answers = []
        threads = [
            threading.Thread(target=lambda k=keeper: answers.append(k.acquire()))
            for keeper in keepers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        self.assertEqual(8, len(answers))
        self.assertEqual(1, sum(isinstance(answer, leases.Lease) for answer in answers))

    def test_it_ends_by_the_back_ends_clock(self):
        _, one = self.keeper("one")
        _, two = self.keeper("two")
        first = one.acquire()
        self.now += 29.9
        self.assertIsInstance(two.acquire(), leases.NotHeld)
        self.now += 0.1
        self.assertIsNone(two.holder())
        second = two.acquire()
        self.assertGreater(second.token, first.token)
        self.assertEqual(leases.NotHeld(second), one.renew())

    def test_a_holder_that_slept_past_its_end_learns_it_even_if_nobody_took_it(self):
        _, one = self.keeper("one")
        one.acquire()
        self.now += 31
        self.assertEqual(leases.NotHeld(), one.renew())
        self.assertIsInstance(one.acquire(), leases.Lease)

    def test_renewal_extends_it_and_the_token_grows_across_release(self):
        _, one = self.keeper("one")
        _, two = self.keeper("two")
        first = one.acquire()
        self.now += 20
        renewed = one.renew()
        self.assertEqual(1050.0, renewed.expires_seconds)
        one.release()
        self.assertIsNone(one.holder())
        taken = two.acquire()
        self.assertEqual(
            sorted([first.token, renewed.token, taken.token]),
            [first.token, renewed.token, taken.token],
        )
        self.assertEqual(3, len({first.token, renewed.token, taken.token}))

    def test_releasing_what_another_holds_changes_nothing(self):
        _, one = self.keeper("one")
        _, two = self.keeper("two")
        held = one.acquire()
        two.release()
        self.assertEqual(held, one.holder())


class TestFaults(LeaseCase):
    def test_an_unknown_outcome_is_settled_by_reading(self):
        for fault in (memory.Fault.REPLY_LOST, memory.Fault.REQUEST_LOST):
            client, keeper = self.keeper("one")
            client.faults.fail_next(fault)
            self.assertIsInstance(keeper.acquire(), leases.Lease)
            self.assertEqual("one", keeper.holder().holder)
            keeper.release()

    def test_an_acquisition_that_arrives_late_does_not_take_it_from_the_next_holder(self):
        client, one = self.keeper("one")
        _, two = self.keeper("two")
        one.acquire()
        one.release()
        client.faults.fail_next(memory.Fault.LATE)
        client.faults.fail_next(memory.Fault.REQUEST_LOST, count=100)
        self.assertEqual(leases.NotHeld(), one.acquire())
        held = two.acquire()
        self.hub.deliver_late()
        self.assertEqual(held, two.holder())

    def test_a_back_end_that_is_away_is_not_an_answer(self):
        client, keeper = self.keeper("one")
        client.faults.go_down()
        for call in (keeper.acquire, keeper.renew, keeper.release, keeper.holder):
            self.assertRaises(errors.BackendUnavailable, call)
