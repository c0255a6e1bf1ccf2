# SPDX-License-Identifier: Apache-2.0
"""Reads what a request names, all at once, before anything is written.

Stands for what ``placement.handlers`` does consumer by consumer and provider by
provider, with the same answers. Placement makes a new consumer here, in a
transaction of its own, and deletes it again where the write fails. This keeps
it with the request, and the write makes it in its one transaction.

Two names of one request may be one consumer to the database: MySQL's may know no
case. Nor is each a uuid: the ``$`` of Placement's schemas lets a line end, which
MySQL may leave away as it keeps the name. Which record such a name has only the
database can say: consumers so named are looked for and made by Placement's own
function, one by one as ever, and written under the locks as all others. So are
those that have allocations and no record, for Placement finds them by the record.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs
import sqlalchemy as sa
import webob
from oslo_db import exception as db_exc
from placement import db_api, errors, exception
from placement.handlers import allocation as allocation_handler
from placement.handlers import util as data_util
from placement.objects import allocation as alloc_obj
from placement.objects import consumer as consumer_obj
from placement.objects import project as project_obj
from placement.objects import resource_provider as rp_obj
from placement.objects import user as user_obj

from nova_nodb_scheduler.placement_adapter import database_conflicts, requested_rows

#: On Placement's context of a request: the consumers it writes, those of them that Placement's own
#: function made, and the providers it names.
_ATTRIBUTE = "_nodb_requested_consumers"
_MADE_AHEAD = "_nodb_consumers_made_ahead"
_READ_PROVIDERS = "_nodb_requested_providers"

#: Placement's ``ensure_consumer``, or what stands for it.
_Ensure = Callable[..., tuple[Any, bool, Any]]

_PROVIDERS = rp_obj._RP_TBL
_ALLOCATIONS = alloc_obj._ALLOC_TBL
_CONSUMERS = consumer_obj.CONSUMER_TBL

_UUID_LENGTH = 36


@attrs.frozen
class RequestedConsumer:
    """A consumer that a request writes.

    :param consumer: Placement's object; its ``id`` is None while it is to be made
    :param wanted: Placement's ``RequestAttr``: project, user, consumer type
    :param has_generation: the request told the generation it knows, none for a new one
    :param held: ids of its allocations, of the generation that ``consumer`` has. Whoever writes
        others raises that, and whoever removes them removes its record. None where they were not
        read with it
    """

    consumer: Any
    wanted: Any
    has_generation: bool
    held: Sequence[int] | None

    def changes(self) -> dict[str, Any]:
        """Return the columns in which the record is to become what is wanted."""
        consumer, wanted = self.consumer, self.wanted
        changed: dict[str, Any] = {}
        if (wanted.project.external_id, wanted.user.external_id) != (
            consumer.project.external_id,
            consumer.user.external_id,
        ):
            changed.update(project_id=wanted.project.id, user_id=wanted.user.id)
        if wanted.consumer_type_id and wanted.consumer_type_id != consumer.consumer_type_id:
            changed["consumer_type_id"] = wanted.consumer_type_id
        return changed


def of(context: Any) -> Mapping[str, RequestedConsumer]:
    """Return the consumers of a request by their uuids; none where no handler read any."""
    found: Mapping[str, RequestedConsumer] = getattr(context, _ATTRIBUTE, {})
    return found


# -- in the places of functions of placement.handlers ---------------------------------


def inspector_of(
    own: _Ensure,
) -> Callable[[Any, Any, Any], tuple[dict[str, Any], list[Any], dict[str, Any]]]:
    """Return what stands for ``placement.handlers.allocation.inspect_consumers``.

    :param own: ``ensure_consumer`` of Placement
    """

    def inspect_consumers(
        context: Any, data: Mapping[str, Mapping[str, Any]], want_version: Any
    ) -> tuple[dict[str, Any], list[Any], dict[str, Any]]:
        """Read the consumers of a request.

        :returns: consumers by uuid; those that are made already; what is wanted of each
        :raises HTTPConflict: of webob, for another generation than the consumer's
        """
        return _inspected(context, data, want_version, own)

    return inspect_consumers


def ensurer_of(own: _Ensure) -> _Ensure:
    """Return what stands for ``placement.handlers.util.ensure_consumer``, which it may call."""

    def ensure_consumer(
        ctx: Any,
        consumer_uuid: str,
        project_id: str | None,
        user_id: str | None,
        consumer_generation: int | None,
        consumer_type: str | None,
        want_version: Any,
    ) -> tuple[Any, bool, Any]:
        """Read the one consumer of a request.

        :returns: the consumer; whether it is made already; what is wanted of it
        :raises HTTPConflict: of webob, for another generation than the consumer's
        """
        asked = {
            "allocations": (),  # its providers are read when Placement asks for them
            "project_id": project_id,
            "user_id": user_id,
            "consumer_generation": consumer_generation,
            "consumer_type": consumer_type,
        }
        consumers, made, wanted = _inspected(ctx, {consumer_uuid: asked}, want_version, own)
        return consumers[consumer_uuid], bool(made), wanted[consumer_uuid]

    return ensure_consumer


def update_consumers(consumers: Iterable[Any], request_attrs: Mapping[str, Any]) -> None:
    """Stand for the function of ``placement.handlers.util``: the write does it, under its locks.

    :raises KeyError: a consumer's record has it in another case than the request, as in Placement
    """
    for each in consumers:
        if each.uuid not in request_attrs:
            raise KeyError(each.uuid)


def create_allocation_list(
    context: Any, data: Mapping[str, Mapping[str, Any]], consumers: Mapping[str, Any]
) -> list[Any]:
    """Stand for the function of ``placement.handlers.allocation``.

    :raises HTTPBadRequest: of webob, where there is no such provider
    """
    named = dict.fromkeys(name for each in data.values() for name in each["allocations"])
    providers = resource_providers_by_uuid(context, list(named))
    emptied = [consumers[name] for name, each in data.items() if not each["allocations"]]
    found = _held_allocations(context, {each.uuid: each for each in emptied})
    for name, each in data.items():
        for provider, part in each["allocations"].items():
            found += allocation_handler._new_allocations(
                context, providers[provider], consumers[name], part["resources"]
            )
    return found


def resource_providers_by_uuid(ctx: Any, rp_uuids: Collection[str]) -> dict[str, Any]:
    """Stand for the function of ``placement.handlers.allocation``.

    :raises HTTPBadRequest: of webob, where there is no such provider
    """
    read = getattr(ctx, _READ_PROVIDERS, {})
    found = {name: _provider(ctx, *read[name]) for name in rp_uuids if name in read}
    if len(found) == len(rp_uuids):
        return found
    try:
        with db_api.placement_context_manager.reader.using(ctx):
            found |= read_providers(ctx, [name for name in rp_uuids if name not in found])
            for name in rp_uuids:
                if name not in found:
                    # Whether it is there is for the database to say: MySQL's may know no case.
                    found[name] = rp_obj.ResourceProvider.get_by_uuid(ctx, name)
    except exception.NotFound as error:
        # The handler, who deletes them else, does not where this is raised.
        allocation_handler.delete_consumers(getattr(ctx, _MADE_AHEAD, ()))
        raise webob.exc.HTTPBadRequest(
            f"Allocation for resource provider '{name}' that does not exist."
        ) from error
    return found


# -- reading --------------------------------------------------------------------------


def read_providers(context: Any, uuids: Collection[str]) -> dict[str, Any]:
    """Return Placement's objects of providers by uuid, by one statement; some may be missing.

    For within a transaction.
    """
    if not uuids:
        return {}
    columns = _PROVIDERS.c
    query = sa.select(columns.id, columns.uuid, columns.name, columns.generation)
    return {
        row.uuid: _provider(context, *row)
        for row in context.session.execute(query.where(columns.uuid.in_(uuids)))
    }


def _provider(
    context: Any, number: int, uuid: str, name: str | None, generation: int | None
) -> Any:
    """Return Placement's object of a provider."""
    return rp_obj.ResourceProvider(context, id=number, uuid=uuid, name=name, generation=generation)


