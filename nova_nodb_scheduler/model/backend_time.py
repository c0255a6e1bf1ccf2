# SPDX-License-Identifier: Apache-2.0
"""Times that records carry, by the back end's clock, and which of them are believed.

A record whose time lies in the future never grows old: it would prove for ever
what nobody proved. A clock that was set back makes such records by itself, so
does whoever can write the back end; they count as if they were never written.
"""

from __future__ import annotations

#: How far a clock may lead: the nodes of a database cluster each have their own,
#: and a reader's idea of the back end's time is a little old.
MARGIN_SECONDS = 30.0

NEVER = float("-inf")


def is_believed(at_seconds: float, now_seconds: float) -> bool:
    """Tell whether a time may be the truth; NaN is not."""
    return at_seconds <= now_seconds + MARGIN_SECONDS


def believed(at_seconds: float, now_seconds: float) -> float:
    """Return a time of a record, or :data:`NEVER` where it lies in the future."""
    return at_seconds if is_believed(at_seconds, now_seconds) else NEVER
