# SPDX-License-Identifier: Apache-2.0
"""Turns dirty names and heartbeats into records on the back end.

One batch is one read of the back end, one SELECT per table and database, and
one write of the back end, whatever the number of records.
"""

from __future__ import annotations

import collections
import functools
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import attrs
from nova import exception as nova_exception

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.liveness import heartbeat_writer
from nova_nodb_scheduler.nova_adapter.reporting import dirty_records, nova_tables
from nova_nodb_scheduler.nova_adapter.reporting import scopes as scopes_module
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces, report_counts
from nova_nodb_scheduler.synchronizer.records import publisher as publisher_module

LOG = logging.getLogger(__name__)


@attrs.frozen
class PublishedRows:
    """What became of a batch of rows that were published as records.

    :param failed: names that stay dirty: their database or the back end
        refused them this time
    :param rejected: those among them whose records cannot be written as they
        are: too large, or held by a newer schema
    :param unnamed: names that no record may have. They are not among
        ``failed``: nothing stands there that would be old, and none ever will;
        what Nova does with such a row, a request must ask Nova
    :param written: records written or deleted
    :param version: highest version written, 0 if none
    """

    failed: frozenset[records.RecordKey]
    rejected: frozenset[records.RecordKey]
    unnamed: frozenset[records.RecordKey]
    written: int
    version: int


#: What a record has only by heartbeats that were stored.
_OF_STORED = ("seen_at", "unwritten")

#: Below any count.
_NONE_UNWRITTEN = -(2**63)

#: Services that are named in the log for implausible counts.
_MOST_NAMED = 1000


class ImplausibleCounts:
    """Counts of heartbeats that were ignored; each service is named once. Any thread.

    :ivar count: how many were, those of one batch of one service together
    """

    def __init__(self) -> None:
        self.count = 0
        self._named: set[str] = set()

    def note(self, service: str, known: int, count: int) -> None:
        """Count one, and name the service."""
        self.count += 1
        if service in self._named or len(self._named) >= _MOST_NAMED:
            return
        self._named.add(service)
        LOG.warning(
            "Compute service %(service)s says it has sent %(count)d heartbeats where "
            "%(known)d were known: no service beats so often. Such counts are ignored (said "
            "once). Its row was edited, or somebody else speaks for its host.",
            {"service": records.printable_name(service), "count": count, "known": known},
        )


@attrs.define(eq=False, slots=False)
class RowPublisher:
    """Publishes rows of Nova's tables by name; any thread may call it."""

    _publisher: publisher_module.Publisher
    _scopes: scopes_module.Scopes
    _now: Callable[[], float] = time.time
    implausible: ImplausibleCounts = attrs.field(init=False, factory=ImplausibleCounts)

    def publish(
        self, batch: Collection[dirty_records.DirtyRecord], heard_before: str | None = None
    ) -> PublishedRows:
        """Read the rows of a batch and bring their records up to date.

        :param heard_before: see :func:`swept_liveness`; ISO 8601, UTC
        :raises BackendUnavailable: all of the batch stays dirty
        """
        scope_of = {dirty.key: dirty.scope for dirty in batch}
        rows = _Rows(self._scopes, scope_of, heard_before, self._now(), self.implausible)
        report = self._publisher.publish(
            {key: rows.compute(key) for key in scope_of}, refresh=rows.refresh
        )
        return PublishedRows(
            # What cannot be written as it is stays dirty, too: the record that
            # stands there is old, and its cell must not be trusted.
            failed=report.failed | (report.rejected.keys() - report.unnamed) | rows.unreadable,
            rejected=frozenset(report.rejected) - report.unnamed,
            unnamed=report.unnamed,
            written=report.published + report.deleted,
            version=report.version,
        )

    def publish_heartbeats(
        self, heartbeats: Collection[dirty_records.PendingHeartbeats]
    ) -> tuple[int, list[dirty_records.PendingHeartbeats]]:
        """Merge heartbeats into the services' liveness; all share their statements.

        :returns: highest version written, and the heartbeats that kept losing
        :raises BackendUnavailable: none is known to be published
        """
        of_service: dict[str, list[dirty_records.PendingHeartbeats]] = {}
        for beat in heartbeats:
            of_service.setdefault(beat.service, []).append(beat)
        report = self._publisher.publish(
            {
                records.RecordKey(
                    known_namespaces.SERVICE_LIVENESS.name, service
                ): merge_heartbeats(own, self.implausible)
                for service, own in of_service.items()
            }
        )
        lost = {key.key for key in report.failed}
        return report.version, [beat for beat in heartbeats if beat.service in lost]

    def settle_heartbeats(self, unreported: Mapping[str, int]) -> None:
        """Take heartbeats for reported, by service: a sweep has made good what went with them.

        :raises BackendUnavailable: none is known to be settled
        """
        self._publisher.publish(
            {
                records.RecordKey(known_namespaces.SERVICE_LIVENESS.name, service): _settled(count)
                for service, count in unreported.items()
            }
        )


