# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage: the operator's command."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from oslo_config import cfg

from nova_nodb_scheduler.cmd import patching


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    # Libraries that Nova uses choose their threads when they are imported.
    try:
        patching.for_threads()
    except cfg.Error as error:
        sys.exit(f"nova-nodb-manage: {error}")
    application = importlib.import_module("nova_nodb_scheduler.cmd.application")
    return int(application.run(argv))
