# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage doctor and status --watch over Nova's databases and a real MariaDB."""

from __future__ import annotations

import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import sqlalchemy as sa

from nova_nodb_scheduler.cmd.doctor import (
    doctor_command,
    findings,
    process_checks,
    sql_server,
    upgrade_findings,
)
from nova_nodb_scheduler.cmd.framework import terminal
from nova_nodb_scheduler.cmd.overview import cell_names
from nova_nodb_scheduler.conf import nodb
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import loader
from nova_nodb_scheduler.testing import servers
from tests.functional.nova_adapter import cloud
from tests.functional.synchronizer.drivers.sqlalchemy import sql_databases

Severity = findings.Severity
_MANAGE = (
    "import sys; sys.argv[0] = 'nova-nodb-manage'; "
    "from nova_nodb_scheduler.cmd import manage; sys.exit(manage.main())"
)
#: A process that imports Nova on a busy machine.
_PATIENCE_SECONDS = 240.0


class MariaDBCloud(cloud.CloudCase):
    """A cloud whose back end is a MariaDB, as a user of its own."""

    def setUp(self) -> None:
        self.database = servers.MariaDB(prepare=sql_databases.migrate)
        self.database.setUp()
        self.addCleanup(self.database.cleanUp)
        self.schema = str(sa.make_url(self.database.url).database)
        self.user = f"of_{self.schema}"
        execute = self.database.server.execute
        execute(f"CREATE USER {self.user}@'127.0.0.1'")
        self.addCleanup(execute, f"DROP USER {self.user}@'127.0.0.1'")
        execute(f"GRANT ALL ON {self.schema}.* TO {self.user}@'127.0.0.1'")
        url = sa.make_url(self.database.url).set(username=self.user)
        self.url = url.render_as_string(hide_password=False)
        loader.load_class("sqlalchemy").register_opts(cloud.CONF)
        super().setUp()
        self.override("synchronizer", "sqlalchemy", nodb.GROUP)
        self.override("connection", self.url, "nodb_sqlalchemy")
        # Nothing here decides, so nothing claims.
        self.override("claims", "off", nodb.GROUP)
        self.synchronizer = self.plugin.make_synchronizer()
        self.synchronizer.open()
        self.addCleanup(self.synchronizer.close)

    def run_scheduler(self) -> Any:
        """Start a worker's runtime, as a scheduler does."""
        runtime = self.plugin.scheduler(lambda: [cloud.CELL1, cloud.CELL2])
        runtime.start()
        self.addCleanup(runtime.stop)
        self.until(lambda: self.states(known_namespaces.SCHEDULERS))
        return runtime

    def run_conductor(self) -> None:
        """Sweep everything, and report from now on, as conductors do."""
        for cell in (cloud.CELL1, cloud.CELL2):
            self.service(cell, "here", "nova-conductor")
            self.report_from(cell)
        self.sweep()

    def report_from(self, cell: str) -> None:
        guards = (cell, cloud.CELL0, "api")
        reporter = self.plugin.reporter("conductor", lambda: cell, lambda: guards)
        reporter.ensure_started()
        self.addCleanup(reporter.stop)
        self.until(lambda: any(each["cell"] == cell for each in self.heartbeats()))

    def heartbeats(self) -> list[Any]:
        return list(self.states(known_namespaces.REPORTERS).values())

    def schedulers(self) -> list[Any]:
        return list(self.states(known_namespaces.SCHEDULERS).values())

    def until(self, condition: Any) -> None:
        deadline = time.monotonic() + 60.0
        while not condition():
            self.assertLess(time.monotonic(), deadline, "ran out of patience")
            time.sleep(0.05)

    def connections(self) -> int:
        """Connections of the back end's user."""
        engine = sa.create_engine(self.database.url)
        try:
            with engine.connect() as connection:
                return int(
                    connection.exec_driver_sql(
                        "SELECT COUNT(*) FROM information_schema.processlist "
                        f"WHERE user = '{self.user}'"
                    ).scalar_one()
                )
        finally:
            engine.dispose()


