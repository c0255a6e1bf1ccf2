# SPDX-License-Identifier: Apache-2.0
"""Many small decisions out of one drawn number.

A cluster takes hundreds of decisions, and drawing each costs more than deciding
the case. One number a thing keeps hypothesis' shrinking where it helps: things
are dropped, and those that stay become plain (number 0) unless they matter.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Dice:
    """Decides at random, always alike for a number; 0 always takes what is first."""

    def __init__(self, number: int) -> None:
        self._random = random.Random(number) if number else None

    def one(self, choices: Sequence[T]) -> T:
        """Return one of some things."""
        return choices[0] if self._random is None else self._random.choice(choices)

    def some(self, choices: Sequence[T], at_most: int) -> list[T]:
        """Return some different things, perhaps none."""
        if self._random is None:
            return []
        count = self._random.randint(0, min(at_most, len(choices)))
        return self._random.sample(choices, count)

    def once_in(self, times: int) -> bool:
        """Say yes once in so many times."""
        return self._random is not None and self._random.randrange(times) == 0


def dice() -> st.SearchStrategy[Dice]:
    """Draw dice."""
    return st.integers(0, 2**32 - 1).map(Dice)
