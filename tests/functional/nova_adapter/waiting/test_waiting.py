# SPDX-License-Identifier: Apache-2.0
"""Runs Nova's services with requests that wait, each class of tests in a process of its own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[4]
MOST_SECONDS = 1500.0


class OfModule:
    """Each is a class, for stestr runs all tests of a class one after the other.

    :cvar parts: into how many parts the module's tests are dealt out, one by one
    :cvar part: which of them this one runs, from 0 on
    """

    module: str
    part, parts = 0, 1

    def run_tests(self, *arguments):
        environment = {
            **os.environ,
            "OS_NOVA_DISABLE_EVENTLET_PATCHING": "true",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        }
        done = subprocess.run(
            [sys.executable, "-m", "testtools.run", *arguments, f"{__package__}.{self.module}"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
            check=False,
        )
        self.assertEqual(0, done.returncode, f"{done.stdout[-20000:]}\n{done.stderr[-4000:]}")
        return done.stdout

    def test_all_of_the_module(self):
        if self.parts == 1:
            self.run_tests()
            return
        listed = self.run_tests("--list").splitlines()
        names = [line for line in listed if line.startswith(__package__)][self.part :: self.parts]
        self.assertTrue(names)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as chosen:
            chosen.write("".join(f"{name}\n" for name in names))
            chosen.flush()
            self.run_tests("--load-list", chosen.name)


class DyingConductorsTest(OfModule, unittest.TestCase):
    module = "deaths.dying_conductors"
    parts = 2


class MoreDyingConductorsTest(DyingConductorsTest):
    part = 1


class GivenUpServersTest(OfModule, unittest.TestCase):
    module = "deaths.given_up_servers"


class ParkedServersTest(OfModule, unittest.TestCase):
    module = "parked_servers"


class AskingUsersTest(OfModule, unittest.TestCase):
    module = "asking_users"


class MovingServersTest(OfModule, unittest.TestCase):
    module = "moving_servers"
