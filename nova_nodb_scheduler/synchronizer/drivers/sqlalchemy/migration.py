# SPDX-License-Identifier: Apache-2.0
"""Migrations of the SQL driver's schema: what `nova-nodb-manage db` calls.

Two branches, as OpenStack's services have them. *expand* adds, and may run
while older services do; *contract* removes, and may run when no older one is
left. Revisions are named after their branch, so that a release can tell the
branch of a revision it has never heard of.
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from alembic import command, config, script
from oslo_log import log as logging

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import (
    engines,
    failures,
    options,
    schema,
)

LOG = logging.getLogger(__name__)

#: In the order they are carried out.
BRANCHES = ("expand", "contract")
_DIRECTORY = pathlib.Path(__file__).parent / "alembic"
#: Number of PostgreSQL's advisory lock: "nodb" in ASCII.
_LOCK_NUMBER = 0x6E6F6462
_LOCK_NAME = "nodb_migration"
_LOCK_SECONDS = 600
_REVISIONS = sa.text(f"SELECT version_num FROM {schema.VERSION_TABLE}")  # noqa: S608, our own name


def sync(engine: sa.Engine, branch: str | None = None) -> Mapping[str, str | None]:
    """Migrate to this release's schema; nothing to do is fine, and so are two at once.

    Takes as long as the database does: use
    :func:`.engines.create_for_migration`.

    :param branch: only this one; contract needs expand to be complete
    :returns: the version reached, see :func:`version`
    :raises ValueError: no such branch
    :raises SchemaMismatch: contract was asked for before expand
    :raises ConfigurationError: the database refuses to be opened
    :raises BackendUnavailable: it did not answer, or refused
    """
    if branch is not None and branch not in BRANCHES:
        raise ValueError(f"branch {branch!r} is none of {', '.join(BRANCHES)}")
    backend = failures.backend_name(engine.url)
    with failures.translated_at_opening(engine.url), _exclusive(engine) as connection:
        present = _present(connection)
        if not present:
            _require_utf8(connection)
        if branch == "contract" and "expand" in pending_at(present):
            raise errors.SchemaMismatch(
                backend, _shown(present.get("expand")), f"{heads()['expand']} before contracting"
            )
        for name in BRANCHES:
            if branch in (None, name) and name in pending_at(present):
                _upgrade(connection, name)
        reached = _present(connection)
    LOG.info("Schema of %(backend)s is at %(version)s", {"backend": backend, "version": reached})
    return {name: reached.get(name) for name in BRANCHES}


def version(engine: sa.Engine) -> Mapping[str, str | None]:
    """Return the revision per branch that a database is at, None before its first.

    :raises ConfigurationError: the database refuses to be opened
    :raises BackendUnavailable: it did not answer
    """
    with failures.translated_at_opening(engine.url), engine.connect() as connection:
        present = _present(connection)
    return {name: present.get(name) for name in BRANCHES}


@functools.cache
def heads() -> Mapping[str, str]:
    """Return the revision per branch that this release leads to; the scripts are read once."""
    found = script.ScriptDirectory.from_config(_config()).get_heads()
    return types.MappingProxyType({_branch_of(revision): revision for revision in found})


def pending(engine: sa.Engine) -> list[str]:
    """Return the branches that :func:`sync` would work on.

    :raises ConfigurationError: the database refuses to be opened
    :raises BackendUnavailable: it did not answer
    """
    return pending_at(version(engine))


def pending_at(present: Mapping[str, str | None]) -> list[str]:
    """Return the branches that :func:`sync` would work on, from a :func:`version`."""
    known = _known()
    result = []
    for name, wanted in heads().items():
        revision = present.get(name)
        if revision != wanted and (revision is None or revision in known):
            result.append(name)
    return sorted(result, key=BRANCHES.index)


def check(engine: sa.Engine) -> list[str]:
    """Return what is wrong with a database's schema, a sentence each; empty if it fits.

    :raises ConfigurationError: the database refuses to be opened
    :raises BackendUnavailable: it did not answer
    """
    present = version(engine)
    wanted = heads()
    findings = []
    for name in pending_at({key: value for key, value in present.items() if value}):
        findings.append(
            f"{name}: at {_shown(present[name])}, {wanted[name]} is pending: run "
            "'nova-nodb-manage db sync'"
        )
    known = _known()
    for name, revision in present.items():
        if revision is not None and revision not in known:
            findings.append(f"{name}: {revision} is of a newer release than this one")
    return findings


def require(engine: sa.Engine, present: Mapping[str, str | None]) -> None:
    """Make sure that this release can work with a database.

    A newer release's expansion is none of our business; its contraction is.

    :param present: its :func:`version`
    :raises SchemaMismatch: it cannot
    """
    wanted = heads()
    known = _known()
    for name in BRANCHES:
        revision = present[name]
        newer = revision is not None and revision not in known
        # Contractions that are pending hurt nobody: they only remove.
        wrong = newer if name == "contract" else (revision != wanted[name] and not newer)
        if wrong:
            raise errors.SchemaMismatch(
                failures.backend_name(engine.url), _shown(revision), wanted[name]
            )


def _config() -> config.Config:
    settings = config.Config()
    settings.set_main_option("script_location", str(_DIRECTORY).replace("%", "%%"))
    settings.set_main_option("path_separator", "newline")
    locations = "\n".join(str(_DIRECTORY / "versions" / name) for name in BRANCHES)
    settings.set_main_option("version_locations", locations.replace("%", "%%"))
    return settings


def _branch_of(revision: str) -> str:
    return revision.partition("_")[0]


@functools.cache
def _known() -> frozenset[str]:
    scripts = script.ScriptDirectory.from_config(_config())
    return frozenset(found.revision for found in scripts.walk_revisions())


def _present(connection: sa.Connection) -> dict[str, str]:
    # Not by alembic's context, which takes longer than the questions: each opening asks.
    if not connection.dialect.has_table(connection, schema.VERSION_TABLE):
        return {}
    found = connection.execute(_REVISIONS).scalars()
    return {_branch_of(revision): revision for revision in found}


def _shown(revision: str | None) -> str:
    return revision or "none"


def _upgrade(connection: sa.Connection, branch: str) -> None:
    settings = _config()
    settings.attributes["connection"] = connection
    command.upgrade(settings, f"{branch}@head")


@contextlib.contextmanager
def _exclusive(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Lend a connection in a transaction, one migration at a time."""
    with engine.connect() as connection:
        # In SQLite the writer's BEGIN IMMEDIATE is the lock.
        with engines.as_writer(connection).begin():
            dialect = connection.dialect.name
            if dialect == "postgresql":
                _run(connection, "SELECT pg_advisory_xact_lock(:number)", number=_LOCK_NUMBER)
            elif dialect == "mysql":
                # DDL commits by itself there: a lock of the session.
                lock = {"name": _LOCK_NAME, "wait": _LOCK_SECONDS}
                _run(connection, "SELECT GET_LOCK(:name, :wait)", **lock)
            try:
                yield connection
            finally:
                if dialect == "mysql" and not connection.invalidated:
                    _run(connection, "SELECT RELEASE_LOCK(:name)", name=_LOCK_NAME)


def _require_utf8(connection: sa.Connection) -> None:
    """Refuse to make tables that do not hold every name: the batch it is in would fail for good.

    :raises ConfigurationError: PostgreSQL's database is in another encoding
    """
    if connection.dialect.name != "postgresql":
        return  # MySQL's columns are bytes, SQLite's always UTF-8
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding != "UTF8":
        url = connection.engine.url
        raise errors.ConfigurationError(
            f"[{options.GROUP}] connection",
            url.render_as_string(hide_password=True),
            f"the database's encoding is {encoding}, which does not hold the names of all hosts: "
            "create it with ENCODING 'UTF8' TEMPLATE template0",
        )


def _run(connection: sa.Connection, statement: str, **parameters: Any) -> None:
    connection.execute(sa.text(statement), parameters)
