# SPDX-License-Identifier: Apache-2.0
"""The two options that switch the plugin on, which Nova once had itself."""

from __future__ import annotations

from oslo_config import cfg

#: Nova dropped these options; the plugin registers them again.
ACTIVATION_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "scheduler_driver",
        default="filter_scheduler",
        help="""
The scheduler that nova-scheduler runs: an entry point of the group
``nova.scheduler.driver``, or ``filter_scheduler`` for Nova's own.

``nodb_scheduler`` places servers from host states held in memory. Only
nova-scheduler looks at this option; conductors and APIs report states
whenever the plugin is loaded, whatever its value. An unknown name stops
the service at start.

Related options:

* ``[oslo_messaging_notifications] driver`` must hold ``nodb_scheduler``,
  which is what makes Nova's processes load the plugin.
""",
    ),
    cfg.StrOpt(
        "scheduler_host_manager",
        default="nodb_host_manager",
        help="""
The host manager of the nodb scheduler: an entry point of the group
``nova.scheduler.host_manager``. It has no effect on Nova's own scheduler.
""",
    ),
]
