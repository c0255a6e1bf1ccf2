# SPDX-License-Identifier: Apache-2.0
"""What is remembered of a request's preparation is what Nova's own functions make of it now."""

from __future__ import annotations

import copy
import functools
import logging
import uuid
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

import fixtures
import hypothesis
import nova.conf
import testtools
from hypothesis import strategies as st
from nova import context as nova_context
from nova import objects
from nova.objects import base
from nova.scheduler import request_filter

from nova_nodb_scheduler.nova_adapter.reads import (
    database_reads,
    prepared_requests,
    request_views,
)
from nova_nodb_scheduler.nova_adapter.reporting import scopes
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from tests.unit.nova_adapter.reporting import test_proof

CONF = nova.conf.CONF
A, B = test_proof.A, test_proof.B
CELL0 = "00000000-0000-0000-0000-000000000000"
_OLD, _NEW = 60, 80

#: Stands for a field that is not set.
_UNSET = "not set"

_EXTRA_SPECS: tuple[dict[str, str], ...] = (
    {},
    {"trait:HW_CPU_X86_AVX2": "required"},
    {"trait:HW_CPU_X86_AVX2": "forbidden"},
    {"resources:VCPU": "0", "resources:CUSTOM_GOLD": "2"},
    {"resources1:CUSTOM_GOLD": "1", "resources2:CUSTOM_GOLD": "1"},
    {"resources1:CUSTOM_GOLD": "1", "resources2:CUSTOM_GOLD": "1", "group_policy": "none"},
    {"hw:cpu_policy": "dedicated"},
    {"hw:cpu_policy": "dedicated", "hw:cpu_thread_policy": "isolate"},
    {"hw:tpm_version": "2.0", "hw:tpm_model": "tpm-crb"},
    {"hw:virtio_packed_ring": "true"},
    {"accel:device_profile": "one"},
    {"hw:pmem": "4GB"},
)
_PROPERTIES: tuple[dict[str, Any], ...] = (
    {},
    {"hw_disk_bus": "virtio"},
    {"hw_disk_bus": "scsi"},
    {"traits_required": ["HW_CPU_X86_AVX2"]},
    {"hw_firmware_type": "uefi", "os_secure_boot": "required"},
)
_HINTS: tuple[Any, ...] = (
    {},
    None,
    {"group": ["g"]},
    {"group": ["h"]},
    {"same_host": ["x"]},
    {"query": ["[]"]},
    # What a hint is called is its user's choice.
    {"_obj_availability_zone": [], "east": []},
    {"_obj_is_bfv": []},
)
_OPTIONS: dict[str, tuple[Any, ...]] = {
    "enable_isolated_aggregate_filtering": (False, True),
    "image_metadata_prefilter": (False, True),
    "limit_tenants_to_placement_aggregate": (False, True),
    "max_placement_results": (1000, 5),
    "placement_aggregate_required_for_tenants": (False, True),
    "query_placement_for_image_type_support": (False, True),
    "query_placement_for_routed_network_aggregates": (False, True),
}
_METADATA: tuple[dict[str, str], ...] = (
    {},
    {"availability_zone": "east"},
    {"availability_zone": "west", "trait:HW_CPU_X86_AVX2": "required"},
    {"filter_tenant_id": "p1"},
    {"filter_tenant_id3": "p2", "trait:CUSTOM_GOLD": "required"},
)

