# SPDX-License-Identifier: Apache-2.0
"""Each reason for which a cell is not read from memory, and none without a reason."""

from __future__ import annotations

import unittest
from collections.abc import Mapping
from typing import Any

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.reporting import change_reporter, scopes, state_proof
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.replication import ingest
from nova_nodb_scheduler.wire import codec

A, B = "cell-a", "cell-b"
BOUND = 15.0
GRACE = 3.0


class JudgeCase(unittest.TestCase):
    """Two cells, swept after their conductors began; nova-api writes both."""

    def setUp(self) -> None:
        self.store = host_state_store.HostStateStore(known_namespaces.BUILT_IN, codec.decode_state)
        self.quarantine = ingest.Quarantine(limit=100)
        self.revision = 0
        self.alive = True
        self.epoch = "e1"
        self.backend_now = 1000.0
        self.now = 50.0
        self.judge = state_proof.StateJudge(
            lambda bound: self.alive,
            lambda: self.epoch,
            self.quarantine,
            lambda: self.backend_now,
            state_proof.ProofOptions(
                feed_bound_seconds=10.0,
                reporter_bound_seconds=BOUND,
                unreported_grace_seconds=GRACE,
            ),
            clock=lambda: self.now,
        )
        for cell in (A, B):
            self.beat(f"conductor-{cell}", cell=cell, guards=[cell])
        self.beat("api", cell=change_reporter.EVERY_CELL)
        for scope in (A, B, scopes.API):
            self.swept(scope)

    def put(self, namespace: Any, key: str, state: Mapping[str, Any] | None) -> None:
        self.revision += 1
        payload = codec.encode(state, namespace.schema) if state is not None else b""
        record = records.Record(
            records.RecordKey(namespace.name, key),
            self.revision,
            self.revision,
            payload,
            deleted=state is None,
        )
        self.store.apply(records.Change(record, state))

    def beat(self, name: str, **changed: Any) -> None:
        state = {
            "guards": [],
            "binary": "conductor",
            "since": 500.0,
            "beat_at": self.backend_now,
            "behind_seconds": {},
            **changed,
        }
        self.put(known_namespaces.REPORTERS, name, state)

    def swept(self, scope: str, **changed: Any) -> None:
        state = {"cell": scope, "epoch": "e1", "swept_from": 900.0, "unreported": 0, **changed}
        self.put(known_namespaces.CELLS, scope, state)

    def liveness(self, service: str, cell: str, unreported: int) -> None:
        state = {"cell": cell, "report_count": 9, "unreported": unreported}
        self.put(known_namespaces.SERVICE_LIVENESS, service, state)

    def quarantined(self, namespace: Any, key: str) -> None:
        self.revision += 1
        record = records.Record(
            records.RecordKey(namespace.name, key), self.revision, self.revision, b"?"
        )
        self.quarantine.admit(record, "damaged")


