# SPDX-License-Identifier: Apache-2.0
"""Two conductors write records, call by call as Nova's own functions write the table."""

from __future__ import annotations

import logging
import pathlib
import tempfile
import unittest
from collections.abc import Sequence
from typing import Any

import hypothesis
from hypothesis import strategies as st
from nova import exception
from nova.db.main import api as main_db
from nova.db.main import models

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes, row_replica
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy
from nova_nodb_scheduler.synchronizer.drivers.memory import driver as memory
from nova_nodb_scheduler.synchronizer.drivers.memory import faults, hub
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes import conductors, nova_table

_ids = st.integers(1, 7)
_hosts = st.sampled_from(["h1", "H1", "h2", "h2 ", None])
_nodes = st.sampled_from(["n1", "N1", "n2", None])
_deleted = st.sampled_from(["no"] * 6 + ["yes", "only"])

_changes = st.fixed_dictionaries(
    {},
    optional={
        "host": _hosts,
        "hypervisor_hostname": _nodes,
        "vcpus": st.one_of(st.integers(1, 99), st.just(None)),
        "mapped": st.sampled_from([0, 1, None]),
        "service_id": st.sampled_from([1, 2, None]),
        "cpu_allocation_ratio": st.sampled_from([2, 1.5, 0.0, None]),
        "host_ip": st.sampled_from(["10.0.0.1", "2001:0db8:0:0:0:0:0:1"]),
        "stats": st.sampled_from(["{}", '{"a": "1"}', None]),
    },
)

_calls = st.one_of(
    st.tuples(
        st.just("compute_node_create"),
        st.builds(
            lambda uuid, host, node, changes, deleted: {
                **nova_table.NEEDED,
                **({} if uuid is None else {"uuid": uuid}),
                "host": host,
                "hypervisor_hostname": node,
                **changes,
                # A row of no uuid that is refused for its name costs an id, as on MySQL.
                **({"host": None} if uuid is None else {}),
                **({} if deleted is None else {"deleted": deleted}),
            },
            st.sampled_from([*nova_table.UUIDS[:4], None]),
            _hosts,
            _nodes,
            _changes,
            st.sampled_from([None, False]),
        ),
    ),
    st.tuples(st.just("compute_node_update"), _ids, _changes),
    st.tuples(st.just("compute_node_delete"), _ids, st.sampled_from([(), ("h1",), ("h2", "H1")])),
    st.tuples(st.just("service_create"), _hosts, st.sampled_from(["nova-compute", "other"])),
    st.tuples(st.just("service_destroy"), st.integers(1, 3)),
)

#: One call, by which conductor, and which rows its context gives.
Step = tuple[int, str, tuple[Any, ...]]
STEPS = st.lists(st.tuples(st.integers(0, 1), _deleted, _calls), min_size=4, max_size=14)


