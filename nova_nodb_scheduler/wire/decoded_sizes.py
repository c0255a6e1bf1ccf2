# SPDX-License-Identifier: Apache-2.0
"""How large decoded values are, and how much memory a record may take when it is decoded.

A few kilobytes of text can hold values that take a hundred times as much
memory (``[[],[],[]]``): what bounds a caller counts what the values take once
they are decoded, and stops at the bound.

The size of a payload says little: 8 kB of zlib hold 8 MB of JSON, and 8 MB of
``[],[],[]`` become 200 MB of Python objects. Measured per byte of text
(tracemalloc, CPython 3.11, orjson 3): at most 32 bytes stay, for
``{"":{}},{"":{}}``; 21 for empty lists, 4 for one long text with a character
beyond 16 bits. While it parses, orjson takes 12 bytes more per byte of text,
of which it touches what the values need.

So a text is not parsed before it was weighed: by its length, and by the
characters that begin a value. Those inside of strings are counted as well,
on purpose: Nova keeps JSON within JSON, which is decoded in its turn.

Writers are bound by the same rule as readers: nobody can write what the others
then keep aside. The bound is one for a process, for a record that one part of
it reads and another refuses would be worse than either.
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs


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


MIB = 1024 * 1024
DEFAULT_TEXT_MIB = 8

#: Objects that one text of a page of records may become, by :func:`weigh`. Pages of 2,048
#: records take some MiB; those of hosts with hundreds of providers each some 100.
PAGE_MEMORY_BYTES = 512 * MIB

#: Nesting of a state, itself counted; orjson writes 254 levels and reads 1,024,
#: and who walks a state calls itself once a level.
MAX_DEPTH = 64

#: What stays of a text of this length is less than any bound; it is not weighed.
_SMALL_BYTES = 16 * 1024
_SMALL_WEIGHT = 33

#: Bytes that a value takes beside its text, at most: one that holds others, and
#: any other. Of a text itself: a copy, and four bytes for a character.
_PER_CONTAINER = 160
_PER_VALUE = 100
_PER_CHARACTER = 5

#: What is counted of a text's brackets and commas: an empty list, an empty
#: mapping and a place in a list of CPython, at the least.
_LIST_BYTES, _MAPPING_BYTES, _PLACE_BYTES = 56, 64, 8


@attrs.frozen
class DecodingBounds:
    """What records may be.

    :param text_bytes: JSON text of one record
    """

    text_bytes: int = DEFAULT_TEXT_MIB * MIB

    @property
    def memory_bytes(self) -> int:
        """Objects that one record may become, by :func:`weigh`."""
        return 4 * self.text_bytes

    @property
    def batch_bytes(self) -> int:
        """Objects of records that are held decoded at a time, the last one excepted."""
        return 2 * self.memory_bytes

    def fault_of(self, text: bytes) -> str | None:
        """Say why a text is too large to be decoded; None if it is not."""
        if len(text) > self.text_bytes:
            return (
                f"it has {len(text)} bytes of JSON, at most {self.text_bytes} are taken "
                "([nodb_scheduler] max_record_mib)"
            )
        if len(text) <= _SMALL_BYTES:
            return None
        weight = weigh(text)
        if weight <= self.memory_bytes:
            return None
        return (
            f"its {len(text)} bytes of JSON would take some {weight // MIB} MiB when decoded, at "
            f"most {self.memory_bytes // MIB} are taken (four times [nodb_scheduler] "
            "max_record_mib)"
        )

    def weigh_short(self, texts: Sequence[bytes]) -> int | None:
        """Return what some short texts take together, as :func:`weigh`, in a few calls for all.

        :returns: None where one is not short, or all take more than one record may
        """
        lengths = list(map(len, texts))
        weight = _SMALL_WEIGHT * sum(lengths)
        if max(lengths, default=0) > min(_SMALL_BYTES, self.text_bytes):
            return None
        return weight if weight <= self.memory_bytes else None


def weigh(text: bytes) -> int:
    """Estimate from above what a text takes when decoded, itself included, in bytes."""
    if len(text) <= _SMALL_BYTES:
        return _SMALL_WEIGHT * len(text)
    return (
        _PER_CHARACTER * len(text)
        + _PER_CONTAINER * (text.count(b"[") + text.count(b"{"))
        + _PER_VALUE * text.count(b",")
    )


def page_text(text: bytes) -> bytes:
    """Return a text that tells of many records, if it may be decoded.

    :raises ValueError: it would take more than :data:`PAGE_MEMORY_BYTES`
    """
    weight = weigh(text)
    if weight > PAGE_MEMORY_BYTES:
        raise ValueError(f"its JSON would take some {weight // MIB} MiB when decoded")
    return text


def least_decoded_bytes(text: str) -> int:
    """Return what a JSON text takes decoded, at the least, without decoding it.

    An estimate from below, where :func:`weigh` is one from above. Brackets within
    texts count like others: a text that holds JSON is meant to be decoded by somebody,
    too.
    """
    return (
        len(text)
        + _LIST_BYTES * text.count("[")
        + _MAPPING_BYTES * text.count("{")
        + _PLACE_BYTES * text.count(",")
    )


def is_too_deep(text: bytes, state: dict[str, Any]) -> bool:
    """Tell whether a state is nested deeper than :data:`MAX_DEPTH`.

    :param text: that it was parsed from
    """
    if text.count(b"{") + text.count(b"[") <= MAX_DEPTH:
        return False
    level: list[Any] = [state]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return False
    return True


def are_shallow(texts: Sequence[bytes]) -> bool:
    """Tell of some texts that none has brackets enough to be nested too deep.

    False says nothing of any one of them. In a few calls for all.
    """
    braces = map(bytes.count, texts, itertools.repeat(b"{"))
    brackets = map(bytes.count, texts, itertools.repeat(b"["))
    return max(map(operator.add, braces, brackets), default=0) <= MAX_DEPTH


_of_process = DecodingBounds()


def present() -> DecodingBounds:
    """Return the bounds of this process."""
    return _of_process


def set_for_process(chosen: DecodingBounds) -> None:
    """Have all of a process go by some bounds; for whoever reads its configuration."""
    global _of_process
    _of_process = chosen
