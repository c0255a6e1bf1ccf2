# SPDX-License-Identifier: Apache-2.0
"""Any history of hosts and requests: an engine that patches against plain Python."""

import collections
from typing import ClassVar

import attrs
import testtools
from hypothesis import HealthCheck, Phase, settings, stateful
from hypothesis import strategies as st

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import decision_settings
from nova_nodb_scheduler.scheduling.frame import host_facts
from tests.unit.scheduling import plain, toys
from tests.unit.scheduling.pipeline import test_engine

NUMBERS = st.integers(0, 11)
CELLS = ("cell-1", "cell-2")
AGGREGATES = ("a", "b", "c")
TRAITS = ("T1", "T2")


def mostly(usual, others):
    return st.sampled_from([True] * 7 + [False]).flatmap(
        lambda plain: st.just(usual) if plain else others
    )


providers = st.builds(
    lambda total, reserved, ratio, used, step, largest, traits, aggregates, ram: (
        host_facts.ProviderFacts(
            1,
            {
                "VCPU": host_facts.Inventory(total, reserved, 1, largest, step, ratio),
                **({"MEMORY_MB": host_facts.Inventory(ram)} if ram else {}),
            },
            {"VCPU": used},
            frozenset(traits),
            frozenset(aggregates),
        )
    ),
    mostly(64, st.integers(0, 8)),
    st.integers(0, 2),
    st.sampled_from([0.5, 1.0, 1.5, 16.0]),
    st.integers(0, 8),
    mostly(1, st.just(2)),
    mostly(64, st.just(2)),
    mostly(set(TRAITS), st.sets(st.sampled_from(TRAITS))),
    mostly(set(AGGREGATES), st.sets(st.sampled_from(AGGREGATES))),
    mostly(65536, st.sampled_from([0, 1024])),
)
hosts = st.fixed_dictionaries(
    {
        "cell": st.sampled_from((*CELLS[:1] * 3, CELLS[1])),
        "updated": mostly(True, st.just(False)),
        "has_service": mostly(True, st.just(False)),
        "disabled": mostly(False, st.just(True)),
        "forced_down": mostly(False, st.just(True)),
        "last_seen_seconds": mostly(
            1000.0, st.sampled_from([1030.0, 1050.0, 1200.0, host_facts.NEVER])
        ),
        "free_ram_mb": st.integers(-512, 4096),
        "num_io_ops": st.integers(0, 9),
        "failed_builds": st.integers(0, 3),
        "aggregates": st.sets(st.sampled_from(AGGREGATES)).map(lambda each: tuple(sorted(each))),
        "provider": providers,
    }
)
queries = st.builds(
    lambda vcpus, ram, required, forbidden, member_of, in_tree: toys.query(
        VCPU=vcpus,
        **({"MEMORY_MB": ram} if ram else {}),
        required=required,
        forbidden=forbidden - required,
        member_of=member_of,
        in_tree=in_tree,
    ),
    st.integers(1, 3),
    st.sampled_from([0, 512]),
    st.sets(st.sampled_from(TRAITS), max_size=1),
    mostly(set(), st.sets(st.sampled_from(TRAITS), max_size=1)),
    st.lists(st.sets(st.sampled_from(AGGREGATES), min_size=1), max_size=1),
    mostly(None, st.sampled_from(["uuid-3", "elsewhere"])),
)
names = st.lists(NUMBERS.map("hOST-{}".format), max_size=3).map(tuple)
seldom_names = mostly((), names)
wanted = st.fixed_dictionaries(
    {
        "memory_mb": st.sampled_from([0, 256, 1024]),
        "cells": st.sampled_from([frozenset(CELLS[:1]), frozenset(CELLS)]),
        "queries": st.one_of(st.lists(queries, min_size=1, max_size=2).map(tuple), st.none()),
        "availability_zone": mostly(None, st.sampled_from(["x", "y"])),
        "ignore_hosts": st.one_of(st.just(()), names),
        "force_hosts": seldom_names,
        "force_nodes": mostly((), st.just(("node-1", "node-2"))),
        "check_type": st.booleans(),
        "destination": mostly(
            None,
            st.sampled_from(
                [
                    requests.Destination(host="Host-4"),
                    requests.Destination(host="Host-5", node="node-5"),
                    requests.Destination(host="host-5"),
                ]
            ),
        ),
        "members": st.sampled_from([None, None, frozenset({"i0", "i1", "s0", "s1", "s2"})]),
        "is_rebuild": mostly(False, st.just(True)),
    }
)


