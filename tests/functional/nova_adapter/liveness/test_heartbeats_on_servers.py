# SPDX-License-Identifier: Apache-2.0
"""A whole conductor stores heartbeats in a real back end, by the processes' real clocks."""

from __future__ import annotations

import pathlib
import tempfile
import threading
import time
import unittest
from typing import Any
from unittest import mock

from nova import objects, servicegroup
from oslo_utils import timeutils

from nova_nodb_scheduler.conf import nodb
from nova_nodb_scheduler.nova_adapter import conductor_manager
from nova_nodb_scheduler.nova_adapter.liveness import heartbeat_writer, service_heartbeats
from nova_nodb_scheduler.nova_adapter.reporting import change_reporter
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import loader
from nova_nodb_scheduler.testing import patience, servers
from tests.functional.nova_adapter import cloud
from tests.functional.synchronizer.drivers.sqlalchemy import sql_databases

#: How long anything that is waited for may take.
_WAIT_SECONDS = 60.0


class _Placement:
    """Nova's report client, which nothing here asks."""


class _ServerCase(cloud.CloudCase):
    """A conductor as Nova runs it, and a reader, on a back end of their own."""

    BACK_END = "sqlalchemy"

    def setUp(self) -> None:
        self.url = self.connection()
        loader.load_class("sqlalchemy").register_opts(cloud.CONF)
        cloud.CONF.set_override("connection", self.url, group="nodb_sqlalchemy")
        self.addCleanup(cloud.CONF.clear_override, "connection", group="nodb_sqlalchemy")
        self.override("timeout_seconds", 2.0, "nodb_sqlalchemy")
        super().setUp()
        self.addCleanup(self.synchronizer.close)
        # Nova's conductor looks for Placement as it begins.
        client = mock.patch("nova.scheduler.client.report.report_client_singleton", new=_Placement)
        client.start()
        self.addCleanup(client.stop)
        for name, value in (
            ("service_heartbeats", "store"),
            ("heartbeat_flush_interval_seconds", 0.05),
            ("beat_interval_seconds", 2.0),
            # Nothing here decides, so nothing claims.
            ("claims", "off"),
            ("verify_allocations", "never"),
        ):
            self.override(name, value, nodb.GROUP)
        objects.Service.enable_min_version_cache()
        self.addCleanup(setattr, objects.Service, "_SERVICE_VERSION_CACHING", False)
        self.addCleanup(objects.Service.clear_min_version_cache)
        service_heartbeats.install_reader(self.plugin.heartbeat_reader)
        self.addCleanup(service_heartbeats.install_reader, None)
        self.up = servicegroup.API().service_is_up

    def connection(self) -> str:
        raise NotImplementedError

    def conduct(self) -> conductor_manager.ConductorManager:
        manager = conductor_manager.ConductorManager()
        manager.init_host(None)
        self.addCleanup(change_reporter.install, None, None)
        self.addCleanup(service_heartbeats.install_storage, None)
        self.addCleanup(manager.nodb_stop)
        return manager

    def until_stored(self, manager: conductor_manager.ConductorManager) -> None:
        storage = manager._nodb_heartbeats
        assert storage is not None
        patience.wait_until(
            lambda: storage.keeper.may_store(cloud.CELL1), _WAIT_SECONDS, "the mode is not store"
        )

    def living(self, host: str) -> Any:
        service = self.service(cloud.CELL1, host)
        patience.wait_until(
            lambda: service.uuid in self.states(known_namespaces.SERVICE_LIVENESS),
            _WAIT_SECONDS,
            "its record",
        )
        # Stock asks for it until it is remembered.
        objects.Service.get_minimum_version(self.context(cloud.CELL1), "nova-compute")
        return service

    def beat_stored(self, service: Any) -> None:
        """Send a heartbeat that reaches no database, once the way is open."""
        service.report_count += 1
        with self.statements() as statements:
            service.save()
        self.assertEqual([], statements.of("services"))

    def until_one_is_stored(self, service: Any) -> None:
        """Send heartbeats until one reaches no database.

        One that the server does not write within its time goes to the database, as it should.
        """

        def is_stored() -> bool:
            with self.statements() as statements:
                self.heartbeat(service)
            return not statements.of("services")

        patience.wait_until(is_stored, _WAIT_SECONDS, "it is not stored", 0.5)

    def found(self, service: Any) -> Any:
        return objects.Service.get_by_uuid(self.context(cloud.CELL1), service.uuid)


