# SPDX-License-Identifier: Apache-2.0
"""Two conductors answer, call by call, as Nova's own functions do, and leave what these leave.

Set NODB_PROPERTY_EXAMPLES for more sequences than CI tries.
"""

from __future__ import annotations

import datetime
import logging
import pathlib
import tempfile
import unittest
import warnings
from collections.abc import Sequence
from typing import Any

import hypothesis
from oslo_utils import timeutils

from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes, row_queries
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy
from nova_nodb_scheduler.synchronizer.drivers.memory import driver as memory
from nova_nodb_scheduler.synchronizer.drivers.memory import hub
from nova_nodb_scheduler.testing import servers
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes import nova_table
from tests.functional.nova_adapter.compute_nodes.sequences import calls, cells

_MODES = (cell_modes.NodeMode.STORE, cell_modes.NodeMode.RETIRED)


def in_memory() -> Sequence[contract.Synchronizer]:
    shared = hub.MemoryHub()
    made = [memory.MemorySynchronizer(shared_hub=shared) for _ in range(2)]
    for client in made:
        client.open()
    return made


class SequencesCase(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        cloud.databases()
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        # What a database refuses is told by oslo.db, and by Nova, with all their frames.
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        # Nova's models hold timeutils' function itself, which is told the time in a way of old.
        self.enterContext(warnings.catch_warnings())
        warnings.simplefilter("ignore", DeprecationWarning)
        self.addCleanup(timeutils.clear_time_override)
        self.enterContext(cells.schemas_read_once())
        self.stock = cells.StockCell(self.database("stock"))

    def database(self, name: str) -> Any:
        return cells.made_database(f"sqlite:///{self.directory / name}")

    def served(self, clients: cells.Clients, *modes: cell_modes.NodeMode) -> list[cells.ServedCell]:
        return [cells.ServedCell(self.database(mode.value), mode, clients) for mode in modes]

    def compare(self, served: Sequence[cells.ServedCell], steps: Sequence[calls.Step]) -> None:
        for cell in (self.stock, *served):
            cell.begin()
        for number, step in enumerate(steps):
            # What one moment leaves in one of them it leaves in all.
            timeutils.set_time_override(nova_table.MOMENT + datetime.timedelta(minutes=number))
            theirs = self.told(self.stock, step)
            nodes, kept = self.stock.nodes(0), self.stock.kept()
            table = self.stock.kept("compute_nodes")
            for cell in served:
                where = (cell.name, number, step)
                self.assertEqual(theirs, self.told(cell, step), where)
                # Read by the other conductor, at once.
                self.assertEqual(nodes, cell.nodes(1 - step[0]), where)
                if cell.mode is cell_modes.NodeMode.STORE:
                    self.assertEqual(table, cell.kept("compute_nodes"), where)
                self.assertEqual(kept, cell.kept(), where)

    def told(self, cell: cells.Cell, step: calls.Step) -> Any:
        which, read_deleted, (name, *arguments) = step
        context = cell.context(read_deleted)
        return cell.tell(which, calls.CALLS[name], cell, context, *arguments)


class SequencesTest(SequencesCase):
    def agree(self, served: Sequence[cells.ServedCell], examples: int) -> None:
        """Tell stock Nova and cells that are served some sequences."""

        @hypothesis.given(steps=calls.STEPS)
        @hypothesis.settings(
            max_examples=examples, deadline=None, suppress_health_check=nova_table.LOADED
        )
        def agree(steps: list[calls.Step]) -> None:
            self.compare(served, steps)

        agree()

    def test_each_call_answers_and_leaves_what_nova_s_own_does(self) -> None:
        self.agree(self.served(in_memory, *_MODES), nova_table.EXAMPLES)

    def test_so_it_does_with_a_database_as_the_back_end(self) -> None:
        path = self.directory / "nodb.sqlite"
        clients = [
            sqlalchemy.SQLAlchemySynchronizer(sqlalchemy.SQLOptions(f"sqlite:///{path}"))
            for _ in range(2)
        ]
        for client in clients:
            client.open()
            self.addCleanup(client.close)

        def emptied() -> Sequence[contract.Synchronizer]:
            clients[0].reset()
            return clients

        self.agree(self.served(emptied, cell_modes.NodeMode.RETIRED), nova_table.EXAMPLES // 4)

    def test_every_read_is_told(self) -> None:
        self.assertEqual(set(row_queries.READS), set(calls.READS))

    def test_a_node_lives_moves_goes_with_its_service_comes_back_and_is_archived(self) -> None:
        uuid = nova_table.UUIDS[0]
        ratios = {f"{kind}_allocation_ratio": 1.0 for kind in ("cpu", "ram", "disk")}
        values = {"host": "h1", "hypervisor_hostname": "n1", **ratios}
        told = (
            (("add_service", 0, "h1", "nova-compute"), None),
            (("create", uuid, values), None),
            (("discover",), [1]),
            (("note_mapped",), None),
            (("destroy_service", 1), None),
            (("look", uuid), "ComputeHostNotFound"),
            (("undelete", uuid), None),
            (("move", "n1", "h2"), None),
            (("destroy", uuid), "ObjectActionError"),
            (("look", uuid), None),
            (("destroy", uuid), None),
            (("archive", 99, None), {"compute_nodes": 1, "services": 1}),
            (("create", uuid, values), None),
        )
        self.compare(
            self.served(in_memory, *_MODES),
            [(number % 2, "no", call) for number, (call, _answer) in enumerate(told)],
        )
        # So that what is alike is what is meant.
        self.stock.begin()
        for call, wanted in told:
            answer = self.told(self.stock, (0, "no", call))
            if wanted is not None:
                self.assertEqual(wanted, answer[0] if isinstance(wanted, str) else answer)
        self.assertEqual([2], [row["id"] for row in self.stock.nodes(0)])


class TableOnServersTest(SequencesCase):
    """Where operators' databases hold the table, it is as the records behind each call."""

    def test_on_mariadb(self) -> None:
        self.agree(self.enterContext(servers.MariaDB()).url)

    def test_on_postgresql(self) -> None:
        self.agree(self.enterContext(servers.PostgreSQL()).url)

    def agree(self, url: str) -> None:
        cell = cells.ServedCell(cells.made_database(url), cell_modes.NodeMode.STORE, in_memory)

        @hypothesis.given(steps=calls.STEPS)
        @hypothesis.settings(
            max_examples=nova_table.EXAMPLES // 8,
            deadline=None,
            suppress_health_check=nova_table.LOADED,
        )
        def agree(steps: list[calls.Step]) -> None:
            cell.begin()
            for number, step in enumerate(steps):
                timeutils.set_time_override(nova_table.MOMENT + datetime.timedelta(minutes=number))
                self.told(cell, step)
                self.assertEqual(cell.table(), cell.nodes(1 - step[0]), (number, step))

        agree()


class FoundTest(SequencesCase):
    """What random sequences found, each by what it was about."""

    def test_ratios_are_filled_whatever_the_context_reads(self) -> None:
        empty = {"host": "h1", "hypervisor_hostname": "n1", "uuid": nova_table.UUIDS[0]}
        self.compare(
            self.served(in_memory, *_MODES),
            [
                (0, "no", ("insert", empty)),
                (1, "only", ("fill_ratios", 1)),
                (0, "yes", ("fill_ratios", 1)),
            ],
        )
