# SPDX-License-Identifier: Apache-2.0
"""Hosts' facts from one snapshot of the store.

A host's facts come of five records: its compute node's, its service's, the
service's liveness, its provider tree's and its claims, and of the aggregates
that hold it. Each part can be read by itself, for most changes touch one part.
What is claimed counts beside what the node and the provider show.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Hashable, Iterator, Mapping
from typing import Any, Protocol

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as claims_model
from nova_nodb_scheduler.model import namespaces as namespaces_model
from nova_nodb_scheduler.scheduling import (
    claim_facts,
    fields,
    host_facts,
    kept_nodes,
    memberships,
    namespaces,
    node_facts,
    service_facts,
    shown,
)
from nova_nodb_scheduler.store import snapshot as snapshot_module

#: Of all services that may run on a host, the one a compute node belongs to.
COMPUTE_BINARY = "nova-compute"

#: Major version of Nova's Aggregate object that is understood.
_OBJECT_MAJOR = "1"

#: Needed of every host by a filter that is nearly always enabled.
_INSTANCES_PATH = ("supported_instances",)

NAMESPACES = (
    namespaces.COMPUTE_NODES.name,
    namespaces.SERVICES.name,
    namespaces.SERVICE_LIVENESS.name,
    namespaces.INSTANCES.name,
    namespaces.AGGREGATES.name,
    namespaces.PROVIDERS.name,
    namespaces.CLAIM_RECORDS.name,
    namespaces.MIGRATIONS.name,
)


class Reservations(Protocol):
    """What this process promised of hosts and no record shows yet."""

    def unseen(
        self, host_uuid: str, consumers: Container[str], generation: int
    ) -> Mapping[str, int]:
        """Return what to count as used of a host beside its provider's record."""

    def expire(self) -> Collection[str]:
        """Return hosts whose reservations were given up since the last call."""


class NoReservations:
    """For whoever promises nothing."""

    def unseen(
        self, host_uuid: str, consumers: Container[str], generation: int
    ) -> Mapping[str, int]:
        """Return nothing."""
        return {}

    def expire(self) -> Collection[str]:
        """Return nothing."""
        return ()


class _Consumers:
    """The consumers of a host's claims and in its provider's record.

    The record is decoded when somebody asks.
    """

    def __init__(
        self, providers: snapshot_module.NamespaceView, uuid: str, claimed: Container[str]
    ) -> None:
        self._providers, self._uuid, self._claimed = providers, uuid, claimed

    def __contains__(self, consumer: object) -> bool:
        if consumer in self._claimed:
            return True
        record = self._providers.get(self._uuid)
        return record is not None and consumer in (record.state.get("allocations") or ())


