# SPDX-License-Identifier: Apache-2.0
"""No two live rows of a cell have one name, in whatever order writers take their steps.

Writers run in threads of which one at a time goes on, to its next exchange with the back
end; a seed says which, which one dies there, and which answers and requests are lost.
"""

from __future__ import annotations

import collections
import os
import random
import threading
import unittest
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from nova import exception
from oslo_db import exception as db_exception

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.compute_nodes import (
    node_rows,
    row_names,
    row_records,
)
from nova_nodb_scheduler.synchronizer.drivers.memory import driver as memory
from nova_nodb_scheduler.synchronizer.drivers.memory import faults, hub
from nova_nodb_scheduler.wire import codec
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes import conductors, nova_table

SEEDS = int(os.environ.get("NODB_INTERLEAVINGS", "300"))
WRITERS = 3
NAMES = (("h1", "n1"), ("h1", "n2"))

#: What a writer may be told.
_REFUSALS = (exception.NovaException, db_exception.DBDuplicateEntry, errors.BackendUnavailable)


class _DiedError(BaseException):
    """The writer's process ended."""


class Turns:
    """Lets one of several threads go on at a time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: set[int] = set()
        self._running: set[int] = set()
        self._next: tuple[int, bool] | None = None
        self._numbers = threading.local()

    def start(self, works: Sequence[Callable[[], None]]) -> list[threading.Thread]:
        self._running = set(range(len(works)))
        threads = [
            threading.Thread(target=self._run, args=(number, work), daemon=True)
            for number, work in enumerate(works)
        ]
        for thread in threads:
            thread.start()
        return threads

    def _run(self, number: int, work: Callable[[], None]) -> None:
        self._numbers.own = number
        try:
            self.wait()
            work()
        except _DiedError:
            pass
        finally:
            with self._changed:
                self._running.discard(number)
                self._changed.notify_all()

    def wait(self) -> None:
        """Stand still until it is this thread's turn; no-op in a thread of no number."""
        number = getattr(self._numbers, "own", None)
        if number is None:
            return
        with self._changed:
            self._waiting.add(number)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._next is not None and self._next[0] == number)
            assert self._next is not None
            dies = self._next[1]
            self._next = None
            self._waiting.discard(number)
        if dies:
            raise _DiedError

    def go_on(self, choose: Callable[[list[int]], tuple[int, bool]]) -> bool:
        """Let a thread take its next step and stand still again; False when all have ended."""
        with self._changed:
            self._settle()
            if not self._running:
                return False
            self._next = choose(sorted(self._running))
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._next is None, 20)
            self._settle()
            return True

    def _settle(self) -> None:
        if not self._changed.wait_for(lambda: self._waiting == self._running, 20):
            raise AssertionError("a writer hangs")


class SteppedClient(memory.MemorySynchronizer):
    """A client that waits for its turn before it reads records and before it writes."""

    def __init__(self, shared: hub.MemoryHub, turns: Turns) -> None:
        super().__init__(shared_hub=shared)
        self._turns = turns

    def read(
        self, keys: Collection[records.RecordKey]
    ) -> Mapping[records.RecordKey, records.Record]:
        self._turns.wait()
        return super().read(keys)

    def write(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        self._turns.wait()
        return super().write(writes)


class NamesTest(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        cloud.databases()
        nova_table.fill([])

    def test_no_order_of_steps_gives_one_name_to_two_live_rows(self) -> None:
        ends: collections.Counter[str] = collections.Counter()
        for seed in range(SEEDS):
            with self.subTest(seed=seed):
                self.interleave(random.Random(seed), ends)
        # The seeds do try what they are there for.
        for end in ("done", "DBDuplicateEntry", "died"):
            self.assertGreater(ends[end], SEEDS // 20, ends)

    def interleave(self, chance: random.Random, ends: collections.Counter[str]) -> None:
        shared, turns = hub.MemoryHub(), Turns()
        clients = [SteppedClient(shared, turns) for _ in range(WRITERS)]
        for client in clients:
            client.open()
        writers = [conductors.conductor(client) for client in clients]
        conductors.prepare(writers[0], above=0)
        for number in range(chance.randint(0, 2)):
            self.create(writers[0], number, NAMES[number])
        works = [self.work(writer, chance, ends) for writer in writers]
        threads = turns.start(works)

        def choose(numbers: list[int]) -> tuple[int, bool]:
            number = chance.choice(numbers)
            if chance.random() < 0.1:
                kind = chance.choice([faults.Fault.REPLY_LOST, faults.Fault.LATE])
                clients[number].faults.fail_next(kind)
            return number, chance.random() < 0.03

        while turns.go_on(choose):
            if chance.random() < 0.2:
                shared.deliver_late()
            self.assert_unique(shared)
        for thread in threads:
            thread.join(20)
        shared.deliver_late()
        self.assert_unique(shared)
        self.assert_names_can_be_had(shared)

    def work(
        self,
        writer: conductors.Conductor,
        chance: random.Random,
        ends: collections.Counter[str],
    ) -> Callable[[], None]:
        steps = [
            (chance.choice("ccuud"), chance.randrange(3), chance.choice(NAMES)) for _ in range(3)
        ]

        def run() -> None:
            for kind, number, name in steps:
                try:
                    self.step(writer, kind, number, name)
                    ends["done"] += 1
                except _REFUSALS as error:
                    ends[type(error).__name__] += 1
                except _DiedError:
                    ends["died"] += 1
                    raise

        return run

    def step(
        self, writer: conductors.Conductor, kind: str, number: int, name: tuple[str, str]
    ) -> None:
        context = nova_table.context("yes")
        if kind == "c":
            self.create(writer, number, name)
            return
        uuid = nova_table.UUIDS[number]
        found = writer.queries.get_all_by_uuids(context, [uuid])
        if not found:
            return
        if kind == "u":
            host, node = name
            values = {"host": host, "hypervisor_hostname": node}
            writer.writer.compute_node_update(context, found[0].id, values)
        else:
            writer.writer.compute_node_delete(context, found[0].id)

    def create(self, writer: conductors.Conductor, number: int, name: tuple[str, str]) -> None:
        values = {
            **nova_table.NEEDED,
            "uuid": nova_table.UUIDS[number],
            "host": name[0],
            "hypervisor_hostname": name[1],
        }
        writer.writer.compute_node_create(nova_table.context(), values)

    def assert_unique(self, shared: hub.MemoryHub) -> None:
        names: collections.Counter[Any] = collections.Counter()
        ids: collections.Counter[int] = collections.Counter()
        for record in shared.read(shared.keys([row_records.NODE_ROWS.name])).values():
            row = row_records.row_of(codec.decode_state(record.payload))
            if row is not None:
                ids[row["id"]] += 1
                if node_rows.is_live(row) and row_names.has_name(row):
                    names[row["host"], row["hypervisor_hostname"]] += 1
        for found in (names, ids):
            self.assertEqual([], [each for each, count in found.items() if count > 1])

    def assert_names_can_be_had(self, shared: hub.MemoryHub) -> None:
        """Nobody who died keeps a name from others."""
        client = memory.MemorySynchronizer(shared_hub=shared)
        client.open()
        late = conductors.conductor(client)
        for row in late.queries.compute_node_get_all(nova_table.context()):
            late.writer.compute_node_delete(nova_table.context(), row["id"])
        for number, name in enumerate(NAMES):
            self.create(late, 3 + number, name)
        self.assertEqual(2, len(late.queries.compute_node_get_all(nova_table.context())))
