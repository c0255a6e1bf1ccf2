# SPDX-License-Identifier: Apache-2.0
"""All that answers for compute nodes in one process, put together and opened when asked.

Nova forks its workers, and some of its programs read no compute node in their life: the
back end is opened by the first call in each process, and one that is not to be had makes
that call fail, not the start.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from typing import Any

from nova.db.main import api as main_db

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.compute_nodes import (
    row_queries,
    row_replica,
    row_writer,
    served_functions,
    table_copy,
    text_comparison,
)
from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import node_transfer
from nova_nodb_scheduler.nova_adapter.reporting import scopes as scopes_module
from nova_nodb_scheduler.synchronizer import contract

#: How the mode is named to operators.
OPTION = "[nodb_scheduler] compute_nodes"


def refuse_unfit(
    synchronizer: contract.Synchronizer, own_url: str | None, cell_urls: Collection[str]
) -> None:
    """Refuse a back end that may not answer for compute nodes. No I/O.

    :param own_url: of the database that it is, if it is one
    :param cell_urls: of the cells' databases that are known
    :raises ConfigurationError: it loses what it was given when it restarts, or it lives in
        a cell's own database, where archiving and purging meet its tables
    """
    if not synchronizer.capabilities.durable:
        raise errors.ConfigurationError(
            OPTION,
            "store",
            f"{synchronizer.name} does not keep records over a restart, and compute nodes would "
            "be lost with it: choose a durable back end, or mirror",
        )
    own = None if own_url is None else scopes_module.database_of(own_url)
    if own is not None and own in {scopes_module.database_of(each) for each in cell_urls}:
        raise errors.ConfigurationError(
            OPTION,
            "store",
            "the back end is a cell's own database, and nova-manage would archive and purge its "
            "tables: give it a database of its own, or choose mirror",
        )


class NodeServing:
    """One process's own; any thread may call what it serves.

    :param make_synchronizer: a new driver instance, not opened
    """

    def __init__(
        self,
        make_synchronizer: Callable[[], contract.Synchronizer],
        scopes: scopes_module.Scopes,
        make_id: Callable[[], str],
    ) -> None:
        synchronizer = make_synchronizer()
        self._synchronizer = synchronizer
        self._pid: int | None = None
        self._lock = threading.Lock()
        replica = row_replica.RowReplica(synchronizer, scopes.of_context, comparison_of)
        writer = row_writer.RowWriter(
            synchronizer,
            replica,
            scopes.of_context,
            comparison_of,
            make_id,
            on_written=table_copy.TableCopy(synchronizer).bring,
        )
        self._writer = writer
        self.functions = served_functions.ServedFunctions(
            row_queries.RowQueries(replica), writer, self.open
        )

    def open(self) -> None:
        """Open the back end in this process; idempotent, cheap once it is.

        :raises BackendUnavailable: it does not answer; the next call tries again
        :raises SchemaMismatch: its schema must be migrated first
        """
        if self._pid == os.getpid():
            return
        with self._lock:
            if self._pid != os.getpid():
                self._synchronizer.open()
                self._pid = os.getpid()

    def transfer(self) -> node_transfer.NodeTransfer:
        """Return what brings cells' rows to this back end, and from it; open first."""
        return node_transfer.NodeTransfer(self._synchronizer)

    def close(self) -> None:
        """Put Nova's own functions back and close the back end; idempotent."""
        self.functions.uninstall()
        with self._lock:
            self._pid = None
            self._synchronizer.close()


def comparison_of(context: Any) -> text_comparison.TextComparison:
    """Return how the database that a context is for compares text."""
    return text_comparison.of_engine(main_db.get_engine(context=context))
