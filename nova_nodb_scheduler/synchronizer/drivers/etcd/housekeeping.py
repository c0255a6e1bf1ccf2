# SPDX-License-Identifier: Apache-2.0
"""Collection of tombstones and, where it is allowed, of etcd's history.

A tombstone and its deletion's time were put by one transaction, so that both have
its revision, and these times in the order of their revisions are the tombstones in
the order of their deletions. They go in one transaction with the floor that rises
above them: whoever dies in between has done all of it or nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import attrs
from oslo_log import log

from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.etcd import connection as connection_module
from nova_nodb_scheduler.synchronizer.drivers.etcd import epochs as epochs_module
from nova_nodb_scheduler.synchronizer.drivers.etcd import failures, layout, steps, transactions
from nova_nodb_scheduler.synchronizer.drivers.support import driver_base

LOG = log.getLogger(__name__)

#: Tombstones dropped in one call, at most.
COLLECTION_LIMIT = 2000
TOMBSTONES_PER_TRANSACTION = 100
FLOOR_ATTEMPTS = 20

#: Marks of (time, revision), by which a revision of some age is found.
MARKS = 16


@attrs.define(eq=False)
class Housekeeper:
    """Drops what is old; several may do so at once."""

    _keys: layout.Layout
    _connection: connection_module.Connection
    _epochs: epochs_module.Epochs
    _now_seconds: Callable[[], float]
    _at: steps.Observer
    _compacts: bool = attrs.field(kw_only=True)

    def collect(self, keep_seconds: float) -> contract.Collected:
        """Drop tombstones, and what earlier epochs left; see the contract."""
        meta = self._epochs.read()
        before_seconds = self._now_seconds() - keep_seconds
        self.sweep(meta.epoch)
        dropped = 0
        for _ in range(FLOOR_ATTEMPTS):
            deletions = self._old_deletions(meta.epoch, before_seconds)
            if not deletions or dropped >= COLLECTION_LIMIT:
                break
            gone = self._drop(meta, deletions)
            dropped += gone or 0
            meta = self._epochs.read()
        history = self._compact(meta, before_seconds) if self._compacts else 0
        return contract.Collected(dropped, history, meta.floor)

    def sweep(self, epoch: layout.Epoch) -> None:
        """Drop the records of every epoch but one, if that is in force still."""
        operations = []
        for everything, ours in (
            (self._keys.records, self._keys.records_of(epoch.name)),
            (self._keys.deletions, self._keys.deletions_of(epoch.name)),
        ):
            operations += [
                (everything, ours),
                (layout.past(ours), layout.past(everything)),
            ]
        # A look costs no commit, and there is hardly ever anything to drop.
        look = transactions.transaction(
            [],
            [
                transactions.get_range(begin, end, limit="1", keys_only=True)
                for begin, end in operations
            ],
        )
        reply = self._connection.call("/kv/txn", look)
        if not any(transactions.count(reply, place) for place in range(len(operations))):
            return
        self._at(steps.Step.SWEEP)
        self._write(
            transactions.transaction(
                [self._epochs.compare(epoch)],
                [transactions.delete(begin, end) for begin, end in operations],
            )
        )

    def statistics(self) -> Mapping[str, int | float | str]:
        """Return counts; see the contract."""
        meta = self._epochs.read()
        epoch = meta.epoch
        ranges = [
            (begin, layout.past(begin))
            for begin in (
                self._keys.records_of(epoch.name),
                self._keys.deletions_of(epoch.name),
                self._keys.prefix,
            )
        ]
        reply = self._connection.call(
            "/kv/txn",
            transactions.transaction(
                [], [transactions.get_range(begin, end, count_only=True) for begin, end in ranges]
            ),
        )
        recorded, tombstones, keys = (transactions.count(reply, n) for n in range(len(ranges)))
        status = self._connection.call("/maintenance/status", {})
        size_bytes, live = int(status.get("dbSize", 0)), recorded - tombstones
        return {
            **driver_base.totals(meta.cursor, meta.floor, live, tombstones, size_bytes),
            "keys": keys,
            "bytes_in_use": int(status.get("dbSizeInUse", 0)),
            "revision": transactions.revision(reply),
            "etcd": str(status.get("version", "")),
        }

    def _old_deletions(self, epoch: layout.Epoch, before_seconds: float) -> list[layout.KeyValue]:
        begin = self._keys.deletions_of(epoch.name)
        body = transactions.get_range(
            begin,
            layout.past(begin),
            sort_target="MOD",
            sort_order="ASCEND",
            limit=str(TOMBSTONES_PER_TRANSACTION),
        )["request_range"]
        found = self._connection.call("/kv/range", body).get("kvs", ())
        return [held for held in found if float(layout.value_of(held)) <= before_seconds]

    def _drop(self, meta: epochs_module.Meta, deletions: Sequence[layout.KeyValue]) -> int | None:
        """Drop tombstones by their deletions; None where another collector came first."""
        keys, epoch = self._keys, meta.epoch
        floor = max(
            meta.floor, *(layout.end_of(layout.mod_revision(deletion)) for deletion in deletions)
        )
        operations = [transactions.put(keys.floor_key, b"%d" % floor)]
        for held in deletions:
            deletion, revision = layout.key_of(held), layout.mod_revision(held)
            record = keys.records_of(epoch.name) + deletion[len(keys.deletions_of(epoch.name)) :]
            operations.append(
                transactions.nested(
                    [
                        transactions.unchanged(record, revision),
                        transactions.unchanged(deletion, revision),
                    ],
                    [transactions.delete(record), transactions.delete(deletion)],
                )
            )
        self._at(steps.Step.COLLECT)
        reply = self._write(
            transactions.transaction(
                [
                    self._epochs.compare(epoch),
                    transactions.unchanged(keys.floor_key, meta.floor_revision),
                ],
                operations,
            )
        )
        if not transactions.succeeded(reply):
            return None
        places = range(1, len(operations))
        return sum(transactions.succeeded(transactions.inner(reply, place)) for place in places)

    def _compact(self, meta: epochs_module.Meta, before_seconds: float) -> int:
        """Compact etcd at the latest mark that is old enough, and set a new one.

        :returns: how many revisions of history went
        """
        held: list[list[float]] = json.loads(layout.value_of(meta.marks)) if meta.marks else []
        now_seconds = self._now_seconds()
        old = [mark for mark in held if mark[0] <= before_seconds]
        young = [mark for mark in held if mark[0] > before_seconds]
        spacing = (now_seconds - before_seconds) / (MARKS / 2)
        if not young or now_seconds - young[-1][0] >= spacing:
            young.append([now_seconds, meta.store_revision])
        elif not old:
            return 0
        reply = self._write(
            transactions.transaction(
                [
                    self._epochs.compare(meta.epoch),
                    transactions.unchanged(self._keys.marks_key, layout.mod_revision(meta.marks)),
                ],
                [
                    transactions.put(
                        self._keys.marks_key, json.dumps([*old[-1:], *young][-MARKS:]).encode()
                    )
                ],
            )
        )
        if not transactions.succeeded(reply) or not old:
            return 0
        revision = int(old[-1][1])
        try:
            self._connection.call("/kv/compaction", {"revision": str(revision)})
        except failures.Failure:
            # Compacted that far already, by etcd itself or another collector.
            return 0
        LOG.debug("Compacted etcd at revision %(revision)d", {"revision": revision})
        return revision - int(old[0][1]) if len(old) > 1 else 0

    def _write(self, body: transactions.Operation) -> connection_module.Reply:
        try:
            return self._connection.write(body)
        except failures.Failure as failure:
            raise self._connection.translate(failure) from failure
