# SPDX-License-Identifier: Apache-2.0
"""Writing allocations of new servers, against a real Placement."""

from __future__ import annotations

import collections
import math
import os
import random
import threading
import time
import uuid
from typing import Any

from keystoneauth1 import exceptions as keystone

from nova_nodb_scheduler.nova_adapter.placement.allocations import (
    allocation_writer,
    placement_replies,
)
from tests.functional.nova_adapter import placement_cloud as cloud

LONG = 30.0
#: Of what is tried until then, by real requests.
SHORT = 8.0


class WriterCase(cloud.PlacementCase):
    def setUp(self) -> None:
        super().setUp()
        self.client = cloud.Client(self.placement.endpoint)
        self.now = 0.0
        self.writer = self.make()

    def make(self, **options: Any) -> allocation_writer.AllocationWriter:
        return allocation_writer.AllocationWriter(
            self.client, clock=self.clock, sleep=self.sleep, rng=random.Random(1), **options
        )

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def write(
        self, *servers: placement_replies.NewServer, **options: Any
    ) -> dict[str, placement_replies.WriteOutcome]:
        return self.writer.write(servers, self.now + LONG, **options)


class OneRequestTest(WriterCase):
    def test_a_new_server_is_one_post_and_nothing_else(self) -> None:
        host = self.provider(VCPU=4, MEMORY_MB=100)
        one = cloud.server(host, VCPU=2, MEMORY_MB=50)
        self.assertEqual({one.consumer: placement_replies.AllocationWritten()}, self.write(one))
        self.assertEqual({"post": 1}, dict(self.client.calls))
        self.assertEqual({host: {"VCPU": 2, "MEMORY_MB": 50}}, self.held(one.consumer))
        stored = self.admin.get(f"/allocations/{one.consumer}", version="1.36").json()
        self.assertEqual(("project", "user"), (stored["project_id"], stored["user_id"]))

    def test_placement_stores_the_same_as_for_novas_own_claim(self) -> None:
        host = self.provider(VCPU=4)
        ours, novas = cloud.server(host), cloud.server(host)
        self.write(ours)
        context = type("Context", (), {"global_id": None})()
        done = self.admin.claim_resources(
            context, novas.consumer, novas.request, "project", "user", "1.36"
        )
        self.assertTrue(done)
        stored = [
            self.admin.get(f"/allocations/{each.consumer}", version="1.38").json()
            for each in (ours, novas)
        ]
        self.assertEqual(stored[1], stored[0])

    def test_fifty_servers_are_one_post(self) -> None:
        hosts = [self.provider(VCPU=5) for _ in range(10)]
        servers = [cloud.server(hosts[number % 10]) for number in range(50)]
        found = self.write(*servers)
        self.assertEqual([placement_replies.AllocationWritten] * 50, cloud.kinds(servers, found))
        self.assertEqual({"post": 1}, dict(self.client.calls))
        self.assertEqual([50], self.client.sizes)
        self.assertEqual([{"VCPU": 5}] * 10, [self.usages(host) for host in hosts])

    def test_a_full_host_is_named(self) -> None:
        host = self.provider(VCPU=1, MEMORY_MB=10)
        one = cloud.server(host, VCPU=2)
        outcome = self.write(one)[one.consumer]
        self.assertIsInstance(outcome, placement_replies.ProviderFull)
        self.assertEqual(
            (host, "VCPU", True),
            (outcome.provider, outcome.resource_class, outcome.by_capacity),
        )
        self.assertEqual({"post": 1}, dict(self.client.calls))
        self.assertEqual({}, self.usages(host))

    def test_an_amount_against_the_inventorys_rules_is_the_hosts_refusal_too(self) -> None:
        host = self.provider(VCPU=4)
        one, two = cloud.server(host, VCPU=1, DISK_GB=1), cloud.server(host, NO_CLASS=1)
        outcome = self.write(one)[one.consumer]
        self.assertIsInstance(outcome, placement_replies.ProviderFull)
        self.assertEqual(
            (host, "DISK_GB", False),
            (outcome.provider, outcome.resource_class, outcome.by_capacity),
        )
        rejected = self.write(two)[two.consumer]
        self.assertIsInstance(rejected, placement_replies.AllocationRejected)
        self.assertEqual(400, rejected.status)

    def test_a_consumer_with_other_allocations_is_left_to_nova(self) -> None:
        host, other = self.provider(VCPU=4), self.provider(VCPU=4)
        self.assertEqual(204, self.put(there := cloud.server(other)).status_code)
        one = cloud.server(host, there.consumer)
        self.assertIsInstance(self.write(one)[one.consumer], placement_replies.ConsumerExists)
        self.assertEqual({other: {"VCPU": 1}}, self.held(one.consumer))
        self.assertEqual({}, self.usages(host))

    def test_a_server_written_before_is_found_not_doubled(self) -> None:
        host = self.provider(VCPU=4)
        one = cloud.server(host)
        self.write(one)
        self.assertEqual({one.consumer: placement_replies.AllocationWritten()}, self.write(one))
        self.assertEqual({"VCPU": 1}, self.usages(host))

    def test_a_provider_that_is_gone_spoils_no_other_server_and_no_second_attempt(self) -> None:
        host, gone = self.provider(VCPU=4), str(uuid.uuid4())
        one, two = cloud.server(gone), cloud.server(host)
        found = self.write(one, two, divisible=True)
        self.assertEqual(
            [placement_replies.ProviderFull, placement_replies.AllocationWritten],
            cloud.kinds([one, two], found),
        )
        # Placement keeps a record of the first: the next host is not refused for it.
        again = cloud.server(host, one.consumer)
        self.assertEqual({one.consumer: placement_replies.AllocationWritten()}, self.write(again))
        self.assertEqual({"VCPU": 2}, self.usages(host))

    def test_a_record_that_others_left_behind_is_novas_to_judge(self) -> None:
        host = self.provider(VCPU=4)
        one = cloud.server(str(uuid.uuid4()))
        self.assertEqual(400, self.put(one).status_code)
        again = cloud.server(host, one.consumer)
        self.assertIsInstance(self.write(again)[one.consumer], placement_replies.ConsumerExists)
        self.assertLess(self.now, 1.0)
        self.assertEqual({}, self.usages(host))

    def test_a_mistake_in_the_call_loses_no_outcome(self) -> None:
        host = self.provider(VCPU=4)
        for fault in (cloud.lost_before, cloud.lost_after):
            one = cloud.server(host)
            self.client.faults["post"] = [fault(ZeroDivisionError)]
            self.assertEqual({one.consumer: placement_replies.AllocationWritten()}, self.write(one))
        self.assertEqual({"VCPU": 2}, self.usages(host))

    def test_a_call_that_fails_each_time_is_not_made_until_the_deadline(self) -> None:
        host = self.provider(VCPU=4)
        one = cloud.server(host)
        self.client.faults["post"] = [cloud.lost_before(ZeroDivisionError)] * 9
        self.assertIsInstance(self.write(one)[one.consumer], placement_replies.UnknownOutcome)
        self.assertEqual(3, self.client.calls["post"])
        self.assertLess(self.now, 1.0)

    def test_an_answer_that_cannot_be_read_loses_no_outcome(self) -> None:
        host = self.provider(VCPU=4)
        one, two = cloud.server(host), cloud.server(host)

        class Unreadable:
            """An answer whose parts raise."""

            @property
            def status_code(self) -> int:
                raise AttributeError("no such attribute")

        def unreadable(call: Any) -> Any:
            call()
            return Unreadable()

        self.client.faults["post"] = [unreadable]
        self.assertEqual({one.consumer: placement_replies.AllocationWritten()}, self.write(one))
        self.client.faults["post"] = [cloud.lost_after(ZeroDivisionError)]
        self.client.faults["get"] = [unreadable]
        self.assertEqual({two.consumer: placement_replies.AllocationWritten()}, self.write(two))
        self.assertEqual({"VCPU": 2}, self.usages(host))

    def test_a_failed_authentication_is_an_outcome(self) -> None:
        host = self.provider(VCPU=4)
        one = cloud.server(host)
        self.client.faults["post"] = [cloud.lost_before(keystone.Unauthorized)]
        outcome = self.write(one)[one.consumer]
        self.assertIsInstance(outcome, placement_replies.AllocationRejected)
        self.assertEqual((None, {"post": 1}), (outcome.status, dict(self.client.calls)))

    def test_an_endpoint_that_is_not_found_is_looked_for_again(self) -> None:
        one = cloud.server(self.provider(VCPU=4))
        client, made = self.client, []

        class Late:
            def __init__(self) -> None:
                self._client = client

            def __getattr__(self, name: str) -> Any:
                made.append(name)
                return getattr(self._client, name)

        self.writer = allocation_writer.AllocationWriter(Late(), clock=self.clock, sleep=self.sleep)
        self.client.faults["post"] = [cloud.lost_before(keystone.EndpointNotFound)]
        self.client._client = None
        self.assertIsInstance(self.write(one)[one.consumer], placement_replies.AllocationRejected)
        self.assertIn("_create_client", made)
        self.assertEqual({one.consumer: placement_replies.AllocationWritten()}, self.write(one))


