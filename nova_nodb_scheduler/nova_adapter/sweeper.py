# SPDX-License-Identifier: Apache-2.0
"""Compares the tables of a cell with the synchronizer, and repairs it.

The same walk serves the import into an empty back end, the paced sweep that
finds what no reporter saw, and the repair after a reporter died. It takes the
reporters' own way (name, read the record, read the row, compare-and-set), so
that it is safe beside live writes.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter import dirty as dirty_module
from nova_nodb_scheduler.nova_adapter import publishing, tables
from nova_nodb_scheduler.nova_adapter import scopes as scopes_module
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer import publisher as publisher_module
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)


@attrs.frozen
class Progress:
    """One page of a sweep, for a progress bar.

    :param table: namespace that is walked
    :param rows: rows looked at in it so far
    :param repaired: records that were missing, stale or extra so far
    """

    table: str
    rows: int
    repaired: int


@attrs.frozen
class Swept:
    """Result of one sweep.

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


class SweepStopped(Exception):
    """The process is ending; the sweep is not complete and counts for nothing."""


class Sweeper:
    """Walks one scope's tables.

    :param node_publisher: writes namespace ``cells`` (owner ``nodb``)
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        rows: publishing.RowPublisher,
        node_publisher: publisher_module.Publisher,
        scopes: scopes_module.Scopes,
        page_rows: int,
        pause_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._synchronizer = synchronizer
        self._rows = rows
        self._node_publisher = node_publisher
        self._scopes = scopes
        self._page_rows = page_rows
        self._pause_seconds = pause_seconds
        self._clock = clock
        self._unpublishable: set[str] = set()
        self._unnamed: set[str] = set()

    def sweep(
        self,
        scope: str,
        stop: threading.Event,
        progress: Callable[[Progress], None] = lambda page: None,
        *,
        by: str,
    ) -> Swept:
        """Walk all tables of a scope, then say so in its record of namespace ``cells``.

        Heartbeats that were unreported when the walk began are settled by it, and
        those that it found and that were heard a minute before; what came later is not.

        :param by: who sweeps, for operators
        :raises SweepStopped: ``stop`` was set; a later sweep begins anew
        :raises BackendUnavailable: the same
        """
        started = self._clock()
        noted = self._unreported_by_service(scope)
        self.begin()
        began_at = self._synchronizer.now_seconds()
        heard_before = _iso(began_at - _QUEUED_SECONDS)
        epoch = self._synchronizer.head().epoch
        rows, repaired = 0, {}
        for table in tables.tables_of(scope):
            seen, changed = self._walk(scope, table, stop, progress, heard_before)
            rows += len(seen)
            extra = self._drop_extra(scope, table, seen, stop)
            repaired[table.namespace] = changed + extra
        noted.update(self._unreported_by_service(scope, heard_before))
        if noted:
            self._rows.settle_heartbeats(noted)
        state = {
            "cell": scope,
            "epoch": epoch,
            "swept_from": began_at,
            "swept_until": self._synchronizer.now_seconds(),
            "unreported": sum(noted.values()),
            "unpublishable": sorted(self._unpublishable)[:_EXAMPLES],
            "unnamed": len(self._unnamed),
            "unnamed_examples": sorted(self._unnamed)[:_EXAMPLES],
            "rows": rows,
            "repaired": repaired,
            "by": by,
        }
        key = records.RecordKey(namespaces.CELLS.name, scope)
        self._node_publisher.publish({key: lambda current: state})
        return Swept(scope, rows, repaired, self._clock() - started)

    def begin(self) -> None:
        """Forget what could not be published before."""
        self._unpublishable, self._unnamed = set(), set()

    @property
    def unpublishable(self) -> Collection[str]:
        """Records that could not be written as they are since :meth:`begin`."""
        return frozenset(self._unpublishable)

    @property
    def unnamed(self) -> Collection[str]:
        """Rows whose names no record may have, since :meth:`begin`; for people."""
        return frozenset(self._unnamed)

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
            for record, state in self.read(namespaces.SERVICE_LIVENESS.name)
            if state is not None
            and state.get("cell") == scope
            and int(state["unreported"]) > 0
            and (before is None or publishing.is_before(state.get("last_seen_up"), before))
        }

    def _walk(
        self,
        scope: str,
        table: tables.Table,
        stop: threading.Event,
        progress: Callable[[Progress], None],
        heard_before: str,
    ) -> tuple[set[str], int]:
        seen: set[str] = set()
        after = changed = 0
        while True:
            context = self._scopes.context_for(scope)
            after, keys = table.page(context, scope, after, self._page_rows)
            if not keys:
                return seen, changed
            changed += self.publish(scope, table.namespace, keys, heard_before)
            seen.update(keys)
            progress(Progress(table.namespace, len(seen), changed))
            if stop.wait(self._pause_seconds):
                raise SweepStopped

    def _drop_extra(
        self, scope: str, table: tables.Table, seen: set[str], stop: threading.Event
    ) -> int:
        """Look again at the records whose rows the walk did not meet: most have none."""
        keys = [
            record.key.key
            for record, state in self.read(table.namespace)
            if record.key.key not in seen and self.is_of(scope, table, record.key.key, state)
        ]
        changed = 0
        for first in range(0, len(keys), self._page_rows):
            changed += self.publish(scope, table.namespace, keys[first : first + self._page_rows])
            if stop.wait(self._pause_seconds):
                raise SweepStopped
        return changed

    def is_of(
        self, scope: str, table: tables.Table, key: str, state: Mapping[str, Any] | None
    ) -> bool:
        """Tell whether a record is a scope's own to judge."""
        if state is None:
            return self._is_gone(scope, table, key)
        return scope == scopes_module.API or state.get("cell") == scope

    def _is_gone(self, scope: str, table: tables.Table, key: str) -> bool:
        """Tell whether a record nobody can read has no row, in whichever cell it was."""
        if scope == scopes_module.API or key != tables.uuid_of(key):
            return scope == scopes_module.API or key.endswith(f"@{scope}")
        if not self._scopes.has_api_database():
            return False
        return not any(
            table.read(self._scopes.context_for(cell), cell, [key])
            for cell in self._scopes.all_cells()
        )

    def publish(
        self, scope: str, namespace: str, keys: list[str], heard_before: str | None = None
    ) -> int:
        """Bring some rows' records up to date; return how many records that changed.

        :param heard_before: see :func:`.publishing.swept_liveness`
        :raises SweepIncomplete: some could not be read or published this time
        :raises BackendUnavailable: nothing of it is known
        """
        batch = [dirty_module.Dirty(records.RecordKey(namespace, key), scope, 0.0) for key in keys]
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

    def read(self, namespace: str) -> Iterator[tuple[records.Record, Mapping[str, Any] | None]]:
        """Read a namespace's records with their states, None where nobody can read it."""
        for page in self._synchronizer.snapshot([namespace]).pages:
            for record in page:
                try:
                    yield record, codec.decode(record.payload).state
                except errors.UndecodableRecord:
                    # It will be written anew if a row of that name exists.
                    LOG.warning("Record %(key)s cannot be read.", {"key": record.key})
                    yield record, None


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
