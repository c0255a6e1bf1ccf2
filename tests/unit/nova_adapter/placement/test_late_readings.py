# SPDX-License-Identifier: Apache-2.0
"""Who read Placement, stood still and wakes late: puts nothing back, and proves nothing by it."""

from __future__ import annotations

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.placement.mirror import mirror_proof
from tests.unit.nova_adapter.placement import plain_placement, test_own_writes

ROOT, OTHER = test_own_writes.ROOT, test_own_writes.OTHER


class LateCase(test_own_writes.PlainCase):
    """A third process, whose readings are published when they are let go."""

    def begin(self) -> None:
        super().begin()
        self.late = plain_placement.Process(self.placement, self.hub, self.clocks)
        self.late.follow()

    def assert_within_the_bound(self, seconds: float) -> None:
        """Whoever decides after so long, the tree was what it is taken for within the bound."""
        self.clocks.true += seconds
        for process in (self.one, self.two):
            process.follow()
            age = process.decide(ROOT)
            self.assertLessEqual(age or 0.0, plain_placement.BOUND_SECONDS)

    def read_around(self, late: plain_placement.Held) -> None:
        """Have another read that began before a late one, and sees what that did not."""
        asked = []

        def describe() -> None:
            asked.append(ROOT)
            # The tree was listed; its parts were not read.
            if len(asked) == 2:
                late.read(ROOT)
                self.clocks.true += 0.5
                self.placement.describe(ROOT)

        self.placement.meanwhile = describe
        self.two.read(ROOT)
        self.placement.meanwhile = lambda: None


class LateReadingTest(LateCase):
    def setUp(self) -> None:
        super().setUp()
        self.placement.describe(ROOT)
        self.clocks.true += 1.0

    def test_a_reading_that_another_took_longer_for_is_not_put_back(self) -> None:
        held = plain_placement.Held(self.late)
        self.read_around(held)
        self.one.follow()
        fresh = self.one.record(ROOT)
        held.let_go()
        self.one.follow()
        self.assertEqual(fresh, self.one.record(ROOT))
        self.assertEqual({ROOT}, held.again)

    def test_what_was_compared_before_a_late_reading_came_does_not_count_for_it(self) -> None:
        held = plain_placement.Held(self.late)
        self.read_around(held)
        self.clocks.true += 12.0
        for process in (self.one, self.two):
            process.follow()
            process.decide(ROOT)
        held.let_go()
        self.assert_within_the_bound(8.0)

    def test_a_sweep_does_not_prove_what_a_late_reading_puts_there(self) -> None:
        held = plain_placement.Held(self.late)
        self.read_around(held)
        self.clocks.true += 8.0
        self.two.follow()
        self.two.sweep()
        held.let_go()
        self.assert_within_the_bound(8.0)

    def test_a_sweep_that_left_a_tree_for_later_does_not_prove_a_late_reading_of_it(self) -> None:
        """It was excused for what a scheduler had just written; the reading shows that, too."""
        self.two.read(ROOT)
        self.one.follow()
        self.wrote(self.one)
        held = plain_placement.Held(self.late)
        held.read(ROOT)
        self.placement.describe(ROOT)
        self.clocks.true += 4.0
        self.one.flush()
        self.clocks.true += 4.0
        self.two.follow()
        self.two.sweep()
        self.assertEqual({ROOT}, self.two.hinted)
        held.let_go()
        self.assert_within_the_bound(8.0)

    def test_a_tree_that_went_is_not_taken_for_swept_when_a_late_reading_brings_it_back(
        self,
    ) -> None:
        held = plain_placement.Held(self.late)
        held.read(ROOT)
        del self.placement.providers[ROOT]
        for _ in range(2):
            self.clocks.true += 60.0
            self.two.follow()
            self.two.sweep()
        self.one.follow()
        self.assertIsNone(self.one.record(ROOT))
        held.let_go()
        self.one.follow()
        self.one.chosen.behind([ROOT], self.one.snapshot())
        self.one.follow()
        self.assertIsNone(self.one.record(ROOT))


class LateSweepTest(LateCase):
    def test_a_sweep_that_ends_late_does_not_make_the_mirror_older(self) -> None:
        late = self.late.new_sweep()
        late.begin()
        self.clocks.true += 200.0
        self.two.follow()
        self.two.sweep()
        late.finish(self.late.view())
        self.one.follow()
        mirror = mirror_proof.PlacementMirror(
            self.one.store.snapshot,
            self.one.epoch,
            self.clocks.backend,
            self.one.reader,
            self.one.trees,
            180.0,
        )
        self.assertIsNone(mirror.refusal())


class NestedTest(LateCase):
    """Trees of several providers: no root shows what happens below it."""

    def assert_children(self, **traits: str) -> None:
        """Who chooses the root takes its children for what they are."""
        self.one.follow()
        self.one.chosen.behind([ROOT], self.one.snapshot())
        self.one.follow()
        record = self.one.record(ROOT)
        assert record is not None
        found = {name: child["traits"] for name, child in record["children"].items()}
        self.assertEqual({name: [trait] for name, trait in traits.items()}, found)

    def test_a_child_that_came_between_listing_and_reading_is_asked_for(self) -> None:
        self.placement.describe(ROOT)
        sweep = self.two.new_sweep()
        sweep.begin()
        self.placement.adopt(ROOT, "child")
        # A long sweep: its listing is old when it comes to this tree.
        self.clocks.true += 30.0
        sweep.step(self.two.view())
        sweep.finish(self.two.view())
        self.assert_children(child="CUSTOM_0")

    def test_a_look_at_a_root_is_not_taken_for_a_reading_of_its_tree(self) -> None:
        self.placement.adopt(ROOT, "child")
        self.placement.allocate({ROOT: self.new()})
        for process in (self.one, self.two):
            process.read(ROOT)
            process.follow()
        self.placement.describe("child")
        self.clocks.true += 12.0
        sweep = self.two.new_sweep()
        sweep.begin()

        def look() -> None:
            self.placement.meanwhile = lambda: None
            self.placement.delete("server-1")
            self.one.look(ROOT)

        self.placement.meanwhile = look
        again = sweep.step(self.two.view())
        sweep.finish(self.two.view())
        self.assertEqual({ROOT}, again)
        self.assert_children(child="CUSTOM_1")


class UnwritableTest(LateCase):
    """A tree whose record no back end takes, for its size."""

    def setUp(self) -> None:
        super().setUp()
        for process in (self.one, self.two):
            process.synchronizer.refuse_payload = self.refuse  # type: ignore[method-assign]

    def refuse(self, key: records.RecordKey, payload: bytes) -> errors.PayloadTooLarge | None:
        if len(payload) <= 1000:
            return None
        return errors.PayloadTooLarge(str(key), len(payload), 1000)

    def test_its_record_of_before_is_not_taken_for_what_was_swept(self) -> None:
        self.placement.allocate({ROOT: self.new(2000)})
        self.placement.describe(ROOT)
        self.clocks.true += 12.0
        self.two.follow()
        self.two.sweep()
        self.assert_within_the_bound(1.0)
