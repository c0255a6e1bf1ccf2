# SPDX-License-Identifier: Apache-2.0
"""What a conductor finds of a request that another one began, and clears away.

Nova's conductor makes an instance in a cell, maps it there, deletes its build request,
then sends it to its host. Where it died in between tells what is left of each server. Its
record says which servers were ``mapped`` with their build request still there:

================== ======================== =========== =============================
build request      instance in a cell       sent        what becomes of it
================== ======================== =========== =============================
there              none                     no          placed anew
there              without a host           no          the instance goes, placed anew
any                with a host, or ended    any         it is its compute's: done
gone               without a host, mapped   no          the instance stays, hosts are
                                                        found for it anew
gone               without a host, not      no          deleted by its user: the instance
                   mapped                               goes
gone               without a host, else     no          ERROR: its user may have
                                                        deleted it just then
any                without a host, given up yes         hosts are found for it anew
any                without a host, else     yes         left to its host for a while,
                                                        then ERROR: never sent twice
gone               none                     any         deleted by its user: done
================== ======================== =========== =============================

**Given up**: a nova-compute whose conductor dies with its first call in hand ends a build
before it has begun, and says so to nobody. What it leaves is like nothing else. The task's
state is gone, so that its message has arrived and lies in no queue any more; there is no
allocation, which a nova-compute deletes as the last thing it does; and neither has moved for
a while, as they do where Nova's conductor finds another host for what failed later.

An instance that goes is mapped to no cell before: its build request answers for it from
there on. In the other order its user would be told that there is no such server, until it
is placed anew.

A server that is placed anew has no allocations before that: Nova would take those of the
former attempt for a move's and add them up.

Who clears away may sleep, too, and be overtaken: what it finds then is its successor's.
It looks at its record before it takes anything away, and behind the reading of what it
takes away where Placement refuses what has changed since.
"""

from __future__ import annotations

import contextlib
import datetime
import enum
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import vm_states
from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova.scheduler import utils as scheduler_utils
from oslo_utils import timeutils

from nova_nodb_scheduler.model import pending

LOG = logging.getLogger(__name__)

#: How long a server that was sent may be without a host: its message may lie in the queue
#: of a compute that is away for so long.
SENT_SECONDS = 1800.0
#: How long what looks like given up must have looked so, clocks of conductors apart.
_STILL_SECONDS = 10.0

_METHOD = "build_instances"

#: Called with a server before anything of it is taken away; raises where it must not be.
Check = Callable[[str], None]


class Remains(enum.Enum):
    """What is left to be done for a server."""

    #: Hosts are to be found for it.
    PLACE = "place"
    #: Likewise, and it stands in its cell already.
    SEND = "send"
    #: Likewise, and it was sent before to a host that gave it up.
    SEND_AGAIN = "send again"
    #: Nothing.
    DONE = "done"
    #: It was sent, and nobody can tell yet whether it arrived.
    UNDER_WAY = "under way"


class NotCleared(Exception):
    """What a former attempt left could not be removed; the text says why. Try later."""


class ConductorDied(nova_exception.NovaException):  # type: ignore[misc]
    """A conductor ended while it built a server, where nobody else can go on."""

    msg_fmt = (
        "The conductor that built the server ended before it could be sent to a host. "
        "Delete the server and create it again."
    )


class NeverArrived(nova_exception.NovaException):  # type: ignore[misc]
    """A server was sent to a host, or was about to be, and none has it."""

    msg_fmt = (
        "The server was sent to a host and did not arrive in %(seconds)d s, or the conductor "
        "that sent it ended. Delete the server and create it again."
    )


