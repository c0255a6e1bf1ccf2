# SPDX-License-Identifier: Apache-2.0
"""The instruments of tools/waiting.sh: what they make of samples."""

import unittest

import attrs

from tests.chaos import grants
from tests.chaos import snapshot as snapshot_module
from tests.waiting import observations, report, trial


def _sample(at: float, placed: dict[str, tuple[str, int]], **states: str) -> object:
    """A moment: by server the host and the number of its allocation, and servers' states."""
    return snapshot_module.Snapshot(
        at=at,
        capacity={("host1", "VCPU"): 2.0},
        used={("host1", "VCPU"): sum(1 for host, _ in placed.values() if host == "host1")},
        allocated={uuid: {host: {"VCPU": 1}} for uuid, (host, _) in placed.items()},
        servers={
            uuid: snapshot_module.Server(uuid, uuid, "cell1", "host1", "host1", state, None, 1)
            for uuid, state in states.items()
        },
        migrations={},
        groups=(),
        build_requests=frozenset(),
        rows={(uuid, host): row for uuid, (host, row) in placed.items()},
    )


class ObservationsTest(unittest.TestCase):
    """What samples tell of each server."""

    def setUp(self) -> None:
        super().setUp()
        self.seen = observations.Observations()

    def test_a_room_is_there_when_the_allocation_of_who_had_it_is_gone(self) -> None:
        self.seen.take(_sample(1.0, {"a": ("host1", 1)}, a="active"))
        self.seen.take(_sample(2.0, {}, a="active"))
        self.seen.take(_sample(3.0, {"b": ("host1", 2)}, b="building"))
        self.seen.take(_sample(4.0, {"b": ("host1", 2)}, b="active"))
        freed, room = self.seen.of("a"), self.seen.of("b")
        self.assertEqual((freed.freed, room.placed, room.active), (2.0, 3.0, 4.0))

    def test_who_is_placed_before_one_that_asked_earlier_is_out_of_order(self) -> None:
        self.seen.take(_sample(1.0, {"b": ("host1", 1)}))
        self.seen.take(_sample(2.0, {"b": ("host1", 1), "a": ("host1", 2)}))
        self.assertEqual(observations.out_of_order(self.seen, ["a", "b"]), ["b"])
        self.assertEqual(observations.out_of_order(self.seen, ["b", "a"]), [])

    def test_a_host_with_more_than_it_has_is_seen_although_it_is_over_in_the_next_sample(
        self,
    ) -> None:
        standing = dict.fromkeys("abc", "active")
        self.seen.take(_sample(1.0, dict.fromkeys("abc", ("host1", 1)), **standing))
        self.seen.take(_sample(2.0, {}))
        self.assertEqual(self.seen.over_committed(), {"host1 VCPU": 1})

    def test_what_was_taken_back_before_anybody_was_answered_is_told_apart(self) -> None:
        self.seen.take(_sample(1.0, dict.fromkeys("abc", ("host1", 1))))
        self.seen.take(_sample(2.0, {"a": ("host1", 1), "b": ("host1", 1)}))
        self.assertEqual(self.seen.over_committed(), {})
        self.assertEqual(self.seen.over_committed(grants.WITHDRAWN), {"host1 VCPU": 1})

    def test_who_moves_on_to_another_host_holds_one_at_a_time(self) -> None:
        self.seen.take(_sample(1.0, {"a": ("host1", 1)}))
        self.seen.take(_sample(2.0, {}))
        self.seen.take(_sample(3.0, {"a": ("host2", 2)}))
        self.assertEqual(self.seen.of("a").most_hosts, 1)

    def test_a_server_in_error_is_seen(self) -> None:
        self.seen.take(_sample(5.0, {}, a="error"))
        self.assertEqual(self.seen.of("a").failed, 5.0)


class RoundTest(unittest.TestCase):
    """When a round went as promised."""

    def setUp(self) -> None:
        super().setUp()
        self.good = trial.Round(
            number=1,
            seed=None,
            faults=(),
            slots=24,
            asked=40,
            untold=0,
            active_first=24,
            waiting=16,
            failed=(),
            failed_builds=(),
            lost=(),
            twice=(),
            out_of_order=(),
            over=0,
            placed_seconds=(0.5, 1.5),
            active_seconds=(1.0, 2.0),
            samples=10,
            blind_seconds=0.2,
            seconds=60.0,
            call_seconds=(0.2, 0.21, 0.3),
        )

    def test_each_broken_promise_is_a_broken_round(self) -> None:
        self.assertTrue(self.good.is_kept)
        for change in (
            {"failed": ("a",)},
            {"failed_builds": ("a",)},
            {"lost": ("a",)},
            {"twice": ("a",)},
            {"out_of_order": ("a",)},
            {"over": 1},
            {"waiting": 15},
            {"active_first": 25},
            {"samples": 0},
            {"failures": ("a fault could not be done",)},
        ):
            with self.subTest(change):
                self.assertFalse(attrs.evolve(self.good, **change).is_kept)

    def test_a_build_that_fails_at_a_compute_is_held_against_rounds_without_faults_alone(
        self,
    ) -> None:
        faulty = attrs.evolve(self.good, faults=("conductor-kill",), failed_builds=("a",))
        self.assertTrue(faulty.is_kept)
        self.assertFalse(attrs.evolve(faulty, failed=("b",)).is_kept)

    def test_rounds_come_back_from_their_file(self) -> None:
        self.assertEqual(report.from_json(report.to_json([self.good])), [self.good])

    def test_a_series_shows_its_sums_and_its_longest_wait(self) -> None:
        cells = report.row([self.good, self.good])
        self.assertEqual(cells[:5], ["2", "80", "48", "48", "32"])
        self.assertEqual(cells[-3:], ["1.0 s, 1.5 s", "1.5 s, 2.0 s", "0.21 s, 0.30 s"])
