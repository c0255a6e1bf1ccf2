# SPDX-License-Identifier: Apache-2.0
"""Events of requests that wait, in a real Zaqar, read as their projects read them."""

from __future__ import annotations

import http.server
import json
import threading
import time
import unittest
from collections.abc import Callable, Mapping
from typing import Any

from keystoneauth1 import adapter, loading, session

from nova_nodb_scheduler.nova_adapter.waiting.tenants import tenant_events, zaqar_queues
from nova_nodb_scheduler.synchronizer.waking import waiting_events
from nova_nodb_scheduler.testing import patience
from tests.functional.zaqar import zaqar_server
from tests.unit.nova_adapter.waiting.tenants import made_events

_QUEUE = "nodb-waiting"
_SECONDS = 30.0
_CLIENT = "11111111-2222-4333-8444-555555555555"


class _Case(unittest.TestCase):
    def zaqar(self, **options: Any) -> zaqar_server.Zaqar:
        made = zaqar_server.Zaqar(**options)
        made.setUp()
        self.addCleanup(made.cleanUp)
        return made

    def project(self) -> str:
        """Return a project of this test's own: servers are shared."""
        return f"project-{self.id().rpartition('.')[2]}"[:200]

    def queues(
        self, url: str, signing_key: str = "", timeout_seconds: float = 5.0
    ) -> zaqar_queues.ZaqarQueues:
        """Return queues of a Zaqar that asks for no token."""
        asking = session.Session(timeout=timeout_seconds)
        return zaqar_queues.ZaqarQueues(
            _QUEUE,
            client_id=_CLIENT,
            make_adapter=lambda auth: adapter.Adapter(asking, auth=auth, endpoint_override=url),
            auth=loading.get_plugin_loader("none").load_from_options(endpoint=url),
            signing_key=signing_key,
        )

    def sink(
        self, queues: tenant_events.TenantQueues, **options: Any
    ) -> tenant_events.TenantEvents:
        made = tenant_events.TenantEvents(queues, tenant_events.TenantEventOptions(**options))
        self.addCleanup(made.stop)
        return made

    def until(self, sink: tenant_events.TenantEvents, **wanted: float) -> Mapping[str, float]:
        """Return the figures once some of them are as high as that."""
        patience.wait_until(
            lambda: all(sink.figures()[name] >= count for name, count in wanted.items()),
            _SECONDS,
            lambda: f"{wanted}: {sink.figures()}",
        )
        return sink.figures()


class ReadingTest(_Case):
    """What a project sees of its own requests, and of others' nothing."""

    def test_a_project_polls_its_events_in_their_order_and_no_others(self) -> None:
        zaqar, project = self.zaqar(), self.project()
        sink = self.sink(self.queues(zaqar.url))
        sink.publish(made_events.event(project_id=project))
        sink.publish(made_events.event(project_id=f"{project}-of-others"))
        sink.publish(made_events.event(waiting_events.EventKind.DISPATCHED, project_id=project))
        self.until(sink, posted=3)
        told = zaqar.tenant(project, _QUEUE).messages()
        self.assertEqual(["parked", "dispatched"], [body["event"] for body in told])
        self.assertEqual(["a", "b"], told[0]["servers"])
        self.assertEqual("2026-09-21T14:23:10.000Z", told[0]["deadline"])

    def test_an_event_that_is_claimed_and_deleted_is_read_once(self) -> None:
        zaqar, project = self.zaqar(), self.project()
        sink = self.sink(self.queues(zaqar.url))
        for kind in waiting_events.EventKind:
            sink.publish(made_events.event(kind, project_id=project))
        self.until(sink, posted=5)
        one, other = zaqar.tenant(project, _QUEUE), zaqar.tenant(project, _QUEUE)
        first, second = one.claim(limit=2), other.claim(limit=20)
        self.assertEqual(["parked", "dispatched"], [m["body"]["event"] for m in first])
        self.assertEqual(["placed", "expired", "cancelled"], [m["body"]["event"] for m in second])
        self.assertEqual([204, 204], [one.delete(message) for message in first])
        self.assertEqual([], one.claim())

    def test_an_event_is_posted_to_the_url_of_a_subscription(self) -> None:
        zaqar, project = self.zaqar(), self.project()
        hook = _Hook()
        self.addCleanup(hook.stop)
        self.assertEqual(201, zaqar.tenant(project, _QUEUE).subscribe(hook.url))
        sink = self.sink(self.queues(zaqar.url))
        sink.publish(made_events.event(project_id=project, reason="no host has room"))
        patience.wait_until(lambda: hook.got, _SECONDS, "the webhook is called")
        [told] = hook.got
        self.assertEqual("parked", told["body"]["event"])
        self.assertEqual(_QUEUE, told["queue_name"])

    def test_a_burst_takes_few_posts(self) -> None:
        zaqar, project = self.zaqar(), self.project()
        sink = self.sink(self.queues(zaqar.url))
        for _ in range(500):
            sink.publish(made_events.event(project_id=project))
        self.assertEqual(500.0, self.until(sink, posted=500)["posted"])
        _, stats = zaqar.tenant(project, _QUEUE).call("GET", "/stats")
        self.assertEqual(500, stats["messages"]["total"])


