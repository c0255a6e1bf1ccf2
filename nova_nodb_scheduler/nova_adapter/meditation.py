# SPDX-License-Identifier: Apache-2.0
"""What this process adds to Nova's Guru Meditation Report.

The report is written by a signal handler, between two instructions of the
main thread: only what is read without a lock may be asked here.
"""

from __future__ import annotations

from nova_nodb_scheduler.nova_adapter import reporter as reporter_module
from nova_nodb_scheduler.nova_adapter import runtime as runtime_module
from nova_nodb_scheduler.observe import guru


def tell_of_scheduler(runtime: runtime_module.SchedulerRuntime) -> None:
    """Have the report tell where a scheduler worker stands."""
    guru.register(
        {
            "Worker": lambda: runtime.facts,
            "Feed": runtime.replicator.status,
            "Decisions": runtime.outcomes,
            "Fallbacks by cell": runtime.fallbacks_by_cell,
        }
    )


def tell_of_reporter(reporter: reporter_module.Reporter) -> None:
    """Have the report tell who the reporter is; its figures are in ``status``."""
    guru.register({"Reporter": lambda: reporter.identity})
