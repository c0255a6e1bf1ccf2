# SPDX-License-Identifier: Apache-2.0
"""Four workers take what Nova would take, through the engine with its own weighers."""

from __future__ import annotations

import random

import attrs
import testtools

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import decision_settings, filters, weighers
from nova_nodb_scheduler.scheduling.frame import host_frame
from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts, engine, placing
from tests.unit.scheduling import toys

WORKERS = ("s0", "s1", "s2", "s3")
HOSTS = 1000


class TestSpreadDecisions(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.places: dict[str, tuple[str, str]] = {}
        own = decision_settings.SchedulingOptions()
        self.engine = engine.Engine(
            own,
            [filters.BUILT_IN["ComputeFilter"](own)],
            [each(own) for name, each in weighers.BUILT_IN.items() if name != "MetricsWeigher"],
            frame=host_frame.HostFrame(
                lambda uuid: [self.places[uuid]] if uuid in self.places else []
            ),
            rng=random.Random(0),
        )
        self.engine.tick(1000.0)
        for number in range(HOSTS):
            self.engine.put(toys.facts(number))

    def chosen(self, request: requests.Request, *, tolerant: bool) -> list[chosen_hosts.Choice]:
        """Return what each worker takes."""
        found = []
        for name in WORKERS:
            plan = self.engine.plan(request)
            spread = placing.Spreading(name, lambda: WORKERS, tolerant=tolerant)
            taken = spread.choose(plan.best, plan.passed, is_told_apart=plan.is_told_apart)
            assert taken is not None
            found.append(taken)
        return found

    def test_every_worker_takes_the_host_of_a_soft_affinity_groups_member(self) -> None:
        group = requests.Group("g", "soft-affinity", frozenset(["soft-affinity"]), frozenset(["m"]))
        request = attrs.evolve(toys.request(memory_mb=1), group=group)
        for number in range(40):
            facts = toys.facts(number)
            self.places["m"] = (facts.cell, facts.host)
            for tolerant in (False, True):
                hosts = {each.host for each in self.chosen(request, tolerant=tolerant)}
                self.assertEqual({facts.host}, hosts)

    def test_no_worker_leaves_the_preferred_cell_while_it_has_room(self) -> None:
        for number in range(5):
            self.engine.put(attrs.evolve(toys.facts(number), cell="cell-2"))
        request = attrs.evolve(
            toys.request(memory_mb=1),
            destination=requests.Destination(cell="cell-2", allow_cross_cell_move=True),
            cells=frozenset([toys.CELL, "cell-2"]),
        )
        for tolerant in (False, True):
            for _time in range(10):
                cells = {each.cell for each in self.chosen(request, tolerant=tolerant)}
                self.assertEqual({"cell-2"}, cells)

    def test_no_worker_takes_a_host_that_failed_to_build_while_others_did_not(self) -> None:
        for number in range(5, HOSTS):
            self.engine.put(toys.facts(number, failed_builds=1 + number % 3))
        for tolerant in (False, True):
            hosts = {each.row for each in self.chosen(toys.request(), tolerant=tolerant)}
            self.assertLessEqual(hosts, set(range(5)))

    def test_workers_take_different_ones_of_hosts_that_weigh_the_same(self) -> None:
        chosen = self.chosen(toys.request(), tolerant=False)
        self.assertEqual(len(WORKERS), len({each.uuid for each in chosen}))
