# SPDX-License-Identifier: Apache-2.0
"""However schedulers meet, die and sleep, no host gets more than it has, and nothing leaks.

Set NODB_PROPERTY_EXAMPLES for more operations than CI runs, or see placing_storm.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence

import attrs
import testtools

from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts
from nova_nodb_scheduler.synchronizer.claims import ledger_claimer
from tests.unit.synchronizer.claims import placing_storm, placing_trial

#: As the other property tests count; a storm has a few hundred operations.
STORMS = max(1, int(os.environ.get("NODB_PROPERTY_EXAMPLES", "200")) // 100)


class StormTest(testtools.TestCase):
    def test_a_back_end_that_loses_messages(self):
        for seed in range(STORMS):
            storm = placing_storm.memory_storm(seed)
            storm.run()
            self.assertGreater(storm.counts["granted"], 0)
            self.assertEqual(set(ledger_claimer.ClaimBatches.STEPS), self.steps_of(storm))

    def test_sqlite(self):
        with tempfile.TemporaryDirectory() as directory:
            url = f"sqlite:///{directory}/storm.sqlite"
            for seed in range(max(1, STORMS // 2)):
                storm = placing_storm.shared_storm(
                    lambda: placing_storm.sql_client(url), seed, operations=25, threads=3
                )
                storm.run()
                self.assertGreater(storm.counts["granted"], 0)

    def steps_of(self, storm: placing_storm.Storm) -> set[str]:
        """Return the steps of the claims' protocol that were taken."""
        own = {"before the write", "written", "removed"}
        return set(storm.steps) - own


class SensitivityTest(testtools.TestCase):
    """The storms find what they are for."""

    def broken_by(self, change: object) -> None:
        for seed in range(20):
            storm = placing_storm.memory_storm(seed)
            own = storm.scheduler

            def worse(name: str, after: object, own=own) -> placing_trial.Scheduler:
                made = own(name, after)
                made.parts = attrs.evolve(made.parts, claimer=change(made.parts.claimer))
                return made

            storm.scheduler = worse
            try:
                storm.run()
            except placing_trial.Broken:
                return
        self.fail("nothing was found")

    def test_without_claims_hosts_are_overcommitted(self):
        self.broken_by(lambda own: chosen_hosts.NoClaims())

    def test_a_confirm_that_is_not_looked_at_is_found(self):
        class Careless:
            def __init__(self, own: chosen_hosts.Claimer) -> None:
                self.take, self.release, self._confirm = own.take, own.release, own.confirm

            def confirm(self, taken: Sequence[chosen_hosts.TakenClaim]) -> list[bool]:
                self._confirm(taken)
                return [True] * len(taken)

        self.broken_by(Careless)
