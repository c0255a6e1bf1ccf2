# SPDX-License-Identifier: Apache-2.0
"""Selects a page of provider trees from Placement's tables and makes their records.

What is selected and joined is what Placement's own answers hold: a provider
whose root is gone is not listed, an allocation whose consumer has no row is
not shown. So the records are those that :mod:`.reading` makes.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import sqlalchemy as sa

from nova_nodb_scheduler.nova_adapter.placement import trees

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
class Page:
    """Trees as they were at one moment.

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


def read(connection: sa.Connection, after: int, trees_a_page: int) -> Page | None:
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
    return Page(states, last, len(by_id))


def _state(
    root: str,
    members: Sequence[trees.Provider],
    parts: Mapping[str, Mapping[str, Any]],
    allocations: Mapping[str, Mapping[str, int]],
) -> Mapping[str, Any] | None:
    if not any(member.uuid == root for member in members):
        return None
    try:
        trees.check_shape(root, members)
        own = {member.uuid: parts[member.uuid] for member in members}
        return trees.record(root, members, own, allocations)
    except trees.Broken as broken:
        return trees.broken_record(root, members, broken.reason)


def _members(
    connection: sa.Connection, within: sa.ColumnElement[bool]
) -> tuple[dict[int, trees.Provider], dict[str, list[trees.Provider]]]:
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
    by_id: dict[int, trees.Provider] = {}
    by_root: dict[str, list[trees.Provider]] = {}
    for number, *listed in rows:
        provider = by_id[number] = trees.Provider(*listed)
        by_root.setdefault(provider.root, []).append(provider)
    return by_id, by_root


def _parts(
    connection: sa.Connection,
    within: sa.ColumnElement[bool],
    by_id: Mapping[int, trees.Provider],
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
        _INVENTORIES.join(_CLASSES, _CLASSES.c.id == _INVENTORIES.c.resource_class_id),
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
            connection, within, link, link.join(named, named.c.id == to), name
        ):
            if number in parts:
                parts[number][field].append(found)
    return {by_id[number].uuid: part for number, part in parts.items()}


def _allocations(
    connection: sa.Connection,
    within: sa.ColumnElement[bool],
    by_id: Mapping[int, trees.Provider],
) -> dict[str, dict[str, dict[str, int]]]:
    """Return what stands on the roots: by root, consumer and class."""
    found: dict[str, dict[str, dict[str, int]]] = collections.defaultdict(dict)
    for number, consumer, name, used in _of_providers(
        connection,
        sa.and_(within, PROVIDERS.c.id == PROVIDERS.c.root_provider_id),
        _ALLOCATIONS,
        _ALLOCATIONS.join(_CLASSES, _CLASSES.c.id == _ALLOCATIONS.c.resource_class_id)
        .join(_CONSUMERS, _CONSUMERS.c.uuid == _ALLOCATIONS.c.consumer_id)
        .join(_PROJECTS, _PROJECTS.c.id == _CONSUMERS.c.project_id)
        .join(_USERS, _USERS.c.id == _CONSUMERS.c.user_id),
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
    joined: sa.FromClause,
    *columns: sa.ColumnElement[Any],
) -> Sequence[sa.Row[Any]]:
    """Select rows of a table that belong to the providers of a page, with these' ids first."""
    return connection.execute(
        sa.select(PROVIDERS.c.id, *columns)
        .select_from(joined.join(PROVIDERS, PROVIDERS.c.id == table.c.resource_provider_id))
        .where(within)
    ).all()
