# SPDX-License-Identifier: Apache-2.0
"""Runs Nova's services with requests that wait, each class of tests in a process of its own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).parents[4]
MOST_SECONDS = 1200.0


class WaitingTest(unittest.TestCase):
    def run_module(self, name: str) -> None:
        environment = {
            **os.environ,
            "OS_NOVA_DISABLE_EVENTLET_PATCHING": "true",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        }
        done = subprocess.run(
            [sys.executable, "-m", "testtools.run", f"{__package__}.{name}"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
            check=False,
        )
        self.assertEqual(0, done.returncode, f"{done.stdout[-20000:]}\n{done.stderr[-4000:]}")

    def test_parked_servers(self) -> None:
        self.run_module("parked_servers")

    def test_dying_conductors(self) -> None:
        self.run_module("deaths.dying_conductors")

    def test_given_up_servers(self) -> None:
        self.run_module("deaths.given_up_servers")

    def test_asking_users(self) -> None:
        self.run_module("asking_users")

    def test_moving_servers(self) -> None:
        self.run_module("moving_servers")
