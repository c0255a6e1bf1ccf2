# SPDX-License-Identifier: Apache-2.0
"""How many hosts objects are asked about, and that it changes no exact decision."""

import collections
import random

import testtools

from nova_nodb_scheduler.scheduling import decision_settings
from nova_nodb_scheduler.scheduling.pipeline import decision_steps
from tests.unit.scheduling import toys
from tests.unit.scheduling.pipeline import test_engine

LAZY = decision_settings.SchedulingOptions(host_objects="lazy")
NAMES = ("OddFilter", "FirstFilter")


class Objects:
    """Two filters by hosts' numbers, the second of which is asked for the first server alone."""

    def __init__(self, refused=(), refused_first=(), *, apart=True):
        self._refused = {f"uuid-{number}" for number in refused}
        self._refused_first = {f"uuid-{number}" for number in refused_first}
        self._apart = apart
        self.asked = collections.Counter()

    def is_apart(self, name, *, is_chosen):
        return self._apart

    def filter(self, name, uuids, index):
        self.asked.update(uuids)
        if name == "FirstFilter":
            return [uuid for uuid in uuids if index or uuid not in self._refused_first]
        return [uuid for uuid in uuids if uuid not in self._refused]

    def weigh(self, name, uuids):
        raise AssertionError("nobody weighs on objects here")

    def allocation_requests(self, uuid):
        return [{"allocations": {uuid: {"resources": {"VCPU": 1}}}, "mappings": {"": [uuid]}}]

    def consume(self, uuid, instance_uuid):
        pass


def make(hosts, settings=None):
    made = test_engine.make(settings, filters=(*toys.FILTERS, *NAMES))
    for each in hosts:
        made.put(each)
    return made


def rising(count):
    return [toys.facts(number, free_ram_mb=1024 + 8 * number) for number in range(count)]


def told(chosen):
    return [(each.uuid, each.score) for each in chosen]


def scores(hosts):
    """Return what columns alone make of hosts."""
    made = test_engine.make()
    for each in hosts:
        made.put(each)
    return told(made.plan(toys.request()).best(len(hosts)))


class LazyTest(testtools.TestCase):
    def test_the_best_that_passes_by_weights_over_all_that_masks_left(self):
        hosts = rising(300)
        objects = Objects(refused=range(150, 300, 2))
        plan = make(hosts, LAZY).plan(toys.request(), objects)
        expected = [
            each for each in scores(hosts) if int(each[0][5:]) % 2 or int(each[0][5:]) < 150
        ]
        self.assertEqual(expected[:3], told(plan.best(3)))
        self.assertLessEqual(len(objects.asked), 16)
        self.assertEqual(expected, told(plan.best(300)))

    def test_hosts_are_asked_in_the_order_of_their_weights(self):
        objects = Objects(refused=range(280, 300))
        plan = make(rising(300), LAZY).plan(toys.request(), objects)
        self.assertEqual("uuid-279", plan.best()[0].uuid)
        asked = sorted(int(uuid[5:]) for uuid in objects.asked)
        # Four, eight, sixteen: the best of all, without a gap.
        self.assertEqual(list(range(300 - len(asked), 300)), asked)
        self.assertLessEqual(len(asked), 28)

    def test_nobody_is_asked_beyond_those_that_are_looked_for(self):
        objects = Objects()
        make(rising(300), LAZY).plan(toys.request(), objects).best()
        self.assertEqual({f"uuid-{number}" for number in range(296, 300)}, set(objects.asked))

    def test_a_refused_claim_has_a_few_more_asked(self):
        objects = Objects()
        plan = make(rising(1000), LAZY).plan(toys.request(), objects)
        for _ in range(5):
            plan.refuse(plan.best()[0])
        self.assertEqual("uuid-994", plan.best()[0].uuid)
        self.assertLess(len(objects.asked), 30)

    def test_where_nobody_passes_all_are_asked_and_counted(self):
        objects = Objects(refused=range(50))
        plan = make(rising(50), LAZY).plan(toys.request(), objects)
        self.assertEqual([], plan.best())
        self.assertEqual(decision_steps.FilterCount("OddFilter", 50, 0), plan.counts[-1])

    def test_who_is_first_asked_for_a_later_server_passes_the_first_ones_filters_too(self):
        objects = Objects(refused_first=range(100, 200))
        plan = make(rising(200), LAZY).plan(toys.request(), objects, servers=40)
        for number in range(40):
            chosen = plan.best()[0]
            self.assertLess(int(chosen.uuid[5:]), 100)
            plan.take(chosen, f"server-{number}")
            plan.refuse(chosen)

    def test_filters_that_look_at_all_hosts_together_get_them_all(self):
        objects = Objects(apart=False)
        make(rising(300), LAZY).plan(toys.request(), objects)
        self.assertEqual(300, len(objects.asked))

    def test_an_explanation_asks_about_all(self):
        objects = Objects()
        plan = make(rising(300), LAZY).plan(toys.request(), objects, explain=True)
        self.assertEqual(300, len(objects.asked))
        self.assertEqual(decision_steps.FilterCount("FirstFilter", 300, 300), plan.counts[-1])


