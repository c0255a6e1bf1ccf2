# SPDX-License-Identifier: Apache-2.0
"""Compares the queue with Nova's API database: by one scheduler, by a lease, once a minute.

A server that its user deleted while it waited has no build request any more. The plugin in
nova-api takes it out of its request at once; what that misses is found here, in two looks a
minute apart, for a database that replicates may be behind. Nor has one that a conductor wrote
to a cell and did not send: its mapping answers for it.

A record that cannot be read says nothing of its deadline, or nothing that is believed. Its
server would wait for ever: so once its time has passed, by its own word or else by the age
of its build request and the longest wait that is allowed, it is replaced by one that says
what is known and has expired. Then it ends as any other does: a conductor looks what stands of
its servers in cells. Whatever is mapped there and has no build request counts as sent, for it
may have been. A record that a newer release wrote is left to that one.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending, records
from nova_nodb_scheduler.observe import queue_metrics
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.pending import pending_ledger
from nova_nodb_scheduler.synchronizer.records import leases
from nova_nodb_scheduler.synchronizer.waking import followed_requests
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)

LEASE = "nodb-queue-reconciler"

#: Between two looks.
INTERVAL_SECONDS = 60.0
#: Of the lease: another scheduler goes on after so long.
LEASE_SECONDS = 3 * INTERVAL_SECONDS
#: A request that has waited for less is not looked for.
_YOUNG_SECONDS = 30.0
#: Between two sweeps of payloads that have no record.
_SWEEP_SECONDS = 3600.0
#: Why a record that was replaced waits, for people.
UNREADABLE = "its record could not be read"

_PENDING = known_namespaces.PENDING

#: From a request's key to its servers, by its payload; none where that cannot be read. May raise
#: BackendUnavailable.
ServersOf = Callable[[str], Collection[str]]

#: From servers to when the build requests of those that have one were made, in seconds.
MadeAt = Callable[[Collection[str]], Mapping[str, float]]


@attrs.frozen
class ReconcilerParts:
    """What a reconciler works with.

    :param holder: id of this worker, for the lease
    :param unreadable: keys of records that cannot be read, of the store's and others
    :param made_at: see :func:`.build_requests.made_at`; raises whatever a database does
    :param in_cells: see :func:`.build_requests.in_cells`; likewise
    :param servers_of: asked of whom no record tells it
    :param max_wait_seconds: the longest that anybody may wait
    :param clock: seconds by the back end's clock
    """

    synchronizer: contract.Synchronizer
    ledger: pending_ledger.PendingLedger
    followed: followed_requests.FollowedRequests
    holder: str
    unreadable: Callable[[], Iterable[str]]
    made_at: MadeAt
    in_cells: Callable[[Collection[str]], Collection[str]]
    servers_of: ServersOf
    max_wait_seconds: float
    meter: queue_metrics.QueueMetrics
    clock: Callable[[], float]


class QueueReconciler:
    """See the module. Has a thread; :meth:`look` is public for those who have none."""

    def __init__(self, parts: ReconcilerParts) -> None:
        self._parts = parts
        self._lease = leases.LeaseKeeper(parts.synchronizer, LEASE, parts.holder, LEASE_SECONDS)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        #: Servers without a build request, as of the last look.
        self._missing: frozenset[str] = frozenset()
        self._swept_at = -math.inf

    def start(self) -> None:
        """Start the thread."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="nodb-queue-reconciler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; the lease ends by itself, or is given up. Idempotent."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10.0)
            self._thread = None

    def _run(self) -> None:
        complained = False
        while not self._stop.wait(INTERVAL_SECONDS):
            try:
                if isinstance(self._lease.acquire(), leases.Lease):
                    self.look()
                else:
                    self._missing = frozenset()
                complained = False
            except Exception:
                # A database or a back end that is away; the next look finds the same.
                if not complained:
                    LOG.exception("The queue cannot be compared with Nova's API database.")
                complained = True

    def look(self) -> None:
        """Look once. Blocks for the API database and the back end.

        :raises Exception: whatever the database raises
        :raises BackendUnavailable: what is left is found by the next look
        """
        parts = self._parts
        now = parts.clock()
        unreadable = frozenset(parts.unreadable())
        for key in sorted(unreadable):
            self._end_unreadable(key, now)
        self._drop_deleted(now, unreadable)
        if now - self._swept_at >= _SWEEP_SECONDS:
            self._swept_at = now
            removed = parts.ledger.sweep_payloads(_SWEEP_SECONDS)
            if removed:
                LOG.info("%(count)d payloads without a request are removed.", {"count": removed})

    # -- servers that were deleted --------------------------------------------------------

    def _drop_deleted(self, now: float, unreadable: Collection[str]) -> None:
        parts = self._parts
        followed = parts.followed
        with followed.lock:
            found = followed.queues.waiting()
        waiting = [
            each
            for each in found
            # What became unreadable stands in the order as it was, and no step can be taken.
            if now - each.parked_at >= _YOUNG_SECONDS and each.key not in unreadable
        ]
        # What was sent of one whose other servers wait is its host's, or was deleted there.
        servers = {server: each.key for each in waiting for server in each.unsent}
        there = parts.made_at(servers)
        missing = frozenset(servers.keys() - there.keys())
        mapped = missing.intersection(server for each in waiting for server in each.mapped)
        if mapped:
            missing = missing.difference(parts.in_cells(mapped))
        gone, self._missing = missing & self._missing, missing
        for server in sorted(gone):
            parts.ledger.drop_server(servers[server], server)
        if gone:
            LOG.info(
                "%(count)d servers that waited for room were deleted, and wait no more.",
                {"count": len(gone)},
            )
            parts.meter.reconciled(len(gone))

    # -- records that cannot be read ----------------------------------------------------------

    def _end_unreadable(self, key: str, now: float) -> None:
        parts = self._parts
        name = pending_ledger.record_key(key)
        record = parts.synchronizer.read([name]).get(name)
        if record is None or record.deleted:
            return
        state = _state_of(record)
        if state is None or _is_request(key, state):
            return
        named = _texts(state.get("servers")) or parts.servers_of(key)
        servers = tuple(dict.fromkeys((key, *named)))
        made = parts.made_at(servers)
        in_cells = parts.in_cells([each for each in servers if each not in made])
        if not made and not in_cells:
            # Nobody waits for it: its servers were deleted.
            self._write(records.Write(name, record.revision, deleted=True))
            return
        most = parts.max_wait_seconds
        # Of one of which nothing but what is in cells is left, nobody knows how long it waited.
        began = min(made.values(), default=0.0)
        deadline = _number(state.get("deadline_at"))
        if not 0 < deadline <= now + most:
            deadline = began + most
        if now < deadline:
            return
        LOG.error(
            "The record of request %(key)s cannot be read, and its time is over: its servers end "
            "in ERROR, but for those that have a host.",
            {"key": key},
        )
        sent = dict.fromkeys((*_texts(state.get("sent")), *sorted(in_cells)))
        ended = _ended(key, state, servers, tuple(sent), began or now, deadline)
        text = codec.encode(ended.to_state(), _PENDING.schema, record=str(name))
        self._write(records.Write(name, record.revision, text))

    def _write(self, write: records.Write) -> None:
        # Who loses it was overtaken by a record that can be read, or finds this one next time.
        parts = self._parts
        parts.synchronizer.write([write])


