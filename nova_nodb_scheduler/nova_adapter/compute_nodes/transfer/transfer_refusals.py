# SPDX-License-Identifier: Apache-2.0
"""What keeps a cell's compute nodes from going there or back, found before anything changes.

Each refusal names the rows it is about and what an operator does about them first.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs
import sqlalchemy as sa
from nova.db.main import models
from oslo_utils import timeutils

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.compute_nodes import node_rows
from nova_nodb_scheduler.nova_adapter.reporting import nova_tables

_SERVICE = models.Service.__table__
_RATIOS = ("cpu_allocation_ratio", "ram_allocation_ratio", "disk_allocation_ratio")

#: Rows that a refusal names.
_MOST_NAMED = 5


@attrs.frozen
class Refusal:
    """One reason, and what to do first.

    :param reason: a sentence
    :param rows: what it is about, by name
    :param remedy: a sentence
    """

    reason: str
    rows: tuple[str, ...]
    remedy: str

    def __str__(self) -> str:
        named = "; ".join(self.rows[:_MOST_NAMED])
        more = len(self.rows) - _MOST_NAMED
        about = f" ({named}{f' and {more} more' if more > 0 else ''})" if named else ""
        return f"{self.reason}{about}. {self.remedy}"


class TransferRefused(errors.NodbError):
    """A cell's compute nodes cannot go there, or back; nothing was changed.

    :param cell: uuid of the cell
    :param refusals: as text
    """

    def __init__(self, cell: str, refusals: Sequence[str]) -> None:
        super().__init__(cell, refusals)
        self.cell, self.refusals = cell, refusals

    def __str__(self) -> str:
        told = " ".join(map(str, self.refusals))
        return f"The compute nodes of cell {self.cell} stay where they are: {told}"


def of_rows(rows: Iterable[node_rows.Row]) -> list[Refusal]:
    """Say which rows no record can stand for, or Nova would write when it reads them.

    Of most kinds deleted ones do no harm.
    """
    found: dict[str, list[str]] = {reason: [] for reason in _REMEDIES}
    for row in rows:
        for reason, (holds, _remedy) in _REMEDIES.items():
            if holds(row) and (node_rows.is_live(row) or reason in _OF_DELETED):
                found[reason].append(named(row))
    return [
        Refusal(reason, tuple(names), _REMEDIES[reason][1])
        for reason, names in found.items()
        if names
    ]


def named(row: node_rows.Row) -> str:
    """Return what an operator finds a row by."""
    return f"id {row['id']}: {row['hypervisor_hostname']} on {row['host']}"


def _is_legacy(row: node_rows.Row) -> bool:
    return bool(row["numa_topology"]) and "nova_object.name" not in row["numa_topology"]


_BELOW_ONE = "Compute nodes have an id below 1"

#: What deleted rows may not have either.
_OF_DELETED = frozenset({_BELOW_ONE})

_LONG_GONE = (
    "Nova has given each of its nodes one for many releases: the hosts of these are long gone. "
    "Soft-delete the rows in SQL (set deleted = id), or give them what they lack."
)

#: By what is wrong: what tells it, and what is to be done.
_REMEDIES: Mapping[str, tuple[Callable[[node_rows.Row], bool], str]] = {
    "Compute nodes have no uuid": (lambda row: row["uuid"] is None, _LONG_GONE),
    "Compute nodes have no host": (lambda row: row["host"] is None, _LONG_GONE),
    "Compute nodes have an allocation ratio of 0 or none": (
        lambda row: any(not row[name] for name in _RATIOS),
        "Run 'nova-manage db online_data_migrations' until it has nothing left to do.",
    ),
    "Compute nodes have a NUMA topology in a format of old": (
        _is_legacy,
        "Have Nova read them once, which converts them: 'openstack hypervisor list'.",
    ),
    "Compute nodes are neither live nor deleted, their deleted is NULL": (
        lambda row: row["deleted"] is None,
        "Nova finds no such row. Soft-delete them in SQL (set deleted = id), or set deleted = 0.",
    ),
    _BELOW_ONE: (
        lambda row: row["id"] < 1,
        "No database gives such an id. Delete the rows in SQL, or give them ids that are free.",
    ),
}


def of_devices(devices: Mapping[int, Sequence[int]], held: Collection[int]) -> list[Refusal]:
    """Say which devices name compute nodes that there are none of.

    :param devices: ids of devices by the id of their node
    :param held: ids of nodes, deleted ones too
    """
    orphans = tuple(
        f"pci_devices.id {device} names compute node {node}"
        for node, named_by in sorted(devices.items())
        if node not in held
        for device in named_by
    )
    if not orphans:
        return []
    return [
        Refusal(
            "Devices name compute nodes that are not there, and no foreign key can stand over them",
            orphans,
            "Delete those rows of pci_devices: what has no compute node belongs to no host. "
            "Soft-deleted ones go by 'nova-manage db archive_deleted_rows'.",
        )
    ]


def of_keys(others: Sequence[str]) -> list[Refusal]:
    """Say which foreign keys keep the table from being emptied.

    :param others: that point at it, beside Nova's own, by name
    """
    if not others:
        return []
    return [
        Refusal(
            "Foreign keys of your own point at compute_nodes",
            tuple(others),
            "Drop them: no row that they name can go from the table. They may come back with it.",
        )
    ]


def of_records(unreadable: Collection[str]) -> list[Refusal]:
    """Say which records cannot be read.

    :param unreadable: their keys
    """
    if not unreadable:
        return []
    return [
        Refusal(
            "Records of compute nodes cannot be read",
            tuple(sorted(unreadable)),
            "Run this command with the release of the plugin that wrote them.",
        )
    ]


def of_ids(rows: Iterable[node_rows.Row]) -> list[Refusal]:
    """Say which rows have an id of another one."""
    by_id: dict[int, list[node_rows.Row]] = {}
    for row in rows:
        by_id.setdefault(int(row["id"]), []).append(row)
    twice = [named(row) for _id, same in sorted(by_id.items()) if len(same) > 1 for row in same]
    if not twice:
        return []
    return [
        Refusal(
            "Compute nodes share an id",
            tuple(twice),
            "Delete the one that is not in use with 'openstack compute service delete', and "
            "archive it with 'nova-manage db archive_deleted_rows'.",
        )
    ]


def of_unheld(rows: Iterable[node_rows.Row], held: Mapping[int, str | None]) -> list[Refusal]:
    """Say which rows of a table that counts no more are in no record.

    :param held: uuids of the nodes in records, by their ids
    """
    unheld = tuple(
        named(row)
        for row in rows
        if row["id"] not in held or (row["uuid"] or None) != held[row["id"]]
    )
    if not unheld:
        return []
    return [
        Refusal(
            "The table has rows that no record holds: a service without the plugin wrote them "
            "while records counted",
            unheld,
            "Stop that service. Delete those rows, or the servers on them are known under two "
            "compute nodes; nova-compute makes its node anew where it has none.",
        )
    ]


def of_younger(
    rows: Iterable[node_rows.Row], others: Iterable[node_rows.Row], refusal: Refusal
) -> list[Refusal]:
    """Say which rows of a table were written later than what shall stand in their place.

    :param others: what shall stand there
    :param refusal: of such rows
    """
    moments = {row["id"]: _written_at(row) for row in others}
    younger = tuple(
        named(row) for row in rows if row["id"] in moments and _written_at(row) > moments[row["id"]]
    )
    return [attrs.evolve(refusal, rows=younger)] if younger else []


def _written_at(row: node_rows.Row) -> list[datetime.datetime]:
    """Return the moment when a row was written last; empty if it does not tell."""
    return sorted(row[name] for name in node_rows.DATE_TIMES if row[name] is not None)[-1:]


def of_services(context: Any, silent_seconds: float) -> list[Refusal]:
    """Say which services of a cell live by its table: those that have the database open.

    nova-compute has not, and waits for its conductor. An API sends no heartbeats; those with
    the plugin report to the back end.

    :param silent_seconds: for how long one that was stopped has not been heard of
    """
    query = sa.select(
        *(_SERVICE.c[name] for name in ("binary", "host", "last_seen_up", "created_at"))
    ).where(
        _SERVICE.c.deleted == 0,
        _SERVICE.c.binary.in_(["nova-conductor", "nova-scheduler"]),
    )
    now = timeutils.utcnow()
    found = []
    for row in nova_tables.select_main(context, query):
        seen: datetime.datetime | None = row["last_seen_up"] or row["created_at"]
        age = None if seen is None else abs((now - seen.replace(tzinfo=None)).total_seconds())
        if age is not None and age < silent_seconds:
            found.append(f"{row['binary']} on {row['host']}, {age:.0f} s ago")
    return living(found, silent_seconds)


def living(names: Collection[str], silent_seconds: float) -> list[Refusal]:
    """Say who lives and must not.

    :param names: with how long ago each was heard of
    """
    if not names:
        return []
    return [
        Refusal(
            "Services were heard of that must be stopped first",
            tuple(sorted(names)),
            "Stop nova-api, nova-scheduler and nova-conductor on all hosts (nova-compute waits "
            f"for them, and servers run on), and come again {silent_seconds:.0f} s later.",
        )
    ]
