# SPDX-License-Identifier: Apache-2.0
"""What Nova itself leaves behind, proved by its services' own words; stock Nova does the same.

Build requests. Where no host was found for several servers of one request, a conductor creates
all of them in cell0 and then destroys their build requests, one after the other. A client who
deletes one of the servers just then takes both from it, the build request and the server in
cell0: ``_bury_in_cell0`` ends at that one with ``ObjectActionError: host changed``, or with
``InstanceNotFound`` if it was gone a moment before, and the build requests behind it stay for
good. Or the client deletes it before all are created: then ``_bury_in_cell0`` ends with
``InstanceNotFound`` as it sets that one to ERROR, or gives it its tags, and has come to no build
request at all. Those of the others stay, of such as are in cell0 and of such as are nowhere. So do
those of all its servers where it ends there with ``DBConnectionError``, for MariaDB was killed: a
client who deletes them then deletes what stands in cell0, and no more. A conductor does not name
the servers that it never created; a scheduler does, which was asked for hosts for all of them.

Allocations of moves. A client deletes a server that is on its way to another host. The source's
nova-compute, or the other's, cannot go on with the move and gives the server its allocation back,
which the migration holds; it reads what the server has, the deletion takes that away, and the write
meets ``consumer generation conflict``. Or Placement does not answer when a move is over and what
the migration holds is to be deleted: nova-compute says itself that it is leaked. Or no host is
found for the move, and Placement does not answer the conductor that would give the server its
allocation back. Or a client deletes a server while its resize is reverted: the source's
nova-compute, which would give it its allocation back, ends at the server's state before it does
(``_revert_instance_flavor_host_node``). Or a nova-compute gives up a resize and is to give the
allocation back, and Placement does not tell it what the server has. Or a client deletes a server
whose move comes to its end just then: nova-api has a move confirmed, by the source, of a server
that it reads as RESIZED, and says so; it read this one a moment before, and the other host's
nova-compute deletes it as any server. Nobody ever comes back for what the migration holds.

Allocations of moves that nobody waited for. A conductor gives up a call for a host, as its
schedulers were killed, and gives the server its allocation on the source back; a scheduler that
takes the call up in the end answers later, and writes what it chose beside that, as Nova's
``claim_resources`` does. The server stands where it stood, and holds its room on both hosts until
it is moved or deleted; the other host's nova-compute says so every minute.

Allocations of failed builds. A nova-compute gives up a build as Placement is away, and Placement
does not answer its deletion of the allocation either. Its conductor has no other host for the
server, which is in ERROR then and holds its room until somebody deletes it.

Servers without an allocation. A nova-compute has built a server, and its conductor does not
answer the last call of it, which says that the build is over. The error reaches code that takes
any for a build that failed before there was a guest, and which deletes the allocation: the server
stands, and its room is given to another (``_locked_do_build_and_run_instance``). Or: a client
deletes a server whose build fails just then, so that its conductor has sent it to another host when
the first one's nova-compute comes to the deletion. That deletes the allocation, of the other host
by now, and fails at the server itself, whose host has changed: it is built without an allocation.
Or: a build that its deletion ends takes the allocation, and the deletion itself is lost with a
conductor or its database. In each a nova-compute says that it deleted the allocation, and no code
of the plugin runs in it.

Members of strict groups that a scheduler placed as it was cut off from the back end: it says so,
and what keeps the policy then is what keeps it in stock, nova-compute's own look as it builds.
"""

import collections
import datetime
import math
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

import attrs

from tests.chaos.logs import log_tails

_Left = TypeVar("_Left")