class SeveralServersTest(WriterCase):
    def test_of_a_divisible_request_only_the_server_on_the_full_host_fails(self) -> None:
        hosts = [self.provider(VCPU=1 if number == 3 else 9) for number in range(8)]
        servers = [cloud.server(host, VCPU=2) for host in hosts]
        found = self.write(*servers, divisible=True)
        expected = [placement_replies.AllocationWritten] * 8
        expected[3] = placement_replies.ProviderFull
        self.assertEqual(expected, cloud.kinds(servers, found))
        self.assertEqual({"post": 2}, dict(self.client.calls))
        self.assertEqual(
            [{} if number == 3 else {"VCPU": 2} for number in range(8)],
            [self.usages(host) for host in hosts],
        )

    def test_the_room_left_is_found_at_few_calls(self) -> None:
        host, other = self.provider(VCPU=5), self.provider(VCPU=99)
        servers = [cloud.server(host if number % 2 else other) for number in range(50)]
        found = self.write(*servers, divisible=True)
        self.assertEqual(
            [placement_replies.AllocationWritten] * 5 + [placement_replies.ProviderFull] * 20,
            cloud.kinds(servers[1::2], found),
        )
        self.assertEqual(({"VCPU": 5}, {"VCPU": 25}), (self.usages(host), self.usages(other)))
        self.assertLessEqual(self.client.calls["post"], 2 * math.log2(50) + 2)

    def test_a_consumer_named_twice_is_a_mistake(self) -> None:
        one = cloud.server(self.provider(VCPU=5))
        self.assertRaises(ValueError, self.write, one, one)
        self.assertEqual({}, dict(self.client.calls))

    def test_a_request_that_may_not_be_divided_leaves_nothing_but_the_name(self) -> None:
        hosts = [self.provider(VCPU=1 if number == 3 else 9) for number in range(8)]
        servers = [cloud.server(host, VCPU=2) for host in hosts]
        found = self.write(*servers)
        expected: list[type] = [placement_replies.WithdrawnWithOthers] * 8
        expected[3] = placement_replies.ProviderFull
        self.assertEqual(expected, cloud.kinds(servers, found))
        self.assertEqual({"post": 1}, dict(self.client.calls))
        self.assertEqual([{}] * 8, [self.usages(host) for host in hosts])

    def test_servers_that_share_a_host_with_too_little_room_take_it_in_order(self) -> None:
        host, other = self.provider(VCPU=5), self.provider(VCPU=99)
        servers = [cloud.server(host) for _ in range(8)] + [cloud.server(other)]
        found = self.write(*servers, divisible=True)
        self.assertEqual(
            [placement_replies.AllocationWritten] * 5
            + [placement_replies.ProviderFull] * 3
            + [placement_replies.AllocationWritten],
            cloud.kinds(servers, found),
        )
        self.assertEqual({"VCPU": 5}, self.usages(host))

    def test_what_was_written_to_find_the_culprit_is_taken_back(self) -> None:
        host = self.provider(VCPU=5)
        servers = [cloud.server(host) for _ in range(8)]
        found = self.write(*servers)
        self.assertEqual(
            [placement_replies.WithdrawnWithOthers] * 5 + [placement_replies.ProviderFull] * 3,
            cloud.kinds(servers, found),
        )
        self.assertEqual(({}, {}), (self.usages(host), self.consumers(host)))
        # Their records are gone, too: all eight are new consumers still.
        self.set_inventory(host, VCPU=8)
        self.assertEqual(
            [placement_replies.AllocationWritten] * 8, cloud.kinds(servers, self.write(*servers))
        )


