# SPDX-License-Identifier: Apache-2.0
"""Placement's own functional tests have the same outcome with the guard as without.

Here those that write or read allocations, on SQLite. ``NODB_PLACEMENT_TESTS=all`` runs all of
them, on MariaDB and PostgreSQL as well, which takes an hour.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent import futures
from typing import Any

import attrs
import testtools

from nova_nodb_scheduler.testing import servers
from tests.functional.placement_adapter import placements_own_tests

ALL = os.environ.get("NODB_PLACEMENT_TESTS") == "all"
_MOST_SECONDS = 3600.0

_PROVIDER_TESTS = "placement.tests.functional.db.test_resource_provider.ResourceProviderTestCase"


@attrs.frozen
class OwnTests:
    """What became of Placement's tests, by their ids, and why those failed that did."""

    of: Mapping[str, str]
    why: Mapping[str, str]


def run(url: str, *, guarded: bool, everything: bool) -> OwnTests:
    """Run them in a process of its own: the guard, and what they leave, are the process's."""
    command = [sys.executable, "-W", "ignore", "-m", placements_own_tests.__name__, url]
    command += ["--guarded"] if guarded else []
    command += [] if everything else ["--only", *placements_own_tests.OF_ALLOCATIONS]
    done = subprocess.run(
        command,
        capture_output=True,
        timeout=_MOST_SECONDS,
        check=False,
        # Without it oslo.db takes no database but its own kind of SQLite for one that is there.
        env={**os.environ, "OS_TEST_DBAPI_ADMIN_CONNECTION": url},
    )
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace")[-2000:])
    return OwnTests(**json.loads(done.stdout))


class _OwnTestsMixin:
    """Over one kind of database.

    :cvar only_guarded: tests that fail over Placement itself there, and pass with the guard
    """

    only_guarded: frozenset[str] = frozenset()

    def url(self) -> str:
        """Return the URL of an empty database."""
        raise NotImplementedError

    def check(self: Any, *, everything: bool) -> None:
        with futures.ThreadPoolExecutor(2) as pool:
            runs = [
                pool.submit(run, self.url(), guarded=guarded, everything=everything)
                for guarded in (False, True)
            ]
            stock, guarded = (each.result() for each in runs)
        passed = sum(each == "pass" for each in stock.of.values())
        self.assertGreater(passed, 1000 if everything else 300)
        if ALL:
            os.write(2, f"{self.id()}: {len(stock.of)} tests, {passed} pass\n".encode())
        others = {
            name: (stock.of.get(name), guarded.of.get(name), guarded.why.get(name))
            for name in stock.of.keys() | guarded.of.keys()
            if stock.of.get(name) != guarded.of.get(name)
        }
        meant = self.only_guarded if everything else ()
        self.assertEqual(dict.fromkeys(meant, ("fail", "pass", None)), others)


class SQLiteOwnTestsTest(_OwnTestsMixin, testtools.TestCase):
    def url(self) -> str:
        return "sqlite://"

    def test_the_outcome_is_the_same(self) -> None:
        self.check(everything=ALL)


class MariaDBOwnTestsTest(_OwnTestsMixin, testtools.TestCase):
    def url(self) -> str:
        return self.useFixture(servers.MariaDB()).url

    def test_the_outcome_is_the_same(self) -> None:
        if not ALL:
            self.skipTest("NODB_PLACEMENT_TESTS=all runs it")
        self.check(everything=True)


class PostgreSQLOwnTestsTest(_OwnTestsMixin, testtools.TestCase):
    """By psycopg2, if it is there: Placement asks its cursors for what psycopg 3 has not."""

    #: Placement gives allocations that it wrote the cursor's ``lastrowid``, which psycopg2 has as 0
    #: for rows without an OID; a removal of them by that id removes none. The guard reads the ids.
    only_guarded = frozenset({f"{_PROVIDER_TESTS}.test_nested_providers"})

    def url(self) -> str:
        url = str(self.useFixture(servers.PostgreSQL()).url)
        return url.replace("postgresql+psycopg://", "postgresql+psycopg2://")

    def test_the_outcome_is_the_same(self) -> None:
        if not ALL:
            self.skipTest("NODB_PLACEMENT_TESTS=all runs it")
        if importlib.util.find_spec("psycopg2") is None:
            self.skipTest("psycopg2 is not installed")
        self.check(everything=True)
