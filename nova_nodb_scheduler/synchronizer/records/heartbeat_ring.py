# SPDX-License-Identifier: Apache-2.0
"""Writes heartbeats to a journal of its own: a ring of slots that nobody else writes.

A flush is one write of the back end, of one slot or, of very many heartbeats, of some. It
overwrites the slot that was written longest ago, if that is older than the ring is long:
until then a reader that begins may need what stands there. If it is not, the ring gets
one more slot.

Slots are written by compare-and-set against the revision that this ring wrote last. Three
things can come between:

* The outcome is not known. The same bytes then go to the same slot, against the same
  revision, behind a read: what was on its way either stands there by then, or loses.
* Another process writes the slots, for it has the same name; or took this one for dead and
  dropped them; or the back end began a new epoch, in which no revision of another wins. The
  ring is given up, for whoever reads it sees another's heartbeats there, and what is not
  known to be written goes to a new one under a new name.
* The back end is down. Heartbeats wait, up to a bound; then the oldest are dropped and
  counted, and whoever owns the ring has the cell swept.
"""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import heartbeat_journals, known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)

_NAMESPACE = known_namespaces.HEARTBEAT_JOURNALS
#: Payload of a heartbeat at the most, in base64 that zlib makes no less of; and of a slot's rest.
_HEARTBEAT_BYTES: Final = 19
_REST_BYTES: Final = 1024
#: Heartbeats of one service that wait at the most: whoever speaks for a host can say many, and
#: must not crowd out what others said.
_MOST_OF_ONE: Final = 256


class JournalEntry(NamedTuple):
    """A heartbeat as it goes into a journal.

    :param service: key of the service's record
    :param heard_at: seconds since the epoch, by the clock of who heard it
    """

    service: str
    report_count: int
    heard_at: float


@attrs.frozen
class RingOptions:
    """Bounds of a ring.

    :param keep_seconds: a slot that is younger is not overwritten; longer than it takes until
        a service that is silent counts as down
    :param max_slots: more slots it does not make: beyond it heartbeats wait
    :param max_waiting: heartbeats that wait at the most
    """

    keep_seconds: float
    max_slots: int = 512
    max_waiting: int = 400_000

    def has_room(self, flush_interval_seconds: float) -> bool:
        """Tell whether a ring has slots for a flush in each interval until it may begin anew."""
        return self.keep_seconds / flush_interval_seconds < self.max_slots


@attrs.frozen
class RingFlush:
    """What came of a flush.

    :param written: heartbeats that are known to stand in the back end by it, those that were
        in doubt before it included
    :param version: highest version known to be written, 0 if none is
    :param waiting: heartbeats that wait, or are in doubt
    :param lost: heartbeats that were dropped for want of room since the flush before: their
        cell must be swept
    """

    written: int
    version: int
    waiting: int
    lost: int


class _NumberedHeartbeat(NamedTuple):
    """A heartbeat in numbers, as a slot holds it."""

    service: int
    report_count: int
    tick: int


@attrs.frozen
class _RingSlot:
    """A slot of this ring as it was left; revision 0 where nothing stands yet."""

    key: records.RecordKey
    revision: int
    written_at: float


@attrs.frozen(eq=False)
class _SentSlot:
    """A write of a slot that is to be sent, or whose outcome is not known."""

    write: records.Write
    heartbeats: Sequence[_NumberedHeartbeat]

    def is_own(self, standing: records.Record | None) -> bool:
        """Tell whether what stands there is what was sent."""
        return (
            standing is not None and not standing.deleted and standing.payload == self.write.payload
        )


