# SPDX-License-Identifier: Apache-2.0
"""Requests for allocations are read as by Placement, whose function refuses what is wrong."""

import copy
import json
import uuid
from typing import Any

import testtools
import webob.exc
from placement import util
from placement.schemas import allocation as schemas

from nova_nodb_scheduler.placement_adapter import allocation_schemas

_OWN = util.extract_json


def _request() -> dict[str, Any]:
    return {
        str(uuid.uuid4()): {
            "allocations": {str(uuid.uuid4()): {"resources": {"VCPU": 1}}},
            "project_id": "project",
            "user_id": "user",
            "consumer_generation": None,
            "consumer_type": "INSTANCE",
        }
    }


class ExtractTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.own: list[Any] = []

        def own(body: bytes, schema: Any) -> Any:
            self.own.append(schema)
            return _OWN(body, schema)

        self.extract = allocation_schemas.extractor_of(own)
        self.schema = schemas.POST_ALLOCATIONS_V1_38
        self.extract(json.dumps(_request()).encode(), self.schema)
        self.own.clear()

    def test_what_is_right_is_read_without_another_check_of_the_schema(self) -> None:
        asked = _request()
        self.assertEqual(asked, self.extract(json.dumps(asked).encode(), self.schema))
        self.assertEqual([], self.own)

    def test_what_is_wrong_is_refused_in_placements_words(self) -> None:
        bodies = [b"{", b"", b"[]", b"{}", b'{"a": 1}', b"\xff"]
        for change in (
            {"project_id": ""},
            {"consumer_generation": "1"},
            {"consumer_type": "instance"},
            {"allocations": {"no uuid": {"resources": {"VCPU": 1}}}},
            {"allocations": {str(uuid.uuid4()): {"resources": {"VCPU": 0}}}},
            {"more": 1},
        ):
            asked = _request()
            next(iter(asked.values())).update(change)
            bodies.append(json.dumps(asked).encode())
        for body in bodies:
            expected = self.assertRaises(webob.exc.HTTPBadRequest, _OWN, body, self.schema)
            found = self.assertRaises(webob.exc.HTTPBadRequest, self.extract, body, self.schema)
            self.assertEqual(str(expected), str(found))

    def test_other_schemas_are_placements_own_affair(self) -> None:
        schema = copy.deepcopy(self.schema)
        for _ in range(2):
            self.extract(json.dumps(_request()).encode(), schema)
        self.assertEqual([schema, schema], self.own)
