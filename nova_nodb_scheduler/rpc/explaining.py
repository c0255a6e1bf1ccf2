# SPDX-License-Identifier: Apache-2.0
"""The methods that tell why a request goes, or went, where it does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import attrs
import oslo_messaging

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.rpc import api, arguments
from nova_nodb_scheduler.wire import explanations

#: (context, request, servers, limit) -> what would be decided.
Explain = Callable[[Any, dict[str, Any], int, int], explanations.Explanation]

#: Most servers that one request is explained for, and most hosts that are listed.
MAX_SERVERS = 1000
MAX_HOSTS = 1000
#: What a request may take decoded, and how deep it may be nested.
MAX_REQUEST_BYTES = 4 * 1024 * 1024
MAX_REQUEST_LEVELS = 64


@attrs.frozen
class ExplainBounds:
    """What explanations may cost a worker that has requests to decide.

    :param at_once: explanations under way; who comes above is refused, not queued:
        it would wait in a thread that a decision could have
    :param places: servers of a request times hosts in memory
    """

    at_once: int = 1
    places: int = 10_000_000


_expected = oslo_messaging.expected_exceptions(
    errors.InvalidArgument, errors.InvalidRequest, errors.LimitExceeded
)


class ExplainingEndpoint:
    """What version 1.1 of the RPC API brought; beside :class:`.endpoint.Endpoint`.

    :param explain: plans a request, and allocates and reserves nothing
    :param past: remembers what was decided about a server; must not block
    :param hosts: how many hosts a request is planned over
    """

    target = oslo_messaging.Target(namespace=api.NAMESPACE, version=api.VERSION)

    def __init__(
        self,
        explain: Explain,
        past: Callable[[str], explanations.PastDecisions],
        hosts: Callable[[], int],
        bounds: ExplainBounds,
    ) -> None:
        self._explain = explain
        self._past = past
        self._hosts = hosts
        self._bounds = bounds
        self._under_way = threading.BoundedSemaphore(bounds.at_once)

    @_expected  # type: ignore[untyped-decorator]
    @arguments.checked
    def explain(
        self, ctxt: Any, request: dict[str, Any], servers: int = 1, limit: int = 10
    ) -> explanations.Explanation:
        """Tell what would be decided of a request now, and why.

        Nothing is allocated and no room is held. It costs what a request for a
        new kind of server costs, once for every call, without the allocation;
        Nova's request filters may ask neutron, as they would.

        :param request: a RequestSpec of Nova as its ``obj_to_primitive`` gives it
        :param servers: how many it is for, 1 to 1,000
        :param limit: most hosts to list, the best first; 1,000 at most
        :raises InvalidRequest: naming what is wrong with it
        :raises InvalidArgument: it lacks an argument, or has one too many
        :raises LimitExceeded: too many are explained at a time, there are too many
            servers for that many hosts, or it took too long
        """
        if not isinstance(request, dict):
            raise errors.InvalidRequest("request", f"it is a {type(request).__name__}, no mapping")
        ranges: tuple[tuple[str, Any, int, int], ...] = (
            ("servers", servers, 1, MAX_SERVERS),
            ("limit", limit, 0, MAX_HOSTS),
        )
        for name, value, least, most in ranges:
            if type(value) is not int or not least <= value <= most:
                # A value may be a page long, or a tower of lists.
                shown = value if type(value) is int and abs(value) < 10**12 else type(value)
                raise errors.InvalidRequest(name, f"it is {shown!r}; give {least} to {most}")
        arguments.bounded("explain", "request", request, MAX_REQUEST_BYTES, MAX_REQUEST_LEVELS)
        places = servers * self._hosts()
        if places > self._bounds.places:
            raise errors.LimitExceeded(
                "the number of servers to explain times that of hosts",
                places,
                self._bounds.places,
                "[nodb_scheduler] rpc_max_explained_places",
            )
        if not self._under_way.acquire(blocking=False):
            raise errors.LimitExceeded(
                "the number of explanations at a time",
                self._bounds.at_once + 1,
                self._bounds.at_once,
                "[nodb_scheduler] rpc_max_explanations",
            )
        try:
            return self._explain(ctxt, request, servers, limit)
        finally:
            self._under_way.release()

    @_expected  # type: ignore[untyped-decorator]
    @arguments.checked
    def get_decisions(self, ctxt: Any, instance_uuid: str) -> explanations.PastDecisions:
        """Return what this worker remembers of decisions about a server.

        :raises InvalidArgument: the uuid is no short text
        """
        return self._past(arguments.text("get_decisions", "instance_uuid", instance_uuid))
