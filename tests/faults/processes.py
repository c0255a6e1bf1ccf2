# SPDX-License-Identifier: Apache-2.0
"""Processes of the plugin die, or sleep."""

import signal
import time

from tests.faults import trial as trial_module

_BOUND_SECONDS = 15.0
"""``reporter_bound_seconds``: silence of a reporter after which its cells are not trusted."""
_NOTICE_SECONDS = 3 * _BOUND_SECONDS
_PAUSE_SECONDS = 180.0


def scheduler_killed(trial: trial_module.Trial) -> None:
    """The other one serves; the one that was killed is ready again after its start."""
    victim = trial.stack.settings.scheduler_names[0]
    trial.boot("before")
    trial.fault(f"kill -9 {victim}")
    trial.stack.kill(victim)
    trial.boot("during", 4)
    trial.heal(f"start {victim}")
    trial.stack.start(victim)
    trial.stack.wait_ready(victim)
    trial.wait_served()
    trial.boot("after", 4)


def conductor_killed(trial: trial_module.Trial) -> None:
    """Its cell is not trusted after the bound, and is again once another swept it."""
    settings = trial.stack.settings
    victim, *others = settings.conductor_names(settings.cell_names[0])
    trial.boot("before")
    trial.fault(f"kill -9 {victim}, {len(others)} left in its cell")
    trial.stack.kill(victim)
    asked = trial.ask("during")
    reason = trial.wait_noticed(settings.cell_names[0], _NOTICE_SECONDS)
    trial.expect(reason is not None, "the silence of a reporter is noticed")
    if others:
        trial.wait_served()
    trial.settle(asked)
    trial.boot("with-one")
    trial.heal(f"start {victim}")
    trial.stack.start(victim)
    trial.stack.wait_ready(victim)
    trial.wait_served()
    trial.boot("after")


def every_conductor_of_a_cell_killed(trial: trial_module.Trial) -> None:
    """The cell is read from its database; builds in it wait for a conductor, as in stock."""
    settings = trial.stack.settings
    cell = settings.cell_names[0]
    victims = settings.conductor_names(cell)
    trial.boot("before")
    trial.fault(f"kill -9 {', '.join(victims)}")
    for victim in victims:
        trial.stack.kill(victim)
    reason = trial.wait_noticed(cell, _NOTICE_SECONDS)
    trial.expect(reason is not None, "the silence of a cell's only reporters is noticed")
    asked = trial.ask("during", 4)
    trial.heal(f"start {', '.join(victims)}")
    for victim in victims:
        trial.stack.start(victim)
    for victim in victims:
        trial.stack.wait_ready(victim)
    trial.wait_served()
    trial.settle(asked)
    trial.boot("after")


def scheduler_paused(trial: trial_module.Trial) -> None:
    """What it missed it learns before it serves from memory; requests to it wait or go on."""
    settings = trial.stack.settings
    victim = settings.scheduler_names[0]
    trial.boot("before")
    trial.fault(f"SIGSTOP {victim}")
    trial.stack.kill(victim, signal.SIGSTOP)
    stopped = time.monotonic()
    asked = trial.ask("during", 4)
    time.sleep(max(0.0, stopped + _PAUSE_SECONDS - time.monotonic()))
    trial.stack.kill(victim, signal.SIGCONT)
    trial.heal(f"SIGCONT {victim} after {time.monotonic() - stopped:.0f} s")
    woken = trial.ask("woken", 2)
    trial.wait_served()
    # What the sleeping scheduler had taken from the queue waits for its answer; the conductor
    # gives up after rpc_response_timeout (60 s) and asks once more.
    trial.settle(asked, excused="MessagingTimeout")
    trial.settle(woken)
    trial.boot("after", 4)
