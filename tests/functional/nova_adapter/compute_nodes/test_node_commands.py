# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage compute-nodes, as an operator calls it, over a cell in MariaDB."""

from __future__ import annotations

import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
from typing import Any

import sqlalchemy as sa
from nova import objects
from nova.db.api import models as api_models
from nova.db.main import models
from oslo_utils import timeutils

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes, node_rows
from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import (
    node_transfer,
    row_file,
    table_retirement,
)
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
from nova_nodb_scheduler.synchronizer.records import publisher
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes import cell_databases, nova_table
from tests.functional.synchronizer import commands

_MOST_SECONDS = 120.0
#: More than one batch of rows that are written at once.
_MANY = 450
#: The command from nothing, whose process kills itself behind the first call of a function: who
#: looks from outside, and kills then, may find on a busy machine that the command has ended.
_KILLED_BEHIND = """
import os, signal, sys
from nova_nodb_scheduler.cmd import patching
patching.for_threads()
from nova_nodb_scheduler.cmd import manage
from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import table_retirement
owner, name = sys.argv.pop(1).split(".")
owner = getattr(table_retirement, owner)
function = getattr(owner, name)
def killed_behind(*args):
    function(*args)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(owner, name, killed_behind)
sys.exit(manage.main())
"""
#: The same, behind the first batch of rows that the table is filled with.
_KILLED_BETWEEN = """
import os, signal, sys
from nova_nodb_scheduler.cmd import patching
patching.for_threads()
from nova_nodb_scheduler.cmd import manage
from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import table_retirement
batches = table_retirement._batches
def killed_between(numbers):
    for count, batch in enumerate(batches(numbers)):
        if count:
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch
table_retirement._batches = killed_between
sys.exit(manage.main())
"""
AWAY = table_retirement.TablePlace.AWAY


