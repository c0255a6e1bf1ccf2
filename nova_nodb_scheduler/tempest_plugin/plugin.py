# SPDX-License-Identifier: Apache-2.0
"""Tempest's way in."""

from __future__ import annotations

import pathlib

from oslo_config import cfg
from tempest.test_discover import plugins

from nova_nodb_scheduler.tempest_plugin import config


class NodbTempestPlugin(plugins.TempestPlugin):  # type: ignore[misc]
    """The scenarios and their options."""

    def load_tests(self) -> tuple[str, str]:
        """Return (directory of the tests, directory their names are relative to)."""
        here = pathlib.Path(__file__).parent
        return str(here / "tests"), str(here.parents[1])

    def register_opts(self, conf: cfg.ConfigOpts) -> None:
        """Register group ``[nodb]``."""
        conf.register_group(config.GROUP)
        conf.register_opts(config.OPTIONS, config.GROUP)

    def get_opt_lists(self) -> list[tuple[str, list[cfg.Opt]]]:
        """Return the options for tempest.conf's sample."""
        return [(config.GROUP.name, config.OPTIONS)]
