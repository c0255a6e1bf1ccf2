# SPDX-License-Identifier: Apache-2.0
"""Heartbeats are answered when they stand in the back end, or handed back soon."""

import threading
import time
import unittest

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.liveness import heartbeat_writer
from nova_nodb_scheduler.nova_adapter.reporting import row_publisher
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.drivers.memory import driver, hub
from nova_nodb_scheduler.synchronizer.records import publisher
from nova_nodb_scheduler.wire import codec

_START = 1_700_000_000.0


class WriterTest(unittest.TestCase):
    def setUp(self) -> None:
        self.hub = hub.MemoryHub()
        self.back_end = driver.MemorySynchronizer(shared_hub=self.hub)
        self.back_end.open()
        self.addCleanup(self.back_end.close)
        for name in "ab":
            self.write(known_namespaces.SERVICE_LIVENESS, name, self.liveness(100))
        self.failures = 0
        self.writer = self.make()

    def liveness(self, count: int) -> dict[str, object]:
        return {
            "cell": "c",
            "report_count": count,
            "base": count,
            "seen": 0,
            "unreported": 0,
            "last_seen_up": None,
            "counted_at": _START,
        }

    def make(self, **options: float) -> heartbeat_writer.HeartbeatWriter:
        own = driver.MemorySynchronizer(shared_hub=self.hub)
        self.own = own
        declared = {each.name: each for each in known_namespaces.BUILT_IN}

        def failed() -> None:
            self.failures += 1

        made = heartbeat_writer.HeartbeatWriter(
            own,
            publisher.Publisher(own, declared, known_namespaces.NOVA),
            row_publisher.merge_stored_heartbeats,
            heartbeat_writer.WriterOptions(**{"window_seconds": 0.01, **options}),  # type: ignore[arg-type]
            failed,
        )
        self.addCleanup(made.stop)
        return made

    def write(self, namespace, key: str, state: object) -> None:  # type: ignore[no-untyped-def]
        record = records.RecordKey(namespace.name, key)
        [result] = self.back_end.write(
            [records.Write(record, 0, codec.encode(state, namespace.schema))]
        )
        self.assertTrue(result.won)

    def held(self, key: str) -> dict[str, object]:
        record = records.RecordKey(known_namespaces.SERVICE_LIVENESS.name, key)
        return dict(codec.decode_state(self.back_end.read([record])[record].payload))

    def heartbeat(self, service: str, count: int, version: int | None = None):  # type: ignore[no-untyped-def]
        return heartbeat_writer.ServiceHeartbeat(
            service, "c", count, version, "2026-01-01T00:00:00", _START + 10
        )

    def test_one_that_is_answered_stands_there(self) -> None:
        self.assertTrue(self.writer.store(self.heartbeat("a", 101)))
        self.assertEqual(101, self.held("a")["report_count"])
        self.assertEqual(heartbeat_writer.WriterFigures(1, 0), self.writer.figures())

    def test_of_an_unknown_service_and_of_a_forged_count_nothing_is_stored(self) -> None:
        self.assertFalse(self.writer.store(self.heartbeat("unknown", 101)))
        self.assertFalse(self.writer.store(self.heartbeat("a", 2**31 - 1)))
        self.assertEqual(100, self.held("a")["report_count"])
        # And nobody is punished for it.
        self.assertEqual(0, self.failures)
        self.assertTrue(self.writer.store(self.heartbeat("a", 101)))

    def test_another_version_than_its_rows_is_not_stored(self) -> None:
        self.write(known_namespaces.SERVICES, "a", {"cell": "c", "row": {"version": 7}})
        self.assertFalse(self.writer.store(self.heartbeat("a", 101, version=8)))
        self.assertTrue(self.writer.store(self.heartbeat("a", 101, version=7)))
        self.assertFalse(self.writer.store(self.heartbeat("b", 101, version=7)))

    def test_behind_a_failure_nobody_waits(self) -> None:
        self.hub.faults.go_down()
        with self.assertLogs(heartbeat_writer.LOG, "WARNING"):
            self.assertFalse(self.writer.store(self.heartbeat("a", 101)))
        self.assertEqual(1, self.failures)
        self.hub.faults.come_up()
        # Not even asked: the failure was a moment ago.
        self.assertFalse(self.writer.store(self.heartbeat("a", 102)))
        self.assertEqual(100, self.held("a")["report_count"])

    def test_one_that_hangs_is_handed_back_and_holds_no_other_up(self) -> None:
        self.writer = self.make(write_seconds=0.3)
        self.assertTrue(self.writer.store(self.heartbeat("a", 101)))
        let_go = threading.Event()
        inner = self.own.write
        self.own.write = lambda batch: (let_go.wait(30), inner(batch))[1]  # type: ignore[method-assign]
        began = time.monotonic()
        with self.assertLogs(heartbeat_writer.LOG, "WARNING"):
            self.assertFalse(self.writer.store(self.heartbeat("a", 102)))
        self.assertFalse(self.writer.store(self.heartbeat("b", 101)))
        self.assertLess(time.monotonic() - began, 20.0)
        let_go.set()

    def test_a_thread_that_died_is_followed_by_another(self) -> None:
        self.assertTrue(self.writer.store(self.heartbeat("a", 101)))

        def dies(*_args: object) -> frozenset[heartbeat_writer.ServiceHeartbeat]:
            raise SystemExit

        self.writer = self.make(write_seconds=2.0)
        self.writer._written = dies  # type: ignore[method-assign]
        with self.assertLogs(heartbeat_writer.LOG, "WARNING"):
            self.assertFalse(self.writer.store(self.heartbeat("a", 102)))
        self.writer._written = type(self.writer)._written.__get__(self.writer)  # type: ignore[method-assign]
        self.writer._not_before = float("-inf")
        self.assertTrue(self.writer.store(self.heartbeat("a", 103)))

    def test_one_that_has_stopped_stores_nothing_and_leaves_nobody_waiting(self) -> None:
        self.writer = self.make(window_seconds=5.0)
        answers: list[bool] = []
        thread = threading.Thread(
            target=lambda: answers.append(self.writer.store(self.heartbeat("a", 101)))
        )
        thread.start()
        while not self.writer._waiting:
            time.sleep(0.01)
        self.writer.stop()
        thread.join(20.0)
        self.assertEqual(1, len(answers))
        self.assertFalse(self.writer.store(self.heartbeat("a", 102)))
        self.assertEqual(answers[0], self.held("a")["report_count"] == 101)
