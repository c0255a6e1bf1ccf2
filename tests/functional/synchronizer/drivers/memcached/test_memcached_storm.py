# SPDX-License-Identifier: Apache-2.0
"""The memcached driver where clients stand still at random steps, for longer than the log."""

from __future__ import annotations

import contextlib
import functools
import random
import threading
import time
from collections.abc import Callable

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers import memcached
from nova_nodb_scheduler.testing.conformance import contract_case
from tests.functional.synchronizer.drivers.memcached import memcached_case

LOG_TTL_SECONDS = 3
PAUSES_SECONDS = (0.01, 0.15, 0.4, LOG_TTL_SECONDS + 2.0)
STORM_SECONDS = 20.0
KEYS = 6


class TestStorm(memcached_case.MemcachedCase):
    def test_readers_equal_the_back_end_whoever_stood_still_where(self) -> None:
        seed = random.randrange(10**6)
        with self.subTest(seed=seed):
            self._storm(random.Random(seed))

    def _storm(self, chance: random.Random) -> None:
        epoch = self._client().head().epoch
        stop = threading.Event()
        readers = [contract_case.FeedReader(self._sluggish(chance, 0.05)) for _ in range(4)]
        jobs: list[Callable[[], None]] = [
            *(functools.partial(self._follow, reader, stop) for reader in readers),
            *(self._writing(chance, stop) for _ in range(5)),
            *(self._collecting(chance, stop) for _ in range(2)),
        ]
        timer = threading.Timer(STORM_SECONDS, stop.set)
        timer.start()
        self.addCleanup(timer.cancel)
        self.in_threads(jobs)
        client = self._client()
        self.assertEqual(epoch, client.head().epoch)
        expected = contract_case.states(contract_case.everything(client))
        for reader in readers:
            reader._synchronizer.on_step = lambda _step: None  # type: ignore[method-assign]
            reader.catch_up()
            self.assertEqual(expected, contract_case.states(reader.held))

    def _client(self) -> memcached.MemcachedSynchronizer:
        return self.opened(
            log_ttl_seconds=LOG_TTL_SECONDS, fence_after_seconds=0.1, timeout_seconds=10.0
        )

    def _sluggish(
        self, chance: random.Random, probability: float
    ) -> memcached.MemcachedSynchronizer:
        """Return a client that stands still at some of its steps."""
        own = random.Random(chance.random())
        client = self._client()

        def stand_still(_step: str) -> None:
            if own.random() < probability:
                time.sleep(own.choice(PAUSES_SECONDS))

        client.on_step = stand_still
        return client

    @staticmethod
    def _follow(reader: contract_case.FeedReader, stop: threading.Event) -> None:
        while not stop.is_set():
            with contextlib.suppress(errors.BackendUnavailable):
                if not reader.step():
                    stop.wait(0.02)

    def _writing(self, chance: random.Random, stop: threading.Event) -> Callable[[], None]:
        own, client = random.Random(chance.random()), self._sluggish(chance, 0.03)

        def work() -> None:
            while not stop.is_set():
                key = contract_case.key(f"k{own.randrange(KEYS)}")
                payload = b"%d" % own.randrange(10**9)
                with contextlib.suppress(errors.BackendUnavailable):
                    standing = client.read([key]).get(key)
                    live = standing.revision if standing and not standing.deleted else 0
                    deleted = bool(live) and own.random() < 0.3
                    client.write([records.Write(key, live, payload, deleted)])

        return work

    def _collecting(self, chance: random.Random, stop: threading.Event) -> Callable[[], None]:
        client = self._sluggish(chance, 0.05)

        def work() -> None:
            while not stop.wait(0.05):
                with contextlib.suppress(errors.BackendUnavailable):
                    client.collect(0.0)

        return work
