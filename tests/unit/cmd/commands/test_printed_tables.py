# SPDX-License-Identifier: Apache-2.0
"""What people see: every command's tables from real objects, at eighty columns."""

import argparse
import io
import json
import logging
import pathlib
import sys
import uuid
from unittest import mock

import attrs
import fixtures
import testtools

from nova_nodb_scheduler.cmd import application
from nova_nodb_scheduler.cmd.commands import (
    allocations_audit,
    database_schema,
    explain_command,
    host_commands,
    import_commands,
    status_command,
    synchronizer_commands,
)
from nova_nodb_scheduler.cmd.framework import command, configuration, terminal
from nova_nodb_scheduler.cmd.overview import cell_names, deployment, process_reports
from nova_nodb_scheduler.nova_adapter.orphans import orphan_audit, orphan_verdicts
from nova_nodb_scheduler.nova_adapter.placement.mirror import bulk_import
from nova_nodb_scheduler.nova_adapter.reporting import scope_transfer as results
from nova_nodb_scheduler.observe import state_comparer
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.wire import explanations, objects
from tests.unit.cmd import samples
from tests.unit.cmd.commands import test_explain_command

CELL = "64ec2f33-1f5d-4b24-acd4-4b54ee9c8292"
OTHER = "48f45770-d940-4784-adb9-853d8f78d082"
CELL0 = "00000000-0000-0000-0000-000000000000"
NAMES = cell_names.CellNames({CELL: "cell1", OTHER: "east-coast-2", CELL0: "cell0"})
HOST = "controller-scheduler-17.region-one.example.com"


class PrintedCase(testtools.TestCase):
    """Renders with one command's own way of printing."""

    def printer(self, kind=command.Command, wide=False):
        printer = kind(application.ManageApp(), argparse.Namespace(), "tried")
        printer.wide = wide
        printer.names = NAMES
        self.file = io.StringIO()
        printer.console = terminal.console(everything=wide, file=self.file)
        return printer

    def printed(self):
        """What was printed, which is at most eighty columns wide."""
        text = self.file.getvalue()
        for line in text.splitlines():
            self.assertLessEqual(len(line), terminal.WIDTH, f"\n{text}")
        return text

    def assert_verdict(self, begin):
        self.assertTrue(self.printed().startswith(begin), self.printed())


