# SPDX-License-Identifier: Apache-2.0
"""What heartbeats and reports cost conductors, the back end and a scheduler.

Run with ``python -m tools.bench.heartbeats.conductor_load [--rate N] [--services N] [--reports N]
[--backend NAME]``, which tells heartbeats once as records and once in journals. Conductors'
processes run the plugin's own reporter as its assembly makes it, with its threads and by real
clocks; a scheduler process runs the feed, the judge and the journals' reader; the back end is a
server of its own. Heartbeats are given to the reporters at a steady rate, from below Nova's
objects: neither a bus nor the rows of services are in it, which cost the same both ways.

Reports are compute nodes whose free memory and disk moved, as after a claim. They are published
each ``flush_interval_seconds`` by the publisher that a reporter has, from states that are held in
memory: what a reporter reads of the cell's database before is not in it.

The lag of a heartbeat or a report is the time from when a conductor heard it until the scheduler
tells it, the wait for the flush included; it is looked at ten times a second, for some of the
services and nodes.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
import os
import pathlib
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import connection
from typing import Any

import numpy as np
import psutil

from nova_nodb_scheduler.testing import etcd_server, redis_server, server_processes
from tools.bench.clouds import cluster as cluster_module
from tools.bench.clouds import feed_records

_CELL = feed_records.CELL
_SAMPLE = 200
_LOOK_SECONDS = 0.1
_TICK_SECONDS = 0.02
_SEEDED_AT_ONCE = 2000
_ANSWER_SECONDS = 300.0
_CONTEXT = multiprocessing.get_context("spawn")


def _plugin(conf_file: str, role: str) -> Any:
    from nova import config, objects

    from nova_nodb_scheduler.conf import nodb
    from nova_nodb_scheduler.nova_adapter import assembly

    sys.argv = [f"nova-{role}"]
    config.parse_args(sys.argv, default_config_files=[conf_file], init_rpc=False)
    objects.register_all()
    nodb.register_opts(config.CONF)
    plugin = assembly.Plugin(config.CONF)
    plugin.check()
    assembly.install(plugin)
    return plugin


class _NodeReports:
    """Compute nodes that are saved at a steady rate, and published by a thread of its own."""

    def __init__(self, plugin: Any, keys: Sequence[str], rate: float) -> None:
        from nova_nodb_scheduler.scheduling.namespaces import known_namespaces

        self._synchronizer = plugin.make_synchronizer()
        self._publisher = plugin.publisher(self._synchronizer, known_namespaces.NOVA)
        self._interval = float(plugin.options.flush_interval_seconds)
        self._namespace = known_namespaces.COMPUTE_NODES.name
        self._saved = itertools.cycle(keys)
        self._rate = rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.published = self.refused = 0
        #: The most seconds by which flushes were late.
        self.behind = 0.0

    def start(self) -> None:
        self._synchronizer.open()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._synchronizer.close()

    def _run(self) -> None:
        from nova_nodb_scheduler.model import records

        began, given = time.monotonic(), 0
        while not self._stop.wait(self._interval):
            passed = time.monotonic() - began
            due = int(passed * self._rate)
            self.behind = max(self.behind, (due - given) / self._rate - self._interval)
            # The oldest of a flush was saved at its begin.
            at = time.time()
            heard = {
                records.RecordKey(self._namespace, next(self._saved)): at
                - (due - number) / self._rate
                for number in range(given, due)
            }
            given = due
            report = self._publisher.publish(
                {key: lambda state, at=at: _saved(state, at) for key, at in heard.items()}
            )
            self.published += report.published
            self.refused += len(report.failed) + len(report.rejected)


def _saved(state: Mapping[str, Any] | None, at: float) -> Mapping[str, Any]:
    """Return a compute node as after a claim, or its end; ``updated_at`` tells when, in seconds."""
    assert state is not None
    row = state["row"]
    more = -1 if row["vcpus_used"] % 2 else 1
    changed = {"vcpus_used": row["vcpus_used"] + more, "running_vms": row["running_vms"] + more}
    for name in ("memory_mb_used", "local_gb_used"):
        changed[name] = row[name] + more
    for name in ("free_ram_mb", "free_disk_gb", "disk_available_least"):
        changed[name] = row[name] - more
    return {**state, "row": {**row, **changed, "updated_at": repr(at)}}


def _conduct(
    pipe: connection.Connection,
    conf_file: str,
    keys: Sequence[str],
    rate: float,
    nodes: Sequence[str],
    reports: float,
) -> None:
    """Be a conductor that hears these services and nodes: begin when told, end when told."""
    plugin = _plugin(conf_file, "conductor")
    reporter = plugin.reporter("conductor", lambda: _CELL, lambda: (_CELL,))
    reporter.ensure_started()
    saves = _NodeReports(plugin, nodes, reports) if reports else None
    pipe.send("started")
    pipe.recv()
    if saves is not None:
        saves.start()
    began, given, count = time.monotonic(), 0, 1
    worst = 0.0
    while not pipe.poll(_TICK_SECONDS):
        due = int((time.monotonic() - began) * rate)
        worst = max(worst, (due - given) / rate)
        for number in range(given, due):
            at = number % len(keys)
            count = 2 + number // len(keys)
            reporter.heartbeat(_CELL, keys[at], count, _now())
        given = due
    pipe.recv()
    if saves is not None:
        saves.stop()
    figures = reporter.status().journal
    is_on = reporter.journal is not None and reporter.journal.is_on
    waiting = reporter._dirty.beats_waiting() + (0 if figures is None else figures.waiting)
    pipe.send(
        {
            "given": given,
            "waiting": waiting,
            "journals": is_on,
            "behind": worst,
            "reports": 0 if saves is None else saves.published,
            "refused": 0 if saves is None else saves.refused,
            "reports behind": 0.0 if saves is None else saves.behind,
        }
    )
    os._exit(0)


def _now() -> str:
    from oslo_utils import timeutils

    return str(timeutils.utcnow().isoformat())


def _schedule(
    pipe: connection.Connection, conf_file: str, keys: Sequence[str], nodes: Sequence[str]
) -> None:
    """Be a scheduler that notes when it hears of some services and nodes."""
    from nova_nodb_scheduler.scheduling.facts import fact_source
    from nova_nodb_scheduler.scheduling.namespaces import known_namespaces

    runtime = _plugin(conf_file, "scheduler").scheduler(lambda: [_CELL])
    runtime.start()
    pipe.send("started")
    sample = keys[:: max(1, len(keys) // _SAMPLE)]
    few_nodes = nodes[:: max(1, len(nodes) // _SAMPLE)]
    told: dict[str, float | None] = {}
    saved: dict[str, int] = {}
    lags: list[float] = []
    report_lags: list[float] = []
    looked_since = time.thread_time()
    resyncs: Mapping[str, int] = {}
    while True:
        if pipe.poll(_LOOK_SECONDS):
            if pipe.recv() == "begin":
                lags.clear()
                report_lags.clear()
                looked_since = time.thread_time()
                resyncs = runtime.replicator.status().resyncs
                continue
            break
        snapshot = runtime.store.snapshot()
        source = fact_source.ServiceSource(snapshot, runtime.journals.look(snapshot))
        now = time.time()
        for key in sample:
            seconds = source.last_seen_seconds(key)
            if seconds is not None and seconds != told.get(key):
                if key in told:
                    lags.append(now - seconds)
                told[key] = seconds
        states = snapshot.namespace(known_namespaces.COMPUTE_NODES.name)
        for key in few_nodes:
            version = states.version_of(key)
            if version is None or version == saved.get(key):
                continue
            state = states.state(key)
            if key in saved and state is not None:
                report_lags.append(now - float(state["row"]["updated_at"]))
            saved[key] = version
    looked = time.thread_time() - looked_since
    now_there = runtime.replicator.status().resyncs
    for reason, count in now_there.items():
        if count > resyncs.get(reason, 0):
            print(f"{count - resyncs.get(reason, 0)} resyncs: {reason}")
    anew = sum(now_there.values()) - sum(resyncs.values())
    pipe.send((lags, report_lags, looked, anew))
    os._exit(0)


def _seed(conf_file: str, keys: Sequence[str], hosts: int) -> None:
    """Write the records of services, as a sweep does, and of so many compute nodes."""
    from nova_nodb_scheduler.model import records
    from nova_nodb_scheduler.scheduling.namespaces import known_namespaces

    plugin = _plugin(conf_file, "manage")
    synchronizer = plugin.make_synchronizer()
    synchronizer.open()
    state = {
        "cell": _CELL,
        "report_count": 1,
        "base": 1,
        "seen": 0,
        "unreported": 0,
        "last_seen_up": _now(),
        "counted_at": time.time(),
    }
    publisher = plugin.publisher(synchronizer, known_namespaces.NOVA)
    states = itertools.chain(
        ((records.RecordKey(known_namespaces.SERVICE_LIVENESS.name, key), state) for key in keys),
        (
            (records.RecordKey(known_namespaces.COMPUTE_NODES.name, key), node)
            for key, node in feed_records.compute_nodes(cluster_module.Cluster(hosts))
        ),
    )
    while batch := dict(itertools.islice(states, _SEEDED_AT_ONCE)):
        publisher.publish({key: lambda _, state=state: state for key, state in batch.items()})
    synchronizer.close()


def _conf_file(directory: pathlib.Path, backend: str, lines: str, *, journals: bool) -> str:
    path = directory / f"{'journals' if journals else 'records'}.conf"
    path.write_text(
        f"[DEFAULT]\ntransport_url = fake://\nhost = bench\nstate_path = {directory}\n"
        f"scheduler_driver = nodb_scheduler\n{lines}\n"
        f"[nodb_scheduler]\nsynchronizer = {backend}\nclaims = off\ncandidates = placement\n"
        f"verify_allocations = never\ncell_uuid = {_CELL}\nheartbeat_journals = {journals}\n"
    )
    return str(path)


@contextlib.contextmanager
def _server(backend: str) -> Iterator[tuple[server_processes.ServerProcess, str]]:
    """Yield a running server of its own, empty, and the lines of nova.conf that name it."""
    server = _SERVERS[backend]()
    try:
        server.initialize()
        server.start()
        if isinstance(server, server_processes.MariaDBServer):
            yield server, f"[nodb_sqlalchemy]\nconnection = {_migrated(server)}"
        elif isinstance(server, etcd_server.EtcdServer):
            yield server, f"[nodb_etcd]\nendpoints = {server.url}"
        elif isinstance(server, redis_server.RedisServer):
            yield server, f"[nodb_redis]\nurl = redis://{server.address}/0"
        else:
            yield server, f"[nodb_memcached]\nservers = {server.address}"
    finally:
        server.destroy()


_SERVERS = {
    "sqlalchemy": server_processes.MariaDBServer,
    "etcd": lambda: etcd_server.EtcdServer(etcd_server.RETENTION),
    "redis": lambda: redis_server.RedisServer(("--maxmemory-policy", "noeviction")),
    "memcached": lambda: server_processes.MemcachedServer(("-m", "4096", "-M")),
}


def _migrated(server: server_processes.MariaDBServer) -> str:
    """Return the URL of a database with the driver's tables."""
    from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
    from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import engines, migration

    server.create_database("nodb")
    url = server.url("nodb")
    engine = engines.create_for_migration(driver.SQLOptions(url))
    migration.sync(engine)
    engine.dispose()
    return url


