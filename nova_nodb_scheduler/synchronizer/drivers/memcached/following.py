# SPDX-License-Identifier: Apache-2.0
"""The read protocol: walk the log, wait for slow writers, then shut them out.

A version is stable when no write with it can succeed any more: its record
stands at it or above, or its slot is void. Walking stops at the first version
that is not stable, so a cursor never passes one. Who is slower than
``fence_after_seconds`` is shut out: an empty slot is filled with VOID (the
writer's ``add`` fails), and a record below its slot's version gets the version
without a change of state (the writer's cas token fails). See :mod:`.fencing`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import attrs
from oslo_log import log

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers.memcached import clock as clock_module
from nova_nodb_scheduler.synchronizer.drivers.memcached import connection as connection_module
from nova_nodb_scheduler.synchronizer.drivers.memcached import epochs as epochs_module
from nova_nodb_scheduler.synchronizer.drivers.memcached import fencing, layout, options, steps
from nova_nodb_scheduler.synchronizer.drivers.memcached import index as index_module
from nova_nodb_scheduler.synchronizer.drivers.support import batches, driver_base

LOG = log.getLogger(__name__)

SLOTS_PER_WALK = 500
#: Small limits still read the log in pieces that are worth a round trip.
LEAST_SLOTS_PER_WALK = 100
PUBLISH_EVERY_SECONDS = 1.0


@attrs.frozen
class Watermarks:
    """Where an epoch stands, and what is known for certain of that time."""

    epoch: layout.Epoch
    sequence: int
    floor: int
    stable: layout.StableVersion


class Follower:
    """Reads the feed; any thread may call."""

    def __init__(
        self,
        settings: options.MemcachedOptions,
        connection: connection_module.Connection,
        clock: clock_module.ServerClock,
        epochs: epochs_module.Epochs,
        index: index_module.Index,
        observer: steps.Observer,
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._clock = clock
        self._epochs = epochs
        self._index = index
        self._at = observer
        self._seen = fencing.Observations(settings.log_ttl_seconds / 1024)
        self._lock = threading.Lock()
        #: All from the epoch's begin to here is stable, as this client knows.
        self._stable: tuple[str, int] = ("", 0)
        self._published_at = 0.0
        self.fencing = fencing.Fencing(settings, connection, clock, self._seen, observer)

    def watermarks(self) -> Watermarks:
        """Read counter, floor and stable version of the epoch in force.

        :raises EpochBroken: one of them was evicted
        """
        # Before the counter: what it will prove must have been true already.
        bounds = self._clock.lower_bounds()
        epoch, sequence, found = self._epochs.get_beside_counter(
            lambda epoch: (epoch.floor_key, epoch.stable_key)
        )
        try:
            watermarks = Watermarks(
                epoch,
                sequence,
                int(found[epoch.floor_key]),
                layout.StableVersion.decode(found[epoch.stable_key]),
            )
        except KeyError as error:
            raise self._epochs.broken(epoch, "the floor or stable version") from error
        self._seen.add(
            epoch.name, layout.StableVersion(watermarks.sequence, bounds.seconds, bounds.evictions)
        )
        return watermarks

    def shut_out(self) -> dict[str, int]:
        """Return how many versions were voided and how many records fenced, for statistics."""
        return {"voids": self.fencing.voids, "fences": self.fencing.fences}

    def fetch(self, cursor: records.Cursor, limit: int) -> records.Changes | records.ResyncNeeded:
        """Return what changed since a cursor; see the contract."""
        try:
            watermarks = self.watermarks()
            return _refuse(cursor, watermarks) or self._fetch(cursor, limit, watermarks)
        except fencing.Unproven as error:
            return records.ResyncNeeded(records.ResyncReason.HISTORY_TRUNCATED, str(error))
        except epochs_module.EpochBroken as error:
            return records.ResyncNeeded(records.ResyncReason.RECORD_MISSING, str(error))
        except fencing.RecordGone as error:
            return self._explain_loss(cursor, error)

    def stabilise(self) -> records.Cursor:
        """Make stable what can be stable at once; returns the cursor it comes to.

        This is where a snapshot may begin: an unstable write below its cursor
        could reach a record after it was read, and the feed would not tell.
        """
        watermarks = self.watermarks()
        epoch = watermarks.epoch
        version = max(watermarks.stable.version, self._known_stable(epoch))
        try:
            while version < watermarks.sequence:
                stop = min(watermarks.sequence, version + SLOTS_PER_WALK)
                walked = self._walk(epoch, watermarks, version, stop, gone_is_stable=True)
                version += len(walked)
                if version < stop:
                    break
        except fencing.Unproven:
            self._fence_everything(epoch)
            version = watermarks.sequence
        self._note_stable(watermarks, version, certain=True)
        return records.Cursor(epoch.name, version)

    def _fetch(self, cursor: records.Cursor, limit: int, watermarks: Watermarks) -> records.Changes:
        found: list[records.Record] = []
        version, waiting = cursor.version, False
        while version < watermarks.sequence and not waiting:
            slots = min(SLOTS_PER_WALK, max(limit - len(found), LEAST_SLOTS_PER_WALK))
            stop = min(watermarks.sequence, version + slots)
            walked = self._walk(watermarks.epoch, watermarks, version, stop)
            waiting = len(walked) < stop - version
            for record in walked:
                if record is not None and len(found) == limit:
                    self._note_stable(watermarks, version, since=cursor.version)
                    return records.Changes(
                        tuple(found), records.Cursor(cursor.epoch, version), more=True
                    )
                version += 1
                if record is not None:
                    found.append(record)
        self._note_stable(watermarks, version, since=cursor.version)
        return records.Changes(tuple(found), records.Cursor(cursor.epoch, version))

    def _explain_loss(
        self, cursor: records.Cursor, gone: fencing.RecordGone
    ) -> records.ResyncNeeded:
        """Tell a collected record, which raised the floor before, from an evicted one."""
        try:
            watermarks = self.watermarks()
            refused = _refuse(cursor, watermarks)
            if refused is None:
                self._index.check_not_evicted(watermarks.epoch, [gone.name])
        except epochs_module.EpochBroken as error:
            return records.ResyncNeeded(records.ResyncReason.RECORD_MISSING, str(error))
        return refused or records.ResyncNeeded(
            records.ResyncReason.HISTORY_TRUNCATED, "a record was collected meanwhile"
        )

    def _walk(
        self,
        epoch: layout.Epoch,
        watermarks: Watermarks,
        version: int,
        stop: int,
        *,
        gone_is_stable: bool = False,
    ) -> list[records.Record | None]:
        """Return what each stable version after the given one brought.

        None stands for a version that brought nothing, or whose record has a
        later one by now. Ends before the first version that is not stable.

        :param gone_is_stable: pass over records that were collected, as
            nobody holds a token of theirs
        """
        keys = [epoch.slot_key(number) for number in range(version + 1, stop + 1)]
        slots = self._connection.get(keys)
        names = {slots[key] for key in keys if slots.get(key, layout.VOID) != layout.VOID}
        items = self._items(epoch, names)
        self.fencing.begin_waiting(
            epoch,
            [
                number
                for number, key in enumerate(keys, version + 1)
                if not _is_stable(number, slots.get(key), items)
            ],
        )
        walked: list[records.Record | None] = []
        for number, key in enumerate(keys, version + 1):
            name = slots.get(key) or self._void_if_overdue(epoch, watermarks.stable, number)
            if name is None:
                break
            if name == layout.VOID:
                walked.append(None)
                continue
            item = items.get(name) or self._items(epoch, {name}).get(name)
            if item is None or item.kind is layout.Kind.COLLECTED:
                if not gone_is_stable:
                    raise fencing.RecordGone(name)
                walked.append(None)
                continue
            if item.version < number:
                fenced = self.fencing.fence_if_overdue(epoch, number, name)
                if fenced is None:
                    break
                item = fenced
            walked.append(item.record if item.version == number else None)
        self.fencing.forget_pending(epoch, version + len(walked))
        return walked

    def _void_if_overdue(
        self, epoch: layout.Epoch, stable: layout.StableVersion, version: int
    ) -> bytes | None:
        try:
            return self.fencing.void_if_overdue(epoch, stable, version)
        except fencing.VoidedLate:
            # Once no token of before is good, nobody can use the version, void or not.
            self._fence_everything(epoch)
            self._connection.send_all([b"delete %s\r\n" % epoch.slot_key(version)])
            raise

    def _items(self, epoch: layout.Epoch, names: set[bytes]) -> dict[bytes, layout.Item]:
        found = self._connection.get([epoch.record_key(name) for name in names])
        return {
            name: layout.Item.decode(found[epoch.record_key(name)])
            for name in names
            if epoch.record_key(name) in found
        }

    def _fence_everything(self, epoch: layout.Epoch) -> None:
        """Change every cas token, where the log no longer says whose to change.

        Needed after a time without readers, collection and writes that is
        longer than the log is kept: a writer may have been paused all the while.
        """
        LOG.warning(
            "The log of epoch %(epoch)s was not read for too long: rewriting all "
            "records to shut out writers that may be paused",
            {"epoch": epoch.name},
        )
        for names in self._index.pages(epoch):
            for some in batches.split(sorted(names), SLOTS_PER_WALK):
                held = self._connection.gets([epoch.record_key(name) for name in some])
                # Where the cas fails, somebody else has changed the token.
                self._connection.send_all(
                    [
                        connection_module.store(b"cas", key, value, token=token)
                        for key, (value, token) in held.items()
                    ]
                )

    def _known_stable(self, epoch: layout.Epoch) -> int:
        with self._lock:
            name, version = self._stable
            return version if name == epoch.name else 0

    def _note_stable(
        self, watermarks: Watermarks, version: int, *, since: int = 0, certain: bool = False
    ) -> None:
        """Remember how far the log is stable, and publish it now and then.

        :param since: all between this and the version is stable; that counts
            only if what is before it is known to be stable too
        """
        epoch = watermarks.epoch
        known = max(self._known_stable(epoch), watermarks.stable.version)
        if not certain and since > known:
            return
        version = max(version, known)
        with self._lock:
            self._stable = (epoch.name, version)
            now = time.monotonic()
            if now - self._published_at < PUBLISH_EVERY_SECONDS and not certain:
                return
            self._published_at = now
        self._publish(epoch, version)

    def _publish(self, epoch: layout.Epoch, version: int) -> None:
        seen = self._seen.latest(epoch.name, version)
        held = self._connection.gets([epoch.stable_key]).get(epoch.stable_key)
        if held is None or seen is None:
            return
        published = layout.StableVersion.decode(held[0])
        gained_seconds = seen.since_seconds - published.since_seconds
        if published.version > version or (
            published.version == version and gained_seconds < self._settings.log_ttl_seconds / 16
        ):
            return
        since_seconds = max(published.since_seconds, seen.since_seconds)
        evictions = max(published.evictions, seen.evictions)
        stable = layout.StableVersion(version, since_seconds, evictions)
        self._at(steps.Step.STABLE)
        # Who loses this was overtaken by somebody who knows more.
        self._connection.send_all(
            [connection_module.store(b"cas", epoch.stable_key, stable.encode(), token=held[1])]
        )


def _is_stable(number: int, name: bytes | None, items: Mapping[bytes, layout.Item]) -> bool:
    if name is None:
        return False
    item = items.get(name)
    return name == layout.VOID or item is None or item.version >= number


def _refuse(cursor: records.Cursor, watermarks: Watermarks) -> records.ResyncNeeded | None:
    head = records.Cursor(watermarks.epoch.name, watermarks.sequence)
    return driver_base.resync_reason(cursor, head, watermarks.floor)
