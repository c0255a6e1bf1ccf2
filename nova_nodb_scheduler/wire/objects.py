# SPDX-License-Identifier: Apache-2.0
"""The versioned objects of the RPC API.

A field is added with a new minor version and never taken away within a major
one; the fingerprint test says when a version must be raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from oslo_versionedobjects import base, fields

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.wire import decoded_sizes

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


#: Prefix of the keys that mark an object in a message.
SERIAL_NAMESPACE = "nodb_object"
PROJECT_NAMESPACE = "nova_nodb_scheduler"

#: What an argument may take beside the states in it, and how deep it may be
#: nested; a RequestSpec of Nova is some twenty levels deep.
_AROUND_BYTES = 4 * 1024 * 1024
_MOST_LEVELS = 72


class NodbObject(base.VersionedObject):  # type: ignore[misc]
    """Base of all objects of this project's RPC API."""

    OBJ_SERIAL_NAMESPACE = SERIAL_NAMESPACE
    OBJ_PROJECT_NAMESPACE = PROJECT_NAMESPACE

    @classmethod
    def obj_name(cls) -> str:
        """Return the name on the wire.

        All libraries of a process share one registry of names, Nova's
        objects included.
        """
        return f"Nodb{cls.__name__}"


class Serializer(base.VersionedObjectSerializer):  # type: ignore[misc]
    """Turns this project's objects into primitives and back.

    :param most_update_bytes: of a server: what the states of one message may
        take decoded; they travel as text, which is decoded here. None: no bound
    """

    OBJ_BASE_CLASS = NodbObject

    def __init__(self, most_update_bytes: int | None = None) -> None:
        super().__init__()
        self._most_update_bytes = most_update_bytes

    def deserialize_entity(self, context: Any, entity: Any) -> Any:
        """Turn primitives into objects.

        :raises LimitExceeded: an argument is too large, or the states in it are
        :raises InvalidArgument: an argument is nested too deeply, or holds an object
            that cannot be read
        :raises InvalidRecord: a state is no JSON object
        """
        if self._most_update_bytes is None:
            return super().deserialize_entity(context, entity)
        self._check_whole(entity, self._most_update_bytes)
        if isinstance(entity, list):
            self._check_states(entity, self._most_update_bytes)
        try:
            return super().deserialize_entity(context, entity)
        except errors.NodbError:
            raise
        except Exception as error:
            # The library raises what it happens to meet in an object that is none.
            raise errors.InvalidArgument(
                "The nodb API",
                "(object)",
                f"it cannot be read ({type(error).__name__}: {str(error)[:200]})",
            ) from error

    @staticmethod
    def _check_whole(entity: Any, most_update_bytes: int) -> None:
        """Refuse what would be walked for long, or by more calls than Python nests."""
        # The states as text, the objects around them, or a request to be explained.
        most_bytes = 2 * most_update_bytes + _AROUND_BYTES
        try:
            size_bytes = decoded_sizes.decoded_bytes(entity, most_bytes, _MOST_LEVELS)
        except decoded_sizes.TooDeep as error:
            raise errors.InvalidArgument("The nodb API", "(any)", f"it is {error}") from error
        if size_bytes > most_bytes:
            raise errors.LimitExceeded(
                "the number of bytes in one argument",
                size_bytes,
                most_bytes,
                "[nodb_scheduler] rpc_max_update_bytes",
            )

    @staticmethod
    def _check_states(entity: list[Any], most_bytes: int) -> None:
        size_bytes = 0
        for each in entity:
            data = each.get(f"{SERIAL_NAMESPACE}.data") if isinstance(each, dict) else None
            state = data.get("state") if isinstance(data, dict) else None
            if isinstance(state, str):
                size_bytes += decoded_sizes.least_decoded_bytes(state)
            if size_bytes > most_bytes:
                raise errors.LimitExceeded(
                    "the number of decoded bytes in one update_host_states call",
                    size_bytes,
                    most_bytes,
                    "[nodb_scheduler] rpc_max_update_bytes",
                )


