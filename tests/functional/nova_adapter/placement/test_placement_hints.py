# SPDX-License-Identifier: Apache-2.0
"""Own writes join the mirror at once; what others change is hinted at, and Nova never waits."""

from __future__ import annotations

import time
import uuid
from typing import Any

from keystoneauth1 import exceptions as ks_exc
from nova.scheduler.client import report

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.placement.mirror import (
    mirror_assembly,
    mirror_proof,
    own_writes,
    write_hints,
)
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from tests.functional.nova_adapter import cloud, mirror_cloud


class HintCase(mirror_cloud.MirrorCase):
    def setUp(self) -> None:
        super().setUp()
        self.roots = [self.provider() for _ in range(3)]
        self.kept = self.keeper()
        self.turns(self.kept)
        self.calls.clear()
        self.hinted: list[str] = []
        self.own = own_writes.OwnWrites(
            self.synchronizer,
            self.plugin.publisher(self.synchronizer, known_namespaces.PLACEMENT),
            self.store_.snapshot,
            self.hinted.extend,
        )

    def write_own(self, key: str, consumer: str | None = None) -> str:
        """Have a new consumer take 1 VCPU of a provider, by a call of this process."""
        before = self.own.before()
        consumer = self.allocate(key, consumer)
        self.own.wrote(self.placed(consumer, key=key), before)
        return consumer

    def writer(self) -> write_hints.HintWriter:
        """Return a writer of hints that the test flushes."""
        made = mirror_assembly.hint_writer(self.plugin)
        made._ensure_started = lambda: None  # type: ignore[method-assign]
        return made

    def observe(
        self,
        observer: write_hints.Observer,
        before: write_hints.Before = write_hints.nothing_known,
    ) -> None:
        """Have the writes of Nova's report client told, over the fixture's methods."""
        own = {name: getattr(report.SchedulerReportClient, name) for name in ("put", "post")}
        own["delete"] = report.SchedulerReportClient.delete
        for name, method in own.items():
            self.addCleanup(setattr, report.SchedulerReportClient, name, method)
        self.addCleanup(mirror_assembly.install, None)
        mirror_assembly.install(observer, before)

    def placed(self, *consumers: str, key: str) -> dict[str, dict[str, dict[str, int]]]:
        return {key: {consumer: {"VCPU": 1} for consumer in consumers}}


class OwnWriteTest(HintCase):
    def test_an_own_write_that_was_alone_is_proved_by_its_generation(self) -> None:
        consumers = [str(uuid.uuid4()) for _ in range(3)]
        before = self.own.before()
        self.ask(
            "post",
            "/allocations",
            self.new_consumers(dict.fromkeys(consumers, self.roots[0])),
        )
        self.own.wrote(self.placed(*consumers, key=self.roots[0]), before)
        self.own.flush()
        self.assert_mirrored()
        self.turns(self.kept, 60)
        self.turns(self.kept, 2)
        # The listing showed the very generation: nothing was read.
        self.assertEqual({"list": 1}, dict(self.calls))
        self.assertEqual([], self.hinted)

    def test_an_own_write_raced_by_a_foreign_one_is_found_and_read(self) -> None:
        self.write_own(self.roots[0])
        self.allocate(self.roots[0])
        self.own.flush()
        self.assertNotEqual(self.real(), self.mirrored())
        self.turns(self.kept, 60)
        self.assert_mirrored()

    def test_a_generation_that_schedulers_move_just_now_costs_one_look_a_little_later(
        self,
    ) -> None:
        listed = self.kept._reader.listing

        def listing(query: str = "") -> Any:
            found = listed(query)
            self.write_own(self.roots[0])
            self.own.flush()
            self.follow()
            return found

        self.kept._reader.listing = listing  # type: ignore[method-assign]
        self.write_own(self.roots[0])
        self.clock.now += 58
        self.own.flush()
        self.turns(self.kept, 2)
        self.kept._reader.listing = listed  # type: ignore[method-assign]
        self.turns(self.kept, 2)
        self.assert_mirrored()
        self.assertEqual(0, self.calls["inventories"])
        self.assertLessEqual(self.calls["allocations"], 1)

    def test_a_write_that_was_read_before_it_was_added_is_added_once(self) -> None:
        self.write_own(self.roots[0])
        self.turns(self.kept, 60)
        self.own.flush()
        self.assert_mirrored()

    def test_a_server_that_was_deleted_before_its_write_is_added_hides_nothing(self) -> None:
        """Its generation is in the record by then; a second one would be the operator's."""
        self.free(self.write_own(self.roots[0]))
        self.turns(self.kept, 60)
        self.own.flush()
        self.assertEqual([self.roots[0]], self.hinted)
        self.traits(self.roots[0], "HW_CPU_X86_AVX2")
        self.turns(self.kept, 60)
        self.assert_mirrored()

    def test_a_reading_older_than_an_own_write_does_not_undo_it(self) -> None:
        read = self.kept._reader.record

        def record(root: str, members: Any) -> Any:
            found = read(root, members)
            if root == self.roots[0]:
                self.write_own(root)
                self.own.flush()
            return found

        self.turns(self.kept)
        self.traits(self.roots[0], "HW_CPU_X86_AVX2")
        self.kept._reader.record = record  # type: ignore[method-assign]
        self.turns(self.kept, 60)
        self.kept._reader.record = read  # type: ignore[method-assign]
        self.turns(self.kept, 2)
        self.assert_mirrored()

    def test_what_cannot_be_added_is_hinted_at(self) -> None:
        child = self.provider(self.roots[0])
        self.own.wrote(self.placed("c", key=child))
        self.own.flush()
        self.assertEqual([child], self.hinted)
        crowded = own_writes.OwnWrites(
            self.synchronizer,
            self.plugin.publisher(self.synchronizer, known_namespaces.PLACEMENT),
            self.store_.snapshot,
            self.hinted.extend,
            limit=1,
        )
        for key in self.roots[:2]:
            crowded.wrote(self.placed("c", key=key))
        self.assertEqual([child, self.roots[1]], self.hinted)

    def test_own_writes_wait_for_a_back_end_that_is_down(self) -> None:
        self.write_own(self.roots[0])
        self.hub.faults.go_down()
        with self.assertRaises(errors.BackendUnavailable):
            self.own.flush()
        self.hub.faults.come_up()
        self.own.flush()
        self.assert_mirrored()


