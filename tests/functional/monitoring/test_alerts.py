# SPDX-License-Identifier: Apache-2.0
"""Faults made for real, and the alerts that a real Prometheus fires by the shipped rules.

A scheduler, a conductor's and an API's reporter of this process, Placement, a Redis
and Prometheus beside it. The rules' windows and patience are of seconds, and so are
the options' bounds; the rest of them is as shipped. NODB_BOARD_PICTURE names a file
that the board's test draws it to.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import tempfile
import threading
import time
import unittest
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import attrs
import prometheus_client
from keystoneauth1 import exceptions as keystone

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter import assembly
from nova_nodb_scheduler.nova_adapter.placement.mirror import mirror_sweep
from nova_nodb_scheduler.observe import (
    exporter,
    metric_labels,
    process_metrics,
    queue_metrics,
    worker_slots,
)
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import loader
from nova_nodb_scheduler.synchronizer.claims import claim_rules
from nova_nodb_scheduler.synchronizer.drivers.redis import driver as redis_driver
from nova_nodb_scheduler.synchronizer.records import publisher as publisher_module
from nova_nodb_scheduler.synchronizer.replication import replicator_contract
from nova_nodb_scheduler.testing import patience, redis_server, server_processes
from nova_nodb_scheduler.wire import codec
from tests.functional.monitoring import prometheus_server
from tests.functional.nova_adapter import cloud, placement_mariadb
from tests.functional.nova_adapter.decisions import test_memory_decisions
from tools import board

#: Some scrapes, evaluations and bounds one after the other, on a busy machine.
ALERT_SECONDS = 120.0
BOUND_SECONDS = 5.0
DEAD = "scheduler-2:77:1:0a0b0c0d"


class AlertsCase(test_memory_decisions.MemoryDecisionsCase):
    BACK_END = "redis"
    HOSTS = (
        (cloud.CELL1, "h1", 100, {}),
        (cloud.CELL2, "h2", 100, {}),
    )
    #: A fraction of the bounds; each beat is written, fed and applied.
    BEAT_SECONDS = 1.0
    #: Options of ``[nodb_scheduler]``.
    OPTIONS: Mapping[str, Any] = {}

    def setUp(self) -> None:
        cloud.databases()
        loader.load_class("redis").register_opts(cloud.CONF)
        self.redis = self.enterContext(redis_server.Redis())
        self.override("url", self.redis.url, "nodb_redis")
        self.override("timeout_seconds", 3.0, "nodb_redis")
        self.directory = pathlib.Path(
            self.enterContext(tempfile.TemporaryDirectory(prefix="nodb-", dir="/tmp"))
        )
        self.ports = {role: server_processes.free_port() for role in ("", "conductor_", "api_")}
        for role, port in self.ports.items():
            self.override(f"{role}metrics_port", port, "nodb_scheduler")
        for name, value in {
            "metrics_directory": str(self.directory),
            "feed_bound_seconds": BOUND_SECONDS,
            "reporter_bound_seconds": BOUND_SECONDS,
            "mirror_sweep_interval_seconds": 2.0,
            "mirror_bound_seconds": 8.0,
            "verify_allocations": "always",
            "delete_orphan_allocations": False,
            **self.OPTIONS,
        }.items():
            self.override(name, value, "nodb_scheduler")
        super().setUp()
        self.addCleanup(self.synchronizer.close)
        # From here on it works as in a conductor.
        del self.reporter.ensure_started
        self.reporter.ensure_started()
        self.addCleanup(self.reporter.stop)
        self.api = self.plugin.reporter("api", lambda: "*")
        self.api.ensure_started()
        self.addCleanup(self.api.stop)
        self.prometheus = prometheus_server.PrometheusServer(
            list(self.ports.values()), prometheus_server.hurried_rules()
        )
        self.addCleanup(self.prometheus.destroy)
        self.prometheus.initialize()
        self.prometheus.start()
        self.began = time.time()
        self.await_scrapes()

    def begin(self) -> None:
        quick = functools.partial(
            replicator_contract.ReplicatorOptions,
            anti_entropy_interval_seconds=1.0,
            anti_entropy_page_seconds=0.0,
        )
        with mock.patch.object(assembly.replicator_contract, "ReplicatorOptions", quick):
            super().begin()

    def await_scrapes(self) -> None:
        """Wait until each target has been scraped some times."""
        patience.wait_until(
            lambda: len(self.prometheus.query("count_over_time(nodb_build_info[1h]) > 4")) >= 3,
            ALERT_SECONDS,
            lambda: self.prometheus.query("up"),
            0.3,
        )

    def firing(self) -> set[str]:
        return set(self.prometheus.firing())

    def await_alerts(
        self, *names: str, meanwhile: Callable[[], object] = lambda: None
    ) -> Mapping[str, Any]:
        """Wait until all of some alerts have fired, not at one time perhaps.

        :param meanwhile: done between two scrapes
        """
        seen: dict[str, Any] = {}

        def fired() -> bool:
            meanwhile()
            seen.update(self.prometheus.firing())
            return set(names) <= seen.keys()

        patience.wait_until(
            fired,
            ALERT_SECONDS,
            lambda: f"fired {sorted(seen)}",
            prometheus_server.SCRAPE_SECONDS,
        )
        self.assertEqual([], self.prometheus.unhealthy_rules())
        return seen

    def await_silence(self, *names: str) -> None:
        patience.wait_until(lambda: not self.firing() & set(names), ALERT_SECONDS, self.firing, 0.3)

    def request(self, **more: Any) -> None:
        """Ask for a host, and build there if one is given; no beat is sent for it."""
        wanted = [str(uuid.uuid4())]
        with contextlib.suppress(Exception):
            chosen = self.manager.select_destinations(
                self.admin,
                spec_obj=self.spec(wanted, **more),
                instance_uuids=wanted,
                return_objects=True,
                return_alternates=False,
            )[0][0]
            # Without its server the allocation would be an orphan.
            self.instance(chosen.cell_uuid, chosen.service_host, uuid=wanted[0])

    def save(self) -> None:
        """Write a row that is to be reported."""
        node = self.nodes["h1"]
        node.vcpus_used += 1
        node.save()

    @contextlib.contextmanager
    def placement(self, name: str, around: Callable[..., Any]) -> Iterator[None]:
        """Have a method of Placement's client called by a function, given it and its arguments."""
        own = getattr(self.client, name)
        with mock.patch.object(self.client, name, functools.partial(around, own)):
            yield


