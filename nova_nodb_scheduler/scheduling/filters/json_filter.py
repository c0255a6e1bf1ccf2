# SPDX-License-Identifier: Apache-2.0
"""The filter on the hint ``query``: a condition on host values, in JSON.

A condition is a list: an operator, then arguments, which may be conditions,
texts, numbers, or ``$name`` for a host's value. It is compiled once a request;
what could make Nova raise on some host is not compiled but left to Nova.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from oslo_serialization import jsonutils

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling.filters import host_values
from nova_nodb_scheduler.scheduling.frame import host_frame
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract

_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
_COMMANDS = frozenset({"=", "in", "not", "or", "and", *_ORDERS})

#: Conditions within conditions, beyond which Nova is asked. How deep Python can go depends on
#: who calls: a query that was read when its key was made could not be read any more for hosts.
_MOST_NESTED = 64


class _UnknownQuery(Exception):
    """Nova raises, or a name leads into objects."""


class _Type(enum.Enum):
    """What an argument is, as far as two of them can be put in an order."""

    NUMBER = "number"
    TEXT = "text"
    OTHER = "other"


@attrs.frozen
class _Argument:
    """One argument.

    :param value: gives it, from the host's values; None: the argument is left out
    """

    value: Callable[[Mapping[str, Any]], Any]
    type: _Type


class _Query:
    """One compiled query.

    :ivar names: of host values that it reads, in order
    """

    def __init__(self, text: Any) -> None:
        if not isinstance(text, str):
            raise _UnknownQuery
        try:
            query = jsonutils.loads(text)
            self.names: list[str] = []
            self._condition = self._compile(query).value
            self._query = query
        except (ValueError, RecursionError) as error:
            raise _UnknownQuery from error

    def passes(self, *values: Any) -> bool:
        """Tell whether a host with these values, in the order of names, passes."""
        result = self._condition(dict(zip(self.names, values, strict=False)))
        return any(result) if isinstance(result, list) else bool(result)

    def over_columns(
        self, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray | None:
        """Return what the query says of the rows, or None where it is too odd for columns.

        Anybody may send a query, so the common ones must not be evaluated
        value by value while other requests wait.
        """
        return _over_columns(self._query, frame, rows)

    def sources(self) -> list[host_values.ValueSource]:
        return [_source(name) for name in self.names]

    def _compile(self, query: Any, nested: int = 0) -> _Argument:
        if nested > _MOST_NESTED:
            raise _UnknownQuery
        if not query:
            return _Argument(lambda values: True, _Type.NUMBER)
        if not isinstance(query, list) or not isinstance(query[0], str):
            raise _UnknownQuery
        command, *rest = query
        if command not in _COMMANDS:
            raise _UnknownQuery
        arguments = [self._argument(each, nested + 1) for each in rest]
        types = {each.type for each in arguments}
        if command in _ORDERS and (_Type.OTHER in types or len(types) > 1):
            raise _UnknownQuery

        def value(values: Mapping[str, Any]) -> Any:
            found = [argument.value(values) for argument in arguments]
            return _apply(command, [each for each in found if each is not None])

        return _Argument(value, _Type.OTHER if command == "not" else _Type.NUMBER)

    def _argument(self, argument: Any, nested: int) -> _Argument:
        if isinstance(argument, list):
            return self._compile(argument, nested)
        if isinstance(argument, str):
            return self._text(argument)
        is_number = isinstance(argument, (int, float))
        return _Argument(lambda values: argument, _Type.NUMBER if is_number else _Type.OTHER)

    def _text(self, text: str) -> _Argument:
        if not text.startswith("$"):
            return _Argument(lambda values: text or None, _Type.TEXT)
        name = text[1:]
        if _source(name) is None:
            return _Argument(lambda values: None, _Type.TEXT)
        if name not in self.names:
            self.names.append(name)
        is_number = name in host_values.NUMBERS
        return _Argument(lambda values: values[name], _Type.NUMBER if is_number else _Type.TEXT)


def _source(name: str) -> Any:
    """Return where a name is read; None for what no host has."""
    first, *path = name.split(".")
    # Stats as well: each new name would take a column, and anybody may send one.
    if first in host_values.OBJECTS or first.startswith("_"):
        raise _UnknownQuery
    source = host_values.NUMBERS.get(first) or host_values.TEXTS.get(first)
    if source is not None and path:
        raise _UnknownQuery  # it looks for a key in a number or a text
    return source


def _over_columns(
    query: Any, frame: host_frame.HostFrame, rows: plugin_contract.Rows
) -> plugin_contract.BoolArray | None:
    match query:
        case ["and" | "or" as command, list() as first, *others]:
            found = _over_columns(first, frame, rows)
            for other in others:
                more = _over_columns(other, frame, rows)
                if found is None or more is None:
                    return None
                found = found & more if command == "and" else found | more
            return found
        case ["=" | "<" | ">" | "<=" | ">=" as command, str() as name, int() | float() as number]:
            if name[:1] == "$" and name[1:] in host_values.NUMBERS:
                source = host_values.NUMBERS[name[1:]]
                compare = operator.eq if command == "=" else _ORDERS[command]
                return host_values.compare(frame, source, rows, compare, number)
        case ["=", str() as name, str() as text]:
            if name[:1] == "$" and name[1:] in host_values.TEXTS and text and text[0] != "$":
                return host_values.equal(frame, host_values.TEXTS[name[1:]], rows, text)
    return None


def _apply(command: str, values: Sequence[Any]) -> Any:
    match command:
        case "not":
            return [not value for value in values]
        case "or":
            return any(values)
        case "and":
            return all(values)
    if len(values) < 2:
        return False
    first, *others = values
    if command == "in":
        return first in others
    compare = operator.eq if command == "=" else _ORDERS[command]
    return all(compare(first, other) for other in others)


class JsonFilter(plugin_contract.Filter):
    """Hosts that meet the condition in the hint ``query``."""

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        text = request.hint("query")
        if not text:
            return None
        try:
            _Query(text)
        except _UnknownQuery:
            return plugin_contract.OnHostObjects.NEEDED
        return self.name, text

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray:
        query = _Query(request.hint("query"))
        compared = query.over_columns(frame, rows)
        if compared is not None:
            return compared
        sources = query.sources() or [host_values.NUMBERS["vcpus_total"]]
        return host_values.judge(frame, sources, rows, query.passes)
