# SPDX-License-Identifier: Apache-2.0
"""The first of those that wait gets its room in the end, whoever could go before it."""

from __future__ import annotations

import attrs

from tests.functional.nova_adapter.waiting import queue_cloud


class HoldTest(queue_cloud.QueueCase):
    OPTIONS = {"hold_after_seconds": 0.0, "hold_seconds": 600.0}

    def setUp(self):
        super().setUp()
        self.first = self.fill()
        self.large = self.conductor.ask(vcpus=4)
        self.until(lambda: self.request(self.large).hold is not None)
        self.until(lambda: self.runtime.decisions.engine._holds)

    def on(self, host):
        return [key for key in self.first if self.host_of(key) == host]

    def used_in_all(self):
        return sum(self.used(host)["VCPU"] for host in self.nodes)

    def test_the_host_that_is_large_enough_is_held_and_others_are_kept_from_it(self):
        self.assertEqual(self.nodes["h1"].uuid, self.request(self.large).hold.host)
        for count, key in enumerate(self.on("h1")[:3], start=1):
            self.delete(key)
            self.until(lambda count=count: self.used_in_all() == 6 - count)
            small = self.conductor.ask(queue=f"small-{count}")
            self.assertNotIn(small, self.placed())
        self.assertEqual(4, len(self.waiting()))
        self.delete(self.on("h1")[3])
        self.until(lambda: self.large in self.placed())
        self.assertEqual("h1", self.host_of(self.large))

    def test_other_hosts_are_given_to_others_as_ever(self):
        self.delete(self.on("h2")[0])
        self.until(lambda: self.used_in_all() == 5)
        small = self.conductor.ask(queue="small")
        self.until(lambda: small in self.placed())
        self.assertEqual("h2", self.host_of(small))

    def test_when_the_request_is_gone_its_host_is_everybodys_again(self):
        small = self.conductor.ask(queue="small")
        self.delete(self.on("h1")[0])
        for _ in range(20):
            self.turn()
            self.pause(0.05)
        self.assertIn(small, self.waiting())
        self.ledger.drop_server(self.large, self.large)
        self.until(lambda: small in self.placed())
        self.assertEqual({}, self.runtime.decisions.engine._holds)

    def test_nothing_is_held_by_a_scheduler_that_does_not_look_when_holds_end(self):
        engine = self.runtime.decisions.engine
        self.assertTrue(engine._holds)
        self.queue.worker.stop()
        self.assertEqual({}, engine._holds)
        self.queue.worker._stop.clear()
        self.round()
        self.assertTrue(engine._holds)
        self.runtime.replicator.followed = lambda: None
        self.queue.worker.round()
        self.assertEqual({}, engine._holds)

    def test_an_end_of_the_hold_frees_the_host(self):
        small = self.conductor.ask(queue="small")
        self.delete(self.on("h1")[0])
        self.patch(type(self.queue.worker._parts.proved_upkeep[0]), "run", lambda *_: None)
        held = self.request(self.large)
        ended = attrs.evolve(held.hold, until_seconds=0.0)
        self.ledger._step(self.large, lambda now: attrs.evolve(now, hold=ended))
        self.until(lambda: small in self.placed())

    def test_a_request_of_which_nobody_can_say_what_it_lacks_ends_no_hold(self):
        self.conductor.ask(
            queue="absurd", priority_class="high", needs={"VCPU": 2**63, "MEMORY_MB": 512}
        )
        self.turn()
        # Not before two seconds have passed by itself.
        self.queue.worker._parts.proved_upkeep[0]._look_at = float("-inf")
        self.turn()
        self.assertTrue(self.runtime.decisions.engine._holds)
