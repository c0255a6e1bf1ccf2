# SPDX-License-Identifier: Apache-2.0
"""What several requests write in one call, and whose the refusal of such a call is.

Placement's refusal holds for the whole call. It names a provider, though, in its
text: requests that do not touch it are written at once, the others are halved
until each has an answer of its own. A guarded Placement names all trees that differ
from what a call's requests were chosen for: theirs is the refusal, the rest is
written at once (:mod:`.conditional_writes`). Nothing here pauses or tries again: a
request that needs that does it in its own thread.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs

from nova_nodb_scheduler import tree_conditions
from nova_nodb_scheduler.nova_adapter.placement.allocations import (
    conditional_writes,
    placement_replies,
)

LOG = logging.getLogger(__name__)


@attrs.frozen(eq=False)
class RequestPart:
    """Servers of one request, written all or none.

    :param request_id: of the request, for Placement's log
    :param condition: trees that its hosts were chosen for
    """

    servers: tuple[placement_replies.NewServer, ...]
    request_id: str | None = None
    condition: conditional_writes.WriteCondition | None = None

    def marks(self) -> conditional_writes.Marks:
        """Return what is to be compared of the trees that these servers go to; see there."""
        if self.condition is None:
            return {}
        return {root: mark for root, mark in self.condition.marks().items() if self.touches(root)}

    def touches(self, provider: str) -> bool:
        return any(server.touches(provider) for server in self.servers)


class Post(Protocol):
    """See ``AllocationCalls.post``."""

    def __call__(
        self,
        servers: Sequence[placement_replies.NewServer],
        request_id: str | None = None,
        marks: conditional_writes.Marks | None = None,
        /,
    ) -> placement_replies.Reply: ...


class RefusedAmounts:
    """What Placement refused during one write: as much or more will not fit either.

    Saves the calls whose answer is known. Somebody may free room meanwhile:
    then the answer is a moment old, as an answer always is.
    """

    def __init__(self) -> None:
        self._least: dict[tuple[str, str], int] = {}

    def note(self, parts: Sequence[RequestPart], reply: placement_replies.Reply) -> None:
        """Remember a refusal of parts that were sent in one call."""
        if not isinstance(reply, placement_replies.RefusedReply) or not reply.by_capacity:
            return
        if reply.provider and reply.resource_class:
            key = (reply.provider, reply.resource_class)
            wanted = _amount(parts, *key)
            self._least[key] = min(wanted, self._least.get(key, wanted))

    def refusal(self, parts: Sequence[RequestPart]) -> placement_replies.RefusedReply | None:
        """Return the answer that parts would get; None if it is not known."""
        for (provider, name), least in self._least.items():
            if _amount(parts, provider, name) >= least > 0:
                text = f"{least} of {name} did not fit on {provider}"
                return placement_replies.RefusedReply(provider, name, True, text)
        return None


def _amount(parts: Sequence[RequestPart], provider: str, resource_class: str) -> int:
    """Return what parts want of a provider, of all their servers together."""
    return sum(
        server.amounts.get(provider, {}).get(resource_class, 0)
        for part in parts
        for server in part.servers
    )


def write_batch(post: Post, parts: Sequence[RequestPart]) -> list[placement_replies.Reply]:
    """Write parts of different requests; return a reply for each.

    One call more where one part touches a full provider, or some were chosen for
    trees that differ; where several touch a full one, or the refusal names none,
    two for each halving and bad part.
    """
    replies: dict[RequestPart, placement_replies.Reply] = {}
    waiting = _without_doubles(parts)
    limits = RefusedAmounts()
    while waiting:
        group = waiting.pop()
        # With each call anew: an earlier one may have shown it, and moved the generations.
        marks = {part: part.marks() for part in group}
        reply: placement_replies.Reply | None = limits.refusal(group)
        if reply is None:
            servers = [server for part in group for server in part.servers]
            if len(group) > 1:
                # Placement's log has the first one's alone.
                LOG.debug(
                    "Requests %(ids)s share a call to Placement.",
                    {"ids": ", ".join(str(part.request_id) for part in group)},
                )
            reply = post(servers, group[0].request_id, conditional_writes.merged(marks.values()))
            limits.note(group, reply)
        if isinstance(reply, placement_replies.DoneReply):
            replies.update({part: _done(part, marks[part], reply) for part in group})
        elif len(group) == 1 or isinstance(
            reply, placement_replies.LostReply | placement_replies.Contended
        ):
            replies.update(dict.fromkeys(group, reply))
        elif isinstance(reply, placement_replies.DifferingTrees):
            waiting.extend(_without_differing(group, marks, reply, replies))
        else:
            waiting.extend(_divide(group, reply, replies))
    return [replies[part] for part in parts]


def _done(
    part: RequestPart, marks: conditional_writes.Marks, reply: placement_replies.DoneReply
) -> placement_replies.DoneReply:
    """Return what a call that wrote tells of one part of it."""
    if not marks:
        # It had nothing to be compared, or not any more.
        return placement_replies.DoneReply(compared=True)
    if reply.compared and part.condition is not None:
        part.condition.held(marks)
    return reply


def _without_differing(
    group: list[RequestPart],
    marks: Mapping[RequestPart, conditional_writes.Marks],
    reply: placement_replies.DifferingTrees,
    replies: dict[RequestPart, placement_replies.Reply],
) -> list[list[RequestPart]]:
    """Refuse the parts that were chosen for trees that differ; return who is written next."""
    chosen = [part for part in group if not reply.roots.isdisjoint(marks[part])]
    if not chosen:
        # Trees that nobody named: whatever it means, it is not to be asked for ever.
        chosen = group
    replies.update(dict.fromkeys(chosen, reply))
    others = [part for part in group if part not in chosen]
    return [others] if others else []


def _without_doubles(parts: Sequence[RequestPart]) -> list[list[RequestPart]]:
    """Divide parts so that no consumer, and no tree in two states, is in a call; the first is last.

    A server that is asked for twice at once: in one call, one of the two would
    silently take the other's place. Of two that were chosen for one tree before and
    after a change, one would refuse the other.
    """
    groups: list[list[RequestPart]] = []
    seen: list[set[str]] = []
    named: list[dict[str, tree_conditions.TreeMark]] = []
    for part in parts:
        consumers, marks = {server.consumer for server in part.servers}, part.marks()
        place = next(
            (
                n
                for n, taken in enumerate(seen)
                if not consumers & taken and conditional_writes.fit_together(marks, named[n])
            ),
            len(seen),
        )
        if place == len(seen):
            groups.append([])
            seen.append(set())
            named.append({})
        groups[place].append(part)
        seen[place] |= consumers
        named[place].update(marks)
    return groups[::-1]


def _divide(
    group: list[RequestPart],
    reply: placement_replies.Reply,
    replies: dict[RequestPart, placement_replies.Reply],
) -> list[list[RequestPart]]:
    """Say which groups to write next, last first; blame who is surely to blame."""
    if (
        isinstance(reply, placement_replies.RefusedReply | placement_replies.NoProvider)
        and reply.provider
    ):
        touching = [part for part in group if part.touches(reply.provider)]
        others = [part for part in group if not part.touches(reply.provider)]
        if len(touching) == 1 or (touching and isinstance(reply, placement_replies.NoProvider)):
            replies.update(dict.fromkeys(touching, reply))
            return [others] if others else []
        if touching and others:
            return [*_halves(touching), others]
    if isinstance(reply, placement_replies.BadReply) and reply.status is None:
        replies.update(dict.fromkeys(group, reply))
        return []
    return _halves(group)


def _halves(group: list[RequestPart]) -> list[list[RequestPart]]:
    middle = (len(group) + 1) // 2
    # Who came first is written first: the last group is taken next.
    return [group[middle:], group[:middle]]