_ASKED = st.fixed_dictionaries(
    {
        "extra_specs": st.integers(0, len(_EXTRA_SPECS) - 1),
        "vcpus": st.sampled_from((1, 2)),
        "swap": st.sampled_from((0, 1)),
        "properties": st.none() | st.integers(0, len(_PROPERTIES) - 1),
        "zone": st.sampled_from((None, "", "east", "west")),
        "project": st.sampled_from(("p1", "p2")),
        "hints": st.integers(-1, len(_HINTS) - 1),
        "is_bfv": st.sampled_from((_UNSET, False, True)),
        "networks": st.sampled_from((_UNSET, 0, 1)),
        "destination": st.sampled_from((_UNSET, None, "cell", "aggregates")),
        "parameters": st.sampled_from((_UNSET, (), ("CUSTOM_ONE",))),
        "pci": st.sampled_from((_UNSET, None, 0)),
        "lists": st.sampled_from((_UNSET, None, ())),
        "reset": st.booleans(),
        "hints_first": st.booleans(),
        #: Of the calls of the second function.
        "pinned": st.sampled_from(((True,), (True, False), (False,))),
        "served": st.sampled_from(((), (A,), (A, scopes.API))),
    }
)
_CHANGES = st.one_of(
    st.tuples(
        st.just("aggregate"),
        st.integers(1, 2),
        st.none() | st.integers(0, len(_METADATA) - 1),
    ),
    st.tuples(st.just("service"), st.sampled_from((A, B)), st.sampled_from((None, _OLD, _NEW))),
    st.tuples(st.just("cells"), st.sampled_from(((A,), (A, B)))),
    st.sampled_from(sorted(_OPTIONS)).flatmap(
        lambda name: st.tuples(st.just("option"), st.just(name), st.sampled_from(_OPTIONS[name]))
    ),
)
#: Requests of which many are equal, with changes between them; and whether the view of one
#: is renewed for the next.
_STEPS = st.lists(_ASKED, min_size=1, max_size=3).flatmap(
    lambda asked: st.lists(
        st.one_of(
            st.tuples(st.just("ask"), st.sampled_from(asked), st.booleans()),
            st.tuples(st.just("change"), _CHANGES),
        ),
        min_size=2,
        max_size=12,
    )
)


def _set_optional(spec: Any, asked: Mapping[str, Any], context: Any) -> None:
    """Set what a RequestSpec may lack."""
    if asked["is_bfv"] != _UNSET:
        spec.is_bfv = asked["is_bfv"]
    if asked["networks"] != _UNSET:
        found = [objects.NetworkRequest(port_id=None, network_id="n")] * asked["networks"]
        spec.requested_networks = objects.NetworkRequestList(objects=found)
    if asked["destination"] is None:
        spec.requested_destination = None
    elif asked["destination"] == "cell":
        spec.requested_destination = objects.Destination(
            context, cell=objects.CellMapping(uuid=str(uuid.UUID(int=5)))
        )
    elif asked["destination"] == "aggregates":
        spec.requested_destination = objects.Destination(context, aggregates=["a,b"])
    if asked["parameters"] != _UNSET:
        spec.request_level_params = objects.RequestLevelParams(
            context, root_required=set(asked["parameters"])
        )
    if asked["pci"] != _UNSET:
        empty = objects.InstancePCIRequests(requests=[])
        spec.pci_requests = None if asked["pci"] is None else empty
    if asked["lists"] != _UNSET:
        empty = None if asked["lists"] is None else []
        spec.force_hosts, spec.force_nodes, spec.requested_resources = empty, empty, empty


def spec_of(asked: Mapping[str, Any], context: Any) -> Any:
    """Make a RequestSpec as it comes to a scheduler."""
    spec = objects.RequestSpec(context)
    if asked["hints_first"] and asked["hints"] >= 0:
        spec.scheduler_hints = _HINTS[asked["hints"]]
    spec.flavor = objects.Flavor(
        id=1,
        flavorid="f",
        name="f",
        vcpus=asked["vcpus"],
        memory_mb=512,
        root_gb=1,
        ephemeral_gb=0,
        swap=asked["swap"],
        extra_specs=_EXTRA_SPECS[asked["extra_specs"]],
    )
    if asked["properties"] is not None:
        spec.image = objects.ImageMeta(
            id=str(uuid.UUID(int=1)),
            disk_format="raw",
            properties=objects.ImageMetaProps(**_PROPERTIES[asked["properties"]]),
        )
    else:
        spec.image = None
    spec.availability_zone = asked["zone"]
    spec.project_id = asked["project"]
    if not asked["hints_first"] and asked["hints"] >= 0:
        spec.scheduler_hints = _HINTS[asked["hints"]]
    _set_optional(spec, asked, context)
    spec.instance_uuid = str(uuid.uuid4())
    if asked["reset"]:
        spec.obj_reset_changes(recursive=True)
    return spec


