# SPDX-License-Identifier: Apache-2.0
"""A record that is refused once is a rise to Prometheus, in schedulers and in reporters."""

from __future__ import annotations

import tempfile

from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.testing import server_processes
from tests.functional.nova_adapter.decisions import test_memory_decisions


class RisesFromZeroTest(test_memory_decisions.MemoryDecisionsCase):
    def test_series_of_refused_records_are_there_before_the_first_one(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="nodb-", dir="/tmp")
        self.addCleanup(directory.cleanup)
        self.override("metrics_directory", directory.name, "nodb_scheduler")
        self.override("conductor_metrics_port", server_processes.free_port(), "nodb_scheduler")
        make = self.plugin._exporting(self.reporter, "conductor", lambda: "*")
        assert make is not None
        labels = {
            "namespace": known_namespaces.COMPUTE_NODES.name,
            "driver": str(self.plugin.options.synchronizer),
        }
        for registry in (self.runtime.metrics.registry, make().metrics.registry):
            found = registry.get_sample_value("nodb_records_refused_total", labels)
            self.assertEqual(0.0, found)
