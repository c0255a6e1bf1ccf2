# SPDX-License-Identifier: Apache-2.0
"""Run flake8 with the rules of hacking that ``tox.ini`` does not ignore, and no other plugin.

flake8 asks all its plugins about each line and drops then what was not selected: pycodestyle and
pyflakes, whose work ruff does, took two thirds of its time.
"""

from __future__ import annotations

import configparser
import sys
from unittest import mock

from flake8 import utils
from flake8.main import cli
from flake8.plugins import finder

_find_plugins = finder.find_plugins


def wanted(
    configuration: configparser.RawConfigParser, options: finder.PluginOptions
) -> list[finder.Plugin]:
    """Return hacking's rules that are not ignored, and what writes reports."""
    ignored = utils.parse_comma_separated_list(configuration.get("flake8", "ignore"))
    found = _find_plugins(configuration, options)
    reports = [plugin for plugin in found if plugin.entry_point.group == "flake8.report"]
    rules = [plugin for plugin in found if plugin.package == "hacking"]
    if not rules:
        sys.exit("flake8 knows no rule of hacking")
    return reports + [rule for rule in rules if rule.entry_point.name not in ignored]


if __name__ == "__main__":
    with mock.patch.object(finder, "find_plugins", wanted):
        sys.exit(cli.main(sys.argv[1:]))
