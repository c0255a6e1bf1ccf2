# SPDX-License-Identifier: Apache-2.0
"""Whose word counts for the compute nodes of each cell, and what is wrong with that."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd.framework import bounded, guard

if TYPE_CHECKING:
    from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes
    from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import node_transfer


@attrs.frozen
class NodeCell:
    """One cell.

    :param configured: the mode of this configuration
    :param state: None where it could not be read
    :param orphans: what there is to say of devices without their compute node
    :param awaits_migrations: whether the installed Nova has migrations that have not run there,
        as far as the mode makes it matter
    :param error: why something could not be read
    """

    cell: str
    configured: cell_modes.NodeMode
    state: node_transfer.CellState | None = None
    orphans: tuple[str, ...] = ()
    awaits_migrations: bool = False
    error: str | None = None

    @property
    def is_read(self) -> bool:
        """Whether all of it is known."""
        return self.error is None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        state, key = self.state, self.state.key if self.state else None
        return {
            "cell": self.cell,
            "configured": self.configured.value,
            "recorded": state.mode.value if state else None,
            "table": state.place.value if state else None,
            "table_rows": state.table_rows if state else None,
            "live": state.live if state else None,
            "deleted": state.deleted if state else None,
            "next_id": state.next_id if state else None,
            "foreign_key": key.name if key else None,
            "unreadable": list(state.unreadable) if state else [],
            "error": self.error,
            "problems": [each.text for each in problems([self])],
        }


def configured_mode(plugin: Any) -> cell_modes.NodeMode:
    """Return the mode that the configuration of a plugin says."""
    from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes

    return cell_modes.NodeMode(plugin.options.compute_nodes)


def gather(
    synchronizer: Any, scopes: Any, cells: Collection[str], configured: cell_modes.NodeMode
) -> list[NodeCell]:
    """Read how cells stand, all at once and in bounded time; what is silent is a result, too.

    :param synchronizer: open
    :param scopes: the databases of cells
    """
    asked = {
        cell: bounded.BoundedQuestion(functools.partial(_read, synchronizer, scopes, cell))
        for cell in cells
    }
    deadline = bounded.Deadline(bounded.LOOK_SECONDS)
    found = []
    for cell, question in asked.items():
        try:
            read = question.answer(deadline.within(bounded.LOOK_SECONDS))
        except errors.NodbError as error:
            found.append(NodeCell(cell, configured, error=str(error)))
        except Exception as error:  # noqa: BLE001 - whatever a database driver raises
            found.append(NodeCell(cell, configured, error=guard.said(error)))
        else:
            found.append(NodeCell(cell, configured, *read))
    return found


def _read(
    synchronizer: Any, scopes: Any, cell: str
) -> tuple[node_transfer.CellState, tuple[str, ...], bool]:
    from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes
    from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import (
        node_transfer,
        nova_migrations,
    )

    transfer = node_transfer.NodeTransfer(synchronizer)
    context = scopes.context_for(cell)
    state = transfer.state(context, cell)
    orphans: tuple[str, ...] = ()
    # Where the key stands there are none.
    is_known = not state.unreadable and (
        state.mode is not cell_modes.NodeMode.MIRROR or state.table_rows is not None
    )
    if state.key is None and is_known:
        orphans = tuple(map(str, transfer.orphans(context, cell)))
    is_away = state.mode is cell_modes.NodeMode.RETIRED
    return state, orphans, is_away and nova_migrations.are_outstanding(context)


#: What goes on, whichever way it shall go.
_GO_ON = (
    "'nova-nodb-manage compute-nodes retire' goes on there, 'restore' goes back; no service may "
    "run before one of them has ended"
)


@attrs.frozen
class Problem:
    """A sentence, and how bad it is.

    :param is_grave: calls fail, or would if services were started
    """

    text: str
    is_grave: bool = True


def problems(found: Iterable[NodeCell]) -> list[Problem]:
    """Say what is not as it should be; cells of which the same is said share a sentence."""
    cells: dict[Problem, list[str]] = {}
    for each in found:
        for problem in _of_cell(each):
            cells.setdefault(problem, []).append(each.cell)
    return [
        attrs.evolve(problem, text=problem.text.replace(_CELLS, _named(names)))
        for problem, names in cells.items()
    ]


def _named(cells: Collection[str]) -> str:
    return f"{'cell' if len(cells) == 1 else 'cells'} {', '.join(cells)}"


#: Stands for cells in a sentence.
_CELLS = "{cells}"


def _of_cell(found: NodeCell) -> Iterator[Problem]:
    state = found.state
    if state is None:
        yield Problem(
            f"Who answers for the compute nodes of {_CELLS} is not known: {found.error}",
            is_grave=False,
        )
        return
    recorded, configured = state.mode.value, found.configured.value
    if recorded != configured:
        yield Problem(
            f"The compute nodes of {_CELLS} are in mode {recorded}, and this configuration says "
            f"{configured}: services with it refuse to serve. {_remedy(recorded, configured)}"
        )
    yield from _of_table(recorded, state, found.awaits_migrations)
    if state.unreadable:
        yield Problem(
            f"Records of compute nodes of {_CELLS} cannot be read, and calls that need them fail: "
            f"{', '.join(sorted(state.unreadable)[:3])}. Run the release that wrote them."
        )
    for text in found.orphans:
        yield Problem(f"In {_CELLS}: {text}", is_grave=False)


def _of_table(
    recorded: str, state: node_transfer.CellState, awaits_migrations: bool
) -> Iterator[Problem]:
    place = state.place.value
    if place in ("both", "missing"):
        what = "two tables" if place == "both" else "no table"
        yield Problem(
            f"There are {what} of compute nodes in {_CELLS}: 'nova-nodb-manage compute-nodes "
            "restore --dry-run' says what to do."
        )
    elif state.is_lost and state.table_rows:
        yield Problem(
            f"The table of {_CELLS} is away with rows in it, and the back end lost its records: "
            "'nova-nodb-manage compute-nodes restore --dry-run' says what to do."
        )
    elif state.is_lost:
        yield Problem(
            f"The table of {_CELLS} was emptied, and the back end lost its records: bring the rows "
            "back with 'nova-nodb-manage compute-nodes restore --cell UUID --from FILE'."
        )
    elif recorded == "retired" and place == "there" and not state.table_rows:
        first = "run 'nova-manage db sync', then " if awaits_migrations else ""
        yield Problem(
            f"The empty table of {_CELLS} is there for an upgrade of Nova: {first}take it away "
            "with 'nova-nodb-manage compute-nodes retire' before any service starts."
        )
    elif not state.is_settled:
        yield Problem(f"The way of {_CELLS} has not ended: {_GO_ON}.")
    elif awaits_migrations:
        yield Problem(
            f"Migrations of this release of Nova have not run on {_CELLS}, and may want the table "
            "that is away: with nova-api, nova-scheduler and nova-conductor stopped run "
            "'nova-nodb-manage compute-nodes prepare-upgrade', 'nova-manage db sync', and "
            "'nova-nodb-manage compute-nodes retire'.",
            is_grave=False,
        )
    elif recorded == "store" and _has_rows_of_others(state):
        yield Problem(
            f"The table of compute nodes of {_CELLS} has rows that no record holds: a service "
            "without the plugin wrote them, and nobody reads them. Stop it; 'nova-nodb-manage "
            "compute-nodes retire --dry-run' names the rows."
        )
    elif recorded != "retired" and state.key is None:
        yield Problem(
            f"The table pci_devices of {_CELLS} has no foreign key to compute_nodes: if 'restore "
            "--from' was interrupted call it again.",
            is_grave=False,
        )


def _has_rows_of_others(state: node_transfer.CellState) -> bool:
    """Tell whether a table behind records has more rows than these.

    A record is written before its row, and forgotten after it; the rows were counted first.
    """
    records = state.live + state.deleted + len(state.unreadable)
    return state.table_rows is not None and state.table_rows > records


_COMMANDS: Mapping[str, str] = {
    "mirror": "compute-nodes restore",
    "store": "compute-nodes retire --keep-table",
    "retired": "compute-nodes retire",
}


def _remedy(recorded: str, configured: str) -> str:
    return (
        f"Set [nodb_scheduler] compute_nodes = {recorded} everywhere, or change the mode with "
        f"'nova-nodb-manage {_COMMANDS[configured]}'."
    )
