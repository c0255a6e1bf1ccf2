# SPDX-License-Identifier: Apache-2.0
"""Waits and shares are those of the requests that were placed; nothing is said of others."""

import types

import testtools

from nova_nodb_scheduler.simulator.outcome import results, waiting_results
from nova_nodb_scheduler.simulator.run import waiting_measures
from nova_nodb_scheduler.simulator.scenario import made_hosts, queue_scenario, workload
from nova_nodb_scheduler.simulator.schedulers import pipe_messages

FLAVOR = workload.MadeFlavor("f", 4, 4096, 10)


def of_a_run(*stories, **more):
    """Return what is looked at of a finished run."""
    found = waiting_measures.WaitingMeasures({"normal": 50}, 0.0, 1.0)
    for number, (project, parked_at, ended_at) in enumerate(stories):
        arrival = workload.Arrival(number, 0.0, FLAVOR, project_id=project, priority_class="normal")
        story = waiting_measures.Story(arrival, 0.0, parked_at)
        if ended_at is not None:
            story.ending, story.ended_at = "placed", ended_at
        found.stories[number] = story
    projects = queue_scenario.parse_projects(["blue:1:0.5", "red:3:0.5"])
    options = types.SimpleNamespace(queue=queue_scenario.QueueScenario(projects=projects))
    cluster = made_hosts.Cluster(made_hosts.ClusterOptions(hosts=2))
    given = {"departures": types.SimpleNamespace(servers=0), **more}
    return types.SimpleNamespace(waiting=found, options=options, cluster=cluster, **given)


class WaitingResultsTest(testtools.TestCase):
    def test_only_those_that_waited_have_waited(self):
        figures = waiting_results.of(
            of_a_run(("red", None, 1.0), ("red", 0.0, 7.0), ("red", 0.0, None))
        )["waits"]["normal"]

        self.assertEqual(
            (3, 1, 1, 1),
            tuple(
                figures[name]
                for name in (
                    "requests",
                    "placed_at_once",
                    "placed_after_a_wait",
                    "still_waiting",
                )
            ),
        )
        self.assertEqual(7.0, figures["wait_seconds"]["p99"])

    def test_shares_are_of_what_was_placed_until_the_last_request_came(self):
        made = of_a_run(
            ("blue", 0.0, 1.0), ("red", 0.0, 2.0), ("red", 0.0, 3.0), ("red", 0.0, 4.0),
            ("blue", 0.0, 90.0),
        )  # fmt: skip
        made.waiting.stories[0].asked_at = 50.0
        made.waiting.stories[0].ended_at = 50.0
        found = waiting_results.of(made)["projects"]

        self.assertEqual((0.25, 0.75), tuple(each["weight_share"] for each in found.values()))
        self.assertAlmostEqual(0.25, found["blue"]["placed_share"])
        self.assertAlmostEqual(0.75, found["red"]["placed_share"])

    def test_nothing_is_told_of_a_run_in_which_nobody_waits(self):
        self.assertEqual({}, waiting_results.of(types.SimpleNamespace(waiting=None)))

    def test_free_room_counts_while_somebody_waits(self):
        made = of_a_run(("blue", 0.0, 1.0))
        made.waiting.stories[0].asked_at = 3.0
        made.waiting.samples += [(0.0, 0.5, 0), (1.0, 0.9, 1), (2.0, 0.8, 4), (9.0, 0.0, 1)]

        self.assertAlmostEqual(0.15, waiting_results.of(made)["stranded_share"])

    def test_notes_of_all_schedulers_are_put_together(self):
        made = of_a_run(("blue", 0.0, 1.0))
        made.waiting.wakes += [
            pipe_messages.WakeNotes((0.1,), (0.01, 0.02), {"granted": 1}),
            pipe_messages.WakeNotes((0.3,), (), {"granted": 2, "lost": 1}),
        ]
        found = waiting_results.of(made)

        self.assertEqual({"granted": 3, "lost": 1}, found["candidates"])
        self.assertEqual(
            (0.3, 0.02), (found["wake_round_seconds"]["max"], found["fit_seconds"]["max"])
        )

    def test_order_that_was_kept_is_shown_too(self):
        shown = dict(results.ROWS)["requests others went before"]
        self.assertEqual(("0", ""), (shown({"overtaken": 0}), shown({})))
