# SPDX-License-Identifier: Apache-2.0
"""The loopback stack's tooling: what its counters count, what its configuration says."""

import collections
import json
import pathlib
import tempfile
import unittest
from typing import Any

import attrs

from tools.stack import configuration, daemons, environment, monitoring, services, settings
from tools.stack import stack as stack_module
from tools.stack.counts import idle_statements, plugin_status, sql_statements


def _settings(**values: object) -> settings.Settings:
    directory = pathlib.Path("/nonexistent")
    values = {"state": directory, "venv": directory, "first_port": 23000, "nova": 34, **values}
    return settings.Settings(**values)


class ClassifyTest(unittest.TestCase):
    def _classify(self, text: str, own_row: int | None = 7) -> sql_statements.Statement:
        return sql_statements.classify("nova-scheduler-1", "nova_cell0", text, own_row)

    def test_every_joined_table_is_named_once(self) -> None:
        statement = self._classify(
            "SELECT a.id FROM (SELECT * FROM aggregates) AS a"
            " LEFT OUTER JOIN `aggregate_hosts` AS h ON 1 JOIN aggregate_hosts AS i ON 1"
        )
        self.assertEqual(("aggregates", "aggregate_hosts"), statement.tables)

    def test_an_update_of_the_own_row_is_a_heartbeat(self) -> None:
        text = "UPDATE services SET report_count=4 WHERE services.id = 7"
        self.assertTrue(self._classify(text).is_heartbeat)

    def test_another_services_row_is_no_heartbeat(self) -> None:
        text = "UPDATE services SET report_count=4 WHERE services.id = 71"
        self.assertFalse(self._classify(text).is_heartbeat)

    def test_the_minimum_version_query_is_no_heartbeat(self) -> None:
        text = "SELECT min(services.version) FROM services WHERE services.deleted = 0"
        self.assertFalse(self._classify(text).is_heartbeat)

    def test_no_row_known_means_no_heartbeat(self) -> None:
        text = "UPDATE services SET report_count=4 WHERE services.id = 7"
        self.assertFalse(self._classify(text, None).is_heartbeat)

    def test_transaction_control_and_pings_have_no_table(self) -> None:
        self.assertEqual("CONTROL", self._classify("ROLLBACK").verb)
        self.assertEqual("PING", self._classify("SELECT 1").verb)


class ReportTest(unittest.TestCase):
    def test_totals_leave_out_heartbeats_other_processes_and_the_synchronizer(self) -> None:
        def statement(**values: object) -> sql_statements.Statement:
            base = sql_statements.Statement(
                "nova-scheduler-1", "nova_cell1", "SELECT", ("services",), False
            )
            return attrs.evolve(base, **values)

        report = sql_statements.Report(
            collections.Counter(
                {
                    statement(): 3,
                    statement(is_heartbeat=True): 5,
                    statement(process="nova-conductor-cell1-1"): 7,
                    statement(database="nova_nodb"): 11,
                }
            ),
            {},
        )
        self.assertEqual(3, report.on_state_tables("nova-scheduler")["services"])
        self.assertEqual(5, report.heartbeats("nova-scheduler"))


class IdleStatementsTest(unittest.TestCase):
    def test_what_conductors_send_on_cells_is_told_per_compute_and_minute(self) -> None:
        def sent(tables: tuple[str, ...], database: str = "nova_cell1", own: bool = False) -> Any:
            return sql_statements.Statement(
                "nova-conductor-cell1-1", database, "SELECT", tables, own
            )

        counts = {
            sent(("services",)): 24,
            sent(("instances", "services")): 12,
            sent(("services",), own=True): 100,
            sent(()): 100,
            sent(("services",), database="nova_cell0"): 100,
        }
        report = sql_statements.Report(collections.Counter(counts), {})
        idle = idle_statements.of_report(report, ["nova_cell1", "nova_cell2"], 6, 120.0)
        self.assertEqual({"services": 2.0, "instances": 1.0}, idle.by_table)
        self.assertEqual(3.0, idle.total)