class BackEndAlertsTest(AlertsCase):
    def test_a_cloud_at_work_comes_to_fire_nothing(self) -> None:
        """A busy machine's start may be slow; what a healthy cloud tells fires nothing."""

        def is_quiet() -> bool:
            self.request()
            return not self.firing()

        for _ in range(10):
            self.request()
        patience.wait_until(is_quiet, ALERT_SECONDS, self.firing, 0.3)
        self.assertEqual([], self.prometheus.unhealthy_rules())
        self.assertEqual(28, len(prometheus_server.rules()))

    def test_a_back_end_that_stops_is_seen_on_both_sides_and_so_is_its_return(self) -> None:
        names = (
            "NodbFeedDown",
            "NodbNotReady",
            "NodbCellUnproved",
            "NodbReporterSilent",
            "NodbReporterCannotPublish",
            "NodbReporterBehind",
            "NodbFallbacks",
            "NodbMirrorOld",
        )
        self.redis.server.pause()
        self.save()
        fired = self.await_alerts(*names, meanwhile=self.request)
        self.assertEqual(
            {cloud.CELL0, cloud.CELL1, cloud.CELL2, "api"},
            {each["labels"]["cell"] for each in fired["NodbCellUnproved"]},
        )
        self.assertEqual(
            {"conductor", "api"},
            {each["labels"]["role"] for each in fired["NodbReporterCannotPublish"]},
        )
        self.redis.server.resume()
        # Without one more request: nobody but the feed itself brings it back.
        self.await_silence(*names)

    def test_a_back_end_that_loses_all_again_and_again(self) -> None:
        def lose() -> None:
            self.redis.server.flush_all()
            time.sleep(1.0)
            self.sweep()

        self.await_alerts("NodbResyncs", meanwhile=lose)


