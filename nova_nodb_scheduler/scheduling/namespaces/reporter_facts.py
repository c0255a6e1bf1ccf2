# SPDX-License-Identifier: Apache-2.0
"""What reporters say of themselves in their beats, for whoever goes by it.

A conductor that journals heartbeats says ``journals``. A scheduler that knows no journals
must not decide for its cell, whose records grow old: so ``behind_seconds``, which it reads,
says that the cell is behind, and ``late_seconds`` what is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def lateness(beat: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return by scope how long a reporter's oldest unpublished change has waited, in seconds.

    :raises KeyError: it does not say
    """
    late: Mapping[str, Any] = (
        beat["late_seconds"] if "late_seconds" in beat else beat["behind_seconds"]
    )
    return late


def journals(beat: Mapping[str, Any]) -> bool:
    """Return whether a conductor writes the heartbeats that it hears to a journal."""
    return beat.get("journals") is True
