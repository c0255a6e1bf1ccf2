# SPDX-License-Identifier: Apache-2.0
"""Measure the feed at made sizes: import, time to ready, memory, save to applied.

    python -m tools.figures [--hosts 1000,10000] [--seconds 30] [--json FILE]

For each size a fresh MariaDB holds a cell of Nova with that many compute nodes
and services and four instances each, and the synchronizer's database. The real
sweeper imports them, two processes follow as schedulers do, and the real
reporter publishes saves of ComputeNode objects. Needs Nova and mariadb-server.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pathlib
import resource
import statistics
import sys
import threading
import time
import uuid
from typing import Any

CELL = "11111111-2222-4333-8444-555555555555"
NUMA_CELLS = 2
INSTANCES_PER_HOST = 4


def configure(nova_url: str, store_url: str) -> Any:
    """Point Nova's configuration and the plugin's at the two databases."""
    from nova import config, objects
    from nova.db.main import api as main_db

    from nova_nodb_scheduler.conf import nodb
    from nova_nodb_scheduler.synchronizer import loader

    config.parse_args(["figures"], default_config_files=[], configure_db=False, init_rpc=False)
    conf = config.CONF
    nodb.register_opts(conf)
    loader.load_class("sqlalchemy").register_opts(conf)
    conf.set_override("connection", nova_url, group="database")
    conf.set_override("connection", store_url, group="nodb_sqlalchemy")
    conf.set_override("cell_uuid", CELL, group=nodb.GROUP)
    conf.set_override("sweep_pause_seconds", 0.0, group=nodb.GROUP)
    conf.set_override("host", "figures")
    objects.register_all()
    main_db.configure(conf)
    return conf


def fill(url: str, hosts: int) -> None:
    """Make a cell's database with hosts, services and instances."""
    import sqlalchemy as sa
    from nova.db import migration
    from nova.db.main import models

    migration.db_sync(database="main")
    engine = sa.create_engine(url)
    numa = json.dumps(_numa_topology())
    now = sa.func.utc_timestamp()
    with engine.begin() as connection:
        for first in range(0, hosts, 500):
            numbers = range(first, min(first + 500, hosts))
            connection.execute(
                sa.insert(models.ComputeNode.__table__),
                [_compute_row(number, numa) for number in numbers],
            )
            connection.execute(
                sa.insert(models.Service.__table__),
                [_service_row(number) for number in numbers],
            )
            connection.execute(
                sa.insert(models.Instance.__table__),
                [_instance_row(n, i) for n in numbers for i in range(INSTANCES_PER_HOST)],
            )
        connection.execute(
            sa.update(models.Service.__table__).values(last_seen_up=now, created_at=now)
        )
    engine.dispose()


def _numa_topology() -> dict[str, Any]:
    from nova import objects

    cells = [
        objects.NUMACell(
            id=number,
            cpuset=set(range(number * 32, number * 32 + 32)),
            pcpuset=set(),
            memory=131072,
            cpu_usage=8,
            memory_usage=8192,
            siblings=[{number * 32 + i, number * 32 + i + 16} for i in range(16)],
            pinned_cpus=set(),
            mempages=[
                objects.NUMAPagesTopology(size_kb=size, total=total, used=0, reserved=0)
                for size, total in ((4, 33554432), (2048, 0), (1048576, 0))
            ],
            network_metadata=objects.NetworkMetadata(physnets=set(), tunneled=False),
            socket=number,
        )
        for number in range(NUMA_CELLS)
    ]
    made: dict[str, Any] = objects.NUMATopology(cells=cells).obj_to_primitive()
    return made


def _name(number: int) -> str:
    return f"host{number:06d}"


def _node_uuid(number: int) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, _name(number)))


