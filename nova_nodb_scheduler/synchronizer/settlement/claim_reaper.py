# SPDX-License-Identifier: Apache-2.0
"""Ends claims by compare-and-set, judged anew on the record as it was just read.

Where several end the same, one of them does. What no record shows is asked of the
authority of allocations first, beside the turns that settle: asked within a turn, an
authority that hangs would keep all other claims waiting for as long; and Nova sets no
bound to that unless an operator does.
"""

from __future__ import annotations

import collections
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.store import store_snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer import contract, step_thread
from nova_nodb_scheduler.synchronizer.records import record_editor
from nova_nodb_scheduler.synchronizer.settlement import settlement_rules
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)


@attrs.define
class SettlementStatus:
    """Counts since the start, for status and metrics."""

    settled: int = 0
    expired: int = 0
    reconciled: int = 0
    asked: int = 0
    unanswered: int = 0
    removed: int = 0
    unreadable: int = 0


def claim_counts(
    snapshot: snapshot_module.Snapshot, now_seconds: float, lease_seconds: float
) -> dict[str, float]:
    """Return claims on hosts by state, and the age of the oldest pending one in seconds."""
    view = snapshot.namespace(known_namespaces.CLAIM_RECORDS.name)
    found = {"pending": 0.0, "confirmed": 0.0, "oldest_pending_seconds": 0.0}
    for host in view.keys():  # noqa: SIM118 - a view is no mapping
        for held in settlement_rules.claims_of(snapshot, host).values():
            found[held.state.value] += 1
            if held.state is model.ClaimState.PENDING and held.deadline_seconds is not None:
                age = now_seconds - (held.deadline_seconds - lease_seconds)
                found["oldest_pending_seconds"] = max(found["oldest_pending_seconds"], age)
    return found


#: A consumer's allocations now; None where their authority cannot be asked. May block.
Ask = Callable[[str], settlement_rules.Allocations | None]


@attrs.frozen
class AllocationQuery:
    """What is to be asked of an entry of a record.

    :param held: the claim, or the member, as it was read before
    """

    key: records.RecordKey
    entry: Any
    consumer: str
    held: Any


@attrs.frozen
class AllocationAnswer:
    """Allocations of a claim's consumer, told after the claim was read; None where nobody did."""

    query: AllocationQuery
    allocations: settlement_rules.Allocations | None


class AllocationQueries:
    """Asks one after the other, in a thread once that is started; else at once.

    Any thread may call it.
    """

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self._lock = threading.Lock()
        self._waiting: collections.deque[AllocationQuery] = collections.deque()
        #: Those whose answer is wanted, waiting or under way.
        self._open: dict[tuple[records.RecordKey, Any], AllocationQuery] = {}
        self._answers: list[AllocationAnswer] = []
        self._wake = threading.Event()
        self._stopping = False
        self._thread = step_thread.StepThread(
            "nodb-settlement-queries", self._turn, lambda error: None, lambda running: None
        )

    def start(self) -> None:
        """Start the thread; not before the process has forked."""
        self._stopping = False
        self._thread.start()

    def stop(self, timeout_seconds: float = 1.0) -> None:
        """End the thread; idempotent. One that hangs in a query is left to itself."""
        self._stopping = True
        self._wake.set()
        self._thread.stop(timeout_seconds)

    def put(self, queries: Iterable[AllocationQuery]) -> None:
        """Have queries asked; blocks only where no thread was started."""
        with self._lock:
            for query in queries:
                self._open[query.key, query.entry] = query
                self._waiting.append(query)
        if not self._thread.alive:
            while self._ask_next():
                pass
        self._wake.set()

    def under_way(self, key: records.RecordKey, entries: Iterable[Any]) -> set[Any]:
        """Return which entries of a record wait for an answer."""
        with self._lock:
            return {entry for entry in entries if (key, entry) in self._open}

    @property
    def count(self) -> int:
        """How many wait for an answer."""
        return len(self._open)

    @property
    def answered(self) -> bool:
        """Whether there are answers to take."""
        return bool(self._answers)

    def take(self) -> Collection[AllocationAnswer]:
        """Return the answers that came since the last call."""
        with self._lock:
            answers, self._answers = self._answers, []
            return answers

    def clear(self) -> None:
        """Forget all queries, and what is answered to them."""
        with self._lock:
            self._waiting.clear()
            self._open.clear()
            self._answers.clear()

    def _turn(self, _stop: threading.Event) -> None:
        self._wake.clear()
        if not self._ask_next() and not self._stopping:
            self._wake.wait()

    def _ask_next(self) -> bool:
        with self._lock:
            if not self._waiting:
                return False
            query = self._waiting.popleft()
        allocations = None
        try:
            allocations = self.ask(query.consumer)
        finally:
            with self._lock:
                if self._open.get((query.key, query.entry)) is query:
                    del self._open[query.key, query.entry]
                    self._answers.append(AllocationAnswer(query, allocations))
        return True


