# SPDX-License-Identifier: Apache-2.0
"""Changes several records at once, each by itself: one write a round for all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, TypeVar

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces as namespaces_model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract, record_editor, shared_writes
from nova_nodb_scheduler.wire import codec

T = TypeVar("T")

#: What came of each record's edit.
Answers = dict[records.RecordKey, record_editor.Edited[T] | record_editor.Unwritten]


class BatchEditor(record_editor.RecordEditor):
    """Edits records of one synchronizer, several at a time; any thread may call it.

    Threads that write at the same time share a call to the back end.

    Parameters as those of :class:`record_editor.RecordEditor`.
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        namespaces: Sequence[namespaces_model.Namespace],
        rounds: int = 64,
        pause: Callable[[int], None] = record_editor.pause_briefly,
        count_lost: Callable[[int], None] = lambda count: None,
    ) -> None:
        super().__init__(synchronizer, namespaces, rounds, pause, count_lost)
        self._shared = shared_writes.SharedWrites(self._write)

    def _write(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        return self._synchronizer.write(writes)

    def edit_each(
        self,
        proposers: Mapping[records.RecordKey, record_editor.Propose[T]],
        known: Mapping[records.RecordKey, records.Record] | None = None,
    ) -> Answers[T]:
        """Change several records, each by itself.

        Blocks for a read and a write at first, and in each further round for a
        write: who loses is told what stands there. Raises nothing for the back
        end; what came to no answer says why.

        :param known: records as somebody saw them, tried without a read. What
            they lead to counts only if the compare-and-set on them wins; a
            refusal is looked at again.
        """
        batch = _Batch(proposers, known or {})
        for round_number in range(self._rounds):
            if round_number:
                self._pause(round_number)
            try:
                self._read(batch, batch.missing())
                writes = self._propose_each(batch, list(batch.left))
                behind = batch.missing()
                if behind:
                    self._read(batch, behind)
                    writes += self._propose_each(batch, behind)
                results = self._shared.write(writes) if writes else []
            except errors.BackendUnavailable:
                batch.end(record_editor.Unwritten.UNAVAILABLE)
                break
            self._count_lost(batch.take(writes, results))
            if not batch.left:
                break
        batch.end(record_editor.Unwritten.LOST)
        return batch.answers

    def _read(self, batch: _Batch[T], keys: Collection[records.RecordKey]) -> None:
        if keys:
            batch.read(keys, self._synchronizer.read(keys))

    def _propose_each(
        self, batch: _Batch[T], keys: Sequence[records.RecordKey]
    ) -> list[records.Write]:
        writes = []
        for key in keys:
            try:
                write = self._propose_one(batch, key)
            except errors.UndecodableRecord:
                batch.answer(key, record_editor.Unwritten.UNREADABLE)
                continue
            if write is not None:
                writes.append(write)
        return writes

    def _propose_one(self, batch: _Batch[T], key: records.RecordKey) -> records.Write | None:
        record = batch.found[key]
        state, revision, version = self._decoded(key, {key: record} if record else {})
        proposal = batch.left[key](state, version)
        edited = record_editor.Edited(proposal.answer, (proposal.answer,), revision, record)
        if not proposal.accepted or proposal.state is None:
            if key in batch.fresh:
                batch.answer(key, edited)
            else:
                del batch.found[key]
            return None
        batch.proposed[key] = edited
        payload = codec.encode(
            proposal.state, self._namespaces[key.namespace].schema, record=str(key)
        )
        return records.Write(key, revision, payload)


class _Batch(Generic[T]):
    """One call: which edits are left, and what is known of their records."""

    def __init__(
        self,
        proposers: Mapping[records.RecordKey, record_editor.Propose[T]],
        known: Mapping[records.RecordKey, records.Record],
    ) -> None:
        self.left = dict(proposers)
        self.answers: Answers[T] = {}
        self.found: dict[records.RecordKey, records.Record | None] = {
            key: known[key] for key in proposers if key in known
        }
        #: Keys whose record is the back end's word in this call.
        self.fresh: set[records.RecordKey] = set()
        self.proposed: dict[records.RecordKey, record_editor.Edited[T]] = {}
        #: For good: a write in doubt may have been carried out, and then lost
        #: its recognition to somebody else's.
        self._unsure: set[records.RecordKey] = set()

    def missing(self) -> list[records.RecordKey]:
        return [key for key in self.left if key not in self.found]

    def read(
        self,
        keys: Collection[records.RecordKey],
        found: Mapping[records.RecordKey, records.Record],
    ) -> None:
        for key in keys:
            self.found[key] = found.get(key)
        self.fresh.update(keys)

    def answer(
        self, key: records.RecordKey, answer: record_editor.Edited[T] | record_editor.Unwritten
    ) -> None:
        del self.left[key]
        self.answers[key] = answer

    def take(self, writes: Sequence[records.Write], results: Sequence[records.WriteResult]) -> int:
        """Take in how writes ended; return how many were lost."""
        lost = 0
        for write, result in zip(writes, results, strict=True):
            key = write.key
            if result.won and result.record is not None:
                self.answer(
                    key,
                    record_editor.Edited(
                        self.proposed[key].answer,
                        self.proposed[key].answers,
                        result.record.revision,
                        result.record,
                        result.epoch,
                    ),
                )
            elif result.verdict is records.Verdict.REFUSED:
                self.answer(key, record_editor.Unwritten.REFUSED)
            elif result.verdict is records.Verdict.LOST:
                lost += 1
                self.found[key] = result.record
                self.fresh.add(key)
            else:
                self._unsure.add(key)
                self.found.pop(key, None)
        return lost

    def end(self, why: record_editor.Unwritten) -> None:
        """Answer what is left."""
        for key in list(self.left):
            unsure = key in self._unsure
            self.answer(key, record_editor.Unwritten.UNKNOWN if unsure else why)
