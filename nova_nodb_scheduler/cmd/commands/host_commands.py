# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage host list, host show and namespace list: what schedulers hold."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd.framework import bus_calls, terminal
from nova_nodb_scheduler.cmd.overview import cell_names
from nova_nodb_scheduler.model import namespaces as model
from nova_nodb_scheduler.rpc import record_queries
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.wire import objects

#: Reads all records of a namespace that fulfil a predicate.
Query = Callable[[str, Sequence[Sequence[Any]]], Iterator[objects.HostState]]
#: Reads some records of a namespace by key.
Lookup = Callable[[str, Collection[str]], Sequence[objects.HostState]]

_SERVICES, _LIVENESS = known_namespaces.SERVICES.name, known_namespaces.SERVICE_LIVENESS.name

#: What is shown of an instance.
_INSTANCE_FIELDS = ("project_id", "vm_state", "task_state", "vcpus", "memory_mb")


def columns_of(key: str, state: Mapping[str, Any], namespace: model.Namespace) -> dict[str, Any]:
    """Return a record's key and the values of its declared columns."""
    return {"key": key, **{column.name: _value(state, column) for column in namespace.columns}}


def _value(state: Mapping[str, Any], column: model.Column) -> Any:
    value = model.value_at(state, column.path)
    return column.default if value is None else value


