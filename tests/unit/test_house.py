# SPDX-License-Identifier: Apache-2.0
"""The house's rules that no linter knows: one name for one thing, small folders, said in brief."""

import ast
import collections
import functools
import pathlib
import tempfile
import textwrap
import unittest
from collections.abc import Mapping, Set

from tools import folders as folders_tool
from tools import test_changed

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "nova_nodb_scheduler"
MOST_MODULES = 15
MOST_DOCSTRING_LINES = 5

#: Below drivers/ modules and classes may have the same name in each: they stand for one another.
DRIVERS = "synchronizer.drivers."

#: Classes that have their name more than once, and why.
SHARED_CLASSES: Mapping[str, str] = {
    "Feed": "the capability of the contract, and what gives it in etcd's driver",
    "HostState": "Nova's name: the subclass of Nova's, and the object of the RPC API",
    "Index": "declared for a namespace; memcached's driver keeps one of all records",
    "Kind": "of a column; and within two drivers, of a failure and of a slot",
}

#: Modules that have their name more than once, and why.
SHARED_MODULES: Mapping[str, str] = {
    "contract": "the synchronizer's; and the old path of plugin_contract, which others import",
    "wsgi": "what a WSGI server is told: nova-api's and Placement's application",
}


def modules(root: pathlib.Path) -> dict[str, pathlib.Path]:
    """Return the modules below a folder by their dotted names; packages are none."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts): path
        for path in sorted(root.rglob("*.py"))
        if path.name != "__init__.py"
    }


def _driver(module: str) -> str | None:
    """Return whose module it is, if a driver's own."""
    if not module.startswith(DRIVERS):
        return None
    return module.removeprefix(DRIVERS).split(".")[0]


def shared(homes: Mapping[str, Set[str]]) -> dict[str, list[str]]:
    """Return names that have several homes, but for those with one in each of some drivers."""
    found = {}
    for name, places in homes.items():
        drivers = [_driver(place) for place in places]
        if len(places) > 1 and (None in drivers or len(set(drivers)) < len(drivers)):
            found[name] = sorted(places)
    return found


@functools.cache
def class_homes(root: pathlib.Path) -> dict[str, set[str]]:
    """Return the modules in which each public class stands."""
    homes: dict[str, set[str]] = collections.defaultdict(set)
    for module, path in modules(root).items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(module)
    return dict(homes)


@functools.cache
def module_homes(root: pathlib.Path) -> dict[str, set[str]]:
    """Return the dotted names that end in each module's name; alembic's history is not read."""
    homes: dict[str, set[str]] = collections.defaultdict(set)
    for module in modules(root):
        if ".alembic." not in module:
            homes[module.rpartition(".")[2]].add(module)
    return dict(homes)


class NamesTest(unittest.TestCase):
    def test_no_two_classes_have_one_name_without_a_reason(self) -> None:
        found = shared(class_homes(PACKAGE))
        self.assertEqual(
            {}, {name: places for name, places in found.items() if name not in SHARED_CLASSES}
        )

    def test_no_two_modules_have_one_name_without_a_reason(self) -> None:
        found = shared(module_homes(PACKAGE))
        self.assertEqual(
            {}, {name: places for name, places in found.items() if name not in SHARED_MODULES}
        )

    def test_no_reason_is_given_for_what_is_not_shared(self) -> None:
        self.assertEqual(set(), set(SHARED_CLASSES) - set(shared(class_homes(PACKAGE))))
        self.assertEqual(set(), set(SHARED_MODULES) - set(shared(module_homes(PACKAGE))))

    def test_a_second_home_is_seen_and_one_in_each_driver_is_not(self) -> None:
        homes = {
            "Writer": {
                "synchronizer.drivers.memcached.writing",
                "synchronizer.drivers.etcd.writing",
            },
            "Twice": {"synchronizer.drivers.redis.driver", "synchronizer.drivers.redis.layout"},
            "Kind": {"model.namespaces", "synchronizer.drivers.etcd.failures"},
            "Engine": {"scheduling.pipeline.engine"},
        }
        self.assertEqual({"Twice", "Kind"}, set(shared(homes)))


