# SPDX-License-Identifier: Apache-2.0
"""What two processes may have left, against every order of what can happen to their notes.

The memory driver, and our own classes over it; of Placement a set. Set
NODB_PROPERTY_EXAMPLES for more cases than CI runs.
"""

from __future__ import annotations

import contextlib
import os
import unittest
from collections.abc import Mapping
from typing import Any

import attrs
from hypothesis import stateful
from hypothesis import strategies as st
from keystoneauth1 import exceptions as keystone

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.orphans import left_allocations, orphan_verdicts
from nova_nodb_scheduler.nova_adapter.placement.allocations import placement_calls
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.claims import claim_rules
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.records import record_editor
from nova_nodb_scheduler.synchronizer.settlement import lapsed_claims
from nova_nodb_scheduler.wire import codec
from tests import machine_runs

EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "120"))
#: How often each case came by.
SEEN = dict.fromkeys(("away", "noted", "noted late", "over", "both"), 0)

RESOURCES = {"VCPU": 1}
FORGET_SECONDS = 300.0
CONSUMERS = st.sampled_from(["a", "b", "c"])
HOSTS = st.sampled_from(["n1", "n2"])
PROCESSES = st.sampled_from(["s1", "s2"])


@attrs.frozen
class Answer:
    """A response of Placement."""

    body: Mapping[str, Any]
    status_code: int = 200

    def json(self) -> Mapping[str, Any]:
        return self.body


