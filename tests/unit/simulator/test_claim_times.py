# SPDX-License-Identifier: Apache-2.0
"""A claim's time is that of its take and its confirm, by a made clock."""

import testtools

from nova_nodb_scheduler.scheduling import claimer
from nova_nodb_scheduler.simulator import claim_times


class SlowClaims(claimer.NoClaims):
    """Grants what is not refused; every call takes known seconds."""

    def __init__(self):
        self.now = 0.0
        self.refused = set()

    def take(self, request, wanted, deadline):
        self.now += 0.5
        return [
            claimer.NotTaken(each, claimer.Failure.NEXT_HOST)
            if each.consumer in self.refused
            else claimer.Taken(each)
            for each in wanted
        ]

    def confirm(self, taken):
        self.now += 0.25
        return [each.wanted.consumer != "gone" for each in taken]


class TimedClaimerTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.slow = SlowClaims()
        self.timed = claim_times.TimedClaimer(self.slow, clock=lambda: self.slow.now)

    def take(self, *consumers):
        return [
            each
            for each in self.timed.take(
                None, [claimer.Wanted(name, None, {}) for name in consumers], 0.0
            )
            if isinstance(each, claimer.Taken)
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
