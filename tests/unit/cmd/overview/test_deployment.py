# SPDX-License-Identifier: Apache-2.0
"""What status gathers from back end and schedulers, and what it calls a problem."""

import datetime as dt
import io

import rich.console
import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd.commands import status_command
from nova_nodb_scheduler.cmd.framework import command
from nova_nodb_scheduler.cmd.overview import cell_names, deployment, process_reports
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.wire import codec
from tests.unit.cmd import samples


class Unanswered(Exception):
    """As a messaging library's time-out."""


class GatherTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.cloud = self.useFixture(samples.BackendFixture())
        self.answers = {}
        self.asked = []

    def ask(self, host):
        """As the RPC client: the workers of a host answer in turns."""
        self.asked.append(host)
        waiting = self.answers.get(host)
        if not waiting:
            raise Unanswered(f"nobody on {host}")
        waiting.append(waiting.pop(0))
        return waiting[-1]

    def gather(self):
        return deployment.gather(
            process_reports.read_backend(self.cloud.client()), self.ask, (Unanswered,), 15.0, 300.0
        )

    def run_scheduler(self, host, pid, age_seconds=0.0, answers=True, claiming=None, **status):
        self.cloud.scheduler(host, pid, age_seconds, claiming=claiming)
        if answers:
            self.answers.setdefault(host, []).append(samples.status(host, pid, **status))

    def healthy(self):
        self.cloud.cell("cell1")
        self.cloud.reporter("conductor", "cond1", "cell1")
        self.run_scheduler("sched1", 11)

    def test_where_heartbeats_stand_is_told_of_each_cell(self):
        self.healthy()
        self.cloud.write("heartbeat_modes", "cell1", {"mode": "both", "since": 1.0})
        found = self.gather()
        [cell] = [each for each in found.cells if each["cell"] == "cell1"]
        self.assertEqual("both", cell["heartbeats"])
        self.assertEqual(1, sum("reads no heartbeats" in text for text in found.problems))
        self.cloud.reporter("conductor", "cond1", "cell1", service_heartbeats="both")
        self.assertEqual((), self.gather().problems)

    def test_who_is_configured_for_another_mode_of_compute_nodes_is_named(self):
        self.healthy()
        self.assertIsNone(self.gather().compute_nodes)
        self.cloud.write(
            "node_cells", "cell1", {"mode": "retired", "next_id": 3}, known_namespaces.NOVA
        )
        found = self.gather()
        self.assertEqual(2, sum("cell cell1 is in mode retired" in p for p in found.problems))
        self.cloud.reporter("conductor", "cond1", "cell1", compute_nodes="retired")
        self.cloud.scheduler("sched1", 11, compute_nodes="retired")
        found = self.gather()
        self.assertEqual((), found.problems)
        self.assertIn("retired of 1 cell by the back end, retired of 2", found.compute_nodes)
        self.assertEqual("retired", found.cells[0]["compute_nodes"])
        # Cells that nobody brought, but for those without compute nodes.
        for cell in ("cell2", "api", "00000000-0000-0000-0000-000000000000"):
            self.cloud.cell(cell)
        [problem] = self.gather().problems
        self.assertIn("scheduler on sched1", problem)
        self.assertIn("cell cell2 is in mode mirror", problem)

    def test_statements_on_a_table_that_does_not_count_are_told(self):
        self.healthy()
        self.cloud.write("node_cells", "cell1", {"mode": "store"}, known_namespaces.NOVA)
        self.cloud.scheduler("sched1", 11, compute_nodes="store")
        self.cloud.reporter(
            "conductor",
            "cond1",
            "cell1",
            compute_nodes="store",
            compute_node_statements={"select": 2, "update": 1},
        )
        found = self.gather()
        [problem] = found.problems
        self.assertIn("select: 2, update: 1", problem)
        self.assertIn("all the same: 3", found.compute_nodes)

    def test_a_healthy_deployment_has_no_problems(self):
        self.healthy()

        found = self.gather()

        self.assertEqual((), found.problems)
        self.assertTrue(found.as_dict()["healthy"])

    def test_a_scheduler_that_wakes_nobody_who_waits_is_named(self):
        self.healthy()
        for queue, keeps, expected in (
            (True, True, 0),
            (False, False, 0),
            (False, None, 0),
            (False, True, 1),
        ):
            self.cloud.scheduler("sched1", 11, queue=queue, keeps_queue=keeps)
            problems = [each for each in self.gather().problems if "wakes no request" in each]
            self.assertEqual(expected, len(problems), (queue, keeps))

    def test_a_scheduler_tells_what_tools_read(self):
        self.healthy()

        [scheduler] = self.gather().as_dict()["schedulers"]

        self.assertEqual(("sched1", 11, 6), tuple(scheduler[n] for n in ("host", "pid", "hosts")))
        self.assertEqual({"feed not proved": 2}, scheduler["fallbacks"])
        self.assertEqual(0.25, scheduler["schedule_seconds_p50"])
        self.assertEqual(0.5, scheduler["schedule_seconds_p99"])
        self.assertEqual(0.01, scheduler["feed_lag_seconds"])
        self.assertTrue(scheduler["answered"])

    def test_a_scheduler_that_does_not_answer_is_listed_from_its_beat(self):
        self.healthy()
        self.run_scheduler("sched2", 22, answers=False)

        found = self.gather()

        listed = {each["host"]: each for each in found.schedulers}
        self.assertFalse(listed["sched2"]["answered"])
        self.assertEqual(5, listed["sched2"]["hosts"])
        self.assertEqual({"cold": 1}, listed["sched2"]["fallbacks"])
        self.assertIn("nobody on sched2", found.problems[0])
        self.assertTrue(listed["sched1"]["answered"])

    def test_a_silent_scheduler_is_not_asked_and_is_a_problem(self):
        self.healthy()
        self.run_scheduler("sched2", 22, age_seconds=100.0)

        found = self.gather()

        self.assertEqual({"sched1"}, set(self.asked))
        self.assertEqual(1, len(found.problems))
        self.assertRegex(found.problems[0], r"sched2 \(process 22\) is silent for 1\d\d s")

    def test_a_process_that_was_replaced_on_its_host_is_forgotten(self):
        self.healthy()
        self.run_scheduler("sched1", 9, age_seconds=100.0, answers=False)

        found = self.gather()

        self.assertEqual([11], [each["pid"] for each in found.schedulers])
        self.assertEqual((), found.problems)

    def started(self, seconds_ago, ahead_seconds=0.0):
        """What a beat tells of its process's start, whose clock is ahead of the back end's."""
        client = self.cloud.client()
        client.open()
        self.addCleanup(client.close)
        at = client.now_seconds() - seconds_ago + ahead_seconds
        text = dt.datetime.fromtimestamp(at, dt.UTC).isoformat(timespec="seconds")
        return {"started_at": text, "clock_offset_seconds": ahead_seconds}

    def test_a_frozen_worker_beside_others_of_its_host_is_a_problem(self):
        self.healthy()
        for pid in (21, 22):
            self.cloud.scheduler("sched2", pid, **self.started(500.0))
            self.answers.setdefault("sched2", []).append(samples.status("sched2", pid))
        self.cloud.scheduler("sched2", 23, 100.0, **self.started(500.0, ahead_seconds=7200.0))

        found = self.gather()

        self.assertEqual(1, len(found.problems), found.problems)
        self.assertRegex(found.problems[0], r"sched2 \(process 23\) is silent for 1\d\d s")

    def test_each_worker_takes_the_place_of_one_that_ended_before_it_began(self):
        self.healthy()
        for pid, age_seconds, began in (
            *((31, 900.0, 2000.0), (32, 600.0, 2000.0)),
            # In the place of 32, and 34 in its.
            *((33, 300.0, 598.0), (34, 0.0, 299.0)),
        ):
            self.cloud.scheduler("sched2", pid, age_seconds, **self.started(began))
        self.answers["sched2"] = [samples.status("sched2", 34)]

        found = self.gather()

        self.assertEqual([11, 31, 34], [each["pid"] for each in found.schedulers])
        self.cloud.scheduler("sched2", 35, **self.started(10.0))
        self.answers["sched2"].append(samples.status("sched2", 35))
        self.assertEqual((), self.gather().problems)

    def looked_at(self):
        """As the doctor and a watched status do: nobody is asked."""
        return deployment.gather(
            process_reports.read_backend(self.cloud.client()), None, (), 15.0, 300.0
        )

    def test_where_nobody_is_asked_beats_tell_which_cells_are_not_proved(self):
        self.healthy()
        self.assertIsNone(self.looked_at().cells[0]["proved"])
        self.cloud.scheduler("sched1", 11, unproved={})
        self.assertIs(True, self.looked_at().cells[0]["proved"])
        self.cloud.scheduler("sched2", 22, unproved={"cell1": "reporter behind"})
        self.cloud.scheduler("sched3", 33, 100.0, unproved={"cell1": "feed not proved"})

        found = self.looked_at()

        self.assertIs(False, found.cells[0]["proved"])
        self.assertEqual({"sched2:22:1": "reporter behind"}, found.cells[0]["reasons"])
        self.assertIn("Cell cell1 is not proved for sched2:22:1: reporter behind.", found.problems)

    def test_what_a_worker_answers_counts_more_than_its_beat(self):
        self.healthy()
        self.cloud.scheduler("sched1", 11, unproved={"cell1": "reporter behind"})
        self.assertEqual((), self.gather().problems)

    def claimed(self, **figures):
        self.cloud.cell("cell1")
        self.cloud.mirror()
        settling = {"pending": 1.0, "settles": 1.0, "oldest_pending_seconds": 1.0, **figures}
        self.run_scheduler("sched1", 11, claiming=True)
        self.cloud.scheduler("sched1", 11, claiming=True, settling=settling)
        return deployment.gather(
            process_reports.read_backend(self.cloud.client()),
            self.ask,
            (Unanswered,),
            15.0,
            300.0,
            claim_lease_seconds=30.0,
        )

    def test_claims_that_nobody_settles_are_a_problem(self):
        self.assertEqual((), self.claimed().problems)
        [problem] = self.claimed(oldest_pending_seconds=100.0).problems
        self.assertIn("100 s", problem)
        [problem] = self.claimed(settles=0.0).problems
        self.assertIn("settles claims", problem)

    def test_each_worker_of_a_host_is_asked(self):
        self.healthy()
        self.run_scheduler("sched1", 12)
        self.run_scheduler("sched1", 13)

        found = self.gather()

        self.assertEqual([True] * 3, [each["answered"] for each in found.schedulers])

    def test_a_worker_that_never_gets_the_question_is_said_so(self):
        self.healthy()
        self.run_scheduler("sched1", 12, answers=False)

        found = self.gather()

        self.assertEqual(3 * 1 + 1, len(self.asked))
        self.assertIn("another worker", found.problems[0])

    def test_a_feed_that_does_not_follow_is_a_problem(self):
        self.cloud.cell("cell1")
        self.run_scheduler("sched1", 11, state="dead")

        self.assertIn("its feed is dead", self.gather().problems[0])

    def test_a_worker_that_takes_no_request_yet_is_shown_with_its_per_cent(self):
        self.cloud.cell("cell1")
        self.run_scheduler("sched1", 11, state="starting, 43%")

        found = self.gather()

        self.assertEqual("starting, 43%", found.schedulers[0]["state"])
        self.assertIn("takes no request yet: starting, 43%", found.problems[0])

    def test_a_cell_without_proof_is_a_problem_with_its_reason(self):
        self.cloud.cell("cell1")
        self.run_scheduler("sched1", 11, missing={"cell1": "reporter silent"})

        found = self.gather()

        [cell] = found.cells
        self.assertFalse(cell["proved"])
        self.assertEqual(
            ("Cell cell1 is not proved for sched1:11:1: reporter silent.",), found.problems
        )

    def test_schedulers_that_claim_beside_others_that_do_not_are_a_problem_by_name(self):
        self.healthy()
        self.cloud.mirror(age_seconds=40)
        self.run_scheduler("sched1", 12, claiming=True)
        self.run_scheduler("sched2", 21, claiming=True)
        self.assertEqual((), self.gather().problems)

        self.run_scheduler("sched2", 22, claiming=False)

        [problem] = self.gather().problems
        self.assertIn("sched1 (process 12), sched2 (process 21) claim hosts", problem)
        self.assertIn("and sched2 (process 22) do not", problem)
        self.assertIn("[nodb_scheduler] claims", problem)

    def test_a_conductor_that_does_not_claim_as_schedulers_do_is_a_problem_by_name(self):
        self.healthy()
        self.cloud.mirror(age_seconds=40)
        self.run_scheduler("sched1", 12, claiming=True)
        self.cloud.reporter("conductor", "cond1", "cell1", claiming=True)
        self.cloud.reporter("api", "api1", "*", guards=[], claiming=None)
        self.assertEqual((), self.gather().problems)

        self.cloud.reporter("conductor", "cond1", "cell1", claiming=False)

        [problem] = self.gather().problems
        self.assertIn("sched1 (process 12) claim hosts and cond1 (process 5) do not", problem)

    def test_schedulers_none_of_which_claims_agree(self):
        self.healthy()
        self.run_scheduler("sched1", 12, claiming=False)
        self.run_scheduler("sched2", 21, claiming=False)

        self.assertEqual((), self.gather().problems)

    def test_schedulers_that_cannot_judge_their_claims_are_a_problem(self):
        self.healthy()
        self.run_scheduler("sched1", 12, claiming=True)

        [never] = self.gather().problems
        self.cloud.mirror(age_seconds=400)
        [late] = self.gather().problems
        self.cloud.mirror(age_seconds=40)

        self.assertIn("since the back end is in use", never)
        self.assertRegex(late, r"not compared for 4\d\d s: .* claim no hosts")
        self.assertEqual((), self.gather().problems)

    def test_what_a_silent_scheduler_claimed_is_not_compared(self):
        self.healthy()
        self.cloud.mirror(age_seconds=40)
        self.run_scheduler("sched2", 21, claiming=True)
        self.run_scheduler("sched3", 31, claiming=False, age_seconds=100.0)

        [problem] = self.gather().problems
        self.assertIn("sched3 (process 31) is silent", problem)

    def test_unreadable_records_are_problems(self):
        self.healthy()
        self.answers["sched1"] = [samples.status("sched1", 11, quarantined={"instances": 2})]
        self.cloud.write_raw(known_namespaces.REPORTERS.name, "broken", b"\xff")

        problems = " ".join(self.gather().problems)

        self.assertIn("cannot read 2 records", problems)
        self.assertIn("Record reporters/broken cannot be read", problems)

    def test_each_of_these_makes_a_beat_unreadable_by_what_is_odd_in_it(self):
        of_all = {
            "beat_at": ("now", None, [1.0], True),
            "pid": ("five", 1.5, None),
            "host": (["cond2"],),
            "compute_nodes": ({},),
            "compute_node_statements": (3, {"select": "many"}),
        }
        of_reporters = {
            "guards": (5, None, "cell1", [5]),
            "late_seconds": (5, None, "late", {"cell1": "long"}, {"cell1": None}),
            "behind_seconds": ([1.0], {"cell1": {}}),
            "since": ("begin",),
            "cell": ([],),
            "binary": (7,),
        }
        of_schedulers = {
            "lag_seconds": ("0.1",),
            "schedule_seconds_p50": ([],),
            "schedule_seconds_p99": ("",),
            "memory_bytes": ("big",),
            "outcomes": (3,),
            "fallbacks": ({"cold": "often"},),
            "candidates": (["memory"],),
            "claims": (3,),
            "settling": ("yes",),
            "checkpoint": ("written",),
        }
        said = {"host": "host2", "pid": 5, "beat_at": 1.0}
        self.healthy()
        for namespace, fields in (
            ("reporters", of_all | of_reporters),
            ("schedulers", of_all | of_schedulers),
        ):
            for field, value in [(name, each) for name in fields for each in fields[name]]:
                with self.subTest(namespace, field=field, value=value):
                    self.cloud.write(namespace, "odd", said | {field: value})
                    found = self.gather()
                    self.assertEqual(1, len(found.problems), found.problems)
                    self.assertIn(f"Record {namespace}/odd ({field} is not", found.problems[0])
                    self.assertIn("cannot be read", found.problems[0])
            # One that is not odd is read, and old.
            self.cloud.write(namespace, "odd", said)
            [problem] = self.gather().problems
            self.assertIn("is silent", problem)
            self.cloud.delete(namespace, "odd")

    def test_a_silent_reporter_is_a_problem(self):
        self.healthy()
        self.cloud.reporter("conductor", "cond2", "cell1", age_seconds=60.0)

        [problem] = self.gather().problems

        self.assertIn("conductor:cond2", problem)

    def test_a_cell_tells_its_reporters_and_whether_it_is_of_this_epoch(self):
        self.healthy()
        self.cloud.reporter("api", "api1", "*", guards=())
        self.cloud.cell("cell2", epoch="an older one")

        cells = {each["cell"]: each for each in self.gather().cells}

        self.assertEqual((True, 2), (cells["cell1"]["imported"], cells["cell1"]["reporters"]))
        self.assertEqual((False, 1), (cells["cell2"]["imported"], cells["cell2"]["reporters"]))

    def test_the_mirror_of_placement_is_shown_with_its_age(self):
        self.assertEqual({}, self.gather().mirror)

        self.cloud.mirror(age_seconds=40)

        mirror = self.gather().mirror
        self.assertEqual(7, mirror["providers"])
        self.assertAlmostEqual(40, mirror["age_seconds"], delta=5)

    def test_what_is_claimed_is_told_by_the_scheduler_that_settles(self):
        self.assertEqual({}, self.gather().claims)
        for host, settles, age_seconds in (("a", 0.0, 0), ("b", 1.0, 0), ("c", 1.0, 10_000)):
            self.cloud.scheduler(
                host, 1, settling={"settles": settles, "pending": 2.0}, age_seconds=age_seconds
            )
            self.answers[host] = [samples.status(host, 1)]

        found = self.gather()
        self.assertEqual(2.0, found.claims["pending"])
        self.assertTrue(found.claims["settles"].startswith("b:"))
        shown = self.shown(found)
        self.assertIn("Claims", shown)
        self.assertRegex(shown, r"pending +2\b")
        self.assertRegex(shown, r"settled by +b:1:1\b")

    def shown(self, found):
        """Return what people see of it."""
        printer = command.Command(None, None)
        printer.console = rich.console.Console(width=160, record=True, file=io.StringIO())
        status_command.show(printer, found, cell_names.CellNames())
        return printer.console.export_text()

    def test_no_scheduler_at_all_is_a_problem(self):
        self.assertEqual(("No scheduler with the plugin runs.",), self.gather().problems)

    def test_with_the_back_end_down_whoever_answers_is_shown(self):
        self.answers[None] = [samples.status("sched7", 77)]
        self.cloud.hub.faults.go_down()

        found = self.gather()

        self.assertEqual(["sched7"], [each["host"] for each in found.schedulers])
        self.assertIn("cannot be read", found.problems[0])
        self.assertFalse(found.as_dict()["backend"]["reachable"])

    def test_with_everything_down_the_answer_says_so(self):
        self.cloud.hub.faults.go_down()

        problems = self.gather().problems

        self.assertIn("cannot be read", problems[0])
        self.assertIn("No scheduler", problems[1])


class BackendTest(testtools.TestCase):
    def test_reading_leaves_the_connection_closed(self):
        hub = memory.MemoryHub()
        client = memory.MemorySynchronizer(shared_hub=hub)

        backend = process_reports.read_backend(client)

        self.assertIsNone(backend.error)
        error = self.assertRaises(errors.BackendUnavailable, client.head)
        self.assertIn("open", str(error))

    def test_a_beat_of_the_future_is_of_age_zero(self):
        backend = process_reports.Backend("memory", now_seconds=10.0)

        self.assertEqual(0.0, backend.age_seconds({"beat_at": 11.0}))
        self.assertEqual(4.0, backend.age_seconds({"beat_at": 6.0}))

    def test_records_are_decoded(self):
        key = records.RecordKey("cells", "c")
        payload = codec.encode({"epoch": "e"}, known_namespaces.CELLS.schema)

        self.assertEqual({"epoch": "e"}, process_reports._state(records.Record(key, 1, 1, payload)))
