# SPDX-License-Identifier: Apache-2.0
"""A decision leads only to hosts whose trees were compared with Placement a moment ago."""

from __future__ import annotations

import time
import uuid
from typing import Any
from unittest import mock

from keystoneauth1 import exceptions as ks_exc
from nova import exception

from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.decisions import test_memory_decisions

#: What Nova forbids of each request: the trait of a host that takes no servers.
DISABLED = "COMPUTE_STATUS_DISABLED"
BOUND_SECONDS = 0.5


class ChosenTreesTest(test_memory_decisions.MemoryDecisionsCase):
    """Two equal hosts; the mirror is swept once a minute, chosen trees compared sooner."""

    HOSTS = ((cloud.CELL1, "h1", 8, {}), (cloud.CELL2, "h2", 4, {}))

    def setUp(self) -> None:
        super().setUp()
        self.asked: list[str] = []
        own = self.client.get

        def get(url: str, *args: Any, **kwargs: Any) -> Any:
            if "in_tree" in url or url == "/resource_providers":
                self.asked.append(url)
            return own(url, *args, **kwargs)

        patcher = mock.patch.object(self.client, "get", get)
        patcher.start()
        self.addCleanup(patcher.stop)

    def set_traits(self, host: str, *names: str) -> None:
        key = self.nodes[host].uuid
        generation = self.ask("get", f"/resource_providers/{key}")["generation"]
        body = {"resource_provider_generation": generation, "traits": ["OWNER_NOVA", *names]}
        self.ask("put", f"/resource_providers/{key}/traits", body)

    def bound(self, seconds: float = BOUND_SECONDS) -> None:
        """Have comparisons count for so long, and the last one be older than that."""
        self.chosen._bound_seconds = seconds
        time.sleep(seconds)
        self.asked.clear()

    @property
    def chosen(self) -> Any:
        return self.runtime.decisions._mirror.chosen

    def host_of(self, **fields: Any) -> str:
        return str(self.select(**fields)[1][0][0].service_host)

    def test_the_bound_is_ten_seconds_unless_an_operator_says_otherwise(self) -> None:
        self.assertEqual(10.0, self.chosen._bound_seconds)

    def test_a_host_that_an_operator_took_out_a_moment_ago_is_not_chosen(self) -> None:
        first = self.host_of()
        self.set_traits(first, DISABLED)
        self.bound()
        for _ in range(2):
            self.assertNotEqual(first, self.host_of())
        self.assertEqual({"memory": 3}, self.runtime.candidates())
        # What was learnt is everybody's.
        record = self.mirrored(first)
        self.assertIn(DISABLED, record["traits"])

    def test_no_valid_host_is_said_where_the_last_one_was_taken_out(self) -> None:
        for host in self.nodes:
            self.set_traits(host, DISABLED)
        self.bound()
        with self.assertRaises(exception.NoValidHost):
            self.select()
        self.assertEqual([0, 0], [self.used(host)["VCPU"] for host in self.nodes])

    def test_a_host_whose_change_does_not_matter_is_chosen_all_the_same(self) -> None:
        self.set_traits("h2", DISABLED)
        self.set_traits("h1", "HW_CPU_X86_AVX")
        self.bound()
        self.assertEqual("h1", self.host_of())

    def test_a_quiet_clouds_decisions_ask_nothing_more_than_their_write(self) -> None:
        self.bound()
        first = self.host_of()
        self.assertEqual(1, len(self.asked))
        self.chosen._bound_seconds = 60.0
        self.asked.clear()
        for _ in range(2):
            self.assertEqual(first, self.host_of(ignore_hosts=self.others(first)))
        self.assertEqual([], self.asked)
        self.assertEqual({"post allocations": 1}, dict(self.calls))

    def others(self, host: str) -> list[str]:
        return [name for name in self.nodes if name != host]

    def test_several_hosts_of_a_request_are_compared_by_one_listing(self) -> None:
        self.bound()
        _uuids, chosen = self.select(servers=12)
        self.assertEqual({"h1", "h2"}, {each[0].service_host for each in chosen})
        self.assertEqual(["/resource_providers"], self.asked)
        self.assertEqual({"post allocations": 1}, dict(self.calls))

    def test_allocations_of_others_are_no_reason_to_plan_again(self) -> None:
        stranger = {
            "allocations": {self.nodes["h1"].uuid: {"resources": {"VCPU": 1}}},
            "project_id": test_memory_decisions.PROJECT,
            "user_id": test_memory_decisions.PROJECT,
            "consumer_generation": None,
        }
        self.ask("put", f"/allocations/{uuid.uuid4()}", stranger)
        # Sooner than the keeper follows the hint.
        self.bound(0.0)
        engine = self.runtime.decisions.engine
        with mock.patch.object(engine, "plan", wraps=engine.plan) as planned:
            self.assertEqual("h1", self.host_of(ignore_hosts=["h2"]))
        self.assertEqual(1, self.chosen.changed)
        self.assertEqual(1, planned.call_count)

    def test_a_change_that_comes_while_a_request_is_planned_is_planned_for(self) -> None:
        """The feed brings it after the plan was made: that it is known is not enough."""
        engine = self.runtime.decisions.engine
        own, planned = engine.plan, []

        def plan(*args: Any, **kwargs: Any) -> Any:
            made = own(*args, **kwargs)
            if not planned:
                best = next(iter(made.best(1)))
                planned.append(best.host)
                self.set_traits(best.host, DISABLED)
                key = self.nodes[best.host].uuid
                with mock.patch.object(self.chosen, "_bound_seconds", 0.0):
                    self.chosen.behind([key], self.chosen.snapshot())
            return made

        self.chosen._bound_seconds = 60.0
        with mock.patch.object(engine, "plan", plan):
            self.assertNotEqual(planned or [None], [self.host_of()])
        self.assertEqual(0, self.used(planned[0])["VCPU"])

    def reshape(self, host: str) -> None:
        """As a nova-compute that was upgraded does: a resource goes to a child provider."""
        key, child = self.nodes[host].uuid, str(uuid.uuid4())
        self.inventories(key, VCPU=8, MEMORY_MB=16384, DISK_GB=100)
        body = {"name": child, "uuid": child, "parent_provider_uuid": key}
        self.ask("post", "/resource_providers", body)
        self.inventories(child, VGPU=4)

    def test_a_host_that_was_reshaped_as_it_was_chosen_is_judged_anew(self) -> None:
        """Its tree was compared a second before; no listing shows that it has room."""
        self.inventories(self.nodes["h1"].uuid, VCPU=8, MEMORY_MB=16384, DISK_GB=100, VGPU=4)
        wanted = {"resources:VGPU": "1"}
        [server], _chosen = self.select(extra_specs=wanted)
        self.client.delete(f"/allocations/{server}")
        self.reshape("h1")
        self.assertEqual("h1", self.host_of(extra_specs=wanted))

    def test_a_host_that_changes_whenever_it_is_planned_for_is_placements_to_judge(self) -> None:
        engine = self.runtime.decisions.engine
        own, planned = engine.plan, []

        def plan(*args: Any, **kwargs: Any) -> Any:
            made = own(*args, **kwargs)
            planned.append(made)
            self.set_traits("h1", *["HW_CPU_X86_AVX"][: len(planned) % 2])
            return made

        self.bound(0.0)
        with mock.patch.object(engine, "plan", plan):
            self.assertEqual("h1", self.host_of(ignore_hosts=["h2"]))
        self.assertEqual({"placement: claims not answered in time": 1}, self.reasons())
        self.assertLessEqual(len(planned), 10)
        self.assertEqual(1, self.used("h1")["VCPU"])
        self.assertEqual({}, self.held())

    def test_a_comparison_that_fails_leaves_the_request_to_placement(self) -> None:
        self.bound()
        reader = self.chosen._reader

        def fail(path: str) -> Any:
            raise ks_exc.ConnectFailure("no route to host")

        with mock.patch.object(reader, "_get", fail):
            self.host_of()
        self.assertEqual({"placement: mirror not proved": 1}, self.reasons())
        self.assertEqual({}, dict(self.held()))

    def reasons(self) -> dict[str, int]:
        return {
            name if name == "memory" else f"placement: {name}": count
            for name, count in self.runtime.candidates().items()
        }

    def held(self) -> dict[str, Any]:
        """Return what this process still holds of room for requests that are over."""
        return dict(self.runtime.decisions.decider.parts.ways.reservations._reservations._pending)

    def mirrored(self, host: str) -> Any:
        view = self.runtime.store.snapshot().namespace(known_namespaces.PROVIDERS.name)
        return view.get(self.nodes[host].uuid).state
