# SPDX-License-Identifier: Apache-2.0
"""A request's snapshot is judged by what was known when it was taken."""

from __future__ import annotations

import random
import types
import unittest
from collections.abc import Callable
from concurrent import futures

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


class BuiltTest(unittest.TestCase):
    def setUp(self) -> None:
        self.built = request_views.Built(3)

    def keep(self, *keys: str) -> None:
        for key in keys:
            self.built.keep(key, 1, key.upper())

    def kept(self, *keys: str) -> str:
        return "".join(key for key in keys if self.built.find(key, 1) is not None)

    def test_what_is_in_use_stays_however_many_others_come_and_go(self) -> None:
        self.keep("a", "b", "c")
        for number in range(50):
            self.assertEqual("A", self.built.find("a", 1))
            self.assertEqual("B", self.built.get("b", 1, self.fail))
            self.keep(f"d{number}")
        self.assertEqual("a", self.kept("a", "c"))
        self.assertEqual("D49", self.built.find("d49", 1))

    def test_of_what_is_not_used_the_oldest_goes_and_never_what_comes(self) -> None:
        self.keep("a", "b", "c", "d", "e")
        self.assertEqual("cde", self.kept("a", "b", "c", "d", "e"))
        # All of them are in use.
        self.keep("f")
        self.assertEqual("def", self.kept("c", "d", "e", "f"))

    def test_what_was_in_use_and_is_not_any_more_goes(self) -> None:
        self.keep("a", "b", "c")
        self.kept("a", "b", "c")
        self.keep("d", "e", "f")
        self.assertEqual("def", self.kept("a", "b", "c", "d", "e", "f"))

    def test_what_is_asked_for_of_another_revision_is_not_in_use(self) -> None:
        self.keep("a", "b", "c")
        for _ in range(3):
            self.assertIsNone(self.built.find("a", 2))
        self.keep("d")
        self.assertEqual("bcd", self.kept("a", "b", "c", "d"))

    def test_a_new_revision_takes_the_place_of_the_former(self) -> None:
        self.keep("a", "b", "c")
        self.built.keep("a", 2, "new")
        self.assertEqual("bc", self.kept("a", "b", "c"))
        self.assertEqual("new", self.built.find("a", 2))

    def test_threads_find_what_is_theirs_or_nothing(self) -> None:
        def work(seed: int) -> None:
            drawn = random.Random(seed)
            for _ in range(5000):
                key = str(drawn.randrange(6))
                self.assertEqual(key, self.built.get(key, 1, lambda key=key: key))

        with futures.ThreadPoolExecutor(4) as pool:
            for each in [pool.submit(work, seed) for seed in range(4)]:
                each.result()
        self.assertEqual(3, len(self.kept(*map(str, range(6)))))
