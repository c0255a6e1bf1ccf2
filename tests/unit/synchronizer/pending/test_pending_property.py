# SPDX-License-Identifier: Apache-2.0
"""Whoever dies, sleeps or is not heard: no server is sent twice, and no request is lost.

Hypothesis draws the order in which users, conductors and schedulers act, what others do
between the read and the write of a step, which messages get lost, come late or twice.
Set NODB_PROPERTY_EXAMPLES for more cases than CI runs.
"""

import os
import unittest

import hypothesis
from hypothesis import stateful
from hypothesis import strategies as st

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.synchronizer.drivers import memory
from tests.unit.synchronizer.pending import made_requests, pending_world

EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "120"))
STEPS = 60

WHICH = st.integers(0, 11)
CONDUCTORS = st.integers(0, 2)
SCHEDULERS = st.integers(3, 4)
ANYBODY = st.integers(0, 4)
SEEN = {}


class Machine(stateful.RuleBasedStateMachine):
    """One world, and everything that may happen in it."""

    @stateful.initialize()
    def begin(self):
        self.world = pending_world.World()

    def hand(self, which):
        hands = self.world.hands
        return hands[which % len(hands)] if hands else None

    def key(self, which):
        keys = list(self.world.requests)
        return keys[which % len(keys)] if keys else None

    # -- conductors --------------------------------------------------------------------

    @stateful.rule(number=CONDUCTORS, servers=st.integers(1, 2))
    def submit(self, number, servers):
        if len(self.world.requests) < 4:
            self.world.submit(number, servers)

    @stateful.rule(which=WHICH, steps=st.integers(1, 4))
    def advance(self, which, steps):
        hand = self.hand(which)
        for _ in range(steps if hand else 0):
            if self.world.advance(hand):
                break

    @stateful.rule(which=WHICH)
    def die(self, which):
        hand = self.hand(which)
        if hand:
            self.world.hands.remove(hand)

    @stateful.rule(number=CONDUCTORS, which=WHICH, keep=st.booleans())
    def deliver(self, number, which, keep):
        messages = self.world.messages
        if messages:
            key, attempt = messages[which % len(messages)]
            if not keep:
                messages.remove((key, attempt))
            self.world.deliver(number, key, attempt)

    @stateful.rule(room=st.booleans())
    def change_room(self, room):
        self.world.has_room = room

    # -- schedulers, users, time -------------------------------------------------------

    @stateful.rule(
        number=SCHEDULERS,
        which=WHICH,
        purpose=st.sampled_from(
            [pending.Purpose.PLACE, pending.Purpose.PLACE, pending.Purpose.EXPIRE]
        ),
    )
    def grant(self, number, which, purpose):
        key = self.key(which)
        if key:
            self.world.grant(number, key, purpose)

    @stateful.rule(number=ANYBODY, which=WHICH)
    def delete(self, number, which):
        servers = list(self.world.casts)
        if servers:
            self.world.delete(number, servers[which % len(servers)])

    @stateful.rule(seconds=st.sampled_from([1.0, made_requests.LEASE_SECONDS]))
    def wait(self, seconds):
        self.world.now += seconds

    # -- faults ------------------------------------------------------------------------

    @stateful.rule(
        number=ANYBODY,
        fault=st.sampled_from(
            [memory.Fault.REPLY_LOST, memory.Fault.REQUEST_LOST, memory.Fault.LATE]
        ),
        then_away=st.booleans(),
    )
    def lose(self, number, fault, then_away):
        client = self.world.clients[number]
        client.faults.fail_next(fault)
        if then_away:
            client.meanwhile.append(
                lambda: client.faults.fail_next(memory.Fault.UNAVAILABLE, operation="read")
            )

    @stateful.rule(number=ANYBODY, operation=st.sampled_from(["read", "write", "now"]))
    def be_away(self, number, operation):
        self.world.clients[number].faults.fail_next(memory.Fault.UNAVAILABLE, operation=operation)

    @stateful.rule()
    def deliver_late(self):
        self.world.hub.deliver_late()

    @stateful.rule(number=ANYBODY, other=SCHEDULERS, which=WHICH)
    def grant_meanwhile(self, number, other, which):
        key = self.key(which)
        if key and number != other:
            self.world.clients[number].meanwhile.append(lambda: self.world.grant(other, key))

    @stateful.rule(number=ANYBODY, which=WHICH)
    def advance_meanwhile(self, number, which):
        hand = self.hand(which)
        if hand:
            self.world.clients[number].meanwhile.append(lambda: self.world.advance(hand))

    @stateful.rule(number=ANYBODY)
    def sleep_meanwhile(self, number):
        def sleep():
            self.world.now += made_requests.LEASE_SECONDS

        self.world.clients[number].meanwhile.append(sleep)

    def teardown(self):
        if hasattr(self, "world"):
            self.world.settle()
            self.world.check_ends()
            for what, count in self.world.seen.items():
                SEEN[what] = SEEN.get(what, 0) + count


def run_machine(examples=EXAMPLES):
    SEEN.clear()
    stateful.run_state_machine_as_test(
        Machine,
        settings=hypothesis.settings(
            database=None,
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(hypothesis.HealthCheck),
        ),
    )


class PropertyTest(unittest.TestCase):
    def test_any_interleaving_sends_each_server_once_and_ends_each_request(self):
        run_machine()
        for what in (
            "parked",
            "finished",
            "overtaken",
            "taken over in scheduling",
            "taken over in building",
            "casts in vain",
            "lost to another scheduler",
            "creations in doubt",
            "not kept",
            "expired",
        ):
            self.assertGreater(SEEN.get(what, 0), 0, f"no case came by {what}")
