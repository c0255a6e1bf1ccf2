# SPDX-License-Identifier: Apache-2.0
"""Makes requests, one after the other in each thread or at a stated rate, and times them."""

import collections
import concurrent.futures
import itertools
import threading
import time
from collections.abc import Callable, Iterator

import attrs

from tools.bench.clouds import workload


@attrs.frozen
class Answer:
    """What became of one request.

    :param consumers: the servers it was for
    :param hosts: where they go; none where it failed
    :param error: None where all went well
    """

    consumers: list[str]
    hosts: list[str]
    error: str | None


Decide = Callable[[workload.Request, int], Answer]


class Load:
    """Requests of one run, shared by its threads.

    :param requests: most requests
    :param seconds: no request begins later; at least one is made
    :param instances: servers of each request
    :param rate: requests a second; 0 for as fast as answers come
    """

    def __init__(
        self,
        decide: Decide,
        stream: Iterator[workload.Request],
        requests: int,
        seconds: float,
        instances: int,
        rate: float,
    ) -> None:
        self._decide = decide
        self._stream = stream
        self._left = itertools.islice(itertools.count(), requests)
        self._seconds = seconds
        self._instances = instances
        self._rate = rate
        self._lock = threading.Lock()
        self._started = 0.0
        self.latencies: list[float] = []
        self.errors: collections.Counter[str] = collections.Counter()
        self.hosts: set[str] = set()
        self.consumers: list[str] = []
        self.decided = 0
        self.wall_seconds = 0.0

    def run(self, threads: int) -> None:
        """Make all requests, in some threads; returns when all are answered."""
        self._started = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            for worker in [pool.submit(self._work) for _ in range(threads)]:
                worker.result()
        self.wall_seconds = time.perf_counter() - self._started

    def _take(self) -> tuple[workload.Request, float] | None:
        """Return the next request and when it is due; None when there is to be no more."""
        with self._lock:
            number = next(self._left, None)
            if number is None:
                return None
            now = time.perf_counter()
            due = self._started + number / self._rate if self._rate else now
            if number and max(now, due) > self._started + self._seconds:
                return None
            return next(self._stream), due

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            request, due = taken
            time.sleep(max(0.0, due - time.perf_counter()))
            answer = self._decide(request, self._instances)
            ended = time.perf_counter()
            with self._lock:
                self.latencies.append(ended - due)
                self.consumers += answer.consumers
                self.hosts.update(answer.hosts)
                self.decided += len(answer.hosts)
                if answer.error is not None:
                    self.errors[answer.error] += 1
