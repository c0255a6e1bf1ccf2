# SPDX-License-Identifier: Apache-2.0
"""Random placing, deleting, dying and sleeping of several schedulers at once.

Empty records of claims are removed at once, under those who look at old views.

What a storm does is drawn from its seed; how its threads meet is not. A long
run is a sequence of storms, and goes on where it was stopped::

    python -m tests.unit.synchronizer.claims.placing_storm --operations 1000000 --progress FILE

It takes the address of a server, or starts an engine of tests.engine_faults by its name.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import math
import pathlib
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers import memcached, memory, redis
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as sql
from tests.engine_faults import engines
from tests.unit.synchronizer.claims import lossy, placing_trial

THREADS = 4
OPERATIONS = 50
#: One of the first so many of an operation gets lost; few operations have more.
WRITES = 6
#: Of the engines that are started here: a busy machine is no fault of theirs.
TIMEOUT_SECONDS = 30.0


class Clock:
    """Seconds that pass by themselves, and jump when everybody sleeps."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self._ahead

    def sleep(self) -> None:
        """Let every lease of now end, and the others go on meanwhile."""
        self._ahead += placing_trial.LEASE_SECONDS + 1
        time.sleep(0.01)


@attrs.define(slots=False)
class Storm:
    """One storm over one back end; its records are its own.

    :param connect: makes a client of the back end, opened
    :param prepare: orders what shall befall a client's next operation
    """

    connect: Callable[[], contract.Synchronizer]
    seed: int
    threads: int = THREADS
    operations: int = OPERATIONS
    prepare: Callable[[contract.Synchronizer, random.Random], None] = lambda client, rng: None
    clock: Clock = attrs.field(factory=Clock)
    truth: placing_trial.Truth = attrs.field(factory=placing_trial.Truth)
    counts: collections.Counter[str] = attrs.field(factory=collections.Counter)
    steps: collections.Counter[str] = attrs.field(factory=collections.Counter)
    #: Writes that met a fault, where the storm makes them itself.
    lost: collections.Counter[memory.Fault] = attrs.field(factory=collections.Counter)
    failures: list[BaseException] = attrs.field(factory=list)

    def run(self) -> None:
        """Run to the end, and see what is left.

        :raises Broken: something was granted or left that must not be
        """
        workers = [
            threading.Thread(target=self._guarded, args=(number,), name=f"storm-{number}")
            for number in range(self.threads)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if self.failures:
            raise placing_trial.Broken(f"seed {self.seed}") from self.failures[0]
        self._check_quiet()

    def _guarded(self, number: int) -> None:
        try:
            _Worker(self, number).run()
        except BaseException as error:
            self.failures.append(error)

    def _check_quiet(self) -> None:
        self.clock.sleep()
        last = self.scheduler("last", lambda step: None)
        for host in placing_trial.HOSTS:
            last.tidy(host)
        granted = self.truth.granted.keys()
        if granted != self.truth.allocations.keys():
            raise placing_trial.Broken(f"seed {self.seed}: allocated, and not granted")
        for host in placing_trial.HOSTS:
            held = last.ledger.read(host).claims
            if not held.keys() <= granted:
                raise placing_trial.Broken(f"seed {self.seed}: claims leaked on {host}: {held}")
            if any(each.state is model.ClaimState.PENDING for each in held.values()):
                raise placing_trial.Broken(f"seed {self.seed}: pending claims on {host}: {held}")
        for group in placing_trial.GROUPS:
            members = {consumer for consumer, _ in last.groups.read(group.uuid).members}
            if not members <= granted:
                raise placing_trial.Broken(f"seed {self.seed}: members leaked in {group.uuid}")

    def scheduler(self, name: str, after: Callable[[str], None]) -> placing_trial.Scheduler:
        return placing_trial.Scheduler(
            self.connect(), name, self.truth, after, self.clock, seed=self.seed, looks=0.4
        )


class _Worker:
    def __init__(self, storm: Storm, number: int) -> None:
        self._storm = storm
        self._name = f"{storm.seed}-{number}"
        self._rng = random.Random(self._name)
        self._dice = placing_trial.Dice(
            self._rng, storm.clock.sleep, dies=0.01, sleeps=0.01, steps=storm.steps
        )
        self._lives = 0
        self._made = 0
        self._owned: list[str] = []
        #: Of dead schedulers, until the user deletes them.
        self._lost: list[str] = []
        self._scheduler = self._begin()

    def _begin(self) -> placing_trial.Scheduler:
        self._lives += 1
        return self._storm.scheduler(f"{self._name}-{self._lives}", self._dice.after)

    def run(self) -> None:
        for _ in range(self._storm.operations):
            self._storm.prepare(self._scheduler.client, self._rng)
            try:
                self._operate(self._rng.random())
            except placing_trial.Stopped:
                self._storm.counts["died"] += 1
                self._scheduler.client.close()
                self._scheduler = self._begin()
            except errors.BackendUnavailable:
                # A fault that was ordered, met while tidying.
                self._storm.counts["unavailable"] += 1
        for server in self._lost:
            self._storm.truth.remove(server)
        self._scheduler.client.close()

    def _operate(self, drawn: float) -> None:
        if drawn < 0.55:
            self._place()
        elif drawn < 0.85:
            for servers in (self._owned, self._lost):
                if servers:
                    server = servers.pop(self._rng.randrange(len(servers)))
                    self._storm.truth.remove(server)
                    self._storm.counts["deleted"] += 1
        else:
            self._scheduler.tidy(self._rng.choice(placing_trial.HOSTS))
            self._storm.counts["tidied"] += 1
            self._storm.counts["removed"] += self._scheduler.removed
            self._scheduler.removed = 0

    def _place(self) -> None:
        servers = []
        for _ in range(self._rng.choice((1, 1, 1, 2, 3))):
            self._made += 1
            servers.append(f"{self._name}/{self._made}")
        group = self._rng.choice(placing_trial.GROUPS) if self._rng.random() < 0.3 else None
        placed = None
        try:
            placed = self._scheduler.place(servers, self._rng.randint(1, 3), group)
        except placing_trial.Stopped:
            self._lost += servers
            raise
        if placed is not None:
            self._owned += servers
            self._storm.counts["granted"] += len(servers)
            return
        self._storm.counts["refused"] += 1
        with self._storm.truth.lock:
            left = [server for server in servers if server in self._storm.truth.allocations]
        if left:
            raise placing_trial.Broken(f"{left} of {servers} stayed allocated")


# -- drivers ------------------------------------------------------------------------


def memory_storm(seed: int, operations: int = OPERATIONS, threads: int = THREADS) -> Storm:
    """Return a storm over a hub of its own, with replies and requests that get lost."""
    hub = memory.MemoryHub()

    def connect() -> contract.Synchronizer:
        client = memory.MemorySynchronizer(None, hub)
        client.open()
        return client

    def lose(client: contract.Synchronizer, rng: random.Random) -> None:
        assert isinstance(client, memory.MemorySynchronizer)
        if rng.random() < 0.1:
            client.faults.fail_next(rng.choice(list(memory.Fault)))
        if rng.random() < 0.1:
            hub.deliver_late()

    return Storm(connect, seed, threads, operations, prepare=lose)


def shared_storm(
    make: Callable[[], contract.Synchronizer],
    seed: int,
    operations: int = OPERATIONS,
    threads: int = THREADS,
) -> Storm:
    """Return a storm over a back end that is emptied for it, with messages that get lost.

    :param make: a client, not opened
    """
    wire = lossy.Wire()

    def connect() -> lossy.LossyClient:
        client = lossy.LossyClient(make(), wire)
        client.open()
        return client

    def lose(client: contract.Synchronizer, rng: random.Random) -> None:
        assert isinstance(client, lossy.LossyClient)
        if rng.random() < 0.1:
            client.lose(rng.choice(list(memory.Fault)), rng.randrange(WRITES))
        if rng.random() < 0.1:
            client.deliver_late()

    first = connect()
    first.reset()
    first.close()
    return Storm(connect, seed, threads, operations, prepare=lose, lost=wire.lost)


def sql_client(url: str) -> sql.SQLAlchemySynchronizer:
    return sql.SQLAlchemySynchronizer(
        sql.SQLOptions(url, timeout_seconds=TIMEOUT_SECONDS, auto_upgrade=True)
    )


def _addressed_maker(driver: str, address: str) -> Callable[[], contract.Synchronizer] | None:
    """Return what makes clients of a server that runs; None of one that must be started."""
    if driver == "sqlalchemy":
        return lambda: sql_client(address)
    if driver == "memcached":
        return lambda: memcached.MemcachedSynchronizer(
            memcached.MemcachedOptions(servers=(address,))
        )
    if driver == "redis":
        return lambda: redis.RedisSynchronizer(redis.RedisOptions(url=address))
    return None


def _engine_maker(engine: engines.Engine) -> Callable[[], contract.Synchronizer]:
    """Return what makes clients of an engine, of its nodes in turn."""
    choices = itertools.cycle(
        attrs.evolve(each, options={**each.options, "timeout_seconds": str(TIMEOUT_SECONDS)})
        for each in engine.site().through
    )
    return lambda: next(choices).make()


# -- long runs ------------------------------------------------------------------------


def _storms(
    make: Callable[[int], Storm], progress: pathlib.Path, operations: int, seconds: float
) -> Iterator[str]:
    """Run storms until so many operations are done or time is over, and keep count in a file."""
    end = time.monotonic() + seconds
    lines = progress.read_text().splitlines() if progress.exists() else []
    done = sum(int(line.split()[1]) for line in lines)
    seed = len(lines)
    while done < operations and time.monotonic() < end:
        began = time.monotonic()
        storm = make(seed)
        storm.run()
        count = storm.threads * storm.operations
        done, seed = done + count, seed + 1
        seen = {**storm.counts, **{fault.value: times for fault, times in storm.lost.items()}}
        line = f"{storm.seed} {count} {time.monotonic() - began:.2f} {seen}"
        with progress.open("a") as stream:
            stream.write(line + "\n")
        yield f"{done} of {operations}: {line}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver", default="memory", help="or the engine that is started")
    parser.add_argument("--address", default="", help="URL, or host:port of memcached")
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no storm later")
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--progress", type=pathlib.Path)
    given = parser.parse_args()
    started = {each.name.lower(): each for each in engines.ENGINES}
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        maker = _addressed_maker(given.driver, given.address) if given.address else None
        if maker is None and not given.address and given.driver.lower() in started:
            maker = _engine_maker(stack.enter_context(started[given.driver.lower()]()))
        if maker is None and given.driver != "memory":
            parser.error(
                "--driver: sqlalchemy, memcached or redis with an --address, "
                f"or without: memory, {', '.join(each.name for each in engines.ENGINES)}"
            )

        def make(seed: int) -> Storm:
            if maker is None:
                return memory_storm(seed, 250, given.threads)
            return shared_storm(maker, seed, 250, given.threads)

        progress = given.progress or pathlib.Path(directory, "progress")
        for line in _storms(make, progress, given.operations, given.seconds):
            print(line, flush=True)  # noqa: T201 - a command's output


if __name__ == "__main__":
    main()
