# SPDX-License-Identifier: Apache-2.0
"""Servers from before the run that are deleted one by one: what a full cloud frees."""

from __future__ import annotations

import random
from collections.abc import Sequence

import attrs

from nova_nodb_scheduler.simulator.run import fleet as fleet_module
from nova_nodb_scheduler.simulator.run import true_ledger as ledger_module
from nova_nodb_scheduler.simulator.scenario import (
    made_hosts,
    run_clock,
    standing_servers,
    workload,
)

#: Hosts that are tried before a server that stands nowhere any more is left out.
_TRIES = 32


@attrs.define(eq=False, slots=False)
class Departures:
    """The departures of one run. One thread.

    :param per_second: servers, simulated
    :param flavors: types that they are drawn of: those of the servers that are asked for
    :param standing: servers from before the run that have records of their own, of which they
        are drawn where there are any; taken over
    :ivar servers: that are gone
    """

    _cluster: made_hosts.Cluster
    _ledger: ledger_module.TrueLedger
    _fleet: fleet_module.Fleet
    _events: run_clock.Events
    _per_second: float
    _flavors: Sequence[workload.MadeFlavor]
    _chance: random.Random
    _standing: list[standing_servers.StandingServer] = attrs.field(factory=list)
    servers: int = attrs.field(init=False, default=0)

    def begin(self) -> None:
        """Arrange for the first one."""
        if self._per_second and self._flavors:
            self._events.after(self._pause_seconds(), self._depart)

    def _depart(self) -> None:
        if self._standing:
            self._end_one()
        else:
            flavor = self._chance.choice(self._flavors)
            for _ in range(_TRIES):
                if self._leave(self._chance.choice(self._cluster.hosts), flavor):
                    break
        self._events.after(self._pause_seconds(), self._depart)

    def _end_one(self) -> None:
        place = self._chance.randrange(len(self._standing))
        self._standing[place], self._standing[-1] = self._standing[-1], self._standing[place]
        gone = self._standing.pop()
        self._ledger.end(gone.uuid, gone.flavor.resources)
        self._fleet.deleted(gone.uuid)
        self.servers += 1

    def _leave(self, host: made_hosts.MadeHost, flavor: workload.MadeFlavor) -> bool:
        is_gone = self._ledger.depart(host.uuid, host.resident_consumer, flavor.resources)
        if is_gone:
            self._fleet.departed(host.uuid, flavor)
            self.servers += 1
        return is_gone

    def _pause_seconds(self) -> float:
        return self._chance.expovariate(self._per_second)
