# SPDX-License-Identifier: Apache-2.0
"""A Zaqar behind a real Keystone: who gets into whose queue, and the examples of the documents."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import nova.conf
from keystoneauth1 import adapter, session
from keystoneauth1.identity import v3

from nova_nodb_scheduler.conf import nodb, queue_options, zaqar_options
from nova_nodb_scheduler.nova_adapter import assembly
from nova_nodb_scheduler.nova_adapter.waiting.tenants import tenant_events, zaqar_queues
from nova_nodb_scheduler.testing import patience, servers
from tests.functional.zaqar import zaqar_server
from tests.unit.nova_adapter.waiting.tenants import made_events

CONF = nova.conf.CONF
_QUEUE = "nodb-waiting"
_SECONDS = 60.0
_EXAMPLES = pathlib.Path(__file__).parents[3] / "doc/source/user/examples"
_MESSAGE = {"ttl": 60, "body": {"event": "parked"}}


class Cloud:
    """A Keystone with two domains, a Zaqar behind it, and users of both.

    ``nodb`` has a role, inherited, on all projects of the domain Default; ``tenant`` has
    projects in both domains.
    """

    def __init__(self) -> None:
        self.keystone = servers.started(zaqar_server.KeystoneServer())
        self.zaqar = zaqar_server.Zaqar(keystone=self.keystone.url)
        self.zaqar.setUp()
        admin = v3.Password(
            **{**self._user("admin"), "project_name": "admin"},
            project_domain_name="Default",
        )
        self._identity = adapter.Adapter(
            session.Session(auth=admin),
            service_type="identity",
            endpoint_override=self.keystone.url,
        )
        domain = self._made("domain", name="another")
        service = self._made("project", name="service", domain_id="default")
        self.project = self._made("project", name="project", domain_id="default")
        self.outside = self._made("project", name="outside", domain_id=domain)
        roles = {role["name"]: role["id"] for role in self._identity.get("/roles").json()["roles"]}
        events = self._made("role", name="nodb_events")
        users = {
            name: self._made("user", name=name, password=name, domain_id="default")
            for name in ("zaqar", "nodb", "tenant")
        }
        for project, user, role in (
            (service, "zaqar", roles["admin"]),
            (service, "nodb", roles["admin"]),
            (self.project, "tenant", roles["member"]),
            (self.outside, "tenant", roles["member"]),
        ):
            self._identity.put(f"/projects/{project}/users/{users[user]}/roles/{role}")
        self._identity.put(
            f"/OS-INHERIT/domains/default/users/{users['nodb']}/roles/{events}/inherited_to_projects"
        )
        messaging = self._made("service", name="zaqar", type="messaging")
        self._made("endpoint", service_id=messaging, interface="public", url=self.zaqar.url)

    def _user(self, name: str) -> dict[str, Any]:
        return {
            "auth_url": self.keystone.url,
            "username": name,
            "password": name,
            "user_domain_name": "Default",
        }

    def _made(self, kind: str, **fields: object) -> str:
        answer = self._identity.post(f"/{kind}s", json={kind: fields})
        return str(answer.json()[kind]["id"])

    def token(self, user: str, project: str) -> str:
        auth = v3.Password(**self._user(user), project_id=project)
        return str(auth.get_token(session.Session()))

    def tenant(self, project: str) -> zaqar_server.Tenant:
        """Return the user ``tenant``, who reads a project's queue."""
        headers = {"X-Auth-Token": self.token("tenant", project)}
        return zaqar_server.Tenant(self.zaqar.url, _QUEUE, headers)


_clouds: list[Cloud] = []


