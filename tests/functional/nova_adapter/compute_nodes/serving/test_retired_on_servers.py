# SPDX-License-Identifier: Apache-2.0
"""With the table away on the servers that operators run, Nova's calls do what they did."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import sqlalchemy as sa
from nova import exception
from nova import objects as nova_objects
from nova.db.main import api as main_db
from oslo_utils import timeutils

from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes
from nova_nodb_scheduler.nova_adapter.compute_nodes.serving import served_functions
from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import table_retirement
from nova_nodb_scheduler.synchronizer.drivers.memory import hub
from nova_nodb_scheduler.testing import servers
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes import conductors, nova_table, test_row_writes

RETIRED = cell_modes.NodeMode.RETIRED


class RetiredOnServersTest(test_row_writes.WritesCase):
    def test_on_mariadb(self) -> None:
        with nova_table.at(self.enterContext(servers.MariaDB()).url):
            self.live()

    def test_on_postgresql(self) -> None:
        with nova_table.at(self.enterContext(servers.PostgreSQL()).url):
            self.live()

    def take_away(self) -> None:
        """Have Nova's archive, and the table no more."""
        table_retirement.CellTable(nova_table.context()).drop_key()
        with nova_table.engine().begin() as connection:
            connection.execute(
                sa.text("CREATE TABLE shadow_compute_nodes AS SELECT * FROM compute_nodes")
            )
            connection.execute(sa.text("DROP TABLE compute_nodes"))

    def live(self) -> None:
        """Go through a node's life, and find it in the archive."""
        self.take_away()
        shared = hub.MemoryHub()
        ours = conductors.conductor(self.client(shared), mode=RETIRED)
        conductors.prepare(ours, mode=RETIRED)
        served = served_functions.ServedFunctions(ours.served)
        served.install()
        self.addCleanup(served.uninstall)
        context = nova_table.context()
        with cloud.Statements() as statements:
            service = nova_objects.Service(
                context, host="h", binary="nova-compute", topic="compute"
            )
            service.create()
            node = self.create(context, service.id)
            node.vcpus_used = 7
            node.save()
            found = main_db.compute_node_get_by_nodename(context, "N")
            statistics = main_db.compute_node_statistics(context)
            service.destroy()
            with self.assertRaises(exception.ComputeHostNotFound):
                main_db.compute_node_get(context, node.id)
            late = timeutils.utcnow() + dt.timedelta(minutes=1)
            for _ in range(2):
                archived, *_others = main_db.archive_deleted_rows(context, 100, before=late)
                self.assertIn(archived.get("compute_nodes"), (1, None))
        self.assertEqual((node.id, 7), (found["id"], found["vcpus_used"]))
        self.assertEqual((1, 4), (statistics["count"], statistics["vcpus"]))
        named = [each for each in statements.seen if re.search(r"\bcompute_nodes\b", each)]
        self.assertEqual([], named)
        with nova_table.engine().connect() as connection:
            rows = connection.execute(sa.text("SELECT * FROM shadow_compute_nodes")).mappings()
            [row] = list(rows)
        told = {**found, "host_ip": str(found["host_ip"])}
        kept = {**row, "host_ip": str(row["host_ip"]).removesuffix("/32")}
        for name in ("deleted", "deleted_at", "mapped", "updated_at"):
            del told[name]
        self.assertEqual(told, {name: kept[name] for name in told})
        self.assertEqual((node.id, 0), (row["deleted"], row["mapped"]))

    def create(self, context: Any, service_id: int) -> Any:
        made = nova_objects.ComputeNode(
            context,
            **nova_table.NEEDED,
            host="h",
            # MariaDB ignores the case.
            hypervisor_hostname="N",
            host_ip="192.0.2.7",
            service_id=service_id,
            **{f"{kind}_allocation_ratio": 1.5 for kind in ("cpu", "ram", "disk")},
        )
        made.create()
        return made
