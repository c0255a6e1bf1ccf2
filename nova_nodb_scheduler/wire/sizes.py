# SPDX-License-Identifier: Apache-2.0
"""How large decoded values are, without recursion and without reading them to their end.

A few kilobytes of text can hold values that take a hundred times as much
memory (``[[],[],[]]``): what bounds a caller counts what the values take once
they are decoded, and stops at the bound.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

#: What is counted of a text's brackets and commas: an empty list, an empty
#: mapping and a place in a list of CPython, at the least.
_LIST_BYTES, _MAPPING_BYTES, _PLACE_BYTES = 56, 64, 8


class TooDeep(ValueError):
    """Values are nested deeper than was asked for."""


def decoded_bytes(value: Any, most_bytes: int, most_levels: int) -> int:
    """Return the memory that a value of lists, mappings and scalars takes.

    :param most_bytes: where counting stops: what is returned is more than this then
    :param most_levels: how deep lists and mappings may be nested
    :raises TooDeep: they are nested deeper
    """
    total = 0
    levels = [iter((value,))]
    while levels:
        for each in levels[-1]:
            total += sys.getsizeof(each)
            if total > most_bytes:
                return total
            if isinstance(each, Mapping):
                members: Iterator[Any] = itertools.chain.from_iterable(each.items())
            elif isinstance(each, (list, tuple, set, frozenset)):
                members = iter(each)
            else:
                continue
            if len(levels) > most_levels:
                raise TooDeep(f"nested deeper than {most_levels} levels")
            levels.append(members)
            break
        else:
            levels.pop()
    return total


def least_decoded_bytes(text: str) -> int:
    """Return what a JSON text takes decoded, at the least, without decoding it.

    Brackets within texts count like others: a text that holds JSON is meant to
    be decoded by somebody, too.
    """
    return (
        len(text)
        + _LIST_BYTES * text.count("[")
        + _MAPPING_BYTES * text.count("{")
        + _PLACE_BYTES * text.count(",")
    )
