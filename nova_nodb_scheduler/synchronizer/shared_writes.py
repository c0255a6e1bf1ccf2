# SPDX-License-Identifier: Apache-2.0
"""Lets the writes of several threads share one call to the back end, and one record's one write.

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
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records

LOG = logging.getLogger(__name__)

#: Writes of one call, beyond which the rest goes in the next one.
_MOST = 64


@attrs.frozen
class Proposed:
    """A write, with what it means to its maker if it wins.

    :param answer: the maker's own
    """

    write: records.Write
    answer: Any = None


@attrs.frozen
class Draft:
    """A write, and how it is made on what others of this process leave before it.

    :param first: by what its thread knew
    :param anew: from the record before it to the same; None if nothing is to be
        written on that. A record that is about to be written has version 0.
        Called in another thread, while its own waits; any exception is as None:
        the own thread will meet it again
    """

    first: Proposed
    anew: Callable[[records.Record], Proposed | None] = lambda before: None

    @property
    def key(self) -> records.RecordKey:
        """The record's."""
        return self.first.write.key


@attrs.frozen
class Carried:
    """A draft that a write carried.

    :param answer: of the proposal that was written, the first or one made anew
    :param result: of that write
    """

    answer: Any
    result: records.WriteResult


@attrs.frozen
class Unmade:
    """A draft that was no write on what others of this process wrote before it.

    :param standing: the record as the back end now has it; None if that is not known
    """

    standing: records.Record | None = None


#: What became of a draft.
Result = Carried | Unmade


class SharedWrites:
    """One way to the back end for the threads of a process.

    :param write: carries out writes, each by itself; called by one thread at a
        time, whichever's it is
    :param most: writes of one call; a thread with more still has one
    """

    def __init__(
        self,
        write: Callable[[Sequence[records.Write]], list[records.WriteResult]],
        most: int = _MOST,
    ) -> None:
        self._write = write
        self._most = most
        self._changed = threading.Condition()
        self._waiting: list[_Call] = []
        self._busy = False
        #: What the call before left standing, where it is known: who queued up
        #: meanwhile has older records in mind. Only of the one who is busy.
        self._newest: Mapping[records.RecordKey, records.Record] = {}

    def write(self, drafts: Sequence[Draft]) -> list[Result]:
        """Carry out writes of different records, perhaps together with others'.

        Raises as :meth:`contract.Synchronizer.write` does.
        """
        call = _Call(drafts)
        with self._changed:
            self._waiting.append(call)
        while True:
            with self._changed:
                self._wait(call)
                if call.is_over:
                    return call.answer()
                self._busy = True
                calls = self._take()
            try:
                self._carry_out(calls)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _wait(self, call: _Call) -> None:
        """Wait for a call's end, or until nobody is busy."""
        try:
            while self._busy and not call.is_over:
                self._changed.wait()
        except BaseException:
            # A green thread was killed: what it wanted nobody is to write some day.
            if call in self._waiting:
                self._waiting.remove(call)
            raise

    def _take(self) -> list[_Call]:
        """Take the calls that go next, in their order."""
        taken: list[_Call] = []
        left: list[_Call] = []
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

    def _carry_out(self, calls: Sequence[_Call]) -> None:
        try:
            writes, answers = self._combined(calls)
            results = dict(zip(writes, self._write(list(writes.values())), strict=True))
            self._newest = {key: each.record for key, each in results.items() if each.record}
            for call in calls:
                call.results = [_result(draft, answers, results) for draft in call.drafts]
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
        self, calls: Sequence[_Call]
    ) -> tuple[dict[records.RecordKey, records.Write], dict[int, Any]]:
        """Return one write for each record, and the answers of the drafts in them, by id."""
        writes: dict[records.RecordKey, records.Write] = {}
        answers: dict[int, Any] = {}
        for call in calls:
            for draft in call.drafts:
                made = self._made(draft, writes.get(draft.key))
                if made is not None:
                    writes[draft.key] = made.write
                    answers[id(draft)] = made.answer
        return writes, answers

    def _made(self, draft: Draft, former: records.Write | None) -> Proposed | None:
        """Return a draft on top of a former write, or of what is known to stand."""
        key, revision = draft.key, draft.first.write.expected_revision
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


class _Call:
    def __init__(self, drafts: Sequence[Draft]) -> None:
        self.drafts = drafts
        self.results: list[Result] | None = None
        self.error: Exception | None = None

    @property
    def is_over(self) -> bool:
        return self.results is not None or self.error is not None

    def give_up(self) -> None:
        """Answer that nobody knows, where there is no answer yet."""
        if not self.is_over:
            unknown = records.WriteResult(records.Verdict.UNKNOWN)
            self.results = [Carried(None, unknown) for _ in self.drafts]

    def answer(self) -> list[Result]:
        if self.error is not None:
            raise self.error
        assert self.results is not None
        return self.results


def _result(
    draft: Draft,
    answers: Mapping[int, Any],
    results: Mapping[records.RecordKey, records.WriteResult],
) -> Result:
    result = results.get(draft.key)
    if result is not None and id(draft) in answers:
        return Carried(answers[id(draft)], result)
    return Unmade(None if result is None else result.record)
