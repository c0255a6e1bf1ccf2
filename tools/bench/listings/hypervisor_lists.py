# SPDX-License-Identifier: Apache-2.0
"""What GET /os-hypervisors costs nova-api: from Nova's table, and from records.

Run with ``python -m tools.bench.listings.hypervisor_lists [HOSTS]``. Nova's own API code, in this
process and without a bus, Keystone or a WSGI server, on a MariaDB with a host mapping, a service
and a compute node for each host; the back end is a database of its own on the same server. Stock
first, then the same requests while records answer. Times are wall clock, the median.
"""

import json
import pathlib
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import nova.conf
import sqlalchemy as sa
from nova import config as nova_config
from nova import context as nova_context
from nova import objects
from nova.api.openstack import wsgi as nova_wsgi
from nova.api.openstack.compute import routes
from nova.db.api import models as api_models
from nova.db.main import models as main_models
from rich import box
from rich import console as rich_console
from rich import table as rich_table

from nova_nodb_scheduler.conf import nodb
from nova_nodb_scheduler.nova_adapter.compute_nodes import text_comparison
from nova_nodb_scheduler.nova_adapter.compute_nodes.serving import node_serving
from nova_nodb_scheduler.nova_adapter.reporting import scopes
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as sql_driver
from nova_nodb_scheduler.testing import servers

CELL = "11111111-1111-4111-8111-111111111111"
#: One kind of request is repeated for so long, and often enough for a median.
_SECONDS = 8.0
_LEAST = 3
_PAGE = 1000


def fill(hosts: int, api_url: str, cell_url: str) -> None:
    """Make those of Nova's tables that such requests read, with the rows of that many hosts."""
    api, cell = sa.create_engine(api_url), sa.create_engine(cell_url)
    mapped = [model.__table__ for model in (api_models.CellMapping, api_models.HostMapping)]
    api_models.BASE.metadata.create_all(api, tables=mapped)
    # Devices are looked at on the way to records.
    kinds = (main_models.Service, main_models.ComputeNode, main_models.PciDevice)
    read = [model.__table__ for model in kinds]
    main_models.BASE.metadata.create_all(cell, tables=read)
    mapping = {"id": 1, "uuid": CELL, "name": "cell1", "transport_url": "fake://"}
    now = sa.func.now()
    rows = range(1, hosts + 1)
    with api.begin() as connection:
        _insert(connection, api_models.CellMapping, [mapping | {"database_connection": cell_url}])
        _insert(
            connection, api_models.HostMapping, ({"cell_id": 1, "host": f"host{n}"} for n in rows)
        )
    service = {"binary": "nova-compute", "topic": "compute", "report_count": 1, "version": 70}
    with cell.begin() as connection:
        _insert(
            connection,
            main_models.Service,
            ({**service, "host": f"host{n}", "uuid": _uuid(n, "f")} for n in rows),
        )
        _insert(connection, main_models.ComputeNode, map(_node, rows))
        connection.execute(sa.update(main_models.Service).values(last_seen_up=now))
    for engine in (api, cell):
        engine.dispose()


def _insert(connection: sa.Connection, model: Any, rows: Iterable[Mapping[str, Any]]) -> None:
    connection.execute(sa.insert(model.__table__), [dict(row) for row in rows])


def _uuid(number: int, kind: str) -> str:
    return f"{number:08d}-{kind * 4}-4{kind * 3}-8{kind * 3}-{kind * 12}"


def _node(number: int) -> dict[str, Any]:
    ratios = {f"{kind}_allocation_ratio": 1.5 for kind in ("cpu", "ram", "disk")}
    return {
        **ratios,
        "uuid": _uuid(number, "a"),
        "host": f"host{number}",
        "hypervisor_hostname": f"host{number}.example.org",
        "hypervisor_type": "QEMU",
        "hypervisor_version": 8002000,
        "vcpus": 64,
        "vcpus_used": number % 64,
        "memory_mb": 262144,
        "memory_mb_used": 1024 * (number % 256),
        "free_ram_mb": 262144 - 1024 * (number % 256),
        "local_gb": 2000,
        "local_gb_used": 10,
        "free_disk_gb": 1990,
        "running_vms": number % 40,
        "current_workload": 0,
        "host_ip": "10.0.0.1",
        "cpu_info": json.dumps({"arch": "x86_64", "features": [f"f{n}" for n in range(60)]}),
        "numa_topology": json.dumps({"cells": [{"id": n, "cpuset": [n]} for n in range(2)]}),
        "stats": json.dumps({"num_instances": str(number % 40)}),
    }


