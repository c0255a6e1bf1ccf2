# SPDX-License-Identifier: Apache-2.0
"""Servers without room wait, and are built when there is some; run by :mod:`.test_waiting`."""

from tests.functional.nova_adapter.waiting import waiting_cloud  # noqa: I001 - Nova's first

import contextlib
import json
import math
from unittest import mock

import attrs
import oslo_messaging
from keystoneauth1 import exceptions as keystone
from nova import exception, objects
from nova.scheduler import rpcapi
from nova.scheduler.client import query, report
from nova.tests import fixtures as nova_fixtures
from oslo_utils import timeutils
from oslo_utils.fixture import uuidsentinel as uuids

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.nova_adapter.reads import unread_cells
from nova_nodb_scheduler.nova_adapter.waiting import request_payload
from nova_nodb_scheduler.testing import patience

State = pending.PendingState
_ASKING = ("select_destinations", query.SchedulerQueryClient.select_destinations)


class ParkedServersTest(waiting_cloud.WaitingCloud):
    def test_one_waits_until_there_is_room(self):
        first, second = self.fill()
        server = self.ask()[0]
        parked = self.waits(server)
        shown = self.admin_api.get_server(server)
        self.assertEqual(("BUILD", "scheduling"), (shown["status"], shown["OS-EXT-STS:task_state"]))
        self.assertNotIn("fault", shown)
        self.assertEqual([], self.instances(server))
        self.assertEqual({"VCPU": 1, "MEMORY_MB": 256, "DISK_GB": 11}, dict(parked.needs))
        self.assertIn("No valid host", parked.reason)
        # While the cloud is full it is parked again.
        self.grant(server)
        again = self.in_state(server, State.WAITING)
        self.assertEqual((2, 2), (again.grant.attempt, again.refusals))
        self.make_room(first)
        self.grant(server)
        self.active(server)
        self.ended(server)
        self.assertEqual(1, len(self.allocations(server)))
        self.assertEqual("ACTIVE", self.admin_api.get_server(second)["status"])

    def test_room_that_is_there_is_taken_at_once(self):
        server = self.ask()[0]
        self.active(server)
        self.ended(server)
        self.assertEqual({}, {k: v for k, v in self.waiting.counts.items() if k == "parked"})

    def test_without_a_word_it_ends_as_in_nova_and_no_back_end_is_asked(self):
        self.fill()
        with mock.patch.object(self.waiting._ledger, "create", autospec=True) as create:
            server = self.ask(wait_seconds=None)[0]
            self.comes_to(server, "ERROR")
        self.assertIn("No valid host", self.fault(server))
        create.assert_not_called()

    def test_a_hint_of_0_seconds_ends_as_in_nova(self):
        self.fill()
        self.comes_to(self.ask(wait_seconds=0)[0], "ERROR")

    def test_one_whose_terms_cannot_be_read_goes_on_as_in_nova(self):
        # Of another release, or of a tool that speaks to conductors itself.
        spec = objects.RequestSpec(flavor=objects.Flavor(name="bare"), instance_uuid=uuids.bare)
        arguments = request_payload.BuildArguments([spec], None, None, [], None, None)
        self.assertIsNone(self.waiting.keep(self.context, arguments))
        self.assertEqual(1, self.waiting.counts["not_kept"])

    def test_the_users_deletion_ends_its_waiting(self):
        self.fill()
        server = self.ask()[0]
        self.waits(server)
        self.admin_api.delete_server(server)
        standing = self.record(server)
        if standing is not None:
            # Where the API's word does not come it is found gone when it is tried; else the
            # word comes before the grant.
            attempt = standing.grant.attempt
            granted = self.ledger.grant(standing.key, attempt, "scheduler", pending.Purpose.PLACE)
            if isinstance(granted, pending.PendingRequest):
                self.dispatch(granted)
            else:
                self.assertIsNone(granted.standing)
        self.ended(server)
        self.assertNotIn(server, self.ids())
        self.assertEqual({}, self.allocations(server))
        self.assertEqual([], self.instances(server))

    def test_one_that_waited_in_vain_says_how_long_for_what(self):
        self.fill()
        server = self.ask(wait_seconds=120)[0]
        parked = self.waits(server)
        self.assertAlmostEqual(120, parked.deadline_at - parked.asked_at)
        self.pass_time(130)
        self.grant(server, pending.Purpose.EXPIRE)
        self.comes_to(server, "ERROR")
        self.ended(server)
        self.assertRegex(
            self.fault(server),
            r"waited 13\d s for 11 DISK_GB, 256 MEMORY_MB, 1 VCPU: .*No valid host",
        )
        self.assertEqual(["cell0"], [cell for cell, _ in self.instances(server)])

    def test_an_operators_cancellation_says_so(self):
        self.fill()
        server = self.ask()[0]
        self.waits(server)
        self.grant(server, pending.Purpose.CANCEL)
        self.comes_to(server, "ERROR")
        self.ended(server)
        self.assertIn("cancelled by an operator", self.fault(server))

    def test_several_servers_of_one_request_wait_as_one(self):
        first, second = self.fill()
        servers = self.ask(servers=2)
        parked = self.waits(servers[0])
        self.assertEqual(set(servers), set(parked.servers))
        self.make_room(first)
        self.grant(servers[0])
        self.assertEqual(2, self.in_state(servers[0], State.WAITING).refusals)
        self.assertEqual([{}, {}], [self.allocations(each) for each in servers])
        self.make_room(second)
        self.grant(servers[0])
        for server in servers:
            self.active(server)
        self.ended(servers[0])

    def test_those_that_are_left_of_several_are_built(self):
        first, _second = self.fill()
        servers = self.ask(servers=2)
        self.waits(servers[0])
        self.admin_api.delete_server(servers[0])
        self.make_room(first)
        self.grant(servers[1])
        self.active(servers[1])
        self.ended(servers[1])

    def test_one_with_a_password_files_and_user_data_is_built_with_them(self):
        first, _second = self.fill()
        self.admin_api.microversion = "2.50"
        asked = self._build_server(flavor_id=self.flavor_id, networks="none")
        asked.update({"adminPass": "s3cret-word", "user_data": "YWJj"})
        asked["personality"] = [{"path": "/etc/motd", "contents": "c2VjcmV0IGZpbGU="}]
        server = self.admin_api.api_post(
            "/servers", {"server": asked, "os:scheduler_hints": {"nodb_wait": "600"}}
        ).body["server"]["id"]
        self.waits(server)
        text = self.ledger.read_payload(server)
        for secret in ("s3cret-word", "c2VjcmV0", "motd"):
            self.assertNotIn(secret, text)
        spawned = []
        driver = "nova.virt.fake.FakeDriver.spawn"
        with mock.patch(driver, autospec=True) as spawn:
            spawn.side_effect = lambda *args, **kwargs: spawned.append(args)
            self.make_room(first)
            self.grant(server)
            self.active(server)
        files, password = spawned[0][3], spawned[0][4]
        self.assertEqual("s3cret-word", password)
        self.assertEqual([("/etc/motd", b"secret file")], [tuple(each) for each in files])

    def test_a_scheduler_that_gives_no_answer_lets_it_wait(self):
        with mock.patch.object(
            rpcapi.SchedulerAPI,
            "select_destinations",
            autospec=True,
            side_effect=oslo_messaging.MessagingTimeout("none"),
        ):
            server = self.ask()[0]
            self.assertEqual("no scheduler answered", self.waits(server).reason)
        self.grant(server)
        self.active(server)

    def allocating_and_dying(self):
        """A scheduler that is killed between its write to Placement and its answer."""
        select = rpcapi.SchedulerAPI.select_destinations

        def die(*args, **kwargs):
            select(*args, **kwargs)
            raise oslo_messaging.MessagingTimeout("none")

        return mock.patch.object(rpcapi.SchedulerAPI, "select_destinations", die)

    def test_what_a_scheduler_allocated_that_gave_no_answer_is_not_waited_for(self):
        # Else it stands in the way of the request itself, and no host grows by that.
        with self.allocating_and_dying():
            servers = self.ask(servers=2)
            self.assertEqual("no scheduler answered", self.waits(servers[0]).reason)
        self.assertEqual([{}, {}], [self.allocations(each) for each in servers])
        self.grant(servers[0])
        for server in servers:
            self.active(server)

    def test_where_that_cannot_be_taken_back_it_is_tried_anew_and_does_not_wait(self):
        self.assert_tried_anew(keystone.ConnectFailure("made"))

    def test_what_a_proxy_answers_for_placement_buries_nobody(self):
        # Nova's client reads JSON, and lets through what comes of another text.
        self.assert_tried_anew(json.JSONDecodeError("made", "<html>", 0))

    def assert_tried_anew(self, error):
        with (
            self.allocating_and_dying(),
            mock.patch.object(
                report.SchedulerReportClient,
                "get_allocs_for_consumer",
                autospec=True,
                side_effect=error,
            ),
        ):
            server = self.ask()[0]
            patience.wait_until(
                lambda: self.waiting.counts["left"] or self.waiting.counts["parked"],
                30.0,
                lambda: str(self.waiting.counts),
            )
        self.assertIs(State.SCHEDULING, self.record(server).state)
        self.pass_time(waiting_cloud.LEASE_SECONDS + 1)
        self.grant(server)
        self.active(server)
        self.ended(server)
        self.assertEqual(1, len(self.allocations(server)))

    def test_one_that_could_not_read_some_cells_hosts_lets_it_wait_too(self):
        self.addCleanup(setattr, query.SchedulerQueryClient, *_ASKING)
        unread_cells.install_in_conductor()
        error = unread_cells.HostsNotRead("Cell c1: the back end is away.")
        with mock.patch.object(
            rpcapi.SchedulerAPI,
            "select_destinations",
            autospec=True,
            side_effect=oslo_messaging.RemoteError(type(error).__name__, str(error), ["a", "b"]),
        ):
            server = self.ask()[0]
            self.assertEqual("the hosts of some cells could not be read", self.waits(server).reason)
        self.grant(server)
        self.active(server)

    def test_another_failure_ends_as_in_nova(self):
        with mock.patch(
            "nova.scheduler.rpcapi.SchedulerAPI.select_destinations",
            autospec=True,
            side_effect=ValueError("broken"),
        ):
            server = self.ask()[0]
            self.comes_to(server, "ERROR")
        self.ended(server)

    def test_a_full_queue_ends_as_in_nova(self):
        error = exception.NoValidHost(reason=pending.QUEUE_FULL)
        with mock.patch(
            "nova.scheduler.rpcapi.SchedulerAPI.select_destinations",
            autospec=True,
            side_effect=error,
        ):
            server = self.ask()[0]
            self.comes_to(server, "ERROR")
        self.assertIn(pending.QUEUE_FULL, self.fault(server))
        self.ended(server)

    def test_the_scheduler_is_told_whose_attempt_it_is_and_the_spec_keeps_nothing_of_it(self):
        first, _second = self.fill()
        seen = []
        select = rpcapi.SchedulerAPI.select_destinations

        def look(api, context, spec, *args, **kwargs):
            seen.append(dict(spec.scheduler_hints or {}))
            return select(api, context, spec, *args, **kwargs)

        with mock.patch.object(rpcapi.SchedulerAPI, "select_destinations", look):
            server = self.ask()[0]
            self.waits(server)
            self.make_room(first)
            self.grant(server)
            self.active(server)
        self.assertEqual([[f"{server}:1"], [f"{server}:2"]], [each[pending.HINT] for each in seen])
        spec = objects.RequestSpec.get_by_instance_uuid(self.context, server)
        self.assertNotIn(pending.HINT, spec.scheduler_hints)

    def test_the_scheduler_is_told_when_it_was_asked_and_nova_when_the_user_asked(self):
        """An attempt that is older than a conductor's patience is one that nobody waits for."""
        first, _second = self.fill()
        seen = []
        select = rpcapi.SchedulerAPI.select_destinations

        def look(api, context, *args, **kwargs):
            seen.append(context.timestamp)
            return select(api, context, *args, **kwargs)

        with mock.patch.object(rpcapi.SchedulerAPI, "select_destinations", look):
            server = self.ask()[0]
            self.waits(server)
            self.make_room(first)
            granted_at = timeutils.utcnow()
            self.grant(server)
            self.active(server)
        self.assertLess(seen[0], granted_at)
        self.assertGreaterEqual(seen[1], granted_at)
        actions = self.api.get_instance_actions(server)
        began = [each["start_time"] for each in actions if each["action"] == "create"]
        self.assertLessEqual(began[0][:19], granted_at.isoformat()[:19])

    def test_quota_is_looked_at_when_it_is_built(self):
        first, _second = self.fill()
        server = self.ask()[0]
        self.waits(server)
        self.make_room(first)
        self.flags(instances=1, group="quota")
        self.grant(server)
        self.comes_to(server, "ERROR")
        self.ended(server)
        self.assertIn("uota", self.fault(server))

    def test_one_whose_server_group_was_deleted_ends_and_says_so(self):
        first, _second = self.fill()
        groups = self.admin_api.api_post(
            "/os-server-groups", {"server_group": {"name": "apart", "policy": "anti-affinity"}}
        ).body["server_group"]
        server = self.ask(hints={"group": groups["id"]})[0]
        self.waits(server)
        self.make_room(first)
        self.admin_api.api_delete(f"/os-server-groups/{groups['id']}")
        self.grant(server)
        self.comes_to(server, "ERROR")
        self.ended(server)
        self.assertIn(f"server group {groups['id']} was deleted", self.fault(server))
        self.assertEqual({}, self.allocations(server))

    @contextlib.contextmanager
    def away_for(self, seconds):
        """Keep no request for some seconds of a made clock, which pauses alone move."""
        now = [0.0]
        create = self.waiting._ledger.create

        def refused(request, payload):
            if now[0] < seconds:
                raise errors.BackendUnavailable("sqlalchemy", "the test says so")
            return create(request, payload)

        def pause(pause_seconds):
            now[0] += pause_seconds

        with (
            mock.patch.object(self.waiting, "_clock", lambda: now[0]),
            mock.patch.object(self.waiting, "_pause", pause),
            mock.patch.object(
                self.waiting._ledger, "create", autospec=True, side_effect=refused
            ) as asked,
        ):
            yield asked

    def test_a_back_end_that_is_away_keeps_nobody_from_being_built(self):
        with self.away_for(math.inf) as create:
            self.active(self.ask()[0])
            # Whoever comes a moment later does not find out by a time-out of its own.
            self.active(self.ask()[0])
            self.assertEqual(1, create.call_count)

    def test_one_without_room_ends_as_in_nova_where_the_back_end_stays_away(self):
        self.fill()
        with self.away_for(math.inf):
            self.comes_to(self.ask()[0], "ERROR")
            self.assertEqual(1, self.waiting.counts["not_kept"])
            asked = self.waiting._ledger.create.call_count
            self.comes_to(self.ask()[0], "ERROR")
            # The next one has nothing to wait for.
            self.assertEqual(asked + 1, self.waiting._ledger.create.call_count)

    def test_one_without_room_waits_where_the_back_end_comes_again(self):
        first, _second = self.fill()
        with self.away_for(self.waiting._ledger.lease_seconds / 2):
            server = self.ask()[0]
            parked = self.waits(server)
        self.assertEqual(1, parked.grant.attempt)
        self.assertEqual(0, self.waiting.counts["not_kept"])
        self.make_room(first)
        self.grant(server)
        self.active(server)

    def test_one_with_a_volume_is_built_with_it(self):
        first, _second = self.fill()
        volume = nova_fixtures.CinderFixture.IMAGE_BACKED_VOL
        server = self.ask(volume=volume)[0]
        self.waits(server)
        self.make_room(first)
        self.grant(server)
        self.active(server)
        attached = self.admin_api.get_server(server)["os-extended-volumes:volumes_attached"]
        self.assertEqual([volume], [each["id"] for each in attached])

    def test_one_whose_payload_cannot_be_read_waits_for_the_key_and_then_says_why(self):
        self.fill()
        server = self.ask(volume=nova_fixtures.CinderFixture.IMAGE_BACKED_VOL)[0]
        self.waits(server)
        cipher = request_payload.PayloadCipher([request_payload.new_key()])
        records = attrs.evolve(self.waiting._records, cipher=cipher)
        with mock.patch.object(self.waiting, "_records", records):
            self.grant(server)
            patience.wait_until(
                lambda: self.waits(server).refusals == 2, 60.0, lambda: self.record(server)
            )
            self.assertIn("[nodb_queue] key", self.record(server).reason)
            self.pass_time(601)
            self.grant(server, pending.Purpose.EXPIRE)
            self.comes_to(server, "ERROR")
        self.ended(server)
        self.assertIn("[nodb_queue] key", self.fault(server))
        attached = self.admin_api.get_server(server)["os-extended-volumes:volumes_attached"]
        self.assertEqual(1, len(attached))
