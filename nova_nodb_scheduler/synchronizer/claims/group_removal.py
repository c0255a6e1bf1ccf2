# SPDX-License-Identifier: Apache-2.0
"""Removes records of server groups that nobody uses, and keeps the floor they leave behind.

A cloud makes groups for years, and each scheduler holds every record in memory.

A group's record says which views are too old to know what was settled there. Before
it is removed, that goes to the floor; and who writes a record that says nothing of
views reads the floor after the write. Not only who makes it: another one, with an
older view, may come to what somebody made before anything was settled there. However
long it slept in between: the floor was raised before the removal, so its write is
behind both. What a record says once something was settled in it is above the floor
that it was removed by.

Records of hosts are as many as there were nodes, and stay: of most claims on hosts
nobody would want to pay for one more read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import group_claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import store_snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.claims import claim_rules
from nova_nodb_scheduler.synchronizer.records import record_editor
from nova_nodb_scheduler.wire import codec

_FLOORS = known_namespaces.CLAIM_FLOORS
_KEY = records.RecordKey(_FLOORS.name, known_namespaces.GROUP_CLAIMS.name)


def is_asked(record: model.GroupRecord, view: records.Cursor) -> bool:
    """Say whether a record does not tell by itself if a view is too old.

    A record that the view is not older than was made after all removals of its
    like, so that the view is not older than their floor either.
    """
    if 0 < record.version <= view.version:
        return False
    return record.settled is None or record.settled.epoch != view.epoch


class GroupFloor:
    """The floor of one back end; any thread. Blocks for it."""

    def __init__(self, synchronizer: contract.Synchronizer) -> None:
        self._editor = record_editor.RecordEditor(synchronizer, [_FLOORS])

    def stale(self, view: records.Cursor) -> str:
        """Say how a view is too old for the floor; empty if it is not.

        :raises BackendUnavailable: nobody can tell
        :raises UndecodableRecord: a newer release wrote it; nobody can tell either
        """
        state, _, _ = self._editor.read(_KEY)
        return claim_rules.stale_view(_floor(state or {}), view)

    def raise_to(self, settled: records.Cursor) -> bool:
        """Raise the floor; True if it stands at least there.

        :raises BackendUnavailable: it was not raised
        :raises UndecodableRecord: a newer release wrote it
        """

        def propose(state: Mapping[str, Any] | None, version: int) -> record_editor.Proposal[bool]:
            before = _floor(state or {})
            if before and before.epoch == settled.epoch and before.version >= settled.version:
                return record_editor.Proposal(answer=True)
            made = {"settled": {"epoch": settled.epoch, "version": settled.version}}
            return record_editor.Proposal(answer=True, state=made)

        return isinstance(self._editor.edit(_KEY, propose), record_editor.Edited)


def _floor(state: Mapping[str, Any]) -> records.Cursor | None:
    settled = state.get("settled")
    return records.Cursor(settled["epoch"], settled["version"]) if settled else None


_GROUPS = known_namespaces.GROUP_CLAIMS

#: What a record that cannot be understood makes its readers raise.
_NOT_READ = (errors.NodbError, AttributeError, KeyError, TypeError, ValueError)


class GroupRemoval:
    """Removes empty records; any thread, several processes at once. Blocks for the back end."""

    def __init__(
        self, synchronizer: contract.Synchronizer, cache: record_editor.RecordCache
    ) -> None:
        self._synchronizer = synchronizer
        self._cache = cache
        self._floor = GroupFloor(synchronizer)

    def remove(self, revisions: Mapping[records.RecordKey, int]) -> int:
        """Remove records that are empty and still of these revisions; return how many.

        :raises BackendUnavailable: the rest stays
        """
        empty = {
            record: group
            for key, record in self._synchronizer.read(revisions).items()
            if record.revision == revisions[key]
            and not record.deleted
            and (group := _empty(key.key, record.payload, record.version)) is not None
        }
        # After the records were read: a new epoch has other revisions.
        epoch = self._synchronizer.head().epoch
        settled = [
            group.settled
            for group in empty.values()
            if group.settled is not None and group.settled.epoch == epoch
        ]
        if settled and not self._raise(max(settled, key=lambda each: each.version)):
            return 0
        results = self._synchronizer.write(
            [records.Write(record.key, record.revision, deleted=True) for record in empty]
        )
        for result in results:
            self._cache.note(result.record, result.epoch or epoch)
        return sum(result.won for result in results)

    def _raise(self, settled: records.Cursor) -> bool:
        try:
            return self._floor.raise_to(settled)
        except errors.UndecodableRecord:
            return False


@attrs.frozen
class _Seen:
    revision: int
    since: float


class UnusedGroups:
    """Which groups' records stay empty, as one store shows them; one thread.

    :param keep_seconds: how long they must have
    :param clock: monotonic seconds
    """

    def __init__(self, keep_seconds: float, clock: Callable[[], float]) -> None:
        self._keep_seconds = keep_seconds
        self._clock = clock
        self._seen: dict[str, _Seen] = {}

    def clear(self) -> None:
        """Forget all: revisions of two epochs do not compare."""
        self._seen.clear()

    def look(self, snapshot: snapshot_module.Snapshot, most: int) -> dict[records.RecordKey, int]:
        """Pass over all records; return revisions of those that may be removed, by key.

        :param most: how many at once
        """
        now, before, self._seen = self._clock(), self._seen, {}
        view = snapshot.namespace(_GROUPS.name)
        due: dict[records.RecordKey, int] = {}
        for uuid in view.keys():  # noqa: SIM118 - a view is no mapping
            stored = view.get(uuid)
            if stored is None:
                continue
            seen = before.get(uuid)
            if seen is None or seen.revision != stored.revision:
                seen = _Seen(stored.revision, now)
                if _empty(uuid, stored.payload, stored.version) is None:
                    continue
            self._seen[uuid] = seen
            if now - seen.since >= self._keep_seconds and len(due) < most:
                due[records.RecordKey(_GROUPS.name, uuid)] = seen.revision
        return due


def _empty(uuid: str, payload: bytes, version: int) -> model.GroupRecord | None:
    """Return a record without members; None for one that has some, or cannot be understood."""
    try:
        decoded = codec.decode(payload)
        codec.check_readable(decoded.schema, _GROUPS)
        group = model.GroupRecord.from_state(uuid, decoded.state, version)
    except _NOT_READ:
        return None
    return None if group.members else group
