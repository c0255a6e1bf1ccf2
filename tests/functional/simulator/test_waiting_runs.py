# SPDX-License-Identifier: Apache-2.0
"""Whole runs in which requests wait, with schedulers in processes of their own over SQLite."""

import pathlib

import fixtures
import testtools

from nova_nodb_scheduler.simulator.outcome import results
from nova_nodb_scheduler.simulator.run import world
from nova_nodb_scheduler.simulator.scenario import (
    backend_choice,
    made_hosts,
    queue_scenario,
    run_clock,
    run_options,
    timeline,
    workload,
)
from tests import forking

_PROCESSES = forking.context(
    "nova_nodb_scheduler.simulator.schedulers.scheduler_process",
    "nova_nodb_scheduler.synchronizer.drivers.sqlalchemy.migration",
)
SMALL = workload.MadeFlavor("small", 1, 1024, 5)


class WaitingRunsTest(testtools.TestCase):
    def run_world(self, arrivals, *faults, schedulers=1, departures=4.0, **scenario):
        """Carry a run on full hosts out; return its world and its figures."""
        directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        asked = queue_scenario.QueueScenario(
            classes=queue_scenario.parse_classes(["high:100:0.3", "low:0:0.7"]), **scenario
        )
        made = world.World(
            run_options.RunOptions(
                cluster=made_hosts.ClusterOptions(hosts=4, fill=1.0),
                strategy=run_options.QUEUE,
                backend=backend_choice.in_directory(directory),
                schedulers=schedulers,
                pace=run_clock.Pace.VIRTUAL if schedulers == 1 else run_clock.Pace.REAL,
                queue=asked,
                departures_per_second=departures,
                build_seconds=1.0,
            ),
            queue_scenario.assign(arrivals, asked, 1),
            timeline.parse(
                [("line", fault) for fault in faults], timeline.FaultBounds(99, schedulers)
            ),
            processes=_PROCESSES,
        )
        made.run()
        return made, results.of(made).figures

    def servers(self, count, every_seconds=0.1, **more):
        return workload.numbered(
            [workload.Arrival(0, n * every_seconds, SMALL, **more) for n in range(count)]
        )

    def test_whoever_finds_no_room_is_placed_in_order_when_there_is_some(self):
        made, figures = self.run_world(self.servers(16))

        self.assertEqual({"placed"}, {each.ending for each in made.waiting.stories.values()})
        self.assertGreater(
            sum(each["placed_after_a_wait"] for each in figures["waits"].values()), 5
        )
        self.assertEqual((0, 0), (figures["overtaken"], figures["overcommitted_servers"]))
        self.assertEqual((16, 0), (figures["servers_placed"], figures["leaked_claims"]))
        self.assertGreater(figures["fit_seconds"]["max"], 0)

    def test_a_gang_waits_as_one_and_is_placed_whole(self):
        made, figures = self.run_world(self.servers(3, servers=4))

        self.assertEqual(12, figures["servers_placed"])
        self.assertEqual({"placed"}, {each.ending for each in made.waiting.stories.values()})

    def test_without_room_a_request_ends_at_its_deadline(self):
        made, figures = self.run_world(self.servers(3), departures=0.0, wait_seconds=5.0)

        stories = made.waiting.stories.values()
        self.assertEqual({"expired"}, {each.ending for each in stories})
        self.assertTrue(all(4.99 < each.waited_seconds < 10.0 for each in stories))
        self.assertEqual(0, figures["servers_placed"])

    def test_a_full_queue_refuses_at_once(self):
        made, _ = self.run_world(self.servers(4), departures=0.0, wait_seconds=5.0, most_pending=2)

        endings = sorted(each.ending for each in made.waiting.stories.values())
        self.assertEqual(["expired", "expired", "refused", "refused"], endings)

    def test_no_request_is_lost_or_placed_twice_though_a_scheduler_is_killed(self):
        made, figures = self.run_world(
            self.servers(12, every_seconds=0.5), "2 scheduler-killed 0", schedulers=2
        )

        self.assertEqual({"placed"}, {each.ending for each in made.waiting.stories.values()})
        self.assertEqual((12, 0), (figures["servers_placed"], figures["overcommitted_servers"]))
