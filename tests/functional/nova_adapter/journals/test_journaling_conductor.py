# SPDX-License-Identifier: Apache-2.0
"""Conductors that are configured for journals, and what others have of them: nothing."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any
from unittest import mock

from nova import objects

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter import assembly, conductor_manager
from nova_nodb_scheduler.nova_adapter.liveness import service_heartbeats
from nova_nodb_scheduler.nova_adapter.reporting import (
    change_reporter,
    journal_keeper,
    journal_writer,
)
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.drivers.memory.driver import MemorySynchronizer
from nova_nodb_scheduler.synchronizer.records import heartbeat_ring
from nova_nodb_scheduler.testing import patience
from tests.functional.nova_adapter import cloud

_WAIT_SECONDS = 60.0


class _Placement:
    """Nova's report client, which nothing here asks."""


class ConductorCase(cloud.CloudCase):
    def setUp(self) -> None:
        super().setUp()
        client = mock.patch("nova.scheduler.client.report.report_client_singleton", new=_Placement)
        client.start()
        self.addCleanup(client.stop)
        for name, value in (
            ("claims", "off"),
            ("verify_allocations", "never"),
            ("beat_interval_seconds", 0.2),
            ("heartbeat_flush_interval_seconds", 0.2),
        ):
            self.override(name, value, "nodb_scheduler")
        self.override("service_down_time", 30, None)
        self.addCleanup(change_reporter.install, None, None)
        self.addCleanup(service_heartbeats.install_storage, None)

    def configure(self, **options: Any) -> None:
        for name, value in options.items():
            self.override(name, value, "nodb_scheduler")
        self.plugin = assembly.Plugin(cloud.CONF)
        assembly.install(self.plugin)

    def conduct(self) -> change_reporter.ChangeReporter:
        manager = conductor_manager.ConductorManager()
        manager.init_host(None)
        self.addCleanup(manager.nodb_stop)
        assert manager._nodb_reporter is not None
        return manager._nodb_reporter

    def beats(self) -> list[Mapping[str, Any]]:
        return list(self.states(known_namespaces.REPORTERS).values())

    def until(self, holds: Any, what: str) -> None:
        patience.wait_until(holds, _WAIT_SECONDS, what)


class OnTest(ConductorCase):
    def test_a_conductor_comes_to_journal_and_says_so_and_rows_are_written(self) -> None:
        self.configure(heartbeat_journals=True)
        reporter = self.conduct()
        service = self.service(cloud.CELL1, "h1")
        self.until(
            lambda: service.uuid in self.states(known_namespaces.SERVICE_LIVENESS), "its record"
        )
        self.until(lambda: any(each["journals"] for each in self.beats()), "it does not journal")
        for _ in range(3):
            self.heartbeat(service)
        self.until(lambda: self.states(known_namespaces.HEARTBEAT_JOURNALS), "no slot is written")
        self.until(lambda: any("journal" in each for each in self.beats()), "its ring is not told")
        [beat] = self.beats()
        [key, *_] = self.states(known_namespaces.HEARTBEAT_JOURNALS)
        self.assertEqual(beat["journal"], key.rpartition(".")[0])
        self.assertIs(True, beat["heartbeat_journals"])
        self.assertEqual("database", beat["service_heartbeats"])
        figures = reporter.status().journal
        assert figures is not None
        self.assertGreaterEqual(figures.slots, 1)
        self.assertEqual(0, self.states(known_namespaces.SERVICE_LIVENESS)[service.uuid]["seen"])
        row = objects.Service.get_by_uuid(self.context(cloud.CELL1), service.uuid)
        self.assertEqual(3, row.report_count)

    def test_a_reporter_that_sends_no_beats_and_those_of_others_make_no_journal(self) -> None:
        self.configure(heartbeat_journals=True)
        for role, beats in (("conductor", False), ("api", True), ("manage", False)):
            made = self.plugin.reporter(role, lambda: change_reporter.EVERY_CELL, heartbeats=beats)
            self.assertIsNone(made.journal, role)

    def test_it_looks_at_the_others_though_another_mode_cannot_be_looked_at(self) -> None:
        self.configure(heartbeat_journals=True)
        with mock.patch.object(
            assembly.Plugin,
            "_look_at_modes",
            autospec=True,
            side_effect=errors.BackendUnavailable("memory", "x"),
        ):
            reporter = self.conduct()
            self.until(
                lambda: reporter.journal is not None and reporter.journal.is_on, "it never looked"
            )

    def test_a_conductor_beside_one_that_is_not_configured_writes_records(self) -> None:
        self.configure(heartbeat_journals=True)
        reporter = self.conduct()
        self.until(
            lambda: reporter.journal is not None and reporter.journal.is_on, "it does not journal"
        )
        self.override("heartbeat_journals", False, "nodb_scheduler")
        other = assembly.Plugin(cloud.CONF).reporter(
            "conductor", lambda: cloud.CELL1, lambda: (cloud.CELL1,)
        )
        self.assertIsNone(other.journal)
        other.ensure_started()
        self.addCleanup(other.stop)
        self.until(
            lambda: reporter.journal is not None and not reporter.journal.is_on, "it goes on"
        )
        self.assertFalse(any(each.get("journals") for each in self.beats() if "journal" in each))