_REQUEST = re.compile(r"\[(?:[^\s\]]+ )?(?P<request>req-[0-9a-f-]+)")
_BURIED = re.compile(r"\[instance: (?P<server>[0-9a-f-]{36})\] Setting instance to ERROR state")
_DIED = re.compile(
    r"Exception during message handling: .*(ObjectActionError: .*destroy failed .*: host changed"
    r"|InstanceNotFound: Instance (?P<server>[0-9a-f-]{36}) could not be found"
    r"|(?P<database>oslo_db\.exception\.DBConnectionError))"
)
_FRAME = re.compile(r"/nova/conductor/manager\.py\", line \d+, in _bury_in_cell0")
_CALL = "    inst.destroy()"
# What may not find a server that was just created; build requests come behind all servers.
_EARLY_CALL = re.compile(r"    self\._(?:set_vm_state_and_notify|create_tags)\(")
_DELETED = re.compile(
    r"BuildRequestNotFound: BuildRequest not found for instance (?P<server>[0-9a-f-]{36})"
)
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# Nova's code as it begins with a request, and the plugin's with its decision.
_ASKED = re.compile(
    rf"(?:Starting to schedule for instances: \[|\bServers )'?{_UUID}'?(?:, '?{_UUID}'?)*"
    r"(?:\]|: \w+ after \d)"
)
_SERVER = re.compile(_UUID)
_TERMINATED = re.compile(rf"\[instance: (?P<server>{_UUID})\] Terminating instance")
_NOT_MOVED = re.compile(
    r"Exception during message handling: .*AllocationMoveFailed: Failed to move allocations from"
    rf" consumer (?P<migration>{_UUID}) to consumer (?P<server>{_UUID})\."
    r".*consumer generation conflict"
)
# What the other host's nova-compute meets, which did not delete it.
_IS_GONE = re.compile(rf"InstanceNotFound: Instance (?P<server>{_UUID}) could not be found")
_REVERT_FRAME = re.compile(r"/nova/compute/manager\.py\", line \d+, in _revert_allocation")
_LEAKED = re.compile(
    rf"Deleting allocation in placement for migration (?P<migration>{_UUID}) failed\. "
    rf"The instance (?P<server>{_UUID}) will be put to ERROR state"
)
_NOT_BUILT = re.compile(
    rf"\[instance: (?P<server>{_UUID})\] (?:Failed to build and run instance"
    r"|Build of instance \S+ aborted"
    r"|Failed to revert task state for instance"
    # Its first words to its conductor were lost, before or behind what ends the task.
    r"|Successfully reverted task state from (?:None|scheduling) on failure for instance)"
)
_SILENT = rf"Placement API service is not responding\..*?/allocations/(?P<consumer>{_UUID})\b"
_NOT_FREED = re.compile(rf"{_SILENT}|Unable to delete allocation for instance (?P<failed>{_UUID})")
_UNANSWERED = re.compile(_SILENT)
_NOT_REPLACED = re.compile(
    rf"\[instance: (?P<server>{_UUID})\] Unable to replace resource claim on source host"
)
_NOT_REVERTED = re.compile(
    rf"\[instance: (?P<server>{_UUID})\] Setting instance vm_state to ERROR: "
    r".*UnexpectedTaskStateError.*Expected: \{'task_state': \['resize_reverting'\]\}"
)
_GIVES_BACK = re.compile(
    rf"\[instance: (?P<server>{_UUID})\] Swapping old allocation on .* held by migration "
    rf"(?P<migration>{_UUID}) for instance"
)
_NOT_GIVEN_BACK = re.compile(
    r"Original exception being dropped: .*, in _revert_allocation\b.*"
    rf"ConsumerAllocationRetrievalFailed: Failed to retrieve allocations for consumer ({_UUID})"
)
_MOVES = re.compile(
    rf"\[instance: (?P<server>{_UUID})\] Updating resource usage from migration "
    rf"(?P<migration>{_UUID})"
)
_CONFIRMED = re.compile(
    rf"\[instance: (?P<server>{_UUID})\] (?:Found an unconfirmed migration during delete"
    r"|Instance may have been confirmed during delete)"
)
_UNALLOCATED = re.compile(rf"Deleted allocations for instance (?P<server>{_UUID})")
_SPAWNED = re.compile(rf"\[instance: (?P<server>{_UUID})\] Took \S+ seconds to spawn the instance")
_UNTOLD = re.compile(
    rf"Server (?P<server>{_UUID}) of group (?P<group>{_UUID}) goes to node (?P<node>{_UUID}) "
    r"and nobody can be told"
)
_GAVE_UP_MOVE = re.compile(
    rf"\[instance: (?P<server>{_UUID})\] Setting instance to ACTIVE state\.: "
    r"oslo_messaging\.exceptions\.MessagingTimeout"
)
_SELECTED = re.compile(
    rf"\bServers (?P<server>{_UUID}): selected after .*; hosts: (?P<host>[^;,]+);"
)
_MOMENT = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} ")
_OF_A_TRACEBACK = re.compile(r"^\S+ \S+ \d+ ERROR oslo_messaging\.rpc\.server (?!\[)")


