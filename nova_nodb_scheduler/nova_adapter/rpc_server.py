# SPDX-License-Identifier: Apache-2.0
"""The RPC API on Nova's message bus: server in a scheduler worker, client for commands."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

import nova.rpc
import oslo_messaging

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter import assembly
from nova_nodb_scheduler.nova_adapter.service import (
    decision_explainer,
    judged_snapshots,
    worker_status,
)
from nova_nodb_scheduler.nova_adapter.service import scheduler_runtime as runtime_module
from nova_nodb_scheduler.rpc import api, client, endpoint, host_endpoint, queue_endpoint
from nova_nodb_scheduler.rpc import update_validation as admission_module
from nova_nodb_scheduler.scheduling.facts import journal_reader
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import publisher as publisher_module
from nova_nodb_scheduler.wire import objects

LOG = logging.getLogger(__name__)


class OwnerPublisher:
    """Publishes on behalf of owners, over a connection that opens with the first call.

    Not the replicator's: that one is closed and opened again when the feed is
    silent, and most schedulers are never asked to write.
    """

    def __init__(self, plugin: assembly.Plugin) -> None:
        self._plugin = plugin
        self._lock = threading.Lock()
        self._synchronizer: contract.Synchronizer | None = None

    def publish(
        self, owner: str, states: Mapping[records.RecordKey, Mapping[str, Any] | None]
    ) -> endpoint.PublishedStates:
        """Write states; None deletes.

        :raises BackendUnavailable: some may have been written
        """
        publisher = self._plugin.publisher(self._opened(), owner)
        report = publisher.publish({key: _constant(state) for key, state in states.items()})
        lost = dict.fromkeys(report.failed, "others kept writing it at the same time; call again")
        return endpoint.PublishedStates(
            published=report.published,
            unchanged=report.unchanged,
            deleted=report.deleted,
            version=report.version,
            rejected={**report.rejected, **lost},
        )

    def close(self) -> None:
        """Release the connection; idempotent."""
        with self._lock:
            synchronizer, self._synchronizer = self._synchronizer, None
        if synchronizer is not None:
            synchronizer.close()

    def _opened(self) -> contract.Synchronizer:
        with self._lock:
            if self._synchronizer is None:
                synchronizer = self._plugin.make_synchronizer()
                synchronizer.open()
                self._synchronizer = synchronizer
            return self._synchronizer


def _constant(state: Mapping[str, Any] | None) -> publisher_module.Compute:
    return lambda current: publisher_module.DELETE if state is None else state


class RpcServer:
    """A worker's server; started and stopped by its runtime."""

    def __init__(self, plugin: assembly.Plugin, runtime: runtime_module.SchedulerRuntime) -> None:
        options = plugin.options
        limits = admission_module.UpdateLimits(
            records_per_update=options.rpc_max_records_per_update,
            update_bytes=options.rpc_max_update_bytes,
            updates_per_second=options.rpc_max_updates_per_second,
            page_size=options.rpc_page_size,
            page_bytes=options.rpc_max_page_bytes,
        )
        self._most_update_bytes = limits.update_bytes
        self._publisher = OwnerPublisher(plugin)

        def freshness() -> endpoint.Freshness:
            # First: a rebuild that begins before the rest is read is seen by it.
            generation = runtime.replicator.generation
            status = runtime.replicator.status()
            return endpoint.Freshness(status.epoch, status.proof_age_seconds, generation)

        self._endpoint = endpoint.StateEndpoint(
            runtime.store,
            # Of what no store holds nothing can be told: an empty page would be a lie.
            runtime.store.namespaces(),
            admission_module.UpdateValidation(
                plugin.declared,
                limits,
                protected=[each.name for each in known_namespaces.BUILT_IN],
            ),
            limits,
            self._publisher.publish,
            lambda: worker_status.build(runtime),
            freshness,
            lambda snapshot: journal_reader.telling(runtime.journals.look(snapshot)),
        )
        explainer = decision_explainer.DecisionExplainer(runtime, options.rpc_explain_seconds)
        self._explaining = endpoint.ExplainingEndpoint(
            explainer.explain,
            explainer.past,
            lambda: len(runtime.store.snapshot().namespace(known_namespaces.COMPUTE_NODES.name)),
            endpoint.ExplainBounds(
                at_once=options.rpc_max_explanations, places=options.rpc_max_explained_places
            ),
        )
        self._hosts = host_endpoint.HostEndpoint(
            judged_snapshots.JudgedSnapshots(runtime).take, known_namespaces.HOST_TABLES, limits
        )
        self._queue = queue_endpoint.QueueEndpoint(plugin.queue_desk(runtime), limits.page_size)
        self._target = oslo_messaging.Target(topic=options.rpc_topic, server=str(plugin.conf.host))
        self._server: Any = None

    def start(self) -> None:
        """Listen; the transport must be there (Nova's service made it)."""
        self._server = nova.rpc.get_server(
            self._target,
            [self._endpoint, self._explaining, self._hosts, self._queue],
            serializer=objects.Serializer(self._most_update_bytes),
        )
        self._server.start()
        LOG.debug("The nodb RPC API listens on %(target)s.", {"target": self._target})

    def stop(self) -> None:
        """Take no more calls; idempotent."""
        if self._server is not None:
            self._server.stop()

    def wait(self) -> None:
        """Return when the calls that were taken are answered."""
        if self._server is not None:
            self._server.wait()
        self._publisher.close()


def make_client(
    plugin: assembly.Plugin, timeout_seconds: float, bound: client.Bound | None = None
) -> client.Client:
    """Return a client of the schedulers, for a process with Nova's configuration.

    :param bound: see :class:`.client.Client`
    """
    for module in api.EXCEPTION_MODULES:
        if module not in nova.rpc.get_allowed_exmods():
            nova.rpc.add_extra_exmods(module)
    transport = nova.rpc.create_transport(nova.rpc.get_transport_url())
    return client.Client(
        transport,
        plugin.options.rpc_topic,
        nova.rpc.RequestContextSerializer(objects.Serializer()),
        timeout_seconds,
        bound,
    )


def bus_address() -> str:
    """Return where the message bus is, without credentials."""
    hosts = nova.rpc.get_transport_url().hosts
    return ", ".join(f"{host.hostname}:{host.port}" for host in hosts)


#: What a client raises that is no error of this project: nobody answered in
#: time, the bus is not there, or the caller's version is too new.
CALL_ERRORS: tuple[type[Exception], ...] = (
    oslo_messaging.MessagingException,
    oslo_messaging.RemoteError,
    errors.NodbError,
)
