# SPDX-License-Identifier: Apache-2.0
"""The methods that a scheduler answers; ``oslo.messaging`` calls them in its threads.

Reading methods answer from one snapshot of the store and do no I/O. Errors of
:mod:`nova_nodb_scheduler.errors` reach the caller as they are. Whoever can send to
the bus can send anything: arguments are checked before any work is done on them,
and a caller learns by an error of this project what was wrong, never by what
Python happened to raise.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs
import oslo_messaging

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces
from nova_nodb_scheduler.model import records as records_module
from nova_nodb_scheduler.rpc import api, record_queries
from nova_nodb_scheduler.rpc import update_validation as admission_module
from nova_nodb_scheduler.store import host_state_store, store_snapshot
from nova_nodb_scheduler.wire import decoded_sizes, explanations, objects

_Result = TypeVar("_Result")

#: Names of namespaces, owners and servers, and keys: none that exists is longer. A
#: host's name may be of characters with four bytes each, and a page end with it.
MAX_TEXT_BYTES = 4 * records_module.KEY_CHARACTERS
#: What a predicate may take decoded, and how deep it may be nested: a list of
#: conditions, each of which may hold a list of values.
MAX_PREDICATE_BYTES = 4 * 1024 * 1024
MAX_PREDICATE_LEVELS = 4


def checked(method: Callable[..., _Result]) -> Callable[..., _Result]:
    """Have a method refuse arguments that it does not take, or lacks, by name."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(*positional: Any, **named: Any) -> _Result:
        try:
            signature.bind(*positional, **named)
        except TypeError as error:
            raise errors.InvalidArgument(method.__name__, "arguments", str(error)[:200]) from error
        return method(*positional, **named)

    return call


def text(method: str, name: str, value: object, most_bytes: int = MAX_TEXT_BYTES) -> str:
    """Take a short text.

    :raises InvalidArgument: it is none, is empty, too long, or cannot be written as UTF-8
    """
    if not isinstance(value, str):
        raise errors.InvalidArgument(method, name, f"a {type(value).__name__} is no text")
    # A character has a byte at least: nothing long is encoded.
    try:
        fits = 0 < len(value) <= most_bytes and len(value.encode()) <= most_bytes
    except UnicodeEncodeError as error:
        raise errors.InvalidArgument(method, name, "it is no text in UTF-8") from error
    if not fits:
        raise errors.InvalidArgument(method, name, f"it has 1 to {most_bytes} bytes of UTF-8")
    return value


def texts(method: str, name: str, values: object) -> list[str]:
    """Take a list of short texts; how many, the caller bounds first.

    :raises InvalidArgument: it is no list, or something in it no such text
    """
    return [text(method, name, each) for each in listed(method, name, values)]


def listed(method: str, name: str, values: object) -> Sequence[Any]:
    """Take a list.

    :raises InvalidArgument: it is none
    """
    if not isinstance(values, (list, tuple)):
        raise errors.InvalidArgument(method, name, f"a {type(values).__name__} is no list")
    return values


def few(method: str, name: str, values: object, page_size: int) -> None:
    """Refuse a list of more than fit in a page.

    :raises InvalidArgument: it is no list
    :raises LimitExceeded: it is longer
    """
    asked = len(listed(method, name, values))
    if asked > page_size:
        raise errors.LimitExceeded(
            f"the number of {name} in one {method} call",
            asked,
            page_size,
            "[nodb_scheduler] rpc_page_size",
        )


