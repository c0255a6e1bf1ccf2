# SPDX-License-Identifier: Apache-2.0
"""Allocations of schedulers that died between their write and its answer.

Nova's databases, a real Placement, claims as processes that died left them. Of the
finder only the clock is made.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any
from unittest import mock

import attrs
import requests
import sqlalchemy as sa
from keystoneauth1 import exceptions as keystone
from nova import exception, objects

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.orphans import (
    consumer_presence,
    orphan_finder,
    orphan_verdicts,
)
from nova_nodb_scheduler.nova_adapter.placement.allocations import placement_calls
from nova_nodb_scheduler.nova_adapter.reporting import nova_tables
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.claims import claim_rules
from nova_nodb_scheduler.synchronizer.records import record_editor
from nova_nodb_scheduler.synchronizer.settlement import lapsed_claims, settlement_worker
from nova_nodb_scheduler.testing import patience
from nova_nodb_scheduler.wire import codec
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.decisions import test_memory_decisions

DEAD = "scheduler-2:77:1:0a0b0c0d"
WAIT_SECONDS = 20.0
#: Claims are asked for at once.
QUICK = settlement_worker.SettlementOptions(
    look_seconds=0.1, ask_after_seconds=0.2, ask_most_seconds=0.2, cool_down_seconds=0.0
)


def unavailable(*args: Any, **kwargs: Any) -> Any:
    """Answer as a proxy without a Placement behind it."""
    response = requests.Response()
    response.status_code = 503
    return response


def timed_out_after(call: Callable[[], Any]) -> Any:
    call()
    raise keystone.ConnectTimeout


class OrphansCase(test_memory_decisions.MemoryDecisionsCase):
    """One living scheduler, which settles; another that died."""

    def setUp(self) -> None:
        super().setUp()
        self.now = 1000.0
        self.hinted: list[Any] = []
        duty = self.runtime.decisions.claim_duty
        self.finder = orphan_finder.OrphanFinder(
            self.runtime.synchronizer,
            lambda: self.runtime.store.snapshot() if duty.settler.ready else None,
            orphan_verdicts.OrphanJudge(placement_calls.AllocationCalls(self.client)),
            lapsed_claims.ClaimWriters(
                self.runtime.store,
                self.runtime.replicator.status().identity,
                30.0,
                clock=lambda: self.now,
            ),
            lambda: self.runtime.clock.now_seconds() + self.now - 1000.0,
            record_editor.RecordCache(),
            lambda providers, consumers: self.hinted.append((providers, consumers)),
            clock=lambda: self.now,
        )

    # -- what died ------------------------------------------------------------------

    def allocate(self, consumer: str, host: str, vcpus: int = 1) -> None:
        self.ask(
            "put",
            f"/allocations/{consumer}",
            {
                "allocations": {
                    self.nodes[host].uuid: {
                        "resources": {"VCPU": vcpus, "MEMORY_MB": 512, "DISK_GB": 1}
                    }
                },
                "project_id": test_memory_decisions.PROJECT,
                "user_id": test_memory_decisions.PROJECT,
                "consumer_generation": self.generation(consumer),
            },
        )

    def generation(self, consumer: str) -> int | None:
        return self.ask("get", f"/allocations/{consumer}").get("consumer_generation")

    def claim(
        self,
        consumer: str,
        host: str,
        writer: str = DEAD,
        state: model.ClaimState = model.ClaimState.PENDING,
        vcpus: int = 1,
    ) -> None:
        """Leave a claim: a pending one whose lease has ended, or a confirmed one."""
        synchronizer = self.synchronizer
        key = claim_rules.host_key(self.nodes[host].uuid)
        while True:
            found = synchronizer.read([key]).get(key)
            there = found is not None and not found.deleted
            before = codec.decode_state(found.payload) if there else None
            record = model.ClaimRecord.from_state(key.key, before, found.version if there else 0)
            pending = state is model.ClaimState.PENDING
            held = model.HeldClaim(
                {"VCPU": vcpus, "MEMORY_MB": 512, "DISK_GB": 1},
                state,
                str(uuid.uuid4()),
                writer,
                synchronizer.now_seconds() if pending else None,
                node=model.NodeShare(vcpus, 512, 1, 1, 1),
            )
            payload = codec.encode(
                record.with_claim(consumer, held).to_state(), known_namespaces.CLAIM_RECORDS.schema
            )
            write = records.Write(key, found.revision if found is not None else 0, payload)
            if synchronizer.write([write])[0].won:
                return

    def died(
        self, host: str = "h1", *, confirmed: bool = False, writer: str = DEAD, vcpus: int = 1
    ) -> str:
        """Have a scheduler die after its write; return the server's uuid."""
        consumer = str(uuid.uuid4())
        state = model.ClaimState.CONFIRMED if confirmed else model.ClaimState.PENDING
        self.claim(consumer, host, writer, state, vcpus)
        self.allocate(consumer, host, vcpus)
        name = self.nodes[host].uuid
        self.wait(
            lambda: (
                consumer in (self.record(name).claims if confirmed else self.record(name).lapsed)
            )
        )
        return consumer

    # -- what is found --------------------------------------------------------------

    def record(self, node: str) -> model.ClaimRecord:
        """Return a host's claims as the worker's own store has them."""
        found = self.runtime.store.snapshot().namespace("claims").get(node)
        state = found.state if found is not None else None
        return model.ClaimRecord.from_state(node, state, 1)

    def wait(self, condition: Callable[[], bool]) -> None:
        patience.wait_until(condition, WAIT_SECONDS, lambda: "", 0.05)

    def is_allocated(self, consumer: str) -> bool:
        return bool(self.ask("get", f"/allocations/{consumer}")["allocations"])

    def turns(self, count: int = 8, seconds: float = 40.0) -> None:
        for _ in range(count):
            self.finder.turn()
            self.now += seconds

    def kinds(self) -> dict[str, int]:
        return {kind.value: n for kind, n in self.finder.status.by_kind.items() if n}

    @contextlib.contextmanager
    def meanwhile(self, fault: Callable[[Callable[[], Any]], Any]) -> Iterator[None]:
        """Have something happen around the next write of allocations."""
        own, left = self.client.post, [fault]

        def post(url: str, *args: Any, **kwargs: Any) -> Any:
            if url == "/allocations" and left:
                return left.pop()(lambda: own(url, *args, **kwargs))
            return own(url, *args, **kwargs)

        with mock.patch.object(self.client, "post", post):
            yield

    # -- what exists ----------------------------------------------------------------

    def build_request(self, consumer: str) -> Any:
        instance = objects.Instance(self.admin, uuid=consumer, project_id="p", user_id="u")
        made = objects.BuildRequest(
            self.admin, instance_uuid=consumer, project_id="p", instance=instance
        )
        made.create()
        return made

    def server(self, cell: str, host: str | None, consumer: str, **more: Any) -> Any:
        """Have an instance exist in a database alone: no reporter tells memory of it."""
        engine = sa.create_engine(self.urls[cell])
        with engine.begin() as connection:
            connection.execute(
                consumer_presence._INSTANCE.insert().values(
                    uuid=consumer,
                    host=host,
                    node=more.get("node"),
                    vm_state=more.get("vm_state", "active"),
                    task_state=more.get("task_state"),
                    deleted=0,
                )
            )
        engine.dispose()

    def doubled(self, *, confirmed: bool, **more: Any) -> str:
        """Have a scheduler die behind its write of h1 for a server that has h2 and stands there."""
        consumer = self.died("h1", confirmed=confirmed)
        left = self.ask("get", f"/allocations/{consumer}")
        left["allocations"][self.nodes["h2"].uuid] = left["allocations"][self.nodes["h1"].uuid]
        for each in left["allocations"].values():
            each.pop("generation", None)
        self.ask("put", f"/allocations/{consumer}", left)
        self.runtime.decisions._mirror.hints.hint([node.uuid for node in self.nodes.values()])
        self.shown(consumer, **more)
        return consumer

    def evacuated(self, *, confirmed: bool, status: str = "done") -> str:
        """Have a server be evacuated from h1, to which its last claim is, to a host beside it."""
        consumer = self.doubled(confirmed=confirmed, cell=cloud.CELL1, host="beside")
        self.migration(
            cloud.CELL1,
            status,
            instance_uuid=consumer,
            migration_type="evacuation",
            source_compute="h1",
        )
        return consumer

    def shown(self, consumer: str, cell: str = cloud.CELL2, host: str = "h2", **more: Any) -> None:
        """Have a server exist, and memory know it, too."""
        self.server(cell, host, consumer, **more)
        key = records.RecordKey(
            known_namespaces.INSTANCES.name, nova_tables.cell_key(consumer, cell)
        )
        state = {
            "cell": cell,
            "object_version": "2.8",
            "row": {
                "uuid": consumer,
                "host": host,
                "node": more.get("node", f"node-{host}"),
                "vm_state": "active",
                "task_state": more.get("task_state"),
                "project_id": "p",
                "memory_mb": 512,
                "vcpus": 1,
                "root_gb": 1,
                "ephemeral_gb": 0,
            },
        }
        publisher = self.plugin.publisher(self.synchronizer, known_namespaces.INSTANCES.owner)
        publisher.publish({key: lambda current: state})
        instances = lambda: self.runtime.store.snapshot().namespace(key.namespace)  # noqa: E731
        self.wait(lambda: key.key in instances())

    def migration(self, cell: str, status: str, **columns: str) -> None:
        values = {
            "uuid": str(uuid.uuid4()),
            # The server that it is of is not what is asked for.
            "instance_uuid": str(uuid.uuid4()),
            "migration_type": "migration",
            **columns,
        }
        self.execute(
            cell,
            consumer_presence._MIGRATION.insert().values(
                status=status, deleted=0, hidden=False, **values
            ),
        )

    def execute(self, database: str, statement: Any) -> None:
        engine = sa.create_engine(self.urls[database])
        with engine.begin() as connection:
            connection.execute(statement)
        engine.dispose()


