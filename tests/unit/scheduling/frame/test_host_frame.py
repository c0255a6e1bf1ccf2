# SPDX-License-Identifier: Apache-2.0
"""What a frame logs, what a fork leaves alone, and who is up."""

import attrs
import numpy as np
import testtools
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler.scheduling.frame import (
    frame_columns,
    host_facts,
    host_frame,
)
from tests.unit.scheduling import toys

SEEN = st.sampled_from([-100.0, 0.0, 30.0, 60.0, 90.0, 200.0, host_facts.NEVER])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 5), SEEN, st.booleans()),
        st.tuples(st.just("remove"), st.integers(0, 5)),
        st.tuples(st.just("tick"), st.sampled_from([-70.0, 0.0, 10.0, 59.5, 120.0])),
        st.tuples(st.just("patience"), st.sampled_from([30.0, 60.0])),
    ),
    max_size=30,
)


class HostFrameTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.frame = host_frame.HostFrame()
        self.frame.tick(1000.0, 60.0)
        for number in range(4):
            self.frame.put(toys.facts(number))

    def changes(self, **known):
        before = self.frame.log.sequence
        self.frame.put(toys.facts(1, **known))
        return self.frame.log.since(before).tolist()

    def test_what_a_decision_can_see_is_logged(self):
        row = self.frame.row_of("uuid-1")
        provider = toys.facts(1).provider
        for known in (
            {"free_ram_mb": 1},
            {"cell": "other"},
            {"host": "renamed"},
            {"aggregates": ("a",)},
            {"last_seen_seconds": 2.0},
            {"provider": attrs.evolve(provider, used={"VCPU": 1})},
            {"provider": attrs.evolve(provider, traits=frozenset({"T"}))},
            {"provider": attrs.evolve(provider, nested=frozenset({"VGPU"}))},
            {"provider": attrs.evolve(provider, broken="negative total")},
        ):
            self.assertEqual([], self.changes(), "nothing changed")
            self.assertEqual([row], self.changes(**known), known)
            self.assertEqual([], self.changes(**known), known)
            self.frame.put(toys.facts(1))

    def check_hosts_that_could_not_be_taken_are_taken_later(self, count):
        facts = [toys.facts(number) for number in range(10, 10 + count)]
        # A list has no hash; all but that is taken by then.
        wrong = [*facts[:-1], attrs.evolve(facts[-1], aggregates=["a"])]
        before = self.frame.log.sequence
        self.assertRaises(TypeError, self.frame.take, frame_columns.HostPage.of(*wrong))
        self.frame.take(frame_columns.HostPage.of(*facts))
        rows = [self.frame.row_of(each.uuid) for each in facts]
        self.assertEqual(facts, [self.frame.facts(row) for row in rows])
        self.assertEqual(4 + count, np.count_nonzero(self.frame.alive))
        self.assertEqual(sorted(rows), self.frame.log.since(before).tolist())

    def test_one_host_that_could_not_be_taken_is_taken_later(self):
        self.check_hosts_that_could_not_be_taken_are_taken_later(1)

    def test_many_hosts_that_could_not_be_taken_are_taken_later(self):
        self.check_hosts_that_could_not_be_taken_are_taken_later(17)

    def test_many_hosts_of_which_nothing_changed_are_not_logged(self):
        facts = [toys.facts(number) for number in range(10, 30)]
        for hosts in (facts, [attrs.evolve(each, provider=None) for each in facts]):
            self.frame.take(frame_columns.HostPage.of(*hosts))
            before = self.frame.log.sequence
            self.frame.take(frame_columns.HostPage.of(*hosts))
            self.assertEqual([], self.frame.log.since(before).tolist())

    def test_a_beat_and_a_generation_are_not_logged(self):
        self.assertEqual([], self.changes(last_seen_seconds=1001.0))
        self.assertEqual(
            [], self.changes(provider=attrs.evolve(toys.facts(1).provider, generation=9))
        )
        self.assertEqual(1000.0, self.frame.facts(self.frame.row_of("uuid-0")).last_seen_seconds)

    def test_an_attribute_that_changes_is_logged(self):
        values = {}
        frame = host_frame.HostFrame(attribute=lambda uuid, path: values.get((uuid, *path)))
        row = frame.put(toys.facts(1))
        self.assertIsNone(frame.attribute("stats", "x").values[0])
        before = frame.log.sequence
        values["uuid-1", "stats", "x"] = "7"
        frame.put(toys.facts(1))
        self.assertEqual([row], frame.log.since(before).tolist())

    def test_a_fork_leaves_its_frame_alone_and_keeps_its_own(self):
        row = self.frame.put(toys.facts(1, pci_free=5))
        fork = self.frame.fork()
        fork.consume(
            row,
            vcpus=2,
            memory_mb=100,
            disk_gb=1,
            resources={"VCPU": 2},
            devices=2,
            instance_uuid="i",
        )
        self.assertEqual(4096, self.frame.free_ram_mb[row])
        self.assertEqual(0, self.frame.resource("VCPU").used[row])
        self.assertEqual({}, self.frame.instance_counts(["i"]))
        self.assertEqual({row: 1}, fork.instance_counts(["i"]))
        self.assertEqual((5, 3), (self.frame.pci_free[row], fork.pci_free[row]))
        for number in range(10, 400):
            self.frame.put(toys.facts(number, cell=f"cell-{number}"))
        self.frame.put(toys.facts(1, free_ram_mb=1))
        self.assertEqual(3996, fork.free_ram_mb[row])
        self.assertEqual(2, fork.resource("VCPU").used[row])
        self.assertEqual([True], fork.cell.where(np.array([row]), toys.CELL.__eq__).tolist())

    def test_rows_are_found_by_name_and_tree(self):
        tree = frozenset({"uuid-9", "child"})
        provider = attrs.evolve(toys.facts(9).provider, tree=tree)
        row = self.frame.put(toys.facts(9, provider=provider))
        self.assertEqual((row,), tuple(self.frame.rows_of_name("HOST-9")))
        self.assertEqual(row, self.frame.row_of_tree("child"))
        self.frame.remove("uuid-9")
        self.assertEqual((), tuple(self.frame.rows_of_name("HOST-9")))
        self.assertIsNone(self.frame.row_of_tree("child"))

    def test_a_child_that_moves_to_another_tree_is_found_there_whichever_is_told_first(self):
        with_child, without = (
            attrs.evolve(toys.facts(0).provider, tree=frozenset(tree))
            for tree in ({"root", "child"}, ())
        )
        for first, last in ((1, 2), (2, 1)):
            self.frame.put(toys.facts(1, provider=with_child))
            self.frame.put(toys.facts(2, provider=without))
            moved = {1: toys.facts(1, provider=without), 2: toys.facts(2, provider=with_child)}
            self.frame.take(frame_columns.HostPage.of(moved[first], moved[last]))
            self.assertEqual(self.frame.row_of("uuid-2"), self.frame.row_of_tree("child"), first)
        self.frame.put(toys.facts(2, provider=without))
        self.assertIsNone(self.frame.row_of_tree("child"))

    def test_values_that_no_host_has_any_more_are_forgotten(self):
        column = frame_columns.CodedColumn(3, None)
        for number in range(10_000):
            column.put(number % 3, f"value {number}")
        self.assertLess(len(column.values), 100)
        self.assertEqual(
            ["value 9999", "value 9997", "value 9998"],
            [column.values[code] for code in column.codes],
        )
        self.assertEqual(
            [True], column.where(np.array([1]), lambda value: value == "value 9997").tolist()
        )

    @settings(max_examples=80, deadline=None)
    @given(STEPS)
    def test_who_is_up_is_told_as_if_everybody_were_asked(self, steps):
        frame, known, now, patience = host_frame.HostFrame(), {}, 0.0, 60.0
        frame.tick(now, patience)
        for kind, *rest in steps:
            before, up = frame.log.sequence, frame.up.copy()
            if kind == "put":
                number, seen, down = rest
                facts = toys.facts(number, last_seen_seconds=seen, forced_down=down)
                known[facts.uuid] = facts
                frame.put(facts)
            elif kind == "remove":
                known.pop(f"uuid-{rest[0]}", None)
                frame.remove(f"uuid-{rest[0]}")
            elif kind == "tick":
                now += rest[0]
                frame.tick(now, patience)
            else:
                patience = rest[0]
                frame.tick(now, patience)
            expected = {
                frame.row_of(uuid)
                for uuid, facts in known.items()
                if abs(now - facts.last_seen_seconds) <= patience and not facts.forced_down
            }
            self.assertEqual(expected, set(np.flatnonzero(frame.up).tolist()))
            flipped = set(np.flatnonzero(frame.up[: len(up)] != up).tolist())
            self.assertLessEqual(flipped, set(frame.log.since(before).tolist()))

    def test_who_is_ahead_by_no_more_than_rounding_is_up_a_moment_later(self):
        now, seen = 107.449, 167.449
        # By its age it is too far ahead, by the clock it is not.
        self.assertGreater(seen - now, 60.0)
        self.assertLessEqual(seen, now + 60.0)
        for put_first in (False, True):
            frame = host_frame.HostFrame()
            if put_first:
                row = frame.put(toys.facts(1, last_seen_seconds=seen))
            frame.tick(now, 60.0)
            if not put_first:
                row = frame.put(toys.facts(1, last_seen_seconds=seen))
            self.assertFalse(frame.up[row])
            frame.tick(now + 1.0, 60.0)
            self.assertTrue(frame.up[row], put_first)


