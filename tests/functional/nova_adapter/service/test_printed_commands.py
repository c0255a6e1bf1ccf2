# SPDX-License-Identifier: Apache-2.0
"""What commands print of a cloud with a scheduler, reporters and a real Placement."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import uuid
from typing import Any

from nova_nodb_scheduler.cmd.commands import (
    allocations_audit,
    explain_command,
    host_commands,
    import_commands,
    status_command,
)
from nova_nodb_scheduler.cmd.framework import terminal
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import declarations
from nova_nodb_scheduler.testing import patience
from tests.functional.nova_adapter import asking_case, cloud
from tests.functional.nova_adapter.decisions import test_memory_decisions


class PrintedCommandsTest(asking_case.AskingCase):
    HOSTS = (
        (cloud.CELL1, "compute1", 4, {"free_ram_mb": 4000}),
        (cloud.CELL2, "compute2", 2, {"free_ram_mb": 9000}),
        (cloud.CELL1, "compute3", 8, {"free_ram_mb": 1000}),
    )

    def run_command(self, name: str, kind: Any, *arguments: str) -> tuple[int, str]:
        """Run a command at eighty columns; returns its exit status and what it printed."""
        command, parsed = self.command(name, kind, arguments)
        self.beat()
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            status = command.take_action(parsed)
        text = out.getvalue()
        place = os.environ.get("NODB_TRANSCRIPTS")
        if place:
            file = "-".join((*name.split(), *(each.strip("-") for each in arguments)))
            pathlib.Path(place, f"{file}.txt").write_text(text)
        return status, text

    def wait_until_it_tells_that_it_settles(self) -> None:
        """Wait for the beat that says so: until then commands tell that nobody settles."""

        def tells() -> bool:
            view = self.runtime.store.snapshot().namespace(known_namespaces.SCHEDULERS.name)
            return any(beat["settling"].get("settles") for _worker, beat in view.states())

        patience.wait_until(tells, test_memory_decisions.WAIT_SECONDS, "a settler")

    def test_each_begins_with_its_verdict_fits_eighty_columns_and_names_cells(self) -> None:
        self.wait_until_it_tells_that_it_settles()
        names = {uuid_: uuid_[:4] for uuid_ in cloud.CELLS}
        declared = len(declarations.followed(declarations.load_namespaces()))
        for name, kind, arguments, begin in (
            ("status", status_command.Status, (), "Everything is healthy: 1 scheduler, "),
            ("host list", host_commands.HostList, (), "3 hosts: "),
            (
                "host list",
                host_commands.HostList,
                ("--namespace", "services"),
                "3 records of namespace",
            ),
            ("host show", host_commands.HostShow, ("compute1",), "Host compute1 in cell 1111: "),
            ("namespace list", host_commands.NamespaceList, (), f"{declared} namespaces with "),
            ("import", import_commands.Import, (), ""),
            ("compare", import_commands.Compare, (), "They "),
            (
                "allocations audit",
                allocations_audit.AllocationsAudit,
                (),
                "Allocations without their server: none.",
            ),
            (
                "explain",
                explain_command.Explain,
                ("--server", str(uuid.uuid4())),
                "Nova's API database",
            ),
        ):
            with self.subTest(name=name, arguments=arguments):
                _status, text = self.run_command(name, kind, *arguments)
                self.assertTrue(text.startswith(begin), text)
                for line in text.splitlines():
                    self.assertLessEqual(len(line), terminal.WIDTH, text)
                for uuid_ in names:
                    self.assertNotIn(uuid_, text)

    def test_json_names_the_cells_and_is_the_same_with_any_width(self) -> None:
        _status, text = self.run_command("status", status_command.Status, "--json")
        found = json.loads(text)

        self.assertEqual(
            {cell: cell[:4] for cell in cloud.CELLS} | {"api": "api"},
            {each["cell"]: each["cell_name"] for each in found["cells"]},
        )
        for reporter in found["reporters"]:
            self.assertLessEqual({"refused", "since", "since_seconds", "cell_name"}, set(reporter))
        _status, text = self.run_command("host list", host_commands.HostList, "--json")
        self.assertEqual(
            {"compute1": "1111", "compute2": "2222", "compute3": "1111"},
            {each["host"]: each["cell_name"] for each in json.loads(text)},
        )
        _status, text = self.run_command("import", import_commands.Import, "--json")
        self.assertEqual(
            {"api", "0000", "1111", "2222"}, {each["cell_name"] for each in json.loads(text)}
        )
