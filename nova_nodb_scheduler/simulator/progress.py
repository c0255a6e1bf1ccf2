# SPDX-License-Identifier: Apache-2.0
"""Where a run stands, for whoever watches it."""

from __future__ import annotations

from collections.abc import Callable

import attrs


@attrs.frozen
class Progress:
    """Where a run stands, for a progress bar."""

    stage: str
    done: int
    of: int
    servers: int = 0
    overcommitted: int = 0
    waiting: int = 0


Told = Callable[[Progress], None]


def not_told(_progress: Progress) -> None:
    """Tell nobody."""
