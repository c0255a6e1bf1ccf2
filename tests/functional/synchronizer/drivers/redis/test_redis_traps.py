# SPDX-License-Identifier: Apache-2.0
"""The redis protocol without its safeguards fails the tests laid for that."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Sequence
from typing import Any
from unittest import mock

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers import redis
from nova_nodb_scheduler.synchronizer.drivers.redis import connection, driver, scripts
from nova_nodb_scheduler.synchronizer.drivers.support import epoch_memory
from nova_nodb_scheduler.testing import conformance
from tests.functional.synchronizer.drivers import traps
from tests.functional.synchronizer.drivers.redis import redis_case, test_redis_faults

GUARDED = ("HEAD", "WRITE", "READ", "FETCH", "PAGE", "COLLECT")


def _edited(names: Sequence[str], old: str, new: str) -> contextlib.AbstractContextManager[Any]:
    """Run with other scripts."""
    changed = {}
    for name in names:
        text = getattr(scripts, name).text.decode()
        assert old in text, name
        changed[name] = scripts.Script.of(text.replace(old, new))
    return mock.patch.multiple(scripts, **changed)


class _RetryingConnection(connection.Connection):
    """Sends again what was not answered, as redis-py's own client does."""

    def run(self, *arguments: Any, **named: Any) -> Any:
        try:
            return super().run(*arguments, **named)
        except connection.ReplyLost:
            return super().run(*arguments, **named)


class RetryingSynchronizer(redis.RedisSynchronizer):
    def __init__(self, settings: redis.RedisOptions) -> None:
        super().__init__(settings)
        self._connection = _RetryingConnection(settings)
        self._epochs._connection = self._connection


class NumberingSynchronizer(redis.RedisSynchronizer):
    """Numbers in one call and writes in the next, as clients without Lua must."""

    def _send(
        self, writes: Sequence[records.Write], names: Sequence[bytes]
    ) -> list[records.WriteResult]:
        epoch = self._epochs.current()
        last = self._connection.send("HINCRBY", self._keys.meta, "seq", len(writes))
        time.sleep(0.002)
        text = scripts.WRITE.text.decode().replace("'seq', seq + #won, ", "")
        text = text.replace("local results,", f"seq = {last - len(writes)}\nlocal results,")
        answer = self._connection.run(
            scripts.Script.of(text),
            self._keys.all,
            epoch.name,
            epoch.began,
            *driver._arguments(epoch, writes, names),
        )
        return [
            driver._result(epoch, write, name, found)
            for write, name, found in zip(writes, names, answer[2:], strict=True)
        ]


class LateCursorSynchronizer(redis.RedisSynchronizer):
    """Takes a snapshot's cursor behind its pages."""

    def snapshot(self, namespaces: Collection[str] | None = None) -> contract.SnapshotPages:
        pages = list(super().snapshot(namespaces).pages)
        time.sleep(0.005)
        return contract.SnapshotPages(self.head(), iter(pages))


class _NoVersions(epoch_memory.EpochMemory):
    def version_seen(self, name: str) -> int:
        return 0


class ForgettingSynchronizer(redis.RedisSynchronizer):
    """Remembers no version, by which some accidents are noticed besides."""

    def __init__(self, settings: redis.RedisOptions) -> None:
        super().__init__(settings)
        self._epochs.memory = _NoVersions()


def _with_driver(base_class: type[Any], chosen: type[redis.RedisSynchronizer]) -> type[Any]:
    class Trap(base_class):  # type: ignore[misc]
        driver_class = chosen

    return Trap


def _suite_case(chosen: type[redis.RedisSynchronizer]) -> type[Any]:
    """Return the conformance suite with a driver; here, so that it is run by name alone."""

    class Trap(redis_case.RedisCase, conformance.ConformanceSuite):
        driver_class = chosen

    return Trap


class TestTraps(traps.TrapCase):
    def test_an_epoch_that_is_a_key_alone_is_caught(self) -> None:
        with (
            _edited(GUARDED, "held[2] ~= replid", "false"),
            _edited(["EPOCH"], "held[4] ~= replid", "false"),
        ):
            self.assert_caught(
                test_redis_faults.TestReplication,
                "test_a_promoted_replica_that_was_written_past_the_cursor_is_noticed",
            )
            self.assert_caught(
                _with_driver(test_redis_faults.TestRestoredData, ForgettingSynchronizer),
                "test_a_restored_old_dump_begins_a_new_epoch",
            )

    def test_a_replication_id_that_is_read_at_connects_alone_is_caught(self) -> None:
        with _edited(GUARDED, "held[2] ~= replid", "false"):
            self.assert_caught(
                _with_driver(test_redis_faults.TestReplication, ForgettingSynchronizer),
                "test_a_primary_demoted_and_promoted_again_on_an_open_connection_is_noticed",
            )

    def test_an_epoch_that_ends_with_every_replication_id_is_caught(self) -> None:
        with _edited(["EPOCH"], "held[5] == run_id", "false"):
            self.assert_caught(
                test_redis_faults.TestReplication,
                "test_a_first_replica_and_the_end_of_the_last_one_keep_the_epoch",
            )

    def test_keys_that_are_not_counted_are_caught(self) -> None:
        with _edited([*GUARDED, "EPOCH"], "return tonumber(count) == named", "return true or nil"):
            self.assert_caught(test_redis_faults.TestLosses, "test_any_lost_key_begins_a_new_epoch")

    def test_a_client_that_sends_again_is_caught(self) -> None:
        trap = _with_driver(test_redis_faults.TestUnknownOutcomes, RetryingSynchronizer)
        self.assert_caught(
            trap, "test_a_connection_cut_after_the_write_is_unknown_and_not_tried_again"
        )

    def test_versions_given_before_they_are_used_are_caught(self) -> None:
        name = "test_readers_equal_the_back_end_after_concurrent_writers"
        self.assert_caught(_suite_case(NumberingSynchronizer), name)
        self.assert_passes(_suite_case(redis.RedisSynchronizer), name)

    def test_a_cursor_taken_behind_the_pages_is_caught(self) -> None:
        name = "test_readers_that_begin_under_full_load_miss_nothing"
        self.assert_caught(_suite_case(LateCursorSynchronizer), name)
        self.assert_passes(_suite_case(redis.RedisSynchronizer), name)

    def test_a_full_server_that_takes_half_a_batch_is_caught(self) -> None:
        with _edited(["WRITE"], "if not puts then redis", "if puts then redis"):
            self.assert_caught(
                test_redis_faults.TestFullServer,
                "test_a_full_server_refuses_by_name_and_keeps_what_it_acknowledged",
            )

    def test_a_write_that_fails_half_way_and_leaves_no_mark_is_caught(self) -> None:
        with _edited(["WRITE"], "'count', UNDER_WAY", "'seq', seq"):
            self.assert_caught(
                test_redis_faults.TestLosses,
                "test_nothing_is_left_of_a_write_that_is_refused_half_way",
            )

    def test_a_wake_up_that_fails_a_write_is_caught(self) -> None:
        with _edited(["WRITE"], "redis.pcall('XADD'", "redis.call('XADD'"):
            self.assert_caught(
                test_redis_faults.TestLosses,
                "test_a_stream_that_takes_no_wake_up_keeps_no_write_from_being_told",
            )
