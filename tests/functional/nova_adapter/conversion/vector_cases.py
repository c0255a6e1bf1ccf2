# SPDX-License-Identifier: Apache-2.0
"""Hosts and requests drawn once, as Nova's objects and as ours."""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import attrs
import hypothesis
import nova.conf
from hypothesis import strategies as st
from nova import objects
from nova.scheduler import host_manager as nova_host_manager
from oslo_utils import timeutils

from nova_nodb_scheduler.scheduling.frame import host_facts, host_frame
from nova_nodb_scheduler.scheduling.namespaces import node_facts

CONF = nova.conf.CONF
NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
CELLS = ("cell-1", "cell-2")
HOSTS = ("Alpha", "alpha", "beta", "beta.example")
IMAGES = ("11111111-aaaa-4aaa-8aaa-111111111111", "22222222-aaaa-4aaa-8aaa-222222222222")
INSTANCES = tuple(f"{number}0000000-bbbb-4bbb-8bbb-000000000000" for number in range(6))
ADDRESSES = (*(f"10.1.2.{number}" for number in range(4)), "10.1.9.9", "10.9.0.1", "2001:db8::7")
CPU_INFOS = (
    None,
    "",
    "not json",
    "[1, 2]",
    '"text"',
    json.dumps({"arch": "x86_64", "maxphysaddr": {"mode": "emulate", "bits": 46}}),
    json.dumps({"arch": "aarch64", "features": ["a", "vmx"], "maxphysaddr": {"bits": None}}),
    json.dumps({"arch": "X86_64", "maxphysaddr": {"bits": 52}, "deep": '{"er": 1.5}'}),
)
METRICS = ("cpu.frequency", "cpu.percent", "numa.membw.current")
SUPPORTED = (
    ("x86_64", "kvm", "hvm"),
    ("i686", "qemu", "hvm"),
    ("aarch64", "kvm", "hvm"),
    ("x86_64", "xen", "xen"),
)

NUMBERS = st.sampled_from([0, 1, 7, 8, 50, 4096, 100_000])
#: Values of stats and of aggregates' metadata.
TEXTS = st.sampled_from(["", "1", "2", "-1", "3.5", "A", "a", "a,b", " b , c", "1,2", "kvm", "x86"])


@attrs.frozen
class Node:
    """One compute node, drawn.

    :param silence: seconds since its heartbeat
    :param aggregates: numbers of the aggregates its host is in
    """

    number: int
    cell: str
    host: str
    row: Mapping[str, Any]
    stats: Mapping[str, str | None]
    metrics: Sequence[str]
    supported: Sequence[tuple[str, str, str]]
    silence: float
    disabled: bool
    forced_down: bool
    aggregates: frozenset[int]
    instances: frozenset[str]

    @property
    def uuid(self) -> str:
        return f"0000000{self.number}-cccc-4ccc-8ccc-000000000000"

    @property
    def metrics_json(self) -> str:
        plain = {"value": 1, "source": "s", "timestamp": "2026-01-02T03:04:05"}
        return json.dumps([{"name": name, **plain} for name in self.metrics])


@attrs.frozen
class Cluster:
    """Some nodes and some aggregates."""

    nodes: Sequence[Node]
    metadata: Sequence[Mapping[str, str]]

    # -- as Nova has it -----------------------------------------------------------

    def states(self) -> list[Any]:
        return [self._state(node) for node in self.nodes]

    def _state(self, node: Node) -> Any:
        state = nova_host_manager.HostState(node.host, node.row["hypervisor_hostname"], node.cell)
        compute = objects.ComputeNode(
            uuid=node.uuid,
            host=node.host,
            updated_at=NOW,
            disk_available_least=None,
            numa_topology=None,
            pci_device_pools=None,
            supported_hv_specs=[objects.HVSpec.from_list(list(each)) for each in node.supported],
            stats=dict(node.stats),
            metrics=node.metrics_json,
            **node.row,
        )
        service = {
            "host": node.host,
            "disabled": node.disabled,
            "forced_down": node.forced_down,
            "last_seen_up": NOW - datetime.timedelta(seconds=node.silence),
        }
        aggregates = [
            objects.Aggregate(
                id=number,
                uuid=_aggregate_uuid(number),
                name=f"a{number}",
                metadata=dict(self.metadata[number]),
            )
            for number in sorted(node.aggregates)
        ]
        instances = {uuid: object() for each in self.nodes for uuid in self._on(each, node)}
        state.update(compute, service, aggregates, instances)
        return state

    def _on(self, other: Node, node: Node) -> frozenset[str]:
        """Return the instances of another node of the same host."""
        same = (other.cell, other.host) == (node.cell, node.host)
        return other.instances if same else frozenset()

    # -- as we have it ------------------------------------------------------------

    def frame(self) -> host_frame.HostFrame:
        by_uuid = {node.uuid: node for node in self.nodes}
        frame = host_frame.HostFrame(
            lambda uuid: [(n.cell, n.host) for n in self.nodes if uuid in n.instances],
            lambda uuid, path: node_facts.attribute(uuid, _record(by_uuid[uuid]), path),
        )
        frame.set_aggregates(
            host_facts.HostAggregate(_aggregate_uuid(number), number, f"a{number}", metadata)
            for number, metadata in enumerate(self.metadata)
        )
        # A row that once was another host's, and spare rows, must not matter.
        frame.put(host_facts.HostFacts("gone", CELLS[0], "Alpha", "gone", aggregates=("gone",)))
        for node in self.nodes:
            frame.put(_facts(node))
        frame.remove("gone")
        frame.tick(NOW.timestamp(), CONF.service_down_time)
        return frame


