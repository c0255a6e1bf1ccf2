# SPDX-License-Identifier: Apache-2.0
"""Hosts listed over Nova's bus, held against what Nova's own functions read from its cells."""

from __future__ import annotations

import pathlib
import sys
import threading
from typing import Any
from unittest import mock

import attrs
from nova import context as nova_context
from nova import objects as nova_objects

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter import rpc_server
from nova_nodb_scheduler.nova_adapter.service import judged_snapshots
from nova_nodb_scheduler.store import store_snapshot
from nova_nodb_scheduler.wire import objects
from tests.functional.nova_adapter import asking_case, cloud, rabbitmq
from tests.unit.rpc import cloud as unit_cloud

ROOT = pathlib.Path(__file__).resolve().parents[4]
sys.path.append(str(ROOT / "doc/source/user/examples"))
import list_hosts  # noqa: E402

CELLS = (cloud.CELL1, cloud.CELL2)


class ListingTest(asking_case.AskingCase):
    HOSTS = (
        (cloud.CELL2, "east-1", 4, {"vcpus_used": 1}),
        (cloud.CELL1, "west-1", 2, {}),
        (cloud.CELL1, "west-10", 8, {}),
        (cloud.CELL2, "east-2", 8, {}),
        (cloud.CELL1, "north", 8, {}),
    )

    def setUp(self) -> None:
        super().setUp()
        self.rpc = rpc_server.make_client(self.plugin, 5.0)

    def walk(self, **query: Any) -> list[objects.ListedHost]:
        self.beat()
        return list(self.rpc.iterate_hosts(self.admin, **query))

    def uuids(self, **query: Any) -> list[str]:
        return [each.uuid for each in self.walk(**query)]

    def of_nova(self, read: Any) -> list[Any]:
        """Ask each cell's database, as Nova's API does, in order of the cells' uuids."""
        found = []
        for cell in CELLS:
            context = nova_context.get_admin_context()
            mapping = nova_objects.CellMapping.get_by_uuid(context, cell)
            with nova_context.target_cell(context, mapping) as targeted:
                found += [(cell, each) for each in read(targeted)]
        return found

    def refused(self) -> errors.StatesNotProved:
        with self.assertRaises(errors.StatesNotProved) as raised:
            self.rpc.list_host_states(self.admin)
        return raised.exception

    def test_pages_are_those_of_novas_own_list(self) -> None:
        """A host deleted and one made meanwhile included: both have ids of the table."""
        self.nodes["west-10"].destroy()
        self.host(cloud.CELL1, "west-2")
        self.reporter.flush()
        self.follow()
        for limit in (1, 2, 100):
            found = self.walk(limit=limit)
            expected = self.of_nova(nova_objects.ComputeNodeList.get_all)
            self.assertEqual(
                [(cell, node.id, node.uuid, node.host) for cell, node in expected],
                [(each.cell, each.id, each.uuid, each.host) for each in found],
            )
        marker = expected[1][1]
        later = self.of_nova(
            lambda context: nova_objects.ComputeNodeList.get_by_pagination(
                context, marker=marker.id if context.cell_uuid == cloud.CELL1 else None
            )
        )
        self.assertEqual([node.uuid for _, node in later], self.uuids(marker=marker.uuid))
        gone = self.nodes["west-10"].uuid
        self.assertRaises(errors.MarkerNotFound, self.uuids, marker=gone)

    def follow(self) -> None:
        version = self.synchronizer.head().version
        self.assertTrue(self.runtime.replicator.wait_until(version, 10.0))

    def test_a_search_finds_what_novas_search_finds(self) -> None:
        for search in ("st-1", "WEST", "e%t", "_orth", "t__1", "nobody", "%", "st-_"):
            with self.subTest(search):
                expected = self.of_nova(
                    lambda context: nova_objects.ComputeNodeList.get_by_hypervisor(
                        context,
                        search,  # noqa: B023 - called at once
                    )
                )
                self.assertEqual(
                    {node.uuid for _, node in expected}, set(self.uuids(search=search))
                )

    def test_a_row_is_novas_row(self) -> None:
        [found] = self.walk(host="east-1", node=self.nodes["east-1"].hypervisor_hostname)

        expected = self.nodes["east-1"].obj_to_primitive()["nova_object.data"]
        row = found.state["row"]
        for name in ("uuid", "vcpus", "vcpus_used", "memory_mb", "free_disk_gb", "host"):
            self.assertEqual(expected[name], row[name], name)

    def test_a_service_leads_to_its_hosts_nodes(self) -> None:
        service = self.services["west-1"]

        [found] = self.walk(service=service.uuid, namespaces=["services", "providers"])

        self.assertEqual(self.nodes["west-1"].uuid, found.uuid)
        told = {each.namespace: each for each in found.related}
        self.assertEqual(service.uuid, told["services"].key)
        inventories = told["providers"].state["inventories"]
        self.assertEqual(2, inventories["VCPU"]["total"])

    def test_a_page_says_the_epoch_and_the_place_of_the_feed(self) -> None:
        self.beat()
        self.follow()
        page = self.rpc.list_host_states(self.admin, namespaces=["providers"])

        status = self.runtime.replicator.status()
        self.assertEqual(self.synchronizer.head().epoch, page.epoch)
        self.assertLessEqual(page.version, status.cursor_version)
        self.assertGreaterEqual(page.version, max(each.version for each in page.hosts))
        self.assertLess(page.proof_age_seconds, 60)
        self.assertEqual(
            {cloud.CELL1: 3, cloud.CELL2: 2, "placement": 5},
            {each.scope: each.hosts for each in page.scopes},
        )

    def test_cells_that_are_not_proved_are_refused_by_name_and_given_to_who_asks(self) -> None:
        self.bounds(reporter_bound_seconds=-1.0)

        error = self.refused()

        self.assertIn(cloud.CELL1, error.reasons)
        self.assertIn("here", error.scheduler)
        page = self.rpc.list_host_states(self.admin, unproved=True)
        self.assertEqual(5, len(page.hosts))
        self.assertEqual([False, False], [each.proved for each in page.scopes])

    def bounds(self, **seconds: float) -> None:
        """Have the judge go by other bounds: what is older than those is long ago."""
        judge = self.runtime.judge
        judge._options = attrs.evolve(judge._options, **seconds)

    def test_a_worker_whose_feed_ended_lists_nothing_after_its_bound(self) -> None:
        self.runtime.replicator.stop()
        self.assertEqual(5, len(self.rpc.list_host_states(self.admin).hosts))
        self.bounds(feed_bound_seconds=0.0)

        error = self.refused()

        self.assertIn("feed not proved", error.reasons)

    def test_a_store_that_is_rebuilt_meanwhile_proves_nothing(self) -> None:
        """The generation moves between the two looks at it, as in a resync."""
        generations = iter(range(1000))
        self.replicate(generation=property(lambda _: next(generations)))

        error = self.refused()

        self.assertIn("feed not proved", error.reasons)
        page = self.rpc.list_host_states(self.admin, namespaces=["providers"], unproved=True)
        self.assertEqual({False}, {each.proved for each in page.scopes})
        self.assertEqual("placement", page.scopes[-1].scope)
        self.assertIsNone(page.proof_age_seconds)
        self.assertIsNone(self.rpc.get_host_states(self.admin, "compute_nodes").proof_age_seconds)

    def replicate(self, **attributes: Any) -> None:
        """Let the replicator's methods be others."""
        own = type(self.runtime.replicator)
        self.runtime.replicator.__class__ = type(own.__name__, (own,), attributes)
        self.addCleanup(setattr, self.runtime.replicator, "__class__", own)

    def test_a_feed_that_comes_back_behind_the_snapshot_does_not_prove_it(self) -> None:
        """What it then brings is not in the snapshot, which is as old as the feed was."""
        here, asked = threading.get_ident(), []

        def alive(bound_seconds: float) -> bool:
            if threading.get_ident() == here:
                asked.append(bound_seconds)
            return len(asked) != 1

        judge = self.runtime.judge
        with mock.patch.object(judge, "_feed_alive", alive):
            found = judged_snapshots.JudgedSnapshots(self.runtime).take()

        self.assertGreater(len(asked), 1)
        self.assertEqual({False}, {each.proved for each in (*found.cells, *found.others)})

    def test_a_record_that_is_repaired_behind_the_snapshot_does_not_prove_it(self) -> None:
        """Nor is it missing without a word: the snapshot has not even an older one."""
        key = "compute_nodes", "unheard-of"
        self.put(*key, b"?")
        store = self.runtime.store
        take = store.snapshot

        def taken() -> store_snapshot.Snapshot:
            store.snapshot = take
            found = take()
            self.put(*key, None)
            self.assertEqual(0, len(self.runtime.replicator.quarantine))
            return found

        with mock.patch.object(store, "snapshot", taken):
            found = judged_snapshots.JudgedSnapshots(self.runtime).take()

        self.assertEqual({"unreadable records"}, {each.reason for each in found.cells})
        self.assertEqual({"unheard-of"}, found.unreadable)
        self.assertEqual(5, len(self.walk()))

    def put(self, namespace: str, key: str, payload: bytes | None) -> None:
        """Write what no writer of this release writes; None: delete it."""
        name = records.RecordKey(namespace, key)
        known = self.synchronizer.read([name]).get(name)
        revision = 0 if known is None or known.deleted else known.revision
        write = records.Write(name, revision, payload or b"", deleted=payload is None)
        [result] = self.synchronizer.write([write])
        self.assertTrue(result.won, result)
        self.follow()

    def test_a_host_that_cannot_be_read_is_refused_or_told_of_as_broken(self) -> None:
        broken = self.nodes["west-1"].uuid
        self.put("compute_nodes", broken, b"?")
        self.beat()

        self.assertEqual(f"{cloud.CELL1}: unreadable records", self.refused().reasons)
        page = self.rpc.list_host_states(self.admin, unproved=True)
        self.assertEqual([broken], page.unreadable)
        self.assertIn(broken, [each.uuid for each in page.hosts])
        self.assertEqual([], self.rpc.list_host_states(self.admin, cell=cloud.CELL2).unreadable)
        # Of this one nobody knows what it was.
        self.put("compute_nodes", "unheard-of", b"?")
        for query, expected in (
            ({}, [broken, "unheard-of"]),
            ({"cell": cloud.CELL2}, ["unheard-of"]),
            ({"keys": [broken, self.nodes["north"].uuid]}, [broken]),
        ):
            page = self.rpc.list_host_states(self.admin, unproved=True, **query)
            self.assertEqual(sorted(expected), page.unreadable)

    def test_what_belongs_to_a_host_and_cannot_be_read_is_refused_where_it_is_asked_for(
        self,
    ) -> None:
        uuid = self.nodes["west-1"].uuid
        for namespace, scope in (("providers", "placement"), ("claims", "claims")):
            self.put(namespace, uuid, b"?")
            self.beat()
            self.assertEqual(5, len(self.rpc.list_host_states(self.admin).hosts))
            with self.assertRaises(errors.StatesNotProved) as raised:
                self.rpc.list_host_states(self.admin, namespaces=[namespace])
            self.assertEqual(f"{scope}: unreadable records", raised.exception.reasons)

    def test_a_cell_with_a_row_that_no_record_may_be_named_by_is_refused(self) -> None:
        """A host may be missing in memory, though all that is there is current."""
        self.compute_node(cloud.CELL1, "nameless", uuid="a\nb")
        for said_by in (self.reporter.flush, self.sweep):
            said_by()
            self.beat()
            self.follow()

            error = self.refused()

            self.assertIn(f"{cloud.CELL1}: records with refused names", error.reasons)
            self.assertNotIn(cloud.CELL2, error.reasons)
            self.assertEqual(2, len(self.uuids(cell=cloud.CELL2)))

    def test_a_host_of_a_cell_that_no_scheduler_knows_is_judged_as_well(self) -> None:
        """Its cell was made, or deleted, since the scheduler read the cells."""
        del self.manager.host_manager.cells[cloud.CELL2]
        self.assertEqual(5, len(self.walk()))
        assert self.reporter.identity is not None
        self.reporter.identity = attrs.evolve(self.reporter.identity, guards=(cloud.CELL1,))
        self.beat()
        self.follow()

        error = self.refused()

        self.assertIn(f"{cloud.CELL2}: no reporter", error.reasons)
        self.assertNotIn(cloud.CELL1, error.reasons)

    def test_the_example_of_the_documents_does_what_it_says(self) -> None:
        self.services["east-2"].disabled = True
        self.services["east-2"].save()
        self.reporter.flush()
        self.follow()
        self.beat()

        nodb = list_hosts.connect(self.plugin.options.rpc_topic)
        told = list(list_hosts.lines(nodb, self.admin, search="east-%"))

        self.assertEqual(
            [
                "east-1: 0 servers, 1 of 4 VCPUs, open",
                "east-2: 0 servers, 1 of 8 VCPUs, closed",
            ],
            told,
        )


