# SPDX-License-Identifier: Apache-2.0
"""Claims that keep hosts full though nothing stands behind them: ended before a refusal.

A server that is deleted, or whose move goes back, leaves its claim until
somebody settles it, some seconds later. Who asks for that room meanwhile would
be told that there is none, where Placement has it. So before that is said, the
claims that no record accounts for are asked of their authority at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import group_claims as group_model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store, store_snapshot
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.claims import group_rules
from nova_nodb_scheduler.synchronizer.records import record_editor
from nova_nodb_scheduler.synchronizer.settlement import claim_reaper, settlement_rules

LOG = logging.getLogger(__name__)

_CLAIMS = known_namespaces.CLAIM_RECORDS.name
_GROUPS = known_namespaces.GROUP_CLAIMS.name


#: A claim: its record's key, its consumer and its id.
ClaimName = tuple[str, str, str]


class ClaimIndex:
    """Which hosts hold claims, and of which consumers, as a store shows; any thread, no I/O.

    It follows the store when it is asked, by what changed since. What it tells is where
    to look: what stands there the snapshot says.
    """

    def __init__(self, store: host_state_store.HostStateStore) -> None:
        self._store = store
        self._subscription = store.subscribe((_CLAIMS,))
        self._lock = threading.Lock()
        #: Consumers by host, and hosts by consumer.
        self._consumers: dict[str, frozenset[str]] = {}
        self._hosts: dict[str, set[str]] = {}
        #: Ends of leases, by claim, by host that has claims that are not confirmed.
        self._pending: dict[str, dict[ClaimName, float]] = {}

    def follow(self) -> store_snapshot.Snapshot:
        """Come to the present; return a snapshot of it."""
        with self._lock:
            # What is written between the two is in the snapshot, and looked at once more.
            touched = self._subscription.drain()
            snapshot = self._store.snapshot()
            if touched is None:
                self._consumers.clear()
                self._hosts.clear()
                self._pending.clear()
                hosts: Iterable[str] = snapshot.namespace(_CLAIMS).keys()
            else:
                hosts = touched.get(_CLAIMS, ())
            for host in hosts:
                self._note(host, settlement_rules.claims_of(snapshot, host))
            return snapshot

    def hosts(self) -> list[str]:
        """Return the hosts with claims, in one order for all."""
        with self._lock:
            return sorted(self._consumers)

    def hosts_of(self, consumer: str) -> list[str]:
        """Return the hosts on which a consumer holds claims."""
        with self._lock:
            return sorted(self._hosts.get(consumer, ()))

    def pending(self, hosts: Container[str]) -> dict[ClaimName, float]:
        """Come to the present; return what is pending on some hosts, with its lease's end.

        Costs by what is pending at all. Ends are by the back end's clock.
        """
        self.follow()
        with self._lock:
            return {
                name: deadline_seconds
                for host, claims in self._pending.items()
                if host in hosts
                for name, deadline_seconds in claims.items()
            }

    def stands(self, name: ClaimName) -> bool:
        """Say whether a claim is still there, pending or confirmed."""
        host, consumer, claim_id = name
        held = settlement_rules.claims_of(self._store.snapshot(), host).get(consumer)
        return held is not None and held.claim_id == claim_id

    def _note(self, host: str, claims: Mapping[str, model.HeldClaim]) -> None:
        pending = {
            (host, consumer, held.claim_id): held.deadline_seconds
            for consumer, held in claims.items()
            if held.deadline_seconds is not None
        }
        if pending:
            self._pending[host] = pending
        else:
            self._pending.pop(host, None)
        consumers = frozenset(claims)
        before = self._consumers.pop(host, frozenset())
        for consumer in before - consumers:
            self._hosts[consumer].discard(host)
            if not self._hosts[consumer]:
                del self._hosts[consumer]
        for consumer in consumers - before:
            self._hosts.setdefault(consumer, set()).add(host)
        if consumers:
            self._consumers[host] = consumers


#: Claims asked for in one call: each is a request to the authority.
_MOST_ASKED = 16
#: How long one that stays is not asked for again, but by its own consumer.
_REST_SECONDS = 2.0


class ClaimsUnproved(errors.NodbError):
    """Nobody can tell whether something stands behind each claim."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self._why = why

    def __str__(self) -> str:
        return f"Claims may keep hosts full for nothing: {self._why}."


