# SPDX-License-Identifier: Apache-2.0
"""Texts of a column as small numbers, each number one object however often it is kept.

A vocabulary only grows within an epoch: codes already handed out keep their
meaning in every snapshot. Its size is the number of distinct texts the column
held since the epoch began.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

_MADE_AT_A_TIME = 4096

_lock = threading.Lock()
_made: list[int] = []


def shared_number(number: int) -> int:
    """Return an equal number, the same object at every call. From any thread.

    Rows and codes stand in several maps each; an object of its own in every one of
    them is most of what an index takes.
    """
    if number >= len(_made):
        _make(number)
    return _made[number]


def shared_numbers(numbers: Sequence[int]) -> Iterator[int]:
    """Return the same of each of some numbers."""
    if numbers and max(numbers) >= len(_made):
        _make(max(numbers))
    return map(_made.__getitem__, numbers)


def _make(most: int) -> None:
    with _lock:
        while most >= len(_made):
            _made.extend(range(len(_made), len(_made) + _MADE_AT_A_TIME))


BITS_PER_WORD = 64


class VocabularyView:
    """What a snapshot sees of a vocabulary: its first ``len()`` texts, for good."""

    __slots__ = ("_codes", "_length", "_texts")

    def __init__(self, texts: list[str], codes: dict[str, int], length: int) -> None:
        self._texts, self._codes, self._length = texts, codes, length

    def __len__(self) -> int:
        return self._length

    @property
    def words(self) -> int:
        """How many words of 64 bits a set of these texts takes, at least 1."""
        return max(1, -(-self._length // BITS_PER_WORD))

    def code(self, text: str) -> int | None:
        """Return the code of a text, or None where no record of the snapshot's past held it."""
        code = self._codes.get(text)
        return code if code is not None and code < self._length else None

    def text(self, code: int) -> str:
        """Return the text of a code.

        :raises IndexError: no such code in this snapshot
        """
        if not 0 <= code < self._length:
            raise IndexError(f"code {code} of {self._length}")
        return self._texts[code]

    def texts(self) -> tuple[str, ...]:
        """Return all texts, in order of their codes."""
        return tuple(self._texts[: self._length])


class Vocabulary:
    """The writer's side: gives out codes. One thread writes."""

    __slots__ = ("_codes", "_texts")

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._codes: dict[str, int] = {}

    def codes(self, texts: Sequence[str]) -> npt.NDArray[np.int32]:
        """Return the codes of texts, shape (n,), new ones where they have none."""
        try:
            # Nearly always: hosts and projects of servers are known.
            return self._known(texts)
        except KeyError:
            news = [text for text in dict.fromkeys(texts) if text not in self._codes]
            first = len(self._texts)
            # The texts first: a reader that finds a code finds its text.
            self._texts += news
            self._codes.update(
                zip(news, shared_numbers(range(first, first + len(news))), strict=True)
            )
            return self._known(texts)

    def _known(self, texts: Sequence[str]) -> npt.NDArray[np.int32]:
        return np.fromiter(map(self._codes.__getitem__, texts), np.int32, len(texts))

    def code(self, text: str) -> int:
        """Return the code of a text, a new one where it has none."""
        code = self._codes.get(text)
        if code is None:
            # The text first: a reader that finds the code finds the text.
            code = shared_number(len(self._texts))
            self._texts.append(text)
            self._codes[text] = code
        return code

    def same(self, text: str) -> str:
        """Return the equal text that is kept already, so that records share it."""
        code = self._codes.get(text)
        return text if code is None else self._texts[code]

    def view(self) -> VocabularyView:
        return VocabularyView(self._texts, self._codes, len(self._texts))
