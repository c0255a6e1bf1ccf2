# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-status: the upgrade check's command."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from nova_nodb_scheduler.cmd import patching


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0 success, 1 warnings, 2 failures."""
    # Libraries that Nova uses choose their threads when they are imported.
    patching.for_threads()
    upgrade = importlib.import_module("nova_nodb_scheduler.cmd.upgrade")
    return int(upgrade.run(argv))
