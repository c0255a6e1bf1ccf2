# SPDX-License-Identifier: Apache-2.0
"""Claims over the ledgers: :class:`scheduling.claimer.Claimer` for one scheduler process.

What is lost is tried again, what is in doubt settled by reading, both until
the request's deadline; what is refused is said in the words of whoever decides.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import group_claims as group_model
from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import claimer
from nova_nodb_scheduler.synchronizer import (
    claim_batches,
    group_places,
    group_rules,
    record_editor,
)

LOG = logging.getLogger(__name__)

#: Policies that rule hosts out.
Policy = group_model.Policy
STRICT = (group_model.Policy.AFFINITY, group_model.Policy.ANTI_AFFINITY)

_SOFT = {
    group_model.Policy.AFFINITY: group_model.Policy.SOFT_AFFINITY,
    group_model.Policy.ANTI_AFFINITY: group_model.Policy.SOFT_ANTI_AFFINITY,
}

#: What a refusal means to whoever decides.
_FAILURES = {
    model.Reason.FULL: claimer.Failure.NEXT_HOST,
    model.Reason.HELD: claimer.Failure.BEHIND,
    model.Reason.STALE_VIEW: claimer.Failure.BEHIND,
    model.Reason.EPOCH_CHANGED: claimer.Failure.BEHIND,
    model.Reason.NOT_CLAIMABLE: claimer.Failure.NEXT_HOST,
    model.Reason.GROUP_POLICY: claimer.Failure.GROUP,
}

#: Reasons of refusals that nobody who claimed meanwhile is behind.
_NO_CONFLICTS = frozenset(
    (
        record_editor.Unwritten.UNAVAILABLE.value,
        record_editor.Unwritten.UNREADABLE.value,
        model.Reason.NOT_CLAIMABLE.value,
        model.Reason.EPOCH_CHANGED.value,
    )
)

#: Answers after which nothing of a claim stands, and another try may take it.
_AGAIN = (None, record_editor.Unwritten.LOST)

#: Between two questions about what is in doubt.
_PAUSE_SECONDS = 0.05


def is_conflict(reason: str) -> bool:
    """Tell whether a claim was refused for what others wrote since the host was chosen.

    The request is decided again then. A compare-and-set that was lost is none where
    the claim, judged by what it was lost to, was written to the same host.
    """
    return reason not in _NO_CONFLICTS


class Views(Protocol):
    """What shows the present to a claimer; any thread, without I/O."""

    def view(self, request: requests.Request) -> claim_batches.View | None:
        """Return what is known now; None while no feed is followed."""

    def members(self, group: requests.Group) -> group_rules.Known:
        """Return the names of the hosts of a group's members, as of the view or later."""


class Meter(Protocol):
    """What counts claims; none of it blocks."""

    def claimed(self, count: int, seconds: float) -> None:
        """Claims of one call that were taken, and how long the call took."""

    def claim_refused(self, reason: str) -> None:
        """One claim that was not taken; see :func:`is_conflict`."""

    def claims_confirmed(self, count: int, gone: int, seconds: float) -> None:
        """Claims of one call that were confirmed, and that were gone."""


class NoMeter:
    """Counts nothing."""

    def claimed(self, count: int, seconds: float) -> None:
        """Forget it."""

    def claim_refused(self, reason: str) -> None:
        """Forget it."""

    def claims_confirmed(self, count: int, gone: int, seconds: float) -> None:
        """Forget it."""


