# SPDX-License-Identifier: Apache-2.0
"""Conformance under races: writers and readers at once, in threads and in processes.

The test of a feed is not what a fetch brings but what it silently leaves out:
versions given out before they can be seen lost 169 of 3,476 rows on MariaDB.
So readers follow while writers write, and at quiet each must hold what the
back end holds, without having taken a second snapshot.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import threading
from collections.abc import Callable, Sequence

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.testing.conformance import contract_case


class Races(contract_case.Case):
    """Sizes are class attributes, for a driver's author to raise in a long run.

    What a driver leaves out is found if no later write of its key brings it: by the last
    writes of the keys. 30 rounds over 80 keys find one that numbers before it commits no
    less often than 60 over 40.
    """

    race_writers = 4
    #: With ``NODB_PROPERTY_EXAMPLES`` in the environment, a tenth of that; 60 at 600.
    race_rounds = max(30, int(os.environ.get("NODB_PROPERTY_EXAMPLES") or 0) // 10)
    race_keys = 80
    race_readers = 2
    race_beginners = 3

    def test_readers_equal_the_back_end_after_concurrent_writers(self) -> None:
        self._race(self._run_in_threads, self._scribblers())

    def test_readers_equal_the_back_end_after_writer_processes(self) -> None:
        self._need_shared()
        self._race(self._run_in_processes, self._scribblers())

    def test_readers_that_begin_under_full_load_miss_nothing(self) -> None:
        """The cursor is taken before the snapshot: what comes between is in both.

        Writers go on until enough readers began: a fast back end takes all
        rounds before the other thread has had its first turn.
        """
        self.client().head()
        done = threading.Event()
        followers: list[contract_case.FeedReader] = []

        def write() -> None:
            try:
                while len(followers) < self.race_beginners and not done.is_set():
                    self._run_in_threads(self._scribblers())
            finally:
                done.set()

        def begin_often() -> None:
            try:
                while not done.is_set() and len(followers) < 200:
                    followers.append(contract_case.FeedReader(self.client(), limit=50))
            finally:
                done.set()

        self.in_threads([write, begin_often])
        self.assertTrue(followers)
        for follower in followers:
            follower.catch_up()
        self._assert_all_equal(followers)

    def test_readers_end_up_right_though_tombstones_are_collected_meanwhile(self) -> None:
        client = self.client()
        readers = [contract_case.FeedReader(self.client(), limit=limit) for limit in (3, 1000)]
        done = threading.Event()

        def write() -> None:
            try:
                self._run_in_threads(self._scribblers())
            finally:
                done.set()

        def collect() -> None:
            while not done.is_set():
                client.collect(0.0)
                done.wait(0.05)

        self.in_threads([write, collect, *(functools.partial(r.follow, done) for r in readers)])
        for reader in readers:
            reader.catch_up()
        self._assert_all_equal(readers, resyncs_allowed=True)

    def test_exactly_as_many_increments_win_as_there_is_room_for(self) -> None:
        self._increment(self._run_in_threads)

    def test_exactly_as_many_increments_of_processes_win_as_there_is_room_for(self) -> None:
        self._need_shared()
        self._increment(self._run_in_processes)

    def _race(
        self,
        run: Callable[[Sequence[Callable[[contract.Synchronizer], int]]], list[int]],
        jobs: Sequence[Callable[[contract.Synchronizer], int]],
    ) -> None:
        self.client().head()
        readers = [
            contract_case.FeedReader(self.client(), limit=limit)
            for limit in [3, *[1000] * (self.race_readers - 1)]
        ]
        done = threading.Event()

        def write() -> None:
            try:
                won.extend(run(jobs))
            finally:
                done.set()

        won: list[int] = []
        self.in_threads([write, *(functools.partial(r.follow, done) for r in readers)])
        self.assertGreater(sum(won), self.race_rounds)
        for reader in readers:
            reader.catch_up()
        self._assert_all_equal(readers)

    def _assert_all_equal(
        self, readers: Sequence[contract_case.FeedReader], *, resyncs_allowed: bool = False
    ) -> None:
        expected = contract_case.states(contract_case.everything(self.client()))
        for reader in readers:
            self.assertEqual(expected, contract_case.states(reader.held))
            if not resyncs_allowed:
                self.assertEqual(0, reader.resyncs)

    def _scribblers(self) -> list[Callable[[contract.Synchronizer], int]]:
        return [
            functools.partial(_scribble, seed, self.race_rounds, self.race_keys)
            for seed in range(self.race_writers)
        ]

    def _increment(
        self, run: Callable[[Sequence[Callable[[contract.Synchronizer], int]]], list[int]]
    ) -> None:
        client = self.client()
        record = self.put(client, "counter", b"0")
        room = self.race_rounds
        won = run([functools.partial(_increment, room)] * self.race_writers)
        self.assertEqual(room, sum(won))
        self.assertEqual(b"%d" % room, client.read([record.key])[record.key].payload)

    def _run_in_threads(self, jobs: Sequence[Callable[[contract.Synchronizer], int]]) -> list[int]:
        results: list[int] = []

        def work(job: Callable[[contract.Synchronizer], int]) -> None:
            synchronizer = self.make_synchronizer()
            synchronizer.open()
            try:
                results.append(job(synchronizer))
            finally:
                synchronizer.close()

        self.in_threads([functools.partial(work, job) for job in jobs])
        return results

    def _run_in_processes(
        self, jobs: Sequence[Callable[[contract.Synchronizer], int]]
    ) -> list[int]:
        """Run each job in a forked process, with a client that is opened there."""
        context = multiprocessing.get_context("fork")
        results = context.SimpleQueue()

        def work(job: Callable[[contract.Synchronizer], int]) -> None:
            synchronizer = self.make_synchronizer()
            synchronizer.open()
            results.put(job(synchronizer))
            synchronizer.close()

        processes = [context.Process(target=work, args=(job,), daemon=True) for job in jobs]
        for process in processes:
            process.start()
        for process in processes:
            process.join(contract_case.PATIENCE_SECONDS)
            self.assertEqual(0, process.exitcode, "a writer process failed or hangs")
        return [results.get() for _ in jobs]

    def _need_shared(self) -> None:
        if not self.make_synchronizer().capabilities.shared:
            self.skipTest("the driver does not share records between processes")


def _scribble(seed: int, rounds: int, keys: int, synchronizer: contract.Synchronizer) -> int:
    """Write, delete and create again at random; returns how many writes won."""
    chance = random.Random(seed)
    names = [contract_case.key(f"k{number}") for number in range(keys)]
    won = 0
    for number in range(rounds):
        batch = chance.sample(names, chance.choice((1, 1, 1, 2, 5)))
        standing = synchronizer.read(batch)
        writes = []
        for name in batch:
            record = standing.get(name)
            alive = record is not None and not record.deleted
            writes.append(
                records.Write(
                    name,
                    record.revision if record is not None and alive else 0,
                    b"%d-%d" % (seed, number),
                    deleted=alive and chance.random() < 0.2,
                )
            )
        won += sum(result.won for result in synchronizer.write(writes))
    return won


def _increment(room: int, synchronizer: contract.Synchronizer) -> int:
    """Count up by compare-and-set while there is room; returns how often it won."""
    won = 0
    name = contract_case.key("counter")
    while True:
        record = synchronizer.read([name])[name]
        value = int(record.payload)
        if value >= room:
            return won
        [result] = synchronizer.write([records.Write(name, record.revision, b"%d" % (value + 1))])
        won += result.won
