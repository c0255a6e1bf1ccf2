# SPDX-License-Identifier: Apache-2.0
"""Who waits for room gets it, in order, and nobody passes by."""

from __future__ import annotations

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.synchronizer.waking import queue_worker
from tests.functional.nova_adapter.waiting import queue_cloud


class WakingTest(queue_cloud.QueueCase):
    def test_whoever_finds_no_room_waits_and_is_placed_in_order_when_room_is_freed(self):
        first = self.fill()
        waiting = [self.conductor.ask() for _ in range(3)]
        self.turn()
        self.assertEqual(sorted(waiting), sorted(self.waiting()))
        self.delete(first[0])
        self.until(lambda: waiting[0] in self.placed())
        self.assertEqual([*first, waiting[0]], self.placed())
        self.delete(first[1], first[2])
        self.until(lambda: not self.waiting())
        self.assertEqual([*first, *waiting], self.placed())
        # One attempt each behind the one that found no room: nobody was woken in vain.
        self.assertEqual([2, 2, 2], [each.attempt for each in self.conductor.placed[6:]])

    def test_nobody_is_tried_while_no_room_is_freed(self):
        self.fill()
        key = self.conductor.ask()
        self.turn()
        for _ in range(5):
            self.turn()
        self.assertEqual(1, self.request(key).grant.attempt)

    def test_a_newcomer_does_not_pass_those_that_wait_and_are_like_it(self):
        first = self.fill()
        waiting = self.conductor.ask()
        self.turn()
        self.delete(first[0])
        newcomer = self.conductor.ask()
        self.assertIn((newcomer, "1 request that waits"), self.told())
        self.until(lambda: waiting in self.placed())
        self.assertEqual([newcomer], self.waiting())

    def told(self):
        return [
            (key, "1 request that waits" if "behind 1 request that waits" in why else why)
            for key, why in self.conductor.refusals
        ]

    def test_a_newcomer_of_another_size_takes_the_room_that_is_too_small_for_others(self):
        first = self.fill()
        large = self.conductor.ask(vcpus=4)
        self.turn()
        self.delete(first[0])
        self.until(lambda: self.used_in_all() == 5 and self.forgotten(first[0]))
        small = self.conductor.ask()
        self.assertIn(small, self.placed())
        self.assertEqual([large], self.waiting())

    def used_in_all(self):
        return sum(self.used(host)["VCPU"] for host in self.nodes)

    def test_the_greater_class_goes_first(self):
        first = self.fill()
        low = self.conductor.ask(priority_class="low")
        high = self.conductor.ask(priority_class="high")
        self.turn()
        self.delete(first[0])
        self.until(lambda: high in self.placed())
        self.assertEqual([low], self.waiting())

    def test_a_newcomer_of_a_greater_class_goes_before_those_that_wait(self):
        first = self.fill()
        normal = self.conductor.ask()
        self.turn()
        self.conductor.deaf = True
        self.delete(first[0])
        self.until(lambda: self.used_in_all() == 5 and self.forgotten(first[0]))
        high = self.conductor.ask(priority_class="high")
        self.assertIn(high, self.placed())
        self.assertNotIn(normal, self.placed())

    def test_servers_of_one_request_wait_as_one(self):
        first = self.fill()
        gang = self.conductor.ask(servers=3, queue="gang")
        self.turn()
        self.delete(first[0], first[1])
        self.until(lambda: self.used_in_all() == 4)
        for _ in range(20):
            self.turn()
            self.pause(0.05)
        self.assertEqual([gang], self.waiting())
        self.delete(first[2])
        self.until(lambda: gang in self.placed())
        self.assertEqual(3, len(self.conductor.placed[-1].hosts))

    def test_a_host_that_is_enabled_wakes(self):
        self.services["h1"].disabled = True
        self.services["h1"].save()
        self.reporter.flush()
        self.follow()
        self.fill(2)
        waiting = self.conductor.ask(vcpus=4)
        self.turn()
        self.assertEqual([waiting], self.waiting())
        self.services["h1"].disabled = False
        self.services["h1"].save()
        self.reporter.flush()
        self.until(lambda: waiting in self.placed())
        self.assertEqual("h1", self.host_of(waiting))

    def test_a_host_that_gets_more_wakes(self):
        self.fill()
        waiting = self.conductor.ask()
        self.turn()
        self.inventories(self.nodes["h2"].uuid, VCPU=3, MEMORY_MB=16384, DISK_GB=100)
        self.runtime.decisions.mirror_keeper.look_at([self.nodes["h2"].uuid])
        self.until(lambda: waiting in self.placed())

    def test_the_time_it_waited_is_measured_by_class_and_ending(self):
        first = self.fill()
        waiting = self.conductor.ask(priority_class="high")
        self.turn()
        self.delete(first[0])
        self.until(lambda: waiting in self.placed())
        self.round()
        self.assertEqual(1.0, self.sample("nodb_queue_wait_seconds_count", "high", "dispatched"))

    def sample(self, name, priority_class, ending):
        labels = {"class": priority_class, "ending": ending}
        return self.runtime.metrics.registry.get_sample_value(name, labels)


