# SPDX-License-Identifier: Apache-2.0
"""Nova's processes are switched on by nova.conf alone, and otherwise left as they were."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
from typing import Any, ClassVar

import sqlalchemy as sa
from nova.db.api import models as api_models
from nova.db.main import models as main_models

from tests.functional.nova_adapter import processes

LINE = "driver = nodb_scheduler"
DRIVERS = {
    "none": [],
    "noop": ["driver = noop"],
    "messagingv2": ["driver = messagingv2"],
    "test": ["driver = test"],
    "noop and test": ["driver = noop", "driver = test"],
}
FORMATS = ("unversioned", "versioned", "both")
OURS = "nova_nodb_scheduler.nova_adapter"
CELL = "11111111-1111-4111-8111-111111111111"


def nova_conf(*notifications: str, form: str = "unversioned", more: str = "") -> str:
    """Return a nova.conf whose DEFAULT section holds nothing but the transport."""
    lines = "\n".join(notifications)
    return f"""
[DEFAULT]
transport_url = fake://
host = here
{more if more.startswith(("scheduler_", "servicegroup_")) else ""}
[oslo_messaging_notifications]
{lines}
[notifications]
notification_format = {form}
[nodb_scheduler]
synchronizer = memory
cell_uuid = {CELL}
{"" if more.startswith(("scheduler_", "servicegroup_")) else more}
"""


class _Databases:
    """Nova's two databases in SQLite, a copy for each process."""

    def __init__(self) -> None:
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="nodb-activation-"))
        self._copies = 0
        self.main, self.api = self.directory / "main", self.directory / "api"
        for models, path in ((main_models, self.main), (api_models, self.api)):
            engine = sa.create_engine(f"sqlite:///{path}")
            models.BASE.metadata.create_all(engine)
            engine.dispose()

    def configured(self) -> str:
        """Return the sections that name a fresh pair of databases."""
        self._copies += 1
        text = ""
        for group, source in (("database", self.main), ("api_database", self.api)):
            copy = self.directory / f"{group}{self._copies}"
            shutil.copyfile(source, copy)
            text += f"[{group}]\nconnection = sqlite:///{copy}\n"
        return text


class NotificationsTest(unittest.TestCase):
    """What Nova builds and sends is the same with our line as without."""

    with_line: ClassVar[processes.Results]
    stock: ClassVar[processes.Results]
    lacking: ClassVar[processes.Results]

    @classmethod
    def setUpClass(cls) -> None:
        databases = _Databases()
        cls.addClassCleanup(shutil.rmtree, databases.directory)

        def cases(*line: str, forms: tuple[str, ...] = FORMATS) -> list[processes.Case]:
            return [
                processes.Case(
                    f"{name} {form}",
                    nova_conf(*drivers, *line, form=form) + databases.configured(),
                    kind="act",
                )
                for name, drivers in DRIVERS.items()
                for form in forms
            ]

        cls.stock = processes.run(cases())
        cls.with_line = processes.run(cases(LINE), imported=processes.PLUGIN)
        cls.lacking = processes.run(cases(LINE, forms=("both",)), installed=False)

    def test_every_process_ran(self) -> None:
        for results in (self.stock, self.with_line, self.lacking):
            for name, found in results.items():
                self.assertEqual(0, found["code"], f"{name}: {found['stderr']}")

    def test_the_counts_are_of_something(self) -> None:
        self.assertEqual({"sent": 4}, _sent(self.stock["messagingv2 unversioned"]))
        self.assertTrue(any(n.startswith("built") for n in self.stock["test both"]["counts"]))
        built = self.stock["noop versioned"]["counts"]
        # Nova builds these whether they are wanted or not.
        self.assertEqual({"built ServiceStatusPayload"}, set(built))

    def test_with_the_line_nova_builds_and_sends_what_it_does_without(self) -> None:
        for name, stock in self.stock.items():
            with self.subTest(name):
                self.assertEqual(stock["counts"], self.with_line[name]["counts"])
                self.assertEqual(stock["enabled"], self.with_line[name]["enabled"])
                self.assertTrue(self.with_line[name]["reports"])

    def test_a_node_that_lacks_the_package_is_not_harmed_by_the_line(self) -> None:
        for name, found in self.lacking.items():
            with self.subTest(name):
                stock = self.stock[name]
                self.assertEqual([], found["plugin_modules"])
                self.assertEqual(stock["counts"], found["counts"])
                self.assertEqual(stock["managers"], found["managers"])


