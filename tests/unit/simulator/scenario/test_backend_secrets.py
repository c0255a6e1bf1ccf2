# SPDX-License-Identifier: Apache-2.0
"""Secrets that are given to a simulation."""

import contextlib
import io

import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd import simulate, simulate_arguments
from nova_nodb_scheduler.simulator.scenario import backend_choice


class BackendSecretsTest(testtools.TestCase):
    def told(self, driver, *options):
        """Return what a command line with these options makes the command say."""
        line = ["--synchronizer", driver, *(f"--option={each}" for each in options)]
        arguments = simulate_arguments.parser().parse_args(line)
        with contextlib.redirect_stderr(io.StringIO()) as said:
            simulate._backend(arguments)
        return said.getvalue()

    def test_a_secret_on_the_command_line_is_warned_of_and_not_repeated(self):
        for driver, option in (
            ("redis", "password=pa55word"),
            ("etcd", "password=pa55word"),
            ("sqlalchemy", "connection=mysql+pymysql://u:pa55word@h/d"),
        ):
            text = self.told(driver, option)

            self.assertIn("list of processes", text)
            self.assertIn(option.partition("=")[0], text)
            self.assertIn("--config-file", text)
            self.assertNotIn("pa55word", text)

    def test_what_is_no_secret_is_not_warned_of(self):
        self.assertEqual("", self.told("redis", "key_prefix=a"))
        self.assertEqual("", self.told("sqlalchemy", "connection=sqlite:////tmp/a"))

    def test_an_unknown_option_is_named_without_its_value(self):
        choice = backend_choice.BackendChoice(driver="redis", options={"pasword": "pa55word"})

        error = self.assertRaises(errors.ConfigurationError, choice.make)

        self.assertIn("pasword", str(error))
        self.assertNotIn("pa55word", str(error))
