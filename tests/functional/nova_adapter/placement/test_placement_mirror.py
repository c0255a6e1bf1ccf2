# SPDX-License-Identifier: Apache-2.0
"""The mirror equals a real Placement whatever was written to it, and knows when it does not."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
import uuid

from nova_nodb_scheduler.nova_adapter.placement.mirror import (
    mirror_keeper,
    mirror_proof,
    mirror_sweep,
    own_writes,
    placement_reader,
    tree_publisher,
)
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.records import leases
from tests.functional.nova_adapter import cloud, mirror_cloud

PROJECT = mirror_cloud.PROJECT


class ImportTest(mirror_cloud.MirrorCase):
    def test_an_import_holds_trees_traits_aggregates_and_consumers(self) -> None:
        roots = [self.provider() for _ in range(3)]
        child = self.provider(roots[0])
        self.provider(child)
        self.traits(roots[1], "HW_CPU_X86_AVX2", "COMPUTE_NODE")
        self.aggregates(roots[2], str(uuid.uuid4()), str(uuid.uuid4()))
        self.allocate(roots[0])
        self.allocate(roots[0])
        kept = self.keeper()
        self.turns(kept)
        self.assert_mirrored()
        self.assertEqual(3, len(self.mirrored()))
        self.assertEqual(2, len(self.mirrored()[roots[0]]["children"]))
        mirror = self.states(known_namespaces.MIRRORS)["placement"]
        self.assertEqual((5, 3, 3), (mirror["providers"], mirror["roots"], mirror["differing"]))
        self.assertEqual(self.replicator.status().epoch, mirror["epoch"])
        # One listing; three parts a provider; the allocations of each root.
        self.assertEqual(1 + 3 * 5 + 3, mirror["requests"])

    def test_a_sweep_of_an_equal_mirror_is_one_request(self) -> None:
        for _ in range(4):
            self.allocate(self.provider())
        kept = self.keeper()
        self.turns(kept)
        self.calls.clear()
        self.turns(kept, 60)
        self.assertEqual({"list": 1}, dict(self.calls))


class PlacementGenerationTest(mirror_cloud.MirrorCase):
    """What moves a generation: facts about Placement that the mirror stands on."""

    def test_one_put_moves_the_generation_by_one_whatever_its_classes(self) -> None:
        key = self.provider()
        before = self.generation(key)
        consumer = str(uuid.uuid4())
        body = self.new_consumers({consumer: key})[consumer]
        body["allocations"][key]["resources"]["MEMORY_MB"] = 64
        self.ask("put", f"/allocations/{consumer}", body)
        self.assertEqual(before + 1, self.generation(key))

    def test_one_post_moves_each_provider_by_one_however_many_consumers_it_names(self) -> None:
        here, there, other = (self.provider() for _ in range(3))
        before = {key: self.generation(key) for key in (here, there, other)}
        placed = {str(uuid.uuid4()): here for _ in range(5)} | {str(uuid.uuid4()): there}
        self.ask("post", "/allocations", self.new_consumers(placed))
        moved = {key: self.generation(key) - before[key] for key in before}
        self.assertEqual({here: 1, there: 1, other: 0}, moved)

    def test_a_refused_write_moves_nothing(self) -> None:
        key = self.provider(vcpus=1)
        before = self.generation(key)
        placed = {str(uuid.uuid4()): key for _ in range(2)}
        refused = self.client.post(
            "/allocations", self.new_consumers(placed), version=mirror_cloud.VERSION
        )
        self.assertEqual(409, refused.status_code)
        self.assertEqual(before, self.generation(key))

    def test_delete_frees_and_moves_nothing_while_an_empty_put_moves_one(self) -> None:
        key = self.provider()
        deleted, emptied = self.allocate(key), self.allocate(key)
        before = self.generation(key)
        self.free(deleted)
        self.assertEqual(before, self.generation(key))
        body = self.ask("get", f"/allocations/{emptied}")
        self.ask("put", f"/allocations/{emptied}", {**body, "allocations": {}})
        self.assertEqual(before + 1, self.generation(key))

    def test_a_consumer_that_is_put_elsewhere_leaves_without_a_trace(self) -> None:
        here, there = self.provider(), self.provider()
        consumer = self.allocate(here)
        before = {key: self.generation(key) for key in (here, there)}
        body = self.ask("get", f"/allocations/{consumer}")
        body["allocations"] = {there: {"resources": {"VCPU": 1}}}
        self.ask("put", f"/allocations/{consumer}", body)
        self.assertEqual(before[here], self.generation(here))
        self.assertEqual(before[there] + 1, self.generation(there))

    def test_aggregates_set_the_old_way_move_nothing(self) -> None:
        key = self.provider()
        before = self.generation(key)
        self.ask("put", f"/resource_providers/{key}/aggregates", [str(uuid.uuid4())], "1.1")
        self.assertEqual(before, self.generation(key))
        self.aggregates(key, str(uuid.uuid4()))
        self.assertEqual(before + 1, self.generation(key))


class SweepTest(mirror_cloud.MirrorCase):
    def setUp(self) -> None:
        super().setUp()
        self.roots = [self.provider() for _ in range(4)]
        self.kept = self.keeper()
        self.turns(self.kept)
        self.calls.clear()

    def test_foreign_writes_are_found_and_only_they_are_read(self) -> None:
        first, second, third, gone = self.roots
        self.allocate(first)
        self.traits(second, "HW_CPU_X86_AVX2")
        self.provider(third)
        self.ask("delete", f"/resource_providers/{gone}")
        new = self.provider()
        self.turns(self.kept, 60)
        self.assert_mirrored()
        self.assertIn(new, self.mirrored())
        # Four roots with their allocations, and a child.
        self.assertEqual(
            {"list": 1, "inventories": 5, "traits": 5, "aggregates": 5, "allocations": 4},
            dict(self.calls),
        )

    def test_a_provider_made_again_under_its_uuid_is_read_though_its_generation_fell(self) -> None:
        key = self.roots[0]
        for _ in range(3):
            self.free(self.allocate(key))
        self.turns(self.kept, 60)
        self.ask("delete", f"/resource_providers/{key}")
        self.provider(key=key, vcpus=2)
        self.turns(self.kept, 60)
        self.assert_mirrored()

    def test_every_tree_is_read_again_after_a_while_for_what_no_generation_shows(self) -> None:
        self.ask("put", f"/resource_providers/{self.roots[1]}/aggregates", [PROJECT], "1.1")
        stray = self.allocate(self.roots[2])
        self.turns(self.kept, 60)
        self.free(stray)
        self.turns(self.kept, 60)
        self.assertNotEqual(self.real(), self.mirrored())
        self.calls.clear()
        for _ in range(len(self.roots)):
            self.turns(self.kept, 24 * 3600)
        self.assert_mirrored()
        self.assertEqual(len(self.roots), self.calls["inventories"])

    def test_a_broken_tree_is_set_apart_counted_and_harms_nobody(self) -> None:
        child = self.provider(self.roots[0])
        self.sql(
            "UPDATE inventories SET total = -1 WHERE resource_provider_id = "
            f"(SELECT id FROM resource_providers WHERE uuid = '{self.roots[1]}')"
        )
        self.sql("PRAGMA foreign_keys = OFF")
        self.sql(
            "UPDATE resource_providers SET parent_provider_id = 9999, generation = generation + 1 "
            f"WHERE uuid = '{child}'"
        )
        self.sql(
            "UPDATE resource_providers SET generation = generation + 1 "
            f"WHERE uuid = '{self.roots[1]}'"
        )
        self.allocate(self.roots[2])
        self.turns(self.kept, 60)
        self.turns(self.kept, 60)
        found = self.mirrored()
        self.assertIn("total -1", found[self.roots[1]]["broken"])
        self.assertIn("not below the root", found[self.roots[0]]["broken"])
        real = self.real()
        for key in self.roots[2:]:
            self.assertEqual(real[key], found[key])
        counted = self.states(known_namespaces.MIRRORS)["placement"]["broken"]
        self.assertEqual(2, sum(counted.values()))
        self.inventories(self.roots[1], {"VCPU": 4})
        self.turns(self.kept, 60)
        self.assertEqual(self.real()[self.roots[1]], self.mirrored()[self.roots[1]])

    def test_while_placement_is_down_the_mirror_grows_old_and_says_so_until_it_is_back(
        self,
    ) -> None:
        asked = self.mirror(bound_seconds=180)
        self.assertIsNone(asked.refusal())
        self.down = True
        for _ in range(4):
            self.clock.now += 60
            self.follow()
            with contextlib.suppress(placement_reader.PlacementUnanswered):
                self.kept.turn()
        self.follow()
        self.assertEqual(mirror_proof.TOO_OLD, asked.refusal())
        self.assertLess(180, asked.age_seconds(self.store_.snapshot()) or 0)
        self.down = False
        self.allocate(self.roots[0])
        self.turns(self.kept, 60)
        self.assertIsNone(asked.refusal())
        self.assert_mirrored()

    def test_a_new_epoch_begins_without_a_mirror_and_with_an_import(self) -> None:
        asked = self.mirror()
        self.synchronizer.reset()
        self.follow()
        self.assertEqual(mirror_proof.NEVER_SWEPT, asked.refusal())
        self.turns(self.kept, 1)
        self.assertIsNone(asked.refusal())
        self.assert_mirrored()

    def test_another_takes_over_from_a_keeper_that_died_and_finds_what_it_missed(self) -> None:
        self.compute_node(cloud.CELL1, "h1", uuid=self.roots[0])
        self.sweep()
        freed = self.allocate(self.roots[0])
        self.turns(self.kept, 60)
        self.clock.now += 30
        heir = self.keeper("two")
        self.follow()
        self.turns(self.kept)
        heir.turn()
        self.assertFalse(heir.status.keeping)
        # The first dies; a server's allocation is deleted, and its row with it.
        self.free(freed)
        self.allocate(self.roots[1])
        self.turns(heir, 16)
        self.assertTrue(heir.status.keeping)
        self.turns(heir, 2)
        self.assert_mirrored()

    def test_a_keeper_that_slept_writes_nothing_over_its_heirs_reading(self) -> None:
        with_old = self.allocate(self.roots[0])
        self.turns(self.kept, 60)
        slow = tree_publisher.TreePublisher(
            self.synchronizer,
            self.plugin.publisher(self.synchronizer, known_namespaces.PLACEMENT),
            placement_reader.PlacementReader(self.get),
        )
        heir = tree_publisher.TreePublisher(
            self.synchronizer,
            self.plugin.publisher(self.synchronizer, known_namespaces.PLACEMENT),
            placement_reader.PlacementReader(self.get),
        )
        read = slow._reader.allocations

        def asleep(provider: str) -> placement_reader.ProviderAllocations | None:
            found = read(provider)
            self.free(with_old)
            self.clock.now += 100
            heir.allocations([provider])
            return found

        slow._reader.allocations = asleep  # type: ignore[method-assign]
        slow.allocations([self.roots[0]])
        self.assert_mirrored()


class AnySequenceTest(mirror_cloud.MirrorCase):
    """Whatever is written, by whom and in what order: the mirror comes to equal Placement."""

    def begin(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.roots = [self.provider() for _ in range(3)]
        self.kept = self.keeper(sweep=mirror_sweep.MirrorSweepOptions(step_trees=2))
        self.own = own_writes.OwnWrites(
            self.synchronizer,
            self.plugin.publisher(self.synchronizer, known_namespaces.PLACEMENT),
            self.store_.snapshot,
            self.kept.look_at,
        )
        self.consumers: dict[str, str] = {}
        self.children: dict[str, str] = {}

    def act_allocate(self) -> None:
        key = self.dice.choice(self.roots)
        placed = {str(uuid.uuid4()): key for _ in range(self.dice.randint(1, 2))}
        before = self.own.before()
        done = self.client.post("/allocations", self.new_consumers(placed), version="1.36")
        if done.status_code == 204:
            self.consumers.update(placed)
            if self.dice.random() < 0.7:
                self.own.wrote({key: {consumer: {"VCPU": 1} for consumer in placed}}, before)

    def act_free(self) -> None:
        if self.consumers:
            consumer, key = self.consumers.popitem()
            self.free(consumer)
            if self.dice.random() < 0.5:
                self.kept.look_at([key])

    def act_move(self) -> None:
        if self.consumers:
            consumer, here = self.consumers.popitem()
            body = self.ask("get", f"/allocations/{consumer}")
            there = self.dice.choice(self.roots)
            body["allocations"] = {there: {"resources": {"VCPU": 1}}}
            moved = self.client.put(f"/allocations/{consumer}", body, version="1.36")
            self.consumers[consumer] = there if moved.status_code == 204 else here

    def act_describe(self) -> None:
        key = self.dice.choice(self.roots)
        self.traits(key, self.dice.choice(["HW_NIC_OFFLOAD_TSO", "COMPUTE_NODE"]))
        self.aggregates(key, str(uuid.uuid4()))

    def act_resize(self) -> None:
        key = self.dice.choice(self.roots)
        self.inventories(key, {"VCPU": self.dice.randint(8, 16), "DISK_GB": 9})

    def act_nest(self) -> None:
        key = self.dice.choice(self.roots)
        if key in self.children:
            self.ask("delete", f"/resource_providers/{self.children.pop(key)}")
        else:
            self.children[key] = self.provider(key)

    def act_renew(self) -> None:
        key = self.dice.choice(self.roots)
        if key not in self.children and key not in self.consumers.values():
            self.ask("delete", f"/resource_providers/{key}")
            self.provider(key=key, vcpus=self.dice.randint(1, 8))

    def act_publish(self) -> None:
        self.own.flush()

    def act_turn(self) -> None:
        self.clock.now += self.dice.choice([0, 0.5, 2, 30])
        self.follow()
        self.kept.turn()

    def play(self, seed: int) -> None:
        self.begin(seed)
        acts = [getattr(self, name) for name in dir(self) if name.startswith("act_")]
        acts += [self.act_allocate] * 2 + [self.act_turn] * 3
        for _ in range(60):
            self.dice.choice(acts)()
        self.own.flush()
        # Two sweeps and the looks that follow them: all that generations show.
        for seconds in (60, 2, 6, 60, 2, 6):
            self.turns(self.kept, seconds)
        real, mirrored = self.real(), self.mirrored()
        for found in (real, mirrored):
            for state in found.values():
                del state["allocations"]
        self.assertEqual(real, mirrored)
        # And what no generation shows, within a day.
        for _ in range(len(self.real())):
            self.turns(self.kept, 24 * 3600)
        self.assert_mirrored()

    def test_the_mirror_comes_to_equal_placement(self) -> None:
        """Set NODB_PROPERTY_EXAMPLES for more sequences than CI runs."""
        for seed in range(max(2, int(os.environ.get("NODB_PROPERTY_EXAMPLES", "0")) // 150)):
            with self.subTest(seed=seed):
                self.play(seed)
                self.synchronizer.reset()


class ThreadTest(mirror_cloud.MirrorCase):
    def test_the_keepers_thread_imports_lets_its_lease_go_and_is_joined(self) -> None:
        for _ in range(3):
            self.provider()
        self.replicator.start()
        self.addCleanup(self.replicator.stop)
        kept = self.keeper(readers=2, turn_seconds=0.02)
        kept._clock = time.monotonic
        kept.start()
        deadline = time.monotonic() + 60
        while not self.states(known_namespaces.MIRRORS) and time.monotonic() < deadline:
            time.sleep(0.05)
        kept.stop()
        self.assert_mirrored()
        lease = leases.LeaseKeeper(self.synchronizer, mirror_keeper.LEASE, "another", 15)
        self.assertIsInstance(lease.acquire(), leases.Lease)
        left = [thread.name for thread in threading.enumerate() if "nodb-mirror" in thread.name]
        self.assertEqual([], [name for name in left if not name.startswith("nodb-mirror-read")])