class RecordAlertsTest(AlertsCase):
    #: Little, so that a refused record costs its many tries little.
    MAX_PAYLOAD_BYTES = 64 * 1024

    def setUp(self) -> None:
        driver = redis_driver.RedisSynchronizer
        little = attrs.evolve(driver.capabilities, max_payload_bytes=self.MAX_PAYLOAD_BYTES)
        self.enterContext(mock.patch.object(driver, "capabilities", little))
        super().setUp()

    def test_records_that_cannot_be_read_or_written(self) -> None:
        key = records.RecordKey(known_namespaces.INSTANCES.name, str(uuid.uuid4()))
        self.assertTrue(self.synchronizer.write([records.Write(key, 0, b"\x00strange")])[0].won)
        self.compute_node(
            cloud.CELL1, "huge", cpu_info=os.urandom(2 * self.MAX_PAYLOAD_BYTES).hex()
        )
        self.await_alerts("NodbQuarantine", "NodbRecordsRefused", "NodbCellUnproved")

    def test_memory_that_differs_and_a_fault_of_ours_in_the_feed(self) -> None:
        extra = records.RecordKey(known_namespaces.AGGREGATES.name, "none-such")
        state = {"cell": "api", "id": 7, "name": "a", "hosts": [], "metadata": {}}
        payload = codec.encode(state, known_namespaces.AGGREGATES.schema)
        self.runtime.store.apply(records.Change(records.Record(extra, 1, 1, payload), state))
        self.await_alerts("NodbMemoryDiffered")

        def broken(*_args: Any, **_kwargs: Any) -> Any:
            raise KeyError("ours")

        with mock.patch.object(self.runtime.synchronizer, "fetch", broken):
            self.await_alerts("NodbReplicatorFailures")

    def test_a_slow_feed(self) -> None:
        own = self.runtime.synchronizer.fetch

        def slow(*args: Any, **kwargs: Any) -> Any:
            time.sleep(3.5)
            return own(*args, **kwargs)

        with mock.patch.object(self.runtime.synchronizer, "fetch", slow):
            self.await_alerts("NodbFeedLag")


class ReporterAlertsTest(AlertsCase):
    def test_a_reporter_that_hangs_is_named_and_its_return_is_seen(self) -> None:
        names = (
            "NodbReporterSilent",
            "NodbReporterBehind",
            "NodbCellUnproved",
            "NodbFallbacks",
        )
        with self.reporter._flush_lock:
            self.save()
            fired = self.await_alerts(*names, meanwhile=self.request)
        silent = fired["NodbReporterSilent"][0]["labels"]
        self.assertEqual(("conductor", "here"), (silent["reporter_role"], silent["reporter_host"]))
        self.assertIn(
            "reporter silent", {each["labels"]["reason"] for each in fired["NodbFallbacks"]}
        )
        self.await_silence(*names)


class DecisionAlertsTest(AlertsCase):
    def test_slow_decisions(self) -> None:
        def slow(own: Any, *args: Any, **kwargs: Any) -> Any:
            time.sleep(1.5)
            return own(*args, **kwargs)

        with self.placement("post", slow):
            self.await_alerts("NodbSlowDecisions", meanwhile=self.request)

    def test_errors(self) -> None:
        def broken(*_args: Any, **_kwargs: Any) -> Any:
            raise RuntimeError("no such thing")

        with self.placement("post", broken), self.placement("put", broken):
            self.await_alerts("NodbScheduleErrors", meanwhile=self.request)

    def test_requests_that_ask_placement(self) -> None:
        self.await_alerts(
            "NodbCandidatesOfPlacement",
            meanwhile=lambda: self.request(extra_specs={"resources1:CUSTOM_FPGA": "1"}),
        )

    def test_a_placement_that_is_gone(self) -> None:
        def gone(*_args: Any, **_kwargs: Any) -> Any:
            raise keystone.ConnectFailure

        with self.placement("get", gone):
            self.await_alerts("NodbMirrorOld", "NodbMirrorFailures")
            # As behind a back end that was emptied.
            mirrors = known_namespaces.MIRRORS
            key = records.RecordKey(mirrors.name, mirror_sweep.PLACEMENT)
            publisher = self.plugin.publisher(self.synchronizer, mirrors.owner)
            publisher.publish({key: lambda current: publisher_module.DELETE})
            self.await_alerts("NodbMirrorMissing")


