# SPDX-License-Identifier: Apache-2.0
"""MariaDB and PostgreSQL take for the same text what we take for the same."""

from __future__ import annotations

import unittest

import hypothesis
import sqlalchemy as sa
from hypothesis import strategies as st

from nova_nodb_scheduler.nova_adapter.compute_nodes import text_comparison
from nova_nodb_scheduler.testing import servers
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes import nova_table, test_row_queries

_EXAMPLES = 300
_texts = st.text("abABzZéÉñß_%\\ -.Æ", max_size=4)
_patterns = st.text("abAZéÉñs_%\\ -", max_size=4)

#: Other than SQLite they take no text for a number.
_ARGUMENTS = {
    **test_row_queries.ARGUMENTS,
    **dict.fromkeys(
        ("compute_node_get", "compute_node_get_model", "compute_nodes_get_by_service_id"),
        st.tuples(st.one_of(st.none(), st.integers(-1, 20))),
    ),
}


class ServerCase(unittest.TestCase):
    """How a column behaves that was made as Nova's migrations make them."""

    def setUp(self) -> None:
        super().setUp()
        cloud.databases()

    def compare(self, url: str, options: str, comparison: text_comparison.TextComparison) -> None:
        engine = sa.create_engine(url)
        self.addCleanup(engine.dispose)
        with engine.begin() as connection:
            connection.execute(sa.text(f"CREATE TABLE names (name VARCHAR(255)) {options}"))
        self.assertEqual(comparison, text_comparison.of_engine(engine))
        name = sa.column("name")
        table = sa.table("names", name)

        @hypothesis.given(text=_texts, other=_texts, pattern=_patterns)
        @hypothesis.example(text="a", other="A ", pattern="a")
        @hypothesis.example(text="a%", other="ß", pattern="\\")
        @hypothesis.settings(
            max_examples=_EXAMPLES, deadline=None, suppress_health_check=nova_table.LOADED
        )
        def agree(text: str, other: str, pattern: str) -> None:
            with engine.connect() as connection:
                connection.execute(sa.insert(table).values(name=text))
                # As nova.db.main.api.compute_node_search_by_hypervisor asks.
                asked = sa.select(name == other, name.like(f"%{pattern}%"))
                equal, like = connection.execute(asked.select_from(table)).one()
                connection.rollback()
            form = comparison.equal_form
            self.assertEqual(bool(equal), form(text) == form(other), (text, other))
            self.assertEqual(bool(like), comparison.is_like(text, f"%{pattern}%"), (text, pattern))

        agree()

    def agree_with_nova(self, url: str) -> None:
        with nova_table.at(url):
            test_row_queries.agree_with_nova(_ARGUMENTS, nova_table.EXAMPLES)


class MariaDBTextTest(ServerCase):
    def test_names_and_patterns(self) -> None:
        database = self.enterContext(servers.MariaDB())
        options = "CHARACTER SET utf8mb3 ENGINE InnoDB"
        self.compare(database.url, options, text_comparison.MYSQL)

    def test_every_read_answers_as_nova_s_own_function(self) -> None:
        self.agree_with_nova(self.enterContext(servers.MariaDB()).url)


class PostgreSQLTextTest(ServerCase):
    def test_names_and_patterns(self) -> None:
        database = self.enterContext(servers.PostgreSQL())
        self.compare(database.url, "", text_comparison.POSTGRESQL)

    def test_every_read_answers_as_nova_s_own_function(self) -> None:
        self.agree_with_nova(self.enterContext(servers.PostgreSQL()).url)
