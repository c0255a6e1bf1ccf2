# SPDX-License-Identifier: Apache-2.0
"""Conductors that write compute nodes to one back end, each with a client and rows of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import attrs

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.compute_nodes import (
    cell_modes,
    row_archive,
    row_queries,
    row_replica,
    row_writer,
)
from nova_nodb_scheduler.nova_adapter.compute_nodes.serving import node_serving, served_functions
from nova_nodb_scheduler.synchronizer import contract
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes import nova_table

_ids = itertools.count(1)


@attrs.frozen
class Conductor:
    """What serves Nova's functions in one process."""

    synchronizer: contract.Synchronizer
    replica: row_replica.RowReplica
    queries: row_queries.RowQueries
    writer: row_writer.RowWriter
    archive: row_archive.RowArchive | None = None

    def served(self) -> served_functions.ServedParts:
        """Return it as what stands behind Nova's functions."""
        return served_functions.ServedParts(self.queries, self.writer, self.archive)


def conductor(
    synchronizer: contract.Synchronizer,
    pause: Callable[[int], None] = lambda _round: None,
    on_written: Callable[[Any, records.RecordKey], None] = lambda context, key: None,
    mode: cell_modes.NodeMode = cell_modes.NodeMode.STORE,
) -> Conductor:
    """Make a conductor of cell1, whose database is the one that a context is for.

    :param synchronizer: open
    :param mode: as it is configured
    """

    def cell_of(_context: Any) -> str:
        return cloud.CELL1

    comparison_of = node_serving.comparison_of
    replica = row_replica.RowReplica(synchronizer, cell_of, comparison_of, mode=mode)
    writer = row_writer.RowWriter(
        synchronizer,
        replica,
        cell_of,
        comparison_of,
        lambda: f"write-{next(_ids)}",
        pause,
        on_written,
    )
    archive = None
    if mode is cell_modes.NodeMode.RETIRED:
        archive = row_archive.RowArchive(synchronizer, replica)
    return Conductor(synchronizer, replica, row_queries.RowQueries(replica), writer, archive)


def prepare(
    conductor: Conductor,
    above: int = 0,
    mode: cell_modes.NodeMode = cell_modes.NodeMode.STORE,
    context: Any = None,
) -> None:
    """Have the back end answer for cell1, with ids above one.

    :param context: for its database, if that is not the one of Nova's table
    """
    modes = cell_modes.CellModes(conductor.synchronizer)
    comparison = node_serving.comparison_of(context or nova_table.context())
    modes.prepare(cloud.CELL1, comparison, above)
    modes.record(cloud.CELL1, mode)
