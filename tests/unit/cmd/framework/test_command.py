# SPDX-License-Identifier: Apache-2.0
"""What a call of any command costs before the command begins."""

import argparse
import importlib.metadata
from unittest import mock

import cliff.command
import testtools

from nova_nodb_scheduler.cmd import application


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
