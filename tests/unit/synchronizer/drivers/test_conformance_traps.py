# SPDX-License-Identifier: Apache-2.0
"""The conformance suite fails drivers that make the known mistakes."""

from __future__ import annotations

import random
import threading
import time
import unittest
from collections.abc import Callable, Collection, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.drivers.support import epoch_memory
from nova_nodb_scheduler.testing import conformance
from tests.functional.synchronizer.drivers import swapping


class AutoIncrement:
    """A table whose versions are given out before the rows can be seen."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.next_version = 1
        self.rows: dict[records.RecordKey, records.Record] = {}


class AutoIncrementSynchronizer(memory.MemorySynchronizer):
    """Takes its versions as an auto-increment column does: outside the commit."""

    def __init__(self, table: AutoIncrement) -> None:
        super().__init__()
        self._table = table

    def head(self) -> records.Cursor:
        with self._table.lock:
            versions = [row.version for row in self._table.rows.values()]
        return records.Cursor("one", max(versions, default=0))

    def snapshot(self, namespaces: Collection[str] | None = None) -> contract.SnapshotPages:
        cursor = self.head()
        with self._table.lock:
            live = [row for row in self._table.rows.values() if not row.deleted]
        return contract.SnapshotPages(cursor, iter([live]))

    def fetch(self, cursor: records.Cursor, limit: int = 1000) -> records.Changes:
        with self._table.lock:
            rows = [row for row in self._table.rows.values() if row.version > cursor.version]
        found = sorted(rows, key=lambda row: row.version)[:limit]
        version = found[-1].version if found else cursor.version
        return records.Changes(
            tuple(found), records.Cursor("one", version), more=len(found) < len(rows)
        )

    def wait(self, cursor: records.Cursor, timeout_seconds: float) -> bool:
        time.sleep(0.001)
        return True

    def read(self, keys: Collection[records.RecordKey]) -> dict[records.RecordKey, records.Record]:
        with self._table.lock:
            return {key: self._table.rows[key] for key in keys if key in self._table.rows}

    def write(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        return [self._write(write) for write in writes]

    def _write(self, write: records.Write) -> records.WriteResult:
        with self._table.lock:
            version = self._table.next_version
            self._table.next_version += 1
        time.sleep(random.random() * 0.002)  # the transaction goes on
        with self._table.lock:
            standing = self._table.rows.get(write.key)
            revision = standing.revision if standing and not standing.deleted else 0
            if revision != write.expected_revision:
                return records.WriteResult(records.Verdict.LOST, standing)
            record = records.Record(
                write.key,
                (standing.revision if standing else 0) + 1,
                version,
                write.payload,
                write.deleted,
            )
            self._table.rows[write.key] = record
            return records.WriteResult(records.Verdict.WON, record)


class _AnyEpoch(epoch_memory.EpochMemory):
    def admits(self, found: epoch_memory.Rank) -> bool:
        return True


class _NoPause(epoch_memory.EpochMemory):
    def pause_seconds(self) -> float:
        return 0.0


class AdoptingSynchronizer(memory.MemorySynchronizer):
    """Goes on in whatever epoch it finds."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._memory = _AnyEpoch()