class ServiceStates:
    """Which services are up, as Nova's servicegroup driver ``db`` says.

    :param now: naive, UTC
    """

    def __init__(self, down_seconds: float, now: datetime.datetime) -> None:
        self._down_seconds = down_seconds
        self._now = now

    def state(
        self, service: Mapping[str, Any], liveness: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Describe a service by its record and its liveness record."""
        row = service["row"]
        seen = (liveness or {}).get("last_seen_up") or row.get("created_at")
        return {
            "binary": row.get("binary"),
            "host": row.get("host"),
            "cell": service.get("cell"),
            "up": not row.get("forced_down") and self._is_recent(seen),
            "disabled": bool(row.get("disabled")),
            "disabled_reason": row.get("disabled_reason"),
            "forced_down": bool(row.get("forced_down")),
            "version": row.get("version"),
            "last_seen_up": seen,
            "report_count": (liveness or {}).get("report_count"),
            "unreported_heartbeats": (liveness or {}).get("unreported"),
        }

    def _is_recent(self, seen: str | None) -> bool:
        if not seen:
            return False
        elapsed = self._now - datetime.datetime.fromisoformat(seen).replace(tzinfo=None)
        return abs(elapsed.total_seconds()) <= self._down_seconds


@attrs.define
class ListedHosts:
    """All hosts of a query, each as a row with its compute service.

    :param unproved: by cell, why its hosts may be missing or old
    :param unreadable: uuids of those that are missing or old for certain
    """

    rows: list[dict[str, Any]]
    unproved: dict[str, str]
    unreadable: set[str] = attrs.field(factory=set)


def list_hosts(rpc: Any, context: Any, services: ServiceStates, **query: Any) -> ListedHosts:
    """Read all pages of hosts, proved or not.

    :param query: arguments of the client's ``list_host_states``
    """
    found = ListedHosts([], {})
    marker = None
    while True:
        page = rpc.list_host_states(
            context,
            namespaces=(_SERVICES, _LIVENESS),
            marker=marker,
            unproved=True,
            **query,
        )
        found.unproved |= {each.scope: each.reason for each in page.scopes if not each.proved}
        found.unreadable.update(page.unreadable)
        for host in page.hosts:
            row = columns_of(host.uuid, host.state, known_namespaces.COMPUTE_NODES)
            row["service"] = _compute_service(host, services)
            found.rows.append(row)
        marker = page.next_marker
        if marker is None:
            return found


def list_records(query: Query, services: ServiceStates, predicate: list[Any]) -> ListedHosts:
    """Read all hosts of a scheduler of an older release, in the same order.

    It does not tell what is not proved.
    """
    liveness = {each.key: each.state for each in query(_LIVENESS, [])}
    computes = {}
    for each in query(_SERVICES, [["binary", "==", "nova-compute"]]):
        described = services.state(each.state, liveness.get(each.key))
        computes[str(described["cell"]), str(described["host"])] = described
    nodes = known_namespaces.COMPUTE_NODES
    rows = [columns_of(each.key, each.state, nodes) for each in query(nodes.name, predicate)]
    for row in rows:
        row["service"] = computes.get((str(row["cell"]), str(row["host"])))
    return ListedHosts(sorted(rows, key=lambda row: (row["cell"], row["id"], row["key"])), {})


def _compute_service(host: objects.ListedHost, services: ServiceStates) -> dict[str, Any] | None:
    liveness = {each.key: each.state for each in host.related if each.namespace == _LIVENESS}
    for each in host.related:
        if each.namespace == _SERVICES:
            return services.state(each.state, liveness.get(each.key))
    return None


def find_nodes(name: str, query: Query, lookup: Lookup) -> list[objects.HostState]:
    """Find compute nodes by uuid, host name or hypervisor host name."""
    table = known_namespaces.COMPUTE_NODES.name
    found = list(lookup(table, [name]))
    for column in ("host", "hypervisor_hostname"):
        if not found:
            found = list(query(table, [[column, "==", name]]))
    return found


def describe(
    node: objects.HostState, query: Query, lookup: Lookup, services: ServiceStates
) -> dict[str, Any]:
    """Return a compute node with everything that belongs to it."""
    state = node.state
    host, cell = str(state["row"].get("host")), str(state.get("cell"))
    here = [["cell", "==", cell], ["host", "==", host]]
    its_services = list(query(known_namespaces.SERVICES.name, here))
    liveness = {
        each.key: each.state
        for each in lookup(
            known_namespaces.SERVICE_LIVENESS.name, [each.key for each in its_services]
        )
    }
    return {
        "uuid": node.key,
        "cell": cell,
        "host": host,
        "node": state["row"].get("hypervisor_hostname"),
        "revision": node.revision,
        "version": node.version,
        "object_version": state.get("object_version"),
        "row": dict(state["row"]),
        "services": [
            {"uuid": each.key, **services.state(each.state, liveness.get(each.key))}
            for each in its_services
        ],
        "instances": [
            {
                # Of an instance in two cells each cell's row is a record.
                "uuid": each.key.partition("@")[0],
                "node": each.state["row"].get("node"),
                **{name: each.state["row"].get(name) for name in _INSTANCE_FIELDS},
            }
            for each in query(known_namespaces.INSTANCES.name, here)
        ],
        "aggregates": [
            {
                "uuid": each.key,
                "name": each.state["row"].get("name"),
                "metadata": each.state["row"].get("metadata"),
            }
            for each in query(known_namespaces.AGGREGATES.name, [["hosts", "==", host]])
        ],
        "claims": [each.state for each in lookup(known_namespaces.CLAIM_RECORDS.name, [node.key])],
    }


#: Longer values (NUMA topology, PCI pools, CPU information) are left to --json.
_SHOWN_CHARACTERS = 60


class _StoreCommand(bus_calls.AskingCommand):
    """A command that reads one scheduler's store; the exit status is 3 when none answers."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add ``--scheduler``."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--scheduler",
            metavar="HOST",
            help="ask this scheduler host (default: whichever answers first)",
        )
        return parser

    def execute(self, args: argparse.Namespace) -> int:
        """Connect, and let the subclass read and print."""
        plugin = self.plugin()
        self.names = cell_names.read(plugin)
        rpc, unanswered = self.client(plugin, args)
        self.declared = {namespace.name: namespace for namespace in plugin.declared}
        self.services = ServiceStates(
            plugin.conf.service_down_time,
            datetime.datetime.now(datetime.UTC).replace(tzinfo=None),
        )

        def query(
            namespace: str, predicate: Sequence[Sequence[Any]]
        ) -> Iterator[objects.HostState]:
            yield from rpc.iterate_host_states(
                self.context(), namespace, predicate, server=args.scheduler
            )

        def lookup(namespace: str, keys: Collection[str]) -> Sequence[objects.HostState]:
            page = rpc.get_host_states(self.context(), namespace, keys=keys, server=args.scheduler)
            found: Sequence[objects.HostState] = page.states
            return found

        self.query, self.lookup = query, lookup
        with self.answered(unanswered, args.scheduler):
            return self.read(rpc, args)

    def read(self, rpc: Any, args: argparse.Namespace) -> int:
        """Read and print."""
        raise NotImplementedError

    def _cell(self, name: str, value: Any) -> str | None:
        """Return what a table shows of a value: a cell by its name."""
        return self.names.shown(value) if name == "cell" else _text(value)