class LookTest(MariaDBCloud):
    def look(self) -> dict[str, list[findings.DoctorFinding]]:
        by_area: dict[str, list[findings.DoctorFinding]] = {}
        for each in doctor_command.look(cloud.CONF, None, 200.0):
            by_area.setdefault(each.area, []).append(each)
        return by_area

    def test_a_cloud_that_runs_is_looked_at_whole(self) -> None:
        self.run_conductor()
        self.run_scheduler()
        # One that has just begun serves nothing from memory yet, which is told.
        self.until(lambda: [each["unproved"] for each in self.schedulers()] == [{}])

        found = self.look()

        for area in (
            "Nova release",
            "Services with the plugin",
            "Cells",
            "Heartbeats of services",
            "Mirror of Placement",
            "Schema of the synchronizer",
            "Options' spelling",
            "TLS and credentials",
            "Rights of the database user",
            "Connections",
            "Clocks",
            "Workers and their memory",
            "Placement's retries",
        ):
            self.assertIn(area, found)
        well = (
            *("Rights of the database user", "Connections", "Clocks", "Options' spelling"),
            *("Services with the plugin", "Reporters and feeds", "Cells"),
            "Heartbeats of services",
        )
        for area in well:
            self.assertEqual([Severity.OK], [each.severity for each in found[area]], found[area])
        self.assertIn("1 scheduler processes with up to 9 each", found["Connections"][0].text)
        self.assertIn("those of 1 hosts agree", found["Clocks"][0].text)
        self.assertIn("1 scheduler workers on here hold", found["Workers and their memory"][0].text)

    def test_what_a_cloud_shows_fits_eighty_columns(self) -> None:
        printer = doctor_command.Doctor(None, None)
        file = io.StringIO()
        printer.console = terminal.console(everything=False, file=file)

        names = cell_names.of_configuration(cloud.CONF)
        doctor_command.show(printer, doctor_command.look(cloud.CONF, None, 200.0), names)

        for line in file.getvalue().splitlines():
            self.assertLessEqual(len(line), terminal.WIDTH, file.getvalue())

    def test_a_scheduler_keeps_no_more_connections_than_is_stated(self) -> None:
        before = self.connections()
        runtime = self.run_scheduler()
        most = 0
        for _ in range(20):
            runtime.synchronizer.head()
            most = max(most, self.connections() - before)
            time.sleep(0.05)

        self.assertGreater(most, 0)
        # One of the three clients that it may have.
        self.assertLessEqual(most, sql_server.KEPT["scheduler"] // 3)

    def test_a_conductor_s_clients_keep_no_more_connections_than_is_stated(self) -> None:
        before = self.connections()
        self.run_conductor()
        duty = self.plugin.sweep_duty()
        duty.start()
        self.addCleanup(duty.stop)
        most = 0
        for _ in range(20):
            most = max(most, self.connections() - before)
            time.sleep(0.05)

        self.assertLessEqual(most, sql_server.KEPT["conductor"])

    def test_clocks_apart_are_told_by_host(self) -> None:
        self.run_conductor()
        self.run_scheduler()
        read = upgrade_findings.DoctorUpgradeChecks().found
        offset = process_checks.own_offset_seconds(self.plugin.make_synchronizer())

        [ahead] = process_checks.clocks(read, offset - 7.0)[-1:]
        found = process_checks.clocks(read, offset + 3600.0)

        self.assertIs(Severity.WARNING, ahead.severity)
        self.assertIn("The clock of here is 7 s ahead of this host's.", ahead.text)
        self.assertIn("The back end's clock is 3600 s behind this host's.", found[0].text)
        self.assertIn("NTP", found[0].remedy)


class CommandTest(MariaDBCloud):
    """As an operator calls them, with the message bus away."""

    def setUp(self) -> None:
        super().setUp()
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="nodb-doctor-"))
        self.conf = self.directory / "nova.conf"
        self.write()

    def write(self, more: str = "") -> None:
        self.conf.write_text(
            f"[DEFAULT]\nhost = here\nstate_path = {self.directory}\n"
            "transport_url = rabbit://nova:secret@127.0.0.1:1/\n"
            # On a busy machine a command takes longer to start than a service may be silent.
            "scheduler_driver = nodb_scheduler\nservice_down_time = 3600\n"
            "[oslo_messaging_notifications]\ndriver = nodb_scheduler\n"
            f"[database]\nconnection = {self.urls[cloud.CELL1]}\n"
            f"[api_database]\nconnection = {self.urls['api']}\n"
            f"[nodb_sqlalchemy]\nconnection = {self.url}\n{more}"
        )

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", _MANAGE, "--config-file", str(self.conf), *arguments]

    def run_command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            check=False,
            cwd=self.directory,
            timeout=_PATIENCE_SECONDS,
        )
        self.keep(arguments, done.stdout)
        return done

    def keep(self, arguments: tuple[str, ...], text: str) -> None:
        """File a transcript where the environment says so, for the documents."""
        place = os.environ.get("NODB_TRANSCRIPTS")
        if place:
            name = "-".join(arguments).replace("--", "")
            pathlib.Path(place, f"{name}.txt").write_text(text)

    def assert_eighty_columns(self, text: str) -> None:
        for line in text.splitlines():
            self.assertLessEqual(len(line), terminal.WIDTH, text)

    def test_the_doctor_looks_without_the_bus_and_ends_with_its_verdict(self) -> None:
        self.run_conductor()
        self.run_scheduler()

        done = self.run_command("doctor", "--timeout", "200")
        self.assert_eighty_columns(done.stdout)
        as_json = self.run_command("doctor", "--timeout", "200", "--json")

        document = json.loads(as_json.stdout)
        self.assertEqual(document["status"], as_json.returncode)
        self.assertEqual(document["status"], done.returncode)
        areas = {each["area"]: each for each in document["findings"]}
        self.assertEqual("ok", areas["Connections"]["severity"], areas["Connections"])
        for area in ("Rights of the database user", "Cells", "Services with the plugin"):
            self.assertEqual("ok", areas[area]["severity"], areas[area])
        self.assertNotIn("secret", done.stdout + as_json.stdout)
        self.assertNotIn("Traceback", done.stderr)
        self.assertNotIn("no answer within", as_json.stdout)

    def test_mistakes_are_errors_and_warnings_with_their_remedies(self) -> None:
        self.write("maximum_pool_size = 3\n[nodb_scheduler]\nsynchroniser = redis\n")
        self.database.server.execute(
            f"REVOKE DELETE ON {self.schema}.* FROM {self.user}@'127.0.0.1'"
        )

        done = self.run_command("doctor", "--timeout", "200", "--json")

        self.assertEqual(2, done.returncode, done.stderr)
        document = json.loads(done.stdout)["findings"]
        self.assertEqual("error", document[0]["severity"])
        told = {(each["area"], each["severity"], each["remedy"]) for each in document}
        self.assertIn(("Options' spelling", "warning", "Write synchronizer, or remove it."), told)
        self.assertTrue(any("GRANT ALL ON" in remedy for *_rest, remedy in told), told)
        self.assertEqual("", done.stderr)

    def test_status_is_watched_until_ctrl_c(self) -> None:
        self.run_conductor()
        self.run_scheduler()
        process = subprocess.Popen(
            self.command("status", "--watch", "0.5"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.directory,
        )
        self.addCleanup(process.kill)
        watchdog = threading.Timer(_PATIENCE_SECONDS, process.kill)
        watchdog.start()
        self.addCleanup(watchdog.cancel)
        assert process.stdout is not None
        lines: list[str] = []
        while sum("ctrl-C ends." in line for line in lines) < 4:
            line = process.stdout.readline()
            self.assertTrue(line, "".join(lines))
            lines.append(line)
        process.send_signal(signal.SIGINT)
        rest, told = process.communicate()

        self.assertEqual((0, ""), (process.returncode, told))
        text = "".join(lines) + rest
        self.assert_eighty_columns(text)
        self.keep(("status", "--watch"), text)
        for expected in ("here", "following", "Fell back to Nova's own path", "Claims:"):
            self.assertIn(expected, text)
