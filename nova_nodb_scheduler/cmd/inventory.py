# SPDX-License-Identifier: Apache-2.0
"""Reads hosts and what belongs to them from a scheduler, as plain values."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from nova_nodb_scheduler.model import namespaces as model
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.wire import objects

#: Reads all records of a namespace that fulfil a predicate.
Query = Callable[[str, Sequence[Sequence[Any]]], Iterator[objects.HostState]]
#: Reads some records of a namespace by key.
Lookup = Callable[[str, Collection[str]], Sequence[objects.HostState]]

#: What is shown of an instance.
_INSTANCE_FIELDS = ("project_id", "vm_state", "task_state", "vcpus", "memory_mb")


def columns_of(state: objects.HostState, namespace: model.Namespace) -> dict[str, Any]:
    """Return a record's key and the values of its declared columns."""
    return {
        "key": state.key,
        **{column.name: _value(state.state, column) for column in namespace.columns},
    }


def _value(state: Mapping[str, Any], column: model.Column) -> Any:
    value = model.value_at(state, column.path)
    return column.default if value is None else value


class Services:
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


def compute_services(query: Query, services: Services) -> dict[tuple[str, str], dict[str, Any]]:
    """Return all compute services by cell and host."""
    liveness = {state.key: state.state for state in query(namespaces.SERVICE_LIVENESS.name, [])}
    found = {}
    for state in query(namespaces.SERVICES.name, [["binary", "==", "nova-compute"]]):
        described = services.state(state.state, liveness.get(state.key))
        found[str(described["cell"]), str(described["host"])] = described
    return found


def find_nodes(name: str, query: Query, lookup: Lookup) -> list[objects.HostState]:
    """Find compute nodes by uuid, host name or hypervisor host name."""
    table = namespaces.COMPUTE_NODES.name
    found = list(lookup(table, [name]))
    for column in ("host", "hypervisor_hostname"):
        if not found:
            found = list(query(table, [[column, "==", name]]))
    return found


def describe(
    node: objects.HostState, query: Query, lookup: Lookup, services: Services
) -> dict[str, Any]:
    """Return a compute node with everything that belongs to it."""
    state = node.state
    host, cell = str(state["row"].get("host")), str(state.get("cell"))
    here = [["cell", "==", cell], ["host", "==", host]]
    its_services = list(query(namespaces.SERVICES.name, here))
    liveness = {
        each.key: each.state
        for each in lookup(namespaces.SERVICE_LIVENESS.name, [each.key for each in its_services])
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
            for each in query(namespaces.INSTANCES.name, here)
        ],
        "aggregates": [
            {
                "uuid": each.key,
                "name": each.state["row"].get("name"),
                "metadata": each.state["row"].get("metadata"),
            }
            for each in query(namespaces.AGGREGATES.name, [["hosts", "==", host]])
        ],
        "claims": [each.state for each in lookup(namespaces.CLAIM_RECORDS.name, [node.key])],
    }
