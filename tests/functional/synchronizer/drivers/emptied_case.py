# SPDX-License-Identifier: Apache-2.0
"""The claims protocol on one database for all tests of a class, emptied before each."""

from __future__ import annotations

from typing import ClassVar

from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.testing import conformance_claims


class EmptiedCase(conformance_claims.ClaimsConformance):
    """To make a database costs more than a test, and to open one as much."""

    #: Empties it; the same client for all tests.
    _emptier: ClassVar[contract.Synchronizer | None]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls._emptier = None

    def setUp(self) -> None:
        super().setUp()
        chosen = type(self)
        if chosen._emptier is None:
            chosen._emptier = self.make_synchronizer()
            chosen._emptier.open()
            chosen.addClassCleanup(chosen._emptier.close)
        chosen._emptier.reset()
