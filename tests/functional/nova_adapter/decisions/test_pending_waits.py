# SPDX-License-Identifier: Apache-2.0
"""Requests that only pending claims of other schedulers refuse, with a real Placement."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import attrs
from nova import exception, objects

from nova_nodb_scheduler.nova_adapter import manager
from nova_nodb_scheduler.nova_adapter.decisions import request_decider
from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts
from nova_nodb_scheduler.synchronizer.settlement import pending_waits, settlement_worker
from nova_nodb_scheduler.testing import patience
from tests.functional.nova_adapter.decisions import test_claimed_decisions

#: More than a decision takes, and far less than a lease.
AT_ONCE_SECONDS = 15.0


#: For claims to be seen before their lease ends.
SHORT_LEASE_SECONDS = 8.0


class NotedSlots(threading.BoundedSemaphore):
    """Tells that a request begins to wait."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.taken = threading.Event()

    def acquire(self, *args: Any, **kwargs: Any) -> bool:
        acquired = super().acquire(*args, **kwargs)
        self.taken.set()
        return acquired


class PendingWaitsTest(test_claimed_decisions.ClaimedDecisionsCase):
    CLAIM_WAIT_SECONDS = 60.0

    def begin(self) -> None:
        super().begin()
        settler = self.runtime.decisions.claim_duty.settler
        settler.pace(attrs.evolve(settler.options, look_seconds=0.5))

    def fill(self, vcpus: int = 0, *, dies: bool = False) -> list[chosen_hosts.TakenClaim]:
        """Claim all room but some of h1 as another scheduler, and have it seen."""
        if dies:
            self.LEASE_SECONDS = SHORT_LEASE_SECONDS
        taken = [self.claim("h1", 4 - vcpus), self.claim("h2", 2)]
        index = self.runtime.decisions.pending_waits.index
        nodes = {node.uuid for node in self.nodes.values()}
        patience.wait_until(lambda: len(index.pending(nodes)) == 2, 20.0, "the feed")
        return taken

    def allocate(self, taken: chosen_hosts.TakenClaim) -> None:
        """Write what a claim is for."""
        consumer, resources = taken.wanted.consumer, dict(taken.wanted.resources)
        owner = {"project_id": "p", "user_id": "u", "consumer_generation": None}
        allocations = {taken.wanted.chosen.uuid: {"resources": resources}}
        self.ask("put", f"/allocations/{consumer}", {**owner, "allocations": allocations})

    def waits(self) -> dict[str, int]:
        figures = self.runtime.claim_metrics.figures()
        return {name[7:]: n for name, n in figures.items() if name.startswith("waits: ")}

    def meanwhile(self, do: Callable[[], Any]) -> None:
        """Do something as soon as a request waits."""
        slots = NotedSlots(1)
        self.runtime.decisions.pending_waits.slots = slots

        def act() -> None:
            if slots.taken.wait(test_claimed_decisions.WAIT_SECONDS):
                do()

        thread = threading.Thread(target=act)
        thread.start()
        self.addCleanup(thread.join)

    def assert_refused_at_once(self, **fields: Any) -> None:
        began = time.monotonic()
        with self.assertRaises(exception.NoValidHost):
            self.select(**fields)
        self.assertLess(time.monotonic() - began, AT_ONCE_SECONDS)

    def test_the_room_that_a_scheduler_claimed_as_it_died_is_waited_for(self):
        self.fill(dies=True)
        uuids, _chosen = self.select()
        self.assertEqual({"memory": 1}, self.runtime.candidates())
        self.assertEqual({"freed": 1}, self.waits())
        self.assertIn(uuids[0], {*self.held("h1"), *self.held("h2")})

    def test_several_servers_hold_nothing_while_they_wait_for_room_for_all(self):
        self.fill(vcpus=1, dies=True)
        self.meanwhile(lambda: held.append({**self.held("h1"), **self.held("h2")}))
        held: list[Any] = []
        uuids, _chosen = self.select(servers=3)
        self.assertEqual([2], [len(each) for each in held])
        self.assertFalse(held[0].keys() & {*uuids})

    def test_who_loses_against_one_that_lives_is_refused_as_soon_as_that_is_known(self):
        taken = self.fill()
        own = self.stranger()

        def carry_on() -> None:
            for each in taken:
                self.allocate(each)
            own.confirm(taken)

        self.meanwhile(carry_on)
        self.assert_refused_at_once()
        self.assertEqual({"taken": 1}, self.waits())

    def test_what_one_that_lives_gives_back_is_had(self):
        taken = self.fill()
        own = self.stranger()
        self.meanwhile(lambda: own.release(taken))
        self.select()
        self.assertEqual({"freed": 1}, self.waits())

    def test_a_worker_that_is_to_end_waits_for_nobody(self):
        self.fill()
        self.meanwhile(self.manager.nodb_intake._on_stop)
        self.assert_refused_at_once()
        self.assertEqual({"stopped": 1}, self.waits())
        self.assert_refused_at_once()

    def test_a_worker_keeps_threads_for_others(self):
        self.fill()
        slots = self.runtime.decisions.pending_waits.slots
        while slots.acquire(blocking=False):
            self.addCleanup(slots.release)
        self.assert_refused_at_once()
        self.assertEqual({"crowded": 1}, self.waits())

    def test_half_of_a_workers_threads_are_kept_for_others(self):
        for threads in (64, 8):
            self.override("executor_thread_pool_size", threads, None)
            slots = manager.SchedulerManager(host="few").nodb.decisions.pending_waits.slots
            waiting = [slots.acquire(blocking=False) for _ in range(threads)]
            self.assertEqual(threads // 2, waiting.count(True))

    def test_who_is_refused_by_other_things_as_well_waits_for_nobody(self):
        self.fill()
        properties = objects.ImageMetaProps(hw_architecture="aarch64")
        self.assert_refused_at_once(image=objects.ImageMeta(properties=properties))
        self.assertEqual({}, self.waits())

    def test_traits_that_no_host_has_are_not_waited_for(self):
        self.fill()
        self.assert_refused_at_once(extra_specs={"trait:CUSTOM_NOWHERE": "required"})
        self.assertEqual({}, self.waits())

    def test_a_request_that_waits_in_a_queue_waits_there(self):
        self.fill(dies=True)
        with pending_waits.nobody_waits():
            self.assert_refused_at_once()
        self.assertEqual({}, self.waits())
        self.select()
        self.assertEqual({"freed": 1}, self.waits())

    def test_places_in_groups_outlast_who_waits_with_the_members_of_before(self):
        usual = settlement_worker.SettlementOptions().grace_seconds
        settler = self.runtime.decisions.claim_duty.settler
        self.assertEqual(usual + self.CLAIM_WAIT_SECONDS, settler.options.grace_seconds)

    def together(self, requests: int, servers: int) -> tuple[int, int]:
        """Have requests decided at once; return how many were served, and decisions in all."""
        decided = []
        own = request_decider._Decision.decide

        def decide(decision: Any) -> Any:
            decided.append(decision)
            return own(decision)

        served = []

        def ask() -> None:
            with contextlib.suppress(exception.NoValidHost):
                served.append(self.select(servers=servers))

        with mock.patch.object(request_decider._Decision, "decide", decide):
            threads = [threading.Thread(target=ask) for _ in range(requests)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
        return len(served), len(decided)

    def test_who_wait_together_share_what_ends_and_no_more(self):
        self.runtime.decisions.pending_waits.bounds = pending_waits.WaitBounds(20.0, 60.0)
        self.fill(dies=True)
        served, decided = self.together(requests=8, servers=1)
        self.assertEqual(6, served)
        self.assertEqual([4, 2], [self.used(host)["VCPU"] for host in ("h1", "h2")])
        self.assertLess(decided, 8 * 10)

    def test_several_servers_each_do_not_wake_one_another_for_ever(self):
        self.runtime.decisions.pending_waits.bounds = pending_waits.WaitBounds(20.0, 60.0)
        self.fill(dies=True)
        served, decided = self.together(requests=2, servers=4)
        self.assertEqual(1, served)
        self.assertEqual(4, sum(self.used(host)["VCPU"] for host in ("h1", "h2")))
        self.assertLess(decided, 2 * 10)

    def test_nobody_waits_longer_than_allowed(self):
        self.runtime.decisions.pending_waits.bounds = pending_waits.WaitBounds(2.0, 60.0)
        self.fill()
        self.assert_refused_at_once()
        self.assertEqual({"late": 1}, self.waits())
        self.runtime.decisions.pending_waits.bounds = pending_waits.WaitBounds(0.0, 60.0)
        self.assert_refused_at_once()
        self.assertEqual({"late": 1}, self.waits())
