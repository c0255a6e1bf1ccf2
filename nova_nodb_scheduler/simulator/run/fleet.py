# SPDX-License-Identifier: Apache-2.0
"""The made hosts as they run: what they build and delete, who lives, what they say when.

A change marks records dirty; the reporter publishes what stands then. Nothing
here knows the back end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import attrs

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.simulator.run import measures as measures_module
from nova_nodb_scheduler.simulator.run import true_ledger as ledger_module
from nova_nodb_scheduler.simulator.run import waiting_measures
from nova_nodb_scheduler.simulator.scenario import made_hosts, run_clock, run_options, workload

NODES = known_namespaces.COMPUTE_NODES.name
SERVICES = known_namespaces.SERVICES.name
LIVENESS = known_namespaces.SERVICE_LIVENESS.name
MAPPINGS = known_namespaces.HOST_MAPPINGS.name
PROVIDERS = known_namespaces.PROVIDERS.name
INSTANCES = known_namespaces.INSTANCES.name


@attrs.define
class _Running:
    """A host at work.

    :param used: by its own count: what is built, residents included
    :param servers: that are built, the residents left out
    """

    host: made_hosts.MadeHost
    used: dict[str, int]
    servers: int = 0
    beats: int = 1
    seen_seconds: float = 0.0
    lost_at: float | None = None


@attrs.define
class _Server:
    flavor: workload.MadeFlavor
    host_uuid: str
    project_id: str
    built: bool = False


class Fleet:
    """All hosts. One thread.

    :param mark: told of each record that changed
    :param hear: told of each heartbeat: the service's key, its count and when, in simulated
        seconds
    """

    def __init__(
        self,
        cluster: made_hosts.Cluster,
        ledger: ledger_module.TrueLedger,
        mark: Callable[[records.RecordKey], None],
        hear: Callable[[str, int, float], None],
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._mark = mark
        self._hear = hear
        self._hosts = {host.uuid: _Running(host, dict(host.resident)) for host in cluster.hosts}
        self._by_service = {host.service_uuid: host.uuid for host in cluster.hosts}
        self._servers: dict[str, _Server] = {}
        self._changed_at = 0.0

    # -- servers --------------------------------------------------------------------

    def stand(self, server: str, flavor: workload.MadeFlavor, host_uuid: str) -> None:
        """Have a server stand there since before the run, whose records nobody was told of."""
        self._servers[server] = _Server(flavor, host_uuid, workload.PROJECT, built=True)
        self._count(flavor, host_uuid)

    def accept(
        self, server: str, flavor: workload.MadeFlavor, host_uuid: str, project_id: str
    ) -> None:
        """Begin to build a server that was granted."""
        self._servers[server] = _Server(flavor, host_uuid, project_id)
        self._dirty(INSTANCES, made_hosts.instance_key(server))

    def built(self, server: str) -> bool:
        """Have a host count a server; False if it is lost, and the server waits.

        As nova-compute does: the server's record names the host, then the node
        counts it.
        """
        found = self._servers.get(server)
        if found is None or found.built:
            return True
        running = self._hosts[found.host_uuid]
        if running.lost_at is not None:
            return False
        found.built = True
        self._count(found.flavor, found.host_uuid)
        self._dirty(INSTANCES, made_hosts.instance_key(server))
        self._dirty(NODES, found.host_uuid)
        return True

    def _count(self, flavor: workload.MadeFlavor, host_uuid: str) -> None:
        running = self._hosts[host_uuid]
        running.servers += 1
        for name, amount in flavor.resources.items():
            running.used[name] = running.used.get(name, 0) + amount

    def deleted(self, server: str) -> None:
        """Take a server away, from a lost host too: Nova's API does so."""
        found = self._servers.pop(server, None)
        if found is None:
            return
        if found.built:
            running = self._hosts[found.host_uuid]
            running.servers -= 1
            for name, amount in found.flavor.resources.items():
                running.used[name] -= amount
        self._dirty(INSTANCES, made_hosts.instance_key(server))
        self._dirty(NODES, found.host_uuid)
        self._dirty(PROVIDERS, found.host_uuid)

    def departed(self, host_uuid: str, flavor: workload.MadeFlavor) -> None:
        """Count one of the servers from before the run no longer."""
        used = self._hosts[host_uuid].used
        for name, amount in flavor.resources.items():
            used[name] -= amount
        self._dirty(NODES, host_uuid)
        self._dirty(PROVIDERS, host_uuid)

    def written(self, host_uuid: str) -> None:
        """Note that allocations on a host changed."""
        self._dirty(PROVIDERS, host_uuid)

    # -- hosts ----------------------------------------------------------------------

    def beat(self, host: made_hosts.MadeHost, now_seconds: float) -> None:
        """Have a host say that it lives, if it does."""
        running = self._hosts[host.uuid]
        if running.lost_at is None:
            running.beats += 1
            running.seen_seconds = now_seconds
            self._hear(host.service_uuid, running.beats, now_seconds)

    def report(self, host: made_hosts.MadeHost, now_seconds: float) -> None:
        """Have a host report itself, if it lives."""
        self._changed_at = now_seconds
        if self._hosts[host.uuid].lost_at is None:
            self._dirty(NODES, host.uuid)

    def lose(self, rack: int, now_seconds: float) -> None:
        """Take a rack's power away."""
        for host in self._cluster.rack(rack):
            self._hosts[host.uuid].lost_at = now_seconds

    def find(self, rack: int, now_seconds: float) -> list[str]:
        """Give it back; return the servers whose builds can go on."""
        waiting = []
        for host in self._cluster.rack(rack):
            self._hosts[host.uuid].lost_at = None
            self.beat(host, now_seconds)
            self.report(host, now_seconds)
        for server, found in self._servers.items():
            if not found.built and self._hosts[found.host_uuid].host.rack == rack:
                waiting.append(server)
        return waiting

    def lost_at(self, host_uuid: str) -> float | None:
        """Return since when a host is lost; None if it lives."""
        return self._hosts[host_uuid].lost_at

    # -- records --------------------------------------------------------------------

    def state(self, key: records.RecordKey) -> made_hosts.State | None:
        """Return what a record should hold now; None for no record."""
        name = key.key
        if key.namespace == INSTANCES:
            found = self._servers.get(name.partition("@")[0])
            if found is None:
                return None
            host = self._hosts[found.host_uuid].host if found.built else None
            return made_hosts.instance(host, found.flavor.resources, found.project_id)
        if key.namespace == LIVENESS:
            running = self._hosts[self._by_service[name]]
            return made_hosts.liveness(running.beats, running.seen_seconds)
        if key.namespace == PROVIDERS:
            return self._provider(self._hosts[name])
        return self._node(self._hosts[name])

    def everything(self) -> Iterator[tuple[records.RecordKey, made_hosts.State]]:
        """Iterate over all records, hosts by hosts, servers last."""
        for running in self._hosts.values():
            host = running.host
            yield _key(SERVICES, host.service_uuid), made_hosts.service(host)
            yield _key(MAPPINGS, host.name), made_hosts.host_mapping(host)
            beat = made_hosts.liveness(running.beats, running.seen_seconds)
            yield _key(LIVENESS, host.service_uuid), beat
            yield _key(PROVIDERS, host.uuid), self._provider(running)
            yield _key(NODES, host.uuid), self._node(running)
        for server in self._servers:
            key = _key(INSTANCES, made_hosts.instance_key(server))
            state = self.state(key)
            if state is not None:
                yield key, state

    def _node(self, running: _Running) -> made_hosts.State:
        servers = running.servers + bool(running.host.resident)
        return made_hosts.node(running.host, running.used, servers, self._changed_at)

    def _provider(self, running: _Running) -> made_hosts.State:
        uuid = running.host.uuid
        return made_hosts.provider(
            running.host, self._ledger.generations[uuid], self._allocations(uuid)
        )

    def _allocations(self, host_uuid: str) -> Mapping[str, Mapping[str, int]]:
        return self._ledger.allocations(host_uuid)

    def _dirty(self, namespace: str, name: str) -> None:
        self._mark(_key(namespace, name))


