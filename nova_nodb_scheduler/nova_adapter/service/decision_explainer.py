# SPDX-License-Identifier: Apache-2.0
"""Tells what would be decided of a request now, and what was decided before.

Nova's own code prepares the request as select_destinations does; then it is
planned over columns, and there it ends: nothing is allocated or held, nobody
is notified, nothing is counted.
"""

from __future__ import annotations

import logging
import math
import os
import time
import uuid as uuid_module
from collections.abc import Sequence
from typing import Any

import attrs
import nova.scheduler.manager
import oslo_messaging as messaging
from nova import exception as nova_exception
from nova import objects as nova_objects

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter import decision_log
from nova_nodb_scheduler.nova_adapter.decisions import decision_assembly, request_decider
from nova_nodb_scheduler.nova_adapter.reads import deferred_candidates
from nova_nodb_scheduler.nova_adapter.reads import request_views as views_module
from nova_nodb_scheduler.nova_adapter.service import scheduler_runtime as runtime_module
from nova_nodb_scheduler.scheduling.pipeline import (
    chosen_hosts,
    decision_steps,
    planning,
    refusal_counts,
)
from nova_nodb_scheduler.wire import explanations

LOG = logging.getLogger(__name__)


@attrs.frozen
class _ExplainingLimit:
    """Ends an explanation that takes the time of requests for too long."""

    started: float
    most_seconds: float

    def look(self) -> None:
        """Go on.

        :raises LimitExceeded: the time is over
        """
        taken = time.monotonic() - self.started
        if taken > self.most_seconds:
            raise errors.LimitExceeded(
                "the time of one explanation in seconds",
                taken,
                self.most_seconds,
                "[nodb_scheduler] rpc_explain_seconds",
            )