class _OnAServer(_ServerCase):
    """What holds on each of them."""

    def test_a_conductor_comes_to_store_and_everybody_sees_it(self) -> None:
        manager = self.conduct()
        service = self.living("h1")
        self.until_stored(manager)
        for _ in range(3):
            self.beat_stored(service)
        found = self.found(service)
        self.assertEqual((3, True), (found.report_count, self.up(found)))
        [listed] = objects.ServiceList.get_by_binary(self.context(cloud.CELL1), "nova-compute")
        self.assertEqual((3, True), (listed.report_count, self.up(listed)))
        self.assertLess(abs(listed.last_seen_up.timestamp() - time.time()), 30.0)
        [beat] = self.states(known_namespaces.REPORTERS).values()
        self.assertEqual("store", beat["service_heartbeats"])
        # The conductor ends in order: what comes later is written.
        manager.nodb_stop()
        self.heartbeat(service)
        self.assertEqual(4, self.found(service).report_count)

    def test_two_conductors_store_heartbeats_of_many_services_at_once(self) -> None:
        manager = self.conduct()
        services = [self.living(f"h{number}") for number in range(8)]
        second = self.plugin.heartbeat_storage()
        self.addCleanup(second.writer.stop)
        self.until_stored(manager)
        first = manager._nodb_heartbeats
        assert first is not None
        second.keeper.keep(self.synchronizer, "second")
        failed: list[BaseException] = []

        def beats(service: Any) -> None:
            try:
                for number in range(10):
                    service.report_count += 1
                    storage = first if number % 2 else second
                    storage.keeper.keep(self.synchronizer, "second")
                    self.assertTrue(_store(storage, service))
            except BaseException as error:
                failed.append(error)
                raise

        threads = [threading.Thread(target=beats, args=(each,)) for each in services]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([], failed)
        for each in objects.ServiceList.get_by_binary(self.context(cloud.CELL1), "nova-compute"):
            self.assertEqual((10, True), (each.report_count, self.up(each)))
        for state in self.states(known_namespaces.SERVICE_LIVENESS).values():
            self.assertEqual((10, 0), (state["report_count"], state["unreported"]))


def load_tests(
    loader: unittest.TestLoader, _tests: unittest.TestSuite, _pattern: str | None
) -> unittest.TestSuite:
    """Return the tests of the classes that have a server."""
    cases = (SQLiteTest, MariaDBTest)
    return unittest.TestSuite(loader.loadTestsFromTestCase(case) for case in cases)


def _store(storage: service_heartbeats.HeartbeatStorage, service: Any) -> bool:
    """Store a heartbeat by one of several conductors of the process."""
    return storage.writer.store(
        heartbeat_writer.ServiceHeartbeat(
            service.uuid,
            cloud.CELL1,
            service.report_count,
            None,
            timeutils.utcnow().isoformat(),
            time.time(),
        )
    )


class SQLiteTest(_OnAServer):
    def connection(self) -> str:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        path = pathlib.Path(directory.name) / "nodb.sqlite"
        sql_databases.migrate(f"sqlite:///{path}")
        path.chmod(0o600)
        return f"sqlite:///{path}"


class MariaDBTest(_OnAServer):
    def connection(self) -> str:
        self.database = servers.MariaDB(private=True, prepare=sql_databases.migrate)
        self.database.setUp()
        self.addCleanup(self.database.cleanUp)
        return self.database.url

    def test_a_server_that_is_killed_and_comes_back_loses_no_heartbeat(self) -> None:
        manager = self.conduct()
        service = self.living("h1")
        self.until_stored(manager)
        self.until_one_is_stored(service)
        self.assertTrue(self.up(self.found(service)))
        self.database.server.kill()
        for _ in range(3):
            self.heartbeat(service)
            self.assertTrue(self.up(self.found(service)))
        self.assertEqual(service.report_count, self.found(service).report_count)
        self.database.server.restart()
        self.until_stored(manager)
        self.until_one_is_stored(service)
        patience.wait_until(
            lambda: self.found(service).report_count == service.report_count,
            _WAIT_SECONDS,
            "it is not seen again",
        )
        self.assertTrue(self.up(self.found(service)))

        def all_reported() -> bool:
            state = self.states(known_namespaces.SERVICE_LIVENESS)[service.uuid]
            return int(state["unreported"]) == 0

        patience.wait_until(all_reported, _WAIT_SECONDS, "some were lost")

    def test_a_server_that_hangs_holds_no_heartbeat_up_for_long(self) -> None:
        manager = self.conduct()
        service = self.living("h1")
        self.until_stored(manager)
        self.until_one_is_stored(service)
        self.database.server.pause()
        self.addCleanup(self.database.server.resume)
        began = time.monotonic()
        self.heartbeat(service)
        self.assertLess(time.monotonic() - began, 10.0)
        began = time.monotonic()
        self.heartbeat(service)
        self.assertLess(time.monotonic() - began, 2.0)
        self.database.server.resume()
        self.assertTrue(self.up(self.found(service)))
