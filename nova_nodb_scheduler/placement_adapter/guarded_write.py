# SPDX-License-Identifier: Apache-2.0
"""Writes the allocations of a request under locks of their providers, in one transaction.

Placement reads what is used, writes, and raises the generations of the
providers where nobody else has. Where somebody has, it tries again within the
same transaction: under REPEATABLE READ that reads what was used before the
other's write, with the generation from after it, and so grants what is not
there.

Here the first statement of a transaction locks the rows of its providers, in
the order of their ids, and everything that is judged is read after it: who waits
for the lock sees what the other wrote. MySQL raises the generations by that same
statement, for all that are locked are written to; PostgreSQL, which changes rows
in an order of its own, by the next. What consumers hold is read before, with their
generations, which the write compares. Under REPEATABLE READ of InnoDB the snapshot begins
with the first reading that takes no locks, under READ COMMITTED of PostgreSQL
with each statement. Another try is another transaction.

What one transaction locks, in this order: providers, allocations, consumers.
Placement's other writers keep to parts of it: they write inventories, traits or
aggregates before they raise a provider's generation, and this locks none of
them; a removal deletes allocations before consumers. So allocations are deleted
by their ids, which locks no gaps: new consumers of two requests would else lock
each other out. What deadlocks all the same (Placement's own writers of traits,
re-parenting of several providers, Galera's certification) is tried again, and
becomes Placement's own refusal for an update at the same time.

SQLite has no such locks. There the first statement writes what is there, which
takes the lock of the database.

A request may name provider trees for which it chose its allocations, by their
generations, and by what they consist of but for allocations (:mod:`.tree_conditions`).
They are compared behind the locks, again in each try: who changes what a locked
provider has raises its generation in the same transaction, before this one or after
it. Other members of a tree are not locked: one that changes meanwhile changes after.
"""

from __future__ import annotations

import collections
import contextvars
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs
import sqlalchemy as sa
from oslo_db import exception as db_exc
from oslo_utils import timeutils
from placement import db_api, exception
from placement.objects import allocation as alloc_obj
from placement.objects import consumer as consumer_obj
from placement.objects import resource_provider as rp_obj

from nova_nodb_scheduler.placement_adapter import (
    database_conflicts,
    locked_providers,
    requested_consumers,
    requested_trees,
    standard_classes,
    tree_contents,
)

#: A write that took longer is not tried again: who waits for a lock for InnoDB's 50 seconds
#: would wait as often as Placement tries, and its client has gone.
MOST_SECONDS = 10.0

_ALLOCATIONS = alloc_obj._ALLOC_TBL
_CONSUMERS = consumer_obj.CONSUMER_TBL
_PROVIDERS = rp_obj._RP_TBL

_OF_MYSQL = ("mysql", "mariadb")
#: Where a statement names a good part of a table, MySQL would scan all of it, and keep a lock of
#: each row: of providers and consumers that others write, who wait for it likewise.
_BY_ID = "FORCE INDEX (PRIMARY)"
#: There is no such hint for a removal; this is what keeps it to the rows that it names.
_DELETE_IN_ORDER = sa.text(
    "DELETE FROM allocations WHERE id IN :held ORDER BY id LIMIT :count"
).bindparams(sa.bindparam("held", expanding=True))

# Made once: their compiled forms are found by them.
_OF_IDS = _PROVIDERS.c.id.in_(sa.bindparam("ids", expanding=True))
_LOCK_IN_ORDER = (
    sa.select(_PROVIDERS.c.id)
    .where(_OF_IDS)
    .order_by(_PROVIDERS.c.id)
    # Not a lock that keeps foreign keys from naming the row, where there is a lesser one.
    .with_for_update(key_share=True)
)
#: MySQL locks a row as it changes it.
_RAISE_IN_ORDER = sa.text(
    "UPDATE resource_providers FORCE INDEX (PRIMARY) SET generation = generation + 1,"
    " updated_at = :now WHERE id IN :ids ORDER BY id"
).bindparams(sa.bindparam("ids", expanding=True))
_RAISE = _PROVIDERS.update().where(_OF_IDS).values(generation=_PROVIDERS.c.generation + 1)
_TOUCH = (
    _PROVIDERS.update()
    .where(_OF_IDS)
    .values(generation=_PROVIDERS.c.generation, updated_at=_PROVIDERS.c.updated_at)
)


