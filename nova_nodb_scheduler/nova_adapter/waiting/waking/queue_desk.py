# SPDX-License-Identifier: Apache-2.0
"""What a scheduler tells operators of requests that wait, and does for them.

Any scheduler of the plugin: all of them follow the records, and what changes one is a
compare-and-set. Only where the queue is worked at is it known who goes before whom.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.nova_adapter.waiting.waking import pending_plans
from nova_nodb_scheduler.rpc import queue_endpoint
from nova_nodb_scheduler.scheduling.frame import host_places
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.pipeline import decision_steps
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.pending import pending_ledger
from nova_nodb_scheduler.synchronizer.waking import followed_requests, pending_fit, queue_grants
from nova_nodb_scheduler.wire import explanations, pending_objects

_PENDING = known_namespaces.PENDING.name


@attrs.frozen
class DeskParts:
    """What a desk works with.

    :param host: of this scheduler
    :param quarantined: how many records of the namespace no store can hold
    :param proof_age_seconds: how old what the store holds may be; None: any age
    :param place: names of a compute node's host; None where it is not known
    :param plans: what tells why a request does not fit; None where nothing decides from memory
    :param followed: who waits, in order; None where this scheduler does not wake anybody
    """

    host: str
    store: host_state_store.HostStateStore
    ledger: pending_ledger.PendingLedger
    grants: queue_grants.QueueGrants
    clock: Callable[[], float]
    quarantined: Callable[[], int]
    proof_age_seconds: Callable[[], float | None]
    place: Callable[[str], host_places.HostPlace | None]
    plans: pending_plans.PendingPlans | None = None
    followed: followed_requests.FollowedRequests | None = None


class QueueDesk:
    """Fulfils :class:`.queue_endpoint.PendingOperations`; any thread."""

    def __init__(self, parts: DeskParts) -> None:
        self._parts = parts

    def known(self) -> queue_endpoint.KnownRequests:
        """Return all requests, as the store has them. No I/O."""
        parts = self._parts
        proof_age_seconds = parts.proof_age_seconds()
        found = parts.store.snapshot().namespace(_PENDING).digests()
        requests = [each for each in found if isinstance(each, pending.PendingRequest)]
        return queue_endpoint.KnownRequests(
            requests,
            len(found) - len(requests) + parts.quarantined(),
            parts.clock(),
            proof_age_seconds,
        )

    def find(self, server: str) -> pending.PendingRequest | None:
        """Return the request of a server. No I/O."""
        parts = self._parts
        found = parts.store.snapshot().namespace(_PENDING).digest(server)
        if isinstance(found, pending.PendingRequest):
            return found
        return next((each for each in self.known().requests if server in each.servers), None)

    def cancel(self, context: Any, request: pending.PendingRequest) -> queue_endpoint.Changed:
        """Have a request end in ERROR: a conductor is told, and the deadline is now.

        :raises BackendUnavailable: not known whether it will
        """
        parts = self._parts
        granted = parts.grants.grant(request, pending.Purpose.CANCEL)
        if granted is not None:
            return queue_endpoint.Changed(queue_endpoint.Outcome.DONE, granted)
        standing = parts.ledger.read(request.key)
        if standing is None:
            return queue_endpoint.Changed(queue_endpoint.Outcome.GONE)
        is_cancelled = standing.grant.purpose is pending.Purpose.CANCEL
        outcome = queue_endpoint.Outcome.DONE if is_cancelled else queue_endpoint.Outcome.BUSY
        return queue_endpoint.Changed(outcome, standing)

    def promote(self, request: pending.PendingRequest, rank: int) -> queue_endpoint.Changed:
        """Give a request another rank.

        :raises BackendUnavailable: not known whether it has it
        """
        parts = self._parts
        step = parts.ledger.promote(request.key, rank)
        if isinstance(step, pending.PendingRequest):
            return queue_endpoint.Changed(queue_endpoint.Outcome.DONE, step)
        return queue_endpoint.Changed(queue_endpoint.Outcome.GONE)

    # -- why it waits ---------------------------------------------------------------------

    def details(
        self, context: Any, request: pending.PendingRequest, hosts: int
    ) -> pending_objects.PendingDetails:
        """Tell why a request does not fit, and what would have to be freed where."""
        found = pending_objects.PendingDetails(
            request=pending_objects.of_request(request),
            scheduler=self._parts.host,
            now=self._parts.clock(),
            ahead=self._ahead(request),
            fits=0,
            possible=0,
            counts=[],
            hosts=[],
            why_unknown="",
        )
        plans = self._parts.plans
        if plans is None:
            found.why_unknown = "this scheduler does not decide from memory"
            return found
        try:
            told = plans.explain(request, plans.view())
            short = plans.shortage(request, hosts)
        except pending_fit.HostsUnproved as why:
            found.why_unknown = f"hosts are not proved: {why}"
            return found
        for each in (told, short):
            if isinstance(each, pending_fit.NotTold):
                found.why_unknown = each.reason
                return found
        assert not isinstance(told, pending_fit.NotTold)
        assert not isinstance(short, pending_fit.NotTold)
        counts, found.fits = told
        found.counts = _counts(counts)
        found.possible = short.possible
        found.hosts = self._shortfalls(request.needs, short)
        return found

    def _ahead(self, request: pending.PendingRequest) -> int | None:
        """Return how many that wait go before one; a pass over all of them."""
        followed = self._parts.followed
        if followed is None or request.state is not pending.PendingState.WAITING:
            return None
        with followed.lock:
            ordered = followed.queues.ordered(self._parts.clock())
            for place, each in enumerate(ordered):
                if each.key == request.key:
                    return place
        return None

    def _shortfalls(
        self, needs: Mapping[str, int], short: pending_fit.RoomShortage
    ) -> list[pending_objects.HostShortfall]:
        asked = np.array([needs[name] for name in short.resources], np.int64)
        held = self._held()
        found = []
        missing = np.maximum(asked - short.free, 0)
        for at, uuid in enumerate(short.uuids):
            place = self._parts.place(uuid)
            if place is None:
                continue
            found.append(
                pending_objects.HostShortfall(
                    uuid=uuid,
                    cell=place.cell,
                    host=place.host,
                    node=place.node,
                    free=dict(zip(short.resources, short.free[at].tolist(), strict=True)),
                    missing=_some(short.resources, missing[at].tolist()),
                    held_for=held.get(uuid),
                )
            )
        return found

    def _held(self) -> Mapping[str, str]:
        followed = self._parts.followed
        if followed is None:
            return {}
        with followed.lock:
            return followed.queues.held_hosts(self._parts.clock())


def _some(names: Sequence[str], amounts: Sequence[int]) -> dict[str, int]:
    return {name: amount for name, amount in zip(names, amounts, strict=True) if amount}


def _counts(counts: Sequence[decision_steps.FilterCount]) -> list[explanations.StepCount]:
    return [
        explanations.StepCount(name=each.name, before=each.before, after=each.after)
        for each in counts
    ]
