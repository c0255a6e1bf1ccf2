# SPDX-License-Identifier: Apache-2.0
"""Writes the allocations of new servers: one call for a request, or for several.

Only for consumers that have no allocations. Whoever may have some (moves,
evacuations, resizes) goes Nova's own way and never comes here.

One request's write tries again what may pass, and divides what will not. It runs
in the thread that waits for it. The naive way, Nova's, is a GET and a PUT for
each server, and three attempts with pauses of seconds. Here a new consumer is
written with generation null: Placement itself refuses it if it is not new, so
nothing need be read before; and races are tried again until the request's
deadline, not another host instead.

A lost answer is the difficult one: the write may be there, or come yet. The
consumers are read; what is equal was written. What is absent is sent again, with
generation null still: should the first write arrive after all, Placement refuses
the second, and the consumers are read again.

Which trees a guarded Placement compares as it writes, and what is believed of its
answer: :mod:`.conditional_writes`.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs
from oslo_log import log

from nova_nodb_scheduler.nova_adapter.placement.allocations import (
    conditional_writes,
    placement_calls,
    placement_replies,
    shared_calls,
    taking_back,
    write_turns,
)

_MIN_PAUSE_SECONDS = 0.01
_MAX_PAUSE_SECONDS = 0.5


@attrs.frozen
class Pauses:
    """Short waits with jitter, doubling.

    :param clock: monotonic seconds
    """

    clock: Callable[[], float]
    sleep: Callable[[float], None]
    rng: random.Random

    def pause(self, attempt: int, deadline: float) -> bool:
        """Wait; False, and at once, where the deadline has come."""
        left = deadline - self.clock()
        if left <= 0:
            return False
        seconds = min(_MAX_PAUSE_SECONDS, _MIN_PAUSE_SECONDS * 2.0 ** min(attempt, 10))
        self.sleep(min(left, seconds * self.rng.uniform(0.5, 1.5)))
        return True


@attrs.frozen
class ReadBack:
    """Reads back what Placement has for one request's servers, in the request's thread.

    :param deadline: on the clock of the pauses
    :param window: until when what is written for them is removed again
    """

    posts: placement_calls.AllocationCalls
    pauses: Pauses
    deadline: float
    request_id: str | None
    window: taking_back.TakeBackWindow

    def pause(self, attempt: int) -> bool:
        return self.pauses.pause(attempt, self.deadline)

    def left_seconds(self) -> float:
        return self.deadline - self.pauses.clock()

    def read(self, server: placement_replies.NewServer) -> placement_calls.HeldAllocation | None:
        """Return what a consumer has; None where no answer came in time."""
        attempt = 0
        while True:
            held = self.posts.held(server.consumer, self.request_id)
            if isinstance(held, placement_calls.HeldAllocation):
                return held
            attempt += 1
            if not self.pause(attempt):
                return None

    def equal(
        self, servers: Iterable[placement_replies.NewServer]
    ) -> dict[placement_replies.NewServer, int] | None:
        """Return which servers have just what they were to get, and at which generation."""
        found = {}
        for server in servers:
            held = self.read(server)
            if held is None:
                return None
            if held.amounts == server.amounts:
                found[server] = int(held.body["consumer_generation"])
        return found


LOG = log.getLogger(__name__)


def undo(
    posts: placement_calls.AllocationCalls,
    reading: ReadBack,
    servers: Iterable[placement_replies.NewServer],
    *,
    unsure: bool,
) -> Collection[str]:
    """Remove allocations, all in one call; see :meth:`AllocationWriter.undo`.

    The consumer's generation is the guard: what another wrote since stays. And the window,
    see :mod:`.taking_back`.
    """
    # A consumer that was just made is at generation 1.
    asked = list(servers)
    left = reading.equal(asked) if unsure else dict.fromkeys(asked, 1)
    attempt = 0
    while left:
        if not reading.window.is_open():
            break
        reply = posts.empty(left.items(), reading.request_id)
        if isinstance(reply, placement_replies.DoneReply):
            return ()
        attempt += 1
        if attempt > 1 and not reading.pause(attempt):
            break
        asked = list(left)
        left = reading.equal(asked)
    return () if left == {} else _still(left or asked)


def _still(servers: Iterable[placement_replies.NewServer]) -> Collection[str]:
    left = frozenset(server.consumer for server in servers)
    LOG.warning(
        "Allocations of %(count)d servers may be left in Placement, as it did not answer: "
        "%(some)s. 'nova-manage placement audit' finds them.",
        {"count": len(left), "some": ", ".join(sorted(left)[:5])},
    )
    return left


#: Answers that a consumer is not new though it has nothing, before that is believed;
#: and calls that failed as no call should, before no more are made.
_PATIENCE = 3
#: For other threads' calls, of a write that begins when its deadline has come.
_LEAST_PATIENCE_SECONDS = 1.0


@attrs.define(eq=False)
class _Piece:
    """Servers that are sent together, and what happened to them so far.

    :param alone: it failed: in a call with others it would spoil theirs again
    :param unsure: an answer was lost: it may be written yet
    :param ended: Placement itself broke off: it will not be written any more,
        but records of the consumers may be left
    """

    servers: tuple[placement_replies.NewServer, ...]
    attempts: int = 0
    alone: bool = False
    strange: int = 0
    unsure: bool = False
    ended: bool = False

    def only(self, servers: Iterable[placement_replies.NewServer]) -> _Piece:
        return attrs.evolve(self, servers=tuple(servers))

    @property
    def was_repeated(self) -> bool:
        """Whether it was sent again behind a lost answer: one of the two may be on its way."""
        return self.unsure and self.attempts > 1

    def outcome(self, found: placement_replies.WriteOutcome) -> placement_replies.WriteOutcome:
        """Return an outcome as far as it is known of a piece that may be written yet.

        A later refusal, of a full host or a server of the same call, says nothing of
        what was sent before and may be carried out after it.
        """
        if isinstance(found, placement_replies.AllocationWritten):
            return attrs.evolve(found, was_repeated=self.was_repeated)
        if not self.unsure or isinstance(found, placement_replies.UnknownOutcome):
            return found
        why = getattr(found, "text", "") or "withdrawn with others"
        return placement_replies.UnknownOutcome(f"an answer was lost before: {why}")


@attrs.define(eq=False, slots=False)
class AllocationWrite:
    """One request's write of allocations to Placement; made for one call."""

    _posts: placement_calls.AllocationCalls
    _batcher: placement_calls.CallBatcher[shared_calls.RequestPart, placement_replies.Reply]
    _reading: ReadBack
    _condition: conditional_writes.WriteCondition | None = None
    _outcomes: dict[str, placement_replies.WriteOutcome] = attrs.field(init=False, factory=dict)
    _pieces: collections.deque[_Piece] = attrs.field(init=False, factory=collections.deque)
    _limits: shared_calls.RefusedAmounts = attrs.field(
        init=False, factory=shared_calls.RefusedAmounts
    )
    _divisible: bool = attrs.field(init=False, default=False)

    def write(
        self, servers: tuple[placement_replies.NewServer, ...], *, divisible: bool
    ) -> dict[str, placement_replies.WriteOutcome]:
        """Write all servers; see :meth:`AllocationWriter.write`."""
        self._divisible = divisible
        if servers:
            self._pieces.append(_Piece(servers))
        while self._pieces:
            self._send(self._pieces.popleft())
        if not divisible:
            self._all_or_none(servers)
        return self._outcomes

    def _send(self, piece: _Piece) -> None:
        # Behind a lost answer it is not sent: what came through may have moved the generations.
        condition = None if piece.unsure else self._condition
        part = shared_calls.RequestPart(piece.servers, self._reading.request_id, condition)
        reply: placement_replies.Reply | None = self._limits.refusal([part])
        if reply is None:
            try:
                reply = self._batcher.submit(
                    part,
                    len(piece.servers),
                    alone=piece.alone,
                    patience_seconds=max(_LEAST_PATIENCE_SECONDS, self._reading.left_seconds()),
                )
            except placement_calls.LeaderEnded as error:
                reply = placement_replies.LostReply(str(error))
            except placement_calls.Overdue as error:
                # One Placement that hangs is not to hang all of a worker's threads.
                text = str(error)
                reply = (
                    placement_replies.LostReply(text)
                    if error.taken
                    else placement_replies.BadReply(None, text)
                )
            self._limits.note([part], reply)
        piece.attempts += 1
        # One lost race says nothing of this request: it may have been another's.
        piece.alone = piece.attempts > 1 or not isinstance(reply, placement_replies.Contended)
        match reply:
            case placement_replies.DoneReply():
                compared = condition is self._condition and reply.compared
                self._settle(piece, placement_replies.AllocationWritten(was_compared=compared))
            case placement_replies.RefusedReply():
                self._refused(piece, reply.provider, self._full(reply))
            case placement_replies.NoProvider():
                full = placement_replies.ProviderFull(reply.provider, None, False, reply.text)
                self._refused(piece, reply.provider, full)
            case placement_replies.DifferingTrees():
                self._differing(piece, reply)
            case placement_replies.Contended():
                self._again(piece, placement_replies.GenerationConflict(reply.text))
            case placement_replies.ConsumerConflict():
                self._not_new(piece, reply)
            case placement_replies.BadReply():
                self._bad(piece, placement_replies.AllocationRejected(reply.status, reply.text))
            case placement_replies.LostReply():
                piece.unsure = piece.unsure or not reply.ended
                piece.ended = piece.ended or reply.ended
                piece.strange += reply.strange
                unknown = placement_replies.UnknownOutcome(
                    f"no answer until the deadline: {reply.text}"
                )
                self._look(piece, reply.text, unknown, all_or_none=True)

    # -- refusals -------------------------------------------------------------------

    @staticmethod
    def _full(reply: placement_replies.RefusedReply) -> placement_replies.ProviderFull:
        return placement_replies.ProviderFull(
            reply.provider, reply.resource_class, reply.by_capacity, reply.text
        )

    def _refused(
        self, piece: _Piece, provider: str | None, full: placement_replies.ProviderFull
    ) -> None:
        """Find the servers that do not fit."""
        touching = [s for s in piece.servers if provider is None or s.touches(provider)]
        self._halve(self._without_others(piece, touching), full)

    def _differing(self, piece: _Piece, reply: placement_replies.DifferingTrees) -> None:
        touching = [s for s in piece.servers if any(s.touches(root) for root in reply.roots)]
        self._settle(
            self._without_others(piece, touching), placement_replies.TreeChanged(reply.text)
        )

    def _without_others(self, piece: _Piece, refused: list[placement_replies.NewServer]) -> _Piece:
        """Return what of a piece is refused; the others, who do not touch it, are written next."""
        if len(piece.servers) == 1 or not refused:
            return piece
        others = [server for server in piece.servers if server not in refused]
        if others and self._divisible:
            self._pieces.append(piece.only(others))
        elif others:
            # No need to write what would be taken back.
            self._settle(piece.only(others), placement_replies.WithdrawnWithOthers())
        return piece.only(refused)

    def _bad(self, piece: _Piece, rejected: placement_replies.AllocationRejected) -> None:
        if rejected.status is None:
            self._settle(piece, rejected)
        else:
            self._halve(piece, rejected)

    def _halve(self, piece: _Piece, outcome: placement_replies.WriteOutcome) -> None:
        """Divide a piece; one server alone has its outcome."""
        if len(piece.servers) == 1:
            self._settle(piece, outcome)
            return
        middle = (len(piece.servers) + 1) // 2
        self._pieces.appendleft(piece.only(piece.servers[middle:]))
        self._pieces.appendleft(piece.only(piece.servers[:middle]))

    def _all_or_none(self, servers: tuple[placement_replies.NewServer, ...]) -> None:
        """Take back what was written if anything was not."""
        written = [s for s in servers if self._is(s, placement_replies.AllocationWritten)]
        if len(written) == len(servers) or not written:
            return
        left = undo(self._posts, self._reading, written, unsure=False)
        for server in written:
            if server.consumer in left:
                unknown = "it could not be taken back before the deadline"
            elif self._is_repeated(server):
                unknown = "an answer was lost before: withdrawn with others"
            else:
                self._outcomes[server.consumer] = placement_replies.WithdrawnWithOthers()
                continue
            self._outcomes[server.consumer] = placement_replies.UnknownOutcome(unknown)

    def _is_repeated(self, server: placement_replies.NewServer) -> bool:
        outcome = self._outcomes[server.consumer]
        return isinstance(outcome, placement_replies.AllocationWritten) and outcome.was_repeated

    def _is(self, server: placement_replies.NewServer, kind: type[object]) -> bool:
        return isinstance(self._outcomes[server.consumer], kind)

    def _settle(self, piece: _Piece, outcome: placement_replies.WriteOutcome) -> None:
        known = piece.outcome(outcome)
        self._outcomes.update((server.consumer, known) for server in piece.servers)

    # -- what may pass --------------------------------------------------------------

    def _again(self, piece: _Piece, outcome: placement_replies.WriteOutcome) -> None:
        """Send it again after a pause; past the deadline it has its outcome."""
        if self._reading.pause(piece.attempts):
            self._pieces.append(piece)
        else:
            self._settle(piece, outcome)

    def _not_new(self, piece: _Piece, reply: placement_replies.ConsumerConflict) -> None:
        exists = placement_replies.ConsumerExists(reply.text)
        if piece.unsure:
            self._look(piece, reply.text, exists)
        elif len(piece.servers) > 1:
            self._halve(piece, exists)
        else:
            if not self._posts.not_left_behind(piece.servers[0].consumer):
                piece.strange += 1
            self._look(piece, reply.text, exists)

    def _look(
        self,
        piece: _Piece,
        why: str,
        at_last: placement_replies.WriteOutcome,
        *,
        all_or_none: bool = False,
    ) -> None:
        """Read the consumers of a piece: equal is written, other exists, none is sent again.

        :param at_last: outcome where that comes to nothing
        :param all_or_none: if the first one is not there, none is: one call wrote them
        """
        absent = []
        for number, server in enumerate(piece.servers):
            held = self._reading.read(server)
            if held is None:
                unknown = placement_replies.UnknownOutcome(
                    f"{why}; and the consumer cannot be read"
                )
                self._settle(piece.only(piece.servers[number:]), unknown)
                break
            if not held.amounts:
                absent.append(server)
                if number == 0 and all_or_none:
                    absent = list(piece.servers)
                    break
            elif held.amounts == server.amounts:
                # One of ours whose answer was lost may have, and nobody said that he compared.
                # Where each was refused another has: that was his to do, and it is not ours to
                # take back.
                was_compared = self._condition is None or not piece.unsure
                written = placement_replies.AllocationWritten(was_compared=was_compared)
                self._settle(piece.only([server]), written)
            else:
                self._outcomes[server.consumer] = placement_replies.ConsumerExists(why)
        if not absent:
            return
        if piece.strange and piece.ended and not piece.unsure:
            self._posts.left_behind(server.consumer for server in absent)
        if piece.strange >= _PATIENCE:
            self._settle(piece.only(absent), at_last)
        else:
            self._again(piece.only(absent), at_last)


