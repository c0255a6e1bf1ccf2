# SPDX-License-Identifier: Apache-2.0
"""What a stack consists of: directories, ports, numbers of processes. Kept in one JSON file."""

import importlib.metadata
import json
import os
import pathlib
import socket
from collections.abc import Iterator, Mapping

import attrs

PASSWORD = "loopback"
REGION = "RegionOne"

_FILE = "stack.json"
_PORT_NAMES = (
    "mariadb",
    "rabbitmq",
    "rabbitmq-distribution",
    "epmd",
    "memcached",
    "keystone",
    "placement",
    "glance",
    "neutron",
    "nova-api",
    "prometheus",
    "metrics",
    "conductor-metrics",
    "api-metrics",
)
_FIRST_PORT = 23000  # below Linux's ephemeral range, so that no client socket sits on it
_PORT_STEP = 20
_PORT_BLOCKS = 200


def default_state_directory() -> pathlib.Path:
    """The directory that is used when none is named: NOVA_NODB_STATE or below XDG_STATE_HOME."""
    named = os.environ.get("NOVA_NODB_STATE")
    if named:
        return pathlib.Path(named)
    parent = os.environ.get("XDG_STATE_HOME") or pathlib.Path.home() / ".local" / "state"
    return pathlib.Path(parent) / "nova-nodb-demo"


def _absolute(path: str | pathlib.Path) -> pathlib.Path:
    return pathlib.Path(path).absolute()


def installed_nova() -> int:
    """The release of the Nova that is installed where this runs; LookupError when none is."""
    try:
        version = importlib.metadata.version("nova")
    except importlib.metadata.PackageNotFoundError as error:
        raise LookupError("no Nova is installed here; use the environment of a stack") from error
    return int(version.partition(".")[0])


@attrs.frozen
class Settings:
    """One stack. Paths hang below ``state``; everything listens on 127.0.0.1."""

    state: pathlib.Path = attrs.field(converter=_absolute)
    venv: pathlib.Path = attrs.field(converter=_absolute)
    first_port: int
    nova: int = attrs.field(factory=installed_nova)
    """The release, 34 for 34.0.0."""
    cells: int = 2
    computes: int = 6
    schedulers: int = 2
    conductors_per_cell: int = 1
    api_workers: int = 2
    guarded_placement: bool = False
    """Placement's application is the one that keeps writers from over-committing."""
    plugin: bool = True
    stock_processes: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    """Processes which stay without the plugin's lines although ``plugin`` is true."""
    vcpus_per_host: int | None = None
    """None leaves the fake driver's 1000 VCPU a host (times 4)."""
    overrides: Mapping[str, Mapping[str, Mapping[str, str]]] = attrs.field(factory=dict)
    """process -> section -> option -> value, written over what is rendered (fault tests)."""

    def port(self, name: str) -> int:
        return self.first_port + _PORT_NAMES.index(name)

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.port(name)}"

    @property
    def etc(self) -> pathlib.Path:
        return self.state / "etc"

    @property
    def run(self) -> pathlib.Path:
        return self.state / "run"

    @property
    def log(self) -> pathlib.Path:
        return self.state / "log"

    @property
    def mariadb_socket(self) -> pathlib.Path:
        return self.run / "mysql.sock"

    def program(self, name: str) -> str:
        return str(self.venv / "bin" / name)

    @property
    def cell_names(self) -> tuple[str, ...]:
        return tuple(f"cell{i}" for i in range(1, self.cells + 1))

    @property
    def cell_databases(self) -> tuple[str, ...]:
        """Names of the cells' databases; cell0 is none of them."""
        return tuple(f"nova_{cell}" for cell in self.cell_names)

    @property
    def scheduler_names(self) -> tuple[str, ...]:
        return tuple(f"nova-scheduler-{i}" for i in range(1, self.schedulers + 1))

    def conductor_names(self, cell: str) -> tuple[str, ...]:
        return tuple(f"nova-conductor-{cell}-{i}" for i in range(1, self.conductors_per_cell + 1))

    @property
    def control_plane_names(self) -> tuple[str, ...]:
        """Every Nova process that reads the plugin's lines, in the order of a rolling switch."""
        cells = [name for cell in self.cell_names for name in self.conductor_names(cell)]
        return ("nova-super-conductor", *cells, "nova-api", *self.scheduler_names)

    def compute_cells(self) -> Iterator[tuple[str, str, str]]:
        """(process, host, cell) of each nova-compute; hosts are dealt out to cells in blocks."""
        for i in range(self.computes):
            cell = self.cell_names[i * self.cells // self.computes]
            yield f"nova-compute-{i + 1}", f"host{i + 1}", cell

    @property
    def compute_names(self) -> tuple[str, ...]:
        return tuple(name for name, _host, _cell in self.compute_cells())

    def host_of(self, process: str) -> str:
        """The ``[DEFAULT] host`` of a Nova process."""
        if process.startswith("nova-compute-"):
            return process.replace("nova-compute-", "host")
        if process.startswith("nova-scheduler-"):
            return process.replace("nova-scheduler-", "sched")
        return process.removeprefix("nova-")

    def uses_plugin(self, process: str) -> bool:
        return self.plugin and process not in self.stock_processes

    def save(self) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        values = attrs.asdict(self, value_serializer=_plain)
        (self.state / _FILE).write_text(json.dumps(values, indent=1) + "\n")


def load(state: pathlib.Path) -> Settings:
    """The settings of the stack in ``state``; FileNotFoundError when there is none."""
    try:
        values = json.loads((state / _FILE).read_text())
    except FileNotFoundError as error:
        raise FileNotFoundError(f"no stack in {state}; make one with 'up'") from error
    return Settings(**values)


def free_first_port() -> int:
    """The first block of ports nobody listens on."""
    for block in range(_PORT_BLOCKS):
        first = _FIRST_PORT + block * _PORT_STEP
        if all(_is_free(first + i) for i in range(len(_PORT_NAMES))):
            return first
    raise RuntimeError("no free block of ports on 127.0.0.1; end what listens there")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _plain(_owner: object, _field: object, value: object) -> object:
    return str(value) if isinstance(value, pathlib.Path) else value
