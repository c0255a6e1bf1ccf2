# SPDX-License-Identifier: Apache-2.0
"""Hosts in Nova's order: the same as a plain list gives, whatever comes and goes between pages."""

import itertools
import os
import time

import hypothesis
import testtools
from hypothesis import strategies as st

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.rpc import host_queries, record_queries
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.wire import codec

TABLES = known_namespaces.HOST_TABLES
ALL = tuple(each.namespace for each in TABLES.relations)
#: ``--all`` draws more cases than CI has time for.
EXAMPLES = 1000 if "NODB_PROPERTY_EXAMPLES" in os.environ else 300


class Hosts:
    """A store, and the same records as plain mappings."""

    def __init__(self):
        self.store = host_state_store.HostStateStore(known_namespaces.BUILT_IN, codec.decode_state)
        self.states = {each.name: {} for each in known_namespaces.BUILT_IN}
        self._revision = 0

    def write(self, namespace, key, state):
        self._revision += 1
        name = records.RecordKey(namespace, key)
        schema = known_namespaces.COMPUTE_NODES.schema
        payload = b"" if state is None else codec.encode(state, schema)
        record = records.Record(name, self._revision, self._revision, payload, state is None)
        assert self.store.apply(records.Change(record, state)) is not False
        if state is None:
            self.states[namespace].pop(key, None)
        else:
            self.states[namespace][key] = state

    def node(self, key, cell="c1", number=1, host="h", node=None, **row):
        row = {"id": number, "host": host, "hypervisor_hostname": node or host, **row}
        self.write("compute_nodes", key, {"cell": cell, "row": {"uuid": key, **row}})

    def page(self, limit=100, marker=None, related=(), most_bytes=10**9, **query):
        return host_queries.page_of(
            self.store.snapshot(),
            TABLES,
            host_queries.HostQuery(**query),
            related,
            limit,
            marker,
            most_bytes,
        )

    def keys(self, *args, **arguments):
        page = self.page(*args, **arguments)
        return [each.record.key for each in page.hosts]

    def walk(self, limit, between=lambda: None, **query):
        marker = None
        while True:
            page = self.page(limit, marker, **query)
            yield from (each.record.key for each in page.hosts)
            if page.next_marker is None:
                return
            marker = str(page.next_marker)
            between()


def plainly_like(text, pattern):
    """SQL's LIKE, one character at a time, without a backslash in the pattern."""
    if not pattern:
        return not text
    if pattern[0] == "%":
        return plainly_like(text, pattern[1:]) or (bool(text) and plainly_like(text[1:], pattern))
    return bool(text) and pattern[0] in ("_", text[0]) and plainly_like(text[1:], pattern[1:])


CELLS = ("c1", "c2", "c10")
NODES = st.dictionaries(
    st.sampled_from([f"n{number}" for number in range(14)]),
    st.tuples(
        st.sampled_from(CELLS),
        st.integers(0, 6),
        st.sampled_from(["h1", "h2", "h3"]),
        st.sampled_from(["a", "ab", "ba", "abc", "x"]),
        st.integers(0, 3),
    ),
    max_size=14,
)
NAMED = st.fixed_dictionaries(
    {},
    optional={
        "keys": st.lists(st.sampled_from([f"n{number}" for number in range(16)]), max_size=8),
        "ids": st.lists(st.integers(0, 8), max_size=4),
        "service": st.sampled_from(["s1", "s2", "s3", "conductor", "nobody"]),
        "search": st.text("ab_%", min_size=1, max_size=4),
        "cell": st.sampled_from([*CELLS, "c3"]),
        "host": st.sampled_from(["h1", "h4"]),
        "vcpus": st.integers(0, 3),
    },
)
#: host of each service, and its binary; all are of cell c1
SERVICES = {
    "s1": ("h1", "nova-compute"),
    "s2": ("h2", "nova-compute"),
    "s3": ("elsewhere", "nova-compute"),
    "conductor": ("h3", "nova-conductor"),
}


def written(drawn):
    hosts = Hosts()
    for key, (cell, number, host, node, vcpus) in drawn.items():
        hosts.node(key, cell, number, host, node, vcpus=vcpus)
    for key, (host, binary) in SERVICES.items():
        hosts.write("services", key, {"cell": "c1", "row": {"host": host, "binary": binary}})
    return hosts


def query_of(named):
    named = dict(named)
    conditions = [
        [column, "==", named.pop(column)] for column in ("cell", "host", "vcpus") if column in named
    ]
    return {"conditions": conditions, **named}