def read_again(context: Any) -> None:
    """Take the records of consumers that were to be made, and that others have made meanwhile.

    :raises ConcurrentUpdateDetected: of Placement, where the request said there are none
    """
    found = dict(of(context))
    new = {name: each for name, each in found.items() if each.consumer.id is None}
    rows = requested_rows.read(new)
    for name, row in rows.consumers.items():
        if name not in new or new[name].has_generation:
            raise exception.ConcurrentUpdateDetected
        consumer_obj.Consumer._from_db_object(context, new[name].consumer, row)
        found[name] = attrs.evolve(new[name], held=rows.held.get(name.lower(), ()))
    setattr(context, _ATTRIBUTE, found)


def _inspected(
    context: Any,
    data: Mapping[str, Mapping[str, Any]],
    want_version: Any,
    own: _Ensure,
) -> tuple[dict[str, Any], list[Any], dict[str, Any]]:
    made: list[Any] = []
    try:
        found = _requested(context, data, want_version, _Ahead.of(data, own, made))
    except Exception as error:
        allocation_handler.delete_consumers(made)
        if isinstance(error, exception.ConcurrentUpdateDetected):
            raise webob.exc.HTTPConflict(str(error), comment=errors.CONCURRENT_UPDATE) from error
        raise
    setattr(context, _ATTRIBUTE, found)
    setattr(context, _MADE_AHEAD, made)
    return (
        {name: each.consumer for name, each in found.items()},
        made,
        {name: each.wanted for name, each in found.items()},
    )