class StrictTest(queue_cloud.QueueCase):
    OPTIONS = {"discipline": "strict", "hold_after_seconds": 3600.0}

    def test_nobody_of_a_class_goes_before_its_first(self):
        first = self.fill()
        large = self.conductor.ask(vcpus=4)
        self.turn()
        self.delete(first[0])
        small = self.conductor.ask()
        for _ in range(30):
            self.turn()
            self.pause(0.05)
        self.assertEqual({large, small}, set(self.waiting()))


class FullTest(queue_cloud.QueueCase):
    OPTIONS = {"max_pending_per_project": 2}

    def test_a_full_queue_pushes_back_and_says_so(self):
        self.fill()
        waiting = [self.conductor.ask() for _ in range(2)]
        self.turn()
        refused = self.conductor.ask()
        self.assertIn(pending.QUEUE_FULL, dict(self.conductor.refusals)[refused])
        self.assertIn("2 servers of project project wait", dict(self.conductor.refusals)[refused])
        self.assertIsNone(self.request(refused))
        self.assertEqual(sorted(waiting), sorted(self.waiting()))

    def test_another_project_may_wait(self):
        self.fill()
        for _ in range(2):
            self.conductor.ask()
        self.turn()
        other = self.conductor.ask(project_id="other")
        self.assertIn(other, self.waiting())

    def test_whoever_finds_room_is_not_refused_for_a_full_queue(self):
        first = self.fill()
        for _ in range(2):
            self.conductor.ask(vcpus=4)
        self.turn()
        self.delete(first[0])
        self.until(
            lambda: (
                sum(self.used(host)["VCPU"] for host in self.nodes) == 5
                and self.forgotten(first[0])
            )
        )
        self.assertIn(self.conductor.ask(), self.placed())


class TimeTest(queue_cloud.QueueCase):
    OPTIONS = {"lease_seconds": 1.0}

    def test_a_request_whose_time_is_over_is_given_to_a_conductor_to_end_it(self):
        self.fill()
        key = self.conductor.ask(wait_seconds=1.0)
        self.until(lambda: self.conductor.ended)
        self.assertEqual([(key, pending.Purpose.EXPIRE)], self.conductor.ended)
        self.assertIsNone(self.request(key))

    def test_it_is_ended_though_no_host_is_proved(self):
        self.fill()
        key = self.conductor.ask(wait_seconds=1.0)
        self.runtime.judge._feed_alive = lambda bound: False
        self.until(lambda: self.conductor.ended)
        self.assertFalse(self.queue.worker.proved)
        self.assertIsNone(self.request(key))

    def test_a_grant_that_nobody_takes_is_made_again_when_its_lease_ends(self):
        first = self.fill()
        key = self.conductor.ask()
        self.turn()
        self.conductor.deaf = True
        self.delete(first[0])
        self.until(lambda: self.conductor.told)
        self.conductor.told.clear()
        self.conductor.deaf = False
        self.until(lambda: key in self.placed())
        self.assertEqual(3, self.conductor.placed[-1].attempt)

    def test_a_conductor_that_took_it_and_died_is_followed_by_another(self):
        first = self.fill()
        key = self.conductor.ask()
        self.turn()
        self.conductor.deaf = True
        self.delete(first[0])
        self.until(lambda: self.conductor.told)
        [(_, attempt)] = self.conductor.told
        self.conductor.told.clear()
        taken = self.ledger.take(key, attempt, "died")
        self.assertIs(pending.PendingState.SCHEDULING, taken.state)
        self.conductor.deaf = False
        self.pause(5.0)
        self.until(lambda: key in self.placed())
        self.assertEqual(1, self.placed().count(key))

    def test_a_grant_whose_answer_was_lost_is_made_again_and_the_request_placed_once(self):
        first = self.fill()
        key = self.conductor.ask()
        self.turn()
        grant, lost = self.queue.ledger.grant, []

        def without_answer(*args, **kwargs):
            step = grant(*args, **kwargs)
            if lost:
                return step
            lost.append(step)
            raise errors.BackendUnavailable("memory", "the answer was lost")

        self.queue.ledger.grant = without_answer
        self.delete(first[0])

        def look():
            try:
                self.turn()
            except errors.BackendUnavailable:
                return False
            return key in self.placed()

        self.wait(look)
        self.assertEqual((1, 1), (len(lost), self.placed().count(key)))
        self.assertEqual(3, self.conductor.placed[-1].attempt)

    def test_nobody_is_woken_while_hosts_are_not_proved_and_what_grew_is_not_forgotten(self):
        first = self.fill()
        key = self.conductor.ask()
        self.turn()
        alive = self.runtime.judge._feed_alive
        self.runtime.judge._feed_alive = lambda bound: False
        self.delete(first[0])
        for _ in range(20):
            self.turn()
            self.pause(0.05)
        self.assertEqual([key], self.waiting())
        self.runtime.judge._feed_alive = alive
        self.until(lambda: key in self.placed())


