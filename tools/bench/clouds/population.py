# SPDX-License-Identifier: Apache-2.0
"""Writes a made cluster into Nova's and Placement's tables, in one pass over the hosts."""

import contextlib
import datetime
import json
import pathlib
import tempfile
import types
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import pymysql

from tools.bench.clouds import cluster as cluster_module
from tools.bench.clouds import nova_values
from tools.bench.control_plane import configuration
from tools.stack import settings as stack_settings

_DOWN_FOR = datetime.timedelta(days=3650)
_ANALYZED = (
    ("nova_cell1", ("services", "compute_nodes", "instances")),
    ("nova_api", ("host_mappings", "aggregate_hosts")),
    (
        "placement",
        (
            *("resource_providers", "inventories", "allocations", "consumers"),
            *("resource_provider_traits", "resource_provider_aggregates"),
        ),
    ),
)


class _Table:
    """Rows on their way into one table, through a file."""

    def __init__(self, name: str, columns: str, directory: pathlib.Path) -> None:
        self.name = name
        self._columns = columns.split()
        self.path = directory / f"{name}.tsv"
        self._file: TextIO = self.path.open("w", encoding="utf8")

    def add(self, *values: object) -> None:
        """Append a row; None is NULL."""
        self._file.write("\t".join(map(_text, values)) + "\n")

    def load(self, cursor: Any) -> None:
        """Have MariaDB read the file."""
        self._file.close()
        columns = ", ".join(f"`{name}`" for name in self._columns)
        cursor.execute(
            f"LOAD DATA LOCAL INFILE '{self.path}' INTO TABLE {self.name}"
            f" CHARACTER SET utf8mb4 FIELDS TERMINATED BY '\\t' ({columns})"
        )
        self.path.unlink()


