# SPDX-License-Identifier: Apache-2.0
"""Removes records of server groups that nobody uses any more.

A cloud makes groups for years, and each scheduler holds every record in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import group_claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.store import snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer import contract, group_floor, latest_records
from nova_nodb_scheduler.wire import codec

_GROUPS = namespaces.GROUP_CLAIMS

#: What a record that cannot be understood makes its readers raise.
_NOT_READ = (errors.NodbError, AttributeError, KeyError, TypeError, ValueError)


class GroupRemoval:
    """Removes empty records; any thread, several processes at once. Blocks for the back end."""

    def __init__(
        self, synchronizer: contract.Synchronizer, latest: latest_records.LatestRecords
    ) -> None:
        self._synchronizer = synchronizer
        self._latest = latest
        self._floor = group_floor.GroupFloor(synchronizer)

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
            self._latest.note(result.record, result.epoch or epoch)
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
