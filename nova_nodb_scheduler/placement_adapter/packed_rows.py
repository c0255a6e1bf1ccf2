# SPDX-License-Identifier: Apache-2.0
"""Rows that come as one text each.

A client library of MySQL takes a result apart column by column, and has each described with every
statement: for twenty columns that was a tenth of the processor's time of a request. A row is
its kind, its words, and one text that may hold anything: ``4 17 1 8f4b...demo``.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa


def packed(kind: int, words: Sequence[Any], text: Any = None) -> Any:
    """Return a row's text in SQL; NULL where a word or the text is.

    :param words: what has no spaces: numbers, uuids, texts by :func:`as_word`
    :param text: comes last
    """
    parts: list[Any] = [literal(f"{kind:d} ")]
    for each in words:
        parts += (_as_text(each), literal(" "))
    if text is not None:
        parts.append(_as_text(text))
    return functools.reduce(operator.add, parts)


def or_nothing(value: Any, mark: str = "") -> Any:
    """Return a word or text in SQL that is empty where the value is NULL.

    :param mark: stands before what is there
    """
    shown = sa.cast(value, sa.String())
    return sa.func.coalesce(literal(mark) + shown if mark else shown, literal(""))


def as_word(text: Any) -> Any:
    """Return a text in SQL without the spaces that it has.

    Its length beside it would not do: SQLite's ends at a NUL.
    """
    escaped = sa.func.replace(sa.cast(text, sa.String()), literal("~"), literal("~1"))
    return sa.type_coerce(sa.func.replace(escaped, literal(" "), literal("~0")), sa.String())


def text_of(word: str) -> str:
    """Return a text of :func:`as_word`."""
    return word.replace("~0", " ").replace("~1", "~") if "~" in word else word


def literal(text: str) -> Any:
    """Return a text in SQL; without quotes in it."""
    return sa.literal_column(f"'{text}'", sa.String())


def unpacked(line: str, words: int) -> list[str]:
    """Return a row's so many words, and its text, without its kind."""
    return line.split(" ", words + 1)[1:]


def number(word: str) -> int | None:
    """Return a number of :func:`or_nothing`."""
    return int(word) if word else None


def _as_text(value: Any) -> Any:
    if not isinstance(value.type, sa.String):
        # Every database joins a number to a text.
        return sa.type_coerce(value, sa.String())
    # Columns of different collations are not to meet.
    return sa.cast(value, sa.String()) if isinstance(value, sa.Column) else value
