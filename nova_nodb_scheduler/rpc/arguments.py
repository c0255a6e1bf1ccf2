# SPDX-License-Identifier: Apache-2.0
"""What a method's arguments must be before it does any work on them.

Whoever can send to the bus can send anything: a caller learns by an error of
this project what was wrong, and never by what Python happened to raise.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import record_keys
from nova_nodb_scheduler.wire import sizes

_Result = TypeVar("_Result")

#: Names of namespaces, owners and servers, and keys: none that exists is longer. A
#: host's name may be of characters with four bytes each, and a page end with it.
MAX_TEXT_BYTES = 4 * record_keys.KEY_CHARACTERS
#: What a predicate may take decoded, and how deep it may be nested: a list of
#: conditions, each of which may hold a list of values.
MAX_PREDICATE_BYTES = 4 * 1024 * 1024
MAX_PREDICATE_LEVELS = 4


def checked(method: Callable[..., _Result]) -> Callable[..., _Result]:
    """Have a method refuse arguments that it does not take, or lacks, by name."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(*positional: Any, **named: Any) -> _Result:
        try:
            signature.bind(*positional, **named)
        except TypeError as error:
            raise errors.InvalidArgument(method.__name__, "arguments", str(error)[:200]) from error
        return method(*positional, **named)

    return call


def text(method: str, name: str, value: object) -> str:
    """Take a short text.

    :raises InvalidArgument: it is none, is empty, too long, or cannot be written as UTF-8
    """
    if not isinstance(value, str):
        raise errors.InvalidArgument(method, name, f"a {type(value).__name__} is no text")
    # A character has a byte at least: nothing long is encoded.
    try:
        fits = 0 < len(value) <= MAX_TEXT_BYTES and len(value.encode()) <= MAX_TEXT_BYTES
    except UnicodeEncodeError as error:
        raise errors.InvalidArgument(method, name, "it is no text in UTF-8") from error
    if not fits:
        raise errors.InvalidArgument(method, name, f"it has 1 to {MAX_TEXT_BYTES} bytes of UTF-8")
    return value


def texts(method: str, name: str, values: object) -> list[str]:
    """Take a list of short texts; how many, the caller bounds first.

    :raises InvalidArgument: it is no list, or something in it no such text
    """
    return [text(method, name, each) for each in listed(method, name, values)]


def listed(method: str, name: str, values: object) -> Sequence[Any]:
    """Take a list.

    :raises InvalidArgument: it is none
    """
    if not isinstance(values, (list, tuple)):
        raise errors.InvalidArgument(method, name, f"a {type(values).__name__} is no list")
    return values


def number(method: str, name: str, value: object) -> int:
    """Take a whole number.

    :raises InvalidArgument: it is none
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise errors.InvalidArgument(method, name, f"a {type(value).__name__} is no whole number")
    return value


def bounded(method: str, name: str, value: object, most_bytes: int, most_levels: int) -> None:
    """Refuse what takes too much memory or is nested too deeply.

    :raises InvalidArgument: it does, or is
    """
    try:
        size_bytes = sizes.decoded_bytes(value, most_bytes, most_levels)
    except sizes.TooDeep as error:
        raise errors.InvalidArgument(method, name, f"it is {error}") from error
    if size_bytes > most_bytes:
        raise errors.InvalidArgument(
            method, name, f"it takes more than {most_bytes} bytes once it is decoded"
        )
