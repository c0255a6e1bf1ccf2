# SPDX-License-Identifier: Apache-2.0
"""The versioned objects of the RPC API.

A field is added with a new minor version and never taken away within a major
one; the fingerprint test says when a version must be raised.
"""

from __future__ import annotations

from typing import Any

from oslo_versionedobjects import base, fields

from nova_nodb_scheduler.wire import json_field

#: Prefix of the keys that mark an object in a message.
SERIAL_NAMESPACE = "nodb_object"
PROJECT_NAMESPACE = "nova_nodb_scheduler"


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
    """Turns this project's objects into primitives and back."""

    OBJ_BASE_CLASS = NodbObject


@base.VersionedObjectRegistry.register
class HostStateUpdate(NodbObject):
    """What a record should hold; a state of None deletes it."""

    VERSION = "1.0"
    fields = {
        "namespace": fields.StringField(),
        "key": fields.StringField(),
        "state": json_field.JsonObjectField(nullable=True),
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
        "state": json_field.JsonObjectField(),
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
class ReporterStatus(NodbObject):
    """A reporter by its last beat; ``age_seconds`` by the back end's clock."""

    VERSION = "1.0"
    fields = {
        "reporter_id": fields.StringField(),
        "age_seconds": fields.FloatField(),
        "beat": json_field.JsonObjectField(),
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
