# SPDX-License-Identifier: Apache-2.0
"""Refuses what no driver may send, before anything is sent.

Every driver's ``write`` and ``read`` go through here, so that a name which no
record may have (:mod:`nova_nodb_scheduler.model.records`) is answered by
each of them in the same way, and keeps nothing else of its call from being
carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract

_NOT_ALONE = "it was to be written together with another, whose name is refused"


def write(
    driver: str,
    capabilities: contract.Capabilities,
    writes: Sequence[records.Write],
    send: Callable[[Sequence[records.Write]], list[records.WriteResult]],
    *,
    atomic: bool,
) -> list[records.WriteResult]:
    """Check one call of :meth:`contract.Synchronizer.write`, and carry out what may be sent.

    :param send: carries out writes whose names are sound
    :raises ValueError: a key occurs twice
    :raises CapabilityMissing: atomic over more keys than declared
    :raises PayloadTooLarge: a payload is larger than declared
    """
    _check(driver, capabilities, writes, atomic=atomic)
    refused = {
        place: records.WriteResult(records.Verdict.REFUSED, reason=fault)
        for place, each in enumerate(writes)
        if (fault := each.key.fault) is not None
    }
    if not refused:
        return send(writes)
    if atomic:
        # All or none: none is.
        other = records.WriteResult(records.Verdict.REFUSED, reason=_NOT_ALONE)
        return [refused.get(place, other) for place in range(len(writes))]
    sound = [each for place, each in enumerate(writes) if place not in refused]
    sent = iter(send(sound) if sound else ())
    return [refused[place] if place in refused else next(sent) for place in range(len(writes))]


def read(
    keys: Collection[records.RecordKey],
    ask: Callable[[Collection[records.RecordKey]], Mapping[records.RecordKey, records.Record]],
) -> Mapping[records.RecordKey, records.Record]:
    """Read what records may be called; nothing stands under any other name.

    :param ask: reads records whose names are sound
    """
    sound = [key for key in keys if key.fault is None]
    return ask(sound) if sound or not keys else {}


def _check(
    driver: str,
    capabilities: contract.Capabilities,
    writes: Sequence[records.Write],
    *,
    atomic: bool,
) -> None:
    keys = {write.key for write in writes}
    if len(keys) != len(writes):
        raise ValueError("a key occurs twice in one call of write()")
    if atomic and len(writes) > capabilities.atomic_keys:
        raise errors.CapabilityMissing(
            driver,
            f"an all-or-nothing write of {len(writes)} keys (it offers {capabilities.atomic_keys})",
        )
    limit = capabilities.max_payload_bytes
    for write in writes:
        if not write.deleted and len(write.payload) > limit:
            raise errors.PayloadTooLarge(str(write.key), len(write.payload), limit)
