# SPDX-License-Identifier: Apache-2.0
"""Hosts' facts from one snapshot of the store, one by one or column by column.

Which host a record belongs to, from the indexes of one snapshot of the store.

The nova-compute services of hosts and their heartbeats, from one snapshot of the store.

Hosts' facts from one snapshot of the store.

A host's facts come of five records: its compute node's, its service's, the
service's liveness, its provider tree's and its claims, and of the aggregates
that hold it. Each part can be read by itself, for most changes touch one part.
What is claimed counts beside what the node and the provider show.

Many hosts at once, column by column, from one snapshot of the store.

A frame's first fill is the longest wait of a worker that starts. Hosts whose
records say nothing unusual are taken here; whoever asks takes the others one
by one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterator, Mapping
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as claims_model
from nova_nodb_scheduler.scheduling.facts import aggregate_facts
from nova_nodb_scheduler.scheduling.frame import frame_columns, host_facts, host_places
from nova_nodb_scheduler.scheduling.namespaces import (
    claim_facts,
    known_namespaces,
    node_facts,
    service_facts,
)
from nova_nodb_scheduler.scheduling.reservations import host_reservations, reported_usage
from nova_nodb_scheduler.store import store_snapshot


class Whereabouts:
    """Nodes, servers and moves by host. Cheap to make; used by one thread."""

    def __init__(self, snapshot: store_snapshot.Snapshot) -> None:
        self._nodes = snapshot.namespace(known_namespaces.COMPUTE_NODES.name)
        self._instances = snapshot.namespace(known_namespaces.INSTANCES.name)
        self._migrations = snapshot.namespace(known_namespaces.MIGRATIONS.name)
        self._cells = self._instances.vocabulary("cell").texts()

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

    def host_of_instance(self, key: str) -> tuple[str, str] | None:
        """Return (cell, host) of an instance's record; None for none."""
        found = self._instances.indexed(key, "cell_host")
        return None if found is None else (found[0], found[1])

    def destination(self, key: str) -> tuple[str, str] | None:
        """Return (cell, host) that a migration's record goes to; None for none."""
        found = self._migrations.indexed(key, "destination")
        cell = self._migrations.indexed(key, "cell")
        return None if found is None or cell is None else (cell[0], found[0])

    def locate(self, uuid: str) -> tuple[tuple[str, str], ...]:
        """Return (cell, host) of each place where an instance of that uuid is known."""
        places = []
        for cell in self._cells:
            place = self._instances.indexed(f"{uuid}@{cell}", "cell_host")
            if place is not None:
                places.append((place[0], place[1]))
        return tuple(places)


#: Of all services that may run on a host, the one a compute node belongs to.
COMPUTE_BINARY = "nova-compute"


