# SPDX-License-Identifier: Apache-2.0
"""The application that a WSGI server is told, in processes of its own."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import fixtures
import testtools

_ROOT = pathlib.Path(__file__).parents[3]

_LOADED = """
import webob
from nova_nodb_scheduler.placement_adapter.wsgi import application
from nova_nodb_scheduler.placement_adapter import guarded_write
from placement.objects import allocation
assert allocation.replace_all is guarded_write.replace_all
answer = webob.Request.blank("/").get_response(application)
assert answer.status_int == 200, answer
print(answer.headers["X-Nodb-Placement-Guard"])
"""
#: As a later release may have it.
_CHANGED = """
import inspect
from placement.objects import allocation
own = inspect.getsource
inspect.getsource = lambda module: (
    own(module).replace("retries -= 1", "retries -= 2") if module is allocation else own(module)
)
import nova_nodb_scheduler.placement_adapter.wsgi
"""
_STOCK = """
import sys
import placement.wsgi.api
assert not [name for name in sys.modules if name.startswith("nova")]
"""


class ApplicationTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        database = f"sqlite:///{self.directory}/placement.sqlite"
        (self.directory / "placement.conf").write_text(
            f"[placement_database]\nconnection = {database}\nsync_on_startup = true\n"
            "[api]\nauth_strategy = noauth2\n"
        )

    def run_in_process(self, code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code],
            env={"OS_PLACEMENT_CONFIG_DIR": str(self.directory), "PYTHONPATH": str(_ROOT)},
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def test_it_is_placements_guarded_and_says_so(self) -> None:
        found = self.run_in_process(_LOADED)
        self.assertEqual(0, found.returncode, found.stderr)
        # After its log.
        self.assertEqual("allocations", found.stdout.splitlines()[-1])

    def test_it_does_not_start_over_a_release_that_is_not_known(self) -> None:
        found = self.run_in_process(_CHANGED)
        self.assertEqual(1, found.returncode)
        *_trace, said = found.stderr.strip().splitlines()
        self.assertIn("placement.objects.allocation.replace_all", said)
        self.assertIn("Name placement.wsgi.api:application to the WSGI server", said)

    def test_placements_own_application_loads_nothing_of_it(self) -> None:
        found = self.run_in_process(_STOCK)
        self.assertEqual(0, found.returncode, found.stderr)