def _sent(found: Any) -> dict[str, int]:
    return {name: n for name, n in found["counts"].items() if name == "sent"}


#: Programs that read nova.conf and have nothing to do with host states.
STRANGERS = ("/usr/bin/nova-novncproxy", "nova-serialproxy", "nova-status", "an-operators-script")


class ProcessesTest(unittest.TestCase):
    """What each of Nova's programs becomes."""

    found: ClassVar[processes.Results]

    @classmethod
    def setUpClass(cls) -> None:
        nodb = "scheduler_driver = nodb_scheduler"
        everything = nova_conf(LINE, form="both", more=nodb)
        programs = ["scheduler", "conductor", "api", "manage", "compute"]
        cls.found = processes.run(
            [
                *(
                    processes.Case(
                        program, everything, argv=(f"/usr/bin/nova-{program}",), count_plugins=True
                    )
                    for program in programs
                ),
                processes.Case("uwsgi", everything, argv=("uwsgi",)),
                *(processes.Case(stranger, everything, argv=(stranger,)) for stranger in STRANGERS),
                processes.Case("lines removed", nova_conf(form="both")),
                processes.Case("reporting only", nova_conf(LINE)),
                processes.Case("misspelt", nova_conf(LINE, more="flush_intervall_seconds = 1")),
            ]
        )
        cls.stock = cls.found["lines removed"]

    stock: ClassVar[Any]

    def test_no_program_opened_a_connection_or_started_a_thread(self) -> None:
        for name, found in self.found.items():
            with self.subTest(name):
                self.assertEqual(0, found["code"], found["stderr"])
                self.assertEqual([], found["attempts"])
                self.assertEqual(["MainThread"], found["threads"])

    def test_two_notifiers_make_one_plugin(self) -> None:
        for name in ("scheduler", "conductor", "api", "manage"):
            self.assertEqual(1, self.found[name]["plugins"], name)

    def test_control_plane_programs_report_and_have_our_objects(self) -> None:
        for name in ("scheduler", "conductor", "api", "manage", "uwsgi", "reporting only"):
            with self.subTest(name):
                found = self.found[name]
                self.assertTrue(found["reports"])
                self.assertEqual({f"{OURS}.reporting.nova_objects"}, set(found["objects"].values()))
                # Newest first, Nova's own still behind it: versions are equal.
                for modules in found["registry"].values():
                    self.assertEqual(f"{OURS}.reporting.nova_objects", modules[0])
                    self.assertEqual(1, len(modules))

    def test_managers_are_replaced_in_the_two_services_alone(self) -> None:
        managers = {
            **self.stock["managers"],
            "nova-scheduler": f"{OURS}.manager.SchedulerManager",
            "nova-conductor": f"{OURS}.conductor_manager.ConductorManager",
        }
        self.assertEqual(managers, self.found["scheduler"]["managers"])
        del managers["nova-scheduler"]
        for name, value in managers.items():
            self.assertEqual(value, self.found["reporting only"]["managers"][name])
        self.assertEqual(
            self.stock["managers"]["nova-scheduler"],
            self.found["reporting only"]["managers"]["nova-scheduler"],
        )

    def test_compute_nodes_and_strangers_with_the_package_are_stock(self) -> None:
        for name in ("compute", *STRANGERS):
            with self.subTest(name):
                found = self.found[name]
                self.assertFalse(found.get("reports"))
                self.assertEqual(self.stock["managers"], found["managers"])
                self.assertEqual(self.stock["objects"], found["objects"])
                self.assertEqual(self.stock["registry"], found["registry"])
                self.assertEqual("", found["stderr"])

    def test_an_option_that_does_not_exist_is_named(self) -> None:
        found = self.found["misspelt"]
        self.assertTrue(found["reports"])
        self.assertIn("[nodb_scheduler] flush_intervall_seconds", found["stderr"])
        self.assertEqual("", self.found["api"]["stderr"])

    def test_without_the_lines_nothing_of_the_plugin_is_even_imported(self) -> None:
        self.assertEqual([], self.stock["plugin_modules"])
        for module in self.stock["objects"].values():
            self.assertTrue(module.startswith("nova.objects."), module)


