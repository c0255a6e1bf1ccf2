# SPDX-License-Identifier: Apache-2.0
"""Keeps (host, node) unique among a cell's live rows, with compare-and-sets on single records.

The naive way, to look for the name and then to write the row, lets two rows have it: both
look before either writes. A record per name alone does not help: who dies between the
name and the row keeps the name from all others, and who is only slow writes its row
behind the back of the one who took the name over.

So before a row is written with a new name

1. its record is read, at revision r (by the caller);
2. the name's record is written to say that this row holds it, whether it said so before
   or not;
3. the row is written by compare-and-set on r (by the caller).

Who finds the name held by another row looks at that row. If it is live under the name,
the name is taken. Else its record is written anew as it is: that is the *fence*, behind
which step 3 of whoever wanted that row to have the name must lose, and begins again with
step 1. Then the name is taken over by compare-and-set on what was read of its record: had
the other repeated step 2 meanwhile, this loses.

Names are not given back when a row is deleted or renamed; the next who wants one fences
the row that had it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.compute_nodes import (
    node_rows,
    row_records,
    text_comparison,
)
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import record_editor
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)

#: Tries before a name is given up: each costs the fence of somebody who gets on, or dies.
_ROUNDS = 64


class NameTaken(Exception):
    """Another live row has the name."""


class NodeNames:
    """Names of one back end's compute nodes; any thread may call it.

    :param make_id: makes ids of writes
    :param pause: called with the number of rounds lost so far, before the next one
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        make_id: Callable[[], str],
        pause: Callable[[int], None] = record_editor.pause_briefly,
    ) -> None:
        self._synchronizer = synchronizer
        self._make_id = make_id
        self._pause = pause

    def claim(
        self,
        cell: str,
        comparison: text_comparison.TextComparison,
        row: node_rows.Row,
        holder: records.RecordKey,
    ) -> None:
        """Have a row hold its name; step 2 above. A name with a NULL in it is never unique.

        Blocks for a read and a write; for four more exchanges where another row held it.

        :param holder: the row's record, as read before
        :raises NameTaken: another live row has it
        :raises BackendUnavailable: nothing is known; the row must not be written
        """
        if not has_name(row):
            return
        key = row_records.name_key(cell, comparison, row["host"], row["hypervisor_hostname"])
        for round_number in range(_ROUNDS):
            if round_number:
                self._pause(round_number)
            standing = self._synchronizer.read([key]).get(key)
            if standing is not None and not standing.deleted:
                other = str(codec.decode_state(standing.payload)["holder"])
                if other != holder.key and not self._is_freed(comparison, row, other):
                    continue
            if self._write(key, standing, name_state(cell, row, holder.key)):
                return
        raise errors.BackendUnavailable(self._synchronizer.name, f"{key} is written by others")

    def _is_freed(
        self, comparison: text_comparison.TextComparison, row: node_rows.Row, other: str
    ) -> bool:
        """Fence the row that held a name; False if it changed meanwhile.

        :raises NameTaken: it lives under the name
        """
        key = records.RecordKey(row_records.NODE_ROWS.name, other)
        standing = self._synchronizer.read([key]).get(key)
        state = row_records.state_of(standing)
        held = row_records.row_of(state)
        if held is not None and node_rows.is_live(held) and same_name(comparison, held, row):
            raise NameTaken
        fenced = row_records.row_state(
            row_records.cell_of(other), held, state, f"fence-{self._make_id()}"
        )
        return self._write(key, standing, fenced)

    def _write(
        self,
        key: records.RecordKey,
        standing: records.Record | None,
        state: Mapping[str, Any],
    ) -> bool:
        revision = 0 if standing is None or standing.deleted else standing.revision
        schema = row_records.BY_NAME[key.namespace].schema
        payload = codec.encode(state, schema, record=str(key))
        [result] = self._synchronizer.write([records.Write(key, revision, payload)])
        return result.won


def has_name(row: node_rows.Row) -> bool:
    """Tell whether a row has a name that no other live row may have."""
    return row["host"] is not None and row["hypervisor_hostname"] is not None


def same_name(
    comparison: text_comparison.TextComparison, one: node_rows.Row, other: node_rows.Row
) -> bool:
    """Tell whether the database takes the names of two rows for one."""
    if not has_name(one) or not has_name(other):
        return False
    form = comparison.equal_form
    return all(form(one[name]) == form(other[name]) for name in ("host", "hypervisor_hostname"))


def name_state(cell: str, row: node_rows.Row, holder: str) -> dict[str, Any]:
    """Return the state of a name's record."""
    return {
        "cell": cell,
        "host": row["host"],
        "node": row["hypervisor_hostname"],
        "holder": holder,
    }