@attrs.frozen(eq=False)
class AbandonedRequests:
    """Any thread. Blocks for Nova's databases and Placement.

    :param report_client: returns Nova's client of Placement
    """

    _report_client: Callable[[], Any]

    def clear(
        self, context: Any, request: pending.PendingRequest, check: Check
    ) -> dict[str, Remains]:
        """Clear away what former attempts left; return what is to be done for each server.

        :param context: of an administrator
        :raises NotCleared: something stays
        """
        # Who parked it in order has written nothing to cells.
        is_clean = request.grant.after is pending.PendingState.WAITING and not request.sent
        return {
            server: self._server(context, server, check, request, is_clean=is_clean)
            for server in request.servers
        }

    def clear_allocations(self, context: Any, servers: Iterable[str], check: Check) -> None:
        """Remove what Placement holds for servers that nothing was done with yet.

        Raises nothing else: Nova would bury the request for it.

        :raises NotCleared: something stays
        """
        for server in servers:
            clear_allocations(self._report_client(), context, server, check)

    def _server(
        self,
        context: Any,
        server: str,
        check: Check,
        request: pending.PendingRequest,
        *,
        is_clean: bool,
    ) -> Remains:
        has_request = has_build_request(context, server)
        if not (is_clean and has_request):
            remains = self._in_cells(context, server, check, request, has_request=has_request)
            if remains is not None:
                return remains
        if server in request.sent:
            return Remains.DONE
        # Of one that was deleted, too: who asked for hosts meanwhile may have left some.
        clear_allocations(self._report_client(), context, server, check)
        return Remains.PLACE if has_request else Remains.DONE

    def _in_cells(
        self,
        context: Any,
        server: str,
        check: Check,
        request: pending.PendingRequest,
        *,
        has_request: bool,
    ) -> Remains | None:
        """Settle what stands in cells of a server; None where nothing does any more."""
        for cell, instance in _instances(context, server):
            if not _is_unhosted(instance):
                if has_request and not instance.host:
                    # It ended in ERROR, and who put it there came no further.
                    check(server)
                    _delete_request(context, server)
                return Remains.DONE
            if server in request.sent:
                return self._sent(context, cell, instance, check, request)
            if has_request:
                _remove(context, cell, instance, check)
                continue
            if not is_mapped(context, server):
                # A conductor deletes a build request behind the mapping, its user before it.
                clear_allocations(self._report_client(), context, server, check)
                check(server)
                _destroy(context, cell, instance)
                return Remains.DONE
            if server in request.mapped:
                clear_allocations(self._report_client(), context, server, check)
                return Remains.SEND
            clear_allocations(self._report_client(), context, server, check)
            check(server)
            fail(context, cell, instance, ConductorDied())
            return Remains.DONE
        return None

    def _sent(
        self, context: Any, cell: Any, instance: Any, check: Check, request: pending.PendingRequest
    ) -> Remains:
        """Settle a server that was sent, and has no host."""
        has_room = bool(_allocated(self._report_client(), context, instance.uuid)["allocations"])
        if not has_room and _is_given_up(context, cell, instance):
            return Remains.SEND_AGAIN
        if _still_seconds(instance) < SENT_SECONDS:
            return Remains.UNDER_WAY
        is_certain = instance.uuid in request.sent_for_certain
        if has_room and is_certain and instance.task_state is not None:
            # Its compute comes to it, as in Nova.
            return Remains.DONE
        # A task without a state was begun by a compute, which ended.
        check(instance.uuid)
        # What it holds stays until its user deletes it: should it arrive after all, it has room.
        fail(context, cell, instance, NeverArrived(seconds=int(SENT_SECONDS)))
        return Remains.DONE


def clear_allocations(client: Any, context: Any, server: str, check: Check) -> None:
    """Remove what Placement holds for a server, unless it has changed since it was looked at.

    Nova's own way in one call takes a Placement that does not answer for one that holds
    nothing, or removes whatever stands by then; neither has a place for the look between the
    reading and the writing. A consumer whose allocations all went and came again has the
    generation that it had, and Placement takes it for unchanged: that look is all there is then.

    :param client: Nova's, of Placement
    :raises NotCleared: something stays
    """
    found = _allocated(client, context, server)
    if not found["allocations"]:
        return
    with _telling_of(server):
        check(server)
        is_gone = client.put_allocations(context, server, {**found, "allocations": {}})
    if not is_gone:
        raise NotCleared(f"allocations of {server}: Placement refused to remove them")
    LOG.info("Allocations of a former attempt for %(server)s are gone", {"server": server})


