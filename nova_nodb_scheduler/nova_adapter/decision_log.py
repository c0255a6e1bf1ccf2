# SPDX-License-Identifier: Apache-2.0
"""The last requests that a worker decided: what was chosen, refused, and why.

Written once per request, read when somebody asks about a server; nothing of it
outlives the process.
"""

from __future__ import annotations

import collections
import logging
import threading
from collections.abc import Sequence
from typing import Any

import attrs

from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts, decision_steps, planning

LOG = logging.getLogger(__name__)

#: Requests that are remembered.
KEPT = 1000

#: Refused hosts that are remembered of one request; of a storm of conflicts the
#: first ones tell as much as all.
_MAX_REFUSED = 100

#: How the counts name what hosts lack that all steps passed.
ROOM = "room left"

#: How candidates that came from memory are named; the others by the reason.
MEMORY = "memory"


@attrs.frozen
class ServerPlacement:
    """The host that a server was sent to.

    :param score: None where Nova chose among Placement's candidates
    """

    server: str
    uuid: str
    host: str
    node: str
    score: float | None


@attrs.frozen
class HostNotClaimed:
    """A host that was chosen for a server and could not be claimed."""

    server: str
    uuid: str
    host: str
    reason: str


class DecisionTrace:
    """What a request has come to so far. One thread; see :class:`DecisionLog`.

    :ivar counts: of the last plan
    :ivar chosen: by server, once all were claimed
    """

    __slots__ = ("chosen", "counts", "refused", "servers")

    def __init__(self) -> None:
        self.servers: Sequence[str] = ()
        self.counts: tuple[decision_steps.FilterCount, ...] = ()
        self.chosen: dict[str, chosen_hosts.Choice] = {}
        self.refused: list[HostNotClaimed] = []

    def refuse(self, server: str, chosen: chosen_hosts.Choice, reason: str) -> None:
        """Note that a host could not be claimed."""
        if len(self.refused) < _MAX_REFUSED:
            self.refused.append(HostNotClaimed(server, chosen.uuid, chosen.host, reason))

    def text(self) -> str:
        """Say in one line which step left how many hosts, and which were refused then."""
        steps = ", ".join(f"{each.name} {each.before} -> {each.after}" for each in self.counts)
        refused = ", ".join(f"{each.host} ({each.reason})" for each in self.refused[:10])
        more = f" and {len(self.refused) - 10} more" if len(self.refused) > 10 else ""
        return f"{steps}; refused: {refused}{more}" if refused else steps


def counts_of(
    first: tuple[decision_steps.FilterCount, ...], plan: planning.Plan, *, is_placed: bool
) -> tuple[decision_steps.FilterCount, ...]:
    """Return the steps of the first server, and of the one that found no host.

    :param first: the plan's counts before any server was placed
    :param is_placed: True if every server found a host
    """
    if is_placed:
        return first
    counts = first if plan.counts is first else (*first, *plan.counts)
    left = counts[-1].after if counts else 0
    if left and not plan.best(1):
        # Filters pass these: they are full by now, or refused the claim.
        return (*counts, decision_steps.FilterCount(ROOM, left, 0))
    return counts


@attrs.frozen
class Decision:
    """A request that was decided.

    :param at: when it ended, seconds since 1970
    :param candidates: :data:`MEMORY`, or why Placement was asked
    :param outcome: as the metrics name it
    """

    at: float
    seconds: float
    outcome: str
    candidates: str
    servers: tuple[str, ...]
    counts: tuple[decision_steps.FilterCount, ...]
    placed: tuple[ServerPlacement, ...]
    refused: tuple[HostNotClaimed, ...]


def tell_left(trace: DecisionTrace, why: str) -> None:
    """Say that a request is decided by Nova's own code, before it is.

    What counts such requests ends with its process; this line is left of one that is killed.
    """
    LOG.info(
        "Servers %(servers)s are decided among Placement's candidates: %(why)s.",
        {"servers": ", ".join(trace.servers or ()), "why": why},
    )


class DecisionLog:
    """A worker's last decisions. Any thread; never blocks for long.

    :param kept: how many are remembered
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._lock = threading.Lock()
        self._kept: collections.deque[Decision] = collections.deque(maxlen=kept)

    def record(
        self,
        trace: DecisionTrace,
        selections: Any,
        *,
        at: float,
        seconds: float,
        outcome: str,
        asked_placement: str | None,
    ) -> None:
        """Remember a request.

        :param selections: what was answered: for each server a list, the
            chosen Selection first; None where nobody was chosen
        :param asked_placement: None where memory decided
        """
        decision = Decision(
            at=at,
            seconds=seconds,
            outcome=outcome,
            candidates=asked_placement or MEMORY,
            servers=tuple(trace.servers),
            counts=trace.counts,
            placed=_placed(trace, selections),
            refused=tuple(trace.refused),
        )
        with self._lock:
            self._kept.append(decision)
        LOG.debug(
            "Servers %(servers)s: %(outcome)s after %(seconds).2f s, candidates: %(candidates)s; "
            "hosts: %(hosts)s; refused: %(refused)s.",
            {
                "servers": ", ".join(decision.servers),
                "outcome": outcome,
                "seconds": seconds,
                "candidates": decision.candidates,
                "hosts": ", ".join(each.host for each in decision.placed) or "none",
                "refused": ", ".join(f"{each.host} ({each.reason})" for each in decision.refused)
                or "none",
            },
        )

    def about(self, server: str) -> list[Decision]:
        """Return the decisions about a server, the oldest first."""
        return [each for each in self._copy() if server in each.servers]

    def reach(self) -> tuple[int, float | None]:
        """Return how many are remembered, and when the oldest of them ended."""
        kept = self._copy()
        return len(kept), kept[0].at if kept else None

    def _copy(self) -> list[Decision]:
        with self._lock:
            return list(self._kept)


def _placed(trace: DecisionTrace, selections: Any) -> tuple[ServerPlacement, ...]:
    if selections is None:
        return ()
    if trace.chosen:
        return tuple(
            ServerPlacement(server, each.uuid, each.host, each.node, each.score)
            for server, each in trace.chosen.items()
        )
    return tuple(
        _selected(server, chosen) for server, chosen in zip(trace.servers, selections, strict=False)
    )


def _selected(server: str, chosen: Any) -> ServerPlacement:
    """Read Nova's answer: Selections, or for old callers a mapping per server."""
    if isinstance(chosen, dict):
        return ServerPlacement(server, "", str(chosen["host"]), str(chosen["nodename"]), None)
    first = chosen[0]
    uuid = first.compute_node_uuid if "compute_node_uuid" in first else None
    return ServerPlacement(server, uuid or "", first.service_host, first.nodename, None)