class ServiceSource:
    """Services as one snapshot has them. Cheap to make; used by one thread."""

    def __init__(self, snapshot: store_snapshot.Snapshot) -> None:
        self._view = snapshot.namespace(known_namespaces.SERVICES.name)
        self._liveness = snapshot.namespace(known_namespaces.SERVICE_LIVENESS.name)

    def of_host(self, cell: str, host: str) -> service_facts.ServiceFacts:
        """Return a host's nova-compute service.

        :raises InvalidRecord: its record is not as Nova writes it
        """
        for key in reversed(self._view.lookup("cell_host", cell, host) if host else ()):
            if self._is_compute(key):
                return self._service(key)
        return service_facts.ServiceFacts()

    def of_all(self) -> dict[tuple[str, str], service_facts.ServiceFacts | errors.InvalidRecord]:
        """Return what :meth:`of_host` says, or raises, of each host that has one."""
        view = self._view
        columns = (
            map(view.vocabulary(name).texts().__getitem__, view.column(name).tolist())
            for name in ("cell", "host", "binary")
        )
        latest: dict[tuple[str, str], tuple[str, Any]] = {}
        for key, facts, cell, host, binary in zip(
            view.row_keys(), view.kept_digests(), *columns, strict=True
        ):
            known = latest.get((cell, host))
            if binary == COMPUTE_BINARY and host and (known is None or known[0] < key):
                latest[cell, host] = (key, facts)
        heard = dict(zip(self._liveness.row_keys(), self._liveness.kept_digests(), strict=True))
        return {place: _seen(facts, heard.get(key)) for place, (key, facts) in latest.items()}

    def host_of_service(self, key: str) -> tuple[str, str] | None:
        """Return (cell, host) of a nova-compute service; None for any other."""
        if not self._is_compute(key):
            return None
        found = self._view.indexed(key, "cell_host")
        return None if found is None else (found[0], found[1])

    def is_only_service(self, key: str, cell: str, host: str) -> bool:
        """Return whether no other service runs on a service's host."""
        return self._view.lookup("cell_host", cell, host) == (key,)

    def last_seen_seconds(self, key: str) -> float | None:
        """Return when a service said last that it lives; None if it never did.

        :raises InvalidRecord: the record is not as the reporters write it
        """
        seen: float | errors.InvalidRecord | None = self._liveness.digest(key)
        if isinstance(seen, errors.InvalidRecord):
            raise seen
        return seen

    def _is_compute(self, key: str) -> bool:
        found = self._view.indexed(key, "binary")
        return found is not None and found[0] == COMPUTE_BINARY

    def _service(self, key: str) -> service_facts.ServiceFacts:
        facts: service_facts.ServiceFacts | errors.InvalidRecord = self._view.digest(key)
        if isinstance(facts, errors.InvalidRecord):
            raise facts
        seen = self.last_seen_seconds(key)
        return facts if seen is None else attrs.evolve(facts, last_seen_seconds=seen)


def _seen(
    facts: service_facts.ServiceFacts | errors.InvalidRecord,
    seen: float | errors.InvalidRecord | None,
) -> service_facts.ServiceFacts | errors.InvalidRecord:
    """Return a service's facts with its last heartbeat, or what is wrong with its records."""
    if isinstance(facts, errors.InvalidRecord) or seen is None:
        return facts
    if isinstance(seen, errors.InvalidRecord):
        return seen
    return service_facts.ServiceFacts(facts.has_service, facts.disabled, facts.forced_down, seen)


#: Needed of every host by a filter that is nearly always enabled.
_INSTANCES_PATH = ("supported_instances",)

NAMESPACES = (
    known_namespaces.COMPUTE_NODES.name,
    known_namespaces.SERVICES.name,
    known_namespaces.SERVICE_LIVENESS.name,
    known_namespaces.INSTANCES.name,
    known_namespaces.AGGREGATES.name,
    known_namespaces.PROVIDERS.name,
    known_namespaces.CLAIM_RECORDS.name,
    known_namespaces.MIGRATIONS.name,
)


