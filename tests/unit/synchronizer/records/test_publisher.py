# SPDX-License-Identifier: Apache-2.0
"""A publisher writes what its updates compute, whoever else writes meanwhile."""

import unittest

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.records import publisher
from nova_nodb_scheduler.wire import codec

POOLS = namespaces.Namespace("pools", "cinder", namespaces.SchemaVersion(1, 0))
OTHERS = namespaces.Namespace("others", "nova", namespaces.SchemaVersion(1, 0))
DECLARED = {"pools": POOLS, "others": OTHERS}


def key(name, namespace="pools"):
    return records.RecordKey(namespace, name)


def fixed(state):
    return lambda _: state


class RefusedNamesTest(unittest.TestCase):
    """Names that no record may have keep nothing else of their batch waiting."""

    def setUp(self):
        self.counting = CountingSynchronizer(memory.MemoryHub())
        self.counting.open()
        self.told = []
        self.publisher = publisher.Publisher(
            self.counting, DECLARED, "cinder", on_rejected=lambda *told: self.told.append(told)
        )
        self.bad = {key(name) for name in ("a\nb", "\udc80", "", "k" * 256)}
        self.good = {key(f"pool-{number}") for number in range(20)}

    def publish(self, keys, **kwargs):
        return self.publisher.publish({name: fixed({"v": 1}) for name in keys}, **kwargs)

    def test_the_others_are_written_and_each_bad_one_is_answered(self):
        report = self.publish(self.good | self.bad)
        self.assertEqual((20, frozenset()), (report.published, report.failed))
        self.assertEqual(self.bad, report.unnamed)
        self.assertEqual({name: name.fault for name in self.bad}, report.rejected)
        self.assertEqual([("pools", 4)], self.told)
        self.assertEqual(self.good, self.counting.read(self.good).keys())

    def test_they_are_named_in_one_line_that_forges_no_other(self):
        with self.assertLogs(publisher.LOG, "WARNING") as logged:
            self.publish(self.good | {key("a\nERROR forged")})
        [line] = logged.output
        self.assertTrue(line.isprintable())
        self.assertIn("pools/a\\nERROR forged", line)

    def test_one_that_comes_again_and_again_is_named_once_and_always_counted(self):
        with self.assertLogs(publisher.LOG, "WARNING") as logged:
            for _ in range(3):
                self.publish({key("a\nb")})
            self.publish({key("a\nb"), key("c\nd")})
        self.assertEqual(2, len(logged.output))
        self.assertIn("c\\nd", logged.output[1])
        self.assertEqual(5, sum(count for _, count in self.told))

    def test_neither_back_end_nor_source_is_asked_for_them(self):
        asked = set()
        report = self.publish(self.bad, refresh=asked.update)
        self.assertEqual(self.bad, report.unnamed)
        self.assertEqual((0, 0, set()), (self.counting.reads, self.counting.writes, asked))
        self.publish(self.bad | self.good, refresh=asked.update)
        self.assertEqual(self.good, asked)


class CountingSynchronizer(memory.MemorySynchronizer):
    """Counts requests."""

    def __init__(self, hub):
        super().__init__(shared_hub=hub)
        self.reads = 0
        self.writes = 0

    def read(self, keys):
        self.reads += 1
        return super().read(keys)

    def write(self, writes):
        self.writes += 1
        return super().write(writes)


class PublisherCase(unittest.TestCase):
    def setUp(self):
        super().setUp()
        self.hub = memory.MemoryHub()
        self.client = CountingSynchronizer(self.hub)
        self.client.open()
        self.addCleanup(self.client.close)
        self.publisher = publisher.Publisher(self.client, DECLARED, "cinder", rounds=4)

    def states(self):
        return {
            record.key.key: codec.decode_state(record.payload)
            for page in self.client.snapshot().pages
            for record in page
        }

    def interfere(self, name, state, schema=POOLS.schema):
        """Write as another process does."""
        standing = self.hub.read([key(name)]).get(key(name))
        revision = standing.revision if standing and not standing.deleted else 0
        payload = state if isinstance(state, bytes) else codec.encode(state or {}, schema)
        write = records.Write(key(name), revision, payload, deleted=state is None)
        [result] = self.hub.write([write])
        self.assertTrue(result.won)
        return result.record


