# SPDX-License-Identifier: Apache-2.0
"""The instruments of tools/chaos.sh: what they see in databases, and how plans are drawn."""

import datetime
import math
import pathlib
import sqlite3
import tempfile
import unittest
from collections.abc import Iterable

import attrs
import pymysql
from oslo_config import cfg

from nova_nodb_scheduler.nova_adapter.placement.mirror import mirror_keeper
from nova_nodb_scheduler.synchronizer import loader
from nova_nodb_scheduler.synchronizer.records import leases
from nova_nodb_scheduler.testing import patience
from tests.capacity import bursts
from tests.capacity import ledger as capacity_ledger
from tests.chaos import (
    audit,
    backends,
    deployment,
    ledger,
    own_path,
    plan,
    rounds,
)
from tests.chaos import snapshot as snapshot_module
from tests.chaos.logs import decision_lines, novas_own, withdrawals
from tests.chaos.results import filed, regressions, report
from tools.stack import configuration
from tools.stack import settings as stack_settings

_CELLS = ("nova_cell0", "nova_cell1", "nova_cell2")
_SCHEMA = """
CREATE TABLE placement.resource_providers (id INTEGER PRIMARY KEY, uuid, name);
CREATE TABLE placement.resource_classes (id INTEGER PRIMARY KEY, name);
CREATE TABLE placement.inventories
    (resource_provider_id, resource_class_id, total, reserved, allocation_ratio);
CREATE TABLE placement.allocations
    (id INTEGER PRIMARY KEY AUTOINCREMENT, consumer_id, resource_provider_id, resource_class_id,
    used);
CREATE TABLE nova_api.build_requests (instance_uuid);
CREATE TABLE nova_api.instance_groups (id INTEGER PRIMARY KEY, uuid, name);
CREATE TABLE nova_api.instance_group_policy (group_id, policy, rules);
CREATE TABLE nova_api.instance_group_member (instance_uuid, group_id);
INSERT INTO placement.resource_classes VALUES (0, 'VCPU'), (1, 'MEMORY_MB');
"""
_CELL_SCHEMA = """
CREATE TABLE {cell}.instances (uuid, display_name, host, node, vm_state, task_state, vcpus,
    deleted DEFAULT 0, hidden DEFAULT 0, launched_at);
CREATE TABLE {cell}.migrations
    (uuid, instance_uuid, status, source_node, dest_node, deleted DEFAULT 0);
CREATE TABLE {cell}.instance_faults (id INTEGER PRIMARY KEY, instance_uuid, message);
"""


