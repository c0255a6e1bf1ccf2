# SPDX-License-Identifier: Apache-2.0
"""A claim stands as long as the allocation that it was for may be there, or come yet."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import testtools

from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts, placing
from nova_nodb_scheduler.synchronizer.claims import claim_rules
from tests.unit.synchronizer.claims import placing_storm, placing_trial


class _Unanswered:
    """A Placement that answers with what it is told, and may keep what it wrote."""

    def __init__(self, result: placing.AllocationResult, left: Collection[str] = ()) -> None:
        self._result, self._left = result, left

    def write(
        self, wanted: Sequence[chosen_hosts.WantedClaim], deadline: float
    ) -> dict[str, placing.AllocationOutcome]:
        return {each.consumer: placing.AllocationOutcome(self._result) for each in wanted}

    def remove(
        self, wanted: Sequence[chosen_hosts.WantedClaim], deadline: float
    ) -> Collection[str]:
        return self._left


class InDoubtTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.scheduler = placing_storm.memory_storm(1).scheduler("one", lambda step: None)

    def claimed(self) -> set[str]:
        keys = [claim_rules.host_key(host) for host in placing_trial.HOSTS]
        held = self.scheduler.client.read(keys)
        return {
            consumer
            for key, record in held.items()
            for consumer in self.scheduler.ledger.read(key.key).claims
            if not record.deleted
        }

    def test_the_claim_of_an_allocation_that_may_come_yet_stands_until_that_is_ended(self) -> None:
        made = self.scheduler.placing(["a"], 1, _Unanswered(placing.AllocationResult.IN_DOUBT))
        self.assertIsNone(made.place())
        self.assertTrue(made.given_up)
        made.undo()
        self.assertEqual({"a"}, self.claimed())
        made.end_doubt()
        self.assertEqual(set(), self.claimed())

    def test_the_claim_of_an_allocation_that_was_not_made_ends_with_the_request(self) -> None:
        made = self.scheduler.placing(["a"], 1, _Unanswered(placing.AllocationResult.GIVEN_UP))
        self.assertIsNone(made.place())
        made.undo()
        self.assertEqual(set(), self.claimed())

    def test_the_claim_of_an_allocation_that_could_not_be_taken_back_stands(self) -> None:
        made = self.scheduler.placing(
            ["a", "b"], 1, _Unanswered(placing.AllocationResult.WRITTEN, left=["b"])
        )
        self.assertIsNotNone(made.place())
        made.undo()
        self.assertEqual({"b"}, self.claimed())
        made.end_doubt()
        self.assertEqual(set(), self.claimed())
