# SPDX-License-Identifier: Apache-2.0
"""Changes decoded records by read, propose, compare-and-set, repeat.

The loop below claims, group claims and leases. It is safe after an unknown
outcome because proposers are idempotent: each marks its change with an id of
its own, and finding that id in the record read answers "done already".

A :class:`RecordEditor` changes one record. A :class:`BatchEditor` changes several,
each by itself, one write a round for all of them; begins with what a
:class:`RecordCache` remembers of them, without a read; and shares its writes with
the other threads of the process (:class:`GroupCommit`). Who loses a compare-and-set
is told what stands there, judges by that, and writes again: it is *absorbed*, at the
cost of one more exchange with the back end. Nothing that was judged by another record
than the one it replaces is ever written.
"""

from __future__ import annotations

import enum
import functools
import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces as namespaces_model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)

State = Mapping[str, Any]
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
#: What is asked of a record, beside others.
E = TypeVar("E")

#: Tries before an edit is given up as lost; each costs a write, and mostly a read. In
#: every round some writer wins, so with n writers of one record n rounds nearly always do.
_ROUNDS = 64

#: Records that a cache remembers, the last used ones.
_MOST_CACHED = 4096

#: Writes of one call, beyond which the rest goes in the next one.
_MOST_WRITES = 64


class Unwritten(enum.Enum):
    """Why a change did not come to an answer."""

    #: Others won every round; nothing of ours was written.
    LOST = "lost"
    #: A write may or may not have been carried out, and reading failed.
    UNKNOWN = "unknown"
    #: The back end went away; nothing was written. Only of edits in a batch.
    UNAVAILABLE = "unavailable"
    #: The record is damaged, or a newer release wrote it. Only of edits in a batch.
    UNREADABLE = "unreadable"
    #: No record may have its name; nothing was written.
    REFUSED = "refused"


@attrs.frozen
class Proposal(Generic[T_co]):
    """What a change of a record comes to: an answer, and the state to write for it.

    :param answer: what the caller of the edit gets if this proposal stands
    :param state: the state to write; None if the record shall stay as it is
    :param deleted: the record shall be a tombstone; one that is not live stays as it is
    """

    answer: T_co
    state: State | None = None
    deleted: bool = False


@attrs.frozen
class Edited(Generic[T]):
    """A change of one record that stands.

    :param answer: of the proposal that stands
    :param revision: of the record, as read or as written
    :param record: as it was written; else as it was read
    :param epoch: that it was written in, where the driver says it
    """

    answer: T
    revision: int
    record: records.Record | None = None
    epoch: str | None = None

    def written(self, result: records.WriteResult) -> Edited[T]:
        """Return the same once its proposal was written."""
        record = result.record
        revision = self.revision if record is None else record.revision
        return Edited(self.answer, revision, record, result.epoch)


def answer_of(edited: Edited[T] | Unwritten, back_end: str) -> T:
    """Return the answer of a change that stands.

    :raises BackendUnavailable: it may or may not stand
    """
    if isinstance(edited, Unwritten):
        raise errors.BackendUnavailable(back_end, f"the outcome of a write is {edited.value}")
    return edited.answer


#: From a decoded state (None: no live record) and the version of its last
#: write (then 0) to a proposal. Called again each round with what was read
#: then; must not change its argument.
Propose = Callable[[State | None, int], Proposal[T]]


def pause_briefly(round_number: int) -> None:
    """Sleep up to 20 ms, more at random with each round lost.

    Without it, writers that lost together read together and lose together.
    """
    time.sleep(random.uniform(0, 0.002 * min(round_number, 10)))


