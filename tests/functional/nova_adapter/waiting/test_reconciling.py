# SPDX-License-Identifier: Apache-2.0
"""What users deleted, and records that nobody can read, leave the queue."""

from __future__ import annotations

import uuid

import attrs
from nova import exception, objects

from nova_nodb_scheduler.model import pending, records
from nova_nodb_scheduler.nova_adapter.orphans import orphan_finder
from nova_nodb_scheduler.nova_adapter.waiting.waking import queue_reconciler
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.pending import pending_ledger
from nova_nodb_scheduler.wire import codec
from tests.functional.nova_adapter.waiting import queue_cloud

PENDING = known_namespaces.PENDING


class ReconcilingTest(queue_cloud.QueueCase):
    def setUp(self):
        super().setUp()
        self.patch(queue_reconciler, "_YOUNG_SECONDS", 0.0)
        self.fill()

    def build_request(self, server):
        made = objects.BuildRequest(
            self.admin,
            instance_uuid=server,
            project_id="project",
            instance=objects.Instance(uuid=server, project_id="project"),
            block_device_mappings=objects.BlockDeviceMappingList(objects=[]),
            tags=objects.TagList(objects=[]),
        )
        made.create()
        return made

    def waits(self, **known):
        key = self.conductor.ask(**known)
        request = self.request(key)
        self.round()
        return key, {server: self.build_request(server) for server in request.servers}

    def look(self, times=2):
        for _ in range(times):
            self.queue.reconciler.look()
        self.follow()
        self.turn()

    def holds_room(self, servers=1):
        """Have a scheduler allocate, and answer when its conductor has given up already."""
        filled = self.placed()
        self.delete(*filled[:servers])
        for each in filled[:servers]:
            self.wait(lambda each=each: self.forgotten(each))
        choose = self.choose

        def unheard(request, fields):
            choose(request, fields)
            raise exception.NoValidHost(reason="no scheduler answered")

        self.choose = unheard
        key, _builds = self.waits(servers=servers)
        self.choose = choose
        self.assertEqual([key], self.waiting())
        finder = self.runtime.decisions.orphan_duty.finder
        finder.pace(orphan_finder.OrphanFinderOptions(first_seconds=0.0))
        return key, finder

    def test_one_that_holds_room_itself_is_tried_anew(self):
        key, finder = self.holds_room()
        for _ in range(3):
            self.turn()
        self.assertEqual([], self.conductor.told)
        finder.turn()
        self.assertEqual([(key, 2)], self.conductor.told)
        # Who is being tried is left alone, whatever it holds.
        finder.turn()
        self.assertEqual([(key, 2)], self.conductor.told)

    def test_one_of_several_servers_is_known_by_any_of_them(self):
        key, finder = self.holds_room(servers=2)
        finder.turn()
        self.assertEqual([(key, 2)], self.conductor.told)

    def test_one_that_was_sent_holds_its_room_by_right(self):
        key, finder = self.holds_room(servers=2)
        (sent,) = set(self.request(key).servers) - {key}
        self.ledger._step(key, lambda standing: attrs.evolve(standing, sent=(sent,)))
        store = self.runtime.store
        self.wait(lambda: store.snapshot().namespace("pending").digest(key).sent == (sent,))
        self.follow()
        self.client.delete(f"/allocations/{key}")
        finder.turn()
        self.assertLess(0, finder.status.looked)
        self.assertEqual([], self.conductor.told)

    def test_a_server_that_is_built_and_not_seen_yet_is_nobody_who_waits(self):
        filled = self.placed()
        for server in filled:
            self.build_request(server)
        finder = self.runtime.decisions.orphan_duty.finder
        finder.pace(orphan_finder.OrphanFinderOptions(first_seconds=0.0))
        finder.turn()
        self.assertLess(0, finder.status.looked)
        self.assertEqual([], self.conductor.told)

    def test_a_server_that_was_deleted_is_taken_out_in_the_second_look(self):
        key, builds = self.waits()
        self.look()
        self.assertEqual([key], self.waiting())
        builds[key].destroy()
        self.look(1)
        self.assertEqual([key], self.waiting())
        self.look(1)
        self.assertIsNone(self.request(key))
        self.assertEqual(0, self.queue.followed.queues.backlog.total().requests)

    def test_of_several_servers_the_others_go_on_waiting(self):
        key, builds = self.waits(servers=2)
        gone = next(server for server in builds if server != key)
        builds[gone].destroy()
        self.look()
        self.assertEqual((key,), self.request(key).servers)

    def test_what_was_sent_of_one_whose_others_wait_is_not_taken_for_deleted(self):
        key, builds = self.waits(servers=2)
        sent = next(server for server in builds if server != key)
        self.ledger._step(key, lambda standing: attrs.evolve(standing, sent=(sent,)))
        self.follow()
        self.turn()
        builds[sent].destroy()
        self.look()
        self.assertEqual(frozenset(), self.queue.reconciler._missing)
        self.assertEqual(set(builds), set(self.request(key).servers))

    def test_a_build_request_that_only_seemed_to_be_gone_does_not_matter(self):
        key, builds = self.waits()
        builds[key].destroy()
        self.look(1)
        self.build_request(key)
        self.look(1)
        self.assertEqual([key], self.waiting())

    def map_to_cell(self, server):
        cell = objects.CellMapping(
            self.admin,
            uuid=str(uuid.uuid4()),
            name="far",
            transport_url="none://",
            database_connection="sqlite://",
        )
        cell.create()
        mapping = objects.InstanceMapping(
            self.admin, instance_uuid=server, project_id="project", cell_mapping=cell
        )
        mapping.queued_for_delete = False
        mapping.create()
        return mapping

    def test_one_that_stands_mapped_in_a_cell_goes_on_waiting_until_it_is_deleted_there(self):
        key, builds = self.waits()
        mapping = self.map_to_cell(key)
        builds[key].destroy()
        name = pending_ledger.record_key(key)
        record = self.synchronizer.read([name])[name]
        standing = attrs.evolve(self.request(key), mapped=(key,))
        text = codec.encode(standing.to_state(), PENDING.schema, record=str(name))
        self.synchronizer.write([records.Write(name, record.revision, text)])
        self.round()
        self.look()
        self.assertEqual((key,), self.request(key).servers)
        mapping.queued_for_delete = True
        mapping.save()
        self.look()
        self.assertIsNone(self.request(key))

    def break_record(self, key, payload=None, **changes):
        """Leave a record that is none of a request, or with some fields that are not."""
        name = pending_ledger.record_key(key)
        record = self.synchronizer.read([name])[name]
        if payload is None:
            state = {**codec.decode_state(record.payload), **changes}
            payload = codec.encode(state, PENDING.schema)
        [result] = self.synchronizer.write([records.Write(name, record.revision, payload)])
        self.assertTrue(result.won)
        self.follow()
        self.round()

    def test_a_record_that_cannot_be_read_is_counted_and_ends_when_its_time_is_over(self):
        key, _ = self.waits(wait_seconds=1.0)
        self.break_record(key, queue=7, deadline_at=self.ledger.now_seconds() + 1.5)
        self.assertEqual(1, self.queue._figures().unreadable)
        self.look()
        self.assertEqual([], self.conductor.ended)
        self.pause(1.6)
        self.look()
        self.until(lambda: self.conductor.ended)
        self.assertEqual([(key, pending.Purpose.EXPIRE)], self.conductor.ended)
        self.assertEqual(0, self.queue._figures().unreadable)

    def test_one_without_a_deadline_that_is_believed_ends_by_its_build_request(self):
        for broken in ({"deadline_at": 1e18, "queue": 7}, {"deadline_at": None}):
            key, _ = self.waits()
            self.break_record(key, **broken)
            self.look()
            self.assertEqual([], self.conductor.ended)
            parts = self.queue.reconciler._parts
            self.patch(self.queue.reconciler, "_parts", attrs.evolve(parts, max_wait_seconds=0.0))
            self.look()
            self.until(lambda: self.conductor.ended)
            self.assertEqual([(key, pending.Purpose.EXPIRE)], self.conductor.ended)
            self.conductor.ended.clear()
            self.queue.reconciler._parts = parts

    def test_bytes_that_are_no_record_end_likewise(self):
        key, _ = self.waits()
        self.break_record(key, payload=b"?")
        self.assertEqual(1, self.queue._figures().unreadable)
        self.patch(
            self.queue.reconciler,
            "_parts",
            attrs.evolve(self.queue.reconciler._parts, max_wait_seconds=0.0),
        )
        self.look()
        self.until(lambda: self.conductor.ended)
        self.assertEqual([(key, pending.Purpose.EXPIRE)], self.conductor.ended)

    def test_one_whose_server_is_gone_is_removed(self):
        key, builds = self.waits()
        self.break_record(key, payload=b"?")
        builds[key].destroy()
        self.look()
        self.assertIsNone(self.request(key))

    def test_one_whose_first_server_alone_is_gone_ends_for_its_others(self):
        for broken in ({"queue": 7, "deadline_at": 1.0}, {"payload": b"?"}):
            key, builds = self.waits(servers=2)
            self.break_record(key, **broken)
            builds[key].destroy()
            parts = self.queue.reconciler._parts
            self.patch(self.queue.reconciler, "_parts", attrs.evolve(parts, max_wait_seconds=0.0))
            self.queue.reconciler.look()
            self.assertIsNotNone(self.request(key), broken)
            self.assertEqual(set(builds), set(self.request(key).servers), broken)
            self.until(lambda: self.conductor.ended)
            self.assertEqual([(key, pending.Purpose.EXPIRE)], self.conductor.ended)
            self.conductor.ended.clear()

    def test_what_may_stand_in_cells_of_one_that_cannot_be_read_is_looked_for_there(self):
        key, _ = self.waits()
        self.break_record(key, queue=7, deadline_at=1.0, state="building")
        self.queue.reconciler.look()
        self.conductor.deaf = True
        self.until(lambda: self.conductor.told)
        granted = self.request(key).grant
        self.assertIs(pending.Purpose.EXPIRE, granted.purpose)
        self.assertIsNot(pending.PendingState.WAITING, granted.after)

    def test_one_that_stands_mapped_in_a_cell_counts_as_sent_and_is_not_forgotten(self):
        key, builds = self.waits()
        self.map_to_cell(key)
        builds[key].destroy()
        self.break_record(key, queue=7, deadline_at=1.0, state="building")
        self.queue.reconciler.look()
        self.assertIsNotNone(self.request(key))
        self.assertEqual((key,), self.request(key).sent)

    def test_one_that_broke_between_two_looks_stops_no_look(self):
        key, builds = self.waits()
        other, others = self.waits(queue="other")
        builds[key].destroy()
        others[other].destroy()
        self.look(1)
        newer = codec.encode({"servers": [key]}, type(PENDING.schema)(9, 0))
        self.break_record(key, payload=newer)
        self.look(1)
        self.assertIsNone(self.request(other))

    def test_a_record_of_a_newer_release_is_left_to_that_one(self):
        key, _ = self.waits()
        newer = codec.encode({"servers": [key]}, type(PENDING.schema)(9, 0))
        self.break_record(key, payload=newer)
        self.patch(
            self.queue.reconciler,
            "_parts",
            attrs.evolve(self.queue.reconciler._parts, max_wait_seconds=0.0),
        )
        self.look()
        name = pending_ledger.record_key(key)
        self.assertEqual(newer, self.synchronizer.read([name])[name].payload)

    def test_one_scheduler_looks_and_another_goes_on(self):
        _manager, other = self.scheduler("scheduler-2")
        own = self.queue.reconciler._lease.acquire()
        self.assertEqual(queue_reconciler.LEASE, own.name)
        self.assertNotIsInstance(other.queue.reconciler._lease.acquire(), type(own))

    def test_a_payload_without_a_request_is_removed(self):
        name = pending_ledger.payload_key(str(uuid.uuid4()))
        payload = codec.encode({"payload": "x", "owner": "y", "at": 1.0}, PENDING.schema)
        self.synchronizer.write([records.Write(name, 0, payload)])
        self.look(1)
        self.assertTrue(self.synchronizer.read([name])[name].deleted)
