# SPDX-License-Identifier: Apache-2.0
"""Random histories, checkpoints at any moment of them and restarts, against plain dictionaries."""

import itertools
import os
import pathlib
import shutil
import tempfile
import unittest

from hypothesis import stateful
from hypothesis import strategies as st

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.checkpoint import checkpoint_contract, checkpoint_file
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as sql
from nova_nodb_scheduler.synchronizer.replication import replicator_contract
from tests import machine_runs
from tests.unit.synchronizer.checkpoint import restarts

EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "60"))
STEPS = 30

NAMESPACES = st.sampled_from([restarts.POOLS, restarts.GROUPS])
KEYS = st.sampled_from(["a", "b", "c", "d", "e"])
NUMBERS = st.integers(0, 3)

#: What the cases came by.
SEEN: dict[str, int] = {}


class Killed(BaseException):
    """Ends a writer where a test says so."""


class Machine(stateful.RuleBasedStateMachine):
    """One writer of records, and one scheduler after the other."""

    def __init__(self):
        super().__init__()
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.directory = str(self.root / "checkpoint")
        self.now = 1000.0
        self.numbers = itertools.count()
        self.model = {}
        self.make_backend()
        self.backend = self.client()
        self.backend.open()
        self.scheduler = self.begin()

    def begin(self, on_step=lambda step: None):
        return restarts.scheduler(
            self.client(),
            self.directory,
            identity=f"scheduler-{next(self.numbers)}",
            clock=lambda: self.now,
            on_step=on_step,
            replication=replicator_contract.ReplicatorOptions(
                batch_limit=3,
                anti_entropy_page_seconds=0.0,
                collect_interval_seconds=1e6,
                silent_heartbeat_seconds=1e7,
            ),
        )

    # --- the history ------------------------------------------------------------

    @stateful.rule(namespace=NAMESPACES, key=KEYS, number=NUMBERS)
    def put(self, namespace, key, number):
        state = {"free": number, "zone": f"z{number}", "name": f"n{number}", "members": [key]}
        restarts.put(self.backend, namespace, key, state)
        self.model[namespace.name, key] = state

    @stateful.rule(namespace=NAMESPACES, key=KEYS)
    def delete(self, namespace, key):
        restarts.put(self.backend, namespace, key, None)
        self.model.pop((namespace.name, key), None)

    @stateful.rule(keep_seconds=st.sampled_from([0.0, 10.0]))
    def collect(self, keep_seconds):
        self.backend.collect(keep_seconds)

    @stateful.rule(odds=st.integers(0, 5))
    def begin_epoch(self, odds):
        if not odds:
            self.backend.reset()
            self.model.clear()
            self.seen("epochs")

    @stateful.rule(seconds=st.sampled_from([0.5, 3.0, 60.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @stateful.rule(key=KEYS, number=NUMBERS, what=st.sampled_from(["epoch", "collection"]))
    def a_checkpoint_is_overtaken(self, key, number, what):
        """What the feed cannot tell any more happens behind a checkpoint."""
        self.put(restarts.POOLS, key, number)
        self.beat_and_save()
        if what == "epoch":
            self.begin_epoch(0)
            self.put(restarts.POOLS, "a", number)
        else:
            self.delete(restarts.POOLS, key)
            self.now += 1.0
            self.backend.collect(0.0)
        self.restart_and_catch_up()

    # --- the scheduler ------------------------------------------------------------

    @stateful.rule(steps=st.integers(1, 4))
    def step(self, steps):
        for _ in range(steps):
            self.scheduler.replicator.step()

    @stateful.rule()
    def save(self):
        """At any moment: perhaps behind the feed, or while everything is read."""
        self.seen(f"save {self.scheduler.save().value}")

    @stateful.rule()
    def beat_and_save(self):
        self.now += 3.0
        self.scheduler.catch_up()
        if self.scheduler.save() is checkpoint_contract.WriteOutcome.WRITTEN:
            self.seen("whole saves")

    @stateful.rule(step=st.sampled_from(checkpoint_file.STEPS))
    def die_while_saving(self, step):
        def die(now):
            if now == step:
                raise Killed

        self.scheduler.checkpoint._on_step = die
        try:
            self.scheduler.save()
        except Killed:
            self.seen("killed")
        self.restart()

    @stateful.rule()
    def restart(self):
        self.scheduler.end()
        self.scheduler = self.begin()

    @stateful.rule()
    def restart_and_catch_up(self):
        self.restart()
        self.catch_up()

    @stateful.rule()
    def catch_up(self):
        """Whatever it began with, it ends with what is."""
        self.now += 20.0
        self.scheduler.catch_up()
        for start in self.scheduler.meter.starts[:1]:
            self.seen(start)
        self.check()

    # --- what must hold -----------------------------------------------------------

    def check(self):
        view = self.scheduler.store.snapshot()
        found = {
            (name, key): dict(state)
            for name in (restarts.POOLS.name, restarts.GROUPS.name)
            for key, state in view.namespace(name).states()
        }
        assert found == self.model, (found, self.model)
        names = [records.RecordKey(*each) for each in self.model]
        for name, record in self.backend.read(names).items():
            stored = view.namespace(name.namespace).get(name.key)
            assert (stored.revision, stored.version) == (record.revision, record.version)
            assert stored.payload == record.payload
        for number in range(4):
            keys = [k for (n, k), s in self.model.items() if n == "pools" and s["free"] == number]
            assert view.namespace("pools").lookup("zone", f"z{number}") == tuple(sorted(keys))
            keys = [k for (n, k), s in self.model.items() if n == "groups" and s["free"] == number]
            assert view.namespace("groups").lookup("name", f"n{number}") == tuple(sorted(keys))
        assert self.scheduler.replicator.alive(1e6)
        assert not self.scheduler.replicator.status().anti_entropy["missed"]
        assert not self.scheduler.replicator.status().anti_entropy["stale"]
        assert not self.scheduler.replicator.status().anti_entropy["extra"]
        self.seen("checks")

    @staticmethod
    def seen(what):
        SEEN[what] = SEEN.get(what, 0) + 1

    def teardown(self):
        self.catch_up()
        self.restart_and_catch_up()
        self.scheduler.end()
        self.backend.close()
        shutil.rmtree(self.root)


class MemoryMachine(Machine):
    """With a back end that may be put back to its past."""

    def make_backend(self):
        self.hub = memory.MemoryHub(history_entries=40, clock=lambda: self.now)
        self.backup = None

    def client(self):
        return memory.MemorySynchronizer(shared_hub=self.hub)

    @stateful.rule()
    def back_up(self):
        self.backup = self.hub.backup(), dict(self.model)

    @stateful.rule(writes=st.integers(0, 8))
    def go_back_while_nobody_is_there(self, writes):
        """All processes end; an older past is put back, and written on."""
        if self.backup is None:
            return
        self.beat_and_save()
        self.scheduler.end()
        self.backend.close()
        backup, model = self.backup
        self.hub.restore(backup)
        self.model = dict(model)
        self.backup = None
        self.backend = self.client()
        self.backend.open()
        for number in range(writes):
            self.put(restarts.POOLS, "abcde"[number % 5], number % 4)
        self.scheduler = self.begin()
        self.catch_up()
        self.seen("pasts")

    @stateful.rule(key=KEYS, number=NUMBERS, writes=st.integers(0, 8))
    def what_was_written_since_is_lost(self, key, number, writes):
        """As two rules do by chance, which may not meet in a whole run."""
        self.back_up()
        self.put(restarts.POOLS, key, number)
        self.go_back_while_nobody_is_there(writes)


class SQLiteMachine(Machine):
    def make_backend(self):
        self.url = f"sqlite:///{self.root / 'nodb.sqlite'}"

    def client(self):
        return sql.SQLAlchemySynchronizer(sql.SQLOptions(self.url))


class TestRestarts(unittest.TestCase):
    def run_machine(self, machine, examples, expected):
        cases = ("epochs", "checks", "killed", "whole saves", "absent", "restored")
        machine_runs.run(
            machine,
            SEEN,
            (*cases, "other epoch", "history truncated", *expected),
            max_examples=examples,
            stateful_step_count=STEPS,
        )

    def test_a_restart_over_memory_believes_what_is(self):
        self.run_machine(MemoryMachine, EXAMPLES, ("pasts", "lost writes"))

    def test_a_restart_over_sqlite_believes_what_is(self):
        self.run_machine(SQLiteMachine, EXAMPLES // 2, ())
