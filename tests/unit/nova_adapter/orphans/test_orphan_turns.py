# SPDX-License-Identifier: Apache-2.0
"""How many calls to Placement a turn of the finder takes, whatever is behind by then.

The memory driver, and our own classes over it; Placement is a set, whose calls are counted.
"""

from __future__ import annotations

import threading
import time
import unittest
from collections.abc import Collection, Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from keystoneauth1 import exceptions as keystone

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.orphans import (
    allocation_reads,
    orphan_finder,
    orphan_verdicts,
    turn_duty,
)
from nova_nodb_scheduler.nova_adapter.placement.allocations import placement_calls
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.claims import claim_rules
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.records import record_editor
from nova_nodb_scheduler.synchronizer.settlement import lapsed_claims
from nova_nodb_scheduler.wire import codec
from tests.unit.nova_adapter.orphans import test_left_property

Answer, RESOURCES = test_left_property.Answer, test_left_property.RESOURCES
OPTIONS = orphan_finder.OrphanFinderOptions()


class MadePlacement:
    """Answers as Placement, and keeps what it was asked.

    :ivar allocated: amounts by consumer and host
    """

    def __init__(self) -> None:
        self.allocated: dict[tuple[str, str], Mapping[str, int]] = {}
        self.asked: list[str] = []
        self.silent = False
        self.lists = True

    def get(self, url: str, **how: Any) -> Answer:
        self.asked.append(url)
        if self.silent:
            raise keystone.ConnectFailure
        _, kind, name, *_ = url.split("/")
        if kind == "resource_providers":
            found = {c: amounts for (c, h), amounts in self.allocated.items() if h == name}
            if not self.lists:
                return Answer({}, 404)
        else:
            found = {h: amounts for (c, h), amounts in self.allocated.items() if c == name}
        more = {"consumer_generation": 1, "project_id": "p", "user_id": "u"} if found else {}
        return Answer({"allocations": {k: {"resources": v} for k, v in found.items()}, **more})


def held(amounts: Mapping[str, int], ended: float = 0.0) -> model.HeldClaim:
    return model.HeldClaim(amounts, model.ClaimState.PENDING, "id", "dead", ended)


class OrphanTurnsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.now = 1000.0
        self.placement = MadePlacement()
        self.hub = memory.MemoryHub(clock=lambda: self.now)
        self.synchronizer = memory.MemorySynchronizer(None, self.hub)
        self.synchronizer.open()
        self.store = host_state_store.HostStateStore(known_namespaces.BUILT_IN, codec.decode_state)
        self.finder = orphan_finder.OrphanFinder(
            self.synchronizer,
            self.store.snapshot,
            orphan_verdicts.OrphanJudge(placement_calls.AllocationCalls(self.placement)),
            lapsed_claims.ClaimWriters(self.store, "own", 30.0, clock=lambda: self.now),
            lambda: self.now,
            record_editor.RecordCache(),
            lambda providers, consumers: None,
            clock=lambda: self.now,
        )

    def note(self, hosts: int, each: int, ended: float = 1000.0) -> None:
        noted = {
            f"n{host}": {f"c{host}-{number}": held(RESOURCES, ended) for number in range(each)}
            for host in range(hosts)
        }
        lapsed_claims.note_lapsed(self.synchronizer, record_editor.RecordCache(), noted)
        self.follow(noted)

    def follow(self, hosts: Collection[str]) -> None:
        for record in self.synchronizer.read([claim_rules.host_key(h) for h in hosts]).values():
            self.store.apply(records.Change(record, codec.decode_state(record.payload)))

    def turn(self) -> tuple[bool, int]:
        """Take a turn; return whether more is due, and how many calls it took."""
        self.placement.asked.clear()
        return self.finder.turn(), len(self.placement.asked)

    def test_a_thousand_of_which_nothing_is_there_take_a_call_a_host(self):
        self.note(16, 63)
        self.assertEqual((False, 16), self.turn())
        self.assertEqual(16 * 63, self.finder.status.looked)
        # They are looked at again as ever, and forgotten when nothing can come any more.
        self.assertEqual((False, 0), self.turn())
        self.now += 301.0
        self.assertEqual((False, 16), self.turn())
        self.follow([f"n{host}" for host in range(16)])
        self.assertEqual({}, orphan_verdicts.find_suspects(self.store.snapshot()))

    def test_as_many_on_hosts_of_their_own_take_bounded_turns_and_all_come_by(self):
        self.note(120, 1)
        self.assertEqual([(True, 50), (True, 50), (False, 20)], [self.turn() for _ in range(3)])
        self.assertEqual(120, self.finder.status.looked)

    def test_those_that_stand_are_read_each_within_the_same_bound(self):
        self.note(1, 60)
        self.placement.allocated = {(f"c0-{each}", "n0"): RESOURCES for each in range(60)}
        self.assertEqual([(True, 50), (False, 12)], [self.turn() for _ in range(2)])

    def test_a_placement_that_is_silent_is_asked_three_times_a_turn_and_nothing_hurries(self):
        self.note(10, 2)
        self.placement.silent = True
        asked = set()
        for _ in range(2):
            self.assertEqual((False, 3), self.turn())
            self.assertTrue(asked.isdisjoint(self.placement.asked))
            asked.update(self.placement.asked)
        self.placement.silent = False
        self.now += 31.0
        self.turn()
        self.assertEqual({"nothing"}, {each.kind.value for each in self.verdicts()})

    def test_one_that_is_suspected_on_more_hosts_than_a_turn_asks_for_keeps_nobody_waiting(self):
        noted = {f"n{host}": {"everywhere": held(RESOURCES, 1000.0)} for host in range(60)}
        lapsed_claims.note_lapsed(self.synchronizer, record_editor.RecordCache(), noted)
        self.follow(noted)
        self.turn()
        self.note(60, 1)
        self.placement.allocated = {(f"c{host}-0", f"n{host}"): RESOURCES for host in range(60)}
        self.now += 31.0
        self.assertEqual([(True, 50), (False, 36)], [self.turn() for _ in range(2)])
        self.assertEqual(2 + 60, self.finder.status.looked)

    def test_where_a_provider_is_not_listed_each_is_asked_for(self):
        self.note(1, 5)
        self.placement.lists = False
        self.assertEqual((False, 6), self.turn())
        self.assertEqual({"nothing"}, {each.kind.value for each in self.verdicts()})

    def test_what_may_have_come_while_placement_answered_is_not_forgotten(self):
        self.note(1, 5)
        self.now += 299.0
        own = self.placement.get

        def late(url: str, **how: Any) -> Answer:
            answer = own(url, **how)
            self.now += 2.0
            return answer

        self.placement.get = late  # type: ignore[method-assign]
        self.turn()
        self.follow(["n0"])
        self.assertEqual(5, len(orphan_verdicts.find_suspects(self.store.snapshot())))

    def verdicts(self) -> Collection[Any]:
        return self.finder._verdicts.values()


