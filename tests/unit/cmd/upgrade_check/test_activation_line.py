# SPDX-License-Identifier: Apache-2.0
"""The upgrade check sees whether nova.conf makes services load the plugin."""

import importlib.util
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import fixtures
import testtools
from oslo_config import cfg
from oslo_upgradecheck import upgradecheck

from nova_nodb_scheduler.cmd.upgrade_check import judgements

Code = upgradecheck.Code


def judged(text):
    """Judge a nova.conf."""
    sections = {}
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(text)
        file.flush()
        cfg.ConfigParser(file.name, sections).parse()
    drivers = sections.get(judgements.GROUP, {}).get("driver", [])
    [finding] = judgements.judge_activation_line(drivers, sections)
    return finding


class ActivationLineTest(testtools.TestCase):
    def test_the_line_of_the_install_guide_is_well_alone_and_beside_others(self):
        for others in ("", "driver = messagingv2\n", "driver = noop\n"):
            found = judged(f"[oslo_messaging_notifications]\n{others}driver = nodb_scheduler\n")
            self.assertEqual(Code.SUCCESS, found.code)

    def test_a_missing_line_is_a_warning_with_its_remedy(self):
        for text in (
            "[DEFAULT]\nscheduler_driver = nodb_scheduler\n",
            "[oslo_messaging_notifications]\ndriver = messagingv2\n",
            "[nodb_scheduler]\nsynchronizer = sqlalchemy\n",
        ):
            found = judged(text)
            self.assertEqual(Code.WARNING, found.code)
            self.assertIn("'driver = nodb_scheduler' in [oslo_messaging_notifications]", found.text)

    def test_a_misspelt_line_is_a_failure_that_shows_it(self):
        for group, line in (
            ("oslo_messaging_notifications", "driver = nodb-scheduler"),
            ("oslo_messaging_notifications", "driver = nodb_schedular"),
            ("oslo_messaging_notifications", "driver = nodbscheduler"),
            ("oslo_messaging_notifications", "driver = Nodb_Scheduler"),
            ("oslo_messaging_notifications", "driver = messagingv2,nodb_scheduler"),
            ("oslo_messaging_notifications", "drivers = nodb_scheduler"),
            ("oslo_messaging_notification", "driver = nodb_scheduler"),
            ("oslo-messaging-notifications", "driver = nodb_scheduler"),
            ("notifications", "driver = nodb_scheduler"),
            ("DEFAULT", "driver = nodb_scheduler"),
        ):
            found = judged(f"[{group}]\n{line}\n")
            self.assertEqual(Code.FAILURE, found.code, line)
            self.assertIn(f"[{group}] {line}", found.text)
            self.assertIn("Write 'driver = nodb_scheduler'", found.text)


@unittest.skipUnless(importlib.util.find_spec("nova"), "needs Nova")
class CommandTest(testtools.TestCase):
    def status(self, *lines):
        """Run the installed command's code against a nova.conf; return its output."""
        directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        conf = directory / "nova.conf"
        conf.write_text(
            "\n".join(
                [
                    "[DEFAULT]",
                    "transport_url = fake://",
                    f"state_path = {directory}",
                    "[nodb_scheduler]",
                    "synchronizer = memory",
                    *lines,
                ]
            )
        )
        done = subprocess.run(
            [
                sys.executable,
                "-W",
                "ignore",
                "-c",
                "import sys; from nova_nodb_scheduler.cmd import status; sys.exit(status.main())",
                "--config-file",
                str(conf),
                "upgrade",
                "check",
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env={**os.environ, "COLUMNS": "1000"},
        )
        return " ".join(line.strip("| \n") for line in io.StringIO(done.stdout)), done

    def test_the_command_shows_a_misspelt_line_before_any_restart(self):
        text, done = self.status("[oslo_messaging_notifications]", "driver = nodb_schduler")

        self.assertIn("Check: Activation line", text, done.stderr)
        self.assertIn("driver = nodb_schduler: nobody reads", text)
        self.assertEqual(2, done.returncode)