class OffTest(ConductorCase):
    def test_nothing_of_it_is_made_written_or_said(self) -> None:
        made: collections.Counter[str] = collections.Counter()
        for cls in (
            journal_writer.JournalWriter,
            journal_keeper.JournalKeeper,
            heartbeat_ring.HeartbeatRing,
        ):
            own = cls.__init__

            def making(each: Any, *args: Any, _own: Any = own, **kwargs: Any) -> None:
                made[type(each).__name__] += 1
                _own(each, *args, **kwargs)

            patched = mock.patch.object(cls, "__init__", making)
            patched.start()
            self.addCleanup(patched.stop)
        reporter = self.conduct()
        service = self.service(cloud.CELL1, "h1")
        self.heartbeat(service)
        self.until(
            lambda: len(self.beats()) == 1 and self.beats()[0]["beat"] > 3, "it does not beat"
        )
        self.assertEqual({}, made)
        self.assertIsNone(reporter.journal)
        self.assertIsNone(reporter.status().journal)
        [beat] = self.beats()
        self.assertEqual(set(), {"heartbeat_journals", "journals", "journal"} & beat.keys())
        self.assertEqual({}, self.states(known_namespaces.HEARTBEAT_JOURNALS))

    def test_beats_ask_the_back_end_for_nothing_more(self) -> None:
        # The beat itself, and its time.
        self.assertEqual({"now_seconds": 1, "read": 1}, self._asked(wanted=False))
        # Who is configured looks at the others behind it, by a snapshot whose fence is read.
        self.assertEqual({"now_seconds": 2, "read": 2, "snapshot": 1}, self._asked(wanted=True))

    def _asked(self, *, wanted: bool) -> collections.Counter[str]:
        """Return what a reporter asks its back end in a turn with a beat, by call."""
        self.configure(heartbeat_journals=wanted)
        reporter = self.report(cloud.CELL1, cloud.CELL1)
        reporter.standstills = None
        for _ in range(3):
            self._beat(reporter)
        counts: collections.Counter[str] = collections.Counter()
        with mock.patch.multiple(
            MemorySynchronizer,
            **{name: _counted(name, counts) for name in ("read", "snapshot", "now_seconds")},
        ):
            self._beat(reporter)
        return counts

    def _beat(self, reporter: change_reporter.ChangeReporter) -> None:
        reporter._last_beat = float("-inf")
        reporter._turn()


def _counted(name: str, counts: collections.Counter[str]) -> Any:
    own = getattr(MemorySynchronizer, name)

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        counts[name] += 1
        return own(self, *args, **kwargs)

    return counting


class RefusedTest(ConductorCase):
    def test_stored_heartbeats_are_no_journals(self) -> None:
        self.configure(heartbeat_journals=True, service_heartbeats="store")
        with self.assertRaises(errors.ConfigurationError) as caught:
            self.plugin.check()
        self.assertIn("service_heartbeats = store", str(caught.exception))
        self.override("service_heartbeats", "both", "nodb_scheduler")
        self.plugin.check()

    def test_a_ring_that_has_no_room_for_each_flush_is_refused_by_its_numbers(self) -> None:
        self.override("service_down_time", 60, None)
        self.configure(heartbeat_journals=True, heartbeat_flush_interval_seconds=0.25)
        with self.assertRaises(errors.ConfigurationError) as caught:
            self.plugin.check()
        self.assertIn("reaches 150 s back, more than 512 flushes", str(caught.exception))
        self.override("heartbeat_flush_interval_seconds", 0.3, "nodb_scheduler")
        self.plugin.check()
        self.override("heartbeat_flush_interval_seconds", 0.25, "nodb_scheduler")
        self.override("heartbeat_journals", False, "nodb_scheduler")
        self.plugin.check()
