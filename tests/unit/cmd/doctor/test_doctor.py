# SPDX-License-Identifier: Apache-2.0
"""What the doctor says of configuration files, clocks, workers, connections and Placement."""

import io
import pathlib
import threading
import types
from unittest import mock

import fixtures
import testtools
from oslo_config import cfg

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd.doctor import (
    configuration_files,
    doctor_command,
    findings,
    process_checks,
    sql_server,
    upgrade_findings,
)
from nova_nodb_scheduler.cmd.framework import terminal
from nova_nodb_scheduler.cmd.overview import cell_names, deployment, process_reports
from nova_nodb_scheduler.conf import nodb
from nova_nodb_scheduler.nova_adapter import start_checks
from nova_nodb_scheduler.observe import process_metrics
from tests.unit.cmd import samples

Severity = findings.Severity
MIB = 1024 * 1024


class RunTest(testtools.TestCase):
    def test_a_check_that_hangs_and_one_that_fails_leave_the_others(self):
        never = threading.Event()
        self.addCleanup(never.set)

        def fails():
            raise RuntimeError("no route to mysql://u:secret@db/x\nand the whole statement")

        found = findings.run(
            [
                ("hangs", lambda: [never.wait()]),
                ("fails", fails),
                ("well", lambda: [findings.fine("well", "It is.")]),
            ],
            0.5,
        )

        self.assertEqual(
            [
                ("hangs", Severity.UNKNOWN, "Could not find out: no answer within 0 s."),
                (
                    "fails",
                    Severity.UNKNOWN,
                    "Could not find out: RuntimeError: no route to mysql://u:***@db/x",
                ),
                ("well", Severity.OK, "It is."),
            ],
            [(each.area, each.severity, each.text) for each in found],
        )

    def test_no_part_of_a_password_is_told_whatever_its_characters(self):
        for failure in (RuntimeError, findings.NotKnown):
            for password in ("se/cret", "se@cret", "se:cret"):

                def fails(failure=failure, password=password):
                    raise failure(f"no route to mysql://u:{password}@db/x")

                [found] = findings.run([("fails", fails)], 20.0)

                self.assertNotIn("cret", found.text)
                self.assertIn("mysql://u:***@db/x", found.text)

    def test_that_the_back_end_is_away_is_said_whole_only_once(self):
        def fails():
            raise errors.BackendUnavailable("redis at far", "a long story")

        [found] = findings.run([("Clocks", fails)], 20.0)

        self.assertEqual("Could not find out: the back end does not answer.", found.text)

    def test_the_exit_status_is_that_of_the_worst(self):
        fine, warned = findings.fine("a", "b"), findings.warning("a", "b", "c")
        unknown, error = findings.unknown("a", "b"), findings.error("a", "b", "c")
        for found, status in (
            ([], 0),
            ([fine], 0),
            ([fine, unknown], 1),
            ([warned, fine], 1),
            ([warned, error, fine], 2),
        ):
            self.assertEqual(status, findings.exit_status(found))
        self.assertEqual(
            [error, warned, unknown, fine], findings.in_order([fine, unknown, warned, error])
        )

    def test_it_is_shown_worst_first_in_eighty_columns_with_remedies_and_names(self):
        cell = "64ec2f33-1f5d-4b24-acd4-4b54ee9c8292"
        printer = doctor_command.Doctor(None, None)
        printer.console = terminal.console(everything=False, file=io.StringIO())
        found = findings.in_order(
            [
                findings.fine("Clocks", "They agree."),
                findings.warning("Cells", f"Cell {cell} was never imported.", "Import it."),
                findings.error("Options' spelling", "word " * 60, "Set [nodb_scheduler] claims."),
            ]
        )

        doctor_command.show(printer, found, cell_names.CellNames({cell: "cell1"}))

        shown = printer.console.file.getvalue()
        self.assertTrue(shown.startswith("1 error, 1 warning; 1 are well."), shown)
        self.assertEqual([], [line for line in shown.splitlines() if len(line) > terminal.WIDTH])
        for text in ("-> Set [nodb_scheduler] claims.", "Cell cell1 was never imported."):
            self.assertIn(text, shown)
        self.assertLess(shown.index("ERROR"), shown.index("warning  "))

    def test_every_upgrade_check_is_included(self):
        names = [name for name, _check in upgrade_findings.DoctorUpgradeChecks().all()]

        for name in ("Nova release", "Options", "Schema of the synchronizer", "Cells"):
            self.assertIn(name, names)

    def test_an_upgrade_check_keeps_its_verdict_and_what_is_not_known_is_said_so(self):
        checks = upgrade_findings.DoctorUpgradeChecks()
        checks.plugin = mock.Mock()
        checks.plugin.options = types.SimpleNamespace(synchronizer="redis")
        checks.found = mock.Mock(backend=process_reports.Backend("redis", error="it is down"))
        by_name = dict(checks.all())

        [schema] = upgrade_findings.of(checks, by_name["Schema of the synchronizer"])
        [backend] = upgrade_findings.of(checks, by_name["Synchronizer back end"])
        [cells] = upgrade_findings.of(checks, by_name["Cells"])

        self.assertEqual(
            [Severity.OK, Severity.ERROR, Severity.UNKNOWN],
            [each.severity for each in (schema, backend, cells)],
        )


class ConfigurationTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.path = pathlib.Path(self.useFixture(fixtures.TempDir()).path) / "nova.conf"
        self.useFixture(fixtures.MonkeyPatch(f"{start_checks.__name__}._told", set()))

    def conf(self, text):
        self.path.write_text(text)
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[str(self.path)], default_config_dirs=[])
        conf.register_opts([cfg.StrOpt("host", default="here"), cfg.StrOpt("state_path")])
        nodb.register_opts(conf)
        return conf

    def spelling(self, text):
        return {(each.text, each.remedy) for each in configuration_files.spelling(self.conf(text))}

    def test_a_misspelt_option_is_told_with_the_nearest_names(self):
        self.assertEqual(
            {
                (
                    "[nodb_scheduler] synchroniser is no option and has no effect.",
                    "Write synchronizer, or remove it.",
                ),
                (
                    "[nodb_redis] beat_interval_seconds is no option and has no effect.",
                    "Move it to [nodb_scheduler].",
                ),
                (
                    "[nodb_etcd] turbo is no option and has no effect.",
                    "Remove it; the sample configuration has all names.",
                ),
            },
            self.spelling(
                "[nodb_scheduler]\nsynchroniser = redis\n[nodb_redis]\nbeat_interval_seconds = 3\n"
                "[nodb_etcd]\nturbo = true\n"
            ),
        )

    def test_a_misspelt_group_and_what_stands_in_the_wrong_one(self):
        self.assertEqual(
            {
                (
                    "Nobody reads the group [nodb_sqlalchmy].",
                    "Write [nodb_sqlalchemy], if that is meant.",
                ),
                (
                    "[DEFAULT] scheduler_drivers is no option and has no effect.",
                    "Write scheduler_driver.",
                ),
                (
                    "[DEFAULT] synchronizer is no option and has no effect.",
                    "Move it to [nodb_scheduler].",
                ),
            },
            self.spelling(
                "[DEFAULT]\nscheduler_drivers = x\nsynchronizer = redis\nhost = x\nof_others = 1\n"
                "[nodb_sqlalchmy]\nconnection = x\n[placement]\nregion_name = x\n"
            ),
        )

    def test_a_password_of_which_a_part_is_replaced_is_told_without_it(self):
        found = self.spelling("[nodb_redis]\npassword = secret$host\n[nodb_etcd]\npassword=a$$host")

        [(text, remedy)] = found
        self.assertIn("In [nodb_redis] password a '$' is taken for a reference", text)
        self.assertIn("Write '$$'", remedy)
        self.assertNotIn("secret", text + remedy)

    def test_what_is_spelt_well_is_well(self):
        [(text, _remedy)] = self.spelling(
            "[nodb_scheduler]\nsynchronizer = redis\n"
            "[nodb_sqlalchemy]\nconnection = sqlite:///$state_path/nodb.sqlite\n"
        )
        self.assertEqual("All 2 that are set in groups of ours exist.", text)

    def test_what_travels_in_clear_text_is_told(self):
        far, near = "backend.example.com", "127.0.0.1"
        for driver, option, value, expected in (
            ("sqlalchemy", "connection", f"mysql+pymysql://u:p@{far}/nodb", "warning"),
            ("sqlalchemy", "connection", f"mysql+pymysql://u:p@{near}/nodb", "ok"),
            ("sqlalchemy", "connection", f"mysql+pymysql://u:p@{far}/nodb?ssl_ca=/ca", "ok"),
            ("sqlalchemy", "connection", f"postgresql+psycopg://u:p@{far}/nodb", "warning"),
            (
                "sqlalchemy",
                "connection",
                f"postgresql+psycopg://u:p@{far}/nodb?sslmode=verify-full",
                "ok",
            ),
            ("sqlalchemy", "connection", "sqlite:////x/nodb.sqlite", "ok"),
            ("redis", "url", f"redis://{far}:6379/0", "warning"),
            ("redis", "url", f"rediss://{far}:6379/0", "ok"),
            ("redis", "url", "unix:///run/redis.sock", "ok"),
            ("etcd", "endpoints", f"https://{far}:2379,http://{far}:2379", "warning"),
            ("etcd", "endpoints", f"https://{far}:2379", "ok"),
            ("memcached", "servers", f"{far}:11211", "warning"),
            ("memcached", "servers", "/run/memcached.sock", "ok"),
            ("memory", "hub_name", "x", "ok"),
        ):
            with self.subTest(value=value):
                conf = self.conf(f"[nodb_{driver}]\n{option} = {value}\n")
                options = types.SimpleNamespace(synchronizer=driver)
                [found] = configuration_files.tls(conf, options)
                self.assertEqual(expected, found.severity.value, found)
                if expected == "warning":
                    self.assertIn(far, found.text)

    def sqlite(self, hosts, mode=0o600):
        file = self.path.parent / "nodb.sqlite"
        file.touch()
        file.chmod(mode)
        conf = self.conf(f"[nodb_sqlalchemy]\nconnection = sqlite:///{file}\n")
        options = types.SimpleNamespace(synchronizer="sqlalchemy")
        [found] = configuration_files.sqlite_place(conf, options, lambda: hosts)
        return found

    def test_sqlite_with_several_hosts_is_warned_of(self):
        self.assertIs(Severity.OK, self.sqlite({"a"}).severity)
        found = self.sqlite({"a", "b"})
        self.assertIs(Severity.WARNING, found.severity)
        self.assertIn("2 hosts: a, b", found.text)

    def test_a_file_that_others_may_read_is_warned_of(self):
        found = self.sqlite({"a"}, mode=0o644)
        self.assertIs(Severity.WARNING, found.severity)
        self.assertIn("chmod 600", found.remedy)


class ProcessesTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.cloud = self.useFixture(samples.BackendFixture())

    def found(self):
        return deployment.gather(
            process_reports.read_backend(self.cloud.client()), None, (), 15.0, 300.0
        )

    def test_clocks_are_compared_with_one_another_where_the_back_end_has_no_date(self):
        self.cloud.scheduler("a", 1, clock_offset_seconds=100.0)
        self.cloud.scheduler("b", 1, clock_offset_seconds=130.0)
        self.cloud.scheduler("gone", 1, clock_offset_seconds=900.0, age_seconds=100.0)
        self.cloud.reporter("conductor", "a", "cell1", clock_offset_seconds=101.0)
        read = self.found()
        for now_seconds, expected in (
            (1000.0, ["The clock of b is 30 s ahead of this host's."]),
            (
                2e9,
                [
                    "The back end's clock is 100 s behind this host's.",
                    "The clock of b is 30 s ahead of this host's.",
                ],
            ),
        ):
            object.__setattr__(read.backend, "now_seconds", now_seconds)
            found = process_checks.clocks(read, 100.0)
            self.assertEqual(expected, [each.text for each in found])
            self.assertEqual({Severity.WARNING}, {each.severity for each in found})

    def test_processes_of_an_older_release_tell_no_clock_and_no_memory(self):
        self.cloud.scheduler("a", 1)
        read = self.found()

        [clocks] = process_checks.clocks(read, 0.1)
        [workers] = process_checks.workers(read, "elsewhere")

        self.assertEqual((Severity.OK, Severity.OK), (clocks.severity, workers.severity))
        self.assertIn("no process tells its own", clocks.text)
        self.assertIn("of an older release", workers.text)

    def workers(self, available_mib, *sizes_mib):
        for number, size in enumerate(sizes_mib):
            self.cloud.scheduler(
                "a",
                number + 1,
                memory_bytes=size * MIB,
                machine_bytes=[4096 * MIB, available_mib * MIB],
            )
        [found] = process_checks.workers(self.found(), "elsewhere")
        return found

    def test_workers_that_leave_no_room_for_one_that_starts_are_warned_of(self):
        found = self.workers(800, 863, 863)

        self.assertIs(Severity.WARNING, found.severity)
        self.assertIn("2 scheduler workers on a hold 1726 MiB, the largest 863", found.text)
        self.assertIn("[scheduler] workers", found.remedy)

    def test_workers_with_room_are_well(self):
        self.assertIs(Severity.OK, self.workers(2000, 863).severity)

    def test_where_nobody_schedules_it_is_not_known(self):
        [found] = process_checks.workers(self.found(), "a")
        self.assertIs(Severity.UNKNOWN, found.severity)

    def test_processes_count_once_however_many_reporters_they_have(self):
        self.cloud.scheduler("a", 1)
        self.cloud.scheduler("a", 2)
        self.cloud.reporter("conductor", "a", "cell1")
        self.cloud.reporter("conductor", "a", "cell2")
        self.cloud.reporter("api", "b", "*", age_seconds=100.0)

        self.assertEqual({"scheduler": 2, "conductor": 1}, process_checks.counts(self.found()))
        self.assertEqual({"a"}, process_checks.hosts(self.found()))

    def test_a_process_knows_its_memory(self):
        self.assertGreater(process_metrics.resident_bytes(), MIB)
        total, available = process_metrics.machine_bytes()
        self.assertGreater(total, available)
        self.assertIsNone(process_metrics.resident_bytes(2**30))