@base.VersionedObjectRegistry.register
class HostStateUpdate(NodbObject):
    """What a record should hold; a state of None deletes it."""

    VERSION = "1.0"
    fields = {
        "namespace": fields.StringField(),
        "key": fields.StringField(),
        "state": JsonObjectField(nullable=True),
    }


@base.VersionedObjectRegistry.register
class UpdateError(NodbObject):
    """Why a record was not written.

    ``field`` is dotted; ``(state)`` or ``(record)`` where the whole is meant.
    """

    VERSION = "1.0"
    fields = {
        "record": fields.StringField(),
        "field": fields.StringField(),
        "reason": fields.StringField(),
    }


@base.VersionedObjectRegistry.register
class UpdateResult(NodbObject):
    """What became of an update's records.

    ``version``: the highest version written, 0 if nothing was.
    """

    VERSION = "1.0"
    fields = {
        "published": fields.NonNegativeIntegerField(),
        "unchanged": fields.NonNegativeIntegerField(),
        "deleted": fields.NonNegativeIntegerField(),
        "version": fields.NonNegativeIntegerField(),
        "errors": fields.ListOfObjectsField("NodbUpdateError"),
    }


@base.VersionedObjectRegistry.register
class HostState(NodbObject):
    """A record of any namespace as a scheduler holds it."""

    VERSION = "1.0"
    fields = {
        "namespace": fields.StringField(),
        "key": fields.StringField(),
        "revision": fields.NonNegativeIntegerField(),
        "version": fields.NonNegativeIntegerField(),
        "state": JsonObjectField(),
    }


@base.VersionedObjectRegistry.register
class HostStatePage(NodbObject):
    """Some records in order of their keys.

    ``next_marker`` is None on the last page. ``proof_age_seconds``: everything
    written longer ago than that is in it; None where nothing is proved.
    """

    VERSION = "1.0"
    fields = {
        "states": fields.ListOfObjectsField("NodbHostState"),
        "next_marker": fields.StringField(nullable=True),
        "epoch": fields.StringField(),
        "proof_age_seconds": fields.FloatField(nullable=True),
    }


@base.VersionedObjectRegistry.register
class ColumnInfo(NodbObject):
    """A column that predicates may name."""

    VERSION = "1.0"
    fields = {
        "name": fields.StringField(),
        "kind": fields.StringField(),
        "operators": fields.ListOfStringsField(),
    }


@base.VersionedObjectRegistry.register
class NamespaceInfo(NodbObject):
    """A declared namespace."""

    VERSION = "1.0"
    fields = {
        "name": fields.StringField(),
        "owner": fields.StringField(),
        "schema": fields.StringField(),
        "columns": fields.ListOfObjectsField("NodbColumnInfo"),
        "records": fields.NonNegativeIntegerField(),
    }


@base.VersionedObjectRegistry.register
class FeedStatus(NodbObject):
    """Where a scheduler's feed stands; see the replicator's status."""

    VERSION = "1.0"
    fields = {
        "state": fields.StringField(),
        "driver": fields.StringField(),
        "epoch": fields.StringField(),
        "cursor_version": fields.IntegerField(nullable=True),
        "lag_seconds": fields.FloatField(nullable=True),
        "proof_age_seconds": fields.FloatField(nullable=True),
        "fetch_age_seconds": fields.FloatField(nullable=True),
        "resyncs": fields.DictOfIntegersField(),
        "snapshots": fields.NonNegativeIntegerField(),
        "applied": fields.NonNegativeIntegerField(),
        "quarantined": fields.NonNegativeIntegerField(),
        "anti_entropy": fields.DictOfIntegersField(),
        "sweeps": fields.NonNegativeIntegerField(),
        "failures": fields.NonNegativeIntegerField(),
        "detail": fields.StringField(),
    }


@base.VersionedObjectRegistry.register
class ScopeStatus(NodbObject):
    """A cell, or ``api``, as a scheduler sees it; ``reason`` is empty where proved."""

    VERSION = "1.0"
    fields = {
        "scope": fields.StringField(),
        "hosts": fields.NonNegativeIntegerField(),
        "proved": fields.BooleanField(),
        "reason": fields.StringField(),
        "fallbacks": fields.DictOfIntegersField(),
    }


