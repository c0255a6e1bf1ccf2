# SPDX-License-Identifier: Apache-2.0
"""The methods that tell why a request goes, or went, where it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import oslo_messaging

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.rpc import api
from nova_nodb_scheduler.wire import explanations

#: (context, request, servers, limit) -> what would be decided.
Explain = Callable[[Any, dict[str, Any], int, int], explanations.Explanation]

#: Most servers that one request is explained for, and most hosts that are listed.
MAX_SERVERS = 1000
MAX_HOSTS = 1000

_expected = oslo_messaging.expected_exceptions(errors.InvalidRequest)


class ExplainingEndpoint:
    """What version 1.1 of the RPC API brought; beside :class:`.endpoint.Endpoint`.

    :param explain: plans a request, and allocates and reserves nothing
    :param past: remembers what was decided about a server; must not block
    """

    target = oslo_messaging.Target(namespace=api.NAMESPACE, version=api.VERSION)

    def __init__(self, explain: Explain, past: Callable[[str], explanations.PastDecisions]) -> None:
        self._explain = explain
        self._past = past

    @_expected  # type: ignore[untyped-decorator]
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
        """
        if not isinstance(request, dict):
            raise errors.InvalidRequest("request", f"it is a {type(request).__name__}, no mapping")
        bounded: tuple[tuple[str, Any, int, int], ...] = (
            ("servers", servers, 1, MAX_SERVERS),
            ("limit", limit, 0, MAX_HOSTS),
        )
        for name, value, least, most in bounded:
            if not isinstance(value, int) or not least <= value <= most:
                raise errors.InvalidRequest(name, f"it is {value!r}; give {least} to {most}")
        return self._explain(ctxt, request, servers, limit)

    def get_decisions(self, ctxt: Any, instance_uuid: str) -> explanations.PastDecisions:
        """Return what this worker remembers of decisions about a server."""
        return self._past(instance_uuid)
