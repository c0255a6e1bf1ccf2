# SPDX-License-Identifier: Apache-2.0
"""What an event and a request that waits cost the order of waiting requests.

usage: python -m tools.bench.waiting_rates [--hosts N,N] [--parked N,N] [--mixes few,...]
    [--events N] [--json]

No Nova, no back end, no engine: only what decides who is tried. Each case is a process of its own.
In mix ``few`` 20 flavors, three queues of each and 200 projects wait; in ``queues`` one request in
ten has a queue of its own, in ``projects`` a project of its own, in ``shapes`` every request
needs other amounts and has another queue. Times are CPU time of the thread, for the machine may
do other things; memory is what the process grew by, the records themselves included.

* event: a drawn host has room for a server of a drawn flavor; whoever is asked first is granted
  until the room is gone, and the record comes back
* refused: as before, but the engine takes nobody, until the walk gives up
* useless: a host has more room that is still too small for anybody
* arrival: a request comes to waiting; departure: its record goes
* share: a project's usage changes, and all its requests stand elsewhere
* sweep: one call, nobody is placed
"""

import argparse
import concurrent.futures
import itertools
import json
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np
import rich.console
import rich.table

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.waiting import (
    grown_hosts,
    queue_settings,
    wait_queues,
    wake_ups,
)
from tools.bench import figures
from tools.bench.processes import serving

RESOURCES = ("VCPU", "MEMORY_MB", "DISK_GB")
_FLAVORS = [(1 << size, (1 << size) * ratio, 20) for size in range(5) for ratio in (1, 2, 4, 8)]
_NOW = 1000.0
_FOREVER = 1e9
_MOST_US = 1e6


