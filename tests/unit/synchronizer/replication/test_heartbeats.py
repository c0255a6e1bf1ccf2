# SPDX-License-Identifier: Apache-2.0
"""Who lives, by beats that change."""

from __future__ import annotations

import testtools

from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.replication import heartbeats
from tests.unit.scheduling import hosts


class TestLivingSchedulers(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.store = hosts.Hosts()
        self.now = 100.0
        self.living = heartbeats.SchedulerLiveness(
            self.store.store, "me", 10.0, clock=lambda: self.now
        )

    def beat(self, *names: str) -> None:
        for name in names:
            self.store.put(known_namespaces.SCHEDULERS, name, {"host": name})

    def after(self, seconds: float) -> tuple[str, ...]:
        self.now += seconds
        return self.living()

    def test_one_that_nobody_else_has_heard_of_lives_alone(self) -> None:
        self.assertEqual(("me",), self.living())

    def test_all_whose_beats_change_live_and_are_sorted(self) -> None:
        self.beat("you", "me", "her")
        self.assertEqual(("her", "me", "you"), self.living())

    def test_one_that_is_killed_is_dead_when_its_beat_did_not_change_for_that_long(self) -> None:
        self.beat("me", "you", "killed")
        self.assertIn("killed", self.living())
        for _ in range(3):
            self.beat("me", "you")
            self.assertIn("killed", self.after(3.0))
        self.beat("you")
        self.assertEqual(("me", "you"), self.after(3.0))

    def test_one_that_said_goodbye_is_gone_at_once_and_one_that_came_back_lives(self) -> None:
        self.beat("you")
        self.assertEqual(("me", "you"), self.living())
        self.store.put(known_namespaces.SCHEDULERS, "you", None)
        self.assertEqual(("me",), self.after(1.0))
        self.beat("you")
        self.assertEqual(("me", "you"), self.after(1.0))

    def test_beats_are_not_looked_at_for_every_decision(self) -> None:
        self.assertEqual(("me",), self.living())
        self.beat("you")
        self.assertEqual(("me",), self.after(0.1))
        self.assertEqual(("me", "you"), self.after(0.5))
