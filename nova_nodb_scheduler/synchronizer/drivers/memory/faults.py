# SPDX-License-Identifier: Apache-2.0
"""Faults that a test orders from a hub or from one client of it."""

from __future__ import annotations

import collections
import enum
import threading
from collections.abc import Callable


class Fault(enum.Enum):
    """What happens to a call of the memory driver in the place of what it asks for."""

    #: The back end is not reached: BackendUnavailable, nothing was written.
    UNAVAILABLE = "unavailable"
    #: The write is carried out, its reply is lost: UNKNOWN.
    REPLY_LOST = "reply lost"
    #: The write never arrives, which the writer cannot know: UNKNOWN.
    REQUEST_LOST = "request lost"
    #: UNKNOWN, and the write arrives when the test says so
    #: (:meth:`.hub.MemoryHub.deliver_late`): a packet that was on its way.
    LATE = "late"


#: The calls that can be made to fail.
OPERATIONS = frozenset({"head", "snapshot", "fetch", "wait", "read", "write", "now", "collect"})


class Faults:
    """Ordered faults, used up one per call; and states that last until ended.

    All methods may be called from any thread.

    :param changed: called after a lasting state changed, so that waiters look
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._ordered: dict[str, collections.deque[Fault]] = {
            operation: collections.deque() for operation in OPERATIONS
        }
        self._down = False
        self._frozen = False

    def fail_next(self, fault: Fault, count: int = 1, operation: str = "write") -> None:
        """Let the next calls of an operation fail.

        :raises ValueError: only writes can have an unknown outcome, or there
            is no such operation
        """
        if operation not in OPERATIONS:
            raise ValueError(f"no such operation: {operation}")
        if operation != "write" and fault is not Fault.UNAVAILABLE:
            raise ValueError(f"{operation} cannot fail by {fault.value}")
        with self._lock:
            self._ordered[operation].extend([fault] * count)

    def take(self, operation: str) -> Fault | None:
        """Return the fault that the present call suffers."""
        with self._lock:
            ordered = self._ordered[operation]
            if ordered:
                return ordered.popleft()
            return Fault.UNAVAILABLE if self._down else None

    def go_down(self) -> None:
        """Let every call fail from now on."""
        self._down = True
        self._changed()

    def come_up(self) -> None:
        """End what :meth:`go_down` began."""
        self._down = False
        self._changed()

    def freeze(self) -> None:
        """Silence the feed: fetch brings nothing and wait is not woken.

        Writes, reads, head and snapshots go on: a feed that died in silence.
        """
        self._frozen = True
        self._changed()

    def thaw(self) -> None:
        """End what :meth:`freeze` began."""
        self._frozen = False
        self._changed()

    @property
    def down(self) -> bool:
        return self._down

    @property
    def frozen(self) -> bool:
        return self._frozen
