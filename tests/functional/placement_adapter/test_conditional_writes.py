# SPDX-License-Identifier: Apache-2.0
"""A guarded Placement writes for trees as they were expected, or not at all; over real databases.

What a tree is taken for comes from what Placement lists, as the plugin's schedulers have it.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any
from unittest import mock

import attrs
import fixtures
import orjson
import sqlalchemy as sa
from oslo_db import exception as db_exc
from placement.objects import allocation

from nova_nodb_scheduler import tree_conditions
from nova_nodb_scheduler.nova_adapter.placement.mirror import chosen_trees, placement_reader
from nova_nodb_scheduler.placement_adapter import guarded_write
from nova_nodb_scheduler.testing import servers
from tests.functional.placement_adapter import placement_process, test_guarded_write

WAIT_SECONDS = 60.0
_request = placement_process.request

#: Times that a random change and a write follow one another.
_TURNS = 60


class SQLite(fixtures.Fixture):  # type: ignore[misc]
    """A file."""

    def __init__(self, prepare: Callable[[str], None]) -> None:
        super().__init__()
        self._prepare = prepare

    def _setUp(self) -> None:
        self.url = f"sqlite:///{self.useFixture(fixtures.TempDir()).path}/placement.sqlite"
        self._prepare(self.url)


class ConditionsCase(test_guarded_write.GuardedCase):
    """Trees that others change, and writes for what they were."""

    def mark(self, root: str) -> tree_conditions.TreeMark | None:
        """What a tree is by its generations, as Placement lists them; None where there is none."""
        listed = self.placement.call("GET", f"/resource_providers?in_tree={root}").body
        members = {each["uuid"]: each for each in listed["resource_providers"]}
        if root not in members:
            return None
        return tree_conditions.TreeMark(
            tree_conditions.mark(
                members[root]["generation"],
                [
                    tree_conditions.TreeMember(
                        each["uuid"], each["parent_provider_uuid"], each["generation"]
                    )
                    for name, each in members.items()
                    if name != root
                ],
            )
        )

    def marks(self, *roots: str) -> dict[str, tree_conditions.TreeMark]:
        return {root: mark for root in roots if (mark := self.mark(root)) is not None}

    def with_contents(
        self, marks: Mapping[str, tree_conditions.TreeMark]
    ) -> dict[str, tree_conditions.TreeMark]:
        """Return the marks with what the trees consist of, as the plugin's schedulers see it."""
        return {
            root: attrs.evolve(mark, contents=self.contents(root)) for root, mark in marks.items()
        }

    def contents(self, root: str) -> str:
        reader = placement_reader.PlacementReader(self.get)
        state = reader.record(root, reader.tree(root))
        assert state is not None
        assert "broken" not in state
        return chosen_trees._mark(root, state).contents

    def get(self, path: str) -> Any:
        answer = self.placement.call("GET", path)
        return mock.Mock(status_code=answer.status, content=orjson.dumps(answer.body))

    def write(
        self,
        marks: Mapping[str, tree_conditions.TreeMark] | str,
        *providers: str,
        consumer: str | None = None,
    ) -> placement_process.Answer:
        """Allocate for a new consumer on providers, if trees are these."""
        body = {consumer or str(uuid.uuid4()): _request({name: {"VCPU": 1} for name in providers})}
        headers = (
            {tree_conditions.REQUEST: marks}
            if isinstance(marks, str)
            else tree_conditions.requested(marks)
        )
        return self.placement.call("POST", "/allocations", body, headers=headers)

    def said(self, answer: placement_process.Answer) -> tree_conditions.ConditionAnswer:
        return tree_conditions.read_answer(answer.headers)

    def assert_written(self, answer: placement_process.Answer) -> None:
        self.assertEqual(204, answer.status, answer)
        self.assertTrue(self.said(answer).is_same, answer)

    def assert_refused(self, answer: placement_process.Answer, *roots: str) -> None:
        self.assertEqual((409, "placement.concurrent_update"), (answer.status, answer.code))
        self.assertEqual(frozenset(roots), self.said(answer).differing, answer)

    # -- changes --------------------------------------------------------------------

    def set_traits(self, provider: str, *names: str) -> None:
        body = {
            "resource_provider_generation": self.placement.generation(provider),
            "traits": list(names),
        }
        answer = self.placement.call("PUT", f"/resource_providers/{provider}/traits", body)
        self.assertEqual(200, answer.status, answer)

    def set_aggregates(self, provider: str, *names: str) -> None:
        body = {
            "resource_provider_generation": self.placement.generation(provider),
            "aggregates": list(names),
        }
        answer = self.placement.call("PUT", f"/resource_providers/{provider}/aggregates", body)
        self.assertEqual(200, answer.status, answer)

    def inventory(self, provider: str, **totals: int) -> None:
        generation = self.placement.generation(provider)
        self.assertEqual(200, self.placement.set_inventories(provider, generation, totals).status)

    def child(self, parent: str) -> str:
        name = str(uuid.uuid4())
        body = {"name": name, "uuid": name, "parent_provider_uuid": parent}
        self.assertEqual(200, self.placement.call("POST", "/resource_providers", body).status)
        return name

    def move(self, provider: str, parent: str) -> None:
        body = {"name": provider, "parent_provider_uuid": parent}
        answer = self.placement.call("PUT", f"/resource_providers/{provider}", body)
        self.assertEqual(200, answer.status, answer)

    def delete(self, provider: str) -> None:
        answer = self.placement.call("DELETE", f"/resource_providers/{provider}")
        self.assertEqual(204, answer.status, answer)


