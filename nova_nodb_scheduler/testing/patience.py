# SPDX-License-Identifier: Apache-2.0
"""Waiting for what must come: the one failure of a test that a busy machine can cause.

A test that asserts a state is never run again until it passes. What ran out of
patience is another matter, if it says so by its type: the runner
(``tools/test.sh``) may try it again, alone, and counts it in its last lines.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class OutOfPatience(AssertionError):
    """What was waited for did not come in time. Nothing that came was wrong."""


def wait_until(
    condition: Callable[[], object],
    seconds: float,
    what: str | Callable[[], object],
    pause_seconds: float = 0.02,
) -> None:
    """Wait until a condition holds; it is looked at once more at the very end.

    :param what: what is waited for, or a callable that describes what stands there instead
    :raises OutOfPatience: it did not hold within ``seconds``
    """
    deadline = time.monotonic() + seconds
    while True:
        is_over = time.monotonic() > deadline
        if condition():
            return
        if is_over:
            told = what() if callable(what) else what
            raise OutOfPatience(f"not within {seconds:g} s: {told}")
        time.sleep(pause_seconds)
