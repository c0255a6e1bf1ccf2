# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage host list, host show and namespace list: what schedulers hold."""

from __future__ import annotations

import argparse
import contextlib
import datetime
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd import asking, cell_names, inventory, tables
from nova_nodb_scheduler.rpc import predicates
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.wire import objects

#: Longer values (NUMA topology, PCI pools, CPU information) are left to --json.
_SHOWN_CHARACTERS = 60


class _StoreCommand(asking.AskingCommand):
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
        self.services = inventory.Services(
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
        with self._explained(unanswered, args):
            return self.read(rpc, args)

    def read(self, rpc: Any, args: argparse.Namespace) -> int:
        """Read and print."""
        raise NotImplementedError

    def _cell(self, name: str, value: Any) -> str | None:
        """Return what a table shows of a value: a cell by its name."""
        return self.names.shown(value) if name == "cell" else _text(value)

    @contextlib.contextmanager
    def _explained(
        self, unanswered: tuple[type[Exception], ...], args: argparse.Namespace
    ) -> Iterator[None]:
        try:
            yield
        except errors.NoAnswerInTime as error:
            asked = f"scheduler {args.scheduler}" if args.scheduler else "any scheduler"
            raise errors.NoAnswer(asked, str(error)) from error
        except errors.NodbError:
            raise
        except unanswered as error:
            asked = f"scheduler {args.scheduler}" if args.scheduler else "any scheduler"
            raise errors.NoAnswer(asked, f"{type(error).__name__}: {error}") from error


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
            default=namespaces.COMPUTE_NODES.name,
            help="namespace to list; see 'namespace list' (default: %(default)s)",
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
        rows = [
            inventory.columns_of(state, namespace)
            for state in self.query(args.namespace, conditions(args.where, args.cell))
        ]
        hosts = namespace.name == namespaces.COMPUTE_NODES.name
        if hosts and rows:
            services = inventory.compute_services(self.query, self.services)
            for row in rows:
                row["service"] = services.get((str(row["cell"]), str(row["host"])))
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
        nodes = inventory.find_nodes(args.host, self.query, self.lookup)
        if not nodes:
            raise errors.ConfigurationError(
                "HOST", args.host, "the scheduler holds no such host; see 'host list'"
            )
        found = [inventory.describe(node, self.query, self.lookup, self.services) for node in nodes]
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
        found.append([column, operator, value.split(",") if operator == predicates.IN else value])
    return found


HOST_COLUMNS: tuple[str | tables.Column, ...] = (
    *("host", "cell", "vcpus", "memory MB", "disk GB", "servers", "service"),
    *tables.wide("node", "cell uuid", "uuid"),
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
