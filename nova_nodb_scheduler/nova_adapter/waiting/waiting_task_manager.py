# SPDX-License-Identifier: Apache-2.0
"""Nova's ComputeTaskManager, whose creations of servers may wait for room.

Only ``schedule_and_build_instances`` waits. What it calls on its way is the same here for
all that a conductor does, and does nothing of its own in a thread that has no request in
hand: moves, rebuilds, reschedules and requests that do not wait are Nova's to the letter.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import nova.conductor.manager
import oslo_messaging
from nova import exception as nova_exception
from oslo_utils import timeutils

from nova_nodb_scheduler.nova_adapter.waiting import (
    abandoned_requests,
    conductor_rpc,
    request_payload,
    unsent_servers,
    waiting_conductor,
)


class WaitingTaskManager(nova.conductor.manager.ComputeTaskManager):  # type: ignore[misc]
    """See the module."""

    def __init__(self, waiting: waiting_conductor.WaitingConductor) -> None:
        self._nodb_waiting = waiting
        super().__init__()

    @property
    def compute_rpcapi(self) -> Any:
        """Nova's, but that servers are sent with a word in their request's record."""
        return self._nodb_sending

    @compute_rpcapi.setter
    def compute_rpcapi(self, api: Any) -> None:
        # Nova makes another one when it is told to read its configuration again.
        self._nodb_sending = _SendingApi(api, self._nodb_waiting.send)

    def schedule_and_build_instances(
        self,
        context: Any,
        build_requests: Any,
        request_specs: Any,
        image: Any,
        admin_password: Any,
        injected_files: Any,
        requested_networks: Any,
        block_device_mapping: Any,
        tags: Any = None,
    ) -> None:
        """Build servers, or let them wait for room."""
        arguments = request_payload.BuildArguments(
            request_specs,
            image,
            admin_password,
            injected_files,
            requested_networks,
            block_device_mapping,
            tags,
        )
        try:
            attempt = self._nodb_waiting.keep(context, arguments)
        except waiting_conductor.LeftAlone:
            return
        build = functools.partial(self._nodb_build, context, build_requests, arguments)
        if attempt is None:
            build()
        elif isinstance(attempt, waiting_conductor.Unkept):
            self._nodb_waiting.conduct_unkept(attempt, build)
        else:
            self._nodb_waiting.conduct(attempt, build)

    def nodb_dispatch(self, key: str, attempt: int) -> None:
        """Try a request that a scheduler granted."""
        ways = waiting_conductor.Ways(self._nodb_build, self._nodb_send_on, self._nodb_bury)
        self._nodb_waiting.dispatch(key, attempt, ways)

    def _nodb_build(
        self, context: Any, build_requests: Any, arguments: request_payload.BuildArguments
    ) -> None:
        super().schedule_and_build_instances(
            context,
            self._nodb_held(build_requests),
            arguments.request_specs,
            arguments.image,
            arguments.admin_password,
            arguments.injected_files,
            arguments.requested_networks,
            arguments.block_device_mapping,
            arguments.tags,
        )

    def _nodb_send_on(
        self, context: Any, server: str, arguments: request_payload.BuildArguments
    ) -> None:
        unsent_servers.send_on(self, context, server, arguments, self._nodb_waiting.still_holds)

    def _nodb_bury(
        self,
        context: Any,
        build_requests: Any,
        arguments: request_payload.BuildArguments,
        error: Exception,
    ) -> None:
        bury = functools.partial(
            self._bury_in_cell0,
            context,
            arguments.request_specs[0],
            error,
            build_requests=self._nodb_held(build_requests),
            block_device_mapping=arguments.block_device_mapping,
            tags=arguments.tags,
        )
        abandoned_requests.handle(error, bury)

    def _nodb_held(self, build_requests: Any) -> Any:
        if self._nodb_waiting.current is None:
            return build_requests
        return [_HeldBuildRequest(each, self._nodb_waiting.still_holds) for each in build_requests]

    # -- what Nova's methods call --------------------------------------------------------

    def _schedule_instances(
        self,
        context: Any,
        request_spec: Any,
        instance_uuids: Any = None,
        return_alternates: bool = False,
    ) -> Any:
        return self._nodb_waiting.choose(
            request_spec,
            tuple(instance_uuids or ()),
            functools.partial(
                super()._schedule_instances,
                context if self._nodb_waiting.current is None else _asked_now(context),
                request_spec,
                instance_uuids,
                return_alternates=return_alternates,
            ),
        )

    def _bury_in_cell0(self, *args: Any, **kwargs: Any) -> None:
        self._nodb_waiting.begin()
        super()._bury_in_cell0(*args, **kwargs)

    def _map_instance_to_cell(self, context: Any, instance: Any, cell: Any) -> Any:
        self._nodb_waiting.still_holds(instance.uuid)
        return super()._map_instance_to_cell(context, instance, cell)

    def _delete_build_request(
        self, context: Any, build_request: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        self._nodb_waiting.mapped(
            instance.uuid,
            functools.partial(abandoned_requests.has_build_request, context, instance.uuid),
        )
        return super()._delete_build_request(context, build_request, instance, *args, **kwargs)

    def _cleanup_build_artifacts(self, *args: Any, **kwargs: Any) -> None:
        self._nodb_waiting.check()
        super()._cleanup_build_artifacts(*args, **kwargs)
        self._nodb_waiting.cleaned()


def _asked_now(context: Any) -> Any:
    """Return a context to ask a scheduler by, which takes one of long ago for given up.

    Nova's record of the server's creation has the time at which its user asked.
    """
    asking = copy.copy(context)
    asking.timestamp = timeutils.utcnow()
    return asking


class _SendingApi:
    """Nova's API of computes; told of each server just before it is sent to be built.

    :param send: raises where it must not be
    """

    def __init__(self, api: Any, send: Callable[[str], None]) -> None:
        self._api = api
        self._send = send

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    def build_and_run_instance(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
        message = _MessageContext(context, functools.partial(self._send, instance.uuid))
        return self._api.build_and_run_instance(message, instance, *args, **kwargs)


class _MessageContext:
    """The context of one message, which is made last of its parts.

    A conductor that is killed behind the word and before the message loses the server. By
    then the client, the compute's version and the arguments' text are there, which takes
    longest where a conductor has just begun and many come at once.

    :param before: called once, before the message has a context
    """

    def __init__(self, context: Any, before: Callable[[], None]) -> None:
        self._context = context
        self._before = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def to_dict(self) -> Any:
        self._before()
        return self._context.to_dict()


class _HeldBuildRequest:
    """Nova's build request of a server that may wait.

    Nova makes an instance of it, then looks whether it is there still, and takes the
    server's mapping and allocations away where it is not: its user deleted it, or whoever
    came after has built it.

    :param check: raises where it is somebody else's
    """

    def __init__(self, build_request: Any, check: Callable[[str], None]) -> None:
        self._build_request = build_request
        self._check = check

    def __getattr__(self, name: str) -> Any:
        return getattr(self._build_request, name)

    def get_new_instance(self, context: Any) -> Any:
        self._check(self._build_request.instance_uuid)
        return self._build_request.get_new_instance(context)

    def destroy(self) -> None:
        context, server = self._build_request._context, self._build_request.instance_uuid
        if abandoned_requests.delete_mapped_request(context, server):
            return
        self._check(server)
        if abandoned_requests.has_build_request(context, server):
            # Somebody who slept took the mapping back: it is placed anew when the lease ends.
            raise waiting_conductor.LeftAlone
        # For Nova its user has deleted the server, whose instance is to go, too.
        raise nova_exception.BuildRequestNotFound(uuid=server)


class DispatchEndpoint:
    """What schedulers cast to conductors; see :mod:`.conductor_rpc`."""

    target = oslo_messaging.Target(namespace=conductor_rpc.NAMESPACE, version=conductor_rpc.VERSION)

    def __init__(self, tasks: WaitingTaskManager) -> None:
        self._tasks = tasks

    def dispatch_pending(self, context: Any, key: str, attempt: int) -> None:
        """Try a request that was granted, in the thread of the message."""
        self._tasks.nodb_dispatch(key, attempt)


def install(manager: Any, waiting: waiting_conductor.WaitingConductor) -> None:
    """Have a conductor manager's requests wait; nothing runs before ``waiting`` is started.

    :param manager: Nova's ConductorManager, constructed, with no server yet
    """
    tasks = WaitingTaskManager(waiting)
    place = manager.additional_endpoints.index(manager.compute_task_mgr)
    manager.additional_endpoints[place] = manager.compute_task_mgr = tasks
    manager.additional_endpoints.append(DispatchEndpoint(tasks))
