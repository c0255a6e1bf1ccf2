# SPDX-License-Identifier: Apache-2.0
"""Nova's aggregates as facts, and which of them each host is in, as they change one by one."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces as namespaces_model
from nova_nodb_scheduler.scheduling.frame import host_facts
from nova_nodb_scheduler.scheduling.namespaces import record_fields


@attrs.frozen
class AggregateFacts:
    """One of Nova's aggregates, and the hosts in it.

    :param fault: why its record cannot be understood; None if it can. Where a
        request may go is then unknown for its hosts
    """

    aggregate: host_facts.HostAggregate
    hosts: frozenset[str]
    fault: str | None = None


@functools.lru_cache(maxsize=4096)
def _one_of_each(uuids: tuple[str, ...]) -> tuple[str, ...]:
    """Return one and the same tuple for equal ones: hosts of a kind are many."""
    return uuids


class AggregateMemberships:
    """All aggregates, and their uuids by host."""

    def __init__(self) -> None:
        self._aggregates: dict[str, AggregateFacts] = {}
        self._of: dict[str, tuple[str, ...]] = {}
        #: Uuids of aggregates that have a fault.
        self._faulty: set[str] = set()

    def aggregates(self) -> list[host_facts.HostAggregate]:
        """Return all aggregates, in no order."""
        return [each.aggregate for each in self._aggregates.values()]

    def of(self, host: str) -> tuple[str, ...]:
        """Return the uuids of a host's aggregates, in the order of their ids."""
        return self._of.get(host, ())

    @property
    def faultless(self) -> bool:
        """Whether every aggregate's record was understood."""
        return not self._faulty

    def fault(self, host: str) -> str | None:
        """Return why a host's aggregates are not known; None if they are."""
        if not self._faulty:
            return None
        return next(
            (self._aggregates[uuid].fault for uuid in self.of(host) if uuid in self._faulty), None
        )

    def clear(self) -> None:
        """Forget all."""
        self._aggregates.clear()
        self._of.clear()
        self._faulty.clear()

    def take(self, uuid: str, facts: AggregateFacts | None) -> frozenset[str]:
        """Take an aggregate over, or forget it for None; return the hosts it changes."""
        former = self._aggregates.pop(uuid, None)
        self._faulty.discard(uuid)
        before = former.hosts if former is not None else frozenset()
        after = facts.hosts if facts is not None else frozenset()
        if facts is not None:
            self._aggregates[uuid] = facts
            if facts.fault is not None:
                self._faulty.add(uuid)
        # What decides for all hosts of an aggregate, and not by membership.
        if (
            former is None
            or facts is None
            or (former.fault, former.aggregate.id) != (facts.fault, facts.aggregate.id)
        ):
            changed = before | after
        else:
            changed = before ^ after
        for host in changed:
            rest = [each for each in self._of.get(host, ()) if each != uuid]
            if host in after:
                rest.append(uuid)
                rest.sort(key=lambda each: (self._aggregates[each].aggregate.id, each))
            if rest:
                self._of[host] = _one_of_each(tuple(rest))
            else:
                self._of.pop(host, None)
        return changed


#: Major version of Nova's Aggregate object that is understood.
_OBJECT_MAJOR = "1"


def read_aggregate(record: str, uuid: str, state: Mapping[str, Any]) -> AggregateFacts:
    """Return an aggregate, with its fault if it has one.

    :param record: ``namespace/key``, for errors
    """
    whole = record_fields.RecordFields(record, state)
    try:
        whole.check_major(_OBJECT_MAJOR)
        row = whole.mapping("row")
        hosts = row.get("hosts")
        if hosts is None:
            raise row.wrong("hosts", "it is no list")
        return AggregateFacts(
            host_facts.HostAggregate(
                uuid, row.integer("id"), row.text("name"), row.texts("metadata")
            ),
            frozenset(hosts),
        )
    except errors.InvalidRecord as error:
        # The hosts are a column of the namespace: what they are, the store has checked.
        hosts = namespaces_model.value_at(state, ("row", "hosts")) or ()
        return AggregateFacts(host_facts.HostAggregate(uuid, 0), frozenset(hosts), str(error))