class HostList(_StoreCommand):
    """List hosts, or the records of another namespace, as a scheduler holds them.

    Example: host list --where free_ram_mb '>=' 4096 --where host in host1,host2
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the choice of records."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--cell", metavar="UUID", help="only records of this cell")
        parser.add_argument(
            "--namespace",
            default=known_namespaces.COMPUTE_NODES.name,
            help="namespace to list; see 'namespace list' (default: %(default)s)",
        )
        parser.add_argument(
            "--search",
            metavar="TEXT",
            help="only hosts with this in their hypervisor's name; %% and _ are wildcards",
        )
        parser.add_argument(
            "--where",
            action="append",
            nargs=3,
            default=[],
            metavar=("COLUMN", "OPERATOR", "VALUE"),
            help="only records that fulfil a condition on a column, such as: vcpus_used < 8. "
            "Operators: == != < <= > >= in (values separated by commas). May be given several "
            "times: all must hold",
        )
        return parser

    def read(self, rpc: Any, args: argparse.Namespace) -> int:
        """List."""
        namespace = self.declared.get(args.namespace)
        if namespace is None:
            raise errors.UnknownNamespace(args.namespace, ", ".join(sorted(self.declared)))
        hosts = namespace.name == known_namespaces.COMPUTE_NODES.name
        if hosts:
            rows = self._hosts(rpc, args)
        elif args.search is not None:
            raise errors.ConfigurationError(
                "--search", args.search, "only hosts are searched; use --where"
            )
        else:
            rows = [
                columns_of(each.key, each.state, namespace)
                for each in self.query(args.namespace, conditions(args.where, args.cell))
            ]
        if args.json:
            self.print_json([self._named(row) for row in rows])
        elif hosts:
            self.print_line(hosts_verdict(rows))
            self.print_table("Hosts", HOST_COLUMNS, (host_row(row, self.names) for row in rows))
        else:
            self.print_line(f"{len(rows)} records of namespace {namespace.name}.")
            names = ("key", *(column.name for column in namespace.columns))
            self.print_table(
                f"Namespace {namespace.name}",
                names,
                ([self._cell(name, row[name]) for name in names] for row in rows),
            )
        return 0

    def _hosts(self, rpc: Any, args: argparse.Namespace) -> list[dict[str, Any]]:
        try:
            found = list_hosts(
                rpc,
                self.context(),
                self.services,
                cell=args.cell,
                predicate=conditions(args.where, None),
                search=args.search,
                server=args.scheduler,
            )
        except errors.MethodNotServed as error:
            if args.search is not None:
                raise
            # Schedulers are upgraded last, and one after the other.
            print(f"What is not proved is not told. {error}", file=sys.stderr)
            found = list_records(self.query, self.services, conditions(args.where, args.cell))
        for cell, reason in sorted(found.unproved.items()):
            print(
                f"Cell {self.names.shown(cell)} is not proved ({reason}): "
                "its hosts may be missing or old.",
                file=sys.stderr,
            )
        listed = {row["key"] for row in found.rows}
        for key in sorted(found.unreadable):
            shown = "shown as it was before" if key in listed else "not shown"
            print(
                f"Compute node {key} is broken: its record cannot be read; {shown}.",
                file=sys.stderr,
            )
        return found.rows

    def _named(self, row: dict[str, Any]) -> dict[str, Any]:
        if "cell" not in row:
            return row
        return {**row, "cell_name": self.names.name(row["cell"])}


class HostShow(_StoreCommand):
    """Show a host with its services, instances, aggregates and claims."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the host."""
        parser = super().get_parser(prog_name)
        parser.add_argument("host", help="a host's name, its hypervisor's name or its node's uuid")
        return parser

    def read(self, rpc: Any, args: argparse.Namespace) -> int:
        """Find the host's nodes and show each."""
        nodes = find_nodes(args.host, self.query, self.lookup)
        if not nodes:
            raise errors.ConfigurationError(
                "HOST", args.host, "the scheduler holds no such host; see 'host list'"
            )
        found = [describe(node, self.query, self.lookup, self.services) for node in nodes]
        if args.json:
            self.print_json(
                [{**each, "cell_name": self.names.name(each["cell"])} for each in found]
            )
            return 0
        for each in found:
            self._show(each)
        return 0

    def _show(self, node: Mapping[str, Any]) -> None:
        cell = self.names.shown(node["cell"])
        compute = [each for each in node["services"] if each["binary"] == "nova-compute"]
        state = service_text(compute[0]) if compute else "without a compute service"
        self.print_line(
            f"Host {node['host']} in cell {cell}: {state}, {len(node['instances'])} servers."
        )
        facts = {name: node[name] for name in ("uuid", "cell", "host", "node", "revision")}
        facts["cell"] = f"{cell} ({node['cell']})" if self.wide else cell
        facts |= {
            name: value
            for name, value in sorted(node["row"].items())
            if name not in facts and len(_text(value)) <= _SHOWN_CHARACTERS
        }
        self.print_facts(f"Host {node['host']}", facts)
        for title in ("services", "instances", "aggregates", "claims"):
            rows = node[title]
            if not rows:
                self.print_line(f"\nNo {title}.")
                continue
            first = _SHOWN_FIRST.get(title, ())
            names = sorted(rows[0], key=lambda name: first.index(name) if name in first else 99)
            self.print_table(
                title.capitalize(),
                names,
                ([self._cell(n, row.get(n)) for n in names] for row in rows),
            )


