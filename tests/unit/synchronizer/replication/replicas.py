# SPDX-License-Identifier: Apache-2.0
"""A hub, a clock that stands still, and replicators that follow the hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces as scheduling_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.replication import replicator, replicator_contract
from nova_nodb_scheduler.wire import codec

V1 = namespaces.SchemaVersion(1, 0)

POOLS = namespaces.Namespace(
    name="pools",
    owner="test",
    schema=V1,
    columns=(namespaces.Column("free", namespaces.Kind.INT, ("free",)),),
)
DECLARED = (POOLS, scheduling_namespaces.SCHEDULERS)


class Clock:
    """Monotonic seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_seconds(self, seconds: float) -> None:
        self.now += seconds


@attrs.define
class Replica:
    """One replicator with what belongs to it."""

    driver: memory.MemorySynchronizer
    store: host_state_store.HostStateStore
    replicator: replicator.Replicator

    def catch_up(self, steps: int = 1000) -> replicator_contract.StepOutcome:
        """Step until nothing is waiting; return the last outcome."""
        for _ in range(steps):
            outcome = self.replicator.step()
            if (
                not outcome.work_is_waiting
                and outcome is not replicator_contract.StepOutcome.CHANGES
            ):
                return outcome
        raise AssertionError(f"still busy after {steps} steps")

    def pools(self) -> dict[str, int]:
        """What the store holds, as key -> free."""
        view = self.store.snapshot().namespace(POOLS.name)
        return {key: stored.state["free"] for key in view.row_keys() if (stored := view.get(key))}

    @property
    def status(self) -> replicator_contract.ReplicatorStatus:
        return self.replicator.status()


class World:
    """A hub with a writer of its own."""

    def __init__(self, history_entries: int = 100_000) -> None:
        self.clock = Clock()
        self.hub = memory.MemoryHub(history_entries=history_entries, clock=self.clock)
        self.writer = memory.MemorySynchronizer(shared_hub=self.hub)
        self.writer.open()

    def replica(
        self,
        identity: str = "one",
        *,
        clock: Callable[[], float] | None = None,
        beat: Callable[[], Mapping[str, Any]] = dict,
        driver: memory.MemorySynchronizer | None = None,
        **options: Any,
    ) -> Replica:
        driver = driver or memory.MemorySynchronizer(shared_hub=self.hub)
        store = host_state_store.HostStateStore(DECLARED, codec.decode_state)
        return Replica(
            driver,
            store,
            replicator.Replicator(
                driver,
                store,
                DECLARED,
                identity=identity,
                options=replicator_contract.ReplicatorOptions(**options),
                clock=clock or self.clock,
                heartbeat=beat,
            ),
        )

    def put(self, key: str, free: int) -> records.Record:
        return self.put_bytes(key, codec.encode({"free": free}, V1))

    def put_bytes(self, key: str, payload: bytes, namespace: str = POOLS.name) -> records.Record:
        """Write whatever stands there now."""
        return self._write(records.RecordKey(namespace, key), payload, deleted=False)

    def delete(self, key: str) -> records.Record:
        return self._write(records.RecordKey(POOLS.name, key), b"", deleted=True)

    def _write(self, key: records.RecordKey, payload: bytes, *, deleted: bool) -> records.Record:
        standing = self.writer.read([key]).get(key)
        expected = 0 if standing is None or standing.deleted else standing.revision
        [result] = self.writer.write([records.Write(key, expected, payload, deleted)])
        assert result.record is not None, result
        return result.record