@attrs.define(eq=False, slots=False)
class _Rows:
    """The rows of one batch, read anew in each round."""

    _scopes: scopes_module.Scopes
    _scope_of: Mapping[records.RecordKey, str]
    _heard_before: str | None
    _now_seconds: float
    _implausible: ImplausibleCounts
    _states: dict[records.RecordKey, nova_tables.State] = attrs.field(init=False, factory=dict)
    unreadable: frozenset[records.RecordKey] = attrs.field(init=False, factory=frozenset)

    def refresh(self, keys: Collection[records.RecordKey]) -> None:
        groups: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
        for key in keys:
            groups[self._scope_of[key], key.namespace].append(key.key)
            self._states.pop(key, None)
        for (scope, namespace), names in sorted(groups.items()):
            self._read(scope, namespace, names)

    def _read(self, scope: str, namespace: str, names: list[str]) -> None:
        wanted = [records.RecordKey(namespace, name) for name in names]
        try:
            context = self._scopes.context_for(scope)
            found = nova_tables.table_of(namespace).read(context, scope, names)
        except nova_exception.CellMappingNotFound:
            # The cell was unmapped: none of its rows counts any more.
            found = {}
        except Exception as error:  # noqa: BLE001 - whatever a database driver raises
            # One database that is down must not hold up the others' rows.
            LOG.warning(
                "Cannot read %(count)d rows of %(namespace)s in %(scope)s, will try again: "
                "%(error)s",
                {"count": len(names), "namespace": namespace, "scope": scope, "error": error},
            )
            self.unreadable |= frozenset(wanted)
            return
        self.unreadable -= frozenset(wanted)
        for key in wanted:
            if key.key in found:
                self._states[key] = found[key.key]

    def compute(self, key: records.RecordKey) -> publisher_module.Compute:
        def state(current: publisher_module.State | None) -> publisher_module.Computed:
            if key in self.unreadable:
                return publisher_module.UNCHANGED
            wanted = self._states.get(key)
            if wanted is None:
                elsewhere = current is not None and self._belongs_elsewhere(key, current)
                return publisher_module.UNCHANGED if elsewhere else publisher_module.DELETE
            if key.namespace == known_namespaces.SERVICE_LIVENESS.name:
                return swept_liveness(
                    wanted,
                    current,
                    self._heard_before,
                    heard_at=self._now_seconds,
                    implausible=functools.partial(self._implausible.note, key.key),
                )
            return wanted

        return state

    def _belongs_elsewhere(self, key: records.RecordKey, current: Mapping[str, Any]) -> bool:
        # A record of a cell's table is deleted only on that cell's own word.
        # (A host mapping's cell is what it says, not where it is stored.)
        scope = self._scope_of[key]
        return scope != scopes_module.API and current.get("cell") != scope


