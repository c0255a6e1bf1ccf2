# SPDX-License-Identifier: Apache-2.0
"""Calls schedulers through the RPC API."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import oslo_messaging

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.rpc import api
from nova_nodb_scheduler.wire import explanations, objects, pending_objects

#: Carries a call out, in whatever time and thread.
Bound = Callable[[Callable[[], Any]], Any]


class Client:
    """A client of the schedulers on one topic. Any thread.

    Each call blocks for the time-out at most once the bus is connected, and
    raises ``oslo_messaging.MessagingTimeout`` then, or what the endpoint's
    method says that it raises. To connect, the library tries for ever.

    :param transport: an RPC transport that was made with
        :data:`api.EXCEPTION_MODULES` among its ``allowed_remote_exmods``
    :param serializer: the servers' serializer, contexts included
    :param bound: carries each call out; one that must end bounds it, its
        connection included
    """

    def __init__(
        self,
        transport: Any,
        topic: str,
        serializer: Any,
        timeout_seconds: float,
        bound: Bound | None = None,
    ) -> None:
        target = oslo_messaging.Target(
            topic=topic, namespace=api.NAMESPACE, version=api.FIRST_VERSION
        )
        self._client = oslo_messaging.get_rpc_client(
            transport, target, serializer=serializer, timeout=timeout_seconds
        )
        self._bound = bound

    def update_host_states(
        self,
        context: Any,
        owner: str,
        states: Mapping[tuple[str, str], Mapping[str, Any] | None],
        server: str | None = None,
    ) -> objects.UpdateResult:
        """Have any scheduler, or one, write records; see the endpoint.

        :param states: by namespace and key; None deletes
        """
        updates = [
            objects.HostStateUpdate(namespace=namespace, key=key, state=state)
            for (namespace, key), state in states.items()
        ]
        result: objects.UpdateResult = self._call(
            context, server, "update_host_states", owner=owner, records=updates
        )
        return result

    def get_host_states(
        self,
        context: Any,
        namespace: str,
        keys: Collection[str] | None = None,
        predicate: Sequence[Sequence[Any]] | None = None,
        limit: int | None = None,
        marker: str | None = None,
        server: str | None = None,
    ) -> objects.HostStatePage:
        """Read one page from any scheduler, or from one; see the endpoint."""
        page: objects.HostStatePage = self._call(
            context,
            server,
            "get_host_states",
            namespace=namespace,
            keys=_listed(keys),
            predicate=None if predicate is None else [list(each) for each in predicate],
            limit=limit,
            marker=marker,
        )
        return page

    def iterate_host_states(
        self,
        context: Any,
        namespace: str,
        predicate: Sequence[Sequence[Any]] | None = None,
        server: str | None = None,
    ) -> Iterator[objects.HostState]:
        """Read all pages, in order of key; each may come from another scheduler."""
        marker = None
        while True:
            page = self.get_host_states(
                context, namespace, predicate=predicate, marker=marker, server=server
            )
            yield from page.states
            marker = page.next_marker
            if marker is None:
                return

    def list_host_states(
        self,
        context: Any,
        *,
        keys: Collection[str] | None = None,
        ids: Collection[int] | None = None,
        cell: str | None = None,
        host: str | None = None,
        node: str | None = None,
        service: str | None = None,
        search: str | None = None,
        predicate: Sequence[Sequence[Any]] | None = None,
        namespaces: Collection[str] = (),
        limit: int | None = None,
        marker: str | None = None,
        unproved: bool = False,
        server: str | None = None,
    ) -> objects.HostListPage:
        """Read one page of hosts from any scheduler, or from one; see the endpoint."""
        page: objects.HostListPage = self._call(
            context,
            server,
            "list_host_states",
            version="1.2",
            keys=_listed(keys),
            ids=_listed(ids),
            cell=cell,
            host=host,
            node=node,
            service=service,
            search=search,
            predicate=None if predicate is None else [list(each) for each in predicate],
            namespaces=_listed(namespaces),
            limit=limit,
            marker=marker,
            unproved=unproved,
        )
        return page

    def iterate_hosts(self, context: Any, **query: Any) -> Iterator[objects.ListedHost]:
        """Read all pages of hosts; each may come from another scheduler.

        :param query: arguments of :meth:`list_host_states`; ``marker`` is where it begins
        """
        while True:
            page = self.list_host_states(context, **query)
            yield from page.hosts
            if page.next_marker is None:
                return
            query["marker"] = page.next_marker

    def list_namespaces(
        self, context: Any, server: str | None = None
    ) -> list[objects.NamespaceInfo]:
        """Ask any scheduler, or one, for the declared namespaces."""
        found: list[objects.NamespaceInfo] = self._call(context, server, "list_namespaces")
        return found

    def get_status(self, context: Any, server: str | None = None) -> objects.SchedulerStatus:
        """Ask a worker of a scheduler host (or of any) where it stands."""
        status: objects.SchedulerStatus = self._call(context, server, "get_status")
        return status

    def explain(
        self,
        context: Any,
        request: Mapping[str, Any],
        servers: int = 1,
        limit: int = 10,
        server: str | None = None,
    ) -> explanations.Explanation:
        """Ask any scheduler, or one, what it would decide; see the endpoint."""
        found: explanations.Explanation = self._call(
            context,
            server,
            "explain",
            version="1.1",
            request=dict(request),
            servers=servers,
            limit=limit,
        )
        return found

    def get_decisions(
        self, context: Any, instance_uuid: str, server: str | None = None
    ) -> explanations.PastDecisions:
        """Ask a worker of a scheduler host what it remembers of a server."""
        found: explanations.PastDecisions = self._call(
            context, server, "get_decisions", version="1.1", instance_uuid=instance_uuid
        )
        return found

    def list_pending(
        self, context: Any, *, server: str | None = None, **query: Any
    ) -> pending_objects.PendingPage:
        """Read one page of requests that wait for room; see the endpoint."""
        page: pending_objects.PendingPage = self._call(
            context, server, "list_pending", version="1.3", **query
        )
        return page

    def get_pending(
        self, context: Any, instance_uuid: str, hosts: int = 5, server: str | None = None
    ) -> pending_objects.PendingDetails:
        """Ask any scheduler, or one, why a request waits; see the endpoint."""
        found: pending_objects.PendingDetails = self._call(
            context,
            server,
            "get_pending",
            version="1.3",
            instance_uuid=instance_uuid,
            hosts=hosts,
        )
        return found

    def cancel_pending(self, context: Any, instance_uuid: str) -> pending_objects.PendingOutcome:
        """Have a request end in ERROR; see the endpoint."""
        found: pending_objects.PendingOutcome = self._call(
            context, None, "cancel_pending", version="1.3", instance_uuid=instance_uuid
        )
        return found

    def promote_pending(
        self, context: Any, instance_uuid: str, rank: int | None = None
    ) -> pending_objects.PendingOutcome:
        """Let a request go before others; see the endpoint."""
        found: pending_objects.PendingOutcome = self._call(
            context,
            None,
            "promote_pending",
            version="1.3",
            instance_uuid=instance_uuid,
            rank=rank,
        )
        return found

    def drain_pending(self, context: Any, **query: Any) -> pending_objects.PendingOutcomes:
        """Have a page of requests end in ERROR; see the endpoint."""
        found: pending_objects.PendingOutcomes = self._call(
            context, None, "drain_pending", version="1.3", **query
        )
        return found

    def _call(
        self,
        context: Any,
        server: str | None,
        method: str,
        version: str = api.FIRST_VERSION,
        **arguments: Any,
    ) -> Any:
        to = self._client.prepare(version=version)
        if server is not None:
            to = to.prepare(server=server)
        call = functools.partial(to.call, context, method, **arguments)
        try:
            return call() if self._bound is None else self._bound(call)
        except errors.NodbError as error:
            raise _as_raised(error) from error
        except oslo_messaging.UnsupportedVersion as error:
            raise errors.MethodNotServed(method, version) from error
        except oslo_messaging.RemoteError as error:
            # By name: of an exception of a module that is not allowed that is all there is.
            if error.exc_type != oslo_messaging.UnsupportedVersion.__name__:
                raise
            raise errors.MethodNotServed(method, version) from error


def _listed(values: Collection[Any] | None) -> Any:
    """Make a list of what may be a set; of one text, the server says that it is no list."""
    return values if values is None or isinstance(values, str) else list(values)


def _as_raised(error: errors.NodbError) -> errors.NodbError:
    """Return an error as the server raised it.

    ``oslo.messaging`` gives it a class made on the spot, whose text ends with
    the server's traceback; that one stays behind as the cause.
    """
    original: type[errors.NodbError] = next(
        cls for cls in type(error).__mro__ if cls.__module__ in api.EXCEPTION_MODULES
    )
    raised: errors.NodbError = original(*error.args)
    return raised
