# SPDX-License-Identifier: Apache-2.0
"""How payloads are kept: what a store needs of whoever packs them."""

from __future__ import annotations

from typing import Protocol


class Packing(Protocol):
    """Makes the payloads of one namespace, in one epoch, smaller."""

    def pack(self, payload: bytes) -> bytes:
        """Return a payload packed; one thread at a time."""

    def readable(self, kept: bytes) -> bytes:
        """Return a payload of the same state; kept may be packed or not."""

    def unpack(self, kept: bytes) -> bytes:
        """Return the very payload; kept may be packed or not."""


class AsTheyAre:
    """Keeps payloads as they came."""

    def pack(self, payload: bytes) -> bytes:
        """Return the payload."""
        return payload

    def readable(self, kept: bytes) -> bytes:
        """Return the payload."""
        return kept

    def unpack(self, kept: bytes) -> bytes:
        """Return the payload."""
        return kept
