# SPDX-License-Identifier: Apache-2.0
"""select_destinations through Nova's own code: served from memory, and when it must not be.

The reporter, the memory driver, the replicator's threads and Nova's manager are
the real ones; Placement answers from a list.
"""

from __future__ import annotations

import uuid
from typing import Any
from unittest import mock

import sqlalchemy as sa
from nova import exception, objects
from nova.db.main import api as main_db
from nova.scheduler import request_filter
from nova.scheduler import utils as scheduler_utils
from nova.scheduler.client import report

from nova_nodb_scheduler.nova_adapter import manager
from nova_nodb_scheduler.nova_adapter.reads import database_reads
from nova_nodb_scheduler.nova_adapter.reporting import state_proof
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.testing import patience
from tests.functional.nova_adapter import cloud


class Placement:
    """Answers with some providers, all with room."""

    def __init__(self) -> None:
        self.candidates: list[str] = []
        self.asked = 0
        self.on_asked: Any = lambda: None

    def get_allocation_candidates(self, context: Any, resources: Any) -> Any:
        self.asked += 1
        self.on_asked()
        requests = [
            {"allocations": {name: {"resources": {"VCPU": 1, "MEMORY_MB": 512}}}, "mappings": {}}
            for name in self.candidates
        ]
        summaries = {
            name: {
                "resources": {"VCPU": {"capacity": 8, "used": 0}},
                "traits": [],
                "parent_provider_uuid": None,
                "root_provider_uuid": name,
            }
            for name in self.candidates
        }
        return requests, summaries, "1.36"


