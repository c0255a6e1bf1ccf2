# SPDX-License-Identifier: Apache-2.0
"""Which claims of a record have served, by what a snapshot of the store proves; without I/O."""

from __future__ import annotations

import abc
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import group_claims as group_model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.facts import group_members
from nova_nodb_scheduler.scheduling.namespaces import claim_facts, known_namespaces
from nova_nodb_scheduler.scheduling.reservations import reported_usage
from nova_nodb_scheduler.store import store_snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer.claims import claim_rules, group_rules

#: A consumer's allocations now, amounts by resource class by root provider.
Allocations = Mapping[str, Mapping[str, int]]

#: States of servers of which a compute service may hold no room yet.
_NOT_BUILT = (None, "building", "shelved_offloaded")
#: States that tell nothing of a move's end: unknown, or waiting for somebody to confirm it.
_MAY_MOVE = (None, "resized")


#: What a record that cannot be understood makes its readers raise.
NOT_READ = (errors.NodbError, AttributeError, KeyError, TypeError, ValueError)

#: In the place of a version: all that is known to whoever settles.
ALL_KNOWN = sys.maxsize

#: Says by a snapshot whether anybody judges claims by a mirror of allocations.
IsJudged = Callable[[snapshot_module.Snapshot], bool]


def always_judged(snapshot: snapshot_module.Snapshot) -> bool:
    """Say yes: who claims here judges others' claims, too."""
    return True


