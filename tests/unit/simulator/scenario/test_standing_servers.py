# SPDX-License-Identifier: Apache-2.0
"""Servers from before a run fit their hosts, and are the same wherever they are made."""

import collections
import unittest

from hypothesis import given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler.simulator.scenario import made_hosts, standing_servers, workload

SMALL = workload.MadeFlavor("s", 1, 2048, 10)
LARGE = workload.MadeFlavor("l", 16, 65_536, 160)


def cluster(**options):
    return made_hosts.Cluster(made_hosts.ClusterOptions(**options))


class StandingServersTest(unittest.TestCase):
    @settings(max_examples=50, deadline=None)
    @given(
        st.integers(1, 60),
        st.sampled_from((0.1, 1.0, 4.0)),
        st.sampled_from((0.0, 0.5, 0.9)),
        st.sampled_from(((SMALL,), (SMALL, LARGE), (LARGE,))),
    )
    def test_they_fit_beside_what_is_there(self, per_host, ratio, fill, flavors):
        made = cluster(hosts=20, rack_hosts=3, cpu_ratio=ratio, fill=fill)
        used = {host.uuid: collections.Counter(host.resident) for host in made.hosts}
        count = collections.Counter()
        for each in standing_servers.draw(made, per_host, flavors):
            used[each.host_uuid].update(each.flavor.resources)
            count[each.host_uuid] += 1
        for host in made.hosts:
            taken = used[host.uuid]
            self.assertTrue(all(taken[name] <= room for name, room in host.capacity.items()))
            self.assertLessEqual(count[host.uuid], per_host)
            if count[host.uuid] < per_host:
                # One of the flavors, at least, would not fit any more.
                room = {n: int(a * 0.95) - taken[n] for n, a in host.capacity.items()}
                largest = max(flavors, key=lambda each: each.vcpus)
                self.assertTrue(any(a > room[n] for n, a in largest.resources.items()))

    def test_each_is_another_one_and_a_seed_gives_the_same(self):
        made = [list(standing_servers.draw(cluster(hosts=50), 20, (SMALL, LARGE))) for _ in "ab"]
        self.assertEqual(*made)
        self.assertEqual(len(made[0]), len({each.uuid for each in made[0]}))
        self.assertGreater(len(made[0]), 950)
        other = list(standing_servers.draw(cluster(hosts=50, seed=2), 20, (SMALL, LARGE)))
        self.assertNotEqual(made[0], other)

    def test_of_none_there_is_none(self):
        self.assertEqual([], list(standing_servers.draw(cluster(hosts=5), 0, (SMALL,))))
