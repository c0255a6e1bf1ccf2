# SPDX-License-Identifier: Apache-2.0
"""What stands between an empty worker and a filled frame, guarded by counts."""

import gc
import uuid

import attrs
import fixtures
import testtools
from testtools import matchers

from nova_nodb_scheduler.model import namespaces as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import (
    collector,
    declarations,
    host_state_store,
    store_snapshot,
)
from nova_nodb_scheduler.synchronizer.drivers.memory import driver, hub
from nova_nodb_scheduler.synchronizer.replication import ingest, replicator
from nova_nodb_scheduler.wire import codec, payload_packing
from tests import counted_calls
from tests.unit.scheduling import hosts
from tests.unit.store import store_samples

HOSTS = 1500
KINDS = 4
#: To read a server among others: nothing but its text is looked at by itself. There are as many
#: as stand second where each is decoded, entered and indexed by itself.
CALLS_A_SERVER, CALLS_ALONE = 11, 95
#: The same of a page that is columns: no object is made of a server but what its text holds.
CALLS_IN_COLUMNS = 7


class Counting:
    """Counts calls, and makes them."""

    def __init__(self, call):
        self.call, self.count = call, 0

    def __call__(self, *given):
        self.count += 1
        return self.call(*given)


class BulkLoadTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        backend = hub.MemoryHub()
        writer = driver.MemorySynchronizer(shared_hub=backend)
        writer.open()
        writes = []
        for number in range(HOSTS):
            uuid, host = f"uuid-{number:05}", f"host-{number:05}"
            for namespace, key, state in (
                (known_namespaces.COMPUTE_NODES, uuid, hosts.node(uuid, host)),
                (known_namespaces.SERVICES, f"s-{uuid}", hosts.service(f"s-{uuid}", host)),
                (known_namespaces.SERVICE_LIVENESS, f"s-{uuid}", hosts.liveness(60)),
                (known_namespaces.PROVIDERS, uuid, hosts.provider()),
            ):
                payload = codec.encode(state, model.SchemaVersion(1, 0))
                writes.append(records.Write(records.RecordKey(namespace.name, key), 0, payload))
        for first in range(0, len(writes), 500):
            writer.write(writes[first : first + 500])
        reader = driver.MemorySynchronizer(shared_hub=backend)
        self.decode = Counting(codec.decode)
        self.read_again = Counting(codec.decode_state)
        self.world = hosts.Hosts()
        self.world.store = host_state_store.HostStateStore(
            known_namespaces.BUILT_IN, self.read_again, packing=payload_packing.DictionaryPacking
        )
        self.follower = replicator.Replicator(
            reader,
            self.world.store,
            known_namespaces.BUILT_IN,
            identity="one",
            decode=self.decode,
        )

    def load(self):
        while not self.follower.generation or self.follower.generation % 2:
            self.follower.step()

    def test_each_record_is_decoded_once_until_the_frame_is_filled(self):
        self.load()
        self.assertEqual(KINDS * HOSTS, self.decode.count)

        keeper, feed = self.world.keeper()
        keeper.catch_up(60.0)

        self.assertEqual(HOSTS, len(feed.frame))
        self.assertEqual(KINDS * HOSTS, self.decode.count)
        self.assertEqual(0, self.read_again.count)

    def test_a_frame_is_filled_without_a_look_at_each_record(self):
        self.load()
        keeper, feed = self.world.keeper()
        looked_up = []
        digest = store_snapshot.NamespaceView.digest
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova_nodb_scheduler.store.store_snapshot.NamespaceView.digest",
                lambda view, key: looked_up.append(key) or digest(view, key),
            )
        )
        keeper.catch_up(60.0)

        self.assertEqual(HOSTS, len(feed.frame))
        self.assertEqual([], looked_up)
        self.assertEqual(HOSTS + 1, len(feed.fed))
        self.assertEqual(1, feed.pages)

    def note_collections(self):
        """Return a list of the begins and ends of collections from now on, which are many."""
        collections = []

        def note(phase, _about):
            collections.append(phase)

        self.addCleanup(gc.set_threshold, *gc.get_threshold())
        gc.set_threshold(100)
        gc.callbacks.append(note)
        self.addCleanup(gc.callbacks.remove, note)
        return collections

    def test_the_first_look_at_a_load_does_no_work_of_it(self):
        self.load()
        collections = self.note_collections()
        snapshot = self.world.store.snapshot()

        self.assertEqual([], collections)
        nodes = snapshot.namespace(known_namespaces.COMPUTE_NODES.name)
        self.assertEqual(("uuid-00007",), nodes.lookup("host", "host-00007"))

    def test_the_collector_rests_while_a_frame_is_filled_and_is_on_afterwards(self):
        self.load()
        keeper, feed = self.world.keeper()
        collections = self.note_collections()
        keeper.catch_up(60.0)

        self.assertEqual(HOSTS, len(feed.frame))
        self.assertTrue(gc.isenabled())
        # One for each hundred objects would be some fifty.
        self.assertThat(len(collections), matchers.LessThan(10))

    def test_columns_that_are_filled_alone_are_settled_once(self):
        for name, value in (("_settled_at", None), ("_is_settled", True)):
            self.useFixture(
                fixtures.MonkeyPatch(f"nova_nodb_scheduler.store.collector.{name}", value)
            )
        self.addCleanup(gc.unfreeze)
        self.load()
        self.world.keeper()[0].catch_up(60.0)
        self.assertTrue(collector.is_settled())

        keeper, _feed = self.world.keeper()
        keeper.catch_up(60.0)
        # Not twice within a minute.
        self.assertFalse(collector.is_settled())

        collector._settled_at = None
        keeper.catch_up(120.0)
        self.assertTrue(collector.is_settled())

        collector._settled_at = None
        keeper.catch_up(180.0)
        self.assertIsNone(collector._settled_at)


class FewCallsTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.store = host_state_store.HostStateStore(
            declarations.followed(known_namespaces.BUILT_IN),
            codec.decode_state,
            packing=payload_packing.DictionaryPacking,
        )
        self.quarantine = ingest.Quarantine(10)
        self.ingester = ingest.Ingester(self.store, known_namespaces.BUILT_IN, self.quarantine)

    def calls_to_take(self, page):
        return counted_calls.count(lambda: list(self.ingester.take(page)))

    def test_a_server_is_read_by_few_calls(self):
        pages = [list(map(server, range(first, first + 1024))) for first in range(0, 4096, 1024)]
        self.assertLess(sum(map(self.calls_to_take, pages)) / 4096, CALLS_A_SERVER)
        self.assertEqual(4096, len(self.store.snapshot().namespace("instances")))

    def test_pages_of_any_length_cost_few_calls(self):
        pages = [list(map(server, range(first, first + 300))) for first in range(0, 3000, 300)]
        self.assertLess(sum(map(self.calls_to_take, pages)) / 3000, CALLS_A_SERVER)

    def test_a_server_in_columns_is_read_by_fewer_calls(self):
        pages = [
            store_samples.in_columns(list(map(server, range(first, first + 1024))))
            for first in range(0, 4096, 1024)
        ]
        self.assertLess(sum(map(self.calls_to_take, pages)) / 4096, CALLS_IN_COLUMNS)
        self.assertEqual(4096, len(self.store.snapshot().namespace("instances")))

    def test_one_that_cannot_be_read_costs_no_more_than_those_beside_it(self):
        page = list(map(server, range(2048)))
        page[700] = attrs.evolve(page[700], payload=b"\x01{")
        calls = self.calls_to_take(page)

        self.assertEqual({page[700].key.key}, self.quarantine.keys("instances"))
        held = self.store.snapshot().namespace("instances")
        self.assertEqual(2047, len(held))
        self.assertNotIn(page[700].key.key, set(held.keys()))
        self.assertLess(calls / 2048, CALLS_A_SERVER + CALLS_ALONE / 4)


def server(number):
    state = {"cell": hosts.CELL, "object_version": "2.8"}
    state["row"] = {"host": f"h{number % 50}", "node": f"n{number % 50}", "vcpus": 2}
    state["row"] |= {"project_id": f"p{number % 20}", "vm_state": "active", "text": "x" * 400}
    key = f"{uuid.UUID(int=number * 2**64 + number)}@{hosts.CELL}"
    payload = codec.encode(state, model.SchemaVersion(1, 0))
    return records.Record(records.RecordKey("instances", key), number + 1, number + 1, payload)