class SettlementEvidence:
    """What one snapshot shows; one thread.

    :param is_judged: whether anybody judges claims. Where nobody does, nobody keeps a
        mirror of allocations either: a claim tells then whose an allocation is, until its
        server is there, and counts for nothing
    """

    def __init__(self, snapshot: snapshot_module.Snapshot, *, is_judged: bool = True) -> None:
        self._snapshot = snapshot
        self.is_judged = is_judged
        self._nodes = snapshot.namespace(known_namespaces.COMPUTE_NODES.name)
        self._instances = snapshot.namespace(known_namespaces.INSTANCES.name)
        self._migrations = snapshot.namespace(known_namespaces.MIGRATIONS.name)
        self._providers = snapshot.namespace(known_namespaces.PROVIDERS.name)
        self._claims = snapshot.namespace(known_namespaces.CLAIM_RECORDS.name)
        self._shown = reported_usage.ReportedUsage(snapshot)

    # -- claims on hosts ------------------------------------------------------------

    def shown_at(self, host: str) -> int:
        """Return the version by which a view knows what the host's records show."""
        found = (self._nodes.get(host), self._providers.get(host))
        return max((record.version for record in found if record is not None), default=0)

    def is_shown(self, host: str, consumer: str, held: model.HeldClaim) -> bool:
        """Say whether a claim counts for nothing: others' records show all of it."""
        return self.is_allocated(host, consumer, held) and (
            held.node == model.NodeShare()
            or self._shown.counted(host, consumer, held.node) is reported_usage.Counted.WHOLE
        )

    def is_allocated(self, host: str, consumer: str, held: model.HeldClaim) -> bool:
        """Say whether the host's provider shows a consumer with what it claims."""
        allocations = allocated_on(self._snapshot, host)
        gave = claim_facts.stays(held.node) and self._shown.gave_its_old(allocations)(consumer)
        return _has(allocations.get(consumer, {}), held, gave_its_old=gave)

    def counts(self, host: str, consumer: str, held: model.HeldClaim) -> bool:
        """Say whether a claim counts for something that others' records do not count."""
        return not self.is_allocated(host, consumer, held) or self._shown.counted(
            host, consumer, held.node
        ) not in (reported_usage.Counted.LIKELY, reported_usage.Counted.WHOLE)

    def is_new(self, host: str, consumer: str, since: int) -> bool:
        """Say whether what links a server to a host was written after a version.

        An older record may be of a former stay there.
        """
        versions = [
            record.version
            for record in (
                self._instances.get(key) for key in self._keys(consumer) if self._stands(key, host)
            )
            if record is not None
        ]
        versions += [
            record.version
            for record in map(self._migrations.get, self._migrations.lookup("instance", consumer))
            if record is not None
        ]
        return max(versions, default=0) > since

    def is_left_behind(
        self, host: str, consumer: str, held: model.HeldClaim, allocations: Allocations
    ) -> bool:
        """Say whether a server that stays elsewhere has just what a claim has on its host."""
        return dict(allocations.get(host, {})) == dict(held.resources) and self._stays_elsewhere(
            host, consumer, held.confirmed_by or 0
        )

    def is_on_host(self, host: str, consumer: str, held: model.HeldClaim) -> bool:
        """Say whether a server is on a host, by a record that is newer than its claim's confirm."""
        since = held.confirmed_by or 0
        return any(
            self._stands(key, host) and (self._instances.version_of(key) or 0) > since
            for key in self._keys(consumer)
        )

    def is_needed(
        self, host: str, consumer: str, held: model.HeldClaim, allocations: Allocations
    ) -> bool:
        """Say whether anything stands behind a claim.

        :param allocations: the consumer's, asked of their authority after the
            claim was read
        """
        allocated = allocations.get(host, {})
        since = held.confirmed_by or 0
        if host not in self._nodes:
            # Early in an epoch it may be published yet, and counts nobody then who is still to
            # be built. Removed for good nobody chooses it.
            return bool(allocated) and not self._stays_elsewhere(host, consumer, since)
        # What is allocated now is not what it had before the claim.
        if _has(allocated, held, gave_its_old=True):
            # Of a move on its own host that is over; or left behind, as by an evacuation.
            is_over = claim_facts.stays(held.node) and not self._is_on_its_way(consumer, since)
            is_over = is_over or self._stays_elsewhere(host, consumer, since)
            if not self.is_judged:
                return not (is_over or self.is_on_host(host, consumer, held))
            # Shown and counted by records older than the claim; or the mirror counts at
            # least what is allocated: until it does, the claim alone may.
            return not (
                self.is_shown(host, consumer, held)
                or (
                    self.is_allocated(host, consumer, held)
                    and (is_over or self._is_taken_up(host, consumer, held))
                )
                or (is_over and self._is_shown_after_all(host, consumer, held))
            )
        if not self._rests(consumer, since) and (
            self._moves_to(host, consumer)
            or (not allocated and self._is_given_unseen(host, consumer, held))
        ):
            return True
        if claim_facts.stays(held.node):
            return False  # it was there before the claim, and has not got what it claimed
        # What a server had that moves is its migration's by now; its node counts it still.
        return (
            any(self._stands(key, host) for key in self._keys(consumer))
            and self._shown.counted(host, consumer, held.node) is not reported_usage.Counted.WHOLE
            and not self._is_taken_up(host, consumer, held)
        )

    def _is_taken_up(self, host: str, consumer: str, held: model.HeldClaim) -> bool:
        """Say whether a host's compute service counts a server, though by no later record.

        It saves its node before it builds the server, and never again while nothing
        changes there. A server saved once more meanwhile has the later record for good.
        """
        return (
            self._shown.counted(host, consumer, held.node)
            in (reported_usage.Counted.LIKELY, reported_usage.Counted.WHOLE)
            and self.is_new(host, consumer, held.confirmed_by or 0)
            and self._is_built(host, consumer)
        )

    def _is_shown_after_all(self, host: str, consumer: str, held: model.HeldClaim) -> bool:
        """Say whether a provider shows as much as a server claimed that was resized there.

        Its migration is gone, and tells no more whether that is what it had before. Nor need
        it, once the move is over by a newer record of the server. One whose task came and
        went before it was published has none: then the mirror is to have come further.
        """
        shown = allocated_on(self._snapshot, host).get(consumer, {})
        since = held.confirmed_by or 0
        return _has(shown, held, gave_its_old=True) and (
            self._rests(consumer, since) or (self._providers.version_of(host) or 0) > since
        )

    def _is_built(self, host: str, consumer: str) -> bool:
        """Say whether a server is on a host, and a compute service holds all of its room."""
        return any(
            record.state["row"].get("vm_state") not in _NOT_BUILT
            for record in (
                self._instances.get(key) for key in self._keys(consumer) if self._stands(key, host)
            )
            if record is not None
        )

    def _is_given_unseen(self, host: str, consumer: str, held: model.HeldClaim) -> bool:
        """Say whether a server's room may be its migration's, and the mirror counts neither's.

        Nova gives it to the migration as a move begins, and may be shown later than that: on
        whose host it is then, built, or whose migrations begin there.
        """
        moves = list(self._migrations.lookup("instance", consumer))
        place = self._nodes.indexed(host, "host")
        if not self._is_built(host, consumer) and not any(
            self._migrations.indexed(key, "source") == place for key in moves
        ):
            return False
        shown = allocated_on(self._snapshot, host)
        return not any(
            _has(shown.get(name, {}), held, gave_its_old=True)
            for name in (consumer, *(key.partition("@")[0] for key in moves))
        )

    def _keys(self, consumer: str) -> Iterator[str]:
        for cell in self._instances.vocabulary("cell").texts():
            yield f"{consumer}@{cell}"

    def _stands(self, key: str, host: str) -> bool:
        place = self._instances.indexed(key, "cell_host")
        return place is not None and place == self._nodes.indexed(host, "cell_host")

    def _stays_elsewhere(self, host: str, consumer: str, since: int) -> bool:
        """Say whether a server is on another host and on its way to none.

        Nova writes the migration before it asks a scheduler where to, and may be shown
        later than what that one wrote: only a row of after that tells that it went, or
        that it failed to come. One on no host waits to be built, or is buried in cell0:
        then the claim is all that tells whose its allocation is.
        """
        there = [
            key
            for key in self._keys(consumer)
            if self._instances.indexed(key, "cell_host") is not None
        ]
        return (
            any((self._instances.version_of(key) or 0) > since for key in there)
            and not any(self._stands(key, host) for key in there)
            and not self._is_on_its_way(consumer, since)
        )

    def _is_on_its_way(self, consumer: str, since: int) -> bool:
        """Say whether a server moves, as far as its migrations and newer records of it tell."""
        moves = bool(self._migrations.lookup("instance", consumer))
        return moves and not self._rests(consumer, since)

    def _rests(self, consumer: str, since: int) -> bool:
        """Say whether a server is in no move by its own records.

        These are newer than a version, and than its migrations' records. Nova gives a server
        its task before it asks for a host, and takes it away when a move ends or fails. Its
        migration may stay in progress for good: a failed move whose last save of it fails
        too is not tried again, and a nova-compute that starts gives up a live migration that
        it was preparing without a word in it. Nova's resource tracker passes such ones over.
        """
        found = [record for record in map(self._instances.get, self._keys(consumer)) if record]
        rows = [record.state["row"] for record in found]
        moves = map(self._migrations.version_of, self._migrations.lookup("instance", consumer))
        latest_move = max((version or 0 for version in moves), default=0)
        return (
            min((record.version for record in found), default=0) > max(since, latest_move)
            and all(row.get("task_state") is None for row in rows)
            and all(row.get("vm_state") not in _MAY_MOVE for row in rows)
        )

    def _moves_to(self, host: str, consumer: str) -> bool:
        place = self._nodes.indexed(host, "host")
        return place is not None and any(
            self._migrations.indexed(key, "destination") == place
            for key in self._migrations.lookup("instance", consumer)
        )

    # -- places in groups -------------------------------------------------------------

    def place_shown_at(self, place: group_model.Place) -> int | None:
        """Return the version of a record that shows a member at a place; None without one.

        On its way there it is not shown yet: while it moves, whoever joins is to know by
        the group's record, conductors among them, which read no migrations.
        """
        consumer, host = place
        name = group_members.place_of(self._snapshot, host)
        if name not in group_members.hosts_of(self._snapshot, consumer):
            return None
        versions = [0]
        for view, keys in (
            (self._instances, self._keys(consumer)),
            (self._migrations, self._migrations.lookup("instance", consumer)),
        ):
            versions += [record.version for record in map(view.get, keys) if record is not None]
        return max(versions)

    def is_place_needed(
        self, place: group_model.Place, member: group_model.Member, allocations: Allocations
    ) -> bool:
        """Say whether anything but its own record stands behind a member's place.

        No allocation does of which its server was evacuated: it stands until the service
        of the host that died is back.
        """
        consumer, host = place
        since = member.confirmed_by or 0
        nodes = {host, *group_members.nodes_of(self._snapshot, [host])}
        if not any(node in self._nodes for node in nodes):
            # Early in an epoch it may be published yet, or it is removed for good: of which
            # allocation the host's node is nobody can tell, but of none of another host's.
            return any(
                node not in self._nodes for node in allocations
            ) and not self._stays_elsewhere(host, consumer, since)
        return any(
            (node in allocations and not self._stays_elsewhere(node, consumer, since))
            or consumer in claims_of(self._snapshot, node)
            for node in nodes
        )


