# SPDX-License-Identifier: Apache-2.0
"""Operators find every reason for which Placement is asked in the page that explains them."""

import ast
import pathlib
import re

import testtools

ROOT = pathlib.Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "nova_nodb_scheduler"
PAGE = ROOT / "doc/source/admin/freshness.rst"

#: What a reason is given to.
CALLS = {"MemoryCannotDecide", "OutsideMemory"}
#: Functions that return one.
RETURNS = {"outside", "refusal", "refusal_of"}


def texts(node, constants):
    """Return the texts that an expression may be, as far as it says so itself."""
    if isinstance(node, ast.IfExp):
        return texts(node.body, constants) | texts(node.orelse, constants)
    if isinstance(node, ast.Name):
        return {constants[node.id]} if node.id in constants else set()
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    return set()


def reasons_in(tree):
    constants = {
        each.targets[0].id: each.value.value
        for each in tree.body
        if isinstance(each, ast.Assign)
        and isinstance(each.targets[0], ast.Name)
        and isinstance(each.value, ast.Constant)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", None))
            if name in CALLS:
                found |= texts(node.args[0], constants)
        elif isinstance(node, ast.Assign):
            target = node.targets[0]
            if isinstance(target, ast.Attribute) and target.attr == "asked_placement":
                found |= texts(node.value, constants)
        elif isinstance(node, ast.FunctionDef) and node.name in RETURNS:
            for each in ast.walk(node):
                if isinstance(each, ast.Return):
                    found |= texts(each.value, constants)
    return found


class PlacementReasonsTest(testtools.TestCase):
    def test_the_table_has_the_reasons_of_the_code_and_no_others(self):
        in_code = set()
        for path in PACKAGE.rglob("*.py"):
            text = path.read_text()
            # Most modules give none, and need not be parsed.
            if any(word in text for word in (*CALLS, *RETURNS, "asked_placement")):
                in_code |= reasons_in(ast.parse(text))
        # It is no reason of a request, and stands in what explain tells.
        in_code.discard("[nodb_scheduler] candidates = placement")

        section = PAGE.read_text().split(".. _placement-reasons:")[1]
        section = section.split("\nWho reports, and what is seen at once\n")[0]
        in_page = set(re.findall(r"^   \* - ``([^`]+)``$", section, re.MULTILINE))

        self.assertIn("nested", in_code)
        self.assertIn("mirror too old", in_code)
        self.assertEqual(in_code, in_page)