def swept_liveness(
    row: Mapping[str, Any],
    current: Mapping[str, Any] | None,
    heard_before: str | None = None,
    *,
    heard_at: float,
    implausible: Callable[[int, int], None],
) -> publisher_module.Computed:
    """Bring liveness up to a row that a sweep read.

    A heartbeat may be in a reporter's queue at this moment: counts that differ
    by one are left to it, otherwise it would be taken for an unreported one.

    :param heard_before: what was heard before then waits in no queue any more
    :param heard_at: now, seconds since the epoch
    :param implausible: told of a count that no service can have come to, behind
        the one that is known
    """
    count = int(row["report_count"])
    seen_up = row["last_seen_up"]
    if current is not None and count <= int(current.get("unwritten", _NONE_UNWRITTEN)):
        # Later heartbeats were stored and left the row alone.
        return publisher_module.UNCHANGED
    if current is None:
        return {
            "cell": row["cell"],
            "report_count": count,
            "base": count,
            "seen": 0,
            "unreported": 0,
            "last_seen_up": seen_up,
            "counted_at": heard_at,
        }
    step = report_counts.judge_count(current, count, 0, heard_at)
    if step is report_counts.CountStep.IGNORED:
        implausible(int(current["report_count"]), count)
        return publisher_module.UNCHANGED
    if step is report_counts.CountStep.RENUMBERED:
        return _renumbered(current, count, 0, seen_up, heard_at)
    queued = 0 if is_before(seen_up, heard_before) else 1
    if count <= int(current["report_count"]) + queued:
        return publisher_module.UNCHANGED
    return _with_count(current, count, 0, seen_up, heard_at)


def is_before(seen_up: str | None, moment: str | None) -> bool:
    """Tell whether a service was heard of last before a moment; both ISO 8601 texts in UTC."""
    return seen_up is not None and moment is not None and seen_up < moment


def merge_heartbeats(
    heartbeats: Sequence[dirty_records.PendingHeartbeats], implausible: ImplausibleCounts
) -> publisher_module.Compute:
    """Return the update that adds a reporter's heartbeats to a service's liveness.

    nova-compute counts its heartbeats; ``seen`` counts those that reporters
    saw. What is missing went through a conductor without the plugin (or was
    lost with a conductor that died): ``unreported``, the sign that other
    writes may have been missed, too.

    :param heartbeats: of one service, by their counts
    """

    def update(current: publisher_module.State | None) -> publisher_module.Computed:
        if current is None:
            # Not known yet, and then its row brings the count; or deleted, and
            # then a late heartbeat must not bring it back.
            return publisher_module.UNCHANGED
        for beat in heartbeats:
            current = _with_heartbeat(current, beat, implausible)
        return current

    return update


def merge_stored_heartbeats(
    heartbeats: Sequence[heartbeat_writer.ServiceHeartbeat], seen_at: float
) -> publisher_module.Compute:
    """Return the update that adds heartbeats which shall stand in no row.

    Only those that are the service's latest behind it, for certain. Any other leaves
    the record as it is and belongs into the row, where Nova judges it as ever.

    :param heartbeats: of one service, by their counts
    :param seen_at: now, by the back end's clock
    """

    def update(current: publisher_module.State | None) -> publisher_module.Computed:
        if current is None:
            # Deleted, or not known yet: its row tells.
            return publisher_module.UNCHANGED
        before = current
        try:
            for beat in heartbeats:
                current = _with_stored(current, beat, seen_at)
        except (KeyError, TypeError, ValueError, OverflowError):
            # What stands there is no liveness: its row tells, and others' are stored.
            return publisher_module.UNCHANGED
        return publisher_module.UNCHANGED if current is before else current

    return update


