# SPDX-License-Identifier: Apache-2.0
"""When services were heard of last and which heartbeats nobody reported, in a store with journals.

One for a store, asked by all of its readers with their snapshots. As long as a store holds
no journal it does nothing: each service's record tells all.

Of a service's record and of what journals tell, **the one that came later by the back end's
order is laid over the other**, as a reporter lays heartbeats over a record: a higher count is
the latest heartbeat, whatever clock told its time; any other one only raises the time. (By
time alone a conductor whose clock is ahead would keep a dead host alive; by the count alone a
service that counts anew would be taken for dead.)

Two services with one id nobody can tell apart in journals. Neither is taken from there, so
the time of each is its record's; and they count as unreported, so that nobody decides by it.
"""

from __future__ import annotations

import collections
import datetime
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.scheduling.facts import heard_services, journal_follower
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import store_snapshot

_JOURNALS: Final = known_namespaces.HEARTBEAT_JOURNALS.name
_LIVENESS: Final = known_namespaces.SERVICE_LIVENESS.name
_CELLS: Final = known_namespaces.CELLS.name

#: What a reader asks of a store.
NAMESPACES: Final = (_JOURNALS, _LIVENESS, _CELLS)


class HeardService(NamedTuple):
    """A service's latest heartbeat.

    :param seconds: since the epoch
    """

    report_count: int
    seconds: float

    def laid_over(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of a record of namespace ``service_liveness`` with this heartbeat."""
        moment = datetime.datetime.fromtimestamp(self.seconds, datetime.UTC)
        return {
            **state,
            "report_count": self.report_count,
            # As reporters write it: UTC without an offset.
            "last_seen_up": moment.replace(tzinfo=None).isoformat(),
        }


@attrs.frozen(eq=False)
class HeardTimes:
    """What journals and records tell of services at one moment; arrays are by place.

    :param follower: whose places they are
    :param keys: of the services' records
    :param places: where each stands in the arrays
    :param turns: another number for each service that a place is given to
    :param seconds: since the epoch; NaN of a service that no journal tells of
    """

    follower: object
    keys: Sequence[str]
    places: Mapping[str, int]
    turns: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]

    def of(self, key: str) -> HeardService | None:
        """Return a service's latest heartbeat; None where its record alone tells."""
        place = self.places.get(key)
        if place is None:
            return None
        seconds = self.seconds.item(place)
        return HeardService(self.counts.item(place), seconds) if seconds == seconds else None

    def told(self, behind: int = 0) -> Set[str]:
        """Return the keys of the services that journals tell of, of those behind a place."""
        places = behind + np.flatnonzero(~np.isnan(self.seconds[behind:]))
        return {self.keys[place] for place in places.tolist()}

    def changed_since(self, before: HeardTimes | None) -> Set[str]:
        """Return the keys of the services of which something else is told than before."""
        if before is self:
            return frozenset()
        if before is None:
            return self.told()
        size = min(len(self.seconds), len(before.seconds))
        if before.follower is not self.follower:
            size = 0
        mine, its = self.seconds[:size], before.seconds[:size]
        same = (mine == its) & (self.counts[:size] == before.counts[:size])
        is_other = self.turns[:size] != before.turns[:size]
        # NaN is no other than NaN.
        differs = ~(np.isnan(mine) & np.isnan(its)) & (is_other | ~same)
        # Who has another's place may have had its own before.
        places = np.flatnonzero(differs & is_other).tolist()
        moved = {each.keys[place] for each in (self, before) for place in places}
        moved |= self.told(size) | before.told(size)
        return {
            *(self.keys[place] for place in np.flatnonzero(differs & ~is_other).tolist()),
            *(key for key in moved if self.of(key) != before.of(key)),
        }


#: Of a store without journals.
_NOTHING_TOLD = HeardTimes(
    None, (), {}, np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float64)
)


def changed_times(before: HeardTimes | None, now: HeardTimes | None) -> Set[str]:
    """Return the keys of the services of which journals tell something else; None tells nothing."""
    if now is None:
        return frozenset() if before is None else _NOTHING_TOLD.changed_since(before)
    return now.changed_since(before)


