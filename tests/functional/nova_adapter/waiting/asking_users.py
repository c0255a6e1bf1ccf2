# SPDX-License-Identifier: Apache-2.0
"""What nova-api refuses of those who ask for servers that wait, and what it does itself; run
by :mod:`.test_waiting`.
"""

from tests.functional.nova_adapter.waiting import waiting_cloud  # noqa: I001 - Nova's first

import time
from unittest import mock

import nova.conductor.rpcapi
import nova.policy
from nova import exception
from nova.scheduler import rpcapi
from nova.tests.functional.api import client

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.nova_adapter.waiting import waiting_api

State = pending.PendingState


class AskingUsersTest(waiting_cloud.WaitingCloud):
    def assert_refused(self, text, hints, api=None, status=400):
        body = self._build_server(flavor_id=self.flavor_id, networks="none")
        refused = self.assertRaises(
            client.OpenStackApiException,
            (api or self.admin_api).api_post,
            "/servers",
            {"server": body, "os:scheduler_hints": hints},
        )
        self.assertEqual(status, refused.response.status_code)
        self.assertIn(text, refused.response.text)

    def user(self):
        api = self.api_fixture.api
        api.microversion = "latest"
        return api

    def test_hints_that_make_no_sense_are_refused_and_nothing_is_made(self):
        for hints, text in (
            ({"nodb_wait": "soon"}, "number of seconds"),
            ({"nodb_wait": "99999999"}, "number of seconds"),
            ({"nodb_wait": ["1", "2"]}, "number of seconds"),
            ({"nodb_wait": "10", "nodb_class": "unheard"}, "one of low, normal, high"),
            ({"nodb_wiat": "10"}, "no hint nodb_wiat"),
            ({"_nodb_pending": "x:9"}, "not for users"),
        ):
            self.assert_refused(text, hints)
        self.assertEqual([], self.ids())

    def test_a_class_above_the_default_is_for_administrators(self):
        self.assert_refused(
            "nodb:class:high", {"nodb_wait": "5", "nodb_class": "high"}, self.user(), 403
        )
        for hints, api in (
            ({"nodb_wait": "5", "nodb_class": "high"}, self.admin_api),
            ({"nodb_wait": "5", "nodb_class": "low"}, self.user()),
        ):
            body = self._build_server(flavor_id=self.flavor_id, networks="none")
            server = api.api_post("/servers", {"server": body, "os:scheduler_hints": hints})
            self.active(server.body["server"]["id"])

    def test_an_operator_may_keep_users_from_waiting(self):
        enforcer = nova.policy._ENFORCER
        enforcer.set_rules(
            nova.policy.policy.Rules.from_dict({"nodb:wait": "rule:context_is_admin"}),
            overwrite=False,
        )
        self.assert_refused(
            "Policy doesn't allow hint nodb_wait", {"nodb_wait": "5"}, self.user(), 403
        )

    def test_a_flavor_says_how_long_and_in_which_class(self):
        self.fill()
        self.admin_api.post_extra_spec(
            self.flavor_id, {"extra_specs": {"nodb:wait": "77", "nodb:class": "high"}}
        )
        parked = self.waits(self.ask(wait_seconds=None)[0])
        self.assertEqual(77, round(parked.deadline_at - parked.asked_at))
        self.assertEqual("high", parked.priority_class)

    def test_extra_specs_that_make_no_sense_are_refused(self):
        for name, value in (
            ("nodb:wait", "soon"),
            ("nodb:wait", "-1"),
            ("nodb:choice", "worst"),
            ("nodb:class", "two words"),
            ("nodb:unheard", "1"),
        ):
            refused = self.assertRaises(
                client.OpenStackApiException,
                self.admin_api.post_extra_spec,
                self.flavor_id,
                {"extra_specs": {name: value}},
            )
            self.assertEqual(400, refused.response.status_code, (name, value))

    def test_who_deletes_what_waits_takes_it_off_the_queue(self):
        self.fill()
        server = self.ask()[0]
        self.waits(server)
        self.admin_api.delete_server(server)
        self.ended(server)

    def test_a_deletion_does_not_wait_for_the_back_end(self):
        self.fill()
        server = self.ask()[0]
        self.waits(server)
        ledger = self.waiting_api._ledger

        def slow(*_args):
            time.sleep(5.0)
            raise errors.BackendUnavailable("sqlalchemy", "the test says so")

        with mock.patch.object(ledger, "drop_server", slow):
            began = time.monotonic()
            self.waiting_api.deleted(server)
            self.assertLess(time.monotonic() - began, 1.0)


class FromApiTest(waiting_cloud.WaitingCloud):
    OPTIONS = {"from_api": True}

    def test_nobody_else_need_be_there_when_a_user_asks(self):
        with mock.patch.object(
            nova.conductor.rpcapi.ComputeTaskAPI,
            "schedule_and_build_instances",
            autospec=True,
            side_effect=AssertionError("a conductor was asked"),
        ):
            server = self.ask()[0]
        queued = self.record(server)
        self.assertEqual(
            (State.WAITING, 1, 0), (queued.state, queued.grant.attempt, queued.refusals)
        )
        self.assertEqual("BUILD", self.admin_api.get_server(server)["status"])
        self.grant(server)
        self.active(server)
        self.ended(server)

    def test_one_for_which_the_queue_is_full_goes_to_a_conductor(self):
        backlog = self.waiting_api._backlog
        with mock.patch.object(backlog, "_most_per_project", 1):
            queued = self.ask()[0]
            self.assertEqual(1, self.record(queued).grant.attempt)
            # Its scheduler, which is Nova's here, finds room for it.
            self.active(self.ask()[0])
        self.assertIs(State.WAITING, self.record(queued).state)
        self.grant(queued)
        self.active(queued)

    def test_one_for_which_the_queue_and_the_cloud_are_full_ends_and_says_so(self):
        full = exception.NoValidHost(reason=pending.QUEUE_FULL)
        with (
            mock.patch.object(self.waiting_api._backlog, "_most_per_project", 1),
            mock.patch.object(
                rpcapi.SchedulerAPI, "select_destinations", autospec=True, side_effect=full
            ),
        ):
            queued = self.ask()[0]
            refused = self.ask()[0]
            self.comes_to(refused, "ERROR")
        self.assertIn(pending.QUEUE_FULL, self.fault(refused))
        self.ended(refused)
        self.assertIs(State.WAITING, self.record(queued).state)

    def test_who_does_not_wait_goes_to_a_conductor(self):
        self.active(self.ask(wait_seconds=None)[0])

    def test_a_back_end_that_is_away_is_asked_once_in_a_while(self):
        away = errors.BackendUnavailable("sqlalchemy", "the test says so")
        now = time.monotonic()
        with (
            mock.patch.object(self.waiting_api, "_clock", lambda: now),
            mock.patch.object(
                self.waiting_api._ledger, "create", autospec=True, side_effect=away
            ) as create,
        ):
            for _ in range(2):
                self.active(self.ask()[0])
            self.assertEqual(1, create.call_count)
            now += waiting_api._AWAY_SECONDS
            self.waits(self.ask()[0])
        self.assertEqual(2, create.call_count)
