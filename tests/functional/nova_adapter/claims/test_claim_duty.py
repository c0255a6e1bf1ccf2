# SPDX-License-Identifier: Apache-2.0
"""Before a claim is dropped Placement is asked what its server has."""

from __future__ import annotations

import json
import unittest
from typing import Any

import attrs

from nova_nodb_scheduler.nova_adapter.claims import worker_claims
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.replication import replicator, replicator_contract
from nova_nodb_scheduler.wire import codec

SERVER = "33333333-0000-0000-0000-000000000001"
NODE = "22222222-0000-0000-0000-000000000001"


@attrs.frozen
class Response:
    status_code: int
    content: bytes


class ClaimDutyTest(unittest.TestCase):
    def setUp(self) -> None:
        self.asked: list[str] = []
        self.answer: Any = Response(200, b'{"allocations": {}}')
        store = host_state_store.HostStateStore(known_namespaces.BUILT_IN, codec.decode_state)
        client = memory.MemorySynchronizer()
        self.follower = replicator.Replicator(
            client, store, known_namespaces.BUILT_IN, identity="test"
        )
        self.duty = worker_claims.ClaimDuty(
            client, store, self.follower, lambda: 100.0, 60.0, "host", self.get
        )

    def get(self, path: str) -> Any:
        self.asked.append(path)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def test_allocations_are_told_by_provider(self) -> None:
        allocations = {NODE: {"generation": 3, "resources": {"VCPU": 2}}}
        self.answer = Response(200, json.dumps({"allocations": allocations}).encode())
        self.assertEqual({NODE: {"VCPU": 2}}, self.duty._allocations(SERVER))
        self.assertEqual([f"/allocations/{SERVER}"], self.asked)

    def test_a_server_without_allocations_has_none(self) -> None:
        self.assertEqual({}, self.duty._allocations(SERVER))

    def test_a_placement_that_does_not_answer_proves_nothing(self) -> None:
        for answer in (Response(503, b""), Response(200, b"<html>"), OSError("no route")):
            self.answer = answer
            self.assertIsNone(self.duty._allocations(SERVER))

    def test_nothing_is_settled_before_the_feed_is_followed(self) -> None:
        self.assertIsNot(replicator_contract.State.FOLLOWING, self.follower.status().state)
        self.assertFalse(self.duty.settler.ready)
        self.assertFalse(self.duty.settler.turn())

    def test_figures_are_numbers_for_status_and_metrics(self) -> None:
        figures = self.duty.figures()
        self.assertEqual({float}, set(map(type, figures.values())))
        self.assertEqual(0.0, figures["settles"])