def _aggregate_uuid(number: int) -> str:
    return f"0000000{number}-dddd-4ddd-8ddd-000000000000"


def _record(node: Node) -> Mapping[str, Any]:
    """Return the node's record as reporters publish it: the row of Nova's table."""
    return {
        "cell": node.cell,
        "object_version": "1.19",
        "row": {
            **node.row,
            "uuid": node.uuid,
            "host": node.host,
            "memory_mb_used": 0,
            "disk_available_least": None,
            "stats": json.dumps(node.stats),
            "metrics": node.metrics_json,
            "supported_instances": json.dumps(node.supported),
            "pci_stats": None,
        },
    }


def _facts(node: Node) -> host_facts.HostFacts:
    row, stats = node.row, node.stats
    facts = host_facts.HostFacts(
        uuid=node.uuid,
        cell=node.cell,
        host=node.host,
        node=row["hypervisor_hostname"],
        updated=row["free_disk_gb"] is not None,
        disabled=node.disabled,
        forced_down=node.forced_down,
        last_seen_seconds=NOW.timestamp() - node.silence,
        aggregates=tuple(_aggregate_uuid(number) for number in sorted(node.aggregates)),
    )
    if not facts.updated:
        return facts
    same = ("memory_mb", "free_ram_mb", "local_gb", "vcpus", "vcpus_used", "hypervisor_version")
    ratios = ("cpu_allocation_ratio", "ram_allocation_ratio", "disk_allocation_ratio")
    return attrs.evolve(
        facts,
        **{name: row[name] for name in (*same, *ratios)},
        free_disk_mb=row["free_disk_gb"] * 1024,
        disk_mb_used=row["local_gb_used"] * 1024,
        num_instances=int(stats.get("num_instances") or 0),
        num_io_ops=int(stats.get("io_workload") or 0),
        failed_builds=int(stats.get("failed_builds") or 0),
    )


# -- what is drawn ------------------------------------------------------------------

ROWS = st.fixed_dictionaries(
    {
        "memory_mb": NUMBERS,
        "free_ram_mb": st.sampled_from([-512, 0, 1, 4096]),
        "local_gb": NUMBERS,
        "local_gb_used": NUMBERS,
        "free_disk_gb": st.sampled_from([0, -3, 0, 7, 7, 95, 95, 100_000, None]),
        "vcpus": NUMBERS,
        "vcpus_used": NUMBERS,
        "cpu_allocation_ratio": st.sampled_from([1.0, 16.0]),
        "ram_allocation_ratio": st.sampled_from([1.0, 1.5]),
        "disk_allocation_ratio": st.sampled_from([1.0]),
        "hypervisor_type": st.sampled_from(["QEMU", "qemu", "ironic"]),
        "hypervisor_version": st.sampled_from([0, 2_000_000, 8_002_000]),
        "hypervisor_hostname": st.sampled_from(["Alpha", "beta.example"]),
        "cpu_info": st.sampled_from(CPU_INFOS),
        "host_ip": st.sampled_from([*ADDRESSES, *ADDRESSES, None]),
    }
)


