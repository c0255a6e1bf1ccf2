# SPDX-License-Identifier: Apache-2.0
"""MariaDB of the stack: start, SQL as root, databases and users, schema commands."""

import concurrent.futures
import os
import pathlib
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pymysql

from tools.stack import configuration
from tools.stack import processes as stack_processes
from tools.stack import settings as stack_settings

_PEERS = ("keystone", "placement", "glance", "neutron")
# Schema commands are mostly one CPU's work each.
_SYNCS_AT_A_TIME = 2


class CommandFailedError(Exception):
    """A set-up command ended with an error; its output is in the named log."""

    def __init__(self, command: Sequence[str], log: pathlib.Path) -> None:
        super().__init__(command, log)
        self.command = command
        self.log = log

    def __str__(self) -> str:
        return f"'{' '.join(self.command)}' failed; read {self.log}"


def connect(settings: stack_settings.Settings) -> pymysql.Connection:
    """A root connection through the local socket; the caller closes it."""
    return pymysql.connect(unix_socket=str(settings.mariadb_socket), user="root", autocommit=True)


def query(
    settings: stack_settings.Settings, statement: str, values: Sequence[object] = ()
) -> list[tuple[Any, ...]]:
    """Run one statement as root and return its rows."""
    with connect(settings) as connection, connection.cursor() as cursor:
        cursor.execute(statement, tuple(values) or None)
        return list(cursor.fetchall())


