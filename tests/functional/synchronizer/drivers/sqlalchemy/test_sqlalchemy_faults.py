# SPDX-License-Identifier: Apache-2.0
"""The SQL driver when writers, connections, tables and servers are hurt."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent import futures
from typing import Any
from unittest import mock

import attrs
import pymysql
import sqlalchemy as sa

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import (
    counter_statements,
    database,
    deadline,
    engines,
    epochs,
    schema,
    statements,
)
from nova_nodb_scheduler.testing import proxy, servers
from nova_nodb_scheduler.testing.conformance import contract_case
from tests.functional.synchronizer.drivers.sqlalchemy import sql_databases

KEY = records.RecordKey("suite", "a")
OTHER = records.RecordKey("suite", "b")
WHOLE = "send whole"
PATIENCE_SECONDS = 60.0


class TestFaultsSQLite(sql_databases.SQLiteCase):
    migrated = True
    #: Of a write.
    steps: tuple[str, ...] = ("lock", "upsert", "commit", "reply")
    #: Of those who keep house, see TestKeepingHouse.
    keeping = ("begin epoch", "collect", "reset")
    #: Behind which of them a write stands.
    committed_at = "reply"
    #: A connection that is cut before one of these is replaced, as nothing was sent on it.
    replaced_at: tuple[str, ...] = ("lock",)
    #: Per write, of a batch of any size, without its BEGINs.
    write_statements = 3
    write_transactions = 1
    #: Whether a small write is one statement, and cannot be cut in two.
    writes_whole = False

    @property
    def before_commit(self) -> tuple[str, ...]:
        before = self.steps[: self.steps.index("commit")]
        return tuple(step for step in before if step not in (*self.replaced_at, WHOLE))

    def is_committed(self, step: str) -> bool:
        return self.steps.index(step) >= self.steps.index(self.committed_at)

    def client(self, **changes: float) -> driver.SQLAlchemySynchronizer:
        synchronizer = driver.SQLAlchemySynchronizer(self.sql_options(**changes))
        synchronizer.open()
        self.addCleanup(synchronizer.close)
        return synchronizer

    def put(self, client: driver.SQLAlchemySynchronizer, payload: bytes) -> records.Record:
        """Write the record, whatever its revision; it must win."""
        standing = client.read([KEY]).get(KEY)
        [result] = client.write([records.Write(KEY, standing.revision if standing else 0, payload)])
        self.assertIs(records.Verdict.WON, result.verdict)
        assert result.record is not None
        return result.record

    def at_step(
        self, client: driver.SQLAlchemySynchronizer, wanted: str, action: Callable[[], object]
    ) -> None:
        """Do something when the client is about to take a step, the first time."""
        pending = [action]

        def on_step(step: str) -> None:
            if step == wanted and pending:
                pending.pop()()

        client.on_step = on_step

    def by_step(self, step: str, write: records.Write) -> list[records.Write]:
        """Return a write that comes by a step, with others where it would not alone."""
        if not self.writes_whole or step == WHOLE:
            return [write]
        # More than one statement carries.
        names = (f"beside-{time.monotonic_ns()}-{number}" for number in range(40))
        return [write, *(records.Write(records.RecordKey("suite", name), 0) for name in names)]

    def test_the_steps_tried_here_are_all_that_there_are(self) -> None:
        self.assertEqual((*self.steps, *self.keeping), self.client().STEPS)

    def payload(self, client: driver.SQLAlchemySynchronizer) -> bytes:
        return client.read([KEY])[KEY].payload

    # --- cost ---

    def statements_of(
        self, client: driver.SQLAlchemySynchronizer, action: Callable[[], object]
    ) -> list[str]:
        seen: list[str] = []

        def count(_connection: object, _cursor: object, text: str, *_rest: object) -> None:
            seen.append(text)

        own = engines.rows

        def count_rows(connection: Any, text: str, parameters: Any) -> Any:
            seen.append(text)
            return own(connection, text, parameters)

        for engine in client.engines:
            sa.event.listen(engine, "before_cursor_execute", count)
        try:
            with mock.patch.object(engines, "rows", count_rows):
                action()
        finally:
            for engine in client.engines:
                sa.event.remove(engine, "before_cursor_execute", count)
        return seen

    def test_a_hundred_heartbeats_cost_as_many_statements_as_one(self) -> None:
        client = self.client()
        keys = [records.RecordKey("liveness", f"host-{number}") for number in range(100)]
        written = client.write([records.Write(key, 0, b"1") for key in keys])
        beats = [
            records.Write(result.record.key, result.record.revision, b"2")
            for result in written
            if result.record
        ]
        client.now_seconds()  # The clock is asked once a second.
        one = self.statements_of(client, lambda: client.write(beats[:1]))
        hundred = self.statements_of(client, lambda: client.write(beats[1:]))
        # BEGIN IMMEDIATE is a statement to SQLite's driver.
        begins = self.write_transactions if self.dialect == "sqlite" else 0
        self.assertEqual(self.write_statements + begins, len(hundred), hundred)
        self.assertEqual(1 if self.writes_whole else len(hundred), len(one), one)

    def test_waiting_costs_one_statement_per_poll_interval(self) -> None:
        client = self.client(poll_interval_seconds=0.1)
        cursor = client.head()
        seen = self.statements_of(client, lambda: client.wait(cursor, 1.0))
        selects = [text for text in seen if text != "BEGIN"]
        self.assertLessEqual(len(selects), 11)
        self.assertGreater(len(selects), 2)

    def test_a_fetch_costs_two_statements(self) -> None:
        client = self.client()
        cursor = client.head()
        self.put(client, b"one")
        seen = self.statements_of(client, lambda: client.fetch(cursor))
        self.assertEqual(2, len([text for text in seen if text != "BEGIN"]), seen)

    # --- races ---

    def test_of_writers_who_create_the_same_record_exactly_one_wins(self) -> None:
        clients = [self.client() for _ in range(4)]
        clients[0].head()
        for number in range(20):
            key = records.RecordKey("suite", f"key-{number}")
            barrier = threading.Barrier(len(clients))
            won: list[bool] = []

            def create(
                client: driver.SQLAlchemySynchronizer,
                key: records.RecordKey = key,
                barrier: threading.Barrier = barrier,
                won: list[bool] = won,
            ) -> None:
                barrier.wait(PATIENCE_SECONDS)
                won.append(client.write([records.Write(key, 0, b"mine")])[0].won)

            self.in_threads([lambda who=client: create(who) for client in clients])
            self.assertEqual([False, False, False, True], sorted(won))

    def in_threads(self, jobs: list[Callable[[], object]]) -> None:
        threads = [threading.Thread(target=job, daemon=True) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
            self.assertFalse(thread.is_alive())

    def test_a_reader_never_passes_a_version_that_is_not_committed_yet(self) -> None:
        self.assertEqual({KEY, OTHER}, self._read_beside_a_slow_commit())

    def test_a_driver_that_numbers_before_the_commit_would_fail_that_test(self) -> None:
        """Numbers as an auto-increment gives them out: the slow writer is lost."""

        def number_at_once(
            connection: sa.Connection, keys: Collection[records.RecordKey]
        ) -> statements.Found:
            row = real_peek(connection)
            assert row is not None
            with numbers_lock:
                numbers.append(numbers[-1] + 1000)
                sequence = statements.SequenceRow(row.epoch, numbers[-1], row.floor)
            return statements.Found(sequence, statements.standing(connection, keys))

        def put_alone(
            connection: sa.Connection, _version: int, rows: Sequence[records.Record]
        ) -> None:
            statements.upsert(connection, rows)

        def newest_as_head(connection: sa.Connection) -> statements.SequenceRow | None:
            row = real_peek(connection)
            assert row is not None
            return attrs.evolve(row, version=max(row.newest or 0, row.floor))

        real_peek = statements.peek
        numbers_lock = threading.Lock()
        if self.dialect == "sqlite":
            self.skipTest("SQLite has one writer at a time, whatever a driver does")
        if self.ordering == "sequencer":
            self.skipTest("a test of its own shows it for the sequencer")
        numbers = [self.client().head().version]
        with (
            mock.patch.object(
                counter_statements, "allows_whole_writes", autospec=True, return_value=False
            ),
            mock.patch.object(counter_statements, "lock", number_at_once),
            mock.patch.object(statements, "peek", newest_as_head),
            mock.patch.object(counter_statements, "put", put_alone),
        ):
            self.assertEqual({OTHER}, self._read_beside_a_slow_commit(PATIENCE_SECONDS))

    def _read_beside_a_slow_commit(self, quick_seconds: float = 1.0) -> set[records.RecordKey]:
        """Follow the feed while one writer is slow to commit and another is not.

        :param quick_seconds: how long the other one may take at the most, if
            it does not have to wait for the first
        """
        slow, quick, reader = self.client(), self.client(), self.client()
        cursor = reader.head()
        committing, go_on = threading.Event(), threading.Event()

        def linger() -> None:
            committing.set()
            go_on.wait(PATIENCE_SECONDS)

        self.at_step(slow, "commit", linger)
        slow_writes = self.by_step("commit", records.Write(KEY, 0, b"slow"))
        first = threading.Thread(target=lambda: slow.write(slow_writes))
        second = threading.Thread(target=lambda: quick.write([records.Write(OTHER, 0, b"quick")]))
        first.start()
        self.assertTrue(committing.wait(PATIENCE_SECONDS))
        second.start()
        second.join(quick_seconds)
        seen: set[records.RecordKey] = set()
        for _ in range(2):
            fetched = reader.fetch(cursor)
            assert isinstance(fetched, records.Changes)
            seen |= {record.key for record in fetched.records} & {KEY, OTHER}
            cursor = fetched.cursor
            go_on.set()
            first.join(PATIENCE_SECONDS)
            second.join(PATIENCE_SECONDS)
        self.assertEqual(reader.head(), cursor)
        return seen

    # --- writers that die or sleep ---

    def test_a_writer_killed_at_any_step_leaves_all_or_nothing(self) -> None:
        for step in self.steps:
            with self.subTest(step=step):
                client = self.client()
                self.put(client, b"old")
                client.close()
                self._write_and_die(step)
                client.open()
                expected = b"new" if self.is_committed(step) else b"old"
                self.assertEqual(expected, self.payload(client))
                self.put(client, b"next")

    def _write_and_die(self, step: str) -> None:
        def write(client: driver.SQLAlchemySynchronizer) -> None:
            # Of an epoch that is not known yet nothing is written whole.
            client.head()
            write = records.Write(KEY, client.read([KEY])[KEY].revision, b"new")
            client.write(self.by_step(step, write))

        self._die(step, write)

    def _die(self, step: str, job: Callable[[driver.SQLAlchemySynchronizer], object]) -> None:
        """Let another process do a job, and be killed when it comes to a step."""
        child = os.fork()
        if child == 0:
            try:
                client = driver.SQLAlchemySynchronizer(self.sql_options())
                client.open()
                self.at_step(client, step, lambda: os.kill(os.getpid(), signal.SIGKILL))
                job(client)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        self.assertEqual(signal.SIGKILL, os.WTERMSIG(status))

    def test_who_keeps_house_may_die_at_any_of_its_steps(self) -> None:
        def lose_the_sequence(client: driver.SQLAlchemySynchronizer) -> None:
            self.execute("DELETE FROM nodb_sequence")
            client.head()

        jobs: dict[str, Callable[[driver.SQLAlchemySynchronizer], object]] = {
            "begin epoch": lose_the_sequence,
            "collect": lambda client: client.collect(0.0),
            "reset": lambda client: client.reset(),
        }
        self.assertEqual(set(self.keeping), set(jobs))
        for step, job in jobs.items():
            with self.subTest(step=step):
                client = self.client()
                self.put(client, b"kept")
                [other] = client.write([records.Write(OTHER, 0)])
                assert other.record is not None
                client.write([records.Write(OTHER, other.record.revision, deleted=True)])
                reader = contract_case.FeedReader(client)
                epoch = reader.cursor.epoch
                client.close()
                self._die(step, job)
                client.open()
                reader.catch_up()
                self.assertEqual([KEY], list(contract_case.everything(client)))
                self.assertEqual(contract_case.everything(client), reader.held)
                self.assertEqual(step == "begin epoch", reader.cursor.epoch != epoch)
                self.assertEqual(1, client.statistics()["tombstones"])
                # Who comes next ends it.
                self.assertEqual(1, client.collect(0.0).tombstones)
                client.reset()
                reader.catch_up()
                self.assertEqual({}, reader.held)
                self.put(client, b"next")
                client.close()

    def test_a_writer_that_sleeps_longer_than_every_timeout_does_no_harm(self) -> None:
        for step in self.steps:
            with self.subTest(step=step):
                self._sleep_at(step)

    def _sleep_at(self, step: str) -> None:
        sleeper, other = self.client(timeout_seconds=2.0), self.client(timeout_seconds=2.0)
        start = self.put(other, b"old")
        asleep, wake = threading.Event(), threading.Event()
        outcome: list[object] = []

        def sleep() -> None:
            asleep.set()
            wake.wait(PATIENCE_SECONDS)

        def write() -> None:
            try:
                write = records.Write(KEY, start.revision, b"sleeper")
                result, *_ = sleeper.write(self.by_step(step, write))
                outcome.append(result.verdict)
            except errors.BackendUnavailable as error:
                outcome.append(error)

        sleeper.head()
        self.at_step(sleeper, step, sleep)
        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        self.assertTrue(asleep.wait(PATIENCE_SECONDS))
        won_by_other = self._insist(other, start.revision, wake)
        wake.set()
        thread.join(PATIENCE_SECONDS)
        self.assertFalse(thread.is_alive())
        stands = self.payload(other)
        if won_by_other:
            self.assertEqual(b"other", stands)
            self.assertNotIn(records.Verdict.WON, outcome)
        else:
            self.assertEqual([records.Verdict.WON], outcome)
            self.assertEqual(b"sleeper", stands)
        if self.dialect != "sqlite" and not self.is_committed(step):
            self.assertTrue(won_by_other, "the server did not end the sleeper's transaction")

    def _insist(
        self, client: driver.SQLAlchemySynchronizer, revision: int, wake: threading.Event
    ) -> bool:
        """Try to write for as long as a sleeping writer may hold others up."""
        deadline = time.monotonic() + 15.0
        while True:
            started = time.monotonic()
            try:
                [result] = client.write([records.Write(KEY, revision, b"other")])
                if result.verdict is not records.Verdict.UNKNOWN:
                    return result.won
                # Its statement may end while it waits for the lock: settled by reading.
                if self.payload(client) == b"other":
                    return True
                self.assertLess(time.monotonic(), deadline)
            except errors.BackendUnavailable:
                self.assertLess(time.monotonic() - started, 8.0)
                if self.dialect == "sqlite":
                    # Nobody can end another process's transaction on a file.
                    wake.set()
                if time.monotonic() > deadline:
                    raise

    # --- tables that are emptied, backups that are restored ---

    def _assert_recovers(self, *hurt: str) -> None:
        """Hurt the tables behind a writer and a follower; both must go on."""
        client, follower = self.client(), contract_case.FeedReader(self.client())
        twentieth = self._write_thirty(client)
        follower.catch_up()
        self.assertEqual(30, len(follower.held))
        epoch = follower.cursor.epoch
        self.execute(*(statement.format(twentieth=twentieth) for statement in hurt))
        self.put(client, b"new")
        follower.catch_up()
        self.assertNotEqual(epoch, follower.cursor.epoch)
        self.assertGreaterEqual(follower.resyncs, 1)
        self.assertEqual(contract_case.everything(client), follower.held)
        self.assertIn(KEY, follower.held)

    def _write_thirty(self, client: driver.SQLAlchemySynchronizer) -> int:
        """Write thirty records; returns the head behind the twentieth."""
        heads = []
        for number in range(30):
            client.write([records.Write(records.RecordKey("suite", f"k{number}"), 0, b"old")])
            heads.append(client.head().version)
        return heads[19]

    def test_emptied_tables_begin_a_new_epoch(self) -> None:
        self._assert_recovers("DELETE FROM nodb_record", "DELETE FROM nodb_sequence")

    def test_emptied_records_alone_begin_a_new_epoch(self) -> None:
        self._assert_recovers("DELETE FROM nodb_record")

    def test_an_emptied_sequence_alone_begins_a_new_epoch(self) -> None:
        self._assert_recovers("DELETE FROM nodb_sequence")

    def test_an_older_backup_begins_a_new_epoch(self) -> None:
        self._assert_recovers(
            "DELETE FROM nodb_record WHERE version > {twentieth}",
            "UPDATE nodb_sequence SET version = {twentieth}",
        )

    def test_a_sequence_that_is_older_than_the_records_begins_a_new_epoch(self) -> None:
        """Put back alone: those who come next have not seen what it was."""
        client = self.client()
        self._write_thirty(client)
        epoch = client.head().epoch
        client.close()
        self.execute("UPDATE nodb_sequence SET version = version - 10")
        writer, follower = self.client(), contract_case.FeedReader(self.client())
        follower.catch_up()
        for number in range(12):
            [result] = writer.write([records.Write(records.RecordKey("new", f"{number}"), 0)])
            assert result.record is not None
            follower.catch_up()
            self.assertIn(result.record.key, follower.held)
        self.assertNotEqual(epoch, writer.head().epoch)

    def test_an_older_backup_is_noticed_by_a_follower_alone(self) -> None:
        client, follower = self.client(), contract_case.FeedReader(self.client())
        twentieth = self._write_thirty(client)
        follower.catch_up()
        self.execute(
            f"DELETE FROM nodb_record WHERE version > {twentieth}",
            f"UPDATE nodb_sequence SET version = {twentieth}",
        )
        follower.catch_up()
        self.assertEqual(20, len(follower.held))
        self.assertEqual(1, follower.resyncs)

    def test_a_snapshot_with_a_page_of_another_database_is_interrupted(self) -> None:
        """An address that goes from A to B and back to A, while pages are read."""
        client = self.client()
        self._write_hundreds(client, range(25))
        self._assert_interrupted(
            client,
            "DELETE FROM nodb_record_in_b WHERE record_key < '24'",
            "UPDATE nodb_sequence_in_b SET epoch = 'elsewhere'",
        )

    def test_a_snapshot_with_a_page_of_a_replica_that_lags_is_interrupted(self) -> None:
        """It is of the same epoch, and lacks what the feed behind the snapshot does not bring."""
        client = self.client()
        self._write_hundreds(client, (number for number in range(25) if number != 15))
        former = client.head().version
        self._write_hundreds(client, [15])
        self._assert_interrupted(
            client,
            "DELETE FROM nodb_record_in_b WHERE record_key LIKE '15-%'",
            f"UPDATE nodb_sequence_in_b SET version = {former}",
        )

    @staticmethod
    def _write_hundreds(client: driver.SQLAlchemySynchronizer, hundreds: Iterable[int]) -> None:
        for hundred in hundreds:
            keys = (records.RecordKey("suite", f"{hundred:02}-{each:02}") for each in range(100))
            client.write([records.Write(key, 0, b"in A") for key in keys])

    def _assert_interrupted(self, client: driver.SQLAlchemySynchronizer, *hurt: str) -> None:
        """Read one page of a snapshot from B, a copy of A that was hurt."""
        tables = ("nodb_record", "nodb_sequence")
        self.execute(
            *(f"CREATE TABLE {table}_in_b AS SELECT * FROM {table}" for table in tables), *hurt
        )

        def lead_to(there: str, away: str) -> None:
            for table in tables:
                self.execute(
                    f"ALTER TABLE {table} RENAME TO {table}_{away}",
                    f"ALTER TABLE {table}_{there} RENAME TO {table}",
                )

        pages = client.snapshot().pages
        next(pages)
        lead_to("in_b", "in_a")
        with self.assertRaises(contract.SnapshotInterrupted):
            next(pages)
            lead_to("in_a", "in_b")
            for _ in pages:
                pass

    def test_a_revision_from_before_a_restored_backup_never_matches_again(self) -> None:
        client = self.client()
        for number in range(30):
            last = self.put(client, b"%d" % number)
        self.execute("DELETE FROM nodb_record", "UPDATE nodb_sequence SET version = 0")
        for _ in range(5):
            again = self.put(client, b"again")
        self.assertGreater(again.revision, last.revision)

    def test_a_late_write_of_a_former_epoch_never_wins(self) -> None:
        """However the epoch ended: the revisions of the next one are others."""
        emptied = ("DELETE FROM nodb_record", "DELETE FROM nodb_sequence")
        ends: dict[str, Callable[[driver.SQLAlchemySynchronizer], None]] = {
            "an operator's word": lambda client: client.reset(),
            "emptied tables": lambda _client: self.execute(*emptied),
            "emptied records": lambda _client: self.execute(emptied[0]),
        }
        for name, end in ends.items():
            for deleted in (False, True):
                with self.subTest(name, deleted=deleted):
                    slow = self.client()
                    old = self.put(slow, b"of the former epoch")
                    end(slow)
                    # Another process, which remembers nothing.
                    new = self.put(self.client(), b"of the new epoch")
                    self.assertGreater(new.version, old.version)
                    late = records.Write(KEY, old.revision, b"late", deleted)
                    [result] = slow.write([late])
                    self.assertIs(records.Verdict.LOST, result.verdict)
                    self.assertEqual(b"of the new epoch", self.payload(slow))

    def _dump(self) -> list[tuple[sa.Table, list[dict[str, Any]]]]:
        engine = sa.create_engine(self.url)
        with engine.connect() as connection:
            dumped = [
                (table, [dict(row._mapping) for row in connection.execute(table.select())])
                for table in (schema.record, schema.sequence)
            ]
        engine.dispose()
        return dumped

    def _restore(self, dumped: list[tuple[sa.Table, list[dict[str, Any]]]]) -> None:
        engine = sa.create_engine(self.url)
        with engine.begin() as connection:
            for table, rows in dumped:
                connection.execute(table.delete())
                connection.execute(table.insert(), rows)
        engine.dispose()

    def test_an_epoch_older_than_one_seen_is_never_adopted(self) -> None:
        """A restored dump, or an address that goes from A to B and back to A."""
        client, follower = self.client(), self.client()
        old = self.put(client, b"first")
        first, dumped = client.head(), self._dump()
        client.reset()
        self.put(client, b"second")
        second = client.head()
        self.assertEqual(second, follower.head())
        # It must not count, either: the older epoch goes on beyond what was seen of it.
        self._restore(dumped)
        beside = self.client()
        for number in range(20):
            self.put(beside, b"elsewhere %d" % number)
        answer = follower.fetch(second)
        assert isinstance(answer, records.ResyncNeeded)
        self.assertIs(records.ResyncReason.EPOCH_CHANGED, answer.reason)
        third = client.head()
        self.assertNotIn(third.epoch, (first.epoch, second.epoch))
        self.assertGreater(third.version, second.version)
        self.assertEqual(third, beside.head())
        [late] = client.write([records.Write(KEY, old.revision, b"late")])
        self.assertIs(records.Verdict.LOST, late.verdict)

    def test_closing_and_opening_forgets_no_epoch(self) -> None:
        client = self.client()
        self.put(client, b"one")
        dumped = self._dump()
        self.put(client, b"two")
        seen = client.head()
        client.close()
        self._restore(dumped)
        client.open()
        self.assertNotEqual(seen.epoch, client.head().epoch)
        self.assertGreater(client.head().version, seen.version)

    def test_a_promoted_replica_that_lagged_is_a_new_epoch_for_all(self) -> None:
        client, beside = self.client(), self.client()
        self.put(client, b"replicated")
        dumped = self._dump()
        lost = self.put(client, b"acknowledged, and not replicated")
        self._restore(dumped)
        # Who has not seen what was lost cannot know, until one comes who has.
        before = beside.head().epoch
        again = self.put(client, b"again")
        self.assertNotEqual(before, beside.head().epoch)
        self.assertGreater(again.revision, lost.revision)

    def test_a_file_put_in_the_place_of_the_database_is_what_is_read_and_written(self) -> None:
        if self.dialect != "sqlite":
            self.skipTest("a server has its files to itself")
        client = self.client()
        self.put(client, b"before")
        kept = self.path.with_name("kept")
        with (
            contextlib.closing(sqlite3.connect(self.path)) as source,
            contextlib.closing(sqlite3.connect(kept)) as target,
        ):
            source.backup(target)
        lost = self.put(client, b"acknowledged, and not in the backup")
        seen = client.head()
        for end in ("-wal", "-shm"):
            self.path.with_name(self.path.name + end).unlink()
        kept.replace(self.path)
        [late] = client.write([records.Write(KEY, lost.revision, b"late")])
        self.assertIs(records.Verdict.LOST, late.verdict)
        other = self.client()
        self.assertNotEqual(seen.epoch, client.head().epoch)
        self.assertEqual(other.head(), client.head())
        self.assertEqual(self.put(client, b"next"), other.read([KEY])[KEY])
        away = self.path.rename(kept)
        for call in (client.head, lambda: client.write([records.Write(OTHER, 0, b"lost")])) * 2:
            with self.assertRaisesRegex(errors.BackendUnavailable, "is gone"):
                call()
        # Nor is another one made, for all to read and without the tables.
        self.assertFalse(self.path.exists())
        away.rename(self.path)
        self.put(client, b"last")

    def break_connections(self, client: driver.SQLAlchemySynchronizer) -> None:
        """End a client's connections, as whatever puts a database back does."""
        for engine in client.engines:
            engine.dispose()

    def test_a_history_that_others_went_on_in_past_what_was_seen_is_not_gone_on_in(self) -> None:
        """A promoted replica that lacked a little: its versions soon come to what was seen."""
        self._assert_not_gone_on_in(self.break_connections)

    def test_nor_in_one_that_was_put_back_under_connections_that_live_on(self) -> None:
        """A dump that is read back into the running server, while this client rests."""
        with mock.patch.object(epochs, "REST_SECONDS", 0.0):
            self._assert_not_gone_on_in(lambda _client: None)

    def _assert_not_gone_on_in(self, hurt: Callable[[driver.SQLAlchemySynchronizer], None]) -> None:
        new = records.Write(records.RecordKey("suite", "new"), 0, b"new")
        looks: dict[str, Callable[[driver.SQLAlchemySynchronizer], Any]] = {
            "head": lambda client: client.head(),
            "read": lambda client: client.read([KEY]),
            "fetch": lambda client: client.fetch(client.head()),
            "small write": lambda client: client.write([new]),
            "large write": lambda client: client.write(self.by_step("commit", new)),
            "snapshot": contract_case.everything,
        }
        for name, look in looks.items():
            with self.subTest(name):
                client, beside = self.client(), self.client()
                client.reset()
                self.put(client, b"replicated")
                epoch, dumped = beside.head().epoch, self._dump()
                lost = self.put(client, b"acknowledged, and not replicated")
                cursor = client.head()
                self._restore(dumped)
                hurt(client)
                for number in range(5):
                    beside.write([records.Write(records.RecordKey("suite", f"{number}"), 0)])
                self.assertEqual(epoch, beside.head().epoch)
                self.assertGreater(beside.head().version, cursor.version)
                # What is done in the epoch that ends is not told as done.
                found = look(client)
                if isinstance(found, list):
                    self.assertEqual({found[0].record}, set(client.read([new.key]).values()))
                    self.assertNotEqual(epoch, found[0].epoch)
                answer = client.fetch(cursor)
                assert isinstance(answer, records.ResyncNeeded)
                self.assertIs(records.ResyncReason.EPOCH_CHANGED, answer.reason)
                self.assertEqual(client.head(), beside.head())
                [late] = client.write([records.Write(KEY, lost.revision, b"late")])
                self.assertIs(records.Verdict.LOST, late.verdict)

    def test_nor_where_they_went_on_before_the_next_epoch_was_begun(self) -> None:
        client, beside = self.client(), self.client()
        self.put(client, b"replicated")
        epoch, dumped = beside.head().epoch, self._dump()
        self.put(client, b"acknowledged, and not replicated")
        self._restore(dumped)
        look_again = client._epochs.look_again

        def look_late() -> None:
            for number in range(5):
                beside.write([records.Write(records.RecordKey("suite", f"late-{number}"), 0)])
            look_again()

        with mock.patch.object(client._epochs, "look_again", look_late):
            self.assertNotEqual(epoch, client.head().epoch)

    def test_connections_that_break_end_no_epoch(self) -> None:
        """Whatever became of the records that this client has seen."""
        client, beside = self.client(), self.client()
        keys = [records.RecordKey("suite", f"{number:03}") for number in range(200)]
        client.write([records.Write(key, 0, b"one") for key in keys])
        cursor = client.head()
        for changed in range(3):
            standing = beside.read(keys)
            beside.write(
                [
                    records.Write(key, standing[key].revision, deleted=True)
                    if number % 3 == changed
                    else records.Write(key, standing[key].revision, b"another")
                    for number, key in enumerate(keys)
                    if key in standing and not standing[key].deleted
                ]
            )
            beside.collect(0.0)
            self.break_connections(client)
            self.assertEqual(beside.read(keys), client.read(keys))
            self.assertEqual(cursor.epoch, client.head().epoch)

    def test_an_epoch_that_a_former_release_begins_at_zero_is_replaced(self) -> None:
        """While services are upgraded in turn: theirs began to count anew."""
        client = self.client()
        old = self.put(client, b"one")
        self.execute(
            "DELETE FROM nodb_record",
            "UPDATE nodb_sequence SET epoch = 'of-a-former-release', version = 0, floor = 0",
        )
        new = self.put(client, b"two")
        self.assertNotEqual("of-a-former-release", client.head().epoch)
        self.assertGreater(new.revision, old.revision)

    def test_a_clock_that_was_set_back_repeats_no_revision(self) -> None:
        client = self.client()
        self.put(client, b"one")
        ahead = client.head().version + 10**12
        self.execute(
            f"UPDATE nodb_sequence SET version = {ahead}, floor = {ahead}, epoch = 'ahead'"
        )
        client.reset()
        self.assertGreaterEqual(client.head().version, ahead)

    def test_a_waiter_learns_that_the_tables_were_emptied(self) -> None:
        client = self.client()
        self.put(client, b"one")
        cursor = client.head()
        self.execute("DELETE FROM nodb_record")
        self.assertTrue(client.wait(cursor, 5.0))
        answer = client.fetch(cursor)
        assert isinstance(answer, records.ResyncNeeded)
        self.assertIs(records.ResyncReason.EPOCH_CHANGED, answer.reason)

    def test_several_who_find_empty_tables_agree_on_one_epoch(self) -> None:
        clients = [self.client() for _ in range(4)]
        for _ in range(5):
            self.execute("DELETE FROM nodb_record", "DELETE FROM nodb_sequence")
            with futures.ThreadPoolExecutor(len(clients)) as pool:
                heads = list(pool.map(lambda client: client.head(), clients))
            self.assertEqual(1, len(set(heads)), heads)

    def test_dropped_tables_are_told_with_the_remedy(self) -> None:
        client = self.client()
        self.put(client, b"one")
        self.execute("DROP TABLE nodb_record")
        with self.assertRaisesRegex(errors.BackendUnavailable, "db sync"):
            client.write([records.Write(OTHER, 0, b"two")])
        with self.assertRaisesRegex(errors.BackendUnavailable, "db sync"):
            client.head()


