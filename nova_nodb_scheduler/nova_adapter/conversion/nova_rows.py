# SPDX-License-Identifier: Apache-2.0
"""States of the store as Nova's own objects, made by Nova's own code."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import nova.conf
from nova import objects
from nova.objects import base

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.liveness import service_heartbeats
from nova_nodb_scheduler.scheduling.facts import journal_reader
from nova_nodb_scheduler.store import store_snapshot

_DATE_TIMES = frozenset(["created_at", "updated_at", "deleted_at", "last_seen_up", "launched_at"])

#: Ratios that an old compute service may have left empty in its row.
_RATIOS = ("cpu_allocation_ratio", "ram_allocation_ratio", "disk_allocation_ratio")


class UnreadableRow(errors.NodbError):
    """A record of a known version does not make an object of Nova.

    :param key: the record
    :param reason: what Nova's own code said of it
    """

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key, self.reason = key, reason

    def __str__(self) -> str:
        return (
            f"Record {self.key} does not make an object of this Nova: {self.reason}. "
            "Its cell is read from its database; run 'nova-nodb-manage compare'."
        )


@contextlib.contextmanager
def _reading(record: store_snapshot.StoredRecord) -> Iterator[None]:
    """Name the record that another release wrote with other columns, or other values."""
    try:
        yield
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise UnreadableRow(record.key, f"{type(error).__name__}: {error}") from error


class UnknownObjectVersion(errors.NodbError):
    """A record was written from a Nova object this release cannot read.

    :param key: the record
    :param found: version of the object in it
    :param known: version this release knows
    """

    def __init__(self, key: str, found: str, known: str) -> None:
        super().__init__(key, found, known)
        self.key, self.found, self.known = key, found, known

    def __str__(self) -> str:
        return (
            f"Record {self.key} holds object version {self.found}, this Nova knows "
            f"{self.known}: finish the upgrade of this service. Its cell is read from its "
            "database until then."
        )


#: What a reader of rows sends to Nova's own path.
UNUSABLE = (UnknownObjectVersion, UnreadableRow)


def check_version(record: store_snapshot.StoredRecord, known: str) -> None:
    """Refuse a record of another major version of Nova's object.

    :raises UnknownObjectVersion: the version is absent or another major one
    """
    found = str(record.state.get("object_version"))
    if found.partition(".")[0] != known.partition(".")[0]:
        raise UnknownObjectVersion(record.key, found, known)


def revived(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its date-times as a database driver gives them (naive, UTC)."""
    return {
        name: datetime.datetime.fromisoformat(value)
        if name in _DATE_TIMES and isinstance(value, str)
        else value
        for name, value in row.items()
    }


def compute_node(context: Any, record: store_snapshot.StoredRecord) -> tuple[Any, str | None]:
    """Build a ComputeNode without its NUMA topology, and the topology's JSON apart.

    Parsing that JSON is nine tenths of building a host's state, and most
    requests never look at it.

    :raises UnknownObjectVersion: see :func:`check_version`
    :raises UnreadableRow: the row is not what this Nova expects
    """
    check_version(record, objects.ComputeNode.VERSION)
    with _reading(record):
        row = revived(record.state["row"])
        numa_topology = row["numa_topology"]
        row["numa_topology"] = None
        for name in _RATIOS:
            # Nova would write the default into the row: the row's reader must not.
            if row[name] in (None, 0.0):
                configured = getattr(nova.conf.CONF, name)
                row[name] = configured or getattr(nova.conf.CONF, f"initial_{name}")
        node = objects.ComputeNode._from_db_object(context, objects.ComputeNode(context), row)
    return node, numa_topology


def numa_topology(text: str | None) -> Any:
    """Parse a compute node's NUMA topology; None where it has none."""
    if not text:
        return None
    if "nova_object.name" not in text:
        text = objects.NUMATopology.from_legacy_object(text)
    return objects.NUMATopology.obj_from_db_obj(text)


