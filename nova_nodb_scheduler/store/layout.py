# SPDX-License-Identifier: Apache-2.0
"""How a state becomes the values of a row, as a namespace declares it.

Nothing here changes a store: a state that does not fit is refused before the
first of its values is written anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, records

_INT64_LEAST = -(2**63)
_INT64_GREATEST = 2**63 - 1

#: Texts at the paths of an index, or None where one of them is absent.
IndexValues = tuple[str, ...] | None

#: Position of its parent among a layout's parents, its name there, whole path.
_Field = tuple[int, str, namespaces.Path]


#: Values of a record in the order of the declared columns: int, float, bool,
#: text (CATEGORY) or a tuple of texts (BITS); and in that of the indexes.
Row = tuple[list[Any], tuple[IndexValues, ...]]


class Layout:
    """A namespace's declaration, checked and made ready for use.

    :raises ConfigurationError: names occur twice, a path is empty, or a
        default does not fit its column
    """

    def __init__(self, namespace: namespaces.Namespace) -> None:
        self.namespace = namespace
        self.column_positions = _positions(
            namespace, "column", (column.name for column in namespace.columns)
        )
        self.index_positions = _positions(
            namespace, "index", (index.name for index in namespace.indexes)
        )
        paths = [column.path for column in namespace.columns]
        paths += [path for index in namespace.indexes for path in index.paths]
        if () in paths or any(not index.paths for index in namespace.indexes):
            raise errors.ConfigurationError(
                f"namespace {namespace.name}, path", (), "name at least one field of the state"
            )
        #: Most fields of a state share a parent, which is looked up once.
        self._parents = tuple(dict.fromkeys(path[:-1] for path in paths))
        self._columns = tuple(
            (self._field(column.path), _CONVERTERS[column.kind], _default(namespace, column))
            for column in namespace.columns
        )
        self._indexes = tuple(
            None if index.few_values else tuple(self._field(path) for path in index.paths)
            for index in namespace.indexes
        )
        category = {
            column.path: position
            for position, column in enumerate(namespace.columns)
            if column.kind is namespaces.Kind.CATEGORY
        }
        #: By index and path: the CATEGORY column that holds the same text, if any.
        self.index_columns = tuple(
            tuple(category.get(path) for path in index.paths) for index in namespace.indexes
        )
        for index, found in zip(namespace.indexes, self.index_columns, strict=True):
            if index.few_values and None in found:
                raise errors.ConfigurationError(
                    f"namespace {namespace.name}, index",
                    index.name,
                    "an index of few values needs a CATEGORY column for each of its paths",
                )

    def _field(self, path: namespaces.Path) -> _Field:
        return self._parents.index(path[:-1]), path[-1], path

    def row(self, key: records.RecordKey, state: Mapping[str, Any]) -> Row:
        """Convert a state.

        :raises InvalidRecord: a value cannot be what its column holds
        """
        parents = [_parent(state, path) for path in self._parents]
        cells = []
        for (parent, name, path), convert, default in self._columns:
            value = parents[parent].get(name)
            if value is None:
                cells.append(default)
                continue
            try:
                cells.append(convert(value))
            except (ValueError, TypeError, OverflowError) as error:
                raise errors.InvalidRecord(str(key), ".".join(path), str(error)) from error
        return cells, tuple(
            [
                None if fields is None else _index_values(key, parents, fields)
                for fields in self._indexes
            ]
        )


def _parent(state: Mapping[str, Any], path: namespaces.Path) -> Mapping[str, Any]:
    found = state if not path else namespaces.value_at(state, path)
    return found if isinstance(found, Mapping) else {}


def _index_values(
    key: records.RecordKey, parents: list[Mapping[str, Any]], fields: tuple[_Field, ...]
) -> IndexValues:
    texts = []
    for parent, name, path in fields:
        value = parents[parent].get(name)
        if type(value) is str:
            texts.append(value)  # nearly always
            continue
        if value is None:
            continue  # the other values are looked at all the same
        try:
            texts.append(to_text(value))
        except ValueError as error:
            raise errors.InvalidRecord(str(key), ".".join(path), str(error)) from error
    return tuple(texts) if len(texts) == len(fields) else None


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
        if _INT64_LEAST <= value <= _INT64_GREATEST:
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
    if not _INT64_LEAST <= number <= _INT64_GREATEST:
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


_CONVERTERS: dict[namespaces.Kind, Callable[[object], Any]] = {
    namespaces.Kind.INT: to_int64,
    namespaces.Kind.FLOAT: _to_float,
    namespaces.Kind.BOOL: _to_bool,
    namespaces.Kind.CATEGORY: to_text,
    namespaces.Kind.BITS: _to_texts,
}

_ZERO: dict[namespaces.Kind, Any] = {
    namespaces.Kind.INT: 0,
    namespaces.Kind.FLOAT: 0.0,
    namespaces.Kind.BOOL: False,
    namespaces.Kind.CATEGORY: "",
    namespaces.Kind.BITS: (),
}


def _default(namespace: namespaces.Namespace, column: namespaces.Column) -> Any:
    # 0 is the declaration's own default: it stands for the kind's empty value.
    if type(column.default) is int and column.default == 0:
        return _ZERO[column.kind]
    try:
        return _CONVERTERS[column.kind](column.default)
    except (ValueError, TypeError, OverflowError) as error:
        raise errors.ConfigurationError(
            f"namespace {namespace.name}, default of column {column.name}",
            column.default,
            f"{error}; give a default that a {column.kind.value} column can hold",
        ) from error


def _positions(namespace: namespaces.Namespace, what: str, names: Iterable[str]) -> dict[str, int]:
    positions: dict[str, int] = {}
    for position, name in enumerate(names):
        if name in positions:
            raise errors.ConfigurationError(
                f"namespace {namespace.name}, {what}",
                name,
                "the name is declared twice; give each its own",
            )
        positions[name] = position
    return positions


def _shown(value: object) -> str:
    """Show a value in a message, but never a page of it."""
    text = repr(value) if not isinstance(value, int) else "the number"
    return text if len(text) <= 60 else f"{text[:57]}..."
