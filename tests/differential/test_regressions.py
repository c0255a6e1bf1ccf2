# SPDX-License-Identifier: Apache-2.0
"""What drawn cases found, or could hardly find, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from nova import objects

from nova_nodb_scheduler.nova_adapter.placement.mirror import placement_reader
from nova_nodb_scheduler.scheduling.pipeline import candidates
from tests.differential import cases, comparing, plugin, stock, stored, test_decisions
from tests.differential.drawn import (
    dice,
    node_strategies,
    request_strategies,
    setting_strategies,
    words,
)

_DEFAULT = cases.Inventory(8, allocation_ratio=4.0)


def cluster(*odd: Mapping[str, Any], **more: Any) -> cases.Cluster:
    """Return a cluster of one host for each set of odd columns."""
    nodes = []
    services = []
    providers = []
    for at, columns in enumerate(odd):
        host = words.HOSTS[at]
        row = node_strategies.node_row(at, host, f"node-{host}", columns)
        nodes.append(cases.Node(words.CELL1, row))
        services.append(cases.Service(words.CELL1, node_strategies.service_row(at, host, {})))
        providers.append(
            cases.Provider(
                str(row["uuid"]),
                inventories={
                    "VCPU": _DEFAULT,
                    "MEMORY_MB": cases.Inventory(16384),
                    "DISK_GB": cases.Inventory(100),
                },
            )
        )
    made = cases.Cluster(tuple(nodes), tuple(services), providers=tuple(providers))
    return attrs.evolve(made, **more)


def request(**more: Any) -> request_strategies.Asked:
    """Return a plain request."""
    flavor = {
        "name": "f1", "vcpus": 1, "memory_mb": 512, "root_gb": 1, "ephemeral_gb": 0, "swap": 0,
    }  # fmt: skip
    return request_strategies.Asked(**{"flavor": flavor, "extra_specs": {}, **more})


def settings(*filters: str, **more: Any) -> setting_strategies.Settings:
    """Return settings with these filters enabled."""
    values = {("filter_scheduler", name): value for name, value in more.items()}
    values["filter_scheduler", "enabled_filters"] = list(filters) or ["AllHostsFilter"]
    return setting_strategies.Settings(values)


def multiplier(name: str, value: str, *hosts: str, number: int = 0) -> cases.Aggregate:
    """Return an aggregate that sets a multiplier for some hosts."""
    return cases.Aggregate(words.AGGREGATES[number], number + 1, hosts, {name: value})


class RegressionsTest(test_decisions.DecisionsCase):
    def decided(
        self,
        held: cases.Cluster,
        wanted: request_strategies.Asked,
        chosen: setting_strategies.Settings | None = None,
    ) -> str:
        """Have both sides decide one request; return what became of it."""
        self.follow(held, chosen or settings(), [(dice.Dice(0), wanted)])
        (outcome,) = self.outcomes
        self.outcomes.clear()
        return outcome

    # -- what never wins -----------------------------------------------------------

    def test_a_multiplier_that_is_no_number_never_wins(self) -> None:
        odd = multiplier("ram_weight_multiplier", "nan", "h0")
        held = cluster({}, {"free_ram_mb": 100}, {"free_ram_mb": 50}, aggregates=(odd,))
        self.assertEqual("placed", self.decided(held, request(servers=2)))

    def test_nan_from_an_infinite_multiplier_never_wins(self) -> None:
        odd = multiplier("ram_weight_multiplier", "inf", "h0", "H1")
        held = cluster({"free_ram_mb": 0}, {"free_ram_mb": 1000}, {}, aggregates=(odd,))
        self.assertEqual("placed", self.decided(held, request()))

    def test_a_host_that_weighs_nan_is_taken_where_it_is_the_only_one(self) -> None:
        odd = multiplier("ram_weight_multiplier", "nan", "h0")
        self.assertEqual("placed", self.decided(cluster({}, aggregates=(odd,)), request()))

    # -- what Placement refuses or the model does not cover --------------------------

    def test_a_class_that_nobody_has_leaves_nobody(self) -> None:
        wanted = request(extra_specs={"resources:CUSTOM_UNHEARD_OF": "1"})
        self.assertEqual("no valid host", self.decided(cluster({}, {}), wanted))

    def test_a_forbidden_trait_that_placement_never_heard_of_is_placements_to_refuse(self) -> None:
        wanted = request(extra_specs={"trait:CUSTOM_UNHEARD_OF": "forbidden"})
        outcome = self.decided(cluster({}, {}), wanted)
        self.assertIn(outcome, ("outside: unknown trait", "no valid host"))

    def test_a_tree_whose_child_has_no_parent_offers_nothing_and_is_known_as_broken(self) -> None:
        child = {
            "parent": words.made_uuid("child", 0),
            "generation": 1,
            "inventories": {},
            "traits": [],
            "aggregates": [],
        }
        self.assert_passed_over({"children": {words.made_uuid("child", 1): child}})

    def test_a_provider_with_a_negative_total_offers_nothing_and_is_known_as_broken(self) -> None:
        self.assert_passed_over(
            {"inventories": {"VCPU": {**stored.vars_of(_DEFAULT), "total": -8}}}
        )

    def assert_passed_over(self, damage: Mapping[str, Any]) -> None:
        """Damage one of two trees' records: the other's host is left, this one's is told."""
        held = cluster({}, {})
        with stock.configured(settings()), stock.databases_of(held):
            worker = plugin.Plugin(held)
            found = {(name, key): state for name, key, state in stored.states(held)}
            key = "providers", held.providers[0].uuid
            stored.put(worker.store, {key: {**found[key], **damage}}, 2)
            prepared = comparing.prepare(stock.HostManager(held), request())
            made = worker.decide(prepared.spec, prepared.asked, 1)
            self.assertEqual(["H1"], [each.host for each in plugin.all_choices(made)])
            self.assertTrue(candidates.any_broken(worker.engine.frame, {words.CELL1}))

    def test_a_node_that_never_reported_is_none_to_rebuild_on(self) -> None:
        """Nova lets it pass, and fails to make a Selection of it: it has no uuid."""
        held = cluster(node_strategies.NEVER_UPDATED)
        wanted = request(
            hints={"_nova_check_type": ["rebuild"]}, destination={"host": "h0", "node": "node-h0"}
        )
        self.assertEqual("no valid host", self.decided(held, wanted))
        self.assertRaises(ValueError, objects.Selection, compute_node_uuid=None)

    # -- an operator's own -----------------------------------------------------------

    def test_an_operators_own_filter_and_weigher_run_unchanged(self) -> None:
        instances = tuple(
            cases.Instance(uuid, words.CELL1, words.HOSTS[at // 2], f"node-{words.HOSTS[at // 2]}")
            for at, uuid in enumerate(words.INSTANCES[:7])
        )
        chosen = settings(
            "OperatorsFilter",
            "ComputeFilter",
            available_filters=[
                "nova.scheduler.filters.all_filters",
                "tests.differential.operators.OperatorsFilter",
            ],
            weight_classes=[
                "nova.scheduler.weights.all_weighers",
                "tests.differential.operators.OperatorsWeigher",
            ],
        )
        held = cluster({}, {}, {}, {}, {}, instances=instances)
        self.assertEqual("placed", self.decided(held, request(servers=3), chosen))

    def test_an_operators_own_filter_sees_on_all_nodes_of_a_host_what_one_took(self) -> None:
        held = cluster({}, {"host": "h0"})
        held = attrs.evolve(held, services=held.services[:1])
        members = {"policy": "soft-affinity", "members": [], "hosts": [], "rules": {}}
        chosen = settings(
            "OperatorsFilter",
            available_filters=[
                "nova.scheduler.filters.all_filters",
                "tests.differential.operators.OperatorsFilter",
            ],
        )
        wanted = request(group=members, servers=4)
        self.assertEqual("too few hosts", self.decided(held, wanted, chosen))

    # -- values that Nova reads in its own way -----------------------------------------

    def test_a_service_that_was_never_heard_of_has_its_creation_to_show(self) -> None:
        held = cluster({}, {})
        young = node_strategies.service_row(0, "h0", {"seen": None, "created_at": words.NOW})
        old = node_strategies.service_row(1, "H1", {"seen": None})
        services = (cases.Service(words.CELL1, young), cases.Service(words.CELL1, old))
        held = attrs.evolve(held, services=services)
        self.assertEqual("placed", self.decided(held, request(), settings("ComputeFilter")))

    def test_hosts_that_may_hold_two_members_are_full_with_two(self) -> None:
        group = {
            "policy": "anti-affinity",
            "members": list(words.NEW_INSTANCES),
            "hosts": [],
            "rules": {"max_server_per_host": "2"},
        }
        wanted = request(group=group, servers=4)
        filters = settings("ServerGroupAntiAffinityFilter")
        self.assertEqual("placed", self.decided(cluster({}, {}), wanted, filters))
        self.assertEqual("too few hosts", self.decided(cluster({}), wanted, filters))

    def test_another_node_of_the_last_servers_host_is_an_alternate(self) -> None:
        """Nova's filter passes the host that the server it asks about stands on."""
        group = {
            "policy": "anti-affinity",
            "members": list(words.NEW_INSTANCES),
            "hosts": [],
            "rules": {},
        }
        held = cluster(
            {"free_ram_mb": 16000}, {"free_ram_mb": 9000}, {"host": "H1", "free_ram_mb": 5000}
        )
        wanted = request(group=group, servers=2)
        filters = settings("ServerGroupAntiAffinityFilter")
        self.assertEqual("placed", self.decided(held, wanted, filters))

    def test_a_host_that_the_first_server_fills_still_sets_the_scale(self) -> None:
        """Nova weighs it, and only learns at the claim that it is full."""
        small = cases.Inventory(1)
        held = cluster({"free_ram_mb": 16000}, {"free_ram_mb": 9000}, {"free_ram_mb": 300})
        first = attrs.evolve(
            held.providers[0], inventories={**held.providers[0].inventories, "VCPU": small}
        )
        held = attrs.evolve(held, providers=(first, *held.providers[1:]))
        self.assertEqual("placed", self.decided(held, request(servers=3)))

    def test_a_host_is_full_with_its_pinned_cpus_though_shared_ones_are_left(self) -> None:
        """Its first allocation request is for pinned ones, and Nova claims no other."""
        held = cluster({})
        inventories = {**held.providers[0].inventories, "PCPU": cases.Inventory(2)}
        held = attrs.evolve(
            held, providers=(attrs.evolve(held.providers[0], inventories=inventories),)
        )
        wanted = request(extra_specs={"hw:cpu_policy": "dedicated"}, servers=3)
        self.assertEqual("too few hosts", self.decided(held, wanted))

    def test_a_request_for_pinned_cpus_takes_hosts_that_only_have_shared_ones(self) -> None:
        wanted = request(extra_specs={"hw:cpu_policy": "dedicated"})
        topology = node_strategies.numa_topology(1, 8, 0, 1, 16384)
        held = cluster({"numa_topology": topology}, {"numa_topology": topology})
        pinned = cases.Provider(
            held.nodes[0].uuid,
            inventories={**held.providers[0].inventories, "PCPU": cases.Inventory(4)},
        )
        held = attrs.evolve(held, providers=(pinned, held.providers[1]))
        self.assertEqual("placed", self.decided(held, wanted, settings("NUMATopologyFilter")))


class MirrorTest(test_decisions.DecisionsCase):
    def test_what_the_mirror_reads_of_placement_is_what_the_cases_put_into_the_store(
        self,
    ) -> None:
        """Else the columns would be made from records that nobody writes."""
        held = cluster({}, {})
        root = attrs.evolve(
            held.providers[0],
            traits=frozenset({"CUSTOM_A", "CUSTOM_B"}),
            aggregates=frozenset({words.FOREIGN_AGGREGATE}),
            allocations={words.made_uuid("consumer", 0): {"VCPU": 2}},
        )
        child = cases.Provider(
            words.made_uuid("child", 0), root.uuid, inventories={"VGPU": _DEFAULT}
        )
        held = attrs.evolve(held, providers=(root, held.providers[1], child))
        self.placement.fill(held)
        mirror = placement_reader.PlacementReader(self.placement.get)
        found = mirror.record(root.uuid, mirror.tree(root.uuid))
        expected = {key: state for name, key, state in stored.states(held) if name == "providers"}[
            root.uuid
        ]
        self.assertEqual({**expected, "read_at": None}, {**(found or {}), "read_at": None})