class Cloud:
    """Placement's and Nova's databases in SQLite: two hosts of two VCPU each."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:")
        for name in ("placement", "nova_api", *_CELLS):
            self._connection.execute(f"ATTACH ':memory:' AS {name}")
        self._connection.executescript(_SCHEMA)
        for cell in _CELLS:
            self._connection.executescript(_CELL_SCHEMA.format(cell=cell))
        for number, name in enumerate(("host1", "host2"), 1):
            self.sql(
                "INSERT INTO placement.resource_providers VALUES (?, ?, ?)",
                *(number, f"uuid of {name}", name),
            )
            # Of 4 are 3 reserved, and each of the others counts twice.
            self.sql("INSERT INTO placement.inventories VALUES (?, 0, 4, 3, 2.0)", number)

    def sql(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        return self._connection.execute(statement, values).fetchall()

    def server(self, name: str, host: str | None, **values: object) -> str:
        """A server, ACTIVE and allocated on its host unless told otherwise."""
        given = {"vm_state": "active", "task_state": None, "cell": "nova_cell1", "on": host}
        given |= values
        self.sql(
            f"INSERT INTO {given['cell']}.instances"
            " (uuid, display_name, host, node, vm_state, task_state, vcpus, launched_at)"
            " VALUES (?, ?, ?, ?, ?, ?, 1, ?)",
            *(name, name, host, host, given["vm_state"], given["task_state"]),
            "then" if given["vm_state"] == "active" else None,
        )
        if given["on"] is not None:
            self.allocate(name, str(given["on"]))
        return name

    def allocate(self, consumer: str, host: str) -> None:
        self.sql(
            "INSERT INTO placement.allocations"
            " (consumer_id, resource_provider_id, resource_class_id, used) VALUES (?, ?, 0, 1)",
            *(consumer, int(host[-1])),
        )

    def withdraw(self, consumer: str) -> None:
        self.sql("DELETE FROM placement.allocations WHERE consumer_id = ?", consumer)

    def group(self, policy: str, *members: str, rules: str | None = None) -> None:
        ((number,),) = self.sql("SELECT COUNT(*) FROM nova_api.instance_groups")
        self.sql("INSERT INTO nova_api.instance_groups VALUES (?, ?, 'group')", number, str(number))
        self.sql(
            "INSERT INTO nova_api.instance_group_policy VALUES (?, ?, ?)", number, policy, rules
        )
        for member in members:
            self.sql("INSERT INTO nova_api.instance_group_member VALUES (?, ?)", member, number)

    def migration(self, uuid: str, server: str, status: str) -> None:
        self.sql(
            "INSERT INTO nova_cell1.migrations VALUES (?, ?, ?, 'host1', 'host2', 0)",
            *(uuid, server, status),
        )

    def snapshot(self, at: float = 0.0) -> snapshot_module.Snapshot:
        return snapshot_module.read(self.sql, _CELLS, at)


class OverCommitWatchTest(unittest.TestCase):
    """What tools/capacity.sh and the moves of tools/faults.sh see with the same snapshots."""

    def test_the_most_that_was_given_away_beyond_a_host_is_kept(self) -> None:
        cloud = Cloud()
        watch = capacity_ledger.OverCommitWatch(cloud.snapshot)
        for name in ("a", "b"):
            cloud.server(name, "host1")
        watch.look()
        self.assertEqual((0, 1), (watch.over_allocated, watch.samples))
        for name in ("c", "d"):
            cloud.server(name, "host1")
        watch.look()
        cloud.withdraw("d")
        watch.look()
        self.assertEqual((2, 3), (watch.over_allocated, watch.samples))

    def test_tables_that_cannot_be_read_are_told(self) -> None:
        def away() -> snapshot_module.Snapshot:
            raise OSError("the server is away")

        with capacity_ledger.OverCommitWatch(away) as watch:
            patience.wait_until(lambda: watch.failures, 20.0, "a look that failed")
        self.assertEqual(["OSError: the server is away"], watch.failures)

    def test_servers_stand_on_their_hosts_unless_they_failed(self) -> None:
        cloud = Cloud()
        for name, host in (("a", "host1"), ("b", "host1"), ("c", "host2"), ("d", None)):
            cloud.server(name, host)
        cloud.server("e", "host2", vm_state="error")
        found = capacity_ledger.standing(cloud.snapshot(), ["a", "c", "d", "e", "gone"])
        self.assertEqual({"host1": ["a"], "host2": ["c"]}, found)


class BurstCourseTest(unittest.TestCase):
    """What tools/bursts.sh makes of the samples of one burst."""

    def setUp(self) -> None:
        self.cloud = Cloud()
        self.course = bursts.Course(began=0.0, servers=3)

    def _take(self, at: float) -> bool:
        return self.course.take(self.cloud.snapshot(at))

    def test_a_server_that_failed_is_neither_waited_for_nor_stands(self) -> None:
        self.cloud.server("a", "host1")
        self.cloud.server("b", "host1", vm_state="building")
        self.assertFalse(self._take(1.0))
        self.assertTrue(math.isnan(self.course.placed_seconds))
        self.cloud.server("c", None, cell="nova_cell0", vm_state="error")
        self.assertFalse(self._take(2.0))
        self.assertEqual(2.0, self.course.placed_seconds)
        self.cloud.sql("UPDATE nova_cell1.instances SET vm_state = 'active' WHERE uuid = 'b'")
        self.assertTrue(self._take(3.0))
        self.assertEqual((2, 1, 3.0), (self.course.active, self.course.failed, self.course.ended))
        self.assertEqual((0, 2), self.course.per_host)

    def test_what_was_allocated_beyond_a_host_at_any_moment_is_kept(self) -> None:
        for name in ("a", "b", "c"):
            self.cloud.server(name, "host1")
        self.assertTrue(self._take(1.0))
        self.cloud.withdraw("c")
        self._take(2.0)
        self.assertEqual(1, self.course.over)


class AuditTest(unittest.TestCase):
    def setUp(self) -> None:
        self.cloud = Cloud()

    def _found(self) -> list[tuple[str, str]]:
        return [(f.kind, f.subject) for f in audit.at_any_moment(self.cloud.snapshot())]

    def _left(self) -> list[tuple[str, str]]:
        return [(f.kind, f.subject) for f in audit.after_quiet(self.cloud.snapshot())]

    def test_in_a_full_cloud_without_faults_nothing_is_found(self) -> None:
        for name, host in (("a", "host1"), ("b", "host1"), ("c", "host2")):
            self.cloud.server(name, host)
        self.cloud.server("d", "host2", cell="nova_cell2")
        self.cloud.server("e", None, cell="nova_cell0", vm_state="error")
        self.cloud.group("anti-affinity", "a", "c")
        self.cloud.group("affinity", "a", "b")
        self.cloud.group("soft-affinity", "a", "c")
        self.assertEqual(([], []), (self._found(), self._left()))

    def test_a_host_that_gave_away_more_than_it_has_is_found_with_its_servers(self) -> None:
        for name in ("a", "b", "c"):
            self.cloud.server(name, "host1")
        self.assertEqual(
            [(audit.OVER_COMMIT, "host1 VCPU"), (audit.CROWDED, "host1")], self._found()
        )
        over, crowded = audit.at_any_moment(self.cloud.snapshot())
        self.assertEqual((1, 1), (over.excess, crowded.excess))

    def test_a_host_is_found_full_by_its_servers_when_they_have_no_allocations(self) -> None:
        for name in ("a", "b", "c"):
            self.cloud.server(name, "host1", on=None)
        kinds = [kind for kind, _ in self._found()]
        self.assertEqual([audit.CROWDED, *[audit.UNALLOCATED] * 3], kinds)

    def test_an_amount_without_an_inventory_is_over_committed(self) -> None:
        self.cloud.sql("DELETE FROM placement.inventories WHERE resource_provider_id = 1")
        self.cloud.server("a", "host1")
        self.assertIn((audit.OVER_COMMIT, "host1 VCPU"), self._found())

    def test_two_members_of_an_anti_affinity_group_on_one_host_are_found(self) -> None:
        self.cloud.group("anti-affinity", self.cloud.server("a", "host1"), "b")
        self.cloud.server("b", "host1")
        self.assertEqual([(audit.GROUP, "group")], self._found())

    def test_as_many_members_on_a_host_as_the_rules_allow_are_not_found(self) -> None:
        members = [self.cloud.server(name, "host1") for name in ("a", "b")]
        self.cloud.group("anti-affinity", *members, rules='{"max_server_per_host": 2}')
        self.assertEqual([], self._found())

    def test_members_of_an_affinity_group_on_two_hosts_are_found(self) -> None:
        members = [self.cloud.server("a", "host1"), self.cloud.server("b", "host2")]
        self.cloud.group("affinity", *members)
        self.assertEqual([(audit.GROUP, "group")], self._found())

    def test_a_group_that_a_member_breaks_while_it_is_built_is_found_by_another_name(self) -> None:
        self.cloud.group("anti-affinity", self.cloud.server("a", "host1"), "b")
        self.cloud.server("b", "host1", vm_state="building", task_state="spawning")
        self.assertEqual([(audit.GROUP_LATE, "group")], self._found())

    def test_members_that_failed_or_leave_break_no_group(self) -> None:
        self.cloud.group("anti-affinity", self.cloud.server("a", "host1"), "b", "c")
        self.cloud.server("b", "host1", vm_state="error")
        self.cloud.server("c", "host1", task_state="deleting")
        kinds = [kind for kind, _ in self._found()]
        self.assertNotIn(audit.GROUP, kinds)
        self.assertNotIn(audit.GROUP_LATE, kinds)

    def test_soft_policies_are_never_broken(self) -> None:
        members = [self.cloud.server("a", "host1"), self.cloud.server("b", "host1")]
        self.cloud.group("soft-anti-affinity", *members)
        self.assertEqual([], self._found())

    def test_an_active_server_without_an_allocation_is_found(self) -> None:
        self.cloud.server("a", "host1", on=None)
        self.assertEqual([(audit.UNALLOCATED, "a")], self._found())

    def test_a_server_whose_deletion_was_asked_for_may_have_lost_its_allocation(self) -> None:
        self.cloud.server("a", "host1", on=None)
        self.assertEqual([], audit.at_any_moment(self.cloud.snapshot(), {"a"}))

    def test_an_active_server_with_its_allocation_on_another_host_is_found(self) -> None:
        self.cloud.server("a", "host1", on="host2")
        self.assertEqual([(audit.MISPLACED, "a")], self._found())

    def test_an_active_server_that_holds_a_second_host_is_found(self) -> None:
        self.cloud.server("a", "host1")
        self.cloud.allocate("a", "host2")
        self.assertEqual([(audit.MISPLACED, "a")], self._found())

    def test_a_move_that_is_under_way_holds_both_hosts(self) -> None:
        self.cloud.server("a", "host1", on="host2", task_state="resize_migrating")
        self.cloud.migration("m", "a", "migrating")
        self.cloud.allocate("m", "host1")
        self.assertEqual([], self._found())
        self.assertEqual([(audit.STUCK, "a")], self._left())

    def test_a_resize_that_waits_for_its_confirmation_holds_both_hosts_and_is_not_stuck(
        self,
    ) -> None:
        self.cloud.server("a", "host2", vm_state="resized")
        self.cloud.migration("m", "a", "finished")
        self.cloud.allocate("m", "host1")
        self.assertEqual(([], []), (self._found(), self._left()))

    def test_a_build_that_does_not_end_is_stuck(self) -> None:
        self.cloud.server("a", None, vm_state="building", task_state="scheduling")
        self.assertEqual([(audit.STUCK, "a")], self._left())

    def test_a_deletion_that_does_not_end_is_stuck(self) -> None:
        self.cloud.server("a", "host1", task_state="deleting")
        self.assertEqual([(audit.STUCK, "a")], self._left())

    def test_a_build_request_that_became_no_server_is_stuck(self) -> None:
        self.cloud.sql("INSERT INTO nova_api.build_requests VALUES ('a')")
        self.assertEqual([(audit.STUCK, "a")], self._left())

    def test_an_allocation_of_nothing_is_an_orphan(self) -> None:
        self.cloud.allocate("a", "host1")
        self.assertEqual([(audit.ORPHAN, "a")], self._left())

    def test_an_allocation_of_a_deleted_server_is_an_orphan(self) -> None:
        self.cloud.server("a", "host1")
        self.cloud.sql("UPDATE nova_cell1.instances SET deleted = 1")
        self.assertEqual([(audit.ORPHAN, "a")], self._left())

    def test_an_allocation_of_a_server_that_failed_without_a_host_is_an_orphan(self) -> None:
        self.cloud.server("a", None, cell="nova_cell0", vm_state="error", on="host1")
        self.assertEqual([(audit.ORPHAN, "a")], self._left())

    def test_what_a_server_that_failed_holds_on_another_host_is_an_orphan(self) -> None:
        self.cloud.server("a", "host1", vm_state="error")
        self.assertEqual([], self._left())
        self.cloud.allocate("a", "host2")
        self.assertEqual([(audit.ORPHAN, "a")], self._left())
        [finding] = audit.after_quiet(self.cloud.snapshot())
        self.assertEqual(("host2",), finding.hosts)
        # Whose it is tells the move that failed.
        self.cloud.migration("m", "a", "error")
        self.assertEqual([], self._left())

    def test_a_move_that_goes_on_without_its_server_is_stuck(self) -> None:
        self.cloud.server("a", "host1")
        self.cloud.migration("m", "a", "migrating")
        self.assertEqual([(audit.STUCK, "m")], self._left())

    def test_an_allocation_of_a_request_that_is_being_built_is_none(self) -> None:
        self.cloud.sql("INSERT INTO nova_api.build_requests VALUES ('a')")
        self.cloud.allocate("a", "host1")
        self.assertEqual([(audit.STUCK, "a")], self._left())

    def test_an_allocation_of_a_move_that_is_over_is_an_orphan(self) -> None:
        self.cloud.server("a", "host2")
        self.cloud.migration("m", "a", "confirmed")
        self.cloud.allocate("m", "host1")
        self.assertEqual([(audit.ORPHAN_MIGRATION, "m")], self._left())


class LedgerTest(unittest.TestCase):
    def setUp(self) -> None:
        self.cloud = Cloud()
        self.ledger = ledger.Ledger(self.cloud.snapshot)

    def _look(self, at: float) -> None:
        self.ledger.look(self.cloud.snapshot(self.ledger.began + at))

    def test_what_was_wrong_in_one_sample_stays_found_when_it_has_healed(self) -> None:
        for name in ("a", "b", "c"):
            self.cloud.server(name, "host1")
        self._look(1.0)
        self.cloud.server("d", "host1")
        self._look(2.0)
        self.cloud.sql("DELETE FROM placement.allocations")
        self.cloud.sql("DELETE FROM nova_cell1.instances")
        self._look(3.0)
        found = {record.kind: record for record in self.ledger.records()}
        self.assertEqual({audit.OVER_COMMIT, audit.CROWDED}, set(found))
        over = found[audit.OVER_COMMIT]
        self.assertEqual((1.0, 2.0, 2, 2), attrs.astuple(over)[3:7])
        self.assertEqual(4, self.ledger.most_active)

    def test_the_longest_time_without_a_sample_is_told(self) -> None:
        for at in (1.0, 2.0, 9.0, 9.5):
            self._look(at)
        self.assertAlmostEqual(7.0, self.ledger.blind_seconds)

    def test_a_server_is_settled_when_it_is_first_seen_active_or_failed(self) -> None:
        self.cloud.server("a", "host1", vm_state="building", task_state="spawning")
        self._look(1.0)
        self.cloud.sql("UPDATE nova_cell1.instances SET vm_state = 'active', task_state = NULL")
        self._look(2.0)
        self.cloud.sql("UPDATE nova_cell1.instances SET vm_state = 'error'")
        self._look(3.0)
        at, state = self.ledger.settled()["a"]
        self.assertEqual((2.0, "active"), (round(at - self.ledger.began, 3), state))

    def test_an_allocation_is_there_since_it_was_first_seen_without_a_break(self) -> None:
        self._look(1.0)
        self.cloud.allocate("a", "host1")
        self._look(2.0)
        self._look(3.0)
        began = self.ledger.began
        self.assertAlmostEqual(began + 2.0, self.ledger.allocated_since("a"))
        self.assertEqual(began, self.ledger.allocated_since("b"))
        self.cloud.sql("DELETE FROM placement.allocations")
        self._look(4.0)
        self.cloud.allocate("a", "host1")
        self._look(5.0)
        self.assertAlmostEqual(began + 5.0, self.ledger.allocated_since("a"))

    def test_slots_of_a_time_are_free_in_all_of_its_samples_each_on_its_host(self) -> None:
        self._look(1.0)
        self.cloud.server("a", "host1")
        self._look(2.0)
        began = self.ledger.began
        self.assertEqual(4, self.ledger.always_free(began, began + 1.5))
        self.assertEqual(3, self.ledger.always_free(began, began + 2.5))
        self.assertIsNone(self.ledger.always_free(began + 5.0, began + 6.0))
        # Three are free in each sample, and of these two in all.
        self.cloud.sql(
            "UPDATE placement.allocations SET resource_provider_id = 3 - resource_provider_id"
        )
        self._look(3.0)
        self.assertEqual(2, self.ledger.always_free(began, began + 3.5))


class MovesTest(unittest.TestCase):
    """A move whose end nobody saw, behind the deletion of its server."""

    def setUp(self) -> None:
        self.cloud = Cloud()
        self.ledger = ledger.Ledger(self.cloud.snapshot)
        self.cloud.server("a", "host1")
        self.cloud.migration("move", "a", "pre-migrating")

    def _look(self, at: float) -> None:
        self.ledger.look(self.cloud.snapshot(self.ledger.began + at))

    def test_it_is_known_without_its_row_since_it_was_last_seen_to_change(self) -> None:
        self._look(1.0)
        self._look(2.0)
        self.cloud.sql("UPDATE nova_cell1.migrations SET deleted = 1")
        self._look(3.0)
        self.assertTrue(self.ledger.is_unended_move("move"))
        self.assertEqual(self.ledger.began + 1.0, self.ledger.in_state_since("move"))

    def test_a_server_or_a_move_that_ended_is_none(self) -> None:
        self.cloud.sql("UPDATE nova_cell1.migrations SET status = 'error'")
        self._look(1.0)
        for uuid in ("move", "a", "nobody"):
            self.assertFalse(self.ledger.is_unended_move(uuid), uuid)


class GrantsTest(unittest.TestCase):
    """A host of two holds three: what that was, the end of the third allocation tells."""

    def setUp(self) -> None:
        self.cloud = Cloud()
        self.told: list[withdrawals.Told] = []
        self.ledger = ledger.Ledger(self.cloud.snapshot, lambda: self.told)
        for name in ("a", "b"):
            self.cloud.server(name, "host1")
        self.cloud.server("c", None, vm_state="building", task_state="scheduling", on="host1")
        self._look(1.0)

    def _look(self, at: float) -> None:
        self.ledger.look(self.cloud.snapshot(self.ledger.began + at))

    def _found(self) -> tuple[list[str], list[str]]:
        wrong = [each for each in self.ledger.records() if each.kind == audit.OVER_COMMIT]
        return [r.subject for r in wrong], [r.subject for r in self.ledger.withdrawn()]

    def test_what_nobody_was_answered_with_and_its_writer_took_back_is_no_over_commit(self) -> None:
        self.cloud.withdraw("c")
        self._look(1.3)
        self.assertEqual(([], ["host1 VCPU"]), self._found())

    def test_what_stands_to_the_end_is_an_over_commit_though_no_server_names_its_host(self) -> None:
        self._look(1.3)
        self.assertEqual((["host1 VCPU"], []), self._found())

    def test_what_a_server_was_sent_to_is_an_over_commit_though_it_goes_again(self) -> None:
        self.cloud.sql("UPDATE nova_cell1.instances SET node = 'host1' WHERE uuid = 'c'")
        self._look(1.3)
        self.cloud.withdraw("c")
        self._look(1.6)
        self.assertEqual((["host1 VCPU"], []), self._found())

    def test_what_a_move_names_is_an_over_commit_though_it_goes_again(self) -> None:
        self.cloud.withdraw("c")
        self.cloud.server("d", "host2")
        self.cloud.allocate("d", "host1")
        self.cloud.migration("move", "d", "migrating")
        self.cloud.sql(
            "UPDATE nova_cell1.migrations SET source_node = 'host2', dest_node = 'host1'"
        )
        self._look(1.3)
        self.cloud.withdraw("d")
        self._look(1.6)
        self.assertEqual(["host1 VCPU"], self._found()[0])

    def test_what_was_written_anew_is_judged_apart_from_what_was_withdrawn(self) -> None:
        self.cloud.withdraw("c")
        self.cloud.withdraw("b")
        self.cloud.allocate("c", "host1")
        self.cloud.sql("UPDATE nova_cell1.instances SET node = 'host1' WHERE uuid = 'c'")
        self._look(1.3)
        self.assertEqual(([], ["host1 VCPU"]), self._found())

    def test_what_goes_with_a_server_that_is_to_be_deleted_is_an_over_commit(self) -> None:
        # Its writer need not have taken it back.
        self.ledger.leaving.add("c")
        self._look(1.3)
        self.cloud.withdraw("c")
        self._look(1.6)
        self.assertEqual((["host1 VCPU"], []), self._found())

    def _withdrawn(self, at: float, server: str = "c", host: str = "host1") -> None:
        at += self.ledger.began
        self.told.append(withdrawals.Withdrawal(server, f"uuid of {host}", at))

    def test_what_its_writer_says_it_took_back_is_none_though_its_server_is_to_be_deleted(
        self,
    ) -> None:
        self.ledger.leaving.add("c")
        self._look(1.3)
        self.cloud.withdraw("c")
        self._look(1.6)
        self._withdrawn(1.4)
        self.assertEqual(([], ["host1 VCPU"]), self._found())

    def test_what_a_writer_says_of_another_write_host_or_server_excuses_nothing(self) -> None:
        self.ledger.leaving.add("c")
        self._look(1.3)
        self.cloud.withdraw("c")
        self._look(1.6)
        self._withdrawn(1.7)
        self._withdrawn(1.4, server="b")
        self._withdrawn(1.4, host="host2")
        self.assertEqual((["host1 VCPU"], []), self._found())

    def test_what_its_writer_says_excuses_nothing_that_still_stands(self) -> None:
        self.ledger.leaving.add("c")
        self._look(1.3)
        self._withdrawn(1.2)
        self.assertEqual((["host1 VCPU"], []), self._found())

    def test_what_its_writer_says_excuses_nothing_where_a_server_was_sent(self) -> None:
        self.ledger.leaving.add("c")
        self._look(1.3)
        self.cloud.sql("UPDATE nova_cell1.instances SET node = 'host1' WHERE uuid = 'c'")
        self._look(1.4)
        self.cloud.withdraw("c")
        self._look(1.6)
        self._withdrawn(1.5)
        self.assertEqual((["host1 VCPU"], []), self._found())

    def _answered(self, at: float, server: str = "c", host: str = "host1") -> None:
        self.told.append(withdrawals.Answer(server, at + self.ledger.began, host))

    def _refused(self, at: float, server: str = "c", took_seconds: float = 8.0) -> None:
        self.told.append(withdrawals.Refusal(server, at + self.ledger.began, took_seconds))

    def _rewritten(self, at: float, consumer: str = "c") -> None:
        self.told.append(withdrawals.Rewriting(consumer, at + self.ledger.began))

    def test_what_nobody_was_answered_with_is_none_though_it_stands_for_long(self) -> None:
        """Seed 721 with redis: Placement was killed, so that its writer could not take it back."""
        self.ledger.leaving.add("c")
        self._stand_long()
        self._refused(7.0)
        self.assertEqual(([], ["host1 VCPU"]), self._found())
        [record] = self.ledger.withdrawn()
        self.assertIn("its request failed", record.detail)

    def test_what_failed_is_none_to_the_end(self) -> None:
        self._look(1.3)
        self.assertEqual(["host1 VCPU"], self._found()[0])
        self._refused(1.2)
        self.assertEqual(([], ["host1 VCPU"]), self._found())

    def test_an_error_of_before_or_another_s_or_beside_an_answer_excuses_nothing(self) -> None:
        self.cloud.withdraw("c")
        self._look(1.1)
        self.ledger.leaving.add("c")
        self.cloud.allocate("c", "host1")
        self._look(1.3)
        self.cloud.withdraw("c")
        self._look(1.6)
        self._refused(1.0)
        self._refused(1.7)
        self._refused(1.2, server="d")
        self.assertEqual(["host1 VCPU"], self._found()[0])
        self._refused(1.2)
        self.assertEqual([], self._found()[0])
        self._answered(1.4)
        self.assertEqual(["host1 VCPU"], self._found()[0])

    def test_an_error_of_who_began_behind_its_first_sample_excuses_nothing(self) -> None:
        """A conductor allocated on an alternate; its server is asked for once more."""
        self._look(1.3)
        self._refused(1.9, took_seconds=0.5)
        self.assertEqual(["host1 VCPU"], self._found()[0])

    def test_an_error_excuses_nothing_where_another_scheduler_had_answered(self) -> None:
        """The first scheduler slept; the second one's answer has alternates."""
        self._answered(-3.0, host="host2")
        self._look(1.3)
        self._refused(1.2)
        self.assertEqual((["host1 VCPU"], []), self._found())

    def test_an_error_of_a_move_excuses_though_its_server_was_built(self) -> None:
        self.cloud.withdraw("c")
        self.cloud.server("d", "host2")
        self._answered(1.1, server="d", host="host2")
        self._look(1.3)
        self.cloud.sql("UPDATE nova_cell1.instances SET task_state = 'resize_prep'")
        self.cloud.allocate("d", "host1")
        self._look(1.6)
        self._look(1.9)
        self.assertEqual(["host1 VCPU"], self._found()[0])
        self._refused(1.7, server="d", took_seconds=0.3)
        self.assertEqual([], self._found()[0])

    def test_what_its_writer_answered_with_is_one_though_it_goes_at_once(self) -> None:
        """A nova-compute gives the build up before any sample has its host."""
        self._look(1.3)
        self.cloud.withdraw("c")
        self._look(1.6)
        self.assertEqual([], self._found()[0])
        self._answered(1.2, host="host2")
        self._answered(1.2, server="d")
        self._answered(1.7)
        self.assertEqual([], self._found()[0])
        self._answered(1.4)
        self.assertEqual((["host1 VCPU"], []), self._found())

    def test_an_answer_while_a_sample_was_taken_is_one_with_what_it_did_not_see(self) -> None:
        self.cloud.withdraw("c")
        now = self.cloud.snapshot(self.ledger.began + 1.6)
        self.ledger.look(attrs.evolve(now, since=self.ledger.began + 1.2))
        self.cloud.allocate("c", "host1")
        self._look(1.9)
        self.cloud.withdraw("c")
        self._look(2.2)
        self._answered(1.3)
        self._refused(2.0)
        self.assertEqual(["host1 VCPU"], self._found()[0])

    def test_what_goes_with_a_server_whose_deletion_was_asked_for_since_the_last_sample(
        self,
    ) -> None:
        self.ledger.leaving.add("c")
        self.cloud.withdraw("c")
        self._look(1.3)
        self.assertEqual((["host1 VCPU"], []), self._found())
        self._withdrawn(1.1)
        self.assertEqual(([], ["host1 VCPU"]), self._found())

    def test_what_was_written_anew_before_a_sample_is_not_what_was_taken_back(self) -> None:
        self.cloud.withdraw("c")
        self._look(1.3)
        self.cloud.allocate("c", "host1")
        self._look(1.6)
        self.ledger.leaving.add("c")
        self.cloud.withdraw("c")
        self._look(1.9)
        self._withdrawn(1.4)
        self.assertEqual([], self._found()[0])
        self._rewritten(1.45)
        self.assertEqual(["host1 VCPU"], self._found()[0])

    def test_what_was_taken_back_is_none_though_it_was_answered_with_when_written_anew(
        self,
    ) -> None:
        self.cloud.withdraw("c")
        self.cloud.withdraw("b")
        self.cloud.allocate("c", "host1")
        self._look(1.6)
        self._withdrawn(1.1)
        self._answered(1.5)
        # It was not carried out: it stands as it was, and is answered with.
        self.assertEqual(["host1 VCPU"], self._found()[0])
        self._rewritten(1.2)
        self.assertEqual(([], ["host1 VCPU"]), self._found())

    def test_a_later_answer_with_another_host_excuses_nothing(self) -> None:
        """What allocated here was a conductor; a scheduler that slept answers behind it."""
        self._look(1.3)
        self.cloud.withdraw("b")
        self._look(1.6)
        self.cloud.sql("UPDATE nova_cell1.instances SET node = 'host1' WHERE uuid = 'c'")
        self._look(1.9)
        self._answered(1.7, host="host2")
        self.assertEqual((["host1 VCPU"], []), self._found())

    def test_an_error_excuses_nothing_where_a_server_was_sent(self) -> None:
        self.cloud.sql("UPDATE nova_cell1.instances SET node = 'host1' WHERE uuid = 'c'")
        self._look(1.4)
        self._refused(1.2)
        self.assertEqual((["host1 VCPU"], []), self._found())

    def test_what_another_s_deletion_made_room_for_before_its_answer_is_none(self) -> None:
        """Seed 711 with redis."""
        self._look(1.3)
        self.cloud.withdraw("b")
        self._look(1.6)
        self.cloud.sql("UPDATE nova_cell1.instances SET node = 'host1' WHERE uuid = 'c'")
        self._look(1.9)
        self._answered(1.7)
        self.assertEqual(([], ["host1 VCPU"]), self._found())
        [record] = self.ledger.withdrawn()
        self.assertIn("answered later", record.detail)

    def _deleted(self, at: float, consumer: str = "b") -> None:
        self.told.append(withdrawals.Deletion(consumer, at + self.ledger.began))

    def test_placement_tells_between_samples_since_when_there_was_room(self) -> None:
        """Seed 723 with redis: the answer came behind the deletion, and before the next sample."""
        self.cloud.withdraw("b")
        self.cloud.sql("UPDATE nova_cell1.instances SET node = 'host1' WHERE uuid = 'c'")
        self._look(1.6)
        self._deleted(1.2)
        self._answered(1.3)
        self.assertEqual(([], ["host1 VCPU"]), self._found())

    def test_an_answer_before_placement_had_deleted_anything_is_one_with_too_much(self) -> None:
        self.cloud.withdraw("b")
        self._look(1.6)
        self._deleted(1.3)
        self._answered(1.2)
        self.assertEqual((["host1 VCPU"], []), self._found())

    def test_what_placement_deleted_before_or_of_others_made_no_room(self) -> None:
        self.cloud.withdraw("b")
        self._look(1.6)
        self._deleted(0.9)
        self._deleted(1.1, consumer="d")
        self._answered(1.3)
        self.assertEqual((["host1 VCPU"], []), self._found())

    def test_a_deletion_tells_nothing_where_the_next_sample_holds_too_much_as_well(self) -> None:
        # Another may have come before it.
        self.cloud.withdraw("b")
        self.cloud.server("d", "host1")
        self._look(1.6)
        self._deleted(1.2)
        self._answered(1.3)
        self.cloud.withdraw("d")
        self._look(1.9)
        self.assertEqual((["host1 VCPU"], []), self._found())

    def test_an_answer_before_there_was_room_is_one_with_too_much(self) -> None:
        self._look(1.3)
        self.cloud.withdraw("b")
        self._look(1.6)
        self._answered(1.2)
        self._answered(1.7)
        self.assertEqual((["host1 VCPU"], []), self._found())

    def test_nor_does_an_answer_of_before_or_another_s_or_none_excuse_anything(self) -> None:
        self._look(1.3)
        self.cloud.withdraw("b")
        self._look(1.6)
        self._answered(-1.0)
        self._answered(1.7, server="a")
        self.assertEqual((["host1 VCPU"], []), self._found())

    def test_an_answer_while_the_host_holds_too_much_still_is_one_with_too_much(self) -> None:
        self._look(1.3)
        self._answered(1.7)
        self.assertEqual((["host1 VCPU"], []), self._found())

    def test_the_answer_to_a_later_move_of_what_a_conductor_sent_excuses_nothing(self) -> None:
        """A conductor that goes on to an alternate says nothing; the server is resized later."""
        self.cloud.sql("UPDATE nova_cell1.instances SET node = 'host1' WHERE uuid = 'c'")
        self.cloud.withdraw("b")
        self._look(1.6)
        self._answered(9.0)
        self.assertEqual((["host1 VCPU"], []), self._found())

    def test_nor_does_one_behind_its_end(self) -> None:
        self._stand_long()
        self._answered(30.0)
        self.assertEqual(["host1 VCPU"], self._found()[0])

    def test_what_its_writer_took_back_late_is_none(self) -> None:
        self._stand_long()
        self._answered(30.0)
        self._withdrawn(0.9)  # what it wrote before
        self.assertEqual(["host1 VCPU"], self._found()[0])
        self._withdrawn(23.5)
        self.assertEqual([], self._found()[0])

    def _stand_long(self) -> None:
        for at in range(2, 24):
            self._look(float(at))
        self.cloud.withdraw("c")
        self._look(24.0)

    def test_what_stands_longer_than_a_look_takes_is_an_over_commit_until_it_goes(self) -> None:
        for at in range(2, 24):
            self._look(float(at))
        self.cloud.withdraw("c")
        self._look(24.0)
        (record,) = (r for r in self.ledger.records() if r.kind == audit.OVER_COMMIT)
        self.assertEqual((1.0, 23.0), (record.first_seconds, record.last_seconds))

    def test_each_time_is_told_with_how_long_it_was_and_who_held_what(self) -> None:
        self._look(1.5)
        self.cloud.withdraw("c")
        self._look(2.0)
        self.cloud.allocate("c", "host1")
        self._look(9.0)
        self.cloud.withdraw("c")
        self._look(9.5)
        first, second = self.ledger.withdrawn()
        self.assertEqual((1.0, 1.5, 2), attrs.astuple(first)[3:6])
        self.assertEqual((9.0, 9.0, 1), attrs.astuple(second)[3:6])
        self.assertIn("c (c building, scheduling on None; withdrawn", first.detail)


