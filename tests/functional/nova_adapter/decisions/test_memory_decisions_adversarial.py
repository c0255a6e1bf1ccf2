# SPDX-License-Identifier: Apache-2.0
"""What goes wrong between a choice and its answer leaves nothing behind."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import attrs
from keystoneauth1 import exceptions as keystone
from nova import exception, objects

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.placement.allocations import placement_replies
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.pipeline import planning
from nova_nodb_scheduler.store import store_snapshot
from nova_nodb_scheduler.testing import patience, single_claims
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.decisions import test_memory_decisions


class NoAnswer(Exception):
    pass


class InterruptedDecisionsTest(test_memory_decisions.MemoryDecisionsCase):
    def test_a_claim_given_up_leaves_nothing_of_the_other_servers(self):
        """The first of two is rejected, the second one is written."""
        writer = self.runtime.decisions._writer
        own = writer.write

        def first_rejected(servers, *args, **kwargs):
            written = own(servers[1:], *args, **kwargs)
            rejected = placement_replies.AllocationRejected(None, "not asked")
            return {servers[0].consumer: rejected, **written}

        with mock.patch.object(writer, "write", first_rejected):
            uuids, _chosen = self.select(servers=2)
        # What Nova's own way then chose is there; nothing of ours is.
        self.assertEqual({"claims not answered in time": 1}, self.runtime.candidates())
        self.assertEqual(2, self.used("h1")["VCPU"] + self.used("h2")["VCPU"])
        # The back end does answer: other schedulers see what was chosen.
        ledger = single_claims.stranger(self.runtime.synchronizer)
        held = [ledger.read(node.uuid).claims for node in self.nodes.values()]
        self.assertEqual(set(uuids), set().union(*held))
        self.assertEqual(0, len(self.runtime.decisions.reservations))

    def test_a_fault_while_the_answer_is_made_takes_the_allocations_back(self):
        decider = "nova_nodb_scheduler.nova_adapter.conversion.request_conversion.selection"
        with mock.patch(decider, autospec=True, side_effect=ZeroDivisionError):
            _uuids, chosen = self.select(servers=2)
        self.assertEqual(2, len(chosen))
        self.assertEqual({"fault of the plugin": 1}, self.runtime.candidates())
        self.assertEqual(2, self.used("h1")["VCPU"] + self.used("h2")["VCPU"])
        self.assertEqual(0, len(self.runtime.decisions.reservations))

    def test_a_group_is_as_it_was_for_who_decides_after_a_failed_choice(self):
        """Else Nova's own way would see servers of the group where there are none."""
        group = objects.InstanceGroup(
            uuid=str(uuid.uuid4()),
            policy="anti-affinity",
            policies=["anti-affinity"],
            members=[],
            hosts=[],
            rules={},
        )
        making = "nova_nodb_scheduler.nova_adapter.conversion.request_conversion.selection"
        own = self.client.get_allocation_candidates
        seen = []

        def asked(*args: Any) -> Any:
            seen.append(list(group.hosts))
            return own(*args)

        with (
            mock.patch(making, autospec=True, side_effect=ZeroDivisionError),
            mock.patch.object(self.client, "get_allocation_candidates", asked),
        ):
            self.select(servers=2, instance_group=group)
        self.assertEqual([[]], seen)

    def test_a_store_that_is_built_anew_decides_nothing(self):
        """Between the view of a request and its plan: hosts and servers are missing."""
        keeper = self.runtime.decisions.frame_keeper
        rebuild = self.runtime.replicator._rebuild
        own = keeper.catch_up

        def meanwhile(now_seconds: float) -> Any:
            rebuild.generation += 2
            return own(now_seconds)

        with mock.patch.object(keeper, "catch_up", meanwhile):
            self.select()
        self.assertEqual({"states not proved": 1}, self.runtime.candidates())
        self.select()
        self.assertEqual({"states not proved": 1, "memory": 1}, self.runtime.candidates())

    def test_pinned_cpus_beside_a_second_group_cost_what_they_cost_stock_nova(self):
        """Two questions, for PCPU and for VCPU instead, and neither asked again."""
        with self.assertRaises(exception.NoValidHost):
            self.select(extra_specs={"hw:cpu_policy": "dedicated", "resources1:VGPU": "1"})
        self.assertEqual(2, self.calls["get allocation_candidates"])

    def test_a_fault_of_the_proof_sends_the_request_to_placement(self):
        mirror = self.runtime.decisions._mirror.mirror
        with (
            mock.patch.object(mirror, "prove_current", autospec=True, side_effect=KeyError("x")),
            self.assertRaises(exception.NoValidHost),
        ):
            self.select(vcpus=5)
        self.assertEqual({"fault of the plugin": 1}, self.runtime.candidates())
        self.assertEqual(1, self.calls["get allocation_candidates"])

    def allocated(self, host: str, consumer: str) -> None:
        body = {
            "allocations": {self.nodes[host].uuid: {"resources": {"VCPU": 1}}},
            "project_id": test_memory_decisions.PROJECT,
            "user_id": test_memory_decisions.PROJECT,
            "consumer_generation": None,
        }
        self.ask("put", f"/allocations/{consumer}", body)

    def test_a_host_written_to_while_it_is_read_again_is_decided_by_what_is_claimed(self):
        """Room came free unseen, and another request takes some of it as it is found."""
        placed = [self.select() for _ in range(6)]
        freed = [one for [one], chosen in placed if chosen[0][0].service_host == "h1"][:2]
        own_writes = self.runtime.decisions._mirror.own_writes
        patience.wait_until(lambda: not len(own_writes), 20.0, lambda: "not published", 0.01)
        for consumer in freed:
            self.client.delete(f"/allocations/{consumer}")
        node, rival = self.nodes["h1"].uuid, str(uuid.uuid4())
        own, read = self.client.get, []

        def meanwhile(url: str, *args: Any, **kwargs: Any) -> Any:
            answer = own(url, *args, **kwargs)
            if url == f"/resource_providers/{node}/allocations" and not read:
                read.append(url)
                before = own_writes.before()
                self.allocated("h1", rival)
                own_writes.wrote({node: {rival: {"VCPU": 1}}}, before)
                own_writes.flush()
            return answer

        with mock.patch.object(self.client, "get", meanwhile):
            _, chosen = self.select()
        self.assertEqual([f"/resource_providers/{node}/allocations"], read)
        self.assertEqual("h1", chosen[0][0].service_host)
        self.assertEqual(4, self.used("h1")["VCPU"])
        self.assertEqual({"memory": 7}, self.runtime.candidates())

    def evacuated(self, source: str, ignored: list[str]) -> tuple[str, Any]:
        """Have a server with allocations on its host fail on its way to another."""
        server = str(uuid.uuid4())
        body = {
            "allocations": {self.nodes[source].uuid: {"resources": {"VCPU": 1}}},
            "project_id": test_memory_decisions.PROJECT,
            "user_id": test_memory_decisions.PROJECT,
            "consumer_generation": None,
        }
        self.ask("put", f"/allocations/{server}", body)
        spec = self.spec([server], ignore_hosts=ignored)
        self.known(lambda consumer: consumer == server)
        return server, spec

    def known(self, tell: Callable[[str], bool]) -> None:
        """Have the decider take some servers for known."""
        decider = self.runtime.decisions.decider
        decider.parts = attrs.evolve(
            decider.parts, places=lambda consumer: [("", "")] if tell(consumer) else []
        )

    def test_a_server_that_fails_to_move_keeps_what_it_has_where_it_runs(self):
        server, spec = self.evacuated("h1", ["h1"])
        self.beat()
        making = "nova_nodb_scheduler.nova_adapter.conversion.request_conversion.selection"
        broken = exception.NovaException("the answer fails")
        with mock.patch(making, autospec=True, side_effect=broken):
            self.assertRaises(
                exception.NovaException,
                self.manager.select_destinations,
                self.admin,
                spec_obj=spec,
                instance_uuids=[server],
                return_objects=True,
                return_alternates=False,
            )
        held = self.ask("get", f"/allocations/{server}")["allocations"]
        self.assertEqual([self.nodes["h1"].uuid], list(held))

    def test_so_does_one_that_the_store_does_not_know(self):
        server, spec = self.evacuated("h1", ["h1"])
        self.known(lambda consumer: False)
        self.beat()
        making = "nova_nodb_scheduler.nova_adapter.conversion.request_conversion.selection"
        broken = exception.NovaException("the answer fails")
        with mock.patch(making, autospec=True, side_effect=broken):
            self.assertRaises(
                exception.NovaException,
                self.manager.select_destinations,
                self.admin,
                spec_obj=spec,
                instance_uuids=[server],
                return_objects=True,
                return_alternates=False,
            )
        held = self.ask("get", f"/allocations/{server}")["allocations"]
        self.assertEqual([self.nodes["h1"].uuid], list(held))

    def test_what_a_failed_answer_could_not_take_back_is_ended_though_nobody_goes_on(self):
        decider = self.runtime.decisions.decider
        decider._deadline_seconds = 0.5
        server, own = str(uuid.uuid4()), self.client.post
        until, sent = time.monotonic() + 1.0, []

        def post(url: str, *args: Any, **kwargs: Any) -> Any:
            sent.append(url)
            if len(sent) > 1 and time.monotonic() < until:
                raise keystone.ConnectTimeout
            return own(url, *args, **kwargs)

        making = "nova_nodb_scheduler.nova_adapter.conversion.request_conversion.selection"
        broken = exception.NovaException("the answer fails")
        self.beat()
        with (
            mock.patch(making, autospec=True, side_effect=broken),
            mock.patch.object(self.client, "post", post),
        ):
            self.assertRaisesRegex(
                exception.NovaException,
                "the answer fails",
                self.manager.select_destinations,
                self.admin,
                spec_obj=self.spec([server]),
                instance_uuids=[server],
                return_objects=True,
                return_alternates=False,
            )
        self.assertEqual({}, self.ask("get", f"/allocations/{server}")["allocations"])
        ledger = single_claims.stranger(self.runtime.synchronizer)
        held = [ledger.read(node.uuid).claims for node in self.nodes.values()]
        self.assertEqual(set(), set().union(*held))

    def test_a_move_that_fails_takes_back_what_was_written_for_others(self):
        """Servers of one request, one of which turns out to have allocations already."""
        server, spec = self.evacuated("h1", [])
        other = str(uuid.uuid4())
        failed = exception.AllocationUpdateFailed(consumer_uuid=server, error="it changed")
        with mock.patch.object(self.client, "claim_resources", autospec=True, side_effect=failed):
            self.beat()
            self.assertRaises(
                exception.AllocationUpdateFailed,
                self.manager.select_destinations,
                self.admin,
                spec_obj=spec,
                instance_uuids=[other, server],
                return_objects=True,
                return_alternates=False,
            )
        self.assertEqual({}, self.ask("get", f"/allocations/{other}")["allocations"])
        self.assertEqual(0, len(self.runtime.decisions.reservations))

    def test_a_fault_at_the_second_server_gives_the_room_of_the_first_back(self):
        held = self.runtime.decisions.parts.ways.reservations
        own = held.reserve
        calls = []

        def second_fails(*args):
            calls.append(args)
            if len(calls) == 2:
                raise NoAnswer
            return own(*args)

        with mock.patch.object(held, "reserve", second_fails):
            self.select(servers=2)
        self.assertEqual({"fault of the plugin": 1}, self.runtime.candidates())
        self.assertEqual(0, len(self.runtime.decisions.reservations))


