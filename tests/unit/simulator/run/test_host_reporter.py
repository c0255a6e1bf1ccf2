# SPDX-License-Identifier: Apache-2.0
"""The reporter publishes what hosts say: in order, not too fast, and honest about its silence."""

import threading
import unittest.mock

import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import heartbeat_journals
from nova_nodb_scheduler.simulator.run import fleet, host_reporter, true_ledger
from nova_nodb_scheduler.simulator.scenario import made_hosts, workload
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.drivers.memory import hub
from nova_nodb_scheduler.synchronizer.records import heartbeat_ring
from nova_nodb_scheduler.wire import codec

FLAVOR = workload.MadeFlavor("f", 1, 1024, 10)
SERVER = "5e000000-0000-4000-8000-000000000001"


class Away(memory.MemorySynchronizer):
    """A driver whose back end may be away."""

    is_away = False

    def write(self, writes):
        if self.is_away:
            raise errors.BackendUnavailable("memory", "away")
        return super().write(writes)


class ReportingCase(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.now = 0.0
        self.cluster = made_hosts.Cluster(made_hosts.ClusterOptions(hosts=3, rack_hosts=2))
        self.ledger = true_ledger.TrueLedger(self.cluster, checked=False)
        self.synchronizer = Away(shared_hub=hub.MemoryHub())
        self.synchronizer.open()
        self.fleet = fleet.Fleet(self.cluster, self.ledger, self.mark, self.hear)
        self.reporter = self.make(updates_per_second=100.0)
        self.host = self.cluster.hosts[0]

    def mark(self, key):
        self.reporter.mark(key)

    def hear(self, service, report_count, seconds):
        self.reporter.hear(service, report_count, seconds)

    def make(self, **options):
        return host_reporter.HostReporter(
            self.synchronizer,
            self.fleet.state,
            threading.RLock(),
            lambda: self.now,
            beat_seconds=5.0,
            **options,
        )

    def stored(self, namespace, key):
        found = self.synchronizer.read([records.RecordKey(namespace, key)])
        return next(iter(found.values()), None)

    def state(self, namespace, key):
        return codec.decode_state(self.stored(namespace, key).payload)

    def beat_at(self):
        state = self.state("reporters", "simulated-conductor")
        return state["beat_at"] - made_hosts.BEGINNING_SECONDS

    def place(self):
        """Have a server allocated, granted and counted on the first host."""
        self.fleet.accept(SERVER, FLAVOR, self.host.uuid, "project")
        return self.fleet.built(SERVER)


class ReportingTest(ReportingCase):
    def test_all_records_of_all_hosts_are_there_before_the_run(self):
        self.assertEqual(15, self.reporter.populate(self.fleet.everything()))

        self.assertEqual(
            self.host.kind.vcpus, self.state("compute_nodes", self.host.uuid)["row"]["vcpus"]
        )
        self.assertEqual(0.0, self.beat_at())

    def test_a_back_end_that_holds_something_is_refused(self):
        self.reporter.populate(self.fleet.everything())
        error = self.assertRaises(
            errors.ConfigurationError, self.reporter.populate, self.fleet.everything()
        )
        self.assertIn("--reset", str(error))

    def test_a_node_is_told_after_the_servers_it_counts(self):
        self.reporter.populate(self.fleet.everything())
        self.place()
        self.now = 1.0
        self.reporter.flush()

        server = self.stored("instances", made_hosts.instance_key(SERVER))
        node = self.stored("compute_nodes", self.host.uuid)
        self.assertLess(server.version, node.version)
        self.assertEqual(1, self.state("compute_nodes", self.host.uuid)["row"]["vcpus_used"])

    def test_no_more_is_published_than_the_rate_allows(self):
        reporter = self.reporter = self.make(updates_per_second=2.0)
        reporter.populate(self.fleet.everything())
        for host in self.cluster.hosts:
            self.fleet.beat(host, 0.0)
            self.fleet.report(host, 0.0)
        self.now = 1.0
        self.assertEqual(2, reporter.flush())
        self.assertEqual(0, reporter.flush())
        self.now = 2.0
        self.assertEqual(2, reporter.flush())
        self.assertEqual(2, reporter.flush(everything=True))

    def test_two_changes_that_come_close_together_are_told_once(self):
        self.reporter.populate(self.fleet.everything())
        for seconds in (0.5, 0.6):
            self.fleet.beat(self.host, seconds)
        self.now = 1.0

        self.assertEqual(1, self.reporter.flush())
        state = self.state("service_liveness", self.host.service_uuid)
        self.assertEqual(3, state["report_count"])

    def test_the_beat_is_as_old_as_what_waits(self):
        self.reporter.populate(self.fleet.everything())
        self.now = 3.0
        self.fleet.beat(self.host, 3.0)
        self.reporter.lost = True
        self.now = 20.0
        self.assertEqual(0, self.reporter.flush())
        self.assertEqual(0.0, self.beat_at())

        self.reporter = reporter = self.make(updates_per_second=0.001)
        self.now = 3.0
        self.fleet.beat(self.host, 3.0)
        self.now = 20.0
        reporter.flush()
        self.assertEqual(3.0, self.beat_at())

    def test_what_was_not_published_waits_for_the_back_end(self):
        self.reporter.populate(self.fleet.everything())
        self.synchronizer.is_away = True
        self.fleet.beat(self.host, 1.0)
        self.now = 2.0
        self.assertEqual(0, self.reporter.flush())
        self.assertEqual((1, 1), (self.reporter.waiting, self.reporter.figures.failures))

        self.synchronizer.is_away = False
        self.assertEqual(1, self.reporter.flush())

    def test_a_lost_rack_says_nothing_and_builds_nothing_until_it_is_back(self):
        self.reporter.populate(self.fleet.everything())
        self.fleet.lose(0, 1.0)
        self.now = 2.0
        for host in self.cluster.hosts:
            self.fleet.beat(host, 2.0)
        self.assertEqual(1, self.reporter.flush())
        self.assertFalse(self.place())
        self.assertEqual(1.0, self.fleet.lost_at(self.host.uuid))

        self.assertEqual([SERVER], self.fleet.find(0, 3.0))
        self.assertTrue(self.fleet.built(SERVER))
        self.assertIsNone(self.fleet.lost_at(self.host.uuid))

    def test_a_deleted_server_leaves_no_record_and_no_use(self):
        self.reporter.populate(self.fleet.everything())
        self.place()
        self.fleet.deleted(SERVER)
        self.now = 1.0
        self.reporter.flush()

        server = self.stored("instances", made_hosts.instance_key(SERVER))
        self.assertTrue(server is None or server.deleted)
        self.assertEqual(0, self.state("compute_nodes", self.host.uuid)["row"]["vcpus_used"])

    def test_servers_from_before_the_run_have_records_like_all_others(self):
        self.ledger.stand(SERVER, self.host.uuid, FLAVOR.resources)
        self.fleet.stand(SERVER, FLAVOR, self.host.uuid)
        self.assertEqual(16, self.reporter.populate(self.fleet.everything()))

        key = made_hosts.instance_key(SERVER)
        row = self.state("instances", key)["row"]
        self.assertEqual(("active", self.host.name), (row["vm_state"], row["host"]))
        self.assertEqual(1, self.state("compute_nodes", self.host.uuid)["row"]["vcpus_used"])
        provider = self.state(fleet.PROVIDERS, self.host.uuid)
        self.assertEqual({SERVER: FLAVOR.resources}, provider["allocations"])

        self.assertEqual(self.host.uuid, self.ledger.end(SERVER, FLAVOR.resources))
        self.fleet.deleted(SERVER)
        self.now = 1.0
        self.reporter.flush()
        self.assertTrue(self.stored("instances", key).deleted)
        self.assertEqual({}, self.state(fleet.PROVIDERS, self.host.uuid)["allocations"])


class JournaledTest(ReportingCase):
    """Heartbeats go to a journal as pages."""

    def journaled(self, service_down_seconds=60.0):
        ring = heartbeat_ring.HeartbeatRing(
            self.synchronizer,
            made_hosts.CELL,
            lambda: "ring",
            host_reporter.ring_options(3.0, service_down_seconds),
            lambda: self.now,
        )
        self.reporter = self.make(updates_per_second=100.0, journal=ring)
        self.reporter.populate(self.fleet.everything())

    def slots(self):
        """Return (id, count, tick) of each heartbeat of each slot, in the order of the slots."""
        found = []
        for number in range(10):
            standing = self.stored("heartbeat_journals", f"ring.{number}")
            if standing is not None:
                slot = heartbeat_journals.read("ring", codec.decode_state(standing.payload))
                found.append(
                    list(
                        zip(
                            slot.ids.tolist(),
                            slot.counts.tolist(),
                            slot.ticks.tolist(),
                            strict=True,
                        )
                    )
                )
        return found

    def beat(self, seconds):
        for host in self.cluster.hosts:
            self.fleet.beat(host, seconds)

    def expected(self, count, seconds):
        tick = heartbeat_journals.tick_of(made_hosts.BEGINNING_SECONDS + seconds)
        services = (host.service_uuid for host in self.cluster.hosts)
        return sorted((heartbeat_journals.service_id(each), count, tick) for each in services)

    def test_each_is_told_once_a_second_to_a_page_and_no_record_changes(self):
        self.journaled()
        self.now = 0.5
        self.beat(0.5)
        self.reporter.flush()
        self.assertEqual([], self.slots())
        self.now = 1.0
        self.reporter.flush()
        self.beat(1.5)
        self.now = 2.0
        self.reporter.flush()

        self.assertEqual([self.expected(2, 0.5), self.expected(3, 1.5)], self.slots())
        state = self.state("service_liveness", self.host.service_uuid)
        self.assertEqual(1, state["report_count"])
        self.assertEqual((2, 6), (self.reporter.figures.updates, self.reporter.figures.journaled))

    def test_a_ring_has_room_however_long_services_may_be_silent(self):
        self.journaled(service_down_seconds=360.0)
        behind = set()
        for second in range(1, 1001):
            self.now = float(second)
            self.beat(self.now)
            self.reporter.flush()
            behind.add(self.now - self.beat_at() >= 5.0)
        self.assertEqual({False}, behind)
        self.assertEqual(3000, self.reporter.figures.journaled)

    def test_a_ring_has_room_for_very_many_hosts(self):
        for beats, seconds, slots in ((10, 60.0, 512), (10_000, 60.0, 600), (100_000, 60.0, 3900)):
            options = host_reporter.ring_options(beats, seconds)
            self.assertEqual((2.5 * seconds, slots), (options.keep_seconds, options.max_slots))

    def test_none_is_lost_while_nobody_takes_them_and_the_beat_says_so(self):
        self.journaled()
        self.beat(1.0)
        self.synchronizer.is_away = True
        for self.now in (1.0, 7.0):
            self.reporter.flush()
        self.beat(8.0)
        self.assertEqual(0, self.reporter.figures.journaled)
        self.synchronizer.is_away = False
        self.now = 8.5
        self.reporter.flush()
        told = [beat for slot in self.slots() for beat in slot]
        self.assertEqual(sorted(self.expected(2, 1.0) + self.expected(3, 8.0)), sorted(told))
        self.assertEqual(8.5, self.beat_at())

    def test_the_beat_is_as_old_as_a_heartbeat_that_waits(self):
        self.journaled()
        self.beat(1.0)
        self.now = 1.0
        with unittest.mock.patch.object(
            heartbeat_ring.HeartbeatRing,
            "flush",
            autospec=True,
            return_value=heartbeat_ring.RingFlush(0, 0, 3, 0),
        ):
            self.reporter.flush()
            self.now = 9.0
            self.beat(9.0)
            self.reporter.flush()
        self.assertEqual(1.0, self.beat_at())
