# SPDX-License-Identifier: Apache-2.0
"""One case: the same request decided by Nova and by the plugin, step by step.

Ties are a set. For several servers the plugin's choice is followed on both
sides, so that each step starts from the same state.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

import attrs
import nova.conf
from nova import context as nova_context
from nova import exception
from nova.scheduler import request_filter
from nova.scheduler import utils as scheduler_utils

from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts as choice_module
from nova_nodb_scheduler.scheduling.pipeline import placing, planning
from tests.differential import cases, placement_model, plugin, real_placement, specs, stock
from tests.differential.drawn import request_strategies, words

CONF = nova.conf.CONF

#: Relative, of weights.
TOLERANCE = 1e-9

#: Who lives beside the one that decides.
_WORKERS = ("worker-0", "worker-1", "worker-2", "worker-3")

#: Alternates that are asked for.
_ALTERNATES = 2

Candidates = Mapping[str, Sequence[Mapping[str, Any]]]


class Divergence(AssertionError):
    """The plugin would have decided otherwise."""


@attrs.frozen
class Prepared:
    """A request after Nova's own request filters.

    :param asked: what Placement is asked; None for a rebuild
    :param refused: why Nova refuses it before it looks at hosts
    """

    spec: Any = None
    asked: Sequence[Any] | None = None
    refused: str | None = None


def prepare(manager: stock.HostManager, wanted: request_strategies.Asked) -> Prepared:
    """Run Nova's request filters and make its resource requests."""
    context = nova_context.get_admin_context()
    try:
        spec = specs.request_spec(wanted, manager.cluster)
        if scheduler_utils.request_is_rebuild(spec):
            return Prepared(spec)
        request_filter.process_reqspec(context, spec)
        asked = [scheduler_utils.resources_from_request_spec(context, spec, manager)]
        if asked[0].cpu_pinning_requested and not CONF.workarounds.disable_fallback_pcpu_query:
            asked.append(
                scheduler_utils.resources_from_request_spec(
                    context, spec, manager, enable_pinning_translate=False
                )
            )
    except specs.UnthinkableRequest:
        return Prepared(refused="flavor and image contradict each other")
    except (exception.RequestFilterFailed, exception.NoValidHost):
        return Prepared(refused="no such aggregate or host")
    return Prepared(spec, asked)


def placement_answers(
    cluster: cases.Cluster, asked: Sequence[Any], placement: real_placement.Placement
) -> tuple[Candidates, Sequence[str]]:
    """Return Placement's candidates by provider, and the compute nodes in them.

    Merged as Nova merges the answers of its two queries for pinned CPUs.
    """
    found: list[Mapping[str, Any]] = []
    for at, query in enumerate(asked):
        try:
            answer = placement_model.candidates(cluster, query)
        except placement_model.Unmodelled:
            answer = placement.candidates(cluster, query)
        if answer is None and at == 0:
            continue
        found.extend(answer or ())
    return real_placement.by_root(cluster, found)


