# SPDX-License-Identifier: Apache-2.0
"""Holds hosts for those who have waited long: writes holds, and has the engine heed them.

A hold stands in the request's record, and every scheduler leaves the host out of what it
proposes to others. It takes nothing of the host and is no claim: the head still has to
win one, and who does not know of a hold yet may be a moment faster. It ends by its
lease, or once its request is built or over. Until then it stays where it is, though another
host may need less by now; behind its lease another one is tried, where there is one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.pipeline import engine as engine_module
from nova_nodb_scheduler.synchronizer.pending import pending_ledger
from nova_nodb_scheduler.synchronizer.waking import followed_requests, pending_fit

LOG = logging.getLogger(__name__)

#: How often it is looked for whom a host should be held.
_LOOK_SECONDS = 2.0
#: Between two attempts to hold a host for the same request.
_AGAIN_SECONDS = 10.0
#: How long those behind are looked at instead of requests for which no host can be held, and
#: how many such kinds of them one look finds out.
_VAIN_SECONDS = 60.0
_MOST_VAIN = 4


class HoldUpkeep:
    """Has hosts held that are to be; for the worker's thread alone.

    :param hold_seconds: how long a host is held for one request
    :param is_own: whether this worker writes the records of a digest
    """

    def __init__(
        self,
        followed: followed_requests.FollowedRequests,
        plans: pending_fit.FitPlanner,
        ledger: pending_ledger.PendingLedger,
        hold_seconds: float,
        is_own: Callable[[str], bool],
    ) -> None:
        self._followed = followed
        self._plans = plans
        self._ledger = ledger
        self._hold_seconds = hold_seconds
        self._is_own = is_own
        self._look_at = float("-inf")
        self._tried: dict[str, float] = {}
        #: Digests for which no host can be held, and since when.
        self._vain: dict[str, float] = {}

    def run(self, now: float) -> None:
        """Look for whom a host is to be held; hosts must be proved.

        :raises BackendUnavailable: the others come with the next call
        """
        followed = self._followed
        # A time to come is of a clock that was set back.
        if 0.0 <= now - self._look_at < _LOOK_SECONDS:
            return
        self._look_at = now
        self._tried = _lately(self._tried, now, _AGAIN_SECONDS)
        self._vain = _lately(self._vain, now, _VAIN_SECONDS)
        for _ in range(_MOST_VAIN):
            known = len(self._vain)
            with followed.lock:
                wanting = followed.queues.wanting_hold(now, without=self._vain)
            for request in wanting:
                if request.key not in self._tried:
                    self._tried[request.key] = now
                    self._hold(request, now)
            if len(self._vain) == known:
                break

    def _hold(self, request: pending.PendingRequest, now: float) -> None:
        followed = self._followed
        found = self._plans.shortage(request)
        if isinstance(found, pending_fit.NotTold) or not found.uuids:
            # Those behind are not to wait for it. Every scheduler has to know that of all.
            self._vain[request.queue] = now
            return
        if not self._is_own(request.queue):
            return
        with followed.lock:
            host = followed.queues.choose_hold(
                request, found.uuids, found.resources, found.free, found.whole, now
            )
        if host is None:
            return
        try:
            step = self._ledger.set_hold(request.key, host, self._hold_seconds)
        except errors.UndecodableRecord:
            # Others may have one. Who grants tells of it.
            return
        if isinstance(step, pending.PendingRequest):
            LOG.info(
                "Host %(host)s is held for request %(key)s, which has waited %(seconds).0f s.",
                {"host": host, "key": request.key, "seconds": now - request.asked_at},
            )


def _lately(times: dict[str, float], now: float, seconds: float) -> dict[str, float]:
    return {name: at for name, at in times.items() if 0.0 <= now - at < seconds}


class HeldHosts:
    """Has the engine propose held hosts to nobody else; for the worker's thread alone."""

    def __init__(
        self, followed: followed_requests.FollowedRequests, engine: engine_module.Engine
    ) -> None:
        self._followed = followed
        self._engine = engine
        self._told: dict[str, frozenset[str]] = {}

    def run(self, now: float) -> None:
        """Take over what the records say is held now."""
        with self._followed.lock:
            queues = self._followed.queues
            holds: dict[str, frozenset[str]] = {}
            for host, key in queues.held_hosts(now).items():
                request = queues.get(key)
                if request is not None:
                    holds[host] = frozenset(request.servers)
        self._tell(holds)

    def forget(self) -> None:
        """Hold nothing, while nobody looks when holds end."""
        self._tell({})

    def _tell(self, holds: dict[str, frozenset[str]]) -> None:
        if holds != self._told:
            self._told = holds
            self._engine.hold(holds)
