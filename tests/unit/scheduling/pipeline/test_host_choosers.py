# SPDX-License-Identifier: Apache-2.0
"""Hosts that are drawn: the same ones pass, in another order, at no greater cost."""

import collections
import random

import fixtures
import numpy as np
import testscenarios
import testtools
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import decision_settings
from nova_nodb_scheduler.scheduling.pipeline import host_choosers, placing, weighing
from tests.unit.scheduling import toys
from tests.unit.scheduling.pipeline import test_engine, test_lazy_filters

DRAWN = ("two", "random")


def option(choice):
    return decision_settings.SchedulingOptions(choice=choice)


def filled(choice, hosts, **known):
    made = test_engine.make(option(choice), **known)
    for each in hosts:
        made.put(each)
    return made


def flavored(choice):
    return requests.Flavor(name="burst", memory_mb=1, extra_specs={"nodb:choice": choice})


def request(choice):
    return requests.Request(
        flavor=flavored(choice),
        cells=frozenset({toys.CELL}),
        queries=(toys.query(VCPU=1),),
    )


class DrawnTest(testscenarios.WithScenarios, testtools.TestCase):
    scenarios = [(choice, {"choice": choice}) for choice in DRAWN]

    def test_all_hosts_that_pass_are_proposed_once_each(self):
        hosts = [toys.facts(n, free_ram_mb=n % 5 * 512) for n in range(300)]
        best = filled("best", hosts).plan(toys.request(memory_mb=1024)).best(400)
        drawn = filled(self.choice, hosts).plan(toys.request(memory_mb=1024)).best(400)
        self.assertEqual(180, len(best))
        self.assertEqual(
            sorted((each.uuid, each.score) for each in best),
            sorted((each.uuid, each.score) for each in drawn),
        )

    def test_a_plan_proposes_the_same_order_again_less_who_was_refused(self):
        plan = filled(self.choice, test_lazy_filters.rising(300)).plan(toys.request())
        before = plan.best(20)
        self.assertEqual(before, plan.best(20))
        plan.refuse(before[0])
        self.assertEqual(before[1:], plan.best(19))

    def test_the_filters_on_objects_are_heeded_for_whoever_is_drawn(self):
        objects = test_lazy_filters.Objects(refused=range(0, 300, 2))
        names = test_lazy_filters.NAMES
        made = filled(self.choice, test_lazy_filters.rising(300), filters=(*toys.FILTERS, *names))
        found = {int(each.uuid[5:]) % 2 for each in made.plan(toys.request(), objects).best(300)}
        self.assertEqual({1}, found)

    def test_lazily_asked_objects_are_asked_about_few(self):
        objects = test_lazy_filters.Objects()
        chosen = decision_settings.SchedulingOptions(choice=self.choice, host_objects="lazy")
        made = test_lazy_filters.make(test_lazy_filters.rising(300), chosen)
        self.assertEqual(3, len(made.plan(toys.request(), objects).best(3)))
        self.assertLessEqual(len(objects.asked), 32)

    def test_the_servers_of_one_request_fill_no_host_beyond_its_room(self):
        made = filled(self.choice, [toys.facts(n, free_ram_mb=1024) for n in range(5)])
        plan = made.plan(toys.request(memory_mb=512), servers=11)
        taken = collections.Counter()
        for number in range(10):
            (chosen,) = plan.best()
            taken[chosen.uuid] += 1
            plan.take(chosen, f"s{number}")
        self.assertEqual({2}, set(taken.values()))
        self.assertEqual([], plan.best())

    def test_alternates_are_drawn_in_the_cell_of_the_choice(self):
        hosts = [toys.facts(n, cell=f"cell-{n % 3}") for n in range(90)]
        cells = frozenset(f"cell-{n}" for n in range(3))
        seen = set()
        for seed in range(8):
            made = filled(self.choice, hosts)
            made._rng.seed(seed)
            plan = made.plan(toys.request(cells=cells))
            chosen = plan.best(1)[0]
            (others,) = plan.alternates([chosen], 5)
            self.assertEqual(5, len({each.uuid for each in others} - {chosen.uuid}))
            self.assertEqual({chosen.cell}, {each.cell for each in others})
            seen.update(each.uuid for each in others)
        self.assertGreater(len(seen), 20)

    def test_what_others_took_meanwhile_is_not_drawn(self):
        made = filled(self.choice, test_lazy_filters.rising(30))
        plan = made.plan(toys.request())
        first = {each.uuid for each in plan.best(4)}
        for number in range(30):
            if f"uuid-{number}" not in first and number != 7:
                made.frame.remove(f"uuid-{number}")
        self.assertEqual(first | {"uuid-7"}, {each.uuid for each in plan.best(30)})

    def test_who_draws_is_kept_apart_by_that_and_not_by_its_own_hosts(self):
        made = filled(self.choice, test_lazy_filters.rising(300))
        plan = made.plan(toys.request())
        own = placing.Spreading("a", lambda: ("a", "b", "c"))
        drawn = placing.Placing(
            placing.PlacingParts(reservations=None, claimer=None, spread=own),
            toys.request(), ["s"], None, None, None, lambda server: (), 0.0,
        )  # fmt: skip
        drawn.plan = plan
        self.assertEqual(plan.best(1)[0], drawn._proposed())

    def test_a_flavor_goes_before_the_option(self):
        hosts = test_lazy_filters.rising(300)
        made = filled("best", hosts)
        firsts = {made.plan(request(self.choice)).best(1)[0].uuid for _ in range(20)}
        self.assertGreater(len(firsts), 5)
        made = filled(self.choice, hosts)
        self.assertEqual(
            {"uuid-299"}, {made.plan(request("best")).best(1)[0].uuid for _ in range(20)}
        )

    def test_who_asks_why_sees_all_by_their_weights(self):
        made = filled(self.choice, test_lazy_filters.rising(300))
        found = made.plan(toys.request(), explain=True).best(3)
        self.assertEqual(["uuid-299", "uuid-298", "uuid-297"], [each.uuid for each in found])