#: What is told first of what belongs to a host; the rest where there is room.
_SHOWN_FIRST = {
    "services": ("binary", "up", "disabled", "disabled_reason", "forced_down", "last_seen_up"),
    "instances": ("uuid", "vm_state", "task_state", "vcpus", "memory_mb"),
}


class NamespaceList(_StoreCommand):
    """List the namespaces with their owners, columns and records."""

    def read(self, rpc: Any, args: argparse.Namespace) -> int:
        """List."""
        found = rpc.list_namespaces(self.context(), server=args.scheduler)
        if args.json:
            self.print_json([objects.plain(each) for each in found])
            return 0
        self.print_line(
            f"{len(found)} namespaces with {sum(each.records for each in found)} records."
        )
        self.print_table(
            "Namespaces",
            ("namespace", "owner", "schema", "records", "columns"),
            (
                (
                    each.name,
                    each.owner,
                    each.schema,
                    each.records,
                    ", ".join(f"{column.name} ({column.kind})" for column in each.columns),
                )
                for each in found
            ),
        )
        return 0


def conditions(where: Sequence[Sequence[str]], cell: str | None) -> list[list[Any]]:
    """Turn what was typed into a predicate; the server converts the texts."""
    found: list[list[Any]] = [["cell", "==", cell]] if cell is not None else []
    for column, operator, value in where:
        found.append(
            [column, operator, value.split(",") if operator == record_queries.IN else value]
        )
    return found


HOST_COLUMNS: tuple[str | terminal.TableColumn, ...] = (
    *("host", "cell", "vcpus", "memory MB", "disk GB", "servers", "service"),
    *terminal.wide("node", "cell uuid", "uuid"),
)


def hosts_verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say how many hosts there are, and how many of them can take servers."""
    counts = {"up": 0, "down": 0, "disabled": 0}
    for row in rows:
        service = row.get("service")
        up = service is not None and service["up"]
        counts["up" if up else "down"] += 1
        counts["disabled"] += bool(service and service["disabled"])
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"{len(rows)} hosts: {told}." if rows else "No hosts."


def host_row(row: Mapping[str, Any], names: cell_names.CellNames) -> tuple[Any, ...]:
    """Return a host's line of the table."""
    return (
        row["host"],
        names.shown(row["cell"]),
        f"{row['vcpus_used']} of {row['vcpus']}",
        f"{row['memory_mb_used']} of {row['memory_mb']}",
        f"{row['local_gb_used']} of {row['local_gb']}",
        row["running_vms"],
        service_text(row.get("service")),
        row["hypervisor_hostname"],
        row["cell"],
        row["key"],
    )


def service_text(service: Mapping[str, Any] | None) -> str:
    """Say in a few words how a compute service is."""
    if service is None:
        return "none"
    words = ["up" if service["up"] else "down"]
    words += ["forced down"] if service["forced_down"] else []
    words += ["disabled"] if service["disabled"] else []
    return ", ".join(words)


def _text(value: object) -> str:
    return "" if value is None else str(value)