class Case:
    """Follows one request on both sides."""

    def __init__(
        self,
        manager: stock.HostManager,
        worker: plugin.Plugin,
        prepared: Prepared,
        servers: int,
        placement: real_placement.Placement,
    ) -> None:
        self.manager = manager
        self.cluster = manager.cluster
        self.worker = worker
        self.servers = servers
        self.placement = placement
        self.spec = prepared.spec
        self.asked = prepared.asked
        self.rooms = {each.uuid: dict(_used(each)) for each in self.cluster.providers}

    def run(self) -> str:
        """Compare all servers of the request; return what became of it.

        :raises Divergence: saying what differs
        """
        novas_spec, drawn_spec = _clone(self.spec), _clone(self.spec)
        made, failure = None, None
        self.spec.instance_uuid = words.NEW_INSTANCES[0]
        try:
            made = self.worker.decide(self.spec, self.asked, self.servers)
        except plugin.Outside as outside:
            return f"outside: {outside}"
        except stock.NOVA_RAISES as error:
            failure = error
        try:
            own = self._stock(novas_spec)
            own.run(0, words.NEW_INSTANCES[0])
        except stock.NOVA_RAISES as error:
            # The plugin may do better here.
            return f"nova raised: {type(error).__name__}: {str(error)[:60]}"
        if made is None:
            raise Divergence("the plugin fails where Nova does not") from failure
        self._same_drawn(made, drawn_spec)
        try:
            return self._follow(own, made)
        except stock.NovaRaised as error:
            return f"nova raised later: {error}"

    def _same_drawn(self, made: planning.Plan, spec: Any) -> None:
        """See that a chooser which draws leaves the first server the hosts that the best has."""
        best = {(each.uuid, each.score) for each in plugin.all_choices(made)}
        for choice in ("two", "random"):
            other = _clone(spec)
            other.instance_uuid = words.NEW_INSTANCES[0]
            specs_of_flavor = dict(other.flavor.extra_specs or {})
            other.flavor.extra_specs = {**specs_of_flavor, "nodb:choice": choice}
            drawn = plugin.all_choices(self.worker.decide(other, self.asked, self.servers))
            found = {(each.uuid, each.score) for each in drawn}
            if len(found) != len(drawn) or not _same_hosts(best, found):
                raise Divergence(f"{choice} draws among {sorted(found)}, the best of {best}")

    def _stock(self, spec: Any) -> stock.Decision:
        if self.asked is None:
            return stock.Decision(self.manager, spec, None, ())
        candidates, summaries = placement_answers(self.cluster, self.asked, self.placement)
        return stock.Decision(self.manager, spec, candidates, summaries)

    def _follow(self, own: stock.Decision, made: planning.Plan) -> str:
        taken: list[choice_module.Choice] = []
        for index in range(self.servers):
            instance = words.NEW_INSTANCES[index]
            if index:
                own.again(index, instance)
                self.spec.instance_uuid = instance
                self.spec.obj_reset_changes(["instance_uuid"])
            chosen = plugin.all_choices(made)
            self._compare(own, chosen, index)
            if not chosen:
                return "no valid host" if index == 0 else "too few hosts"
            first = self._by_four_workers(own, made, chosen, index)
            made.take(first, instance)
            taken.append(first)
            self._use(first)
            if not own.consume((first.host, first.node), instance):
                return "nova could not consume"
        self._same_alternates(own, made, taken)
        return "placed"

    # -- one server -----------------------------------------------------------------

    def _compare(
        self, own: stock.Decision, chosen: Sequence[choice_module.Choice], index: int
    ) -> None:
        # Nova can claim nothing on a node without a uuid, and make no Selection of it.
        expected = {
            stock.name_of(state): state
            for state in own.hosts
            if (state.uuid is not None if self.asked is None else self._claimable(state))
        }
        found = {(each.host, each.node): each for each in chosen}
        if len(found) != len(chosen):
            raise Divergence(f"server {index}: a host is proposed twice: {chosen}")
        if set(found) != set(expected):
            raise Divergence(
                f"server {index}: only Nova has {sorted(set(expected) - set(found))}, "
                f"only the plugin has {sorted(set(found) - set(expected))}; "
                f"offered {sorted(stock.name_of(each) for each in own.states)}"
            )
        for name, each in found.items():
            self._same_host(expected[name], each)
            if len(own.hosts) > 1:
                self._same_weight(own.weights[name], each, index)
        self._same_order(own, chosen, index)

    def _same_host(self, state: Any, found: choice_module.Choice) -> None:
        if state.uuid is not None and state.uuid != found.uuid:
            raise Divergence(f"{found.host}: uuid {found.uuid}, Nova has {state.uuid}")
        if state.cell_uuid != found.cell:
            raise Divergence(f"{found.host}: cell {found.cell}, Nova has {state.cell_uuid}")
        if self.asked is None:
            return
        ours = [dict(each) for each in found.allocation_requests]
        novas = list(state.allocation_candidates)
        if placement_model.canonical(ours) != placement_model.canonical(novas):
            raise Divergence(f"{found.host}: allocation requests {ours}, Nova has {novas}")
        if novas and placement_model.canonical(ours[:1]) != placement_model.canonical(novas[:1]):
            raise Divergence(f"{found.host}: first request {ours[0]}, Nova has {novas[0]}")

    @staticmethod
    def _same_weight(expected: float, found: choice_module.Choice, index: int) -> None:
        if math.isnan(expected) or expected == -math.inf:
            if found.score > -1.7e308:
                raise Divergence(f"{found.host} weighs {found.score}, Nova has {expected}")
            return
        if not math.isclose(expected, found.score, rel_tol=TOLERANCE, abs_tol=1e-9):
            raise Divergence(
                f"server {index}: {found.host}/{found.node} weighs {found.score!r}, "
                f"Nova has {expected!r}"
            )

    @staticmethod
    def _same_order(
        own: stock.Decision, chosen: Sequence[choice_module.Choice], index: int
    ) -> None:
        """The first is one of the best; the others come in descending order."""
        weights = [own.weights[each.host, each.node] for each in chosen]
        if any(math.isnan(weight) for weight in weights):
            return
        subset = min(CONF.filter_scheduler.host_subset_size, len(weights))
        if not weights:
            return
        best = sorted(weights, reverse=True)[:subset]
        if not _at_least(weights[0], best[-1]):
            raise Divergence(f"server {index}: {chosen[0]} is chosen, the best weigh {best}")
        for first, second in itertools.pairwise(weights[1:]):
            if not _at_least(first, second):
                raise Divergence(f"server {index}: the order is {weights}")

    @staticmethod
    def _by_four_workers(
        own: stock.Decision,
        made: planning.Plan,
        chosen: Sequence[choice_module.Choice],
        index: int,
    ) -> choice_module.Choice:
        """See that each of four workers takes one of the best; return what one of them takes.

        As each of them chooses with ``claim_spread`` as it is by default.
        """
        weights = [own.weights[each.host, each.node] for each in chosen]
        best = sorted(weights, reverse=True)[: CONF.filter_scheduler.host_subset_size]
        found = []
        for name in _WORKERS:
            spread = placing.Spreading(name, lambda: _WORKERS)
            first = spread.choose(made.best, made.passed, is_told_apart=made.is_told_apart)
            if first is None:
                raise Divergence(f"server {index}: {name} takes none of {len(chosen)} hosts")
            weight = own.weights[first.host, first.node]
            if not any(map(math.isnan, weights)) and not _at_least(weight, best[-1]):
                raise Divergence(f"server {index}: {name} takes {first}, the best weigh {best}")
            found.append(first)
        return found[index % len(found)]

    # -- alternates -------------------------------------------------------------------

    def _same_alternates(
        self, own: stock.Decision, made: planning.Plan, taken: Sequence[choice_module.Choice]
    ) -> None:
        """As Nova: the best others of a choice's cell, weighed anew after several servers."""
        if self.servers > 1:
            own.again(self.servers - 1, words.NEW_INSTANCES[self.servers - 1])
        names = {(each.host, each.node) for each in taken}
        left = [
            state
            for state in own.hosts
            if stock.name_of(state) not in names
            and (state.uuid is not None if self.asked is None else state.allocation_candidates)
        ]
        for chosen, found in zip(taken, made.alternates(taken, _ALTERNATES), strict=True):
            eligible = {
                stock.name_of(state): own.weights[stock.name_of(state)]
                for state in left
                if state.cell_uuid == chosen.cell
            }
            proposed = [(each.host, each.node) for each in found]
            wanted = min(_ALTERNATES, len(eligible))
            if len(set(proposed)) != wanted or not set(proposed) <= set(eligible):
                raise Divergence(f"alternates of {chosen.host}: {proposed}, Nova has {eligible}")
            best = sorted(eligible.values(), reverse=True)[:wanted]
            weights = [eligible[name] for name in proposed]
            drawn = CONF.filter_scheduler.host_subset_size > 1 or any(map(math.isnan, best))
            if not drawn and not all(map(_at_least, weights, best)):
                raise Divergence(f"alternates of {chosen.host} weigh {weights}, the best {best}")

    # -- room, as Placement would say at the claim ------------------------------------

    def _claimable(self, state: Any) -> bool:
        # Nova claims the first allocation request of a host and no other.
        return any(self._has_room(each) for each in state.allocation_candidates[:1])

    def _has_room(self, request: Mapping[str, Any]) -> bool:
        held = {each.uuid: each for each in self.cluster.providers}
        for uuid, wanted in request["allocations"].items():
            for name, amount in wanted["resources"].items():
                inventory = held[uuid].inventories[name]
                room = (inventory.total - inventory.reserved) * inventory.allocation_ratio
                if self.rooms[uuid].get(name, 0) + amount > room:
                    return False
        return True

    def _use(self, chosen: choice_module.Choice) -> None:
        for request in chosen.allocation_requests[:1]:
            for uuid, wanted in request["allocations"].items():
                for name, amount in wanted["resources"].items():
                    used = self.rooms[uuid]
                    used[name] = used.get(name, 0) + amount


def _used(provider: cases.Provider) -> Mapping[str, int]:
    used: dict[str, int] = {}
    for held in provider.allocations.values():
        for name, amount in held.items():
            used[name] = used.get(name, 0) + amount
    return used


def _at_least(first: float, second: float) -> bool:
    return first >= second or math.isclose(first, second, rel_tol=TOLERANCE, abs_tol=1e-9)


def _same_hosts(first: Set[tuple[str, float]], second: Set[tuple[str, float]]) -> bool:
    """Say whether hosts are the same and weigh the same; what is no number weighs the least."""
    return {uuid for uuid, _ in first} == {uuid for uuid, _ in second} and all(
        math.isclose(score, dict(second)[uuid], rel_tol=TOLERANCE, abs_tol=1e-9)
        for uuid, score in first
    )


def _clone(spec: Any) -> Any:
    """Return a copy of a spec and all in it: a decision writes into it."""
    made = spec.obj_clone()
    made.obj_reset_changes(recursive=True)
    return made