class ServerTest(testtools.TestCase):
    def test_grants_are_read_as_mariadb_writes_them(self):
        for line, schema, includes, alone in (
            ("GRANT ALL PRIVILEGES ON `nova_nodb`.* TO `u`@`%`", "nova_nodb", True, True),
            ("GRANT SELECT, INSERT ON `nova\\_nodb`.* TO `u`@`%`", "nova_nodb", True, True),
            ("GRANT SELECT ON `nova\\_nodb`.* TO `u`@`%`", "novaXnodb", False, False),
            ("GRANT SELECT ON `nova_nodb`.* TO `u`@`%`", "novaXnodb", True, False),
            ("GRANT SELECT ON `nova%`.* TO `u`@`%`", "nova_nodb", True, False),
            ("GRANT USAGE ON *.* TO `u`@`%` IDENTIFIED BY PASSWORD '*A'", "nova", True, False),
            ("GRANT SELECT (`a`, `b`), UPDATE ON `n.x`.`t` TO `u`@`%`", "n.x", True, True),
        ):
            with self.subTest(line):
                grant = sql_server.SqlGrant.parse(line)
                self.assertEqual(
                    (includes, alone), (grant.includes(schema), grant.is_of(schema)), grant
                )
        self.assertEqual(
            {"SELECT", "UPDATE"},
            sql_server.SqlGrant.parse("GRANT SELECT (`a`, `b`), UPDATE ON `n`.`t` TO u").privileges,
        )
        for line in ("GRANT `role` TO `u`@`%`", "GRANT PROXY ON ''@'%' TO 'root'@'%'"):
            self.assertIsNone(sql_server.SqlGrant.parse(line))

    def judge(self, limit=100, used=10, most=None, ours=5, **counted):
        usage = sql_server.Usage(limit, used, most, ours)
        [found] = sql_server.judge_connections(usage, counted)
        return found.severity

    def test_connections_are_judged_by_what_is_used_was_used_and_may_be(self):
        self.assertIs(Severity.OK, self.judge())
        self.assertIs(Severity.ERROR, self.judge(used=100))
        self.assertIs(Severity.WARNING, self.judge(most=90))
        self.assertIs(Severity.WARNING, self.judge(scheduler=9))
        self.assertIs(Severity.ERROR, self.judge(scheduler=9, conductor=2))


class PlacementTest(testtools.TestCase):
    def retries(self, text):
        path = pathlib.Path(self.useFixture(fixtures.TempDir()).path) / "placement.conf"
        path.write_text(text)
        [found] = configuration_files.placement_retries(str(path))
        return found

    def test_one_is_well_and_the_default_is_warned_of(self):
        option = "allocation_conflict_retry_count"
        self.assertIs(Severity.OK, self.retries(f"[placement]\n{option} = 1\n").severity)
        for text in ("", f"[placement]\n{option} = 10\n"):
            found = self.retries(text)
            self.assertIs(Severity.WARNING, found.severity)
            self.assertIn("is 10", found.text)
            self.assertIn("Set it to 1", found.remedy)

    def test_what_cannot_be_read_could_not_be_found_out_with_its_cause(self):
        [found] = configuration_files.placement_retries("/nowhere/placement.conf")
        self.assertIs(Severity.UNKNOWN, found.severity)
        self.assertIn("No such file", found.text)
        self.assertIs(Severity.UNKNOWN, self.retries("no section\n").severity)
        self.assertIs(
            Severity.UNKNOWN,
            self.retries("[placement]\nallocation_conflict_retry_count = x\n").severity,
        )

    def test_a_host_without_placement_is_no_finding(self):
        with mock.patch.object(configuration_files, "DEFAULT_PATH", "/nowhere/placement.conf"):
            [found] = configuration_files.placement_retries(None)
        self.assertIs(Severity.OK, found.severity)
