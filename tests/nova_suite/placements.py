# SPDX-License-Identifier: Apache-2.0
"""The Placement of one test: whether it runs, and running again after the test took it away.

A test that stops Placement in its middle, as where nova-api knows none, leaves
nobody to ask what became of an allocation. On a cloud it comes back.
"""

from __future__ import annotations

import contextlib
from typing import Any

import fixtures
from nova.tests.functional import fixtures as functional


class PlacementsFixture(fixtures.Fixture):
    """Knows the Placement fixtures that the test uses, from before it uses any."""

    def _setUp(self) -> None:
        self._running: list[Any] = []
        self._last: Any = None
        set_up = functional.PlacementFixture.setUp

        def started(placement: Any) -> None:
            set_up(placement)
            self._running.append(placement)
            placement.addCleanup(self._running.remove, placement)
            self._last = placement

        self.useFixture(fixtures.MonkeyPatch(f"{_FIXTURE}.setUp", started))

    def running_again(self) -> contextlib.AbstractContextManager[Any]:
        """Return what has Placement run over the database of the last, should none run."""
        last = self._last
        if self._running or last is None or last.db:
            # One that brings its own database ended with it.
            return contextlib.nullcontext()
        return functional.PlacementFixture(
            conf_fixture=last.conf_fixture, db=False, register_opts=False
        )


_FIXTURE = "nova.tests.functional.fixtures.PlacementFixture"