class RebuiltStoreCase(test_memory_decisions.MemoryDecisionsCase):
    """A store that is built anew while a plan is in flight; a server stands on h1."""

    FILTERS = ("ComputeFilter", "DifferentHostFilter")

    def setUp(self) -> None:
        super().setUp()
        self.standing = self.instance(cloud.CELL1, "h1").uuid
        self.reporter.flush()
        self.settle()
        decisions = self.runtime.decisions
        patience.wait_until(
            lambda: decisions.parts.places(self.standing),
            test_memory_decisions.WAIT_SECONDS,
            lambda: "the server did not come",
            0.05,
        )

    def begin(self) -> None:
        self.override("enabled_filters", list(self.FILTERS), "filter_scheduler")
        super().begin()

    @contextlib.contextmanager
    def built_anew(self) -> Iterator[None]:
        """Build the store anew in another epoch; inside, no instance has been read yet."""
        store, rebuild = self.runtime.store, self.runtime.replicator._rebuild
        former = store.snapshot()
        instances = known_namespaces.INSTANCES.name
        rebuild.generation += 1
        store.begin_epoch()
        for name in former.namespaces():
            if name != instances:
                self.read(former.namespace(name))
        yield
        self.read(former.namespace(instances))
        rebuild.generation += 1

    def read(self, view: store_snapshot.NamespaceView) -> None:
        name, store = view.namespace.name, self.runtime.store
        for key in view.keys():  # noqa: SIM118
            stored = view.get(key)
            record = records.Record(
                records.RecordKey(name, key), stored.revision, stored.version, stored.payload
            )
            store.apply(records.Change(record, stored.state))

    def another_request_looks(self) -> None:
        """It was judged before, and finds out a moment later that it may not decide."""
        self.runtime.decisions.frame_keeper.catch_up(time.time())

    def select_elsewhere(self) -> Any:
        """Ask for a host that the server does not stand on."""
        return self.select(scheduler_hints={"different_host": [self.standing]})


