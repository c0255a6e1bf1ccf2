# SPDX-License-Identifier: Apache-2.0
"""What databases take for the same text, by cases tried on SQLite, PostgreSQL and MariaDB."""

from __future__ import annotations

import sqlite3
import unittest

import hypothesis
from hypothesis import strategies as st

from nova_nodb_scheduler.nova_adapter.compute_nodes import text_comparison


class EqualTest(unittest.TestCase):
    def same(self, comparison: text_comparison.TextComparison, one: str, other: str) -> bool:
        return comparison.equal_form(one) == comparison.equal_form(other)

    def test_mariadb_ignores_case_accents_and_trailing_blanks(self) -> None:
        for one, other in (("h1", "H1"), ("h1", "h1  "), ("é", "E"), ("ß", "s")):
            self.assertTrue(self.same(text_comparison.MYSQL, one, other), (one, other))
        self.assertFalse(self.same(text_comparison.MYSQL, "h1", " h1"))

    def test_sqlite_and_postgresql_ignore_nothing(self) -> None:
        for comparison in (text_comparison.SQLITE, text_comparison.POSTGRESQL):
            for one, other in (("h1", "H1"), ("h1", "h1 "), ("é", "e")):
                self.assertFalse(self.same(comparison, one, other), (one, other))


class LikeTest(unittest.TestCase):
    @hypothesis.given(text=st.text("aAbB%_\\é\n"), pattern=st.text("aAb%_\\éÉ"))
    @hypothesis.settings(max_examples=500)
    def test_sqlite_agrees(self, text: str, pattern: str) -> None:
        connection = sqlite3.connect(":memory:")
        self.addCleanup(connection.close)
        [(theirs,)] = connection.execute("SELECT ? LIKE ?", (text, pattern))
        self.assertEqual(bool(theirs), text_comparison.SQLITE.is_like(text, pattern))

    def test_a_backslash_takes_the_meaning_of_a_wildcard_but_on_sqlite(self) -> None:
        for comparison in (text_comparison.POSTGRESQL, text_comparison.MYSQL):
            self.assertTrue(comparison.is_like("a%b", r"a\%b"))
            self.assertFalse(comparison.is_like("axb", r"a\%b"))
            self.assertTrue(comparison.is_like("a_", r"a\_"))
        self.assertTrue(text_comparison.SQLITE.is_like(r"a\xb", r"a\%b"))

    def test_case_counts_on_postgresql_alone(self) -> None:
        self.assertFalse(text_comparison.POSTGRESQL.is_like("Node", "%node%"))
        self.assertTrue(text_comparison.SQLITE.is_like("Node", "%node%"))
        self.assertTrue(text_comparison.MYSQL.is_like("Nodé", "%NODE%"))

    def test_trailing_blanks_count_in_patterns(self) -> None:
        self.assertFalse(text_comparison.MYSQL.is_like("node ", "node"))

    def test_null_is_like_nothing(self) -> None:
        self.assertFalse(text_comparison.MYSQL.is_like(None, "%"))
