# SPDX-License-Identifier: Apache-2.0
"""What answers lead to: allocations in the ledger, servers on hosts, and their end."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs

from nova_nodb_scheduler.simulator.run import fleet as fleet_module
from nova_nodb_scheduler.simulator.run import measures as measures_module
from nova_nodb_scheduler.simulator.run import true_ledger as ledger_module
from nova_nodb_scheduler.simulator.scenario import run_clock as events_module
from nova_nodb_scheduler.simulator.scenario import run_options, workload
from nova_nodb_scheduler.simulator.schedulers import pipe_messages

#: After so long whoever asked a scheduler that was killed gives up, and deletes.
ABANDONED_SECONDS = 5.0


@attrs.define(eq=False, slots=False)
class Grants:
    """The servers of one run, from the first allocation to the last deletion. One thread."""

    _options: run_options.RunOptions
    _ledger: ledger_module.TrueLedger
    _fleet: fleet_module.Fleet
    _measures: measures_module.Measures
    _events: events_module.Events
    #: By request that is being decided: (server, host uuid) that stand.
    _written: dict[int, set[tuple[str, str]]] = attrs.field(init=False, factory=dict)

    def allocations(self, asked: pipe_messages.AskAllocations) -> pipe_messages.ServerAllocations:
        """Return what a server has."""
        return pipe_messages.ServerAllocations(self._ledger.allocations_of(asked.server))

    def write(self, said: pipe_messages.WriteAllocations) -> pipe_messages.WriteAnswer:
        """Write allocations; say which servers their hosts refused."""
        refused = self._ledger.write(said.allocations)
        for each in said.allocations:
            if each.server not in refused:
                self._written.setdefault(said.number, set()).add((each.server, each.host_uuid))
                self._fleet.written(each.host_uuid)
        return pipe_messages.WriteAnswer(refused)

    def remove(self, said: pipe_messages.RemoveAllocations) -> pipe_messages.WriteAnswer:
        """Take allocations back."""
        for each in said.allocations:
            self._take_back(said.number, each.server, each.host_uuid)
        return pipe_messages.WriteAnswer(frozenset())

    def end(self, number: int) -> None:
        """Note that a request is answered: what it wrote stands."""
        self._written.pop(number, None)

    def give_up(self, number: int, *, is_lost: bool = True) -> None:
        """Note that a request's scheduler died with it.

        Whoever asked waits for an answer a while, and deletes the servers then.

        :param is_lost: whether nobody asks again
        """
        self._measures.lost_requests += is_lost
        left = self._written.pop(number, set())

        def abandon() -> None:
            for server, host_uuid in left:
                self._take_back(-1, server, host_uuid)

        self._events.after(ABANDONED_SECONDS, abandon)

    def _take_back(self, number: int, server: str, host_uuid: str) -> None:
        if self._ledger.remove(server, host_uuid):
            self._fleet.written(host_uuid)
        self._written.get(number, set()).discard((server, host_uuid))

    def keep(self, number: int, servers: Collection[str]) -> None:
        """Note that these servers of a request stand, whatever becomes of its others."""
        written = self._written.get(number, set())
        written -= {each for each in written if each[0] in servers}

    def undo(self, number: int) -> None:
        """Take back what an answered request wrote: whoever asked does not want it."""
        for server, host_uuid in self._written.pop(number, set()):
            self._take_back(-1, server, host_uuid)

    def place(
        self,
        arrival: workload.Arrival,
        decision: pipe_messages.Decided,
        servers: Sequence[str],
    ) -> None:
        """Send servers of a request to the hosts that were chosen for them, in their order."""
        for server, host_uuid in zip(servers, decision.hosts, strict=True):
            self._grant(arrival, server, host_uuid, decision.chosen_at_seconds)

    def _grant(
        self, arrival: workload.Arrival, server: str, host_uuid: str, chosen_at: float
    ) -> None:
        flavor = arrival.flavor
        self._ledger.grant(server, host_uuid, flavor.resources)
        self._fleet.accept(server, flavor, host_uuid, arrival.project_id)
        self._measures.servers_placed += 1
        self._measures.sequence.append((server, host_uuid))
        lost_at = self._fleet.lost_at(host_uuid)
        if lost_at is not None and chosen_at > lost_at:
            is_late = chosen_at > lost_at + self._options.service_down_seconds
            self._measures.late_choices += is_late
            self._measures.choices_of_lost += not is_late
        self._events.after(self._options.build_seconds, lambda: self.built(server))
        if arrival.lifetime_seconds is not None:
            # Nobody deletes what is not there yet.
            lifetime = max(arrival.lifetime_seconds, self._options.build_seconds)
            self._events.after(lifetime, lambda: self._delete(server, flavor))

    def built(self, server: str) -> None:
        """Have a server's host count it, if the host lives."""
        self._fleet.built(server)

    def _delete(self, server: str, flavor: workload.MadeFlavor) -> None:
        if self._ledger.end(server, flavor.resources) is not None:
            self._fleet.deleted(server)
