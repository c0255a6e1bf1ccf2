# SPDX-License-Identifier: Apache-2.0
"""A guarded Placement answers and writes what Placement does, through random histories.

``NODB_PROPERTY_EXAMPLES`` has a tenth as many histories drawn of each database, and what came of
them printed; ``NODB_HISTORY_SEED`` is the first one's seed.
"""

from __future__ import annotations

import collections
import os

import fixtures
import testtools

from nova_nodb_scheduler.testing import servers
from tests.functional.placement_adapter import placement_histories, placement_process

HISTORIES = max(1, int(os.environ.get("NODB_PROPERTY_EXAMPLES", "100")) // 10)
FIRST = int(os.environ.get("NODB_HISTORY_SEED", "0"))
STEPS = 40
#: Histories between two starts of an application.
_BATCH = 25
#: What a run is to have come to.
_REACHED = {
    ("POST", 204),
    ("POST", 400),
    ("POST", 409),
    ("PUT", 204),
    ("PUT", 409),
    ("DELETE", 204),
}


class SQLiteHistoriesTest(testtools.TestCase):
    def urls(self) -> list[str]:
        """Return two empty databases with Placement's tables."""
        found = []
        for name in ("alone", "guarded"):
            found.append(f"sqlite:///{self.useFixture(fixtures.TempDir()).path}/{name}.sqlite")
            placement_process.prepare(found[-1])
        return found

    def options(self) -> dict[str, object]:
        return {"sqlite_synchronous": False}

    def test_it_answers_and_writes_what_placement_does(self) -> None:
        urls = self.urls()
        statuses: collections.Counter[tuple[str, int]] = collections.Counter()
        left = 0
        for begin in range(FIRST, FIRST + HISTORIES, _BATCH):
            seeds = range(begin, min(begin + _BATCH, FIRST + HISTORIES))
            runs = []
            for url, guarded in zip(urls, (False, True), strict=True):
                with placement_process.PlacementOver(
                    url, guarded=guarded, **self.options()
                ) as placement:
                    runs.append([])
                    for seed in seeds:
                        history = placement_histories.History(
                            placement, seed, leaves_consumers=not guarded
                        )
                        runs[-1].append(history.run(STEPS))
                        left += history.left
            for seed, alone, guarded_steps in zip(seeds, *runs, strict=True):
                for number, (expected, found) in enumerate(zip(alone, guarded_steps, strict=True)):
                    differing = placement_histories.difference(expected, found)
                    if differing:
                        self.fail(f"seed {seed}, step {number}: {differing}")
                    statuses[expected.asked.method, expected.status] += 1
            if "NODB_PROPERTY_EXAMPLES" in os.environ:
                told = f"{self.id()}: seeds {FIRST} to {seeds[-1]}: {dict(statuses)}, left {left}\n"
                os.write(2, told.encode())
        self.assertLessEqual(_REACHED, statuses.keys())


class MariaDBHistoriesTest(SQLiteHistoriesTest):
    database: type[servers.MariaDB] | type[servers.PostgreSQL] = servers.MariaDB

    def urls(self) -> list[str]:
        return [
            self.useFixture(self.database(prepare=placement_process.prepare)).url for _ in range(2)
        ]

    def options(self) -> dict[str, object]:
        return {}


class PostgreSQLHistoriesTest(MariaDBHistoriesTest):
    database = servers.PostgreSQL

    def urls(self) -> list[str]:
        # Placement asks each cursor for what psycopg2's have, and does nothing with it.
        self.useFixture(fixtures.MonkeyPatch("psycopg.Cursor.lastrowid", 0))
        return super().urls()
