# SPDX-License-Identifier: Apache-2.0
"""What won is told apart by what the loser had seen and what stands now."""

import testtools

from nova_nodb_scheduler.model import claims, records
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.simulator import conflicts
from nova_nodb_scheduler.wire import codec

KEY = records.RecordKey(namespaces.CLAIM_RECORDS.name, "host")
PENDING, CONFIRMED = claims.ClaimState.PENDING, claims.ClaimState.CONFIRMED
SEEN = {"mine": PENDING, "other": PENDING}


def record(revision, states, settled=None):
    held = {
        consumer: claims.HeldClaim({}, state, f"id of {consumer}", "writer")
        for consumer, state in states.items()
    }
    state = claims.ClaimRecord("host", held, settled).to_state()
    return records.Record(
        KEY, revision, revision, codec.encode(state, namespaces.CLAIM_RECORDS.schema)
    )


class CauseTest(testtools.TestCase):
    def cause(self, standing):
        witness = conflicts.Witness()
        witness.see([record(3, SEEN), None])
        return witness.cause(records.Write(KEY, 3, b""), standing)

    def test_a_claim_of_another_consumer(self):
        self.assertIs(conflicts.Cause.TAKEN, self.cause(record(4, {**SEEN, "third": PENDING})))

    def test_a_confirm(self):
        self.assertIs(
            conflicts.Cause.CONFIRMED, self.cause(record(4, {**SEEN, "other": CONFIRMED}))
        )

    def test_a_settlement(self):
        standing = record(4, {"mine": PENDING}, records.Cursor("e", 9))
        self.assertIs(conflicts.Cause.SETTLED, self.cause(standing))

    def test_a_release(self):
        self.assertIs(conflicts.Cause.RELEASED, self.cause(record(4, {"mine": PENDING})))
        self.assertIs(conflicts.Cause.RELEASED, self.cause(None))

    def test_the_first_claim_of_all(self):
        witness = conflicts.Witness()
        lost = records.Write(KEY, 0, b"")
        self.assertIs(conflicts.Cause.TAKEN, witness.cause(lost, record(1, {"a": PENDING})))

    def test_what_never_passed_by_cannot_be_told(self):
        witness = conflicts.Witness()
        lost = records.Write(KEY, 3, b"")
        self.assertIs(conflicts.Cause.OTHER, witness.cause(lost, record(4, SEEN)))
