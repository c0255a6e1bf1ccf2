# SPDX-License-Identifier: Apache-2.0
"""The edge to Redis: one pool, a time-out on every call, errors translated once.

Connections are handled one by one, below redis-py's own client: that would
send a script again whose reply was lost, and could not say whether a request
was sent at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import redis
from redis import backoff, exceptions, retry

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers.redis import options as options_module
from nova_nodb_scheduler.synchronizer.drivers.redis import scripts

#: More than the threads of any process of ours.
MAX_CONNECTIONS = 10_000

#: Answers of the server; what was asked was not carried out.
_ANSWERS = (
    redis.ResponseError,
    redis.AuthenticationError,
    exceptions.AuthorizationError,
    redis.BusyLoadingError,
)
#: redis-py drops the word an answer begins with where it has a class for it.
_WORDS: dict[type[Exception], str] = {
    exceptions.OutOfMemoryError: "OOM",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.MasterDownError: "MASTERDOWN",
    redis.BusyLoadingError: "LOADING",
}
#: What to do about an answer, by a word of it.
_REMEDIES = {
    "OOM": "the server is full and refuses writes, nothing was lost: raise its maxmemory",
    "READONLY": "the server is a replica: point [nodb_redis] url at the primary",
    "MASTERDOWN": "the server is a replica: point [nodb_redis] url at the primary",
    "MISCONF": "the server cannot write its data to disk and refuses writes: see its log",
    "NOREPLICAS": "the server misses replicas (min-replicas-to-write) and refuses writes",
    "LOADING": "the server is reading its data",
}


class ReplyLost(Exception):
    """A request was sent whole and not answered: it may have been carried out."""


class Connection:
    """A pool of connections to one server; any thread may call."""

    def __init__(self, settings: options_module.RedisOptions) -> None:
        self._settings = settings
        self._address = settings.address()
        self._pool: Any = None
        self.label = f"redis at {self._address}"

    def open(self) -> None:
        """Make the pool; connections are made as needed. Idempotent."""
        if self._pool is None:
            self._pool = redis.ConnectionPool(**self._arguments())

    def close(self) -> None:
        """Drop all idle connections; those in use end with their calls."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.disconnect(inuse_connections=False)

    def ask(self, *command: Any) -> Any:
        """Send a command that changes nothing, and return its reply.

        A connection that breaks is tried once more: after a restart of the
        server every idle one is broken, which is no news to the caller. A
        time-out is not, for that would double it.

        :raises BackendUnavailable: there was no reply, or a refusal
        """
        return self._asked(lambda: self.send(*command))

    def read(self, script: scripts.Script, keys: Sequence[bytes], *arguments: Any) -> Any:
        """Run a script that may run twice; as :meth:`ask`."""
        return self._asked(lambda: self.run(script, keys, *arguments))

    def information(self, section: str) -> dict[str, str]:
        """Return a section of ``INFO``."""
        lines = self.ask("INFO", section).decode(errors="replace").splitlines()
        pairs = (line.partition(":") for line in lines if ":" in line and line[0] != "#")
        return {name: value for name, _, value in pairs}

    def run(
        self,
        script: scripts.Script,
        keys: Sequence[bytes],
        *arguments: Any,
        on_sent: Callable[[], None] = lambda: None,
    ) -> Any:
        """Run a script once.

        :param on_sent: called between sending and reading the reply
        :raises BackendUnavailable: it was not carried out
        :raises ReplyLost: nobody knows whether it was
        """
        rest = (len(keys), *keys, *arguments)
        try:
            return self.send("EVALSHA", script.sha, *rest, on_sent=on_sent)
        except errors.BackendUnavailable as error:
            if not isinstance(error.__cause__, exceptions.NoScriptError):
                raise
        # A server that was restarted knows no scripts; it ran nothing.
        return self.send("EVAL", script.text, *rest, on_sent=on_sent)

    def send(self, *command: Any, on_sent: Callable[[], None] = lambda: None) -> Any:
        """Send a command once; as :meth:`run`."""
        with self._connected() as connected:
            try:
                # What could not be sent whole, the server does not carry out.
                connected.send_command(*command)
            except (redis.RedisError, OSError) as error:
                raise self._failed(error) from error
            on_sent()
            try:
                return connected.read_response()
            except _ANSWERS as error:
                raise self._failed(error) from error
            except (redis.RedisError, OSError) as error:
                connected.disconnect()
                raise ReplyLost(str(error) or type(error).__name__) from error

    def unavailable(self, reason: object) -> errors.BackendUnavailable:
        """Return the exception that tells of this server's failure."""
        return errors.BackendUnavailable(self.label, str(reason) or type(reason).__name__)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        pool = self._pool
        if pool is None:
            raise self.unavailable("the client is not open")
        try:
            # The name is a required argument up to redis-py 5.2, and unused.
            connected = pool.get_connection(*_NAMED)
        except (redis.RedisError, OSError) as error:
            raise self._failed(error, self._connecting_hint(error)) from error
        done = False
        try:
            yield connected
            done = True
        except errors.BackendUnavailable:
            done = True
            raise
        finally:
            if not done or pool is not self._pool:
                # A reply may still come, or the pool was closed meanwhile.
                connected.disconnect()
            pool.release(connected)

    def _asked(self, call: Callable[[], Any]) -> Any:
        for last in (False, True):
            try:
                return call()
            except ReplyLost as error:
                if last or isinstance(error.__cause__, redis.TimeoutError):
                    raise self.unavailable(error) from error
            except errors.BackendUnavailable as error:
                if last or type(error.__cause__) is not redis.ConnectionError:
                    raise
        raise AssertionError("unreachable")

    def _connecting_hint(self, error: Exception) -> str:
        """Return what may be wrong where a port answers, and not in our language."""
        if self._address.tls and "handshake" in str(error.__context__):
            return "; does the port speak TLS?"
        if not self._address.tls and "while reading" in str(error):
            return "; if the port speaks TLS, begin [nodb_redis] url with rediss://"
        return ""

    def _failed(self, error: Exception, hint: str = "") -> errors.BackendUnavailable:
        text = f"{_WORDS.get(type(error), '')} {error}".strip() or type(error).__name__
        words = text.replace("-", " ").split()
        for word, remedy in _REMEDIES.items():
            if word in words:
                return self.unavailable(f"{remedy} ({text})")
        return self.unavailable(text + hint)

    def _arguments(self) -> dict[str, Any]:
        settings, address = self._settings, self._address
        arguments: dict[str, Any] = {
            "username": settings.username,
            "password": settings.password,
            "db": address.database,
            "socket_timeout": settings.timeout_seconds,
            # Its own retries would run a script twice, or wait for longer.
            "retry": retry.Retry(backoff.NoBackoff(), 0),
            "health_check_interval": 0,
            "max_connections": MAX_CONNECTIONS,
            "protocol": 2,
        }
        if address.path:
            return arguments | {
                "connection_class": redis.UnixDomainSocketConnection,
                "path": address.path,
            }
        arguments |= {
            "connection_class": redis.Connection,
            "host": address.host,
            "port": address.port,
            "socket_connect_timeout": settings.timeout_seconds,
            "socket_keepalive": True,
        }
        if address.tls:
            arguments |= {
                "connection_class": redis.SSLConnection,
                "ssl_cert_reqs": "required",
                "ssl_check_hostname": True,
                "ssl_ca_certs": settings.tls_cafile,
                "ssl_certfile": settings.tls_certfile,
                "ssl_keyfile": settings.tls_keyfile,
            }
        return arguments


_NAMED: tuple[str, ...] = ("EVALSHA",) if redis.VERSION < (5, 3) else ()
