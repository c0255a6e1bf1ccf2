# SPDX-License-Identifier: Apache-2.0
"""Which claims of a record have served, by the evidence of one snapshot; without I/O."""

from __future__ import annotations

import abc
from collections.abc import Collection, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import group_claims as group_model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.synchronizer import claim_rules, group_rules, settling_evidence


@attrs.frozen
class Verdict:
    """What to drop of a record, and what cannot be told.

    :param expired: consumers, or places in a group
    :param settled: confirmed entries that records show, by entry what tells one
        taking of it from another
    :param shown_at: version that a view must have come to, to see what was settled
    :param unshown: likewise confirmed entries that no record shows
    """

    expired: frozenset[Any] = frozenset()
    settled: Mapping[Any, str] = attrs.field(factory=dict)
    shown_at: int = 0
    unshown: Mapping[Any, str] = attrs.field(factory=dict)

    @property
    def ended(self) -> frozenset[Any]:
        return self.expired.union(self.settled)


class Ledger(abc.ABC):
    """The records of one kind: of hosts or of server groups. No I/O."""

    name: str
    #: Whether an entry stays for a while after records show it.
    lingers: bool

    def entries(self, key: str, state: Mapping[str, Any], version: int) -> Mapping[Any, Any]:
        """Return a record's claims, or members, by consumer or place.

        :param version: of the record's last write
        """
        return self._entries(self._record(key, state, version))

    def without(
        self,
        key: str,
        state: Mapping[str, Any],
        version: int,
        entries: Collection[Any],
        settled: records.Cursor | None,
        expired: Collection[Any] = (),
    ) -> Mapping[str, Any]:
        """Return the state to write once some entries are dropped.

        An emptied record stays: its next claimer has to know of the settlement.

        :param expired: those of the entries whose lease ended
        """
        left = self._without(self._record(key, state, version), entries, expired)
        written: Mapping[str, Any] = (left.settled_up_to(settled) if settled else left).to_state()
        return written

    @abc.abstractmethod
    def _record(
        self, key: str, state: Mapping[str, Any], version: int
    ) -> model.ClaimRecord | group_model.GroupRecord:
        """Return a record as it was read."""

    def _without(self, record: Any, entries: Collection[Any], expired: Collection[Any]) -> Any:
        """Return a record without some entries."""
        return record.without(entries)

    @abc.abstractmethod
    def _entries(self, record: Any) -> Mapping[Any, Any]:
        """Return what is claimed in a record."""

    @abc.abstractmethod
    def consumer(self, entry: Any) -> str:
        """Return whose an entry is."""

    @abc.abstractmethod
    def judge(
        self,
        key: str,
        state: Mapping[str, Any],
        version: int,
        evidence: settling_evidence.Evidence,
        now_seconds: float,
    ) -> Verdict:
        """Tell what has served."""

    @abc.abstractmethod
    def is_needed(
        self,
        key: str,
        entry: Any,
        held: Any,
        evidence: settling_evidence.Evidence,
        allocations: settling_evidence.Allocations,
    ) -> bool:
        """Say whether anything stands behind an unshown entry."""


class Hosts(Ledger):
    """Claims on hosts, by consumer."""

    name = namespaces.CLAIM_RECORDS.name
    lingers = False

    def _record(self, key: str, state: Mapping[str, Any], version: int) -> model.ClaimRecord:
        return model.ClaimRecord.from_state(key, state, version)

    def _without(
        self, record: model.ClaimRecord, entries: Collection[str], expired: Collection[str]
    ) -> model.ClaimRecord:
        return record.lapse(expired).without(entries)

    def _entries(self, record: model.ClaimRecord) -> Mapping[str, model.HeldClaim]:
        return record.claims

    def consumer(self, entry: str) -> str:
        return entry

    def judge(
        self,
        key: str,
        state: Mapping[str, Any],
        version: int,
        evidence: settling_evidence.Evidence,
        now_seconds: float,
    ) -> Verdict:
        record = self._record(key, state, version)
        shown_at = evidence.shown_at(key)
        confirmed = claim_rules.confirmed(record, record.claims)
        settled = {
            consumer: record.claims[consumer].claim_id
            for consumer in claim_rules.settled(record, confirmed, shown_at)
            if _has_served(evidence, key, consumer, record.claims[consumer])
        }
        return Verdict(
            frozenset(claim_rules.expired(record, now_seconds)),
            settled,
            shown_at,
            {name: record.claims[name].claim_id for name in confirmed if name not in settled},
        )

    def is_needed(
        self,
        key: str,
        entry: str,
        held: model.HeldClaim,
        evidence: settling_evidence.Evidence,
        allocations: settling_evidence.Allocations,
    ) -> bool:
        return evidence.is_needed(key, entry, held, allocations)


class Groups(Ledger):
    """Places in server groups, by consumer and host.

    A request names the members that its group had when it was made. One that
    waits for its turn meanwhile knows of later ones by this record alone.
    """

    name = namespaces.GROUP_CLAIMS.name
    lingers = True

    def _record(self, key: str, state: Mapping[str, Any], version: int) -> group_model.GroupRecord:
        return group_model.GroupRecord.from_state(key, state, version)

    def _entries(
        self, record: group_model.GroupRecord
    ) -> Mapping[group_model.Place, group_model.Member]:
        return record.members

    def consumer(self, entry: group_model.Place) -> str:
        return entry[0]

    def judge(
        self,
        key: str,
        state: Mapping[str, Any],
        version: int,
        evidence: settling_evidence.Evidence,
        now_seconds: float,
    ) -> Verdict:
        record = self._record(key, state, version)
        shown_at = 0
        settled = {}
        confirmed = group_rules.confirmed(record)
        for place in confirmed:
            at = evidence.place_shown_at(place)
            if at is not None and group_rules.settled(record, [place], at):
                settled[place] = _confirm_of(record.members[place])
                shown_at = max(shown_at, at)
        return Verdict(
            frozenset(group_rules.expired(record, now_seconds)),
            settled,
            shown_at,
            {name: _confirm_of(record.members[name]) for name in confirmed if name not in settled},
        )

    def is_needed(
        self,
        key: str,
        entry: group_model.Place,
        held: group_model.Member,
        evidence: settling_evidence.Evidence,
        allocations: settling_evidence.Allocations,
    ) -> bool:
        return evidence.is_place_needed(entry, allocations)


def _confirm_of(member: group_model.Member) -> str:
    # One that is taken once more keeps its id.
    return f"{member.claim_id} {member.confirmed_by}"


def _has_served(
    evidence: settling_evidence.Evidence, host: str, consumer: str, held: model.HeldClaim
) -> bool:
    return evidence.is_shown(host, consumer, held) and (
        held.node == model.NodeShare() or evidence.is_new(host, consumer, held.confirmed_by or 0)
    )


#: By the namespace of their records.
LEDGERS: Mapping[str, Ledger] = {each.name: each for each in (Hosts(), Groups())}
