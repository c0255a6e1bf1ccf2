# SPDX-License-Identifier: Apache-2.0
"""Claims that keep hosts full though nothing stands behind them: ended before a refusal.

A server that is deleted, or whose move goes back, leaves its claim until
somebody settles it, some seconds later. Who asks for that room meanwhile would
be told that there is none, where Placement has it. So before that is said, the
claims that no record accounts for are asked of their authority at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.store import host_state_store, namespace_view
from nova_nodb_scheduler.store import snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer import (
    contract,
    latest_records,
    settling_endings,
    settling_evidence,
    settling_questions,
    settling_rules,
    settling_status,
)

_CLAIMS = namespaces.CLAIM_RECORDS.name
_LEDGER = settling_rules.LEDGERS[_CLAIMS]

#: A claim: its record's key, its consumer and its id.
_Name = tuple[str, str, str]


class ClaimsUnproved(errors.NodbError):
    """Nobody can tell whether something stands behind each claim."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self._why = why

    def __str__(self) -> str:
        return f"Claims may keep hosts full for nothing: {self._why}."


class ClaimProof:
    """Looks for such claims when it is asked to; any thread, one at a time.

    :param cursor: how far the store has come; None while that is not proved
    :param ask: a consumer's allocations; may block
    :param now_seconds: the back end's clock, without I/O
    :param latest: where who claims here finds what was written
    :param clock: monotonic seconds
    :param most: claims asked for in one call: each is a request to the authority
    :param rest_seconds: how long one that stays is not asked for again
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        store: host_state_store.HostStateStore,
        cursor: Callable[[], records.Cursor | None],
        ask: settling_questions.Ask,
        now_seconds: Callable[[], float],
        latest: latest_records.LatestRecords,
        clock: Callable[[], float],
        *,
        most: int = 16,
        rest_seconds: float = 2.0,
    ) -> None:
        self._synchronizer = synchronizer
        self._store = store
        self._cursor = cursor
        self._ask = ask
        self._clock = clock
        self._most = most
        self._rest_seconds = rest_seconds
        self._lock = threading.Lock()
        self._subscription = store.subscribe((_CLAIMS,))
        #: Hosts with claims, as far as the store has come.
        self._claimed: set[str] = set()
        #: When it was last asked for, of those that stay.
        self._asked_at: dict[_Name, float] = {}
        self.status = settling_status.SettlingStatus()
        self._endings = settling_endings.Endings(
            synchronizer,
            store,
            cursor,
            lambda key, state, version, evidence: _LEDGER.judge(
                key.key, state, version, evidence, now_seconds()
            ),
            latest,
            self.status,
        )

    def prove(self, before: namespace_view.NamespaceView | None = None) -> int:
        """End what nothing stands behind; return the version to wait for, 0 if nothing ended.

        What somebody else ended since then counts, too: who was refused for it may
        not have seen that.

        Blocks for a read and a write, and a question for each claim that no
        record accounts for. Without I/O where there is none.

        :param before: claim records before it was decided
        :raises BackendUnavailable: what was not written stays claimed
        :raises ClaimsUnproved: nothing ended, and of some claims nobody said why they stand
        """
        with self._lock:
            cursor = self._cursor()
            if cursor is None:
                raise ClaimsUnproved("the feed is not followed")
            touched = self._subscription.drain()
            snapshot = self._store.snapshot()
            self._follow(touched, snapshot)
            now = snapshot.namespace(_CLAIMS)
            if before is not None and _some_ended(before, now):
                return now.version
            evidence = settling_evidence.Evidence(snapshot)
            suspects, are_all = self._suspects(snapshot, evidence)
            unproved = None if are_all else f"more than {self._most} are to be asked for"
            written = set[records.RecordKey]()
            if suspects:
                ended = self._endings.end(suspects, evidence, cursor)
                if ended is None:
                    raise ClaimsUnproved("the epoch changed")
                written = {*ended.written}
                if not self._ask_all(ended.questions):
                    unproved = "their authority does not answer"
                ended = self._endings.end(dict.fromkeys(suspects, frozenset()), evidence, cursor)
                if ended is not None:
                    written |= {*ended.written}
            if written:
                return self._synchronizer.head().version
            if unproved is not None:
                raise ClaimsUnproved(unproved)
            return 0

    def _ask_all(self, questions: Iterable[settling_questions.Question]) -> bool:
        """Ask, and note the answers; False if one is lacking: it is asked for again soon."""
        all_answered = True
        for question in questions:
            self.status.asked += 1
            allocations = self._ask(question.consumer)
            if allocations is None:
                all_answered = False
                self.status.unanswered += 1
                name = (question.key.key, question.consumer, question.held.claim_id)
                self._asked_at.pop(name, None)
            self._endings.note(settling_questions.Answer(question, allocations))
        return all_answered

    def _follow(
        self, touched: Mapping[str, Collection[str]] | None, snapshot: snapshot_module.Snapshot
    ) -> None:
        if touched is None:
            self._claimed.clear()
            hosts: Iterable[str] = snapshot.namespace(_CLAIMS).keys()
        else:
            hosts = touched.get(_CLAIMS, ())
        for host in hosts:
            if settling_evidence.claims_of(snapshot, host):
                self._claimed.add(host)
            else:
                self._claimed.discard(host)

    def _suspects(
        self, snapshot: snapshot_module.Snapshot, evidence: settling_evidence.Evidence
    ) -> tuple[dict[records.RecordKey, frozenset[str]], bool]:
        """Return the claims to ask for by record, and whether these are all.

        No record accounts for them.
        """
        now = self._clock()
        since = now - self._rest_seconds
        self._asked_at = {name: at for name, at in self._asked_at.items() if at > since}
        found: dict[records.RecordKey, frozenset[str]] = {}
        left = self._most
        are_all = True
        for host in sorted(self._claimed):
            claims = settling_evidence.claims_of(snapshot, host)
            allocated = settling_evidence.allocated_on(snapshot, host)
            here = [
                consumer
                for consumer, held in claims.items()
                if held.state is model.ClaimState.CONFIRMED
                and (host, consumer, held.claim_id) not in self._asked_at
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
                key = records.RecordKey(_CLAIMS, host)
                found[key] = frozenset(here)
                names = ((host, consumer, claims[consumer].claim_id) for consumer in here)
                self._asked_at.update(dict.fromkeys(names, now))
            if not are_all:
                break
        return found, are_all


def _some_ended(before: namespace_view.NamespaceView, now: namespace_view.NamespaceView) -> bool:
    """Say whether a record lacks a claim that it had before."""
    return any(
        _consumers(before, host) - _consumers(now, host) for host in now.changed_since(before)
    )


def _consumers(view: namespace_view.NamespaceView, host: str) -> set[str]:
    found = view.digest(host)
    return {*found.claims} if isinstance(found, model.ClaimRecord) else set()
