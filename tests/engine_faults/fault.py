# SPDX-License-Identifier: Apache-2.0
"""What a fault is, and one trial of it: strike, heal, recover, come to quiet, check."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import attrs

from tests.engine_faults import engines, processes, scheduler, world

#: Bounds of recovery: from the fault's end until every scheduler follows a
#: proved feed and has decided. They are those of the options of these trials
#: (time-outs 1.5 s, leases 1.5 s, silence 3 s), with room for a busy machine.
CLIENT_SECONDS = 10.0
ENGINE_SECONDS = 15.0
CLUSTER_SECONDS = 45.0

#: Long enough for every feed to be known as dead.
OUTAGE_SECONDS = scheduler.SILENCE_SECONDS + 1.7


@attrs.frozen
class Fault:
    """One fault.

    :param bound_seconds: of the recovery
    :param server: options of a server of its own that it needs
    :param proxied: whether schedulers reach the server through a proxy
    :param private: it leaves a server that nobody else should use
    :param moves: the proxy leads elsewhere in the end, so everybody goes through it
    :param loses: it takes data that were acknowledged, which a new epoch must tell
    :param restarts: the same for an engine that keeps nothing on a disk
    """

    name: str
    bound_seconds: float
    strike: Callable[[Trial], None]
    server: tuple[str, ...] = ()
    proxied: bool = False
    private: bool = False
    moves: bool = False
    loses: bool = False
    restarts: bool = False


@attrs.frozen
class Outcome:
    """What became of one trial."""

    engine: str
    fault: str
    passed: bool
    recovery_seconds: float | None
    bound_seconds: float
    settled_seconds: float | None
    granted: int
    seconds: float
    notes: dict[str, Any]
    detail: str = ""


class Trial:
    """One fault on one world."""

    def __init__(self, tried: Fault, engine: engines.Engine, of: world.World, number: int) -> None:
        self.fault = tried
        self.engine = engine
        self.world = of
        self.number = number
        self.notes: dict[str, Any] = {}
        self._recovery_seconds: float | None = None
        self._replaced: list[processes.Process] = []

    def run(self) -> Outcome:
        """Carry it out; whatever goes wrong is in the outcome."""
        began = time.monotonic()
        granted = self.world.grants()
        settled, detail = None, ""
        try:
            self.world.delete_orphans()
            self.world.work()
            if not self.world.wait_grants(3, 30.0):
                raise world.Broken(f"nobody was granted anything: {self.world.statuses()}")
            epoch = self.world.client.head().epoch
            self.fault.strike(self)
            self._welcome()
            time.sleep(0.3)
            settled = self.world.check()
            self._check_epoch(epoch)
        except Exception as error:
            # Whatever it is, it is this trial's.
            detail = f"{type(error).__name__}: {error}"
        old_lists = self.world.ledger.counts["choices by old member lists"]
        if old_lists:
            self.notes["choices by old member lists, so far"] = old_lists
        return Outcome(
            engine=self.engine.name,
            fault=self.fault.name,
            passed=not detail,
            recovery_seconds=self._recovery_seconds,
            bound_seconds=self.fault.bound_seconds,
            settled_seconds=settled,
            granted=self.world.grants() - granted,
            seconds=time.monotonic() - began,
            notes=self.notes,
            detail=detail,
        )

    def _check_epoch(self, before: str) -> None:
        """See that nothing was thrown away that the engine had kept.

        :raises Broken: there is another epoch
        """
        after = self.world.client.head().epoch
        may_lose = self.fault.loses or (self.fault.restarts and self.engine.forgets)
        if after != before and not may_lose:
            raise world.Broken(f"epoch {before} with all its records was given up for {after}")

    def _welcome(self) -> None:
        """Wait for those who were started, and have them work."""
        self.world.wait_ready(world.START_SECONDS)
        self.world.work()
        if self._replaced:
            self.world.recover(world.START_SECONDS)

    # -- for those who strike ---------------------------------------------------------------

    def healed(self) -> None:
        """Say that the fault is over."""
        self._healed_at = time.monotonic()

    def recovered(self, besides: processes.Process | None = None) -> None:
        """Wait for the recovery; what it takes is the trial's figure.

        :raises Broken: not within the bound
        """
        self.world.recover(self.fault.bound_seconds, besides)
        self._recovery_seconds = time.monotonic() - self._healed_at

    def replace(self, dead: processes.Process) -> None:
        """Start another scheduler in place of a dead one."""
        self.world.replace(dead)
        self._replaced.append(dead)

    def told(self) -> None:
        """See that every scheduler says that its feed proves nothing.

        :raises Broken: one believes in a feed that is dead
        """
        statuses = self.world.statuses()
        states = sorted({each["state"] for each in statuses})
        self.notes["told"] = ", ".join(states)
        silent = [each for each in statuses if each["alive"]]
        if silent:
            raise world.Broken(f"a dead feed is taken for alive: {silent}")

    def note_told(self) -> None:
        """Note what schedulers say of their feeds."""
        self.notes["told"] = ", ".join(sorted({each["state"] for each in self.world.statuses()}))

    def retention_passes(self) -> None:
        """Collect everything that can be collected."""
        self.world.client.collect(0.0)
        if self.engine.driver == "etcd":
            self.engine.server.compact()
