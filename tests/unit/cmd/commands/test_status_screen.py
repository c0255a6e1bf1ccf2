# SPDX-License-Identifier: Apache-2.0
"""status --watch: what a frame tells, and that nothing stops it but its reader."""

import io
import os
import pty
import select
import signal
import threading

import rich.console
import testtools

from nova_nodb_scheduler.cmd.commands import status_screen
from nova_nodb_scheduler.cmd.framework import terminal as terminal_module
from nova_nodb_scheduler.cmd.overview import cell_names, deployment, process_reports
from tests.unit.cmd import samples

NAMES = cell_names.CellNames({"64ec2f33-1f5d-4b24-acd4-4b54ee9c8292": "cell1"})


class WatchingTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.cloud = self.useFixture(samples.BackendFixture())
        self.file = io.StringIO()
        self.console = terminal_module.console(everything=False, file=self.file)

    def read(self):
        return deployment.gather(
            process_reports.read_backend(self.cloud.client()), None, (), 15.0, 300.0
        )

    def scheduler(self, host, **more):
        self.cloud.scheduler(
            host,
            112_233,
            schedule_seconds_p50=0.0351,
            schedule_seconds_p99=1.25,
            settling={"settles": 1.0, "pending": 7.0, "oldest_pending_seconds": 1.5},
            **more,
        )

    def lines(self):
        text = self.file.getvalue()
        for line in text.splitlines():
            self.assertLessEqual(len(line), terminal_module.WIDTH, text)
        return text

    def test_a_frame_tells_decisions_latency_fallbacks_lag_and_pending_claims(self):
        self.scheduler("controller-17.region-one.example.com", fallbacks={"cold": 3, "feed": 12})
        self.scheduler("sched2", fallbacks={"cold": 1})
        self.cloud.reporter("conductor", "c1", "cell1")

        status_screen.watch(self.console, self.read, NAMES, 0.2, frames=2)

        shown = self.lines()
        for text in ("0.0351", "1.25", "15", "cold 4, feed 12", "pending 7", "1.5 s", "0.2"):
            self.assertIn(text, shown)
        self.assertEqual(2, shown.count("ctrl-C ends."))

    def test_nobody_is_asked_so_nobody_is_said_not_to_answer(self):
        self.scheduler("sched1")

        found = self.read()

        self.assertEqual((), tuple(p for p in found.problems if "answer" in p))
        self.assertIsNone(found.schedulers[0]["answered"])

    def test_problems_are_told_with_names_of_cells(self):
        self.scheduler("sched1")
        self.cloud.reporter(
            "conductor", "c1", "64ec2f33-1f5d-4b24-acd4-4b54ee9c8292", age_seconds=100.0
        )

        status_screen.watch(self.console, self.read, NAMES, 0.2, frames=1)

        self.assertIn("conductor:c1:cell1 is silent", self.lines())

    def test_decisions_a_second_are_counted_between_two_beats_of_a_worker(self):
        rates = status_screen.Rates()

        self.assertIsNone(rates.rate("w", 10.0, 100))
        self.assertIsNone(rates.rate("w", 10.0, 100))
        self.assertEqual(4.0, rates.rate("w", 15.0, 120))
        # No new beat: what is known stays.
        self.assertEqual(4.0, rates.rate("w", 15.0, 120))
        # A worker that was restarted counts from 0.
        self.assertEqual(0.0, rates.rate("w", 20.0, 3))

    def test_a_back_end_that_hangs_holds_up_no_frame_and_is_told(self):
        never = threading.Event()
        self.addCleanup(never.set)

        status_screen.watch(self.console, never.wait, NAMES, 0.2, frames=12)

        self.assertEqual(12, self.lines().count("Nothing has been read yet."))
        self.assertRegex(self.lines(), r"The back end has not answered for \d+ s")

    def test_a_back_end_that_is_down_is_told_and_watched_on(self):
        self.scheduler("sched1")
        turns = [self.read, self.cloud.hub.faults.go_down, self.read]

        def read():
            found = (turns.pop(0) if turns else self.read)()
            return found if found is not None else self.read()

        status_screen.watch(self.console, read, NAMES, 0.2, frames=4)

        self.assertIn("sched1", self.lines())
        self.assertIn("The back end cannot be read", self.lines())

    def test_ctrl_c_ends_it_with_a_clean_screen(self):
        self.scheduler("sched1")
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        with os.fdopen(theirs, "w") as terminal:
            console = rich.console.Console(file=terminal, width=80, markup=False)
            drawn = threading.Event()

            def read():
                found = self.read()
                if drawn.is_set():
                    signal.raise_signal(signal.SIGINT)
                drawn.set()
                return found

            # Returns: that is what it is about.
            status_screen.watch(console, read, NAMES, 0.2)
            terminal.flush()
            seen = b""
            while select.select([ours], [], [], 0.5)[0]:
                seen += os.read(ours, 65536)
        seen = seen.decode()

        # The screen of before is shown again, with the last frame behind it.
        self.assertIn("\x1b[?1049l", seen)
        self.assertIn("sched1", seen[seen.index("\x1b[?1049l") :])
