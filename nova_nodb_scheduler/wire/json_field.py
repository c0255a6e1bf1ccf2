# SPDX-License-Identifier: Apache-2.0
"""A field of a versioned object that holds one JSON object, carried as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from oslo_versionedobjects import fields

from nova_nodb_scheduler import errors

#: So much of a namespace or a key is named in an error: they may be pages long.
_SHOWN = 200


class JsonObject(fields.FieldType):  # type: ignore[misc]
    """A mapping that JSON can carry.

    Carried as text, its numbers and nesting arrive as they were sent; a
    serializer that walks nested values would copy a state once per level.
    """

    @staticmethod
    def coerce(obj: Any, attr: str, value: Any) -> Any:
        """Take a mapping.

        :raises ValueError: it is none
        """
        if not isinstance(value, Mapping):
            raise ValueError(f"{attr} is a {type(value).__name__}, and must be a mapping")
        return dict(value)

    @staticmethod
    def to_primitive(obj: Any, attr: str, value: Any) -> str:
        """Return the text.

        :raises InvalidRecord: a value is none that JSON has
        """
        try:
            return orjson.dumps(value).decode()
        except orjson.JSONEncodeError as error:
            raise errors.InvalidRecord(_record_of(obj), attr, str(error)) from error

    @staticmethod
    def from_primitive(obj: Any, attr: str, value: Any) -> Any:
        """Read the text.

        :raises InvalidRecord: it is no text of a JSON object
        """
        if not isinstance(value, str):
            # Whoever sends may send anything; orjson would raise a TypeError.
            raise errors.InvalidRecord(
                _record_of(obj), attr, f"a {type(value).__name__} is no text of JSON"
            )
        try:
            found = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise errors.InvalidRecord(_record_of(obj), attr, f"it is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise errors.InvalidRecord(_record_of(obj), attr, "its JSON is not an object")
        return found

    @staticmethod
    def stringify(value: Any) -> str:
        """Show how much there is, not all of it: states are pages long."""
        return f"<{len(value)} fields>"


class JsonObjectField(fields.AutoTypedField):  # type: ignore[misc]
    """See :class:`JsonObject`."""

    AUTO_TYPE = JsonObject()


def _record_of(obj: Any) -> str:
    """Name a record as far as its object is filled."""
    parts = [
        str(getattr(obj, name))[:_SHOWN]
        for name in ("namespace", "key")
        if name in obj.fields and obj.obj_attr_is_set(name)
    ]
    return "/".join(parts) or "(unnamed)"