@attrs.frozen
class ProvedClaims:
    """What a look at claims came to.

    :param version: to wait for, before it is decided by what is left; 0 where nothing ended
    :param complete: whether something stands behind each claim that is left. Whoever is
        refused by that version, or a later one, is refused for good
    """

    version: int = 0
    complete: bool = True


class ClaimProof:
    """Ends claims that nothing stands behind, when it is asked to; any thread.

    Of all claims one thread at a time, of some consumers' any number.

    :param cursor: how far the store has come; None while that is not proved
    :param ask: a consumer's allocations; may block
    :param now_seconds: the back end's clock, without I/O
    :param cache: where who claims here finds what was written
    :param clock: monotonic seconds
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        store: host_state_store.HostStateStore,
        cursor: Callable[[], records.Cursor | None],
        ask: claim_reaper.Ask,
        now_seconds: Callable[[], float],
        cache: record_editor.RecordCache,
        clock: Callable[[], float],
    ) -> None:
        self._synchronizer = synchronizer
        self._store = store
        self._cursor = cursor
        self._ask = ask
        self._now_seconds = now_seconds
        self._cache = cache
        self._clock = clock
        self._lock = threading.Lock()
        #: Where claims stand.
        self.index = ClaimIndex(store)
        #: When it was last asked for, of those that stay.
        self._asked_at: dict[ClaimName, float] = {}
        self.status = claim_reaper.SettlementStatus()

    def prove(
        self,
        before: store_snapshot.NamespaceView | None = None,
        own: Collection[str] = (),
        hosts: Container[str] | None = None,
        decided_at: float | None = None,
        group: str | None = None,
    ) -> ProvedClaims:
        """End what nothing stands behind, and say what to wait for.

        What somebody else ended since then counts, too: who was refused for it may
        not have seen that. It is no proof of the others, which are asked for all the same.

        Blocks for a read and a write, and a query for each claim that no
        record accounts for. Without I/O where there is none.

        :param before: claim records before it was decided
        :param own: consumers of whoever was refused: what they hold is asked for first,
            whenever it was asked for last
        :param hosts: uuids of the nodes whose claims matter to whoever was refused; None for
            all. Under load claims end somewhere all the time
        :param decided_at: when it was decided, by this object's clock: what was asked for
            before, and stood, may be over by then. None where a moment ago will do
        :param group: uuid of the server group of whoever was refused: its members' places
            are looked at, too, once no claim of theirs is left that is to be ended
        :raises BackendUnavailable: what was not written stays claimed
        :raises ClaimsUnproved: nothing ended, and of some claims nobody said why they stand
        """
        with self._lock:
            cursor = self._cursor()
            if cursor is None:
                raise ClaimsUnproved("the feed is not followed")
            snapshot = self.index.follow()
            now = snapshot.namespace(_CLAIMS)
            seen = now.version if before is not None and _some_ended(before, now, hosts) else 0
            evidence = settlement_rules.SettlementEvidence(snapshot)
            found = self._places(group, snapshot, evidence)
            places, are_few = found or ({}, False)
            # Where their hosts have room for others, too, the mirror may be behind unnoticed.
            members = {consumer for of_group in places.values() for consumer, _ in of_group}
            suspects, are_all = self._suspects(
                snapshot, evidence, {*own, *members}, hosts, decided_at
            )
            stays: list[ClaimName] = []
            looked_at_group = group is None
            asking_from = self._clock()
            looked = self._end(suspects, evidence, cursor, stays)
            # Only what was answered, and judged by it: the next one who is refused for
            # anything else would take it for proved.
            self._asked_at.update(dict.fromkeys(stays, asking_from))
            if group is not None and found is not None and not looked.version:
                looked = looked.with_more(self._end(places, evidence, cursor, []))
                are_all &= are_few
                looked_at_group = True
            version = max(seen, looked.version)
            if not version:
                if found is None:
                    raise ClaimsUnproved(f"the record of server group {group} cannot be read")
                if looked.unread:
                    raise ClaimsUnproved("a record cannot be read")
                if looked.unanswered:
                    raise ClaimsUnproved("their authority does not answer")
                if not are_all:
                    raise ClaimsUnproved(f"more than {_MOST_ASKED} are to be asked for")
            complete = are_all and not (looked.unanswered or looked.unjudged or looked.unread)
            return ProvedClaims(version, complete and looked_at_group)

    def prove_of(self, consumers: Collection[str]) -> int:
        """End what nothing stands behind of some consumers; as :meth:`prove`.

        For a request of theirs before it is decided: a server that moves again begins
        anew, and what its former move claimed would keep it from its own room. What
        stands, or cannot be told, stays. Without I/O where they hold nothing.

        :return: the version to wait for, 0 if nothing ended

        :raises BackendUnavailable: see :meth:`prove`
        """
        cursor = self._cursor()
        if cursor is None:
            return 0
        snapshot = self.index.follow()
        if not any(map(self.index.hosts_of, consumers)):
            return 0
        evidence = settlement_rules.SettlementEvidence(snapshot)
        suspects: dict[records.RecordKey, frozenset[str]] = {}
        for host, consumer in self._counting(snapshot, evidence, consumers):
            key = records.RecordKey(_CLAIMS, host)
            suspects[key] = suspects.get(key, frozenset()) | {consumer}
        return self._end(suspects, evidence, cursor, []).version

    def _end(
        self,
        suspects: Mapping[records.RecordKey, frozenset[Any]],
        evidence: settlement_rules.SettlementEvidence,
        cursor: records.Cursor,
        stays: list[ClaimName],
    ) -> _Looked:
        """Ask for claims and end them.

        What others ended or wrote meanwhile is waited for, too: it is not in the evidence.

        :param stays: gets the claims that were answered, and judged by it, and stay
        :raises ClaimsUnproved: the epoch changed
        """
        if not suspects:
            return _Looked()
        reaper = claim_reaper.ClaimReaper(
            self._synchronizer,
            self._store,
            self._cursor,
            self._now_seconds,
            self._cache,
            self.status,
            _leaving_shown,
        )
        first = reaper.end(suspects, evidence, cursor)
        if first is None:
            raise ClaimsUnproved("the epoch changed")
        unanswered = self._ask_all(first.queries, reaper)
        asked = {query.key for query in first.queries}
        changed = {*first.written, *first.lost, *first.gone}
        unjudged, unread = {*first.lost}, {*first.unread}
        if asked:
            second = reaper.end(dict.fromkeys(asked, frozenset()), evidence, cursor)
            if second is None:
                raise ClaimsUnproved("the epoch changed")
            changed |= {*second.written, *second.lost}
            unjudged |= {*second.lost}
            unread |= {*second.unread}
            lost = {*second.lost, *second.unread}
            answered = (_name(each) for each in first.queries if each.key not in lost)
            stays += (name for name in answered if name not in unanswered)
        version = self._synchronizer.head().version if changed else 0
        return _Looked(version, bool(unanswered), bool(unjudged), bool(unread))

    def _ask_all(
        self,
        queries: Iterable[claim_reaper.AllocationQuery],
        reaper: claim_reaper.ClaimReaper,
    ) -> list[ClaimName]:
        """Ask, and note the answers; return what has none: it is asked for again soon."""
        unanswered: list[ClaimName] = []
        answers: dict[str, settlement_rules.Allocations | None] = {}
        for query in queries:
            consumer = query.consumer
            if consumer not in answers:
                self.status.asked += 1
                # After all of the records were read: one answer serves them all.
                answers[consumer] = self._ask(consumer)
            if answers[consumer] is None:
                self.status.unanswered += 1
                unanswered.append(_name(query))
            reaper.note(claim_reaper.AllocationAnswer(query, answers[consumer]))
        return unanswered

    def _counting(
        self,
        snapshot: store_snapshot.Snapshot,
        evidence: settlement_rules.SettlementEvidence,
        consumers: Collection[str],
    ) -> Iterator[tuple[str, str]]:
        """Return host and consumer of what some consumers hold and no record counts.

        Whatever the authority's mirror says: it may not have seen yet that they begin to
        move, and gave what they had to their migration.
        """
        for consumer in consumers:
            for host in self.index.hosts_of(consumer):
                held = settlement_rules.claims_of(snapshot, host).get(consumer)
                if (
                    held is not None
                    and held.state is model.ClaimState.CONFIRMED
                    and evidence.counts(host, consumer, held)
                ):
                    yield host, consumer

    def _places(
        self,
        group: str | None,
        snapshot: store_snapshot.Snapshot,
        evidence: settlement_rules.SettlementEvidence,
    ) -> tuple[dict[records.RecordKey, frozenset[group_model.Place]], bool] | None:
        """Return the places of a group's members that no record shows, and whether all of them.

        None where its record cannot be understood: whatever it holds stays.
        """
        stored = None if group is None else snapshot.namespace(_GROUPS).get(group)
        if group is None or stored is None:
            return {}, True
        try:
            record = group_model.GroupRecord.from_state(group, stored.state, stored.version)
        except settlement_rules.NOT_READ as error:
            self.status.unreadable += 1
            LOG.warning(
                "The record of server group %(group)s cannot be read; what it holds stays, and "
                "who may be refused for it is decided by Nova's own path: %(error)r",
                {"group": group, "error": error},
            )
            return None
        unshown = [
            place
            for place in group_rules.confirmed(record)
            if evidence.place_shown_at(place) is None
        ]
        key = records.RecordKey(_GROUPS, group)
        wanted = {key: frozenset(unshown[:_MOST_ASKED])} if unshown else {}
        return wanted, len(unshown) <= _MOST_ASKED

    def _suspects(
        self,
        snapshot: store_snapshot.Snapshot,
        evidence: settlement_rules.SettlementEvidence,
        own: Collection[str],
        hosts: Container[str] | None,
        decided_at: float | None,
    ) -> tuple[dict[records.RecordKey, frozenset[str]], bool]:
        """Return the claims to ask for by record, and whether these are all.

        No record accounts for them.

        :param hosts: see :meth:`prove`, like ``decided_at``
        """
        since = self._clock() - _REST_SECONDS
        self._asked_at = {name: at for name, at in self._asked_at.items() if at > since}
        recently = since if decided_at is None else decided_at
        found: dict[records.RecordKey, frozenset[str]] = {}
        for host, consumer in self._counting(snapshot, evidence, own):
            if hosts is None or host in hosts:
                key = records.RecordKey(_CLAIMS, host)
                found[key] = found.get(key, frozenset()) | {consumer}
        left = _MOST_ASKED
        are_all = True
        for host in self.index.hosts():
            if hosts is not None and host not in hosts:
                continue
            key = records.RecordKey(_CLAIMS, host)
            claims = settlement_rules.claims_of(snapshot, host)
            allocated = settlement_rules.allocated_on(snapshot, host)
            here = [
                consumer
                for consumer, held in claims.items()
                if held.state is model.ClaimState.CONFIRMED
                and consumer not in own
                and self._asked_at.get((host, consumer, held.claim_id), recently) <= recently
                and evidence.counts(host, consumer, held)
                # Would the authority say the same as its mirror, it went.
                and not evidence.is_needed(
                    host, consumer, held, {host: allocated.get(consumer, {})}
                )
            ]
            if len(here) > left:
                are_all, here = False, here[:left]
            left -= len(here)
            if here:
                found[key] = found.get(key, frozenset()) | {*here}
            if not are_all:
                break
        return found, are_all


@attrs.frozen
class _Looked:
    """What came of asking for claims.

    :param version: to wait for; 0 if nothing changed
    :param unanswered: of some claims nobody said why they stand
    :param unjudged: somebody else wrote a record meanwhile, whose claims were not judged
    :param unread: of some records nobody can tell what they hold
    """

    version: int = 0
    unanswered: bool = False
    unjudged: bool = False
    unread: bool = False

    def with_more(self, other: _Looked) -> _Looked:
        return _Looked(
            max(self.version, other.version),
            self.unanswered or other.unanswered,
            self.unjudged or other.unjudged,
            self.unread or other.unread,
        )


def _leaving_shown(
    key: records.RecordKey, verdict: settlement_rules.SettlementVerdict
) -> settlement_rules.SettlementVerdict:
    """Leave members of a group that records show to who settles them, with their grace."""
    return attrs.evolve(verdict, settled={}, shown_at=0)


def _name(query: claim_reaper.AllocationQuery) -> ClaimName:
    return query.key.key, query.consumer, query.held.claim_id


def _some_ended(
    before: store_snapshot.NamespaceView,
    now: store_snapshot.NamespaceView,
    hosts: Container[str] | None,
) -> bool:
    """Say whether a record, of those that matter, lacks a claim that it had before."""
    return any(
        _consumers(before, host) - _consumers(now, host)
        for host in now.changed_since(before)
        if hosts is None or host in hosts
    )


def _consumers(view: store_snapshot.NamespaceView, host: str) -> set[str]:
    found = view.digest(host)
    return {*found.claims} if isinstance(found, model.ClaimRecord) else set()