class CommandsTest(cell_databases.OnMariaDB):
    def begin(self) -> None:
        super().begin()
        nova_table.fill([cell_databases.row(1), cell_databases.deleted(2), cell_databases.row(3)])

    def setUp(self) -> None:
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        super().setUp()
        api, store = (f"sqlite:///{self.directory}/{name}.sqlite" for name in ("api", "nodb"))
        self.api = api
        self.cell0 = f"sqlite:///{self.directory}/cell0.sqlite"
        engine = sa.create_engine(api)
        api_models.BASE.metadata.create_all(engine)
        mappings = api_models.CellMapping.__table__
        with engine.begin() as connection:
            for cell, name, url in (
                (objects.CellMapping.CELL0_UUID, "cell0", self.cell0),
                (cloud.CELL1, "south", self.url),
            ):
                connection.execute(
                    sa.insert(mappings).values(
                        uuid=cell, name=name, transport_url="none:///", database_connection=url
                    )
                )
        engine.dispose()
        engine = sa.create_engine(self.cell0)
        models.BASE.metadata.create_all(engine)
        engine.dispose()
        self.config = self.directory / "nova.conf"
        self.config.write_text(
            f"[DEFAULT]\ntransport_url = fake:///\nstate_path = {self.directory}\n"
            f"scheduler_driver = nodb_scheduler\n"
            f"[api_database]\nconnection = {api}\n[database]\nconnection = {self.url}\n"
            "[nodb_scheduler]\nsynchronizer = sqlalchemy\n"
            f"[nodb_sqlalchemy]\nconnection = {store}\n"
        )
        self.store = driver.SQLAlchemySynchronizer(driver.SQLOptions(store))
        self.store.open()
        self.addCleanup(self.store.close)
        self.transfer = node_transfer.NodeTransfer(self.store)

    def command(self, *words: str) -> list[str]:
        return ["--config-file", str(self.config), "compute-nodes", *words]

    def call(self, *words: str, status: int = 0) -> str:
        done = commands.run(self.command(*words), self.directory)
        self.assertEqual(status, done.returncode, (done.stdout, done.stderr))
        self.assertNotIn("Traceback", done.stderr)
        return done.stdout

    def document(self, *words: str, status: int = 0) -> Any:
        return json.loads(self.call(*words, "--json", status=status))

    def state(self) -> node_transfer.CellState:
        return self.transfer.state(self.context, cloud.CELL1)

    def test_there_status_export_upgrade_and_back(self) -> None:
        before = self.rows()
        self.assertIn("1 cell: mirror", self.call("status"))
        self.assertIn("Done for 1 cell. Now set", self.call("retire"))
        self.assertIn("There is nothing to do", self.call("retire"))
        [cell] = self.document("status", status=1)["cells"]
        self.assertEqual(
            ("south", "retired", "away", 0, 2, 1, 4, None),
            tuple(
                cell[name]
                for name in (
                    *("cell_name", "recorded", "table", "table_rows", "live", "deleted"),
                    *("next_id", "foreign_key"),
                )
            ),
        )
        self.assertIn("compute_nodes = retired", cell["problems"][0])
        [exported] = self.document("export", "--to", str(self.directory))
        file = pathlib.Path(exported["file"])
        self.assertEqual(before, [node_rows.to_state(row) for row in row_file.read(file)])
        self.assertIn("nova-manage db sync", self.call("prepare-upgrade"))
        self.assertIn("take it away", self.call("status", status=1).replace("\n", " "))
        self.assertIn("rename compute_nodes", self.call("retire"))
        self.assertIn("record mode mirror", self.call("restore"))
        self.assertEqual(before, self.rows())
        self.assertIn("1 cell: mirror", self.call("status"))

    def test_nothing_changes_in_a_dry_run(self) -> None:
        for words in (["retire"], ["retire", "--keep-table"]):
            before = self.dump()
            document = self.document(*words, "--dry-run")
            self.assertFalse(document["changed"])
            self.assertTrue(document["cells"][0]["steps"])
            self.assertEqual(before, self.dump())
        self.assertEqual((), self.transfer.held(cloud.CELL1).rows)
        self.call("retire")
        before, files = self.dump(), sorted(self.directory.iterdir())
        for words in (["restore"], ["prepare-upgrade"], ["retire"]):
            self.call(*words, "--dry-run")
            self.assertEqual(before, self.dump())
        self.assertEqual(files, sorted(self.directory.iterdir()))

    def test_the_table_is_kept_if_that_is_asked_for(self) -> None:
        self.assertIn("compute_nodes = store", self.call("retire", "--keep-table"))
        self.assertIs(cell_modes.NodeMode.STORE, self.state().mode)
        self.call("restore")
        self.assertIs(cell_modes.NodeMode.MIRROR, self.state().mode)

    def test_who_lives_is_named_and_nothing_changes(self) -> None:
        before = self.dump()
        self.beat("sched1", 0.0)
        document = self.document("retire", status=1)
        self.assertIn("nova-scheduler on sched1 (process 11)", document["refusals"][0]["rows"][0])
        for odd in ({"beat_at": "now"}, {"pid": "eleven"}):
            self.beat("sched1", 0.0, **odd)
            document = self.document("retire", status=1)
            self.assertIn("schedulers/sched1, which is odd", document["refusals"][0]["rows"][0])
        self.beat("sched1", 3600.0)
        services = models.Service.__table__
        engine = sa.create_engine(self.cell0)
        self.addCleanup(engine.dispose)
        with engine.begin() as connection:
            connection.execute(
                sa.insert(services).values(
                    host="super1",
                    binary="nova-conductor",
                    report_count=1,
                    last_seen_up=timeutils.utcnow(),
                    deleted=0,
                )
            )
        document = self.document("restore", status=0)
        self.assertEqual([], document["refusals"])
        document = self.document("retire", status=1)
        self.assertIn("nova-conductor on super1", document["refusals"][0]["rows"][0])
        self.assertEqual(before, self.dump())

    def beat(self, host: str, age_seconds: float, **odd: object) -> None:
        at = self.store.now_seconds() - age_seconds
        state = {"host": host, "pid": 11, "beat_at": at, **odd}
        declared = {each.name: each for each in known_namespaces.BUILT_IN}
        key = records.RecordKey(known_namespaces.SCHEDULERS.name, host)
        publisher.Publisher(self.store, declared, known_namespaces.NODB).publish(
            {key: lambda _standing: state}
        )

    def test_what_cannot_be_is_said_and_nothing_changes(self) -> None:
        before = self.dump()
        nowhere = str(self.directory / "nowhere")
        others = self.directory / f"compute_nodes-{objects.CellMapping.CELL0_UUID}-2026Z.jsonl"
        others.touch()
        for words, said in (
            (["retire", "--export-to", nowhere], "may write"),
            (["restore", "--from", nowhere], "with --cell"),
            (["restore", "--cell", cloud.CELL1, "--from", nowhere], "no such file"),
            (["restore", "--cell", cloud.CELL1, "--from", str(others)], "of another cell"),
            (["status", "--cell", "x"], cloud.CELL1),
        ):
            done = commands.run(self.command(*words), self.directory)
            self.assertEqual(3, done.returncode)
            self.assertIn(said, done.stderr)
            self.assertEqual(1, done.stderr.count("\n"))
        self.assertEqual(before, self.dump())

    def test_a_back_end_that_is_not_fit_is_refused(self) -> None:
        text = self.config.read_text()
        own = re.sub("connection = .*nodb.sqlite", f"connection = {self.url}", text)
        for changed, said in (
            (text.replace("synchronizer = sqlalchemy", "synchronizer = memory"), "durable"),
            (own, "database of its own"),
        ):
            self.assertNotEqual(text, changed)
            self.config.write_text(changed)
            done = commands.run(self.command("retire"), self.directory)
            self.assertEqual(3, done.returncode)
            self.assertIn(said, done.stderr)

    def test_a_step_that_fails_is_told_and_goes_on_once_it_can(self) -> None:
        url = sa.make_url(self.url)
        self.server.execute("CREATE OR REPLACE USER weak@'127.0.0.1' IDENTIFIED BY 'hush-hush'")
        self.server.execute(f"GRANT SELECT ON {url.database}.* TO weak@'127.0.0.1'")
        weak = url.set(username="weak", password="hush-hush").render_as_string(False)
        self.map_cell(weak)
        done = commands.run(self.command("retire"), self.directory)
        self.assertEqual(3, done.returncode, done.stdout)
        [line] = [each for each in done.stderr.splitlines() if "half-way" in each]
        self.assertIn("denied", line)
        self.assertNotIn("hush-hush", done.stderr)
        self.assertIs(cell_modes.NodeMode.STORE, self.state().mode)
        self.map_cell(self.url)
        self.call("retire")
        self.assertTrue(self.state().is_settled)

    def map_cell(self, url: str) -> None:
        mappings = api_models.CellMapping.__table__
        engine = sa.create_engine(self.api)
        with engine.begin() as connection:
            connection.execute(
                sa.update(mappings)
                .where(mappings.c.uuid == cloud.CELL1)
                .values(database_connection=url)
            )
        engine.dispose()

    def test_killed_it_goes_on_where_it_was(self) -> None:
        nova_table.fill([cell_databases.row(number) for number in range(1, _MANY + 1)])
        before = self.rows()
        self.killed(_KILLED_BEHIND, "CellTable.take_away", *self.command("retire"))
        self.assertIs(AWAY, self.table.place())
        self.assertFalse(self.state().is_settled)
        self.assertIn("has not ended", self.call("status", status=1))
        self.call("retire")
        state = self.state()
        self.assertEqual((AWAY, 0, _MANY), (state.place, state.table_rows, state.live))
        self.killed(_KILLED_BETWEEN, *self.command("restore"))
        self.assertLess(0, sum(self.table.counts()))
        self.assertEqual(AWAY, self.table.place())
        self.assertLess(sum(self.table.counts()), _MANY)
        self.call("restore")
        self.assertEqual(before, self.rows())
        self.assertEqual(table_retirement.NOVAS_KEY, self.state().key)
        self.assertIs(cell_modes.NodeMode.MIRROR, self.state().mode)

    def killed(self, program: str, *arguments: str) -> None:
        """Call the command in a program that kills itself on the way."""
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=_MOST_SECONDS,
            check=False,
        )
        self.assertEqual(-signal.SIGKILL, done.returncode, (done.stdout, done.stderr))