class Populator:
    """Fills one size's databases, which exist and are empty.

    :param progress: told the number of hosts written so far
    """

    def __init__(
        self,
        settings: stack_settings.Settings,
        cluster: cluster_module.Cluster,
        progress: Callable[[int], None],
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._progress = progress
        now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None, microsecond=0)
        self._now = str(now)
        self._down_since = str(now - _DOWN_FOR)
        self._values = nova_values.NovaValues()

    def run(self) -> None:
        """Write everything. Placement must have written its trait names before."""
        with (
            tempfile.TemporaryDirectory(dir=self._settings.run) as directory,
            contextlib.closing(self._connect()) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SET SESSION foreign_key_checks = 0, unique_checks = 0")
            tables = self._tables(pathlib.Path(directory))
            traits = self._trait_ids(cursor)
            cell = self._cell_id(cursor)
            for host in self._cluster.hosts():
                self._write_nova(tables, host, cell)
                self._write_placement(tables, host, traits)
                if host.number % 200 == 0:
                    self._progress(host.number)
            self._write_aggregates(tables)
            for table in vars(tables).values():
                table.load(cursor)
                connection.commit()
            self._analyze(cursor)
        self._progress(self._cluster.size)

    def _connect(self) -> Any:
        return pymysql.connect(
            unix_socket=str(self._settings.mariadb_socket),
            user="root",
            charset="utf8mb4",
            local_infile=True,
        )

    def _database(self, name: str) -> str:
        return configuration.database(name, self._cluster.size)

    def _tables(self, directory: pathlib.Path) -> types.SimpleNamespace:
        def table(database: str, name: str, columns: str) -> _Table:
            return _Table(f"{self._database(database)}.{name}", columns, directory)

        return types.SimpleNamespace(
            services=table(
                "nova_cell1",
                "services",
                "uuid host binary topic report_count disabled forced_down last_seen_up"
                " version created_at updated_at deleted",
            ),
            nodes=table(
                "nova_cell1",
                "compute_nodes",
                "uuid host hypervisor_hostname vcpus memory_mb local_gb vcpus_used memory_mb_used"
                " local_gb_used free_ram_mb free_disk_gb disk_available_least running_vms"
                " current_workload hypervisor_type hypervisor_version cpu_info host_ip"
                " supported_instances metrics pci_stats stats numa_topology ram_allocation_ratio"
                " cpu_allocation_ratio disk_allocation_ratio mapped created_at updated_at deleted",
            ),
            instances=table(
                "nova_cell1",
                "instances",
                "id uuid host node project_id user_id memory_mb vcpus root_gb ephemeral_gb"
                " vm_state power_state hostname display_name instance_type_id compute_id hidden"
                " availability_zone created_at updated_at deleted",
            ),
            host_mappings=table("nova_api", "host_mappings", "cell_id host created_at"),
            aggregates=table("nova_api", "aggregates", "id uuid name created_at"),
            aggregate_hosts=table("nova_api", "aggregate_hosts", "host aggregate_id created_at"),
            aggregate_metadata=table(
                "nova_api", "aggregate_metadata", "aggregate_id key value created_at"
            ),
            providers=table(
                "placement",
                "resource_providers",
                "id uuid name generation root_provider_id created_at",
            ),
            inventories=table(
                "placement",
                "inventories",
                "resource_provider_id resource_class_id total reserved min_unit max_unit"
                " step_size allocation_ratio created_at",
            ),
            provider_traits=table(
                "placement", "resource_provider_traits", "resource_provider_id trait_id created_at"
            ),
            projects=table("placement", "projects", "id external_id created_at"),
            users=table("placement", "users", "id external_id created_at"),
            consumers=table(
                "placement", "consumers", "id uuid project_id user_id generation created_at"
            ),
            allocations=table(
                "placement",
                "allocations",
                "resource_provider_id consumer_id resource_class_id used created_at",
            ),
            placement_aggregates=table("placement", "placement_aggregates", "id uuid created_at"),
            provider_aggregates=table(
                "placement",
                "resource_provider_aggregates",
                "resource_provider_id aggregate_id created_at",
            ),
        )

    def _trait_ids(self, cursor: Any) -> dict[str, int]:
        cursor.execute(f"SELECT name, id FROM {self._database('placement')}.traits")  # noqa: S608
        found = dict(cursor.fetchall())
        wanted = {*cluster_module.TRAITS, cluster_module.AVX512, cluster_module.DISABLED_TRAIT}
        unknown = sorted(wanted - found.keys())
        if unknown:
            raise RuntimeError(f"Placement does not know the traits {', '.join(unknown)}")
        return found

    def _cell_id(self, cursor: Any) -> int:
        cursor.execute(
            f"SELECT id FROM {self._database('nova_api')}.cell_mappings"  # noqa: S608
            " WHERE name = 'cell1'"
        )
        return int(cursor.fetchone()[0])

    def _write_nova(
        self, tables: types.SimpleNamespace, host: cluster_module.Host, cell: int
    ) -> None:
        now, count = self._now, len(host.instances)
        seen = self._down_since if host.is_down else now
        tables.services.add(
            *(host.service_uuid, host.name, "nova-compute", "compute", host.report_count),
            *(int(host.is_disabled), 0, seen, self._values.service_version, now, seen, 0),
        )
        memory_used_mb = host.memory_mb_used + cluster_module.RESERVED_MEMORY_MB
        disk_free_gb = host.disk_gb - host.disk_gb_used
        tables.nodes.add(
            *(host.node_uuid, host.name, host.name, host.vcpus, host.memory_mb, host.disk_gb),
            *(host.vcpus_used, memory_used_mb, host.disk_gb_used),
            *(host.memory_mb - memory_used_mb, disk_free_gb, disk_free_gb, count, 0),
            *("QEMU", 7_002_000, nova_values.CPU_INFO, _address(host.number)),
            *(nova_values.SUPPORTED_INSTANCES, "[]", self._values.no_pci_pools),
            *(_stats(count), self._values.numa_topology(host.vcpus, host.memory_mb)),
            *(1.0, cluster_module.CPU_RATIO, 1.0, 1, now, now, 0),
        )
        tables.host_mappings.add(cell, host.name, now)
        for each in host.instances:
            name, project = f"server-{each.number}", _project(each.project)
            tables.instances.add(
                *(each.number, each.uuid, host.name, host.name, project, project),
                *(each.memory_mb, each.vcpus, each.disk_gb, 0, "active", 1, name, name, 1),
                *(host.number, 0, cluster_module.zone(host.number), now, now, 0),
            )

    def _write_placement(
        self, tables: types.SimpleNamespace, host: cluster_module.Host, traits: dict[str, int]
    ) -> None:
        now, provider = self._now, host.number
        generation = 1 + 2 * len(host.instances)
        tables.providers.add(provider, host.node_uuid, host.name, generation, provider, now)
        for kind, total, reserved, ratio in (
            (0, host.vcpus, 0, cluster_module.CPU_RATIO),
            (1, host.memory_mb, cluster_module.RESERVED_MEMORY_MB, 1.0),
            (2, host.disk_gb, 0, 1.0),
        ):
            tables.inventories.add(provider, kind, total, reserved, 1, total, 1, ratio, now)
        for trait in host.traits:
            tables.provider_traits.add(provider, traits[trait], now)
        for each in host.instances:
            tables.consumers.add(each.number, each.uuid, each.project, each.project, 1, now)
            for kind, used in ((0, each.vcpus), (1, each.memory_mb), (2, each.disk_gb)):
                tables.allocations.add(provider, each.uuid, kind, used, now)

    def _write_aggregates(self, tables: types.SimpleNamespace) -> None:
        now = self._now
        for number in range(1, 21):
            tables.projects.add(number, _project(number), now)
            tables.users.add(number, _project(number), now)
        for each in self._cluster.aggregates():
            tables.aggregates.add(each.number, each.uuid, each.name, now)
            tables.placement_aggregates.add(each.number, each.uuid, now)
            for key, value in each.metadata.items():
                tables.aggregate_metadata.add(each.number, key, value, now)
            for number in each.hosts:
                tables.aggregate_hosts.add(cluster_module.host_name(number), each.number, now)
                tables.provider_aggregates.add(number, each.number, now)

    def _analyze(self, cursor: Any) -> None:
        for database, names in _ANALYZED:
            for name in names:
                cursor.execute(f"ANALYZE TABLE {self._database(database)}.{name}")
                cursor.fetchall()


def _text(value: object) -> str:
    if value is None:
        return "\\N"
    return str(value).replace("\\", "\\\\").replace("\t", " ").replace("\n", " ")


def _project(number: int) -> str:
    return f"{number:032x}"


def _address(number: int) -> str:
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def _stats(instances: int) -> str:
    counted: Sequence[str] = ("num_instances", "num_vm_active", "num_task_None")
    return json.dumps(
        {"io_workload": "0", "failed_builds": "0", "num_os_type_linux": str(instances)}
        | dict.fromkeys(counted, str(instances))
    )
