# SPDX-License-Identifier: Apache-2.0
"""Nova's SchedulerManager, choosing among host states held in memory."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import nova.conf
import nova.scheduler.host_manager
import nova.scheduler.manager
import oslo_messaging as messaging
from nova import exception as nova_exception
from nova import objects
from nova.i18n import _
from nova.objects import base

from nova_nodb_scheduler.nova_adapter import activation, assembly, decision_log, rpc_server
from nova_nodb_scheduler.nova_adapter.claims import outside_claims
from nova_nodb_scheduler.nova_adapter.conversion import request_conversion
from nova_nodb_scheduler.nova_adapter.decisions import request_decider
from nova_nodb_scheduler.nova_adapter.reads import (
    database_reads,
    deferred_candidates,
    prepared_requests,
    request_views,
    unread_cells,
)
from nova_nodb_scheduler.nova_adapter.reporting import scopes as scopes_module
from nova_nodb_scheduler.nova_adapter.reporting import state_proof as proof_module
from nova_nodb_scheduler.nova_adapter.service import process_hooks, start_gate, worker_status
from nova_nodb_scheduler.nova_adapter.service import scheduler_runtime as runtime_module

LOG = logging.getLogger(__name__)


#: Reasons to leave memory for which claims could not be judged or made either.
_IN_DOUBT = frozenset(
    (
        "claims unavailable",
        "feed behind",
        "mirror not proved",
        "states not proved",
    )
)

#: Reasons for which it is not looked once more for claims that have served: who was refused
#: for want of time has looked for them all along.
_LOOKED_OR_IN_DOUBT = _IN_DOUBT | {"mirror behind"}

#: Reasons for which columns may be behind what Nova's own code has read.
_STATES_IN_DOUBT = frozenset(
    ("fault of the plugin", "feed behind", "not proved any more", "states not proved")
)

#: What Nova keeps of a shutdown's time for what comes after its requests.
_SHUTDOWN_SECONDS = 20.0
#: For requests under way where Nova says no time.
_DRAIN_SECONDS = 60.0


@contextlib.contextmanager
def _host_manager_class(cls: type[Any]) -> Iterator[None]:
    """Have Nova's constructor build another host manager.

    It names the class through its module, and building Nova's own first would
    read every compute node and instance.
    """
    module = nova.scheduler.host_manager
    own = module.HostManager
    module.HostManager = cls
    try:
        yield
    finally:
        module.HostManager = own


class SchedulerManager(
    process_hooks.EndsWithService,
    nova.scheduler.manager.SchedulerManager,  # type: ignore[misc]
):
    """The nodb scheduler. Constructor as Nova's; nothing runs before init_host."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        plugin = assembly.get()
        plugin.check_scheduler()
        with _host_manager_class(plugin.host_manager_class()):
            super().__init__(*args, **kwargs)
        database_reads.install()
        prepared_requests.install()
        unread_cells.install_in_scheduler()
        start_gate.install()
        self._nodb_make(plugin)

    def _nodb_make(self, plugin: assembly.Plugin) -> None:
        """Make what a worker runs, and the gate that its requests wait behind."""
        self._nodb_pid = os.getpid()
        self.nodb = self._runtime(plugin)
        self._nodb_views = self.nodb.views
        self._nodb_late = plugin.late_requests()
        proof = worker_status.StartProof(self.nodb, self._nodb_scopes)
        self.nodb.gate = start_gate.RequestGate(
            proof.judge, float(plugin.options.start_timeout_seconds)
        )
        #: Nova's service gets its RPC server from here; see :mod:`.start_gate`.
        self.nodb_intake = start_gate.RequestIntake(self.nodb.gate, self.nodb.hurry)

    def _nodb_scopes(self) -> list[str]:
        """Return the scopes that a request may go to."""
        return [*(str(cell.uuid) for cell in self.host_manager.enabled_cells), scopes_module.API]

    def _runtime(self, plugin: assembly.Plugin) -> runtime_module.SchedulerRuntime:
        runtime = plugin.scheduler(
            lambda: sorted(self.host_manager.cells),
            make_server=lambda runtime: rpc_server.RpcServer(plugin, runtime),
        )

        def client() -> Any:
            return super(SchedulerManager, self).placement_client

        runtime.decisions = plugin.decisions(runtime, self.host_manager, client)
        if runtime.decisions is None:
            runtime.upkeep = plugin.upkeep(runtime, client)
        runtime.unjudged = plugin.unjudged(runtime, client)
        return runtime

    # -- life: threads start in the worker, after the fork ---------------------

    def init_host(self, service_ref: Any) -> None:
        """Start the feed of host states; called in each worker.

        :raises ModeDiffers: this service is configured for another mode than the compute
            nodes of a cell are in
        :raises CellNotHeld: the back end does not hold them
        """
        super().init_host(service_ref)
        assembly.get().compute_nodes.check_start(sorted(self.host_manager.cells))
        if self._nodb_pid != os.getpid() or self.nodb.stopped:
            # Nova made this manager before it forked its workers; each needs
            # a name of its own. A worker told by SIGHUP starts it once more.
            self._nodb_make(assembly.get())
        self.nodb.start()
        process_hooks.tell_of_scheduler(self.nodb)

    def graceful_shutdown(self, *args: Any, **kwargs: Any) -> None:
        """Have what was taken answered, from memory still; then shut down as Nova does.

        Nova itself waits only for requests that have begun: those behind them in
        this process would find their threads, and ours, stopped.
        """
        timeout = kwargs.get("timeout", args[0] if args else None)
        if timeout is None:
            self.nodb_intake.drain(_DRAIN_SECONDS)
        else:
            # Nova's share for what comes after, in its own method.
            began = time.monotonic()
            if not self.nodb_intake.drain(max(0.0, timeout - _SHUTDOWN_SECONDS)):
                LOG.warning("Requests are still under way; the service ends all the same.")
            args, kwargs = (max(0.0, timeout - (time.monotonic() - began)),), {}
        super().graceful_shutdown(*args, **kwargs)

    def nodb_stop(self) -> None:
        """Stop what init_host started; idempotent."""
        self.nodb.stop()

    # -- requests ---------------------------------------------------------------

    @messaging.expected_exceptions(nova_exception.NoValidHost)  # type: ignore[untyped-decorator]
    def select_destinations(self, context: Any, *args: Any, **kwargs: Any) -> Any:
        """Choose hosts as Nova does, from memory where it is proved current.

        NoValidHost is said only on proved state: if a cell lost its proof
        meanwhile, or Placement offered a host that the store does not know,
        the request is decided once more, by Nova's own reads; if claims kept
        hosts full for nothing, once more without them before.

        :raises NoValidHost: there is none, or nobody waits for the answer any more
        :raises HostsNotRead: there may be one in a cell that could not be read
        """
        started = time.monotonic()
        named = given(args, kwargs)
        decisions = self.nodb.decisions
        if decisions is not None:
            # Before the view: it is not to see what their former moves claimed.
            decisions.claim_duty.end_former_claims(_servers(named))
        view = self._nodb_views.open()
        view.decides = self._memory_decides(view, named.get("spec_obj"))
        # Nova changes the request as it goes; a second decision needs the first one's.
        untouched_args = tuple(map(_copy, args))
        untouched = {name: _copy(value) for name, value in kwargs.items()}
        outcome = "error"
        chosen = None
        view.trace.servers = _servers(named)
        try:
            if self._nodb_late.is_given_up(context, _servers(named), view, self.host_manager.cells):
                outcome = "given_up"
                raise nova_exception.NoValidHost(reason=_("Nobody waits for the answer any more."))
            try:
                with request_views.working_on(view):
                    chosen = self._select(context, args, kwargs)
            except nova_exception.NoValidHost:
                retry = self._to_retry(view, named, started)
                if retry is None:
                    self._require_read(view)
                    outcome = "no_valid_host"
                    raise
                try:
                    chosen = self._select_again(context, view, retry, untouched_args, untouched)
                except nova_exception.NoValidHost:
                    self._require_read(view)
                    outcome = "no_valid_host"
                    raise
            outcome = "selected"
            return chosen
        finally:
            seconds = time.monotonic() - started
            self._account(view, named.get("spec_obj"), chosen, outcome, seconds)

    def _select_again(
        self,
        context: Any,
        view: request_views.RequestView,
        retry: request_views.RequestView,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Decide a request once more; by Nova's own reads where its renewed view lost its proof.

        :param retry: the renewed view itself, or a stock one
        """
        if retry is view:
            copied = {name: _copy(value) for name, value in kwargs.items()}
            try:
                with request_views.working_on(view):
                    return self._select(context, tuple(map(_copy, args)), copied)
            except nova_exception.NoValidHost:
                if not self._in_doubt(view):
                    raise
            view.asked_placement = "not proved any more"
            retry = self._nodb_views.stock()
        try:
            with request_views.working_on(retry):
                return self._select(context, args, kwargs)
        except nova_exception.NoValidHost:
            view.offered, view.unread = retry.offered, retry.unread
            raise

    def _require_read(self, view: request_views.RequestView) -> None:
        """Refuse to say that there is no host where records answer and some could not be read.

        Where Nova's tables answer, a cell whose database is down is left out as in stock Nova.

        :raises HostsNotRead: naming the cells
        """
        if view.unread and self.nodb.reads_records:
            raise unread_cells.HostsNotRead(unread_cells.missing(view.unread))

    def _to_retry(
        self, view: request_views.RequestView, given: Mapping[str, Any], started: float
    ) -> request_views.RequestView | None:
        """Return the view to decide a request with once more; None if its refusal stands."""
        why = "not proved any more"
        if not self._in_doubt(view):
            try:
                if not self._claims_ended(view, given, started):
                    return None
            except request_decider.MemoryCannotDecide as error:
                why = error.reason
            else:
                if view.renew():
                    view.deferred = None
                    view.decides = self._memory_decides(view, given.get("spec_obj"))
                    return view
        view.asked_placement = why
        return self._nodb_views.stock()

    def _claims_ended(
        self, view: request_views.RequestView, given: Mapping[str, Any], started: float
    ) -> bool:
        """Say whether Nova's own code refused a request for claims that had served.

        Where memory decides it has looked itself.

        :raises MemoryCannotDecide: some did, and memory does not know of it yet
        """
        decisions = self.nodb.decisions
        if (
            decisions is None
            or not decisions.claiming
            or view.stock
            or view.decides
            or view.asked_placement in _LOOKED_OR_IN_DOUBT
        ):
            return False
        spec = given.get("spec_obj")
        group = None if spec is None else request_conversion.group_uuid(spec)
        return decisions.claim_duty.some_ended(view.reads.claims, _servers(given), started, group)

    def _account(
        self, view: request_views.RequestView, spec: Any, chosen: Any, outcome: str, seconds: float
    ) -> None:
        """Count and record a request; the answer stands whatever happens here."""
        try:
            why: str | None = "candidates = placement"
            decisions = self.nodb.decisions
            if decisions is not None:
                outside = view.deferred.outside if view.deferred is not None else None
                why = view.asked_placement or outside
                if outcome == "no_valid_host" and why is not None and spec is not None:
                    parts = decisions.parts if why not in _STATES_IN_DOUBT else None
                    request_decider.log_refusal(parts, view.trace, spec, view.offered, why)
            self.nodb.account(view.served, view.trace, chosen, seconds, outcome, why)
        except Exception:
            LOG.exception("A request could not be recorded.")

    def _select(self, context: Any, args: Any, kwargs: Any) -> Any:
        # Nova's own method is wrapped for its RPC server; what it wraps
        # raises NoValidHost as it is.
        try:
            return super().select_destinations(context, *args, **kwargs)
        except messaging.ExpectedException as wrapped:
            raise wrapped.exc_info[1] from None

    def _select_destinations(self, *args: Any, **kwargs: Any) -> Any:
        # Nova notifies before and after; nothing else stands between.
        schedule = (
            super()._select_destinations
            if activation.notifications_are_heard(self.notifier)
            else self._schedule
        )
        return schedule(*args, **kwargs)

    # -- candidates and choice from memory ----------------------------------------

    @property
    def placement_client(self) -> Any:
        """Nova's client; within a request decided from memory, one that asks nobody yet."""
        client = super().placement_client
        view = request_views.current()
        if view is None or not view.decides:
            return client
        if view.deferred is None:
            view.deferred = deferred_candidates.DeferredCandidates(client)
        return view.deferred

    def _schedule(
        self,
        context: Any,
        spec_obj: Any,
        instance_uuids: Any,
        alloc_reqs_by_rp_uuid: Any,
        provider_summaries: Any,
        allocation_request_version: Any = None,
        return_alternates: bool = False,
    ) -> Any:
        view = request_views.current()
        decisions = self.nodb.decisions
        # What claims are judged by is proved where the choice itself might be.
        decides = view is not None and view.decides
        if view is not None and decides and decisions is not None and instance_uuids:
            deferred = view.deferred
            # A rebuild asks for no candidates and claims nothing.
            is_rebuild = alloc_reqs_by_rp_uuid is None
            if is_rebuild or (deferred is not None and deferred.outside is None):
                asked = request_decider.ScheduleCall(
                    context=context,
                    spec=spec_obj,
                    instance_uuids=instance_uuids,
                    queries=None if deferred is None or is_rebuild else tuple(deferred.queries),
                    version=allocation_request_version,
                    alternates=self._alternates if return_alternates else 0,
                )
                try:
                    return decisions.decider.schedule(asked, view)
                except request_decider.MemoryCannotDecide as error:
                    view.asked_placement = error.reason
            view.decides = False
            self._tell_left(view)
            if deferred is not None and deferred.outside is None:
                answer = deferred.ask(context)
                if not answer[0]:
                    raise nova_exception.NoValidHost(reason="")
                alloc_reqs_by_rp_uuid = deferred_candidates.by_provider(answer[0])
                provider_summaries = answer[1] or {}
                allocation_request_version = answer[2]
        elif view is not None and decisions is not None:
            self._tell_left(view)
        unjudged = self._unjudged(provider_summaries)
        claims: outside_claims.OutsideClaimer | None = unjudged
        doubted = view is None or view.asked_placement in _IN_DOUBT
        if decides and decisions is not None and not doubted:
            claims = decisions.fallback_claims(unjudged) or unjudged
        with outside_claims.answered_together(claims, unjudged):
            return super()._schedule(
                context,
                spec_obj,
                instance_uuids,
                alloc_reqs_by_rp_uuid,
                provider_summaries,
                allocation_request_version,
                return_alternates,
            )

    def _tell_left(self, view: request_views.RequestView) -> None:
        outside = view.deferred.outside if view.deferred is not None else None
        decision_log.tell_left(view.trace, view.asked_placement or outside or "no servers")

    def _unjudged(self, summaries: Any) -> outside_claims.UnjudgedClaimer | None:
        """Return what allocates for a request without a claim that is judged."""
        unjudged = self.nodb.unjudged
        if unjudged is None:
            return None
        try:
            return unjudged.claims(summaries)
        except Exception:
            LOG.exception("Allocations of a request cannot be verified.")
            return None

    @property
    def _alternates(self) -> int:
        return int(nova.conf.CONF.scheduler.max_attempts) - 1

    def _get_all_host_states(self, context: Any, spec_obj: Any, provider_summaries: Any) -> Any:
        view = request_views.current()
        if view is not None:
            view.offered = tuple(provider_summaries or ())
        if view is not None and not view.stock and provider_summaries:
            view.unknown_candidates |= not all(
                view.reads.knows_node(uuid)
                for uuid, summary in provider_summaries.items()
                if _is_host(uuid, summary)
            )
        return super()._get_all_host_states(context, spec_obj, provider_summaries)

    def _memory_decides(self, view: request_views.RequestView, spec: Any = None) -> bool:
        """Tell whether all that a choice looks at is proved, Placement's mirror too."""
        decisions = self.nodb.decisions
        if view.stock or decisions is None:
            view.asked_placement = "states not proved"
            return False
        enabled = [str(cell.uuid) for cell in self.host_manager.enabled_cells]
        if not view.serves_all(request_decider.scopes_of_request(spec, enabled, view.cells)):
            view.asked_placement = "states not proved"
            return False
        try:
            view.asked_placement = decisions.placement_mirror.refusal()
        except Exception:
            LOG.exception("Whether the mirror of Placement may be used is not known.")
            view.asked_placement = "fault of the plugin"
        return view.asked_placement is None

    def _in_doubt(self, view: request_views.RequestView) -> bool:
        if view.unknown_candidates:
            for scope in sorted(view.served):
                view.miss(scope, proof_module.UnprovedReason.UNKNOWN_HOST)
            return True
        unnamed = view.proof.unnamed & view.served
        for scope in sorted(unnamed):
            view.miss(scope, proof_module.UnprovedReason.UNNAMED)
        if unnamed:
            return True
        if self._nodb_views.still_proved(view):
            return False
        for scope in sorted(view.served):
            view.miss(scope, proof_module.UnprovedReason.FEED)
        return True


def _is_host(uuid: str, summary: Any) -> bool:
    """Tell whether a provider is a compute node's, not shared storage or a device."""
    resources = summary.get("resources") or {}
    return summary.get("root_provider_uuid", uuid) == uuid and any(
        name in ("VCPU", "PCPU", "MEMORY_MB") or name.startswith("CUSTOM_") for name in resources
    )


#: What Nova's select_destinations takes, in order.
_NAMES = ("request_spec", "filter_properties", "spec_obj", "instance_uuids")


def given(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Nova's select_destinations is called with, by name."""
    return {**dict(zip(_NAMES, args, strict=False)), **kwargs}


def _servers(given: Mapping[str, Any]) -> Sequence[str]:
    """Return the servers that Nova's select_destinations is asked about."""
    spec = given.get("spec_obj")
    uuids = given.get("instance_uuids")
    if uuids or spec is None or "instance_uuid" not in spec:
        return uuids or []
    return [spec.instance_uuid]


#: What Nova's request filters, resource request and host states change of a request
#: beside its own fields.
_CHANGED_PARTS = tuple(
    map(
        base.get_attrname,
        (
            "requested_destination",
            "request_level_params",
            "requested_resources",
            "instance_group",
            "numa_topology",
        ),
    )
)
_HINTS = base.get_attrname("scheduler_hints")


def _copy(value: Any) -> Any:
    """Return a request that stays as it is while Nova works on the other.

    A whole clone costs a fifth of a request's time in memory.
    """
    if not isinstance(value, objects.RequestSpec):
        return value
    copied = copy.copy(value)
    held = vars(copied)
    copied._changed_fields = set(value._changed_fields)
    for name in _CHANGED_PARTS:
        if part := held.get(name):
            held[name] = prepared_requests.copied(part)
    if hints := held.get(_HINTS):
        held[_HINTS] = dict(hints)
    return copied
