# SPDX-License-Identifier: Apache-2.0
"""Who is tried when room grows."""

import testtools

from tests.unit.scheduling.waiting.samples import growth, queues, request, served, tried


class WakeTest(testtools.TestCase):
    def test_who_asked_first_goes_first(self):
        waiting = queues(request("b", asked_at=2.0), request("a", asked_at=1.0))

        self.assertEqual(["a", "b"], served(waiting.wake(growth(h=2), 9.0)))

    def test_room_for_one_is_granted_once(self):
        waiting = queues(request("b", asked_at=2.0), request("a", asked_at=1.0))

        self.assertEqual(["a"], served(waiting.wake(growth(h=1), 9.0)))
        self.assertEqual([], served(waiting.wake(growth(h=1), 9.0)))

    def test_who_fitted_before_is_not_helped_by_more(self):
        waiting = queues(request("small", 1), request("large", 4))

        self.assertEqual(["large"], tried(waiting.wake(growth(before=2, h=5), 9.0)))

    def test_a_higher_class_goes_first(self):
        waiting = queues(request("a"), request("b", priority_class="high", asked_at=5.0))

        self.assertEqual(["b", "a"], served(waiting.wake(growth(h=2), 9.0)))
