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
    row_queries,
    row_replica,
    row_writer,
    text_comparison,
)
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


def conductor(
    synchronizer: contract.Synchronizer,
    pause: Callable[[int], None] = lambda _round: None,
    on_written: Callable[[Any, records.RecordKey], None] = lambda context, key: None,
) -> Conductor:
    """Make a conductor of cell1, whose database is that of Nova's table.

    :param synchronizer: open
    """

    def cell_of(_context: Any) -> str:
        return cloud.CELL1

    def comparison_of(_context: Any) -> text_comparison.TextComparison:
        return nova_table.comparison()

    replica = row_replica.RowReplica(synchronizer, cell_of, comparison_of)
    writer = row_writer.RowWriter(
        synchronizer,
        replica,
        cell_of,
        comparison_of,
        lambda: f"write-{next(_ids)}",
        pause,
        on_written,
    )
    return Conductor(synchronizer, replica, row_queries.RowQueries(replica), writer)


def prepare(conductor: Conductor, above: int = 0) -> None:
    """Have the back end answer for cell1, with ids above one."""
    modes = cell_modes.CellModes(conductor.synchronizer)
    modes.prepare(cloud.CELL1, nova_table.comparison(), above)
    modes.record(cloud.CELL1, cell_modes.NodeMode.STORE)
