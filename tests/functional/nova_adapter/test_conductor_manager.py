# SPDX-License-Identifier: Apache-2.0
"""What the plugin's conductor manager does beside Nova's, from its start to its stop."""

from __future__ import annotations

import uuid
from typing import Any
from unittest import mock

import nova.conductor.manager
from nova import objects
from nova.scheduler import utils as scheduler_utils

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter import conductor_manager
from nova_nodb_scheduler.nova_adapter.claims import alternate_hosts
from nova_nodb_scheduler.nova_adapter.reporting import change_reporter
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.settlement import lapsed_claims
from nova_nodb_scheduler.testing import patience, single_claims
from nova_nodb_scheduler.wire import codec
from tests.functional.nova_adapter import cloud
from tests.unit.scheduling import hosts as rows

#: Nova's functions that a conductor wraps.
_WRAPPED = ("claim_resources", "claim_resources_on_destination")


class _Placement:
    """Nova's report client, of a Placement that grants all."""

    def claim_resources(self, *_args: Any, **_kwargs: Any) -> bool:
        return True


class ConductorTest(cloud.CloudCase):
    def setUp(self) -> None:
        super().setUp()
        for name in _WRAPPED:
            self.addCleanup(setattr, scheduler_utils, name, getattr(scheduler_utils, name))
        client = mock.patch("nova.scheduler.client.report.report_client_singleton", new=_Placement)
        client.start()
        self.addCleanup(client.stop)
        # There is nothing to be read of this Placement; see test_verified_allocations for that.
        self.override("verify_allocations", "never", "nodb_scheduler")
        # A conductor that stops leaves it to the process's end.
        self.addCleanup(change_reporter.install, None, None)
        self.node = self.compute_node(cloud.CELL1, "h1").uuid
        self.sweep()
        key = records.RecordKey(known_namespaces.PROVIDERS.name, self.node)
        payload = codec.encode(rows.provider(allocations={}), known_namespaces.PROVIDERS.schema)
        self.assertTrue(self.synchronizer.write([records.Write(key, 0, payload)])[0].won)

    def allocate(self) -> str:
        """Allocate on an alternate as Nova's conductor does; return the server."""
        server = str(uuid.uuid4())
        flavor = objects.Flavor(vcpus=1, memory_mb=1, root_gb=1, ephemeral_gb=0, extra_specs={})
        spec = objects.RequestSpec(
            self.admin, flavor=flavor, project_id="project", user_id="user", image=None
        )
        request = {"allocations": {self.node: {"resources": {"VCPU": 1, "MEMORY_MB": 1}}}}
        done = scheduler_utils.claim_resources(
            self.admin, _Placement(), spec, server, request, "1.36"
        )
        self.assertTrue(done)
        return server

    def claimed(self) -> set[str]:
        return set(single_claims.stranger(self.synchronizer).read(self.node).claims)

    def start(self) -> conductor_manager.ConductorManager:
        manager = conductor_manager.ConductorManager()
        manager.init_host(None)
        self.addCleanup(manager.nodb_stop)
        return manager

    def test_it_asks_about_alternates_by_the_request_of_a_build(self):
        manager = self.start()
        self.assertIsInstance(manager._nodb_claims, alternate_hosts.CheckedAlternates)
        build = manager.compute_task_mgr.build_instances
        self.assertEqual(
            nova.conductor.manager.ComputeTaskManager.build_instances, build.__wrapped__.__func__
        )
        self.assertIn(manager.compute_task_mgr, manager.additional_endpoints)

    def test_it_claims_for_what_it_allocates_until_it_stops(self):
        manager = self.start()
        server = self.allocate()
        self.assertEqual({server}, self.claimed())
        manager.nodb_stop()
        self.allocate()
        self.assertEqual({server}, self.claimed())

    def test_its_beats_say_by_which_name_it_claims(self):
        reporter = self.start()._nodb_reporter
        server = self.allocate()
        held = single_claims.stranger(self.synchronizer).read(self.node).claims[server]

        def said() -> dict[str, Any]:
            beats = self.states(known_namespaces.REPORTERS)
            return beats.get(reporter.identity.reporter_id, {}) if reporter.identity else {}

        patience.wait_until(lambda: lapsed_claims.CLAIMS_AS in said(), 20.0, lambda: "", 0.1)
        self.assertEqual(held.writer, said()[lapsed_claims.CLAIMS_AS])

    def test_it_claims_nothing_where_claims_are_off(self):
        self.override("claims", "off", "nodb_scheduler")
        self.start()
        self.allocate()
        self.assertEqual(set(), self.claimed())

    def test_where_its_reporter_hangs_in_a_lock_another_of_its_threads_says_that_it_is_behind(self):
        manager = self.start()
        reporter, duty = manager._nodb_reporter, manager._nodb_duty
        patience.wait_until(lambda: reporter._said is not None, 10.0, lambda: "no beat", 0.02)
        with reporter._flush_lock:
            duty.stop()
            own = reporter._clock
            reporter._clock = lambda: own() + 60.0
            duty._synchronizer.open()
            duty.turn()
            beat = self.states(known_namespaces.REPORTERS)[reporter.identity.reporter_id]
            reporter._clock = own
        duty._synchronizer.close()
        self.assertGreaterEqual(beat["behind_seconds"][cloud.CELL1], 60.0)