@attrs.frozen
class _Ahead:
    """The names of a request of which only the database can say whose they are.

    :param made: consumers that were made for them, for who has to delete them
    """

    names: Collection[str]
    ensure: _Ensure
    made: list[Any]

    @classmethod
    def of(cls, data: Collection[str], ensure: _Ensure, made: list[Any]) -> _Ahead:
        records = collections.Counter(name.strip().lower() for name in data)
        if len(records) == len(data) and all(len(name) == _UUID_LENGTH for name in data):
            return cls((), ensure, made)
        odd = {
            name for name in data if len(name) != _UUID_LENGTH or records[name.strip().lower()] > 1
        }
        return cls(odd, ensure, made)

    def consumer(
        self, context: Any, name: str, asked: Mapping[str, Any], want_version: Any
    ) -> RequestedConsumer:
        """Look for one, or make it, as Placement does.

        :raises HTTPConflict: of webob, for another generation than the consumer's
        """
        consumer, is_new, wanted = database_conflicts.tried_again(
            self.ensure,
            context,
            name,
            asked["project_id"],
            asked["user_id"],
            asked.get("consumer_generation"),
            asked.get("consumer_type"),
            want_version,
        )
        if is_new:
            self.made.append(consumer)
        return RequestedConsumer(consumer, wanted, bool(want_version.matches((1, 28))), None)


def _requested(
    context: Any, data: Mapping[str, Mapping[str, Any]], want_version: Any, ahead: _Ahead
) -> dict[str, RequestedConsumer]:
    has_generation = bool(want_version.matches((1, 28)))
    has_type = bool(want_version.matches((1, 38)))
    owners = {name: _owner(context, each) for name, each in data.items()}
    types = [str(each.get("consumer_type")) for each in data.values()] if has_type else []
    try:
        rows = requested_rows.read(
            data,
            providers=dict.fromkeys(name for each in data.values() for name in each["allocations"]),
            projects=dict.fromkeys(project for project, _user in owners.values()),
            users=dict.fromkeys(user for _project, user in owners.values()),
            types=dict.fromkeys(types),
        )
    except (*database_conflicts.ERRORS, ValueError, db_exc.DBInvalidUnicodeParameter) as error:
        if not database_conflicts.is_of_text(error):
            raise
        # What is wrong with those before it is said first.
        rows, ahead = requested_rows.RequestedRows(), attrs.evolve(ahead, names=data.keys())
    setattr(context, _READ_PROVIDERS, rows.providers)
    projects = {
        name: project_obj.Project(context, id=number, external_id=name)
        for name, number in rows.projects.items()
    }
    users = {
        name: user_obj.User(context, id=number, external_id=name)
        for name, number in rows.users.items()
    }
    found = {}
    known = {name.lower() for name in rows.consumers}
    unrecorded = rows.held.keys() - known
    for name, each in data.items():
        if name in ahead.names or (unrecorded and name.lower() in unrecorded):
            found[name] = ahead.consumer(context, name, each, want_version)
            continue
        project_id, user_id = owners[name]
        if project_id not in projects:
            projects[project_id] = database_conflicts.tried_again(
                data_util._get_or_create_project, context, project_id
            )
        if user_id not in users:
            users[user_id] = database_conflicts.tried_again(
                data_util._get_or_create_user, context, user_id
            )
        row = rows.consumers.get(name)
        if row is None and name.lower() in known:
            row = _in_other_case(context, rows, name)
        if has_generation:
            _check_generation(row, each.get("consumer_generation"))
        type_id = _type_id(context, rows, each.get("consumer_type")) if has_type else None
        wanted = data_util.RequestAttr(projects[project_id], users[user_id], type_id)
        # Of all names in this case, for it is the only one of the request.
        held = rows.held.get(name.lower(), ())
        found[name] = RequestedConsumer(
            _consumer(context, name, row, wanted), wanted, has_generation, held
        )
    return found


