# SPDX-License-Identifier: Apache-2.0
"""Carries trials out, one after the other; trials that need nothing of their own share a world."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.testing import server_processes
from tests.engine_faults import catalogue, engines, fault, processes, world

#: A process collects threads and connections; a world is left after so many trials.
_TRIALS_OF_A_WORLD = 12

Told = Callable[[fault.Outcome], None]


def run(
    kind: type[engines.Engine],
    selection: catalogue.Selection,
    done: Collection[tuple[str, str]],
    told: Told,
) -> None:
    """Try the selected faults on one engine but for those that are done.

    :param done: (engine, fault)
    :param told: called with each outcome
    """
    with contextlib.ExitStack() as stack:
        common = stack.enter_context(kind())
        wanted = [
            each
            for each in catalogue.faults(kind)
            if selection.has_fault(kind, each) and (kind.name, each.name) not in done
        ]
        numbers = itertools.count()
        for _, group in itertools.groupby(wanted, key=lambda each: (each.server, each.proxied)):
            for each in _in_worlds(kind, common, list(group), numbers):
                told(each)


def _in_worlds(
    kind: type[engines.Engine],
    common: engines.Engine,
    tried: list[fault.Fault],
    numbers: Iterable[int],
) -> Iterable[fault.Outcome]:
    waiting = list(tried)
    while waiting:
        with contextlib.ExitStack() as stack:
            first = waiting[0]
            engine = common
            if first.server or first.private:
                engine = stack.enter_context(kind(*first.server))
            site = engine.site(proxied=first.proxied)
            if first.moves:
                site = attrs.evolve(site, direct=site.through[0])
            made = world.World(site)
            stack.callback(made.stop)
            failure = _start(made)
            if failure:
                waiting.pop(0)
                yield _not_begun(first, engine, failure)
                continue
            for _ in range(_TRIALS_OF_A_WORLD):
                each = waiting.pop(0)
                outcome = fault.Trial(each, engine, made, next(iter(numbers))).run()
                yield outcome
                if not outcome.passed or each.private or not waiting or waiting[0].private:
                    break


def _start(made: world.World) -> str:
    try:
        made.start()
    except (
        world.Broken,
        processes.NoAnswer,
        errors.NodbError,
        server_processes.ServerFailed,
    ) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _not_begun(tried: fault.Fault, engine: engines.Engine, why: str) -> fault.Outcome:
    return fault.Outcome(
        engine.name,
        tried.name,
        passed=False,
        recovery_seconds=None,
        bound_seconds=tried.bound_seconds,
        settled_seconds=None,
        granted=0,
        seconds=0.0,
        notes={},
        detail=f"the trial did not begin: {why}",
    )
