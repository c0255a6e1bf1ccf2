# SPDX-License-Identifier: Apache-2.0
"""A host whose records the scheduler cannot read is no reason to say "no valid host"."""

from __future__ import annotations

import time
from typing import Any
from unittest import mock

from nova import exception, objects

from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.nova_adapter.reporting import state_proof
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.wire import codec
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.decisions import test_memory_decisions

FROM_PLACEMENT = {"unreadable records": 1}


class HostsLeftOutTest(test_memory_decisions.MemoryDecisionsCase):
    def hide(self, namespace: Any, key: str) -> None:
        """Publish a record as a newer release of Nova may write it."""
        publisher = self.plugin.publisher(self.synchronizer, known_namespaces.COMPUTE_NODES.owner)
        name = records.RecordKey(namespace.name, key)
        publisher.publish({name: lambda state: {**state, "object_version": "9.0"}})
        self.follow()

    def rebuild(self, host: str) -> Any:
        destination = objects.Destination(host=host, node=f"node-{host}")
        hints = {"_nova_check_type": ["rebuild"]}
        return self.select(requested_destination=destination, scheduler_hints=hints)

    def test_it_gets_the_server_where_all_others_are_full(self):
        self.hide(known_namespaces.COMPUTE_NODES, self.nodes["h1"].uuid)
        self.assertEqual("h1", self.select(vcpus=3)[1][0][0].service_host)
        self.assertEqual(FROM_PLACEMENT, self.runtime.candidates())

    def test_so_it_does_if_it_is_left_out_only_while_the_request_is_planned(self):
        decisions = self.runtime.decisions
        plan, hidden = decisions.engine.plan, []

        def planned(*args: Any, **kwargs: Any) -> Any:
            if not hidden:
                hidden.append("h1")
                self.hide(known_namespaces.COMPUTE_NODES, self.nodes["h1"].uuid)
                # Another request's.
                decisions.frame_keeper.catch_up(time.time())
            return plan(*args, **kwargs)

        with mock.patch.object(decisions.engine, "plan", planned):
            self.assertEqual("h1", self.select(vcpus=3)[1][0][0].service_host)
        self.assertEqual(FROM_PLACEMENT, self.runtime.candidates())

    def test_so_it_does_if_its_service_cannot_be_read(self):
        self.hide(known_namespaces.SERVICES, self.services["h1"].uuid)
        self.assertEqual("h1", self.select(vcpus=3)[1][0][0].service_host)
        self.assertEqual(FROM_PLACEMENT, self.runtime.candidates())

    def test_so_it_does_if_its_aggregate_cannot_be_read(self):
        aggregate = objects.Aggregate(self.admin, name="a")
        aggregate.create()
        aggregate.add_host("h1")
        self.reporter.flush()
        self.hide(known_namespaces.AGGREGATES, aggregate.uuid)
        self.assertEqual("h1", self.select(vcpus=3)[1][0][0].service_host)
        self.assertEqual(FROM_PLACEMENT, self.runtime.candidates())

    def test_so_it_does_if_what_a_newer_release_wrote_of_its_provider_cannot_be_read(self):
        providers = known_namespaces.PROVIDERS
        name = records.RecordKey(providers.name, self.nodes["h1"].uuid)
        schema = namespaces.SchemaVersion(providers.schema.major + 1, 0)
        payload = codec.encode({"of": "a later release"}, schema)
        revision = self.synchronizer.read([name])[name].revision
        [written] = self.synchronizer.write([records.Write(name, revision, payload)])
        self.assertTrue(written.won)
        self.follow()
        self.assertEqual("h1", self.select(vcpus=3)[1][0][0].service_host)
        self.assertEqual({"mirror not proved": 1}, self.runtime.candidates())

    def test_it_keeps_nobody_from_hosts_that_can_be_read(self):
        self.hide(known_namespaces.COMPUTE_NODES, self.nodes["h1"].uuid)
        self.assertEqual("h2", self.select(vcpus=2)[1][0][0].service_host)
        self.assertEqual({"memory": 1}, self.runtime.candidates())

    def add_unnamed(self, host: str) -> None:
        """Add an empty host whose service has a uuid that no record may be named by."""
        node = self.compute_node(cloud.CELL1, host, cpu_allocation_ratio=1.0)
        service = self.service(cloud.CELL1, host, uuid="a\nb")
        self.heartbeat(service)
        mapping = objects.CellMapping.get_by_uuid(self.admin, cloud.CELL1)
        objects.HostMapping(self.admin, host=host, cell_mapping=mapping).create()
        self.provider(node.uuid, VCPU=8, MEMORY_MB=16384, DISK_GB=100)
        self.reporter.flush()
        self.beat()

    def test_one_whose_record_can_have_no_name_gets_the_server_by_novas_own_path(self):
        self.add_unnamed("h9")
        self.assertTrue(self.runtime.replicator.wait_until(self.synchronizer.head().version, 20))
        self.settle()
        self.assertEqual("h9", self.select(vcpus=8)[1][0][0].service_host)
        # And behind a sweep, when the reporter says no more of it.
        self.sweep()
        self.beat()
        self.assertTrue(self.runtime.replicator.wait_until(self.synchronizer.head().version, 20))
        self.settle()
        with self.assertRaises(exception.NoValidHost):
            self.select(vcpus=9)
        self.assertEqual({cloud.CELL1: 2}, self.doubted())

    def doubted(self) -> dict[str, int]:
        reason = state_proof.UnprovedReason.UNNAMED.value
        by_cell = self.runtime.fallbacks_by_cell()
        return {cell: counts[reason] for cell, counts in by_cell.items() if reason in counts}

    def test_one_whose_record_can_have_no_name_keeps_nobody_from_the_others(self):
        self.add_unnamed("h9")
        self.assertTrue(self.runtime.replicator.wait_until(self.synchronizer.head().version, 20))
        self.settle()
        self.assertEqual("h1", self.select(vcpus=3)[1][0][0].service_host)
        self.assertEqual({"memory": 1}, self.runtime.candidates())

    def test_a_request_that_could_not_have_gone_there_is_refused_from_memory(self):
        self.hide(known_namespaces.COMPUTE_NODES, self.nodes["h1"].uuid)
        other = objects.Destination(host="h2", node="node-h2")
        far = objects.Destination(
            cell=objects.CellMapping.get_by_uuid(self.admin, cloud.CELL2),
            allow_cross_cell_move=False,
        )
        for fields in (
            {"force_hosts": ["h2"]},
            {"requested_destination": other},
            {"requested_destination": far},
            {"ignore_hosts": ["H1"]},
        ):
            with self.assertRaises(exception.NoValidHost):
                self.select(vcpus=3, **fields)
        self.assertEqual({"memory": 4}, self.runtime.candidates())

    def test_a_server_on_it_can_be_rebuilt(self):
        self.hide(known_namespaces.COMPUTE_NODES, self.nodes["h1"].uuid)
        self.assertEqual("h1", self.rebuild("h1")[1][0][0].service_host)
        self.assertEqual(FROM_PLACEMENT, self.runtime.candidates())

    def test_one_that_names_it_is_asked_of_placement(self):
        self.hide(known_namespaces.COMPUTE_NODES, self.nodes["h1"].uuid)
        self.assertEqual("h1", self.select(force_hosts=["h1"])[1][0][0].service_host)
        # In which cell it is, memory cannot tell.
        self.assertEqual({"states not proved": 1}, self.runtime.candidates())
