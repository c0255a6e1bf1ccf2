# SPDX-License-Identifier: Apache-2.0
"""A conductor's reporter that writes heartbeats to a journal, and one that does not."""

from __future__ import annotations

import itertools
import sys
import uuid
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.reporting import (
    change_reporter,
    dirty_records,
    journal_writer,
)
from nova_nodb_scheduler.scheduling.facts import heard_services, journal_follower
from nova_nodb_scheduler.scheduling.namespaces import heartbeat_journals, known_namespaces
from nova_nodb_scheduler.synchronizer.drivers.memory.driver import MemorySynchronizer
from nova_nodb_scheduler.synchronizer.records import heartbeat_ring
from tests.functional.nova_adapter import cloud

_OF_JOURNALS = tuple(
    module.__file__
    for module in (
        heartbeat_journals,
        heartbeat_ring,
        journal_writer,
        heard_services,
        journal_follower,
    )
)


class Calls:
    """Counts calls of functions that are defined in the journals' modules."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __enter__(self) -> Calls:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_args: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: Any, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename in _OF_JOURNALS:
            self.seen.append(frame.f_code.co_qualname)


class JournalCase(cloud.CloudCase):
    def setUp(self) -> None:
        super().setUp()
        self.clients: list[MemorySynchronizer] = []
        self.names = (f"ring-{number}" for number in itertools.count())
        self.plugin.make_synchronizer = self._make  # type: ignore[method-assign]

    def _make(self) -> MemorySynchronizer:
        self.clients.append(MemorySynchronizer(shared_hub=self.hub))
        return self.clients[-1]

    def journaling(self, **bounds: Any) -> change_reporter.ChangeReporter:
        """Make a conductor's reporter that journals the process's own; the test flushes."""
        made = self.report(cloud.CELL1, cloud.CELL1)
        client = self.clients[-1]
        options = heartbeat_ring.RingOptions(**{"keep_seconds": 150.0, **bounds})
        made.journal = journal_writer.JournalWriter(
            lambda: cloud.CELL1,
            lambda cell: heartbeat_ring.HeartbeatRing(
                client, cell, lambda: next(self.names), options
            ),
        )
        made.journal.is_on = True
        return made

    def journaled(self) -> dict[str, list[int]]:
        """Return the counts in all journals, by the services' ids as text."""
        found: dict[str, list[int]] = {}
        for key, state in self.states(known_namespaces.HEARTBEAT_JOURNALS).items():
            slot = heartbeat_journals.read(key, state)
            for number, count in zip(slot.ids.tolist(), slot.counts.tolist(), strict=True):
                found.setdefault(str(number), []).append(count)
        return {key: sorted(counts) for key, counts in found.items()}

    def counts_of(self, service: Any) -> list[int]:
        number = heartbeat_journals.service_id(service.uuid)
        return self.journaled().get(str(number), [])

    def recorded(self, service: Any) -> int:
        return int(self.states(known_namespaces.SERVICE_LIVENESS)[service.uuid]["report_count"])


class OffTest(JournalCase):
    def test_a_reporter_without_a_journal_calls_nothing_of_it(self) -> None:
        made = self.report(cloud.CELL1, cloud.CELL1)
        service = self.service(cloud.CELL1, "h1")
        made.flush()
        with Calls() as calls:
            for _ in range(3):
                self.heartbeat(service)
                made._turn()
            made.flush()
            made._leave()
        self.assertEqual([], calls.seen)
        self.assertEqual(3, self.recorded(service))
        self.assertEqual({}, self.states(known_namespaces.HEARTBEAT_JOURNALS))

    def test_it_keeps_no_counts_beside_the_highest(self) -> None:
        made = self.report(cloud.CELL1, cloud.CELL1)
        service = self.service(cloud.CELL1, "h1")
        for _ in range(3):
            self.heartbeat(service)
        [beat] = made._dirty.take_heartbeats()
        self.assertEqual((3, 3, None), (beat.seen, beat.report_count, beat.each))