class ConditionsTest(ConditionsCase):
    def test_a_tree_that_is_as_expected_is_written_to_and_that_is_said(self) -> None:
        host = self.placement.provider(VCPU=10)
        first = self.marks(host)
        self.assert_written(self.write(first, host))
        # The write itself has moved it, by one.
        self.assert_refused(self.write(first, host), host)
        self.assert_written(self.write(self.marks(host), host))
        self.assertEqual({"VCPU": 2}, self.placement.usages(host))

    def tree(self) -> tuple[str, str, str]:
        root = self.placement.provider(VCPU=10)
        child = self.child(root)
        return root, child, self.child(child)

    def changes(self) -> dict[str, Callable[[str, str, str], Any]]:
        """What may happen to a root, a child and a grandchild, but for allocations."""
        return {
            "a trait": lambda root, *_: self.set_traits(root, "COMPUTE_STATUS_DISABLED"),
            "an aggregate": lambda root, *_: self.set_aggregates(root, str(uuid.uuid4())),
            "an inventory": lambda root, *_: self.inventory(root, VCPU=9),
            "a child's trait": lambda _, child, *__: self.set_traits(child, "HW_CPU_X86_AVX"),
            "a grandchild's inventory": lambda *all_: self.inventory(all_[2], DISK_GB=3),
            "a new child": lambda root, *_: self.child(root),
            "a child that is gone": lambda *all_: self.delete(all_[2]),
            "a child elsewhere": lambda root, _, grandchild: self.move(grandchild, root),
        }

    def test_each_change_that_a_listing_tells_of_refuses_and_leaves_nothing(self) -> None:
        changes = self.changes()
        changes["an allocation"] = lambda root, *_: self.write("", root)
        for what, change in changes.items():
            with self.subTest(what):
                root, *below = self.tree()
                other = self.placement.provider(VCPU=10)
                consumer = str(uuid.uuid4())
                marks = self.marks(root, other)
                records = self.consumer_records()
                change(root, *below)
                more = self.consumer_records() - records
                now = self.marks(root, other)
                used = self.placement.usages(root)
                answer = self.write(marks, root, other, consumer=consumer)
                self.assert_refused(answer, root)
                self.assertEqual({}, self.placement.held(consumer))
                self.assertEqual(
                    (used, {}), (self.placement.usages(root), self.placement.usages(other))
                )
                self.assertEqual(now, self.marks(root, other))
                self.assertEqual(records + more, self.consumer_records())
                self.assert_written(self.write(now, root, other, consumer=consumer))

    def test_allocations_of_others_refuse_nobody_who_says_what_else_the_tree_is(self) -> None:
        root, child, _ = self.tree()
        self.set_traits(root, "COMPUTE_NODE", "HW_CPU_X86_AVX")
        self.set_aggregates(root, *(str(uuid.uuid4()) for _ in range(3)))
        self.inventory(child, DISK_GB=7, VGPU=2)
        other = self.placement.provider(VCPU=10, MEMORY_MB=64)
        marks = self.with_contents(self.marks(root, other))
        for _ in range(2):
            self.assert_written(self.write(marks, root, other))
        self.assertEqual({"VCPU": 2}, self.placement.usages(root))

    def test_each_other_change_refuses_him_too_allocations_or_none_beside_it(self) -> None:
        for what, change in self.changes().items():
            for beside in (False, True):
                with self.subTest(what, beside=beside):
                    tree = self.tree()
                    other = self.placement.provider(VCPU=10)
                    marks = self.with_contents(self.marks(tree[0], other))
                    change(*tree)
                    if beside:
                        self.write("", tree[0], other)
                    used = self.placement.usages(tree[0])
                    self.assert_refused(self.write(marks, tree[0], other), tree[0])
                    self.assertEqual(used, self.placement.usages(tree[0]))

    def test_a_tree_that_is_gone_is_refused_whatever_it_was(self) -> None:
        host, gone = (self.placement.provider(VCPU=10) for _ in range(2))
        marks = self.with_contents(self.marks(host, gone))
        self.delete(gone)
        self.assert_refused(self.write(marks, host), gone)

    def test_all_trees_that_differ_are_named_and_no_other(self) -> None:
        hosts = [self.placement.provider(VCPU=10) for _ in range(4)]
        marks = self.marks(*hosts)
        for each in hosts[:2]:
            self.set_traits(each, "COMPUTE_STATUS_DISABLED")
        gone = str(uuid.uuid4())
        self.assert_refused(
            self.write({**marks, gone: tree_conditions.TreeMark("0")}, *hosts), *hosts[:2], gone
        )

    def test_a_tree_may_be_named_that_nothing_is_allocated_of(self) -> None:
        host, other = (self.placement.provider(VCPU=10) for _ in range(2))
        marks = self.marks(host, other)
        self.assert_written(self.write(marks, host))
        self.set_traits(other, "COMPUTE_STATUS_DISABLED")
        self.assert_refused(self.write({other: marks[other]}, host), other)

    def test_what_is_not_judged_is_not_said_to_be_the_same(self) -> None:
        host = self.placement.provider(VCPU=1)
        name = str(uuid.uuid4())
        self.assertTrue(self.said(self.placement.call("GET", "/")).is_known)
        for text in ("", "nonsense", f"{host}=x", f"{host}=0;{name}=1"):
            answer = self.write(text, host, consumer=str(uuid.uuid4()))
            self.assertFalse(self.said(answer).is_same, answer)
            self.assertTrue(self.said(answer).is_known, answer)
        # The first one was written; a refusal for want of room says nothing of trees.
        self.assertEqual({"VCPU": 1}, self.placement.usages(host))
        answer = self.write(self.marks(host), host)
        self.assertEqual((409, frozenset()), (answer.status, self.said(answer).differing))
        self.assertEqual("compares", answer.headers[tree_conditions.ANSWER])

    def test_a_put_of_one_consumer_is_judged_too(self) -> None:
        host = self.placement.provider(VCPU=10)
        marks, consumer = self.marks(host), str(uuid.uuid4())
        headers = tree_conditions.requested(marks)
        body = _request({host: {"VCPU": 1}})
        path = f"/allocations/{consumer}"
        self.assert_written(self.placement.call("PUT", path, body, headers=headers))
        body = _request({host: {"VCPU": 2}}, 1)
        self.assert_refused(self.placement.call("PUT", path, body, headers=headers), host)

    def test_a_condition_is_no_statement_more_whatever_the_number_of_trees(self) -> None:
        hosts = [self.placement.provider(VCPU=10) for _ in range(8)]
        self.write("", *hosts)
        counts = []
        for marks in ({}, self.marks(hosts[0]), self.marks(*hosts)):
            marks = self.marks(*marks)
            with self.statements() as seen:
                self.assertEqual(204, self.write(marks, *hosts).status)
            counts.append(len(seen))
        self.assertEqual([counts[0]] * 3, counts)

    def test_what_trees_are_is_three_more_where_allocations_moved_one(self) -> None:
        hosts = [self.placement.provider(VCPU=10) for _ in range(8)]
        self.write("", *hosts)
        marks = self.with_contents(self.marks(*hosts))
        counts = []
        for _ in range(2):
            with self.statements() as seen:
                self.assertEqual(204, self.write(marks, *hosts).status)
            counts.append(len(seen))
        self.assertEqual([counts[0], counts[0] + 3], counts)

    def test_another_try_compares_again(self) -> None:
        """What the first one found was true of a transaction that is not there any more."""
        host = self.placement.provider(VCPU=10)
        marks, tries = self.marks(host), []
        own, own_again = guarded_write._make_consumers, guarded_write._read_providers_again

        def deadlock(*args: Any) -> Any:
            tries.append("compared")
            if len(tries) == 1:
                raise db_exc.DBDeadlock
            return own(*args)

        def again(*args: Any) -> None:
            tries.append("again")
            self.set_traits(host, "COMPUTE_STATUS_DISABLED")
            own_again(*args)

        with (
            mock.patch.object(guarded_write, "_make_consumers", deadlock),
            mock.patch.object(guarded_write, "_read_providers_again", again),
        ):
            self.assert_refused(self.write(marks, host), host)
        self.assertEqual(["compared", "again"], tries)
        self.assertEqual({}, self.placement.usages(host))

    def test_any_history_of_changes_and_writes_is_judged_as_a_listing_would(self) -> None:
        """Seeded; a write names what a tree was at some moment before, or is."""
        seed = random.randrange(2**32)
        rng = random.Random(seed)
        roots = [self.placement.provider(VCPU=1000) for _ in range(3)]
        aggregate = str(uuid.uuid4())
        children: dict[str, list[str]] = {root: [] for root in roots}
        known: dict[str, list[tree_conditions.TreeMark]] = {root: [] for root in roots}
        outcomes = []
        for turn in range(_TURNS):
            root = rng.choice(roots)
            match rng.randrange(10):
                case 0:
                    self.set_traits(root, *rng.choice([[], ["COMPUTE_STATUS_DISABLED"]]))
                case 1:
                    children[root].append(self.child(root))
                case 2 if children[root]:
                    self.set_traits(rng.choice(children[root]), "HW_CPU_X86_AVX")
                case 3 if children[root]:
                    self.delete(children[root].pop(rng.randrange(len(children[root]))))
                case 4:
                    self.inventory(root, VCPU=rng.choice([1000, 1001]))
                case 5:
                    self.set_aggregates(root, *rng.choice([[], [aggregate]]))
                case 6 | 7:
                    self.write("", root)
            for each, mark in self.with_contents(self.marks(*roots)).items():
                known[each].append(mark)
            named = rng.sample(roots, rng.randint(1, 3))
            # One of the last three, or of as many as there are; with its contents or without.
            marks = {each: rng.choice([known[each][-1]] * 3 + known[each][-3:]) for each in named}
            if rng.random() < 0.5:
                marks = {r: attrs.evolve(each, contents="") for r, each in marks.items()}
            differing = [
                each
                for each in named
                if known[each][-1].generations != marks[each].generations
                and known[each][-1].contents != marks[each].contents
            ]
            where = rng.sample(roots, rng.randint(1, 3))
            before = {each: self.placement.usages(each) for each in roots}
            answer = self.write(marks, *where)
            context = f"seed {seed}, turn {turn}: {marks}"
            if differing:
                self.assert_refused(answer, *differing)
                self.assertEqual(
                    before, {each: self.placement.usages(each) for each in roots}, context
                )
            else:
                self.assert_written(answer)
            outcomes.append(bool(differing))
        self.assertEqual({True, False}, set(outcomes), f"seed {seed}")