class FeedTest(HintCase):
    def setUp(self) -> None:
        super().setUp()
        self.node = self.compute_node(cloud.CELL1, "h1", uuid=self.roots[0])
        self.other = self.compute_node(cloud.CELL1, "h2", uuid=self.roots[1])
        self.sweep()
        for seconds in (0, 2, 6):
            self.turns(self.kept, seconds)
        self.calls.clear()

    def boot(self) -> Any:
        made = self.instance(cloud.CELL1, "h1")
        self.write_own(self.roots[0], made.uuid)
        self.own.flush()
        return made

    def test_a_boot_costs_no_look_at_placement_at_all(self) -> None:
        self.boot()
        self.sweep()
        for _ in range(3):
            self.turns(self.kept, 10)
        self.assertEqual({}, dict(self.calls))
        self.assert_mirrored()

    def test_a_deleted_server_costs_one_request_however_many_went_with_it(self) -> None:
        servers = [self.boot() for _ in range(3)]
        self.sweep()
        self.turns(self.kept)
        for server in servers:
            server.destroy()
        self.sweep()
        self.turns(self.kept)
        for server in servers:
            self.free(server.uuid)
        self.turns(self.kept, 1.5)
        self.assertEqual({"allocations": 1}, dict(self.calls))
        self.turns(self.kept, 30)
        self.assertEqual({"allocations": 1}, dict(self.calls))
        self.assert_mirrored()

    def test_a_compute_that_frees_late_is_looked_at_again(self) -> None:
        server = self.boot()
        self.sweep()
        self.turns(self.kept)
        server.destroy()
        self.sweep()
        self.turns(self.kept)
        self.turns(self.kept, 1.5)
        self.free(server.uuid)
        self.turns(self.kept, 5)
        self.assertEqual({"allocations": 2}, dict(self.calls))
        self.assert_mirrored()

    def test_a_service_that_is_disabled_has_its_traits_read(self) -> None:
        service = self.service(cloud.CELL1, "h1")
        self.sweep()
        self.turns(self.kept, 10)
        service.disabled = True
        service.save()
        self.traits(self.roots[0], "COMPUTE_STATUS_DISABLED")
        self.sweep()
        self.turns(self.kept)
        self.turns(self.kept, 1.5)
        self.assert_mirrored()

    def test_a_new_compute_node_is_read_before_any_sweep(self) -> None:
        key = self.provider()
        self.compute_node(cloud.CELL1, "h9", uuid=key)
        self.sweep()
        self.turns(self.kept)
        self.turns(self.kept, 1.5)
        self.assertIn(key, self.mirrored())
        self.assert_mirrored()


