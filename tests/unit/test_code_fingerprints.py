# SPDX-License-Identifier: Apache-2.0
"""Code that runs otherwise has another fingerprint; what does not run makes no difference."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
import unittest
from unittest import mock

from nova_nodb_scheduler import code_fingerprints


def of(text: str) -> str:
    return code_fingerprints.of_source(textwrap.dedent(text))


class OfSourceTest(unittest.TestCase):
    def assert_all_differ(self, *texts: str) -> None:
        found = [of(each) for each in texts]
        self.assertEqual(len(texts), len({*found}), found)

    def test_comments_documentation_blanks_and_broken_lines_are_no_difference(self) -> None:
        one = 'def f(a):\n    """Told."""\n    return a + "b"  # why\n'
        other = 'def f( a ):\n\n  # why\n  r"""Told """ "otherwise."\n  return a + \\\n   "b"'
        self.assertEqual(of(one), of(other))
        indented = "class C:\n" + textwrap.indent(one, "    ")
        self.assertEqual(of(one), of(indented.partition("\n")[2]))

    def test_a_changed_token_is_one(self) -> None:
        self.assert_all_differ(
            "def f(a):\n    return a + 1\n",
            "def f(a):\n    return a - 1\n",
            "def f(a):\n    return a + 2\n",
            "def f(a, b):\n    return a + 1\n",
            "def g(a):\n    return a + 1\n",
            "@g\ndef f(a):\n    return a + 1\n",
            "@g(2)\ndef f(a):\n    return a + 1\n",
            'def f(a):\n    return "a + 1"\n',
        )

    def test_the_block_that_a_statement_stands_in_is_one(self) -> None:
        self.assert_all_differ(
            "if a:\n    b()\nc()\n",
            "if a:\n    b()\n    c()\n",
            "if a:\n    if b():\n        c()\n    d()\n",
            "if a:\n    if b():\n        c()\n        d()\n",
            "if a:\n    if b():\n        c()\nd()\n",
        )
        self.assert_all_differ("return\na\n", "return a\n")

    def test_a_text_that_a_statement_begins_with_is_one_unless_it_is_all_of_it(self) -> None:
        self.assert_all_differ('f()\n"a".join(b)\n', 'f()\n"c".join(b)\n')
        self.assertEqual(of('f()\n"a"\n'), of('f()\n"c"\n'))

    def test_a_text_with_expressions_is_one_token_for_any_python(self) -> None:
        self.assert_all_differ(
            'return f"{a} {b}"\n',
            'return f"{a}{b}"\n',
            'return f"{a} {c}"\n',
            'return f"{a} {b!r}"\n',
            'return "{a} {b}"\n',
            'return f"{a} " f"{b}"\n',
        )
        # It is evaluated, so it documents nothing.
        self.assert_all_differ('f"{a()}"\n', 'f"{b()}"\n', "")
        # As Python 3.11, 3.12 and 3.13 make it.
        text = (
            "def f(a):\n"
            "    return (f\"ä{a['b']!r:>{width}} {f'{c}'}\" 'x'\n"
            '            f"""{d}\n   {{e}}""")\n'
        )
        self.assertEqual("7652a896c219f723", of(text), sys.version)

    def test_each_return_that_is_left_out_moved_or_repeated_is_seen(self) -> None:
        lines = inspect.getsource(code_fingerprints).splitlines(keepends=True)
        known = of("".join(lines))
        places = [n for n, line in enumerate(lines) if re.match(r" +return .*[^(\[]\n", line)]
        self.assertGreater(len(places), 8)
        for at in places:
            for there in ("", lines[at].removeprefix("    "), 2 * lines[at]):
                found = of("".join([*lines[:at], there, *lines[at + 1 :]]))
                self.assertNotEqual(known, found, lines[at])


class OfDefinitionsTest(unittest.TestCase):
    def of(self, text: str, name: str = "write") -> str | None:
        return code_fingerprints.of_definitions(textwrap.dedent(text), [name])[name]

    def test_a_change_of_a_body_or_of_a_decorator_is_seen(self) -> None:
        texts = (
            "def write():\n    return 1\n",
            "def write():\n    return 2\n",
            "@retried(5)\ndef write():\n    return 1\n",
            "@retried(6)\ndef write():\n    return 1\n",
            "async def write():\n    return 1\n",
        )
        self.assertEqual(5, len({self.of(text) for text in texts}))

    def test_a_change_beside_it_is_not(self) -> None:
        self.assertEqual(
            self.of("def write():\n    return 1"),
            self.of("import os\n\n\ndef read():\n    pass\n\n\ndef write():\n    return 1   \n"),
        )

    def test_all_definitions_of_a_name_count(self) -> None:
        once = "def write():\n    return 1\n"
        self.assertNotEqual(self.of(once), self.of(once + "\n\n" + once))

    def test_what_is_not_there_has_none(self) -> None:
        self.assertIsNone(self.of("def read():\n    pass\n"))
        self.assertIsNone(self.of("class C:\n    def write():\n        pass\n"))
        self.assertIsNone(self.of("def write():\n    pass\n", "C.write"))

    def test_what_a_class_defines_is_as_it_would_be_beside_it(self) -> None:
        alone = "@held\ndef write():\n    return 1\n"
        within = "class C:\n    a = 1\n\n" + textwrap.indent(alone, "    ")
        self.assertEqual(self.of(alone), self.of(within, "C.write"))

    def test_it_is_that_of_the_code_itself(self) -> None:
        source = inspect.getsource(textwrap)
        codes = {
            "indent": textwrap.indent,
            "TextWrapper": textwrap.TextWrapper,
            "TextWrapper.fill": textwrap.TextWrapper.fill,
        }
        found = code_fingerprints.of_definitions(source, codes)
        self.assertNotIn(None, found.values())
        self.assertEqual({name: code_fingerprints.of_code(codes[name]) for name in codes}, found)
        self.assertEqual(code_fingerprints.of_source(source), code_fingerprints.of_code(textwrap))


class OfCodeTest(unittest.TestCase):
    def test_python_s_own_fault_while_others_parse_says_nothing_about_the_code(self) -> None:
        known = code_fingerprints.of_code(textwrap.indent)
        fault = SystemError("AST constructor recursion depth mismatch (before=93, after=99)")
        source = inspect.getsource(textwrap.indent)
        for answers, found in (([fault, source], known), (fault, "")):
            with mock.patch.object(inspect, "getsource", autospec=True, side_effect=answers):
                self.assertEqual(found, code_fingerprints.of_code(textwrap.indent))

    def test_what_has_no_source_has_none(self) -> None:
        made: dict[str, object] = {}
        exec("def f():\n    pass\n", made)  # noqa: S102
        for code in (len, made["f"], 5):
            self.assertEqual("", code_fingerprints.of_code(code))
