# SPDX-License-Identifier: Apache-2.0
"""Follows the heartbeat journals in a store: one for a store, asked by all of its readers.

A slot that cannot be read costs that slot: it is counted, named in the log once, and the
others go on. What stood there is unreported until a sweep, as if it had never been written.

Who is held up for longer than a ring is long finds slots that were overwritten twice since
the look before. What stood there in between was told, and must not be taken for unreported.
That it happened the numbers of flushes say: a ring writes its slots in turn, so a slot that
was overwritten once is about as many flushes older as the ring has slots (a write in doubt
comes a little later), and one that was twice, twice as many. In between is the line.

Who begins finds rings that hold all that was heard as long as they are long, and of what was
heard before it whatever a ring has not overwritten yet, for it has little to write: between
two such counts another ring had what seems to be missing. So only what was heard within a
horizon is the beginning.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.facts import heard_services
from nova_nodb_scheduler.scheduling.namespaces import heartbeat_journals, known_namespaces
from nova_nodb_scheduler.store import store_snapshot
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)

_JOURNALS = known_namespaces.HEARTBEAT_JOURNALS.name
#: Slots that are named in the log for what cannot be read there.
_MOST_NAMED = 1000


@attrs.frozen
class FollowedSlots:
    """What one catching up took in.

    :param slots: that were read
    :param unreadable: slots that could not be read
    :param unknown: heartbeats of services that are not known, or are in another cell
    :param implausible: counts that were ignored, the first of many of each slot
    :param held_up: whether slots passed this reader by, so that it began anew
    """

    slots: int = 0
    unreadable: int = 0
    unknown: int = 0
    implausible: tuple[heard_services.ImplausibleCount, ...] = ()
    held_up: bool = False


class JournalFollower:
    """Brings :class:`.heard_services.HeardServices` to a store's present. Any thread, no I/O.

    :param grace_seconds: see there
    :param horizon_seconds: how far back one that begins looks; shorter than rings are by what
        clocks may differ, and longer than it takes until a silent service counts as down
    :param wall_clock: seconds since the epoch
    """

    def __init__(
        self,
        grace_seconds: float,
        horizon_seconds: float,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._horizon_seconds = horizon_seconds
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._heard = heard_services.HeardServices(grace_seconds)
        self._number = -1
        self._view: store_snapshot.NamespaceView | None = None
        self._epoch: str | None = None
        self._named: set[str] = set()
        #: Of each slot the flush that it held, None where nobody can read it; of each ring
        #: the number of its slots.
        self._flushes: dict[str, int | None] = {}
        self._sizes: collections.Counter[str] = collections.Counter()
        #: Keys of the slots that cannot be read as they are now.
        self.unreadable: frozenset[str] = frozenset()

    def know(self, services: heard_services.KnownServices) -> None:
        """Take these services for all that there are; see :meth:`.HeardServices.know`."""
        with self._lock:
            self._heard.know(services)

    def change(
        self, services: heard_services.KnownServices, gone: Collection[str]
    ) -> npt.NDArray[np.intp]:
        """Take over what some services' records say now; see :meth:`.HeardServices.change`."""
        with self._lock:
            return self._heard.change(services, gone)

    def catch_up(
        self, snapshot: store_snapshot.Snapshot, epoch: str, now_seconds: float
    ) -> FollowedSlots:
        """Take in what changed since the last call. The same snapshot again changes nothing.

        :param snapshot: of the store; one that is older than another thread's is left aside
        :param epoch: that it is of: in a new one everything begins anew
        :param now_seconds: by a clock that never goes back
        """
        with self._lock:
            if snapshot.number < self._number:
                return FollowedSlots()
            view, before = snapshot.namespace(_JOURNALS), self._view
            if epoch != self._epoch:
                self._begin()
                before = None
            # Where the clock was set back, what is heard from now on was no beginning.
            self._heard.begin_no_later(self._horizon())
            changed = view.row_keys() if before is None else view.changed_since(before)
            self._number, self._view, self._epoch = snapshot.number, view, epoch
            return self._take(view, changed, now_seconds)

    def _begin(self) -> None:
        self._heard.forget()
        self._flushes, self._sizes = {}, collections.Counter()
        self.unreadable = frozenset()
        self._heard.begin_anew(self._horizon())

    def _take(
        self, view: store_snapshot.NamespaceView, changed: Collection[str], now_seconds: float
    ) -> FollowedSlots:
        found, damaged = self._read(view, changed)
        self.unreadable = self.unreadable.difference(changed) | damaged
        held_up = self._note(
            changed,
            dict.fromkeys(damaged) | {key: slot.flush for key, (_, slot) in found.items()},
        )
        if held_up:
            self._heard.begin_anew(self._horizon())
        unknown = 0
        implausible: list[heard_services.ImplausibleCount] = []
        for version, slot in sorted(found.values(), key=lambda each: each[0]):
            taken = self._heard.take(slot, version, now_seconds)
            unknown += taken.unknown
            implausible += taken.implausible
        return FollowedSlots(len(found), len(damaged), unknown, tuple(implausible), held_up)

    def _read(
        self, view: store_snapshot.NamespaceView, keys: Collection[str]
    ) -> tuple[dict[str, tuple[int, heartbeat_journals.Slot]], set[str]]:
        """Return slots with their versions, by key, and the keys of those that nobody can read."""
        found, damaged = {}, set()
        for key in keys:
            stored = view.get(key)
            if stored is None:
                continue
            try:
                # Not by way of the store, which would keep what nobody asks for again.
                state = codec.decode_state(stored.payload)
                found[key] = stored.version, heartbeat_journals.read(key, state)
            except (errors.InvalidRecord, errors.UndecodableRecord) as error:
                damaged.add(key)
                self._name(key, error)
        return found, damaged

    def _note(self, changed: Collection[str], flushes: Mapping[str, int | None]) -> bool:
        """Note the flushes of slots that changed; tell whether some passed by unread."""
        before = {key: self._flushes.pop(key) for key in changed if key in self._flushes}
        self._sizes.subtract(map(_ring_of, before))
        self._sizes.update(map(_ring_of, flushes))
        self._sizes += collections.Counter()  # without those that have no slot any more
        self._flushes.update(flushes)
        for key, flush in before.items():
            now = flushes.get(key)
            if flush is not None and now is not None:
                if 2 * (now - flush) > 3 * self._sizes[_ring_of(key)]:
                    return True
        return False

    def _horizon(self) -> float:
        return self._wall_clock() - self._horizon_seconds

    def _name(self, key: str, error: errors.NodbError) -> None:
        if key in self._named or len(self._named) >= _MOST_NAMED:
            return
        self._named.add(key)
        LOG.warning(
            "The slot %(slot)s of a heartbeat journal cannot be read and is left aside (said once "
            "of each): %(error)s Its heartbeats count as unreported until its cell is swept.",
            {"slot": records.printable_name(key), "error": error},
        )

    def settle(self, cell: str, version: int) -> None:
        """Take what a cell's sweep made good; see :meth:`.HeardServices.settle`."""
        with self._lock:
            self._heard.settle(cell, version)

    def unreported(self, now_seconds: float) -> dict[str, int]:
        """Return by cell how many services have heartbeats that nobody reported."""
        with self._lock:
            return self._heard.unreported(now_seconds)

    def twins(self) -> Mapping[str, int]:
        """Return by cell how many services have an id that another one has, too."""
        with self._lock:
            return self._heard.twins()

    def places(self) -> Mapping[str, int]:
        """Return the place of each service that has one; it does not change any more."""
        with self._lock:
            return self._heard.places

    def take_touched(self) -> npt.NDArray[np.intp]:
        """Return places of which something else may be told than at the last call."""
        with self._lock:
            return self._heard.take_touched()

    def last_heard(self, places: npt.NDArray[np.intp] | None = None) -> heard_services.LastHeard:
        """Return what is known now of the services at some places; None: of each service."""
        with self._lock:
            return self._heard.last_heard(places)


def _ring_of(key: str) -> str:
    return key.rpartition(".")[0]
