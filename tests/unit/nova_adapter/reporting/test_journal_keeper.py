# SPDX-License-Identifier: Apache-2.0
"""A conductor journals while everybody who lives can live with it, and asks no clock of theirs."""

import unittest

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.reporting import (
    journal_keeper,
    journal_writer,
)
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.drivers.memory import driver, hub
from nova_nodb_scheduler.synchronizer.records import heartbeat_ring
from nova_nodb_scheduler.wire import codec

CELL, ALIVE, TRUST = "c", 15.0, 12.0
REPORTERS, SCHEDULERS = known_namespaces.REPORTERS, known_namespaces.SCHEDULERS
MODES = known_namespaces.HEARTBEAT_MODES
PHASE = journal_keeper.JournalPhase


class KeeperTest(unittest.TestCase):
    def setUp(self):
        self.now = 1000.0
        self.client = driver.MemorySynchronizer(shared_hub=hub.MemoryHub(clock=lambda: self.now))
        self.client.open()
        self.addCleanup(self.client.close)
        self.lost = []
        self.keeper = self.made()
        self.say(SCHEDULERS, "s", reads_journals=True)
        self.conductor("two")

    def made(self, *, wanted=True):
        self.writer = journal_writer.JournalWriter(
            lambda: CELL,
            lambda cell: heartbeat_ring.HeartbeatRing(
                self.client, cell, lambda: "ring", heartbeat_ring.RingOptions(10.0)
            ),
        )
        return journal_keeper.JournalKeeper(
            self.writer,
            wanted,
            self.lost.append,
            trust_seconds=TRUST,
            alive_seconds=ALIVE,
            clock=lambda: self.now,
        )

    def put(self, namespace, key, payload):
        name = records.RecordKey(namespace.name, key)
        standing = self.client.read([name]).get(name)
        revision = standing.revision if standing and not standing.deleted else 0
        [result] = self.client.write([records.Write(name, revision, payload)])
        self.assertTrue(result.won)

    def say(self, namespace, key, **state):
        state = {"beat_at": self.now, "host": f"host-{key}", "pid": 7, **state}
        self.put(namespace, key, codec.encode(state, namespace.schema))

    def conductor(self, name, *, cell=CELL, **more):
        told = {"guards": [cell], "binary": "conductor", "heartbeat_journals": True, **more}
        self.say(REPORTERS, name, **told)

    def keep(self, times=1):
        for _ in range(times):
            self.keeper.keep(self.client, "own")
        return self.keeper.phase

    def test_it_goes_over_in_two_looks_and_has_the_cell_swept_behind_the_second(self):
        self.assertEqual(PHASE.ANNOUNCED, self.keep())
        self.assertEqual(
            (True, False, []), (self.writer.is_announced, self.writer.is_on, self.lost)
        )
        self.assertEqual(PHASE.JOURNALS, self.keep())
        self.assertEqual((True, [[CELL]]), (self.writer.is_on, self.lost))
        self.keep(3)
        self.assertEqual([[CELL]], self.lost)

    def test_it_goes_back_at_once_and_has_the_cell_swept_again(self):
        self.keep(2)
        self.say(SCHEDULERS, "older")
        with self.assertLogs(journal_keeper.LOG, "WARNING") as logged:
            self.assertEqual(PHASE.RECORDS, self.keep())
        self.assertIn("scheduler on host-older (process 7)", logged.output[0])
        self.assertEqual([[CELL]] * 2, self.lost)
        self.assertEqual((False, False), (self.writer.is_announced, self.writer.is_on))
        # Silent for longer than the bound, it is gone.
        self.now += ALIVE + 1
        self.conductor("two")
        self.assertEqual(PHASE.ANNOUNCED, self.keep())

    def test_who_begins_where_all_journal_joins_them_and_where_one_does_not_goes_over(self):
        self.conductor("two", journals=True)
        self.assertEqual((PHASE.JOURNALS, []), (self.keep(), self.lost))
        self.conductor("three")
        self.keeper = self.made()
        self.assertEqual(PHASE.ANNOUNCED, self.keep())

    def test_who_is_not_configured_for_it_never_does_and_keeps_others_from_it(self):
        self.keeper = self.made(wanted=False)
        self.assertEqual((PHASE.RECORDS, []), (self.keep(3), self.lost))
        self.assertEqual(
            {"heartbeat_journals": False, "journals": False}, dict(self.keeper.facts())
        )

    def test_each_of_these_keeps_a_cell_from_journals(self):
        cases = {
            "a conductor of an older release": lambda: self.say(
                REPORTERS, "x", guards=[CELL], binary="conductor"
            ),
            "one that is not configured": lambda: self.conductor("x", heartbeat_journals=False),
            "a beat that nobody can read": lambda: self.put(REPORTERS, "x", b"\x02damaged"),
            "one without a time": lambda: self.conductor("x", beat_at="now"),
            "one whose cells are no list": lambda: self.conductor("x", guards=5),
            "one whose lateness is no object": lambda: self.conductor("x", late_seconds=5),
            "one whose lateness is no number": lambda: self.conductor(
                "x", behind_seconds={CELL: "long"}
            ),
            "a scheduler that says something odd": lambda: self.say(
                SCHEDULERS, "x", reads_journals="yes"
            ),
            "heartbeats that are stored": lambda: self.mode("store"),
            "a mode that is not known": lambda: self.mode("later"),
        }
        for case, happen in cases.items():
            with self.subTest(case):
                self.client.reset()
                self.keeper = self.made()
                self.assertEqual(PHASE.JOURNALS, self.keep(2))
                happen()
                with self.assertLogs(journal_keeper.LOG, "WARNING"):
                    self.assertEqual(PHASE.RECORDS, self.keep())

    def mode(self, name):
        state = {"cell": CELL, "mode": name, "since": 1.0}
        self.put(MODES, CELL, codec.encode(state, MODES.schema))

    def test_none_of_these_does(self):
        self.conductor("elsewhere", cell="d", heartbeat_journals=False)
        self.say(REPORTERS, "api", guards=[], cell="*", binary="api")
        self.mode("both")
        # From a clock that was ahead.
        self.conductor("two", beat_at=self.now + 1e6)
        self.assertEqual(PHASE.JOURNALS, self.keep(2))

    def test_what_was_decided_holds_for_a_while_from_before_the_question(self):
        self.assertEqual(float("-inf"), self.writer.decided_until)
        self.keep()
        self.assertEqual(self.now + TRUST, self.writer.decided_until)
