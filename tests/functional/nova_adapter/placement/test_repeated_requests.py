# SPDX-License-Identifier: Apache-2.0
"""Several threads repeat one request, and what happens to it meanwhile."""

from __future__ import annotations

import concurrent.futures
import gzip
import pathlib
import ssl
import threading
import zlib
from collections.abc import Callable
from typing import Any

import fixtures
from keystoneauth1 import adapter, session
from keystoneauth1 import exceptions as keystone
from nova.scheduler.client import report

from tests.functional.nova_adapter.placement import raw_http, sender_case
from tests.functional.synchronizer.drivers import certificates

_THREADS = 8
_EACH = 12


class _ThreadsCase(sender_case.SenderCase):
    def from_threads(self, halfway: Callable[[], None] = lambda: None) -> list[Any]:
        """Read and write by several threads; return what came of it, wrong answers as errors."""
        once = threading.Barrier(_THREADS + 1)

        def work(thread: int) -> list[Any]:
            found: list[Any] = []
            for number in range(_EACH):
                if number == _EACH // 2:
                    once.wait(30)
                    once.wait(30)
                name = f"t{thread}n{number}"
                found += [_got(self._read, name), _got(self._wrote, name)]
            return found

        with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
            running = [pool.submit(work, thread) for thread in range(_THREADS)]
            once.wait(30)
            halfway()
            once.wait(30)
            return [each for one in running for each in one.result(60)]

    def _read(self, name: str) -> int:
        response = self.get(name)
        if response.status_code == 200:
            self.assertEqual(f"/placement/resource_providers?in_tree={name}", response.text)
        return int(response.status_code)

    def _wrote(self, name: str) -> int:
        return int(self.post(name).status_code)

    def written(self, server: raw_http.RawServer) -> list[raw_http.Asked]:
        return [each for each in server.asked if each.line.startswith("POST")]


def _got(call: Callable[[str], int], name: str) -> Any:
    try:
        return call(name)
    except keystone.ClientException as error:
        return type(error)


_ALL = [200, 204] * (_THREADS * _EACH)


