# SPDX-License-Identifier: Apache-2.0
"""What a scheduler's own store tells of claims that a consumer made before."""

import attrs
import testtools

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.claims import claim_views
from tests.unit.scheduling import claims, hosts

CONFIRMED = model.ClaimState.CONFIRMED
#: Later than all that a store is given at first.
CONFIRMED_BY = 100
COMES = model.Claim("x", "n1", {"VCPU": 2}, node=claims.SMALL)
STAYS = attrs.evolve(COMES, node=model.NodeShare(vcpus=2, memory_mb=512, io_operations=1))


class EndedTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.hosts = hosts.Hosts()
        self.hosts.host()

    def ended(self, claim, before=COMES):
        """Look at a claim that stands while its consumer makes another."""
        held = attrs.evolve(claims.held(before.node, CONFIRMED, VCPU=1), confirmed_by=CONFIRMED_BY)
        return claim_views.ClaimsShown(self.hosts.store.snapshot()).ended(claim, held)

    def mirror(self, **allocations):
        state = hosts.provider(2, allocations=allocations)
        self.hosts.put(known_namespaces.PROVIDERS, "n1", state)

    def test_a_move_that_failed_leaves_its_host_to_the_next_one_of_another_size(self):
        self.assertFalse(self.ended(COMES))
        self.hosts.version = CONFIRMED_BY
        self.mirror(x={"VCPU": 1})
        self.assertFalse(self.ended(COMES))
        self.mirror(other={"VCPU": 1})
        self.assertTrue(self.ended(COMES))

    def test_a_server_that_stays_claims_its_next_size_beside_what_its_migration_has(self):
        self.assertFalse(self.ended(STAYS, STAYS))
        self.hosts.version = CONFIRMED_BY
        self.mirror(x={"VCPU": 1})
        self.assertTrue(self.ended(STAYS, STAYS))
