# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage allocations audit over Nova's own databases and a real Placement."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import uuid
from collections.abc import Iterator
from typing import Any
from unittest import mock

from nova_nodb_scheduler.cmd import application
from nova_nodb_scheduler.cmd.commands import allocations_audit
from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.nova_adapter.orphans import consumer_presence
from nova_nodb_scheduler.nova_adapter.placement.mirror import mirror_sweep
from nova_nodb_scheduler.wire import codec
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.orphans import test_orphans


class AuditCommandTest(test_orphans.OrphansCase):
    def run_command(self, *arguments: str) -> tuple[int, str]:
        """Return the exit status and what was printed."""
        command = allocations_audit.AllocationsAudit(
            application.ManageApp(),
            argparse.Namespace(config_file=[], config_dir=[]),
            "allocations audit",
        )
        # What reads nova.conf; this process has it.
        command.plugin = lambda: self.plugin
        parsed = command.get_parser("allocations audit").parse_args(arguments)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = command.take_action(parsed)
        return status, out.getvalue()

    def audit(self, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
        status, out = self.run_command(*arguments, "--json")
        return status, {each["consumer"]: each for each in json.loads(out)}

    def mirrored(self, *consumers: str) -> None:
        """Have the mirror show what is allocated."""
        names = [node.uuid for node in self.nodes.values()]
        self.runtime.decisions._mirror.hints.hint(names)

        def shown() -> set[str]:
            states = self.states(test_orphans.known_namespaces.PROVIDERS).values()
            return {name for state in states for name in state["allocations"]}

        self.wait(lambda: set(consumers) <= shown())

    def damage(self, namespace: namespaces.Namespace, name: str) -> None:
        """Have a record stand there that nobody can read."""
        key = records.RecordKey(namespace.name, name)
        client = self.plugin.make_synchronizer()
        client.open()
        self.addCleanup(client.close)
        held = client.read([key]).get(key)
        revision = 0 if held is None else held.revision
        [result] = client.write([records.Write(key, revision, b"damaged")])
        self.assertTrue(result.won)

    def test_where_every_allocation_has_its_server_there_is_nothing_and_status_0(self):
        served = str(uuid.uuid4())
        self.server(cloud.CELL1, "h1", served)
        self.allocate(served, "h1")
        building = self.died("h2")
        self.build_request(building)
        self.mirrored(served, building)
        self.assertEqual((0, {}), self.audit())
        self.assertIn("Allocations without their server", self.run_command()[1])

    def test_each_is_told_with_what_it_is_and_who_wrote_it_and_status_1(self):
        absent, buried, elsewhere, strange = (
            self.died("h1"),
            self.died("h1", confirmed=True),
            self.died("h1"),
            str(uuid.uuid4()),
        )
        self.server(cloud.CELL0, None, buried, vm_state="error")
        self.server(cloud.CELL2, "h2", elsewhere)
        self.allocate(strange, "h2")
        self.mirrored(absent, buried, elsewhere, strange)
        status, found = self.audit()
        self.assertEqual(1, status)
        self.assertEqual(
            {
                absent: ("absent", test_orphans.DEAD, True),
                buried: ("buried in cell0", test_orphans.DEAD, True),
                elsewhere: ("elsewhere", test_orphans.DEAD, False),
                strange: ("absent", "", False),
            },
            {
                name: (each["kind"], each["writer"], each["deletable"])
                for name, each in found.items()
            },
        )
        self.assertEqual(["node-h1"], found[absent]["hosts"])
        self.assertGreaterEqual(found[absent]["age_seconds"], 0.0)
        status, table = self.run_command("--wide")
        self.assertEqual(1, status)
        for told in (absent, "node-h1", "VCPU 1", "buried in cell0", "no claim", "yes"):
            self.assertIn(told, table)

    def test_what_is_left_on_one_host_of_a_server_that_stands_on_another_is_told(self):
        """Whether anybody remembers a claim of it, or memory knows the server."""
        remembered, evacuated = self.doubled(confirmed=False), self.evacuated(confirmed=True)
        unclaimed, moving = str(uuid.uuid4()), str(uuid.uuid4())
        for consumer, task_state in ((unclaimed, None), (moving, "migrating")):
            self.allocate(consumer, "h1")
            self.shown(consumer, task_state=task_state)
        self.mirrored(remembered, evacuated, unclaimed, moving)
        status, found = self.audit()
        self.assertEqual(1, status)
        self.assertEqual(
            {remembered: "elsewhere", unclaimed: "elsewhere"},
            {name: each["kind"] for name, each in found.items()},
        )

    def test_a_record_that_nobody_can_read_is_left_out_and_stops_no_audit(self):
        absent = self.died("h1")
        self.mirrored(absent)
        self.damage(test_orphans.known_namespaces.INSTANCES, f"{uuid.uuid4()}@{cloud.CELL1}")
        status, found = self.audit()
        self.assertEqual((1, {absent}), (status, found.keys()))

    def test_whose_heartbeat_cannot_be_read_counts_as_living(self):
        scheduler, conductor = f"{uuid.uuid4()}:unreadable", f"conductor:c1:{uuid.uuid4()}"
        absent = self.died("h1", writer=scheduler)
        of_conductor = self.died("h1", writer=conductor)
        self.mirrored(absent, of_conductor)
        self.damage(test_orphans.known_namespaces.SCHEDULERS, scheduler)
        self.damage(test_orphans.known_namespaces.REPORTERS, str(uuid.uuid4()))
        status, found = self.audit("--delete", "--wait", "0")
        self.assertEqual(
            (1, {absent: ("absent", False, ""), of_conductor: ("absent", False, "")}),
            (
                status,
                {
                    name: (each["kind"], each["deletable"], each["outcome"])
                    for name, each in found.items()
                },
            ),
        )

    def test_a_server_on_a_node_that_cannot_be_read_is_not_said_to_be_elsewhere(self):
        served = self.died("h1")
        self.server(cloud.CELL1, "h1", served)
        self.mirrored(served)
        self.damage(test_orphans.known_namespaces.COMPUTE_NODES, self.nodes["h1"].uuid)
        status, found = self.audit()
        self.assertEqual((1, {served}), (status, found.keys()))
        self.assertEqual("not proved", found[served]["kind"])
        self.assertIn("cannot be read", found[served]["detail"])

    def test_a_provider_or_claims_that_cannot_be_read_are_told_of_and_no_clean_bill(self):
        names = [str(uuid.uuid4()) for _ in range(2)]
        self.assertEqual((0, {}), self.audit())
        self.damage(test_orphans.known_namespaces.PROVIDERS, names[0])
        self.damage(test_orphans.known_namespaces.CLAIM_RECORDS, names[1])
        told = io.StringIO()
        with mock.patch.object(allocations_audit.guard, "say", told.write):
            status, found = self.audit()
        self.assertEqual((1, {}), (status, found))
        for name in names:
            self.assertIn(name, told.getvalue())

    def rewrite(self, namespace: namespaces.Namespace, name: str, **changes: Any) -> None:
        """Have a record say something else."""
        key = records.RecordKey(namespace.name, name)
        client = self.plugin.make_synchronizer()
        client.open()
        self.addCleanup(client.close)
        held = client.read([key])[key]
        state = {**codec.decode(held.payload).state, **changes}
        payload = codec.encode(state, namespace.schema)
        [result] = client.write([records.Write(key, held.revision, payload)])
        self.assertTrue(result.won)

    def test_a_mirror_that_nobody_compared_is_no_clean_bill(self):
        served, strange, apart = (str(uuid.uuid4()) for _ in range(3))
        self.server(cloud.CELL1, "h1", served)
        self.allocate(served, "h1")
        self.allocate(strange, "h2")
        # No node's: of a compute that is gone.
        self.provider(apart, VCPU=4, MEMORY_MB=16384, DISK_GB=100)
        gone = str(uuid.uuid4())
        self.nodes["gone"] = mock.Mock(uuid=apart)
        self.allocate(gone, "gone")
        for changes in ({"swept_from": 1.0}, {"epoch": "a former one"}):
            self.rewrite(test_orphans.known_namespaces.MIRRORS, mirror_sweep.PLACEMENT, **changes)
            status, found = self.audit()
            self.assertEqual((1, {strange, gone}), (status, found.keys()))
            self.assertEqual([apart], found[gone]["hosts"])

    def test_what_stands_on_a_tree_that_cannot_be_mirrored_is_found(self):
        strange = str(uuid.uuid4())
        self.allocate(strange, "h1")
        self.mirrored(strange)
        self.rewrite(
            test_orphans.known_namespaces.PROVIDERS,
            self.nodes["h1"].uuid,
            broken="made",
            allocations={},
        )
        status, found = self.audit()
        self.assertEqual((1, {strange}), (status, found.keys()))

    def test_it_deletes_what_is_absent_and_of_the_dead_alone(self):
        own = self.runtime.replicator.status().identity
        absent, of_living, strange = self.died("h1"), self.died("h1", writer=own), str(uuid.uuid4())
        self.allocate(strange, "h2")
        self.mirrored(absent, of_living, strange)
        status, found = self.audit("--delete", "--wait", "0")
        self.assertEqual((1, "deleted"), (status, found[absent]["outcome"]))
        self.assertEqual(
            [False, True, True],
            [self.is_allocated(each) for each in (absent, of_living, strange)],
        )
        self.assertEqual({of_living, strange}, set(self.audit()[1]))

    def test_when_all_of_them_are_deleted_the_status_is_0(self):
        consumer = self.died("h1")
        status, found = self.audit("--delete", "--wait", "0")
        self.assertEqual((0, "deleted"), (status, found[consumer]["outcome"]))
        self.assertEqual((0, {}), self.audit())

    def test_a_server_that_came_between_the_proofs_keeps_its_allocation(self):
        consumer = self.died("h1")
        with self.waited(lambda: self.server(cloud.CELL1, "h1", consumer)):
            status, found = self.audit("--delete")
        self.assertTrue(self.is_allocated(consumer))
        self.assertEqual(
            (1, "left: changed meanwhile, served"), (status, found[consumer]["outcome"])
        )

    def test_an_allocation_written_anew_between_the_proofs_is_left(self):
        consumer = self.died("h1")
        with self.waited(lambda: self.allocate(consumer, "h1")):
            self.audit("--delete")
        self.assertTrue(self.is_allocated(consumer))

    def test_a_database_or_placement_that_does_not_answer_is_no_clean_bill(self):
        consumer = self.died("h1")

        def broken(*args: Any) -> Any:
            raise RuntimeError("gone away")

        with mock.patch.object(consumer_presence, "_instances", broken):
            status, found = self.audit("--delete", "--wait", "0")
        self.assertEqual((1, "not proved"), (status, found[consumer]["kind"]))
        self.assertIn("gone away", found[consumer]["detail"])
        asked = self.client.get

        def dying(url: str, *args: Any, **more: Any) -> Any:
            # It answers whether it is there, and then no more.
            answers = (
                asked if url.endswith(uuid.UUID(int=0).hex[-12:]) else test_orphans.unavailable
            )
            return answers(url, *args, **more)

        with mock.patch.object(self.client, "get", dying):
            status, found = self.audit("--delete", "--wait", "0")
        self.assertEqual((1, "not proved"), (status, found[consumer]["kind"]))
        self.assertTrue(self.is_allocated(consumer))

    def test_it_reads_alone_without_being_told_to_delete(self):
        consumer = self.died("h1")
        before = self.generation(consumer)
        self.audit()
        self.assertEqual(before, self.generation(consumer))

    @contextlib.contextmanager
    def waited(self, happens: Any) -> Iterator[None]:
        """Have something happen while the command waits between its proofs."""
        with mock.patch.object(
            allocations_audit.AllocationsAudit, "pause", lambda command, seconds: happens()
        ):
            yield
