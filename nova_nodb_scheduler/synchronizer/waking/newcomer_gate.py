# SPDX-License-Identifier: Apache-2.0
"""Whether a request that comes may be tried now, or has to stand behind those that wait.

A newcomer that asks for the same as somebody who waits and goes before it would take the
room that the other one waits for. So it is refused before anybody looks at hosts, and
its conductor parks it. Where it may not wait, since too many do, only those with equal
chances count: for another owner hosts may be set aside. One that a scheduler granted has
had its turn, and is decided like any. What is not known (the back end does not answer,
nobody has such a record) is no reason to refuse: the worst is that somebody is passed by
once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.waiting import backlog
from nova_nodb_scheduler.synchronizer.waking import followed_requests

LOG = logging.getLogger(__name__)


@attrs.frozen
class Admission:
    """What a request that may wait is told.

    :param answer: for the metrics: ``admitted``, ``behind``, ``full`` or ``unknown``
    :param refusal: why it is not to be tried; empty where it is
    :param full: why it may not wait; empty where it may
    """

    answer: str
    refusal: str = ""
    full: str = ""


_ADMITTED = Admission("admitted")
_UNKNOWN = Admission("unknown")


class NewcomerGate:
    """Asked by the threads of requests; any thread.

    :param read: reads a record from the back end; None where there is none
    :param clock: seconds by the back end's clock
    """

    def __init__(
        self,
        followed: followed_requests.FollowedRequests,
        read: Callable[[str], pending.PendingRequest | None],
        clock: Callable[[], float],
    ) -> None:
        self._followed = followed
        self._read = read
        self._clock = clock

    def ask(self, key: str, attempt: int) -> Admission:
        """Say whether an attempt of a request may look for hosts. May read its record."""
        if attempt > 1:
            return _ADMITTED
        with self._followed.lock:
            request = self._followed.queues.get(key)
        if request is None:
            try:
                # Its record was written a moment ago, and the feed is on its way.
                request = self._read(key)
            except errors.NodbError as error:
                LOG.debug("Request %(key)s cannot be read: %(error)s", {"key": key, "error": error})
        if request is None:
            return _UNKNOWN
        now = self._clock()
        with self._followed.lock:
            queues = self._followed.queues
            full = queues.full(request.project_id, len(request.servers))
            behind = queues.behind(request, now, of_others=full is None)
        told = "" if full is None else full_text(full)
        if not behind:
            return attrs.evolve(_ADMITTED, full=told)
        if told:
            return Admission("full", told, told)
        others = "1 request that waits" if behind == 1 else f"{behind} requests that wait"
        return Admission("behind", f"it stands behind {others} for room")


def full_text(full: backlog.QueueFull) -> str:
    """Say why nobody more may wait; :data:`.pending.QUEUE_FULL` stands in it."""
    whose = f"of project {full.project} " if full.project else ""
    return f"{pending.QUEUE_FULL}: {full.servers} servers {whose}wait, and {full.most} may"