class ChangeLogTest(testtools.TestCase):
    def test_rows_come_once_each(self):
        log = host_frame.ChangeLog()
        log.extend([3, 1])
        start = log.sequence
        log.extend([2, 1, 2])
        self.assertEqual([1, 2], log.since(start).tolist())
        self.assertEqual([], log.since(log.sequence).tolist())

    def test_it_is_bounded_and_says_when_it_does_not_know(self):
        log = host_frame.ChangeLog(limit=10)
        for row in range(1000):
            log.add(row)
        self.assertIsNone(log.since(0))
        self.assertIsNone(log.since(989))
        self.assertEqual([998, 999], log.since(998).tolist())
        self.assertLessEqual(len(log._rows), 20)


class BrokenOffTest(testtools.TestCase):
    def test_a_host_that_was_amended_in_part_alone_has_changed(self) -> None:
        frame = host_frame.HostFrame()
        row = frame.put(toys.facts(1))
        before = frame.sequence
        left = {**dict.fromkeys(frame_columns.CONSUMABLE, 0), "free_ram_mb": 7}
        beyond = host_facts.ProviderFacts(2, {"VCPU": host_facts.Inventory(8)}, {"VCPU": 2**70})
        with testtools.ExpectedException(OverflowError):
            frame.amend(row, (), consumable=left, provider=beyond)
        self.assertEqual(7, frame.free_ram_mb.item(row))
        self.assertEqual([row], frame.changed_since(before).tolist())