class TestFaultsMariaDB(sql_databases.MariaDBCase, TestFaultsSQLite):
    fixture = servers.MariaDB
    write_statements = 2
    #: What the server is asked for a write of many records, the COMMIT included.
    write_questions = 3
    #: For one of a few, on a connection just used: one that does all.
    small_write_questions = 1
    writes_whole = True
    steps = ("lock", WHOLE, "upsert", "commit", "reply")

    def test_a_write_is_as_few_exchanges_as_it_says(self) -> None:
        if not self.write_questions:
            self.skipTest("a sequenced write waits for its number")
        client = self.client()
        self.put(client, b"connected")
        for count, questions in ((1, self.small_write_questions), (50, self.write_questions)):
            keys = [records.RecordKey("suite", f"{count}-{number}") for number in range(count)]
            client.now_seconds()  # The clock is asked once a second.
            asked = self.exchanges_of(
                client, lambda keys=keys: client.write([records.Write(key, 0) for key in keys])
            )
            self.assertEqual(questions, len(asked), asked)

    def test_a_look_is_one_exchange_and_a_fetch_two(self) -> None:
        client = self.client()
        self.put(client, b"one")
        cursor = client.head()
        self.assertEqual(1, len(self.exchanges_of(client, lambda: client.wait(cursor, 0.0))))
        self.put(client, b"two")
        self.assertEqual(2, len(self.exchanges_of(client, lambda: client.fetch(cursor))))
        self.assertEqual(1, len(self.exchanges_of(client, lambda: client.read([KEY]))))

    open_transactions = (
        "SELECT COUNT(*) FROM information_schema.innodb_trx JOIN information_schema.processlist "
        "ON id = trx_mysql_thread_id WHERE db = DATABASE()"
    )

    def test_no_transaction_stays_open_behind_a_write_or_a_read(self) -> None:
        client = self.client()
        old = self.put(client, b"old")
        client.fetch(client.head())
        engine = sa.create_engine(self.url)
        self.addCleanup(engine.dispose)
        writes = {
            "won": records.Write(KEY, old.revision, b"new"),
            "lost": records.Write(KEY, old.revision, b"late"),
        }
        for name, write in writes.items():
            with self.subTest(write=name), engine.connect() as connection:
                client.write([write])
                time.sleep(0.2)  # InnoDB shows a picture that is up to 0.1 s old.
                query = sa.text(self.open_transactions)
                self.assertEqual(0, connection.execute(query).scalar_one())
        with engine.connect() as connection, client.engines[0].connect() as held:
            held.execute(sa.text("SELECT * FROM nodb_sequence FOR UPDATE"))
            time.sleep(0.2)
            self.assertEqual(1, connection.execute(query).scalar_one())

    def exchanges_of(
        self, client: driver.SQLAlchemySynchronizer, action: Callable[[], object]
    ) -> list[bytes]:
        """Return what is sent on the client's connections, pings and rollbacks included."""
        sent: list[bytes] = []
        real = pymysql.connections.Connection._execute_command

        def execute(connection: object, command: int, text: str | bytes) -> None:
            sent.append(text.encode() if isinstance(text, str) else text)
            real(connection, command, text)

        with mock.patch.object(pymysql.connections.Connection, "_execute_command", execute):
            action()
        return sent

    def test_a_connection_cut_before_the_commit_means_nothing_was_written(self) -> None:
        others = [
            records.Write(records.RecordKey("suite", f"with-{number}"), 0) for number in range(50)
        ]
        for step in self.before_commit:
            with self.subTest(step=step):
                client = self.client()
                self.put(client, b"old")
                revision = client.read([KEY])[KEY].revision
                self.at_step(client, step, self.kill_connections)
                with self.assertRaises(errors.BackendUnavailable):
                    client.write([records.Write(KEY, revision, b"new"), *others])
                self.assertEqual(b"old", self.payload(client))
                self.put(client, b"next")

    def test_a_connection_cut_before_the_first_statement_is_replaced(self) -> None:
        for step in self.replaced_at:
            with self.subTest(step=step):
                client = self.client()
                old = self.put(client, b"old")
                self.at_step(client, step, self.kill_connections)
                [result] = client.write([records.Write(KEY, old.revision, b"new")])
                self.assertIs(records.Verdict.WON, result.verdict)
                self.assertEqual(b"new", self.payload(client))

    def test_a_connection_cut_at_the_commit_is_unknown(self) -> None:
        client = self.client()
        old = self.put(client, b"old")
        self.at_step(client, "commit", self.kill_connections)
        lost = records.Write(OTHER, 17, b"")
        results = client.write([records.Write(KEY, old.revision, b"new"), lost])
        self.assertEqual(
            [records.Verdict.UNKNOWN, records.Verdict.LOST], [result.verdict for result in results]
        )
        self.assertIsNone(results[0].record)
        self.assertEqual(b"old", self.payload(client))
        self.put(client, b"next")

    def test_a_connection_cut_at_a_whole_write_leaves_all_of_it_unknown(self) -> None:
        if not self.writes_whole:
            self.skipTest("here a write is more than one statement")
        client = self.client()
        old = self.put(client, b"old")
        self.at_step(client, WHOLE, self.kill_connections)
        writes = [records.Write(KEY, old.revision, b"new"), records.Write(OTHER, 17, b"")]
        verdicts = {result.verdict for result in client.write(writes)}
        self.assertEqual({records.Verdict.UNKNOWN}, verdicts)
        self.assertEqual(b"old", self.payload(client))
        self.put(client, b"next")

    def test_a_small_write_whose_answer_is_spoilt_is_in_doubt(self) -> None:
        if not self.writes_whole:
            self.skipTest("here a write is more than one statement")
        url = sa.make_url(self.url)
        lead = self.enterContext(proxy.Proxy(url.port))
        self.url = url.set(host="127.0.0.1", port=lead.port).render_as_string(hide_password=False)
        client = self.client()
        old = self.put(client, b"old")
        # What the description of a column begins with.
        self.at_step(client, WHOLE, lambda: lead.rename_in_replies(b"\x03def", b"\xffdef"))
        [result] = client.write([records.Write(KEY, old.revision, b"new")])
        lead.heal()
        self.assertIs(records.Verdict.UNKNOWN, result.verdict)
        self.assertEqual(b"new", self.payload(client))
        self.put(client, b"next")

    def test_a_small_write_that_is_killed_at_the_server_is_in_doubt(self) -> None:
        if not self.writes_whole:
            self.skipTest("here a write is more than one statement")
        client, results = self.client(), []
        old = self.put(client, b"old")
        write = records.Write(KEY, old.revision, b"new")
        writer = threading.Thread(target=lambda: results.extend(client.write([write])))
        engine = sa.create_engine(self.url)
        self.addCleanup(engine.dispose)
        waiting = sa.text(
            "SELECT id FROM information_schema.processlist "
            "WHERE db = DATABASE() AND id <> CONNECTION_ID() AND info LIKE '%nodb_sequence%'"
        )
        with engine.connect() as holder, engine.connect() as killer:
            holder.execute(sa.text("SELECT * FROM nodb_sequence FOR UPDATE"))
            writer.start()
            deadline = time.monotonic() + PATIENCE_SECONDS
            while (found := killer.execute(waiting).scalar_one_or_none()) is None:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
            killer.execute(sa.text(f"KILL QUERY {found}"))
            writer.join(PATIENCE_SECONDS)
        self.assertEqual([records.Verdict.UNKNOWN], [result.verdict for result in results])
        self.assertEqual(b"old", self.payload(client))
        self.put(client, b"next")

    def test_a_small_write_to_a_server_that_froze_is_in_doubt_and_never_carried_out(self) -> None:
        if not self.writes_whole:
            self.skipTest("here a write is more than one statement")
        private = self.enterContext(self.fixture(private=True))
        self.url = private.url
        client = self.client(timeout_seconds=4.0)
        old = self.put(client, b"old")
        self.at_step(client, WHOLE, lambda: self.freeze(private.server))
        # Of a connection used just now nobody asked whether it lives.
        with mock.patch.object(database, "FRESH_SECONDS", PATIENCE_SECONDS):
            [result] = client.write([records.Write(KEY, old.revision, b"new")])
        self.assertIs(records.Verdict.UNKNOWN, result.verdict)
        self.thaw(private.server)
        # The server has the statement, and carries it out when its time is over.
        for _ in range(5):
            self.assertEqual(b"old", self.payload(client))
            time.sleep(0.1)
        self.put(client, b"next")

    def test_a_small_write_to_a_server_that_became_read_only_is_refused(self) -> None:
        """As one that a failover left behind does: nothing of it is written or stays open."""
        if not self.writes_whole:
            self.skipTest("here a write is more than one statement")
        private = self.enterContext(self.fixture(private=True))
        # Who has all rights may write to it all the same.
        engine = sa.create_engine(private.url)
        self.addCleanup(engine.dispose)
        name = sa.make_url(private.url).database
        self.url = private.url.replace("root@", "nodb@")
        with engine.connect() as connection:
            connection.execute(sa.text("CREATE USER nodb"))
            connection.execute(sa.text(f"GRANT ALL ON {name}.* TO nodb"))
            client = self.client(timeout_seconds=4.0)
            old = self.put(client, b"old")
            write = records.Write(KEY, old.revision, b"new")

            def set_read_only(value: int) -> None:
                connection.execute(sa.text(f"SET GLOBAL read_only = {value}"))

            self.at_step(client, WHOLE, lambda: set_read_only(1))
            with self.assertRaisesRegex(errors.BackendUnavailable, "read-only"):
                client.write([write])
            time.sleep(0.2)  # InnoDB shows a picture that is up to 0.1 s old.
            query = sa.text("SELECT COUNT(*) FROM information_schema.innodb_trx")
            self.assertEqual(0, connection.execute(query).scalar_one())
            set_read_only(0)
            self.assertEqual({KEY: old}, client.read([KEY]))
            self.assertTrue(client.write([write])[0].won)

    def test_a_small_write_that_arrives_too_late_is_not_carried_out(self) -> None:
        if not self.writes_whole:
            self.skipTest("here a write is more than one statement")
        client = self.client()
        old = self.put(client, b"old")
        known = epochs.Known(client.head().epoch, 0)
        writes = [records.Write(KEY, old.revision, b"new"), records.Write(OTHER, 0, b"new")]
        with client.engines[0].connect() as connection:
            late_seconds = client.now_seconds() - 1.0
            self.assertIsNone(
                counter_statements.write_whole(connection, writes, known, late_seconds)
            )
            self.assertEqual({KEY: old}, client.read([KEY, OTHER]))
            in_time_seconds = client.now_seconds() + 60.0
            version = counter_statements.write_whole(connection, writes, known, in_time_seconds)
        self.assertEqual(old.version, version)
        self.assertEqual({KEY, OTHER}, set(client.read([KEY, OTHER])))

    def test_a_small_write_of_which_one_is_lost_writes_the_others(self) -> None:
        client = self.client()
        old = self.put(client, b"old")
        keys = [records.RecordKey("suite", f"new-{number}") for number in range(3)]
        late = records.Write(KEY, old.revision + 17, b"late")
        writes = [late, *(records.Write(key, 0, key.key.encode()) for key in keys)]
        lost, *won = client.write(writes)
        self.assertIs(records.Verdict.LOST, lost.verdict)
        self.assertEqual(old, lost.record)
        self.assertTrue(all(each.won for each in won))
        self.assertEqual([each.record for each in won], [client.read(keys)[key] for key in keys])

    def test_a_reply_lost_after_the_commit_is_unknown_and_written(self) -> None:
        proxy = sql_databases.Proxy(self.database.server.port)
        self.addCleanup(proxy.close)
        direct = self.client()
        self.url = self.url.replace(f":{self.database.server.port}/", f":{proxy.port}/")
        for step in ("commit", WHOLE) if self.writes_whole else ("commit",):
            with self.subTest(step=step):
                old = self.put(direct, b"old")
                client = self.client(timeout_seconds=2.0)
                # Known, so that a small write may be one statement.
                client.head()
                self.at_step(client, step, proxy.swallow_replies.set)
                started = time.monotonic()
                write = records.Write(KEY, old.revision, b"new")
                result, *_ = client.write(self.by_step(step, write))
                self.assertLess(time.monotonic() - started, 6.0)
                self.assertIs(records.Verdict.UNKNOWN, result.verdict)
                self.assertEqual(b"new", self.payload(direct))
                proxy.swallow_replies.clear()

    def test_later_batches_of_a_call_are_unknown_when_an_earlier_one_was_written(self) -> None:
        client = self.client()
        client.head()
        seen: list[str] = []

        def on_step(step: str) -> None:
            seen.append(step)
            if seen.count("commit") == 1 and step == "upsert":
                self.kill_connections()

        client.on_step = on_step
        keys = [records.RecordKey("suite", f"k{number}") for number in range(1200)]
        verdicts = [result.verdict for result in client.write([records.Write(k, 0) for k in keys])]
        self.assertEqual({records.Verdict.WON}, set(verdicts[:500]))
        self.assertEqual({records.Verdict.UNKNOWN}, set(verdicts[500:]))

    def test_a_pooled_connection_that_the_server_ended_is_replaced(self) -> None:
        client = self.client()
        self.put(client, b"one")
        self.kill_connections()
        self.put(client, b"two")

    def test_a_rested_connection_is_asked_before_a_whole_write_and_a_fresh_one_is_not(self) -> None:
        if not self.writes_whole:
            self.skipTest("here the first statement of a write finds a dead connection out")
        client = self.client()
        standing = self.put(client, b"one")

        def exchanges() -> int:
            nonlocal standing
            return len(self.exchanges_of(client, write))

        def write() -> None:
            nonlocal standing
            [result] = client.write([records.Write(KEY, standing.revision, b"next")])
            self.assertIs(records.Verdict.WON, result.verdict)
            assert result.record is not None
            standing = result.record

        self.assertEqual(1, exchanges())
        for fresh_seconds, expected in ((-1.0, 2), (database.FRESH_SECONDS, 1)):
            with mock.patch.object(database, "FRESH_SECONDS", fresh_seconds):
                # Not once asked and believed for ever: the answer is of the moment.
                self.assertEqual([expected] * 3, [exchanges() for _ in range(3)])

    def test_a_server_that_takes_no_whole_writes_is_asked_nothing_for_them(self) -> None:
        """As MySQL and a node of Galera: a small write is what a large one is."""
        if not self.writes_whole:
            self.skipTest("here a write is more than one statement")
        client = self.client()
        self.put(client, b"connected")
        for fresh_seconds in (-1.0, database.FRESH_SECONDS):
            write = records.Write(records.RecordKey("suite", f"{fresh_seconds}"), 0)
            client.now_seconds()  # The clock is asked once a second.
            with (
                mock.patch.object(
                    counter_statements, "allows_whole_writes", autospec=True, return_value=False
                ),
                mock.patch.object(database, "FRESH_SECONDS", fresh_seconds),
            ):
                asked = self.exchanges_of(client, lambda write=write: client.write([write]))
            self.assertEqual(self.write_questions, len(asked), asked)

    def test_a_fresh_connection_that_the_server_ended_leaves_no_write_in_doubt(self) -> None:
        client = self.client()
        for number in range(5):
            old = self.put(client, b"%d" % number)
            self.kill_connections()
            [result] = client.write([records.Write(KEY, old.revision, b"next")])
            self.assertIs(records.Verdict.WON, result.verdict)

    def test_a_frozen_server_is_given_up_in_time_and_found_again(self) -> None:
        private = self.enterContext(self.fixture(private=True))
        self.url = private.url
        client = self.client(timeout_seconds=2.0)
        self.put(client, b"one")
        cursor = client.head()
        self.freeze(private.server)
        try:
            calls: dict[str, Callable[[], object]] = {
                "head": client.head,
                "fetch": lambda: client.fetch(cursor),
                "wait": lambda: client.wait(cursor, 30.0),
                "write": lambda: client.write([records.Write(OTHER, 0, b"x")]),
            }
            for name, call in calls.items():
                with self.subTest(call=name):
                    started = time.monotonic()
                    with self.assertRaises(errors.BackendUnavailable):
                        call()
                    # 2 s, and what libpq and a busy machine add.
                    self.assertLess(time.monotonic() - started, 6.0)
        finally:
            self.thaw(private.server)
        self.put(client, b"two")
        private.server.restart()
        self.put(client, b"three")

    #: What makes a server refuse writes on the connections that it has.
    demotion: tuple[str, ...] = ("SET GLOBAL read_only = 1",)

    def test_a_server_that_became_read_only_is_left_though_its_connections_live(self) -> None:
        """As where a failover demotes a server, and the address leads to another from then on."""
        demoted, promoted = (self.enterContext(self.fixture(private=True)).server for _ in "ab")
        for server in (demoted, promoted):
            server.create_database("failover")
            sql_databases.migrate(server.url("failover"))
            if self.dialect == "mysql":
                # Who has all rights may write to it all the same.
                server.execute("CREATE USER nodb")
                server.execute("GRANT ALL ON failover.* TO nodb")
        lead = self.enterContext(proxy.Proxy(demoted.port))
        url = sa.make_url(demoted.url("failover")).set(port=lead.port)
        if self.dialect == "mysql":
            url = url.set(username="nodb")
        self.url = url.render_as_string(hide_password=False)
        client = self.client()
        self.put(client, b"old")
        for statement in self.demotion:
            demoted.execute(statement)
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        with self.assertRaisesRegex(errors.BackendUnavailable, "read-only"):
            while time.monotonic() < give_up_at:  # PostgreSQL reads its settings in its own time.
                self.put(client, b"more")
        lead.redirect(promoted.port, breaks=False)
        self.assertTrue(client.write([records.Write(OTHER, 0, b"new")])[0].won)
        self.url = promoted.url("failover")
        self.assertEqual(self.client().head(), client.head())

    def test_a_server_that_is_down_is_told_without_the_password(self) -> None:
        url = sa.make_url(self.url).set(port=1, password="secret")
        self.url = url.render_as_string(hide_password=False)
        with self.assertRaises(errors.BackendUnavailable) as caught:
            self.client()
        self.assertNotIn("secret", str(caught.exception))
        self.assertIn("127.0.0.1:1/", str(caught.exception))


class TestFaultsPostgreSQL(sql_databases.PostgreSQLCase, TestFaultsMariaDB):
    fixture = servers.PostgreSQL
    demotion = (
        "ALTER SYSTEM SET default_transaction_read_only = on",
        "SELECT pg_reload_conf()",
    )
    write_statements = 3
    #: To psycopg the first and its BEGIN are one.
    write_questions = small_write_questions = 4
    writes_whole = False
    steps = TestFaultsSQLite.steps

    open_transactions = (
        "SELECT COUNT(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
    )

    def exchanges_of(
        self, _client: driver.SQLAlchemySynchronizer, action: Callable[[], object]
    ) -> list[bytes]:
        sent: list[bytes] = []
        real = deadline.DeadlineConnection.wait

        def wait(connection: Any, generator: Any, *rest: Any, **named: Any) -> Any:
            sent.append(str(generator).encode())
            return real(connection, generator, *rest, **named)

        with mock.patch.object(deadline.DeadlineConnection, "wait", wait):
            action()
        return sent

    kill_connections = sql_databases.PostgreSQLCase.kill_connections
    freeze = sql_databases.PostgreSQLCase.freeze
    thaw = sql_databases.PostgreSQLCase.thaw