#: What an operator may get wrong: option, its line, and what the text must name.
MISTAKES = {
    "scheduler_driver": (
        "scheduler_driver = no_such",
        ["scheduler_driver", "no_such", "filter_scheduler", "nodb_scheduler"],
    ),
    "scheduler_host_manager": (
        "scheduler_host_manager = no_such",
        ["scheduler_host_manager", "no_such", "nodb_host_manager"],
    ),
    "synchronizer": (
        "synchronizer = no_such",
        ["[nodb_scheduler] synchronizer", "no_such", "memcached", "memory", "sqlalchemy"],
    ),
    "servicegroup_driver": ("servicegroup_driver = mc", ["servicegroup_driver", "mc", "db"]),
    "not a number": (
        "flush_interval_seconds = soon",
        ["flush_interval_seconds", "soon"],
    ),
    "out of bounds": ("feed_bound_seconds = 0.01", ["feed_bound_seconds", "0.01", "0.5"]),
    "lease shorter than a request": (
        "claim_lease_seconds = 20",
        ["[nodb_scheduler] claim_lease_seconds", "20", "above 30", "claim_deadline_seconds"],
    ),
}
COMMANDS = {
    "nova-scheduler": {"kind": "call", "call": "nova.cmd.scheduler:main"},
    "nova-conductor": {"kind": "call", "call": "nova.cmd.conductor:main"},
    "uwsgi": {"kind": "wsgi", "call": "nova.wsgi.osapi_compute:no_such_name"},
    # Nova's API under a server that nobody has heard of.
    "/opt/granian": {"kind": "wsgi", "call": "nova.wsgi.osapi_compute:no_such_name"},
}


#: Programs that such a mistake must not stop, and the mistakes tried there.
LENIENT = ("nova-manage", "nova-novncproxy", "nova-nodb-manage")
FORGIVEN = ("synchronizer", "scheduler_driver", "out of bounds")


class BadInputTest(unittest.TestCase):
    """A mistake in nova.conf ends the process and says what may stand there."""

    found: ClassVar[processes.Results]

    @classmethod
    def setUpClass(cls) -> None:
        cls.found = processes.run(
            [
                *(
                    processes.Case(
                        f"{command} {mistake}",
                        nova_conf(LINE, more=line),
                        argv=(command,),
                        **options,  # type: ignore[arg-type]
                    )
                    for command, options in COMMANDS.items()
                    for mistake, (line, _texts) in MISTAKES.items()
                ),
                *(
                    processes.Case(
                        f"{command} {mistake}",
                        nova_conf(LINE, more=MISTAKES[mistake][0]),
                        argv=(command,),
                    )
                    for command in LENIENT
                    for mistake in FORGIVEN
                ),
            ],
            imported=processes.PLUGIN,
        )

    def test_every_service_refuses_and_names_option_and_choices(self) -> None:
        for command in COMMANDS:
            for mistake, (_line, texts) in MISTAKES.items():
                with self.subTest(command=command, mistake=mistake):
                    found = self.found[f"{command} {mistake}"]
                    self.assertEqual(1, found["code"], found["stderr"])
                    self.assertIn("nova_nodb_scheduler refuses to start", found["stderr"])
                    for text in texts:
                        self.assertIn(text, found["stderr"])
                    self.assertNotIn("Traceback", found["stderr"])

    def test_a_mistake_never_stops_nova_manage_and_is_told(self) -> None:
        for mistake in FORGIVEN:
            with self.subTest(mistake):
                found = self.found[f"nova-manage {mistake}"]
                self.assertEqual(0, found["code"], found["stderr"])
                self.assertIn("nova_nodb_scheduler is NOT active", found["stderr"])
                for text in MISTAKES[mistake][1]:
                    self.assertIn(text, found["stderr"])
                self.assertFalse(found.get("reports"))

    def test_a_mistake_never_stops_a_program_that_does_not_use_the_plugin(self) -> None:
        """Our own commands are left to say it themselves."""
        for command in LENIENT[1:]:
            for mistake in FORGIVEN:
                with self.subTest(command=command, mistake=mistake):
                    found = self.found[f"{command} {mistake}"]
                    self.assertEqual((0, ""), (found["code"], found["stderr"]))


