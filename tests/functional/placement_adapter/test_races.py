# SPDX-License-Identifier: Apache-2.0
"""Processes of Placement that allocate the same provider at once: with the guard none over-commits.

``NODB_RACE_ROUNDS`` makes it longer, and prints what came of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import testtools

from nova_nodb_scheduler.testing import galera_server, servers
from tests.functional.placement_adapter import placement_process

ROUNDS = int(os.environ.get("NODB_RACE_ROUNDS", "12"))
#: Of random writes whose generations are counted, and the writes of each writer.
CHURNS = max(1, ROUNDS // 12)
CHURN_STEPS = 60


class _RacesMixin:
    """Of one kind of database."""

    engine_options: Mapping[str, Any] = {}

    def urls(self) -> list[str]:
        """Return what the writers connect to; the first is looked at."""
        raise NotImplementedError

    def race(self, *, guarded: bool, writers: int) -> placement_process.Race:
        urls = self.urls()
        placement = self.useFixture(
            placement_process.PlacementOver(urls[0], guarded=guarded, **self.engine_options)
        )
        found = placement_process.race(
            placement.application, urls, guarded=guarded, writers=writers, rounds=ROUNDS
        )
        if "NODB_RACE_ROUNDS" in os.environ:
            os.write(2, f"{self.id()}: {found}\n".encode())
        return found

    def check_guarded(self, writers: int) -> None:
        found = self.race(guarded=True, writers=writers)
        self.assertEqual(0, found.over, found)
        # Nor does it keep anybody out: somebody has each provider, and all others were told.
        self.assertEqual(ROUNDS, found.won, found)
        self.assertEqual({204: ROUNDS, 409: (writers - 1) * ROUNDS}, dict(found.statuses))

    def test_two_writers_do_not_over_commit(self) -> None:
        self.check_guarded(2)

    def test_four_writers_do_not_over_commit(self) -> None:
        self.check_guarded(4)

    def test_eight_writers_do_not_over_commit(self) -> None:
        self.check_guarded(8)

    def check_generations(self, *, guarded: bool, writers: int) -> None:
        urls = self.urls()
        placement = self.useFixture(
            placement_process.PlacementOver(urls[0], guarded=guarded, **self.engine_options)
        )
        for seed in range(CHURNS):
            found = placement_process.churn(
                placement.application,
                urls,
                guarded=guarded,
                writers=writers,
                steps=CHURN_STEPS,
                seed=seed,
            )
            if "NODB_RACE_ROUNDS" in os.environ:
                os.write(2, f"{self.id()}: {seed}: {found}\n".encode())
            self.assertEqual(found.raised, found.found, (seed, found))
            # Written, refused for want of room or a generation, and deleted or not there.
            self.assertLessEqual({204, 409}, found.statuses.keys(), found)
            self.assertLessEqual(found.statuses.keys(), {204, 404, 409}, found)

    def test_no_raise_of_a_generation_is_lost_between_four_writers(self) -> None:
        self.check_generations(guarded=True, writers=4)


class MariaDBRacesTest(_RacesMixin, testtools.TestCase):
    def urls(self) -> list[str]:
        return [self.useFixture(servers.MariaDB(prepare=placement_process.prepare)).url]

    def test_placement_alone_counts_generations_by_the_same_rule(self) -> None:
        """One writer, without the guard: what is asked of the other tests is Placement's."""
        self.check_generations(guarded=False, writers=1)

    def test_without_the_guard_four_writers_do(self) -> None:
        """So that the other tests can fail."""
        found = self.race(guarded=False, writers=4)
        self.assertGreater(found.over, 0, found)


class PostgreSQLRacesTest(_RacesMixin, testtools.TestCase):
    def urls(self) -> list[str]:
        return [self.useFixture(servers.PostgreSQL(prepare=placement_process.prepare)).url]


class GaleraRacesTest(_RacesMixin, testtools.TestCase):
    """The writers are of two nodes, whose locks do not know one another."""

    #: What is looked at has what was written on the other node.
    engine_options = {"mysql_wsrep_sync_wait": 1}

    def urls(self) -> list[str]:
        urls = list(self.useFixture(galera_server.Galera()).urls)
        placement_process.prepare(urls[0])
        return urls
