# SPDX-License-Identifier: Apache-2.0
"""A scheduler worker's runtime answers over Nova's transport, and leaves nothing behind."""

import importlib.util
import os
import threading
import unittest

import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd.overview import deployment, process_reports
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.records import publisher
from tests.unit.store import store_samples

HAVE_NOVA = importlib.util.find_spec("nova") is not None


@unittest.skipUnless(HAVE_NOVA, "needs Nova beside the plugin")
class SchedulerRpcTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        import nova.conf
        import nova.objects
        import nova.rpc
        from oslo_messaging import conffixture

        from nova_nodb_scheduler.nova_adapter import assembly, rpc_server

        nova.objects.register_all()
        conf = nova.conf.CONF
        conf([], project="nova", default_config_files=[])
        self.addCleanup(conf.reset)
        self.useFixture(conffixture.ConfFixture(conf)).transport_url = "fake:/"
        self.plugin = assembly.Plugin(conf)
        self.addCleanup(conf.clear_override, "synchronizer", "nodb_scheduler")
        conf.set_override("synchronizer", "memory", "nodb_scheduler")
        self.plugin.make_synchronizer()
        conf.set_override("hub_name", self.id(), "nodb_memory")
        self.addCleanup(conf.clear_override, "hub_name", "nodb_memory")
        transport, nova.rpc.TRANSPORT = nova.rpc.TRANSPORT, None
        self.addCleanup(setattr, nova.rpc, "TRANSPORT", transport)
        nova.rpc.TRANSPORT = nova.rpc.create_transport(nova.rpc.get_transport_url())
        self.rpc_server = rpc_server
        self.client = rpc_server.make_client(self.plugin, 5.0)

    def start(self, host="sched1"):
        conf = self.plugin.conf
        conf.set_override("host", host)
        self.addCleanup(conf.clear_override, "host")
        runtime = self.plugin.scheduler(
            lambda: ["cell1"],
            make_server=lambda runtime: self.rpc_server.RpcServer(self.plugin, runtime),
        )
        self.addCleanup(runtime.stop)
        runtime.start()
        return runtime

    def context(self):
        from nova import context

        return context.get_admin_context()

    def publish_node(self, runtime):
        synchronizer = self.plugin.make_synchronizer()
        synchronizer.open()
        self.addCleanup(synchronizer.close)
        declared = {each.name: each for each in self.plugin.declared}
        key = records.RecordKey("compute_nodes", "n1")
        state = {"cell": "cell1", "row": {"host": "h1", "vcpus": 4}}
        report = publisher.Publisher(synchronizer, declared, known_namespaces.NOVA).publish(
            {key: lambda current: state}
        )
        self.assertTrue(runtime.replicator.wait_until(report.version, 5.0))

    def test_status_tells_cells_feed_and_decisions(self):
        runtime = self.start()
        self.publish_node(runtime)
        for seconds in (0.1, 0.2, 0.9):
            runtime.scheduled(seconds, "selected")

        status = self.client.get_status(self.context(), server="sched1")

        self.assertEqual("sched1", status.host)
        self.assertEqual("following", status.feed.state)
        self.assertEqual((0.2, 0.9), (status.schedule_seconds_p50, status.schedule_seconds_p99))
        self.assertEqual({"selected": 3}, status.outcomes)
        self.assertEqual(1, status.records["compute_nodes"])
        cells = {each.scope: each for each in status.scopes}
        self.assertEqual(1, cells["cell1"].hosts)
        self.assertFalse(cells["cell1"].proved)
        self.assertEqual("never swept in this epoch", cells["cell1"].reason)
        self.assertIn("api", cells)

    def test_an_update_over_rpc_reaches_the_store_of_another_scheduler(self):
        self.plugin.declared = (*self.plugin.declared, store_samples.POOLS)
        first, second = self.start("sched1"), self.start("sched2")
        state = {"pool": {"free_gb": 5}, "backend": "lvm"}

        result = self.client.update_host_states(
            self.context(), "cinder", {("pools", "n9"): state}, server="sched1"
        )

        self.assertEqual([], result.errors)
        for runtime in (first, second):
            self.assertTrue(runtime.replicator.wait_until(result.version, 5.0))
        page = self.client.get_host_states(
            self.context(), "pools", predicate=[["backend", "==", "lvm"]], server="sched2"
        )
        self.assertEqual([state], [each.state for each in page.states])

    def test_a_worker_lets_nobody_write_what_is_built_in(self):
        self.start()

        for namespace in known_namespaces.BUILT_IN:
            update = {(namespace.name, "k"): {"swept_from": 1e18}}
            error = self.assertRaises(
                errors.NotOwner,
                self.client.update_host_states,
                self.context(),
                namespace.owner,
                update,
            )
            self.assertEqual(namespace.name, error.namespace)

    def test_a_record_beyond_the_back_ends_limit_is_counted(self):
        runtime = self.start()
        synchronizer = self.plugin.make_synchronizer()
        synchronizer.open()
        self.addCleanup(synchronizer.close)
        limit_bytes = synchronizer.capabilities.max_payload_bytes
        large = {"cell": "cell1", "row": {"host": "h1", "stats": os.urandom(limit_bytes).hex()}}
        small = {"cell": "cell1", "row": {"host": "h2"}}

        report = self.plugin.publisher(synchronizer, known_namespaces.NOVA).publish(
            {
                records.RecordKey("compute_nodes", "n1"): lambda current: large,
                records.RecordKey("compute_nodes", "n2"): lambda current: small,
            }
        )

        self.assertEqual(1, report.published)
        labels = {"namespace": "compute_nodes", "driver": "memory"}
        found = runtime.metrics.registry.get_sample_value("nodb_records_refused_total", labels)
        self.assertEqual(1, found)

    def test_the_whole_is_gathered_from_back_end_and_answers(self):
        runtime = self.start()
        self.publish_node(runtime)
        self.assertTrue(self.proved(runtime))

        found = deployment.gather(
            process_reports.read_backend(self.plugin.make_synchronizer()),
            lambda host: self.client.get_status(self.context(), server=host),
            self.rpc_server.CALL_ERRORS,
            15.0,
            300.0,
        )

        [scheduler] = found.schedulers
        self.assertEqual(
            ("sched1", True, 1), tuple(scheduler[name] for name in ("host", "answered", "hosts"))
        )
        self.assertIn("never swept", " ".join(found.problems))

    @staticmethod
    def proved(runtime):
        for _ in range(1200):
            if runtime.replicator.alive(10.0):
                return True
            threading.Event().wait(0.05)
        return False

    def test_nothing_runs_after_a_stop_and_a_second_stop_is_harmless(self):
        before = set(threading.enumerate())
        runtime = self.start()
        self.client.get_status(self.context(), server="sched1")

        runtime.stop()
        runtime.stop()

        left = [
            thread.name
            for thread in set(threading.enumerate()) - before
            if not thread.name.startswith(("reply", "fake"))
        ]
        self.assertEqual([], left)

    def test_a_worker_that_stops_can_be_followed_by_another(self):
        self.start().stop()
        self.start()

        self.assertEqual("sched1", self.client.get_status(self.context(), server="sched1").host)

    def test_the_guru_meditation_report_tells_of_the_worker(self):
        from oslo_reports import guru_meditation_report

        from nova_nodb_scheduler.nova_adapter.service import process_hooks

        runtime = self.start()
        self.assertTrue(self.proved(runtime))
        runtime.scheduled(0.5, "selected")
        process_hooks.tell_of_scheduler(runtime)

        report = guru_meditation_report.TextGuruMeditation("test").run()

        section = report[report.index("NoDB scheduler") :]
        for text in ("sched1", "following", "selected"):
            self.assertIn(text, section)
