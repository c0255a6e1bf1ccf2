# SPDX-License-Identifier: Apache-2.0
"""The reporters of a process that is conductor of every cell and API at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler.nova_adapter import assembly
from nova_nodb_scheduler.nova_adapter.reporting import change_reporter, nova_tables, scopes
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.wire import codec


@attrs.frozen
class Difference:
    """A record that is not what its row says."""

    namespace: str
    key: str
    what: str


class Reporters:
    """One reporter for each cell, as its conductor has, and one for the API.

    Has the interface that Nova's objects report to, and hands each mark to the
    reporter of its cell.

    :param synchronizer: opened; for looking at the back end
    """

    def __init__(self, plugin: assembly.Plugin, synchronizer: contract.Synchronizer) -> None:
        self._plugin = plugin
        self.synchronizer = self._synchronizer = synchronizer
        self._by_scope = {cell: _conductor(plugin, cell) for cell in plugin.scopes.all_cells()}
        self._by_scope[scopes.API] = plugin.reporter("api", lambda: change_reporter.EVERY_CELL)

    def start(self) -> None:
        """Begin to report, then import every cell: an operator's order."""
        for each in self._by_scope.values():
            each.ensure_started()
            # Opens the back end; what is written from now on is reported.
            each.flush()
        sweeper = self._plugin.sweeper(self._synchronizer)
        for scope in self._by_scope:
            sweeper.sweep(scope, threading.Event(), by="nova-suite")

    def stop(self) -> None:
        """Publish what is left and end the threads."""
        for each in self._by_scope.values():
            each.stop()

    def drain(self) -> int:
        """Publish everything that was marked before; return the version that holds it."""
        for each in self._by_scope.values():
            each.flush()
        return self._synchronizer.head().version

    def differences(self) -> list[Difference]:
        """Return what the back end holds otherwise than Nova's tables.

        A service's thread may write between the two readings: only what
        differs twice, and was published between, is told.
        """
        self.drain()
        first = set(self._compare())
        if not first:
            return []
        self.drain()
        return sorted(first & set(self._compare()), key=str)

    def _compare(self) -> Iterator[Difference]:
        for scope in self._by_scope:
            for table in nova_tables.tables_of(scope):
                yield from self._compare_table(scope, table)

    def _compare_table(self, scope: str, table: nova_tables.NovaTable) -> Iterator[Difference]:
        context = self._plugin.scopes.context_for(scope)
        _last, keys = table.page(context, scope, 0, 10_000)
        rows = table.read(context, scope, keys)
        held = dict(self._held(table.namespace, scope))
        for key in sorted(rows.keys() | held.keys()):
            row, state = rows.get(key), held.get(key)
            if state is None:
                yield Difference(table.namespace, key, "not published")
            elif row is None:
                yield Difference(table.namespace, key, "deleted, still published")
            elif table.namespace == known_namespaces.SERVICE_LIVENESS.name:
                written = int(state["report_count"])
                if int(row["report_count"]) != written != state.get("unwritten"):
                    yield Difference(table.namespace, key, "heartbeats")
            elif fields := _differing(row, state):
                yield Difference(table.namespace, key, f"stale: {', '.join(fields)}")

    def _held(self, namespace: str, scope: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for page in self._synchronizer.snapshot([namespace]).pages:
            for record in page:
                state = codec.decode_state(record.payload)
                if scope == scopes.API or state.get("cell") == scope:
                    yield record.key.key, state

    # What Nova's objects call.

    def mark(self, scope: str, namespace: str, keys: Collection[str]) -> None:
        """Hand rows of a scope to its reporter."""
        self._by_scope[scope].mark(scope, namespace, keys)

    def wait_published(self, namespace: str, keys: Collection[str]) -> bool:
        """Wait for rows of one cell, as its reporter does."""
        (cell,) = {key.partition("@")[2] for key in keys}
        return self._by_scope[cell].wait_published(namespace, keys)

    def heartbeat(
        self,
        scope: str,
        service: str,
        report_count: int,
        last_seen_up: str | None,
        *,
        silent_seconds: float = 0.0,
    ) -> None:
        """Hand a heartbeat to its cell's reporter."""
        self._by_scope[scope].heartbeat(
            scope, service, report_count, last_seen_up, silent_seconds=silent_seconds
        )


def _conductor(plugin: assembly.Plugin, cell: str) -> change_reporter.ChangeReporter:
    return plugin.reporter("conductor", lambda: cell, lambda: (cell,))


def _differing(row: Mapping[str, Any], state: Mapping[str, Any]) -> list[str]:
    """Name the fields of a table's row, and of the state around it, that differ."""
    truth = json.loads(json.dumps(row))
    found = [name for name in ("cell", "object_version") if truth[name] != state.get(name)]
    columns = truth["row"].keys() | state["row"].keys()
    return found + sorted(
        name for name in columns if truth["row"].get(name) != state["row"].get(name)
    )
