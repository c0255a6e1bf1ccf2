# SPDX-License-Identifier: Apache-2.0
"""Lets concurrent writes share one call: what queues up while one is under way.

A group commit without a thread of its own: of the threads that wait, one leads.
It takes what is queued, makes the call, hands out the results and goes; the next
one that still waits leads then. A lone caller never waits; one that others are
known to follow waits for them, for a bounded time. Several calls may be under way
at once, but only for work that has nothing in common.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, TypeVar

import attrs

Work = TypeVar("Work")
Result = TypeVar("Result")


class LeaderEnded(Exception):
    """The thread that made the call for several was ended: its result is not known."""


class Overdue(Exception):
    """A call did not end in time.

    :param taken: the work is part of it, and its result is not known; else it
        still waited, and nothing is done
    """

    def __init__(self, taken: bool) -> None:
        super().__init__(taken)
        self.taken = taken

    def __str__(self) -> str:
        return "no answer in time" if self.taken else "an earlier call did not end in time"


@attrs.define(eq=False)
class _Place(Generic[Work, Result]):
    """One caller's place in the queue."""

    work: Work
    size: int
    alone: bool
    touches: frozenset[Hashable]
    result: Result | None = None
    error: Exception | None = None
    done: bool = False


class Batcher(Generic[Work, Result]):
    """A few calls at a time, each for as many callers as wait.

    One at a time for what they touch: Placement over-commits a provider when
    writes to it race, and what it repeats for them costs as much as the write;
    those of one process need not race.

    :param call: does some work, in the leader's thread, and returns a result
        for each; what it raises is raised to all callers concerned
    :param window_seconds: how long a leader waits at most for those who said
        that they come (:meth:`coming`); 0: not at all
    :param max_size: sizes of the work that shares a call; a single larger one
        still gets a call of its own
    :param max_calls: calls under way at once. More of them wait less for one
        another, and share less
    :param touches: what no two calls under way may have in common
    """

    def __init__(
        self,
        call: Callable[[Sequence[Work]], Sequence[Result]],
        *,
        window_seconds: float = 0.0,
        max_size: int = 16,
        max_calls: int = 1,
        touches: Callable[[Work], frozenset[Hashable]] = lambda work: frozenset(),
    ) -> None:
        self._call = call
        self._window_seconds = window_seconds
        self._max_size = max_size
        self._changed = threading.Condition()
        self._max_calls = max_calls
        self._touches = touches
        self._queue: list[_Place[Work, Result]] = []
        #: Calls, and what they touch.
        self._under_way = 0
        self._touched: set[Hashable] = set()
        #: Whether somebody waits for company.
        self._gathering = False
        #: Threads that said so and have not submitted yet; each remembers its own.
        self._coming = 0
        self._said = threading.local()

    @contextlib.contextmanager
    def coming(self) -> Iterator[None]:
        """Say that this thread will submit something soon, or be known not to.

        Others wait for its first work, for :meth:`not_coming`, or for the end of
        this. Not to be nested.
        """
        with self._changed:
            self._coming += 1
        self._said.coming = True
        try:
            yield
        finally:
            with self._changed:
                self._come()
                self._changed.notify_all()

    def not_coming(self) -> None:
        """Say that this thread submits nothing after all, though it goes on."""
        with self._changed:
            self._come()
            self._changed.notify_all()

    def _come(self) -> None:
        if getattr(self._said, "coming", False):
            self._said.coming = False
            self._coming -= 1

    def untouched(self, things: frozenset[Hashable], patience_seconds: float) -> bool:
        """Wait until no call under way touches any of these; False if one still does then.

        Who gave a call up does not know its result, and it has none yet.
        """
        with self._changed:
            return self._changed.wait_for(
                lambda: self._touched.isdisjoint(things), max(0.0, patience_seconds)
            )

    def submit(
        self,
        work: Work,
        size: int,
        *,
        alone: bool = False,
        patience_seconds: float | None = None,
    ) -> Result:
        """Wait until the work is done, and return its result.

        Blocks for the call under way, those queued before and the own one.

        :param size: what counts towards the bound
        :param alone: not to share a call
        :param patience_seconds: how long to wait for calls of other threads; the
            own one is as patient as its client. None: without end
        :raises Overdue: such a call did not end by then
        :raises LeaderEnded: another caller's thread was killed during the call
        """
        place: _Place[Work, Result] = _Place(work, size, alone, self._touches(work))
        until = None if patience_seconds is None else time.monotonic() + patience_seconds
        with self._changed:
            self._queue.append(place)
            self._come()
            self._changed.notify_all()
        while True:
            batch = self._wait(place, until)
            if not batch:
                break
            self._lead(batch)
        if place.error is not None:
            raise place.error
        return place.result  # type: ignore[return-value]

    def _wait(self, place: _Place[Work, Result], until: float | None) -> list[_Place[Work, Result]]:
        """Wait for a result, or for the lead and then return what to lead.

        Who leads is part of the call: another's would bind him beyond his patience.
        """
        with self._changed:
            try:
                while not place.done:
                    if self._may_lead(place):
                        self._wait_for_company()
                        batch, _ = self._next()
                        if place in batch:
                            self._take(batch)
                            return batch
                        # Those before it fill the call by now, and one of them leads.
                        self._changed.notify_all()
                        continue
                    left = None if until is None else until - time.monotonic()
                    if left is not None and left <= 0:
                        raise Overdue(taken=place not in self._queue)
                    self._changed.wait(left)
                return []
            except BaseException:
                # Too late, or a green thread was killed: nobody wants its result any more.
                if place in self._queue:
                    self._queue.remove(place)
                # It may have been the first, whom others left the lead.
                self._changed.notify_all()
                raise

    def _may_lead(self, place: _Place[Work, Result]) -> bool:
        if self._gathering or self._under_way >= self._max_calls:
            return False
        batch, _ = self._next()
        return place in batch

    def _wait_for_company(self) -> None:
        if self._window_seconds > 0:
            self._gathering = True
            try:
                self._changed.wait_for(self._is_complete, self._window_seconds)
            finally:
                self._gathering = False

    def _is_complete(self) -> bool:
        _, closed = self._next()
        return closed or not self._coming

    def _next(self) -> tuple[list[_Place[Work, Result]], bool]:
        """Return the next call's work, and whether nothing more can join it.

        In order, up to the bound, of what touches nothing in use.
        """
        batch: list[_Place[Work, Result]] = []
        size = 0
        for each in self._queue:
            if not self._touched.isdisjoint(each.touches):
                continue
            if batch and (batch[0].alone or each.alone or size + each.size > self._max_size):
                return batch, True
            batch.append(each)
            size += each.size
        return batch, bool(batch) and (batch[0].alone or size >= self._max_size)

    def _take(self, batch: Sequence[_Place[Work, Result]]) -> None:
        self._under_way += 1
        for each in batch:
            self._queue.remove(each)
            self._touched |= each.touches
        if self._queue:
            # While this one gathered, nobody else led.
            self._changed.notify_all()

    def _lead(self, batch: list[_Place[Work, Result]]) -> None:
        error: Exception | None = None
        results: Sequence[Result] = ()
        try:
            results = self._call([place.work for place in batch])
        except Exception as raised:  # noqa: BLE001 - told to every caller concerned
            error = raised
        except BaseException as raised:
            # A green thread is killed so. It is the leader's own end, not the others'.
            error = LeaderEnded(repr(raised))
            raise
        finally:
            self._hand_out(batch, results, error)

    def _hand_out(
        self,
        batch: list[_Place[Work, Result]],
        results: Sequence[Result],
        error: Exception | None,
    ) -> None:
        with self._changed:
            for number, place in enumerate(batch):
                place.error = error
                if error is None:
                    place.result = results[number]
                place.done = True
                self._touched -= place.touches
            self._under_way -= 1
            self._changed.notify_all()
