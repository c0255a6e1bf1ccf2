# SPDX-License-Identifier: Apache-2.0
"""Ends requests whose servers were sent, once they are seen on hosts.

Their records stay behind the sending, for a host may give a server up before it has begun.
What is not seen in time is looked for by a conductor, which reads Nova's databases: see
:mod:`nova_nodb_scheduler.nova_adapter.waiting.abandoned_requests`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.synchronizer.pending import pending_ledger
from nova_nodb_scheduler.synchronizer.waking import followed_requests

#: Between two looks.
_LOOK_SECONDS = 1.0
#: Requests that are ended by one look: the worker's thread wakes others, too.
_MOST_AT_ONCE = 200


class ArrivedRequests:
    """For the worker's thread alone.

    :param places: (cell, host) of each place where a server is known; the host may be empty
    :param is_own: whether this worker writes the records of a digest
    """

    def __init__(
        self,
        followed: followed_requests.FollowedRequests,
        places: Callable[[str], Iterable[tuple[str, str]]],
        ledger: pending_ledger.PendingLedger,
        is_own: Callable[[str], bool],
    ) -> None:
        self._followed = followed
        self._places = places
        self._ledger = ledger
        self._is_own = is_own
        self._look_at = float("-inf")
        #: Keys, in the order in which they came.
        self._placed: dict[str, None] = {}

    def placed(self, key: str) -> None:
        """Look for the servers of a request from now on."""
        self._placed[key] = None

    def run(self, now: float) -> None:
        """End those whose servers are seen, if it is time to look. O(requests that are placed).

        :raises BackendUnavailable: they are ended by a later look
        """
        # A time to come is of a clock that was set back.
        if not self._placed or 0.0 <= now - self._look_at < _LOOK_SECONDS:
            return
        self._look_at = now
        requests = self._requests()
        self._placed = dict.fromkeys(each.key for each in requests)
        arrived = [
            each.key
            for each in requests
            if pending.is_let_go(each) and self._is_own(each.queue) and self._are_seen(each)
        ]
        if arrived:
            self._ledger.arrive(arrived[:_MOST_AT_ONCE])

    def _requests(self) -> list[pending.PendingRequest]:
        followed = self._followed
        with followed.lock:
            found = [followed.queues.get(key) for key in self._placed]
        return [each for each in found if each is not None and each.placed_at]

    def _are_seen(self, request: pending.PendingRequest) -> bool:
        return all(any(host for _, host in self._places(each)) for each in request.servers)
