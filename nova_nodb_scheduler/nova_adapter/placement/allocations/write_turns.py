# SPDX-License-Identifier: Apache-2.0
"""Has threads of one process take turns in what they write to a provider in Placement.

Placement grants too much only where transactions race. What is decided from memory may race
with others of its kind: their claims exclude one another. What Nova's own path allocates may
have nobody's room: its claim could not be judged, or was by what is known of a host that is not
proved. It is looked at once it is written; a process that is killed before that leaves it. So
of one process such a write is *alone* at its providers, and all others are *beside* one another
there. Whatever Placement then grants it fits beside what stood there, but for what other
processes write at that very moment.

The naive way, a lock for each provider, costs each write of a decision from memory two
calls for each of its providers, lets who comes in time overtake who waits to be alone for
ever, and needs an order among locks. Here all that wait or write stand in one line: those
under way at its head, behind them those that wait, in the order in which they came. Each
waits for those before it with which it does not go together, for all its providers at
once. Who waits waits for nobody behind it, and who is under way for nobody at all, so that
no two wait for one another. While nobody is to be alone nobody looks at the line.

A write that hangs does not keep others for long: from :data:`TURN_SECONDS` behind its own
beginning on another goes beside it, and keeps the rest back in its stead; a write from
memory that cannot go until that one ends keeps nobody back meanwhile. So a line goes one by
one as long as all of it takes less than :data:`MOST_SECONDS`; only where it takes longer,
or several hang one behind another, do those who waited for so long go all at once. What
waits is one call, not Nova's whole claim, which reads before and pauses between its tries:
:meth:`WriteTurns.within` has the report client's own PUT take the turn. Where a call's
answer is lost its turn ends, though it may be carried out yet.

Who takes which:

=====================================================  ======================================
Nova's own path, its claim judged or not               alone, at all that it allocates anew
decided from memory, :mod:`.placement_calls`           beside
decided from memory, of a server that moves            beside
what takes allocations back, deletes or moves them     none: no provider has more by it
=====================================================  ======================================
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Any, Protocol

import attrs
from nova.scheduler.client import report

LOG = logging.getLogger(__name__)

#: How long a write that is under way keeps others back, from its beginning.
TURN_SECONDS = 5.0
#: How long a write waits in all, with all tries of one claim of Nova's. Half of what a claim
#: has by default until its answer.
MOST_SECONDS = 15.0


class WriteTurn(Protocol):
    """A write that waits, or is under way; compared by identity."""

    @property
    def touches(self) -> frozenset[Hashable]:
        """All that it writes to."""

    @property
    def alone_at(self) -> frozenset[Hashable]:
        """Of these, where no other may be under way with it."""

    @property
    def waits_until(self) -> float:
        """When it goes on beside whatever is under way; on the clock of the turns."""

    #: Since when it is under way; None while it waits. On that clock, too.
    began_at: float | None

    @property
    def held_up_from(self) -> float:
        """From when it keeps nobody back while it waits: what else it waits for hangs then."""


@attrs.define(eq=False)
class _OwnTurn:
    touches: frozenset[Hashable]
    alone_at: frozenset[Hashable]
    waits_until: float
    began_at: float | None = None
    #: It waits for nothing but its turn.
    held_up_from: float = math.inf


class WriteTurns:
    """The turns of one process; any thread. Waits for other threads' writes.

    :param clock: monotonic seconds
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        #: Guards all below, and what is shown to others here. Held for itself: to enter a
        #: Condition is four calls, of each request several.
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        #: All that are under way or wait; see the module.
        self.line: list[WriteTurn] = []
        #: How many of these are to be alone somewhere; where none is nobody need wait.
        self.alone = 0

    def kept_back_until(self, turn: WriteTurn) -> float:
        """Say until when one in the line waits, if nothing changes; 0.0: it need not.

        Under the lock; on the clock of the turns.
        """
        until = 0.0
        for other in self.line:
            if other is turn:
                break
            if (not other.alone_at or other.alone_at.isdisjoint(turn.touches)) and (
                not turn.alone_at or turn.alone_at.isdisjoint(other.touches)
            ):
                continue
            until = max(
                until,
                other.held_up_from if other.began_at is None else other.began_at + TURN_SECONDS,
            )
            if until >= turn.waits_until:
                return turn.waits_until
        return until

    def begin(self, turn: WriteTurn) -> None:
        """Have one that waited be under way; under the lock."""
        turn.began_at = self.clock()
        if self.alone:
            # Whoever came before it and waits, for a place among the calls, say, waits for it now.
            self.line.remove(turn)
            self.line.insert(0, turn)
            self.changed.notify_all()

    @contextlib.contextmanager
    def taken(
        self,
        touches: Collection[Hashable],
        alone_at: Collection[Hashable] = (),
        most_seconds: float | None = None,
    ) -> Iterator[None]:
        """Wait for a turn, and hold it; a thread that is killed gives it back.

        :param alone_at: where no other may be under way meanwhile
        :param most_seconds: to wait; None for :data:`MOST_SECONDS`
        """
        all_touched = frozenset(touches)
        most = MOST_SECONDS if most_seconds is None else most_seconds
        own = _OwnTurn(all_touched, all_touched & set(alone_at), self.clock() + most)
        with self.lock:
            self.line.append(own)
            self.alone += bool(own.alone_at)
        try:
            with self.lock:
                is_its_turn = self._wait(own)
                self.begin(own)
            if not is_its_turn:
                LOG.info("A write to Placement takes so long that another goes on beside it.")
            yield
        finally:
            with self.lock:
                self.line.remove(own)
                self.alone -= bool(own.alone_at)
                self.changed.notify_all()

    def _wait(self, own: WriteTurn) -> bool:
        """Wait until it need not; False where it goes on beside another all the same."""
        while self.alone and (until := self.kept_back_until(own)):
            left_seconds = until - self.clock()
            if left_seconds <= 0:
                return False
            self.changed.wait(left_seconds)
        return True

    @contextlib.contextmanager
    def within(self, alone_at: Collection[Hashable] = ()) -> Iterator[None]:
        """Have what Nova's report client PUTs of allocations in this thread take turns.

        It tries one claim up to four times: these wait for :data:`MOST_SECONDS` in all, for
        what was claimed among the schedulers lapses meanwhile.

        :param alone_at: providers where no claim was judged
        """
        _wrap()
        before = getattr(_of_thread, "turns", None)
        _of_thread.turns = _Asked(self, frozenset(alone_at), MOST_SECONDS)
        try:
            yield
        finally:
            _of_thread.turns = before


