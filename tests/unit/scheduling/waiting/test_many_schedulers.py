# SPDX-License-Identifier: Apache-2.0
"""Several schedulers with late views of the records: nobody twice, in order but for the lag."""

from __future__ import annotations

import random
import zlib

import attrs
import numpy as np
import testtools

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.waiting import (
    grown_hosts,
    queue_settings,
    wait_queues,
    wake_ups,
)
from tests.unit.scheduling.waiting import samples

SEEDS = (1, 2, 3, 4)
SCHEDULERS = 3
MOST_LAG = 3
LEFT_SECONDS = 10.0
PLACING_SECONDS = 2
REQUESTS = 60


class World:
    """Records under compare-and-set, and hosts that each take one server.

    :ivar log: what happened, for whoever follows: (when, record or None, its key, host or None)
    """

    def __init__(self) -> None:
        self.now = 0
        self.records: dict[str, pending.PendingRequest] = {}
        self.log: list[tuple[int, pending.PendingRequest | None, str, str | None]] = []
        self.hosts: dict[str, str | None] = {}
        self.to_place: list[tuple[int, str, int]] = []
        self.granted_at: dict[str, list[int]] = {}
        self.placed: list[str] = []

    def write(self, key: str, record: pending.PendingRequest | None) -> None:
        if record is None:
            del self.records[key]
        else:
            self.records[key] = record
        self.log.append((self.now, record, key, None))

    def host_grows(self, host: str) -> None:
        self.hosts[host] = None
        self.log.append((self.now, None, "", host))

    def grant(self, seen: pending.PendingRequest, host: str) -> bool:
        """Compare and set: whether the record was still the one that was seen."""
        if self.records.get(seen.key) != seen:
            return False
        self.write(seen.key, samples.granted(seen, self.now + 30.0, host))
        self.granted_at.setdefault(seen.key, []).append(self.now)
        self.to_place.append((self.now + PLACING_SECONDS, seen.key, seen.grant.attempt + 1))
        return True

    def conductors_work(self) -> None:
        for when, key, attempt in list(self.to_place):
            if when > self.now:
                continue
            self.to_place.remove((when, key, attempt))
            record = self.records[key]
            assert record.grant.attempt == attempt, "somebody else was given the same attempt"
            if self.hosts[record.grant.host] is None:
                self.hosts[record.grant.host] = key
                self.placed.append(key)
                self.write(key, None)
            else:
                waiting = pending.PendingState.WAITING
                self.write(key, attrs.evolve(record, state=waiting, not_before=self.now + 1.0))


class Scheduler:
    """One of them, with its own view."""

    def __init__(self, world: World, number: int, chance: random.Random) -> None:
        self.world = world
        self.number = number
        self.chance = chance
        self.queues = wait_queues.WaitQueues(
            queue_settings.QueueSettings(order=queue_settings.Order.FIFO)
        )
        self.free: dict[str, int] = {}
        self.followed = 0

    def work(self) -> None:
        now = self.world.now
        seen_until = now - self.chance.randint(0, MOST_LAG)
        grown = []
        while self.followed < len(self.world.log):
            when, record, key, host = self.world.log[self.followed]
            if when > seen_until:
                break
            self.followed += 1
            if host is not None:
                self.free[host] = 1
                grown.append(host)
            elif record is None:
                # Its claim has been seen before its record goes.
                was = self.queues.get(key)
                if was is not None:
                    self.free[was.grant.host] = 0
                    self.queues.show(key, now)
                self.queues.drop(key, now)
            else:
                self.queues.put(record, now)
        self.queues.advance(now)
        for host in [*grown, *self.queues.take_released()]:
            growth = grown_hosts.Growth(
                (host,), samples.RESOURCES, np.array([[self.free[host]] * 2], np.int64)
            )
            self.answer(self.queues.wake(growth, now))
        self.answer(self.queues.wake_fresh(now))
        self.answer(self.queues.sweep(now))

    def answer(self, walk: wake_ups.WakeUp) -> None:
        now = self.world.now
        while (candidate := walk.next()) is not None:
            charged = self.queues.charged()
            open_hosts = [h for h, room in self.free.items() if room and h not in charged]
            hosts = candidate.hosts or open_hosts
            if not hosts:
                walk.refused()
            elif zlib.crc32(candidate.request.queue.encode()) % SCHEDULERS != self.number:
                walk.left(hosts[:1], now + LEFT_SECONDS)
            elif self.world.grant(candidate.request, hosts[0]):
                walk.granted(hosts[:1], now + 30.0)
            else:
                walk.lost()


class ManySchedulersTest(testtools.TestCase):
    def run_all(self, seed: int) -> World:
        chance = random.Random(seed)
        world = World()
        schedulers = [Scheduler(world, number, chance) for number in range(SCHEDULERS)]
        for number in range(REQUESTS):
            key = f"r{number:03d}"
            queue = f"queue-{chance.randrange(10)}"
            world.write(key, samples.request(key, queue=queue, asked_at=float(number) - 100))
        for tick in range(1, 400):
            world.now = tick
            if tick % 2 and tick < 2 * REQUESTS + 20:
                world.host_grows(f"host-{tick}")
            for each in chance.sample(schedulers, len(schedulers)):
                if chance.random() < 0.8:
                    each.work()
            world.conductors_work()
        return world

    def test_all_are_placed_and_nobody_twice(self):
        for seed in SEEDS:
            world = self.run_all(seed)

            self.assertEqual(REQUESTS, len(world.placed), seed)
            self.assertEqual(REQUESTS, len(set(world.placed)))
            self.assertEqual({}, world.records)

    def test_the_order_is_kept_but_for_the_lag(self):
        """Nobody goes before another who has waited longer, by more than views are late."""
        for seed in SEEDS:
            world = self.run_all(seed)
            slack = 2 * MOST_LAG + PLACING_SECONDS
            latest = 0
            for key in sorted(world.granted_at, reverse=True):
                # Going back in order: who stands before was granted first, or a lag later.
                granted = world.granted_at[key][0]
                later = [at[0] for other, at in world.granted_at.items() if other > key]
                latest = max(latest, granted - min(later, default=granted))
            self.assertTrue(latest <= slack, (seed, latest))

    def test_what_is_left_to_a_scheduler_that_is_silent_is_tried_again(self):
        world = World()
        chance = random.Random(1)
        one = Scheduler(world, 0, chance)
        queue = next(
            name for name in map(str, range(99)) if zlib.crc32(name.encode()) % SCHEDULERS == 1
        )
        world.write("a", samples.request("a", queue=queue))
        world.host_grows("host")
        world.now = 10
        one.work()
        self.assertEqual({}, world.granted_at)
        one.number = 1  # The other one is gone: this one takes over.
        world.now = 15
        one.work()
        self.assertEqual({}, world.granted_at)
        world.now = 10 + int(LEFT_SECONDS)
        one.work()

        self.assertEqual({"a": [20]}, world.granted_at)
