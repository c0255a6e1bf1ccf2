# SPDX-License-Identifier: Apache-2.0
"""Whether a claim fits on its host, beside all that is reported and all that is claimed.

Asked by the ledger with the claim record as it was just read; everything else
is as one snapshot of the store has it. Never blocks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.scheduling import decision_settings
from nova_nodb_scheduler.scheduling.frame import host_facts
from nova_nodb_scheduler.scheduling.namespaces import claim_facts, known_namespaces, node_facts
from nova_nodb_scheduler.scheduling.reservations import reported_usage
from nova_nodb_scheduler.store import store_snapshot as snapshot_module

#: See :data:`nova_nodb_scheduler.synchronizer.claims.claim_rules.Fits`.
Fits = Callable[[model.Claim, model.ClaimRecord], bool]

#: (node uuid, what the claim wants fitted, by consumer what other claims have
#: fitted that the node's record does not count, in the order in which it was granted)
#: -> whether it fits. What is fitted is :attr:`~model.NodeShare.fitted`.
Fitted = Callable[[str, Mapping[str, Any], Mapping[str, Mapping[str, Any]]], bool]

#: Version of a record that is about to be written: later than all that is reported. In one
#: that was read each claim that is confirmed says since when.
_NOT_WRITTEN = sys.maxsize

#: Names of Nova's options.
_INSTANCES = "max_instances_per_host"
_BUSY = "max_io_ops_per_host"


@attrs.frozen
class InstanceLimits:
    """How many servers, and how many busy ones, hosts may have.

    :param numbers: by name of the option, of those that an enabled filter keeps
    :param plain: names of options that hold for all hosts
    :param by_aggregates: names that a host's aggregates may set; both may be
    """

    numbers: Mapping[str, int] = attrs.field(factory=dict)
    plain: frozenset[str] = frozenset()
    by_aggregates: frozenset[str] = frozenset()

    @classmethod
    def of(cls, settings: decision_settings.SchedulingOptions) -> InstanceLimits:
        """Return the bounds that the enabled filters keep."""
        enabled = frozenset(settings.enabled_filters)
        own = {_INSTANCES: "NumInstancesFilter", _BUSY: "IoOpsFilter"}
        plain = frozenset(name for name, each in own.items() if each in enabled)
        aggregates = frozenset(name for name, each in own.items() if f"Aggregate{each}" in enabled)
        numbers = {name: int(getattr(settings, name)) for name in plain | aggregates}
        return cls(numbers, plain, aggregates)

    def bound(self, name: str, aggregates: Iterable[host_facts.HostAggregate]) -> float:
        """Return what a number must stay below on a host of some aggregates."""
        bounds = [float("inf")]
        if name in self.plain:
            bounds.append(self.numbers[name])
        if name in self.by_aggregates:
            texts = {each.metadata[name] for each in aggregates if name in each.metadata}
            try:
                bounds.append(min(map(int, texts), default=self.numbers[name]))
            except ValueError:
                # As in Nova one value that is no number makes the option count.
                bounds.append(self.numbers[name])
        return min(bounds)


def unreported_usage_of(
    snapshot: snapshot_module.Snapshot, uuid: str
) -> claim_facts.UnreportedUsage:
    """Return what claims add to a host beside its other records, as a snapshot has them.

    Costs a look-up where there are none.
    """
    claims = snapshot.namespace(known_namespaces.CLAIM_RECORDS.name)
    found, record = claims.digest(uuid), claims.get(uuid)
    if record is None or not isinstance(found, model.ClaimRecord):
        return claim_facts.NOTHING
    provider = snapshot.namespace(known_namespaces.PROVIDERS.name).get(uuid)
    allocations = {} if provider is None else provider.state.get("allocations") or {}
    reported = reported_usage.ReportedUsage(snapshot)
    return claim_facts.unreported_usage(
        found.claims,
        allocations,
        reported.uncounted(uuid, record.version),
        reported.gave_its_old(allocations),
    )


def fits_anything(uuid: str, wanted: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Say yes: for whoever has no NUMA cells and PCI devices to fit."""
    return True