def _compute_row(number: int, numa: str) -> dict[str, Any]:
    return {
        "uuid": _node_uuid(number),
        "host": _name(number),
        "hypervisor_hostname": _name(number),
        "vcpus": 64,
        "memory_mb": 262144,
        "local_gb": 2000,
        "vcpus_used": 16,
        "memory_mb_used": 65536,
        "local_gb_used": 200,
        "free_ram_mb": 196608,
        "free_disk_gb": 1800,
        "current_workload": 0,
        "running_vms": INSTANCES_PER_HOST,
        "hypervisor_type": "QEMU",
        "hypervisor_version": 8002002,
        "cpu_info": json.dumps(
            {
                "vendor": "Intel",
                "model": "Cascadelake-Server-noTSX",
                "arch": "x86_64",
                "features": [f"feature-{i}" for i in range(60)],
                "topology": {"cells": 2, "sockets": 1, "cores": 16, "threads": 2},
            }
        ),
        "disk_available_least": 1700,
        "host_ip": "127.0.0.1",
        "supported_instances": json.dumps([["x86_64", "kvm", "hvm"], ["i686", "kvm", "hvm"]]),
        "metrics": "[]",
        "stats": json.dumps({"num_instances": "4", "io_workload": "0", "failed_builds": "0"}),
        "numa_topology": numa,
        "cpu_allocation_ratio": 4.0,
        "ram_allocation_ratio": 1.0,
        "disk_allocation_ratio": 1.0,
        "mapped": 1,
        "deleted": 0,
    }


def _service_row(number: int) -> dict[str, Any]:
    return {
        "uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, _name(number))),
        "host": _name(number),
        "binary": "nova-compute",
        "topic": "compute",
        "report_count": 1,
        "disabled": False,
        "version": 70,
        "deleted": 0,
    }


def _instance_row(host: int, number: int) -> dict[str, Any]:
    return {
        "uuid": str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{host}-{number}")),
        "host": _name(host),
        "node": _name(host),
        "vm_state": "active",
        "project_id": f"project-{host % 50}",
        "user_id": "user",
        "memory_mb": 16384,
        "vcpus": 4,
        "root_gb": 50,
        "ephemeral_gb": 0,
        "deleted": 0,
        "hidden": False,
    }


def follow(nova_url: str, store_url: str, pipe: Any) -> None:
    """Follow as a scheduler worker does; tell when it is ready and what was applied when."""
    began = time.monotonic()
    conf = configure(nova_url, store_url)
    from nova_nodb_scheduler.nova_adapter import assembly

    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    plugin = assembly.Plugin(conf)
    runtime = plugin.scheduler(lambda: [CELL])
    applied: list[tuple[str, int, float]] = []

    def note(changes: Any) -> None:
        now = time.monotonic()
        applied.extend(
            (change.record.key.key, change.state["row"]["running_vms"], now)
            for change in changes
            if change.record.key.namespace == "compute_nodes" and change.state is not None
        )

    runtime.replicator.subscribe(note, applied.clear)
    assembled = time.monotonic()
    runtime.start()
    while not runtime.replicator.alive(60):
        time.sleep(0.01)
    ready = time.monotonic()
    page = os.sysconf("SC_PAGE_SIZE")
    rss_mb = int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * page / 1e6
    applied.clear()
    pipe.send(
        {
            "ready_seconds": ready - assembled,
            "import_seconds": assembled - began,
            "rss_mb": rss_mb,
            "before_mb": before_kb / 1e3,
            "records": runtime.counts(),
        }
    )
    pipe.recv()
    pipe.send(applied)
    runtime.stop()


