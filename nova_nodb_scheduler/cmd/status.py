# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-status: the upgrade check's command."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from nova_nodb_scheduler.cmd import patching
from nova_nodb_scheduler.cmd.framework import guard

PROGRAM = "nova-nodb-status"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status.

    0 success, 1 warnings, 2 failures, 255 where nothing could be checked.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)

    def run() -> int:
        # Libraries that Nova uses choose their threads when they are imported.
        patching.for_threads()
        upgrade = importlib.import_module("nova_nodb_scheduler.cmd.upgrade_check.check_command")
        return int(upgrade.run(arguments))

    return guard.main(PROGRAM, run, argv=arguments, failed=guard.CHECK_FAILED)
