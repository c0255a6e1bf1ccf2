# SPDX-License-Identifier: Apache-2.0
"""Run the DevStack plugin through its phases, on files, and look at what it wrote."""

import collections
import os
import pathlib
import subprocess
import tempfile

import testtools
from oslo_config import cfg

from nova_nodb_scheduler.conf import opts
from nova_nodb_scheduler.synchronizer import loader

ROOT = pathlib.Path(__file__).resolve().parents[3]
HELPERS = pathlib.Path(__file__).with_name("helper_functions.bash")
STACK_PHASES = ("pre-install", "install", "post-config", "extra", "test-config")
CELL_UUIDS = {
    "cell0": "00000000-0000-0000-0000-000000000000",
    "cell1": "3e6c0a1b-8f0f-4c56-9a0a-5a3a3b9f7a01",
    "cell2": "9d1c8f8e-3f5e-4a77-b2b8-0f6f9a0f2c02",
}
CONTROL_PLANE = "n-api,n-cond,n-sch,n-cpu,mysql,rabbit"
# What DevStack itself writes, as far as the plugin touches it.
NOVA_CONF = """
[DEFAULT]
debug = True

[database]
connection = mysql+pymysql://root:secret@127.0.0.1/nova_cell0?charset=utf8

[oslo_messaging_notifications]
transport_url = rabbit://stackrabbit:secret@127.0.0.1:5672/
driver = messagingv2
"""
CELL_CONF = """
[DEFAULT]
transport_url = rabbit://stackrabbit:secret@127.0.0.1:5672/nova_cell1

[database]
connection = mysql+pymysql://root:secret@127.0.0.1/nova_cell1?charset=utf8
"""


def read_ini(path: pathlib.Path) -> dict[tuple[str, str], list[str]]:
    """Every value of every option, in the order of the file."""
    values: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    section = ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif "=" in line:
            option, _, value = line.partition("=")
            values[section, option.strip()].append(value.strip())
    return dict(values)