AMOUNTS = st.sampled_from([{"VCPU": 1}, {"VCPU": 2}])
CONSUMERS, HOSTS = st.sampled_from("abcdef"), st.sampled_from("123")


class SameVerdictsTest(unittest.TestCase):
    @settings(max_examples=300, deadline=None)
    @given(
        allocated=st.dictionaries(st.tuples(CONSUMERS, HOSTS), AMOUNTS),
        claimed=st.dictionaries(st.tuples(CONSUMERS, HOSTS), AMOUNTS),
        on=st.dictionaries(CONSUMERS, st.frozensets(HOSTS)),
    )
    def test_many_together_are_judged_as_each_alone(self, allocated, claimed, on):
        placement = MadePlacement()
        placement.allocated = allocated
        judge = orphan_verdicts.OrphanJudge(placement_calls.AllocationCalls(placement))
        suspected: dict[str, list[orphan_verdicts.SuspectedClaim]] = {name: [] for name in on}
        for (consumer, host), amounts in claimed.items():
            claim = orphan_verdicts.SuspectedClaim(consumer, host, held(amounts), True)
            suspected.setdefault(consumer, []).append(claim)
        store = host_state_store.HostStateStore(known_namespaces.BUILT_IN, codec.decode_state)
        snapshot = store.snapshot()
        together = judge.judge(suspected, snapshot, on)
        alone: dict[str, orphan_verdicts.JudgedAllocation] = {}
        for name, claims in suspected.items():
            alone.update(judge.judge({name: claims}, snapshot, on))
        self.assertEqual(alone, together)
        budget = allocation_reads.CallBudget(2)
        some = judge.judge(suspected, snapshot, on, budget=budget)
        self.assertLessEqual(some.items(), alone.items())


class Duty(turn_duty.TurnDuty):
    def __init__(self, answers: list[Any]) -> None:
        super().__init__("test", "Nothing is done", 300.0)
        self.answers = answers

    def _turn(self) -> bool:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)


class Pauses(threading.Event):
    """Does not wait, and keeps for how long it was asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        return False


class TurnDutyTest(unittest.TestCase):
    def test_turns_that_follow_one_another_leave_the_processor_to_others(self):
        class Busy(Duty):
            def _turn(self) -> bool:
                until = time.thread_time() + 0.2
                while time.thread_time() < until:
                    pass
                return super()._turn()

        duty, pauses = Busy([True, False, False]), Pauses()
        for _ in range(3):
            duty._step(pauses)
        self.assertEqual((10.0, 10.0), (pauses.seconds[0], pauses.seconds[2]))
        between = pauses.seconds[1]
        assert between is not None
        self.assertTrue(2.0 <= between <= 10.0, between)

    def test_the_next_turn_is_soon_where_more_is_due_and_at_leisure_else_or_behind_a_failure(self):
        duty, pauses = Duty([True, True, errors.BackendUnavailable("x", "y"), True]), Pauses()
        for _ in range(4):
            duty._step(pauses)
        self.assertEqual([10.0, 1.0, 1.0, 10.0], pauses.seconds)
        # The fourth one waits for the failure to be over.
        self.assertEqual(([True], 1), (duty.answers, duty.failures))
