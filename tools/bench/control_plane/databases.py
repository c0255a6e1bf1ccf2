# SPDX-License-Identifier: Apache-2.0
"""One set of databases a size, cloned from schemas that the services' own commands make once."""

import pathlib
import subprocess
import uuid

from tools.bench.control_plane import configuration
from tools.stack import database
from tools.stack import settings as stack_settings

_TEMPLATE = 0
"""The size under which the schemas are made."""
_NAMES = ("nova_api", "nova_cell0", "nova_cell1", "placement", "store")
_CELL0_UUID = "00000000-0000-0000-0000-000000000000"
# Filled by Nova with user, password and port of the process that reads it.
_CELL_URL = "{{scheme}}://{{username}}:{{password}}@{{hostname}}:{{port}}/{database}"


def is_populated(settings: stack_settings.Settings, hosts: int) -> bool:
    """Tell whether a size's data are complete."""
    return _mark(settings, hosts).exists()


def set_populated(settings: stack_settings.Settings, hosts: int) -> None:
    """Note that a size's data are complete."""
    _mark(settings, hosts).touch()


def create(settings: stack_settings.Settings, hosts: int) -> None:
    """Make a size's databases, empty, with schemas and cell mappings; drops what was there."""
    _make_template(settings)
    _drop_and_create(settings, hosts)
    for name in _NAMES:
        source = "nova_cell1" if name == "nova_cell0" else name
        if name != "store":
            _clone(
                settings,
                configuration.database(source, _TEMPLATE),
                configuration.database(name, hosts),
            )
    api = configuration.database("nova_api", hosts)
    for name, identity in (("cell0", _CELL0_UUID), ("cell1", str(uuid.uuid4()))):
        url = _CELL_URL.format(database=configuration.database(f"nova_{name}", hosts))
        database.query(
            settings,
            f"INSERT INTO {api}.cell_mappings"  # noqa: S608 - our own names
            " (uuid, name, transport_url, database_connection, disabled)"
            " VALUES (%s, %s, %s, %s, 0)",
            (identity, name, "fake://" if name == "cell1" else "none:///", url),
        )


def create_store_schema(settings: stack_settings.Settings, hosts: int) -> None:
    """Make or upgrade the tables of the plugin's back end."""
    path = configuration.write_nova(settings, configuration.MANAGE, hosts, plugin=True)
    program = settings.program("nova-nodb-manage")
    command = [program, "--config-file", str(path), "db", "sync"]
    database.run(settings, "nova-nodb-manage", command)


def fill_mirror(settings: stack_settings.Settings, hosts: int) -> None:
    """Fill the plugin's mirror of Placement out of Placement's database."""
    path = configuration.write_nova(settings, configuration.MANAGE, hosts, plugin=True)
    program = settings.program("nova-nodb-manage")
    command = [program, "--config-file", str(path), "mirror", "import", "--json"]
    name = configuration.database("placement", hosts)
    url = configuration.database_url(settings, configuration.MANAGE, name)
    database.run(settings, "nova-nodb-manage", command, {"NODB_PLACEMENT_CONNECTION": url})


def _mark(settings: stack_settings.Settings, hosts: int) -> pathlib.Path:
    return settings.state / f"populated-{hosts}"


def _make_template(settings: stack_settings.Settings) -> None:
    done = settings.state / "schemas-done"
    if done.exists():
        return
    _drop_and_create(settings, _TEMPLATE)
    manage = configuration.write_nova(settings, configuration.MANAGE, _TEMPLATE, plugin=False)
    cell = configuration.write_nova(settings, configuration.CONDUCTOR, _TEMPLATE, plugin=False)
    placement = configuration.write_placement(settings, _TEMPLATE)
    program = settings.program("nova-manage")
    for name, command in (
        ("nova-manage", [program, "--config-file", str(manage), "api_db", "sync"]),
        ("nova-manage", [program, "--config-file", str(cell), "db", "sync", "--local_cell"]),
        (
            "placement-manage",
            [
                settings.program("placement-manage"),
                *("--config-file", str(placement / "placement.conf"), "db", "sync"),
            ],
        ),
    ):
        database.run(settings, name, command)
    done.touch()


def _drop_and_create(settings: stack_settings.Settings, hosts: int) -> None:
    for name in _NAMES:
        full = configuration.database(name, hosts)
        database.query(settings, f"DROP DATABASE IF EXISTS {full}")
        database.query(settings, f"CREATE DATABASE {full} CHARACTER SET utf8mb4")


def _clone(settings: stack_settings.Settings, source: str, destination: str) -> None:
    socket = f"--socket={settings.mariadb_socket}"
    with subprocess.Popen(
        ["mariadb-dump", "--user=root", socket, source], stdout=subprocess.PIPE
    ) as dump:
        subprocess.run(
            ["mariadb", "--user=root", socket, destination], stdin=dump.stdout, check=True
        )
    if dump.returncode:
        raise database.CommandFailedError(["mariadb-dump", source], settings.log)


def allocated(settings: stack_settings.Settings, hosts: int) -> tuple[int, ...]:
    """Return rows and sum of Placement's allocations: what a side must leave as it was."""
    name = configuration.database("placement", hosts)
    (row,) = database.query(
        settings,
        f"SELECT COUNT(*), SUM(used) FROM {name}.allocations",  # noqa: S608 - our own name
    )
    return tuple(int(value) for value in row)


def left_behind(settings: stack_settings.Settings, hosts: int) -> list[str]:
    """Return servers that a run left in Placement which could not clean up."""
    placement = configuration.database("placement", hosts)
    cell = configuration.database("nova_cell1", hosts)
    rows = database.query(
        settings,
        f"SELECT uuid FROM {placement}.consumers"  # noqa: S608 - our own names
        f" WHERE id > (SELECT MAX(id) FROM {cell}.instances)",
    )
    return [str(uuid) for (uuid,) in rows]
