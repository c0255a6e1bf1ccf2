# SPDX-License-Identifier: Apache-2.0
"""Conductors that die or sleep at any step lose no server and build none twice; run by
:mod:`..test_waiting`.
"""

from tests.functional.nova_adapter.waiting import waiting_cloud  # noqa: I001 - Nova's first
from tests.functional.nova_adapter.waiting.deaths import mortal_conductors

import contextlib
import threading
from unittest import mock

import nova.conductor.manager
import oslo_messaging
from keystoneauth1 import exceptions as keystone
from nova import exception as nova_exception
from nova import objects
from nova.compute import rpcapi as compute_rpcapi
from nova.scheduler import rpcapi
from nova.scheduler.client import report

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.nova_adapter.waiting import abandoned_requests, unsent_servers
from nova_nodb_scheduler.synchronizer.pending import pending_ledger

State = pending.PendingState
TASKS = nova.conductor.manager.ComputeTaskManager


class DyingConductorsTest(mortal_conductors.MortalConductors):
    def assert_built_by_another(self, owner, name, *, behind=False):
        server = self.ask_of_a_dying_one(owner, name, behind=behind)[0]
        self.take_over(server)
        self.assert_built_once(server)

    # -- at each step of one ------------------------------------------------------------

    def test_behind_the_record(self):
        self.assert_built_by_another(self.waiting._ledger, "create", behind=True)

    def test_before_the_scheduler_is_asked(self):
        self.assert_built_by_another(TASKS, "_schedule_instances")

    def test_behind_the_schedulers_answer(self):
        self.assert_built_by_another(TASKS, "_schedule_instances", behind=True)

    def test_before_the_beginning(self):
        self.assert_built_by_another(self.waiting._ledger, "begin")

    def test_behind_the_beginning(self):
        self.assert_built_by_another(self.waiting._ledger, "begin", behind=True)

    def test_behind_the_instance_in_its_cell(self):
        self.assert_built_by_another(objects.Instance, "create", behind=True)

    def test_before_the_mapping(self):
        self.assert_built_by_another(TASKS, "_map_instance_to_cell")

    def test_behind_the_mapping(self):
        self.assert_built_by_another(TASKS, "_map_instance_to_cell", behind=True)

    def test_before_the_word_of_the_mapping(self):
        self.assert_built_by_another(self.waiting._ledger, "mapped")

    def test_behind_the_word_of_the_mapping(self):
        self.assert_built_by_another(self.waiting._ledger, "mapped", behind=True)

    def test_behind_the_build_requests_deletion(self):
        self.assert_built_by_another(TASKS, "_delete_build_request", behind=True)
        self.assertEqual(1, self.waiting.counts["sent_on"])

    def test_before_the_word_of_the_sending(self):
        self.assert_built_by_another(self.waiting._ledger, "sent")

    def test_before_the_version_of_the_message_is_chosen(self):
        self.assert_built_by_another(compute_rpcapi.ComputeAPI, "_ver")

    def test_a_second_one_that_sends_on(self):
        server = self.ask_of_a_dying_one(TASKS, "_delete_build_request", behind=True)[0]
        self.take_over_and_die(server, self.waiting._ledger, "sent")
        self.take_over(server)
        self.assert_built_once(server)

    def test_before_the_parking(self):
        first, _second = self.fill()
        self.sent.clear()
        server = self.ask_of_a_dying_one(self.waiting._ledger, "park")[0]
        self.make_room(first)
        self.take_over(server)
        self.assert_built_once(server)

    def test_behind_the_parking(self):
        first, _second = self.fill()
        self.sent.clear()
        server = self.ask_of_a_dying_one(self.waiting._ledger, "park", behind=True)[0]
        self.make_room(first)
        self.grant(server)
        self.assert_built_once(server)

    def test_behind_the_taking_of_a_grant(self):
        first, _second = self.fill()
        self.sent.clear()
        server = self.ask()[0]
        self.waits(server)
        self.make_room(first)
        with self.dying(self.waiting._ledger, "take", behind=True) as died:
            self.grant(server)
            self.assertTrue(died.wait(waiting_cloud.PATIENCE_SECONDS))
        self.take_over(server)
        self.assert_built_once(server)

    def test_behind_the_last_sending(self):
        server = self.ask_of_a_dying_one(self.waiting._ledger, "place")[0]
        self.active(server)
        self.take_over(server)
        self.assert_built_once(server)

    # -- whose build request is gone -------------------------------------------------------

    def left_unsent(self, servers=1):
        return self.ask_of_a_dying_one(TASKS, "_delete_build_request", behind=True, servers=servers)

    def test_of_several_servers_one_is_sent_on_and_the_others_are_placed_anew(self):
        servers = self.left_unsent(servers=2)
        self.take_over(servers[0])
        self.assert_built_once(*servers)
        self.assertEqual(1, self.waiting.counts["sent_on"])

    def test_one_whose_room_is_taken_meanwhile_waits_in_its_cell(self):
        server = self.left_unsent()[0]
        self.make_room_of_allocations(server)
        first, _second = self.fill()
        self.sent.clear()
        self.take_over(server)
        self.waits(server)
        self.assertEqual("BUILD", self.admin_api.get_server(server)["status"])
        self.assertEqual({}, self.allocations(server))
        self.make_room(first)
        self.grant(server)
        self.assert_built_once(server)

    def test_one_that_its_user_deleted_is_not_sent_on(self):
        server = self.left_unsent()[0]
        self.admin_api.delete_server(server)
        self.take_over(server)
        self.ended(server)
        self.assertEqual(([], {}), (self.sent, self.allocations(server)))
        self.assertNotIn(server, self.ids())

    def test_one_that_its_user_deletes_while_hosts_are_found_is_not_sent_on(self):
        server = self.left_unsent()[0]
        with self.sleeping(TASKS, "_schedule_instances", behind=True) as asleep:
            self.take_over(server)
            self.assertTrue(asleep.wait(waiting_cloud.PATIENCE_SECONDS))
            self.admin_api.delete_server(server)
        self.ended(server)
        self.assertEqual(([], {}), (self.sent, self.allocations(server)))

    def test_one_that_its_user_deletes_before_its_word_is_given_is_not_sent_on(self):
        # The API saw no mapping yet, and has told its user that nothing is left.
        server = self.ask_of_a_dying_one(TASKS, "_map_instance_to_cell", behind=True)[0]
        objects.BuildRequest.get_by_instance_uuid(self.context, server).destroy()
        self.take_over(server)
        self.assert_fails(server, "ended before it could be sent")

    def test_one_with_accelerators_is_not_sent_on(self):
        server = self.left_unsent()[0]
        with mock.patch.object(
            unsent_servers, "_has_accelerators", autospec=True, return_value=True
        ):
            self.take_over(server)
            self.assert_fails(server, "ended before it could be sent")

    def test_one_whose_time_is_over_ends_in_its_cell_and_says_so(self):
        server = self.left_unsent()[0]
        self.pass_time(waiting_cloud.LEASE_SECONDS + 1)
        self.grant(server, pending.Purpose.EXPIRE)
        self.assert_fails(server, "waited")

    def test_of_several_whose_time_is_over_those_that_stand_are_not_told_to_have_ended(self):
        told = []

        class Events:
            def publish(self, event):
                told.append((event.kind.value, event.request.servers))

            def stop(self):
                pass

        send = compute_rpcapi.ComputeAPI
        servers = self.ask_of_a_dying_one(send, "build_and_run_instance", behind=True, servers=2)
        [stands] = self.sent
        [other] = set(servers) - {stands}
        self.active(stands)
        self.pass_time(waiting_cloud.LEASE_SECONDS + 1)
        with mock.patch.object(self.waiting, "_events", Events()):
            self.grant(stands, pending.Purpose.EXPIRE)
            self.comes_to(other, "ERROR")
            self.ended(stands)
        self.assertEqual([("expired", (other,))], told)
        self.active(stands)

    def test_one_that_slept_behind_the_build_requests_deletion_sends_nothing(self):
        self.assert_overtaken(TASKS, "_delete_build_request", behind=True)

    def test_one_that_slept_before_the_word_of_the_mapping_deletes_nothing(self):
        self.assert_overtaken(self.waiting._ledger, "mapped")

    def test_one_that_slept_behind_the_word_of_the_mapping_takes_nothing_away(self):
        # It finds no build request, as if the user had deleted the server.
        self.assert_overtaken(self.waiting._ledger, "mapped", behind=True)

    def test_two_that_send_on_send_once(self):
        server = self.left_unsent()[0]
        self.pass_time(waiting_cloud.LEASE_SECONDS + 1)
        with (
            mock.patch.object(self.waiting._in_hand, "turn", lambda: None),
            self.sleeping(self.waiting, "begin", behind=True) as asleep,
        ):
            self.grant(server)
            self.assert_built_behind(asleep, server)
        self.assert_has_done_nothing(server)

    def test_a_lost_answer_to_the_word_of_the_mapping_does_not_matter(self):
        say, lost = self.waiting._ledger.mapped, []

        def mapped(holding, server):
            step = say(holding, server)
            if not lost:
                lost.append(server)
                raise errors.BackendUnavailable("sqlalchemy", "the test says so")
            return step

        with mock.patch.object(self.waiting._ledger, "mapped", mapped):
            server = self.ask()[0]
            self.assert_built_once(server)
        self.assertEqual([server], lost)

    # -- where nobody can go on -----------------------------------------------------------

    def test_between_the_word_of_the_sending_and_the_sending(self):
        server = self.ask_of_a_dying_one(self.waiting._ledger, "sent", behind=True)[0]
        self.take_over(server)
        # Its message may be on its way: it is left to its host for a while.
        self.in_state(server, State.SCHEDULING)
        self.assertEqual("BUILD", self.admin_api.get_server(server)["status"])
        with self.all_being_still():
            self.pass_time(abandoned_requests.SENT_SECONDS)
            self.take_over(server)
            self.assert_fails(server, "did not arrive", holds=True)

    def assert_expired(self, owner, name, *, behind=False):
        self.fill()
        self.sent.clear()
        server = self.ask()[0]
        self.waits(server)
        with self.dying(owner, name, behind=behind) as died:
            self.grant(server, pending.Purpose.EXPIRE)
            self.assertTrue(died.wait(waiting_cloud.PATIENCE_SECONDS))
        self.pass_time(waiting_cloud.LEASE_SECONDS + 1)
        self.grant(server, pending.Purpose.EXPIRE)
        self.comes_to(server, "ERROR")
        self.ended(server)
        self.assertIn("waited", self.fault(server))
        self.assertEqual(["cell0"], [cell for cell, _ in self.instances(server)])
        self.assertFalse(abandoned_requests.has_build_request(self.context, server))

    def test_behind_the_burial_of_an_instance(self):
        self.assert_expired(objects.Instance, "create", behind=True)

    def test_before_the_end_of_a_burial(self):
        self.assert_expired(abandoned_requests, "delete_mapped_request")

    # -- several at once --------------------------------------------------------------------

    def test_of_several_servers_the_one_that_was_sent_is_left_alone(self):
        servers = self.ask_of_a_dying_one(self.waiting._ledger, "sent", behind=True, servers=2)
        marked = self.record(servers[0]).sent
        self.assertEqual(1, len(marked))
        (other,) = set(servers) - set(marked)
        self.take_over(servers[0])
        self.active(other)
        self.assertEqual([other], self.sent)
        # The other one may be on its way: it keeps what it has, and is looked at later.
        for server in servers:
            [allocated] = self.allocations(server).values()
            self.assertEqual(1, allocated["resources"]["VCPU"])
        resting = self.in_state(servers[0], State.BUILDING)
        waiting_cloud.patience.wait_until(
            lambda: self.record(servers[0]).grant.until_seconds > self.now() + 90,
            waiting_cloud.PATIENCE_SECONDS,
            lambda: self.record(servers[0]),
        )
        self.assertEqual(set(servers), set(resting.servers))

    def test_one_that_was_sent_keeps_what_it_has_where_no_scheduler_answers_for_others(self):
        servers = self.ask_of_a_dying_one(
            compute_rpcapi.ComputeAPI, "build_and_run_instance", behind=True, servers=2
        )
        (living,) = self.record(servers[0]).sent
        (other,) = set(servers) - {living}
        self.active(living)
        with mock.patch.object(
            rpcapi.SchedulerAPI,
            "select_destinations",
            autospec=True,
            side_effect=oslo_messaging.MessagingTimeout("made"),
        ):
            self.take_over(servers[0])
            self.waits(other)
        self.assertEqual([1, 0], [len(self.allocations(each)) for each in (living, other)])
        self.grant(servers[0])
        self.active(other)
        self.assertEqual([1, 1], [len(self.allocations(each)) for each in servers])

    @contextlib.contextmanager
    def timing_out_once(self):
        """Let no scheduler answer the next one that asks."""
        select = rpcapi.SchedulerAPI.select_destinations
        asked = []

        def time_out(*args, **kwargs):
            asked.append(args)
            if len(asked) == 1:
                raise oslo_messaging.MessagingTimeout("made")
            return select(*args, **kwargs)

        with mock.patch.object(rpcapi.SchedulerAPI, "select_destinations", time_out):
            yield

    def test_one_whose_creation_was_in_doubt_takes_nothing_of_who_came_after(self):
        create = self.waiting._ledger.create

        def in_doubt(request, payload):
            return pending_ledger.MaybeCreated(create(request, payload))

        with (
            mock.patch.object(self.waiting._in_hand, "turn", lambda: None),
            mock.patch.object(self.waiting._ledger, "create", in_doubt),
            self.timing_out_once(),
            self.sleeping(abandoned_requests.AbandonedRequests, "clear_allocations") as asleep,
        ):
            server = self.ask()[0]
            self.assert_built_behind(asleep, server)
        self.assert_has_done_nothing(server)
        self.assertEqual(1, len(self.allocations(server)))

    def test_one_that_is_kept_late_takes_nothing_of_who_came_after(self):
        create = self.waiting._ledger.create
        refused = []

        def away_once(request, payload):
            if not refused:
                refused.append(request)
                raise errors.BackendUnavailable("sqlalchemy", "made")
            return create(request, payload)

        with (
            mock.patch.object(self.waiting._in_hand, "turn", lambda: None),
            mock.patch.object(self.waiting._ledger, "create", away_once),
            self.timing_out_once(),
            self.sleeping(abandoned_requests.AbandonedRequests, "clear_allocations") as asleep,
        ):
            server = self.ask()[0]
            self.assert_built_behind(asleep, server)
        self.assert_has_done_nothing(server)
        self.assertEqual(1, len(self.allocations(server)))

    def test_of_several_servers_one_is_in_its_cell_already(self):
        servers = self.ask_of_a_dying_one(objects.Instance, "create", behind=True, servers=2)
        self.take_over(servers[0])
        self.assert_built_once(*servers)

    # -- who sleeps, and wakes behind others ------------------------------------------------

    def assert_built_behind(self, asleep, server):
        """Have another conductor build a server, once the one that has it in hand sleeps."""
        self.assertTrue(asleep.wait(waiting_cloud.PATIENCE_SECONDS))
        self.take_over(server)
        self.assert_built_once(server)

    def assert_has_done_nothing(self, server):
        """Behind the sleep."""
        self.wait_for_overtaken()
        self.assert_built_once(server)
        self.assertTrue(self.waiting.counts["overtaken"], self.waiting.counts)

    def assert_overtaken(self, owner, name, *, behind=False):
        with (
            mock.patch.object(self.waiting._in_hand, "turn", lambda: None),
            self.sleeping(owner, name, behind=behind) as asleep,
        ):
            server = self.ask()[0]
            self.assert_built_behind(asleep, server)
        self.assert_has_done_nothing(server)

    def test_one_that_slept_before_the_beginning_does_nothing(self):
        self.assert_overtaken(self.waiting._ledger, "begin")

    def test_one_that_slept_before_the_mapping_maps_nothing(self):
        self.assert_overtaken(self.waiting, "still_holds")

    def test_one_that_slept_behind_the_beginning_takes_nothing_away(self):
        # It finds no build request, as if the user had deleted the server.
        self.assert_overtaken(self.waiting, "begin", behind=True)

    def test_one_that_slept_before_its_quota_fails_nobodys_server(self):
        came = []

        def recheck(*_args, **_kwargs):
            came.append(None)
            if len(came) > 1:
                raise nova_exception.TooManyInstances(
                    overs="cores", req="1", used="1", allowed="1", headroom="0"
                )

        with mock.patch.object(TASKS, "_recheck_quota", recheck):
            self.assert_overtaken(TASKS, "_recheck_quota")
        self.assertEqual(2, len(came))

    def test_one_that_slept_before_a_burial_buries_nobodys_server(self):
        find, is_gone = objects.HostMapping.get_by_host, threading.Event()

        def get_by_host(*args, **kwargs):
            if is_gone.is_set():
                raise nova_exception.HostMappingNotFound(name="host1")
            return find(*args, **kwargs)

        with (
            mock.patch.object(self.waiting._in_hand, "turn", lambda: None),
            mock.patch.object(objects.HostMapping, "get_by_host", get_by_host),
        ):
            with self.sleeping(self.waiting, "begin", behind=True) as asleep:
                server = self.ask()[0]
                self.assertTrue(asleep.wait(waiting_cloud.PATIENCE_SECONDS))
                full = nova_exception.NoValidHost(reason="full")
                with mock.patch.object(
                    TASKS, "_schedule_instances", autospec=True, side_effect=full
                ):
                    self.take_over(server)
                    self.waits(server)
                is_gone.set()
            self.wait_for_overtaken()
        self.assertEqual("BUILD", self.admin_api.get_server(server)["status"])
        self.assertEqual([], self.instances(server))
        self.assertTrue(abandoned_requests.has_build_request(self.context, server))

    def test_one_that_slept_before_it_cleared_allocations_clears_none(self):
        server = self.ask_of_a_dying_one(TASKS, "_map_instance_to_cell")[0]
        self.pass_time(waiting_cloud.LEASE_SECONDS + 1)
        with (
            mock.patch.object(self.waiting._in_hand, "turn", lambda: None),
            self.sleeping(abandoned_requests, "clear_allocations") as asleep,
        ):
            self.grant(server)
            self.assert_built_behind(asleep, server)
        self.assert_has_done_nothing(server)

    def test_one_that_slept_as_it_gave_a_server_up_takes_no_room_of_who_came_after(self):
        server = self.left_unsent()[0]
        give_up, look, awake = unsent_servers._give_up, threading.Event(), threading.Event()

        def give_up_asleep(tasks, context, cell, instance, error, check):
            def check_and_sleep(of):
                check(of)
                look.set()
                awake.wait(waiting_cloud.PATIENCE_SECONDS)

            give_up(tasks, context, cell, instance, error, check_and_sleep)

        with (
            mock.patch.object(self.waiting._in_hand, "turn", lambda: None),
            mock.patch.object(unsent_servers, "_give_up", give_up_asleep),
            mock.patch.object(
                unsent_servers, "_has_accelerators", autospec=True, side_effect=[True, False]
            ),
            self.sleeping(abandoned_requests, "_delete_request", behind=True) as over,
        ):
            self.take_over(server)
            self.assertTrue(look.wait(waiting_cloud.PATIENCE_SECONDS))
            self.take_over(server)
            self.assert_built_once(server)
            awake.set()
            self.assertTrue(over.wait(waiting_cloud.PATIENCE_SECONDS))
        self.wait_for_overtaken()
        self.assertEqual(1, len(self.allocations(server)))

    def overtake_who_clears(self, server, name, owner, step, *, behind=False):
        """Have a conductor sleep as it clears away, until another is behind a step of its own."""
        self.pass_time(waiting_cloud.LEASE_SECONDS + 1)
        with (
            mock.patch.object(self.waiting._in_hand, "turn", lambda: None),
            self.sleeping(owner, step, behind=True) as came,
        ):
            with self.sleeping(abandoned_requests, name, behind=behind) as asleep:
                self.grant(server)
                self.assertTrue(asleep.wait(waiting_cloud.PATIENCE_SECONDS))
                self.take_over(server)
                self.assertTrue(came.wait(waiting_cloud.PATIENCE_SECONDS))
            self.wait_for_overtaken()

    def test_one_that_slept_before_it_removed_an_instance_removes_none(self):
        server = self.ask_of_a_dying_one(TASKS, "_map_instance_to_cell")[0]
        self.overtake_who_clears(server, "_remove", objects.Instance, "create")
        self.assert_built_once(server)

    def test_one_that_slept_behind_the_unmapping_removes_nobodys_instance(self):
        server = self.ask_of_a_dying_one(TASKS, "_map_instance_to_cell")[0]
        self.overtake_who_clears(server, "_unmap", objects.Instance, "create", behind=True)
        self.assert_built_once(server)

    @contextlib.contextmanager
    def sleeping_behind_its_word(self):
        """Give a server whose conductor sleeps behind ``mapped``; its user sees it behind that."""
        with (
            mock.patch.object(self.waiting._in_hand, "turn", lambda: None),
            self.sleeping(self.waiting._ledger, "mapped", behind=True) as asleep,
        ):
            server = self.ask()[0]
            self.assertTrue(asleep.wait(waiting_cloud.PATIENCE_SECONDS))
            yield server
        self.wait_for_overtaken()
        self.assert_seen(server)

    def test_one_that_slept_before_the_build_requests_deletion_leaves_who_waits(self):
        with self.sleeping_behind_its_word() as server:
            full = nova_exception.NoValidHost(reason="full")
            with mock.patch.object(TASKS, "_schedule_instances", autospec=True, side_effect=full):
                self.take_over(server)
                self.waits(server)
        self.grant(server)
        self.assert_built_once(server)

    def test_one_that_wakes_where_who_unmapped_its_server_died_loses_no_server(self):
        with self.sleeping_behind_its_word() as server:
            self.take_over_and_die(server, abandoned_requests, "_unmap", behind=True)
        self.take_over(server)
        self.assert_built_once(server)

    def test_one_that_slept_before_the_unmapping_loses_no_server(self):
        server = self.ask_of_a_dying_one(self.waiting._ledger, "mapped", behind=True)[0]
        self.overtake_who_clears(server, "_unmap", self.waiting._ledger, "mapped")
        self.assert_seen(server)
        self.take_over(server)
        self.assert_built_once(server)

    # -- what its user sees meanwhile --------------------------------------------------------

    def assert_seen(self, server):
        self.assertEqual("BUILD", self.admin_api.get_server(server)["status"])
        self.assertIn(server, self.ids())

    def test_its_user_sees_it_while_an_instance_of_its_is_removed(self):
        server = self.ask_of_a_dying_one(self.waiting._ledger, "mapped", behind=True)[0]
        with self.sleeping(objects.Instance, "destroy", behind=True) as asleep:
            self.take_over(server)
            self.assertTrue(asleep.wait(waiting_cloud.PATIENCE_SECONDS))
            self.assert_seen(server)
        self.assert_built_once(server)

    def test_its_user_sees_it_where_who_removed_its_instance_died(self):
        server = self.ask_of_a_dying_one(self.waiting._ledger, "mapped", behind=True)[0]
        self.take_over_and_die(server, objects.Instance, "destroy", behind=True)
        self.assert_seen(server)
        self.take_over(server)
        self.assert_built_once(server)

    def test_one_that_its_user_deletes_while_an_instance_of_its_is_removed_is_gone(self):
        server = self.ask_of_a_dying_one(self.waiting._ledger, "mapped", behind=True)[0]
        self.take_over_and_die(server, objects.Instance, "destroy")
        self.admin_api.delete_server(server)
        self.take_over(server)
        self.ended(server)
        self.assertEqual([], self.instances(server))
        self.assertEqual(([], {}), (self.sent, self.allocations(server)))

    def test_one_that_its_user_deletes_before_its_instance_is_mapped_is_gone(self):
        server = self.ask_of_a_dying_one(objects.Instance, "create", behind=True)[0]
        self.admin_api.delete_server(server)
        self.take_over(server)
        self.ended(server)
        self.assertEqual(([], []), (self.sent, self.instances(server)))
        self.assertEqual({}, self.allocations(server))

    def test_all_of_several_that_their_user_deletes_while_they_are_granted_are_gone(self):
        servers = self.ask_of_a_dying_one(objects.Instance, "create", behind=True, servers=2)
        self.pass_time(waiting_cloud.LEASE_SECONDS + 1)
        request = self.record(servers[0])
        granted = self.ledger.grant(request.key, request.grant.attempt, "scheduler")
        for each in servers:
            self.admin_api.delete_server(each)
        self.waiting_api.drain()
        self.dispatch(granted)
        for each in servers:
            self.ended(each)
            self.assertEqual(([], {}), (self.instances(each), self.allocations(each)))
        self.assertEqual([], self.ids())

    def test_one_that_its_user_deletes_while_who_unmapped_it_sleeps_is_gone(self):
        server = self.ask_of_a_dying_one(self.waiting._ledger, "mapped", behind=True)[0]
        with self.sleeping(abandoned_requests, "_unmap", behind=True) as asleep:
            self.take_over(server)
            self.assertTrue(asleep.wait(waiting_cloud.PATIENCE_SECONDS))
            self.admin_api.delete_server(server)
            self.waiting_api.drain()
        self.ended(server)
        self.assertEqual(([], []), (self.sent, self.instances(server)))
        self.assertEqual({}, self.allocations(server))

    # -- what cannot be cleared at once ----------------------------------------------------

    def test_what_is_not_cleared_is_cleared_by_the_next_one(self):
        servers = self.ask_of_a_dying_one(TASKS, "_map_instance_to_cell", servers=2)
        with (
            mock.patch.object(
                report.SchedulerReportClient,
                "put_allocations",
                autospec=True,
                side_effect=nova_exception.AllocationUpdateFailed(consumer_uuid="", error="made"),
            ),
        ):
            self.take_over(servers[0])
            waiting_cloud.patience.wait_until(
                lambda: self.waiting.counts["left"] or self.waiting.counts["parked"],
                30.0,
                lambda: str(self.waiting.counts),
            )
        self.take_over(servers[0])
        self.assert_built_once(*servers)

    @contextlib.contextmanager
    def refusing_to_remove_once(self):
        """Have Placement refuse a conductor that removes allocations, the first time."""
        put, refused = report.SchedulerReportClient.put_allocations, []

        def refuse(client, context, consumer, payload):
            if payload["allocations"] or refused or self.waiting.current is None:
                return put(client, context, consumer, payload)
            refused.append(consumer)
            raise nova_exception.AllocationUpdateFailed(consumer_uuid=consumer, error="made")

        with mock.patch.object(report.SchedulerReportClient, "put_allocations", refuse):
            yield refused
        self.assertTrue(refused)

    def wait_for_leaving(self):
        waiting_cloud.patience.wait_until(
            lambda: self.waiting.counts["left"], 30.0, lambda: str(self.waiting.counts)
        )

    def test_what_a_server_holds_that_cannot_be_sent_goes_before_its_user_hears_of_it(self):
        server = self.left_unsent()[0]
        self.make_room_of_allocations(server)
        with mock.patch.object(
            unsent_servers.scheduler_utils,
            "fill_provider_mapping",
            autospec=True,
            side_effect=ValueError("made"),
        ):
            with self.refusing_to_remove_once():
                self.take_over(server)
                self.wait_for_leaving()
            self.assertEqual("BUILD", self.admin_api.get_server(server)["status"])
            self.take_over(server)
            self.assert_fails(server, "ValueError")

    def test_what_a_server_holds_that_was_deleted_as_hosts_were_found_is_cleared_by_the_next(self):
        server = self.left_unsent()[0]
        self.make_room_of_allocations(server)
        with self.refusing_to_remove_once():
            with self.sleeping(TASKS, "_schedule_instances", behind=True) as asleep:
                self.take_over(server)
                self.assertTrue(asleep.wait(waiting_cloud.PATIENCE_SECONDS))
                [(_cell, instance)] = self.instances(server)
                instance.destroy()
            self.wait_for_leaving()
        self.take_over(server)
        self.ended(server)
        self.assertEqual(([], {}), (self.sent, self.allocations(server)))

    def test_while_placement_is_away_nobody_is_placed(self):
        server = self.ask_of_a_dying_one(TASKS, "_map_instance_to_cell")[0]
        with (
            mock.patch.object(TASKS, "_schedule_instances", autospec=True) as schedule,
            mock.patch.object(
                report.SchedulerReportClient,
                "get",
                autospec=True,
                side_effect=keystone.ConnectFailure("made"),
            ),
        ):
            self.take_over(server)
            waiting_cloud.patience.wait_until(
                lambda: self.waiting.counts["left"] or schedule.called,
                30.0,
                lambda: str(self.waiting.counts),
            )
        schedule.assert_not_called()
        self.take_over(server)
        self.assert_built_once(server)

    def test_a_cast_that_comes_twice_builds_once(self):
        first, _second = self.fill()
        self.sent.clear()
        server = self.ask()[0]
        self.waits(server)
        self.make_room(first)
        request = self.record(server)
        granted = self.ledger.grant(request.key, request.grant.attempt, "scheduler")
        for _ in range(3):
            self.dispatch(granted)
        self.assert_built_once(server)
