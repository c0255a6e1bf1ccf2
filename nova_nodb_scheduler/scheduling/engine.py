# SPDX-License-Identifier: Apache-2.0
"""Decides where servers go: all hosts in, one request's plan out.

One lock guards the frame and what was made of it. Feeding and planning take
it; a plan takes it again only for choices beyond the first few. Nova's own
objects are never asked while it is held.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import (
    candidates,
    choice,
    contract,
    evaluation,
    host_facts,
    host_frame,
    options,
    pipeline,
    planning,
    refusals,
    shared_hosts,
    shortlist,
    signatures,
)

_CACHE_BYTES = 256 * 1024 * 1024


class Engine:
    """All hosts, the filters and weighers, and the signatures that come again.

    :param filters: in enabled order; a name stands for one that only Nova's
        objects can run
    :param weighers: in the order of Nova's handler; names likewise
    :param cache_bytes: what the kept signatures may take
    """

    def __init__(
        self,
        settings: options.SchedulingOptions,
        filters: Sequence[contract.Filter | str],
        weighers: Sequence[contract.Weigher | str],
        *,
        frame: host_frame.HostFrame,
        rng: random.Random,
        cache_bytes: int = _CACHE_BYTES,
    ) -> None:
        self.settings = settings
        self.frame = frame
        self.lock = threading.RLock()
        self.counters = evaluation.Counters()
        self._filters = tuple(filters)
        self._weighers = tuple(weighers)
        self._rng = rng
        self._signatures = signatures.Signatures(cache_bytes, self.counters)

    # -- feeding ------------------------------------------------------------------

    def put(self, facts: host_facts.HostFacts) -> int:
        """Take a host in or over; return its row."""
        with self.lock:
            return self.frame.put(facts)

    def amend(
        self,
        row: int,
        numbers: Mapping[str, Any],
        aggregates: tuple[str, ...],
        provider: host_facts.ProviderFacts | host_frame.Same | None = host_frame.Same.AS_BEFORE,
    ) -> None:
        """Take over what is new of a host, see :meth:`.host_frame.HostFrame.amend`."""
        with self.lock:
            self.frame.amend(row, numbers, aggregates, provider)

    def remove(self, uuid: str) -> int | None:
        """Forget a host; return the row it had."""
        with self.lock:
            return self.frame.remove(uuid)

    def set_aggregates(
        self, aggregates: Iterable[host_facts.Aggregate], changed_uuids: Collection[str] = ()
    ) -> None:
        """Take Nova's aggregates over.

        :param changed_uuids: compute nodes to look at again besides those in
            aggregates that differ
        """
        with self.lock:
            self.frame.set_aggregates(aggregates)
            rows = (self.frame.row_of(uuid) for uuid in changed_uuids)
            self.frame.touch(row for row in rows if row is not None)

    def touch(self, rows: Iterable[int]) -> None:
        """Say that rows changed in what no column shows."""
        with self.lock:
            self.frame.touch(rows)

    def use(self, uuid: str, resources: Mapping[str, int]) -> None:
        """Add to what a host's provider has in use; negative amounts give back."""
        with self.lock:
            row = self.frame.row_of(uuid)
            if row is not None:
                self.frame.use(row, resources)
                self.frame.touch((row,))

    def generation(self, uuid: str) -> int:
        """Return the generation of a host's provider as recorded; -1 for none."""
        with self.lock:
            row = self.frame.row_of(uuid)
            provider = None if row is None else self.frame.provider(row)
            return -1 if provider is None else provider.generation

    def tick(self, now_seconds: float) -> None:
        """Say what time it is: services that fell silent are down."""
        with self.lock:
            self.frame.tick(now_seconds, self.settings.service_down_time)

    def figures(self) -> dict[str, float]:
        """Return what was counted so far, and what is kept; any thread, without the lock."""
        kept = self._signatures
        return {**attrs.asdict(self.counters), "kept": len(kept), "kept_bytes": kept.nbytes}

    # -- deciding -----------------------------------------------------------------

    def allocation_requests(
        self, request: requests.Request, uuid: str
    ) -> tuple[contract.AllocationRequest, ...]:
        """Return what Placement would offer of one host now."""
        with self.lock:
            row = self.frame.row_of(uuid)
            if row is None or not request.queries:
                return ()
            return candidates.Candidates(request.queries).allocation_requests(self.frame, row)

    def placement_parts(self, request: requests.Request) -> tuple[pipeline.FilterCount, ...]:
        """Return what of a request's candidates refuses how many hosts now.

        For somebody who asks why: it looks at all hosts, some times over.
        """
        with self.lock:
            steps = self._steps(request, self.frame, 0)
            rows = pipeline.named_rows(request, self.frame, _trees(steps))
            if rows is None:
                rows = np.arange(self.frame.rows)
            ignored = np.array(sorted(pipeline.ignored_rows(request, self.frame)), np.intp)
            return refusals.of_placement(steps, self.frame, rows[~np.isin(rows, ignored)])

    def counts_among(
        self, request: requests.Request, uuids: Collection[str]
    ) -> tuple[tuple[pipeline.FilterCount, ...], tuple[str, ...]]:
        """Return how many of the hosts that Placement offered each filter leaves now.

        :param uuids: all providers of the offer
        :returns: the counts, the offer's first, and names of filters that cannot be counted
            since only Nova's objects run them
        """
        with self.lock:
            steps = self._steps(attrs.evolve(request, queries=None), self.frame, 0)
            known = {row for uuid in uuids if (row := self.frame.row_of(uuid)) is not None}
            offer = pipeline.FilterCount(pipeline.PLACEMENT, len(self.frame), len(known))
            named = pipeline.named_rows(request, self.frame, None)
            rows = known if named is None else known & set(named.tolist())
            rows = rows - pipeline.ignored_rows(request, self.frame)
            stage = evaluation.stages(steps, self.frame, np.array(sorted(rows), np.intp))
            histogram = np.bincount(stage, minlength=len(steps.filters) + 3).tolist()
            before = len(known) if len(rows) < len(known) else None
            counts = refusals.without_candidates(_counts(steps, histogram, before))
            return _until_nobody((offer, *counts)), steps.filters_on_objects

    def plan(
        self,
        request: requests.Request,
        objects: contract.HostObjects | None = None,
        *,
        servers: int = 1,
        explain: bool = False,
    ) -> planning.Plan:
        """Return the hosts for a request, best first.

        :param objects: needed where a filter or weigher has no columns for it
        :param servers: how many the plan is to place
        :param explain: keep what each weigher gave
        :raises RuntimeError: objects are needed, and there are none
        """
        with self.lock:
            steps = self._steps(request, self.frame, 0)
            if objects is None and not steps.on_columns:
                raise RuntimeError(
                    "The request needs Nova's own code for "
                    f"{', '.join(_names_on_objects(steps))}: plan it with host objects."
                )
            source, counts = self._source(steps, own=servers > 1 or explain, whole=explain)
            following = None
            if servers > 1:
                following = planning.Next(self.lock, self.frame.fork(), self._steps)
            if steps.on_columns:
                made = self._plan(steps, source, counts, following, objects, explain)
                if isinstance(source, shared_hosts.SharedHosts):
                    source.let_go()
                return made
        assert objects is not None
        assert isinstance(source, shortlist.Shortlist)
        counts += source.ask(objects, 0)
        return self._plan(steps, source, counts, following, objects, explain)

    def _plan(
        self,
        steps: pipeline.Steps,
        source: choice.Source,
        counts: tuple[pipeline.FilterCount, ...],
        following: planning.Next | None,
        objects: contract.HostObjects | None,
        explain: bool,
    ) -> planning.Plan:
        return planning.Plan(
            steps.request,
            self.settings,
            self._rng,
            source,
            _until_nobody(counts),
            following=following,
            objects=objects,
            explained=explain,
            is_told_apart=steps.told_apart,
        )

    def _steps(
        self, request: requests.Request, frame: host_frame.HostFrame, index: int
    ) -> pipeline.Steps:
        return pipeline.steps(request, frame, self._filters, self._weighers, index)

    def _source(
        self, steps: pipeline.Steps, *, own: bool, whole: bool
    ) -> tuple[choice.Source, tuple[pipeline.FilterCount, ...]]:
        named = pipeline.named_rows(steps.request, self.frame, _trees(steps))
        ignored = pipeline.ignored_rows(steps.request, self.frame)
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
        counts = _counts(steps, histogram, before if len(left_out) else None)
        if own or not steps.on_columns:
            return self._copied(made, steps, left_out, whole), counts
        now = self._shared(made, steps, left_out)
        if isinstance(now, shortlist.Shortlist):
            return now, counts
        return shared_hosts.SharedHosts(self.lock, now, lambda: self._present(steps)), counts

    def _present(self, planned: pipeline.Steps) -> choice.Source:
        """Return where a request may go now that was planned earlier.

        :param planned: its steps of then; they may tell it itself where to go, and nobody else
        """
        steps = self._steps(planned.request, self.frame, 0)
        ignored = pipeline.ignored_rows(steps.request, self.frame)
        left_out = np.array(sorted(ignored), np.intp)
        if not steps.on_columns:
            # Only Nova's objects could tell the hosts apart that came, and under the
            # lock they are not asked: it goes on by what it was planned with, apart.
            return self._copied(evaluation.Evaluation(planned, self.frame), planned, left_out)
        return self._shared(self._evaluation(steps), steps, left_out)

    def _shared(
        self, made: evaluation.Evaluation, steps: pipeline.Steps, left_out: npt.NDArray[np.intp]
    ) -> choice.Source:
        """Return a signature's hosts as they are shared, or a copy where scores would differ."""
        if not made.scales_without(left_out):
            return self._copied(made, steps, left_out)
        return shared_hosts.RankedRows(
            self.frame,
            made.ranked(self.counters),
            steps,
            frozenset(left_out.tolist()),
            shuffled=self.settings.shuffle_best_same_weighed_hosts,
            rng=self._rng,
        )

    def _copied(
        self,
        made: evaluation.Evaluation,
        steps: pipeline.Steps,
        left_out: npt.NDArray[np.intp],
        whole: bool = False,
    ) -> shortlist.Shortlist:
        passing = made.stage == made.last
        passing[left_out] = False
        return self._shortlist(steps, np.flatnonzero(passing), whole)

    def _shortlist(
        self, steps: pipeline.Steps, rows: npt.NDArray[np.intp], whole: bool
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

    def _evaluation(self, steps: pipeline.Steps) -> evaluation.Evaluation:
        """Return what a signature makes of all hosts now."""
        signature = steps.signature
        known = self._signatures.get(signature)
        made = self._followed(known, steps)
        if made is known:
            self._signatures.count_again(signature)
        else:
            self._signatures.offer(signature, made)
        return made

    def _followed(
        self, made: evaluation.Evaluation | None, steps: pipeline.Steps
    ) -> evaluation.Evaluation:
        """Return an evaluation brought to the present, or a new one.

        :param steps: made at present, of the evaluation's own signature
        """
        if made is not None and made.rows == self.frame.rows:
            rows = self.frame.log.since(made.sequence)
            if rows is not None:
                self.counters.rows_patched += len(rows)
                made.patch(steps, self.frame, rows)
                made.sequence = self.frame.log.sequence
                return made
        self.counters.cold_evaluations += 1
        return evaluation.Evaluation(steps, self.frame)


def _trees(steps: pipeline.Steps) -> list[str] | None:
    return steps.candidates.trees() if steps.candidates is not None else None


def _names_on_objects(steps: pipeline.Steps) -> list[str]:
    weighers = [each for each in steps.weighers if isinstance(each, str)]
    return [*steps.filters_on_objects, *weighers]


def _counts(
    steps: pipeline.Steps, histogram: list[int], before: int | None
) -> tuple[pipeline.FilterCount, ...]:
    """Return the counts of the steps on columns.

    :param before: hosts before those the request names or ignores were picked;
        None where it does neither
    """
    left = sum(histogram[1:])
    counts = []
    if before is not None:
        counts.append(pipeline.FilterCount(pipeline.REQUESTED_HOSTS, before, left))
    names = [pipeline.PLACEMENT, *(own.name for own, _ in steps.filters)]
    for place, name in enumerate(names, start=1):
        after = left - histogram[place]
        counts.append(pipeline.FilterCount(name, left, after))
        left = after
    return tuple(counts)


def _until_nobody(
    counts: tuple[pipeline.FilterCount, ...],
) -> tuple[pipeline.FilterCount, ...]:
    for place, count in enumerate(counts, start=1):
        if not count.after:
            return counts[:place]
    return counts
