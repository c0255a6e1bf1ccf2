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

    def _choose(
        self, own: str, living: Sequence[str], hosts: list[choice.Choice], passed: int | None = None
    ) -> choice.Choice | None:
        passed = len(hosts) if passed is None else passed
        return self._spreading(own, living).choose(_best(hosts), passed)

    def test_a_scheduler_that_is_alone_keeps_novas_order(self) -> None:
        hosts = _hosts([3.0] * 40)
        asked: list[int] = []

        def best(count: int) -> list[choice.Choice]:
            asked.append(count)
            return hosts[:count]

        self.assertEqual(hosts[0], self._spreading("a", ["a"]).choose(best, 4000))
        self.assertEqual([1], asked)

    def test_where_there_is_no_host_there_is_no_choice(self) -> None:
        for living in (["a"], ["a", "b"]):
            self.assertIsNone(self._choose("a", living, [], 0))

    def test_two_schedulers_never_begin_with_the_same_of_many_equal_hosts(self) -> None:
        living = ["a", "b", "c", "d"]
        hosts = _hosts([3.0] * 32)
        first = {self._choose(name, living, hosts).uuid for name in living}
        self.assertEqual(4, len(first))

    def test_a_host_that_weighs_clearly_more_stays_first_for_all(self) -> None:
        hosts = _hosts([3.0, 2.9] + [2.89] * 30)
        for name in ("a", "b"):
            self.assertEqual(hosts[0], self._choose(name, ["a", "b"], hosts))

    def test_one_in_a_hundred_of_those_that_pass_counts_as_the_best(self) -> None:
        hosts = _hosts([3.0 - 0.1 * row for row in range(24)])
        living = ("a", "b", "c")
        owners = [spreading.owner(each.uuid, living) for each in hosts]
        self.assertEqual(set(living), set(owners[:10]))
        for name in living:
            best_own = hosts[owners.index(name)]
            self.assertEqual(best_own, self._choose(name, living, hosts, 1099))
            self.assertEqual(hosts[0], self._choose(name, living, hosts, 199))

    def test_it_looks_further_where_others_own_all_of_the_first(self) -> None:
        living = ("a", "b", "c", "d")
        hosts = _hosts([3.0] * 400)
        own = [each for each in hosts if spreading.owner(each.uuid, living) == "a"]
        others = [each for each in hosts if each not in own]
        asked: list[int] = []

        def best(count: int) -> list[choice.Choice]:
            asked.append(count)
            return [*others[:100], *own, *others[100:]][:count]

        self.assertEqual(own[0], self._spreading("a", living).choose(best, 400))
        self.assertEqual([4, 8, 16, 32, 64, 128], asked)
        self.assertEqual(others[0], self._choose("a", living, others))

    def test_it_looks_no_further_where_the_rest_is_clearly_worse(self) -> None:
        living = ("a", "b", "c", "d")
        equal = _hosts([3.0] * 40)
        others = [each for each in equal if spreading.owner(each.uuid, living) != "a"]
        hosts = [*others[:20], *_hosts([1.0] * 400)]
        self.assertEqual(hosts[0], self._choose("a", living, hosts))

    def test_each_scheduler_has_about_its_share_and_few_hosts_change_hands(self) -> None:
        hosts = [each.uuid for each in _hosts([1.0] * 4000)]
        four = {host: spreading.owner(host, ("a", "b", "c", "d")) for host in hosts}
        counts = collections.Counter(four.values())
        self.assertTrue(all(850 < count < 1150 for count in counts.values()), counts)
        three = {host: spreading.owner(host, ("a", "b", "c")) for host in hosts}
        moved = [host for host in hosts if three[host] != four[host]]
        self.assertEqual({"d"}, {four[host] for host in moved})
