# SPDX-License-Identifier: Apache-2.0
"""Which faults are tried on which engine, and trials carried out one after the other.

Trials that need nothing of their own share a world.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.testing import server_processes
from tests.engine_faults import engine_faults, engines, fault, processes, scheduler_faults, world

#: What CI tries, by engine: parts of names.
SHORT = {
    "SQLite": ("kill at driver: commit", "freeze at claims: claimed", "old backup"),
    "memcached": (
        "kill at driver: compare-and-set",
        "freeze at driver: add the log slots",
        "freeze at claims: allocation written",
        "flushed",
    ),
    "Redis": ("kill at driver: read the script's reply", "flushed", "cut during claims"),
    "etcd": ("freeze at driver: send a transaction", "killed and started"),
}

_OF_ENGINES: dict[type[engines.Engine], tuple[fault.Fault, ...]] = {
    engines.SQLite: (engine_faults.SQL_BACKUP, engine_faults.FULL_SQLITE),
    engines.Memcached: (*engine_faults.SERVERS, *engine_faults.MEMCACHED),
    engines.Redis: (*engine_faults.SERVERS, *engine_faults.REDIS),
    engines.Etcd: (
        *engine_faults.SERVERS,
        *engine_faults.ETCD,
        engine_faults.ROLLED_BACK,
        engine_faults.FULL_DISK,
    ),
    engines.MariaDB: (
        *engine_faults.SERVERS,
        engine_faults.SQL_BACKUP,
        engine_faults.ROLLED_BACK,
        engine_faults.FULL_DISK,
    ),
    engines.PostgreSQL: (
        *engine_faults.SERVERS,
        engine_faults.SQL_BACKUP,
        engine_faults.ROLLED_BACK,
        engine_faults.FULL_DISK,
    ),
    engines.PostgreSQLSequencer: (
        engine_faults.SQL_BACKUP,
        engine_faults.ROLLED_BACK,
        engine_faults.FULL_DISK,
    ),
    engines.Galera: (*engine_faults.GALERA, engine_faults.SQL_BACKUP),
}


def faults(kind: type[engines.Engine]) -> list[fault.Fault]:
    """Return all faults of an engine, those of one setting beside one another."""
    found = [
        *scheduler_faults.step_faults(kind),
        *scheduler_faults.READERS,
        engine_faults.RESET,
        *_OF_ENGINES[kind],
    ]
    return sorted(found, key=lambda each: (each.private, each.server, each.proxied))


def is_short(kind: type[engines.Engine], tried: fault.Fault) -> bool:
    """Return whether CI tries a fault."""
    return any(part in tried.name for part in SHORT.get(kind.name, ()))


@attrs.frozen
class Selection:
    """What is tried.

    :param drivers: parts of engines' or drivers' names, lower case; empty: all
    :param names: parts of faults' names; empty: all
    """

    drivers: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    short: bool = False

    def has_engine(self, kind: type[engines.Engine]) -> bool:
        if self.short and kind.name not in SHORT:
            return False
        names = f"{kind.name} {kind.driver}".lower()
        return not self.drivers or any(each.lower() in names for each in self.drivers)

    def has_fault(self, kind: type[engines.Engine], tried: fault.Fault) -> bool:
        if self.short and not is_short(kind, tried):
            return False
        return not self.names or any(each in tried.name for each in self.names)


#: A process collects threads and connections; a world is left after so many trials.
_TRIALS_OF_A_WORLD = 12

Told = Callable[[fault.Outcome], None]


def run(
    kind: type[engines.Engine],
    selection: Selection,
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
            for each in faults(kind)
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