class PluginTestCase(testtools.TestCase):
    """A directory that looks like a DevStack after Nova was configured."""

    def setUp(self) -> None:
        super().setUp()
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.work = pathlib.Path(directory.name)
        self.calls_file = self.work / "calls"
        self.etc = self.work / "etc"
        self.etc.mkdir()
        self.nova_conf = self.etc / "nova.conf"
        self.nova_conf.write_text(NOVA_CONF)
        self.cells = {number: self.etc / f"nova_cell{number}.conf" for number in (1, 2)}
        for path in self.cells.values():
            path.write_text(CELL_CONF)
        self.original = {path: path.read_text() for path in self.etc.iterdir()}
        self._make_commands()

    def _make_commands(self) -> None:
        table = "".join(f"|  {name}  | {uuid} | x |\n" for name, uuid in CELL_UUIDS.items())
        (self.work / "bin").mkdir()
        for name, output in (
            ("nova-manage", f"| Name | UUID | URL |\n{table}"),
            ("nova-nodb-manage", ""),
            ("nova-nodb-status", ""),
        ):
            command = self.work / "bin" / name
            command.write_text(
                f"#!/bin/sh\necho {name} \"$@\" >>{self.calls_file}\ncat <<'END'\n{output}END\n"
            )
            command.chmod(0o755)

    def run_bash(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a script as stack.sh would: errors end it, settings were read before."""
        environment = {
            "PATH": os.environ["PATH"],
            "DEVSTACK_DIR": os.environ.get("DEVSTACK_DIR", ""),
            "WORK": str(self.work),
            "CALLS": str(self.calls_file),
            "ENABLED_SERVICES": CONTROL_PLANE,
            "CELLSV2_SETUP": "superconductor",
            "NOVA_NUM_CELLS": "2",
            "DATABASE_URL": "mysql+pymysql://root:secret@127.0.0.1",
            **variables,
        }
        self.calls_file.write_text("")
        return subprocess.run(
            ["bash", "-c", f"set -o errexit\nsource {HELPERS}\n{script}"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def run_phases(self, *phases: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Source the plugin as DevStack does, once for each phase."""
        devstack = ROOT / "devstack"
        lines = [f"source {devstack}/override-defaults", f"source {devstack}/settings"]
        for phase in phases:
            mode = phase if phase in ("unstack", "clean") else f"stack {phase}"
            lines.append(f"source {devstack}/plugin.sh {mode}")
        return self.run_bash("\n".join(lines), **variables)

    def stack(self, **variables: str) -> None:
        """Run all phases of stack.sh; they must succeed."""
        result = self.run_phases(*STACK_PHASES, **variables)
        self.assertEqual(0, result.returncode, result.stderr)

    def calls(self) -> list[str]:
        return self.calls_file.read_text().splitlines()


class StackTest(PluginTestCase):
    def test_nova_conf_gets_the_lines_that_switch_the_plugin_on(self) -> None:
        self.stack()
        values = read_ini(self.nova_conf)
        self.assertEqual(["nodb_scheduler"], values["DEFAULT", "scheduler_driver"])
        self.assertEqual(["nodb_host_manager"], values["DEFAULT", "scheduler_host_manager"])
        self.assertEqual(["sqlalchemy"], values["nodb_scheduler", "synchronizer"])
        self.assertEqual(
            ["mysql+pymysql://root:secret@127.0.0.1/nova_nodb?charset=utf8&plugin=dbcounter"],
            values["nodb_sqlalchemy", "connection"],
        )

    def test_the_notification_drivers_of_devstack_stay(self) -> None:
        self.stack()
        drivers = read_ini(self.nova_conf)["oslo_messaging_notifications", "driver"]
        self.assertEqual(["messagingv2", "nodb_scheduler"], drivers)

    def test_every_cell_conductor_reports_and_knows_its_cell(self) -> None:
        self.stack()
        for number, path in self.cells.items():
            values = read_ini(path)
            self.assertEqual(["nodb_scheduler"], values["oslo_messaging_notifications", "driver"])
            self.assertEqual([CELL_UUIDS[f"cell{number}"]], values["nodb_scheduler", "cell_uuid"])
            self.assertNotIn(("DEFAULT", "scheduler_driver"), values)

    def test_nova_conf_has_no_cell_because_its_readers_have_the_api_database(self) -> None:
        self.stack()
        self.assertNotIn(("nodb_scheduler", "cell_uuid"), read_ini(self.nova_conf))

    def test_a_single_conductor_reads_nova_conf_only(self) -> None:
        self.stack(CELLSV2_SETUP="singleconductor")
        for path in self.cells.values():
            self.assertEqual(self.original[path], path.read_text())
        self.assertIn(("DEFAULT", "scheduler_driver"), read_ini(self.nova_conf))

    def test_a_second_run_changes_nothing(self) -> None:
        self.stack()
        once = {path: path.read_text() for path in self.etc.iterdir()}
        self.stack()
        self.assertEqual(once, {path: path.read_text() for path in self.etc.iterdir()})

    def test_the_calls_come_in_the_order_of_the_phases(self) -> None:
        self.stack()
        conf = f"--config-file {self.nova_conf}"
        self.assertEqual(
            [
                "define_plugin nova_nodb_scheduler",
                f"setup_develop {ROOT} mysql",
                "async_wait configure_neutron_nova",
                f"nova-manage {conf} cell_v2 list_cells",
                f"nova-manage {conf} cell_v2 list_cells",
                "recreate_database nova_nodb",
                f"nova-nodb-manage {conf} db sync",
                f"nova-nodb-manage {conf} import",
                f"nova-nodb-status {conf} upgrade check",
            ],
            self.calls(),
        )

    def test_files_are_written_only_after_devstack_has_written_its_part(self) -> None:
        script = f"""
            source {ROOT}/devstack/settings
            function async_wait {{ cp $NOVA_CONF $WORK/at_the_wait; }}
            source {ROOT}/devstack/plugin.sh stack post-config
        """
        result = self.run_bash(script)
        self.assertEqual(0, result.returncode, result.stderr)
        self.assertEqual(NOVA_CONF, (self.work / "at_the_wait").read_text())
        self.assertNotEqual(NOVA_CONF, self.nova_conf.read_text())

    def test_a_node_with_nova_compute_only_is_not_touched(self) -> None:
        self.stack(ENABLED_SERVICES="n-cpu,q-agt")
        self.assertEqual(["define_plugin nova_nodb_scheduler"], self.calls())
        self.assertEqual(self.original, {path: path.read_text() for path in self.etc.iterdir()})

    def test_a_second_controller_leaves_the_database_alone(self) -> None:
        self.stack(ENABLED_SERVICES="n-cond,n-sch")
        made = [call for call in self.calls() if "recreate" in call or "nodb-manage" in call]
        self.assertEqual([], made)
        self.assertIn(("DEFAULT", "scheduler_driver"), read_ini(self.nova_conf))

    def test_heartbeats_come_at_novas_own_rate_unless_the_user_says_otherwise(self) -> None:
        script = f"source {ROOT}/devstack/override-defaults; echo $NOVA_SERVICE_REPORT_INTERVAL"
        self.assertEqual("10\n", self.run_bash(script).stdout)
        own = self.run_bash(script, NOVA_SERVICE_REPORT_INTERVAL="60")
        self.assertEqual("60\n", own.stdout)


class SettingsTest(PluginTestCase):
    def test_every_shared_back_end_can_be_chosen(self) -> None:
        """With a server of its own, or DevStack's where the documents say that it may be shared."""
        chosen = {
            "memcached": ("nodb_memcached", "servers", "192.0.2.10:11311"),
            "redis": ("nodb_redis", "url", "redis://:secret@192.0.2.10:6390/0"),
            "etcd": ("nodb_etcd", "endpoints", "http://192.0.2.10:2379"),
        }
        self.assertEqual({"memory", "sqlalchemy", *chosen}, set(loader.available()))
        for name, (group, option, value) in chosen.items():
            with self.subTest(name):
                self.stack(
                    NODB_SYNCHRONIZER=name, ENABLED_SERVICES=f"{CONTROL_PLANE},memcached,etcd3"
                )
                for path in (self.nova_conf, *self.cells.values()):
                    values = read_ini(path)
                    self.assertEqual([name], values["nodb_scheduler", "synchronizer"])
                    self.assertEqual([value], values[group, option])
                    self.assertNotIn(("nodb_sqlalchemy", "connection"), values)
                self.assertIn(f"setup_develop {ROOT} {name}", self.calls())
                self.assertEqual([], [call for call in self.calls() if "recreate_database" in call])
                self.run_phases("unstack", NODB_SYNCHRONIZER=name)

    def started(self) -> list[str]:
        return [call for call in self.calls() if call.startswith("run_process")]

    def test_memcached_is_one_of_its_own_that_evicts_nothing(self) -> None:
        """DevStack's, at 11211, is Keystone's cache as well."""
        self.stack(NODB_SYNCHRONIZER="memcached")
        self.assertIn("install_package memcached", self.calls())
        [started] = self.started()
        self.assertIn("run_process nodb-memcached /", started)
        self.assertIn(" -l 192.0.2.10 -p 11311 -U 0 -M -m 256", started)

    def test_redis_is_one_of_its_own_that_evicts_nothing(self) -> None:
        for distribution, package in (("ubuntu", "redis-server"), ("fedora", "redis")):
            self.stack(NODB_SYNCHRONIZER="redis", DISTRIBUTION=distribution)
            self.assertIn(f"install_package {package}", self.calls())
            [started] = self.started()
            self.assertIn("--port 6390 --requirepass secret", started)
            self.assertIn("--maxmemory-policy noeviction", started)
            self.assertIn(f"--dir {self.work}/data/nodb-redis", started)

    def test_a_server_that_is_named_is_used_and_none_started(self) -> None:
        for name, variable, option, value in (
            ("memcached", "NODB_MEMCACHED_SERVERS", "servers", "10.0.0.5:11311"),
            ("redis", "NODB_REDIS_URL", "url", "redis://10.0.0.5/3"),
            ("etcd", "NODB_ETCD_ENDPOINTS", "endpoints", "https://10.0.0.5:2379"),
        ):
            self.stack(**{"NODB_SYNCHRONIZER": name, variable: value})
            self.assertEqual([value], read_ini(self.nova_conf)[f"nodb_{name}", option])
            self.assertEqual([], self.started())
            self.assertEqual([], [call for call in self.calls() if "install_package" in call])

    def test_a_second_controller_uses_the_first_ones_server(self) -> None:
        self.stack(NODB_SYNCHRONIZER="memcached", ENABLED_SERVICES="n-cond,n-sch")
        self.assertEqual([], self.started())
        values = read_ini(self.nova_conf)
        self.assertEqual(["192.0.2.10:11311"], values["nodb_memcached", "servers"])

    def test_own_servers_end_with_unstack(self) -> None:
        self.stack(NODB_SYNCHRONIZER="redis")
        self.run_phases("unstack", NODB_SYNCHRONIZER="redis")
        self.assertIn("stop_process nodb-redis", self.calls())

    def test_etcd_without_an_etcd_is_refused_with_the_remedy(self) -> None:
        result = self.run_phases("pre-install", NODB_SYNCHRONIZER="etcd")
        self.assertEqual(1, result.returncode)
        self.assertIn("enable_service etcd3", result.stderr)
        self.assertIn("NODB_ETCD_ENDPOINTS", result.stderr)

    def test_several_memcached_servers_are_refused_by_name(self) -> None:
        result = self.run_phases(
            "pre-install", NODB_SYNCHRONIZER="memcached", NODB_MEMCACHED_SERVERS="a:1,b:1"
        )
        self.assertEqual(1, result.returncode)
        self.assertIn("NODB_MEMCACHED_SERVERS=a:1,b:1", result.stderr)

    def test_an_unknown_back_end_is_refused_naming_the_choices(self) -> None:
        result = self.run_phases("pre-install", NODB_SYNCHRONIZER="sqlalchmey")
        self.assertEqual(1, result.returncode)
        self.assertIn("NODB_SYNCHRONIZER=sqlalchmey", result.stderr)
        self.assertIn("sqlalchemy, memcached, redis or etcd", result.stderr)

    def test_postgresql_brings_its_client(self) -> None:
        self.stack(DATABASE_URL="postgresql+psycopg://root:secret@127.0.0.1")
        self.assertIn(f"setup_develop {ROOT} postgresql", self.calls())

    def test_a_named_connection_is_used_and_its_database_not_dropped(self) -> None:
        url = "mysql+pymysql://nodb:pw@db.example/nodb?ssl_ca=/etc/ca.pem"
        self.stack(NODB_CONNECTION=url)
        self.assertEqual([url], read_ini(self.nova_conf)["nodb_sqlalchemy", "connection"])
        self.assertEqual([], [call for call in self.calls() if "recreate_database" in call])
        self.assertIn(f"nova-nodb-manage --config-file {self.nova_conf} db sync", self.calls())

    def test_without_schedule_the_plugin_reports_and_nova_schedules(self) -> None:
        self.stack(NODB_SCHEDULE="False")
        values = read_ini(self.nova_conf)
        self.assertNotIn(("DEFAULT", "scheduler_driver"), values)
        self.assertIn("nodb_scheduler", values["oslo_messaging_notifications", "driver"])

    def test_records_answer_for_compute_nodes_before_any_service_starts(self) -> None:
        for mode, options in (("store", " --keep-table"), ("retired", "")):
            self.stack(NODB_COMPUTE_NODES=mode)
            for path in (self.nova_conf, *self.cells.values()):
                self.assertEqual([mode], read_ini(path)["nodb_scheduler", "compute_nodes"])
            command = f"nova-nodb-manage --config-file {self.nova_conf} compute-nodes retire"
            [call] = [each for each in self.calls() if "compute-nodes" in each]
            self.assertTrue(call.startswith(command) and call.endswith(f"data{options}"), call)
            order = [each for each in self.calls() if each.startswith("nova-nodb-manage")]
            self.assertEqual(1, order.index(call))

    def test_by_default_compute_nodes_stay_where_they_are(self) -> None:
        self.stack()
        self.assertNotIn(("nodb_scheduler", "compute_nodes"), read_ini(self.nova_conf))
        self.assertEqual([], [each for each in self.calls() if "compute-nodes" in each])

    def test_compute_nodes_are_kept_where_they_are_not_forgotten(self) -> None:
        for variables, said in (
            ({"NODB_COMPUTE_NODES": "stored"}, "mirror, store or retired"),
            (
                {"NODB_COMPUTE_NODES": "retired", "NODB_SYNCHRONIZER": "memcached"},
                "another than memcached",
            ),
        ):
            result = self.run_phases("pre-install", **variables)
            self.assertEqual(1, result.returncode)
            self.assertIn(said, " ".join(result.stderr.split()))

    def test_a_cell_without_a_mapping_stops_the_run(self) -> None:
        self.etc.joinpath("nova_cell3.conf").write_text(CELL_CONF)
        result = self.run_phases("post-config", NOVA_NUM_CELLS="3")
        self.assertEqual(1, result.returncode)
        self.assertIn("no cell mapping named cell3", result.stderr)

    def test_a_failed_upgrade_check_fails_the_run(self) -> None:
        status = self.work / "bin" / "nova-nodb-status"
        status.write_text("#!/bin/sh\nexit 2\n")
        self.assertEqual(2, self.run_phases("test-config").returncode)


class WayBackTest(PluginTestCase):
    def assert_options_are_the_original_ones(self) -> None:
        for path, text in self.original.items():
            before = self.work / "before.conf"
            before.write_text(text)
            self.assertEqual(read_ini(before), read_ini(path), path.name)

    def test_unstack_leaves_stock_options(self) -> None:
        for synchronizer in ("sqlalchemy", "memcached", "redis", "etcd"):
            self.stack(NODB_SYNCHRONIZER=synchronizer, ENABLED_SERVICES=f"{CONTROL_PLANE},etcd3")
            result = self.run_phases("unstack", NODB_SYNCHRONIZER=synchronizer)
            self.assertEqual(0, result.returncode, result.stderr)
            self.assert_options_are_the_original_ones()

    def test_clean_after_unstack_and_without_files_succeeds(self) -> None:
        self.stack()
        self.assertEqual(0, self.run_phases("unstack", "clean").returncode)
        for path in self.original:
            path.unlink()
        self.assertEqual(0, self.run_phases("clean").returncode)

    def test_stack_works_again_after_the_way_back(self) -> None:
        self.stack()
        first = {path: read_ini(path) for path in self.original}
        self.run_phases("unstack")
        self.stack()
        self.assertEqual(first, {path: read_ini(path) for path in self.original})


class OptionsTest(PluginTestCase):
    def test_the_plugin_knows_every_option_that_is_written(self) -> None:
        known = {(group, option.dest) for group, options in opts.list_opts() for option in options}
        for synchronizer in ("sqlalchemy", "memcached", "redis", "etcd"):
            self.stack(NODB_SYNCHRONIZER=synchronizer, ENABLED_SERVICES=f"{CONTROL_PLANE},etcd3")
            for path, text in self.original.items():
                before = self.work / "before.conf"
                before.write_text(text)
                added = set(read_ini(path)) - set(read_ini(before))
                added -= {("oslo_messaging_notifications", "driver")}
                self.assertTrue(added)
                self.assertEqual(set(), added - known)

    def test_the_values_are_accepted_by_the_options(self) -> None:
        self.stack()
        for path in self.original:
            conf = cfg.ConfigOpts()
            for group, options in opts.list_opts():
                conf.register_opts(options, group=None if group == "DEFAULT" else group)
            conf(["--config-file", str(path)], project="nova", default_config_files=[])
            self.assertEqual("sqlalchemy", conf.nodb_scheduler.synchronizer)
            self.assertIn("/nova_nodb?", conf.nodb_sqlalchemy.connection)
