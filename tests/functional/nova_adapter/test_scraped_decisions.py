# SPDX-License-Identifier: Apache-2.0
"""What Prometheus reads of a scheduler worker that decides from memory."""

from __future__ import annotations

import pathlib
import re
import time

import prometheus_client
from prometheus_client import parser

from tests.functional.nova_adapter.decisions import test_memory_decisions

MONITORING = pathlib.Path(__file__).parents[3] / "doc/source/admin/monitoring.rst"


class ScrapedDecisionsTest(test_memory_decisions.MemoryDecisionsCase):
    def scrape(self) -> str:
        """Return what the exporter serves; it does so itself in the unit tests."""
        return prometheus_client.generate_latest(self.runtime.metrics.registry).decode()

    def figures(self) -> dict[str, float]:
        """Return what is served now: by name and values of labels."""
        return {
            " ".join(filter(None, [sample.name, *sample.labels.values()])): sample.value
            for family in parser.text_string_to_metric_families(self.scrape())
            for sample in family.samples
        }

    def test_requests_of_one_size_are_served_by_what_was_made_for_the_first(self):
        before = self.figures()
        for _ in range(5):
            self.select()

        after = self.figures()
        grown = {name: after[name] - before.get(name, 0.0) for name in after}
        self.assertEqual(5, grown["nodb_candidates_total memory"])
        # A signature is kept when it comes for the second time.
        self.assertEqual(2, grown["nodb_signature_lookups_total miss"])
        self.assertEqual(3, grown["nodb_signature_lookups_total hit"])
        self.assertEqual(2, grown["nodb_signature_evaluations_total"])
        # At least the host that each of them took, for the next one.
        self.assertGreaterEqual(grown["nodb_signature_rows_recomputed_total"], 3)
        self.assertIn("nodb_signature_rescales_total", after)
        self.assertEqual(0, after["nodb_signature_evictions_total"])
        self.assertEqual(1, after["nodb_signatures_kept"])
        self.assertGreater(after["nodb_signature_bytes"], 0)

    def test_the_worker_that_keeps_the_mirror_says_so_and_what_it_cost(self):
        found = self.figures()

        self.assertEqual(1, found["nodb_mirror_keeping"])
        self.assertGreaterEqual(found["nodb_mirror_sweeps_total"], 1)
        self.assertEqual(0, found["nodb_mirror_failures_total"])
        self.assertGreaterEqual(found["nodb_mirror_age_seconds"], 0)
        self.assertIn("nodb_mirror_hints_waiting", found)
        self.assertIn("nodb_mirror_looks_total", found)
        # The first sweep read each of the two hosts; it is counted when its turn ends.
        deadline = time.monotonic() + test_memory_decisions.WAIT_SECONDS
        while not found["nodb_mirror_requests_total"] and time.monotonic() < deadline:
            time.sleep(0.05)
            found = self.figures()
        self.assertGreater(found["nodb_mirror_requests_total"], 2)

    def test_every_metric_that_is_served_stands_in_the_page_on_monitoring(self):
        self.select()

        page = MONITORING.read_text()
        served = set(re.findall(r"^# TYPE (\w+) ", self.scrape(), re.MULTILINE))
        served = {name for name in served if not name.endswith("_created")}
        self.assertGreater(len(served), 30)
        self.assertEqual([], sorted(name for name in served if name not in page))
