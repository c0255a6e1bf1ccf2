# SPDX-License-Identifier: Apache-2.0
"""Sends a request on a connection that stands open, and reads a plain answer.

Of the 1,200 calls of functions that requests, urllib3 and http.client take for a small
request, nine in ten write the same lines anew and read an answer's headers as those of a
mail. Here the lines are bytes that were made once, and the headers are cut at their colons.

Everything else stays the libraries': who has no open connection is told so before
anything is sent, and what is read of an answer that is not plain (in chunks, encoded,
with a cookie, of another version of HTTP) is read by them.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
import ssl
import urllib.parse
from collections.abc import Mapping
from typing import Any

import attrs
import requests
import urllib3

#: As http.client has them.
_MOST_LINE_BYTES = 65536
_MOST_LINES = 100
_NO_CONTENT = (204, 304)
_LENGTH = b"content-length"
_IN_CHUNKS = "transfer-encoding"
#: Headers of an answer that the libraries are to make something of.
_NOT_PLAIN = frozenset({b"transfer-encoding", b"content-encoding", b"set-cookie", b"upgrade"})
#: What a header's value is when it is sent as it is.
_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
#: What stands in a URL as it is.
PLAIN_TARGET = re.compile(r"[A-Za-z0-9_./?=&-]*")


@attrs.frozen(eq=False)
class KeptConnections:
    """The connections of a pool that a request goes over, and its lines; any thread.

    :param http: what the pool belongs to
    :param pool: urllib3's
    :param timeout_seconds: of each reading from a connection; None: no end
    :param lines: of the request behind its first one, without the last, empty one
    """

    _http: requests.adapters.HTTPAdapter
    _pool: Any
    _timeout_seconds: float | None
    #: A token is among them.
    _lines: bytes = attrs.field(repr=False)

    @classmethod
    def of(
        cls, http: Any, request: requests.PreparedRequest, how: Mapping[str, Any]
    ) -> KeptConnections | None:
        """Return those of a request as requests sends it; None where it needs more than that.

        :param how: what requests is told beside it: timeout, verify, cert and proxies
        """
        url = urllib.parse.urlsplit(request.url or "")
        timeout = how["timeout"]
        connections = getattr(http, "get_connection_with_tls_context", None)
        if (
            connections is None
            or "@" in url.netloc
            or requests.utils.select_proxy(request.url or "", how["proxies"])
            or not (timeout is None or isinstance(timeout, int | float))
            or not all(map(_is_plain, request.headers.items()))
        ):
            return None
        pool = connections(request, how["verify"], proxies=how["proxies"], cert=how["cert"])
        if not all(callable(getattr(pool, name, None)) for name in ("_get_conn", "_put_conn")):
            # Another urllib3.
            return None
        lines = {"Host": url.netloc, **request.headers}
        lines.pop("Content-Length", None)
        text = "".join(f"{name}: {_text(value)}\r\n" for name, value in lines.items())
        return cls(http, pool, timeout, text.encode("ascii"))

    def send(
        self,
        request: requests.PreparedRequest,
        target: str,
        body: bytes | None = None,
        more: Mapping[str, str] | None = None,
    ) -> requests.Response | None:
        """Send a request, and return the answer, read; None where nothing was sent.

        :param request: what the answer is said to answer, whatever is sent of it
        :param more: headers beside its own
        :raises RequestException: as requests does; the request may have been carried out
        """
        added = dict(more or {})
        if body is not None:
            added["Content-Length"] = str(len(body))
        if not PLAIN_TARGET.fullmatch(target) or not all(map(_is_plain, added.items())):
            return None
        text = "".join(f"{name}: {value}\r\n" for name, value in added.items())
        first = f"{request.method} {target} HTTP/1.1\r\n".encode("ascii")
        sent = b"".join((first, self._lines, text.encode("ascii"), b"\r\n", body or b""))
        try:
            # Which looks whether the server ended it.
            connection = self._pool._get_conn()
        except urllib3.exceptions.PoolError:
            # The session was closed, or speaks with too many others.
            return None
        stands = False
        try:
            if not isinstance(connection.sock, socket.socket | ssl.SSLSocket):
                # To be connected, or not as the standard library does.
                stands = True
                return None
            response, stands = self._exchange(connection.sock, request, sent)
        finally:
            if not stands:
                connection.close()
            self._pool._put_conn(connection)
        return response

    def _exchange(
        self, connected: socket.socket, request: requests.PreparedRequest, sent: bytes
    ) -> tuple[requests.Response, bool]:
        """Return the answer, and whether the connection may be used again."""
        try:
            connected.settimeout(self._timeout_seconds)
            connected.sendall(sent)
            with connected.makefile("rb") as answer:
                head = _read_head(answer)
                plain = _Plain.of(head)
                if plain is not None:
                    return plain.response(request, answer), plain.stands
                return self._read_by_libraries(request, _Joined.reader(b"".join(head), answer))
        except TimeoutError as error:
            raise requests.exceptions.ReadTimeout(error, request=request) from error
        except ssl.SSLError as error:
            raise requests.exceptions.SSLError(error, request=request) from error
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, requests.exceptions.RequestException):
                raise
            raise requests.exceptions.ConnectionError(error, request=request) from error

    def _read_by_libraries(
        self, request: requests.PreparedRequest, answer: io.BufferedReader
    ) -> tuple[requests.Response, bool]:
        connected: Any = _Answered(answer)
        read: Any = http.client.HTTPResponse(connected, method=request.method)
        read.begin()
        # It is in one piece now.
        headers: Any = [each for each in read.getheaders() if each[0].lower() != _IN_CHUNKS]
        raw = urllib3.HTTPResponse(
            io.BytesIO(read.read()),
            headers=headers,
            status=read.status,
            version=read.version,
            reason=read.reason,
            preload_content=False,
            decode_content=False,
            original_response=read,
            request_method=request.method,
        )
        response = self._http.build_response(request, raw)
        # Read, and decoded.
        response.content  # noqa: B018
        return response, not read.will_close


@attrs.frozen
class _Plain:
    """The head of an answer whose body is so many bytes behind it."""

    status: int
    reason: str
    headers: Mapping[bytes, bytes]
    length_bytes: int
    stands: bool

    @classmethod
    def of(cls, head: list[bytes]) -> _Plain | None:
        """Read an answer's first lines; None where they are the libraries' to read."""
        version, _, rest = head[0].partition(b" ")
        code, _, reason = rest.partition(b" ")
        if version != b"HTTP/1.1" or len(code) != 3 or not code.isdigit() or code < b"200":
            return None
        headers: dict[bytes, bytes] = {}
        for line in head[1:-1]:
            name, colon, value = line.partition(b":")
            name = name.lower()
            if not colon or name.strip() != name or name in headers or name in _NOT_PLAIN:
                return None
            headers[name] = value.strip()
        status = int(code)
        length = headers.get(_LENGTH, b"0" if status in _NO_CONTENT else b"")
        if not length.isdigit() or head[-1] not in (b"\r\n", b"\n"):
            return None
        return cls(
            status,
            reason.strip().decode("latin-1"),
            headers,
            0 if status in _NO_CONTENT else int(length),
            b"close" not in headers.get(b"connection", b"").lower(),
        )

    def response(
        self, request: requests.PreparedRequest, answer: io.BufferedReader
    ) -> requests.Response:
        """Read the body, and return the answer as requests would.

        :raises IncompleteRead: the connection ended before
        """
        body = answer.read(self.length_bytes) if self.length_bytes else b""
        if len(body) < self.length_bytes:
            raise http.client.IncompleteRead(body, self.length_bytes - len(body))
        made = requests.Response()
        made.status_code, made.reason = self.status, self.reason
        made.url, made.request = request.url or "", request
        made.headers = requests.structures.CaseInsensitiveDict(
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in self.headers.items()
        )
        made.encoding = requests.utils.get_encoding_from_headers(made.headers)
        made.raw = io.BytesIO(body)
        made.content  # noqa: B018
        return made


def _read_head(answer: io.BufferedReader) -> list[bytes]:
    """Return an answer's lines up to the empty one, which is the last.

    :raises HTTPException: there is none, or no end to them
    """
    lines: list[bytes] = []
    while len(lines) <= _MOST_LINES:
        line = answer.readline(_MOST_LINE_BYTES + 1)
        if not line and not lines:
            raise http.client.RemoteDisconnected("the connection was closed without an answer")
        if len(line) > _MOST_LINE_BYTES:
            raise http.client.LineTooLong("header line")
        lines.append(line)
        if line in (b"\r\n", b"\n", b""):
            return lines
    raise http.client.HTTPException(f"got more than {_MOST_LINES} headers")


class _Joined(io.RawIOBase):
    """What was read of an answer, and then the rest of it."""

    def __init__(self, read: bytes, rest: io.BufferedReader) -> None:
        self._read = read
        self._rest = rest

    @classmethod
    def reader(cls, read: bytes, rest: io.BufferedReader) -> io.BufferedReader:
        return io.BufferedReader(cls(read, rest))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._read:
            return self._rest.readinto1(buffer)
        part, self._read = self._read[: len(buffer)], self._read[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)


@attrs.frozen
class _Answered:
    """What http.client reads an answer from."""

    _answer: io.BufferedReader

    def makefile(self, _mode: str) -> io.BufferedReader:
        return self._answer


def _is_plain(header: tuple[str, str | bytes]) -> bool:
    name, value = header
    return bool(_VALUE.fullmatch(name) and ":" not in name and _VALUE.fullmatch(_text(value)))


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
