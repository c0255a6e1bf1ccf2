# SPDX-License-Identifier: Apache-2.0
"""The HTTP calls that write, read and remove allocations of new servers.

A POST is sent as keystoneauth sent the last one, without all its work again: of
the CPU time that a small POST takes in its client, two thirds go to things that
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

import collections
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import orjson
import requests
from keystoneauth1 import adapter as keystone_adapter
from keystoneauth1 import exceptions as keystone
from keystoneauth1 import session as keystone_session
from nova.scheduler.client import report

from nova_nodb_scheduler.nova_adapter.placement.allocations import placement_replies
from nova_nodb_scheduler.nova_adapter.placement.mirror import write_hints

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


class LateClient:
    """Nova's report client, found when it is first used: making it may ask keystone.

    :param client: names it
    """

    def __init__(self, client: Callable[[], Any]) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client(), name)


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
        session = self.adapter.session
        bound = self.adapter._rate_semaphore or session._rate_semaphore

        def send() -> requests.Response:
            with _as_keystoneauth_says(request.url), bound:
                response = self.http.send(request, **self.how)
                # Read, the connection is free for the next one.
                response.content  # noqa: B018
            return response

        return send


class PostSender:
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
            response = write_hints.observe(path, data, send)
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


_URL = "/allocations"
#: The first one with generations of consumers. Placement checks the schema of each call
#: anew, which is more than half of a POST's CPU time; with 1.36, which Nova uses and which
#: adds only mappings that Placement does not keep, a tenth of the POST more.
_MICROVERSION = "1.28"


#: Of an error that no call should raise. It may come from before the request, or from
#: after the answer: whoever wrote reads what became of it.
_STRANGE = "A call to Placement failed, and may have been carried out."


@attrs.frozen
class HeldAllocation:
    """What Placement has for a consumer.

    :param amounts: empty where it has nothing
    :param body: the whole answer, to be sent back with changes
    """

    amounts: placement_replies.Amounts
    body: Mapping[str, Any]


class AllocationCalls:
    """Speaks to Placement through Nova's report client; any thread may call.

    Blocks as long as the client's timeouts allow, and raises nothing, whatever
    the client or an answer does: each call comes to a reply.

    :param client: Nova's ``SchedulerReportClient``
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._sender = PostSender(client)
        self._lock = threading.Lock()
        # Consumers of which a failed write left a record behind, at generation 0.
        self._left: collections.OrderedDict[str, int] = collections.OrderedDict()
        #: Calls by kind: post, get, empty.
        self.calls: collections.Counter[str] = collections.Counter()

    def post(
        self, servers: Sequence[placement_replies.NewServer], request_id: str | None = None
    ) -> placement_replies.Reply:
        """Write the allocations of servers, all or none."""
        data = {server.consumer: self._payload(server) for server in servers}
        reply = self._post("post", data, request_id)
        if isinstance(reply, placement_replies.NoProvider):
            self.left_behind(server.consumer for server in servers)
        elif isinstance(reply, placement_replies.DoneReply) and self._left:
            with self._lock:
                for server in servers:
                    self._left.pop(server.consumer, None)
        return reply

    def empty(
        self, held: Iterable[tuple[placement_replies.NewServer, int]], request_id: str | None = None
    ) -> placement_replies.Reply:
        """Remove the allocations of servers at known consumer generations, all or none."""
        data = {
            server.consumer: {
                **self._payload(attrs.evolve(server, request={"allocations": {}})),
                "consumer_generation": generation,
            }
            for server, generation in held
        }
        return self._post("empty", data, request_id)

    def held(
        self, consumer: str, request_id: str | None = None
    ) -> HeldAllocation | placement_replies.Reply:
        """Read what a consumer has; a reply where no answer came."""
        self._count("get")
        try:
            response = self._client.get(
                f"{_URL}/{consumer}", version=_MICROVERSION, global_request_id=request_id
            )
            if response.status_code != 200:
                return placement_replies.read_reply(response)
            body = response.json()
            amounts = {name: dict(part["resources"]) for name, part in body["allocations"].items()}
        except keystone.ClientException as error:
            return placement_replies.read_failure(error)
        except Exception as error:
            LOG.exception(_STRANGE)
            return _unknown(error)
        return HeldAllocation(amounts, body)

    def left_behind(self, consumers: Iterable[str]) -> None:
        """Note that Placement has records of these consumers, without allocations."""
        with self._lock:
            for consumer in consumers:
                self._left[consumer] = 0
            while len(self._left) > 10_000:
                self._left.popitem(last=False)

    def not_left_behind(self, consumer: str) -> bool:
        """Forget such a note; False if there was none."""
        with self._lock:
            return self._left.pop(consumer, None) is not None

    def _payload(self, server: placement_replies.NewServer) -> dict[str, Any]:
        return {
            "allocations": server.request["allocations"],
            "project_id": server.project_id,
            "user_id": server.user_id,
            "consumer_generation": self._left.get(server.consumer),
        }

    def _post(
        self, kind: str, data: Mapping[str, Any], request_id: str | None
    ) -> placement_replies.Reply:
        self._count(kind)
        try:
            response = self._sender.post(_URL, data, version=_MICROVERSION, request_id=request_id)
        except keystone.ClientException as error:
            if isinstance(error, keystone.EndpointNotFound):
                self._read_catalogue_again()
            return placement_replies.read_failure(error)
        except Exception as error:
            LOG.exception(_STRANGE)
            return _unknown(error)
        try:
            return placement_replies.read_reply(response)
        except Exception as error:
            LOG.exception(_STRANGE)
            return _unknown(error)

    def _read_catalogue_again(self) -> None:
        """Give the report client a new session, as Nova does."""
        # The client itself may not exist yet, for the same reason.
        with contextlib.suppress(keystone.ClientException):
            make = self._client._create_client
            # What was given may stand for the client; this is the client.
            make.__self__._client = make()

    def _count(self, kind: str) -> None:
        with self._lock:
            self.calls[kind] += 1


def _unknown(error: Exception) -> placement_replies.Reply:
    return placement_replies.LostReply(f"{type(error).__name__}: {error}", strange=True)
