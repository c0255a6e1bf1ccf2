# SPDX-License-Identifier: Apache-2.0
"""The plugin's side: records to store to columns to engine, a RequestSpec to a plan."""

from __future__ import annotations

import datetime
import random
from collections.abc import Collection, Sequence
from typing import Any

import nova.conf
from nova import context as nova_context

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.nova_adapter.conversion import request_conversion, scheduling_options
from nova_nodb_scheduler.nova_adapter.decisions import host_objects
from nova_nodb_scheduler.nova_adapter.reads import deferred_candidates, host_manager, request_views
from nova_nodb_scheduler.nova_adapter.reporting import state_proof
from nova_nodb_scheduler.scheduling.facts import fact_source, frame_keeper
from nova_nodb_scheduler.scheduling.frame import host_frame
from nova_nodb_scheduler.scheduling.namespaces import node_facts
from nova_nodb_scheduler.scheduling.pipeline import candidates, chosen_hosts, engine, planning
from tests.differential import cases, specs, stored
from tests.differential.drawn import words

CONF = nova.conf.CONF

NOW_SECONDS = words.NOW.replace(tzinfo=datetime.UTC).timestamp()


class Outside(Exception):
    """The plugin leaves the request to Placement, and says why."""


class HostManager(host_manager.HostManager):
    """The plugin's, knowing its cells without a database."""

    def __init__(self, cluster: cases.Cluster) -> None:
        self.cluster = cluster
        super().__init__()

    def refresh_cells_caches(self) -> None:
        self.cells = {uuid: specs.cell_mapping(uuid) for uuid in words.CELLS}
        self.enabled_cells = [self.cells[uuid] for uuid in self.cluster.enabled_cells]
        self.host_to_cell_uuid = {}

    def _init_aggregates(self) -> None:
        """Aggregates are read from the store."""


class Plugin:
    """A scheduler worker's parts over one cluster, under the present configuration."""

    def __init__(self, cluster: cases.Cluster, seed: int = 0) -> None:
        self.cluster = cluster
        self._revision = 1
        self.store = stored.store(cluster)
        self.manager = HostManager(cluster)
        chosen = scheduling_options.settings(CONF, self.manager)
        present = fact_source.Present()
        frame = host_frame.HostFrame(locate=present.locate, attribute=present.attribute)
        self.engine = engine.Engine(
            chosen,
            scheduling_options.enabled_filters(chosen, self.manager),
            scheduling_options.enabled_weighers(chosen, self.manager),
            frame=frame,
            rng=random.Random(seed),
        )
        self.keeper = frame_keeper.FrameKeeper(
            self.store, self.engine, present, ratios=_default_ratios()
        )

    def update(self, cluster: cases.Cluster) -> None:
        """Take over what changed, as the feed brings it: record by record."""
        before = {(name, key): state for name, key, state in stored.states(self.cluster)}
        after = {(name, key): state for name, key, state in stored.states(cluster)}
        changed: dict[tuple[str, str], Any] = {
            key: state for key, state in after.items() if before.get(key) != state
        }
        changed.update(dict.fromkeys(before.keys() - after.keys()))
        self._revision += 1
        stored.put(self.store, changed, self._revision)
        self.cluster = self.manager.cluster = cluster

    def view(self) -> request_views.RequestView:
        """Return a view of the store as it is, all of it proved."""
        read = request_views.MemoryReads(
            self.store.snapshot(), 1, request_views.BuiltObjects(), nova_context.get_admin_context()
        )
        return request_views.RequestView(
            read, state_proof.StateProof({}), words.CELLS, _no_fall_back
        )

    def decide(self, spec: Any, asked: Sequence[Any] | None, servers: int) -> planning.Plan:
        """Plan a request.

        :param asked: Nova's ResourceRequests; None for a rebuild
        :raises Outside: it is Placement's to answer
        """
        queries: tuple[requests.CandidateQuery, ...] | None = None
        if asked is not None:
            parsed = [deferred_candidates.parse_query(each.to_querystring()) for each in asked]
            for each in parsed:
                if isinstance(each, deferred_candidates.OutsideMemory):
                    raise Outside(each.reason)
            queries = tuple(each for each in parsed if isinstance(each, requests.CandidateQuery))
        self.keeper.catch_up(NOW_SECONDS)
        request = request_conversion.request(spec, queries, self.cluster.enabled_cells)
        for query in queries or ():
            reason = candidates.outside(query, self.engine.frame)
            if reason is not None:
                raise Outside(reason)
        view = self.view()
        objects = host_objects.NovaHostObjects(
            self.manager,
            spec,
            lambda uuids: self._states(spec, view, uuids),
            lambda uuid: self.engine.allocation_requests(request, uuid),
        )
        return self.engine.plan(request, objects, servers=servers)

    def _states(
        self, spec: Any, view: request_views.RequestView, uuids: Collection[str]
    ) -> dict[str, Any]:
        """As the decider makes them: by Nova's own method, over the store."""
        frame = self.engine.frame
        names = {}
        for uuid in uuids:
            row = frame.row_of(uuid)
            if row is not None:
                facts = frame.facts(row)
                names[facts.host, facts.node] = uuid
        with request_views.working_on(view):
            states = list(
                self.manager.get_host_states_by_uuids(
                    nova_context.get_admin_context(), list(uuids), spec
                )
            )
        return {
            names[state.host, state.nodename]: state
            for state in states
            if (state.host, state.nodename) in names
        }


def all_choices(made: planning.Plan) -> list[chosen_hosts.Choice]:
    """Return every host a plan has, best first."""
    return made.best(1_000)


def _default_ratios() -> node_facts.DefaultRatios:
    return node_facts.DefaultRatios(
        *(
            getattr(CONF, f"{name}_allocation_ratio")
            or getattr(CONF, f"initial_{name}_allocation_ratio")
            for name in ("cpu", "ram", "disk")
        )
    )


def _no_fall_back(scope: str, reason: state_proof.UnprovedReason) -> None:
    raise AssertionError(f"left memory: {scope}, {reason}")
