# SPDX-License-Identifier: Apache-2.0
"""What a run is asked to be, and the ways to schedule that are run side by side.

All strategies run the plugin's pipeline. They differ in how fresh the hosts'
states are, in how one of the passing hosts is picked, and in who says no.
"""

from __future__ import annotations

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.simulator.scenario import backend_choice, queue_scenario, run_clock
from nova_nodb_scheduler.simulator.scenario import made_hosts as cluster_module


@attrs.frozen(kw_only=True)
class Strategy:
    """One way.

    :param claims: a host is claimed among schedulers before it is granted
    :param periodic: hosts' states are looked at once in a while, not as they change
    :param random: any host that passes, not the best
    :param checked: a host refuses what does not fit any more
    :param waits: who finds no room waits for it
    :param choice: which of the hosts that pass is taken, see :class:`.host_choosers.Chooser`
    """

    name: str
    summary: str
    claims: bool = False
    periodic: bool = False
    random: bool = False
    checked: bool = False
    waits: bool = False
    choice: str = "best"


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

QUEUE = Strategy(
    name="queue",
    summary="the plugin's queue driver: as claims, and who finds no room waits for it",
    claims=True,
    waits=True,
)

#: What "all" stands for: those that answer every request at once.
AT_ONCE = {each.name: each for each in (CLAIMS, CACHED, OPTIMISTIC, RANDOM)}
ALL = {**AT_ONCE, QUEUE.name: QUEUE}


def named_strategy(name: str) -> Strategy:
    """Return a strategy.

    :raises ConfigurationError: there is none of that name
    """
    if name not in ALL:
        raise errors.ConfigurationError("--strategy", name, f"choose of {', '.join(ALL)}.")
    return ALL[name]


@attrs.frozen(kw_only=True)
class RunOptions:
    """What a run is.

    :param seconds: simulated time at which it is cut off; None: when all
        requests are answered and the timeline is over
    :param build_seconds: from the grant of a server until its host takes it
        up, and counts it
    :param heartbeat_seconds: between two heartbeats of a host
    :param heartbeat_journals: heartbeats go to a journal as pages, not to a record each
    :param servers_per_host: that stand there before the run, each with records of its own
    :param report_seconds: between two reports of a host that nothing happened to
    :param updates_per_second: most records the reporter publishes in a second
    :param beat_seconds: between two beats of the reporter
    :param authority_seconds: how long each write of allocations takes
    :param cache_seconds: how long a periodic strategy looks at the same states
    :param patience_seconds: how long a request is asked again while no claim
        can be taken
    :param start_seconds: most time until a scheduler knows the cluster
    :param rest_seconds: how long the end is put off, at most, until claims of
        servers that do not stand are gone; step by step, until the back end answers
    :param queue: what waits, for the strategy that lets requests wait
    :param departures_per_second: servers from before the run that are deleted, simulated
    """

    cluster: cluster_module.ClusterOptions
    strategy: Strategy
    backend: backend_choice.BackendChoice
    schedulers: int = 1
    pace: run_clock.Pace = run_clock.Pace.VIRTUAL
    speed: float = 1.0
    seed: int = 1
    seconds: float | None = None
    build_seconds: float = 5.0
    heartbeat_seconds: float = 10.0
    heartbeat_journals: bool = False
    servers_per_host: int = 0
    report_seconds: float = 60.0
    service_down_seconds: float = 60.0
    updates_per_second: float = 2000.0
    beat_seconds: float = 5.0
    authority_seconds: float = 0.0
    cache_seconds: float = 60.0
    claim_lease_seconds: float = 10.0
    claim_spread: str = "off"
    deadline_seconds: float = 10.0
    patience_seconds: float = 60.0
    start_seconds: float = 900.0
    rest_seconds: float = 30.0
    queue: queue_scenario.QueueScenario = attrs.field(factory=queue_scenario.QueueScenario)
    departures_per_second: float = 0.0

    @property
    def in_step(self) -> bool:
        """Whether it goes from event to event, and each scheduler follows the feed by itself.

        Its deciding thread does, up to the back end's head before each request:
        decisions are then reproducible.
        """
        return self.pace is run_clock.Pace.VIRTUAL
