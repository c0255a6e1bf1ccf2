# SPDX-License-Identifier: Apache-2.0
"""A start with a checkpoint over each engine: what changed since comes by its feed."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable

from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.checkpoint import checkpoint_contract
from nova_nodb_scheduler.synchronizer.drivers import memory, sqlalchemy
from nova_nodb_scheduler.testing.conformance import contract_case
from tests.functional.synchronizer.drivers import engine_cases, swapping
from tests.functional.synchronizer.drivers.sqlalchemy import sql_databases
from tests.unit.synchronizer.checkpoint import restarts

_WAIT_SECONDS = 60.0


class Restarts(contract_case.Case):
    """The cases; a class below says over which engine."""

    def setUp(self) -> None:
        super().setUp()
        directory = self.enterContext(tempfile.TemporaryDirectory())
        self.directory = f"{directory}/checkpoint"

    def begin(self, identity: str) -> restarts.Scheduler:
        made = restarts.scheduler(
            self.make_synchronizer(), self.directory, identity=identity, clock=time.monotonic
        )
        self.addCleanup(made.end)
        self.follow(made)
        return made

    def follow(self, made: restarts.Scheduler) -> None:
        """Step until all that was written before is proved to be there."""
        began_at = time.monotonic()
        while not made.replicator.alive(time.monotonic() - began_at):
            made.replicator.step()
            if time.monotonic() - began_at > _WAIT_SECONDS:
                raise AssertionError(f"not proved: {made.replicator.status()}")

    def save(self, made: restarts.Scheduler) -> None:
        outcome = made.writer.attempt(threading.Event())
        self.assertIs(checkpoint_contract.WriteOutcome.WRITTEN, outcome, made.checkpoint.status)

    def put(self, client: contract.Synchronizer, key: str, free: int | None) -> None:
        state = None if free is None else {"free": free, "zone": "z"}
        restarts.put(client, restarts.POOLS, key, state)

    def free(self, made: restarts.Scheduler) -> dict[str, int]:
        return {key: state["free"] for key, state in made.states().items()}

    def test_what_changed_since_comes_by_the_feed(self) -> None:
        client = self.client()
        for number in range(50):
            self.put(client, f"k{number}", number)
        first = self.begin("one")
        self.save(first)
        first.end()
        self.put(client, "k1", -1)
        self.put(client, "k2", None)
        self.put(client, "k3", None)
        self.put(client, "k3", -3)
        self.put(client, "new", 0)
        made = self.begin("two")
        self.assertEqual([checkpoint_contract.RESTORED], made.meter.starts)
        expected = {f"k{number}": number for number in range(50)} | {"k1": -1, "k3": -3, "new": 0}
        del expected["k2"]
        self.assertEqual(expected, self.free(made))
        for key in expected:
            name = restarts.records.RecordKey("pools", key)
            record = client.read([name])[name]
            stored = made.store.snapshot().namespace("pools").get(key)
            assert stored is not None
            self.assertEqual((record.revision, record.version), (stored.revision, stored.version))

    def test_what_went_by_at_the_end_of_the_feed_is_nothing_new(self) -> None:
        client = self.client()
        self.put(client, "a", 1)
        first = self.begin("one")
        self.save(first)
        first.end()
        made = self.begin("two")
        self.assertEqual([checkpoint_contract.RESTORED], made.meter.starts)
        self.assertEqual({"a": 1}, self.free(made))

    def test_an_address_that_leads_elsewhere_is_another_epoch(self) -> None:
        swap = self.make_swappable()
        if swap is None:
            self.skipTest("this engine's address is not moved here")
        client = self.client()
        self.put(client, "a", 1)
        first = self.begin("one")
        self.save(first)
        first.end()
        swap()
        self.put(self.client(), "b", 2)
        made = self.begin("two")
        self.assertNotEqual([checkpoint_contract.RESTORED], made.meter.starts)
        self.assertEqual({"b": 2}, self.free(made))
        made.end()

    def test_a_store_that_was_emptied_is_another_epoch(self) -> None:
        client = self.client()
        self.put(client, "a", 1)
        first = self.begin("one")
        self.save(first)
        first.end()
        client.reset()
        self.put(client, "b", 2)
        made = self.begin("two")
        other = checkpoint_contract.CheckpointRefusalReason.OTHER_EPOCH
        self.assertEqual([other.value], made.meter.starts)
        self.assertEqual({"b": 2}, self.free(made))


class OverMemory(Restarts):
    def setUp(self) -> None:
        super().setUp()
        self.hub = memory.MemoryHub()

    def make_synchronizer(self) -> contract.Synchronizer:
        return memory.MemorySynchronizer(shared_hub=self.hub)

    def make_swappable(self) -> Callable[[], None]:
        return swapping.hub(self.hub)


class OverMemcached(engine_cases.OnMemcached, Restarts):
    pass


class OverRedis(engine_cases.OnRedis, Restarts):
    pass


class OverEtcd(engine_cases.OnEtcd, Restarts):
    pass


class OverSQL(Restarts, sql_databases.SQLiteCase):
    migrated = True

    def make_synchronizer(self) -> contract.Synchronizer:
        return sqlalchemy.SQLAlchemySynchronizer(self.sql_options())


class OverSQLSequencer(OverSQL):
    ordering = "sequencer"


class OverMariaDB(OverSQL, sql_databases.MariaDBCase):
    pass


class OverPostgreSQL(OverSQL, sql_databases.PostgreSQLCase):
    pass


# Its cases are those of the engines.
del Restarts
