# SPDX-License-Identifier: Apache-2.0
"""Who answers for the compute nodes of a cell, by the back end's own word.

The mode stands in the cell's record, so that a process whose configuration says
otherwise finds out before it reads or writes, and so that it goes where the records go
(``synchronizer move``). A cell without a record is in ``mirror``.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.compute_nodes import row_records, text_comparison
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import record_editor

#: Field of a cell's record: who changes the cell, and nobody else.
_TURN_FIELD = "turn"


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


class TurnTaken(errors.NodbError):
    """Another command changes a cell, which was begun later.

    :param cell: uuid of the cell
    """

    def __init__(self, cell: str) -> None:
        super().__init__(cell)
        self.cell = cell

    def __str__(self) -> str:
        return (
            f"Another 'nova-nodb-manage compute-nodes' for cell {self.cell} has begun since, and "
            "goes on in place of this one: wait until it has ended, and see 'compute-nodes status'."
        )


@attrs.frozen
class Turn:
    """The right to change one cell, until another takes it.

    Nobody is locked out: whoever was killed holds nothing up, and whoever was held up
    itself, by a lock of the database or a machine that stood still, finds out before it
    does harm to what a later one did meanwhile.
    """

    cell: str
    holder: str = attrs.field(factory=lambda: str(uuid.uuid4()))


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

    def record(self, cell: str, mode: NodeMode, *, turn: Turn | None = None, **others: Any) -> None:
        """Note the mode of a cell.

        :param turn: of who does it; None for somebody whom nobody can be in the way of
        :param others: fields of its record that are noted with it
        :raises BackendUnavailable: it may or may not be noted
        :raises TurnTaken: by another; nothing was noted
        """

        def noted(kept: Mapping[str, Any]) -> Mapping[str, Any]:
            _require_turn(kept, turn)
            return {**kept, **others, "mode": mode.value}

        self._edit(cell, noted)

    def take(self, turn: Turn, mode: NodeMode) -> None:
        """Take the turn from whoever has it.

        :param mode: that the cell was in when it was looked at
        :raises BackendUnavailable: it may or may not be taken
        :raises TurnTaken: somebody was there first: the cell is in another mode by now
        """

        def taken(kept: Mapping[str, Any]) -> Mapping[str, Any]:
            if mode_of(kept) is not mode:
                raise TurnTaken(turn.cell)
            return {**kept, _TURN_FIELD: turn.holder}

        self._edit(turn.cell, taken)

    def require_turn(self, turn: Turn) -> None:
        """Refuse what another that was begun later is in the midst of; raises as :meth:`read`.

        :raises TurnTaken: by another
        """
        _require_turn(self.state(turn.cell) or {}, turn)

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
        record_editor.answer_of(edited, self._synchronizer.name)


def _require_turn(state: Mapping[str, Any], turn: Turn | None) -> None:
    if turn is not None and state.get(_TURN_FIELD) != turn.holder:
        raise TurnTaken(turn.cell)


def mode_of(state: Mapping[str, Any] | None) -> NodeMode:
    """Return the mode in the state of a cell's record.

    :raises UndecodableRecord: a newer release's
    """
    told = (state or {}).get("mode", NodeMode.MIRROR.value)
    try:
        return NodeMode(told)
    except ValueError as error:
        raise errors.UndecodableRecord(
            f"mode '{told}' of a cell's compute nodes is of a newer release, which has to read it"
        ) from error
