# SPDX-License-Identifier: Apache-2.0
"""Hosts' facts from one snapshot of the store, and pages of hosts made of them.

A host's facts come of five records: its compute node's, its service's, the
service's liveness, its provider tree's and its claims, and of the aggregates
that hold it. Each part can be read by itself, for most changes touch one part.
What is claimed counts beside what the node and the provider show. One host and
all of them take the same way to the frame, as pages.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as claims_model
from nova_nodb_scheduler.scheduling.facts import aggregate_facts, journal_reader
from nova_nodb_scheduler.scheduling.frame import frame_columns, host_facts, host_places
from nova_nodb_scheduler.scheduling.namespaces import (
    claim_facts,
    known_namespaces,
    node_facts,
    service_facts,
)
from nova_nodb_scheduler.scheduling.reservations import host_reservations, reported_usage
from nova_nodb_scheduler.store import column_layout, store_snapshot


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

    def ends_of_move(self, key: str) -> tuple[tuple[str, str] | None, ...]:
        """Return (cell, host) that a migration's record comes from and goes to; None for none."""
        cell = self._migrations.indexed(key, "cell")
        ends = (self._migrations.indexed(key, name) for name in ("source", "destination"))
        return tuple(None if end is None or cell is None else (cell[0], end[0]) for end in ends)

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

_NO_SERVICE = service_facts.ServiceFacts()


class ServiceSource:
    """Services as one snapshot has them. Cheap to make; used by one thread.

    :param heard: what journals tell of them; None where there are none
    """

    def __init__(
        self, snapshot: store_snapshot.Snapshot, heard: journal_reader.HeardTimes | None = None
    ) -> None:
        self._view = snapshot.namespace(known_namespaces.SERVICES.name)
        self._liveness = snapshot.namespace(known_namespaces.SERVICE_LIVENESS.name)
        self._heard = heard

    def of_host(self, cell: str, host: str) -> service_facts.ServiceFacts:
        """Return a host's nova-compute service.

        :raises InvalidRecord: its record is not as Nova writes it
        """
        for key in reversed(self._view.lookup("cell_host", cell, host) if host else ()):
            if self._is_compute(key):
                return self._service(key)
        return _NO_SERVICE

    def of_all_hosts(self) -> Callable[[str, str], service_facts.ServiceFacts]:
        """Return what says, or raises, the same as :meth:`of_host`.

        For very many hosts: all records are looked at once, here.
        """
        view = self._view
        columns = (
            map(view.vocabulary(name).texts().__getitem__, view.column(name).tolist())
            for name in ("cell", "host", "binary")
        )
        latest: dict[tuple[str, str], tuple[str, Any]] = {}
        for key, facts, cell, host, binary in zip(
            view.row_keys(), view.digests(), *columns, strict=True
        ):
            known = latest.get((cell, host))
            if binary == COMPUTE_BINARY and host and (known is None or known[0] < key):
                latest[cell, host] = (key, facts)
        heard = dict(zip(self._liveness.row_keys(), self._liveness.digests(), strict=True))
        if self._heard is not None:
            heard |= {
                key: self._heartbeat(key)
                for key in self._heard.told()
                if isinstance(heard.get(key), float | None)
            }
        found = {place: _seen(facts, heard.get(key)) for place, (key, facts) in latest.items()}

        def of_host(cell: str, host: str) -> service_facts.ServiceFacts:
            if not cell:
                # A column does not tell an empty text from none, as indexes do.
                return self.of_host(cell, host)
            facts = found.get((cell, host), _NO_SERVICE)
            if isinstance(facts, errors.InvalidRecord):
                raise facts
            return facts

        return of_host

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
        seen = self._heartbeat(key)
        if isinstance(seen, errors.InvalidRecord):
            raise seen
        return seen

    def _heartbeat(self, key: str) -> float | errors.InvalidRecord | None:
        """Return when a service said last that it lives, or what is wrong with its record."""
        seen: float | errors.InvalidRecord | None = self._liveness.digest(key)
        if self._heard is None or isinstance(seen, errors.InvalidRecord):
            return seen
        heard = self._heard.of(key)
        return seen if heard is None else heard.seconds

    def _is_compute(self, key: str) -> bool:
        found = self._view.indexed(key, "binary")
        return found is not None and found[0] == COMPUTE_BINARY

    def _service(self, key: str) -> service_facts.ServiceFacts:
        facts = _seen(self._view.digest(key), self._heartbeat(key))
        if isinstance(facts, errors.InvalidRecord):
            raise facts
        return facts


def _seen(
    facts: service_facts.ServiceFacts | errors.InvalidRecord,
    seen: float | errors.InvalidRecord | None,
) -> service_facts.ServiceFacts | errors.InvalidRecord:
    """Return a service's facts with its last heartbeat, or what is wrong with its records."""
    if isinstance(facts, errors.InvalidRecord) or seen is None:
        return facts
    if isinstance(seen, errors.InvalidRecord):
        return seen
    return service_facts.ServiceFacts(*facts[:-1], seen)


