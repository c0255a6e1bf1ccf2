# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-scheduler: nova-scheduler with the nodb scheduler, explicitly."""

from __future__ import annotations


def main() -> None:
    """Run nova-scheduler with the plugin; options are nova-scheduler's."""
    # Importing nova.cmd patches the process; it must come first.
    from nova.cmd import scheduler

    from nova_nodb_scheduler.cmd import service

    service.run(scheduler.main, "scheduler", plugin_scheduler=True)