class DecisionExplainer:
    """One worker's answers to "why there?". Any thread.

    :param most_seconds: how long one answer may take
    """

    def __init__(self, runtime: runtime_module.SchedulerRuntime, most_seconds: float) -> None:
        self._runtime = runtime
        self._host = runtime.facts.host
        self._log = runtime.log
        self._views = runtime.views
        self._most_seconds = most_seconds

    def explain(
        self, context: Any, primitive: dict[str, Any], servers: int, limit: int
    ) -> explanations.Explanation:
        """Say what would be decided; see the RPC endpoint.

        :raises InvalidRequest: the primitive is no RequestSpec that this Nova reads, or
            something raised on the way, as it would in a decision
        :raises LimitExceeded: it takes too long
        """
        started = time.monotonic()
        watch = _ExplainingLimit(started, self._most_seconds)
        found = explanations.Explanation(
            scheduler=self._host,
            pid=os.getpid(),
            at=time.time(),
            seconds=0.0,
            servers=servers,
            candidates=decision_log.MEMORY,
            reason="",
            counts=[],
            passed=0,
            hosts=[],
            placed=[],
        )
        spec = _read(context, primitive)
        uuids = [str(uuid_module.uuid4()) for _ in range(servers)]
        _join_group(spec, uuids)
        try:
            self._fill(found, context, spec, uuids, limit, watch)
        except errors.LimitExceeded:
            raise
        except request_decider.MemoryCannotDecide as error:
            found.candidates = "placement"
            found.reason = error.reason
        except nova_exception.NoValidHost as error:
            found.reason = f"Nova refuses the request before hosts are looked at: {error}"
        except Exception as error:
            # A filter of the operator's that raises, a neutron that does not answer.
            LOG.exception("A request could not be explained.")
            raise errors.InvalidRequest(
                "evaluation", f"{type(error).__name__}: {error}; see this scheduler's log"
            ) from error
        found.seconds = time.monotonic() - started
        return found

    def past(self, server: str) -> explanations.PastDecisions:
        """Return what was decided about a server."""
        remembered, since = self._log.reach()
        return explanations.PastDecisions(
            host=self._host,
            pid=os.getpid(),
            remembered=remembered,
            since=since,
            decisions=[_past(each, server) for each in self._log.about(server)],
        )

    def _fill(
        self,
        found: explanations.Explanation,
        context: Any,
        spec: Any,
        uuids: Sequence[str],
        limit: int,
        watch: _ExplainingLimit,
    ) -> None:
        decisions = self._runtime.decisions
        if decisions is None:
            raise request_decider.MemoryCannotDecide("[nodb_scheduler] candidates = placement")
        view = self._view(decisions, spec)
        with views_module.working_on(view):
            prepared = Preparation(decisions)
            prepared.run(context, spec, uuids)
            asked = prepared.asked(context, spec, uuids)
            found.reason = decisions.placement_mirror.refusal() or prepared.outside or ""
            if not found.reason:
                try:
                    plan, parts = decisions.decider.explain(asked, view)
                except request_decider.MemoryCannotDecide as error:
                    found.reason = error.reason
            if found.reason:
                # Who would be offered is not known; what is said of all hosts is.
                found.candidates = "placement"
                plan, _ = decisions.decider.explain(attrs.evolve(asked, queries=None), view)
            watch.look()
            # Nova's own code may be asked until here, within the view.
            best = plan.best(max(limit, 1))
            first = plan.counts
            found.passed = plan.counts[-1].after if plan.counts else 0
            found.hosts = [_host(plan, each) for each in best[:limit]]
            if found.reason:
                found.counts = _counts(refusal_counts.without_candidates(first))
                return
            found.placed = _walk(plan, uuids, watch)
            is_placed = len(found.placed) == len(uuids)
            counts = decision_log.counts_of(first, plan, is_placed=is_placed)
            found.counts = _counts(refusal_counts.with_parts(counts, parts))

    def _view(
        self, decisions: decision_assembly.DecisionAssembly, spec: Any
    ) -> views_module.RequestView:
        """Return a view of what is proved, in which nothing is counted."""
        opened = self._views.open()
        cells = [str(cell.uuid) for cell in decisions.host_manager.enabled_cells]
        for scope in request_decider.scopes_of_request(spec, cells, opened.cells):
            missing = opened.lacks(scope)
            if opened.stock or missing is not None:
                why = missing.value if missing is not None else "states not proved"
                raise request_decider.MemoryCannotDecide(f"{scope} is not proved: {why}")
        return views_module.RequestView(
            opened.reads, opened.proof, opened.cells, lambda scope, reason: None
        )


class Preparation:
    """Stands for Nova's manager while its select_destinations prepares a request.

    Nova's method calls what it needs of its manager by name; here the host
    manager is the real one, the questions to Placement are noted instead of
    asked, and the choice, which comes last, is left out.
    """

    def __init__(self, decisions: decision_assembly.DecisionAssembly) -> None:
        self.host_manager = decisions.host_manager
        self.placement_client = _Unasked(decisions.placement_client())
        self._is_rebuild = False

    def __getattr__(self, name: str) -> Any:
        # Constants of the class, such as the default of an argument.
        return getattr(nova.scheduler.manager.SchedulerManager, name)

    def run(self, context: Any, spec: Any, uuids: Sequence[str]) -> None:
        """Run the request filters and make the resource request, in the spec given.

        :raises NoValidHost: a request filter refuses the request
        """
        try:
            nova.scheduler.manager.SchedulerManager.select_destinations(
                self, context, spec_obj=spec, instance_uuids=list(uuids), return_objects=True
            )
        except messaging.ExpectedException as wrapped:
            raise wrapped.exc_info[1] from None

    def _select_destinations(
        self, context: Any, spec: Any, uuids: Any, by_provider: Any, *args: Any, **kwargs: Any
    ) -> list[Any]:
        self._is_rebuild = by_provider is None
        return []

    @property
    def outside(self) -> str | None:
        """Why memory has no answer to this kind of request; None if it has one."""
        return self.placement_client.outside

    def asked(self, context: Any, spec: Any, uuids: Sequence[str]) -> request_decider.ScheduleCall:
        """Return what memory is to decide, where it can."""
        questions = self.placement_client
        return request_decider.ScheduleCall(
            context=context,
            spec=spec,
            instance_uuids=uuids,
            queries=None if self._is_rebuild else tuple(questions.queries),
            version=deferred_candidates.CANDIDATES_VERSION,
            alternates=0,
        )


