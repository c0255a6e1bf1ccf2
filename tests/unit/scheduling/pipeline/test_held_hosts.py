# SPDX-License-Identifier: Apache-2.0
"""Hosts that are held are proposed to those they are held for, and to nobody else."""

import attrs
import testscenarios
import testtools

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import decision_settings
from tests.unit.scheduling import toys
from tests.unit.scheduling.pipeline import test_engine, test_lazy_filters

HOLDS = {"uuid-299": frozenset({"head", "head-2"}), "uuid-298": frozenset({"other"})}


def asked(server, **known):
    return attrs.evolve(toys.request(**known), instance_uuid=server)


class HeldTest(testscenarios.WithScenarios, testtools.TestCase):
    scenarios = [(choice, {"choice": choice}) for choice in ("best", "two", "random")]

    def setUp(self):
        super().setUp()
        settings = decision_settings.SchedulingOptions(choice=self.choice)
        self.engine = test_engine.make(settings)
        for each in test_lazy_filters.rising(300):
            self.engine.put(each)

    def proposed(self, request, **known):
        return {each.uuid for each in self.engine.plan(request, **known).best(400)}

    def test_nobody_else_is_proposed_them(self):
        self.engine.hold(HOLDS)
        for servers in (1, 2):
            found = self.proposed(asked("any"), servers=servers)
            self.assertEqual(298, len(found))
            self.assertEqual(set(), found & HOLDS.keys())

    def test_each_server_of_the_request_may_have_its_own(self):
        self.engine.hold(HOLDS)
        for server in ("head", "head-2"):
            found = self.proposed(asked(server))
            self.assertIn("uuid-299", found)
            self.assertNotIn("uuid-298", found)

    def test_alternates_are_no_held_hosts(self):
        self.engine.hold(HOLDS)
        plan = self.engine.plan(asked("any"))
        (others,) = plan.alternates(plan.best(1), 400)
        self.assertEqual(set(), {each.uuid for each in others} & HOLDS.keys())

    def test_the_others_weigh_as_if_held_hosts_were_not_there(self):
        self.engine.hold(HOLDS)
        found = {each.uuid: each.score for each in self.engine.plan(asked("any")).best(400)}
        smaller = test_engine.make()
        for each in test_lazy_filters.rising(298):
            smaller.put(each)
        plain = {each.uuid: each.score for each in smaller.plan(asked("any")).best(400)}
        self.assertEqual(plain, found)

    def test_what_requests_alike_share_is_left_as_it_was(self):
        before = self.proposed(asked("any")), self.proposed(asked("any"))
        self.engine.hold(HOLDS)
        self.proposed(asked("any"))
        self.engine.hold({})
        self.assertEqual(before[0], self.proposed(asked("any")))

    def test_a_request_that_names_its_host_gets_it(self):
        self.engine.hold(HOLDS)
        self.assertEqual({"uuid-299"}, self.proposed(asked("any", force_hosts=("Host-299",))))
        named = requests.Destination(host="Host-299")
        self.assertEqual({"uuid-299"}, self.proposed(asked("any", destination=named)))

    def test_a_rebuild_stays_where_it_is(self):
        self.engine.hold(HOLDS)
        self.assertIn("uuid-299", self.proposed(asked("any", queries=None, is_rebuild=True)))

    def test_the_steps_say_that_hosts_are_held(self):
        self.engine.hold(HOLDS)
        first = self.engine.plan(asked("any")).counts[0]
        self.assertEqual(("hosts held for others", 300, 298), attrs.astuple(first))

    def test_a_host_that_is_gone_is_held_in_vain(self):
        self.engine.hold({"uuid-299": frozenset({"head"})})
        self.engine.frame.remove("uuid-299")
        self.assertEqual(299, len(self.proposed(asked("any"))))


class LimitedPlanTest(testscenarios.WithScenarios, testtools.TestCase):
    scenarios = [(str(servers), {"servers": servers}) for servers in (1, 2)]

    def setUp(self):
        super().setUp()
        self.engine = test_engine.make()
        for each in test_lazy_filters.rising(300):
            self.engine.put(each)

    def proposed(self, **limits):
        plan = self.engine.plan(toys.request(), servers=self.servers, **limits)
        return [each.uuid for each in plan.best(400)]

    def test_only_the_hosts_that_are_asked_about_are_proposed(self):
        among = ["uuid-7", "uuid-9", "gone"]
        self.assertEqual(["uuid-9", "uuid-7"], self.proposed(among=among))
        self.assertEqual(["uuid-7"], self.proposed(among=among, without=["uuid-9"]))
        self.assertEqual([], self.proposed(among=[]))

    def test_hosts_are_left_out_and_the_others_are_as_ever(self):
        found = self.proposed(without=["uuid-299", "gone"])
        self.assertEqual(299, len(found))
        self.assertEqual("uuid-298", found[0])
        self.assertEqual(300, len(self.proposed()))

    def test_hosts_that_are_held_for_others_are_not_asked_about(self):
        self.engine.hold({"uuid-9": frozenset({"head"})})
        self.assertEqual(["uuid-7"], self.proposed(among=["uuid-7", "uuid-9"]))
