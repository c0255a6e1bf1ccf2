# SPDX-License-Identifier: Apache-2.0
"""Counts calls of functions, which no other work on the machine moves."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count(do: Callable[..., Any], *given: Any) -> int:
    """Return how many functions this thread calls in a call, Python's and C's.

    None of them is a finalizer of what earlier work left to the garbage collector.
    """
    calls, collects = 0, gc.isenabled()

    def note(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.disable()
    sys.setprofile(note)
    try:
        do(*given)
    finally:
        sys.setprofile(None)
        if collects:
            gc.enable()
    return calls