def made_request(memory_mb, members, queries, is_rebuild, **known):
    group = None
    if members is not None:
        group = requests.Group("g", "anti-affinity", members=members)
    return toys.request(
        memory_mb=memory_mb,
        queries=None if is_rebuild else queries or (toys.query(VCPU=1),),
        is_rebuild=is_rebuild,
        group=group,
        **known,
    )


class Histories(stateful.RuleBasedStateMachine):
    #: How many hosts requests were left with: 0, 1, 2, more.
    left: ClassVar = collections.Counter()

    def __init__(self):
        super().__init__()
        self.now = 1000.0
        self.known = {}
        self.instances = collections.defaultdict(set)
        self.metadata = {name: {} for name in AGGREGATES}
        self.engine = test_engine.make(decision_settings.SchedulingOptions(), locate=self.locate)
        # The same, but some steps run on objects.
        self.mixed = test_engine.make(
            decision_settings.SchedulingOptions(),
            ("RamFilter", toys.UpFilter, toys.ZoneFilter, toys.SpreadFilter),
            (toys.RamWeigher, "IoWeigher", toys.FailuresWeigher),
            locate=self.locate,
        )
        self.engines = (self.engine, self.mixed)
        self.each_engine(lambda each: each.set_aggregates(self.aggregates()))
        self.seen = []
        # Hosts of no cell that is asked for: the others span two blocks of rows.
        for number in range(1000, 1250):
            self.put_facts(toys.facts(number, cell="cell-0"))

    def each_engine(self, feed):
        for each in self.engines:
            feed(each)

    def put_facts(self, facts):
        self.each_engine(lambda each: each.put(facts))

    def locate(self, uuid):
        return [place for place, held in self.instances.items() if uuid in held]

    def aggregates(self):
        return [
            host_facts.HostAggregate(name, number, metadata=self.metadata[name])
            for number, name in enumerate(AGGREGATES)
        ]

    def walked(self):
        """Return what the plain scheduler walks."""
        found = []
        for facts in self.known.values():
            metadata = [self.metadata[name] for name in facts.aggregates]
            host = attrs.asdict(facts, recurse=False)
            if not facts.updated:
                host.update(free_ram_mb=0, num_io_ops=0, failed_builds=0)
            silence = abs(self.now - facts.last_seen_seconds)
            found.append(
                {
                    **host,
                    "up": silence <= 60.0 and not facts.forced_down,
                    "zones": {each["zone"] for each in metadata if "zone" in each},
                    "ram": [float(each["ram"]) for each in metadata if "ram" in each],
                    "instances": set(self.instances[facts.cell, facts.host]),
                    "candidates": [],
                }
            )
        return found

    # -- what happens to hosts ----------------------------------------------------

    @stateful.initialize(cloud=st.lists(hosts, min_size=4, max_size=12))
    def begin(self, cloud):
        for number, host in enumerate(cloud):
            facts = toys.facts(number, **host)
            self.known[facts.uuid] = facts
            self.put_facts(facts)

    @stateful.rule(number=NUMBERS, host=hosts)
    def put(self, number, host):
        facts = toys.facts(number, **host)
        self.known[facts.uuid] = facts
        self.put_facts(facts)

    @stateful.rule(number=NUMBERS, beat=st.sampled_from([0.0, 30.0]))
    def beat(self, number, beat):
        facts = self.known.get(f"uuid-{number}")
        if facts is not None:
            facts = attrs.evolve(facts, last_seen_seconds=self.now + beat)
            self.known[facts.uuid] = facts
            self.put_facts(facts)

    @stateful.rule(number=NUMBERS)
    def remove(self, number):
        self.known.pop(f"uuid-{number}", None)
        self.each_engine(lambda each: each.frame.remove(f"uuid-{number}"))

    @stateful.rule(step=st.sampled_from([-40.0, 0.0, 20.0, 61.0]))
    def tick(self, step):
        self.now += step
        self.each_engine(lambda each: each.tick(self.now))

    @stateful.rule(
        name=st.sampled_from(AGGREGATES),
        metadata=st.fixed_dictionaries(
            {},
            optional={
                "zone": st.sampled_from(["x", "y"]),
                "ram": st.sampled_from(["0", "-2.5", "3"]),
            },
        ),
    )
    def set_metadata(self, name, metadata):
        self.metadata[name] = metadata
        self.each_engine(lambda each: each.set_aggregates(self.aggregates()))

    @stateful.rule(number=NUMBERS, instance=st.sampled_from(["i0", "i1", "i2"]))
    def move_instance(self, number, instance):
        facts = self.known.get(f"uuid-{number}")
        if facts is not None:
            for held in self.instances.values():
                held.discard(instance)
            self.instances[facts.cell, facts.host].add(instance)

    # -- what is asked ------------------------------------------------------------

    @stateful.rule(asked=wanted)
    def ask(self, asked):
        request = made_request(**asked)
        self.seen.append(request)
        self.compare(request)

    @stateful.rule(place=st.integers(0, 50))
    def ask_again(self, place):
        if self.seen:
            self.compare(self.seen[place % len(self.seen)])

    def compare(self, request):
        expected = plain.weighed(
            request, plain.filtered(request, plain.known(request, self.walked()))
        )
        self.check(request, expected, self.engine.plan(request))
        self.check(request, expected, self.engine.plan(request, explain=True))
        walked = plain.known(request, self.walked())
        objects = plain.Objects(request, walked, self.mixed.lock)
        self.check(request, expected, self.mixed.plan(request, objects))
        for choice in ("two", "random"):
            self.check_drawn(request, expected, choice)

    def check_drawn(self, request, expected, choice):
        """Whoever passes is drawn, once each, by its own weight."""
        flavor = attrs.evolve(request.flavor, extra_specs={"nodb:choice": choice})
        drawn = attrs.evolve(request, flavor=flavor)
        objects = plain.Objects(drawn, plain.known(drawn, self.walked()), self.mixed.lock)
        for plan in (self.engine.plan(drawn), self.mixed.plan(drawn, objects)):
            may = [
                (score, host["uuid"])
                for score, host in expected
                if host["updated"] and (request.queries is None or host["candidates"])
            ]
            assert sorted(may) == sorted((each.score, each.uuid) for each in plan.best(100))

    def check(self, request, expected, plan):
        assert plan.counts[-1].after == len(expected), (plan.counts, expected)
        self.left[min(len(expected), 3)] += 1
        may = [
            (score, host["uuid"])
            for score, host in expected
            if host["updated"] and (request.queries is None or host["candidates"])
        ]
        found = plan.best(100)
        # Of equal hosts any may come first.
        assert sorted(may) == sorted((each.score, each.uuid) for each in found), (may, found)
        assert [score for score, _ in may] == [each.score for each in found]
        for each in found:
            host = next(host for _, host in expected if host["uuid"] == each.uuid)
            assert [dict(query.resources) for query in host["candidates"] if request.queries] == [
                own["allocations"][each.uuid]["resources"] for own in each.allocation_requests
            ]

    @stateful.rule(asked=wanted, servers=st.integers(2, 4), on_objects=st.booleans())
    def ask_for_several(self, asked, servers, on_objects):
        if asked["is_rebuild"]:
            return
        request = made_request(**asked)
        hosts = plain.known(request, self.walked())
        if on_objects:
            own = plain.known(request, self.walked())
            objects = plain.Objects(request, own, self.mixed.lock)
            plan = self.mixed.plan(request, objects, servers=servers)
        else:
            plan = self.engine.plan(request, servers=servers)
        taken = []
        for index in range(servers):
            hosts = plain.filtered(request, hosts, index)
            expected = plain.weighed(request, hosts)
            full = {choice.uuid for choice in taken}
            may = [
                (score, host["uuid"])
                for score, host in expected
                if host["candidates"]
                and (host["uuid"] not in full or plain.offers(host["candidates"][0], host))
            ]
            found = plan.best(100)
            assert sorted(may) == sorted((each.score, each.uuid) for each in found), index
            if not found:
                return
            chosen = found[0]
            taken.append(chosen)
            host = next(host for host in hosts if host["uuid"] == chosen.uuid)
            plain.consume(request, host, f"s{index}")
            plan.take(chosen, f"s{index}")
        self.check_alternates(request, plan, taken, hosts)

    def check_alternates(self, request, plan, taken, hosts):
        expected = plain.weighed(request, plain.filtered(request, hosts, len(taken) - 1))
        uuids = {choice.uuid for choice in taken}
        for choice, found in zip(taken, plan.alternates(taken, 2), strict=True):
            may = [
                score
                for score, host in expected
                if host["cell"] == choice.cell and host["uuid"] not in uuids and host["candidates"]
            ]
            assert may[:2] == [each.score for each in found]
            assert not uuids & {each.uuid for each in found}
            assert {choice.cell} >= {each.cell for each in found}


class EnginePropertyTest(testtools.TestCase):
    def test_any_history_gives_the_hosts_and_scores_of_the_plain_scheduler(self):
        stateful.run_state_machine_as_test(
            Histories,
            settings=settings(
                # To shrink a history takes minutes.
                phases=(Phase.generate,),
                max_examples=60,
                stateful_step_count=50,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        # Or this compares empty lists.
        self.assertGreater(Histories.left[3], 100, Histories.left)
        self.assertTrue(Histories.left[1], Histories.left)