class _Unfailing:
    """Counts by another meter: what was claimed stands, whatever becomes of its counting."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def claimed(self, count: int, seconds: float) -> None:
        """See :class:`Meter`."""
        self._count(lambda: self._meter.claimed(count, seconds))

    def claim_refused(self, reason: str) -> None:
        """See :class:`Meter`."""
        self._count(lambda: self._meter.claim_refused(reason))

    def claims_confirmed(self, count: int, gone: int, seconds: float) -> None:
        """See :class:`Meter`."""
        self._count(lambda: self._meter.claims_confirmed(count, gone, seconds))

    @staticmethod
    def _count(count: Callable[[], None]) -> None:
        try:
            count()
        except Exception:
            LOG.exception("Claims could not be counted.")


class LedgerClaimer:
    """Claims for one scheduler process; any thread. Blocks for the back end.

    :param strict: group policies that a filter enforces; others are noted only
    :param confirm_seconds: how long a confirm is tried before the claim is
        taken for gone
    :param clock: monotonic seconds
    """

    def __init__(
        self,
        batches: claim_batches.ClaimBatches,
        views: Views,
        *,
        strict: frozenset[group_model.Policy] = frozenset(STRICT),
        confirm_seconds: float = 5.0,
        meter: Meter | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._batches = batches
        self._views = views
        self._strict = strict
        self._confirm_seconds = confirm_seconds
        self._meter: Meter = _Unfailing(meter) if meter is not None else NoMeter()
        self._clock = clock
        self._sleep = sleep

    def take(
        self,
        request: requests.Request,
        wanted: Sequence[claimer.Wanted],
        deadline: float,
    ) -> list[claimer.Taken | claimer.NotTaken]:
        """See :class:`scheduling.claimer.Claimer`."""
        started = self._clock()
        answers: dict[str, claimer.Taken | claimer.NotTaken] = {}
        left = {each.consumer: each for each in wanted}
        while left:
            view = self._views.view(request)
            if view is None:
                for each in left.values():
                    answers[each.consumer] = _unavailable(each, "the feed is not followed")
                break
            # After the view: a member that it lacks is one of the record's then.
            group = self._group(request)
            taken = self._batches.take([_claim(each) for each in left.values()], view, group)
            for consumer, found in taken.items():
                answer: claim_batches.Answer | None = found
                if isinstance(found, claim_batches.Doubt):
                    answer = self._settled(found, view, deadline)
                if answer in _AGAIN and self._clock() < deadline:
                    continue
                answers[consumer] = self._told(left.pop(consumer), answer)
        taken_count = sum(isinstance(each, claimer.Taken) for each in answers.values())
        self._meter.claimed(taken_count, self._clock() - started)
        return [answers[each.consumer] for each in wanted]

    def confirm(self, taken: Sequence[claimer.Taken]) -> list[bool]:
        """See :class:`scheduling.claimer.Claimer`."""
        started = self._clock()
        stands: dict[str, bool] = {}
        left = list(taken)
        while left:
            found = self._batches.confirm([each.grant for each in left])
            stands.update(
                (each.wanted.consumer, stood)
                for each, stood in zip(left, found, strict=True)
                if stood is not None
            )
            left = [each for each in left if each.wanted.consumer not in stands]
            if left and self._clock() - started > self._confirm_seconds:
                # Whether they stand nobody can tell: so they must not be built on.
                self._batches.release([each.grant for each in left])
                stands.update((each.wanted.consumer, False) for each in left)
                break
            if left:
                self._sleep(_PAUSE_SECONDS)
        gone = sum(not stood for stood in stands.values())
        self._meter.claims_confirmed(len(stands) - gone, gone, self._clock() - started)
        return [stands[each.wanted.consumer] for each in taken]

    def release(self, taken: Sequence[claimer.Taken]) -> None:
        """See :class:`scheduling.claimer.Claimer`."""
        self._batches.release([each.grant for each in taken])

    # -- parts of taking ---------------------------------------------------------------

    def _group(self, request: requests.Request) -> group_places.GroupView | None:
        asked = request.group
        if asked is None or not asked.uuid:
            return None
        names = {asked.policy} if asked.policy else asked.policies
        policy = next((each for each in STRICT if each.value in names), None)
        if policy is None:
            return None
        forced = (request.force_hosts or request.force_nodes) and not request.check_type
        if forced or policy not in self._strict:
            # No filter rules such a host out; others are to know of the member.
            policy = _SOFT[policy]
        group = group_model.Group(asked.uuid, policy, asked.max_server_per_host)
        return group_places.GroupView(group, self._views.members(asked))

    def _settled(
        self, doubt: claim_batches.Doubt, view: claim_batches.View, deadline: float
    ) -> claim_batches.Answer | None:
        """Return what became of a claim in doubt; None if it is to be tried again."""
        while True:
            found = self._batches.settle(doubt, view)
            if isinstance(found, model.Gone):
                return None
            if not isinstance(found, claim_batches.Doubt):
                return found
            if self._clock() > deadline:
                self._batches.release([doubt.held])
                return record_editor.Unwritten.UNAVAILABLE
            self._sleep(_PAUSE_SECONDS)

    def _told(
        self, wanted: claimer.Wanted, answer: claim_batches.Answer | None
    ) -> claimer.Taken | claimer.NotTaken:
        if isinstance(answer, claim_batches.Held):
            return claimer.Taken(wanted, answer)
        told, reason = _refusal(wanted, answer)
        self._meter.claim_refused(reason)
        return told


def _claim(wanted: claimer.Wanted) -> model.Claim:
    return model.Claim(
        wanted.consumer,
        wanted.chosen.uuid,
        wanted.resources,
        node=wanted.node,
        place=wanted.chosen.host,
    )


def _unavailable(wanted: claimer.Wanted, detail: str) -> claimer.NotTaken:
    return claimer.NotTaken(wanted, claimer.Failure.UNAVAILABLE, detail)


def _refusal(
    wanted: claimer.Wanted, answer: claim_batches.Answer | None
) -> tuple[claimer.NotTaken, str]:
    """Return an answer in the words of whoever decides, and its reason as it is counted."""
    hosts = None
    if isinstance(answer, group_rules.Broken):
        hosts, answer = answer.hosts, answer.refused
    if isinstance(answer, model.Refused):
        reason = answer.reason.value
        detail = f"{reason}: {answer.detail}" if answer.detail else reason
        return claimer.NotTaken(wanted, _FAILURES[answer.reason], detail, hosts), reason
    if answer is record_editor.Unwritten.UNREADABLE:
        detail = "its claims were written by a newer release"
        return claimer.NotTaken(wanted, claimer.Failure.NEXT_HOST, detail), answer.value
    if answer is record_editor.Unwritten.REFUSED:
        detail = "no record may have its name"
        return claimer.NotTaken(wanted, claimer.Failure.NEXT_HOST, detail), answer.value
    if answer in _AGAIN:
        detail = "others won every round"
        return claimer.NotTaken(wanted, claimer.Failure.NEXT_HOST, detail), "lost"
    detail = "the synchronizer's back end does not answer"
    return _unavailable(wanted, detail), record_editor.Unwritten.UNAVAILABLE.value
