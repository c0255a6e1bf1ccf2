# SPDX-License-Identifier: Apache-2.0
"""Writes an owner's records by compare-and-set, a batch at a time.

The naive way, a queue of values written as they come, breaks with two
writers of one record: the older value may be written last and stands there
until the next change. Here an update is a *function* of what the back end
holds. It runs after the record was read, so what it computes from is at
least as new as the revision that the write names; whoever wrote in between
makes the write lose, and the function runs again.
"""

from __future__ import annotations

import collections
import enum
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces as namespaces_model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)


class PublishOutcome(enum.Enum):
    """What an update may say instead of a new state."""

    DELETE = "delete"
    UNCHANGED = "unchanged"


#: Names that are remembered to be said once.
_MOST_SAID = 1000

DELETE = PublishOutcome.DELETE
UNCHANGED = PublishOutcome.UNCHANGED

State = Mapping[str, Any]

#: The state that a record should hold, or what else becomes of it.
Computed = State | PublishOutcome

#: From the decoded state that the back end holds (None where there is none:
#: absent, a tombstone, or undecodable) to what it should hold. May be called
#: several times; must not change its argument.
Compute = Callable[[State | None], Computed]

#: Called once a round, after the records were read and before they are
#: computed, with the keys of the round: where the sources are read.
Refresh = Callable[[Collection[records.RecordKey]], None]


@attrs.frozen
class PublishReport:
    """What became of a batch.

    :param published: records written with a state
    :param unchanged: records that already held the state, or were absent and
        shall be deleted
    :param deleted: records turned into a tombstone
    :param repeated: writes done again: lost, unknown, or looked at once more
        after a creation
    :param undecodable: records whose bytes could not be read; overwritten
    :param failed: keys that kept losing until the last round: still dirty
    :param rejected: keys that cannot be written as they are, with the reason:
        the state is not JSON or larger than the back end takes, or a newer
        major release wrote the record; what stands there is left. Those of
        ``unnamed`` as well.
    :param unnamed: keys among them that no record may have: nothing stands
        there, and trying again changes nothing
    :param version: highest version written, 0 if nothing was
    """

    published: int = 0
    unchanged: int = 0
    deleted: int = 0
    repeated: int = 0
    undecodable: int = 0
    failed: frozenset[records.RecordKey] = frozenset()
    rejected: Mapping[records.RecordKey, str] = attrs.field(factory=dict)
    unnamed: frozenset[records.RecordKey] = frozenset()
    version: int = 0


class _PublishBatch:
    """What is still to be done of one call, and what was done."""

    def __init__(self, keys: Collection[records.RecordKey]) -> None:
        #: Refused before anything is read or written: one name that a back end
        #: cannot hold must not keep the others from it.
        self.unnamed = {key: fault for key in keys if (fault := key.fault) is not None}
        self.pending = set(keys) - self.unnamed.keys()
        #: Wrote over "nothing there": see Publisher.publish.
        self.created: set[records.RecordKey] = set()
        #: Writes whose outcome the next round's read will tell.
        self.in_doubt: dict[records.RecordKey, records.Write] = {}
        #: Were in doubt once and not carried out so far: the write may still
        #: be on its way, so an equal state is written again to fence it.
        self.unfenced: set[records.RecordKey] = set()
        self.done: dict[records.RecordKey, str] = {}
        self.undecodable: set[records.RecordKey] = set()
        self.rejected: dict[records.RecordKey, str] = {}
        self.repeated = 0
        self.version = 0

    def settle(self, key: records.RecordKey, outcome: str) -> None:
        # A record written in one round and found unchanged in its second look
        # counts once, for what was written.
        if not (outcome == "unchanged" and key in self.done):
            self.done[key] = outcome
        self.pending.discard(key)

    def reject(self, key: records.RecordKey, reason: str) -> None:
        self.rejected[key] = reason
        self.pending.discard(key)

    def written(self, write: records.Write, version: int, *, look_again: bool) -> None:
        self.version = max(self.version, version)
        self.settle(write.key, "deleted" if write.deleted else "published")
        if look_again and write.expected_revision == 0 and write.key not in self.created:
            self.created.add(write.key)
            self.pending.add(write.key)

    def report(self) -> PublishReport:
        outcomes = list(self.done.values())
        return PublishReport(
            published=outcomes.count("published"),
            unchanged=outcomes.count("unchanged"),
            deleted=outcomes.count("deleted"),
            repeated=self.repeated,
            undecodable=len(self.undecodable),
            failed=frozenset(self.pending),
            rejected=self.rejected | self.unnamed,
            unnamed=frozenset(self.unnamed),
            version=self.version,
        )


