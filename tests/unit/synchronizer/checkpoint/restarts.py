# SPDX-License-Identifier: Apache-2.0
"""Schedulers' replicas that begin with a checkpoint, over any back end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import attrs

from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.checkpoint import (
    checkpoint_contract,
    checkpoint_writer,
    local_checkpoint,
)
from nova_nodb_scheduler.synchronizer.replication import replicator, replicator_contract
from nova_nodb_scheduler.wire import codec, payload_packing

V1 = namespaces.SchemaVersion(1, 0)

#: Numbers and texts alone: its rows go as they are.
POOLS = namespaces.Namespace(
    name="pools",
    owner="test",
    schema=V1,
    columns=(
        namespaces.Column("free", namespaces.Kind.INT, ("free",)),
        namespaces.Column("zone", namespaces.Kind.CATEGORY, ("zone",), ""),
        namespaces.Column("on", namespaces.Kind.BOOL, ("on",), False),
    ),
    indexes=(namespaces.Index("zone", (("zone",),)),),
)
#: With a set of texts and an index that no column holds: its records are decoded again.
GROUPS = namespaces.Namespace(
    name="groups",
    owner="test",
    schema=V1,
    columns=(namespaces.Column("members", namespaces.Kind.BITS, ("members",), ()),),
    indexes=(namespaces.Index("name", (("name",),)),),
)
DECLARED = (
    POOLS,
    GROUPS,
    known_namespaces.SERVICE_LIVENESS,
    known_namespaces.CLAIM_RECORDS,
    known_namespaces.SCHEDULERS,
)

WALL_SECONDS = 1_800_000_000.0


class Meter(checkpoint_contract.CheckpointMeter):
    """Remembers what was counted."""

    def __init__(self) -> None:
        self.starts: list[str] = []
        self.writes: list[str] = []

    def checkpoint_start(self, outcome: str) -> None:
        self.starts.append(outcome)

    def checkpoint_write(self, outcome: str) -> None:
        self.writes.append(outcome)


@attrs.define(eq=False)
class Scheduler:
    """One process's replica, its hold on the checkpoint and its writer."""

    synchronizer: contract.Synchronizer
    store: host_state_store.HostStateStore
    checkpoint: local_checkpoint.LocalCheckpoint
    replicator: replicator.Replicator
    writer: checkpoint_writer.CheckpointWriter
    meter: Meter
    decoded: list[bytes]

    def catch_up(self, steps: int = 500) -> None:
        """Step until nothing is waiting."""
        for _ in range(steps):
            outcome = self.replicator.step()
            if outcome is replicator_contract.StepOutcome.IDLE:
                return
        raise AssertionError(f"still busy: {outcome}")

    def save(self) -> checkpoint_contract.WriteOutcome:
        """Write a checkpoint now."""
        return self.writer.attempt(threading.Event())

    def end(self) -> None:
        """End without a word, as a process that is killed."""
        self.checkpoint.close()
        self.synchronizer.close()

    def states(self, namespace: namespaces.Namespace = POOLS) -> dict[str, Any]:
        """What the store holds, by key."""
        return dict(self.store.snapshot().namespace(namespace.name).states())


def scheduler(
    synchronizer: contract.Synchronizer,
    directory: str,
    *,
    identity: str = "one",
    declared: tuple[namespaces.Namespace, ...] = DECLARED,
    clock: Callable[[], float] = lambda: 1000.0,
    on_step: Callable[[str], None] = lambda step: None,
    replication: replicator_contract.ReplicatorOptions | None = None,
    **options: Any,
) -> Scheduler:
    """Return a scheduler's replica that was not stepped yet."""
    decoded: list[bytes] = []

    def decode(payload: bytes) -> codec.Decoded:
        decoded.append(payload)
        return codec.decode(payload)

    meter = Meter()
    store = host_state_store.HostStateStore(
        declared, codec.decode_state, packing=payload_packing.DictionaryPacking
    )
    checkpoint = local_checkpoint.LocalCheckpoint(
        checkpoint_contract.CheckpointOptions(directory=directory, **options),
        synchronizer.name,
        declared,
        wall_seconds=lambda: WALL_SECONDS,
        meter=meter,
        on_step=on_step,
    )
    made = replicator.Replicator(
        synchronizer,
        store,
        declared,
        identity=identity,
        options=replication or replicator_contract.ReplicatorOptions(),
        clock=clock,
        decode=decode,
        checkpoint=checkpoint,
    )
    writer = checkpoint_writer.CheckpointWriter(checkpoint, made.feed_moment, clock)
    return Scheduler(synchronizer, store, checkpoint, made, writer, meter, decoded)


def put(
    synchronizer: contract.Synchronizer,
    namespace: namespaces.Namespace,
    key: str,
    state: dict[str, Any] | None,
) -> None:
    """Write a state whatever stands there, or a tombstone for None."""
    name = records.RecordKey(namespace.name, key)
    standing = synchronizer.read([name]).get(name)
    live = standing is not None and not standing.deleted
    if state is None and not live:
        return
    payload = b"" if state is None else codec.encode(state, namespace.schema)
    revision = standing.revision if standing is not None and live else 0
    [result] = synchronizer.write([records.Write(name, revision, payload, deleted=state is None)])
    assert result.won, result