def main(arguments: list[str] | None = None) -> int:
    """Measure each case and print a table."""
    options = _parser().parse_args(arguments)
    found = []
    context = multiprocessing.get_context("spawn")
    for mix, parked, hosts in itertools.product(options.mixes, options.parked, options.hosts):
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            found.append(pool.submit(measure, mix, parked, hosts, options.events).result())
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        rich.console.Console(width=None if sys.stdout.isatty() else 140).print(_table(found))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="waiting_rates", description=__doc__)
    parser.add_argument("--hosts", type=_numbers, default=[100, 10_000, 100_000])
    parser.add_argument("--parked", type=_numbers, default=[1000, 100_000, 1_000_000])
    parser.add_argument("--mixes", type=lambda text: text.split(","), default=list(_MIXES))
    parser.add_argument("--events", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    return parser


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


# -- what waits ---------------------------------------------------------------


def _few(number: int, chance: random.Random) -> dict[str, Any]:
    flavor = chance.randrange(len(_FLAVORS))
    return {
        "needs": _amounts(_FLAVORS[flavor]),
        "queue": f"queue-{flavor}-{chance.randrange(3)}",
        "flavor": f"flavor-{flavor}",
        "project_id": f"project-{chance.randrange(200)}",
    }


def _queues(number: int, chance: random.Random) -> dict[str, Any]:
    return _few(number, chance) | {"queue": f"queue-{number // 10}"}


def _projects(number: int, chance: random.Random) -> dict[str, Any]:
    return _few(number, chance) | {"project_id": f"project-{number // 10}"}


def _shapes(number: int, chance: random.Random) -> dict[str, Any]:
    amounts = (chance.randint(1, 64), chance.randint(1, 1 << 18), chance.randint(1, 4000))
    return {
        "needs": _amounts(amounts),
        "queue": f"queue-{number}",
        "flavor": "flavor",
        "project_id": f"project-{number // 10}",
    }


_MIXES: dict[str, Callable[[int, random.Random], dict[str, Any]]] = {
    "few": _few,
    "queues": _queues,
    "projects": _projects,
    "shapes": _shapes,
}


def _amounts(amounts: tuple[int, int, int]) -> dict[str, int]:
    return dict(zip(RESOURCES, amounts, strict=True))


def _requests(mix: str) -> Iterator[pending.PendingRequest]:
    chance = random.Random(7)
    make = _MIXES[mix]
    for number in itertools.count():
        key = f"{number:036d}"
        yield pending.PendingRequest(
            key=key,
            servers=(key,),
            user_id="user",
            priority_class=chance.choice(("low", "normal", "high")),
            asked_at=number * 1e-4,
            parked_at=number * 1e-4,
            deadline_at=_FOREVER + number,
            state=pending.PendingState.WAITING,
            grant=pending.Grant(1, "conductor", 0.0),
            reason="no host has room",
            **make(number, chance),
        )


# -- one case -----------------------------------------------------------------


def measure(mix: str, parked: int, hosts: int, events: int) -> dict[str, Any]:
    """Return one row: microseconds of CPU time, bytes a request."""
    before_mb = serving.resident_mb()
    case = _Case(mix, parked, hosts)
    bytes_each = (serving.resident_mb() - before_mb) * 2**20 / parked
    found: dict[str, Any] = {"mix": mix, "parked": parked, "hosts": hosts, "bytes": int(bytes_each)}
    for name, act, times in (
        ("event", case.event, events),
        ("refused", case.refused, max(events // 10, 10)),
        ("useless", case.useless, events),
        ("share", case.share, events),
        ("sweep", case.sweep, max(events // 10, 10)),
    ):
        # The first calls settle what the filling left.
        spent = [act() for _ in range(times + 3)][3:]
        found |= _percentiles(name, spent)
    for name, spent in (("arrival", case.arrivals), ("departure", case.departures)):
        found |= _percentiles(name, spent)
    return found


def _percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    return {
        f"{name}_p50_us": round(figures.percentile(seconds, 50) * _MOST_US, 1),
        f"{name}_p99_us": round(figures.percentile(seconds, 99) * _MOST_US, 1),
    }


class _Case:
    """Queues with so many requests, of which as many are always there."""

    def __init__(self, mix: str, parked: int, hosts: int) -> None:
        self._made = _requests(mix)
        self._make = _MIXES[mix]
        self._chance = random.Random(3)
        self._hosts = hosts
        self._queues = wait_queues.WaitQueues(queue_settings.QueueSettings())
        scale = max(hosts, 1)
        self._queues.set_capacity(
            {"VCPU": 64 * scale, "MEMORY_MB": 262_144 * scale, "DISK_GB": 4000 * scale}, _NOW
        )
        for request in itertools.islice(self._made, parked):
            self._queues.put(request, _NOW)
        while self._queues.wake_fresh(_NOW).next() is not None:
            pass
        self.arrivals: list[float] = []
        self.departures: list[float] = []

    def event(self) -> float:
        """Return what it takes to grant a drawn room."""
        granted = []

        def act() -> None:
            walk = self._queues.wake(self._growth(), _NOW)
            while (candidate := walk.next()) is not None:
                hosts = candidate.hosts or ()
                walk.granted(hosts[:1], _FOREVER)
                granted.append((candidate.request, hosts[0]))

        spent = _timed(act)
        for request, host in granted:
            grant = pending.Grant(2, "scheduler", _FOREVER, host=host)
            taken = attrs.evolve(request, state=pending.PendingState.GRANTED, grant=grant)
            spent += _timed(lambda taken=taken: self._queues.put(taken, _NOW))
            self._queues.show(request.key, _NOW)
            self.departures.append(_timed(lambda key=request.key: self._queues.drop(key, _NOW)))
            fresh = next(self._made)
            self.arrivals.append(_timed(lambda fresh=fresh: self._queues.put(fresh, _NOW)))
        return spent

    def refused(self) -> float:
        """Return what a walk takes in which nobody can be placed."""
        return _timed(lambda: _refuse(self._queues.wake(self._growth(), _NOW)))

    def useless(self) -> float:
        """Return what an event takes that helps nobody."""
        after = np.array([[0, 1 << 20, 1 << 20]], np.int64)
        growth = grown_hosts.Growth((self._host(),), RESOURCES, after)
        return _timed(lambda: _refuse(self._queues.wake(growth, _NOW)))

    def share(self) -> float:
        """Return what a change of a project's usage takes."""
        project = f"project-{self._chance.randrange(200)}"
        used = {"VCPU": self._chance.randrange(1, 1000)}
        return _timed(lambda: self._queues.set_usage(project, used, _NOW))

    def sweep(self) -> float:
        """Return what one call of the sweep takes."""
        return _timed(lambda: _refuse(self._queues.sweep(_NOW)))

    def _growth(self) -> grown_hosts.Growth:
        needs = self._make(0, self._chance)["needs"]
        after = np.array([[needs[name] for name in RESOURCES]], np.int64)
        return grown_hosts.Growth((self._host(),), RESOURCES, after)

    def _host(self) -> str:
        return f"host-{self._chance.randrange(self._hosts)}"


def _refuse(walk: wake_ups.WakeUp) -> None:
    while walk.next() is not None:
        walk.refused()


def _timed(act: Callable[[], object]) -> float:
    began = time.thread_time()
    act()
    return time.thread_time() - began


def _table(found: list[dict[str, Any]]) -> rich.table.Table:
    table = rich.table.Table("mix", "parked", "hosts", "bytes each")
    names = [name.removesuffix("_p50_us") for name in found[0] if name.endswith("_p50_us")]
    for name in names:
        table.add_column(f"{name} µs")
    for each in found:
        pairs = (f"{each[f'{name}_p50_us']:.0f}, {each[f'{name}_p99_us']:.0f}" for name in names)
        table.add_row(each["mix"], *(f"{each[c]:,}" for c in ("parked", "hosts", "bytes")), *pairs)
    return table


if __name__ == "__main__":
    sys.exit(main())
