# SPDX-License-Identifier: Apache-2.0
"""A scheduler's process: requests in by a pipe, allocations and decisions out."""

from __future__ import annotations

import contextlib
import logging
import time
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import connection as mp_connection

import attrs

from nova_nodb_scheduler.scheduling import claimer, placing
from nova_nodb_scheduler.simulator import (
    backend_line,
    backends,
    messages,
    run_clock,
    run_options,
    scheduler,
)

LOG = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class WorkerOptions:
    """What a scheduler's process is given at its start.

    :param identity: unique, restarts included
    :param authority_seconds: how long the authority takes for each write
    :param start_seconds: most time until the cluster is known
    """

    identity: str
    backend: backends.BackendChoice
    scheduler: scheduler.SchedulerOptions
    authority_seconds: float = 0.0
    start_seconds: float = 600.0


def of_run(options: run_options.RunOptions) -> WorkerOptions:
    """Return what the options of a run make of each process's, its identity left out."""
    return WorkerOptions(
        identity="",
        backend=options.backend,
        authority_seconds=options.authority_seconds,
        start_seconds=options.start_seconds,
        scheduler=scheduler.SchedulerOptions(
            strategy=options.strategy,
            seed=options.seed,
            in_step=options.pace is run_clock.Pace.VIRTUAL,
            service_down_seconds=options.service_down_seconds,
            cache_seconds=options.cache_seconds,
            beat_seconds=options.beat_seconds,
            deadline_seconds=options.deadline_seconds,
            claim_lease_seconds=options.claim_lease_seconds,
            claim_spread=options.claim_spread,
        ),
    )


def run(
    options: WorkerOptions,
    pipe: mp_connection.Connection,
    questions: mp_connection.Connection,
    line: backend_line.Line,
    clock: run_clock.RunClock,
) -> None:
    """Serve one pipe until told to stop, or until the world is gone.

    :param questions: a second pipe, for the thread that settles claims
    """
    # A cut line is told of in the report, not by every thread that meets it.
    logging.getLogger("nova_nodb_scheduler").setLevel(logging.CRITICAL)
    try:
        _serve(options, pipe, questions, line, clock)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except Exception:  # noqa: BLE001 - whatever it is, the world shall hear of it
        with contextlib.suppress(OSError):
            pipe.send(messages.Failed(traceback.format_exc()))


def _serve(
    options: WorkerOptions,
    pipe: mp_connection.Connection,
    questions: mp_connection.Connection,
    line: backend_line.Line,
    clock: run_clock.RunClock,
) -> None:
    lined = backend_line.LinedSynchronizer(options.backend.make(), line)

    def ask(server: str) -> Mapping[str, Mapping[str, int]] | None:
        try:
            questions.send(messages.Question(server))
            answer: messages.Allocations = questions.recv()
        except (EOFError, OSError):
            return None  # the world ends
        return answer.by_host

    made = scheduler.Scheduler(options.identity, lined, options.scheduler, clock.now_seconds, ask)
    pipe.send(messages.Ready(made.start(options.start_seconds)))
    try:
        while not isinstance(asked := pipe.recv(), messages.Stop):
            if isinstance(asked, messages.Settle):
                made.go_in_step()
                pipe.send(messages.Settled())
                continue
            if isinstance(asked, messages.Tell):
                pipe.send(messages.Told(made.applied()))
                continue
            authority = PipeAuthority(pipe, asked.number, options.authority_seconds)
            pipe.send(made.decide(asked, authority))
    finally:
        made.stop()


class PipeAuthority:
    """Has allocations written by the world, for one request."""

    def __init__(self, pipe: mp_connection.Connection, number: int, pause_seconds: float) -> None:
        self._pipe = pipe
        self._number = number
        self._pause_seconds = pause_seconds

    def write(
        self, wanted: Sequence[claimer.Wanted], deadline: float
    ) -> Mapping[str, placing.Outcome]:
        """See :class:`placing.Authority`."""
        self._pause()
        self._pipe.send(messages.Write(self._number, _allocations(wanted)))
        answer = self._pipe.recv()
        self._pause()
        written = placing.Outcome(placing.Result.WRITTEN)
        refused = placing.Outcome(placing.Result.NEXT_HOST, "refused by the host")
        return {
            each.consumer: refused if each.consumer in answer.refused else written
            for each in wanted
        }

    def remove(self, wanted: Sequence[claimer.Wanted], deadline: float) -> None:
        """See :class:`placing.Authority`."""
        self._pipe.send(messages.Remove(self._number, _allocations(wanted)))
        self._pipe.recv()

    def _pause(self) -> None:
        if self._pause_seconds:
            time.sleep(self._pause_seconds / 2)


def _allocations(wanted: Sequence[claimer.Wanted]) -> tuple[messages.Allocation, ...]:
    return tuple(
        messages.Allocation(each.consumer, each.chosen.uuid, each.resources) for each in wanted
    )
