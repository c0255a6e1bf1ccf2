# SPDX-License-Identifier: Apache-2.0
"""Keeps a process whose configuration says ``mirror`` from writing a cell that is in another mode.

It would write Nova's table behind the records' back, or create every node of a table that
is empty once more. Who starts looks first, and does not start. A back end that is down
then must not keep a process from starting: it looks again now and then, and once it knows,
Nova's functions that write compute nodes refuse.

Nobody waits for that: what knows nothing of the mode does as Nova does.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from nova.db.main import api as main_db
from oslo_db import exception as db_exception

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes, recorded_modes, row_writer
from nova_nodb_scheduler.nova_adapter.reporting import scopes as scopes_module
from nova_nodb_scheduler.synchronizer import contract

LOG = logging.getLogger(__name__)

#: How long what was seen holds good.
_LOOK_SECONDS = 15.0

_GUARDED = (*row_writer.WRITES, "service_destroy")


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
        self._replaced: dict[str, Any] = {}

    def install(self, *, looks_itself: bool) -> None:
        """Guard Nova's functions; idempotent, no I/O.

        :param looks_itself: before a write, where nothing else in the process looks:
            who writes seldom may be held up by the back end
        """
        self._looks_itself = looks_itself
        for name in _GUARDED:
            if name not in self._replaced:
                own = getattr(main_db, name)
                self._replaced[name] = own
                setattr(main_db, name, self._guarded(own))

    def close(self) -> None:
        """Put Nova's own functions back; idempotent."""
        for name, own in self._replaced.items():
            setattr(main_db, name, own)
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

    def _guarded(self, own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        def guarded(context: Any, *args: Any, **kwargs: Any) -> Any:
            self._look_before_a_write()
            if self._others:
                try:
                    self._refuse(self._scopes.of_context(context))
                except errors.NodbError as error:
                    # Without its cell it is as good as in the other mode.
                    raise db_exception.DBError(error) from error
            return own(context, *args, **kwargs)

        return guarded

    def _look_before_a_write(self) -> None:
        if not self._looks_itself:
            return
        now = self._clock()
        with self._lock:
            is_due = now >= self._looked_at + _LOOK_SECONDS
            if is_due:
                self._looked_at = now
        if is_due:
            self._ask()