def configure(directory: pathlib.Path, api_url: str, cell_url: str) -> None:
    """Have Nova in this process work on these databases."""
    path = directory / "nova.conf"
    path.write_text(
        f"[DEFAULT]\ntransport_url = fake://\nhost = here\nstate_path = {directory}\n"
        # Nobody sends heartbeats here.
        "service_down_time = 86400\n"
        f"[api]\nmax_limit = {_PAGE}\n"
        f"[database]\nconnection = {cell_url}\n[api_database]\nconnection = {api_url}\n"
        "[oslo_messaging_notifications]\ndriver = noop\n"
    )
    nova_config.parse_args(["nova-api"], default_config_files=[str(path)])
    objects.register_all()
    nodb.register_opts(nova.conf.CONF)


class Asking:
    """A client of Nova's API code in this process."""

    def __init__(self) -> None:
        self._app = routes.APIRouterV21()

    def get(self, path: str) -> Any:
        """Return the answer's body; RuntimeError if it is no success."""
        request = nova_wsgi.Request.blank(path)
        # Statistics went with 2.88.
        request.headers["OpenStack-API-Version"] = "compute 2.87"
        context = nova_context.get_admin_context()
        context.project_id = context.user_id = "bench"
        context.roles = ["admin", "reader", "member"]
        request.environ["nova.context"] = context
        response = request.get_response(self._app)
        if response.status_int != 200:
            raise RuntimeError(f"{path}: {response.status} {response.text[:500]}")
        return response.json

    def median_seconds(self, path: str) -> tuple[float, Any]:
        """Return how long an answer takes, and what is answered."""
        answer = self.get(path)
        taken = []
        end = time.monotonic() + _SECONDS
        while len(taken) < _LEAST or time.monotonic() < end:
            begin = time.perf_counter()
            self.get(path)
            taken.append(time.perf_counter() - begin)
        return statistics.median(taken), answer


def requests(hosts: int) -> Mapping[str, str]:
    """Return the requests by name."""
    return {
        f"list, {min(hosts, _PAGE)}": f"/os-hypervisors?limit={_PAGE}",
        f"list in detail, {min(hosts, _PAGE)}": f"/os-hypervisors/detail?limit={_PAGE}",
        "show": f"/os-hypervisors/{_uuid(hosts // 2, 'a')}",
        "statistics (2.87)": "/os-hypervisors/statistics",
        "search for one": f"/os-hypervisors?hypervisor_hostname_pattern=host{hosts}.",
    }


def main(hosts: int = 1000) -> None:
    """Print a table."""
    with tempfile.TemporaryDirectory() as directory, servers.MariaDB() as api:
        with servers.MariaDB() as cell, servers.MariaDB() as store:
            _measure(hosts, pathlib.Path(directory), api.url, cell.url, store.url)


def _measure(
    hosts: int, directory: pathlib.Path, api_url: str, cell_url: str, store_url: str
) -> None:
    fill(hosts, api_url, cell_url)
    configure(directory, api_url, cell_url)
    asking = Asking()
    asked = requests(hosts)
    stock = {name: asking.median_seconds(path) for name, path in asked.items()}
    serving = node_serving.NodeServing(
        lambda: sql_driver.SQLAlchemySynchronizer(
            sql_driver.SQLOptions(store_url, auto_upgrade=True)
        ),
        scopes.Scopes(nova.conf.CONF),
        lambda: str(uuid.uuid4()),
    )
    serving.open()
    context = nova_context.get_admin_context()
    serving.transfer().to_store(context, CELL, text_comparison.MYSQL)
    serving.install()
    first_begin = time.perf_counter()
    asking.get(asked["show"])
    first_seconds = time.perf_counter() - first_begin
    ours = {name: asking.median_seconds(path) for name, path in asked.items()}
    serving.close()
    table = rich_table.Table(title=f"GET /os-hypervisors, {hosts:,} hosts", box=box.SIMPLE)
    for title in ("request", "table, ms", "records, ms", "times"):
        table.add_column(title, justify="left" if title == "request" else "right")
    for name in asked:
        (before, expected), (after, answered) = stock[name], ours[name]
        if expected != answered:
            raise RuntimeError(f"{asked[name]} is answered otherwise from records")
        table.add_row(name, f"{1000 * before:.1f}", f"{1000 * after:.1f}", f"{before / after:.2f}")
    terminal = rich_console.Console()
    terminal.print(table)
    terminal.print(f"first answer of a process, which reads all records: {first_seconds:.2f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
