# SPDX-License-Identifier: Apache-2.0
"""The made hosts as they run: what they build and delete, who lives, what they say when.

A change marks records dirty; the reporter publishes what stands then. Nothing
here knows the back end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import attrs

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.simulator import cluster as cluster_module
from nova_nodb_scheduler.simulator import host_records, workload
from nova_nodb_scheduler.simulator import ledger as ledger_module

NODES = namespaces.COMPUTE_NODES.name
SERVICES = namespaces.SERVICES.name
LIVENESS = namespaces.SERVICE_LIVENESS.name
MAPPINGS = namespaces.HOST_MAPPINGS.name
PROVIDERS = namespaces.PROVIDERS.name
INSTANCES = namespaces.INSTANCES.name


@attrs.define
class _Running:
    """A host at work.

    :param used: by its own count: what is built, residents included
    """

    host: cluster_module.Host
    used: dict[str, int]
    servers: dict[str, workload.Flavor] = attrs.field(factory=dict)
    beats: int = 1
    seen_seconds: float = 0.0
    lost_at: float | None = None


@attrs.define
class _Server:
    flavor: workload.Flavor
    host_uuid: str
    built: bool = False


class Fleet:
    """All hosts. One thread.

    :param mark: told of each record that changed
    """

    def __init__(
        self,
        cluster: cluster_module.Cluster,
        ledger: ledger_module.Ledger,
        mark: Callable[[records.RecordKey], None],
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._mark = mark
        self._hosts = {host.uuid: _Running(host, dict(host.resident)) for host in cluster.hosts}
        self._by_service = {host.service_uuid: host.uuid for host in cluster.hosts}
        self._servers: dict[str, _Server] = {}
        self._changed_at = 0.0

    # -- servers --------------------------------------------------------------------

    def accept(self, server: str, flavor: workload.Flavor, host_uuid: str) -> None:
        """Begin to build a server that was granted."""
        self._servers[server] = _Server(flavor, host_uuid)
        self._dirty(INSTANCES, host_records.instance_key(server))

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
        running.servers[server] = found.flavor
        for name, amount in found.flavor.resources.items():
            running.used[name] = running.used.get(name, 0) + amount
        self._dirty(INSTANCES, host_records.instance_key(server))
        self._dirty(NODES, found.host_uuid)
        return True

    def deleted(self, server: str) -> None:
        """Take a server away, from a lost host too: Nova's API does so."""
        found = self._servers.pop(server, None)
        if found is None:
            return
        running = self._hosts[found.host_uuid]
        if running.servers.pop(server, None) is not None:
            for name, amount in found.flavor.resources.items():
                running.used[name] -= amount
        self._dirty(INSTANCES, host_records.instance_key(server))
        self._dirty(NODES, found.host_uuid)
        self._dirty(PROVIDERS, found.host_uuid)

    def written(self, host_uuid: str) -> None:
        """Note that allocations on a host changed."""
        self._dirty(PROVIDERS, host_uuid)

    # -- hosts ----------------------------------------------------------------------

    def beat(self, host: cluster_module.Host, now_seconds: float) -> None:
        """Have a host say that it lives, if it does."""
        running = self._hosts[host.uuid]
        if running.lost_at is None:
            running.beats += 1
            running.seen_seconds = now_seconds
            self._dirty(LIVENESS, host.service_uuid)

    def report(self, host: cluster_module.Host, now_seconds: float) -> None:
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

    def state(self, key: records.RecordKey) -> host_records.State | None:
        """Return what a record should hold now; None for no record."""
        name = key.key
        if key.namespace == INSTANCES:
            found = self._servers.get(name.partition("@")[0])
            if found is None:
                return None
            host = self._hosts[found.host_uuid].host if found.built else None
            return host_records.instance(host, found.flavor.resources)
        if key.namespace == LIVENESS:
            running = self._hosts[self._by_service[name]]
            return host_records.liveness(running.beats, running.seen_seconds)
        if key.namespace == PROVIDERS:
            return self._provider(self._hosts[name])
        return self._node(self._hosts[name])

    def everything(self) -> Iterator[tuple[records.RecordKey, host_records.State]]:
        """Iterate over all records, hosts by hosts, servers last."""
        for running in self._hosts.values():
            host = running.host
            yield _key(SERVICES, host.service_uuid), host_records.service(host)
            yield _key(MAPPINGS, host.name), host_records.host_mapping(host)
            beat = host_records.liveness(running.beats, running.seen_seconds)
            yield _key(LIVENESS, host.service_uuid), beat
            yield _key(PROVIDERS, host.uuid), self._provider(running)
            yield _key(NODES, host.uuid), self._node(running)
        for server in self._servers:
            key = _key(INSTANCES, host_records.instance_key(server))
            state = self.state(key)
            if state is not None:
                yield key, state

    def _node(self, running: _Running) -> host_records.State:
        servers = len(running.servers) + bool(running.host.resident)
        return host_records.node(running.host, running.used, servers, self._changed_at)

    def _provider(self, running: _Running) -> host_records.State:
        uuid = running.host.uuid
        return host_records.provider(
            running.host, self._ledger.generations[uuid], self._allocations(uuid)
        )

    def _allocations(self, host_uuid: str) -> Mapping[str, Mapping[str, int]]:
        return self._ledger.allocations(host_uuid)

    def _dirty(self, namespace: str, name: str) -> None:
        self._mark(_key(namespace, name))


def _key(namespace: str, name: str) -> records.RecordKey:
    return records.RecordKey(namespace, name)
