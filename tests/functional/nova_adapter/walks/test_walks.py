# SPDX-License-Identifier: Apache-2.0
"""How long three ways are, by traces of what runs, and whether the documents tell them so.

What counts as a step is said in :mod:`traces`. The bounds are those that the present layout was
made for: who needs one more module on a way merges two others, or says here why not.
"""

from __future__ import annotations

import pathlib
import random
import re
import sys
import time
import unittest
from collections.abc import Collection
from typing import Any

from nova_nodb_scheduler.scheduling import decision_settings
from nova_nodb_scheduler.scheduling.facts import fact_source, frame_keeper
from nova_nodb_scheduler.scheduling.frame import host_frame
from nova_nodb_scheduler.scheduling.namespaces import node_facts
from nova_nodb_scheduler.scheduling.pipeline import engine
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.replication import replicator
from nova_nodb_scheduler.wire import codec
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.decisions import test_memory_decisions as memory_decisions
from tests.functional.nova_adapter.walks import traces

DOCUMENT = pathlib.Path(__file__).parents[4] / "doc/source/contributor/architecture.rst"

#: Classes of what a request is, and of what it becomes on its way to a Selection.
REQUEST = frozenset(
    (
        "RequestSpec",
        "ResourceRequest",
        "CandidateQuery",
        "Request",
        "RequestView",
        "ScheduleCall",
        "DeferredCandidates",
        "_Decision",
        "RequestPlanner",
        "Plan",
        "Choice",
        "Placing",
        "WantedClaim",
        "TakenClaim",
        "NewServer",
        "RequestPart",
        "RequestAllocations",
        "AllocationWrite",
        "VerifiedAllocation",
        "DecisionTrace",
    )
)

NOVAS = frozenset(("RequestSpec", "ResourceRequest"))

#: Classes of what a claim is, and of what it becomes on its way into a record.
CLAIM = frozenset(
    (
        "Request",
        "WantedClaim",
        "Claim",
        "ClaimView",
        "Taking",
        "Granted",
        "StandingClaim",
        "RecordKey",
        "_EditedBatch",
        "Draft",
        "DraftedWrite",
        "_CommitCall",
        "Write",
    )
)

MOST_HOPS, MOST_REQUEST_MODULES = 25, 17
MOST_CLAIM_MODULES = 8

SELECT = traces.Function("nova_adapter.manager", "SchedulerManager.select_destinations")
TAKE = traces.Function("synchronizer.claims.ledger_claimer", "LedgerClaimer.take")
COMMIT = traces.Function("synchronizer.migration.migration_fence", "FencedSynchronizer.write")
READ = traces.Function("synchronizer.migration.migration_fence", "FencedSynchronizer.read")


def documented(title: str) -> list[traces.Function]:
    """Return the numbered steps below a title of the document."""
    _before, _title, text = DOCUMENT.read_text().partition(f"\n{title}\n{'-' * len(title)}\n")
    # Up to the next title.
    text = re.split(r"\n[^\n]+\n(?:-{4,}|={4,})\n", text)[0]
    return [
        traces.Function(module, name)
        for module, name in re.findall(r"^#\. :step:`([\w.]+) ([\w.<>]+)`", text, re.MULTILINE)
    ]


class Documented(unittest.TestCase):
    """Compares what the document says with what ran."""

    maxDiff = None

    def assert_told(self, title: str, root: traces.Call, modules: Collection[str] = ()) -> None:
        """Assert that the steps below a title ran in that order, and all modules are named.

        :param modules: that the document has to name
        """
        steps, ran = documented(title), root.functions()
        self.assertTrue(steps, f"no steps are documented below {title!r}")
        self.assertEqual([], [each for each in steps if each not in ran], "did not run")
        self.assertEqual(sorted(steps, key=ran.index), steps)
        self.assertEqual(set(), set(modules) - {each.module for each in steps}, "is not told")


