# SPDX-License-Identifier: Apache-2.0
"""The steps of the driver's protocols, where tests pause and kill its process."""

from __future__ import annotations

import enum
from collections.abc import Callable


class Step(enum.Enum):
    """What a client is about to do.

    A write passes READ to DONE in this order, GIVE_UP where its compare-and-set
    was refused. A reader passes VOID and FENCE where it waited for a writer too
    long, and STABLE now and then. Who finds no epoch passes LIST and EPOCH, who ends one
    LIST and REPLACE, and both SWEEP and DELIST for what is not in force. A
    collection passes FLOOR to STRIKE, and for what others left BAR, SWEEP and DELIST.
    """

    READ = "read the records with their cas tokens"
    PLACEHOLDER = "add the placeholder of an absent record"
    INDEX = "put the record's name on the index"
    ANNOUNCE = "append the name of a record to be deleted to the deletion log"
    SEQUENCE = "take versions from the counter"
    SLOT = "add the log slots"
    RECORD = "compare-and-set the records"
    GIVE_UP = "look again at records that were refused"
    DONE = "return"
    VOID = "void a slot that nobody used"
    FENCE = "compare-and-set a record to shut its writer out"
    STABLE = "publish how far the log is stable"
    LIST = "put an epoch on the list of those that keys may be of"
    EPOCH = "add the name of an epoch where there is none"
    REPLACE = "put an epoch in the place of another"
    SWEEP = "remove what is left of an epoch"
    DELIST = "take an epoch that was swept off the list"
    BAR = "store the epoch in force anew, so that nobody has a token to replace it with"
    FLOOR = "raise the floor"
    MARK = "mark tombstones as collected"
    UNLIST = "take collected tombstones off the index"
    REMOVE = "remove collected tombstones"
    STRIKE = "take names off the deletion log"


#: Told each step before it is taken, in the caller's thread.
Observer = Callable[[Step], None]
