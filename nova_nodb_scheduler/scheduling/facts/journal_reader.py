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
from nova_nodb_scheduler.scheduling.namespaces import heartbeat_journals, known_namespaces
from nova_nodb_scheduler.store import store_snapshot

_JOURNALS: Final = known_namespaces.HEARTBEAT_JOURNALS.name
_LIVENESS: Final = known_namespaces.SERVICE_LIVENESS.name
_CELLS: Final = known_namespaces.CELLS.name
#: Beyond so many changed records all are read anew, by columns.
_MANY: Final = 1000

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
    """What journals and records tell of services at one moment; arrays have the shape (n,).

    :param keys: of the services' records
    :param places: where each stands in the arrays
    :param seconds: since the epoch; NaN of a service that no journal tells of
    """

    keys: Sequence[str]
    places: Mapping[str, int]
    counts: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]

    def of(self, key: str) -> HeardService | None:
        """Return a service's latest heartbeat; None where its record alone tells."""
        place = self.places.get(key)
        if place is None:
            return None
        seconds = self.seconds.item(place)
        return HeardService(self.counts.item(place), seconds) if seconds == seconds else None

    def told(self) -> Set[str]:
        """Return the keys of the services that journals tell of."""
        return self._keys_at(~np.isnan(self.seconds))

    def _keys_at(self, chosen: npt.NDArray[np.bool_]) -> Set[str]:
        return {self.keys[place] for place in np.flatnonzero(chosen).tolist()}

    def changed_since(self, before: HeardTimes | None) -> Set[str]:
        """Return the keys of the services of which something else is told than before."""
        if before is self:
            return frozenset()
        if before is None:
            return self.told()
        if before.places is not self.places:
            keys = before.places.keys() | self.places.keys()
            return {key for key in keys if self.of(key) != before.of(key)}
        # NaN is no other than NaN.
        same = (self.seconds == before.seconds) & (self.counts == before.counts)
        same |= np.isnan(self.seconds) & np.isnan(before.seconds)
        return self._keys_at(~same)


#: Of a store without journals.
_NOTHING_TOLD = HeardTimes((), {}, np.zeros(0, np.int64), np.zeros(0, np.float64))


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


@attrs.define(eq=False)
class _Records:
    """What services' records tell, in the order of the follower's services; shape (n,)."""

    keys: Sequence[str]
    cells: Mapping[str, str]
    places: Mapping[str, int]
    counts: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]
    versions: npt.NDArray[np.int64]


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
        self._records: _Records | None = None
        self._times: HeardTimes | None = None
        #: By cell, how many of its services have an id that another one has, too.
        self._twins: Mapping[str, int] = {}

    def look(self, snapshot: store_snapshot.Snapshot) -> HeardTimes | None:
        """Return what journals tell of services; None where the store holds none.

        Costs what changed since the last call, and a pass over all services where some came
        or went. Of a snapshot that is older than another thread's it tells what is known.
        """
        if self._follower is None and not len(snapshot.namespace(_JOURNALS)):
            return None
        with self._lock:
            if snapshot.number >= self._number:
                self._number = snapshot.number
                self._catch_up(snapshot)
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
            return collections.Counter(found) + collections.Counter(self._twins)

    @property
    def unreadable(self) -> Collection[str]:
        """Keys of the slots that cannot be read as they are now."""
        follower = self._follower
        return frozenset() if follower is None else follower.unreadable

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
            self._times = None
        self._settle(self._follower, snapshot.namespace(_CELLS))
        if self._times is None:
            self._times = self._told(self._follower)

    def _forget(self) -> None:
        self._follower = self._journals = self._liveness = None
        self._swept = self._records = self._times = None
        self._twins = {}

    # -- records ------------------------------------------------------------------

    def _note_records(
        self, follower: journal_follower.JournalFollower, view: store_snapshot.NamespaceView
    ) -> None:
        before, self._liveness = self._liveness, view
        if view is before:
            return
        changed = None if before is None else view.changed_since(before)
        if changed is None or len(changed) > _MANY or not self._amend(follower, view, changed):
            self._read_all(follower, view)
        if changed is None or changed:
            self._times = None

    def _amend(
        self,
        follower: journal_follower.JournalFollower,
        view: store_snapshot.NamespaceView,
        changed: Collection[str],
    ) -> bool:
        """Take over some records; False where services came, went, or are in another cell."""
        known = self._records
        assert known is not None  # of a view before this one
        for key in changed:
            texts = view.texts(key, "cell")
            if texts is None or texts[0] != known.cells.get(key):
                return False
        for key in changed:
            place, record = known.places.get(key), view.get(key)
            if place is not None and record is not None:
                known.counts[place] = _whole(record.state.get("report_count"))
                known.seconds[place] = _seconds(view.digest(key))
                known.versions[place] = record.version
                counted_at = record.state.get("counted_at")
                follower.note(
                    place,
                    known.counts.item(place),
                    counted_at if isinstance(counted_at, float) else float("nan"),
                )
        return True

    def _read_all(
        self, follower: journal_follower.JournalFollower, view: store_snapshot.NamespaceView
    ) -> None:
        """Take all records over."""
        keys = view.row_keys()
        texts = view.vocabulary("cell").texts()
        cells = [texts[code] for code in view.column("cell").tolist()]
        counts = view.column("report_count")
        follower.know(heard_services.KnownServices(keys, cells, counts, view.column("counted_at")))
        rows = {key: row for row, key in enumerate(keys)}
        own = follower.last_heard().keys
        chosen = np.array([rows[key] for key in own], np.intp)
        seconds = np.array([_seconds(each) for each in view.digests()], np.float64)
        versions = np.array([view.version_of(key) or 0 for key in own], np.int64)
        self._records = _Records(
            own,
            dict(zip(keys, cells, strict=True)),
            {key: place for place, key in enumerate(own)},
            counts[chosen],
            seconds[chosen],
            versions,
        )
        self._twins = collections.Counter(
            cell
            for key, cell in zip(keys, cells, strict=True)
            if key not in self._records.places and heartbeat_journals.service_id(key) is not None
        )

    def _told(self, follower: journal_follower.JournalFollower) -> HeardTimes:
        """Lay of record and journals the one that came later over the other."""
        records = self._records
        assert records is not None  # read before any slot is
        last = follower.last_heard()
        is_journal = last.versions > records.versions
        record_counts = np.where(is_journal, last.counts, records.counts)
        # The later one's time counts alone where its count is the higher one.
        of_journal = is_journal & (last.counts > records.counts)
        of_record = ~is_journal & (record_counts > last.counts) & ~np.isnan(records.seconds)
        both = np.fmax(last.heard_at, records.seconds)
        seconds = np.where(of_journal, last.heard_at, np.where(of_record, records.seconds, both))
        seconds[np.isnan(last.heard_at)] = np.nan
        return HeardTimes(
            records.keys, records.places, np.maximum(last.counts, records.counts), seconds
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


def _whole(value: object) -> int:
    """Return a count as its column has it."""
    return value if type(value) is int and abs(value) < 2**63 else 0
