# SPDX-License-Identifier: Apache-2.0
"""Decides where servers go: all hosts in, one request's plan out.

One lock guards the frame and what was made of it. Feeding and planning take
it; a plan takes it again only for choices beyond the first few. Nova's own
objects are never asked while it is held.

What requests of a signature share is neither copied nor changed by them, and
brought to the present by steps made at present. A request that was planned
earlier may have another signature by now (an aggregate was given to a project, a
member of its group moved): with the steps it began with it would write its own
answers where others look theirs up. So it keeps none, and asks for its hosts
anew each time it takes the lock.
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import decision_settings
from nova_nodb_scheduler.scheduling.frame import host_facts, host_frame
from nova_nodb_scheduler.scheduling.pipeline import (
    candidates,
    chosen_hosts,
    decision_steps,
    evaluation,
    host_choosers,
    planning,
    plugin_contract,
    refusal_counts,
    shortlist,
    weighing,
)


class SharedHosts:
    """Hosts by the scores that all requests of a signature share, as one request sees them.

    Each call takes the lock and sees the hosts as they are then: by the ranking as long as
    the lock is held that it was looked up under, and after :meth:`let_go` from the start.

    :param ranked: of a signature, up to date
    :param steps: the request's, made at present
    :param left_out: rows that the request ignores
    :param present: where the request may go at a later time; called under the lock
    """

    def __init__(
        self,
        lock: contextlib.AbstractContextManager[bool],
        frame: host_frame.HostFrame,
        ranked: weighing.Ranking,
        steps: decision_steps.DecisionSteps,
        left_out: Collection[int],
        present: Callable[[], chosen_hosts.HostSource],
        *,
        shuffled: bool,
        rng: random.Random,
    ) -> None:
        self._lock = lock
        self._frame = frame
        self._ranked: weighing.Ranking | None = ranked
        self._steps = steps
        self._left_out = left_out
        self._present = present
        self._shuffled = shuffled
        self._rng = rng

    def let_go(self) -> None:
        """Say that the lock is about to be given up."""
        self._ranked = None

    def best_first(self, count: int, passed_over: Collection[str]) -> list[chosen_hosts.Choice]:
        """Return up to ``count`` of the best; none whose uuid is passed over."""
        with self._lock:
            ranked = self._ranked
            if ranked is None:
                return self._present().best_first(count, passed_over)
            rows = ranked.best_first(self._rng, shuffled=self._shuffled)
            return self._choices(ranked, rows, count, passed_over)

    def in_cell(
        self, cell: str, count: int, passed_over: Collection[str]
    ) -> list[chosen_hosts.Choice]:
        """The same of one cell."""
        with self._lock:
            ranked = self._ranked
            if ranked is None:
                return self._present().in_cell(cell, count, passed_over)
            rows = self._frame.rows_of_cell(cell)
            wanted = count + len(passed_over) + len(self._left_out)
            best = ranked.among(rows, wanted, self._rng)
            return self._choices(ranked, best, count, passed_over)

    def at_random(
        self, count: int, passed_over: Collection[str], cell: str | None
    ) -> list[chosen_hosts.Choice]:
        """Return up to ``count`` others, each drawn from all that are left."""
        with self._lock:
            ranked = self._ranked
            if ranked is None:
                return self._present().at_random(count, passed_over, cell)
            among = None if cell is None else self._frame.rows_of_cell(cell)
            return self._choices(ranked, ranked.at_random(self._rng, among), count, passed_over)

    def share(self, uuid: str) -> tuple[chosen_hosts.WeightShare, ...]:
        """Not known here: an explained plan has a shortlist of its own."""
        raise NotImplementedError

    def _choices(
        self,
        ranked: weighing.Ranking,
        rows: Iterable[int],
        count: int,
        passed_over: Collection[str],
    ) -> list[chosen_hosts.Choice]:
        found: list[chosen_hosts.Choice] = []
        for row in rows:
            if len(found) == count:
                break
            if row in self._left_out:
                continue
            place = self._frame.place(row)
            if place.uuid in passed_over:
                continue
            own = self._steps.candidates
            found.append(
                chosen_hosts.Choice(
                    row=row,
                    uuid=place.uuid,
                    cell=place.cell,
                    host=place.host,
                    node=place.node,
                    score=ranked.scores.item(row),
                    allocation_requests=(
                        own.allocation_requests(self._frame, row, passed=True) if own else ()
                    ),
                )
            )
        return found


_CACHE_BYTES = 256 * 1024 * 1024
_BEST = host_choosers.Chooser.BEST


@attrs.frozen
class _Limits:
    """Hosts that a caller wants a plan of, beside what the request itself says."""

    among: Collection[str] | None
    without: Collection[str]

    @property
    def are_set(self) -> bool:
        return self.among is not None or bool(self.without)

    def among_rows(
        self, frame: host_frame.HostFrame, named: npt.NDArray[np.intp] | None
    ) -> npt.NDArray[np.intp] | None:
        """Return the rows that are meant by the request and by the caller; None for all."""
        if self.among is None:
            return named
        rows = np.array(sorted(_rows_of(frame, self.among)), np.intp)
        return rows if named is None else rows[np.isin(rows, named)]

    def rows_without(self, frame: host_frame.HostFrame) -> set[int]:
        return _rows_of(frame, self.without)


def _rows_of(frame: host_frame.HostFrame, uuids: Collection[str]) -> set[int]:
    return {row for uuid in uuids if (row := frame.row_of(uuid)) is not None}


class Engine:
    """All hosts, the filters and weighers, and the signatures that come again.

    :param filters: in enabled order; a name stands for one that only Nova's
        objects can run
    :param weighers: in the order of Nova's handler; names likewise
    :param cache_bytes: what the kept signatures may take
    """

    def __init__(
        self,
        settings: decision_settings.SchedulingOptions,
        filters: Sequence[plugin_contract.Filter | str],
        weighers: Sequence[plugin_contract.Weigher | str],
        *,
        frame: host_frame.HostFrame,
        rng: random.Random,
        cache_bytes: int = _CACHE_BYTES,
    ) -> None:
        self.settings = settings
        self.frame = frame
        self.lock = threading.RLock()
        self.counters = evaluation.EngineCounters()
        self._steps: planning.Steps = functools.partial(
            decision_steps.steps, tuple(filters), tuple(weighers)
        )
        self._rng = rng
        self._signatures = evaluation.SignatureCache(cache_bytes, self.counters)
        self._choosers = host_choosers.FlavorChoosers(host_choosers.Chooser(settings.choice))
        self._holds: decision_steps.Holds = {}

    # -- feeding ------------------------------------------------------------------

    def put(self, facts: host_facts.HostFacts) -> int:
        """Take a host in or over; return its row."""
        with self.lock:
            return self.frame.put(facts)

    def set_aggregates(self, aggregates: Iterable[host_facts.HostAggregate]) -> None:
        """Take Nova's aggregates over, see :meth:`.host_frame.HostFrame.set_aggregates`."""
        with self.lock:
            self.frame.set_aggregates(aggregates)

    def use(self, uuid: str, resources: Mapping[str, int]) -> None:
        """Add to what a host's provider has in use; negative amounts give back."""
        with self.lock:
            row = self.frame.row_of(uuid)
            if row is not None:
                self.frame.use(row, resources)
                self.frame.touch((row,))

    def tick(self, now_seconds: float) -> None:
        """Say what time it is: services that fell silent are down."""
        with self.lock:
            self.frame.tick(now_seconds, self.settings.service_down_time)

    def hold(self, holds: decision_steps.Holds) -> None:
        """Propose hosts to nobody but the servers that they are held for, from now on.

        A plan that was made before may still propose them. What is held counts as free.

        :param holds: all of them, in the place of the former ones
        """
        with self.lock:
            self._holds = dict(holds)

    def figures(self) -> dict[str, float]:
        """Return what was counted so far, and what is kept; any thread, without the lock."""
        kept = self._signatures
        return {
            **attrs.asdict(self.counters),
            "kept": len(kept),
            "kept_bytes": kept.nbytes,
            "unknown_choices": self._choosers.unknown,
        }

    # -- deciding -----------------------------------------------------------------

    def allocation_requests(
        self, request: requests.Request, uuid: str
    ) -> tuple[plugin_contract.AllocationRequest, ...]:
        """Return what Placement would offer of one host now."""
        with self.lock:
            row = self.frame.row_of(uuid)
            if row is None or not request.queries:
                return ()
            return candidates.Candidates(request.queries).allocation_requests(self.frame, row)

    def passing(self, request: requests.Request) -> npt.NDArray[np.intp]:
        """Return the rows of hosts that pass all steps on columns now, held ones among them.

        A pass over all hosts, of which nothing is kept. With the lock held the rows are
        those of the frame; what only Nova's objects could tell is not asked.
        """
        with self.lock:
            steps = self._steps(request, self.frame, 0)
            rows = decision_steps.named_rows(request, self.frame, _trees(steps))
            if rows is None:
                rows = np.arange(self.frame.rows)
            stage = evaluation.stages(steps, self.frame, rows)
            ignored = np.array(sorted(decision_steps.ignored_rows(request, self.frame)), np.intp)
            found: npt.NDArray[np.intp] = rows[stage == len(steps.filters) + 2]
            return found[~np.isin(found, ignored)]

    def placement_parts(self, request: requests.Request) -> tuple[decision_steps.FilterCount, ...]:
        """Return what of a request's candidates refuses how many hosts now.

        For somebody who asks why: it looks at all hosts, some times over.
        """
        with self.lock:
            steps = self._steps(request, self.frame, 0)
            rows = decision_steps.named_rows(request, self.frame, _trees(steps))
            if rows is None:
                rows = np.arange(self.frame.rows)
            ignored = np.array(sorted(self._left_out(request)), np.intp)
            return refusal_counts.of_placement(steps, self.frame, rows[~np.isin(rows, ignored)])

    def may_take(self, request: requests.Request, uuids: Iterable[str]) -> frozenset[str]:
        """Return the hosts, of some, that a request may go to once there is room on them.

        Room is what others hold, and places in groups. A filter that is not asked again for a
        request's second server looks at neither.

        :param uuids: of nodes; those that are not known are left out
        """
        with self.lock:
            steps = self._steps(request, self.frame, 0)
            found = {row: uuid for uuid in uuids if (row := self.frame.row_of(uuid)) is not None}
            rows = self._rows_left(found.keys(), request, _trees(steps))
            passing = refusal_counts.but_for_room(steps, self.frame, rows)
            for own, _ in steps.filters:
                if own.once_per_request:
                    passing &= own.mask(steps.request, self.frame, rows)
            return frozenset(found[row] for row in rows[passing].tolist())

    def counts_among(
        self, request: requests.Request, uuids: Collection[str]
    ) -> tuple[tuple[decision_steps.FilterCount, ...], tuple[str, ...]]:
        """Return how many of the hosts that Placement offered each filter leaves now.

        :param uuids: all providers of the offer
        :returns: the counts, the offer's first, and names of filters that cannot be counted
            since only Nova's objects run them
        """
        with self.lock:
            steps = self._steps(attrs.evolve(request, queries=None), self.frame, 0)
            known = {row for uuid in uuids if (row := self.frame.row_of(uuid)) is not None}
            offer = decision_steps.FilterCount(
                decision_steps.PLACEMENT, len(self.frame), len(known)
            )
            rows = self._rows_left(known, request, None)
            stage = evaluation.stages(steps, self.frame, rows)
            histogram = np.bincount(stage, minlength=len(steps.filters) + 3).tolist()
            before = len(known) if len(rows) < len(known) else None
            counts = refusal_counts.without_candidates(_counts(steps, histogram, before))
            return _until_nobody((offer, *counts)), steps.filters_on_objects

    def plan(
        self,
        request: requests.Request,
        objects: plugin_contract.HostObjects | None = None,
        *,
        servers: int = 1,
        explain: bool = False,
        among: Collection[str] | None = None,
        without: Collection[str] = (),
    ) -> planning.Plan:
        """Return the hosts for a request, in the order in which they are to be tried.

        :param objects: needed where a filter or weigher has no columns for it
        :param servers: how many the plan is to place
        :param explain: keep what each weigher gave
        :param among: uuids of the only hosts to look at; None for all
        :param without: uuids of hosts that are left out besides
        :raises RuntimeError: objects are needed, and there are none
        """
        with self.lock:
            steps = self._steps(request, self.frame, 0)
            if objects is None and not steps.on_columns:
                raise RuntimeError(
                    "The request needs Nova's own code for "
                    f"{', '.join(_names_on_objects(steps))}: plan it with host objects."
                )
            limits = _Limits(among, without)
            source, counts = self._source(steps, servers > 1 or explain, explain, limits)
            following = None
            if servers > 1:
                following = planning.FollowingServers(self.lock, self.frame.fork(), self._steps)
            make = functools.partial(
                planning.Plan,
                request,
                self.settings,
                self._rng,
                source,
                following=following,
                objects=objects,
                explained=explain,
                is_told_apart=steps.told_apart,
                # Who asks why wants to see all hosts by their weights.
                chooser=_BEST if explain else self._choosers.of(request),
            )
            if steps.on_columns:
                made = make(_until_nobody(counts))
                if isinstance(source, SharedHosts):
                    source.let_go()
                return made
        assert objects is not None
        assert isinstance(source, shortlist.Shortlist)
        return make(_until_nobody(counts + source.ask(objects, 0)))

    def _source(
        self, steps: decision_steps.DecisionSteps, own: bool, whole: bool, limits: _Limits
    ) -> tuple[chosen_hosts.HostSource, tuple[decision_steps.FilterCount, ...]]:
        named = decision_steps.named_rows(steps.request, self.frame, _trees(steps))
        ignored = self._left_out(steps.request)
        if limits.are_set:
            named = limits.among_rows(self.frame, named)
            ignored |= limits.rows_without(self.frame)
            # Whoever looks at the plan later is to see no other hosts: it has a copy.
            own = True
        if named is not None:
            rows = np.array([row for row in named.tolist() if row not in ignored], np.intp)
            stage = evaluation.stages(steps, self.frame, rows)
            passing = stage == len(steps.filters) + 2
            histogram = np.bincount(stage, minlength=len(steps.filters) + 3).tolist()
            counts = _counts(steps, histogram, len(self.frame))
            return self._shortlist(steps, rows[passing], whole), counts
        made = self._evaluation(steps)
        histogram = list(made.histogram)
        before = sum(histogram[1:])
        left_out = np.array(sorted(ignored), np.intp)
        for stage_of_row in made.stage[left_out].tolist():
            histogram[stage_of_row] -= 1
        counts = _counts(
            steps,
            histogram,
            before if len(left_out) else None,
            decision_steps.REQUESTED_HOSTS
            if steps.request.ignore_hosts
            else decision_steps.HELD_HOSTS,
        )
        if own or not steps.on_columns:
            return self._copied(made, steps, left_out, whole), counts
        return self._shared(made, steps, left_out), counts

    def _rows_left(
        self, rows: Set[int], request: requests.Request, trees: list[str] | None
    ) -> npt.NDArray[np.intp]:
        """Return those of some rows, in order, that a request names and does not ignore.

        :param trees: see :func:`decision_steps.named_rows`
        """
        named = decision_steps.named_rows(request, self.frame, trees)
        left = rows if named is None else rows & set(named.tolist())
        return np.array(sorted(left - decision_steps.ignored_rows(request, self.frame)), np.intp)

    def _left_out(self, request: requests.Request) -> set[int]:
        """Return the rows that a request does not go to whatever the filters say."""
        ignored = decision_steps.ignored_rows(request, self.frame)
        if self._holds:
            ignored |= decision_steps.held_rows(self._holds, request, self.frame)
        return ignored

    def _present(self, planned: decision_steps.DecisionSteps) -> chosen_hosts.HostSource:
        """Return where a request may go now that was planned earlier.

        :param planned: its steps of then; they may tell it itself where to go, and nobody else
        """
        steps = self._steps(planned.request, self.frame, 0)
        left_out = np.array(sorted(self._left_out(steps.request)), np.intp)
        if not steps.on_columns:
            # Only Nova's objects could tell the hosts apart that came, and under the
            # lock they are not asked: it goes on by what it was planned with, apart.
            return self._copied(evaluation.Evaluation(planned, self.frame), planned, left_out)
        return self._shared(self._evaluation(steps), steps, left_out)

    def _shared(
        self,
        made: evaluation.Evaluation,
        steps: decision_steps.DecisionSteps,
        left_out: npt.NDArray[np.intp],
    ) -> chosen_hosts.HostSource:
        """Return a signature's hosts as they are shared, or a copy where scores would differ."""
        if not made.scales_without(left_out):
            return self._copied(made, steps, left_out)
        return SharedHosts(
            self.lock,
            self.frame,
            made.ranked(self.counters),
            steps,
            frozenset(left_out.tolist()),
            functools.partial(self._present, steps),
            shuffled=self.settings.shuffle_best_same_weighed_hosts,
            rng=self._rng,
        )

    def _copied(
        self,
        made: evaluation.Evaluation,
        steps: decision_steps.DecisionSteps,
        left_out: npt.NDArray[np.intp],
        whole: bool = False,
    ) -> shortlist.Shortlist:
        passing = made.stage == made.last
        passing[left_out] = False
        return self._shortlist(steps, np.flatnonzero(passing), whole)

    def _shortlist(
        self, steps: decision_steps.DecisionSteps, rows: npt.NDArray[np.intp], whole: bool
    ) -> shortlist.Shortlist:
        return shortlist.Shortlist(
            steps,
            self.frame,
            rows,
            shuffled=self.settings.shuffle_best_same_weighed_hosts,
            rng=self._rng,
            lazily=self.settings.host_objects == "lazy",
            whole=whole,
        )

    def _evaluation(self, steps: decision_steps.DecisionSteps) -> evaluation.Evaluation:
        """Return what a signature makes of all hosts now: brought to the present, or new.

        :param steps: made at present
        """
        signature = steps.signature
        known = self._signatures.get(signature)
        if known is not None and known.rows == self.frame.rows:
            rows = self.frame.changed_since(known.sequence)
            if rows is not None:
                self.counters.rows_patched += len(rows)
                try:
                    has_grown = known.patch(steps, self.frame, rows)
                except BaseException:
                    # It is neither of before nor of now, and the next patch would not tell.
                    self._signatures.drop(signature)
                    raise
                known.sequence = self.frame.sequence
                if has_grown:
                    self._signatures.count_again(signature)
                return known
        self.counters.cold_evaluations += 1
        made = evaluation.Evaluation(steps, self.frame)
        self._signatures.offer(signature, made)
        return made


