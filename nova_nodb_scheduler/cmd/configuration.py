# SPDX-License-Identifier: Apache-2.0
"""Reads Nova's configuration for the plugin's own commands."""

from __future__ import annotations

import logging
import sys
from typing import Any

from nova_nodb_scheduler import errors


def load(
    program: str, config_files: list[str], config_dirs: list[str], *, verbose: bool = False
) -> Any:
    """Parse nova.conf, set up logging and activate the plugin.

    :param verbose: whether libraries' loggers may write to standard error, too
    :returns: the activated :class:`..nova_adapter.assembly.Plugin`
    """
    # Imported here: `--help` must not need Nova's configuration.
    from nova import config, objects
    from oslo_config import cfg
    from oslo_log import log

    from nova_nodb_scheduler.nova_adapter import activation

    argv = [program]
    for name in config_files:
        argv += ["--config-file", name]
    for name in config_dirs:
        argv += ["--config-dir", name]
    try:
        config.parse_args(argv)
        log.setup(config.CONF, "nova")
        _keep_loggers_from_the_screen(verbose=verbose)
        objects.register_all()
        return activation.activate(config.CONF, "manage")
    except (errors.NodbError, cfg.Error) as error:
        sys.exit(f"{program}: {error}")


def parse(
    program: str, config_files: list[str], config_dirs: list[str], *, verbose: bool = False
) -> Any:
    """Parse nova.conf and set up logging; the plugin is not activated, nor is the bus.

    :returns: Nova's configuration, with the plugin's options registered
    """
    import oslo_messaging
    from nova import config, objects
    from oslo_config import cfg
    from oslo_log import log

    from nova_nodb_scheduler.conf import nodb

    argv = [program]
    for name in config_files:
        argv += ["--config-file", name]
    for name in config_dirs:
        argv += ["--config-dir", name]
    try:
        config.parse_args(argv, init_rpc=False)
        # Registers [DEFAULT] transport_url, which Nova reads with a cell's mapping.
        oslo_messaging.TransportURL.parse(config.CONF)
        nodb.register_opts(config.CONF)
        log.setup(config.CONF, "nova")
        _keep_loggers_from_the_screen(verbose=verbose)
        objects.register_all()
    except cfg.Error as error:
        sys.exit(f"{program}: {error}")
    return config.CONF


def _keep_loggers_from_the_screen(*, verbose: bool) -> None:
    """Keep standard output for what a command was asked for, which may be JSON.

    Nor does a library's word stand between a command and its table: what matters
    to whoever asks, the command says. A log file is written as nova.conf says.
    """
    for handler in logging.getLogger().handlers:
        if not isinstance(handler, logging.StreamHandler):
            continue
        if handler.stream is sys.stdout:
            handler.setStream(sys.stderr)
        if handler.stream is sys.stderr and not verbose:
            handler.setLevel(logging.CRITICAL)
