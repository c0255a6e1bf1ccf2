# SPDX-License-Identifier: Apache-2.0
"""The steps of the driver's protocols, where tests pause and kill its process."""

from __future__ import annotations

import enum
from collections.abc import Callable


class Step(enum.Enum):
    """What a client is about to do.

    A write passes EPOCH, SEND and DONE in this order, for each transaction it
    is parted into, and TOMBSTONE in place of SEND when it is sent again to
    write over a tombstone; a collection passes SWEEP and COLLECT where there
    is something to drop, a reset SWEEP.
    """

    EPOCH = "make sure of the epoch"
    SEND = "send a transaction of compare-and-sets"
    TOMBSTONE = "send it again, to write over a tombstone"
    DONE = "return"
    SWEEP = "drop what an earlier epoch left"
    COLLECT = "raise the floor and drop tombstones, in one transaction"


#: Told each step before it is taken, in the caller's thread.
Observer = Callable[[Step], None]