class ClaimAlertsTest(AlertsCase):
    OPTIONS: Mapping[str, Any] = {"claim_deadline_seconds": 3.0, "claim_lease_seconds": 4.0}

    def left_behind(self, *, allocated: bool) -> None:
        """Leave a dead scheduler's claim, and its allocation."""
        consumer, node = str(uuid.uuid4()), self.nodes["h1"].uuid
        key = claim_rules.host_key(node)
        resources = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}
        held = model.HeldClaim(
            resources,
            model.ClaimState.PENDING,
            str(uuid.uuid4()),
            DEAD,
            self.synchronizer.now_seconds(),
            node=model.NodeShare(1, 512, 1, 1, 1),
        )

        def written() -> bool:
            found = self.synchronizer.read([key]).get(key)
            there = found is not None and not found.deleted
            before = codec.decode_state(found.payload) if there else None
            record = model.ClaimRecord.from_state(node, before, found.version if there else 0)
            state = record.with_claim(consumer, held).to_state()
            payload = codec.encode(state, known_namespaces.CLAIM_RECORDS.schema)
            write = records.Write(key, found.revision if found is not None else 0, payload)
            return self.synchronizer.write([write])[0].won

        patience.wait_until(written, ALERT_SECONDS, "the claim is not written")
        if allocated:
            self.ask(
                "put",
                f"/allocations/{consumer}",
                {
                    "allocations": {node: {"resources": resources}},
                    "project_id": test_memory_decisions.PROJECT,
                    "user_id": test_memory_decisions.PROJECT,
                    "consumer_generation": None,
                },
            )

    def test_claims_that_others_win(self) -> None:
        own = self.runtime.synchronizer.write
        self.select()
        self.select()

        def overtaken(writes: Any, **kwargs: Any) -> Any:
            for each in writes:
                if each.key.namespace == known_namespaces.CLAIM_RECORDS.name:
                    self.touch(each.key)
            return own(writes, **kwargs)

        def request() -> None:
            first = [overtaken]

            def write(*args: Any, **kwargs: Any) -> Any:
                return (first.pop() if first else own)(*args, **kwargs)

            with mock.patch.object(self.runtime.synchronizer, "write", write):
                self.request()

        self.await_alerts("NodbClaimConflicts", meanwhile=request)

    def touch(self, key: records.RecordKey) -> None:
        """Have another writer win: the same state at a newer revision."""
        found = self.synchronizer.read([key]).get(key)
        if found is not None and not found.deleted:
            self.synchronizer.write([records.Write(key, found.revision, found.payload)])

    def test_claims_that_nobody_settles(self) -> None:
        self.runtime.decisions.claim_duty.stop()
        self.left_behind(allocated=False)
        self.await_alerts("NodbClaimsNotSettled")

    def test_a_queue_whose_thread_has_ended(self) -> None:
        queue = queue_metrics.QueueMetrics(self.runtime.metrics.registry)
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        queue.watch(queue_metrics.WaitingFigures, thread.is_alive)
        self.await_alerts("NodbQueueStopped")

    def test_orphans_that_stay(self) -> None:
        self.left_behind(allocated=True)
        self.await_alerts("NodbOrphanAllocations")

    def test_a_placement_that_grants_more_than_there_is(self) -> None:
        def crowded(own: Any, url: str, *args: Any, **kwargs: Any) -> Any:
            done = own(url, *args, **kwargs)
            for node in self.nodes.values() if url == "/allocations" else ():
                rival = {
                    "allocations": {node.uuid: {"resources": {"VCPU": 100}}},
                    "project_id": "p",
                    "user_id": "u",
                    "consumer_generation": None,
                }
                with placement_mariadb.granting_anything():
                    self.client.put(f"/allocations/{uuid.uuid4()}", data=rival, version="1.36")
            return done

        with self.placement("post", crowded):
            self.await_alerts("NodbAllocationsWithdrawn", meanwhile=self.request)


