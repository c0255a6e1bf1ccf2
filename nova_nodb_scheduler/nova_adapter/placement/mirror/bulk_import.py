# SPDX-License-Identifier: Apache-2.0
"""Fills the mirror with pages read out of Placement's own database, beside what runs.

What is selected and joined is what Placement's own answers hold: a provider whose
root is gone is not listed, an allocation whose consumer has no row is not shown.
So the records are those that :mod:`.placement_reader` makes.

Over HTTP a tree costs four requests. Here a page of trees costs
:data:`STATEMENTS_A_PAGE`, whatever its size, in one transaction that sees one
moment.

It says nothing in namespace ``mirrors``: the keeper's next sweep compares all
generations with one listing, reads what differs, and declares the mirror
complete. So whatever this left out, or read of a replica that lags, is found
before any scheduler trusts it.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import sqlalchemy as sa

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.placement.mirror import provider_trees, tree_publisher
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import publisher as publisher_module

#: Roots, providers, inventories, traits, aggregates, allocations.
STATEMENTS_A_PAGE = 6

_INVENTORY = ("total", "reserved", "min_unit", "max_unit", "step_size")


def _table(name: str, integers: str, *others: sa.ColumnClause[Any]) -> sa.TableClause:
    return sa.table(name, *(sa.column(each, sa.Integer) for each in integers.split()), *others)


def _text(name: str) -> sa.ColumnClause[str]:
    return sa.column(name, sa.String)


PROVIDERS = _table(
    "resource_providers",
    "id generation root_provider_id parent_provider_id",
    _text("uuid"),
    _text("name"),
)
_INVENTORIES = _table(
    "inventories",
    " ".join(("resource_provider_id", "resource_class_id", *_INVENTORY)),
    sa.column("allocation_ratio", sa.Float),
)
_CLASSES = _table("resource_classes", "id", _text("name"))
_TRAITS = _table("traits", "id", _text("name"))
_PROVIDER_TRAITS = _table("resource_provider_traits", "resource_provider_id trait_id")
_AGGREGATES = _table("placement_aggregates", "id", _text("uuid"))
_PROVIDER_AGGREGATES = _table("resource_provider_aggregates", "resource_provider_id aggregate_id")
_ALLOCATIONS = _table(
    "allocations", "resource_provider_id resource_class_id used", _text("consumer_id")
)
_CONSUMERS = _table("consumers", "id project_id user_id", _text("uuid"))
_PROJECTS = _table("projects", "id")
_USERS = _table("users", "id")
TABLES = (
    *(PROVIDERS, _INVENTORIES, _CLASSES, _TRAITS, _PROVIDER_TRAITS, _AGGREGATES),
    *(_PROVIDER_AGGREGATES, _ALLOCATIONS, _CONSUMERS, _PROJECTS, _USERS),
)


@attrs.frozen
class TreePage:
    """Provider trees as they were in Placement's database at one moment.

    :param states: record without its times, by root uuid
    :param last: where the next page begins
    :param providers: how many were read
    """

    states: Mapping[str, Mapping[str, Any]]
    last: int
    providers: int


def begin(connection: sa.Connection) -> None:
    """Have all statements of the transaction see the same moment."""
    if connection.dialect.name != "sqlite":
        connection.execution_options(isolation_level="REPEATABLE READ")
        return
    connection.begin()
    driver: Any = connection.connection.dbapi_connection
    if not driver.in_transaction:
        # Python's driver begins none for SELECT.
        connection.exec_driver_sql("BEGIN")


def read_page(connection: sa.Connection, after: int, trees_a_page: int) -> TreePage | None:
    """Read the next trees; None after the last one.

    :param connection: in a transaction that :func:`begin` began
    """
    root_id = PROVIDERS.c.root_provider_id
    ids = sa.select(root_id).distinct().where(root_id > after).order_by(root_id)
    roots = connection.scalars(ids.limit(trees_a_page)).all()
    if not roots:
        return None
    last = int(roots[-1])
    # A range of an index: shorter to parse than a list, and without a limit of its length.
    within = sa.and_(root_id > after, root_id <= last)
    by_id, by_root = _members(connection, within)
    parts = _parts(connection, within, by_id)
    allocations = _allocations(connection, within, by_id)
    states = {}
    for root, members in by_root.items():
        state = _state(root, members, parts, allocations.get(root, {}))
        if state is not None:
            states[root] = state
    return TreePage(states, last, len(by_id))


def _state(
    root: str,
    members: Sequence[provider_trees.ListedProvider],
    parts: Mapping[str, Mapping[str, Any]],
    allocations: Mapping[str, Mapping[str, int]],
) -> Mapping[str, Any] | None:
    if not any(member.uuid == root for member in members):
        return None
    try:
        provider_trees.check_shape(root, members)
        own = {member.uuid: parts[member.uuid] for member in members}
        return provider_trees.record(root, members, own, allocations)
    except provider_trees.BrokenTree as broken:
        return provider_trees.broken_record(root, members, broken.reason)


def _members(
    connection: sa.Connection, within: sa.ColumnElement[bool]
) -> tuple[
    dict[int, provider_trees.ListedProvider], dict[str, list[provider_trees.ListedProvider]]
]:
    root, parent = PROVIDERS.alias("root"), PROVIDERS.alias("parent")
    rows = connection.execute(
        sa.select(
            PROVIDERS.c.id,
            PROVIDERS.c.uuid,
            PROVIDERS.c.name,
            PROVIDERS.c.generation,
            root.c.uuid.label("root"),
            parent.c.uuid.label("parent"),
        )
        .select_from(
            PROVIDERS.join(root, PROVIDERS.c.root_provider_id == root.c.id).outerjoin(
                parent, PROVIDERS.c.parent_provider_id == parent.c.id
            )
        )
        .where(within)
    )
    by_id: dict[int, provider_trees.ListedProvider] = {}
    by_root: dict[str, list[provider_trees.ListedProvider]] = {}
    for number, *listed in rows:
        provider = by_id[number] = provider_trees.ListedProvider(*listed)
        by_root.setdefault(provider.root, []).append(provider)
    return by_id, by_root


def _parts(
    connection: sa.Connection,
    within: sa.ColumnElement[bool],
    by_id: Mapping[int, provider_trees.ListedProvider],
) -> dict[str, dict[str, Any]]:
    parts: dict[int, dict[str, Any]] = {
        number: {
            "generation": provider.generation,
            "inventories": {},
            "traits": [],
            "aggregates": [],
        }
        for number, provider in by_id.items()
    }
    fields = (*_INVENTORY, "allocation_ratio")
    for number, name, *values in _of_providers(
        connection,
        within,
        _INVENTORIES,
        [(_CLASSES, _CLASSES.c.id == _INVENTORIES.c.resource_class_id)],
        _CLASSES.c.name,
        *(_INVENTORIES.c[field] for field in fields),
    ):
        if number in parts:
            parts[number]["inventories"][name] = dict(zip(fields, values, strict=True))
    for field, link, named, name in (
        ("traits", _PROVIDER_TRAITS, _TRAITS, _TRAITS.c.name),
        ("aggregates", _PROVIDER_AGGREGATES, _AGGREGATES, _AGGREGATES.c.uuid),
    ):
        to = link.c[f"{field[:-1]}_id"]
        for number, found in _of_providers(
            connection, within, link, [(named, named.c.id == to)], name
        ):
            if number in parts:
                parts[number][field].append(found)
    return {by_id[number].uuid: part for number, part in parts.items()}


def _allocations(
    connection: sa.Connection,
    within: sa.ColumnElement[bool],
    by_id: Mapping[int, provider_trees.ListedProvider],
) -> dict[str, dict[str, dict[str, int]]]:
    """Return what stands on the roots: by root, consumer and class."""
    found: dict[str, dict[str, dict[str, int]]] = collections.defaultdict(dict)
    for number, consumer, name, used in _of_providers(
        connection,
        sa.and_(within, PROVIDERS.c.id == PROVIDERS.c.root_provider_id),
        _ALLOCATIONS,
        [
            (_CLASSES, _CLASSES.c.id == _ALLOCATIONS.c.resource_class_id),
            (_CONSUMERS, _CONSUMERS.c.uuid == _ALLOCATIONS.c.consumer_id),
            (_PROJECTS, _PROJECTS.c.id == _CONSUMERS.c.project_id),
            (_USERS, _USERS.c.id == _CONSUMERS.c.user_id),
        ],
        _CONSUMERS.c.uuid,
        _CLASSES.c.name,
        _ALLOCATIONS.c.used,
    ):
        if number in by_id:
            found[by_id[number].uuid].setdefault(consumer, {})[name] = used
    return found


def _of_providers(
    connection: sa.Connection,
    within: sa.ColumnElement[bool],
    table: sa.TableClause,
    named: Sequence[tuple[sa.TableClause, sa.ColumnElement[bool]]],
    *columns: sa.ColumnElement[Any],
) -> Sequence[sa.Row[Any]]:
    """Select rows of a table that belong to the providers of a page, with these' ids first.

    In MySQL and MariaDB in this order of tables: by what they know of a large one they may begin
    with names, of which there are few, and read all that has each of them, for each page.

    :param named: what is joined behind that table, and by what
    """
    source: sa.FromClause = PROVIDERS.join(table, PROVIDERS.c.id == table.c.resource_provider_id)
    for each, condition in named:
        source = source.join(each, condition)
    selected = sa.select(PROVIDERS.c.id, *columns).select_from(source).where(within)
    for dialect in ("mysql", "mariadb"):
        selected = selected.prefix_with("STRAIGHT_JOIN", dialect=dialect)
    return connection.execute(selected).all()


class PlacementDatabaseError(errors.NodbError):
    """Placement's database cannot be read.

    :param database: its URL, without the password
    :param reason: what was found, or what the driver said
    """

    def __init__(self, database: str, reason: str) -> None:
        super().__init__(database, reason)
        self.database, self.reason = database, reason

    def __str__(self) -> str:
        return (
            f"Placement's database {self.database} cannot be read: {self.reason}. Give the URL "
            "of [placement_database] connection in placement.conf, or one for a read-only account"
        )


class PlacementDatabase:
    """Placement's tables, read only; one thread.

    :param engine: of Placement's database
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self.name = engine.url.render_as_string(hide_password=True)

    @classmethod
    def at(cls, url: str) -> PlacementDatabase:
        """Return the database of a URL; no I/O yet.

        :raises PlacementDatabaseError: the URL or its driver is none
        """
        try:
            parsed = sa.engine.make_url(url)
        except (sa.exc.ArgumentError, ValueError) as error:
            # Its text may hold the password.
            raise PlacementDatabaseError(
                "(URL not shown)", "this is no database URL such as mysql+pymysql://user:pw@host/db"
            ) from error
        try:
            return cls(sa.create_engine(parsed))
        except (sa.exc.SQLAlchemyError, ImportError) as error:
            name = parsed.render_as_string(hide_password=True)
            reason = f"the driver {parsed.drivername!r} is not installed ({error})"
            raise PlacementDatabaseError(name, reason) from error

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def connect(self) -> None:
        """Connect, and ask nothing; blocks as long as the driver does.

        :raises PlacementDatabaseError: it is down
        """
        try:
            with self._engine.connect():
                pass
        except sa.exc.SQLAlchemyError as error:
            raise self._error(error) from error

    def count(self) -> int:
        """Return how many trees there are.

        :raises PlacementDatabaseError: it is down, or not Placement's
        """
        try:
            with self._engine.connect() as connection:
                there = set(sa.inspect(connection).get_table_names())
                missing = sorted({table.name for table in TABLES} - there)
                if missing:
                    reason = f"it has no table {', '.join(missing)}: is it Placement's?"
                    raise PlacementDatabaseError(self.name, reason)
                roots = sa.func.count(sa.distinct(PROVIDERS.c.root_provider_id))
                return int(connection.execute(sa.select(roots)).scalar_one())
        except sa.exc.SQLAlchemyError as error:
            raise self._error(error) from error

    def page(self, after: int, trees_a_page: int) -> TreePage | None:
        """Read the next trees; None after the last one.

        :param after: :attr:`TreePage.last` of the page before, 0 for the first
        :raises PlacementDatabaseError: it is down, or of a release unknown here
        """
        try:
            with self._engine.connect() as connection:
                begin(connection)
                try:
                    return read_page(connection, after, trees_a_page)
                finally:
                    connection.rollback()
        except sa.exc.SQLAlchemyError as error:
            raise self._error(error) from error

    def _error(self, error: sa.exc.SQLAlchemyError) -> PlacementDatabaseError:
        said = getattr(error, "orig", None) or error
        return PlacementDatabaseError(self.name, f"{type(said).__name__}: {said}")


