# SPDX-License-Identifier: Apache-2.0
"""Whoever dies, sleeps or is not heard: no server is sent twice, and no request is lost.

Hypothesis draws the order in which users, conductors and schedulers act, what others do
between the read and the write of a step, which messages get lost, come late or twice.
Set NODB_PROPERTY_EXAMPLES for more cases than CI runs.
"""

import contextlib
import io
import os
import unittest

import attrs
import hypothesis
from hypothesis import stateful
from hypothesis import strategies as st

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.pending import pending_rules
from tests import machine_runs
from tests.unit.synchronizer.pending import made_requests, pending_world

EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "120"))
STEPS = 60

WHICH = st.integers(0, 11)
CONDUCTORS = st.integers(0, 2)
SCHEDULERS = st.integers(3, 4)
ANYBODY = st.integers(0, 4)
#: How often what is broken is looked for.
_MOST_SEARCHES = 8
PURPOSES = st.sampled_from([pending.Purpose.PLACE, pending.Purpose.PLACE, pending.Purpose.EXPIRE])
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

    @stateful.rule(which=WHICH, gives_up=st.booleans())
    def arrive_at_compute(self, which, gives_up):
        self.world.arrive_at_compute(which, gives_up=gives_up)

    @stateful.rule(number=SCHEDULERS, which=WHICH)
    def see(self, number, which):
        key = self.key(which)
        if key:
            self.world.see(number, key)

    @stateful.rule(number=ANYBODY, other=SCHEDULERS, which=WHICH)
    def see_meanwhile(self, number, other, which):
        key = self.key(which)
        if key and number != other:
            self.world.clients[number].meanwhile.append(lambda: self.world.see(other, key))

    @stateful.rule(room=st.booleans())
    def change_room(self, room):
        self.world.has_room = room

    # -- schedulers, users, time -------------------------------------------------------

    @stateful.rule(number=SCHEDULERS, which=WHICH, purpose=PURPOSES)
    def grant(self, number, which, purpose):
        key = self.key(which)
        if key:
            self.world.grant(number, key, purpose)

    @stateful.rule(number=SCHEDULERS, which=WHICH, conductor=CONDUCTORS, purpose=PURPOSES)
    def grant_and_deliver(self, number, which, conductor, purpose):
        """The usual course, so that requests come to an end."""
        self.wait(made_requests.LEASE_SECONDS)
        self.grant(number, which, purpose)
        for key, attempt in self.world.messages[-1:]:
            self.world.deliver(conductor, key, attempt)
            self.advance(len(self.world.hands) - 1, 2)

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
        later=st.booleans(),
        then_away=st.booleans(),
    )
    def lose(self, number, fault, later, then_away):
        client = self.world.clients[number]

        def suffer():
            client.faults.fail_next(fault)
            if then_away:
                client.faults.fail_next(memory.Fault.UNAVAILABLE, operation="read")

        # In a write itself: it is the one that suffers.
        client.meanwhile.append((lambda: client.meanwhile.append(suffer)) if later else suffer)

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


def run_machine(expected=(), examples=EXAMPLES, phases=tuple(hypothesis.Phase)):
    machine_runs.run(
        Machine,
        SEEN,
        expected,
        max_examples=examples,
        stateful_step_count=STEPS,
        phases=phases,
    )


class PropertyTest(unittest.TestCase):
    def test_any_interleaving_sends_each_server_once_and_ends_each_request(self):
        run_machine(("parked", "finished", "away", "taken over in scheduling", "casts in vain"))


class SensitivityTest(unittest.TestCase):
    """What the interleavings are for is found by them."""

    def assert_found(self, step, broken):
        self.addCleanup(setattr, pending_rules, step, getattr(pending_rules, step))
        setattr(pending_rules, step, broken)
        with contextlib.redirect_stdout(io.StringIO()):
            # One run in some misses it; in all of them it is there to be found.
            for _ in range(_MOST_SEARCHES):
                try:
                    # Nobody reads what is found: it need not be made small.
                    run_machine((), 2000, [hypothesis.Phase.generate])
                except Exception:
                    return
        self.fail("it was not found")

    def test_a_lease_that_nobody_respects(self):
        self.assert_found("is_lapsed", lambda request, now_seconds: True)

    def test_a_server_that_may_be_sent_whatever_the_record_says(self):
        def sent(standing, holding, server, *, asked_before):
            if standing is None:
                return pending_rules.Superseded(None)
            return attrs.evolve(standing, sent=(*standing.sent, server))

        self.assert_found("sent", sent)
