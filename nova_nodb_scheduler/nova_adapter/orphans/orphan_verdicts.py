# SPDX-License-Identifier: Apache-2.0
"""Claims that may have left an allocation behind, and what such an allocation is.

Who dies between the write of an allocation and its answer leaves one of two:

* a pending claim, whose lease ends: its host's record remembers it as *lapsed*;
* a confirmed claim, which nothing ends while its allocation stands.

What a suspected allocation is, is asked of Placement first, then of Nova's
databases: Placement first, because its answer holds the consumer's generation:
what somebody writes for that consumer after that makes the deletion lose.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.nova_adapter.orphans import allocation_reads, consumer_presence
from nova_nodb_scheduler.nova_adapter.placement.allocations import (
    placement_calls,
    placement_replies,
)
from nova_nodb_scheduler.nova_adapter.reporting import nova_tables
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import store_snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer.settlement import lapsed_claims


@attrs.frozen
class SuspectedClaim:
    """A claim that tells who wrote a consumer's allocation on a host.

    :param host: uuid of the node
    :param lapsed: its lease ended; else it is confirmed
    """

    consumer: str
    host: str
    held: model.HeldClaim
    lapsed: bool


def find_suspects(snapshot: snapshot_module.Snapshot) -> dict[str, list[SuspectedClaim]]:
    """Return the suspects by consumer; none of those who are at work still.

    Of a confirmed claim whose server or migration is known none is suspected, unless that
    server stands elsewhere.
    """
    found: dict[str, list[SuspectedClaim]] = {}
    at_work: set[str] = set()
    for record in _records(snapshot):
        for consumer, held in record.claims.items():
            if held.state is model.ClaimState.PENDING:
                # Its lease runs, or its end is to be noted still.
                at_work.add(consumer)
            elif is_suspicious(snapshot, consumer, record.host):
                found.setdefault(consumer, []).append(
                    SuspectedClaim(consumer, record.host, held, False)
                )
        for consumer, held in record.lapsed.items():
            found.setdefault(consumer, []).append(SuspectedClaim(consumer, record.host, held, True))
    return {name: suspects for name, suspects in found.items() if name not in at_work}


def find_lost(former: snapshot_module.Snapshot) -> Iterator[SuspectedClaim]:
    """Yield what claims told that a back end lost, of allocations that may be nobody's.

    Those of schedulers: of what a conductor wrote nothing is ever deleted, whoever tells.

    :param former: of the store, before it was emptied
    """
    for record in _records(former):
        claims = [(name, held, False) for name, held in record.claims.items()]
        claims += [(name, held, True) for name, held in record.lapsed.items()]
        for consumer, held, lapsed in claims:
            is_conductors = held.writer.startswith(f"{lapsed_claims.CONDUCTOR}:")
            if not is_conductors and not is_known(former, consumer):
                yield SuspectedClaim(consumer, record.host, held, lapsed)


def _records(snapshot: snapshot_module.Snapshot) -> Iterator[model.ClaimRecord]:
    view = snapshot.namespace(known_namespaces.CLAIM_RECORDS.name)
    for host in view.keys():  # noqa: SIM118 - a view is no mapping
        record = view.digest(host)
        if record is not None and not isinstance(record, errors.InvalidRecord):
            yield record


def is_known(snapshot: snapshot_module.Snapshot, consumer: str) -> bool:
    """Say whether states in memory have a server of that uuid, or a migration.

    One in cell0 is no server of any host.
    """
    migrations = snapshot.namespace(known_namespaces.MIGRATIONS.name)
    return bool(migrations.lookup("instance", consumer)) or any(
        nova_tables.cell_key(consumer, cell) in view
        for view in (snapshot.namespace(known_namespaces.INSTANCES.name), migrations)
        for cell in view.vocabulary("cell").texts()
        if cell != consumer_presence.CELL0
    )


def is_suspicious(snapshot: snapshot_module.Snapshot, consumer: str, node: str) -> bool:
    """Say whether states in memory do not explain an allocation: nobody, or one elsewhere.

    :param node: uuid of the compute node that it is on; another provider's explains nothing
    """
    if not is_known(snapshot, consumer):
        return True
    own = snapshot.namespace(known_namespaces.COMPUTE_NODES.name)
    place = own.indexed(node, "cell_host")
    if place is None or snapshot.namespace(known_namespaces.MIGRATIONS.name).lookup(
        "instance", consumer
    ):
        return False
    instances = snapshot.namespace(known_namespaces.INSTANCES.name)
    keys = [nova_tables.cell_key(consumer, cell) for cell in instances.vocabulary("cell").texts()]
    places = {instances.indexed(key, "cell_host") for key in keys} - {None}
    state = own.state(node)
    if not places or place in places or state is None:
        return False
    name = state["row"]["hypervisor_hostname"]
    rows = [found.state["row"] for key in keys if (found := instances.get(key))]
    # A bare metal node goes from host to host without its server's row.
    return not any(row.get("task_state") or row.get("node") == name for row in rows)


def cells_of_hosts(snapshot: snapshot_module.Snapshot) -> frozenset[str]:
    """Return the cells that hosts in memory belong to."""
    view = snapshot.namespace(known_namespaces.COMPUTE_NODES.name)
    if not len(view):
        return frozenset()
    vocabulary = view.vocabulary("cell")
    return frozenset(vocabulary.text(code) for code in np.unique(view.column("cell")).tolist())


class AllocationKind(enum.Enum):
    """What stands behind an allocation."""

    #: Nothing is allocated, or by others than the suspects.
    NOTHING = "nothing"
    #: A server on that host; or one that was evacuated from it, whose nova-compute ends
    #: what it left there as it begins again.
    SERVED = "served"
    #: A server or a migration that is under way.
    UNDER_WAY = "under way"
    ABSENT = "absent"
    BURIED = "buried in cell0"
    ELSEWHERE = "elsewhere"
    ENDED_MIGRATION = "ended migration"
    UNPROVED = "not proved"


#: What an operator is to know of.
ORPHANS = (
    AllocationKind.ABSENT,
    AllocationKind.BURIED,
    AllocationKind.ELSEWHERE,
    AllocationKind.ENDED_MIGRATION,
)


@attrs.frozen
class JudgedAllocation:
    """One consumer's allocation, and what stands behind it.

    :param amounts: by provider and resource class
    :param generation: of the consumer; None where nothing is allocated
    :param project_id: of the consumer, like ``user_id``
    :param found: where its server or migration is; None where nobody looked
    :param wrote: the suspects whose claim is what is allocated
    """

    consumer: str
    kind: AllocationKind
    amounts: placement_replies.Amounts = attrs.field(factory=dict)
    generation: int | None = None
    project_id: str = ""
    user_id: str = ""
    found: consumer_presence.ConsumerPresence | None = None
    wrote: Sequence[SuspectedClaim] = ()


def is_for_nobody(judged: JudgedAllocation, gone: Callable[[model.HeldClaim], bool]) -> bool:
    """Say whether an allocation was made for a server that nobody will ever start.

    Its claim must have written it. An absent server may be about to come as long as
    that claim's writer lives and is at work for it; one in cell0 never gets to a host.
    """
    if not judged.wrote:
        return False
    return judged.kind is AllocationKind.BURIED or (
        judged.kind is AllocationKind.ABSENT and all(gone(each.held) for each in judged.wrote)
    )


def is_over(judged: JudgedAllocation) -> bool:
    """Say whether there is nothing to end: a server is on that host, or nothing is allocated."""
    return judged.kind in (AllocationKind.NOTHING, AllocationKind.SERVED)


class OrphanJudge:
    """Judges consumers; any thread. Blocks for requests, and some statements a cell.

    :param posts: speaks to Placement
    """

    def __init__(self, posts: placement_calls.AllocationCalls) -> None:
        self._posts = posts

    def judge(
        self,
        suspected: Mapping[str, Sequence[SuspectedClaim]],
        snapshot: snapshot_module.Snapshot,
        on: Mapping[str, Collection[str]] | None = None,
        *,
        budget: allocation_reads.CallBudget | None = None,
    ) -> dict[str, JudgedAllocation]:
        """Say of each consumer what stands behind its allocation.

        :param suspected: claims by consumer, in the order in which they are judged
        :param on: by consumer the hosts on which an allocation counts that no claim
            explains; none where none is given
        :param budget: those that it does not suffice for are left out; some hundred at most.
            All are judged where none is given
        """
        on = on or {}
        hosts = {
            consumer: {each.host for each in claims}.union(on.get(consumer, ()))
            for consumer, claims in suspected.items()
        }
        reads = allocation_reads.AllocationReads(self._posts, hosts.values(), budget)
        judged: dict[str, JudgedAllocation] = {}
        for consumer, claims in suspected.items():
            others = on.get(consumer, ())
            amounts = reads.listed(consumer, hosts[consumer])
            if amounts is not None and _is_nothing(claims, amounts, others):
                judged[consumer] = JudgedAllocation(consumer, AllocationKind.NOTHING)
                continue
            held = reads.held(consumer)
            if held is not None:
                judged[consumer] = _read(consumer, held, claims, others)
        looked = [name for name, each in judged.items() if each.generation is not None]
        if looked:
            places = consumer_presence.find(looked, cells_of_hosts(snapshot))
            for name in looked:
                found = places[name]
                kind = _kind(found, judged[name], snapshot, on.get(name, ()))
                judged[name] = attrs.evolve(judged[name], kind=kind, found=found)
        return judged

    def delete(self, judged: JudgedAllocation) -> bool:
        """Remove an allocation as it was judged; False where that is not known to be done.

        Whatever was written for the consumer since stays.
        """
        assert judged.generation is not None  # nothing else is to be deleted
        server = placement_replies.NewServer(
            judged.consumer, {"allocations": {}}, judged.project_id, judged.user_id
        )
        return isinstance(
            self._posts.empty([(server, judged.generation)]), placement_replies.DoneReply
        )


def _read(
    consumer: str,
    held: placement_calls.HeldAllocation | placement_replies.Reply,
    claims: Sequence[SuspectedClaim],
    on: Collection[str],
) -> JudgedAllocation:
    if not isinstance(held, placement_calls.HeldAllocation):
        found = consumer_presence.ConsumerPresence(
            consumer_presence.ConsumerPlace.UNPROVED, detail=f"Placement: {_text(held)}"
        )
        return JudgedAllocation(consumer, AllocationKind.UNPROVED, found=found)
    if _is_nothing(claims, held.amounts, on):
        return JudgedAllocation(consumer, AllocationKind.NOTHING)
    body: Mapping[str, Any] = held.body
    return JudgedAllocation(
        consumer,
        AllocationKind.UNPROVED,
        held.amounts,
        body["consumer_generation"],
        str(body["project_id"]),
        str(body["user_id"]),
        wrote=_wrote(claims, held.amounts),
    )


def _is_nothing(
    claims: Sequence[SuspectedClaim], amounts: placement_replies.Amounts, on: Collection[str]
) -> bool:
    return not _wrote(claims, amounts) and not any(amounts.get(host) for host in on)


def _wrote(
    claims: Sequence[SuspectedClaim], amounts: placement_replies.Amounts
) -> list[SuspectedClaim]:
    """Return the claims that are what is allocated: another amount, or host, is another's write."""
    return [
        each for each in claims if dict(amounts.get(each.host, {})) == dict(each.held.resources)
    ]


