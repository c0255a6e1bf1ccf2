# SPDX-License-Identifier: Apache-2.0
"""What conductors tell their journals a reader comes to know, and what nobody told, too.

Rings of several conductors on one back end, two of them with one name, and a reader that follows
the feed, and begins anew now and then: it knows of each heartbeat that stands there, and takes
exactly those for unreported that went through no living conductor.
"""

import collections
import itertools
import unittest
import uuid

import numpy as np
from hypothesis import stateful
from hypothesis import strategies as st

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.facts import heard_services, journal_follower
from nova_nodb_scheduler.scheduling.namespaces import heartbeat_journals, known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.drivers.memory import driver, faults, hub
from nova_nodb_scheduler.synchronizer.records import heartbeat_ring
from nova_nodb_scheduler.synchronizer.replication import ingest
from nova_nodb_scheduler.wire import codec
from tests import machine_runs

NAMESPACE = known_namespaces.HEARTBEAT_JOURNALS.name
START = 1_790_000_000.0
KEEP, HORIZON, GRACE, OFTEN = 10.0, 6.0, 3.0, 4.0
SERVICES = [str(uuid.UUID(int=each)) for each in range(1, 5)]
#: Of each service: so few that none falls out of what a reader keeps of it.
MOST_BEATS = 50


class Conductor:
    """A process with a ring of its own; what it was told, and may not have written."""

    def __init__(self, hub_, names, clock, *, single_key):
        self.client = driver.MemorySynchronizer(
            driver.MemoryOptions(single_key=single_key), shared_hub=hub_
        )
        self.client.open()
        self.ring = heartbeat_ring.HeartbeatRing(
            self.client, "c", lambda: next(names), heartbeat_ring.RingOptions(KEEP), clock
        )
        self.told = set()


