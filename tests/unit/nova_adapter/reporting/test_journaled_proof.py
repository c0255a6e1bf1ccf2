# SPDX-License-Identifier: Apache-2.0
"""A cell whose conductors journal heartbeats is proved by journals, and by nothing less."""

from __future__ import annotations

import uuid

from nova_nodb_scheduler.nova_adapter.reporting import state_proof
from nova_nodb_scheduler.scheduling.facts import journal_follower, journal_reader
from nova_nodb_scheduler.scheduling.namespaces import heartbeat_journals, known_namespaces
from tests.unit.nova_adapter.reporting import test_proof

A, B, GRACE = test_proof.A, test_proof.B, test_proof.GRACE
SERVICE = str(uuid.UUID(int=7))
START = 1_790_000_000.0
UNREPORTED = state_proof.UnprovedReason.UNREPORTED
QUARANTINE = state_proof.UnprovedReason.QUARANTINE


class JournaledProofTest(test_proof.JudgeCase):
    def setUp(self) -> None:
        super().setUp()
        reader = journal_reader.JournalReader(
            lambda: journal_follower.JournalFollower(GRACE, 1e6, lambda: START),
            lambda: self.epoch,
            lambda: self.now,
        )
        self.judge._journals = reader
        self.liveness(SERVICE, A, 0)
        self.flushes = 0

    def conductor(self, name: str, cell: str = A, *, journals: bool) -> None:
        self.beat(name, cell=cell, guards=[cell], journals=journals)

    def slot(self, *counts: int, name: str = "ring.0") -> None:
        self.flushes += 1
        number = heartbeat_journals.service_id(SERVICE)
        assert number is not None
        slot = heartbeat_journals.slot_of(
            A,
            self.flushes,
            [number] * len(counts),
            counts,
            [heartbeat_journals.tick_of(START + 10 * count) for count in counts],
        )
        self.put(known_namespaces.HEARTBEAT_JOURNALS, name, heartbeat_journals.state_of(slot))

    def found(self) -> dict[str, state_proof.UnprovedReason]:
        return dict(self.judge.judge(self.store.snapshot(), [A, B]).missing)

    def lasts(self) -> dict[str, state_proof.UnprovedReason]:
        """Judge, and again behind the grace."""
        self.found()
        self.now += GRACE + 0.1
        return self.found()

    def test_a_count_that_no_journal_names_counts_behind_the_grace_until_a_sweep(self) -> None:
        self.conductor(f"conductor-{A}", journals=True)
        self.slot(10)
        self.slot(12, name="ring.1")
        shown = self.revision
        self.assertEqual({}, self.found())
        self.now += GRACE + 0.1
        self.assertEqual({A: UNREPORTED}, self.found())
        self.swept(A, swept_version=shown - 1)
        self.assertEqual({A: UNREPORTED}, self.found())
        self.swept(A, swept_version=shown)
        self.assertEqual({}, self.found())

    def test_what_records_lack_says_nothing_where_all_conductors_journal(self) -> None:
        self.liveness(SERVICE, A, 5)
        self.assertEqual({A: UNREPORTED}, self.lasts())
        self.conductor(f"conductor-{A}", journals=True)
        self.assertEqual({}, self.lasts())

    def test_it_counts_as_long_as_one_of_them_does_not_and_so_do_journals(self) -> None:
        self.conductor(f"conductor-{A}", journals=True)
        self.conductor("conductor-2", journals=False)
        self.assertEqual({}, self.lasts())
        self.liveness(SERVICE, A, 5)
        self.assertEqual({A: UNREPORTED}, self.lasts())
        self.liveness(SERVICE, A, 0)
        self.assertEqual({}, self.lasts())
        self.slot(10)
        self.slot(12, name="ring.1")
        self.assertEqual({A: UNREPORTED}, self.lasts())

    def test_journals_count_where_none_of_them_journals_any_more(self) -> None:
        self.slot(10)
        self.slot(12, name="ring.1")
        self.assertEqual({A: UNREPORTED}, self.lasts())

    def test_slots_that_nobody_can_read_count_against_cells_that_journal(self) -> None:
        self.conductor(f"conductor-{A}", journals=True)
        self.slot(10)
        self.assertEqual({}, self.found())
        self.put(known_namespaces.HEARTBEAT_JOURNALS, "ring.1", {"cell": A})
        self.assertEqual({A: QUARANTINE}, self.found())
        self.slot(11, name="ring.1")
        self.assertEqual({}, self.found())
        # As one of another release would look to this one.
        self.quarantined(known_namespaces.HEARTBEAT_JOURNALS, "ring.2")
        self.assertEqual({A: QUARANTINE}, self.found())

    def test_late_seconds_says_what_is_true_where_a_conductor_says_both(self) -> None:
        told = {"behind_seconds": {A: 1e9}, "cell": A, "guards": [A], "journals": True}
        self.beat(f"conductor-{A}", **told)
        self.assertEqual({A: state_proof.UnprovedReason.BEHIND}, self.found())
        self.beat(f"conductor-{A}", **told, late_seconds={})
        self.assertEqual({}, self.found())
        self.beat(f"conductor-{A}", **told, late_seconds={A: 20.0})
        self.assertEqual({A: state_proof.UnprovedReason.BEHIND}, self.found())

    def test_a_new_epoch_is_cold_whatever_journals_told(self) -> None:
        self.conductor(f"conductor-{A}", journals=True)
        self.slot(10)
        self.epoch = "e2"
        self.assertEqual(dict.fromkeys((A, B), state_proof.UnprovedReason.COLD), self.found())