class DeletedTest(OrphansCase):
    def test_what_a_scheduler_left_with_a_pending_claim_is_deleted_and_its_room_is_free(self):
        consumer = self.died("h1", vcpus=4)
        self.died("h2", vcpus=2)
        with self.assertRaises(exception.NoValidHost):
            self.select()
        self.turns()
        self.assertFalse(self.is_allocated(consumer))
        self.assertEqual(2, self.finder.status.deleted)
        self.assertIn(([self.nodes["h1"].uuid], [consumer]), self.hinted)
        self.assertEqual(({}, {}), (self.used_by("h1"), self.used_by("h2")))
        for providers, consumers in self.hinted:
            self.runtime.decisions._mirror.hints.hint(providers, consumers)
        self.settle()
        self.wait(lambda: not self.mirrored("h1") and not self.mirrored("h2"))
        self.select(servers=2)

    def test_what_a_scheduler_left_with_a_confirmed_claim_is_deleted_and_its_claim_ends(self):
        consumer = self.died("h1", confirmed=True)
        self.runtime.decisions.claim_duty.settler.pace(QUICK)
        self.turns()
        self.assertFalse(self.is_allocated(consumer))
        self.wait(lambda: consumer not in self.record(self.nodes["h1"].uuid).claims)

    def test_a_user_who_deleted_the_build_request_of_a_dead_scheduler_left_nothing_to_keep(self):
        consumer = self.died()
        request = self.build_request(consumer)
        self.turns(12)
        self.assertTrue(self.is_allocated(consumer))
        request.destroy()
        self.turns(6, 600)
        self.assertFalse(self.is_allocated(consumer))

    def test_what_was_allocated_for_a_server_that_is_buried_meanwhile_is_deleted(self):
        # Nobody waits for an answer any more: that its writer lives changes nothing.
        writer = self.runtime.replicator.status().identity
        for confirmed in (False, True):
            with self.subTest(confirmed=confirmed):
                consumer = self.died("h1", confirmed=confirmed, writer=writer)
                self.server(cloud.CELL0, None, consumer, vm_state="error")
                self.turns()
                self.assertFalse(self.is_allocated(consumer))

    def test_what_was_noted_on_novas_own_path_ends_the_same(self):
        consumer = self.died("h1", writer="unjudged")
        self.turns()
        self.assertFalse(self.is_allocated(consumer))

    def test_a_claim_that_another_claimer_drops_is_remembered_too(self):
        consumer, node = str(uuid.uuid4()), self.nodes["h1"].uuid
        # Not the settler, which would find it first.
        self.runtime.decisions.claim_duty.stop()
        self.claim(consumer, "h1")
        self.allocate(consumer, "h1")
        self.select(ignore_hosts=["h2"])
        self.wait(lambda: consumer in self.record(node).lapsed)
        self.assertNotIn(consumer, self.record(node).claims)
        self.assertEqual(DEAD, self.record(node).lapsed[consumer].writer)
        self.turns()
        self.assertFalse(self.is_allocated(consumer))

    def test_it_is_proved_absent_twice_with_time_between(self):
        consumer = self.died()
        self.now += 100
        self.finder.turn()
        self.now += 31
        self.finder.turn()  # the writer is gone for as long as this one looks
        self.now += 29
        self.finder.turn()
        self.assertTrue(self.is_allocated(consumer))
        self.now += 2
        self.finder.turn()
        self.assertFalse(self.is_allocated(consumer))

    def test_a_claim_of_which_nothing_is_found_is_forgotten_after_a_while(self):
        consumer = self.died()
        node = self.nodes["h1"].uuid
        self.turns(4)
        self.assertFalse(self.is_allocated(consumer))
        self.assertIn(consumer, self.record(node).lapsed)
        self.turns(20)
        self.wait(lambda: consumer not in self.record(node).lapsed)
        self.assertEqual({}, self.kinds())

    def test_a_lost_answer_to_the_deletion_is_no_deletion_of_anything_else(self):
        consumer = self.died()
        with self.meanwhile(timed_out_after):
            self.turns()
        self.assertFalse(self.is_allocated(consumer))
        self.assertEqual((0, 1), (self.finder.status.deleted, self.finder.status.lost))

    def test_a_frozen_scheduler_that_wakes_after_the_deletion_leaves_one_allocation(self):
        """It finds its claim gone, and takes back an allocation that is not there."""
        parts = self.runtime.decisions.parts
        own, frozen, wakes = parts.ways.claimer.confirm, threading.Event(), threading.Event()

        def sleepy(taken: Any) -> list[bool]:
            if not frozen.is_set():
                frozen.set()
                wakes.wait(WAIT_SECONDS)
            return own(taken)

        with (
            mock.patch.object(parts.ways.claimer, "confirm", sleepy),
            futures.ThreadPoolExecutor(1) as pool,
        ):
            selecting = pool.submit(self.select)
            self.addCleanup(wakes.set)
            self.assertTrue(frozen.wait(WAIT_SECONDS))
            host, consumer = self.end_lease()
            self.wait(lambda: consumer in self.record(self.nodes[host].uuid).lapsed)
            self.turns()
            self.assertFalse(self.is_allocated(consumer))
            wakes.set()
            [consumer_again], [[selection, *_]] = selecting.result(WAIT_SECONDS)
        self.assertEqual(consumer, consumer_again)
        self.assertEqual(
            {selection.compute_node_uuid},
            set(self.ask("get", f"/allocations/{consumer}")["allocations"]),
        )

    def test_a_frozen_scheduler_that_wakes_leaves_what_another_placed_meanwhile(self):
        """Its conductor gave it up, took its allocation back and asked another."""

        def placed_elsewhere(consumer: str, host: str) -> str:
            self.client.delete(f"/allocations/{consumer}")
            other = "h2" if host == "h1" else "h1"
            self.allocate(consumer, other, vcpus=2)
            self.assertEqual(1, self.generation(consumer))
            return other

        consumer, other = self.woken_behind(placed_elsewhere)
        held = self.ask("get", f"/allocations/{consumer}")["allocations"]
        self.assertEqual({self.nodes[other].uuid}, set(held))
        self.assertEqual(2, held[self.nodes[other].uuid]["resources"]["VCPU"])

    def test_so_it_does_where_that_is_just_the_same_on_the_same_host(self):
        """A server that waits for room is asked for anew, and finds what it is to get."""

        def found(consumer: str, host: str) -> str:
            return host

        def removed_and_placed(consumer: str, host: str) -> str:
            self.client.delete(f"/allocations/{consumer}")
            self.allocate(consumer, host)
            return host

        for placed in (found, removed_and_placed):
            with self.subTest(placed=placed.__name__):
                consumer, host = self.woken_behind(placed)
                held = self.ask("get", f"/allocations/{consumer}")["allocations"]
                self.assertEqual({self.nodes[host].uuid}, set(held))
                # Its own debt; the finder judges it, as what the dead leave.
                self.assertTrue(len(self.runtime.decisions._upkeep.left))

    def woken_behind(self, placed: Callable[[str, str], str]) -> tuple[str, str]:
        """Have a scheduler sleep between its write and its confirm, and another place meanwhile.

        :param placed: given the server and the host of the one that sleeps; returns its host
        """
        parts = self.runtime.decisions.parts
        own, frozen, wakes = parts.ways.claimer.confirm, threading.Event(), threading.Event()
        writer, slept = self.runtime.decisions._writer, [0.0]
        pauses = writer._pauses

        def sleepy(taken: Any) -> list[bool]:
            if not frozen.is_set():
                frozen.set()
                wakes.wait(WAIT_SECONDS)
                slept[0] = 3600.0
            return own(taken)

        with (
            mock.patch.object(parts.ways.claimer, "confirm", sleepy),
            mock.patch.object(
                writer, "_pauses", attrs.evolve(pauses, clock=lambda: pauses.clock() + slept[0])
            ),
            futures.ThreadPoolExecutor(1) as pool,
        ):
            selecting = pool.submit(self.select)
            self.addCleanup(wakes.set)
            self.assertTrue(frozen.wait(WAIT_SECONDS))
            host, consumer = self.end_lease()
            self.wait(lambda: consumer in self.record(self.nodes[host].uuid).lapsed)
            host = placed(consumer, host)
            wakes.set()
            with contextlib.suppress(exception.NovaException):
                selecting.result(WAIT_SECONDS)
        return consumer, host

    def end_lease(self) -> tuple[str, str]:
        """End the lease of the one pending claim, as time does, and have a dead one own it."""
        for host, node in self.nodes.items():
            key = claim_rules.host_key(node.uuid)
            found = self.synchronizer.read([key]).get(key)
            if found is None:
                continue
            record = model.ClaimRecord.from_state(
                key.key, codec.decode_state(found.payload), found.version
            )
            for consumer, held in record.claims.items():
                ended = attrs.evolve(
                    held, writer=DEAD, deadline_seconds=self.synchronizer.now_seconds()
                )
                payload = codec.encode(
                    record.with_claim(consumer, ended).to_state(),
                    known_namespaces.CLAIM_RECORDS.schema,
                )
                write = records.Write(key, found.revision, payload)
                self.assertTrue(self.synchronizer.write([write])[0].won)
                return host, consumer
        raise AssertionError("nobody claims")

    def test_the_worker_itself_looks_and_deletes(self):
        duty = self.runtime.decisions.orphan_duty
        duty.stop()
        duty._turn_seconds = 0.05
        duty.finder.pace(orphan_finder.OrphanFinderOptions(prove_seconds=0.1, again_seconds=0.05))
        duty.finder._writers._silent_seconds = 1.0
        duty.start()
        consumer = self.died()
        self.wait(lambda: not self.is_allocated(consumer))
        self.wait(lambda: duty.figures()["orphans_deleted"] == 1.0)

    def used_by(self, host: str) -> dict[str, int]:
        return {name: used for name, used in self.used(host).items() if used}

    def mirrored(self, host: str) -> Any:
        found = self.runtime.store.snapshot().namespace("providers").get(self.nodes[host].uuid)
        return found.state["allocations"]


