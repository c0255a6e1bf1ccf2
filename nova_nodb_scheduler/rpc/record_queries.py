# SPDX-License-Identifier: Apache-2.0
"""Queries of records: conditions on columns as masks over all rows, and pages in order of key.

A condition is a list of three: column, operator, value. Several must all
hold. There is no text to parse and nothing to execute.

=========  =================  ==============================================
kind       operators          value
=========  =================  ==============================================
int64      all                a whole number, or its text
float64    all                a number, or its text
bool       ``== != in``       true or false, or its text
category   ``== != in``       a text
bits       ``== != in``       a text: the set holds it, does not hold it,
                              holds at least one of a list
=========  =================  ==============================================

``in`` takes a list of such values.
"""

from __future__ import annotations

import heapq
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import attrs
import numpy as np
import numpy.typing as npt
import orjson

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces
from nova_nodb_scheduler.store import column_layout, store_snapshot

Mask = npt.NDArray[np.bool_]
State = Mapping[str, Any]
#: (namespace, key, state) -> what is told of a record; it may be the state itself.
TellState = Callable[[str, str, State], State]


def as_it_is(namespace: str, key: str, state: State) -> State:
    """Tell of a record what stands there."""
    return state


_Item = TypeVar("_Item")

#: Most conditions in one predicate, and most values behind one ``in``.
MAX_CONDITIONS = 100
MAX_VALUES = 1000

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
#: The one operator that takes a list.
IN = "in"
_EQUALITY = ("==", "!=", IN)
_ORDERED = (*_COMPARE, IN)


def operators_of(kind: namespaces.Kind) -> tuple[str, ...]:
    """Return the operators that a column of a kind takes."""
    return _ORDERED if kind in (namespaces.Kind.INT, namespaces.Kind.FLOAT) else _EQUALITY


def mask(view: store_snapshot.NamespaceView, predicate: Sequence[Any]) -> Mask:
    """Say which rows of a view fulfil all conditions.

    :param predicate: conditions ``[column, operator, value]``; none: every row
    :returns: shape (n,), a value for each of ``view.row_keys()``
    :raises InvalidPredicate: naming the condition, and the choices
    """
    name = view.namespace.name
    if not isinstance(predicate, (list, tuple)):
        raise errors.InvalidPredicate(
            name, _shown(predicate), "give a list of [column, operator, value]"
        )
    if len(predicate) > MAX_CONDITIONS:
        raise errors.InvalidPredicate(
            name, f"{len(predicate)} conditions", f"at most {MAX_CONDITIONS} are taken"
        )
    found: Mask = np.ones(len(view), dtype=np.bool_)
    for condition in predicate:
        found &= _condition(view, condition)
    return found


def _condition(view: store_snapshot.NamespaceView, condition: Any) -> Mask:
    name = view.namespace.name
    if not isinstance(condition, (list, tuple)) or len(condition) != 3:
        raise errors.InvalidPredicate(
            name, _shown(condition), "a condition is [column, operator, value]"
        )
    column_name, operator_name, value = condition
    by_name = {column.name: column for column in view.namespace.columns}
    if not isinstance(column_name, str) or column_name not in by_name:
        raise errors.InvalidPredicate(
            name,
            _shown(condition),
            f"there is no column {_shown(column_name)} (declared: {', '.join(by_name) or 'none'})",
        )
    column = by_name[column_name]
    operators = operators_of(column.kind)
    if operator_name not in operators:
        raise errors.InvalidPredicate(
            name,
            _shown(condition),
            f"a column of kind {column.kind.value} has no operator {_shown(operator_name)} "
            f"(choose one of {' '.join(operators)})",
        )
    try:
        values = _values(column.kind, operator_name, value)
    except ValueError as error:
        raise errors.InvalidPredicate(name, _shown(condition), str(error)) from error
    return _EVALUATE[column.kind](view, column_name, operator_name, values)


def _values(kind: namespaces.Kind, operator_name: str, value: Any) -> list[Any]:
    """Convert the value, or with ``in`` each of the values.

    :raises ValueError: a value is not of the column's kind
    """
    convert = _CONVERT[kind]
    if operator_name != IN:
        return [convert(value)]
    if not isinstance(value, (list, tuple)):
        raise ValueError("'in' takes a list of values")
    if len(value) > MAX_VALUES:
        raise ValueError(f"'in' takes at most {MAX_VALUES} values, not {len(value)}")
    return [convert(each) for each in value]


def _to_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{_shown(value)} is no number")
    try:
        return float(value)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{_shown(value)} is no number") from error


def _to_bool(value: Any) -> bool:
    known = {True: True, False: False, "true": True, "false": False}
    asked = value.lower() if isinstance(value, str) else value
    if not isinstance(asked, (bool, str)) or asked not in known:
        raise ValueError(f"{_shown(value)} is neither true nor false")
    return known[asked]


def _to_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is no text")
    return value