class RequestWalksTest(memory_decisions.MemoryDecisionsCase, Documented):
    """One warm request of one server, which fits, and the claim that it takes."""

    def trace(self, kinds: Collection[str]) -> traces.Call:
        """Return the calls of one request more."""
        decide, roots = self.manager.select_destinations, []

        def select(*args: Any, **kwargs: Any) -> Any:
            answer, root = traces.traced(
                lambda: decide(*args, **kwargs), kinds, kwargs["instance_uuids"]
            )
            roots.append(root)
            return answer

        self.manager.select_destinations = select
        try:
            self.select()
        finally:
            del self.manager.select_destinations
        (root,) = roots
        return root

    def trace_claim(self) -> traces.Call:
        """Return the calls of a claim whose record nobody else wrote meanwhile.

        Otherwise it is read first, or another thread's write takes it along: another way.
        """
        for _ in range(4):
            claim = self.trace(CLAIM).first(TAKE)
            ran = claim.functions()
            if COMMIT in ran and READ not in ran:
                return claim
        raise AssertionError("every claim met others'")

    def test_a_request_becomes_a_selection(self):
        self.select()
        root = self.trace(REQUEST)
        hops = traces.hops(root)
        modules = {each.module for each in hops}
        self.assertIn(SELECT, hops)
        self.assertLessEqual(len(hops), MOST_HOPS, list(hops))
        self.assertLessEqual(len(modules), MOST_REQUEST_MODULES, sorted(modules))
        self.assert_told("A request becomes a Selection", root, modules)

    def test_a_claim_becomes_a_record(self):
        self.select()
        claim = self.trace_claim()
        modules = traces.modules(claim, "synchronizer.")
        self.assertLessEqual(len(modules), MOST_CLAIM_MODULES, modules)
        driver = "synchronizer.drivers.memory"
        self.assertIn(driver, modules)
        self.assert_told("A claim becomes a record", claim, modules.keys() - {driver})

    def test_what_walks_has_the_names_that_it_is_known_by(self):
        """By another name nothing of it would be seen on its way."""
        named = {
            name
            for module, held in list(sys.modules.items())
            if module.startswith(traces.PACKAGE)
            for name, value in vars(held).items()
            if isinstance(value, type)
        }
        self.assertEqual(set(), (REQUEST | CLAIM) - named - NOVAS)


class SaveWalkTest(cloud.CloudCase, Documented):
    """One save of one compute node, flushed, fed and taken into a frame in this thread."""

    @staticmethod
    def follows(feed: replicator.Replicator, version: int) -> bool:
        cursor = feed.followed()
        return cursor is not None and cursor.version >= version

    def test_a_save_becomes_a_column(self):
        reporter = self.report("*", *cloud.CELLS)
        node, _service = self.host(cloud.CELL1, "h1")
        version = reporter.flush()
        store = host_state_store.HostStateStore(self.plugin.declared, codec.decode_state)
        feed = replicator.Replicator(
            self.synchronizer, store, self.plugin.declared, identity="walk"
        )
        present = fact_source.Present()
        frame = host_frame.HostFrame(locate=present.locate, attribute=present.attribute)
        made = engine.Engine(
            decision_settings.SchedulingOptions(), (), (), frame=frame, rng=random.Random(1)
        )
        keeper = frame_keeper.FrameKeeper(store, made, present, ratios=node_facts.DefaultRatios())

        def feed_up_to(version: int) -> None:
            deadline = time.monotonic() + memory_decisions.WAIT_SECONDS
            while not self.follows(feed, version):
                self.assertLess(time.monotonic(), deadline, feed.status())
                feed.step()

        def walk() -> None:
            node.memory_mb_used = 4096
            node.free_ram_mb = 12288
            node.save()
            feed_up_to(reporter.flush())
            keeper.catch_up(time.time())

        feed_up_to(version)
        keeper.catch_up(time.time())
        _none, root = traces.traced(walk, ())
        row = frame.row_of(node.uuid)
        self.assertEqual(12288, frame.free_ram_mb[row])
        self.assert_told("A save of a compute node becomes a column", root)
