# SPDX-License-Identifier: Apache-2.0
"""The plugin's pipeline as a run needs it: Nova's default filters, all weighers."""

from __future__ import annotations

import random
from collections.abc import Mapping

from stevedore import extension

from nova_nodb_scheduler.scheduling import engine as engine_module
from nova_nodb_scheduler.scheduling import fact_source, host_frame, options, plugins
from nova_nodb_scheduler.simulator import strategies

#: More hosts than any run has: one of all that pass is drawn.
_ALL = 10**9


def settings(
    strategy: strategies.Strategy, *, service_down_seconds: float
) -> options.SchedulingOptions:
    """Return Nova's settings for a strategy: the defaults but for two."""
    return options.SchedulingOptions(
        service_down_time=service_down_seconds,
        host_subset_size=_ALL if strategy.random else 1,
    )


def engine(
    nova_settings: options.SchedulingOptions,
    rng: random.Random,
    present: fact_source.Present | None = None,
) -> engine_module.Engine:
    """Return an engine without hosts.

    :param present: what tells it of what has no column; None where nothing asks
    """
    filters = _classes(plugins.FILTERS)
    weighers = _classes(plugins.WEIGHERS)
    frame = (
        host_frame.HostFrame()
        if present is None
        else host_frame.HostFrame(locate=present.locate, attribute=present.attribute)
    )
    return engine_module.Engine(
        nova_settings,
        [filters[name](nova_settings) for name in nova_settings.enabled_filters],
        [weighers[name](nova_settings) for name in sorted(weighers)],
        frame=frame,
        rng=rng,
    )


def _classes(group: str) -> Mapping[str, type]:
    return {each.name: each.plugin for each in extension.ExtensionManager(group)}
