# SPDX-License-Identifier: Apache-2.0
"""Which hints of the feed are worth a look at Placement, and what finding out costs."""

import unittest
from collections.abc import Mapping
from typing import Any

from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.nova_adapter.placement.mirror import (
    hinted_reads,
    placement_reader,
    tree_publisher,
)
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.records import publisher
from nova_nodb_scheduler.wire import codec
from tests.unit.scheduling import hosts

NODE = "00000000-0000-4000-8000-000000000001"
OTHER = "00000000-0000-4000-8000-000000000002"


class HintsOfTheFeedTest(unittest.TestCase):
    def setUp(self) -> None:
        self.trees_decoded = 0
        self.versions: dict[records.RecordKey, int] = {}
        self.store = host_state_store.HostStateStore(known_namespaces.BUILT_IN, self.decode)

    def decode(self, payload: bytes) -> Mapping[str, Any]:
        state = codec.decode_state(payload)
        self.trees_decoded += "allocations" in state
        return state

    def put(self, namespace: namespaces.Namespace, name: str, state: Mapping[str, Any]) -> None:
        key = records.RecordKey(namespace.name, name)
        number = self.versions[key] = self.versions.get(key, 0) + 1
        payload = codec.encode(state, namespace.schema)
        record = records.Record(key, number, sum(self.versions.values()), payload)
        self.store.apply(records.Change(record, state))

    def reads(self) -> hinted_reads.HintedReads:
        synchronizer = memory.MemorySynchronizer(None, memory.MemoryHub())
        declared = {each.name: each for each in known_namespaces.BUILT_IN}
        reader = placement_reader.PlacementReader(self.fail)
        return hinted_reads.HintedReads(
            self.store.snapshot(),
            tree_publisher.TreePublisher(
                synchronizer,
                publisher.Publisher(synchronizer, declared, known_namespaces.PLACEMENT),
                reader,
            ),
            reader,
            publisher.Publisher(synchronizer, declared, known_namespaces.NODB),
            lambda: 0.0,
        )

    def test_no_tree_is_decoded_for_a_hint_that_asks_nothing_of_its_state(self):
        for generation, name in enumerate((NODE, OTHER)):
            self.put(known_namespaces.PROVIDERS, name, hosts.provider(generation))
        self.put(known_namespaces.COMPUTE_NODES, OTHER, hosts.node(OTHER, "h2"))
        reads = self.reads()
        # A node that is new, and one whose size is another.
        self.put(known_namespaces.COMPUTE_NODES, NODE, hosts.node(NODE, "h1"))
        resized = hosts.node(OTHER, "h2")
        resized = {**resized, "row": {**resized["row"], "vcpus": resized["row"]["vcpus"] + 1}}
        self.put(known_namespaces.COMPUTE_NODES, OTHER, resized)
        reads.follow(self.store.snapshot(), lambda root: False)
        self.assertEqual(1, len(reads))
        self.assertEqual(0, self.trees_decoded)
