# SPDX-License-Identifier: Apache-2.0
"""How states become the values of rows, as a namespace declares it.

Nothing here changes a store: a state that does not fit is refused before the
first of its values is written anywhere.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces

#: What 64 bits with a sign hold.
LEAST, GREATEST = -(2**63), 2**63 - 1


def to_text(value: object) -> str:
    """Return text, numbers and truth values as text.

    :raises ValueError: anything else
    """
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float)):
        return str(value)
    raise ValueError(f"{_shown_value(value)} is no text")


def to_int64(value: object) -> int:
    """Return a whole number that fits 64 bits with a sign.

    :raises ValueError: anything else
    """
    if type(value) is int:
        if LEAST <= value <= GREATEST:
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
            raise ValueError(f"{_shown_value(value)} is no whole number") from error
    else:
        raise ValueError(f"{_shown_value(value)} is no whole number")
    if not LEAST <= number <= GREATEST:
        raise ValueError("the number does not fit 64 bits with a sign")
    return number


def _to_float(value: object) -> float:
    if not isinstance(value, (int, float, str)):
        raise ValueError(f"{_shown_value(value)} is no number")
    try:
        return float(value)
    except ValueError as error:
        raise ValueError(f"{_shown_value(value)} is no number") from error


def _to_bool(value: object) -> bool:
    # Text is refused: bool("False") is True.
    if isinstance(value, (bool, int, float)) and value in (0, 1):
        return bool(value)
    raise ValueError(f"{_shown_value(value)} is neither true nor false")


def _to_texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise ValueError(f"{_shown_value(value)} is no list of texts")
    for text in value:
        if not isinstance(text, str):
            raise ValueError(f"{_shown_value(text)} in the list is no text")
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


def _shown_value(value: object) -> str:
    """Show a value in a message, but never a page of it."""
    text = repr(value) if not isinstance(value, int) else "the number"
    return text if len(text) <= 60 else f"{text[:57]}..."


#: Texts at the paths of an index, or None where one of them is absent.
IndexValues = tuple[str, ...] | None

#: Position of its parent among a layout's parents, its name there, whole path.
_Field = tuple[int, str, namespaces.Path]


@attrs.frozen
class StatePage:
    """Some records' values, column by column.

    :param cells: in the order of the declared columns: None of those that are read from
        digests, an array of shape (n,),
        for CATEGORY a list of texts (for the writer of a table an array of their
        codes), for BITS a list of tuples of texts
    :param absent: by position of a marked column, whether a record lacks it;
        shape (n,)
    :param index_values: by record, in the order of :attr:`ColumnLayout.by_text`
    """

    cells: list[Any]
    absent: dict[int, npt.NDArray[np.bool_]]
    index_values: list[tuple[IndexValues, ...]]


class ColumnLayout:
    """A namespace's declaration, checked and made ready for use.

    :raises ConfigurationError: names occur twice, a path is empty, or a
        default does not fit its column
    """

    def __init__(self, namespace: namespaces.Namespace) -> None:
        self.namespace = namespace
        self._column_positions = _positions(
            namespace, "column", (column.name for column in namespace.columns)
        )
        self._index_positions = _positions(
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
            (self._field(column.path), column.kind, _default(namespace, column))
            for column in namespace.columns
        )
        #: By parent: names of the fields that columns take from there.
        self._read_together: dict[int, list[str]] = {}
        category = {
            column.path: position
            for position, column in enumerate(namespace.columns)
            if column.kind is namespaces.Kind.CATEGORY
        }
        fields = () if namespace.digest_row is None else namespace.digest_row.names or ()
        #: Positions of columns that are read from digests.
        self.unpacked = frozenset(
            position
            for position, column in enumerate(namespace.columns)
            if column.name in fields and column.kind in DTYPES and not column.steady
        )
        for position, ((parent, name, _path), *_rest) in enumerate(self._columns):
            if position not in self.unpacked:
                self._read_together.setdefault(parent, []).append(name)
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
        #: Indexes whose texts columns hold, by position: the columns of their
        #: paths, the last of which leads to the rows.
        self.by_column: dict[int, tuple[int, ...]] = {
            position: tuple(column for column in found if column is not None)
            for position, found in enumerate(self.index_columns)
            if None not in found and not namespace.indexes[position].few_values
        }
        #: Columns whose codes lead to rows.
        self.leading = tuple(sorted({columns[-1] for columns in self.by_column.values()}))
        #: Columns of which an index has to know whether a record lacks the value.
        self.marked = tuple(
            sorted({each for columns in self.by_column.values() for each in columns})
        )
        #: Positions of indexes by texts that no column holds.
        self.by_text = tuple(
            position
            for position, index in enumerate(namespace.indexes)
            if not index.few_values and position not in self.by_column
        )
        self._texts = tuple(
            tuple(self._field(path) for path in namespace.indexes[position].paths)
            for position in self.by_text
        )

    @property
    def is_plain(self) -> bool:
        """Whether columns and digests hold all that a row holds, as numbers and texts."""
        kinds = {column.kind for column in self.namespace.columns}
        return not self.by_text and namespaces.Kind.BITS not in kinds

    def column_position(self, name: str) -> int:
        """Return where a column stands among those declared.

        :raises KeyError: no such column
        """
        try:
            return self._column_positions[name]
        except KeyError:
            raise self._undeclared("column", name, self._column_positions) from None

    def index_position(self, name: str) -> int:
        """Return where an index stands among those declared.

        :raises KeyError: no such index
        """
        try:
            return self._index_positions[name]
        except KeyError:
            raise self._undeclared("index", name, self._index_positions) from None

    def index(self, position: int) -> namespaces.Index:
        """Return the declaration of an index."""
        return self.namespace.indexes[position]

    def _undeclared(self, what: str, name: str, positions: Mapping[str, int]) -> KeyError:
        return KeyError(
            f"namespace {self.namespace.name} has no {what} {name!r} "
            f"(declared: {', '.join(positions) or 'none'})"
        )

    def _field(self, path: namespaces.Path) -> _Field:
        return self._parents.index(path[:-1]), path[-1], path

    def page(
        self,
        keys: Sequence[str],
        states: Sequence[Mapping[str, Any]],
        digests: Sequence[Any] | None = None,
    ) -> StatePage:
        """Convert the states of some records.

        :param digests: theirs, where the namespace has some
        :raises InvalidRecord: a value cannot be what its column holds
        """
        if self.unpacked and digests is not None:
            for key, state, digest in zip(keys, states, digests, strict=True):
                if type(digest) is not bytes:
                    for position in self.unpacked:
                        self.cells(position, ((key, state),))
        parents = [_parents(states, path) for path in self._parents]
        found = {
            (parent, name): values
            for parent, names in self._read_together.items()
            for name, values in _fields(parents[parent], names)
        }
        cells: list[Any] = []
        absent: dict[int, npt.NDArray[np.bool_]] = {}
        for position, ((parent, name, path), kind, default) in enumerate(self._columns):
            if position in self.unpacked:
                cells.append(None)
                continue
            values = found[parent, name]
            if position in self.marked:
                absent[position] = np.array([value is None for value in values])
            cells.append(self._cells(keys, values, kind, default, path))
        index_values: list[tuple[IndexValues, ...]] = []
        if self._texts:
            index_values = [
                tuple([self._index_values(key, at, parents, fields) for fields in self._texts])
                for at, key in enumerate(keys)
            ]
        return StatePage(cells, absent, index_values)

    def cells(self, position: int, records: Sequence[tuple[str, Mapping[str, Any]]]) -> Any:
        """Convert what some records hold in one column.

        :param records: keys and states
        :raises InvalidRecord: a value cannot be what the column holds
        """
        (_parent, _name, path), kind, default = self._columns[position]
        keys = [key for key, _state in records]
        values = [namespaces.value_at(state, path) for _key, state in records]
        return self._cells(keys, values, kind, default, path)

    def _cells(
        self,
        keys: Sequence[str],
        values: list[Any],
        kind: namespaces.Kind,
        default: Any,
        path: namespaces.Path,
    ) -> Any:
        dtype = DTYPES.get(kind)
        found = set(map(type, values))
        if type(None) in found and kind is not namespaces.Kind.BITS:
            found.discard(type(None))
            values = [default if value is None else value for value in values]
        if not found <= PLAIN[kind]:
            return self._converted(keys, values, kind, default, path)
        try:
            return values if dtype is None else np.array(values, dtype)
        except OverflowError:
            # One of them is too large, which the array does not tell.
            return self._converted(keys, values, kind, default, path)

    def _converted(
        self,
        keys: Sequence[str],
        values: list[Any],
        kind: namespaces.Kind,
        default: Any,
        path: namespaces.Path,
    ) -> Any:
        """Convert values one by one, so that a refusal names its record."""
        convert = CONVERTERS[kind]
        converted = []
        for key, value in zip(keys, values, strict=True):
            try:
                converted.append(default if value is None else convert(value))
            except (ValueError, TypeError, OverflowError) as error:
                raise self._refused(key, path, error) from error
        dtype = DTYPES.get(kind)
        return converted if dtype is None else np.array(converted, dtype)

    def _index_values(
        self,
        key: str,
        at: int,
        parents: list[Sequence[Mapping[str, Any]]],
        fields: tuple[_Field, ...],
    ) -> IndexValues:
        texts = []
        for parent, name, path in fields:
            value = parents[parent][at].get(name)
            if type(value) is str:
                texts.append(value)  # nearly always
                continue
            if value is None:
                continue  # the other values are looked at all the same
            try:
                texts.append(to_text(value))
            except ValueError as error:
                raise self._refused(key, path, error) from error
        return tuple(texts) if len(texts) == len(fields) else None

    def _refused(self, key: str, path: namespaces.Path, error: Exception) -> errors.InvalidRecord:
        return errors.InvalidRecord(f"{self.namespace.name}/{key}", ".".join(path), str(error))


def _parents(
    states: Sequence[Mapping[str, Any]], path: namespaces.Path
) -> Sequence[Mapping[str, Any]]:
    if not path:
        return states
    if len(path) == 1:
        name = path[0]
        found = [state.get(name) for state in states]
        if set(map(type, found)) == {dict}:
            return found  # type: ignore[return-value]
    return [_parent(state, path) for state in states]


def _fields(
    states: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> Iterator[tuple[str, list[Any]]]:
    """Yield the names of fields with their values in some states, None where one lacks it.

    State by state, for a page's states are more than a processor has at hand.
    """
    try:
        if len(names) > 1:
            rows = list(map(operator.itemgetter(*names), states))
            yield from zip(names, map(list, zip(*rows, strict=True)), strict=True)
            return
    except KeyError:
        pass
    for name in names:
        yield name, list(map(operator.methodcaller("get", name), states))


def _parent(state: Mapping[str, Any], path: namespaces.Path) -> Mapping[str, Any]:
    found = state if not path else namespaces.value_at(state, path)
    return found if isinstance(found, Mapping) else {}


def _default(namespace: namespaces.Namespace, column: namespaces.Column) -> Any:
    # 0 is the declaration's own default: it stands for the kind's empty value.
    if type(column.default) is int and column.default == 0:
        return ZERO[column.kind]
    try:
        return CONVERTERS[column.kind](column.default)
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
