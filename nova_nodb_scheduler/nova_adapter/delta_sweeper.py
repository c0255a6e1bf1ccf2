# SPDX-License-Identifier: Apache-2.0
"""Finds what a process that writes any cell left unreported, without a walk of all rows.

All that such a process (a worker of nova-api) wrote until its last beat, less
the age of what was queued then, was reported. What it wrote since shows:

* compute nodes, instances and migrations: Nova sets ``updated_at``,
  ``created_at`` or ``deleted_at`` with each write that matters here, by the
  writer's clock; rows are soft-deleted. One SELECT finds the keys.
* services: heartbeats set ``updated_at`` of all of them every ten seconds.
  Aggregates, their hosts and metadata, host mappings: hard-deleted. They are
  compared whole, streamed, without pauses.

What it leaves to the periodic sweep, as no process with the plugin writes it
without one of these marks: rows in raw SQL; rows of ``instance_system_metadata``
written alone; a row that was soft-deleted and archived between two sweeps.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter import scopes as scopes_module
from nova_nodb_scheduler.nova_adapter import sweeper as sweeper_module
from nova_nodb_scheduler.nova_adapter import tables
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer import publisher as publisher_module

#: Rows of a table that is compared whole, read by one SELECT.
_COMPARED_ROWS = 1000


class DeltaSweeper:
    """Compares what was written of one scope since a moment.

    :param sweeper: publishes rows, and reads records
    :param node_publisher: writes namespace ``cells`` (owner ``nodb``)
    :param page_rows: rows that are published at once
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        sweeper: sweeper_module.Sweeper,
        node_publisher: publisher_module.Publisher,
        scopes: scopes_module.Scopes,
        page_rows: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._synchronizer = synchronizer
        self._sweeper = sweeper
        self._node_publisher = node_publisher
        self._scopes = scopes
        self._page_rows = page_rows
        self._clock = clock

    def sweep(
        self, scope: str, since_seconds: float, stop: threading.Event, *, by: str
    ) -> sweeper_module.Swept:
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
        self._sweeper.begin()
        rows, repaired = 0, {}
        for table in tables.tables_of(scope):
            if table.namespace == namespaces.SERVICE_LIVENESS.name:
                # Comes and goes with its service; else heartbeats are no API's.
                continue
            if table.changed is None:
                keys = list(self._differing(scope, table, stop))
            else:
                keys = table.changed(self._scopes.context_for(scope), scope, since)
            rows += len(keys)
            repaired[table.namespace] = self._publish(scope, table.namespace, keys, stop)
            if table.namespace == namespaces.SERVICES.name:
                liveness = namespaces.SERVICE_LIVENESS.name
                repaired[liveness] = self._publish(scope, liveness, keys, stop)
        self._say(scope, epoch, began_at, by)
        return sweeper_module.Swept(scope, rows, repaired, self._clock() - started)

    def _publish(
        self, scope: str, namespace: str, keys: Sequence[str], stop: threading.Event
    ) -> int:
        changed = 0
        for first in range(0, len(keys), self._page_rows):
            if stop.is_set():
                raise sweeper_module.SweepStopped
            page = list(keys[first : first + self._page_rows])
            changed += self._sweeper.publish(scope, namespace, page)
        return changed

    def _differing(self, scope: str, table: tables.Table, stop: threading.Event) -> Iterator[str]:
        """Name the rows and records of a table that are not alike; no record is held for long."""
        seen: set[str] = set()
        held: dict[str, Mapping[str, Any] | None] = {}
        for record, state in self._sweeper.read(table.namespace):
            if not self._sweeper.is_of(scope, table, record.key.key, state):
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
        table: tables.Table,
        held: Mapping[str, Mapping[str, Any] | None],
        stop: threading.Event,
    ) -> Iterator[str]:
        if stop.is_set():
            raise sweeper_module.SweepStopped
        if held:
            rows = table.read(self._scopes.context_for(scope), scope, held.keys())
            yield from (key for key, state in held.items() if rows.get(key) != state)

    def _say(self, scope: str, epoch: str, began_at: float, by: str) -> None:
        unpublishable, unnamed = self._sweeper.unpublishable, self._sweeper.unnamed

        def update(
            current: Mapping[str, Any] | None,
        ) -> Mapping[str, Any] | publisher_module.Outcome:
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

        key = records.RecordKey(namespaces.CELLS.name, scope)
        self._node_publisher.publish({key: update})
