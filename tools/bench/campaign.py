# SPDX-License-Identifier: Apache-2.0
"""All sizes, limits and sides of a run: prepares, measures, cleans up; resumes where it stopped."""

import contextlib
import http.client
import json
import os
import pathlib
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pymysql
import rich.console

from tools.bench import (
    cluster,
    configuration,
    databases,
    measuring,
    options,
    population,
    results,
    servers,
    worker,
)
from tools.stack import database

_CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
# What two cores bear beside the measured work.
_MOST_HEARTBEATS = 50.0
_MOST_REPORTS = 16.0
_WARM_UP = {options.STOCK: 1, options.PLUGIN: 10}
_SETTLE_SECONDS = 3.0
_READY_SECONDS = 2 * 3600.0
_BROKEN = (OSError, RuntimeError, pymysql.MySQLError, database.CommandFailedError)


class Campaign:
    """One run of the benchmark over a state directory that is its own.

    :param console: told of progress
    """

    def __init__(self, given: options.Options, console: rich.console.Console) -> None:
        self._given = given
        self._console = console
        self._status: rich.status.Status | None = None
        self._running = servers.Servers(given.state, pathlib.Path(sys.prefix))
        self.results = results.Results(given.state / "results")

    def run(self) -> list[str]:
        """Measure what is asked for and not there yet; returns what failed, one line each."""
        failures = []
        try:
            with self._console.status("MariaDB") as self._status:
                self._running.start_mariadb()
                for hosts in self._given.hosts:
                    failures += self._size(hosts)
        finally:
            if not self._given.keep:
                self._running.stop()
        return failures

    def _size(self, hosts: int) -> list[str]:
        try:
            self._populate(hosts)
            if self._given.populate_only:
                return []
            self._serve_placement(hosts)
        except _BROKEN as error:
            return [f"{hosts} hosts: {error}"]
        failures = []
        for limit in self._given.limits_for(hosts):
            for side in self._given.sides:
                what = f"{hosts} hosts, limit {limit}, {side}"
                if side not in self._given.again and self.results.has(hosts, limit, side):
                    self._console.log(f"{what}: measured before")
                    continue
                try:
                    self._side(hosts, limit, side)
                except _BROKEN as error:
                    failures.append(f"{what}: {error}")
                    self._console.log(f"[red]{what} failed:[/] {error}")
        return failures

    # -- data ----------------------------------------------------------------

    def _populate(self, hosts: int) -> None:
        settings = self._running.settings
        if not databases.is_populated(settings, hosts):
            started = time.monotonic()
            self._say(f"{hosts} hosts: schemas")
            databases.create(settings, hosts)
            # Placement writes the names of traits and classes as it starts.
            self._serve_placement(hosts)
            population.Populator(
                settings,
                cluster.Cluster(hosts),
                lambda done: self._say(f"{hosts} hosts: {done} made"),
            ).run()
            databases.set_populated(settings, hosts)
            seconds = time.monotonic() - started
            self._console.log(f"{hosts} hosts: populated in {seconds:.0f} s")
        databases.create_store_schema(settings, hosts)

    def _serve_placement(self, hosts: int) -> None:
        self._running.start_placement(hosts)
        connection = http.client.HTTPConnection(
            "127.0.0.1", self._running.settings.port("placement"), timeout=120
        )
        with contextlib.closing(connection):
            connection.request("GET", "/")
            connection.getresponse().read()

    def _allocated(self, hosts: int) -> tuple[int, ...]:
        """Return rows and sum of Placement's allocations: equal before and after each side."""
        name = configuration.database("placement", hosts)
        (row,) = database.query(
            self._running.settings,
            f"SELECT COUNT(*), SUM(used) FROM {name}.allocations",  # noqa: S608 - our own name
        )
        return tuple(int(value) for value in row)

    # -- one side -----------------------------------------------------------------

    def _side(self, hosts: int, limit: int, side: str) -> None:
        what = f"{hosts} hosts, limit {limit}, {side}"
        self._console.log(f"{what}: begins")
        started = time.monotonic()
        with self._conductor(hosts, side) as conductor:
            self._delete(conductor, self._left_behind(hosts))
            allocated = self._allocated(hosts)
            consumers: list[str] = []
            try:
                found = self._measure(hosts, limit, side, conductor, consumers)
            finally:
                conductor.ask("quiet")
                self._delete(conductor, consumers)
        if self._allocated(hosts) != allocated:
            raise RuntimeError(
                f"Placement's allocations are not what they were; remove {self._given.state}"
                f"/populated-{hosts} to have the size made again"
            )
        self.results.save(hosts, limit, side, found)
        median = found["one_by_one"]["p50_seconds"]
        seconds = time.monotonic() - started
        self._console.log(f"{what}: p50 {median:.3f} s; took {seconds:.0f} s")

    def _delete(self, conductor: worker.Worker, consumers: list[str]) -> None:
        self._say(f"deleting {len(consumers)} allocations")
        conductor.ask("delete_allocations", 3600.0, consumers=consumers)

    def _left_behind(self, hosts: int) -> list[str]:
        """Return servers that a run left in Placement which could not clean up."""
        placement = configuration.database("placement", hosts)
        cell = configuration.database("nova_cell1", hosts)
        rows = database.query(
            self._running.settings,
            f"SELECT uuid FROM {placement}.consumers"  # noqa: S608 - our own names
            f" WHERE id > (SELECT MAX(id) FROM {cell}.instances)",
        )
        return [str(uuid) for (uuid,) in rows]

    def _measure(
        self,
        hosts: int,
        limit: int,
        side: str,
        conductor: worker.Worker,
        consumers: list[str],
    ) -> dict[str, Any]:
        rates = self._rates(hosts)
        conductor.ask(
            "write", heartbeats_per_second=rates.heartbeats, reports_per_second=rates.reports
        )
        written = conductor.ask("written")
        if side == options.PLUGIN:
            self._wait_swept(hosts, limit, consumers)
        full = limit == self._given.limits_for(hosts)[0]
        crowds = full and hosts == measuring.SIZE_OF_CROWDS
        with self._scheduler(hosts, limit, side) as scheduler:
            self._say(f"{hosts} hosts, {side}: a scheduler gets ready")
            started = scheduler.ask("begin", _READY_SECONDS)
            consumers += started.pop("consumers")
            measure = self._measuring(hosts, side, conductor, [scheduler], consumers)
            measure.warm_up(_WARM_UP[side])
            found: dict[str, Any] = {
                "facts": self._facts(hosts, limit, side, rates),
                "start": started,
                "idle": measure.idle(),
                "one_by_one": measure.one_by_one(),
            }
            if full:
                found["paced"] = measure.paced(found["one_by_one"]["p50_seconds"])
            if crowds:
                found["crowd"] = measure.crowd()
            found["memory"] = scheduler.ask("state")
            if crowds:
                with self._scheduler(hosts, limit, side) as second:
                    consumers += second.ask("begin", _READY_SECONDS).pop("consumers")
                    pair = self._measuring(hosts, side, conductor, [scheduler, second], consumers)
                    found["together"] = pair.together()
        found["written"] = _rates_between(written, conductor.ask("written"))
        return found

    def _measuring(
        self,
        hosts: int,
        side: str,
        conductor: worker.Worker,
        schedulers: list[worker.Worker],
        consumers: list[str],
    ) -> measuring.Measuring:
        return measuring.Measuring(
            self._given.durations(hosts),
            self._given.requests,
            self._running,
            side,
            conductor,
            schedulers,
            consumers,
            self._say,
        )

    def _wait_swept(self, hosts: int, limit: int, consumers: list[str]) -> None:
        """Wait, with a scheduler that is not measured, until the conductor has swept its cell."""
        self._say(f"{hosts} hosts: the conductor compares its cell with the store")
        started = time.monotonic()
        with self._scheduler(hosts, limit, options.PLUGIN) as probe:
            consumers += probe.ask("begin", _READY_SECONDS).pop("consumers")
        self._console.log(f"{hosts} hosts: proved after {time.monotonic() - started:.0f} s")
        time.sleep(_SETTLE_SECONDS)

    def _facts(self, hosts: int, limit: int, side: str, rates: measuring.Rates) -> dict[str, Any]:
        return {
            "hosts": hosts,
            "limit": limit,
            "side": side,
            "when": time.strftime("%Y-%m-%d %H:%M:%S%z"),
            "commit": _commit(),
            "cpus": os.cpu_count(),
            "load": os.getloadavg()[0],
            "python": platform.python_version(),
            "heartbeats_per_second": rates.heartbeats,
            "reports_per_second": rates.reports,
        }

    def _rates(self, hosts: int) -> measuring.Rates:
        heartbeats, reports = (
            self._given.heartbeats_per_second,
            self._given.reports_per_second,
        )
        return measuring.Rates(
            min(hosts / 10, _MOST_HEARTBEATS) if heartbeats is None else heartbeats,
            min(hosts / 60, _MOST_REPORTS) if reports is None else reports,
        )

    # -- processes --------------------------------------------------------------

    @contextlib.contextmanager
    def _conductor(self, hosts: int, side: str) -> Iterator[worker.Worker]:
        path = configuration.write_nova(
            self._running.settings,
            configuration.CONDUCTOR,
            hosts,
            plugin=side == options.PLUGIN,
        )
        with self._worker("conductor", [str(path), str(hosts)]) as conductor:
            conductor.ask("ready")
            yield conductor

    @contextlib.contextmanager
    def _scheduler(self, hosts: int, limit: int, side: str) -> Iterator[worker.Worker]:
        path = configuration.write_nova(
            self._running.settings,
            configuration.SCHEDULER,
            hosts,
            plugin=side == options.PLUGIN,
            limit=limit,
        )
        with self._worker("scheduler", [str(path)]) as scheduler:
            is_plugin = scheduler.ask("state")["is_plugin"]
            if is_plugin != (side == options.PLUGIN):
                raise RuntimeError(f"the scheduler of the {side} side runs the other one's manager")
            yield scheduler

    def _worker(self, name: str, arguments: list[str]) -> worker.Worker:
        return worker.Worker(
            name,
            sys.executable,
            f"tools.bench.{name}_process",
            arguments,
            self._running.settings.log / f"{name}.out",
            _CHECKOUT,
        )

    def _say(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)


def _rates_between(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    seconds = after["at"] - before["at"]
    return {
        "heartbeats_per_second": (after["heartbeats"] - before["heartbeats"]) / seconds,
        "reports_per_second": (after["reports"] - before["reports"]) / seconds,
        "behind_seconds": after["behind_seconds"],
    }


def _commit() -> str:
    answer = subprocess.run(
        ["git", "-C", str(_CHECKOUT), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout.strip() or "unknown"


def write_json(path: pathlib.Path, everything: Any) -> None:
    """Write results for other programs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(everything, indent=1) + "\n")
