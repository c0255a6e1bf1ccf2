# SPDX-License-Identifier: Apache-2.0
"""Who answers for the compute nodes of a cell, by the back end's own word.

The mode stands in the cell's record, so that a process whose configuration says
otherwise finds out before it reads or writes, and so that it goes where the records go
(``synchronizer move``). A cell without a record is in ``mirror``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.compute_nodes import row_records, text_comparison
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import record_editor


class NodeMode(enum.Enum):
    """Whose word counts for a cell's compute nodes."""

    #: Nova's table; records are made of it.
    MIRROR = "mirror"
    #: The records; the table is written behind them.
    STORE = "store"
    #: The records; the table is away.
    RETIRED = "retired"


class ModeDiffers(errors.NodbError):
    """A process is configured for another mode than a cell is in.

    :param cell: uuid of the cell
    :param recorded: its mode by the back end
    :param configured: the mode of this process
    """

    def __init__(self, cell: str, recorded: str, configured: str) -> None:
        super().__init__(cell, recorded, configured)
        self.cell, self.recorded, self.configured = cell, recorded, configured

    def __str__(self) -> str:
        return (
            f"The compute nodes of cell {self.cell} are in mode '{self.recorded}' by the back end, "
            f"and this service is configured for '{self.configured}'. Give [nodb_scheduler] "
            "compute_nodes the recorded value in all services of the control plane, or change the "
            "cell with 'nova-nodb-manage compute-nodes retire' or 'restore' while they are stopped."
        )


class CellModes:
    """The modes that a back end records; any thread may call it.

    :param synchronizer: open
    """

    def __init__(self, synchronizer: contract.Synchronizer) -> None:
        self._synchronizer = synchronizer
        self._editor = record_editor.RecordEditor(synchronizer, [row_records.NODE_CELLS])

    def read(self, cell: str) -> NodeMode:
        """Return the mode of a cell.

        :raises BackendUnavailable: not known
        :raises UndecodableRecord: a newer release wrote the record
        """
        return mode_of(self.state(cell))

    def state(self, cell: str) -> Mapping[str, Any] | None:
        """Return the state of a cell's record; raises as :meth:`read`."""
        state, _revision, _version = self._editor.read(row_records.cell_key(cell))
        return state

    def require(self, cells: Sequence[str], configured: NodeMode) -> None:
        """Refuse to serve cells in another mode than theirs.

        :raises ModeDiffers: naming the first, and both modes
        :raises BackendUnavailable: a mode is not known
        """
        for cell in cells:
            recorded = self.read(cell)
            if recorded is not configured:
                raise ModeDiffers(cell, recorded.value, configured.value)

    def record(self, cell: str, mode: NodeMode, **others: Any) -> None:
        """Note the mode of a cell.

        :param others: fields of its record that are noted with it
        :raises BackendUnavailable: it may or may not be noted
        """
        self._edit(cell, lambda kept: {**kept, **others, "mode": mode.value})

    def prepare(self, cell: str, comparison: text_comparison.TextComparison, above: int) -> None:
        """Let new nodes of a cell have ids above one; never lowers what was given.

        :raises BackendUnavailable: it may or may not be done
        """

        def prepared(kept: Mapping[str, Any]) -> Mapping[str, Any]:
            next_id = max(int(kept.get("next_id", 1)), above + 1)
            return {**kept, "next_id": next_id, "comparison": comparison.dialect}

        self._edit(cell, prepared)

    def _edit(self, cell: str, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        def propose(state: Mapping[str, Any] | None, _version: int) -> record_editor.Proposal[None]:
            kept = dict(state or {})
            wanted = change(kept)
            return record_editor.Proposal(None, None if wanted == kept else wanted)

        edited = self._editor.edit(row_records.cell_key(cell), propose)
        if isinstance(edited, record_editor.Unwritten):
            raise errors.BackendUnavailable(
                self._synchronizer.name, f"the outcome of a write is {edited.value}"
            )


def mode_of(state: Mapping[str, Any] | None) -> NodeMode:
    """Return the mode in the state of a cell's record."""
    return NodeMode((state or {}).get("mode", NodeMode.MIRROR.value))