class _WaitingHeartbeats:
    """Heartbeats that wait, by service; those come first that wait longest, or nearly."""

    def __init__(self) -> None:
        self._of_service: dict[int, collections.deque[_NumberedHeartbeat]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, heartbeat: _NumberedHeartbeat) -> int:
        """Add a service's latest; beyond a bound its own oldest goes, and no other's.

        :returns: how many went
        """
        own = self._of_service.setdefault(heartbeat.service, collections.deque())
        own.append(heartbeat)
        self._count += 1
        if len(own) <= _MOST_OF_ONE:
            return 0
        own.popleft()
        self._count -= 1
        return 1

    def drop_the_oldest(self, most: int) -> int:
        """Drop what is too much, one of a service at a time; return how many were dropped."""
        dropped = max(self._count - most, 0)
        for _ in range(dropped):
            service = next(iter(self._of_service))
            own = self._of_service.pop(service)
            own.popleft()
            if own:
                self._of_service[service] = own
        self._count -= dropped
        return dropped

    def take(self, most: int) -> list[_NumberedHeartbeat]:
        """Take what one slot can hold, those that waited longest first."""
        taken: list[_NumberedHeartbeat] = []
        first_tick: int | None = None
        last_tick: int | None = None
        for service in list(self._of_service):
            if len(taken) == most:
                break
            own = self._of_service[service]
            for _ in range(min(len(own), heartbeat_journals.MOST_OF_ONE, most - len(taken))):
                tick = own[0].tick
                first = tick if first_tick is None else min(first_tick, tick)
                last = tick if last_tick is None else max(last_tick, tick)
                if last - first > heartbeat_journals.MOST_AGE_TICKS:
                    # Somebody set a clock, or it waited for hours: it goes with its like.
                    break
                first_tick, last_tick = first, last
                taken.append(own.popleft())
            if not own:
                del self._of_service[service]
        self._count -= len(taken)
        return taken

    def give_back(self, heartbeats: Sequence[_NumberedHeartbeat]) -> None:
        """Add heartbeats that waited longer than all others."""
        before = self._of_service
        self._of_service = {}
        for heartbeat in heartbeats:
            self._of_service.setdefault(heartbeat.service, collections.deque()).append(heartbeat)
        for service, own in before.items():
            self._of_service.setdefault(service, collections.deque()).extend(own)
        self._count += len(heartbeats)