class LostAnswersTest(WriterCase):
    def test_lost_before_it_was_written_is_written_the_second_time(self) -> None:
        for fault in cloud.BEFORE:
            self.client.calls.clear()
            host = self.provider(VCPU=2)
            servers = [cloud.server(host), cloud.server(host)]
            self.client.faults["post"] = [fault]
            found = self.write(*servers)
            self.assertEqual([placement_replies.AllocationWritten] * 2, cloud.kinds(servers, found))
            # One that is absent says it of all.
            self.assertEqual({"post": 2, "get": 1}, dict(self.client.calls))
            self.assertEqual({"VCPU": 2}, self.usages(host))

    def test_lost_after_it_was_written_is_found_and_not_sent_again(self) -> None:
        for fault in cloud.AFTER:
            self.client.calls.clear()
            host = self.provider(VCPU=2)
            servers = [cloud.server(host), cloud.server(host)]
            self.client.faults["post"] = [fault]
            found = self.write(*servers)
            self.assertEqual([placement_replies.AllocationWritten] * 2, cloud.kinds(servers, found))
            self.assertEqual({"post": 1, "get": 2}, dict(self.client.calls))
            self.assertEqual({"VCPU": 2}, self.usages(host))

    def test_a_write_that_arrives_after_it_was_looked_for_is_found_then(self) -> None:
        host = self.provider(VCPU=2)
        servers = [cloud.server(host), cloud.server(host)]
        late: list[Any] = []

        def keep(call: Any) -> Any:
            late.append(call)
            raise keystone.ConnectTimeout

        def arrives_before(call: Any) -> Any:
            late.pop()()
            return call()

        self.client.faults["post"] = [keep, arrives_before]
        found = self.write(*servers)
        self.assertEqual([placement_replies.AllocationWritten] * 2, cloud.kinds(servers, found))
        self.assertEqual({"VCPU": 2}, self.usages(host))

    def test_a_refused_login_after_a_lost_answer_does_not_say_that_nothing_is_written(self) -> None:
        one = cloud.server(self.provider(VCPU=2))

        def unanswered(call: Any) -> Any:
            raise keystone.ConnectTimeout

        def refused(call: Any) -> Any:
            raise keystone.Unauthorized

        self.client.faults["post"] = [unanswered, refused]
        self.assertIsInstance(self.write(one)[one.consumer], placement_replies.UnknownOutcome)

    def test_a_full_host_behind_a_lost_answer_does_not_say_that_nothing_is_written(self) -> None:
        """What is on its way comes as soon as there is room again."""
        host = self.provider(VCPU=2)
        one, rival = cloud.server(host), cloud.server(host, VCPU=2)
        late: list[Any] = []

        def keep(call: Any) -> Any:
            late.append(call)
            self.assertEqual(204, self.put(rival).status_code)
            raise keystone.ConnectTimeout

        self.client.faults["post"] = [keep]
        outcome = self.write(one)[one.consumer]
        self.assertIsInstance(outcome, placement_replies.UnknownOutcome)
        self.assertIn("VCPU", outcome.text)
        self.admin.delete(f"/allocations/{rival.consumer}")
        late.pop()()
        self.assertEqual({one.consumer: {"VCPU": 1}}, self.consumers(host))

    def test_of_several_behind_a_lost_answer_none_is_known_to_be_refused(self) -> None:
        """Neither the one that does not fit nor those that share its host, or its request."""
        for divisible in (True, False):
            host, other = self.provider(VCPU=2), self.provider(VCPU=2)
            servers = [cloud.server(host, VCPU=2), cloud.server(host), cloud.server(other)]
            late: list[Any] = []

            def keep(call: Any, late: list[Any] = late) -> Any:
                late.append(call)
                raise keystone.ConnectTimeout

            self.client.faults["post"] = [keep]
            found = self.write(*servers, divisible=divisible)
            self.assertNotIn(placement_replies.ProviderFull, cloud.kinds(servers, found))
            self.assertNotIn(placement_replies.WithdrawnWithOthers, cloud.kinds(servers, found))
            self.assertIn(placement_replies.UnknownOutcome, cloud.kinds(servers, found))

    def test_what_was_sent_again_behind_a_lost_answer_says_so(self) -> None:
        """Should it be taken back, the first one may still come."""
        host = self.provider(VCPU=4)
        faults = {cloud.BEFORE[0]: True, cloud.AFTER[0]: False, None: False}
        for fault, was_repeated in faults.items():
            one = cloud.server(host)
            self.client.faults["post"] = [fault]
            outcome = self.write(one)[one.consumer]
            self.assertIsInstance(outcome, placement_replies.AllocationWritten)
            self.assertIs(was_repeated, outcome.was_repeated)

    def test_records_that_a_breaking_placement_left_behind_are_taken_over(self) -> None:
        host = self.provider(VCPU=2)
        servers = [cloud.server(host), cloud.server(host)]
        self.useFixture(cloud.PlacementBreaks(1))
        found = self.write(*servers)
        self.assertEqual([placement_replies.AllocationWritten] * 2, cloud.kinds(servers, found))
        self.assertEqual({"VCPU": 2}, self.usages(host))
        self.assertLess(self.now, 1.0)

    def test_a_placement_that_stays_broken_is_no_consumer_that_exists(self) -> None:
        one = cloud.server(self.provider(VCPU=2))
        self.client.faults["post"] = [cloud.broken_off] * 10_000
        self.assertIsInstance(self.write(one)[one.consumer], placement_replies.UnknownOutcome)

    def test_without_an_answer_until_the_deadline_the_outcome_is_unknown(self) -> None:
        host = self.provider(VCPU=2)
        one = cloud.server(host)
        self.client.faults["post"] = [cloud.AFTER[0]]
        self.client.faults["get"] = [cloud.BEFORE[0]] * 10_000
        outcome = self.write(one)[one.consumer]
        self.assertIsInstance(outcome, placement_replies.UnknownOutcome)
        self.assertGreaterEqual(self.now, LONG)
        self.client.faults["get"].clear()
        self.assertEqual({"VCPU": 1}, self.usages(host))
        self.assertEqual((), self.writer.undo([one], self.now + LONG, unsure=True))
        self.assertEqual({}, self.usages(host))

    def test_a_request_that_is_down_longer_than_its_deadline_waits_no_longer(self) -> None:
        host = self.provider(VCPU=2)
        one = cloud.server(host)
        self.client.faults["post"] = [cloud.BEFORE[0]] * 10_000
        self.assertIsInstance(self.write(one)[one.consumer], placement_replies.UnknownOutcome)
        self.assertLess(self.now, LONG + 1.0)
        self.assertLess(self.client.calls["post"], 4 * LONG)