def _with_stored(
    current: Mapping[str, Any], beat: heartbeat_writer.ServiceHeartbeat, seen_at: float
) -> Mapping[str, Any]:
    count, known = beat.report_count, int(current["report_count"])
    step = report_counts.judge_count(current, count, 1, beat.heard_at)
    later_seconds = beat.heard_at - float(current.get("counted_at", beat.heard_at))
    if count < known and later_seconds > report_counts.MARGIN_SECONDS:
        # It waited in no queue: the service began again while nobody could tell it its count.
        step = report_counts.CountStep.RENUMBERED
    if step is report_counts.CountStep.RENUMBERED:
        counted = _renumbered(current, count, 1, beat.last_seen_up, beat.heard_at)
        # Of another numbering, whatever its clock said.
        counted["last_seen_up"] = beat.last_seen_up
    elif step is report_counts.CountStep.TAKEN and count > known:
        counted = _with_count(current, count, 1, beat.last_seen_up, beat.heard_at)
    elif step is report_counts.CountStep.TAKEN and count == known:
        # The same once more: its first answer was lost.
        counted = dict(current)
        seen_at = max(seen_at, float(current.get("seen_at", seen_at)))
    else:
        return current
    return {**counted, "seen_at": seen_at, "unwritten": count}


def _with_heartbeat(
    current: Mapping[str, Any],
    beat: dirty_records.PendingHeartbeats,
    implausible: ImplausibleCounts,
) -> dict[str, Any]:
    count, seen, seen_up = beat.report_count, beat.seen, beat.last_seen_up
    step = report_counts.judge_count(current, count, seen, beat.heard_at)
    if step is report_counts.CountStep.IGNORED:
        implausible.note(beat.service, int(current["report_count"]), count)
        # Whoever it was, Nova takes the service for alive.
        return _with_count(current, None, 0, seen_up)
    if step is report_counts.CountStep.RENUMBERED:
        return _renumbered(current, count, seen, seen_up, beat.heard_at)
    return _with_count(current, count, seen, seen_up, beat.heard_at)


def _renumbered(
    current: Mapping[str, Any],
    report_count: int,
    seen: int,
    last_seen_up: str | None,
    heard_at: float,
) -> dict[str, Any]:
    """Let a service count from another number; as many stay unreported as were."""
    total = int(current["seen"]) + seen
    # What stands of the other numbering in no row says nothing of this one.
    kept = {name: value for name, value in current.items() if name not in _OF_STORED}
    return {
        **_with_count(kept, None, 0, last_seen_up),
        "report_count": report_count,
        "base": report_count - total - int(current["unreported"]),
        "seen": total,
        "unreported": int(current["unreported"]),
        "counted_at": heard_at,
    }


def _settled(count: int) -> publisher_module.Compute:
    def update(current: publisher_module.State | None) -> publisher_module.Computed:
        if current is None:
            return publisher_module.UNCHANGED
        return _with_count({**current, "base": int(current["base"]) + count}, None, 0, None)

    return update


def _with_count(
    current: Mapping[str, Any],
    report_count: int | None,
    seen: int,
    last_seen_up: str | None,
    heard_at: float = 0.0,
) -> dict[str, Any]:
    # None where no count was heard: known ones may be below zero.
    known = int(current["report_count"])
    count = known if report_count is None else max(known, report_count)
    counted = {}
    if count > known:
        counted["counted_at"] = max(float(current.get("counted_at", 0.0)), heard_at)
    total = int(current["seen"]) + seen
    # More seen than counted: the first count known was taken too late, or a
    # batch was merged twice. Left below zero, it would hide as many later ones.
    base = min(int(current["base"]), count - total)
    latest = max(str(current["last_seen_up"] or ""), last_seen_up or "") or None
    kept = current
    if count > known:
        # The highest count is the latest heartbeat, whichever clock was ahead.
        latest = last_seen_up or latest
        kept = {name: value for name, value in current.items() if name != "seen_at"}
    return {
        **kept,
        "report_count": count,
        "base": base,
        "seen": total,
        "unreported": count - base - total,
        "last_seen_up": latest,
        **counted,
    }