#: Where records answer for compute nodes.
RETIRED = "synchronizer = sqlalchemy\ncompute_nodes = retired"
#: What keeps the plugin from being activated there, and what the text must name.
UNFIT = {
    "a back end that forgets": (
        "compute_nodes = retired",
        ["[nodb_scheduler] compute_nodes = 'retired'", "memory", "restart"],
    ),
    "no such mode": (
        "synchronizer = sqlalchemy\ncompute_nodes = retried",
        ["[nodb_scheduler] compute_nodes", "retried", "mirror", "store", "retired"],
    ),
    "no such back end": (f"{RETIRED}\nsynchronizer = no_such", ["no_such"]),
}


class RetiredTest(unittest.TestCase):
    """Where records answer for compute nodes, no program that is activated runs stock."""

    found: ClassVar[processes.Results]
    PROGRAMS = ("nova-scheduler", "nova-conductor", "nova-api", "nova-manage")

    @classmethod
    def setUpClass(cls) -> None:
        cls.found = processes.run(
            [
                *(
                    processes.Case(
                        f"{program} retired", nova_conf(LINE, more=RETIRED), argv=(program,)
                    )
                    for program in (*cls.PROGRAMS, "nova-compute", "nova-status")
                ),
                *(
                    processes.Case(
                        f"{program} old",
                        nova_conf(LINE, more=RETIRED),
                        kind="old_nova",
                        argv=(program,),
                    )
                    for program in cls.PROGRAMS
                ),
                *(
                    processes.Case(
                        f"{program} {fault}", nova_conf(LINE, more=line), argv=(program,)
                    )
                    for program in cls.PROGRAMS
                    for fault, (line, _texts) in UNFIT.items()
                ),
                processes.Case("mirror", nova_conf(LINE), argv=("nova-manage",)),
                processes.Case("status mirror", nova_conf(LINE), argv=("nova-status",)),
                processes.Case(
                    "status unfit",
                    nova_conf(LINE, more=UNFIT["no such back end"][0]),
                    argv=("nova-status",),
                ),
                processes.Case("stock", nova_conf(), argv=("nova-manage",)),
            ],
            imported=(*processes.PLUGIN, "nova.cmd.status"),
        )

    def test_each_serves_nova_s_functions_and_opens_nothing_for_it(self) -> None:
        for program in self.PROGRAMS:
            with self.subTest(program):
                found = self.found[f"{program} retired"]
                self.assertEqual(0, found["code"], found["stderr"])
                self.assertEqual("served_functions", found["writes_nodes"])
                self.assertEqual(([], ["MainThread"]), (found["attempts"], found["threads"]))

    def test_mirror_guards_what_is_nova_s_own(self) -> None:
        self.assertEqual("mirror_guard", self.found["mirror"]["writes_nodes"])

    def test_compute_nodes_and_strangers_are_stock(self) -> None:
        stock = self.found["stock"]["writes_nodes"]
        for program in ("nova-compute", "nova-status"):
            self.assertEqual(stock, self.found[f"{program} retired"]["writes_nodes"])

    def test_nova_status_counts_records_and_is_never_stopped(self) -> None:
        self.assertEqual("node_serving", self.found["nova-status retired"]["counts_nodes"])
        self.assertEqual([], self.found["nova-status retired"]["attempts"])
        self.assertEqual("status", self.found["status mirror"]["counts_nodes"])
        unfit = self.found["status unfit"]
        self.assertEqual((0, "status"), (unfit["code"], unfit["counts_nodes"]))
        self.assertIn("no_such", unfit["stderr"])

    def test_an_unsupported_nova_ends_it(self) -> None:
        for program in self.PROGRAMS:
            with self.subTest(program):
                found = self.found[f"{program} old"]
                self.assertEqual(1, found["code"], found["stderr"])
                self.assertIn("refuses to start: Nova 29.1.0", found["stderr"])

    def test_so_does_any_mistake_nova_manage_too(self) -> None:
        for program in self.PROGRAMS:
            for fault, (_line, texts) in UNFIT.items():
                with self.subTest(program=program, fault=fault):
                    found = self.found[f"{program} {fault}"]
                    self.assertEqual(1, found["code"], found["stderr"])
                    for text in ("refuses to start", *texts):
                        self.assertIn(text, found["stderr"])


