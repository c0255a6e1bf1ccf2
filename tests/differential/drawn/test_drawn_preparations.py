# SPDX-License-Identifier: Apache-2.0
"""What is remembered of Nova's preparation is what Nova would make of the request once more."""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import fixtures
import hypothesis
import nova.conf
from hypothesis import strategies as st
from nova import context as nova_context
from nova import exception, objects
from nova.objects import base as nova_base
from nova.scheduler import request_filter
from nova.scheduler import utils as scheduler_utils
from oslotest import base

from nova_nodb_scheduler.nova_adapter.reads import prepared_requests, request_views
from nova_nodb_scheduler.nova_adapter.reporting import state_proof
from tests.differential import cases, plugin, running, specs, stock
from tests.differential.drawn import (
    cluster_strategies,
    dice,
    request_strategies,
    setting_strategies,
    words,
)

CONF = nova.conf.CONF

_FUNCTIONS = (
    (request_filter, "process_reqspec"),
    (scheduler_utils, "resources_from_request_spec"),
)

#: Options of what prepares a request: any of them may be another from one request to the next.
_PREFILTERS = (
    "enable_isolated_aggregate_filtering",
    "image_metadata_prefilter",
    "limit_tenants_to_placement_aggregate",
    "placement_aggregate_required_for_tenants",
    "query_placement_for_image_type_support",
)


@attrs.frozen
class Step:
    """A request, and what is another way than for the request before it."""

    asked: request_strategies.Asked
    prefilters: Mapping[str, bool]
    cluster: cases.Cluster


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    """Draw requests, of which many are like an earlier one in all or nearly all."""
    cluster = draw(cluster_strategies.clusters())
    others = [cluster, draw(cluster_strategies.clusters())]
    made: list[Step] = []
    for rolled in draw(st.lists(dice.dice(), min_size=2, max_size=8)):
        if not made or rolled.once_in(4):
            asked = draw(request_strategies.requests(()))
        else:
            asked = rolled.one(made).asked
            if rolled.once_in(2):
                asked = attrs.evolve(asked, **_another(rolled))
        # What most requests differ in must matter in many of them.
        of_tenants = {"limit_tenants_to_placement_aggregate": rolled.once_in(2)}
        prefilters = dict(made[-1].prefilters) if made else of_tenants
        if rolled.once_in(3):
            prefilters[rolled.one(_PREFILTERS)] = rolled.once_in(2)
        if rolled.once_in(3):
            # With other aggregates, and other versions of services.
            cluster = rolled.one(others)
        made.append(Step(asked, prefilters, cluster))
    return made


def _another(rolled: dice.Dice) -> dict[str, Any]:
    return rolled.one(
        (
            {"project": rolled.one(words.PROJECTS)},
            {"project": rolled.one(words.PROJECTS)},
            {"project": rolled.one(words.PROJECTS)},
            {"zone": rolled.one((None, *words.ZONES))},
            {"volume": rolled.once_in(2)},
            {"disk_format": rolled.one(("qcow2", "raw"))},
            {"image": rolled.one(({}, {"hw_disk_bus": "virtio"}, {"traits_required": ["HW_X"]}))},
            {"hints": rolled.one((None, {"group": [words.GROUP]}, {"different_host": ["x"]}))},
            {
                "extra_specs": rolled.one(
                    ({}, {"trait:CUSTOM_A": "required"}, {"hw:cpu_policy": "dedicated"})
                )
            },
            {"force_hosts": rolled.one((None, ["h1"]))},
        )
    )


def _plain(value: Any) -> Any:
    """Return all that can be told of an object, in a form that compares."""
    if isinstance(value, nova_base.NovaObject):
        held = {name: part for name, part in vars(value).items() if name.startswith("_obj_")}
        return type(value).__name__, sorted(value._changed_fields), _plain(held)
    if isinstance(value, scheduler_utils.ResourceRequest):
        return _plain(vars(value))
    if isinstance(value, set):
        return type(value).__name__, sorted(value)
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value


class PreparedRequestsTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        objects.register_all()
        for module, name in _FUNCTIONS:
            self.addCleanup(setattr, module, name, getattr(module, name))
        self.own = prepared_requests._process, prepared_requests._resources
        prepared_requests.install()
        # Nova says each time that computes are older, and what it says is not to be missed;
        # of what it says of each filter only those want to hear who debug.
        self.patch(request_filter, "MIN_COMPUTE_VERSION_OWNER_TRAIT", 60)
        logging.disable(logging.INFO)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.built = request_views.BuiltObjects()
        self.context = nova_context.get_admin_context()
        #: How often Nova's filters ran for us, and how often they did not have to.
        self.ran = self.remembered = 0
        #: Requests by whether Nova refused them.
        self.outcomes: collections.Counter[bool] = collections.Counter()

    def view(self, worker: plugin.Plugin) -> request_views.RequestView:
        reads = request_views.MemoryReads(worker.store.snapshot(), 1, self.built, self.context)
        view = request_views.RequestView(
            reads, state_proof.StateProof({}), words.CELLS, lambda *_: None
        )
        view.decides = True
        return view

    def prepare(
        self, spec: Any, manager: Any, process: Callable[..., Any], make: Callable[..., Any]
    ) -> Any:
        """Return what two functions make of a RequestSpec, and what they leave of it."""
        try:
            process(self.context, spec)
            made = [make(self.context, spec, manager)]
            if made[0].cpu_pinning_requested:
                made.append(make(self.context, spec, manager, enable_pinning_translate=False))
        except exception.NovaException as error:
            return type(error), str(error)
        return _plain(made), _plain(spec)

    def ours(self, spec: Any, manager: Any, worker: plugin.Plugin) -> Any:
        ran = []

        def process(*args: Any) -> None:
            ran.append(args)
            self.own[0](*args)

        with (
            request_views.working_on(self.view(worker)),
            fixtures.MonkeyPatch(f"{prepared_requests.__name__}._process", process),
        ):
            found = self.prepare(spec, manager, *(getattr(*each) for each in _FUNCTIONS))
        self.ran += len(ran)
        self.remembered += not ran
        return found

    def test_a_request_is_prepared_as_nova_would_prepare_it_now(self) -> None:
        @running.settings()
        @hypothesis.given(setting_strategies.settings(), steps())
        def compare(settings: setting_strategies.Settings, asked: Sequence[Step]) -> None:
            self.built.clear()
            with stock.configured(settings):
                self.follow(asked)

        compare()
        self.assertGreater(self.remembered, self.ran // 4, self.ran)
        self.assertGreater(self.outcomes[True], 0)

    def follow(self, asked: Sequence[Step]) -> None:
        """Prepare requests one after the other, each by Nova and by what is remembered."""
        worker = plugin.Plugin(asked[0].cluster)
        for step in asked:
            for name in _PREFILTERS:
                CONF.set_override(name, step.prefilters.get(name, False), "scheduler")
            try:
                if step.cluster is not worker.cluster:
                    worker.update(step.cluster)
                with stock.databases_of(step.cluster):
                    self.compare(step, worker)
            finally:
                for name in _PREFILTERS:
                    CONF.clear_override(name, "scheduler")

    def compare(self, step: Step, worker: plugin.Plugin) -> None:
        manager = stock.HostManager(step.cluster)
        try:
            theirs, ours, again = (specs.request_spec(step.asked, step.cluster) for _ in range(3))
        except specs.UnthinkableRequest:
            return
        if scheduler_utils.request_is_rebuild(theirs):
            return
        # Others than the first, in what nobody reads.
        again.instance_uuid, again.num_instances = words.NEW_INSTANCES[1], 7
        expected = self.prepare(theirs, manager, *self.own)
        self.assertEqual(expected, self.ours(ours, manager, worker), step)
        self.outcomes[isinstance(expected[0], type)] += 1
        # What one request does with what it was given is not seen by the next one.
        if "request_level_params" in ours:
            ours.root_required.add("CUSTOM_OF_ANOTHER")
        if ours.requested_destination is not None:
            ours.requested_destination.append_forbidden_aggregates({"of another"})
        found = self.ours(again, manager, worker)
        if not isinstance(expected[0], type):
            again.instance_uuid, again.num_instances = theirs.instance_uuid, theirs.num_instances
            again._changed_fields -= {"instance_uuid", "num_instances"}
            found = found[0], _plain(again)
        self.assertEqual(expected, found, step)

    def test_what_must_be_seen_of_each_request_has_nova_prepare_each(self) -> None:
        def of_another_name(context: Any, spec: Any) -> bool:
            return False

        others = [*request_filter.ALL_REQUEST_FILTERS, of_another_name]
        cases_of = {
            # Nova warns of each.
            "logged": (f"{request_filter.__name__}.MIN_COMPUTE_VERSION_OWNER_TRAIT", 1000),
            "unknown filter": (f"{request_filter.__name__}.ALL_REQUEST_FILTERS", others),
            "unknown release": (f"{prepared_requests.__name__}._unknown", lambda: ("what",)),
        }

        @running.settings(share=0.1)
        @hypothesis.given(cluster_strategies.clusters(), request_strategies.requests(()))
        def compare(cluster: cases.Cluster, asked: request_strategies.Asked) -> None:
            worker = plugin.Plugin(cluster)
            for name, (place, value) in cases_of.items():
                self.built.clear()
                with fixtures.MonkeyPatch(place, value), stock.databases_of(cluster):
                    self.compare(Step(asked, {}, cluster), worker)
                self.assertEqual(0, self.remembered, name)

        compare()
        self.assertGreater(self.ran, 0)
