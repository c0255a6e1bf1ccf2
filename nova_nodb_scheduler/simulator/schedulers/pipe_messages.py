# SPDX-License-Identifier: Apache-2.0
"""What the world and a scheduler's process say to each other through their pipe."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from nova_nodb_scheduler.simulator.scenario import workload

# -- from the world ----------------------------------------------------------------


@attrs.frozen
class Decide:
    """A request."""

    number: int
    flavor: workload.MadeFlavor
    servers: tuple[str, ...]
    project_id: str = workload.PROJECT
    #: Of a request that may wait: key and attempt of its record.
    attempt: tuple[str, int] | None = None


@attrs.frozen
class WakeRequests:
    """Look whom what happened helps; a :class:`Woken` is expected. For runs step by step."""


@attrs.frozen
class SettleClaims:
    """Settle the claims that can be settled now; for whoever has no thread for it."""


@attrs.frozen
class TellNotes:
    """Say what was noted and not told yet; a :class:`NotesTold` is expected."""


@attrs.frozen
class Stop:
    """Say goodbye."""


@attrs.frozen
class WriteAnswer:
    """What became of a :class:`WriteAllocations`: the servers that their hosts refused."""

    refused: frozenset[str]


@attrs.frozen
class ServerAllocations:
    """What a server has, by host uuid: the answer to a :class:`AskAllocations`."""

    by_host: Mapping[str, Mapping[str, int]]


# -- from a scheduler ----------------------------------------------------------------


@attrs.frozen
class Ready:
    """The whole cluster is known; requests may come.

    :param hosts: that are in the frame
    """

    hosts: int


@attrs.frozen
class Allocation:
    """What a server takes of a host."""

    server: str
    host_uuid: str
    resources: Mapping[str, int]


@attrs.frozen
class WriteAllocations:
    """Allocations to be written for a request; an :class:`WriteAnswer` is expected."""

    number: int
    allocations: tuple[Allocation, ...]


@attrs.frozen
class RemoveAllocations:
    """Allocations to be taken back, of those hosts only; an :class:`WriteAnswer` is expected."""

    number: int
    allocations: tuple[Allocation, ...]


@attrs.frozen
class WakeNotes:
    """What waking requests that wait took since it was told of last; seconds of the real clock.

    :param rounds: of each round that had a candidate, without the back end
    :param fits: of each plan that was made to see whether a request fits
    :param results: candidates, by what became of them
    :param parked: requests that the queues know of, at the most
    """

    rounds: tuple[float, ...] = ()
    fits: tuple[float, ...] = ()
    results: Mapping[str, int] = attrs.field(factory=dict)
    parked: int = 0


@attrs.frozen
class DispatchPending:
    """A grant: some conductor is to take the request. No answer is expected."""

    key: str
    attempt: int


@attrs.frozen
class Woken:
    """The answer to :class:`WakeRequests`.

    :param due_seconds: when time alone has something to do next, simulated
    """

    due_seconds: float | None


@attrs.frozen
class Decided:
    """How a request ended.

    :param outcome: one of those of :mod:`.simulated_scheduler`
    :param hosts: uuids, of each server in their order; empty unless placed
    :param seconds: real, from the request's arrival at the scheduler
    :param chosen_at_seconds: simulated time at which the hosts were chosen
    :param version: place in the feed up to which the view had come
    :param reasons: how often a host was passed over, by why
    :param conflicts: claims that what others had written left no way for
    :param writes_lost: compare-and-sets on claims that others won, by what won
        (:class:`.backend_line.Cause`)
    :param settling_writes_lost: those of the settling of claims since the last answer
    :param unproved: who reports the hosts' heartbeats was silent
    :param claims: seconds of each take that was granted, and of its confirm
    :param applied: see :class:`NotesTold`
    """

    number: int
    outcome: str
    hosts: tuple[str, ...]
    seconds: float
    chosen_at_seconds: float
    version: int
    reasons: Mapping[str, int]
    conflicts: int
    writes_lost: Mapping[str, int]
    unproved: bool
    settling_writes_lost: int = 0
    claims: tuple[tuple[float, float], ...] = ()
    applied: tuple[tuple[float, int], ...] = ()
    wakes: WakeNotes = WakeNotes()


@attrs.frozen
class NotesTold:
    """The answer to :class:`TellNotes`.

    :param applied: monotonic seconds, and up to which place in the feed all was
        in the store by then; what was noted since the last answer
    """

    applied: tuple[tuple[float, int], ...]
    wakes: WakeNotes = WakeNotes()


@attrs.frozen
class ClaimsSettled:
    """The answer to :class:`SettleClaims`."""


@attrs.frozen
class AskAllocations:
    """What has this server? By the second pipe, from the thread that settles claims."""

    server: str


@attrs.frozen
class Failed:
    """A fault of the simulator or of what it runs; the process ends."""

    text: str
