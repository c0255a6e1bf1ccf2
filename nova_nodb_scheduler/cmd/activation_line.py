# SPDX-License-Identifier: Apache-2.0
"""Judges the line of nova.conf that makes Nova's services load the plugin.

Nova tells of a notification driver that it cannot load by one line on standard
error, and runs stock; of an option that nobody reads it tells nothing. So the
spelling is looked at here, before any service is restarted.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence

from oslo_upgradecheck import upgradecheck

from nova_nodb_scheduler.cmd import upgrade_checks

Code = upgradecheck.Code

GROUP = "oslo_messaging_notifications"
OPTION = "driver"
NAME = "nodb_scheduler"
_RIGHT = f"[{GROUP}] {OPTION} = {NAME}"
_REMEDY = (
    f"Write '{OPTION} = {NAME}' in [{GROUP}] of nova.conf on every host of nova-scheduler, "
    "nova-conductor and nova-api, on a line of its own beside other drivers, and restart them."
)
#: Where the name stands for something else.
_OTHER_USES = {("DEFAULT", "scheduler_driver"), ("nodb_scheduler", "rpc_topic")}
#: How like the right name another one is taken for a slip.
_LIKE = 0.75

#: What the configuration files say: values by group and option.
Lines = Mapping[str, Mapping[str, Sequence[str]]]


def judge(drivers: Collection[str], written: Lines) -> list[upgrade_checks.Finding]:
    """Say whether services that read this configuration load the plugin.

    :param drivers: values of the option, as oslo.config reads them
    """
    if NAME in drivers:
        return [upgrade_checks.Finding(Code.SUCCESS, f"{_RIGHT} is there.")]
    slips = [f"[{GROUP}] {OPTION} = {each}" for each in drivers if _is_meant(each)]
    slips += [
        f"[{group}] {option} = {value}"
        for group, options in sorted(written.items())
        for option, values in sorted(options.items())
        for value in values
        if (group, option) != (GROUP, OPTION)
        and (group, option) not in _OTHER_USES
        and (NAME in value or (_is_like(group, GROUP) and _is_meant(value)))
    ]
    if slips:
        return [
            upgrade_checks.Finding(
                Code.FAILURE,
                f"{'; '.join(slips)}: nobody reads that, and services run stock Nova. {_REMEDY}",
            )
        ]
    return [
        upgrade_checks.Finding(
            Code.WARNING,
            f"{_RIGHT} is missing: only services that are started by nova-nodb-scheduler, "
            f"nova-nodb-conductor or nova_nodb_scheduler.cmd.wsgi run the plugin. {_REMEDY}",
        )
    ]


def _is_meant(value: str) -> bool:
    """Tell whether a driver's name is ours, but for its spelling."""
    parts = value.lower().replace("-", "_").replace(",", " ").split()
    return any("nodb" in part or _is_like(part.strip("'\""), NAME) for part in parts)


def _is_like(text: str, right: str) -> bool:
    return difflib.SequenceMatcher(None, text, right).ratio() >= _LIKE
