# SPDX-License-Identifier: Apache-2.0
"""A back end's clock between two of its answers: this process's own, moved by an offset.

An answer tells that the back end's time was between two bounds at some moment
between request and answer. The greatest lower bound of the offset to the
monotonic clock that was ever seen comes close to the true one, and never runs
back; only an upper bound that contradicts it (the back end's own clock was set
back) makes this clock follow.

The naive way, to go on with this process's wall clock where the back end does
not answer, ends leases of others that still run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from nova_nodb_scheduler import errors

#: Without an answer for so long, one is asked for.
CACHE_SECONDS = 1.0


class BackendClock:
    """The back end's time; any thread may call.

    :param ask: asks the back end anything; its answer is noted (:meth:`note`)
        before it returns. Raises BackendUnavailable
    :param label: of the back end, for messages
    :param slack_seconds: by how much less an answer may tell without being
        followed: the grain of the back end's clock, or what its members differ
    """

    def __init__(self, ask: Callable[[], object], label: str, slack_seconds: float) -> None:
        self._ask = ask
        self._label = label
        self._slack_seconds = slack_seconds
        self._lock = threading.Lock()
        self._offset: float | None = None
        self._noted_at = float("-inf")

    def note(
        self, least_seconds: float, most_seconds: float, sent_at: float, received_at: float
    ) -> None:
        """Take in an answer.

        :param least_seconds: the back end's time was not before it
        :param most_seconds: and not behind it
        :param sent_at: when the request went out, by the monotonic clock
        :param received_at: when its answer came
        """
        least, most = offset_bounds(least_seconds, most_seconds, sent_at, received_at)
        with self._lock:
            known = self._offset
            if known is None or least > known or known > most + self._slack_seconds:
                self._offset = least
            self._noted_at = max(self._noted_at, received_at)

    def now_seconds(self) -> float:
        """Return the back end's time, too early by no more than an answer is uncertain.

        :raises BackendUnavailable: it does not answer, or does not tell its time
        """
        needed_since = time.monotonic() - CACHE_SECONDS
        if self._noted_at < needed_since:
            # From before the request: who is held up behind it has an answer still.
            needed_since = time.monotonic()
            self._ask()
        with self._lock:
            if self._offset is not None and self._noted_at >= needed_since:
                return self._offset + time.monotonic()
        raise self._untold()

    def _untold(self) -> errors.BackendUnavailable:
        return errors.BackendUnavailable(self._label, "its answers do not tell its time")


def offset_bounds(
    least_seconds: float, most_seconds: float, sent_at: float, received_at: float
) -> tuple[float, float]:
    """Return between what a clock is before the monotonic one, see :meth:`BackendClock.note`."""
    return least_seconds - received_at, most_seconds - sent_at


class WriteTimestampClock(BackendClock):
    """The time by which a back end stamps what is written to it.

    For engines that have no clock to ask: ZooKeeper's mtime, Kafka's append
    time, the modification time of a file. Costs a write a second at most.

    :param write: writes what nobody reads, and returns its time stamp in seconds.
        Raises BackendUnavailable or OSError
    :param grain_seconds: stamps are cut to multiples of it
    """

    def __init__(self, write: Callable[[], float], label: str, grain_seconds: float) -> None:
        super().__init__(self._write_and_note, label, slack_seconds=grain_seconds)
        self._write = write
        self._grain_seconds = grain_seconds

    def _write_and_note(self) -> None:
        sent_at = time.monotonic()
        try:
            seconds = self._write()
        except OSError as error:
            raise errors.BackendUnavailable(self._label, str(error)) from error
        self.note(seconds, seconds + self._grain_seconds, sent_at, time.monotonic())