class WithdrawalLinesTest(unittest.TestCase):
    def test_a_schedulers_word_is_read_with_its_moment(self) -> None:
        provider, server = _SECOND, _THIRD
        line = (
            "2026-11-24 14:12:43.287 23210 WARNING nova_nodb_scheduler.nova_adapter.placement."
            "allocations.verification [None req-847e5386 default default] Placement granted too "
            f"much of VCPU on provider {provider}, 5 of 4: the allocation of server {server} there "
            "is withdrawn.\n"
        )
        at = datetime.datetime.fromisoformat("2026-11-24 14:12:43.287").timestamp()
        with tempfile.TemporaryDirectory() as directory:
            log, later = (pathlib.Path(directory, name) for name in ("a.log", "b.log"))
            log.write_text(line)
            lines = withdrawals.WithdrawalLines([log, later])
            self.assertEqual([], lines.read())
            later.write_text("something else\n" + line)
            self.assertEqual([withdrawals.Withdrawal(server, provider, at)], lines.read())

    def test_an_answer_is_read_for_each_server_with_its_moment(self) -> None:
        begin = "2026-11-27 12:11:56.678 26902 DEBUG nova_nodb_scheduler.nova_adapter.decision_log"
        answer = (
            f"{begin} [None req-a9486948 default default] Servers {_FIRST}, {_SECOND}: selected "
            "after 19.20 s, candidates: claims unavailable; hosts: host1, host2; refused: none. "
            "record /venv/decision_log.py:174\n"
        )
        at = datetime.datetime.fromisoformat("2026-11-27 12:11:56.678").timestamp()
        found = list(withdrawals.read([f"{begin} Servers {_FIRST} are\n", answer]))
        told = [
            withdrawals.Answer(_FIRST, at, "host1"),
            withdrawals.Answer(_SECOND, at, "host2"),
        ]
        self.assertEqual(told, found)
        for others in (answer.replace("host1, ", ""), answer[: answer.index("; hosts") + 9]):
            hosts = [each.host for each in withdrawals.read([others])]
            self.assertEqual(["", ""], hosts)
        for outcome in ("no_valid_host", "error"):
            found = list(withdrawals.read([answer.replace("selected", outcome)]))
            told = [withdrawals.Refusal(each, at, 19.2) for each in (_FIRST, _SECOND)]
            self.assertEqual(told, found)
            self.assertEqual(at - 19.2, found[0].began_at)

    def test_a_conductor_s_word_is_read_of_where_it_sends_a_server(self) -> None:
        line = (
            "2026-11-28 10:49:08.993 9057 DEBUG nova.conductor.manager [None req-0bf58116 d d] "
            f"[instance: {_FIRST}] Selected host: host1; Selected node: node1; Alternates: "
            "[('host2', 'node2')] schedule_and_build_instances /venv/nova/manager.py:1790\n"
        )
        others = [line.replace("; Selected node: node1", ""), line.replace("Selected host", "Host")]
        at = datetime.datetime.fromisoformat("2026-11-28 10:49:08.993").timestamp()
        found = list(withdrawals.read([*others, line]))
        self.assertEqual([withdrawals.Answer(_FIRST, at, "node1")], found)

    def test_placement_s_word_is_read_of_what_it_deleted(self) -> None:
        line = (
            "2026-11-28 10:49:08.993 10398 INFO placement.requestlog [req-7331d90e req-0e4a] "
            f'127.0.0.1 "DELETE /allocations/{_FIRST}" status: 204 len: 0 microversion: 1.0\n'
        )
        others = [line.replace("204", "404"), line.replace("DELETE", "GET")]
        at = datetime.datetime.fromisoformat("2026-11-28 10:49:08.993").timestamp()
        self.assertEqual(
            [withdrawals.Deletion(_FIRST, at), withdrawals.Rewriting(_FIRST, at)],
            list(withdrawals.read([*others, line, line.replace("DELETE", "PUT")])),
        )


