# SPDX-License-Identifier: Apache-2.0
"""The HTTP calls that write, read and remove allocations of new servers.

A POST is sent as keystoneauth sent the last one, with another body and request id
(:mod:`.repeated_requests`). An answer other than a write's own ends that.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import orjson
from keystoneauth1 import exceptions as keystone

from nova_nodb_scheduler.nova_adapter.placement import repeated_requests
from nova_nodb_scheduler.nova_adapter.placement.allocations import placement_replies
from nova_nodb_scheduler.nova_adapter.placement.mirror import write_hints

LOG = logging.getLogger(__name__)

#: Answers after which the next request may be the same: written, and refused.
_ORDINARY = (204, 409)


class LateClient:
    """Nova's report client, found when it is first used: making it may ask keystone.

    :param client: names it
    """

    def __init__(self, client: Callable[[], Any]) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client(), name)


class PostSender:
    """Sends for one process; any thread. Blocks as long as the client's timeouts allow.

    :param client: Nova's ``SchedulerReportClient``, or what stands for it: then
        every call is its own
    """

    def __init__(self, client: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._repeater = repeated_requests.Repeater(lambda: client, "post", _ORDINARY, clock)
        self._clock = clock

    @property
    def repeated(self) -> int:
        """See :class:`.repeated_requests.Repeater`."""
        return self._repeater.repeated

    def post(
        self, path: str, data: Mapping[str, Any], *, version: str, request_id: str | None
    ) -> Any:
        """Send a POST, and return the answer, with ``status_code``, ``text`` and ``json()``.

        :raises ClientException: of keystoneauth1
        """
        key = path, version

        def again(pattern: repeated_requests.Pattern) -> repeated_requests.Send | None:
            if pattern.key != key:
                return None
            return pattern.with_body(orjson.dumps(data), request_id)

        def anew(client: Any) -> Any:
            return client.post(path, data, version=version, global_request_id=request_id)

        def learnt(client: Any, response: Any) -> repeated_requests.Pattern | None:
            own_id = None if request_id is None else repeated_requests.REQUEST_ID
            return repeated_requests.pattern_of(client, response, key, self._clock(), own_id)

        return self._repeater.send(
            again, anew, learnt, lambda send: write_hints.observe(path, data, send)
        )


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
