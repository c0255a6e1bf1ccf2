# SPDX-License-Identifier: Apache-2.0
"""The methods that a scheduler answers; ``oslo.messaging`` calls them in its threads.

Reading methods answer from one snapshot of the store and do no I/O. Errors of
:mod:`nova_nodb_scheduler.errors` reach the caller as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import oslo_messaging

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.rpc import admission as admission_module
from nova_nodb_scheduler.rpc import api, arguments, pages, predicates
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.wire import objects


@attrs.frozen
class Published:
    """What became of the states handed to a :data:`Publish`.

    :param rejected: why a record was not written
    :param version: highest version written, 0 if nothing was
    """

    published: int
    unchanged: int
    deleted: int
    version: int
    rejected: Mapping[records.RecordKey, str] = attrs.field(factory=dict)


#: Writes an owner's states; None deletes. May raise BackendUnavailable, after
#: the driver's time-out at the latest: some may have been written then.
Publish = Callable[[str, Mapping[records.RecordKey, Mapping[str, Any] | None]], Published]

#: Epoch of the store, and the age in seconds of what is proved (or None).
Freshness = Callable[[], tuple[str, float | None]]

_expected = oslo_messaging.expected_exceptions(
    errors.InvalidArgument,
    errors.InvalidPredicate,
    errors.InvalidRecord,
    errors.LimitExceeded,
    errors.NotOwner,
    errors.UnknownNamespace,
    *errors.NOT_USABLE,
)


class Endpoint:
    """The methods of version 1.0; :mod:`.explaining` has those that came later.

    :param status: builds the answer of :meth:`get_status`; must not block
    """

    target = oslo_messaging.Target(namespace=api.NAMESPACE, version=api.VERSION)

    def __init__(
        self,
        store: host_state_store.HostStateStore,
        declared: Sequence[namespaces.Namespace],
        admission: admission_module.Admission,
        limits: admission_module.Limits,
        publish: Publish,
        status: Callable[[], objects.SchedulerStatus],
        freshness: Freshness,
    ) -> None:
        self._store = store
        self._declared = tuple(declared)
        self._admission = admission
        self._limits = limits
        self._publish = publish
        self._status = status
        self._freshness = freshness

    @_expected  # type: ignore[untyped-decorator]
    @arguments.checked
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
        owner = arguments.text("update_host_states", "owner", owner)
        admitted = self._admission.admit(owner, records)
        found = list(admitted.errors)
        published = Published(0, 0, 0, 0)
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
    @arguments.checked
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
            operator, value]``; see :mod:`nova_nodb_scheduler.rpc.predicates`
        :param limit: most records wanted; the server's page size at most
        :param marker: ``next_marker`` of the page before
        :raises InvalidArgument: naming the one that is not what it must be
        :raises UnknownNamespace: the namespace is not declared
        :raises InvalidPredicate: naming the condition, and the choices
        :raises LimitExceeded: more keys than fit in a page
        """
        self._check_reading(namespace, keys, predicate, limit, marker)
        view = self._store.snapshot().namespace(namespace)
        size = self._limits.page_size
        wanted = size if limit is None else min(max(1, limit), size)
        page = pages.cut(view, keys, predicate or [], wanted, marker)
        epoch, proof_age_seconds = self._freshness()
        return objects.HostStatePage(
            states=[
                objects.HostState(
                    namespace=namespace,
                    key=record.key,
                    revision=record.revision,
                    version=record.version,
                    state=record.state,
                )
                for record in page.records
            ],
            next_marker=page.next_marker,
            epoch=epoch,
            proof_age_seconds=proof_age_seconds,
        )

    def _check_reading(
        self, namespace: object, keys: Any, predicate: object, limit: object, marker: object
    ) -> None:
        method = "get_host_states"
        arguments.text(method, "namespace", namespace)
        if keys is not None:
            asked = len(arguments.listed(method, "keys", keys))
            if asked > self._limits.page_size:
                raise errors.LimitExceeded(
                    "the number of keys in one get_host_states call",
                    asked,
                    self._limits.page_size,
                    "[nodb_scheduler] rpc_page_size",
                )
            arguments.texts(method, "keys", keys)
        # A predicate is shown in errors: it must be no page, and no tower.
        arguments.bounded(
            method,
            "predicate",
            predicate,
            arguments.MAX_PREDICATE_BYTES,
            arguments.MAX_PREDICATE_LEVELS,
        )
        if limit is not None:
            arguments.number(method, "limit", limit)
        if marker is not None:
            arguments.text(method, "marker", marker)

    @_expected  # type: ignore[untyped-decorator]
    @arguments.checked
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
                        operators=list(predicates.operators_of(column.kind)),
                    )
                    for column in each.columns
                ],
                records=len(snapshot.namespace(each.name)),
            )
            for each in sorted(self._declared, key=lambda each: each.name)
        ]

    @_expected  # type: ignore[untyped-decorator]
    @arguments.checked
    def get_status(self, ctxt: Any) -> objects.SchedulerStatus:
        """Return where this scheduler worker stands."""
        return self._status()
