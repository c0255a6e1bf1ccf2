# SPDX-License-Identifier: Apache-2.0
"""Which server group policies a claimer holds hosts to, and which it only notes."""

from __future__ import annotations

import attrs

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import claimer
from nova_nodb_scheduler.synchronizer import claimer as ledger_claimer
from nova_nodb_scheduler.synchronizer import group_claims
from tests.unit.synchronizer import claiming, test_claimer


class PolicyTest(test_claimer.ClaimerCase):
    def test_a_soft_policy_rules_no_host_out_and_claims_no_place(self):
        for policy, hosts in (("soft-anti-affinity", "h1 h1"), ("soft-affinity", "h1 h2")):
            group = requests.Group(f"g {policy}", policy, frozenset([policy]))
            soft = attrs.evolve(test_claimer.APART, group=group)
            for number, host in enumerate(hosts.split()):
                wanted = claiming.wanted(f"{policy} {number}", host, 0)
                self.taken(*self.take(self.one, wanted, request=soft))
            self.assertEqual({}, self.one.client.read([group_claims.key_of(group.uuid)]))

    def test_a_policy_whose_filter_is_not_enabled_is_noted_for_those_who_enable_it(self):
        self.one.claimer = ledger_claimer.LedgerClaimer(
            self.one.batches,
            self.one.views,
            strict=frozenset(),
            clock=self.clock,
            sleep=self.clock.sleep,
        )
        for name in ("a", "b"):
            wanted = claiming.wanted(name, "h1")
            self.taken(*self.take(self.one, wanted, request=test_claimer.APART))
        self.assertEqual({("a", "h1"), ("b", "h1")}, self.members("g1"))
        wanted = claiming.wanted("c", "h1", 0)
        told = self.take(self.other, wanted, request=test_claimer.APART)
        self.assertEqual({"h1"}, self.refused(*told, claimer.Failure.GROUP).group_hosts)

    def test_a_forced_host_that_is_filtered_all_the_same_is_held_to_the_policy(self):
        first = self.take(self.one, claiming.wanted("a", "h1"), request=test_claimer.APART)
        self.taken(*first)
        forced = attrs.evolve(test_claimer.APART, force_hosts=("h1",), check_type=True)
        told = self.take(self.one, claiming.wanted("b", "h1"), request=forced)
        self.refused(*told, claimer.Failure.GROUP)