def number(method: str, name: str, value: object) -> int:
    """Take a whole number.

    :raises InvalidArgument: it is none
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise errors.InvalidArgument(method, name, f"a {type(value).__name__} is no whole number")
    return value


def bounded(method: str, name: str, value: object, most_bytes: int, most_levels: int) -> None:
    """Refuse what takes too much memory or is nested too deeply.

    :raises InvalidArgument: it does, or is
    """
    try:
        size_bytes = decoded_sizes.decoded_bytes(value, most_bytes, most_levels)
    except decoded_sizes.TooDeep as error:
        raise errors.InvalidArgument(method, name, f"it is {error}") from error
    if size_bytes > most_bytes:
        raise errors.InvalidArgument(
            method, name, f"it takes more than {most_bytes} bytes once it is decoded"
        )


#: (context, request, servers, limit) -> what would be decided.
Explain = Callable[[Any, dict[str, Any], int, int], explanations.Explanation]

#: Most servers that one request is explained for, and most hosts that are listed.
MAX_SERVERS = 1000
MAX_HOSTS = 1000
#: What a request may take decoded, and how deep it may be nested.
MAX_REQUEST_BYTES = 4 * 1024 * 1024
MAX_REQUEST_LEVELS = 64


@attrs.frozen
class ExplainBounds:
    """What explanations may cost a worker that has requests to decide.

    :param at_once: explanations under way; who comes above is refused, not queued:
        it would wait in a thread that a decision could have
    :param places: servers of a request times hosts in memory
    """

    at_once: int = 1
    places: int = 10_000_000


_expected_explaining = oslo_messaging.expected_exceptions(
    errors.InvalidArgument, errors.InvalidRequest, errors.LimitExceeded
)


class ExplainingEndpoint:
    """What version 1.1 of the RPC API brought; beside :class:`StateEndpoint`.

    :param explain: plans a request, and allocates and reserves nothing
    :param past: remembers what was decided about a server; must not block
    :param hosts: how many hosts a request is planned over
    """

    target = oslo_messaging.Target(namespace=api.NAMESPACE, version=api.VERSION)

    def __init__(
        self,
        explain: Explain,
        past: Callable[[str], explanations.PastDecisions],
        hosts: Callable[[], int],
        bounds: ExplainBounds,
    ) -> None:
        self._explain = explain
        self._past = past
        self._hosts = hosts
        self._bounds = bounds
        self._under_way = threading.BoundedSemaphore(bounds.at_once)

    @_expected_explaining  # type: ignore[untyped-decorator]
    @checked
    def explain(
        self, ctxt: Any, request: dict[str, Any], servers: int = 1, limit: int = 10
    ) -> explanations.Explanation:
        """Tell what would be decided of a request now, and why.

        Nothing is allocated and nothing is reserved. It costs what a request for a
        new kind of server costs, once for every call, without the allocation;
        Nova's request filters may ask neutron, as they would.

        :param request: a RequestSpec of Nova as its ``obj_to_primitive`` gives it
        :param servers: how many it is for, 1 to 1,000
        :param limit: most hosts to list, the best first; 1,000 at most
        :raises InvalidRequest: naming what is wrong with it
        :raises InvalidArgument: it lacks an argument, or has one too many
        :raises LimitExceeded: too many are explained at a time, there are too many
            servers for that many hosts, or it took too long
        """
        if not isinstance(request, dict):
            raise errors.InvalidRequest("request", f"it is a {type(request).__name__}, no mapping")
        ranges: tuple[tuple[str, Any, int, int], ...] = (
            ("servers", servers, 1, MAX_SERVERS),
            ("limit", limit, 0, MAX_HOSTS),
        )
        for name, value, least, most in ranges:
            if type(value) is not int or not least <= value <= most:
                # A value may be a page long, or a tower of lists.
                shown = value if type(value) is int and abs(value) < 10**12 else type(value)
                raise errors.InvalidRequest(name, f"it is {shown!r}; give {least} to {most}")
        bounded("explain", "request", request, MAX_REQUEST_BYTES, MAX_REQUEST_LEVELS)
        places = servers * self._hosts()
        if places > self._bounds.places:
            raise errors.LimitExceeded(
                "the number of servers to explain times that of hosts",
                places,
                self._bounds.places,
                "[nodb_scheduler] rpc_max_explained_places",
            )
        if not self._under_way.acquire(blocking=False):
            raise errors.LimitExceeded(
                "the number of explanations at a time",
                self._bounds.at_once + 1,
                self._bounds.at_once,
                "[nodb_scheduler] rpc_max_explanations",
            )
        try:
            return self._explain(ctxt, request, servers, limit)
        finally:
            self._under_way.release()

    @_expected_explaining  # type: ignore[untyped-decorator]
    @checked
    def get_decisions(self, ctxt: Any, instance_uuid: str) -> explanations.PastDecisions:
        """Return what this worker remembers of decisions about a server.

        :raises InvalidArgument: the uuid is no short text
        """
        return self._past(text("get_decisions", "instance_uuid", instance_uuid))


@attrs.frozen
class PublishedStates:
    """What became of the states handed to a :data:`Publish`.

    :param rejected: why a record was not written
    :param version: highest version written, 0 if nothing was
    """

    published: int
    unchanged: int
    deleted: int
    version: int
    rejected: Mapping[records_module.RecordKey, str] = attrs.field(factory=dict)


#: Writes an owner's states; None deletes. May raise BackendUnavailable, after
#: the driver's time-out at the latest: some may have been written then.
Publish = Callable[
    [str, Mapping[records_module.RecordKey, Mapping[str, Any] | None]], PublishedStates
]


@attrs.frozen
class Freshness:
    """How current a store is.

    :param epoch: of what is in it
    :param proof_age_seconds: all that was written longer ago is in it; None where
        nothing is proved
    :param generation: changes with each begin and each end of a rebuild of the store
    """

    epoch: str
    proof_age_seconds: float | None
    generation: int


_expected = oslo_messaging.expected_exceptions(
    errors.InvalidArgument,
    errors.InvalidPredicate,
    errors.InvalidRecord,
    errors.LimitExceeded,
    errors.NotOwner,
    errors.UnknownNamespace,
    *errors.NOT_USABLE,
)


class StateEndpoint:
    """The methods of version 1.0.

    :param status: builds the answer of :meth:`get_status`; must not block
    :param freshness: tells that of the store; must not block
    :param telling: what is told of a snapshot's records, where other ones say more; must
        not block
    """

    target = oslo_messaging.Target(namespace=api.NAMESPACE, version=api.VERSION)

    def __init__(
        self,
        store: host_state_store.HostStateStore,
        declared: Sequence[namespaces.Namespace],
        admission: admission_module.UpdateValidation,
        limits: admission_module.UpdateLimits,
        publish: Publish,
        status: Callable[[], objects.SchedulerStatus],
        freshness: Callable[[], Freshness],
        telling: Callable[[store_snapshot.Snapshot], record_queries.TellState] = (
            lambda snapshot: record_queries.as_it_is
        ),
    ) -> None:
        self._telling = telling
        self._store = store
        self._declared = tuple(declared)
        self._admission = admission
        self._limits = limits
        self._publish = publish
        self._status = status
        self._freshness = freshness

    @_expected  # type: ignore[untyped-decorator]
    @checked
    def update_host_states(self, ctxt: Any, owner: str, records: list[Any]) -> objects.UpdateResult:
        """Write records of namespaces that the caller owns.

        Either the call is refused as a whole and nothing is written, or every
        record stands for itself: those that fit their namespace's declaration
        are published, each of the others is an error in the result that names
        record and field. Two records of one key are both errors.

        A record is replaced whole; of two calls for the same record the last
        one stands. The same call again changes nothing. The records are in
        the back end when the call returns, and in the schedulers' memory once
        their feed reaches ``version`` of the result.

        :param owner: the owner on whose behalf the caller writes
        :param records: ``HostStateUpdate`` objects
        :raises LimitExceeded: too many records or bytes, or calls a second
        :raises InvalidArgument: the owner is no short text
        :raises NotOwner: a namespace belongs to another, or is one of the
            plugin's own, which its own processes write alone
        :raises UnknownNamespace: a namespace is not declared
        :raises InvalidRecord: something in the list is no record at all
        :raises BackendUnavailable: some may have been written; call again
        """
        owner = text("update_host_states", "owner", owner)
        admitted = self._admission.admit(owner, records)
        found = list(admitted.errors)
        published = PublishedStates(0, 0, 0, 0)
        if admitted.states:
            published = self._publish(owner, admitted.states)
            found += [
                errors.InvalidRecord(str(key), "(record)", reason)
                for key, reason in published.rejected.items()
            ]
        return objects.UpdateResult(
            published=published.published,
            unchanged=published.unchanged,
            deleted=published.deleted,
            version=published.version,
            errors=[
                objects.UpdateError(record=each.record, field=each.field, reason=each.reason)
                for each in found
            ],
        )

    @_expected  # type: ignore[untyped-decorator]
    @checked
    def get_host_states(
        self,
        ctxt: Any,
        namespace: str,
        keys: list[str] | None = None,
        predicate: list[Any] | None = None,
        limit: int | None = None,
        marker: str | None = None,
    ) -> objects.HostStatePage:
        """Read records of a namespace, a page at a time, in order of key.

        :param keys: only these, as far as they exist
        :param predicate: only those that fulfil all conditions ``[column,
            operator, value]``; see :mod:`nova_nodb_scheduler.rpc.record_queries`
        :param limit: most records wanted; the server's page size at most
        :param marker: ``next_marker`` of the page before
        :raises InvalidArgument: naming the one that is not what it must be
        :raises UnknownNamespace: the namespace is not declared
        :raises InvalidPredicate: naming the condition, and the choices
        :raises LimitExceeded: more keys than fit in a page
        """
        self._check_reading(namespace, keys, predicate, limit, marker)
        # Before the snapshot: what is proved by now is in it, unless it is of a store
        # that began to be built anew meanwhile.
        freshness = self._freshness()
        snapshot = self._store.snapshot()
        view, tell = snapshot.namespace(namespace), self._telling(snapshot)
        rebuilt = self._freshness().generation != freshness.generation
        size = self._limits.page_size
        wanted = size if limit is None else min(max(1, limit), size)
        conditions = [] if predicate is None else predicate
        page = record_queries.page_of(
            view, keys, conditions, wanted, marker, self._limits.page_bytes
        )
        return objects.HostStatePage(
            states=[
                objects.HostState(
                    namespace=namespace,
                    key=record.key,
                    revision=record.revision,
                    version=record.version,
                    state=tell(namespace, record.key, record.state),
                )
                for record in page.records
            ],
            next_marker=page.next_marker,
            epoch=freshness.epoch,
            proof_age_seconds=None if rebuilt else freshness.proof_age_seconds,
        )

    def _check_reading(
        self, namespace: object, keys: Any, predicate: object, limit: object, marker: object
    ) -> None:
        method = "get_host_states"
        text(method, "namespace", namespace)
        if keys is not None:
            few(method, "keys", keys, self._limits.page_size)
            texts(method, "keys", keys)
        # A predicate is shown in errors: it must be no page, and no tower.
        bounded(
            method,
            "predicate",
            predicate,
            MAX_PREDICATE_BYTES,
            MAX_PREDICATE_LEVELS,
        )
        if limit is not None:
            number(method, "limit", limit)
        if marker is not None:
            text(method, "marker", marker)

    @_expected  # type: ignore[untyped-decorator]
    @checked
    def list_namespaces(self, ctxt: Any) -> list[objects.NamespaceInfo]:
        """Return the declared namespaces with their columns, in order of name."""
        snapshot = self._store.snapshot()
        return [
            objects.NamespaceInfo(
                name=each.name,
                owner=each.owner,
                schema=str(each.schema),
                columns=[
                    objects.ColumnInfo(
                        name=column.name,
                        kind=column.kind.value,
                        operators=list(record_queries.operators_of(column.kind)),
                    )
                    for column in each.columns
                ],
                records=len(snapshot.namespace(each.name)),
            )
            for each in sorted(self._declared, key=lambda each: each.name)
        ]

    @_expected  # type: ignore[untyped-decorator]
    @checked
    def get_status(self, ctxt: Any) -> objects.SchedulerStatus:
        """Return where this scheduler worker stands."""
        return self._status()
