# SPDX-License-Identifier: Apache-2.0
"""The steps of the driver's protocols, where tests pause and kill its process."""

from __future__ import annotations

from collections.abc import Callable

#: A small write in counter mode by one statement, on MariaDB.
WHOLE = "send whole"
#: Of the transaction that begins an epoch, drops old tombstones, or records on an
#: operator's word: its commit.
BEGIN_EPOCH, COLLECT, RESET = "begin epoch", "collect", "reset"

_KEEPING = (BEGIN_EPOCH, COLLECT, RESET)

#: In counter mode, see :mod:`.writing`.
COUNTER: tuple[str, ...] = ("lock", "upsert", "commit", "reply", *_KEEPING)
#: The same where a small write may be one statement: it passes WHOLE in place of
#: upsert and commit, and comes by these where it wrote nothing by that.
COUNTER_OR_WHOLE: tuple[str, ...] = ("lock", WHOLE, "upsert", "commit", "reply", *_KEEPING)
#: In sequencer mode, see :mod:`.sequenced_writing` and :mod:`.numbering`.
SEQUENCER: tuple[str, ...] = (
    *("epoch", "lock", "upsert", "commit"),
    *("number", "assign", "publish", "reply"),
    *_KEEPING,
)

#: Told each step before it is taken, in the caller's thread.
Observer = Callable[[str], None]