class Machine(stateful.RuleBasedStateMachine):
    """Services, conductors and a reader."""

    met: collections.Counter = collections.Counter()

    @stateful.initialize(single_key=st.booleans())
    def begin(self, single_key):
        self.now = 0.0
        self.single_key = single_key
        self.hub = hub.MemoryHub()
        self.reader = driver.MemorySynchronizer(shared_hub=self.hub)
        self.reader.open()
        self.counts = dict.fromkeys(SERVICES, 100)
        self.heard_at = {}
        self.made = itertools.count()
        self.conductors = []
        for number in range(3):
            self.conductors.append(self.conductor(number))
        self.certain, self.possible, self.written = set(), set(), set()
        self.restart()

    def conductor(self, number):
        # The second and the third have the same name at first.
        own = (f"{number}-{next(self.made)}" for _ in itertools.count())
        names = itertools.chain(["same"] if number else [], own)
        return Conductor(self.hub, names, lambda: self.now, single_key=self.single_key)

    @stateful.rule()
    def restart(self):
        self.met["restart"] += 1
        declared = (known_namespaces.HEARTBEAT_JOURNALS,)
        self.store = host_state_store.HostStateStore(declared, codec.decode_state)
        self.ingester = ingest.Ingester(self.store, declared, ingest.Quarantine(10))
        self.follower = journal_follower.JournalFollower(GRACE, HORIZON, lambda: START + self.now)
        known = len(SERVICES)
        self.follower.know(
            heard_services.KnownServices(
                SERVICES, ["c"] * known, np.full(known, 100), np.full(known, START)
            )
        )
        self.since = START + self.now - HORIZON
        self.first, self.highest = {}, {}
        snapshot = self.reader.snapshot([NAMESPACE])
        self.cursor = snapshot.cursor
        self._take(list(itertools.chain.from_iterable(snapshot.pages)))

    def _take(self, found):
        for _ in self.ingester.take(found):
            pass
        followed = self.follower.catch_up(self.store.snapshot(), "one", self.now)
        assert (followed.unknown, followed.implausible) == (0, ())
        assert not followed.held_up
        for record in sorted(found, key=lambda each: each.version):
            slot = heartbeat_journals.read(record.key.key, codec.decode(record.payload).state)
            for number, count, tick in zip(
                slot.ids.tolist(), slot.counts.tolist(), slot.ticks.tolist(), strict=True
            ):
                self.written.add((number, count))
                if tick / heartbeat_journals.TICKS_PER_SECOND >= self.since:
                    # What its record counted within the horizon, it is counted from.
                    fresh = self.since <= START and count > 100
                    self.first.setdefault(number, 101 if fresh else count)
                if number in self.first:
                    self.highest[number] = max(count, self.highest.get(number, count))

    @stateful.rule()
    def catch_up(self):
        changes = self.reader.fetch(self.cursor)
        assert isinstance(changes, records.Changes) and not changes.more
        self._take(changes.records)
        self.cursor = changes.cursor

    @stateful.rule(seconds=st.sampled_from([0.5, 1.0, OFTEN]))
    def pass_time(self, seconds):
        # A reader that looks so often meets each slot before it is overwritten.
        self.now += seconds
        self.catch_up()

    @stateful.rule(
        service=st.sampled_from(SERVICES),
        through=st.lists(st.sampled_from([0, 0, 1, 1, 2, None]), min_size=1, max_size=5),
    )
    def beat(self, service, through):
        for at in through:
            if self.counts[service] == 100 + MOST_BEATS:
                return
            self.pass_time(1.0)
            self.counts[service] += 1
            beat = heartbeat_journals.service_id(service), self.counts[service]
            self.heard_at[beat] = START + self.now
            if at is None:
                self.met["told nobody"] += 1
                continue
            entry = heartbeat_ring.JournalEntry(service, beat[1], START + self.now)
            assert self.conductors[at].ring.add([entry]) == []
            self.conductors[at].told.add(beat)

    @stateful.rule(
        at=st.integers(0, 2), fault=st.sampled_from([None, None, None, None, *faults.Fault])
    )
    def flush(self, at, fault):
        conductor = self.conductors[at]
        if fault is not None:
            conductor.client.faults.fail_next(fault)
        given_up = conductor.ring.given_up
        try:
            assert conductor.ring.flush().lost == 0
        except errors.BackendUnavailable:
            self.met["unavailable"] += 1
        self.met["given up"] += conductor.ring.given_up > given_up
        conductor.client.faults = faults.Faults(lambda: None)
        if not conductor.ring.waiting:
            self.certain |= conductor.told
            conductor.told = set()

    @stateful.rule()
    def deliver_late(self):
        self.hub.deliver_late()

    @stateful.rule(at=st.integers(0, 2))
    def die(self, at):
        conductor = self.conductors[at]
        self.met["died with heartbeats"] += bool(conductor.told)
        self.possible |= conductor.told
        conductor.client.close()
        self.conductors[at] = self.conductor(at)

    @stateful.invariant()
    def whoever_reads_knows_when_services_were_heard_of(self):
        last = self.follower.last_heard()
        for key, count, heard_at in zip(last.keys, last.counts, last.heard_at, strict=True):
            number = heartbeat_journals.service_id(key)
            if number in self.first:
                assert count == self.highest[number]
                assert abs(heard_at - self.heard_at[number, int(count)]) < 0.11

    def teardown(self):
        self.hub.deliver_late()
        for at in range(3):
            # Both rings of one name may be given up once more.
            for _ in range(2):
                self.flush(at, None)
            assert self.conductors[at].ring.waiting == 0
        self.catch_up()
        # Readers met all of it, however often one began.
        assert self.certain <= self.written, self.certain - self.written
        assert self.written <= self.certain | self.possible
        self.now += GRACE + 0.1
        missing = 0
        for number, first in self.first.items():
            told = {count for each, count in self.written if each == number}
            gaps = set(range(first, self.highest[number])) - told
            missing += bool(gaps)
            self.met["unreported"] += bool(gaps)
        assert self.follower.unreported(self.now) == ({"c": missing} if missing else {})
        self.follower.settle("c", self.reader.head().version)
        assert self.follower.unreported(self.now) == {}
        for conductor in self.conductors:
            conductor.client.close()
        self.reader.close()


CASES = (
    "restart",
    "told nobody",
    "unavailable",
    "given up",
    "died with heartbeats",
    "unreported",
)


class PropertyTest(unittest.TestCase):
    def test_a_reader_knows_what_stands_there_and_what_nobody_told(self):
        machine_runs.run(Machine, Machine.met, CASES, max_examples=100, stateful_step_count=40)
