# SPDX-License-Identifier: Apache-2.0
"""Keeps a process whose configuration says ``mirror`` from writing a cell that is in another mode.

It would write Nova's table behind the records' back, or create every node of a table that
is empty once more. Who starts looks first, and does not start. A back end that is down
then must not keep a process from starting: it looks again now and then, and once it knows,
Nova's functions that write compute nodes refuse. So do those that read them where the table
is not even written behind the records, and what schedulers decide by is not made of it: while
Nova is upgraded it stands there empty, and every node would be told absent.

Nobody waits for that: what knows nothing of the mode does as Nova does.
"""

from __future__ import annotations

import datetime
import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from nova.db.main import api as main_db
from nova.objects import compute_node as nova_compute_node
from oslo_db import exception as db_exception

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.compute_nodes import (
    cell_modes,
    recorded_modes,
    row_queries,
    row_writer,
)
from nova_nodb_scheduler.nova_adapter.reporting import nova_tables
from nova_nodb_scheduler.nova_adapter.reporting import scopes as scopes_module
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract

LOG = logging.getLogger(__name__)

#: How long what was seen holds good.
_LOOK_SECONDS = 15.0

_WRITES = (
    *((main_db, name) for name in (*row_writer.WRITES, "service_destroy")),
    # Its caller writes what it gives.
    (nova_compute_node, "_get_node_empty_ratio"),
)
_READS = (
    *((main_db, name) for name in row_queries.READS),
    (nova_compute_node.ComputeNodeList, "_db_compute_node_get_all_by_uuids"),
    (nova_compute_node.ComputeNodeList, "_db_compute_node_get_by_hv_type"),
)

#: Where the table says what the records do, but for a moment.
_COPIED = cell_modes.NodeMode.STORE.value