class FactSource(Whereabouts):
    """Facts as one snapshot has them. Cheap to make; used by one thread.

    :ivar services: the services of the same snapshot

    :param ratios: what stands for a ratio that a node's record lacks
    """

    def __init__(
        self,
        snapshot: store_snapshot.Snapshot,
        *,
        ratios: node_facts.DefaultRatios,
        reservations: host_reservations.ReservedUsage,
    ) -> None:
        super().__init__(snapshot)
        self.snapshot = snapshot
        self.services = ServiceSource(snapshot)
        self._ratios = ratios
        self._reservations = reservations
        self._aggregates = snapshot.namespace(known_namespaces.AGGREGATES.name)
        self._providers = snapshot.namespace(known_namespaces.PROVIDERS.name)
        self._claims = snapshot.namespace(known_namespaces.CLAIM_RECORDS.name)
        self._shown = reported_usage.ReportedUsage(snapshot)

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
        found = self._node(uuid)
        if found is None:
            return None
        unshown = self.unshown(uuid)
        found.update(_counts(found, unshown))
        for name, default in attrs.asdict(self._ratios).items():
            found[f"{name}_allocation_ratio"] = found[f"{name}_allocation_ratio"] or default
        found.update(attrs.asdict(self.services.of_host(found["cell"], found["host"])))
        found["aggregates"] = aggregates(found["host"])
        found["provider"] = self.provider(uuid, unshown)
        return host_facts.HostFacts(**found)

    def _node(self, uuid: str) -> dict[str, Any] | None:
        """Return what a compute node's own record says, by names of HostFacts; None for no node.

        :raises InvalidRecord: the record is not as Nova writes it
        """
        kept = self._nodes.kept_digest(uuid)
        names = self._nodes.texts(uuid, *node_facts.NAMES)
        if names is None:
            return None
        if isinstance(kept, errors.InvalidRecord):
            raise kept
        return node_facts.packed_fields(uuid, kept, names)

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

    def unshown(self, uuid: str) -> claim_facts.UnreportedUsage:
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
        return claim_facts.unreported_usage(claims, allocations, uncounted)

    def counts(self, uuid: str, unshown: claim_facts.UnreportedUsage) -> Mapping[str, int]:
        """Return the facts of a node that claims change, by name.

        :raises InvalidRecord: the node's record is not as Nova writes it
        """
        node = self._node(uuid)
        return {} if node is None else _counts(node, unshown)

    # -- providers ----------------------------------------------------------------

    def provider(
        self, uuid: str, unshown: claim_facts.UnreportedUsage | None = None
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
        return self._counted(uuid, read, claims, unshown)

    def unclaimed_providers(self) -> Callable[[str], host_facts.ProviderFacts | None]:
        """Return what says the same as :meth:`provider` of hosts that have no claims.

        For very many hosts: all records are looked at once, here.
        """
        read: dict[str, host_facts.ProviderFacts] = dict(
            zip(self._providers.row_keys(), self._providers.kept_digests(), strict=True)
        )

        def provider(uuid: str) -> host_facts.ProviderFacts | None:
            found = read.get(uuid)
            if found is None:
                return None
            return self._counted(uuid, found, {}, claim_facts.NOTHING)

        return provider

    def _counted(
        self,
        uuid: str,
        read: host_facts.ProviderFacts,
        claims: Mapping[str, claims_model.HeldClaim],
        unshown: claim_facts.UnreportedUsage,
    ) -> host_facts.ProviderFacts:
        # What this process promised stands in its claim, once that came back.
        consumers = host_reservations.RecordedConsumers(self._providers, uuid, claims)
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

    # -- aggregates -----------------------------------------------------------------

    def aggregate_uuids(self) -> Iterator[str]:
        """Iterate over the uuids of all aggregates, in no order."""
        return self._aggregates.keys()

    def aggregate(self, uuid: str) -> aggregate_facts.AggregateFacts | None:
        """Return an aggregate, with its fault if it has one; None where there is none."""
        record = self._aggregates.get(uuid)
        if record is None:
            return None
        return aggregate_facts.read_aggregate(
            _name(known_namespaces.AGGREGATES.name, uuid), uuid, record.state
        )

    # -- what has no column -----------------------------------------------------------

    def attribute(self, uuid: str, path: tuple[str, ...]) -> Hashable:
        """Return what stands at a path of a host's HostState, see node_facts.attribute."""
        if path == _INSTANCES_PATH:
            text = node_facts.packed_instances(self._nodes.kept_digest(uuid))
            if text is not None:
                return node_facts.parse_instances(text)
        record = self._nodes.get(uuid)
        if record is None:
            return None
        try:
            return node_facts.attribute(
                _name(known_namespaces.COMPUTE_NODES.name, uuid), record.state, path
            )
        except errors.NodbError:
            return None  # the host has been left out for it


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


def _counts(node: Mapping[str, Any], unshown: claim_facts.UnreportedUsage) -> dict[str, int]:
    """Return what Nova's HostState would have once the claims were consumed from it.

    :param node: facts by name
    """
    share = unshown.share
    return {
        "free_ram_mb": node["free_ram_mb"] - share.memory_mb,
        "free_disk_mb": node["free_disk_mb"] - share.disk_gb * 1024,
        "vcpus_used": node["vcpus_used"] + share.vcpus,
        "num_instances": node["num_instances"] + share.instances,
        "num_io_ops": node["num_io_ops"] + share.io_operations,
        "pci_free": max(0, node["pci_free"] - unshown.devices),
    }


def _name(namespace: str, key: str) -> str:
    return f"{namespace}/{key}"


#: What is made on the way of so many hosts is soon used again for the next.
_HOSTS_AT_A_TIME = 4096


@attrs.frozen(eq=False)
class HostBatch:
    """Hosts, each once; lists and arrays have an item for each.

    :param numbers: by name of a frame's plain column, shape (n,)
    :param aggregates: uuids of Nova's aggregates, in the order of their ids
    """

    places: list[host_places.HostPlace]
    numbers: dict[str, npt.NDArray[Any]]
    aggregates: list[tuple[str, ...]]
    providers: list[host_facts.ProviderFacts | None]


def read_batches(
    source: FactSource,
    nodes: store_snapshot.NamespaceView,
    ratios: node_facts.DefaultRatios,
    aggregates: Callable[[str], tuple[str, ...]],
    known: Container[str],
) -> Iterator[HostBatch]:
    """Read all hosts that can be read together and are not known, some at a time.

    What is read of each equals what :meth:`FactSource.facts` says.

    :param nodes: the compute nodes of the source's snapshot
    :param aggregates: uuids of aggregates by host name
    """
    names = (
        map(nodes.vocabulary(name).texts().__getitem__, nodes.column(name).tolist())
        for name in ("cell", "host", "hypervisor_hostname")
    )
    running = source.services.of_all()
    claimed = set(filter(source.is_claimed, source.claimed_uuids()))
    provider = source.unclaimed_providers()
    kept: list[bytes] = []
    places: list[host_places.HostPlace] = []
    services: list[service_facts.ServiceFacts] = []
    providers: list[host_facts.ProviderFacts | None] = []
    for key, digest, cell, host, node in zip(
        nodes.row_keys(), nodes.kept_digests(), *names, strict=True
    ):
        if type(digest) is not bytes or key in known or key in claimed:
            continue
        service = running.get((cell, host), _NO_SERVICE)
        # A column does not tell an empty text from none, as indexes do.
        if isinstance(service, errors.InvalidRecord) or not (cell and host):
            continue
        kept.append(digest)
        places.append(host_places.HostPlace(key, cell, host, node))
        services.append(service)
        providers.append(provider(key))
        if len(kept) == _HOSTS_AT_A_TIME:
            yield _batch(kept, places, services, providers, ratios, aggregates)
            kept, places, services, providers = [], [], [], []
    if kept:
        yield _batch(kept, places, services, providers, ratios, aggregates)


def _batch(
    kept: list[bytes],
    places: list[host_places.HostPlace],
    services: list[service_facts.ServiceFacts],
    providers: list[host_facts.ProviderFacts | None],
    ratios: node_facts.DefaultRatios,
    aggregates: Callable[[str], tuple[str, ...]],
) -> HostBatch:
    rows = np.frombuffer(b"".join(kept), node_facts.ROW)
    numbers = _numbers(rows, ratios)
    for name, dtype in _SERVICE_COLUMNS.items():
        said = (getattr(service, name) for service in services)
        numbers[name] = np.fromiter(said, dtype, len(services))
    return HostBatch(places, numbers, [aggregates(place.host) for place in places], providers)


_NO_SERVICE = service_facts.ServiceFacts()
_SERVICE_COLUMNS = {
    field.name: frame_columns.PLAIN_COLUMNS[field.name]
    for field in attrs.fields(service_facts.ServiceFacts)
}


def _numbers(
    rows: npt.NDArray[Any], ratios: node_facts.DefaultRatios
) -> dict[str, npt.NDArray[Any]]:
    numbers: dict[str, npt.NDArray[Any]] = {
        name: rows[name].copy()
        for name in frame_columns.PLAIN_COLUMNS
        if name not in _SERVICE_COLUMNS
    }
    for name, default in (("cpu", ratios.cpu), ("ram", ratios.ram), ("disk", ratios.disk)):
        column = numbers[f"{name}_allocation_ratio"]
        column[column == 0] = default
    for name in frame_columns.REPORTED:
        numbers[name][~numbers["updated"]] = 0
    return numbers
