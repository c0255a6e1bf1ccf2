# SPDX-License-Identifier: Apache-2.0
"""Tells conductors to try a request that waits: what both sides agree on.

======= =======================================
version methods
======= =======================================
1.0     dispatch_pending(key, attempt)
======= =======================================

A cast, and nothing depends on its coming: a grant that nobody takes ends with its lease,
and the request is granted anew.
"""

from __future__ import annotations

import functools
from typing import Any

import nova.rpc
import oslo_messaging
from nova import context as nova_context
from nova.conductor import rpcapi

NAMESPACE = "nodb_queue"
VERSION = "1.0"


class ConductorApi:
    """Casts to Nova's super conductors; any thread. Connects with the first cast."""

    @functools.cached_property
    def _client(self) -> Any:
        target = oslo_messaging.Target(topic=rpcapi.RPC_TOPIC, namespace=NAMESPACE, version=VERSION)
        return nova.rpc.get_client(target)

    def dispatch(self, key: str, attempt: int) -> None:
        """Have some conductor take a request that is granted.

        May block while the bus is away.

        :raises MessagingException: the bus refused it
        """
        context = nova_context.get_admin_context()
        self._client.cast(context, "dispatch_pending", key=key, attempt=attempt)