class _Case(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        zaqar_server.program("keystone-manage")
        if not _clouds:
            _clouds.append(Cloud())
        self.cloud = _clouds[0]

    def queues(self, **options: Any) -> zaqar_queues.ZaqarQueues:
        """Return what the plugin makes of a configuration."""
        nodb.register_opts(CONF)
        CONF.set_override("zaqar_queue", _QUEUE, queue_options.GROUP)
        self.addCleanup(CONF.clear_override, "zaqar_queue", queue_options.GROUP)
        written = {**zaqar_server.password_options(self.cloud.keystone.url, "nodb"), **options}
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
            file.write(f"[{zaqar_options.GROUP}]\n")
            file.writelines(f"{name} = {value}\n" for name, value in written.items())
            file.flush()
            CONF([], project="nova", default_config_files=[file.name])
        self.addCleanup(CONF.reset)
        made = assembly.Plugin(CONF).tenant_events
        assert made is not None
        return made._queues  # type: ignore[return-value]


class KeystoneTest(_Case):
    """Whom Zaqar lets into whose queue."""

    def test_a_role_inherited_on_the_domain_opens_the_queues_of_all_its_projects(self) -> None:
        answer = self.queues().post(self.cloud.project, [_MESSAGE])
        self.assertEqual(zaqar_queues.Posted(), answer)
        self.assertIn({"event": "parked"}, self.cloud.tenant(self.cloud.project).messages())

    def test_a_project_of_a_domain_without_the_role_refuses_and_others_go_on(self) -> None:
        queues = self.queues()
        refused = queues.post(self.cloud.outside, [_MESSAGE])
        self.assertIsInstance(refused, zaqar_queues.Refused)
        self.assertIn("Keystone", refused.reason)
        self.assertEqual(zaqar_queues.Posted(), queues.post(self.cloud.project, [_MESSAGE]))

    def test_an_administrators_token_of_another_project_does_not_open_a_tenants_queue(self) -> None:
        """So X-Project-Id is of no use behind Keystone."""
        headers = {
            "X-Auth-Token": self.cloud.token("nodb", self._service()),
            "X-Project-Id": self.cloud.outside,
        }
        admin = zaqar_server.Tenant(self.cloud.zaqar.url, _QUEUE, headers)
        status, _ = admin.call("POST", "/messages", {"messages": [_MESSAGE]})
        self.assertEqual(201, status)
        self.assertEqual([], self.cloud.tenant(self.cloud.outside).messages())

    def test_a_signature_opens_the_queue_of_any_project(self) -> None:
        queues = self.queues(signing_key=zaqar_server.SECRET)
        self.assertEqual(zaqar_queues.Posted(), queues.post(self.cloud.outside, [_MESSAGE]))
        other = zaqar_server.Tenant(
            self.cloud.zaqar.url,
            _QUEUE,
            {"X-Auth-Token": self.cloud.token("tenant", self.cloud.outside)},
        )
        claimed = other.claim()
        self.assertEqual([{"event": "parked"}], [message["body"] for message in claimed])
        for message in claimed:
            other.delete(message)

    def test_a_wrong_password_is_refused(self) -> None:
        answer = self.queues(password="wrong").post(self.cloud.project, [_MESSAGE])
        self.assertIsInstance(answer, zaqar_queues.Refused)

    def test_a_keystone_that_is_away_is_unreachable(self) -> None:
        answer = self.queues(auth_url="http://127.0.0.1:9/v3").post(self.cloud.project, [_MESSAGE])
        self.assertIsInstance(answer, zaqar_queues.Unreachable)

    def _service(self) -> str:
        found = self.cloud._identity.get("/projects", params={"name": "service"}).json()
        return str(found["projects"][0]["id"])


class ExamplesTest(_Case):
    """Each example says an event that is told while it runs."""

    def told(
        self, command: Sequence[str], variables: Mapping[str, str], queue: str, ready: str = ""
    ) -> str:
        """Return what an example says of an event."""
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, **variables}
            )

            def said() -> str:
                output.seek(0)
                return output.read()

            try:
                if ready:
                    patience.wait_until(lambda: ready in said(), _SECONDS, said)
                self._publish(queue)
                patience.wait_until(
                    lambda: "a b no host has room" in said() or process.poll() is not None,
                    _SECONDS,
                    said,
                )
                return said()
            finally:
                process.kill()
                process.wait()

    def _publish(self, queue: str) -> None:
        queues = self.queues()
        queues._queue = queue
        sink = tenant_events.TenantEvents(queues, tenant_events.TenantEventOptions())
        sink.publish(made_events.event(project_id=self.cloud.project))
        patience.wait_until(lambda: sink.figures()["posted"], _SECONDS, sink.figures)
        sink.stop()

    def test_polling(self) -> None:
        queue = f"q-{uuid.uuid4().hex}"
        said = self.told(
            [sys.executable, str(_EXAMPLES / "waiting_poll.py"), queue],
            {
                "OS_AUTH_URL": self.cloud.keystone.url,
                "OS_USERNAME": "tenant",
                "OS_PASSWORD": "tenant",
                "OS_USER_DOMAIN_NAME": "Default",
                "OS_PROJECT_ID": self.cloud.project,
            },
            queue,
        )
        self.assertIn("parked a b no host has room", said)

    def test_a_websocket(self) -> None:
        server = zaqar_server.ZaqarServer(
            self.cloud.zaqar.redis.address, self.cloud.keystone.url, transport="websocket"
        )
        self.addCleanup(server.destroy)
        server.initialize()
        server.start()
        queue = f"q-{uuid.uuid4().hex}"
        said = self.told(
            [
                *(zaqar_server.program("python"), str(_EXAMPLES / "waiting_websocket.py")),
                *(f"ws://{server.address}", self.cloud.project, queue),
            ],
            {"OS_TOKEN": self.cloud.token("tenant", self.cloud.project)},
            queue,
            ready="subscribed",
        )
        self.assertIn("parked a b no host has room", said)
