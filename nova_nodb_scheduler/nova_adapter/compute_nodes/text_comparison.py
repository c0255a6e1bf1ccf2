# SPDX-License-Identifier: Apache-2.0
"""How a cell's database compares text, so that memory finds the rows which SQL would.

============ ========================= ============================ ==============
database     ``=``, unique constraints ``LIKE``                     date-times
============ ========================= ============================ ==============
SQLite       byte by byte              ASCII letters without case,  microseconds
                                       no escape character
PostgreSQL   byte by byte              byte by byte, escaped by     microseconds
                                       a backslash
MariaDB,     without case, accents and without case and accents,    whole seconds
MySQL        trailing blanks           escaped by a backslash
============ ========================= ============================ ==============

For MariaDB and MySQL this is ``utf8mb3_general_ci``, which Nova's migrations give the
table: one weight for each character, its base letter in upper case. Another collation
of an operator's own is not known here.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable
from typing import Any

import attrs

#: Wildcards of LIKE, and what escapes them.
_SPECIAL = frozenset("%_\\")


@attrs.frozen
class TextComparison:
    """What is the same text to one kind of database.

    :param dialect: SQLAlchemy's name for it
    :param folds_names: whether ``=`` ignores case, accents and trailing blanks
    :param folds_patterns: whether ``LIKE`` ignores the case, of ASCII letters at least
    :param escape: what takes its meaning from a wildcard in ``LIKE``; empty for nothing
    :param whole_seconds: date-times have no fractions
    """

    dialect: str
    folds_names: bool = False
    folds_patterns: bool = False
    escape: str = "\\"
    whole_seconds: bool = False

    def equal_form(self, text: str) -> str:
        """Return what is the same for all texts that ``=`` takes for one."""
        return _general_form(text).rstrip(" ") if self.folds_names else text

    def is_like(self, text: str | None, pattern: str) -> bool:
        """Tell whether a text matches a pattern of ``LIKE``; NULL matches nothing."""
        return text is not None and self.matcher(pattern)(self.like_form(text))

    def matcher(self, pattern: str) -> Callable[[str], bool]:
        """Return what tells of the :meth:`like_form` of texts whether they match a pattern."""
        wanted = pattern[1:-1]
        if pattern[:1] == pattern[-1:] == "%" != pattern and not _SPECIAL.intersection(wanted):
            # Six times as fast as an expression with a wildcard on either side.
            part = self.like_form(wanted)
            return lambda form: part in form
        matches = _expression(self, pattern).fullmatch
        return lambda form: matches(form) is not None

    def like_form(self, text: str) -> str:
        """Return what is the same for all texts that ``LIKE`` takes for one, but for wildcards."""
        if self.folds_names:
            return _general_form(text)
        return _ascii_form(text) if self.folds_patterns else text


def _general_form(text: str) -> str:
    if text.isascii():
        return text.upper()
    return "".join(unicodedata.normalize("NFD", each)[0].upper()[0] for each in text)


def _ascii_form(text: str) -> str:
    return "".join(each.lower() if each.isascii() else each for each in text)


@functools.lru_cache(maxsize=64)
def _expression(comparison: TextComparison, pattern: str) -> re.Pattern[str]:
    parts = []
    characters = iter(pattern)
    for each in characters:
        if each == "%":
            parts.append(".*")
        elif each == "_":
            parts.append(".")
        else:
            if each == comparison.escape:
                each = next(characters, each)
            parts.append(re.escape(comparison.like_form(each)))
    return re.compile("".join(parts), re.DOTALL)


SQLITE = TextComparison("sqlite", folds_patterns=True, escape="")
POSTGRESQL = TextComparison("postgresql")
MYSQL = TextComparison("mysql", folds_names=True, folds_patterns=True, whole_seconds=True)

#: By SQLAlchemy's names.
BY_DIALECT = {each.dialect: each for each in (SQLITE, POSTGRESQL, MYSQL)}
BY_DIALECT["mariadb"] = MYSQL


def of_engine(engine: Any) -> TextComparison:
    """Return how the database behind an engine compares text.

    :raises KeyError: Nova knows no such database
    """
    return BY_DIALECT[str(engine.dialect.name)]
