# SPDX-License-Identifier: Apache-2.0
"""All that answers for compute nodes in one process, put together and opened when asked.

Nova forks its workers, and some of its programs read no compute node in their life: the
back end is opened by the first call in each process, and one that is not to be had makes
that call fail, not the start.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs
from nova import context as nova_context
from nova.db.main import api as main_db

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.compute_nodes import (
    cell_modes,
    row_archive,
    row_index,
    row_queries,
    row_replica,
    row_writer,
    table_copy,
    text_comparison,
)
from nova_nodb_scheduler.nova_adapter.compute_nodes.serving import (
    listed_services,
    row_table,
    served_functions,
)
from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import node_transfer
from nova_nodb_scheduler.nova_adapter.reporting import nova_tables, table_tripwire
from nova_nodb_scheduler.nova_adapter.reporting import scopes as scopes_module
from nova_nodb_scheduler.synchronizer import contract

LOG = logging.getLogger(__name__)

#: How the mode is named to operators.
OPTION = "[nodb_scheduler] compute_nodes"


def refuse_unfit(
    mode: cell_modes.NodeMode, synchronizer: contract.Synchronizer, cell_urls: Collection[str]
) -> None:
    """Refuse a back end that may not answer for compute nodes. No I/O.

    :param mode: as it is configured
    :param cell_urls: of the cells' databases that are known
    :raises ConfigurationError: it loses what it was given when it restarts, or it lives in
        a cell's own database, where archiving and purging meet its tables
    """
    if mode is cell_modes.NodeMode.MIRROR:
        return
    if not synchronizer.capabilities.durable:
        raise errors.ConfigurationError(
            OPTION,
            mode.value,
            f"{synchronizer.name} does not keep records over a restart, and compute nodes would "
            "be lost with it: choose a durable back end, or mirror",
        )
    url = synchronizer.database_url
    own = None if url is None else scopes_module.database_of(url)
    if own is not None and own in {scopes_module.database_of(each) for each in cell_urls}:
        raise errors.ConfigurationError(
            OPTION,
            mode.value,
            "the back end is a cell's own database, and nova-manage would archive and purge its "
            "tables: give it a database of its own, or choose mirror",
        )


@attrs.frozen
class _ProcessParts:
    """What one process has opened."""

    pid: int
    synchronizer: contract.Synchronizer
    replica: row_replica.RowReplica
    served: served_functions.ServedParts


class NodeServing:
    """One process's own; any thread may call what it serves.

    :param make_synchronizer: a new driver instance, not opened
    :param mode: that cells must be in, not ``mirror``
    """

    def __init__(
        self,
        make_synchronizer: Callable[[], contract.Synchronizer],
        scopes: scopes_module.Scopes,
        make_id: Callable[[], str],
        mode: cell_modes.NodeMode = cell_modes.NodeMode.STORE,
    ) -> None:
        self.mode = mode
        self._make_synchronizer = make_synchronizer
        self._scopes = scopes
        self._make_id = make_id
        self._parts: _ProcessParts | None = None
        #: Of a process that forked this one; its connections are not ours to close.
        self._inherited: list[_ProcessParts] = []
        #: By process: a thread of one that forks may be opening, and holds what it holds.
        self._openings: dict[int, row_replica.SharedBarrier] = {}
        self._tripwire = table_tripwire.TableTripwire()
        self._table = row_table.RecordedTable(self._rows)
        self._services = listed_services.ListedServices()
        self.functions = served_functions.ServedFunctions(lambda: self._opened().served)

    # -- in the place of Nova's own -----------------------------------------------------

    def install(self, *, looks_itself: bool = False) -> None:
        """Serve Nova's functions and the namespace of host states; idempotent, no I/O.

        :param looks_itself: of no meaning here: each call looks
        :raises UnknownCode: nothing is served
        """
        self.functions.install()
        self._services.install()
        self._tripwire.set()
        nova_tables.install(self._table)

    def close(self) -> None:
        """Put Nova's own back and close the back end; idempotent."""
        self.functions.uninstall()
        self._services.uninstall()
        self._tripwire.unset()
        nova_tables.uninstall(self._table)
        parts, self._parts = self._parts, None
        if parts is not None and parts.pid == os.getpid():
            parts.synchronizer.close()

    def count_in(self, command: Any) -> None:
        """Have nova-status count records, where it counts the table by itself; no I/O.

        :param command: Nova's class of its checks
        """

        def _count_compute_nodes(_command: Any, context: Any = None) -> int:
            queries = self._opened().served.queries
            return queries.count(context or nova_context.get_admin_context())

        command._count_compute_nodes = _count_compute_nodes

    # -- the mode ------------------------------------------------------------------------

    def check_start(self, cells: Collection[str]) -> None:
        """Refuse to start beside cells in another mode.

        Where the back end does not answer, start: each call fails until it does, and looks.

        :raises ModeDiffers: naming the first of them
        :raises CellNotHeld: the back end does not hold one
        :raises ConfigurationError: the back end is not fit
        """
        for cell in sorted(cells):
            try:
                self._opened().replica.require(cell)
            except errors.BackendUnavailable as error:
                LOG.error(
                    "No compute node can be read or written until the back end answers: %(error)s",
                    {"error": error},
                )
                return

    def look(self, synchronizer: contract.Synchronizer) -> None:
        """Do nothing: each call looks."""

    def facts(self) -> dict[str, Any]:
        """Return what this process says of it in its beats."""
        counts = dict(self._tripwire.counts())
        return {
            "compute_nodes": self.mode.value,
            **({"compute_node_statements": counts} if counts else {}),
        }

    def statements(self) -> Mapping[str, float]:
        """Return how many statements named Nova's table all the same, by verb."""
        return {verb: float(count) for verb, count in self._tripwire.counts().items()}

    # -- the back end ----------------------------------------------------------------------

    def open(self) -> None:
        """Open the back end in this process; idempotent, cheap once it is.

        :raises BackendUnavailable: it does not answer; the next call tries again
        :raises SchemaMismatch: its schema must be migrated first
        :raises ConfigurationError: it is a cell's own database
        """
        self._opened()

    def transfer(self) -> node_transfer.NodeTransfer:
        """Return what brings cells' rows to this back end, and from it; open first."""
        return node_transfer.NodeTransfer(self._opened().synchronizer)

    def _rows(self, context: Any) -> contextlib.AbstractContextManager[row_index.RowIndex]:
        return self._opened().replica.rows(context)

    def _opened(self) -> _ProcessParts:
        pid = os.getpid()
        while (parts := self._parts) is None or parts.pid != pid:
            # Those who come while a back end does not answer wait together, not in turn.
            opening = self._openings.setdefault(pid, row_replica.SharedBarrier(self._open))
            opening.wait()
        return parts

    def _open(self) -> None:
        """Open the back end unless this process has; one thread at a time."""
        parts = self._parts
        if parts is not None:
            if parts.pid == os.getpid():
                return
            self._inherited.append(parts)
            self._parts = None
        made = self._make()
        # Before tables are made there.
        self._refuse_cells_database(made.synchronizer)
        try:
            made.synchronizer.open()
        except BaseException:
            made.synchronizer.close()
            raise
        self._parts = made

    def _make(self) -> _ProcessParts:
        synchronizer = self._make_synchronizer()
        cell_of = self._scopes.of_context
        replica = row_replica.RowReplica(synchronizer, cell_of, comparison_of, mode=self.mode)
        is_there = self.mode is not cell_modes.NodeMode.RETIRED
        copied = table_copy.TableCopy(synchronizer).bring if is_there else _not_copied
        writer = row_writer.RowWriter(
            synchronizer,
            replica,
            cell_of,
            comparison_of,
            self._make_id,
            on_written=copied,
            highest_id=node_transfer.highest_named_id,
        )
        return _ProcessParts(
            os.getpid(),
            synchronizer,
            replica,
            served_functions.ServedParts(
                row_queries.RowQueries(replica),
                writer,
                None if is_there else row_archive.RowArchive(synchronizer, replica),
            ),
        )

    def _refuse_cells_database(self, synchronizer: contract.Synchronizer) -> None:
        """Refuse a back end in any cell's database, where this process may know them."""
        if synchronizer.database_url is None or not self._scopes.has_api_database():
            return
        refuse_unfit(self.mode, synchronizer, self._scopes.cell_urls())


def _not_copied(_context: Any, _key: Any) -> None:
    """Leave it at the record: there is no table."""


def comparison_of(context: Any) -> text_comparison.TextComparison:
    """Return how the database that a context is for compares text."""
    return text_comparison.of_engine(main_db.get_engine(context=context))
