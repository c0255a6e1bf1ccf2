# SPDX-License-Identifier: Apache-2.0
"""A host grows by what it offers more of, and by nothing that is taken from it."""

import attrs
import testtools
from hypothesis import HealthCheck, settings, stateful
from hypothesis import strategies as st

from nova_nodb_scheduler.scheduling.frame import host_facts, host_frame, room_growth
from tests.unit.scheduling import toys

CLASSES = ("VCPU", "MEMORY_MB", "CUSTOM_GPU")


def provider(used=0, *, total=8, traits=(), **more):
    inventories = {
        "VCPU": host_facts.Inventory(total),
        "MEMORY_MB": host_facts.Inventory(4096),
        **{name: host_facts.Inventory(amount) for name, amount in more.items()},
    }
    return host_facts.ProviderFacts(1, inventories, {"VCPU": used}, frozenset(traits))


def host(number, used=0, *, traits=(), gpus=0, total=8, **known):
    more = {"CUSTOM_GPU": gpus} if gpus else {}
    known.setdefault("provider", provider(used, total=total, traits=traits, **more))
    return toys.facts(number, **known)


def told(growth, frame):
    """Return what was free and what is, by host."""
    found = {}
    for each in growth.look(frame):
        before = [None] * len(each) if each.before is None else each.before.tolist()
        for row, was, now in zip(each.rows.tolist(), before, each.after.tolist(), strict=True):
            found[frame.place(row).uuid] = (was, now)
    return found


class GrowthTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.frame = host_frame.HostFrame()
        self.frame.tick(1000.0, 60.0)
        for number in range(4):
            self.frame.put(host(number, used=8))
        self.growth = room_growth.RoomGrowth(CLASSES)
        self.growth.look(self.frame)

    def grown(self):
        return {uuid: after for uuid, (_, after) in self.told().items()}

    def told(self):
        return told(self.growth, self.frame)

    def test_at_first_nobody_has_grown(self):
        self.assertEqual((), room_growth.RoomGrowth(CLASSES).look(self.frame))

    def test_of_what_is_freed_alone_it_is_told_how_much_there_was(self):
        self.frame.put(host(2, used=5))
        self.frame.put(host(1, used=5, num_instances=1))
        self.frame.put(host(3, used=5, traits=("CUSTOM_FAST",)))
        before = {uuid: before for uuid, (before, _) in self.told().items()}
        self.assertEqual({"uuid-2": [0, 4096, 0], "uuid-1": [0, 4096, 0], "uuid-3": None}, before)
        self.frame.put(host(1, used=4, num_instances=0))
        self.assertEqual({"uuid-1": (None, [4, 4096, 0])}, self.told())

    def test_without_a_change_nobody_grows(self):
        self.assertEqual({}, self.grown())

    def test_what_is_freed_is_told_with_all_that_is_free(self):
        self.frame.put(host(2, used=5))
        self.assertEqual({"uuid-2": [3, 4096, 0]}, self.grown())
        self.assertEqual({}, self.grown())

    def test_what_is_taken_grows_nothing(self):
        self.frame.put(host(2, used=5))
        self.grown()
        self.frame.put(host(2, used=6))
        self.assertEqual({}, self.grown())
        self.frame.use(self.frame.row_of("uuid-2"), {"VCPU": 1})
        self.frame.touch([self.frame.row_of("uuid-2")])
        self.assertEqual({}, self.grown())

    def test_what_was_reserved_and_is_given_back_grows(self):
        row = self.frame.row_of("uuid-2")
        self.frame.use(row, {"VCPU": -2})
        self.frame.touch([row])
        self.assertEqual({"uuid-2": [2, 4096, 0]}, self.grown())

    def test_a_host_that_is_more_than_full_shows_it(self):
        self.frame.put(host(2, used=12))
        self.grown()
        self.frame.put(host(2, used=11))
        self.assertEqual({"uuid-2": [-3, 4096, 0]}, self.grown())

    def test_whoever_comes_back_into_use_has_grown(self):
        away = (
            {"disabled": True},
            {"forced_down": True},
            {"has_service": False},
            {"updated": False},
            {"last_seen_seconds": 500.0},
            {"provider": attrs.evolve(provider(8), broken="odd", tree=frozenset({"a", "b"}))},
        )
        for known in away:
            self.frame.put(host(1, used=8, **known))
            self.assertEqual({}, self.grown(), known)
            self.frame.put(host(1, used=8))
            self.assertEqual({"uuid-1": [0, 4096, 0]}, self.grown(), known)

    def test_a_new_host_has_grown_and_one_that_is_gone_has_not(self):
        for number in range(4, 600):
            self.frame.put(host(number))
        self.frame.remove("uuid-1")
        self.assertEqual({f"uuid-{n}" for n in range(4, 600)}, set(self.grown()))

    def test_other_traits_and_aggregates_may_help_somebody(self):
        self.frame.put(host(1, used=8, traits=("CUSTOM_FAST",)))
        self.frame.put(host(2, used=8, aggregates=("a",)))
        self.assertEqual({"uuid-1", "uuid-2"}, set(self.grown()))

    def test_what_only_the_node_reports_may_help_somebody(self):
        self.frame.put(host(1, used=8, num_instances=4, num_io_ops=2))
        self.grown()
        self.frame.put(host(1, used=8, num_instances=3, num_io_ops=2))
        self.assertEqual({"uuid-1"}, set(self.grown()))
        self.frame.put(host(1, used=8, num_instances=3, num_io_ops=1))
        self.assertEqual({"uuid-1"}, set(self.grown()))

    def test_a_change_that_no_column_shows_may_help_somebody(self):
        self.frame.touch([self.frame.row_of("uuid-3")])
        self.assertEqual({"uuid-3"}, set(self.grown()))

    def test_a_resource_that_no_host_had_before_grows(self):
        self.frame.put(host(1, used=8, gpus=2))
        self.assertEqual({"uuid-1": [0, 4096, 2]}, self.grown())

    def test_capacity_is_that_of_hosts_that_are_there(self):
        self.frame.put(host(7, gpus=3))
        self.frame.remove("uuid-0")
        found = room_growth.capacity(self.frame, (*CLASSES, "PCPU"))
        self.assertEqual({"VCPU": 32, "MEMORY_MB": 4 * 4096, "CUSTOM_GPU": 3}, found)


