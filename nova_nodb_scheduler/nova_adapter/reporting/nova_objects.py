# SPDX-License-Identifier: Apache-2.0
"""Nova's objects, with a word to the reporter after each write.

Registered with the same name and VERSION, they replace Nova's own in the
registry and in ``nova.objects``; fields and methods on the wire stay Nova's.
Each write is Nova's own first. One that failed may be committed all the same, where
the answer was lost, or something failed behind the commit: its row is looked at, too.
Nothing here can make a write fail, nor wait but for a bound (see
:mod:`.change_reporter`). Where a
process writes through another one (an indirection API, as in nova-compute) that
other one reports.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from nova import exception as nova_exception
from nova import objects as nova_objects
from nova.objects import aggregate as nova_aggregate
from nova.objects import base
from nova.objects import compute_node as nova_compute_node
from nova.objects import host_mapping as nova_host_mapping
from nova.objects import instance as nova_instance
from nova.objects import migration as nova_migration
from nova.objects import service as nova_service

from nova_nodb_scheduler.nova_adapter.liveness import service_heartbeats
from nova_nodb_scheduler.nova_adapter.reporting import change_reporter, nova_tables
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces

LOG = logging.getLogger(__name__)

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")

#: Fields of an instance whose change a scheduler must hear of: what its record
#: holds, and what comes and goes with it.
INSTANCE_FIELDS = frozenset(
    [
        *nova_tables.INSTANCE_COLUMNS,
        "system_metadata",
        "flavor",
        "migration_context",
        "deleted",
    ]
)

#: Those of them that say where a server is, and what it takes there.
PLACE_FIELDS = frozenset({"host", "node", "flavor", "instance_type_id", "deleted"})

#: Fields of a service that a heartbeat may carry (version is always dirty).
HEARTBEAT_FIELDS = frozenset({"report_count", "last_seen_up", "version"})


def _after(
    report: Callable[..., None], doubt: Callable[..., None] | None = None
) -> Callable[[_F], _F]:
    """Call ``report(object, what_changed)`` after a write made here.

    :param doubt: called instead after one that failed; None for the same
    """

    def decorate(write: _F) -> _F:
        @functools.wraps(write)
        def written(self: Any, *args: Any, **kwargs: Any) -> Any:
            changed = frozenset(self.obj_what_changed())
            try:
                result = write(self, *args, **kwargs)
            except BaseException:
                _look_again(doubt or report, self, changed)
                raise
            if self.indirection_api is None:
                try:
                    report(self, changed)
                except Exception:
                    # The row is written: the worst is a late record, which
                    # the next sweep finds. Nova's call must not fail for it.
                    LOG.exception(
                        "Could not report a change of %(name)s", {"name": self.obj_name()}
                    )
            return result

        return written  # type: ignore[return-value]

    return decorate


def _look_again(report: Callable[..., None], row: Any, changed: Collection[str]) -> None:
    """Report a write that failed: nobody can tell whether it is committed."""
    if row.indirection_api is not None:
        return
    try:
        report(row, changed)
    except Exception as error:  # noqa: BLE001 - such as for a row that got no name
        LOG.debug(
            "Nothing to be looked at behind a failed write of %(name)s: %(error)s",
            {"name": row.obj_name(), "error": error},
        )


def _reporting(report: Callable[..., None], *methods: str) -> Callable[[type[_T]], type[_T]]:
    """Have methods of a subclass of Nova's object report what Nova's own wrote."""

    def decorate(cls: type[_T]) -> type[_T]:
        def own(name: str) -> Callable[..., Any]:
            @functools.wraps(getattr(cls, name))
            def write(self: Any, *args: Any, **kwargs: Any) -> Any:
                # Looked up late: tests of Nova's replace its methods.
                return getattr(super(cls, self), name)(*args, **kwargs)

            return write

        for name in methods:
            setattr(cls, name, _after(report)(own(name)))
        return cls

    return decorate


def _mark_compute_node(node: Any, changed: Collection[str]) -> None:
    change_reporter.mark(node._context, known_namespaces.COMPUTE_NODES.name, [node.uuid])


def _mark_service(service: Any, changed: Collection[str]) -> None:
    if service.binary == "nova-compute" and "report_count" in changed:
        seen = service.last_seen_up
        change_reporter.heartbeat(
            service._context,
            service.uuid,
            service.report_count,
            # As the row has it: UTC without an offset.
            seen.replace(tzinfo=None).isoformat() if seen else None,
            silent_seconds=_silent_seconds(service),
        )
    _mark_changed_service(service, changed)


def _mark_changed_service(service: Any, changed: Collection[str]) -> None:
    """Report what of a service is no heartbeat; the next one tells of one whose answer was lost."""
    # A version alone is a service that was upgraded and starts again.
    if "report_count" not in changed or not HEARTBEAT_FIELDS.issuperset(changed):
        _mark_whole_service(service, changed)


def _silent_seconds(service: Any) -> float:
    """Return how long before its latest heartbeat a service was silent."""
    before, seen = service.nodb_seen_before, service.last_seen_up
    return (seen - before).total_seconds() if before and seen else float("inf")


def _mark_whole_service(service: Any, changed: Collection[str]) -> None:
    change_reporter.mark(service._context, known_namespaces.SERVICES.name, [service.uuid])
    if service.binary == "nova-compute":
        change_reporter.mark(
            service._context, known_namespaces.SERVICE_LIVENESS.name, [service.uuid]
        )


def _mark_instance(instance: Any, changed: Collection[str]) -> None:
    if changed and INSTANCE_FIELDS.isdisjoint(changed):
        return
    # One that is made before a host was chosen, as all of a multi-create are, has no place.
    is_somewhere = "host" in changed or ("host" in instance and instance.host is not None)
    _mark_placed(
        instance,
        known_namespaces.INSTANCES.name,
        is_place=is_somewhere and not PLACE_FIELDS.isdisjoint(changed),
    )


def _mark_destroyed_instance(instance: Any, changed: Collection[str]) -> None:
    cell = change_reporter.cell_of(instance._context) if instance.nodb_migrations else None
    if cell is not None:
        keys = [nova_tables.cell_key(each, cell) for each in instance.nodb_migrations]
        change_reporter.mark_in(cell, known_namespaces.MIGRATIONS.name, keys)
    # Last: it waits, and one flush publishes all.
    _mark_placed(instance, known_namespaces.INSTANCES.name, is_place=True)


def _mark_migration(migration: Any, changed: Collection[str]) -> None:
    _mark_placed(migration, known_namespaces.MIGRATIONS.name, is_place=True)


def _mark_placed(row: Any, namespace: str, *, is_place: bool) -> None:
    cell = change_reporter.cell_of(row._context)
    if cell is None:
        return
    key = nova_tables.cell_key(row.uuid, cell)
    if is_place and not _is_in_transaction(row._context):
        change_reporter.place_in(cell, namespace, key)
    else:
        change_reporter.mark_in(cell, namespace, [key])


def _is_in_transaction(context: Any) -> bool:
    """Tell whether a write may yet be unseen by others.

    Who waited then would have the row published as it was before, and be done with it.
    """
    return getattr(context, "session", None) is not None


def _mark_aggregate(aggregate: Any, changed: Collection[str]) -> None:
    change_reporter.mark_api(known_namespaces.AGGREGATES.name, [aggregate.uuid])


def _mark_host_mapping(mapping: Any, changed: Collection[str]) -> None:
    change_reporter.mark_api(known_namespaces.HOST_MAPPINGS.name, [mapping.host])


@_reporting(_mark_compute_node, "create", "save", "destroy")
class ComputeNode(nova_compute_node.ComputeNode):  # type: ignore[misc]
    """A compute node whose writes are reported."""


class ComputeNodeList(nova_compute_node.ComputeNodeList):  # type: ignore[misc]
    """Compute nodes whose writes are reported: Nova looks their class up in the registry."""


def _lay_over(context: Any, services: Collection[Any]) -> None:
    """Tell services their latest heartbeats; their rows are what Nova knows without."""
    try:
        service_heartbeats.lay_over(lambda: change_reporter.cell_of(context), services)
    except Exception:
        LOG.exception("Cannot tell when services were heard of last.")


@_reporting(_mark_whole_service, "create")
class Service(nova_service.Service):  # type: ignore[misc]
    """A service whose writes and heartbeats are reported.

    Where heartbeats are stored, they are read from there, and one that carries
    nothing else reaches no database.

    :ivar nodb_seen_before: its last heartbeat before the one that is being saved
    """

    nodb_seen_before: Any = None

    @staticmethod
    def _from_db_object(context: Any, service: Any, db_service: Any) -> Any:
        """Build a service of its row, as all that Nova reads is, and tell it its heartbeat."""
        made = nova_service.Service._from_db_object(context, service, db_service)
        if not service_heartbeats.gather(made):
            _lay_over(context, [made])
        return made

    def save(self) -> None:
        changed = frozenset(self.obj_what_changed())
        if self.indirection_api is None and self._nodb_store(changed):
            return
        self._nodb_save_row()
        if self.indirection_api is None and "report_count" not in changed:
            _lay_over(self._context, [self])

    def _nodb_store(self, changed: Collection[str]) -> bool:
        if not service_heartbeats.is_heartbeat(self, changed):
            return False
        try:
            cell = change_reporter.cell_of(self._context)
        except Exception:
            LOG.exception("Cannot tell which cell %(name)s is in.", {"name": self})
            return False
        return service_heartbeats.store(cell, self, changed)

    @_after(_mark_service, doubt=_mark_changed_service)
    def _nodb_save_row(self) -> None:
        self.nodb_seen_before = self.last_seen_up if "last_seen_up" in self else None
        with service_heartbeats.gathered():
            super().save()

    @_after(_mark_whole_service)
    def destroy(self) -> None:
        # Deleting a service deletes its compute nodes' rows in the same
        # transaction, without their objects.
        nodes = self._compute_node_uuids()
        try:
            super().destroy()
        finally:
            if nodes:
                change_reporter.mark(self._context, known_namespaces.COMPUTE_NODES.name, nodes)

    def _compute_node_uuids(self) -> list[str]:
        if self.indirection_api is not None or self.binary != "nova-compute":
            return []
        try:
            found = nova_objects.ComputeNodeList.get_all_by_host(self._context, self.host)
            return [str(node.uuid) for node in found]
        except nova_exception.NotFound:
            return []
        except Exception:
            # Nova's own deletion decides whether it can go on; the sweep
            # finds the nodes.
            LOG.exception("Cannot tell which compute nodes go with %(name)s", {"name": self})
            return []


def with_heartbeats_of_all(read: _F) -> _F:
    """Have all services that a call reads told their latest heartbeats at once.

    :param read: called with a context, perhaps behind a class
    """

    @functools.wraps(read)
    def told(*args: Any, **kwargs: Any) -> Any:
        with service_heartbeats.gathered() as services:
            found = read(*args, **kwargs)
        if services:
            _lay_over(services[0]._context, services)
        return found

    told._nodb = True  # type: ignore[attr-defined]
    return told  # type: ignore[return-value]


def _in_one_read(cls: type[_T]) -> type[_T]:
    """Have each list that Nova's class reads told its heartbeats at once."""

    def own(name: str) -> Any:
        @functools.wraps(getattr(cls, name))
        def read(own_cls: Any, *args: Any, **kwargs: Any) -> Any:
            return with_heartbeats_of_all(getattr(super(cls, own_cls), name))(*args, **kwargs)

        return classmethod(read)

    for name in dir(cls):
        if name.startswith("get_"):
            setattr(cls, name, own(name))
    return cls


