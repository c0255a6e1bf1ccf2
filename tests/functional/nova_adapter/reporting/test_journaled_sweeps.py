# SPDX-License-Identifier: Apache-2.0
"""What journals do not tell is found by the conductor that sweeps, and remembered until then."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.reporting import cell_sweeper, change_reporter, sweep_duty
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.memory.driver import MemorySynchronizer
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.reporting import test_journaled_heartbeats

JOURNALS = known_namespaces.HEARTBEAT_JOURNALS.name


class _Counting(MemorySynchronizer):
    """A memory client that counts snapshots by the namespaces that are asked for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asked: Counter[str] = Counter()

    def snapshot(self, namespaces: Any = None) -> contract.SnapshotPages:
        self.asked.update(namespaces or ["all"])
        return super().snapshot(namespaces)


class SweepTest(test_journaled_heartbeats.JournalCase):
    """A conductor that journals, the duty to sweep, and a back end whose clock is made to pass."""

    def setUp(self) -> None:
        super().setUp()
        self.skew_seconds = 0.0
        clock = self.hub._clock
        self.hub._clock = lambda: clock() + self.skew_seconds
        self.override("cell_uuid", cloud.CELL1, "nodb_scheduler")
        self.plugin = type(self.plugin)(cloud.CONF)
        self.plugin.make_synchronizer = self._make  # type: ignore[method-assign]
        self.service_one = self.service(cloud.CELL1, "h1")
        self.duty = self.made_duty()
        self.conductor = self.journaling()
        own = self.conductor._clock
        self.conductor._clock = lambda: own() + self.skew_seconds
        self.conductor.unsettled = self.duty.behind
        self.conductor.more_facts = lambda: {"journals": True}

    def _make(self) -> MemorySynchronizer:
        self.clients.append(_Counting(shared_hub=self.hub))
        return self.clients[-1]

    def made_duty(self) -> sweep_duty.SweepDuty:
        made = self.plugin.sweep_duty()
        client = made._synchronizer
        client.open()
        clock = made._clock
        made._clock = lambda: clock() + self.skew_seconds
        assert made._journals is not None
        made._journals._clock = made._clock
        return made

    def beat(self) -> dict[str, Any]:
        """Have the conductor beat; return what it says."""
        self.conductor._last_beat = float("-inf")
        self.conductor._turn()
        [state] = self.states(known_namespaces.REPORTERS).values()
        return dict(state)

    def turned(self, after_seconds: float, duty: sweep_duty.SweepDuty | None = None) -> bool:
        """Let time pass and take a turn; return whether it swept the cell."""
        before = self.states(known_namespaces.CELLS).get(cloud.CELL1)
        self.skew_seconds += after_seconds
        # A sweep marks its time by the same clock.
        self.beat()
        (duty or self.duty).turn()
        return self.states(known_namespaces.CELLS).get(cloud.CELL1) != before

    def heard(self, *counts: int) -> None:
        """Have the conductor hear heartbeats; what is left out goes elsewhere."""
        own = self.conductor
        change_reporter.install(None, None)
        for count in range(self.service_one.report_count + 1, max(counts) + 1):
            if count in counts:
                change_reporter.install(own, self.plugin.scopes)
            self.heartbeat(self.service_one)
            change_reporter.install(None, None)
        own.flush()

    def begin(self) -> None:
        self.beat()
        self.assertTrue(self.turned(0))
        self.turned(20)
        self.heard(1, 2, 3)
        self.assertFalse(self.turned(20))

    def test_a_count_that_no_journal_names_is_a_reason_once(self) -> None:
        self.begin()
        self.heard(4, 6)
        # The grace of flushes that cross.
        self.assertFalse(self.turned(20))
        self.assertTrue(self.turned(20))
        self.assertFalse(self.turned(20))
        self.assertFalse(self.turned(20))

    def test_what_records_lack_of_one_another_is_none_where_all_journal(self) -> None:
        self.begin()
        # As a sweep leaves it, that brings records up to rows which nobody reported there.
        self.assertEqual(0, self.recorded(self.service_one))
        name = records.RecordKey(known_namespaces.SERVICE_LIVENESS.name, self.service_one.uuid)
        self.plugin.publisher(self.synchronizer, known_namespaces.NOVA).publish(
            {name: lambda current: {**(current or {}), "report_count": 3, "unreported": 3}}
        )
        self.assertFalse(self.turned(20))
        # One that does not journal has them counted.
        self.conductor.more_facts = lambda: {"journals": False}
        self.assertTrue(self.turned(20))

    def test_until_it_is_swept_the_conductors_beat_says_that_its_cell_is_behind(self) -> None:
        self.begin()
        self.heard(4, 6)
        self.assertFalse(self.turned(20))
        stopped = threading.Event()
        self.duty._stop = stopped
        sweep = self.duty._sweeper.sweep
        self.duty._sweeper.sweep = self._down  # type: ignore[method-assign]
        with self.assertRaises(RuntimeError):
            self.turned(20)
        self.duty._sweeper.sweep = sweep  # type: ignore[method-assign]
        self.assertEqual([cloud.CELL1], list(self.duty.behind()))
        said = self.beat()["behind_seconds"]
        # Not that names were lost: that would have it swept once more.
        self.assertEqual({cloud.CELL1: change_reporter.UNSETTLED_SECONDS}, said)
        # Its slots are gone; that something was missing is not forgotten, nor is it by a goodbye.
        publisher = self.plugin.publisher(self.synchronizer, known_namespaces.NOVA)
        for key in self.states(known_namespaces.HEARTBEAT_JOURNALS):
            name = records.RecordKey(JOURNALS, key)
            publisher.publish({name: lambda current: change_reporter.publisher_module.DELETE})
        self.conductor._leave()
        self.assertEqual(1, len(self.states(known_namespaces.REPORTERS)))
        self.assertIn(cloud.CELL1, self.beat()["behind_seconds"])
        # Whoever sweeps makes it good.
        self.sweep(cloud.CELL1)
        self.turned(1)
        self.assertEqual((), self.duty.behind())
        self.assertEqual({}, self.beat()["behind_seconds"])

    @staticmethod
    def _down(*_args: Any, **_more: Any) -> None:
        raise RuntimeError("no route to host")

    def test_a_new_epoch_has_its_own_sweep_and_nothing_is_behind_in_it(self) -> None:
        self.begin()
        self.heard(4, 6)
        self.turned(20)
        self.duty._behind[cloud.CELL1] = self.synchronizer.head()
        self.synchronizer.reset()
        self.duty.turn()
        self.assertEqual((), self.duty.behind())
        self.assertIn(cloud.CELL1, self.states(known_namespaces.CELLS))

    def test_what_journals_show_while_it_sweeps_is_remembered_though_the_ring_is_shorter(
        self,
    ) -> None:
        self.begin()
        walk, walked = self.duty._sweeper._walk, []

        def slow(scope: str, table: Any, *rest: Any) -> Any:
            if not walked:
                walked.append(table)
                self.heard(4, 6)
                progress = rest[1]
                for second in range(0, 400, 5):
                    self.skew_seconds += 5
                    self.heard(7 + second)
                    progress(cell_sweeper.SweepProgress(table.namespace, 0, 0))
            return walk(scope, table, *rest)

        self.duty._sweeper._walk = slow  # type: ignore[method-assign]
        self.duty.ask([cloud.CELL1])
        self.assertTrue(self.turned(20))
        # Who begins to read finds nothing missing any more. The beat says that there is.
        self.assertEqual([cloud.CELL1], list(self.duty.behind()))
        self.assertTrue(self.turned(20))
        self.turned(1)
        self.assertEqual((), self.duty.behind())

    def test_where_nobody_journals_it_looks_as_often_as_into_records_whether_any_are_left(
        self,
    ) -> None:
        journal, self.conductor.journal = self.conductor.journal, None
        self.conductor.more_facts = dict
        self.beat()
        self.turned(0)
        for count in (1, 2, 3):
            self.heard(count)
            self.turned(20)
        asked = sum((each.asked for each in self.clients if isinstance(each, _Counting)), Counter())
        # In the midst of the sweep, and once in each of three turns.
        self.assertEqual(4, asked[JOURNALS])
        # One that nobody speaks of, for whoever wrote it is gone and forgotten.
        self.conductor.journal = journal
        self.heard(4)
        self.assertEqual(1, len(self.states(known_namespaces.HEARTBEAT_JOURNALS)))
        self.conductor.journal = None
        for _ in range(12):
            self.turned(20)
        self.assertEqual({}, self.states(known_namespaces.HEARTBEAT_JOURNALS))

    def test_a_sweep_says_how_far_the_back_end_was_when_it_began(self) -> None:
        before = self.synchronizer.head().version
        self.sweep(cloud.CELL1)
        state = self.states(known_namespaces.CELLS)[cloud.CELL1]
        self.assertEqual(before, state["swept_version"])
        self.assertLess(before, self.synchronizer.head().version)
