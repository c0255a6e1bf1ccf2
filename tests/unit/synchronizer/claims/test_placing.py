# SPDX-License-Identifier: Apache-2.0
"""A scheduler that is stopped, or sleeps too long, over-commits and leaks nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from unittest import mock

import attrs
import testtools

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts
from nova_nodb_scheduler.synchronizer.drivers import memory
from tests.unit.synchronizer.claims import placing_trial


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self) -> None:
        """Sleep for longer than any lease."""
        self.now += placing_trial.LEASE_SECONDS + 1


class PlacingCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.clock = Clock()
        self.hub = memory.MemoryHub(clock=self.clock)
        self.truth = placing_trial.Truth()
        self.numbers = itertools.count()
        self.other = self.scheduler()

    def scheduler(
        self, after: Callable[[str], None] = lambda step: None
    ) -> placing_trial.Scheduler:
        client = memory.MemorySynchronizer(None, self.hub)
        client.open()
        number = next(self.numbers)
        return placing_trial.Scheduler(
            client, f"s{number}", self.truth, after, self.clock, seed=number
        )

    def fill(self) -> None:
        """Place servers of one VCPU until no host has room."""
        for number in range(100):
            if self.other.place([f"filler-{number}"], 1) is None:
                return
        self.fail("hosts never fill")

    def at(self, step: str, action: Callable[[], None]) -> Callable[[str], None]:
        """Return a hook that acts once, at a step."""
        left = [action]

        def after(done: str) -> None:
            if done == step and left:
                left.pop()()

        return after

    def quiet(self) -> None:
        self.clock.sleep()
        for host in placing_trial.HOSTS:
            self.other.tidy(host)

    def assert_no_leaks(self) -> None:
        """See that what is claimed or allocated, is what was granted."""
        self.quiet()
        self.assertEqual(set(self.truth.granted), set(self.truth.allocations))
        for host in placing_trial.HOSTS:
            held = self.other.ledger.read(host).claims
            self.assertEqual(set(), held.keys() - self.truth.granted.keys())
            states = {each.state for each in held.values()}
            self.assertEqual(set(), states - {model.ClaimState.CONFIRMED})
        for group in placing_trial.GROUPS:
            members = {c for c, _ in self.other.groups.read(group.uuid).members}
            self.assertEqual(set(), members - self.truth.granted.keys())


class FencingTest(PlacingCase):
    """Between these steps, while others fill every host, a scheduler sleeps on."""

    def slept_at(self, step: str) -> dict[str, str] | None:
        def sleep() -> None:
            self.clock.sleep()
            self.fill()

        return self.scheduler(self.at(step, sleep)).place(["slow"], 4)

    def test_between_the_claim_and_the_write(self):
        self.assertIsNone(self.slept_at("before the write"))
        self.assertEqual(12, sum(self.truth.sizes[each] for each in self.truth.granted))
        self.assertNotIn("slow", self.truth.allocations)
        self.assert_no_leaks()

    def test_between_the_write_and_the_confirm(self):
        # Its allocation is seen, so the others leave that host to it.
        self.assertIsNotNone(self.slept_at("written"))
        self.assertEqual(8, sum(name.startswith("filler") for name in self.truth.granted))
        self.assert_no_leaks()

    def test_between_the_write_and_the_confirm_of_what_nobody_saw(self):
        """As with a mirror that is behind: the others see no such allocation."""
        own = self.truth.copy

        def copy() -> tuple[dict[str, tuple[str, int]], dict[str, str]]:
            allocations, granted = own()
            allocations.pop("slow", None)
            return allocations, granted

        self.truth.copy = copy
        self.assertIsNone(self.slept_at("written"))
        self.truth.copy = own
        self.assertEqual(12, sum(self.truth.sizes[each] for each in self.truth.granted))
        self.assertNotIn("slow", self.truth.allocations)
        self.assert_no_leaks()

    def test_one_host_less_full_takes_it_instead(self):
        def sleep() -> None:
            self.clock.sleep()
            # Its claim ends, and one server stands where it wanted to go.
            [place] = [h for h in placing_trial.HOSTS if self.other.ledger.read(h).claims]
            for number in itertools.count():
                placed = self.other.place([f"filler-{number}"], 1)
                if placed and place in placed.values():
                    return

        placed = self.scheduler(self.at("before the write", sleep)).place(["slow"], 4)
        self.assertIsNotNone(placed)
        self.assert_no_leaks()

    def test_a_place_in_a_group_is_fenced_as_well(self):
        together = placing_trial.GROUPS[1]

        def sleep() -> None:
            self.clock.sleep()
            for host in placing_trial.HOSTS:
                self.other.tidy(host)
            self.other.place(["first"], 1, together)

        placed = self.scheduler(self.at("before the write", sleep)).place(["slow"], 1, together)
        self.assertEqual(placed, {"slow": self.truth.granted["first"]})
        self.assert_no_leaks()


class StoppedTest(PlacingCase):
    """A scheduler dies at a step; whoever cleans up afterwards finds all of it."""

    def test_at_each_step_all_room_is_free_again(self):
        steps = ("joined", "claimed", "before the write", "written", "member confirmed")
        for step in (*steps, "confirmed"):
            self.truth = placing_trial.Truth()
            self.hub.begin_epoch()
            self.other = self.scheduler()

            def die(step: str = step) -> None:
                raise placing_trial.Stopped(step)

            dying = self.scheduler(self.at(step, die))
            with testtools.ExpectedException(placing_trial.Stopped):
                dying.place(["dead-1", "dead-2"], 2, placing_trial.GROUPS[0])
            # The user deletes servers that came to nothing.
            for name in ("dead-1", "dead-2"):
                self.truth.remove(name)
            self.quiet()
            self.fill()
            self.assertEqual(12, len(self.truth.granted), step)
            self.assert_no_leaks()


class _OtherStates(Exception):
    """Hosts were looked at that are not those that were proved."""


class UnprovedTest(PlacingCase):
    def test_nothing_is_claimed_of_hosts_that_were_looked_at_on_other_states(self):
        other_states = mock.patch.object(
            placing_trial._Planner, "check", autospec=True, side_effect=_OtherStates
        )
        for servers in (["a1"], ["b1", "b2"], [f"c{n}" for n in range(13)]):
            with other_states:
                # Nor is anybody told that there is no room.
                self.assertRaises(_OtherStates, self.other.place, servers, 1)
        self.assertEqual({}, self.truth.allocations)
        held = [self.other.ledger.read(host).claims for host in placing_trial.HOSTS]
        self.assertEqual([{}, {}, {}], [dict(each) for each in held])
        self.assert_no_leaks()


class TogetherTest(PlacingCase):
    def test_all_servers_or_none(self):
        self.assertIsNotNone(self.other.place(["a1", "a2", "a3"], 3))
        self.assertIsNone(self.other.place(["b1", "b2", "b3", "b4"], 1))
        self.assertEqual({"a1", "a2", "a3"}, set(self.truth.allocations))
        self.assertIsNotNone(self.other.place(["c1", "c2", "c3"], 1))
        self.assert_no_leaks()

    def test_a_group_keeps_apart_as_many_as_there_are_hosts(self):
        apart = placing_trial.GROUPS[0]
        self.assertIsNone(self.other.place([f"a{n}" for n in range(4)], 1, apart))
        self.assertIsNotNone(self.scheduler().place(["b1", "b2"], 1, apart))
        self.assertIsNotNone(self.other.place(["c1"], 1, apart))
        self.assertIsNone(self.other.place(["d1"], 1, apart))
        self.assert_no_leaks()

    def test_a_group_stays_together(self):
        together = placing_trial.GROUPS[1]
        self.assertIsNotNone(self.other.place(["a1", "a2"], 1, together))
        self.assertIsNotNone(self.scheduler().place(["b1", "b2"], 1, together))
        self.assertIsNone(self.scheduler().place(["c1"], 1, together))
        self.assertEqual(1, len(set(self.truth.granted.values())))
        self.assert_no_leaks()

    def test_many_servers_wait_once_for_a_view_that_is_behind(self):
        scheduler, pauses = self.scheduler(), []
        own, looks = scheduler.parts.claimer, []

        class Behind:
            def take(self, request, wanted, deadline):
                looks.append(len(wanted))
                if len(looks) > 2:
                    return own.take(request, wanted, deadline)
                return [
                    chosen_hosts.RefusedClaim(each, chosen_hosts.ClaimRefusal.BEHIND)
                    for each in wanted
                ]

            confirm, release = own.confirm, own.release

        scheduler.parts = attrs.evolve(scheduler.parts, claimer=Behind(), sleep=pauses.append)
        servers = [f"s{number}" for number in range(12)]
        self.assertEqual(set(servers), set(scheduler.place(servers, 1)))
        self.assertEqual([12, 12], looks[:2])
        self.assertEqual([0.01, 0.02], pauses)
