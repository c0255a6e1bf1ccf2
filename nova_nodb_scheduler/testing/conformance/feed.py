# SPDX-License-Identifier: Apache-2.0
"""Conformance of the feed of changes: order, limits, cursors, waking up."""

from __future__ import annotations

import threading
import time

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.testing.conformance import contract_case

#: A push must wake a waiter within this; a poll within a second of its own interval.
WAKE_SECONDS = 5.0


class FeedOrder(contract_case.Case):
    """What fetch and wait promise while nobody else writes."""

    def test_nothing_new_brings_nothing_and_keeps_the_cursor(self) -> None:
        client = self.client()
        self.put(client, "a", b"one")
        head = client.head()
        for _ in range(2):
            self.assertEqual(records.Changes((), head, False), self.changes(client, head))

    def test_a_write_is_fed_with_a_greater_version_than_the_cursor(self) -> None:
        client, reader = self.client(), self.client()
        start = reader.head()
        written = self.put(client, "a", b"one")
        fetched = self.changes(reader, start)
        self.assertEqual((written,), fetched.records)
        self.assertGreater(written.version, start.version)
        self.assertGreaterEqual(fetched.cursor.version, written.version)
        self.assertEqual(fetched.cursor, reader.head())

    def test_changes_come_in_the_order_of_their_versions(self) -> None:
        client = self.client()
        start = client.head()
        for name in ("c", "a", "b"):
            self.put(client, name, b"x")
        fed = self.changes(client, start).records
        self.assertEqual(["c", "a", "b"], [record.key.key for record in fed])
        self.assertEqual(sorted(record.version for record in fed), [r.version for r in fed])

    def test_the_same_fetch_again_brings_the_same_changes(self) -> None:
        client = self.client()
        start = client.head()
        self.fill(client, 20)
        self.assertEqual(self.changes(client, start), self.changes(client, start))

    def test_of_a_record_changed_often_the_last_state_is_fed_last(self) -> None:
        client = self.client()
        start = client.head()
        record = self.put(client, "a", b"0")
        for number in range(1, 10):
            record = self.put(client, "a", b"%d" % number, record.revision)
        fed = self.changes(client, start).records
        self.assertEqual(record, fed[-1])
        self.assertTrue(all(change.key == record.key for change in fed))

    def test_only_what_changed_after_the_cursor_is_fed(self) -> None:
        client = self.client()
        standing = self.fill(client, 10)
        start = client.head()
        changed = self.put(client, standing[3].key.key, b"new", standing[3].revision)
        self.assertEqual((changed,), self.changes(client, start).records)

    def test_a_deletion_is_fed_as_a_tombstone(self) -> None:
        client = self.client()
        written = self.put(client, "a", b"one")
        start = client.head()
        tombstone = self.drop(client, written)
        self.assertEqual((tombstone,), self.changes(client, start).records)

    def test_a_recreated_record_is_fed_alive(self) -> None:
        client = self.client()
        written = self.put(client, "a", b"one")
        start = client.head()
        self.drop(client, written)
        again = self.put(client, "a", b"two")
        self.assertEqual(again, self.changes(client, start).records[-1])

    def test_a_lost_write_is_not_fed(self) -> None:
        client = self.client()
        written = self.put(client, "a", b"one")
        start = client.head()
        client.write([records.Write(written.key, written.revision + 5, b"no")])
        self.assertEqual((), self.changes(client, start).records)

    def test_pages_of_any_limit_bring_everything_once_and_say_if_more_waits(self) -> None:
        client = self.client()
        start = client.head()
        written = self.fill(client, 25)
        for limit in (1, 7, 25, 26):
            fed: list[records.Record] = []
            cursor, more = start, True
            while more:
                fetched = self.changes(client, cursor, limit)
                self.assertLessEqual(len(fetched.records), limit)
                self.assertTrue(fetched.records or not fetched.more)
                fed.extend(fetched.records)
                cursor, more = fetched.cursor, fetched.more
            self.assertEqual(client.head(), cursor)
            self.assertEqual(sorted(written, key=_by_version), fed)

    def test_every_client_sees_the_same_head(self) -> None:
        first, second = self.client(), self.client()
        self.put(first, "a", b"one")
        self.assertEqual(first.head(), second.head())
        self.put(second, "b", b"two")
        self.assertEqual(first.head(), second.head())

    def test_a_cursor_of_another_epoch_needs_a_resync(self) -> None:
        client = self.client()
        self.put(client, "a", b"one")
        answer = client.fetch(records.Cursor("not this epoch", 0))
        self.assert_resync(records.ResyncReason.EPOCH_CHANGED, answer)

    def test_a_cursor_ahead_of_the_head_needs_a_resync(self) -> None:
        client = self.client()
        self.put(client, "a", b"one")
        head = client.head()
        answer = client.fetch(records.Cursor(head.epoch, head.version + 1000))
        self.assert_resync(records.ResyncReason.HEAD_BEHIND_CURSOR, answer)

    def test_waiting_ends_with_false_when_nothing_comes(self) -> None:
        client = self.client()
        self.put(client, "a", b"one")
        began = time.monotonic()
        woken = client.wait(client.head(), 0.5)
        elapsed = time.monotonic() - began
        self.assertLess(elapsed, 0.5 + WAKE_SECONDS)
        if client.capabilities.feed is contract.Feed.PUSH:
            self.assertFalse(woken)
        if not woken:
            self.assertGreaterEqual(elapsed, 0.4)

    def test_waiting_behind_the_head_ends_at_once(self) -> None:
        client = self.client()
        start = client.head()
        self.put(client, "a", b"one")
        began = time.monotonic()
        self.assertTrue(client.wait(start, 30.0))
        self.assertLess(time.monotonic() - began, WAKE_SECONDS)

    def test_a_write_by_another_client_wakes_a_waiter(self) -> None:
        waiter, writer = self.client(), self.client()
        self.put(writer, "a", b"one")
        cursor = waiter.head()
        woken_after: list[float] = []
        waiting = threading.Event()

        def wait() -> None:
            waiting.set()
            deadline = time.monotonic() + 30.0
            # A poll driver may return early: a caller fetches, and waits again.
            while time.monotonic() < deadline and not self.changes(waiter, cursor).records:
                waiter.wait(cursor, 30.0)
            woken_after.append(time.monotonic())

        def write() -> None:
            waiting.wait(5.0)
            time.sleep(0.3)
            written_at.append(time.monotonic())
            self.put(writer, "b", b"two")

        written_at: list[float] = []
        self.in_threads([wait, write])
        self.assertLess(woken_after[0] - written_at[0], WAKE_SECONDS)


def _by_version(record: records.Record) -> int:
    return record.version
