# SPDX-License-Identifier: Apache-2.0
"""Read single fields of a record's state, with errors that name record and field."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.store import column_layout

_LEAST, _GREATEST = column_layout.LEAST, column_layout.GREATEST
_MISSING = object()


class RecordFields:
    """The fields of one record's state.

    :param record: ``namespace/key``, for errors
    :param path: where the values stand in the state, for errors
    """

    __slots__ = ("_path", "_record", "_values")

    def __init__(self, record: str, values: Mapping[str, Any], path: str = "") -> None:
        self._record, self._values, self._path = record, values, path

    def wrong(self, name: str, reason: str) -> errors.InvalidRecord:
        """Return the error that says what is wrong with a field."""
        return errors.InvalidRecord(self._record, f"{self._path}{name}", reason)

    def get(self, name: str) -> Any:
        """Return a field's value, None included.

        :raises InvalidRecord: the field is missing
        """
        value = self._values.get(name, _MISSING)
        if value is _MISSING:
            raise self.wrong(name, "it is missing; another release of Nova wrote the record")
        return value

    def mapping(self, name: str) -> RecordFields:
        """Return the fields of a field.

        :raises InvalidRecord: it is missing or no object
        """
        value = self.get(name)
        if not isinstance(value, Mapping):
            raise self.wrong(name, "it is no object")
        return RecordFields(self._record, value, f"{self._path}{name}.")

    def find(self, name: str) -> Any:
        """Return a field's value; None where it is missing."""
        return self._values.get(name)

    def column_integers(self, names: tuple[str, ...]) -> list[Any]:
        """Return what a store's INT columns hold of some fields; None where they hold a default.

        :raises InvalidRecord: of the first that no such column can hold
        """
        values: list[Any] = list(map(self._values.get, names))
        if set(map(type, values)) == {int} and min(values) >= _LEAST and max(values) <= _GREATEST:
            return values  # nearly always
        return [self._column_integer(name) for name in names]

    def _column_integer(self, name: str) -> int | None:
        value = self._values.get(name)
        try:
            return None if value is None else column_layout.to_int64(value)
        except ValueError as error:
            raise self.wrong(name, str(error)) from error

    def integer(self, name: str) -> int:
        """Return a number cut to a whole one, as Nova's integer fields do.

        :raises InvalidRecord: it is missing, None, or no number of 64 bits
        """
        value = self.get(name)
        if type(value) is int and _LEAST <= value <= _GREATEST:
            return value  # nearly always
        return self.to_integer(name, value)

    def to_integer(self, name: str, value: Any) -> int:
        """Return a value as :meth:`integer` does, wherever it stands."""
        try:
            number = int(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise self.wrong(name, f"{_shown(value)} is no whole number") from error
        if not _LEAST <= number <= _GREATEST:
            raise self.wrong(name, "the number does not fit 64 bits with a sign")
        return number

    def number(self, name: str) -> float:
        """Return a number.

        :raises InvalidRecord: it is missing or none
        """
        value = self.get(name)
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            raise self.wrong(name, f"{_shown(value)} is no number") from error

    def text(self, name: str) -> str:
        """Return a text.

        :raises InvalidRecord: it is missing or none
        """
        value = self.get(name)
        if not isinstance(value, str):
            raise self.wrong(name, f"{_shown(value)} is no text")
        return value

    def texts(self, name: str) -> Mapping[str, str]:
        """Return an object whose values are texts.

        :raises InvalidRecord: it is missing or none
        """
        value = self.get(name)
        if not isinstance(value, Mapping) or any(type(each) is not str for each in value.values()):
            raise self.wrong(name, "it is no object of texts")
        return value

    def seconds(self, name: str) -> float | None:
        """Return a date-time (ISO 8601, UTC) as seconds since the epoch; None for None.

        :raises InvalidRecord: it is missing or no date-time
        """
        value = self.get(name)
        if value is None:
            return None
        try:
            moment = datetime.datetime.fromisoformat(value)
        except (TypeError, ValueError) as error:
            raise self.wrong(name, f"{_shown(value)} is no date-time") from error
        # Nova compares the wall time in it, and writes nothing but UTC.
        return moment.replace(tzinfo=datetime.UTC).timestamp()

    def check_major(self, known: str) -> None:
        """Refuse a state made of another major version of Nova's object.

        :raises InvalidRecord: it is absent or another
        """
        found = str(self._values.get("object_version"))
        if found.partition(".")[0] != known:
            raise self.wrong("object_version", f"{found}, this release reads {known}.x")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