def telling(times: HeardTimes | None) -> Callable[[str, str, Mapping[str, Any]], Mapping[str, Any]]:
    """Return what gives a record's state with its latest heartbeat, by namespace, key and state."""

    def tell(namespace: str, key: str, state: Mapping[str, Any]) -> Mapping[str, Any]:
        if times is None or namespace != _LIVENESS:
            return state
        heard = times.of(key)
        return state if heard is None else heard.laid_over(state)

    return tell


#: What a service's record tells, by place.
_RECORD = np.dtype([("count", "i8"), ("seconds", "f8"), ("version", "i8")])


class JournalReader:
    """Brings what journals tell to a store's present. Any thread, no I/O.

    :param make_follower: makes a follower that has read nothing
    :param epoch: of the back end, as the store is fed: what sweeps of another one said of its
        versions means nothing
    :param clock: seconds that never go back
    """

    def __init__(
        self,
        make_follower: Callable[[], journal_follower.JournalFollower],
        epoch: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_follower = make_follower
        self._epoch = epoch
        self._clock = clock
        self._lock = threading.RLock()
        self._number = -1
        self._follower: journal_follower.JournalFollower | None = None
        self._journals: store_snapshot.NamespaceView | None = None
        self._liveness: store_snapshot.NamespaceView | None = None
        self._swept: tuple[object, str] | None = None
        self._records = np.zeros(0, _RECORD)
        self._times: HeardTimes | None = None

    def look(self, snapshot: store_snapshot.Snapshot) -> HeardTimes | None:
        """Return what journals tell of services; None where the store holds none.

        Costs what changed since the last call, and copies of three arrays. Of a snapshot that
        is older than another thread's it tells what is known.
        """
        if self._follower is None and not len(snapshot.namespace(_JOURNALS)):
            return None
        with self._lock:
            if snapshot.number >= self._number:
                self._come_to(snapshot)
            return self._times

    def unreported(self, snapshot: store_snapshot.Snapshot) -> Mapping[str, int]:
        """Return by cell how many services have heartbeats that nobody reported, by journals.

        A sweep that is in the snapshot has settled what it made good.
        """
        if self._follower is None and not len(snapshot.namespace(_JOURNALS)):
            return {}
        with self._lock:
            self.look(snapshot)
            if self._follower is None:
                return {}
            found = self._follower.unreported(self._clock())
            return collections.Counter(found) + collections.Counter(self._follower.twins())

    @property
    def unreadable(self) -> Collection[str]:
        """Keys of the slots that cannot be read as they are now."""
        follower = self._follower
        return frozenset() if follower is None else follower.unreadable

    def _come_to(self, snapshot: store_snapshot.Snapshot) -> None:
        """Come to a snapshot, or begin anew with the next one.

        A failure in the middle leaves views noted, or places taken from who touched them, of
        which nobody took in what changed: nor would the next look, which sees no change in them.
        Who begins anew reads all there is, as a process does that starts.
        """
        self._number = snapshot.number
        try:
            self._catch_up(snapshot)
        except BaseException:
            self._forget()
            raise

    def _catch_up(self, snapshot: store_snapshot.Snapshot) -> None:
        journals = snapshot.namespace(_JOURNALS)
        liveness = snapshot.namespace(_LIVENESS)
        if self._follower is not None and (
            (not len(journals) and not self._follower.unreported(float("inf")))
            or (self._journals is not None and journals.epoch_number != self._journals.epoch_number)
        ):
            # None is left, and what they told stands in records since; or it means nothing.
            self._forget()
        if self._follower is None:
            if not len(journals):
                return
            self._follower = self._make_follower()
        self._note_records(self._follower, liveness)
        if journals is not self._journals:
            self._journals = journals
            self._follower.catch_up(snapshot, str(journals.epoch_number), self._clock())
        self._settle(self._follower, snapshot.namespace(_CELLS))
        self._tell(self._follower)

    def _forget(self) -> None:
        self._follower = self._journals = self._liveness = None
        self._swept = self._times = None
        self._records = np.zeros(0, _RECORD)

    # -- records ------------------------------------------------------------------

    def _note_records(
        self, follower: journal_follower.JournalFollower, view: store_snapshot.NamespaceView
    ) -> None:
        """Take over the records that changed."""
        before, self._liveness = self._liveness, view
        changed = view.row_keys() if before is None else view.changed_since(before)
        if not changed:
            return
        gone = [key for key in changed if key not in view]
        keys = [key for key in changed if key in view] if gone else list(changed)
        numbers = [view.numbers(key, "report_count", "counted_at") for key in keys]
        counts = np.array([each[0] for each in numbers], np.int64)
        places = follower.change(
            heard_services.KnownServices(
                keys,
                [text for key in keys for text in view.texts(key, "cell") or ()],
                counts,
                np.array([each[1] for each in numbers], np.float64),
            ),
            gone,
        )
        told = np.zeros(len(keys), _RECORD)
        told["count"] = counts
        told["seconds"] = [_seconds(view.digest(key)) for key in keys]
        told["version"] = [view.version_of(key) or 0 for key in keys]
        lacking = int(places.max(initial=-1)) + 1 - len(self._records)
        if lacking > 0:
            more = np.zeros(max(lacking, len(self._records) // 8), _RECORD)
            self._records = np.concatenate([self._records, more])
        self._records[places[places >= 0]] = told[places >= 0]

    def _tell(self, follower: journal_follower.JournalFollower) -> None:
        """Lay of records and journals the one that came later over the other, where it changed."""
        touched = follower.take_touched()
        before = self._times
        if before is not None and not len(touched):
            return
        if before is None:
            before = attrs.evolve(_NOTHING_TOLD, follower=follower)
        places = follower.places()
        last, records = follower.last_heard(touched), self._records[touched]
        keys = before.keys
        if places is not before.places:
            more = max(int(touched.max(initial=-1)) + 1 - len(keys), 0)
            # Not changed any more: a tuple would be one more copy.
            keys = own = [*keys, *[""] * more]
            for place, key in zip(touched.tolist(), last.keys, strict=True):
                own[place] = key
        is_journal = last.versions > records["version"]
        record_counts = np.where(is_journal, last.counts, records["count"])
        # The later one's time counts alone where its count is the higher one.
        of_journal = is_journal & (last.counts > records["count"])
        of_record = ~is_journal & (record_counts > last.counts) & ~np.isnan(records["seconds"])
        both = np.fmax(last.heard_at, records["seconds"])
        seconds = np.where(of_journal, last.heard_at, np.where(of_record, records["seconds"], both))
        seconds[np.isnan(last.heard_at)] = np.nan
        self._times = HeardTimes(
            follower,
            keys,
            places,
            _with(before.turns, touched, last.turns, len(keys)),
            _with(before.counts, touched, np.maximum(last.counts, records["count"]), len(keys)),
            _with(before.seconds, touched, seconds, len(keys)),
        )

    # -- sweeps -------------------------------------------------------------------

    def _settle(
        self, follower: journal_follower.JournalFollower, view: store_snapshot.NamespaceView
    ) -> None:
        """Take what sweeps made good, once for each that is told."""
        epoch = self._epoch()
        if self._swept is not None and self._swept[0] is view and self._swept[1] == epoch:
            return
        for cell, state in view.states():
            version = state.get("swept_version")
            if state.get("epoch") == epoch and type(version) is int:
                follower.settle(cell, version)
        self._swept = (view, epoch)


def _seconds(digest: float | errors.InvalidRecord | None) -> float:
    return digest if isinstance(digest, float) else float("nan")


def _with(
    before: npt.NDArray[Any], places: npt.NDArray[np.intp], values: npt.NDArray[Any], size: int
) -> npt.NDArray[Any]:
    """Return an array of a size with other values at some places."""
    array = np.concatenate([before, np.zeros(size - len(before), before.dtype)])
    array[places] = values
    return array
