# SPDX-License-Identifier: Apache-2.0
"""Has the made hosts beat and report when their turn comes."""

from __future__ import annotations

from nova_nodb_scheduler.simulator import cluster as cluster_module
from nova_nodb_scheduler.simulator import events as events_module
from nova_nodb_scheduler.simulator import fleet as fleet_module
from nova_nodb_scheduler.simulator import ledger as ledger_module
from nova_nodb_scheduler.simulator import measures as measures_module
from nova_nodb_scheduler.simulator import run_clock, run_options

#: How often hosts' beats and reports are looked after, simulated seconds.
TICK_SECONDS = 0.5


class HostTicks:
    """The hosts' own pace. One thread."""

    def __init__(
        self,
        options: run_options.RunOptions,
        cluster: cluster_module.Cluster,
        fleet: fleet_module.Fleet,
        ledger: ledger_module.Ledger,
        measures: measures_module.Measures,
        clock: run_clock.RunClock,
        events: events_module.Events,
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._fleet = fleet
        self._ledger = ledger
        self._measures = measures
        self._clock = clock
        self._events = events
        self._ticked = 0.0

    def tick(self) -> None:
        """Have those hosts beat and report whose time came since the last tick; again soon."""
        now = self._clock.now_seconds()
        for host in self._due(self._options.heartbeat_seconds, now):
            self._fleet.beat(host, now)
        for host in self._due(self._options.report_seconds, now):
            self._fleet.report(host, now)
        self._measures.fill.append((now, self._ledger.used_share()))
        self._ticked = now
        self._events.at(now + TICK_SECONDS, self.tick)

    def _due(self, every_seconds: float, now: float) -> list[cluster_module.Host]:
        """Return the hosts whose turn is since the last tick; turns are spread evenly."""
        hosts = self._cluster.hosts
        first = int(self._ticked / every_seconds * len(hosts))
        last = min(int(now / every_seconds * len(hosts)), first + len(hosts))
        return [hosts[number % len(hosts)] for number in range(first, last)]
