# SPDX-License-Identifier: Apache-2.0
"""A namespace with every kind of column, and changes to its records."""

from nova_nodb_scheduler.model import namespaces, record_columns, records
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.wire import codec

V1 = namespaces.SchemaVersion(1, 0)
Kind = namespaces.Kind

POOLS = namespaces.Namespace(
    name="pools",
    owner="cinder",
    schema=V1,
    columns=(
        namespaces.Column("free_gb", Kind.INT, ("pool", "free_gb")),
        namespaces.Column("ratio", Kind.FLOAT, ("ratio",), 1.5),
        namespaces.Column("thin", Kind.BOOL, ("thin",), False),
        namespaces.Column("backend", Kind.CATEGORY, ("backend",), ""),
        namespaces.Column("tags", Kind.BITS, ("tags",), ()),
    ),
    indexes=(
        namespaces.Index("backend", (("backend",),)),
        namespaces.Index("backend_zone", (("backend",), ("zone",))),
    ),
)

SHELVES = namespaces.Namespace("shelves", "cinder", V1)

#: With an index that passes over its columns, and a digest of each state.
DRIVES = namespaces.Namespace(
    name="drives",
    owner="cinder",
    schema=V1,
    columns=(
        namespaces.Column("backend", Kind.CATEGORY, ("backend",), ""),
        namespaces.Column("zone", Kind.CATEGORY, ("zone",), "none"),
    ),
    indexes=(
        namespaces.Index("zone", (("zone",),), few_values=True),
        namespaces.Index("zone_backend", (("zone",), ("backend",)), few_values=True),
    ),
    digest=lambda key, state: (key, state.get("size")),
)


def store(*declared):
    return host_state_store.HostStateStore(declared or (POOLS, SHELVES), codec.decode_state)


def in_columns(page):
    """Records as a page of columns; as they are where some are tombstones, or of many kinds."""
    names = {record.key.namespace for record in page}
    if len(names) != 1 or any(record.deleted for record in page):
        return page
    return record_columns.RecordColumns(
        names.pop(),
        [record.key.key for record in page],
        [record.revision for record in page],
        [record.version for record in page],
        [record.payload for record in page],
    )


def change(key, revision, state=None, *, version=None, namespace="pools"):
    """A live record of that state, or a tombstone where there is none."""
    return records.Change(
        records.Record(
            records.RecordKey(namespace, key),
            revision,
            revision if version is None else version,
            b"" if state is None else codec.encode(state, V1),
            deleted=state is None,
        ),
        state,
    )