class StatusTest(PrintedCase):
    def setUp(self):
        super().setUp()
        self.cloud = self.useFixture(samples.BackendFixture())
        for cell in (CELL, OTHER, CELL0, "api"):
            self.cloud.cell(cell)
        self.cloud.scheduler(HOST, 112_233, claims={"won": 100_000, "lost": 77}, settling={})
        self.cloud.mirror(age_seconds=40)
        self.cloud.reporter("conductor", HOST, CELL, refused=3, since=1.0)
        self.cloud.reporter("api", HOST, "*", guards=[], since=1.0)

    def gather(self, missing=None):
        status = samples.status(HOST, 112_233)
        status.scopes = [
            objects.ScopeStatus(
                scope=CELL,
                hosts=100_000,
                proved=not missing,
                reason=missing or "",
                fallbacks={"reporter silent": 12_345},
            )
        ]
        status.outcomes = {"selected": 1_234_567, "no valid host": 1_234}
        return deployment.gather(
            process_reports.read_backend(self.cloud.client()), lambda host: status, (), 15.0, 300.0
        )

    def test_a_healthy_status_begins_with_its_verdict_and_names_cells(self):
        status_command.show(self.printer(), self.gather(), NAMES)

        self.assert_verdict("Everything is healthy: 1 scheduler, 2 reporters, 4 cells.")
        for text in ("cell1", "every cell", "1235801", "feed not proved 2"):
            self.assertIn(text, self.printed())
        self.assertNotIn(CELL, self.printed())

    def test_problems_stand_first_and_name_cells_and_options_as_they_are_written(self):
        self.cloud.scheduler("other", 1, claiming=False)
        self.cloud.scheduler("third", 1, claiming=True)
        status_command.show(self.printer(), self.gather(missing="reporter silent"), NAMES)

        self.assert_verdict("Not healthy (")
        text = " ".join(self.printed().split())
        self.assertIn("Cell cell1 is not proved", text)
        # rich would take it for mark-up, and print nothing of it.
        self.assertIn("the same [nodb_scheduler] claims and candidates", text)
        self.assertLess(text.index("Cell cell1"), text.index("Back end"))

    def test_checkpoints_are_told_by_worker_where_there_are_any(self):
        status_command.show(self.printer(), self.gather(), NAMES)
        self.assertNotIn("Checkpoints", self.printed())
        kept = {"age_seconds": 123.4, "bytes": 250 * 2**20, "outcome": "failed"}
        kept |= {"detail": "[Errno 28] No space left on device", "start": "other epoch: x and y"}
        self.cloud.scheduler(HOST, 112_233, checkpoint=kept, claims={}, settling={})
        self.cloud.scheduler("new", 7, checkpoint={"outcome": "", "detail": "", "start": ""})

        status_command.show(self.printer(), self.gather(), NAMES)

        text = " ".join(self.printed().split())
        for told in ("Checkpoints", "123", "250.0", "none yet"):
            self.assertIn(told, text)
        status_command.show(self.printer(wide=True), self.gather(), NAMES)
        text = " ".join(self.file.getvalue().split())
        for told in ("failed: [Errno 28] No space left on device", "other epoch: x and y"):
            self.assertIn(told, text)

    def test_wide_shows_uuids_and_what_was_left_out(self):
        status_command.show(self.printer(wide=True), self.gather(), NAMES)

        for text in (CELL, "selected 1234567", "won 100000", "112233", "1.0"):
            self.assertIn(text, self.file.getvalue())

    def test_json_is_complete(self):
        document = status_command.as_dict(self.gather(), NAMES)

        [api, conductor] = sorted(document["reporters"], key=lambda each: each["role"])
        self.assertEqual(
            (3, 1.0, "cell1"), tuple(conductor[n] for n in ("refused", "since", "cell_name"))
        )
        self.assertEqual("every cell", api["cell_name"])
        self.assertEqual(
            {CELL: "cell1", OTHER: "east-coast-2", CELL0: "cell0", "api": "api"},
            {each["cell"]: each["cell_name"] for each in document["cells"]},
        )
        json.dumps(document, default=str)

    def test_without_names_a_cell_is_told_by_the_begin_of_its_uuid(self):
        status_command.show(self.printer(), self.gather(), cell_names.CellNames())

        self.assertIn("64ec2f33…", self.printed())
        self.assertNotIn(CELL, self.printed())

    def test_of_nothing_no_heads_are_printed(self):
        empty = deployment.gather(
            process_reports.Backend("memory", error="it is down"),
            lambda host: 1 / 0,
            (ZeroDivisionError,),
            15.0,
            300.0,
        )
        status_command.show(self.printer(), empty, NAMES)

        self.assert_verdict("Not healthy (2 problems)")
        for title in ("Schedulers", "Reporters", "Cells"):
            self.assertNotIn(f"\n{title}", self.printed())