class TargetAlertsTest(AlertsCase):
    def other_worker(self, version: str = "0.0.1") -> exporter.Exporter:
        """Return another worker of the same scheduler on the same machine."""
        registry = prometheus_client.CollectorRegistry()
        process_metrics.register(
            registry,
            plugin_version=version,
            nova_version="33.0.0",
            driver="redis",
            declared=(),
            bounds_seconds={},
        )
        made = exporter.Exporter(
            registry,
            metric_labels.MetricIdentity("scheduler", "here"),
            exporter.ScrapeAddress("127.0.0.1", self.ports[""], self.directory),
        )
        self.addCleanup(made.stop)
        return made

    def test_services_that_are_gone_or_silent_or_of_another_release(self) -> None:
        other = self.other_worker()
        other.start()
        fired = self.await_alerts("NodbVersionsDiffer")
        with (
            mock.patch.object(worker_slots, "_ANSWER_SECONDS", 0.2),
            mock.patch.object(other._slots._serving.server, "tell", lambda: time.sleep(5) or b"[]"),
        ):
            fired = self.await_alerts("NodbWorkerSilent")
        self.assertEqual("1", fired["NodbWorkerSilent"][0]["labels"]["worker"])
        self.api.stop()
        fired = self.await_alerts("NodbTargetDown")
        self.assertIn(
            f"127.0.0.1:{self.ports['api_']}",
            [each["labels"]["instance"] for each in fired["NodbTargetDown"]],
        )
        # The other worker takes the port: only the scheduler's own figures are gone.
        self.runtime._exporter.stop()
        self.await_alerts("NodbNoScheduler")
        patience.wait_until(lambda: other.address, ALERT_SECONDS, "nobody took the port", 0.3)


class BoardTest(AlertsCase):
    HOSTS = tuple((cloud.CELL1 if i % 2 else cloud.CELL2, f"h{i}", 60, {}) for i in range(1, 7))

    def test_every_query_of_the_board_has_an_answer(self) -> None:
        self.run_for(8.0)
        with self.reporter._flush_lock:
            self.run_for(BOUND_SECONDS + 4.0)
        self.run_for(5.0)
        self.redis.server.flush_all()
        time.sleep(1.0)
        self.sweep()
        self.run_for(8.0)
        self.request(extra_specs={"resources1:CUSTOM_FPGA": "1"})
        self.run_for(4.0)
        end = time.time()
        panels = board.read(
            self.prometheus.query_range,
            self.began,
            end,
            prometheus_server.WINDOW_SECONDS,
        )
        picture = os.environ.get("NODB_BOARD_PICTURE")
        output = pathlib.Path(picture) if picture else self.directory / "board.png"
        board.draw(panels, output, "nova_nodb_scheduler")
        self.assertGreater(output.stat().st_size, 10_000)
        self.assertEqual([], [each for panel in panels for each in panel.empty])
        self.assertGreater(len(panels), 25)

    def run_for(self, seconds: float) -> None:
        """Decide and write for a while, as a cloud does."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.request()
            self.save()
            for service in self.services.values():
                self.heartbeat(service)
            time.sleep(prometheus_server.SCRAPE_SECONDS / 2)


class EveryAlertTest(unittest.TestCase):
    def test_every_alert_is_fired_by_a_fault_here(self) -> None:
        text = pathlib.Path(__file__).read_text()
        self.assertEqual(
            [], [name for name in prometheus_server.rules() if f'"{name}"' not in text]
        )