class DecisionLinesTest(unittest.TestCase):
    def test_requests_that_left_memory_are_counted_by_reason_though_their_scheduler_died(
        self,
    ) -> None:
        left = "Servers a, b are decided among Placement's candidates:"
        with tempfile.TemporaryDirectory() as directory:
            log = pathlib.Path(directory) / "nova-scheduler-1.log"
            log.write_text(f"x INFO y {left} before.\n")
            lines = decision_lines.DecisionLines([log, log.with_name("nova-scheduler-2.log")])
            with log.open("a") as file:
                for why in ("feed behind.", "mirror behind.", "feed behind."):
                    file.write(f"x INFO y {left} {why}\n")
                file.write("x Servers c: selected after 0.1 s, candidates: memory; hosts: h.\n")
            self.assertEqual({"feed behind": 2, "mirror behind": 1}, lines.left_memory())


def _logs(
    *conductors: pathlib.Path,
    computes: Iterable[pathlib.Path] = (),
    schedulers: Iterable[pathlib.Path] = (),
    apis: Iterable[pathlib.Path] = (),
) -> rounds.NovasLogs:
    return rounds.NovasLogs(
        novas_own.ServiceLogs(conductors, novas_own.abandoned),
        novas_own.ServiceLogs(computes, novas_own.unfreed),
        novas_own.ServiceLogs(computes, novas_own.undone),
        novas_own.ServiceLogs((), novas_own.untold),
        novas_own.ServiceLogs(conductors, novas_own.unreverted),
        novas_own.ServiceLogs(computes, novas_own.not_reverted),
        novas_own.ServiceLogs(computes, novas_own.migrations),
        novas_own.ServiceLogs(conductors, novas_own.ended_burials),
        novas_own.ServiceLogs(schedulers, novas_own.requests),
        novas_own.ServiceLogs(computes, novas_own.freed),
        novas_own.ServiceLogs(conductors, novas_own.given_up_moves),
        novas_own.ServiceLogs(schedulers, novas_own.selected),
        novas_own.ServiceLogs(computes, novas_own.deleted_moves),
        novas_own.ServiceLogs(apis, novas_own.confirmed),
    )


_FIRST, _SECOND, _THIRD = (f"{digit * 8}-4d37-41aa-a975-5d029f8e714b" for digit in "abc")
_HOST_CHANGED = "ObjectActionError: Object action destroy failed because: host changed"
_GONE = f"InstanceNotFound: Instance {_FIRST} could not be found."


class NovasOwnTest(unittest.TestCase):
    """Lines as a conductor of Nova 34 wrote them in a round."""

    manager = "/venv/site-packages/nova/conductor/manager.py"

    def log(
        self,
        *servers: str,
        why: str = _HOST_CHANGED,
        function: str = "_bury_in_cell0",
        call: str = "inst.destroy()",
        request: str = "req-43a5f376",
    ) -> str:
        """One request for some servers, whose conductor died at the first of them."""
        about = f"[None {request} user project - - default default]"
        own = "2026-11-23 12:26:13.649 901 ERROR oslo_messaging.rpc.server"
        gone = f"BuildRequestNotFound: BuildRequest not found for instance {servers[0]}"
        lines = [
            f"2026-11-23 12:26:10.845 901 WARNING nova.scheduler.utils {about} [instance: {each}]"
            " Setting instance to ERROR state.: nova.exception_Remote.NoValidHost_Remote: No"
            for each in servers
        ]
        lines += [
            f"{own} {about} Exception during message handling: nova.exception.{why}",
            f"{own} Traceback (most recent call last):",
            f'{own}   File "{self.manager}", line 1668, in _bury_in_cell0',
            f"{own}     build_request.destroy()",
            f"{own} nova.exception.{gone}",
            f"{own} ",
            f'{own}   File "{self.manager}", line 1673, in {function}',
            f"{own}     {call}",
            f"{own} nova.exception.{why}",
        ]
        return "\n".join([*lines, ""])

    def abandoned(self, text: str) -> set[str]:
        return set(novas_own.abandoned(text.splitlines(keepends=True)))

    def test_what_a_conductor_did_not_come_to_is_told_with_the_line_of_its_end(self) -> None:
        for why in (_HOST_CHANGED, _GONE):
            found = novas_own.abandoned(self.log(_FIRST, _SECOND, _THIRD, why=why).splitlines())
            self.assertEqual({_SECOND, _THIRD}, set(found))
            self.assertEqual(_FIRST, found[_SECOND].deleted)
            self.assertIn(
                "req-43a5f376 user project - - default default] Exception", found[_SECOND].line
            )
            self.assertTrue(found[_SECOND].line.endswith(why))

    def test_of_one_server_alone_nothing_is_left(self) -> None:
        self.assertEqual(set(), self.abandoned(self.log(_FIRST)))

    def test_what_it_had_come_to_before_is_not_excused(self) -> None:
        text = self.log(_SECOND, _THIRD).replace(
            f"not found for instance {_SECOND}", f"not found for instance {_THIRD}"
        )
        self.assertEqual(set(), self.abandoned(text))

    def test_another_end_excuses_nothing(self) -> None:
        for other in (
            self.log(_FIRST, _SECOND, why="DBConnectionError: gone away"),
            self.log(_FIRST, _SECOND, why=_GONE.replace(_FIRST, _THIRD)),
            self.log(_FIRST, _SECOND, function="schedule_and_build_instances"),
            self.log(_FIRST, _SECOND, call="instance.create()"),
            self.log(_FIRST, _SECOND).replace("BuildRequestNotFound", "CellMappingNotFound"),
        ):
            self.assertEqual(set(), self.abandoned(other))

    def test_a_burial_that_lost_its_database_leaves_all_of_its_build_requests(self) -> None:
        lost = "oslo_db.exception.DBConnectionError: (pymysql.err.OperationalError) (2013, 'x')"
        text = self.log(_FIRST, _SECOND, why="X").replace("nova.exception.X", lost)
        self.assertEqual({_FIRST, _SECOND}, self.abandoned(text))
        elsewhere = text.replace("in _bury_in_cell0", "in _schedule_instances")
        self.assertEqual(set(), self.abandoned(elsewhere))

    def test_servers_of_another_request_are_not_excused(self) -> None:
        other = self.log(_SECOND, why="ValueError: x", request="req-0123abcd")
        self.assertEqual({_THIRD}, self.abandoned(other + self.log(_FIRST, _THIRD)))

    def test_a_build_request_is_told_apart_only_with_the_conductors_word(self) -> None:
        cloud = Cloud()
        for uuid in (_SECOND, _THIRD):
            cloud.sql("INSERT INTO nova_api.build_requests VALUES (?)", uuid)
        with tempfile.TemporaryDirectory() as directory:
            log = pathlib.Path(directory) / "nova-super-conductor.log"
            log.write_text(self.log(_FIRST, _THIRD))
            # Of before: whoever began then has its own proof.
            left = rounds.AfterQuiet(_logs(log, log.with_name("none.log")), ())
            found = {each.subject for each in left.findings(cloud.snapshot())}
            self.assertEqual({_SECOND, _THIRD}, found)
            with log.open("a") as file:
                file.write(self.log(_FIRST, _SECOND))
            [finding] = left.findings(cloud.snapshot())
        self.assertEqual((audit.STUCK, _THIRD), (finding.kind, finding.subject))
        self.assertEqual({_SECOND}, set(left.by_nova))
        self.assertTrue(left.by_nova[_SECOND].endswith(_HOST_CHANGED))

    def test_a_server_that_is_stuck_is_never_excused_by_it(self) -> None:
        cloud = Cloud()
        cloud.server(_SECOND, None, vm_state="building", task_state="scheduling")
        with tempfile.TemporaryDirectory() as directory:
            log = pathlib.Path(directory) / "nova-super-conductor.log"
            left = rounds.AfterQuiet(_logs(log), ())
            log.write_text(self.log(_FIRST, _SECOND))
            self.assertEqual([_SECOND], [each.subject for each in left.findings(cloud.snapshot())])

    def test_what_an_earlier_round_counted_is_not_counted_again(self) -> None:
        cloud = Cloud()
        for uuid in (_SECOND, _THIRD):
            cloud.sql("INSERT INTO nova_api.build_requests VALUES (?)", uuid)
        left = rounds.AfterQuiet(_logs(), {_SECOND})
        self.assertEqual([_THIRD], [each.subject for each in left.findings(cloud.snapshot())])


