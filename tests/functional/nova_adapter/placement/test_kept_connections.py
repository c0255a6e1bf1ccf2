# SPDX-License-Identifier: Apache-2.0
"""What is sent and read on a connection that stands open, against what requests makes of it."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import requests
import testtools

from nova_nodb_scheduler.nova_adapter.placement import kept_connections
from tests.functional.nova_adapter.placement import raw_http

_CHUNKS = b'5\r\n{"a":\r\n3\r\n 1}\r\n0\r\n\r\n'


def _answer(*lines: str, body: bytes = b"") -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


_LONG = b'{"all": "' + b"x" * 300_000 + b'"}'

#: By what is odd about it: the bytes, and whether the server lets the connection stand.
_ANSWERS: dict[str, tuple[bytes, bool]] = {
    "plain": (raw_http.answer(200, b'{"a": 1}'), True),
    "long": (raw_http.answer(200, _LONG), True),
    "nothing in it": (raw_http.answer(204), True),
    "a refusal": (raw_http.answer(409, b'{"errors": []}'), True),
    "not authorized": (raw_http.answer(401, b"no", WWW_Authenticate="Keystone uri=here"), True),
    "no reason": (_answer("HTTP/1.1 200", "Content-Length: 2", body=b"{}"), True),
    "letters": (
        _answer("HTTP/1.1 200 Caf\xe9", "X: \xe9", "Content-Length: 2", body=b"{}"),
        True,
    ),
    "no blank behind a colon": (
        _answer("HTTP/1.1 200 OK", "content-length:2", "X:a:b", body=b"{}"),
        True,
    ),
    "lines of line feeds": (b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}", True),
    "to be closed": (raw_http.answer(200, b"{}", Connection="close"), False),
    "in chunks": (
        _answer("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", body=_CHUNKS),
        True,
    ),
    "compressed": (
        raw_http.answer(200, gzip.compress(b'{"a": 2}'), Content_Encoding="gzip"),
        True,
    ),
    "deflated": (
        raw_http.answer(200, zlib.compress(b'{"a": 2}'), Content_Encoding="deflate"),
        True,
    ),
    "with cookies": (
        raw_http.answer(200, b"{}", Set_Cookie="a=b; Path=/", set_cookie="c=d; Path=/"),
        True,
    ),
    "a header twice": (raw_http.answer(200, b"{}", Vary="a", vary="b"), True),
    "of HTTP 1.0": (_answer("HTTP/1.0 200 OK", "Content-Length: 2", body=b"{}"), False),
    "until it ends": (_answer("HTTP/1.1 200 OK", body=b"{}"), False),
    "behind a word to go on": (b"HTTP/1.1 100 Continue\r\n\r\n" + raw_http.answer(), True),
    "moved": (raw_http.answer(302, b"", Location="/elsewhere"), True),
    "without a colon": (_answer("HTTP/1.1 200 OK", "what", "Content-Length: 2", body=b"{}"), False),
    "cut short": (_answer("HTTP/1.1 200 OK", "Content-Length: 9", body=b"{}"), False),
    "cut in its head": (b"HTTP/1.1 200 OK\r\nContent-Le", False),
    "cut in a chunk": (
        _answer("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", body=_CHUNKS[:9]),
        False,
    ),
    "nothing": (b"", False),
    "another protocol": (b"SSH-2.0-OpenSSH_9.2\r\n", False),
    "a line without end": (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, False),
    "headers without end": (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200, False),
}


class KeptConnectionsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.next: raw_http.Answer = (raw_http.answer(), True)
        self.server = raw_http.RawServer(lambda _asked: self.next)
        self.addCleanup(self.server.close)
        self.session = requests.Session()
        self.session.trust_env = False
        self.addCleanup(self.session.close)
        self.url = f"{self.server.url}/placement/allocations"
        self.how: dict[str, Any] = {"timeout": 5.0, "verify": True, "cert": None, "proxies": {}}
        self.request = self.session.prepare_request(
            requests.Request("POST", self.url, headers={"X-Auth-Token": "t"}, data=b"before")
        )
        self.http: Any = self.session.get_adapter(self.url)

    def kept(self) -> kept_connections.KeptConnections:
        found = kept_connections.KeptConnections.of(self.http, self.request, self.how)
        assert found is not None
        return found

    def open_connection(self) -> None:
        before, self.next = self.next, (raw_http.answer(), True)
        self.assertEqual(200, self.send_by_requests().status_code)
        self.next = before

    def send_by_requests(self) -> requests.Response:
        response: requests.Response = self.http.send(self.request, stream=False, **self.how)
        response.content  # noqa: B018
        return response

    def send(self, body: bytes = b"before", **more: Any) -> requests.Response | None:
        return self.kept().send(self.request, "/placement/allocations", body, **more)

    def test_an_answer_is_what_requests_makes_of_it(self) -> None:
        for name, given in _ANSWERS.items():
            with self.subTest(name):
                self.next = given
                outcomes = []
                for sent in (self.send_by_requests, self.send):
                    self.server.drop()
                    self.open_connection()
                    outcomes.append(_outcome(sent))
                self.assertEqual(*outcomes)

    def test_a_connection_stands_behind_an_answer_as_it_does_for_requests(self) -> None:
        for name, given in _ANSWERS.items():
            with self.subTest(name):
                counts = []
                for sent in (self.send_by_requests, self.send):
                    self.open_connection()
                    before = self.server.connections
                    self.next = given
                    _outcome(sent)
                    self.open_connection()
                    counts.append(self.server.connections - before)
                self.assertEqual(*counts)

    def test_a_request_arrives_as_requests_sends_it(self) -> None:
        self.send_by_requests()
        self.send()
        first, second = self.server.asked
        self.assertEqual(first, second)
        self.send(b"longer than before", more={"X-Openstack-Request-Id": "req-1"})
        third = self.server.asked[-1]
        self.assertEqual(b"longer than before", third.body)
        self.assertEqual(
            {**first.headers, "Content-Length": "18", "X-Openstack-Request-Id": "req-1"},
            third.headers,
        )
        self.assertEqual(1, self.server.connections)

    def test_nothing_is_sent_where_no_connection_stands(self) -> None:
        self.assertIsNone(self.send())
        self.open_connection()
        self.server.drop()
        self.assertIsNone(self.send())
        self.session.close()
        self.assertIsNone(self.send())
        self.assertEqual(1, len(self.server.asked))

    def test_what_would_be_another_header_is_not_sent(self) -> None:
        self.open_connection()
        for value in ("req-1\r\nX-Auth-Token: mine", "", " a", "\xe9"):
            self.assertIsNone(self.send(more={"X-Openstack-Request-Id": value}))
        self.assertIsNone(self.kept().send(self.request, "/a b", b""))
        self.assertEqual(1, len(self.server.asked))

    def test_a_server_that_is_silent_is_a_timeout_and_its_connection_is_not_used_again(
        self,
    ) -> None:
        self.open_connection()
        self.how["timeout"] = 0.2
        self.next = (b"HTTP/1.1 200 OK\r\n", True)
        self.assertRaises(requests.exceptions.ReadTimeout, self.send)
        self.next = (raw_http.answer(), True)
        self.open_connection()
        self.assertEqual(2, self.server.connections)

    def test_proxies_and_credentials_of_a_url_stay_the_libraries(self) -> None:
        for url, proxies in (
            (self.url, {"http": "http://127.0.0.1:1"}),
            (self.url.replace("//", "//user:secret@"), {}),
        ):
            self.request.url = url
            self.assertIsNone(
                kept_connections.KeptConnections.of(
                    self.http, self.request, {**self.how, "proxies": proxies}
                )
            )


def _outcome(send: Any) -> Any:
    """Return what an answer says; of an error its kind."""
    try:
        response = send()
    except requests.exceptions.RequestException as error:
        return "error", _kind(error)
    assert response is not None
    headers = {
        name.lower(): value
        for name, value in response.headers.items()
        if name.lower() != "transfer-encoding"
    }
    return (
        (response.status_code, response.reason, headers, response.content),
        (response.encoding, response.text, response.url, dict(response.cookies)),
    )


def _kind(error: Exception) -> str:
    # Where an answer broke off requests has two kinds of it, by who read.
    broken = (requests.exceptions.ConnectionError, requests.exceptions.ChunkedEncodingError)
    return "broken" if isinstance(error, broken) else type(error).__name__
