# SPDX-License-Identifier: Apache-2.0
"""A claim stands as long as the allocation that it was for may be there, or come yet."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable, Collection, Mapping, Sequence

import testtools

from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts, placing
from nova_nodb_scheduler.synchronizer.claims import claim_rules
from tests.unit.synchronizer.claims import placing_storm, placing_trial

_APART, _TOGETHER = placing_trial.GROUPS


class _Broke(Exception):
    """What a write may raise once it has begun."""


class _Unanswered:
    """A Placement that answers with what it is told, and may keep what it wrote.

    :param results: by server
    :ivar doubts: servers of which something may be there, or come yet
    :ivar then: called when all is written
    """

    def __init__(
        self, results: Mapping[str, placing.AllocationResult], doubts: Collection[str] = ()
    ) -> None:
        self._results = results
        self.doubts = set(doubts)
        self.then: Callable[[], None] = lambda: None

    def write(
        self, wanted: Sequence[chosen_hosts.WantedClaim], deadline: float
    ) -> dict[str, placing.AllocationOutcome]:
        self.then()
        return {
            each.consumer: placing.AllocationOutcome(self._results[each.consumer])
            for each in wanted
        }

    def remove(self, wanted: Sequence[chosen_hosts.WantedClaim], deadline: float) -> None:
        pass

    def is_in_doubt(self, wanted: chosen_hosts.WantedClaim) -> bool:
        return wanted.consumer in self.doubts


def _written(*servers: str) -> dict[str, placing.AllocationResult]:
    return dict.fromkeys(servers, placing.AllocationResult.WRITTEN)


def _given_up(*servers: str) -> dict[str, placing.AllocationResult]:
    return dict.fromkeys(servers, placing.AllocationResult.GIVEN_UP)


class InDoubtTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.storm = placing_storm.memory_storm(1)
        self.scheduler = self.storm.scheduler("one", lambda step: None)

    def claimed(self) -> set[str]:
        keys = [claim_rules.host_key(host) for host in placing_trial.HOSTS]
        held = self.scheduler.client.read(keys)
        return {
            consumer
            for key, record in held.items()
            for consumer in self.scheduler.ledger.read(key.key).claims
            if not record.deleted
        }

    def members(self) -> set[str]:
        return {
            consumer
            for group in placing_trial.GROUPS
            for consumer, _ in self.scheduler.groups.read(group.uuid).members
        }

    def test_the_claim_of_an_allocation_that_may_come_yet_stands_until_that_is_ended(self) -> None:
        authority = _Unanswered(_given_up("a"), doubts=["a"])
        made = self.scheduler.placing(["a"], 1, authority)
        self.assertIsNone(made.place())
        self.assertTrue(made.given_up)
        made.undo()
        self.assertEqual({"a"}, self.claimed())
        authority.doubts.clear()
        made.end_doubt()
        self.assertEqual(set(), self.claimed())

    def test_the_claim_of_an_allocation_that_was_not_made_ends_with_the_request(self) -> None:
        made = self.scheduler.placing(["a"], 1, _Unanswered(_given_up("a")))
        self.assertIsNone(made.place())
        made.undo()
        self.assertEqual(set(), self.claimed())

    def test_the_claim_of_an_allocation_that_could_not_be_taken_back_stands(self) -> None:
        authority = _Unanswered(_written("a", "b"), doubts=["b"])
        made = self.scheduler.placing(["a", "b"], 1, authority)
        self.assertIsNotNone(made.place())
        made.undo()
        self.assertEqual({"b"}, self.claimed())
        authority.doubts.clear()
        made.end_doubt()
        self.assertEqual(set(), self.claimed())

    def test_of_several_servers_the_doubt_of_one_ends_without_the_others(self) -> None:
        authority = _Unanswered(_given_up("a", "b"), doubts=["a", "b"])
        made = self.scheduler.placing(["a", "b"], 1, authority)
        self.assertIsNone(made.place())
        made.undo()
        authority.doubts.remove("a")
        made.end_doubt()
        self.assertEqual({"b"}, self.claimed())

    def test_a_write_that_breaks_leaves_the_claims_of_what_it_may_have_written(self) -> None:
        authority = _Unanswered({}, doubts=["b"])

        def breaks() -> None:
            raise _Broke

        authority.then = breaks
        made = self.scheduler.placing(["a", "b"], 1, authority)
        self.assertRaises(_Broke, made.place)
        made.undo()
        self.assertEqual({"b"}, self.claimed())

    def test_what_may_come_for_no_server_keeps_room_and_is_no_member_of_its_group(self) -> None:
        for group in (_APART, _TOGETHER):
            made = self.scheduler.placing(
                [group.uuid], 1, _Unanswered(_given_up(group.uuid), [group.uuid]), group
            )
            self.assertIsNone(made.place())
            made.undo()
            # Its own next host would be refused for it, and those of others.
            self.assertEqual(set(), self.members())
            self.assertIn(group.uuid, self.claimed())

    def test_who_may_be_on_a_host_takes_the_next_one_as_a_member_of_its_group(self) -> None:
        made = self.scheduler.placing(
            ["a"], placing_trial.CAPACITY, _Unanswered(_given_up("a"), ["a"]), _TOGETHER
        )
        self.assertIsNone(made.place())
        made.undo()
        own = self.scheduler.ledger.read
        [doubted] = [host for host in placing_trial.HOSTS if own(host).claims]
        # Its room there goes to another: only elsewhere it can be.
        self.storm.truth.allocations["other"] = (doubted, 1)
        placed = self.scheduler.place(["a"], placing_trial.CAPACITY, _TOGETHER)
        self.assertIsNotNone(placed)

    def test_a_doubt_that_nothing_ends_ends_with_its_lease_and_is_remembered(self) -> None:
        made = self.scheduler.placing(["a"], 1, _Unanswered(_given_up("a"), ["a"]))
        self.assertIsNone(made.place())
        made.undo()
        [host] = [h for h in placing_trial.HOSTS if self.scheduler.ledger.read(h).claims]
        self.storm.clock.sleep()
        others = [f"b{number}" for number in range(len(placing_trial.HOSTS))]
        other = self.storm.scheduler("two", lambda step: None)
        # All that there is.
        self.assertIsNotNone(other.place(others, placing_trial.CAPACITY))
        record = self.scheduler.ledger.read(host)
        self.assertEqual((set(), {"a"}), ({*record.claims} - {*others}, {*record.lapsed}))


class _Losing:
    """A Placement of which some answers are lost, and what was written comes when it comes.

    :ivar late: what is on its way, not there yet
    :ivar there: what came so, of no server
    """

    def __init__(self, truth: placing_trial.Truth, rng: random.Random, *, keeps: bool) -> None:
        self._truth, self._rng, self._keeps = truth, rng, keeps
        self.late: dict[str, chosen_hosts.WantedClaim] = {}
        self.there: set[str] = set()
        #: Answered to nobody: as long as their leases run.
        self.lost: set[str] = set()

    def write(
        self, wanted: Sequence[chosen_hosts.WantedClaim], deadline: float
    ) -> dict[str, placing.AllocationOutcome]:
        results = {}
        for each in wanted:
            drawn = self._rng.random()
            lost = drawn < 0.5
            if not lost or drawn < 0.1:
                self._truth.write(each)
            if lost:
                self.lost.add(each.consumer)
                if drawn < 0.1:
                    self.there.add(each.consumer)
                elif drawn < 0.4:
                    self.late[each.consumer] = each
            results[each.consumer] = placing.AllocationOutcome(
                placing.AllocationResult.GIVEN_UP if lost else placing.AllocationResult.WRITTEN
            )
        return results

    def remove(self, wanted: Sequence[chosen_hosts.WantedClaim], deadline: float) -> None:
        for each in wanted:
            self._truth.remove(each.consumer)

    def is_in_doubt(self, wanted: chosen_hosts.WantedClaim) -> bool:
        return self._keeps and wanted.consumer in self.lost


class _LateWrites:
    """Two schedulers, and writes that come in any order with what both do."""

    def __init__(self, seed: int, *, keeps: bool = True) -> None:
        self._rng = random.Random(seed)
        self._keeps = keeps
        self._storm = placing_storm.memory_storm(seed)
        self._truth = self._storm.truth
        #: They see at once what is allocated: what came before a lease ended is shown then.
        self._schedulers = [
            placing_trial.Scheduler(
                self._storm.connect(),
                name,
                self._truth,
                lambda step: None,
                self._storm.clock,
                seed=seed,
            )
            for name in ("one", "two")
        ]
        self._asked: list[tuple[placing.Placing, _Losing]] = []
        self._made = 0
        self.seen: collections.Counter[str] = collections.Counter()

    def run(self, steps: int) -> bool:
        """Say whether no host ever held more than it has."""
        for _ in range(steps):
            step = self._rng.choice(
                (self._ask, self._ask, self._ask, self._arrive, self._end, self._delete, self._wait)
            )
            step()
            if self._is_over():
                return False
        return True

    def _is_over(self) -> bool:
        used: collections.Counter[str] = collections.Counter()
        for host, count in self._truth.copy()[0].values():
            used[host] += count
        return any(count > placing_trial.CAPACITY for count in used.values())

    def _ask(self) -> None:
        servers = [f"s{self._made + number}" for number in range(self._rng.randint(1, 2))]
        self._made += len(servers)
        authority = _Losing(self._truth, self._rng, keeps=self._keeps)
        scheduler = self._rng.choice(self._schedulers)
        made = scheduler.placing(servers, self._rng.randint(1, 2), authority)
        chosen = made.place()
        if chosen is None:
            made.undo()
            self._asked.append((made, authority))
            self.seen["given up" if made.given_up else "refused"] += 1
            return
        hosts = {server: each.uuid for server, each in zip(servers, chosen, strict=True)}
        self._truth.grant(hosts)
        self.seen["granted"] += 1

    def _arrive(self) -> None:
        waiting = [(a, name) for _, a in self._asked for name in sorted(a.late)]
        if waiting:
            authority, name = self._rng.choice(waiting)
            self._truth.write(authority.late.pop(name))
            authority.there.add(name)
            self.seen["arrived"] += 1

    def _end(self) -> None:
        """What is there is taken back; what may still come keeps its claim."""
        if self._asked:
            made, authority = self._rng.choice(self._asked)
            for name in sorted(authority.there):
                self._truth.remove(name)
            # A call of another thread that has ended: known now.
            authority.lost -= authority.there
            authority.there.clear()
            made.end_doubt()

    def _delete(self) -> None:
        granted = sorted(self._truth.copy()[1])
        if granted:
            self._truth.remove(self._rng.choice(granted))
            for host in placing_trial.HOSTS:
                self._schedulers[0].tidy(host)

    def _wait(self) -> None:
        """Every lease ends; a write comes no later than that, as operators are told."""
        if self._rng.random() < 0.2:
            for _, authority in self._asked:
                authority.late.clear()
            self._storm.clock.sleep()
            self.seen["lease ended"] += 1


class LateWritesTest(testtools.TestCase):
    def test_no_host_holds_more_than_it_has_whenever_lost_writes_come(self) -> None:
        seen: collections.Counter[str] = collections.Counter()
        for seed in range(40):
            trial = _LateWrites(seed)
            self.assertTrue(trial.run(60), f"seed {seed}")
            seen += trial.seen
        for name in ("granted", "given up", "refused", "arrived", "lease ended"):
            self.assertGreater(seen[name], 0, seen)

    def test_were_their_claims_given_back_a_host_would(self) -> None:
        self.assertFalse(all(_LateWrites(seed, keeps=False).run(60) for seed in range(40)))
