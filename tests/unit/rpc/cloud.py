# SPDX-License-Identifier: Apache-2.0
"""A scheduler's RPC API over the messaging library's own in-process transport.

The parts are the real ones: back end in memory, replicator, store, publisher,
endpoint, server and client.
"""

import itertools

import fixtures
import oslo_messaging
from oslo_config import cfg
from oslo_messaging import conffixture

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.rpc import api, client, endpoint, update_validation
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.records import publisher
from nova_nodb_scheduler.synchronizer.replication import replicator, replicator_contract
from nova_nodb_scheduler.wire import codec, objects
from tests.unit.store import store_samples

DECLARED = (*known_namespaces.BUILT_IN, store_samples.POOLS)
_topics = itertools.count(1)


class CloudFixture(fixtures.Fixture):
    """One scheduler of that host, and a client of it."""

    def __init__(self, host="sched1", status=None, **limits):
        super().__init__()
        self.host = host
        self.limits = update_validation.UpdateLimits(
            **{
                "records_per_update": 100,
                "update_bytes": 100_000,
                "updates_per_second": 1000.0,
                "page_size": 3,
                **limits,
            }
        )
        self._status = status
        self.hub = memory.MemoryHub()

    def _setUp(self):
        self.synchronizer = memory.MemorySynchronizer(shared_hub=self.hub)
        self.synchronizer.open()
        self.addCleanup(self.synchronizer.close)
        self.store = host_state_store.HostStateStore(DECLARED, codec.decode_state)
        self.replicator = replicator.Replicator(
            memory.MemorySynchronizer(shared_hub=self.hub),
            self.store,
            DECLARED,
            identity=f"{self.host}:1:1",
            options=replicator_contract.ReplicatorOptions(wait_seconds=0.05),
        )
        self.replicator.start()
        self.addCleanup(self.replicator.stop)
        self._serve()

    def _serve(self):
        conf = cfg.ConfigOpts()
        conf([])
        # Registers what the library otherwise registers on the global one.
        self.useFixture(conffixture.ConfFixture(conf))
        self.transport = oslo_messaging.get_rpc_transport(
            conf, url="fake://", allowed_remote_exmods=list(api.EXCEPTION_MODULES)
        )
        self.topic = f"nodb-{next(_topics)}"
        self.endpoint = endpoint.StateEndpoint(
            self.store,
            DECLARED,
            update_validation.UpdateValidation(
                DECLARED, self.limits, [each.name for each in known_namespaces.BUILT_IN]
            ),
            self.limits,
            self._publish,
            self._status,
            lambda: (self.replicator.status().epoch, 0.0),
        )
        server = oslo_messaging.get_rpc_server(
            self.transport,
            oslo_messaging.Target(topic=self.topic, server=self.host),
            self.endpoints(),
            executor="threading",
            serializer=objects.Serializer(self.limits.update_bytes),
        )
        server.start()
        self.addCleanup(server.wait)
        self.addCleanup(server.stop)
        self.client = client.Client(self.transport, self.topic, objects.Serializer(), 5.0)

    def endpoints(self):
        """What the server answers with."""
        return [self.endpoint]

    def _publish(self, owner, states):
        report = self.publisher(owner).publish(
            {
                key: lambda current, state=state: publisher.DELETE if state is None else state
                for key, state in states.items()
            }
        )
        return endpoint.PublishedStates(
            report.published, report.unchanged, report.deleted, report.version, report.rejected
        )

    def publisher(self, owner):
        declared = {namespace.name: namespace for namespace in DECLARED}
        return publisher.Publisher(self.synchronizer, declared, owner)

    def catch_up(self):
        """Wait until everything written is in the store."""
        if not self.replicator.wait_until(self.synchronizer.head().version, 5.0):
            raise AssertionError("the feed did not catch up")

    def write(self, namespace, states, owner=known_namespaces.NOVA):
        """Write records as their owner does, past the RPC API."""
        self.publisher(owner).publish(
            {
                records.RecordKey(namespace, key): lambda current, state=state: state
                for key, state in states.items()
            }
        )
        self.catch_up()
