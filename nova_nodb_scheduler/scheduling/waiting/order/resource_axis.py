# SPDX-License-Identifier: Apache-2.0
"""Amounts by resource class as vectors: which class stands in which column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

#: Amounts, whole numbers of Placement's units.
Vector: TypeAlias = npt.NDArray[np.int64]


#: No host has as much of anything: whoever needs more, or as much, fits nowhere.
_MOST = 1 << 60


class ResourceAxis:
    """The columns; they only become more. Not safe for threads."""

    def __init__(self) -> None:
        self._columns: dict[str, int] = {}
        self._asked: tuple[str, ...] = ()
        self._places: Vector = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self._columns)

    def learn(self, names: Mapping[str, int]) -> None:
        """Give classes a column that have none."""
        for name in names:
            self._columns.setdefault(name, len(self._columns))

    def vector(self, amounts: Mapping[str, int]) -> Vector:
        """Return amounts, shape (columns,); every class of them must have been learnt."""
        vector = np.zeros(len(self._columns), np.int64)
        for name, amount in amounts.items():
            vector[self._columns[name]] = min(amount, _MOST)
        return vector

    def take(self, resources: Sequence[str], rows: Vector) -> Vector:
        """Return rows of a caller's columns in these, shape (n, columns), as a copy.

        What the caller has no column of, its hosts have nothing of.
        """
        names = tuple(resources)
        if names != self._asked or len(self._places) != len(self._columns):
            known = {name: place for place, name in enumerate(names)}
            # The place behind the last one is a column of zeros.
            places = [known.get(name, len(names)) for name in self._columns]
            self._asked, self._places = names, np.array(places, np.int64)
        padded = np.zeros((len(rows), len(names) + 1), np.int64)
        padded[:, : len(names)] = rows
        return padded[:, self._places]
