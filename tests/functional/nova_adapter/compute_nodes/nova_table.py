# SPDX-License-Identifier: Apache-2.0
"""Nova's own table in SQLite as the oracle: rows to put there, and calls to compare."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import hypothesis
import sqlalchemy as sa
from hypothesis import strategies as st
from nova import context as nova_context
from nova import exception, objects
from nova.db.main import api as main_db
from nova.db.main import models
from oslo_db import exception as db_exception

from nova_nodb_scheduler.nova_adapter.compute_nodes import node_rows, row_index, text_comparison
from nova_nodb_scheduler.nova_adapter.reporting import nova_tables
from tests.functional.nova_adapter import cloud

TABLE = models.ComputeNode.__table__
EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "40"))

#: A machine with other work on it may hold a test up while it draws.
LOADED = (hypothesis.HealthCheck.too_slow,)

#: Few, so that rows share them; with other cases, wildcards, blanks and accents.
HOSTS = ("h1", "H1", "h1 ", "h%", "h\\", "hé", "")
NODES = ("n1", "N1", "n_1", "n\\1", "ñ1", "node-%", "")
UUIDS = tuple(f"{number:08d}-aaaa-4aaa-8aaa-aaaaaaaaaaaa" for number in range(6))
TYPES = ("QEMU", "qemu", "ironic")

#: What a creation must name.
NEEDED: Mapping[str, Any] = {
    "vcpus": 4,
    "memory_mb": 4096,
    "local_gb": 100,
    "vcpus_used": 1,
    "memory_mb_used": 512,
    "local_gb_used": 10,
    "hypervisor_type": "QEMU",
    "hypervisor_version": 8002000,
    "cpu_info": "{}",
}

MOMENT = datetime.datetime.fromisoformat("2026-03-01T12:30:15.250000")


#: The cell whose table is meant, if not that of this process.
_elsewhere: list[Any] = []


@contextlib.contextmanager
def at(url: str) -> Iterator[None]:
    """Have the table in another database, which is empty yet."""
    made = sa.create_engine(url)
    tables = [TABLE, models.Service.__table__, models.PciDevice.__table__]
    models.BASE.metadata.create_all(made, tables=tables)
    made.dispose()
    mapping = objects.CellMapping(
        uuid=cloud.CELL1, name="elsewhere", database_connection=url, transport_url="none:///"
    )
    _elsewhere.append(mapping)
    # Another test of this process may have looked at a cell of this name.
    nova_context.CELL_CACHE.pop(cloud.CELL1, None)
    try:
        yield
    finally:
        _elsewhere.remove(mapping)
        nova_context.CELL_CACHE.pop(cloud.CELL1, None)


def context(read_deleted: str = "no") -> Any:
    """Return an administrator's context for the database of the table."""
    made = nova_context.get_admin_context(read_deleted=read_deleted)
    for mapping in _elsewhere:
        nova_context.set_target_cell(made, mapping)
    return made


def engine() -> Any:
    return main_db.get_engine(context=context())


def comparison() -> text_comparison.TextComparison:
    """Return how the table's database compares text."""
    return text_comparison.of_engine(engine())


def rows() -> list[dict[str, Any]]:
    """Read Nova's table as it stands, addresses as text."""
    found = [dict(row) for row in nova_tables.select_main(context("yes"), sa.select(TABLE))]
    for row in found:
        row["host_ip"] = None if row["host_ip"] is None else str(row["host_ip"])
    return found


def index_of(
    found: Sequence[Mapping[str, Any]],
) -> row_index.RowIndex:
    """Put rows into memory by way of what records hold."""
    made = row_index.RowIndex(comparison())
    for row in found:
        made.put(f"{row['uuid']}", node_rows.from_state(node_rows.to_state(row)))
    return made


class HeldRows:
    """A source of rows that are there already."""

    def __init__(self, index: row_index.RowIndex) -> None:
        self._index, self._lock = index, threading.Lock()

    @contextlib.contextmanager
    def rows(self, context: Any) -> Iterator[row_index.RowIndex]:
        with self._lock:
            yield self._index