class FoldersTest(unittest.TestCase):
    def test_a_folder_holds_fifteen_modules_at_most(self) -> None:
        held: collections.Counter[str] = collections.Counter()
        for tree in ("nova_nodb_scheduler", "tests", "tools/bench"):
            for path in (ROOT / tree).rglob("*.py"):
                folder = path.parent.relative_to(ROOT).as_posix()
                if path.name != "__init__.py" and not folder.endswith("/alembic/versions"):
                    held[folder] += 1
        full = {folder: count for folder, count in held.items() if count > MOST_MODULES}
        self.assertEqual({}, full)

    def test_a_package_says_in_a_few_lines_what_lives_there(self) -> None:
        wrong = {}
        for path in PACKAGE.rglob("__init__.py"):
            told = ast.get_docstring(ast.parse(path.read_text())) or ""
            if not 1 <= len(told.splitlines()) <= MOST_DOCSTRING_LINES:
                wrong[path.relative_to(ROOT).as_posix()] = told
        self.assertEqual({}, wrong)

    def test_modules_and_lines_are_counted_with_what_is_below(self) -> None:
        folders, sizes = folders_tool.count(None, depth=0)
        whole = folders["nova_nodb_scheduler"]
        self.assertEqual(len(sizes), whole.modules)
        texts = [path.read_text() for path in PACKAGE.rglob("*.py")]
        self.assertEqual(sum(text.count("\n") for text in texts), whole.lines)


class TestsOfChangedFilesTest(unittest.TestCase):
    """tools/test_changed.py finds what a change may break, the nearest first."""

    GRAPH = {
        "nova_nodb_scheduler.store.table": set(),
        "nova_nodb_scheduler.store.inner": set(),
        "nova_nodb_scheduler.store.outer": {"nova_nodb_scheduler.store.inner"},
        "tests.unit.store.samples": {"nova_nodb_scheduler.store.table"},
        "tests.unit.store.test_table": {"nova_nodb_scheduler.store.table"},
        "tests.unit.store.test_outer": {"nova_nodb_scheduler.store.outer"},
        "tests.unit.rpc.test_rows": {"tests.unit.store.samples"},
        "tests.functional.store.test_servers": {"nova_nodb_scheduler.store.table"},
    }

    def test_tests_named_after_the_module_come_before_those_that_import_it(self) -> None:
        self.assertEqual(
            ["tests.unit.store.test_table", "tests.unit.rpc.test_rows"],
            test_changed.tests_of(["nova_nodb_scheduler.store.table"], self.GRAPH),
        )

    def test_what_no_test_imports_is_tested_by_those_who_use_it(self) -> None:
        self.assertEqual(
            ["tests.unit.store.test_outer"],
            test_changed.tests_of(["nova_nodb_scheduler.store.inner"], self.GRAPH),
        )

    def test_a_changed_test_is_run_itself(self) -> None:
        self.assertEqual(
            ["tests.unit.store.test_outer"],
            test_changed.tests_of(["tests.unit.store.test_outer"], self.GRAPH),
        )

    def test_functional_tests_are_named_when_they_are_wanted(self) -> None:
        found = test_changed.tests_of(
            ["nova_nodb_scheduler.store.table"], self.GRAPH, ("unit", "functional")
        )
        self.assertIn("tests.functional.store.test_servers", found)

    def test_imports_are_seen_within_functions_too(self) -> None:
        source = textwrap.dedent("""
            from a import b
            def late():
                import a.c
        """)
        self.assertEqual({"a.b", "a.c"}, test_changed.imports(source, {"a.b", "a.c", "a.d"}))

    def test_packages_are_named_without_their_file(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            root = pathlib.Path(place)
            (root / "tests" / "unit").mkdir(parents=True)
            (root / "tests" / "unit" / "__init__.py").write_text("")
            (root / "tests" / "unit" / "test_a.py").write_text("from tests import unit\n")
            graph = test_changed.import_graph(root)
        self.assertEqual({"tests.unit": set(), "tests.unit.test_a": {"tests.unit"}}, graph)
