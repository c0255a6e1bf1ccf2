# SPDX-License-Identifier: Apache-2.0
"""What the package promises to others: entry points, extras, layers, checked against the tree."""

import configparser
import importlib
import pathlib
import re
import subprocess
import sys
import tomllib

import testtools

from nova_nodb_scheduler.scheduling import filters, weighers
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from tools.test_runner import stages, work

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "nova_nodb_scheduler"
# The adapter's modules import Nova, which the unit tests do without.
NEEDS_NOVA = ("nova_nodb_scheduler.nova_adapter.", "nova_nodb_scheduler.cmd.")
# Directories of tests that have a stage of their own in tools/test.sh, or are part of one.
TEST_DIRECTORIES = {
    "capacity",
    "chaos",
    "differential",
    "engine_faults",
    # Targets; a short run of each is among the unit tests.
    "fuzz",
    "faults",
    "functional",
    "nova_suite",
    # No tests: it runs modules of functional ones.
    "own_process",
    "unit",
    # A proof with figures, run by tools/waiting.sh alone; its instruments are unit tests.
    "waiting",
}


def entry_points() -> dict[str, dict[str, str]]:
    """The groups of setup.cfg: name -> module:attribute."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(ROOT / "setup.cfg")
    groups = {}
    for group, text in parser["entry_points"].items():
        pairs = (line.split("=", 1) for line in text.split("\n") if line.strip())
        groups[group] = {name.strip(): value.strip() for name, value in pairs}
    return groups


# Imports all that must work where there is no Nova, in a process where there is none.
WITHOUT_NOVA = """
import importlib, pkgutil, sys

class NoNova:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "nova":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoNova())
import nova_nodb_scheduler
for module in pkgutil.walk_packages(nova_nodb_scheduler.__path__, "nova_nodb_scheduler."):
    # The guard runs in Placement's process, and is imported where Placement is.
    adapter = (module.name + ".").startswith(("nova_nodb_scheduler.nova_adapter.",
                                              "nova_nodb_scheduler.cmd.",
                                              "nova_nodb_scheduler.placement_adapter."))
    # alembic runs env.py, nobody imports it.
    if not adapter and not module.name.endswith(".env"):
        print(importlib.import_module(module.name).__name__)
"""


class EntryPointsTest(testtools.TestCase):
    def test_every_target_is_a_module_of_the_package(self) -> None:
        for group, names in entry_points().items():
            for name, target in names.items():
                module = ROOT / target.split(":")[0].replace(".", "/")
                found = module.with_suffix(".py").is_file() or (module / "__init__.py").is_file()
                self.assertTrue(found, f"{group}: {name} = {target}")

    def test_every_target_outside_the_adapter_loads_without_nova(self) -> None:
        for names in entry_points().values():
            for target in names.values():
                # Nova's validators of extra specs are whole modules.
                module, _, attribute = target.partition(":")
                if not target.startswith(NEEDS_NOVA):
                    self.assertTrue(hasattr(importlib.import_module(module), attribute), target)

    def test_every_built_in_namespace_is_declared_by_its_name(self) -> None:
        declared = {}
        for name, target in entry_points()["nova_nodb_scheduler.namespace"].items():
            module, attribute = target.split(":")
            declared[name] = getattr(importlib.import_module(module), attribute)
        self.assertEqual({item.name: item for item in known_namespaces.BUILT_IN}, declared)

    def test_the_drivers_are_named_as_they_call_themselves(self) -> None:
        for name, target in entry_points()["nova_nodb_scheduler.synchronizer"].items():
            module, attribute = target.split(":")
            driver = getattr(importlib.import_module(module), attribute)
            self.assertEqual(name, driver.name)

    def test_the_built_in_filters_and_weighers_are_declared_by_their_classes_names(self) -> None:
        for kind, built_in in (("filter", filters.BUILT_IN), ("weigher", weighers.BUILT_IN)):
            expected = {name: f"{own.__module__}:{name}" for name, own in built_in.items()}
            self.assertEqual(expected, entry_points()[f"nova_nodb_scheduler.{kind}"])


class LayersTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        with (ROOT / "pyproject.toml").open("rb") as stream:
            linter = tomllib.load(stream)["tool"]["importlinter"]
        self.contracts = {contract["type"]: contract for contract in linter["contracts"]}

    def test_every_package_but_the_adapter_and_its_commands_is_forbidden_to_import_nova(
        self,
    ) -> None:
        here = {
            f"nova_nodb_scheduler.{path.stem}"
            for path in PACKAGE.iterdir()
            if (path.is_dir() and (path / "__init__.py").exists())
            or (path.suffix == ".py" and path.stem != "__init__")
        }
        allowed = {"nova_nodb_scheduler.cmd", "nova_nodb_scheduler.nova_adapter"}
        forbidden = self.contracts["forbidden"]
        self.assertEqual(["nova"], forbidden["forbidden_modules"])
        self.assertEqual(here - allowed, set(forbidden["source_modules"]))

    def test_the_core_is_imported_where_there_is_no_nova(self) -> None:
        result = subprocess.run(
            [sys.executable, "-c", WITHOUT_NOVA],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        self.assertEqual(0, result.returncode, result.stderr)
        self.assertIn("nova_nodb_scheduler.store", result.stdout.split())


class TreeTest(testtools.TestCase):
    def test_every_module_begins_with_its_licence(self) -> None:
        line = "# SPDX-License-Identifier: Apache-2.0"
        trees = (PACKAGE, ROOT / "tests", ROOT / "tools", ROOT / "doc", ROOT / "releasenotes")
        without = [
            str(path.relative_to(ROOT))
            for tree in trees
            for path in sorted(tree.rglob("*.py"))
            if path.stat().st_size and line not in path.read_text().split("\n")[:2]
        ]
        self.assertEqual([], without)

    def test_every_directory_with_modules_is_packaged(self) -> None:
        directories = {path.parent for path in PACKAGE.rglob("*.py")}
        missing = [str(path) for path in directories if not (path / "__init__.py").exists()]
        self.assertEqual([], missing)

    def test_every_directory_of_tests_is_run_by_a_stage(self) -> None:
        found = {path.parent.name for path in (ROOT / "tests").glob("*/__init__.py")}
        self.assertEqual(set(), found - TEST_DIRECTORIES)
        kinds = {type(stage.work) for stage in stages.STAGES}
        self.assertLess({work.Nova, work.EngineFaults, work.Tempest}, kinds)
        tests = {
            stage.work.directory.split("/")[0]
            for stage in stages.STAGES
            if isinstance(stage.work, work.Tests)
        }
        scripts = {
            stage.work.command[0]
            for stage in stages.STAGES
            if isinstance(stage.work, work.Script | work.ScriptForEach)
        }
        self.assertEqual({"unit", "functional", "differential"}, tests)
        self.assertEqual({f"tools/{name}.sh" for name in ("capacity", "chaos", "faults")}, scripts)

    def test_sqlalchemy_stays_below_2_1_which_nova_34_does_not_work_with(self) -> None:
        requirements = (ROOT / "requirements.txt").read_text()
        self.assertIsNotNone(re.search(r"^SQLAlchemy>=2\.0[\d.]*,<2\.1\b", requirements, re.M))
