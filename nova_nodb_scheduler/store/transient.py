# SPDX-License-Identifier: Apache-2.0
"""A persistent map that is written in bursts between two frozen states."""

from __future__ import annotations

from typing import Generic, TypeVar

import immutables

K = TypeVar("K")
V = TypeVar("V")


class Transient(Generic[K, V]):
    """Alternates between a mutation, for the writer, and a Map, for snapshots.

    Both turns cost O(1): a mutation writes in place to the nodes it made
    itself and copies those a frozen map can see.
    """

    __slots__ = ("_map", "_mutation")

    def __init__(self) -> None:
        self._map: immutables.Map[K, V] = immutables.Map()
        self._mutation: immutables.MapMutation[K, V] | None = None

    def open(self) -> immutables.MapMutation[K, V]:
        """Return what may be written to until the next :meth:`freeze`."""
        if self._mutation is None:
            self._mutation = self._map.mutate()
        return self._mutation

    def freeze(self) -> immutables.Map[K, V]:
        """Return the present state, which nothing changes any more."""
        if self._mutation is not None:
            self._map = self._mutation.finish()
            self._mutation = None
        return self._map