_CONVERT: dict[namespaces.Kind, Callable[[Any], Any]] = {
    namespaces.Kind.INT: column_layout.to_int64,
    namespaces.Kind.FLOAT: _to_float,
    namespaces.Kind.BOOL: _to_bool,
    namespaces.Kind.CATEGORY: _to_text,
    namespaces.Kind.BITS: _to_text,
}


def _numbers(
    view: store_snapshot.NamespaceView, column: str, operator_name: str, values: list[Any]
) -> Mask:
    array = view.column(column)
    if operator_name == IN:
        found: Mask = np.isin(array, np.array(values, dtype=array.dtype))
        return found
    compared: Mask = _COMPARE[operator_name](array, array.dtype.type(values[0]))
    return compared


def _categories(
    view: store_snapshot.NamespaceView, column: str, operator_name: str, values: list[Any]
) -> Mask:
    vocabulary = view.vocabulary(column)
    # A text that no record ever held has no code: -1 equals none.
    codes = [code if (code := vocabulary.code(text)) is not None else -1 for text in values]
    return _numbers(view, column, operator_name, codes)


def _sets(
    view: store_snapshot.NamespaceView, column: str, operator_name: str, values: list[Any]
) -> Mask:
    vocabulary = view.vocabulary(column)
    words = view.column(column)
    held: Mask = np.zeros(len(words), dtype=np.bool_)
    for text in values:
        code = vocabulary.code(text)
        if code is not None:
            word, bit = divmod(code, 64)
            held |= (words[:, word] >> np.uint64(bit)) & np.uint64(1) != 0
    return ~held if operator_name == "!=" else held


_EVALUATE: dict[
    namespaces.Kind, Callable[[store_snapshot.NamespaceView, str, str, list[Any]], Mask]
] = {
    namespaces.Kind.INT: _numbers,
    namespaces.Kind.FLOAT: _numbers,
    namespaces.Kind.BOOL: _numbers,
    namespaces.Kind.CATEGORY: _categories,
    namespaces.Kind.BITS: _sets,
}


def _shown(value: object) -> str:
    """Show a value in a message, but never a page of it."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


@attrs.frozen
class DecodedRecord:
    """A record of a page, decoded once: a store keeps fewer states than a page may hold."""

    key: str
    revision: int
    version: int
    state: Mapping[str, Any]

    @classmethod
    def of(cls, record: store_snapshot.StoredRecord) -> DecodedRecord:
        """Decode a record.

        :raises UndecodableRecord: the payload is damaged
        """
        return cls(record.key, record.revision, record.version, record.state)

    def text_bytes(self) -> int:
        """Return how much JSON the state is."""
        return len(orjson.dumps(self.state))


@attrs.frozen
class RecordPage:
    """Some records in order of key.

    :param next_marker: where the next page begins; None on the last one
    """

    records: tuple[DecodedRecord, ...]
    next_marker: str | None


def fitting(
    items: Iterable[_Item], bytes_of: Callable[[_Item], int], most_bytes: int
) -> tuple[_Item, ...]:
    """Return the first items, as many as fit; the first one whatever its size."""
    taken: list[_Item] = []
    for item in items:
        most_bytes -= bytes_of(item)
        if taken and most_bytes < 0:
            break
        taken.append(item)
    return tuple(taken)


def page_of(
    view: store_snapshot.NamespaceView,
    keys: Sequence[str] | None,
    predicate: Sequence[Any],
    limit: int,
    marker: str | None,
    most_bytes: int = sys.maxsize,
) -> RecordPage:
    """Return the first records behind a marker.

    The marker is a key: a record that comes or goes between two pages shifts
    nothing, and no server needs to remember who asked.

    :param keys: only these, as far as they exist; None for all
    :param most_bytes: JSON of all states; a page of more ends earlier, behind one
        record at least
    :raises InvalidPredicate: see :func:`mask`
    """
    found = _select(view, keys, predicate)
    if marker is not None:
        found = (key for key in found if key > marker)
    # One more than wanted tells whether there is a next page.
    chosen = heapq.nsmallest(limit + 1, found)
    stored = (view.get(key) for key in chosen[:limit])
    records = fitting(
        (DecodedRecord.of(each) for each in stored if each is not None),
        DecodedRecord.text_bytes,
        most_bytes,
    )
    return RecordPage(records, records[-1].key if len(chosen) > len(records) else None)


def _select(
    view: store_snapshot.NamespaceView, keys: Sequence[str] | None, predicate: Sequence[Any]
) -> Iterable[str]:
    found: Iterable[str] = view.keys()
    # What is empty and no list is no predicate: it does not stand for all records.
    if predicate or not isinstance(predicate, (list, tuple)):
        rows = view.row_keys()
        matching = mask(view, predicate).nonzero()[0]
        found = (rows[row] for row in matching)
    elif keys is not None:
        return {key for key in keys if key in view}
    if keys is None:
        return found
    wanted = set(keys)
    return (key for key in found if key in wanted)
