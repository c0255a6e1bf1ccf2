# SPDX-License-Identifier: Apache-2.0
"""Ends what has served in records of claims: reads them, judges them anew, writes what is left.

Written by compare-and-set: where several end the same, one of them does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer import (
    contract,
    latest_records,
    settling_evidence,
    settling_questions,
    settling_rules,
    settling_status,
)
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)

_SCHEMAS = {each.name: each for each in (namespaces.CLAIM_RECORDS, namespaces.GROUP_CLAIMS)}

#: Tells what has served of a record, by its key, state and version.
Judge = Callable[
    [records.RecordKey, Mapping[str, Any], int, settling_evidence.Evidence],
    settling_rules.Verdict,
]


@attrs.frozen
class Ended:
    """What came of one call.

    :param written: records of which something was ended
    :param lost: records that somebody else wrote meanwhile
    :param questions: to be asked of entries that stay
    :param gone: records of which an entry to ask for had been ended by somebody else
    """

    written: Sequence[records.RecordKey]
    lost: Sequence[records.RecordKey]
    questions: Sequence[settling_questions.Question]
    gone: Sequence[records.RecordKey] = ()


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


class Endings:
    """Ends entries of records by their verdict, and by answers to questions; one thread.

    :param cursor: how far the store has come; None while that is not proved
    :param latest: where who claims here finds what was written
    :param status: counts what was ended
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        store: host_state_store.HostStateStore,
        cursor: Callable[[], records.Cursor | None],
        judge: Judge,
        latest: latest_records.LatestRecords,
        status: settling_status.SettlingStatus,
    ) -> None:
        self._synchronizer = synchronizer
        self._store = store
        self._cursor = cursor
        self._judge = judge
        self._latest = latest
        self._status = status
        #: By record, then by entry.
        self._answers: dict[records.RecordKey, dict[Any, settling_questions.Answer]] = {}

    def clear(self) -> None:
        """Forget all answers."""
        self._answers.clear()

    def forget(self, key: records.RecordKey) -> None:
        """Forget the answers about a record that has no claims any more."""
        self._answers.pop(key, None)

    def note(self, answer: settling_questions.Answer) -> None:
        """Keep an answer until its record is read."""
        self._answers.setdefault(answer.question.key, {})[answer.question.entry] = answer

    def has_answers(self, key: records.RecordKey) -> bool:
        """Say whether a record is to be read for what was answered about it."""
        return key in self._answers

    def end(
        self,
        wanted: Mapping[records.RecordKey, frozenset[Any]],
        evidence: settling_evidence.Evidence,
        cursor: records.Cursor,
    ) -> Ended | None:
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
        questions: list[settling_questions.Question] = []
        gone: list[records.RecordKey] = []
        for key, to_ask in wanted.items():
            answers = self._answers.pop(key, {})
            record = found.get(key)
            read = _read(key, record)
            if read is None:
                # One that cannot be understood may hold anything.
                if to_ask and (record is None or record.deleted):
                    gone.append(key)
                continue
            if to_ask and not to_ask <= _entries_of(read).keys():
                gone.append(key)
            verdict = self._judge(key, read.state, read.version, evidence)
            questions += _asked(read, to_ask & verdict.unshown.keys())
            change = self._change(read, verdict, answers, cursor)
            if change is not None:
                changes.append(change)
        written, lost = self._write(changes, cursor.epoch)
        return Ended(written, lost, questions, gone)

    def _write(
        self, changes: Sequence[_Change], epoch: str
    ) -> tuple[list[records.RecordKey], list[records.RecordKey]]:
        """Write all that changes; return whose records were written, and whose were lost."""
        written: list[records.RecordKey] = []
        lost: list[records.RecordKey] = []
        self._latest.see(epoch, ())
        results = self._synchronizer.write([each.write for each in changes]) if changes else ()
        for change, result in zip(changes, results, strict=True):
            self._latest.note(result.record, result.epoch or epoch)
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
        verdict: settling_rules.Verdict,
        answers: Mapping[Any, settling_questions.Answer],
        cursor: records.Cursor,
    ) -> _Change | None:
        key = read.key
        ledger = settling_rules.LEDGERS[key.namespace]
        absent = {
            entry
            for entry in answers.keys() & verdict.unshown.keys()
            if self._is_absent(ledger, read, answers[entry])
        }
        if not verdict.ended and not absent:
            return None
        # What nothing stands behind may be shown by records older than its confirm.
        shown_at = max(verdict.shown_at, cursor.version if absent else 0)
        settled = None
        if verdict.settled or absent:
            settled = records.Cursor(cursor.epoch, min(shown_at, cursor.version))
        ended = verdict.ended | absent
        left = ledger.without(key.key, read.state, read.version, ended, settled, verdict.expired)
        for entry in absent:
            LOG.info(
                "A confirmed claim of %(consumer)s in %(key)s goes: nothing stands behind it.",
                {"consumer": ledger.consumer(entry), "key": key},
            )
        payload = codec.encode(left, _SCHEMAS[key.namespace].schema, record=str(key))
        write = records.Write(key, read.revision, payload)
        return _Change(write, len(verdict.settled), len(verdict.expired), len(absent))

    def _is_absent(
        self,
        ledger: settling_rules.Ledger,
        read: _Read,
        answer: settling_questions.Answer,
    ) -> bool:
        """Say whether nothing stands behind a confirmed claim that was asked for."""
        question, allocations = answer.question, answer.allocations
        key, entry = read.key.key, question.entry
        held = ledger.entries(key, read.state, read.version)[entry]
        if allocations is None or held != question.held:
            # Taken once more since: what it has now may be newer than the answer.
            return False
        # After the answer: what the store shows by now was true then, or later.
        evidence = settling_evidence.Evidence(self._store.snapshot())
        if self._cursor() is None:
            # It may have been a store half built.
            return False
        return not ledger.is_needed(key, entry, held, evidence, allocations)


def _read(key: records.RecordKey, record: records.Record | None) -> _Read | None:
    """Return a record with its state; None where it is gone, or cannot be understood."""
    if record is None or record.deleted:
        return None
    try:
        decoded = codec.decode(record.payload)
        codec.check_readable(decoded.schema, _SCHEMAS[key.namespace])
    except errors.UndecodableRecord as error:
        LOG.warning("Claims of %(key)s: %(error)s", {"key": key, "error": error})
        return None
    return _Read(key, decoded.state, record.revision, record.version)


def _asked(read: _Read, entries: Collection[Any]) -> Iterator[settling_questions.Question]:
    ledger = settling_rules.LEDGERS[read.key.namespace]
    held = _entries_of(read)
    for entry in entries:
        yield settling_questions.Question(read.key, entry, ledger.consumer(entry), held[entry])


def _entries_of(read: _Read) -> Mapping[Any, Any]:
    ledger = settling_rules.LEDGERS[read.key.namespace]
    return ledger.entries(read.key.key, read.state, read.version)
