# SPDX-License-Identifier: Apache-2.0
"""Schedulers share out hosts that Nova might take, and no others unless that is tolerated."""

from __future__ import annotations

import collections
import uuid
from collections.abc import Callable, Sequence

import testtools

from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts, placing


def _hosts(scores: list[float]) -> list[chosen_hosts.Choice]:
    return [
        chosen_hosts.Choice(
            row, str(uuid.uuid5(uuid.NAMESPACE_DNS, str(row))), "", "", "", score, ()
        )
        for row, score in enumerate(scores)
    ]


def _best(hosts: list[chosen_hosts.Choice]) -> Callable[[int], list[chosen_hosts.Choice]]:
    return lambda count: hosts[:count]


class TestSpreading(testtools.TestCase):
    def _spreading(
        self, own: str, living: Sequence[str], *, tolerant: bool = False
    ) -> placing.Spreading:
        return placing.Spreading(own, lambda: living, tolerant=tolerant)

    def _choose(
        self,
        own: str,
        living: Sequence[str],
        hosts: list[chosen_hosts.Choice],
        passed: int | None = None,
        *,
        tolerant: bool = False,
        is_told_apart: bool = False,
    ) -> chosen_hosts.Choice | None:
        passed = len(hosts) if passed is None else passed
        spread = self._spreading(own, living, tolerant=tolerant)
        return spread.choose(_best(hosts), passed, is_told_apart=is_told_apart)

    def test_a_scheduler_that_is_alone_keeps_novas_order(self) -> None:
        hosts = _hosts([3.0] * 40)
        asked: list[int] = []

        def best(count: int) -> list[chosen_hosts.Choice]:
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

    def test_a_host_that_weighs_more_stays_first_for_all(self) -> None:
        for least in (1e-15, 0.001, 0.04):
            hosts = _hosts([3.0] + [3.0 - least] * 4000)
            for name in ("a", "b"):
                self.assertEqual(hosts[0], self._choose(name, ["a", "b"], hosts))

    def test_of_those_that_novas_subset_might_draw_each_takes_its_own(self) -> None:
        """The drawn one comes first; who weighs no less was among the best as well."""
        drawn = _hosts([3.0, 5.0, 4.0, 3.5, 3.0, 2.9, 2.0] + [1.0] * 40)
        for name in ("a", "b", "c"):
            chosen = self._choose(name, ["a", "b", "c"], drawn)
            self.assertGreaterEqual(chosen.score, 3.0)
        self.assertLess(1, len({self._choose(name, "abc", drawn).uuid for name in "abc"}))

    def test_the_tolerant_keep_to_a_host_that_weighs_clearly_more(self) -> None:
        hosts = _hosts([3.0, 2.9] + [2.89] * 30)
        for name in ("a", "b"):
            self.assertEqual(hosts[0], self._choose(name, ["a", "b"], hosts, tolerant=True))
        near = _hosts([3.0] + [2.97] * 30)
        chosen = {self._choose(name, ["a", "b"], near, tolerant=True) for name in ("a", "b")}
        self.assertEqual(2, len(chosen))

    def test_nothing_is_tolerated_where_a_weigher_speaks_for_the_request(self) -> None:
        hosts = _hosts([3.0] + [2.97] * 4000)
        for name in ("a", "b"):
            chosen = self._choose(name, ["a", "b"], hosts, tolerant=True, is_told_apart=True)
            self.assertEqual(hosts[0], chosen)

    def test_a_host_that_failed_to_build_is_not_tolerated(self) -> None:
        hosts = _hosts([3.0] + [3.0 - 10_000.0] * 4000)
        for name in ("a", "b"):
            self.assertEqual(hosts[0], self._choose(name, ["a", "b"], hosts, tolerant=True))

    def test_to_the_tolerant_one_in_a_hundred_of_those_that_pass_counts_as_the_best(self) -> None:
        hosts = _hosts([3.0 - 0.1 * row for row in range(24)])
        living = ("a", "b", "c")
        owners = [placing.owner(each.uuid, living) for each in hosts]
        self.assertEqual(set(living), set(owners[:10]))
        for name in living:
            best_own = hosts[owners.index(name)]
            self.assertEqual(best_own, self._choose(name, living, hosts, 1099, tolerant=True))
            self.assertEqual(hosts[0], self._choose(name, living, hosts, 199, tolerant=True))
            self.assertEqual(hosts[0], self._choose(name, living, hosts, 10**6))

    def test_it_looks_further_where_others_own_all_of_the_first(self) -> None:
        living = ("a", "b", "c", "d")
        hosts = _hosts([3.0] * 400)
        own = [each for each in hosts if placing.owner(each.uuid, living) == "a"]
        others = [each for each in hosts if each not in own]
        asked: list[int] = []

        def best(count: int) -> list[chosen_hosts.Choice]:
            asked.append(count)
            return [*others[:100], *own, *others[100:]][:count]

        self.assertEqual(own[0], self._spreading("a", living).choose(best, 400))
        self.assertEqual([4, 8, 16, 32, 64, 128], asked)
        self.assertEqual(others[0], self._choose("a", living, others))

    def test_it_looks_no_further_where_the_rest_is_clearly_worse(self) -> None:
        living = ("a", "b", "c", "d")
        equal = _hosts([3.0] * 40)
        others = [each for each in equal if placing.owner(each.uuid, living) != "a"]
        hosts = [*others[:20], *_hosts([1.0] * 400)]
        self.assertEqual(hosts[0], self._choose("a", living, hosts))

    def test_each_scheduler_has_about_its_share_and_few_hosts_change_hands(self) -> None:
        hosts = [each.uuid for each in _hosts([1.0] * 4000)]
        four = {host: placing.owner(host, ("a", "b", "c", "d")) for host in hosts}
        counts = collections.Counter(four.values())
        self.assertTrue(all(850 < count < 1150 for count in counts.values()), counts)
        three = {host: placing.owner(host, ("a", "b", "c")) for host in hosts}
        moved = [host for host in hosts if three[host] != four[host]]
        self.assertEqual({"d"}, {four[host] for host in moved})
