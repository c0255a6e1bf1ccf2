# SPDX-License-Identifier: Apache-2.0
"""Claims that nobody confirmed yet: waited for before a request is refused for them.

A scheduler claims, writes the allocation and confirms, within a second as a rule. One that dies
in between leaves a claim that holds its room until its lease ends, for nobody can prove that its
write is not on its way to Placement. Nor does anybody know yet that this room is taken. Who says
"no valid host" for it loses a request for good; who waits answers it late.

Who waits holds nothing: what its own decision had claimed was given back before.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator

import attrs

from nova_nodb_scheduler.synchronizer.settlement import claim_proof

LOG = logging.getLogger(__name__)

#: How often it is looked whether a claim ended.
_LOOK_SECONDS = 0.1
#: An older one is not about to be confirmed: its writer died, or Placement does not answer it.
_STUCK_SECONDS = 5.0
#: Who waited for that long says so, and is decided anew: what it was refused by may be over.
_LONG_SECONDS = 1.0


#: Whether a thread's requests are refused at once, see :func:`nobody_waits`.
_of_thread = threading.local()


@contextlib.contextmanager
def nobody_waits() -> Iterator[None]:
    """Have requests of this thread refused at once: a queue has them, and sends them again."""
    before = getattr(_of_thread, "refuses", False)
    _of_thread.refuses = True
    try:
        yield
    finally:
        _of_thread.refuses = before


class WaitEnd(enum.Enum):
    """What became of the claims that a request waited for."""

    #: One ended: there may be room.
    FREED = "freed"
    #: All of them were confirmed.
    TAKEN = "taken"
    #: The time was over.
    LATE = "late"
    #: Too many waited already.
    CROWDED = "crowded"
    #: This process ends.
    STOPPED = "stopped"


@attrs.frozen
class WaitBounds:
    """How long requests wait.

    :param wait_seconds: each of them, in all; 0: not at all
    :param lease_seconds: how long a claim may be pending
    """

    wait_seconds: float
    lease_seconds: float


class PendingWaits:
    """What the requests of one worker wait by; any thread.

    :param index: follows the claims
    :param now_seconds: the back end's clock, without I/O
    :param tell: gets how each wait ended
    :param clock: monotonic seconds
    :param most_waiting: requests that wait at once: the threads of a worker are there for
        others, too
    """

    def __init__(
        self,
        index: claim_proof.ClaimIndex,
        bounds: WaitBounds,
        now_seconds: Callable[[], float],
        tell: Callable[[WaitEnd], None] = lambda end: None,
        clock: Callable[[], float] = time.monotonic,
        *,
        most_waiting: int,
    ) -> None:
        self.index = index
        self.bounds = bounds
        self.now_seconds = now_seconds
        self.tell = tell
        self.clock = clock
        self.slots = threading.BoundedSemaphore(most_waiting)
        self.stopped = threading.Event()

    def stop(self) -> None:
        """Have nobody wait any more, for this process is to end; idempotent."""
        self.stopped.set()

    def start(self) -> None:
        """Have requests wait again, of a worker that starts once more."""
        self.stopped.clear()

    def is_stuck(self, deadline_seconds: float) -> bool:
        """Say whether a claim is pending for longer than one that is about to be confirmed.

        :param deadline_seconds: end of its lease by the back end's clock
        """
        left_seconds = deadline_seconds - self.now_seconds()
        return self.bounds.lease_seconds - left_seconds >= _STUCK_SECONDS

    def told(self, hosts: Iterable[str]) -> dict[str, dict[str, str]]:
        """See :meth:`claim_proof.ClaimIndex.told`."""
        return self.index.told(hosts)

    def begin(self) -> RequestWait:
        """Return what one request waits by, from now on."""
        return RequestWait(self)


class RequestWait:
    """The waiting of one request; one thread."""

    def __init__(self, waits: PendingWaits) -> None:
        self._waits = waits
        waits_at_all = not getattr(_of_thread, "refuses", False)
        self._until = waits.clock() + (waits.bounds.wait_seconds if waits_at_all else 0.0)
        #: A room that is given back within a moment is fought for: once is enough.
        self._tried_again = False

    def is_worth_another_look(
        self,
        hosts: Container[str],
        able: Callable[[Iterable[str]], Container[str]],
        consumer: str,
    ) -> bool:
        """Wait for claims that are pending now; say whether to decide once more.

        It is where one ended that was not confirmed, or all that took long. Of those that are
        about to be confirmed one counts once for each request: under load some are given back
        all the time, and each would send all who wait into the next race.

        :param hosts: uuids of the nodes whose claims matter
        :param able: says which of some nodes take the request once they have room
        :param consumer: whom to name in the log
        """
        waits = self._waits
        began = waits.clock()
        if began >= self._until or waits.stopped.is_set():
            return False
        pending = waits.index.pending(hosts)
        if pending:
            hosts = able({host for host, _, _ in pending})
            pending = {name: end for name, end in pending.items() if name[0] in hosts}
        if not pending:
            return False
        if not waits.slots.acquire(blocking=False):
            waits.tell(WaitEnd.CROWDED)
            return False
        try:
            end = self._wait(pending, hosts)
        finally:
            waits.slots.release()
        waits.tell(end)
        waited = waits.clock() - began
        is_long = waited >= _LONG_SECONDS
        LOG.log(
            logging.INFO if is_long else logging.DEBUG,
            "The request for server %(server)s waited %(seconds).1f s for %(count)d claims that "
            "nobody had confirmed: %(end)s.",
            {"server": consumer, "seconds": waited, "count": len(pending), "end": end.value},
        )
        return is_long or end is WaitEnd.FREED

    def _wait(self, pending: dict[claim_proof.ClaimName, float], hosts: Container[str]) -> WaitEnd:
        waits = self._waits
        while True:
            if waits.stopped.wait(_LOOK_SECONDS):
                return WaitEnd.STOPPED
            left = waits.index.pending(hosts)
            over = {name: pending[name] for name in pending.keys() - left.keys()}
            ended = {name: over[name] for name in over if not waits.index.stands(name)}
            if ended and (not self._tried_again or any(map(waits.is_stuck, ended.values()))):
                self._tried_again = True
                return WaitEnd.FREED
            pending = {name: pending[name] for name in pending.keys() & left.keys()}
            if not pending:
                return WaitEnd.TAKEN
            if waits.clock() >= self._until:
                return WaitEnd.LATE
