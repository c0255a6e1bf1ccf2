# SPDX-License-Identifier: Apache-2.0
"""Finds allocations in the mirror whose servers are not, or no longer, there.

``DELETE /allocations``, by which nova-compute frees a deleted server's
resources, moves no generation. Whoever missed the deletion in the feed (a
keeper that has just taken over) finds such hosts here, by comparing the
consumers of their records with the servers and migrations that are known.
What is found is a reason to look: leaked allocations, which Placement really
holds, are looked at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nova_nodb_scheduler.nova_adapter import tables
from nova_nodb_scheduler.nova_adapter.placement import feed_hints
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.store import snapshot as snapshot_module


class Strays:
    """Walks the records slice by slice, again and again; one thread.

    :param settle_seconds: a record changed later than that is left for the
        next round: its server's row may not have come yet
    """

    def __init__(self, settle_seconds: float = 30.0) -> None:
        self._settle_seconds = settle_seconds
        self._row = 0
        self._looked: dict[str, frozenset[str]] = {}

    def walk(
        self, snapshot: snapshot_module.Snapshot, rows: int, now_seconds: float
    ) -> set[feed_hints.Hint]:
        """Return hints for the next rows; no I/O.

        :param now_seconds: the back end's time
        """
        keys = snapshot.namespace(namespaces.PROVIDERS.name).row_keys()
        if self._row >= len(keys):
            self._row = 0
        part = keys[self._row : self._row + rows]
        self._row += rows
        hints: set[feed_hints.Hint] = set()
        for root in part:
            found = self._strays(snapshot, root, now_seconds - self._settle_seconds)
            if found and self._looked.get(root) != found:
                self._looked[root] = found
                hints.update(
                    feed_hints.Hint(root, feed_hints.Expect.UNKNOWN, consumer)
                    for consumer in sorted(found)[:1]
                )
            elif not found:
                self._looked.pop(root, None)
        return hints

    def _strays(
        self, snapshot: snapshot_module.Snapshot, root: str, settled: float
    ) -> frozenset[str]:
        state = _state(snapshot, namespaces.PROVIDERS.name, root)
        node = _state(snapshot, namespaces.COMPUTE_NODES.name, root)
        if state is None or node is None or not state["allocations"]:
            return frozenset()
        if max(state.get("read_at", 0.0), state.get("written_at", 0.0)) > settled:
            return frozenset()
        cell, host = str(node["cell"]), str(node["row"]["host"])
        there = snapshot.namespace(namespaces.INSTANCES.name).lookup("cell_host", cell, host)
        known = {tables.uuid_of(key) for key in there}
        migrations = snapshot.namespace(namespaces.MIGRATIONS.name)
        return frozenset(
            consumer
            for consumer in state["allocations"]
            if consumer not in known
            and tables.cell_key(consumer, cell) not in migrations
            and not migrations.lookup("instance", consumer)
        )


def _state(
    snapshot: snapshot_module.Snapshot, namespace: str, key: str
) -> Mapping[str, Any] | None:
    found = snapshot.namespace(namespace).get(key)
    return None if found is None else found.state
