# SPDX-License-Identifier: Apache-2.0
"""Sends Placement a request as keystoneauth sent the last one, without all its work again.

Of the CPU time that a small request takes in its client, two thirds go to things that
are the same each time: the endpoint, the proxies of the environment, the headers,
logging that is off, a second reading of the same options. So the first call goes
through Nova's report client, and keystoneauth finds the endpoint, authenticates
and makes the request; the next ones repeat that request over the pool of connections
that the session's requests took of urllib3 for it, with the same certificates, proxy and
timeouts. Whatever is out of the ordinary goes keystoneauth's way again: a
new token, an unusual answer, a connection that failed, logging or tracing of
requests, retries by configuration, an age.

Much of that is read from attributes that keystoneauth keeps to itself. What fails
on the way there, before anything is sent, is sent keystoneauth's way; what fails
after an answer came costs the pattern, never the answer.

Threads share a pattern. Who finds it wanting drops that one alone: the naive way, to
drop whatever stands there by then, has each thread that a token's end refused throw
away what another has learnt with the next token.
"""

from __future__ import annotations

import logging
import re
import time
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs
import orjson
import requests
import urllib3
from keystoneauth1 import adapter as keystone_adapter
from keystoneauth1 import exceptions as keystone
from keystoneauth1 import session as keystone_session
from nova.scheduler.client import report

LOG = logging.getLogger(__name__)

#: After that keystoneauth looks for the endpoint and the options again.
_MOST_AGE_SECONDS = 60.0
REQUEST_ID = "X-Openstack-Request-Id"
#: Answers to a GET after which the next one may be the same.
_READ = (200, 404)

#: What stands in a URL as it is.
_PLAIN = re.compile(r"[A-Za-z0-9_./?=&-]*")
#: What of keystoneauth is not as this module knows it.
_UNREPEATED = "A request to Placement cannot be repeated: keystoneauth sends each of them."

#: Where keystoneauth tells of requests, if asked to.
_LOGGERS = tuple(
    logging.getLogger("keystoneauth.session" + part)
    for part in ("", ".request", ".response", ".body", ".request-id")
)


@attrs.frozen
class Answer:
    """What came back, read whole."""

    status_code: int
    headers: Mapping[str, str]
    content: bytes = attrs.field(repr=False)

    @property
    def text(self) -> str:
        """The content as text; Placement's is UTF-8."""
        return self.content.decode(errors="replace")

    def json(self) -> Any:
        """Return what the content says.

        :raises ValueError: it is no JSON
        """
        return orjson.loads(self.content)


#: Sends a request, and returns the answer; raises as keystoneauth's own call would.
Send = Callable[[], Answer]

#: As requests has it, which sends each request once: of one that failed on the way nobody
#: knows how far it got.
_ONCE = urllib3.Retry(False)


@attrs.frozen(eq=False)
class Pattern:
    """A request that keystoneauth made, and how it was sent.

    :param key: path and microversion
    :param target: what the request's first line names: the path, or through a proxy the URL
    :param auth_headers: the token's, as they were then
    """

    key: tuple[str, str]
    at: float
    adapter: keystone_adapter.Adapter
    pool: urllib3.HTTPConnectionPool
    method: str
    url: str
    target: str
    headers: Mapping[str, str] = attrs.field(repr=False)
    auth_headers: Mapping[str, str] = attrs.field(repr=False)
    timeout: urllib3.Timeout

    def holds(self) -> bool:
        """Say whether keystoneauth would send the same; may ask keystone for a token.

        :raises ClientException: of keystoneauth1, as its own call would
        """
        session = self.adapter.session
        if session.get_auth_headers(self.adapter.auth) != self.auth_headers:
            return False
        tracing = keystone_session.osprofiler_web
        return not (tracing and tracing.get_trace_id_headers())

    def with_body(
        self, body: bytes, request_id: str | None, more: Mapping[str, str] | None = None
    ) -> Send:
        """Return what sends it with another body; nothing is sent yet. See :meth:`at_path`.

        :param more: headers beside those that keystoneauth sent
        """
        headers = {**self.headers, "Content-Length": str(len(body)), **(more or {})}
        if request_id is not None:
            headers[REQUEST_ID] = request_id
        return self._sending(self.target, headers, body)

    def at_path(self, path: str) -> Send | None:
        """Return what sends it to another path; None where that is not plain.

        It raises as keystoneauth's own call would, and nothing else: whether
        something was sent is not known then.
        """
        own = self.key[0]
        if not (_PLAIN.fullmatch(path) and _PLAIN.fullmatch(own) and self.target.endswith(own)):
            # requests would quote it, or has quoted the other one.
            return None
        return self._sending(self.target.removesuffix(own) + path, self.headers, None)

    def is_usable(self, client: Any | None, now: float) -> bool:
        """Say whether a client's requests go that way still; see :meth:`holds` besides.

        :param client: as :func:`own_client` returns it
        """
        return (
            client is not None
            and client._client is self.adapter
            and now < self.at + _MOST_AGE_SECONDS
            and not any(each.isEnabledFor(logging.DEBUG) for each in _LOGGERS)
        )

    def _sending(self, target: str, headers: Mapping[str, str], body: bytes | None) -> Send:
        session = self.adapter.session
        bound = self.adapter._rate_semaphore or session._rate_semaphore

        def send() -> Answer:
            response = None
            try:
                with bound:
                    response = self.pool.urlopen(
                        self.method,
                        target,
                        body=body,
                        headers=headers,
                        retries=_ONCE,
                        redirect=False,
                        assert_same_host=False,
                        timeout=self.timeout,
                        preload_content=False,
                    )
                    # Read whole, which frees the connection for the next one.
                    return Answer(response.status, response.headers, response.data)
            except Exception as error:
                url = urllib.parse.urljoin(self.url, target)
                raise _as_keystoneauth_says(error, url, response is not None) from error

        return send


