# SPDX-License-Identifier: Apache-2.0
"""Schedulers share out hosts that weigh nearly the same, and only those."""

from __future__ import annotations

import collections
import uuid
from collections.abc import Callable, Sequence

import testtools

from nova_nodb_scheduler.scheduling import choice, spreading


def _hosts(scores: list[float]) -> list[choice.Choice]:
    return [
        choice.Choice(row, str(uuid.uuid5(uuid.NAMESPACE_DNS, str(row))), "", "", "", score, ())
        for row, score in enumerate(scores)
    ]


def _best(hosts: list[choice.Choice]) -> Callable[[int], list[choice.Choice]]:
    return lambda count: hosts[:count]


class TestSpreading(testtools.TestCase):
    def _spreading(self, own: str, living: Sequence[str]) -> spreading.Spreading:
        return spreading.Spreading(own, lambda: living)

    def test_a_scheduler_that_is_alone_keeps_novas_order(self) -> None:
        hosts = _hosts([3.0] * 40)
        alone = self._spreading("a", ["a"])
        self.assertEqual(hosts[:1], alone.ordered(_best(hosts), 4000))

    def test_two_schedulers_never_begin_with_the_same_of_many_equal_hosts(self) -> None:
        living = ["a", "b", "c", "d"]
        hosts = _hosts([3.0] * 32)
        first = [
            self._spreading(name, living).ordered(_best(hosts), len(hosts))[0] for name in living
        ]
        self.assertEqual(4, len({each.uuid for each in first}))

    def test_a_host_that_weighs_clearly_more_stays_first_for_all(self) -> None:
        hosts = _hosts([3.0, 2.9] + [2.89] * 30)
        for name in ("a", "b"):
            ordered = self._spreading(name, ["a", "b"]).ordered(_best(hosts), len(hosts))
            self.assertEqual(hosts[0], ordered[0])
            self.assertEqual(hosts[:16], ordered)

    def test_one_in_a_hundred_of_those_that_pass_counts_as_the_best(self) -> None:
        hosts = _hosts([3.0 - 0.1 * row for row in range(24)])
        living = ("a", "b", "c")
        for name in living:
            own = [each for each in hosts if spreading.owner(each.uuid, living) == name]
            of_ten = [each for each in hosts[:10] if each in own]
            spread = self._spreading(name, living)
            self.assertEqual(
                of_ten + [each for each in hosts if each not in of_ten],
                spread.ordered(_best(hosts), 1099),
            )
            self.assertEqual(hosts, spread.ordered(_best(hosts), 199))

    def test_it_looks_further_where_others_own_all_of_the_first(self) -> None:
        living = ("a", "b", "c", "d")
        hosts = _hosts([3.0] * 400)
        own = [each for each in hosts if spreading.owner(each.uuid, living) == "a"]
        others = [each for each in hosts if each not in own]
        asked: list[int] = []

        def best(count: int) -> list[choice.Choice]:
            asked.append(count)
            return [*others[:100], *own, *others[100:]][:count]

        self.assertEqual(own[0], self._spreading("a", living).ordered(best, 400)[0])
        self.assertEqual([32, 64, 128], asked)

    def test_it_looks_no_further_where_the_rest_is_clearly_worse(self) -> None:
        living = ("a", "b", "c", "d")
        others = [each for each in _hosts([3.0] * 40) if spreading.owner(each.uuid, living) != "a"][
            :20
        ]
        hosts = [*others, *_hosts([1.0] * 400)]
        self.assertEqual(hosts[:32], self._spreading("a", living).ordered(_best(hosts), 420))

    def test_no_host_is_lost_and_the_others_keep_their_order(self) -> None:
        hosts = _hosts([3.0, 3.0, 3.0, 3.0] + [2.9 - 0.01 * row for row in range(20)])
        living = ("a", "b", "c")
        name = spreading.owner(hosts[3].uuid, living)
        own = [each for each in hosts[:4] if spreading.owner(each.uuid, living) == name]
        ordered = self._spreading(name, living).ordered(_best(hosts), len(hosts))
        self.assertEqual(own + [each for each in hosts if each not in own], ordered)

    def test_each_scheduler_has_about_its_share_and_few_hosts_change_hands(self) -> None:
        hosts = [each.uuid for each in _hosts([1.0] * 4000)]
        four = {host: spreading.owner(host, ("a", "b", "c", "d")) for host in hosts}
        counts = collections.Counter(four.values())
        self.assertTrue(all(850 < count < 1150 for count in counts.values()), counts)
        three = {host: spreading.owner(host, ("a", "b", "c")) for host in hosts}
        moved = [host for host in hosts if three[host] != four[host]]
        self.assertEqual({"d"}, {four[host] for host in moved})