def _allocated(client: Any, context: Any, server: str) -> dict[str, Any]:
    """Return what Placement holds for a server, as it is written back.

    :raises NotCleared: it does not tell
    """
    with _telling_of(server):
        found: dict[str, Any] = client.get_allocs_for_consumer(context, server)
        return found


@contextlib.contextmanager
def _telling_of(server: str) -> Iterator[None]:
    """Say of whatever Nova's client raises that the allocations of a server stay."""
    try:
        yield
    except NotCleared:
        raise
    except Exception as error:
        # It lets through what a proxy's answer in Placement's stead makes of it.
        raise NotCleared(f"allocations of {server}: {error}") from error


def handle(error: Exception, act: Callable[[], None]) -> None:
    """Act as the handler of an error: Nova's notifications tell where it was raised."""
    try:
        raise error
    except type(error):
        act()


def request_spec_of(context: Any, instance: Any) -> Any:
    """Return the RequestSpec of a server, or what its flavor says where there is none any more.

    Nova's notification of a failure needs one.
    """
    try:
        return objects.RequestSpec.get_by_instance_uuid(context, instance.uuid)
    except nova_exception.RequestSpecNotFound:
        return objects.RequestSpec.from_components(
            context, instance.uuid, {}, instance.flavor, None, None, {}, None, None
        )


def has_build_request(context: Any, server: str) -> bool:
    """Tell whether a server still stands as its user's request alone."""
    try:
        objects.BuildRequest.get_by_instance_uuid(context, server)
    except nova_exception.BuildRequestNotFound:
        return False
    return True


def is_mapped(context: Any, server: str) -> bool:
    """Tell whether a server is mapped to a cell, where its user sees it."""
    return _mapped_cell(context, server) is not None


def instance_of(context: Any, server: str) -> tuple[Any, Any] | None:
    """Return a server's cell and instance; None where there is none."""
    return next(iter(_instances(context, server)), None)


def instance_in(context: Any, cell: Any, server: str, loaded: Sequence[str] = ()) -> Any:
    """Return a server's instance in a cell; None where there is none."""
    with nova_context.target_cell(context, cell) as targeted:
        try:
            return objects.Instance.get_by_uuid(targeted, server, expected_attrs=loaded)
        except nova_exception.InstanceNotFound:
            return None


def _instances(context: Any, server: str) -> Iterable[tuple[Any, Any]]:
    """Yield cells with a server's instance: where it is mapped to, else all that are enabled."""
    for cell in _cells(context, server):
        instance = instance_in(context, cell, server)
        if instance is not None:
            yield cell, instance


def _mapped_cell(context: Any, server: str) -> Any:
    try:
        return objects.InstanceMapping.get_by_instance_uuid(context, server).cell_mapping
    except nova_exception.InstanceMappingNotFound:
        return None


def _cells(context: Any, server: str) -> list[Any]:
    cell = _mapped_cell(context, server)
    if cell is not None:
        return [cell]
    # It is mapped after it was made: one that is not may stand in any.
    return list(objects.CellMappingList.get_all(context))


def _is_unhosted(instance: Any) -> bool:
    return not instance.host and instance.vm_state == vm_states.BUILDING and not instance.deleted


def _still_seconds(instance: Any) -> float:
    """Return for how long nothing was written to an instance."""
    written = instance.updated_at or instance.created_at
    if written is None:
        return 0.0
    now = timeutils.utcnow().replace(tzinfo=datetime.UTC)
    return float((now - written).total_seconds())


