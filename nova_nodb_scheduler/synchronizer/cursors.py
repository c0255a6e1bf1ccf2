# SPDX-License-Identifier: Apache-2.0
"""Whether a feed can go on from a cursor: what every driver with epoch, head and floor asks."""

from __future__ import annotations

from nova_nodb_scheduler.model import records


def refuse(
    cursor: records.Cursor, *, epoch: str, head: int, floor: int
) -> records.ResyncNeeded | None:
    """Return why the feed cannot go on from a cursor; None where it can.

    :param epoch: the one in force, as cursors name it
    :param head: version of the last accepted write
    :param floor: cursors below it miss what was dropped
    """
    reason = records.ResyncReason
    if cursor.epoch != epoch:
        return records.ResyncNeeded(reason.EPOCH_CHANGED, f"the epoch is {epoch}")
    if cursor.version > head:
        return records.ResyncNeeded(reason.HEAD_BEHIND_CURSOR, f"the head is {head}")
    if cursor.version < floor:
        return records.ResyncNeeded(reason.HISTORY_TRUNCATED, f"the floor is {floor}")
    return None