def saves(conf: Any, hosts: int, seconds: float, per_second: float) -> dict[tuple[str, int], float]:
    """Save compute nodes through the plugin's objects; return when each call returned."""
    from nova import context, objects

    from nova_nodb_scheduler.nova_adapter import assembly
    from nova_nodb_scheduler.nova_adapter.reporting import change_reporter
    from nova_nodb_scheduler.nova_adapter.reporting import nova_objects as nodb_objects

    nodb_objects.register()
    plugin = assembly.Plugin(conf)
    reporter = plugin.reporter("conductor", lambda: CELL, lambda: (CELL,))
    change_reporter.install(reporter, plugin.scopes)
    reporter.ensure_started()
    admin = context.get_admin_context()
    nodes = [
        objects.ComputeNode.get_by_uuid(admin, _node_uuid(number * max(1, hosts // 50)))
        for number in range(50)
    ]
    saved: dict[tuple[str, int], float] = {}
    begin = time.monotonic()
    count = 0
    while time.monotonic() - begin < seconds:
        node = nodes[count % len(nodes)]
        node.running_vms = 100 + count
        node.save()
        saved[node.uuid, node.running_vms] = time.monotonic()
        count += 1
        time.sleep(max(0.0, begin + count / per_second - time.monotonic()))
    time.sleep(2)
    change_reporter.install(None, None)
    reporter.stop()
    return saved


def quantile(values: list[float], fraction: float) -> float:
    """Return a quantile of values, 0 where there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))] if ordered else 0.0


def measure(hosts: int, seconds: float, per_second: float) -> dict[str, Any]:
    """Measure one size on a fresh server."""
    from nova_nodb_scheduler.nova_adapter import assembly
    from nova_nodb_scheduler.testing import servers

    with servers.MariaDB() as nova_database, servers.MariaDB() as store_database:
        nova_url = nova_database.url
        store_url = store_database.url
        conf = configure(nova_url, store_url)
        fill(nova_url, hosts)
        plugin = assembly.Plugin(conf)
        _sync(conf)
        synchronizer = plugin.make_synchronizer()
        synchronizer.open()
        swept = plugin.sweeper(synchronizer).sweep(CELL, threading.Event(), by="figures")
        statistics_before = dict(synchronizer.statistics())
        methods = multiprocessing.get_context("spawn")
        pipes, processes = [], []
        for _ in range(2):
            ours, theirs = methods.Pipe()
            process = methods.Process(target=follow, args=(nova_url, store_url, theirs))
            process.start()
            pipes.append(ours)
            processes.append(process)
        followers = [pipe.recv() for pipe in pipes]
        saved = saves(conf, hosts, seconds, per_second)
        slowest: dict[tuple[str, int], float] = {}
        for pipe in pipes:
            pipe.send("done")
            for key, value, at in pipe.recv():
                slowest[key, value] = max(at, slowest.get((key, value), 0.0))
        for process in processes:
            process.join()
        synchronizer.close()
    lags = [slowest[key] - at for key, at in saved.items() if key in slowest]
    return {
        "hosts": hosts,
        "import_seconds": round(swept.seconds, 1),
        "import_rows": swept.rows,
        "ready_seconds": [round(each["ready_seconds"], 2) for each in followers],
        "rss_mb": [round(each["rss_mb"]) for each in followers],
        "rss_before_mb": [round(each["before_mb"]) for each in followers],
        "records": followers[0]["records"],
        "saves": len(saved),
        # A row saved again before it was published shows once, at its latest.
        "seen": len(lags),
        "lag_p50_ms": round(quantile(lags, 0.5) * 1000),
        "lag_p99_ms": round(quantile(lags, 0.99) * 1000),
        "lag_mean_ms": round(statistics.fmean(lags) * 1000) if lags else None,
        "backend": {k: v for k, v in statistics_before.items() if isinstance(v, int | float)},
    }


def _sync(conf: Any) -> None:
    from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import engines, migration, options

    engine = engines.create_for_migration(options.read(conf))
    migration.sync(engine)
    engine.dispose()


def main() -> int:
    """Measure each size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", default="1000,10000", help="sizes, comma separated")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long saves are made")
    parser.add_argument("--per-second", type=float, default=10.0, help="saves a second")
    parser.add_argument("--json", type=pathlib.Path, help="file for the figures")
    options = parser.parse_args()
    methods = multiprocessing.get_context("spawn")
    figures = []
    for size in (int(text) for text in options.hosts.split(",")):
        # No daemon: it has children of its own. A server and a configuration each.
        with methods.Pool(1, initializer=_as_parent) as pool:
            figures.append(pool.apply(measure, (size, options.seconds, options.per_second)))
        print(json.dumps(figures[-1], indent=1), flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def _as_parent() -> None:
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())
