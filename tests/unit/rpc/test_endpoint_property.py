# SPDX-License-Identifier: Apache-2.0
"""Whatever is sent to the RPC endpoints, the sender gets an answer or a typed error."""

import os

import hypothesis
import testtools
from hypothesis import strategies as st

from tests.fuzz import rpc as fuzz
from tests.fuzz import target

EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "200"))

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from(fuzz.TEXTS),
    st.text(st.characters(exclude_categories=()), max_size=20),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
UPDATES = st.lists(
    st.fixed_dictionaries(
        {
            "nodb_object.name": st.just("NodbHostStateUpdate"),
            "nodb_object.version": st.just("1.0"),
            "nodb_object.namespace": st.just("nova_nodb_scheduler"),
            "nodb_object.data": st.fixed_dictionaries(
                {
                    "namespace": st.one_of(
                        st.sampled_from([each.name for each in fuzz.DECLARED]), ANYTHING
                    ),
                    "key": SCALARS,
                    "state": SCALARS,
                }
            ),
        }
    ),
    max_size=3,
)
SPECIAL = {
    "records": UPDATES,
    "owner": st.sampled_from(["cinder", "nova", "placement", "nodb", "claims"]),
    "namespace": st.sampled_from(["pools", "compute_nodes"]),
    "namespaces": st.lists(st.sampled_from(["services", "instances", "pools"]), max_size=3),
    "ids": st.lists(st.integers(), max_size=6),
    "unproved": st.booleans(),
    "predicate": st.lists(
        st.tuples(st.sampled_from(fuzz.COLUMNS), st.sampled_from(fuzz.OPERATORS), ANYTHING).map(
            list
        ),
        max_size=3,
    ),
    "request": st.dictionaries(st.text(max_size=8), ANYTHING, max_size=4),
}


@st.composite
def messages(draw):
    method = draw(st.sampled_from(fuzz.METHODS))
    arguments = {}
    for name in fuzz.ARGUMENTS[method]:
        if draw(st.booleans()) or name not in fuzz.OPTIONAL:
            arguments[name] = draw(st.one_of(SPECIAL.get(name, ANYTHING), ANYTHING))
    if draw(st.integers(0, 20)) == 0:
        arguments[draw(st.text(min_size=1, max_size=5).filter(str.isidentifier))] = 1
    return method, arguments


class EndpointPropertyTest(testtools.TestCase):
    def test_only_typed_errors_come_out_and_nothing_built_in_is_changed(self):
        worker = fuzz.Worker()

        @hypothesis.settings(max_examples=EXAMPLES, deadline=None)
        @hypothesis.given(messages())
        def answered(message):
            worker.call(*message)

        answered()
        worker.check()

    def test_the_fuzzers_own_messages_are_answered_too(self):
        found = target.run("rpc", fuzz.Endpoints, seed=5, cases=3000)

        self.assertEqual((), found.findings)
        answered = {name for name in found.ends if name.endswith("answered")}
        # Else it looks at nothing but the door.
        self.assertEqual({f"{name}: answered" for name in fuzz.METHODS}, answered)