class WritesCase(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        cloud.databases()

    def client(self, shared: hub.MemoryHub) -> memory.MemorySynchronizer:
        made = memory.MemorySynchronizer(shared_hub=shared)
        made.open()
        return made


class AgainstNovaTest(WritesCase):
    def setUp(self) -> None:
        super().setUp()
        # What the database refuses is told by oslo.db, and by Nova, with all their frames.
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)

    @hypothesis.given(steps=STEPS)
    @hypothesis.settings(
        max_examples=5 * nova_table.EXAMPLES, deadline=None, suppress_health_check=nova_table.LOADED
    )
    def test_each_call_answers_and_leaves_what_nova_leaves(self, steps: list[Step]) -> None:
        shared = hub.MemoryHub()
        self.compare(steps, [self.client(shared), self.client(shared)])

    def test_so_it_does_with_a_database_as_the_back_end(self) -> None:
        path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), "nodb.sqlite")
        clients = [
            sqlalchemy.SQLAlchemySynchronizer(sqlalchemy.SQLOptions(f"sqlite:///{path}"))
            for _ in range(2)
        ]
        for client in clients:
            client.open()
            self.addCleanup(client.close)

        @hypothesis.given(steps=STEPS)
        @hypothesis.settings(
            max_examples=nova_table.EXAMPLES // 2,
            deadline=None,
            suppress_health_check=nova_table.LOADED,
        )
        def compare(steps: list[Step]) -> None:
            clients[0].reset()
            self.compare(steps, clients)

        compare()

    def compare(self, steps: list[Step], clients: Sequence[contract.Synchronizer]) -> None:
        nova_table.fill([])
        both = [conductors.conductor(client) for client in clients]
        conductors.prepare(both[0], above=0)
        for which, read_deleted, (name, *arguments) in steps:
            context = nova_table.context(read_deleted)
            ours = nova_table.answer_of(
                getattr(self, name, self.written), both[which], context, name, *arguments
            )
            theirs = nova_table.answer_of(self.by_nova, context, name, *arguments)
            if name != "service_create":
                self.assertEqual(timeless(theirs), timeless(ours), (name, arguments))
            # Read by the other one, at once.
            seen = both[1 - which].queries.compute_node_get_all(nova_table.context("yes"))
            self.assertEqual(timeless(nova_table.rows()), timeless(seen), (name, arguments))

    def written(self, ours: conductors.Conductor, context: Any, name: str, *arguments: Any) -> Any:
        return nova_table.plain(getattr(ours.writer, name)(context, *arguments_of(arguments)))

    def service_create(self, ours: conductors.Conductor, context: Any, *_args: Any) -> None:
        """Leave it to Nova's own function, which both share."""

    def service_destroy(
        self, ours: conductors.Conductor, context: Any, name: str, service_id: int
    ) -> None:
        service = main_db.service_get(context, service_id)
        if service.binary == "nova-compute":
            ours.writer.delete_of_service(context, service_id, service.host)

    def by_nova(self, context: Any, name: str, *arguments: Any) -> Any:
        if name == "service_create":
            host, binary = arguments
            values = {"host": host, "binary": binary, "topic": binary, "report_count": 0}
            main_db.service_create(context, values)
            return None
        made = getattr(main_db, name)(context, *arguments_of(arguments))
        if isinstance(made, models.ComputeNode):
            # Of what a creation did not name, Nova's model has no value.
            found = main_db.compute_node_get(nova_table.context("yes"), made.id)
            return nova_table.plain(found)
        return made


def arguments_of(arguments: tuple[Any, ...]) -> list[Any]:
    """Return arguments of a call of their own: Nova's functions change them."""
    made: list[Any] = []
    for each in arguments:
        if isinstance(each, dict):
            made.append(dict(each))
        elif isinstance(each, tuple):
            made.append(main_db.constraint(host=main_db.equal_any(*each)) if each else None)
        else:
            made.append(each)
    return made


def timeless(answer: Any) -> Any:
    """Return rows with their times as whether there is one."""
    if isinstance(answer, list):
        return [timeless(each) for each in answer]
    if not isinstance(answer, dict):
        return answer
    return {
        name: value is not None if name.endswith("_at") else value for name, value in answer.items()
    }


