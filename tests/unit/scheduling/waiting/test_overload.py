# SPDX-License-Identifier: Apache-2.0
"""A cloud that is asked for more than it has: who gets how much, and who is kept waiting."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import testtools

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.waiting import queue_settings
from tests.unit.scheduling.waiting import made_cloud, samples

SEEDS = (1, 2, 3)


def stream(cloud: made_cloud.MadeCloud, name: str, **fields: object) -> Iterator[object]:
    """Make requests of one kind without end, each asked for when it is drawn."""
    for number in itertools.count():
        vcpus = fields.get("vcpus") or cloud.chance.choice([1, 1, 2, 4])
        others = {key: value for key, value in fields.items() if key != "vcpus"}
        yield samples.request(
            f"{name}-{number:05d}", vcpus, asked_at=cloud.now, parked_at=cloud.now, **others
        )


def keep_waiting(cloud: made_cloud.MadeCloud, source: Iterator[object], project: str) -> None:
    """Have thirty requests of a project wait."""
    while cloud.queues.backlog.of_project(project).requests < 30:
        cloud.arrive(next(source))


class SharesTest(testtools.TestCase):
    def parts(self, seed: int, late: bool = False) -> tuple[float, float]:
        """Return the part of vCPU time, and of servers placed, that weight 1 got beside 3."""
        cloud = made_cloud.MadeCloud(12, 16, seed, project_weights={"heavy": 3.0})
        light = stream(cloud, "light", project_id="light")
        heavy = stream(cloud, "heavy", project_id="heavy")
        sums = {"light": 0, "heavy": 0}
        placed = 0
        for tick in range(400):
            keep_waiting(cloud, light, "light")
            if not late or tick >= 60:
                keep_waiting(cloud, heavy, "heavy")
            cloud.step(0.5)
            if tick == 140:
                placed = len(cloud.placed)
            if tick > 140:
                for project in sums:
                    sums[project] += cloud.used[project]
        taken = [sum(each.needs.values()) for each in cloud.placed[placed:]]
        light_taken = sum(
            amount
            for amount, each in zip(taken, cloud.placed[placed:], strict=True)
            if each.project_id == "light"
        )
        return sums["light"] / sum(sums.values()), light_taken / sum(taken)

    def test_projects_of_weights_1_and_3_share_1_to_3(self):
        for seed in SEEDS:
            of_time, of_placed = self.parts(seed)
            self.assertTrue(0.2375 <= of_time <= 0.2625, (seed, of_time))
            self.assertTrue(0.2375 <= of_placed <= 0.2625, (seed, of_placed))

    def test_who_had_the_cloud_alone_comes_down_to_its_share(self):
        of_time, of_placed = self.parts(SEEDS[0], late=True)

        self.assertTrue(0.2375 <= of_time <= 0.2625, of_time)
        self.assertTrue(0.2375 <= of_placed <= 0.2625, of_placed)


class ClassesTest(testtools.TestCase):
    def test_a_higher_class_goes_first_and_nobody_loses_a_host_for_it(self):
        for seed in SEEDS:
            cloud = made_cloud.MadeCloud(4, 8, seed, order=queue_settings.Order.FIFO)
            low = stream(cloud, "low", vcpus=1, priority_class="low")
            cloud.arrive(*itertools.islice(low, 100))
            cloud.step(0.0)
            for host in cloud.free:
                cloud.wake(host)
            running = {each.key for each in cloud.running}
            high = stream(cloud, "high", vcpus=1, priority_class="high")
            cloud.arrive(*itertools.islice(high, 20))
            full = len(cloud.placed)
            cloud.step(0.0)
            self.assertEqual(running, {each.key for each in cloud.running})
            while len(cloud.placed) < full + 40:
                cloud.step(0.5)

            after = [each.priority_class for each in cloud.placed[full : full + 40]]
            self.assertEqual(["high"] * 20 + ["low"] * 20, after)


class StarvationTest(testtools.TestCase):
    def wait_of_the_large_one(self, seed: int, is_held: bool) -> float:
        """Return how long a request for a whole host waits beside a stream of small ones."""
        cloud = made_cloud.MadeCloud(
            6, 8, seed, order=queue_settings.Order.FIFO, hold_after_seconds=5.0, hold_seconds=100.0
        )
        small = stream(cloud, "small", vcpus=1)
        keep_waiting(cloud, small, "project")
        cloud.step(0.0)
        for _ in range(20):
            keep_waiting(cloud, small, "project")
            cloud.step(0.5)
        large = samples.request("large", 8, asked_at=cloud.now, parked_at=cloud.now)
        cloud.arrive(large)
        for _ in range(400):
            keep_waiting(cloud, small, "project")
            if is_held:
                cloud.hold()
            cloud.step(0.5)
            if large.key in {each.key for each in cloud.placed}:
                return cloud.now - large.asked_at
        return float("inf")

    def test_the_first_is_not_starved_by_small_ones_while_it_holds_a_host(self):
        for seed in SEEDS:
            # All that ran on the host when it was held has ended: 15 seconds at most. Until
            # it is the first of its class those that asked before it go: some seconds.
            self.assertLess(self.wait_of_the_large_one(seed, is_held=True), 45.0)

    def test_without_a_hold_it_would_be(self):
        self.assertEqual(float("inf"), self.wait_of_the_large_one(SEEDS[0], is_held=False))


class GangsTest(testtools.TestCase):
    def test_a_gang_is_placed_as_a_whole_or_waits_as_a_whole(self):
        for seed in SEEDS:
            cloud = made_cloud.MadeCloud(6, 8, seed)
            kinds = [
                stream(cloud, f"gang-{size}", vcpus=2, servers=size, project_id=f"p{size}")
                for size in (1, 3, 7)
            ]
            for _ in range(200):
                for size, kind in zip((1, 3, 7), kinds, strict=True):
                    keep_waiting(cloud, kind, f"p{size}")
                cloud.step(0.5)

            servers = dict.fromkeys((1, 3, 7), 0)
            for each in cloud.placed:
                servers[len(each.servers)] += 1
            self.assertTrue(all(servers.values()), servers)
            waiting: list[pending.PendingRequest] = list(cloud.queues.ordered(cloud.now))
            placed = {each.key for each in cloud.placed}
            self.assertEqual(set(), placed & {each.key for each in waiting})


class EverybodyTest(testtools.TestCase):
    def test_whoever_fits_is_woken_in_the_end(self):
        """Events that are lost, walks that are cut short: the sweep finds all of them."""
        for seed in SEEDS:
            cloud = made_cloud.MadeCloud(1, 500, seed)
            cloud.free["host-0"] = 0
            kinds = cloud.chance.sample(range(300), 300)
            for number in kinds:
                cloud.arrive(samples.request(f"r{number}", 1, queue=f"queue-{number}"))
            while cloud.queues.wake_fresh(cloud.now).next() is not None:
                pass
            cloud.free["host-0"] = 500
            calls = 0
            while len(cloud.queues) and calls < 100:
                cloud.take(cloud.queues.sweep(cloud.now))
                calls += 1

            self.assertEqual(300, len(cloud.placed))
            self.assertTrue(calls <= 10, calls)
