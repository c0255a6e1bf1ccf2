# SPDX-License-Identifier: Apache-2.0
"""Runs Nova's services with the queue's scheduler and conductor, in a process of their own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).parents[4]
MOST_SECONDS = 1200.0


class QueuedServersTest(unittest.TestCase):
    def test_queued_servers(self) -> None:
        environment = {
            **os.environ,
            "OS_NOVA_DISABLE_EVENTLET_PATCHING": "true",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        }
        done = subprocess.run(
            [sys.executable, "-m", "testtools.run", f"{__package__}.queued_servers"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
            check=False,
        )
        self.assertEqual(0, done.returncode, f"{done.stdout[-20000:]}\n{done.stderr[-4000:]}")
