# SPDX-License-Identifier: Apache-2.0
"""Refuses the writes that no driver may send, before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract


def check(
    driver: str,
    capabilities: contract.Capabilities,
    writes: Sequence[records.Write],
    *,
    atomic: bool,
) -> None:
    """Check one call of :meth:`contract.Synchronizer.write`.

    :raises ValueError: a key occurs twice
    :raises CapabilityMissing: atomic over more keys than declared
    :raises PayloadTooLarge: a payload is larger than declared
    """
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