def make_fits(
    snapshot: snapshot_module.Snapshot,
    bounds: InstanceLimits,
    aggregates_of: Callable[[str], tuple[host_facts.HostAggregate, ...]] = lambda uuid: (),
    fitted: Fitted = fits_anything,
) -> Fits:
    """Return what tells whether a claim fits, for claims decided on a snapshot.

    The view to give to the ledger is how far that snapshot's store had come.

    :param aggregates_of: Nova's aggregates of a compute node, by its uuid
    :param fitted: see :data:`Fitted`; called only where a claim wants it
    """
    return _Fitting(snapshot, bounds, aggregates_of, fitted).fits


class _Fitting:
    def __init__(
        self,
        snapshot: snapshot_module.Snapshot,
        bounds: InstanceLimits,
        aggregates_of: Callable[[str], tuple[host_facts.HostAggregate, ...]],
        fitted: Fitted,
    ) -> None:
        self._nodes = snapshot.namespace(known_namespaces.COMPUTE_NODES.name)
        self._providers = snapshot.namespace(known_namespaces.PROVIDERS.name)
        self._reported = reported_usage.ReportedUsage(snapshot)
        self._bounds = bounds
        self._aggregates_of = aggregates_of
        self._fitted = fitted

    def fits(self, claim: model.Claim, record: model.ClaimRecord) -> bool:
        others = {name: held for name, held in record.claims.items() if name != claim.consumer}
        allocations = self._allocations(claim.host)
        uncounted = self._reported.uncounted(claim.host, _NOT_WRITTEN)
        unreported = claim_facts.unreported_usage(
            others, allocations, uncounted, self._reported.gave_its_old(allocations)
        )
        return (
            self._has_capacity(claim, allocations, unreported)
            and self._is_within_bounds(claim, unreported.share)
            and (
                not claim.node.fitted
                or self._fitted(claim.host, claim.node.fitted, unreported.fitted)
            )
        )

    def _allocations(self, uuid: str) -> Mapping[str, Mapping[str, int]]:
        record = self._providers.get(uuid)
        return {} if record is None else record.state.get("allocations") or {}

    def _has_capacity(
        self,
        claim: model.Claim,
        allocations: Mapping[str, Mapping[str, int]],
        unreported: claim_facts.UnreportedUsage,
    ) -> bool:
        provider: host_facts.ProviderFacts | None = self._providers.digest(claim.host)
        if provider is None or provider.broken is not None:
            # Its capacity is Placement's alone to tell.
            return True
        # What a server has that is resized on its host is its migration's beside the new.
        own: Mapping[str, int] = {}
        if not claim_facts.stays(claim.node):
            own = allocations.get(claim.consumer, own)
        for name, amount in claim.resources.items():
            inventory = provider.inventories.get(name)
            if inventory is None:
                return False
            used = provider.used.get(name, 0) + unreported.used.get(name, 0)
            # As in Placement what asks for no more has to fit, too: what it is reported
            # with may have gone back, and its place to another.
            if used + amount - own.get(name, 0) > inventory.capacity:
                return False
        return True

    def _is_within_bounds(self, claim: model.Claim, others: model.NodeShare) -> bool:
        node = self._nodes.digest(claim.host)
        if not isinstance(node, bytes):
            return False
        instances, busy = (
            node_facts.number(node, name) for name in ("num_instances", "num_io_ops")
        )
        asked = (
            (_INSTANCES, claim.node.instances, instances + others.instances),
            (_BUSY, claim.node.io_operations, busy + others.io_operations),
        )
        aggregates = self._aggregates_of(claim.host) if self._bounds.by_aggregates else ()
        return all(
            not wanted or there < self._bounds.bound(name, aggregates)
            for name, wanted, there in asked
        )
