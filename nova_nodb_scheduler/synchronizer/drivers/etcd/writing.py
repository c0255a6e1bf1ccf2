# SPDX-License-Identifier: Apache-2.0
"""The write protocol: transactions that compare revisions, many writes in each.

etcd syncs its log for every transaction, some milliseconds on a disk. So
independent writes travel together, each as a transaction of its own inside of
another one, where each wins or loses by itself. Only the epoch is compared for
all of them.

A creation compares with "there is no key". Where a tombstone stands, the
answer shows its revision, and the creation is sent again to compare with that.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from oslo_log import log

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers.etcd import connection as connection_module
from nova_nodb_scheduler.synchronizer.drivers.etcd import epochs as epochs_module
from nova_nodb_scheduler.synchronizer.drivers.etcd import failures, layout, steps, transactions
from nova_nodb_scheduler.synchronizer.drivers.support import batches, epoch_memory, record_names

LOG = log.getLogger(__name__)

#: etcd takes 128 (--max-txn-ops) of comparisons, operations and levels of nesting together.
WRITES_PER_TRANSACTION = 100
#: etcd's default --max-request-bytes is 1.5 MiB, of the request without its
#: JSON; names and frames take their part.
BYTES_PER_TRANSACTION = 1_300_000
_FRAME_BYTES = 100

Reply = Mapping[str, Any]


@attrs.define
class _Call(batches.PendingBatch):
    """One batch, and what is known so far of each of its writes.

    :param compared: by the write's place, the revision to compare with
        where a tombstone was found
    :param refused: transactions that were refused for what was seen before
    """

    compared: dict[int, int] = attrs.field(factory=dict)
    refused: int = 0


@attrs.define(eq=False)
class Writer:
    """Carries out compare-and-sets; any thread may call."""

    _keys: layout.Layout
    _connection: connection_module.Connection
    _epochs: epochs_module.Epochs
    _timeout_seconds: float
    _now_seconds: Callable[[], float]
    _at: steps.Observer

    def write(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        """Carry out a batch; see the contract."""
        call = _Call(writes)
        step = steps.Step.SEND
        try:
            while todo := call.todo:
                # It bounds a round, not a batch, which may take longer as long as it gets on.
                deadline = time.monotonic() + self._timeout_seconds
                self._send(call, todo, step)
                if call.todo and time.monotonic() > deadline:
                    raise self._connection.unavailable(
                        f"{len(call.todo)} records could not be written in time"
                    )
                step = steps.Step.TOMBSTONE
        except errors.BackendUnavailable as error:
            call.break_off(error)
        except failures.Failure as failure:
            if failure.kind not in failures.UNKNOWN:
                call.break_off(self._connection.translate(failure))
            LOG.warning(
                "It is not known whether %(count)d records were written to %(label)s: %(why)s",
                {"count": len(call.todo), "label": self._connection.label, "why": failure},
            )
            self._at(steps.Step.DONE)
            raise batches.Interrupted(call.answers()) from failure
        self._at(steps.Step.DONE)
        return call.answers()

    def _send(self, call: _Call, numbers: Sequence[int], step: steps.Step) -> None:
        self._at(steps.Step.EPOCH)
        epoch = self._epochs.current()
        witness = self._epochs.witness
        token = secrets.token_bytes(epochs_module.TOKEN_BYTES)
        body = self._transaction(call, epoch, numbers, token, witness)
        self._at(step)
        try:
            reply = self._connection.write(body)
        except failures.Failure as failure:
            if witness is not None and failure.kind in failures.OF_REVISION:
                # Nothing was written: again, when the epoch is known.
                self._epochs.question(witness, failure)
                call.refused += 1
                if call.refused > epoch_memory.ATTEMPTS:
                    raise self._connection.unavailable(epoch_memory.UNSTABLE) from failure
                return
            if failure.kind is failures.Kind.FULL and self._may_stand(call, epoch, numbers):
                raise failures.Failure(failures.Kind.UNSURE, failure.text) from failure
            raise
        if reply["header"]["cluster_id"] != epoch.cluster or (
            witness is not None and witness.is_contradicted(transactions.last(reply))
        ):
            # A restored backup holds the same epoch until somebody looks: what
            # was written there now will not outlive that look.
            self._epochs.forget(epoch)
            if transactions.succeeded(reply):
                call.results.update(dict.fromkeys(numbers, batches.UNKNOWN))
            return
        if transactions.succeeded(reply):
            self._epochs.note_written(epoch, transactions.revision(reply), token)
        self._settle(call, epoch, numbers, reply)

    def _may_stand(self, call: _Call, epoch: layout.Epoch, numbers: Sequence[int]) -> bool:
        """Say whether a write that filled etcd may have been carried out.

        It was, or will never be: it is answered behind where it would have been.
        """
        keys = [self._keys.record_key(epoch.name, call.writes[number].key) for number in numbers]
        show = transactions.transaction([], [transactions.get(key) for key in keys])
        try:
            reply = self._connection.call("/kv/txn", show)
        except errors.BackendUnavailable:
            return True
        for place, number in enumerate(numbers):
            held, write = transactions.first(reply, place), call.writes[number]
            if (
                held is not None
                and layout.value_of(held) == layout.encode_value(write, place)
                and layout.mod_revision(held) != self._compared(call, epoch, number)
            ):
                return True
        return False

    @staticmethod
    def _compared(call: _Call, epoch: layout.Epoch, number: int) -> int:
        return call.compared.get(number, _revision_to_compare(epoch, call.writes[number]))

    def _transaction(
        self,
        call: _Call,
        epoch: layout.Epoch,
        numbers: Sequence[int],
        token: bytes,
        witness: epochs_module.Witness | None,
    ) -> transactions.Operation:
        """Return a transaction, in which each of several writes is nested.

        What the witness asks for comes last, however it ends.
        """
        guard = self._epochs.compare(epoch)
        head = transactions.put(self._keys.head_key, token)
        seen = [] if witness is None else [witness.operation(self._keys)]
        show_epoch = transactions.get(self._keys.epoch_key)
        parts = [self._parts(call, epoch, number, place) for place, number in enumerate(numbers)]
        if len(parts) == 1:
            [(compare, success, show)] = parts
            return transactions.transaction(
                [guard, compare], [*success, head, *seen], [show_epoch, show, *seen]
            )
        nested = [transactions.nested([c], success, [show]) for c, success, show in parts]
        return transactions.transaction([guard], [*nested, head, *seen], [show_epoch, *seen])

    def _parts(
        self, call: _Call, epoch: layout.Epoch, number: int, place: int
    ) -> tuple[transactions.Operation, list[transactions.Operation], transactions.Operation]:
        """Return a write's comparison, its operations, and how to see what stands there."""
        write = call.writes[number]
        key = self._keys.record_key(epoch.name, write.key)
        deletion = self._keys.deletion_key(epoch.name, write.key)
        expected = self._compared(call, epoch, number)
        operations = [transactions.put(key, layout.encode_value(write, place))]
        if write.deleted:
            operations.append(transactions.put(deletion, b"%.3f" % self._now_seconds()))
        elif expected:
            # It may be a tombstone's.
            operations.append(transactions.delete(deletion))
        return transactions.unchanged(key, expected), operations, transactions.get(key)

    def _settle(
        self, call: _Call, epoch: layout.Epoch, numbers: Sequence[int], reply: Reply
    ) -> None:
        is_nested = len(numbers) > 1
        if transactions.succeeded(reply):
            for place, number in enumerate(numbers):
                answer = transactions.inner(reply, place) if is_nested else reply
                if transactions.succeeded(answer):
                    call.results[number] = self._won(call, epoch, number, place, reply)
                else:
                    self._lost(call, epoch, number, transactions.first(answer, 0))
        elif is_nested or layout.mod_revision(transactions.first(reply, 0)) != epoch.revision:
            self._epochs.forget(epoch)
        else:
            self._lost(call, epoch, numbers[0], transactions.first(reply, 1))

    def _won(
        self, call: _Call, epoch: layout.Epoch, number: int, place: int, reply: Reply
    ) -> records.WriteResult:
        write = call.writes[number]
        revision = transactions.revision(reply)
        record = records.Record(
            write.key,
            epoch.base + revision,
            revision << layout.PLACE_BITS | place,
            b"" if write.deleted else write.payload,
            write.deleted,
        )
        return records.WriteResult(records.Verdict.WON, record, epoch.cursor_name)

    def _lost(
        self, call: _Call, epoch: layout.Epoch, number: int, held: layout.KeyValue | None
    ) -> None:
        """Settle a write that lost, or note the tombstone to try again over."""
        record = self._keys.decode_record(epoch, held) if held else None
        if call.writes[number].wins(record):
            call.compared[number] = layout.mod_revision(held)
        else:
            call.results[number] = records.WriteResult(records.Verdict.LOST, record)


def size_of(write: records.Write) -> int:
    """Return what a write takes of a transaction's bytes, at most."""
    name = len(record_names.encode(write.key))
    return (0 if write.deleted else len(write.payload)) + 3 * (name + _FRAME_BYTES)


def _revision_to_compare(epoch: layout.Epoch, write: records.Write) -> int:
    if not write.expected_revision:
        return 0
    revision = write.expected_revision - epoch.base
    return revision if 0 < revision < layout.NO_REVISION else layout.NO_REVISION