class UnburiedTest(unittest.TestCase):
    """Seed 208 of scheduler kills with memcached: a client deletes the first of two servers.

    Lines as a conductor and a scheduler of Nova 34 wrote them.
    """

    request = "req-720ab958-8c86-4b97-8e53-4794d6136081"

    def conductor(
        self,
        *,
        function: str = "_bury_in_cell0",
        call: str = "self._set_vm_state_and_notify(",
        why: str = f"nova.exception.{_GONE}",
    ) -> str:
        """What it says of the first server, with whose deletion it ends; none of the others."""
        about = f"[None {self.request} 4e06014c 9d6b199b - - default default]"
        own = "2026-11-28 03:53:58.378 20260 ERROR oslo_messaging.rpc.server"
        nova = "/venv/lib/python3.11/site-packages/nova"
        lines = [
            (
                f"2026-11-28 03:53:50.592 20260 ERROR nova.conductor.manager {about} Failed to "
                "schedule instances: nova.exception_Remote.NoValidHost_Remote: No valid host was "
                "found. "
            ),
            "Traceback (most recent call last):",
            "",
            (
                f"2026-11-28 03:53:55.138 20260 WARNING nova.scheduler.utils {about} [instance: "
                f"{_FIRST}] Setting instance to ERROR state.: "
                "nova.exception_Remote.NoValidHost_Remote: No valid host was found. "
            ),
            f"{own} {about} Exception during message handling: {why}",
            f"{own} Traceback (most recent call last):",
            (
                f'{own}   File "{nova}/conductor/manager.py", line 1683, in '
                "schedule_and_build_instances"
            ),
            f"{own}     host_lists = self._schedule_instances(context, request_specs[0],",
            f"{own} nova.exception_Remote.NoValidHost_Remote: No valid host was found. ",
            f"{own} ",
            f"{own} During handling of the above exception, another exception occurred:",
            f"{own} ",
            f"{own} Traceback (most recent call last):",
            (
                f'{own}   File "{nova}/conductor/manager.py", line 1687, in '
                "schedule_and_build_instances"
            ),
            f"{own}     self._bury_in_cell0(context, request_specs[0], exc,",
            f'{own}   File "{nova}/conductor/manager.py", line 1662, in {function}',
            f"{own}     {call}",
            f'{own}   File "{nova}/scheduler/utils.py", line 989, in set_vm_state_and_notify',
            f"{own}     instance.save()",
            f"{own} {why}",
            f"{own} ",
        ]
        return "\n".join([*lines, ""])

    def scheduler(self, *servers: str, request: str = request) -> str:
        """The plugin's words as it has decided."""
        return (
            "2026-11-28 03:53:50.431 2260 DEBUG nova_nodb_scheduler.nova_adapter.decision_log "
            f"[None {request} 4e06014c 9d6b199b - - default default] Servers {', '.join(servers)}: "
            "no_valid_host after 1.99 s, candidates: memory; hosts: none; refused: none. record "
            "/venv/nova_nodb_scheduler/nova_adapter/decision_log.py:174\n"
        )

    def stock(self, *servers: str) -> str:
        """Nova's words as it begins."""
        return (
            "2026-11-28 03:53:48.431 2260 DEBUG nova.scheduler.manager [None "
            f"{self.request} 4e06014c 9d6b199b - - default default] Starting to schedule for "
            f"instances: {list(servers)} select_destinations /venv/nova/scheduler/manager.py:215\n"
        )

    def unburied(self, conductor: str, scheduler: str) -> set[str]:
        burials = novas_own.ended_burials(conductor.splitlines(keepends=True))
        asked = novas_own.requests(scheduler.splitlines(keepends=True))
        servers = (_FIRST, _SECOND, _THIRD)
        return {each for each in servers if novas_own.unburied(each, asked, burials)}

    def test_those_that_were_never_created_are_told_by_the_schedulers_word(self) -> None:
        for asked in (self.scheduler(_FIRST, _SECOND), self.stock(_FIRST, _SECOND)):
            self.assertEqual({_SECOND}, self.unburied(self.conductor(), asked))
        tags = self.conductor(call="self._create_tags(cctxt, instance.uuid, tags)")
        self.assertEqual({_SECOND}, self.unburied(tags, self.scheduler(_FIRST, _SECOND)))

    def test_those_that_were_created_before_it_stay_as_well(self) -> None:
        [created] = [line for line in self.conductor().splitlines() if "Setting" in line]
        text = f"{created.replace(_FIRST, _SECOND)}\n{self.conductor()}"
        asked = self.scheduler(_SECOND, _FIRST, _THIRD)
        self.assertEqual({_SECOND, _THIRD}, self.unburied(text, asked))

    def test_a_lost_database_leaves_what_it_had_not_come_to(self) -> None:
        lost = "oslo_db.exception.DBConnectionError: (pymysql.err.OperationalError) (2013, 'x')"
        text = self.conductor(call="instance.create()", why=lost)
        asked = self.scheduler(_FIRST, _SECOND)
        self.assertEqual({_FIRST, _SECOND}, self.unburied(text, asked))

    def test_a_server_of_another_request_is_not_excused(self) -> None:
        other = self.scheduler(_SECOND, request="req-0123abcd")
        self.assertEqual(set(), self.unburied(self.conductor(), self.scheduler(_FIRST) + other))
        # The first one's request is not the one that ended at its deletion.
        other = self.scheduler(_FIRST, request="req-0123abcd")
        self.assertEqual(set(), self.unburied(self.conductor(), self.scheduler(_SECOND) + other))

    def test_without_the_schedulers_word_none_is_excused(self) -> None:
        named = self.scheduler(_FIRST, _SECOND).replace("no_valid_host after", "lost")
        self.assertEqual(set(), self.unburied(self.conductor(), named))

    def test_another_end_excuses_nothing(self) -> None:
        asked = self.scheduler(_FIRST, _SECOND)
        for other in (
            self.conductor(function="_cold_migrate"),
            self.conductor(call="build_request.destroy()"),
            self.conductor(call="inst.destroy()"),
            self.conductor(why=f"nova.exception.{_HOST_CHANGED}"),
            self.conductor(why="oslo_messaging.exceptions.MessagingTimeout: Timed out"),
            self.conductor(why=f"nova.exception.{_GONE.replace(_FIRST, _THIRD)}"),
            self.conductor().split("Exception during message handling")[0],
            "",
        ):
            self.assertEqual(set(), self.unburied(other, asked))

    def test_a_build_request_is_told_apart_with_both_words_unless_it_is_taken_up_again(
        self,
    ) -> None:
        stuck = audit.Finding(audit.STUCK, _SECOND, audit.NO_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            names = ("nova-super-conductor.log", "nova-scheduler-1.log", "nova-scheduler-2.log")
            conductor, first, second = (pathlib.Path(folder, name) for name in names)
            logs = _logs(conductor, schedulers=(first, second))
            conductor.write_text(self.conductor())
            self.assertIsNone(logs.proof(stuck))
            second.write_text(self.scheduler(_FIRST, _SECOND))
            self.assertIn(self.request, logs.proof(stuck) or "")
            self.assertIsNone(logs.proof(attrs.evolve(stuck, subject=_FIRST)))
            self.assertIsNone(logs.proof(attrs.evolve(stuck, detail="building, scheduling")))
            self.assertIsNone(attrs.evolve(logs, sends_again=True).proof(stuck))


_BEGAN = novas_own.moment("2026-11-24 11:09:00.000 ")


def _record(
    kind: str,
    subject: str,
    excess: int = 0,
    *,
    hosts: tuple[str, ...] = (),
    placed: tuple[tuple[str, str], ...] = (),
    at: float = 60.0,
) -> ledger.Record:
    finding = audit.Finding(kind, subject, "", excess, hosts=hosts, placed=placed)
    return ledger.Record(kind, subject, "", at, at, excess=excess, finding=finding)


class UntoldTest(unittest.TestCase):
    """A member of a group that its scheduler could tell nobody of."""

    def setUp(self) -> None:
        self.cloud = Cloud()
        self.ledger = ledger.Ledger(self.cloud.snapshot)

    def look(self, at: float) -> None:
        self.ledger.look(self.cloud.snapshot(self.ledger.began + at))

    def building(self, server: str, host: str | None) -> str:
        return self.cloud.server(server, host, vm_state="building", task_state="spawning")

    def left(self, server: str, *, group: str, host: str, at: float = 1.0) -> list[str]:
        """Return the kinds that are left where a scheduler says that of a server."""
        node = f"uuid of {host}"
        untold = novas_own.Untold(server, group, node, "its line", self.ledger.began + at)
        told = rounds.Told(
            untold=[untold],
            nodes=self.cloud.snapshot().provider_uuids,
            began=self.ledger.began,
            history=self.ledger,
        )
        seen = [record for record in self.ledger.seen() if record.kind == audit.GROUP_LATE]
        left, novas = rounds.by_nova(seen, told)
        self.assertEqual([] if left else ["group"], list(novas))
        return [record.kind for record in left]

    def test_its_group_node_and_time_are_read(self) -> None:
        line = (
            "2026-11-24 11:09:07.000 77 WARNING nova_nodb_scheduler.nova_adapter.claims."
            f"unjudged_claims [None req-1 user project - - default default] Server {_FIRST} of "
            f"group {_SECOND} goes to node {_THIRD} and nobody can be told: nova-compute's own look"
        )
        [untold] = novas_own.untold(["something else", line]).values()
        self.assertEqual(novas_own.Untold(_FIRST, _SECOND, _THIRD, line, _BEGAN + 7.0), untold)

    def test_a_group_that_is_broken_by_it_alone_is_novas_to_look_at(self) -> None:
        for name in ("a", "b"):
            self.building(name, "host1")
        self.cloud.group("anti-affinity", "a", "b")
        self.look(2.0)
        self.assertEqual([], self.left("a", group="0", host="host1"))
        found = [audit.GROUP_LATE]
        self.assertEqual(found, self.left("c", group="0", host="host1"))
        self.assertEqual(found, self.left("a", group="1", host="host1"))
        self.assertEqual(found, self.left("a", group="0", host="host2"))
        # It was so before.
        self.assertEqual(found, self.left("a", group="0", host="host1", at=9.0))

    def test_two_others_that_break_it_as_well_are_found(self) -> None:
        for name in ("a", "b", "c"):
            self.building(name, "host1")
        self.cloud.group("anti-affinity", "a", "b", "c")
        self.look(2.0)
        self.assertEqual([audit.GROUP_LATE], self.left("a", group="0", host="host1"))

    def test_a_later_way_in_which_it_is_broken_is_judged_by_itself(self) -> None:
        for name in ("a", "b"):
            self.building(name, "host1")
        self.building("c", None)
        self.cloud.group("anti-affinity", "a", "b", "c")
        self.look(2.0)
        self.cloud.sql("DELETE FROM nova_cell1.instances WHERE uuid = 'a'")
        self.cloud.sql("UPDATE nova_cell1.instances SET host = 'host1' WHERE uuid = 'c'")
        self.look(3.0)
        self.assertEqual(1, len([r for r in self.ledger.records() if r.kind == audit.GROUP_LATE]))
        told = rounds.Told(
            untold=[novas_own.Untold("a", "0", "uuid of host1", "x", self.ledger.began)],
            nodes=self.cloud.snapshot().provider_uuids,
            began=self.ledger.began,
        )
        left, novas = rounds.by_nova(self.ledger.seen(), told)
        self.assertEqual(([3.0], ["group"]), ([r.first_seconds for r in left], list(novas)))

    def test_whom_it_meets_that_stood_there_before_it_was_asked_for_it_could_have_seen(
        self,
    ) -> None:
        self.building("b", "host1")
        self.cloud.group("anti-affinity", "a", "b")
        self.look(0.5)
        self.building("a", "host1")
        self.look(2.0)
        self.assertEqual([audit.GROUP_LATE], self.left("a", group="0", host="host1"))

    def test_of_an_affinity_group_it_may_be_elsewhere(self) -> None:
        self.building("a", "host1")
        self.building("b", "host2")
        self.building("c", "host2")
        self.cloud.group("affinity", "a", "b", "c")
        self.look(2.0)
        self.assertEqual([], self.left("a", group="0", host="host1"))
        self.assertEqual([audit.GROUP_LATE], self.left("b", group="0", host="host2"))


class RoundTest(unittest.TestCase):
    """What a round finds besides what stands in the databases."""

    def test_a_service_that_ends_by_itself_is_found_unless_what_it_needs_was_away(self) -> None:
        faults = [
            plan.Fault(5.0, "scheduler-kill", "nova-scheduler-2", 2.0, 0.5),
            plan.Fault(100.0, "rabbitmq-kill", "rabbitmq", 5.0, 0.5),
        ]
        ended = [("nova-scheduler-1", 20.0), ("nova-conductor-cell1-1", 120.0)]
        found = rounds.ended_by_themselves(ended, faults)
        self.assertEqual(["nova-scheduler-1"], [each.subject for each in found])

    def test_services_that_are_down_or_that_nobody_tells_of_are_missing(self) -> None:
        settings = _settings(computes=2)
        names = (*settings.control_plane_names, *settings.compute_names)
        hosts = [settings.host_of(name) for name in names if name != "nova-api"]
        services = [{"host": host, "state": "up"} for host in hosts]
        self.assertEqual([], rounds.missing_services(settings, services))
        services[-1]["state"] = "down"
        down = rounds.missing_services(settings, services[1:])
        self.assertEqual(sorted([hosts[0], hosts[-1]]), down)

    def test_a_server_that_cannot_be_deleted_is_found_unless_it_was_told(self) -> None:
        cloud = Cloud()
        for name in ("a", "b"):
            cloud.server(name, "host1")
        found = rounds.undeletable(cloud.snapshot(), {"a"})
        self.assertEqual([(audit.STUCK, "b")], [(each.kind, each.subject) for each in found])

    def test_a_server_whose_deletion_was_forgotten_has_its_allocation_unless_nova_freed_it(
        self,
    ) -> None:
        cloud = Cloud()
        for name in (_FIRST, _SECOND, _THIRD):
            cloud.server(name, "host1", on=None)
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder, "nova-compute-1.log")
            left = rounds.AfterQuiet(_logs(computes=[log]), ())
            log.write_text(f"x INFO y Deleted allocations for instance {_FIRST}\n")
            found = left.unended(cloud.snapshot(), {_FIRST, _SECOND})
        self.assertEqual([(audit.UNALLOCATED, _SECOND)], [(f.kind, f.subject) for f in found])
        self.assertEqual({_FIRST}, set(left.by_nova))

    def test_what_was_told_and_what_no_deletion_changes_is_not_waited_for_long(self) -> None:
        cloud = Cloud()
        cloud.server("lost", "host1", vm_state="building")
        cloud.server("buried", None, cell="nova_cell0", vm_state="error")
        cloud.server("other", "host1")
        told = rounds.told_of_left(cloud.snapshot(), ["lost"], ["left"])
        self.assertEqual({"lost", "buried", "left"}, told)

        def seconds(*left: str, since: float = 1.0) -> float:
            return rounds.patience_seconds(left, told, lambda _uuid: since, 2.0)

        self.assertLess(seconds("lost", "buried", "left"), 30.0)
        for longer in (seconds("lost", "other"), seconds("lost", since=3.0)):
            self.assertGreaterEqual(longer, 60.0)
        # It went, and left its allocation.
        cloud.sql("DELETE FROM nova_cell1.instances WHERE uuid = 'lost'")
        self.assertNotIn("lost", rounds.told_of_left(cloud.snapshot(), ["lost"], []))

    def test_a_round_that_broke_off_is_kept_as_one_that_found_something(self) -> None:
        shape = deployment.Shape(backend="redis")
        outcome = rounds.unfinished(7, shape, (), "it broke off: x")
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory)
            filed.add(outcome, path)
            table = report.to_rst(filed.series(path))
        self.assertIn("1: 7 (found by 7)", table)
        self.assertIn("the round itself: 1", table)

    def test_a_time_without_a_sample_counts_at_the_begin_and_at_the_end(self) -> None:
        def away() -> snapshot_module.Snapshot:
            raise OSError("the server is away")

        with ledger.Ledger(away) as watched:
            patience.wait_until(lambda: watched.blind_seconds > 0.5, 20.0, "half a second")
        self.assertEqual((0, []), (watched.samples, watched.failures))
        blind_seconds = watched.blind_seconds
        self.assertEqual(blind_seconds, watched.blind_seconds)

    def test_a_statement_that_fails_is_no_server_that_is_away(self) -> None:
        def wrong() -> snapshot_module.Snapshot:
            raise pymysql.ProgrammingError(1146, "no such table")

        with ledger.Ledger(wrong) as watched:
            patience.wait_until(lambda: watched.failures, 20.0, "a failure")
        self.assertIn("ProgrammingError", watched.failures[0])

    def test_requests_that_are_nobodys_yet_are_known_by_name(self) -> None:
        told = '{"nova_object.name": "Instance", "nova_object.data": {"display_name": "a"}}'
        self.assertEqual({"a"}, snapshot_module.requested(lambda _: [(told,), (None,)]))