def _key(namespace: str, name: str) -> records.RecordKey:
    return records.RecordKey(namespace, name)


#: How often hosts' beats and reports are looked after, simulated seconds.
TICK_SECONDS = 0.5


@attrs.define(eq=False, slots=False)
class HostTicks:
    """The hosts' own pace. One thread."""

    _options: run_options.RunOptions
    _cluster: made_hosts.Cluster
    _fleet: Fleet
    _ledger: ledger_module.TrueLedger
    _measures: measures_module.Measures
    _clock: run_clock.RunClock
    _events: run_clock.Events
    _waiting: waiting_measures.WaitingMeasures | None = None
    _ticked: float = attrs.field(init=False, default=0.0)

    def tick(self) -> None:
        """Have those hosts beat and report whose time came since the last tick; again soon."""
        now = self._clock.now_seconds()
        for host in self._due(self._options.heartbeat_seconds, now):
            self._fleet.beat(host, now)
        for host in self._due(self._options.report_seconds, now):
            self._fleet.report(host, now)
        used = self._ledger.used_share()
        self._measures.fill.append((now, used))
        if self._waiting is not None:
            self._waiting.samples.append((now, used, self._waiting.waiting))
        self._ticked = now
        self._events.at(now + TICK_SECONDS, self.tick)

    def _due(self, every_seconds: float, now: float) -> list[made_hosts.MadeHost]:
        """Return the hosts whose turn is since the last tick; turns are spread evenly."""
        hosts = self._cluster.hosts
        first = int(self._ticked / every_seconds * len(hosts))
        last = min(int(now / every_seconds * len(hosts)), first + len(hosts))
        return [hosts[number % len(hosts)] for number in range(first, last)]
