# SPDX-License-Identifier: Apache-2.0
"""What is asked of Zaqar, what its answers mean, and which configurations cannot work."""

from __future__ import annotations

import datetime
import http.server
import json
import pathlib
import tempfile
import threading
import unittest
from typing import Any

from keystoneauth1 import adapter, loading, session
from oslo_config import cfg

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.conf import nodb, zaqar_options
from nova_nodb_scheduler.nova_adapter import assembly
from nova_nodb_scheduler.nova_adapter.waiting.tenants import zaqar_queues

_CLIENT = "11111111-2222-4333-8444-555555555555"
_NOW = datetime.datetime(2026, 11, 24, 12, 0, tzinfo=datetime.UTC)


class AnswersTest(unittest.TestCase):
    """A server that answers as it is told."""

    def setUp(self) -> None:
        super().setUp()
        self.status = 201
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        case = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                text = self.rfile.read(int(self.headers["Content-Length"]))
                case.asked.append((self.path, dict(self.headers), json.loads(text)))
                self.send_response(case.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"

    def queues(self, **options: Any) -> zaqar_queues.ZaqarQueues:
        asking = session.Session(timeout=10.0)
        none = loading.get_plugin_loader("none").load_from_options(endpoint=self.url)
        return zaqar_queues.ZaqarQueues(
            "nodb-waiting",
            client_id=_CLIENT,
            make_adapter=lambda auth: adapter.Adapter(asking, auth=auth, service_type="messaging"),
            auth=none,
            now=lambda: _NOW,
            **options,
        )

    def test_a_post_names_the_project_the_client_and_the_messages(self) -> None:
        message = {"ttl": 60, "body": {"event": "parked"}}
        self.assertEqual(zaqar_queues.Posted(), self.queues().post("project", [message]))
        [(path, headers, body)] = self.asked
        self.assertEqual("/v2/queues/nodb-waiting/messages", path)
        self.assertEqual(
            ("project", _CLIENT, "application/json"),
            tuple(headers[name] for name in ("X-Project-Id", "Client-ID", "Content-Type")),
        )
        self.assertEqual({"messages": [message]}, body)

    def test_what_is_signed_carries_no_token_and_ends(self) -> None:
        self.queues(signing_key="key").post("project", [])
        [(path, headers, _)] = self.asked
        self.assertNotIn("X-Auth-Token", headers)
        self.assertEqual(
            (path, "POST", "2026-11-24T12:15:00"),
            tuple(headers[f"URL-{name}"] for name in ("Paths", "Methods", "Expires")),
        )

    def test_a_signature_is_of_one_project_and_one_moment(self) -> None:
        def signature(key: str, project: str, now: datetime.datetime) -> str:
            return zaqar_queues.signed_headers(key, project, "/v2/queues/q/messages", now)[
                "URL-Signature"
            ]

        later = _NOW + datetime.timedelta(seconds=1)
        cases = [("k", "one", _NOW), ("l", "one", _NOW), ("k", "two", _NOW), ("k", "one", later)]
        self.assertEqual(4, len({signature(*case) for case in cases}))

    def test_only_what_may_pass_is_worth_another_try(self) -> None:
        wanted = {
            400: zaqar_queues.Refused,
            401: zaqar_queues.Refused,
            403: zaqar_queues.Refused,
            404: zaqar_queues.Refused,
            200: zaqar_queues.Refused,
            429: zaqar_queues.Unreachable,
            500: zaqar_queues.Unreachable,
            503: zaqar_queues.Unreachable,
        }
        got = {}
        for self.status in wanted:
            got[self.status] = type(self.queues().post("project", []))
        self.assertEqual(wanted, got)

    def test_nobody_at_the_address_is_unreachable(self) -> None:
        self.url = "http://127.0.0.1:9"
        self.assertIsInstance(self.queues().post("project", []), zaqar_queues.Unreachable)

    def test_each_project_has_an_auth_of_its_own_and_few_are_kept(self) -> None:
        made: list[str] = []

        def scope(project_id: str) -> Any:
            made.append(project_id)
            return loading.get_plugin_loader("none").load_from_options(endpoint=self.url)

        queues = self.queues(scope=scope)
        for project in ("one", "two", "one"):
            queues.post(project, [])
        self.assertEqual(["one", "two"], made)
        for number in range(zaqar_queues.MAX_SCOPES):
            queues._adapter(f"p{number}")
        queues._adapter("one")
        self.assertEqual("one", made[-1])
        self.assertEqual(zaqar_queues.MAX_SCOPES, len(queues._adapters))


class ConfigurationTest(unittest.TestCase):
    def plugin(self, text: str, queue: str = "nodb-waiting") -> assembly.Plugin:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        path = pathlib.Path(directory.name, "nova.conf")
        path.write_text(f"[nodb_queue]\nzaqar_queue = {queue}\n[nodb_queue_zaqar]\n{text}")
        conf = cfg.ConfigOpts()
        conf([], project="nova", default_config_files=[str(path)], default_config_dirs=[])
        nodb.register_opts(conf)
        return assembly.Plugin(conf)

    def refusal(self, text: str) -> str:
        with self.assertRaises(errors.ConfigurationError) as caught:
            _ = self.plugin(text).tenant_events
        return str(caught.exception)

    def test_what_the_sample_names_is_what_is_read_with_the_same_defaults(self) -> None:
        read = {
            option.dest: option.default
            for option in (
                *zaqar_options.ZAQAR_OPTS,
                *loading.get_auth_plugin_conf_options("password"),
            )
        }
        named = {option.dest: option.default for option in zaqar_options.SAMPLE_OPTS}
        self.assertEqual(named, {name: read[name] for name in named if name in read})

    def test_nobody_is_told_by_default(self) -> None:
        self.assertIsNone(self.plugin("", queue="").tenant_events)

    def test_a_queue_without_a_way_to_it_is_refused_by_name(self) -> None:
        self.assertIn("[nodb_queue_zaqar] auth_type", self.refusal(""))
        self.assertIn("endpoint_override", self.refusal("signing_key = key\n"))

    def test_an_auth_that_does_not_exist_or_lacks_an_option_is_refused(self) -> None:
        self.assertIn("keystoneauth says", self.refusal("auth_type = passwort\n"))
        self.assertIn("keystoneauth says", self.refusal("auth_type = v3token\n"))

    def test_a_refusal_does_not_tell_the_key(self) -> None:
        self.assertNotIn("hush", self.refusal("signing_key = hush\n"))

    def test_a_service_user_has_a_token_of_each_project(self) -> None:
        text = "auth_type = password\nauth_url = http://keystone/v3\nusername = nodb\n"
        text += "password = hush\nuser_domain_name = Default\nproject_name = service\n"
        events = self.plugin(text).tenant_events
        assert events is not None
        queues: Any = events._queues
        plugin = queues._scope("tenant")
        self.assertEqual("tenant", plugin._project_id)
        self.assertIsNone(self.queues_of(f"{text}signing_key = key\n")._scope)
        self.assertNotIn("hush", repr(queues))

    def queues_of(self, text: str) -> Any:
        events = self.plugin(text).tenant_events
        assert events is not None
        return events._queues

    def test_without_keystone_nobody_asks_for_a_token(self) -> None:
        self.assertIsNone(self.queues_of("auth_type = none\nendpoint = http://zaqar\n")._scope)
        self.assertIsNone(
            self.queues_of("signing_key = key\nendpoint_override = http://zaqar\n")._auth
        )