class RacesTest(WriterCase):
    def test_a_lost_race_is_run_again_on_the_same_host(self) -> None:
        host = self.provider(VCPU=2)
        servers = [cloud.server(host), cloud.server(host)]
        self.useFixture(cloud.ProvidersChange(3))
        found = self.write(*servers)
        self.assertEqual([placement_replies.AllocationWritten] * 2, cloud.kinds(servers, found))
        self.assertEqual({"post": 4}, dict(self.client.calls))
        self.assertTrue(0 < self.now < 1.0)

    def test_a_race_lost_until_the_deadline_is_a_conflict_and_leaves_nothing(self) -> None:
        host = self.provider(VCPU=2)
        one = cloud.server(host)
        self.useFixture(cloud.ProvidersChange(10_000))
        found = self.writer.write([one], self.now + SHORT)
        self.assertIsInstance(found[one.consumer], placement_replies.GenerationConflict)
        self.assertGreaterEqual(self.now, SHORT)
        self.assertLess(self.client.calls["post"], 4 * SHORT)
        self.assertEqual({}, self.usages(host))


class AnswersWithoutCodesTest(cloud.PlacementCase):
    """What Placement answers below microversion 1.23: the text must do."""

    def answer(self, provider: str, **amounts: int) -> placement_replies.Reply:
        one = cloud.server(provider, **amounts)
        allocation = {"allocations": one.request["allocations"]}
        data = {one.consumer: {**allocation, "project_id": "p", "user_id": "u"}}
        response = self.admin.post("/allocations", data, version="1.22")
        if response.status_code != 204:
            self.assertNotIn("code", response.json()["errors"][0])
        return placement_replies.read_reply(response)

    def test_the_causes_are_told_apart_by_text(self) -> None:
        host, gone = self.provider(VCPU=2), str(uuid.uuid4())
        self.assertEqual(placement_replies.DoneReply(), self.answer(host))
        full = self.answer(host, VCPU=2)
        self.assertIsInstance(full, placement_replies.RefusedReply)
        self.assertEqual(
            (host, "VCPU", True), (full.provider, full.resource_class, full.by_capacity)
        )
        self.assertIsInstance(self.answer(gone), placement_replies.NoProvider)
        self.useFixture(cloud.ProvidersChange(1))
        self.assertIsInstance(self.answer(host), placement_replies.Contended)


