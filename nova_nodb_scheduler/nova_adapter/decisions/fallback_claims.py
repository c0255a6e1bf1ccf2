# SPDX-License-Identifier: Apache-2.0
"""Claims for requests that memory cannot answer, where Nova's own code chooses.

Requests for several groups of resources, for nested or shared providers: Nova
asks Placement for candidates and allocates host by host. Each of these goes
through a claim as well, on the node itself; what other providers give is
verified once it is written, and all of it where there is no claim to judge.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping

from nova_nodb_scheduler.nova_adapter.claims import outside_claims
from nova_nodb_scheduler.nova_adapter.decisions import request_planner
from nova_nodb_scheduler.scheduling.namespaces import claim_facts
from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts
from nova_nodb_scheduler.store import store_snapshot

LOG = logging.getLogger(__name__)


#: See :class:`FallbackClaims`.
Proves = Callable[
    [Mapping[str, int], float, store_snapshot.NamespaceView | None, Collection[str]],
    bool,
]


class FallbackClaims:
    """The claims of one request: :class:`outside_claims.OutsideClaimer`. One thread.

    :param parts: what decides in this worker otherwise
    :param proves: asked before a host is taken for full, until it says so once:
        False if records of hosts were behind Placement, or claims on them ended,
        since the time and the claims given; with the server that claims. None
        for the claims where they do not matter any more
    :param deadline_seconds: how long a claim is tried, and the whole request's proof
    :param unjudged: what allocates where no claim can be judged; None for Nova's
        own claim alone
    """

    def __init__(
        self,
        parts: request_planner.DecisionEngine,
        proves: Proves,
        deadline_seconds: float,
        unjudged: outside_claims.UnjudgedClaimer | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = parts
        self._deadline_seconds = deadline_seconds
        self._unjudged = unjudged
        self._clock = clock
        self._proves = proves
        self._began = clock()
        self._claims: store_snapshot.NamespaceView | None = parts.claims()
        self._is_proved = False

    def claimed(
        self,
        move: outside_claims.OutsideMove,
        allocate: Callable[[], bool],
        take_back: Callable[[], None],
    ) -> bool:
        """Claim, have the resources allocated, confirm; False if they could not be had."""
        try:
            answer = self._taken(move)
        except request_planner.MemoryCannotDecide as error:
            LOG.warning("Claims are not judged by now: %(error)s", {"error": error})
            answer = None
        except Exception:
            LOG.exception("A host cannot be claimed; Nova's own claim goes ahead.")
            answer = None
        if answer is None:
            if self._unjudged is None:
                return allocate()
            return self._unjudged.claimed(move, allocate, take_back)
        own = self._parts.ways.claimer
        return outside_claims.carried_out(own, answer, move, allocate, take_back, self._unjudged)

    def _taken(
        self, move: outside_claims.OutsideMove
    ) -> chosen_hosts.TakenClaim | chosen_hosts.RefusedClaim | None:
        """Claim; None where there is nothing yet to judge a claim by.

        :raises MemoryCannotDecide: what is known may be old, and nobody can tell
        """
        chosen = self._chosen(move.host)
        if chosen is None:
            return None
        places = self._parts.places(move.consumer)
        share = claim_facts.share_of(move.request, stays=(chosen.cell, chosen.host) in places)
        wanted = chosen_hosts.WantedClaim(
            move.consumer, chosen, move.resources, share, moves=bool(places)
        )
        answer = self._answer(move, wanted)
        judged_at = self._began
        while _is_full(answer) and not self._is_proved:
            # Placement has just offered it: what is known of it may be old.
            self._is_proved = self._proves(move.resources, judged_at, self._claims, [move.consumer])
            if not self._is_proved:
                # Claims end all the time: that some did is looked at once.
                self._claims = None
                judged_at = self._clock()
                answer = self._answer(move, wanted)
                if _is_full(answer) and judged_at > self._began + self._deadline_seconds:
                    raise request_planner.MemoryCannotDecide("mirror behind")
        return answer

    def _answer(
        self, move: outside_claims.OutsideMove, wanted: chosen_hosts.WantedClaim
    ) -> chosen_hosts.TakenClaim | chosen_hosts.RefusedClaim:
        ways = self._parts.ways
        deadline = self._clock() + self._deadline_seconds
        return outside_claims.looked_again(ways.claimer, move.request, wanted, deadline, ways.sleep)

    def _chosen(self, host: str) -> chosen_hosts.Choice | None:
        engine = self._parts.engine
        self._parts.keeper.catch_up(time.time())
        with engine.lock:
            row = engine.frame.row_of(host)
            if row is None:
                return None
            facts = engine.frame.facts(row)
        return chosen_hosts.Choice(row, host, facts.cell, facts.host, facts.node, 0.0, ())


def _is_full(answer: chosen_hosts.TakenClaim | chosen_hosts.RefusedClaim) -> bool:
    return (
        isinstance(answer, chosen_hosts.RefusedClaim)
        and answer.failure is chosen_hosts.ClaimRefusal.NEXT_HOST
    )
