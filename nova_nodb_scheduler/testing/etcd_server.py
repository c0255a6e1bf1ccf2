# SPDX-License-Identifier: Apache-2.0
"""A real etcd of one member, and the fixture that gives tests a part of one.

It listens on 127.0.0.1 alone, in a temporary directory. It takes half a second
to start, so one serves a whole test process, and each fixture has a prefix of
its own; a test that hurts its server asks for a private one.
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import threading
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from nova_nodb_scheduler.testing import server_processes, servers

PROGRAM = "etcd"
#: Of the history; without it the driver warns at each start.
RETENTION = ("--auto-compaction-retention=1h",)


class EtcdServer(server_processes.ServerProcess):
    """An etcd, whose data outlive a restart."""

    name = "one"
    #: Names and peer URLs of the cluster's members; None: it is alone.
    members: Mapping[str, str] | None = None

    def __init__(self, options: Sequence[str] = (), tls_directory: str = "") -> None:
        super().__init__(options, tls_directory)
        self._peer_port = server_processes.free_port()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls_directory else 'http'}://{self.address}"

    @property
    def peer_url(self) -> str:
        return f"http://127.0.0.1:{self._peer_port}"

    def command(self) -> Sequence[str]:
        peer = self.peer_url
        members = self.members or {self.name: peer}
        tls = self._tls_directory
        certificates = (f"--cert-file={tls}/server.pem", f"--key-file={tls}/server.key")
        return (
            server_processes.find_program(PROGRAM),
            f"--name={self.name}",
            f"--data-dir={self.directory / 'data'}",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={','.join('='.join(each) for each in members.items())}",
            # Alone it need not wait for others' votes.
            "--heartbeat-interval=50",
            "--election-timeout=250",
            "--logger=zap",
            "--log-level=warn",
            *(certificates if tls else ()),
            *self._options,
        )

    def answers(self) -> bool:
        if self._tls_directory:
            return _listens(self.port)
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5.0) as answer:
                return bool(json.load(answer).get("health") == "true")
        except (OSError, ValueError):
            return False

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request to the gateway, without TLS and credentials.

        :raises urllib.error.HTTPError: it is refused
        """
        request = urllib.request.Request(
            f"{self.url}/v3{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10.0) as answer:
            return dict(json.load(answer))

    def put(self, key: str, value: bytes = b"") -> int:
        """Put a key past any driver; returns the revision."""
        reply = self.post("/kv/put", {"key": encode(key.encode()), "value": encode(value)})
        return int(reply["header"]["revision"])

    def compact(self, revision: int = 0) -> int:
        """Forget the history below a revision, by default all of it; returns the revision."""
        if not revision:
            reply = self.post("/kv/range", {"key": encode(b"x")})
            revision = int(reply["header"]["revision"])
        self.post("/kv/compaction", {"revision": str(revision), "physical": True})
        return revision

    def empty(self) -> None:
        """Take the data away while it is stopped: a new cluster begins at the next start."""
        shutil.rmtree(self.directory / "data")


class Etcd(servers.ServerFixture):
    """A prefix in an etcd: ``url``, ``key_prefix``, ``server``.

    :param options: of the command line; these make the server a private one
    :param private: the test stops, pauses or compacts the server
    """

    def __init__(self, *options: str, private: bool = False, tls_directory: str = "") -> None:
        self._options = options
        self._private = private or bool(options) or bool(tls_directory)
        self._tls_directory = tls_directory

    def require_programs(self) -> None:
        server_processes.find_program(PROGRAM)

    def _setUp(self) -> None:  # noqa: N802, as fixtures names it
        self.key_prefix = f"nodb-{uuid.uuid4().hex[:12]}"
        if self._private:
            options = self._options or RETENTION
            self.server = self.own(EtcdServer(options, self._tls_directory))
        else:
            self.server = servers.shared(EtcdServer, _begin)
        self.url = self.server.url


class EtcdCluster(servers.ServerFixture):
    """Three members of one cluster: ``servers``, ``urls``."""

    def require_programs(self) -> None:
        server_processes.find_program(PROGRAM)

    def _setUp(self) -> None:  # noqa: N802, as fixtures names it
        self.servers = [EtcdServer(RETENTION) for _ in range(3)]
        members = {f"m{number}": server.peer_url for number, server in enumerate(self.servers)}
        for name, server in zip(members, self.servers, strict=True):
            self.addCleanup(server.destroy)
            server.name, server.members = name, members
        # One alone does not answer: it needs a majority.
        threads = [threading.Thread(target=server.start) for server in self.servers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.urls = tuple(server.url for server in self.servers)

    def leader(self) -> EtcdServer:
        """Return the member that leads, as the first one that answers says."""
        for server in self.servers:
            try:
                leader = server.post("/maintenance/status", {})["leader"]
            except OSError:
                continue
            for each in self.servers:
                if each.post("/maintenance/status", {})["header"]["member_id"] == leader:
                    return each
        raise server_processes.ServerFailed("no member of the etcd cluster answers")


def _begin() -> EtcdServer:
    return servers.started(EtcdServer(RETENTION))


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 5.0).close()
    except OSError:
        return False
    return True


def encode(text: bytes) -> str:
    """Return a key or value as the gateway wants it."""
    return base64.b64encode(text).decode()
