# SPDX-License-Identifier: Apache-2.0
"""Carries all records from one back end into another, while the first is used.

1. *mark* the target as incoming: nobody else writes it (:mod:`.migration_fence`).
2. *copy* a snapshot, *follow* the feed until little is left. The source serves
   as ever; whatever fails up to here has changed nothing in it.
3. *fence* the source: mark it as moved, and wait until everybody must have
   looked. From then on no write through it is acknowledged.
4. *drain* the feed up to the head of that moment: all that was acknowledged.
5. carry the *claims*, and mark the target *live*.

Claims come last, in one reading behind the fence, for their records tell of
places in the source's feed (``confirmed_by``, ``settled``): a place in another
back end's feed means nothing, and one that is too low would let a claim be
settled by a record from before its confirm. Written last, each claim is newer
than every record that was carried, and all of those stand in every view.
Leases go on by the target's clock.

What the plugin's processes say of themselves (heartbeats, leases, which cells were
swept) is not carried: they say it again in the target. Until a cell was swept
there, it takes Nova's own path.

Interrupted behind the fence, the same call again completes the move; calling
it off opens the source again as long as the target did not become live.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.migration import migration_fence
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)

_BATCH_RECORDS = 500
_BATCH_BYTES = 4 << 20
_ROUNDS = 8

#: Payloads by key; None for a record that shall be gone.
_WantedPayloads = Mapping[records.RecordKey, bytes | None]


class TargetWriter:
    """Brings records into a target; used by one thread."""

    def __init__(self, target: contract.Synchronizer) -> None:
        self._target = target
        #: Of what was written or found there; 0: no live record.
        self._revisions: dict[records.RecordKey, int] = {}
        #: What was put there and not dropped since.
        self.keys: set[records.RecordKey] = set()

    def put(self, batch: Sequence[records.Record]) -> None:
        """Bring live records to the target.

        What no record may be called any more is left behind, and said.

        :raises PayloadTooLarge: the target cannot hold one of them
        :raises BackendUnavailable: some may have been written
        """
        unnamed = [record.key for record in batch if record.key.fault is not None]
        if unnamed:
            LOG.warning(
                "%(count)d records are left behind, for no record may have their names; for "
                "example %(example)s: %(fault)s",
                {"count": len(unnamed), "example": unnamed[0], "fault": unnamed[0].fault},
            )
            batch = [record for record in batch if record.key.fault is None]
        self._write({record.key: record.payload for record in batch})
        self.keys.update(record.key for record in batch)

    def drop(self, keys: Sequence[records.RecordKey]) -> None:
        """Delete records from the target; raises as :meth:`put` does."""
        self._write(dict.fromkeys(keys))
        self.keys.difference_update(keys)

    def _write(self, wanted: _WantedPayloads) -> None:
        for key, payload in wanted.items():
            too_large = None if payload is None else self._target.refuse_payload(key, payload)
            if too_large is not None:
                raise too_large
        for part in _parts(wanted):
            left: _WantedPayloads = part
            for _ in range(_ROUNDS):
                left = self._write_once(left)
                if not left:
                    break
            else:
                raise errors.BackendUnavailable(
                    self._target.name, f"somebody else writes {next(iter(left))} in it"
                )

    def _write_once(self, wanted: _WantedPayloads) -> dict[records.RecordKey, bytes | None]:
        """Write what is wanted; returns what was not known to be written."""
        unknown = [key for key in wanted if key not in self._revisions]
        if unknown:
            for key, record in self._target.read(unknown).items():
                self._revisions[key] = 0 if record.deleted else record.revision
        writes = [
            records.Write(key, self._revisions.get(key, 0), payload or b"", deleted=payload is None)
            for key, payload in wanted.items()
            if payload is not None or self._revisions.get(key)
        ]
        left: dict[records.RecordKey, bytes | None] = {}
        for write, result in zip(writes, self._target.write(writes), strict=True):
            if result.won and result.record is not None:
                self._revisions[write.key] = 0 if write.deleted else result.record.revision
            else:
                self._revisions.pop(write.key, None)
                left[write.key] = wanted[write.key]
        return left


def _parts(
    wanted: Mapping[records.RecordKey, bytes | None],
) -> list[dict[records.RecordKey, bytes | None]]:
    """Cut a batch into writes of a bounded size."""
    parts: list[dict[records.RecordKey, bytes | None]] = []
    size_bytes = _BATCH_BYTES
    for key, payload in wanted.items():
        if size_bytes >= _BATCH_BYTES or len(parts[-1]) >= _BATCH_RECORDS:
            parts.append({})
            size_bytes = 0
        parts[-1][key] = payload
        size_bytes += len(payload or b"")
    return parts


#: Carried behind the fence.
CLAIMS = (known_namespaces.CLAIM_RECORDS.name, known_namespaces.GROUP_CLAIMS.name)
#: How long a look of others at the marker may hold good, and somewhat more.
FENCE_SECONDS = 2 * migration_fence.LOOK_SECONDS
#: How long the drain may wait for the head to come by the feed.
DRAIN_SECONDS = 60.0

#: Told the phase and how many records were carried in it so far.
TellProgress = Callable[[str, int], None]


@attrs.frozen
class MigrationResult:
    """What a move carried.

    :param records: live records in the target, without claims
    :param claims: records of claims
    :param seconds: how long all of it took
    :param fenced_seconds: how long neither back end took writes
    """

    records: int
    claims: int
    seconds: float
    fenced_seconds: float

    def as_dict(self) -> dict[str, Any]:
        return attrs.asdict(self)


class Migrator:
    """One move between two open drivers; not behind :class:`migration_fence.FencedSynchronizer`.

    :param skipped: namespaces that are not carried
    :param option: what named the target, for refusals
    :param progress: told of each batch
    """

    def __init__(
        self,
        source: contract.Synchronizer,
        target: contract.Synchronizer,
        skipped: Sequence[str],
        option: str = "--to",
        progress: TellProgress = lambda _phase, _count: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._source = source
        self._target = target
        self._skipped = frozenset((*skipped, *CLAIMS, migration_fence.NAMESPACE))
        self._option = option
        self._progress = progress
        self._sleep = sleep
        self._writer = TargetWriter(target)

    # --- before ---

    def check(self) -> str:
        """Refuse a target that will not do; returns the id of the move to begin or go on with.

        :raises ConfigurationError: the target is the source, serves, or holds records
        """
        here, there = (
            migration_fence.read_mark(self._source),
            migration_fence.read_mark(self._target),
        )
        self._require_filled(here)
        if there is not None and there.place is migration_fence.FencePlace.INCOMING:
            if (
                here is not None
                and here.place is migration_fence.FencePlace.MOVED
                and here.move != there.move
            ):
                raise self._refuse("it is the target of another move; empty it first")
            return there.move
        self._require_serving(here)
        if there is not None and there.place is migration_fence.FencePlace.MOVED:
            # Left by a former move, and closed: nobody needs what it holds.
            return str(uuid.uuid4())
        for page in self._target.snapshot().pages:
            for record in page:
                if record.key.namespace != migration_fence.NAMESPACE:
                    raise self._refuse(
                        f"it holds records already (such as {record.key}), or is the back end "
                        "that is to be left: name an empty one"
                    )
        return str(uuid.uuid4())

    def check_source(self) -> None:
        """Refuse a source that cannot be left for a target that is not made yet.

        :raises ConfigurationError: it is being filled, or was left already
        """
        here = migration_fence.read_mark(self._source)
        self._require_filled(here)
        self._require_serving(here)

    def _require_filled(self, here: migration_fence.FenceMark | None) -> None:
        if here is not None and here.place is migration_fence.FencePlace.INCOMING:
            raise self._refuse(
                f"the configured back end is itself being filled from {here.other}: end that "
                "move first"
            )

    def _require_serving(self, here: migration_fence.FenceMark | None) -> None:
        if here is not None and here.place is migration_fence.FencePlace.MOVED:
            raise self._refuse(
                f"the records were moved to {here.other} already: change [nodb_scheduler] "
                "synchronizer in this configuration"
            )

    def _refuse(self, remedy: str) -> errors.ConfigurationError:
        return errors.ConfigurationError(self._option, self._target.name, remedy)

    # --- the move ---

    def move(self) -> MigrationResult:
        """Carry everything; blocks until the target serves.

        :raises ConfigurationError: see :meth:`check`
        :raises BackendUnavailable: one of the two is; call again
        :raises PayloadTooLarge: the target cannot hold a record; the source serves as before
        """
        started = time.monotonic()
        move = self.check()
        migration_fence.set_mark(
            self._target, migration_fence.FencePlace.INCOMING, move, self._source.name
        )
        if migration_fence.read_mark(self._source) == migration_fence.read_mark(self._target):
            migration_fence.remove_mark(self._target)
            raise self._refuse("it is the back end that is to be left")
        cursor = self._copy("copy")
        cursor = self._follow(cursor)
        fenced = time.monotonic()
        migration_fence.set_mark(
            self._source, migration_fence.FencePlace.MOVED, move, self._target.name
        )
        self._sleep(FENCE_SECONDS)
        self._drain(cursor, self._source.head())
        claims = self._carry_claims()
        self._require_fence(move)
        migration_fence.set_mark(
            self._target, migration_fence.FencePlace.LIVE, move, self._source.name
        )
        ended = time.monotonic()
        return MigrationResult(
            len(self._writer.keys) - claims, claims, ended - started, ended - fenced
        )

    def _require_fence(self, move: str) -> None:
        mark = migration_fence.read_mark(self._source)
        if mark is None or (mark.place, mark.move) != (migration_fence.FencePlace.MOVED, move):
            # Emptied, or called off: it may have taken writes since.
            raise errors.BackendUnavailable(
                self._source.name, "it lost the marker of the move; run the move again"
            )

    def cancel(self) -> bool:
        """Call a move off that did not come to its end; False where there is none.

        :raises ConfigurationError: the target serves already
        """
        here, there = (
            migration_fence.read_mark(self._source),
            migration_fence.read_mark(self._target),
        )
        left = here is not None and here.place is migration_fence.FencePlace.MOVED
        begun = there is not None and there.place is migration_fence.FencePlace.INCOMING
        if left and not begun:
            raise self._refuse("it serves already, or is of no move: move back instead")
        if begun:
            # Not open: it holds half of the records. A later move may use it.
            assert there is not None
            migration_fence.set_mark(
                self._target, migration_fence.FencePlace.MOVED, there.move, self._source.name
            )
        if left:
            migration_fence.remove_mark(self._source)
        return begun

    def _copy(self, phase: str) -> records.Cursor:
        while True:
            taken = self._source.snapshot()
            seen: set[records.RecordKey] = set()
            try:
                for page in taken.pages:
                    wanted = [record for record in page if self._is_carried(record)]
                    seen.update(record.key for record in wanted)
                    self._writer.put(wanted)
                    self._progress(phase, len(seen))
            except contract.SnapshotInterrupted:
                continue
            self._writer.drop(self._leftovers(seen))
            return taken.cursor

    def _leftovers(self, seen: set[records.RecordKey]) -> list[records.RecordKey]:
        """Return what the target holds of former attempts and moves."""
        leftovers = {key for key in self._writer.keys if key not in seen}
        for page in self._target.snapshot().pages:
            leftovers.update(
                record.key
                for record in page
                if record.key not in seen and record.key.namespace != migration_fence.NAMESPACE
            )
        return sorted(leftovers)

    def _follow(self, cursor: records.Cursor) -> records.Cursor:
        """Follow the feed until a batch is small: what is left is carried behind the fence."""
        count = 0
        while True:
            changes = self._source.fetch(cursor, _BATCH_RECORDS)
            if isinstance(changes, records.ResyncNeeded):
                cursor = self._copy("copy again")
                continue
            count += self._apply(changes)
            self._progress("follow", count)
            cursor = changes.cursor
            if not changes.more:
                return cursor

    def _drain(self, cursor: records.Cursor, head: records.Cursor) -> None:
        """Follow the feed up to the head, which was read behind the mark.

        Versions of two epochs do not compare: a source that lost everything meanwhile may
        stand below the cursor, and then its hosts would serve without their claims.
        """
        deadline = time.monotonic() + DRAIN_SECONDS
        count = 0
        while cursor.epoch != head.epoch or cursor.version < head.version:
            changes = self._source.fetch(cursor, _BATCH_RECORDS)
            if isinstance(changes, records.ResyncNeeded):
                # Its snapshot is read behind the mark.
                self._copy("copy again")
                return
            count += self._apply(changes)
            self._progress("drain", count)
            if changes.cursor == cursor:
                if time.monotonic() > deadline:
                    raise errors.BackendUnavailable(
                        self._source.name, f"its feed stands still at {cursor.version}"
                    )
                self._source.wait(cursor, 0.05)
            cursor = changes.cursor

    def _apply(self, changes: records.Changes) -> int:
        wanted = [record for record in changes.records if self._is_carried(record)]
        self._writer.put([record for record in wanted if not record.deleted])
        self._writer.drop([record.key for record in wanted if record.deleted])
        return len(wanted)

    def _is_carried(self, record: records.Record) -> bool:
        return record.key.namespace not in self._skipped

    def _carry_claims(self) -> int:
        offset_seconds = self._target.now_seconds() - self._source.now_seconds()
        while True:
            count = 0
            try:
                for page in self._source.snapshot(CLAIMS).pages:
                    self._writer.put([_translated(record, offset_seconds) for record in page])
                    count += len(page)
                    self._progress("claims", count)
            except contract.SnapshotInterrupted:
                continue
            return count


def _translated(record: records.Record, offset_seconds: float) -> records.Record:
    """Return a record of claims with the target's times, and without places in a feed.

    One that cannot be read is returned as it is: schedulers keep it aside there as here, and
    behind the fence it must not end the move.
    """
    try:
        decoded = codec.decode(record.payload)
        state = _rewritten(decoded.state, offset_seconds)
        payload = codec.encode(state, decoded.schema, record=str(record.key))
    except (errors.UndecodableRecord, errors.InvalidRecord, TypeError) as error:
        LOG.warning(
            "Claims %(key)s cannot be read and are carried as they are: %(reason)s",
            {"key": record.key, "reason": error},
        )
        return record
    return attrs.evolve(record, payload=payload)


def _rewritten(value: Any, offset_seconds: float) -> Any:
    if isinstance(value, list):
        return [_rewritten(item, offset_seconds) for item in value]
    if not isinstance(value, dict):
        return value
    found = {name: _rewritten(item, offset_seconds) for name, item in value.items()}
    if found.get("deadline_seconds") is not None:
        found["deadline_seconds"] += offset_seconds
    if "confirmed_by" in found:
        found["confirmed_by"] = None
    if "settled" in found:
        found["settled"] = None
    return found
