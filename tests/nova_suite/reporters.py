# SPDX-License-Identifier: Apache-2.0
"""The reporters of a process that is conductor of every cell and API at once."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any

import attrs
from nova import version as nova_version

from nova_nodb_scheduler.nova_adapter import publishing, reporter, scopes, sweeper
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.synchronizer import contract, publisher

#: Shorter than the defaults, for tests do not wait for an operator's economy.
OPTIONS = reporter.ReporterOptions(
    flush_interval_seconds=0.02,
    heartbeat_flush_interval_seconds=0.2,
    beat_interval_seconds=2.0,
    exit_flush_seconds=10.0,
    max_dirty_records=100_000,
)


@attrs.frozen
class Drained:
    """What the back end held when everything marked before was in it."""

    epoch: str
    version: int


class Reporters:
    """One reporter for each cell, as its conductor has, and one for the API.

    Has the interface that Nova's objects report to, and hands each mark to the
    reporter of its cell.

    :param cell_scopes: every cell of the test
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        process_scopes: scopes.Scopes,
        cell_scopes: Collection[str],
    ) -> None:
        self._synchronizer = synchronizer
        declared = sweeper.namespaces_by_name()
        rows = publishing.RowPublisher(
            publisher.Publisher(synchronizer, declared, namespaces.NOVA), process_scopes
        )
        beats = publisher.Publisher(synchronizer, declared, namespaces.NODB)
        self._sweeper = sweeper.Sweeper(
            synchronizer, rows, beats, process_scopes, page_rows=500, pause_seconds=0.0
        )
        self._by_scope = {
            scope: reporter.Reporter(synchronizer, rows, beats, _identity(scope), OPTIONS)
            for scope in (*cell_scopes, scopes.API)
        }

    def start(self) -> None:
        """Import every cell, as an operator would, and begin to report."""
        for scope, each in self._by_scope.items():
            self._sweeper.sweep(scope, threading.Event(), by="nova-suite")
            each.ensure_started()

    def stop(self) -> None:
        """Publish what is left and end the threads."""
        for each in self._by_scope.values():
            each.stop()

    def drain(self) -> Drained:
        """Publish everything that was marked before this call."""
        for each in self._by_scope.values():
            each.flush()
        head = self._synchronizer.head()
        return Drained(head.epoch, head.version)

    def missed(self) -> dict[str, int]:
        """Count, per namespace, the records that differ from Nova's tables now.

        Everything is published first: what is left was never marked.
        """
        self.drain()
        missed: dict[str, int] = {}
        for scope in self._by_scope:
            swept = self._sweeper.sweep(scope, threading.Event(), by="nova-suite")
            for namespace, count in swept.repaired.items():
                if count:
                    missed[namespace] = missed.get(namespace, 0) + count
        return missed

    # What Nova's objects call.

    def mark(self, scope: str, namespace: str, keys: Collection[str]) -> None:
        """Hand rows of a scope to its reporter."""
        self._by_scope[scope].mark(scope, namespace, keys)

    def heartbeat(
        self, scope: str, service: str, report_count: int, last_seen_up: str | None
    ) -> None:
        """Hand a heartbeat to its cell's reporter."""
        self._by_scope[scope].heartbeat(scope, service, report_count, last_seen_up)


def _identity(scope: str) -> Any:
    is_api = scope == scopes.API
    return lambda: reporter.Identity(
        reporter_id=f"nova-suite-{scope}",
        role="api" if is_api else "conductor",
        host="nova-suite",
        pid=1,
        cell=reporter.EVERY_CELL if is_api else scope,
        guards=() if is_api else (scope,),
        plugin_version="test",
        nova_version=nova_version.version_string(),
    )
