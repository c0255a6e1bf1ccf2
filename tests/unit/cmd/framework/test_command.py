# SPDX-License-Identifier: Apache-2.0
"""What a call of any command costs before the command begins."""

import argparse
import importlib.metadata
from unittest import mock

import cliff.command
import testtools

from nova_nodb_scheduler.cmd import application
from nova_nodb_scheduler.cmd.framework import number_arguments


class CommandTest(testtools.TestCase):
    def test_no_command_reads_the_metadata_of_all_that_is_installed(self):
        app = application.ManageApp()
        reads = mock.patch.object(
            importlib.metadata, "distributions", autospec=True, return_value=[]
        )
        # cliff keeps what another test may have had it read.
        with mock.patch.object(cliff.command, "_dists_by_mods", None), reads as read:
            for name, kind in application._COMMANDS.items():
                parser = kind(app, argparse.Namespace(), name).get_parser(name)
                self.assertIn("--json", parser.format_help())
        self.assertEqual([], read.mock_calls)

    def test_no_time_to_wait_is_infinite_or_no_number_or_negative(self):
        parser = application._COMMANDS["doctor"](
            application.ManageApp(), argparse.Namespace(), "doctor"
        ).get_parser("doctor")
        parser.error = mock.Mock(side_effect=argparse.ArgumentError(None, "refused"))
        for text in ("nan", "inf", "-1", "0", "1e9"):
            self.assertRaises(argparse.ArgumentError, parser.parse_args, [f"--timeout={text}"])
        self.assertEqual(2.5, parser.parse_args(["--timeout=2.5"]).timeout)
        within = number_arguments.within(float, 0.0)
        self.assertRaises(argparse.ArgumentTypeError, within, "inf")
