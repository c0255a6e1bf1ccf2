# SPDX-License-Identifier: Apache-2.0
"""Whole runs, with schedulers in processes of their own over an SQLite file.

They are forked from one that has imported them; the command starts its own from nothing.
Each invariant is held against a strategy that breaks it, too: or the test
could not fail.
"""

import pathlib

import fixtures
import testtools

from nova_nodb_scheduler.simulator.outcome import results
from nova_nodb_scheduler.simulator.run import world
from nova_nodb_scheduler.simulator.scenario import (
    backend_choice,
    made_hosts,
    run_clock,
    run_options,
    timeline,
    workload,
    workload_generator,
)
from tests import forking

VIRTUAL, REAL, SATURATED = run_clock.Pace
_PROCESSES = forking.context(
    "nova_nodb_scheduler.simulator.schedulers.scheduler_process",
    "nova_nodb_scheduler.synchronizer.drivers.sqlalchemy.migration",
)


class RunsTest(testtools.TestCase):
    def run_world(self, strategy, arrivals, *faults, hosts=8, rack_hosts=4, fill=0.0, **options):
        """Carry a run out; return its world and its figures."""
        directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        schedulers = options.pop("schedulers", 1)
        options.setdefault("pace", VIRTUAL if schedulers == 1 else SATURATED)
        made = world.World(
            run_options.RunOptions(
                cluster=made_hosts.ClusterOptions(hosts=hosts, rack_hosts=rack_hosts, fill=fill),
                strategy=strategy,
                backend=backend_choice.in_directory(directory),
                schedulers=schedulers,
                **options,
            ),
            arrivals,
            timeline.parse(
                [("line", fault) for fault in faults], timeline.FaultBounds(99, schedulers)
            ),
            processes=_PROCESSES,
        )
        made.run()
        return made, results.of(made).figures

    def servers(self, count, every_seconds=0.0, fill_a_host=100, **more):
        """Return requests for one server each; so many of them fill a host of the first kind."""
        capacity = made_hosts.Cluster(made_hosts.ClusterOptions(hosts=1)).hosts[0].capacity
        flavor = workload.MadeFlavor("f", capacity[made_hosts.VCPU] // fill_a_host, 1024, 10)
        return workload.numbered(
            [workload.Arrival(0, n * every_seconds, flavor, **more) for n in range(count)]
        )

    # -- reproducible -------------------------------------------------------------------

    def test_the_same_seed_chooses_the_same_hosts_and_another_one_does_not(self):
        def choices(seed):
            arrivals = workload_generator.generate(
                workload_generator.GeneratorOptions(requests=25, seed=seed)
            )
            made, figures = self.run_world(
                run_options.CLAIMS, arrivals, hosts=20, fill=0.5, seed=seed
            )
            self.assertEqual(25, figures["decisions"])
            return [host for _, host in made.measures.sequence]

        first = choices(1)
        self.assertGreater(len(set(first)), 1)
        self.assertEqual(first, choices(1))
        self.assertNotEqual(first, choices(2))

    # -- over-commit -------------------------------------------------------------------

    def tight(self, strategy, *, authority_seconds=0.02, **options):
        """Ask three schedulers at once for 28 servers where there is room for 20."""
        return self.run_world(
            strategy,
            self.servers(28, fill_a_host=5),
            hosts=4,
            schedulers=3,
            authority_seconds=authority_seconds,
            **options,
        )

    def test_claims_grant_all_the_room_there_is_and_nothing_beyond(self):
        _, figures = self.tight(run_options.CLAIMS)

        self.assertEqual(0, figures["overcommitted_servers"])
        self.assertEqual(0, figures["writes_beyond_capacity"])
        self.assertEqual(20, figures["servers_placed"])
        self.assertEqual(8, figures["outcomes"]["no valid host"])
        self.assertEqual(0, figures["leaked_claims"])
        # What the room is granted by takes time, and is followed by all schedulers.
        self.assertGreater(figures["claim_seconds"]["p50"], 0)
        self.assertGreater(figures["batches_followed"], 0)
        self.assertGreater(figures["feed_lag_seconds"]["max"], 0)

    def test_a_stale_cache_grants_what_is_not_there(self):
        _, figures = self.tight(run_options.CACHED, authority_seconds=0.1)

        self.assertGreater(figures["overcommitted_servers"], 0)
        self.assertGreater(figures["stale_seconds"]["max"], 0.2)

    def test_choice_at_random_without_a_check_does_so_too_and_optimists_are_refused(self):
        _, figures = self.tight(run_options.OPTIMISTIC)
        self.assertEqual(0, figures["overcommitted_servers"])
        self.assertGreater(figures["refusals_at_hosts"], 0)

        _, figures = self.tight(run_options.RANDOM)
        self.assertGreater(figures["overcommitted_servers"], 0)

    # -- hosts that fall silent ----------------------------------------------------------

    def best_rack(self):
        hosts = made_hosts.Cluster(made_hosts.ClusterOptions(hosts=8, rack_hosts=2)).hosts
        return max(hosts, key=lambda host: host.kind.memory_mb).rack

    def lose_a_rack(self, strategy, **options):
        """Lose the rack that is chosen first, for it has most memory."""
        return self.run_world(
            strategy,
            self.servers(40, every_seconds=1.0, lifetime_seconds=15.0),
            f"5 rack-lost {self.best_rack()} for 25",
            hosts=8,
            rack_hosts=2,
            heartbeat_seconds=2.0,
            service_down_seconds=6.0,
            build_seconds=1.0,
            updates_per_second=50.0,
            **options,
        )

    def test_no_host_is_chosen_once_it_was_silent_for_too_long(self):
        for journals in (False, True):
            made, figures = self.lose_a_rack(run_options.CLAIMS, heartbeat_journals=journals)
            self.check_rack(made, figures)
            self.assertEqual(journals, figures["journaled_heartbeats"] > 100)

    def check_rack(self, made, figures):
        self.assertEqual(40, figures["servers_placed"])
        self.assertEqual(0, figures["late_choices_of_lost_hosts"])
        lost = {host.uuid for host in made.cluster.rack(self.best_rack())}
        chosen = [
            decision[1]
            for (_, host), decision in zip(
                made.measures.sequence, made.measures.decisions, strict=True
            )
            if host in lost
        ]
        # Chosen while it lives, and again once it is back; not in between.
        self.assertTrue([at for at in chosen if at < 5])
        self.assertTrue([at for at in chosen if at > 30])
        self.assertEqual([], [at for at in chosen if 11 < at < 30])
        self.assertLessEqual(figures["most_updates_waiting"], 20)

    def test_a_cache_sends_servers_to_hosts_that_are_long_gone(self):
        _, figures = self.lose_a_rack(run_options.CACHED)

        self.assertGreater(figures["late_choices_of_lost_hosts"], 0)

    def test_a_lost_reporter_is_not_taken_for_lost_hosts(self):
        _, figures = self.run_world(
            run_options.CLAIMS,
            self.servers(30, every_seconds=1.0, lifetime_seconds=5.0),
            "5 reporter-lost for 20",
            heartbeat_seconds=2.0,
            service_down_seconds=6.0,
            beat_seconds=1.0,
            build_seconds=1.0,
        )

        self.assertEqual({"placed": 30}, figures["outcomes"])
        self.assertGreater(figures["unproved_decisions"], 10)
        self.assertLess(figures["unproved_decisions"], 25)

    def test_servers_from_before_count_and_depart_and_their_hosts_beat_by_pages(self):
        """By the clock, with a scheduler killed: it reads the journal's pages anew."""
        made, figures = self.run_world(
            run_options.CLAIMS,
            self.servers(40, every_seconds=0.2, fill_a_host=10),
            "3 scheduler-killed 0",
            hosts=6,
            schedulers=2,
            pace=REAL,
            servers_per_host=8,
            departures_per_second=2.0,
            heartbeat_journals=True,
            heartbeat_seconds=1.0,
            service_down_seconds=3.0,
            build_seconds=0.5,
        )
        self.assertEqual(40, figures["standing_servers"])
        departed, placed = made.departures.servers, figures["servers_placed"]
        self.assertGreater(departed, 3)
        self.assertEqual(40 - departed + placed, len(made.ledger.standing))
        self.assertGreater(figures["journaled_heartbeats"], 30)
        self.assertEqual(0, figures["overcommitted_servers"])
        # Nobody took a host for dead, whose record tells of no heartbeat but the first.
        self.assertEqual(40, figures["decisions"] + figures["lost_requests"])
        self.assertLessEqual(figures["lost_requests"], 1)
        # Eight or fewer fit beside them on a host of most kinds, and room is freed all the time.
        self.assertGreaterEqual(placed, 12)
        self.assertGreater(figures["simulated_seconds"], 7.0)

    # -- schedulers and the back end -------------------------------------------------------

    def test_a_killed_scheduler_comes_back_and_leaves_nothing(self):
        _, figures = self.run_world(
            run_options.CLAIMS,
            self.servers(30, lifetime_seconds=8.0),
            "1 scheduler-killed 0",
            "1.5 scheduler-killed 1",
            schedulers=2,
            authority_seconds=0.2,
            claim_lease_seconds=2.0,
            build_seconds=0.5,
        )

        self.assertEqual(2, figures["restarts"])
        self.assertEqual(30, figures["decisions"] + figures["lost_requests"])
        self.assertEqual(0, figures["overcommitted_servers"])
        self.assertEqual(0, figures["leaked_claims"])

    def test_a_scheduler_that_slept_beyond_its_lease_over_commits_nothing(self):
        _, figures = self.run_world(
            run_options.CLAIMS,
            self.servers(28, fill_a_host=5),
            "0.5 scheduler-paused 0 for 4",
            hosts=4,
            schedulers=2,
            authority_seconds=0.3,
            claim_lease_seconds=1.0,
        )

        self.assertEqual(0, figures["overcommitted_servers"])
        self.assertEqual(20, figures["servers_placed"])
        self.assertEqual(0, figures["leaked_claims"])

    def test_requests_wait_while_the_back_end_is_cut_off(self):
        _, figures = self.run_world(
            run_options.CLAIMS,
            self.servers(30, every_seconds=0.1, lifetime_seconds=3.0),
            "1 backend-killed for 2",
            pace=REAL,
            build_seconds=0.5,
            schedulers=2,
            deadline_seconds=1.0,
        )

        self.assertEqual(30, figures["outcomes"]["placed"])
        self.assertGreater(figures["unclaimable_tries"], 0)
        self.assertGreater(figures["longest_gap_seconds"], 1.0)
        self.assertEqual(0, figures["overcommitted_servers"])

    def meanwhile(self, fault, **options):
        """Ask for 50 servers within 5 s where 40 fit; from 1 s to 3 s something is wrong."""
        return self.run_world(
            run_options.CLAIMS,
            self.servers(50, every_seconds=0.1, fill_a_host=10),
            fault,
            pace=REAL,
            hosts=4,
            schedulers=2,
            build_seconds=0.5,
            claim_lease_seconds=2.0,
            **options,
        )

    def assert_whole(self, made, figures):
        """See that nothing is over-committed or left behind, and that claims went on."""
        self.assertEqual((0, 0), (figures["overcommitted_servers"], figures["leaked_claims"]))
        self.assertEqual(0, figures["writes_beyond_capacity"])
        self.assertLessEqual(figures["servers_placed"], 40)
        self.assertEqual(50, figures["decisions"] + figures["lost_requests"])
        self.assertLessEqual(figures["outcomes"].keys(), {"placed", "no valid host"})
        # At most 30 were asked for by then, so that there is room.
        after = [outcome for _, at, _, outcome in made.measures.decisions if at > 3.0]
        self.assertIn("placed", after)

    def test_a_back_end_that_swallows_requests_delays_claims_and_breaks_none(self):
        made, figures = self.meanwhile("1 backend-cut for 2", deadline_seconds=1.0)

        self.assertGreater(figures["unclaimable_tries"], 0)
        self.assert_whole(made, figures)

    def test_a_slow_back_end_is_waited_for(self):
        made, figures = self.meanwhile("1 backend-slow 0.3 for 2")

        self.assertGreaterEqual(figures["take_seconds"]["max"], 0.3)
        self.assertEqual(0, figures["lost_requests"])
        self.assert_whole(made, figures)

    def test_schedulers_that_are_killed_one_after_the_other_leave_nothing(self):
        made, figures = self.meanwhile("1 schedulers-killed-every 0.5 for 2", authority_seconds=0.3)

        self.assertGreater(sum(each.kills for each in made.schedulers), 0)
        self.assert_whole(made, figures)

    def test_step_by_step_schedulers_are_killed_as_often_as_was_asked(self):
        made, figures = self.run_world(
            run_options.CLAIMS,
            self.servers(16, every_seconds=0.25, lifetime_seconds=1.0),
            "1 schedulers-killed-every 1 for 2.5",
            build_seconds=0.2,
        )

        self.assertEqual({"placed": 16}, figures["outcomes"])
        self.assertEqual((3, 3), (made.schedulers[0].kills, figures["restarts"]))
        self.assertEqual((0, 0), (figures["overcommitted_servers"], figures["leaked_claims"]))

    def test_step_by_step_a_scheduler_may_fail_as_well(self):
        _, figures = self.run_world(
            run_options.CLAIMS,
            self.servers(20, every_seconds=0.25, lifetime_seconds=1.0),
            "1 scheduler-paused 0 for 1",
            "2.6 backend-killed for 1",
            "4 scheduler-killed 0 for 0.5",
            build_seconds=0.2,
        )

        self.assertEqual({"placed": 20}, figures["outcomes"])
        self.assertGreater(figures["unclaimable_tries"], 0)
        self.assertEqual((1, 0), (figures["restarts"], figures["leaked_claims"]))
