# SPDX-License-Identifier: Apache-2.0
"""How payloads are kept: what a store needs of whoever packs them."""

from __future__ import annotations

import sys
from typing import ClassVar, Protocol


class Packing(Protocol):
    """Makes the payloads of one namespace, in one epoch, smaller.

    :cvar least_bytes: smaller ones stay as they are, and need not be given
    """

    least_bytes: ClassVar[int]

    def pack(self, payload: bytes) -> bytes:
        """Return a payload packed; one thread at a time."""

    def readable(self, kept: bytes) -> bytes:
        """Return a payload of the same state; kept may be packed or not."""

    def unpack(self, kept: bytes) -> bytes:
        """Return the very payload; kept may be packed or not."""


class AsTheyAre:
    """Keeps payloads as they came."""

    least_bytes: ClassVar[int] = sys.maxsize

    def pack(self, payload: bytes) -> bytes:
        """Return the payload."""
        return payload

    def readable(self, kept: bytes) -> bytes:
        """Return the payload."""
        return kept

    def unpack(self, kept: bytes) -> bytes:
        """Return the payload."""
        return kept
