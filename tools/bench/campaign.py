# SPDX-License-Identifier: Apache-2.0
"""All sizes, limits and sides of a run: prepares, measures, cleans up; resumes where it stopped."""

import contextlib
import http.client
import pathlib
import sys
import time
from collections.abc import Iterator

import pymysql
import rich.console

from tools.bench import contest, options, restart
from tools.bench.clouds import cluster, population
from tools.bench.control_plane import databases, servers
from tools.bench.reports import results
from tools.stack import database

_BROKEN = (OSError, RuntimeError, pymysql.MySQLError, database.CommandFailedError)


class Campaign:
    """One run of the benchmark over a state directory that is its own.

    :param console: told of progress
    """

    def __init__(self, given: options.Options, console: rich.console.Console) -> None:
        self._given = given
        self._console = console
        self._status: rich.status.Status | None = None
        self._running = servers.Servers(
            given.state, pathlib.Path(sys.prefix), guarded=given.guarded
        )
        kind = "results-guarded" if given.guarded else "results"
        self.results = results.Results(given.state / kind)

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

    @contextlib.contextmanager
    def serving(self, hosts: int) -> Iterator[servers.Servers]:
        """Serve one size's MariaDB and Placement, and end them; its data are made if needed."""
        try:
            self._running.start_mariadb()
            self._populate(hosts)
            self._serve_placement(hosts)
            yield self._running
        finally:
            if not self._given.keep:
                self._running.stop()

    def _size(self, hosts: int) -> list[str]:
        try:
            self._populate(hosts)
            if self._given.populate_only:
                return []
            self._serve_placement(hosts)
        except _BROKEN as error:
            return [f"{hosts} hosts: {error}"]
        if self._given.restart:
            return self._restart(hosts)
        failures = []
        for limit in self._given.limits_for(hosts):
            for side in self._given.sides:
                failures += self._side(hosts, limit, side)
        return failures

    def _side(self, hosts: int, limit: int, side: str) -> list[str]:
        what = f"{hosts} hosts, limit {limit}, {side}"
        if side not in self._given.again and self.results.has(hosts, limit, side):
            self._console.log(f"{what}: measured before")
            return []
        self._console.log(f"{what}: begins")
        started = time.monotonic()
        try:
            found = contest.Contest(
                self._given, self._running, hosts, limit, self._say, self._console.log
            ).run(side)
        except _BROKEN as error:
            self._console.log(f"[red]{what} failed:[/] {error}")
            return [f"{what}: {error}"]
        except Exception as error:  # noqa: BLE001 - unattended, the other sides are still to come
            self._console.print_exception()
            return [f"{what}: {type(error).__name__}: {error}"]
        self.results.save(hosts, limit, side, found)
        median = found["one_by_one"]["p50_seconds"]
        seconds = time.monotonic() - started
        self._console.log(f"{what}: p50 {median:.3f} s; took {seconds:.0f} s")
        return []

    def _restart(self, hosts: int) -> list[str]:
        try:
            found = restart.RestartContest(
                self._given, self._running, hosts, 1000, self._say, self._console.log
            ).restart()
        except _BROKEN as error:
            return [f"{hosts} hosts, restart: {error}"]
        finally:
            self._running.stop_rabbitmq()
        self._console.print_json(data=found)
        return [f"{hosts} hosts, restart: {text}" for text in restart.judge(found)]

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

    def _say(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)
