# SPDX-License-Identifier: Apache-2.0
"""The claims protocol over the memory driver, with many keys a write and with one."""

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims, group_claims, records
from nova_nodb_scheduler.synchronizer.claims import group_places, ledger_claimer
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.testing import conformance_claims, single_claims
from nova_nodb_scheduler.testing.conformance_claims import claims_case as conformance_claims_base


class TestManyKeys(conformance_claims.ClaimsConformance):
    def setUp(self):
        super().setUp()
        self.hub = memory.MemoryHub()

    def make_synchronizer(self):
        return memory.MemorySynchronizer(shared_hub=self.hub)


class TestOneKeyOnly(TestManyKeys):
    def make_synchronizer(self):
        return memory.MemorySynchronizer(memory.MemoryOptions(single_key=True), self.hub)


class TestBackEndsThatGoAway(conformance_claims_base.ClaimsCase):
    """What a call that raises leaves behind."""

    def setUp(self):
        super().setUp()
        self.hub = memory.MemoryHub()

    def make_synchronizer(self):
        return memory.MemorySynchronizer(memory.MemoryOptions(single_key=True), self.hub)

    def test_a_group_member_whose_host_cannot_be_claimed_is_taken_out(self):
        scheduler, other = self.scheduler(), self.scheduler()
        client = scheduler.client
        write = client.write
        failed = []

        def claims_fail_once(batch):
            if batch[0].key.namespace == "claims" and not failed:
                failed.append(batch)
                raise errors.BackendUnavailable("memory", "away for one write")
            return write(batch)

        client.write = claims_fail_once
        group = group_claims.ServerGroup("group", group_claims.Policy.AFFINITY)
        with self.assertRaises(errors.BackendUnavailable):
            scheduler.join(group, conformance_claims_base.claim("a", "one"))
        self.assertEqual({}, other.groups.read("group").members)

    def test_a_claim_found_gone_leaves_the_place_of_another_scheduler(self):
        # Both were asked for the same server: the conductor's call had timed out.
        owner, late = self.scheduler("owner"), self.scheduler("late")
        group = group_claims.ServerGroup("group", group_claims.Policy.AFFINITY)
        wanted = conformance_claims_base.claim("a", "one")
        granted = owner.join(group, wanted)
        write = late.client.write

        def claims_in_doubt(batch):
            if batch[0].key.namespace != "claims":
                return write(batch)
            late.client.faults.fail_next(memory.Fault.UNAVAILABLE, operation="read")
            return [records.WriteResult(records.Verdict.UNKNOWN)]

        view = ledger_claimer.ClaimView(late.client.head(), conformance_claims_base.fits)
        late.client.write = claims_in_doubt
        place = group_places.GroupView(group, {})
        doubt = late.batches.take([wanted], view, place)["a"]
        self.assertIsInstance(doubt, ledger_claimer.InDoubt)
        late.client.write = write
        self.assertIsInstance(late.batches.settle(doubt, view), claims.Gone)
        self.assertIsInstance(owner.groups.confirm(granted), claims.Granted)

    def test_a_write_that_may_stand_is_unknown_even_if_a_later_one_lost(self):
        scheduler, other = self.scheduler("one"), self.scheduler("other")
        client = scheduler.client
        write = client.write
        calls = []

        def lost_reply_then_a_rival_then_away(batch):
            calls.append(batch)
            if len(calls) == 1:
                write(batch)
                return [records.WriteResult(records.Verdict.UNKNOWN)]
            other.claim(conformance_claims_base.claim("rival", "host"))
            client.faults.fail_next(memory.Fault.UNAVAILABLE, operation="read")
            return write(batch)

        client.write = lost_reply_then_a_rival_then_away
        answer = scheduler.claim(conformance_claims_base.claim("a", "host"))
        self.assertIsInstance(answer, single_claims.GrantUnknown)
        self.assertEqual({"a", "rival"}, self.consumers(other, "host"))