class UndoneTest(unittest.TestCase):
    """A line as a nova-compute of Nova 34 wrote it in a round whose conductor was restarted."""

    def log(self, server: str = _FIRST) -> list[str]:
        about = "nova.scheduler.client.report [None req-353f70ae u p - - d d]"
        told = f"Deleted allocations for instance {server}"
        return [f"2026-11-24 11:09:58.319 671 INFO {about} {told}\n"]

    def told(self, lines: list[str]) -> rounds.Told:
        return rounds.Told(undone={"host5": novas_own.undone(lines)}, began=_BEGAN)

    def spawned(self, server: str = _FIRST) -> str:
        about = "nova.compute.manager [None req-353f70ae u p - - d d]"
        told = "Took 0.00 seconds to spawn the instance on the hypervisor."
        return f"2026-11-24 11:09:50.319 671 INFO {about} [instance: {server}] {told}\n"

    def test_a_server_whose_allocation_a_nova_compute_deleted_is_told(self) -> None:
        found = novas_own.undone(["something else\n", *self.log()])
        self.assertEqual({_FIRST: novas_own.Undone(_FIRST, self.log()[0].strip(), False)}, found)

    def test_what_another_may_have_built_since_excuses_no_server_without_an_allocation(
        self,
    ) -> None:
        """A nova-compute gave it up before there was a guest, and its conductor sent it on."""
        record = _record(audit.UNALLOCATED, _FIRST, hosts=("host5",))
        for lines in (self.log(), [self.spawned(_SECOND), *self.log()]):
            left, _ = rounds.by_nova([record], self.told(lines))
            self.assertEqual([record], left)

    def test_the_end_of_a_server_excuses_nothing_of_its_life(self) -> None:
        """Each server is deleted when its round is over, and stood without an allocation."""
        about = "nova.compute.manager [None req-353f70ae u p - - d d]"
        ends = f"2026-11-24 11:09:57.1 671 INFO {about} [instance: {_FIRST}] Terminating instance\n"
        told = self.told([self.spawned(), ends, *self.log()])
        records = [
            _record(audit.UNALLOCATED, _FIRST, hosts=("host5",)),
            _record(audit.CROWDED, "host5", 1, placed=((_FIRST, "host5"),)),
        ]
        self.assertEqual((records, {}), rounds.by_nova(records, told))
        # What a nova-compute deleted before, it did by itself.
        self.assertEqual({_FIRST}, set(novas_own.undone([self.spawned(), *self.log(), ends])))

    def test_a_build_that_a_nova_compute_gave_up_is_told(self) -> None:
        about = "2026-11-24 15:07:59.287 20918 ERROR nova.compute.manager [None req-a85204f1 u p]"
        lines = [
            f"{about} [instance: {_FIRST}] Failed to build and run instance: RemoteError\n",
            f"{about} [instance: {_SECOND}] Failed to revert task state for instance. Error\n",
            f"{about} [instance: {_THIRD}] Took 1.41 seconds to build instance.\n",
        ]
        self.assertEqual({_FIRST, _SECOND}, set(novas_own.failed_builds(lines)))
        # Its conductor was killed with its first words in hand.
        told = "Successfully reverted task state from {} on failure for instance."
        lines = [
            f"{about} [instance: {_FIRST}] {told.format('None')}\n",
            f"{about} [instance: {_SECOND}] {told.format('scheduling')}\n",
            f"{about} [instance: {_THIRD}] {told.format('resize_prep')}\n",
        ]
        self.assertEqual({_FIRST, _SECOND}, set(novas_own.failed_builds(lines)))

    def test_a_server_that_a_nova_compute_gave_up_is_stuck_unless_it_is_sent_again(self) -> None:
        stuck = audit.Finding(audit.STUCK, _FIRST, "building", state="building")
        with tempfile.TemporaryDirectory() as directory:
            log = pathlib.Path(directory) / "nova-compute.log"
            log.write_text("")
            logs = _logs(computes=[log])
            self.assertIsNone(logs.proof(stuck))
            with log.open("a") as file:
                file.writelines(self.log())
            self.assertEqual(self.log()[0].strip(), logs.proof(stuck))
            self.assertIsNone(attrs.evolve(logs, sends_again=True).proof(stuck))
            # It was built elsewhere since, and is stuck in something else.
            self.assertIsNone(logs.proof(attrs.evolve(stuck, state="active")))

    def test_a_host_is_crowded_by_no_more_than_such_servers_that_stand_there(self) -> None:
        told = self.told([self.spawned(), *self.log()])
        there = ((_FIRST, "host5"), (_SECOND, "host5"))
        excused = [
            _record(audit.UNALLOCATED, _FIRST, hosts=("host5",)),
            _record(audit.CROWDED, "host5", 1, placed=there),
        ]
        left = [
            _record(audit.UNALLOCATED, _SECOND, hosts=("host5",)),
            _record(audit.CROWDED, "host5", 2, placed=there),
            _record(audit.CROWDED, "host4", 1, placed=((_SECOND, "host4"),)),
            _record(audit.OVER_COMMIT, "host5 VCPU", 1, placed=there),
            # It stands elsewhere by now.
            _record(audit.UNALLOCATED, _FIRST, hosts=("host4",)),
            _record(audit.CROWDED, "host4", 1, placed=((_FIRST, "host4"),)),
            # It was so before a nova-compute had a hand in it.
            _record(audit.UNALLOCATED, _FIRST, hosts=("host5",), at=57.0),
            _record(audit.CROWDED, "host5", 1, placed=there, at=57.0),
        ]
        found, novas = rounds.by_nova([*excused, *left], told)
        self.assertEqual((left, {_FIRST, "host5"}), (found, set(novas)))

    def test_a_crowded_host_is_told_with_who_stands_there(self) -> None:
        cloud = Cloud()
        for name in ("a", "b", "c"):
            cloud.server(name, "host1")
        details = [f.detail for f in audit.at_any_moment(cloud.snapshot()) if f.subject == "host1"]
        self.assertIn("c (c active, None)", details[0])