def prepare_directory(settings: stack_settings.Settings) -> None:
    """Create MariaDB's data directory once."""
    if (settings.state / "mysql" / "mysql").exists():
        return
    run(
        settings,
        "mariadb-install-db",
        [
            "mariadb-install-db",
            f"--defaults-file={settings.etc / 'my.cnf'}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ],
    )


def wait_ready(settings: stack_settings.Settings, timeout_seconds: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            query(settings, "SELECT 1")
        except pymysql.err.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def create_databases_and_users(settings: stack_settings.Settings) -> None:
    """A database per service and cell, a user per process. Repeatable."""
    cells = settings.cell_databases
    databases = [*_PEERS, "nova_api", "nova_cell0", *cells, configuration.STORE_DATABASE]
    with connect(settings) as connection, connection.cursor() as cursor:
        for name in databases:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {name} CHARACTER SET utf8mb4")
        for user in (*_PEERS, "nova-manage", *settings.control_plane_names):
            cursor.execute(
                "GRANT ALL ON *.* TO %s@'127.0.0.1' IDENTIFIED BY %s",
                (user, stack_settings.PASSWORD),
            )


def create_schemas(
    settings: stack_settings.Settings, when_identity_is_ready: Callable[[], None]
) -> None:
    """Run every service's own schema commands, two chains at a time; skipped once done.

    ``when_identity_is_ready`` is called in the chain of Keystone's commands, after the last.
    """
    done = settings.state / "schemas-done"
    if done.exists():
        return
    with concurrent.futures.ThreadPoolExecutor(_SYNCS_AT_A_TIME) as pool:
        nova_api = pool.submit(_nova_api, settings)
        chains = [pool.submit(_identity, settings, when_identity_is_ready)]
        nova_api.result()
        cells = [pool.submit(_nova_cell, settings, name) for name in (None, *settings.cell_names)]
        chains += [
            *cells,
            pool.submit(_neutron, settings),
            pool.submit(_placement_and_glance, settings),
        ]
        for chain in chains:
            chain.result()
    done.touch()


def create_store_schema(settings: stack_settings.Settings) -> bool:
    """Make the synchronizer's tables; False when the project's command is not installed."""
    if not os.access(settings.program("nova-nodb-manage"), os.X_OK):
        return False
    nodb_manage(settings, "db", "sync")
    return True


def nodb_manage(settings: stack_settings.Settings, *arguments: str) -> str:
    """Run nova-nodb-manage with the stack's configuration and return what it printed."""
    program = settings.program("nova-nodb-manage")
    command = [program, *_manage_options(settings), *arguments]
    return run(settings, "nova-nodb-manage", command)


def nova_manage(settings: stack_settings.Settings, *arguments: str, cell: str | None = None) -> str:
    """Run nova-manage with the stack's configuration and return what it printed."""
    return run(
        settings,
        "nova-manage",
        [settings.program("nova-manage"), *_manage_options(settings, cell), *arguments],
    )


def run(
    settings: stack_settings.Settings,
    log_name: str,
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a set-up command; its output goes to log/LOG_NAME.out and is returned."""
    log = settings.log / f"{log_name}.out"
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    with log.open("a") as output:
        output.write(f"$ {' '.join(command)}\n{result.stdout}")
    if result.returncode:
        raise CommandFailedError(command, log)
    return result.stdout


def _manage_options(settings: stack_settings.Settings, cell: str | None = None) -> list[str]:
    directory = "nova-manage" if cell is None else f"nova-manage-{cell}"
    return ["--config-file", str(settings.etc / "nova" / directory / "nova.conf")]


def _identity(settings: stack_settings.Settings, when_ready: Callable[[], None]) -> None:
    keystone = [
        settings.program("keystone-manage"),
        "--config-file",
        str(settings.etc / "keystone" / "keystone.conf"),
    ]
    url = settings.url("keystone") + "/v3"
    run(settings, "keystone-manage", [*keystone, "db_sync"])
    for command in ("fernet_setup", "credential_setup"):
        owner = ["--keystone-user", str(os.getuid()), "--keystone-group", str(os.getgid())]
        run(settings, "keystone-manage", [*keystone, command, *owner])
    run(
        settings,
        "keystone-manage",
        [
            *(*keystone, "bootstrap", "--bootstrap-password", stack_settings.PASSWORD),
            *("--bootstrap-region-id", stack_settings.REGION),
            *("--bootstrap-admin-url", url, "--bootstrap-public-url", url),
            *("--bootstrap-internal-url", url),
        ],
    )
    when_ready()


def _nova_api(settings: stack_settings.Settings) -> None:
    nova_manage(settings, "api_db", "sync")
    cell0 = configuration.DATABASE_TEMPLATE.format(database="nova_cell0")
    nova_manage(settings, "cell_v2", "map_cell0", "--database_connection", cell0)


def _nova_cell(settings: stack_settings.Settings, cell: str | None) -> None:
    nova_manage(settings, "db", "sync", "--local_cell", cell=cell)
    if cell is None:
        return
    nova_manage(
        settings,
        *("cell_v2", "create_cell", "--name", cell),
        *(
            "--database_connection",
            configuration.DATABASE_TEMPLATE.format(database=f"nova_{cell}"),
        ),
        *("--transport-url", configuration.TRANSPORT_TEMPLATE.format(vhost=cell)),
    )


def _neutron(settings: stack_settings.Settings) -> None:
    neutron = settings.etc / "neutron"
    run(
        settings,
        "neutron-db-manage",
        [
            settings.program("neutron-db-manage"),
            *("--config-file", str(neutron / "neutron.conf")),
            *("--config-file", str(neutron / "plugins" / "ml2" / "ml2_conf.ini")),
            *("upgrade", "head"),
        ],
    )


def _placement_and_glance(settings: stack_settings.Settings) -> None:
    for name, file, command in (
        ("placement", "placement.conf", ("db", "sync")),
        ("glance", "glance-api.conf", ("db_sync",)),
    ):
        program = settings.program(f"{name}-manage")
        options = ("--config-file", str(settings.etc / name / file))
        run(settings, f"{name}-manage", [program, *options, *command])


def start(settings: stack_settings.Settings, processes: stack_processes.ProcessTable) -> None:
    """Start mariadbd and wait until it answers."""
    prepare_directory(settings)
    processes.start("mariadb", ["mariadbd", f"--defaults-file={settings.etc / 'my.cnf'}"])
    wait_ready(settings)
