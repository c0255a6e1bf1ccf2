# SPDX-License-Identifier: Apache-2.0
"""Whole numbers from 0 on, each one object however often it is kept.

Rows and codes stand in several maps each; an object of its own in every one of
them is most of what an index takes.
"""

from __future__ import annotations

import threading

_MADE_AT_A_TIME = 4096

_lock = threading.Lock()
_made: list[int] = []


def shared(number: int) -> int:
    """Return an equal number, the same object at every call. From any thread."""
    if number >= len(_made):
        with _lock:
            while number >= len(_made):
                _made.extend(range(len(_made), len(_made) + _MADE_AT_A_TIME))
    return _made[number]
