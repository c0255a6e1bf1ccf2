# SPDX-License-Identifier: Apache-2.0
"""Carries a round's faults out, and starts what ended by itself, as an init system does."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from tests.chaos import backends, links, plan
from tools.stack import stack as stack_module

Say = Callable[[str], None]

_LOOK_SECONDS = 1.0
_READY_SECONDS = 180.0
_STARTED_BY_THE_STACK = ("nova-scheduler", "nova-conductor", "nova-super", "nova-api")


class Injection:
    """One round's faults. A context manager; at its end everything runs and is connected.

    :param say: told what happens, and when
    :ivar revived: names of processes that ended by themselves and were started again
    :ivar ended: these, each with when that was seen, in seconds of the round
    :ivar failures: faults that could not be done
    """

    def __init__(
        self,
        stack: stack_module.Stack,
        backend: backends.BackEnd | None,
        cuts: links.Links,
        say: Say,
    ) -> None:
        self._stack = stack
        self._backend = backend
        self._links = cuts
        self._say = say
        self._lock = threading.Lock()
        self._held: set[str] = set()
        self._stop = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="chaos-keeper", daemon=True)
        self._threads: list[threading.Thread] = []
        self.began = time.monotonic()
        self.revived: list[str] = []
        self.ended: list[tuple[str, float]] = []
        self.failures: list[str] = []

    def __enter__(self) -> "Injection":
        self._keeper.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._keeper.join()
        for thread in self._threads:
            thread.join()

    def begin(self, faults: Iterable[plan.Fault]) -> None:
        """Do each at its time from now, in a thread of its own; return at once."""
        self.began = time.monotonic()
        for number, fault in enumerate(faults):
            thread = threading.Thread(
                target=self._run, args=(fault,), name=f"chaos-fault-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def wait(self) -> None:
        """Wait until every fault is over and every process serves."""
        for thread in self._threads:
            thread.join()
        deadline = time.monotonic() + _READY_SECONDS
        for name in self._stack.status():
            self._wait_ready(name, deadline)

    def _wait_ready(self, name: str, deadline: float) -> None:
        while True:
            try:
                self._stack.wait_ready(name, max(1.0, deadline - time.monotonic()))
            except (RuntimeError, OSError) as error:
                # It ended by itself: the keeper starts it again.
                if time.monotonic() > deadline:
                    self.failures.append(f"{name} does not serve again: {error}")
                    return
                time.sleep(_LOOK_SECONDS)
            else:
                return

    def _run(self, fault: plan.Fault) -> None:
        wait = self.began + fault.at_seconds - time.monotonic()
        if self._stop.wait(max(0.0, wait)):
            return
        self._tell(f"{fault.kind} {fault.target}")
        try:
            self._act(fault)
        except Exception as error:  # told with the round, which then fails
            self.failures.append(f"{fault.kind} {fault.target}: {type(error).__name__}: {error}")
        self._tell(f"{fault.kind} {fault.target} is over")

    def _act(self, fault: plan.Fault) -> None:
        if fault.kind.startswith("cut-"):
            self._cut(fault)
        elif fault.kind == plan.WORKER_KILL:
            self._kill_worker(fault)
        elif fault.target == plan.BACKEND:
            self._hurt_backend(fault)
        elif fault.kind.endswith("-stop"):
            with self._holding(fault.target):
                self._stack.kill(fault.target, signal.SIGSTOP)
                try:
                    time.sleep(fault.seconds)
                finally:
                    self._stack.kill(fault.target, signal.SIGCONT)
        elif fault.kind.endswith("-restart"):
            with self._holding(fault.target):
                # The end that a service makes for itself, where it has one.
                is_ours = fault.target.startswith(_STARTED_BY_THE_STACK)
                self._stack.stop(fault.target, graceful=is_ours)
                self._stack.start(fault.target)
        else:
            with self._holding(fault.target):
                self._stack.kill(fault.target)
                self._stack.processes.wait_gone(fault.target, fault.seconds + 20.0)
                time.sleep(fault.seconds)
                self._stack.start(fault.target)

    def _cut(self, fault: plan.Fault) -> None:
        peer = fault.kind.removeprefix("cut-")
        self._links.cut(fault.target, peer, holds_back=fault.holds_back)
        try:
            time.sleep(fault.seconds)
        finally:
            self._links.mend(fault.target, peer)

    def _kill_worker(self, fault: plan.Fault) -> None:
        """Kill one of the processes that take requests; their parent forks another."""
        processes = self._stack.processes
        workers = sorted(set(processes.members(fault.target)) - {processes.pid(fault.target)})
        if workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(workers[int(fault.choice * len(workers))], signal.SIGKILL)

    def _hurt_backend(self, fault: plan.Fault) -> None:
        assert self._backend is not None and self._backend.server is not None
        server = self._backend.server
        if fault.kind.endswith("-stop"):
            server.pause()
            try:
                time.sleep(fault.seconds)
            finally:
                server.resume()
        else:
            server.kill()
            time.sleep(fault.seconds)
            server.start()

    @contextlib.contextmanager
    def _holding(self, name: str) -> Iterator[None]:
        """Keep the keeper's hands off a process, and wait for the fault that has it."""
        while True:
            with self._lock:
                if name not in self._held:
                    self._held.add(name)
                    break
            time.sleep(0.1)
        try:
            yield
        finally:
            with self._lock:
                self._held.discard(name)

    def _keep(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            for name, pid in self._stack.status().items():
                if pid is not None:
                    continue
                with self._lock:
                    if name in self._held:
                        continue
                    self._held.add(name)
                try:
                    self._revive(name)
                finally:
                    with self._lock:
                        self._held.discard(name)

    def _revive(self, name: str) -> None:
        if self._stack.processes.pid(name) is None:
            self.revived.append(name)
            self.ended.append((name, time.monotonic() - self.began))
            self._tell(f"{name} had ended by itself: started again")
            self._stack.processes.stop(name, signal.SIGKILL)
            self._stack.start(name)

    def _tell(self, what: str) -> None:
        self._say(f"{time.monotonic() - self.began:6.1f} s  {what}")