def _state_of(record: records.Record) -> dict[str, Any] | None:
    """Return what of a record can be read; None where a newer release wrote it."""
    try:
        decoded = codec.decode(record.payload)
    except errors.UndecodableRecord:
        return {}
    return None if decoded.schema.major > _PENDING.schema.major else decoded.state


def _is_request(key: str, state: Mapping[str, Any]) -> bool:
    try:
        pending.of_state(key, state)
    except pending.MalformedPending:
        return False
    return True


def _ended(
    key: str,
    state: Mapping[str, Any],
    servers: tuple[str, ...],
    sent: tuple[str, ...],
    made: float,
    deadline: float,
) -> pending.PendingRequest:
    """Return a request with what is known of it, whose time and whose holder's lease are over.

    In somebody's hand: what that one may have left is cleared away first.
    """
    grant = state.get("grant")
    attempt = grant.get("attempt") if isinstance(grant, Mapping) else None
    asked_at = _number(state.get("asked_at"))
    return pending.PendingRequest(
        key=key,
        servers=servers,
        sent=sent,
        project_id=_text(state.get("project_id")),
        user_id=_text(state.get("user_id")),
        flavor=_text(state.get("flavor")),
        priority_class=_text(state.get("class")),
        needs={},
        queue=_text(state.get("queue")),
        asked_at=asked_at if asked_at > 0 else made,
        deadline_at=deadline,
        parked_at=made,
        state=pending.PendingState.SCHEDULING,
        grant=pending.Grant(attempt if type(attempt) is int and attempt > 0 else 1, "", 0.0),
        reason=UNREADABLE,
    )


def _number(value: object) -> float:
    """Return a number; NaN for what is none."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else math.nan  # type: ignore[arg-type]


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(values: object) -> tuple[str, ...]:
    if not isinstance(values, list):
        return ()
    return tuple(value for value in values if isinstance(value, str) and value)
