# SPDX-License-Identifier: Apache-2.0
"""Does to a run what its timeline says: racks, schedulers, the reporter and the back end fail."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence

import attrs

from nova_nodb_scheduler.simulator.run import fleet, grants, host_reporter
from nova_nodb_scheduler.simulator.scenario import run_clock, run_options, timeline
from nova_nodb_scheduler.simulator.schedulers import backend_line, scheduler_process


@attrs.define(eq=False, slots=False)
class FaultInjection:
    """The faults of one run; its own thread alone calls.

    :param schedulers: in the order of their numbers
    :param unanswered: told of the request that a killed scheduler had
    """

    _options: run_options.RunOptions
    _schedulers: Sequence[scheduler_process.SchedulerProcess]
    _reporter: host_reporter.HostReporter
    _line: backend_line.BackendLine
    _hosts: fleet.Fleet
    _grants: grants.Grants = attrs.field(alias="granted")
    _unanswered: Callable[[int], None]
    _clock: run_clock.RunClock
    _events: run_clock.Events = attrs.field(alias="happenings")
    _chance: random.Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._chance = random.Random(f"world {self._options.seed}")

    def begin(self, fault: timeline.PlannedFault) -> None:
        """Let a fault begin; its end is arranged for."""
        kinds, seconds = timeline.FaultKind, fault.for_seconds
        match fault.kind:
            case kinds.RACK_LOST:
                rack = int(fault.number)
                self._hosts.lose(rack, self._clock.now_seconds())
                self._heal_after(seconds, lambda: self._find(rack))
            case kinds.SCHEDULER_KILLED:
                self._kill(self._schedulers[int(fault.number)], seconds or 0.0)
            case kinds.SCHEDULERS_KILLED:
                self._kill_one_after_the_other(fault.number, fault.ends_at_seconds)
            case kinds.SCHEDULER_PAUSED:
                paused = self._schedulers[int(fault.number)]
                paused.pause()
                self._heal_after(seconds, paused.resume)
            case kinds.REPORTER_LOST:
                self._reporter.lost = True
                self._heal_after(seconds, self._report_again)
            case kinds.BACKEND_CUT | kinds.BACKEND_KILLED:
                is_cut = fault.kind is kinds.BACKEND_CUT
                self._line.set(
                    backend_line.LineFault.CUT if is_cut else backend_line.LineFault.REFUSED
                )
                self._heal_after(seconds, self._line.set)
            case kinds.BACKEND_SLOW:
                self._line.set(delay_seconds=fault.number)
                self._heal_after(seconds, self._line.set)

    def _heal_after(self, seconds: float | None, heal: Callable[[], None]) -> None:
        if seconds is not None:
            self._events.after(seconds, heal)

    def _find(self, rack: int) -> None:
        for server in self._hosts.find(rack, self._clock.now_seconds()):
            # They are taken up anew.
            self._events.after(
                self._options.build_seconds, functools.partial(self._grants.built, server)
            )

    def _report_again(self) -> None:
        self._reporter.lost = False

    def _kill(self, killed: scheduler_process.SchedulerProcess, down_seconds: float) -> None:
        lost = killed.kill()
        if lost is not None:
            self._unanswered(lost.number)
        if down_seconds:
            self._events.after(down_seconds, killed.start)
        else:
            killed.start()

    def _kill_one_after_the_other(self, every_seconds: float, until_seconds: float) -> None:
        ready = [each for each in self._schedulers if each.is_ready]
        if ready:
            self._kill(self._chance.choice(ready), 0.0)
        if self._clock.now_seconds() + every_seconds < until_seconds:
            again = functools.partial(self._kill_one_after_the_other, every_seconds, until_seconds)
            self._events.after(every_seconds, again)
