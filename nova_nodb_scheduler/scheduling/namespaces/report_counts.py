# SPDX-License-Identifier: Apache-2.0
"""How a service's count of its heartbeats follows on the one that is known.

A nova-compute counts its own heartbeats and says the count to a conductor:
whoever speaks for it can say any. Taken at its word, a count of 2**31 - 1 means
two milliards of heartbeats that nobody reported, and the whole cell is doubted
for one host. So a step is held against the time that it had:

* No service beats more than once a second (``report_interval`` is in whole
  seconds, ten by default). What is beyond that is *ignored*: neither the count
  nor the number of heartbeats seen goes up, so that the service's next true
  heartbeat is a step of one, as ever.
* A true count may look forged: a row was edited, a service was restored, a
  nova-compute began again from a row that somebody forged. So when for a while
  nothing came that follows on the known count, the new one is *taken for the
  beginning of another numbering*: what was unreported stays so, and no more
  comes to it. The same goes for counts that are lower by more than what one that
  waited in a queue can be.

What remains: who speaks for a host may hide that host's own unreported
heartbeats, or may claim some that a true one might have missed.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

#: No service beats more often.
LEAST_INTERVAL_SECONDS = 1.0
#: What clocks of conductors may differ by, in heartbeats and seconds alike.
MARGIN_SECONDS = 60.0
#: A numbering of which nothing was heard for so long may be replaced.
SILENT_SECONDS = 300.0
#: A count that is lower by no more is an older one: what a service comes to in the
#: margin. What counts anew from so near has caught up within minutes.
_MOST_LATE = MARGIN_SECONDS / LEAST_INTERVAL_SECONDS
#: For records of a release that did not note when they were counted.
_UNKNOWN_SECONDS = 86_400.0


class CountStep(enum.Enum):
    """How a service's count of heartbeats follows on the one that is known."""

    #: It follows on it, or is older.
    TAKEN = "taken"
    #: No service beats so often.
    IGNORED = "ignored"
    #: The service counts anew from here.
    RENUMBERED = "renumbered"


def follows(known: int, count: int, seen: int, seconds: float) -> bool:
    """Tell whether a count is no more than a service can have come to.

    :param seen: how many of the heartbeats since were seen one by one
    :param seconds: since the known count was heard
    """
    possible = (max(seconds, 0.0) + MARGIN_SECONDS) / LEAST_INTERVAL_SECONDS
    return count - known - seen <= possible


def judge_count(current: Mapping[str, Any], count: int, seen: int, heard_at: float) -> CountStep:
    """Hold a count against a record of namespace ``service_liveness``.

    :param seen: heartbeats that a reporter saw on the way to it
    :param heard_at: seconds since the epoch, by the clock of who heard it
    """
    known = int(current["report_count"])
    counted_at = current.get("counted_at")
    seconds = _UNKNOWN_SECONDS if counted_at is None else heard_at - float(counted_at)
    is_silent = seconds > SILENT_SECONDS
    if not follows(known, count, seen, seconds):
        return CountStep.RENUMBERED if is_silent else CountStep.IGNORED
    if known - count > _MOST_LATE and is_silent and counted_at is not None:
        # One that was heard earlier, and waited in a queue, says so itself. One
        # that is lower by little is late, too: a conductor of a release that notes
        # no time may have brought the known one a moment ago.
        return CountStep.RENUMBERED
    return CountStep.TAKEN


@attrs.frozen
class CountSteps:
    """What :func:`judge_counts` found; a count that is neither is ignored. Shape (n,), bool."""

    taken: npt.NDArray[np.bool_]
    renumbered: npt.NDArray[np.bool_]


def judge_counts(
    known: npt.NDArray[np.int64],
    counted_at: npt.NDArray[np.float64],
    counts: npt.NDArray[np.int64],
    heard_at: npt.NDArray[np.float64],
) -> CountSteps:
    """Judge one heartbeat of each of n services, as :func:`judge_count` would.

    :param known: counts that are known, shape (n,), as all that follow
    :param counted_at: when they were heard, seconds since the epoch; NaN where nobody noted it
    :param counts: of the heartbeats
    :param heard_at: when they were heard, seconds since the epoch
    """
    noted = ~np.isnan(counted_at)
    seconds = np.where(noted, heard_at - counted_at, _UNKNOWN_SECONDS)
    possible = (np.maximum(seconds, 0.0) + MARGIN_SECONDS) / LEAST_INTERVAL_SECONDS
    is_silent = seconds > SILENT_SECONDS
    is_following = counts - known - 1 <= possible
    is_lower = (known - counts > _MOST_LATE) & noted
    renumbered = is_silent & (~is_following | is_lower)
    return CountSteps(is_following & ~renumbered, renumbered)