_SCHEMAS = {
    each.name: each for each in (known_namespaces.CLAIM_RECORDS, known_namespaces.GROUP_CLAIMS)
}

#: From the verdict on a record to the one that leaves entries their grace period.
WithGrace = Callable[
    [records.RecordKey, settlement_rules.SettlementVerdict], settlement_rules.SettlementVerdict
]


@attrs.frozen
class Reaped:
    """What came of one call.

    :param written: records of which something was ended
    :param lost: records that somebody else wrote meanwhile
    :param queries: to be asked of entries that stay
    :param gone: records of which an entry to ask for had been ended by somebody else
    :param unread: records that cannot be understood, and may hold anything
    """

    written: Sequence[records.RecordKey]
    lost: Sequence[records.RecordKey]
    queries: Sequence[AllocationQuery]
    gone: Sequence[records.RecordKey] = ()
    unread: Sequence[records.RecordKey] = ()


@attrs.frozen
class _Read:
    """A record as the back end has it."""

    key: records.RecordKey
    state: Mapping[str, Any]
    revision: int
    version: int


@attrs.frozen
class _Change:
    """What to write, and how many entries go for which reason."""

    write: records.Write
    settled: int
    expired: int
    reconciled: int


@attrs.define(eq=False)
class ClaimReaper:
    """Ends entries of records by their verdict, and by answers to queries; one thread.

    :param cursor: how far the store has come; None while that is not proved
    :param cache: where who claims here finds what was written
    :param now_seconds: the back end's clock, without I/O
    :param status: counts what was ended
    :param with_grace: of entries that stay for a while once they are shown
    :param is_judged: see :class:`settlement_rules.SettlementEvidence`
    """

    _synchronizer: contract.Synchronizer
    _store: host_state_store.HostStateStore
    _cursor: Callable[[], records.Cursor | None]
    _now_seconds: Callable[[], float]
    _cache: record_editor.RecordCache
    _status: SettlementStatus
    _with_grace: WithGrace = lambda key, verdict: verdict
    _is_judged: settlement_rules.IsJudged = settlement_rules.always_judged
    #: By record, then by entry.
    _answers: dict[records.RecordKey, dict[Any, AllocationAnswer]] = attrs.field(
        init=False, factory=dict
    )

    def clear(self) -> None:
        """Forget all answers."""
        self._answers.clear()

    def forget(self, key: records.RecordKey) -> None:
        """Forget the answers about a record that has no claims any more."""
        self._answers.pop(key, None)

    def note(self, answer: AllocationAnswer) -> None:
        """Keep an answer until its record is read."""
        self._answers.setdefault(answer.query.key, {})[answer.query.entry] = answer

    def has_answers(self, key: records.RecordKey) -> bool:
        """Say whether a record is to be read for what was answered about it."""
        return key in self._answers

    def judge(
        self,
        key: records.RecordKey,
        state: Mapping[str, Any],
        version: int,
        evidence: settlement_rules.SettlementEvidence,
    ) -> settlement_rules.SettlementVerdict:
        """Tell what has served of a record, by its state and version."""
        ledger = settlement_rules.LEDGERS[key.namespace]
        verdict = ledger.judge(key.key, state, version, evidence, self._now_seconds())
        return self._with_grace(key, verdict) if ledger.has_grace else verdict

    def end(
        self,
        wanted: Mapping[records.RecordKey, frozenset[Any]],
        evidence: settlement_rules.SettlementEvidence,
        cursor: records.Cursor,
    ) -> Reaped | None:
        """Read records, and end what has served in them; None across an epoch.

        Blocks for a read and a write.

        :param wanted: by record, the entries to ask for if they are unshown still
        :param cursor: how far the store had come before the evidence was taken
        :raises BackendUnavailable: whatever was wanted is to be looked at again;
            what was answered about it is forgotten
        """
        found = self._synchronizer.read(wanted)
        # After the records were read: versions of two epochs do not compare.
        if self._synchronizer.head().epoch != cursor.epoch:
            return None
        changes: list[_Change] = []
        queries: list[AllocationQuery] = []
        gone: list[records.RecordKey] = []
        unread: list[records.RecordKey] = []
        for key, to_ask in wanted.items():
            answers = self._answers.pop(key, {})
            record = found.get(key)
            read = _read(key, record)
            if read is None:
                if record is not None and not record.deleted:
                    self._status.unreadable += 1
                    unread.append(key)
                elif to_ask:
                    gone.append(key)
                continue
            if to_ask and not to_ask <= _entries_of(read).keys():
                gone.append(key)
            verdict = self.judge(key, read.state, read.version, evidence)
            queries += _asked(read, to_ask & verdict.unshown.keys())
            change = self._change(read, verdict, answers, cursor)
            if change is not None:
                changes.append(change)
        written, lost = self._write(changes, cursor.epoch)
        return Reaped(written, lost, queries, gone, unread)

    def _write(
        self, changes: Sequence[_Change], epoch: str
    ) -> tuple[list[records.RecordKey], list[records.RecordKey]]:
        """Write all that changes; return whose records were written, and whose were lost."""
        written: list[records.RecordKey] = []
        lost: list[records.RecordKey] = []
        self._cache.see(epoch, ())
        results = self._synchronizer.write([each.write for each in changes]) if changes else ()
        for change, result in zip(changes, results, strict=True):
            self._cache.note(result.record, result.epoch or epoch)
            if result.won:
                written.append(change.write.key)
                self._status.settled += change.settled
                self._status.expired += change.expired
                self._status.reconciled += change.reconciled
            else:
                lost.append(change.write.key)
        return written, lost

    def _change(
        self,
        read: _Read,
        verdict: settlement_rules.SettlementVerdict,
        answers: Mapping[Any, AllocationAnswer],
        cursor: records.Cursor,
    ) -> _Change | None:
        key = read.key
        ledger = settlement_rules.LEDGERS[key.namespace]
        answered = answers.keys() & verdict.unshown.keys()
        # After the answers: what the store shows by now was true then, or later.
        latest = self._latest_evidence() if answered else None
        absent = {
            entry
            for entry in answered
            if latest is not None and _is_absent(ledger, read, answers[entry], latest)
        }
        if not verdict.ended and not absent:
            return None
        settled = None
        if verdict.settled or absent:
            # What a record shows the cursor may not have come to: the feed is applied first.
            shown_at = verdict.shown_at
            if shown_at == settlement_rules.ALL_KNOWN:
                shown_at = cursor.version
            if absent and latest is not None:
                # What nothing stands behind may be shown by records older than its confirm.
                shown_at = max(shown_at, cursor.version, ledger.shown_at(key.key, latest))
            settled = records.Cursor(cursor.epoch, shown_at)
        ended = verdict.ended | absent
        behind = {
            entry
            for entry in absent
            if latest is not None and _is_left_behind(ledger, read, answers[entry], latest)
        }
        remembered = verdict.expired | behind
        left = ledger.without(key.key, read.state, read.version, ended, settled, remembered)
        for entry in absent:
            LOG.info(
                "A confirmed claim of %(consumer)s in %(key)s goes: nothing stands behind it.",
                {"consumer": ledger.consumer(entry), "key": key},
            )
        payload = codec.encode(left, _SCHEMAS[key.namespace].schema, record=str(key))
        write = records.Write(key, read.revision, payload)
        return _Change(write, len(verdict.settled), len(verdict.expired), len(absent))

    def _latest_evidence(self) -> settlement_rules.SettlementEvidence | None:
        """Return what the store shows by now; None where that is not proved."""
        snapshot = self._store.snapshot()
        evidence = settlement_rules.SettlementEvidence(
            snapshot, is_judged=self._is_judged(snapshot)
        )
        # Behind the snapshot: it may have been a store half built.
        return None if self._cursor() is None else evidence


