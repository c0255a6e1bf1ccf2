# SPDX-License-Identifier: Apache-2.0
"""A host's claim record as facts, and what claims add to what other records show.

What a host has used is the union by consumer of what is reported and what is
claimed: of a consumer in both only what is claimed beyond what is reported counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import requests

Resources = Mapping[str, int]

#: From a consumer and its claim to what the claim takes of the node's own report
#: and the node's record does not count yet.
Uncounted = Callable[[str, model.HeldClaim], model.NodeShare]

#: Says whether a provider shows the migration that a consumer gave its allocation to: what it
#: shows by the consumer's own uuid was written after that then.
GaveItsOld = Callable[[str], bool]

_NO_SHARE = model.NodeShare()


@attrs.frozen
class UnreportedUsage:
    """What claims add to a host beside its other records.

    :param used: by resource class of the root provider
    :param share: what to take of the node's own report, all claims together;
        its ``fitted`` is empty
    :param fitted: NUMA topologies and PCI requests, as the adapter wrote them,
        by consumer, in the order of the host's record
    :param devices: PCI devices among them
    """

    used: Resources = attrs.field(factory=dict)
    share: model.NodeShare = _NO_SHARE
    fitted: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    devices: int = 0


#: What the adapter writes beside them, for who cannot read them: how many devices.
DEVICES = "pci_devices"

NOTHING = UnreportedUsage()


def digest(key: str, state: Mapping[str, Any]) -> model.ClaimRecord | errors.InvalidRecord | None:
    """Return a host's claims; None where there are none, for most records stay empty."""
    try:
        # The version tells when a claim was confirmed, which nobody asks a digest.
        record = model.ClaimRecord.from_state(key, state, 0)
    except errors.UndecodableRecord as error:
        return errors.InvalidRecord(f"claims/{key}", "claims", error.reason)
    return record if record.claims or record.lapsed else None


def unreported_usage(
    claims: Mapping[str, model.HeldClaim],
    reported: Mapping[str, Resources],
    uncounted: Uncounted,
    gave_its_old: GaveItsOld,
) -> UnreportedUsage:
    """Return what claims add to a host.

    :param claims: by consumer, pending ones included, whatever their lease
    :param reported: the provider's allocations by consumer
    :param gave_its_old: by the same allocations
    """
    used: dict[str, int] = {}
    fitted: dict[str, Mapping[str, Any]] = {}
    vcpus = memory_mb = disk_gb = instances = io_operations = 0
    # For every claim of a host, whichever changed: nothing is called that need not be.
    for consumer, held in claims.items():
        more = held.resources
        if consumer in reported:
            shown = reported[consumer]
            # First what costs no call: nearly all come.
            if held.node.instances:
                more = {} if shown == more else beyond(more, held.node, shown)
            elif held.state is model.ClaimState.CONFIRMED or not stays(held.node):
                more = beyond(more, held.node, shown, gave_its_old=gave_its_old(consumer))
        for name, amount in more.items():
            used[name] = used[name] + amount if name in used else amount
        share = uncounted(consumer, held)
        vcpus += share.vcpus
        memory_mb += share.memory_mb
        disk_gb += share.disk_gb
        instances += share.instances
        io_operations += share.io_operations
        if share.fitted:
            fitted[consumer] = share.fitted
    devices = sum([int(each.get(DEVICES, 0)) for each in fitted.values()])
    left = model.NodeShare(vcpus, memory_mb, disk_gb, instances, io_operations)
    return UnreportedUsage(used, left, fitted, devices)


def beyond(
    claimed: Resources,
    node: model.NodeShare,
    reported: Resources,
    *,
    gave_its_old: bool = False,
) -> dict[str, int]:
    """Return what a claim holds beyond what its consumer is reported with, by class.

    Of a server that is on the node already, whose old allocation goes to its
    migration, another amount reported, a smaller or a greater one, is the old one until
    the mirror followed: old and new are both used then. An equal one tells nothing: it is
    resized there to other devices, or to as much of its root's as it had. Only that its
    migration is reported beside it does; whoever asks of a claim before that is written is
    not to ask this.

    :param gave_its_old: see :data:`GaveItsOld`
    """
    if not reported:
        return dict(claimed)
    if stays(node):
        is_old = not gave_its_old or any(
            amount != reported.get(name, 0) for name, amount in claimed.items()
        )
        return dict(claimed) if is_old else {}
    return {
        name: amount - reported.get(name, 0)
        for name, amount in claimed.items()
        if amount > reported.get(name, 0)
    }


def share_of(request: requests.Request, *, stays: bool = False) -> model.NodeShare:
    """Return what a server of a request takes of its node's own report.

    As Nova's HostState.consume_from_request: whoever comes builds or moves.

    :param stays: it is on the node already: resized there, it is one of the
        node's instances before and after
    """
    flavor = request.flavor
    return model.NodeShare(
        vcpus=flavor.vcpus,
        memory_mb=flavor.memory_mb,
        disk_gb=flavor.root_gb + flavor.ephemeral_gb,
        instances=0 if stays else 1,
        io_operations=1,
        fitted=request.fitted,
    )


def stays(node: model.NodeShare) -> bool:
    """Say whether a claim is of a server that was on the node when it was claimed."""
    return not node.instances and node != _NO_SHARE
