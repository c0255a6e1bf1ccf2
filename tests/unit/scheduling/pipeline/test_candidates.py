# SPDX-License-Identifier: Apache-2.0
"""When the columns cannot tell what Placement would offer."""

import attrs
import testtools

from nova_nodb_scheduler.scheduling.frame import host_facts, host_frame
from nova_nodb_scheduler.scheduling.pipeline import candidates
from tests.unit.scheduling import toys


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