def content_of(value: Any) -> Any:
    """Return all that an object holds, but its context."""
    if isinstance(value, base.NovaObject):
        held = {
            name: content_of(part) for name, part in vars(value).items() if name.startswith("_obj_")
        }
        return type(value).__name__, held, sorted(value._changed_fields)
    if isinstance(value, set):
        return frozenset(value)
    if isinstance(value, list | tuple):
        return [content_of(each) for each in value]
    if isinstance(value, dict):
        # As text: what comes first may decide.
        return [(key, content_of(each)) for key, each in value.items()]
    return value


def resources_of(made: Any) -> Any:
    """Return all that a ResourceRequest holds."""
    return {name: content_of(value) for name, value in vars(made).items()}


def contexts_of(value: Any) -> list[Any]:
    """Return the contexts that an object and its parts hold."""
    found = [] if value._context is None else [value._context]
    for name, part in vars(value).items():
        if name.startswith("_obj_") and isinstance(part, base.NovaObject):
            found += contexts_of(part)
    return found


def _changed_on(spec: Any) -> None:
    """Change a request as Nova goes on to, and more."""
    spec.request_level_params.root_required.add("CUSTOM_LATER")
    spec.request_level_params.root_forbidden.clear()
    spec.request_level_params.same_subtree.append(["late"])
    if "requested_destination" in spec and spec.requested_destination:
        spec.requested_destination.host = "later"
        spec.requested_destination.require_aggregates(["later"])
        spec.requested_destination.append_forbidden_aggregates({"later"})
    spec.flavor.extra_specs["late"] = "1"
    spec.scheduler_hints = {"different_host": ["late"]}


class _Told(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())


class PreparedCase(test_proof.JudgeCase):
    def setUp(self) -> None:
        super().setUp()
        objects.register_all()
        CONF([], project="nova", default_config_files=[])
        database_reads.install()
        for name in ("nova", request_filter.__name__):
            logger = logging.getLogger(name)
            self.addCleanup(logger.setLevel, logger.level)
            logger.setLevel(logging.INFO)
        handler = _Told()
        self.told = handler.told
        logging.getLogger("nova").addHandler(handler)
        self.addCleanup(logging.getLogger("nova").removeHandler, handler)
        prepared_requests.install()
        self.processed = 0

        def counted(context: Any, spec: Any) -> None:
            self.processed += 1
            _NOVAS[0](context, spec)

        patch = fixtures.MonkeyPatch(f"{prepared_requests.__name__}._process", counted)
        patch.setUp()
        self.addCleanup(patch.cleanUp)
        self.begin()

    def begin(self) -> None:
        """Begin with a cloud of two cells, and nothing remembered."""
        super().setUp()
        for name in _OPTIONS:
            if name in CONF.scheduler:
                CONF.clear_override(name, group="scheduler")
                self.addCleanup(CONF.clear_override, name, group="scheduler")
        self.beat("conductor-0", cell=CELL0, guards=[CELL0])
        self.swept(CELL0)
        self.cells = [A, B]
        self.built = request_views.BuiltObjects()
        self.views = request_views.RequestViews(
            self.store,
            self.judge,
            self.built,
            lambda: self.cells,
            lambda: 1,
            lambda scope, reason: None,
        )
        self.change("service", A, _NEW)

    def change(self, kind: str, name: Any, value: Any = None) -> None:
        if kind == "option":
            if name in CONF.scheduler:
                CONF.set_override(name, value, group="scheduler")
        elif kind == "cells":
            self.cells = list(name)
        elif kind == "service":
            row = {"host": "h", "binary": "nova-compute", "topic": "compute", "version": value}
            row |= {"disabled": False, "forced_down": False}
            state = None if value is None else {"cell": name, "row": row}
            self.put(known_namespaces.SERVICES, f"service-{name}", state)
        else:
            row = {"id": name, "uuid": str(uuid.UUID(int=name)), "name": f"a{name}", "hosts": []}
            times = {"created_at": None, "updated_at": None}
            state = None
            if value is not None:
                row |= {"metadata": _METADATA[value], **times}
                state = {"row": row, "object_version": objects.Aggregate.VERSION}
            self.put(known_namespaces.AGGREGATES, f"aggregate-{name}", state)

    def view(self, asked: Mapping[str, Any]) -> request_views.RequestView:
        view = self.views.open()
        self.assertEqual({}, view.proof.missing)
        view.decides = True
        view.serves_all(asked["served"])
        return view

    def prepared(
        self,
        view: request_views.RequestView,
        asked: Mapping[str, Any],
        process: Callable[..., Any],
        resources: Callable[..., Any],
    ) -> tuple[Any, Any, Any]:
        """Return all that became of a request, itself, and its context."""
        context = nova_context.RequestContext("user", asked["project"], overwrite=False)
        spec = spec_of(asked, context)
        made, raised = [], None
        uuid_of = spec.instance_uuid
        with request_views.working_on(view):
            try:
                process(context, spec)
                made = [resources(context, spec, None, pinned) for pinned in asked["pinned"]]
            except Exception as error:
                raised = type(error), str(error)
        self.assertEqual(uuid_of, spec.instance_uuid)
        spec.instance_uuid = str(uuid.UUID(int=0))
        told = (
            dict(content_of(spec)[1]) | {"changes": sorted(spec._changed_fields)},
            [resources_of(each) for each in made],
            raised,
            sorted(view.served),
        )
        return copy.deepcopy(told), spec, context

    def compare(
        self,
        asked: Mapping[str, Any],
        views: tuple[request_views.RequestView, request_views.RequestView] | None = None,
    ) -> tuple[request_views.RequestView, request_views.RequestView]:
        """Prepare a request both ways, and compare; return the views."""
        views = views or (self.view(asked), self.view(asked))
        own, _, _ = self.prepared(views[0], asked, *_NOVAS)
        ours, spec, context = self.prepared(
            views[1],
            asked,
            prepared_requests.process_reqspec,
            prepared_requests.resources_from_request_spec,
        )
        self.maxDiff = None
        self.assertEqual(own, ours)
        for each in contexts_of(spec):
            self.assertIs(context, each)
        if ours[2] is None:
            _changed_on(spec)
        return views