class JudgeTest(JudgeCase):
    def found(self) -> dict[str, state_proof.UnprovedReason]:
        judged = self.judge.judge(self.store.snapshot(), [A, B, scopes.API])
        return dict(judged.missing)

    def test_cells_with_living_reporters_and_a_sweep_are_proved(self) -> None:
        self.assertEqual({}, self.found())

    def test_a_refused_name_leaves_its_cell_proved_and_is_told(self) -> None:
        self.swept(A, unnamed=1)
        self.beat("api", cell=change_reporter.EVERY_CELL, unnamed=[scopes.API, "elsewhere"])
        judged = self.judge.judge(self.store.snapshot(), [A, B, scopes.API])
        self.assertEqual({}, judged.missing)
        self.assertEqual({A, scopes.API}, judged.unnamed)

    def test_a_dead_feed_proves_nothing(self) -> None:
        self.alive = False
        self.assertEqual(
            dict.fromkeys((A, B, scopes.API), state_proof.UnprovedReason.FEED), self.found()
        )

    def test_a_cell_that_was_never_swept_is_cold_and_the_other_is_not(self) -> None:
        self.put(known_namespaces.CELLS, B, None)
        self.assertEqual({B: state_proof.UnprovedReason.COLD}, self.found())

    def test_a_new_epoch_makes_every_cell_cold_until_it_is_swept(self) -> None:
        self.epoch = "e2"
        self.swept(A, epoch="e2")
        self.assertEqual(
            dict.fromkeys((B, scopes.API), state_proof.UnprovedReason.COLD), self.found()
        )

    def test_a_cell_without_a_conductor_that_reports(self) -> None:
        self.put(known_namespaces.REPORTERS, f"conductor-{A}", None)
        self.assertEqual({A: state_proof.UnprovedReason.NO_REPORTER}, self.found())

    def test_a_conductor_that_began_after_the_sweep_proves_nothing_before_it(self) -> None:
        self.beat(f"conductor-{A}", cell=A, guards=[A], since=950.0)
        self.assertEqual({A: state_proof.UnprovedReason.UNSWEPT}, self.found())
        # One that was there covers for it.
        self.beat("conductor-2", cell=A, guards=[A])
        self.assertEqual({}, self.found())

    def test_a_conductor_that_fell_silent(self) -> None:
        self.beat(f"conductor-{A}", cell=A, guards=[A], beat_at=self.backend_now - BOUND - 1)
        self.assertEqual({A: state_proof.UnprovedReason.SILENT_REPORTER}, self.found())
        # A second one that lives does not make its silence good: they share the cell.
        self.beat("conductor-2", cell=A, guards=[A])
        self.assertEqual({A: state_proof.UnprovedReason.SILENT_REPORTER}, self.found())

    def test_a_silent_api_counts_against_each_cell_until_that_cell_was_swept(self) -> None:
        self.backend_now = 2000.0
        for cell in (A, B):
            self.beat(f"conductor-{cell}", cell=cell, guards=[cell])
        silent = state_proof.UnprovedReason.SILENT_REPORTER
        self.assertEqual(dict.fromkeys((A, B, scopes.API), silent), self.found())
        self.swept(A, swept_from=1000.0 + BOUND + 1)
        self.assertEqual(dict.fromkeys((B, scopes.API), silent), self.found())
        # What it was behind with died with it, and the sweep found that, too.
        self.beat("api", cell=change_reporter.EVERY_CELL, beat_at=1000.0, behind_seconds={A: 5.0})
        self.assertNotIn(A, self.found())

    def test_a_delta_sweep_makes_an_apis_silence_good_and_no_conductors(self) -> None:
        self.backend_now = 2000.0
        for cell in (A, B):
            self.beat(f"conductor-{cell}", cell=cell, guards=[cell])
        for scope in (A, B, scopes.API):
            self.swept(scope, delta_from=1000.0 + BOUND + 1)
        self.assertEqual({}, self.found())
        self.beat(f"conductor-{A}", cell=A, guards=[A], beat_at=1000.0)
        self.assertEqual({A: state_proof.UnprovedReason.SILENT_REPORTER}, self.found())
        # Nor does it prove what was written before a conductor began.
        self.beat(f"conductor-{A}", cell=A, guards=[A], since=950.0)
        self.assertEqual({A: state_proof.UnprovedReason.UNSWEPT}, self.found())

    def test_a_silent_conductor_that_writes_every_cell_counts_against_each(self) -> None:
        self.backend_now = 2000.0
        self.beat("api", cell=change_reporter.EVERY_CELL)
        self.beat(f"conductor-{B}", cell=B, guards=[B])
        self.beat("other", cell=A, guards=[A])
        of_all = {"cell": A, "guards": [A], "writes_every_cell": True}
        self.beat(f"conductor-{A}", **of_all)
        self.assertEqual({}, self.found())
        self.beat(f"conductor-{A}", **of_all, beat_at=1000.0)
        silent = state_proof.UnprovedReason.SILENT_REPORTER
        self.assertEqual(dict.fromkeys((A, B, scopes.API), silent), self.found())
        # A delta makes its silence good where it is no conductor of the cell.
        for scope in (A, B, scopes.API):
            self.swept(scope, delta_from=1000.0 + BOUND + 1)
        self.assertEqual({A: silent}, self.found())

    def test_a_sweep_from_the_future_proves_nothing(self) -> None:
        self.swept(A, swept_from=self.backend_now + 10_000.0)
        self.assertEqual({A: state_proof.UnprovedReason.UNSWEPT}, self.found())
        # A clock may lead a little.
        self.swept(A, swept_from=self.backend_now + 5.0)
        self.assertEqual({}, self.found())

    def test_a_sweep_from_the_future_makes_no_silence_good(self) -> None:
        self.backend_now = 2000.0
        for cell in (A, B):
            self.beat(f"conductor-{cell}", cell=cell, guards=[cell])
        for scope in (A, B, scopes.API):
            self.swept(scope, delta_from=1e18)
        silent = state_proof.UnprovedReason.SILENT_REPORTER
        self.assertEqual(dict.fromkeys((A, B, scopes.API), silent), self.found())

    def test_a_beat_from_the_future_is_no_sign_of_life(self) -> None:
        self.beat(f"conductor-{A}", cell=A, guards=[A], beat_at=self.backend_now + 10_000.0)
        self.assertEqual({A: state_proof.UnprovedReason.SILENT_REPORTER}, self.found())

    def test_a_reporter_that_is_behind_counts_against_the_scope_it_is_behind_in(self) -> None:
        self.beat("api", cell=change_reporter.EVERY_CELL, behind_seconds={A: BOUND + 1, B: 1.0})
        self.assertEqual({A: state_proof.UnprovedReason.BEHIND}, self.found())
        self.beat(
            "api", cell=change_reporter.EVERY_CELL, behind_seconds={B: change_reporter.LOST_SECONDS}
        )
        self.assertEqual({B: state_proof.UnprovedReason.BEHIND}, self.found())

    def test_age_of_a_queue_grows_while_the_reporter_is_silent(self) -> None:
        self.beat("api", cell=change_reporter.EVERY_CELL, behind_seconds={A: 8.0})
        self.assertEqual({}, self.found())
        self.backend_now += 8.0
        self.assertEqual({A: state_proof.UnprovedReason.BEHIND}, self.found())

    def test_heartbeats_that_nobody_reported_count_after_their_time_of_grace(self) -> None:
        self.liveness("s1", A, 1)
        self.liveness("s2", A, 0)
        self.assertEqual({}, self.found())
        self.now += GRACE
        self.assertEqual({}, self.found())
        self.now += 0.1
        self.assertEqual({A: state_proof.UnprovedReason.UNREPORTED}, self.found())
        # A sweep settles them in the service's own record.
        self.liveness("s1", A, 0)
        self.assertEqual({}, self.found())

    def test_a_batch_that_crossed_has_its_grace_again_the_next_time(self) -> None:
        for _ in range(3):
            self.liveness("s1", A, 1)
            self.assertEqual({}, self.found())
            self.now += GRACE - 0.1
            self.assertEqual({}, self.found())
            self.liveness("s1", A, 0)
            self.assertEqual({}, self.found())
            self.now += GRACE

    def test_one_services_surplus_does_not_hide_what_another_lacks(self) -> None:
        self.liveness("s1", A, -5)
        self.liveness("s2", A, 2)
        self.found()
        self.now += GRACE + 1
        self.assertEqual({A: state_proof.UnprovedReason.UNREPORTED}, self.found())

    def test_an_unreadable_record_counts_against_its_cell(self) -> None:
        state = {"cell": B, "object_version": "1.19", "row": {"host": "h"}}
        self.put(known_namespaces.COMPUTE_NODES, "u1", state)
        self.quarantined(known_namespaces.COMPUTE_NODES, "u1")
        self.assertEqual({B: state_proof.UnprovedReason.QUARANTINE}, self.found())

    def test_an_unreadable_record_of_nobody_knows_which_cell_counts_against_all_cells(self) -> None:
        self.quarantined(known_namespaces.INSTANCES, "new")
        self.assertEqual(dict.fromkeys((A, B), state_proof.UnprovedReason.QUARANTINE), self.found())

    def test_an_unreadable_aggregate_counts_against_the_api_database(self) -> None:
        # Left out, it would open the hosts it isolates.
        self.quarantined(known_namespaces.AGGREGATES, "agg")
        self.assertEqual({scopes.API: state_proof.UnprovedReason.QUARANTINE}, self.found())

    def test_an_unreadable_reporter_counts_against_all(self) -> None:
        self.quarantined(known_namespaces.REPORTERS, "who")
        self.assertEqual(
            dict.fromkeys((A, B, scopes.API), state_proof.UnprovedReason.QUARANTINE), self.found()
        )

    def test_a_record_that_was_repaired_since_counts_as_it_was_before_the_snapshot(self) -> None:
        self.quarantined(known_namespaces.COMPUTE_NODES, "new")
        before = self.judge.unreadable()
        self.quarantine.clear()

        self.assertEqual({}, self.judge.judge(self.store.snapshot(), [A]).missing)
        found = self.judge.judge(self.store.snapshot(), [A], before).missing
        self.assertEqual({A: state_proof.UnprovedReason.QUARANTINE}, found)

    def test_an_unreadable_migration_counts_against_the_cell_it_is_in(self) -> None:
        # It may be all that tells of a member of a server group on a host.
        row = {"instance_uuid": "i", "source_compute": "h1", "dest_compute": "h2"}
        self.put(known_namespaces.MIGRATIONS, f"m@{B}", {"cell": B, "row": row})
        self.quarantined(known_namespaces.MIGRATIONS, f"m@{B}")
        self.assertEqual({B: state_proof.UnprovedReason.QUARANTINE}, self.found())

    def test_an_unreadable_record_of_no_interest_counts_against_nobody(self) -> None:
        self.quarantined(known_namespaces.PROVIDERS, "p")
        self.assertEqual({}, self.found())


if __name__ == "__main__":
    unittest.main()
