# SPDX-License-Identifier: Apache-2.0
"""What Prometheus reads of a conductor's or an API's process."""

from __future__ import annotations

import pathlib
import re
import tempfile
import urllib.request
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.testing import patience, server_processes
from tests.functional.nova_adapter import cloud, test_scraped_decisions

WAIT_SECONDS = 30.0


class ReporterExportTest(cloud.CloudCase):
    def setUp(self) -> None:
        super().setUp()
        directory = self.enterContext(tempfile.TemporaryDirectory(prefix="nodb-", dir="/tmp"))
        self.port = server_processes.free_port()
        self.override("metrics_directory", directory, "nodb_scheduler")
        self.override("conductor_metrics_port", self.port, "nodb_scheduler")
        self.override("beat_interval_seconds", 0.2, "nodb_scheduler")

    def reporter(self, **more: Any) -> Any:
        made = self.plugin.reporter("conductor", lambda: cloud.CELL1, **more)
        made.ensure_started()
        self.addCleanup(made.stop)
        return made

    def scrape(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=20) as got:
            return str(got.read().decode())

    def served(self) -> bool:
        try:
            return bool(self.scrape())
        except OSError:
            return False

    def await_text(self, text: str) -> None:
        patience.wait_until(
            lambda: self.served() and text in self.scrape(), WAIT_SECONDS, f"not told: {text}", 0.05
        )

    def test_a_conductor_tells_of_itself_by_its_cell(self) -> None:
        self.reporter()
        labels = f'{{cell="{cloud.CELL1}",host="here",role="conductor",worker="0"}}'
        self.await_text(f"nodb_reporter_running{labels} 1.0")
        self.await_text(f"nodb_reporter_publishing{labels} 1.0")

    def test_every_metric_of_a_reporter_stands_in_the_page_on_monitoring(self) -> None:
        self.reporter()
        self.await_text("nodb_reporter_running")
        page = test_scraped_decisions.MONITORING.read_text()
        names = set(re.findall(r"^# TYPE (\w+) ", self.scrape(), re.MULTILINE))
        self.assertGreater(len(names), 10)
        self.assertEqual([], sorted(name for name in names if name not in page))

    def test_what_rules_and_board_ask_for_stands_in_the_page(self) -> None:
        page = test_scraped_decisions.MONITORING.read_text()
        etc = pathlib.Path(test_scraped_decisions.MONITORING).parents[3] / "etc"
        for name in ("prometheus-rules.yaml", "grafana-dashboard.json"):
            text = (etc / "nova-nodb-scheduler" / name).read_text()
            asked = {
                re.sub(r"_(bucket|sum|count)$", "", each)
                for each in re.findall(r"\bnodb_[a-z_]+", text)
            }
            self.assertGreater(len(asked), 20)
            self.assertEqual([], sorted(each for each in asked if each not in page), name)

    def test_a_back_end_that_fails_is_told_by_the_process_itself(self) -> None:
        made = self.reporter()
        self.await_text("nodb_reporter_publishing")
        own = made._synchronizer.write

        def unavailable(*_args: Any, **_kwargs: Any) -> Any:
            raise errors.BackendUnavailable("memory", "it is away")

        made._synchronizer.write = unavailable
        self.await_text('role="conductor",worker="0"} 0.0\n# HELP nodb_reporter_dirty_records')
        self.assertRegex(self.scrape(), r"nodb_reporter_failed_flushes_total\{.*\} [1-9]")
        made._synchronizer.write = own
        self.await_text('role="conductor",worker="0"} 1.0\n# HELP nodb_reporter_dirty_records')

    def test_the_port_is_free_once_the_reporter_left(self) -> None:
        made = self.reporter()
        self.await_text("nodb_reporter_running")
        made.stop()
        self.assertFalse(self.served())

    def test_short_lived_processes_serve_nothing(self) -> None:
        made = self.reporter(heartbeats=False)
        self.assertIsNone(made.make_company)
        self.assertFalse(self.served())
