# SPDX-License-Identifier: Apache-2.0
"""Tempest finds the scenarios, and each of them is as Tempest wants it."""

import collections
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

import nova_nodb_scheduler

_TOP = pathlib.Path(nova_nodb_scheduler.__file__).parents[1]
_CONFIGURATION = """
[oslo_concurrency]
lock_path = {directory}
"""


class PluginTest(unittest.TestCase):
    """In a process of its own: Tempest has one configuration for all that it loads."""

    def run_python(self, source: str) -> list[str]:
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "tempest.conf"
            path.write_text(_CONFIGURATION.format(directory=directory))
            done = subprocess.run(
                [sys.executable, "-c", textwrap.dedent(source)],
                env={
                    **os.environ,
                    "TEMPEST_CONFIG_DIR": directory,
                    "TEMPEST_CONFIG": path.name,
                },
                cwd=directory,
                capture_output=True,
                text=True,
                check=False,
            )
        self.assertEqual(0, done.returncode, done.stderr)
        return done.stdout.splitlines()

    def test_tempest_finds_the_plugin_and_its_options(self) -> None:
        lines = self.run_python(
            """
            from tempest import config
            from tempest.test_discover import plugins
            manager = plugins.TempestTestPluginManager()
            print(*manager.get_plugin_load_tests_tuple()["nova_nodb_scheduler"])
            print(config.CONF.nodb.exact_capacity, config.CONF.nodb.default_zone)
            """
        )
        directory, top = lines[0].split()
        self.assertEqual(str(_TOP), top)
        self.assertTrue(list(pathlib.Path(directory).glob("test_*.py")))
        self.assertEqual("False nova", lines[-1])

    def test_every_scenario_has_an_id_of_its_own_and_its_hosts_for_itself(self) -> None:
        lines = self.run_python(
            """
            import unittest
            from tempest.test_discover import plugins
            manager = plugins.TempestTestPluginManager()
            directory, top = manager.get_plugin_load_tests_tuple()["nova_nodb_scheduler"]
            def walk(suite):
                for each in suite:
                    if isinstance(each, unittest.TestSuite):
                        yield from walk(each)
                    else:
                        yield each
            for test in walk(unittest.TestLoader().discover(directory, top_level_dir=top)):
                print(type(test)._serial, test.id())
            """
        )
        found = [line for line in lines if line.startswith(("True ", "False "))]
        self.assertGreater(len(found), 15)
        ids = collections.Counter(line.rpartition("[id-")[2].rstrip("]") for line in found)
        self.assertEqual({1}, set(ids.values()), ids)
        self.assertEqual([], [line for line in found if not line.startswith("True nova_nodb")])
