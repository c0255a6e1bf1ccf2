# SPDX-License-Identifier: Apache-2.0
"""What a stretch of time cost: CPU by process, SQL by MariaDB's users, calls by Placement's log."""

import collections
import pathlib
import time
from collections.abc import Mapping

import attrs
import psutil

from tools.bench.control_plane import configuration, servers
from tools.stack import database

SCHEDULER = "scheduler"
CONDUCTOR = "conductor"
PLACEMENT = "placement"
MARIADB = "mariadb"
#: Processes whose work a request is; the conductor's is the computes' writes and their reporting.
OF_REQUESTS = (SCHEDULER, PLACEMENT, MARIADB)


@attrs.frozen
class Reading:
    """Counters at a moment."""

    at: float
    cpu_seconds: Mapping[str, float]
    statements: Mapping[str, int]
    access_log_bytes: int


@attrs.frozen
class Usage:
    """The difference of two readings.

    :param cpu_seconds: by process, user and system
    :param statements: SELECTs and writes by MariaDB's user; without transaction control
    :param calls: Placement's requests by method and path, the last part of which is left out
    :param server_seconds: time of those requests within Placement
    """

    wall_seconds: float
    cpu_seconds: dict[str, float]
    statements: dict[str, float]
    calls: dict[str, float]
    server_seconds: dict[str, float]


class Meters:
    """Reads the counters of the servers and of named processes.

    :param processes: pids by process; several of one name count together
    """

    def __init__(self, running: servers.Servers, processes: Mapping[str, list[int]]) -> None:
        self._servers = running
        self._processes = {
            **processes,
            PLACEMENT: [running.placement_pid()],
            MARIADB: [running.mariadb_pid()],
        }

    def read(self) -> Reading:
        """Take a reading; a few milliseconds."""
        log = self._servers.access_log
        return Reading(
            at=time.perf_counter(),
            cpu_seconds={name: _cpu_seconds(pids) for name, pids in self._processes.items()},
            statements=self._statements(),
            access_log_bytes=log.stat().st_size if log.exists() else 0,
        )

    def since(self, before: Reading) -> Usage:
        """Return what was used since a reading."""
        after = self.read()
        calls, server_seconds = _calls(self._servers.access_log, before.access_log_bytes)
        return Usage(
            wall_seconds=after.at - before.at,
            cpu_seconds={
                name: used - before.cpu_seconds.get(name, 0.0)
                for name, used in after.cpu_seconds.items()
            },
            statements={
                user: count - before.statements.get(user, 0)
                for user, count in after.statements.items()
            },
            calls=dict(calls),
            server_seconds=dict(server_seconds),
        )

    def _statements(self) -> dict[str, int]:
        rows = database.query(
            self._servers.settings,
            "SELECT user, select_commands + update_commands"
            " FROM information_schema.user_statistics",
        )
        counted = {str(user): int(count) for user, count in rows}
        return {user: counted.get(user, 0) for user in configuration.USERS}


def _cpu_seconds(pids: list[int]) -> float:
    total = 0.0
    for pid in pids:
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            times = each.cpu_times()
            total += times.user + times.system
    return total


def _calls(
    log: pathlib.Path, from_byte: int
) -> tuple[collections.Counter[str], collections.Counter[str]]:
    calls: collections.Counter[str] = collections.Counter()
    seconds: collections.Counter[str] = collections.Counter()
    if not log.exists():
        return calls, seconds
    with log.open("rb") as lines:
        lines.seek(from_byte)
        for line in lines:
            method, path, status, microseconds = line.decode().split()
            name = f"{method} /{path.split('/')[1]}"
            if status.startswith(("4", "5")):
                name += f" {status}"
            calls[name] += 1
            seconds[name] += float(microseconds) / 1e6
    return calls, seconds
