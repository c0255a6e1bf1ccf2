# SPDX-License-Identifier: Apache-2.0
"""A real Zaqar on a Redis, and a Keystone for it, in a virtual environment of their own.

``tools/test_runner`` makes that environment and names it in NODB_ZAQAR_VENV. Where the
variable is not set, the programs are looked for on PATH.
"""

from __future__ import annotations

import configparser
import json
import os
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler.testing import redis_server, server_processes, servers

CHOSEN = "NODB_ZAQAR_VENV"
#: Zaqar's ``[signed_url] secret_key``.
SECRET = "a-secret-of-zaqar"


def program(name: str) -> str:
    """Return the path of a program of Zaqar's environment, as the fixtures of servers do."""
    chosen = os.environ.get(CHOSEN)
    return server_processes.find_program(*([f"{chosen}/bin/{name}"] if chosen else [name]))


def _write(path: str | os.PathLike[str], sections: Mapping[str, Mapping[str, object]]) -> None:
    parser = configparser.RawConfigParser(default_section="")
    for name, options in sections.items():
        parser[name] = {option: str(value) for option, value in options.items()}
    with open(path, "w") as output:
        parser.write(output)


class ZaqarServer(server_processes.ServerProcess):
    """A Zaqar by its own server, one request at a time.

    :param redis: address of the one that holds messages, queues and subscriptions
    :param keystone: URL of the Keystone that it asks, which may be nobody's; empty: X-Project-Id
        is believed
    :param transport: ``wsgi`` or ``websocket``
    """

    def __init__(self, redis: str, keystone: str = "", transport: str = "wsgi") -> None:
        super().__init__()
        self._redis = redis
        self._keystone = keystone
        self._transport = transport

    def initialize(self) -> None:
        store = {
            "uri": f"redis://{self._redis}?socket_timeout=5",
            # A store that is away is no reason to wait.
            "max_reconnect_attempts": 1,
            "reconnect_sleep": 0.1,
        }
        place = {"bind": "127.0.0.1", "port": self.port, "notification_bind": "127.0.0.1"}
        sections: dict[str, dict[str, object]] = {
            "DEFAULT": {"auth_strategy": "keystone" if self._keystone else ""},
            "drivers": {
                "transport": self._transport,
                "message_store": "redis",
                "management_store": "redis",
            },
            "drivers:message_store:redis": store,
            "drivers:management_store:redis": store,
            f"drivers:transport:{self._transport}": place,
            # Without it Zaqar tells no subscriber of anything.
            "storage": {"message_pipeline": "zaqar.notification.notifier"},
            "signed_url": {"secret_key": SECRET},
        }
        if self._keystone:
            sections["keystone_authtoken"] = {
                **password_options(self._keystone, "zaqar"),
                "www_authenticate_uri": self._keystone,
            }
        _write(self.directory / "zaqar.conf", sections)

    def command(self) -> Sequence[str]:
        return (program("zaqar-server"), "--config-file", str(self.directory / "zaqar.conf"))

    def answers(self) -> bool:
        # The WebSocket server answers an ordinary request, too, by a refusal.
        try:
            with urllib.request.urlopen(f"http://{self.address}/", timeout=5):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False


def password_options(keystone: str, user: str, project: str = "service") -> dict[str, object]:
    """Return a service user's options; users have their names as passwords."""
    return {
        "auth_type": "password",
        "auth_url": keystone,
        "username": user,
        "password": user,
        "user_domain_name": "Default",
        "project_name": project,
        "project_domain_name": "Default",
    }


#: Keystone's application would read the arguments of whatever server it runs in as its own.
_KEYSTONE = """
import os, socketserver, sys
from wsgiref import simple_server
os.environ["OS_KEYSTONE_CONFIG_DIR"], port = sys.argv[1:]
del sys.argv[1:]
from keystone.wsgi.api import application
class Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True
simple_server.make_server("127.0.0.1", int(port), application, Server).serve_forever()
"""


