# SPDX-License-Identifier: Apache-2.0
"""What a suspected allocation is: by Placement first, then by Nova's databases.

Placement first, because its answer holds the consumer's generation: what somebody
writes for that consumer after that makes the deletion lose.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.nova_adapter.orphans import presence, suspects
from nova_nodb_scheduler.nova_adapter.placement import conflicts, outcomes, posting
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.store import snapshot as snapshot_module


class Kind(enum.Enum):
    """What stands behind an allocation."""

    #: Nothing is allocated, or by others than the suspects.
    NOTHING = "nothing"
    #: A server on that host.
    SERVED = "served"
    #: A server or a migration that is under way.
    UNDER_WAY = "under way"
    ABSENT = "absent"
    BURIED = "buried in cell0"
    ELSEWHERE = "elsewhere"
    ENDED_MIGRATION = "ended migration"
    UNPROVED = "not proved"


#: What an operator is to know of.
ORPHANS = (Kind.ABSENT, Kind.BURIED, Kind.ELSEWHERE, Kind.ENDED_MIGRATION)


@attrs.frozen
class Judged:
    """One consumer's allocation, and what stands behind it.

    :param amounts: by provider and resource class
    :param generation: of the consumer; None where nothing is allocated
    :param project_id: of the consumer, like ``user_id``
    :param found: where its server or migration is; None where nobody looked
    :param wrote: the suspects whose claim is what is allocated
    """

    consumer: str
    kind: Kind
    amounts: outcomes.Amounts = attrs.field(factory=dict)
    generation: int | None = None
    project_id: str = ""
    user_id: str = ""
    found: presence.Presence | None = None
    wrote: Sequence[suspects.Suspect] = ()


def is_for_nobody(judged: Judged, gone: Callable[[model.HeldClaim], bool]) -> bool:
    """Say whether an allocation was made for a server that nobody will ever start.

    Its claim must have written it. An absent server may be about to come as long as
    that claim's writer lives; one in cell0 never gets to a host.
    """
    if not judged.wrote:
        return False
    return judged.kind is Kind.BURIED or (
        judged.kind is Kind.ABSENT and all(gone(each.held) for each in judged.wrote)
    )


class Judge:
    """Judges consumers; any thread. Blocks for a request each, and some statements a cell.

    :param posts: speaks to Placement
    """

    def __init__(self, posts: posting.Posting) -> None:
        self._posts = posts

    def judge(
        self,
        suspected: Mapping[str, Sequence[suspects.Suspect]],
        snapshot: snapshot_module.Snapshot,
        on: Mapping[str, Collection[str]] | None = None,
    ) -> dict[str, Judged]:
        """Say of each consumer what stands behind its allocation.

        :param suspected: claims by consumer
        :param on: by consumer the hosts on which an allocation counts that no claim
            explains; none where none is given
        """
        judged: dict[str, Judged] = {}
        for consumer, claims in suspected.items():
            judged[consumer] = self._read(consumer, claims, (on or {}).get(consumer, ()))
        looked = [name for name, each in judged.items() if each.generation is not None]
        if looked:
            places = presence.find(looked, suspects.cells_of_hosts(snapshot))
            for name in looked:
                found = places[name]
                kind = _kind(found, judged[name].amounts, snapshot)
                judged[name] = attrs.evolve(judged[name], kind=kind, found=found)
        return judged

    def _read(
        self, consumer: str, claims: Sequence[suspects.Suspect], on: Collection[str]
    ) -> Judged:
        held = self._posts.held(consumer)
        if not isinstance(held, posting.Held):
            found = presence.Presence(presence.Where.UNPROVED, detail=f"Placement: {_text(held)}")
            return Judged(consumer, Kind.UNPROVED, found=found)
        # Another amount, or another host, is another's write.
        wrote = [
            each
            for each in claims
            if dict(held.amounts.get(each.host, {})) == dict(each.held.resources)
        ]
        if not wrote and not held.amounts.keys() & set(on):
            return Judged(consumer, Kind.NOTHING)
        body: Mapping[str, Any] = held.body
        return Judged(
            consumer,
            Kind.UNPROVED,
            held.amounts,
            body["consumer_generation"],
            str(body["project_id"]),
            str(body["user_id"]),
            wrote=wrote,
        )

    def delete(self, judged: Judged) -> bool:
        """Remove an allocation as it was judged; False where that is not known to be done.

        Whatever was written for the consumer since stays.
        """
        assert judged.generation is not None  # nothing else is to be deleted
        server = outcomes.Server(
            judged.consumer, {"allocations": {}}, judged.project_id, judged.user_id
        )
        return isinstance(self._posts.empty([(server, judged.generation)]), conflicts.Done)


def _text(reply: Any) -> str:
    return str(getattr(reply, "text", "") or reply)


def _kind(
    found: presence.Presence, amounts: outcomes.Amounts, snapshot: snapshot_module.Snapshot
) -> Kind:
    where = found.where
    if where in (presence.Where.BUILD_REQUEST, presence.Where.MIGRATION) or found.builds:
        return Kind.UNDER_WAY
    if where is presence.Where.INSTANCE:
        if found.host and any(
            _place(snapshot, each) == (found.cell, found.host) for each in amounts
        ):
            return Kind.SERVED
        return Kind.BURIED if found.cell == presence.CELL0 else Kind.ELSEWHERE
    return {
        presence.Where.ABSENT: Kind.ABSENT,
        presence.Where.ENDED_MIGRATION: Kind.ENDED_MIGRATION,
    }.get(where, Kind.UNPROVED)


def _place(snapshot: snapshot_module.Snapshot, node: str) -> tuple[str, str] | None:
    found = snapshot.namespace(namespaces.COMPUTE_NODES.name).get(node)
    return None if found is None else (str(found.state["cell"]), str(found.state["row"]["host"]))