def _has(allocated: Mapping[str, int], held: model.HeldClaim, *, gave_its_old: bool) -> bool:
    """Say whether an allocation has all that a claim holds.

    :param gave_its_old: see :data:`claim_facts.GaveItsOld`
    """
    return bool(allocated) and not claim_facts.beyond(
        held.resources, held.node, allocated, gave_its_old=gave_its_old
    )


def fully_allocated(snapshot: snapshot_module.Snapshot, host: str) -> set[str]:
    """Return the consumers with claims on a host of which its provider shows all."""
    evidence = SettlementEvidence(snapshot)
    claims = claims_of(snapshot, host)
    return {name for name, held in claims.items() if evidence.is_allocated(host, name, held)}


def allocated_on(snapshot: snapshot_module.Snapshot, host: str) -> Mapping[str, Any]:
    """Return what a host's provider shows by consumer; nothing where there is none."""
    record = snapshot.namespace(known_namespaces.PROVIDERS.name).get(host)
    return {} if record is None else record.state.get("allocations") or {}


def claims_of(snapshot: snapshot_module.Snapshot, host: str) -> Mapping[str, model.HeldClaim]:
    """Return a host's claims by consumer as a snapshot has them; none where they are unreadable."""
    record = snapshot.namespace(known_namespaces.CLAIM_RECORDS.name).digest(host)
    if record is None or isinstance(record, errors.InvalidRecord):
        return {}
    claims: Mapping[str, model.HeldClaim] = record.claims
    return claims


