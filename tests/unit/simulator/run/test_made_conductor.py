# SPDX-License-Identifier: Apache-2.0
"""The run's conductor takes each step by the record, and none that is somebody else's."""

import pathlib

import attrs
import testtools

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.simulator.run import made_conductor, waiting_measures
from nova_nodb_scheduler.simulator.scenario import (
    backend_choice,
    made_hosts,
    queue_scenario,
    run_clock,
    run_options,
    workload,
)
from nova_nodb_scheduler.simulator.schedulers import pipe_messages, simulated_scheduler
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.pending import pending_ledger
from tests import forking

_CONTEXT = forking.context()
FLAVOR = workload.MadeFlavor("f", 2, 2048, 10)
PLACED = simulated_scheduler.PLACED


class NotedWorld:
    """Notes what a conductor asks of its world."""

    def __init__(self):
        self.asked, self.undone, self.placed = [], [], []

    def ask(self, number):
        self.asked.append(number)

    def place(self, decision, servers):
        self.placed.append((decision.hosts, servers))

    def undo(self, number):
        self.undone.append(number)


class ConductorTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        scenario = queue_scenario.QueueScenario(wait_seconds=50.0)
        options = run_options.RunOptions(
            cluster=made_hosts.ClusterOptions(hosts=1),
            strategy=run_options.QUEUE,
            backend=backend_choice.in_directory(pathlib.Path("/nowhere")),
            queue=scenario,
        )
        self.clock = run_clock.RunClock(_CONTEXT, run_clock.Pace.VIRTUAL)
        self.client = memory.MemorySynchronizer(shared_hub=memory.MemoryHub())
        self.client.open()
        self.ledger = pending_ledger.PendingLedger(
            self.client,
            scenario.lease_seconds,
            lambda: made_hosts.BEGINNING_SECONDS + self.clock.now_seconds(),
            pause=lambda _: None,
        )
        self.arrival = workload.Arrival(
            0, 0.0, FLAVOR, servers=2, project_id="p", priority_class="normal"
        )
        self.measures = waiting_measures.WaitingMeasures({"normal": 50}, 0.0, 1.0)
        self.world = NotedWorld()
        self.conductor = made_conductor.MadeConductor(
            options,
            [self.arrival],
            self.ledger,
            self.measures,
            self.clock,
            run_clock.Events(self.clock),
            made_conductor.ConductorThread(at_once=True),
            self.world,
        )
        self.servers = self.arrival.uuids(options.seed)
        self.key = self.servers[0]

    def answer(self, outcome, hosts=("h1", "h2")):
        self.conductor.answered(
            0,
            pipe_messages.Decided(
                number=0,
                outcome=outcome,
                hosts=hosts if outcome == PLACED else (),
                seconds=0.1,
                chosen_at_seconds=0.0,
                version=1,
                reasons={},
                conflicts=0,
                writes_lost={},
                unproved=False,
            ),
        )

    def grant(self, purpose=pending.Purpose.PLACE):
        standing = self.ledger.read(self.key)
        step = self.ledger.grant(self.key, standing.grant.attempt, "scheduler", purpose)
        self.assertIsInstance(step, pending.PendingRequest)
        self.conductor.dispatch(pipe_messages.DispatchPending(self.key, step.grant.attempt))

    def park(self, outcome=simulated_scheduler.NO_HOST):
        self.conductor.come(self.arrival)
        self.answer(outcome)

    @property
    def ending(self):
        return self.measures.stories[0].ending

    def test_a_request_is_kept_before_a_scheduler_is_asked(self):
        self.conductor.come(self.arrival)

        record = self.ledger.read(self.key)
        self.assertIs(pending.PendingState.SCHEDULING, record.state)
        self.assertEqual(FLAVOR.resources, dict(record.needs))
        self.assertEqual(2200, len(self.ledger.read_payload(self.key)))
        self.assertEqual([0], self.world.asked)
        self.assertEqual((self.key, 1), self.conductor.attempt(0))

    def test_who_is_placed_at_once_leaves_no_record(self):
        self.conductor.come(self.arrival)
        self.answer(PLACED)

        self.assertEqual([(("h1", "h2"), self.servers)], self.world.placed)
        self.assertIsNone(self.ledger.read(self.key))
        self.assertIsNone(self.ledger.read_payload(self.key))
        self.assertEqual("placed", self.ending)

    def test_who_finds_no_room_waits_and_rests_first(self):
        self.park()

        record = self.ledger.read(self.key)
        self.assertIs(pending.PendingState.WAITING, record.state)
        self.assertGreater(record.not_before, record.parked_at)
        self.assertEqual((1, "no valid host"), (self.measures.waiting, record.reason))

    def test_who_was_not_tried_for_others_go_before_does_not_rest(self):
        self.park(simulated_scheduler.BEHIND)

        record = self.ledger.read(self.key)
        self.assertIs(pending.PendingState.WAITING, record.state)
        self.assertEqual(record.not_before, record.parked_at)

    def test_a_full_queue_ends_a_request_with_its_record(self):
        self.park(simulated_scheduler.FULL)

        self.assertEqual("refused", self.ending)
        self.assertIsNone(self.ledger.read(self.key))

    def test_a_grant_is_taken_and_asked_for_with_its_attempt(self):
        self.park()
        self.grant()

        self.assertEqual([0, 0], self.world.asked)
        self.assertEqual((self.key, 2), self.conductor.attempt(0))
        self.answer(PLACED)
        self.assertEqual("placed", self.ending)

    def test_a_grant_that_finds_no_room_waits_again(self):
        self.park()
        self.grant()
        self.answer(simulated_scheduler.NO_HOST)

        self.assertEqual((1, 1), (self.measures.failed_grants, self.measures.waiting))
        self.assertIs(pending.PendingState.WAITING, self.ledger.read(self.key).state)

    def test_a_deadline_ends_it(self):
        self.park()
        self.grant(pending.Purpose.EXPIRE)

        self.assertEqual("expired", self.ending)
        self.assertIsNone(self.ledger.read(self.key))

    def test_a_grant_of_long_ago_is_not_taken(self):
        self.park()
        self.conductor.dispatch(pipe_messages.DispatchPending(self.key, 7))

        self.assertEqual([0], self.world.asked)

    def test_who_lost_a_request_while_it_was_decided_sends_nothing(self):
        self.conductor.come(self.arrival)
        self.clock.advance(31.0)
        step = self.ledger.grant(self.key, 1, "another")
        self.assertIsInstance(step, pending.PendingRequest)
        self.answer(PLACED)

        self.assertEqual(([], [0]), (self.world.placed, self.world.undone))
        self.assertEqual(attrs.evolve(step), self.ledger.read(self.key))

    def test_a_scheduler_that_died_costs_an_attempt_and_no_request(self):
        self.conductor.come(self.arrival)
        self.conductor.unanswered(0)

        self.assertIs(pending.PendingState.WAITING, self.ledger.read(self.key).state)
        self.grant()
        self.answer(PLACED)
        self.assertEqual("placed", self.ending)

    def test_without_a_back_end_nobody_waits(self):
        self.client.faults.fail_next(memory.Fault.REQUEST_LOST, 99)
        self.conductor.come(self.arrival)
        self.answer(simulated_scheduler.NO_HOST)

        self.assertEqual(("failed", 1), (self.ending, self.measures.unkept))
