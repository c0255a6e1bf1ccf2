# SPDX-License-Identifier: Apache-2.0
"""Names and states of the records that hold a cell's compute nodes.

============== ======================================= ===============================
namespace      key                                     state
============== ======================================= ===============================
``node_rows``  ``<uuid>@<cell>``                       ``row``: all columns, whether
                                                       live or deleted; ``writes``: ids
                                                       of the last writes
``node_names`` ``<hash of host and node>@<cell>``      ``holder``: key of the row that
                                                       may have the name
``node_cells`` ``<cell>``                              ``mode``, ``next_id``,
                                                       ``comparison``; ``foreign_key``,
                                                       ``turn`` of whoever goes there or
                                                       back
============== ======================================= ===============================

A node that is deleted stays one record, and so does one that comes back: each of the
two is one compare-and-set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.nova_adapter.compute_nodes import node_rows, text_comparison
from nova_nodb_scheduler.nova_adapter.reporting import nova_tables
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.wire import codec

NODE_ROWS = known_namespaces.NODE_ROWS
NODE_NAMES = known_namespaces.NODE_NAMES
NODE_CELLS = known_namespaces.NODE_CELLS

ALL = (NODE_ROWS, NODE_NAMES, NODE_CELLS)
BY_NAME = {each.name: each for each in ALL}

#: Columns by which rows are found.
_NAMES = ("uuid", "host", "hypervisor_hostname")

#: Ids of writes that a row remembers: a writer that does not know what became of its
#: own finds it again unless that many others wrote meanwhile.
_REMEMBERED_WRITES = 8


def row_key(cell: str, uuid: str | None, node_id: int | None = None) -> records.RecordKey:
    """Return the record of a row.

    :param node_id: names rows of old that have no uuid
    """
    name = uuid if uuid is not None else f"id-{node_id}"
    return records.RecordKey(NODE_ROWS.name, nova_tables.cell_key(name, cell))


def name_key(
    cell: str, comparison: text_comparison.TextComparison, host: str, node: str
) -> records.RecordKey:
    """Return the record of a name; names that the cell's database takes for one have one."""
    form = comparison.equal_form
    # A pair of names of 255 characters each is longer than a key may be.
    digest = hashlib.sha256(f"{form(host)}\0{form(node)}".encode()).hexdigest()[:32]
    return records.RecordKey(NODE_NAMES.name, nova_tables.cell_key(digest, cell))


def cell_key(cell: str) -> records.RecordKey:
    """Return the record of a cell."""
    return records.RecordKey(NODE_CELLS.name, cell)


def cell_of(key: str) -> str:
    """Return the cell in the key of a row or a name."""
    return key.rpartition("@")[2]


#: What a record that cannot be read makes its reader raise.
NOT_READ = (errors.NodbError, ValueError, TypeError, KeyError)


def state_of(
    record: records.Record | None, namespace: namespaces.Namespace = NODE_ROWS
) -> Mapping[str, Any] | None:
    """Return the state of a record; None where there is none, or it is deleted.

    :raises UndecodableRecord: it is not of a schema known here
    """
    if record is None or record.deleted:
        return None
    decoded = codec.decode(record.payload)
    codec.check_readable(decoded.schema, namespace)
    return decoded.state


def row_of(state: Mapping[str, Any] | None) -> node_rows.Row | None:
    """Return the row in a record's state; None where there is none.

    :raises ValueError: it is not what :func:`row_state` writes
    :raises TypeError: likewise
    :raises KeyError: likewise
    """
    if state is None or state["row"] is None:
        return None
    row = node_rows.from_state(state["row"])
    if not isinstance(row["id"], int) or not isinstance(row["deleted"], int):
        raise TypeError("id and deleted must be integers")
    if not all(isinstance(row[name], str | None) for name in _NAMES):
        raise TypeError("names must be texts")
    return row


def row_state(
    cell: str, row: node_rows.Row | None, former: Mapping[str, Any] | None, write_id: str
) -> dict[str, Any]:
    """Return the state of a row's record; fields that are not known here are kept.

    :param row: None for a record that only keeps a creation in flight from being carried out
    :param former: what the record held
    """
    kept = dict(former or {})
    writes = [*kept.get("writes", ()), write_id][-_REMEMBERED_WRITES:]
    state = None if row is None else node_rows.to_state(row)
    return {**kept, "cell": cell, "row": state, "writes": writes}


def has_written(state: Mapping[str, Any] | None, write_id: str) -> bool:
    """Tell whether a write is among those that a row's record remembers."""
    return state is not None and write_id in state.get("writes", ())
