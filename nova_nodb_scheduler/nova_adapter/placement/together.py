# SPDX-License-Identifier: Apache-2.0
"""Writes the servers of several requests in one call, and finds out whose fault a refusal is.

Placement's refusal holds for the whole call. It names a provider, though, in
its text: requests that do not touch it are written at once, the others are
halved until each has an answer of its own. Nothing here pauses or tries again:
a request that needs that does it in its own thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import attrs

from nova_nodb_scheduler.nova_adapter.placement import conflicts, outcomes

LOG = logging.getLogger(__name__)


@attrs.frozen(eq=False)
class Part:
    """Servers of one request, written all or none.

    :param request_id: of the request, for Placement's log
    """

    servers: tuple[outcomes.Server, ...]
    request_id: str | None = None

    def touches(self, provider: str) -> bool:
        return any(server.touches(provider) for server in self.servers)


Post = Callable[[Sequence[outcomes.Server], str | None], conflicts.Reply]


class Limits:
    """What did not fit, while one write goes on: as much or more will not fit either.

    Saves the calls whose answer is known. Somebody may free room meanwhile:
    then the answer is a moment old, as an answer always is.
    """

    def __init__(self) -> None:
        self._least: dict[tuple[str, str], int] = {}

    def note(self, parts: Sequence[Part], reply: conflicts.Reply) -> None:
        """Remember a refusal of parts that were sent in one call."""
        if not isinstance(reply, conflicts.Refused) or not reply.by_capacity:
            return
        if reply.provider and reply.resource_class:
            key = (reply.provider, reply.resource_class)
            wanted = _amount(parts, *key)
            self._least[key] = min(wanted, self._least.get(key, wanted))

    def refusal(self, parts: Sequence[Part]) -> conflicts.Refused | None:
        """Return the answer that parts would get; None if it is not known."""
        for (provider, name), least in self._least.items():
            if _amount(parts, provider, name) >= least > 0:
                text = f"{least} of {name} did not fit on {provider}"
                return conflicts.Refused(provider, name, True, text)
        return None


def _amount(parts: Sequence[Part], provider: str, resource_class: str) -> int:
    """Return what parts want of a provider, of all their servers together."""
    return sum(
        server.amounts.get(provider, {}).get(resource_class, 0)
        for part in parts
        for server in part.servers
    )


def write(post: Post, parts: Sequence[Part]) -> list[conflicts.Reply]:
    """Write parts of different requests; return a reply for each.

    One call more where one part touches a full provider; where several do, or
    the refusal names none, two for each halving and bad part.
    """
    replies: dict[Part, conflicts.Reply] = {}
    waiting = _without_doubles(parts)
    limits = Limits()
    while waiting:
        group = waiting.pop()
        reply: conflicts.Reply | None = limits.refusal(group)
        if reply is None:
            servers = [server for part in group for server in part.servers]
            if len(group) > 1:
                # Placement's log has the first one's alone.
                LOG.debug(
                    "Requests %(ids)s share a call to Placement.",
                    {"ids": ", ".join(str(part.request_id) for part in group)},
                )
            reply = post(servers, group[0].request_id)
            limits.note(group, reply)
        if len(group) == 1 or isinstance(
            reply, conflicts.Done | conflicts.Lost | conflicts.Contended
        ):
            replies.update(dict.fromkeys(group, reply))
        else:
            waiting.extend(_divide(group, reply, replies))
    return [replies[part] for part in parts]


def _without_doubles(parts: Sequence[Part]) -> list[list[Part]]:
    """Divide parts so that no consumer is twice in a call; the first is last.

    A server that is asked for twice at once: in one call, one of the two would
    silently take the other's place.
    """
    groups: list[list[Part]] = []
    seen: list[set[str]] = []
    for part in parts:
        consumers = {server.consumer for server in part.servers}
        place = next((n for n, taken in enumerate(seen) if not consumers & taken), len(seen))
        if place == len(seen):
            groups.append([])
            seen.append(set())
        groups[place].append(part)
        seen[place] |= consumers
    return groups[::-1]


def _divide(
    group: list[Part], reply: conflicts.Reply, replies: dict[Part, conflicts.Reply]
) -> list[list[Part]]:
    """Say which groups to write next, last first; blame who is surely to blame."""
    if isinstance(reply, conflicts.Refused | conflicts.NoProvider) and reply.provider:
        touching = [part for part in group if part.touches(reply.provider)]
        others = [part for part in group if not part.touches(reply.provider)]
        if len(touching) == 1 or (touching and isinstance(reply, conflicts.NoProvider)):
            replies.update(dict.fromkeys(touching, reply))
            return [others] if others else []
        if touching and others:
            return [*_halves(touching), others]
    if isinstance(reply, conflicts.Bad) and reply.status is None:
        replies.update(dict.fromkeys(group, reply))
        return []
    return _halves(group)


def _halves(group: list[Part]) -> list[list[Part]]:
    middle = (len(group) + 1) // 2
    # Who came first is written first: the last group is taken next.
    return [group[middle:], group[:middle]]
