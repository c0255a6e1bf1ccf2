# SPDX-License-Identifier: Apache-2.0
"""What Nova's services do for the plugin as they end, and in Nova's Guru Meditation Report.

The report is written by a signal handler, between two instructions of the main
thread: only what is read without a lock may be asked here.
"""

from __future__ import annotations

from typing import Any

from nova_nodb_scheduler.nova_adapter.reporting import change_reporter as reporter_module
from nova_nodb_scheduler.nova_adapter.service import scheduler_runtime as runtime_module
from nova_nodb_scheduler.observe import guru_report


class EndsWithService:
    """To be named before Nova's manager among the bases.

    Not an ABC: Nova's managers have a metaclass of their own.
    """

    def nodb_stop(self) -> None:
        """Stop what was started; idempotent. The manager defines it."""
        raise NotImplementedError

    def cleanup_host(self) -> None:
        """Stop, then let Nova clean up; idempotent."""
        self.nodb_stop()
        super().cleanup_host()  # type: ignore[misc]

    def graceful_shutdown(self, *args: Any, **kwargs: Any) -> None:
        """Stop after Nova has finished its requests; Nova before 33 has no such method."""
        inherited = getattr(super(), "graceful_shutdown", None)
        try:
            if inherited is not None:
                inherited(*args, **kwargs)
        finally:
            self.nodb_stop()


def tell_of_scheduler(runtime: runtime_module.SchedulerRuntime) -> None:
    """Have the report tell where a scheduler worker stands."""
    guru_report.register(
        {
            "Worker": lambda: runtime.facts,
            "Feed": runtime.replicator.status,
            "Decisions": runtime.outcomes,
            "Fallbacks by cell": runtime.fallbacks_by_cell,
        }
    )


def tell_of_reporter(reporter: reporter_module.ChangeReporter) -> None:
    """Have the report tell who the reporter is; its figures are in ``status``."""
    guru_report.register({"Reporter": lambda: reporter.identity})