class UnfreedTest(unittest.TestCase):
    """Lines as a nova-compute of Nova 34 wrote them in a round."""

    OWN = "2026-11-24 02:13:32.996 671 ERROR oslo_messaging.rpc.server"

    def log(
        self,
        migration: str = _FIRST,
        server: str = _SECOND,
        *,
        deleted: str = _SECOND,
        why: str = "consumer generation conflict - expected null but got 1",
        function: str = "_revert_allocation",
    ) -> str:
        failed = (
            f"nova.exception.AllocationMoveFailed: Failed to move allocations from consumer"
            f' {migration} to consumer {server}. Error: {{"errors": [{{"detail": "{why}"}}]}}'
        )
        about = f"[None req-62b53403 u p - - d d] [instance: {deleted}]"
        lines = [
            f"2026-11-24 02:13:23.234 671 INFO nova.compute.manager {about} Terminating instance",
            f"{self.OWN} [None req-6ca970e0] Exception during message handling: {failed}",
            f"{self.OWN} Traceback (most recent call last):",
            f'{self.OWN}   File "/venv/nova/compute/manager.py", line 5836, in {function}',
            f"{self.OWN} {failed}",
        ]
        return "\n".join([*lines, ""])

    def test_what_a_nova_compute_says_is_leaked_is_told(self) -> None:
        line = (
            "2026-11-24 16:03:44.280 19821 ERROR nova.compute.manager [None req-b864f4ef u p - - d "
            f"d] Deleting allocation in placement for migration {_FIRST} failed. The instance "
            f"{_SECOND} will be put to ERROR state but the allocation held by the migration is "
            "leaked.\n"
        )
        found = novas_own.unfreed([line, "something else\n"])
        self.assertEqual({_FIRST: novas_own.Unfreed(_FIRST, _SECOND, line.strip())}, found)

    def test_a_deletion_that_had_no_move_confirmed_leaves_what_the_migration_holds(self) -> None:
        about = f"[None req-9d76230c u p - - d d] [instance: {_SECOND}]"
        own = "2026-11-29 04:28:31.696 10415 INFO nova.compute"
        moves = f"{own}.resource_tracker {about} Updating resource usage from migration {_FIRST}\n"
        ends = f"{own}.manager {about} Terminating instance\n"
        confirmed = (
            f"{own}.api {about} Found an unconfirmed migration during delete, id: 1, status: "
            "finished\n"
        )
        finding = audit.Finding(audit.ORPHAN, _FIRST, "a consumer that is nothing holds host6")
        for of_compute, of_api, told in (
            ([moves, ends], [], ends.strip()),
            ([moves], [], None),
            ([ends, moves], [], None),
            ([moves, ends], [confirmed], None),
        ):
            with tempfile.TemporaryDirectory() as directory:
                place = pathlib.Path(directory)
                compute, api = place / "nova-compute-5.log", place / "nova-api.log"
                logs = _logs(computes=[compute], apis=[api])
                compute.write_text("".join(of_compute))
                api.write_text("".join(of_api))
                self.assertEqual(told, logs.proof(finding))

    def test_a_move_without_a_host_or_placement_holds_its_source(self) -> None:
        own = "2026-11-27 11:24:32.487 18398"
        about = "[None {} user project - - default default]"
        silent = (
            f"{own} WARNING nova.scheduler.client.report {about} "
            "Placement API service is not responding.: "
            "keystoneauth1.exceptions.connection.ConnectFailure: Unable to establish connection to "
            "http://127.0.0.1:23006/allocations/{}: HTTPConnectionPool(host='127.0.0.1')\n"
        )
        failed = (
            f"{own} ERROR nova.conductor.tasks.migrate {about} [instance: {_SECOND}] Unable to "
            "replace resource claim on source host host3 node host3 for instance: "
            "nova.exception_Remote.NoValidHost_Remote: No valid host was found. \n"
        )
        one, other = "req-a3c4016a", "req-303f21be"
        told = failed.format(one)
        lines = [silent.format(one, _FIRST), told]
        expected = {_FIRST: novas_own.Unfreed(_FIRST, _SECOND, told.strip())}
        self.assertEqual(expected, novas_own.unreverted(lines))
        for others in (lines[::-1], [lines[0], failed.format(other)], [lines[0]], [told]):
            self.assertEqual({}, novas_own.unreverted(others))
        # As the move began: what is not moved yet is the server's own.
        own_silence = silent.format(one, _SECOND)
        self.assertEqual({}, novas_own.unreverted([own_silence, told]))

    def test_a_move_that_a_conductor_left_is_no_finding(self) -> None:
        """Seed 709 with sqlalchemy."""
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder, "nova-super-conductor.log")
            log.write_text("")
            logs = _logs(log)
            about = "[None req-a3c4016a user project - - default default]"
            with log.open("a") as file:
                file.write(
                    f"x 18398 WARNING nova.scheduler.client.report {about} Placement API service "
                    f"is not responding.: http://127.0.0.1:23006/allocations/{_FIRST}: refused\n"
                    f"x 18398 ERROR nova.conductor.tasks.migrate {about} [instance: {_SECOND}] "
                    "Unable to replace resource claim on source host host3 node host3\n"
                )
            for kind in (audit.ORPHAN, audit.ORPHAN_MIGRATION):
                self.assertIn("replace", logs.proof(audit.Finding(kind, _FIRST, "")) or "")
                self.assertIsNone(logs.proof(audit.Finding(kind, _SECOND, "")))

    def test_what_is_deleted_while_its_resize_is_reverted_leaves_its_source(self) -> None:
        """Seed 201 of scheduler kills with memcached; the two hosts' logs tell it together."""
        about = "[None req-28839e5c user project - - default default]"
        ended = (
            f"2026-11-27 12:17:20.297 31710 ERROR nova.compute.manager {about} [instance: {{}}] "
            "Setting instance vm_state to ERROR: nova.exception_Remote."
            "UnexpectedTaskStateError_Remote: Conflict updating instance {}. Expected: "
            "{{'task_state': ['resize_reverting']}}. Actual: {{'task_state': None}}\n"
        )
        with tempfile.TemporaryDirectory() as folder:
            source, target = (pathlib.Path(folder, f"nova-compute-{n}.log") for n in (1, 2))
            logs = _logs(computes=(source, target))
            target.write_text(
                f"x INFO nova.compute.resource_tracker {about} [instance: {_SECOND}] Updating "
                f"resource usage from migration {_FIRST}\n"
            )
            finding = audit.Finding(audit.ORPHAN, _FIRST, "")
            for other in (
                ended.format(_THIRD, _THIRD),
                ended.format(_SECOND, _SECOND).replace("resize_reverting", "deleting"),
            ):
                source.write_text(other)
                self.assertIsNone(logs.proof(finding))
            source.write_text(ended.format(_SECOND, _SECOND) + "more\n")
            self.assertIn("resize_reverting", logs.proof(finding) or "")
            self.assertIsNone(logs.proof(audit.Finding(audit.ORPHAN, _SECOND, "")))

    def test_a_resize_that_is_given_up_without_placement_holds_its_source(self) -> None:
        """Seed 721 with redis."""
        about = "[None {} user project - - default default]"
        swapping = (
            f"x 9122 INFO nova.compute.manager {about} [instance: {_SECOND}] Swapping old "
            f"allocation on dict_keys(['{_THIRD}']) held by migration {_FIRST} for instance\n"
        )
        dropped = (
            f"x 9122 ERROR oslo_utils.excutils {about} Original exception being dropped: "
            "['Traceback (most recent call last):\\n', "
            "'  File \"manager.py\", line 5836, in {}\\n', "
            "'nova.exception.ConsumerAllocationRetrievalFailed: Failed to retrieve allocations "
            f"for consumer {_SECOND}: refused\\n']\n"
        )
        one, revert = "req-ab5263e1", "_revert_allocation"
        told = dropped.format(one, revert)
        expected = {_FIRST: novas_own.Unfreed(_FIRST, _SECOND, told.strip())}
        self.assertEqual(expected, novas_own.unfreed([swapping.format(one), told]))
        for others in (
            [told, swapping.format(one)],
            [swapping.format("req-303f21be"), told],
            [swapping.format(one), dropped.format(one, "_prep_resize")],
            [swapping.format(one), told.replace(f"consumer {_SECOND}", f"consumer {_THIRD}")],
            [swapping.format(one)],
        ):
            self.assertEqual({}, novas_own.unfreed(others))

    def test_an_answer_to_a_move_that_its_conductor_gave_up_leaves_what_it_wrote(self) -> None:
        # Kills with etcd, seed 221.
        day = "2026-11-28 21:22"
        gave_up = (
            f"{day}:50.175 22741 WARNING nova.scheduler.utils [None req-b40df4e7-8004 a b - - d d] "
            f"[instance: {_FIRST}] Setting instance to ACTIVE state.: "
            "oslo_messaging.exceptions.MessagingTimeout: Timed out waiting for a reply\n"
        )
        answered = (
            f"{day}:56.749 26609 DEBUG nova_nodb_scheduler.nova_adapter.decision_log "
            f"[None req-b40df4e7-8004 a b - - d d] Servers {_FIRST}: selected after 18.61 s, "
            "candidates: mirror behind; hosts: host4; refused: none. record x.py:174\n"
        )

        def left(conductor: str, scheduler: str) -> dict[str, set[str]]:
            found = novas_own.late_answers(
                novas_own.given_up_moves([conductor]), novas_own.selected([scheduler])
            )
            return {host: set(of) for host, of in found.items()}

        self.assertEqual({"host4": {_FIRST}}, left(gave_up, answered))
        for conductor, scheduler in (
            # It was told of the host in time, of another request, or another server's; refused.
            (gave_up, answered.replace(":56.749", ":49.749")),
            (gave_up, answered.replace("req-b40df4e7", "req-c40df4e7")),
            (gave_up, answered.replace(_FIRST, _SECOND)),
            (gave_up, answered.replace("selected after", "no valid host after")),
            (gave_up.replace("MessagingTimeout", "RemoteError"), answered),
        ):
            self.assertEqual({}, left(conductor, scheduler))

    def test_a_build_that_was_given_up_without_placement_holds_its_room(self) -> None:
        own = "2026-11-27 05:55:13.839 16681"
        about = "[None req-79733126 user project - - default default]"
        gave_up = (
            f"{own} ERROR nova.compute.manager {about} "
            f"[instance: {_FIRST}] Failed to build and run instance: "
            "keystoneauth1.exceptions.connection.ConnectFailure: Unable to establish connection\n"
        )
        silent = (
            f"{own} WARNING nova.scheduler.client.report {about} "
            "Placement API service is not responding.: "
            "keystoneauth1.exceptions.connection.ConnectFailure: Unable to establish connection to "
            "http://127.0.0.1:23026/allocations/{}: HTTPConnectionPool(host='127.0.0.1')\n"
        )
        found = novas_own.unfreed([gave_up, silent.format(_FIRST), silent.format(_SECOND)])
        self.assertEqual({_FIRST}, set(found))
        self.assertEqual({}, novas_own.unfreed([silent.format(_FIRST), gave_up]))
        # Seed 733 with etcd.
        aborted = gave_up.replace("Failed to build", f"Build of instance {_FIRST} aborted: Failed")
        refused = (
            f"{own} WARNING x {about} Unable to delete allocation for instance {_FIRST}: (500)\n"
        )
        self.assertEqual({_FIRST}, set(novas_own.unfreed([aborted, refused])))
        self.assertEqual({}, novas_own.unfreed([refused]))
        # It deleted it in the end, and the server was built elsewhere.
        freed = f"{own} INFO x {about} Deleted allocations for instance {_FIRST}\n"
        self.assertEqual({}, novas_own.unfreed([gave_up, silent.format(_FIRST), freed]))
        began = novas_own.moment(own)
        told = rounds.Told(unfreed={"host2": found, "host3": {}}, began=began)
        excused = _record(audit.MISPLACED, _FIRST, hosts=("host2",))
        wrong = [
            _record(audit.MISPLACED, _SECOND, hosts=("host2",)),
            # What another host than the one that gave it up holds, somebody else left there.
            _record(audit.MISPLACED, _FIRST, hosts=("host3",)),
            _record(audit.MISPLACED, _FIRST, hosts=("host2", "host3")),
            # Its own host holds nothing for it.
            _record(audit.MISPLACED, _FIRST),
            # It was there before that.
            _record(audit.MISPLACED, _FIRST, hosts=("host2",), at=-2.0),
        ]
        left, novas = rounds.by_nova([excused, *wrong], told)
        self.assertEqual((wrong, {_FIRST}), (left, set(novas)))

    def test_what_a_build_left_is_told_only_on_the_hosts_that_gave_it_up(self) -> None:
        own = "2026-11-27 05:55:13.839 16681 WARNING x [None req-79733126 u p - - default default]"
        orphan = audit.Finding(audit.ORPHAN, _FIRST, "", hosts=("host2",))
        with tempfile.TemporaryDirectory() as folder:
            first, second = (pathlib.Path(folder, f"nova-compute-{n}.log") for n in (1, 2))
            logs = _logs(computes=(first, second))
            second.write_text(
                f"{own} [instance: {_FIRST}] Failed to build and run instance: x\n"
                f"{own} Unable to delete allocation for instance {_FIRST}: (500)\n"
            )
            self.assertIn("Unable to delete", logs.proof(orphan) or "")
            for hosts in (("host1",), ("host1", "host2"), ()):
                self.assertIsNone(logs.proof(attrs.evolve(orphan, hosts=hosts)))

    def test_what_a_server_that_was_deleted_never_got_back_is_told_with_the_line(self) -> None:
        found = novas_own.unfreed(self.log().splitlines(keepends=True))
        self.assertEqual({_FIRST}, set(found))
        self.assertEqual(_SECOND, found[_FIRST].server)
        self.assertIn("AllocationMoveFailed", found[_FIRST].line)

    def test_the_other_hosts_own_word_that_the_server_is_gone_tells_it_too(self) -> None:
        gone = f"{self.OWN} nova.exception.InstanceNotFound: Instance %s could not be found.\n"
        lines = self.log(deleted=_THIRD).splitlines(keepends=True)
        for server, told in ((_SECOND, {_FIRST}), (_FIRST, set())):
            traceback = [*lines[:3], gone % server, *lines[3:]]
            self.assertEqual(told, set(novas_own.unfreed(traceback)))

    def test_another_end_excuses_nothing(self) -> None:
        for other in (
            self.log(deleted=_THIRD),
            self.log(why="placement.undefined_code"),
            self.log(function="_allocate_network"),
        ):
            self.assertEqual({}, novas_own.unfreed(other.splitlines(keepends=True)))

    def test_an_allocation_is_told_apart_only_with_novas_word(self) -> None:
        cloud = Cloud()
        for consumer in (_FIRST, _THIRD):
            cloud.allocate(consumer, "host1")
        with tempfile.TemporaryDirectory() as directory:
            log = pathlib.Path(directory) / "nova-compute-1.log"
            left = rounds.AfterQuiet(_logs(computes=[log]), ())
            log.write_text(self.log())
            [finding] = left.findings(cloud.snapshot())
        self.assertEqual((audit.ORPHAN, _THIRD), (finding.kind, finding.subject))
        self.assertEqual({_FIRST}, set(left.by_nova))


class EndsTest(unittest.TestCase):
    def test_why_a_server_failed_is_its_last_fault_and_what_stood_once_was_active(self) -> None:
        cloud = Cloud()
        cloud.server("chaos-a", "host1")
        cloud.server("chaos-b", None, cell="nova_cell0", vm_state="error")
        cloud.server("chaos-c", None, vm_state="building")
        cloud.sql("UPDATE nova_cell1.instances SET deleted = 7 WHERE uuid = 'chaos-c'")
        for message in ("first", "No valid host was found. "):
            cloud.sql(
                "INSERT INTO nova_cell0.instance_faults (instance_uuid, message) VALUES (?, ?)",
                *("chaos-b", message),
            )
        self.assertEqual(
            {"chaos-b": "No valid host was found. "},
            snapshot_module.faults(cloud.sql, _CELLS, "chaos-"),
        )
        states = snapshot_module.states(cloud.sql, _CELLS, "chaos-")
        self.assertEqual({"chaos-a", "chaos-b", "chaos-c"}, set(states))
        self.assertEqual((True, "active"), states["chaos-a"])
        self.assertEqual((False, "error"), states["chaos-b"])
        self.assertEqual((False, "deleted"), states["chaos-c"])


