# SPDX-License-Identifier: Apache-2.0
"""Reads Nova's configuration for the plugin's own commands."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Collection
from typing import Any

from oslo_config import cfg

from nova_nodb_scheduler import errors

#: Where oslo.config looks for a project's files.
_DIRECTORIES = ("~/.nova", "~", "/etc/nova", "/etc")
_FILE = "nova.conf"


def load(
    program: str, config_files: list[str], config_dirs: list[str], *, verbose: bool = False
) -> Any:
    """Parse nova.conf, set up logging and activate the plugin.

    :param verbose: whether libraries' loggers may write to standard error, too
    :returns: the activated :class:`..nova_adapter.assembly.Plugin`
    :raises ConfigurationMissing: there is no nova.conf
    :raises ConfigurationError: an option cannot work
    :raises cfg.Error: a file cannot be read or understood
    """
    # Imported here: `--help` must not need Nova's configuration.
    from nova import config, objects
    from oslo_log import log

    from nova_nodb_scheduler.nova_adapter import activation

    argv = _arguments(program, config_files, config_dirs)
    fail_soon(config.CONF)
    config.parse_args(argv)
    log.setup(config.CONF, "nova")
    quiet_standard_error(shown=verbose)
    objects.register_all()
    return activation.activate(config.CONF, "manage")


def parse(
    program: str, config_files: list[str], config_dirs: list[str], *, verbose: bool = False
) -> Any:
    """Parse nova.conf and set up logging; the plugin is not activated, nor is the bus.

    :param verbose: whether libraries' loggers may write to standard error, too
    :returns: Nova's configuration, with the plugin's options registered
    :raises ConfigurationMissing: there is no nova.conf
    :raises cfg.Error: a file cannot be read or understood
    """
    import oslo_messaging
    from nova import config, objects
    from oslo_log import log

    from nova_nodb_scheduler.conf import nodb

    argv = _arguments(program, config_files, config_dirs)
    fail_soon(config.CONF)
    config.parse_args(argv, init_rpc=False)
    # Registers [DEFAULT] transport_url, which Nova reads with a cell's mapping.
    oslo_messaging.TransportURL.parse(config.CONF)
    nodb.register_opts(config.CONF)
    log.setup(config.CONF, "nova")
    quiet_standard_error(shown=verbose)
    objects.register_all()
    return config.CONF


def _arguments(program: str, config_files: list[str], config_dirs: list[str]) -> list[str]:
    if not (config_files or config_dirs):
        require_found(cfg.find_config_files("nova"), cfg.find_config_dirs("nova"))
    argv = [program]
    for name in config_files:
        argv += ["--config-file", name]
    for name in config_dirs:
        argv += ["--config-dir", name]
    return argv


def require_found(files: Collection[str], directories: Collection[str]) -> None:
    """See that there is a configuration: the defaults alone lead to localhost.

    :param files: those that were found
    :raises ConfigurationMissing: there is none
    """
    if files or directories:
        return
    looked_at = []
    for directory in _DIRECTORIES:
        path = os.path.join(os.path.expanduser(directory), _FILE)
        looked_at.append(f"{path} ({_closed(path)})" if _closed(path) else path)
    raise errors.ConfigurationMissing(", ".join(looked_at))


def _closed(path: str) -> str:
    """Say why it cannot be told whether a file is there; empty where it can."""
    try:
        os.stat(path)
    except PermissionError:
        return "its directory may not be read by this user"
    except OSError:
        # It is not there, as its place in the list of those looked at tells: no news.
        return ""
    return ""


def fail_soon(conf: Any) -> None:
    """Have Nova's databases say at once that they are down; call it before they are configured.

    A service tries ten times, ten seconds apart; who runs a command does that
    by himself.
    """
    for group in ("database", "api_database"):
        conf.set_override("max_retries", 0, group)


def quiet_standard_error(*, shown: bool) -> None:
    """Keep the streams for what a command says; files of ``log_dir`` get what they got.

    Standard output may be JSON; on standard error a library that tries again
    for ever would bury the one line that names the cause.
    """
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler) or not isinstance(
            handler, logging.StreamHandler
        ):
            continue
        if handler.stream is sys.stdout:
            handler.setStream(sys.stderr)
        if not shown:
            handler.setLevel(logging.CRITICAL + 1)
