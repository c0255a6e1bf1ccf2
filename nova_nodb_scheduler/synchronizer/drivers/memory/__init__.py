# SPDX-License-Identifier: Apache-2.0
"""Driver ``memory``: records in one process's memory, for tests and simulations.

It keeps the contract to the letter, one-key-only mode included, and can be
told to fail in every way an engine fails (:mod:`.faults`), so that the layers
above are tested with it instead of with mocks.
"""

from __future__ import annotations

from nova_nodb_scheduler.synchronizer.drivers.memory.driver import (
    OPTS,
    MemoryOptions,
    MemorySynchronizer,
)
from nova_nodb_scheduler.synchronizer.drivers.memory.faults import Fault, Faults
from nova_nodb_scheduler.synchronizer.drivers.memory.hub import Backup, MemoryHub

__all__ = [
    "OPTS",
    "Backup",
    "Fault",
    "Faults",
    "MemoryHub",
    "MemoryOptions",
    "MemorySynchronizer",
]