def _trees(steps: decision_steps.DecisionSteps) -> list[str] | None:
    return steps.candidates.trees() if steps.candidates is not None else None


def _names_on_objects(steps: decision_steps.DecisionSteps) -> list[str]:
    weighers = [each for each in steps.weighers if isinstance(each, str)]
    return [*steps.filters_on_objects, *weighers]


def _counts(
    steps: decision_steps.DecisionSteps,
    histogram: list[int],
    before: int | None,
    first: str = decision_steps.REQUESTED_HOSTS,
) -> tuple[decision_steps.FilterCount, ...]:
    """Return the counts of the steps on columns.

    :param before: hosts before those the request names or ignores were picked;
        None where it does neither
    :param first: how that step is named
    """
    left = sum(histogram[1:])
    counts = []
    if before is not None:
        counts.append(decision_steps.FilterCount(first, before, left))
    names = [decision_steps.PLACEMENT, *(own.name for own, _ in steps.filters)]
    for place, name in enumerate(names, start=1):
        after = left - histogram[place]
        counts.append(decision_steps.FilterCount(name, left, after))
        left = after
    return tuple(counts)


def _until_nobody(
    counts: tuple[decision_steps.FilterCount, ...],
) -> tuple[decision_steps.FilterCount, ...]:
    for place, count in enumerate(counts, start=1):
        if not count.after:
            return counts[:place]
    return counts