def nodes(number: int) -> st.SearchStrategy[Node]:
    return st.builds(
        Node,
        number=st.just(number),
        cell=st.sampled_from(CELLS),
        host=st.sampled_from(HOSTS),
        row=ROWS,
        # A null is asked for with a scope only, see ComputeCapabilitiesFilter.
        stats=st.fixed_dictionaries(
            {},
            optional={
                "foo": TEXTS,
                "Foo": TEXTS | st.none(),
                "num_instances": st.sampled_from(["0", "1", "2", "49", "50", "51"]),
                "io_workload": st.sampled_from(["0", "1", "2", "7", "8"]),
                "failed_builds": st.sampled_from(["0", "3"]),
            },
        ),
        metrics=st.lists(st.sampled_from(METRICS), unique=True),
        supported=st.lists(st.sampled_from(SUPPORTED), unique=True),
        silence=st.sampled_from([0.0, 59.5, 60.0, 60.5, -60.0, -61.0, 1e6]),
        disabled=st.booleans(),
        forced_down=st.booleans(),
        aggregates=st.frozensets(st.integers(0, 2)),
        # Sets drawn one by one are empty too often for groups to be refused.
        instances=st.sampled_from(
            [
                frozenset(INSTANCES[first : first + count])
                for first in range(6)
                for count in range(4)
            ]
        ),
    )


METADATA = st.dictionaries(
    st.sampled_from(
        [
            "filter_tenant_id",
            "filter_tenant_id2",
            "instance_type",
            "max_io_ops_per_host",
            "max_instances_per_host",
            "hw_disk_bus",
            "os_distro",
            "foo",
            "no_such_property",
        ]
    ),
    TEXTS | st.sampled_from(["virtio", "scsi, virtio", "debian", "project, other", "True", "nan"]),
)

CLUSTERS = st.builds(
    Cluster,
    nodes=st.integers(1, 5).flatmap(lambda count: st.tuples(*map(nodes, range(count)))),
    metadata=st.tuples(METADATA, METADATA, METADATA),
)


@functools.cache
def drawn(count: int) -> Sequence[Cluster]:
    """Return so many clusters, the same ones each time.

    To draw one takes several times as long as to compare a filter on it, so that filters
    share them.
    """
    found: list[Cluster] = []

    @hypothesis.settings(
        database=None,
        derandomize=True,
        max_examples=count,
        phases=(hypothesis.Phase.generate,),
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(CLUSTERS)
    def keep(cluster: Cluster) -> None:
        found.append(cluster)

    keep()
    return tuple(found)


def one(**values: Any) -> Cluster:
    """Return a cluster of one plain host; values are of its row, or of the node."""
    row: dict[str, Any] = {
        "memory_mb": 4096,
        "free_ram_mb": 4096,
        "local_gb": 100,
        "local_gb_used": 0,
        "free_disk_gb": 100,
        "vcpus": 8,
        "vcpus_used": 0,
        "cpu_allocation_ratio": 4.0,
        "ram_allocation_ratio": 1.0,
        "disk_allocation_ratio": 1.0,
        "hypervisor_type": "QEMU",
        "hypervisor_version": 8_002_000,
        "hypervisor_hostname": "Alpha",
        "cpu_info": CPU_INFOS[5],
        "host_ip": "10.1.2.3",
    }
    node = Node(
        number=0,
        cell=CELLS[0],
        host="Alpha",
        row={name: values.pop(name, value) for name, value in row.items()},
        stats={"foo": "text"},
        metrics=(),
        supported=SUPPORTED[:1],
        silence=0.0,
        disabled=False,
        forced_down=False,
        aggregates=frozenset({0}),
        instances=frozenset(),
    )
    return Cluster((attrs.evolve(node, **values),), ({"foo": "text"}, {}, {}))


ONE = one()

# -- requests -------------------------------------------------------------------------


def spec(**fields: Any) -> Any:
    """Return a RequestSpec with all that filters read; given fields replace it."""
    plain: dict[str, Any] = {
        "flavor": flavor(),
        "image": objects.ImageMeta(id=IMAGES[0], properties=objects.ImageMetaProps()),
        "project_id": "project",
        "user_id": "user",
        "instance_uuid": INSTANCES[0],
        "instance_group": None,
        "numa_topology": None,
        "pci_requests": None,
        "scheduler_hints": {},
    }
    return objects.RequestSpec(**{**plain, **fields})


def flavor(name: str = "small", **extra_specs: str) -> Any:
    return objects.Flavor(
        name=name,
        vcpus=1,
        memory_mb=512,
        root_gb=1,
        ephemeral_gb=0,
        swap=0,
        extra_specs=extra_specs,
    )


def image(uuid: str | None = IMAGES[0], **properties: Any) -> Any:
    return objects.ImageMeta(id=uuid, properties=objects.ImageMetaProps(**properties))


def at_noon(function: Callable[[], Any]) -> Any:
    """Call a function at the time that silences are counted from."""
    with mock.patch.object(timeutils, "utcnow", lambda *_args: NOW.replace(tzinfo=None)):
        return function()