class SignedTest(_Case):
    """A Zaqar behind Keystone lets a signed post through without a token; nothing else."""

    def setUp(self) -> None:
        super().setUp()
        # Nobody answers there: what gets through did without.
        self.zaqar_behind_keystone = self.zaqar(keystone="http://127.0.0.1:9/v3")

    def test_signed_with_zaqars_key_it_gets_into_any_projects_queue(self) -> None:
        url, project = self.zaqar_behind_keystone.url, self.project()
        queues = self.queues(url, zaqar_server.SECRET)
        self.assertEqual(
            zaqar_queues.Posted(), queues.post(project, [{"ttl": 60, "body": {"event": "parked"}}])
        )

    def test_signed_with_another_key_it_is_refused(self) -> None:
        queues = self.queues(self.zaqar_behind_keystone.url, "another")
        answer = queues.post(self.project(), [{"ttl": 60, "body": {}}])
        self.assertIsInstance(answer, zaqar_queues.Refused)

    def test_a_project_in_the_header_alone_is_not_believed(self) -> None:
        answer = self.queues(self.zaqar_behind_keystone.url).post("some", [{"ttl": 60, "body": {}}])
        self.assertIsInstance(answer, zaqar_queues.Unreachable)
        self.assertIn("Keystone", answer.reason)


class TroubleTest(_Case):
    def test_a_zaqar_that_is_killed_loses_events_and_takes_those_behind(self) -> None:
        zaqar, project = self.zaqar(private=True), self.project()
        sink = self.sink(self.queues(zaqar.url))
        sink.publish(made_events.event(project_id=project))
        self.until(sink, posted=1)
        zaqar.server.kill()
        began = time.monotonic()
        with self.assertLogs(tenant_events.__name__, "WARNING") as logged:
            sink.publish(made_events.event(waiting_events.EventKind.DISPATCHED, project))
            self.assertLess(time.monotonic() - began, 1.0)
            self.until(sink, unreachable=1)
        self.assertIn("see whether Zaqar and Keystone answer", logged.output[0])
        zaqar.server.start()
        sink.publish(made_events.event(waiting_events.EventKind.PLACED, project))
        self.until(sink, posted=2)
        told = zaqar.tenant(project, _QUEUE).messages()
        self.assertEqual(["parked", "placed"], [body["event"] for body in told])

    def test_a_zaqar_that_hangs_makes_nobody_wait_and_what_waits_comes_in_the_end(self) -> None:
        zaqar, project = self.zaqar(private=True), self.project()
        sink = self.sink(self.queues(zaqar.url, timeout_seconds=60.0), max_backlog=50)
        zaqar.server.pause()
        self.addCleanup(zaqar.server.resume)
        sink.publish(made_events.event(project_id=project))
        patience.wait_until(lambda: not sink.figures()["waiting"], _SECONDS, "one is under way")
        began = time.monotonic()
        with self.assertLogs(tenant_events.__name__, "WARNING"):
            for _ in range(10_050):
                sink.publish(made_events.event(project_id=project))
        self.assertLess(time.monotonic() - began, 10.0)
        told = sink.figures()
        self.assertEqual((50.0, 10_000.0), (told["waiting"], told["overflow"]))
        zaqar.server.resume()
        self.assertEqual(51.0, self.until(sink, posted=51)["posted"])

    def test_an_event_whose_answer_is_lost_comes_twice_and_has_one_id(self) -> None:
        zaqar, project = self.zaqar(private=True), self.project()
        tries: list[str] = []
        post = self.queues(zaqar.url, timeout_seconds=1.0).post

        def counted(project_id: str, messages: Any) -> zaqar_queues.Answer:
            tries.append(project_id)
            return post(project_id, messages)

        sink = self.sink(_Wrapped(counted))
        zaqar.server.pause()
        self.addCleanup(zaqar.server.resume)
        sink.publish(made_events.event(project_id=project))
        patience.wait_until(lambda: len(tries) == 2, _SECONDS, "it is tried again")
        zaqar.server.resume()
        self.until(sink, posted=1)
        told = zaqar.tenant(project, _QUEUE).messages()
        self.assertGreater(len(told), 1)
        self.assertEqual(1, len({event["id"] for event in told}))

    def test_a_store_of_zaqars_that_is_full_costs_events_alone(self) -> None:
        zaqar, project = self.zaqar(private=True), self.project()
        sink = self.sink(self.queues(zaqar.url))
        sink.publish(made_events.event(project_id=project))
        self.until(sink, posted=1)
        with zaqar.redis.client() as client:
            client.config_set("maxmemory", "1mb")
        with self.assertLogs(tenant_events.__name__, "WARNING") as logged:
            sink.publish(made_events.event(project_id=project))
            self.until(sink, unreachable=1)
        self.assertIn("Zaqar: 5", logged.output[0])
        with zaqar.redis.client() as client:
            client.config_set("maxmemory", "0")
        sink.publish(made_events.event(project_id=project))
        self.assertEqual(2.0, self.until(sink, posted=2)["posted"])


class _Wrapped:
    """Queues whose posts go through a function."""

    def __init__(self, post: Callable[[str, Any], zaqar_queues.Answer]) -> None:
        self.post = post


class _Hook:
    """Takes the POSTs of a webhook: ``url``, ``got``."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        got = self.got

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                got.append(json.loads(self.rfile.read(length)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/events"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10.0)