class OnTest(JournalCase):
    def test_all_counts_of_a_flush_stand_in_the_journal_and_the_record_stays(self) -> None:
        made = self.journaling()
        services = [self.service(cloud.CELL1, f"h{number}") for number in range(3)]
        made.flush()
        for _ in range(4):
            for service in services:
                self.heartbeat(service)
        made.flush()
        for service in services:
            self.assertEqual([1, 2, 3, 4], self.counts_of(service))
            self.assertEqual(0, self.recorded(service))
        self.assertEqual(1, len(self.states(known_namespaces.HEARTBEAT_JOURNALS)))

    def test_what_the_journal_cannot_hold_goes_to_records(self) -> None:
        made = self.journaling()
        odd = self.service(cloud.CELL1, "odd", uuid=str(uuid.uuid4()).upper())
        plain = self.service(cloud.CELL1, "plain")
        elsewhere = self.service(cloud.CELL2, "elsewhere")
        made.flush()
        for service in (odd, plain, elsewhere):
            self.heartbeat(service)
            self.heartbeat(service)
        made.flush()
        for service, recorded, journaled in (
            (odd, 2, []),
            (plain, 0, [1, 2]),
            (elsewhere, 2, []),
        ):
            self.assertEqual(recorded, self.recorded(service), service.host)
            self.assertEqual(journaled, self.counts_of(service), service.host)
        self.assertEqual(
            {0},
            {
                state["unreported"]
                for state in self.states(known_namespaces.SERVICE_LIVENESS).values()
            },
        )

    def test_off_again_what_was_handed_to_the_journal_is_written_there(self) -> None:
        made = self.journaling()
        service = self.service(cloud.CELL1, "h1")
        made.flush()
        self.heartbeat(service)
        self.clients[-1].faults.go_down()
        with self.assertRaises(errors.BackendUnavailable):
            made._turn()
        self.clients[-1].faults.come_up()
        assert made.journal is not None
        made.journal.is_on = False
        self.heartbeat(service)
        made.flush()
        self.assertEqual([1], self.counts_of(service))
        self.assertEqual(2, self.recorded(service))

    def test_while_the_back_end_is_away_heartbeats_wait_and_none_is_told_twice(self) -> None:
        made = self.journaling()
        service = self.service(cloud.CELL1, "h1")
        node = self.compute_node(cloud.CELL1, "h1")
        made.flush()
        self.clients[-1].faults.go_down()
        for _ in range(5):
            self.heartbeat(service)
            # A changed row fails before heartbeats' turn comes.
            node.save()
            with self.assertRaises(errors.BackendUnavailable):
                made._turn()
        assert made.journal is not None
        self.assertEqual((5, 0), (made.journal.waiting, made._dirty.beats_waiting()))
        self.clients[-1].faults.come_up()
        made.flush()
        self.assertEqual([1, 2, 3, 4, 5], self.counts_of(service))

    def test_what_is_dropped_has_the_cell_swept_and_beats_say_so_until_then(self) -> None:
        made = self.journaling(max_waiting=3)
        asked: list[Any] = []
        made.on_lost = asked.append
        service = self.service(cloud.CELL1, "h1")
        made.flush()
        made._last_heartbeats = float("-inf")
        self.clients[-1].faults.go_down()
        for _ in range(5):
            self.heartbeat(service)
            with self.assertRaises(errors.BackendUnavailable):
                made._turn()
        self.clients[-1].faults.come_up()
        made.flush()
        # The first was on its way, and in doubt.
        self.assertEqual([1, 3, 4, 5], self.counts_of(service))
        with self.assertLogs(change_reporter.LOG, "WARNING"):
            made._turn()
        self.assertEqual([{cloud.CELL1}], asked)
        [beat] = self.states(known_namespaces.REPORTERS).values()
        self.assertEqual({cloud.CELL1: change_reporter.LOST_SECONDS}, beat["behind_seconds"])
        self.sweep(cloud.CELL1)
        made._last_beat = float("-inf")
        made._turn()
        [beat] = self.states(known_namespaces.REPORTERS).values()
        self.assertEqual({}, beat["behind_seconds"])

    def test_what_comes_while_the_journal_is_written_goes_to_the_journal(self) -> None:
        made = self.journaling()
        service = self.service(cloud.CELL1, "h1")
        made.flush()
        self.heartbeat(service)
        assert made.journal is not None
        own = made.journal.flush

        def flush() -> Any:
            flushed = own()
            self.heartbeat(service)
            return flushed

        made.journal.flush = flush  # type: ignore[method-assign]
        made.flush()
        self.assertEqual(([1], 0), (self.counts_of(service), self.recorded(service)))
        made.journal.flush = own  # type: ignore[method-assign]
        made.flush()
        self.assertEqual(([1, 2], 0), (self.counts_of(service), self.recorded(service)))

    def test_services_that_come_back_one_by_one_take_no_slot_each(self) -> None:
        made = self.journaling()
        now = made._clock()
        made._clock = lambda: now
        services = [self.service(cloud.CELL1, f"h{number}") for number in range(5)]
        made.flush()
        for service in services:
            # Never seen before, each of them.
            self.heartbeat(service)
            made._turn()
        self.assertEqual({}, self.journaled())
        now += 1.0
        made._turn()
        self.assertEqual(len(services), len(self.journaled()))
        figures = made.status().journal
        assert figures is not None
        self.assertEqual((0, 0, 1, 0), attrs.astuple(figures))

    def test_figures_outlast_the_ring_that_is_left(self) -> None:
        made = self.journaling(max_waiting=2)
        service = self.service(cloud.CELL1, "h1")
        for _ in range(3):
            self.heartbeat(service)
        made.flush()
        assert made.journal is not None
        self.assertEqual((0, 1, 1, 0), attrs.astuple(made.journal.figures()))
        made.journal.is_on = False
        made.flush()
        self.assertIsNone(made.journal.ring)
        self.assertEqual((0, 1, 1, 0), attrs.astuple(made.journal.figures()))

    def held(self, made: change_reporter.ChangeReporter) -> list[dict[str, float]]:
        """Have a service beat every ten seconds; return how late each beat says that it is."""
        now = made._clock()
        made._clock = lambda: now
        service = self.service(cloud.CELL1, "h1")
        said = []
        for _ in range(4):
            made._turn()
            [state] = self.states(known_namespaces.REPORTERS).values()
            said.append(state["behind_seconds"])
            now += 10.0
            self.heartbeat(service)
        return said

    def test_while_the_ring_has_no_room_beats_say_for_how_long_heartbeats_wait(self) -> None:
        # The first takes the only slot.
        said = self.held(self.journaling(max_slots=1))
        self.assertEqual([{}, {}, {cloud.CELL1: 10.0}, {cloud.CELL1: 20.0}], said)

    def test_while_nobody_knows_where_they_go_beats_say_for_how_long_heartbeats_wait(
        self,
    ) -> None:
        made = self.journaling()
        assert made.journal is not None
        made.journal.decided_until = float("-inf")
        said = self.held(made)
        self.assertEqual([{}, *({cloud.CELL1: each} for each in (10.0, 20.0, 30.0))], said)
        made.journal.decided_until = float("inf")
        made._turn()
        [state] = self.states(known_namespaces.REPORTERS).values()
        self.assertEqual({}, state["behind_seconds"])

    def test_who_leaves_with_heartbeats_in_the_journal_does_not_say_goodbye(self) -> None:
        made = self.journaling(max_slots=1)
        service = self.service(cloud.CELL1, "h1")
        made.flush()
        made._turn()
        for _ in range(2):
            self.heartbeat(service)
            made.flush()
        made._leave()
        self.assertEqual(1, len(self.states(known_namespaces.REPORTERS)))

    def test_it_says_goodbye_when_all_of_it_stands_there(self) -> None:
        made = self.journaling()
        service = self.service(cloud.CELL1, "h1")
        made._turn()
        self.heartbeat(service)
        made._leave()
        self.assertEqual({}, self.states(known_namespaces.REPORTERS))
        self.assertEqual([1], self.counts_of(service))

    def test_forged_counts_take_no_true_ones_along(self) -> None:
        dirty = dirty_records.DirtyRecords(10, lambda: 0.0)
        for count in (7, 2**31 - 1, 8, 9):
            dirty.beat("c", "s", count, None, 1000.0 + count % 7, keeps_each=True)
        told = [[each.report_count for each in beat.each or ()] for beat in dirty.take_heartbeats()]
        self.assertEqual([[7, 8, 9], [2**31 - 1]], told)

    def test_of_one_service_no_more_wait_than_a_journal_takes(self) -> None:
        dirty = dirty_records.DirtyRecords(10, lambda: 0.0)
        for count in range(1000):
            dirty.beat("c", "s", count, None, 1000.0 + count, keeps_each=True)
        [beat] = dirty.take_heartbeats()
        self.assertEqual(1000, beat.seen)
        self.assertEqual(list(range(936, 1000)), [each.report_count for each in beat.each or ()])
