# SPDX-License-Identifier: Apache-2.0
"""When the columns cannot tell what Placement would offer."""

import attrs
import numpy as np
import testtools
from hypothesis import given
from hypothesis import strategies as st

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling.frame import host_facts, host_frame
from nova_nodb_scheduler.scheduling.pipeline import candidates
from tests.unit.scheduling import toys

TRAITS = st.frozensets(st.sampled_from(["HW_A", "HW_B"]))
AGGREGATES = st.frozensets(st.sampled_from(["agg-1", "agg-2"]))
INVENTORIES = st.builds(
    host_facts.Inventory,
    total=st.integers(0, 8),
    min_unit=st.integers(1, 3),
    max_unit=st.integers(1, 8),
    step_size=st.integers(0, 3),
)
BY_CLASS = st.dictionaries(st.sampled_from(["VCPU", "DISK_GB"]), INVENTORIES)
PROVIDERS = st.builds(
    host_facts.ProviderFacts,
    generation=st.just(1),
    inventories=BY_CLASS,
    used=st.dictionaries(st.sampled_from(["VCPU", "DISK_GB"]), st.integers(0, 4)),
    traits=TRAITS,
    aggregates=AGGREGATES,
    tree=st.sampled_from([frozenset(), frozenset(["child-1"])]),
)
QUERIES = st.builds(
    requests.CandidateQuery,
    resources=st.dictionaries(
        st.sampled_from(["VCPU", "DISK_GB", "VGPU"]), st.integers(1, 4), min_size=1
    ),
    required_traits=TRAITS,
    forbidden_traits=TRAITS,
    root_required=TRAITS,
    root_forbidden=TRAITS,
    member_of=st.lists(AGGREGATES, max_size=2).map(tuple),
    forbidden_aggregates=AGGREGATES,
    in_tree=st.sampled_from([None, None, "uuid-1", "child-1", "nobody"]),
)


class OneRowTest(testtools.TestCase):
    @given(
        st.lists(PROVIDERS | st.none(), min_size=12, max_size=12),
        st.lists(st.tuples(st.integers(0, 11), PROVIDERS | st.none()), max_size=4),
        st.lists(QUERIES, min_size=1, max_size=2).map(tuple),
    )
    def test_of_one_row_is_said_what_is_said_of_it_among_many(self, providers, later, queries):
        frame = host_frame.HostFrame()
        for number, provider in enumerate(providers):
            frame.put(toys.facts(number, provider=provider))
        frame.remove("uuid-2")
        fork = frame.fork()
        for number, provider in later:
            frame.put(toys.facts(number, provider=provider))
        for row in range(len(providers)):
            # More than is used, as where a record told of it first.
            fork.use(row, {"VCPU": -5, "DISK_GB": -5})
        for each in (frame, fork):
            self.check(each, candidates.Candidates(queries), np.arange(len(providers)))

    def check(self, frame, own, rows):
        all_rows = rows.tolist()
        many = own.mask(frame, rows).tolist()
        self.assertEqual(many, [own.mask(frame, rows[row : row + 1]).item() for row in rows])
        self.assertEqual(many, [own.offer_row(frame, row) for row in all_rows])
        self.assertEqual(
            own.offers(frame, rows).tolist(),
            [[own.has_room(frame, row, at) for row in all_rows] for at in range(len(own.queries))],
        )


class OutsideTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.frame = host_frame.HostFrame()
        for number in range(3):
            self.frame.put(toys.facts(number))
        self.query = toys.query(VCPU=1)
        self.provider = toys.facts(1).provider

    def outside(self, **known):
        self.frame.put(toys.facts(1, **known))
        return candidates.outside(self.query, self.frame)

    def test_plain_roots_are_inside(self):
        self.assertIsNone(self.outside())
        self.assertIsNone(candidates.outside(self.query, self.frame))

    def test_a_child_with_a_class_that_is_asked_for(self):
        other = attrs.evolve(self.provider, nested=frozenset({"VGPU"}))
        self.assertIsNone(self.outside(provider=other))
        nested = attrs.evolve(self.provider, nested=frozenset({"VCPU"}))
        self.assertEqual("nested", self.outside(provider=nested))
        self.assertIsNone(self.outside())
        self.outside(provider=nested)
        self.frame.remove("uuid-1")
        self.assertIsNone(candidates.outside(self.query, self.frame))

    def test_a_shared_class_that_is_asked_for(self):
        self.frame.sharing["nfs"] = frozenset({"DISK_GB"})
        self.assertIsNone(self.outside())
        self.frame.sharing["odd"] = frozenset({"VCPU"})
        self.assertEqual("sharing", self.outside())

    def test_a_broken_provider_is_passed_over_and_remembered(self):
        broken = host_facts.ProviderFacts(generation=-1, broken="a child without a parent")
        facts = attrs.evolve(toys.facts(1), provider=broken)
        row = self.frame.put(facts)
        self.assertIsNone(candidates.outside(self.query, self.frame))
        passes = candidates.Candidates((self.query,)).mask(self.frame, slice(None))
        self.assertFalse(passes[row])
        self.assertTrue(candidates.any_broken(self.frame, [toys.CELL]))
        self.assertFalse(candidates.any_broken(self.frame, ["elsewhere"]))
        self.frame.put(attrs.evolve(facts, has_service=False))
        self.assertFalse(candidates.any_broken(self.frame, [toys.CELL]))

    def test_a_host_without_a_provider_is_no_candidate_and_no_doubt(self):
        row = self.frame.put(attrs.evolve(toys.facts(1), provider=None))
        self.assertIsNone(candidates.outside(self.query, self.frame))
        passes = candidates.Candidates((self.query,)).mask(self.frame, slice(None))
        self.assertFalse(passes[row])
