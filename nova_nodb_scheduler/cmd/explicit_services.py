# SPDX-License-Identifier: Apache-2.0
"""Nova's services with the plugin, explicitly: without the line in nova.conf.

The explicit way: it does what the notification driver does, but an error ends
the command with its text instead of leaving the service stock.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any


def run(main: Callable[[], Any], role: str, *, plugin_scheduler: bool = False) -> Any:
    """Run Nova's own main function, activating the plugin behind its configuration.

    Call it after ``nova.cmd`` was imported, which patches the process as its
    threading mode wants it.

    :param role: ``scheduler``, ``conductor`` or ``api``
    :param plugin_scheduler: run the nodb scheduler although ``scheduler_driver``
        is at its default
    """
    from nova import config

    from nova_nodb_scheduler import errors
    from nova_nodb_scheduler.conf import nodb
    from nova_nodb_scheduler.nova_adapter import activation

    own = config.parse_args

    @functools.wraps(own)
    def parse_and_activate(*args: Any, **kwargs: Any) -> None:
        own(*args, **kwargs)
        nodb.register_opts(config.CONF)
        if plugin_scheduler:
            config.CONF.set_default("scheduler_driver", "nodb_scheduler")
        activation.activate(config.CONF, role)

    config.parse_args = parse_and_activate
    try:
        return main()
    except errors.NodbError as error:
        sys.exit(f"nova_nodb_scheduler refuses to start: {error}")
    finally:
        config.parse_args = own


def scheduler_main() -> None:
    """Run nova-scheduler with the nodb scheduler; options are nova-scheduler's."""
    # Importing nova.cmd patches the process; it must come first.
    from nova.cmd import scheduler

    run(scheduler.main, "scheduler", plugin_scheduler=True)


def conductor_main() -> None:
    """Run nova-conductor with the reporter; options are nova-conductor's."""
    # Importing nova.cmd patches the process; it must come first.
    from nova.cmd import conductor

    run(conductor.main, "conductor")