def _settings(**values: object) -> stack_settings.Settings:
    directory = pathlib.Path("/nonexistent")
    return stack_settings.Settings(
        state=directory, venv=directory, first_port=23000, nova=34, **values
    )


class PlanTest(unittest.TestCase):
    def _draw(self, seed: int, faults: str = "all", backend: str = "redis") -> list[plan.Fault]:
        targets = plan.targets(_settings(), backends.target(backend))
        kinds = plan.possible(plan.kinds(faults), targets)
        return list(plan.draw(seed, 600.0, kinds, targets, 5.0, 12.0))

    def test_a_seed_draws_the_same_plan_each_time_and_another_seed_another(self) -> None:
        self.assertEqual(self._draw(1), self._draw(1))
        self.assertNotEqual(self._draw(1), self._draw(2))

    def test_all_kinds_come_and_nothing_else(self) -> None:
        drawn = {fault.kind for seed in range(40) for fault in self._draw(seed)}
        self.assertEqual(set(plan.KINDS), drawn)

    def test_a_target_is_let_alone_until_the_fault_before_is_over(self) -> None:
        for seed in range(20):
            busy: dict[str, float] = {}
            for fault in self._draw(seed):
                self.assertLessEqual(busy.get(fault.target, 0.0), fault.at_seconds)
                busy[fault.target] = fault.ends_seconds

    def test_who_is_stopped_sleeps_for_longer_than_a_lease(self) -> None:
        stops = [f.seconds for seed in range(9) for f in self._draw(seed) if "-stop" in f.kind]
        self.assertGreater(min(stops), 12.0)

    def test_a_word_names_one_kind_or_all_that_begin_with_it(self) -> None:
        self.assertEqual(("scheduler-kill",), plan.kinds("scheduler-kill"))
        self.assertEqual(
            ("scheduler-kill", "scheduler-stop", "scheduler-restart", "mariadb-stop"),
            plan.kinds("mariadb-stop,scheduler"),
        )
        with self.assertRaisesRegex(ValueError, "no fault 'earthquake'"):
            plan.kinds("earthquake")

    def test_a_file_is_neither_killed_nor_cut_off(self) -> None:
        kinds = {f.kind for seed in range(20) for f in self._draw(seed, backend="sqlite")}
        self.assertFalse([kind for kind in kinds if plan.BACKEND in kind])

    def test_a_killed_scheduler_excuses_nothing_and_a_killed_conductor_what_it_had(self) -> None:
        scheduler = plan.Fault(100.0, "scheduler-kill", "nova-scheduler-1", 5.0, 0.5)
        conductor = plan.Fault(100.0, "conductor-kill", "nova-super-conductor", 5.0, 0.5)
        database = plan.Fault(100.0, "backend-stop", "mariadb", 5.0, 0.5)
        cut = plan.Fault(100.0, "cut-mariadb", "nova-scheduler-1", 5.0, 0.1)
        self.assertEqual(
            [False, True, True, False],
            [fault.loses_in_stock(90.0) for fault in (scheduler, conductor, database, cut)],
        )
        self.assertEqual(
            [False, False], [conductor.loses_in_stock(since) for since in (20.0, 140.0)]
        )

    def test_a_cells_conductor_excuses_nothing_of_another_cell(self) -> None:
        fault = plan.Fault(100.0, "conductor-kill", "nova-conductor-cell1-1", 5.0, 0.5)
        cells = (None, "nova_cell1", "nova_cell2", "nova_cell0", "")
        self.assertEqual(
            [True, True, False, False, False], [fault.loses_in_stock(90.0, c) for c in cells]
        )
        of_all = attrs.evolve(fault, target="nova-super-conductor")
        self.assertTrue(all(of_all.loses_in_stock(90.0, cell) for cell in cells))

    def test_stock_suffers_the_same_plan_but_for_what_it_does_not_have(self) -> None:
        drawn = self._draw(3)
        stock = plan.without_backend(drawn)
        self.assertEqual([f for f in drawn if "backend" not in f.kind], list(stock))


class DeploymentTest(unittest.TestCase):
    def test_services_and_commands_are_told_of_the_back_end_and_of_short_leases(self) -> None:
        shape = deployment.Shape(backend="sqlite", rpc_seconds=30)
        settings = _settings()
        with tempfile.TemporaryDirectory() as directory:
            settings = attrs.evolve(settings, state=pathlib.Path(directory))
            backend = backends.BackEnd("sqlite", settings)
            with deployment.links.Links(settings, ["placement", "rabbitmq"], backend) as cuts:
                overrides = deployment._overrides(shape, settings, backend, cuts)
                settings = attrs.evolve(settings, overrides=overrides)
                scheduler = configuration.control_plane(settings, "nova-scheduler-1")
                api = configuration.control_plane(settings, "nova-api")
                port = configuration.transport_port(settings, "nova-scheduler-1")
        self.assertEqual("12.0", api["nodb_scheduler"]["claim_lease_seconds"])
        self.assertEqual("sqlalchemy", api["nodb_scheduler"]["synchronizer"])
        self.assertIn("sqlite", str(api["nodb_sqlalchemy"]["connection"]))
        self.assertEqual("30", api["DEFAULT"]["rpc_response_timeout"])
        self.assertNotIn("endpoint_override", api["placement"])
        self.assertIn("endpoint_override", scheduler["placement"])
        self.assertNotEqual(settings.port("rabbitmq"), port)
        self.assertEqual(
            settings.port("rabbitmq"), configuration.transport_port(settings, "nova-api")
        )

    def test_every_scheduler_tells_which_servers_a_request_has(self) -> None:
        settings = _settings()
        for backend in (None, backends.BackEnd("sqlite", settings)):
            shape = deployment.Shape(backend="sqlite", with_plugin=backend is not None)
            with deployment.links.Links(settings, [], backend) as cuts:
                overrides = deployment._overrides(shape, settings, backend, cuts)
            for name in settings.scheduler_names:
                levels = overrides[name]["DEFAULT"]["default_log_levels"].split(",")
                self.assertIn("nova.scheduler.manager=DEBUG", levels)


class OwnPathTest(unittest.TestCase):
    def test_the_back_end_is_down_all_the_time_beside_what_was_drawn(self) -> None:
        killed = plan.Fault(5.0, "scheduler-kill", "nova-scheduler-1", 2.0, 0.1)
        hurt = plan.Fault(9.0, "backend-stop", plan.BACKEND, 20.0, 0.1)
        down, *others = own_path.faults(own_path.BACKEND, (killed, hurt), 45.0)
        self.assertEqual(("backend-kill", plan.BACKEND), (down.kind, down.target))
        self.assertEqual((1.0, 45.0), (down.at_seconds, down.ends_seconds))
        self.assertEqual([killed], others)
        self.assertEqual((killed, hurt), own_path.faults(own_path.MIRROR, (killed, hurt), 45.0))

    def test_a_file_is_no_server_that_is_down(self) -> None:
        for name in (own_path.BACKEND, own_path.MIRROR):
            self.assertRaises(ValueError, own_path.check, name, "sqlite")
        own_path.check(own_path.PLACEMENT, "sqlite")
        own_path.check(own_path.BACKEND, "redis")

    def test_services_are_told_where_candidates_come_from(self) -> None:
        lines = own_path.options(own_path.PLACEMENT)["nodb_scheduler"]
        self.assertEqual("placement", lines["candidates"])
        self.assertNotIn("candidates", own_path.options(own_path.MIRROR)["nodb_scheduler"])
        self.assertEqual({}, own_path.options(None))

    def test_nobody_keeps_the_mirror_until_the_series_is_over(self) -> None:
        settings = _settings()
        with tempfile.TemporaryDirectory() as directory:
            settings = attrs.evolve(settings, state=pathlib.Path(directory))
            (settings.state / "nova").mkdir()
            backend = backends.BackEnd("sqlite", settings)
            conf = cfg.ConfigOpts()
            conf([], default_config_files=[])
            loader.load_class("sqlalchemy").register_opts(conf)
            address = backend.options("nova-manage")["nodb_sqlalchemy"]["connection"]
            conf.set_override("connection", address, "nodb_sqlalchemy")
            synchronizer = loader.load("sqlalchemy", conf)
            self.addCleanup(synchronizer.close)
            scheduler = leases.LeaseKeeper(synchronizer, mirror_keeper.LEASE, "scheduler", 15.0)
            with own_path.prepared(own_path.MIRROR, backend):
                synchronizer.open()
                self.assertIsInstance(scheduler.acquire(), leases.NotHeld)
            self.assertIsInstance(scheduler.acquire(), leases.Lease)


def _outcome(seed: int, **values: object) -> rounds.Outcome:
    given = dict.fromkeys((field.name for field in attrs.fields(rounds.Outcome)), 0) | {
        "control_plane": "redis",
        "kinds": ("scheduler-kill",),
        "slots": 24,
        "run_on": "2026-11-22",
        "seed": seed,
        "own_path": None,
    }
    tuples = ("plan", "findings", "withdrawn", "lost", "left_by_nova", "revived", "notes")
    given |= dict.fromkeys(tuples, ())
    given |= {name: {} for name in ("ends", "done", "calls", "fallbacks")}
    return rounds.Outcome(**(given | values))


class ReportTest(unittest.TestCase):
    found = {"kind": audit.OVER_COMMIT, "subject": "host1 VCPU", "detail": "6 of 4"}

    def test_a_series_becomes_a_row_with_its_seeds_and_those_that_found_something(self) -> None:
        outcomes = [_outcome(seed) for seed in (1, 2, 3)]
        outcomes[1] = attrs.evolve(outcomes[1], findings=(self.found,))
        times = [{"first_seconds": 3.0, "last_seconds": last} for last in (3.0, 5.1)]
        outcomes[2] = attrs.evolve(outcomes[2], withdrawn=times)
        table = report.to_rst(report.by_series(outcomes))
        self.assertIn("the plugin, redis", table)
        self.assertIn("3: 1 to 3 (found by 2)", table)
        self.assertIn("     - 2, 2.1 s", table)
        heads, cells = (row.count("\n     - ") for row in table.split("   * - ")[1:])
        self.assertEqual(heads, cells)

    def test_a_series_on_novas_own_path_is_a_row_of_its_own(self) -> None:
        outcomes = [_outcome(1), _outcome(1, own_path=own_path.MIRROR)]
        table = report.to_rst(report.by_series(outcomes))
        self.assertEqual(1, table.count("the plugin, redis\n"))
        self.assertEqual(1, table.count("the plugin, redis, the mirror missing\n"))

    def test_the_rows_of_the_terminals_table_stand_below_their_heads(self) -> None:
        left = ("c: why", "d: why", "e: why")
        outcome = _outcome(1, findings=(self.found,), lost=("a", "b"), left_by_nova=left)
        table = report.table([outcome])
        cells = {column.header: next(iter(column.cells)) for column in table.columns}
        self.assertEqual(
            ("[red]1[/red]", "0", "2", "3"),
            tuple(cells[n] for n in ("over", "other", "lost", "Nova's")),
        )
        self.assertEqual("[red]found[/red]", cells[""])

    def test_a_host_that_is_found_twice_over_is_one_host(self) -> None:
        crowded = {"kind": audit.CROWDED, "subject": "host1", "detail": ""}
        memory = {"kind": audit.OVER_COMMIT, "subject": "host1 MEMORY_MB", "detail": ""}
        outcome = _outcome(1, findings=(self.found, crowded, memory))
        self.assertEqual(1, outcome.subjects(audit.OVER_COMMIT, audit.CROWDED))

    def test_rounds_that_are_kept_are_read_back_and_a_later_one_takes_no_ones_place(self) -> None:
        first = _outcome(1, findings=(self.found,), revision="a")
        again, other = _outcome(1, revision="b"), _outcome(2, own_path=own_path.MIRROR)
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "filed"
            for each in (first, again, other):
                filed.add(each, path)
            kept = filed.series(path)
        _alone, both = sorted(kept.values(), key=len)
        self.assertEqual(report.to_json([first, again]), report.to_json(both))
        self.assertIn("2: 1, 1 (found by 1)", report.to_rst(kept))

    def test_a_seed_that_found_something_is_kept_once(self) -> None:
        found = regressions.of(_outcome(7, findings=(self.found,)), 45.0, 10.0)
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "regressions.json"
            self.assertEqual(
                (1, 0), (regressions.keep([found], path), regressions.keep([found], path))
            )
            self.assertEqual([found], regressions.load(path))


if __name__ == "__main__":
    unittest.main()