def _in_other_case(
    context: Any, rows: requested_rows.RequestedRows, name: str
) -> dict[str, Any] | None:
    """Return the row of a consumer where the database knows no case, as MySQL's may."""
    try:
        own = consumer_obj.Consumer.get_by_uuid(context, name).uuid
    except exception.NotFound:
        return None
    # As it was read with what it holds.
    return rows.consumers.get(own)


def _type_id(context: Any, rows: requested_rows.RequestedRows, name: Any) -> int:
    """Return the id of a type of consumers, which is made where there is none."""
    if name in rows.types:
        return rows.types[name]
    made: int = database_conflicts.tried_again(
        data_util.get_or_create_consumer_type_id, context, name
    )
    return made


def _owner(context: Any, asked: Mapping[str, Any]) -> tuple[str, str]:
    if asked["project_id"] is None:
        settings = context.config.placement
        return settings.incomplete_consumer_project_id, settings.incomplete_consumer_user_id
    return asked["project_id"], asked["user_id"]


def _check_generation(row: Mapping[str, Any] | None, known: int | None) -> None:
    """Refuse another generation than the consumer's, in Placement's words."""
    if row is None:
        if known is not None:
            raise webob.exc.HTTPConflict(
                f"consumer generation conflict - expected null but got {known}",
                comment=errors.CONCURRENT_UPDATE,
            )
    elif row["generation"] != known:
        raise webob.exc.HTTPConflict(
            f"consumer generation conflict - expected {row['generation']} but got {known}",
            comment=errors.CONCURRENT_UPDATE,
        )


def _consumer(context: Any, name: str, row: Mapping[str, Any] | None, wanted: Any) -> Any:
    """Return Placement's object of a consumer, with the id None where there is none yet."""
    if row is None:
        return consumer_obj.Consumer(
            context,
            uuid=name,
            project=wanted.project,
            user=wanted.user,
            generation=0,
            consumer_type_id=wanted.consumer_type_id,
        )
    return consumer_obj.Consumer._from_db_object(context, consumer_obj.Consumer(context), row)


def _held_allocations(context: Any, consumers: Mapping[str, Any]) -> list[Any]:
    """Return what consumers hold, as allocations of nothing: to be removed; by one statement.

    Whose an allocation is the database says, as to Placement: it may have the name in another case
    than the record. So may a record that was made again since the consumers were read: what that
    has is its own, which the write refuses.

    :param consumers: by the uuids of their records
    """
    if not consumers:
        return []
    columns = _ALLOCATIONS.c
    query = (
        sa.select(
            columns.id,
            _CONSUMERS.c.uuid.label("consumer_uuid"),
            columns.resource_class_id,
            _PROVIDERS.c.id.label("provider_id"),
            _PROVIDERS.c.uuid.label("provider_uuid"),
            _PROVIDERS.c.name.label("provider_name"),
            _PROVIDERS.c.generation.label("provider_generation"),
        )
        .select_from(
            _ALLOCATIONS.join(_PROVIDERS, columns.resource_provider_id == _PROVIDERS.c.id).join(
                _CONSUMERS, columns.consumer_id == _CONSUMERS.c.uuid
            )
        )
        .where(columns.consumer_id.in_(list(consumers)))
        .order_by(columns.id)
    )
    with db_api.placement_context_manager.reader.using(context):
        rows = context.session.execute(query).fetchall()
    return [
        alloc_obj.Allocation(
            id=row.id,
            resource_provider=_provider(
                context,
                row.provider_id,
                row.provider_uuid,
                row.provider_name,
                row.provider_generation,
            ),
            resource_class=context.rc_cache.string_from_id(row.resource_class_id),
            consumer=consumers.get(row.consumer_uuid)
            or consumer_obj.Consumer(context, uuid=row.consumer_uuid),
            used=0,
        )
        for row in rows
    ]