def service(
    context: Any,
    record: store_snapshot.StoredRecord,
    liveness: store_snapshot.StoredRecord | None,
    heard: journal_reader.HeardService | None = None,
) -> Any:
    """Build a Service from its row and what heartbeats said of it.

    :param heard: what journals and the record tell together; None for the record alone
    :raises UnknownObjectVersion: see :func:`check_version`
    :raises UnreadableRow: the row is not what this Nova expects
    """
    check_version(record, objects.Service.VERSION)
    state = liveness.state if liveness is not None else {}
    if heard is not None:
        state = heard.laid_over(state)
    row = revived(
        {
            **record.state["row"],
            "report_count": state.get("report_count", 0),
            "last_seen_up": state.get("last_seen_up"),
            "updated_at": state.get("last_seen_up"),
        }
    )
    # These are its heartbeats.
    with _reading(record), service_heartbeats.gathered():
        return objects.Service._from_db_object(context, objects.Service(context), row)


def aggregate(context: Any, record: store_snapshot.StoredRecord) -> Any:
    """Build an Aggregate with its hosts and metadata.

    :raises UnknownObjectVersion: see :func:`check_version`
    :raises UnreadableRow: the row is not what this Nova expects
    """
    check_version(record, objects.Aggregate.VERSION)
    with _reading(record):
        row = revived(record.state["row"])
        made = objects.Aggregate(
            context,
            id=row["id"],
            uuid=row["uuid"],
            name=row["name"],
            hosts=list(row["hosts"]),
            metadata=dict(row["metadata"]),
            created_at=_aware(row["created_at"]),
            updated_at=_aware(row["updated_at"]),
            deleted=False,
            deleted_at=None,
        )
    made.obj_reset_changes()
    return made


def _aware(value: datetime.datetime | None) -> datetime.datetime | None:
    return value.replace(tzinfo=datetime.UTC) if value is not None else None


class InstancesByUuid(MutableMapping[str, Any]):
    """The instances of a host, each built when it is looked at.

    Filters ask for uuids by the thousand, and for an instance's fields hardly
    ever. As in Nova, fields that are not set are loaded from the cell's
    database by whoever asks for them.

    :param context: names the cell's context when an instance is built
    """

    def __init__(
        self, records: Mapping[str, store_snapshot.StoredRecord], context: Callable[[], Any]
    ) -> None:
        self._records = records
        self._context = context
        self._built: dict[str, Any] = {}
        self._uuids: dict[str, None] = dict.fromkeys(records)

    def __getitem__(self, uuid: str) -> Any:
        if uuid not in self._built:
            if uuid not in self._uuids:
                raise KeyError(uuid)
            self._built[uuid] = _instance(self._context(), uuid, self._records[uuid])
        return self._built[uuid]

    def __setitem__(self, uuid: str, instance: Any) -> None:
        self._uuids[uuid] = None
        self._built[uuid] = instance

    def __delitem__(self, uuid: str) -> None:
        del self._uuids[uuid]
        self._built.pop(uuid, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._uuids)

    def __len__(self) -> int:
        return len(self._uuids)

    def __contains__(self, uuid: object) -> bool:
        return uuid in self._uuids


#: Columns of an instance's row that are fields of Nova's object as they stand.
_INSTANCE_FIELDS = [
    "host",
    "node",
    "project_id",
    "user_id",
    "vm_state",
    "task_state",
    "memory_mb",
    "vcpus",
    "root_gb",
    "ephemeral_gb",
    "instance_type_id",
    "image_ref",
    "availability_zone",
]


def _instance(context: Any, uuid: str, record: store_snapshot.StoredRecord) -> Any:
    row = record.state["row"]
    made = objects.Instance(context, uuid=uuid)
    for name in _INSTANCE_FIELDS:
        if name in row and (row[name] is not None or made.fields[name].nullable):
            setattr(made, base.get_attrname(name), row[name])
    made.system_metadata = dict(row.get("system_metadata", {}))
    made.obj_reset_changes()
    return made
