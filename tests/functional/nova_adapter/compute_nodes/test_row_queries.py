# SPDX-License-Identifier: Apache-2.0
"""Queries over rows in memory answer what Nova's own functions answer on SQLite."""

from __future__ import annotations

import unittest
from collections.abc import Iterator, Mapping
from typing import Any

import hypothesis
from hypothesis import strategies as st
from nova.db.main import api as main_db
from nova.objects import compute_node as nova_compute_node

from nova_nodb_scheduler.nova_adapter.compute_nodes import row_queries
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes import nova_table

#: Functions whose order Nova leaves to the database.
UNORDERED = ("compute_node_search_by_hypervisor", "service_get_all_computes_by_hv_type")

_ids = st.one_of(st.integers(-1, 20), st.sampled_from(["3", "none", None]))
_hosts = st.sampled_from([*nova_table.HOSTS, None, "absent"])
_nodes = st.sampled_from([*nova_table.NODES, None, "absent"])
_patterns = st.one_of(
    st.sampled_from(["", "n", "N1", "_", "%", "1", "\\", "\\%", "n_", "é", "Ñ", None]),
    st.text("nN1_%\\- ñ", max_size=4),
)

#: Arguments of each function that reads, behind the context.
ARGUMENTS: dict[str, st.SearchStrategy[tuple[Any, ...]]] = {
    "compute_node_get": st.tuples(_ids),
    "compute_node_get_model": st.tuples(_ids),
    "compute_nodes_get_by_service_id": st.tuples(_ids),
    "compute_node_get_by_host_and_nodename": st.tuples(_hosts, _nodes),
    "compute_node_get_by_nodename": st.tuples(_nodes),
    "compute_node_get_all": st.tuples(),
    "compute_node_get_all_by_host": st.tuples(_hosts),
    "compute_node_get_all_mapped_less_than": st.tuples(st.integers(0, 2)),
    "compute_node_get_all_by_pagination": st.tuples(
        st.sampled_from([None, 0, 1, 2, 5]), st.one_of(st.none(), st.integers(0, 20))
    ),
    "compute_node_search_by_hypervisor": st.tuples(_patterns),
    "compute_node_statistics": st.tuples(),
    "service_get_all_computes_by_hv_type": st.tuples(
        st.sampled_from([*nova_table.TYPES, "absent"]), st.booleans()
    ),
}


def _oracle_by_uuids(context: Any, uuids: list[str]) -> Any:
    return nova_compute_node.ComputeNodeList._db_compute_node_get_all_by_uuids(context, uuids)


def _oracle_by_type(context: Any, hv_type: str) -> Any:
    return nova_compute_node.ComputeNodeList._db_compute_node_get_by_hv_type(context, hv_type)


Arguments = Mapping[str, st.SearchStrategy[tuple[Any, ...]]]


def agree_with_nova(arguments: Arguments, examples: int) -> None:
    """Compare answers from memory with those of Nova's functions on the table's database."""
    compared = nova_table.comparison()
    named = st.sampled_from(sorted(arguments)).flatmap(
        lambda name: st.tuples(st.just(name), arguments[name])
    )
    calls_drawn = st.lists(
        st.tuples(named, st.sampled_from(["no", "yes", "only"])), min_size=20, max_size=40
    )

    @hypothesis.given(
        rows=nova_table.table_rows(compared),
        services=nova_table.services(compared),
        calls=calls_drawn,
        uuids=st.lists(st.sampled_from([*nova_table.UUIDS, "absent"]), max_size=4),
    )
    @hypothesis.settings(
        max_examples=examples, deadline=None, suppress_health_check=nova_table.LOADED
    )
    def agree(
        rows: list[dict[str, Any]],
        services: list[dict[str, Any]],
        calls: list[tuple[tuple[str, tuple[Any, ...]], str]],
        uuids: list[str],
    ) -> None:
        nova_table.fill(rows, services)
        source = nova_table.HeldRows(nova_table.index_of(nova_table.rows()))
        queries = row_queries.RowQueries(source)
        for (name, given), read_deleted in calls:
            ours, theirs = answers(queries, name, read_deleted, *given)
            if name in UNORDERED:
                ours, theirs = nova_table.by_id(ours), nova_table.by_id(theirs)
            assert theirs == ours, (name, given, read_deleted, theirs, ours)
        for read_deleted in ("no", "yes", "only"):
            for ours, theirs in beside(queries, read_deleted, uuids):
                assert nova_table.by_id(theirs) == nova_table.by_id(ours), (theirs, ours)

    agree()


def answers(
    queries: row_queries.RowQueries, name: str, read_deleted: str, *arguments: Any
) -> tuple[Any, Any]:
    """Return our answer to a call and Nova's."""
    context = nova_table.context(read_deleted)
    ours = nova_table.answer_of(getattr(queries, name), context, *arguments)
    theirs = nova_table.answer_of(getattr(main_db, name), context, *arguments)
    return ours, theirs


def beside(
    queries: row_queries.RowQueries, read_deleted: str, uuids: list[str]
) -> Iterator[tuple[Any, Any]]:
    """Give answers of what reads the table without a function of the API."""
    context = nova_table.context(read_deleted)
    yield (
        nova_table.answer_of(queries.get_all_by_uuids, context, uuids),
        nova_table.answer_of(_oracle_by_uuids, context, uuids),
    )
    for hv_type in nova_table.TYPES:
        with main_db.get_context_manager(context).reader.using(context):
            theirs = nova_table.answer_of(_oracle_by_type, context, hv_type)
        yield nova_table.answer_of(queries.get_by_hv_type, context, hv_type), theirs


class RowQueriesTest(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        cloud.databases()

    def test_every_read_is_tried(self) -> None:
        self.assertEqual(set(row_queries.READS), set(ARGUMENTS))

    def test_answers_are_those_of_nova(self) -> None:
        agree_with_nova(ARGUMENTS, nova_table.EXAMPLES)

    def test_an_unknown_read_deleted_is_refused_as_by_nova(self) -> None:
        nova_table.fill([])
        queries = row_queries.RowQueries(nova_table.HeldRows(nova_table.index_of([])))
        context = nova_table.context()
        context._read_deleted = "perhaps"
        for read in (queries, main_db):
            with self.assertRaises(ValueError):
                read.compute_node_search_by_hypervisor(context, "n")

    def test_live_rows_are_counted(self) -> None:
        live = {**nova_table.NEEDED, "id": 1, "uuid": "a", "deleted": 0}
        index = nova_table.index_of([live, {**live, "id": 2, "uuid": "b", "deleted": 2}])
        queries = row_queries.RowQueries(nova_table.HeldRows(index))
        self.assertEqual(1, queries.count(nova_table.context("yes")))