class TestPublish(PublisherCase):
    def test_a_batch_costs_one_read_and_one_write(self):
        report = self.publisher.publish({key(f"p{n}"): fixed({"n": n}) for n in range(100)})
        self.assertEqual(100, report.published)
        self.assertEqual(self.hub.head().version, report.version)
        self.assertEqual((1, 1), (self.client.reads, self.client.writes))
        self.assertEqual({f"p{n}": {"n": n} for n in range(100)}, self.states())

    def test_a_second_identical_call_writes_nothing(self):
        updates = {key("a"): fixed({"n": 1}), key("b"): fixed(publisher.DELETE)}
        self.publisher.publish(updates)
        report = self.publisher.publish(updates)
        self.assertEqual((0, 2, 0), (report.published, report.unchanged, report.version))
        self.assertEqual(1, self.client.writes)

    def test_an_update_sees_what_stands_and_may_leave_it(self):
        self.interfere("a", {"n": 1})
        seen = []

        def leave(state):
            seen.append(state)
            return publisher.UNCHANGED

        report = self.publisher.publish({key("a"): leave, key("b"): leave})
        self.assertCountEqual([{"n": 1}, None], seen)
        self.assertEqual(2, report.unchanged)

    def test_a_deletion_leaves_a_tombstone_and_a_deleted_record_can_come_back(self):
        self.publisher.publish({key("a"): fixed({"n": 1})})
        report = self.publisher.publish({key("a"): fixed(publisher.DELETE)})
        self.assertEqual((1, 0), (report.deleted, report.published))
        self.assertTrue(self.hub.read([key("a")])[key("a")].deleted)
        seen = []

        def again(state):
            seen.append(state)
            return {"n": 2}

        self.publisher.publish({key("a"): again})
        self.assertEqual([None], seen)
        self.assertEqual({"a": {"n": 2}}, self.states())

    def test_only_losers_are_repeated_and_they_compute_from_the_newer_state(self):
        self.interfere("a", {"n": 1})
        calls = {"a": 0, "b": 0}

        def add(name):
            def compute(state):
                calls[name] += 1
                if name == "a" and calls["a"] == 1:
                    self.interfere("a", {"n": 10})
                return {"n": (state or {"n": 0})["n"] + 1}

            return compute

        report = self.publisher.publish({key("a"): add("a"), key("b"): add("b")})
        self.assertEqual({"a": 2, "b": 1}, calls)
        self.assertEqual((2, 1), (report.published, report.repeated))
        self.assertEqual({"a": {"n": 11}, "b": {"n": 1}}, self.states())

    def test_who_loses_every_round_is_handed_back(self):
        count = [0]

        def always_late(state):
            count[0] += 1
            self.interfere("a", {"other": count[0]})
            return {"mine": count[0]}

        report = self.publisher.publish({key("a"): always_late, key("b"): fixed({"n": 1})})
        self.assertEqual({key("a")}, report.failed)
        self.assertEqual(1, report.published)
        self.assertEqual(4, count[0])

    def test_foreign_and_unknown_namespaces_are_refused_before_anything_is_written(self):
        with self.assertRaises(errors.NotOwner) as caught:
            self.publisher.publish({key("a"): fixed({}), key("x", "others"): fixed({})})
        self.assertEqual(("others", "nova", "cinder"), caught.exception.args)
        with self.assertRaises(errors.UnknownNamespace):
            self.publisher.publish({key("a"): fixed({}), key("x", "nowhere"): fixed({})})
        self.assertEqual((0, 0), (self.client.reads, self.client.writes))

    def test_an_unavailable_back_end_is_the_callers_to_know(self):
        self.client.faults.go_down()
        with self.assertRaises(errors.BackendUnavailable):
            self.publisher.publish({key("a"): fixed({})})
        self.client.faults.come_up()
        self.assertEqual(1, self.publisher.publish({key("a"): fixed({})}).published)


class TestBadRecords(PublisherCase):
    def test_unreadable_bytes_count_as_absent_and_are_overwritten(self):
        self.interfere("a", b"\xff garbage")
        seen = []

        def compute(state):
            seen.append(state)
            return {"n": 1}

        report = self.publisher.publish({key("a"): compute})
        self.assertEqual([None], seen)
        self.assertEqual((1, 1), (report.published, report.undecodable))
        self.assertEqual({"a": {"n": 1}}, self.states())

    def test_unreadable_bytes_can_be_deleted(self):
        self.interfere("a", b"\xff garbage")
        self.assertEqual(1, self.publisher.publish({key("a"): fixed(publisher.DELETE)}).deleted)

    def test_a_record_of_a_newer_major_release_is_left_alone(self):
        self.interfere("a", {"new": True}, namespaces.SchemaVersion(2, 0))
        report = self.publisher.publish({key("a"): fixed({"n": 1}), key("b"): fixed({"n": 2})})
        self.assertEqual({key("a")}, set(report.rejected))
        self.assertIn("2.0", report.rejected[key("a")])
        self.assertEqual({"a": {"new": True}, "b": {"n": 2}}, self.states())

    def test_one_state_that_cannot_be_written_does_not_stop_the_others(self):
        report = self.publisher.publish(
            {
                key("nan"): fixed({"n": float("nan")}),
                key("good"): fixed({"n": 1}),
            }
        )
        self.assertEqual({key("nan")}, set(report.rejected))
        self.assertEqual({"good": {"n": 1}}, self.states())

    def test_a_state_beyond_the_back_ends_limit_is_not_sent(self):
        class Small(CountingSynchronizer):
            @property
            def capabilities(self):
                return attrs.evolve(super().capabilities, max_payload_bytes=64)

        client = Small(self.hub)
        client.open()
        refused = []
        small = publisher.Publisher(
            client, DECLARED, "cinder", on_rejected=lambda *what: refused.append(what)
        )
        report = small.publish({key("big"): fixed({"t": "x" * 100}), key("a"): fixed({"n": 1})})
        self.assertEqual([(key("big").namespace, 1)], refused)
        self.assertEqual({key("big")}, set(report.rejected))
        self.assertEqual(1, report.published)
        self.assertEqual({"a": {"n": 1}}, self.states())