class ObservedTest(HintCase):
    """Nova's own methods, over a real Placement."""

    def marks(self) -> set[str]:
        return set(self.states(known_namespaces.PROVIDER_HINTS))

    def test_a_claim_for_a_new_server_is_told_as_placed(self) -> None:
        seen: list[write_hints.ObservedWrite] = []
        self.observe(seen.append, self.own.before)
        consumer = str(uuid.uuid4())
        request = {"allocations": {self.roots[0]: {"resources": {"VCPU": 1}}}}
        client = report.SchedulerReportClient(adapter=mirror_cloud.NoAdapter())
        claimed = client.claim_resources(
            self.admin, consumer, request, mirror_cloud.PROJECT, mirror_cloud.PROJECT, "1.36"
        )
        self.assertTrue(claimed)
        self.assertEqual([self.placed(consumer, key=self.roots[0])], [w.placed for w in seen])
        self.own.observe(seen[0])
        self.own.flush()
        self.assert_mirrored()

    def test_moves_and_deletions_are_hinted_at_and_found(self) -> None:
        writer = self.writer()
        self.observe(writer.observe)
        self.compute_node(cloud.CELL1, "h1", uuid=self.roots[0])
        server = self.instance(cloud.CELL1, "h1")
        self.sweep()
        consumer, migration = server.uuid, str(uuid.uuid4())
        client = report.SchedulerReportClient(adapter=mirror_cloud.NoAdapter())
        self.allocate(self.roots[0], consumer)
        self.turns(self.kept, 60)
        self.turns(self.kept, 10)
        self.assertTrue(client.move_allocations(self.admin, consumer, migration))
        writer.flush()
        self.assertIn(self.roots[0], self.marks())
        self.turns(self.kept)
        self.turns(self.kept, 1.5)
        self.turns(self.kept, 6)
        self.assert_mirrored()
        self.assertEqual(set(), self.marks())
        for force in (True, False):
            self.allocate(self.roots[0], consumer)
            self.turns(self.kept, 60)
            client.delete_allocation_for_instance(self.admin, consumer, force=force)
            writer.flush()
            self.assertIn(consumer, self.marks())
            self.turns(self.kept)
            self.turns(self.kept, 1.5)
            self.turns(self.kept, 6)
            self.assert_mirrored()

    def test_a_refused_write_is_not_told_and_one_of_unknown_outcome_is_hinted_at(self) -> None:
        seen: list[write_hints.ObservedWrite] = []
        post = report.SchedulerReportClient.post
        self.addCleanup(setattr, report.SchedulerReportClient, "post", post)

        def lost(client: Any, url: str, data: Any, **more: Any) -> Any:
            post(client, url, data, **more)
            raise ks_exc.ConnectFailure("the reply was lost")

        report.SchedulerReportClient.post = lost
        self.observe(seen.append)
        client = report.SchedulerReportClient(adapter=mirror_cloud.NoAdapter())
        consumer = str(uuid.uuid4())
        body = self.new_consumers({consumer: self.roots[0]})
        with self.assertRaises(ks_exc.ConnectFailure):
            client.post("/allocations", body, version=mirror_cloud.VERSION)
        self.assertEqual(
            [write_hints.ObservedWrite(providers=frozenset({self.roots[0]}))],
            seen,
        )
        refused = client.put(f"/allocations/{consumer}", body[consumer], version="1.36")
        self.assertEqual(409, refused.status_code)
        self.assertEqual(1, len(seen))

    def test_an_observer_that_fails_does_not_fail_novas_call(self) -> None:
        def broken(write: write_hints.ObservedWrite) -> None:
            raise RuntimeError("observer")

        self.observe(broken)
        self.allocate(self.roots[0])
        self.turns(self.kept, 60)
        self.assert_mirrored()

    def test_a_process_with_the_plugin_hints_at_its_writes_by_itself(self) -> None:
        consumer = self.allocate(self.roots[0])
        self.observe(lambda write: None)
        mirror_assembly.report_writes(self.plugin)
        self.free(consumer)
        self.allocate(self.roots[1])
        deadline = time.monotonic() + 30
        while len(self.marks()) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertEqual({consumer, self.roots[1]}, self.marks())

    def test_hints_are_bounded_and_wait_for_a_back_end_that_is_down(self) -> None:
        synchronizer = self.plugin.make_synchronizer()
        writer = write_hints.HintWriter(
            synchronizer,
            self.plugin.publisher(synchronizer, known_namespaces.NODB),
            "test",
            write_hints.HintOptions(limit=2, flush_interval_seconds=0.01),
        )
        self.hub.faults.go_down()
        writer.hint(["a", "b", "c"])
        self.addCleanup(writer.stop)
        self.assertEqual(1, writer.dropped)
        self.hub.faults.come_up()
        writer.stop()
        self.assertEqual({"a", "b"}, self.marks())


