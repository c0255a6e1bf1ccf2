# SPDX-License-Identifier: Apache-2.0
"""What is said of a request that waits: whether it would find hosts now, and what is missing.

The plugin asks of requests as their payloads have them, the simulator of made ones; how
what is granted and does not show yet is taken off is the same for both.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.model import pending, requests
from nova_nodb_scheduler.scheduling.frame import host_frame
from nova_nodb_scheduler.scheduling.pipeline import engine as engine_module
from nova_nodb_scheduler.scheduling.pipeline import planning

#: Hosts that shortfalls are told of, or that one is chosen of to be held.
MOST_HOSTS = 256

#: What is granted on hosts and does not show yet, by uuid.
Amounts: TypeAlias = Mapping[str, Mapping[str, int]]


@attrs.frozen
class ServersFit:
    """There is room for all servers.

    :param hosts: node uuids, one for each server, in their order
    """

    hosts: tuple[str, ...]


@attrs.frozen
class NoRoom:
    """There is not room for all servers."""


@attrs.frozen
class NotTold:
    """Memory cannot tell.

    :param reason: a few words
    """

    reason: str


Fit: TypeAlias = ServersFit | NoRoom | NotTold


class HostsUnproved(Exception):
    """What memory holds may be old: nobody is woken by it."""


@attrs.frozen(eq=False)
class RoomShortage:
    """Hosts that would take a server of a request if they had room.

    :param uuids: where the least would have to be freed, in order
    :param resources: names of the columns of the others
    :param free: shape (n, resources)
    :param whole: alike, of the hosts when they are empty
    :param possible: how many hosts there are in all
    """

    uuids: tuple[str, ...]
    resources: tuple[str, ...]
    free: npt.NDArray[np.int64]
    whole: npt.NDArray[np.int64]
    possible: int


class FitPlanner(Protocol):
    """Plans requests that wait, for one worker; any thread, one at a time."""

    def view(self) -> Any:
        """Return a view of what is proved now, for the other calls.

        :raises HostsUnproved: something that any request looks at is not
        """

    def fit(
        self,
        request: pending.PendingRequest,
        view: Any,
        *,
        among: Collection[str] | None = None,
        charged: Amounts | None = None,
    ) -> Fit:
        """Say whether all servers of a request that are not sent yet would find hosts.

        :param among: uuids of the only hosts to look at; None for all
        :raises HostsUnproved: not any more
        """

    def shortage(
        self, request: pending.PendingRequest, most: int = MOST_HOSTS
    ) -> RoomShortage | NotTold:
        """Return hosts that would take one server of a request if they had room."""


def fit_beside(
    engine: engine_module.Engine,
    request: pending.PendingRequest,
    charged: Amounts,
    place: Callable[[frozenset[str]], tuple[str, ...] | None],
) -> Fit:
    """Say whether a request's servers fit beside what is granted and does not show yet.

    :param place: returns a host for each server, without some hosts; None where one finds none
    """
    # Grants leave no room there for one server.
    without = overfull(engine, request.needs, charged, tuple(charged))
    for _ in range(2):
        hosts = place(without)
        if hosts is None:
            return NoRoom()
        too_many = overfull(engine, request.needs, charged, hosts)
        if not too_many:
            return ServersFit(hosts)
        # Grants in flight leave room for fewer of its servers: others may have more.
        without = without | too_many
    return NoRoom()


def overfull(
    engine: engine_module.Engine, needs: Mapping[str, int], charged: Amounts, hosts: Sequence[str]
) -> frozenset[str]:
    """Return the hosts on which grants leave no room for so many servers.

    :param hosts: one for each server
    """
    found = set()
    with engine.lock:
        for uuid, servers in collections.Counter(hosts).items():
            amounts = charged.get(uuid)
            row = engine.frame.row_of(uuid) if amounts else None
            if row is None or amounts is None:
                continue
            for name, need in needs.items():
                has = engine.frame.resource(name)
                if has is None:
                    continue
                free = has.capacity.item(row) - has.used.item(row)
                if free - amounts.get(name, 0) < servers * need:
                    found.add(uuid)
    return frozenset(found)


def walk(
    plan: planning.Plan, servers: Sequence[str], about: Callable[[str], None]
) -> tuple[str, ...] | None:
    """Return a host for each server, in the plan alone; None if one finds none.

    :param about: told of each server before its host is looked for
    """
    hosts = []
    for server in servers:
        about(server)
        best = plan.best(1)
        if not best:
            return None
        hosts.append(best[0].uuid)
        if len(servers) > 1:
            plan.take(best[0], server)
    return tuple(hosts)


def without_amounts(asked: requests.Request) -> requests.Request:
    """Return a request that asks for the same but takes no room."""
    queries = tuple(attrs.evolve(query, resources={}) for query in asked.queries or ())
    flavor = attrs.evolve(asked.flavor, vcpus=0, memory_mb=0, root_gb=0, ephemeral_gb=0, swap_mb=0)
    return attrs.evolve(
        asked,
        queries=queries,
        flavor=flavor,
        needs_numa=False,
        needs_pci=False,
        numa_cells=(),
        devices=(),
        fitted={},
    )


def shortage(
    engine: engine_module.Engine,
    asked: requests.Request,
    needs: Mapping[str, int],
    most: int,
) -> RoomShortage:
    """Return hosts that would take a server if they had room. A pass over all hosts."""
    with engine.lock:
        rows = engine.passing(without_amounts(asked))
        return _shortage(engine.frame, rows, needs, most)


def _shortage(
    frame: host_frame.HostFrame,
    rows: npt.NDArray[np.intp],
    needs: Mapping[str, int],
    most: int,
) -> RoomShortage:
    names = tuple(name for name, amount in needs.items() if amount)
    whole = np.zeros((len(rows), len(names)), np.int64)
    used = np.zeros((len(rows), len(names)), np.int64)
    for place, name in enumerate(names):
        has = frame.resource(name)
        if has is not None:
            whole[:, place] = np.maximum(has.capacity[rows], 0)
            used[:, place] = has.used[rows]
    asked = np.array([needs[name] for name in names], np.int64)
    enough = (whole >= asked).all(axis=1)
    rows, whole, free = rows[enough], whole[enough], (whole - used)[enough]
    missing = np.maximum(asked - free, 0) / asked
    order = np.lexsort((missing.sum(axis=1), missing.max(axis=1, initial=0.0)))[:most]
    uuids = [place.uuid for place in frame.places_of(rows[order].tolist()) if place is not None]
    return RoomShortage(tuple(uuids), names, free[order], whole[order], len(rows))
