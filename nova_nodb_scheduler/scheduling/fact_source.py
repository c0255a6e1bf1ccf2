# SPDX-License-Identifier: Apache-2.0
"""Hosts' facts from one snapshot of the store.

A host's facts come of five records: its compute node's, its service's, the
service's liveness, its provider tree's and its claims, and of the aggregates
that hold it. Each part can be read by itself, for most changes touch one part.
What is claimed counts beside what the node and the provider show.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as claims_model
from nova_nodb_scheduler.scheduling import (
    aggregate_facts,
    claim_facts,
    host_facts,
    kept_nodes,
    memberships,
    namespaces,
    node_facts,
    promises,
    service_source,
    shown,
    whereabouts,
)
from nova_nodb_scheduler.store import snapshot as snapshot_module

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


class FactSource(whereabouts.Whereabouts):
    """Facts as one snapshot has them. Cheap to make; used by one thread.

    :ivar services: the services of the same snapshot

    :param ratios: what stands for a ratio that a node's record lacks
    """

    def __init__(
        self,
        snapshot: snapshot_module.Snapshot,
        *,
        ratios: node_facts.DefaultRatios,
        reservations: promises.Reservations,
    ) -> None:
        super().__init__(snapshot)
        self.snapshot = snapshot
        self.services = service_source.ServiceSource(snapshot)
        self._ratios = ratios
        self._reservations = reservations
        self._aggregates = snapshot.namespace(namespaces.AGGREGATES.name)
        self._providers = snapshot.namespace(namespaces.PROVIDERS.name)
        self._claims = snapshot.namespace(namespaces.CLAIM_RECORDS.name)
        self._shown = shown.Shown(snapshot)

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
        names = self._nodes.texts(uuid, *kept_nodes.NAMES)
        if names is None:
            return None
        if isinstance(kept, errors.InvalidRecord):
            raise kept
        return kept_nodes.fields(uuid, kept, names)

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
        """Return the facts of a node that claims change, by name.

        :raises InvalidRecord: the node's record is not as Nova writes it
        """
        node = self._node(uuid)
        return {} if node is None else _counts(node, unshown)

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
        unshown: claim_facts.Unshown,
    ) -> host_facts.ProviderFacts:
        # What this process promised stands in its claim, once that came back.
        consumers = promises.Consumers(self._providers, uuid, claims)
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

    def aggregate(self, uuid: str) -> memberships.AggregateFacts | None:
        """Return an aggregate, with its fault if it has one; None where there is none."""
        record = self._aggregates.get(uuid)
        if record is None:
            return None
        return aggregate_facts.read(_name(namespaces.AGGREGATES.name, uuid), uuid, record.state)

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


def _counts(node: Mapping[str, Any], unshown: claim_facts.Unshown) -> dict[str, int]:
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
