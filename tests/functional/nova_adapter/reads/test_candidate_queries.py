# SPDX-License-Identifier: Apache-2.0
"""Nova's resource requests say the same in memory as in the query strings that Nova makes."""

import uuid
from urllib import parse

import microversion_parse
import webob
from nova import objects
from nova.scheduler import utils as scheduler_utils
from oslotest import base
from placement import lib, microversion

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.nova_adapter.reads import deferred_candidates

AGGREGATES = tuple(str(uuid.UUID(int=number)) for number in range(1, 4))


def resource_request(extra_specs: dict[str, str], **group_fields: object) -> object:
    """Return Nova's own ResourceRequest for a flavor."""
    spec = objects.RequestSpec(
        flavor=objects.Flavor(
            vcpus=2,
            memory_mb=512,
            root_gb=10,
            ephemeral_gb=0,
            swap=0,
            extra_specs=extra_specs,
        ),
        image=objects.ImageMeta(properties=objects.ImageMetaProps()),
        requested_resources=[],
        request_level_params=objects.RequestLevelParams(),
        is_bfv=False,
    )
    made = scheduler_utils.ResourceRequest.from_request_spec(spec)
    group = made.get_request_group(None)
    for name, value in group_fields.items():
        setattr(group, name, value)
    return made


def asked_by(text: str) -> dict[str, object]:
    """Return a query string's parameters as Placement's own code reads them."""
    pairs = [pair for pair in parse.parse_qsl(text) if pair[0] not in ("limit", "group_policy")]
    asked = webob.Request.blank(f"/allocation_candidates?{parse.urlencode(pairs)}")
    latest = microversion_parse.parse_version_string(microversion.max_version_string())
    latest.max_version = latest
    latest.min_version = microversion_parse.Version(1, 0)
    asked.environ[microversion.MICROVERSION_ENVIRON] = latest
    wide = lib.RequestWideParams.from_request(asked)
    (group,) = lib.RequestGroup.dict_from_request(asked, wide).values()
    return {
        "resources": group.resources,
        "required": {frozenset(each) for each in group.required_traits},
        "forbidden": set(group.forbidden_traits),
        "root required": set(wide.anchor_required_traits or ()),
        "root forbidden": set(wide.anchor_forbidden_traits or ()),
        "member of": {frozenset(each) for each in group.member_of},
        "forbidden aggregates": set(group.forbidden_aggs),
        "tree": group.in_tree,
    }


def told_by(query: requests.CandidateQuery) -> dict[str, object]:
    """Return the same of a query in memory."""
    return {
        "resources": dict(query.resources),
        "required": {frozenset([each]) for each in query.required_traits},
        "forbidden": set(query.forbidden_traits),
        "root required": set(query.root_required),
        "root forbidden": set(query.root_forbidden),
        "member of": set(query.member_of),
        "forbidden aggregates": set(query.forbidden_aggregates),
        "tree": query.in_tree,
    }


class CandidateQueryTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        objects.register_all()

    def parse(self, extra_specs: dict[str, str], **fields: object) -> object:
        made = resource_request(extra_specs, **fields)
        found = deferred_candidates.query_of(made)
        if isinstance(found, requests.CandidateQuery):
            # What Placement would read of the string; each fault of ours would show here.
            self.assertEqual(asked_by(made.to_querystring()), told_by(found))
        return found

    def test_a_plain_flavor_asks_for_its_three_resources(self):
        found = self.parse({})
        self.assertEqual(
            requests.CandidateQuery(resources={"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 10}), found
        )

    def test_traits_aggregates_and_tree_are_read_back(self):
        found = self.parse(
            {"trait:HW_CPU_X86_AVX": "required", "trait:CUSTOM_OLD": "forbidden"},
            aggregates=[[AGGREGATES[0], AGGREGATES[1]], [AGGREGATES[2]]],
            forbidden_aggregates={AGGREGATES[1], AGGREGATES[2]},
            in_tree="d3f7c2f4-6f0c-4b9f-a1c8-1a1f6d8f5a11",
        )
        self.assertEqual(frozenset(["HW_CPU_X86_AVX"]), found.required_traits)
        self.assertEqual(frozenset(["CUSTOM_OLD"]), found.forbidden_traits)
        self.assertEqual(
            {frozenset(AGGREGATES[:2]), frozenset(AGGREGATES[2:])}, set(found.member_of)
        )
        self.assertEqual(frozenset(AGGREGATES[1:]), found.forbidden_aggregates)
        self.assertEqual("d3f7c2f4-6f0c-4b9f-a1c8-1a1f6d8f5a11", found.in_tree)

    def test_traits_of_the_root_are_read_back(self):
        made = resource_request({})
        made._root_required = {"CUSTOM_A"}
        made._root_forbidden = {"CUSTOM_B"}
        found = deferred_candidates.query_of(made)
        self.assertEqual(frozenset(["CUSTOM_A"]), found.root_required)
        self.assertEqual(frozenset(["CUSTOM_B"]), found.root_forbidden)

    def test_a_second_group_is_outside(self):
        self.assertEqual(
            deferred_candidates.OutsideMemory("more than one group"),
            self.parse({"resources1:CUSTOM_FPGA": "1"}),
        )

    def test_a_common_subtree_is_outside(self):
        made = resource_request({})
        made._same_subtree = [["_1", "_2"]]
        self.assertEqual(
            deferred_candidates.OutsideMemory("same subtree"),
            deferred_candidates.query_of(made),
        )

    def test_nothing_asked_for_is_outside(self):
        self.assertEqual(
            deferred_candidates.OutsideMemory("no resources"),
            self.parse(
                {"resources:VCPU": "0", "resources:MEMORY_MB": "0", "resources:DISK_GB": "0"}
            ),
        )
