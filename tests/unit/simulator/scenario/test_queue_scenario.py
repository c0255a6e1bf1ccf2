# SPDX-License-Identifier: Apache-2.0
"""Classes and projects are drawn by their shares, and requests come at the pace asked for."""

import collections

import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.simulator.scenario import queue_scenario, workload, workload_generator


def requests(count=400):
    return workload_generator.generate(workload_generator.GeneratorOptions(requests=count))


class QueueScenarioTest(testtools.TestCase):
    def test_parts_are_read_as_they_are_written(self):
        self.assertEqual(
            (queue_scenario.ClassShare("high", 100, 0.2),),
            queue_scenario.parse_classes(["high:100:0.2"]),
        )
        self.assertEqual(
            (queue_scenario.ProjectShare("blue", 1.5, 1.0),),
            queue_scenario.parse_projects(["blue:1.5:1"]),
        )

    def test_what_is_none_is_refused_with_its_form(self):
        for text in ("high", "high:100", ":1:1", "high:x:1", "high:1:0", "high:1:2", "high:nan:1"):
            error = self.assertRaises(
                errors.ConfigurationError, queue_scenario.parse_classes, [text]
            )
            self.assertIn("NAME:NUMBER:SHARE", str(error))
        self.assertRaises(errors.ConfigurationError, queue_scenario.parse_classes, ["a:1.5:1"])

    def test_parts_that_do_not_fit_together_are_refused_by_the_queues_own_rules(self):
        twice = queue_scenario.parse_classes(["a:1:0.5", "b:1:0.5"])
        asked = queue_scenario.QueueScenario(classes=twice)
        self.assertRaises(errors.ConfigurationError, asked.settings)
        weightless = queue_scenario.QueueScenario(
            projects=queue_scenario.parse_projects(["blue:0:1"])
        )
        self.assertRaises(errors.ConfigurationError, weightless.settings)

    def test_requests_are_drawn_by_the_shares_and_the_same_for_a_seed(self):
        asked = queue_scenario.QueueScenario(
            classes=queue_scenario.parse_classes(["high:100:0.25", "low:0:0.75"]),
            projects=queue_scenario.parse_projects(["blue:1:0.5", "red:3:0.5"]),
        )
        found = queue_scenario.assign(requests(), asked, 1)
        count = collections.Counter(each.priority_class for each in found)
        self.assertTrue(70 <= count["high"] <= 130, count)
        count = collections.Counter(each.project_id for each in found)
        self.assertTrue(160 <= count["blue"] <= 240, count)
        self.assertEqual(found, queue_scenario.assign(requests(), asked, 1))
        self.assertNotEqual(found, queue_scenario.assign(requests(), asked, 2))

    def test_as_many_servers_are_asked_for_in_a_second_as_are_wanted(self):
        found = queue_scenario.paced(requests(), 4.0)
        servers = sum(each.servers for each in found)
        self.assertAlmostEqual(servers / 4.0, found[-1].at_seconds)
        self.assertEqual([each.number for each in requests()], [each.number for each in found])

    def test_requests_that_come_at_once_still_do(self):
        flavor = workload.MadeFlavor("f", 1, 1, 0)
        burst = workload.numbered([workload.Arrival(0, 0.0, flavor)] * 3)
        self.assertEqual(burst, queue_scenario.paced(burst, 4.0))