@attrs.frozen
class Abandoned:
    """A build request that its conductor never came to.

    :param line: of the log, with which it ended before
    :param deleted: the server whose deletion it ended at; empty where it ended otherwise
    """

    server: str
    deleted: str
    line: str


@attrs.define
class _Burial:
    """What one request's conductor told so far.

    :ivar ended: the line with which it died
    :ivar missing: the server that it did not find then, if that is what it says
    :ivar is_burial: whether it died as it destroyed a server whose build request was gone
    :ivar deleted: that server
    :ivar is_early: whether it died in a burial before it came to any build request
    :ivar lost_database: whether it died in a burial, of its database
    """

    buried: list[str] = attrs.field(factory=list)
    ended: str = ""
    missing: str | None = None
    is_burial: bool = False
    deleted: str = ""
    is_early: bool = False
    lost_database: bool = False

    def abandoned(self) -> Iterator[Abandoned]:
        """Yield what it did not come to, if all of it is told."""
        if self.lost_database:
            # Whose build request is there still was not come to, in whatever order.
            yield from (Abandoned(server, "", self.ended) for server in self.buried)
            return
        if not (self.ended and self.is_burial and self.deleted in self.buried):
            return
        if self.missing not in (None, self.deleted):
            return
        # It destroys build requests in the order in which it created the servers.
        for server in self.buried[self.buried.index(self.deleted) + 1 :]:
            yield Abandoned(server, self.deleted, self.ended)


def abandoned(lines: Iterable[str]) -> dict[str, Abandoned]:
    """Return what a conductor's log proves to be abandoned, by server."""
    burials = _burials(lines).values()
    return {each.server: each for burial in burials for each in burial.abandoned()}


def _burials(lines: Iterable[str]) -> Mapping[str, _Burial]:
    """Return what a conductor's log tells of each request."""
    burials: dict[str, _Burial] = collections.defaultdict(_Burial)
    dying: _Burial | None = None
    before, of_database = "", False
    for line in lines:
        if dying is not None and _OF_A_TRACEBACK.match(line):
            if _FRAME.search(before):
                dying.is_burial |= line.rstrip().endswith(_CALL)
                dying.is_early |= _EARLY_CALL.search(line) is not None
            dying.lost_database |= of_database and _FRAME.search(line) is not None
            before = line
            deleted = _DELETED.search(line)
            if deleted:
                dying.deleted = deleted["server"]
            continue
        named = _REQUEST.search(line)
        if named is None:
            continue
        dying = None
        of_request = burials[named["request"]]
        buried = _BURIED.search(line)
        if buried:
            of_request.buried.append(buried["server"])
        died = _DIED.search(line)
        if died:
            dying, of_database = of_request, died["database"] is not None
            of_request.ended, of_request.missing = line.strip(), died["server"]
    return burials


@attrs.frozen
class EndedBurial:
    """A conductor's end behind which nobody comes to any build request of a request.

    :param deleted: the server whose deletion it ended at; empty where it lost its database
    :param line: of the log, with which it ended
    """

    deleted: str
    line: str


def ended_burials(lines: Iterable[str]) -> dict[str, EndedBurial]:
    """Return those that a conductor's log proves, by request; see :func:`unburied`."""
    return {
        request: EndedBurial(burial.missing or "", burial.ended)
        for request, burial in _burials(lines).items()
        if burial.lost_database or (burial.is_early and burial.missing)
    }