class ProviderFactsTest(testtools.TestCase):
    def test_a_provider_with_other_amounts_in_use_is_the_same_for_the_rest(self) -> None:
        names = [each.name for each in attrs.fields(host_facts.ProviderFacts)]
        its = host_facts.ProviderFacts(**{name: f"its {name}" for name in names})
        self.assertEqual(attrs.evolve(its, used={"VCPU": 1}), its.with_used({"VCPU": 1}))
        # A frame takes the very object that it has for no news.
        self.assertIsNot(its, its.with_used(its.used))


INVENTORIES = [
    {"VCPU": host_facts.Inventory(8)},
    {"VCPU": host_facts.Inventory(8), "DISK_GB": host_facts.Inventory(9, min_unit=2)},
]
SETS = [frozenset(), frozenset(["a"])]
PROVIDERS = st.builds(
    host_facts.ProviderFacts,
    generation=st.integers(1, 2),
    # The same objects again and again, as the digests of records have them.
    inventories=st.sampled_from(INVENTORIES),
    used=st.dictionaries(st.sampled_from(["VCPU", "DISK_GB", "VGPU"]), st.integers(0, 3)),
    traits=st.sampled_from(SETS),
    aggregates=st.sampled_from(SETS),
    nested=st.sampled_from([frozenset(), frozenset(["VGPU"])]),
    tree=st.sampled_from([frozenset(), frozenset(["child"])]),
    broken=st.sampled_from([None, None, "odd"]),
)


class FollowedProvidersTest(testtools.TestCase):
    @given(st.lists(st.none() | PROVIDERS | st.integers(1, 3), max_size=8))
    def test_whatever_a_host_had_its_provider_is_the_last_one(self, steps):
        """Numbers stand for what a request used meanwhile."""
        followed, last = host_frame.HostFrame(), None
        for number, inventories in enumerate(INVENTORIES):
            # There are columns of all classes.
            provider = host_facts.ProviderFacts(1, inventories)
            followed.put(toys.facts(number, provider=provider))
        row = followed.row_of("uuid-1")
        for step in (*steps, None):
            if isinstance(step, int):
                followed.use(row, {"VCPU": step, "DISK_GB": step})
                continue
            last = step or attrs.evolve(last or host_facts.ProviderFacts(1, INVENTORIES[0]))
            before = followed.log.sequence, self.described(followed, row)
            followed.put(toys.facts(1, provider=last))
            if before[1] != self.described(followed, row):
                self.assertLess(before[0], followed.log.sequence)
        fresh = host_frame.HostFrame()
        fresh.put(toys.facts(0, provider=host_facts.ProviderFacts(1, INVENTORIES[1])))
        fresh.put(toys.facts(1, provider=last))
        fresh_row = fresh.row_of("uuid-1")
        self.assertEqual(self.described(fresh, fresh_row), self.described(followed, row))
        self.assertEqual(+fresh.nested, +followed.nested)

    def described(self, frame, row):
        return (
            [frame.resource(name).row(row) for name in ("VCPU", "DISK_GB")],
            [frame.traits.value(row), frame.provider_aggregates.value(row)],
            (frame.row_of_tree("child"), row in frame.broken),
        )