PLAIN: dict[str, Any] = {
    "extra_specs": 0,
    "vcpus": 1,
    "swap": 0,
    "properties": 0,
    "zone": None,
    "project": "p1",
    "hints": 0,
    "is_bfv": False,
    "networks": 0,
    "destination": _UNSET,
    "parameters": (),
    "pci": _UNSET,
    "lists": _UNSET,
    "reset": True,
    "hints_first": False,
    "pinned": (True,),
    "served": (A, scopes.API),
}

#: Nova's own, whatever stands in their place.
_NOVAS = prepared_requests._process, prepared_requests._resources


class PreparedRequestsTest(PreparedCase):
    @hypothesis.settings(deadline=None, max_examples=60)
    @hypothesis.given(_STEPS)
    def test_it_is_what_nova_makes_of_each_request_in_any_order_of_changes(
        self, steps: list[tuple[Any, ...]]
    ) -> None:
        self.begin()
        views = None
        for step in steps:
            if step[0] == "change":
                self.change(*step[1])
                continue
            _, asked, is_renewed = step
            if not is_renewed or views is None or not all(each.renew() for each in views):
                views = None
            views = self.compare(asked, views)

    def test_an_equal_request_is_not_prepared_again_and_another_one_is(self) -> None:
        for _ in range(3):
            self.compare(PLAIN)
        self.assertEqual(1, self.processed)
        for other in (
            {"vcpus": 2},
            {"extra_specs": 1},
            {"properties": 1},
            {"zone": "east"},
            {"hints": 2},
            {"is_bfv": True},
            {"parameters": ("CUSTOM_ONE",)},
        ):
            before = self.processed
            self.compare({**PLAIN, **other})
            self.assertEqual(before + 1, self.processed, other)

    def test_one_that_comes_again_and_again_stays_however_many_others_come(self) -> None:
        self.built.prepared = request_views.Built(2)
        self.compare(PLAIN)
        for vcpus in range(2, 8):
            self.compare(PLAIN)
            self.compare({**PLAIN, "vcpus": vcpus})
        self.assertEqual(7, self.processed)

    def test_a_destination_is_prepared_each_time(self) -> None:
        for _ in range(2):
            self.compare({**PLAIN, "destination": "cell"})
        self.assertEqual(2, self.processed)

    def test_an_aggregate_a_service_or_an_option_of_now_counts(self) -> None:
        asked = {**PLAIN, "zone": "east"}
        changes: tuple[tuple[Any, ...], ...] = (
            ("aggregate", 1, 1),
            ("aggregate", 2, 1),
            ("aggregate", 1, None),
            ("service", A, _OLD),
            ("service", A, _NEW),
            ("option", "max_placement_results", 5),
            ("option", "enable_isolated_aggregate_filtering", True),
            ("aggregate", 1, 2),
        )
        for change in changes:
            self.change(*change)
            self.compare(asked)
            self.compare(asked)

    def test_services_of_a_cell_that_was_not_known_before_count(self) -> None:
        self.cells = [A]
        self.change("service", B, _OLD)
        self.compare(PLAIN)
        self.cells = [A, B]
        self.compare(PLAIN)

    def test_a_hint_may_have_the_name_of_a_field(self) -> None:
        self.change("aggregate", 1, 1)
        keys = []
        for hints, zone in (({}, "east"), (_HINTS[-2], None)):
            made = spec_of(PLAIN, None)
            del made._obj_availability_zone, made._obj_scheduler_hints
            made.scheduler_hints = hints
            if zone is not None:
                made.availability_zone = zone
            keys.append(prepared_requests._key_of(self.view(PLAIN), made))
        self.assertIsNotNone(keys[0])
        self.assertNotEqual(*keys)

    def test_scopes_that_one_request_saw_before_are_another_ones_too(self) -> None:
        views = self.compare(PLAIN)
        self.change("aggregate", 1, 1)
        for each in views:
            self.assertTrue(each.renew())
        self.compare(PLAIN, views)
        self.compare(PLAIN)

    def test_networks_that_are_not_told_of_are_not_those_that_are_none(self) -> None:
        if "query_placement_for_routed_network_aggregates" in CONF.scheduler:
            self.change("option", "query_placement_for_routed_network_aggregates", True)
        for networks in (_UNSET, 0, _UNSET, 0):
            self.compare({**PLAIN, "networks": networks})

    def test_what_nova_logs_is_logged_of_each_request(self) -> None:
        self.change("service", A, _OLD)
        self.compare(PLAIN)
        once = len(self.told)
        self.compare(PLAIN)
        self.assertEqual(2 * once, len(self.told))

    def test_threads_get_what_is_theirs(self) -> None:
        asked = [
            {**PLAIN, "vcpus": vcpus, "zone": zone} for vcpus in (1, 2) for zone in ("east", "")
        ]
        self.change("aggregate", 1, 1)
        with futures.ThreadPoolExecutor(4) as pool:
            for future in [pool.submit(self.compare, asked[n % 4]) for n in range(80)]:
                future.result()