class TestUnknownOutcomes(PublisherCase):
    def test_a_lost_reply_is_settled_by_reading(self):
        self.client.faults.fail_next(memory.Fault.REPLY_LOST)
        calls = []

        def compute(state):
            calls.append(state)
            return {"n": 1}

        report = self.publisher.publish({key("a"): compute})
        self.assertEqual(1, report.published)
        self.assertEqual(self.hub.head().version, report.version)
        self.assertEqual([None], calls)
        self.assertEqual(1, self.client.writes)

    def test_a_lost_deletion_is_settled_by_reading(self):
        self.interfere("a", {"n": 1})
        self.client.faults.fail_next(memory.Fault.REPLY_LOST)
        report = self.publisher.publish({key("a"): fixed(publisher.DELETE)})
        self.assertEqual(1, report.deleted)
        self.assertEqual(1, self.client.writes)

    def test_a_lost_request_is_sent_again(self):
        self.client.faults.fail_next(memory.Fault.REQUEST_LOST)
        report = self.publisher.publish({key("a"): fixed({"n": 1})})
        self.assertEqual(1, report.published)
        self.assertEqual({"a": {"n": 1}}, self.states())

    def test_a_reply_lost_in_the_last_round_is_settled_too(self):
        once = publisher.Publisher(self.client, DECLARED, "cinder", rounds=1)
        self.client.faults.fail_next(memory.Fault.REPLY_LOST)
        report = once.publish({key("a"): fixed({"n": 1})})
        self.assertEqual((1, frozenset()), (report.published, report.failed))

    def test_a_write_that_arrives_late_never_overwrites_a_newer_state(self):
        self.interfere("a", {"n": 1})
        answers = iter([{"n": 2}, publisher.UNCHANGED])
        self.client.faults.fail_next(memory.Fault.LATE)
        report = self.publisher.publish({key("a"): lambda _: next(answers)})
        self.assertEqual(frozenset(), report.failed)
        self.hub.deliver_late()
        self.assertEqual({"a": {"n": 1}}, self.states())


class TestRefresh(PublisherCase):
    """Rows that other processes change, read after the records."""

    def setUp(self):
        super().setUp()
        self.rows = {}
        self.fetched = {}
        self.refreshed = []

    def refresh(self, keys):
        self.refreshed.append(list(keys))
        self.fetched = {each: self.rows.get(each.key) for each in keys}

    def compute(self, name):
        def from_row(_state):
            row = self.fetched[key(name)]
            return publisher.DELETE if row is None else {"n": row}

        return from_row

    def test_sources_are_read_once_a_round_and_after_the_records(self):
        self.rows = {"a": 1, "b": 2}
        self.interfere("a", {"n": 0})
        self.interfere("b", {"n": 0})
        report = self.publisher.publish(
            {key(name): self.compute(name) for name in self.rows}, self.refresh
        )
        self.assertEqual([[key("a"), key("b")]], self.refreshed)
        self.assertEqual(2, report.published)

    def test_a_record_created_while_its_row_was_deleted_does_not_stay(self):
        self.rows = {"a": 1}
        other = publisher.Publisher(self.client, DECLARED, "cinder")

        def row_deleted_by_another_process(_state):
            wanted = self.compute("a")(None)
            if self.rows:
                del self.rows["a"]
                # Its own flush finds no record to delete.
                report = other.publish({key("a"): fixed(publisher.DELETE)})
                self.assertEqual(1, report.unchanged)
            return wanted

        report = self.publisher.publish({key("a"): row_deleted_by_another_process}, self.refresh)
        self.assertEqual({}, self.states())
        self.assertEqual((0, 1), (report.published, report.deleted))

    def test_an_undisturbed_creation_is_looked_at_again_but_not_written_again(self):
        self.rows = {"a": 1}
        report = self.publisher.publish({key("a"): self.compute("a")}, self.refresh)
        self.assertEqual((1, 0), (report.published, report.unchanged))
        self.assertEqual([[key("a")], [key("a")]], self.refreshed)
        self.assertEqual(1, self.client.writes)
