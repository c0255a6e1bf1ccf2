# SPDX-License-Identifier: Apache-2.0
"""Reads what a request names by one statement, before anything is locked.

Rows of six tables come one below the other. All text is cast, so that columns of different
collations do not meet. One statement sees one state of the database, also where a transaction
does not: what a consumer holds belongs to the generation that is read with it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import attrs
import sqlalchemy as sa
from placement import db_api
from placement.db.sqlalchemy import models

_PROVIDERS = models.ResourceProvider.__table__
_PROJECTS = models.Project.__table__
_USERS = models.User.__table__
_TYPES = models.ConsumerType.__table__
_CONSUMERS = models.Consumer.__table__
_ALLOCATIONS = models.Allocation.__table__

_PROVIDER, _PROJECT, _USER, _TYPE, _CONSUMER, _ALLOCATION = range(6)


@attrs.frozen
class RequestedRows:
    """What there is of what a request names; each by the name that the database has for it.

    :param providers: id, uuid, name, generation by uuid
    :param projects: ids by external id
    :param users: the same
    :param types: ids of consumer types by name
    :param consumers: by uuid, as Placement's own reading of one returns it, but for its times
    :param held: ids of allocations by the consumer's uuid
    """

    providers: dict[str, tuple[int, str, str | None, int]] = attrs.field(factory=dict)
    projects: dict[str, int] = attrs.field(factory=dict)
    users: dict[str, int] = attrs.field(factory=dict)
    types: dict[str, int] = attrs.field(factory=dict)
    consumers: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    held: dict[str, list[int]] = attrs.field(factory=dict)


def read(
    consumers: Collection[str],
    *,
    providers: Collection[str] = (),
    projects: Collection[str] = (),
    users: Collection[str] = (),
    types: Collection[str] = (),
) -> RequestedRows:
    """Return the rows of what is named, by one statement, on a connection of its own."""
    named = {
        "providers": list(providers),
        "projects": list(projects),
        "users": list(users),
        "types": list(types),
        "consumers": list(consumers),
    }
    # Not by a session: that ends what has only been read twice.
    with db_api.get_placement_engine().connect() as connection:
        rows = connection.execute(_STATEMENT, named).fetchall()
    found = RequestedRows()
    for kind, number, name, second, third, *numbers in rows:
        _PUTS[kind](found, number, name, second, third, numbers)
    return found


def _put_provider(
    found: RequestedRows, number: int, name: str, second: str, _third: str, more: Any
) -> None:
    found.providers[name] = (number, name, second, more[0])


def _put_project(found: RequestedRows, number: int, name: str, *_rest: Any) -> None:
    found.projects[name] = number


def _put_user(found: RequestedRows, number: int, name: str, *_rest: Any) -> None:
    found.users[name] = number


def _put_type(found: RequestedRows, number: int, name: str, *_rest: Any) -> None:
    found.types[name] = number


def _put_consumer(
    found: RequestedRows, number: int, name: str, second: str, third: str, more: Any
) -> None:
    generation, type_id, project_id, user_id = more
    found.consumers[name] = {
        "id": number,
        "uuid": name,
        "generation": generation,
        "consumer_type_id": type_id,
        "project_id": project_id,
        "project_external_id": second,
        "user_id": user_id,
        "user_external_id": third,
        "created_at": None,
        "updated_at": None,
    }


def _put_allocation(found: RequestedRows, number: int, name: str, *_rest: Any) -> None:
    found.held.setdefault(name, []).append(number)


#: By kind of row.
_PUTS = (_put_provider, _put_project, _put_user, _put_type, _put_consumer, _put_allocation)


# -- the statement --------------------------------------------------------------------


def _branch(kind: int, number: Any, texts: tuple[Any, ...], numbers: tuple[Any, ...] = ()) -> Any:
    """Return a selection of a row's kind, id, three texts and four numbers."""
    filled: list[Any] = [sa.cast(each, sa.String()) for each in texts]
    filled += [sa.literal_column("''", sa.String())] * (3 - len(texts))
    zero = sa.literal_column("0", sa.Integer())
    return sa.select(
        sa.literal_column(str(kind), sa.Integer()).label("kind"),
        number.label("number"),
        *(each.label(f"text{place}") for place, each in enumerate(filled)),
        *(
            each.label(f"number{place}")
            for place, each in enumerate((*numbers, *[zero] * (4 - len(numbers))))
        ),
    )


def _statement() -> Any:
    def named(name: str) -> Any:
        return sa.bindparam(name, expanding=True)

    consumers = _CONSUMERS.join(_PROJECTS, _CONSUMERS.c.project_id == _PROJECTS.c.id).join(
        _USERS, _CONSUMERS.c.user_id == _USERS.c.id
    )
    return sa.union_all(
        _branch(
            _PROVIDER,
            _PROVIDERS.c.id,
            (_PROVIDERS.c.uuid, _PROVIDERS.c.name),
            (_PROVIDERS.c.generation,),
        ).where(_PROVIDERS.c.uuid.in_(named("providers"))),
        _branch(_PROJECT, _PROJECTS.c.id, (_PROJECTS.c.external_id,)).where(
            _PROJECTS.c.external_id.in_(named("projects"))
        ),
        _branch(_USER, _USERS.c.id, (_USERS.c.external_id,)).where(
            _USERS.c.external_id.in_(named("users"))
        ),
        _branch(_TYPE, _TYPES.c.id, (_TYPES.c.name,)).where(_TYPES.c.name.in_(named("types"))),
        _branch(
            _CONSUMER,
            _CONSUMERS.c.id,
            (_CONSUMERS.c.uuid, _PROJECTS.c.external_id, _USERS.c.external_id),
            (
                _CONSUMERS.c.generation,
                _CONSUMERS.c.consumer_type_id,
                _CONSUMERS.c.project_id,
                _CONSUMERS.c.user_id,
            ),
        )
        .select_from(consumers)
        .where(_CONSUMERS.c.uuid.in_(named("consumers"))),
        _branch(_ALLOCATION, _ALLOCATIONS.c.id, (_ALLOCATIONS.c.consumer_id,)).where(
            _ALLOCATIONS.c.consumer_id.in_(named("consumers"))
        ),
    )


#: Made once: its compiled form is found by it.
_STATEMENT = _statement()