class ConfigurationTest(unittest.TestCase):
    def test_computes_are_dealt_out_to_cells_in_equal_blocks(self) -> None:
        cells = [cell for _name, _host, cell in _settings(computes=6).compute_cells()]
        self.assertEqual(["cell1"] * 3 + ["cell2"] * 3, cells)

    def test_a_stock_process_keeps_novas_own_configuration(self) -> None:
        mixed = _settings(stock_processes=("nova-scheduler-2",))
        self.assertTrue(mixed.uses_plugin("nova-scheduler-1"))
        self.assertFalse(mixed.uses_plugin("nova-scheduler-2"))

    def test_placement_is_guarded_where_that_is_asked_for(self) -> None:
        commands = [
            services.service(_settings(guarded_placement=guarded), "placement").command
            for guarded in (False, True)
        ]
        self.assertEqual(
            [
                "placement.wsgi.api:application",
                "nova_nodb_scheduler.placement_adapter.wsgi:application",
            ],
            [command[-1] for command in commands],
        )

    def test_every_plugin_process_has_its_own_database_user(self) -> None:
        urls = {
            configuration.plugin_sections(_settings(), name)["nodb_sqlalchemy"]["connection"]
            for name in _settings().control_plane_names
        }
        self.assertEqual(len(_settings().control_plane_names), len(urls))

    def test_settings_survive_their_file(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            written = attrs.evolve(
                _settings(stock_processes=("nova-api",)), state=pathlib.Path(directory)
            )
            written.save()
            self.assertEqual(written, settings.load(pathlib.Path(directory)))

    def test_prometheus_scrapes_the_ports_that_the_services_are_told(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            stack = attrs.evolve(_settings(), state=pathlib.Path(directory))
            config = json.loads(monitoring.write(stack).read_text())
            told = configuration.plugin_sections(stack, "nova-api")["nodb_scheduler"]
        ports = [told[f"{role}metrics_port"] for role in ("", "conductor_", "api_")]
        targets = config["scrape_configs"][0]["static_configs"][0]["targets"]
        self.assertEqual([f"127.0.0.1:{port}" for port in ports], targets)
        self.assertTrue(pathlib.Path(config["rule_files"][0]).is_file())


class DaemonsTest(unittest.TestCase):
    def test_neutron_takes_the_longest_request_that_nova_makes_for_a_list_of_servers(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            stack = settings.Settings(state=directory, venv=directory, first_port=23000)
            stack.etc.mkdir()
            daemons.write(stack)
            read: dict[str, int] = {}
            exec((stack.etc / "gunicorn.py").read_text(), read)  # noqa: S102 - as gunicorn does
        # neutronclient refuses what is longer, and Nova then asks for fewer servers at once.
        longest = 8192 - len(stack.url("neutron")) + len("GET  HTTP/1.1\r\n")
        self.assertGreaterEqual(read.get("limit_request_line", 4094), longest)


class ReleaseTest(unittest.TestCase):
    def setUp(self) -> None:
        self.state = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_a_directory_without_a_stack_is_for_the_newest_release(self) -> None:
        self.assertEqual(34, environment.release_of_stack(self.state))

    def test_a_stack_that_stands_says_its_release(self) -> None:
        _settings(state=self.state, nova=31).save()
        self.assertEqual(31, environment.release_of_stack(self.state))

    def test_a_stack_of_another_release_is_not_brought_up_over_it(self) -> None:
        _settings(state=self.state, nova=31).save()
        with self.assertRaisesRegex(ValueError, "holds a stack of Nova 31, not 34"):
            stack_module.Stack(_settings(state=self.state, nova=34)).up()
        self.assertEqual(31, settings.load(self.state).nova)

    def test_every_release_that_the_stack_offers_has_its_constraints(self) -> None:
        tools = pathlib.Path(environment.__file__).resolve().parents[1]
        named = {f"constraints-nova{release}.txt" for release in environment.RELEASES}
        self.assertEqual(named, {path.name for path in tools.glob("constraints-nova*.txt")})
        for release in environment.RELEASES:
            text = (tools / f"constraints-nova{release}.txt").read_text()
            self.assertRegex(text, rf"(?m)^nova=={release}\.")


class LogsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.state = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.stack = stack_module.Stack(_settings(state=self.state))

    def test_of_no_run_nothing_is_put_aside(self) -> None:
        self.assertIsNone(self.stack.put_logs_aside())

    def test_logs_put_aside_outlive_the_next_run_and_the_oldest_go(self) -> None:
        asides = []
        for number in range(7):
            (self.stack.settings.log / "nova-api.log").write_text(str(number))
            asides.append(self.stack.put_logs_aside())
            self.stack.down(wipe=True)
            self.stack = stack_module.Stack(_settings(state=self.state))
        self.assertEqual(
            [None, None, "2", "3", "4", "5", "6"],
            [(aside / "nova-api.log").read_text() if aside.exists() else None for aside in asides],
        )


class PluginStatusTest(unittest.TestCase):
    def test_the_worst_scheduler_is_reported(self) -> None:
        status = plugin_status.from_json(
            {
                "schedulers": [
                    {"hosts": 6, "fallbacks": {"cold": 1}, "feed_lag_seconds": 0.1},
                    {"hosts": 5, "fallbacks": {"cold": 0, "feed": 2}, "feed_lag_seconds": 0.3},
                ]
            }
        )
        self.assertEqual(
            plugin_status.PluginStatus(hosts=5, fallbacks=3, feed_lag_seconds=0.3), status
        )

    def test_what_is_not_said_is_unknown(self) -> None:
        self.assertEqual(plugin_status.PluginStatus(), plugin_status.from_json({}))