def requests(lines: Iterable[str]) -> dict[str, str]:
    """Return the request in which a scheduler's log names each server, by server.

    The last one of a server that moved; what is in cell0 or nowhere has only one.
    """
    found: dict[str, str] = {}
    for request, line in _of_requests(lines):
        asked = _ASKED.search(line)
        if asked:
            found |= dict.fromkeys(_SERVER.findall(asked[0]), request)
    return found


def unburied(
    server: str, requests: Mapping[str, str], burials: Mapping[str, EndedBurial]
) -> EndedBurial | None:
    """Return the burial that left the build request of a server; None without one.

    Schedulers tell which servers were asked for together, and nothing else: what one of them loses
    is buried by its conductor, and excused only where the burial itself ended. Whose deletion it
    ended at is not excused: who deleted that one took its build request first.

    :param requests: see :func:`requests`
    :param burials: see :func:`ended_burials`
    """
    request = requests.get(server, "")
    ended = burials.get(request)
    if ended is None or ended.deleted == server:
        return None
    is_of_request = not ended.deleted or requests.get(ended.deleted) == request
    return ended if is_of_request else None


@attrs.frozen
class Unfreed:
    """An allocation that its server never got back from a migration, or that was not deleted.

    :param consumer: the migration, or the server itself
    :param line: of the log, with which the move or the build ended
    :param at: when a build was given up, seconds since the epoch
    """

    consumer: str
    server: str
    line: str
    at: float = attrs.field(default=math.inf, eq=False)


def unfreed(lines: Iterable[str]) -> dict[str, Unfreed]:
    """Return the allocations that a nova-compute's log proves to be left, by consumer."""
    lines = list(lines)
    deleted: set[str] = set()
    not_built: dict[str, float] = {}
    found = {each.consumer: each for each in _not_given_back(lines)}
    dying: Unfreed | None = None
    for line in lines:
        if dying is not None and _OF_A_TRACEBACK.match(line):
            gone = _IS_GONE.search(line)
            if gone:
                deleted.add(gone["server"])
            if _REVERT_FRAME.search(line) and dying.server in deleted:
                found[dying.consumer] = dying
            continue
        dying = None
        leaked = _LEAKED.search(line)
        if leaked:
            told = Unfreed(leaked["migration"], leaked["server"], line.strip())
            found[told.consumer] = told
            continue
        gave_up = _NOT_BUILT.search(line)
        if gave_up:
            not_built[gave_up["server"]] = moment(line)
        held = _NOT_FREED.search(line)
        if held:
            server = held["consumer"] or held["failed"]
            if server in not_built:
                found[server] = Unfreed(server, server, line.strip(), not_built[server])
        freed = _UNALLOCATED.search(line)
        if freed:
            # After all: what it has since, it has by another.
            found.pop(freed["server"], None)
            not_built.pop(freed["server"], None)
        ended = _TERMINATED.search(line)
        if ended:
            deleted.add(ended["server"])
        failed = _NOT_MOVED.search(line)
        if failed:
            dying = Unfreed(failed["migration"], failed["server"], line.strip())
    return found


def _not_given_back(lines: Iterable[str]) -> Iterator[Unfreed]:
    """Yield what a resize that was given up left with its migration."""
    by_request: dict[str, Unfreed] = {}
    for request, line in _of_requests(lines):
        gives_back = _GIVES_BACK.search(line)
        if gives_back:
            left = Unfreed(gives_back["migration"], gives_back["server"], "")
            by_request[request] = left
        untold = _NOT_GIVEN_BACK.search(line)
        if untold and request in by_request:
            left = by_request[request]
            if untold[1] in (left.consumer, left.server):
                yield attrs.evolve(left, line=line.strip())


