# SPDX-License-Identifier: Apache-2.0
"""Requests are followed while others ask for their place: nobody waits for many records."""

import threading

from nova_nodb_scheduler.scheduling.waiting import wait_queues
from tests.unit.synchronizer.waking import made_worker


class CountedLock:
    """Counts what is put while it is held."""

    def __init__(self):
        self._lock = threading.RLock()
        self.puts = [0]

    def __enter__(self):
        self._lock.acquire()
        self.puts.append(0)

    def __exit__(self, *_exc):
        self._lock.release()

    def is_held(self):
        return self._lock._is_owned()


class FollowingTest(made_worker.WorkerCase):
    def setUp(self):
        super().setUp()
        lock = self.followed.lock = CountedLock()

        class Queues(wait_queues.WaitQueues):
            def put(self, request, now):
                if lock.is_held():
                    lock.puts[-1] += 1
                super().put(request, now)

        make = self.followed._make
        self.followed._make = lambda: Queues(make()._settings)
        self.lock = lock

    def test_all_at_once_are_taken_over_without_the_lock(self):
        for number in range(200):
            self.park(f"r{number}")
        self.feed()
        former = self.followed.queues
        self.followed.follow(self.now)
        self.assertEqual(200, len(self.followed.queues))
        self.assertIsNot(former, self.followed.queues)
        self.assertEqual(0, sum(self.lock.puts))

    def test_changes_are_taken_over_some_at_a_time(self):
        self.followed.follow(self.now)
        for number in range(200):
            self.park(f"r{number}")
        self.feed()
        self.assertEqual(200, len(self.followed.follow(self.now)))
        self.assertEqual(200, len(self.followed.queues))
        self.assertEqual((200, 64), (sum(self.lock.puts), max(self.lock.puts)))
