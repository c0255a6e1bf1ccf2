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
from nova_nodb_scheduler.rpc import api, client, endpoint, host_endpoint, update_validation
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.records import publisher
from nova_nodb_scheduler.synchronizer.replication import replicator, replicator_contract
from nova_nodb_scheduler.wire import codec, objects
from tests.unit.store import store_samples

DECLARED = (*known_namespaces.BUILT_IN, store_samples.POOLS)
_topics = itertools.count(1)


def scope(name, reason=""):
    """What a worker says of a cell; proved where there is no reason against it."""
    return objects.ScopeStatus(scope=name, hosts=1, proved=not reason, reason=reason, fallbacks={})


class CloudFixture(fixtures.Fixture):
    """One scheduler of that host, and a client of it.

    :param url: of the message bus
    """

    def __init__(self, host="sched1", status=None, url="fake://", **limits):
        super().__init__()
        self.host = host
        self._url = url
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
        self.cells = [scope("c1"), scope("c2")]
        self.others = [scope("placement")]
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
            conf, url=self._url, allowed_remote_exmods=list(api.EXCEPTION_MODULES)
        )
        self.addCleanup(self.transport.cleanup)
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
            self.freshness,
            lambda snapshot: self.tell,
        )
        self.hosts = host_endpoint.HostEndpoint(
            self.take_snapshot, known_namespaces.HOST_TABLES, self.limits
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
        return [self.endpoint, self.hosts]

    def tell(self, namespace, key, state):
        """What is told of a record."""
        return state

    def freshness(self):
        """How current the store is."""
        return endpoint.Freshness(self.replicator.status().epoch, 0.0, self.replicator.generation)

    def take_snapshot(self):
        """What a worker shows to who lists hosts; here cells are proved by decree."""
        status = self.replicator.status()
        return host_endpoint.JudgedSnapshot(
            snapshot=self.store.snapshot(),
            epoch=status.epoch,
            version=status.cursor_version,
            proof_age_seconds=status.proof_age_seconds,
            scheduler=self.host,
            scheduler_state=status.state.value,
            cells=self.cells,
            others=self.others,
            unreadable=self.replicator.quarantine.keys("compute_nodes"),
            tell=self.tell,
        )

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

    def break_record(self, namespace, key):
        """Leave a record that no release can read, whether there was one or not."""
        name = records.RecordKey(namespace, key)
        standing = self.synchronizer.read([name]).get(name)
        revision = 0 if standing is None else standing.revision
        [result] = self.synchronizer.write([records.Write(name, revision, b"?")])
        if not result.won:
            raise AssertionError(result)
        self.catch_up()

    def write(self, namespace, states, owner=known_namespaces.NOVA):
        """Write records as their owner does, past the RPC API."""
        self.publisher(owner).publish(
            {
                records.RecordKey(namespace, key): lambda current, state=state: state
                for key, state in states.items()
            }
        )
        self.catch_up()


class FirstRelease:
    """What version 1.0 served of today's endpoint."""

    target = oslo_messaging.Target(namespace=api.NAMESPACE, version="1.0")

    def __init__(self, now):
        self._now = now

    def get_host_states(self, ctxt, **arguments):
        return self._now.get_host_states(ctxt, **arguments)

    def list_namespaces(self, ctxt):
        return self._now.list_namespaces(ctxt)


class OlderCloudFixture(CloudFixture):
    """A scheduler of the first release, which knows no method that came later."""

    def endpoints(self):
        """What the server answers with."""
        return [FirstRelease(self.endpoint)]
