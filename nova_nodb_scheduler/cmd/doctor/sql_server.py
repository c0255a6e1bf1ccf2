# SPDX-License-Identifier: Apache-2.0
"""What MariaDB, MySQL or PostgreSQL says of the driver's user and of its connections."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import attrs
import sqlalchemy as sa

from nova_nodb_scheduler.cmd.doctor import findings
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import engines, failures
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import options as sql_options

RIGHTS = "Rights of the database user"
CONNECTIONS = "Connections"

#: Longest wait for one exchange.
_TIMEOUT_SECONDS = 5.0

_READ_AND_WRITE = ("SELECT", "INSERT", "UPDATE", "DELETE")
_MIGRATE = ("CREATE", "ALTER", "DROP", "INDEX")
#: What can change or take away what is in a schema.
_CHANGES = frozenset({"INSERT", "UPDATE", "DELETE", *_MIGRATE, "ALL PRIVILEGES"})

#: Connections that a process keeps, by its role: three for each of its clients of
#: the back end (one writes, two read). A scheduler worker has one for the feed and
#: one each for writes over RPC and for hints; a conductor worker reports, sweeps,
#: claims and hints; an API worker reports and hints.
KEPT = {"scheduler": 9, "conductor": 12, "api": 6, "manage": 3}
_CROWDED = 0.8

_GRANT = re.compile(r"GRANT (.+?) ON (?:TABLE )?(\S+) TO ")


@contextlib.contextmanager
def _connected(conf: Any) -> Iterator[sa.Connection]:
    """Give a connection to the server, with no right to make anything.

    :raises ConfigurationError: the server refuses it
    :raises BackendUnavailable: it does not answer
    """
    options = attrs.evolve(sql_options.read(conf), timeout_seconds=_TIMEOUT_SECONDS)
    engines.require_store(options)
    engine = engines.create(options)
    try:
        with failures.translated_at_opening(engine.url), engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _has_server(conf: Any, options: Any) -> bool:
    if options.synchronizer != "sqlalchemy":
        return False
    url = engines.parse(sql_options.read(conf).connection)
    return not url.drivername.startswith("sqlite")


# -- rights -----------------------------------------------------------------------------


def rights(conf: Any, options: Any) -> list[findings.DoctorFinding]:
    """Tell whether the user may do too little, or write what is not the plugin's."""
    if not _has_server(conf, options):
        return []
    with _connected(conf) as connection:
        if connection.dialect.name == "mysql":
            return _mysql_rights(connection)
        return _postgresql_rights(connection)


@attrs.frozen
class SqlGrant:
    """A line of SHOW GRANTS.

    :param schema: a pattern as MariaDB has it; ``*`` for all
    """

    privileges: frozenset[str]
    schema: str

    @classmethod
    def parse(cls, line: str) -> SqlGrant | None:
        """Read a line; None where it grants nothing on a schema."""
        matched = _GRANT.match(line)
        if matched is None or "." not in matched[2]:
            return None
        names = re.sub(r"\(.*?\)", "", matched[1]).split(",")
        return cls(
            frozenset(name.strip().upper() for name in names),
            matched[2].rpartition(".")[0].strip("`").replace("``", "`"),
        )

    def includes(self, schema: str) -> bool:
        """Tell whether it holds for a schema."""
        if self.schema == "*":
            return True
        text = re.escape(self.schema)
        # Escaped once more: \\_ is MariaDB's own way to mean an underscore.
        text = text.replace(r"\\_", "\0").replace(r"\\%", "\1")
        text = text.replace("_", ".").replace("%", ".*").replace(r"\.", ".")
        text = text.replace("\0", "_").replace("\1", "%")
        return re.fullmatch(text, schema) is not None

    def is_of(self, schema: str) -> bool:
        """Tell whether it holds for a schema alone."""
        return self.schema.replace("\\_", "_").replace("\\%", "%") == schema and not re.search(
            r"(?<!\\)%", self.schema
        )


