# SPDX-License-Identifier: Apache-2.0
"""Server groups and who claims a place in them, as frozen values."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from types import NoneType
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims, records


class Policy(enum.Enum):
    """Nova's server group policies."""

    AFFINITY = "affinity"
    ANTI_AFFINITY = "anti-affinity"
    SOFT_AFFINITY = "soft-affinity"
    SOFT_ANTI_AFFINITY = "soft-anti-affinity"


@attrs.frozen
class ServerGroup:
    """A server group as the request names it.

    :param max_server_per_host: rule of the anti-affinity policy
    """

    uuid: str
    policy: Policy
    max_server_per_host: int = 1


@attrs.frozen
class Member:
    """A place that a consumer takes on a host of the group.

    The fields mean what those of :class:`claims.HeldClaim` mean.
    """

    state: claims.ClaimState
    claim_id: str
    writer: str
    deadline_seconds: float | None = None
    confirmed_by: int | None = None
    extra: Mapping[str, Any] = attrs.field(factory=dict)

    def expired(self, now_seconds: float) -> bool:
        """Say whether anyone may drop it. Until someone did, it counts."""
        return self.deadline_seconds is not None and self.deadline_seconds <= now_seconds

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Member:
        known = {name for name in attrs.fields_dict(cls) if name != "extra"}
        for name in ("deadline_seconds", "confirmed_by"):
            # Who would compare it would raise only then.
            if not isinstance(state.get(name), (int, float, NoneType)):
                raise TypeError(f"{name} is {state[name]!r}")
        return cls(
            state=claims.ClaimState(state["state"]),
            claim_id=state["claim_id"],
            writer=state["writer"],
            deadline_seconds=state.get("deadline_seconds"),
            confirmed_by=state.get("confirmed_by"),
            extra={name: value for name, value in state.items() if name not in known},
        )

    def to_state(self) -> dict[str, Any]:
        return {
            **self.extra,
            "state": self.state.value,
            "claim_id": self.claim_id,
            "writer": self.writer,
            "deadline_seconds": self.deadline_seconds,
            "confirmed_by": self.confirmed_by,
        }

    def as_read_at(self, version: int) -> Member:
        """Return the member with what its record's version says of its confirm.

        :param version: see :meth:`claims.HeldClaim.as_read_at`
        """
        if self.state is claims.ClaimState.CONFIRMED and self.confirmed_by is None and version:
            return attrs.evolve(self, confirmed_by=version)
        return self


#: A place: consumer and host, by :attr:`claims.Claim.place`. A server that moves
#: takes two.
Place = tuple[str, str]


@attrs.frozen
class GroupRecord:
    """The decoded state of a ``group_claims`` record.

    :param members: by place, pending ones included, whatever their lease
    :param settled: see :class:`claims.ClaimRecord`
    :param version: of its last write, 0 where there is none
    """

    uuid: str
    members: Mapping[Place, Member] = attrs.field(factory=dict)
    settled: records.Cursor | None = None
    extra: Mapping[str, Any] = attrs.field(factory=dict)
    version: int = attrs.field(default=0, eq=False)

    @classmethod
    def from_state(cls, uuid: str, state: Mapping[str, Any] | None, version: int) -> GroupRecord:
        """Read a state; None, or an empty one, is a group without members.

        :raises UndecodableRecord: it is none of members
        """
        if not state:
            return cls(uuid)
        try:
            return cls._read(uuid, state, version)
        except claims.MALFORMED as error:
            raise errors.UndecodableRecord(f"group_claims/{uuid}: {error!r}") from error

    @classmethod
    def _read(cls, uuid: str, state: Mapping[str, Any], version: int) -> GroupRecord:
        settled = state.get("settled")
        return cls(
            uuid=uuid,
            members={
                (consumer, host): Member.from_state(member).as_read_at(version)
                for consumer, hosts in state.get("members", {}).items()
                for host, member in hosts.items()
            },
            settled=records.Cursor(settled["epoch"], settled["version"]) if settled else None,
            extra={n: value for n, value in state.items() if n not in ("members", "settled")},
            version=version,
        )

    def to_state(self) -> dict[str, Any]:
        members: dict[str, dict[str, Any]] = {}
        for (consumer, host), member in self.members.items():
            members.setdefault(consumer, {})[host] = member.to_state()
        settled = self.settled
        return {
            **self.extra,
            "members": members,
            "settled": {"epoch": settled.epoch, "version": settled.version} if settled else None,
        }

    def with_member(self, place: Place, member: Member) -> GroupRecord:
        return attrs.evolve(self, members={**self.members, place: member})

    def without(self, places: Collection[Place]) -> GroupRecord:
        left = {place: member for place, member in self.members.items() if place not in places}
        return attrs.evolve(self, members=left)

    def with_lost(self, lost: Mapping[Place, Member]) -> GroupRecord:
        """Return the record with members that a back end lost; who has a place again keeps it."""
        absent = {place: member for place, member in lost.items() if place not in self.members}
        return attrs.evolve(self, members={**self.members, **absent}) if absent else self

    def settled_up_to(self, cursor: records.Cursor) -> GroupRecord:
        """Return the record with its settlement moved forward to a cursor."""
        before = self.settled
        if before is not None and before.epoch == cursor.epoch and before.version >= cursor.version:
            return self
        return attrs.evolve(self, settled=cursor)


@attrs.frozen
class GroupGranted:
    """A claim together with its place in a group.

    :param member_id: recognises the taking of the place
    """

    group: ServerGroup
    member_id: str
    grant: claims.Granted

    @property
    def group_uuid(self) -> str:
        return self.group.uuid
