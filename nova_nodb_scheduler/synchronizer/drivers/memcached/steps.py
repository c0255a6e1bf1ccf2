# SPDX-License-Identifier: Apache-2.0
"""The steps of the write protocol, where tests pause and kill a writer."""

from __future__ import annotations

import enum
from collections.abc import Callable


class Step(enum.Enum):
    """What a writer is about to do, in this order."""

    READ = "read the records with their cas tokens"
    BIRTH = "add the birth of an absent record"
    INDEX = "append the record's name to the index"
    OBITUARY = "append the name of a record to be deleted to the graveyard"
    SEQUENCE = "take versions from the counter"
    SLOT = "add the log slots"
    RECORD = "compare-and-set the records"
    DONE = "return"


Observer = Callable[[Step], None]
