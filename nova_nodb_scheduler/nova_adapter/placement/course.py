# SPDX-License-Identifier: Apache-2.0
"""The course of one request's write: tries again what may pass, divides what will not.

It runs in the thread that waits for it. The naive way, Nova's, is a GET and a
PUT for each server, and three attempts with pauses of seconds. Here a new
consumer is written with generation null: Placement itself refuses it if it is
not new, so nothing need be read before; and races are tried again until the
request's deadline, not another host instead.

A lost answer is the difficult one: the write may be there, or come yet. The
consumers are read; what is equal was written. What is absent is sent again,
with generation null still: should the first write arrive after all, Placement
refuses the second, and the consumers are read again.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Callable, Collection, Iterable

import attrs
from oslo_log import log

from nova_nodb_scheduler.nova_adapter.placement import (
    batching,
    conflicts,
    outcomes,
    posting,
    together,
)

LOG = log.getLogger(__name__)

_MIN_PAUSE_SECONDS = 0.01
_MAX_PAUSE_SECONDS = 0.5
#: Answers that a consumer is not new though it has nothing, before that is believed.
_PATIENCE = 3


@attrs.frozen
class Pauses:
    """Short waits with jitter, doubling."""

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


@attrs.define(eq=False)
class _Piece:
    """Servers that are sent together, and what happened to them so far.

    :param unsure: an answer was lost: it may be written yet
    """

    servers: tuple[outcomes.Server, ...]
    attempts: int = 0
    strange: int = 0
    unsure: bool = False

    def only(self, servers: Iterable[outcomes.Server]) -> _Piece:
        return attrs.evolve(self, servers=tuple(servers))


class Course:
    """One request's write or undoing; made for one call.

    :param deadline: on the clock of the pauses
    """

    def __init__(
        self,
        posts: posting.Posting,
        batcher: batching.Batcher[together.Part, conflicts.Reply],
        pauses: Pauses,
        deadline: float,
        request_id: str | None,
    ) -> None:
        self._posts = posts
        self._batcher = batcher
        self._pauses = pauses
        self._deadline = deadline
        self._request_id = request_id
        self._outcomes: dict[str, outcomes.Outcome] = {}
        self._pieces: collections.deque[_Piece] = collections.deque()
        self._divisible = False

    def write(
        self, servers: tuple[outcomes.Server, ...], *, divisible: bool
    ) -> dict[str, outcomes.Outcome]:
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
        part = together.Part(piece.servers, self._request_id)
        # What failed once is sent alone: it would spoil the others' call again.
        alone = piece.attempts > 0
        reply = self._batcher.submit(part, len(piece.servers), alone=alone)
        piece.attempts += 1
        match reply:
            case conflicts.Done():
                self._settle(piece, outcomes.Written())
            case conflicts.Refused():
                self._refused(piece, reply.provider, self._full(reply))
            case conflicts.NoProvider():
                full = outcomes.Full(reply.provider, None, False, reply.text)
                self._refused(piece, reply.provider, full)
            case conflicts.Contended():
                self._again(piece, outcomes.Conflict(reply.text))
            case conflicts.ConsumerConflict():
                self._not_new(piece, reply)
            case conflicts.Bad():
                self._bad(piece, outcomes.Rejected(reply.status, reply.text))
            case conflicts.Lost():
                piece.unsure = True
                self._look(piece, reply.text, all_or_none=True)

    # -- refusals -------------------------------------------------------------------

    @staticmethod
    def _full(reply: conflicts.Refused) -> outcomes.Full:
        return outcomes.Full(reply.provider, reply.resource_class, reply.by_capacity, reply.text)

    def _refused(self, piece: _Piece, provider: str | None, full: outcomes.Full) -> None:
        """Find the servers that do not fit."""
        touching = [s for s in piece.servers if provider is None or s.touches(provider)]
        if len(piece.servers) == 1 or not touching:
            touching = list(piece.servers)
        others = [server for server in piece.servers if server not in touching]
        if others and self._divisible:
            self._pieces.append(piece.only(others))
        elif others:
            # No need to write what would be taken back.
            self._settle(piece.only(others), outcomes.Withdrawn())
        self._halve(piece.only(touching), full)

    def _bad(self, piece: _Piece, rejected: outcomes.Rejected) -> None:
        if rejected.status is None:
            self._settle(piece, rejected)
        else:
            self._halve(piece, rejected)

    def _halve(self, piece: _Piece, outcome: outcomes.Outcome) -> None:
        """Divide a piece; one server alone has its outcome."""
        if len(piece.servers) == 1:
            self._settle(piece, outcome)
            return
        middle = (len(piece.servers) + 1) // 2
        self._pieces.appendleft(piece.only(piece.servers[middle:]))
        self._pieces.appendleft(piece.only(piece.servers[:middle]))

    def _all_or_none(self, servers: tuple[outcomes.Server, ...]) -> None:
        """Take back what was written if anything was not."""
        written = [s for s in servers if self._is(s, outcomes.Written)]
        if len(written) == len(servers) or not written:
            return
        left = self.undo(tuple(written))
        for server in written:
            self._outcomes[server.consumer] = (
                outcomes.Unknown("it could not be taken back before the deadline")
                if server.consumer in left
                else outcomes.Withdrawn()
            )

    def _is(self, server: outcomes.Server, kind: type[object]) -> bool:
        return isinstance(self._outcomes[server.consumer], kind)

    def _settle(self, piece: _Piece, outcome: outcomes.Outcome) -> None:
        self._outcomes.update((server.consumer, outcome) for server in piece.servers)

    # -- what may pass --------------------------------------------------------------

    def _again(self, piece: _Piece, outcome: outcomes.Outcome) -> None:
        """Send it again after a pause; past the deadline it has its outcome."""
        if self._pauses.pause(piece.attempts, self._deadline):
            self._pieces.append(piece)
            return
        if piece.unsure:
            outcome = outcomes.Unknown("no answer until the deadline, and nothing found")
        self._settle(piece, outcome)

    def _not_new(self, piece: _Piece, reply: conflicts.ConsumerConflict) -> None:
        if piece.unsure:
            self._look(piece, reply.text)
            return
        if len(piece.servers) > 1:
            self._halve(piece, outcomes.ConsumerExists(reply.text))
            return
        forgot = self._posts.not_left_behind(piece.servers[0].consumer)
        if not forgot:
            piece.strange += 1
        self._look(piece, reply.text)

    def _look(self, piece: _Piece, why: str, *, all_or_none: bool = False) -> None:
        """Read the consumers of a piece: equal is written, other exists, none is sent again.

        :param all_or_none: if the first one is not there, none is: one call wrote them
        """
        absent = []
        for number, server in enumerate(piece.servers):
            held = self._read(server)
            if held is None:
                unknown = outcomes.Unknown(f"{why}; and the consumer cannot be read")
                self._settle(piece.only(piece.servers[number:]), unknown)
                break
            if not held.amounts:
                absent.append(server)
                if number == 0 and all_or_none:
                    absent = list(piece.servers)
                    break
            elif held.amounts == server.amounts:
                self._outcomes[server.consumer] = outcomes.Written()
            else:
                self._outcomes[server.consumer] = outcomes.ConsumerExists(why)
        if not absent:
            return
        exists = outcomes.ConsumerExists(why)
        if piece.strange >= _PATIENCE:
            self._settle(piece.only(absent), exists)
        else:
            self._again(piece.only(absent), exists)

    def _read(self, server: outcomes.Server) -> posting.Held | None:
        """Read a consumer, again and again until the deadline."""
        attempt = 0
        while True:
            held = self._posts.held(server.consumer, self._request_id)
            if isinstance(held, posting.Held):
                return held
            attempt += 1
            if not self._pauses.pause(attempt, self._deadline):
                return None

    # -- undoing --------------------------------------------------------------------

    def undo(
        self, servers: tuple[outcomes.Server, ...], *, unsure: bool = False
    ) -> Collection[str]:
        """Remove what was written; see :meth:`AllocationWriter.undo`."""
        # A consumer that was just made is at generation 1.
        left: dict[outcomes.Server, int] | None = dict.fromkeys(servers, 1)
        if unsure:
            left = self._equal(servers)
        attempt = 0
        while left:
            reply = self._posts.empty(left.items(), self._request_id)
            if isinstance(reply, conflicts.Done):
                return ()
            attempt += 1
            if attempt > 1 and not self._pauses.pause(attempt, self._deadline):
                break
            left = self._equal(left)
        return self._still(servers if left is None else left) if left != {} else ()

    def _equal(self, servers: Iterable[outcomes.Server]) -> dict[outcomes.Server, int] | None:
        """Return which servers have what was written, and at which generation."""
        equal = {}
        for server in servers:
            held = self._read(server)
            if held is None:
                return None
            if held.amounts == server.amounts:
                equal[server] = int(held.body["consumer_generation"])
        return equal

    def _still(self, servers: Collection[outcomes.Server]) -> Collection[str]:
        left = frozenset(server.consumer for server in servers)
        LOG.warning(
            "Allocations of %(count)d servers may be left in Placement, as it did not answer: "
            "%(some)s. 'nova-manage placement audit' finds them.",
            {"count": len(left), "some": ", ".join(sorted(left)[:5])},
        )
        return left