class UndoTest(WriterCase):
    def test_undoing_is_one_call_and_leaves_nothing(self) -> None:
        host = self.provider(VCPU=50)
        servers = [cloud.server(host) for _ in range(50)]
        self.write(*servers)
        self.client.calls.clear()
        self.assertEqual((), self.writer.undo(servers, self.now + LONG))
        self.assertEqual({"post": 1}, dict(self.client.calls))
        self.assertEqual(({}, {}), (self.usages(host), self.consumers(host)))
        self.assertEqual(
            [placement_replies.AllocationWritten] * 50, cloud.kinds(servers, self.write(*servers))
        )

    def test_undoing_leaves_what_another_wrote_since(self) -> None:
        host, other = self.provider(VCPU=9), self.provider(VCPU=9)
        one, two, gone = (cloud.server(host) for _ in range(3))
        self.write(one, two, gone)
        moved = cloud.server(other, one.consumer)
        self.assertEqual(204, self.put(moved, 1).status_code)
        self.admin.delete(f"/allocations/{gone.consumer}")
        self.assertEqual((), self.writer.undo([one, two, gone], self.now + LONG))
        self.assertEqual({other: {"VCPU": 1}}, self.held(one.consumer))
        self.assertEqual({}, self.usages(host))

    def test_an_undo_whose_answer_is_lost_is_made_sure_of(self) -> None:
        for fault in (*cloud.BEFORE, *cloud.AFTER):
            host = self.provider(VCPU=9)
            servers = [cloud.server(host), cloud.server(host)]
            self.write(*servers)
            self.client.faults["post"] = [fault]
            self.assertEqual((), self.writer.undo(servers, self.now + LONG))
            self.assertEqual({}, self.usages(host))

    def test_what_cannot_be_undone_in_time_is_told(self) -> None:
        host = self.provider(VCPU=9)
        servers = [cloud.server(host), cloud.server(host)]
        self.write(*servers)
        self.client.faults["post"] = [cloud.BEFORE[0]] * 10_000
        left = self.writer.undo(servers, self.now + LONG)
        self.assertEqual({each.consumer for each in servers}, set(left))