@attrs.define
class _Asked:
    turns: WriteTurns
    alone_at: frozenset[Hashable]
    #: To wait yet.
    left_seconds: float


#: What the PUTs of a thread take turns by, see :meth:`WriteTurns.within`.
_of_thread = threading.local()


def _wrap() -> None:
    """Wrap the client's method once; whoever else wraps it keeps its mark."""
    method = report.SchedulerReportClient.put
    if not hasattr(method, "_nodb_turns"):
        report.SchedulerReportClient.put = _in_turn(method)


def _in_turn(method: Any) -> Any:
    @functools.wraps(method)
    def put(self: Any, url: str, data: Any, *args: Any, **kwargs: Any) -> Any:
        asked: _Asked | None = getattr(_of_thread, "turns", None)
        providers = _providers(url, data)
        if asked is None or not providers:
            return method(self, url, data, *args, **kwargs)
        clock = asked.turns.clock
        began = clock()
        # Whoever else wraps it may have us wrap it again: one write has one turn.
        _of_thread.turns = None
        try:
            with asked.turns.taken(providers, asked.alone_at, asked.left_seconds):
                asked.left_seconds -= clock() - began
                return method(self, url, data, *args, **kwargs)
        finally:
            _of_thread.turns = asked

    put._nodb_turns = True  # type: ignore[attr-defined]
    return put


def _providers(url: str, data: Any) -> Collection[str]:
    """Return what a PUT allocates on; nothing where it is of something else."""
    if not url.startswith("/allocations/") or not isinstance(data, Mapping):
        return ()
    allocations = data.get("allocations")
    return allocations.keys() if isinstance(allocations, Mapping) else ()
