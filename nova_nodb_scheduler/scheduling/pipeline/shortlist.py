# SPDX-License-Identifier: Apache-2.0
"""The hosts one request is left with, copied out, so that it may go its own way.

For what cannot share an evaluation: Nova's own objects, several servers in one
request, hosts named by the request, explanations. Nova's own filters are asked
lazily: about a few hosts at a time, best first, where each host is judged by itself.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Hashable, Iterator, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling.frame import host_frame
from nova_nodb_scheduler.scheduling.pipeline import (
    candidates,
    chosen_hosts,
    decision_steps,
    evaluation,
    plugin_contract,
    weighing,
)


def unsettled(
    ends: Sequence[plugin_contract.FloatArray], passed: plugin_contract.BoolArray, at_once: int
) -> npt.NDArray[np.intp]:
    """Return places of hosts to ask; none where a host that passed is greatest at each end.

    :param ends: numbers of the hosts that did not fail, none of them NaN, whose
        greatest is looked for; each of shape (n,)
    :param passed: which hosts are known to pass, shape (n,)
    :param at_once: how many to ask for each end, the greatest first
    """
    open_ends, tops = [], []
    for end in ends:
        is_top = end == end.max()
        if not (is_top & passed).any():
            open_ends.append(end)
            tops.append(is_top)
    if not open_ends:
        return np.zeros(0, np.intp)
    # Of equals the one that is greatest at other ends, too: one question for several.
    shared = np.sum(tops, axis=0)
    found: set[int] = set()
    for end, is_top in zip(open_ends, tops, strict=True):
        if found and is_top[list(found)].any():
            continue
        found.add(int(np.where(is_top, shared, -1).argmax()))
        if at_once > 1:
            unknown = np.flatnonzero(~passed)
            count = min(at_once, len(unknown))
            found.update(unknown[np.argpartition(-end[unknown], count - 1)[:count]].tolist())
    return np.array(sorted(found), np.intp)


class LazyFilters:
    """The hosts of one request: each is asked once for a server, and only if somebody wants it.

    One thread; asking may block.

    :ivar refused: who failed, for whichever server; as Nova, which goes on
        with the hosts that are left, it is not asked for the next
    """

    def __init__(self, objects: plugin_contract.HostObjects, names: Sequence[str]) -> None:
        """Ask some filters; hosts that are first asked for a later server pass these too."""
        self._objects = objects
        self._first_names = tuple(names)
        self._names = self._first_names
        self._index = 0
        self._known: dict[str, bool] = {}
        self._seen: set[str] = set()
        self._counts: dict[str, list[int]] = {}
        self.refused: set[str] = set()

    def begin(self, names: Sequence[str], index: int) -> None:
        """Go on to a server; what was said for the one before holds no more."""
        self._names, self._index = tuple(names), index
        self._known.clear()
        self._counts = {name: [0, 0] for name in names}

    @property
    def counts(self) -> tuple[decision_steps.FilterCount, ...]:
        """How many hosts each filter was asked about for this server, and how many it passed."""
        return tuple(
            decision_steps.FilterCount(name, before, after)
            for name, (before, after) in self._counts.items()
            if before
        )

    def passing(self, uuids: Sequence[str]) -> frozenset[str]:
        """Return which hosts pass all filters, and ask for those that nobody asked for yet."""
        new = [uuid for uuid in uuids if uuid not in self._known]
        if self._index:
            # Some filters are asked for the first server of a request alone.
            later = [uuid for uuid in new if uuid in self._seen]
            new = [uuid for uuid in new if uuid not in self._seen]
            self._ask(later, self._names, self._index)
        self._ask(new, self._first_names, 0)
        return frozenset(uuid for uuid in uuids if self._known[uuid])

    def _ask(self, uuids: Sequence[str], names: Sequence[str], index: int) -> None:
        left: Sequence[str] = uuids
        for name in names:
            if not left:
                break
            passed = frozenset(self._objects.filter(name, left, index))
            count = self._counts.setdefault(name, [0, 0])
            count[0] += len(left)
            left = [uuid for uuid in left if uuid in passed]
            count[1] += len(left)
        self._seen.update(uuids)
        self._known.update(dict.fromkeys(uuids, False))
        self._known.update(dict.fromkeys(left, True))
        self.refused.update(set(uuids).difference(left))


#: Hosts that objects are asked about together, at first; twice as many each time.
_TOGETHER = 4


@attrs.define(eq=False)
class _Weights:
    """One weigher over the hosts of a shortlist."""

    name: str
    key: Hashable
    bounds: weighing.Bounds
    raw: plugin_contract.FloatArray
    multipliers: weighing.Multiplier

    def keep(self, which: plugin_contract.BoolArray) -> None:
        self.raw = self.raw[which]
        if isinstance(self.multipliers, np.ndarray):
            self.multipliers = self.multipliers[which]


class Shortlist:
    """Hosts that passed what columns can tell, then what objects say.

    Make, narrow and :meth:`follow` it under the engine's lock; :meth:`ask` the
    objects and take choices without.

    Objects are asked about all hosts, unless they can wait until somebody wants
    them: where each host is judged by itself, once those are found whose weights
    are the least and the greatest of all that pass, which no other's score then
    depends on; or where scores over all hosts are chosen (``lazily``). Then they
    are asked best first.
    """

    def __init__(
        self,
        steps: decision_steps.DecisionSteps,
        frame: host_frame.HostFrame,
        rows: npt.NDArray[np.intp],
        *,
        shuffled: bool,
        rng: random.Random,
        lazily: bool = False,
        whole: bool = False,
    ) -> None:
        """Copy out the hosts of some rows, which passed all steps on columns.

        :param lazily: scores are those of all hosts of these rows, whatever
            objects say of the others
        :param whole: ask objects about all of them in any case
        """
        self._steps = steps
        self._shuffled = shuffled
        self._rng = rng
        self.rows = rows
        self._places = np.array(frame.places_of(rows.tolist()) or [None], object)[: len(rows)]
        self._tenure = frame.tenure[rows]
        self._updated = frame.updated[rows]
        self._offers = np.ones((0, len(rows)), np.bool_)
        if steps.candidates is not None:
            self._offers = steps.candidates.offers(frame, rows)
        self._has_room = np.ones(len(rows), np.bool_)
        self._filter_keys = {own.name: key for own, key in steps.filters}
        self._weights: dict[str, _Weights] = {}
        for own, key in steps.weighers_on_columns:
            self._weights[own.name] = _weights(own, key, steps, frame, rows)
        self._objects: plugin_contract.HostObjects | None = None
        self._lazily = lazily
        self._whole = whole
        self._asking: LazyFilters | None = None
        self._some_wait = False
        self._ranking: weighing.Ranking | None = None
        self._scales: dict[str, tuple[_Weights, tuple[float, float] | None]] = {}

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def uuids(self) -> list[str]:
        return [place.uuid for place in self._places]

    # -- the next server of the request ---------------------------------------

    def follow(
        self,
        steps: decision_steps.DecisionSteps,
        frame: host_frame.HostFrame,
        consumed: Collection[int],
    ) -> tuple[decision_steps.FilterCount, ...]:
        """Filter and weigh again, for the next server, what is left.

        :param frame: a fork, from which the servers before have consumed
        :param consumed: rows that changed since
        """
        counts = []
        changed = np.isin(self.rows, np.fromiter(consumed, np.intp, len(consumed)))
        # A row may have changed hands since the plan was made.
        passing = frame.alive[self.rows] & (frame.tenure[self.rows] == self._tenure)
        for own, key in steps.filters:
            before = int(passing.sum())
            asked = changed if self._filter_keys.get(own.name, self) == key else passing
            passing[asked] &= own.mask(steps.request, frame, self.rows[asked])
            self._filter_keys[own.name] = key
            counts.append(decision_steps.FilterCount(own.name, before, int(passing.sum())))
        self._has_room[changed] = [
            self._room_left(frame, at) for at in np.flatnonzero(changed).tolist()
        ]
        known = {}
        for weigher, key in steps.weighers_on_columns:
            weights = self._weights.get(weigher.name)
            if weights is None or weights.key != key:
                weights = _weights(weigher, key, steps, frame, self.rows)
            elif changed.any():
                fresh = _weights(weigher, key, steps, frame, self.rows[changed])
                weights.raw[changed] = fresh.raw
                weights.multipliers = weighing.patched(
                    weights.multipliers, len(self), changed, fresh.multipliers
                )
            known[weigher.name] = weights
        self._weights = known
        self._steps = steps
        self._keep(passing)
        return tuple(counts)

    def _room_left(self, frame: host_frame.HostFrame, at: int) -> bool:
        own = self._steps.candidates
        places = np.flatnonzero(self._offers[:, at])
        if own is None or not len(places):
            return True
        # Nova claims the first allocation request of a host and no other.
        return own.has_room(frame, self.rows.item(at), places.item(0))

    # -- objects ----------------------------------------------------------------

    def ask(
        self, objects: plugin_contract.HostObjects, index: int
    ) -> tuple[decision_steps.FilterCount, ...]:
        """Narrow and weigh by Nova's own objects. May block: never under the lock.

        :return: counts of the filters on objects; none where some hosts can
            wait, see :attr:`asked`
        """
        names = self._steps.filters_on_objects
        self._objects = objects if names or self._some_wait else None
        counts: tuple[decision_steps.FilterCount, ...]
        if self._some_wait or (names and self._may_wait(objects)):
            counts = self._ask_some(objects, index)
        else:
            counts = self._ask_all(objects, index)
        if len(self) > 1:
            for each in self._steps.weighers:
                if isinstance(each, str):
                    said = objects.weigh(each, self.uuids)
                    if len(said.raw) != len(self):
                        raise ValueError(
                            f"{each} weighed {len(said.raw)} of {len(self)} hosts; "
                            "host objects give one number for each uuid."
                        )
                    bounds = (said.minval, said.maxval)
                    self._weights[each] = _Weights(each, None, bounds, said.raw, said.multipliers)
        return counts

    @property
    def asked(self) -> tuple[decision_steps.FilterCount, ...]:
        """Counts of the filters on objects where hosts can wait: of those asked so far."""
        return self._asking.counts if self._asking is not None and self._some_wait else ()

    def _ask_all(
        self, objects: plugin_contract.HostObjects, index: int
    ) -> tuple[decision_steps.FilterCount, ...]:
        counts = []
        for name in self._steps.filters_on_objects:
            before = len(self)
            if not before:
                break
            self._keep_hosts(frozenset(objects.filter(name, self.uuids, index)))
            counts.append(decision_steps.FilterCount(name, before, len(self)))
        return tuple(counts)

    def _may_wait(self, objects: plugin_contract.HostObjects) -> bool:
        """Tell whether the filters on objects look at each host by itself, and nothing else at all.

        Weighers on objects look at all hosts that pass.
        """
        return (
            not self._whole
            and len(self._steps.weighers_on_columns) == len(self._steps.weighers)
            and all(
                objects.is_apart(name, is_chosen=self._lazily)
                for name in self._steps.filters_on_objects
            )
        )

    def _ask_some(
        self, objects: plugin_contract.HostObjects, index: int
    ) -> tuple[decision_steps.FilterCount, ...]:
        names = self._steps.filters_on_objects
        if self._asking is None:
            self._asking = LazyFilters(objects, names)
        own = self._asking
        own.begin(names, index)
        if own.refused:
            self._keep(np.array([uuid not in own.refused for uuid in self.uuids], np.bool_))
        self._some_wait = self._lazily or self._find_extremes(own)
        if self._some_wait:
            return ()
        self._keep_hosts(own.passing(self.uuids))
        # All of them were asked: a later server finds those that passed.
        self._asking = None
        return own.counts

    def _find_extremes(self, own: LazyFilters) -> bool:
        """Drop hosts that fail until no score changes whichever others fail.

        A score depends on the other hosts by the least and the greatest weight
        of those that pass: from each end inward hosts are asked until one passes.

        :returns: False where some weight is no number, and has no place between ends
        """
        passed = np.zeros(len(self), np.bool_)
        at_once = 1
        while True:
            weights = self._ordered_weights()
            counting = [
                each
                for each, ends in zip(weights, self._scale(weights), strict=True)
                if ends is not None
            ]
            if not counting:
                # All weigh the same, or it does not count: of fewer hosts, too.
                return True
            if any(np.isnan(each.raw).any() for each in counting):
                return False
            ends = [each.raw for each in counting if each.bounds[1] is None]
            ends += [-each.raw for each in counting if each.bounds[0] is None]
            wanted = unsettled(ends, passed, at_once)
            if not len(wanted):
                if passed.sum() > 1:
                    return True
                # A host that is alone is not weighed: who else passes?
                wanted = np.flatnonzero(~passed)[:at_once]
            passing = own.passing([self._places[at].uuid for at in wanted])
            passed[wanted] = [self._places[at].uuid in passing for at in wanted]
            kept = np.ones(len(self), np.bool_)
            kept[wanted] = passed[wanted]
            if not kept.all():
                # Most often those beside a host that failed fail, too.
                at_once *= 2
                passed = passed[kept]
                self._keep(kept)

    def _keep_hosts(self, uuids: Collection[str]) -> None:
        self._keep(np.array([uuid in uuids for uuid in self.uuids], np.bool_))

    def _keep(self, which: plugin_contract.BoolArray) -> None:
        self._ranking = None
        if which.all():
            return
        self.rows = self.rows[which]
        self._places = self._places[which]
        self._tenure = self._tenure[which]
        self._updated = self._updated[which]
        self._offers = self._offers[:, which]
        self._has_room = self._has_room[which]
        for weights in self._weights.values():
            weights.keep(which)

    # -- choosing -----------------------------------------------------------------

    def best_first(self, count: int, passed_over: Collection[str]) -> list[chosen_hosts.Choice]:
        """Return up to ``count`` of the best; none whose uuid is passed over."""
        return self._choices(count, passed_over, None, drawn=False)

    def in_cell(
        self, cell: str, count: int, passed_over: Collection[str]
    ) -> list[chosen_hosts.Choice]:
        """The same of one cell."""
        return self._choices(count, passed_over, cell, drawn=False)

    def at_random(
        self, count: int, passed_over: Collection[str], cell: str | None
    ) -> list[chosen_hosts.Choice]:
        """Return up to ``count`` others, each drawn from all that are left."""
        return self._choices(count, passed_over, cell, drawn=True)

    def _choices(
        self, count: int, passed_over: Collection[str], cell: str | None, *, drawn: bool
    ) -> list[chosen_hosts.Choice]:
        ranked = self._ranked()
        found: list[chosen_hosts.Choice] = []
        wanted = (
            at
            for at in (
                ranked.at_random(self._rng)
                if drawn
                else ranked.best_first(self._rng, shuffled=self._shuffled)
            )
            if self._places[at].uuid not in passed_over
            and (cell is None or self._places[at].cell == cell)
        )
        for at in self._passing(wanted, count):
            place = self._places[at]
            allocation_requests = self._allocation_requests(at)
            if self._steps.candidates is not None and not allocation_requests:
                continue
            found.append(
                chosen_hosts.Choice(
                    row=self.rows.item(at),
                    uuid=place.uuid,
                    cell=place.cell,
                    host=place.host,
                    node=place.node,
                    score=ranked.scores.item(at),
                    allocation_requests=allocation_requests,
                )
            )
            # Before the next one is taken, for which more would be asked.
            if len(found) == count:
                break
        return found

    def _passing(self, wanted: Iterator[int], count: int) -> Iterator[int]:
        """Yield those that pass the filters on objects; asks about a few more than are taken."""
        if self._asking is None or not self._some_wait:
            yield from wanted
            return
        together = max(count, _TOGETHER)
        while some := list(itertools.islice(wanted, together)):
            passing = self._asking.passing([self._places[at].uuid for at in some])
            yield from (at for at in some if self._places[at].uuid in passing)
            together *= 2

    def _allocation_requests(self, at: int) -> tuple[plugin_contract.AllocationRequest, ...]:
        uuid = self._places[at].uuid
        own = self._steps.candidates
        if own is None:
            return ()
        if self._objects is not None:
            return tuple(self._objects.allocation_requests(uuid))
        offered = zip(own.queries, self._offers[:, at].tolist(), strict=True)
        return tuple(candidates.allocation_request(query, uuid) for query, yes in offered if yes)

    def _ranked(self) -> weighing.Ranking:
        if self._ranking is None:
            weights = self._ordered_weights()
            scale = self._scale(weights)
            self._scales = {
                each.name: (each, ends) for each, ends in zip(weights, scale, strict=True)
            }
            scores = weighing.scores(
                [each.raw for each in weights],
                [each.multipliers for each in weights],
                scale,
                len(self),
            )
            choosable = self._has_room & self._updated
            if self._steps.candidates is not None:
                choosable &= self._offers.any(axis=0)
            self._ranking = weighing.Ranking(evaluation.rankable(scores, choosable))
        return self._ranking

    def _scale(self, weights: list[_Weights]) -> weighing.Scale:
        return weighing.scale(
            [each.bounds for each in weights],
            [float(np.fmin.reduce(each.raw, initial=np.inf)) for each in weights],
            [float(np.fmax.reduce(each.raw, initial=-np.inf)) for each in weights],
            [each.multipliers for each in weights],
            len(self),
        )

    def _ordered_weights(self) -> list[_Weights]:
        if len(self) <= 1:
            return []
        return [
            self._weights[each if isinstance(each, str) else each[0].name]
            for each in self._steps.weighers
        ]

    def share(self, uuid: str) -> tuple[chosen_hosts.WeightShare, ...]:
        """Return what each weigher gave to a host."""
        self._ranked()
        at = self.uuids.index(uuid)
        shares = []
        for name, (weights, ends) in self._scales.items():
            raw = weights.raw.item(at)
            own = weights.multipliers
            multiplier = own.item(at) if isinstance(own, np.ndarray) else own
            normalised = 0.0 if ends is None else (raw - ends[0]) / ends[1]
            shares.append(chosen_hosts.WeightShare(name, raw, normalised, multiplier))
        return tuple(shares)


def _weights(
    own: plugin_contract.Weigher,
    key: Hashable,
    steps: decision_steps.DecisionSteps,
    frame: host_frame.HostFrame,
    rows: npt.NDArray[np.intp],
) -> _Weights:
    bounds = (own.minval, own.maxval)
    raw = weighing.clipped(own.raw(steps.request, frame, rows), bounds)
    multiplier = own.multiplier(steps.request, frame, rows)
    if not isinstance(multiplier, np.ndarray):
        multiplier = float(multiplier)
    return _Weights(own.name, key, bounds, np.array(raw, np.float64), multiplier)