class RecordEditor:
    """Edits records of one synchronizer; any thread may call it.

    :param namespaces: of the records to be edited
    :param pause: called with the number of rounds lost so far, before the next one
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        namespaces: Sequence[namespaces_model.Namespace],
        pause: Callable[[int], None] = pause_briefly,
    ) -> None:
        self._synchronizer = synchronizer
        self._namespaces = {namespace.name: namespace for namespace in namespaces}
        self._pause = pause
        #: Of records that were written here lately, the payload and what it was made of.
        self._written: dict[records.RecordKey, tuple[bytes, State]] = {}

    def read(self, key: records.RecordKey) -> tuple[State | None, int, int]:
        """Return a record's decoded state (None: no live record), revision and version.

        :raises UndecodableRecord: its bytes are not of a schema known here
        """
        return self._decoded(key, self._synchronizer.read([key]).get(key))

    def edit(self, key: records.RecordKey, propose: Propose[T]) -> Edited[T] | Unwritten:
        """Change one record.

        Blocks for a read and a write per round.

        :raises BackendUnavailable: nothing was written
        :raises UndecodableRecord: nothing was written
        """
        unknown = False
        for round_number in range(_ROUNDS):
            if round_number:
                self._pause(round_number)
            try:
                record = self._synchronizer.read([key]).get(key)
                edited, write = self._proposed(key, propose, record)
                if write is None:
                    return edited
                [result] = self._synchronizer.write([write])
            except errors.BackendUnavailable:
                if unknown:
                    return Unwritten.UNKNOWN
                raise
            if result.won:
                return edited.written(result)
            if result.verdict is records.Verdict.REFUSED:
                return Unwritten.REFUSED
            # For good: that write may have been carried out and then lost its
            # recognition to somebody else's.
            unknown |= result.verdict is records.Verdict.UNKNOWN
        return Unwritten.UNKNOWN if unknown else Unwritten.LOST

    def _proposed(
        self, key: records.RecordKey, propose: Propose[T], record: records.Record | None
    ) -> tuple[Edited[T], records.Write | None]:
        """Return what a proposer makes of a record, and the write if there is one."""
        state, revision, version = self._decoded(key, record)
        proposal = propose(state, version)
        edited = Edited(proposal.answer, revision, record)
        if proposal.deleted and revision:
            return edited, records.Write(key, revision, deleted=True)
        if proposal.state is None:
            return edited, None
        schema = self._namespaces[key.namespace].schema
        payload = codec.encode(proposal.state, schema, record=key)
        if len(self._written) >= _MOST_CACHED:
            self._written = {}
        self._written[key] = payload, proposal.state
        return edited, records.Write(key, revision, payload)

    def _decoded(
        self, key: records.RecordKey, record: records.Record | None
    ) -> tuple[State | None, int, int]:
        if record is None or record.deleted:
            return None, 0, 0
        written = self._written.get(key)
        if written is not None and written[0] == record.payload:
            return written[1], record.revision, record.version
        decoded = codec.decode(record.payload)
        codec.check_readable(decoded.schema, self._namespaces[key.namespace])
        return decoded.state, record.revision, record.version


class RecordCache:
    """The newest known state of some records of one epoch; any thread.

    What is remembered may be out of date, and nobody may believe it without a
    compare-and-set on its revision.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[records.RecordKey, records.Record] = {}
        self._epoch = ""

    def see(self, epoch: str, seen: Iterable[records.Record]) -> None:
        """Take in what the feed of an epoch brought."""
        with self._lock:
            if epoch != self._epoch:
                # Revisions of two epochs do not compare.
                self._records.clear()
                self._epoch = epoch
            for record in seen:
                self._keep(record)

    @property
    def epoch(self) -> str:
        """The epoch of what is remembered; empty before the first."""
        with self._lock:
            return self._epoch

    def note(self, record: records.Record | None, epoch: str) -> None:
        """Take in what was just read or written; None is no news.

        :param epoch: that it was written in, or :attr:`epoch` as it was before it
            was read or written. Of another than the present one it is not taken:
            where the new epoch's revisions are lower, it would stand in their
            way for ever.
        """
        if record is not None:
            with self._lock:
                if epoch == self._epoch:
                    self._keep(record)

    def known(self, keys: Iterable[records.RecordKey]) -> dict[records.RecordKey, records.Record]:
        """Return what is remembered of some keys."""
        with self._lock:
            return {key: self._records[key] for key in keys if key in self._records}

    def _keep(self, record: records.Record) -> None:
        former = self._records.pop(record.key, None)
        if former is not None and former.revision > record.revision:
            record = former
        self._records[record.key] = record
        if len(self._records) > _MOST_CACHED:
            del self._records[next(iter(self._records))]


