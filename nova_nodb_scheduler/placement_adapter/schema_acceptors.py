# SPDX-License-Identifier: Apache-2.0
"""Makes of a JSON schema a function that accepts what the schema allows; imports nothing.

It need not accept all of it: what it does not is for the full check to judge. So each of these
knows one kind of value as a parser makes it, and a uuid in one form. Of keywords it knows those
that stand in Placement's schemas of allocations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Acceptor = Callable[[Any], bool]

#: As each service writes them; the full check knows other forms too.
_FORMATS = {"uuid": re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")}

_OF_KIND: dict[str, frozenset[str]] = {
    "object": frozenset(
        {"additionalProperties", "minProperties", "patternProperties", "properties", "required"}
    ),
    "array": frozenset({"items", "minItems"}),
    "string": frozenset({"format", "maxLength", "minLength", "pattern"}),
    "integer": frozenset({"minimum"}),
    "null": frozenset(),
}
_KEYWORDS = frozenset({"type"}).union(*_OF_KIND.values())


class UnknownSchemaError(Exception):
    """A schema says something that this does not know."""


def acceptor_of(schema: Mapping[str, Any]) -> Acceptor:
    """Return what accepts values; only such as the schema allows.

    :raises UnknownSchemaError: there is a keyword that is not known, or no type
    """
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not kinds or not set(kinds) <= _MAKERS.keys() or not set(schema) <= _KEYWORDS:
        raise UnknownSchemaError(schema)
    # A keyword of another kind of value says nothing.
    accepts = {_MAKERS[kind][0]: _MAKERS[kind][1](schema) for kind in kinds}

    def accept(value: Any) -> bool:
        # Exactly: True is no integer.
        found = accepts.get(type(value))
        return found is not None and found(value)

    return accept


def _object(schema: Mapping[str, Any]) -> Acceptor:
    least = schema.get("minProperties", 0)
    required = schema.get("required", ())
    is_open = schema.get("additionalProperties", True)
    if not isinstance(is_open, bool):
        raise UnknownSchemaError(schema)
    named = {name: acceptor_of(each) for name, each in schema.get("properties", {}).items()}
    patterns = [
        (re.compile(pattern).search, acceptor_of(each))
        for pattern, each in schema.get("patternProperties", {}).items()
    ]

    def accept(value: dict[str, Any]) -> bool:
        if len(value) < least:
            return False
        for name in required:
            if name not in value:
                return False
        for name, each in value.items():
            own = named.get(name)
            is_known = own is not None
            if own is not None and not own(each):
                return False
            for matches, also in patterns:
                if matches(name):
                    is_known = True
                    if not also(each):
                        return False
            if not is_known and not is_open:
                return False
        return True

    return accept


def _array(schema: Mapping[str, Any]) -> Acceptor:
    least = schema.get("minItems", 0)
    items = acceptor_of(schema["items"]) if "items" in schema else None
    return lambda value: len(value) >= least and (items is None or all(map(items, value)))


def _string(schema: Mapping[str, Any]) -> Acceptor:
    least, most = schema.get("minLength", 0), schema.get("maxLength", float("inf"))
    searches: list[Callable[[str], Any]] = []
    if "pattern" in schema:
        searches.append(re.compile(schema["pattern"]).search)
    if "format" in schema:
        if schema["format"] not in _FORMATS:
            raise UnknownSchemaError(schema)
        searches.append(_FORMATS[schema["format"]].fullmatch)

    def accept(value: str) -> bool:
        return least <= len(value) <= most and all(search(value) for search in searches)

    return accept


def _integer(schema: Mapping[str, Any]) -> Acceptor:
    if "minimum" not in schema:
        return lambda _value: True
    least = schema["minimum"]
    return lambda value: bool(value >= least)


def _null(_schema: Mapping[str, Any]) -> Acceptor:
    return lambda _value: True


_MAKERS: Mapping[str, tuple[type, Callable[[Mapping[str, Any]], Acceptor]]] = {
    "object": (dict, _object),
    "array": (list, _array),
    "string": (str, _string),
    "integer": (int, _integer),
    "null": (type(None), _null),
}
