# SPDX-License-Identifier: Apache-2.0
"""How commands end: by errors nobody foresaw, by an interrupt, without a reader."""

from __future__ import annotations

import testtools

from nova_nodb_scheduler.cmd.framework import guard
from tests.functional.cmd import commands, deployment, troubles


class EndingsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        silent = self.useFixture(troubles.SilentPeer()).port
        self.made = self.useFixture(
            deployment.Deployment(f"rabbit://guest:guest@127.0.0.1:{silent}/")
        )

    def case(self, name, arguments, options=None, **more):
        config = self.made.write(name, options)
        return commands.Case(
            name=name,
            arguments=["--config-file", config, *arguments],
            directory=str(self.made.directory),
            **more,
        )

    def test_none_is_silent_none_shows_a_traceback_and_none_hangs(self):
        empty = self.made.directory / "empty.sqlite"
        logs = {"log_dir": str(self.made.directory), "log_file": "log"}
        foreign = {
            "DEFAULT": logs,
            "api_database": {"connection": self.made.api_with_cell(f"sqlite:///{empty}")},
        }
        # A database, and not one of Nova's.
        empty.write_bytes(b"")
        nowhere = {"DEFAULT": {"log_dir": "/proc/nowhere", "log_file": "log"}}
        found = commands.run(
            [
                self.case("compare", ["compare"], foreign),
                self.case("debugged", ["--debug", "compare"], foreign),
                self.case("no log", ["import"], nowhere),
                self.case("closed", ["db", "version"], closed_stdout=True),
                self.case("interrupted", ["host", "list"], interrupted_after=3.0),
            ]
        )

        compared = found["compare"]
        self.assertEqual(guard.FAILED, compared.status, compared)
        self.assertEqual(1, compared.stderr.count("\n"), compared.stderr)
        self.assertIn("no such table", compared.stderr)

        self.assertEqual(guard.FAILED, found["debugged"].status)
        self.assertIn("Traceback", found["debugged"].stderr)

        self.assertEqual(guard.FAILED, found["no log"].status)
        self.assertIn("/proc/nowhere", found["no log"].stderr)
        self.assertEqual(1, found["no log"].stderr.count("\n"), found["no log"].stderr)

        self.assertEqual((guard.NOBODY_READS, ""), (found["closed"].status, found["closed"].stderr))

        interrupted = found["interrupted"]
        self.assertEqual(guard.INTERRUPTED, interrupted.status, interrupted)
        # By the command, or by the program where it had not begun yet.
        self.assertRegex(interrupted.stderr, "^(host list|nova-nodb-manage): interrupted\n$")
