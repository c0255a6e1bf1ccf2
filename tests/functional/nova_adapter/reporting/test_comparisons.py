# SPDX-License-Identifier: Apache-2.0
"""What is written while ``compare`` reads is told apart; what nobody reported is not."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

from nova.db.main import api as main_db
from nova.db.main import models
from oslo_utils import timeutils

from nova_nodb_scheduler.nova_adapter.reporting import nova_tables, scope_transfer
from nova_nodb_scheduler.observe import state_comparer
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.reporting import test_sweeps

BOUND_SECONDS = 1.0
NODES = known_namespaces.COMPUTE_NODES.name


class ComparisonTest(test_sweeps.SweepCase):
    """Three hosts, written and swept an hour ago, each with a server."""

    def setUp(self) -> None:
        super().setUp()
        self.then = timeutils.utcnow().replace(microsecond=0) - dt.timedelta(hours=1)
        self.nodes = [self.compute_node(cloud.CELL1, f"h{n}") for n in range(3)]
        self.servers = [self.instance(cloud.CELL1, f"h{n}") for n in range(3)]
        self.age()
        self.sweep()

    def age(self) -> None:
        context = self.context(cloud.CELL1)
        for model in (models.ComputeNode, models.Instance):
            with main_db.get_context_manager(context).writer.using(context) as session:
                session.query(model).update({"updated_at": self.then, "created_at": self.then})

    def use(self, number: int, vcpus: int) -> None:
        self.raw(cloud.CELL1, models.ComputeNode, self.nodes[number].uuid, {"vcpus_used": vcpus})

    def repair(self) -> None:
        self.plugin.sweeper(self.synchronizer).sweep(cloud.CELL1, threading.Event(), by="test")

    def compared(  # type: ignore[override]
        self, table: str, *, between: Callable[[], Any], behind: Callable[[], Any]
    ) -> state_comparer.Comparison:
        """Compare; do something behind the reading of records, and behind that of rows."""
        real_page, real_changed = nova_tables.NovaTable.page, nova_tables.NovaTable.changed
        began = []

        def page(own: nova_tables.NovaTable, *args: Any) -> Any:
            if own.namespace == table and not began:
                began.append(table)
                between()
            return real_page(own, *args)

        def changed(own: nova_tables.NovaTable, *args: Any) -> Any:
            if own.namespace == table:
                behind()
            return real_changed(own, *args)

        with (
            mock.patch.object(nova_tables.NovaTable, "page", page),
            mock.patch.object(nova_tables.NovaTable, "changed", changed),
        ):
            found = scope_transfer.compare_scope(
                self.synchronizer, self.plugin.scopes, cloud.CELL1, bound_seconds=BOUND_SECONDS
            )
        return found[table]

    def test_a_row_that_is_written_while_it_is_read_is_told_as_settled(self) -> None:
        found = self.compared(NODES, between=lambda: self.use(1, 3), behind=self.repair)
        self.assertTrue(found.clean, found)
        self.assertEqual((1, (self.nodes[1].uuid,)), (found.settled_count, found.settled))

    def test_a_host_and_a_server_that_come_and_go_meanwhile_are(self) -> None:
        def come_and_go() -> None:
            self.compute_node(cloud.CELL1, "new")
            self.nodes[0].destroy()

        found = self.compared(NODES, between=come_and_go, behind=self.repair)
        self.assertTrue(found.clean, found)
        self.assertEqual(2, found.settled_count)
        servers = self.compared(
            known_namespaces.INSTANCES.name, between=self.servers[0].destroy, behind=self.repair
        )
        self.assertTrue(servers.clean, servers)
        self.assertEqual(1, servers.settled_count)

    def test_a_record_that_follows_within_the_bound_is_waited_for(self) -> None:
        self.use(2, 5)
        timer = threading.Timer(0.7 * BOUND_SECONDS, self.repair)
        self.addCleanup(timer.join)
        found = self.compared(NODES, between=lambda: None, behind=timer.start)
        self.assertTrue(found.clean, found)
        self.assertEqual(1, found.settled_count)

    def test_one_that_does_not_follow_is_a_difference(self) -> None:
        found = self.compared(NODES, between=lambda: self.use(1, 3), behind=lambda: None)
        self.assertEqual((1, 0), (found.stale_count, found.settled_count))
        self.assertEqual([self.nodes[1].uuid], [each.key for each in found.stale])

    def test_what_a_sweep_mends_meanwhile_is_one_where_its_row_is_old(self) -> None:
        self.use(1, 3)
        self.age()
        found = self.compared(NODES, between=lambda: None, behind=self.repair)
        self.assertEqual((1, 0), (found.stale_count, found.settled_count))
        # It stands right by now.
        again = self.compared(NODES, between=lambda: None, behind=lambda: None)
        self.assertEqual((True, 0), (again.clean, again.settled_count))
