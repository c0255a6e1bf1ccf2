# SPDX-License-Identifier: Apache-2.0
"""What this process may have left in Placement: kept in memory until it is known to be over.

A write without an answer that could not be taken back either is somebody's to end. Its
claim, or its note, tells the scheduler that settles for all whose it was. The naive way, to
leave it to that, loses it with the back end: a Redis or memcached that was restarted holds
nothing, and one that did not answer was never told. So the process that wrote it remembers
it too, looks again and again whether the back end tells of it, and notes it as a lapsed
claim where it does not.

What others had claimed is lost with it as well, and who wrote it may be dead: every worker
remembers that, too, of claims that the store showed until then.

A server that is nowhere may be about to come as long as who wrote for it is at work. So the
process says of what it wrote itself that it is not: once the request that gave it up is over
for certain, its claim or its note tells so.

Nothing is deleted here. What is noted is judged by :mod:`.orphan_finder`, with all its rules,
like what the dead leave: a note takes nothing from a server that stands by then, and several
processes may note the same. Who dies before he noted anything leaves it to the audit.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

import attrs

from nova_nodb_scheduler.model import claims as model
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

#: Remembered by one process; the oldest go. Each is a write of which no answer came.
_MOST_LEFT = 1000
#: Calls to Placement, and what is noted, in one turn.
_TURN_LEFT = 50
#: Between two turns while the back end is away: what is not noted is known to this process alone.
_MOST_TURN_SECONDS = 30.0

#: A request that gave up a write has ended that long behind it: nothing is written behind a write
#: that may come yet, and what it is answered with takes no longer.
_OVER_SECONDS = 60.0

_NOTHING = orphan_verdicts.AllocationKind.NOTHING


@attrs.frozen
class LeftAllocation:
    """One that may be there, or come yet.

    :param host: uuid of the node
    :param resources: of the node's provider
    :param since: when its write was given up, by the process's clock; of a claim that was
        lost when it was, or long ago if it was confirmed: then it was written
    :param lost: a claim told of it, most likely of a server that stands: so it is looked at
        before it is noted
    :param writer: who wrote it, where that is not this process
    """

    consumer: str
    host: str
    resources: Mapping[str, int]
    since: float
    lost: bool = False
    writer: str = ""

    @property
    def name(self) -> tuple[str, str]:
        return self.consumer, self.host


@attrs.define(eq=False, slots=False)
class LeftAllocations:
    """Those of one process.

    :param cache: where who claims here finds what was written
    :param snapshot: of the worker's store, as it is
    :param writer: this process's name in what it notes
    :param now_seconds: the back end's clock, without I/O
    :param forget_seconds: how long one of which nothing is found may come yet
    :param over_seconds: how long a request may go on that gave up a write
    :param clock: monotonic seconds
    """

    _synchronizer: contract.Synchronizer
    _cache: record_editor.RecordCache
    _judge: orphan_verdicts.OrphanJudge
    _snapshot: Callable[[], snapshot_module.Snapshot]
    _writer: str
    _now_seconds: Callable[[], float]
    _forget_seconds: float = 300.0
    _over_seconds: float = _OVER_SECONDS
    _clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _left: dict[tuple[str, str], LeftAllocation] = attrs.field(init=False, factory=dict)

    def __len__(self) -> int:
        return len(self._left)

    def add(self, consumer: str, host: str, resources: Mapping[str, int]) -> None:
        """Remember one; any thread, no I/O."""
        left = LeftAllocation(consumer, host, dict(resources), self._clock())
        with self._lock:
            self._left.pop((consumer, host), None)
            self._left[consumer, host] = left
            if len(self._left) > _MOST_LEFT:
                # Of claims that were lost every other worker knows, too.
                of_others = (name for name, each in self._left.items() if each.lost)
                lost, _ = oldest = next(of_others, next(iter(self._left)))
                del self._left[oldest]
                LOG.error(
                    "Too many writes to Placement were given up to remember that of server "
                    "%(server)s; 'nova-nodb-manage allocations audit' finds what it left.",
                    {"server": lost},
                )

    def outlive(self, former: snapshot_module.Snapshot) -> None:
        """Remember what claims told that the back end lost with its data; no I/O.

        Looked at before it is noted: most of it stands by then.

        :param former: of the store, before it was emptied
        """
        now = self._clock()
        count = dropped = 0
        with self._lock:
            for each in orphan_verdicts.find_lost(former):
                if len(self._left) >= _MOST_LEFT:
                    dropped += 1
                    continue
                is_written = each.held.state is model.ClaimState.CONFIRMED
                since = now - self._forget_seconds if is_written else now
                left = LeftAllocation(
                    each.consumer, each.host, each.held.resources, since, True, each.held.writer
                )
                count += self._left.setdefault(left.name, left) is left
        if count or dropped:
            LOG.warning(
                "The back end lost its claims: %(count)d that may have left an allocation are "
                "looked at, %(dropped)d more are 'nova-nodb-manage allocations audit''s to find.",
                {"count": count, "dropped": dropped},
            )

    def turn(self) -> None:
        """Note what the back end does not tell of; without I/O where there is nothing.

        Blocks for a read; where something is missing for a read and a write more, and where
        it is old for Placement and databases.

        :raises BackendUnavailable: it is noted later
        """
        with self._lock:
            left = list(self._left.values())
        if not left:
            return
        held = lapsed_claims.read_claims(self._synchronizer, {each.host for each in left})
        untold = [each for each in left if not _is_told(each, held)]
        taken = {each.name for each in untold if self._is_taken(each, held)}
        before = self._clock() - self._forget_seconds
        # Placement may hang: what is noted unasked does not wait for it.
        young = [each for each in untold if not each.lost and each.since >= before]
        self._note([each for each in young if each.name in taken])
        old = [each for each in untold if each.lost or each.since < before]
        # What no record takes keeps nothing else waiting.
        old.sort(key=lambda each: each.name not in taken)
        self._note([each for each in self._without_ended(old, before) if each.name in taken])
        self._tell_over(left, held)

    def _tell_over(
        self, left: Sequence[LeftAllocation], held: Mapping[str, model.ClaimRecord]
    ) -> None:
        """Have the back end tell of which of this process's requests are over."""
        over: dict[str, dict[str, str]] = {}
        for each in left:
            read = held.get(each.host)
            if read is None or not self._is_over(each):
                continue
            for told in _ended(read, each.consumer):
                if told.writer == self._writer:
                    # The other one, if there is one, in the next turn.
                    over.setdefault(each.host, {})[each.consumer] = told.claim_id
        if over:
            lapsed_claims.give_up(self._synchronizer, self._cache, over, self._writer)

    def _without_ended(self, old: Sequence[LeftAllocation], before: float) -> list[LeftAllocation]:
        """Forget those that can come to nothing any more; return the others.

        Without those that are left for another turn. Of a Placement that is silent nobody
        learns more then, and who dies meanwhile has noted nothing: all are returned.

        :param before: what was given up since may come yet where nothing is found
        """
        if not old:
            return []
        suspected: dict[str, list[orphan_verdicts.SuspectedClaim]] = collections.defaultdict(list)
        for each in old:
            suspected[each.consumer].append(
                orphan_verdicts.SuspectedClaim(each.consumer, each.host, self._held(each), True)
            )
        budget = allocation_reads.CallBudget(_TURN_LEFT)
        judged = self._judge.judge(suspected, self._snapshot(), budget=budget)
        left = []
        with self._lock:
            for each in old:
                found = judged.get(each.consumer)
                if found is None and not budget.silent:
                    continue
                if found is None or not orphan_verdicts.is_over(found):
                    left.append(each)
                elif self._left.get(each.name) is each:
                    # One that was left again meanwhile stays.
                    del self._left[each.name]
                    if each.since >= before and found.kind is _NOTHING:
                        # Behind all others: it is looked for again, and keeps none waiting.
                        self._left[each.name] = each
        return left

    def _note(self, untold: Sequence[LeftAllocation]) -> None:
        """Note what records take."""
        noted: dict[str, dict[str, model.HeldClaim]] = {}
        for each in untold[:_TURN_LEFT]:
            noted.setdefault(each.host, {})[each.consumer] = self._held(each)
        if not noted:
            return
        done = lapsed_claims.note_lapsed(self._synchronizer, self._cache, noted)
        LOG.warning(
            "The back end tells nothing of allocations of servers %(servers)s, which may be left: "
            "%(done)d of %(hosts)d hosts' records do now.",
            {
                "servers": ", ".join(each.consumer for each in untold[:_TURN_LEFT]),
                "done": done,
                "hosts": len(noted),
            },
        )

    def _is_taken(self, left: LeftAllocation, held: Mapping[str, model.ClaimRecord]) -> bool:
        """Say whether its host's record, as it was read, has room for it."""
        read = held.get(left.host)
        return read is not None and (
            read.with_lapsed({left.consumer: self._held(left)}) is not read
        )

    def _is_over(self, left: LeftAllocation) -> bool:
        """Say whether its request, of this process, has ended for certain."""
        return not left.lost and left.since < self._clock() - self._over_seconds

    def _own_name(self, left: LeftAllocation) -> str:
        own = self._writer
        return f"{lapsed_claims.GIVEN_UP}:{own}" if self._is_over(left) else own

    def _held(self, left: LeftAllocation) -> model.HeldClaim:
        return model.HeldClaim(
            left.resources,
            model.ClaimState.PENDING,
            str(uuid.uuid4()),
            left.writer or self._own_name(left),
            self._now_seconds(),
        )


def _is_told(left: LeftAllocation, held: Mapping[str, model.ClaimRecord]) -> bool:
    read = held.get(left.host)
    return read is not None and read.tells_of(left.consumer, left.resources)


def _ended(read: model.ClaimRecord, consumer: str) -> list[model.HeldClaim]:
    """Return a server's claims on a host that wait for no confirm any more.

    A confirmed one, too: of several servers of a request those before the one in doubt have
    such, which no lease ends.
    """
    lapsed, held = read.lapsed.get(consumer), read.claims.get(consumer)
    is_confirmed = held is not None and held.state is model.ClaimState.CONFIRMED
    return [each for each in (lapsed, held if is_confirmed else None) if each is not None]


class LeftDuty(turn_duty.TurnDuty):
    """Takes turns in a thread, in every worker that writes allocations.

    What is not noted when it is stopped nobody remembers.
    """

    def __init__(self, left: LeftAllocations) -> None:
        super().__init__(
            "nodb-left-allocations",
            "What may be left in Placement is not noted",
            _MOST_TURN_SECONDS,
        )
        self._left = left

    def _turn(self) -> bool:
        self._left.turn()
        return False
