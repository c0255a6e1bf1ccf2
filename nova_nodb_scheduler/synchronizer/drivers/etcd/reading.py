# SPDX-License-Identifier: Apache-2.0
"""Reads of single records and of all: linearizable, in portions of bounded size."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.etcd import connection as connection_module
from nova_nodb_scheduler.synchronizer.drivers.etcd import epochs as epochs_module
from nova_nodb_scheduler.synchronizer.drivers.etcd import failures, layout, transactions
from nova_nodb_scheduler.synchronizer.drivers.support import epoch_memory

KEYS_PER_TRANSACTION = 100
PAGE_RECORDS = 1000
#: A page of the next size is asked for by the size of the last one's records.
PAGE_BYTES = 16 * 1024 * 1024
_FIRST_PAGE_RECORDS = 100


class Reader:
    """Reads of one epoch; any thread may call."""

    def __init__(
        self,
        keys: layout.Layout,
        connection: connection_module.Connection,
        epochs: epochs_module.Epochs,
    ) -> None:
        self._keys = keys
        self._connection = connection
        self._epochs = epochs

    def pages(
        self, meta: epochs_module.Meta, namespaces: Collection[str] | None
    ) -> Iterator[Sequence[records.Record]]:
        """Read all live records as they stood at the revision of what was read before.

        Where etcd is compacted meanwhile, the rest is read as it stands then:
        the feed tells of what came between.
        """
        epoch = meta.epoch
        everything = self._keys.records_of(epoch.name)
        ranges = [(everything, layout.past(everything))]
        if namespaces is not None:
            ranges = [self._keys.namespace_range(epoch.name, name) for name in sorted(namespaces)]
        revision, limit = meta.store_revision, _FIRST_PAGE_RECORDS
        for begin, end in ranges:
            more = True
            while more:
                request = transactions.get_range(
                    begin, end, limit=str(limit), revision=str(revision)
                )["request_range"]
                try:
                    reply = self._connection.call("/kv/range", request)
                except failures.Failure:
                    revision = 0
                    continue
                found = reply.get("kvs", ())
                more = bool(reply.get("more"))
                if not found:
                    break
                begin = layout.key_of(found[-1]) + b"\x00"
                read = [self._keys.decode_record(epoch.name, epoch.base, held) for held in found]
                mean_bytes = 1 + sum(len(record.payload) for record in read) // len(read)
                # No more than tenfold at once: the next may be larger than these.
                limit = max(1, min(PAGE_RECORDS, 10 * limit, PAGE_BYTES // mean_bytes))
                alive = [record for record in read if not record.deleted]
                if alive:
                    yield alive
        if self._epochs.read().epoch != epoch:
            raise contract.SnapshotInterrupted(epoch.cursor_name)

    def read(
        self, wanted: Sequence[records.RecordKey]
    ) -> Mapping[records.RecordKey, records.Record]:
        """Return the current records of a batch, tombstones included."""
        return self._epochs.across(functools.partial(self._read, wanted))

    def _read(
        self, wanted: Sequence[records.RecordKey]
    ) -> Mapping[records.RecordKey, records.Record]:
        epoch = self._epochs.current()
        reply = self._connection.call(
            "/kv/txn",
            transactions.transaction(
                [self._epochs.compare(epoch)],
                [transactions.get(self._keys.record_key(epoch.name, key)) for key in wanted],
            ),
        )
        same_cluster = reply["header"]["cluster_id"] == epoch.cluster
        if not same_cluster or not transactions.succeeded(reply):
            self._epochs.forget(epoch)
            raise epoch_memory.EpochEnded
        held = [transactions.first(reply, place) for place in range(len(wanted))]
        found = [self._keys.decode_record(epoch.name, epoch.base, each) for each in held if each]
        return {record.key: record for record in found}
