# SPDX-License-Identifier: Apache-2.0
"""Measures how long a scheduler takes to have all host states, with a checkpoint and without.

No Nova and no servers: the records that reporters write of a made cloud stand in an SQLite
file, or in a database that somebody names, and each start is a process of its own. The first
one reads everything and writes a checkpoint, the second one begins with that. Then the columns by
which hosts are chosen are made, which is the same work in both. Other parts of a scheduler's
start (imports, the proof of each cell, the mirror) are in neither.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import multiprocessing
import os
import pathlib
import resource
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.facts import fact_source, frame_keeper
from nova_nodb_scheduler.scheduling.frame import host_frame
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces, node_facts
from nova_nodb_scheduler.store import collector, declarations, host_state_store
from nova_nodb_scheduler.synchronizer.checkpoint import (
    checkpoint_contract,
    checkpoint_writer,
    local_checkpoint,
)
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import schema
from nova_nodb_scheduler.synchronizer.replication import replicator
from nova_nodb_scheduler.wire import codec, payload_packing
from tools.bench.clouds import cluster as cluster_module
from tools.bench.clouds import core_hosts, crowded
from tools.bench.processes import serving

_DATABASE = "nodb.sqlite"
_WRITES_AT_ONCE = 500
_ROWS_AT_ONCE = 10_000
#: Starts of each kind; the quickest is told, for others use the machine.
_TRIALS = 2


def measure(
    hosts: int,
    state: pathlib.Path,
    servers_per_host: int | None = None,
    database: str | None = None,
) -> dict[str, Any]:
    """Measure one size.

    :param state: where the records are kept between runs
    :param servers_per_host: of each; None: about four, as elsewhere
    :param database: URL of one that is empty, or that a former run of this size filled, for
        the records; None for a file below ``state``
    """
    kept = f"starts-{hosts}" if servers_per_host is None else f"starts-{hosts}-{servers_per_host}"
    if database is not None:
        named = sa.make_url(database)
        kept += f"-{named.get_backend_name()}-{named.host}-{named.port}-{named.database}"
    directory = state / kept
    directory.mkdir(parents=True, exist_ok=True)
    url = database or f"sqlite:///{directory / _DATABASE}"
    _apart(_fill, hosts, servers_per_host, url, directory)
    checkpoint = directory / "checkpoint"
    found: dict[str, Any] = {"hosts": hosts, "load": os.getloadavg()[0]}
    for name in ("without", "with"):
        trials = []
        for _ in range(_TRIALS):
            if name == "without":
                shutil.rmtree(checkpoint, ignore_errors=True)
            trials.append(_apart(_start, url, checkpoint))
        found[name] = min(trials, key=lambda each: each["states_seconds"])
    if found["without"]["records"] < hosts:
        raise RuntimeError(f"the database holds other records; remove {directory}, or name another")
    expected = {"without": checkpoint_contract.CheckpointRefusalReason.ABSENT.value}
    expected["with"] = checkpoint_contract.RESTORED
    for name, began in expected.items():
        if found[name]["began"] != began:
            raise RuntimeError(f"a start {name} a checkpoint began otherwise: {found[name]}")
    for part in ("states_seconds", "states_cpu_seconds"):
        found[f"{part}_ratio"] = found["without"][part] / found["with"][part]
    return found


def _apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """Do it in a process whose memory is of nothing else."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(work, *arguments).result()


def _open(url: str) -> sqlalchemy.SQLAlchemySynchronizer:
    options = sqlalchemy.SQLOptions(url, timeout_seconds=60.0, auto_upgrade=True)
    synchronizer = sqlalchemy.SQLAlchemySynchronizer(options)
    synchronizer.open()
    return synchronizer


def _fill(hosts: int, servers_per_host: int | None, url: str, directory: pathlib.Path) -> None:
    """Write the records, unless a former run did."""
    whole = directory / "whole"
    if whole.exists():
        return
    from tools.bench.clouds import feed_records

    synchronizer = _open(url)
    made = cluster_module.Cluster(hosts)
    if servers_per_host is not None:
        made = crowded.CrowdedCluster(hosts, servers_per_host=servers_per_host)
    writes = feed_records.writes(made)
    # The first ones as anybody's: they make the epoch.
    synchronizer.write(list(itertools.islice(writes, _WRITES_AT_ONCE)))
    synchronizer.close()
    _pour(url, writes)
    whole.touch()


def _pour(url: str, writes: Iterator[records.Write]) -> None:
    """Write new records as the driver leaves them, without what it does for those beside it.

    By the driver, millions of records take longer than all that is measured.
    """
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            # Keys come in no order: with the few MB of default each row would read and write
            # a page.
            connection.exec_driver_sql("PRAGMA cache_size = -4194304")
        version: int = connection.execute(sa.select(schema.sequence.c.version)).scalar_one()
        while batch := list(itertools.islice(writes, _ROWS_AT_ONCE)):
            connection.execute(
                sa.insert(schema.record),
                [
                    {
                        "namespace": write.key.namespace,
                        "record_key": write.key.key,
                        "version": version + number,
                        "payload": write.payload,
                    }
                    for number, write in enumerate(batch, 1)
                ],
            )
            version += len(batch)
        connection.execute(sa.update(schema.sequence).values(version=version))
    engine.dispose()


class _Clock:
    """Wall and CPU seconds since it was made, or asked."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def lap(self, name: str) -> dict[str, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        told = {f"{name}_seconds": wall - self._wall, f"{name}_cpu_seconds": cpu - self._cpu}
        self._wall, self._cpu = wall, cpu
        return told


def _start(url: str, checkpoint_directory: pathlib.Path) -> dict[str, Any]:
    synchronizer = _open(url)
    declared = declarations.followed(known_namespaces.BUILT_IN)
    store = host_state_store.HostStateStore(
        declared, codec.decode_state, packing=payload_packing.DictionaryPacking
    )
    checkpoint = local_checkpoint.LocalCheckpoint(
        checkpoint_contract.CheckpointOptions(
            directory=str(checkpoint_directory), busy_ratio=1.0, max_bytes=1 << 33
        ),
        synchronizer.name,
        declared,
        wall_seconds=time.time,
    )
    follower = replicator.Replicator(
        synchronizer, store, known_namespaces.BUILT_IN, identity="bench", checkpoint=checkpoint
    )
    clock = _Clock()
    while not follower.alive(60.0):
        follower.step()
    found: dict[str, Any] = clock.lap("states")
    found["records"] = sum(len(store.snapshot().namespace(each.name)) for each in declared)
    present = fact_source.Present()
    engine = core_hosts.make_engine(
        host_frame.HostFrame(locate=present.locate, attribute=present.attribute)
    )
    keeper = frame_keeper.FrameKeeper(store, engine, present, ratios=node_facts.DefaultRatios())
    clock.lap("")
    keeper.catch_up(time.time())
    collector.settle()
    found |= clock.lap("columns")
    found["memory_mb"] = serving.resident_mb()
    found["memory_mb_peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found["began"] = checkpoint.status.start
    writer = checkpoint_writer.CheckpointWriter(checkpoint, follower.feed_moment)
    clock.lap("")
    outcome = writer.attempt(threading.Event())
    found |= clock.lap("checkpoint")
    found["checkpoint_outcome"] = outcome.value
    found["checkpoint_mb"] = checkpoint.status.size_bytes / 2**20
    follower.stop()
    synchronizer.close()
    return found