def answer_of(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a call gives, as plain values; an exception as its type and arguments."""
    try:
        return plain(call(*arguments))
    except (exception.NovaException, db_exception.DBError, ValueError) as error:
        # oslo.db's texts are the database's own.
        told = getattr(error, "kwargs", {}) if isinstance(error, exception.NovaException) else {}
        return type(error).__name__, {name: str(value) for name, value in told.items()}


def plain(value: Any) -> Any:
    """Return rows, models, objects and lists of them as dictionaries and lists."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, objects.base.NovaObject):
        return value.obj_to_primitive()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (models.ComputeNode, models.Service)):
        return {each.name: plain(getattr(value, each.name)) for each in value.__table__.columns}
    if isinstance(value, (ipaddress.IPv4Address, ipaddress.IPv6Address)):
        # psycopg 3 gives such for PostgreSQL's INET; Nova's field takes them like text.
        return str(value)
    return value


def by_id(answer: Any) -> Any:
    """Return an answer whose order Nova leaves to the database, in one order."""
    return sorted(answer, key=lambda row: row["id"]) if isinstance(answer, list) else answer


numbers = st.one_of(st.none(), st.integers(0, 8))
ratios = st.sampled_from([None, 0.0, 1.0, 1.5, 16.0])


@st.composite
def table_rows(
    draw: st.DrawFn, compared: text_comparison.TextComparison = text_comparison.SQLITE
) -> list[dict[str, Any]]:
    """Draw rows that may stand in the table together, live and deleted."""
    form = compared.equal_form
    drawn: list[dict[str, Any]] = []
    names = set()
    for uuid in draw(st.lists(st.sampled_from(UUIDS), unique=True, max_size=len(UUIDS))):
        host = draw(st.sampled_from([None, *HOSTS]))
        node = draw(st.sampled_from([None, *NODES]))
        number = 3 * len(drawn) + draw(st.integers(1, 3))
        name = None if host is None or node is None else (form(host), form(node))
        is_live = draw(st.booleans()) and name not in names
        if is_live and name is not None:
            names.add(name)
        drawn.append(
            {
                **NEEDED,
                "id": number,
                "uuid": uuid,
                "host": host,
                "hypervisor_hostname": node,
                "hypervisor_type": draw(st.sampled_from(TYPES)),
                "service_id": draw(st.sampled_from([None, 1, 2, 3])),
                "mapped": draw(st.sampled_from([None, 0, 1])),
                "vcpus": draw(st.integers(0, 64)),
                "free_ram_mb": draw(numbers),
                "free_disk_gb": draw(numbers),
                "running_vms": draw(numbers),
                "disk_available_least": draw(numbers),
                "cpu_allocation_ratio": draw(ratios),
                "host_ip": draw(st.sampled_from([None, "10.0.0.1", "2001:db8::1"])),
                "created_at": MOMENT,
                "updated_at": draw(st.sampled_from([None, MOMENT])),
                "deleted": 0 if is_live else number,
                "deleted_at": None if is_live else MOMENT,
            }
        )
    return drawn


@st.composite
def services(
    draw: st.DrawFn, compared: text_comparison.TextComparison = text_comparison.SQLITE
) -> list[dict[str, Any]]:
    """Draw rows of services; their hosts are those of compute nodes."""
    drawn = []
    hosts = draw(st.lists(st.sampled_from(HOSTS), unique_by=compared.equal_form, max_size=4))
    for number, host in enumerate(hosts):
        is_live = draw(st.integers(0, 4)) > 0
        drawn.append(
            {
                "id": number + 1,
                "host": host,
                "binary": draw(st.sampled_from(["nova-compute"] * 4 + ["nova-conductor"])),
                "topic": "compute",
                "report_count": 1,
                "disabled": draw(st.integers(0, 4)) == 0,
                "deleted": 0 if is_live else number + 1,
            }
        )
    return drawn


def fill(
    node_rows_wanted: Sequence[Mapping[str, Any]], service_rows: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Have these rows in the tables and no others."""
    if not _elsewhere:
        cloud.clear(cloud.databases()[cloud.CELL1], "compute_nodes", "services")
    with engine().begin() as connection:
        if _elsewhere:
            for table in (TABLE, models.Service.__table__):
                connection.execute(sa.delete(table))
        for row in node_rows_wanted:
            connection.execute(sa.insert(TABLE).values(**row))
        for row in service_rows:
            connection.execute(sa.insert(models.Service.__table__).values(**row))
