# SPDX-License-Identifier: Apache-2.0
"""The true ledger: allocations, servers and capacity, and the claims that outlived their servers.

It shares no code with the store, the pipeline or the claims, and asks none of
them: what they grant is held against what the made hosts have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.simulator.scenario import made_hosts as cluster_module
from nova_nodb_scheduler.simulator.schedulers import pipe_messages
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.wire import codec


class TrueLedger:
    """Stands for Placement, and for the auditor. One thread.

    :param checked: refuse what does not fit. Placement should; of racing
        writers it lets several pass, so a run shows what holds without it
    :ivar overcommitted_grants: servers granted where granted ones already took
        so much that capacity was exceeded
    :ivar overcommitted_hosts: hosts that ever were granted too much
    :ivar worst_excess: by resource class, most units beyond capacity on one host
    :ivar late_writes: allocations written beyond capacity, whether granted or
        taken back (a scheduler that slept takes its own back)
    :ivar refusals: writes refused for want of room
    """

    def __init__(self, cluster: cluster_module.Cluster, *, checked: bool) -> None:
        self._checked = checked
        self._capacity = {host.uuid: host.capacity for host in cluster.hosts}
        self._written: dict[str, dict[str, Mapping[str, int]]] = {}
        #: In the order in which they were written; of millions of servers, each one host.
        self._hosts_of: dict[str, tuple[str, ...]] = {}
        self._granted: dict[str, dict[str, int]] = {}
        self._standing: dict[str, str] = {}
        for host in cluster.hosts:
            self._written[host.uuid] = {}
            self._granted[host.uuid] = {}
            if host.resident:
                self._written[host.uuid][host.resident_consumer] = host.resident
                self._granted[host.uuid] = dict(host.resident)
        classes = (cluster_module.VCPU, cluster_module.MEMORY_MB, cluster_module.DISK_GB)
        self._room = {
            name: sum(capacity[name] for capacity in self._capacity.values()) for name in classes
        }
        self._granted_in_all = {
            name: sum(granted.get(name, 0) for granted in self._granted.values())
            for name in classes
        }
        self.generations = dict.fromkeys(self._written, 1)
        self.overcommitted_grants = 0
        self.overcommitted_hosts: set[str] = set()
        self.worst_excess: dict[str, int] = {}
        self.late_writes = 0
        self.refusals = 0

    def stand(self, server: str, host_uuid: str, resources: Mapping[str, int]) -> None:
        """Count a server that stands there since before the run."""
        self._written[host_uuid][server] = resources
        self._hosts_of[server] = (host_uuid,)
        self.grant(server, host_uuid, resources)

    def allocations(self, host_uuid: str) -> Mapping[str, Mapping[str, int]]:
        """Return what is written on a host, by consumer."""
        return self._written[host_uuid]

    def allocations_of(self, server: str) -> dict[str, Mapping[str, int]]:
        """Return what is written for a server, by host uuid."""
        hosts = self._hosts_of.get(server, ())
        return {host_uuid: self._written[host_uuid][server] for host_uuid in hosts}

    def write(self, allocations: Sequence[pipe_messages.Allocation]) -> frozenset[str]:
        """Write allocations; return the servers refused."""
        refused = set()
        for each in allocations:
            on_host = self._written[each.host_uuid]
            used = _sum({**on_host, each.server: each.resources})
            if self._excess(each.host_uuid, used):
                if self._checked:
                    self.refusals += 1
                    refused.add(each.server)
                    continue
                self.late_writes += 1
            on_host[each.server] = each.resources
            others = self._others(each.server, each.host_uuid)
            self._hosts_of[each.server] = (*others, each.host_uuid)
            self.generations[each.host_uuid] += 1
        return frozenset(refused)

    def remove(self, server: str, host_uuid: str) -> bool:
        """Take an allocation away; False if there is none."""
        if self._written[host_uuid].pop(server, None) is None:
            return False
        others = self._others(server, host_uuid)
        if others:
            self._hosts_of[server] = others
        else:
            del self._hosts_of[server]
        self.generations[host_uuid] += 1
        return True

    def _others(self, server: str, host_uuid: str) -> tuple[str, ...]:
        hosts = self._hosts_of.get(server, ())
        return tuple(each for each in hosts if each != host_uuid)

    def grant(self, server: str, host_uuid: str, resources: Mapping[str, int]) -> None:
        """Count a server that a scheduler said stands on a host.

        :raises ValueError: it stands elsewhere, or nothing was written for it:
            the scheduler is broken, not unlucky
        """
        if server in self._standing:
            raise ValueError(f"server {server} was granted twice")
        if server not in self._written[host_uuid]:
            raise ValueError(f"server {server} was granted without an allocation")
        self._standing[server] = host_uuid
        granted = self._granted[host_uuid]
        for name, amount in resources.items():
            granted[name] = granted.get(name, 0) + amount
            self._granted_in_all[name] += amount
        excess = self._excess(host_uuid, granted)
        if excess:
            self.overcommitted_grants += 1
            self.overcommitted_hosts.add(host_uuid)
            for name, amount in excess.items():
                self.worst_excess[name] = max(amount, self.worst_excess.get(name, 0))

    def end(self, server: str, resources: Mapping[str, int]) -> str | None:
        """Delete a server with its allocation; return the host it stood on."""
        host_uuid = self._standing.pop(server, None)
        if host_uuid is None:
            return None
        self.remove(server, host_uuid)
        granted = self._granted[host_uuid]
        for name, amount in resources.items():
            granted[name] -= amount
            self._granted_in_all[name] -= amount
        return host_uuid

    def depart(self, host_uuid: str, resident: str, resources: Mapping[str, int]) -> bool:
        """Delete one of the servers from before the run; False if none there is as large.

        :param resident: the consumer that stands for all of a host's
        """
        taken = self._written[host_uuid].get(resident, {})
        if any(taken.get(name, 0) < amount for name, amount in resources.items()):
            return False
        left = {name: taken[name] - resources.get(name, 0) for name in taken}
        self._written[host_uuid][resident] = left
        self.generations[host_uuid] += 1
        granted = self._granted[host_uuid]
        for name, amount in resources.items():
            granted[name] -= amount
            self._granted_in_all[name] -= amount
        return True

    @property
    def standing(self) -> Mapping[str, str]:
        """Hosts' uuids of all servers that stand."""
        return self._standing

    def used_share(self) -> float:
        """Return what is granted of the scarcest class, residents included, 0 to 1."""
        return max(self._granted_in_all[name] / room for name, room in self._room.items())

    def _excess(self, host_uuid: str, used: Mapping[str, int]) -> dict[str, int]:
        capacity = self._capacity[host_uuid]
        return {
            name: amount - capacity.get(name, 0)
            for name, amount in used.items()
            if amount > capacity.get(name, 0)
        }


def _sum(allocations: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    used: dict[str, int] = {}
    for resources in allocations.values():
        for name, amount in resources.items():
            used[name] = used.get(name, 0) + amount
    return used


def count_leaked_claims(synchronizer: contract.Synchronizer, ledger: TrueLedger) -> int:
    """Return claims of servers that do not stand on the host claimed; -1: not known."""
    try:
        pages = synchronizer.snapshot([known_namespaces.CLAIM_RECORDS.name]).pages
        found = [
            (consumer, record.key.key)
            for page in pages
            for record in page
            for consumer in codec.decode_state(record.payload).get("claims", {})
        ]
    except (errors.BackendUnavailable, contract.SnapshotInterrupted):
        return -1
    standing = ledger.standing
    return sum(standing.get(consumer) != host_uuid for consumer, host_uuid in found)
