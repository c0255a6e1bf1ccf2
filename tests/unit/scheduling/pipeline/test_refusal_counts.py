# SPDX-License-Identifier: Apache-2.0
"""Which part of Placement's question refused a host, told apart for who asks why."""

import random

import attrs
import testtools
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler.scheduling import decision_settings
from nova_nodb_scheduler.scheduling.frame import host_facts, host_frame
from nova_nodb_scheduler.scheduling.pipeline import engine, refusal_counts
from tests.unit.scheduling import toys

#: More than are looked at one by one.
HOSTS = 20


def provider(vcpus=16, memory_mb=65536, **known):
    inventories = {
        "VCPU": host_facts.Inventory(vcpus),
        "MEMORY_MB": host_facts.Inventory(memory_mb),
    }
    return host_facts.ProviderFacts(1, inventories, **known)


def make(facts):
    made = engine.Engine(
        decision_settings.SchedulingOptions(),
        (),
        (),
        frame=host_frame.HostFrame(),
        rng=random.Random(0),
    )
    for each in facts:
        made.put(each)
    made.tick(1000.0)
    return made


def told(made, request):
    parts = made.placement_parts(request)
    return [(each.name, each.before, each.after) for each in parts]


class RefusalsTest(testtools.TestCase):
    def test_each_part_is_counted_over_the_hosts_that_the_former_left(self):
        ours, other = "aggregate-1", "aggregate-2"
        good = {"traits": frozenset({"HW"}), "aggregates": frozenset({ours})}
        hosts = [toys.facts(number, provider=provider(**good)) for number in range(HOSTS)]
        spoilt = (
            attrs.evolve(hosts[0], has_service=False),
            attrs.evolve(hosts[1], provider=host_facts.ProviderFacts(-1, broken="a circle")),
            attrs.evolve(hosts[2], provider=None),
            attrs.evolve(hosts[3], provider=provider(vcpus=2, memory_mb=1, **good)),
            attrs.evolve(hosts[4], provider=provider(memory_mb=256, **good)),
            attrs.evolve(hosts[5], provider=provider(aggregates=frozenset({ours}))),
            attrs.evolve(hosts[6], provider=provider(**{**good, "aggregates": frozenset({other})})),
        )
        made = make([*spoilt, *hosts[len(spoilt) :]])
        request = toys.request(
            queries=(toys.query(VCPU=4, MEMORY_MB=512, required=["HW"], member_of=[[ours]]),)
        )

        self.assertEqual(
            [
                ("placement: service", 20, 19),
                ("placement: broken provider", 19, 18),
                ("placement: provider", 18, 17),
                ("placement: VCPU", 17, 16),
                ("placement: MEMORY_MB", 16, 15),
                ("placement: traits", 15, 14),
                ("placement: aggregates", 14, 13),
            ],
            told(made, request),
        )
        [step] = made.plan(request).counts
        self.assertEqual(("placement", 20, 13), (step.name, step.before, step.after))

    def test_what_refuses_nobody_is_not_told(self):
        made = make([toys.facts(number) for number in range(HOSTS)])
        self.assertEqual([], told(made, toys.request()))

    def test_a_named_host_is_looked_at_alone_and_an_ignored_one_not_at_all(self):
        small = provider(vcpus=1)
        made = make(
            toys.facts(number, provider=small if number < 3 else provider())
            for number in range(HOSTS)
        )
        request = toys.request(vcpus=2)
        self.assertEqual(
            [("placement: VCPU", 1, 0)], told(made, attrs.evolve(request, force_hosts=("Host-1",)))
        )
        self.assertEqual(
            [("placement: VCPU", 18, 17)],
            told(made, attrs.evolve(request, ignore_hosts=("Host-0", "Host-1"))),
        )

    def test_a_tree_that_is_asked_for_beside_another_query_is_a_part(self):
        made = make(toys.facts(number) for number in range(HOSTS))
        queries = (toys.query(VCPU=1, in_tree="uuid-3"), toys.query(PCPU=1))
        self.assertEqual(
            [("placement: tree", 20, 1)],
            [each for each in told(made, toys.request(queries=queries)) if "tree" in each[0]],
        )

    def test_of_a_rebuild_only_the_service_can_refuse(self):
        made = make([toys.facts(0, has_service=False), toys.facts(1, provider=provider(vcpus=0))])
        self.assertEqual([("placement: service", 2, 1)], told(made, toys.request(queries=None)))

    @given(st.randoms(use_true_random=False), st.integers(1, 2))
    @settings(max_examples=40, deadline=None)
    def test_the_parts_leave_exactly_what_the_decision_leaves(self, rng, queries):
        hosts = [
            toys.facts(
                number,
                has_service=rng.random() < 0.9,
                provider=rng.choice(
                    [
                        None,
                        host_facts.ProviderFacts(-1, broken="odd"),
                        *(
                            provider(
                                rng.choice([0, 2, 16]),
                                rng.choice([256, 65536]),
                                traits=frozenset(rng.sample(["A", "B"], rng.randrange(3))),
                                aggregates=frozenset(rng.sample(["x", "y"], rng.randrange(3))),
                            )
                            for _ in range(4)
                        ),
                    ]
                ),
            )
            for number in range(rng.randrange(1, 2 * HOSTS))
        ]
        made = make(hosts)
        request = toys.request(
            queries=tuple(
                toys.query(
                    **{rng.choice(["VCPU", "PCPU"]): rng.randrange(1, 4), "MEMORY_MB": 512},
                    required=rng.sample(["A", "B"], rng.randrange(2)),
                    forbidden=rng.sample(["A", "B"], rng.randrange(2)),
                    member_of=[["x"]][: rng.randrange(2)],
                    in_tree=rng.choice([None, "uuid-0"]),
                )
                for _ in range(queries)
            )
        )
        counts = {each.name: each for each in made.plan(request).counts}
        parts = made.placement_parts(request)
        if "placement" not in counts:
            # The request names a host that there is not.
            self.assertEqual((), parts)
            return
        step = counts["placement"]
        before = step.before
        for each in parts:
            self.assertEqual(before, each.before)
            self.assertGreater(before, each.after)
            before = each.after
        self.assertEqual(step.after, before)


class WithPartsTest(testtools.TestCase):
    def test_they_stand_behind_the_first_servers_step_only(self):
        made = make([toys.facts(0, provider=provider(vcpus=1))])
        request = toys.request(vcpus=2)
        counts = made.plan(request).counts
        parts = made.placement_parts(request)
        self.assertEqual(
            ["placement", "placement: VCPU", "placement"],
            [each.name for each in refusal_counts.with_parts((*counts, *counts), parts)],
        )
        self.assertEqual((), refusal_counts.with_parts((), parts))