@attrs.frozen
class SettlementVerdict:
    """What to drop of a record, and what cannot be told.

    :param expired: consumers, or places in a group
    :param settled: confirmed entries that records show, by entry what tells one
        taking of it from another
    :param shown_at: version that a view must have come to, to see what was settled;
        :data:`ALL_KNOWN` for all that this process knows
    :param unshown: likewise confirmed entries that no record shows
    """

    expired: frozenset[Any] = frozenset()
    settled: Mapping[Any, str] = attrs.field(factory=dict)
    shown_at: int = 0
    unshown: Mapping[Any, str] = attrs.field(factory=dict)

    @property
    def ended(self) -> frozenset[Any]:
        return self.expired.union(self.settled)


class ClaimLedger(abc.ABC):
    """The records of one kind: of hosts or of server groups. No I/O."""

    name: str
    #: Whether an entry stays for a while after records show it.
    has_grace: bool

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
        remembered: Collection[Any] = (),
    ) -> Mapping[str, Any]:
        """Return the state to write once some entries are dropped.

        An emptied record stays: its next claimer has to know of the settlement.

        :param remembered: those of the entries that their record remembers: their lease ended,
            or what they allocated was left behind
        """
        left = self._without(self._record(key, state, version), entries, remembered)
        written: Mapping[str, Any] = (left.settled_up_to(settled) if settled else left).to_state()
        return written

    @abc.abstractmethod
    def _record(
        self, key: str, state: Mapping[str, Any], version: int
    ) -> model.ClaimRecord | group_model.GroupRecord:
        """Return a record as it was read."""

    def _without(self, record: Any, entries: Collection[Any], remembered: Collection[Any]) -> Any:
        """Return a record without some entries."""
        return record.without(entries)

    @abc.abstractmethod
    def _entries(self, record: Any) -> Mapping[Any, Any]:
        """Return what is claimed in a record."""

    @abc.abstractmethod
    def consumer(self, entry: Any) -> str:
        """Return whose an entry is."""

    def shown_at(self, key: str, evidence: SettlementEvidence) -> int:
        """Return the version by which a view knows what counts in the place of a record's."""
        return 0

    @abc.abstractmethod
    def judge(
        self,
        key: str,
        state: Mapping[str, Any],
        version: int,
        evidence: SettlementEvidence,
        now_seconds: float,
    ) -> SettlementVerdict:
        """Tell what has served."""

    @abc.abstractmethod
    def is_needed(
        self,
        key: str,
        entry: Any,
        held: Any,
        evidence: SettlementEvidence,
        allocations: Allocations,
    ) -> bool:
        """Say whether anything stands behind an unshown entry."""

    def is_left_behind(
        self,
        key: str,
        entry: Any,
        held: Any,
        evidence: SettlementEvidence,
        allocations: Allocations,
    ) -> bool:
        """Say whether what an entry allocated stands while its server does so elsewhere.

        Its record remembers who wrote it.
        """
        return False


