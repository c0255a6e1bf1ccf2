# SPDX-License-Identifier: Apache-2.0
"""Files that MariaDB, Placement and Nova's processes read.

Each process has a MariaDB user of its own, and the plugin's back end another one, so that
MariaDB's own counters say who sent how many statements to what.
"""

import configparser
import getpass
import os
import pathlib
from collections.abc import Mapping

from tools.stack import settings as stack_settings

Sections = dict[str, dict[str, str]]

SCHEDULER = "scheduler"
CONDUCTOR = "conductor"
MANAGE = "manage"
PLACEMENT = "placement"
USERS = (
    PLACEMENT,
    *(SCHEDULER, f"{SCHEDULER}_store"),
    *(CONDUCTOR, f"{CONDUCTOR}_store"),
    *(MANAGE, f"{MANAGE}_store"),
)

#: Heartbeats may come less often than each host's 10 s, and data of last month serve as well as
#: fresh: a host that is up stays so. Those which are down were last seen ten years ago.
SERVICE_DOWN_SECONDS = 5 * 365 * 86400

_SMALL_POOL = "512M"
_LARGE_POOL = "3G"
_LARGE_MEMORY_BYTES = 12 * 2**30


def database(name: str, hosts: int) -> str:
    """Return the name of a size's database: nova_api, nova_cell0, nova_cell1, placement, store."""
    return f"{name}_{hosts}"


def database_url(settings: stack_settings.Settings, user: str, name: str) -> str:
    location = f"127.0.0.1:{settings.port('mariadb')}/{name}"
    return f"mysql+pymysql://{user}:{stack_settings.PASSWORD}@{location}"


def write_mariadb(settings: stack_settings.Settings) -> None:
    """Write my.cnf: durable as in production, with counters by user."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    server = {
        "datadir": str(settings.state / "mysql"),
        # A server that starts removes the temporary tables of others in a shared directory.
        "tmpdir": str(settings.run),
        "socket": str(settings.mariadb_socket),
        "pid-file": str(settings.run / "mariadb.server-pid"),
        "port": str(settings.port("mariadb")),
        "bind-address": "127.0.0.1",
        "skip-name-resolve": "1",
        "skip-log-bin": "1",
        "max_connections": "500",
        "character-set-server": "utf8mb4",
        "log_error": str(settings.log / "mariadb.log"),
        "innodb_buffer_pool_size": (
            _LARGE_POOL if memory_bytes >= _LARGE_MEMORY_BYTES else _SMALL_POOL
        ),
        "innodb_log_file_size": "512M",
        "innodb_flush_log_at_trx_commit": "1",
        "max_allowed_packet": "128M",
        "local_infile": "1",
        "userstat": "1",
    }
    if os.geteuid() == 0:
        server["user"] = getpass.getuser()
    _write(settings.etc / "my.cnf", {"mysqld": server})


def write_placement(settings: stack_settings.Settings, hosts: int) -> pathlib.Path:
    """Write placement.conf of a size and return its directory."""
    directory = settings.etc / f"placement-{hosts}"
    url = database_url(settings, PLACEMENT, database("placement", hosts))
    _write(
        directory / "placement.conf",
        {
            "DEFAULT": {"log_file": str(settings.log / "placement.log")},
            "api": {"auth_strategy": "noauth2"},
            "placement_database": {"connection": url, "max_pool_size": "20"},
        },
    )
    return directory


def write_rabbitmq(settings: stack_settings.Settings) -> None:
    """Write what RabbitMQ reads; its user is guest."""
    (settings.log / "rabbitmq").mkdir(exist_ok=True)
    (settings.state / "rabbitmq" / "mnesia").mkdir(parents=True, exist_ok=True)
    (settings.etc / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{settings.port('rabbitmq')}\nlog.console = false\n"
    )
    (settings.etc / "rabbitmq-plugins").write_text("[].\n")


def rabbitmq_url(settings: stack_settings.Settings) -> str:
    return f"rabbit://guest:guest@127.0.0.1:{settings.port('rabbitmq')}/"


def write_nova(
    settings: stack_settings.Settings,
    process: str,
    hosts: int,
    *,
    plugin: bool,
    limit: int = 1000,
    more: Mapping[str, str] | None = None,
    host: str | None = None,
    transport_url: str = "fake://",
) -> pathlib.Path:
    """Write a process's nova.conf for a size and return its path.

    :param process: SCHEDULER, CONDUCTOR or MANAGE, which is its MariaDB user as well
    :param more: options of the plugin's own section
    :param host: its name among several of a kind
    """
    host = host or f"bench-{process}"
    name = f"{host.removeprefix('bench-')}-{hosts}-{'plugin' if plugin else 'stock'}"
    state = settings.state / "nova" / name
    (state / "lock").mkdir(parents=True, exist_ok=True)
    main = "nova_cell1" if process == CONDUCTOR else "nova_cell0"
    placement = settings.url("placement")
    sections: Sections = {
        "DEFAULT": {
            "host": host,
            "my_ip": "127.0.0.1",
            "log_file": str(settings.log / f"nova-{host.removeprefix('bench-')}.log"),
            "transport_url": transport_url,
            "state_path": str(state),
            "service_down_time": str(SERVICE_DOWN_SECONDS),
            "use_stderr": "false",
        },
        "oslo_concurrency": {"lock_path": str(state / "lock")},
        "api_database": {
            "connection": database_url(settings, process, database("nova_api", hosts))
        },
        "database": {
            "connection": database_url(settings, process, database(main, hosts)),
            "max_pool_size": "20",
        },
        "placement": {
            "auth_type": "admin_token",
            "endpoint": placement,
            "endpoint_override": placement,
            "token": "admin",
        },
        "scheduler": {
            "workers": "1",
            "max_placement_results": str(limit),
            "discover_hosts_in_cells_interval": "-1",
        },
    }
    if plugin:
        _switch_on(settings, sections, process, hosts)
        sections["nodb_scheduler"].update(more or {})
    path = settings.etc / "nova" / name / "nova.conf"
    _write(path, sections)
    return path


def _switch_on(
    settings: stack_settings.Settings, sections: Sections, process: str, hosts: int
) -> None:
    sections["DEFAULT"]["scheduler_driver"] = "nodb_scheduler"
    sections["DEFAULT"]["scheduler_host_manager"] = "nodb_host_manager"
    sections["oslo_messaging_notifications"] = {"driver": "nodb_scheduler"}
    sections["nodb_scheduler"] = {"synchronizer": "sqlalchemy"}
    sections["nodb_sqlalchemy"] = {
        "connection": database_url(settings, f"{process}_store", database("store", hosts))
    }


def _write(path: pathlib.Path, sections: Sections) -> None:
    parser = configparser.RawConfigParser()
    parser.read_dict(sections)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as output:
        parser.write(output)
