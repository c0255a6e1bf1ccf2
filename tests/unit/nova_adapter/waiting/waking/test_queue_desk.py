# SPDX-License-Identifier: Apache-2.0
"""Requests that wait, told and changed over RPC by any scheduler."""

import attrs
import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.nova_adapter.waiting.waking import queue_desk
from nova_nodb_scheduler.rpc import queue_endpoint
from nova_nodb_scheduler.synchronizer.pending import pending_ledger, pending_rules
from nova_nodb_scheduler.synchronizer.waking import queue_grants
from tests.unit.rpc import cloud
from tests.unit.synchronizer.pending import made_requests

State = pending.PendingState


class Conductors:
    """Remembers what it was told."""

    def __init__(self):
        self.told = []

    def dispatch(self, key, attempt):
        self.told.append((key, attempt))


class QueueCloud(cloud.CloudFixture):
    """A scheduler that answers for the queue, and wakes nobody."""

    proof_age_seconds = 1.0

    def endpoints(self):
        self.ledger = pending_ledger.PendingLedger(self.synchronizer, 30.0)
        self.conductors = Conductors()
        numbers = iter(range(1000))
        grants = queue_grants.QueueGrants(
            self.ledger, self.conductors, lambda: f"grant-{next(numbers)}"
        )
        desk = queue_desk.QueueDesk(
            queue_desk.DeskParts(
                host=self.host,
                store=self.store,
                ledger=self.ledger,
                grants=grants,
                clock=self.synchronizer.now_seconds,
                quarantined=lambda: len(self.replicator.quarantine.keys("pending")),
                proof_age_seconds=lambda: self.proof_age_seconds,
                place=lambda uuid: None,
            )
        )
        return [*super().endpoints(), queue_endpoint.QueueEndpoint(desk, self.limits.page_size)]


class QueueEndpointTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.cloud = self.useFixture(QueueCloud(page_size=2))
        self.client, self.ledger = self.cloud.client, self.cloud.ledger

    def parked(self, key, **fields):
        now = self.cloud.synchronizer.now_seconds()
        request = attrs.evolve(
            made_requests.newcomer(key, servers=(key, f"{key}-2"), now_seconds=now), **fields
        )
        self.ledger.create(request, "payload")
        self.ledger.park(pending_rules.holding_of(request), "no room", 0.0)
        self.cloud.catch_up()

    def keys(self, **query):
        found, marker = [], None
        while True:
            page = self.client.list_pending({}, marker=marker, **query)
            self.assertLessEqual(len(page.requests), 2)
            found += [each.key for each in page.requests]
            marker = page.next_marker
            if marker is None:
                return found

    def test_pages_hold_every_request_once_the_oldest_first(self):
        for number in range(5):
            self.parked(f"r{number}", asked_at=100.0 - number // 2)
        self.assertEqual(["r4", "r2", "r3", "r0", "r1"], self.keys())
        page = self.client.list_pending({}, limit=1)
        self.assertEqual((1, 5, 10), (len(page.requests), page.total, page.servers))

    def test_what_is_asked_for_is_told_alone(self):
        self.parked("a", project_id="p", flavor="f", priority_class="high")
        self.parked("b", project_id="q")
        for query, expected in (
            ({"project": "p"}, ["a"]),
            ({"priority_class": "high"}, ["a"]),
            ({"flavor": "f"}, ["a"]),
            ({"state": "waiting", "project": "q"}, ["b"]),
            ({"state": "granted"}, []),
        ):
            self.assertEqual(expected, self.keys(**query), query)

    def placed(self, key):
        """Have a conductor send all servers of a request that waits."""
        self.ledger.grant(key, 1, "scheduler")
        holding = pending_rules.holding_of(self.ledger.take(key, 2, "conductor"))
        self.ledger.begin(holding)
        for server in (key, f"{key}-2"):
            self.ledger.sent(holding, server)
        self.ledger.place(holding, 100.0)
        self.cloud.catch_up()

    def test_what_is_placed_waits_no_more_and_is_told_where_it_is_asked_for(self):
        for key in ("a", "b", "c"):
            self.parked(key)
        self.placed("b")
        self.assertEqual(["a", "c"], self.keys())
        page = self.client.list_pending({})
        self.assertEqual((2, 4), (page.total, page.servers))
        self.assertEqual((["b"], []), (self.keys(state="placed"), self.keys(state="building")))
        self.assertEqual("placed", self.client.get_pending({}, "b").request.state)
        drained = self.client.drain_pending({})
        self.assertEqual({"a", "c"}, {each.key for each in drained.outcomes})

    def test_what_is_no_condition_or_page_is_refused_by_name(self):
        for query, named in (
            ({"state": "asleep"}, "state"),
            ({"project": 7}, "project"),
            ({"marker": "x"}, "marker"),
            ({"marker": "nan r0"}, "marker"),
            ({"marker": "inf r0"}, "marker"),
            ({"limit": "many"}, "limit"),
        ):
            error = self.assertRaises(errors.InvalidArgument, self.client.list_pending, {}, **query)
            self.assertIn(named, str(error))

    def test_a_record_that_cannot_be_read_is_counted(self):
        self.parked("a")
        self.cloud.break_record("pending", "odd")
        self.cloud.write("pending", {"malformed": {"servers": 1}}, owner="queue")
        page = self.client.list_pending({})
        self.assertEqual((1, 2), (page.total, page.unreadable))

    def test_a_request_is_found_by_any_of_its_servers(self):
        self.parked("a")
        for server in ("a", "a-2"):
            self.assertEqual("a", self.client.get_pending({}, server).request.key)
        self.assertRaises(errors.PendingNotFound, self.client.get_pending, {}, "b")

    def test_a_scheduler_that_plans_nothing_says_so(self):
        self.parked("a")
        found = self.client.get_pending({}, "a")
        self.assertEqual((None, []), (found.ahead, found.hosts))
        self.assertIn("does not decide from memory", found.why_unknown)

    def test_a_request_is_cancelled_once(self):
        self.parked("a")
        for _ in range(2):
            found = self.client.cancel_pending({}, "a-2")
            self.assertEqual(("a", "done"), (found.key, found.outcome))
            self.assertEqual(("granted", "cancel"), (found.request.state, found.request.purpose))
            self.cloud.catch_up()
        self.assertEqual([("a", 2)], self.cloud.conductors.told)

    def test_one_that_is_being_placed_is_left_alone(self):
        self.parked("a")
        self.ledger.grant("a", 1, "scheduler")
        self.ledger.take("a", 2, "conductor")
        self.cloud.catch_up()
        self.assertEqual("busy", self.client.cancel_pending({}, "a").outcome)
        self.assertIs(State.SCHEDULING, self.ledger.read("a").state)

    def test_one_that_ended_meanwhile_is_gone(self):
        self.parked("a")
        self.cloud.replicator.stop()
        self.ledger.finish(pending_rules.holding_of(self.ledger.read("a")))
        self.assertEqual("gone", self.client.cancel_pending({}, "a").outcome)
        self.assertEqual("gone", self.client.promote_pending({}, "a").outcome)

    def test_the_promoted_go_before_all_others(self):
        for key in ("a", "b", "c"):
            self.parked(key)
        self.assertEqual(1, self.client.promote_pending({}, "b").request.rank)
        self.cloud.catch_up()
        self.assertEqual(2, self.client.promote_pending({}, "c").request.rank)
        self.assertEqual(-3, self.client.promote_pending({}, "a", rank=-3).request.rank)
        self.assertRaises(errors.InvalidArgument, self.client.promote_pending, {}, "a", rank=2**40)

    def test_a_record_that_broke_keeps_nobody_in_the_queue_that_is_drained(self):
        for key in ("a", "b", "c"):
            self.parked(key)
        self.cloud.break_record("pending", "a")
        drained = self.client.drain_pending({})
        self.assertEqual(
            [("a", "unreadable"), ("b", "done")],
            [(each.key, each.outcome) for each in drained.outcomes],
        )

    def test_a_scheduler_that_may_not_know_all_does_not_say_that_there_is_nobody(self):
        self.cloud.proof_age_seconds = None
        for call in (
            lambda: self.client.drain_pending({}),
            lambda: self.client.get_pending({}, "a"),
            lambda: self.client.cancel_pending({}, "a"),
        ):
            error = self.assertRaises(errors.BackendUnavailable, call)
            self.assertIn("follow", str(error))
        self.cloud.proof_age_seconds = 3600.0
        self.assertRaises(errors.BackendUnavailable, self.client.drain_pending, {})

    def test_a_marker_behind_all_time_does_not_end_a_drain_that_did_nothing(self):
        self.parked("a")
        for marker in ("nan a", "inf a"):
            self.assertRaises(errors.InvalidArgument, self.client.drain_pending, {}, marker=marker)
        self.assertEqual([], self.cloud.conductors.told)

    def test_the_queue_is_drained_page_by_page(self):
        for number in range(5):
            self.parked(f"r{number}", project_id="p" if number else "q")
        outcomes, marker = [], None
        while True:
            page = self.client.drain_pending({}, project="p", marker=marker)
            outcomes += page.outcomes
            marker = page.next_marker
            if marker is None:
                break
        self.assertEqual({"done"}, {each.outcome for each in outcomes})
        self.assertEqual(4, len(self.cloud.conductors.told))
        self.assertIs(State.WAITING, self.ledger.read("r0").state)
