# SPDX-License-Identifier: Apache-2.0
"""Explanations over RPC, and callers of both versions of the API."""

import threading

import fixtures
import oslo_messaging
import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.rpc import api, endpoint
from nova_nodb_scheduler.wire import explanations, objects
from tests.unit.rpc import cloud

#: What Nova's own serializer would make an object of; here it stays as it is.
REQUEST = {
    "nova_object.name": "RequestSpec",
    "nova_object.version": "1.14",
    "nova_object.data": {"flavor": None, "hints": {"a": ["b"]}},
}


class Worker:
    """Answers as a scheduler worker, and keeps what it was asked."""

    def __init__(self):
        self.asked = []
        self.explain_with = None

    def explain(self, context, request, servers, limit):
        if self.explain_with is not None:
            return self.explain_with(context, request, servers, limit)
        self.asked.append((request, servers, limit))
        if request.get("broken"):
            raise errors.InvalidRequest("request", "it is broken")
        return explanations.Explanation(
            scheduler="sched1",
            pid=7,
            at=1.5,
            seconds=0.25,
            servers=servers,
            candidates="memory",
            reason="",
            counts=[explanations.StepCount(name="placement", before=9, after=2)],
            passed=2,
            hosts=[
                explanations.ExplainedHost(
                    uuid="n1",
                    cell="c1",
                    host="h1",
                    node="h1.example",
                    score=None,
                    shares=[
                        explanations.WeigherShare(
                            weigher="RAMWeigher",
                            raw=1024.0,
                            normalised=1.0,
                            multiplier=-0.5,
                            share=-0.5,
                        )
                    ],
                )
            ],
            placed=[
                explanations.PlacedServer(
                    server="s1", uuid="n1", host="h1", node="h1.example", score=-0.5
                )
            ],
        )

    def past(self, server):
        return explanations.PastDecisions(
            host="sched1",
            pid=7,
            remembered=1,
            since=1.0,
            decisions=[
                explanations.PastDecision(
                    at=1.0,
                    seconds=0.5,
                    outcome="no_valid_host",
                    candidates="memory",
                    servers=2,
                    counts=[],
                    placed=[],
                    refused=[
                        explanations.RefusedHost(
                            server=server, uuid="n1", host="h1", reason="full of VCPU"
                        )
                    ],
                )
            ],
        )


class ExplainingCloud(cloud.CloudFixture):
    """A scheduler whose server has both endpoints, as a worker's has."""

    def _setUp(self):
        self.worker = Worker()
        super()._setUp()

    def endpoints(self):
        return [
            self.endpoint,
            endpoint.ExplainingEndpoint(
                self.worker.explain, self.worker.past, lambda: 20_000, endpoint.ExplainBounds()
            ),
        ]


class ExplainingTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.Timeout(60, gentle=True))
        self.cloud = self.useFixture(ExplainingCloud())
        self.client = self.cloud.client

    def test_an_explanation_arrives_as_it_was_given(self):
        found = self.client.explain({}, REQUEST, servers=3, limit=5, server="sched1")

        self.assertEqual([(REQUEST, 3, 5)], self.cloud.worker.asked)
        expected = Worker().explain({}, REQUEST, 3, 5)
        self.assertEqual(objects.plain(expected), objects.plain(found))

    def test_past_decisions_arrive_as_they_were_given(self):
        found = self.client.get_decisions({}, "s1")

        self.assertEqual(objects.plain(Worker().past("s1")), objects.plain(found))

    def test_what_cannot_be_explained_reaches_the_caller_as_it_was_raised(self):
        broken = self.assertRaises(errors.InvalidRequest, self.client.explain, {}, {"broken": True})
        self.assertEqual(("request", "it is broken"), (broken.argument, broken.reason))
        for servers, limit, argument in ((0, 1, "servers"), (1001, 1, "servers"), (1, -1, "limit")):
            error = self.assertRaises(
                errors.InvalidRequest, self.client.explain, {}, {}, servers, limit
            )
            self.assertEqual(argument, error.argument)
        self.assertEqual(1, len(self.cloud.worker.asked))

    def test_one_explanation_at_a_time_and_who_comes_above_is_told(self):
        entered, leave = threading.Event(), threading.Event()
        self.addCleanup(leave.set)

        def slow(context, request, servers, limit):
            entered.set()
            leave.wait(30)
            return Worker().explain(context, request, servers, limit)

        self.cloud.worker.explain_with = slow
        first = threading.Thread(target=self.client.explain, args=({}, REQUEST))
        first.start()
        self.assertTrue(entered.wait(30))

        error = self.assertRaises(errors.LimitExceeded, self.client.explain, {}, REQUEST)
        leave.set()
        first.join()

        self.assertIn("rpc_max_explanations", str(error))
        self.cloud.worker.explain_with = None
        self.assertEqual("sched1", self.client.explain({}, REQUEST).scheduler)

    def test_an_explanation_that_failed_leaves_its_place_to_the_next(self):
        for _ in range(3):
            self.assertRaises(errors.InvalidRequest, self.client.explain, {}, {"broken": True})
        self.assertEqual("sched1", self.client.explain({}, REQUEST).scheduler)

    def test_servers_times_hosts_are_bounded(self):
        """20,000 hosts are in memory: 500 servers are the most."""
        self.client.explain({}, REQUEST, servers=500)

        error = self.assertRaises(errors.LimitExceeded, self.client.explain, {}, REQUEST, 501)

        self.assertIn("rpc_max_explained_places", str(error))

    def test_a_request_that_is_too_large_or_too_deep_never_reaches_the_planner(self):
        tower = []
        for _ in range(60):
            tower = [tower]
        for request in ({"x": ["y" * 100] * 50_000}, {"x": {"y": [[tower]]}}):
            self.assertRaises(
                (errors.InvalidArgument, errors.LimitExceeded), self.client.explain, {}, request
            )
        self.assertEqual([], self.cloud.worker.asked)

    def test_callers_of_either_version_reach_the_first_methods(self):
        for version in ("1.0", "1.1"):
            self.assertTrue(self.call(version, "list_namespaces"), version)

    def test_a_server_of_the_first_version_answers_todays_client(self):
        """Only what it cannot know is refused, by the version's name."""
        old = self.useFixture(FirstVersion())

        self.assertTrue(old.client.list_namespaces({}))
        error = self.assertRaises(errors.MethodNotServed, old.client.explain, {}, REQUEST)
        self.assertEqual(("explain", "1.1"), (error.method, error.version))

    def call(self, version, method):
        target = oslo_messaging.Target(
            topic=self.cloud.topic, namespace=api.NAMESPACE, version=version
        )
        caller = oslo_messaging.get_rpc_client(
            self.cloud.transport, target, serializer=objects.Serializer(), timeout=5
        )
        return caller.call({}, method)


class FirstVersion(cloud.CloudFixture):
    """A scheduler of the release before."""

    def endpoints(self):
        self.endpoint.target = oslo_messaging.Target(namespace=api.NAMESPACE, version="1.0")
        return [self.endpoint]
