# SPDX-License-Identifier: Apache-2.0
"""The mirror equals a real Placement whatever was written to it, and knows when it does not."""

from __future__ import annotations

import uuid

from nova_nodb_scheduler.scheduling import namespaces
from tests.functional.nova_adapter import mirror_cloud


class ImportTest(mirror_cloud.MirrorCase):
    def test_an_import_holds_trees_traits_aggregates_and_consumers(self) -> None:
        roots = [self.provider() for _ in range(3)]
        child = self.provider(roots[0])
        self.provider(child)
        self.traits(roots[1], "HW_CPU_X86_AVX2", "COMPUTE_NODE")
        self.aggregates(roots[2], str(uuid.uuid4()), str(uuid.uuid4()))
        self.allocate(roots[0])
        self.allocate(roots[0])
        kept = self.keeper()
        self.turns(kept)
        self.assert_mirrored()
        self.assertEqual(3, len(self.mirrored()))
        self.assertEqual(2, len(self.mirrored()[roots[0]]["children"]))
        mirror = self.states(namespaces.MIRRORS)["placement"]
        self.assertEqual((5, 3, 3), (mirror["providers"], mirror["roots"], mirror["differing"]))
        self.assertEqual(self.replicator.status().epoch, mirror["epoch"])
        # One listing; three parts a provider; the allocations of each root.
        self.assertEqual(1 + 3 * 5 + 3, mirror["requests"])

    def test_a_sweep_of_an_equal_mirror_is_one_request(self) -> None:
        for _ in range(4):
            self.allocate(self.provider())
        kept = self.keeper()
        self.turns(kept)
        self.calls.clear()
        self.turns(kept, 60)
        self.assertEqual({"list": 1}, dict(self.calls))
