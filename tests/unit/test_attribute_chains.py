# SPDX-License-Identifier: Apache-2.0
"""Which chains of attributes the lint run refuses."""

import pathlib
import tempfile

import testtools

from tools import attribute_chains

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "nova_nodb_scheduler"

#: Packages without a finding; they stay so.
CLEAN = (
    "cmd",
    "conf",
    "model",
    "nova_adapter",
    "observe",
    "rpc",
    "scheduling",
    "simulator",
    "store",
    "synchronizer",
    "tempest_plugin",
    "testing",
    "wire",
)


class AttributeChainsTest(testtools.TestCase):
    def found(self, source: str) -> list[str]:
        return [text for _line, text in attribute_chains.chains(source)]

    def test_a_third_dot_is_a_finding_once(self):
        self.assertEqual(["self.a.b.d"], self.found("def f(self):\n    return self.a.b.d()\n"))
        self.assertEqual(["one.a.b.d.e"], self.found("one.a.b.d.e = 1\n"))
        self.assertEqual([], self.found("self.a.b()\n"))

    def test_a_call_in_between_begins_anew(self):
        self.assertEqual([], self.found("self.a.b().d.e\n"))
        self.assertEqual(["one().a.b.d"], self.found("one().a.b.d\n"))

    def test_what_a_value_has_itself_reaches_no_inside(self):
        self.assertEqual([], self.found("self.a.b.items()\nself.kind.name.value\n"))
        self.assertEqual(["self.a.b.d.items"], self.found("self.a.b.d.items()\n"))

    def test_modules_options_and_columns_are_left_alone(self):
        self.assertEqual([], self.found("import a.b\na.b.c.d.e\n"))
        self.assertEqual([], self.found("self.conf.database.connection\nCONF.a.b.c\n"))
        self.assertEqual([], self.found("TABLE.c.uuid.in_\n"))

    def test_findings_are_told_with_their_line_and_a_directory_without_files_is_no_success(self):
        with tempfile.TemporaryDirectory() as directory:
            self.assertEqual(2, attribute_chains.main([directory]))
            planted = pathlib.Path(directory, "planted.py")
            planted.write_text("\nself.a.b.d\n")
            self.assertEqual(1, attribute_chains.main([directory]))
            planted.write_text("self.a.b\n")
            self.assertEqual(0, attribute_chains.main([directory]))

    def test_packages_without_a_finding_stay_so(self):
        found = {
            f"{path.relative_to(PACKAGE)}:{line}: {text}"
            for name in CLEAN
            for path in (PACKAGE / name).rglob("*.py")
            for line, text in attribute_chains.chains(path.read_text())
        }
        self.assertEqual(set(), found)
