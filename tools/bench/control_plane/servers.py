# SPDX-License-Identifier: Apache-2.0
"""MariaDB and Placement of the benchmark, on loopback, ended by their pids."""

import pathlib
import signal

from tools.bench.control_plane import configuration
from tools.stack import database, processes, services
from tools.stack import settings as stack_settings

MARIADB = "mariadb"
_BUS = ("epmd", "rabbitmq")
_WORKERS = 2
_THREADS = 4
# Method, path, status, microseconds.
_ACCESS_FORMAT = "%(m)s %(U)s %(s)s %(D)s"
_INSTALLED = "placement.wsgi.api:application"
_GUARDED = "nova_nodb_scheduler.placement_adapter.wsgi:application"


class Servers:
    """The servers of one state directory. Not thread-safe.

    :param guarded: Placement is served by the plugin's application, see admin/placement-guard.rst
    """

    def __init__(self, state: pathlib.Path, venv: pathlib.Path, *, guarded: bool = False) -> None:
        for name in ("run", "log", "etc"):
            (state / name).mkdir(parents=True, exist_ok=True)
        self.table = processes.ProcessTable(state / "run", state / "log")
        self.settings = self._settings(state, venv)
        self._placement_size: int | None = None
        self._application = _GUARDED if guarded else _INSTALLED

    def _settings(self, state: pathlib.Path, venv: pathlib.Path) -> stack_settings.Settings:
        """Take the ports of servers that were kept; others' processes may hold last run's."""
        if self.table.pid(MARIADB) is not None:
            return stack_settings.load(state)
        first = stack_settings.free_first_port()
        settings = stack_settings.Settings(state=state, venv=venv, first_port=first)
        settings.save()
        return settings

    def start_mariadb(self) -> None:
        """Start mariadbd unless it runs, and make the users; returns when it answers."""
        if self.table.pid(MARIADB) is None:
            configuration.write_mariadb(self.settings)
            database.start(self.settings, self.table)
        for user in configuration.USERS:
            database.query(
                self.settings,
                "GRANT ALL ON *.* TO %s@'127.0.0.1' IDENTIFIED BY %s",
                (user, stack_settings.PASSWORD),
            )

    def start_placement(self, hosts: int) -> None:
        """Serve one size's Placement, and no other's; returns when it accepts connections."""
        name = placement_name(hosts)
        for other in self.table.names():
            if other.startswith("placement-") and other != name:
                self.table.stop(other, signal.SIGINT)
        directory = configuration.write_placement(self.settings, hosts)
        port = self.settings.port("placement")
        self.table.start(
            name,
            [
                self.settings.program("gunicorn"),
                *("--workers", str(_WORKERS), "--worker-class", "gthread"),
                *("--threads", str(_THREADS), "--timeout", "1800", "--keep-alive", "75"),
                *("--no-control-socket", "--graceful-timeout", "5", "--bind", f"127.0.0.1:{port}"),
                *("--access-logfile", str(self.access_log), "--access-logformat", _ACCESS_FORMAT),
                self._application,
            ],
            {"OS_PLACEMENT_CONFIG_DIR": str(directory)},
        )
        processes.wait_for_port(port, 60.0)
        self._placement_size = hosts

    def start_rabbitmq(self) -> None:
        """Start RabbitMQ and its port mapper; returns when it accepts connections."""
        configuration.write_rabbitmq(self.settings)
        for name in _BUS:
            made = services.service(self.settings, name)
            self.table.start(name, made.command, made.environment)
        processes.wait_for_port(self.settings.port("rabbitmq"), 120.0)

    def stop_rabbitmq(self) -> None:
        """End both. Idempotent."""
        for name in reversed(_BUS):
            self.table.stop(name, signal.SIGTERM, timeout_seconds=60.0)

    @property
    def access_log(self) -> pathlib.Path:
        """Placement's log of requests: method, path, status, microseconds."""
        return self.settings.log / "placement-access.log"

    def placement_pid(self) -> int:
        """Return the pid of gunicorn's master; RuntimeError when Placement is gone."""
        return self._pid(placement_name(self._placement_size or 0))

    def mariadb_pid(self) -> int:
        """Return mariadbd's pid; RuntimeError when it is gone."""
        return self._pid(MARIADB)

    def stop(self) -> None:
        """End Placement, then MariaDB. Idempotent."""
        for name in self.table.names():
            if name.startswith("placement-"):
                self.table.stop(name, signal.SIGINT)
        self.table.stop(MARIADB, signal.SIGTERM, timeout_seconds=120.0)

    def _pid(self, name: str) -> int:
        pid = self.table.pid(name)
        if pid is None:
            raise RuntimeError(f"{name} has ended; read {self.settings.log / name}.out")
        return pid


def placement_name(hosts: int) -> str:
    return f"placement-{hosts}"