class FaultsTest(WritesCase):
    def setUp(self) -> None:
        super().setUp()
        nova_table.fill([])
        self.hub = hub.MemoryHub()
        self.one = conductors.conductor(self.client(self.hub))
        self.other = conductors.conductor(self.client(self.hub))
        self.context = nova_table.context()
        conductors.prepare(self.one, above=41)

    def values(self, number: int = 0, **others: Any) -> dict[str, Any]:
        return {
            **nova_table.NEEDED,
            "uuid": nova_table.UUIDS[number],
            "host": "h",
            "hypervisor_hostname": f"n{number}",
            **others,
        }

    def test_ids_go_on_above_what_the_cell_has_used(self) -> None:
        first = self.one.writer.compute_node_create(self.context, self.values(0))
        second = self.other.writer.compute_node_create(self.context, self.values(1))
        conductors.prepare(self.one, above=7)
        third = self.one.writer.compute_node_create(self.context, self.values(2))
        self.assertEqual([42, 43, 44], [first.id, second.id, third.id])

    def test_what_one_conductor_created_the_other_reads_at_once(self) -> None:
        self.other.queries.compute_node_get_all(self.context)
        made = self.one.writer.compute_node_create(self.context, self.values())
        self.assertEqual(
            made.uuid, self.other.queries.compute_node_get(self.context, made.id)["uuid"]
        )

    def test_a_deletion_of_unknown_outcome_is_not_mistaken_for_another_s(self) -> None:
        made = self.one.writer.compute_node_create(self.context, self.values())
        client = self.one.synchronizer
        assert isinstance(client, memory.MemorySynchronizer)
        client.faults.fail_next(faults.Fault.REPLY_LOST)
        self.one.writer.compute_node_delete(self.context, made.id)
        [row] = self.other.queries.compute_node_get_all(nova_table.context("yes"))
        self.assertEqual(made.id, row["deleted"])

    def test_rows_of_a_cell_that_was_never_brought_are_not_absent(self) -> None:
        lost = conductors.conductor(self.client(hub.MemoryHub()))
        with self.assertRaises(row_replica.CellNotHeld):
            lost.queries.compute_node_get_all(self.context)
        with self.assertRaises(row_replica.CellNotHeld):
            lost.writer.compute_node_create(self.context, self.values())

    def test_nor_are_those_of_one_that_was_lost_a_moment_ago(self) -> None:
        values = {"host": "h", "binary": "nova-compute", "topic": "x", "report_count": 0}
        service = main_db.service_create(self.context, values)
        calls: tuple[tuple[str, tuple[Any, ...]], ...] = (
            ("compute_node_update", (42, {"vcpus": 1})),
            ("compute_node_delete", (42,)),
            ("compute_node_create", (self.values(),)),
            ("delete_of_service", (service.id, "h")),
        )
        for name, arguments in calls:
            shared = hub.MemoryHub()
            client = self.client(shared)
            ours = conductors.conductor(client)
            conductors.prepare(ours, above=41)
            ours.writer.compute_node_create(self.context, self.values())
            # This one goes by what it read just now.
            self.assertEqual(1, len(ours.queries.compute_node_get_all(self.context)))
            read = client.read

            def lost(
                keys: Any, client: Any = client, read: Any = read, shared: Any = shared
            ) -> Any:
                client.read = read
                shared.begin_epoch()
                return read(keys)

            client.read = lost  # type: ignore[method-assign]
            with self.subTest(name), self.assertRaises(errors.NodbError):
                getattr(ours.writer, name)(self.context, *arguments)

    def test_an_id_of_old_is_not_taken_for_the_node_that_came_back_under_another(self) -> None:
        made = self.one.writer.compute_node_create(self.context, self.values())
        self.one.queries.compute_node_get_all(self.context)
        # Archived, and created again: all of it by another conductor.
        self.other.writer.compute_node_delete(self.context, made.id)
        self.assertEqual(1, self.other.writer.forget_archived(self.context))
        again = self.other.writer.compute_node_create(self.context, self.values())
        self.assertNotEqual(made.id, again.id)
        with self.assertRaises(exception.ComputeHostNotFound):
            self.one.writer.compute_node_update(self.context, made.id, {"vcpus": 77})
        with self.assertRaises(exception.ComputeHostNotFound):
            self.one.writer.compute_node_delete(self.context, made.id)
        [row] = self.one.queries.compute_node_get_all(self.context)
        self.assertEqual((again.id, 4), (row["id"], row["vcpus"]))

    def test_a_writer_that_slept_while_its_cell_went_back_to_the_table_is_not_acknowledged(
        self,
    ) -> None:
        copied: list[records.RecordKey] = []
        slept = conductors.conductor(
            self.client(self.hub), on_written=lambda _context, key: copied.append(key)
        )
        made = slept.writer.compute_node_create(self.context, self.values())
        copied.clear()
        client = slept.synchronizer
        write = client.write

        def late(writes: Any) -> Any:
            client.write = write  # type: ignore[method-assign]
            conductors.prepare(self.other, mode=cell_modes.NodeMode.MIRROR)
            slept.replica._followed_at -= 60
            return write(writes)

        client.write = late  # type: ignore[method-assign]
        with self.assertRaises(cell_modes.ModeDiffers):
            slept.writer.compute_node_update(self.context, made.id, {"vcpus": 77})
        # Nor has it written the table, which counts.
        self.assertEqual([], copied)
