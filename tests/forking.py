# SPDX-License-Identifier: Apache-2.0
"""The process from which tests fork others: it has imported what those do, and opened nothing.

A process has one at the most, and what it imports is settled when the first is forked from it:
so all that is forked is named here.
"""

from __future__ import annotations

import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "tests.engine_faults.child",
        "tests.functional.synchronizer.drivers.sqlalchemy.writing_processes",
    ]
)
