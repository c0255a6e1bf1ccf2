# SPDX-License-Identifier: Apache-2.0
"""What reporters say of themselves in their beats, for whoever goes by it.

A conductor that journals heartbeats says ``journals``. A scheduler that knows no journals
must not decide for its cell, whose records grow old: so ``behind_seconds``, which it reads,
says that the cell is behind, and ``late_seconds`` what is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Cell of a process that writes into every cell, and has none of its own.
EVERY_CELL = "*"

#: What says for which cells a process reports, and how late.
_LATENESS = ("late_seconds", "behind_seconds")


def lateness(beat: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return by scope how long a reporter's oldest unpublished change has waited, in seconds.

    :raises KeyError: it does not say
    """
    late: Mapping[str, Any] = (
        beat["late_seconds"] if "late_seconds" in beat else beat["behind_seconds"]
    )
    return late


def is_own(beat: Mapping[str, Any], scope: str) -> bool:
    """Return whether a scope is the cell that a process is a conductor of."""
    return bool(beat.get("cell") == scope)


def may_write(beat: Mapping[str, Any], scope: str) -> bool:
    """Return whether a process may have written a scope's rows.

    A conductor that reaches every cell writes its own for compute services, and others for
    the servers that it is asked to move.
    """
    return is_own(beat, scope) or writes_every_cell(beat)


def writes_every_cell(beat: Mapping[str, Any]) -> bool:
    """Return whether a process may write any cell: nova-api, a conductor with the API database."""
    return beat.get("cell") == EVERY_CELL or beat.get("writes_every_cell") is True


def journals(beat: Mapping[str, Any]) -> bool:
    """Return whether a conductor writes the heartbeats that it hears to a journal."""
    return beat.get("journals") is True


def is_readable(beat: Mapping[str, Any]) -> bool:
    """Return whether what a beat says of its cells, and how late they are, can be read.

    What it does not say is not odd: older releases, and schedulers, say less.
    """
    if not isinstance(beat.get("guards", ()), list | tuple):
        return False
    told = [beat[name] for name in _LATENESS if name in beat]
    return all(
        isinstance(each, Mapping) and all(isinstance(late, int | float) for late in each.values())
        for each in told
    )
