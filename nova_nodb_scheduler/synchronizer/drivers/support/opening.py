# SPDX-License-Identifier: Apache-2.0
"""Whether a client is open, where any thread may open and close it.

An opening connects, and then checks what it reaches, which takes until a
time-out where nobody answers. The naive way, to disconnect where the check
fails, takes the connection away from those who opened the client before or
beside: they hold it for open, and nobody opens it again. This way only what
no other opening stands on is disconnected. Openings do not wait for one
another: where nobody answers, each caller waits for its own time-out alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from nova_nodb_scheduler import errors


class Opening:
    """A client's life; any thread may call.

    :param connect: makes what the client's calls need; blocks for no I/O and is idempotent
    :param disconnect: drops it; idempotent, raises nothing, and opens nothing
    :param unavailable: makes the error of a reason
    """

    def __init__(
        self,
        connect: Callable[[], None],
        disconnect: Callable[[], None],
        unavailable: Callable[[str], errors.BackendUnavailable],
    ) -> None:
        self._connect = connect
        self._disconnect = disconnect
        self._unavailable = unavailable
        self._lock = threading.Lock()
        #: Openings whose checks are under way.
        self._checking = 0
        self._is_connected = False
        self._is_open = False

    @property
    def is_open(self) -> bool:
        """Whether it was opened, and not closed since."""
        return self._is_open

    def require(self) -> None:
        """Make sure that it is open.

        :raises BackendUnavailable: it is not
        """
        if not self._is_open:
            raise self._unavailable("the client is not open")

    def open(self, check: Callable[[], None]) -> None:
        """Connect and check, unless it is open. Blocks as long as the check does.

        :param check: called connected; what it raises is raised, and the client stays open
            if another opening succeeded
        :raises BackendUnavailable: it was closed meanwhile
        """
        with self._lock:
            if self._is_open:
                return
            self._connect()
            self._is_connected = True
            self._checking += 1
        try:
            check()
        except BaseException:
            self._end_check(succeeded=False)
            raise
        if not self._end_check(succeeded=True):
            raise self._unavailable("the client was closed while it was opened")

    def close(self) -> None:
        """Disconnect; idempotent. An opening that is under way fails."""
        with self._lock:
            self._is_open = self._is_connected = False
            self._disconnect()

    def _end_check(self, *, succeeded: bool) -> bool:
        """Return whether the client is open now."""
        with self._lock:
            self._checking -= 1
            self._is_open |= succeeded and self._is_connected
            if not self._is_open and not self._checking:
                self._is_connected = False
                self._disconnect()
            return self._is_open