class RestlessSynchronizer(memory.MemorySynchronizer):
    """Begins an epoch at each turn of an address that leads to two servers."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._memory = _NoPause()


class CursorAfterSnapshot(memory.MemorySynchronizer):
    """Takes the cursor when the pages have been read."""

    def snapshot(self, namespaces: Collection[str] | None = None) -> contract.SnapshotPages:
        pages = list(super().snapshot(namespaces).pages)
        time.sleep(0.005)
        return contract.SnapshotPages(self.head(), iter(pages))


class SilentCollection(memory.MemorySynchronizer):
    """Answers cursors from before a collected tombstone as if nothing was."""

    def fetch(
        self, cursor: records.Cursor, limit: int = 1000
    ) -> records.Changes | records.ResyncNeeded:
        floor = int(self.statistics()["floor"])
        later = attrs.evolve(cursor, version=max(cursor.version, floor))
        return super().fetch(later, limit)


class Forgetful(memory.MemorySynchronizer):
    """Begins a key's revisions anew when its tombstone was collected."""

    def write(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        absent = {write.key for write in writes} - self.read([w.key for w in writes]).keys()
        return [
            attrs.evolve(result, record=attrs.evolve(result.record, revision=1))
            if result.won and result.record and write.key in absent
            else result
            for write, result in zip(writes, super().write(writes), strict=True)
        ]


class DeafPush(memory.MemorySynchronizer):
    """Declares that a change wakes a waiter, and sleeps on."""

    def wait(self, cursor: records.Cursor, timeout_seconds: float) -> bool:
        time.sleep(min(timeout_seconds, 8.0))
        return super().wait(cursor, 0.0)


class CaseBlind(memory.MemorySynchronizer):
    """Compares keys as MariaDB's default collation does."""

    def write(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        folded = [
            attrs.evolve(
                write,
                key=records.RecordKey(write.key.namespace, write.key.key.casefold().rstrip()),
            )
            for write in writes
        ]
        return super().write(folded)


class ReadThenWrite(memory.MemorySynchronizer):
    """Compares in one step and sets in another."""

    def write(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        standing = self.read([write.key for write in writes])
        fitting = [
            write
            for write in writes
            if write.key in standing and standing[write.key].revision == write.expected_revision
        ]
        if len(fitting) < len(writes):
            return super().write(writes)
        time.sleep(0.002)
        now = self.read([write.key for write in writes])
        blind = [attrs.evolve(write, expected_revision=now[write.key].revision) for write in writes]
        return super().write(blind)


class TestTraps(unittest.TestCase):
    """Each naive driver runs into the test that was laid for it."""

    def test_versions_given_out_before_the_commit_are_caught(self) -> None:
        table = AutoIncrement()
        self._assert_caught(
            lambda: AutoIncrementSynchronizer(table),
            "test_readers_equal_the_back_end_after_concurrent_writers",
        )

    def test_a_cursor_taken_after_the_snapshot_is_caught(self) -> None:
        self._assert_naive_is_caught(
            CursorAfterSnapshot, "test_readers_that_begin_under_full_load_miss_nothing"
        )

    def test_collection_without_a_floor_is_caught(self) -> None:
        self._assert_naive_is_caught(
            SilentCollection, "test_a_cursor_from_before_a_collected_tombstone_needs_a_resync"
        )

    def test_revisions_that_begin_anew_are_caught(self) -> None:
        self._assert_naive_is_caught(
            Forgetful, "test_a_record_created_again_after_collection_has_a_greater_revision"
        )

    def test_a_declared_push_that_does_not_wake_is_caught(self) -> None:
        self._assert_naive_is_caught(DeafPush, "test_a_write_by_another_client_wakes_a_waiter")

    def test_keys_compared_without_case_are_caught(self) -> None:
        self._assert_naive_is_caught(CaseBlind, "test_keys_that_look_alike_are_different_records")

    def test_a_compare_apart_from_its_set_is_caught(self) -> None:
        self._assert_naive_is_caught(
            ReadThenWrite, "test_exactly_as_many_increments_win_as_there_is_room_for"
        )

    def test_the_memory_driver_itself_is_caught_by_none_of_them(self) -> None:
        for name in (
            "test_readers_equal_the_back_end_after_concurrent_writers",
            "test_readers_that_begin_under_full_load_miss_nothing",
            "test_keys_that_look_alike_are_different_records",
            "test_exactly_as_many_increments_win_as_there_is_room_for",
        ):
            hub = memory.MemoryHub()
            result = _run(lambda hub=hub: memory.MemorySynchronizer(None, hub), name)
            self.assertTrue(result.wasSuccessful(), name)

    def test_an_epoch_that_comes_back_is_caught(self) -> None:
        for name in (
            "test_an_address_that_led_elsewhere_and_back_brings_no_old_epoch_back",
            "test_a_write_is_not_the_call_that_brings_an_old_epoch_back",
            "test_closing_and_opening_forgets_no_epoch",
            "test_clients_that_slept_and_new_ones_agree_with_the_one_that_saw",
        ):
            with self.subTest(name):
                self._assert_naive_is_caught(AdoptingSynchronizer, name, swappable=True)

    def test_turns_without_a_pause_are_caught(self) -> None:
        self._assert_naive_is_caught(
            RestlessSynchronizer,
            "test_an_address_that_leads_to_two_servers_in_turn_ends_few_epochs_and_says_so",
            swappable=True,
        )

    def _assert_naive_is_caught(
        self, naive: type[memory.MemorySynchronizer], name: str, *, swappable: bool = False
    ) -> None:
        hub = memory.MemoryHub()
        self._assert_caught(lambda: naive(None, hub), name, hub if swappable else None)

    def _assert_caught(
        self,
        make: Callable[[], contract.Synchronizer],
        name: str,
        swapped: memory.MemoryHub | None = None,
    ) -> None:
        result = _run(make, name, swapped)
        self.assertEqual([], result.skipped)
        self.assertEqual([], result.errors)
        self.assertEqual(1, len(result.failures), f"{name} passes a naive driver")


def _run(
    make: Callable[[], contract.Synchronizer],
    name: str,
    swapped: memory.MemoryHub | None = None,
) -> unittest.TestResult:
    """Run one test of the suite against a driver.

    :param swapped: the hub that stands for two servers at one address
    """

    class Trap(conformance.ConformanceSuite):
        def make_synchronizer(self) -> contract.Synchronizer:
            return make()

        def make_swappable(self) -> Callable[[], None] | None:
            return swapping.hub(swapped) if swapped else None

    result = unittest.TestResult()
    Trap(name).run(result)
    return result