class LifeTest(queue_cloud.QueueCase):
    def test_a_worker_that_is_started_again_wakes_whom_the_former_one_left(self):
        first = self.fill()
        key = self.conductor.ask()
        self.turn()
        former = self.queue
        self.manager.nodb_stop()
        self.assertFalse(former.worker.proved)
        self.manager, self.runtime = self.scheduler("scheduler-1")
        self.queue = self.runtime.queue
        self.settle()
        self.round()
        self.assertIsNot(former, self.queue)
        self.delete(first[0])
        self.until(lambda: key in self.placed())

    def test_the_threads_start_with_the_worker_and_end_with_it(self):
        worker, reconciler = self.queue.worker, self.queue.reconciler
        for part in (worker, reconciler):
            del part.start
        del worker.is_running
        self.queue.start()
        self.assertTrue(worker.is_running())
        first = self.fill()
        key = self.conductor.ask()
        self.delete(first[0])

        def look():
            self.beat()
            self.conductor.work()
            return key in self.placed()

        self.wait(look)
        self.queue.stop()
        self.assertFalse(worker.is_running())
        self.assertFalse(self.queue.works())
        self.queue.stop()


class UntoldTest(queue_cloud.QueueCase):
    def test_whom_memory_cannot_tell_of_is_tried_now_and_then_one_at_a_time(self):
        spec = {"extra_specs": {"resources1:CUSTOM_FPGA": "1"}}
        keys = [self.conductor.ask(queue="odd", spec=spec) for _ in range(3)]
        for _ in range(40):
            self.turn()
            self.pause(0.05)
        attempts = [self.request(key).grant.attempt for key in keys]
        self.assertLessEqual(sum(attempts), 3 + 4)
        self.assertGreater(sum(attempts), 3)


class SeveralSchedulersTest(queue_cloud.QueueCase):
    def test_what_another_scheduler_lets_lie_is_taken_over(self):
        self.patch(queue_worker, "TAKE_OVER_SECONDS", 0.3)
        first = self.fill()
        key = self.conductor.ask()
        self.turn()
        self.queue.owners.is_own = lambda digest: False
        self.delete(first[0])
        self.until(lambda: key in self.placed())
        self.assertEqual(2, self.conductor.placed[-1].attempt)

    def test_each_wakes_its_own_and_a_request_is_granted_once(self):
        _manager, other = self.scheduler("scheduler-2")
        self.round(other)
        self.queue.owners.is_own = lambda digest: digest == "a"
        other.queue.owners.is_own = lambda digest: digest == "b"
        first = self.fill()
        one, two = self.conductor.ask(queue="a"), self.conductor.ask(queue="b")
        self.round()
        self.round(other)
        self.delete(*first[:2])

        def look():
            self.round(other)
            return {one, two} <= set(self.placed())

        self.until(look)
        self.assertEqual({2}, {each.attempt for each in self.conductor.placed[-2:]})