class FactSource:
    """Facts as one snapshot has them. Cheap to make; used by one thread.

    :param ratios: what stands for a ratio that a node's record lacks
    """

    def __init__(
        self,
        snapshot: snapshot_module.Snapshot,
        *,
        ratios: node_facts.DefaultRatios,
        reservations: Reservations,
    ) -> None:
        self.snapshot = snapshot
        self._ratios = ratios
        self._reservations = reservations
        self._nodes = snapshot.namespace(namespaces.COMPUTE_NODES.name)
        self._services = snapshot.namespace(namespaces.SERVICES.name)
        self._liveness = snapshot.namespace(namespaces.SERVICE_LIVENESS.name)
        self._instances = snapshot.namespace(namespaces.INSTANCES.name)
        self._aggregates = snapshot.namespace(namespaces.AGGREGATES.name)
        self._providers = snapshot.namespace(namespaces.PROVIDERS.name)
        self._claims = snapshot.namespace(namespaces.CLAIM_RECORDS.name)
        self._migrations = snapshot.namespace(namespaces.MIGRATIONS.name)
        self._shown = shown.Shown(snapshot)
        self._cells = self._instances.vocabulary("cell").texts()

    # -- whole hosts ------------------------------------------------------------

    def node_uuids(self) -> Iterator[str]:
        """Iterate over the uuids of all compute nodes, in no order."""
        return self._nodes.keys()

    def facts(
        self, uuid: str, aggregates: Callable[[str], tuple[str, ...]]
    ) -> host_facts.HostFacts | None:
        """Return all that is known of a compute node; None where there is no such node.

        :param aggregates: uuids of aggregates by host name
        :raises InvalidRecord: a record is not as Nova writes it
        """
        node: host_facts.HostFacts | errors.InvalidRecord | None = self._nodes.digest(uuid)
        if node is None:
            return None
        if isinstance(node, errors.InvalidRecord):
            raise node
        service = self.service(node.cell, node.host)
        unshown = self.unshown(uuid)
        claimed: dict[str, Any] = _counts(node, unshown)
        return attrs.evolve(
            node,
            **claimed,
            cpu_allocation_ratio=node.cpu_allocation_ratio or self._ratios.cpu,
            ram_allocation_ratio=node.ram_allocation_ratio or self._ratios.ram,
            disk_allocation_ratio=node.disk_allocation_ratio or self._ratios.disk,
            has_service=service.has_service,
            disabled=service.disabled,
            forced_down=service.forced_down,
            last_seen_seconds=service.last_seen_seconds,
            aggregates=aggregates(node.host),
            provider=self.provider(uuid, unshown),
        )

    # -- claims -------------------------------------------------------------------

    def claims(self, uuid: str) -> Mapping[str, claims_model.HeldClaim]:
        """Return a host's claims by consumer.

        :raises InvalidRecord: the record is not as the ledger writes it
        """
        record: claims_model.ClaimRecord | errors.InvalidRecord | None = self._claims.digest(uuid)
        if isinstance(record, errors.InvalidRecord):
            raise record
        return {} if record is None else record.claims

    def is_claimed(self, uuid: str) -> bool:
        """Return whether a host has claims, readable or not."""
        return self._claims.digest(uuid) is not None

    def claimed_uuids(self) -> Iterator[str]:
        """Iterate over the uuids of hosts that were ever claimed, in no order."""
        return self._claims.keys()

    def unshown(self, uuid: str) -> claim_facts.Unshown:
        """Return what claims add to a host beside its other records.

        :raises InvalidRecord: the record is not as the ledger writes it
        """
        claims = self.claims(uuid)
        if not claims:
            return claim_facts.NOTHING
        record = self._providers.get(uuid)
        allocations = {} if record is None else record.state.get("allocations") or {}
        stored = self._claims.get(uuid)
        uncounted = self._shown.uncounted(uuid, 0 if stored is None else stored.version)
        return claim_facts.unshown(claims, allocations, uncounted)

    def counts(self, uuid: str, unshown: claim_facts.Unshown) -> Mapping[str, int]:
        """Return the facts of a node that claims change, by name."""
        node = self._nodes.digest(uuid)
        return _counts(node, unshown) if isinstance(node, host_facts.HostFacts) else {}

    # -- services -----------------------------------------------------------------

    def service(self, cell: str, host: str) -> service_facts.ServiceFacts:
        """Return a host's nova-compute service.

        :raises InvalidRecord: its record is not as Nova writes it
        """
        for key in reversed(self._services.lookup("cell_host", cell, host) if host else ()):
            if self._is_compute(key):
                return self._service(key)
        return service_facts.ServiceFacts()

    def services(self) -> dict[tuple[str, str], service_facts.ServiceFacts | errors.InvalidRecord]:
        """Return what :meth:`service` says, or raises, of each host that has one."""
        view = self._services
        columns = (
            map(view.vocabulary(name).text, view.column(name).tolist())
            for name in ("cell", "host", "binary")
        )
        latest: dict[tuple[str, str], tuple[str, Any]] = {}
        for key, facts, cell, host, binary in zip(
            view.row_keys(), view.kept_digests(), *columns, strict=True
        ):
            known = latest.get((cell, host))
            if binary == COMPUTE_BINARY and host and (known is None or known[0] < key):
                latest[cell, host] = (key, facts)
        return {place: self._seen(key, facts) for place, (key, facts) in latest.items()}

    def _seen(
        self, key: str, facts: service_facts.ServiceFacts | errors.InvalidRecord
    ) -> service_facts.ServiceFacts | errors.InvalidRecord:
        if isinstance(facts, errors.InvalidRecord):
            return facts
        seen: float | errors.InvalidRecord | None = self._liveness.digest(key)
        if seen is None or isinstance(seen, errors.InvalidRecord):
            return facts if seen is None else seen
        return service_facts.ServiceFacts(
            facts.has_service, facts.disabled, facts.forced_down, seen
        )

    def host_of_service(self, key: str) -> tuple[str, str] | None:
        """Return (cell, host) of a nova-compute service; None for any other."""
        if not self._is_compute(key):
            return None
        found = self._services.indexed(key, "cell_host")
        return None if found is None else (found[0], found[1])

    def is_only_service(self, key: str, cell: str, host: str) -> bool:
        """Return whether no other service runs on a service's host."""
        return self._services.lookup("cell_host", cell, host) == (key,)

    def last_seen_seconds(self, key: str) -> float | None:
        """Return when a service said last that it lives; None if it never did.

        :raises InvalidRecord: the record is not as the reporters write it
        """
        seen: float | errors.InvalidRecord | None = self._liveness.digest(key)
        if isinstance(seen, errors.InvalidRecord):
            raise seen
        return seen

    def _is_compute(self, key: str) -> bool:
        found = self._services.indexed(key, "binary")
        return found is not None and found[0] == COMPUTE_BINARY

    def _service(self, key: str) -> service_facts.ServiceFacts:
        facts: service_facts.ServiceFacts | errors.InvalidRecord = self._services.digest(key)
        if isinstance(facts, errors.InvalidRecord):
            raise facts
        seen = self.last_seen_seconds(key)
        return facts if seen is None else attrs.evolve(facts, last_seen_seconds=seen)

    # -- providers ----------------------------------------------------------------

    def provider(
        self, uuid: str, unshown: claim_facts.Unshown | None = None
    ) -> host_facts.ProviderFacts | None:
        """Return a provider tree, with what is claimed and promised of it counted as used.

        :param unshown: what claims add to the host, where the caller knows it
        :raises InvalidRecord: its claims are not as the ledger writes them
        """
        read: host_facts.ProviderFacts | None = self._providers.digest(uuid)
        if read is None:
            return None
        claims = self.claims(uuid)
        if unshown is None:
            unshown = self.unshown(uuid) if claims else claim_facts.NOTHING
        # What this process promised stands in its claim, once that came back.
        consumers = _Consumers(self._providers, uuid, claims)
        unseen = self._reservations.unseen(uuid, consumers, read.generation)
        if not (claims or unseen) or read.broken:
            return read
        used = dict(read.used)
        for more in (unseen, unshown.used):
            for name, amount in more.items():
                used[name] = used.get(name, 0) + amount
        return attrs.evolve(read, used=used)

    def shared(self, uuid: str) -> host_facts.ProviderFacts | None:
        """Return a provider tree that is no host's as its record has it."""
        read: host_facts.ProviderFacts | None = self._providers.digest(uuid)
        return read

    def provider_uuids(self) -> Iterator[str]:
        """Iterate over the uuids of all root providers, in no order."""
        return self._providers.keys()

    # -- nodes by what they belong to -----------------------------------------------

    def has_node(self, uuid: str) -> bool:
        """Return whether there is a compute node of that uuid."""
        return uuid in self._nodes

    def host_of_node(self, uuid: str) -> tuple[str, str] | None:
        """Return (cell, host) of a compute node; None for none."""
        found = self._nodes.indexed(uuid, "cell_host")
        return None if found is None else (found[0], found[1])

    def nodes_of_host(self, cell: str, host: str) -> tuple[str, ...]:
        """Return the uuids of a host's compute nodes."""
        return self._nodes.lookup("cell_host", cell, host)

    def nodes_named(self, host: str) -> tuple[str, ...]:
        """Return the uuids of the compute nodes of a host name, in any cell."""
        return self._nodes.lookup("host", host)

    # -- servers --------------------------------------------------------------------

    def host_of_instance(self, key: str) -> tuple[str, str] | None:
        """Return (cell, host) of an instance's record; None for none."""
        found = self._instances.indexed(key, "cell_host")
        return None if found is None else (found[0], found[1])

    def destination(self, key: str) -> tuple[str, str] | None:
        """Return (cell, host) that a migration's record goes to; None for none."""
        found = self._migrations.indexed(key, "destination")
        cell = self._migrations.indexed(key, "cell")
        return None if found is None or cell is None else (cell[0], found[0])

    # -- aggregates -----------------------------------------------------------------

    def aggregate_uuids(self) -> Iterator[str]:
        """Iterate over the uuids of all aggregates, in no order."""
        return self._aggregates.keys()

    def aggregate(self, uuid: str) -> memberships.AggregateFacts | None:
        """Return an aggregate, with its fault if it has one; None where there is none."""
        record = self._aggregates.get(uuid)
        if record is None:
            return None
        whole = fields.Fields(_name(namespaces.AGGREGATES.name, uuid), record.state)
        try:
            whole.check_major(_OBJECT_MAJOR)
            row = whole.mapping("row")
            return memberships.AggregateFacts(
                host_facts.Aggregate(
                    uuid, row.integer("id"), row.text("name"), row.texts("metadata")
                ),
                frozenset(row.get("hosts")),
            )
        except errors.InvalidRecord as error:
            # The hosts are a column of the namespace: what they are, the store has checked.
            hosts = namespaces_model.value_at(record.state, ("row", "hosts")) or ()
            return memberships.AggregateFacts(
                host_facts.Aggregate(uuid, 0), frozenset(hosts), str(error)
            )

    # -- what has no column -----------------------------------------------------------

    def attribute(self, uuid: str, path: tuple[str, ...]) -> Hashable:
        """Return what stands at a path of a host's HostState, see node_facts.attribute."""
        if path == _INSTANCES_PATH:
            text = kept_nodes.instances(self._nodes.kept_digest(uuid))
            if text is not None:
                return node_facts.parse_instances(text)
        record = self._nodes.get(uuid)
        if record is None:
            return None
        try:
            return node_facts.attribute(
                _name(namespaces.COMPUTE_NODES.name, uuid), record.state, path
            )
        except errors.NodbError:
            return None  # the host has been left out for it

    def locate(self, uuid: str) -> tuple[tuple[str, str], ...]:
        """Return (cell, host) of each place where an instance of that uuid is known."""
        places = []
        for cell in self._cells:
            place = self._instances.indexed(f"{uuid}@{cell}", "cell_host")
            if place is not None:
                places.append((place[0], place[1]))
        return tuple(places)


class Present:
    """The facts of now, for callbacks that a frame takes when it is made.

    :ivar source: set by the frame's keeper
    """

    def __init__(self) -> None:
        self.source: FactSource | None = None

    def attribute(self, uuid: str, path: tuple[str, ...]) -> Hashable:
        """See :meth:`FactSource.attribute`."""
        return None if self.source is None else self.source.attribute(uuid, path)

    def locate(self, uuid: str) -> tuple[tuple[str, str], ...]:
        """See :meth:`FactSource.locate`."""
        return () if self.source is None else self.source.locate(uuid)


def _counts(node: host_facts.HostFacts, unshown: claim_facts.Unshown) -> dict[str, int]:
    """Return what Nova's HostState would have once the claims were consumed from it."""
    share = unshown.share
    return {
        "free_ram_mb": node.free_ram_mb - share.memory_mb,
        "free_disk_mb": node.free_disk_mb - share.disk_gb * 1024,
        "vcpus_used": node.vcpus_used + share.vcpus,
        "num_instances": node.num_instances + share.instances,
        "num_io_ops": node.num_io_ops + share.io_operations,
        "pci_free": max(0, node.pci_free - unshown.devices),
    }


def _name(namespace: str, key: str) -> str:
    return f"{namespace}/{key}"
