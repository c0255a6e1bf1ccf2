# SPDX-License-Identifier: Apache-2.0
"""Begins a process as nova-scheduler or nova-conductor begins, up to the manager's init_host.

What is left out is RPC and the process's own service record: requests come by a call. Whether the
plugin runs in it is said by nova.conf alone.
"""

import importlib
import sys
from typing import Any


def configure(binary: str, config_file: str) -> Any:
    """Patch, parse and register as the command ``binary`` does; returns Nova's configuration."""
    sys.argv = [binary, "--config-file", config_file]
    # The command's module sets the mode of threading before anything else is imported.
    importlib.import_module(f"nova.cmd.{binary.removeprefix('nova-')}")
    import nova.conf
    from nova import config, objects
    from oslo_log import log as logging

    conf = nova.conf.CONF
    config.parse_args(sys.argv, default_config_files=[config_file])
    logging.setup(conf, "nova")
    sys.excepthook = sys.__excepthook__
    objects.register_all()
    objects.Service.enable_min_version_cache()
    return conf


def make_manager(binary: str, conf: Any) -> Any:
    """Make the manager that the service would run, and have it start its threads."""
    from nova import service
    from oslo_utils import importutils

    manager = importutils.import_class(service.SERVICE_MANAGERS[binary])(host=conf.host)
    manager.init_host(None)
    return manager


def cell1_context() -> Any:
    """Return an administrator's context whose database is cell1's."""
    from nova import context, objects

    found = context.get_admin_context()
    (mapping,) = (m for m in objects.CellMappingList.get_all(found) if not m.is_cell0())
    context.set_target_cell(found, mapping)
    return found
