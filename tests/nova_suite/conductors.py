# SPDX-License-Identifier: Apache-2.0
"""Claim for Nova's conductors as the plugin's do, and look whether it was done.

The plugin's ConductorManager brings its own reporter, of which a test has one
already: Nova's runs, with what the plugin's would install for its claims. Each
time it allocates by itself, the back end is asked whether a claim stands.
"""

from __future__ import annotations

from collections.abc import Callable

import fixtures
import nova.conductor.manager

from nova_nodb_scheduler.nova_adapter import assembly
from nova_nodb_scheduler.nova_adapter.claims import alternate_hosts, outside_claims
from nova_nodb_scheduler.testing import single_claims
from tests.nova_suite import feed, reporters, schedulers


class ConductorsFixture(fixtures.Fixture):
    """The claims of one test's conductors: :class:`outside_claims.OutsideClaimer`. Any thread."""

    def __init__(
        self,
        plugin: assembly.Plugin,
        process: reporters.Reporters,
        started: schedulers.SchedulersFixture,
        waits: feed.FeedWaits,
    ) -> None:
        super().__init__()
        self._plugin = plugin
        self._process = process
        self._schedulers = started
        self._waits = waits

    def _setUp(self) -> None:
        own = self._plugin.outside_claims()
        if own is None:
            return
        self._own = self._plugin.checked_alternates(own) or own
        self.addCleanup(self._own.stop)
        tasks = nova.conductor.manager.ComputeTaskManager
        build = alternate_hosts.remembering(tasks.build_instances)
        self.useFixture(fixtures.MockPatchObject(tasks, "build_instances", build))
        outside_claims.install(self)
        self.addCleanup(outside_claims.uninstall, self)

    def claimed(
        self,
        move: outside_claims.OutsideMove,
        allocate: outside_claims.Allocate,
        take_back: Callable[[], None],
    ) -> bool:
        """See :class:`outside_claims.OutsideClaimer`."""
        self._schedulers.catch_up()
        seen: list[str] = []

        def look_and_allocate() -> bool | None:
            seen.append("claimed" if self._is_held(move) else "unclaimed")
            return allocate()

        try:
            return self._own.claimed(move, look_and_allocate, take_back)
        finally:
            self._waits.outside.update(seen or ["refused"])

    def _is_held(self, move: outside_claims.OutsideMove) -> bool:
        standing = single_claims.stranger(self._process.synchronizer).read(move.host)
        return move.consumer in standing.claims