def _mysql_rights(connection: sa.Connection) -> list[findings.DoctorFinding]:
    schema = str(connection.exec_driver_sql("SELECT DATABASE()").scalar_one())
    user = str(connection.exec_driver_sql("SELECT CURRENT_USER()").scalar_one())
    lines = [str(row[0]) for row in connection.exec_driver_sql("SHOW GRANTS")]
    grants = [grant for grant in map(SqlGrant.parse, lines) if grant is not None]
    given = frozenset[str]().union(*(g.privileges for g in grants if g.includes(schema)))
    quoted = "'{}'@'{}'".format(*user.rpartition("@")[::2])
    found = _too_few(given, schema, f"GRANT ALL ON `{schema}`.* TO {quoted};")
    beyond = sorted(
        "all schemas" if grant.schema == "*" else grant.schema
        for grant in grants
        if not grant.is_of(schema) and grant.privileges & _CHANGES
    )
    if beyond:
        found.append(
            findings.warning(
                RIGHTS,
                f"{user} may write {', '.join(dict.fromkeys(beyond))}, not {schema} alone.",
                f"Give the plugin a user of its own: CREATE USER 'nova_nodb'@'%' IDENTIFIED BY "
                f"'...'; GRANT ALL ON `{schema}`.* TO 'nova_nodb'@'%';",
            )
        )
    found += _foreign(schema, _tables(connection, schema))
    return found or [findings.fine(RIGHTS, f"{user} may do what it must, on {schema} alone.")]


def _too_few(given: Collection[str], schema: str, remedy: str) -> list[findings.DoctorFinding]:
    if "ALL PRIVILEGES" in given:
        return []
    missing = [name for name in _READ_AND_WRITE if name not in given]
    if missing:
        return [findings.error(RIGHTS, f"No {', '.join(missing)} on {schema}.", remedy)]
    missing = [name for name in _MIGRATE if name not in given]
    if missing:
        # Some want it so: the schema is migrated with another user's URL.
        return [
            findings.fine(
                RIGHTS,
                f"'nova-nodb-manage db sync' needs another user: no {', '.join(missing)}.",
            )
        ]
    return []


def _tables(connection: sa.Connection, schema: str) -> list[str]:
    query = sa.text("SELECT table_name FROM information_schema.tables WHERE table_schema = :schema")
    return [str(row[0]) for row in connection.execute(query, {"schema": schema})]


def _foreign(schema: str, tables: Iterable[str]) -> list[findings.DoctorFinding]:
    foreign = sorted(name for name in tables if not name.startswith("nodb_"))
    if not foreign:
        return []
    shown = ", ".join(foreign[:3]) + (" ..." if len(foreign) > 3 else "")
    return [
        findings.warning(
            RIGHTS,
            f"{schema} holds {len(foreign)} tables that are not the plugin's ({shown}).",
            "Give the plugin a database of its own, and move there ('nova-nodb-manage "
            "synchronizer move').",
        )
    ]


#: Of a role: rolsuper, rolcreaterole, rolcreatedb.
_POWERS = ("a superuser", "maker of roles", "maker of databases")


def _postgresql_rights(connection: sa.Connection) -> list[findings.DoctorFinding]:
    schema = str(connection.exec_driver_sql("SELECT current_database()").scalar_one())
    user = str(connection.exec_driver_sql("SELECT current_user").scalar_one())
    found = []
    known = _tables(connection, "public")
    tables = [name for name in ("nodb_record", "nodb_sequence") if name in known]
    missing = {
        right
        for table in tables
        for right in _READ_AND_WRITE
        if not _ask(connection, "has_table_privilege(:a, :b)", table, right)
    }
    if missing:
        found.append(
            findings.error(
                RIGHTS,
                f"No {', '.join(sorted(missing))} on tables of {schema}.",
                f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO "{user}";',
            )
        )
    if not tables and not _ask(connection, "has_schema_privilege(:a, :b)", "public", "CREATE"):
        found.append(
            findings.error(
                RIGHTS,
                f"There are no tables yet, and {user} may make none in {schema}.",
                f'GRANT ALL ON DATABASE {schema} TO "{user}"; and make it the owner.',
            )
        )
    role = connection.execute(
        sa.text("SELECT rolsuper, rolcreaterole, rolcreatedb FROM pg_roles WHERE rolname = :user"),
        {"user": user},
    ).one()
    owned = connection.exec_driver_sql(
        "SELECT datname FROM pg_database WHERE pg_has_role(current_user, datdba, 'USAGE') "
        "AND datname <> current_database() AND NOT datistemplate"
    )
    others = [] if role[0] else sorted(str(row[0]) for row in owned)
    beyond = [
        *(name for name, has in zip(_POWERS, role, strict=True) if has),
        *(f"owner of {name}" for name in others),
    ]
    if beyond:
        found.append(
            findings.warning(
                RIGHTS,
                f"{user} may write more than {schema}: it is {', '.join(beyond)}.",
                f"Give the plugin a user of its own: CREATE ROLE nova_nodb LOGIN PASSWORD '...'; "
                f"ALTER DATABASE {schema} OWNER TO nova_nodb;",
            )
        )
    found += _foreign(schema, known)
    return found or [findings.fine(RIGHTS, f"{user} may do what it must, on {schema} alone.")]