_TIMES = ("read_at", "read_until", "whole_at", "written_at")


@attrs.define
class BulkImportResult:
    """What became of an import out of Placement's database.

    :param written: records made or changed
    :param unchanged: records that held the same already
    :param newer: records left as they are, for they hold what was written
        later; the keeper reads these trees if they differ from Placement
    :param broken: trees that cannot be used, with their reason in the record
    :param refused: records that cannot be written; the log tells why
    """

    trees: int = 0
    providers: int = 0
    written: int = 0
    unchanged: int = 0
    newer: int = 0
    broken: int = 0
    refused: int = 0
    seconds: float = 0.0


def fill(
    database: PlacementDatabase,
    synchronizer: contract.Synchronizer,
    publisher: publisher_module.Publisher,
    trees_a_page: int,
    progress: Callable[[int], None] = lambda trees: None,
) -> BulkImportResult:
    """Read all trees and publish them; may be repeated, and beside live writes.

    :param publisher: of owner ``placement``
    :param progress: told how many trees are done
    :raises PlacementDatabaseError: what was published before stays
    :raises BackendUnavailable: the same
    """
    result = BulkImportResult()
    began = time.monotonic()
    after = 0
    while True:
        # Before the transaction: what a scheduler wrote later is not in it.
        began_at = synchronizer.now_seconds()
        page = database.page(after, trees_a_page)
        if page is None:
            break
        after = page.last
        times = tree_publisher.ReadingTimes(began_at, synchronizer.now_seconds())
        _publish(page, times, publisher, result, synchronizer.now_seconds)
        progress(result.trees)
    result.seconds = round(time.monotonic() - began, 3)
    return result


