# SPDX-License-Identifier: Apache-2.0
"""What reporters' beats come to, those of a service on a host together, for Prometheus."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from nova_nodb_scheduler.model import backend_time

FIGURES = ("living", "queued", "silent", "refused")


def figures(
    beats: Iterable[Mapping[str, Any]], now_seconds: float
) -> dict[str, dict[tuple[str, str, str], float]]:
    """Return each of :data:`FIGURES` by role, host and cell.

    :param now_seconds: the back end's time, which beats tell
    """
    found: dict[str, dict[tuple[str, str, str], float]] = {kind: {} for kind in FIGURES}
    for beat in beats:
        # Reporters of an older release do not say all of it.
        name = tuple(str(beat.get(each, "")) for each in ("binary", "host", "cell"))
        who = (name[0], name[1], name[2])
        for kind, value in (
            ("living", 1.0),
            ("queued", _number(beat.get("queued"))),
            ("refused", _number(beat.get("refused"))),
        ):
            found[kind][who] = found[kind].get(who, 0.0) + value
        silent = _age_seconds(_number(beat.get("beat_at")), now_seconds)
        found["silent"][who] = max(found["silent"].get(who, 0.0), silent)
    return found


def _number(value: Any) -> float:
    """Return a figure of a beat; 0 for what is none, so that it hides no other reporter."""
    is_one = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if is_one else 0.0


def _age_seconds(beat_at: float, now_seconds: float) -> float:
    """Return how long ago a reporter spoke: what it said in the future is as far away."""
    age = now_seconds - beat_at
    return max(0.0, age) if backend_time.is_believed(beat_at, now_seconds) else -age
