# SPDX-License-Identifier: Apache-2.0
"""Which of a conductor's heartbeats go to its journal, and which to their services' records.

A reporter asks for one; where there is none, nothing here is called. What was handed to
the journal while the cell journaled is written there, also behind the moment at which it
no longer does: a heartbeat that is in doubt must not be told a second time elsewhere as
if it were another.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Collection

import attrs

from nova_nodb_scheduler.nova_adapter.reporting import dirty_records
from nova_nodb_scheduler.synchronizer.records import heartbeat_ring


@attrs.frozen
class JournalFigures:
    """What became of heartbeats that were handed to journals; of all rings of a writer.

    :param waiting: heartbeats that wait, or are in doubt
    :param dropped: heartbeats that were dropped for want of room
    :param slots: that were written
    :param given_up: rings that another process wrote, or dropped
    """

    waiting: int = 0
    dropped: int = 0
    slots: int = 0
    given_up: int = 0


class JournalWriter:
    """A conductor's way to its journal; the reporter's thread.

    :param cell: uuid of the cell whose services it hears; asked when it is needed
    :param make_ring: makes the ring of that cell
    :ivar is_on: whether heartbeats that come from now on go to the journal
    :ivar keeps_each: whether counts are kept for the journal that are not handed to it yet
    :ivar is_announced: whether schedulers that know no journals are kept from deciding
    :ivar decided_until: until when what was decided holds; by the monotonic clock
    """

    def __init__(
        self, cell: Callable[[], str], make_ring: Callable[[str], heartbeat_ring.HeartbeatRing]
    ) -> None:
        self._cell = cell
        self._make_ring = make_ring
        self._ring: heartbeat_ring.HeartbeatRing | None = None
        #: Of the rings that were left.
        self._left = JournalFigures()
        #: Held while a ring is left, for who reads figures.
        self._leaving = threading.Lock()
        self.is_on = False
        self.keeps_each = True
        self.is_announced = False
        self.decided_until = float("inf")

    @property
    def cell(self) -> str:
        """The cell of its services."""
        return self._cell()

    @property
    def ring(self) -> str | None:
        """Name of the ring that is written; None where none is begun, or it was left."""
        return None if self._ring is None else self._ring.name

    @property
    def waiting(self) -> int:
        """How many heartbeats wait for the back end, or are in doubt."""
        return 0 if self._ring is None else self._ring.waiting

    def figures(self) -> JournalFigures:
        """Return what became of heartbeats until now. Any thread."""
        with self._leaving:
            return self._figures()

    def _figures(self) -> JournalFigures:
        ring, left = self._ring, self._left
        if ring is None:
            return left
        return JournalFigures(
            ring.waiting,
            left.dropped + ring.dropped,
            left.slots + ring.written,
            left.given_up + ring.given_up,
        )

    def take(
        self, heartbeats: Collection[dirty_records.PendingHeartbeats]
    ) -> list[dirty_records.PendingHeartbeats]:
        """Note heartbeats for the next flush. No I/O.

        :returns: those that are for their services' records: of another cell, or such as no
            journal can hold
        """
        if not self.is_on or not heartbeats:
            return list(heartbeats)
        cell = self._cell()
        if self._ring is None:
            self._ring = self._make_ring(cell)
        own: list[dirty_records.PendingHeartbeats] = []
        others: list[dirty_records.PendingHeartbeats] = []
        for beat in heartbeats:
            (own if beat.scope == cell and beat.each is not None else others).append(beat)
        refused = self._ring.add(
            [
                heartbeat_ring.JournalEntry(beat.service, each.report_count, each.heard_at)
                for beat in own
                for each in beat.each or ()
            ]
        )
        return others + (_left(own, refused) if refused else [])

    def flush(self) -> heartbeat_ring.RingFlush | None:
        """Write what waits; None where nothing does.

        :raises BackendUnavailable: see :meth:`.HeartbeatRing.flush`
        """
        if self._ring is None:
            return None
        if self._ring.waiting or self._ring.has_lost:
            return self._ring.flush()
        if not self.is_on:
            # Another one is begun, should it go over again: this one is dropped when it is old.
            with self._leaving:
                self._left, self._ring = self._figures(), None
        return None


def _left(
    heartbeats: Collection[dirty_records.PendingHeartbeats],
    refused: Collection[heartbeat_ring.JournalEntry],
) -> list[dirty_records.PendingHeartbeats]:
    """Return of some heartbeats those that a ring refused."""
    by_service: dict[str, set[tuple[int, float]]] = collections.defaultdict(set)
    for entry in refused:
        by_service[entry.service].add((entry.report_count, entry.heard_at))
    left = []
    for beat in heartbeats:
        of_it = by_service.get(beat.service, ())
        counts = [each for each in beat.each or () if each in of_it]
        if counts:
            left.append(
                attrs.evolve(
                    beat,
                    seen=len(counts),
                    report_count=max(each.report_count for each in counts),
                    heard_at=max(each.heard_at for each in counts),
                    each=None,
                )
            )
    return left
