# SPDX-License-Identifier: Apache-2.0
"""Changes several records at once, each by itself: one write a round for all of them.

Who loses a compare-and-set is told what stands there, judges by that, and writes
again: it is *absorbed*, at the cost of one more exchange with the back end. Nothing
that was judged by another record than the one it replaces is ever written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, TypeVar

import attrs

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

    Threads that write at the same time share a call to the back end, and one
    compare-and-set where they change the same record (:mod:`.shared_writes`).

    Parameters as those of :class:`record_editor.RecordEditor`, and:

    :param count_absorbed: told of changes that lost a compare-and-set and were then
        written to the same record all the same, with how many
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        namespaces: Sequence[namespaces_model.Namespace],
        rounds: int = 64,
        pause: Callable[[int], None] = record_editor.pause_briefly,
        count_lost: Callable[[int], None] = lambda count: None,
        count_absorbed: Callable[[int], None] = lambda count: None,
    ) -> None:
        super().__init__(synchronizer, namespaces, rounds, pause, count_lost)
        self._count_absorbed = count_absorbed
        self._shared = shared_writes.SharedWrites(self._write)

    def _write(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        if not writes:
            return []
        results = self._synchronizer.write(writes)
        self._count_lost(sum(each.verdict is records.Verdict.LOST for each in results))
        return results

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
            # Most who lose do so to a write that is long over, which the feed had not
            # brought yet: they have nobody to give way to, and go on at once.
            if round_number > 1 or batch.in_doubt:
                self._pause(round_number)
            try:
                self._read(batch, batch.missing())
                drafts = self._propose_each(batch, list(batch.left))
                behind = batch.missing()
                if behind:
                    self._read(batch, behind)
                    drafts += self._propose_each(batch, behind)
                results = self._shared.write(drafts) if drafts else []
            except errors.BackendUnavailable:
                batch.end(record_editor.Unwritten.UNAVAILABLE)
                break
            batch.take(drafts, results)
            if not batch.left:
                break
        batch.end(record_editor.Unwritten.LOST)
        if batch.absorbed:
            self._count_absorbed(batch.absorbed)
        return batch.answers

    def _read(self, batch: _Batch[T], keys: Collection[records.RecordKey]) -> None:
        if keys:
            batch.read(keys, self._synchronizer.read(keys))

    def _propose_each(
        self, batch: _Batch[T], keys: Sequence[records.RecordKey]
    ) -> list[shared_writes.Draft]:
        drafts = []
        for key in keys:
            record = batch.found[key]
            propose = batch.left[key]
            try:
                edited, write = self._propose_one(key, propose, record)
            except errors.UndecodableRecord:
                batch.answer(key, record_editor.Unwritten.UNREADABLE)
                continue
            if write is not None:
                anew = functools.partial(self._propose_anew, key, propose)
                first = shared_writes.Proposed(write, edited)
                drafts.append(shared_writes.Draft(first, anew))
            elif key in batch.fresh:
                batch.answer(key, edited)
            else:
                del batch.found[key]
        return drafts

    def _propose_anew(
        self,
        key: records.RecordKey,
        propose: record_editor.Propose[T],
        before: records.Record,
    ) -> shared_writes.Proposed | None:
        """Propose on what others of this process leave; in whichever's thread writes."""
        edited, write = self._propose_one(key, propose, before)
        return None if write is None else shared_writes.Proposed(write, edited)

    def _propose_one(
        self,
        key: records.RecordKey,
        propose: record_editor.Propose[T],
        record: records.Record | None,
    ) -> tuple[record_editor.Edited[T], records.Write | None]:
        state, revision, version = self._decoded(key, {key: record} if record else {})
        proposal = propose(state, version)
        edited = record_editor.Edited(proposal.answer, (proposal.answer,), revision, record)
        if not proposal.accepted or proposal.state is None:
            return edited, None
        payload = codec.encode(
            proposal.state, self._namespaces[key.namespace].schema, record=str(key)
        )
        return edited, records.Write(key, revision, payload)


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
        #: For good: a write in doubt may have been carried out, and then lost
        #: its recognition to somebody else's.
        self._unsure: set[records.RecordKey] = set()
        self._lost: set[records.RecordKey] = set()
        #: How many changes were written after they had lost.
        self.absorbed = 0

    @property
    def in_doubt(self) -> bool:
        """Whether a write of what is left ended unknown."""
        return not self._unsure.isdisjoint(self.left)

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

    def take(
        self, drafts: Sequence[shared_writes.Draft], results: Sequence[shared_writes.Result]
    ) -> None:
        """Take in how writes ended."""
        for draft, carried in zip(drafts, results, strict=True):
            key = draft.key
            if isinstance(carried, shared_writes.Unmade):
                self._stands(key, carried.standing)
                continue
            result = carried.result
            if result.won and result.record is not None:
                self.absorbed += key in self._lost
                edited: record_editor.Edited[T] = attrs.evolve(
                    carried.answer,
                    revision=result.record.revision,
                    record=result.record,
                    epoch=result.epoch,
                )
                self.answer(key, edited)
            elif result.verdict is records.Verdict.REFUSED:
                self.answer(key, record_editor.Unwritten.REFUSED)
            elif result.verdict is records.Verdict.LOST:
                self._lost.add(key)
                self.found[key] = result.record
                self.fresh.add(key)
            else:
                self._unsure.add(key)
                self.found.pop(key, None)

    def _stands(self, key: records.RecordKey, standing: records.Record | None) -> None:
        """Go on from what others of this process made the back end say; read it if nothing."""
        if standing is None:
            self.found.pop(key, None)
        else:
            self.found[key] = standing
            self.fresh.add(key)

    def end(self, why: record_editor.Unwritten) -> None:
        """Answer what is left."""
        for key in list(self.left):
            unsure = key in self._unsure
            self.answer(key, record_editor.Unwritten.UNKNOWN if unsure else why)
