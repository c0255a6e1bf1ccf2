# SPDX-License-Identifier: Apache-2.0
"""Removes records of claims that nobody uses any more.

Of groups all that stay empty, of hosts those whose node is gone: a cloud makes
groups and nodes for years, and each scheduler holds every record in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.store import snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer import (
    claim_floors,
    contract,
    latest_records,
    settling_rules,
)
from nova_nodb_scheduler.wire import codec

_NODES = namespaces.COMPUTE_NODES.name
_HOSTS = namespaces.CLAIM_RECORDS.name
_SCHEMAS = {each.name: each for each in (namespaces.CLAIM_RECORDS, namespaces.GROUP_CLAIMS)}

#: What a record that cannot be understood makes its readers raise.
_NOT_READ = (errors.NodbError, AttributeError, KeyError, TypeError, ValueError)


class ClaimRemoval:
    """Removes empty records; any thread, several processes at once. Blocks for the back end."""

    def __init__(
        self, synchronizer: contract.Synchronizer, latest: latest_records.LatestRecords
    ) -> None:
        self._synchronizer = synchronizer
        self._latest = latest
        self._floors = claim_floors.ClaimFloors(synchronizer)
        self._ledgers = {each.name: each for each in settling_rules.LEDGERS}

    def remove(self, revisions: Mapping[records.RecordKey, int]) -> int:
        """Remove records that are empty and still of these revisions; return how many.

        :raises BackendUnavailable: the rest stays
        """
        found = self._synchronizer.read(revisions)
        empty = [
            record
            for key, record in found.items()
            if record.revision == revisions[key] and not record.deleted and self._is_empty(record)
        ]
        # After the records were read: a new epoch has other revisions.
        epoch = self._synchronizer.head().epoch
        for name in self._ledgers:
            settled = [
                cursor
                for record in empty
                if record.key.namespace == name
                and (cursor := _settled(record)) is not None
                and cursor.epoch == epoch
            ]
            if settled and not self._raise(name, max(settled, key=lambda each: each.version)):
                empty = [record for record in empty if record.key.namespace != name]
        if not empty:
            return 0
        results = self._synchronizer.write(
            [records.Write(record.key, record.revision, deleted=True) for record in empty]
        )
        for result in results:
            self._latest.note(result.record, result.epoch or epoch)
        return sum(result.won for result in results)

    def _raise(self, name: str, settled: records.Cursor) -> bool:
        try:
            return self._floors.raise_to(name, settled)
        except errors.UndecodableRecord:
            return False

    def _is_empty(self, record: records.Record) -> bool:
        try:
            decoded = codec.decode(record.payload)
            codec.check_readable(decoded.schema, _SCHEMAS[record.key.namespace])
            ledger = self._ledgers[record.key.namespace]
            return not ledger.entries(record.key.key, decoded.state, record.version)
        except _NOT_READ:
            return False


@attrs.frozen
class _Seen:
    revision: int
    since: float


class UnusedRecords:
    """Which records stay empty, as one store shows them; one thread.

    :param keep_seconds: how long they must have
    :param clock: monotonic seconds
    """

    def __init__(self, keep_seconds: float, clock: Callable[[], float]) -> None:
        self._keep_seconds = keep_seconds
        self._clock = clock
        self._ledgers = {each.name: each for each in settling_rules.LEDGERS}
        self._seen: dict[records.RecordKey, _Seen] = {}

    def clear(self) -> None:
        """Forget all: revisions of two epochs do not compare."""
        self._seen.clear()

    def look(self, snapshot: snapshot_module.Snapshot, most: int) -> dict[records.RecordKey, int]:
        """Pass over all records; return revisions of those that may be removed, by key.

        :param most: how many at once
        """
        now, before, self._seen = self._clock(), self._seen, {}
        nodes = snapshot.namespace(_NODES)
        due: dict[records.RecordKey, int] = {}
        for name, ledger in self._ledgers.items():
            view = snapshot.namespace(name)
            for each in view.keys():  # noqa: SIM118 - a view is no mapping
                if name == _HOSTS and each in nodes:
                    continue
                stored, key = view.get(each), records.RecordKey(name, each)
                if stored is None:
                    continue
                seen = before.get(key)
                if seen is None or seen.revision != stored.revision:
                    if not _has_entries(ledger, stored):
                        self._seen[key] = _Seen(stored.revision, now)
                    continue
                self._seen[key] = seen
                if now - seen.since >= self._keep_seconds and len(due) < most:
                    due[key] = seen.revision
        return due


def _has_entries(ledger: settling_rules.Ledger, stored: snapshot_module.StoredRecord) -> bool:
    try:
        return bool(ledger.entries(stored.key, stored.state, stored.version))
    except _NOT_READ:
        return True


def _settled(record: records.Record) -> records.Cursor | None:
    settled = codec.decode(record.payload).state.get("settled")
    return records.Cursor(settled["epoch"], settled["version"]) if settled else None
