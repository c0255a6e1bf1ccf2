# SPDX-License-Identifier: Apache-2.0
"""POSTs that repeat keystoneauth's request, against a real Placement."""

from __future__ import annotations

import collections
import logging
import uuid
from typing import Any

import fixtures
import urllib3
import webob.dec
import webob.exc
from keystoneauth1 import adapter, plugin, session
from keystoneauth1 import exceptions as keystone
from nova.scheduler.client import report
from placement import auth as placement_auth

from nova_nodb_scheduler.nova_adapter.placement import repeated_requests
from nova_nodb_scheduler.nova_adapter.placement.allocations import placement_calls
from nova_nodb_scheduler.nova_adapter.placement.mirror import write_hints
from tests.functional.nova_adapter import placement_cloud as cloud

VERSION = "1.36"


class Tokens(plugin.BaseAuthPlugin):
    """Gives tokens of an administrator, a new one after each that was refused."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self.endpoint = endpoint
        self.number = 1
        self.looked_up = 0

    def get_token(self, session: Any) -> str:
        return f"admin:{self.number}"

    def get_endpoint(self, session: Any, **kwargs: Any) -> str:
        self.looked_up += 1
        return self.endpoint

    def invalidate(self) -> bool:
        self.number += 1
        return True


class SendingCase(cloud.PlacementCase):
    def setUp(self) -> None:
        super().setUp()
        self.now = 0.0
        #: Of each request that Placement got: token, headers, status.
        self.got: list[tuple[str, dict[str, str]]] = []
        self.expired: set[str] = set()
        own = vars(placement_auth.NoAuthMiddleware)["__call__"].func

        @webob.dec.wsgify
        def watched(middleware: Any, request: Any) -> Any:
            token = request.headers.get("X-Auth-Token", "")
            self.got.append((token, dict(request.headers)))
            if token in self.expired:
                return webob.exc.HTTPUnauthorized()
            return own(middleware, request)

        self.useFixture(fixtures.MonkeyPatch("placement.auth.NoAuthMiddleware.__call__", watched))
        self.host = self.provider(VCPU=100)
        self.auth = Tokens(self.placement.endpoint)
        self.client = self.client_with()
        self.sender = placement_calls.PostSender(self.client, lambda: self.now)
        self.got.clear()

    def client_with(self, **options: Any) -> Any:
        found = adapter.Adapter(
            session.Session(auth=self.auth),
            service_type="placement",
            raise_exc=False,
            **options,
        )
        return report.SchedulerReportClient(found)

    def body(self, vcpus: int = 1) -> dict[str, Any]:
        one = cloud.server(self.host, VCPU=vcpus)
        return {
            one.consumer: {
                **one.request,
                "project_id": one.project_id,
                "user_id": one.user_id,
                "consumer_generation": None,
            }
        }

    def post(self, body: dict[str, Any] | None = None, request_id: str | None = None) -> Any:
        return self.sender.post(
            "/allocations", body or self.body(), version=VERSION, request_id=request_id
        )


class ReadingTest(SendingCase):
    """A GET is repeated to other paths, as keystoneauth would send it."""

    def setUp(self) -> None:
        super().setUp()
        self.reader = repeated_requests.GetSender(lambda: self.client, lambda: self.now)

    def read(self, query: str) -> Any:
        return self.reader.get(f"/resource_providers?{query}", VERSION)

    def test_a_repeated_get_arrives_as_keystoneauth_sends_it_and_is_of_its_own_path(self) -> None:
        nobody = uuid.uuid4()
        answers = [self.read(f"in_tree={root}") for root in (nobody, self.host)]
        self.assertEqual(1, self.reader.repeated)
        self.assertEqual(
            [[], [self.host]],
            [[each["uuid"] for each in one.json()["resource_providers"]] for one in answers],
        )
        (_, first), (_, second) = self.got
        self.assertEqual(first, second)

    def test_what_a_url_would_quote_is_sent_by_keystoneauth(self) -> None:
        self.read("name=a")
        self.assertEqual(200, self.read("name=a b%").status_code)
        self.assertEqual(0, self.reader.repeated)
        self.read("name=b")
        self.assertEqual(1, self.reader.repeated)

    def test_a_token_that_placement_refuses_is_renewed_by_keystoneauth(self) -> None:
        self.read("name=a")
        self.expired.add("admin:1")
        self.assertEqual(200, self.read("name=b").status_code)
        self.assertEqual("admin:2", self.got[-1][0])

    def test_an_old_pattern_and_another_client_are_not_repeated(self) -> None:
        self.read("name=a")
        self.now += 61
        self.read("name=a")
        self.client = self.client_with()
        self.read("name=a")
        self.assertEqual(0, self.reader.repeated)

    def test_an_absent_path_is_an_answer_and_a_fault_ends_the_pattern(self) -> None:
        self.read("name=a")
        self.assertEqual(
            404, self.reader.get(f"/resource_providers/{uuid.uuid4()}", VERSION).status_code
        )
        self.assertEqual(400, self.read("unknown=1").status_code)
        self.read("name=a")
        self.assertEqual(2, self.reader.repeated)


class SendingTest(SendingCase):
    def test_a_repeated_request_arrives_as_keystoneauth_sends_it(self):
        asked = [f"req-{uuid.uuid4()}" for _ in range(2)]
        self.assertEqual([204, 204], [self.post(request_id=each).status_code for each in asked])
        self.assertEqual(1, self.sender.repeated)
        (_, first), (_, second) = self.got
        self.assertEqual(asked, [each.pop("X-Openstack-Request-Id") for each in (first, second)])
        # Ours has no spaces in its JSON.
        self.assertLess(int(second.pop("Content-Length")), int(first.pop("Content-Length")))
        self.assertEqual(first, second)
        self.assertEqual("placement 1.36", first["Openstack-Api-Version"])
        self.assertEqual({"VCPU": 2}, self.usages(self.host))

    def test_a_request_without_an_id_does_not_carry_the_last_ones(self):
        self.post(request_id=f"req-{uuid.uuid4()}")
        self.post()
        self.assertEqual(1, self.sender.repeated)
        self.assertNotIn("X-Openstack-Request-Id", self.got[1][1])

    def test_a_body_of_another_length_is_read_whole(self):
        self.post()
        many = {}
        for _ in range(7):
            many.update(self.body())
        self.assertEqual(204, self.post(many).status_code)
        self.assertEqual({"VCPU": 8}, self.usages(self.host))

    def test_a_refusal_is_the_answer_and_changes_nothing(self):
        self.post()
        refused = self.post(self.body(vcpus=1000))
        self.assertEqual(409, refused.status_code)
        self.assertIn("capacity", refused.json()["errors"][0]["detail"])
        self.post()
        self.assertEqual(2, self.sender.repeated)

    def test_an_expired_token_is_replaced_by_keystoneauth(self):
        self.post()
        self.expired.add("admin:1")
        self.assertEqual(204, self.post().status_code)
        self.assertEqual(
            # Repeated; then by keystoneauth, which is refused too, and asks again.
            ["admin:1", "admin:1", "admin:1", "admin:2"],
            [token for token, _ in self.got],
        )
        self.post()
        self.assertEqual("admin:2", self.got[-1][0])
        self.assertEqual(5, len(self.got))
        self.assertEqual({"VCPU": 3}, self.usages(self.host))

    def test_a_token_renewed_meanwhile_has_the_endpoint_looked_up_again(self):
        self.post()
        looked_up = self.auth.looked_up
        self.post()
        self.assertEqual(looked_up, self.auth.looked_up)
        self.auth.number = 5
        self.assertEqual(204, self.post().status_code)
        self.assertGreater(self.auth.looked_up, looked_up)
        self.assertEqual("admin:5", self.got[-1][0])

    def test_the_endpoint_is_looked_up_again_after_a_minute(self):
        self.post()
        looked_up = self.auth.looked_up
        self.now = 59.0
        self.post()
        self.assertEqual(looked_up, self.auth.looked_up)
        self.now = 61.0
        self.post()
        self.assertGreater(self.auth.looked_up, looked_up)

    def test_a_session_that_nova_replaces_is_not_used_any_more(self):
        self.post()
        self.auth = Tokens(self.placement.endpoint)
        self.auth.number = 9
        self.client._client = self.client_with()._client
        self.post()
        self.assertEqual("admin:9", self.got[-1][0])

    def test_configured_retries_and_logged_requests_stay_keystoneauths(self):
        for options in ({"connect_retries": 1}, {"status_code_retries": 1}):
            own = placement_calls.PostSender(self.client_with(**options), lambda: self.now)
            for _ in range(2):
                own.post("/allocations", self.body(), version=VERSION, request_id=None)
            self.assertEqual(0, own.repeated)
        self.post()
        logs = self.useFixture(fixtures.FakeLogger("keystoneauth.session", logging.DEBUG))
        self.post()
        self.assertEqual(0, self.sender.repeated)
        self.assertIn("REQ:", logs.output)

    def test_a_connection_that_breaks_is_keystoneauths_error_and_is_told_as_unsure(self):
        broken = urllib3.exceptions
        told: list[write_hints.ObservedWrite] = []
        # A fixture that stands in for a method takes over that it is observed, but not how.
        for name in ("put", "post", "delete"):
            own = getattr(report.SchedulerReportClient, name)
            self.addCleanup(setattr, report.SchedulerReportClient, name, own)
        write_hints.install(told.append)
        self.addCleanup(write_hints.uninstall, told.append)
        self.post()
        self.post()
        self.assertEqual([[self.host]] * 2, [list(each.placed) for each in told])

        for raised, expected in (
            (broken.ReadTimeoutError(None, "/", "slow"), keystone.ConnectTimeout),
            (broken.ConnectTimeoutError("slow"), keystone.ConnectTimeout),
            (broken.NewConnectionError(None, "refused"), keystone.ConnectFailure),
            (broken.ProtocolError("aborted"), keystone.ConnectFailure),
            (broken.ProxyError("no proxy", OSError()), keystone.ConnectFailure),
            (broken.ClosedPoolError(None, "closed"), keystone.ConnectFailure),
            (OSError("no route"), keystone.ConnectFailure),
            (broken.SSLError("another authority"), keystone.SSLError),
            (broken.DecodeError("no gzip"), keystone.UnknownConnectionError),
        ):
            self.post()

            def break_off(*args: Any, error: Any = raised, **kwargs: Any) -> Any:
                raise error

            told.clear()
            with fixtures.MonkeyPatch("urllib3.HTTPConnectionPool.urlopen", break_off):
                self.assertRaises(expected, self.post)
            self.assertEqual([frozenset({self.host})], [each.providers for each in told])

    def test_an_answer_that_was_lost_after_a_repeated_request_is_found(self):
        posts = placement_calls.AllocationCalls(self.client)
        one, two = (cloud.server(self.host) for _ in range(2))
        posts.post([one])
        own = urllib3.HTTPConnectionPool.urlopen

        def lost(*args: Any, **kwargs: Any) -> Any:
            own(*args, **kwargs)
            raise urllib3.exceptions.ProtocolError("reset")

        with fixtures.MonkeyPatch("urllib3.HTTPConnectionPool.urlopen", lost):
            reply = posts.post([two])
        self.assertEqual("LostReply", type(reply).__name__)
        self.assertEqual({"VCPU": 2}, self.usages(self.host))
        held = posts.held(two.consumer)
        assert isinstance(held, placement_calls.HeldAllocation)
        self.assertEqual(two.amounts, held.amounts)

    def test_what_cannot_be_read_of_keystoneauth_after_an_answer_costs_no_answer(self):
        for name in ("pattern_of", "Pattern.is_usable"):
            with self.subTest(name):
                own = placement_calls.PostSender(self.client, lambda: self.now)
                asked = placement_calls.AllocationCalls(self.client)
                asked._sender = own
                servers = [cloud.server(self.host) for _ in range(3)]

                def fail(*_: Any, **__: Any) -> Any:
                    raise AttributeError("keystoneauth has no such attribute any more")

                with fixtures.MonkeyPatch(f"{repeated_requests.__name__}.{name}", fail):
                    replies = [type(asked.post([each])).__name__ for each in servers]
                self.assertEqual(["DoneReply"] * 3, replies)
                self.assertEqual(0, own.repeated)
                for each in servers:
                    self.assertEqual({self.host: {"VCPU": 1}}, self.held(each.consumer))

    def test_an_error_below_keystoneauth_is_no_answer_and_no_mistake(self):
        self.post()
        own = urllib3.HTTPConnectionPool.urlopen

        def lost(*args: Any, **kwargs: Any) -> Any:
            own(*args, **kwargs)
            raise ValueError("of http.client, say")

        with fixtures.MonkeyPatch("urllib3.HTTPConnectionPool.urlopen", lost):
            self.assertRaises(keystone.UnknownConnectionError, self.post)
        self.assertEqual({"VCPU": 2}, self.usages(self.host))

    def test_whoever_stands_in_for_the_client_gets_every_call(self):
        calls: collections.Counter[str] = collections.Counter()
        own = self.client.post

        def counted(*args: Any, **kwargs: Any) -> Any:
            calls["post"] += 1
            return own(*args, **kwargs)

        self.client.post = counted
        for _ in range(3):
            self.post()
        self.assertEqual((3, 0), (calls["post"], self.sender.repeated))
