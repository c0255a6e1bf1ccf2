# SPDX-License-Identifier: Apache-2.0
"""Claims that were read before are taken for what a record holds only where they are that."""

from __future__ import annotations

import copy
import unittest
from collections.abc import Mapping
from concurrent import futures
from typing import Any

import attrs
import hypothesis
from hypothesis import strategies as st

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.claims import claim_rules

_HOST = "h1"
_CONSUMERS = ("c1", "c2", "c3")

#: As this release writes them, and as others may.
_CLAIM_STATES = st.fixed_dictionaries(
    {
        "resources": st.sampled_from(({"VCPU": 1}, {"VCPU": 2}, {})),
        "state": st.sampled_from(("pending", "confirmed")),
        "claim_id": st.sampled_from(("i1", "i2")),
        "writer": st.just("w"),
    },
    optional={
        "deadline_seconds": st.sampled_from((None, 5.0, 50.0)),
        "confirmed_by": st.sampled_from((None, 1, 3)),
        "node": st.sampled_from(({}, {"vcpus": 1}, {"vcpus": 1, "of_a_later_release": [1]})),
        "of_a_later_release": st.sampled_from((None, {"a": [1]}, {"a": [2]})),
        "_state": st.just("pending"),
    },
)
_RECORD_STATES = st.none() | st.fixed_dictionaries(
    {"claims": st.dictionaries(st.sampled_from(_CONSUMERS), _CLAIM_STATES)},
    optional={
        "settled": st.sampled_from((None, {"epoch": "e", "version": 2})),
        "lapsed": st.dictionaries(st.sampled_from(_CONSUMERS), _CLAIM_STATES),
        "of_a_later_release": st.just(1),
    },
)
#: Some of few records, again and again.
_READINGS = st.lists(_RECORD_STATES, min_size=1, max_size=2).flatmap(
    lambda states: st.lists(
        st.tuples(st.sampled_from(states), st.integers(0, 2)), min_size=2, max_size=6
    )
)


def _proposals(record: model.ClaimRecord) -> list[Any]:
    """Return what each rule comes to on a record."""
    claims = [model.Claim(consumer, _HOST, {"VCPU": 1}) for consumer in _CONSUMERS]
    taking = claim_rules.Taking(
        ids=dict.fromkeys(_CONSUMERS, "i1"),
        writer="w",
        fits=lambda claim, others: len(others.claims) < 3,
        view=records.Cursor("e", 9),
        now_seconds=10.0,
        deadline_seconds=20.0,
    )
    granted = [model.Granted(each, "i1", model.ClaimState.PENDING) for each in claims]
    return [
        claim_rules.take_each(record, claims, taking),
        claim_rules.confirm_each(record, granted),
        claim_rules.release_each(record, {"c1": "i1", "c2": "i2"}),
    ]


def _told_anew(record: model.ClaimRecord) -> dict[str, Any]:
    """Return what is written of a record's claims, field by field."""
    claims = {name: attrs.evolve(held) for name, held in record.claims.items()}
    return attrs.evolve(record, claims=claims).to_state()


class ReadClaimsTest(unittest.TestCase):
    @hypothesis.settings(deadline=None)
    @hypothesis.given(_READINGS)
    def test_a_record_is_what_it_would_be_to_whoever_read_none_before(
        self, read: list[tuple[Mapping[str, Any] | None, int]]
    ) -> None:
        memory = claim_rules.ReadClaims()
        for state, version in read:
            given = copy.deepcopy(state)
            plain = model.ClaimRecord.from_state(_HOST, given, version)
            found = memory.record(_HOST, given, version)
            self.assertEqual(plain, found)
            self.assertEqual(_proposals(plain), _proposals(found))
            self.assertEqual(state, given)
            written = found.to_state()
            self.assertEqual(plain.to_state(), written)
            # Of a record that is about to be written nothing is known of its confirms.
            again = memory.record(_HOST, copy.deepcopy(written), 0)
            self.assertEqual(found, again)
            told = model.ClaimRecord.from_state(_HOST, _told_anew(found), 0)
            self.assertEqual(
                [attrs.evolve(each) for each in found.claims.values()],
                [attrs.evolve(each) for each in told.claims.values()],
            )

    def test_what_a_later_release_wrote_stays_in_a_claim_that_nobody_changed(self) -> None:
        theirs = {
            "resources": {"VCPU": 1},
            "state": "pending",
            "claim_id": "i2",
            "writer": "w",
            "node": {"vcpus": 1, "later": [1]},
            "later": {"a": 1},
        }
        state = {"claims": {"c1": theirs, "c2": {**theirs, "claim_id": "i1"}}}
        memory = claim_rules.ReadClaims()
        for version in (1, 2):
            record = memory.record(_HOST, copy.deepcopy(state), version)
            granted = model.Granted(
                model.Claim("c2", _HOST, {"VCPU": 1}), "i1", model.ClaimState.PENDING
            )
            written = claim_rules.confirm_each(record, [granted]).state
            assert written is not None
            self.assertEqual(theirs, written["claims"]["c1"])
            self.assertEqual({"a": 1}, written["claims"]["c2"]["later"])
            self.assertEqual("confirmed", written["claims"]["c2"]["state"])

    def test_threads_share_what_was_read_and_believe_none_of_it(self) -> None:
        memory = claim_rules.ReadClaims()

        def claim(amount: int) -> dict[str, Any]:
            return {
                "resources": {"VCPU": amount},
                "state": "confirmed",
                "claim_id": "i",
                "writer": "w",
            }

        def read(number: int) -> None:
            state = {"claims": {name: claim(number % 3) for name in _CONSUMERS}}
            found = memory.record(_HOST, state, number)
            self.assertEqual(model.ClaimRecord.from_state(_HOST, state, number), found)

        with futures.ThreadPoolExecutor(4) as pool:
            for future in [pool.submit(read, number) for number in range(1, 400)]:
                future.result()