class OtherTablesTest(PrintedCase):
    def render(self, kind, show):
        printer = self.printer(kind)
        show(printer)
        return self.printed()

    def test_each_begins_with_its_verdict(self):
        clean = state_comparer.Comparison(7, 0, 0, 0, (), (), (), {})
        stale = state_comparer.Comparison(
            9, 1, 2, 0, (), (), (), {"row.vcpus_used": 2, "row.uuid": 1}
        )
        settled = attrs.evolve(clean, settled_count=1, settled=("just-built",))
        done = [
            results.TransferResult("api", "imported", 6, {}, 0.1),
            results.TransferResult(CELL, "imported", 600_000, {"instances": 500_000}, 61.2),
            results.TransferResult(
                OTHER, f"left out: {'database is down ' * 9}", 0, {}, 0.0, failed=True
            ),
        ]
        consumer = str(uuid.uuid4())
        orphan = orphan_audit.AuditRow(
            orphan_verdicts.JudgedAllocation(
                consumer,
                orphan_verdicts.AllocationKind.BURIED,
                {"rp": {"VCPU": 4, "MEMORY_MB": 8192, "DISK_GB": 80}},
            ),
            (HOST,),
            f"{HOST}:112233:1",
            61.0,
            True,
        )
        for begin, kind, show in (
            (
                "They agree, in 7 rows of 1 cells.",
                import_commands.Compare,
                lambda p: p._show({CELL: {"instances": clean}}, NAMES),
            ),
            (
                "They agree, in 7 rows of 1 cells; 1 were being written, and settled.",
                import_commands.Compare,
                lambda p: p._show({CELL: {"instances": settled}}, NAMES),
            ),
            (
                "They differ: 1 missed, 2 stale, 0 extra, in 16 rows of 2 cells.",
                import_commands.Compare,
                lambda p: p._show({CELL: {"instances": clean}, OTHER: {"services": stale}}, NAMES),
            ),
            (
                "1 of 3 cells could not be imported; 600006 rows were read, 500000",
                import_commands.Import,
                lambda p: p._show(done, NAMES, as_json=False),
            ),
            (
                "Allocations without their server: none.",
                allocations_audit.AllocationsAudit,
                lambda p: p._show([], as_json=False),
            ),
            (
                "Allocations without their server: 1.",
                allocations_audit.AllocationsAudit,
                lambda p: p._show([orphan], as_json=False),
            ),
            (
                "The mirror holds 3 providers of 2 trees; 1 records were written.",
                import_commands.MirrorImport,
                lambda p: p._show(bulk_import.BulkImportResult(2, 3, 1), as_json=False),
            ),
            (
                "The schema is at expand_0002, contract_0001.",
                database_schema.Version,
                lambda p: p.show({"expand": "expand_0002", "contract": "contract_0001"}, False),
            ),
        ):
            with self.subTest(begin):
                text = self.render(kind, show)
                self.assertTrue(text.startswith(begin), text)
                self.assertNotIn(CELL, text)

        self.assertIn(
            consumer,
            self.render(allocations_audit.AllocationsAudit, lambda p: p._show([orphan], False)),
        )

    def test_a_host_with_all_that_belongs_to_it(self):
        node = {
            "uuid": str(uuid.uuid4()),
            "cell": CELL,
            "host": HOST,
            "node": HOST,
            "revision": 7,
            "row": {"vcpus": 64, "cpu_info": "x" * 2000, "hypervisor_type": "QEMU"},
            "services": [
                {
                    "uuid": str(uuid.uuid4()),
                    "binary": "nova-compute",
                    "host": HOST,
                    "cell": CELL,
                    "up": True,
                    "disabled": True,
                    "disabled_reason": "a word of the operator " * 3,
                    "forced_down": False,
                    "version": 68,
                    "last_seen_up": "2026-05-01T11:59:30",
                    "report_count": 1,
                    "unreported_heartbeats": None,
                }
            ],
            "instances": [
                {
                    "uuid": str(uuid.uuid4()),
                    "node": HOST,
                    "project_id": uuid.uuid4().hex,
                    "vm_state": "active",
                    "task_state": None,
                    "vcpus": 4,
                    "memory_mb": 8192,
                }
            ]
            * 3,
            "aggregates": [],
            "claims": [{"consumers": {str(uuid.uuid4()): {"resources": {"VCPU": 1}}}}],
        }
        text = self.render(host_commands.HostShow, lambda printer: printer._show(node))

        self.assertTrue(text.startswith(f"Host {HOST} in cell cell1: up, disabled,"), text)
        self.assertIn(node["instances"][0]["uuid"], text)
        self.assertIn("No aggregates.", text)
        self.assertNotIn(CELL, text)

    def test_hosts_are_listed_with_the_name_of_their_cell(self):
        state = objects.HostState(
            namespace="compute_nodes",
            key=str(uuid.uuid4()),
            state={
                "cell": CELL,
                "row": {
                    "host": HOST,
                    "hypervisor_hostname": HOST,
                    "vcpus": 256,
                    "vcpus_used": 190,
                    "memory_mb": 2_097_152,
                    "memory_mb_used": 1_900_544,
                    "local_gb": 100_000,
                    "local_gb_used": 99_999,
                    "running_vms": 170,
                },
            },
        )
        row = host_commands.columns_of(state.key, state.state, known_namespaces.COMPUTE_NODES)
        row["service"] = {"up": True, "disabled": True, "forced_down": False}
        rows = [row, {**row, "service": None}]

        def show(printer):
            printer.print_line(host_commands.hosts_verdict(rows))
            printer.print_table(
                "Hosts",
                host_commands.HOST_COLUMNS,
                (host_commands.host_row(each, NAMES) for each in rows),
            )

        text = self.render(host_commands.HostList, show)
        self.assertTrue(text.startswith("2 hosts: 1 up, 1 down, 1 disabled."), text)
        self.assertIn("cell1", text)

    def test_a_name_that_a_compute_node_chose_moves_no_cursor(self):
        forged = "h1\x1b]0;owned\x07\x1b[2J\u202eeno"
        printer = self.printer(host_commands.HostList, wide=True)
        printer.print_line(f"Host {forged} is up.")
        printer.print_table("Hosts", ("host",), [[forged]])
        printer.print_facts("Facts", {"host": forged})
        text = self.file.getvalue()
        for character in ("\x1b", "\x07", "\u202e"):
            self.assertNotIn(character, text)
        self.assertEqual(3, text.count(r"h1\x1b]0;owned\x07\x1b[2J\u202eeno"))

    def test_any_namespace_has_a_table(self):
        """Its columns are many: those that do not fit are left out and said."""
        for namespace in known_namespaces.BUILT_IN:
            with self.subTest(namespace.name):
                names = ("key", *(column.name for column in namespace.columns))
                rows = [[f"{name}-{'value' * 4}" for name in names]] * 2
                self.printer(host_commands.HostList).print_table(namespace.name, names, rows)
                text = self.printed()
                if len(names) > 10:
                    self.assertIn("--wide shows more", text)

    def test_an_explanation_with_many_weighers(self):
        weighers = [f"{name}Weigher" for name in ("RAM", "CPU", "Disk", "IoOps", "PCI", "Metrics")]

        def host(number):
            made = test_explain_command.TablesTest.host(f"{HOST}-{number}", 0.1 * number, 1.0)
            made.shares = [
                explanations.WeigherShare(
                    weigher=name, raw=8.0, normalised=0.5, multiplier=1.0, share=number * place / 7
                )
                for place, name in enumerate(weighers, start=1)
            ]
            return made

        now = test_explain_command.explanation(
            hosts=[host(number) for number in range(5)], servers=2, passed=412
        )
        text = self.render(
            command.Command, lambda p: explain_command.show_explanation(p, None, None, now)
        )

        self.assertTrue(text.startswith("No valid host: 1 of 2 servers find one."), text)
        # The one that tells hosts apart most.
        self.assertIn("Metrics", text)

    def test_an_epoch_that_is_not_begun_says_so_first(self):
        printer = self.printer(synchronizer_commands.NewEpoch)
        printer.print_facts("Epoch", {"driver": "etcd", "former_epoch": "1" * 60, "none": None})
        self.assertNotIn("none", self.printed())