class HalfBuiltPlanTest(RebuiltStoreCase):
    HOSTS = ((cloud.CELL1, "h1", 4, {}),)

    def test_a_plan_that_looked_at_half_of_it_decides_nothing(self):
        engine = self.runtime.decisions.engine
        own, looked = engine.plan, []

        def plan(*args: Any, **kwargs: Any) -> Any:
            if looked:
                return own(*args, **kwargs)
            looked.append(True)
            with self.built_anew():
                self.another_request_looks()
                return own(*args, **kwargs)

        with (
            mock.patch.object(engine, "plan", plan),
            self.assertRaises(exception.NoValidHost),
        ):
            self.select_elsewhere()
        self.assertEqual([True], looked)
        self.assertEqual({"states not proved": 1}, self.runtime.candidates())


class HalfBuiltAlternatesTest(RebuiltStoreCase):
    """The first hosts of a plan hold no other one of the cell: alternates are looked for."""

    HOSTS = (
        (cloud.CELL1, "h1", 4, {}),
        (cloud.CELL1, "h2", 4, {"free_ram_mb": 16000}),
        *((cloud.CELL2, f"h{number}", 4, {"free_ram_mb": 8000}) for number in range(3, 7)),
    )

    def test_none_are_given_that_were_looked_for_in_half_of_it(self):
        own, looked = planning.Plan.alternates, []

        def alternates(*args: Any, **kwargs: Any) -> Any:
            with self.built_anew():
                self.another_request_looks()
                looked.append(own(*args, **kwargs))
            return looked[-1]

        with mock.patch.object(planning.Plan, "alternates", alternates):
            _uuids, chosen = self.select_elsewhere()
        # Or nothing was looked for.
        self.assertEqual(["h1"], [each.host for [found] in looked for each in found])
        self.assertEqual([["h2"]], [[each.service_host for each in of] for of in chosen])
        self.assertEqual({"memory": 1}, self.runtime.candidates())