class NeverDeletedTest(OrphansCase):
    def stays(self, consumer: str) -> None:
        self.turns(12)
        self.assertTrue(self.is_allocated(consumer))
        self.assertEqual((0, 0), (self.finder.status.deleted, self.finder.status.lost))

    def test_a_server_that_is_to_be_built_keeps_its_allocation(self):
        for confirmed in (False, True):
            consumer = self.died(confirmed=confirmed)
            self.build_request(consumer)
            self.stays(consumer)
        self.assertEqual({}, self.kinds())

    def test_one_on_which_who_is_told_fails_keeps_nobody_from_being_looked_at(self):
        told = []

        def fail(consumer: str) -> None:
            told.append(consumer)
            raise errors.BackendUnavailable("memory", "made")

        self.finder.tell(fail)
        under_way = {self.died() for _ in range(2)}
        for consumer in under_way:
            self.build_request(consumer)
        for _ in range(2):
            with self.assertRaises(errors.BackendUnavailable):
                self.finder.turn()
            self.now += 1.0
        self.assertEqual(under_way, set(told))

    def test_a_server_in_a_cell_keeps_its_allocation(self):
        consumer = self.died("h1")
        self.server(cloud.CELL1, "h1", consumer)
        self.stays(consumer)
        self.assertEqual({}, self.kinds())

    def test_a_server_that_is_just_created_and_has_no_host_keeps_its_allocation(self):
        consumer = self.died("h1")
        self.server(cloud.CELL2, None, consumer, vm_state="building")
        self.stays(consumer)
        self.assertEqual({}, self.kinds())

    def test_a_server_on_another_host_keeps_it_and_is_told(self):
        consumer = self.died("h1")
        self.server(cloud.CELL2, "h2", consumer)
        self.stays(consumer)
        self.assertEqual({"elsewhere": 1}, self.kinds())

    def test_one_that_has_its_own_hosts_too_keeps_what_is_left_on_another_and_it_is_told(self):
        """Another scheduler placed it and knew of nothing left: Nova's code doubles up."""
        consumer = self.doubled(confirmed=False)
        self.stays(consumer)
        self.assertEqual({"elsewhere": 1}, self.kinds())
        self.assertIn(consumer, self.record(self.nodes["h1"].uuid).lapsed)

    def test_so_it_is_where_the_claim_was_confirmed_and_ends(self):
        consumer, left = self.doubled(confirmed=True), self.nodes["h1"].uuid
        self.turns()
        self.assertEqual({"elsewhere": 1}, self.kinds())
        self.runtime.decisions.claim_duty.settler.pace(QUICK)
        self.wait(lambda: consumer in self.record(left).lapsed)
        self.assertNotIn(consumer, self.record(left).claims)
        self.stays(consumer)
        self.assertEqual({"elsewhere": 1}, self.kinds())
        rest = self.ask("get", f"/allocations/{consumer}")
        del rest["allocations"][left]
        for each in rest["allocations"].values():
            each.pop("generation", None)
        self.ask("put", f"/allocations/{consumer}", rest)
        self.turns(20)
        self.assertEqual({}, self.kinds())
        self.wait(lambda: consumer not in self.record(left).lapsed)

    def test_a_server_that_may_move_is_not_elsewhere_yet(self):
        self.stays(self.doubled(confirmed=False, task_state="rebuilding"))
        self.assertEqual({}, self.kinds())

    def test_what_an_evacuation_leaves_is_its_hosts_own_nova_computes_to_end(self):
        for confirmed, status in ((True, "done"), (False, "pre-migrating")):
            consumer = self.evacuated(confirmed=confirmed, status=status)
            self.turns()
            self.assertTrue(self.is_allocated(consumer))
            self.assertEqual({}, self.kinds())

    def test_a_bare_metal_node_that_went_to_another_host_is_still_its_servers(self):
        """Nova changes the node's host alone, and not the server's."""
        for confirmed in (False, True):
            consumer = self.died("h1", confirmed=confirmed)
            self.shown(consumer, cloud.CELL1, "before", node="node-h1")
            self.stays(consumer)
        self.assertEqual({}, self.kinds())

    def test_a_migration_under_way_keeps_its_allocation(self):
        for column in ("uuid", "instance_uuid"):
            consumer = self.died()
            self.migration(cloud.CELL2, "migrating", **{column: consumer})
            self.stays(consumer)
        self.assertEqual({}, self.kinds())

    def test_a_migration_that_has_ended_keeps_it_and_is_told(self):
        consumer = self.died()
        self.migration(cloud.CELL1, "error", uuid=consumer)
        self.stays(consumer)
        self.assertEqual({"ended migration": 1}, self.kinds())

    def test_a_server_in_a_disabled_cell_keeps_its_allocation(self):
        mapping = objects.CellMapping.get_by_uuid(self.admin, cloud.CELL2)
        mapping.disabled = True
        mapping.save()
        consumer = self.died("h1")
        self.server(cloud.CELL2, "h2", consumer)
        self.stays(consumer)

    def test_a_cell_that_does_not_answer_proves_nothing_absent(self):
        consumer = self.died()
        own = consumer_presence._instances

        def broken(context: Any, consumers: Any) -> Any:
            if context.cell_uuid == cloud.CELL2:
                raise sa.exc.OperationalError("select", {}, Exception("gone away"))
            return own(context, consumers)

        with mock.patch.object(consumer_presence, "_instances", broken):
            self.stays(consumer)
        self.turns(6, 600)
        self.assertFalse(self.is_allocated(consumer))

    def test_an_api_database_that_does_not_answer_proves_nothing_absent(self):
        consumer = self.died()

        def broken(*args: Any) -> Any:
            raise sa.exc.OperationalError("select", {}, Exception("gone away"))

        with mock.patch.object(consumer_presence, "_build_requests", broken):
            self.stays(consumer)

    def test_a_cell_of_hosts_that_the_mappings_lack_proves_nothing_absent(self):
        consumer = self.died("h1")
        for cell in (cloud.CELL2, cloud.CELL0):
            with self.without_mapping(cell):
                self.stays(consumer)

    def test_a_cell_that_does_not_know_a_server_its_mapping_names_proves_nothing(self):
        consumer = self.died()
        mapping = objects.InstanceMapping(
            self.admin,
            instance_uuid=consumer,
            project_id="p",
            user_id="u",
            cell_mapping=objects.CellMapping.get_by_uuid(self.admin, cloud.CELL2),
        )
        mapping.create()
        self.stays(consumer)
        mapping.queued_for_delete = True
        mapping.save()
        self.turns(6, 600)
        self.assertFalse(self.is_allocated(consumer))

    def test_a_database_that_is_behind_for_some_seconds_is_not_believed(self):
        """The first look finds neither the build request, just destroyed, nor the server."""
        consumer = self.died()
        self.now += 100
        self.finder.turn()
        self.now += 40
        self.finder.turn()
        self.assertTrue(self.is_allocated(consumer))
        self.server(cloud.CELL1, "h1", consumer)
        self.stays(consumer)

    def test_a_server_created_between_the_looks_at_build_requests_and_cells_is_found(self):
        consumer = self.died("h2")
        request = self.build_request(consumer)
        own = consumer_presence._build_requests

        def then_built(*args: Any) -> Any:
            found = own(*args)
            if found:
                # Nova's conductor, right behind the look.
                self.server(cloud.CELL2, "h2", consumer)
                request.destroy()
            return found

        with mock.patch.object(consumer_presence, "_build_requests", then_built):
            self.stays(consumer)

    def test_a_user_who_deletes_the_build_request_while_the_scheduler_lives_changes_nothing(self):
        own = self.runtime.replicator.status().identity
        consumer = self.died(writer=own)
        self.build_request(consumer).destroy()
        self.stays(consumer)

    def test_what_a_living_scheduler_wrote_is_not_touched(self):
        for confirmed in (False, True):
            writer = self.runtime.replicator.status().identity
            self.stays(self.died(confirmed=confirmed, writer=writer))
        self.assertEqual({"absent": 2}, self.kinds())

    def test_a_scheduler_whose_beats_go_on_lives(self):
        consumer = self.died()
        publisher = self.plugin.publisher(self.synchronizer, known_namespaces.NODB)
        key = records.RecordKey(known_namespaces.SCHEDULERS.name, DEAD)
        for number in range(12):
            publisher.publish({key: lambda current, n=number: {"host": "h", "beat_at": float(n)}})
            self.wait(lambda n=number: self.beat_of(DEAD) == float(n))
            self.turns(1)
        self.assertTrue(self.is_allocated(consumer))
        self.turns()
        self.assertFalse(self.is_allocated(consumer))

    def test_a_conductor_of_a_host_where_one_beats_lives(self):
        consumer = self.died(writer=f"conductor:here:{uuid.uuid4()}")
        for _ in range(12):
            self.beat()
            self.wait(self.brought)
            self.turns(1)
        self.assertTrue(self.is_allocated(consumer))

    def test_a_conductor_that_says_by_which_name_it_claims_is_no_other_one(self):
        """One that began before the claims were taken, of the same host."""
        ended = [
            self.died(writer=f"conductor:there:{uuid.uuid4()}", confirmed=confirmed)
            for confirmed in (False, True)
        ]
        own = f"conductor:there:{uuid.uuid4()}"
        kept = [self.died(writer=own, confirmed=confirmed) for confirmed in (False, True)]
        publisher = self.plugin.publisher(self.synchronizer, known_namespaces.NODB)
        key = records.RecordKey(known_namespaces.REPORTERS.name, "there")
        for number in range(14):
            state = {
                "binary": "conductor",
                "host": "there",
                "since": 0.0,
                "beat_at": float(number),
                lapsed_claims.CLAIMS_AS: own,
            }
            publisher.publish({key: lambda current, state=state: state})
            self.wait(lambda n=number: self.beat_of(key.key, key.namespace) == float(n))
            self.turns(1)
        self.assertEqual([False, False], [self.is_allocated(each) for each in ended])
        self.assertEqual([True, True], [self.is_allocated(each) for each in kept])

    def test_somebody_who_rewrites_the_allocation_before_the_deletion_wins(self):
        consumer = self.died("h1")
        rewritten: list[int] = []

        def other(call: Callable[[], Any]) -> Any:
            self.allocate(consumer, "h1")
            rewritten.append(1)
            return call()

        with self.meanwhile(other):
            self.turns(3)
            self.assertEqual([1], rewritten)
        self.assertTrue(self.is_allocated(consumer))
        self.assertEqual((0, 1), (self.finder.status.deleted, self.finder.status.lost))
        # It is looked at again, and proved anew.
        self.turns()
        self.assertFalse(self.is_allocated(consumer))

    def test_an_allocation_rewritten_between_the_proofs_is_proved_anew(self):
        consumer = self.died("h1")
        self.turns(2)
        for _ in range(8):
            self.allocate(consumer, "h1")
            self.turns(1)
        self.assertTrue(self.is_allocated(consumer))
        self.turns()
        self.assertFalse(self.is_allocated(consumer))

    def test_an_allocation_of_other_amounts_or_elsewhere_is_anothers(self):
        other, moved = self.died("h1"), self.died("h1")
        self.allocate(other, "h1", 2)
        self.allocate(moved, "h2")
        self.turns(12)
        self.assertEqual([True, True], [self.is_allocated(each) for each in (other, moved)])

    def test_a_placement_that_does_not_answer_proves_nothing(self):
        consumer = self.died()
        with mock.patch.object(self.client, "get", unavailable):
            self.turns(12)
        self.stays_once(consumer)

    def test_an_allocation_without_any_claim_is_nobodys_to_delete(self):
        consumer = str(uuid.uuid4())
        self.allocate(consumer, "h1")
        self.stays(consumer)

    def test_nobody_asks_after_a_server_that_is_being_made(self):
        """A cloud's slow conductors are no reason to read their databases at each boot."""
        self.died(confirmed=True)
        self.turns(3, seconds=9.0)
        self.assertEqual(0, self.finder.status.looked)
        self.turns(1)
        self.assertEqual(1, self.finder.status.looked)

    def test_switched_off_it_tells_and_deletes_nothing(self):
        self.finder.pace(orphan_finder.OrphanFinderOptions(deletes=False))
        self.stays(self.died())
        self.assertEqual({"absent": 1}, self.kinds())

    def stays_once(self, consumer: str) -> None:
        self.assertTrue(self.is_allocated(consumer))
        self.assertEqual((0, 0), (self.finder.status.deleted, self.finder.status.lost))

    def beat_of(self, name: str, namespace: str = known_namespaces.SCHEDULERS.name) -> Any:
        found = self.runtime.store.snapshot().namespace(namespace).get(name)
        return None if found is None else found.state.get("beat_at")

    def brought(self) -> bool:
        """Whether the store has the reporter's last beat."""
        mine = {
            key: state["beat"] for key, state in self.states(known_namespaces.REPORTERS).items()
        }
        view = self.runtime.store.snapshot().namespace("reporters")
        return all(
            (found := view.get(key)) is not None and found.state["beat"] == beat
            for key, beat in mine.items()
        )

    @contextlib.contextmanager
    def without_mapping(self, cell: str) -> Iterator[None]:
        own = objects.CellMappingList.get_all

        def fewer(context: Any) -> Any:
            return [each for each in own(context) if each.uuid != cell]

        with mock.patch.object(objects.CellMappingList, "get_all", fewer):
            yield
