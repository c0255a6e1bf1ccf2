# SPDX-License-Identifier: Apache-2.0
"""Clients that stand still, or die, at a step of a driver's protocols, whichever it is."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.testing.conformance import contract_case

_T = TypeVar("_T")

#: How long others are given to end beside one that stands still: it may hold their locks.
BESIDE_SECONDS = 1.0


class Died(BaseException):
    """The client died here; nothing in it may catch this."""


class HeldUp(threading.Thread):
    """Does a job with a client, and stands still at a step until it is let go.

    :param client: nobody else's
    :param step: see :attr:`contract.Synchronizer.STEPS`
    """

    def __init__(self, client: contract.Synchronizer, step: str, job: Callable[[], object]):
        super().__init__(name=f"held up at {step}", daemon=True)
        self._step = step
        self._job = job
        self._reached = threading.Event()
        self._released = threading.Event()
        #: What the job returned; None where the back end was unavailable.
        self.result: object = None
        client.on_step = self._come_to
        self.start()

    def run(self) -> None:
        with contextlib.suppress(errors.BackendUnavailable):
            self.result = self._job()
        self._reached.set()

    def stands_still(self) -> None:
        """Wait until it has come to its step, or has ended without."""
        self._reached.wait(contract_case.PATIENCE_SECONDS)

    def let_go(self) -> object:
        """Let it go on, and return what its job did."""
        self._released.set()
        self.join(contract_case.PATIENCE_SECONDS)
        return self.result

    def _come_to(self, step: str) -> None:
        if step == self._step and not self._reached.is_set():
            self._reached.set()
            self._released.wait(contract_case.PATIENCE_SECONDS)


def steps_of(client: contract.Synchronizer, job: Callable[[], object]) -> list[str]:
    """Return the steps that a job passes, each once, in their order."""
    passed: list[str] = []
    before, client.on_step = client.on_step, passed.append
    job()
    client.on_step = before
    return list(dict.fromkeys(passed))


def begin_epoch(client: contract.Synchronizer, dies_at: str | None) -> None:
    """Begin a new epoch, and die at a step of that; None: carry it out."""

    def die(step: str) -> None:
        if step == dies_at:
            raise Died(step)

    client.on_step = die
    with contextlib.suppress(Died):
        client.reset()


def beside(held: HeldUp, job: Callable[[], _T]) -> _T:
    """Do what one who stands still may keep from ending.

    :raises TimeoutError: it does, or the back end was unavailable; that one was let go
        then, and nothing is under way any more
    """
    results: list[_T] = []

    def do() -> None:
        with contextlib.suppress(errors.BackendUnavailable, AssertionError):
            results.append(job())

    thread = threading.Thread(target=do, name="beside one held up", daemon=True)
    thread.start()
    thread.join(BESIDE_SECONDS)
    if thread.is_alive():
        held.let_go()
        thread.join(contract_case.PATIENCE_SECONDS)
        raise TimeoutError
    if not results:
        raise TimeoutError
    return results[0]
