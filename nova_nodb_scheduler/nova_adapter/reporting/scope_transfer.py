# SPDX-License-Identifier: Apache-2.0
"""Imports a scope into the synchronizer, and compares the two."""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import attrs
from oslo_utils import timeutils

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.reporting import cell_sweeper as sweeper_module
from nova_nodb_scheduler.nova_adapter.reporting import nova_tables
from nova_nodb_scheduler.nova_adapter.reporting import scopes as scopes_module
from nova_nodb_scheduler.observe import state_comparer
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)

#: Heartbeats arrive while a comparison runs; what matters of them is how many
#: were missed, which ``unreported`` says.
_IGNORED: Mapping[str, Collection[str]] = {
    known_namespaces.SERVICE_LIVENESS.name: frozenset(
        (
            "report_count",
            "last_seen_up",
            "updated_at",
            "uuid",
            "base",
            "seen",
            "unreported",
            "counted_at",
            "seen_at",
            "unwritten",
        )
    ),
}

_PAGE_ROWS = 500
_LOOK_AGAIN_SECONDS = 0.5


@attrs.frozen
class TransferResult:
    """What became of the import of one scope's rows.

    :param written: records changed, by namespace
    """

    scope: str
    outcome: str
    rows: int
    written: Mapping[str, int]
    seconds: float
    failed: bool = False


def imported(synchronizer: contract.Synchronizer) -> set[str]:
    """Return the scopes that were walked whole in the present epoch."""
    epoch = synchronizer.head().epoch
    found = set()
    for page in synchronizer.snapshot([known_namespaces.CELLS.name]).pages:
        for record in page:
            state = _state(record)
            if state is not None and state.get("epoch") == epoch:
                found.add(record.key.key)
    return found


def _state(record: records.Record) -> Mapping[str, Any] | None:
    """Decode a record; one that is damaged counts as absent."""
    try:
        return codec.decode(record.payload).state
    except errors.UndecodableRecord as error:
        LOG.warning("%(error)s", {"error": error})
        return None


def import_scope(
    sweeper: sweeper_module.CellSweeper,
    scopes: scopes_module.Scopes,
    scope: str,
    stop: threading.Event,
    total: Callable[[int], None],
    progress: Callable[[sweeper_module.SweepProgress], None],
) -> TransferResult:
    """Walk a scope; a database that is down is a result, not an error.

    :param total: told the number of rows to come
    :raises BackendUnavailable: the synchronizer is down: no scope can go on
    :raises SweepStopped: ``stop`` was set
    """
    try:
        total(nova_tables.count_rows(scopes.context_for(scope), scope))
        swept = sweeper.sweep(scope, stop, progress, by="import")
    except (errors.BackendUnavailable, sweeper_module.SweepStopped):
        raise
    except Exception as error:  # noqa: BLE001 - whatever a database driver raises
        LOG.warning("Cannot import %(scope)s: %(error)s", {"scope": scope, "error": error})
        return left_out(scope, str(error))
    return TransferResult(scope, "imported", swept.rows, swept.repaired, swept.seconds)


def left_out(scope: str, reason: str) -> TransferResult:
    """Return what becomes of a scope whose database is down."""
    return TransferResult(scope, f"left out: {reason}", 0, {}, 0.0, failed=True)


def compare_scope(
    synchronizer: contract.Synchronizer,
    scopes: scopes_module.Scopes,
    scope: str,
    *,
    bound_seconds: float = 0.0,
) -> dict[str, state_comparer.Comparison]:
    """Compare a scope's tables with their records, by namespace.

    Reads the records and then the rows. What differs and was written within the
    bound before that, or since, is looked at again until it is alike, for the
    bound at the most: its record may be under way. It is told as settled then.
    All else counts as it was first seen, so that no sweep hides what nobody had
    reported. When rows of services, aggregates and host mappings were written
    their columns do not tell: these count so always.

    Rows whose names no record may have are told as refused: they are no
    difference that an import could mend.

    :param bound_seconds: how long a record may take to follow its row
    :raises BackendUnavailable: the synchronizer is down
    """
    return {
        table.namespace: _Compared(synchronizer, scopes, scope, table).compare(bound_seconds)
        for table in nova_tables.tables_of(scope)
    }


@attrs.frozen
class _Compared:
    """A table of a scope, and its records."""

    _synchronizer: contract.Synchronizer
    _scopes: scopes_module.Scopes
    _scope: str
    _table: nova_tables.StateTable

    def compare(self, bound_seconds: float) -> state_comparer.Comparison:
        since = timeutils.utcnow() - dt.timedelta(seconds=bound_seconds)
        held = self._held()
        found = state_comparer.differences(
            self._rows(), held, self._ignored, is_refused=self._is_refused
        )
        del held
        if self._table.tells_changes:
            changed = self._table.changed(
                self._context(), self._scope, since.replace(microsecond=0)
            )
            self._settle(found, {key for key in changed if key in found}, bound_seconds)
        return found.comparison()

    def _settle(
        self, found: state_comparer.Differences, keys: Collection[str], bound_seconds: float
    ) -> None:
        """Look at what was just written again until it is alike, or the bound is over."""
        deadline = time.monotonic() + bound_seconds
        while keys := self._look_again(found, sorted(keys)):
            if time.monotonic() >= deadline:
                return
            time.sleep(_LOOK_AGAIN_SECONDS)

    def _look_again(self, found: state_comparer.Differences, keys: list[str]) -> set[str]:
        differing: set[str] = set()
        for first in range(0, len(keys), _PAGE_ROWS):
            page = keys[first : first + _PAGE_ROWS]
            # The row first: its record follows it.
            rows = self._table.read(self._context(), self._scope, page)
            held = self._synchronizer.read([self._record_key(key) for key in page])
            for key in page:
                record = held.get(self._record_key(key))
                state = None if record is None or record.deleted else self._own_state(record)
                if not found.look_again(key, rows.get(key), state, self._ignored):
                    differing.add(key)
        return differing

    @property
    def _ignored(self) -> Collection[str]:
        return _IGNORED.get(self._table.namespace, ())

    def _context(self) -> Any:
        return self._scopes.context_for(self._scope)

    def _record_key(self, key: str) -> records.RecordKey:
        return records.RecordKey(self._table.namespace, key)

    def _is_refused(self, key: str) -> bool:
        return self._record_key(key).fault is not None

    def _rows(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        after = 0
        while True:
            context = self._context()
            after, keys = self._table.page(context, self._scope, after, _PAGE_ROWS)
            if not keys:
                return
            yield from self._table.read(context, self._scope, keys).items()

    def _held(self) -> dict[str, Mapping[str, Any]]:
        return {
            record.key.key: state
            for page in self._synchronizer.snapshot([self._table.namespace]).pages
            for record in page
            if (state := self._own_state(record)) is not None
        }

    def _own_state(self, record: records.Record) -> Mapping[str, Any] | None:
        state = _state(record)
        is_own = state is not None and self._scope in (scopes_module.API, state.get("cell"))
        return state if is_own else None
