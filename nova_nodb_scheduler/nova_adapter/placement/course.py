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
from collections.abc import Iterable

import attrs

from nova_nodb_scheduler.nova_adapter.placement import (
    batching,
    conflicts,
    outcomes,
    posting,
    reading_back,
    together,
    undoing,
)

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

    servers: tuple[outcomes.Server, ...]
    attempts: int = 0
    alone: bool = False
    strange: int = 0
    unsure: bool = False
    ended: bool = False

    def only(self, servers: Iterable[outcomes.Server]) -> _Piece:
        return attrs.evolve(self, servers=tuple(servers))


class Course:
    """One request's write; made for one call."""

    def __init__(
        self,
        posts: posting.Posting,
        batcher: batching.Batcher[together.Part, conflicts.Reply],
        reading: reading_back.ReadBack,
    ) -> None:
        self._posts = posts
        self._batcher = batcher
        self._reading = reading
        self._outcomes: dict[str, outcomes.Outcome] = {}
        self._pieces: collections.deque[_Piece] = collections.deque()
        self._limits = together.Limits()
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
        part = together.Part(piece.servers, self._reading.request_id)
        reply: conflicts.Reply | None = self._limits.refusal([part])
        if reply is None:
            try:
                reply = self._batcher.submit(
                    part,
                    len(piece.servers),
                    alone=piece.alone,
                    patience_seconds=max(_LEAST_PATIENCE_SECONDS, self._reading.left_seconds()),
                )
            except batching.LeaderEnded as error:
                reply = conflicts.Lost(str(error))
            except batching.Overdue as error:
                # One Placement that hangs is not to hang all of a worker's threads.
                text = str(error)
                reply = conflicts.Lost(text) if error.taken else conflicts.Bad(None, text)
            self._limits.note([part], reply)
        piece.attempts += 1
        # One lost race says nothing of this request: it may have been another's.
        piece.alone = piece.attempts > 1 or not isinstance(reply, conflicts.Contended)
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
                piece.unsure = piece.unsure or not reply.ended
                piece.ended = piece.ended or reply.ended
                piece.strange += reply.strange
                unknown = outcomes.Unknown(f"no answer until the deadline: {reply.text}")
                self._look(piece, reply.text, unknown, all_or_none=True)

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
            # It did not arrive now; an earlier attempt may have.
            unknown = outcomes.Unknown(f"an answer was lost before: {rejected.text}")
            self._settle(piece, unknown if piece.unsure else rejected)
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
        left = undoing.undo(self._posts, self._reading, written, unsure=False)
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
        if self._reading.pause(piece.attempts):
            self._pieces.append(piece)
            return
        if piece.unsure:
            outcome = outcomes.Unknown("no answer until the deadline, and nothing found")
        self._settle(piece, outcome)

    def _not_new(self, piece: _Piece, reply: conflicts.ConsumerConflict) -> None:
        exists = outcomes.ConsumerExists(reply.text)
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
        at_last: outcomes.Outcome,
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
        if piece.strange and piece.ended and not piece.unsure:
            self._posts.left_behind(server.consumer for server in absent)
        if piece.strange >= _PATIENCE:
            self._settle(piece.only(absent), at_last)
        else:
            self._again(piece.only(absent), at_last)