class LoggersTest(testtools.TestCase):
    def handled(self, *, verbose):
        """What libraries' loggers leave on the screen."""
        screen = io.StringIO()
        written = pathlib.Path(self.useFixture(fixtures.TempDir()).path) / "nova.log"
        for name in ("stdout", "stderr"):
            patch = mock.patch.object(sys, name, screen)
            patch.start()
            self.addCleanup(patch.stop)
        handlers = [logging.StreamHandler(sys.stdout), logging.FileHandler(written)]
        with mock.patch.object(logging.getLogger(), "handlers", handlers):
            configuration.quiet_standard_error(shown=verbose)
            logging.getLogger("alembic.runtime.migration").error("Context impl SQLiteImpl.")
        handlers[1].close()
        return screen.getvalue(), written.read_text()

    def test_nothing_of_libraries_stands_between_the_command_and_its_table(self):
        self.assertEqual(("", "Context impl SQLiteImpl.\n"), self.handled(verbose=False))

    def test_whoever_asks_for_it_sees_it(self):
        self.assertEqual("Context impl SQLiteImpl.\n", self.handled(verbose=True)[0])


class NamesTest(testtools.TestCase):
    def test_names_that_do_not_come_are_not_waited_for(self):
        class Scopes:
            def cell_names(self):
                raise RuntimeError("no database")

        plugin = mock.Mock(scopes=Scopes())
        self.assertEqual(cell_names.CellNames(), cell_names.read(plugin))
