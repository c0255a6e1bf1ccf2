# SPDX-License-Identifier: Apache-2.0
"""The modes that a back end records of all cells, in one reading, as text.

For who must not be stopped by a mode that only a newer release knows, or by a record that
nobody can read: it is another mode than any that is known.
"""

from __future__ import annotations

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes, row_records
from nova_nodb_scheduler.synchronizer import contract

#: What stands for a mode that this release does not know.
UNKNOWN = "unknown to this release"


def read(synchronizer: contract.Synchronizer) -> dict[str, str]:
    """Return the modes of the cells of which something is recorded.

    :param synchronizer: open
    :raises BackendUnavailable: nothing is known
    :raises SnapshotInterrupted: a new epoch began meanwhile
    """
    return {
        record.key.key: _mode(record)
        for page in synchronizer.snapshot([row_records.NODE_CELLS.name]).pages
        for record in page
    }


def outside_tables(synchronizer: contract.Synchronizer) -> list[str]:
    """Return the cells whose compute nodes are what the back end holds; raises as :func:`read`."""
    mirror = cell_modes.NodeMode.MIRROR.value
    return sorted(cell for cell, mode in read(synchronizer).items() if mode != mirror)


def _mode(record: records.Record) -> str:
    try:
        return cell_modes.mode_of(row_records.state_of(record, row_records.NODE_CELLS)).value
    except (errors.NodbError, ValueError):
        return UNKNOWN