@attrs.frozen
class _Inserts:
    """The insertion of rows of one table.

    :param returning: for PostgreSQL, which would else be sent a statement for each row; drivers of
        MySQL put the rows together themselves
    """

    plain: sa.Insert
    returning: sa.Insert

    @classmethod
    def into(cls, table: Any) -> _Inserts:
        return cls(table.insert(), table.insert().returning(table.c.id))


_INSERT_ALLOCATIONS = _Inserts.into(_ALLOCATIONS)
_INSERT_CONSUMERS = _Inserts.into(_CONSUMERS)

#: A reshape, whose transaction the write of its allocations belongs to.
_reshaping: contextvars.ContextVar[bool] = contextvars.ContextVar("reshaping", default=False)


class TreesDiffer(exception.ConcurrentUpdateDetected):  # type: ignore[misc]
    """A tree is not what a request took it for: Placement's own refusal, never tried again."""

    msg_fmt = "Provider trees are not what the request names: %(roots)s"


# -- in the places of functions of placement.objects ----------------------------------


def replace_all(context: Any, alloc_list: list[Any]) -> None:
    """Stand for the function of ``placement.objects.allocation``.

    Tries as often as Placement is configured to, each time in a new transaction
    of its own: that of the caller has not begun, for it has sent no statement.

    :raises ResourceProviderConcurrentUpdateDetected: of Placement, after the last try
    :raises TreesDiffer: at once
    """
    if _reshaping.get():
        alloc_obj._set_allocations(context, alloc_list)
        return
    settings = context.config.placement
    tries: int = settings.allocation_conflict_retry_count
    left, begun = tries, time.monotonic()
    restore = _restorer(context, alloc_list)
    while left:
        left -= 1
        try:
            with db_api.placement_context_manager.writer.independent.using(context):
                alloc_obj._set_allocations(context, alloc_list)
            return
        except exception.ResourceProviderConcurrentUpdateDetected:
            pass
        except database_conflicts.ERRORS as error:
            if isinstance(error, db_exc.DBDuplicateEntry):
                restore()
                requested_consumers.read_again(context)
                restore = _restorer(context, alloc_list)
            elif not database_conflicts.is_conflict(error):
                raise
            elif time.monotonic() - begun > MOST_SECONDS:
                break
        alloc_obj.LOG.debug("Retrying allocations write on resource provider generation conflict")
        restore()
        _read_providers_again(context, alloc_list)
    alloc_obj.LOG.warning("Exceeded retry limit of %d on allocations write", tries)
    raise exception.ResourceProviderConcurrentUpdateDetected