def unreverted(lines: Iterable[str]) -> dict[str, Unfreed]:
    """Return the allocations that a conductor's log proves to be left with moves, by consumer.

    It asks what the migration holds, of which Placement's silence tells in the same request.
    """
    unanswered: dict[str, str] = {}
    found: dict[str, Unfreed] = {}
    for request, line in _of_requests(lines):
        silent = _UNANSWERED.search(line)
        if silent:
            unanswered[request] = silent["consumer"]
        failed = _NOT_REPLACED.search(line)
        migration = unanswered.get(request)
        if failed and migration and migration != failed["server"]:
            found[migration] = Unfreed(migration, failed["server"], line.strip())
    return found


def _of_requests(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the lines that name a request, each behind its id."""
    for line in lines:
        named = _REQUEST.search(line)
        if named is not None:
            yield named["request"], line


def not_reverted(lines: Iterable[str]) -> dict[str, str]:
    """Return the servers whose resize a nova-compute's log proves not to be reverted.

    With the line that says so; they were deleted meanwhile. See :func:`migrations`.
    """
    return _by_server(_NOT_REVERTED, lines)


def migrations(lines: Iterable[str]) -> dict[str, str]:
    """Return the servers that a nova-compute's log names with their migrations, by these."""
    told = filter(None, map(_MOVES.search, lines))
    return {each["migration"]: each["server"] for each in told}


def deleted_moves(lines: Iterable[str]) -> dict[str, Unfreed]:
    """Return the servers that a nova-compute deleted to which they had moved, by migration.

    What the migration holds on their source is left where nova-api had the move not confirmed,
    see :func:`confirmed`.
    """
    migration_of: dict[str, str] = {}
    found: dict[str, Unfreed] = {}
    for line in lines:
        moves, ends = _MOVES.search(line), _TERMINATED.search(line)
        if moves:
            migration_of[moves["server"]] = moves["migration"]
        elif ends and ends["server"] in migration_of:
            migration = migration_of[ends["server"]]
            found[migration] = Unfreed(migration, ends["server"], line.strip())
    return found


def confirmed(lines: Iterable[str]) -> dict[str, str]:
    """Return the servers whose move a nova-api found to be over as it was to delete them."""
    return _by_server(_CONFIRMED, lines)


@attrs.frozen
class LateMove:
    """A conductor no longer waited for a host to move a server to, or a scheduler told one.

    :param request: that both are of
    :param host: empty of a conductor's
    :param at: seconds since the epoch
    """

    request: str
    server: str
    host: str
    line: str
    at: float


def given_up_moves(lines: Iterable[str]) -> dict[str, LateMove]:
    """Return the moves that a conductor gave up waiting for, by request and server."""
    return _moves_of(_GAVE_UP_MOVE, lines)


def selected(lines: Iterable[str]) -> dict[str, LateMove]:
    """Return the hosts that a scheduler answered with for single servers, likewise."""
    return _moves_of(_SELECTED, lines)


def _moves_of(pattern: re.Pattern[str], lines: Iterable[str]) -> dict[str, LateMove]:
    found: dict[str, LateMove] = {}
    for line in lines:
        told, asked = pattern.search(line), _REQUEST.search(line)
        if told and asked:
            server, request = told["server"], asked["request"]
            host = told.groupdict().get("host", "")
            move = LateMove(request, server, host, line.strip(), moment(line))
            found[f"{request} {server}"] = move
    return found


def late_answers(
    given_up: Mapping[str, LateMove], answers: Mapping[str, LateMove]
) -> dict[str, dict[str, Unfreed]]:
    """Return what answers left that nobody waited for any more, by host and server."""
    found: dict[str, dict[str, Unfreed]] = {}
    for key, answer in answers.items():
        waited = given_up.get(key)
        if waited is not None and waited.at < answer.at < math.inf:
            left = Unfreed(answer.server, answer.server, waited.line, answer.at)
            found.setdefault(answer.host, {})[answer.server] = left
    return found


@attrs.frozen
class Undone:
    """A server whose allocation a nova-compute deleted.

    :param line: of the log, with which it did
    :param stands: there was a guest by then; else another may have built the server since
    :param at: when that was, seconds since the epoch
    """

    server: str
    line: str
    stands: bool
    at: float = attrs.field(default=math.inf, eq=False)


def undone(lines: Iterable[str]) -> dict[str, Undone]:
    """Return the servers without theirs by a nova-compute's log, by server.

    A deletion that somebody asked for takes it as well, and says the same: it proves nothing.
    """
    spawned: set[str] = set()
    leaving: set[str] = set()
    found: dict[str, Undone] = {}
    for line in lines:
        guest, deleted = _SPAWNED.search(line), _UNALLOCATED.search(line)
        if guest:
            spawned.add(guest["server"])
        ended = _TERMINATED.search(line)
        if ended:
            leaving.add(ended["server"])
        if deleted and deleted["server"] not in leaving:
            server = deleted["server"]
            found[server] = Undone(server, line.strip(), server in spawned, moment(line))
    return found


@attrs.frozen
class Untold:
    """A member of a group that its scheduler could tell nobody of.

    :param node: that it goes to, its uuid
    :param line: of its log
    :param at: seconds since the epoch
    """

    server: str
    group: str
    node: str
    line: str
    at: float


def untold(lines: Iterable[str]) -> dict[str, Untold]:
    """Return the members that nobody was told of by a scheduler's log, by server and node."""
    found: dict[str, Untold] = {}
    for line in lines:
        told = _UNTOLD.search(line)
        if told:
            server, group, node = told["server"], told["group"], told["node"]
            untold = Untold(server, group, node, line.strip(), moment(line))
            found.setdefault(f"{server} {node}", untold)
    return found


def moment(line: str) -> float:
    """Return when a line was written, in seconds since the epoch; infinite if it does not say."""
    if not _MOMENT.match(line):
        return math.inf
    return datetime.datetime.fromisoformat(line[:23]).timestamp()


def freed(lines: Iterable[str]) -> dict[str, str]:
    """Return the servers whose allocation a service of Nova's deleted, with the line."""
    return _by_server(_UNALLOCATED, lines)


def failed_builds(lines: Iterable[str]) -> dict[str, str]:
    """Return the servers whose nova-compute gave up building them, with the line that says so.

    Where its conductor or the cell's database is away it can say so to nobody, and the server
    stays as it is.
    """
    return _by_server(_NOT_BUILT, lines)


def _by_server(pattern: re.Pattern[str], lines: Iterable[str]) -> dict[str, str]:
    """Return the lines that a pattern finds, by the server that each names."""
    found = filter(None, map(pattern.search, lines))
    return {each["server"]: each.string.strip() for each in found}


class ServiceLogs(Generic[_Left]):
    """Reads what services wrote since this was made; one thread.

    :param logs: one that is not there yet is read from its begin
    :param find: :func:`abandoned`, :func:`ended_burials`, :func:`unreverted` and
        :func:`given_up_moves` for conductors, :func:`untold`, :func:`requests` and
        :func:`selected` for schedulers, :func:`confirmed` for nova-apis, the others for
        nova-computes
    """

    def __init__(
        self, logs: Iterable[pathlib.Path], find: Callable[[Iterable[str]], dict[str, _Left]]
    ) -> None:
        self._tails = [log_tails.LogTail(log) for log in logs]
        self._find = find
        self._read: dict[log_tails.LogTail, tuple[int, dict[str, _Left]]] = {}

    def left(self) -> Mapping[str, _Left]:
        """Return what was found, by uuid or request; a log is read again only where it grew."""
        found: dict[str, _Left] = {}
        for of_log in self.by_process().values():
            found |= of_log
        return found

    def by_process(self) -> Mapping[str, Mapping[str, _Left]]:
        """Return what was found, by the name of the process whose log says so."""
        found: dict[str, Mapping[str, _Left]] = {}
        for tail in self._tails:
            size = tail.size()
            if self._read.get(tail, (-1, {}))[0] != size:
                self._read[tail] = size, self._find(tail.lines())
            found[tail.process] = self._read[tail][1]
        return found