@attrs.define(eq=False, slots=False)
class HeartbeatRing:
    """One conductor's journal of one cell; one thread at a time.

    :param cell: uuid of the cell that all services are in
    :param make_name: makes the name of a ring, another one each time; what no record's key
        can begin with is an error of whoever makes it
    :param clock: monotonic, seconds
    """

    _synchronizer: contract.Synchronizer
    _cell: str
    _make_name: Callable[[], str]
    _options: RingOptions
    _clock: Callable[[], float] = time.monotonic
    #: Name of the ring; None where none is begun.
    name: str | None = attrs.field(init=False, default=None)
    #: How many rings were given up.
    given_up: int = attrs.field(init=False, default=0)
    #: How many slots are known to have been written, and heartbeats dropped for want of room.
    written: int = attrs.field(init=False, default=0)
    dropped: int = attrs.field(init=False, default=0)
    _flushes: int = attrs.field(init=False, default=0)
    _slots_made: int = attrs.field(init=False, default=0)
    #: In the order in which they were written.
    _slots: collections.deque[_RingSlot] = attrs.field(init=False, factory=collections.deque)
    _sent: list[_SentSlot] = attrs.field(init=False, factory=list)
    _waiting: _WaitingHeartbeats = attrs.field(init=False, factory=_WaitingHeartbeats)
    _lost: int = attrs.field(init=False, default=0)

    def add(self, entries: Collection[JournalEntry]) -> list[JournalEntry]:
        """Note heartbeats for the next flush. No I/O.

        :returns: those that no journal can hold; they are for their services' records
        """
        others = []
        for entry in entries:
            heartbeat = _numbered(entry)
            if heartbeat is None:
                others.append(entry)
            else:
                # What a service lacks of its own shows by its counts, and has its cell swept.
                self.dropped += self._waiting.add(heartbeat)
        dropped = self._waiting.drop_the_oldest(self._options.max_waiting)
        self._lost += dropped
        self.dropped += dropped
        return others

    @property
    def waiting(self) -> int:
        """How many heartbeats wait, or are in doubt."""
        return len(self._waiting) + sum(len(each.heartbeats) for each in self._sent)

    @property
    def has_lost(self) -> bool:
        """Whether heartbeats were dropped since the last flush that was through."""
        return self._lost > 0

    def flush(self) -> RingFlush:
        """Write what waits: one request to the back end, and one more where a reply was lost.

        :raises BackendUnavailable: nothing that waited is lost; what was sent is in doubt
        """
        before, version = self.waiting, 0
        # What is given up in the first round goes to a new ring in the second, and what waited
        # behind writes in doubt follows them.
        for _ in range(2):
            version = max(version, self._look())
            version = max(version, self._write())
            if self._sent or not len(self._waiting):
                break
        lost, self._lost = self._lost, 0
        return RingFlush(before - self.waiting, version, self.waiting, lost)

    def _look(self) -> int:
        """Tell what became of writes in doubt; return the highest version of those that won."""
        if not self._sent:
            return 0
        found = self._synchronizer.read([each.write.key for each in self._sent])
        sent, self._sent = self._sent, []
        version, foreign = 0, []
        for each in sent:
            standing = found.get(each.write.key)
            if standing is not None and each.is_own(standing):
                version = max(version, self._keep(standing))
            elif each.write.wins(standing):
                self._sent.append(each)
            else:
                foreign.append(each)
        if foreign:
            self._give_up(foreign)
        return version

    def _write(self) -> int:
        """Write what is to be written; return the highest version of what won."""
        if not self._sent:
            # Behind what is in doubt the rest waits, within its bound: a back end that answers
            # reads alone would take slots with each attempt, until the ring has none.
            self._prepare()
        if not self._sent:
            return 0
        # Until the replies are here, all of it is in doubt.
        results = self._synchronizer.write([each.write for each in self._sent])
        sent, self._sent = self._sent, []
        version, foreign = 0, []
        for each, result in zip(sent, results, strict=True):
            standing = result.record
            if result.verdict is records.Verdict.UNKNOWN:
                self._sent.append(each)
            elif standing is not None and each.is_own(standing):
                version = max(version, self._keep(standing))
            else:
                foreign.append(each)
        if foreign:
            self._give_up(foreign)
        return version

    def _prepare(self) -> None:
        """Make slots of what waits, as far as the ring has room."""
        if not len(self._waiting):
            return
        if self.name is None:
            self.name, self._slots_made = self._make_name(), 0
        accepted = self._synchronizer.capabilities
        most_bytes = accepted.max_payload_bytes - _REST_BYTES
        most = max(1, min(heartbeat_journals.MOST_HEARTBEATS, most_bytes // _HEARTBEAT_BYTES))
        while len(self._waiting):
            place = self._place(self.name)
            if place is None:
                return
            heartbeats = self._waiting.take(most)
            self._flushes += 1
            slot = heartbeat_journals.slot_of(
                self._cell, self._flushes, *zip(*heartbeats, strict=True)
            )
            payload = codec.encode(
                heartbeat_journals.state_of(slot), _NAMESPACE.schema, record=str(place.key)
            )
            self._sent.append(
                _SentSlot(records.Write(place.key, place.revision, payload), heartbeats)
            )

    def _place(self, name: str) -> _RingSlot | None:
        """Return the slot that is to be written next; None where the ring has no room."""
        now = self._clock()
        if self._slots and now - self._slots[0].written_at >= self._options.keep_seconds:
            return self._slots.popleft()
        if self._slots_made >= self._options.max_slots:
            return None
        key = records.RecordKey(_NAMESPACE.name, f"{name}.{self._slots_made}")
        if key.fault is not None:
            raise errors.InvalidRecord(str(key), "(name)", key.fault)
        self._slots_made += 1
        return _RingSlot(key, 0, float("-inf"))

    def _keep(self, standing: records.Record) -> int:
        """Note a slot as it stands now; return its version."""
        self.written += 1
        self._slots.append(_RingSlot(standing.key, standing.revision, self._clock()))
        return standing.version

    def _give_up(self, foreign: Sequence[_SentSlot]) -> None:
        """Leave the ring to whoever writes its slots; what is in doubt goes to another one."""
        LOG.warning(
            "Slot %(slot)s of this process's heartbeat journal is not as it was left: the back "
            "end began anew, or another process has the same name or took this one for dead. "
            "The journal is given up and begun again under a new name; nothing is lost.",
            {"slot": foreign[0].write.key},
        )
        left = [heartbeat for each in (*foreign, *self._sent) for heartbeat in each.heartbeats]
        self._waiting.give_back(left)
        self._sent = []
        self._slots.clear()
        self.name = None
        self.given_up += 1


def _numbered(entry: JournalEntry) -> _NumberedHeartbeat | None:
    """Return a heartbeat in numbers; None where no slot can hold it."""
    service = heartbeat_journals.service_id(entry.service)
    least, greatest = heartbeat_journals.LEAST_COUNT, heartbeat_journals.GREATEST_COUNT
    if service is None or not least <= entry.report_count <= greatest:
        return None
    if not 0 <= entry.heard_at <= heartbeat_journals.MOST_SECONDS:
        return None
    return _NumberedHeartbeat(
        service, entry.report_count, heartbeat_journals.tick_of(entry.heard_at)
    )