class ExactTest(testtools.TestCase):
    def test_where_the_extremes_pass_the_others_wait(self):
        hosts = rising(300)
        objects = Objects(refused=range(1, 299, 2))
        plan = make(hosts).plan(toys.request(), objects)
        self.assertEqual(["uuid-299", "uuid-298", "uuid-296"], [e.uuid for e in plan.best(3)])
        self.assertLessEqual(len(objects.asked), 16)

    def test_where_an_extreme_fails_the_next_one_is_asked(self):
        objects = Objects(refused=[0])
        plan = make(rising(300)).plan(toys.request(), objects)
        self.assertEqual("uuid-299", plan.best()[0].uuid)
        self.assertLessEqual(len(objects.asked), 8)
        everybody = make(rising(300)).plan(toys.request(), Objects(refused=[0], apart=False))
        self.assertEqual(told(everybody.best(299)), told(plan.best(299)))

    def test_many_that_fail_at_both_ends_cost_little_more_than_themselves(self):
        for failing in (10, 40, 100):
            ends = [*range(failing), *range(1000 - failing, 1000)]
            objects = Objects(refused=ends)
            plan = make(rising(1000)).plan(toys.request(), objects)
            self.assertEqual(f"uuid-{999 - failing}", plan.best()[0].uuid)
            self.assertLess(len(objects.asked), 4 * failing + 32)

    def test_hosts_that_weigh_alike_are_asked_once_for_all_ends(self):
        hosts = [
            toys.facts(number, free_ram_mb=1024 + 8 * number, num_io_ops=int(number == 7))
            for number in range(300)
        ]
        objects = Objects()
        make(hosts).plan(toys.request(), objects).best()
        # The best four, the one with the least memory, and the busy one.
        self.assertLessEqual(len(objects.asked), 6)

    def test_where_nobody_passes_everybody_was_asked_once(self):
        objects = Objects(refused=range(50))
        plan = make(rising(50)).plan(toys.request(), objects)
        self.assertEqual([], plan.best())
        self.assertEqual({1}, set(objects.asked.values()))
        self.assertEqual(50, len(objects.asked))
        self.assertEqual(decision_steps.FilterCount("OddFilter", 50, 0), plan.counts[-1])

    def test_a_host_that_alone_passes_is_not_weighed(self):
        for alone in (0, 7, 49):
            objects = Objects(refused=set(range(50)) - {alone})
            plan = make(rising(50)).plan(toys.request(), objects)
            self.assertEqual([(f"uuid-{alone}", 0.0)], told(plan.best(2)))

    def test_no_decision_differs_from_one_that_asks_about_all(self):
        chance = random.Random(5)
        spared = collections.Counter()
        for _ in range(400):
            count = chance.choice((1, 2, 3, 8, 14, 40))
            hosts = [
                toys.facts(
                    number,
                    free_ram_mb=chance.choice((600, 1024, 2048, 4096)),
                    num_io_ops=chance.choice((0, 0, 3, 9)),
                    failed_builds=chance.choice((0, 0, 0, 2)),
                )
                for number in range(count)
            ]
            refused = [n for n in range(count) if chance.random() < 0.3]
            refused_first = [n for n in range(count) if chance.random() < 0.1]
            objects = [Objects(refused, refused_first, apart=apart) for apart in (True, False)]
            servers = chance.choice((1, 1, 3))
            first, second = (
                make(hosts).plan(toys.request(), each, servers=servers) for each in objects
            )
            spared[len(objects[0].asked) < len(objects[1].asked)] += 1
            for number in range(servers):
                found, expected = told(first.best(count)), told(second.best(count))
                # Of equals either may come first.
                self.assertEqual(sorted(expected), sorted(found))
                self.assertEqual([s for _, s in expected], [s for _, s in found])
                if not found:
                    break
                chosen = chance.choice(found)[0]
                for plan in (first, second):
                    (taken,) = [each for each in plan.best(count) if each.uuid == chosen]
                    plan.take(taken, f"server-{number}")
        self.assertGreater(min(spared[True], spared[False]), 50, spared)
