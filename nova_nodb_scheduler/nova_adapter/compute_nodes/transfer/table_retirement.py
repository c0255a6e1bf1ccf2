# SPDX-License-Identifier: Apache-2.0
"""A cell's table ``compute_nodes`` taken away and brought back: what is done to its database.

The naive way, to drop the table, makes the way back a matter of dumps, and is refused while
devices of ``pci_devices`` point at it. To empty it in its place is worse: a stock conductor
that somebody starts would answer "there are no compute nodes", and nova-compute would clean
up after all of its servers. So the foreign key goes first, then the table is renamed, and
only where nobody finds it under its name it is emptied. Back the other way round: filled
while it is away, renamed, then the key.

Each step looks at what is there, does what is left of it and commits: whatever was killed
between two of them, or in the midst of one, goes on by the same calls. Databases that
commit each statement of DDL by itself (MariaDB, MySQL) carry each out whole or not at all.

The new name begins with ``shadow_``: Nova's archiving fails on any other table that it has
no model for, and its purging empties what begins so, which is why nothing may be left in it.
"""

from __future__ import annotations

import contextlib
import enum
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs
import sqlalchemy as sa
from alembic import operations
from alembic.runtime import migration
from nova.db.main import api as main_db
from nova.db.main import models

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.compute_nodes import node_rows, row_archive
from nova_nodb_scheduler.nova_adapter.reporting import table_tripwire

NAME = "compute_nodes"
#: Of the table that is away.
AWAY_NAME = "shadow_nodb_compute_nodes"

_TABLE = models.ComputeNode.__table__
_DEVICES = models.PciDevice.__table__
_COLUMN = "compute_node_id"
_PAGE = 200

#: How Nova's migrations name a foreign key, and PostgreSQL one that has no name.
_CONVENTION = {"fk": "%(table_name)s_%(column_0_name)s_fkey"}

#: What has a statement of DDL wait for other transactions for so long and no longer.
_LOCK_SECONDS = 20
_PATIENCE = {
    "mysql": f"SET SESSION lock_wait_timeout = {_LOCK_SECONDS}",
    "postgresql": f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'",
}

#: What has a database give no id below one, by SQLAlchemy's name. SQLite goes by its rows.
_CONTINUED = {
    "mysql": "ALTER TABLE {table} AUTO_INCREMENT = {next_id}",
    # Rows that name their ids do not move a sequence.
    "postgresql": "SELECT setval(pg_get_serial_sequence('{table}', 'id'), {next_id}, false)",
}


class TablePlace(enum.Enum):
    """Where the table stands."""

    THERE = "there"
    AWAY = "away"
    #: Under both names: somebody made it anew, or restored a dump.
    BOTH = "both"
    MISSING = "missing"


class TableMissing(errors.NodbError):
    """A cell's database has not one table of compute nodes, but none or two.

    :param place: by :class:`TablePlace`
    """

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place

    def __str__(self) -> str:
        if self.place == TablePlace.BOTH.value:
            return (
                f"The cell's database has both {NAME} and {AWAY_NAME}: a dump was restored beside "
                "the one that was taken away, or the table made anew. Find out which one holds "
                "rows that nothing else does, and drop or rename the other."
            )
        return (
            f"The cell's database has neither {NAME} nor {AWAY_NAME}: see [database] connection "
            "and 'nova-manage cell_v2 list_cells', or restore the table from a dump."
        )


@attrs.frozen
class ForeignKey:
    """The constraint that devices name compute nodes which there are.

    :param name: as the database has it; Nova's where it has none
    :param options: as SQLAlchemy reflects them, such as ``ondelete``
    """

    name: str
    options: Mapping[str, str] = attrs.field(factory=dict)


#: As Nova's migrations make it: NO ACTION, or RESTRICT, which is the same here.
NOVAS_KEY = ForeignKey("pci_devices_compute_node_id_fkey")