def plainly(drawn, named):
    """Return what a query finds, in order."""

    def fits(key):
        cell, number, host, node, vcpus = drawn[key]
        compute = SERVICES.get(named.get("service"), ("", ""))
        return (
            key in named.get("keys", [key])
            and number in named.get("ids", [number])
            and cell == named.get("cell", cell)
            and host == named.get("host", host)
            and vcpus == named.get("vcpus", vcpus)
            and ("search" not in named or plainly_like(node, f"%{named['search']}%"))
            and ("service" not in named or (cell, host, "nova-compute") == ("c1", *compute))
        )

    return sorted(filter(fits, drawn), key=lambda key: (*drawn[key][:2], key))


#: What happens to hosts between two pages. A host's vcpus are what queries ask for.
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["delete", "create", "move", "report", "rename", "new epoch"]),
        st.sampled_from([f"n{number}" for number in range(14)]),
        st.integers(0, 6),
        st.integers(0, 3),
    ),
    max_size=4,
)


class ChangingHosts:
    """Two schedulers' stores of the same hosts, one of which may hear of events later."""

    def __init__(self, drawn):
        self.plain = [dict(drawn), dict(drawn)]
        self.stores = [written(drawn), written(drawn)]

    def happen(self, which, events):
        """Let one scheduler hear of events."""
        plain, hosts = self.plain[which], self.stores[which]
        for what, key, number, vcpus in events:
            if what == "new epoch":
                self.stores[which] = hosts = written(plain)
                continue
            known = plain.get(key)
            if what == "delete":
                if plain.pop(key, None) is not None:
                    hosts.write("compute_nodes", key, None)
                continue
            if (what == "create") == (known is not None):
                continue
            cell, old, host, node, _ = known or (CELLS[number % 3], number, "h1", "a", 0)
            cell = CELLS[number % 3] if what == "move" else cell
            node = "ab" if what == "rename" else node
            plain[key] = (cell, old, host, node, vcpus)
            hosts.node(key, cell, old, host, node, vcpus=vcpus, cpu_info="x" * 100 * number)


PAGES = st.lists(
    st.tuples(
        # Which scheduler answers; what it and the other hear of behind the page.
        st.integers(0, 1),
        EVENTS,
        st.booleans(),
        st.integers(1, 5),
        st.sampled_from([1, 400, 10**9]),
        # The marker of the next page is the last host's uuid.
        st.booleans(),
    ),
    min_size=1,
    max_size=40,
)