class MirrorGuard:
    """One process's own; any thread may call it.

    :param make_synchronizer: a new driver instance, not opened
    :param scopes: tells the cell of a context
    """

    mode = cell_modes.NodeMode.MIRROR

    def __init__(
        self,
        make_synchronizer: Callable[[], contract.Synchronizer],
        scopes: scopes_module.Scopes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_synchronizer = make_synchronizer
        self._scopes = scopes
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_at = float("-inf")
        self._looks_itself = False
        #: Modes of the cells that are in another one.
        self._others: Mapping[str, str] = {}
        self._replaced: dict[tuple[Any, str], Any] = {}
        self._table = _GuardedTable(self._require_table)

    def install(self, *, looks_itself: bool) -> None:
        """Guard Nova's functions; idempotent, no I/O.

        :param looks_itself: before a write, where nothing else in the process looks:
            who writes seldom may be held up by the back end
        """
        self._looks_itself = looks_itself
        nova_tables.install(self._table)
        for guard, places in ((self._guard_write, _WRITES), (self._guard_read, _READS)):
            for holder, name in places:
                if (holder, name) not in self._replaced:
                    own = vars(holder)[name]
                    self._replaced[holder, name] = own
                    setattr(holder, name, _guarded(own, guard))

    def close(self) -> None:
        """Put Nova's own functions back; idempotent."""
        nova_tables.uninstall(self._table)
        for (holder, name), own in self._replaced.items():
            setattr(holder, name, own)
        self._replaced.clear()

    def check_start(self, cells: Collection[str]) -> None:
        """Refuse to start beside cells in another mode; where nobody answers, start.

        :raises ModeDiffers: naming the first of them
        """
        self._ask()
        for cell in sorted(cells):
            self._refuse(cell)

    def look(self, synchronizer: contract.Synchronizer) -> None:
        """Learn the modes of all cells, unless that was done a moment ago.

        :param synchronizer: open
        :raises BackendUnavailable: what was known still is
        """
        now = self._clock()
        with self._lock:
            if now < self._looked_at + _LOOK_SECONDS:
                return
            # The next caller waits as long, whatever comes of this.
            self._looked_at = now
        self._learn(synchronizer)

    def facts(self) -> dict[str, Any]:
        """Return what this process says of it in its beats."""
        return {"compute_nodes": self.mode.value}

    def statements(self) -> Mapping[str, float]:
        """Return nothing: Nova's table is what it goes by."""
        return {}

    def _learn(self, synchronizer: contract.Synchronizer) -> None:
        try:
            modes = recorded_modes.read(synchronizer)
        except contract.SnapshotInterrupted:
            # Of another epoch: the next look sees that one.
            return
        others = {cell: mode for cell, mode in modes.items() if mode != self.mode.value}
        for cell in sorted(others.keys() - self._others.keys()):
            LOG.error(
                "%(error)s Until then it writes no compute node of that cell.",
                {"error": cell_modes.ModeDiffers(cell, others[cell], self.mode.value)},
            )
        self._others = others

    def _ask(self) -> None:
        """Open the back end, look, and close it."""
        synchronizer = self._make_synchronizer()
        try:
            synchronizer.open_existing()
            self._learn(synchronizer)
        except errors.NodbError as error:
            LOG.warning(
                "Whether a cell's compute nodes are still in Nova's table is not known: %(error)s",
                {"error": error},
            )
        finally:
            synchronizer.close()

    def _refuse(self, cell: str) -> None:
        recorded = self._others.get(cell)
        if recorded is not None:
            raise cell_modes.ModeDiffers(cell, recorded, self.mode.value)

    def _guard_write(self, context: Any) -> None:
        if self._looks_itself:
            self._look_if_due()
        if self._others:
            self._refuse_context(context)

    def _guard_read(self, context: Any) -> None:
        if any(mode != _COPIED for mode in self._others.values()):
            self._refuse_context(context, but_for=_COPIED)

    def _refuse_context(self, context: Any, but_for: str = "") -> None:
        try:
            cell = self._scopes.of_context(context)
            if self._others.get(cell) != but_for:
                self._refuse(cell)
        except errors.NodbError as error:
            # Without its cell it is as good as in the other mode.
            raise db_exception.DBError(error) from error

    def _require_table(self, cell: str, is_known: bool) -> None:
        """Refuse to make states of the table of a cell where records count.

        :param is_known: whether somebody looked for the same purpose just before
        :raises ModeDiffers: it does not count
        """
        if not is_known:
            self._look_if_due()
        self._refuse(cell)

    def _look_if_due(self) -> None:
        now = self._clock()
        with self._lock:
            is_due = now >= self._looked_at + _LOOK_SECONDS
            if is_due:
                self._looked_at = now
        if is_due:
            self._ask()


def _guarded(own: Any, guard: Callable[[Any], None]) -> Any:
    """Return one of Nova's functions that a guard is asked before, with its context."""
    is_static = isinstance(own, staticmethod)
    function: Callable[..., Any] = own.__func__ if is_static else own

    @functools.wraps(function)
    def guarded(context: Any, *args: Any, **kwargs: Any) -> Any:
        guard(context)
        return function(context, *args, **kwargs)

    return staticmethod(guarded) if is_static else guarded


class _GuardedTable:
    """Nova's table of compute nodes as states, of cells where it counts; see
    :class:`.nova_tables.StateTable`.

    :param require: given a cell, and whether it was just asked; raises where it does not count
    """

    namespace = known_namespaces.COMPUTE_NODES.name
    tells_changes = True

    def __init__(self, require: Callable[[str, bool], None]) -> None:
        self._require = require
        self._own = nova_tables.own_table(self.namespace)

    def page(self, context: Any, cell: str, after: int, limit: int) -> tuple[int, list[str]]:
        self._require(cell, False)
        return self._own.page(context, cell, after, limit)

    def changed(self, context: Any, cell: str, since: datetime.datetime) -> list[str]:
        self._require(cell, False)
        return self._own.changed(context, cell, since)

    def read(self, context: Any, cell: str, keys: Collection[str]) -> dict[str, nova_tables.State]:
        self._require(cell, True)
        return self._own.read(context, cell, keys)

    def count(self, context: Any) -> int:
        return self._own.count(context)
