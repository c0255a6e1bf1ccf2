# SPDX-License-Identifier: Apache-2.0
"""What may be left on a host whose record takes no note keeps no other host's from being noted."""

from __future__ import annotations

import logging
import unittest
from collections.abc import Collection
from unittest import mock

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.nova_adapter.orphans import left_allocations, orphan_verdicts
from nova_nodb_scheduler.synchronizer.claims import claim_rules
from nova_nodb_scheduler.synchronizer.settlement import lapsed_claims
from nova_nodb_scheduler.wire import codec
from tests.unit.nova_adapter.orphans import test_left_property

RESOURCES = test_left_property.RESOURCES
FULL, OTHER = "n1", "n2"
CROWD = [f"c{number}" for number in range(left_allocations._TURN_LEFT)]


class TurnsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.world = test_left_property.Leftovers()
        self.left = self.world.processes["s1"]

    def fill(self) -> None:
        """Have a record remember all that it may."""
        held = model.HeldClaim({"VCPU": 1}, model.ClaimState.PENDING, "i", "w", self.world.now)
        names = map(str, range(model.MOST_LAPSED))
        self.world.write(model.ClaimRecord(FULL, lapsed=dict.fromkeys(names, held)))

    def give_up(self, consumers: Collection[str], host: str) -> None:
        for each in consumers:
            self.world.give_up("s1", each, host, True)

    def test_a_full_record_keeps_no_other_hosts_from_being_noted(self):
        self.fill()
        self.give_up(CROWD, FULL)
        self.give_up(["a"], OTHER)
        for seconds in (0.0, 301.0):
            with self.subTest(seconds=seconds):
                self.world.now += seconds
                self.left.turn()
                self.assertTrue(self.world.read()[OTHER].tells_of("a", RESOURCES))
                self.world.write(self.world.read()[OTHER].without_lapsed(self.noted_ids(OTHER)))

    def test_what_a_full_record_does_not_take_is_told_in_no_turn_and_read_once(self):
        self.fill()
        self.give_up(["a"], FULL)
        reads = []
        own = self.left._synchronizer.read
        self.left._synchronizer.read = lambda keys: reads.append(keys) or own(keys)
        with self.assertNoLogs(left_allocations.LOG, logging.WARNING):
            self.left.turn()
        self.assertEqual(1, len(reads))
        self.assertEqual(1, len(self.left))

    def test_one_of_which_nothing_is_left_is_forgotten_though_nobody_can_read_its_record(self):
        newer = codec.encode({}, namespaces.SchemaVersion(2, 0))
        self.world.hub.write([records.Write(claim_rules.host_key(FULL), 0, newer)])
        self.world.give_up("s1", "a", FULL, False)
        self.world.give_up("s1", "b", FULL, True)
        self.left.turn()
        self.assertEqual(2, len(self.left))
        self.world.now += 301.0
        self.left.turn()
        self.assertEqual([("b", FULL)], list(self.left._left))

    def test_what_was_given_up_just_now_is_noted_before_placement_is_asked_which_may_hang(self):
        self.give_up(["a"], FULL)
        self.world.now += 301.0
        self.give_up(["b"], OTHER)
        told = []
        own = self.world.get

        def get(*args, **how):
            told.append(self.world.read()[OTHER].tells_of("b", RESOURCES))
            return own(*args, **how)

        self.world.get = get
        self.left.turn()
        self.assertEqual([True], told)

    def test_where_placement_is_silent_it_is_asked_three_times_and_all_is_noted(self):
        self.give_up(CROWD, FULL)
        self.world.now += 301.0
        self.world.silent = True
        asked = []
        own = self.world.get

        def get(url, **how):
            asked.append(url)
            return own(url, **how)

        self.world.get = get
        self.left.turn()
        self.assertEqual(3, len(asked))
        self.assertEqual(set(CROWD), set(self.world.read()[FULL].lapsed))

    def lose(self, consumer: str, state: model.ClaimState) -> None:
        """Have the back end lose a claim with its data."""
        held = model.HeldClaim(RESOURCES, state, "i", "dead")
        claim = orphan_verdicts.SuspectedClaim(consumer, OTHER, held, False)
        with mock.patch.object(orphan_verdicts, "find_lost", lambda former: [claim]):
            self.left.outlive(self.world.store.snapshot())

    def tells_of(self, consumer: str) -> bool:
        return self.world.read()[OTHER].tells_of(consumer, RESOURCES)

    def test_a_write_that_comes_behind_the_loss_of_its_claim_is_noted(self):
        self.lose("a", model.ClaimState.PENDING)
        for _ in range(2):
            self.world.now += 10.0
            self.left.turn()
        self.assertEqual((1, False), (len(self.left), self.tells_of("a")))
        self.world.allocated.add(("a", OTHER))
        self.left.turn()
        self.assertTrue(self.tells_of("a"))

    def test_of_a_lost_claim_nothing_comes_for_ever(self):
        self.lose("a", model.ClaimState.PENDING)
        self.lose("b", model.ClaimState.CONFIRMED)
        self.world.now += 1.0
        self.left.turn()
        self.assertEqual([("a", OTHER)], list(self.left._left))
        self.world.now += 301.0
        self.left.turn()
        self.assertEqual(0, len(self.left))

    def test_what_a_process_wrote_itself_it_remembers_before_what_others_claimed(self):
        with mock.patch.object(left_allocations, "_MOST_LEFT", 2):
            self.give_up(["a"], OTHER)
            self.lose("b", model.ClaimState.CONFIRMED)
            self.give_up(["c"], OTHER)
        self.assertEqual([("a", OTHER), ("c", OTHER)], list(self.left._left))

    def claimed(self, writer: str) -> model.HeldClaim:
        held = model.HeldClaim(RESOURCES, model.ClaimState.CONFIRMED, "i", writer)
        self.world.write(model.ClaimRecord(OTHER, {"a": held}))
        self.give_up(["a"], OTHER)
        for seconds in (1.0, 61.0, 1.0):
            self.world.now += seconds
            self.left.turn()
        return self.world.read()[OTHER].claims["a"]

    def test_of_a_confirmed_claim_too_it_tells_that_the_request_is_over(self):
        """Of several servers one stood, and could not be taken back behind another's failure."""
        told = self.claimed("s1")
        self.assertEqual(f"{lapsed_claims.GIVEN_UP}:s1", told.writer)
        self.assertIs(model.ClaimState.CONFIRMED, told.state)
        self.assertTrue(lapsed_claims.writer_is_gone(told, {"s1"}, {}))

    def test_whose_request_it_is_that_another_claimed_for_the_other_one_knows(self):
        self.assertEqual("s3", self.claimed("s3").writer)

    def noted_ids(self, host: str) -> dict[str, str]:
        lapsed = self.world.read()[host].lapsed
        return {name: each.claim_id for name, each in lapsed.items()}