class RepeatedRequestsTest(_ThreadsCase):
    def test_each_thread_gets_its_own_answer_and_sends_its_own_words(self) -> None:
        self.repeat()
        before = self.reader.repeated + self.writer.repeated
        self.assertEqual(_ALL, self.from_threads())
        self.assertEqual(2 * _THREADS * _EACH, self.reader.repeated + self.writer.repeated - before)
        for each in self.written(self.server):
            name = each.headers["X-Openstack-Request-Id"].removeprefix("req-")
            # Ours has no spaces in its JSON.
            self.assertEqual(f'{{"{name}":"{name}"}}'.encode(), each.body.replace(b" ", b""))

    def test_a_token_that_ends_costs_no_answer_and_is_not_sent_again(self) -> None:
        self.repeat()

        def end() -> None:
            # Each that is refused makes keystoneauth take a new one, whose it ever was.
            self.valid = lambda token: int(token.removeprefix("token-")) > 1

        self.assertEqual(_ALL, self.from_threads(end))
        self.repeat("last")
        self.assertEqual(f"token-{self.auth.number}", self.server.asked[-1].headers["X-Auth-Token"])
        self.assertLessEqual(self.auth.made, 2 * _THREADS)

    def test_a_token_that_keystone_replaces_in_time_is_used_at_once(self) -> None:
        self.repeat()
        self.auth.invalidate()
        self.valid = lambda token: token == "token-2"
        self.assertEqual(_ALL, self.from_threads())
        self.assertEqual(1, self.auth.made)

    def test_who_cannot_have_a_token_hears_what_keystoneauth_says(self) -> None:
        self.repeat()
        self.auth.answers = False
        for call in (self.get, self.post):
            self.assertRaises(keystone.ConnectFailure, call, "away")
        self.auth.answers = True
        self.repeat()

    def test_an_endpoint_that_moves_is_found_at_the_first_failure(self) -> None:
        self.repeat()
        other = self.serve()
        self.auth.catalogue = self.auth.known = other.url + "/placement"
        self.server.close()
        for call in (self.get, self.post):
            # As keystoneauth would say; whether it was carried out is not known.
            self.assertRaises(keystone.ConnectFailure, call, "moving")
        self.assertEqual(_ALL, self.from_threads())
        self.assertEqual(_THREADS * _EACH, len(self.written(other)))

    def test_an_endpoint_that_moves_under_threads_costs_each_no_more_than_a_failure(self) -> None:
        self.repeat()
        other = self.serve()

        def move() -> None:
            self.auth.catalogue = self.auth.known = other.url + "/placement"
            self.server.close()

        failed = [each for each in self.from_threads(move) if each not in (200, 204)]
        self.assertLessEqual(len(failed), 2 * _THREADS)
        self.assertEqual({keystone.ConnectFailure} if failed else set(), set(failed))

    def test_connections_that_the_server_closed_are_made_anew(self) -> None:
        self.repeat()
        self.assertEqual(_ALL, self.from_threads(self.server.drop))
        repeated = self.reader.repeated
        self.get("after")
        self.assertEqual(repeated + 1, self.reader.repeated)

    def test_a_write_whose_connection_breaks_is_sent_once(self) -> None:
        self.repeat()
        before = len(self.written(self.server))
        self.next = [None]
        self.assertRaises(keystone.ConnectFailure, self.post, "broken")
        self.assertEqual(before + 1, len(self.written(self.server)))
        self.assertEqual(204, self.post("after").status_code)

    def test_a_refused_token_a_detour_and_a_fault_are_answered_as_keystoneauth_does(self) -> None:
        stock = report.SchedulerReportClient(
            adapter.Adapter(
                session.Session(auth=self.auth), service_type="placement", raise_exc=False
            )
        )
        moved = {"Location": f"{self.server.url}/moved"}
        for given, by_keystoneauth, known_then in (
            # Asked once more by keystoneauth, with its next token.
            (raw_http.answer(401), 1, True),
            # keystoneauth is told of the detour, too, and takes it.
            (raw_http.answer(300, b"{}", **moved), 2, False),
            (raw_http.answer(302, b"{}", **moved), 2, False),
            (raw_http.answer(500, b"broken"), 1, False),
            (raw_http.answer(503, b"busy"), 1, False),
        ):
            with self.subTest(given[:12]):
                path = "/resource_providers?in_tree=odd"
                self.next = [(given, True)]
                theirs = stock.get(path, version=sender_case.VERSION)
                self.repeat()
                self.next = [(given, True)] * by_keystoneauth
                ours = self.reader.get(path, sender_case.VERSION)
                self.assertEqual((theirs.status_code, theirs.text), (ours.status_code, ours.text))
                self.assertEqual([], self.next)
                # Unless keystoneauth was answered as ever, it was no pattern for the next one.
                repeated = self.reader.repeated
                self.get("a")
                self.assertEqual(known_then, self.reader.repeated > repeated)

    def test_faults_among_threads_are_each_one_threads_answer(self) -> None:
        self.repeat()

        def disturb() -> None:
            self.next = [(raw_http.answer(503, b"busy"), True)] * 5

        found = self.from_threads(disturb)
        self.assertEqual(5, found.count(503))
        self.assertEqual(len(_ALL) - 5, found.count(200) + found.count(204))

    def test_a_cookie_goes_to_the_session_and_comes_back(self) -> None:
        self.repeat()
        self.next = [(raw_http.answer(200, b"{}", Set_Cookie="stick=here; Path=/"), True)] * 2
        self.get("a")
        self.get("b")
        self.get("c")
        self.assertEqual("stick=here", self.server.asked[-1].headers.get("Cookie"))

    def test_what_another_thread_learnt_meanwhile_is_not_thrown_away(self) -> None:
        self.repeat()
        repeater = self.reader._repeater
        ours = repeater._pattern
        assert ours is not None
        held, go_on = threading.Event(), threading.Event()

        def late(asked: raw_http.Asked) -> raw_http.Answer:
            if asked.target.endswith("late"):
                held.set()
                go_on.wait(30)
                return raw_http.answer(503), True
            return self.respond(asked)

        self.server._respond = late
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(self.get, "late")
            self.assertTrue(held.wait(30))
            self.auth.invalidate()
            self.get("next-token")
            theirs = repeater._pattern
            self.assertIsNot(ours, theirs)
            go_on.set()
            self.assertEqual(503, answer.result(30).status_code)
        self.assertIs(theirs, repeater._pattern)


def _whole(body: bytes, **headers: str) -> raw_http.Answer:
    return raw_http.answer(200, body, **headers), True


def _cut(body: bytes, left: int, **headers: str) -> raw_http.Answer:
    return raw_http.answer(200, body, **headers)[:-left], False


def _chunked(*parts: bytes) -> raw_http.Answer:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(parts), False


_BODY = b'{"some": "words, and as many again: words, words"}'
_GZIP = gzip.compress(_BODY)
_BARE = zlib.compressobj(wbits=-15)
_BARE_DEFLATE = _BARE.compress(_BODY) + _BARE.flush()

