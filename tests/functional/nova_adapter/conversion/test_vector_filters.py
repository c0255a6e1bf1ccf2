# SPDX-License-Identifier: Apache-2.0
"""Each vectorised filter passes the hosts that Nova's filter of that name passes."""

from __future__ import annotations

import collections
import json
import logging
import os
from collections.abc import Mapping
from typing import Any, ClassVar

import hypothesis
import nova.conf
import numpy as np
import testtools
from hypothesis import strategies as st
from nova import objects
from nova.scheduler import filters as nova_filters
from nova.scheduler import utils as scheduler_utils

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.nova_adapter.conversion import request_conversion
from nova_nodb_scheduler.scheduling import decision_settings, filters
from nova_nodb_scheduler.scheduling.filters import host_values
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract
from tests.functional.nova_adapter.conversion import vector_cases as cases

CONF = nova.conf.CONF
EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "60"))
#: A long run draws clusters for each filter; CI has each filter choose among so many.
_LONG = "NODB_PROPERTY_EXAMPLES" in os.environ
_SHARED_CLUSTERS = 4 * EXAMPLES

#: To shrink a cluster of Nova's objects takes minutes: only where cases are many.
_PHASES = (hypothesis.Phase.generate,)

objects.register_all()

_NOVAS = {each.__name__: each for each in nova_filters.all_filters()}

#: Names of options that are the same in Nova and in ours.
_OPTIONS = (
    "max_io_ops_per_host",
    "max_instances_per_host",
    "isolated_images",
    "isolated_hosts",
    "restrict_isolated_hosts_to_isolated_images",
    "aggregate_image_properties_isolation_namespace",
    "aggregate_image_properties_isolation_separator",
    "image_properties_default_architecture",
)


def _settings() -> decision_settings.SchedulingOptions:
    read = {name: getattr(CONF.filter_scheduler, name) for name in _OPTIONS}
    return decision_settings.SchedulingOptions(
        **{name: tuple(v) if isinstance(v, list) else v for name, v in read.items()},
        service_down_time=CONF.service_down_time,
        metrics_weight_setting=tuple(
            scheduler_utils.parse_options(CONF.metrics.weight_setting, "=", float)
        ),
    )


def _request(spec: Any) -> requests.Request:
    return request_conversion.request(spec, None, cases.CELLS)


class Disagreement(AssertionError):
    """Ours and Nova's say different things of a host."""


