# SPDX-License-Identifier: Apache-2.0
"""Amounts of resource classes, in as little memory as they need.

Kept by the hundred thousand, and of a handful of combinations of classes.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Mapping
from typing import Any


class Amounts(Mapping[str, int]):
    """A mapping that does not change; see :func:`kept`."""

    __slots__ = ("_names", "_numbers")

    def __init__(self, names: Mapping[str, int], numbers: bytes) -> None:
        self._names, self._numbers = names, numbers

    def __getitem__(self, name: str) -> int:
        (amount,) = struct.unpack_from("<q", self._numbers, self._names[name])
        return int(amount)

    def get(self, name: str, default: Any = None) -> Any:
        """See Mapping; without an exception for each name that is not there."""
        return self[name] if name in self._names else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return repr(dict(self))


_NOTHING: Mapping[str, int] = Amounts({}, b"")


def kept(amounts: Mapping[str, int]) -> Mapping[str, int]:
    """Return equal amounts that take little memory; those given where they do not fit."""
    if not amounts:
        return _NOTHING
    names = tuple(amounts)
    try:
        numbers = struct.pack(f"<{len(names)}q", *amounts.values())
    except struct.error:
        return amounts  # beyond 64 bits, or no whole number
    return Amounts(_places(names), numbers)


@functools.lru_cache(maxsize=4096)
def _places(names: tuple[str, ...]) -> Mapping[str, int]:
    """Return where each number stands; one and the same for equal names."""
    return {name: 8 * place for place, name in enumerate(names)}
