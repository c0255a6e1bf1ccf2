# SPDX-License-Identifier: Apache-2.0
"""Hosts for other services: what version 1.2 of the RPC API brought.

Nobody who reads this list has Nova's databases to compare it with. So it is whole and
current, or refused: what cannot be proved is named, and given only to who asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import attrs
import oslo_messaging

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import host_relations
from nova_nodb_scheduler.rpc import (
    api,
    endpoint,
    host_queries,
    record_queries,
    update_validation,
)
from nova_nodb_scheduler.store import column_layout, store_snapshot
from nova_nodb_scheduler.wire import objects

_METHOD = "list_host_states"
#: A marker names a cell, an id and a key.
_MAX_MARKER_BYTES = 3 * endpoint.MAX_TEXT_BYTES
#: So many cells are named in an error.
_NAMED = 10
#: Of the API database, which says what cells there are.
_NO_CELL = objects.ScopeStatus(
    scope="api", hosts=0, proved=False, reason="no cell is known yet", fallbacks={}
)


@attrs.frozen
class JudgedSnapshot:
    """What a worker holds at one moment, and what of it is proved.

    :param version: how far the feed was followed when the snapshot was taken, or less
    :param scheduler: its host
    :param scheduler_state: where the worker stands
    :param proof_age_seconds: all that was written longer ago is in the snapshot; None
        where nothing is proved
    :param cells: all that are known or have hosts, as the snapshot proves them
    :param others: other scopes that a relation may name
    :param unreadable: compute nodes whose present record cannot be read; the snapshot has
        an older one, or none
    """

    snapshot: store_snapshot.Snapshot
    epoch: str
    version: int | None
    proof_age_seconds: float | None
    scheduler: str
    scheduler_state: str
    cells: Sequence[objects.ScopeStatus]
    others: Sequence[objects.ScopeStatus] = ()
    unreadable: Collection[str] = ()
    #: What is told of records, where other ones say more.
    tell: record_queries.TellState = record_queries.as_it_is


_expected = oslo_messaging.expected_exceptions(
    errors.InvalidArgument,
    errors.InvalidPredicate,
    errors.LimitExceeded,
    errors.MarkerNotFound,
    errors.StatesNotProved,
)


class HostEndpoint:
    """What version 1.2 of the RPC API brought; beside :class:`.endpoint.StateEndpoint`.

    :param take_snapshot: takes one and judges it; does no I/O
    """

    target = oslo_messaging.Target(namespace=api.NAMESPACE, version=api.VERSION)

    def __init__(
        self,
        take_snapshot: Callable[[], JudgedSnapshot],
        tables: host_relations.HostTables,
        limits: update_validation.UpdateLimits,
    ) -> None:
        self._take_snapshot = take_snapshot
        self._tables = tables
        self._limits = limits

    @_expected  # type: ignore[untyped-decorator]
    @endpoint.checked
    def list_host_states(
        self,
        ctxt: Any,
        keys: list[str] | None = None,
        ids: list[int] | None = None,
        cell: str | None = None,
        host: str | None = None,
        node: str | None = None,
        service: str | None = None,
        search: str | None = None,
        predicate: list[Any] | None = None,
        namespaces: list[str] | None = None,
        limit: int | None = None,
        marker: str | None = None,
        unproved: bool = False,
    ) -> objects.HostListPage:
        """Read compute nodes, a page at a time: cell by cell, in order of id.

        All of what is given must hold; who is given nothing lists all. The pages of a
        walk together hold every host that was there all the time, once, whatever comes
        and goes meanwhile, and whichever schedulers answer.

        :param keys: uuids of compute nodes
        :param ids: ids of the cells' tables; each cell has its own
        :param cell: uuid of a cell
        :param host: name of a compute host
        :param node: name of a hypervisor
        :param service: uuid of the host's nova-compute service
        :param search: part of a hypervisor's name, with SQL's wildcards ``%`` and ``_``
        :param predicate: see :meth:`.StateEndpoint.get_host_states`
        :param namespaces: what else to tell of each host
        :param limit: most hosts wanted; the server's page size at most
        :param marker: ``next_marker`` of the page before, or a compute node's uuid
        :param unproved: answer even where a cell is not proved; the page says which
        :raises InvalidArgument: naming the one that is not what it must be
        :raises InvalidPredicate: naming the condition, and the choices
        :raises LimitExceeded: more keys or ids than fit in a page
        :raises MarkerNotFound: the marker is a uuid, and no compute node has it
        :raises StatesNotProved: hosts may be missing, or old
        """
        self._check_lists(keys, ids, namespaces)
        for name, value in (
            ("cell", cell),
            ("host", host),
            ("node", node),
            ("service", service),
            ("search", search),
        ):
            if value is not None:
                endpoint.text(_METHOD, name, value)
        self._check_page(predicate, limit, marker, unproved)
        wanted = frozenset(namespaces or ())
        judged = self._take_snapshot()
        scopes = self._scopes(judged, cell, wanted)
        if not unproved:
            _refuse_unproved(judged, scopes)
        conditions = [
            [column, "==", value]
            for column, value in (("cell", cell), ("host", host), ("hypervisor_hostname", node))
            if value is not None
        ]
        size = self._limits.page_size
        page = host_queries.page_of(
            judged.snapshot,
            self._tables,
            host_queries.HostQuery(
                keys=keys,
                ids=ids,
                conditions=[*conditions, *(predicate or ())],
                service=service,
                search=search,
            ),
            sorted(wanted),
            size if limit is None else min(limit, size),
            marker,
            self._limits.page_bytes,
        )
        return objects.HostListPage(
            hosts=[_listed(each, judged.tell) for each in page.hosts],
            next_marker=None if page.next_marker is None else str(page.next_marker),
            scheduler=judged.scheduler,
            scheduler_state=judged.scheduler_state,
            epoch=judged.epoch,
            version=judged.version,
            proof_age_seconds=judged.proof_age_seconds,
            scopes=scopes,
            unreadable=self._unreadable(judged, cell, keys),
        )

    def _check_lists(self, keys: object, ids: object, namespaces: object) -> None:
        size = self._limits.page_size
        if keys is not None:
            endpoint.few(_METHOD, "keys", keys, size)
            endpoint.texts(_METHOD, "keys", keys)
        if ids is not None:
            endpoint.few(_METHOD, "ids", ids, size)
            for each in endpoint.listed(_METHOD, "ids", ids):
                number = endpoint.number(_METHOD, "ids", each)
                if not column_layout.LEAST <= number <= column_layout.GREATEST:
                    raise errors.InvalidArgument(_METHOD, "ids", "one does not fit 64 bits")
        if namespaces is not None:
            known = [each.namespace for each in self._tables.relations]
            if len(endpoint.listed(_METHOD, "namespaces", namespaces)) > len(known):
                raise errors.InvalidArgument(_METHOD, "namespaces", "name each but once")
            for name in endpoint.texts(_METHOD, "namespaces", namespaces):
                if name not in known:
                    raise errors.InvalidArgument(
                        _METHOD,
                        "namespaces",
                        f"{name[:100]!r} does not belong to hosts (choose of {', '.join(known)})",
                    )

    @staticmethod
    def _check_page(predicate: object, limit: object, marker: object, unproved: object) -> None:
        if predicate is not None:
            endpoint.listed(_METHOD, "predicate", predicate)
        endpoint.bounded(
            _METHOD,
            "predicate",
            predicate,
            endpoint.MAX_PREDICATE_BYTES,
            endpoint.MAX_PREDICATE_LEVELS,
        )
        if limit is not None and endpoint.number(_METHOD, "limit", limit) < 1:
            raise errors.InvalidArgument(_METHOD, "limit", "give 1 or more, or leave it out")
        if marker is not None:
            endpoint.text(_METHOD, "marker", marker, _MAX_MARKER_BYTES)
        if not isinstance(unproved, bool):
            raise errors.InvalidArgument(
                _METHOD, "unproved", f"a {type(unproved).__name__} is neither true nor false"
            )

    def _scopes(
        self, judged: JudgedSnapshot, cell: str | None, wanted: frozenset[str]
    ) -> list[objects.ScopeStatus]:
        """Return the scopes that an answer depends on; one at least.

        :raises InvalidArgument: there is no such cell
        """
        if not judged.cells:
            # That there are no hosts is for nobody to say.
            return [_NO_CELL]
        cells = [each for each in judged.cells if cell in (None, each.scope)]
        if cell is not None and not cells:
            known = [each.scope for each in judged.cells]
            more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
            raise errors.InvalidArgument(
                _METHOD,
                "cell",
                f"scheduler {judged.scheduler} knows no such cell (known: "
                f"{', '.join(known[:_NAMED])}{more})",
            )
        needed = {each.scope for each in self._tables.relations if each.namespace in wanted}
        return [*cells, *(each for each in judged.others if each.scope in needed)]

    def _unreadable(
        self, judged: JudgedSnapshot, cell: str | None, keys: Collection[str] | None
    ) -> list[str]:
        """Return which unreadable compute nodes may be of those that are asked for.

        Where one stands, and whose it is, only its last readable state tells: who asks by
        anything but a cell or a key is told of all.
        """
        view = judged.snapshot.namespace(self._tables.nodes)
        found = (
            judged.unreadable if keys is None else frozenset(keys) & frozenset(judged.unreadable)
        )
        if cell is not None:
            found = [key for key in found if view.texts(key, "cell") in (None, (cell,))]
        return sorted(found)[: self._limits.page_size]


def _refuse_unproved(judged: JudgedSnapshot, scopes: Sequence[objects.ScopeStatus]) -> None:
    missing = [f"{each.scope}: {each.reason}" for each in scopes if not each.proved]
    if not missing:
        return
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    raise errors.StatesNotProved(
        f"{judged.scheduler} ({judged.scheduler_state})", "; ".join(missing[:_NAMED]) + more
    )


def _listed(found: host_queries.FoundHost, tell: record_queries.TellState) -> objects.ListedHost:
    return objects.ListedHost(
        uuid=found.record.key,
        id=found.place.number,
        cell=found.place.cell,
        host=found.host,
        node=found.node,
        revision=found.record.revision,
        version=found.record.version,
        state=found.record.state,
        related=[
            objects.HostState(
                namespace=namespace,
                key=record.key,
                revision=record.revision,
                version=record.version,
                state=tell(namespace, record.key, record.state),
            )
            for namespace, records in found.related.items()
            for record in records
        ],
        counts=dict(found.counts),
    )
