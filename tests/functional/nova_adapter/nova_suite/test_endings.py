# SPDX-License-Identifier: Apache-2.0
"""What ends the look at the claims that one of Nova's tests left."""

from __future__ import annotations

import pathlib
import tempfile
import threading
import time
import types
import unittest
from typing import Any
from unittest import mock

from nova import objects

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.drivers.memory import hub
from nova_nodb_scheduler.testing import single_claims
from nova_nodb_scheduler.wire import codec
from tests.nova_suite import endings, feed


class EndingsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.synchronizer = memory.MemorySynchronizer(shared_hub=hub.MemoryHub())
        self.synchronizer.open()
        self.addCleanup(self.synchronizer.close)
        self.claims = single_claims.stranger(self.synchronizer)

    def fixture(self, report: Any) -> endings.EndingsFixture:
        """Return the fixture of a test that ended, with one compute service."""
        process: Any = types.SimpleNamespace(
            synchronizer=self.synchronizer, drain=lambda: self.synchronizer.head().version
        )
        scopes: Any = None
        made = endings.EndingsFixture(self, scopes, process, list, feed.FeedWaits(self.id()))
        made._placements = endings.placements.PlacementsFixture()
        made._placements.setUp()
        self.addCleanup(made._placements.cleanUp)
        service = types.SimpleNamespace(
            host="h1", manager=types.SimpleNamespace(update_available_resource=report)
        )
        made._computes.append(service)
        return made

    def claim(self) -> model.Granted:
        wanted = model.Claim("server", "node", {"VCPU": 1})
        granted = self.claims.claim(wanted, lambda record: True, self.synchronizer.head())
        assert isinstance(granted, model.Granted), granted
        return granted

    def test_a_compute_service_that_hangs_is_not_waited_for(self):
        self.claim()
        goes_on = threading.Event()
        self.addCleanup(goes_on.set)
        fixture = self.fixture(lambda _context: goes_on.wait(60.0))
        began = time.monotonic()
        with (
            mock.patch.object(endings, "REPORT_SECONDS", 0.2),
            self.assertRaisesRegex(endings.ClaimsLeft, "does not come back.*server"),
        ):
            fixture.check()
        self.assertLess(time.monotonic() - began, 30.0)

    def test_what_a_report_raises_is_told(self):
        self.claim()

        def broken(_context: Any) -> None:
            raise TimeoutError("a lock")

        with self.assertRaisesRegex(TimeoutError, "a lock"):
            self.fixture(broken).check()

    def test_claims_that_end_by_a_report_are_no_failure(self):
        granted = self.claim()
        self.fixture(lambda _context: self.claims.release(granted)).check()
        self.assertEqual({}, dict(self.claims.read("node").claims))

    def test_claims_that_nothing_ends_are(self):
        self.claim()
        with (
            mock.patch.object(endings, "QUIET_SECONDS", 0.1),
            self.assertRaisesRegex(endings.ClaimsLeft, "Claims left.*server"),
        ):
            self.fixture(lambda _context: None).check()

    def keep(self, *there: str) -> None:
        """Be a test of ``kept_claims.txt``, with a node whose host has servers."""
        expected = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (expected / "kept_claims.txt").write_text(f"{self.id()}\n")
        self.enterContext(mock.patch.object(endings.selection, "EXPECTED", expected))
        nodes = known_namespaces.COMPUTE_NODES
        payload = codec.encode({"row": {"host": "h1"}}, nodes.schema)
        key = records.RecordKey(nodes.name, "node")
        self.assertTrue(self.synchronizer.write([records.Write(key, 0, payload)])[0].won)
        servers = [types.SimpleNamespace(uuid=each) for each in there]
        self.enterContext(
            mock.patch.object(objects.InstanceList, "get_by_host", lambda _context, _host: servers)
        )

    def assert_left(self) -> None:
        with (
            mock.patch.object(endings, "QUIET_SECONDS", 0.1),
            self.assertRaisesRegex(endings.ClaimsLeft, "Claims left.*server"),
        ):
            self.fixture(lambda _context: None).check()

    def test_a_claim_that_is_kept_is_of_a_server_on_its_host(self):
        self.keep("another", "server")
        self.claims.confirm(self.claim())
        self.fixture(lambda _context: None).check()

    def test_a_claim_of_a_server_that_is_gone_is_not_kept(self):
        self.keep("another")
        self.claims.confirm(self.claim())
        self.assert_left()

    def test_a_claim_that_nobody_confirmed_is_not_kept(self):
        self.keep("server")
        self.claim()
        self.assert_left()
