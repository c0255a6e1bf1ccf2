# SPDX-License-Identifier: Apache-2.0
"""A frame of hosts has the times that journals tell, whatever else of a host changes."""

import random
import unittest
import uuid

from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from tests.unit.scheduling import hosts
from tests.unit.scheduling.facts import test_journal_reader as journals

BEGAN = journals.BEGAN
NAMES = [f"n{number}" for number in range(4)]
SERVICE_OF = {name: str(uuid.UUID(int=9 + number)) for number, name in enumerate(NAMES)}


class FrameTest(unittest.TestCase):
    def setUp(self):
        self.world = journals.World()
        for number, name in enumerate(NAMES):
            key, cell = SERVICE_OF[name], hosts.CELL
            self.world.put(
                known_namespaces.COMPUTE_NODES, name, hosts.node(name, f"h{number}", cell)
            )
            self.world.put(known_namespaces.SERVICES, key, hosts.service(key, f"h{number}", cell))
            self.world.record(key, 100, 0.0, cell=cell)
        self.keeper, self.feed = self.world.keeper(journals=self.world.reader)

    def slot(self, host, count, seconds, name="ring.0"):
        self.world.slot(SERVICE_OF[host], (count, seconds), cell=hosts.CELL, name=name)

    def seconds(self, feed=None):
        """Return by host when its service was heard of last."""
        frame = (feed or self.feed).frame
        rows = {name: frame.row_of(name) for name in NAMES}
        return {name: frame.last_seen_seconds[row] - BEGAN for name, row in rows.items()}

    def up(self):
        frame = self.feed.frame
        return {name for name in NAMES if frame.up[frame.row_of(name)]}

    def test_a_heartbeat_in_a_journal_makes_no_host_anew_and_moves_its_time_alone(self):
        self.keeper.catch_up(BEGAN + 20.0)
        self.assertEqual(set(NAMES), self.up())
        self.feed.frame.fed.clear()
        self.slot("n1", 101, 70.0)
        decoded = self.world.decoded
        self.keeper.catch_up(BEGAN + 100.0)
        self.assertEqual(([], {"n1"}), (self.feed.frame.fed, self.up()))
        self.assertEqual({"n0": 0.0, "n1": 70.0, "n2": 0.0, "n3": 0.0}, self.seconds())
        # Slots are decoded once, and not by the store.
        self.assertEqual(decoded, self.world.decoded)

    def test_a_host_that_is_made_anew_keeps_what_journals_told(self):
        self.slot("n1", 101, 70.0)
        self.keeper.catch_up(BEGAN + 100.0)
        self.assertEqual({"n1"}, self.up())
        self.world.put(
            known_namespaces.COMPUTE_NODES, "n1", hosts.node("n1", "h1", hosts.CELL, vcpus=3)
        )
        self.world.put(
            known_namespaces.SERVICES,
            SERVICE_OF["n1"],
            hosts.service(SERVICE_OF["n1"], "h1", hosts.CELL, version=71),
        )
        self.keeper.catch_up(BEGAN + 101.0)
        self.assertEqual(70.0, self.seconds()["n1"])

    def test_a_change_that_another_reader_met_first_is_not_missed(self):
        self.keeper.catch_up(BEGAN + 20.0)
        self.slot("n1", 101, 70.0)
        self.world.look()
        self.keeper.catch_up(BEGAN + 100.0)
        self.assertEqual(70.0, self.seconds()["n1"])

    def test_when_journals_are_gone_records_tell(self):
        self.slot("n1", 101, 70.0)
        self.keeper.catch_up(BEGAN + 80.0)
        self.world.record(SERVICE_OF["n1"], 101, 71.0, cell=hosts.CELL)
        self.world.put(known_namespaces.HEARTBEAT_JOURNALS, "ring.0", None)
        self.keeper.catch_up(BEGAN + 80.0)
        self.assertEqual(71.0, self.seconds()["n1"])

    def test_a_frame_that_was_followed_is_one_that_is_made_at_once(self):
        for seed in range(20):
            dice = random.Random(seed)
            counts = dict.fromkeys(NAMES, 100 + 100 * seed)
            for step in range(30):
                name = dice.choice(NAMES)
                counts[name] += dice.choice((0, 1, 1, 2))
                seconds = 1000.0 * seed + 10.0 * step
                match dice.randrange(4):
                    case 0:
                        self.world.record(SERVICE_OF[name], counts[name], seconds, cell=hosts.CELL)
                    case 1:
                        self.world.put(
                            known_namespaces.HEARTBEAT_JOURNALS, f"ring.{dice.randrange(3)}", None
                        )
                    case _:
                        self.slot(name, counts[name], seconds, name=f"ring.{dice.randrange(3)}")
                if dice.random() < 0.5:
                    self.keeper.catch_up(BEGAN + seconds)
            self.keeper.catch_up(BEGAN)
            keeper, feed = self.world.keeper(journals=self.world.reader)
            keeper.catch_up(BEGAN)
            self.assertEqual(self.seconds(feed), self.seconds(), f"seed {seed}")
