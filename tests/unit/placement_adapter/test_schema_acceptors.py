# SPDX-License-Identifier: Apache-2.0
"""What is made of a schema accepts nothing that the schema does not allow."""

from __future__ import annotations

import copy
import json
import uuid
from typing import Any

import hypothesis
import testtools
from hypothesis import strategies as st
from placement import util
from placement.schemas import allocation as schemas

from nova_nodb_scheduler.placement_adapter import schema_acceptors

_ACCEPTORS = {
    name: (each, schema_acceptors.acceptor_of(each))
    for name, each in vars(schemas).items()
    if name.startswith(("ALLOCATION_SCHEMA", "POST_ALLOCATIONS"))
}


def _request() -> dict[str, Any]:
    provider = str(uuid.uuid4())
    return {
        "allocations": {provider: {"resources": {"VCPU": 1, "CUSTOM_GOLD": 7}, "generation": 3}},
        "mappings": {"": [provider], "_extra-1": [provider]},
        "project_id": "project",
        "user_id": "user",
        "consumer_generation": None,
        "consumer_type": "INSTANCE",
    }


def _is_valid(schema: Any, value: Any) -> bool:
    kind = util.jsonschema.validators.validator_for(schema)
    return bool(kind(schema, format_checker=util._FORMAT_CHECKER).is_valid(value))


_UUIDS = st.uuids().map(str)
_TEXTS = st.one_of(
    st.sampled_from(
        ["", "VCPU", "VCPU\n", "vcpu", "x" * 255, "x" * 256, "INSTANCE", "-" * 36, "1"]
    ),
    _UUIDS,
    _UUIDS.map(str.upper),
    _UUIDS.map(lambda each: each.replace("-", "")),
    _UUIDS.map(lambda each: f"{{{each}}}"),
    _UUIDS.map(lambda each: each + "\n"),
    st.text(max_size=4),
)
_LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 3), st.just(2**70), st.floats(), _TEXTS
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(_TEXTS, inner, max_size=2)
    ),
    max_leaves=6,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    if isinstance(value, dict):
        for name, each in value.items():
            found += _places(each, (*path, name))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            found += _places(each, (*path, number))
    return found


@st.composite
def _requests(draw: Any) -> Any:
    """Requests that are right but for a few places: another value, another name, something less."""
    value: Any = {str(uuid.uuid4()): _request() for _ in range(draw(st.integers(1, 2)))}
    if draw(st.booleans()):
        value = _request()
    for name in draw(st.sets(st.sampled_from(["mappings", "consumer_type", "user_id"]))):
        for each in [value, *value.values()]:
            if isinstance(each, dict):
                each.pop(name, None)
    for _ in range(draw(st.integers(0, 3))):
        places = [each for each in _places(value) if each]
        if not places:
            break
        *path, last = draw(st.sampled_from(places))
        at = value
        for each in path:
            at = at[each]
        match draw(st.integers(0, 3)):
            case 0:
                at[last] = draw(_VALUES)
            case 1:
                del at[last]
            case 2 if isinstance(at, dict):
                at[draw(_TEXTS)] = at.pop(last)
            case 3 if isinstance(at, dict):
                at[draw(_TEXTS)] = draw(_VALUES)
    return value


class AcceptorsTest(testtools.TestCase):
    def check(self, value: Any) -> None:
        for name, (schema, accepts) in _ACCEPTORS.items():
            if accepts(value):
                self.assertTrue(_is_valid(schema, value), (name, value))

    @hypothesis.settings(max_examples=400, deadline=None)
    @hypothesis.given(_requests())
    def test_nothing_is_accepted_that_a_schema_does_not_allow(self, value: Any) -> None:
        self.check(value)

    @hypothesis.settings(max_examples=200, deadline=None)
    @hypothesis.given(_VALUES)
    def test_nor_of_any_value(self, value: Any) -> None:
        self.check(value)

    def test_what_schedulers_send_is_accepted(self) -> None:
        asked = _request()
        for name, leave_out in (
            ("POST_ALLOCATIONS_V1_38", ()),
            ("POST_ALLOCATIONS_V1_34", ("consumer_type",)),
            ("POST_ALLOCATIONS_V1_28", ("consumer_type", "mappings")),
        ):
            part = {key: each for key, each in asked.items() if key not in leave_out}
            body = json.loads(json.dumps({str(uuid.uuid4()): part for _ in range(3)}))
            self.assertTrue(_ACCEPTORS[name][1](body), name)
            self.assertTrue(
                _ACCEPTORS[name.replace("POST_ALLOCATIONS", "ALLOCATION_SCHEMA")][1](part)
            )

    def test_a_schema_that_says_something_else_is_not_known(self) -> None:
        for path, value in (
            (("oneOf",), []),
            (("additionalProperties",), {"type": "integer"}),
            (("properties", "user_id", "format"), "email"),
            (("properties", "user_id"), {"minLength": 1}),
        ):
            schema: Any = copy.deepcopy(schemas.ALLOCATION_SCHEMA_V1_38)
            *above, last = path
            at = schema
            for each in above:
                at = at[each]
            at[last] = value
            self.assertRaises(
                schema_acceptors.UnknownSchemaError, schema_acceptors.acceptor_of, schema
            )