class KeystoneServer(server_processes.ServerProcess):
    """A Keystone on SQLite; its user ``admin`` has the password ``admin``.

    :ivar url: of its API, version 3
    """

    @property
    def url(self) -> str:
        return f"http://{self.address}/v3"

    def initialize(self) -> None:
        sections: dict[str, dict[str, object]] = {
            "database": {"connection": f"sqlite:///{self.directory / 'keystone.db'}"},
            "fernet_tokens": {"key_repository": self.directory / "tokens"},
            "credential": {"key_repository": self.directory / "credentials"},
            "identity": {"password_hash_rounds": 4},
        }
        _write(self.directory / "keystone.conf", sections)
        manage = (
            program("keystone-manage"),
            *("--config-file", str(self.directory / "keystone.conf")),
        )
        owner = ("--keystone-user", str(os.getuid()), "--keystone-group", str(os.getgid()))
        self.run(*manage, "db_sync")
        self.run(*manage, "fernet_setup", *owner)
        self.run(
            *manage,
            *("bootstrap", "--bootstrap-password", "admin"),
            *("--bootstrap-public-url", self.url, "--bootstrap-internal-url", self.url),
        )

    def command(self) -> Sequence[str]:
        return (program("python"), "-c", _KEYSTONE, str(self.directory), str(self.port))

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.url, timeout=5):
                return True
        except OSError:
            return False


class Zaqar(servers.ServerFixture):
    """A Zaqar, its Redis and, of the process or of its own: ``server``, ``redis``, ``url``.

    :param private: it may be hurt
    :param keystone: see :class:`ZaqarServer`
    """

    _shared: dict[str, tuple[redis_server.RedisServer, ZaqarServer]] = {}

    def __init__(self, private: bool = False, keystone: str = "") -> None:
        self._private = private
        self._keystone = keystone

    def require_programs(self) -> None:
        redis_server.find_program()
        program("zaqar-server")

    def _setUp(self) -> None:
        if self._private:
            self.redis = self.own(redis_server.RedisServer())
            self.server = self.own(ZaqarServer(self.redis.address, self._keystone))
        else:
            if self._keystone not in self._shared:
                redis = servers.started(redis_server.RedisServer())
                server = servers.started(ZaqarServer(redis.address, self._keystone))
                self._shared[self._keystone] = redis, server
            self.redis, self.server = self._shared[self._keystone]
        self.url = f"http://{self.server.address}"

    def tenant(self, project_id: str, queue: str) -> Tenant:
        """Return a reader of a project's queue; Zaqar must have no Keystone."""
        return Tenant(self.url, queue, {"X-Project-Id": project_id})


@attrs.frozen
class Tenant:
    """Reads a queue over Zaqar's API, as a tenant's program does.

    :param headers: what says which project it is of
    """

    url: str
    queue: str
    headers: Mapping[str, str]
    client_id: str = attrs.field(factory=lambda: str(uuid.uuid4()))

    def messages(self) -> list[dict[str, Any]]:
        """Return the bodies of all messages that nobody has claimed."""
        _, answer = self.call("GET", "/messages?limit=20")
        return [message["body"] for message in answer["messages"]] if answer else []

    def claim(self, limit: int = 20) -> list[dict[str, Any]]:
        """Claim messages for a minute."""
        _, answer = self.call("POST", f"/claims?limit={limit}", {"ttl": 60, "grace": 60})
        return answer["messages"] if answer else []

    def subscribe(self, url: str) -> int:
        """Have messages posted to a URL; returns the status."""
        return self.call("POST", "/subscriptions", {"subscriber": url, "ttl": 600})[0]

    def delete(self, message: Mapping[str, Any]) -> int:
        """Delete a claimed message; returns the status."""
        return self._request("DELETE", self.url + message["href"])[0]

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Return the status and the answer's JSON, None where there is none."""
        return self._request(method, f"{self.url}/v2/queues/{self.queue}{path}", body)

    def _request(self, method: str, url: str, body: object = None) -> tuple[int, Any]:
        asked = urllib.request.Request(
            url,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Client-ID": self.client_id,
                "Content-Type": "application/json",
                "Accept": "application/json",
                **self.headers,
            },
        )
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            with error:
                return error.code, None
