# SPDX-License-Identifier: Apache-2.0
"""The edge to memcached: one server, pipelined commands, errors translated once.

pymemcache pipelines only stores that share one cas token; a batch of
compare-and-sets needs a token each, hence :class:`_PipeliningClient`.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, TypeVar

import attrs
import pymemcache
from pymemcache.client import base

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers.memcached import options as options_module
from nova_nodb_scheduler.synchronizer.drivers.support import batches

#: Keys per multi-get: large enough to amortise the round trip, small enough
#: that another client is not kept waiting.
KEYS_PER_GET = 500
#: What goes into one request with the epoch's key and its counter.
KEYS_BESIDE_EPOCH = KEYS_PER_GET - 2
COMMANDS_PER_PIPELINE = 500
BYTES_PER_PIPELINE = 4 * 1024 * 1024
#: Over TLS what is sent together must fit into one record (16,384 bytes), which
#: memcached 1.6.18 reads at once. Of the next record it reads what its buffer has
#: room for, and never asks for the rest: the socket has nothing more to read.
BYTES_PER_TLS_PIPELINE = 16_000

_T = TypeVar("_T")

#: What a dead connection looks like; a time-out is not among them, because
#: trying again would only double it.
_BROKEN = (ConnectionError, pymemcache.MemcacheUnexpectedCloseError)
_FAILED = (OSError, pymemcache.MemcacheError)


@attrs.frozen
class Replies:
    """Reply lines in the order of the commands.

    :param lines: without line ends; fewer than commands if the connection broke
    :param failure: why lines are missing, or empty
    :param found: what stood at the key that was looked at behind the commands; None
        where nothing stood there, where none was looked at and where that was not answered
    """

    lines: tuple[bytes, ...]
    failure: str = ""
    found: bytes | None = None


def store(
    verb: bytes, key: bytes, value: bytes, *, ttl_seconds: int = 0, token: bytes | None = None
) -> bytes:
    """Return a storage command; a negative time to live stores nothing and removes the old."""
    head = b"%s %s 0 %d %d" % (verb, key, ttl_seconds, len(value))
    if token is not None:
        head += b" " + token
    return head + b"\r\n" + value + b"\r\n"


class _PipeliningClient(base.Client):  # type: ignore[misc]  # untyped library
    """A connection that sends many commands before it reads the first reply."""

    def pipeline(self, commands: Sequence[bytes], look_at: bytes | None = None) -> Replies:
        """Send commands that are answered by one line each.

        :param look_at: a key to be read behind them, by a request that waits for none of
            their replies: the server takes up what one connection brings in its order
        :raises OSError: no connection could be made, nothing was sent
        """
        if self.sock is None:
            self._connect()
        lines: list[bytes] = []
        found = None
        try:
            for request in self._requests(commands, look_at):
                self.sock.sendall(request)
            # Replies of these commands alone stand in the buffer, so nothing
            # is lost when it is thrown away.
            with self.sock.makefile("rb") as replies:
                for _ in commands:
                    lines.append(_line(replies))
                if look_at is not None:
                    found = _value(replies)
        except OSError as error:
            self.close()
            return Replies(tuple(lines), str(error) or type(error).__name__)
        if any(line.startswith((b"ERROR", b"CLIENT_ERROR")) for line in lines):
            # The server lost count of what is command and what is data.
            self.close()
        return Replies(tuple(lines), found=found)

    def _requests(self, commands: Sequence[bytes], look_at: bytes | None) -> list[bytes]:
        look = [] if look_at is None else [b"get %s\r\n" % look_at]
        if isinstance(self.sock, ssl.SSLSocket):
            # A record of its own: in that of a large item's end nobody would read it, see
            # BYTES_PER_TLS_PIPELINE.
            return [b"".join(commands), *look]
        return [b"".join([*commands, *look])]


def _line(replies: BinaryIO) -> bytes:
    line = replies.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionResetError("the server closed the connection")
    return line[:-2]


def _value(replies: BinaryIO) -> bytes | None:
    """Read the reply to a ``get`` of one key."""
    head = _line(replies)
    if head == b"END":
        return None
    if not head.startswith(b"VALUE "):
        raise ConnectionResetError(f"the server answered {head!r} to a get")
    size_bytes = int(head.split(b" ")[3])
    value = replies.read(size_bytes + 2)[:size_bytes]
    if _line(replies) != b"END":
        raise ConnectionResetError("the server's answer to a get does not end")
    return value


class _Pool(base.PooledClient):  # type: ignore[misc]  # untyped library
    client_class = _PipeliningClient

    def pipeline(self, commands: Sequence[bytes], look_at: bytes | None = None) -> Replies:
        with self.client_pool.get_and_release(destroy_on_fail=True) as client:
            replies: Replies = client.pipeline(commands, look_at)
            return replies

    def drop_idle(self) -> None:
        """Close the connections that nobody uses.

        ``close()`` of the library closes those as well on which other threads
        wait for their replies: they fail with an AttributeError, perhaps after
        the server has carried out what they sent.
        """
        for _ in self.client_pool.free:
            self.client_pool.destroy(self.client_pool.get())


class Connection:
    """A pool of connections to one server; any thread may call."""

    def __init__(self, options: options_module.MemcachedOptions) -> None:
        self._options = options
        self._pool: Any = None
        self.label = f"memcached at {options.servers[0]}"

    def open(self) -> None:
        """Make the pool; connections are made as needed. Idempotent.

        :raises ConfigurationError: the file of authorities cannot be read
        """
        if self._pool is not None:
            return
        self._pool = _Pool(
            self._options.servers[0],
            connect_timeout=self._options.timeout_seconds,
            timeout=self._options.timeout_seconds,
            no_delay=True,
            default_noreply=False,
            tls_context=self._tls_context(),
        )

    def _tls_context(self) -> ssl.SSLContext | None:
        if not self._options.tls_enabled:
            return None
        cafile = self._options.tls_cafile
        try:
            return ssl.create_default_context(cafile=cafile)
        except OSError as error:
            remedy = f"it cannot be read ({error}): name a file of certificates in PEM format."
            raise options_module.refusal("tls_cafile", cafile, remedy) from error

    def close(self) -> None:
        """Drop all idle connections; those in use end with their calls."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.drop_idle()

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the values of those keys that exist."""
        found: dict[bytes, bytes] = {}
        for some in batches.split(keys, KEYS_PER_GET):
            found.update(self._reading(functools.partial(_get_many, some)))
        return found

    def gets(self, keys: Sequence[bytes]) -> dict[bytes, tuple[bytes, bytes]]:
        """Return (value, cas token) of those keys that exist."""
        found: dict[bytes, tuple[bytes, bytes]] = {}
        for some in batches.split(keys, KEYS_PER_GET):
            found.update(self._reading(functools.partial(_gets_many, some)))
        return found

    def increment(self, key: bytes, by: int) -> int | None:
        """Add to a counter and return its new value; None where there is none.

        :raises BackendUnavailable: it may or may not have been counted
        """
        try:
            value = self._open_pool().incr(key, by)
        except _FAILED as error:
            raise self.unavailable(error) from error
        return None if value is None else int(value)

    def statistics(self, *arguments: str) -> dict[str, Any]:
        """Return ``stats``, or one of its sections."""
        found = self._reading(lambda pool: pool.stats(*arguments))
        return {name.decode(): value for name, value in found.items()}

    def version(self) -> str:
        """Return the server's version."""
        return bytes(self._reading(lambda pool: pool.version())).decode()

    def send(self, commands: Sequence[bytes], look_at: bytes | None = None) -> Replies:
        """Send commands answered by one line each.

        What was not answered may or may not have been carried out.

        :param look_at: a key to be read behind all of them, in the exchange of the last ones
        :raises BackendUnavailable: nothing was sent
        """
        lines: list[bytes] = []
        found = None
        most_bytes = BYTES_PER_TLS_PIPELINE if self._options.tls_enabled else BYTES_PER_PIPELINE
        for some in batches.split(commands, COMMANDS_PER_PIPELINE, most_bytes, len):
            is_last = len(lines) + len(some) == len(commands)
            try:
                replies = self._open_pool().pipeline(some, look_at if is_last else None)
            except _FAILED as error:
                if not lines:
                    raise self.unavailable(error) from error
                return Replies(tuple(lines), str(error))
            lines.extend(replies.lines)
            if replies.failure:
                return Replies(tuple(lines), replies.failure)
            found = replies.found
        return Replies(tuple(lines), found=found)

    def send_all(self, commands: Sequence[bytes]) -> tuple[bytes, ...]:
        """Send commands whose loss the protocol bears, and return every reply.

        :raises BackendUnavailable: not all were answered, or one was refused
            for want of memory
        """
        replies = self.send(commands)
        if replies.failure:
            raise self.unavailable(replies.failure)
        for line in replies.lines:
            if b"ERROR" in line:
                raise self.unavailable(line.decode(errors="replace"))
        return replies.lines

    def unavailable(self, reason: object) -> errors.BackendUnavailable:
        """Return the exception that tells of this server's failure."""
        return errors.BackendUnavailable(self.label, str(reason) or type(reason).__name__)

    def out_of_memory(self) -> errors.BackendUnavailable:
        """Return the exception that tells of a full server which did not say so itself."""
        return self.unavailable("SERVER_ERROR out of memory: the server is full")

    def _open_pool(self) -> Any:
        if self._pool is None:
            raise self.unavailable("the client is not open")
        return self._pool

    def _reading(self, call: Callable[[Any], _T]) -> _T:
        """Call what changes nothing; a broken connection is tried once again.

        After a restart of the server every idle connection is broken, which
        is no news to the caller.
        """
        pool = self._open_pool()
        try:
            try:
                return call(pool)
            except _BROKEN:
                pool.drop_idle()
                return call(pool)
        except _FAILED as error:
            raise self.unavailable(error) from error


def _get_many(keys: Sequence[bytes], pool: Any) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = pool.get_many(keys)
    return found


def _gets_many(keys: Sequence[bytes], pool: Any) -> dict[bytes, tuple[bytes, bytes]]:
    found: dict[bytes, tuple[bytes, bytes]] = pool.gets_many(keys)
    return found
