# SPDX-License-Identifier: Apache-2.0
"""The memcached protocol without its fences fails the tests laid for that."""

from __future__ import annotations

import time
from typing import Any

from nova_nodb_scheduler.synchronizer.drivers import memcached
from nova_nodb_scheduler.synchronizer.drivers.memcached import driver, fencing, layout
from nova_nodb_scheduler.testing import conformance
from tests.functional.synchronizer.drivers import traps
from tests.functional.synchronizer.drivers.memcached import memcached_case, test_memcached


class _NoWait(fencing.Fencing):
    """The naive log: what is not there when a reader passes is skipped."""

    def is_overdue(self, epoch: layout.Epoch, version: int) -> bool:
        return True

    def void_if_overdue(
        self, epoch: layout.Epoch, stable: layout.StableVersion, version: int
    ) -> bytes | None:
        return layout.VOID if self.is_overdue(epoch, version) else None

    def fence_if_overdue(
        self, epoch: layout.Epoch, version: int, name: bytes
    ) -> layout.Item | None:
        key = epoch.record_key(name)
        item = layout.Item.decode(self._connection.get([key])[key])
        return item if self.is_overdue(epoch, version) else None


class _NoFence(_NoWait):
    """Waits for slow writers, and then passes them without shutting them out."""

    def is_overdue(self, epoch: layout.Epoch, version: int) -> bool:
        return fencing.Fencing.is_overdue(self, epoch, version)


class _Naive(driver.MemcachedSynchronizer):
    fencing_class: type[fencing.Fencing]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._follower.fencing = self.fencing_class(
            *(self._settings, self._connection, self._clock),
            *(self._follower._seen, self._report_step),
        )


class NoWaitSynchronizer(_Naive):
    fencing_class = _NoWait


class NoFenceSynchronizer(_Naive):
    fencing_class = _NoFence


class HeadSnapshotSynchronizer(driver.MemcachedSynchronizer):
    """Begins its snapshots at the counter, stable or not."""

    def snapshot(self, namespaces: Any = None) -> Any:
        epoch = self._epochs.current()
        return driver.contract.SnapshotPages(self.head(), self._pages(epoch.name, namespaces))


def _dawdle(step: str) -> None:
    """Make the window that crashes hit by chance wide enough to be hit always."""
    if step in (memcached.Step.SLOT.value, memcached.Step.RECORD.value):
        time.sleep(0.002)


def _suite_case(driver_class: type[driver.MemcachedSynchronizer]) -> type[Any]:
    """Return the conformance suite with a driver whose writers dawdle."""
    chosen = driver_class

    class Trap(memcached_case.MemcachedCase, conformance.ConformanceSuite):
        driver_class = chosen

        def make_synchronizer(self) -> memcached.MemcachedSynchronizer:
            synchronizer = self.make()
            synchronizer.on_step = _dawdle
            return synchronizer

    return Trap


class TestTraps(traps.TrapCase):
    def test_a_log_that_readers_pass_without_waiting_is_caught(self) -> None:
        case = _suite_case(NoWaitSynchronizer)
        name = "test_readers_equal_the_back_end_after_concurrent_writers"
        self.assert_caught(case, name)
        self.assert_passes(_suite_case(memcached.MemcachedSynchronizer), name)

    def test_a_log_without_fencing_is_caught(self) -> None:
        class Trap(test_memcached.TestSlowWriters):
            driver_class = NoFenceSynchronizer

        self.assert_caught(
            Trap, "test_a_writer_paused_at_any_step_wins_in_the_end_where_it_is_alone"
        )

    def test_a_snapshot_at_an_unsettled_version_is_caught(self) -> None:
        class Trap(test_memcached.TestSlowWriters):
            driver_class = HeadSnapshotSynchronizer

        self.assert_caught(
            Trap, "test_a_snapshot_taken_while_a_writer_is_paused_misses_nothing_of_it"
        )
