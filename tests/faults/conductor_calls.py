# SPDX-License-Identifier: Apache-2.0
"""Calls of Nova's objects carried out by one conductor of a cell and no other, as by its host."""

import contextlib
from collections.abc import Iterator
from typing import Any

import oslo_messaging
from nova import context as nova_context
from nova import objects
from nova import rpc as nova_rpc
from nova.objects import base as nova_base
from oslo_config import cfg

from tools.stack import configuration
from tools.stack import settings as stack_settings

_TOPIC = "conductor"
_CALL_SECONDS = 30.0


class Conductors:
    """The conductors of one cell, by their names in the stack."""

    def __init__(self, settings: stack_settings.Settings, cell: str) -> None:
        objects.register_all()
        self._settings = settings
        url = configuration.transport_url(settings, "nova-manage", cell)
        # Errors of Nova's API come as what they are.
        self._transport = oslo_messaging.get_rpc_transport(
            cfg.CONF, url=url, allowed_remote_exmods=["nova.exception"]
        )
        self.context = nova_context.get_admin_context()

    def close(self) -> None:
        """Close the connections."""
        self._transport.cleanup()

    @contextlib.contextmanager
    def asking(self, name: str) -> Iterator[Any]:
        """Have Nova's objects carry out their calls in one conductor, as in nova-compute.

        Gives the context for them. For one thread at a time: Nova's classes hold it.
        """
        former = nova_base.NovaObject.indirection_api
        nova_base.NovaObject.indirection_api = _Server(
            self._transport, self._settings.host_of(name)
        )
        try:
            yield self.context
        finally:
            nova_base.NovaObject.indirection_api = former


class _Server:
    """What Nova's objects call: as ``nova.conductor.rpcapi``, of one server."""

    def __init__(self, transport: oslo_messaging.Transport, server: str) -> None:
        target = oslo_messaging.Target(topic=_TOPIC, version="3.0")
        serializer = nova_rpc.RequestContextSerializer(nova_base.NovaObjectSerializer())
        client = oslo_messaging.get_rpc_client(
            transport, target, serializer=serializer, timeout=_CALL_SECONDS
        )
        self._client = client.prepare(server=server)

    def object_class_action_versions(
        self,
        context: Any,
        objname: str,
        objmethod: str,
        object_versions: Any,
        args: Any,
        kwargs: Any,
    ) -> Any:
        return self._client.call(
            context,
            "object_class_action_versions",
            objname=objname,
            objmethod=objmethod,
            object_versions=object_versions,
            args=args,
            kwargs=kwargs,
        )

    def object_action(
        self, context: Any, objinst: Any, objmethod: str, args: Any, kwargs: Any
    ) -> Any:
        return self._client.call(
            context,
            "object_action",
            objinst=objinst,
            objmethod=objmethod,
            args=args,
            kwargs=kwargs,
        )
