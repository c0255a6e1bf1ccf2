# SPDX-License-Identifier: Apache-2.0
"""Processes that write checkpoints are killed and paused; the next start believes what is."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pathlib
import random
import signal
import sqlite3
import tempfile
import threading
import time
import unittest

from nova_nodb_scheduler.synchronizer.checkpoint import checkpoint_contract, checkpoint_file
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy
from tests.unit.synchronizer.checkpoint import restarts

_RECORDS = 1000
_KILLS = 5
_WAIT_SECONDS = 120.0
_PAUSES = 1000


def _client(url: str) -> sqlalchemy.SQLAlchemySynchronizer:
    return sqlalchemy.SQLAlchemySynchronizer(sqlalchemy.SQLOptions(url, timeout_seconds=60.0))


def _write_for_ever(url: str, directory: str) -> None:
    """One checkpoint after the other, as a worker's thread does."""
    scheduler = restarts.scheduler(
        _client(url), directory, identity=f"writer-{os.getpid()}", clock=time.monotonic
    )
    while scheduler.replicator.followed() is None:
        scheduler.replicator.step()
    while True:
        scheduler.save()
        scheduler.replicator.step()


class CheckpointKillsTest(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.url = f"sqlite:///{self.root / 'nodb.sqlite'}"
        self.directory = str(self.root / "checkpoint")
        self.path = pathlib.Path(self.directory, checkpoint_file.NAME)
        self.backend = _client(self.url)
        self.backend.open()
        self.addCleanup(self.backend.close)
        self.processes = 0
        for number in range(_RECORDS):
            restarts.put(self.backend, restarts.POOLS, f"k{number:04}", {"free": number})

    def begin(self) -> multiprocessing.Process:
        process = multiprocessing.get_context("spawn").Process(
            target=_write_for_ever, args=(self.url, self.directory), daemon=True
        )
        process.start()
        self.addCleanup(process.join)
        self.addCleanup(process.kill)
        return process

    def wait_for_file(self, former: int | None) -> int:
        """Return the number of a file that is not the former one."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while time.monotonic() < deadline:
            try:
                found = self.path.stat().st_ino
            except FileNotFoundError:
                found = None
            if found is not None and found != former:
                return found
            time.sleep(0.01)
        raise AssertionError("no checkpoint came")

    def pause(self, process: multiprocessing.Process) -> None:
        """Stop a process where it has no lock of the database, which all would wait for."""
        assert process.pid is not None
        with contextlib.closing(
            sqlite3.connect(self.root / "nodb.sqlite", timeout=0.0, isolation_level=None)
        ) as database:
            for _ in range(_PAUSES):
                os.kill(process.pid, signal.SIGSTOP)
                os.waitpid(process.pid, os.WUNTRACED)
                try:
                    database.execute("BEGIN EXCLUSIVE")
                    database.execute("ROLLBACK")
                    return
                except sqlite3.OperationalError:
                    os.kill(process.pid, signal.SIGCONT)
                    time.sleep(0.01)
        raise AssertionError("it has the database locked whenever it is looked at")

    def restarted(self) -> restarts.Scheduler:
        self.processes += 1
        made = restarts.scheduler(
            _client(self.url),
            self.directory,
            identity=f"reader-{self.processes}",
            clock=time.monotonic,
        )
        self.addCleanup(made.end)
        while not made.replicator.alive(60.0):
            made.replicator.step()
        return made

    def free(self, made: restarts.Scheduler) -> dict[str, int]:
        return {key: state["free"] for key, state in made.states().items()}

    def test_a_writer_that_is_killed_at_any_moment_leaves_what_can_be_begun_with(self) -> None:
        chance = random.Random(5)
        expected = {f"k{number:04}": number for number in range(_RECORDS)}
        known = None
        for number in range(_KILLS):
            process = self.begin()
            known = self.wait_for_file(known)
            restarts.put(self.backend, restarts.POOLS, f"k{number:04}", {"free": -number})
            expected[f"k{number:04}"] = -number
            time.sleep(chance.uniform(0.0, 0.3))
            process.kill()
            process.join()
            made = self.restarted()
            self.assertEqual([checkpoint_contract.RESTORED], made.meter.starts)
            self.assertEqual(expected, self.free(made))
            made.end()

    def test_a_writer_that_is_paused_for_long_does_no_harm_when_it_goes_on(self) -> None:
        process = self.begin()
        known = self.wait_for_file(None)
        self.pause(process)
        restarts.put(self.backend, restarts.POOLS, "k0001", {"free": -1})
        restarts.put(self.backend, restarts.POOLS, "k0002", None)
        other = self.restarted()
        self.assertIs(
            checkpoint_contract.WriteOutcome.ANOTHER_WRITES,
            other.writer.attempt(threading.Event()),
        )
        assert process.pid is not None
        os.kill(process.pid, signal.SIGCONT)
        self.wait_for_file(known)
        process.kill()
        process.join()
        made = self.restarted()
        self.assertEqual([checkpoint_contract.RESTORED], made.meter.starts)
        expected = {f"k{number:04}": number for number in range(_RECORDS)} | {"k0001": -1}
        del expected["k0002"]
        self.assertEqual(expected, self.free(made))
