# SPDX-License-Identifier: Apache-2.0
"""A real Redis server and the fixture that gives tests one of their own.

It listens on 127.0.0.1 alone, in a temporary directory, and keeps nothing over
a restart unless its options say so. It starts in milliseconds. The environment
variable NODB_REDIS_SERVER names another program than the one that is
installed, such as a Valkey's or another release's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from nova_nodb_scheduler.testing import server_processes, servers

PROGRAMS = ("redis-server", "/usr/bin/valkey-server")
CHOSEN = "NODB_REDIS_SERVER"


def find_program() -> str:
    """Return the path of the server's program, as :func:`server_processes.find_program`."""
    chosen = os.environ.get(CHOSEN)
    return server_processes.find_program(*((chosen,) if chosen else PROGRAMS))


class RedisServer(server_processes.ServerProcess):
    """A Redis; a restart empties it unless options switch persistence on."""

    def command(self) -> Sequence[str]:
        tls = self._tls_directory
        ports = ["--port", "0", "--tls-port", str(self.port)] if tls else ["--port", str(self.port)]
        if tls:
            ports += ["--tls-cert-file", f"{tls}/server.pem", "--tls-key-file", f"{tls}/server.key"]
            ports += ["--tls-ca-cert-file", f"{tls}/ca.pem", "--tls-auth-clients", "optional"]
        where = ("--bind", "127.0.0.1", *ports, "--dir", str(self.directory))
        quiet = ("--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0")
        return (find_program(), *where, *quiet, *self._options)

    def answers(self) -> bool:
        import redis

        # Any answer will do, a refusal for want of credentials, too.
        try:
            with self.client() as client:
                client.ping()
        except (redis.BusyLoadingError, redis.TimeoutError):
            return False
        except (redis.AuthenticationError, redis.ResponseError):
            return True
        except redis.ConnectionError:
            return False
        return True

    def client(self, **arguments: Any) -> Any:
        """Return redis-py's own client, which knows nothing of the driver's protocol."""
        import redis
        from redis import backoff, retry

        if self._tls_directory:
            arguments |= {"ssl": True, "ssl_ca_certs": f"{self._tls_directory}/ca.pem"}
        # Its own retries take seconds while the server starts.
        arguments["retry"] = retry.Retry(backoff.NoBackoff(), 0)
        return redis.Redis(host="127.0.0.1", port=self.port, socket_timeout=5.0, **arguments)

    def flush_all(self) -> None:
        """Drop every key, as an operator does by mistake."""
        with self.client() as client:
            client.flushall()


class Redis(servers.ServerFixture):
    """A Redis of its own: ``server``, ``address``, ``url``.

    :param options: added to its command line
    """

    def __init__(self, *options: str, tls_directory: str = "") -> None:
        self._options = options
        self._tls_directory = tls_directory

    def require_programs(self) -> None:
        find_program()

    def _setUp(self) -> None:  # noqa: N802, as fixtures names it
        self.server = self.own(RedisServer(self._options, self._tls_directory))
        self.address = self.server.address
        self.url = f"{'rediss' if self._tls_directory else 'redis'}://{self.address}/0"
