# SPDX-License-Identifier: Apache-2.0
"""What heartbeats cost conductors, the back end and a scheduler, as records and in journals.

Run with ``python -m tools.bench.heartbeats.conductor_load [--rate N] [--services N]``. Conductors'
processes run the plugin's own reporter as its assembly makes it, with its threads and by real
clocks; a scheduler process runs the feed, the judge and the journals' reader; a MariaDB of its own
is the back end. Heartbeats are given to the reporters at a steady rate, from below Nova's objects:
neither a bus nor the rows of services are in it, which cost the same both ways.

A heartbeat's lag is the time from when a conductor heard it until the scheduler tells it, the wait
for the flush included; it is looked at ten times a second, for some of the services.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pathlib
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from multiprocessing import connection
from typing import Any

import numpy as np
import psutil

from nova_nodb_scheduler.testing import server_processes

_CELL = str(uuid.UUID(int=1))
_SAMPLE = 200
_LOOK_SECONDS = 0.1
_TICK_SECONDS = 0.02
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


def _conduct(pipe: connection.Connection, conf_file: str, keys: Sequence[str], rate: float) -> None:
    """Be a conductor that hears these services: begin when told, end when told."""
    reporter = _plugin(conf_file, "conductor").reporter(
        "conductor", lambda: _CELL, lambda: (_CELL,)
    )
    reporter.ensure_started()
    pipe.send("started")
    pipe.recv()
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
    figures = reporter.status().journal
    is_on = reporter.journal is not None and reporter.journal.is_on
    waiting = reporter._dirty.beats_waiting() + (0 if figures is None else figures.waiting)
    pipe.send({"given": given, "waiting": waiting, "journals": is_on, "behind": worst})
    os._exit(0)


def _now() -> str:
    from oslo_utils import timeutils

    return str(timeutils.utcnow().isoformat())


def _schedule(pipe: connection.Connection, conf_file: str, keys: Sequence[str]) -> None:
    """Be a scheduler that notes when it hears of some services."""
    from nova_nodb_scheduler.scheduling.facts import fact_source

    runtime = _plugin(conf_file, "scheduler").scheduler(lambda: [_CELL])
    runtime.start()
    pipe.send("started")
    sample = keys[:: max(1, len(keys) // _SAMPLE)]
    told: dict[str, float | None] = {}
    lags: list[float] = []
    while True:
        if pipe.poll(_LOOK_SECONDS):
            if pipe.recv() == "begin":
                lags.clear()
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
    pipe.send(lags)
    os._exit(0)


def _seed(conf_file: str, keys: Sequence[str]) -> None:
    """Write the services' records, as a sweep does."""
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
    for first in range(0, len(keys), 5000):
        publisher.publish(
            {
                records.RecordKey(known_namespaces.SERVICE_LIVENESS.name, key): lambda _: state
                for key in keys[first : first + 5000]
            }
        )
    synchronizer.close()


def _conf_file(directory: pathlib.Path, url: str, *, journals: bool) -> str:
    path = directory / f"{'journals' if journals else 'records'}.conf"
    path.write_text(
        f"[DEFAULT]\ntransport_url = fake://\nhost = bench\nstate_path = {directory}\n"
        f"scheduler_driver = nodb_scheduler\n[nodb_sqlalchemy]\nconnection = {url}\n"
        "[nodb_scheduler]\nsynchronizer = sqlalchemy\nclaims = off\ncandidates = placement\n"
        f"verify_allocations = never\ncell_uuid = {_CELL}\nheartbeat_journals = {journals}\n"
    )
    return str(path)


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
    """Have heartbeats come for a while; return what they cost."""
    from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
    from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import engines, migration

    keys = [str(uuid.uuid4()) for _ in range(arguments.services)]
    server = server_processes.MariaDBServer()
    try:
        server.initialize()
        server.start()
        server.create_database("nodb")
        url = server.url("nodb")
        engine = engines.create_for_migration(driver.SQLOptions(url))
        migration.sync(engine)
        engine.dispose()
        with tempfile.TemporaryDirectory() as folder:
            conf_file = _conf_file(pathlib.Path(folder), url, journals=journals)
            seeding = _CONTEXT.Process(target=_seed, args=(conf_file, keys))
            seeding.start()
            seeding.join()
            scheduler = _Started(_schedule, conf_file, keys)
            number = arguments.conductors
            conductors = [
                _Started(_conduct, conf_file, keys[each::number], arguments.rate / number)
                for each in range(number)
            ]
            for each in conductors:
                each.pipe.send("begin")
            time.sleep(arguments.warm_up)
            processes = {
                "conductors": [each.pid for each in conductors],
                "back end": [int((server.directory / "pid").read_text())],
                "scheduler": [scheduler.pid],
            }
            scheduler.pipe.send("begin")
            began, before = time.monotonic(), _cpu_seconds(processes)
            time.sleep(arguments.seconds)
            seconds, after = time.monotonic() - began, _cpu_seconds(processes)
            lags = scheduler.ask("end")
            ended = [each.ask("end") for each in conductors]
    finally:
        server.destroy()
    total = sum(each["given"] for each in ended)
    rate = total / (seconds + arguments.warm_up)
    assert all(each["journals"] is journals for each in ended), ended
    return {
        "heartbeats a second": rate,
        "waiting at the end": float(sum(each["waiting"] for each in ended)),
        **{f"cores, {name}": (after[name] - before[name]) / seconds for name in processes},
        **{
            f"lag p{rank}, s": float(np.percentile(lags, rank)) if lags else float("nan")
            for rank in (50, 99)
        },
    }


def main() -> None:
    """Print a line for each measure, both ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=10_000.0, help="heartbeats a second")
    parser.add_argument("--services", type=int, default=100_000)
    parser.add_argument("--conductors", type=int, default=2)
    parser.add_argument("--warm-up", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    found = {
        name: run(arguments, journals=journals)
        for name, journals in (("as records", False), ("in journals", True))
    }
    print(f"load of the machine at the end: {os.getloadavg()[0]:.1f}")
    print(f"{'':24}" + "".join(f"{name:>14}" for name in found))
    for measure in found["as records"]:
        values = "".join(f"{each[measure]:14.2f}" for each in found.values())
        print(f"{measure:24}{values}")


if __name__ == "__main__":
    main()