class CellTable:
    """The table of one cell's database; one thread at a time.

    Blocks for its statements. What a database's driver raises passes through: nothing, or
    a whole step, was done then.

    :param context: for the cell's database
    """

    def __init__(self, context: Any) -> None:
        engine = main_db.get_engine(context=context)
        self._engine, self._dialect = engine, str(engine.dialect.name)

    # -- what is there ---------------------------------------------------------------

    def place(self) -> TablePlace:
        """Return where the table stands."""
        with self._transaction() as connection:
            return _place(connection)

    def foreign_key(self) -> ForeignKey | None:
        """Return the key as it stands; None where there is none."""
        with self._transaction() as connection:
            return _foreign_key(connection)

    def other_keys(self) -> list[str]:
        """Return the foreign keys of others that point at it, by their tables."""
        with self._transaction() as connection:
            inspector = sa.inspect(connection)
            return sorted(
                f"{found['name'] or 'a nameless key'} of {table}"
                for (_schema, table), keys in inspector.get_multi_foreign_keys().items()
                for found in keys
                if found["referred_table"] in (NAME, AWAY_NAME)
                and (table, found["constrained_columns"]) != (_DEVICES.name, [_COLUMN])
            )

    def counts(self) -> tuple[int, int]:
        """Return how many live rows it has, and how many soft-deleted ones.

        :raises TableMissing: there is no such table, or there are two
        """
        with self._transaction() as connection:
            table = _standing(connection)
            query = sa.select(sa.func.count()).select_from(table)
            live = connection.execute(query.where(table.c.deleted == 0)).scalar_one()
            return int(live), int(connection.execute(query).scalar_one()) - int(live)

    def pages(self) -> Iterator[list[node_rows.Row]]:
        """Give all rows, live and deleted, in the order of their ids.

        :raises TableMissing: there is no such table, or there are two
        """
        after: int | None = None
        while True:
            with self._transaction() as connection:
                table = _standing(connection)
                query = sa.select(table)
                if after is not None:
                    query = query.where(table.c.id > after)
                found = connection.execute(query.order_by(table.c.id).limit(_PAGE)).mappings()
                # SQLAlchemy's own kind of text names the columns of a table's copy.
                rows: list[node_rows.Row] = [
                    {str(name): value for name, value in row.items()} for row in found
                ]
            if not rows:
                return
            yield rows
            after = int(rows[-1]["id"])

    def given_id(self) -> int:
        """Return the highest id that the database knows to have given, to purged rows, too.

        Zero where it goes by the rows that are there (SQLite).

        :raises TableMissing: there is no such table, or there are two
        """
        with self._transaction() as connection:
            name = _standing(connection).name
            if self._dialect == "mysql":
                # MySQL's information_schema tells what was true a day ago.
                made = connection.execute(sa.text(f"SHOW CREATE TABLE {name}")).one()[1]
                # Without this option of the table it gave none.
                found = re.search(r"\n\) ENGINE=\w+ AUTO_INCREMENT=(\d+)", made)
                return int(found[1]) - 1 if found else 0
            if self._dialect == "postgresql":
                named = sa.select(sa.func.pg_get_serial_sequence(name, "id"))
                sequence = connection.execute(named).scalar_one()
                if sequence is not None:
                    columns: list[sa.ColumnElement[Any]] = [
                        sa.column(each) for each in ("last_value", "is_called")
                    ]
                    told = sa.select(*columns).select_from(sa.text(sequence))
                    last, is_given = connection.execute(told).one()
                    return int(last) if is_given else int(last) - 1
        return 0

    def devices(self) -> dict[int, list[int]]:
        """Return the ids of devices, deleted ones too, by the compute node they name."""
        found: dict[int, list[int]] = {}
        query = sa.select(_DEVICES.c.id, _DEVICES.c[_COLUMN]).order_by(_DEVICES.c.id)
        with self._transaction() as connection:
            for device, node in connection.execute(query):
                found.setdefault(int(node), []).append(int(device))
        return found

    # -- the way there ---------------------------------------------------------------

    def drop_key(self) -> None:
        """Let devices name compute nodes that are not in the table; idempotent."""
        with self._changing() as connection:
            key = _foreign_key(connection)
            if key is not None:
                with _devices_altered(connection) as batch:
                    batch.drop_constraint(key.name, type_="foreignkey")

    def take_away(self) -> None:
        """Rename the table; idempotent.

        :raises TableMissing: there is none, or there are two
        """
        self._rename(TablePlace.THERE, NAME, AWAY_NAME)

    def empty(self, still: Callable[[], None] = lambda: None) -> None:
        """Delete all rows of the table that is away; idempotent.

        :param still: called before it is committed; whatever it raises leaves the rows there
        :raises TableMissing: it is not away
        """
        with self._changing() as connection:
            if _place(connection) is not TablePlace.AWAY:
                raise TableMissing(_place(connection).value)
            # TRUNCATE would have ids begin anew.
            connection.execute(sa.delete(_named(AWAY_NAME)))
            # Whoever filled it meanwhile waits to rename it.
            still()

    # -- the way back ----------------------------------------------------------------

    def fill(self, rows: Sequence[node_rows.Row]) -> int:
        """Have the table hold these rows and no others; return how many it did not have so.

        It must be away, or have no key on it. What was there already is left as it is: a
        call that was killed is carried on by the next.

        :param rows: columns that it does not have are left out
        :raises TableMissing: there is none, or there are two
        """
        wanted = {
            int(row["id"]): {name: value for name, value in row.items() if name in _TABLE.c}
            for row in rows
        }
        there: set[int] = set()
        others: list[int] = []
        for page in self.pages():
            for row in page:
                number = int(row["id"])
                row_wanted = wanted.get(number)
                if row_wanted and node_rows.to_state(row) == node_rows.to_state(row_wanted):
                    there.add(number)
                else:
                    others.append(number)
        # First all that may be in another's way by its name.
        for some in _batches(others):
            with self._changing() as connection:
                table = _standing(connection)
                connection.execute(sa.delete(table).where(table.c.id.in_(some)))
        missing = [number for number in sorted(wanted) if number not in there]
        for some in _batches(missing):
            with self._changing() as connection:
                table = _standing(connection)
                # An archiving that was killed, or that a file is older than, left them there.
                row_archive.take_back(connection, some)
                connection.execute(sa.insert(table), [wanted[number] for number in some])
        return len(missing)

    def bring_back(self) -> None:
        """Give the table its name again; idempotent.

        :raises TableMissing: there is none, or there are two
        """
        self._rename(TablePlace.AWAY, AWAY_NAME, NAME)

    def continue_ids(self, next_id: int) -> None:
        """Have the table's own ids go on where others ended; never lowers them on MariaDB."""
        statement = _CONTINUED.get(self._dialect)
        if statement is None:
            return
        with self._changing() as connection:
            text = statement.format(table=_standing(connection).name, next_id=next_id)
            connection.execute(sa.text(text))

    def add_key(self, key: ForeignKey) -> None:
        """Have devices name rows of the table again; idempotent.

        Where a device names a row that is not there the database refuses; SQLite does not.

        :raises TableMissing: it is not there
        """
        with self._changing() as connection:
            if _place(connection) is not TablePlace.THERE:
                raise TableMissing(_place(connection).value)
            if _foreign_key(connection) is None:
                with _devices_altered(connection) as batch:
                    batch.create_foreign_key(key.name, NAME, [_COLUMN], ["id"], **key.options)

    # -- in transactions ---------------------------------------------------------------

    def _rename(self, place: TablePlace, name: str, other: str) -> None:
        with self._changing() as connection:
            found = _place(connection)
            if found in (TablePlace.BOTH, TablePlace.MISSING):
                raise TableMissing(found.value)
            if found is place:
                _operations(connection).rename_table(name, other)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        with table_tripwire.own_statements(), self._engine.begin() as connection:
            if self._dialect == "sqlite":
                # Its PRAGMAs tell of the schema as this connection knows it from before another
                # process changed it; a statement that reads has it look.
                connection.execute(sa.text("SELECT 1 FROM sqlite_master LIMIT 1")).all()
            yield connection

    @contextlib.contextmanager
    def _changing(self) -> Iterator[sa.Connection]:
        """Give a transaction that waits for others for a bounded time."""
        with self._transaction() as connection:
            if self._dialect in _PATIENCE:
                connection.execute(sa.text(_PATIENCE[self._dialect]))
            yield connection


