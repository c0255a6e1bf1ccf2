# SPDX-License-Identifier: Apache-2.0
"""Compares the tables of a cell with the synchronizer, whole or since a moment, and repairs it.

The same walk serves the import into an empty back end, the paced sweep that finds
what no reporter saw, and the repair after a reporter died. It takes the
reporters' own way (name, read the record, read the row, compare-and-set), so that
it is safe beside live writes.

After a process died that writes any cell (a worker of nova-api, a super conductor), what it left
unreported is found without a walk of all rows. All that it wrote until its last
beat, less the age of what was queued then, was reported. What it wrote since
shows:

* compute nodes, instances and migrations: Nova sets ``updated_at``,
  ``created_at`` or ``deleted_at`` with each write that matters here, by the
  writer's clock; rows are soft-deleted. One SELECT finds the keys.
* services: heartbeats set ``updated_at`` of all of them every ten seconds.
  Aggregates, their hosts and metadata, host mappings: hard-deleted. They are
  compared whole, streamed, without pauses.

What it leaves to the periodic sweep, as no process with the plugin writes it
without one of these marks: rows in raw SQL; rows of ``instance_system_metadata``
written alone; a row that was soft-deleted and archived between two sweeps, or deleted for good
by a resize between cells.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.reporting import dirty_records as dirty_module
from nova_nodb_scheduler.nova_adapter.reporting import nova_tables, row_publisher
from nova_nodb_scheduler.nova_adapter.reporting import scopes as scopes_module
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import publisher as publisher_module
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)


@attrs.frozen
class SweepProgress:
    """One page of a sweep, for a progress bar.

    :param table: namespace that is walked
    :param rows: rows looked at in it so far
    :param repaired: records that were missing, stale or extra so far
    """

    table: str
    rows: int
    repaired: int


@attrs.frozen
class SweptScope:
    """What one sweep of a scope's tables found and repaired.

    :param repaired: records changed by the sweep, per namespace
    :param rows: rows walked
    """

    scope: str
    rows: int
    repaired: dict[str, int]
    seconds: float


#: What was heard so long before a sweep waits in no reporter's queue, but one's that is
#: cut off; its cell is doubted for that. Told late, it hides one that nobody reported.
_QUEUED_SECONDS = 60.0
#: Records that are named of what could not be published.
_EXAMPLES = 10


#: Rows of a table that is compared whole, read by one SELECT.
_COMPARED_ROWS = 1000


class SweepStopped(Exception):
    """The process is ending; the sweep is not complete and counts for nothing."""


@attrs.define(eq=False, slots=False)
class CellSweeper:
    """Compares a scope's tables with the synchronizer, whole or since a moment, and repairs it.

    :param node_publisher: writes namespace ``cells`` (owner ``nodb``)
    """

    _synchronizer: contract.Synchronizer
    _rows: row_publisher.RowPublisher
    _node_publisher: publisher_module.Publisher
    _scopes: scopes_module.Scopes
    _page_rows: int
    _pause_seconds: float
    _clock: Callable[[], float] = time.monotonic
    _unpublishable: set[str] = attrs.field(init=False, factory=set)
    _unnamed: set[str] = attrs.field(init=False, factory=set)

    def sweep(
        self,
        scope: str,
        stop: threading.Event,
        progress: Callable[[SweepProgress], None] = lambda page: None,
        *,
        by: str,
    ) -> SweptScope:
        """Walk all tables of a scope, then say so in its record of namespace ``cells``.

        Heartbeats that were unreported when the walk began are settled by it, and
        those that it found and that were heard a minute before; what came later is not.

        :param by: who sweeps, for operators
        :raises SweepStopped: ``stop`` was set; a later sweep begins anew
        :raises BackendUnavailable: the same
        """
        started = self._clock()
        noted = self._unreported_by_service(scope)
        self._begin()
        began_at = self._synchronizer.now_seconds()
        heard_before = _iso(began_at - _QUEUED_SECONDS)
        head = self._synchronizer.head()
        rows, repaired = 0, {}
        for table in nova_tables.tables_of(scope):
            seen, changed = self._walk(scope, table, stop, progress, heard_before)
            rows += len(seen)
            extra = self._drop_extra(scope, table, seen, stop)
            repaired[table.namespace] = changed + extra
        noted.update(self._unreported_by_service(scope, heard_before))
        if noted:
            self._rows.settle_heartbeats(noted)
        state = {
            "cell": scope,
            "epoch": head.epoch,
            "swept_from": began_at,
            # What journals showed to be missing before it is made good.
            "swept_version": head.version,
            "swept_until": self._synchronizer.now_seconds(),
            "unreported": sum(noted.values()),
            "unpublishable": sorted(self._unpublishable)[:_EXAMPLES],
            "unnamed": len(self._unnamed),
            "unnamed_examples": sorted(self._unnamed)[:_EXAMPLES],
            "rows": rows,
            "repaired": repaired,
            "by": by,
        }
        key = records.RecordKey(known_namespaces.CELLS.name, scope)
        self._node_publisher.publish({key: lambda current: state})
        return SweptScope(scope, rows, repaired, self._clock() - started)

    def _begin(self) -> None:
        """Forget what could not be published before."""
        self._unpublishable, self._unnamed = set(), set()

    def unreported(self, scope: str) -> int:
        """Sum the heartbeats of a cell that no reporter saw."""
        return sum(self._unreported_by_service(scope).values())

    def _unreported_by_service(self, scope: str, before: str | None = None) -> dict[str, int]:
        """Return how many of each service nobody reported.

        :param before: only of services that were heard of last before then
        """
        if scope == scopes_module.API:
            return {}
        return {
            record.key.key: int(state["unreported"])
            for record, state in self._read(known_namespaces.SERVICE_LIVENESS.name)
            if state is not None
            and state.get("cell") == scope
            and int(state["unreported"]) > 0
            and (before is None or row_publisher.is_before(state.get("last_seen_up"), before))
        }

    def _walk(
        self,
        scope: str,
        table: nova_tables.StateTable,
        stop: threading.Event,
        progress: Callable[[SweepProgress], None],
        heard_before: str,
    ) -> tuple[set[str], int]:
        seen: set[str] = set()
        after = changed = 0
        while True:
            context = self._scopes.context_for(scope)
            after, keys = table.page(context, scope, after, self._page_rows)
            if not keys:
                return seen, changed
            changed += self._publish(scope, table.namespace, keys, heard_before)
            seen.update(keys)
            progress(SweepProgress(table.namespace, len(seen), changed))
            if stop.wait(self._pause_seconds):
                raise SweepStopped

    def _drop_extra(
        self, scope: str, table: nova_tables.StateTable, seen: set[str], stop: threading.Event
    ) -> int:
        """Look again at the records whose rows the walk did not meet: most have none."""
        keys = [
            record.key.key
            for record, state in self._read(table.namespace)
            if record.key.key not in seen and self._is_of(scope, table, record.key.key, state)
        ]
        return self._publish_pages(scope, table.namespace, keys, stop, self._pause_seconds)

    def _publish_pages(
        self,
        scope: str,
        namespace: str,
        keys: list[str],
        stop: threading.Event,
        pause_seconds: float = 0.0,
    ) -> int:
        changed = 0
        for first in range(0, len(keys), self._page_rows):
            if stop.is_set():
                raise SweepStopped
            changed += self._publish(scope, namespace, keys[first : first + self._page_rows])
            if stop.wait(pause_seconds):
                raise SweepStopped
        return changed

    def _is_of(
        self, scope: str, table: nova_tables.StateTable, key: str, state: Mapping[str, Any] | None
    ) -> bool:
        """Tell whether a record is a scope's own to judge."""
        if state is None:
            return self._is_gone(scope, table, key)
        return scope == scopes_module.API or state.get("cell") == scope

    def _is_gone(self, scope: str, table: nova_tables.StateTable, key: str) -> bool:
        """Tell whether a record nobody can read has no row, in whichever cell it was."""
        if scope == scopes_module.API or key != nova_tables.uuid_of(key):
            return scope == scopes_module.API or key.endswith(f"@{scope}")
        if not self._scopes.has_api_database():
            return False
        return not any(
            table.read(self._scopes.context_for(cell), cell, [key])
            for cell in self._scopes.all_cells()
        )

    def _publish(
        self, scope: str, namespace: str, keys: list[str], heard_before: str | None = None
    ) -> int:
        """Bring some rows' records up to date; return how many records that changed.

        :param heard_before: see :func:`.row_publisher.swept_liveness`
        :raises SweepIncomplete: some could not be read or published this time
        :raises BackendUnavailable: nothing of it is known
        """
        batch = [
            dirty_module.DirtyRecord(records.RecordKey(namespace, key), scope, 0.0) for key in keys
        ]
        published = self._rows.publish(batch, heard_before)
        # One record that cannot be written must not hide what comes behind it.
        self._unpublishable.update(map(str, published.rejected))
        # Nothing of these is in the store, and the rest of the cell is proved
        # without them: requests are told (see proof.Proof.unnamed).
        self._unnamed.update(map(str, published.unnamed))
        unread = published.failed - published.rejected
        if unread:
            raise SweepIncomplete(scope, namespace, len(unread))
        return published.written

    def _read(self, namespace: str) -> Iterator[tuple[records.Record, Mapping[str, Any] | None]]:
        """Read a namespace's records with their states, None where nobody can read it."""
        for page in self._synchronizer.snapshot([namespace]).pages:
            for record in page:
                try:
                    yield record, codec.decode(record.payload).state
                except errors.UndecodableRecord:
                    # It will be written anew if a row of that name exists.
                    LOG.warning("Record %(key)s cannot be read.", {"key": record.key})
                    yield record, None

    # -- since a moment -----------------------------------------------------------

    def sweep_since(
        self, scope: str, since_seconds: float, stop: threading.Event, *, by: str
    ) -> SweptScope:
        """Repair what was written since then, and say so in the scope's record of ``cells``.

        That record stays what the last whole sweep made it but for
        ``delta_from``: when this one began. It proves what processes that write
        any cell did, and nothing of a cell's own conductors.

        :param since_seconds: of the back end's clock, all margins taken off
        :param by: who sweeps, for operators
        :raises SweepStopped: ``stop`` was set; nothing is proved
        :raises SweepIncomplete: some rows could not be published; the same
        :raises BackendUnavailable: the same
        """
        started = self._clock()
        began_at = self._synchronizer.now_seconds()
        epoch = self._synchronizer.head().epoch
        since = dt.datetime.fromtimestamp(since_seconds, dt.UTC).replace(tzinfo=None, microsecond=0)
        self._begin()
        rows, repaired = 0, {}
        for table in nova_tables.tables_of(scope):
            if table.namespace == known_namespaces.SERVICE_LIVENESS.name:
                # Comes and goes with its service; else heartbeats are no API's.
                continue
            if table.tells_changes:
                keys = table.changed(self._scopes.context_for(scope), scope, since)
            else:
                keys = list(self._differing(scope, table, stop))
            rows += len(keys)
            repaired[table.namespace] = self._publish_pages(scope, table.namespace, keys, stop)
            if table.namespace == known_namespaces.SERVICES.name:
                liveness = known_namespaces.SERVICE_LIVENESS.name
                repaired[liveness] = self._publish_pages(scope, liveness, keys, stop)
        self._say(scope, epoch, began_at, by)
        return SweptScope(scope, rows, repaired, self._clock() - started)

    def _differing(
        self, scope: str, table: nova_tables.StateTable, stop: threading.Event
    ) -> Iterator[str]:
        """Name the rows and records of a table that are not alike; no record is held for long."""
        seen: set[str] = set()
        held: dict[str, Mapping[str, Any] | None] = {}
        for record, state in self._read(table.namespace):
            if not self._is_of(scope, table, record.key.key, state):
                continue
            held[record.key.key] = state
            if len(held) >= _COMPARED_ROWS:
                yield from self._unlike(scope, table, held, stop)
                seen.update(held)
                held = {}
        yield from self._unlike(scope, table, held, stop)
        seen.update(held)
        after = 0
        while True:
            context = self._scopes.context_for(scope)
            after, keys = table.page(context, scope, after, _COMPARED_ROWS)
            if not keys:
                return
            yield from (key for key in keys if key not in seen)

    def _unlike(
        self,
        scope: str,
        table: nova_tables.StateTable,
        held: Mapping[str, Mapping[str, Any] | None],
        stop: threading.Event,
    ) -> Iterator[str]:
        if stop.is_set():
            raise SweepStopped
        if held:
            rows = table.read(self._scopes.context_for(scope), scope, held.keys())
            yield from (key for key, state in held.items() if rows.get(key) != state)

    def _say(self, scope: str, epoch: str, began_at: float, by: str) -> None:
        unpublishable, unnamed = self._unpublishable, self._unnamed

        def update(current: publisher_module.State | None) -> publisher_module.Computed:
            if current is None or current.get("epoch") != epoch:
                # Nothing stands for it to be added to: a whole sweep is due.
                return publisher_module.UNCHANGED
            return {
                **current,
                "delta_from": max(began_at, float(current.get("delta_from", 0.0))),
                "delta_by": by,
                "unpublishable": sorted({*current.get("unpublishable", ()), *unpublishable})[:10],
                # Not a sum: those of the whole sweep may be among them.
                "unnamed": max(int(current.get("unnamed", 0)), len(unnamed)),
                "unnamed_examples": sorted({*current.get("unnamed_examples", ()), *unnamed})[:10],
            }

        key = records.RecordKey(known_namespaces.CELLS.name, scope)
        self._node_publisher.publish({key: update})


class SweepIncomplete(Exception):
    """Some rows could not be published: the sweep counts for nothing."""

    def __init__(self, scope: str, namespace: str, count: int) -> None:
        super().__init__(scope, namespace, count)
        self.scope, self.namespace, self.count = scope, namespace, count

    def __str__(self) -> str:
        return (
            f"{self.count} records of {self.namespace} in {self.scope} could not be "
            "published; the cell's database or the back end did not answer"
        )


def _iso(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).replace(tzinfo=None).isoformat()
