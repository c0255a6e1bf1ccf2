# SPDX-License-Identifier: Apache-2.0
"""Explanations and remembered decisions, held against Nova's filters and weighers."""

from __future__ import annotations

import json
import uuid
from typing import Any
from unittest import mock

from nova import exception
from nova.compute import utils as compute_utils
from nova.scheduler.client import report
from oslo_messaging import ExpectedException

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter import decision_log
from nova_nodb_scheduler.nova_adapter.service import decision_explainer
from nova_nodb_scheduler.rpc import endpoint as rpc_explaining
from nova_nodb_scheduler.wire import explanations, objects
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.decisions import test_memory_decisions

SERVER = str(uuid.uuid4())


class ExplainingTest(test_memory_decisions.MemoryDecisionsCase):
    HOSTS = (
        (cloud.CELL1, "h1", 4, {"free_ram_mb": 4000, "vcpus_used": 2}),
        (cloud.CELL2, "h2", 2, {"free_ram_mb": 9000}),
        (cloud.CELL1, "h3", 8, {"free_ram_mb": 15872, "vcpus_used": 7, "free_disk_gb": 20}),
        (cloud.CELL2, "h4", 8, {"stats": {"io_workload": "7", "num_instances": "9"}}),
    )

    def setUp(self) -> None:
        super().setUp()
        explainer = decision_explainer.DecisionExplainer(self.runtime, 60.0)
        self.endpoint = rpc_explaining.ExplainingEndpoint(
            explainer.explain, explainer.past, lambda: 100, rpc_explaining.ExplainBounds()
        )

    def over_the_wire(self, value: Any) -> Any:
        serializer = objects.Serializer()
        text = json.dumps(serializer.serialize_entity(None, value))
        return serializer.deserialize_entity(None, json.loads(text))

    def explain(
        self, servers: int = 1, limit: int = 10, vcpus: int = 1, **fields: Any
    ) -> explanations.Explanation:
        spec = self.spec([SERVER], vcpus, **fields)
        primitive = json.loads(json.dumps(spec.obj_to_primitive()))
        self.beat()
        self.calls.clear()
        found = self.over_the_wire(self.endpoint.explain(self.admin, primitive, servers, limit))
        assert isinstance(found, explanations.Explanation)
        return found

    def past(self, server: str) -> list[explanations.PastDecision]:
        found = self.over_the_wire(self.endpoint.get_decisions(self.admin, server))
        self.assertEqual(len(self.runtime.log._copy()), found.remembered)
        return list(found.decisions)

    def disable(self, host: str) -> None:
        service = self.services[host]
        service.disabled = True
        service.save()
        self.reporter.flush()
        version = self.synchronizer.head().version
        self.assertTrue(self.runtime.replicator.wait_until(version, 10.0))

    def states(self, uuids: list[str]) -> dict[str, Any]:
        """Nova's host states of some compute nodes, read from its databases."""
        found = self.manager.host_manager.get_host_states_by_uuids(
            self.admin, uuids, self.spec([SERVER])
        )
        return {state.host: state for state in found}

    def offered(self, vcpus: int) -> list[str]:
        """Compute nodes that Placement itself offers."""
        answer = report.SchedulerReportClient.get(
            self.client,
            f"/allocation_candidates?resources=VCPU:{vcpus},MEMORY_MB:512,DISK_GB:1",
            version="1.36",
        )
        return sorted(answer.json()["provider_summaries"])

    def test_each_step_leaves_as_many_hosts_as_placement_and_novas_filters_do(self):
        self.disable("h4")
        spec = self.spec([SERVER], 3)

        found = self.explain(vcpus=3)

        self.assertEqual("", found.reason)
        offered = self.offered(3)
        self.assertEqual(3, len(offered))
        counts = {each.name: (each.before, each.after) for each in found.counts}
        self.assertEqual((4, 3), counts.pop("placement"))
        self.assertEqual((4, 3), counts.pop("placement: VCPU"))
        left = list(self.states(offered).values())
        for own in self.manager.host_manager.enabled_filters:
            before = len(left)
            left = list(own.filter_all(left, spec))
            # A step that cannot refuse this request is not listed.
            name = type(own).__name__
            self.assertEqual((before, len(left)), counts.pop(name, (before, before)), name)
        self.assertEqual({}, counts)
        self.assertEqual(len(left), found.passed)
        self.assertEqual({"h1", "h3"}, {each.host for each in found.hosts})

    def test_each_weigher_gives_what_novas_weigher_gives(self):
        spec = self.spec([SERVER])
        found = self.explain()

        self.assertEqual(4, len(found.hosts))
        states = self.states([each.uuid for each in found.hosts])
        handler = self.manager.host_manager.weight_handler
        told_apart = 0
        for own in self.manager.host_manager.weighers:
            name = type(own).__name__
            weighed = handler.get_weighed_objects([own], list(states.values()), spec)
            shares = {each.obj.host: each.weight for each in weighed}
            raw = dict(zip(states, own.weigh_objects(weighed, spec), strict=True))
            raw = {each.obj.host: value for each, value in zip(weighed, raw.values(), strict=True)}
            for host in found.hosts:
                [ours] = [each for each in host.shares if each.weigher == name] or [None]
                if ours is None:
                    self.assertEqual(0.0, shares[host.host], name)
                    continue
                self.assertAlmostEqual(shares[host.host], ours.share, 9, name)
                self.assertAlmostEqual(raw[host.host], ours.raw, 9, name)
                self.assertAlmostEqual(ours.share, ours.multiplier * ours.normalised, 9)
            told_apart += len(set(shares.values())) > 1
        self.assertGreater(told_apart, 2)
        for host in found.hosts:
            self.assertAlmostEqual(host.score, sum(each.share for each in host.shares), 9)
        by_nova = handler.get_weighed_objects(
            self.manager.host_manager.weighers, list(states.values()), spec
        )
        self.assertEqual([each.obj.host for each in by_nova], [each.host for each in found.hosts])
        self.assertEqual([by_nova[0].obj.host], [each.host for each in found.placed])

    def test_nothing_is_allocated_reserved_counted_or_told(self):
        with mock.patch.object(
            compute_utils, "notify_about_scheduler_action", autospec=True
        ) as told:
            self.explain(servers=3)

        told.assert_not_called()
        self.assertEqual({}, dict(self.calls))
        self.assertEqual([0] * 4, [self.used(host)["VCPU"] for host in self.nodes])
        self.assertEqual({}, self.runtime.candidates())
        self.assertEqual({}, self.runtime.fallbacks())
        self.assertEqual((0, None), self.runtime.log.reach())
        # All room is still there.
        self.select(servers=22)

    def test_what_is_explained_is_what_is_decided_next(self):
        explained = self.explain(servers=9)
        uuids, chosen = self.select(servers=9)

        self.assertEqual(
            [each.host for each in explained.placed], [each[0].service_host for each in chosen]
        )
        self.assertEqual(9, len(uuids))

    def test_servers_that_find_no_room_are_missing_and_the_counts_say_where(self):
        found = self.explain(servers=23)

        self.assertEqual(22, len(found.placed))
        self.assertEqual("", found.reason)
        last = found.counts[-1]
        self.assertEqual(("room left", 4, 0), (last.name, last.before, last.after))
        with self.assertRaises(exception.NoValidHost):
            self.select(servers=23)
        [decision] = self.runtime.log._copy()
        self.assertEqual(
            [(e.name, e.before, e.after) for e in found.counts],
            [(e.name, e.before, e.after) for e in decision.counts],
        )

    def test_as_many_hosts_are_listed_as_asked_for(self):
        self.assertEqual(2, len(self.explain(limit=2).hosts))
        self.assertEqual(0, len(self.explain(limit=0).hosts))

    def test_nobody_is_left_and_the_step_is_named(self):
        found = self.explain(vcpus=16)

        self.assertEqual(
            [("placement", 4, 0), ("placement: VCPU", 4, 0)],
            [(e.name, e.before, e.after) for e in found.counts],
        )
        self.assertEqual((0, [], []), (found.passed, found.hosts, found.placed))

    def test_where_memory_cannot_decide_the_reason_is_told_and_nobody_is_asked(self):
        self.disable("h4")
        several = self.explain(vcpus=16, extra_specs={"resources1:CUSTOM_FPGA": "1"})
        self.assertEqual(("placement", "more than one group"), (several.candidates, several.reason))
        # Who has room for it is not known; what filters and weighers say of all hosts is.
        self.assertEqual(
            [("service", 4, 4), ("ComputeFilter", 4, 3)],
            [(e.name, e.before, e.after) for e in several.counts],
        )
        self.assertEqual({"h1", "h2", "h3"}, {each.host for each in several.hosts})
        self.assertEqual((3, []), (several.passed, several.placed))
        self.runtime.decisions._mirror.mirror._bound_seconds = -1.0
        self.assertEqual("mirror too old", self.explain().reason)
        self.assertEqual({}, dict(self.calls))

    def test_a_request_that_cannot_be_read_is_refused_by_name(self):
        broken = ({}, {"nova_object.name": "RequestSpec"}, [], {"nova_object.name": "Flavor"})
        for request in broken:
            with self.subTest(request), self.assertRaises(ExpectedException) as raised:
                self.endpoint.explain(self.admin, request)
            self.assertIsInstance(raised.exception.exc_info[1], errors.InvalidRequest)
            self.assertIn("request", str(raised.exception.exc_info[1]))
        for servers in (0, 1001, "2"):
            with self.subTest(servers), self.assertRaises(ExpectedException) as raised:
                self.endpoint.explain(self.admin, {}, servers)
            self.assertIn("servers", str(raised.exception.exc_info[1]))

    def test_what_raises_on_the_way_is_named(self):
        broken = mock.patch.object(
            self.runtime.decisions.engine, "plan", autospec=True, side_effect=ValueError("bad")
        )
        with broken, self.assertRaises(ExpectedException) as raised:
            self.explain()
        self.assertIn("ValueError: bad", str(raised.exception.exc_info[1]))

    def test_a_boot_is_remembered_with_its_host_and_score(self):
        explained = self.explain()
        uuids, chosen = self.select()

        [past] = self.past(uuids[0])

        self.assertEqual(("selected", "memory", 1), (past.outcome, past.candidates, past.servers))
        [placed] = past.placed
        self.assertEqual(
            (uuids[0], chosen[0][0].service_host, chosen[0][0].compute_node_uuid),
            (placed.server, placed.host, placed.uuid),
        )
        self.assertAlmostEqual(explained.hosts[0].score, placed.score, 9)
        self.assertEqual(objects.plain(explained.counts)[0], objects.plain(past.counts)[0])
        self.assertEqual([], self.past(SERVER))

    def test_no_valid_host_is_remembered_and_logged_with_the_same_counts(self):
        with (
            self.assertLogs(
                "nova_nodb_scheduler.nova_adapter.decisions.request_decider", "INFO"
            ) as logged,
            self.assertRaises(exception.NoValidHost),
        ):
            self.select(vcpus=16)

        [decision] = self.runtime.log._copy()
        [past] = self.past(decision.servers[0])
        self.assertEqual(("no_valid_host", []), (past.outcome, past.placed))
        self.assertEqual(
            [("placement", 4, 0), ("placement: VCPU", 4, 0)],
            [(e.name, e.before, e.after) for e in past.counts],
        )
        [line] = logged.output
        self.assertIn("placement 4 -> 0, placement: VCPU 4 -> 0", line)
        self.assertIn(decision.servers[0], line)

    def test_a_host_that_refused_the_claim_is_remembered_with_the_reason(self):
        """Somebody else filled it, and the mirror does not know yet."""
        first = self.explain().hosts[0]
        free = self.nodes[first.host].vcpus
        self.fill(first.uuid, free)

        uuids, chosen = self.select()

        [past] = self.past(uuids[0])
        self.assertNotEqual(first.host, chosen[0][0].service_host)
        self.assertEqual([(first.host, "full of VCPU")], [(e.host, e.reason) for e in past.refused])

    def fill(self, key: str, vcpus: int) -> None:
        report.SchedulerReportClient.put(
            self.client,
            f"/allocations/{uuid.uuid4()}",
            {
                "allocations": {key: {"resources": {"VCPU": vcpus}}},
                "project_id": test_memory_decisions.PROJECT,
                "user_id": test_memory_decisions.PROJECT,
                "consumer_generation": None,
            },
            version="1.36",
        )

    def test_a_decision_by_placement_is_remembered_with_the_reason(self):
        self.runtime.decisions._mirror.mirror._bound_seconds = -1.0
        uuids, chosen = self.select()

        [past] = self.past(uuids[0])
        self.assertEqual("mirror too old", past.candidates)
        self.assertEqual(chosen[0][0].service_host, past.placed[0].host)
        self.assertIsNone(past.placed[0].score)

    def test_a_request_for_many_tells_of_the_one_asked_about(self):
        uuids, chosen = self.select(servers=3)

        [past] = self.past(uuids[1])

        self.assertEqual(3, past.servers)
        self.assertEqual(
            [(uuids[1], chosen[1][0].service_host)], [(e.server, e.host) for e in past.placed]
        )

    def test_the_oldest_decisions_are_forgotten(self):
        uuids, chosen = self.select()
        log = self.runtime.log
        for number in range(decision_log.KEPT):
            self.assertEqual(1, len(log.about(uuids[0])), number)
            trace = decision_log.DecisionTrace()
            trace.servers = [SERVER]
            log.record(
                trace,
                chosen,
                at=1.0 + number,
                seconds=0.1,
                outcome="selected",
                asked_placement=None,
            )
        self.assertEqual([], log.about(uuids[0]))
        self.assertEqual((decision_log.KEPT, 1.0), log.reach())
