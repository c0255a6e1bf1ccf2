# SPDX-License-Identifier: Apache-2.0
"""A claim's time is that of its take and its confirm, by a made clock."""

import testtools

from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts
from nova_nodb_scheduler.simulator.schedulers import scheduler_claims


class SlowClaims(chosen_hosts.NoClaims):
    """Grants what is not refused; every call takes known seconds."""

    def __init__(self):
        self.now = 0.0
        self.refused = set()

    def take(self, request, wanted, deadline):
        self.now += 0.5
        return [
            chosen_hosts.RefusedClaim(each, chosen_hosts.ClaimRefusal.NEXT_HOST)
            if each.consumer in self.refused
            else chosen_hosts.TakenClaim(each)
            for each in wanted
        ]

    def confirm(self, taken):
        self.now += 0.25
        return [each.wanted.consumer != "gone" for each in taken]


class TimedClaimerTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.slow = SlowClaims()
        self.timed = scheduler_claims.TimedClaimer(self.slow, clock=lambda: self.slow.now)

    def take(self, *consumers):
        return [
            each
            for each in self.timed.take(
                None, [chosen_hosts.WantedClaim(name, None, {}) for name in consumers], 0.0
            )
            if isinstance(each, chosen_hosts.TakenClaim)
        ]

    def test_servers_claimed_together_count_once(self):
        self.timed.confirm(self.take("a", "b"))

        self.assertEqual(((0.5, 0.25),), self.timed.reap())
        self.assertEqual((), self.timed.reap())

    def test_what_is_refused_or_gone_does_not_count(self):
        self.slow.refused = {"b"}
        self.assertEqual([], self.take("b"))
        self.timed.confirm(self.take("gone"))

        self.assertEqual((), self.timed.reap())