def _text(reply: Any) -> str:
    return str(getattr(reply, "text", "") or reply)


def _kind(
    found: consumer_presence.ConsumerPresence,
    judged: JudgedAllocation,
    snapshot: snapshot_module.Snapshot,
    on: Collection[str],
) -> AllocationKind:
    where = found.where
    if (
        where
        in (
            consumer_presence.ConsumerPlace.BUILD_REQUEST,
            consumer_presence.ConsumerPlace.MIGRATION,
        )
        or found.builds
    ):
        return AllocationKind.UNDER_WAY
    if where is consumer_presence.ConsumerPlace.INSTANCE:
        if found.host and _is_served(found, judged, snapshot, on):
            return AllocationKind.SERVED
        if found.host and found.moves:
            return AllocationKind.UNDER_WAY
        return (
            AllocationKind.BURIED
            if found.cell == consumer_presence.CELL0
            else AllocationKind.ELSEWHERE
        )
    return {
        consumer_presence.ConsumerPlace.ABSENT: AllocationKind.ABSENT,
        consumer_presence.ConsumerPlace.ENDED_MIGRATION: AllocationKind.ENDED_MIGRATION,
    }.get(where, AllocationKind.UNPROVED)


def _is_served(
    found: consumer_presence.ConsumerPresence,
    judged: JudgedAllocation,
    snapshot: snapshot_module.Snapshot,
    on: Collection[str],
) -> bool:
    """Say whether a server is where the suspects wrote, or where an allocation counts.

    What was left on one host may be doubled up by who places the server on another one.

    :param on: hosts on which an allocation counts; those that are no compute nodes tell nothing
    """
    if judged.wrote:
        return all(_is_on(snapshot, each.host, found) for each in judged.wrote)
    nodes = [each for each in judged.amounts.keys() & set(on) if _place(snapshot, each)]
    if nodes:
        return all(_is_on(snapshot, each, found) for each in nodes)
    return any(_is_on(snapshot, each, found) for each in judged.amounts)


def _is_on(
    snapshot: snapshot_module.Snapshot, node: str, found: consumer_presence.ConsumerPresence
) -> bool:
    """Say whether a compute node is a server's, or of a host that it was evacuated from.

    By its name, too: a bare metal node goes from host to host without its server's row.
    """
    place = _place(snapshot, node)
    if place is None or place.cell != found.cell:
        return False
    return place.host in (found.host, *found.evacuated_from) or place.node == found.node


@attrs.frozen
class _Place:
    """Where a compute node is.

    :param node: its name
    """

    cell: str
    host: str
    node: str


def _place(snapshot: snapshot_module.Snapshot, node: str) -> _Place | None:
    state = snapshot.namespace(known_namespaces.COMPUTE_NODES.name).state(node)
    if state is None:
        return None
    row = state["row"]
    return _Place(str(state["cell"]), str(row["host"]), str(row["hypervisor_hostname"]))
