# SPDX-License-Identifier: Apache-2.0
"""The command refuses what cannot work by name, before it starts anything."""

import contextlib
import io
import pathlib
import sys
from unittest import mock

import fixtures
import testtools

from nova_nodb_scheduler.cmd import simulate, simulate_arguments
from nova_nodb_scheduler.simulator.scenario import run_clock


class SimulateCommandTest(testtools.TestCase):
    def refused(self, *arguments):
        """Return what is written to standard error by a command that fails."""
        text = io.StringIO()
        with contextlib.redirect_stderr(text):
            self.assertEqual(3, simulate.main(["--quiet", *arguments]))
        return text.getvalue()

    def usage(self, *arguments):
        text = io.StringIO()
        with contextlib.redirect_stderr(text):
            error = self.assertRaises(SystemExit, simulate.main, list(arguments))
        self.assertEqual(2, error.code)
        return text.getvalue()

    def campaign(self, *arguments):
        return simulate.make_campaign(simulate_arguments.parser().parse_args(list(arguments)))

    def test_unknown_names_are_refused_with_the_choices(self):
        self.assertIn("claims, cached, optimistic, random", self.refused("--strategy", "best"))
        self.assertIn("sqlalchemy", self.refused("--synchronizer", "oracle"))
        found = self.refused("--synchronizer", "sqlalchemy", "--option", "url=sqlite://")
        self.assertIn("connection", found)
        self.assertIn("name=value", self.refused("--synchronizer", "sqlalchemy", "--option", "x"))

    def test_a_driver_that_other_processes_do_not_see_is_refused(self):
        self.assertIn("one process only", self.refused("--synchronizer", "memory"))

    def test_options_need_a_driver(self):
        self.assertIn("--synchronizer", self.refused("--option", "connection=sqlite://"))

    def test_several_runs_over_one_back_end_need_word_to_empty_it(self):
        found = self.refused(
            "--synchronizer", "sqlalchemy", "--option", "connection=sqlite:////x", "--strategy=all"
        )
        self.assertIn("--reset", found)

    def test_numbers_out_of_bounds_are_refused(self):
        self.assertIn("not within", self.usage("--hosts", "0"))
        self.assertIn("no number", self.usage("--fill", "much"))
        self.assertIn("not within", self.usage("--fill", "1.5"))

    def test_a_bad_workload_and_a_bad_timeline_are_told_with_line_and_column(self):
        directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        workload = directory / "w.csv"
        workload.write_text("at_seconds,vcpus,memory_mb\n1,2,x\n")
        timeline = directory / "t"
        timeline.write_text("3 rack-lost 7\n")

        self.assertIn("w.csv:2:5: memory_mb", self.refused("--workload", str(workload)))
        self.assertIn("t:1:13: there is no rack 7", self.refused("--timeline", str(timeline)))
        self.assertIn("--fault:3: 'x'", self.refused("--fault", "3 x"))

    def test_the_examples_that_are_shipped_can_be_read(self):
        examples = pathlib.Path(__file__).parents[3] / "etc" / "nova-nodb-scheduler"
        planned = self.campaign(
            "--workload",
            str(examples / "workload.csv"),
            "--timeline",
            str(examples / "timeline.txt"),
            "--schedulers=2",
        )

        self.assertEqual((5, 5), (len(planned.arrivals), len(planned.faults)))

    def test_charts_without_their_library_are_refused_before_the_run(self):
        # Another test may have imported it.
        missing = dict.fromkeys(("matplotlib", "matplotlib.figure"))
        with mock.patch.dict(sys.modules, missing):
            self.assertIn("[charts]", self.refused("--charts", "/nowhere"))

    def test_files_that_cannot_be_written_are_refused_before_the_run(self):
        directory = self.useFixture(fixtures.TempDir()).path
        for option in ("--json", "--choices"):
            for place in (directory, f"{directory}/nowhere/file"):
                # Its own refusal would come later.
                found = self.refused("--synchronizer", "memory", option, place)
                self.assertIn(f"{place}", found)
                self.assertIn("name a file", found)

    def test_one_scheduler_goes_by_a_virtual_clock_and_several_are_saturated(self):
        self.assertIs(run_clock.Pace.VIRTUAL, self.campaign().options.pace)
        self.assertIs(run_clock.Pace.SATURATED, self.campaign("--schedulers", "2").options.pace)

    def test_hosts_beat_at_novas_interval_and_many_to_a_journal(self):
        few, many = self.campaign().options, self.campaign("--hosts", "20000").options

        for each in (few, many):
            self.assertEqual((10.0, 60.0), (each.heartbeat_seconds, each.service_down_seconds))
        self.assertEqual((False, True), (few.heartbeat_journals, many.heartbeat_journals))
        # From 500 in a second on.
        for hosts, is_journaled in (("4999", False), ("5000", True)):
            planned = self.campaign("--hosts", hosts).options
            self.assertEqual(is_journaled, planned.heartbeat_journals)
        self.assertTrue(self.campaign("--heartbeat-journals").options.heartbeat_journals)
        told = self.campaign("--hosts", "20000", "--no-heartbeat-journals").options
        self.assertFalse(told.heartbeat_journals)

    def test_all_reports_of_very_many_hosts_are_published(self):
        few, many = self.campaign().options, self.campaign("--hosts", "100000").options
        self.assertEqual(2000.0, few.updates_per_second)
        self.assertAlmostEqual(2 * 100_000 / 60, many.updates_per_second)
        recorded = self.campaign("--hosts", "100000", "--no-heartbeat-journals").options
        self.assertAlmostEqual(2 * (100_000 / 60 + 100_000 / 10), recorded.updates_per_second)
        told = self.campaign("--hosts", "100000", "--updates-per-second", "7").options
        self.assertEqual(7.0, told.updates_per_second)

    def test_servers_from_before_stand_on_hosts_that_are_not_full_otherwise(self):
        planned = self.campaign("--servers-per-host", "20", "--arrivals", "1", "--wait", "9")
        self.assertEqual(
            (20, 0.0, 1.0),
            (
                planned.options.servers_per_host,
                planned.options.cluster.fill,
                planned.options.departures_per_second,
            ),
        )

    def test_hosts_with_servers_from_before_are_not_packed(self):
        self.assertIn("--servers-per-host 3", self.refused("--packing", "--servers-per-host", "3"))

    def test_all_strategies_are_named_by_one_word(self):
        chosen = self.campaign("--strategy", "random,all").chosen
        self.assertEqual(
            ["claims", "cached", "optimistic", "random"], [each.name for each in chosen]
        )

    def test_who_waits_does_so_in_the_queue_and_by_the_clock(self):
        chosen = self.campaign("--wait", "30")
        self.assertEqual(["queue"], [each.name for each in chosen.chosen])
        self.assertEqual(30.0, chosen.options.queue.wait_seconds)
        several = self.campaign("--wait", "30", "--schedulers", "2").options
        self.assertIs(run_clock.Pace.REAL, several.pace)
        self.assertIn("--strategy queue", self.refused("--wait", "30", "--strategy", "claims"))
        self.assertIn("virtual", self.refused("--wait", "30", "--pace", "saturated"))

    def test_arrivals_are_a_multiple_of_what_full_hosts_free(self):
        planned = self.campaign("--wait=9", "--arrivals=2", "--departures-per-second=3")
        servers = sum(each.servers for each in planned.arrivals)
        self.assertEqual(
            (1.0, 3.0), (planned.options.cluster.fill, planned.options.departures_per_second)
        )
        self.assertAlmostEqual(servers / 6.0, planned.arrivals[-1].at_seconds)
        self.assertEqual({None}, {each.lifetime_seconds for each in planned.arrivals})
        self.assertEqual(0.0, self.campaign().options.cluster.fill)

    def test_each_choice_is_a_run(self):
        chosen = self.campaign("--choice", "best,two", "--choice", "random").chosen
        self.assertEqual(
            ["claims, best", "claims, two", "claims, random"], [c.name for c in chosen]
        )
        self.assertEqual(["best", "two", "random"], [each.choice for each in chosen])
        self.assertIn("best, two, random", self.refused("--choice", "worst"))

    def test_classes_and_projects_that_cannot_be_are_refused(self):
        self.assertIn("NAME:NUMBER:SHARE", self.refused("--class", "high"))
        self.assertIn("NAME:WEIGHT:SHARE", self.refused("--project", "blue:1"))
        self.assertIn("project_weights", self.refused("--project", "blue:0:1"))
