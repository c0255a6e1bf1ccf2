# SPDX-License-Identifier: Apache-2.0
"""The requirements that flavor extra specs state with operators.

A requirement is an operator and operands, or a text that must be equal. The
operators are those of Nova's ``extra_specs_ops``: numbers ``=`` (at least),
``==``, ``!=``, ``>=``, ``<=``; texts ``s==``, ``s!=``, ``s<``, ``s<=``,
``s>``, ``s>=``; ``<in>`` (a part of), ``<all-in>``, ``<or>`` (one of).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

_NUMBERS: dict[str, Callable[[float, float], bool]] = {
    "=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
}
_TEXTS: dict[str, Callable[[str, str], bool]] = {
    "<in>": operator.contains,
    "s==": operator.eq,
    "s!=": operator.ne,
    "s<": operator.lt,
    "s<=": operator.le,
    "s>": operator.gt,
    "s>=": operator.ge,
}


class Requirement:
    """One requirement, read once.

    :ivar broken: Nova cannot evaluate it, whatever the value
    :ivar numeric: values that are no numbers make Nova raise
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._operator, *self._operands = text.split() or [""]
        self.numeric = self._operator in _NUMBERS and bool(self._operands)
        self.broken = (self._operator == "<or>" and not self._operands) or (
            self.numeric and not is_number(self._operands[0])
        )

    def comparison(self) -> tuple[Callable[[Any, Any], Any], float] | None:
        """Return how numbers are compared, and with what; None if they are not."""
        if not self.numeric or self.broken:
            return None
        return _NUMBERS[self._operator], float(self._operands[0])

    def accepts(self, value: str) -> bool:
        """Tell whether a value meets it; what makes Nova raise does not."""
        if self._operator == "<or>":
            # Every other word is the operator again, whatever it says.
            return value in self._operands[::2]
        if self._operator == "<all-in>":
            return bool(self._operands) and all(each in value for each in self._operands)
        if self._operator in _NUMBERS:
            if not self.numeric or self.broken or not is_number(value):
                return False
            return _NUMBERS[self._operator](float(value), float(self._operands[0]))
        if self._operator in _TEXTS:
            return bool(self._operands) and _TEXTS[self._operator](value, self._operands[0])
        return value == self._text


@functools.lru_cache(maxsize=1024)
def requirement(text: str) -> Requirement:
    """Return the requirement that a text states."""
    return Requirement(text)


def is_number(text: str) -> bool:
    """Tell whether Nova can read a text as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