class SharedCallsTest(WriterCase):
    def clock(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def write_together(
        self, requests: list[list[placement_replies.NewServer]], **options: Any
    ) -> list[dict[str, placement_replies.WriteOutcome]]:
        """Write requests that all queue up behind a call under way."""
        decoy = cloud.server(self.provider(VCPU=1))
        queue = self.writer._batcher._queue
        found: list[dict[str, placement_replies.WriteOutcome]] = [{} for _ in requests]

        def hold(call: Any) -> Any:
            for thread in threads:
                thread.start()
                # In order, so that who came first is known.
                while len(queue) < threads.index(thread) + 1:
                    time.sleep(0.001)
            return call()

        def work(number: int) -> None:
            found[number] = self.writer.write(requests[number], self.clock() + LONG, **options)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(len(requests))]
        self.client.faults["post"].insert(0, hold)
        self.writer.write([decoy], self.clock() + LONG)
        for thread in threads:
            thread.join()
        self.client.calls["post"] -= 1
        self.client.sizes.pop(0)
        return found

    def test_what_queues_up_behind_a_call_shares_the_next_one(self) -> None:
        host = self.provider(VCPU=99)
        requests = [[cloud.server(host)] for _ in range(16)]
        found = self.write_together(requests)
        for servers, of_request in zip(requests, found, strict=True):
            self.assertEqual(
                [placement_replies.AllocationWritten], cloud.kinds(servers, of_request)
            )
        self.assertEqual({"post": 1}, dict(self.client.calls))
        self.assertEqual([16], self.client.sizes)

    def test_a_call_is_not_larger_than_the_bound_but_for_one_request(self) -> None:
        self.writer = self.make(max_batch_consumers=4)
        host = self.provider(VCPU=99)
        requests = [[cloud.server(host) for _ in range(size)] for size in (1, 2, 2, 9, 1, 1)]
        self.write_together(requests)
        self.assertEqual([3, 2, 9, 2], self.client.sizes)
        self.assertEqual({"VCPU": 16}, self.usages(host))

    def test_a_window_waits_for_company_that_was_announced(self) -> None:
        for bound, calls in ((3, 1), (16, 1), (2, 2)):
            self.writer = self.make(batch_window_seconds=60.0, max_batch_consumers=bound)
            host = self.provider(VCPU=99)
            decided = threading.Barrier(3)
            before = len(self.client.sizes)

            def decide(host: str = host, decided: threading.Barrier = decided) -> None:
                with self.writer.coming():
                    decided.wait()
                    self.writer.write([cloud.server(host)], LONG)

            threads = [threading.Thread(target=decide) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            # It was full, or all had come, before the window ended.
            self.assertEqual(calls, len(self.client.sizes) - before)

    def test_a_window_keeps_nobody_who_is_alone(self) -> None:
        self.writer = self.make(batch_window_seconds=60.0)
        with self.writer.coming():
            self.writer.write([cloud.server(self.provider(VCPU=9))], LONG)
        self.writer.write([cloud.server(self.provider(VCPU=9))], LONG)
        self.assertEqual([1, 1], self.client.sizes)

    def test_one_full_host_fails_one_request_at_two_calls(self) -> None:
        hosts = [self.provider(VCPU=1 if number == 9 else 9) for number in range(16)]
        requests = [[cloud.server(host, VCPU=2)] for host in hosts]
        found = self.write_together(requests)
        for number, (servers, of_request) in enumerate(zip(requests, found, strict=True)):
            kind = (
                placement_replies.ProviderFull
                if number == 9
                else placement_replies.AllocationWritten
            )
            self.assertEqual([kind], cloud.kinds(servers, of_request))
        self.assertEqual({"post": 2}, dict(self.client.calls))

    def test_a_refusal_without_a_name_is_halved(self) -> None:
        hosts = [self.provider(VCPU=1 if number == 9 else 9) for number in range(16)]
        requests = [[cloud.server(host, VCPU=2)] for host in hosts]
        self.client.faults["post"] = [cloud.without_text] * 100
        found = self.write_together(requests)
        for number, (servers, of_request) in enumerate(zip(requests, found, strict=True)):
            kind = (
                placement_replies.ProviderFull
                if number == 9
                else placement_replies.AllocationWritten
            )
            self.assertEqual([kind], cloud.kinds(servers, of_request))
        self.assertLessEqual(self.client.calls["post"], 2 * math.log2(16) + 1)

    def test_requests_for_one_host_take_its_room_in_order_at_few_calls(self) -> None:
        host, other = self.provider(VCPU=5), self.provider(VCPU=99)
        requests = [[cloud.server(host if n % 2 else other)] for n in range(32)]
        found = self.write_together(requests)
        fitting = [
            number
            for number, (servers, of_request) in enumerate(zip(requests, found, strict=True))
            if number % 2
            and cloud.kinds(servers, of_request) == [placement_replies.AllocationWritten]
        ]
        self.assertEqual([1, 3, 5, 7, 9], fitting)
        self.assertEqual(({"VCPU": 5}, {"VCPU": 16}), (self.usages(host), self.usages(other)))
        self.assertLessEqual(self.client.calls["post"], 2 * math.log2(32) + 2)

    def test_a_request_with_a_consumer_that_exists_hurts_no_other(self) -> None:
        host, other = self.provider(VCPU=99), self.provider(VCPU=9)
        requests = [[cloud.server(host)] for _ in range(8)]
        there = cloud.server(other, requests[5][0].consumer)
        self.assertEqual(204, self.put(there).status_code)
        found = self.write_together(requests)
        for number, (servers, of_request) in enumerate(zip(requests, found, strict=True)):
            kind = (
                placement_replies.ConsumerExists
                if number == 5
                else placement_replies.AllocationWritten
            )
            self.assertEqual([kind], cloud.kinds(servers, of_request))
        self.assertEqual({"VCPU": 7}, self.usages(host))

    def test_a_request_of_several_servers_is_never_written_by_half(self) -> None:
        host, full = self.provider(VCPU=99), self.provider(VCPU=1)
        requests = [[cloud.server(host), cloud.server(host)] for _ in range(4)]
        requests[2] = [cloud.server(host), cloud.server(full, VCPU=2)]
        found = self.write_together(requests)
        self.assertEqual(
            [placement_replies.WithdrawnWithOthers, placement_replies.ProviderFull],
            cloud.kinds(requests[2], found[2]),
        )
        self.assertEqual({"VCPU": 6}, self.usages(host))

    def test_a_server_asked_for_twice_at_once_is_written_once(self) -> None:
        host, other = self.provider(VCPU=9), self.provider(VCPU=9)
        one = cloud.server(host)
        requests = [[one], [cloud.server(other, one.consumer)], [cloud.server(host)], [one]]
        found = self.write_together(requests)
        self.assertEqual(
            [
                placement_replies.AllocationWritten,
                placement_replies.ConsumerExists,
                placement_replies.AllocationWritten,
                placement_replies.AllocationWritten,
            ],
            [cloud.kinds(servers, each)[0] for servers, each in zip(requests, found, strict=True)],
        )
        self.assertEqual(({"VCPU": 2}, {}), (self.usages(host), self.usages(other)))

    def test_a_lost_answer_of_a_shared_call_is_looked_into_by_each_request(self) -> None:
        for fault in (*cloud.BEFORE, *cloud.AFTER):
            host = self.provider(VCPU=8)
            requests = [[cloud.server(host)] for _ in range(8)]
            self.client.faults["post"] = [fault]
            found = self.write_together(requests)
            for servers, of_request in zip(requests, found, strict=True):
                self.assertEqual(
                    [placement_replies.AllocationWritten], cloud.kinds(servers, of_request)
                )
            self.assertEqual({"VCPU": 8}, self.usages(host))

    def test_what_a_call_that_was_given_up_writes_late_is_not_left_behind(self) -> None:
        """Whoever wrote it to the next host would find it there, and take it for a move."""
        writer = self.make(batch_window_seconds=60.0, max_batch_consumers=2)
        host = self.provider(VCPU=8)
        first, second = cloud.server(host), cloud.server(host)
        go = threading.Event()

        def hold(call: Any) -> Any:
            # Others are answered meanwhile.
            self.client._one_at_a_time.release()
            go.wait(LONG)
            self.client._one_at_a_time.acquire()
            return call()

        self.client.faults["post"] = [hold]
        leader = threading.Thread(target=writer.write, args=([first], self.clock() + LONG))
        with writer.coming():
            leader.start()
            while not writer._batcher._gathering:
                time.sleep(0.001)
            found = writer.write([second], self.clock())
        self.assertEqual([placement_replies.UnknownOutcome], cloud.kinds([second], found))
        left = writer.undo([second], self.clock() + 0.1, unsure=True)
        self.assertEqual({second.consumer}, set(left))
        timer = threading.Timer(0.2, go.set)
        timer.start()
        self.assertEqual((), writer.undo([second], self.clock() + LONG, unsure=True))
        leader.join()
        timer.join()
        self.assertEqual({}, self.held(second.consumer))
        self.assertEqual({"VCPU": 1}, self.usages(host))

    def test_a_mistake_that_ends_a_shared_call_blocks_none(self) -> None:
        host = self.provider(VCPU=8)
        requests = [[cloud.server(host)] for _ in range(4)]
        self.client.faults["post"] = [cloud.lost_after(ZeroDivisionError)]
        found = self.write_together(requests)
        for servers, of_request in zip(requests, found, strict=True):
            self.assertEqual(
                [placement_replies.AllocationWritten], cloud.kinds(servers, of_request)
            )
        self.assertEqual({"VCPU": 4}, self.usages(host))


class AnyHistoryTest(WriterCase):
    """Threads, faults, races and full hosts at random: the books must balance.

    Set NODB_PROPERTY_EXAMPLES for more rounds than CI runs.
    """

    rounds = max(3, int(os.environ.get("NODB_PROPERTY_EXAMPLES", "0")) // 100)

    def clock(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.003))

    def test_placement_holds_exactly_what_was_said_to_be_written(self) -> None:
        seen: collections.Counter[str] = collections.Counter()
        for seed in range(self.rounds):
            with self.subTest(seed=seed):
                self.run_round(random.Random(seed), seen)
        # What did not happen was not tested.
        for name in (
            "AllocationWritten",
            "ProviderFull",
            "WithdrawnWithOthers",
            "ConsumerExists",
            "undone",
        ):
            self.assertGreater(seen[name], 0, seen)
        self.assertGreater(seen["shared"], 0, seen)

    def run_round(self, rng: random.Random, seen: collections.Counter[str]) -> None:
        rooms = {self.provider(VCPU=rooms): rooms for rooms in rng.choices(range(1, 9), k=5)}
        elsewhere = self.provider(VCPU=99)
        self.writer = self.make(max_batch_consumers=rng.choice([1, 4, 50]))
        self.client.sizes.clear()
        plans = [self.plan(random.Random(rng.random()), list(rooms)) for _ in range(6)]
        foreign = rng.sample([s for plan in plans for servers, _ in plan for s in servers], 3)
        for server in foreign:
            self.assertEqual(204, self.put(cloud.server(elsewhere, server.consumer)).status_code)
        faults = (None, None, None, None, *cloud.BEFORE, *cloud.AFTER)
        for name in ("get", "post"):
            self.client.faults[name] = rng.choices(faults, k=80)
        kept: dict[str, placement_replies.NewServer] = {}
        errors: list[BaseException] = []

        def work(plan: list[tuple[list[placement_replies.NewServer], bool]]) -> None:
            own = random.Random(plan[0][0][0].consumer)
            try:
                for servers, divisible in plan:
                    found = self.writer.write(servers, LONG, divisible=divisible)
                    seen.update(type(outcome).__name__ for outcome in found.values())
                    written = [
                        s
                        for s in servers
                        if isinstance(found[s.consumer], placement_replies.AllocationWritten)
                    ]
                    if not divisible and written:
                        self.assertEqual(servers, written)
                    if written and own.random() < 0.25:
                        self.assertEqual((), self.writer.undo(written, LONG))
                        seen["undone"] += len(written)
                        continue
                    kept.update((s.consumer, s) for s in written)
            except BaseException as error:
                errors.append(error)

        with cloud.ProvidersChangeAtTimes(random.Random(rng.random()), 0.2):
            threads = [threading.Thread(target=work, args=(plan,)) for plan in plans]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual([], errors)
        for name in ("get", "post"):
            self.client.faults[name].clear()
        seen["shared"] += sum(size > 3 for size in self.client.sizes)
        for host, room in rooms.items():
            expected = {c: s.amounts[host] for c, s in kept.items() if s.touches(host)}
            self.assertEqual(expected, self.consumers(host))
            used = sum(amounts["VCPU"] for amounts in expected.values())
            self.assertEqual(used, self.usages(host).get("VCPU", 0))
            self.assertLessEqual(used, room)
        self.assertEqual({"VCPU": 3}, self.usages(elsewhere))

    def plan(
        self, rng: random.Random, hosts: list[str]
    ) -> list[tuple[list[placement_replies.NewServer], bool]]:
        return [
            (
                [
                    cloud.server(rng.choice(hosts), VCPU=rng.choice([1, 1, 2]))
                    for _ in range(rng.choice([1, 1, 2, 3]))
                ],
                rng.random() < 0.5,
            )
            for _ in range(5)
        ]
