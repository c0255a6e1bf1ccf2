# SPDX-License-Identifier: Apache-2.0
"""Who waits for room gets it, in order, and nobody passes by."""

from __future__ import annotations

from tests.functional.nova_adapter.waiting import queue_cloud


class WakingTest(queue_cloud.QueueCase):
    def test_whoever_finds_no_room_waits_and_is_placed_in_order_when_room_is_freed(self):
        first = self.fill()
        waiting = [self.conductor.ask() for _ in range(3)]
        self.turn()
        self.assertEqual(sorted(waiting), sorted(self.waiting()))
        self.delete(first[0])
        self.until(lambda: waiting[0] in self.placed())
        self.assertEqual([*first, waiting[0]], self.placed())
        self.delete(first[1], first[2])
        self.until(lambda: not self.waiting())
        self.assertEqual([*first, *waiting], self.placed())

    def test_nobody_is_tried_while_no_room_is_freed(self):
        self.fill()
        self.conductor.ask()
        for _ in range(5):
            self.turn()
        self.assertEqual([1], [each.grant.attempt for each in map(self.request, self.waiting())])