def pattern_of(
    client: Any | None,
    response: Any,
    key: tuple[str, str],
    now: float,
    without: str | None = None,
) -> Pattern | None:
    """Return the request that was answered, if it may be repeated so.

    :param client: as :func:`own_client` returns it
    :param without: a header that was this request's alone
    """
    adapter = client._client if client is not None else None
    if (
        not isinstance(adapter, keystone_adapter.Adapter)
        or type(adapter.session) is not keystone_session.Session
        or _needs_keystoneauth(adapter)
    ):
        return None
    session = adapter.session
    pool = session.session
    if response.history or response.cookies or pool.hooks["response"]:
        return None
    request = response.request
    http = pool.get_adapter(request.url)
    is_own: bool = getattr(response, "connection", None) is http
    if not is_own or not _sends_once(http):
        # It was not sent by this session, or not by requests alone.
        return None
    auth_headers = session.get_auth_headers(adapter.auth) or {}
    if any(request.headers.get(name) != value for name, value in auth_headers.items()):
        # Another token by now.
        return None
    asked = {"verify": session.verify, "cert": session.cert}
    asked.update(session.get_auth_connection_params(adapter.auth))
    how = pool.merge_environment_settings(request.url, {}, None, asked["verify"], asked["cert"])
    # As requests itself does with each request.
    connections = http.get_connection_with_tls_context(
        request, how["verify"], proxies=how["proxies"], cert=how["cert"]
    )
    http.cert_verify(connections, request.url, how["verify"], how["cert"])
    headers = dict(request.headers)
    if without is not None:
        for name in [each for each in headers if each.lower() == without.lower()]:
            del headers[name]
    return Pattern(
        key=key,
        at=now,
        adapter=adapter,
        pool=connections,
        method=request.method,
        url=request.url,
        target=http.request_url(request, how["proxies"]),
        headers=headers,
        auth_headers=auth_headers,
        timeout=urllib3.Timeout(connect=session.timeout, read=session.timeout),
    )


def _sends_once(http: Any) -> bool:
    """Tell whether an adapter of requests leaves it at one try, and is not another's."""
    return type(http).send is requests.adapters.HTTPAdapter.send and not http.max_retries.total