class DecisionsTest(cloud.CloudCase):
    def setUp(self) -> None:
        super().setUp()
        self.override("track_instance_changes", False, "filter_scheduler")
        self.override("beat_interval_seconds", 0.2, "nodb_scheduler")
        self.override("candidates", "placement", "nodb_scheduler")
        # There is nothing to be read of this Placement; see test_own_path for that.
        self.override("verify_allocations", "never", "nodb_scheduler")
        self.placement = Placement()
        self.patch(report, "report_client_singleton", lambda: self.placement)
        self.patch(scheduler_utils, "claim_resources", lambda *args, **kwargs: True)
        for module, name, own, _ours in database_reads._REPLACED:
            self.addCleanup(setattr, module, name, own)
        self.reporter = self.report("*", *cloud.CELLS)
        self.beat()
        self.one, self.service_one = self.host(cloud.CELL1, "h1")
        self.two, self.service_two = self.host(cloud.CELL2, "h2")
        self.reporter.flush()
        self.sweep()
        self.manager = manager.SchedulerManager(host="scheduler-1")
        self.runtime = self.manager.nodb
        self.runtime._make_server = None
        self.runtime.start()
        self.addCleanup(self.runtime.stop)
        self.settle()

    def patch(self, module: Any, name: str, value: Any) -> None:
        patcher = mock.patch.object(module, name, value)
        patcher.start()
        self.addCleanup(patcher.stop)

    def beat(self) -> None:
        self.reporter._last_beat = float("-inf")
        self.reporter._turn()

    def settle(self) -> None:
        """Publish everything and wait until the scheduler has it, proved."""
        self.reporter.flush()
        self.beat()
        self.assertTrue(self.runtime.replicator.wait_until(self.synchronizer.head().version, 20))
        patience.wait_until(lambda: not self.missing(), 20, self.missing)

    def missing(self) -> Any:
        scopes = (*cloud.CELLS, "api")
        return self.runtime.judge.judge(self.runtime.store.snapshot(), scopes).missing

    def spec(self) -> Any:
        flavor = objects.Flavor(
            id=1, flavorid="1", name="f", memory_mb=512, vcpus=1, root_gb=1, ephemeral_gb=0,
            swap=0, extra_specs={}, rxtx_factor=1.0, vcpu_weight=0, disabled=False, is_public=True,
        )  # fmt: skip
        return objects.RequestSpec(
            self.admin,
            flavor=flavor,
            num_instances=1,
            instance_uuid=str(uuid.uuid4()),
            image=objects.ImageMeta(properties=objects.ImageMetaProps()),
            numa_topology=None,
            pci_requests=objects.InstancePCIRequests(requests=[]),
            project_id="p",
            user_id="u",
            availability_zone=None,
            ignore_hosts=None,
            force_hosts=None,
            force_nodes=None,
            limits=objects.SchedulerLimits(),
            instance_group=None,
            requested_destination=None,
            retry=None,
            scheduler_hints={},
            security_groups=objects.SecurityGroupList(objects=[]),
            network_metadata=objects.NetworkMetadata(physnets=set(), tunneled=False),
            requested_networks=objects.NetworkRequestList(objects=[]),
            requested_resources=[],
            request_level_params=objects.RequestLevelParams(),
            is_bfv=False,
        )

    def select(self, *candidates: Any) -> list[str]:
        self.placement.candidates = [each.uuid for each in candidates]
        spec = self.spec()
        chosen = self.call(spec_obj=spec, instance_uuids=[spec.instance_uuid])
        return [selection[0].service_host for selection in chosen]

    def call(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.manager.select_destinations(
                self.admin,
                *args,
                **kwargs,
                return_objects=True,
                return_alternates=True,
            )
        except manager.messaging.ExpectedException as wrapped:
            raise wrapped.exc_info[1] from None

    def stale(self, service: Any) -> None:
        """Let memory hold a service as disabled which its database holds enabled."""
        service.disabled = True
        service.save()
        self.settle()
        context = service._context
        with main_db.get_context_manager(context).writer.using(context) as session:
            session.query(main_db.models.Service).update({"disabled": False})

    # -- served from memory -----------------------------------------------------

    def test_a_served_request_reads_nothing_of_any_database(self) -> None:
        with self.statements() as statements:
            self.assertEqual(["h1"], self.select(self.one))
            self.assertEqual(["h2"], self.select(self.two))
        self.assertEqual([], statements.seen)
        self.assertEqual({}, self.runtime.fallbacks())
        self.assertEqual({"selected": 2}, self.runtime.outcomes())

    def test_what_the_reporter_says_decides(self) -> None:
        self.service_one.disabled = True
        self.service_one.save()
        self.settle()
        self.assertEqual(["h2"], self.select(self.one, self.two))

    def test_no_valid_host_from_proved_state_is_said_at_once(self) -> None:
        for service in (self.service_one, self.service_two):
            service.disabled = True
            service.save()
        self.settle()
        with self.statements() as statements, self.assertRaises(exception.NoValidHost):
            self.select(self.one, self.two)
        self.assertEqual([], statements.seen)
        self.assertEqual(1, self.placement.asked)
        self.assertEqual({"no_valid_host": 1}, self.runtime.outcomes())

    # -- not served -----------------------------------------------------------------

    def test_before_the_feed_is_there_everything_is_novas(self) -> None:
        cold = manager.SchedulerManager(host="scheduler-2")
        self.manager, self.runtime = cold, cold.nodb
        self.assertEqual(["h1"], self.select(self.one))
        self.assertIn(state_proof.UnprovedReason.FEED.value, self.runtime.fallbacks())

    def test_proof_lost_meanwhile_has_the_request_decided_by_the_databases(self) -> None:
        self.stale(self.service_one)

        def lose() -> None:
            self.runtime.judge._feed_alive = lambda bound: False

        self.placement.on_asked = lose
        self.assertEqual(["h1"], self.select(self.one))
        self.assertEqual(2, self.placement.asked)
        self.assertEqual({"selected": 1}, self.runtime.outcomes())
        self.assertIn(state_proof.UnprovedReason.FEED.value, self.runtime.fallbacks())

    def test_a_candidate_that_is_not_in_memory_has_it_decided_again(self) -> None:
        cloud.change_reporter.install(None, None)
        new, _service = self.host(cloud.CELL2, "new")
        self.assertEqual(["new"], self.select(new))
        self.assertEqual(2, self.placement.asked)
        self.assertEqual(
            {state_proof.UnprovedReason.UNKNOWN_HOST.value}, self.runtime.fallbacks().keys()
        )
        # With a known one that fits there is nothing to doubt.
        self.assertEqual(["h1"], self.select(new, self.one))
        self.assertEqual(3, self.placement.asked)

    def test_it_is_decided_again_once_and_on_the_request_as_it_came(self) -> None:
        seen = []
        process = request_filter.process_reqspec

        def processing(context: Any, spec: Any) -> Any:
            seen.append(spec.obj_to_primitive())
            found = process(context, spec)
            spec.user_id = "changed"
            spec.ignore_hosts = ["h1", "h2", "new"]
            return found

        self.patch(request_filter, "process_reqspec", processing)
        cloud.change_reporter.install(None, None)
        new, _service = self.host(cloud.CELL2, "new")
        for positional in (False, True):
            self.placement.candidates = [new.uuid]
            seen.clear()
            spec = self.spec()
            uuids = [spec.instance_uuid]
            with self.assertRaises(exception.NoValidHost):
                if positional:
                    self.call(None, None, spec, uuids)
                else:
                    self.call(spec_obj=spec, instance_uuids=uuids)
            self.assertEqual(2, len(seen))
            self.assertEqual("u", seen[1]["nova_object.data"]["user_id"])
            self.assertEqual(
                seen[0]["nova_object.data"]["ignore_hosts"],
                seen[1]["nova_object.data"]["ignore_hosts"],
            )

    def test_a_cell_whose_reporter_fell_silent_is_read_from_its_database(self) -> None:
        self.stale(self.service_two)
        clock = self.hub._clock
        self.hub._clock = lambda: clock() + 60
        key = next(iter(self.states(known_namespaces.REPORTERS)))
        self.assertTrue(key)
        patience.wait_until(self.missing, 20, "a reporter that is silent is noticed")
        with self.statements() as statements:
            self.assertEqual(["h2"], self.select(self.two))
        self.assertTrue(statements.of("compute_nodes"))
        self.assertIn(state_proof.UnprovedReason.SILENT_REPORTER.value, self.runtime.fallbacks())

    def test_a_cell_whose_database_does_not_answer_is_left_out_as_by_nova(self) -> None:
        self.runtime.judge._feed_alive = lambda bound: False
        engine = sa.create_engine(self.urls[cloud.CELL1])
        self.addCleanup(engine.dispose)

        def rename(one: str, other: str) -> None:
            with engine.begin() as connection:
                connection.execute(sa.text(f"ALTER TABLE {one} RENAME TO {other}"))

        rename("services", "services_away")
        self.addCleanup(rename, "services_away", "services")
        with self.assertRaises(exception.NoValidHost):
            self.select(self.one)
        self.assertEqual(["h2"], self.select(self.one, self.two))

    def test_a_new_epoch_is_novas_until_it_is_swept_and_then_memorys(self) -> None:
        self.synchronizer.reset()
        patience.wait_until(self.missing, 20, "a new epoch is noticed")
        self.assertEqual(["h1"], self.select(self.one))
        self.assertTrue(self.runtime.fallbacks())
        self.beat()
        self.sweep()
        self.settle()
        with self.statements() as statements:
            self.assertEqual(["h1"], self.select(self.one))
        self.assertEqual([], statements.seen)
