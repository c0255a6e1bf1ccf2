# SPDX-License-Identifier: Apache-2.0
"""Sends a POST to Placement as keystoneauth sent the last one, without all its work again.

Of the CPU time that a small POST takes in its client, two thirds go to things that
are the same each time: the endpoint, the proxies of the environment, the headers,
logging that is off, a second reading of the same options. So the first call goes
through Nova's report client, and keystoneauth finds the endpoint, authenticates
and makes the request; the next ones repeat that request on the same session's
pool of connections, with another body and request id. Whatever is out of the
ordinary goes keystoneauth's way again: a new token, an answer other than a
write's own, logging or tracing of requests, retries by configuration, an age.

Much of that is read from attributes that keystoneauth keeps to itself. What fails
on the way there, before anything is sent, is sent keystoneauth's way; what fails
after an answer came costs the pattern, never the answer.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import orjson
import requests
from keystoneauth1 import adapter as keystone_adapter
from keystoneauth1 import exceptions as keystone
from keystoneauth1 import session as keystone_session
from nova.scheduler.client import report

from nova_nodb_scheduler.nova_adapter.placement import observed_writes

LOG = logging.getLogger(__name__)

#: After that keystoneauth looks for the endpoint and the options again.
_MOST_AGE_SECONDS = 60.0
_REQUEST_ID = "X-Openstack-Request-Id"
#: Answers after which the next request may be the same: written, and refused.
_ORDINARY = (204, 409)

#: Where keystoneauth tells of requests, if asked to.
_LOGGERS = tuple(
    logging.getLogger("keystoneauth.session" + part)
    for part in ("", ".request", ".response", ".body", ".request-id")
)

#: What of keystoneauth is not as this module knows it.
_UNREPEATED = "A request to Placement cannot be repeated: keystoneauth sends each of them."


@attrs.frozen(eq=False)
class _Pattern:
    """A request that keystoneauth made, and how it sent it.

    :param key: path and microversion
    :param auth_headers: the token's, as they were then
    :param how: timeout, verify, cert and proxies
    """

    key: tuple[str, str]
    at: float
    adapter: keystone_adapter.Adapter
    http: requests.adapters.HTTPAdapter
    request: requests.PreparedRequest
    auth_headers: Mapping[str, str]
    how: Mapping[str, Any]

    def holds(self) -> bool:
        """Say whether keystoneauth would send the same; may ask keystone for a token.

        :raises ClientException: of keystoneauth1, as its own call would
        """
        session = self.adapter.session
        if session.get_auth_headers(self.adapter.auth) != self.auth_headers:
            return False
        tracing = keystone_session.osprofiler_web
        return not (tracing and tracing.get_trace_id_headers())

    def prepared(self, body: bytes, request_id: str | None) -> Callable[[], requests.Response]:
        """Return what sends it with another body; nothing is sent yet.

        It raises as keystoneauth's own call would, and nothing else: whether
        something was sent is not known then.
        """
        request = self.request.copy()
        request.body = body
        request.headers["Content-Length"] = str(len(body))
        if request_id is not None:
            request.headers[_REQUEST_ID] = request_id
        bound = self.adapter._rate_semaphore or self.adapter.session._rate_semaphore

        def send() -> requests.Response:
            with _as_keystoneauth_says(request.url), bound:
                response = self.http.send(request, **self.how)
                # Read, the connection is free for the next one.
                response.content  # noqa: B018
            return response

        return send


class Sender:
    """Sends for one process; any thread. Blocks as long as the client's timeouts allow.

    :param client: Nova's ``SchedulerReportClient``, or what stands for it: then
        every call is its own
    :ivar repeated: calls that repeated an earlier request
    """

    def __init__(self, client: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._pattern: _Pattern | None = None
        self._complained = False
        self.repeated = 0

    def post(
        self, path: str, data: Mapping[str, Any], *, version: str, request_id: str | None
    ) -> Any:
        """Send a POST, and return the answer, with ``status_code``, ``text`` and ``json()``.

        :raises ClientException: of keystoneauth1
        """
        send = self._repeating(path, data, version, request_id)
        if send is not None:
            response = observed_writes.observe(path, data, send)
            self.repeated += 1
            if response.status_code in _ORDINARY:
                return response
            self._pattern = None
            if response.status_code != 401 and not 300 <= response.status_code < 400:
                return response
        return self._post_by_keystoneauth(path, data, version, request_id)

    def _repeating(
        self, path: str, data: Mapping[str, Any], version: str, request_id: str | None
    ) -> Callable[[], requests.Response] | None:
        """Return what repeats the last request; None where keystoneauth is to send it.

        :raises ClientException: of keystoneauth1, as its own call would
        """
        pattern = self._pattern
        try:
            if pattern is None or not self._is_usable(pattern, (path, version)):
                return None
            if not pattern.holds():
                return None
            return pattern.prepared(orjson.dumps(data), request_id)
        except keystone.ClientException:
            raise
        except Exception:
            LOG.exception(_UNREPEATED)
            self._pattern = None
            return None

    def _is_usable(self, pattern: _Pattern, key: tuple[str, str]) -> bool:
        own = _own_client(self._client)
        return (
            own is not None
            and own._client is pattern.adapter
            and pattern.key == key
            and self._clock() < pattern.at + _MOST_AGE_SECONDS
            and not any(each.isEnabledFor(logging.DEBUG) for each in _LOGGERS)
        )

    def _post_by_keystoneauth(
        self, path: str, data: Mapping[str, Any], version: str, request_id: str | None
    ) -> Any:
        self._pattern = None
        response = self._client.post(path, data, version=version, global_request_id=request_id)
        try:
            if response.status_code in _ORDINARY:
                self._pattern = self._pattern_of(response, (path, version), request_id)
        except Exception as error:
            # What was written is written, whatever becomes of the pattern.
            if not self._complained:
                self._complained = True
                LOG.warning(_UNREPEATED, exc_info=error)
        return response

    def _pattern_of(
        self, response: Any, key: tuple[str, str], request_id: str | None
    ) -> _Pattern | None:
        """Return the request that was answered, if it may be repeated so."""
        own = _own_client(self._client)
        adapter = own._client if own is not None else None
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
        request = response.request.copy()
        if getattr(response, "connection", None) is not pool.get_adapter(request.url):
            # It was not sent by this session.
            return None
        if request_id is not None:
            request.headers.pop(_REQUEST_ID, None)
        auth_headers = session.get_auth_headers(adapter.auth) or {}
        if any(request.headers.get(name) != value for name, value in auth_headers.items()):
            # Another token by now.
            return None
        asked = {"verify": session.verify, "cert": session.cert}
        asked.update(session.get_auth_connection_params(adapter.auth))
        how = pool.merge_environment_settings(request.url, {}, None, asked["verify"], asked["cert"])
        return _Pattern(
            key,
            self._clock(),
            adapter,
            response.connection,
            request,
            auth_headers,
            {**how, "stream": False, "timeout": session.timeout},
        )


def _own_client(client: Any) -> Any | None:
    """Return Nova's report client; None where another's method stands in for its own."""
    method = getattr(client, "post", None)
    is_own = getattr(method, "__func__", None) is report.SchedulerReportClient.post
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


@contextlib.contextmanager
def _as_keystoneauth_says(url: str | None) -> Iterator[None]:
    """Raise errors of a connection as keystoneauth raises them."""
    try:
        yield
    except requests.exceptions.SSLError as error:
        raise keystone.SSLError(f"SSL exception connecting to {url}: {error}") from error
    except requests.exceptions.Timeout as error:
        raise keystone.ConnectTimeout(f"Request to {url} timed out") from error
    except requests.exceptions.ConnectionError as error:
        raise keystone.ConnectFailure(f"No connection to {url}: {error}") from error
    except Exception as error:
        # Of whatever is below, too: nobody can tell how far the request got.
        raise keystone.UnknownConnectionError(f"{url}: {error}", error) from error
