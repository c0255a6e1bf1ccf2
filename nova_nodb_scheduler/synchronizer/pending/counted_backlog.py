# SPDX-License-Identifier: Apache-2.0
"""How many servers wait, for who puts requests into the queue and does not follow it.

Schedulers follow the records and know; nova-api does not, and is to do without schedulers. So
the records are counted, and not again until the count is some seconds old and has cost a
twentieth of the time: a queue of 1000 is counted every other second, one of 100,000 once in a
minute. What this process admits itself counts at once; what others do, with the next count.
The bounds may be passed by so much, and no more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.waiting import backlog
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.wire import codec

_PENDING = known_namespaces.PENDING

#: A count is taken for right for so long at least.
LEAST_SECONDS = 2.0
#: And for so many times of what it took.
SPARED = 20.0


class CountedBacklog:
    """Any thread.

    :param synchronizer: open, when it is asked
    :param most: servers that may wait in all
    :param most_per_project: servers of one project that may
    :param clock: monotonic seconds
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        most: int,
        most_per_project: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._synchronizer = synchronizer
        self._most = most
        self._most_per_project = most_per_project
        self._clock = clock
        self._lock = threading.Lock()
        self._due = float("-inf")
        self._sums = self._nothing()
        #: Admitted, by key, and perhaps not written yet; a count that meets one takes it out.
        self._under_way: dict[str, pending.PendingRequest] = {}

    def admit(self, request: pending.PendingRequest) -> backlog.QueueFull | None:
        """Count a request that is about to be put into the queue, unless it would be too many.

        What is counted stays so until :meth:`settle` is called. May block for the back end,
        for as long as all records of the queue take to be read.

        :raises BackendUnavailable: they cannot be counted
        """
        with self._lock:
            if self._clock() >= self._due:
                self._count()
            full = self._sums.full(request.project_id, len(request.servers))
            if full is None:
                self._sums.add(request)
                self._under_way[request.key] = request
            return full

    def settle(self, request: pending.PendingRequest, *, is_kept: bool) -> None:
        """Say whether a request that was admitted stands, or may come to. No I/O."""
        with self._lock:
            own = self._under_way.pop(request.key, None)
            if own is not None and not is_kept:
                self._sums.remove(own)

    def _nothing(self) -> backlog.Backlog:
        return backlog.Backlog(self._most, self._most_per_project)

    def _count(self) -> None:
        began = self._clock()
        sums = self._nothing()
        under_way = dict(self._under_way)
        for request in self._requests():
            under_way.pop(request.key, None)
            if backlog.is_parked(request):
                sums.add(request)
        # Written behind the reading, or not yet.
        for request in under_way.values():
            sums.add(request)
        self._sums, self._under_way = sums, under_way
        ended = self._clock()
        self._due = ended + max(LEAST_SECONDS, SPARED * (ended - began))

    def _requests(self) -> Iterator[pending.PendingRequest]:
        try:
            for page in self._synchronizer.snapshot([_PENDING.name]).pages:
                for record in page:
                    try:
                        yield pending.of_state(record.key.key, codec.decode(record.payload).state)
                    except (errors.UndecodableRecord, pending.MalformedPending):
                        # Schedulers do not count it, either.
                        continue
        except contract.SnapshotInterrupted as error:
            raise errors.BackendUnavailable(
                self._synchronizer.name, "its epoch changed while the queue was counted"
            ) from error
