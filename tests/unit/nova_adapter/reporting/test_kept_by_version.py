# SPDX-License-Identifier: Apache-2.0
"""What each request asks of all hosts is made once, until what it is made of changes."""

from __future__ import annotations

import random

from nova_nodb_scheduler.nova_adapter.reads import request_views
from nova_nodb_scheduler.nova_adapter.reporting import change_reporter, scopes, state_proof
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import store_snapshot
from tests.unit.nova_adapter.reporting import test_proof
from tests.unit.scheduling import hosts

A, B = test_proof.A, test_proof.B
SERVICES = 600


class KeptByVersionTest(test_proof.JudgeTest):
    """All that is true of a judge, and how often it passes over columns."""

    def setUp(self) -> None:
        super().setUp()
        self.built = request_views.BuiltObjects()
        for number in range(SERVICES):
            cell = (A, B)[number % 2]
            state = hosts.service(f"s{number}", f"h{number}", cell)
            self.put(known_namespaces.SERVICES, f"s{number}", state)
            self.liveness(f"idle{number}", cell, 0)

    def view(self, namespace: str) -> store_snapshot.NamespaceView:
        return self.store.snapshot().namespace(namespace)

    def passes(self, namespace: str) -> int:
        """Return how many columns somebody had to gather of the present view."""
        return len(self.view(namespace)._arrays)

    def versions(self) -> dict[str, int]:
        found = request_views.MemoryReads(self.store.snapshot(), 1, self.built, None)
        return found.minimum_service_versions(A, ["nova-compute", "nova-none"])

    def test_judging_after_heartbeats_passes_over_no_column(self) -> None:
        self.found()
        for count in range(10, 20):
            state = {"cell": A, "report_count": count, "unreported": 0}
            self.put(known_namespaces.SERVICE_LIVENESS, "idle0", state)
            self.assertEqual({}, self.found())
            self.assertEqual(0, self.passes(known_namespaces.SERVICE_LIVENESS.name))

    def test_an_unreported_heartbeat_among_others_is_found_at_once(self) -> None:
        self.found()
        self.liveness("idle4", A, 1)
        self.found()
        self.assertLess(0, self.passes(known_namespaces.SERVICE_LIVENESS.name))
        self.now += test_proof.GRACE + 1
        self.assertEqual({A: state_proof.UnprovedReason.UNREPORTED}, self.found())

    def test_a_service_that_is_gone_takes_what_it_did_not_report_along(self) -> None:
        self.liveness("idle4", A, 1)
        self.found()
        self.now += test_proof.GRACE + 1
        self.put(known_namespaces.SERVICE_LIVENESS, "idle4", None)
        self.assertEqual({}, self.found())

    def test_a_new_epoch_keeps_nothing_of_the_former_one(self) -> None:
        self.liveness("idle4", A, 1)
        self.found()
        self.store.begin_epoch()
        self.assertEqual({}, self.judge._unreported(self.store.snapshot()))

    def test_what_sweeps_said_is_read_once_and_seen_at_once_when_another_says_it(self) -> None:
        self.assertEqual({}, self.found())
        kept = self.judge._swept_seen
        self.beat("api", cell=change_reporter.EVERY_CELL)
        self.assertEqual({}, self.found())
        self.assertIs(kept, self.judge._swept_seen)
        before, cold = self.store.snapshot(), state_proof.UnprovedReason.COLD
        self.swept(A, epoch="e0")
        self.assertEqual({A: cold}, self.found())
        # Of other scopes, and of a view that another thread took before.
        self.assertEqual({}, self.judge.judge(self.store.snapshot(), [B]).missing)
        self.assertEqual({A: cold}, self.judge.judge(self.store.snapshot(), [A, B]).missing)
        self.assertEqual({}, self.judge.judge(before, [A, B]).missing)
        self.assertEqual({A: cold}, self.found())
        self.swept(A, unnamed=1)
        self.assertEqual({A}, self.judge.judge(self.store.snapshot(), [A, B]).unnamed)
        self.assertEqual(set(), self.judge.judge(self.store.snapshot(), [B]).unnamed)
        self.epoch = "e2"
        self.assertEqual(dict.fromkeys((A, B, scopes.API), cold), self.found())
        self.epoch = "e1"
        self.put(known_namespaces.CELLS, A, None)
        self.assertEqual({A: cold}, self.found())
        self.store.begin_epoch()
        self.assertEqual(dict.fromkeys((A, B, scopes.API), cold), self.found())

    def test_least_versions_are_looked_for_once_until_one_changes(self) -> None:
        least = self.versions()
        self.assertEqual({"nova-compute"}, set(least))
        state = hosts.service("s0", "h0", A)
        disabled = {**state, "row": {**state["row"], "disabled": True}}
        self.put(known_namespaces.SERVICES, "s0", disabled)
        self.assertEqual(least, self.versions())
        self.assertEqual(0, self.passes(known_namespaces.SERVICES.name))
        older = {**state, "row": {**state["row"], "version": 3}}
        self.put(known_namespaces.SERVICES, "s0", older)
        self.assertEqual({"nova-compute": 3}, self.versions())
        # Forced down it does not count, as in Nova's own query.
        self.put(
            known_namespaces.SERVICES, "s0", {**older, "row": {**older["row"], "forced_down": True}}
        )
        self.assertEqual(least, self.versions())
        self.put(known_namespaces.SERVICES, "s0", older)
        self.put(known_namespaces.SERVICES, "s0", None)
        self.assertEqual(least, self.versions())

    def test_a_cell_costs_no_look_at_each_reporter_while_all_are_in_time(self) -> None:
        looked = []

        class Counted(dict):  # type: ignore[type-arg]
            def __getitem__(self, name: str) -> object:
                looked.append(name)
                return super().__getitem__(name)

        heartbeats = state_proof.ReporterHeartbeats(
            [
                Counted(cell=A, guards=[A], since=500.0, beat_at=1000.0, behind_seconds={})
                for _number in range(150)
            ]
        )
        looked.clear()
        for _time in range(50):
            swept = {"swept_from": 900.0}
            self.assertIsNone(self.judge._path(A, heartbeats, swept, self.backend_now))
        self.assertEqual([], looked)

    def test_what_is_kept_of_beats_judges_as_a_look_at_each_of_them(self) -> None:
        dice = random.Random(3)
        for _trial in range(3000):
            states = [
                {
                    "cell": dice.choice([A, B, change_reporter.EVERY_CELL]),
                    "guards": dice.sample([A, B], dice.randrange(3)),
                    "since": dice.choice([100.0, 900.0, 950.0]),
                    "beat_at": self.backend_now
                    - dice.choice([-99.0, -3.0, 0.0, 5.0, 15.0, 15.5, 40.0]),
                    "behind_seconds": dice.choice([{}, {}, {A: 3.0}, {B: 14.0}, {A: 0.0}]),
                }
                for _each in range(dice.randrange(4))
            ]
            kept, each = (
                state_proof.ReporterHeartbeats(states),
                state_proof.ReporterHeartbeats(states),
            )
            each._readable = False
            for scope in (A, B, scopes.API):
                swept = {"swept_from": dice.choice([900.0, 980.0, 1000.0, 9000.0])}
                self.assertEqual(
                    self.judge._path(scope, each, swept, self.backend_now),
                    self.judge._path(scope, kept, swept, self.backend_now),
                    (scope, states),
                )