def _place(connection: sa.Connection) -> TablePlace:
    inspector = sa.inspect(connection)
    is_there, is_away = (inspector.has_table(name) for name in (NAME, AWAY_NAME))
    if is_there and is_away:
        return TablePlace.BOTH
    if is_there:
        return TablePlace.THERE
    return TablePlace.AWAY if is_away else TablePlace.MISSING


def _foreign_key(connection: sa.Connection) -> ForeignKey | None:
    for found in sa.inspect(connection).get_foreign_keys(_DEVICES.name):
        # A rename on MariaDB carries a key along that still stood.
        is_ours = found["referred_table"] in (NAME, AWAY_NAME)
        if is_ours and found["constrained_columns"] == [_COLUMN]:
            options = {name: str(value) for name, value in (found.get("options") or {}).items()}
            return ForeignKey(found["name"] or NOVAS_KEY.name, options)
    return None


def _standing(connection: sa.Connection) -> sa.Table:
    """Return the table under the name it has.

    :raises TableMissing: there is none, or there are two
    """
    place = _place(connection)
    if place is TablePlace.THERE:
        return _named(NAME)
    if place is TablePlace.AWAY:
        return _named(AWAY_NAME)
    raise TableMissing(place.value)


def _named(name: str) -> sa.Table:
    named: sa.Table = _TABLE.to_metadata(sa.MetaData(), name=name)
    return named


def _operations(connection: sa.Connection) -> operations.Operations:
    return operations.Operations(migration.MigrationContext.configure(connection))


def _devices_altered(connection: sa.Connection) -> contextlib.AbstractContextManager[Any]:
    """Give what alters ``pci_devices``: a statement, or on SQLite a new table in its place."""
    made: contextlib.AbstractContextManager[Any] = _operations(connection).batch_alter_table(
        _DEVICES.name, naming_convention=_CONVENTION
    )
    return made


def _batches(numbers: Collection[int]) -> Iterator[list[int]]:
    ordered = sorted(numbers)
    for first in range(0, len(ordered), _PAGE):
        yield ordered[first : first + _PAGE]