#: Needed of every host by a filter that is nearly always enabled.
_INSTANCES_PATH = ("supported_instances",)

#: Columns of compute_nodes with what a node is called: its cell, host and own name.
_NAMES = ("cell", "host", "hypervisor_hostname")


class FactSource(Whereabouts):
    """Facts as one snapshot has them. Cheap to make; used by one thread.

    :param heard: what journals tell of services; None where there are none
    :ivar services: the services of the same snapshot
    """

    def __init__(
        self,
        snapshot: store_snapshot.Snapshot,
        *,
        reservations: host_reservations.ReservedUsage,
        heard: journal_reader.HeardTimes | None = None,
    ) -> None:
        super().__init__(snapshot)
        self.snapshot = snapshot
        self.heard = heard
        self.services = ServiceSource(snapshot, heard)
        self._reservations = reservations
        self._aggregates = snapshot.namespace(known_namespaces.AGGREGATES.name)
        self._providers = snapshot.namespace(known_namespaces.PROVIDERS.name)
        self._claims = snapshot.namespace(known_namespaces.CLAIM_RECORDS.name)
        self._reported = reported_usage.ReportedUsage(snapshot)

    # -- nodes --------------------------------------------------------------------

    def nodes(
        self, uuids: Collection[str] | None
    ) -> Iterator[tuple[str, bytes | errors.InvalidRecord, host_places.HostPlace]]:
        """Yield uuid, digest and names of compute nodes; None stands for all."""
        view = self._nodes
        if uuids is None:
            texts = (
                map(view.vocabulary(name).texts().__getitem__, view.column(name).tolist())
                for name in _NAMES
            )
            for uuid, digest, *own in zip(view.row_keys(), view.digests(), *texts, strict=True):
                yield uuid, digest, host_places.HostPlace(uuid, *own)
            return
        for uuid in uuids:
            names = view.texts(uuid, *_NAMES)
            if names is not None:
                yield uuid, view.digest(uuid), host_places.HostPlace(uuid, *names)

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

    def _unreported(
        self, uuid: str, claims: Mapping[str, claims_model.HeldClaim]
    ) -> claim_facts.UnreportedUsage:
        if not claims:
            return claim_facts.NOTHING
        record = self._providers.get(uuid)
        allocations = {} if record is None else record.state.get("allocations") or {}
        uncounted = self._reported.uncounted(uuid, self._claims.version_of(uuid) or 0)
        record_name = _name(known_namespaces.CLAIM_RECORDS.name, uuid)
        try:
            found = claim_facts.unreported_usage(
                claims, allocations, uncounted, self._reported.gave_its_old(allocations)
            )
            amounts = (*found.used.values(), *_numbers_of_share(found.share), found.devices)
            absurd = max(amounts) > _MOST_CLAIMED or min(amounts) < -_MOST_CLAIMED
        except (AttributeError, TypeError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"
            raise errors.InvalidRecord(record_name, "claims", why) from error
        if not _WHOLE_NUMBERS.issuperset(map(type, amounts)):
            raise errors.InvalidRecord(record_name, "claims", "their amounts are no whole numbers")
        if absurd:
            raise errors.InvalidRecord(record_name, "claims", "their amounts are beyond all bounds")
        return found

    # -- providers ----------------------------------------------------------------

    def provider(self, uuid: str) -> host_facts.ProviderFacts | None:
        """Return a provider tree, with what is claimed and reserved of it counted as used.

        :raises InvalidRecord: its claims are not as the ledger writes them
        """
        return self.claimed(uuid)[1]

    def claimed(
        self, uuid: str
    ) -> tuple[claim_facts.UnreportedUsage, host_facts.ProviderFacts | None]:
        """Return what claims add to a host beside its other records, and :meth:`provider`.

        :raises InvalidRecord: the record is not as the ledger writes it
        """
        claims = self.claims(uuid)
        unreported = self._unreported(uuid, claims)
        read: host_facts.ProviderFacts | None = self._providers.digest(uuid)
        if read is None:
            return unreported, None
        return unreported, self._counted(uuid, read, claims, unreported)

    def consumable(
        self, uuid: str, unreported: claim_facts.UnreportedUsage
    ) -> Mapping[str, int] | None:
        """Return what servers take of a node's own numbers, with its claims counted.

        :returns: None where the node never reported: then nothing counts
        """
        node = self._nodes.digest(uuid)
        reported = node_facts.reported(node) if isinstance(node, bytes) else None
        return None if reported is None else _less(reported, unreported)

    def unclaimed_providers(self) -> Callable[[str], host_facts.ProviderFacts | None]:
        """Return what says the same as :meth:`provider` of hosts that have no claims.

        For very many hosts: all records are looked at once, here.
        """
        read: dict[str, host_facts.ProviderFacts] = dict(
            zip(self._providers.row_keys(), self._providers.digests(), strict=True)
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
        unreported: claim_facts.UnreportedUsage,
    ) -> host_facts.ProviderFacts:
        # What this process reserved stands in its claim, once that came back.
        consumers = host_reservations.RecordedConsumers(self._providers, uuid, claims)
        unseen = self._reservations.unseen(uuid, consumers, read.generation)
        if not (claims or unseen) or read.broken:
            return read
        used = dict(read.used)
        for more in (unseen, unreported.used):
            for name, amount in more.items():
                used[name] = used.get(name, 0) + amount
        return read.with_used(used)

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
            node = self._nodes.digest(uuid)
            text = node_facts.instances_of(node) if isinstance(node, bytes) else None
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


def _name(namespace: str, key: str) -> str:
    return f"{namespace}/{key}"


#: What is made on the way of so many hosts is soon used again for the next.
_HOSTS_AT_A_TIME = 4096


_numbers_of_share = operator.attrgetter(
    "vcpus", "memory_mb", "disk_gb", "instances", "io_operations"
)
#: Of a class, or of the node's own numbers: columns hold 64 bits.
_MOST_CLAIMED = 2**48
_WHOLE_NUMBERS = frozenset((int, bool))
_LEAST, _GREATEST = column_layout.LEAST, column_layout.GREATEST


@attrs.define(eq=False)
class ReadHosts:
    """Some hosts as they were read.

    :param page: those whose records are sound
    :param refused: what is wrong with the records of the others, by uuid
    """

    page: frame_columns.HostPage = attrs.field(factory=frame_columns.HostPage)
    refused: dict[str, str] = attrs.field(factory=dict)


def read_hosts(
    source: FactSource,
    ratios: node_facts.DefaultRatios,
    aggregates: aggregate_facts.AggregateMemberships,
    uuids: Collection[str] | None = None,
) -> Iterator[ReadHosts]:
    """Read hosts, some thousand at a time.

    :param uuids: of nodes that there are; None for all, whose records are looked at together
    """
    if uuids is None or len(uuids) >= _HOSTS_AT_A_TIME:
        service_of, provider_of = source.services.of_all_hosts(), source.unclaimed_providers()
        is_claimed: Callable[[str], bool] = frozenset(source.claimed_uuids()).__contains__
    else:
        service_of, provider_of = source.services.of_host, source.provider
        is_claimed = source.is_claimed
    faultless = aggregates.faultless
    read = ReadHosts()
    for key, node, place in source.nodes(uuids):
        if isinstance(node, errors.InvalidRecord):
            read.refused[key] = str(node)
            continue
        unreported = None
        try:
            service = service_of(place.cell, place.host)
            if is_claimed(key):
                unreported, provider = source.claimed(key)
            else:
                provider = provider_of(key)
        except errors.InvalidRecord as error:
            read.refused[key] = str(error)
            continue
        fault = None if faultless else aggregates.fault(place.host)
        if fault is not None:
            read.refused[key] = fault
            continue
        row = node_facts.host_row(node, ratios, service)
        page = read.page
        page.places.append(place)
        page.rows.append(row if unreported is None else _counted(row, unreported))
        page.aggregates.append(aggregates.of(place.host))
        page.providers.append(provider)
        if len(page.rows) == _HOSTS_AT_A_TIME:
            yield read
            read = ReadHosts()
    if read.page or read.refused:
        yield read


def _counted(row: bytes, unreported: claim_facts.UnreportedUsage) -> bytes:
    """Return a host's packed row with claims counted, as Nova's HostState would consume them."""
    its = frame_columns.numbers_of(row)
    if not its["updated"]:
        return row
    its.update(_less(its, unreported))
    return frame_columns.ROW.pack(*its.values())


def _less(its: Mapping[str, int], unreported: claim_facts.UnreportedUsage) -> dict[str, int]:
    """Return a node's :data:`.frame_columns.CONSUMABLE` numbers less what claims add."""
    share = unreported.share
    return {
        "free_ram_mb": max(_LEAST, its["free_ram_mb"] - share.memory_mb),
        "free_disk_mb": max(_LEAST, its["free_disk_mb"] - share.disk_gb * 1024),
        "vcpus_used": min(_GREATEST, its["vcpus_used"] + share.vcpus),
        "num_instances": min(_GREATEST, its["num_instances"] + share.instances),
        "num_io_ops": min(_GREATEST, its["num_io_ops"] + share.io_operations),
        "pci_free": max(0, its["pci_free"] - unreported.devices),
    }