def _publish(
    page: TreePage,
    times: tree_publisher.ReadingTimes,
    publisher: publisher_module.Publisher,
    result: BulkImportResult,
    now_seconds: tree_publisher.NowSeconds,
) -> None:
    newer: set[str] = set()
    report = publisher.publish(
        {
            records.RecordKey(known_namespaces.PROVIDERS.name, root): _imported(
                root, state, times, newer, now_seconds
            )
            for root, state in page.states.items()
        }
    )
    left = newer | {key.key for key in report.failed}
    result.trees += len(page.states)
    result.providers += page.providers
    result.written += report.published
    result.newer += len(left)
    result.refused += len(report.rejected)
    result.unchanged += len(page.states) - report.published - len(left) - len(report.rejected)
    result.broken += sum("broken" in state for state in page.states.values())


def _imported(
    root: str,
    state: Mapping[str, Any],
    times: tree_publisher.ReadingTimes,
    newer: set[str],
    now_seconds: tree_publisher.NowSeconds,
) -> publisher_module.Compute:
    written = tree_publisher.PublishedTrees()
    replaced = tree_publisher.replaced(state, times, root, written, now_seconds)

    def compute(current: publisher_module.State | None) -> publisher_module.Computed:
        newer.discard(root)
        if current is not None and _same(current, state):
            return publisher_module.UNCHANGED
        wanted = publisher_module.UNCHANGED if _behind(state, current) else replaced(current)
        if wanted is publisher_module.UNCHANGED:
            newer.add(root)
        return wanted

    return compute


def _same(current: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    return {name: value for name, value in current.items() if name not in _TIMES} == state


def _behind(state: Mapping[str, Any], current: Mapping[str, Any] | None) -> bool:
    """Tell whether a record shows a later generation of a provider than was read.

    Or one of an earlier provider of the same uuid: the keeper's sweep tells.
    """
    if current is None:
        return False
    children = state["children"]
    return bool(current["generation"] > state["generation"]) or any(
        child["generation"] > children[uuid]["generation"]
        for uuid, child in current["children"].items()
        if uuid in children
    )
