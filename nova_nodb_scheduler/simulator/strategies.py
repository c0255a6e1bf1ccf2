# SPDX-License-Identifier: Apache-2.0
"""The ways to schedule that are run side by side on one workload.

All run the plugin's pipeline. They differ in how fresh the hosts' states are,
in how one of the passing hosts is picked, and in who says no.
"""

from __future__ import annotations

import attrs

from nova_nodb_scheduler import errors


@attrs.frozen(kw_only=True)
class Strategy:
    """One way.

    :param claims: a host is claimed among schedulers before it is granted
    :param periodic: hosts' states are looked at once in a while, not as they change
    :param random: any host that passes, not the best
    :param checked: a host refuses what does not fit any more
    """

    name: str
    summary: str
    claims: bool = False
    periodic: bool = False
    random: bool = False
    checked: bool = False


CLAIMS = Strategy(
    name="claims",
    summary="the plugin: states from the feed, claims among schedulers",
    claims=True,
)
CACHED = Strategy(
    name="cached",
    summary="a cache looked at every minute, nobody refuses (Nova's former CachingScheduler)",
    periodic=True,
)
OPTIMISTIC = Strategy(
    name="optimistic",
    summary="states from the feed, no claims: a host refuses what does not fit",
    checked=True,
)
RANDOM = Strategy(
    name="random",
    summary="any host that passes by the feed, nobody refuses",
    random=True,
)

ALL = {each.name: each for each in (CLAIMS, CACHED, OPTIMISTIC, RANDOM)}


def named(name: str) -> Strategy:
    """Return a strategy.

    :raises ConfigurationError: there is none of that name
    """
    if name not in ALL:
        raise errors.ConfigurationError("--strategy", name, f"choose of {', '.join(ALL)}.")
    return ALL[name]
