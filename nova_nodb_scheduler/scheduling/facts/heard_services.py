# SPDX-License-Identifier: Apache-2.0
"""When compute services were heard of last, and which heartbeats nobody reported, by journals.

A service's record sums up what all of its reporters saw. With journals nobody writes such
a sum: each conductor says what it saw, and a reader keeps of each service the highest count
and which of the 64 counts below it were seen in whatever journal. A count that is missing
between two that were seen went through a conductor without the plugin, or was lost with
one, unless it is only late: so it counts after a grace. A sweep that began behind the slot
that showed it makes good what went with it.

Who begins counts from the first heartbeat that it meets. But where the service's record is
of the time since which rings are whole, as when a conductor has just gone over to journals,
it counts from there: what is between the two nobody told.

Which slot showed a missing count is kept for two groups of a service's missing counts: those
above ``split``, which the latest of such slots showed, and those up to it, for which the
latest of *their* slots stands. One version for all of a service would not do: a service
whose heartbeats cross again and again, each soon filled in, would have its one true gap
said to be of now each time, and no sweep would ever have begun behind it. What is given
for a gap is never less than it is: at the worst it is settled by a later sweep.

A service has the same place as long as it is there, and another may have it behind that: so
one that comes or goes costs no pass over all of them.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Sequence
from typing import Final

import attrs
import immutables
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling.namespaces import heartbeat_journals, report_counts

#: Counts below the highest of which it is known whether they were seen.
WINDOW: Final = 64
_ALL = np.uint64(2**64 - 1)
_ONE = np.uint64(1)
#: What a record's count is cut to, so that differences fit 64 bits.
_MOST_COUNT = 2**61
#: Implausible counts that are told of one slot.
_MOST_TOLD = 100

_ROW = np.dtype(
    [
        ("cell", "i4"),
        # Counts the services that had this place.
        ("turn", "i8"),
        ("record_count", "i8"),
        ("recorded_at", "f8"),
        # Whether a slot named it; highest and counted_at are its record's until then.
        ("told", "?"),
        # False where the next count, whichever, leaves nothing missing.
        ("begun", "?"),
        ("highest", "i8"),
        # When the highest count was heard; seconds since the epoch, NaN for not known.
        ("counted_at", "f8"),
        # Whatever count it was that was heard last; NaN for none.
        ("heard_at", "f8"),
        # Of the slot that told it.
        ("heard_version", "i8"),
        # Bit n says that count highest - 1 - n was seen.
        ("seen", "u8"),
        # Counts up to it are not asked for.
        ("floor", "i8"),
        ("split", "i8"),
        ("lower_version", "i8"),
        ("lower_since", "f8"),
        # Missing counts that no bit stands for any more; they are of the lower group.
        ("misses_older", "?"),
        ("upper_version", "i8"),
        ("upper_since", "f8"),
        # Whether anything may be missing.
        ("is_incomplete", "?"),
    ]
)

_Rows = npt.NDArray[np.intp]
_Bits = npt.NDArray[np.uint64]


@attrs.frozen(eq=False)
class KnownServices:
    """Services as their records tell of them.

    :param keys: keys of their records; each once
    :param cells: uuids of their cells
    :param counts: ``report_count``; shape (n,)
    :param counted_at: when these were heard, seconds since the epoch; NaN where not noted
    """

    keys: Sequence[str]
    cells: Sequence[str]
    counts: npt.NDArray[np.int64]
    counted_at: npt.NDArray[np.float64]


@attrs.frozen
class ImplausibleCount:
    """A count that no service can have come to; it was ignored."""

    key: str
    known: int
    count: int


@attrs.frozen
class TakenSlot:
    """What became of a slot's heartbeats.

    :param unknown: of services that are not known, or are in another cell
    :param implausible: counts that were ignored, the first of many
    """

    unknown: int
    implausible: tuple[ImplausibleCount, ...]


@attrs.frozen(eq=False)
class LastHeard:
    """What journals tell of services; arrays have the shape (n,).

    :param keys: of the services
    :param turns: another number for each service that a place is given to
    :param counts: highest counts; of those that no journal names, what their records said
    :param heard_at: seconds since the epoch; NaN of those that no journal names
    :param versions: of the slots that told when; 0 of those that no journal names
    """

    keys: Sequence[str]
    turns: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    heard_at: npt.NDArray[np.float64]
    versions: npt.NDArray[np.int64]


class HeardServices:
    """All services that journals may tell of, in arrays. One thread at a time.

    :param grace_seconds: how long a count may be missing, because two conductors' flushes
        crossed
    """

    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        #: By place; some at the end are spare.
        self._rows = np.zeros(0, _ROW)
        self._keys: list[str] = []
        self._free: list[int] = []
        #: Of each service with an id its place.
        self.places: immutables.Map[str, int] = immutables.Map()
        #: Their ids, ascending, and the places of these.
        self._ids = np.zeros(0, np.uint64)
        self._at = np.zeros(0, np.intp)
        #: Places of services with an id that another one has, too.
        self._twins: frozenset[int] = frozenset()
        self._touched: list[_Rows] = []
        self._cells: dict[str, int] = {}
        self._begin_since = -np.inf

    def __len__(self) -> int:
        return len(self.places)

    def forget(self) -> None:
        """Forget what journals told, as a reader does that begins anew or in a new epoch."""
        self._renew(np.sort(self._at))
        self._begin_since = -np.inf

    def know(self, services: KnownServices) -> None:
        """Take these services for all that there are; see :meth:`change`."""
        self.change(services, set(self.places).difference(services.keys))

    def change(self, services: KnownServices, gone: Collection[str] = ()) -> _Rows:
        """Take over what services' records say; those of ``gone`` are there no more.

        Those that were known, in the same cell, keep what journals told of them. Of services
        with one id nothing is told as long as both are there.

        :returns: the place of each, shape (n,); -1 of one that is in no journal, for it has no id
        """
        for cell in services.cells:
            self._cells.setdefault(cell, len(self._cells))
        cells = np.array([self._cells[each] for each in services.cells], np.int32)
        places = np.array([self.places.get(key, -1) for key in services.keys], np.intp)
        stays = places >= 0
        stays[stays] = self._rows["cell"][places[stays]] == cells[stays]
        moved = places[~stays & (places >= 0)]
        leave = [self.places[key] for key in gone if key in self.places]
        self._drop(np.concatenate([moved, np.array(leave, np.intp)]))
        places[~stays] = self._add([services.keys[at] for at in np.flatnonzero(~stays).tolist()])
        known = places >= 0
        chosen = places[known]
        rows = self._rows
        rows["cell"][chosen] = cells[known]
        count = np.clip(services.counts[known], -_MOST_COUNT, _MOST_COUNT)
        rows["record_count"][chosen] = count
        rows["recorded_at"][chosen] = services.counted_at[known]
        untold = chosen[~rows["told"][chosen]]
        rows["highest"][untold] = rows["record_count"][untold]
        rows["counted_at"][untold] = rows["recorded_at"][untold]
        self._touched.append(chosen)
        return places

    def _drop(self, places: _Rows) -> None:
        """Free the places of services."""
        if not len(places):
            return
        self._renew(places)
        goes = np.zeros(len(self._rows), np.bool_)
        goes[places] = True
        goes = goes[self._at]
        self._ids, self._at = self._ids[~goes], self._at[~goes]
        with self.places.mutate() as known:
            for place in places.tolist():
                del known[self._keys[place]]
            self.places = known.finish()
        self._free += places.tolist()
        self._part_twins()

    def _add(self, keys: Sequence[str]) -> _Rows:
        """Give services places, -1 to those without an id."""
        ids = list(map(heartbeat_journals.service_id, keys))
        at = [place for place, number in enumerate(ids) if number is not None]
        found = np.full(len(keys), -1, np.intp)
        if not at:
            return found
        used = [self._free.pop() for _ in range(min(len(at), len(self._free)))]
        first = len(self._keys)
        used += range(first, first + len(at) - len(used))
        self._keys += [""] * (used[-1] + 1 - first)
        self._make_room(len(self._keys))
        with self.places.mutate() as known:
            for place, key in zip(used, (keys[each] for each in at), strict=True):
                self._keys[place] = key
                known[key] = place
            self.places = known.finish()
        found[at] = used
        numbers = np.array([ids[each] for each in at], np.uint64)
        order = np.argsort(numbers)
        where = np.searchsorted(self._ids, numbers[order])
        self._ids = np.insert(self._ids, where, numbers[order])
        self._at = np.insert(self._at, where, found[at][order])
        self._rows["turn"][found[at]] += 1
        self._part_twins()
        return found

    def _make_room(self, size: int) -> None:
        lacking = size - len(self._rows)
        if lacking > 0:
            more = np.zeros(max(lacking, len(self._rows) // 8), _ROW)
            more["heard_at"] = more["counted_at"] = more["recorded_at"] = np.nan
            self._rows = np.concatenate([self._rows, more])

    def _renew(self, places: _Rows) -> None:
        """Forget what journals told of services."""
        for name in _ROW.names or ():
            if name not in ("cell", "turn", "record_count", "recorded_at"):
                self._rows[name][places] = 0
        self._rows["highest"][places] = self._rows["record_count"][places]
        self._rows["counted_at"][places] = self._rows["recorded_at"][places]
        self._rows["heard_at"][places] = np.nan
        self._touched.append(places)

    def _part_twins(self) -> None:
        """Find the services with one id; of those that came to have one, forget what was told."""
        same = np.zeros(len(self._ids) + 1, np.bool_)
        same[1:-1] = self._ids[1:] == self._ids[:-1]
        places = self._at[same[1:] | same[:-1]]
        if len(places) or self._twins:
            self._twins = frozenset(places.tolist())
            self._renew(places)

    def twins(self) -> collections.Counter[str]:
        """Count by cell the services with an id that another one has, too."""
        names = list(self._cells)
        return collections.Counter(names[self._rows["cell"][place]] for place in self._twins)

    def take(self, slot: heartbeat_journals.Slot, version: int, now_seconds: float) -> TakenSlot:
        """Take a slot's heartbeats in; a second time it changes nothing.

        :param version: of the slot's record. A reader that begins takes slots in the order
            of their versions
        :param now_seconds: by any clock that never goes back; see :meth:`unreported`
        """
        cell = self._cells.get(slot.cell)
        if cell is None or not len(self._ids):
            return TakenSlot(len(slot), ())
        places = np.minimum(np.searchsorted(self._ids, slot.ids), len(self._ids) - 1)
        rows = self._at[places]
        named = (self._ids[places] == slot.ids) & (self._rows["cell"][rows] == cell)
        if self._twins:
            named &= ~np.isin(rows, list(self._twins))
        rows, counts = rows[named], slot.counts[named]
        heard_at = slot.ticks[named] / heartbeat_journals.TICKS_PER_SECOND
        self._touched.append(rows)
        turns = heartbeat_journals.places_within(slot.ids[named])
        implausible: list[ImplausibleCount] = []
        # In a turn there is one heartbeat of a service at the most, of a higher count than before.
        for turn in range(int(turns.max(initial=-1)) + 1):
            now = turns == turn
            self._take_once(
                rows[now], counts[now], heard_at[now], version, now_seconds, implausible
            )
        return TakenSlot(len(slot) - len(rows), tuple(implausible))

    def _take_once(
        self,
        rows: _Rows,
        counts: npt.NDArray[np.int64],
        heard_at: npt.NDArray[np.float64],
        version: int,
        now_seconds: float,
        implausible: list[ImplausibleCount],
    ) -> None:
        """Take one heartbeat of each of some services."""
        all_rows = self._rows
        is_next = (
            (counts == all_rows["highest"][rows] + 1)
            & all_rows["begun"][rows]
            & ~all_rows["is_incomplete"][rows]
        )
        if is_next.any():
            # Nearly always. What follows on the known count every judge takes, and where
            # nothing is missing nothing falls out of the window.
            nearest = rows[is_next]
            all_rows["highest"][nearest] += 1
            all_rows["seen"][nearest] = (all_rows["seen"][nearest] << _ONE) | _ONE
            all_rows["counted_at"][nearest] = heard_at[is_next]
            all_rows["heard_at"][nearest] = heard_at[is_next]
            all_rows["heard_version"][nearest] = version
            rows, counts, heard_at = rows[~is_next], counts[~is_next], heard_at[~is_next]
        if not len(rows):
            return
        known = all_rows["highest"][rows]
        begun = all_rows["begun"][rows]
        steps = report_counts.judge_counts(known, all_rows["counted_at"][rows], counts, heard_at)
        ignored = ~steps.taken & ~steps.renumbered
        for at in np.flatnonzero(ignored).tolist()[: _MOST_TOLD - len(implausible)]:
            told = self._keys[rows[at]], int(known[at]), int(counts[at])
            implausible.append(ImplausibleCount(*told))
        higher = steps.taken & begun & (counts > known)
        self._raise(rows[higher], counts[higher], version, now_seconds)
        late = steps.taken & begun & (counts < known) & (known - counts <= WINDOW)
        bits = _ONE << (known - counts - 1)[late].astype(np.uint64)
        all_rows["seen"][rows[late]] |= bits
        begins = ~begun & ~ignored & (heard_at >= self._begin_since)
        follows = begins & (counts > known) & self._has_fresh_record(rows)
        self._begin(rows, counts, begins & ~follows)
        self._begin(rows, known, follows)
        self._raise(rows[follows], counts[follows], version, now_seconds)
        self._renumber(rows, counts, begun & steps.renumbered)
        # The highest count is the latest heartbeat, whichever clock was ahead. Whoever says
        # another count, Nova takes the service for alive.
        latest = higher | begins
        counted = latest | (begun & steps.renumbered)
        all_rows["counted_at"][rows[counted]] = heard_at[counted]
        before = all_rows["heard_at"][rows]
        all_rows["heard_at"][rows] = np.where(latest, heard_at, np.fmax(before, heard_at))
        all_rows["heard_version"][rows[latest | ~(before >= heard_at)]] = version

    def _begin(
        self, rows: _Rows, counts: npt.NDArray[np.int64], chosen: npt.NDArray[np.bool_]
    ) -> None:
        """Count services from here; what was before, nobody asks a reader that begins."""
        begun, count = rows[chosen], counts[chosen]
        self._rows["told"][begun] = self._rows["begun"][begun] = True
        for name in ("highest", "floor", "split"):
            self._rows[name][begun] = count

    def _has_fresh_record(self, rows: _Rows) -> npt.NDArray[np.bool_]:
        """Tell of services that no slot named whether all since their record stands in rings."""
        if not np.isfinite(self._begin_since):
            return np.zeros(len(rows), np.bool_)
        is_recorded = ~self._rows["told"][rows]
        return is_recorded & (self._rows["counted_at"][rows] >= self._begin_since)

    def _renumber(
        self, rows: _Rows, counts: npt.NDArray[np.int64], chosen: npt.NDArray[np.bool_]
    ) -> None:
        """Count services from another number; what was missing stays so."""
        again, count = rows[chosen], counts[chosen]
        if len(again):
            self._leave(again)
            for name in ("highest", "floor", "split"):
                self._rows[name][again] = count

    def _leave(self, rows: _Rows) -> None:
        """Ask for no count any more of those so far; what is missing among them stays so."""
        self._merge(rows)
        all_rows = self._rows
        all_rows["misses_older"][rows] |= self._missing(rows) != 0
        all_rows["seen"][rows] = 0
        all_rows["floor"][rows] = all_rows["highest"][rows]

    def begin_anew(self, since_seconds: float) -> None:
        """Take what slots tell from here on for the beginning.

        So must a reader that begins, or was held up: what it missed was told. What was missing
        before stays so until a sweep.

        :param since_seconds: since the epoch; what was heard before it is no beginning, for
            what was heard soon behind it may have been overwritten
        """
        self._begin_since = since_seconds
        begun = np.flatnonzero(self._rows["begun"])
        self._leave(begun)
        self._rows["begun"][begun] = False

    def begin_no_later(self, since_seconds: float) -> None:
        """Look back to an earlier moment than was said, for the clock of who said it was ahead."""
        self._begin_since = min(self._begin_since, since_seconds)

    def _raise(
        self, rows: _Rows, counts: npt.NDArray[np.int64], version: int, now_seconds: float
    ) -> None:
        """Take higher counts of services that are begun."""
        all_rows = self._rows
        before = all_rows["highest"][rows]
        step = counts - before
        missing = self._missing(rows)
        falls = missing & ~_lowest_bits(WINDOW - step)
        is_gap = step > 1
        # Of the upper group there is one slot: what another shows, or what no bit stands for
        # any more, needs it to be merged.
        upper = missing & _lowest_bits(before - 1 - all_rows["split"][rows])
        self._merge(rows[(upper != 0) & (is_gap | ((falls & upper) != 0))])
        all_rows["misses_older"][rows] |= falls != 0
        gaps = rows[is_gap]
        all_rows["upper_version"][gaps] = version
        all_rows["upper_since"][gaps] = now_seconds
        all_rows["is_incomplete"][gaps] = True
        seen = _shifted(all_rows["seen"][rows], step)
        own = np.where(step <= WINDOW, _shifted(np.full(len(rows), _ONE), step - 1), 0)
        all_rows["seen"][rows] = seen | own.astype(np.uint64)
        all_rows["highest"][rows] = counts
        # Of a gap that is wider than the window a part has no bit from the beginning.
        wide = rows[step > WINDOW + 1]
        if len(wide):
            self._merge(wide)
            all_rows["misses_older"][wide] = True

    def _merge(self, rows: _Rows) -> None:
        """Make one group of both, of services that are begun."""
        all_rows = self._rows
        highest = all_rows["highest"][rows]
        missing = self._missing(rows)
        lower, upper = self._groups(rows, missing)
        since, later = all_rows["lower_since"][rows], all_rows["upper_since"][rows]
        version = all_rows["lower_version"][rows], all_rows["upper_version"][rows]
        all_rows["lower_since"][rows] = np.where(lower, since, later)
        all_rows["lower_version"][rows] = np.where(upper, np.maximum(*version), version[0])
        all_rows["split"][rows] = highest

    def _missing(self, rows: _Rows) -> _Bits:
        """Return bits of the counts that were not seen."""
        all_rows = self._rows
        asked = all_rows["highest"][rows] - 1 - all_rows["floor"][rows]
        return ~all_rows["seen"][rows] & _lowest_bits(asked)

    def _groups(
        self, rows: _Rows, missing: _Bits
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return whether counts of the lower and of the upper group are missing."""
        all_rows = self._rows
        above = _lowest_bits(all_rows["highest"][rows] - 1 - all_rows["split"][rows])
        lower = all_rows["misses_older"][rows] | ((missing & ~above) != 0)
        return lower, (missing & above) != 0

    def settle(self, cell: str, version: int) -> None:
        """Take what slots up to a version showed to be missing in a cell for made good.

        :param version: of the back end's head when a sweep of the cell began
        """
        rows = np.flatnonzero(self._rows["is_incomplete"])
        rows = rows[self._rows["cell"][rows] == self._cells.get(cell, -1)]
        all_rows = self._rows
        settled = rows[all_rows["lower_version"][rows] <= version]
        all_rows["misses_older"][settled] = False
        floor = np.maximum(all_rows["floor"][settled], all_rows["split"][settled])
        all_rows["floor"][settled] = floor
        both = settled[all_rows["upper_version"][settled] <= version]
        all_rows["floor"][both] = all_rows["highest"][both]
        all_rows["split"][both] = all_rows["highest"][both]
        self._look_again(rows)

    def _look_again(self, rows: _Rows) -> None:
        """Note of which of some services something is missing still."""
        lower, upper = self._groups(rows, self._missing(rows))
        self._rows["is_incomplete"][rows] = lower | upper

    def unreported(self, now_seconds: float) -> dict[str, int]:
        """Return by cell how many services have heartbeats that nobody reported.

        :param now_seconds: by the clock of :meth:`take`
        """
        rows = np.flatnonzero(self._rows["is_incomplete"])
        if not len(rows):
            return {}
        self._look_again(rows)
        all_rows = self._rows
        lower, upper = self._groups(rows, self._missing(rows))
        until = now_seconds - self._grace_seconds
        lasts = (lower & (all_rows["lower_since"][rows] < until)) | (
            upper & (all_rows["upper_since"][rows] < until)
        )
        sums = np.bincount(all_rows["cell"][rows[lasts]], minlength=len(self._cells))
        return {cell: int(sums[code]) for cell, code in self._cells.items() if sums[code]}

    def take_touched(self) -> _Rows:
        """Return the places of which something else may be told than at the last call."""
        touched, self._touched = self._touched, []
        return np.unique(np.concatenate(touched)) if touched else np.zeros(0, np.intp)

    def last_heard(self, places: _Rows | None = None) -> LastHeard:
        """Return what is known now; copies.

        :param places: of which; None: of all services that journals may tell of
        """
        if places is None:
            places = np.array([at for at in self.places.values() if at not in self._twins], np.intp)
        rows = self._rows
        return LastHeard(
            [self._keys[place] for place in places.tolist()],
            rows["turn"][places],
            rows["highest"][places],
            rows["heard_at"][places],
            rows["heard_version"][places],
        )


def _lowest_bits(count: npt.NDArray[np.int64]) -> _Bits:
    """Return numbers with so many of their lowest bits set; none below 0, all from 64 on."""
    kept = np.clip(count, 0, WINDOW)
    # A shift by 64 is not defined.
    bits = (_ONE << np.minimum(kept, WINDOW - 1).astype(np.uint64)) - _ONE
    return np.where(kept == WINDOW, _ALL, bits)


def _shifted(bits: _Bits, by: npt.NDArray[np.int64]) -> _Bits:
    """Return numbers shifted to the left; nothing is left from 64 on."""
    kept = np.minimum(by, WINDOW - 1).astype(np.uint64)
    return np.where(by >= WINDOW, np.uint64(0), bits << kept)