def reshaper_of(own: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    """Return what stands for ``placement.objects.reshaper.reshape``, which it calls."""

    def reshape(ctx: Any, inventories: Mapping[Any, Any], allocations: list[Any]) -> None:
        """Lock all providers of both, then let Placement reshape.

        :raises ConcurrentUpdateDetected: of Placement, for a deadlock
        """
        providers = {provider.id for provider in inventories}
        providers |= {each.resource_provider.id for each in allocations}
        token = _reshaping.set(True)
        try:
            with db_api.placement_context_manager.writer.independent.using(ctx):
                _lock_providers(ctx, providers, raising=False)
                own(ctx, inventories, allocations)
        except database_conflicts.ERRORS as error:
            if isinstance(error, db_exc.DBDuplicateEntry) or database_conflicts.is_conflict(error):
                # Not again: the providers' generations in the caller's hands are spent.
                raise exception.ConcurrentUpdateDetected from error
            raise
        finally:
            _reshaping.reset(token)

    return reshape


@db_api.placement_context_manager.writer  # type: ignore[untyped-decorator]
def set_allocations(context: Any, allocs: list[Any]) -> None:
    """Stand for ``_set_allocations`` of ``placement.objects.allocation``.

    Each step is one statement, or none, or as many as Placement has for the step,
    whatever the number of consumers.

    :raises TreesDiffer: where one is not what the request took it for
    :raises ConcurrentUpdateDetected: of Placement, for a consumer's generation
    :raises InvalidInventory: of Placement, where there is no room, and what is below it
    """
    requested = requested_consumers.of(context)
    consumers = {each.consumer.uuid: each.consumer for each in allocs}
    if requested and consumers.keys() - {each.consumer.uuid for each in requested.values()}:
        # What was read since is of a record that was made again, in another case to MySQL.
        raise exception.ConcurrentUpdateDetected
    # Those whose generation was compared with the request's, not what was read since.
    consumers.update({name: requested[name].consumer for name in consumers if name in requested})
    providers = {each.resource_provider.id for each in allocs}
    raised = _lock_providers(context, providers, raising=True)
    classes = standard_classes.ids(context, dict.fromkeys(each.resource_class for each in allocs))
    held = _held(context, requested, consumers)
    # Without a removal what was used before is what is used: Placement's check asks itself.
    before = _usage_before(context, allocs) if held else None
    _delete_allocations(context, held)
    asked = requested_trees.of_request() if not _reshaping.get() else None
    locked = locked_providers.NONE
    if providers or asked:
        roots = asked.marks if asked else ()
        locked = locked_providers.read(context, providers, classes.values(), roots)
    _compare_trees(context, asked, locked, providers)
    if not locked.have_room(
        (each.resource_provider.id, classes[each.resource_class], each.used) for each in allocs
    ):
        before = _usage_before(context, allocs) if before is None else before
        alloc_obj._check_capacity_exceeded(context, allocs, *before)
    if raised != len(providers):
        raise exception.ResourceProviderConcurrentUpdateDetected
    made = _make_consumers(context, requested, consumers)
    _insert(
        context,
        _INSERT_ALLOCATIONS,
        [
            {
                "resource_provider_id": each.resource_provider.id,
                "resource_class_id": classes[each.resource_class],
                "consumer_id": each.consumer.uuid,
                "used": each.used,
            }
            for each in allocs
            if each.used
        ],
    )
    # No handler of allocations has called, which would not look at them.
    if not requested:
        _give_ids(context, [each for each in allocs if each.used])
    if not requested or _reshaping.get():
        _give_generations(context, allocs)
    _change_consumers(context, requested)
    _raise_consumers(context, [each for name, each in consumers.items() if name not in made])
    emptied = set(consumers) - {each.consumer.uuid for each in allocs if each.used}
    if emptied:
        consumer_obj.delete_consumers_if_no_allocations(context, emptied)
    for name, consumer in consumers.items():
        consumer.generation = 1 if name in made else consumer.generation + 1


# -- the steps ------------------------------------------------------------------------


def _lock_providers(context: Any, ids: Collection[int], *, raising: bool) -> int:
    """Lock the rows of providers in the order of their ids; return how many there are.

    :param raising: raise their generations by one
    """
    if not ids:
        return 0
    connection = context.session.connection()
    dialect = connection.dialect.name
    wanted = {"ids": sorted(ids)}
    if raising and dialect in _OF_MYSQL:
        wanted["now"] = timeutils.utcnow()
        return int(connection.execute(_RAISE_IN_ORDER, wanted).rowcount)
    found = 0
    if dialect == "sqlite":
        found = connection.execute(_TOUCH, wanted).rowcount
    else:
        found = len(connection.execute(_LOCK_IN_ORDER, wanted).fetchall())
    if raising:
        connection.execute(_RAISE, wanted)
    return int(found)


def _compare_trees(
    context: Any,
    asked: requested_trees.RequestedTrees | None,
    locked: locked_providers.LockedProviders,
    raised: Collection[int],
) -> None:
    """Compare the trees that the request names, if it names any.

    No statement, but three where generations differ and contents are named.

    :param raised: ids of the providers whose generations are raised already
    :raises TreesDiffer: where one is not as it says, or is gone
    """
    if asked is None:
        return
    found = locked.marks(raised)
    moved = {root for root, mark in asked.marks.items() if found.get(root) != mark.generations}
    known = {root for root in moved & found.keys() if asked.marks[root].contents}
    if known:
        digests = tree_contents.read(context, locked.members, known)
        moved -= {root for root in known if digests[root] == asked.marks[root].contents}
    asked.differing = frozenset(moved)
    if asked.differing:
        raise TreesDiffer(roots=", ".join(sorted(asked.differing)))


def _usage_before(context: Any, allocs: Sequence[Any]) -> tuple[Any, ...]:
    """Return what Placement's check wants of the usage before: nothing up to release 13."""
    summary = getattr(alloc_obj, "_provider_usage_summary", None)
    if summary is None:
        return ()
    providers = sorted({each.resource_provider.id for each in allocs})
    # In the order of the request: the first one that there is none of is named in the refusal.
    classes = list(dict.fromkeys(each.resource_class for each in allocs))
    return (summary(context, providers, classes),)


def _held(
    context: Any,
    requested: Mapping[str, requested_consumers.RequestedConsumer],
    consumers: Iterable[str],
) -> list[int]:
    """Return the ids of what consumers hold, of new ones too, in their order.

    Allocations from before there were records of consumers have none. What was read with a
    request's consumers is so still, or the write of their generations refuses, or the insertion
    of their records.
    """
    held: list[int] = []
    unknown = []
    for name in consumers:
        known = requested[name].held if name in requested else None
        if known is None:
            unknown.append(name)
        else:
            held += known
    if unknown:
        columns = _ALLOCATIONS.c
        query = sa.select(columns.id).where(columns.consumer_id.in_(unknown))
        held += context.session.execute(query).scalars()
    return sorted(held)


def _delete_allocations(context: Any, held: Sequence[int]) -> None:
    if not held:
        return
    connection = context.session.connection()
    if connection.dialect.name not in _OF_MYSQL:
        alloc_obj._delete_allocations_by_ids(context, held)
        return
    connection.execute(_DELETE_IN_ORDER, {"held": held, "count": len(held)})


def _make_consumers(
    context: Any,
    requested: Mapping[str, requested_consumers.RequestedConsumer],
    written: Mapping[str, Any],
) -> set[str]:
    """Insert records of consumers that have none; return their uuids.

    One without allocations is left at generation 0, as by Placement.
    """
    new = {name: each.wanted for name, each in requested.items() if each.consumer.id is None}
    _insert(
        context,
        _INSERT_CONSUMERS,
        [
            {
                "uuid": name,
                "project_id": wanted.project.id,
                "user_id": wanted.user.id,
                "consumer_type_id": wanted.consumer_type_id,
                "generation": 1 if name in written else 0,
            }
            for name, wanted in sorted(new.items())
        ],
    )
    return set(new)


def _insert(context: Any, inserts: _Inserts, rows: list[dict[str, Any]]) -> None:
    """Insert rows by one statement."""
    if not rows:
        return
    connection = context.session.connection()
    if connection.dialect.name == "postgresql":
        connection.execute(inserts.returning, rows)
    else:
        connection.execute(inserts.plain, rows)


def _give_ids(context: Any, allocs: Sequence[Any]) -> None:
    """Give allocations the ids of their rows, as Placement's own function does."""
    columns = _ALLOCATIONS.c
    query = sa.select(
        columns.id, columns.resource_provider_id, columns.resource_class_id, columns.consumer_id
    ).where(columns.consumer_id.in_({each.consumer.uuid for each in allocs}))
    ids = {tuple(row)[1:]: row.id for row in context.session.execute(query)}
    for each in allocs:
        class_id = context.rc_cache.id_from_string(each.resource_class)
        each.id = ids[each.resource_provider.id, class_id, each.consumer.uuid]


def _give_generations(context: Any, allocs: Sequence[Any]) -> None:
    """Give providers the generations that they have now, as Placement's own function does."""
    found = locked_providers.generations(context, {each.resource_provider.id for each in allocs})
    for each in allocs:
        each.resource_provider.generation = found[each.resource_provider.id]


def _change_consumers(
    context: Any, requested: Mapping[str, requested_consumers.RequestedConsumer]
) -> None:
    """Give consumers what is wanted of them; as many statements as there are different changes.

    Where the generation is another one the write of it refuses, as in Placement.
    """
    groups: dict[tuple[tuple[str, Any], ...], list[Any]] = collections.defaultdict(list)
    for name, each in requested.items():
        # Of one consumer in two cases, what is asked under its record's name counts.
        is_known = each.consumer.id is not None and each.consumer.uuid == name
        changes = each.changes() if is_known else {}
        if changes:
            groups[tuple(sorted(changes.items()))].append(each.consumer)
    for values, consumers in sorted(groups.items()):
        statement = _CONSUMERS.update().where(_at_generations(consumers)).values(**dict(values))
        context.session.execute(_by_id(statement))


def _raise_consumers(context: Any, consumers: Sequence[Any]) -> None:
    """Raise the generations of consumers, each from the one that is known.

    :raises ConcurrentUpdateDetected: of Placement, where one has another
    """
    if not consumers:
        return
    statement = (
        _CONSUMERS.update()
        .where(_at_generations(consumers))
        .values(generation=_CONSUMERS.c.generation + 1)
    )
    statement = _by_id(statement)
    # Two names may be of one.
    if context.session.execute(statement).rowcount != len({each.id for each in consumers}):
        raise exception.ConcurrentUpdateDetected


def _by_id(statement: sa.Update) -> sa.Update:
    """Return the statement with what keeps MySQL to the rows that it names."""
    for dialect in _OF_MYSQL:
        statement = statement.with_hint(_BY_ID, dialect_name=dialect)
    return statement


def _at_generations(consumers: Iterable[Any]) -> Any:
    ids = collections.defaultdict(list)
    for each in consumers:
        ids[each.generation].append(each.id)
    columns = _CONSUMERS.c
    return sa.or_(
        *(
            sa.and_(columns.id.in_(sorted(group)), columns.generation == generation)
            for generation, group in sorted(ids.items())
        )
    )


# -- before another try ---------------------------------------------------------------


def _restorer(context: Any, allocs: Iterable[Any]) -> Callable[[], None]:
    """Return what makes consumers as they are now: a commit may fail after all is written."""
    consumers = {id(each.consumer): each.consumer for each in allocs}
    requested = requested_consumers.of(context).values()
    consumers.update({id(each.consumer): each.consumer for each in requested})
    kept = [(each, each.generation) for each in consumers.values()]

    def restore() -> None:
        for consumer, generation in kept:
            consumer.generation = generation

    return restore


def _read_providers_again(context: Any, allocs: Iterable[Any]) -> None:
    """Give allocations new objects of their providers.

    :raises NotFound: of Placement, where one is gone
    """
    uuids = {each.resource_provider.uuid for each in allocs}
    with db_api.placement_context_manager.reader.independent.using(context):
        found = requested_consumers.read_providers(context, uuids)
    for name in uuids - set(found):
        raise exception.NotFound(f"No resource provider with uuid {name} found")
    for each in allocs:
        each.resource_provider = found[each.resource_provider.uuid]
