# SPDX-License-Identifier: Apache-2.0
"""Which rows of a frame changed, in order, so that results follow row by row."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


class ChangeLog:
    """The last changes by sequence number; bounded, so old questions go unanswered.

    :param limit: changes that are kept at least; no more than twice as many
    """

    def __init__(self, limit: int = 4096) -> None:
        self.limit = limit
        self._first = 0
        self._rows: list[int] = []

    @property
    def sequence(self) -> int:
        """How many changes there were."""
        return self._first + len(self._rows)

    def add(self, row: int) -> None:
        self._rows.append(row)
        if len(self._rows) > 2 * self.limit:
            self._drop()

    def extend(self, rows: Iterable[int]) -> None:
        self._rows.extend(rows)
        if len(self._rows) > 2 * self.limit:
            self._drop()

    def since(self, sequence: int) -> npt.NDArray[np.intp] | None:
        """Return the rows that changed after a sequence number, each once.

        None where they are too many, or the log does not go back so far.
        """
        start = sequence - self._first
        if start < 0 or len(self._rows) - start > self.limit:
            return None
        rows = self._rows[start:]
        if len(rows) > 1:
            rows = sorted(set(rows))
        return np.array(rows, np.intp)

    def _drop(self) -> None:
        excess = len(self._rows) - self.limit
        del self._rows[:excess]
        self._first += excess
