# SPDX-License-Identifier: Apache-2.0
"""Claims for requests that memory cannot answer, where Nova's own code chooses.

Requests for several groups of resources, for nested or shared providers: Nova
asks Placement for candidates and allocates host by host. Each of these goes
through a claim as well, on the node itself, and all of it is verified once it
is written: what the claim was judged by need not be proved.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping

from nova_nodb_scheduler.nova_adapter.claims import outside_claims
from nova_nodb_scheduler.nova_adapter.decisions import request_decider
from nova_nodb_scheduler.scheduling.namespaces import claim_facts, known_namespaces
from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts
from nova_nodb_scheduler.store import store_snapshot

LOG = logging.getLogger(__name__)


#: See :class:`FallbackClaims`.
Proves = Callable[
    [
        Mapping[str, int],
        float,
        store_snapshot.NamespaceView,
        Collection[str],
        str | None,
        store_snapshot.Snapshot,
    ],
    request_decider.FullHosts,
]


class FallbackClaims:
    """The claims of one request: :class:`outside_claims.OutsideClaimer`. One thread.

    :param parts: what decides in this worker otherwise
    :param proves: asked before a host is taken for full, until it says so once of the
        same resources: whether records of hosts were behind Placement, or claims on
        them ended, since the time and the claims given; with the server that claims,
        the uuid of its group, and a snapshot that the claim was judged by no older one
    :param deadline_seconds: how long a claim is tried, and the whole request's proof
    :param unjudged: what allocates where no claim can be judged; None for Nova's
        own claim alone
    """

    def __init__(
        self,
        parts: request_decider.DecisionEngine,
        proves: Proves,
        deadline_seconds: float,
        unjudged: outside_claims.UnjudgedClaimer | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ways = parts.ways
        self._places = parts.places
        self._keeper = parts.keeper
        self._engine = parts.engine
        self._deadline_seconds = deadline_seconds
        self._unjudged = unjudged
        self._clock = clock
        self._proves = proves
        self._began = clock()
        self._snapshot = parts.snapshot
        #: Of what resources hosts without room for them were proved full: which hosts
        #: may be full for nothing, Placement says of the very amounts.
        self._proved: set[frozenset[tuple[str, int]]] = set()

    def claimed(
        self,
        move: outside_claims.OutsideMove,
        allocate: outside_claims.Allocate,
        take_back: Callable[[], None],
    ) -> bool:
        """Claim, have the resources allocated, confirm; False if they could not be had."""
        try:
            answer = self._taken(move)
        except request_decider.MemoryCannotDecide as error:
            LOG.warning("Claims are not judged by now: %(error)s", {"error": error})
            answer = None
        except Exception:
            LOG.exception("A host cannot be claimed; Nova's own claim goes ahead.")
            answer = None
        if answer is None:
            if self._unjudged is None:
                return bool(allocate())
            return self._unjudged.claimed(move, allocate, take_back)
        own = self._ways.claimer
        return outside_claims.carried_out(own, answer, move, allocate, take_back, self._unjudged)

    def _taken(
        self, move: outside_claims.OutsideMove
    ) -> chosen_hosts.TakenClaim | chosen_hosts.RefusedClaim | None:
        """Claim; None where there is nothing yet to judge a claim by.

        :raises MemoryCannotDecide: what is known may be old, and nobody can tell
        """
        chosen = self._chosen(move.host)
        if chosen is None or (self._unjudged is not None and not self._is_provided(move.host)):
            return None
        places = self._places(move.consumer)
        share = claim_facts.share_of(move.request, stays=(chosen.cell, chosen.host) in places)
        wanted = chosen_hosts.WantedClaim(
            move.consumer, chosen, move.resources, share, moves=bool(places)
        )
        amounts = frozenset(move.resources.items())
        judged_at, seen = self._clock(), self._snapshot()
        answer = self._answer(move, wanted)
        while _is_full(answer) and amounts not in self._proved:
            # Placement has just offered it: what is known of it may be old.
            found = self._proves(
                move.resources,
                judged_at,
                seen.namespace(known_namespaces.CLAIM_RECORDS.name),
                [move.consumer],
                move.group_uuid,
                seen,
            )
            if found is not request_decider.FullHosts.CHANGED:
                self._proved.add(amounts)
            if found is request_decider.FullHosts.PROVED:
                break
            judged_at, seen = self._clock(), self._snapshot()
            answer = self._answer(move, wanted)
            is_late = judged_at > self._began + self._deadline_seconds
            if is_late and _is_full(answer) and amounts not in self._proved:
                raise request_decider.MemoryCannotDecide("mirror behind")
        return answer

    def _answer(
        self, move: outside_claims.OutsideMove, wanted: chosen_hosts.WantedClaim
    ) -> chosen_hosts.TakenClaim | chosen_hosts.RefusedClaim:
        ways = self._ways
        deadline = self._clock() + self._deadline_seconds
        return outside_claims.looked_again(ways.claimer, move.request, wanted, deadline, ways.sleep)

    def _is_provided(self, host: str) -> bool:
        """Say whether anything is known of what a node's provider gives.

        The feed may bring a node before its provider. Any claim would be granted there, beside
        those of others that are not written yet: who is noted gives way to them.
        """
        return host in self._snapshot().namespace(known_namespaces.PROVIDERS.name)

    def _chosen(self, host: str) -> chosen_hosts.Choice | None:
        engine = self._engine
        self._keeper.catch_up(time.time())
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
