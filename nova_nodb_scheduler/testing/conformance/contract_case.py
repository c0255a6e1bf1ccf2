# SPDX-License-Identifier: Apache-2.0
"""What all parts of the conformance suite share: clients, writes, a reader."""

from __future__ import annotations

import threading
import time
import unittest
from collections.abc import Callable, Iterable, Mapping

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.testing import patience

NAMESPACE = "suite"
#: Another namespace in the same back end.
OTHER = "other"
#: Longest time the suite waits for something that must happen.
PATIENCE_SECONDS = 180.0


def key(name: str, namespace: str = NAMESPACE) -> records.RecordKey:
    return records.RecordKey(namespace, name)


class Case(unittest.TestCase):
    """Base of every part; a driver's test class implements make_synchronizer()."""

    def make_synchronizer(self) -> contract.Synchronizer:
        """Return a new, unopened client of this test's back end.

        Called several times per test, and in forked processes of a driver that
        declares ``shared``: all of one test's clients must reach the same
        back end, which is empty when the test begins.
        """
        raise NotImplementedError

    def restart_backend(self) -> None:
        """Restart the engine, where a test class can; the default skips."""
        self.skipTest("this test class does not restart its engine")

    def make_swappable(self) -> Callable[[], None] | None:
        """Put an address that can be moved before this test's back end.

        Called before the test's first client; from then on each client reaches
        the back end by that address. What is returned moves it: to a second
        back end of the same kind, empty at first, and at the next call back to
        the first, which stood still meanwhile, and so on. A back end that is
        restored from a backup of itself will do as well. None, the default:
        this test class cannot, and those cases are skipped.
        """
        return None

    def client(self) -> contract.Synchronizer:
        """Return a new, open client which the test closes at its end."""
        synchronizer = self.make_synchronizer()
        synchronizer.open()
        self.addCleanup(synchronizer.close)
        return synchronizer

    def put(
        self,
        synchronizer: contract.Synchronizer,
        name: str,
        payload: bytes,
        expected_revision: int = 0,
        namespace: str = NAMESPACE,
    ) -> records.Record:
        """Write one record which must win."""
        return self.win(
            synchronizer, records.Write(key(name, namespace), expected_revision, payload)
        )

    def drop(self, synchronizer: contract.Synchronizer, record: records.Record) -> records.Record:
        """Leave a tombstone where a record stands; it must win."""
        return self.win(synchronizer, records.Write(record.key, record.revision, deleted=True))

    def win(self, synchronizer: contract.Synchronizer, write: records.Write) -> records.Record:
        [result] = synchronizer.write([write])
        self.assertIs(records.Verdict.WON, result.verdict)
        assert result.record is not None
        return result.record

    def fill(
        self, synchronizer: contract.Synchronizer, count: int, namespace: str = NAMESPACE
    ) -> list[records.Record]:
        """Create many small records in one call."""
        results = synchronizer.write(
            [
                records.Write(key(f"key-{number:05}", namespace), 0, b"%d" % number)
                for number in range(count)
            ]
        )
        written = [result.record for result in results if result.won and result.record]
        self.assertEqual(count, len(written))
        return written

    def changes(
        self,
        synchronizer: contract.Synchronizer,
        cursor: records.Cursor,
        limit: int = 1000,
    ) -> records.Changes:
        """Fetch, where a resync would be a fault."""
        fetched = synchronizer.fetch(cursor, limit)
        self.assertIsInstance(fetched, records.Changes, f"after {cursor}")
        assert isinstance(fetched, records.Changes)
        return fetched

    def assert_resync(
        self, reason: records.ResyncReason, answer: records.Changes | records.ResyncNeeded
    ) -> None:
        """Hold a fetch's answer against the reason it must give for a resync."""
        self.assertIsInstance(answer, records.ResyncNeeded)
        assert isinstance(answer, records.ResyncNeeded)
        self.assertIs(reason, answer.reason)

    def eventually(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds, and fail where it never does."""
        patience.wait_until(condition, PATIENCE_SECONDS, what)

    def in_threads(self, jobs: Iterable[Callable[[], None]]) -> None:
        """Run jobs at the same time; the first exception of any fails the test."""
        raised: list[BaseException] = []

        def guarded(job: Callable[[], None]) -> None:
            try:
                job()
            except BaseException as error:  # noqa: BLE001, raised again below
                raised.append(error)

        threads = [
            threading.Thread(target=guarded, args=(job,), name=f"suite-{number}", daemon=True)
            for number, job in enumerate(jobs)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
            if thread.is_alive():
                raise patience.OutOfPatience("a job of the test hangs")
        if raised:
            raise raised[0]


def everything(
    synchronizer: contract.Synchronizer,
) -> dict[records.RecordKey, records.Record]:
    """Read all live records by a snapshot."""
    return {record.key: record for page in synchronizer.snapshot().pages for record in page}


def states(
    held: Mapping[records.RecordKey, records.Record],
) -> dict[records.RecordKey, tuple[int, bytes]]:
    """Reduce records to what a follower must agree on."""
    return {name: (record.revision, record.payload) for name, record in held.items()}


class FeedReader:
    """The smallest correct follower of a feed: what every replica boils down to."""

    def __init__(self, synchronizer: contract.Synchronizer, limit: int = 1000) -> None:
        self._synchronizer = synchronizer
        self._limit = limit
        self._deleted: dict[records.RecordKey, int] = {}
        self.held: dict[records.RecordKey, records.Record] = {}
        self.resyncs = 0
        self.load()

    def load(self) -> None:
        """Take a snapshot; from its cursor on, only the feed is read."""
        while True:
            taken = self._synchronizer.snapshot()
            self.cursor = taken.cursor
            self.held, self._deleted = {}, {}
            try:
                for page in taken.pages:
                    for record in page:
                        self._apply(record)
            except contract.SnapshotInterrupted:
                continue
            return

    def step(self) -> bool:
        """Fetch once; returns whether anything came."""
        fetched = self._synchronizer.fetch(self.cursor, self._limit)
        if isinstance(fetched, records.ResyncNeeded):
            self.resyncs += 1
            self.load()
            return True
        for record in fetched.records:
            self._apply(record)
        self.cursor = fetched.cursor
        return bool(fetched.records) or fetched.more

    def catch_up(self) -> None:
        """Fetch until the cursor stands at the head; nobody may be writing."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            if self.step():
                continue
            if self._synchronizer.head() == self.cursor:
                return
            if time.monotonic() > deadline:
                raise patience.OutOfPatience(f"the feed stands still at {self.cursor}")
            self._synchronizer.wait(self.cursor, 0.02)

    def follow(self, stop: threading.Event) -> None:
        """Follow until told to stop."""
        while not stop.is_set():
            if not self.step():
                self._synchronizer.wait(self.cursor, 0.05)

    def _apply(self, record: records.Record) -> None:
        known = self.held.get(record.key)
        newest = max(known.revision if known else 0, self._deleted.get(record.key, 0))
        if record.revision <= newest:
            return
        if record.deleted:
            self.held.pop(record.key, None)
            self._deleted[record.key] = record.revision
        else:
            self.held[record.key] = record
