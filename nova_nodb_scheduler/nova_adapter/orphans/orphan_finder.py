# SPDX-License-Identifier: Apache-2.0
"""Finds allocations that processes left behind as they died, and deletes the provably dead.

A suspect (see :mod:`.orphan_verdicts`) is looked at in Placement and in Nova's
databases. Its allocation is deleted where all of this holds:

* its claim says who wrote it, and it is just what was claimed;
* that process is gone, or the request for which it wrote is over, as it says itself, and its
  server or migration is absent everywhere (see :mod:`.consumer_presence`); or its server is
  buried in cell0, from where no server ever gets to a host: then whoever wrote it wrote it for
  nobody, who had given up waiting;
* that was so some time before already, at the same generation of the consumer: a
  database may be behind.

It is deleted with that generation. Of everything else nothing is touched: it is
looked at again, at growing distances, and told by status, metrics and the audit.
Whoever knows more of a server that is under way may ask to be told of it
(:meth:`OrphanFinder.tell`): one that waits for room ought to hold none.
"""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Callable, Mapping, Sequence

import attrs

from nova_nodb_scheduler.nova_adapter.orphans import (
    allocation_reads,
    orphan_verdicts,
    turn_duty,
)
from nova_nodb_scheduler.store import store_snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import record_editor
from nova_nodb_scheduler.synchronizer.settlement import lapsed_claims

LOG = logging.getLogger(__name__)


@attrs.frozen
class OrphanFinderOptions:
    """Paces and bounds.

    :param deletes: whether anything is deleted
    :param first_seconds: from a confirmed claim without its server to the first look: until
        then it is one that is being made, and nobody reads databases for that
    :param prove_seconds: between two proofs of absence; longer than a database of
        Nova's, or a reader of it, is ever behind
    :param again_seconds: until a suspect is looked at again; doubled up to the next
    :param forget_seconds: how long after the end of its lease a claim is remembered of
        which nothing is found: its write may be on its way to Placement
    :param turn_calls: to Placement in one turn, beside as many deletions
    """

    deletes: bool = True
    first_seconds: float = 20.0
    prove_seconds: float = 30.0
    again_seconds: float = 30.0
    again_most_seconds: float = 600.0
    forget_seconds: float = 300.0
    turn_calls: int = 50


@attrs.define
class OrphanFinderStatus:
    """What is known of orphans now, and what was done since the start.

    :param by_kind: suspects that an operator is to know of, by what they are
    :param lost: deletions that another write, or no answer, stood in the way of
    """

    by_kind: Mapping[orphan_verdicts.AllocationKind, int] = attrs.field(factory=dict)
    deleted: int = 0
    lost: int = 0
    looked: int = 0


@attrs.define
class _Verdict:
    """What one suspected consumer was found to be, and when it is looked at again."""

    kind: orphan_verdicts.AllocationKind
    due_at: float
    pause_seconds: float
    proved_at: float | None = None
    generation: int | None = None