def _cpu_seconds(processes: Mapping[str, Sequence[int]]) -> dict[str, float]:
    return {
        name: sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)
        for name, pids in processes.items()
    }


class _Started:
    """A process and its pipe."""

    def __init__(self, target: Any, *arguments: Any) -> None:
        self.pipe, other = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=target, args=(other, *arguments), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.answer()

    def answer(self) -> Any:
        if not self.pipe.poll(_ANSWER_SECONDS):
            raise TimeoutError(f"process {self.pid} does not answer")
        return self.pipe.recv()

    def ask(self, what: str) -> Any:
        self.pipe.send(what)
        return self.answer()


def run(arguments: argparse.Namespace, *, journals: bool) -> dict[str, float]:
    """Have heartbeats and reports come for a while; return what they cost."""
    keys = [str(uuid.uuid4()) for _ in range(arguments.services)]
    hosts = arguments.services if arguments.reports else 0
    nodes = [key for key, _ in feed_records.compute_nodes(cluster_module.Cluster(hosts))]
    with _server(arguments.backend) as (server, lines), tempfile.TemporaryDirectory() as folder:
        conf_file = _conf_file(pathlib.Path(folder), arguments.backend, lines, journals=journals)
        seeding = _CONTEXT.Process(target=_seed, args=(conf_file, keys, hosts))
        seeding.start()
        seeding.join()
        if seeding.exitcode:
            raise RuntimeError("the records could not be written; see above")
        scheduler = _Started(_schedule, conf_file, keys, nodes)
        number = arguments.conductors
        rates = arguments.rate / number, arguments.reports / number
        conductors = [
            _Started(
                _conduct, conf_file, keys[each::number], rates[0], nodes[each::number], rates[1]
            )
            for each in range(number)
        ]
        for each in conductors:
            each.pipe.send("begin")
        time.sleep(arguments.warm_up)
        processes = {
            "conductors": [each.pid for each in conductors],
            "back end": [server.pid],
            "scheduler": [scheduler.pid],
        }
        scheduler.pipe.send("begin")
        began, before = time.monotonic(), _cpu_seconds(processes)
        time.sleep(arguments.seconds)
        seconds, after = time.monotonic() - began, _cpu_seconds(processes)
        lags, report_lags, looked, resyncs = scheduler.ask("end")
        ended = [each.ask("end") for each in conductors]
    whole = seconds + arguments.warm_up
    assert all(each["journals"] is journals for each in ended), ended
    found = {
        "heartbeats a second": sum(each["given"] for each in ended) / whole,
        "waiting at the end": float(sum(each["waiting"] for each in ended)),
        "reports a second": sum(each["reports"] for each in ended) / whole,
        "reports refused": float(sum(each["refused"] for each in ended)),
        "reports' flushes late, s": max(each["reports behind"] for each in ended),
        **{f"cores, {name}": (after[name] - before[name]) / seconds for name in processes},
        "cores, of it these looks": looked / seconds,
        "states read anew": float(resyncs),
    }
    for what, those in (("lag", lags), ("reports' lag", report_lags)):
        for rank in (50, 99):
            found[f"{what} p{rank}, s"] = (
                float(np.percentile(those, rank)) if those else float("nan")
            )
    return found


def main() -> None:
    """Print a line for each measure, both ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=10_000.0, help="heartbeats a second")
    parser.add_argument("--services", type=int, default=100_000, help="and compute nodes")
    parser.add_argument("--reports", type=float, default=0.0, help="compute nodes saved a second")
    parser.add_argument("--backend", choices=sorted(_SERVERS), default="sqlalchemy")
    parser.add_argument("--only", choices=("records", "journals"), help="one of the two ways")
    parser.add_argument("--conductors", type=int, default=2)
    parser.add_argument("--warm-up", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    ways = (("as records", False), ("in journals", True))
    found = {
        name: run(arguments, journals=journals)
        for name, journals in ways
        if arguments.only is None or name.endswith(arguments.only)
    }
    print(f"load of the machine at the end: {os.getloadavg()[0]:.1f}")
    print(f"{'':24}" + "".join(f"{name:>14}" for name in found))
    for measure in next(iter(found.values())):
        values = "".join(f"{each[measure]:14.2f}" for each in found.values())
        print(f"{measure:24}{values}")


if __name__ == "__main__":
    main()
