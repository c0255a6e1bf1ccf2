# SPDX-License-Identifier: Apache-2.0
"""Ends claims that have served, and allocations that dead processes left: one worker's share.

A worker that decides from memory has it beside its decisions. With ``candidates =
placement`` nobody judges claims: servers are noted all the same
(:mod:`..claims.unjudged_claims`), so that it is known who wrote each allocation. Then
this is all that looks at the notes. It works like the other beside workers that claim,
whose mirror of Placement shows what it is to show; without any of these a note has
served once its server is on its host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler.nova_adapter.claims import worker_claims
from nova_nodb_scheduler.nova_adapter.orphans import (
    left_allocations,
    orphan_finder,
    orphan_verdicts,
)
from nova_nodb_scheduler.nova_adapter.placement.allocations import placement_calls
from nova_nodb_scheduler.store import host_state_store, store_snapshot
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import record_editor
from nova_nodb_scheduler.synchronizer.replication import replicator
from nova_nodb_scheduler.synchronizer.settlement import (
    lapsed_claims,
    lost_members,
    settlement_rules,
    settlement_worker,
)


@attrs.frozen
class UpkeepSurroundings:
    """What of a worker it stands on.

    :param host: the service's
    :param now_seconds: the back end's clock, without I/O
    :param placement_client: names Nova's own client
    """

    host: str
    synchronizer: contract.Synchronizer
    store: host_state_store.HostStateStore
    replicator: replicator.Replicator
    now_seconds: Callable[[], float]
    placement_client: Callable[[], Any]


@attrs.frozen
class UpkeepOptions:
    """Bounds; see the options of the same names.

    :param claim_wait_seconds: of all schedulers: who settles here keeps for their requests
        what these may not know of yet
    :param silent_scheduler_seconds: a beat that is older is late
    """

    claim_lease_seconds: float
    claim_wait_seconds: float
    silent_scheduler_seconds: float
    delete_orphan_allocations: bool


#: How long a place in a group stays once it is shown, beside what requests wait for.
_GRACE_SECONDS = settlement_worker.SettlementOptions().grace_seconds


def _tell_nobody(providers: Sequence[str], consumers: Sequence[str]) -> None:
    """Keep it: here is no mirror that would read them again."""


class ClaimUpkeep:
    """The four duties, started and stopped together.

    :param is_own: see :class:`worker_claims.ClaimDuty`, like ``is_judged``
    :param wait_for: likewise
    :param hint: has a mirror read providers and consumers again
    """

    def __init__(
        self,
        around: UpkeepSurroundings,
        options: UpkeepOptions,
        *,
        is_own: Callable[[str], bool] | None = None,
        is_judged: settlement_rules.IsJudged = settlement_rules.always_judged,
        wait_for: Callable[[int], None] = lambda version: None,
        hint: Callable[[Sequence[str], Sequence[str]], None] = _tell_nobody,
    ) -> None:
        #: Shared with who claims, or notes, in this worker.
        self.cache = record_editor.RecordCache()
        self.claim_duty = worker_claims.ClaimDuty(
            around.synchronizer,
            around.store,
            around.replicator,
            around.now_seconds,
            options.claim_lease_seconds,
            around.host,
            options=settlement_worker.SettlementOptions(
                grace_seconds=_GRACE_SECONDS + options.claim_wait_seconds
            ),
            is_own=is_own,
            is_judged=is_judged,
            cache=self.cache,
            wait_for=wait_for,
        )
        own = around.replicator.status().identity
        writers = lapsed_claims.ClaimWriters(
            around.store,
            own,
            # Nobody hurries: one whose beats are late is not dead.
            max(30.0, 3 * options.silent_scheduler_seconds),
        )
        settler = self.claim_duty.settler
        judge = orphan_verdicts.OrphanJudge(
            placement_calls.AllocationCalls(placement_calls.LateClient(around.placement_client))
        )
        #: What this worker may have left in Placement, and looks after whoever settles.
        self.left = left_allocations.LeftAllocations(
            around.synchronizer,
            self.cache,
            judge,
            around.store.snapshot,
            own,
            around.now_seconds,
        )
        #: Members of groups that are known here though the back end lost them.
        self.lost = lost_members.LostMembers(
            around.synchronizer, around.store, around.replicator, self.cache
        )
        around.replicator.tell_former(self.lost.outlive)
        around.replicator.tell_former(self.left.outlive)
        self.left_duty = left_allocations.LeftDuty(self.left)
        finder = orphan_finder.OrphanFinder(
            around.synchronizer,
            lambda: around.store.snapshot() if settler.ready else None,
            judge,
            writers,
            around.now_seconds,
            self.cache,
            hint,
            orphan_finder.OrphanFinderOptions(deletes=options.delete_orphan_allocations),
        )
        self.orphan_duty = orphan_finder.OrphanDuty(finder, lambda: self.claim_duty.settles)

    def start(self) -> None:
        """Start the threads; in the worker, after the feed was started."""
        self.lost.start()
        self.claim_duty.start()
        self.orphan_duty.start()
        self.left_duty.start()

    def stop(self) -> None:
        """End the threads; before the synchronizer is closed. Idempotent."""
        self.left_duty.stop()
        self.orphan_duty.stop()
        self.claim_duty.stop()
        self.lost.stop()

    def figures(self) -> dict[str, float]:
        """Return what is claimed, how claims ended here, and what they left behind."""
        return {**self.claim_duty.figures(), **self.orphan_duty.figures()}


class NoteUpkeep(ClaimUpkeep):
    """That of a worker that judges no claim, and only notes servers.

    :param is_judged: see :class:`settlement_rules.SettlementEvidence`
    """

    def __init__(
        self,
        around: UpkeepSurroundings,
        options: UpkeepOptions,
        is_judged: settlement_rules.IsJudged,
    ) -> None:
        self._judge = is_judged
        #: As of the last turn.
        self._others_judge = True
        super().__init__(around, options, is_own=self._is_own, is_judged=self._is_judged)

    def _is_judged(self, snapshot: store_snapshot.Snapshot) -> bool:
        judged = self._judge(snapshot)
        if judged is not self._others_judge:
            # What was left to others is looked at by no change of its own.
            self._others_judge = judged
            self.claim_duty.look_anew()
        return judged

    def _is_own(self, host: str) -> bool:
        # Who claims prefers hosts, and settles these himself: what he leaves comes here.
        return self.claim_duty.settles and not self._others_judge
