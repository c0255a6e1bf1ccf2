# SPDX-License-Identifier: Apache-2.0
"""Hosts that are held for one request."""

from __future__ import annotations

import attrs
import numpy as np
import testtools

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.waiting import host_holds
from tests.unit.scheduling.waiting.samples import (
    RESOURCES,
    granted,
    growth,
    queues,
    request,
    served,
    tried,
)


def holding(record: pending.PendingRequest, host: str, until: float = 100.0):
    return attrs.evolve(record, hold=pending.Hold(host, until))


class HeldTest(testtools.TestCase):
    def test_room_on_a_held_host_is_for_its_holder_alone(self):
        waiting = queues(holding(request("large", 4), "h"), request("small", 1))

        self.assertEqual([], tried(waiting.wake(growth(h=3), 9.0)))
        self.assertEqual(["large"], served(waiting.wake(growth(before=3, h=9), 9.0)))

    def test_other_hosts_are_for_everybody(self):
        waiting = queues(holding(request("large", 4), "h"), request("small", 1))

        self.assertEqual(["small"], served(waiting.wake(growth(h=3, i=1), 9.0)))

    def test_a_hold_ends_with_its_lease_and_the_host_is_told(self):
        waiting = queues(holding(request("large", 4), "h"), request("small", 1))
        waiting.advance(100.0)

        self.assertEqual(("h",), waiting.take_released())
        self.assertEqual(["small"], tried(waiting.wake(growth(h=3), 100.0)))

    def test_a_hold_ends_with_its_request(self):
        waiting = queues(holding(request("large", 4), "h"))
        waiting.drop("large", 9.0)

        self.assertEqual(("h",), waiting.take_released())
        self.assertEqual({}, waiting.held_hosts(9.0))

    def test_a_renewed_hold_has_not_ended(self):
        record = holding(request("large", 4), "h")
        waiting = queues(record)
        waiting.put(holding(record, "h", 200.0), 50.0)
        waiting.advance(100.0)

        self.assertEqual((), waiting.take_released())
        self.assertEqual({"h": "large"}, waiting.held_hosts(100.0))

    def test_of_two_that_hold_one_host_all_agree_who_has_it(self):
        one, other = holding(request("b", 4), "h", 90.0), holding(request("a", 3), "h", 95.0)
        for records in ((one, other), (other, one)):
            self.assertEqual({"h": "b"}, queues(*records).held_hosts(9.0))


class WantingTest(testtools.TestCase):
    def test_the_first_of_each_class_wants_a_host_once_it_has_waited(self):
        waiting = queues(
            request("a", 4, parked_at=10.0),
            request("b", 3, asked_at=5.0, parked_at=10.0),
            request("c", 2, parked_at=10.0, priority_class="high"),
            hold_after_seconds=60.0,
        )
        self.assertEqual((), waiting.wanting_hold(69.0))

        self.assertEqual({"a", "c"}, {each.key for each in waiting.wanting_hold(70.0)})

    def test_while_one_of_a_class_holds_a_host_no_other_one_does(self):
        waiting = queues(
            holding(request("b", 3, asked_at=5.0), "h"), request("a", 4), hold_after_seconds=0.0
        )
        self.assertEqual((), waiting.wanting_hold(50.0))

        self.assertEqual(("a",), tuple(each.key for each in waiting.wanting_hold(100.0)))

    def test_who_is_on_its_way_keeps_nobody_from_holding(self):
        waiting = queues(
            holding(granted(request("b", 3), 99.0), "h"), request("a", 4), hold_after_seconds=0.0
        )
        self.assertEqual(["a"], [each.key for each in waiting.wanting_hold(50.0)])


class ChoiceTest(testtools.TestCase):
    def choose(self, needs, free, whole=8, avoid=None):
        hosts = tuple(free)
        return host_holds.choose_host(
            np.array(needs),
            hosts,
            np.array([free[host] for host in hosts]),
            np.full((len(hosts), 2), whole),
            avoid=avoid,
        )

    def test_the_host_where_the_least_must_be_freed_is_held(self):
        self.assertEqual("b", self.choose([4, 4], {"a": (1, 4), "b": (2, 2), "c": (0, 0)}))

    def test_of_equal_ones_all_choose_the_same(self):
        self.assertEqual("a", self.choose([4, 4], {"b": (1, 1), "a": (1, 1)}))

    def test_a_host_that_is_too_small_when_empty_is_never_held(self):
        self.assertIsNone(self.choose([9, 1], {"a": (8, 8)}))

    def test_after_a_hold_in_vain_another_host_is_tried_where_there_is_one(self):
        self.assertEqual("b", self.choose([4, 4], {"a": (3, 3), "b": (0, 0)}, avoid="a"))
        self.assertEqual("a", self.choose([4, 4], {"a": (3, 3)}, avoid="a"))

    def test_what_is_granted_on_a_host_or_held_on_it_counts(self):
        large = request("large", 4)
        waiting = queues(
            large,
            holding(request("other", 4, priority_class="high"), "a"),
            granted(request("flying", 3), 99.0, "b"),
        )
        free = np.array([[3, 3], [3, 3], [1, 1]])
        chosen = waiting.choose_hold(
            large, ("a", "b", "c"), RESOURCES, free, np.full((3, 2), 8), 9.0
        )

        self.assertEqual("c", chosen)

    def test_the_last_host_is_known_until_the_request_goes(self):
        holds = host_holds.HostHolds()
        holds.put("a", pending.Hold("h", 9.0))
        holds.put("a", None)
        self.assertEqual("h", holds.last("a"))
        holds.drop("a")

        self.assertIsNone(holds.last("a"))