def _ask(connection: sa.Connection, function: str, first: str, second: str) -> bool:
    query = sa.text(f"SELECT {function}")
    return bool(connection.execute(query, {"a": first, "b": second}).scalar_one())


# -- connections ------------------------------------------------------------------------


@attrs.frozen
class Usage:
    """Connections of a server.

    :param limit: how many it takes of this user
    :param used: of everybody, now
    :param most: of everybody, since it was started; None where it does not say
    :param ours: of this user, now
    """

    limit: int
    used: int
    most: int | None
    ours: int


def connections(
    conf: Any, options: Any, processes: Mapping[str, int]
) -> list[findings.DoctorFinding]:
    """Tell whether the server takes as many connections as the processes may make.

    :param processes: how many live, by role, see :data:`KEPT`
    """
    if not _has_server(conf, options):
        return []
    with _connected(conf) as connection:
        usage = (_mysql_usage if connection.dialect.name == "mysql" else _postgresql_usage)(
            connection
        )
    return judge_connections(usage, processes)


def judge_connections(usage: Usage, processes: Mapping[str, int]) -> list[findings.DoctorFinding]:
    """Say whether there are enough; see :func:`connections`."""
    needed = sum(KEPT.get(role, 0) * count for role, count in processes.items())
    told = ", ".join(
        f"{count} {role} processes with up to {KEPT[role]} each"
        for role, count in sorted(processes.items())
        if count and role in KEPT
    )
    # This very connection is no service's.
    others = max(usage.used - usage.ours, 0)
    text = (
        f"{usage.used} of {usage.limit} are in use, {usage.ours - 1} of them by this user"
        + (f"; at most {usage.most} were" if usage.most is not None else "")
        + (f". The plugin keeps up to {needed}: {told}." if told else ".")
    )
    remedy = (
        "Raise max_connections of the server, or lower the number of workers ([scheduler] "
        "workers, [conductor] workers, those of the API)."
    )
    if max(usage.used, others + needed) >= usage.limit:
        return [findings.error(CONNECTIONS, text, remedy)]
    if max(usage.used, usage.most or 0, others + needed) > _CROWDED * usage.limit:
        return [findings.warning(CONNECTIONS, text, remedy)]
    return [findings.fine(CONNECTIONS, text)]


def _mysql_usage(connection: sa.Connection) -> Usage:
    def number(statement: str) -> int:
        return int(connection.exec_driver_sql(statement).one()[-1])

    limit = number("SELECT @@max_connections")
    of_user = number("SELECT @@max_user_connections")
    return Usage(
        limit=min(limit, of_user) if of_user else limit,
        used=number("SHOW GLOBAL STATUS LIKE 'Threads_connected'"),
        most=number("SHOW GLOBAL STATUS LIKE 'Max_used_connections'"),
        ours=number(
            "SELECT COUNT(*) FROM information_schema.processlist "
            "WHERE user = SUBSTRING_INDEX(USER(), '@', 1)"
        ),
    )


def _postgresql_usage(connection: sa.Connection) -> Usage:
    def number(statement: str) -> int:
        return int(connection.exec_driver_sql(statement).scalar_one())

    reserved = number("SELECT current_setting('superuser_reserved_connections')::int")
    limit = number("SELECT current_setting('max_connections')::int") - reserved
    of_role = number("SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user")
    return Usage(
        limit=min(limit, of_role) if of_role >= 0 else limit,
        # What others do is hidden from most users, that they are there is not.
        used=number(
            "SELECT COUNT(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
            " OR backend_type IS NULL"
        ),
        most=None,
        ours=number("SELECT COUNT(*) FROM pg_stat_activity WHERE usename = current_user"),
    )
