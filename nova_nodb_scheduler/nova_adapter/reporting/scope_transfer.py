# SPDX-License-Identifier: Apache-2.0
"""Imports a scope into the synchronizer, and compares the two."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import attrs

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
    known_namespaces.SERVICE_LIVENESS.name: (
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
    ),
}

_PAGE_ROWS = 500


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
    synchronizer: contract.Synchronizer, scopes: scopes_module.Scopes, scope: str
) -> dict[str, state_comparer.Comparison]:
    """Compare a scope's tables with their records, by namespace.

    Reads both sides once; rows written meanwhile may show as stale. Rows whose
    names no record may have are told as refused: they are no difference that
    an import could mend.
    """
    found = {}
    for table in nova_tables.tables_of(scope):
        held = _held(synchronizer, scope, table.namespace)
        found[table.namespace] = state_comparer.compare(
            _rows(scopes, scope, table),
            held,
            _IGNORED.get(table.namespace, ()),
            is_refused=functools.partial(_is_refused, table.namespace),
        )
    return found


def _is_refused(namespace: str, key: str) -> bool:
    return records.RecordKey(namespace, key).fault is not None


def _rows(
    scopes: scopes_module.Scopes, scope: str, table: nova_tables.StateTable
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    after = 0
    while True:
        context = scopes.context_for(scope)
        after, keys = table.page(context, scope, after, _PAGE_ROWS)
        if not keys:
            return
        yield from table.read(context, scope, keys).items()


def _held(
    synchronizer: contract.Synchronizer, scope: str, namespace: str
) -> dict[str, Mapping[str, Any]]:
    held: dict[str, Mapping[str, Any]] = {}
    for page in synchronizer.snapshot([namespace]).pages:
        for record in page:
            state = _state(record)
            if state is not None and (scope == scopes_module.API or state.get("cell") == scope):
                held[record.key.key] = state
    return held