@attrs.define(eq=False, slots=False)
class OrphanFinder:
    """Looks at suspects; one thread, of the worker that settles for all.

    :param snapshot: of the worker's store; None while that is not proved
    :param now_seconds: the back end's clock, without I/O
    :param cache: where who claims here finds what was written
    :param hint: has the mirror read providers and consumers again
    :param clock: monotonic seconds
    """

    _synchronizer: contract.Synchronizer
    _snapshot: Callable[[], snapshot_module.Snapshot | None]
    _judge: orphan_verdicts.OrphanJudge
    _writers: lapsed_claims.ClaimWriters
    _now_seconds: Callable[[], float]
    _cache: record_editor.RecordCache
    _hint: Callable[[Sequence[str], Sequence[str]], None]
    _options: OrphanFinderOptions = attrs.field(factory=OrphanFinderOptions)
    _clock: Callable[[], float] = time.monotonic
    _verdicts: dict[str, _Verdict] = attrs.field(init=False, factory=dict)
    #: When suspects were first seen that nobody looked at yet.
    _seen_at: dict[str, float] = attrs.field(init=False, factory=dict)
    _told: list[Callable[[str], None]] = attrs.field(init=False, factory=list)
    status: OrphanFinderStatus = attrs.field(init=False, factory=OrphanFinderStatus)

    def pace(self, options: OrphanFinderOptions) -> None:
        """Work by these paces and bounds from the next turn on."""
        self._options = options
        self._forget()

    def tell(self, whom: Callable[[str], None]) -> None:
        """Have somebody told of each consumer that is under way, with what a suspect wrote.

        So often as it is looked at. An error of the back end ends the turn.
        """
        self._told.append(whom)

    def leave(self) -> None:
        """Forget all: another process does this now."""
        self._forget()
        self._writers.forget()
        self.status.by_kind = {}

    def _forget(self) -> None:
        self._verdicts.clear()
        self._seen_at.clear()

    def turn(self) -> bool:
        """Look at the suspects that are due; blocks for Placement, databases and a write.

        :returns: whether more are due than one turn looks at, and Placement answers
        :raises BackendUnavailable: what is no suspect any more is forgotten later
        """
        snapshot = self._snapshot()
        if snapshot is None:
            self._writers.forget()
            return False
        self._writers.look()
        found = orphan_verdicts.find_suspects(snapshot)
        for gone in self._verdicts.keys() - found.keys():
            del self._verdicts[gone]
        for gone in self._seen_at.keys() - found.keys():
            del self._seen_at[gone]
        now = self._clock()
        due_at = {name: self._due_at(name, claims, now) for name, claims in found.items()}
        # Who waited longest comes first: a crowd keeps nobody out.
        due = sorted((name for name in found if due_at[name] <= now), key=due_at.__getitem__)
        budget = allocation_reads.CallBudget(self._options.turn_calls)
        # Before Placement is asked: what is younger then may come behind the answer.
        before = self._now_seconds() - self._options.forget_seconds
        judged = self._judge.judge({name: found[name] for name in due}, snapshot, budget=budget)
        self.status.looked += len(judged)
        forget: dict[str, dict[str, str]] = {}
        for name, each in judged.items():
            self._looked(each)
            for claim in _ended(found[name], each, before):
                forget.setdefault(claim.host, {})[name] = claim.held.claim_id
        kinds = collections.Counter(look.kind for look in self._verdicts.values())
        self.status.by_kind = {kind: kinds[kind] for kind in orphan_verdicts.ORPHANS}
        lapsed_claims.forget_lapsed(self._synchronizer, self._cache, forget)
        return len(judged) < len(due) and not budget.silent

    def _due_at(
        self, consumer: str, claims: Sequence[orphan_verdicts.SuspectedClaim], now_seconds: float
    ) -> float:
        """Return when a suspect is to be looked at.

        Between the confirmed claim and the server that the conductor makes then there is
        always some time. A lapsed claim has waited for the end of its lease already.
        """
        look = self._verdicts.get(consumer)
        if look is not None:
            return look.due_at
        seen_at = self._seen_at.setdefault(consumer, now_seconds)
        if any(each.lapsed for each in claims):
            return seen_at
        return seen_at + self._options.first_seconds

    def _looked(self, judged: orphan_verdicts.JudgedAllocation) -> None:
        """Note what was found, and delete it where that is proved the second time."""
        now, options = self._clock(), self._options
        look = self._verdicts.get(judged.consumer)
        if look is None or look.kind is not judged.kind:
            pause = min(options.again_seconds, options.again_most_seconds)
            look = self._verdicts[judged.consumer] = _Verdict(judged.kind, now + pause, pause)
            self._tell(judged)
        else:
            look.pause_seconds = min(2 * look.pause_seconds, options.again_most_seconds)
            look.due_at = now + look.pause_seconds
        if judged.kind is orphan_verdicts.AllocationKind.UNDER_WAY and judged.wrote:
            # Behind the pause: one that whoever is told fails on is not the first one due
            # again, before all others.
            for whom in self._told:
                whom(judged.consumer)
        if not self._may_delete(judged):
            look.proved_at = None
            return
        if look.proved_at is None or look.generation != judged.generation:
            look.proved_at, look.generation = now, judged.generation
            look.due_at = now + options.prove_seconds
        elif now - look.proved_at >= options.prove_seconds:
            self._delete(judged)
            # If it was lost, it is proved anew; else nothing will be there.
            look.proved_at, look.due_at = None, now + options.again_seconds
            look.pause_seconds = options.again_seconds
        else:
            look.due_at = look.proved_at + options.prove_seconds

    def _may_delete(self, judged: orphan_verdicts.JudgedAllocation) -> bool:
        return self._options.deletes and orphan_verdicts.is_for_nobody(judged, self._writers.gone)

    def _delete(self, judged: orphan_verdicts.JudgedAllocation) -> None:
        held = judged.wrote[0].held
        about = {
            "consumer": judged.consumer,
            "what": dict(judged.amounts),
            "writer": held.writer,
            "kind": judged.kind.value,
        }
        if self._judge.delete(judged):
            self.status.deleted += 1
            self._hint(sorted(judged.amounts), [judged.consumer])
            LOG.warning(
                "The allocation of %(consumer)s is deleted, %(what)s: %(writer)s had written it, "
                "and its server is %(kind)s.",
                about,
            )
        else:
            self.status.lost += 1
            LOG.info(
                "The allocation of %(consumer)s could not be deleted, or was changed by another "
                "meanwhile; it is looked at again.",
                about,
            )

    def _tell(self, judged: orphan_verdicts.JudgedAllocation) -> None:
        if judged.kind in orphan_verdicts.ORPHANS:
            LOG.info(
                "The allocation of %(consumer)s, %(what)s, may be an orphan: %(kind)s.",
                {
                    "consumer": judged.consumer,
                    "what": dict(judged.amounts),
                    "kind": judged.kind.value,
                },
            )


def _ended(
    found: Sequence[orphan_verdicts.SuspectedClaim],
    judged: orphan_verdicts.JudgedAllocation,
    before_seconds: float,
) -> list[orphan_verdicts.SuspectedClaim]:
    """Return the lapsed claims of which nothing can come any more."""
    if not orphan_verdicts.is_over(judged):
        return []
    return [
        each for each in found if each.lapsed and (each.held.deadline_seconds or 0) < before_seconds
    ]


class OrphanDuty(turn_duty.TurnDuty):
    """Looks for orphan allocations in a thread, where this worker settles for all.

    :param settles: whether this worker settles claims for all
    """

    def __init__(self, finder: OrphanFinder, settles: Callable[[], bool]) -> None:
        super().__init__("nodb-orphans", "Orphans are not looked for", 300.0)
        self.finder = finder
        self._settles = settles

    def tell(self, whom: Callable[[str], None]) -> None:
        """See :meth:`OrphanFinder.tell`."""
        self.finder.tell(whom)

    def figures(self) -> dict[str, float]:
        """Return what is counted, for status and metrics; any thread."""
        status = self.finder.status
        return {
            **{f"orphans_{kind.name.lower()}": float(n) for kind, n in status.by_kind.items()},
            "orphans": float(sum(status.by_kind.values())),
            "orphans_deleted": float(status.deleted),
            "orphans_lost": float(status.lost),
            "orphan_failures": float(self.failures),
        }

    def _turn(self) -> bool:
        if not self._settles():
            self.finder.leave()
            return False
        return self.finder.turn()
