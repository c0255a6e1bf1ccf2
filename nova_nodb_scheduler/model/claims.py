# SPDX-License-Identifier: Apache-2.0
"""Claims: what schedulers promise one another, as frozen values.

A claim is keyed by consumer (instance uuid, or migration uuid), host and
resource. All claims on a host stand in one record, so that one
compare-and-set both checks and takes. What a host has used is the *union by
consumer* of what the authority shows and what is claimed, never their sum.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records

#: What a state that is none of a record's makes whoever reads it raise.
MALFORMED = (AttributeError, KeyError, TypeError, ValueError)


class ClaimState(enum.Enum):
    """How far a claim got."""

    #: Taken; its lease runs by the back end's clock until it is confirmed.
    PENDING = "pending"
    #: The allocation is written. Time alone never ends it.
    CONFIRMED = "confirmed"


class RefusalReason(enum.Enum):
    """Why a claim was refused."""

    #: It does not fit beside what the record holds.
    FULL = "full"
    #: The consumer holds other resources there; release those first.
    HELD = "held with other resources"
    #: The claimer's store lacks what was settled on that host: catch up, retry.
    STALE_VIEW = "view is older than the last settlement"
    #: The back end began a new epoch after the claimer's view was taken.
    EPOCH_CHANGED = "epoch changed"
    #: The host has not been published again since the epoch began.
    NOT_CLAIMABLE = "not yet published in this epoch"
    #: A server group's policy rules the host out.
    GROUP_POLICY = "server group policy"


@attrs.frozen
class NodeShare:
    """What a server takes of what its node reports, until the node has reported it.

    :param memory_mb: MiB, like ``vcpus`` and ``disk_gb`` (GiB) as the flavor
        has them: what Nova takes off a HostState when a server goes to it
    :param instances: 1, or 0 where the server is on the node already
    :param io_operations: 1 where it will build, resize or move there
    :param fitted: what only the adapter reads: the NUMA topology and the PCI
        requests, by name; empty where the server needs none
    """

    vcpus: int = 0
    memory_mb: int = 0
    disk_gb: int = 0
    instances: int = 0
    io_operations: int = 0
    fitted: Mapping[str, Any] = attrs.field(factory=dict)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> NodeShare:
        return cls(**{name: value for name, value in state.items() if name in _OF_A_SHARE})

    def to_state(self) -> dict[str, Any]:
        # For every claim on a host whenever one of them changes: attrs.asdict is dear.
        values = zip(_OF_A_SHARE, _values_of_a_share(self), strict=True)
        return {name: value for name, value in values if value}


#: Fields of a share, in the order in which they are written.
_OF_A_SHARE = tuple(attrs.fields_dict(NodeShare))
_values_of_a_share = operator.attrgetter(*_OF_A_SHARE)


@attrs.frozen
class Claim:
    """What a scheduler asks for.

    :param host: uuid of the node
    :param resources: amounts by resource class, positive
    :param node: what it takes of what the node itself reports, see
        :class:`NodeShare`
    :param place: what a server group's policy calls the host: its name, the
        same for all its nodes; empty where the uuid itself will do
    """

    consumer: str
    host: str
    resources: Mapping[str, int]
    node: NodeShare = attrs.field(factory=NodeShare)
    place: str = ""

    @property
    def group_place(self) -> tuple[str, str]:
        """The place it takes in a server group: consumer and host as the policy knows it."""
        return self.consumer, self.place or self.host


@attrs.frozen
class HeldClaim:
    """A claim as it stands in its host's record.

    :param claim_id: recognises one taking of the claim, across retries and
        unknown outcomes
    :param writer: id of the scheduler that took it
    :param node: see :class:`Claim`
    :param deadline_seconds: end of the lease by the back end's clock; None
        once confirmed
    :param confirmed_by: a version by which it was confirmed; None while it is
        pending, and between the confirm and the next reading
    :param extra: fields of newer minor versions, kept verbatim
    """

    resources: Mapping[str, int]
    state: ClaimState
    claim_id: str
    writer: str
    deadline_seconds: float | None = None
    confirmed_by: int | None = None
    node: NodeShare = attrs.field(factory=NodeShare)
    extra: Mapping[str, Any] = attrs.field(factory=dict)
    #: The state that it was read from, where it is still written as that: each change of a
    #: record reads and writes all claims in it, of which it leaves all but one as they are.
    _state: dict[str, Any] | None = attrs.field(init=False, default=None, eq=False, repr=False)

    def expired(self, now_seconds: float) -> bool:
        """Say whether anyone may drop it. Until someone did, it counts."""
        return self.deadline_seconds is not None and self.deadline_seconds <= now_seconds

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> HeldClaim:
        held = cls(
            resources=dict(state["resources"]),
            state=ClaimState(state["state"]),
            claim_id=state["claim_id"],
            writer=state["writer"],
            deadline_seconds=state.get("deadline_seconds"),
            confirmed_by=state.get("confirmed_by"),
            node=NodeShare.from_state(state.get("node", {})),
            extra={name: value for name, value in state.items() if name not in _OF_A_CLAIM},
        )
        object.__setattr__(held, "_state", state)
        return held

    def confirm(self) -> HeldClaim:
        """Return the claim once its allocation is written: without a lease."""
        # Of each request once: attrs.evolve is dear.
        return HeldClaim(
            self.resources,
            ClaimState.CONFIRMED,
            self.claim_id,
            self.writer,
            None,
            self.confirmed_by,
            self.node,
            self.extra,
        )

    def is_of(self, state: Mapping[str, Any], version: int) -> bool:
        """Say whether a state, in a record of that version, is this very claim."""
        return self._state == state and (
            not version or self.confirmed_by is not None or self.state is ClaimState.PENDING
        )

    def to_state(self) -> dict[str, Any]:
        """Return what is written of it; not to be changed."""
        if self._state is not None:
            return self._state
        return {
            **self.extra,
            "resources": dict(self.resources),
            "state": self.state.value,
            "claim_id": self.claim_id,
            "writer": self.writer,
            "deadline_seconds": self.deadline_seconds,
            "confirmed_by": self.confirmed_by,
            **({"node": node} if (node := self.node.to_state()) else {}),
        }

    def as_read_at(self, version: int) -> HeldClaim:
        """Return the claim with what its record's version says of its confirm.

        The confirm itself cannot note its version, which is not known before
        it is written; whoever reads the record next does.

        :param version: 0 of a record that is about to be written: nothing is known
            of its confirms yet
        """
        if self.state is ClaimState.CONFIRMED and self.confirmed_by is None and version:
            return attrs.evolve(self, confirmed_by=version)
        return self


#: Fields of a claim that this release knows.
_OF_A_CLAIM = frozenset(attrs.fields_dict(HeldClaim)) - {"extra", "_state"}


@attrs.frozen
class ClaimRecord:
    """All claims on one host: the decoded state of a ``claims`` record.

    :param claims: by consumer, pending ones included, whatever their lease; in the order
        in which they were granted, which tells what each was granted beside
    :param settled: place in the feed up to which a view must have come to
        know every consumer whose claim was settled away; None if none was
    :param lapsed: claims, by consumer, whose lease ended while they were pending.
        They count for nothing. Whoever took one may have written its allocation all
        the same, and died before the confirm: this tells whose that one is
    :param extra: fields of newer minor versions, kept verbatim
    """

    host: str
    claims: Mapping[str, HeldClaim] = attrs.field(factory=dict)
    settled: records.Cursor | None = None
    lapsed: Mapping[str, HeldClaim] = attrs.field(factory=dict)
    extra: Mapping[str, Any] = attrs.field(factory=dict)

    @classmethod
    def from_state(
        cls,
        host: str,
        state: Mapping[str, Any] | None,
        version: int,
        known: Mapping[str, HeldClaim] = MappingProxyType({}),
    ) -> ClaimRecord:
        """Read a state; None, or an empty one, is a host without claims.

        :param version: of the record's last write
        :param known: claims that were read before, by consumer: those that are the same
            are not read again
        :raises UndecodableRecord: it is none of claims
        """
        if not state:
            return cls(host)
        try:
            return cls._read(host, state, version, known)
        except MALFORMED as error:
            raise errors.UndecodableRecord(f"claims/{host}: {error!r}") from error

    @classmethod
    def _read(
        cls, host: str, state: Mapping[str, Any], version: int, known: Mapping[str, HeldClaim]
    ) -> ClaimRecord:
        settled = state.get("settled")
        return cls(
            host=host,
            claims={
                consumer: known[consumer]
                if consumer in known and known[consumer].is_of(held, version)
                else HeldClaim.from_state(held).as_read_at(version)
                for consumer, held in state.get("claims", {}).items()
            },
            settled=records.Cursor(settled["epoch"], settled["version"]) if settled else None,
            lapsed={
                consumer: HeldClaim.from_state(held)
                for consumer, held in state.get("lapsed", {}).items()
            },
            extra={name: value for name, value in state.items() if name not in _OF_A_RECORD},
        )

    def to_state(self) -> dict[str, Any]:
        settled = self.settled
        return {
            **self.extra,
            "claims": _states(self.claims),
            "settled": {"epoch": settled.epoch, "version": settled.version} if settled else None,
            # Most records have none, and an older release keeps it as it is.
            **({"lapsed": lapsed} if (lapsed := _states(self.lapsed)) else {}),
        }

    def used(
        self, known: Mapping[str, Mapping[str, int]], without: str | None = None
    ) -> dict[str, int]:
        """Return what is used by resource class: the union by consumer.

        Of a consumer in both, the larger amount of each class counts: while a
        server is resized on its host, the authority shows the old size and
        the claim holds the new one.

        :param known: resources by consumer as the authority shows them
        :param without: a consumer to leave out, such as the claimer
        """
        total: dict[str, int] = {}
        for consumer in self.claims.keys() | known.keys():
            if consumer == without:
                continue
            shown = known.get(consumer, {})
            held = self.claims.get(consumer)
            claimed = held.resources if held is not None else {}
            for resource in shown.keys() | claimed.keys():
                amount = max(shown.get(resource, 0), claimed.get(resource, 0))
                total[resource] = total.get(resource, 0) + amount
        return total

    def with_claim(self, consumer: str, held: HeldClaim) -> ClaimRecord:
        return self._of({**self.claims, consumer: held})

    def without(self, consumers: Collection[str]) -> ClaimRecord:
        return self._of({name: held for name, held in self.claims.items() if name not in consumers})

    def _of(self, claims: Mapping[str, HeldClaim]) -> ClaimRecord:
        """Return the record with other claims."""
        # With each claim twice and more: attrs.evolve is dear.
        return ClaimRecord(self.host, claims, self.settled, self.lapsed, self.extra)

    def lapse(self, consumers: Collection[str]) -> ClaimRecord:
        """Return the record without claims whose lease has ended, which it remembers."""
        if not consumers:
            return self
        lapsed = {**self.lapsed, **{name: self.claims[name] for name in consumers}}
        latest = sorted(lapsed, key=lambda name: lapsed[name].deadline_seconds or 0.0)
        kept = {name: lapsed[name] for name in latest[-MOST_LAPSED:]}
        return attrs.evolve(self.without(consumers), lapsed=kept)

    def tells_of(self, consumer: str, resources: Mapping[str, int]) -> bool:
        """Say whether it tells who wrote an allocation: a claim of just that, or a lapsed one."""
        return any(
            held is not None and dict(held.resources) == dict(resources)
            for held in (self.claims.get(consumer), self.lapsed.get(consumer))
        )

    def with_lapsed(self, lapsed: Mapping[str, HeldClaim]) -> ClaimRecord:
        """Return the record that remembers further claims, as far as there is room for them.

        What it remembers already stays, of the same consumer too: two who note the same
        do not take turns for ever.
        """
        new = {
            consumer: held
            for consumer, held in lapsed.items()
            if consumer not in self.lapsed and not self.tells_of(consumer, held.resources)
        }
        room = MOST_LAPSED - len(self.lapsed)
        kept = dict(list(new.items())[: max(0, room)])
        return attrs.evolve(self, lapsed={**self.lapsed, **kept}) if kept else self

    def given_up(self, ids: Mapping[str, str], writer: str) -> ClaimRecord:
        """Return the record in which lapsed and confirmed claims have another writer.

        One whose lease runs keeps its own until that ends.

        :param ids: of the claims, by consumer: a later one keeps its own
        """
        confirmed = {
            name: held for name, held in self.claims.items() if held.state is ClaimState.CONFIRMED
        }
        claims, lapsed = (_rewritten(each, ids, writer) for each in (confirmed, self.lapsed))
        if not claims and not lapsed:
            return self
        return attrs.evolve(
            self, claims={**self.claims, **claims}, lapsed={**self.lapsed, **lapsed}
        )

    def without_lapsed(self, ids: Mapping[str, str]) -> ClaimRecord:
        """Return the record without what it remembers of some claims.

        :param ids: of the claims, by consumer: of a later one it is kept
        """
        left = {name: held for name, held in self.lapsed.items() if ids.get(name) != held.claim_id}
        return self if len(left) == len(self.lapsed) else attrs.evolve(self, lapsed=left)

    def settled_up_to(self, cursor: records.Cursor) -> ClaimRecord:
        """Return the record with its settlement moved forward to a cursor."""
        before = self.settled
        if before is not None and before.epoch == cursor.epoch and before.version >= cursor.version:
            return self
        return attrs.evolve(self, settled=cursor)


def _rewritten(
    claims: Mapping[str, HeldClaim], ids: Mapping[str, str], writer: str
) -> dict[str, HeldClaim]:
    """Return those of some ids, with another writer; none that has it already."""
    return {
        name: attrs.evolve(held, writer=writer)
        for name, held in claims.items()
        if ids.get(name) == held.claim_id and held.writer != writer
    }


#: Lapsed claims that one record remembers; the oldest go. Each is some writer's death, or
#: a write of which its writer does not know whether it stands.
MOST_LAPSED = 64

#: Fields of a record that this release knows.
_OF_A_RECORD = frozenset(("claims", "settled", "lapsed"))


def _states(claims: Mapping[str, HeldClaim]) -> dict[str, Any]:
    return {consumer: held.to_state() for consumer, held in claims.items()}


# What a ledger answers. Refusals are values; a back end that is away is not.


@attrs.frozen
class Granted:
    """The claim stands.

    :param state: PENDING, or CONFIRMED (a claim repeated after its confirm)
    """

    claim: Claim
    claim_id: str
    state: ClaimState

    @property
    def consumer(self) -> str:
        return self.claim.consumer


@attrs.frozen
class GrantRefused:
    """The claim was not taken; another host may do.

    :param detail: for a log line
    """

    claim: Claim
    reason: RefusalReason
    detail: str = ""


@attrs.frozen
class Gone:
    """The claim is no longer there: its lease ended, or it was released.

    Whoever wrote an allocation for it deletes that allocation of *that host*
    again and tries the next one.
    """

    claim: Claim
    claim_id: str
