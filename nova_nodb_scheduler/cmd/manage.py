# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage: the operator's command."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from nova_nodb_scheduler.cmd import patching
from nova_nodb_scheduler.cmd.framework import guard

PROGRAM = "nova-nodb-manage"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    arguments = sys.argv[1:] if argv is None else list(argv)

    def run() -> int:
        # Libraries that Nova uses choose their threads when they are imported.
        patching.for_threads()
        application = importlib.import_module("nova_nodb_scheduler.cmd.application")
        return int(application.run(arguments))

    return guard.main(PROGRAM, run, argv=arguments)
