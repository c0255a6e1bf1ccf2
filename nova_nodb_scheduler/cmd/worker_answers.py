# SPDX-License-Identifier: Apache-2.0
"""Asks schedulers over RPC how they are."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Mapping

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd import bounded
from nova_nodb_scheduler.wire import objects

#: Asks a worker of a host (None: of any host) for its status.
Ask = Callable[[str | None], objects.SchedulerStatus]


@attrs.frozen
class Answers:
    """What schedulers answered over RPC.

    :param by_worker: by host and process id
    :param silent: why a host did not answer
    """

    by_worker: Mapping[tuple[str, int], objects.SchedulerStatus]
    silent: Mapping[str, str]


def ask_schedulers(
    workers: Mapping[str, Collection[int]], ask: Ask, expected: tuple[type[Exception], ...]
) -> Answers:
    """Ask the workers of some hosts at once.

    The workers of a host share a queue: which of them answers is up to the
    bus, so a host is asked up to twice for each of its workers.

    :param workers: process ids by host
    :param expected: what an unanswered call raises
    """
    found: dict[tuple[str, int], objects.SchedulerStatus] = {}
    silent: dict[str, str] = {}
    lock = threading.Lock()

    def one_host(host: str, pids: Collection[int]) -> None:
        missing = set(pids)
        for _ in range(2 * len(missing)):
            try:
                status = ask(host)
            except expected as error:
                with lock:
                    silent[host] = _said(error)
                return
            with lock:
                found[host, status.pid] = status
            missing.discard(status.pid)
            if not missing:
                return

    asked = {
        host: bounded.Question(functools.partial(one_host, host, pids))
        for host, pids in workers.items()
    }
    deadline = bounded.Deadline()
    for host, question in asked.items():
        try:
            question.answer(deadline.within(bounded.LOOK_SECONDS))
        except errors.NoAnswerInTime as error:
            with lock:
                silent[host] = _said(error)
    with lock:
        # Who is late may still write.
        return Answers(dict(found), dict(silent))


def ask_anyone(ask: Ask, expected: tuple[type[Exception], ...]) -> Answers:
    """Ask whoever takes the question, where nobody knows who runs; as :func:`ask_schedulers`."""
    try:
        status = ask(None)
    except expected as error:
        return Answers({}, {"any": _said(error)})
    return Answers({(status.host, status.pid): status}, {})


def _said(error: Exception) -> str:
    if isinstance(error, errors.NodbError):
        return str(error)
    return f"{type(error).__name__}: {error}"
