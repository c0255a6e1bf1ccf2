# SPDX-License-Identifier: Apache-2.0
"""Has the resources of chosen hosts allocated in Placement, and says what came of it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import attrs
from keystoneauth1 import exceptions as keystone
from nova import exception as nova_exception

from nova_nodb_scheduler.nova_adapter.claims import outside_claims
from nova_nodb_scheduler.nova_adapter.placement.allocations import (
    allocation_writer,
    placement_replies,
    taking_back,
    verification,
    write_turns,
)
from nova_nodb_scheduler.nova_adapter.placement.mirror import chosen_trees
from nova_nodb_scheduler.nova_adapter.reads import deferred_candidates
from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts, placing
from nova_nodb_scheduler.store import store_snapshot as snapshot_module

LOG = logging.getLogger(__name__)

_CHANGED = placing.AllocationOutcome(placing.AllocationResult.PLAN_AGAIN, "changed in Placement")
_LEFT = placing.AllocationOutcome(
    placing.AllocationResult.GIVEN_UP, "changed in Placement, and not known to be taken back"
)


@attrs.frozen
class AllocationAccess:
    """What writes allocations in one worker.

    :param client: names Nova's SchedulerReportClient
    :param look_at: told of hosts whose record turned out to be behind
    :param verifier: looks at what was written
    :param verified: which allocations: ``always``, ``tight`` or ``never``, for it costs a
        request each
    :param room_left: of each class that a choice takes, by all that is known here
    :param chosen: compares hosts' records with Placement before they are written to
    :param tell_left: told of what may be left, for a claim may be lost with the back end
    :param turns: of all in this process that writes allocations
    """

    client: Callable[[], Any]
    writer: allocation_writer.AllocationWriter
    look_at: Callable[[Sequence[str]], None]
    verifier: verification.AllocationVerifier
    verified: str
    room_left: Callable[[chosen_hosts.Choice], Mapping[str, int]]
    chosen: chosen_trees.ChosenTrees
    tell_left: verification.TellLeft = verification.tell_nobody
    turns: write_turns.WriteTurns = attrs.field(factory=write_turns.WriteTurns)


class RequestAllocations:
    """The allocations of one request's servers: its :class:`placing.AllocationAuthority`.

    A server that moves is claimed as Nova claims, which doubles up. One thread;
    blocks for HTTP.

    :param context: of the request, as it came
    :param planned_on: names the snapshot that the latest plan is no older than
    """

    def __init__(
        self,
        placement: AllocationAccess,
        context: Any,
        spec: Any,
        planned_on: Callable[[], snapshot_module.Snapshot],
    ) -> None:
        self._writer = placement.writer
        self._verifier = placement.verifier
        self._verified_ones = placement.verified
        self._room_left = placement.room_left
        self._chosen_trees = placement.chosen
        self._client = placement.client
        self._look_at = placement.look_at
        self._tell_left = placement.tell_left
        self._turns = placement.turns
        self._planned_on = planned_on
        self._context = context
        self._spec = spec
        #: Until when what was written is taken back, by server and host: as of the first write
        #: there, for what is left of that may be found behind a later one.
        self._windows: dict[tuple[str, str], taking_back.TakeBackWindow] = {}
        #: Servers whose allocations stand beside others of theirs.
        self._joined: set[str] = set()
        #: Of which it is not known that nothing is left of them.
        self._left: dict[str, chosen_hosts.WantedClaim] = {}
        #: Servers and hosts of writes whose answer was lost. None was found, or one was
        #: found and taken back; one that is on its way comes when it comes.
        self._may_come: dict[tuple[str, str], chosen_hosts.WantedClaim] = {}
        #: Hosts of which Placement said that they are not what the plan took them for.
        self._misjudged: set[str] = set()
        #: Servers whose trees are to be compared behind the write: they differed as it was
        #: to be made, or nobody said that they were compared.
        self._uncompared: set[str] = set()

    def write(
        self, wanted: Sequence[chosen_hosts.WantedClaim], deadline: float
    ) -> dict[str, placing.AllocationOutcome]:
        """See :class:`placing.AllocationAuthority`.

        :param deadline: on the writer's clock
        :raises AllocationUpdateFailed: Nova's own, of a server that moves; what was
            written for the others is removed again
        :raises PlacementUnanswered: a host could not be compared; nothing is written
        :raises BackendUnavailable: the same
        :raises TreeNotCompared: the same
        """
        # Another host's would be added to it.
        self.end_left(deadline)
        window = self._writer.window()
        for each in wanted:
            self._windows.setdefault((each.consumer, each.chosen.uuid), window)
        roots = {each.chosen.uuid for each in wanted}
        condition = self._condition(wanted)
        if condition is not None:
            roots -= condition.wanted.keys()
        behind = self._chosen_trees.behind(roots, self._planned_on())
        found = {each.consumer: _CHANGED for each in wanted if each.chosen.uuid in behind}
        wanted = [each for each in wanted if each.consumer not in found]
        try:
            self._misjudged.clear()
            self._write(wanted, deadline, found, condition)
            self._compare_behind(wanted, deadline, found)
            self._look_at_misjudged(wanted, found)
            for each in wanted:
                if _stands(found[each.consumer]) and self._is_verified(each):
                    found[each.consumer] = self._verified(each, deadline, found[each.consumer])
        except BaseException:
            # A green thread that is killed, too. Of what has no outcome nobody knows.
            standing = [each for each in wanted if _stands(found.get(each.consumer))]
            try:
                self.remove(standing, deadline)
            finally:
                unknown = [e for e in wanted if e.consumer not in found and not e.moves]
                if unknown:
                    self._doubt(unknown)
                    for each in unknown:
                        self._tell(each)
                    self._keep_left(unknown, self._undo(unknown, deadline, unsure=True))
            raise
        refused = [
            each.chosen.uuid
            for each in wanted
            if found[each.consumer].result is placing.AllocationResult.NEXT_HOST
        ]
        if refused:
            self._hint(refused)
        return found

    def remove(self, wanted: Sequence[chosen_hosts.WantedClaim], deadline: float) -> None:
        """Take back what was written, and nothing else; see :class:`placing.AllocationAuthority`.

        Of a server that moves, what it has elsewhere is where it runs: only what
        it was to get on the chosen host goes.
        """
        # Until it is known, should a green thread be killed meanwhile.
        self._left.update((each.consumer, each) for each in wanted)
        new = [each for each in wanted if each.consumer not in self._joined]
        left = list(self._undo(new, deadline))
        left += [
            each.consumer
            for each in wanted
            if each.consumer in self._joined and not self._removed(each)
        ]
        for consumer in left:
            LOG.error(
                "The allocation of server %(server)s could not be removed; "
                "'nova-manage placement audit' finds it.",
                {"server": consumer},
            )
        self._keep_left(wanted, left)

    def is_in_doubt(self, wanted: chosen_hosts.WantedClaim) -> bool:
        """See :class:`placing.AllocationAuthority`.

        Of a write whose answer was lost nothing proves that it will not come: a call of
        another thread that ends late does, but Placement's own queues tell nobody.
        """
        place = wanted.consumer, wanted.chosen.uuid
        left = self._left.get(wanted.consumer)
        return place in self._may_come or (
            left is not None and place == (left.consumer, left.chosen.uuid)
        )

    def end_left(self, deadline: float) -> None:
        """Remove what could not be removed before; without I/O where there is nothing.

        :raises AllocationUpdateFailed: Nova's own: something may be left, and what is
            written on another host would be added to it, with nobody to end the first
        """
        if not self._left:
            return
        wanted = list(self._left.values())
        new = [each for each in wanted if each.consumer not in self._joined]
        left = {*self._undo(new, deadline, unsure=True)}
        for each in wanted:
            if each.consumer in self._joined:
                removed = functools.partial(self._removed, each)
                # Behind the window each try is refused.
                is_own = self._window(each).is_open()
                if not (is_own and self._writer.patiently(removed, deadline)):
                    left.add(each.consumer)
        self._keep_left(wanted, left)
        for consumer in sorted(left):
            raise nova_exception.AllocationUpdateFailed(
                consumer_uuid=consumer, error="an allocation may be left"
            )

    def _condition(
        self, wanted: Sequence[chosen_hosts.WantedClaim]
    ) -> chosen_trees.TreeCondition | None:
        """Return which trees Placement is to compare as it writes; None for none."""
        if not self._writer.takes_conditions() or any(each.moves for each in wanted):
            return None
        # The writer tells by the providers that are written to whose trees they are.
        roots = {each.chosen.uuid for each in wanted if self._is_on_root(each)}
        return self._chosen_trees.condition(roots, self._planned_on())

    @staticmethod
    def _is_on_root(wanted: chosen_hosts.WantedClaim) -> bool:
        return wanted.chosen.uuid in wanted.chosen.allocation_requests[0]["allocations"]

    def _compare_behind(
        self,
        wanted: Sequence[chosen_hosts.WantedClaim],
        deadline: float,
        found: dict[str, placing.AllocationOutcome],
    ) -> None:
        """Compare the trees that were not compared as they were written to, or differed then.

        Who was written to a tree of which more than allocations differs goes from there;
        who was not, for allocations alone, is written after all.

        :raises PlacementUnanswered: see :meth:`write`, as of what is below
        """
        late = [each for each in wanted if each.consumer in self._uncompared]
        if not late:
            return
        roots = {each.chosen.uuid for each in late}
        behind = self._chosen_trees.behind(roots, self._planned_on(), anew=True)
        back = [e for e in late if e.chosen.uuid in behind and _stands(found[e.consumer])]
        if back:
            self.remove(back, deadline)
            for each in back:
                # Should it be left, the next host's would be added to it.
                found[each.consumer] = _LEFT if each.consumer in self._left else _CHANGED
        again = [
            e
            for e in late
            if e.chosen.uuid not in behind
            and found[e.consumer].result is placing.AllocationResult.PLAN_AGAIN
        ]
        if again:
            self._write(again, deadline, found)

    def _write(
        self,
        wanted: Sequence[chosen_hosts.WantedClaim],
        deadline: float,
        found: dict[str, placing.AllocationOutcome],
        condition: chosen_trees.TreeCondition | None = None,
    ) -> None:
        self._uncompared.clear()
        new = [each for each in wanted if not each.moves]
        if new:
            written = self._writer.write(
                [self._server(each) for each in new],
                deadline,
                divisible=True,
                request_id=getattr(self._context, "global_id", None),
                condition=condition,
            )
            # First all that is certain, for what follows may raise.
            for each in sorted(new, key=lambda one: not _is_written(written[one.consumer])):
                outcome = written[each.consumer]
                if condition is not None and not _is_compared(outcome):
                    self._uncompared.add(each.consumer)
                result = self._judge(each, outcome, deadline)
                found[each.consumer] = placing.AllocationOutcome(result, _reason(outcome))
        else:
            self._writer.not_coming()
        for each in wanted:
            if each.moves:
                result = self._as_nova_does(each)
                found[each.consumer] = placing.AllocationOutcome(result, "refused by Placement")

    def _look_at_misjudged(
        self,
        wanted: Sequence[chosen_hosts.WantedClaim],
        found: dict[str, placing.AllocationOutcome],
    ) -> None:
        """Have hosts planned anew that refused what they do not have any more.

        A nova-compute that moves a resource to a child provider does that between the
        comparison and the write; no listing of who has room would show it afterwards.
        """
        refused = {
            each.consumer: each.chosen.uuid
            for each in wanted
            if each.chosen.uuid in self._misjudged
            and found[each.consumer].result is placing.AllocationResult.NEXT_HOST
        }
        if not refused:
            return
        roots = {*refused.values()}
        behind = self._chosen_trees.behind(roots, self._planned_on(), anew=True)
        for consumer, root in refused.items():
            if root in behind:
                found[consumer] = attrs.evolve(
                    found[consumer], result=placing.AllocationResult.PLAN_AGAIN
                )

    def _is_verified(self, wanted: chosen_hosts.WantedClaim) -> bool:
        """Say whether an allocation that was written for a claim is looked at."""
        if self._verified_ones != "tight":
            return self._verified_ones == "always"
        return verification.is_tight(wanted.resources, self._room_left(wanted.chosen))

    def _verified(
        self,
        wanted: chosen_hosts.WantedClaim,
        deadline: float,
        outcome: placing.AllocationOutcome,
    ) -> placing.AllocationOutcome:
        """Look whether others, who know of no claims, raced for the room; then it goes back."""
        verifier = self._verifier
        written = verification.VerifiedAllocation(
            wanted.consumer,
            self._server(wanted).amounts,
            request_id=getattr(self._context, "global_id", None),
            window=self._window(wanted),
        )
        if verifier.stands(written):
            return outcome
        withdrawn = verifier.withdraw(written)
        if withdrawn is verification.Withdrawal.NOT_OURS:
            return outcome
        if withdrawn is verification.Withdrawal.UNKNOWN:
            self._keep_left([wanted], [wanted.consumer])
            return placing.AllocationOutcome(
                placing.AllocationResult.GIVEN_UP, "not known whether it fits"
            )
        self._joined.discard(wanted.consumer)
        return placing.AllocationOutcome(
            placing.AllocationResult.NEXT_HOST, "full: others allocated beside a claim"
        )

    def _removed(self, wanted: chosen_hosts.WantedClaim) -> bool:
        """Take a server's allocations on the chosen host away; False if that failed."""
        client = self._client()

        def kept(held: taking_back.Held) -> taking_back.Held | None:
            if held.keys().isdisjoint(wanted.chosen.allocation_requests[0]["allocations"]):
                return None
            return taking_back.without_tree(self._context, client, held, wanted.chosen.uuid)

        try:
            window = self._window(wanted)
            return taking_back.reduce(self._context, client, wanted.consumer, kept, window)
        except (nova_exception.NovaException, keystone.ClientException) as error:
            LOG.warning("Placement did not take an allocation back: %(error)s", {"error": error})
            return False

    def _judge(
        self,
        wanted: chosen_hosts.WantedClaim,
        outcome: placement_replies.WriteOutcome,
        deadline: float,
    ) -> placing.AllocationResult:
        if isinstance(outcome, placement_replies.AllocationWritten):
            self._joined.discard(wanted.consumer)
            if outcome.was_repeated:
                self._doubt([wanted])
            return placing.AllocationResult.WRITTEN
        if isinstance(outcome, placement_replies.TreeChanged):
            return placing.AllocationResult.PLAN_AGAIN
        if isinstance(outcome, placement_replies.ConsumerExists):
            late = self._late(wanted)
            if late:
                return self._judge_behind(late, wanted, deadline)
            # It was thought to be new; it is not.
            return self._as_nova_does(wanted)
        if isinstance(outcome, placement_replies.ProviderFull) and not outcome.by_capacity:
            self._misjudged.add(wanted.chosen.uuid)
        if isinstance(
            outcome,
            (
                placement_replies.ProviderFull,
                placement_replies.GenerationConflict,
                placement_replies.WithdrawnWithOthers,
            ),
        ):
            return placing.AllocationResult.NEXT_HOST
        LOG.warning(
            "The allocation of server %(server)s on host %(host)s was not made: %(why)s",
            {"server": wanted.consumer, "host": wanted.chosen.uuid, "why": outcome.text},
        )
        if isinstance(outcome, placement_replies.UnknownOutcome):
            self._doubt([wanted])
            self._tell(wanted)
            left = self._undo([wanted], deadline, unsure=True)
            self._keep_left([wanted], left)
            return placing.AllocationResult.GIVEN_UP
        return (
            placing.AllocationResult.GIVEN_UP
            if outcome.status is None
            else placing.AllocationResult.NEXT_HOST
        )

    def _late(self, wanted: chosen_hosts.WantedClaim) -> list[chosen_hosts.WantedClaim]:
        """Return what may have come late of writes for a server on other hosts."""
        return [
            each
            for (consumer, host), each in self._may_come.items()
            if consumer == wanted.consumer and host != wanted.chosen.uuid and not each.moves
        ]

    def _judge_behind(
        self,
        late: Sequence[chosen_hosts.WantedClaim],
        wanted: chosen_hosts.WantedClaim,
        deadline: float,
    ) -> placing.AllocationResult:
        """Write a server that is not new by what its own lost write may have left elsewhere.

        Nova's way would add to it: the server would have two hosts. It is read, and taken
        back where it is just what was sent.
        """
        for each in late:
            left = self._undo([each], deadline, unsure=True)
            if left:
                self._keep_left([each], left)
                return placing.AllocationResult.GIVEN_UP
        server = self._server(wanted)
        request_id = getattr(self._context, "global_id", None)
        outcome = self._writer.write([server], deadline, divisible=True, request_id=request_id)[
            wanted.consumer
        ]
        if isinstance(outcome, placement_replies.ConsumerExists):
            # By another's, then: what it has is not taken back, and Nova's way adds to it.
            return self._as_nova_does(wanted)
        return self._judge(wanted, outcome, deadline)

    def _as_nova_does(self, wanted: chosen_hosts.WantedClaim) -> placing.AllocationResult:
        try:
            with self._turns.within():
                claimed = outside_claims.stock_claim_resources(
                    self._context.elevated(),
                    self._client(),
                    self._spec,
                    wanted.consumer,
                    dict(wanted.chosen.allocation_requests[0]),
                    allocation_request_version=deferred_candidates.CANDIDATES_VERSION,
                )
        except nova_exception.NovaException:
            # Nova's own word that nothing was written.
            raise
        except BaseException:
            self._doubt_move(wanted)
            raise
        if claimed is None:
            self._doubt_move(wanted)
            LOG.warning(
                "Placement did not answer whether server %(server)s has host %(host)s.",
                {"server": wanted.consumer, "host": wanted.chosen.uuid},
            )
            return placing.AllocationResult.GIVEN_UP
        if claimed:
            self._joined.add(wanted.consumer)
        else:
            # Nova does not say why it was refused.
            self._misjudged.add(wanted.chosen.uuid)
        self._hint([wanted.chosen.uuid])
        return placing.AllocationResult.JOINED if claimed else placing.AllocationResult.NEXT_HOST

    def _undo(
        self,
        wanted: Sequence[chosen_hosts.WantedClaim],
        deadline: float,
        *,
        unsure: bool = False,
    ) -> Collection[str]:
        """Remove what was written for new servers; see :meth:`AllocationWriter.undo`."""
        if not wanted:
            return ()
        servers = [self._server(each) for each in wanted]
        window = min(map(self._window, wanted), key=lambda each: each.ends_at)
        return self._writer.undo(servers, deadline, unsure=unsure, window=window)

    def _window(self, wanted: chosen_hosts.WantedClaim) -> taking_back.TakeBackWindow:
        """Return until when a server's allocation on its host is taken back."""
        return self._windows.get((wanted.consumer, wanted.chosen.uuid)) or self._writer.window()

    def _doubt(self, wanted: Sequence[chosen_hosts.WantedClaim]) -> None:
        """Note that an answer was lost: it may be written when nobody looks any more."""
        self._may_come.update(((each.consumer, each.chosen.uuid), each) for each in wanted)

    def _doubt_move(self, wanted: chosen_hosts.WantedClaim) -> None:
        """The same of one that moves; what it may have there is to go before it goes elsewhere."""
        self._doubt([wanted])
        self._joined.add(wanted.consumer)
        self._keep_left([wanted], [wanted.consumer])

    def _keep_left(self, wanted: Sequence[chosen_hosts.WantedClaim], left: Collection[str]) -> None:
        """Note of which of some servers something may be left, and of which nothing is."""
        for each in wanted:
            if each.consumer in left:
                self._left[each.consumer] = each
                self._tell(each)
            else:
                self._left.pop(each.consumer, None)

    def _tell(self, wanted: chosen_hosts.WantedClaim) -> None:
        """Have it remembered beyond the request, and beyond its claim."""
        self._tell_left(wanted.consumer, wanted.chosen.uuid, wanted.resources)

    def _hint(self, hosts: Sequence[str]) -> None:
        """Have hosts read again; what was written stands whatever happens here."""
        try:
            self._look_at(hosts)
        except Exception:
            LOG.exception("Hosts whose record is behind could not be told of.")

    def _server(self, wanted: chosen_hosts.WantedClaim) -> placement_replies.NewServer:
        return placement_replies.NewServer(
            wanted.consumer,
            wanted.chosen.allocation_requests[0],
            self._spec.project_id,
            _user_id(self._context, self._spec),
        )