class BrokerTest(asking_case.AskingCase):
    """The same over a real RabbitMQ."""

    HOSTS = ListingTest.HOSTS
    bus: rabbitmq.RabbitMQ

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.bus = rabbitmq.RabbitMQ()
        cls.bus.setUp()
        cls.addClassCleanup(cls.bus.cleanUp)

    def setUp(self) -> None:
        cloud.databases()
        self.override("transport_url", self.bus.url, None)
        super().setUp()
        self.rpc = rpc_server.make_client(self.plugin, 30.0)
        self.addCleanup(self.rpc._client.transport.cleanup)

    def test_hosts_are_listed_and_refused_with_the_reason(self) -> None:
        self.beat()
        expected = {node.uuid for node in self.nodes.values()}
        for query in ({}, {"limit": 2}, {"namespaces": ["services", "providers"]}):
            listed = list(self.rpc.iterate_hosts(self.admin, **query))
            self.assertEqual(expected, {each.uuid for each in listed})
        with self.assertRaises(errors.MarkerNotFound) as raised:
            self.rpc.list_host_states(self.admin, marker="gone")
        self.assertEqual(str(errors.MarkerNotFound("gone")), str(raised.exception))
        judge = self.runtime.judge
        judge._options = attrs.evolve(judge._options, reporter_bound_seconds=-1.0)
        with self.assertRaises(errors.StatesNotProved) as unproved:
            self.rpc.list_host_states(self.admin)
        self.assertIn(cloud.CELL1, unproved.exception.reasons)

    def test_a_page_of_all_bytes_that_are_allowed_passes(self) -> None:
        """And a walk of some of them: RabbitMQ 4 refuses messages above 16 MiB."""
        bytes_each = 200_000
        for number in range(40):
            self.compute_node(cloud.CELL1, f"large-{number}", cpu_info="x" * bytes_each)
        self.reporter.flush()
        self.assertTrue(self.runtime.replicator.wait_until(self.synchronizer.head().version, 20))
        self.beat()

        page = self.rpc.list_host_states(self.admin, unproved=True)

        most = self.plugin.options.rpc_max_page_bytes
        taken = sum(len(each.state["row"]["cpu_info"]) for each in page.hosts)
        self.assertLess(most - 3 * bytes_each, taken)
        self.assertLess(taken, most)
        walked = list(self.rpc.iterate_hosts(self.admin, unproved=True))
        self.assertEqual(45, len({each.uuid for each in walked}))

    def test_an_older_scheduler_is_told_from_one_that_failed(self) -> None:
        older = unit_cloud.OlderCloudFixture(url=self.bus.url)
        older.setUp()
        self.addCleanup(older.cleanUp)
        with self.assertRaises(errors.MethodNotServed):
            older.client.list_host_states({})
        self.assertEqual([], older.client.get_host_states({}, "compute_nodes").states)