class FrequencyTest(testtools.TestCase):
    def firsts(self, choice, hosts=10, trials=4000):
        made = filled(choice, test_lazy_filters.rising(hosts))
        return collections.Counter(
            int(made.plan(toys.request()).best(1)[0].uuid[5:]) for _ in range(trials)
        )

    def test_each_host_that_passes_is_drawn_as_often(self):
        counts = self.firsts("random")
        self.assertEqual(10, len(counts))
        self.assertLess(max(counts.values()) - min(counts.values()), 160, counts)

    def test_of_two_the_better_one_wins(self):
        # Host k of n is the better of two in k of n * (n - 1) / 2 pairs.
        counts = self.firsts("two")
        self.assertNotIn(0, counts)
        for number in range(1, 10):
            self.assertAlmostEqual(4000 * number / 45, counts[number], delta=110)

    def test_a_lone_host_is_taken(self):
        for choice in DRAWN:
            self.assertEqual({0}, set(self.firsts(choice, hosts=1, trials=2)))


class Counting(random.Random):
    """Counts what was drawn."""

    drawn = 0

    def randrange(self, *args):
        self.drawn += 1
        return super().randrange(*args)


class RankingTest(testtools.TestCase):
    @settings(deadline=None)
    @given(st.lists(st.booleans(), max_size=700), st.data())
    def test_whoever_may_be_chosen_is_drawn_once(self, may, data):
        scores = np.where(np.array(may, bool), 1.0, weighing.NOT_CHOOSABLE)
        ranking = weighing.Ranking(scores)
        rng = random.Random(data.draw(st.integers(0, 99)))
        expected = np.flatnonzero(scores > 0).tolist()
        self.assertEqual(expected, sorted(ranking.at_random(rng)))
        among = np.array(sorted(data.draw(st.sets(st.integers(0, 699)))), np.intp)
        among = among[among < len(scores)]
        self.assertEqual(
            sorted(set(expected) & set(among.tolist())), sorted(ranking.at_random(rng, among))
        )

    def test_one_of_many_costs_the_same_whatever_their_number(self):
        rng = Counting(0)
        scores = np.zeros(1_000_000)
        scores[::2] = weighing.NOT_CHOOSABLE
        for _ in range(100):
            next(weighing.Ranking(scores).at_random(rng))
        self.assertLess(rng.drawn, 400)


class UnknownChoiceTest(testtools.TestCase):
    def test_it_takes_the_best_and_is_counted_and_warned_of_once(self):
        log = self.useFixture(fixtures.FakeLogger())
        made = filled("random", test_lazy_filters.rising(30))
        found = {made.plan(request("worst")).best(1)[0].uuid for _ in range(3)}
        self.assertEqual({"uuid-29"}, found)
        self.assertEqual(3, made.figures()["unknown_choices"])
        self.assertEqual(1, log.output.count("nodb:choice='worst'"))

    def test_warnings_are_remembered_of_a_bounded_number_of_values(self):
        choosers = host_choosers.FlavorChoosers(host_choosers.Chooser.TWO)
        self.useFixture(fixtures.FakeLogger())
        for number in range(500):
            choosers.of(request(f"x{number}"))
        self.assertEqual(500, choosers.unknown)
        self.assertLessEqual(len(choosers._warned), 100)