class KnownCodeTest(testtools.TestCase):
    """Only of Nova's code as it was released is anything remembered."""

    def unknown(self) -> tuple[str, ...]:
        return prepared_requests._unknown.__wrapped__()

    def patched(self, place: str, value: Any) -> tuple[str, ...]:
        with fixtures.MonkeyPatch(place, value):
            return self.unknown()

    def test_what_was_released_is_known(self) -> None:
        self.assertEqual((), self.unknown())

    def test_a_function_that_was_patched_is_named(self) -> None:
        self.assertEqual(
            ("nova.scheduler.utils.request_is_rebuild",),
            self.patched("nova.scheduler.utils.request_is_rebuild", lambda spec: False),
        )

    def test_somebody_elses_filter_is_named_and_so_is_what_he_wraps_one_with(self) -> None:
        def fast_disks(context: Any, spec: Any) -> bool:
            return False

        @functools.wraps(request_filter.isolate_aggregates)
        def wrapping(context: Any, spec: Any) -> bool:
            return bool(request_filter.isolate_aggregates(context, spec))

        filters = [*request_filter.ALL_REQUEST_FILTERS, fast_disks, wrapping]
        self.assertEqual(
            ("fast_disks", "isolate_aggregates"),
            self.patched(f"{prepared_requests.__name__}._FILTERS", filters),
        )
