# SPDX-License-Identifier: Apache-2.0
"""Has the resources of chosen hosts allocated in Placement, and says what came of it."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from keystoneauth1 import exceptions as keystone
from nova import exception as nova_exception
from nova.scheduler import utils as scheduler_utils

from nova_nodb_scheduler.nova_adapter import deferred_candidates
from nova_nodb_scheduler.nova_adapter.placement import allocations, outcomes

LOG = logging.getLogger(__name__)


class Result(enum.Enum):
    """What became of one server's claim."""

    #: Placement has it.
    CLAIMED = "claimed"
    #: Placement has it, beside what the server had before.
    JOINED = "joined"
    #: Not on this host; another may do.
    NEXT_HOST = "next host"
    #: On no host, for Placement cannot be asked or does not answer in time.
    GIVEN_UP = "given up"


@attrs.frozen
class Claim:
    """A server, and what it is to get.

    :param is_new: the consumer has no allocations, as far as is known; else it
        is claimed as Nova claims, which doubles up for a move
    """

    consumer: str
    host_uuid: str
    request: Mapping[str, Any]
    is_new: bool


class Claimer:
    """Claims for one worker. Any thread; blocks for HTTP.

    :param client: names Nova's SchedulerReportClient
    :param look_at: told of hosts whose record turned out to be behind
    """

    def __init__(
        self,
        client: Callable[[], Any],
        writer: allocations.AllocationWriter,
        look_at: Callable[[Sequence[str]], None],
    ) -> None:
        self._client = client
        self._writer = writer
        self._look_at = look_at

    def claim(
        self,
        context: Any,
        spec: Any,
        claims: Sequence[Claim],
        deadline: float,
        why: dict[str, str],
    ) -> dict[str, Result]:
        """Claim for each server; return what became of it, by consumer.

        :param deadline: on the writer's clock
        :param why: filled with the reason, by consumer, where it was not claimed
        :raises AllocationUpdateFailed: Nova's own, of a server that moves; what was
            claimed for the others is removed again
        """
        found: dict[str, Result] = {}
        try:
            self._claim(context, spec, claims, deadline, why, found)
        except Exception:
            self.undo(context, spec, held(claims, found), deadline)
            raise
        behind = [each.host_uuid for each in claims if found[each.consumer] is Result.NEXT_HOST]
        if behind:
            self._look_at(behind)
        return found

    def _claim(
        self,
        context: Any,
        spec: Any,
        claims: Sequence[Claim],
        deadline: float,
        why: dict[str, str],
        found: dict[str, Result],
    ) -> None:
        user_id = _user_id(context, spec)
        new = [claim for claim in claims if claim.is_new]
        if new:
            written = self._writer.write(
                [self._server(claim, spec, user_id) for claim in new],
                deadline,
                divisible=True,
                request_id=getattr(context, "global_id", None),
            )
            # First all that is certain, for what follows may raise.
            for claim in sorted(new, key=lambda each: not _is_written(written[each.consumer])):
                outcome = written[claim.consumer]
                found[claim.consumer] = self._judge(
                    context, spec, claim, outcome, deadline, user_id
                )
                why[claim.consumer] = _reason(outcome)
        for claim in claims:
            if not claim.is_new:
                found[claim.consumer] = self._as_nova_does(context, spec, claim)
                why[claim.consumer] = "refused by Placement"

    def undo(self, context: Any, spec: Any, claims: Sequence[Claim], deadline: float) -> None:
        """Remove what was written for servers of a request that fails, and nothing else.

        Of a server that moves, what it has elsewhere is where it runs: only what
        it was to get on the chosen host goes.
        """
        user_id = _user_id(context, spec)
        new = [self._server(claim, spec, user_id) for claim in claims if claim.is_new]
        left = list(self._writer.undo(new, deadline)) if new else []
        left += [
            claim.consumer
            for claim in claims
            if not claim.is_new and not self._removed(context, claim)
        ]
        for consumer in left:
            LOG.error(
                "The allocation of server %(server)s could not be removed; "
                "'nova-manage placement audit' finds it.",
                {"server": consumer},
            )

    def _removed(self, context: Any, claim: Claim) -> bool:
        """Take a server's allocations on the chosen host away; False if that failed."""
        try:
            return bool(
                self._client().remove_provider_tree_from_instance_allocation(
                    context, claim.consumer, claim.host_uuid
                )
            )
        except (nova_exception.NovaException, keystone.ClientException) as error:
            LOG.warning("Placement did not take an allocation back: %(error)s", {"error": error})
            return False

    def _judge(
        self,
        context: Any,
        spec: Any,
        claim: Claim,
        outcome: outcomes.Outcome,
        deadline: float,
        user_id: str,
    ) -> Result:
        if isinstance(outcome, outcomes.Written):
            return Result.CLAIMED
        if isinstance(outcome, outcomes.ConsumerExists):
            # It was thought to be new; it is not.
            return self._as_nova_does(context, spec, claim)
        if isinstance(outcome, (outcomes.Full, outcomes.Conflict, outcomes.Withdrawn)):
            return Result.NEXT_HOST
        LOG.warning(
            "The allocation of server %(server)s on host %(host)s was not made: %(why)s",
            {"server": claim.consumer, "host": claim.host_uuid, "why": outcome.text},
        )
        if isinstance(outcome, outcomes.Unknown):
            server = self._server(claim, spec, user_id)
            self._writer.undo([server], deadline, unsure=True)
            return Result.GIVEN_UP
        return Result.GIVEN_UP if outcome.status is None else Result.NEXT_HOST

    def _as_nova_does(self, context: Any, spec: Any, claim: Claim) -> Result:
        claimed = scheduler_utils.claim_resources(
            context,
            self._client(),
            spec,
            claim.consumer,
            dict(claim.request),
            allocation_request_version=deferred_candidates.CANDIDATES_VERSION,
        )
        self._look_at([claim.host_uuid])
        return Result.JOINED if claimed else Result.NEXT_HOST

    @staticmethod
    def _server(claim: Claim, spec: Any, user_id: str) -> outcomes.Server:
        return outcomes.Server(claim.consumer, claim.request, spec.project_id, user_id)


def held(claims: Sequence[Claim], found: Mapping[str, Result]) -> list[Claim]:
    """Return the claims that Placement has, as they turned out: of new servers or not."""
    made = []
    for claim in claims:
        result = found.get(claim.consumer)
        if result in (Result.CLAIMED, Result.JOINED):
            made.append(attrs.evolve(claim, is_new=result is Result.CLAIMED))
    return made


def _is_written(outcome: outcomes.Outcome) -> bool:
    return isinstance(outcome, outcomes.Written)


def _reason(outcome: outcomes.Outcome) -> str:
    """Say in a few words why a host was not claimed."""
    if isinstance(outcome, outcomes.Full):
        what = f" of {outcome.resource_class}" if outcome.resource_class else ""
        return f"full{what}" if outcome.by_capacity else f"{outcome.text[:200]}{what}"
    if isinstance(outcome, outcomes.Conflict):
        return "conflict: others kept writing to it"
    if isinstance(outcome, outcomes.Withdrawn):
        return "withdrawn with another server of the request"
    if isinstance(outcome, outcomes.Unknown):
        return "no answer from Placement"
    if isinstance(outcome, outcomes.Rejected):
        return f"rejected by Placement: {outcome.text[:200]}"
    return "refused by Placement"


def _user_id(context: Any, spec: Any) -> str:
    """Return whose server it is, as Nova's claim_resources finds it."""
    if "user_id" in spec and spec.user_id:
        return str(spec.user_id)
    return str(context.user_id)
