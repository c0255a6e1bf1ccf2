# SPDX-License-Identifier: Apache-2.0
"""Facts made of records equal what Nova's own code makes of the same records.

Set NODB_PROPERTY_EXAMPLES for more cases than CI runs.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import hypothesis
import nova.conf
import testtools
from hypothesis import strategies as st
from nova import context as nova_context
from nova import objects
from nova.scheduler import host_manager as nova_host_manager
from nova.servicegroup import api as servicegroup_api
from oslo_utils import fixture as time_fixture

from nova_nodb_scheduler.nova_adapter.conversion import nova_rows
from nova_nodb_scheduler.scheduling.frame import host_facts
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces, node_facts
from tests.unit.scheduling import hosts

CONF = nova.conf.CONF
UUID = "a0000000-0000-0000-0000-00000000000a"
SERVICE = "b0000000-0000-0000-0000-00000000000b"
AGGREGATES = ("d0000000-0000-0000-0000-00000000000d", "e0000000-0000-0000-0000-00000000000e")
BEGINNING = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - naive, as Nova's clock is

#: Rows are few and plain: shrinking them costs minutes and shows little more.
_PHASES = (hypothesis.Phase.explicit, hypothesis.Phase.reuse, hypothesis.Phase.generate)


def _mostly(good: list[Any], bad: list[Any]) -> st.SearchStrategy[Any]:
    """Draw what Nova refuses rarely: a row has many columns."""
    return st.integers(0, 40).flatmap(lambda n: st.sampled_from(good if n else bad))


#: Mostly what a row holds; rarely what it should not.
NUMBERS = _mostly([0, 1, 7, 100_000, -(2**31), 2**31, "12"], [None])
SURE = st.sampled_from([0, 1, -512, 100_000])
RATIOS = st.sampled_from([None, 0.0, 0, 1.0, 1.5, 16, "2.5"])


def _metric(name: str, value: float) -> dict[str, Any]:
    return {"name": name, "value": value, "source": "s", "timestamp": "2026-01-02T03:04:05"}


POOL = {"vendor_id": "8086", "product_id": "1520", "numa_node": 0, "count": 3, "dev_type": "t"}


def _pools(*counts: int) -> str:
    objects.register_all()
    pools = [
        objects.PciDevicePool(
            product_id="1", vendor_id="8086", numa_node=None, count=count, tags={"x": "y"}
        )
        for count in counts
    ]
    return json.dumps(objects.PciDevicePoolList(objects=pools).obj_to_primitive())


ROWS = st.fixed_dictionaries(
    {
        "vcpus": NUMBERS,
        "vcpus_used": SURE,
        "memory_mb": SURE,
        "memory_mb_used": SURE,
        "local_gb": SURE,
        "local_gb_used": SURE,
        "free_ram_mb": SURE,
        "free_disk_gb": st.sampled_from([None, -3, 0, 95, 95]),
        "disk_available_least": st.sampled_from([None, -1, 90, 1000]),
        "hypervisor_version": _mostly([0, 8002000, "8002000"], [None]),
        "cpu_info": st.sampled_from(["", "{}", '{"arch": "x86_64"}', None]),
        "cpu_allocation_ratio": RATIOS,
        "ram_allocation_ratio": RATIOS,
        "disk_allocation_ratio": RATIOS,
        "stats": _mostly(
            [
                "{}",
                "null",
                '{"num_instances": "3", "io_workload": "2", "failed_builds": "1"}',
                '{"num_instances": 3, "x": null, "y": 1.5, "z": true}',
            ],
            [
                "",
                None,
                "[]",
                "[1]",
                "nonsense",
                '{"num_instances": null}',
                '{"num_instances": "many"}',
                '{"io_workload": {"a": 1}}',
            ],
        ),
        "metrics": _mostly(
            [
                None,
                "",
                "[]",
                json.dumps([_metric("cpu.user.time", 9), _metric("cpu.user.time", -1)]),
                json.dumps([_metric("cpu.percent", 0.17), _metric("cpu.iowait.percent", 0.3)]),
            ],
            ["null", "nonsense", '[{"value": 1}]', "[1]"],
        ),
        "supported_instances": _mostly(
            ["[]", '[["x86_64", "kvm", "hvm"], ["i686", "qemu", "hvm"]]'],
            ["", None, "nonsense", '[["x86_64"]]', "null"],
        ),
        "host_ip": st.sampled_from([None, "192.0.2.7", "2001:db8::1"]),
        "pci_stats": _mostly(
            [
                None,
                "",
                "[]",
                "nonsense",
                _pools(),
                _pools(3, 4, -1),
                json.dumps(POOL),
                json.dumps([POOL, POOL]),
            ],
            ['[{"vendor_id": "8086"}]'],
        ),
        "hypervisor_hostname": _mostly(["node"], [None]),
        "updated_at": st.sampled_from([None, "2026-01-02T03:04:05"]),
    }
)
SERVICES = st.fixed_dictionaries(
    {
        "disabled": st.booleans(),
        "disabled_reason": st.sampled_from([None, "why"]),
        "forced_down": st.booleans(),
        "created_at": st.sampled_from(["1970-01-01T00:00:10", "1970-01-01T00:03:00.5"]),
    }
)


def _nova(node: Any, service: Any, aggregates: list[Any]) -> Any:
    """Make a HostState as HostManager._get_host_states does."""
    compute, _numa_topology = nova_rows.compute_node(nova_context.get_admin_context(), node)
    state = nova_host_manager.HostState(compute.host, compute.hypervisor_hostname, hosts.CELL)
    state.update(compute, dict(service) if service else None, aggregates, {})
    return state


class HostFactsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        objects.register_all()
        self.ratios = node_facts.DefaultRatios(
            *(
                getattr(CONF, name) or getattr(CONF, f"initial_{name}")
                for name in (
                    "cpu_allocation_ratio",
                    "ram_allocation_ratio",
                    "disk_allocation_ratio",
                )
            )
        )

    def drawn(
        self,
        row: Mapping[str, Any],
        service: Mapping[str, Any] | None,
        beat: int | None,
        members: list[bool],
    ) -> hosts.Hosts:
        cloud = hosts.Hosts()
        state = hosts.node(UUID, "h1", service_id=None, mapped=None, **row)
        cloud.put(known_namespaces.COMPUTE_NODES, UUID, state)
        if service is not None:
            cloud.put(known_namespaces.SERVICES, SERVICE, hosts.service(SERVICE, **service))
            if beat is not None:
                cloud.put(known_namespaces.SERVICE_LIVENESS, SERVICE, hosts.liveness(beat or None))
        for number, (uuid, is_member) in enumerate(zip(AGGREGATES, members, strict=True)):
            made = hosts.aggregate(uuid, 9 - number, ["h1"] if is_member else [], zone="z")
            made["row"].update(created_at=None, updated_at=None)
            cloud.put(known_namespaces.AGGREGATES, uuid, made)
        return cloud

    @hypothesis.settings(
        max_examples=int(os.environ.get("NODB_PROPERTY_EXAMPLES", "100")),
        phases=_PHASES,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(
        row=ROWS,
        service=st.none() | SERVICES,
        beat=st.none() | st.integers(0, 250),
        members=st.lists(st.booleans(), min_size=2, max_size=2),
        now=st.integers(0, 400),
    )
    def test_facts_equal_novas_host_state(
        self,
        row: dict[str, Any],
        service: dict[str, Any] | None,
        beat: int | None,
        members: list[bool],
        now: int,
    ) -> None:
        cloud = self.drawn(row, service, beat, members)
        snapshot = cloud.store.snapshot()
        records = {
            space.name: snapshot.namespace(space.name)
            for space in (
                known_namespaces.COMPUTE_NODES,
                known_namespaces.SERVICES,
                known_namespaces.SERVICE_LIVENESS,
                known_namespaces.AGGREGATES,
            )
        }
        context = nova_context.get_admin_context()
        nova_service = None
        if service is not None:
            nova_service = nova_rows.service(
                context,
                records["services"].get(SERVICE),
                records["service_liveness"].get(SERVICE),
            )
        nova_aggregates = [
            nova_rows.aggregate(context, records["aggregates"].get(uuid))
            for uuid, is_member in zip(AGGREGATES, members, strict=True)
            if is_member
        ]
        try:
            state = _nova(records["compute_nodes"].get(UUID), nova_service, nova_aggregates)
        except Exception as error:  # whatever Nova's code says of the row
            hypothesis.event(f"refused: {type(error).__name__}")
            state = None
        keeper, feed = cloud.keeper(ratios=self.ratios)
        keeper.catch_up(float(now))
        if state is None:
            self.assertEqual({UUID}, set(keeper.unreadable))
            self.assertEqual(0, len(feed.frame))
            return
        hypothesis.event("understood")
        self.assertEqual({}, keeper.unreadable)
        frame_row = feed.frame.row_of(UUID)
        self._compare(feed.frame.facts(frame_row), state)
        self.assertEqual(service is not None, feed.frame.facts(frame_row).has_service)
        self._compare_attributes(feed.frame, frame_row, state)
        if nova_service is not None:
            with time_fixture.TimeFixture(BEGINNING + datetime.timedelta(seconds=now)):
                up = servicegroup_api.API().service_is_up(nova_service)
            self.assertEqual(up, bool(feed.frame.up[frame_row]))
            facts = feed.frame.facts(frame_row)
            self.assertEqual(
                (service["disabled"], service["forced_down"]), (facts.disabled, facts.forced_down)
            )

    def _compare(self, facts: host_facts.HostFacts, state: Any) -> None:
        self.assertEqual(
            (state.host, state.nodename, state.cell_uuid), (facts.host, facts.node, facts.cell)
        )
        self.assertEqual(
            tuple(a.uuid for a in sorted(state.aggregates, key=lambda a: a.id)), facts.aggregates
        )
        self.assertEqual(state.uuid is not None, facts.updated)
        pools = state.pci_stats.pools if state.pci_stats else []
        for expected, actual in (
            (state.total_usable_ram_mb, facts.memory_mb),
            (state.free_ram_mb, facts.free_ram_mb),
            (state.total_usable_disk_gb, facts.local_gb),
            (state.free_disk_mb, facts.free_disk_mb),
            (state.disk_mb_used, facts.disk_mb_used),
            (state.vcpus_total, facts.vcpus),
            (state.vcpus_used, facts.vcpus_used),
            (state.num_instances, facts.num_instances),
            (state.num_io_ops, facts.num_io_ops),
            (state.failed_builds, facts.failed_builds),
            (state.hypervisor_version or 0, facts.hypervisor_version),
            (sum(pool["count"] for pool in pools), facts.pci_free),
        ):
            self.assertEqual(expected, actual)
        if facts.updated:
            self.assertEqual(UUID, facts.uuid)
            for name in ("cpu_allocation_ratio", "ram_allocation_ratio", "disk_allocation_ratio"):
                self.assertEqual(getattr(state, name), getattr(facts, name))

    def _compare_attributes(self, frame: Any, row: int, state: Any) -> None:
        def at(*path: str) -> Any:
            column = frame.attribute(*path)
            return column.values[column.codes[row]]

        stats = getattr(state, "stats", {})
        self.assertEqual(dict(stats), dict(at("stats") or {}))
        for name in ("num_instances", "io_workload", "x", "y", "z"):
            self.assertEqual(stats.get(name), at("stats", name))
        for name in (
            "host",
            "nodename",
            "cell_uuid",
            "cpu_info",
            "hypervisor_type",
            "hypervisor_hostname",
        ):
            self.assertEqual(getattr(state, name), at(name))
        address = at("host_ip")
        self.assertEqual(
            state.host_ip,
            address and ipaddress.ip_address(address).compressed and type(state.host_ip)(address),
        )
        self.assertEqual(
            [tuple(each) for each in state.supported_instances or ()],
            list(at("supported_instances") or ()),
        )
        metrics = {metric.name: metric.value for metric in state.metrics or ()}
        self.assertEqual(metrics, dict(at("metrics") or {}))
        for name, value in metrics.items():
            self.assertEqual(value, at("metrics", name))

    def test_a_service_never_seen_nor_created_is_down_for_good(self) -> None:
        cloud = self.drawn({}, {"created_at": None}, None, [False, False])
        keeper, feed = cloud.keeper()
        keeper.catch_up(0.0)

        facts = feed.frame.facts(feed.frame.row_of(UUID))
        self.assertEqual(-math.inf, facts.last_seen_seconds)
        self.assertFalse(feed.frame.up.any())
