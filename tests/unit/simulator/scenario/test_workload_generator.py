# SPDX-License-Identifier: Apache-2.0
"""Made workloads have the marginals they are said to have, and come again by seed."""

import collections

import attrs
import testtools

from nova_nodb_scheduler.simulator.scenario import workload_generator


class GeneratorTest(testtools.TestCase):
    options = workload_generator.GeneratorOptions(
        requests=8000, most_servers=50, lifetime_scale=1.0
    )

    def made(self, **changes):
        return workload_generator.generate(attrs.evolve(self.options, **changes))

    def test_the_same_seed_makes_the_same_workload(self):
        self.assertEqual(self.made(requests=200), self.made(requests=200))
        self.assertNotEqual(self.made(requests=200), self.made(requests=200, seed=2))

    def test_marginals_are_near_the_published_ones(self):
        made = self.made()
        for share, wanted in (
            (lambda each: each.flavor.vcpus <= 2, 0.8),
            (lambda each: each.flavor.memory_mb < 4096, 0.7),
            (lambda each: each.servers == 1, 0.4),
            (lambda each: each.servers <= 5, 0.8),
            (lambda each: each.lifetime_seconds < 86_400, 0.92),
        ):
            self.assertAlmostEqual(wanted, sum(map(share, made)) / len(made), delta=0.04)

    def test_the_mean_rate_is_kept_though_requests_come_in_bursts(self):
        for burstiness in (0.5, 1.0):
            made = self.made(requests_per_second=20.0, burstiness=burstiness)
            rate = len(made) / made[-1].at_seconds
            self.assertAlmostEqual(20.0, rate, delta=1.5)

    def test_bursts_are_bursts(self):
        def most_in_a_second(burstiness):
            made = self.made(burstiness=burstiness)
            return max(collections.Counter(int(each.at_seconds) for each in made).values())

        self.assertGreater(most_in_a_second(0.4), 2 * most_in_a_second(1.0))

    def test_four_requests_in_five_repeat_a_vm_type(self):
        for share in (0.8, 0.2):
            counted = collections.Counter(
                each.flavor for each in self.made(requests=2000, repeat_share=share)
            )
            repeated = sum(count for count in counted.values() if count > 10)
            self.assertAlmostEqual(share, repeated / 2000, delta=0.05)

    def test_bounds_are_kept(self):
        made = self.made(requests=500, most_servers=3, immortal=True)
        self.assertEqual(3, max(each.servers for each in made))
        self.assertEqual({None}, {each.lifetime_seconds for each in made})
