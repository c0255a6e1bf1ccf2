# SPDX-License-Identifier: Apache-2.0
"""The server's time and its count of evictions, asked for at most once a second."""

from __future__ import annotations

import time

import attrs

from nova_nodb_scheduler.synchronizer.drivers.memcached import connection as connection_module
from nova_nodb_scheduler.synchronizer.drivers.support import clocks

#: The server counts whole seconds, and ticks a little late under load.
TICK_SECONDS = 2.0


@attrs.frozen
class Sample:
    """What the server said.

    :param seconds: its time, cut to whole seconds
    :param evictions: grows with each item that it dropped, or may have dropped
    """

    seconds: float
    evictions: int


class ServerClock(clocks.BackendClock):
    """The server's time and count between samples; any thread may call.

    A whole second from the server says only that its true time lies in the
    second after it, or a little later.
    """

    def __init__(self, connection: connection_module.Connection) -> None:
        super().__init__(self.sample, connection.label, slack_seconds=TICK_SECONDS)
        self._connection = connection
        self._last = Sample(0.0, 0)

    def sample(self) -> Sample:
        """Ask the server.

        :raises BackendUnavailable: it does not answer
        """
        sent_at = time.monotonic()
        statistics = self._connection.statistics()
        sample = Sample(float(statistics["time"]), _evictions(statistics))
        self._last = sample
        self.note(sample.seconds, sample.seconds, sent_at, time.monotonic())
        return sample

    def lower_bounds(self) -> Sample:
        """Return a time and a count that the server has reached for certain."""
        now = self.now_seconds()
        return Sample(now, self._last.evictions)


#: What the server dropped, or may have. To move a page of a slab it waits for the items in
#: it that replies still hold; a client that stands still in the middle of one keeps them.
#: After a thousand looks it drops those items, with -M as well, and counts them when the
#: page has gone; but it counts at once that it looks again.
_LOSSES = (
    *("evictions", "slab_reassign_evictions_nomem"),
    *("slab_reassign_busy_items", "slab_reassign_busy_deletes"),
)


def _evictions(statistics: dict[str, object]) -> int:
    return sum(int(str(statistics.get(name, 0))) for name in _LOSSES)
