# SPDX-License-Identifier: Apache-2.0
"""The protocol of places in server groups, and its rules: what may become of a group's record.

A member of a server group claims a place in the group, then one on the host.

The naive way, to look at the group's members and then claim a host, lets two
schedulers put two members of an anti-affinity group on one host, each having
looked before the other claimed (measured on stock Nova: 7 of 12 servers in
ERROR, 21 reschedules). Here the group's policy is checked by a
compare-and-set on the group's own record, which names pending members too.

Portable protocol, one key at a time:

1. add a pending member to the group's record (the policy is checked here);
2. take the claim on the host;
3. (the caller writes the allocation;)
4. confirm the member, then the claim.

Undone in reverse: the claim, then the member. A crash after 1 leaves a member
that ends with its lease. A crash between the two confirms leaves a member
without a claim, which counts too much until a reconciliation; the other order
would leave a server without a member, and break the policy. With a strict
affinity policy the first member to get into the record decides the host.

As in :mod:`claim_rules`, the rules are without any I/O: each takes the record as read, gives a
proposal for the compare-and-set on it, and is idempotent.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import attrs

from nova_nodb_scheduler.model import claims, records
from nova_nodb_scheduler.model import group_claims as model
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.claims import claim_rules
from nova_nodb_scheduler.synchronizer.records import record_editor

T = TypeVar("T")


def group_key(group_uuid: str) -> records.RecordKey:
    """Return the key of a server group's record."""
    return records.RecordKey(known_namespaces.GROUP_CLAIMS.name, group_uuid)


def on_group(
    key: records.RecordKey, rule: Callable[[model.GroupRecord], record_editor.Proposal[T]]
) -> record_editor.Propose[T]:
    """Return a proposer that has a rule look at the record of a group."""
    return lambda state, version: rule(model.GroupRecord.from_state(key.key, state, version))


#: Hosts by consumer, as the authority shows the group's servers.
Known = Mapping[str, Collection[str]]


@attrs.frozen
class Joining:
    """The circumstances of one call that takes places.

    :param known: members that the authority shows, as of the view
    :param place_of: from a node's uuid to its host's name, and anything else to itself:
        a release before this one noted some members by their node
    :param lost: members that the back end lost, and that may be in no record again
    """

    group: model.ServerGroup
    ids: Mapping[str, str]
    writer: str
    known: Known
    view: records.Cursor
    now_seconds: float
    deadline_seconds: float
    place_of: Callable[[str], str] = str
    lost: Mapping[model.Place, model.Member] = attrs.field(factory=dict)


@attrs.frozen
class PolicyBroken:
    """A place that would break the group's policy, or that the view is too old for.

    :param hosts: that rule the place out: the full ones, or those of the group
    """

    refused: claims.GrantRefused
    hosts: frozenset[str] = frozenset()


def join_each(
    record: model.GroupRecord, wanted: Sequence[claims.Claim], joining: Joining
) -> record_editor.Proposal[tuple[str | PolicyBroken, ...]]:
    """Add each claim's place by itself as a pending member; answers with their ids."""
    stale = claim_rules.stale_view(record.settled, joining.view)
    if stale:
        refused = (
            claims.GrantRefused(each, claims.RefusalReason.STALE_VIEW, stale) for each in wanted
        )
        return record_editor.Proposal(tuple(map(PolicyBroken, refused)))
    # What is judged by is written with what it leads to: whoever comes next knows it, too.
    record = record.with_lost(joining.lost)
    record = record.without(expired(record, joining.now_seconds))
    answers = []
    for claim in wanted:
        answer, record = _join_one(record, claim, joining)
        answers.append(answer)
    joined = any(isinstance(answer, str) for answer in answers)
    return record_editor.Proposal(tuple(answers), record.to_state() if joined else None)


def _join_one(
    record: model.GroupRecord, claim: claims.Claim, joining: Joining
) -> tuple[str | PolicyBroken, model.GroupRecord]:
    named = _by_name(record, claim, joining.place_of)
    broken = policy_broken(named, claim, joining.group, joining.known)
    if broken:
        refused = claims.GrantRefused(claim, claims.RefusalReason.GROUP_POLICY, broken)
        return PolicyBroken(refused, _in_the_way(named, claim, joining)), record
    place = claim.group_place
    member = record.members.get(place)
    if member is None:
        member = model.Member(
            state=claims.ClaimState.PENDING,
            claim_id=joining.ids[claim.consumer],
            writer=joining.writer,
        )
    # As a claim, a confirmed member is written anew too.
    deadline = member.deadline_seconds
    if member.state is claims.ClaimState.PENDING:
        deadline = max(deadline or 0.0, joining.deadline_seconds)
    member = attrs.evolve(member, deadline_seconds=deadline, confirmed_by=None)
    return member.claim_id, record.with_member(place, member)


def _by_name(
    record: model.GroupRecord, claim: claims.Claim, place_of: Callable[[str], str]
) -> model.GroupRecord:
    """Return a record as it is judged: its members by the names of their hosts, as far as known.

    It is written as it was: whoever noted a member finds it by what he called it.
    """
    own = {claim.host: claim.group_place[1]}
    members = {
        (consumer, own.get(host) or place_of(host)): member
        for (consumer, host), member in record.members.items()
    }
    return (
        record if members.keys() == record.members.keys() else attrs.evolve(record, members=members)
    )