class QueryTest(testtools.TestCase):
    @hypothesis.settings(max_examples=EXAMPLES, deadline=None)
    @hypothesis.given(NODES, NAMED, PAGES)
    def test_each_page_is_a_plain_lists_and_nothing_that_stood_is_missed_or_met_twice(
        self, drawn, named, pages
    ):
        changing, late = ChangingHosts(drawn), ([], [])
        marker, place, met, stood = None, ("", 0, ""), [], None
        for which, events, both, limit, most_bytes, by_uuid in itertools.chain(
            pages, itertools.repeat((0, [], True, 5, 10**9, False))
        ):
            plain = changing.plain[which]
            found = {key: (*plain[key][:2], key) for key in plainly(plain, named)}
            page = changing.stores[which].page(
                limit, marker, most_bytes=most_bytes, **query_of(named)
            )
            told = [each.record.key for each in page.hosts]
            expected = sorted(each for each in found.values() if each > place)
            self.assertEqual([key for *_, key in expected[:limit]][: len(told)], told)
            if most_bytes == 10**9:
                self.assertEqual(min(limit, len(expected)), len(told))
            self.assertEqual(len(expected) > len(told), page.next_marker is not None)
            self.assertEqual(bool(expected), bool(told))
            stood = found if stood is None else dict(stood.items() & found.items())
            met += told
            if page.next_marker is None:
                break
            place, marker = found[told[-1]], str(page.next_marker)
            for each in (0, 1):
                late[each].extend(events)
                if both or each == which:
                    changing.happen(each, late[each])
                    late[each].clear()
            last = told[-1]
            if by_uuid and all(plain.get(last, ())[:2] == place[:2] for plain in changing.plain):
                marker = last

        self.assertEqual(sorted(stood.values()), [stood[key] for key in met if key in stood])

    @hypothesis.settings(max_examples=EXAMPLES // 3, deadline=None)
    @hypothesis.given(NODES, NAMED, st.integers(1, 6))
    def test_a_walk_gives_what_a_plain_list_gives(self, drawn, named, limit):
        hosts = written(drawn)

        self.assertEqual(plainly(drawn, named), list(hosts.walk(limit, **query_of(named))))

    @hypothesis.settings(max_examples=EXAMPLES // 3, deadline=None)
    @hypothesis.given(NODES, NODES, st.lists(st.integers(0, 13), max_size=30), st.integers(1, 4))
    def test_who_was_there_all_the_time_is_met_once_whatever_comes_and_goes(
        self, drawn, coming, touched, limit
    ):
        hosts = written(drawn)
        steady, touches = set(drawn), iter(touched)

        def between():
            key = f"n{next(touches, 0)}"
            if key in hosts.states["compute_nodes"]:
                # The marker's own host may be it.
                steady.discard(key)
                hosts.write("compute_nodes", key, None)
            elif key in coming:
                cell, number, host, node, vcpus = coming[key]
                hosts.node(key, cell, number, host, node, vcpus=vcpus)

        met = list(hosts.walk(limit, between))

        of_steady = [key for key in met if key in steady]
        expected = sorted(steady, key=lambda key: (*drawn[key][:2], key))
        self.assertEqual(expected, of_steady)
        self.assertLessEqual(set(met), set(drawn) | set(coming))

    @hypothesis.settings(max_examples=EXAMPLES // 2, deadline=None)
    @hypothesis.given(st.text("ab%_", max_size=7), st.text("ab", max_size=8))
    def test_a_search_is_sqls_like(self, pattern, text):
        found = host_queries.like(pattern)(text) is not None

        self.assertEqual(plainly_like(text, f"%{pattern}%"), found)

    def test_a_search_ignores_case_and_takes_a_wildcard_literally_behind_a_backslash(self):
        for pattern, text, found in (
            ("NODE", "node-1", True),
            (r"a\_b", "a_b", True),
            (r"a\_b", "axb", False),
            (r"50\%", "50%", True),
            (r"50\%", "500", False),
            (r"a\\b", r"a\b", True),
            ("a\\", "a\\", True),
            ("a.c", "abc", False),
            ("a_c", "a\nc", True),
        ):
            with self.subTest(pattern, text=text):
                self.assertEqual(found, host_queries.like(pattern)(text) is not None)

    def test_a_search_made_to_take_long_does_not(self):
        # Each "a" could stand at 255 places; only the end says that none does.
        matches = host_queries.like("%a" * 100 + "%b")
        began = time.thread_time()

        self.assertIsNone(matches("a" * 255))
        self.assertLess(time.thread_time() - began, 0.5)


class PageTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.hosts = Hosts()
        for key, cell, number in (("a", "c2", 1), ("b", "c1", 2), ("c", "c1", 1), ("d", "c1", 3)):
            self.hosts.node(key, cell, number, host=f"h-{key}")

    def test_hosts_come_cell_by_cell_and_by_id(self):
        self.assertEqual(["c", "b", "d", "a"], self.hosts.keys())

    def test_the_page_of_a_marker_begins_behind_it(self):
        page = self.hosts.page(limit=2)
        self.assertEqual("c1/2/b", str(page.next_marker))

        for marker in ("c1/2/b", "b"):
            self.assertEqual(["d", "a"], self.hosts.keys(marker=marker))
        self.assertEqual([], self.hosts.keys(marker="a"))

    def test_a_page_that_just_fits_is_the_last(self):
        self.assertIsNone(self.hosts.page(limit=4).next_marker)
        self.assertIsNotNone(self.hosts.page(limit=3).next_marker)

    def test_a_place_stands_when_its_host_was_deleted_and_a_uuid_does_not(self):
        self.hosts.write("compute_nodes", "b", None)

        self.assertEqual(["d", "a"], self.hosts.keys(marker="c1/2/b"))
        error = self.assertRaises(errors.MarkerNotFound, self.hosts.keys, marker="b")
        self.assertIn("from the start", str(error))

    def test_what_only_looks_like_a_place_is_no_marker(self):
        for marker in ("c1/2", "c1/2/", "c1/x/b", "/", f"c1/{2**63}/b", "c1/\u0662/b"):
            with self.subTest(marker):
                self.assertRaises(errors.MarkerNotFound, self.hosts.keys, marker=marker)

    def test_hosts_of_one_id_are_told_apart_by_their_uuids(self):
        hosts = Hosts()
        for number in range(9):
            hosts.node(f"n{number}", number=7)

        self.assertEqual([f"n{number}" for number in range(9)], list(hosts.walk(2)))

    def test_a_page_ends_where_its_bytes_do_and_holds_one_host_at_least(self):
        self.hosts.node("e", "c3", 1, cpu_info="x" * 5000)
        one = self.hosts.page(limit=1).hosts[0].text_bytes()

        for most_bytes, expected in ((1, 1), (2 * one + 10, 2), (10**6, 5)):
            page = self.hosts.page(most_bytes=most_bytes)
            self.assertEqual(expected, len(page.hosts))
        walked, marker = [], ""
        while marker is not None:
            page = self.hosts.page(marker=marker or None, most_bytes=2 * one + 10)
            walked += [each.record.key for each in page.hosts]
            marker = page.next_marker and str(page.next_marker)
        self.assertEqual(["c", "b", "d", "a", "e"], walked)

    def test_records_of_a_namespace_end_where_their_bytes_do(self):
        view = self.hosts.store.snapshot().namespace("compute_nodes")

        page = record_queries.page_of(view, None, [], 10, None, 1)
        self.assertEqual((["a"], "a"), ([each.key for each in page.records], page.next_marker))
        page = record_queries.page_of(view, None, [], 10, "c", 1)
        self.assertEqual((["d"], None), ([each.key for each in page.records], page.next_marker))

    def test_no_host_at_all_is_an_empty_last_page(self):
        page = Hosts().page(search="a")

        self.assertEqual(((), None), (page.hosts, page.next_marker))


class RelationTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.hosts = hosts = Hosts()
        # Two nodes of one host, and its namesake in another cell.
        hosts.node("n1", "c1", 1, "h", "first")
        hosts.node("n2", "c1", 2, "h", "second")
        hosts.node("n3", "c2", 1, "h", "third")
        for key, cell, binary in (
            ("s1", "c1", "nova-compute"),
            ("s2", "c1", "nova-conductor"),
            ("s3", "c2", "nova-compute"),
        ):
            hosts.write("services", key, {"cell": cell, "row": {"host": "h", "binary": binary}})
            hosts.write("service_liveness", key, {"cell": cell, "report_count": len(key)})
        hosts.write("providers", "n1", {"name": "first", "generation": 3})
        hosts.write("claims", "n2", {"consumers": {}})
        for number, (cell, node) in enumerate(
            [("c1", "first"), ("c1", "first"), ("c1", "second"), ("c2", "third"), ("c1", "gone")]
        ):
            state = {"cell": cell, "row": {"host": "h", "node": node}}
            hosts.write("instances", f"i{number}", state)

    def test_each_host_comes_with_what_is_its_own(self):
        found = self.hosts.page(related=ALL).hosts

        told = [
            ({name: [e.key for e in each.related[name]] for name in each.related}, each.counts)
            for each in found
        ]
        compute, other = ["s1"], ["s3"]
        self.assertEqual(
            [
                (self.related(compute, ["n1"], []), {"instances": 2}),
                (self.related(compute, [], ["n2"]), {"instances": 1}),
                (self.related(other, [], []), {"instances": 1}),
            ],
            told,
        )

    def related(self, services, providers, claims):
        return {
            "services": services,
            "service_liveness": services,
            "providers": providers,
            "claims": claims,
        }

    def test_only_what_is_asked_for_is_told(self):
        [found, *_] = self.hosts.page(related=["providers"]).hosts

        self.assertEqual(({"providers"}, {}), (set(found.related), found.counts))

    def test_what_belongs_to_a_host_counts_for_the_bytes_of_a_page(self):
        [found, *_] = self.hosts.page(related=["services"]).hosts

        own = found.record.text_bytes()
        [service] = found.related["services"]
        self.assertEqual(own + service.text_bytes(), found.text_bytes())

    def test_every_relation_is_of_a_namespace_with_the_index_and_columns_it_names(self):
        declared = {each.name: each for each in known_namespaces.BUILT_IN}
        for relation in TABLES.relations:
            namespace = declared[relation.namespace]
            columns = {column.name for column in namespace.columns}
            named = {column for column, _text in relation.conditions}
            named |= {relation.node_column} - {""}
            self.assertLessEqual(named, columns)
            if relation.index:
                [index] = [each for each in namespace.indexes if each.name == relation.index]
                self.assertEqual((("cell",), ("row", "host")), index.paths)
            if relation.keys_of:
                self.assertIsNotNone(TABLES.relation(relation.keys_of))