class HostClaimLedger(ClaimLedger):
    """Claims on hosts, by consumer."""

    name = known_namespaces.CLAIM_RECORDS.name
    has_grace = False

    def _record(self, key: str, state: Mapping[str, Any], version: int) -> model.ClaimRecord:
        return model.ClaimRecord.from_state(key, state, version)

    def _without(
        self, record: model.ClaimRecord, entries: Collection[str], remembered: Collection[str]
    ) -> model.ClaimRecord:
        return claim_rules.lapse(record, remembered).without(entries)

    def _entries(self, record: model.ClaimRecord) -> Mapping[str, model.HeldClaim]:
        return record.claims

    def consumer(self, entry: str) -> str:
        return entry

    def shown_at(self, key: str, evidence: SettlementEvidence) -> int:
        return evidence.shown_at(key)

    def judge(
        self,
        key: str,
        state: Mapping[str, Any],
        version: int,
        evidence: SettlementEvidence,
        now_seconds: float,
    ) -> SettlementVerdict:
        record = self._record(key, state, version)
        # Where nobody judges them a view may be asked for all that was known here.
        shown_at = evidence.shown_at(key) if evidence.is_judged else ALL_KNOWN
        confirmed = claim_rules.confirmed(record, record.claims)
        settled = {
            consumer: record.claims[consumer].claim_id
            for consumer in claim_rules.settled(record, confirmed, shown_at)
            if _has_served(evidence, key, consumer, record.claims[consumer])
        }
        return SettlementVerdict(
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
        evidence: SettlementEvidence,
        allocations: Allocations,
    ) -> bool:
        return evidence.is_needed(key, entry, held, allocations)

    def is_left_behind(
        self,
        key: str,
        entry: str,
        held: model.HeldClaim,
        evidence: SettlementEvidence,
        allocations: Allocations,
    ) -> bool:
        return evidence.is_left_behind(key, entry, held, allocations)


class GroupClaimLedger(ClaimLedger):
    """Places in server groups, by consumer and host.

    A request names the members that its group had when it was made. One that
    waits for its turn meanwhile knows of later ones by this record alone.
    """

    name = known_namespaces.GROUP_CLAIMS.name
    has_grace = True

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
        evidence: SettlementEvidence,
        now_seconds: float,
    ) -> SettlementVerdict:
        record = self._record(key, state, version)
        shown_at = 0
        settled = {}
        confirmed = group_rules.confirmed(record)
        for place in confirmed:
            at = evidence.place_shown_at(place)
            if at is not None and group_rules.settled(record, [place], at):
                settled[place] = _confirm_of(record.members[place])
                shown_at = max(shown_at, at)
        return SettlementVerdict(
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
        evidence: SettlementEvidence,
        allocations: Allocations,
    ) -> bool:
        return evidence.is_place_needed(entry, held, allocations)


def _confirm_of(member: group_model.Member) -> str:
    # One that is taken once more keeps its id.
    return f"{member.claim_id} {member.confirmed_by}"


def _has_served(
    evidence: SettlementEvidence, host: str, consumer: str, held: model.HeldClaim
) -> bool:
    if not evidence.is_judged:
        return evidence.is_on_host(host, consumer, held)
    return evidence.is_shown(host, consumer, held) and (
        held.node == model.NodeShare() or evidence.is_new(host, consumer, held.confirmed_by or 0)
    )


#: By the namespace of their records.
LEDGERS: Mapping[str, ClaimLedger] = {
    each.name: each for each in (HostClaimLedger(), GroupClaimLedger())
}
