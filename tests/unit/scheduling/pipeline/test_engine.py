# SPDX-License-Identifier: Apache-2.0
"""What an engine answers, and what one answer costs."""

import itertools
import random
import threading
from unittest import mock

import attrs
import numpy as np
import testtools

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import decision_settings
from nova_nodb_scheduler.scheduling.frame import host_facts, host_frame
from nova_nodb_scheduler.scheduling.pipeline import engine
from tests.unit.scheduling import toys


def make(
    settings=None, filters=toys.FILTERS, weighers=toys.WEIGHERS, *, locate=lambda uuid: (), **known
):
    settings = settings or decision_settings.SchedulingOptions()
    made = engine.Engine(
        settings,
        [each if isinstance(each, str) else each(settings) for each in filters],
        [each if isinstance(each, str) else each(settings) for each in weighers],
        frame=host_frame.HostFrame(locate),
        rng=random.Random(0),
        **known,
    )
    made.tick(1000.0)
    return made


def feed(fed, stop, offset):
    for step in itertools.count():
        if stop.is_set():
            return
        number = (offset + 7 * step) % 600
        fed.put(toys.facts(number, free_ram_mb=1024 + (step % 5000)))
        fed.tick(1000.0 + step % 3)


def ask(asked, failures, memory_mb):
    try:
        for servers in (1, 1, 3) * 20:
            plan = asked.plan(toys.request(memory_mb=memory_mb), servers=servers)
            taken = []
            for number in range(servers):
                taken.append(plan.best()[0])
                plan.take(taken[-1], f"{number}")
            for others in plan.alternates(taken, 2):
                assert len(others) == 2, others
    except Exception as error:
        failures.append(error)


class EngineTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.engine = make()
        for number in range(600):
            self.engine.put(toys.facts(number, free_ram_mb=1024 + 8 * number))

    def best(self, request=None, **known):
        return [each.host for each in self.engine.plan(request or toys.request()).best(**known)]

    def test_the_host_with_most_memory_comes_first(self):
        self.assertEqual(["Host-599", "Host-598", "Host-597"], self.best(limit=3))

    def test_a_signature_is_cold_twice_and_then_warm(self):
        for _ in range(4):
            self.best()
        counters = self.engine.counters
        self.assertEqual((2, 2), (counters.cold_evaluations, counters.signature_hits))

    def test_a_changed_host_costs_its_own_row(self):
        for _ in range(3):
            self.best()
        before = attrs.evolve(self.engine.counters)
        self.engine.put(toys.facts(300, free_ram_mb=2000))
        self.best()
        counters = self.engine.counters
        self.assertEqual(1, counters.rows_patched - before.rows_patched)
        self.assertEqual(before.cold_evaluations, counters.cold_evaluations)
        self.assertEqual(before.rescales, counters.rescales)

    def test_a_heartbeat_costs_nothing(self):
        for _ in range(3):
            self.best()
        before = self.engine.counters.rows_patched
        self.engine.put(toys.facts(300, free_ram_mb=1024 + 2400, last_seen_seconds=1010.0))
        self.best()
        self.assertEqual(before, self.engine.counters.rows_patched)

    def test_a_moved_extreme_is_followed(self):
        for _ in range(3):
            self.best()
        self.engine.put(toys.facts(599, free_ram_mb=1030))
        self.assertEqual(["Host-598"], self.best())
        self.assertEqual(1, self.engine.counters.rescales)

    def test_consumed_capacity_is_seen_at_once(self):
        request = toys.request(vcpus=16)
        self.assertEqual(["Host-599"], self.best(request))
        self.engine.use("uuid-599", {"VCPU": 1})
        self.assertEqual(["Host-598"], self.best(request))
        self.engine.use("uuid-599", {"VCPU": -1})
        self.assertEqual(["Host-599"], self.best(request))

    def test_a_silent_host_falls_and_comes_back(self):
        self.engine.put(toys.facts(599, free_ram_mb=99999, last_seen_seconds=900.0))
        self.assertEqual(["Host-598"], self.best())
        self.engine.put(toys.facts(599, free_ram_mb=99999, last_seen_seconds=1001.0))
        self.assertEqual(["Host-599"], self.best())

    def test_counts_say_which_step_left_how_many(self):
        request = toys.request(memory_mb=1024 + 8 * 590, queries=(toys.query(VCPU=1),))
        counts = self.engine.plan(request).counts
        self.assertEqual(
            [("placement", 600, 600), ("UpFilter", 600, 600), ("RamFilter", 600, 10)],
            [attrs.astuple(each) for each in counts],
        )

    def test_counts_end_where_nobody_is_left(self):
        counts = self.engine.plan(toys.request(vcpus=17)).counts
        self.assertEqual([("placement", 600, 0)], [attrs.astuple(each) for each in counts])

    def test_ignored_hosts_are_left_out_whatever_their_case(self):
        request = toys.request(ignore_hosts=("HOST-599", "host-598"))
        self.assertEqual(["Host-597"], self.best(request))

    def test_ignoring_the_extreme_scales_anew(self):
        self.engine.put(toys.facts(600, free_ram_mb=100_000, num_io_ops=3))
        plain = self.engine.plan(toys.request()).best(3)
        ignoring = self.engine.plan(toys.request(ignore_hosts=("host-600",))).best(2)
        self.assertEqual([each.host for each in plain[1:]], [each.host for each in ignoring])
        self.assertLess(plain[1].score, ignoring[0].score)

    def test_a_forced_host_is_not_filtered(self):
        request = toys.request(
            memory_mb=9999, force_hosts=("host-3",), queries=(toys.query(VCPU=1),)
        )
        self.assertEqual(["Host-3"], self.best(request))
        checked = attrs.evolve(request, check_type=True)
        self.assertEqual([], self.best(checked))

    def test_a_requested_destination_is_filtered(self):
        there = requests.Destination(host="Host-3", node="node-3")
        self.assertEqual(["Host-3"], self.best(toys.request(destination=there)))
        self.assertEqual([], self.best(toys.request(destination=there, memory_mb=9999)))

    def test_a_node_that_never_reported_weighs_but_is_not_chosen(self):
        for number in range(600):
            self.engine.frame.remove(f"uuid-{number}")
        self.engine.put(toys.facts(1, free_ram_mb=1000))
        self.engine.put(toys.facts(2, free_ram_mb=600))
        request = toys.request(memory_mb=0, queries=(toys.query(VCPU=1),))
        without = self.engine.plan(request).best(2)
        self.engine.put(toys.facts(3, free_ram_mb=50, updated=False))
        found = self.engine.plan(request).best(3)
        self.assertEqual(["Host-1", "Host-2"], [each.host for each in found])
        self.assertLess(without[1].score, found[1].score)

    def test_a_refused_host_is_not_proposed_again(self):
        plan = self.engine.plan(toys.request())
        seen = []
        for _ in range(10):
            (choice,) = plan.best()
            seen.append(choice.host)
            plan.refuse(choice)
        self.assertEqual([f"Host-{number}" for number in range(599, 589, -1)], seen)

    def test_one_plan_changes_nothing_for_another(self):
        for _ in range(3):
            self.best()
        several = self.engine.plan(toys.request(), servers=3)
        for _ in range(3):
            (choice,) = several.best()
            several.take(choice, "i")
        several.refuse(several.best()[0])
        self.assertEqual(["Host-599", "Host-598"], self.best(limit=2))

    def test_servers_of_one_request_consume_from_one_another(self):
        plan = self.engine.plan(toys.request(memory_mb=1024, queries=None), servers=200)
        hosts = []
        for number in range(200):
            (choice,) = plan.best()
            hosts.append(choice.host)
            plan.take(choice, f"i{number}")
        self.assertGreater(len(set(hosts)), 100)

    def test_a_server_whose_claim_failed_gives_its_share_back(self):
        members = frozenset({"i0", "i1", "i2"})
        group = requests.Group("g", "anti-affinity", members=members)
        plan = self.engine.plan(toys.request(vcpus=16, group=group), servers=3)
        first = plan.best()[0]
        plan.take(first, "i0")
        second = plan.best()[0]
        plan.take(second, "i1")
        plan.refuse(first)
        frame = plan._next.frame
        self.assertEqual(0, frame.resource("VCPU").used[first.row])
        self.assertEqual(16, frame.resource("VCPU").used[second.row])
        self.assertEqual({second.row: 1}, frame.instance_counts(members))
        self.assertEqual(frozenset({second.host}), plan._request.group.hosts)
        self.assertNotIn(plan.best()[0].host, {first.host, second.host})

    def test_members_of_a_group_spread(self):
        members = frozenset(f"i{number}" for number in range(5))
        group = requests.Group("g", "anti-affinity", members=members)
        plan = self.engine.plan(toys.request(memory_mb=1, group=group), servers=5)
        hosts = []
        for number in range(5):
            (choice,) = plan.best()
            hosts.append(choice.host)
            plan.take(choice, f"i{number}")
        self.assertEqual(5, len(set(hosts)))

    def test_alternates_are_of_the_same_cell_and_not_taken(self):
        self.engine.put(toys.facts(700, free_ram_mb=90_000, cell="cell-2"))
        request = toys.request(cells=frozenset({toys.CELL, "cell-2"}))
        plan = self.engine.plan(request)
        (choice,) = plan.best()
        plan.take(choice, "i")
        self.assertEqual([[]], plan.alternates([choice], 2))
        other = self.engine.plan(attrs.evolve(request, ignore_hosts=("host-700",)))
        (choice,) = other.best()
        found = other.alternates([choice], 2)
        self.assertEqual(["Host-598", "Host-597"], [each.host for each in found[0]])

    def test_kept_signatures_are_bounded_in_bytes(self):
        limit = 3 * 60_000
        small = make(cache_bytes=limit)
        for number in range(600):
            small.put(toys.facts(number))
        for _ in range(2):
            for memory_mb in range(1, 40):
                small.plan(toys.request(memory_mb=memory_mb)).best()
        self.assertGreater(small.counters.evictions, 0)
        self.assertLessEqual(small._signatures.nbytes, limit)
        self.assertGreater(len(small._signatures), 0)

    def test_kept_signatures_are_counted_again_when_multipliers_become_columns(self):
        class Plain(toys.RamWeigher):
            def multiplier(self, request, frame, rows):
                found = super().multiplier(request, frame, rows)
                return found if (found != 1.5).any() else 1.5

        made = make(weighers=(Plain,))
        for number in range(600):
            made.put(toys.facts(number))
        kinds = [toys.request(memory_mb=number) for number in (1, 2, 3)]
        for each in (*kinds, *kinds):
            made.plan(each).best()
        kept = made._signatures
        self.assertEqual(3, len(kept))
        column = made.frame.rows * 8
        limit = kept._limit_bytes = kept.nbytes + column
        made.set_aggregates([host_facts.HostAggregate("a", 1, metadata={"ram": "3"})])
        made.put(toys.facts(5, aggregates=("a",)))

        made.plan(kinds[0]).best()
        self.assertEqual((3, limit), (len(kept), kept.nbytes))
        made.plan(kinds[1]).best()
        # Two have a column now: the third had to go.
        self.assertEqual(2, len(kept))
        self.assertEqual(sum(each.nbytes for each, _ in kept._kept.values()), kept.nbytes)

    def test_what_a_weigher_left_half_brought_to_the_present_is_shown_to_nobody(self):
        class Stumbling(toys.IoWeigher):
            stumbles = False

            def raw(self, request, frame, rows):
                if self.stumbles:
                    raise MemoryError
                return super().raw(request, frame, rows)

        def scores(of):
            return {each.host: each.score for each in of.plan(toys.request()).best(600)}

        made = make(weighers=(toys.RamWeigher, Stumbling))
        for number in range(600):
            made.put(toys.facts(number, free_ram_mb=1024 + 8 * number))
        for _ in range(3):
            made.plan(toys.request())
        # Both ends of the scale move, in two blocks.
        present = [toys.facts(each, free_ram_mb=2048) for each in (0, 599)]
        for each in present:
            made.put(each)
        with mock.patch.object(Stumbling, "stumbles", True):
            self.assertRaises(MemoryError, made.plan, toys.request())
        fresh = make(weighers=(toys.RamWeigher, Stumbling))
        for number in range(600):
            fresh.put(toys.facts(number, free_ram_mb=1024 + 8 * number))
        for each in present:
            fresh.put(each)
        self.assertEqual(scores(fresh), scores(made))

    def test_a_second_server_of_a_plan_for_one_is_a_mistake(self):
        plan = self.engine.plan(toys.request())
        plan.take(plan.best()[0], "i")
        self.assertRaises(RuntimeError, plan.best)

    def test_an_aggregate_that_changes_is_followed(self):
        zone = host_facts.HostAggregate("a", 1, metadata={"zone": "z"})
        self.engine.set_aggregates([zone])
        self.engine.put(toys.facts(5, free_ram_mb=1064, aggregates=("a",)))
        request = toys.request(availability_zone="z")
        for _ in range(3):
            self.assertEqual(["Host-5"], self.best(request))
        self.engine.set_aggregates([attrs.evolve(zone, metadata={"zone": "y"})])
        self.assertEqual([], self.best(request))

    def test_nan_never_wins_but_is_better_than_nobody(self):
        class Odd(toys.RamWeigher):
            def raw(self, request, frame, rows):
                ram = super().raw(request, frame, rows)
                return np.where(ram < 3000, ram, np.nan)

        odd = make(weighers=(Odd,))
        for number in range(10):
            odd.put(toys.facts(number, free_ram_mb=2996 + number))
        hosts = [each.host for each in odd.plan(toys.request()).best(10)]
        self.assertEqual(["Host-3", "Host-2", "Host-1", "Host-0"], hosts[:4])
        self.assertEqual(10, len(hosts))

    def test_the_first_is_drawn_from_the_subset_and_the_others_keep_their_order(self):
        drawing = make(decision_settings.SchedulingOptions(host_subset_size=5))
        for number in range(600):
            drawing.put(toys.facts(number, free_ram_mb=1024 + 8 * number))
        top = [f"Host-{number}" for number in range(599, 589, -1)]
        firsts = set()
        for _ in range(100):
            hosts = [each.host for each in drawing.plan(toys.request()).best(10)]
            firsts.add(hosts[0])
            self.assertEqual([each for each in top if each != hosts[0]], hosts[1:])
        self.assertEqual(set(top[:5]), firsts)

    def test_a_subset_larger_than_the_cloud_draws_from_all(self):
        drawing = make(decision_settings.SchedulingOptions(host_subset_size=50))
        for number in range(3):
            drawing.put(toys.facts(number))
        firsts = {drawing.plan(toys.request()).best()[0].host for _ in range(60)}
        self.assertEqual({"Host-0", "Host-1", "Host-2"}, firsts)

    def test_the_best_of_equal_weight_are_shuffled(self):
        shuffling = make(decision_settings.SchedulingOptions(shuffle_best_same_weighed_hosts=True))
        for number in range(600):
            shuffling.put(toys.facts(number, free_ram_mb=2048 if number < 3 else 1024))
        firsts = {shuffling.plan(toys.request()).best()[0].host for _ in range(60)}
        self.assertEqual({"Host-0", "Host-1", "Host-2"}, firsts)

    def test_shares_add_up_to_the_score(self):
        plan = self.engine.plan(toys.request(), explain=True)
        for choice in plan.best(3):
            shares = plan.shares(choice)
            self.assertEqual(
                ["RamWeigher", "IoWeigher", "FailuresWeigher"], [each.weigher for each in shares]
            )
            total = 0.0
            for each in shares:
                total += each.multiplier * each.normalised
            self.assertEqual(choice.score, total)

    def test_a_request_that_needs_objects_says_so(self):
        mixed = make(filters=("OwnFilter",), weighers=("OwnWeigher",))
        error = self.assertRaises(RuntimeError, mixed.plan, toys.request())
        self.assertIn("OwnFilter, OwnWeigher", str(error))

    def test_a_host_replaced_while_a_plan_runs_does_no_harm(self):
        plan = self.engine.plan(toys.request(), servers=2)
        (choice,) = plan.best()
        self.engine.frame.remove(choice.uuid)
        self.engine.put(toys.facts(900))
        plan.take(choice, "i")
        self.assertEqual("Host-598", plan.best()[0].host)
        self.assertEqual(4096, self.engine.frame.free_ram_mb[self.engine.frame.row_of("uuid-900")])

    def test_growth_of_the_cloud_is_followed(self):
        for _ in range(3):
            self.best()
        for number in range(600, 2000):
            self.engine.put(toys.facts(number, free_ram_mb=1024 + 8 * number))
        self.assertEqual(["Host-1999"], self.best())

    def test_plans_and_changes_from_many_threads(self):
        failures, stop = [], threading.Event()
        feeders = [
            threading.Thread(target=feed, args=(self.engine, stop, offset)) for offset in (0, 300)
        ]
        askers = [
            threading.Thread(target=ask, args=(self.engine, failures, memory_mb))
            for memory_mb in (128, 256)
        ]
        for thread in (*feeders, *askers):
            thread.start()
        for thread in askers:
            thread.join()
        stop.set()
        for thread in feeders:
            thread.join()
        self.assertEqual([], failures)
        fresh = make()
        for number in range(600):
            fresh.put(self.engine.frame.facts(self.engine.frame.row_of(f"uuid-{number}")))
        self.assertEqual(
            sorted(each.score for each in fresh.plan(toys.request(memory_mb=128)).best(600)),
            sorted(each.score for each in self.engine.plan(toys.request(memory_mb=128)).best(600)),
        )