class Rooms(stateful.RuleBasedStateMachine):
    """Against the plainest model: whoever has more of a class than at the last look."""

    def __init__(self):
        super().__init__()
        self.frame = host_frame.HostFrame()
        self.frame.tick(1000.0, 60.0)
        self.growth = room_growth.RoomGrowth(CLASSES)
        self.growth.look(self.frame)
        self.now, self.seen = {}, {}

    @stateful.rule(
        number=st.integers(0, 5),
        used=st.integers(0, 9),
        disabled=st.booleans(),
        total=st.integers(1, 9),
    )
    def put(self, number, used, disabled, total):
        self.frame.put(host(number, used=used, total=total, disabled=disabled))
        self.now[f"uuid-{number}"] = None if disabled else total - used

    @stateful.rule(number=st.integers(0, 5))
    def remove(self, number):
        self.frame.remove(f"uuid-{number}")
        self.now.pop(f"uuid-{number}", None)
        # Who comes back is another host: nothing is known of the former one's room.
        self.seen.pop(f"uuid-{number}", None)

    @stateful.rule(times=st.sampled_from([1, 9000]))
    def heartbeat(self, times):
        """Change much that matters to nobody: the log forgets."""
        if not self.now:
            return
        row = self.frame.row_of(next(iter(self.now)))
        for _ in range(times):
            self.frame.use(row, {"VCPU": 1})
            self.frame.touch([row])
            self.frame.use(row, {"VCPU": -1})
            self.frame.touch([row])

    @stateful.rule()
    def look(self):
        grown = {uuid: now[0] for uuid, (_, now) in told(self.growth, self.frame).items()}
        for uuid, free in self.now.items():
            before = self.seen.get(uuid)
            if free is not None and (before is None or free > before):
                assert uuid in grown, (uuid, before, free)
            elif free is None or free < before:
                assert uuid not in grown, (uuid, before, free)
        for uuid, free in grown.items():
            assert self.now[uuid] == free
        self.seen = dict(self.now)


class GrowthPropertyTest(testtools.TestCase):
    def test_who_went_and_came_back_with_less_counts_as_come(self):
        rooms = Rooms()
        rooms.put(2, used=0, disabled=False, total=2)
        rooms.look()
        rooms.remove(2)
        rooms.put(0, used=0, disabled=False, total=1)
        rooms.put(2, used=0, disabled=False, total=1)
        rooms.look()

    def test_whoever_has_more_is_found_and_whoever_has_less_is_not(self):
        stateful.run_state_machine_as_test(
            Rooms,
            settings=settings(
                max_examples=60,
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
