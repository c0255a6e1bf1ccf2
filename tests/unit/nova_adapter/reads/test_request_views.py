# SPDX-License-Identifier: Apache-2.0
"""A request's snapshot is judged by what was known when it was taken."""

from __future__ import annotations

import types
from collections.abc import Callable

from nova import objects

from nova_nodb_scheduler.nova_adapter.reads import request_views
from nova_nodb_scheduler.nova_adapter.reporting import state_proof
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import store_snapshot
from tests.unit.nova_adapter.reporting import test_proof


class RequestViewsTest(test_proof.JudgeCase):
    def setUp(self) -> None:
        super().setUp()
        objects.register_all()
        #: What happens between a snapshot and its judgement.
        self.then: Callable[[], None] = lambda: None
        self.views = request_views.RequestViews(
            types.SimpleNamespace(snapshot=self.snapshot),
            self.judge,
            request_views.BuiltObjects(),
            lambda: [test_proof.A],
            lambda: 1,
            lambda scope, reason: None,
        )

    def snapshot(self) -> store_snapshot.Snapshot:
        taken = self.store.snapshot()
        self.then()
        return taken

    def lacks(self) -> state_proof.UnprovedReason | None:
        return self.views.open().lacks(test_proof.A)

    def test_a_record_that_is_repaired_before_the_request_is_judged_is_missing_still(self) -> None:
        self.quarantined(known_namespaces.COMPUTE_NODES, "n1")

        def repair() -> None:
            self.put(known_namespaces.COMPUTE_NODES, "n1", {"cell": test_proof.A, "row": {}})
            self.quarantine.clear()

        self.then = repair
        view = self.views.open()
        self.assertFalse(view.reads.knows_node("n1"))
        self.assertIs(state_proof.UnprovedReason.QUARANTINE, view.lacks(test_proof.A))
        self.then = lambda: None
        self.assertTrue(view.renew())
        self.assertTrue(view.reads.knows_node("n1"))
        self.assertIsNone(view.lacks(test_proof.A))

    def test_one_that_cannot_be_read_only_since_then_was_there_as_it_was(self) -> None:
        self.put(known_namespaces.COMPUTE_NODES, "n1", {"cell": test_proof.A, "row": {}})
        self.then = lambda: self.quarantined(known_namespaces.COMPUTE_NODES, "n1")
        self.assertIsNone(self.lacks())
        self.assertIs(state_proof.UnprovedReason.QUARANTINE, self.lacks())

    def test_a_feed_that_is_proved_only_since_then_proves_nothing_of_before(self) -> None:
        self.alive = False

        def come_back() -> None:
            self.alive = True

        self.then = come_back
        self.assertIs(state_proof.UnprovedReason.FEED, self.lacks())
        self.assertIsNone(self.lacks())

    def test_what_was_served_is_doubted_by_the_same_order(self) -> None:
        view = self.views.open()
        self.assertTrue(view.serves(test_proof.A))
        self.quarantined(known_namespaces.INSTANCES, "i1")
        self.then = self.quarantine.clear
        self.assertFalse(self.views.still_proved(view))
        self.assertTrue(self.views.still_proved(view))