class Repeater:
    """Sends requests of one kind for one process; any thread. Blocks as long as timeouts allow.

    :param client: names Nova's ``SchedulerReportClient``; where another's method stands
        in for its own, every call is that one's
    :param method: the client's
    :param ordinary: statuses after which the next request may be the same
    :ivar repeated: calls that repeated an earlier request, about
    """

    def __init__(
        self,
        client: Callable[[], Any],
        method: str,
        ordinary: Collection[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._method = method
        self._ordinary = ordinary
        self._clock = clock
        self._pattern: Pattern | None = None
        self._complained = False
        self.repeated = 0

    def send(
        self,
        again: Callable[[Pattern], Send | None],
        anew: Callable[[Any], Any],
        learnt: Callable[[Any, Any], Pattern | None],
        around: Callable[[Send], Answer] = lambda send: send(),
    ) -> Any:
        """Send a request, and return the answer.

        :param again: returns what repeats a pattern for this one; None where it is none for it
        :param anew: sends it by a client
        :param learnt: returns of client and answer the pattern for the next ones; None where
            it is none
        :param around: calls what repeats
        :raises ClientException: of keystoneauth1
        """
        client = self._client()
        pattern = self._pattern
        send = self._repeating(client, pattern, again)
        if send is not None:
            try:
                response = around(send)
            except BaseException:
                # The next one looks for the endpoint again.
                self._forget(pattern)
                raise
            self.repeated += 1
            # A cookie is the session's to keep.
            if response.status_code in self._ordinary and "Set-Cookie" not in response.headers:
                return response
            self._forget(pattern)
            if not is_keystoneauths(response):
                return response
        return self._send_anew(client, anew, learnt)

    def is_ready(self) -> bool:
        """Say whether the next request will be a repeated one, for all that is known; no I/O."""
        pattern = self._pattern
        if pattern is None:
            return False
        try:
            own = own_client(self._client(), self._method)
            return pattern.is_usable(own, self._clock())
        except Exception:  # noqa: BLE001 - told of where it is sent
            return False

    def _repeating(
        self, client: Any, pattern: Pattern | None, again: Callable[[Pattern], Send | None]
    ) -> Send | None:
        """Return what repeats the last request; None where keystoneauth is to send it.

        :raises ClientException: of keystoneauth1, as its own call would
        """
        if pattern is None:
            return None
        try:
            send = again(pattern)
            if (
                send is None
                or not pattern.is_usable(own_client(client, self._method), self._clock())
                or not pattern.holds()
            ):
                return None
        except keystone.ClientException:
            raise
        except Exception as error:
            if self._complains():
                LOG.warning(_UNREPEATED, exc_info=error)
            self._forget(pattern)
            return None
        return send

    def _send_anew(
        self, client: Any, anew: Callable[[Any], Any], learnt: Callable[[Any, Any], Pattern | None]
    ) -> Any:
        response = anew(client)
        try:
            if response.status_code in self._ordinary:
                found = learnt(own_client(client, self._method), response)
                if found is not None:
                    self._pattern = found
        except Exception as error:
            # What was answered is answered, whatever becomes of the pattern.
            if self._complains():
                LOG.warning(_UNREPEATED, exc_info=error)
        return response

    def _forget(self, pattern: Pattern | None) -> None:
        # Another thread's may stand there by now.
        if self._pattern is pattern:
            self._pattern = None

    def _complains(self) -> bool:
        """Say whether what cannot be done is to be logged: once."""
        before, self._complained = self._complained, True
        return not before


class GetSender:
    """Reads Placement for one process; any thread. Blocks as long as timeouts allow.

    :param client: see :class:`Repeater`
    """

    def __init__(
        self, client: Callable[[], Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._repeater = Repeater(client, "get", _READ, clock)
        self._clock = clock

    @property
    def repeated(self) -> int:
        """See :class:`Repeater`."""
        return self._repeater.repeated

    def get(self, path: str, version: str) -> Any:
        """Send a GET, and return the answer.

        :raises ClientException: of keystoneauth1
        """

        def learnt(client: Any, response: Any) -> Pattern | None:
            if not _PLAIN.fullmatch(path):
                return None
            return pattern_of(client, response, (path, version), self._clock())

        return self._repeater.send(
            lambda pattern: pattern.at_path(path) if pattern.key[1] == version else None,
            lambda client: client.get(path, version=version),
            learnt,
        )


def is_keystoneauths(response: Any) -> bool:
    """Say whether keystoneauth would go on from an answer: a new token, another address."""
    status = int(response.status_code)
    return status == 401 or 300 <= status < 400


def own_client(client: Any, name: str) -> Any | None:
    """Return Nova's report client; None where another's method stands in for its own."""
    method = getattr(client, name, None)
    is_own = getattr(method, "__func__", None) is getattr(report.SchedulerReportClient, name)
    return getattr(method, "__self__", None) if is_own else None


def _needs_keystoneauth(adapter: keystone_adapter.Adapter) -> bool:
    """Tell whether configuration wants of each call what only keystoneauth does.

    Retries, timing; and what openstacksdk counts.
    """
    session = adapter.session
    return bool(
        adapter.connect_retries
        or adapter.status_code_retries
        or session._connect_retries
        or session._collect_timing
        or adapter.logger
        or getattr(adapter, "_statsd_client", None)
        or getattr(adapter, "_prometheus_counter", None)
        or getattr(adapter, "_influxdb_client", None)
    )


def _as_keystoneauth_says(
    error: Exception, url: str, is_answered: bool
) -> keystone.ClientException:
    """Return what keystoneauth makes of an error of a connection, which requests names first.

    :param is_answered: an answer began, and broke off
    """
    broken = urllib3.exceptions
    if isinstance(error, broken.SSLError):
        return keystone.SSLError(f"SSL exception connecting to {url}: {error}")
    if is_answered:
        if isinstance(error, broken.ReadTimeoutError):
            return keystone.ConnectFailure(f"No whole answer from {url}: {error}")
        return keystone.UnknownConnectionError(f"{url}: {error}", error)
    if isinstance(
        error,
        broken.NewConnectionError
        | broken.ProtocolError
        | broken.ProxyError
        | broken.ClosedPoolError
        | OSError,
    ):
        return keystone.ConnectFailure(f"No connection to {url}: {error}")
    if isinstance(error, broken.TimeoutError):
        return keystone.ConnectTimeout(f"Request to {url} timed out")
    # Of whatever is below, too: nobody can tell how far the request got.
    return keystone.UnknownConnectionError(f"{url}: {error}", error)
