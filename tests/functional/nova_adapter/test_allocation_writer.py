# SPDX-License-Identifier: Apache-2.0
"""Writing allocations of new servers, against a real Placement."""

from __future__ import annotations

import random
from typing import Any

from nova_nodb_scheduler.nova_adapter.placement import allocations, outcomes
from tests.functional.nova_adapter import placement_cloud as cloud

LONG = 30.0


class WriterCase(cloud.PlacementCase):
    def setUp(self) -> None:
        super().setUp()
        self.client = cloud.Client(self.placement.endpoint)
        self.now = 0.0
        self.writer = self.make()

    def make(self, **options: Any) -> allocations.AllocationWriter:
        return allocations.AllocationWriter(
            self.client, clock=self.clock, sleep=self.sleep, rng=random.Random(1), **options
        )

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def write(self, *servers: outcomes.Server, **options: Any) -> dict[str, outcomes.Outcome]:
        return self.writer.write(servers, self.now + LONG, **options)


class OneRequestTest(WriterCase):
    def test_a_new_server_is_one_post_and_nothing_else(self) -> None:
        host = self.provider(VCPU=4, MEMORY_MB=100)
        one = cloud.server(host, VCPU=2, MEMORY_MB=50)
        self.assertEqual({one.consumer: outcomes.Written()}, self.write(one))
        self.assertEqual({"post": 1}, dict(self.client.calls))
        self.assertEqual({host: {"VCPU": 2, "MEMORY_MB": 50}}, self.held(one.consumer))
        stored = self.admin.get(f"/allocations/{one.consumer}", version="1.36").json()
        self.assertEqual(("project", "user"), (stored["project_id"], stored["user_id"]))

    def test_placement_stores_the_same_as_for_novas_own_claim(self) -> None:
        host = self.provider(VCPU=4)
        ours, novas = cloud.server(host), cloud.server(host)
        self.write(ours)
        context = type("Context", (), {"global_id": None})()
        done = self.admin.claim_resources(
            context, novas.consumer, novas.request, "project", "user", "1.36"
        )
        self.assertTrue(done)
        stored = [
            self.admin.get(f"/allocations/{each.consumer}", version="1.38").json()
            for each in (ours, novas)
        ]
        self.assertEqual(stored[1], stored[0])

    def test_fifty_servers_are_one_post(self) -> None:
        hosts = [self.provider(VCPU=5) for _ in range(10)]
        servers = [cloud.server(hosts[number % 10]) for number in range(50)]
        found = self.write(*servers)
        self.assertEqual([outcomes.Written] * 50, cloud.kinds(servers, found))
        self.assertEqual({"post": 1}, dict(self.client.calls))
        self.assertEqual([50], self.client.sizes)
        self.assertEqual([{"VCPU": 5}] * 10, [self.usages(host) for host in hosts])

    def test_a_full_host_is_named(self) -> None:
        host = self.provider(VCPU=1, MEMORY_MB=10)
        one = cloud.server(host, VCPU=2)
        outcome = self.write(one)[one.consumer]
        self.assertIsInstance(outcome, outcomes.Full)
        self.assertEqual(
            (host, "VCPU", True),
            (outcome.provider, outcome.resource_class, outcome.by_capacity),
        )
        self.assertEqual({"post": 1}, dict(self.client.calls))
        self.assertEqual({}, self.usages(host))
