# SPDX-License-Identifier: Apache-2.0
"""Figures that the plugin tells of itself: nova-nodb-manage status --json.

Of its answer only this is used; what is missing is shown as "n/a"::

    {"schedulers": [{"host": "sched1", "hosts": 6, "fallbacks": {"cold": 0},
                     "schedule_seconds_p50": 0.07, "feed_lag_seconds": 0.1}, ...]}
"""

import json
import subprocess
from collections.abc import Mapping
from typing import Any

import attrs

from tools.stack import settings as stack_settings

_TIMEOUT_SECONDS = 60.0


@attrs.frozen
class PluginStatus:
    """None where the plugin does not say. ``fallbacks`` counts since the schedulers started."""

    hosts: int | None = None
    """In the scheduler that holds the fewest."""
    fallbacks: int | None = None
    schedule_seconds: float | None = None
    """Median of the slowest scheduler."""
    feed_lag_seconds: float | None = None
    """Of the scheduler that is furthest behind."""


def read(settings: stack_settings.Settings) -> PluginStatus:
    """Ask the running schedulers. Everything is None when the command is missing or fails."""
    file = settings.etc / "nova" / "nova-manage" / "nova.conf"
    command = [settings.program("nova-nodb-manage"), "--config-file", str(file), "status", "--json"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_SECONDS
        )
        status = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, json.JSONDecodeError):
        return PluginStatus()
    return from_json(status)


def from_json(status: Mapping[str, Any]) -> PluginStatus:
    schedulers = status.get("schedulers") or []
    hosts = _known(schedulers, "hosts")
    fallbacks = _known(schedulers, "fallbacks")
    seconds = _known(schedulers, "schedule_seconds_p50")
    lags = _known(schedulers, "feed_lag_seconds")
    return PluginStatus(
        hosts=min(hosts) if hosts else None,
        fallbacks=sum(sum(by_reason.values()) for by_reason in fallbacks) if fallbacks else None,
        schedule_seconds=max(seconds) if seconds else None,
        feed_lag_seconds=max(lags) if lags else None,
    )


def _known(schedulers: list[Mapping[str, Any]], key: str) -> list[Any]:
    return [s[key] for s in schedulers if s.get(key) is not None]
