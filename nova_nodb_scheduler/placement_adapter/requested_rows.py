# SPDX-License-Identifier: Apache-2.0
"""Reads what a request names by one statement, before anything is locked.

Rows of six tables come one below the other, each as one text (:mod:`.packed_rows`). All text is
cast, so that columns of different collations do not meet. One statement sees one state of the
database, also where a transaction does not: what a consumer holds belongs to the generation that is
read with it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import attrs
import sqlalchemy as sa
from placement import db_api
from placement.db.sqlalchemy import models

from nova_nodb_scheduler.placement_adapter import packed_rows

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
    :param held: ids of allocations by the consumer's uuid in lower case: to MySQL's collation they
        may be of a record that has it in another. Of two names that differ in case alone, these are
        those of both
    """

    providers: dict[str, tuple[int, str, str | None, int | None]] = attrs.field(factory=dict)
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
        lines = connection.execute(_STATEMENT, named).scalars().all()
    found = RequestedRows()
    for line in lines:
        _PUTS[int(line[0])](found, line)
    return found


def _put_provider(found: RequestedRows, line: str) -> None:
    number, generation, uuid, name = packed_rows.unpacked(line, 3)
    # What is there begins with a mark.
    found.providers[uuid] = (
        int(number),
        uuid,
        name[1:] if name else None,
        packed_rows.number(generation),
    )


def _put_project(found: RequestedRows, line: str) -> None:
    number, name = packed_rows.unpacked(line, 1)
    found.projects[name] = int(number)


def _put_user(found: RequestedRows, line: str) -> None:
    number, name = packed_rows.unpacked(line, 1)
    found.users[name] = int(number)


def _put_type(found: RequestedRows, line: str) -> None:
    number, name = packed_rows.unpacked(line, 1)
    found.types[name] = int(number)


def _put_consumer(found: RequestedRows, line: str) -> None:
    words = packed_rows.unpacked(line, 7)
    number, generation, type_id, project_id, user_id, uuid, project, user = words
    found.consumers[uuid] = {
        "id": int(number),
        "uuid": uuid,
        "generation": int(generation),
        "consumer_type_id": packed_rows.number(type_id),
        "project_id": int(project_id),
        "project_external_id": packed_rows.text_of(project),
        "user_id": int(user_id),
        "user_external_id": user,
        "created_at": None,
        "updated_at": None,
    }


def _put_allocation(found: RequestedRows, line: str) -> None:
    number, consumer = packed_rows.unpacked(line, 1)
    found.held.setdefault(consumer.lower(), []).append(int(number))


#: By kind of row.
_PUTS = (_put_provider, _put_project, _put_user, _put_type, _put_consumer, _put_allocation)


# -- the statement --------------------------------------------------------------------


def _statement() -> Any:
    def named(name: str) -> Any:
        return sa.bindparam(name, expanding=True)

    def branch(kind: int, words: tuple[Any, ...], text: Any) -> Any:
        return sa.select(packed_rows.packed(kind, words, text).label("line"))

    consumers = _CONSUMERS.join(_PROJECTS, _CONSUMERS.c.project_id == _PROJECTS.c.id).join(
        _USERS, _CONSUMERS.c.user_id == _USERS.c.id
    )
    of_providers, of_consumers = _PROVIDERS.c, _CONSUMERS.c
    name = packed_rows.or_nothing(of_providers.name, "=")
    words = (
        of_consumers.id,
        of_consumers.generation,
        packed_rows.or_nothing(of_consumers.consumer_type_id),
        of_consumers.project_id,
        of_consumers.user_id,
        of_consumers.uuid,
        packed_rows.as_word(_PROJECTS.c.external_id),
    )
    return sa.union_all(
        branch(
            _PROVIDER,
            (of_providers.id, packed_rows.or_nothing(of_providers.generation), of_providers.uuid),
            name,
        ).where(of_providers.uuid.in_(named("providers"))),
        branch(_PROJECT, (_PROJECTS.c.id,), _PROJECTS.c.external_id).where(
            _PROJECTS.c.external_id.in_(named("projects"))
        ),
        branch(_USER, (_USERS.c.id,), _USERS.c.external_id).where(
            _USERS.c.external_id.in_(named("users"))
        ),
        branch(_TYPE, (_TYPES.c.id,), _TYPES.c.name).where(_TYPES.c.name.in_(named("types"))),
        branch(_CONSUMER, words, _USERS.c.external_id)
        .select_from(consumers)
        .where(of_consumers.uuid.in_(named("consumers"))),
        branch(_ALLOCATION, (_ALLOCATIONS.c.id,), _ALLOCATIONS.c.consumer_id).where(
            _ALLOCATIONS.c.consumer_id.in_(named("consumers"))
        ),
    )


#: Made once: its compiled form is found by it.
_STATEMENT = _statement()