def _in_the_way(record: model.GroupRecord, claim: claims.Claim, joining: Joining) -> frozenset[str]:
    others = _hosts_of_others(record, claim.consumer, joining.known)
    counts = collections.Counter(host for hosts in others.values() for host in hosts)
    if joining.group.policy is model.Policy.ANTI_AFFINITY:
        most = joining.group.max_server_per_host
        return frozenset(host for host, count in counts.items() if count >= most)
    return frozenset(counts)


def policy_broken(
    record: model.GroupRecord, claim: claims.Claim, group: model.ServerGroup, known: Known
) -> str:
    """Say why a place breaks the group's policy; empty if it does not.

    Anti-affinity: the consumer's own places do not count against it.

    Affinity: the host must be one on which the group is. While a member moves
    (the record has it, and it is on more hosts than one) nobody can know which
    of them will be left, so nobody joins; nor does a consumer whose own claim
    elsewhere is still pending.

    Soft policies weigh hosts, they never rule one out.
    """
    if group.policy is model.Policy.ANTI_AFFINITY:
        others = _hosts_of_others(record, claim.consumer, known)
        there = sum(claim.group_place[1] in hosts for hosts in others.values())
        if there >= group.max_server_per_host:
            return f"{there} of at most {group.max_server_per_host} members are there"
    elif group.policy is model.Policy.AFFINITY:
        return _affinity_broken(record, claim, known)
    return ""


def _affinity_broken(record: model.GroupRecord, claim: claims.Claim, known: Known) -> str:
    for (consumer, host), member in record.members.items():
        if (consumer, member.state) == (claim.consumer, claims.ClaimState.PENDING):
            if host != claim.group_place[1]:
                return f"its own claim on {host} is pending"
    others = _hosts_of_others(record, claim.consumer, known)
    moving = {consumer for consumer, _ in record.members}
    for consumer, hosts in others.items():
        if consumer in moving and hosts != {claim.group_place[1]}:
            return f"{consumer} is on, or on its way to, {', '.join(sorted(hosts))}"
    decided: set[str] = set().union(*others.values())
    if decided and claim.group_place[1] not in decided:
        return f"the group is on {', '.join(sorted(decided))}"
    return ""


def _hosts_of_others(record: model.GroupRecord, claimer: str, known: Known) -> dict[str, set[str]]:
    """Return the union of the record and of what is known, without the claimer."""
    others: dict[str, set[str]] = {}
    for consumer, host in record.members:
        others.setdefault(consumer, set()).add(host)
    for consumer, hosts in known.items():
        others.setdefault(consumer, set()).update(hosts)
    others.pop(claimer, None)
    return others


def expired(record: model.GroupRecord, now_seconds: float) -> tuple[model.Place, ...]:
    """Return the places whose lease has ended, sorted."""
    return tuple(sorted(p for p, member in record.members.items() if member.expired(now_seconds)))


def confirm_each(
    record: model.GroupRecord, grants: Sequence[model.GroupGranted]
) -> record_editor.Proposal[tuple[claims.Granted | claims.Gone, ...]]:
    """Turn pending members into confirmed ones, each by itself."""
    answers, after = [], record
    for granted in grants:
        answer, after = _confirm_one(after, granted)
        answers.append(answer)
    return record_editor.Proposal(tuple(answers), after.to_state() if after is not record else None)


def _confirm_one(
    record: model.GroupRecord, granted: model.GroupGranted
) -> tuple[claims.Granted | claims.Gone, model.GroupRecord]:
    claim = granted.grant.claim
    place = claim.group_place
    member = record.members.get(place)
    if member is None or member.claim_id != granted.member_id:
        return claims.Gone(claim, granted.grant.claim_id), record
    if member.state is claims.ClaimState.CONFIRMED:
        return granted.grant, record
    standing = attrs.evolve(member, state=claims.ClaimState.CONFIRMED, deadline_seconds=None)
    return granted.grant, record.with_member(place, standing)


def leave_each(
    record: model.GroupRecord, ids: Mapping[model.Place, str]
) -> record_editor.Proposal[tuple[model.Place, ...]]:
    """Drop members by place and id, whatever their state; answers with those found."""
    dropped = tuple(
        place
        for place, member_id in ids.items()
        if (member := record.members.get(place)) is not None and member.claim_id == member_id
    )
    return record_editor.Proposal(dropped, record.without(dropped).to_state() if dropped else None)


def note_lost(
    record: model.GroupRecord, lost: Mapping[model.Place, model.Member]
) -> record_editor.Proposal[int]:
    """Add members that the back end lost, as they were; answers with how many it lacked."""
    noted = record.with_lost(lost)
    if noted is record:
        return record_editor.Proposal(0)
    return record_editor.Proposal(len(noted.members) - len(record.members), noted.to_state())


def confirmed(record: model.GroupRecord) -> tuple[model.Place, ...]:
    """Return the confirmed places, sorted."""
    return tuple(
        sorted(
            place
            for place, member in record.members.items()
            if member.state is claims.ClaimState.CONFIRMED
        )
    )


def settled(
    record: model.GroupRecord, places: Collection[model.Place], shown_version: int
) -> tuple[model.Place, ...]:
    """Return which of some places records of the authority up to a version settle."""
    return tuple(
        place
        for place in confirmed(record)
        if place in places and shown_version > (record.members[place].confirmed_by or shown_version)
    )