class RealCommandTest(unittest.TestCase):
    """The installed console script, nothing between."""

    def test_nova_scheduler_exits_with_the_text(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "nova.conf"
            path.write_text(nova_conf(LINE, more="scheduler_driver = no_such"))
            done = subprocess.run(
                [
                    str(pathlib.Path(sys.executable).with_name("nova-scheduler")),
                    "--config-file",
                    str(path),
                ],
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
                env={**os.environ, "XDG_CACHE_HOME": directory},
            )
        self.assertEqual(1, done.returncode)
        self.assertIn("scheduler_driver = 'no_such' cannot be used", done.stderr)
        self.assertIn("nodb_scheduler", done.stderr)


class ExplicitCommandsTest(unittest.TestCase):
    """The plugin's own commands activate without the line; an old Nova runs stock, loudly."""

    found: ClassVar[processes.Results]

    @classmethod
    def setUpClass(cls) -> None:
        databases = _Databases()
        cls.addClassCleanup(shutil.rmtree, databases.directory)
        databases_text = databases.configured()
        bare, with_line = nova_conf(), nova_conf(LINE)
        cls.found = processes.run(
            [
                processes.Case(
                    "scheduler without the line",
                    bare + databases_text,
                    kind="call",
                    argv=("nova-nodb-scheduler",),
                    call="nova_nodb_scheduler.cmd.explicit_services:scheduler_main",
                ),
                processes.Case(
                    "scheduler with the line",
                    with_line + databases_text,
                    kind="call",
                    argv=("nova-nodb-scheduler",),
                    call="nova_nodb_scheduler.cmd.explicit_services:scheduler_main",
                ),
                processes.Case(
                    "conductor",
                    bare + databases_text,
                    kind="call",
                    argv=("nova-nodb-conductor",),
                    call="nova_nodb_scheduler.cmd.explicit_services:conductor_main",
                ),
                processes.Case(
                    "wrong driver",
                    nova_conf(more="synchronizer = no_such") + databases_text,
                    kind="call",
                    argv=("nova-nodb-conductor",),
                    call="nova_nodb_scheduler.cmd.explicit_services:conductor_main",
                ),
                processes.Case(
                    "old nova",
                    with_line,
                    kind="old_nova",
                    argv=("nova-scheduler",),
                ),
            ]
        )

    def test_the_scheduler_is_ours_with_and_without_the_line(self) -> None:
        for name in ("scheduler without the line", "scheduler with the line"):
            with self.subTest(name):
                found = self.found[name]
                self.assertEqual(0, found["code"], found["stderr"])
                self.assertEqual([f"{OURS}.manager.SchedulerManager"], found["served"])

    def test_the_conductor_is_ours(self) -> None:
        found = self.found["conductor"]
        self.assertEqual(0, found["code"], found["stderr"])
        self.assertEqual([f"{OURS}.conductor_manager.ConductorManager"], found["served"])

    def test_a_mistake_ends_an_explicit_command(self) -> None:
        found = self.found["wrong driver"]
        self.assertEqual(1, found["code"])
        self.assertIn("[nodb_scheduler] synchronizer = 'no_such'", found["stderr"])

    def test_an_unsupported_nova_runs_stock_and_says_so(self) -> None:
        found = self.found["old nova"]
        self.assertEqual(0, found["code"], found["stderr"])
        self.assertIn("NOT active", found["stderr"])
        self.assertIn("29.1.0", found["stderr"])
        self.assertFalse(found["reports"])
        self.assertEqual(
            "nova.scheduler.manager.SchedulerManager", found["managers"]["nova-scheduler"]
        )
        self.assertEqual({False}, {module.startswith(OURS) for module in found["objects"].values()})