#: Answers of all kinds; what is read of each by keystoneauth is what is read of it here.
ANSWERS: dict[str, raw_http.Answer] = {
    "gzip": _whole(_GZIP, Content_Encoding="gzip"),
    "gzip, called otherwise": _whole(_GZIP, content_encoding="GZIP"),
    "gzip, cut": _cut(_GZIP, 9, Content_Encoding="gzip"),
    "no gzip": _whole(b"\x00" * 30, Content_Encoding="gzip"),
    "deflate": _whole(zlib.compress(_BODY), Content_Encoding="deflate"),
    "deflate, bare": _whole(_BARE_DEFLATE, Content_Encoding="deflate"),
    "unknown encoding": _whole(_BODY, Content_Encoding="own"),
    "not UTF-8": _whole(b'{"name": "\xff"}'),
    "empty": _whole(b""),
    "cut": _cut(_BODY, 9),
    "nothing": None,
    "stalled": (raw_http.answer(200, _BODY)[:-9], True),
    "silent": (b"", True),
    "no HTTP": (b"hello\r\n\r\n", False),
    "chunks": _chunked(b"2\r\n{}\r\n", b"0\r\n\r\n"),
    "chunks, cut": _chunked(b"9\r\n{}"),
    "no chunks": _chunked(b"zz\r\n{}\r\n"),
    "until closed": (b"HTTP/1.0 200 OK\r\nServer: old\r\n\r\n" + _BODY, False),
    "closed afterwards": (raw_http.answer(200, _BODY, Connection="close"), False),
    "later": (raw_http.answer(503, b"busy", Retry_After="1"), True),
    "too many": (raw_http.answer(429, b"", Retry_After="1"), True),
    "too large": (raw_http.answer(413, b"", Retry_After="1"), True),
}


class AnswersTest(sender_case.SenderCase):
    def heard(self, call: Callable[[], Any]) -> Any:
        """Return what is heard of an answer: what it says, or the kind of error."""
        try:
            found = call()
        except keystone.ClientException as error:
            return type(error), isinstance(error, keystone.RetriableConnectionFailure)
        names = ("Content-Type", "content-encoding", "SERVER")
        said = [found.headers.get(name) for name in names]
        return found.status_code, found.content, said

    def test_an_answer_of_any_kind_is_what_keystoneauth_hears(self) -> None:
        own = session.Session(auth=self.auth, timeout=1)
        self.client._client.session.timeout = 1.0
        stock = report.SchedulerReportClient(
            adapter.Adapter(own, service_type="placement", raise_exc=False)
        )
        path = "/resource_providers?in_tree=odd"
        heard: dict[str, tuple[Any, Any]] = {}
        for name, given in ANSWERS.items():
            # A connection that the answer before broke off may be told so late.
            self.client._client.session.session.close()
            own.session.close()
            self.repeat()
            before = len(self.server.asked)
            self.next = [given]
            theirs = self.heard(lambda: stock.get(path, version=sender_case.VERSION))
            self.next = [given]
            ours = self.heard(lambda: self.reader.get(path, sender_case.VERSION))
            self.assertEqual(before + 2, len(self.server.asked), name)
            heard[name] = theirs, ours
        self.assertEqual({}, {name: each for name, each in heard.items() if each[0] != each[1]})

    def test_an_error_names_what_was_asked_for(self) -> None:
        self.repeat()
        self.next = [None]
        error = self.assertRaises(keystone.ConnectFailure, self.get, "this-one")
        self.assertIn(
            f"{self.server.url}/placement/resource_providers?in_tree=this-one", str(error)
        )

    def test_a_proxy_of_the_environment_is_asked_as_by_keystoneauth(self) -> None:
        proxy = self.serve()
        self.auth.catalogue = self.auth.known = "http://placement.example/placement"
        for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
            self.useFixture(fixtures.EnvironmentVariable(name))
        self.useFixture(
            fixtures.EnvironmentVariable("http_proxy", proxy.url.replace("//", "//user:word@"))
        )
        self.repeat()
        self.get("other")
        learnt, repeated = (
            next(each for each in asked if each.line.startswith("GET"))
            for asked in (proxy.asked, proxy.asked[::-1])
        )
        self.assertEqual(
            "http://placement.example/placement/resource_providers?in_tree=other", repeated.target
        )
        self.assertEqual(learnt.headers, repeated.headers)
        self.assertEqual("Basic dXNlcjp3b3Jk", repeated.headers["Proxy-Authorization"])
        proxy.close()
        self.assertRaises(keystone.ConnectFailure, self.get, "away")


class RepeatedOverTLSTest(certificates.WithCertificates, _ThreadsCase):
    def setUp(self) -> None:
        directory = pathlib.Path(self.directory)
        self.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.tls.load_cert_chain(directory / "server.pem", directory / "server.key")
        self.verify = str(directory / "ca.pem")
        super().setUp()

    def test_connections_are_kept_and_made_anew_when_the_server_closed_them(self) -> None:
        self.repeat()
        before = self.server.connections
        self.repeat()
        self.assertEqual(before, self.server.connections)
        self.server.drop()
        self.assertEqual(_ALL, self.from_threads(self.server.drop))

    def test_another_authority_is_refused_and_nothing_is_sent(self) -> None:
        self.repeat()
        self.server.close()
        self.verify = str(pathlib.Path(self.directory) / "other.pem")
        other = self.serve()
        self.auth.known = other.url + "/placement"
        own = session.Session(auth=self.auth, verify=self.verify)
        self.client = report.SchedulerReportClient(
            adapter.Adapter(own, service_type="placement", raise_exc=False)
        )
        self.assertRaises(keystone.SSLError, self.get, "a")
        self.assertEqual([], other.asked)
