# SPDX-License-Identifier: Apache-2.0
"""The whole stack: up, down, plugin, restart, kill, capacity."""

import contextlib
import datetime
import pathlib
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs
import requests

from tools.stack import cloud as stack_cloud
from tools.stack import configuration, daemons, database, services
from tools.stack import processes as stack_processes
from tools.stack import settings as stack_settings

Progress = Callable[[str], None]
Overrides = dict[str, dict[str, str]]

# Long for a machine that is busy with other work; nothing waits for it that is well.
_READY_TIMEOUT_SECONDS = 600.0
_GRACEFUL_SECONDS = 180.0
# Longer than a service may be silent before it is taken for stopped.
_SILENT_SECONDS = 35.0
# What may be removed: everything but the virtual environment and Tempest's results.
_DATA = ("etc", "run", "log", "mysql", "rabbitmq", "nova", "neutron", "glance")
# What is put aside stays until so many others were.
_MOST_KEPT_LOGS = 5


class Stack:
    """One stack in one state directory. Methods block until what they promise is so.

    ``progress`` is called with one line per step.
    """

    def __init__(
        self, settings: stack_settings.Settings, progress: Progress = lambda _step: None
    ) -> None:
        self.settings = settings
        self._progress = progress
        for directory in (settings.etc, settings.run, settings.log):
            directory.mkdir(parents=True, exist_ok=True)
        self.processes = stack_processes.ProcessTable(settings.run, settings.log)

    @classmethod
    def existing(cls, state: pathlib.Path, progress: Progress = lambda _step: None) -> "Stack":
        """The stack whose settings lie in ``state``; FileNotFoundError when there is none."""
        return cls(stack_settings.load(state), progress)

    @property
    def cloud(self) -> stack_cloud.Cloud:
        """A new client with a token of its own."""
        return stack_cloud.Cloud(self.settings)

    def up(self) -> None:
        """Bring everything up. What already runs is left alone; what is made is not made again.

        :raises ValueError: the directory holds a stack of another release of Nova
        """
        self._refuse_another_release()
        self._write_configuration()
        self._start_daemons()
        self._make_schemas()
        self._start_services()
        self._register_computes()
        self._progress("ready")

    def down(self, wipe: bool = False) -> None:
        """End everything that was started here; ``wipe`` removes data, configuration and logs."""
        names = self.processes.names()
        nova = [name for name in names if name.startswith("nova-")]
        order = [name for name in services.names(self.settings) if name in names]
        for name in nova:
            self.processes.send(name, signal.SIGKILL)
        for name in reversed([n for n in order if n not in nova]):
            self.processes.send(name, signal.SIGTERM)
        for name in [*nova, *reversed(order)]:
            self.processes.stop(name, signal.SIGTERM)
        if wipe:
            for directory in _DATA:
                shutil.rmtree(self.settings.state / directory, ignore_errors=True)
            (self.settings.state / "schemas-done").unlink(missing_ok=True)
            (self.settings.state / "stack.json").unlink(missing_ok=True)

    def put_logs_aside(self) -> pathlib.Path | None:
        """Move the logs of a stack that is down to a directory of their own, named by the time.

        :returns: the directory; None where there are no logs
        """
        log = self.settings.log
        if not any(log.iterdir()):
            return None
        kept = self.settings.state / "kept-logs"
        kept.mkdir(exist_ok=True)
        aside = kept / f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S.%f}"
        log.rename(aside)
        log.mkdir()
        for oldest in sorted(kept.iterdir())[:-_MOST_KEPT_LOGS]:
            shutil.rmtree(oldest)
        return aside

    def start(self, name: str) -> None:
        """Start one process without waiting for it. A no-op while it runs."""
        service = services.service(self.settings, name)
        self.processes.start(name, service.command, service.environment)

    def stop(self, name: str, graceful: bool = False) -> None:
        """End one process and wait until it is gone. ``graceful``: what it does is ended first."""
        if graceful:
            self.processes.stop(name, signal.SIGTERM, _GRACEFUL_SECONDS)
        else:
            self.processes.stop(name, services.service(self.settings, name).end_signal)

    def restart(self, name: str) -> None:
        """End, start, and wait until it serves."""
        self.stop(name)
        self.start(name)
        self.wait_ready(name)

    def kill(self, name: str, signal_number: int = signal.SIGKILL) -> None:
        """Signal a process and its workers; LookupError when it does not run.

        SIGSTOP and SIGCONT pause and resume it.
        """
        services.service(self.settings, name)
        if not self.processes.send(name, signal_number):
            raise LookupError(f"'{name}' does not run")

    def wait_ready(self, name: str, timeout_seconds: float = _READY_TIMEOUT_SECONDS) -> None:
        """Wait until a process serves: its HTTP answers, or it consumes from RabbitMQ."""
        service = services.service(self.settings, name)
        if service.port is None:
            self._wait_connected(name, timeout_seconds)
        elif name in ("mariadb",):
            database.wait_ready(self.settings, timeout_seconds)
        else:
            stack_processes.wait_for_port(service.port, timeout_seconds)
            if service.command[0].endswith("gunicorn"):
                # gunicorn listens before its workers have loaded the application.
                requests.get(self.settings.url(name), timeout=timeout_seconds)

    def status(self) -> dict[str, int | None]:
        """pid of each process of the stack, None where it does not run."""
        return {name: self.processes.pid(name) for name in services.names(self.settings)}

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows of one statement, sent as MariaDB's root."""
        return database.query(self.settings, statement, values)

    def wait_heartbeats(self, binary: str) -> None:
        """Wait until each service of a binary in cell0 has sent a heartbeat from now on."""
        counts = (
            "SELECT host, report_count FROM nova_cell0.services WHERE `binary` = %s AND deleted = 0"
        )
        before = dict(self.sql(counts, binary))

        def beaten() -> bool:
            now = dict(self.sql(counts, binary))
            return all(now[host] > count for host, count in before.items())

        self._wait_for(beaten, f"{binary} sent heartbeats")

    def rabbitmqctl(self, *arguments: str) -> str:
        """Output of rabbitmqctl against the stack's own node."""
        environment = daemons.rabbitmq_environment(self.settings)
        assignments = [f"{name}={value}" for name, value in environment.items()]
        command = ["env", *assignments, services.RABBITMQCTL, "--quiet", *arguments]
        return database.run(self.settings, "rabbitmqctl", command)

    def plugin(self, enabled: bool, stock_processes: Iterable[str] = ()) -> None:
        """Switch the plugin by nova.conf alone, one process after the other.

        The order is the documented one: schema, conductors and API, import, schedulers; backwards
        for the way back. ``stock_processes`` keep Nova's own configuration.
        """
        before = self.settings
        self._change(plugin=enabled, stock_processes=tuple(stock_processes))
        names = self.settings.control_plane_names
        schedulers = self.settings.scheduler_names
        others = [name for name in names if name not in schedulers]
        if enabled:
            try:
                self._make_store()
            except (RuntimeError, database.CommandFailedError):
                # Nothing was restarted yet: leave the files as the processes know them.
                self._change(plugin=before.plugin, stock_processes=before.stock_processes)
                raise
            self._restart_each(others)
            self._import()
            self._restart_each(schedulers)
        else:
            self._restart_each([*schedulers, *others])

    def switch(self, names: Iterable[str], enabled: bool) -> None:
        """Give single processes the plugin's lines, or take them away, and restart them.

        Nothing is imported; while ``plugin`` is off nobody has the lines.
        """
        names = tuple(names)
        kept = tuple(name for name in self.settings.stock_processes if name not in names)
        self._change(stock_processes=kept if enabled else (*kept, *names))
        self._restart_each(names)

    def override(self, process: str, options: Mapping[str, Mapping[str, str]] | None) -> None:
        """Write options over one process's nova.conf (None: as rendered) and restart it."""
        self.configure({process: options})
        self.restart(process)

    def configure(self, changes: Mapping[str, Mapping[str, Mapping[str, str]] | None]) -> None:
        """Write options over the nova.conf of processes (None: as rendered); restart none.

        ``nova-manage`` is one of them: the files that its commands read.
        """
        overrides = {**self.settings.overrides, **changes}
        kept = {name: options for name, options in overrides.items() if options is not None}
        self._change(overrides=kept)

    def capacity(self, vcpus_per_host: int | None) -> None:
        """Let every host offer so many VCPU (None: the fake driver's); wait for Placement."""
        self._change(vcpus_per_host=vcpus_per_host)
        for name in self.settings.compute_names:
            self.stop(name)
            self.start(name)
        wanted = 4000 if vcpus_per_host is None else vcpus_per_host
        cloud = self.cloud

        def offered() -> bool:
            capacity = cloud.vcpu_capacity().values()
            return sum(1 for vcpus in capacity if vcpus == wanted) >= self.settings.computes

        self._wait_for(offered, f"Placement shows {wanted} VCPU a host")

    def retire_compute_nodes(self) -> None:
        """Have records answer for compute nodes, and take the table out of each cell.

        As documented: the control plane is stopped, the command, the options, the start. Computes
        run on, and repeat what nobody answers meanwhile. Heartbeats are stored, too.
        """
        with self.control_plane_stopped():
            database.nodb_manage(self.settings, "compute-nodes", "retire")
            self._progress("compute_nodes taken away")
            options = {"compute_nodes": "retired", "service_heartbeats": "store"}
            self.configure(self._over_all({"nodb_scheduler": options}))

    def _over_all(self, options: Mapping[str, Mapping[str, str]]) -> dict[str, Overrides]:
        """Lay options over what stands for the control plane, and for commands."""
        changes: dict[str, Overrides] = {}
        for name in (*self.settings.control_plane_names, "nova-manage"):
            standing = self.settings.overrides.get(name, {})
            changes[name] = {section: dict(values) for section, values in standing.items()}
            configuration.merge(changes[name], options)
        return changes

    @contextlib.contextmanager
    def control_plane_stopped(self) -> Iterator[None]:
        """Stop what the plugin is in, until commands take it for stopped; start it behind.

        nova-compute runs on.
        """
        names = self.settings.control_plane_names
        for name in names:
            self.processes.send(name, signal.SIGTERM)
        for name in names:
            self.stop(name, graceful=True)
        self._progress("control plane stopped; the command takes it for stopped in 30 s")
        time.sleep(_SILENT_SECONDS)
        yield
        for name in names:
            self.start(name)
        for name in names:
            self.wait_ready(name)
        self._progress("control plane started")

    def queue(self, enabled: bool, wait_seconds: int = 0) -> None:
        """Switch the driver that lets requests wait on or off, one process after the other.

        :param wait_seconds: how long every server may wait of which nobody says it
        """
        changes = self._over_all(configuration.QUEUE)
        for options in changes.values():
            options["nodb_queue"]["default_wait_seconds"] = str(wait_seconds)
        if not enabled:
            for options in changes.values():
                for section, values in configuration.QUEUE.items():
                    for option in values:
                        del options[section][option]
        self.configure(changes)
        self._restart_each(self.settings.control_plane_names)

    def discover_hosts(self) -> None:
        """Map the hosts of new compute services to their cells, as an operator does."""
        database.nova_manage(self.settings, "cell_v2", "discover_hosts", "--by-service")
        self._progress("hosts discovered")

    def _refuse_another_release(self) -> None:
        try:
            standing = stack_settings.load(self.settings.state)
        except FileNotFoundError:
            return
        if standing.nova != self.settings.nova:
            raise ValueError(
                f"{self.settings.state} holds a stack of Nova {standing.nova}, not"
                f" {self.settings.nova}: end that with 'down --wipe', or name another --state"
            )

    def _write_configuration(self) -> None:
        self.settings.save()
        (self.settings.log / "rabbitmq").mkdir(exist_ok=True)
        (self.settings.state / "rabbitmq" / "mnesia").mkdir(parents=True, exist_ok=True)
        (self.settings.etc / "nova" / "nova-api").mkdir(parents=True, exist_ok=True)
        daemons.write(self.settings)
        configuration.write(self.settings)
        self._progress("configuration written")

    def _start_daemons(self) -> None:
        self.start("epmd")
        self.start("memcached")
        self.start("rabbitmq")
        database.start(self.settings, self.processes)
        database.create_databases_and_users(self.settings)
        self._progress("MariaDB answers")

    def _make_schemas(self) -> None:
        if self.settings.plugin:
            # First of all: nova-manage, which makes the other schemas, loads the plugin too.
            self._make_store()
        database.create_schemas(self.settings, self._start_identity)
        self._start_identity()
        self._progress("schemas, cell mappings and identities made")
        self.wait_ready("rabbitmq")
        self._progress("RabbitMQ answers")

    def _start_identity(self) -> None:
        self.start("keystone")
        self.wait_ready("keystone")
        self.cloud.seed_identity()

    def _make_store(self) -> None:
        if configuration.synchronizer(self.settings) != "sqlalchemy":
            return  # no other has a schema
        if not database.create_store_schema(self.settings):
            raise RuntimeError(
                f"{self.settings.program('nova-nodb-manage')} is missing; install the project"
                " there or use --no-plugin"
            )
        self._progress("synchronizer's schema made")

    def _start_services(self) -> None:
        # Two at a time would be kinder to two processors, but imports overlap well with I/O.
        for name in ("placement", *self.settings.control_plane_names, "glance", "neutron"):
            self.start(name)
        for name in ("placement", "glance", "neutron", "nova-api"):
            self.wait_ready(name)
        self._progress("APIs answer")

    def _register_computes(self) -> None:
        for name in self.settings.control_plane_names:
            self.wait_ready(name)
        for name in self.settings.compute_names:
            self.start(name)
        self.cloud.seed_contents()
        self._progress("flavors, images and network made")
        self._wait_for(self._all_computes_registered, "compute nodes registered")
        self.discover_hosts()

    def _all_computes_registered(self) -> bool:
        count = "SELECT count(*) FROM nova_{}.compute_nodes WHERE deleted = 0"
        registered = sum(int(self.sql(count.format(c))[0][0]) for c in self.settings.cell_names)
        return registered >= self.settings.computes

    def _import(self) -> None:
        database.nodb_manage(self.settings, "import")
        self._progress("existing hosts imported")

    def _restart_each(self, names: Iterable[str]) -> None:
        for name in names:
            self.restart(name)
            self._progress(f"{name} restarted")

    def _change(self, **values: Any) -> None:
        self.settings = attrs.evolve(self.settings, **values)
        self._write_configuration()

    def _wait_connected(self, name: str, timeout_seconds: float) -> None:
        port = configuration.transport_port(self.settings, name)

        def connected() -> bool:
            if self.processes.pid(name) is None:
                raise RuntimeError(f"{name} ended; read {self.settings.log / name}.out and .log")
            return self.processes.is_connected(name, port)

        self._wait_for(connected, f"{name} is connected to RabbitMQ", timeout_seconds)

    def _wait_for(
        self,
        condition: Callable[[], bool],
        what: str,
        timeout_seconds: float = _READY_TIMEOUT_SECONDS,
    ) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {timeout_seconds:.0f} s: {what}")
            time.sleep(0.2)


@contextlib.contextmanager
def running(
    settings: stack_settings.Settings, progress: Progress = lambda _step: None
) -> Iterator[Stack]:
    """A stack for the duration of a with block, ended afterwards; its logs stay."""
    stack = Stack(settings, progress)
    try:
        stack.up()
        yield stack
    finally:
        stack.down()
