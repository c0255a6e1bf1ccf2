# SPDX-License-Identifier: Apache-2.0
"""Claims read beside others that were read before are those that the record holds."""

from __future__ import annotations

import json
from typing import Any

import attrs
import hypothesis
import testtools
from hypothesis import strategies as st

from nova_nodb_scheduler.model import claims

_CLAIM_STATES = st.fixed_dictionaries(
    {
        "resources": st.dictionaries(st.sampled_from(["VCPU", "DISK_GB"]), st.integers(1, 2)),
        "state": st.sampled_from(["pending", "confirmed"]),
        "claim_id": st.sampled_from(["a", "b"]),
        "writer": st.just("w"),
        "deadline_seconds": st.sampled_from([None, 1.5, 2.5]),
        "confirmed_by": st.sampled_from([None, 3, 4]),
    },
    optional={
        "node": st.fixed_dictionaries({"vcpus": st.integers(1, 2)}),
        "of a newer release": st.integers(0, 1),
    },
)
_RECORD_STATES = st.fixed_dictionaries(
    {"claims": st.dictionaries(st.sampled_from(["c1", "c2", "c3"]), _CLAIM_STATES)}
)


def _stored(state: dict[str, Any]) -> Any:
    """Return a state as it comes back from a back end: of other objects."""
    return json.loads(json.dumps(state))


class ReadClaimsTest(testtools.TestCase):
    @hypothesis.given(
        st.lists(st.tuples(_RECORD_STATES, st.integers(0, 9)), min_size=1, max_size=4),
        st.sampled_from(["c1", "c2"]),
    )
    @hypothesis.settings(derandomize=True, deadline=None, max_examples=300)
    def test_what_was_read_before_changes_nothing_of_what_is_read(
        self, stored: list[tuple[dict[str, Any], int]], changed: str
    ) -> None:
        known: Any = {}
        for state, version in stored:
            # Most of it stands as it stood, as in a record of which one claim changed.
            merged = {"claims": {**stored[0][0]["claims"], **state["claims"]}}
            fresh = claims.ClaimRecord.from_state("h", _stored(merged), version)
            found = claims.ClaimRecord.from_state("h", _stored(merged), version, known)
            self.assertEqual(fresh, found)
            self.assertEqual(fresh.to_state(), _stored(found.to_state()))
            # A version of 0 tells nothing of a confirm, and all the rest is as it was read.
            if not version:
                self.assertEqual(merged["claims"], found.to_state()["claims"])
            known = found.without([changed]).claims

    def test_an_unchanged_claim_is_not_read_again_and_a_changed_one_is(self) -> None:
        one = {
            "resources": {"VCPU": 1},
            "state": "pending",
            "claim_id": "a",
            "writer": "w",
            "deadline_seconds": 1.0,
            "confirmed_by": None,
        }
        state = {"claims": {"c1": one, "c2": {**one, "claim_id": "b"}}}
        before = claims.ClaimRecord.from_state("h", _stored(state), 1)
        state["claims"]["c2"]["state"] = "confirmed"
        after = claims.ClaimRecord.from_state("h", _stored(state), 2, before.claims)
        self.assertIs(before.claims["c1"], after.claims["c1"])
        self.assertEqual(claims.ClaimState.CONFIRMED, after.claims["c2"].state)
        self.assertEqual(2, after.claims["c2"].confirmed_by)


class ConfirmTest(testtools.TestCase):
    def test_a_confirmed_claim_is_the_same_without_its_lease(self) -> None:
        names = [each.name for each in attrs.fields(claims.HeldClaim) if each.init]
        held = claims.HeldClaim(**{name: f"its {name}" for name in names})
        wanted = attrs.evolve(held, state=claims.ClaimState.CONFIRMED, deadline_seconds=None)
        self.assertEqual(wanted, held.confirm())

    def test_what_is_written_of_it_is_of_the_confirmed_one(self) -> None:
        """Not the state that it was read from, which says that it is pending."""
        state = {
            "resources": {"VCPU": 1},
            "state": "pending",
            "claim_id": "a",
            "writer": "w",
            "deadline_seconds": 1.0,
            "confirmed_by": None,
            "of a newer release": 1,
        }
        wanted = {**state, "state": "confirmed", "deadline_seconds": None}
        self.assertEqual(wanted, claims.HeldClaim.from_state(state).confirm().to_state())
