# SPDX-License-Identifier: Apache-2.0
"""The executable form of the synchronizer contract: every driver runs it.

Called by the tests of drivers, of this project and of others, as a base class.
Imports the contract and the model; nothing of Nova, and no driver.
"""

from __future__ import annotations

from nova_nodb_scheduler.testing.conformance import (
    feed,
    races,
    snapshots,
    upkeep,
    writes,
)


class ConformanceSuite(
    writes.CompareAndSet,
    writes.Names,
    feed.FeedOrder,
    snapshots.Snapshots,
    upkeep.Collection,
    upkeep.EpochChanges,
    upkeep.EpochOrder,
    upkeep.Life,
    races.Races,
):
    """Everything the contract promises, a sentence per test.

    A driver's author writes one class per back end::

        class TestMine(conformance.ConformanceSuite):
            def setUp(self):
                super().setUp()
                self.server = self.enterContext(MyServer())

            def make_synchronizer(self):
                return MySynchronizer(MyOptions(address=self.server.address))

    and runs it against the real engine. What a driver does not declare in its
    capabilities is skipped; what it declares and does not keep fails. Two more
    methods let the suite do what only the engine's owner can: ``restart_backend``
    and ``make_swappable``, see :class:`.contract_case.Case`.
    """


__all__ = ["ConformanceSuite"]