@base.VersionedObjectRegistry.register
class ListedHost(NodbObject):
    """A compute node as a scheduler holds it, and what belongs to it.

    ``id`` is that of its cell's table. ``related``: records of the namespaces that
    were asked for; ``counts``: numbers of records by namespace, where there may be many.
    """

    VERSION = "1.0"
    fields = {
        "uuid": fields.StringField(),
        "id": fields.IntegerField(),
        "cell": fields.StringField(),
        "host": fields.StringField(),
        "node": fields.StringField(),
        "revision": fields.NonNegativeIntegerField(),
        "version": fields.NonNegativeIntegerField(),
        "state": JsonObjectField(),
        "related": fields.ListOfObjectsField("NodbHostState"),
        "counts": fields.DictOfIntegersField(),
    }


@base.VersionedObjectRegistry.register
class HostListPage(NodbObject):
    """Some compute nodes in Nova's order, and how current they are.

    ``next_marker`` is None on the last page. ``scheduler`` answered, and stands at
    ``scheduler_state``; its feed is at ``version`` of ``epoch``. Everything written
    longer ago than ``proof_age_seconds`` is in the page; None where nothing is proved.
    ``scopes``: the cells (and ``placement``, ``claims``) that the answer depends on.
    ``unreadable``: compute nodes whose present record cannot be read, a page of them at
    most; they are in the list as they were before, or not at all.
    """

    VERSION = "1.0"
    fields = {
        "hosts": fields.ListOfObjectsField("NodbListedHost"),
        "next_marker": fields.StringField(nullable=True),
        "scheduler": fields.StringField(),
        "scheduler_state": fields.StringField(),
        "epoch": fields.StringField(),
        "version": fields.IntegerField(nullable=True),
        "proof_age_seconds": fields.FloatField(nullable=True),
        "scopes": fields.ListOfObjectsField("NodbScopeStatus"),
        "unreadable": fields.ListOfStringsField(),
    }


@base.VersionedObjectRegistry.register
class ReporterStatus(NodbObject):
    """A reporter by its last beat; ``age_seconds`` by the back end's clock."""

    VERSION = "1.0"
    fields = {
        "reporter_id": fields.StringField(),
        "age_seconds": fields.FloatField(),
        "beat": JsonObjectField(),
    }


@base.VersionedObjectRegistry.register
class QuarantineEntry(NodbObject):
    """A record that this scheduler cannot read."""

    VERSION = "1.0"
    fields = {
        "namespace": fields.StringField(),
        "key": fields.StringField(),
        "revision": fields.NonNegativeIntegerField(),
        "version": fields.NonNegativeIntegerField(),
        "reason": fields.StringField(),
        "size_bytes": fields.NonNegativeIntegerField(),
    }


@base.VersionedObjectRegistry.register
class SchedulerStatus(NodbObject):
    """A scheduler worker at one moment.

    Counts are since it started; percentiles of the last 1,000 decisions, None
    before the first. ``quarantine`` holds the first entries, ``quarantined``
    counts them all by namespace.
    """

    VERSION = "1.0"
    fields = {
        "host": fields.StringField(),
        "pid": fields.IntegerField(),
        "worker": fields.StringField(),
        "plugin_version": fields.StringField(),
        "nova_version": fields.StringField(),
        "feed": fields.ObjectField("NodbFeedStatus"),
        "scopes": fields.ListOfObjectsField("NodbScopeStatus"),
        "reporters": fields.ListOfObjectsField("NodbReporterStatus"),
        "quarantined": fields.DictOfIntegersField(),
        "quarantine": fields.ListOfObjectsField("NodbQuarantineEntry"),
        "fallbacks": fields.DictOfIntegersField(),
        "outcomes": fields.DictOfIntegersField(),
        "schedule_seconds_p50": fields.FloatField(nullable=True),
        "schedule_seconds_p99": fields.FloatField(nullable=True),
        "records": fields.DictOfIntegersField(),
    }


def plain(value: Any) -> Any:
    """Return an object as mappings, lists and scalars, to print it as JSON."""
    if isinstance(value, NodbObject):
        return {name: plain(getattr(value, name)) for name in sorted(value.obj_fields)}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value