class ProofTest(HintCase):
    def full(self) -> dict[str, str]:
        """Fill all hosts and have the mirror know."""
        consumers = {self.allocate(key): key for key in self.roots for _ in range(8)}
        self.turns(self.kept, 60)
        self.calls.clear()
        return consumers

    def test_full_hosts_that_placement_calls_full_are_proved_by_one_request(self) -> None:
        self.full()
        proof = self.mirror().prove_current(self.clock.now, {"VCPU": 1})
        self.assertEqual(mirror_proof.MirrorProof(frozenset()), proof)
        self.assertEqual({"list": 1}, dict(self.calls))

    def test_room_that_no_generation_shows_is_found_read_and_published(self) -> None:
        consumers = self.full()
        freed = next(iter(consumers))
        self.free(freed)
        proof = self.mirror().prove_current(self.clock.now, {"VCPU": 1}, self.roots)
        self.assertEqual(frozenset({consumers[freed]}), proof.changed)
        self.assertTrue(proof.complete)
        self.assertEqual({"list": 1, "allocations": 1}, dict(self.calls))
        self.assert_mirrored()

    def test_a_record_that_came_between_decision_and_proof_is_decided_by_again(self) -> None:
        """Another's proof brought it: Placement agrees, but this decision did not see it."""
        asked, seen, began = self.mirror(), self.store_.snapshot(), self.clock.now
        self.aggregates(self.roots[0], str(uuid.uuid4()))
        self.clock.now += 1
        first = asked.prove_current(self.clock.now, {"VCPU": 1}, seen=seen)
        self.assertEqual(frozenset({self.roots[0]}), first.changed)
        self.follow()
        self.clock.now += 1
        # Began before the second decision, so that nothing is shared.
        second = asked.prove_current(self.clock.now, {"VCPU": 1}, seen=seen)
        self.assertEqual((frozenset({self.roots[0]}), True), (second.changed, second.complete))
        # A third thread shares the comparison of one that had seen the record.
        self.clock.now += 1
        current = self.store_.snapshot()
        self.assertFalse(asked.prove_current(self.clock.now, {"VCPU": 1}, seen=current).changed)
        shared = asked.prove_current(began, {"VCPU": 1}, seen=seen)
        self.assertEqual(frozenset({self.roots[0]}), shared.changed)

    def test_allocations_that_came_since_and_leave_room_do_not_count(self) -> None:
        seen = self.store_.snapshot()
        self.allocate(self.roots[0])
        self.turns(self.kept, 60)
        proof = self.mirror().prove_current(self.clock.now, {"VCPU": 1}, seen=seen)
        listed = frozenset(self.roots)
        expected = mirror_proof.MirrorProof(frozenset(), listed=listed, touched=True)
        self.assertEqual(expected, proof)

    def test_room_that_came_between_decision_and_proof_is_decided_by_again(self) -> None:
        consumers = self.full()
        seen = self.store_.snapshot()
        freed = next(iter(consumers))
        self.free(freed)
        self.turns(self.kept, 60)
        self.mirror().prove_current(self.clock.now, {"VCPU": 1})
        self.follow()
        proof = self.mirror().prove_current(self.clock.now, {"VCPU": 1}, seen=seen)
        self.assertEqual(frozenset({consumers[freed]}), proof.changed)

    def test_more_than_may_be_read_is_placements_to_decide(self) -> None:
        consumers = self.full()
        for consumer in consumers:
            self.free(consumer)
        proof = self.mirror(read_limit=2).prove_current(self.clock.now, {"VCPU": 1})
        self.assertEqual((False, 3), (proof.complete, len(proof.changed)))
        self.assertEqual({"list": 1}, dict(self.calls))

    def test_threads_share_a_listing_that_began_after_they_decided(self) -> None:
        self.full()
        asked = self.mirror()
        began = self.clock.now
        self.clock.now += 1
        for _ in range(3):
            asked.prove_current(began, {"VCPU": 1})
        self.assertEqual({"list": 1}, dict(self.calls))
        asked.prove_current(self.clock.now, {"VCPU": 1})
        self.assertEqual({"list": 2}, dict(self.calls))