class Publisher:
    """The only way an owner's processes write its records.

    Holds no state between calls but what it said in the log; any thread may
    call it.

    :param namespaces: declared namespaces by name
    :param owner: who writes: only namespaces it owns are accepted
    :param rounds: how often a batch is tried before its losers are handed
        back; each round is one read and one write
    :param on_rejected: told in the caller's thread, after each batch, of a
        namespace and how many of its records cannot be written as they are
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        namespaces: Mapping[str, namespaces_model.Namespace],
        owner: str,
        rounds: int = 8,
        on_rejected: Callable[[str, int], None] = lambda namespace, count: None,
    ) -> None:
        self._synchronizer = synchronizer
        self._namespaces = namespaces
        self._owner = owner
        self._rounds = rounds
        self._on_rejected = on_rejected
        #: Names that no record may have, and that were said: who chose one writes on.
        self._said: set[records.RecordKey] = set()

    def publish(
        self, updates: Mapping[records.RecordKey, Compute], refresh: Refresh | None = None
    ) -> PublishReport:
        """Bring the records of a batch to what their updates compute.

        Blocks for two requests to the back end in the good case, for two more
        for each round of losers. A second identical call finds everything
        unchanged and writes nothing.

        With ``refresh`` (the sources are rows that others change, too) a
        record that was created gets a second look. Without it: writer A finds
        no record and reads the row; the row is deleted and writer B finds no
        record to delete; A's creation then stands for ever, because creating
        only asks for "no live record". A's second look reads the row after
        the creation, so it sees what B saw. Not closed by it: a row that goes
        from one content to another and back to exactly the first (its
        ``updated_at`` included) while two writers flush it; the sweep that
        compares rows with records finds that.

        :param updates: what each record should hold
        :param refresh: reads the sources of a round's keys at once
        :raises NotOwner: a namespace belongs to another; nothing was written
        :raises UnknownNamespace: a namespace is not declared; nothing was written
        :raises BackendUnavailable: the caller's keys are all still dirty,
            though some may have been written
        """
        self._refuse_foreign(updates)
        batch = _PublishBatch(updates)
        for round_number in range(self._rounds):
            if not batch.pending:
                break
            if round_number:
                batch.repeated += len(batch.pending)
            self._round(batch, updates, refresh)
        if batch.in_doubt:
            self._settle(batch, self._synchronizer.read(batch.in_doubt), refresh is not None)
        report = batch.report()
        rejected = collections.Counter(key.namespace for key in report.rejected)
        for namespace, count in rejected.items():
            self._on_rejected(namespace, count)
        said = self._say_once(report.unnamed)
        if report.failed or report.rejected.keys() - said or report.undecodable:
            examples = report.failed | report.rejected.keys() | batch.undecodable
            # Whoever chose a name that no record may have is to be found by it.
            example = min(report.unnamed - said or examples)
            LOG.warning(
                "Of %(all)d records %(failed)d lost every one of %(rounds)d rounds and stay "
                "queued, %(rejected)d cannot be written, %(undecodable)d had unreadable bytes "
                "and were computed anew. For example %(example)s: %(reason)s",
                {
                    "all": len(updates),
                    "failed": len(report.failed),
                    "rounds": self._rounds,
                    "rejected": len(report.rejected),
                    "undecodable": report.undecodable,
                    "example": example,
                    "reason": report.rejected.get(example, "see above"),
                },
            )
        return report

    def _say_once(self, unnamed: frozenset[records.RecordKey]) -> frozenset[records.RecordKey]:
        """Return which of some names were said before, and note the others."""
        if not unnamed:
            return frozenset()
        said = unnamed & self._said
        if len(self._said) < _MOST_SAID:
            self._said.update(unnamed)
        return said

    def _refuse_foreign(self, keys: Collection[records.RecordKey]) -> None:
        for name in sorted({key.namespace for key in keys}):
            namespace = self._namespaces.get(name)
            if namespace is None:
                raise errors.UnknownNamespace(name, ", ".join(sorted(self._namespaces)))
            if namespace.owner != self._owner:
                raise errors.NotOwner(name, namespace.owner, self._owner)

    def _round(
        self,
        batch: _PublishBatch,
        updates: Mapping[records.RecordKey, Compute],
        refresh: Refresh | None,
    ) -> None:
        found = self._synchronizer.read(batch.pending)
        self._settle(batch, found, refresh is not None)
        if not batch.pending:
            return
        keys = sorted(batch.pending)
        if refresh is not None:
            refresh(keys)
        writes = []
        for key in keys:
            write = self._write_of(batch, key, found.get(key), updates[key])
            if write is not None:
                writes.append(write)
        if not writes:
            return
        results = self._synchronizer.write(writes)
        for write, result in zip(writes, results, strict=True):
            if result.verdict is records.Verdict.UNKNOWN:
                batch.in_doubt[write.key] = write
            elif result.verdict is records.Verdict.REFUSED:
                batch.reject(write.key, result.reason)
            elif result.won:
                version = result.record.version if result.record is not None else 0
                batch.written(write, version, look_again=refresh is not None)

    @staticmethod
    def _settle(
        batch: _PublishBatch,
        found: Mapping[records.RecordKey, records.Record],
        look_again: bool,
    ) -> None:
        """Tell by a read whether writes of unknown outcome were carried out.

        What stands there equals what was sent: done, whoever wrote it.
        Otherwise the round computes and writes anew, over an equal state too:
        the write in doubt then names a revision that is gone, and loses
        whenever it arrives.
        """
        for key, write in batch.in_doubt.items():
            record = found.get(key)
            live = record is not None and not record.deleted
            if write.deleted and not live:
                batch.written(write, record.version if record else 0, look_again=look_again)
            elif record is not None and live and record.payload == write.payload:
                batch.written(write, record.version, look_again=look_again)
            else:
                batch.unfenced.add(key)
        batch.in_doubt.clear()

    def _write_of(
        self,
        batch: _PublishBatch,
        key: records.RecordKey,
        record: records.Record | None,
        compute: Compute,
    ) -> records.Write | None:
        """Compute one record; None if there is nothing to write."""
        live = record is not None and not record.deleted
        revision = record.revision if record is not None and live else 0
        payload = record.payload if record is not None and live else None
        namespace = self._namespaces[key.namespace]
        state: State | None = None
        held: bytes | None = None
        if payload is not None:
            try:
                decoded = codec.decode(payload)
                if decoded.schema.major > namespace.schema.major:
                    # Not damaged: overwriting it would blind the newer release.
                    batch.reject(key, f"its schema {decoded.schema} is newer than this release's")
                    return None
                codec.check_readable(decoded.schema, namespace)
                state, held = decoded.state, decoded.text
            except errors.UndecodableRecord:
                batch.undecodable.add(key)
        wanted = compute(state)
        encoded = payload
        if wanted is DELETE:
            if payload is not None:
                return records.Write(key, revision, deleted=True)
        elif not isinstance(wanted, PublishOutcome):
            try:
                text = codec.encode_text(wanted, namespace.schema, record=str(key))
            except errors.InvalidRecord as exc:
                batch.reject(key, str(exc))
                return None
            # Compressing what stands there already would be most of a sweep.
            encoded = payload if text == held else codec.payload_of(text)
        if encoded is None or (encoded == payload and key not in batch.unfenced):
            batch.settle(key, "unchanged")
            return None
        too_large = self._synchronizer.refuse_payload(key, encoded)
        if too_large is not None:
            # Sent, it would make the driver refuse the whole batch.
            batch.reject(key, str(too_large))
            return None
        return records.Write(key, revision, encoded)
