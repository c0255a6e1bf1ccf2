# SPDX-License-Identifier: Apache-2.0
"""A process that stands still is told from one whose threads only wait."""

import signal
import subprocess
import sys
import threading
import time
import unittest

from nova_nodb_scheduler.nova_adapter.liveness import standstill_watch
from nova_nodb_scheduler.testing import patience

#: Says what it was told once a line comes in; the thread that asks waits for that.
PROCESS = """
import sys
from nova_nodb_scheduler.nova_adapter.liveness import standstill_watch
watch = standstill_watch.StandstillWatch(tick_seconds=0.05)
watch.start()
for _line in sys.stdin:
    print(watch.take_longest(), flush=True)
"""


class StandstillWatchTest(unittest.TestCase):
    def setUp(self):
        self.now = 100.0
        self.watch = standstill_watch.StandstillWatch(lambda: self.now)

    def test_nothing_is_told_before_it_began(self):
        self.assertEqual(0.0, self.watch.take_longest())
        self.now += 60.0
        self.assertEqual(0.0, self.watch.take_longest())

    def test_the_longest_is_told_once(self):
        self.watch.tick()
        for seconds in (1.0, 20.0, 1.0, 7.0, 1.0):
            self.now += seconds
            self.watch.tick()
        self.assertEqual(20.0, self.watch.take_longest())
        self.assertEqual(0.0, self.watch.take_longest())

    def test_who_goes_on_before_the_watch_is_told_and_the_watch_tells_it_no_second_time(self):
        self.watch.tick()
        self.now += 20.0
        self.assertEqual(20.0, self.watch.take_longest())
        self.now += 1.0
        self.watch.tick()
        self.assertEqual(1.0, self.watch.take_longest())

    def test_a_thread_that_died_is_taken_for_a_standstill(self):
        self.watch.start()
        self.addCleanup(self.watch.stop)
        self.assertEqual(0.0, self.watch.take_longest())
        dead = threading.Thread(target=lambda: None)
        dead.start()
        dead.join()
        thread, self.watch._thread = self.watch._thread, dead
        self.assertEqual(float("inf"), self.watch.take_longest())
        self.watch._thread = thread

    def test_it_begins_anew_behind_an_end(self):
        self.watch.start()
        self.watch.stop()
        self.now += 60.0
        self.watch.start()
        self.addCleanup(self.watch.stop)
        self.assertEqual(0.0, self.watch.take_longest())
        self.watch.stop()
        self.watch.stop()


class StoppedProcessTest(unittest.TestCase):
    def setUp(self):
        self.process = self.enterContext(
            subprocess.Popen(
                [sys.executable, "-c", PROCESS],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        self.addCleanup(self.process.kill)
        self.ask()

    def ask(self):
        self.process.stdin.write("?\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def test_a_process_that_is_stopped_stood_still_and_one_that_waits_did_not(self):
        # A busy machine may hold it up, too: but not by so much, each time.
        def waits():
            time.sleep(2.0)
            return self.ask() < 1.0

        patience.wait_until(waits, 60.0, "it always stood still")
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(2.0)
        self.process.send_signal(signal.SIGCONT)
        self.assertGreater(self.ask(), 1.9)