#: From keys to the epoch and the records of them that the feed has brought by now; None
#: while it is not followed. No I/O.
RecordsShown = Callable[[Iterable[records.RecordKey]], tuple[str, Iterable[records.Record]] | None]

#: What came of each record's edit.
Answers = dict[records.RecordKey, Edited[T] | Unwritten]


@attrs.frozen
class EntryOutcome(Generic[T]):
    """What came of one of the entries that are asked of a record together.

    :param epoch: that it was written in, where the driver says it
    """

    answer: T | Unwritten
    epoch: str | None = None


class BatchEditor(RecordEditor):
    """Edits records of one synchronizer, several at a time; any thread may call it.

    Raises nothing for the back end. Threads that write at the same time share a call
    to it, and one compare-and-set where they change the same record.

    Parameters as those of :class:`RecordEditor`, and:

    :param count_lost: told of compare-and-sets that were lost, with how many
    :param count_absorbed: told of changes that lost a compare-and-set and were then
        written to the same record all the same, with how many
    :param cache: what this process last saw or wrote of the records
    :param shown: looked at before each edit: between a take and its confirm the feed
        brings what others took, and a confirm that knows it loses nothing to it
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        namespaces: Sequence[namespaces_model.Namespace],
        *,
        pause: Callable[[int], None],
        count_lost: Callable[[int], None],
        count_absorbed: Callable[[int], None],
        cache: RecordCache,
        shown: RecordsShown,
    ) -> None:
        super().__init__(synchronizer, namespaces, pause)
        self._count_lost = count_lost
        self._count_absorbed = count_absorbed
        self._cache = cache
        self._shown = shown
        self._commit = GroupCommit(self._write)

    def edit_entries(
        self,
        entries: Sequence[E],
        key_of: Callable[[E], records.RecordKey],
        propose: Callable[[records.RecordKey, Sequence[E]], Propose[tuple[T, ...]]],
        *,
        is_shown: bool = False,
    ) -> list[EntryOutcome[T]]:
        """Change records by entries, those of one record together; what came of each, in order.

        :param propose: from a key and its entries to a proposer with an answer for each
        :param is_shown: see :meth:`edit_each`
        """
        of_record: dict[records.RecordKey, list[E]] = {}
        places: list[tuple[records.RecordKey, int]] = []
        for entry in entries:
            key = key_of(entry)
            here = of_record.setdefault(key, [])
            places.append((key, len(here)))
            here.append(entry)
        answers = self.edit_each(
            {key: propose(key, here) for key, here in of_record.items()}, is_shown=is_shown
        )
        outcomes: list[EntryOutcome[T]] = []
        for key, place in places:
            edited = answers[key]
            if isinstance(edited, Edited):
                outcomes.append(EntryOutcome(edited.answer[place], edited.epoch))
            else:
                outcomes.append(EntryOutcome(edited))
        return outcomes

    def edit_each(
        self, proposers: Mapping[records.RecordKey, Propose[T]], *, is_shown: bool = False
    ) -> Answers[T]:
        """Change several records, each by itself; what came to no answer says why.

        Records that the cache knows, or that the feed would have brought, are tried without
        a read: what they lead to counts only if the compare-and-set on them wins; a refusal
        is looked at again. Blocks
        for a read of the others and a write at first, and in each further round for a
        write: who loses is told what stands there.

        :param is_shown: the cache has just seen what the feed brought of these records
        """
        if not proposers:
            return {}
        shown = None if is_shown else self._shown(proposers)
        if shown is not None:
            self._cache.see(*shown)
        # Before anything is read: the feed may tell of a new epoch at any moment.
        epoch = self._cache.epoch
        known: dict[records.RecordKey, records.Record | None] = {}
        if is_shown or shown is not None:
            # What the feed has not brought is absent for all that is known: who is right to
            # think so wins without a read, and who is not is told what stands there.
            known = dict.fromkeys(proposers)
        known.update(self._cache.known(proposers))
        batch = _EditedBatch(proposers, known)
        self._edit(batch)
        if batch.absorbed:
            self._count_absorbed(batch.absorbed)
        for answer in batch.answers.values():
            if isinstance(answer, Edited):
                self._cache.note(answer.record, answer.epoch or epoch)
        return batch.answers

    def _edit(self, batch: _EditedBatch[T]) -> None:
        """Read, propose and write in rounds until all of a batch has its answer."""
        for round_number in range(_ROUNDS):
            # Most who lose do so to a write that is long over, which the feed had not
            # brought yet: they have nobody to give way to, and go on at once.
            if round_number > 1 or batch.in_doubt:
                self._pause(round_number)
            try:
                self._read(batch, batch.missing())
                drafts = self._drafts(batch, list(batch.left))
                behind = batch.missing()
                if behind:
                    self._read(batch, behind)
                    drafts += self._drafts(batch, behind)
                results = self._commit.write(drafts) if drafts else []
            except errors.BackendUnavailable:
                batch.end(Unwritten.UNAVAILABLE)
                return
            batch.take(drafts, results)
            if not batch.left:
                return
        batch.end(Unwritten.LOST)

    def _read(self, batch: _EditedBatch[T], keys: Collection[records.RecordKey]) -> None:
        if keys:
            batch.read(keys, self._synchronizer.read(keys))

    def _drafts(self, batch: _EditedBatch[T], keys: Sequence[records.RecordKey]) -> list[Draft]:
        """Propose on some records of a batch; return the writes that come of it."""
        drafts = []
        for key in keys:
            propose = batch.left[key]
            try:
                edited, write = self._proposed(key, propose, batch.found[key])
            except errors.UndecodableRecord:
                batch.answer(key, Unwritten.UNREADABLE)
                continue
            if write is not None:
                anew = functools.partial(self._draft_anew, key, propose)
                drafts.append(Draft(DraftedWrite(write, edited), anew))
            elif key in batch.fresh:
                batch.answer(key, edited)
            else:
                del batch.found[key]
        return drafts

    def _draft_anew(
        self, key: records.RecordKey, propose: Propose[T], before: records.Record
    ) -> DraftedWrite | None:
        """Propose on what others of this process leave; in whichever's thread writes."""
        edited, write = self._proposed(key, propose, before)
        return None if write is None else DraftedWrite(write, edited)

    def _write(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        if not writes:
            return []
        results = self._synchronizer.write(writes)
        self._count_lost(sum(each.verdict is records.Verdict.LOST for each in results))
        return results


class _EditedBatch(Generic[T]):
    """One call: which edits are left, and what is known of their records."""

    def __init__(
        self,
        proposers: Mapping[records.RecordKey, Propose[T]],
        known: Mapping[records.RecordKey, records.Record | None],
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

    def answer(self, key: records.RecordKey, answer: Edited[T] | Unwritten) -> None:
        del self.left[key]
        self.answers[key] = answer

    def take(self, drafts: Sequence[Draft], results: Sequence[DraftResult]) -> None:
        """Take in how writes ended."""
        for draft, carried in zip(drafts, results, strict=True):
            key = draft.key
            if isinstance(carried, DraftUnmade):
                self._stands(key, carried.standing)
                continue
            result = carried.result
            if result.won and result.record is not None:
                self.absorbed += key in self._lost
                edited: Edited[T] = carried.answer
                self.answer(key, edited.written(result))
            elif result.verdict is records.Verdict.REFUSED:
                self.answer(key, Unwritten.REFUSED)
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

    def end(self, why: Unwritten) -> None:
        """Answer what is left."""
        for key in list(self.left):
            self.answer(key, Unwritten.UNKNOWN if key in self._unsure else why)


# -- group commit ----------------------------------------------------------------------


@attrs.frozen
class DraftedWrite:
    """A write, with what it means to its maker if it wins.

    :param answer: the maker's own
    """

    write: records.Write
    answer: Any = None

    @property
    def key(self) -> records.RecordKey:
        return self.write.key

    @property
    def expected_revision(self) -> int:
        return self.write.expected_revision


@attrs.frozen
class Draft:
    """A write of one record, and how it is made anew on what other threads write before it.

    :param first: by what its thread knew
    :param anew: from the record before it to the same; None if nothing is to be
        written on that. A record that is about to be written has version 0.
        Called in another thread, while its own waits; any exception is as None:
        the own thread will meet it again
    """

    first: DraftedWrite
    anew: Callable[[records.Record], DraftedWrite | None] = lambda before: None

    @property
    def key(self) -> records.RecordKey:
        """The record's."""
        return self.first.key


@attrs.frozen
class DraftCarried:
    """A draft that a write carried.

    :param answer: of the proposal that was written, the first or one made anew
    :param result: of that write
    """

    answer: Any
    result: records.WriteResult


@attrs.frozen
class DraftUnmade:
    """A draft that came to no write: other threads of this process wrote the record before.

    :param standing: the record as the back end now has it; None if that is not known
    """

    standing: records.Record | None = None


#: What became of a draft.
DraftResult = DraftCarried | DraftUnmade


class GroupCommit:
    """One way to the back end for the threads of a process.

    Nobody waits for company: only what queues up while a call is under way goes
    together in the next one. Writes of different records win or lose each by itself;
    what they share is the transaction, or the round trip, around them.

    Writes of *one record* that queue up become one write (combining, as in Hendler
    et al., "Flat Combining", SPAA 2010). The naive way sends them one after the
    other, each with the revision that its thread saw: the first one wins, and all
    others are known to lose before they are sent. This way each is made anew on
    what the one before it will have left, by the same rules that made it at first,
    and a single compare-and-set carries them. It wins or loses as a whole: if it
    wins, each was judged on the state that it replaced, with those before it; if
    it loses, none of them stands, and if nobody knows, all of them are in doubt.

    :param write: carries out writes, each by itself; called by one thread at a
        time, whichever's it is
    :param most: writes of one call; a thread with more still has one
    """

    def __init__(
        self,
        write: Callable[[Sequence[records.Write]], list[records.WriteResult]],
        most: int = _MOST_WRITES,
    ) -> None:
        self._write = write
        self._most = most
        #: Held for itself: to enter a Condition is four calls, of each request several.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: list[_CommitCall] = []
        self._busy = False
        #: What the call before left standing, where it is known: who queued up
        #: meanwhile has older records in mind. Only of the one who is busy.
        self._newest: Mapping[records.RecordKey, records.Record] = {}

    def write(self, drafts: Sequence[Draft]) -> list[DraftResult]:
        """Carry out writes of different records, perhaps together with others'.

        Raises as :meth:`contract.Synchronizer.write` does.
        """
        call = _CommitCall(drafts)
        with self._lock:
            is_alone = not (self._busy or self._waiting)
            if is_alone:
                self._busy = True
            else:
                self._waiting.append(call)
        if is_alone:
            self._lead([call])
            return call.answer()
        while True:
            with self._lock:
                self._wait(call)
                if call.is_over:
                    return call.answer()
                self._busy = True
                calls = self._take()
            self._lead(calls)

    def _lead(self, calls: Sequence[_CommitCall]) -> None:
        """Carry out calls as the one who is busy, and leave that to the next one."""
        try:
            self._carry_out(calls)
        finally:
            with self._lock:
                self._busy = False
                self._changed.notify_all()

    def _wait(self, call: _CommitCall) -> None:
        """Wait for a call's end, or until nobody is busy."""
        try:
            while self._busy and not call.is_over:
                self._changed.wait()
        except BaseException:
            # A green thread was killed: what it wanted nobody is to write some day.
            if call in self._waiting:
                self._waiting.remove(call)
            raise

    def _take(self) -> list[_CommitCall]:
        """Take the calls that go next, in their order."""
        taken: list[_CommitCall] = []
        left: list[_CommitCall] = []
        keys: set[records.RecordKey] = set()
        later: set[records.RecordKey] = set()
        for call in self._waiting:
            own = {draft.key for draft in call.drafts}
            # Whoever comes later for the same record does not overtake.
            if taken and (len(keys | own) > self._most or later & own):
                left.append(call)
                later |= own
            else:
                taken.append(call)
                keys |= own
        self._waiting = left
        return taken

    def _carry_out(self, calls: Sequence[_CommitCall]) -> None:
        try:
            writes, answers = self._combined(calls)
            results = dict(zip(writes, self._write(list(writes.values())), strict=True))
            self._newest = {key: each.record for key, each in results.items() if each.record}
            for call in calls:
                call.results = [_draft_result(draft, answers, results) for draft in call.drafts]
        except errors.BackendUnavailable as error:
            for call in calls:
                call.error = error
        except (errors.NodbError, ValueError) as error:
            if len(calls) == 1:
                calls[0].error = error
                return
            # One of them has what no driver takes; nothing was sent.
            for call in calls:
                self._carry_out([call])
        finally:
            # The thread dies in here: what became of the others' nobody knows.
            for call in calls:
                call.give_up()

    def _combined(
        self, calls: Sequence[_CommitCall]
    ) -> tuple[dict[records.RecordKey, records.Write], dict[int, Any]]:
        """Return one write for each record, and the answers of the drafts in them, by id."""
        writes: dict[records.RecordKey, records.Write] = {}
        answers: dict[int, Any] = {}
        for call in calls:
            for draft in call.drafts:
                key = draft.key
                made = self._made(draft, writes.get(key))
                if made is not None:
                    writes[key] = made.write
                    answers[id(draft)] = made.answer
        return writes, answers

    def _made(self, draft: Draft, former: records.Write | None) -> DraftedWrite | None:
        """Return a draft on top of a former write, or of what is known to stand."""
        key, revision = draft.key, draft.first.expected_revision
        if former is not None:
            # By the former's compare-and-set; its version nobody knows yet.
            before = records.Record(key, former.expected_revision, 0, former.payload)
        else:
            newest = self._newest.get(key)
            if newest is None or newest.revision <= revision:
                return draft.first
            before = newest
        try:
            return draft.anew(before)
        except Exception:
            LOG.debug("A write of %(key)s is left to its own thread", {"key": key}, exc_info=True)
            return None


class _CommitCall:
    def __init__(self, drafts: Sequence[Draft]) -> None:
        self.drafts = drafts
        self.results: list[DraftResult] | None = None
        self.error: Exception | None = None

    @property
    def is_over(self) -> bool:
        return self.results is not None or self.error is not None

    def give_up(self) -> None:
        """Answer that nobody knows, where there is no answer yet."""
        if not self.is_over:
            unknown = records.WriteResult(records.Verdict.UNKNOWN)
            self.results = [DraftCarried(None, unknown) for _ in self.drafts]

    def answer(self) -> list[DraftResult]:
        if self.error is not None:
            raise self.error
        assert self.results is not None
        return self.results


def _draft_result(
    draft: Draft,
    answers: Mapping[int, Any],
    results: Mapping[records.RecordKey, records.WriteResult],
) -> DraftResult:
    result = results.get(draft.key)
    if result is not None and id(draft) in answers:
        return DraftCarried(answers[id(draft)], result)
    return DraftUnmade(None if result is None else result.record)