class AllocationWriter:
    """The one way by which a process writes allocations of new servers.

    Any thread may call; it blocks for HTTP, behind the writes that came before,
    and never much beyond the deadline and the client's own timeouts.

    :param client: Nova's ``SchedulerReportClient``
    :param batch_window_seconds: how long a write waits at most for those that
        are on their way (:meth:`coming`); 0: only what queues up while another
        is under way shares a call
    :param max_batch_consumers: servers that share a call; a request with more
        still gets one call. Beyond 8 a server costs hardly less, and all wait
        for the slowest
    :param max_calls: calls under way at once; no two of them touch the same
        host, or the same server
    :param turns: of all in this process that writes allocations
    :param clock: monotonic seconds
    """

    def __init__(
        self,
        client: Any,
        *,
        batch_window_seconds: float = 0.0,
        max_batch_consumers: int = 16,
        max_calls: int = 1,
        turns: write_turns.WriteTurns | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._posting = placement_calls.AllocationCalls(client)
        self._batcher: placement_calls.CallBatcher[
            shared_calls.RequestPart, placement_replies.Reply
        ] = placement_calls.CallBatcher(
            functools.partial(shared_calls.write_batch, self._posting.post),
            window_seconds=batch_window_seconds,
            max_size=max_batch_consumers,
            max_calls=max_calls,
            touches=_touches,
            turns=turns or write_turns.WriteTurns(),
        )
        self._pauses = Pauses(clock, sleep, rng or random.Random())

    @property
    def calls(self) -> Mapping[str, int]:
        """HTTP calls so far, by kind: post, get, empty."""
        return dict(self._posting.calls)

    def takes_conditions(self) -> bool:
        """Say whether Placement would compare trees as it writes, for all that is known; no I/O.

        Where it turns out not to have, the outcome says so.
        """
        return self._posting.takes_conditions()

    def coming(self) -> contextlib.AbstractContextManager[None]:
        """Say that this thread decides a request, and will probably write.

        Others wait for its first write, for :meth:`not_coming`, or for the end of
        this. Not to be nested.
        """
        return self._batcher.coming()

    def not_coming(self) -> None:
        """Say that this thread's request writes nothing here after all."""
        self._batcher.not_coming()

    def write(
        self,
        servers: Sequence[placement_replies.NewServer],
        deadline: float,
        *,
        divisible: bool = False,
        request_id: str | None = None,
        condition: conditional_writes.WriteCondition | None = None,
    ) -> dict[str, placement_replies.WriteOutcome]:
        """Write the allocations of one request's servers.

        A second call with servers that were written finds them and says so.

        :param deadline: on the clock, until which races and lost answers are
            tried again
        :param divisible: servers stay written though others of the request
            cannot be; else all are written or none
        :param request_id: of the request, for Placement's log
        :param condition: trees for which it is written; those that differ are not written to
        :return: an outcome for each consumer
        :raises ValueError: a consumer is named twice
        """
        if len({server.consumer for server in servers}) < len(servers):
            raise ValueError("A consumer is named twice in one request; give each server once.")
        window = self.window()
        reading = ReadBack(self._posting, self._pauses, deadline, request_id, window)
        running = AllocationWrite(self._posting, self._batcher, reading, condition)
        return running.write(tuple(servers), divisible=divisible)

    def window(self) -> taking_back.TakeBackWindow:
        """Return until when what is about to be written is taken back."""
        return taking_back.TakeBackWindow.since_now(self._pauses.clock)

    def patiently(self, done: Callable[[], bool], deadline: float) -> bool:
        """Try something again after pauses until it is done; False past the deadline."""
        attempt = 0
        while not done():
            attempt += 1
            if not self._pauses.pause(attempt, deadline):
                return False
        return True

    def undo(
        self,
        servers: Sequence[placement_replies.NewServer],
        deadline: float,
        *,
        unsure: bool = False,
        request_id: str | None = None,
        window: taking_back.TakeBackWindow | None = None,
    ) -> Collection[str]:
        """Remove what was written for servers, where Placement still has exactly that.

        A consumer that has other allocations by now is left alone.

        :param unsure: their outcome is Unknown: look before anything is removed, and
            not before another thread's call that may write it yet has ended
        :param window: of what was written, made before that; None if that is just now
        :return: consumers of which it is not known that this write is gone
        """
        window = window or self.window()
        reading = ReadBack(self._posting, self._pauses, deadline, request_id, window)
        consumers = frozenset(server.consumer for server in servers)
        if not window.is_open():
            return consumers
        # Who slept beyond his time may have been given up: what his servers have by now another
        # wrote, and a consumer that was removed and made again counts from 1 as ever.
        unsure = unsure or reading.left_seconds() <= 0
        if unsure and not self._batcher.untouched(consumers, reading.left_seconds()):
            return consumers
        return undo(self._posting, reading, servers, unsure=unsure)


def _touches(part: shared_calls.RequestPart) -> frozenset[str]:
    """Return the providers and consumers of a part."""
    providers = (name for server in part.servers for name in server.request["allocations"])
    return frozenset(providers).union(server.consumer for server in part.servers)