class _Unasked(deferred_candidates.DeferredCandidates):
    """Questions to Placement that nobody will ask."""

    def ask(self, context: Any) -> deferred_candidates.Answer:
        """Keep Nova from saying NoValidHost."""
        return [{"allocations": {}, "mappings": {}}], {}, deferred_candidates.CANDIDATES_VERSION


def _read(context: Any, primitive: dict[str, Any]) -> Any:
    try:
        # Decoded here, it is this call's own copy.
        spec = nova_objects.RequestSpec.obj_from_primitive(primitive, context)
        spec.flavor  # noqa: B018 - a spec without one is none
    except Exception as error:
        # Of a primitive that Nova did not write, or wrote long ago, Nova and its
        # libraries raise what they happen to meet.
        raise errors.InvalidRequest(
            "request",
            "it is no RequestSpec that this scheduler's Nova can read "
            f"({type(error).__name__}: {str(error)[:500]})",
        ) from error
    return spec


def _join_group(spec: Any, uuids: Sequence[str]) -> None:
    """Make servers members of the request's group, as Nova's API does before it asks."""
    group = spec.instance_group if "instance_group" in spec else None
    if group is not None and "members" in group:
        group.members = [*(group.members or ()), *uuids]


def _walk(
    plan: planning.Plan, uuids: Sequence[str], watch: _ExplainingLimit
) -> list[explanations.PlacedServer]:
    """Place servers one after the other, in the plan alone.

    :raises LimitExceeded: it takes too long
    """
    placed = []
    for server in uuids:
        watch.look()
        best = plan.best(1)
        if not best:
            break
        placed.append(_placed(server, best[0]))
        if len(uuids) > 1:
            plan.take(best[0], server)
    return placed


def _placed(
    server: str, chosen: chosen_hosts.Choice | decision_log.ServerPlacement
) -> explanations.PlacedServer:
    return explanations.PlacedServer(
        server=server,
        uuid=chosen.uuid,
        host=chosen.host,
        node=chosen.node,
        score=_finite(chosen.score),
    )


def _host(plan: planning.Plan, chosen: chosen_hosts.Choice) -> explanations.ExplainedHost:
    return explanations.ExplainedHost(
        uuid=chosen.uuid,
        cell=chosen.cell,
        host=chosen.host,
        node=chosen.node,
        score=_finite(chosen.score),
        shares=[
            explanations.WeigherShare(
                weigher=share.weigher,
                raw=_finite(share.raw),
                normalised=_finite(share.normalised),
                multiplier=_finite(share.multiplier),
                share=_finite(share.multiplier * share.normalised),
            )
            for share in plan.shares(chosen)
        ],
    )


def _counts(counts: Sequence[decision_steps.FilterCount]) -> list[explanations.StepCount]:
    return [
        explanations.StepCount(name=each.name, before=each.before, after=each.after)
        for each in counts
    ]


def _past(decision: decision_log.Decision, server: str) -> explanations.PastDecision:
    return explanations.PastDecision(
        at=decision.at,
        seconds=decision.seconds,
        outcome=decision.outcome,
        candidates=decision.candidates,
        servers=len(decision.servers),
        counts=_counts(decision.counts),
        placed=[_placed(server, each) for each in decision.placed if each.server == server],
        refused=[
            explanations.RefusedHost(
                server=each.server, uuid=each.uuid, host=each.host, reason=each.reason
            )
            for each in decision.refused
            if each.server == server
        ],
    )


def _finite(value: float | None) -> float | None:
    """Return a number that JSON has, else None."""
    return value if value is not None and math.isfinite(value) else None
