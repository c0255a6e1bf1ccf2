# SPDX-License-Identifier: Apache-2.0
"""How much waits, in all and by class, project and flavor, and whether more may."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from nova_nodb_scheduler.model import pending


@attrs.frozen
class Waiting:
    """What waits.

    :param amounts: by resource class, of all servers together
    """

    requests: int
    servers: int
    amounts: Mapping[str, int]


NOTHING = Waiting(0, 0, {})


@attrs.frozen
class QueueFull:
    """No more may wait.

    :param project: whose bound is reached; empty: the bound in all
    :param servers: that wait there
    :param most: that may
    """

    project: str
    servers: int
    most: int


def is_parked(request: pending.PendingRequest) -> bool:
    """Say whether a request counts as one that waits: it was put to wait, and has no host yet."""
    if request.state is pending.PendingState.WAITING:
        return True
    if request.placed_at or request.state is pending.PendingState.BUILDING:
        return False
    return request.parked_at > 0


class _Sum:
    __slots__ = ("amounts", "requests", "servers")

    def __init__(self) -> None:
        self.requests = 0
        self.servers = 0
        self.amounts: dict[str, int] = {}

    def add(self, request: pending.PendingRequest, sign: int) -> None:
        servers = sign * len(request.unsent)
        self.requests += sign
        self.servers += servers
        for name, amount in request.needs.items():
            self.amounts[name] = self.amounts.get(name, 0) + servers * amount

    def value(self) -> Waiting:
        return Waiting(
            self.requests,
            self.servers,
            {name: amount for name, amount in self.amounts.items() if amount},
        )


class Backlog:
    """Sums; O(resource classes) a request. Not safe for threads.

    :param most: servers that may wait in all
    :param most_per_project: servers of one project that may
    """

    def __init__(self, most: int, most_per_project: int) -> None:
        self._most = most
        self._most_per_project = most_per_project
        self._all = _Sum()
        self._by_class: dict[str, _Sum] = {}
        self._by_project: dict[str, _Sum] = {}
        self._by_flavor: dict[str, _Sum] = {}

    def add(self, request: pending.PendingRequest) -> None:
        """Count a request."""
        self._count(request, 1)

    def remove(self, request: pending.PendingRequest) -> None:
        """Count a request no longer; the very one that was counted."""
        self._count(request, -1)

    def full(self, project: str, servers: int) -> QueueFull | None:
        """Say whether so many more servers of a project would be too many; O(1)."""
        if self._all.servers + servers > self._most:
            return QueueFull("", self._all.servers, self._most)
        own = self._by_project.get(project)
        own_servers = own.servers if own is not None else 0
        if own_servers + servers > self._most_per_project:
            return QueueFull(project, own_servers, self._most_per_project)
        return None

    def total(self) -> Waiting:
        """Return what waits in all: what a cloud had to have in addition."""
        return self._all.value()

    def of_project(self, project: str) -> Waiting:
        """Return what waits of one project."""
        found = self._by_project.get(project)
        return NOTHING if found is None else found.value()

    def of_class(self, name: str) -> Waiting:
        """Return what waits of one class."""
        found = self._by_class.get(name)
        return NOTHING if found is None else found.value()

    def by_class(self) -> dict[str, Waiting]:
        """Return what waits by class; O(classes)."""
        return _values(self._by_class)

    def by_project(self) -> dict[str, Waiting]:
        """Return what waits by project id; O(projects)."""
        return _values(self._by_project)

    def by_flavor(self) -> dict[str, Waiting]:
        """Return what waits by flavor's name; O(flavors)."""
        return _values(self._by_flavor)

    def _count(self, request: pending.PendingRequest, sign: int) -> None:
        self._all.add(request, sign)
        for sums, name in (
            (self._by_class, request.priority_class),
            (self._by_project, request.project_id),
            (self._by_flavor, request.flavor),
        ):
            found = sums.get(name)
            if found is None:
                found = sums[name] = _Sum()
            found.add(request, sign)
            if not found.requests:
                del sums[name]


def _values(sums: Mapping[str, _Sum]) -> dict[str, Waiting]:
    return {name: each.value() for name, each in sums.items()}
