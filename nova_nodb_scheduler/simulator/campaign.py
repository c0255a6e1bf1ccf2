# SPDX-License-Identifier: Apache-2.0
"""Runs strategies one after the other on the same hosts, workload and timeline."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.simulator.outcome import cell_compaction, results
from nova_nodb_scheduler.simulator.run import world
from nova_nodb_scheduler.simulator.scenario import backend_choice, run_options, timeline, workload


@attrs.frozen(kw_only=True)
class Campaign:
    """What is run.

    :param options: of all runs, but for strategy and back end
    :param backend: None for an SQLite file of its own for each run
    :param reset: drop everything that the back end holds, before each run
    """

    options: run_options.RunOptions
    chosen: Sequence[run_options.Strategy]
    arrivals: Sequence[workload.Arrival]
    faults: Sequence[timeline.PlannedFault] = ()
    backend: backend_choice.BackendChoice | None = None
    reset: bool = False

    def check(self) -> None:
        """See that it can be run.

        :raises ConfigurationError: it cannot
        """
        if self.backend is None:
            return
        self.backend.make()
        if len(self.chosen) > 1 and not self.reset:
            raise errors.ConfigurationError(
                "--strategy",
                ", ".join(each.name for each in self.chosen),
                "each run needs an empty back end: pass --reset to drop everything there before "
                "each, or run one strategy.",
            )

    def run(self, told: world.Told = world.not_told) -> list[results.RunResult]:
        """Run all.

        :raises SimulationFailed: a scheduler failed by itself
        :raises BackendUnavailable: it was away before a run began
        """
        self.check()
        return [self._run_one(strategy, told) for strategy in self.chosen]

    def _run_one(self, strategy: run_options.Strategy, told: world.Told) -> results.RunResult:
        with tempfile.TemporaryDirectory(prefix="nova-nodb-simulate-") as directory:
            backend = self.backend or backend_choice.in_directory(pathlib.Path(directory))
            if self.reset and self.backend is not None:
                _reset(backend)
            options = attrs.evolve(self.options, strategy=strategy, backend=backend)
            made = world.World(options, self.arrivals, self.faults, told)
            made.run()
        return results.of(made)

    def pack(self, trials: int, told: world.Told = world.not_told) -> Mapping[str, Any]:
        """Return how few hosts hold the workload, by strategy; those that pick alike share it."""
        by_pick: dict[bool, cell_compaction.Packed] = {}
        for strategy in self.chosen:
            if strategy.random not in by_pick:
                by_pick[strategy.random] = cell_compaction.measure(
                    self.options.cluster,
                    self.arrivals,
                    strategy,
                    trials=trials,
                    told=lambda text: told(world.RunProgress(f"packing, {text}", 0, 0)),
                )
        return {each.name: attrs.asdict(by_pick[each.random]) for each in self.chosen}


def _reset(backend: backend_choice.BackendChoice) -> None:
    made = backend.make()
    made.open()
    try:
        made.reset()
    finally:
        made.close()
