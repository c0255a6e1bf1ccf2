# SPDX-License-Identifier: Apache-2.0
"""Changes of the mode, cuts and restarts drawn from seeds: nobody who lives is called dead."""

from __future__ import annotations

import os
import random
from typing import Any

import attrs
from nova import objects
from oslo_utils import timeutils

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.liveness import (
    heartbeat_reader,
    service_heartbeats,
)
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.liveness import test_stored_heartbeats

#: A seed takes some ten seconds: CI draws two, ``--all`` six or more.
_SEEDS = range(
    int(
        os.environ.get("NODB_HEARTBEAT_SEEDS")
        or max(2, int(os.environ.get("NODB_PROPERTY_EXAMPLES", "0")) // 100)
    )
)
_STEPS = 250
_BEAT_SECONDS = 10.0
_DOWN_SECONDS = 61
#: Behind the last heartbeat of a service that ended, all who see must have noticed.
_NOTICED_SECONDS = 75.0
#: Behind a step to store nobody is dead by a record that was made of a row, for so long.
_STEP_SECONDS = 61.0
#: An operator's way: to store, and back.
_WAY = ("database", "both", "store", "both", "database")


@attrs.define(eq=False)
class _Conductor:
    """A conductor's part in heartbeats, and its connections."""

    name: str
    mode: str
    storage: service_heartbeats.HeartbeatStorage
    client: Any

    def cut(self, is_cut: bool) -> None:
        writer: Any = self.storage.writer._synchronizer
        for each in (self.client, writer):
            (each.inner.faults.go_down if is_cut else each.inner.faults.come_up)()
        if not is_cut:
            self.storage.writer._not_before = float("-inf")


@attrs.define(eq=False)
class _Service:
    """A nova-compute."""

    row: Any
    due: float
    heard: float
    ended: bool = False


class InterleavingTest(test_stored_heartbeats.HeartbeatCase):
    MODE = "database"

    def configure(self, mode: str) -> None:
        self.override("service_heartbeats", mode, "nodb_scheduler")

    def make_conductor(self, name: str, mode: str) -> _Conductor:
        self.configure(mode)
        storage = self.plugin.heartbeat_storage()
        storage.keeper._clock = self.now
        storage.keeper._idle_seconds = 0.0
        storage.writer._clock = self.now
        self.addCleanup(storage.writer.stop)
        client = self.plugin.make_synchronizer()
        client.open()
        writer: Any = storage.writer._synchronizer
        writer.open()
        return _Conductor(name, mode, storage, client)

    def make_reader(self, mode: str) -> heartbeat_reader.HeartbeatReader:
        self.configure(mode)
        made = self.read_anew()
        made._opened()
        return made

    def now(self) -> float:
        return float(timeutils.utcnow_ts(microsecond=True))

    def say(self, conductor: _Conductor) -> None:
        """What a conductor's reporter does every three seconds."""
        state = {
            "cell": cloud.CELL1,
            "guards": [cloud.CELL1],
            "binary": "conductor",
            "host": conductor.name,
            "pid": 1,
            "beat_at": self.now(),
            "service_heartbeats": conductor.mode,
        }
        key = records.RecordKey(known_namespaces.REPORTERS.name, conductor.name)
        try:
            self.plugin.publisher(conductor.client, known_namespaces.NODB).publish(
                {key: lambda current: state}
            )
            conductor.storage.keeper.keep(conductor.client, conductor.name)
        except errors.BackendUnavailable:
            return

    def test_nobody_who_lives_is_called_dead(self) -> None:
        self.stored = 0
        for seed in _SEEDS:
            with self.subTest(seed):
                self.run_one(random.Random(seed))

    def run_one(self, drawn: random.Random) -> None:
        self.drawn = drawn
        self.target = _WAY[0]
        self.conductors = [self.make_conductor(f"c{n}", self.target) for n in range(2)]
        self.readers = [self.make_reader(self.target) for _ in range(2)]
        self.modes = [self.target] * 2
        self.cut: set[int] = set()
        self.services = []
        for number in range(3):
            row = self.service(cloud.CELL1, f"h{number}-{drawn.random()}")
            self.services.append(_Service(row, self.now() + drawn.random() * 10, self.now()))
        self.reporter.flush()
        self.sweep(cloud.CELL1)
        for step in range(_STEPS):
            self.clock.advance_time_seconds(drawn.uniform(0.5, 4.0))
            if step % (_STEPS // len(_WAY)) == 0:
                self.begin_phase(step // (_STEPS // len(_WAY)))
            self.act(drawn.randrange(12), drawn.randrange(2))
            for conductor in self.conductors:
                self.say(conductor)
            for service in self.services:
                if not service.ended and self.now() >= service.due:
                    self.send(service, drawn.choice(self.conductors))
            self.judge(step)

    def begin_phase(self, phase: int) -> None:
        """Let an operator go on: when all is connected and came to where it was to come."""
        for conductor in self.conductors:
            conductor.cut(False)
        for number in range(2):
            self.connect(number)
            if phase:
                self.restart(number)
        self.target = _WAY[min(phase, len(_WAY) - 1)]

    def act(self, action: int, which: int) -> None:
        """Do what was drawn to one of the conductors or readers."""
        if action == 0:
            self.conductors[which].storage.writer.stop()
            name = f"c{which}-{self.drawn.random()}"
            self.conductors[which] = self.make_conductor(name, self.target)
        elif action == 1:
            self.restart(which)
        elif action in (2, 3):
            self.conductors[which].cut(action == 2)
        elif action == 4 and self.modes[which] != "database":
            self.readers[which]._opened().inner.faults.go_down()  # type: ignore[attr-defined]
            self.cut.add(which)
        elif action == 5:
            self.connect(which)
        elif action == 6 and self.target == "store":
            self.services[0].ended = True
        elif action == 7:
            self.reporter.flush()
        elif action == 8:
            self.sweep(cloud.CELL1)

    def restart(self, which: int) -> None:
        """Start a reader again, as it is to be configured by now."""
        self.readers[which], self.modes[which] = self.make_reader(self.target), self.target
        self.cut.discard(which)

    def connect(self, which: int) -> None:
        self.readers[which]._opened().inner.faults.come_up()  # type: ignore[attr-defined]
        self.cut.discard(which)

    def send(self, service: _Service, conductor: _Conductor) -> None:
        service_heartbeats.install_storage(conductor.storage)
        service_heartbeats._reader = None
        service.row.report_count += 1
        before = conductor.storage.writer.figures().stored
        service.row.save()
        self.stored += conductor.storage.writer.figures().stored - before
        service.heard, service.due = self.now(), self.now() + _BEAT_SECONDS

    def judge(self, step: int) -> None:
        for number, reader in enumerate(self.readers):
            service_heartbeats._reader = reader
            listed = objects.ServiceList.get_by_binary(self.context(cloud.CELL1), "nova-compute")
            found = {each.uuid: each for each in listed}
            for service in self.services:
                silent_seconds = self.now() - service.heard
                up = self.up(found[service.row.uuid])
                told = (step, self.modes[number], number in self.cut, silent_seconds)
                if silent_seconds < _DOWN_SECONDS - 1:
                    self.assertTrue(up, told)
                noticed_seconds = _NOTICED_SECONDS
                if self.modes[number] != "database":
                    noticed_seconds += _STEP_SECONDS
                if silent_seconds > noticed_seconds and number not in self.cut:
                    self.assertFalse(up, told)
