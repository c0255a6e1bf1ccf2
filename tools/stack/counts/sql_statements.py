# SPDX-License-Identifier: Apache-2.0
"""SQL statements per process, database and table, counted by MariaDB's general log.

Every process has a MariaDB user of its own, and the log names the user of every statement: the
count is exact, also for connections that come and go meanwhile. The database of a connection is
taken from the process list at the start and from the Connect events afterwards.
"""

import collections
import json
import re
import types
from collections.abc import Iterable
from typing import Any

import attrs

from tools.stack import configuration, database
from tools.stack import settings as stack_settings

STATE_TABLES = ("compute_nodes", "services", "instances", "host_mappings", "aggregates")
"""What stock Nova's scheduler reads per request; with the plugin it should read none."""

_TABLE = re.compile(r"\b(?:FROM|JOIN|INTO|UPDATE)\s+(?:\(\s*)*(?!SELECT\b)[`\"]?(\w+)", re.I)
_CONNECT = re.compile(r"^\S+ on (\w*)")
_CONTROL = frozenset(
    ("COMMIT", "ROLLBACK", "SET", "BEGIN", "START", "SAVEPOINT", "RELEASE", "SHOW")
)


@attrs.frozen
class Statement:
    """A class of statements: who sent it where, to which tables."""

    process: str
    database: str
    verb: str
    """SELECT, INSERT, UPDATE, DELETE, ...; CONTROL for transaction control, PING for SELECT 1."""
    tables: tuple[str, ...]
    is_heartbeat: bool
    """Nova's own report of the process's row in ``services``."""


def classify(process: str, where: str, text: str, own_service_row: int | None) -> Statement:
    """The class of one statement. ``own_service_row``: id of the process's row in services."""
    verb = text.split(None, 1)[0].upper() if text.strip() else "?"
    if verb in _CONTROL:
        return Statement(process, where, "CONTROL", (), False)
    tables = tuple(dict.fromkeys(name.lower() for name in _TABLE.findall(text)))
    if not tables:
        return Statement(process, where, "PING" if verb == "SELECT" else verb, (), False)
    heartbeat = (
        tables == ("services",)
        and own_service_row is not None
        and bool(re.search(rf"\bservices\.id = {own_service_row}\b", text))
    )
    return Statement(process, where, verb, tables, heartbeat)


@attrs.frozen
class Report:
    """How often each class of statements was sent, and the text of the first of each class."""

    counts: collections.Counter[Statement]
    examples: dict[Statement, str]

    def total(
        self,
        process_prefix: str = "",
        databases: Iterable[str] | None = None,
        table: str | None = None,
    ) -> int:
        """Statements on tables, without heartbeats, pings and transaction control."""
        wanted = None if databases is None else frozenset(databases)
        return sum(
            count
            for statement, count in self.counts.items()
            if statement.process.startswith(process_prefix)
            and statement.tables
            and not statement.is_heartbeat
            and (wanted is None or statement.database in wanted)
            and (table is None or table in statement.tables)
        )

    def heartbeats(self, process_prefix: str = "") -> int:
        return sum(
            count
            for statement, count in self.counts.items()
            if statement.is_heartbeat and statement.process.startswith(process_prefix)
        )

    def on_state_tables(self, process_prefix: str) -> dict[str, int]:
        """Statements per table of STATE_TABLES, in every database but the synchronizer's own."""
        databases = {s.database for s in self.counts} - {configuration.STORE_DATABASE}
        return {t: self.total(process_prefix, databases, t) for t in STATE_TABLES}

    def rows(self) -> list[dict[str, Any]]:
        return [
            {**attrs.asdict(statement), "count": count, "example": self.examples[statement]}
            for statement, count in self.counts.most_common()
        ]

    def to_json(self) -> str:
        return json.dumps(self.rows(), indent=1)

    def to_text(self) -> str:
        lines = [f"{'process':26} {'database':14} {'verb':8} {'count':>6}  tables"]
        for statement, count in sorted(
            self.counts.items(), key=lambda item: (item[0].process, -item[1])
        ):
            tables = ", ".join(statement.tables) + (
                "  (heartbeat)" if statement.is_heartbeat else ""
            )
            lines.append(
                f"{statement.process:26} {statement.database:14} {statement.verb:8}"
                f" {count:6}  {tables}"
            )
        return "\n".join(lines)


class Counter:
    """Counts while its with block runs; ``report`` is there afterwards. One at a time."""

    def __init__(self, settings: stack_settings.Settings) -> None:
        self._settings = settings
        self._database_of_connection: dict[int, str] = {}
        self._service_row_of_process: dict[str, int] = {}
        self.report = Report(collections.Counter(), {})

    def __enter__(self) -> "Counter":
        self._run("SET GLOBAL general_log = 0")
        self._run("SET GLOBAL log_output = 'TABLE'")
        self._run("TRUNCATE mysql.general_log")
        # First the log, then the list: a connection made in between is in both.
        self._run("SET GLOBAL general_log = 1")
        rows = self._run("SELECT id, coalesce(db, '') FROM information_schema.processlist")
        self._database_of_connection = dict(rows)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: types.TracebackType | None,
    ) -> None:
        self._run("SET GLOBAL general_log = 0")
        self._service_row_of_process = self._service_rows()
        self.report = self._count()
        self._run("TRUNCATE mysql.general_log")

    def _count(self) -> Report:
        events = self._run(
            "SELECT user_host, thread_id, command_type, argument FROM mysql.general_log"
        )
        counts: collections.Counter[Statement] = collections.Counter()
        examples: dict[Statement, str] = {}
        for user_host, connection, kind, argument in events:
            text = argument.decode(errors="replace") if isinstance(argument, bytes) else argument
            user = str(user_host).partition("[")[0]
            if kind == "Connect":
                match = _CONNECT.match(text)
                self._database_of_connection[connection] = match[1] if match else ""
            elif kind in ("Query", "Execute") and user not in ("", "root"):
                where = self._database_of_connection.get(connection, "")
                statement = classify(user, where, text, self._service_row_of_process.get(user))
                counts[statement] += 1
                examples.setdefault(statement, text)
        return Report(counts, examples)

    def _service_rows(self) -> dict[str, int]:
        """Id of each control-plane process's row in ``services`` (all in one cell's database)."""
        rows = {}
        for process in self._settings.control_plane_names:
            cell = process.split("-")[2] if process.startswith("nova-conductor-") else "cell0"
            found = self._run(
                f"SELECT id FROM nova_{cell}.services"  # noqa: S608 - our own cell names
                " WHERE host = %s AND deleted = 0",
                self._settings.host_of(process),
            )
            if found:
                rows[process] = int(found[0][0])
        return rows

    def _run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return database.query(self._settings, statement, values)