@_in_one_read
class ServiceList(nova_service.ServiceList):  # type: ignore[misc]
    """Services with their latest heartbeats, those of a list in one read."""


@_reporting(_mark_instance, "create", "save")
class Instance(nova_instance.Instance):  # type: ignore[misc]
    """An instance whose changes of place, size and state are reported.

    :ivar nodb_migrations: uuids of those in progress that are deleted with it
    """

    nodb_migrations: Collection[str] = ()

    @_after(_mark_destroyed_instance)
    def destroy(self, *args: Any, **kwargs: Any) -> None:
        # Deleting a server deletes its migrations' rows in the same transaction,
        # without their objects: left in progress, they would keep its claims.
        self.nodb_migrations = self._migrations_in_progress()
        super().destroy(*args, **kwargs)

    def _migrations_in_progress(self) -> list[str]:
        if self.indirection_api is not None or "uuid" not in self:
            return []
        try:
            if change_reporter.cell_of(self._context) is None:
                return []
            return nova_tables.migrations_of(self._context, self.uuid)
        except Exception:
            # Nova's own deletion decides whether it can go on; the sweep finds them.
            LOG.exception("Cannot tell which migrations go with %(name)s", {"name": self.uuid})
            return []


@_reporting(_mark_migration, "create", "save")
class Migration(nova_migration.Migration):  # type: ignore[misc]
    """A migration whose writes are reported."""


@_reporting(
    _mark_aggregate, "create", "save", "update_metadata", "destroy", "add_host", "delete_host"
)
class Aggregate(nova_aggregate.Aggregate):  # type: ignore[misc]
    """An aggregate whose writes are reported."""


@_reporting(_mark_host_mapping, "create", "save", "destroy")
class HostMapping(nova_host_mapping.HostMapping):  # type: ignore[misc]
    """A host mapping whose writes are reported."""


#: What register() puts in the place of Nova's own, in this order.
REPORTED: tuple[type[Any], ...] = (
    ComputeNode,
    ComputeNodeList,
    Service,
    ServiceList,
    Instance,
    Migration,
    Aggregate,
    HostMapping,
)


def register() -> None:
    """Put the reported classes in the place of Nova's own; idempotent."""
    for cls in REPORTED:
        if getattr(nova_objects, cls.obj_name(), None) is not cls:
            base.NovaObjectRegistry.register(cls)
    # The discovery of hosts names the class through its own module.
    nova_host_mapping.HostMapping = HostMapping
    # Servers are listed with the services of their hosts.
    if not hasattr(nova_instance._make_instance_list, "_nodb"):
        nova_instance._make_instance_list = with_heartbeats_of_all(
            nova_instance._make_instance_list
        )