class PostgreSQLConditionsTest(ConditionsTest):
    database = servers.PostgreSQL


class SQLiteConditionsTest(ConditionsTest):
    database = SQLite  # type: ignore[assignment]

    def test_a_condition_is_no_statement_more_whatever_the_number_of_trees(self) -> None:
        self.skipTest("its driver sends rows one by one, as the count of others does not")

    def test_what_trees_are_is_three_more_where_allocations_moved_one(self) -> None:
        self.skipTest("the same")


class WaitingConditionsTest(ConditionsCase):
    """Another one's transaction is not over yet."""

    def changed_meanwhile(self, change: Callable[[Any, int], None]) -> Any:
        """Write while another transaction, which is then committed, changes the provider."""
        host = self.placement.provider(VCPU=10)
        marks = self.marks(host)
        table = allocation._RP_TBL
        arrived = threading.Event()
        own = guarded_write._lock_providers

        def lock(*args: Any, **how: Any) -> Any:
            arrived.set()
            return own(*args, **how)

        pool = futures.ThreadPoolExecutor(1)
        self.addCleanup(pool.shutdown)
        with (
            self.fixture.engine.connect() as other,
            mock.patch.object(guarded_write, "_lock_providers", lock),
        ):
            number = other.execute(
                sa.select(table.c.id).where(table.c.uuid == host).with_for_update()
            ).scalar_one()
            asked = pool.submit(self.write, marks, host)
            self.assertTrue(arrived.wait(WAIT_SECONDS))
            # It waits, or will: whatever it compares it has to compare behind the lock.
            futures.wait([asked], timeout=0.5)
            self.assertFalse(asked.done())
            change(other, number)
            other.commit()
            answer = asked.result(WAIT_SECONDS)
        return host, answer

    def test_who_waited_for_a_change_sees_it(self) -> None:
        table = allocation._RP_TBL

        def change(other: Any, number: int) -> None:
            # As Placement does once it has written a trait.
            other.execute(
                table.update().where(table.c.id == number).values(generation=table.c.generation + 1)
            )

        host, answer = self.changed_meanwhile(change)
        self.assert_refused(answer, host)
        self.assertEqual({}, self.placement.usages(host))

    def test_who_waited_for_nothing_is_written(self) -> None:
        host, answer = self.changed_meanwhile(lambda *_: None)
        self.assert_written(answer)
        self.assertEqual({"VCPU": 1}, self.placement.usages(host))


class PostgreSQLWaitingConditionsTest(WaitingConditionsTest):
    database = servers.PostgreSQL
