# SPDX-License-Identifier: Apache-2.0
"""How much of the cloud each project has."""

from __future__ import annotations

import testtools

from nova_nodb_scheduler.scheduling.waiting import fair_share


class FairShareTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.shares = fair_share.FairShare({"heavy": 4.0})
        self.shares.set_capacity({"VCPU": 100, "MEMORY_MB": 1000, "VGPU": 0})

    def test_the_resource_of_which_it_has_the_most_counts(self):
        self.shares.set_usage("p", {"VCPU": 10, "MEMORY_MB": 200})

        self.assertEqual(0.2, self.shares.share("p"))

    def test_a_weight_divides(self):
        self.shares.set_usage("heavy", {"VCPU": 40})

        self.assertEqual(0.1, self.shares.share("heavy"))

    def test_grants_count_until_they_are_taken_back(self):
        self.shares.set_usage("p", {"VCPU": 10})
        self.shares.grant("p", {"VCPU": 5}, 2)
        self.assertEqual(0.2, self.shares.share("p"))
        self.shares.grant("p", {"VCPU": 5}, -2)

        self.assertEqual(0.1, self.shares.share("p"))

    def test_of_what_the_cloud_has_nothing_nobody_has_a_part(self):
        self.shares.set_usage("p", {"VGPU": 5, "CUSTOM": 5})

        self.assertEqual(0.0, self.shares.share("p"))

    def test_who_has_nothing_has_no_share(self):
        self.shares.set_usage("p", {"VCPU": 10})
        self.shares.set_usage("p", {})

        self.assertEqual(0.0, self.shares.share("p"))
        self.assertEqual(0.0, self.shares.share("unknown"))
