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
        #: Leaders at work or waiting for company, and what the calls under way touch.
        self._leaders = 0
        self._touched: set[Hashable] = set()
        #: Threads that said so and have not submitted yet; each remembers its own.
        self._coming = 0
        self._said = threading.local()

    @contextlib.contextmanager
    def coming(self) -> Iterator[None]:
        """Say that this thread will submit something soon, or be known not to.

        Others wait for its first work, or for the end of this. Not to be nested.
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

    def _come(self) -> None:
        if getattr(self._said, "coming", False):
            self._said.coming = False
            self._coming -= 1

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
        """Wait for a result, or for the lead and then return what to lead."""
        with self._changed:
            leads = False
            try:
                while not place.done:
                    if self._leaders < self._max_calls and self._first() is not None:
                        leads = True
                        self._leaders += 1
                        if self._window_seconds > 0:
                            self._changed.wait_for(self._is_full, self._window_seconds)
                        batch = self._take()
                        if batch:
                            return batch
                        # Another leader was faster.
                        self._leaders -= 1
                        leads = False
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
                if leads:
                    self._leaders -= 1
                    self._changed.notify_all()
                raise

    def _first(self) -> _Place[Work, Result] | None:
        """Return whose call may begin now: who came first of those that touch nothing in use."""
        return next((each for each in self._queue if self._is_free(each)), None)

    def _is_free(self, place: _Place[Work, Result]) -> bool:
        return self._touched.isdisjoint(place.touches)

    def _is_full(self) -> bool:
        first = self._first()
        if first is None or first.alone or not self._coming:
            return True
        return sum(each.size for each in self._queue if self._is_free(each)) >= self._max_size

    def _take(self) -> list[_Place[Work, Result]]:
        """Take the next call's work: in order, up to the bound; nothing where none is free."""
        first = self._first()
        if first is None:
            return []
        batch = [first]
        size = first.size
        for each in self._queue[self._queue.index(first) + 1 :]:
            if first.alone or each.alone:
                break
            if not self._is_free(each):
                continue
            size += each.size
            if size > self._max_size:
                break
            batch.append(each)
        for each in batch:
            self._queue.remove(each)
            self._touched |= each.touches
        return batch

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
            self._leaders -= 1
            self._changed.notify_all()
