# SPDX-License-Identifier: Apache-2.0
"""How payloads are kept: what a store needs of whoever packs them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

#: A payload by itself, packed or not, or (bundle of several, place in it). A
#: place is below 256.
Kept = bytes | tuple[Any, int]


class Packing(Protocol):
    """Makes the payloads of one namespace, in one epoch, smaller.

    :cvar least_bytes: smaller ones stay as they are, and need not be given
    """

    least_bytes: ClassVar[int]

    def pack(self, payload: bytes, text: bytes | None = None) -> bytes:
        """Return a payload packed; one thread at a time.

        :param text: what it holds, where that is at hand
        """

    def pack_many(self, payloads: Sequence[bytes], texts: Sequence[bytes]) -> Sequence[Kept]:
        """Return payloads packed, by themselves or in bundles; one thread at a time.

        :param texts: what they hold
        """

    def readable(self, kept: Kept) -> bytes:
        """Return a payload of the same state; kept may be packed or not."""

    def unpack(self, kept: Kept) -> bytes:
        """Return a payload of the same text; kept may be packed or not.

        It is the very payload where that was compressed by an equal library.
        """

    def holds(self, kept: Kept, payload: bytes) -> bool:
        """Return whether kept was made of a payload of the same text."""


class AsTheyAre:
    """Keeps payloads as they came."""

    least_bytes: ClassVar[int] = sys.maxsize

    def pack(self, payload: bytes, text: bytes | None = None) -> bytes:
        """Return the payload."""
        return payload

    def pack_many(self, payloads: Sequence[bytes], texts: Sequence[bytes]) -> Sequence[Kept]:
        """Return the payloads."""
        return payloads

    def readable(self, kept: Kept) -> bytes:
        """Return the payload."""
        return _alone(kept)

    def unpack(self, kept: Kept) -> bytes:
        """Return the payload."""
        return _alone(kept)

    def holds(self, kept: Kept, payload: bytes) -> bool:
        """Return whether they are equal."""
        return kept == payload


def _alone(kept: Kept) -> bytes:
    assert isinstance(kept, bytes)
    return kept