class FilterCase(testtools.TestCase):
    """Compares one filter with Nova's of the same name."""

    def setUp(self) -> None:
        super().setUp()
        for name in ("nova", "oslo_config"):
            logger = logging.getLogger(name)
            self.addCleanup(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        self.seen: collections.Counter[str] = collections.Counter()
        #: Of every host.
        self.numa_topology: Any = None

    def override(self, values: Mapping[str, Any]) -> None:
        """Set options of Nova's; "group:name" or of the group filter_scheduler."""
        for key, value in values.items():
            group, _, name = key.rpartition(":")
            CONF.set_override(name, value, group=group or "filter_scheduler")
            self.addCleanup(CONF.clear_override, name, group=group or "filter_scheduler")

    def compare(
        self,
        ours: type[plugin_contract.Filter],
        cluster: cases.Cluster,
        spec: Any,
        novas: Any = None,
    ) -> None:
        """Compare for every host, all at once and one by one; count what came up."""
        filter_ = ours(_settings())
        frame = cluster.frame()
        request = _request(spec)
        expected = cases.at_noon(lambda: self.novas(novas or _NOVAS[filter_.name], cluster, spec))
        key = filter_.key(request, frame)
        if key is plugin_contract.OnHostObjects.NEEDED:
            self.seen["left to Nova"] += 1
            self.seen["left to Nova, which raises"] += not isinstance(expected, list)
            return
        if not isinstance(expected, list):
            raise Disagreement(f"Nova raises {expected!r}, key is {key!r}")
        hash(key)
        if filter_.key(request, frame) != key:
            raise Disagreement("two keys of one request differ")
        rows = [frame.row_of(node.uuid) for node in cluster.nodes]
        if key is None:
            found = [True] * len(rows)
            self.seen["without a key"] += 1
        else:
            everything = filter_.mask(request, frame, slice(None))
            one_by_one = [filter_.mask(request, frame, np.array([row])) for row in rows]
            if everything.shape != (frame.rows,) or everything.dtype != np.bool_:
                raise Disagreement(f"{everything.dtype} {everything.shape}")
            found = [bool(everything[row]) for row in rows]
            if found != [bool(one[0]) for one in one_by_one]:
                raise Disagreement("all rows at once and one by one differ")
            backwards = filter_.mask(request, frame, np.array(rows[::-1]))
            if found != backwards.tolist()[::-1]:
                raise Disagreement("rows in another order differ")
        if found != expected:
            raise Disagreement(f"found {found}, Nova says {expected}, key {key!r}")
        self.seen["accepted"] += found.count(True)
        self.seen["rejected"] += found.count(False)

    def novas(self, novas: Any, cluster: cases.Cluster, spec: Any) -> list[bool] | Exception:
        filter_ = novas()
        states = cluster.states()
        for state in states:
            state.numa_topology = self.numa_topology
        try:
            return [bool(filter_.host_passes(state, spec)) for state in states]
        except Exception as error:
            return error

    def check(
        self,
        ours: type[plugin_contract.Filter],
        specs: st.SearchStrategy[Any],
        settings: st.SearchStrategy[Mapping[str, Any]] | None = None,
        reached: tuple[str, ...] = ("accepted", "rejected"),
    ) -> None:
        """Compare for drawn clusters, requests and settings."""
        clusters = cases.CLUSTERS if _LONG else st.sampled_from(cases.drawn(_SHARED_CLUSTERS))

        @hypothesis.settings(
            database=None,
            derandomize=not _LONG,
            max_examples=EXAMPLES,
            phases=_PHASES,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(cluster=clusters, spec=specs, values=settings or st.just({}))
        def compare(cluster: cases.Cluster, spec: Any, values: Mapping[str, Any]) -> None:
            self.override(values)
            self.compare(ours, cluster, spec)

        compare()
        self.addDetail("coverage", testtools.content.text_content(repr(dict(self.seen))))
        if _LONG:
            print(f"{ours.__name__}: {dict(self.seen)}")  # noqa: T201 - the long run's log
        for what in reached:
            self.assertGreater(self.seen[what], 0, f"no host was {what}: {dict(self.seen)}")


def _flavors(keys: list[str], values: list[str]) -> st.SearchStrategy[Any]:
    return st.dictionaries(st.sampled_from(keys), st.sampled_from(values), max_size=3).map(
        lambda extra_specs: cases.spec(flavor=cases.flavor(**extra_specs))
    )


#: What an extra spec may ask for, sensible and not.
REQUIREMENTS = [
    "1", "a", "A", "kvm", "", "= 1", "== 1", "!= 1", ">= 2", "<= 7", ">= a", "==", "=",
    "s== a", "s!= a", "s< b", "s<= a", "s> a", "s>= a", "s==", "<in> a", "<in> 86", "<in>",
    "<all-in> a b", "<all-in> x 8", "<or> a <or> 1", "<or> a or b <or>", "<or>", "nonsense a",
    "s== QEMU", "<or> x86_64 <or> aarch64", ">= 46", "== nan", "= 1_0", "s== 1.0", "!= 4096",
]  # fmt: skip


class DefaultFiltersTest(FilterCase):
    built_in: ClassVar = filters.BUILT_IN

    def test_compute_filter(self) -> None:
        self.check(self.built_in["ComputeFilter"], st.just(cases.spec()))

    def test_all_hosts_filter(self) -> None:
        self.check(
            self.built_in["AllHostsFilter"], st.just(cases.spec()), reached=("without a key",)
        )

    def test_compute_capabilities_filter(self) -> None:
        keys = [
            "capabilities:foo",
            "capabilities:stats:Foo",
            "capabilities:free_ram_mb",
            "capabilities:free_disk_mb",
            "capabilities:cpu_allocation_ratio",
            "capabilities:hypervisor_type",
            "capabilities:hypervisor_version",
            "capabilities:host",
            "capabilities:cpu_info",
            "capabilities:cpu_info:arch",
            "capabilities:cpu_info:features",
            "capabilities:cpu_info:maxphysaddr:bits",
            "capabilities:cpu_info:deep:er",
            "capabilities:nothing:at:all",
            "capabilities:",
            "hw:maxphysaddr_bits",
            "hw:cpu_policy",
            "foo",
            "vcpus_used",
            "host_ip",
            "uuid",
            "Bar",
        ]
        self.check(self.built_in["ComputeCapabilitiesFilter"], _flavors(keys, REQUIREMENTS))

    def test_address_bits_are_a_capability(self) -> None:
        self.check(
            self.built_in["ComputeCapabilitiesFilter"],
            _flavors(["hw:maxphysaddr_bits", "capabilities:cpu_info:arch"], ["40", "46", "x86_64"]),
        )

    def test_image_properties_filter(self) -> None:
        properties = st.fixed_dictionaries(
            {},
            optional={
                "hw_architecture": st.sampled_from(["x86_64", "amd64", "aarch64", "ppc64"]),
                "img_hv_type": st.sampled_from(["kvm", "QEMU", "xapi"]),
                "hw_vm_mode": st.sampled_from(["hvm", "HV", "xen"]),
                "img_hv_requested_version": st.sampled_from([">=2.0", "<8.2, >1", "==8.2.0"]),
            },
        )
        images = properties.map(lambda drawn: cases.image(**drawn)) | st.none()
        self.check(
            self.built_in["ImagePropertiesFilter"],
            images.map(lambda image: cases.spec(image=image)),
            st.fixed_dictionaries(
                {"image_properties_default_architecture": st.sampled_from([None, "x86_64"])}
            ),
        )

    def groups(self) -> st.SearchStrategy[Any]:
        groups = st.builds(
            objects.InstanceGroup,
            uuid=st.just(cases.IMAGES[0]),
            policy=st.sampled_from(["anti-affinity", "anti-affinity", "affinity", "other", None]),
            policies=st.sampled_from([["affinity"], ["affinity"], ["anti-affinity"], []]),
            members=st.lists(st.sampled_from(cases.INSTANCES), min_size=2, max_size=6),
            hosts=st.lists(st.sampled_from([*cases.HOSTS, "none"]), max_size=2),
            rules=st.sampled_from(
                [{}, {}, {}, *({"max_server_per_host": number} for number in ("0", "1", "2", "3"))]
            ),
        )
        return st.builds(
            lambda group, uuid: cases.spec(instance_group=group, instance_uuid=uuid),
            groups | groups | st.none(),
            st.sampled_from([*cases.INSTANCES, *[cases.IMAGES[1]] * 6]),
        )

    def test_server_group_anti_affinity_filter(self) -> None:
        self.check(self.built_in["ServerGroupAntiAffinityFilter"], self.groups())

    def test_server_group_affinity_filter(self) -> None:
        self.check(self.built_in["ServerGroupAffinityFilter"], self.groups())


class AggregateFiltersTest(FilterCase):
    built_in: ClassVar = filters.BUILT_IN

    def test_aggregate_image_properties_isolation(self) -> None:
        properties = st.fixed_dictionaries(
            {},
            optional={
                "hw_disk_bus": st.sampled_from(["virtio", "scsi"]),
                "os_distro": st.sampled_from(["debian", "Debian", ""]),
                "hw_boot_menu": st.booleans(),
            },
        )
        images = properties.map(lambda drawn: cases.image(**drawn)) | st.none()
        self.check(
            self.built_in["AggregateImagePropertiesIsolation"],
            images.map(lambda image: cases.spec(image=image)),
            st.fixed_dictionaries(
                {
                    "aggregate_image_properties_isolation_namespace": st.sampled_from(
                        [None, None, "hw", "other"]
                    ),
                    "aggregate_image_properties_isolation_separator": st.sampled_from([".", "_"]),
                }
            ),
        )

    def test_aggregate_instance_extra_specs_filter(self) -> None:
        keys = [
            "foo",
            "os_distro",
            "aggregate_instance_extra_specs:foo",
            "aggregate_instance_extra_specs:os_distro",
            "aggregate_instance_extra_specs:",
            "aggregate_instance_extra_specs:max_io_ops_per_host",
            "hw:cpu_policy",
            "nothing",
        ]
        values = [*REQUIREMENTS, "debian", "<or> debian <or> A", "s== b", "<in> i"]
        self.check(
            self.built_in["AggregateInstanceExtraSpecsFilter"],
            _flavors(keys, values),
        )

    def test_aggregate_multi_tenancy_isolation(self) -> None:
        projects = st.sampled_from(["project", "other", "a", ""])
        self.check(
            self.built_in["AggregateMultiTenancyIsolation"],
            projects.map(lambda project: cases.spec(project_id=project)),
        )

    def test_aggregate_type_affinity_filter(self) -> None:
        names = st.sampled_from(["a", "A", "b", "kvm", ""])
        self.check(
            self.built_in["AggregateTypeAffinityFilter"],
            names.map(lambda name: cases.spec(flavor=cases.flavor(name))),
        )


class LimitFiltersTest(FilterCase):
    built_in: ClassVar = filters.BUILT_IN

    def limits(self) -> st.SearchStrategy[Mapping[str, Any]]:
        return st.fixed_dictionaries(
            {
                "max_io_ops_per_host": st.sampled_from([0, 1, 2, 8]),
                "max_instances_per_host": st.sampled_from([1, 2, 50]),
            }
        )

    def test_io_ops_filter(self) -> None:
        self.check(self.built_in["IoOpsFilter"], st.just(cases.spec()), self.limits())

    def test_num_instances_filter(self) -> None:
        self.check(self.built_in["NumInstancesFilter"], st.just(cases.spec()), self.limits())

    def test_aggregate_io_ops_filter(self) -> None:
        self.check(self.built_in["AggregateIoOpsFilter"], st.just(cases.spec()), self.limits())

    def test_aggregate_num_instances_filter(self) -> None:
        self.check(
            self.built_in["AggregateNumInstancesFilter"], st.just(cases.spec()), self.limits()
        )


def _hinted(**hints: Any) -> Any:
    """Return a request with hints as Nova's API makes them: lists."""
    return cases.spec(
        scheduler_hints={
            name: value if isinstance(value, list) else [value]
            for name, value in hints.items()
            if value is not None
        }
    )


class HintFiltersTest(FilterCase):
    built_in: ClassVar = filters.BUILT_IN

    def instances(self, hint: str) -> st.SearchStrategy[Any]:
        uuids = st.lists(st.sampled_from([*cases.INSTANCES, "gone"]), max_size=3)
        return (st.none() | uuids | uuids).map(lambda drawn: _hinted(**{hint: drawn}))

    def test_different_host_filter(self) -> None:
        self.check(self.built_in["DifferentHostFilter"], self.instances("different_host"))

    def test_same_host_filter(self) -> None:
        self.check(self.built_in["SameHostFilter"], self.instances("same_host"))

    def test_simple_cidr_affinity_filter(self) -> None:
        addresses = ["10.1.2.9", "10.1.0.0", "2001:db8::1", "10.1.2", "10.01.2.9", "::%e", "no"]
        prefixes = [
            "/24",
            "/16",
            "/255.255.0.0",
            "/0.0.255.255",
            "/0.0.0.0",
            "/33",
            "24",
            "",
            "/64",
        ]
        specs = st.builds(
            lambda address, prefix: _hinted(build_near_host_ip=address, cidr=prefix),
            st.sampled_from([*addresses[:3] * 3, *addresses, None, ["10.1.2.9", "10.1.2.10"]]),
            st.sampled_from([*prefixes[:3] * 4, *prefixes, None]),
        )
        self.check(
            self.built_in["SimpleCIDRAffinityFilter"],
            specs,
        )

    def test_json_filter(self) -> None:
        names = [
            "$free_ram_mb",
            "$total_usable_disk_gb",
            "$vcpus_used",
            "$hypervisor_version",
            "$hypervisor_hostname",
            "$host",
            "$uuid",
            "$cpu_allocation_ratio",
            "$stats.foo",
            "$stats.foo.bar",
            "$cpu_info.arch",
            "$nothing",
            "$nothing.at.all",
            "$supported_instances",
            "$",
        ]
        leaves = st.sampled_from(
            [*names, *names[:7], 0, 1, 4096, -512, 1.5, True, None, "Alpha", "1", "", {"a": 1}]
        )
        commands = st.sampled_from(["=", "<", ">", "in", "<=", ">=", "not", "or", "and"])
        queries = st.recursive(
            leaves,
            lambda inner: st.tuples(commands, st.lists(inner, max_size=3)).map(
                lambda drawn: [drawn[0], *drawn[1]]
            ),
            max_leaves=4,
        )
        plain = st.builds(
            lambda command, name, value: [command, name, value],
            st.sampled_from(["<", ">", "<=", ">=", "=", "in"]),
            st.sampled_from(["$free_ram_mb", "$vcpus_used", "$total_usable_disk_gb"]),
            st.sampled_from([0, 1, 7, 4096]),
        )
        named = st.builds(
            lambda name, text: ["=", name, text],
            st.sampled_from(["$host", "$hypervisor_hostname", "$hypervisor_type", "$cpu_info"]),
            st.sampled_from(["Alpha", "alpha", "beta.example", "QEMU", "", "$host"]),
        )
        both = st.builds(
            lambda command, arguments: [command, *arguments],
            st.sampled_from(["and", "or"]),
            st.lists(plain | named | plain.map(lambda inner: ["not", inner]), max_size=3),
        )
        texts = (plain | both | named | queries).map(json.dumps) | st.sampled_from(
            ["", "[", "{}", "[]", '["nand", 1]', '[["="], 1]', "5", "null", '"text"', '{"a": 1}']
        )
        self.check(
            self.built_in["JsonFilter"],
            texts.map(lambda text: _hinted(query=text)),
        )


class OtherFiltersTest(FilterCase):
    built_in: ClassVar = filters.BUILT_IN

    def test_isolated_hosts_filter(self) -> None:
        images = st.none() | st.sampled_from(cases.IMAGES).map(cases.image)
        self.check(
            self.built_in["IsolatedHostsFilter"],
            images.map(lambda image: cases.spec(image=image)),
            st.fixed_dictionaries(
                {
                    "isolated_images": st.sampled_from([[], [cases.IMAGES[0]]]),
                    "isolated_hosts": st.sampled_from([[], ["Alpha"], ["beta", "none"]]),
                    "restrict_isolated_hosts_to_isolated_images": st.booleans(),
                }
            ),
        )

    def test_metrics_filter(self) -> None:
        weights = st.lists(st.sampled_from([f"{name}=1.0" for name in cases.METRICS]), max_size=2)
        self.check(
            self.built_in["MetricsFilter"],
            st.just(cases.spec()),
            st.fixed_dictionaries({"metrics:weight_setting": weights}),
        )

    def test_numa_topology_filter(self) -> None:
        """Where it has no key, Nova's filter passes every host, whatever its topology."""
        cell = objects.InstanceNUMACell(id=0, cpuset={0}, pcpuset=set(), memory=512)
        specs = st.builds(
            lambda extra_specs, properties, numa, image: cases.spec(
                flavor=cases.flavor(**extra_specs),
                image=cases.image(**properties) if image else None,
                numa_topology=numa,
            ),
            st.dictionaries(
                st.sampled_from(["hw:cpu_policy", "hw:cpu_thread_policy"]),
                st.sampled_from(["dedicated", "shared", "require", "prefer"]),
            ),
            st.fixed_dictionaries(
                {},
                optional={
                    "hw_cpu_policy": st.sampled_from(["dedicated", "shared"]),
                    "hw_cpu_thread_policy": st.sampled_from(["require", "isolate"]),
                },
            ),
            st.sampled_from([None, None, objects.InstanceNUMATopology(cells=[cell])]),
            st.sampled_from([True, True, True, False]),
        )
        self.numa_topology = objects.NUMATopology(
            cells=[
                objects.NUMACell(
                    id=0,
                    cpuset={0, 1},
                    pcpuset={2},
                    memory=4096,
                    cpu_usage=0,
                    memory_usage=0,
                    mempages=[],
                    pinned_cpus=set(),
                    siblings=[{0}, {1}, {2}],
                )
            ]
        )
        self.check(
            self.built_in["NUMATopologyFilter"],
            specs,
            reached=("accepted", "left to Nova", "without a key"),
        )

    def test_pci_passthrough_filter(self) -> None:
        wanted = objects.InstancePCIRequest(
            count=1, spec=[{"vendor_id": "8086"}], request_id=cases.IMAGES[0]
        )
        specs = st.sampled_from([None, [], [wanted]]).map(
            lambda drawn: cases.spec(
                pci_requests=None if drawn is None else objects.InstancePCIRequests(requests=drawn)
            )
        )
        self.check(
            self.built_in["PciPassthroughFilter"],
            specs,
            reached=("accepted", "left to Nova", "without a key"),
        )


class LeftToNovaTest(FilterCase):
    """What makes Nova raise goes to Nova, which raises its own error."""

    def left(self, name: str, cluster: cases.Cluster, *specs: Any) -> None:
        for spec in specs:
            self.compare(filters.BUILT_IN[name], cluster, spec)
        self.assertEqual(
            {"left to Nova": len(specs), "left to Nova, which raises": len(specs)}, self.seen
        )

    def test_a_query_that_nova_cannot_read(self) -> None:
        texts = ["[", '{"a": 1}', '"text"', "5", '["nand", 1]', '[["="], 1]', '["<", "$host", 1]']
        lists = [_hinted(query=["[]", "[]"]), _hinted(query='["=", "$vcpus_used.a", 1]')]
        self.left("JsonFilter", cases.ONE, *(_hinted(query=text) for text in texts), *lists)

    def test_a_network_that_is_none(self) -> None:
        specs = [
            _hinted(build_near_host_ip="10.1.2.999"),
            _hinted(build_near_host_ip="10.1.2.3", cidr="/33"),
            _hinted(build_near_host_ip="10.1.2.3", cidr="24"),
            _hinted(build_near_host_ip=["10.1.2.3", "10.1.2.4"]),
            _hinted(build_near_host_ip="fe80::1%eth0", cidr="/64"),
        ]
        self.left("SimpleCIDRAffinityFilter", cases.ONE, *specs)

    def test_a_host_without_an_address(self) -> None:
        for cluster in (cases.one(host_ip=None), cases.one(free_disk_gb=None)):
            self.seen.clear()
            self.left("SimpleCIDRAffinityFilter", cluster, _hinted(build_near_host_ip="10.1.2.3"))

    def test_metrics_of_a_host_that_was_never_reported(self) -> None:
        self.left("MetricsFilter", cases.one(free_disk_gb=None), cases.spec())

    def test_requirements_that_no_value_can_be_compared_with(self) -> None:
        def wants(text: str) -> Any:
            return cases.spec(flavor=cases.flavor(**{"capabilities:cpu_info:arch": text}))

        self.left("ComputeCapabilitiesFilter", cases.ONE, *map(wants, ["<or>", ">= a", ">= 1"]))

    def test_names_of_hosts_that_are_compared_with_numbers(self) -> None:
        names = ("uuid", "capabilities:host", "capabilities:hypervisor_type")
        specs = [cases.spec(flavor=cases.flavor(**{name: "<= 7"})) for name in names]
        self.left("ComputeCapabilitiesFilter", cases.ONE, *specs)

    def test_metadata_that_is_no_number(self) -> None:
        specs = [cases.spec(flavor=cases.flavor(foo=text)) for text in ("<or>", "= a", "= 1")]
        self.left("AggregateInstanceExtraSpecsFilter", cases.ONE, *specs)

    def test_address_bits_of_an_image(self) -> None:
        image = cases.image(hw_architecture="x86_64", hw_maxphysaddr_bits=46)
        self.left("ImagePropertiesFilter", cases.ONE, cases.spec(image=image))

    def test_a_request_without_an_image_for_numa(self) -> None:
        self.left("NUMATopologyFilter", cases.ONE, cases.spec(image=None))


class NotLeftToNovaTest(FilterCase):
    def test_bad_values_of_hosts_that_have_gone_do_not_matter(self) -> None:
        filter_ = filters.BUILT_IN["ComputeCapabilitiesFilter"](_settings())
        spec = cases.spec(flavor=cases.flavor(**{"capabilities:foo": ">= 1"}))
        request = _request(spec)
        frame = cases.ONE.frame()
        self.assertIs(plugin_contract.OnHostObjects.NEEDED, filter_.key(request, frame))
        frame.remove(cases.ONE.nodes[0].uuid)
        self.assertIsNot(plugin_contract.OnHostObjects.NEEDED, filter_.key(request, frame))
        self.assertFalse(filter_.mask(request, frame, slice(None)).any())

    def test_a_key_tells_where_instances_stand(self) -> None:
        group = objects.InstanceGroup(
            uuid=cases.IMAGES[0], policy="anti-affinity", members=list(cases.INSTANCES)
        )
        for name, spec in (
            ("ServerGroupAntiAffinityFilter", cases.spec(instance_group=group)),
            ("DifferentHostFilter", _hinted(different_host=list(cases.INSTANCES))),
            ("SameHostFilter", _hinted(same_host=list(cases.INSTANCES))),
        ):
            filter_ = filters.BUILT_IN[name](_settings())
            request = _request(spec)
            empty, full = cases.one(), cases.one(instances=frozenset(cases.INSTANCES[1:]))
            self.assertNotEqual(
                filter_.key(request, empty.frame()), filter_.key(request, full.frame()), name
            )


class ContractTest(testtools.TestCase):
    def test_every_filter_of_nova_is_there(self) -> None:
        self.assertEqual(set(_NOVAS), set(filters.BUILT_IN))

    def test_every_attribute_of_a_host_state_is_known(self) -> None:
        """A name that is forgotten would be looked for in the stats only."""
        state = cases.Cluster((cases.nodes(0).example(),), ({}, {}, {})).states()[0]
        names = {name for name in dir(state) if not name.startswith("_")} | {"service", "stats"}
        known = {*host_values.NUMBERS, *host_values.TEXTS, *host_values.OBJECTS}
        self.assertEqual(names, known)

    def test_filters_run_when_novas_run(self) -> None:
        for name, ours in filters.BUILT_IN.items():
            novas = _NOVAS[name]
            self.assertEqual(name, ours(decision_settings.SchedulingOptions()).name)
            self.assertEqual(novas.run_filter_once_per_request, ours.once_per_request, name)
            self.assertEqual(novas.RUN_ON_REBUILD, ours.on_rebuild, name)


def _broken(sound: type[plugin_contract.Filter]) -> type[plugin_contract.Filter]:
    """Return a filter that says the contrary."""

    class Broken(sound):  # type: ignore[misc,valid-type]
        def mask(self, request: Any, frame: Any, rows: Any) -> Any:
            return ~super().mask(request, frame, rows)

    Broken.__name__ = sound.__name__
    return Broken


class _BrokenCase(FilterCase):
    built_in: ClassVar = {name: _broken(each) for name, each in filters.BUILT_IN.items()}

    def check(self, ours: type[plugin_contract.Filter], *args: Any, **kwargs: Any) -> None:
        if "rejected" not in kwargs.get("reached", ("rejected",)):
            self.skipTest("it never looks at columns")
        self.assertRaises(Disagreement, super().check, ours, *args, **kwargs)


class BrokenDefaultFiltersTest(_BrokenCase, DefaultFiltersTest):
    """The same tests see filters that were broken on purpose."""


class BrokenAggregateFiltersTest(_BrokenCase, AggregateFiltersTest):
    pass


class BrokenLimitFiltersTest(_BrokenCase, LimitFiltersTest):
    pass


class BrokenHintFiltersTest(_BrokenCase, HintFiltersTest):
    pass


class BrokenOtherFiltersTest(_BrokenCase, OtherFiltersTest):
    pass
