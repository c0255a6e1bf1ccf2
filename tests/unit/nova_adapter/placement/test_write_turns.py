# SPDX-License-Identifier: Apache-2.0
"""Threads of one process that allocate where no claim is judged: in turn on each provider."""

from __future__ import annotations

import collections
import threading
import time
import unittest
from collections.abc import Callable
from concurrent import futures
from unittest import mock

from nova_nodb_scheduler.nova_adapter.placement.allocations import verification

WAIT_SECONDS = 30.0


class SchedulerDied(Exception):
    """Between the write and the look."""


class WriteTurnsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.verifier = verification.AllocationVerifier(lambda: None)

    def allocate(self, hosts: list[str], write: Callable[[str], None]) -> None:
        """Have as many threads as hosts write, one to each, and die."""

        def run(host: str) -> None:
            def written() -> bool:
                write(host)
                raise SchedulerDied

            wanted = verification.VerifiedAllocation(host, {host: {"VCPU": 1}})
            self.assertRaises(SchedulerDied, self.verifier.allocated, wanted, written)

        with futures.ThreadPoolExecutor(len(hosts)) as pool:
            for done in [pool.submit(run, host) for host in hosts]:
                done.result(WAIT_SECONDS)

    def test_writes_to_one_host_do_not_race(self):
        lock = threading.Lock()
        writing: collections.Counter[str] = collections.Counter()
        most: collections.Counter[str] = collections.Counter()

        def write(host: str) -> None:
            with lock:
                writing[host] += 1
                most[host] = max(most[host], writing[host])
            time.sleep(0.02)
            with lock:
                writing[host] -= 1

        self.allocate(["h1", "h2"] * 5, write)
        self.assertEqual({"h1": 1, "h2": 1}, most)

    def test_writes_to_several_hosts_do_not_wait_for_one_another(self):
        both = threading.Barrier(2)

        def write(_host: str) -> None:
            both.wait(WAIT_SECONDS)

        with (
            mock.patch.object(verification, "_TURN_SECONDS", WAIT_SECONDS),
            # So many that two hosts hardly ever share one.
            mock.patch.object(verification, "_TURN_LOCKS", 10_000),
        ):
            self.verifier = verification.AllocationVerifier(lambda: None)
            self.allocate(["h1", "h2"], write)

    def test_a_write_that_hangs_does_not_keep_others_from_theirs(self):
        hangs, goes_on = threading.Event(), threading.Event()
        self.addCleanup(goes_on.set)

        def write(_host: str) -> None:
            if not hangs.is_set():
                hangs.set()
                goes_on.wait(WAIT_SECONDS)
            else:
                goes_on.set()

        with mock.patch.object(verification, "_TURN_SECONDS", 0.1):
            self.allocate(["h1", "h1"], write)
        self.assertTrue(goes_on.is_set())

    def test_who_writes_to_many_providers_waits_once_for_all_that_hang(self):
        providers = [f"p{number}" for number in range(20)]
        turns = verification.WriteTurns()
        with mock.patch.object(verification, "_TURN_SECONDS", 0.2), turns.taken(providers):
            began = time.monotonic()
            with futures.ThreadPoolExecutor(1) as pool:

                def wait() -> float:
                    with turns.taken(providers):
                        return time.monotonic() - began

                self.assertLess(pool.submit(wait).result(WAIT_SECONDS), 1.0)
