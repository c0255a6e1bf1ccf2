# SPDX-License-Identifier: Apache-2.0
"""Where a scheduler's process dies, sleeps, or lets something happen to its engine."""

from __future__ import annotations

import enum
import os
import signal
import threading
import time
from collections.abc import Callable

import attrs

#: Steps of the claims' protocol by which a request passes beside those of
#: ClaimBatches: between the claim and the writing, and before the confirm.
AUTHORITY_STEPS = ("allocation to be written", "allocation written")

#: After so long other threads than the deciding one may be hit, too.
_PATIENCE_SECONDS = 2.0


class Action(enum.Enum):
    """What happens to a process at a step."""

    KILL = "kill"
    FREEZE = "freeze"
    #: Frozen for less than anything is kept: readers that lag are still to learn all of it.
    NAP = "nap"
    #: The parent does something to the engine, and the process waits for it.
    TELL = "tell"


@attrs.frozen
class Armed:
    """A step at which something is to happen, once."""

    layer: str
    step: str
    action: Action
    since: float


class Steps:
    """Told of every step of this process; any thread.

    :param report: tells the parent that the step was reached
    :param tell: the same, and waits until the parent has done its part
    """

    def __init__(self, report: Callable[[str], None], tell: Callable[[str], None]) -> None:
        self._report, self._tell = report, tell
        self._armed: Armed | None = None
        self._lock = threading.Lock()
        self._decider = threading.main_thread()

    def arm(self, layer: str, step: str, action: Action) -> None:
        """Have something happen at the next such step."""
        with self._lock:
            self._armed = Armed(layer, step, action, time.monotonic())

    def disarm(self) -> None:
        """Let nothing happen."""
        with self._lock:
            self._armed = None

    @property
    def armed(self) -> Armed | None:
        return self._armed

    def at_driver(self, step: str) -> None:
        """Be told of a driver's step."""
        self._at("driver", step)

    def at_claims(self, step: str) -> None:
        """Be told of a step of the claims' protocol."""
        self._at("claims", step)

    def _at(self, layer: str, step: str) -> None:
        with self._lock:
            armed = self._armed
            if armed is None or (armed.layer, armed.step) != (layer, step):
                return
            is_decider = threading.current_thread() is self._decider
            if not is_decider and time.monotonic() - armed.since < _PATIENCE_SECONDS:
                return
            self._armed = None
        if armed.action is Action.TELL:
            self._tell(step)
            return
        self._report(step)
        if armed.action is Action.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        # To this very thread: it shall not take one more step before it stands still.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
