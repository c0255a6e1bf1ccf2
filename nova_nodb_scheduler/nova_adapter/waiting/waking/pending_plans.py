# SPDX-License-Identifier: Apache-2.0
"""Whether a request that waits would find hosts now, and why not.

The same columns, filters and weighers as in a decision, over the request as its payload
has it; nothing is held, claimed or counted. Requests with an equal digest are prepared
once for all of them, and once more after a while: Nova's request filters look at
aggregates, which change.

What is told here decides only who is tried. So a request of which memory can tell
nothing (Placement has to be asked, its payload cannot be read) is *not told* to fit nor
not to: its worker has it tried where the amounts would do, and pauses grow with each
refusal.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import attrs
from nova import exception as nova_exception
from nova import objects

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending, requests
from nova_nodb_scheduler.nova_adapter.decisions import decision_assembly, request_decider
from nova_nodb_scheduler.nova_adapter.reads import request_views as views_module
from nova_nodb_scheduler.nova_adapter.service import decision_explainer
from nova_nodb_scheduler.nova_adapter.waiting import request_payload
from nova_nodb_scheduler.scheduling.pipeline import decision_steps, refusal_counts
from nova_nodb_scheduler.synchronizer.pending import pending_ledger
from nova_nodb_scheduler.synchronizer.waking import pending_fit

LOG = logging.getLogger(__name__)

#: How long what was prepared for a digest serves.
_KEPT_SECONDS = 60.0
_MOST_KEPT = 2000


@attrs.frozen
class RestoredRequest:
    """What a payload holds, as far as a scheduler needs it.

    :param context: of the user
    :param spec: RequestSpec of the first server, not shared with anybody
    :param servers: uuids of all servers
    """

    context: Any
    spec: Any
    servers: tuple[str, ...]


class ReadRequest(Protocol):
    """Reads the payload of a request."""

    def __call__(self, key: str) -> RestoredRequest | None:
        """Return what is there; None where it is gone. Blocks for the back end.

        :raises UndecodableRecord: it cannot be read, or not with the keys that are here
        :raises BackendUnavailable: not known
        """


def read_request(
    ledger: pending_ledger.PendingLedger, cipher: request_payload.PayloadCipher, key: str
) -> RestoredRequest | None:
    """Read the payload of a request, as :class:`ReadRequest` has it."""
    payload = ledger.read_payload(key)
    if payload is None:
        return None
    context, arguments = request_payload.unpack(cipher, key, payload)
    specs = arguments.request_specs
    return RestoredRequest(context, specs[0], tuple(each.instance_uuid for each in specs))


@attrs.define
class _Prepared:
    """A request as Nova's scheduler would have it; equal for all of a digest.

    :param why_not: what keeps memory from telling; None where nothing does
    """

    context: Any
    spec: Any
    queries: tuple[requests.CandidateQuery, ...] | None
    version: str | None
    why_not: str | None
    made_at: float


class PendingPlans:
    """Plans requests that wait, for one worker; any thread, one at a time.

    :param views: opens views of what is proved
    :param read: see there
    :param clock: monotonic seconds
    """

    def __init__(
        self,
        decisions: decision_assembly.DecisionAssembly,
        views: views_module.RequestViews,
        read: ReadRequest,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._decisions = decisions
        self._views = views
        self._read = read
        self._clock = clock
        self._now = now
        self._lock = threading.RLock()
        self._kept: collections.OrderedDict[str, _Prepared] = collections.OrderedDict()

    def forget(self) -> None:
        """Prepare all requests anew."""
        with self._lock:
            self._kept.clear()

    def view(self) -> views_module.RequestView:
        """Return a view of what is proved now, in which nothing is counted.

        :raises pending_fit.HostsUnproved: something that any request looks at is not
        """
        decisions = self._decisions
        opened = self._views.open()
        enabled = [str(cell.uuid) for cell in decisions.host_manager.enabled_cells]
        for scope in request_decider.scopes_of_request(None, enabled, ()):
            missing = opened.lacks(scope)
            if opened.stock or missing is not None:
                why = missing.value if missing is not None else "states not proved"
                raise pending_fit.HostsUnproved(f"{scope}: {why}")
        refusal = decisions.placement_mirror.refusal()
        if refusal is not None:
            raise pending_fit.HostsUnproved(refusal)
        return views_module.RequestView(
            opened.reads, opened.proof, opened.cells, lambda scope, reason: None
        )

    def fit(
        self,
        request: pending.PendingRequest,
        view: views_module.RequestView,
        *,
        among: Collection[str] | None = None,
        charged: pending_fit.Amounts | None = None,
    ) -> pending_fit.Fit:
        """Say whether all servers of a request that are not sent yet would find hosts.

        :param among: uuids of the only hosts to look at; None for all
        :param charged: what is granted on hosts and does not show yet, by uuid
        :raises pending_fit.HostsUnproved: not any more
        """
        with self._lock, views_module.working_on(view):
            try:
                prepared = self._prepared(request)
                if prepared.why_not is not None:
                    return pending_fit.NotTold(prepared.why_not)
                return self._fit(request, prepared, view, among, charged or {})
            except request_decider.MemoryCannotDecide as error:
                if error.reason == "states not proved":
                    raise pending_fit.HostsUnproved(error.reason) from error
                return pending_fit.NotTold(error.reason)
            except (errors.NodbError, nova_exception.NovaException) as error:
                return pending_fit.NotTold(str(error))
            except Exception:
                # A filter of an operator's, a request that a former release wrote: whoever
                # stands behind it is not to wait for that.
                LOG.exception("Request %(key)s cannot be planned.", {"key": request.key})
                return pending_fit.NotTold("fault of the plugin")

    def explain(
        self, request: pending.PendingRequest, view: views_module.RequestView
    ) -> tuple[tuple[decision_steps.FilterCount, ...], int] | pending_fit.NotTold:
        """Return how many hosts each step leaves now, and how many take the first server.

        :raises pending_fit.HostsUnproved: not any more
        """
        with self._lock, views_module.working_on(view):
            try:
                prepared = self._prepared(request)
                if prepared.why_not is not None:
                    return pending_fit.NotTold(prepared.why_not)
                planner = self._planner(request, prepared, view, request.unsent[:1])
                plan = planner.plan(frozenset())
                parts = planner.placement_parts()
            except request_decider.MemoryCannotDecide as error:
                if error.reason == "states not proved":
                    raise pending_fit.HostsUnproved(error.reason) from error
                return pending_fit.NotTold(error.reason)
            except (errors.NodbError, nova_exception.NovaException) as error:
                return pending_fit.NotTold(str(error))
            counts = refusal_counts.with_parts(plan.counts, parts)
            return counts, plan.counts[-1].after if plan.counts else 0

    def shortage(
        self, request: pending.PendingRequest, most: int = pending_fit.MOST_HOSTS
    ) -> pending_fit.RoomShortage | pending_fit.NotTold:
        """Return hosts that would take one server of a request if they had room.

        What only Nova's objects could tell is not asked, and topologies count as room.
        """
        decisions = self._decisions
        with self._lock:
            try:
                prepared = self._prepared(request)
                if prepared.why_not is not None:
                    return pending_fit.NotTold(prepared.why_not)
                self._about(prepared, request)
                asked = decisions.parts.request(prepared.spec, prepared.queries)
                return pending_fit.shortage(decisions.engine, asked, request.needs, most)
            except (errors.NodbError, nova_exception.NovaException) as error:
                return pending_fit.NotTold(str(error))
            except Exception:
                # As in fit: nobody's hold is to end for it.
                LOG.exception("What request %(key)s lacks cannot be told.", {"key": request.key})
                return pending_fit.NotTold("fault of the plugin")

    # -- one request ----------------------------------------------------------------

    def _fit(
        self,
        request: pending.PendingRequest,
        prepared: _Prepared,
        view: views_module.RequestView,
        among: Collection[str] | None,
        charged: pending_fit.Amounts,
    ) -> pending_fit.Fit:
        servers = request.unsent
        planner = self._planner(request, prepared, view, servers)

        def place(without: frozenset[str]) -> tuple[str, ...] | None:
            plan = planner.plan(frozenset(), among=among, without=without)
            return pending_fit.walk(plan, servers, planner.about)

        return pending_fit.fit_beside(self._decisions.engine, request, charged, place)

    def _planner(
        self,
        request: pending.PendingRequest,
        prepared: _Prepared,
        view: views_module.RequestView,
        servers: Sequence[str],
    ) -> request_decider.RequestPlanner:
        self._about(prepared, request)
        asked = request_decider.ScheduleCall(
            context=prepared.context,
            spec=prepared.spec,
            instance_uuids=list(servers),
            queries=prepared.queries,
            version=prepared.version,
            alternates=0,
        )
        return request_decider.RequestPlanner(self._decisions.parts, asked, view, self._now)

    def _about(self, prepared: _Prepared, request: pending.PendingRequest) -> None:
        """Have what is prepared speak of one of its requests, as of now."""
        spec = prepared.spec
        spec.instance_uuid = request.unsent[0] if request.unsent else request.key
        group = spec.instance_group if "instance_group" in spec else None
        if group:
            self._look_for_members(group)

    def _look_for_members(self, group: Any) -> None:
        """Take over who is in a server group now, and where they stand by the store."""
        decisions = self._decisions
        present = objects.InstanceGroup.get_by_uuid(group._context, group.uuid)
        members = list(present.members or ())
        places = decisions.parts.places
        group.members = members
        group.hosts = sorted({host for member in members for _cell, host in places(member)})
        group.obj_reset_changes(["members", "hosts"])

    def _prepared(self, request: pending.PendingRequest) -> _Prepared:
        now = self._clock()
        known = self._kept.get(request.queue)
        if known is not None and now - known.made_at < _KEPT_SECONDS:
            self._kept.move_to_end(request.queue)
            return known
        made = self._prepare(request, now)
        self._kept[request.queue] = made
        self._kept.move_to_end(request.queue)
        if len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return made

    def _prepare(self, request: pending.PendingRequest, now: float) -> _Prepared:
        restored = self._read(request.key)
        if restored is None:
            raise errors.UndecodableRecord(f"the payload of request {request.key} is gone")
        spec, context = restored.spec, restored.context
        group = spec.instance_group if "instance_group" in spec else None
        if group:
            group._context = context
        servers = list(request.unsent or request.servers)
        spec.instance_uuid = servers[0] if servers else request.key
        if group:
            self._look_for_members(group)
        preparation = decision_explainer.Preparation(self._decisions)
        preparation.run(context, spec, servers)
        asked = preparation.asked(context, spec, servers)
        return _Prepared(context, spec, asked.queries, asked.version, preparation.outside, now)
