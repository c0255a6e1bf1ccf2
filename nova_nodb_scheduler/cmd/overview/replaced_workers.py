# SPDX-License-Identifier: Apache-2.0
"""Which silent scheduler workers others have taken the place of, and which are missing.

The naive way, to leave out whoever is silent on a host where others live, hides one frozen
worker of several for good. A service begins a worker where one ended: so each that began takes
the place of one that spoke last before, the latest of these. Who is left over is missing.
"""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Collection, Mapping
from typing import Any

#: Starts are told in whole seconds, and clocks are compared over a back end.
_EXACT_SECONDS = 2.0


def replaced(beats: Mapping[str, Mapping[str, Any]], living: Collection[str]) -> set[str]:
    """Return the names of silent workers that others of their host have taken the place of.

    :param beats: of all workers, by their names
    :param living: names of those that are not silent
    """
    found: set[str] = set()
    for host in {str(beat.get("host")) for beat in beats.values()}:
        names = [name for name, beat in beats.items() if str(beat.get("host")) == host]
        left = {name: _told_at(beats[name]) for name in names if name not in living}
        if len(left) == len(names):
            # The service has ended, or hangs as a whole.
            continue
        for name, began_at in sorted(
            ((name, _began_at(beats[name])) for name in names), key=operator.itemgetter(1)
        ):
            latest_at = began_at + _EXACT_SECONDS
            before = [each for each in left if each != name and left[each] <= latest_at]
            if before:
                latest = max(before, key=left.__getitem__)
                del left[latest]
                found.add(latest)
    return found


def _told_at(beat: Mapping[str, Any]) -> float:
    return float(beat.get("beat_at", 0.0))


def _began_at(beat: Mapping[str, Any]) -> float:
    """Return when a worker began, by the back end's clock; never, where it does not say."""
    try:
        began = dt.datetime.fromisoformat(beat["started_at"])
        return began.timestamp() - float(beat["clock_offset_seconds"])
    except (KeyError, TypeError, ValueError):
        # Of an older release, which is as it was: all that are silent may be replaced.
        return float("inf")
