# SPDX-License-Identifier: Apache-2.0
"""What the reporters' beats say together, for as long as none beats again.

A big cloud has a reporter for each worker of each API and conductor, and every
request asks about every cell. Where all is well that is one comparison a cell;
where it is not, the beats are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nova_nodb_scheduler.model import backend_time
from nova_nodb_scheduler.nova_adapter import reporter


class ReporterBeats:
    """The beats of one moment.

    :ivar states: all of them, as they were written
    :ivar unnamed: scopes of which reporters met rows whose names no record may have
    """

    def __init__(self, states: Sequence[Mapping[str, Any]]) -> None:
        self.states = states
        self.unnamed: set[str] = set()
        self._readable = True
        self._first_beat = float("inf")
        self._last_beat = float("-inf")
        self._most_behind_seconds = 0.0
        self._guarded_since: dict[str, float] = {}
        try:
            for each in states:
                self._take(each)
        except (KeyError, TypeError, ValueError, AttributeError):
            # Written by a release that means something else: whose it is decides.
            self._readable = False

    def _take(self, beat: Mapping[str, Any]) -> None:
        beat_at = float(beat["beat_at"])
        self._first_beat = min(self._first_beat, beat_at)
        self._last_beat = max(self._last_beat, beat_at)
        behind = map(float, beat["behind_seconds"].values())
        self._most_behind_seconds = max(self._most_behind_seconds, *behind, 0.0)
        self.unnamed.update(beat.get("unnamed", ()))
        since = float(beat["since"])
        for scope in beat["guards"]:
            if beat.get("cell") in (scope, reporter.EVERY_CELL):
                known = self._guarded_since.get(scope, since)
                self._guarded_since[scope] = min(known, since)

    def all_in_time(self, now_seconds: float, bound_seconds: float) -> bool:
        """Tell whether every reporter lives, and none may be behind by more than a bound."""
        if not backend_time.is_believed(self._last_beat, now_seconds):
            return False
        silence = max(now_seconds - self._first_beat, 0.0)
        return self._readable and self._most_behind_seconds + silence <= bound_seconds

    def guarded_since(self, scope: str) -> float | None:
        """Return since when the first of a scope's guards guards it; None where it has none."""
        return self._guarded_since.get(scope)
