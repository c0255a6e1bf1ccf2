# SPDX-License-Identifier: Apache-2.0
"""Single values as what a column of each kind holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nova_nodb_scheduler.model import namespaces

_LEAST = -(2**63)
_GREATEST = 2**63 - 1


def to_text(value: object) -> str:
    """Return text, numbers and truth values as text.

    :raises ValueError: anything else
    """
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float)):
        return str(value)
    raise ValueError(f"{_shown(value)} is no text")


def to_int64(value: object) -> int:
    """Return a whole number that fits 64 bits with a sign.

    :raises ValueError: anything else
    """
    if type(value) is int:
        if _LEAST <= value <= _GREATEST:
            return value  # nearly always
        number = value
    elif isinstance(value, float):
        if not value.is_integer():
            raise ValueError(f"{value!r} is no whole number")
        number = int(value)
    elif isinstance(value, (int, str)):
        try:
            number = int(value)
        except ValueError as error:
            raise ValueError(f"{_shown(value)} is no whole number") from error
    else:
        raise ValueError(f"{_shown(value)} is no whole number")
    if not _LEAST <= number <= _GREATEST:
        raise ValueError("the number does not fit 64 bits with a sign")
    return number


def _to_float(value: object) -> float:
    if not isinstance(value, (int, float, str)):
        raise ValueError(f"{_shown(value)} is no number")
    try:
        return float(value)
    except ValueError as error:
        raise ValueError(f"{_shown(value)} is no number") from error


def _to_bool(value: object) -> bool:
    # Text is refused: bool("False") is True.
    if isinstance(value, (bool, int, float)) and value in (0, 1):
        return bool(value)
    raise ValueError(f"{_shown(value)} is neither true nor false")


def _to_texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise ValueError(f"{_shown(value)} is no list of texts")
    for text in value:
        if not isinstance(text, str):
            raise ValueError(f"{_shown(text)} in the list is no text")
    return tuple(value)


CONVERTERS: dict[namespaces.Kind, Callable[[object], Any]] = {
    namespaces.Kind.INT: to_int64,
    namespaces.Kind.FLOAT: _to_float,
    namespaces.Kind.BOOL: _to_bool,
    namespaces.Kind.CATEGORY: to_text,
    namespaces.Kind.BITS: _to_texts,
}

#: Types of values that need no conversion.
PLAIN: dict[namespaces.Kind, set[type[Any]]] = {
    namespaces.Kind.INT: {int},
    namespaces.Kind.FLOAT: {float, int},
    namespaces.Kind.BOOL: {bool},
    namespaces.Kind.CATEGORY: {str},
    namespaces.Kind.BITS: set(),
}

DTYPES: dict[namespaces.Kind, type[Any]] = {
    namespaces.Kind.INT: np.int64,
    namespaces.Kind.FLOAT: np.float64,
    namespaces.Kind.BOOL: np.bool_,
}

ZERO: dict[namespaces.Kind, Any] = {
    namespaces.Kind.INT: 0,
    namespaces.Kind.FLOAT: 0.0,
    namespaces.Kind.BOOL: False,
    namespaces.Kind.CATEGORY: "",
    namespaces.Kind.BITS: (),
}


def _shown(value: object) -> str:
    """Show a value in a message, but never a page of it."""
    text = repr(value) if not isinstance(value, int) else "the number"
    return text if len(text) <= 60 else f"{text[:57]}..."
