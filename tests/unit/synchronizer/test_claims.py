# SPDX-License-Identifier: Apache-2.0
"""The claims protocol over the memory driver, with many keys a write and with one."""

from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.testing import conformance_claims


class TestAtomicWrites(conformance_claims.ClaimsConformance):
    def setUp(self):
        super().setUp()
        self.hub = memory.MemoryHub()

    def make_synchronizer(self):
        return memory.MemorySynchronizer(shared_hub=self.hub)


class TestOneKeyOnly(TestAtomicWrites):
    def make_synchronizer(self):
        return memory.MemorySynchronizer(memory.MemoryOptions(single_key=True), self.hub)
