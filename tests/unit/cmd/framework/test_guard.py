# SPDX-License-Identifier: Apache-2.0
"""What ends a command is one line with a status of its own, and it ends in time."""

import contextlib
import io
import logging
import os
import sys
import threading
import time

import fixtures
import testtools
from oslo_config import cfg
from oslo_db import exception as db_exc

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd.framework import bounded, bus_calls, configuration, guard, reaching
from nova_nodb_scheduler.cmd.overview import process_reports


def raising(error):
    def act():
        raise error

    return act


class GuardTest(testtools.TestCase):
    def caught(self, act, **more):
        text = io.StringIO()
        with contextlib.redirect_stderr(text):
            status = guard.caught("import", act, **more)
        return status, text.getvalue()

    def test_a_commands_own_verdict_passes(self):
        self.assertEqual((1, ""), self.caught(lambda: 1))

    def test_an_error_that_is_not_ours_has_a_line_and_another_status_than_a_verdict(self):
        status, said = self.caught(raising(RuntimeError("no luck")))

        self.assertEqual(guard.FAILED, status)
        self.assertIn("import: RuntimeError: no luck.", said)
        self.assertEqual(1, said.count("\n"))
        self.assertIn("--debug", said)

    def test_a_log_file_does_not_swallow_it(self):
        directory = self.useFixture(fixtures.TempDir()).path
        handler = logging.FileHandler(os.path.join(directory, "log"))
        self.addCleanup(handler.close)
        logger = self.useFixture(fixtures.FakeLogger(level=logging.ERROR))

        _status, said = self.caught(raising(db_exc.DBError("gone")))

        self.assertIn("A database of Nova's failed", said)
        self.assertEqual("", logger.output)

    def test_an_error_of_several_lines_is_told_in_one_without_the_password(self):
        error = db_exc.DBError("at mysql://nova:se@cret@db/nova\n[SQL: SELECT 1]\n(Background)")

        _status, said = self.caught(raising(error))

        self.assertEqual(1, said.count("\n"))
        self.assertIn("mysql://nova:***@db/nova", said)
        self.assertNotIn("cret", said)
        self.assertNotIn("SELECT", said)

    def test_a_token_in_a_url_is_not_told(self):
        _status, said = self.caught(raising(RuntimeError("https://t0ken@host/path is away")))

        self.assertNotIn("t0ken", said)
        self.assertIn("https://***@host/path", said)

    def test_an_address_without_credentials_is_told_whole(self):
        _status, said = self.caught(raising(RuntimeError("http://host:8778/usages is away")))

        self.assertIn("http://host:8778/usages is away", said)

    def test_an_error_with_a_name_that_a_compute_node_chose_moves_no_cursor(self):
        _status, said = self.caught(raising(RuntimeError("no host h1\x1b[2J")))

        self.assertNotIn("\x1b", said)
        self.assertIn(r"h1\x1b[2J", said)

    def test_debug_shows_all_of_it(self):
        _status, said = self.caught(raising(RuntimeError("no luck")), debug=True)

        self.assertIn("Traceback", said)
        self.assertIn("in act", said)

    def test_a_text_of_who_ends_the_process_is_an_error(self):
        status, said = self.caught(raising(SystemExit("refuses to start")), failed=255)

        self.assertEqual((255, "import: refuses to start\n"), (status, said))
        self.assertRaises(SystemExit, self.caught, raising(SystemExit(2)))

    def test_an_interrupt_is_no_traceback(self):
        self.assertEqual(
            (guard.INTERRUPTED, "import: interrupted\n"), self.caught(raising(KeyboardInterrupt()))
        )

    def test_a_peer_that_breaks_its_pipe_is_not_a_reader_that_went_away(self):
        status, said = self.caught(raising(BrokenPipeError(32, "Broken pipe")))

        self.assertEqual(guard.FAILED, status)
        self.assertIn("Broken pipe", said)

    def test_a_file_that_may_not_be_written_is_named(self):
        _status, said = self.caught(raising(PermissionError(13, "Permission denied", "/var/x")))

        self.assertEqual("import: /var/x: Permission denied.\n", said)

    def test_a_configuration_that_may_not_be_read_says_who_may(self):
        error = cfg.ConfigFilesPermissionDeniedError(["/etc/nova/nova.conf"])

        self.assertIn("as a user who may read it", guard.describe(error))
        self.assertIn("/etc/nova/nova.conf", guard.describe(error))


class BoundedTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.forever = threading.Event()
        self.addCleanup(self.forever.set)

    def test_what_is_silent_is_left_behind_in_time(self):
        began = time.monotonic()

        error = self.assertRaises(errors.NoAnswerInTime, bounded.ask, 0.1, self.forever.wait)

        self.assertEqual("no answer within 0.1 s", str(error))
        self.assertLess(time.monotonic() - began, 5)
        self.assertNotEqual(set(), bounded.left_behind())

    def test_an_answer_and_an_error_come_as_they_are(self):
        self.assertEqual(7, bounded.ask(5.0, lambda: 7))
        self.assertIsNone(bounded.ask(5.0, lambda: None))
        self.assertRaises(SystemExit, bounded.ask, 5.0, raising(SystemExit("no")))

    def test_a_deadline_leaves_the_last_a_second(self):
        self.assertEqual(2.0, bounded.Deadline(60.0).within(2.0))
        self.assertEqual(1.0, bounded.Deadline(0.0).within(2.0))
        self.assertEqual(0.0, bounded.Deadline(-1.0).left_seconds())

    def test_a_silent_worker_is_named_and_the_others_are_heard(self):
        self.patch(bounded, "LOOK_SECONDS", 0.2)

        class Status:
            pid = 11

        def ask(host):
            return Status() if host == "here" else self.forever.wait()

        found = process_reports.ask_schedulers({"here": [11], "away": [12]}, ask, (KeyError,))

        self.assertEqual({("here", 11)}, set(found.by_worker))
        self.assertIn("no answer within", found.silent["away"])

    def test_many_silent_workers_take_no_longer_than_one(self):
        line = bus_calls.BusCalls("bus:5672", 0.2)
        began = time.monotonic()

        found = process_reports.ask_schedulers(
            {f"h{n}": range(4) for n in range(20)},
            lambda host: line.call(self.forever.wait),
            (errors.NodbError,),
        )

        self.assertEqual(20, len(found.silent))
        self.assertLess(time.monotonic() - began, 5)


class LineTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.forever = threading.Event()
        self.addCleanup(self.forever.set)
        self.calls = 0

    def silent(self):
        self.calls += 1
        self.forever.wait()

    def test_a_bus_that_is_away_is_waited_for_once(self):
        line = bus_calls.BusCalls("bus:5672", 0.1)
        for _ in range(3):
            self.assertRaises(errors.NoAnswerInTime, line.call, self.silent)

        self.assertEqual(1, self.calls)

    def test_once_somebody_has_answered_each_call_has_its_time(self):
        line = bus_calls.BusCalls("bus:5672", 0.1)
        self.assertEqual(3, line.call(lambda: 3))
        for _ in range(2):
            self.assertRaises(errors.NoAnswerInTime, line.call, self.silent)

        self.assertEqual(2, self.calls)

    def test_what_the_library_logs_is_the_reason(self):
        line = bus_calls.BusCalls("bus:5672", 0.1)

        def call():
            logging.getLogger("oslo.messaging._drivers.impl_rabbit").error(
                "Connection failed: %s (retrying in %s seconds)", "refused", 5.0
            )
            self.silent()

        error = self.assertRaises(errors.NoAnswerInTime, line.call, call)

        self.assertEqual(
            "no answer within 0.1 s (message bus bus:5672: Connection failed: refused)", str(error)
        )


class ReachingTest(testtools.TestCase):
    def test_a_back_end_that_holds_nothing_yet_is_reached(self):
        class Empty:
            closed = 0

            def open_existing(self):
                raise errors.StoreMissing("sqlalchemy")

            def close(self):
                Empty.closed += 1

        reaching.backend(Empty)

        self.assertEqual(1, Empty.closed)

    def test_a_back_end_that_is_silent_is_named_in_time(self):
        self.patch(bounded, "BACKEND_SECONDS", 0.1)
        forever = threading.Event()
        self.addCleanup(forever.set)

        class Silent:
            def open_existing(self):
                forever.wait()

            def close(self):
                pass

        error = self.assertRaises(errors.NotReached, reaching.backend, Silent)

        self.assertIn("no answer within 0.1 s", str(error))


class ConfigurationTest(testtools.TestCase):
    def test_without_a_file_the_paths_are_said(self):
        home = self.useFixture(fixtures.TempDir()).path
        self.useFixture(fixtures.EnvironmentVariable("HOME", home))

        error = self.assertRaises(errors.ConfigurationMissing, configuration.require_found, [], [])

        for path in (f"{home}/.nova/nova.conf", f"{home}/nova.conf", "/etc/nova/nova.conf"):
            self.assertIn(path, str(error))
        configuration.require_found(["/x"], [])
        configuration.require_found([], ["/x.d"])

    def test_libraries_stay_out_of_both_streams_and_in_the_log_file(self):
        directory = self.useFixture(fixtures.TempDir()).path
        stream = logging.StreamHandler(sys.stdout)
        file = logging.FileHandler(os.path.join(directory, "log"))
        root = logging.getLogger()
        for handler in (stream, file):
            root.addHandler(handler)
            self.addCleanup(root.removeHandler, handler)
        self.addCleanup(file.close)

        configuration.quiet_standard_error(shown=False)

        self.assertIs(sys.stderr, stream.stream)
        self.assertGreater(stream.level, logging.CRITICAL)
        self.assertEqual(logging.NOTSET, file.level)