def _is_given_up(context: Any, cell: Any, instance: Any) -> bool:
    """Tell whether a compute gave up a server; behind the look that found no allocation.

    :param instance: as it was read before that look
    """
    if instance.task_state is not None or _still_seconds(instance) < _STILL_SECONDS:
        return False
    now = instance_in(context, cell, instance.uuid)
    if now is None:
        return False
    is_still = now.task_state is None and now.updated_at == instance.updated_at
    return is_still and _is_unhosted(now)


def _remove(context: Any, cell: Any, instance: Any, check: Check) -> None:
    """Take an instance that was never sent out of its cell, as if it had never been there.

    :raises NotCleared: its build request went meanwhile, or it got a host
    """
    check(instance.uuid)
    if not _unmap(context, instance.uuid) and not has_build_request(context, instance.uuid):
        raise NotCleared(f"the build request of {instance.uuid} went meanwhile")
    # An instance that was made behind the unmapping is the successor's.
    check(instance.uuid)
    try:
        _destroy(context, cell, instance)
    except NotCleared:
        _map(context, instance.uuid, cell)
        raise


def _destroy(context: Any, cell: Any, instance: Any) -> None:
    with nova_context.target_cell(context, cell) as targeted:
        instance._context = targeted
        try:
            # The uuid of one that is deleted softly cannot be used again.
            instance.destroy(hard_delete=True)
        except nova_exception.InstanceNotFound:
            LOG.debug("Instance %(server)s is gone already", {"server": instance.uuid})
        except nova_exception.ObjectActionError as error:
            raise NotCleared(f"instance {instance.uuid} got a host meanwhile") from error


@api_db_api.context_manager.writer  # type: ignore[untyped-decorator]
def _unmap(context: Any, server: str) -> int:
    """Map a server to no cell, if it has a build request, which answers for it again.

    Nova's object knows no way back from a cell.

    :returns: how many mappings that were
    """
    requests = context.session.query(api_models.BuildRequest).filter_by(instance_uuid=server)
    mappings = context.session.query(api_models.InstanceMapping).filter_by(instance_uuid=server)
    unmapped: int = mappings.filter(requests.exists()).update(
        {"cell_id": None}, synchronize_session=False
    )
    return unmapped


def _map(context: Any, server: str, cell: Any) -> None:
    mapping = objects.InstanceMapping.get_by_instance_uuid(context, server)
    mapping.cell_mapping = cell
    mapping.save()


def fail(context: Any, cell: Any, instance: Any, error: Exception) -> None:
    """Put a server that stands in a cell into ERROR, with a fault."""
    updates = {"vm_state": vm_states.ERROR, "task_state": None}
    with nova_context.target_cell(context, cell) as targeted:
        instance._context = targeted
        spec = request_spec_of(context, instance)
        handle(
            error,
            lambda: scheduler_utils.set_vm_state_and_notify(
                targeted, instance.uuid, "compute_task", _METHOD, updates, error, spec
            ),
        )
    _delete_request(context, instance.uuid)


@api_db_api.context_manager.writer  # type: ignore[untyped-decorator]
def delete_mapped_request(context: Any, server: str) -> bool:
    """Delete the build request of a server, unless the server was mapped back to no cell.

    Whoever mapped it back makes it anew by that request; see :func:`_unmap`.

    :returns: whether it was there, and is gone by this
    """
    requests = context.session.query(api_models.BuildRequest).filter_by(instance_uuid=server)
    unmapped = context.session.query(api_models.InstanceMapping).filter_by(
        instance_uuid=server, cell_id=None
    )
    return bool(requests.filter(~unmapped.exists()).delete(synchronize_session=False))


def _delete_request(context: Any, server: str) -> None:
    try:
        objects.BuildRequest.get_by_instance_uuid(context, server).destroy()
    except nova_exception.BuildRequestNotFound:
        return