def _is_absent(
    ledger: settlement_rules.ClaimLedger,
    read: _Read,
    answer: AllocationAnswer,
    evidence: settlement_rules.SettlementEvidence,
) -> bool:
    """Say whether nothing stands behind a confirmed claim that was asked for."""
    query, allocations = answer.query, answer.allocations
    key, entry = read.key.key, query.entry
    held = ledger.entries(key, read.state, read.version)[entry]
    if allocations is None or held != query.held:
        # Taken once more since: what it has now may be newer than the answer.
        return False
    return not ledger.is_needed(key, entry, held, evidence, allocations)


def _is_left_behind(
    ledger: settlement_rules.ClaimLedger,
    read: _Read,
    answer: AllocationAnswer,
    evidence: settlement_rules.SettlementEvidence,
) -> bool:
    """Say whether what a claim allocated stands though its server does so elsewhere."""
    key, query = read.key.key, answer.query
    return ledger.is_left_behind(key, query.entry, query.held, evidence, answer.allocations or {})


def _read(key: records.RecordKey, record: records.Record | None) -> _Read | None:
    """Return a record with its state; None where it is gone, or cannot be understood."""
    if record is None or record.deleted:
        return None
    try:
        decoded = codec.decode(record.payload)
        codec.check_readable(decoded.schema, _SCHEMAS[key.namespace])
        read = _Read(key, decoded.state, record.revision, record.version)
        _entries_of(read)
    except settlement_rules.NOT_READ as error:
        LOG.warning("Claims of %(key)s: %(error)r", {"key": key, "error": error})
        return None
    return read


def _asked(read: _Read, entries: Collection[Any]) -> Iterator[AllocationQuery]:
    ledger = settlement_rules.LEDGERS[read.key.namespace]
    held = _entries_of(read)
    for entry in entries:
        yield AllocationQuery(read.key, entry, ledger.consumer(entry), held[entry])


def _entries_of(read: _Read) -> Mapping[Any, Any]:
    ledger = settlement_rules.LEDGERS[read.key.namespace]
    return ledger.entries(read.key.key, read.state, read.version)
