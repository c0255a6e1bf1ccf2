# SPDX-License-Identifier: Apache-2.0
"""Lists of Placement's providers, read one by one."""

import json
import unittest

import attrs
import hypothesis
from hypothesis import strategies as st

from nova_nodb_scheduler.nova_adapter.placement.mirror import placement_reader

UUIDS = [f"00000000-0000-4000-8000-{number:012d}" for number in range(4)]
PROVIDERS = st.builds(
    dict,
    uuid=st.sampled_from(UUIDS),
    name=st.text(),
    generation=st.integers(0, 10**6),
    links=st.just([{"rel": "self", "href": '/{"resource_providers": [}'}]),
    parent_provider_uuid=st.none() | st.sampled_from(UUIDS),
    root_provider_uuid=st.sampled_from(UUIDS),
)


@attrs.frozen
class Response:
    content: bytes
    status_code: int = 200


def listing(content):
    return placement_reader.PlacementReader(lambda path: Response(content)).listing()


class ListingTest(unittest.TestCase):
    @hypothesis.settings(deadline=None)
    @hypothesis.given(st.lists(PROVIDERS), st.sampled_from([None, 1]), st.booleans())
    def test_each_provider_is_read_as_json_has_it(self, providers, indent, as_ascii):
        answer = {"resource_providers": providers}
        found = listing(json.dumps(answer, indent=indent, ensure_ascii=as_ascii).encode())
        self.assertEqual(len(providers), found.providers)
        for root in UUIDS:
            wanted = [
                (each["uuid"], each["name"], each["generation"], each["parent_provider_uuid"])
                for each in providers
                if each["root_provider_uuid"] == root
            ]
            read = found.in_tree(root)
            self.assertEqual(wanted, [(e.uuid, e.name, e.generation, e.parent) for e in read])

    @hypothesis.settings(deadline=None)
    @hypothesis.given(st.lists(PROVIDERS, min_size=1, max_size=3), st.data())
    def test_a_list_that_is_cut_is_no_answer(self, providers, data):
        content = json.dumps({"resource_providers": providers}).encode()
        content = content[: data.draw(st.integers(0, len(content) - 1))]
        self.assertRaises(placement_reader.PlacementUnanswered, listing, content)

    def test_what_is_no_list_is_no_answer(self):
        for content in (b"", b"[]", b"{}", b'{"resource_providers": 1}', b"\xff", b"<html>"):
            self.assertRaises(placement_reader.PlacementUnanswered, listing, content)
        for content in (b'{"resource_providers": [1]}', b'{"resource_providers": [] } x'):
            self.assertRaises(placement_reader.PlacementUnanswered, listing, content)