def _stands(outcome: placing.AllocationOutcome | None) -> bool:
    return outcome is not None and outcome.result.stands


def _is_written(outcome: placement_replies.WriteOutcome) -> bool:
    return isinstance(outcome, placement_replies.AllocationWritten)


def _is_compared(outcome: placement_replies.WriteOutcome) -> bool:
    """Say whether a tree need not be compared behind a conditional write.

    Of a server that turned out not to be new, what Nova then writes has no condition.
    """
    if isinstance(outcome, placement_replies.AllocationWritten):
        return outcome.was_compared
    return not isinstance(outcome, placement_replies.TreeChanged | placement_replies.ConsumerExists)


def _reason(outcome: placement_replies.WriteOutcome) -> str:
    """Say in a few words why a host was not claimed."""
    if isinstance(outcome, placement_replies.ProviderFull):
        what = f" of {outcome.resource_class}" if outcome.resource_class else ""
        return f"full{what}" if outcome.by_capacity else f"{outcome.text[:200]}{what}"
    if isinstance(outcome, placement_replies.TreeChanged):
        return _CHANGED.why
    if isinstance(outcome, placement_replies.GenerationConflict):
        return "conflict: others kept writing to it"
    if isinstance(outcome, placement_replies.WithdrawnWithOthers):
        return "withdrawn with another server of the request"
    if isinstance(outcome, placement_replies.UnknownOutcome):
        return "no answer from Placement"
    if isinstance(outcome, placement_replies.AllocationRejected):
        return f"rejected by Placement: {outcome.text[:200]}"
    return "refused by Placement"


def _user_id(context: Any, spec: Any) -> str:
    """Return whose server it is, as Nova's claim_resources finds it."""
    if "user_id" in spec and spec.user_id:
        return str(spec.user_id)
    return str(context.user_id)
