# SPDX-License-Identifier: Apache-2.0
"""The steps of the driver's protocol, where tests pause and kill its process."""

from __future__ import annotations

import enum
from collections.abc import Callable


class Step(enum.Enum):
    """What a client is about to do.

    A write passes COMMIT, REPLY and DONE in this order; a client that finds
    no epoch, or a broken one, passes EPOCH before; a collection COLLECT alone.
    """

    EPOCH = "have the server begin an epoch where none is in force"
    COMMIT = "send the script that compares and sets"
    REPLY = "read the script's reply"
    DONE = "return"
    COLLECT = "send the script that drops old tombstones"


#: Told each step before it is taken, in the caller's thread.
Observer = Callable[[Step], None]
