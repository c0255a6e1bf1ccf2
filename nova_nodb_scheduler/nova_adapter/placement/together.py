# SPDX-License-Identifier: Apache-2.0
"""Writes the servers of several requests in one call, and finds out whose fault a refusal is.

Placement's refusal holds for the whole call. It names a provider, though, in
its text: requests that do not touch it are written at once, the others are
halved until each has an answer of its own. Nothing here pauses or tries again:
a request that needs that does it in its own thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from nova_nodb_scheduler.nova_adapter.placement import conflicts, outcomes


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


def write(post: Post, parts: Sequence[Part]) -> list[conflicts.Reply]:
    """Write parts of different requests; return a reply for each.

    At most two calls more than parts touch a full provider; where the refusal
    names none, two for each halving and bad part.
    """
    replies: dict[Part, conflicts.Reply] = {}
    waiting = [list(parts)]
    full: dict[tuple[str, str], int] = {}
    while waiting:
        group = waiting.pop()
        group = [part for part in group if not _known(part, full, replies)]
        if not group:
            continue
        servers = [server for part in group for server in part.servers]
        reply = post(servers, group[0].request_id)
        if len(group) == 1 or isinstance(
            reply, conflicts.Done | conflicts.Lost | conflicts.Contended
        ):
            replies.update(dict.fromkeys(group, reply))
            _note(group, reply, full)
            continue
        waiting.extend(_divide(group, reply, replies, full))
    return [replies[part] for part in parts]


def _divide(
    group: list[Part],
    reply: conflicts.Reply,
    replies: dict[Part, conflicts.Reply],
    full: dict[tuple[str, str], int],
) -> list[list[Part]]:
    """Say which groups to write next, last first; blame who is surely to blame."""
    if isinstance(reply, conflicts.Refused | conflicts.NoProvider) and reply.provider:
        touching = [part for part in group if part.touches(reply.provider)]
        others = [part for part in group if not part.touches(reply.provider)]
        if len(touching) == 1 or (touching and isinstance(reply, conflicts.NoProvider)):
            replies.update(dict.fromkeys(touching, reply))
            _note(touching, reply, full)
            return [others]
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


def amount(part: Part, provider: str, resource_class: str) -> int:
    """Return what a part wants of a provider, of all its servers together."""
    return sum(server.amounts.get(provider, {}).get(resource_class, 0) for server in part.servers)


def _note(group: list[Part], reply: conflicts.Reply, full: dict[tuple[str, str], int]) -> None:
    """Remember what did not fit: as much or more will not fit in this call either."""
    if len(group) == 1 and isinstance(reply, conflicts.Refused) and reply.by_capacity:
        if reply.provider and reply.resource_class:
            wanted = amount(group[0], reply.provider, reply.resource_class)
            key = (reply.provider, reply.resource_class)
            full[key] = min(wanted, full.get(key, wanted))


def _known(
    part: Part, full: dict[tuple[str, str], int], replies: dict[Part, conflicts.Reply]
) -> bool:
    for (provider, name), least in full.items():
        if amount(part, provider, name) >= least > 0:
            replies[part] = conflicts.Refused(
                provider, name, True, f"{least} of {name} did not fit on {provider}"
            )
            return True
    return False
