# SPDX-License-Identifier: Apache-2.0
"""Does to a run what its timeline says: racks, schedulers, the reporter and the back end fail."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from nova_nodb_scheduler.simulator import (
    backend_line,
    fleet,
    processes,
    reporting,
    run_options,
    timeline,
)


class World(Protocol):
    """What of a run it lays hands on; all calls come from the run's own thread."""

    options: run_options.RunOptions
    reporter: reporting.Reporter

    @property
    def schedulers(self) -> Sequence[processes.SchedulerProcess]:
        """In the order of their numbers."""

    def now_seconds(self) -> float:
        """Return the simulated time."""

    def after(self, seconds: float, happen: Callable[[], None]) -> None:
        """Let something happen in some simulated seconds."""

    def built(self, server: str) -> None:
        """Have a server's host count it, if the host lives."""

    def give_up(self, number: int) -> None:
        """Note that a request died with its scheduler."""


class Mischief:
    """The faults of one run."""

    def __init__(self, world: World, line: backend_line.Line, hosts: fleet.Fleet) -> None:
        self._world = world
        self._line = line
        self._hosts = hosts
        self._chance = random.Random(f"world {world.options.seed}")

    def begin(self, fault: timeline.Fault) -> None:
        """Let a fault begin; its end is arranged for."""
        kinds, seconds = timeline.Kind, fault.for_seconds
        match fault.kind:
            case kinds.RACK_LOST:
                rack = int(fault.number)
                self._hosts.lose(rack, self._world.now_seconds())
                self._heal_after(seconds, lambda: self._find(rack))
            case kinds.SCHEDULER_KILLED:
                self._kill(self._world.schedulers[int(fault.number)], seconds or 0.0)
            case kinds.SCHEDULERS_KILLED:
                self._kill_one_after_the_other(fault.number, fault.ends_at_seconds)
            case kinds.SCHEDULER_PAUSED:
                paused = self._world.schedulers[int(fault.number)]
                paused.pause()
                self._heal_after(seconds, paused.resume)
            case kinds.REPORTER_LOST:
                self._world.reporter.lost = True
                self._heal_after(seconds, self._report_again)
            case kinds.BACKEND_CUT | kinds.BACKEND_KILLED:
                is_cut = fault.kind is kinds.BACKEND_CUT
                self._line.set(backend_line.Fault.CUT if is_cut else backend_line.Fault.REFUSED)
                self._heal_after(seconds, self._line.set)
            case kinds.BACKEND_SLOW:
                self._line.set(delay_seconds=fault.number)
                self._heal_after(seconds, self._line.set)

    def _heal_after(self, seconds: float | None, heal: Callable[[], None]) -> None:
        if seconds is not None:
            self._world.after(seconds, heal)

    def _find(self, rack: int) -> None:
        for server in self._hosts.find(rack, self._world.now_seconds()):
            # They are taken up anew.
            self._world.after(
                self._world.options.build_seconds, functools.partial(self._world.built, server)
            )

    def _report_again(self) -> None:
        self._world.reporter.lost = False

    def _kill(self, killed: processes.SchedulerProcess, down_seconds: float) -> None:
        lost = killed.kill()
        if lost is not None:
            self._world.give_up(lost.number)
        if down_seconds:
            self._world.after(down_seconds, killed.start)
        else:
            killed.start()

    def _kill_one_after_the_other(self, every_seconds: float, until_seconds: float) -> None:
        ready = [each for each in self._world.schedulers if each.is_ready]
        if ready:
            self._kill(self._chance.choice(ready), 0.0)
        if self._world.now_seconds() + every_seconds < until_seconds:
            again = functools.partial(self._kill_one_after_the_other, every_seconds, until_seconds)
            self._world.after(every_seconds, again)
