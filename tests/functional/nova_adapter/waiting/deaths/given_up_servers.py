# SPDX-License-Identifier: Apache-2.0
"""What a compute gives up before it has begun is sent again, and once; run by
:mod:`..test_waiting`.
"""

from tests.functional.nova_adapter.waiting import waiting_cloud  # noqa: I001 - Nova's first
from tests.functional.nova_adapter.waiting.deaths import mortal_conductors

import threading
from unittest import mock

import nova.conductor.manager
import oslo_messaging
from nova import objects
from nova.compute import manager as compute_manager
from nova.compute import task_states

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.nova_adapter.waiting import abandoned_requests

State = pending.PendingState
TASKS = nova.conductor.manager.ComputeTaskManager


class GivenUpServersTest(mortal_conductors.MortalConductors):
    def ask_of_a_compute_that_gives_up(self, servers=1, given_up=None, **more):
        """Let a compute's first call to a conductor that was killed end without an answer.

        :param given_up: how many of the servers a compute comes to; all of them by default
        """
        save = objects.Instance.save

        def time_out(instance, *args, **kwargs):
            if kwargs.get("expected_task_state") == (task_states.SCHEDULING, None):
                raise oslo_messaging.MessagingTimeout("made")
            return save(instance, *args, **kwargs)

        gave_up = threading.Semaphore(0)
        locked = compute_manager.ComputeManager._build_failed

        def failed(manager, node):
            gave_up.release()
            return locked(manager, node)

        with (
            mock.patch.object(objects.Instance, "save", time_out),
            mock.patch.object(compute_manager.ComputeManager, "_build_failed", failed),
        ):
            asked = self.ask(servers=servers, **more)
            most = servers if given_up is None else given_up
            for _ in range(most):
                self.assertTrue(gave_up.acquire(timeout=waiting_cloud.PATIENCE_SECONDS))
        self.assertEqual(most, [self.allocations(server) for server in asked].count({}))
        return asked

    def let_go(self, server):
        waiting_cloud.patience.wait_until(
            lambda: (request := self.record(server)) is not None and pending.is_let_go(request),
            waiting_cloud.PATIENCE_SECONDS,
            lambda: str(self.record(server)),
        )

    def look(self, server):
        """Look for a server that was placed and is not seen on a host."""
        self.let_go(server)
        self.pass_time(self.waiting._look_seconds + 1)
        self.grant(server)

    def assert_built_again(self, *servers):
        for server in servers:
            self.active(server)
            self.ended(server)
            self.assertEqual(2, self.sent.count(server), self.sent)
            self.assertEqual(["cell1"], [cell for cell, _ in self.instances(server)])
            [allocated] = self.allocations(server).values()
            self.assertEqual(1, allocated["resources"]["VCPU"])

    def test_what_a_compute_gave_up_is_sent_again(self):
        servers = self.ask_of_a_compute_that_gives_up(servers=2)
        self.assertEqual({"BUILD"}, {self.admin_api.get_server(e)["status"] for e in servers})
        # Just now: something may still come of it.
        self.look(servers[0])
        self.in_state(servers[0], State.BUILDING)
        self.assertEqual(sorted(servers), sorted(self.sent))
        with self.all_being_still(11.0):
            self.look(servers[0])
            self.assert_built_again(*servers)
        self.assertEqual(2, self.waiting.counts["given_up"])

    def test_what_moves_while_it_is_looked_at_was_not_given_up(self):
        server = self.ask_of_a_compute_that_gives_up()[0]
        allocated = abandoned_requests._allocated

        def moving(client, context, uuid):
            [(_, instance)] = self.instances(uuid)
            instance.updated_at = None
            instance.task_state = task_states.SCHEDULING
            instance.save()
            return allocated(client, context, uuid)

        with (
            self.all_being_still(11.0),
            mock.patch.object(abandoned_requests, "_allocated", moving),
        ):
            self.look(server)
            self.in_state(server, State.BUILDING)
        self.assertEqual(1, self.sent.count(server))
        self.assertEqual(0, self.waiting.counts["given_up"])

    def test_what_lies_in_the_queue_of_a_compute_is_left_to_it(self):
        # Nobody deletes its allocation but by mistake, and even then its message may come.
        with mock.patch.object(
            compute_manager.ComputeManager, "build_and_run_instance", autospec=True
        ):
            server = self.ask()[0]
            self.look(server)
            self.in_state(server, State.BUILDING)
            self.make_room_of_allocations(server)
            with self.all_being_still(11.0):
                self.look(server)
                self.in_state(server, State.BUILDING)
        self.assertEqual(1, self.sent.count(server))
        self.assertEqual("BUILD", self.admin_api.get_server(server)["status"])

    def test_what_a_compute_has_for_long_is_left_to_it_as_in_nova(self):
        with mock.patch.object(
            compute_manager.ComputeManager, "build_and_run_instance", autospec=True
        ):
            server = self.ask()[0]
            with self.all_being_still():
                self.look(server)
                waiting_cloud.patience.wait_until(
                    lambda: self.record(server) is None,
                    waiting_cloud.PATIENCE_SECONDS,
                    lambda: str(self.record(server)),
                )
        self.assertEqual("BUILD", self.admin_api.get_server(server)["status"])
        self.assertEqual(1, len(self.allocations(server)))

    def test_what_a_compute_began_and_ended_with_ends_in_error(self):
        begun = threading.Event()

        def begin(_manager, _context, instance, *_args, **_kwargs):
            instance.task_state = None
            instance.save()
            begun.set()

        with mock.patch.object(compute_manager.ComputeManager, "build_and_run_instance", begin):
            server = self.ask()[0]
            self.assertTrue(begun.wait(waiting_cloud.PATIENCE_SECONDS))
            with self.all_being_still():
                self.look(server)
                self.comes_to(server, "ERROR")
        self.assertIn("did not arrive", self.fault(server))
        self.assertEqual(1, len(self.allocations(server)))

    def test_what_was_given_up_and_has_no_room_any_more_waits_in_its_cell(self):
        server = self.ask_of_a_compute_that_gives_up()[0]
        first, _second = self.fill()
        with self.all_being_still(11.0):
            self.look(server)
            self.waits(server)
        self.assertEqual({}, self.allocations(server))
        self.make_room(first)
        self.grant(server)
        self.assert_built_again(server)

    def test_a_conductor_that_dies_as_it_sends_again_is_followed_by_another(self):
        for owner, name, behind in (
            (self.waiting._ledger, "give_up", False),
            (self.waiting._ledger, "give_up", True),
            (objects.Instance, "save", True),
        ):
            with self.subTest(name=name, behind=behind):
                server = self.ask_of_a_compute_that_gives_up()[0]
                with self.all_being_still(11.0), self.dying(owner, name, behind=behind) as died:
                    self.look(server)
                    self.assertTrue(died.wait(waiting_cloud.PATIENCE_SECONDS))
                    self.take_over(server)
                    self.assert_built_again(server)
                self.make_room(server)

    def test_what_lies_with_its_compute_stays_there_though_another_is_given_up(self):
        build = compute_manager.ComputeManager.build_and_run_instance
        lying = {}

        def build_one(manager, context, instance, *args, **kwargs):
            if lying.setdefault("server", instance.uuid) != instance.uuid:
                build(manager, context, instance, *args, **kwargs)

        with mock.patch.object(compute_manager.ComputeManager, "build_and_run_instance", build_one):
            servers = self.ask_of_a_compute_that_gives_up(servers=2, given_up=1)
        [given_up] = set(servers) - set(lying.values())
        with (
            self.all_being_still(),
            self.dying(self.waiting._ledger, "sent", behind=True) as died,
        ):
            self.look(servers[0])
            self.assertTrue(died.wait(waiting_cloud.PATIENCE_SECONDS))
            self.take_over(servers[0])
            self.comes_to(given_up, "ERROR")
            self.ended(servers[0])
        self.assertEqual("BUILD", self.admin_api.get_server(lying["server"])["status"])
        self.assertEqual(1, len(self.allocations(lying["server"])))

    def test_one_that_slept_before_it_sent_again_sends_nothing(self):
        server = self.ask_of_a_compute_that_gives_up()[0]
        with (
            self.all_being_still(11.0),
            mock.patch.object(self.waiting._in_hand, "turn", lambda: None),
            self.sleeping(self.waiting._ledger, "give_up") as asleep,
        ):
            self.look(server)
            self.assertTrue(asleep.wait(waiting_cloud.PATIENCE_SECONDS))
            self.take_over(server)
            self.assert_built_again(server)
        self.wait_for_overtaken()
        self.assert_built_again(server)
        self.assertTrue(self.waiting.counts["overtaken"], self.waiting.counts)

    def test_one_that_slept_before_its_second_message_is_not_followed_by_a_third(self):
        server = self.ask_of_a_compute_that_gives_up()[0]
        with (
            self.all_being_still(11.0),
            mock.patch.object(self.waiting._in_hand, "turn", lambda: None),
            self.sleeping(self.waiting._ledger, "sent", behind=True) as asleep,
        ):
            self.look(server)
            self.assertTrue(asleep.wait(waiting_cloud.PATIENCE_SECONDS))
            self.take_over(server)
            self.in_state(server, State.SCHEDULING)
            self.assertEqual(1, self.sent.count(server))
        self.active(server)
        self.pass_time(self.waiting._look_seconds + 1)
        self.grant(server)
        self.assert_built_again(server)

    def test_what_computes_give_up_for_long_ends_in_error(self):
        server = self.ask_of_a_compute_that_gives_up()[0]
        self.sent.clear()
        self.pass_time(3600.0)
        with self.all_being_still(11.0):
            self.look(server)
            self.assert_fails(server, "did not arrive")

    def test_a_back_end_that_gives_no_answer_as_it_is_let_go_is_asked_again(self):
        for behind in (False, True):
            with self.subTest(behind=behind), self.away_at("place", behind=behind):
                server = self.ask()[0]
                self.let_go(server)
                self.active(server)
                self.make_room(server)

    def test_so_it_is_where_nobody_knows_whether_it_was_sent(self):
        with (
            mock.patch.object(
                compute_manager.ComputeManager, "build_and_run_instance", autospec=True
            ),
            self.away_at("rest", behind=False),
        ):
            server = self.ask_of_a_dying_one(self.waiting._ledger, "place")[0]
            self.take_over(server)
            waiting_cloud.patience.wait_until(
                lambda: (
                    self.record(server).grant.until_seconds
                    > self.now() + waiting_cloud.LEASE_SECONDS
                ),
                waiting_cloud.LEASE_SECONDS,
                lambda: str(self.record(server)),
            )

    def test_what_its_user_deletes_is_not_sent_again(self):
        server = self.ask_of_a_compute_that_gives_up()[0]
        self.sent.clear()
        self.admin_api.delete_server(server)
        with self.all_being_still(11.0):
            self.look(server)
            self.ended(server)
        self.assertEqual(([], {}), (self.sent, self.allocations(server)))