class Leftovers(stateful.RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.hub = memory.MemoryHub(clock=lambda: self.now)
        self.store = host_state_store.HostStateStore(known_namespaces.BUILT_IN, codec.decode_state)
        #: Consumers and hosts.
        self.allocated: set[tuple[str, str]] = set()
        self.silent = False
        self.processes: dict[str, left_allocations.LeftAllocations] = {}
        #: By process what it gave up, and when.
        self.given_up: dict[str, dict[tuple[str, str], float]] = {}
        for name in ("s1", "s2"):
            self.begin(name)

    def begin(self, name: str) -> None:
        synchronizer = memory.MemorySynchronizer(None, self.hub)
        with contextlib.suppress(errors.BackendUnavailable):
            synchronizer.open()
        self.given_up[name] = {}
        self.processes[name] = left_allocations.LeftAllocations(
            synchronizer,
            record_editor.RecordCache(),
            orphan_verdicts.OrphanJudge(placement_calls.AllocationCalls(self)),
            self.store.snapshot,
            name,
            lambda: self.now,
            FORGET_SECONDS,
            clock=lambda: self.now,
        )

    def get(self, url: str, **how: Any) -> Answer:
        """Answer as Placement."""
        if self.silent:
            raise keystone.ConnectFailure
        if url.startswith("/resource_providers/"):
            host = url.split("/")[2]
            on = {c: {"resources": RESOURCES} for c, h in self.allocated if h == host}
            return Answer({"allocations": on})
        consumer = url.rpartition("/")[2]
        held = {h: {"resources": RESOURCES} for c, h in self.allocated if c == consumer}
        more = {"consumer_generation": 1, "project_id": "p", "user_id": "u"} if held else {}
        return Answer({"allocations": held, **more})

    # -- what happens ---------------------------------------------------------------

    @stateful.rule(process=PROCESSES, consumer=CONSUMERS, host=HOSTS, lands=st.booleans())
    def give_up(self, process: str, consumer: str, host: str, lands: bool) -> None:
        self.processes[process].add(consumer, host, RESOURCES)
        self.given_up[process][consumer, host] = self.now
        if lands:
            self.allocated.add((consumer, host))

    @stateful.rule(process=PROCESSES, consumer=CONSUMERS, host=HOSTS)
    def land_late(self, process: str, consumer: str, host: str) -> None:
        since = self.given_up[process].get((consumer, host), float("-inf"))
        if self.now - since <= FORGET_SECONDS:
            self.allocated.add((consumer, host))

    @stateful.rule(consumer=CONSUMERS, host=HOSTS)
    def end(self, consumer: str, host: str) -> None:
        """The scheduler that settles deletes it, and forgets what told of it."""
        self.allocated.discard((consumer, host))
        for read in self.read().values():
            if read.host == host and consumer in read.lapsed:
                self.write(read.without_lapsed({consumer: read.lapsed[consumer].claim_id}))

    @stateful.rule(
        consumer=CONSUMERS,
        host=HOSTS,
        vcpus=st.integers(1, 2),
        state=st.sampled_from(model.ClaimState),
    )
    def claim(self, consumer: str, host: str, vcpus: int, state: model.ClaimState) -> None:
        """Somebody claims for the same server, which may stand there soon."""
        read = self.read().get(host)
        if read is not None:
            held = model.HeldClaim({"VCPU": vcpus}, state, "other", "s3")
            self.write(read.with_claim(consumer, held))

    @stateful.rule(consumer=CONSUMERS, host=HOSTS)
    def release(self, consumer: str, host: str) -> None:
        read = self.read().get(host)
        if read is not None and consumer in read.claims:
            self.write(read.without([consumer]))

    @stateful.rule()
    def lose(self) -> None:
        self.hub.begin_epoch()

    @stateful.rule(which=st.integers(0, 3))
    def fail(self, which: int) -> None:
        """Have the back end, or Placement, not answer; or both answer again."""
        self.hub.faults.come_up()
        if which == 1:
            self.hub.faults.go_down()
        self.silent = which == 2

    @stateful.rule(seconds=st.sampled_from([1.0, 100.0, 301.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @stateful.rule(process=PROCESSES)
    def die(self, process: str) -> None:
        self.begin(process)

    # -- what is promised -------------------------------------------------------------

    @stateful.rule(seconds=st.sampled_from([10.0, 310.0]))
    def all_turn_later(self, seconds: float) -> None:
        self.now += seconds
        self.all_turn()

    @stateful.rule()
    def all_turn(self) -> None:
        before = self.read()
        try:
            for each in self.processes.values():
                each.turn()
        except errors.BackendUnavailable:
            SEEN["away"] += 1
            return
        held = self.read()
        claims = {host: read.claims for host, read in before.items()}
        assert claims == {host: read.claims for host, read in held.items()}
        for name, given_up in self.given_up.items():
            for (consumer, host), since in list(given_up.items()):
                is_late = self.now - since > FORGET_SECONDS
                if (consumer, host) not in self.processes[name]._left:
                    assert is_late and (consumer, host) not in self.allocated
                    # What lands there from now on is another's.
                    del given_up[consumer, host]
                    SEEN["over"] += 1
                elif (consumer, host) in self.allocated or not is_late:
                    assert held[host].tells_of(consumer, RESOURCES), (consumer, host)
                    noted_now = not before[host].tells_of(consumer, RESOURCES)
                    SEEN["noted"] += noted_now
                    SEEN["noted late"] += noted_now and is_late
        SEEN["both"] += bool(self.given_up["s1"].keys() & self.given_up["s2"].keys())
        # Nobody writes for ever, whatever the other one noted.
        head = self.hub.head()
        for each in self.processes.values():
            each.turn()
        assert head == self.hub.head()

    @stateful.invariant()
    def memory_is_bounded(self) -> None:
        for name, each in self.processes.items():
            assert len(each) <= len(self.given_up[name])

    # -- the back end, whether it answers us or not ---------------------------------------

    def read(self) -> dict[str, model.ClaimRecord]:
        down = self.hub.faults.down
        self.hub.faults.come_up()
        reader = memory.MemorySynchronizer(None, self.hub)
        reader.open()
        try:
            return lapsed_claims.read_claims(reader, ["n1", "n2"])
        finally:
            reader.close()
            if down:
                self.hub.faults.go_down()

    def write(self, record: model.ClaimRecord) -> None:
        key = claim_rules.host_key(record.host)
        found = self.hub.read([key]).get(key)
        payload = codec.encode(record.to_state(), known_namespaces.CLAIM_RECORDS.schema)
        self.hub.write([records.Write(key, found.revision if found else 0, payload)])


class LeftoversTest(unittest.TestCase):
    def test_what_may_be_left_is_told_by_the_back_end_whenever_that_answers(self):
        machine_runs.run(
            Leftovers, SEEN, tuple(SEEN), max_examples=EXAMPLES, stateful_step_count=60
        )

    def test_a_process_remembers_a_bounded_number_the_latest(self):
        world = Leftovers()
        left, most = world.processes["s1"], left_allocations._MOST_LEFT
        with self.assertLogs(left_allocations.LOG, "ERROR") as logged:
            for number in range(most + 1):
                left.add(str(number), "n1", RESOURCES)
        self.assertEqual(most, len(left))
        self.assertIn("that of server 0;", "".join(logged.output))
