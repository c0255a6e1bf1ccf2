# SPDX-License-Identifier: Apache-2.0
"""One record as readers see it; its payload is unpacked, and decoded, when that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler.store import keeping


@attrs.frozen
class StoredRecord:
    """A record as the store holds it."""

    key: str
    revision: int
    version: int
    _kept: keeping.Kept = attrs.field(eq=False, repr=False)
    _packing: keeping.Packing = attrs.field(eq=False, repr=False)
    _decode: Callable[[keeping.Packing, keeping.Kept], Mapping[str, Any]] = attrs.field(
        eq=False, repr=False
    )

    @property
    def payload(self) -> bytes:
        """A payload of the text that came; see :meth:`.keeping.Packing.unpack`."""
        return self._packing.unpack(self._kept)

    def holds(self, payload: bytes) -> bool:
        """Return whether the record's payload has the same text as another."""
        return self._packing.holds(self._kept, payload)

    @property
    def state(self) -> Mapping[str, Any]:
        """The decoded payload, shared with other readers: not to be changed.

        :raises UndecodableRecord: the payload is damaged
        """
        return self._decode(self._packing, self._kept)
